"""`fusion` of operators called by hand on real processes: what shares a message, when it is sent, equal results."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops
from parallel_lab.base import hooks
from parallel_lab.base.errors import CollectiveMismatch, ShapeError, WorldError
from parallel_lab.base.settings import context
from parallel_lab.base.settings.tables import PYNATIVE_MODE
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.tensor import LaterTensor
from parallel_lab.processes.shm import WorkerPool
from tests.crossed import each_of
from tests.nets import cell
from tests.ops.ranks import on_ranks

pytestmark = pytest.mark.timeout(60)

N = 4
SOME = (1, 3)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(N) as pool:
        yield pool


def fused(operator, number=1):
    return operator.add_prim_attr("fusion", number)


def values(rank, *shapes, dtype="float32"):
    """Numbers of very different size, so that the order of additions shows in the last bits."""
    rng = np.random.default_rng([5, rank])
    return [(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)).astype(dtype) for shape in shapes]


def call(function):
    """A function as the outermost Cell."""
    return cell(lambda net, *args: net.function(*args), function=function)


def sent(world):
    """(kind, group, bytes) of what this rank has sent since it was last asked."""
    found = [(m.kind, m.group, m.size_bytes) for m in world.comm.records]
    world.comm.records.clear()
    return found


# ---- results, and how many messages ----


def many_calls(number):
    """Eleven calls of three operators, over two groups, in two dtypes; `number`: the fusion number of most of them."""
    reduce, largest = fused(ops.AllReduce(), number), fused(ops.AllReduce("max"), number)
    gather, scatter = fused(ops.AllGather(), number), fused(ops.ReduceScatter(), number)
    other, alone = fused(ops.AllReduce(), 2 * number), ops.AllReduce()
    inside = fused(ops.AllReduce(group="some"), number)

    def function(rank, a, b, c, d, wide):
        found = [reduce(a), gather(b), scatter(c), reduce(d), gather(a), scatter(b), reduce(wide), largest(a), other(a)]
        found.append(reduce(c))
        found += [inside(a), inside(b)] if rank in SOME else []
        return [*found, alone(b)]

    return function


def results_and_messages(world, number, mode):
    world.groups["some"] = SOME
    world.comm.recording = True
    a, b, c, d = map(Tensor, values(world.rank, (2, 3), (4, 1, 2), (8,), ()))
    (wide,) = map(Tensor, values(world.rank, (5,), dtype="float64"))
    context.set_context(mode=mode)
    try:
        found = call(many_calls(number))(world.rank, a, b, c, d, wide)
    finally:
        context.set_context(mode=context.GRAPH_MODE)
    return [type(f).__name__ for f in found], [f.asnumpy() for f in found], sent(world)


def test_calls_with_one_number_are_one_message_and_give_the_same_bits(pool):
    together = on_ranks(pool, results_and_messages, 1, context.GRAPH_MODE)
    apart = on_ranks(pool, results_and_messages, 0, context.GRAPH_MODE)
    for rank in range(N):
        kinds, found, messages = together[rank]
        plain, wanted, singles = apart[rank]
        assert [m[0] for m in singles].count("all_reduce") == (9 if rank in SOME else 7)
        assert set(kinds[:-1]) == {"LaterTensor"} and kinds[-1] == "Tensor" and set(plain) == {"Tensor"}
        for got, alone in zip(found, wanted, strict=True):
            assert got.dtype == alone.dtype and got.shape == alone.shape and np.array_equal(got, alone)
        everybody, some = tuple(range(N)), SOME
        a, b, c, d = 24, 32, 32, 4  # bytes of float32 (2, 3), (4, 1, 2), (8,), ()
        first = [("all_reduce", a + d + c, 6 / 4), ("all_gather", b + a, 3), ("reduce_scatter", c + b, 3 / 4)]
        more = [("all_reduce", size, 6 / 4) for size in (40, a, a)]
        expected = [(kind, everybody, int(size * share)) for kind, size, share in first + more]
        expected += [("all_reduce", some, a + b)] if rank in SOME else []
        assert messages == [*expected, ("all_reduce", everybody, b * 6 // 4)]


def test_the_sum_is_that_of_numpy_in_rank_order(pool):
    everybody = [values(rank, (2, 3), (4, 1, 2), (8,), ()) for rank in range(N)]
    total = [np.zeros(()), *everybody[0]]
    for others in everybody[1:]:
        total[1:] = [x + y for x, y in zip(total[1:], others, strict=True)]
    for rank, (_, found, _) in enumerate(on_ranks(pool, results_and_messages, 1, context.GRAPH_MODE)):
        np.testing.assert_array_equal(found[0], total[1])
        np.testing.assert_array_equal(found[1], np.concatenate([x[1] for x in everybody]))
        np.testing.assert_array_equal(found[2], total[3][2 * rank : 2 * rank + 2])


def test_in_pynative_mode_every_call_is_sent_at_once(pool):
    for kinds, _, messages in on_ranks(pool, results_and_messages, 1, PYNATIVE_MODE):
        assert set(kinds) == {"Tensor"} and len(messages) == len(kinds)


def outside_a_cell(world):
    world.comm.recording = True
    reduce = fused(ops.AllReduce())
    first, second = reduce(Tensor([1.0])), reduce(Tensor([2.0]))
    at_once = len(sent(world)), type(first).__name__, float(second)
    arrays = call(lambda: (reduce(np.ones(2)), reduce(np.ones(3))))()  # arrays in, arrays out: nothing that could wait
    empty = call(lambda: reduce(Tensor(np.zeros((0, 3)))))()
    return at_once, [type(a).__name__ for a in arrays], empty.shape, len(sent(world))


def test_outside_a_cell_every_call_is_sent_at_once(pool):
    for at_once, arrays, empty, messages in on_ranks(pool, outside_a_cell):
        assert at_once == (2, "Tensor", 8.0) and arrays == ["ndarray"] * 2 and empty == (0, 3) and messages == 3


# ---- when a message is sent ----


def read_by(world, name):
    """Messages sent before, by, and after `name` is done to the first of three results."""
    world.comm.recording = True
    reduce, notes = fused(ops.AllReduce()), []

    def function(x):
        first, second = reduce(x), reduce(x * 2.0)
        notes.append(len(world.comm.records))
        READERS[name](first)
        notes.append(len(world.comm.records))
        third = reduce(second)
        notes.append(len(world.comm.records))
        return first, second, third

    found = call(function)(Tensor([1.0, 2.0, 3.0]))
    notes.append(len(world.comm.records))
    return notes, [f.asnumpy() for f in found]


READERS = {
    "an operator": lambda x: x + 1.0,
    "a product": lambda x: ops.matmul(ops.reshape(x, (1, 3)), ops.reshape(x, (3, 1))),
    "numpy": lambda x: np.exp(x),
    "asnumpy": lambda x: x.asnumpy(),
    "print": lambda x: str(x),
    "a number": lambda x: float(x[0]),
    "a copy": lambda x: copy.deepcopy(x),
    "a send": lambda x: ops.NeighborExchange(
        [(hooks.current_world().rank + 1) % N], [(hooks.current_world().rank - 1) % N], [(3,)], [(3,)], "float32"
    )(x),
    "another collective": lambda x: ops.AllReduce()(Tensor([0.0])),
    "a barrier": lambda x: ops.Barrier()(),
    "a call that cannot wait": lambda x: fused(ops.AllReduce())(np.zeros(1)),
}
OTHERS = {"another collective": 1, "a barrier": 1, "a call that cannot wait": 1, "a send": 2}  # messages of their own


@pytest.mark.parametrize("name", READERS)
def test_it_is_sent_when_a_result_is_read_and_before_other_messages(pool, name):
    own = OTHERS.get(name, 0)
    for notes, (first, second, third) in on_ranks(pool, read_by, name):
        assert notes == [0, 1 + own, 1 + own, 2 + own]
        np.testing.assert_array_equal(first, [4.0, 8.0, 12.0])
        np.testing.assert_array_equal(second, [8.0, 16.0, 24.0])
        np.testing.assert_array_equal(third, [32.0, 64.0, 96.0])


def known_before(world):
    world.comm.recording = True

    def function(x):
        found = fused(ops.AllGather())(x)
        assert isinstance(found, LaterTensor)
        facts = found.shape, str(found.dtype), found.ndim, found.size, len(found), len(world.comm.records)
        return facts, found

    facts, found = call(function)(Tensor(np.zeros((2, 3), np.float16)))
    unread = call(lambda x: fused(ops.AllReduce())(x).shape)(Tensor([1.0]))  # nobody wants it; peers have sent theirs
    return facts, len(world.comm.records), unread, pickle.loads(pickle.dumps(found)).asnumpy().shape


def test_shape_and_dtype_are_known_before_and_what_nobody_reads_is_sent_too(pool):
    for facts, messages, unread, copied in on_ranks(pool, known_before):
        assert facts == ((8, 3), "float16", 2, 24, 8, 0) and messages == 2 and unread == (1,) and copied == (8, 3)


def changed_meanwhile(world):
    reduce, array = fused(ops.AllReduce()), np.ones(3)
    w = Parameter(Tensor(np.ones(3)), "w")

    def function():
        first, of_parameter = reduce(Tensor(array)), reduce(w)
        array[:] = 100.0
        ops.assign(w, np.full(3, 100.0))
        return first, of_parameter

    return [f.asnumpy() for f in call(function)()]


def test_a_call_takes_the_values_of_its_time(pool):
    """Without a copy the sums would be those of 100: results would depend on fusion."""
    for found in on_ranks(pool, changed_meanwhile):
        np.testing.assert_array_equal(found, np.full((2, 3), 4.0))


def inner_cells(world):
    world.comm.recording = True
    reduce, notes = fused(ops.AllReduce()), []
    inner = call(lambda x: reduce(x))

    def function(x):
        found = inner(x), inner(x * 2.0)
        notes.append(len(world.comm.records))
        return found

    call(function)(Tensor([1.0]))
    return notes, len(world.comm.records)


def test_the_outermost_cell_ends_it(pool):
    assert on_ranks(pool, inner_cells) == [([0], 1)] * N


def one_rank_looks(world):
    reduce = fused(ops.AllReduce())

    def function(x):
        first, second = reduce(x), reduce(x * 2.0)
        seen = str(first) if world.rank == 2 else ""
        return first, second, seen

    first, second, seen = call(function)(Tensor([1.0]))
    return float(first), float(second), seen


def test_a_rank_that_prints_alone_sends_earlier_and_nothing_else(pool):
    assert [found[:2] for found in on_ranks(pool, one_rank_looks)] == [(4.0, 8.0)] * N


# ---- gradients ----


class Mixed(nn.Cell):
    """All three operators on parameters and what is made of them, some read late, one not at all."""

    def __init__(self, number):
        super().__init__()
        self.w, self.v = (
            Parameter(values(9, (4, 3), dtype="float64")[0], "w"),
            Parameter(values(8, (8, 3), dtype="float64")[0], "v"),
        )
        self.reduce, self.largest = fused(ops.AllReduce(), number), fused(ops.AllReduce("max"), number)
        self.gather, self.scatter = fused(ops.AllGather(), number), fused(ops.ReduceScatter(), number)

    def construct(self, x):
        a, b, c = self.reduce(ops.matmul(x, self.w)), self.reduce(self.w), self.gather(self.w * x[0, 0])
        d, e = self.scatter(self.v * x[1, 1]), self.largest(self.v)
        self.reduce(self.v)
        products = ops.reduce_sum(a * a) + ops.reduce_sum(ops.tanh(c)) * ops.reduce_mean(b)
        return products + ops.reduce_sum(d[0:1] * b[0:1]) + self.reduce(ops.reduce_sum(e))


def loss_and_gradients(world, number, inside):
    """inside: the gradients are asked for in the Cell that calls the network."""
    net = Mixed(number)
    x = Tensor(values(world.rank, (2, 4), dtype="float64")[0])
    parameters = list(net.trainable_params())

    def both(x):
        loss = net(x)
        return loss, gradients(loss, parameters)

    loss, found = call(both)(x) if inside else both(x)
    return loss.asnumpy(), found


@pytest.mark.parametrize("inside", [False, True])
def test_gradients_do_not_depend_on_it(pool, inside):
    apart = on_ranks(pool, loss_and_gradients, 0, False)
    for (loss, grads), (wanted, wanted_grads) in zip(on_ranks(pool, loss_and_gradients, 1, inside), apart, strict=True):
        assert np.array_equal(loss, wanted) and all(np.abs(g).max() > 0 for g in grads)
        for got, plain in zip(grads, wanted_grads, strict=True):
            np.testing.assert_array_equal(got, plain)


def a_promised_loss(world):
    """The loss itself is a result that nobody has read when its gradient is asked for."""
    w = Parameter(Tensor(np.full(2, 3.0)), "w")
    reduce = fused(ops.AllReduce())
    found = call(lambda: gradients(reduce(ops.reduce_sum(w * w)), [w]))()
    return found[0]


def test_a_loss_that_is_a_promise_has_a_gradient(pool):
    for gradient in on_ranks(pool, a_promised_loss):
        np.testing.assert_array_equal(gradient, np.full(2, 6.0 * N))  # of a sum over ranks every rank's seed arrives


# ---- what goes wrong ----


def other_order(world):
    one, two = fused(ops.AllReduce(), 1), fused(ops.AllReduce(), 2)

    def function(x):
        first = one(x)
        second = two(x)
        return (float(first), float(second)) if world.rank == 0 else (float(second), float(first))

    call(function)(Tensor([1.0]))


def too_early(world):
    reduce = fused(ops.AllReduce())

    def function(x):
        first = reduce(x)
        seen = float(first) if world.rank == 0 else 0.0
        return reduce(x), seen

    call(function)(Tensor([1.0]))


SENT = "AllReduce with fusion {}, sent when a result is first read"


@each_of(
    ("program", "words"),
    (other_order, (SENT.format(1) + ": 1 call", SENT.format(2))),
    (too_early, (SENT.format(1) + ": 1 call so far", "2 calls in one message, test_rank_calls_together.py:")),
)
def test_ranks_that_read_at_different_times_hear_which_calls_they_joined(pool, program, words):
    with pytest.raises(CollectiveMismatch) as caught:
        on_ranks(pool, program)
    for word in words:
        assert word in str(caught.value)


def ends_with_an_error(world):
    world.comm.recording = True
    reduce, kept = fused(ops.AllReduce()), []

    def function(x):
        kept.append(reduce(x))
        return ops.mv(x, x)

    found = []
    for attempt in (lambda: call(function)(Tensor([1.0])), lambda: float(kept[0])):
        try:
            attempt()
        except (ShapeError, WorldError) as error:
            found.append((type(error).__name__, str(error)))
    messages = len(world.comm.records)
    return found, messages, float(call(lambda x: reduce(x))(Tensor([1.0]))), hooks.held_messages.get()


def test_a_cell_that_ends_with_an_error_sends_nothing_and_the_next_one_does(pool):
    for (first, second), messages, later, held in on_ranks(pool, ends_with_an_error):
        assert first[0] == "ShapeError" and messages == 0 and later == 4.0 and held is None
        assert second[0] == "WorldError"
        assert "AllReduce at test_rank_calls_together.py:" in second[1]
        assert "ended with an error" in second[1]


def what_cannot_be(world):
    found = []
    for operator, x in (
        (ops.AllGather(), Tensor(1.0)),
        (ops.ReduceScatter(), Tensor(np.ones((6, 2)))),
        (ops.AllReduce(), Tensor([True])),
    ):
        try:
            call(fused(operator))(x)
        except ValueError as error:
            found.append((type(error).__name__, str(error)))
    return found


def test_what_an_operator_refuses_it_refuses_when_it_is_called(pool):
    for found in on_ranks(pool, what_cannot_be):
        assert [kind for kind, _ in found] == ["ShapeError", "ShapeError", "ArgumentTypeError"]
        assert "first dim that divides by 4" in found[1][1]
