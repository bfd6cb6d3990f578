"""Attention whose tokens are split over ranks, against the formula and against one device; what it sends.

Drawn cases are exhaustive but for a handful.
"""

import numpy as np
import pytest

from parallel_lab import Parameter, ShapeError, compile, nn, ops
from parallel_lab.cost.memory import predict_memory
from parallel_lab.cost.time import sent_bytes
from parallel_lab.graph.passes import PASSES
from parallel_lab.graph.plan import Plan
from parallel_lab.layout.named_layout import Layout
from parallel_lab.layout.placements import Placement, VisibleKeys
from parallel_lab.ops.context_attention import attention_block
from parallel_lab.run.computing import one_blas_thread
from parallel_lab.run.rank_programs import exchange_attention, ring_results
from parallel_lab.run.simulator import Simulator, simulate
from tests.refusals import refused

EPS = np.finfo(np.float32).eps


def undivided(q, k, v, visible, order, weights=None):
    """(out, lse, gradients of sum(out * weights)) by the formula, tokens in the given order; float64.

    q: (b, s, g, r, d), k, v: (b, s, g, d)
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    first, stop = (x[order][:, None] for x in visible.bounds(len(order)))
    seen, scale = (order >= first) & (order < stop), q.shape[-1] ** -0.5
    scores = np.where(seen, np.einsum("bsgrd,btgd->bgrst", q, k) * scale, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = np.log(np.exp(scores).sum(-1))
        shares = np.nan_to_num(np.exp(scores - lse[..., None]))
    out = np.einsum("bgrst,btgd->bsgrd", shares, v)
    if weights is None:
        return out, np.moveaxis(lse, -1, 1)
    to_shares = np.einsum("bsgrd,btgd->bgrst", weights, v)
    to_scores = shares * (to_shares - (to_shares * shares).sum(-1, keepdims=True)) * scale
    grads = (
        np.einsum("bgrst,btgd->bsgrd", to_scores, k),
        np.einsum("bgrst,bsgrd->btgd", to_scores, q),
        np.einsum("bgrst,bsgrd->btgd", shares, weights),
    )
    return out, np.moveaxis(lse, -1, 1), grads


# ---- blocks ----


def test_a_row_that_sees_no_key_has_no_numbers_and_changes_nothing():
    """The first half of the queries against the second half of the keys: all hidden."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(1, 4, 1, 1, 2)), rng.normal(size=(1, 4, 1, 2)), rng.normal(size=(1, 4, 1, 2))
    how = {"parts": (1, 2, 1, 1), "offset": (0, 0, 0, 0)}
    for compute_all in (False, True):
        out, lse = attention_block.compute(q, k, v, turn=1, compute_all=compute_all, **how)
        assert np.isneginf(lse).all() and not out.any()
        own = attention_block.compute(q, k, v, turn=0, **how)
        merged = attention_block.compute(q, k, v, *own, turn=1, compute_all=compute_all, **how)
        for before, after in zip(own, merged, strict=True):
            np.testing.assert_array_equal(before, after)


def test_sums_of_half_types_are_float32():
    """Merging results that were rounded to float16 would be off by its eps; the log-sum-exp is wide, too."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=shape).astype(np.float16) for shape in ((1, 8, 1, 1, 4), (1, 8, 1, 4), (1, 8, 1, 4)))
    out, lse = attention_block.compute(q, k, v)
    wanted, wanted_lse = undivided(q, k, v, VisibleKeys(), np.arange(8))
    assert (out.dtype, lse.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(out, wanted, atol=16 * EPS)
    np.testing.assert_allclose(lse, wanted_lse, atol=16 * EPS)


def test_blocks_that_add_little_are_not_lost_one_by_one():
    """A key has nearly all of the weight, and each of 63 blocks behind it less than half a digit: in float32 the lse
    was 4 digits off, and so were the weights of all keys backward.
    """
    q, v = np.ones((1, 4, 1, 1, 1), np.float32), np.zeros((1, 4, 1, 1), np.float32)
    keys = np.full((64, 1, 4, 1, 1), -10, np.float32)
    keys[0, :, 0] = 8
    state = ()
    for block in keys:
        state = attention_block.compute(q, block, v, *state, causal=False)
    np.testing.assert_allclose(state[1], 8 + np.log1p(255 * np.exp(-18)), rtol=0, atol=EPS)


@pytest.mark.parametrize("tokens", [600, 1100])
def test_tiles_that_no_query_sees_are_skipped_without_a_change(tokens):
    """More tokens than a tile has; with and without the hidden ones, the same bits."""
    rng = np.random.default_rng(tokens)
    q, k, v = rng.normal(size=(1, tokens, 1, 1, 2)), *rng.normal(size=(2, 1, tokens, 1, 2))
    skipped, computed = (attention_block.compute(q, k, v, compute_all=c, window=40) for c in (False, True))
    wanted, _ = undivided(q, k, v, VisibleKeys(window=40), np.arange(tokens))
    np.testing.assert_array_equal(skipped[0], computed[0])
    np.testing.assert_allclose(skipped[0], wanted, atol=1e-12)


# ---- rank programs: any number of ranks ----


@pytest.mark.quick(12)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
@pytest.mark.parametrize("kind", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("visible", [VisibleKeys(), VisibleKeys(causal=False), VisibleKeys(window=5)], ids=str)
def test_a_ring_of_any_number_of_ranks_equals_the_formula(kind, ranks, visible):
    rng, placement = np.random.default_rng(ranks), Placement(kind, 24, ranks)
    q, k, v, g = rng.normal(size=(4, 24, 3))
    found = ring_results(q, k, v, placement, g=g, causal=visible.causal, window=visible.window)
    whole = [x[None, :, None] for x in (q, k, v, g)]
    out, lse, grads = undivided(whole[0][:, :, :, None], *whole[1:3], visible, np.arange(24), whole[3][:, :, :, None])
    wanted = dict(zip(("out", "lse", "dq", "dk", "dv"), (out, lse, *grads), strict=True))
    for name, values in found.items():
        np.testing.assert_allclose(values, wanted[name].reshape(values.shape), atol=1e-12, err_msg=name)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize(
    ("ranks", "groups", "shared"), [(2, 2, 1), (3, 3, 2), (3, 1, 3), (6, 6, 1), (6, 2, 3), (6, 3, 2)]
)
def test_an_exchange_of_any_number_of_ranks_equals_the_formula(ranks, groups, shared, kind):
    """Key heads as many as ranks, or repeated for them."""
    rng, order = np.random.default_rng(ranks), Placement(kind, 24, ranks).order
    shape = (2, 24, groups, shared, 3)
    q, g, k, v = (rng.normal(size=s) for s in (shape, shape, *[(*shape[:3], 3)] * 2))
    placed = [np.split(x[:, order], ranks, axis=1) for x in (q, k, v, g)]

    def program(rank):
        mine, of_out = [x[rank] for x in placed[:3]], placed[3][rank]
        return exchange_attention(rank, ranks, *mine, g=of_out, placement=kind, window=9)

    out, lse, grads = undivided(q, k, v, VisibleKeys(window=9), np.arange(24), g)
    found = zip(*simulate([program(rank) for rank in range(ranks)]), strict=True)
    for of_ranks, wanted in zip(found, (out, lse, *grads), strict=True):
        np.testing.assert_allclose(np.concatenate(of_ranks, axis=1), wanted[:, order], atol=1e-12)


# ---- plans ----


class Attention(nn.Cell):
    """sum(weights * attention) of three parameters, which lie as the operator wants them."""

    def __init__(self, arrays, strategy, **attrs):
        super().__init__()
        self.q, self.k, self.v = (Parameter(a, name=n) for n, a in zip("qkv", arrays, strict=True))
        self.attention = ops.ContextAttention(**attrs)
        if strategy is not None:
            self.attention.shard(strategy)

    def construct(self, weights):
        return ops.reduce_sum(ops.mul(self.attention(self.q, self.k, self.v)[0], weights))


def planned(arrays, weights, devices, strategy, **attrs):
    """(plan, loss, {operand: its gradient}) of a step on simulated ranks."""
    net = Attention(arrays, strategy, **attrs)
    plan = compile(net, weights, device_num=devices, dataset_strategy="full_batch", passes=PASSES)
    plan.verify()
    sim = Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()})
    loss = float(sim.run_step(weights))
    return plan, loss, {name: sim.full(value) for name, value in plan.gradients}


def strategy_of(b, s, g, r, method="ring"):
    keys = (b, s if method == "ring" else 1, g, 1)
    return ((b, s, g, r, 1), keys, keys)


def drawn(seed):
    """A combination: sizes, who sees whom, placement, strategy, dtype."""
    rng = np.random.default_rng(seed)
    parts = int(rng.choice([2, 4, 8]))
    others = 8 // parts
    b, g = (int(rng.choice([n for n in (1, 2, 4) if n <= others])) for _ in range(2))
    g = g if b * g <= others else 1
    r = int(rng.choice([1, 2])) if b * g * 2 <= others else 1
    method = str(rng.choice(["ring", "ring", "ring", "gather"]))
    kind = str(rng.choice(["contiguous", "zigzag", "striped"]))
    tokens = 2 * parts * int(rng.integers(1, 4))
    causal = bool(rng.integers(4))
    window = int(rng.integers(1, tokens + 1)) if rng.integers(3) == 0 else None
    documents = ()
    if rng.integers(4) == 0:
        cut = int(rng.integers(1, tokens))
        documents = (cut, tokens - cut)
    shape = (b * int(rng.integers(1, 3)), tokens, g * int(rng.integers(1, 3)), r * int(rng.integers(1, 3)), 4)
    attrs = {"causal": causal, "window": window, "documents": documents, "method": method, "placement": kind}
    attrs |= {"ranks": parts, "compute_all": bool(rng.integers(6) == 0)}
    dtype = np.float32 if rng.integers(3) == 0 else np.float64
    q = rng.normal(size=shape).astype(dtype)
    k, v = (rng.normal(size=(*shape[:3], 4)).astype(dtype) for _ in range(2))
    return (q, k, v), rng.normal(size=shape).astype(dtype), strategy_of(b, parts, g, r, method), attrs


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(120))
def test_drawn_combinations_equal_one_device(seed):
    """float64 to 1e-10; float32 with at most four times the error that one device has in float32."""
    arrays, weights, strategy, attrs = drawn(seed)
    _, loss, gradients = planned(arrays, weights, 8, strategy, **attrs)
    _, one_loss, one = planned(arrays, weights, 1, None, **attrs)
    visible = VisibleKeys(attrs["causal"], attrs["window"], attrs["documents"])
    order = Placement(attrs["placement"], weights.shape[1], attrs["ranks"]).order
    out, _, exact = undivided(*arrays, visible, order, weights.astype(np.float64))
    addends = out * weights.astype(np.float64)
    found = [(loss, one_loss, addends.sum(), np.linalg.norm(addends))]
    # under a window of 1 those of q and k are 0: rounding is that of the addends, which are as large as others
    largest = max(np.abs(x).max() for x in exact)
    found += [(gradients[name], one[name], x, largest) for name, x in zip("qkv", exact, strict=True)]
    for mine, ones, wanted, size in found:
        allowed = 1e-10 * size
        if weights.dtype == np.float32:
            # an error of one device that happens to be below the rounding of such numbers counts as that
            allowed = 4 * max(np.abs(ones - wanted).max(), 2 * EPS * size)
        assert np.abs(mine - wanted).max() <= allowed, attrs


@pytest.mark.parametrize("axes", [("dp", "mp"), ("mp", "dp"), ("mp", "sp")])
def test_a_ring_follows_the_order_of_the_axes_that_split_tokens(axes):
    """Chunks lie as the layout says, ranks of a group as the device matrix does: keys were taken for those of others
    where the two differ.
    """
    attrs = {"method": "ring", "placement": "zigzag", "ranks": 4}
    q, k = np.random.default_rng(1).normal(size=(2, 1, 16, 1, 1, 4))
    layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    of_keys = layout("None", axes, "None", "None")
    arrays, strategy = (q, k[:, :, 0], k[:, :, 0] * 2), (layout("None", axes, *["None"] * 3), of_keys, of_keys)
    _, loss, found = planned(arrays, q, 8, strategy, **attrs)
    _, one_loss, one = planned(arrays, q, 1, None, **attrs)
    assert loss == pytest.approx(one_loss, rel=1e-12)
    for name, want in one.items():
        np.testing.assert_allclose(found[name], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropped_by", ["ring", "gather"])
def test_dropout_is_a_function_of_the_place_on_every_rank(dropped_by):
    """One step of the number 3: the same mask on one device and on 2 x 2 x 2 ranks, and under another placement."""
    rng = np.random.default_rng(5)
    (q, weights), (k, v) = rng.normal(size=(2, 2, 8, 2, 2, 3)), rng.normal(size=(2, 2, 8, 2, 3))

    class Dropped(Attention):
        def construct(self, weights, step):
            return ops.reduce_sum(ops.mul(self.attention(self.q, self.k, self.v, step)[0], weights))

    def run(devices, strategy, order, **attrs):
        net = Dropped([x[:, order] for x in (q, k, v)], strategy, p=0.4, key=9, **attrs)
        step = np.asarray(3, np.int64)
        plan = compile(net, weights[:, order], step, device_num=devices, dataset_strategy="full_batch", passes=PASSES)
        sim = Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()})
        loss, back = float(sim.run_step(weights[:, order], step)), np.argsort(order)
        return loss, [sim.full(value)[:, back] for _, value in sorted(plan.gradients)]

    one = run(1, None, np.arange(8))
    without = planned((q, k, v), weights, 1, None)[1]
    assert abs(one[0] - without) > 1e-3
    for kind in ("contiguous", "zigzag"):
        order, how = Placement(kind, 8, 2).order, {"placement": kind, "ranks": 2, "method": dropped_by}
        loss, gradients = run(8, strategy_of(2, 2, 2, 1, dropped_by), order, **how)
        np.testing.assert_allclose(loss, one[0], rtol=1e-12)
        for mine, wanted in zip(gradients, one[1], strict=True):
            np.testing.assert_allclose(mine, wanted, atol=1e-12)


# ---- what is sent ----


def sent(plan, phase):
    """(messages, bytes a rank sends) of a phase, gradients of parameters left out."""
    program = plan.stages[0].program(phase)
    starts = [i for i in program if i.kind == "start"]
    return len(starts), sum(sent_bytes(plan, i) for i in starts)


@pytest.mark.quick(1)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_sends_what_the_formula_says(ranks):
    """Forward 2 (P - 1) (s / P) h_kv e, two messages a pass. Backward the same again, and 2 P c h_kv e_g of gradients,
    which start at home and come home (Liu et al. 2023); e_g is 4 for float16.
    """
    b, s, g, d = 2, 16, 2, 4
    for dtype, wide in ((np.float32, 4), (np.float16, 4), (np.float64, 8)):
        rng = np.random.default_rng(0)
        arrays = [rng.normal(size=shape).astype(dtype) for shape in ((b, s, g, 3, d), (b, s, g, d), (b, s, g, d))]
        plan, *_ = planned(arrays, np.ones((b, s, g, 3, d), dtype), ranks, strategy_of(1, ranks, 1, 1))
        chunk, e = b * s // ranks * g * d, np.dtype(dtype).itemsize
        assert sent(plan, "forward") == (2 * (ranks - 1), 2 * (ranks - 1) * chunk * e)
        passes = 2 * (ranks - 1), 2 * ranks
        assert sent(plan, "backward") == (sum(passes), passes[0] * chunk * e + passes[1] * chunk * wide)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("window", "steps"), [(1, 1), (2, 2), (5, 2), (6, 3), (32, 8)])
def test_a_short_window_ends_a_contiguous_ring_early(window, steps):
    """min(P, ceil((w - 1) / c) + 1) steps with c = 4 tokens a rank; gradients go home in one message."""
    rng = np.random.default_rng(2)
    weights, *arrays = (rng.normal(size=(1, 32, 1, *more, 2)) for more in ((1,), (1,), (), ()))
    plan, loss, _ = planned(arrays, weights, 8, strategy_of(1, 8, 1, 1), window=window)
    every, *_ = planned(arrays, weights, 8, strategy_of(1, 8, 1, 1), window=window, compute_all=True)
    assert sent(plan, "forward")[0] == 2 * (steps - 1)
    assert sent(plan, "backward")[0] == 2 * (steps - 1) + (2 * steps if steps > 1 else 0)
    assert sent(every, "forward")[0] == 14
    np.testing.assert_allclose(loss, planned(arrays, weights, 1, None, window=window)[1], rtol=1e-10)


def test_messages_travel_while_a_rank_computes():
    arrays = [np.ones((1, 8, 1, *more, 2)) for more in ((1,), (), ())]
    plan, *_ = planned(arrays, np.ones((1, 8, 1, 1, 2)), 4, strategy_of(1, 4, 1, 1))
    kinds = ["block" if i.op == "attention_block" else i.kind for i in plan.stages[0].program("forward")]
    step = ["start", "start", "block", "wait", "wait"]
    assert [k for k in kinds if k in step] == step * 3 + ["block"]


# ---- the bits of one device ----

# tokens, ranks, placement, rows that one device computes at once, rows that a rank does
SPREAD = [
    (16, 2, "contiguous", 16, 8),
    (64, 4, "striped", 64, 16),
    (1024, 2, "contiguous", 512, 512),
    (1024, 8, "striped", 512, 128),
    (1024, 4, "zigzag", 128, 128),
]


def rows_keep_their_bits(blocks, keys, size, dtype="float32"):
    """Whether the BLAS of this machine gives rows of attention in these blocks the bits that it gives them all at once.

    blocks  how many rows are in each;  keys: of a tile;  size: elements of a head

    Probed with random numbers, on one thread, in the two products of attention: (rows, size) (keys, size)', and then
    (rows, keys) (keys, size). Many a BLAS has another kernel for a block's last rows, which adds in another order.
    """
    rng, rows = np.random.default_rng(0), sum(blocks)
    q, k, weights = (rng.standard_normal(s).astype(dtype) for s in ((rows, size), (keys, size), (rows, keys)))
    with one_blas_thread():
        for x, y in ((q, k.T), (weights, k)):
            parts = np.split(x, np.cumsum(blocks)[:-1])
            if not np.array_equal(x @ y, np.concatenate([part @ y for part in parts])):
                return False
    return True


@pytest.mark.quick(3)
@pytest.mark.parametrize("method", ["ulysses", "gather"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("tokens", "ranks", "placement", "tile", "rows"), SPREAD)
def test_whole_keys_give_the_bits_of_one_device_where_its_blas_keeps_them(
    method, dtype, tokens, ranks, placement, tile, rows
):
    """No sum is made in another order. Ulysses' ranks compute heads as one device does; ranks that gather keys compute
    fewer rows at once, which have the same bits if the probe says so, and are the same to rounding if not.
    """
    shape, heads = (1, tokens, 8, 2, 64), method == "ulysses"
    rng = np.random.default_rng(tokens)
    inputs = [rng.standard_normal(s).astype(dtype) for s in (shape, *[(*shape[:3], 64)] * 2)]
    attrs = {"placement": placement, "ranks": ranks, "method": "ring" if heads else "gather"}

    def run(devices, strategy):
        attention = ops.ContextAttention(**attrs)
        if strategy is not None:
            attention.shard(strategy)
        plan = compile(lambda *x: attention(*x), *inputs, device_num=devices, dataset_strategy="full_batch")
        sim = Simulator(plan, {})
        sim.run_step(*inputs)
        return [sim.full(name) for name in plan.outputs]

    found = run(ranks, strategy_of(1, 1, ranks, 1) if heads else strategy_of(1, ranks, 1, 1, "gather"))
    one, rows = run(1, None), tile if heads else rows
    stable = rows_keep_their_bits([rows] * (tile // rows), tile, 64, dtype)
    print(f"{dtype}: {tile} rows in blocks of {rows} {'keep' if stable else 'do not keep'} their bits")
    assert stable or rows < tile
    for mine, whole in zip(found, one, strict=True):
        if stable:
            np.testing.assert_array_equal(mine, whole)
        np.testing.assert_allclose(mine, whole, atol=64 * np.finfo(dtype).eps * np.abs(whole).max())


def test_the_probe_tells_blocks_of_other_bits_from_those_of_the_same(monkeypatch):
    """All rows at once are themselves; a product that is rounded as the number of its rows says is found out."""
    assert rows_keep_their_bits([24], 16, 8)

    class Rounded(np.ndarray):
        def __matmul__(self, other):
            return (np.asarray(self) @ np.asarray(other)).astype(np.float16 if len(self) < 24 else np.float32)

    split = np.split
    monkeypatch.setattr(np, "split", lambda x, at: [part.view(Rounded) for part in split(x, at)])
    assert not rows_keep_their_bits([8, 16], 16, 8)


# ---- memory ----


class Weighted(nn.Cell):
    """(sum(weights * attention), lse), all of it split as the queries are."""

    def __init__(self, sizes, strategy):
        super().__init__()
        self.q, self.k, self.v = (Parameter(np.ones(s, np.float32), name=n) for n, s in zip("qkv", sizes, strict=True))
        self.attention, self.mul, self.sum = ops.ContextAttention(), ops.Mul(), ops.ReduceSum()
        if strategy is not None:
            self.attention.shard(strategy)
            self.mul.shard((strategy[0],) * 2)
            self.sum.shard((strategy[0],))

    def construct(self, weights):
        out, lse = self.attention(self.q, self.k, self.v)
        return self.sum(self.mul(weights, out)), lse


def peak_bytes(ranks, size, phase):
    """The most bytes that a rank holds at once in this phase, counted from the plan; size: (tokens, heads, d)."""
    tokens, heads, d = size
    sizes = [(1, tokens, heads, *more, d) for more in ((1,), (), ())]
    strategy = strategy_of(1, ranks, 1, 1) if ranks > 1 else None
    weights = np.empty((1, tokens // ranks, *sizes[0][2:]), np.float32)  # of a rank
    cuts = {"dataset_strategy": strategy[:1] if ranks > 1 else "full_batch", "device_num": ranks}
    plan = compile(Weighted(sizes, strategy), weights, passes=PASSES, **cuts)
    plan.verify()
    return max(p.total_bytes for p in predict_memory(plan).timeline if p.phase == phase)


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [(64, 2, 8), (32_768, 8, 64)], ids=str)
@pytest.mark.parametrize(("phase", "chunks"), [("forward", 2), ("backward", 4)])
def test_a_ring_holds_two_chunks_of_keys_more_than_its_share(phase, chunks, size):
    """A chunk is a rank's part of k. Forward: two that travel, of k and v. Backward: two of their gradients, too. The
    loss and its gradient, one number each, are whole on every rank.
    """
    ranks, chunk = 4, 4 * size[0] // 4 * size[1] * size[2]
    assert peak_bytes(ranks, size, phase) <= peak_bytes(1, size, phase) / ranks + chunks * chunk + 2 * 4


def test_stepping_through_a_ring_keeps_every_value():
    """Blocks work in the memory of the result so far, but not where it can be looked at."""
    rng = np.random.default_rng(0)
    arrays, weights = rng.normal(size=(3, 1, 8, 1, 2)), np.ones((1, 8, 1, 1, 2))
    arrays = [arrays[0][..., None, :], *arrays[1:]]
    plan, loss, _ = planned(arrays, weights, 4, strategy_of(1, 4, 1, 1), causal=False)
    sim = Simulator(plan, dict(zip("qkv", arrays, strict=True)))
    sim.begin(weights)
    while sim.next_instruction() is not None:
        pass
    assert float(sim.value(plan.outputs[0], 0)) == loss
    blocks = [i for i in plan.stages[0].program("forward") if i.op == "attention_block"]
    own = attention_block.compute(*(x[:, :2] for x in arrays), causal=False)
    np.testing.assert_array_equal(sim.value(blocks[0].outs[0], 0), own[0])
    assert len(blocks) == 4 and (sim.value(blocks[-1].outs[0], 0) != own[0]).any()


# ---- JSON ----


def test_a_plan_with_a_ring_is_read_back_from_its_dict():
    arrays = [np.ones((1, 8, 1, *more, 2)) for more in ((1,), (), ())]
    plan, *_ = planned(arrays, np.ones((1, 8, 1, 1, 2)), 4, strategy_of(1, 4, 1, 1), placement="striped", ranks=4)
    again = Plan.from_dict(plan.to_dict())
    assert again.text() == plan.text()
    again.verify()


# ---- refusals ----


def of_eight(**attrs):
    return ops.context_attention(np.ones((1, 8, 1, 1, 2)), *np.ones((2, 1, 8, 1, 2)), **attrs)


test_what_does_not_fit_is_refused_with_the_reason = refused(
    ({"placement": "zigzag", "ranks": 3}, ShapeError, "A multiple of 6"),
    ({"placement": "striped", "ranks": 3}, ShapeError, "A multiple of 3"),
    ({"documents": (3, 4)}, ShapeError, "documents of 7 tokens in a sequence of 8"),
    ({"window": 0}, ShapeError, "window=0"),
    ({"p": 0.5}, ShapeError, "the number of the step"),
    by=lambda attrs: of_eight(**attrs),
)

test_an_exchange_needs_heads_for_its_ranks = refused(
    (4, ShapeError, "4 ranks for 6 heads that read 6 key heads"),
    (12, ShapeError, "A multiple of them|a multiple of them"),
    by=lambda ranks: next(exchange_attention(0, ranks, np.ones((1, 2, 6, 1, 2)), *np.ones((2, 1, 2, 6, 2)))),
)
