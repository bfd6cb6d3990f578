"""Pipeline stages: losses and parameters equal those of one device that is fed the same micro-batches, whatever else is
set; what cannot flow is refused."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.graph.plan import Plan
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.graph.drawn_plans import Case, Stack, compiled, data, staged

SIZE = 8


def planned(stages, devices, parts=4, optimizer="adam", rows=16, **settings):
    """Plan, network and optimizer: blocks on these stages, between two products with one table."""
    case = Case(blocks=len(stages), tied=True, devices=devices, optimizer=optimizer, rows=rows, micro_batches=parts)
    case.stages, case.settings = (stages if any(stages) else ()), settings
    return compiled(case)


def batch(rows=16):
    return data(Case(rows=rows))


def trained(*args, steps=3, pool=None, **settings):
    """Losses and parameters."""
    plan, net, optimizer = planned(*args, **settings)
    ranks = {} if pool is None else {"executor": "processes", "pool": pool}
    with Session(plan, net, optimizer, **ranks) as session:
        return session.train([batch()], steps), session.parameters()


def assert_equal(found, want, exact=False):
    np.testing.assert_allclose(found[0], want[0], rtol=0 if exact else 1e-10)
    for name, value in want[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=0 if exact else 1e-10, err_msg=name)


SHARDED = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
LAYOUTS = {
    "two": ((0, 0, 1, 1), {}),
    "four": ((0, 1, 2, 3), {}),
    "chunks": ((0, 1, 0, 1), {"pipeline_interleave": True}),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_replicas_losses_have_the_bits_of_one_device(layout):
    """A tied table's gradients are added up per stage first; losses of the first step know nothing of that."""
    stages, how = LAYOUTS[layout]
    found, want = (trained(s, max(s) + 1, steps=1, **h) for s, h in ((stages, how), ((0,) * 4, {})))
    assert found[0] == want[0]
    for name in want[1].keys() - {"table"}:
        np.testing.assert_array_equal(found[1][name], want[1][name])


class Skips(nn.Cell):
    """Layers in a row with sums outside of them; the first sum reads the layer behind the next one's."""

    def __init__(self, stages, cut):
        super().__init__()
        pl.set_seed(5)
        self.layers = nn.CellList([nn.Dense(SIZE, SIZE, dtype="float64") for _ in range(4)])
        for layer, stage in zip(self.layers, stages, strict=True):
            layer.pipeline_stage = stage
            if cut is not None:
                layer.matmul.shard(cut)

    def construct(self, x):
        first, early, late, last = self.layers
        x = ops.tanh(first(x))
        far = late(x)  # a later stage reads x before an earlier one does
        return x + last(ops.tanh(early(x)) + far)


@each_of(
    ("stages", "schedule", "cut"),
    pytest.param((0, 1, 1, 0), "zero_bubble_v", None, marks=pytest.mark.exhaustive),
    pytest.param((0, 1, 1, 0), "zero_bubble_v", ((1, 1), (2, 1)), marks=pytest.mark.exhaustive),
    pytest.param((0, 1, 2, 3), "1f1b", ((1, 2), (1, 2)), marks=pytest.mark.exhaustive),
    ((0, 1, 2, 3), "1f1b", ((1, 1), (2, 1))),
)
def test_sums_without_a_stage_follow_their_last_operand_and_stages_share_what_a_later_one_read_first(
    stages, schedule, cut
):
    """A V was refused: the sum went to the stage with the larger number, from which no data comes back. The slices that
    the layer called first needs were made on its stage, and an earlier one waited for them for ever."""

    def run(devices, stages=(0,) * 4, cut=None, **how):
        net = Skips(stages, cut)
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        x = np.random.default_rng(2).standard_normal((16, SIZE))
        how |= {"device_num": devices, "grad_accumulation_step": 4, "dataset_strategy": "full_batch"}
        plan = pl.compile(net, x, x[::-1], loss=nn.MSELoss(), optimizer=optimizer, **how)
        with Session(plan, net, optimizer) as session:
            return session.train([(x, x[::-1])], 3), session.parameters()

    count = max(stages) + 1
    assert_equal(run(2 * count, stages, cut, pipeline_stages=count, schedule=schedule), run(1))


def test_a_rank_has_the_parameters_and_states_of_its_stage_only():
    plan, net, _ = planned((0, 0, 1, 1), 4)
    held = [{p.name for p in plan.parameters if plan.held_by(p.name, rank)} for rank in range(4)]
    assert held[0] == held[1] and held[2] == held[3]
    assert held[0] & held[2] == set() and held[0] | held[2] == {p.name for p in net.get_parameters()}
    assert "table" in held[0] and all(f".{i}." in name for name in held[2] for i in [2 if ".2." in name else 3])
    moments = {s.name: s.parameter for s in plan.states if s.parameter}
    assert all(plan.held_by(s, 2) == (p in held[2]) for s, p in moments.items())


def test_every_border_is_crossed_once_per_micro_batch_each_way():
    """Rank r talks to r + 2; the table goes over and its gradient comes back once a step, the loss goes to all."""
    plan = planned((0, 0, 1, 1), 4)[0]
    assert Plan.from_dict(plan.to_dict()) == plan
    first, second = plan.stages
    started = [[i for a in s.actions for _, i in s.part(a) if i.kind == "start"] for s in (first, second)]
    sent, taken = ([[i for i in mine if i.message == kind] for mine in started] for kind in ("send", "recv"))
    assert [len(s) for s in sent] == [4 + 1, 4 + 2] and [len(t) for t in taken] == [4 + 2, 4 + 1]
    assert {i.group(1) for i in sent[0]} == {(1, 3)} and {i.group(3) for i in sent[1]} == {(3, 1)}
    assert {i.group(3) for i in taken[1]} == {(1, 3)}
    assert "is made on stage 0, and read on stage 1" in plan.text(rank=2)


def test_the_wait_of_a_border_names_the_ranks_of_its_message():
    """Of (source, destination): the wait for a send of rank 0 once named ranks -1 and 0."""
    for stage in planned((0, 0, 1, 1), 2)[0].stages:
        instrs = [i for a in stage.actions for _, i in stage.part(a) if i.attr("shift") is not None]
        started = {i.out: i.group(stage.first) for i in instrs if i.kind == "start"}
        assert set(started.values()) == {(0, 1), (1, 0)}
        assert started == {i.ins[0]: i.group(stage.first) for i in instrs if i.kind == "wait"}


def test_borders_are_started_early_and_waited_for_late():
    """A send directly behind what makes its value, its wait at the end of the action; a recv at the beginning, its wait
    directly before the first reader."""
    checked = 0
    for stage in planned((0, 0, 1, 1), 2)[0].stages:
        for action in stage.actions:
            part = [instr for _, instr in stage.part(action)]
            kinds = [f"{i.kind} {i.attr('message')}" for i in part]
            assert not {"send", "recv"} & {i.kind for i in part}
            starts = [i for i in part if i.message]
            recvs = [i for i in starts if i.message == "recv"]
            assert part[: len(recvs)] == recvs
            assert kinds.count("wait send") == len(starts) - len(recvs)
            assert all(kind == "wait send" for kind in kinds[len(kinds) - kinds.count("wait send") :])
            waits = {i.ins[0]: n for n, i in enumerate(part) if i.kind == "wait"}
            for at, instr in enumerate(part):
                if instr.message == "send" and instr.once != "first":  # the table is there before all
                    assert instr.ins[0] in next(i for i in part[at::-1] if i.message != "send").kept
                elif instr.message == "recv":
                    arrived = part[waits[instr.out]]
                    behind = next((i for i in part[waits[instr.out] + 1 :] if i.kind != "wait"), None)
                    assert behind is None or arrived.out in behind.ins or action.kind == "update"
                    checked += 1
    assert checked >= 8


def test_the_order_of_work_is_the_schedules():
    def orders(**settings):
        return [" ".join(map(str, s.actions)) for s in planned((0, 0, 1, 1), 2, **settings)[0].stages]

    assert orders() == ["0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3 0update0", "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 0update0"]
    assert orders(pipeline_scheduler="gpipe")[1] == "1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3 0update0"


@each_of(
    ("stages", "settings", "words"),
    ((0, 1, 0, 1), {}, "stage 0, and it reads '.*' of stage 1.*pipeline_interleave"),
    ((0, 0, 1, 1), {"parts": 1}, "is fed no micro-batches, with pipeline_stages=2"),
    ((0, 1, 2, 3), {"parts": 2}, "is fed 2 micro-batches, with pipeline_stages=4"),
    ((0, 0, 1, 1), {"pipeline_stages": 4}, r"are on stages \[0, 1\], with pipeline_stages=4"),
)
def test_what_cannot_flow_is_refused(stages, settings, words):
    with pytest.raises(pl.StrategyError, match=words):
        planned(stages, 4, **settings)


def test_a_network_that_predicts_needs_no_micro_batches():
    """Its stages run one after the other; the last one has the result, or all of them if that is asked for."""
    x, shape = batch()[0], (4, True, True, True, False, "float64")
    want = Stack(*shape).set_train(False)(pl.Tensor(x)).asnumpy()
    for told in (False, True):
        net = staged(Stack(*shape), (0, 1, 2, 3)).set_train(False)
        how = {"pipeline_stages": 4, "device_num": 4, "pipeline_result_broadcast": told}
        plan = pl.compile(net, x, dataset_strategy="full_batch", **how)
        with Session(plan, net) as session:
            np.testing.assert_array_equal(session.outputs(x)[0], want)
        assert [plan.held_by(plan.outputs[0], rank) for rank in range(4)] == [told, told, told, True]


def test_stages_of_cells_say_nothing_where_there_is_one_stage():
    plan = planned((0, 1, 2, 3), 1, pipeline_stages=1)[0]
    assert len(plan.stages) == 1 and not any(i.kind in ("send", "recv") for _, i in plan.instructions())


@pytest.mark.parametrize("mode", ["data_parallel", "hybrid_parallel"])
def test_stages_split_operators(mode):
    with pytest.raises(RuntimeError, match=f"pipeline_stages=2 in {mode} mode"):
        planned((0, 0, 1, 1), 4, parallel_mode=mode)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("layout", "width", "settings"), [("two", 1, {}), ("four", 2, {}), ("two", 4, SHARDED)])
def test_backward_in_two_programs_has_the_same_bits(layout, width, settings):
    stages = LAYOUTS[layout][0]
    ranks = width * (max(stages) + 1)
    want = trained(stages, ranks, steps=1, **settings)
    settings = {**settings, "schedule": "zb_h1"}
    found = trained(stages, ranks, steps=1, **settings)
    assert found[0] == want[0]
    for name in want[1].keys() - {"table"}:  # two stages read it: their sums are added when all micro-batches are done
        np.testing.assert_array_equal(found[1][name], want[1][name])
    np.testing.assert_allclose(found[1]["table"], want[1]["table"], rtol=0, atol=1e-12)
    plan = planned(stages, ranks, **settings)[0]
    for stage in plan.stages:
        programs = dict(stage.programs)
        sent = [i for i in programs["backward"] if i.message == "send"]
        assert len(sent) == (stage.first > 0) and not any(i.kind == "accumulate" for i in programs["backward"])
        products = [i for i in programs["weights"] if i.op == "matmul"]
        assert products and all(i.once == "" for i in products)


@pytest.mark.quick(1)
@pytest.mark.parametrize("frozen", [("blocks.1", "blocks.2"), ("blocks.3",), ("table",)])
def test_later_stages_may_hold_parameters_that_are_not_trained(frozen):
    """Gradients go through them; stage 0 has to train something."""

    def run(stages, ranks):
        net = staged(Stack(4, True, True, True, False, "float64"), stages)
        for p in net.get_parameters():
            p.requires_grad = not p.name.startswith(frozen)
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        how = {"device_num": ranks, "pipeline_stages": max(stages) + 1, "grad_accumulation_step": 4}
        plan = pl.compile(
            net, *batch(), loss=nn.CrossEntropyLoss(), optimizer=optimizer, dataset_strategy="full_batch", **how
        )
        with Session(plan, net, optimizer) as session:
            return session.train([batch()], 2), session.parameters()

    assert_equal(run((0, 1, 2, 3), 8), run((0,) * 4, 1))


OUT_OF = {"1f1b": (0, 1, 2, 3), "zb_h1": (0, 1), "zero_bubble_v": (0, 1, 1, 0), "chimera": (0, 1), "dualpipe": (0, 1)}


@pytest.mark.quick(1)
@pytest.mark.parametrize("schedule", OUT_OF)
def test_the_outputs_of_a_plan_that_trains_are_the_loss_of_its_next_step(schedule):
    """As on one device, before and after a step; nothing is trained by them."""
    assert_outputs_are_losses(schedule)


def assert_outputs_are_losses(schedule, **ranks):
    stages = OUT_OF[schedule]
    plan, net, optimizer = planned(stages, 4, schedule=schedule)
    one, *alone = planned((0,) * len(stages), 1)
    with Session(plan, net, optimizer, **ranks) as session, Session(one, *alone) as single:
        for _ in range(2):
            before = session.parameters()
            (loss,), (again,), (want,) = (s.outputs(*batch()) for s in (session, session, single))
            np.testing.assert_allclose([loss, again], want, rtol=1e-12)
            assert all(np.array_equal(before[name], value) for name, value in session.parameters().items())
            assert session.train([batch()], 1) == pytest.approx([float(loss)], rel=1e-12)
            single.train([batch()], 1)


def test_predictions_after_training_in_stages_come_from_a_plan_of_their_own():
    """The plan that trains gives the loss; asked for a prediction it says how to get one, which equals one device."""
    plan, net, optimizer = planned((0, 1), 4)
    x, _ = batch()
    with Session(plan, net, optimizer) as session:
        session.train([batch()], 2)
        with pytest.raises(pl.ShapeError, match=r"the plan's output is the loss.*session.parameters\(\)"):
            session.outputs(x)
        found = session.parameters()
    how = {"pipeline_stages": 2, "device_num": 4, "dataset_strategy": "full_batch"}
    with Session(pl.compile(net.set_train(False), x, **how), found) as predicting:
        (got,) = predicting.outputs(x)
    alone = Stack(2, True, True, True, False, "float64").set_train(False)
    for p in alone.get_parameters():
        p.set_data(pl.Tensor(found[p.name]))
    np.testing.assert_allclose(got, alone(pl.Tensor(x)).asnumpy(), rtol=1e-12)


def test_outputs_drop_the_values_that_backward_would_have_read():
    """A forward alone holds no more than its inputs and what it is about to read."""
    plan, net, optimizer = planned((0, 1), 2)
    with Session(plan, net, optimizer) as session:
        session.outputs(*batch())
        left = {name for env in session._simulator.envs for name in env if isinstance(name, tuple)}
        assert left <= {(i.name, n) for i in plan.graph.inputs for n in range(plan.micro_batches)}


def test_phases_of_a_plan_in_stages_are_refused():
    plan, net, optimizer = planned((0, 1), 2)
    with Session(plan, net, optimizer) as session:
        with pytest.raises(pl.ParallelLabError, match=r"phases=\('forward',\) in 2 pipeline stages"):
            session.train([batch()], 1, phases=("forward",))
        assert len(session.train([batch()], 1)) == 1
