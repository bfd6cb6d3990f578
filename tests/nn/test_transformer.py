"""Multi-head attention, encoder layers: formula, masks, forms, Megatron's message counts, training under strategies."""

import math

import numpy as np
import pytest

from parallel_lab import ShapeError, nn
from parallel_lab.nn.tensor.tensor import Tensor
from tests.nn.one_device import check_equals_one_device, messages
from tests.refusals import refused

RNG = np.random.default_rng(12)
N, L, S, E, HEADS = 3, 4, 5, 6, 2
QUERY, KEY, VALUE = (RNG.normal(size=(N, n, E)) for n in (L, S, S))
HIDDEN_PAIRS = RNG.uniform(size=(L, S)) < 0.3
HIDDEN_PAIRS[:, 0] = False  # every query keeps a key
PADDING = np.array([[False] * 5, [False, False, True, True, True], [False, True, False, True, False]])


def dense(layer, x):
    return x @ layer.weight.asnumpy().T + layer.bias.asnumpy()


def formula(layer, query, key, value, hidden=None, padding=None):
    """Result and weights, head by head and row by row."""
    q, k, v = dense(layer.q_proj, query), dense(layer.k_proj, key), dense(layer.v_proj, value)
    d = E // HEADS
    out, weights = np.zeros((N, query.shape[1], E)), np.zeros((N, HEADS, query.shape[1], key.shape[1]))
    for n, h, i in np.ndindex(N, HEADS, query.shape[1]):
        part = slice(h * d, (h + 1) * d)
        scores = k[n, :, part] @ q[n, i, part] / math.sqrt(d)
        gone = np.zeros(key.shape[1], bool) if hidden is None else hidden[i].copy()
        gone |= False if padding is None else padding[n]
        raised = np.where(gone, 0, np.exp(scores))
        weights[n, h, i] = raised / raised.sum()
        out[n, i, part] = weights[n, h, i] @ v[n, :, part]
    return dense(layer.out_proj, out), weights


@pytest.fixture(scope="module")
def attention():
    return nn.MultiheadAttention(E, HEADS, batch_first=True, dtype=np.float64)


MASKS = {
    "none": {},
    "pairs": {"attn_mask": HIDDEN_PAIRS},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": HIDDEN_PAIRS, "key_padding_mask": PADDING & ~HIDDEN_PAIRS.all(0)},
    "numbers": {"attn_mask": np.where(HIDDEN_PAIRS, -np.inf, 0.0)},
    "per head": {"attn_mask": np.repeat(HIDDEN_PAIRS[None], N * HEADS, 0)},
}


@pytest.mark.parametrize("how", MASKS)
@pytest.mark.parametrize("need_weights", [True, False], ids=["apart", "fused"])
def test_attention_follows_the_formula_under_masks(attention, how, need_weights):
    given = MASKS[how]
    hidden = HIDDEN_PAIRS if "attn_mask" in given else None
    expected, weights = formula(attention, QUERY, KEY, VALUE, hidden, given.get("key_padding_mask"))
    masks = {name: Tensor(mask) for name, mask in given.items()}
    out, found = attention(Tensor(QUERY), Tensor(KEY), Tensor(VALUE), need_weights=need_weights, **masks)
    np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-11, atol=1e-12)
    if need_weights:
        np.testing.assert_allclose(found.asnumpy(), weights.mean(1), rtol=1e-11, atol=1e-12)
    else:
        assert found is None


def test_a_causal_row_does_not_see_later_keys(attention):
    later = np.triu(np.ones((L, S), bool), 1)
    expected, weights = formula(attention, QUERY, KEY, VALUE, later)
    for need in (True, False):
        out, found = attention(
            Tensor(QUERY), Tensor(KEY), Tensor(VALUE), need_weights=need, average_attn_weights=False, is_causal=True
        )
        np.testing.assert_allclose(out.asnumpy(), expected, rtol=1e-11, atol=1e-12)
        if need:
            np.testing.assert_allclose(found.asnumpy(), weights, rtol=1e-11, atol=1e-12)


# ---- encoder ----


def test_the_layers_of_an_encoder_begin_with_weights_of_their_own():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, HEADS, 8), 3, nn.LayerNorm((E,)))
    weights = [layer.linear1.weight for layer in encoder.layers]
    assert [w.name for w in weights] == [f"layers.{i}.linear1.weight" for i in range(3)]
    assert not np.array_equal(weights[0].asnumpy(), weights[1].asnumpy())
    assert encoder(Tensor(QUERY.swapaxes(0, 1).astype(np.float32))).shape == (L, N, E)


WIDTH, SEQ, BATCH = 16, 4, 8


def make_encoder(layers=2, dropout=0.0):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, 8, 32, dropout, "gelu", batch_first=True, norm_first=True, dtype=np.float64),
        layers,
    )


def tensor_parallel(encoder, dp, mp):
    """Megatron's split of every layer: q, k, v and the first dense layer by columns, output, second dense by rows."""
    for layer in encoder.layers:
        for column in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.linear1):
            column.matmul.shard(((dp, 1), (mp, 1)))
            column.bias_add.shard(((dp, mp), (mp,)))
        for row in (layer.self_attn.out_proj, layer.linear2):
            row.matmul.shard(((dp, mp), (1, mp)))
            row.bias_add.shard(((dp, 1), (1,)))
        layer.self_attn.attention.shard(((dp, 1, mp, 1),) * 3)
        for norm in (layer.norm1, layer.norm2):
            norm.layer_norm.shard(((dp, 1, 1), (1,), (1,)))
        for add in (layer.add1, layer.add2):
            add.shard(((dp, 1, 1), (dp, 1, 1)))
        layer.activation.gelu.shard(((dp, 1, mp),))
        for drop in (layer.dropout1, layer.dropout2):
            drop.dropout.shard(((dp, 1, 1),))
        layer.dropout.dropout.shard(((dp, 1, mp),))


DATA = RNG.normal(size=(BATCH, SEQ, WIDTH)), RNG.normal(size=(BATCH, SEQ, WIDTH))


class SquaredError(nn.LossBase):
    """Mean squared error, the batch split in `dp`."""

    def __init__(self, dp):
        super().__init__()
        self.loss = nn.MSELoss()
        for part in (self.loss.sub, self.loss.square, self.loss.reduce_mean):
            part.shard(((dp, 1, 1),) * (2 if part is self.loss.sub else 1))

    def construct(self, x, y):
        return self.loss(x, y)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("dp", "mp"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_training_is_that_of_one_device_with_two_all_reduces_per_layer_each_way(dp, mp):
    """Shoeybi et al. 2019, section 3: one all_reduce per attention and one per MLP forward, and one each backward."""
    plan = check_equals_one_device(make_encoder, SquaredError(dp), DATA, lambda net: tensor_parallel(net, dp, mp))
    layers = 2
    forward = [i for i in messages(plan) if i.group_size == mp > 1 and plan.value(i.out).shape]
    backward = [i for i in messages(plan, "backward") if i.group_size == mp > 1 and "mirror" not in i.out]
    assert {i.kind for i in messages(plan)} | {i.kind for i in messages(plan, "backward")} == {"all_reduce"}
    assert len(forward) == (2 * layers if mp > 1 else 0)
    assert len(backward) == len(forward)


def test_dropout_in_the_layers_leaves_training_that_of_one_device():
    check_equals_one_device(
        lambda: make_encoder(1, 0.25), SquaredError(4), DATA, lambda net: tensor_parallel_apart(net)
    )


def tensor_parallel_apart(net):
    """As above; with dropout of its weights attention is taken apart, and its operators are split by heads."""
    tensor_parallel(net, 4, 2)
    for layer in net.layers:
        attn = layer.self_attn
        for turn in (attn.transpose_q, attn.transpose_k, attn.transpose_v):
            turn.shard(((4, 1, 2, 1),))
        attn.scale.shard(((4, 2, 1, 1), ()))
        attn.scores.shard(((4, 2, 1, 1), (4, 2, 1, 1)))
        attn.softmax.shard(((4, 2, 1, 1),))
        attn.dropout.dropout.shard(((4, 2, 1, 1),))
        attn.weighted.shard(((4, 2, 1, 1), (4, 2, 1, 1)))
        attn.transpose_out.shard(((4, 2, 1, 1),))


test_what_attention_layers_refuse = refused(
    (lambda: nn.MultiheadAttention(6, 4), ValueError, "embed_dim=6 with num_heads=4"),
    (lambda: nn.MultiheadAttention(6, 2)(*[Tensor(QUERY[..., :5])] * 3), ShapeError, r"\(l, n, 6\), \(s, n, 6\)"),
    (
        lambda: nn.MultiheadAttention(6, 2)(*[Tensor(QUERY)] * 3, attn_mask=Tensor(PADDING)),
        ShapeError,
        r"attn_mask is bool of shape \(3, 5\)",
    ),
    (lambda: nn.TransformerEncoderLayer(6, 2, activation="reluu"), ValueError, "'reluu' is not known"),
    (lambda: nn.TransformerEncoderLayer(6, 2, activation=None), TypeError, "activation=None"),
)


# ---- the decoder ----

SEEN = np.triu(np.ones((L, L), bool), 1)
ROUGH = {"dropout": 0.0, "batch_first": True, "dtype": np.float64}


def normed(layer, x):
    flat = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return flat * layer.gamma.asnumpy() + layer.beta.asnumpy()


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_attends_to_itself_then_to_the_memory(norm_first):
    layer = nn.TransformerDecoderLayer(E, HEADS, 8, norm_first=norm_first, **ROUGH)
    parts = (
        (layer.norm1, lambda x: formula(layer.self_attn, x, x, x, SEEN)[0]),
        (layer.norm2, lambda x: formula(layer.multihead_attn, x, KEY, KEY, None, PADDING)[0]),
        (layer.norm3, lambda x: dense(layer.linear2, np.maximum(dense(layer.linear1, x), 0))),
    )
    expected = QUERY
    for norm, part in parts:
        inner = part(normed(norm, expected) if norm_first else expected)
        expected = expected + inner if norm_first else normed(norm, expected + inner)
    given = {"tgt_mask": Tensor(SEEN), "memory_key_padding_mask": Tensor(PADDING)}
    found = layer(Tensor(QUERY), Tensor(KEY), **given).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11)
    del given["tgt_mask"]
    assert (layer(Tensor(QUERY), Tensor(KEY), **given, tgt_is_causal=True).asnumpy() == found).all()


class Translated(nn.Cell):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(WIDTH, 2, 1, 2, 24, norm_first=True, **ROUGH)

    def construct(self, x):
        return self.transformer(x, x[:, :2])


def test_a_transformer_is_its_decoder_on_what_its_encoder_gives():
    net, x = nn.Transformer(E, HEADS, 2, 2, 8, **ROUGH), Tensor(KEY)
    masks = {"src_key_padding_mask": Tensor(PADDING), "memory_key_padding_mask": Tensor(PADDING)}
    found = net(x, Tensor(QUERY), tgt_mask=Tensor(SEEN), **masks).asnumpy()
    memory = net.encoder(x, None, Tensor(PADDING))
    expected = net.decoder(Tensor(QUERY), memory, Tensor(SEEN), None, None, Tensor(PADDING)).asnumpy()
    assert (found == expected).all()
    own = nn.Transformer(E, HEADS, custom_encoder=net.encoder, num_decoder_layers=1, dim_feedforward=8, **ROUGH)
    assert own(x, Tensor(QUERY)).shape == QUERY.shape and own.encoder is net.encoder
    weights = [layer.multihead_attn.out_proj.weight.asnumpy() for layer in net.decoder.layers]
    assert len(weights) == 2 and not np.array_equal(*weights)


@pytest.mark.exhaustive
def test_a_transformer_on_8_ranks_trains_as_on_one():
    inputs = RNG.normal(size=(BATCH, SEQ, WIDTH)), RNG.normal(size=(BATCH, 2, WIDTH))
    check_equals_one_device(Translated, nn.MSELoss(), inputs, lambda net: None)
