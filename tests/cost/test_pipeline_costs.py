"""What pipelines are predicted to hold and to take: bytes as the interpreter finds them, times by the schedule."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import Simulator, nn
from parallel_lab.base import hooks
from parallel_lab.base.cluster import get_cluster
from parallel_lab.cost import predict_memory, predict_timeline, step_time_s
from parallel_lab.cost.schedules import Schedule, make_schedule
from parallel_lab.lab.memory.count import measured_ranks, predicted_ranks, simulated_ranks
from parallel_lab.processes.shm import close_all
from parallel_lab.train.session import Session, initial_values
from tests.graph.test_pipeline import LAYOUTS, SHARDED, batch, planned

CASES = {
    "two": (LAYOUTS["two"], 4, {}),
    "two, gpipe": (LAYOUTS["two"], 4, {"pipeline_scheduler": "gpipe"}),
    "chunks": (LAYOUTS["chunks"], 2, {}),
    "four, sharded": (LAYOUTS["four"], 8, SHARDED),
    "two copies": (LAYOUTS["two"], 2, {"schedule": "chimera"}),
    "two copies, divided backward": (LAYOUTS["two"], 4, {"schedule": "dualpipe"}),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_every_instruction_finds_the_predicted_bytes_on_every_rank(case):
    (stages, how), devices, settings = CASES[case]
    plan, net, optimizer = planned(stages, devices, parts=8, **how, **settings)
    simulator, held = Simulator(plan, initial_values(plan, net, optimizer)), {r: [] for r in range(devices)}
    numbers = {i.name for i in plan.graph.inputs if i.is_number} | set(plan.scalars)

    def look(rank, action, instr, *_):
        found = {
            (n if isinstance(n, str) else n[0], n): a
            for n, a in simulator.envs[rank].items()
            if isinstance(a, np.ndarray)
        }
        arrays = {(a.ctypes.data, a.nbytes) for (name, _), a in found.items() if name not in numbers and a.nbytes}
        held[rank].append((action.program, instr.out, sum(size for _, size in arrays)))

    simulator.run_step(*batch(), observe=look)
    for rank in range(devices):
        predicted = predict_memory(plan, rank=rank).timeline
        assert [(p.phase, p.name, p.total_bytes) for p in predicted] == held[rank]


# ---- every schedule that runs, counted where it runs ----

RUNS = ("gpipe", "1f1b", "eager_1f1b", "zb_h1", "zb_h2", "interleaved", "breadth_first")


def from_last_to_first(stages, micro_batches):
    """GPipe whose backwards run in the opposite order: every gradient waits for that of micro-batch 0."""
    forward = " ".join(f"{{0}}F{n}" for n in range(micro_batches))
    backward = " ".join(f"{{0}}B{n}" for n in reversed(range(micro_batches)))
    return Schedule.from_text("\n".join(f"{forward} {backward}".format(*[s]) for s in range(stages)))


def scheduled(monkeypatch, name, width=1, parts=8):
    """A compiled stack in four parts, on a schedule."""
    stages, how = LAYOUTS["chunks" if name in ("interleaved", "breadth_first") else "four"]

    def order(_, stages, micro_batches, chunks):
        drawn = name == "from last to first"
        made = from_last_to_first(stages, micro_batches) if drawn else make_schedule(name, stages, parts, chunks)
        return [list(lane) for lane in made]

    monkeypatch.setitem(hooks._from_above, "schedule_maker", order)
    return planned(stages, width * (max(stages) + 1), parts=parts, rows=4 * parts, **how)


@pytest.fixture
def workers():
    """Workers of the test: they end with it."""
    yield measured_ranks
    close_all()


def assert_counted(plan, counted):
    for here, there in zip(predicted_ranks(plan), counted, strict=True):
        assert [(p.phase, p.name, p.live) for p in there.timeline] == [(p.phase, p.name, p.live) for p in here.timeline]
        assert there.traffic == here.traffic


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [*RUNS, "from last to first"])
def test_simulated_ranks_hold_and_send_what_is_predicted_on_any_schedule(name, monkeypatch):
    plan, net, optimizer = scheduled(monkeypatch, name)
    assert_counted(plan, simulated_ranks(plan, initial_values(plan, net, optimizer), batch(32)))


@pytest.mark.quick(0)
@pytest.mark.parametrize("name", [*RUNS, "from last to first"])
def test_workers_hold_and_send_what_is_predicted_on_any_schedule(name, monkeypatch, workers):
    plan, net, optimizer = scheduled(monkeypatch, name)
    assert_counted(plan, workers(plan, initial_values(plan, net, optimizer), batch(32)))


def test_a_gradient_out_of_turn_is_held_until_its_turn(monkeypatch):
    """When the last backward begins, M - 1 of each gradient wait where in micro-batch order there is one sum."""
    parts, held = 8, []
    for name in ("from last to first", "gpipe"):
        plan = scheduled(monkeypatch, name, parts=parts)[0]
        timeline = [p for p in predict_memory(plan, rank=1).timeline if p.phase == "backward"]
        held.append([p for p in timeline if p.name == timeline[0].name][-1].total_bytes)
    size = sum(plan.value(g).slice_bytes for _, g in plan.gradients if plan.held_by(g, 1))
    assert size > 0 and held[0] - held[1] == (parts - 2) * size


WIDTH, LAYERS = 8, 3  # of each stage


class Products(nn.Cell):
    """A product and tanh, LAYERS times on each of four stages."""

    def __init__(self):
        super().__init__()
        sizes = {"has_bias": False, "activation": "tanh", "dtype": "float64"}
        self.layers = nn.CellList([nn.Dense(WIDTH, WIDTH, **sizes) for _ in range(4 * LAYERS)])
        for at, layer in enumerate(self.layers):
            layer.pipeline_stage = at // LAYERS

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def products(workers, scheduler, parts, rows=64):
    pl.set_seed(2)
    net, data = Products(), np.random.default_rng(1).standard_normal((2, parts * rows, WIDTH))
    how = {"pipeline_stages": 4, "grad_accumulation_step": parts, "pipeline_scheduler": scheduler}
    plan = pl.compile(net, *data, loss=nn.MSELoss(), device_num=4, dataset_strategy="full_batch", **how)
    return workers(plan, initial_values(plan, net, None), data)


@pytest.mark.quick(0)
@pytest.mark.parametrize("parts", [4, 8])
def test_workers_hold_less_by_the_formula_with_1f1b_than_with_gpipe(parts, workers):
    """Counted on processes: a micro-batch keeps a stage's input and the result of each tanh; stage s of S holds
    min(M, S - s) of them, and M with GPipe (Narayanan et al. 2021).
    """
    gpipe, ours = products(workers, "gpipe", parts), products(workers, "1f1b", parts)
    one = (LAYERS + 1) * 64 * WIDTH * 8
    grads = LAYERS * WIDTH * WIDTH * 8
    for stage in (1, 2):
        less = (parts - min(parts, 4 - stage)) * one
        assert gpipe[stage].most("activations") == parts * one
        assert gpipe[stage].most("activations") - ours[stage].most("activations") == less
        assert abs(gpipe[stage].peak_bytes - ours[stage].peak_bytes - less) <= grads  # their sums, with later ones
    assert ours[0].peak_bytes <= gpipe[0].peak_bytes and ours[3].peak_bytes < gpipe[3].peak_bytes


@pytest.mark.quick(1)
@pytest.mark.parametrize("parts", [4, 8])
def test_activations_are_those_of_the_micro_batches_in_flight(parts):
    """Stage s of S holds min(M, S - s) micro-batches with 1F1B and all M with GPipe (Narayanan et al. 2021)."""

    def held(scheduler, parts):
        plan = planned((0, 1, 2, 3), 4, parts=parts, pipeline_scheduler=scheduler, rows=8 * parts)[0]
        return [predict_memory(plan, rank=rank).parts["activations"] for rank in range(4)]

    gpipe, more = held("gpipe", parts), held("gpipe", 2 * parts)
    for stage, (now, then, ours) in enumerate(zip(gpipe, more, held("1f1b", parts), strict=True)):
        one = (then - now) // parts  # what a micro-batch adds; the rest is held once
        assert now - ours == (parts - min(parts, 4 - stage)) * one


def test_stages_work_at_the_same_time():
    """No stage ends before it has done its work and waited for the first micro-batch; sent messages take no time."""
    for scheduler in ("gpipe", "1f1b"):
        plan, cluster = planned((0, 1, 2, 3), 8, parts=8, pipeline_scheduler=scheduler)[0], get_cluster("laptop")
        timeline = predict_timeline(plan, cluster)
        work = [step_time_s(plan, cluster, rank=rank).compute_s for rank in (0, 2, 4, 6)]
        assert max(work) < timeline.end_s < sum(work)
        ends = {rank: max(e.end_s for e in timeline.log if e.rank == rank) for rank in range(8)}
        assert max(ends.values()) == timeline.end_s
        alone = predict_timeline(plan, cluster, ranks=())
        assert alone.end_s == pytest.approx(timeline.end_s, rel=1e-12) and not list(alone.log)


@pytest.mark.exhaustive
def test_a_recorded_step_has_every_action_of_every_rank():
    plan, net, optimizer = planned((0, 0, 1, 1), 4)
    with Session(plan, net, optimizer) as session:
        session.train([batch()], 1, record=1)
        events = list(session.events)
    want = predict_timeline(plan, get_cluster("laptop")).log
    seen, predicted = (
        {(e.rank, e.phase, e.micro_batch, e.name) for e in log if e.kind != "wait"} for log in (events, want)
    )
    assert seen == predicted and np.isfinite([e.end_s for e in events]).all()
