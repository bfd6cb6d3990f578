"""The simulator: hand-written rank programs, endless waits, disagreements; a plan run one instruction at a time."""

import contextlib
import itertools

import numpy as np
import pytest

from parallel_lab import PlanError, Request, Simulator, Tensor, compile, nn, simulate
from parallel_lab.base.errors import CollectiveMismatch, DeadlockError, ParallelLabError, ShapeError
from tests.crossed import each_of
from tests.junk import MEEK
from tests.recorded.nets import Quick

N = 4
GROUP = tuple(range(N))
S = ((2, 4), (4, 1))


def vector(rank, n=8):
    return np.random.default_rng(rank).normal(size=n)


def refused(program, ranks, error, words):
    """The text of the error in which programs of `ranks` ranks end."""
    with pytest.raises(error, match=words) as caught:
        simulate([program(rank) for rank in range(ranks)])
    return str(caught.value)


# ---- programs written by hand ----


def ring_all_reduce(rank, x):
    """reduce_scatter, then all_gather, each in N - 1 rounds of one piece from every rank to its right neighbour."""
    pieces = [p.copy() for p in np.split(x, N)]
    right, left = (rank + 1) % N, (rank - 1) % N
    for rounds in (0, 1):
        for step in range(N - 1):
            mine, theirs = (rank + rounds - step) % N, (rank + rounds - step - 1) % N
            send = Request("send", (rank, right), pieces[mine])
            receive = Request("recv", (left, rank), shape=pieces[theirs].shape, dtype="float64")
            # even ranks send first, odd ones receive first: all sending at once would wait for ever
            if rank % 2 == 0:
                yield send
                got = yield receive
            else:
                got = yield receive
                yield send
            pieces[theirs] = pieces[theirs] + got if rounds == 0 else got
    return np.concatenate(pieces)


def test_ring_all_reduce_by_send_and_recv_is_the_sum():
    got = simulate([ring_all_reduce(r, vector(r)) for r in GROUP])
    want = sum(vector(r) for r in GROUP)
    for result in got:
        np.testing.assert_allclose(result, want, rtol=1e-12)
        np.testing.assert_array_equal(result, got[0])


def one_call(rank, kind, value=None, **fields):
    result = yield Request(kind, GROUP, value, **fields)
    return result


def run_each(kind, values, **fields):
    return simulate([one_call(r, kind, values[r], **fields) for r in GROUP])


def test_every_collective_gives_what_its_definition_says():
    values = [vector(r) for r in GROUP]
    total = ((values[0] + values[1]) + values[2]) + values[3]
    for got in run_each("all_reduce", values):
        np.testing.assert_array_equal(got, total)
    np.testing.assert_array_equal(run_each("all_reduce", values, reduce="max")[2], np.maximum.reduce(values))
    np.testing.assert_array_equal(run_each("all_gather", values)[3], np.concatenate(values))
    np.testing.assert_array_equal(np.concatenate(run_each("reduce_scatter", values)), total)
    squares = [v.reshape(4, 2) for v in values]
    for rank, got in enumerate(run_each("all_to_all", squares, split_dim=0, concat_dim=1)):
        np.testing.assert_array_equal(got, np.concatenate([s[rank : rank + 1] for s in squares], axis=1))
    assert [g is None for g in run_each("reduce", values, root=2)] == [True, True, False, True]
    np.testing.assert_array_equal(run_each("gather", values, root=1)[1], np.concatenate(values))
    assert run_each("barrier", [None] * N) == [None] * N


def test_broadcast_and_scatter_come_from_the_root():
    def program(rank, kind, part):
        if rank == 1:
            result = yield Request(kind, GROUP, vector(9), root=1)
        else:
            result = yield Request(kind, GROUP, None, root=1, shape=part, dtype="float64")
        return result

    for got in simulate([program(r, "broadcast", (8,)) for r in GROUP]):
        np.testing.assert_array_equal(got, vector(9))
    np.testing.assert_array_equal(np.concatenate(simulate([program(r, "scatter", (2,)) for r in GROUP])), vector(9))


def test_replies_are_copies():
    """A rank that writes into what it got must not change what another rank holds."""

    def program(rank):
        mine = np.ones(3)
        got = yield Request("all_reduce", (0, 1), mine)
        got += rank
        again = yield Request("all_gather", (0, 1), got)
        return mine, again

    results = simulate([program(0), program(1)])
    np.testing.assert_array_equal(results[0][0], np.ones(3))
    np.testing.assert_array_equal(results[0][1], [2, 2, 2, 3, 3, 3])


def test_groups_work_side_by_side():
    def program(rank):
        row = (0, 1) if rank < 2 else (2, 3)
        column = (0, 2) if rank % 2 == 0 else (1, 3)
        a = yield Request("all_reduce", row, np.array([float(rank)]))
        b = yield Request("all_reduce", column, a)
        return b[0]

    assert simulate([program(r) for r in GROUP]) == [6.0] * 4


def test_programs_without_requests_end():
    def program(rank):
        return rank
        yield

    assert simulate([program(r) for r in range(3)]) == [0, 1, 2]


def test_a_mapping_of_ranks_is_taken():
    def program(rank):
        got = yield Request("all_gather", (3, 7), np.array([rank]))
        return got.tolist()

    assert simulate({7: program(7), 3: program(3)}) == [[3, 7], [3, 7]]


# ---- waits that never end ----


def test_everyone_sends_first_and_the_messages_arrive():
    """A send once waited for its receiver here but not on processes: a deadlock in the simulator alone."""

    def program(rank):
        yield Request("send", (rank, (rank + 1) % 3), np.full(2, float(rank)))
        got = yield Request("recv", ((rank - 1) % 3, rank), shape=(2,), dtype="float64")
        return got[0]

    assert simulate([program(r) for r in range(3)]) == [2.0, 0.0, 1.0]


def test_messages_of_a_pair_arrive_in_the_order_sent_with_the_values_of_that_moment():
    def program(rank):
        if rank == 0:
            x = np.zeros(1)
            for i in range(3):
                x[:] = i
                yield Request("send", (0, 1), x)
            return None
        got = []
        for _ in range(3):
            got.append((yield Request("recv", (0, 1)))[0])
        return got

    assert simulate([program(0), program(1)])[1] == [0.0, 1.0, 2.0]


def test_a_message_is_received_under_its_tag_whatever_came_before():
    def program(rank):
        if rank == 0:
            for number, sr_tag in enumerate([0, 3, 0, 3]):
                yield Request("send", (0, 1), np.full(1, float(number)), sr_tag=sr_tag)
            return None
        got = []
        for sr_tag in (3, 0, 0, 3):
            got.append((yield Request("recv", (0, 1), sr_tag=sr_tag))[0])
        return got

    assert simulate([program(0), program(1)])[1] == [1.0, 0.0, 2.0, 3.0]


def test_a_tag_that_nobody_sends_is_waited_for_in_vain():
    def program(rank):
        yield Request("send", (0, 1), np.ones(2), sr_tag=1) if rank == 0 else Request("recv", (0, 1), sr_tag=2)

    refused(program, 2, DeadlockError, "rank 1 waits in its call 1, recv sr tag 2, with")


def test_a_message_nobody_receives_is_a_mismatch():
    def program(rank):
        if rank == 0:
            yield Request("send", (0, 1), np.ones(2))
            yield Request("send", (0, 1), np.ones(3), origin="lesson.py:7")
        else:
            yield Request("recv", (0, 1))

    words = r"rank 0 sent 2 messages to rank 1, which received 1\. .*float64 \(3,\) at lesson.py:7"
    refused(program, 2, CollectiveMismatch, words)


def test_everyone_receives_first_is_a_deadlock_that_names_the_waiting_ranks():
    def program(rank):
        yield Request("recv", ((rank - 1) % 3, rank))
        yield Request("send", (rank, (rank + 1) % 3), np.ones(2))

    text = refused(program, 3, DeadlockError, "the sender never sends")
    for rank, group in enumerate([(2, 0), (0, 1), (1, 2)]):
        assert f"rank {rank} waits in its call 1, recv, with {group}" in text
    assert "same calls" not in text


def test_a_message_of_another_shape_than_announced_is_a_mismatch():
    def program(rank):
        if rank == 0:
            yield Request("send", (0, 1), np.ones(2))
        else:
            yield Request("recv", (0, 1), shape=(3,), dtype="float64")

    words = r"rank 1 expects float64 \(3,\) from rank 0, which called send float64 \(2,\)"
    refused(program, 2, CollectiveMismatch, words)


def test_two_groups_in_opposite_order_are_a_deadlock():
    def program(rank):
        for group in [(0, 1), (0, 1, 2)] if rank == 0 else [(0, 1, 2), (0, 1)]:
            if rank in group:
                yield Request("all_reduce", group, np.ones(1), origin=f"line {rank}")

    words = r"rank 0 waits in its call 1.*at line 0, with \(0, 1\); rank 1 waits.*\(0, 1, 2\); rank 2 waits"
    refused(program, 3, DeadlockError, words)


def test_a_rank_that_leaves_early_is_named():
    def program(rank):
        yield Request("barrier", (0, 1, 2))
        if rank != 1:
            yield Request("all_reduce", (0, 1, 2), np.ones(1))

    refused(
        program, 3, DeadlockError, r"rank 0 waits in its call 2.*rank 2 waits in its call 2.*ranks \[1\] have ended"
    )


def test_a_group_with_a_rank_that_does_not_exist_is_refused_at_once():
    def program(rank):
        yield Request("barrier", (0, 1, 5))

    words = r"rank 0 called barrier with group \(0, 1, 5\), which names ranks \[5\]\. The ranks are 0 to 1"
    refused(program, 2, CollectiveMismatch, words)


# ---- disagreements ----


@each_of(
    ("mine", "other", "words"),
    ({"kind": "all_reduce"}, {"kind": "all_gather"}, ["all_reduce", "all_gather"]),
    ({"value": np.ones(2)}, {"value": np.ones(3)}, ["(2,)", "(3,)"]),
    ({"value": np.ones(2)}, {"value": np.ones(2, np.float32)}, ["float64", "float32"]),
    ({"reduce": "sum"}, {"reduce": "max"}, ["sum", "max"]),
    ({"kind": "reduce", "root": 0}, {"kind": "reduce", "root": 1}, ["root 0", "root 1"]),
    (*({"kind": "all_gather", "dim": dim, "value": np.ones((2, 2))} for dim in (0, 1)), ["dim 0", "dim 1"]),
)
def test_members_that_disagree_are_a_mismatch_naming_both(mine, other, words):
    def program(rank):
        fields = {"kind": "all_reduce", "value": np.ones(2)} | (mine if rank == 0 else other)
        yield Request(group=(0, 1), origin=f"lesson.py:{rank + 10}", **fields)

    text = refused(program, 2, CollectiveMismatch, "rank 0")
    for word in ["rank 0", "rank 1", "lesson.py:10", "lesson.py:11", *words]:
        assert word in text


def test_a_rank_outside_its_group_gets_an_error():
    def program(rank):
        yield Request("all_reduce", (0, 1), np.ones(1))

    refused(program, 3, CollectiveMismatch, r"rank 2 called all_reduce.*for group \(0, 1\)")


def test_an_exception_in_a_program_comes_through():
    def program(rank):
        yield Request("barrier", (0, 1))
        if rank == 1:
            raise ZeroDivisionError("mine")
        yield Request("barrier", (0, 1))

    refused(program, 2, ZeroDivisionError, "mine")


def test_a_mismatch_says_which_call_of_the_group_it_was():
    def program(rank):
        yield Request("barrier", (0, 1))
        yield Request("all_reduce", (0, 1), np.ones(2 + rank))

    refused(program, 2, CollectiveMismatch, r"group \(0, 1\), call 1: ")


# ---- requests that cannot be ----

ONES = np.ones(4)


@each_of(
    ("request_", "error", "words"),
    (lambda: Request("all_sum", (0, 1), ONES), CollectiveMismatch, "'all_sum'"),
    (lambda: Request("all_reduce", (0, 1), ONES, reduce="average"), CollectiveMismatch, "reduce='average'"),
    (lambda: "barrier", CollectiveMismatch, "yielded 'barrier'"),
    (lambda: None, CollectiveMismatch, "yielded None"),
    (lambda: Request("all_reduce", (0, 1)), ShapeError, "without a value"),
    (lambda: Request("all_reduce", (0, 0, 1), ONES), CollectiveMismatch, "not ascending"),
    (lambda: Request("all_reduce", (1, 0), ONES), CollectiveMismatch, "not ascending"),
    (lambda: Request("all_reduce", (), ONES), CollectiveMismatch, "tuple of ranks"),
    (lambda: Request("all_reduce", 2, ONES), CollectiveMismatch, "tuple of ranks"),
    (lambda: Request("all_reduce", ("0", "1"), ONES), CollectiveMismatch, "tuple of ranks"),
    (lambda: Request("all_reduce", (1,), ONES), CollectiveMismatch, "its own groups"),
    (lambda: Request("all_reduce", (0, -1), ONES), CollectiveMismatch, r"names ranks \[-1\]"),
    (lambda: Request("broadcast", (0, 1), ONES), CollectiveMismatch, "without a root"),
    (lambda: Request("gather", (0, 1), ONES, root=7), CollectiveMismatch, "root 7"),
    (lambda: Request("all_gather", (0, 1), ONES, dim=1), ShapeError, r"dim=1 of a value of shape \(4,\)"),
    (lambda: Request("all_gather", (0, 1), 1.0), ShapeError, "A value with dims"),
    (lambda: Request("all_to_all", (0, 1), ONES, concat_dim=3), ShapeError, "concat_dim=3"),
    (lambda: Request("reduce_scatter", (0, 1), np.ones(5)), ShapeError, "dim 0 of size 5 cannot be split into 2"),
    (lambda: Request("scatter", (0, 1), np.ones(5), root=0), ShapeError, "dim 0 of size 5 cannot be split into 2"),
    (lambda: Request("all_reduce", (0, 1), np.array(["a"])), ShapeError, "dtype <U1"),
    (lambda: Request("all_gather", (0, 1), np.array([None])), ShapeError, "dtype object"),
    (lambda: Request("send", (0, 0), ONES), CollectiveMismatch, "source, destination"),
    (lambda: Request("recv", (0, 1)), CollectiveMismatch, "source, destination"),
    (lambda: Request("send", (0, 1), ONES, sr_tag="a"), CollectiveMismatch, "sr_tag='a'.*A tag is an int, at least 0"),
)
def test_a_request_that_cannot_be_is_refused_with_rank_and_call(request_, error, words):
    def program(rank):
        yield request_() if rank == 0 else Request("barrier", (0, 1))

    refused(program, 2, error, f"rank 0.*{words}")


ROOTED = ("broadcast", "reduce", "scatter", "gather")


@pytest.mark.filterwarnings("ignore:Data type alias .a. was deprecated")
@pytest.mark.parametrize("kind", ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", *ROOTED, "barrier"))
def test_a_request_of_anything_is_answered_or_refused_in_words(kind):
    """Each field of one rank's request, and of all ranks', is junk in turn."""

    def program(rank, **junk):
        rooted = {"root": 0} if kind in ROOTED else {}
        value = None if kind == "scatter" and rank else vector(rank).reshape(N, 2)
        yield Request(**({"kind": kind, "group": GROUP, "value": value} | rooted | junk))

    for field, junk, ranks in itertools.product(("reduce", "root", "shape", "dtype", "group", "dim"), MEEK, (1, N)):
        with contextlib.suppress(ParallelLabError):
            simulate([program(rank, **({field: junk} if rank < ranks else {})) for rank in GROUP])


def test_a_simulator_of_anything_is_refused_in_words():
    plan = compile(Quick(32, 16, 16, S), np.zeros((16, 32), "float32"), device_num=8, dataset_strategy="full_batch")
    for junk in MEEK:
        with pytest.raises(ParallelLabError, match="Simulator"):
            Simulator(junk, {})
        with pytest.raises(ParallelLabError):
            Simulator(plan, junk)


def test_rows_of_different_lengths_are_not_a_value():
    with pytest.raises(ShapeError, match=r"all_reduce: the value .* is not an array"):
        Request("all_reduce", (0, 1), [[1.0], [1.0, 2.0]])


def test_lists_are_taken_as_groups_shapes_and_values():
    def program(rank):
        total = yield Request("all_reduce", [0, 1], [1.0, float(rank)])
        got = yield Request("broadcast", range(2), total if rank == 0 else None, root=0, shape=[2], dtype="float64")
        return got.tolist()

    assert simulate([program(0), program(1)]) == [[2.0, 1.0]] * 2


@pytest.mark.parametrize("programs", [[one_call], [lambda rank: rank], [3], one_call, {0: one_call}])
def test_programs_that_are_not_generators_are_refused(programs):
    with pytest.raises(TypeError, match=r"simulate: .*enerator"):
        simulate(programs)


# ---- a plan, one instruction at a time ----


@pytest.fixture
def stepped(rng):
    """(simulator, net, x, y): the quickstart on 8 ranks."""
    net = Quick(32, 16, 16, S, ((2, 4),), S)
    for p in net.trainable_params():
        p._initial, p._data = None, rng.normal(size=p.shape)
    x, y = rng.normal(size=(16, 32)), rng.normal(size=(16, 16))
    plan = compile(net, x, y, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
    return Simulator(plan, {p.name: p.asnumpy() for p in net.trainable_params()}), net, x, y


def the_rest(sim):
    """The ticks to the end of the step."""
    return list(iter(sim.next_instruction, None))


def test_steps_are_the_plans_instructions_in_order(stepped):
    sim, _, x, y = stepped
    sim.begin(x, y)
    ticks = [(tick.phase, tick.position, tick.instr) for tick in the_rest(sim)]
    want = [(p, i, instr) for p, program in sim.plan.stages[0].programs for i, instr in enumerate(program)]
    assert ticks == want


def test_a_value_is_there_from_the_step_that_makes_it(stepped):
    sim, net, x, y = stepped
    sim.begin(x, y)
    for rank in range(8):
        with pytest.raises(PlanError, match=f"rank {rank} does not hold 'matmul.partial' now"):
            sim.value("matmul.partial", rank)
    while sim.next_instruction().instr.out != "matmul.partial":
        pass
    w = net.weight.asnumpy()
    for rank in range(8):
        row, column = divmod(rank, 4)
        rows, columns = slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8)
        np.testing.assert_allclose(sim.value("matmul.partial", rank), x[rows, columns] @ w[columns], rtol=1e-12)
    with pytest.raises(PlanError, match="does not hold"):
        sim.full("matmul")
    # addends are added up when the full value is read
    np.testing.assert_allclose(sim.full("matmul.partial"), x @ w, rtol=1e-10)


def test_after_the_last_step_every_value_is_kept_to_look_at(stepped):
    sim, net, x, y = stepped
    sim.begin(x, y)
    the_rest(sim)
    hidden = np.maximum(x @ net.weight.asnumpy(), 0)
    np.testing.assert_allclose(sim.full("relu"), hidden, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(sim.full("matmul2"), hidden @ net.weight2.asnumpy(), rtol=1e-10, atol=1e-12)
    with pytest.raises(PlanError, match="no step was begun"):
        sim.next_instruction()


def test_stepping_gives_the_same_bits_as_a_whole_step(stepped):
    sim, _, x, y = stepped
    loss = sim.run_step(x, y)
    grads = {n: sim.full(g) for n, g in sim.plan.gradients}
    sim.begin(x, y)
    the_rest(sim)
    np.testing.assert_array_equal(sim.full(sim.plan.outputs[0]), loss)
    for name, g in sim.plan.gradients:
        np.testing.assert_array_equal(sim.full(g), grads[name])


def test_begin_in_the_middle_of_a_step_starts_over(stepped):
    sim, _, x, y = stepped
    loss = sim.run_step(x, y)
    sim.begin(-x, y)
    for _ in range(5):
        sim.next_instruction()
    sim.begin(x, y)
    the_rest(sim)
    np.testing.assert_array_equal(sim.full(sim.plan.outputs[0]), loss)


def test_a_whole_step_drops_what_nothing_reads_any_more(stepped):
    sim, _, x, y = stepped
    sim.run_step(x, y)
    kept = {"x", "label", "w", "w2", sim.plan.outputs[0], *(g for _, g in sim.plan.gradients)}
    assert {n for n in sim.envs[0] if n not in sim.plan.scalars} == kept


def test_stepping_needs_begin(stepped):
    with pytest.raises(PlanError, match=r"Call begin\(\*inputs\) first"):
        stepped[0].next_instruction()


@pytest.mark.parametrize("call", ["begin", "run_step"])
def test_inputs_of_another_shape_or_number_are_refused(stepped, call):
    sim, _, x, y = stepped
    with pytest.raises(ShapeError, match=r"'x' has shape \(8, 32\).*\(16, 32\)"):
        getattr(sim, call)(x[:8], y)
    with pytest.raises(ShapeError, match=r"got 1 inputs.*2: x, label"):
        getattr(sim, call)(x)


def test_tensors_are_taken_as_inputs(stepped):
    sim, _, x, y = stepped
    np.testing.assert_array_equal(sim.run_step(Tensor(x), Tensor(y)), sim.run_step(x, y))


def test_observer_sees_every_rank_and_the_bytes_it_hands_over(stepped):
    sim, _, x, y = stepped
    seen = []
    sim.run_step(x, y, observe=lambda *what: seen.append(what))
    program = [(p, i) for p, program in sim.plan.stages[0].programs for i in program]
    for rank in range(8):
        mine = [(action.program, i, end - start, handed) for r, action, i, start, end, handed, _ in seen if r == rank]
        assert [(p, i) for p, i, _, _ in mine] == program
        assert all(seconds >= 0 for _, _, seconds, _ in mine)
        handed = [sim.plan.value(i.ins[0]).slice_bytes if i.is_communication else 0 for _, i in program]
        assert [b for _, i, _, b in mine] == handed


def test_parameters_without_values_are_named(stepped):
    with pytest.raises(PlanError, match="no value for 'w2'"):
        Simulator(stepped[0].plan, {"w": stepped[1].weight.asnumpy()})
    with pytest.raises(PlanError, match="no value for 'w', 'w2'"):
        Simulator(stepped[0].plan, {})


def test_a_whole_step_gives_up_a_step_that_was_begun(stepped):
    """The next instruction used to be a KeyError."""
    sim, _, x, y = stepped
    sim.begin(x, y)
    sim.next_instruction()
    loss = sim.run_step(x, y)
    with pytest.raises(PlanError, match="no step was begun"):
        sim.next_instruction()
    np.testing.assert_array_equal(sim.full(sim.plan.outputs[0]), loss)


@pytest.mark.parametrize("rank", [8, -1, "0", 1.5])
def test_a_rank_that_does_not_exist_is_refused(stepped, rank):
    with pytest.raises(PlanError, match="Ranks run from 0 to 7"):
        stepped[0].value("w", rank)


def test_a_tick_reads_as_a_line_of_the_plan(stepped):
    sim, _, x, y = stepped
    sim.begin(x, y)
    while (tick := sim.next_instruction()).instr.kind != "all_reduce":
        pass
    assert str(tick) == f"forward {tick.position}: matmul = AllReduce(matmul.partial)"
