"""nn.transformer of MindSpore 1.5 to 2.0: configurations, layers, and what they compute divided and whole."""

import copy
from functools import cache

import numpy as np
import pytest
from parallel_lab.mindspore.nn import transformer as T

from parallel_lab import (
    ParallelLabError,
    Session,
    Tensor,
    compile,
    get_auto_parallel_context,
    nn,
    ops,
    set_auto_parallel_context,
    set_seed,
)
from tests.crossed import each_of

BATCH, LENGTH, WIDTH, WORDS = 4, 6, 8, 12
rng = np.random.default_rng(0)
IDS, LABELS = rng.integers(0, WORDS, (2, BATCH, LENGTH)).astype(np.int32)
MASK = np.ones((BATCH, LENGTH), np.float32)
MASK[1, 4:] = 0


class Net(nn.Cell):
    """Embedding, mask, encoder and decoder, and the table again as head."""

    def __init__(self, config, post=False):
        super().__init__()
        dp, rows = config.data_parallel, 1 if config.vocab_emb_dp else config.model_parallel
        self.embedding = T.VocabEmbedding(WORDS, WIDTH, config.embedding_dp_mp_config, param_init="normal")
        self.mask = T.AttentionMask(LENGTH, config.dp_mp_config)
        rates = {"attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0, "post_layernorm_residual": post}
        self.body = T.Transformer(WIDTH, BATCH, 16, LENGTH, LENGTH, 1, 1, 4, parallel_config=config, **rates)
        self.head = ops.MatMul(transpose_b=True).shard(((dp, 1), (rows, 1)))

    def construct(self, ids, mask):
        x, table = self.embedding(ids)
        seen = self.mask(mask)
        y = self.body(x, seen, x, seen, seen)[0]
        return self.head(ops.reshape(y, (-1, WIDTH)), table), mask


class Loss(nn.Cell):
    def __init__(self, config):
        super().__init__()
        self.loss = T.CrossEntropyLoss(config.dp_mp_config)

    def construct(self, out, labels):
        return ops.reduce_sum(self.loss(out[0], ops.reshape(labels, (-1,)), ops.reshape(out[1], (-1,))))


def trained(dp, mp, **options):
    """(losses, {parameter: how far two steps moved it}, plan) on dp * mp simulated ranks."""
    set_seed(1)
    mode = {"parallel_mode": "semi_auto_parallel" if dp * mp > 1 else "stand_alone", "device_num": dp * mp}
    set_auto_parallel_context(**mode)
    config = T.TransformerOpParallelConfig(dp, mp, **options)
    net = Net(config)
    for _, cell in net.cells_and_names():  # in float16 what the encoder learns is lost in rounding
        if vars(cell).get("dtype") == "float16":
            cell.dtype = "float32"
    for parameter in net.trainable_params():
        if parameter.name.endswith("weight") or "table" in parameter.name:
            parameter.set_data(Tensor(50 * parameter.asnumpy()))
    start = {p.name: p.asnumpy().copy() for p in net.trainable_params()}
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    plan = compile(net, IDS, MASK, LABELS, loss=Loss(config), optimizer=optimizer, dataset_strategy="full_batch")
    with Session(plan, net, optimizer) as session:
        losses = session.train([(IDS, MASK, LABELS)], 2)
        return losses, {name: values - start[name] for name, values in session.parameters().items()}, plan


@cache
def whole():
    return trained(1, 1)[:2]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("dp", "mp", "options"),
    [(2, 1, {}), (1, 2, {"vocab_emb_dp": False}), (2, 2, {"recompute": T.TransformerRecomputeConfig(True)})],
    ids=["2-1", "1-2", "2-2, recomputed"],
)
def test_a_divided_transformer_learns_what_the_whole_one_does(dp, mp, options):
    """Two steps of both: a gradient that is doubled or halved would be off by half of the way or more."""
    losses, moved, plan = trained(dp, mp, **options)
    wanted_losses, wanted = whole()
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for name, way in wanted.items():
        most = np.abs(way).max()
        # the keys' bias adds the same to all scores of a row: its gradient is rounding
        assert most > 1e-3 or "dense2.bias" in name
        np.testing.assert_allclose(moved[name], way, atol=1e-3 * most + 1e-5, err_msg=name)
    plan.verify()
    gathers = [i for i in plan.stages[0].program("forward") if i.kind == "all_gather" and "body" in i.out]
    assert not gathers  # Megatron's split needs none between embedding and loss


def test_a_config_shares_its_parts_and_sets_the_context():
    config = T.TransformerOpParallelConfig(
        data_parallel=2, model_parallel=4, pipeline_stage=2, micro_batch_num=4, optimizer_shard=True, vocab_emb_dp=False
    )
    assert (config.dp_mp_config.data_parallel, config.moe_parallel_config.dpmp.model_parallel) == (2, 4)
    config.data_parallel = 8
    assert config.embedding_dp_mp_config.data_parallel == config.moe_parallel_config.data_parallel == 8
    assert get_auto_parallel_context("pipeline_stages") == 2
    assert get_auto_parallel_context("enable_parallel_optimizer")
    other = copy.deepcopy(config)
    other.vocab_emb_dp = True
    assert not config.vocab_emb_dp and not config.embedding_dp_mp_config.vocab_emb_dp
    assert str(T.OpParallelConfig(2, 4)) == "[ParallelConfig]\n_data_parallel:2\n_model_parallel:4\n"


def test_layers_of_a_stack_are_placed_by_the_config():
    """12 layers, 4 stages of 3; 4 groups of gradients, of 3 layers, counted from 1 (MindSpore's lambda_func)."""
    config = T.TransformerOpParallelConfig(pipeline_stage=4, micro_batch_num=4, recompute=True)
    stack = T.TransformerEncoder(2, 12, WIDTH, 16, LENGTH, 2, parallel_config=config)
    assert [block.pipeline_stage for block in stack.blocks] == [i // 3 for i in range(12)]
    assert [block.attention.dense1.weight.comm_fusion for block in stack.blocks] == [i // 3 + 1 for i in range(12)]
    assert all(block.recompute_options for block in stack.blocks)


@each_of(
    ("make", "error"),
    (lambda: T.OpParallelConfig(0, 1), ValueError),
    (lambda: T.TransformerOpParallelConfig(recompute=1), TypeError),
    (lambda: T.TransformerRecomputeConfig(recompute="yes"), TypeError),
    (lambda: T.FeedForward(8, 15, 0.1, parallel_config=T.OpParallelConfig(1, 2)), ValueError),
    (lambda: T.FeedForward(8, 16, 1.0), ValueError),
    (lambda: T.MultiHeadAttention(2, 4, 4, 9, 2), ValueError),
    (lambda: T.VocabEmbedding(7, 4, T.EmbeddingOpParallelConfig(1, 2, vocab_emb_dp=False)), ValueError),
    (lambda: T.TransformerDecoderLayer(8, 16, 2, 2, 4, 4, use_past=True), ValueError),
    (lambda: T.Transformer(8, 2, 16, 4, 4, encoder_layers=0), ValueError),
    (lambda: T.FixedSparseAttention(2, 8, 64, 32), ValueError),
    (lambda: T.AttentionMask(4)(Tensor(np.ones((1, 5), np.float32))), ValueError),
)
def test_what_cannot_be_is_refused(make, error):
    set_auto_parallel_context(parallel_mode="stand_alone")
    with pytest.raises(error) as raised:
        make()
    assert isinstance(raised.value, ParallelLabError)


def test_a_search_has_no_strategies_to_leave_to_the_layers():
    set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="dynamic_programming", device_num=2)
    with pytest.raises(RuntimeError, match="sharding_propagation"):
        T.TransformerEncoderLayer(2, 8, 16, 2, 4)
    set_auto_parallel_context(search_mode="sharding_propagation")
    layer = T.TransformerEncoderLayer(2, 8, 16, 2, 4, parallel_config=T.OpParallelConfig(1, 2))
    assert layer.attention.dense1.matmul.in_strategy is None
    assert layer.attention.projection.matmul.in_strategy == ((1, 2), (2, 1))


def test_one_token_at_a_time_gives_what_the_whole_sequence_gives():
    """Key and value of the tokens before are kept; the last row of the causal attention is the same."""
    sizes = {"batch_size": 2, "src_seq_length": 4, "tgt_seq_length": 4, "hidden_size": 8, "num_heads": 2}
    layer = T.MultiHeadAttention(**sizes, use_past=True, compute_dtype="float32")
    layer.set_train(False)
    x = rng.standard_normal((2, 4, 8)).astype(np.float32)
    causal = Tensor(np.tile(np.tril(np.ones((4, 4), np.float32)), (2, 1, 1)))
    empty = Tensor(np.zeros((2, 2, 4, 4), np.float32))
    full = Tensor(x)
    wanted = layer(full, full, full, causal, empty, empty, Tensor(np.full(2, 4, np.int32)))[0].asnumpy()[:, 3:]
    _, (key, value) = layer(full, full, full, causal, empty, empty, Tensor(np.full(2, 3, np.int32)))
    layer.add_flags_recursive(is_first_iteration=False)
    last = Tensor(x[:, 3:])
    mask = Tensor(np.ones((2, 1, 4), np.float32))
    got, _ = layer(last, last, last, mask, key, value, Tensor(np.full(2, 3, np.int32)))
    np.testing.assert_allclose(got.asnumpy(), wanted, rtol=1e-5, atol=1e-6)


def test_a_layer_keeps_the_tokens_before():
    """Three tokens, then one: the last row of four at once, in float16. It could not be called with use_past."""
    layer = T.TransformerEncoderLayer(2, 8, 16, 2, 4, use_past=True)
    layer.set_train(False)
    x, keep, clear = rng.standard_normal((2, 4, 8)).astype(np.float32), Tensor([True]), Tensor([False])
    causal = Tensor(np.tile(np.tril(np.ones((4, 4), np.float32)), (2, 1, 1)))
    wanted = layer(Tensor(x), causal, clear, Tensor(np.full(2, 4, np.int32)))[0].asnumpy()[:, 3:]
    layer(Tensor(x), causal, clear, Tensor(np.full(2, 3, np.int32)))
    layer.add_flags_recursive(is_first_iteration=False)
    got, _ = layer(Tensor(x[:, 3:]), Tensor(np.ones((2, 1, 4), np.float32)), keep, Tensor(np.full(2, 3, np.int32)))
    np.testing.assert_allclose(got.asnumpy(), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("made", "inputs"),
    [
        (lambda: T.CrossEntropyLoss(), [(4, 8, "int32"), (4, "int32"), (4, "float32")]),
        (lambda: T.CrossEntropyLoss(), [(4, 8, "float32"), (4, "float32"), (4, "float32")]),
        (lambda: T.VocabEmbedding(16, 8), [(2, 4, "float32")]),
        (lambda: T.FeedForward(8, 16, 0.1), [(2, 8, "int32")]),
    ],
)
def test_inputs_of_another_dtype_are_refused(made, inputs):
    with pytest.raises(TypeError, match="of dtype"):
        made()(*[Tensor(np.ones(shape, dtype)) for *shape, dtype in inputs])


def test_norm_of_one_and_of_all_dims():
    """MindSpore 1.x, nn.Norm: (3, 4) has norm 5, along rows and as a whole."""
    x = Tensor(np.array([[3.0, 4.0], [0.0, 12.0]], np.float32))
    assert nn.Norm(axis=1)(x).asnumpy().tolist() == [5, 12] and float(nn.Norm()(x)) == 13
    assert nn.Norm(0, keep_dims=True)(x).shape == (1, 2)
