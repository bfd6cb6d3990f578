"""Gradients that share messages on real processes: which, how many, no bit depends on it. The rest: `test_wrap.py`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from parallel_lab import Parameter, Tensor, nn, ops
from parallel_lab.base import hooks
from parallel_lab.base.errors import CollectiveMismatch
from parallel_lab.base.settings import context
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.nn.optim.grad_reducer import Outgoing, shared_messages
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.tensor import RankTensor
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(60)

N = 4
MB = 1024 * 1024


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as pool:
        yield pool


# ---- the rules ----


def outgoing(count, ids=None, dtypes=None, sizes=None):
    """Gradients of `count` parameters; ids None: nobody has chosen one."""
    fusions, dtypes, sizes = ids or [1] * count, dtypes or ["float32"] * count, sizes or [4] * count
    return [Outgoing(i, fusions[i], ids is not None, dtypes[i], sizes[i]) for i in range(count)]


def test_nobody_asked_and_all_travel_together():
    assert shared_messages(outgoing(5), [1] * 5) == ((0, 1, 2, 3, 4),)


@each_of(
    ("count", "indices", "lengths"),
    # recorded with MindSpore 2.10: [20, 35] of 40 parameters, and small ones
    (40, (20, 35), [21, 15, 4]),
    (10, (0,), [1, 9]),
    (10, (9,), [10]),
    (10, (10,), [10]),
    (10, (3, 12), [4, 6]),
    (5, (1, 2, 3), [2, 1, 1, 1]),
)
def test_positions_end_a_message(count, indices, lengths):
    messages = shared_messages(outgoing(count), [1] * count, setting=("index", indices))
    assert [len(m) for m in messages] == lengths
    assert [n for m in messages for n in m] == list(range(count))


def test_in_the_wording_of_the_seeds_the_first_20_are_20():
    found = [len(m) for m in shared_messages(outgoing(40), [1] * 40, setting=("index", (20, 35)), wording="first_n")]
    assert found == [20, 15, 5]


def test_positions_count_parameters_that_send_nothing():
    """A layerwise_parallel one at place 1: of the places up to 2 two gradients are left."""
    gradients = [g for g in outgoing(5) if g.place != 1]
    assert shared_messages(gradients, [1] * 5, setting=("index", (2,))) == ((0, 1), (2, 3))


def test_different_ids_go_before_positions_and_0_is_alone():
    found = shared_messages(outgoing(6, ids=[7, 0, 7, 1, 0, 1]), [7, 0, 7, 1, 0, 1], setting=("index", (2,)))
    assert found == ((0, 2), (1,), (3, 5), (4,))


def test_equal_ids_say_nothing_but_0_does():
    assert shared_messages(outgoing(4, ids=[3] * 4), [3] * 4, setting=("index", (1,))) == ((0, 1), (2, 3))
    assert shared_messages(outgoing(3, ids=[0] * 3), [0] * 3) == ((0,), (1,), (2,))
    assert shared_messages(outgoing(3), [1] * 3, fusion_type=0, setting=("index", (1,))) == ((0,), (1,), (2,))


def test_a_message_has_one_dtype():
    found = shared_messages(
        outgoing(4, dtypes=["float32", "float64", "float32", "float64"]), [1] * 4, setting=("index", (2,))
    )
    assert found == ((0, 2), (1,), (3,))


def test_sizes_are_counted_among_what_is_left_together():
    """1 MB and 1 byte is above 1 MB: it ends its message. Each dtype counts by itself."""
    sizes, dtypes = [MB, 1, 8, MB + 1, 8, 8], ["float32", "float32", "float16", "float32", "float16", "float32"]
    assert shared_messages(outgoing(6, sizes=sizes, dtypes=dtypes), [1] * 6, setting=("size", 1)) == (
        (0, 1),
        (2, 4),
        (3,),
        (5,),
    )
    found = shared_messages(outgoing(4, ids=[1, 2, 1, 2], sizes=[MB, MB, 1, 1]), [1, 2, 1, 2], setting=("size", 1))
    assert found == ((0, 2), (1, 3))
    assert shared_messages(outgoing(3), [1] * 3, setting=("size", 0)) == ((0,), (1,), (2,))
    assert shared_messages(outgoing(3, sizes=[40 * MB] * 3), [1] * 3, setting=("auto", 64)) == ((0, 1), (2,))


@pytest.mark.exhaustive
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["float32", "float64"]), st.integers(1, 3 * MB)), max_size=12
    ),
    st.sampled_from([None, ("size", 1), ("size", 2), ("auto", 64), ("index", (0, 3)), ("index", (2, 5, 9))]),
    st.integers(0, 2),
)
def test_every_gradient_is_in_one_message_with_its_like(listed, setting, fusion_type):
    gradients = [Outgoing(i, fusion, True, dtype, size) for i, (fusion, dtype, size) in enumerate(listed)]
    messages = shared_messages(gradients, [g.fusion for g in gradients], fusion_type=fusion_type, setting=setting)
    assert sorted(n for m in messages for n in m) == list(range(len(gradients)))
    different = len({g.fusion for g in gradients}) > 1
    for m in messages:
        assert len({gradients[n].dtype for n in m}) == 1 and list(m) == sorted(m)
        assert not different or len({gradients[n].fusion for n in m}) == 1
        assert len(m) == 1 or (gradients[m[0]].fusion != 0 if different else fusion_type != 0)
        if setting and setting[0] != "index":  # all but the last of a message together do not exceed the threshold
            assert sum(gradients[n].size_bytes for n in m[:-1]) <= setting[1] * MB


# ---- on real ranks ----

SHAPES = [(2, 3), (5,), (), (3, 1, 2), (4, 4), (7,)]
DTYPES = ["float32", "float64", "float32", "float16", "float32", "float64"]
LAYERWISE = 4


def made(rank, seed):
    """Parameters, and a rank's gradients of them, uneven so that the order of additions shows."""
    rng = np.random.default_rng([seed, rank])
    parameters = [
        Parameter(Tensor(np.zeros(shape, dtype)), f"p{i}", layerwise_parallel=i == LAYERWISE)
        for i, (shape, dtype) in enumerate(zip(SHAPES, DTYPES, strict=True))
    ]
    return parameters, [
        (rng.standard_normal(p.shape) * 10.0 ** rng.integers(-3, 3, p.shape)).astype(p.dtype) for p in parameters
    ]


def reduced(world, settings, ids, options):
    """What each rank got, (kind, bytes of a message) of what it sent, and what it gave."""
    context.set_auto_parallel_context(**settings)
    parameters, grads = made(world.rank, 3)
    for p, number in zip(parameters, ids or (), strict=False):
        p.comm_fusion = number
    reducer = nn.DistributedGradReducer(parameters, **options)
    world.comm.recording = True
    found = reducer(tuple(Tensor(g) for g in grads))
    again = reducer([Tensor(g) for g in grads])
    records = [(m.kind, m.size_bytes) for m in world.comm.records]
    assert all(np.array_equal(a.asnumpy(), b.asnumpy()) for a, b in zip(found, again, strict=True))
    assert records[: len(records) // 2] == records[len(records) // 2 :]
    return [g.asnumpy() for g in found], records[: len(records) // 2]


def by_hand(wide=True, mean=False):
    """The sums in rank order, in the dtype in which they travel; elements that travel, per dtype."""
    everybody = [made(rank, 3)[1] for rank in range(N)]
    found = []
    for i, dtype in enumerate(DTYPES):
        total = everybody[0][i].astype("float32" if wide and dtype == "float16" else dtype)
        for grads in everybody[1:]:
            total = total + grads[i].astype(total.dtype)
        found.append(total.astype(dtype) * np.asarray(0.25 if mean else 1.0, dtype))
    return found


def index(*positions):
    return {"comm_fusion": {"allreduce": {"mode": "index", "config": list(positions)}}}


def size(threshold):
    return {"comm_fusion": {"allreduce": {"mode": "size", "config": threshold}}}


# bytes of the messages, parameters named by their place: 0 float32 24, 1 float64 40, 2 float32 4, 3 float16 as float32
# 24, 5 float64 56; 4 stays
WAYS = {
    "nothing said": ({}, None, {}, [24 + 4 + 24, 40 + 56]),
    "alone": ({}, None, {"fusion_type": 0}, [24, 40, 4, 24, 56]),
    "alone, and positions": (index(2), None, {"fusion_type": 0}, [24, 40, 4, 24, 56]),
    "positions": (index(1, 3), None, {}, [24, 40, 4 + 24, 56]),
    "all_reduce_fusion_config": ({"all_reduce_fusion_config": [1, 3]}, None, {}, [24, 40, 4 + 24, 56]),
    "positions, first_n": ({**index(1, 3), "fusion_index": "first_n"}, None, {}, [24, 40, 4, 24, 56]),
    "size 0": (size(0), None, {}, [24, 40, 4, 24, 56]),
    "auto": ({"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}, None, {}, [24 + 4 + 24, 40 + 56]),
    "closed": ({"comm_fusion": {"openstate": False}}, None, {}, [24, 40, 4, 24, 56]),
    "ids": ({}, [2, 2, 2, 0, 1, 2], {}, [24 + 4, 40 + 56, 24]),
    "ids and positions": (index(1), [2, 2, 3, 3, 3, 0], {}, [24, 40, 4 + 24, 56]),
    "as they are": ({"gradient_fp32_sync": False}, None, {}, [24 + 4, 40 + 56, 12]),
    "means": ({"gradients_mean": True}, None, {}, [24 + 4 + 24, 40 + 56]),
    "means, alone": ({"gradients_mean": True}, None, {"fusion_type": 0}, [24, 40, 4, 24, 56]),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_as_many_messages_as_the_rule_says_and_the_same_bits(pool, way):
    settings, ids, options, sizes_bytes = WAYS[way]
    expected = by_hand(wide=way != "as they are", mean=settings.get("gradients_mean", False))
    for rank, (found, records) in enumerate(on_ranks(pool, reduced, settings, ids, options)):
        # of an all_reduce 2 (n - 1) / n of its bytes leave a rank, for n = 4 six quarters
        assert records == [("all_reduce", bytes_ * 6 // 4) for bytes_ in sizes_bytes]
        for i, gradient in enumerate(found):
            wanted = made(rank, 3)[1][i] if i == LAYERWISE else expected[i]
            assert gradient.dtype == wanted.dtype and np.array_equal(gradient, wanted), SHAPES[i]


@pytest.mark.parametrize("fusion_type", [0, 1])
def test_a_mean_that_float16_can_hold_of_a_sum_that_it_cannot(pool, fusion_type):
    for found in on_ranks(pool, large_halves, {"gradients_mean": True}, fusion_type):
        for gradient in found:  # 4 x 40000 is above 65504, the largest float16
            assert gradient.dtype == np.float16 and np.array_equal(gradient, [40000, 40000])


def large_halves(world, settings, fusion_type):
    """The mean of what every rank has, from arrays and as operators (with gradients through them)."""
    context.set_auto_parallel_context(parallel_mode="data_parallel", **settings)
    p = Parameter(Tensor(np.zeros(2, np.float16)), "p")
    reducer = nn.DistributedGradReducer([p], fusion_type=fusion_type)
    with_gradients = Parameter(Tensor(np.full(2, 40000, np.float16)), "q")
    return [reducer([g])[0].asnumpy() for g in (Tensor(np.full(2, 40000, np.float16)), with_gradients)]


def test_a_kind_set_after_openstate_false_stays_off(pool):
    """As in compiled steps: every gradient travels alone."""
    for count in on_ranks(pool, set_after_openstate_false):
        assert count == 3


def set_after_openstate_false(world):
    context.set_auto_parallel_context(comm_fusion={"openstate": False})
    context.set_auto_parallel_context(all_reduce_fusion_config=[0])
    parameters = [Parameter(Tensor(np.zeros(3)), f"p{i}") for i in range(3)]
    world.comm.recording = True
    world.comm.records.clear()
    nn.DistributedGradReducer(parameters)([Tensor(np.ones(3))] * 3)
    return len(world.comm.records)


def test_a_gradient_that_is_missing_is_refused_before_anything_is_sent(pool):
    for told, found in on_ranks(pool, without_one):
        assert "the gradient of 'p1' is None" in told
        assert np.array_equal(found, np.full(3, N))


def without_one(world):
    parameters = [Parameter(Tensor(np.zeros(3)), f"p{i}") for i in range(2)]
    reducer = nn.DistributedGradReducer(parameters, mean=False)
    with pytest.raises(TypeError) as refused:
        reducer([Tensor(np.ones(3)), None])
    return str(refused.value), reducer([Tensor(np.ones(3))] * 2)[1].asnumpy()


def test_a_setting_that_comes_after_the_reducer_does_not_change_it(pool):
    for before, after in on_ranks(pool, set_between):
        assert before == after == 1


def set_between(world):
    parameters = [Parameter(Tensor(np.zeros(3)), f"p{i}") for i in range(3)]
    reducer = nn.DistributedGradReducer(parameters)
    world.comm.recording = True
    counts = []
    for settings in ({}, index(0)):
        context.set_auto_parallel_context(**settings)
        world.comm.records.clear()
        reducer([Tensor(np.ones(3))] * 3)
        counts.append(len(world.comm.records))
    return counts


def of_other_kinds(world):
    """Arrays stay arrays; a column of a larger array, and one in another order, arrive as what they are."""
    parameters = [Parameter(Tensor(np.zeros((3, 2))), f"p{i}") for i in range(3)]
    wide = np.arange(12.0).reshape(3, 4) + world.rank
    grads = [wide[:, ::2], Tensor(np.asfortranarray(wide[:, :2])), wide[:, 2:].copy()]
    found = nn.DistributedGradReducer(parameters)(grads)
    return [type(g).__name__ for g in found], [np.asarray(g) for g in found], wide


def test_arrays_and_views_are_gradients_too(pool):
    total = sum(np.arange(12.0).reshape(3, 4) + rank for rank in range(N))
    for rank, (kinds, found, untouched) in enumerate(on_ranks(pool, of_other_kinds)):
        assert kinds == ["ndarray", "Tensor", "ndarray"]
        for got, wanted in zip(found, (total[:, ::2], total[:, :2], total[:, 2:]), strict=True):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(untouched, np.arange(12.0).reshape(3, 4) + rank)


def through_it(world):
    """d(sum of c * reduced(x)) / dx: every rank's c is added up, times the mean's factor."""
    xs = [Parameter(Tensor(np.full(2, world.rank + 1.0)), f"x{i}") for i in range(2)]
    reducer = nn.DistributedGradReducer(xs, mean=True)
    found = reducer(tuple(ops.mul(x, 3.0) for x in xs))
    weights = np.array([1.0, 10.0]) * (world.rank + 1)
    return [f.asnumpy() for f in found], [gradients(f, [x], weights)[0] for f, x in zip(found, xs, strict=True)]


def test_a_gradient_goes_through_the_reducer(pool):
    for found, grads in on_ranks(pool, through_it):
        for value, grad in zip(found, grads, strict=True):
            np.testing.assert_allclose(value, 3 * 10 / N)
            np.testing.assert_allclose(grad, 3 * np.array([10.0, 100.0]) / N)


def of_a_compiled_program(world):
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", gradients_mean=True)
    parameters = [Parameter(Tensor(np.zeros((4, 2))), f"p{i}") for i in range(2)]
    layout = TensorLayout.from_strategy((N, 1), N)
    grads = (RankTensor(np.full((1, 2), world.rank), (4, 2), layout), Tensor(np.full((4, 2), 4.0 * world.rank)))
    world.comm.recording = True
    found = nn.DistributedGradReducer(parameters)(grads)
    return found[0] is grads[0], found[1].asnumpy()


def test_slices_that_a_compiled_program_has_added_up_are_not_added_again(pool):
    """Wrong before: the ranks' different slices were added to each other."""
    for same, other in on_ranks(pool, of_a_compiled_program):
        assert same
        np.testing.assert_array_equal(other, np.full((4, 2), 6.0))  # 4 (0 + 1 + 2 + 3) / 4


def cut_differently(world):
    context.set_auto_parallel_context(**index(world.rank))
    parameters = [Parameter(Tensor(np.zeros(3)), name) for name in ("first", "second", "third")]
    nn.DistributedGradReducer(parameters)([Tensor(np.ones(3))] * 3)


def test_ranks_that_cut_differently_hear_whose_gradients_they_sent(pool):
    with pytest.raises(CollectiveMismatch) as caught:
        on_ranks(pool, cut_differently)
    assert "gradient of first" in str(caught.value)
    assert "gradients of first to" in str(caught.value)
    assert "test_grad_reducer.py" in str(caught.value)


# ---- what the communicator is asked ----


class Noting:
    """A communicator of one of two ranks, that notes what it is asked; the other rank has the same gradients."""

    rank, world_size = 0, 2

    def __init__(self):
        self.notes, self.made = [], []

    def empty(self, shape, dtype="float32"):
        self.made.append(np.empty(shape, dtype))
        return self.made[-1]

    def start(self, kind, x, group, *, reduce, out, tag):
        number = len(self.notes)
        assert kind == "all_reduce"
        assert group == (0, 1)
        assert reduce == "sum"
        assert out is x
        assert any(x is made for made in self.made)
        self.notes.append("start")
        return Waiting(self, number, x)


class Waiting:
    def __init__(self, comm, number, x):
        self.comm, self.number, self.x = comm, number, x

    def wait(self):
        self.comm.notes.append(f"wait {self.number}")
        self.x *= 2
        return self.x


class TwoRanks:
    rank, world_size = 0, 2

    def __init__(self):
        self.comm = Noting()

    def group(self, name=None):
        return (0, 1)


def test_all_messages_are_started_in_shared_memory_before_the_first_is_waited_for():
    before, world = hooks.current_world(), TwoRanks()
    hooks.set_world(world)
    context.set_auto_parallel_context(**index(0, 1))
    try:
        parameters = [Parameter(Tensor(np.zeros(3)), f"p{i}") for i in range(4)]
        found = nn.DistributedGradReducer(parameters)([Tensor(np.full(3, i + 1.0)) for i in range(4)])
    finally:
        hooks.set_world(before)
        context.reset_auto_parallel_context()
    assert world.comm.notes == ["start"] * 3 + ["wait 0", "wait 1", "wait 2"]
    for i, gradient in enumerate(found):
        np.testing.assert_array_equal(gradient.asnumpy(), np.full(3, 2.0 * (i + 1)))
        assert any(np.shares_memory(gradient.asnumpy(), made) for made in world.comm.made)  # handed on without a copy


def test_a_parameter_that_sends_nothing_counts_where_numbers_differ():
    """MindSpore walks all parameters: one with its own number puts numbers before positions, layerwise or not."""
    assert shared_messages(outgoing(3), [1, 1, 1, 5], setting=("index", (0,))) == ((0, 1, 2),)
