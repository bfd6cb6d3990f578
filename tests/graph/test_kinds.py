"""The tables of what a plan can do, `KINDS` (instructions) and `MESSAGES` (what ranks send), and how to add to them."""

import numpy as np
import pytest

import parallel_lab.graph.kinds as kinds
from parallel_lab import Simulator, compile, nn
from parallel_lab.base.cluster import Link, get_cluster
from parallel_lab.base.errors import CollectiveMismatch
from parallel_lab.cost import instr_time_s, message_time_s
from parallel_lab.graph.instr import Instr, Value, attr_pairs
from parallel_lab.graph.kinds import KINDS, KindDef, class_name
from parallel_lab.graph.passes import PASSES
from parallel_lab.ops.collectives.definitions import COLLECTIVES, MESSAGES, CollectiveDef, combine, formula, of_n
from parallel_lab.run.communicator import Request, answer
from parallel_lab.run.simulator import simulate
from tests.recorded.nets import Quick

LOCAL = (
    *("compute", "slice", "split", "concat", "reshape", "accumulate", "copy_to_host", "copy_to_device", "print"),
    *("branch", "loop", "restore", "start", "wait"),
)
SENT = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
    *("barrier", "halo_exchange", "halo_reduce", "exchange", "exchange_reduce", "all_to_all_v", "send", "recv"),
)


def test_the_closed_list_of_kinds_is_that_of_the_two_tables():
    assert set(KINDS) == {*LOCAL, *SENT}
    assert set(MESSAGES) == set(SENT) and set(COLLECTIVES) == set(SENT) - {"send", "recv"}
    assert {kind for kind, known in KINDS.items() if known.message is not None} == set(SENT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_run_or_asked_for_and_not_both(kind):
    known = KINDS[kind]
    assert known.kind == kind and (known.run is None) == bool(known.asks)
    assert known.class_name or kind == "compute"
    differentiated = (
        kind in ("compute", "slice", "reshape", "accumulate", "branch") or known.message and known.message.adjoint
    )
    assert (known.vjp is not None) == bool(differentiated)


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_collective_says_all_that_its_readers_need(kind):
    known = MESSAGES[kind]
    assert known.reply and known.answer is not None and known.class_name
    assert {known.cut, known.join} - {""} <= set(known.attributes)
    assert known.formula is not None or known.piecewise
    assert known.sender in ("all", "root", "") and known.receiver in ("all", "root", "")
    if known.adjoint:
        assert MESSAGES[known.adjoint].adjoint == kind and "{name!r}" in known.why


@pytest.mark.parametrize("kind", [k for k in COLLECTIVES if MESSAGES[k].adjoint and not MESSAGES[k].piecewise])
def test_an_adjoint_brings_back_the_shape(kind):
    known, attrs = MESSAGES[kind], {"dim": 1, "split_dim": 0, "concat_dim": 1, "reduce": "sum", "root": 2}
    back = known.adjoint_attrs(attrs)
    assert MESSAGES[known.adjoint].reply_shape(known.reply_shape((8, 12), attrs, 4), back, 4) == (8, 12)


# ---- adding a collective: its definition; then shared memory and MPI move its bytes ----


def _shifted(values, attrs):
    return [np.array(values[i - 1], order="C") for i in range(len(values))]


SHIFT = CollectiveDef(
    "shift",
    "Shift",
    "rank i: the value of the rank before it",
    answer=_shifted,
    algorithm="ring",
    formula=formula(of_n(lambda n: 1, "1"), of_n(lambda n: 1, "S"), "α + S·β"),
    payload=of_n(lambda n: 1, "m"),
)


@pytest.fixture
def shift(monkeypatch):
    monkeypatch.setitem(MESSAGES, "shift", SHIFT)
    monkeypatch.setitem(KINDS, "shift", kinds.kind_of_message(SHIFT))


def test_a_new_collective_is_answered_and_priced_from_its_definition_alone(shift):
    values = [np.arange(3.0) + 10 * r for r in range(4)]

    def program(rank):
        mine = yield Request("shift", (0, 1, 2, 3), values[rank])
        return mine

    found = simulate([program(r) for r in range(4)])
    assert [x.tolist() for x in found] == [values[r - 1].tolist() for r in range(4)]
    with pytest.raises(CollectiveMismatch, match="shift"):
        answer([Request("shift", (0, 1), values[0]), Request("shift", (0, 1), values[1][:2])])
    assert message_time_s("shift", 1000, 4, Link(1e-6, 1e-9)) == pytest.approx(1e-6 + 1000e-9)


def _with_shift(draft):
    """A pass that hands each rank's loss on to the next: the plan has an instruction of the new kind."""
    values, loss = draft.value_table(), draft.outputs[0]
    values["shifted"] = Value((), values[loss].dtype, values[loss].layout)
    instr = Instr(
        "shift", ("shifted",), (loss,), "loss", attrs=attr_pairs({"fusion": 0}), axes=(0,), device_matrix=(8,)
    )
    return draft.with_program("forward", (*draft.program("forward"), instr), values).noted("shift", "one more message")


def test_a_plan_with_a_new_collective_is_checked_written_priced_and_run(shift):
    net = Quick(32, 16, 16, ((2, 4), (4, 1)))
    x, y = np.ones((16, 32)), np.zeros((16, 16))
    passes = [*PASSES, ("shift", _with_shift)]
    plan = compile(net, x, y, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch", passes=passes)
    instr = next(i for _, i in plan.instructions("forward") if i.kind == "shift")
    assert class_name(instr) == "Shift" and "= Shift(" in plan.text()
    link = get_cluster("laptop").link_for(range(8))
    assert instr_time_s(plan, instr, get_cluster("laptop")) == pytest.approx(link.time_s(8))
    sim = Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()})
    sim.begin(x, y)
    while (tick := sim.next_instruction()) is not None and tick.instr.out != "shifted":
        pass
    assert sim.value("shifted", 3) == sim.value(plan.outputs[0], 2)


# ---- adding a kind of local work: a pass, and its KindDef ----


def test_a_new_kind_of_local_work_is_run_and_priced_from_its_definition_alone(monkeypatch):
    double = KindDef(
        "double",
        "Double",
        lambda on, instr: combine([on.env[instr.ins[0]]] * 2, "sum"),
        touched=lambda plan, instr: 2 * plan.value(instr.out).slice_bytes,
    )
    monkeypatch.setitem(KINDS, "double", double)

    def doubled(draft):
        values, loss = draft.value_table(), draft.outputs[0]
        values["twice"] = values[loss]
        program = (*draft.program("forward"), Instr("double", ("twice",), (loss,), "loss"))
        return draft.with_program("forward", program, values).noted("double", "the loss, doubled")

    net, x, y = Quick(32, 16, 16, ((2, 4), (4, 1))), np.ones((16, 32)), np.zeros((16, 16))
    options = {"loss": nn.MSELoss(), "device_num": 8, "dataset_strategy": "full_batch"}
    plan = compile(net, x, y, **options, passes=[*PASSES, ("double", doubled)])
    sim = Simulator(plan, {p.name: p.asnumpy() for p in net.get_parameters()})
    sim.begin(x, y)
    while (tick := sim.next_instruction()) is not None and tick.instr.out != "twice":
        pass
    assert sim.value("twice", 5) == 2 * sim.value(plan.outputs[0], 5)
    assert "Double(" in plan.text() and repr(tick).startswith("forward")
    cluster = get_cluster("laptop")
    device = cluster.device
    expected = 16 / device.memory_bandwidth_bytes_per_s + device.overhead_s
    assert instr_time_s(plan, tick.instr, cluster) == pytest.approx(expected)
