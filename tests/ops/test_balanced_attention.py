"""The causal ring whose early ranks help the late ones: equal to one device, what each rank computes and sends."""

import numpy as np
import pytest

from parallel_lab import Parameter, Session, StrategyError, compile, nn, ops
from parallel_lab.catalog.ops.flash_attention_balanced import KEYS, QUERIES, RESULTS, _here, _steps
from parallel_lab.cost.planner import AttentionMessages
from parallel_lab.layout.placements import Placement, attention_work
from tests.pools import shared_pool


class Attention(nn.Cell):
    """The operator over three parameters, times the input."""

    def __init__(self, arrays, strategy, of=ops.BalancedAttention, **attrs):
        super().__init__()
        self.q, self.k, self.v = (Parameter(a, name=n) for n, a in zip("qkv", arrays, strict=True))
        self.attention = of(**attrs)
        if strategy is not None:
            self.attention.shard(strategy)

    def construct(self, x):
        return ops.mul(self.attention(self.q, self.k, self.v)[0], x)


def trained(arrays, inputs, devices, strategy, executor="simulator", **attrs):
    """(plan, losses and parameters of two steps)."""
    net = Attention(arrays, strategy, **attrs)
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    how = {"loss": nn.MSELoss(), "optimizer": optimizer, "dataset_strategy": "full_batch"}
    plan = compile(net, *inputs, device_num=devices, **how)
    pool = {"pool": shared_pool(devices)} if executor == "processes" else {}
    with Session(plan, net, optimizer, executor=executor, **pool) as session:
        return plan, session.train([inputs], 2), session.parameters()


def drawn(seed):
    """(operands, inputs, strategy, attributes): sizes, ranks, window and dtype of a case."""
    rng = np.random.default_rng(seed)
    cuts = [(1, 2, 2, 2), (2, 2, 2, 1), (2, 4, 1, 1), (1, 4, 2, 1), (1, 4, 1, 2), (1, 8, 1, 1)][int(rng.integers(6))]
    b, tokens, g, r = (cut * int(rng.integers(1, 3)) for cut in cuts)
    shape = (b, 2 * tokens, g, r, 3)
    dtype = np.float32 if rng.integers(3) == 0 else np.float64
    window = int(rng.integers(1, 2 * tokens + 1)) if rng.integers(2) else None
    arrays = [rng.normal(size=s).astype(dtype) for s in (shape, (*shape[:3], 3), (*shape[:3], 3))]
    inputs = tuple(rng.normal(size=(2, *shape)).astype(dtype))
    return arrays, inputs, ((*cuts, 1), (*cuts[:3], 1), (*cuts[:3], 1)), {"window": window}


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(40))
def test_drawn_combinations_equal_one_device(seed):
    """One device computes `context_attention`, whose own tests hold it against the formula."""
    arrays, inputs, strategy, attrs = drawn(seed)
    _, losses, parameters = trained(arrays, inputs, 8, strategy, **attrs)
    _, wanted, alone = trained(arrays, inputs, 1, None, of=ops.ContextAttention, **attrs)
    exact = arrays[0].dtype == np.float64
    np.testing.assert_allclose(losses, wanted, rtol=1e-10 if exact else 1e-5)
    for name, values in alone.items():
        bound = {"rtol": 1e-10, "atol": 1e-12} if exact else {"rtol": 1e-4, "atol": 1e-6}
        np.testing.assert_allclose(parameters[name], values, err_msg=name, **bound)


def test_processes_give_the_bits_of_the_simulator():
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((1, 16, 2, 2, 4), (1, 16, 2, 4), (1, 16, 2, 4))]
    inputs, cut = tuple(rng.normal(size=(2, *arrays[0].shape)).astype(np.float32)), (1, 4, 1, 1)
    results = [trained(arrays, inputs, 4, ((*cut, 1), cut, cut), executor) for executor in ("simulator", "processes")]
    assert results[0][1] == results[1][1]
    for name, values in results[0][2].items():
        np.testing.assert_array_equal(values, results[1][2][name], err_msg=name)


@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_every_rank_computes_as_many_pairs(ranks):
    """An equal share of all visible pairs: its own triangle, and P - 1 blocks that are seen whole."""
    c = 4
    chunk, half = np.zeros((1, c, 1, 1, 2)), np.zeros((1, c // 2, 1, 2))
    how = {"parts": (1, ranks, 1, 1), "window": None}
    for rank in range(ranks):
        pairs = c * (c + 1) // 2
        for distance, part in _steps(ranks)[:-1]:
            step = {"distance": distance, "half": part, "offset": (0, rank, 0, 0)}
            _, _, view = _here((chunk,), (chunk,), (half, half), (half, half), **step, **how)
            pairs += c * c // 2
            assert view.seen(slice(None), slice(None)) is True
        assert pairs * ranks == attention_work(Placement("contiguous", ranks * c, ranks)).useful


B, C, G, R, D = 2, 4, 2, 3, 4  # samples, tokens of a rank, key heads, query heads for each, elements


@pytest.mark.quick(1)
@pytest.mark.parametrize("ranks", [4, 2, 8])
def test_every_rank_sends_what_the_formula_says(ranks):
    """Forward `AttentionMessages.balanced_ring`. Backward: the keys again; with queries g and two numbers a row;
    for each half that it got, and all queries that it had as guests, gradients in float32.
    """
    shape, cut = (B, ranks * C, G, R, D), (1, ranks, 1, 1)
    arrays = [np.ones(s, np.float16) for s in (shape, (*shape[:3], D), (*shape[:3], D))]
    net = Attention(arrays, ((*cut, 1), cut, cut))
    optimizer, data = nn.SGD(net.trainable_params(), 0.5), (arrays[0], arrays[0])
    plan = compile(net, *data, device_num=ranks, loss=nn.MSELoss(), optimizer=optimizer, dataset_strategy="full_batch")
    with Session(plan, net, optimizer) as session:
        session.train([data], 1, record=1)
        events = [e for e in session.events if e.op == "NeighborExchange" and e.bytes]
    whys = {i.outs[0]: i.reason for i in plan.stages[0].program("forward") if i.kind == "start"}
    formula = AttentionMessages.of_rank_tokens(B, C, ranks, heads=G * R, head_size=D, kv_heads=G, number_bytes=2)
    halves = {rank: formula.balanced_ring(rank).kv_halves for rank in range(ranks)}
    for rank in range(ranks):
        wanted, mine = formula.balanced_ring(rank), [e for e in events if e.rank == rank]
        sent = [whys[e.name] for e in mine if e.phase == "forward"]
        assert [sent.count(why) for why in (KEYS, QUERIES, RESULTS)] == [
            2 * wanted.kv_halves,  # keys and values apart
            wanted.queries,
            wanted.results,
        ]
        assert sum(e.bytes for e in mine if e.phase == "forward") == wanted.sent_bytes
        rows, half = B * C * G * R, B * C // 2 * G * D * 2  # of queries; numbers of half of the keys and values
        back = wanted.kv_halves * half * 2 + wanted.queries * rows * (2 * D * 2 + 2 * 4)
        back += halves[ranks - 1 - rank] * half * 4 + wanted.results * rows * D * 4  # as many come as the mirror sends
        assert sum(e.bytes for e in mine if e.phase == "backward") == back


def test_tokens_that_do_not_divide_are_refused_before_anything_runs():
    arrays, cut = [np.ones(s) for s in ((1, 12, 1, 1, 2), (1, 12, 1, 2), (1, 12, 1, 2))], (1, 4, 1, 1)
    with pytest.raises(StrategyError, match=r"12 tokens are split 4 ways.*2 P"):
        trained(arrays, (arrays[0], arrays[0]), 4, ((*cut, 1), cut, cut))
