"""FlashAttentionScore against the formula, written out query by query; its forms under strategies; what it refuses."""

import itertools

import numpy as np
import pytest

from parallel_lab import (
    Parameter,
    ParameterTuple,
    Session,
    ShapeError,
    StrategyError,
    Tensor,
    compile,
    nn,
    ops,
    set_context,
)
from parallel_lab.base.errors import NotBuiltYet, ParallelLabError
from parallel_lab.layout.named_layout import Layout
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.ops import OPS
from parallel_lab.ops.context_attention import SETTINGS, _view
from tests.crossed import each_of
from tests.nets import cell
from tests.nn.one_device import messages
from tests.refusals import refused

B, N, S, T, D = 2, 4, 8, 6, 3
RNG = np.random.default_rng(11)
QUERY = RNG.normal(size=(B, N, S, D))  # heads first; the layouts are made of these
SHIFT = RNG.normal(size=(1, N, S, T))
MASK = RNG.random((B, 1, S, T)) < 0.3
ORDERS = {"BNSD": "bnsd->bnsd", "BSND": "bnsd->bsnd", "BSH": "bnsd->bsnd", "SBH": "bnsd->sbnd"}


def keys(heads=N):
    rng = np.random.default_rng(heads)
    return rng.normal(size=(B, heads, T, D)), rng.normal(size=(B, heads, T, D))


def laid(x, layout):
    x = np.einsum(ORDERS[layout], x)
    return np.ascontiguousarray(x if x.ndim == 4 and len(layout) == 4 else x.reshape(*x.shape[:2], -1))


def seen(mode, row, column, pre, post, mask):
    """Whether a query sees a key, as MindSpore says it of each mode."""
    below = row + T - S  # the row's place on the diagonal that ends in the lower right corner
    return {
        0: not mask and row - pre <= column <= row + post,
        1: not mask,
        2: column <= row,
        3: column <= below,
        4: below - pre <= column <= below + post,
    }[mode]


def expected(key, value, *, scale=1.0, mode=0, pre=99, post=99, shift=None, mask=None):
    """Largest scores, sums and attention, one query at a time."""
    out, largest, sums = np.zeros((B, N, S, D)), np.zeros((B, N, S)), np.zeros((B, N, S))
    for b, n, s in itertools.product(range(B), range(N), range(S)):
        of = n * key.shape[1] // N
        found = {
            t: scale * QUERY[b, n, s] @ key[b, of, t] + (0 if shift is None else shift[0, n, s, t])
            for t in range(T)
            if seen(mode, s, t, pre, post, mask is not None and mask[b, 0, s, t])
        }
        if found:
            largest[b, n, s] = max(found.values())
            weights = {t: np.exp(x - largest[b, n, s]) for t, x in found.items()}
            sums[b, n, s] = sum(weights.values())
            out[b, n, s] = sum(w * value[b, of, t] for t, w in weights.items()) / sums[b, n, s]
    return largest, sums, out


@each_of("layout", *ORDERS)
@each_of("heads", N, 2, 1)
def test_layouts_and_fewer_key_heads(layout, heads):
    key, value = keys(heads)
    given = [Tensor(laid(x, layout)) for x in (QUERY, key, value)]
    found = ops.FlashAttentionScore(N, scale_value=0.4, input_layout=layout)(*given)
    largest, sums, out = expected(key, value, scale=0.4)
    assert [tuple(f.shape) for f in found[:3]] == [(B, N, S, 8), (B, N, S, 8), (1,)]
    np.testing.assert_allclose(found[0].asnumpy(), np.repeat(largest[..., None], 8, -1), rtol=1e-12)
    np.testing.assert_allclose(found[1].asnumpy(), np.repeat(sums[..., None], 8, -1), rtol=1e-12)
    np.testing.assert_allclose(found[3].asnumpy(), laid(out, layout), rtol=1e-12)
    also = ops.flash_attention_score(*given, N, scalar_value=0.4, input_layout=layout)
    np.testing.assert_array_equal(also.asnumpy(), found[3].asnumpy())


@each_of(
    "options",
    {"shift": SHIFT},
    {"mask": MASK},
    {"mask": MASK, "shift": SHIFT, "mode": 1},
    {"pre": 2, "post": 1, "mask": MASK},
    {"mode": 2},
    {"mode": 3},
    {"mode": 4, "pre": 3, "post": 0},
    {"mode": 4, "pre": 1, "post": -1},  # the first queries see no key
    ids=["shift", "mask", "all", "window", "causal", "lower right", "band", "rows without keys"],
)
def test_masks_and_windows(options):
    key, value = keys()
    out = expected(key, value, scale=0.3, **options)[2]
    words = {"mode": "sparse_mode", "pre": "pre_tokens", "post": "next_tokens"}
    attrs = {words[name]: value for name, value in options.items() if name in words}
    masks = {"real_shift": options.get("shift"), "attn_mask": options.get("mask")}
    masks = {name: Tensor(x) for name, x in masks.items() if x is not None}
    given = [Tensor(x) for x in (QUERY, key, value)]
    found = ops.flash_attention_score(*given, N, **masks, scalar_value=0.3, input_layout="BNSD", **attrs)
    np.testing.assert_allclose(found.asnumpy(), out, rtol=1e-12, atol=1e-15)


@each_of("heads", N, 2)
def test_gradients_are_the_slopes(heads):
    key, value = keys(heads)
    given = [Parameter(Tensor(x.copy()), name=f"p{i}") for i, x in enumerate((QUERY, key, value, SHIFT))]
    weights, step = RNG.normal(size=QUERY.shape), 1e-6

    def loss(*operands):
        *heads_first, shift = operands
        options = {"attn_mask": Tensor(MASK), "scalar_value": 0.5, "input_layout": "BNSD"}
        out = ops.flash_attention_score(*heads_first, N, real_shift=shift, **options)
        return ops.reduce_sum(ops.mul(out, Tensor(weights)))

    found = gradients(loss(*given), given)
    for i, operand in enumerate(given):
        direction = RNG.normal(size=operand.shape)
        ends = []
        for sign in (1, -1):
            moved = [Tensor(p.asnumpy() + (sign * step * direction if p is operand else 0)) for p in given]
            ends.append(loss(*moved).item())
        assert (found[i] * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_dropout_keeps_a_share_of_the_weights_and_scales_it():
    """Values that are unit vectors show the weights: 1 / t each."""
    t = 128
    query, eye = np.zeros((1, 1, t, t)), np.eye(t)[None, None]
    call = OPS["flash_attention"].compute
    options = {"head_num": 1, "given": ("step",), "keep_prob": 0.75, "input_layout": "BNSD", "key": 3}
    steps = [call(query, query, eye, np.asarray(step), **options)[3] for step in (0, 0, 1)]
    assert np.array_equal(steps[0], steps[1]) and not np.array_equal(steps[0], steps[2])
    np.testing.assert_allclose(np.unique(steps[0]), [0, 1 / t / 0.75], rtol=1e-12)
    assert abs((steps[0] > 0).mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / t**2)  # five standard deviations


def test_a_given_mask_of_bits_says_which_weights_are_kept():
    """Values that are unit vectors show the weights; the lowest bit is that of the first key."""
    bits = np.array([0b10110001, 0b00000010], np.uint8).reshape(1, 1, 1, 2)
    query, eye = Tensor(np.zeros((1, 1, 1, 10))), Tensor(np.eye(10)[None, None])
    fused = ops.FlashAttentionScore(1, keep_prob=0.5, input_layout="BNSD")
    out = fused(query, Tensor(np.zeros((1, 1, 10, 10))), eye, None, Tensor(bits))[3]
    np.testing.assert_allclose(out.asnumpy().reshape(-1), np.array([1, 0, 0, 0, 1, 1, 0, 1, 0, 1]) / 10 / 0.5)


# ---- ranks ----


class Net(nn.Cell):
    """Attention over Parameters, dropped in training."""

    def __init__(self, layout, strategy=None, mode=0, keep_prob=1.0, with_mask=True, heads=N):
        super().__init__()
        key, value = keys(heads)
        given = zip("qkv", (QUERY, key, value), strict=True)
        self.q, self.k, self.v = (Parameter(Tensor(laid(x, layout)), name=name) for name, x in given)
        self.shift, self.mask = Parameter(Tensor(SHIFT), name="shift"), Tensor(MASK) if with_mask else None
        self.attention = ops.FlashAttentionScore(N, keep_prob, 0.5, input_layout=layout, sparse_mode=mode)
        if strategy is not None:
            self.attention.shard(strategy)

    def construct(self, weights):
        out = self.attention(self.q, self.k, self.v, self.shift, None, None, self.mask)[3]
        return ops.reduce_sum(ops.mul(out, weights))


WEIGHTS = RNG.normal(size=QUERY.shape)


def trained(net, layout, **settings):
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    loss = cell(lambda net, out, label: ops.mul(out, label))
    data = (laid(WEIGHTS, layout), np.float64(1))
    plan = compile(net, *data, loss=loss, optimizer=optimizer, **settings)
    with Session(plan, net, optimizer) as session:
        return plan, session.train([data], 3), session.parameters()


def by_counts(layout, b, s, n):
    query = {"BSH": (b, s, n), "SBH": (s, b, n), "BNSD": (b, n, s, 1), "BSND": (b, s, n, 1)}[layout]
    key = {"BSH": (b, 1, n), "SBH": (1, b, n), "BNSD": (b, n, 1, 1), "BSND": (b, 1, n, 1)}[layout]
    return query, key, key, (1, n, s, 1), (b, 1, s, 1)


CUTS = [(2, 4, 1), (1, 2, 4), (1, 8, 1), (2, 1, 4), (2, 2, 2), (1, 1, 1)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", ORDERS)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_every_way_to_split_trains_as_one_device_with_the_same_dropout(layout, cuts):
    """No message forward but the sum of the loss: keys are whole, and each rank knows its place."""
    wanted = trained(Net(layout, keep_prob=0.7), layout, parallel_mode="stand_alone")[1:]
    strategy, settings = by_counts(layout, *cuts), {"device_num": 8, "dataset_strategy": "full_batch"}
    plan, losses, parameters = trained(Net(layout, strategy, keep_prob=0.7), layout, **settings)
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-10)
    for name, values in wanted[1].items():
        np.testing.assert_allclose(parameters[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    assert len(set(losses)) == 3
    inside = [i for i in messages(plan) if "attention" in i.name]
    assert inside == []


@each_of("mode", 2, 3)
def test_a_causal_window_lies_where_the_rows_of_a_rank_are(mode):
    wanted = trained(Net("BSH", mode=mode, with_mask=False), "BSH", parallel_mode="stand_alone")[1:]
    strategy = by_counts("BSH", 1, 4, 2)[:4]
    settings = {"device_num": 8, "dataset_strategy": "full_batch"}
    _, losses, parameters = trained(Net("BSH", strategy, mode=mode, with_mask=False), "BSH", **settings)
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-10)
    np.testing.assert_allclose(parameters["k"], wanted[1]["k"], rtol=1e-9, atol=1e-12)


def test_heads_of_a_query_are_split_while_a_single_head_of_keys_is_whole():
    """Its count had to be that of the query, which no single head has: no strategy was legal."""
    wanted = trained(Net("BSH", heads=1), "BSH", parallel_mode="stand_alone")[1:]
    query, _, _, *others = by_counts("BSH", 2, 1, 4)
    key = (2, 1, 1)
    settings = {"device_num": 8, "dataset_strategy": "full_batch"}
    _, losses, parameters = trained(Net("BSH", (query, key, key, *others), heads=1), "BSH", **settings)
    np.testing.assert_allclose(losses, wanted[0], rtol=1e-10)
    for name, values in wanted[1].items():
        np.testing.assert_allclose(parameters[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    with pytest.raises(StrategyError, match="FlashAttentionScore"):
        trained(Net("BSH", (query, query, query, *others), heads=1), "BSH", **settings)


def test_layouts_with_names_split_it_too():
    layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    key = layout("dp", "None", "mp")
    strategy = (
        layout("dp", "sp", "mp"),
        key,
        key,
        layout("None", "mp", "sp", "None"),
        layout("dp", "None", "sp", "None"),
    )
    wanted = trained(Net("BSH"), "BSH", parallel_mode="stand_alone")[1:]
    found = trained(Net("BSH", strategy), "BSH", device_num=8, dataset_strategy="full_batch")[1:]
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-10)


def test_a_sequence_of_keys_that_is_split_is_refused():
    strategy = ((1, 1, 1), (1, 2, 1), (1, 2, 1), (1, 1, 1, 1), (1, 1, 1, 1))
    with pytest.raises(StrategyError, match=r"FlashAttentionScore.*splits dim 1 of input 1.*stays whole"):
        trained(Net("BSH", strategy), "BSH", device_num=8, dataset_strategy="full_batch")


# ---- a ring ----


class RingNet(nn.Cell):
    """Attention of three parameters, in MindSpore's form of a ring."""

    def __init__(self, layout, heads, key_heads, strategy=None, ring="enable_ring_attention", **options):
        super().__init__()
        rng = np.random.default_rng(2)
        shapes = [{"BSH": (B, S, n * D), "BNSD": (B, n, S, D)}[layout] for n in (heads, key_heads, key_heads)]
        self.tensors = ParameterTuple([Parameter(rng.normal(size=s), name=f"p{i}") for i, s in enumerate(shapes)])
        self.attention = ops.FlashAttentionScore(heads, input_layout=layout, scale_value=0.5, **options)
        if ring:
            self.attention.add_prim_attr(ring, True)
        if strategy is not None:
            self.attention.shard(strategy)

    def construct(self, x):
        return ops.mul(self.attention(*self.tensors)[3], x)


CAUSAL = ({"next_tokens": 0}, {"next_tokens": 0, "pre_tokens": 3})


@pytest.mark.quick(4)
@each_of(
    "options", *CAUSAL, {"next_tokens": 2, "pre_tokens": 2}, {}, *({**one, "ring": "enable_flash_sp"} for one in CAUSAL)
)
@pytest.mark.parametrize(("layout", "key_heads"), [("BSH", 4), ("BNSD", 2)])
def test_a_ring_equals_the_attention_of_one_device(layout, key_heads, options):
    """Each attribute on 8 ranks, against the same without it on one device: losses and parameters."""
    strategy = {"BSH": (2, 2, 2), "BNSD": (2, 2, 2, 1)}[layout]
    shape = (B, S, 4 * D) if layout == "BSH" else (B, 4, S, D)
    inputs, found = np.random.default_rng(3).normal(size=(2, *shape)), []
    for how in ({"strategy": (strategy,) * 3}, {"ring": ""}):
        net = RingNet(layout, 4, key_heads, **{**options, **how})
        optimizer, alone = nn.SGD(net.trainable_params(), 0.3), "ring" in how
        settings = {"parallel_mode": "stand_alone"} if alone else {"device_num": 8, "dataset_strategy": "full_batch"}
        plan = compile(net, *inputs, loss=nn.MSELoss(), optimizer=optimizer, **settings)
        sends = [i for i in plan.stages[0].program("forward") if i.kind == "start"]
        assert len(sends) == (0 if alone else 4 if "ring" in options else 2)  # keys, values; queries, results
        with Session(plan, net, optimizer) as session:
            found.append((session.train([tuple(inputs)], 2), session.parameters()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-10)
    for name, values in found[1][1].items():
        np.testing.assert_allclose(found[0][1][name], values, rtol=1e-10, atol=1e-12)


def test_kept_values_of_a_ring_make_the_sum_of_exponentials():
    net = RingNet("BSH", 4, 4, next_tokens=0)
    largest, sums, _, _ = net.attention(*net.tensors)
    plain = RingNet("BSH", 4, 4, ring="", next_tokens=0)
    wanted = plain.attention(*plain.tensors)
    logs = [np.log(s.asnumpy()) + x.asnumpy() for x, s in ((largest, sums), wanted[:2])]
    np.testing.assert_allclose(*logs, atol=1e-12)


# ---- halves of queries are exchanged ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("layout", "key_heads"), [("BSH", 4), ("BNSD", 2)])
def test_load_balance_exchanges_halves_of_queries_and_equals_one_device(layout, key_heads, tmp_path):
    """`enable_flash_attention_load_balance` in the JSON file; the strategy splits the queries alone."""
    file = tmp_path / "speed_up.json"
    file.write_text('{"enable_flash_attention_load_balance": true}')
    cuts = [(1, n, 2) if layout == "BSH" else (1, 2, n, 1) for n in (4, 1, 1)]
    shape = (B, S, 4 * D) if layout == "BSH" else (B, 4, S, D)
    inputs, found = np.random.default_rng(3).normal(size=(2, *shape)), []
    for alone in (False, True):
        set_context(ascend_config={} if alone else {"parallel_speed_up_json_path": str(file)})
        net = RingNet(layout, 4, key_heads, strategy=None if alone else tuple(cuts), ring="", next_tokens=0)
        optimizer = nn.SGD(net.trainable_params(), 0.3)
        settings = {"parallel_mode": "stand_alone"} if alone else {"device_num": 8, "dataset_strategy": "full_batch"}
        plan = compile(net, *inputs, loss=nn.MSELoss(), optimizer=optimizer, **settings)
        sent = [plan.value(i.out).shape for i in plan.stages[0].program("forward") if i.kind == "start"]
        half = (B, S // 8, key_heads // 2, 4 // key_heads)  # of queries and of results, and a number per query
        assert sent == ([] if alone else [(*half, D), (*half, D), half])
        with Session(plan, net, optimizer) as session:
            found.append((session.train([tuple(inputs)], 2), session.parameters()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-10)
    for name, values in found[1][1].items():
        np.testing.assert_allclose(found[0][1][name], values, rtol=1e-10, atol=1e-12)


def test_with_halves_exchanged_all_ranks_see_as_many_keys():
    q, k = np.ones((1, 4, 1, 1, 2)), np.ones((1, 16, 1, 2))
    for on, want in ((True, [34] * 4), (False, [10, 26, 42, 58])):  # of 136 pairs
        how = {**SETTINGS, "head_tail": on, "parts": (1, 4, 1, 1)}
        views = [_view(q, k, 0, None, **{**how, "offset": (0, rank, 0, 0)}) for rank in range(4)]
        assert [int((v.stop - v.first).sum()) for v in views] == want


@each_of("text", "[]", "{", '{"enable_flash_attention_load_balance": 1}')
def test_a_file_that_says_something_else_is_refused(text, tmp_path):
    (tmp_path / "speed_up.json").write_text(text)
    set_context(ascend_config={"parallel_speed_up_json_path": str(tmp_path / "speed_up.json")})
    net = RingNet("BSH", 4, 4, strategy=((1, 2, 1), (1, 1, 1), (1, 1, 1)), ring="", next_tokens=0)
    with pytest.raises(ParallelLabError):
        compile(net, np.ones((B, S, 4 * D)), device_num=2, dataset_strategy="full_batch")


# ---- refusals ----

Q, K = np.ones((2, 4, 8)), np.ones((2, 6, 8))


def score(*given, head_num=2, **options):
    return ops.FlashAttentionScore(head_num, **options)(*map(Tensor, given or (Q, K, K)))


def with_attribute(*names, key=K):
    primitive = ops.FlashAttentionScore(2)
    for name in names:
        primitive.add_prim_attr(name, True)
    return lambda: primitive(Tensor(Q), Tensor(key), Tensor(key))


BITS = Tensor(np.ones((2, 2, 4, 1), np.uint8))

test_what_is_not_there_is_refused_with_what_to_use = refused(
    (lambda: score(input_layout="TND"), NotBuiltYet, "input_layout='TND'.*BSND.*attn_mask"),
    (lambda: score(input_layout="TH"), NotBuiltYet, "input_layout='TH'"),
    (lambda: score(sparse_mode=8), NotBuiltYet, "sparse_mode=8.*sparse_mode=1"),
    (with_attribute("enable_ring_attention"), ShapeError, "4 queries and 6 keys. As many keys as queries"),
    (with_attribute("enable_flash_sp"), ShapeError, "enable_flash_sp.*4 queries and 6 keys"),
    (
        with_attribute("enable_flash_sp", key=Q),
        ShapeError,
        "enable_flash_sp with next_tokens=2147483647. next_tokens=0",
    ),
    (with_attribute("enable_ring_attention", "enable_flash_sp"), NotBuiltYet, "attention and enable_flash_sp.*one of"),
    (with_attribute("enable_ring_attention_cp"), NotBuiltYet, "enable_ring_attention_cp.*no version of MindSpore"),
    (
        lambda: ops.FlashAttentionScore(2)(*map(Tensor, (Q, K, K)), None, None, BITS),
        NotBuiltYet,
        "padding_mask.*attn_mask",
    ),
    (lambda: ops.FlashAttentionScore(2, 0.5)(*map(Tensor, (Q, K[:, :3], K)), None, BITS), ShapeError, "One shape"),
    (
        lambda: ops.FlashAttentionScore(2, 0.5)(*map(Tensor, (Q, Q, Q)), None, BITS[:, :, :2]),
        ShapeError,
        "drop_mask.*1.: a bit",
    ),
    (
        lambda: ops.flash_attention_score(*map(Tensor, (Q, K, K)), 2, actual_seq_qlen=(3, 4)),
        NotBuiltYet,
        "actual_seq_qlen.*Pad to one length",
    ),
    (lambda: score(input_layout="BDS"), ShapeError, "input_layout='BDS'"),
    (lambda: score(head_num=3), ShapeError, "head_num=3"),
    (lambda: score(Q, K, K[:, :5]), ShapeError, "One shape"),
    (lambda: score(Q[0], K[0], K[0]), ShapeError, "3 dims each, BSH"),
    (lambda: score(Q, K[:1], K[:1]), ShapeError, "2 samples"),
    (lambda: score(sparse_mode=1), ShapeError, "sparse_mode=1 without attn_mask"),
    (lambda: score(keep_prob=0.5), ShapeError, "no step is counted"),
    (lambda: score(keep_prob=0.0), ShapeError, "keep_prob=0.0"),
    (lambda: ops.FlashAttentionScore(), ShapeError, "missing attribute 'head_num'"),
    (lambda: score(Q.astype(np.int32), K, K), ShapeError, "query is int32"),
)
