"""The Pipeline Lab without a widget: its clock and memory, drawing by hand, waits, runs that execute what was drawn."""

from __future__ import annotations

import random

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.units import time_text
from parallel_lab.cost.memory import predict_memory
from parallel_lab.cost.schedules import make_schedule, schedule_names
from parallel_lab.cost.schedules.order import KINDS
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.pipeline import code as pipeline_code
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.pipeline.sections import percent
from parallel_lab.lab.pipeline.settings import cells_of
from parallel_lab.lab.pipeline.subjects import get_subject, layers_of
from parallel_lab.lab.pipeline.waits import gaps
from parallel_lab.processes.shm import close_all
from tests.crossed import each_of

# ---- predicted ----


@each_of(
    ("stages", "micro_batches", "schedule", "chunks", "makespan", "peaks"),
    (4, 8, "1f1b", 1, 33, (4, 3, 2, 1)),
    (4, 8, "gpipe", 1, 33, (8, 8, 8, 8)),
    (8, 16, "1f1b", 1, 69, (8, 7, 6, 5, 4, 3, 2, 1)),
    (4, 8, "zb_h1", 1, 27, (4, 4, 4, 4)),
    (4, 8, "interleaved", 2, 57 / 2, (11, 9, 7, 5)),
    (4, 4, "chimera", 1, 16, None),
)
def test_times_and_memory_of_the_literature(stages, micro_batches, schedule, chunks, makespan, peaks):
    """F = B = W = 1 of a whole stage; parts x micro-batches kept (Narayanan 2021, Qi 2024, Li and Hoefler 2021)."""
    lab = PipelineLab("stack", stages, micro_batches, schedule, chunks)
    assert lab.makespan == pytest.approx(makespan) and lab.complete and not lab.faults
    assert peaks is None or lab.peaks == peaks
    assert lab.bubble == pytest.approx(1 - 3 * micro_batches / makespan)


@pytest.mark.quick(1)
@pytest.mark.parametrize("schedule", schedule_names())
def test_every_named_schedule_is_offered_and_shown(schedule):
    lab = PipelineLab("gpt", stages=2, micro_batches=8, schedule=schedule)
    assert lab.complete and not lab.faults and lab.snapshot()["schedule"]["value"] == schedule
    assert schedule in lab.to_text() and "predicted" in lab.to_text()


def test_latency_costs_gpipe_two_ways_through_the_pipeline():
    lab = PipelineLab(stages=4, micro_batches=8, schedule="gpipe")
    lab.set_latency(0.5)
    assert lab.makespan == pytest.approx(33 + 2 * 3 * 0.5)


def test_times_are_those_of_a_whole_stage():
    """Two parts on a rank take half each, so that the same network is compared: (p - 1)(F + B) / v idle."""
    lab = PipelineLab(stages=4, micro_batches=8, schedule="interleaved", times=(2, 3, 1))
    assert lab.settings.chunks == 2
    assert lab.makespan == pytest.approx(8 * 6 + 3 * 6 / 2)


def test_recomputing_takes_a_forward_more_and_keeps_less():
    lab = PipelineLab(stages=4, micro_batches=8, schedule="1f1b", cap=3)
    assert [fault.kind for fault in lab.faults] == ["memory"] and "no memory for 0F3" in lab.faults[0].text
    lab.set_recompute([0, 1, 2, 3])
    assert lab.makespan == 33 + 11  # every backward runs its forward again: (m + p - 1) of them on the way
    assert not lab.faults and lab.peaks[0] == pytest.approx(3 * 0.5 + 1)
    lab.toggle_recompute(0)
    assert lab.settings.recompute == (1, 2, 3) and [fault.rank for fault in lab.faults] == [0]


# ---- waits ----


def test_a_bubble_says_what_it_waits_for():
    lab = PipelineLab(stages=4, micro_batches=8)
    text = lab.why(3, 0)
    assert text.startswith("Rank 3 waits 3, from 0 to 3, before 3F0, for 2F0 of rank 2")
    assert text.index("2F0") < text.index("1F0 of rank 1") < text.index("0F0 of rank 0")
    assert lab.why(3, 1) == "" and lab.why(3, 99) == ""
    assert "nothing left to do" in lab.why(3, 16) and "0B7 of rank 0" in lab.why(3, 16)


@pytest.mark.quick(5)
@pytest.mark.parametrize("schedule", schedule_names())
@pytest.mark.parametrize("latency", [0, 0.5])
def test_every_chain_leads_back_to_where_the_wait_began(schedule, latency):
    """A link ends when the one before it begins (and its message has travelled), and the last began when the rank
    stopped working: the whole wait is accounted for."""
    lab = PipelineLab(stages=4, micro_batches=8, schedule=schedule, latency=latency)
    found = {(w[0], w[1]): w for w in lab.snapshot()["waits"]}
    spans = lab.settings.timed.spans
    assert set(found) == {gap[:2] for gap in gaps(lab.settings)} and found
    for (rank, position), (_, _, start, end, text, links) in found.items():
        assert text and links
        at, reader = (end, rank) if position < len(spans[rank]) else (None, rank)
        for other, place in links:
            begun, ended = spans[other][place]
            delay = latency if other != reader else 0
            assert at is None or ended + delay == pytest.approx(at)
            at, reader = begun, other
        assert at <= start + 1e-9


# ---- drawing ----


def built(lab):
    """The lab after its schedule was drawn anew, an action at a time, rank by rank in an order that can run."""
    wanted = cells_of(lab.schedule)
    lab.clear()
    for rank, cells in enumerate(wanted):
        for cell in cells:
            lab.put(rank, "+".join(map(str, cell)))
    return lab


@pytest.mark.quick(3)
@pytest.mark.parametrize("schedule", schedule_names())
def test_every_schedule_can_be_drawn_by_hand(schedule):
    named = PipelineLab(stages=2, micro_batches=4, schedule=schedule)
    lab = built(PipelineLab(stages=2, micro_batches=4, schedule=schedule))
    assert lab.schedule.text() == named.schedule.text() and lab.complete
    assert lab.makespan == named.makespan and lab.settings.name == "drawn"
    assert lab.snapshot()["schedule"]["value"] == "drawn"


def test_1f1b_under_a_cap_with_three_keys():
    """F, B and the order of 1F1B: what keyboard and palette do. With F = B = 1 the step takes 22 ticks, 3 / 11 idle."""
    lab = PipelineLab(stages=4, micro_batches=8, schedule="gpipe", times=(1, 1, 0), cap=4)
    assert lab.faults and lab.faults[0].kind == "memory"
    lab.clear()
    assert lab.left_to_do(0) == ["0F0", "0B0"] and not lab.complete and not lab.faults
    for rank in range(4):
        warm = 3 - rank
        for kind in "F" * warm + "FB" * (8 - warm) + "B" * warm:
            lab.put_next(rank, kind)
    assert lab.complete and lab.makespan == 22 and lab.bubble == pytest.approx(3 / 11) and max(lab.peaks) == 4
    assert lab.schedule.ranks == make_schedule("1f1b", 4, 8).ranks


@pytest.mark.quick(1)
@pytest.mark.parametrize("schedule", schedule_names())
def test_nothing_is_drawn_that_its_own_rank_could_never_do(schedule):
    """Not: Clear all, +B, and +F is refused then. And no W where its time is 0, drawn, offered or found."""
    lab = PipelineLab(stages=4, micro_batches=8, schedule=schedule)
    lab.clear()
    for rank, parts in enumerate(lab.schedule.holds):
        for part in parts:
            for early, needed in (("B", "F"), ("W", "B")):
                for command in (("put", rank, f"{part}{early}0"), ("put_next", rank, early)):
                    with pytest.raises(
                        ArgumentError, match=rf"{early}\d needs \d{needed}\d, which rank {rank} has not done"
                    ):
                        getattr(lab, command[0])(*command[1:])
        turn = next((k for k in parts if k - 1 in parts and k in (4, 5)), None)
        if turn and not lab.settings.two_copies:  # a V's last rank: its forward comes from the rank's own other part
            with pytest.raises(ArgumentError, match=f"{turn}F0 needs {turn - 1}F0, which rank {rank} has not done"):
                lab.put(rank, f"{turn}F0")
    assert not any(lab.schedule.ranks)
    lab.set_times(1, 1, 0)
    assert not [name for rank in range(4) for name in lab.left_to_do(rank) if "W" in name]
    lab.put(0, f"{lab.schedule.holds[0][0]}F0")
    with pytest.raises(ArgumentError, match="W takes no time here"):
        lab.put(0, f"{lab.schedule.holds[0][0]}W0")
    if not lab.settings.two_copies:
        lab.search()
        assert lab.complete and not lab.schedule.splits_backward


@pytest.mark.parametrize(("name", "last"), [("1f1b", "1B1"), ("zb_h1", "1W1")])
def test_a_schedule_that_is_not_complete_names_what_is_missing(name, last):
    """Backwards that are not divided owe no weight gradients: not "Next of rank 0: 0W0"."""
    lab = PipelineLab(stages=2, micro_batches=2, schedule=name)
    assert lab.schedule.text().endswith(f" {last}")
    lab.load(lab.schedule.text().removesuffix(f" {last}"))
    with pytest.raises(ArgumentError, match=rf"1 action is still to draw. Next of rank 1: {last}\.$"):
        lab.compiled()
    assert lab.snapshot()["sections"]["left"]["notes"] == [f"rank 1: {last}"]


def test_an_order_for_which_there_is_no_memory_is_refused_with_what_the_rank_keeps():
    lab = PipelineLab(stages=4, micro_batches=8, cap=4)
    with pytest.raises(ArgumentError, match=r"no memory for 0F3: rank 0 keeps 4 of 4 \(0F0, 0F1, 0F2, 0F4\)"):
        lab.move(0, 5, 3)


def test_a_circle_of_waits_is_refused():
    """Rank 0 would wait with F1 for B0 to come back, and rank 1 with B0 for F1."""
    lab = PipelineLab(stages=2, micro_batches=2, schedule="gpipe")
    with pytest.raises(ArgumentError, match="deadlock: rank 0 waits, before 0B0, for 1B0 of rank 1; rank 1 waits"):
        lab.move(0, 2, 1)


def test_an_action_goes_to_another_rank_only_where_its_part_lies_too():
    lab = PipelineLab(stages=4, micro_batches=8)
    with pytest.raises(ArgumentError, match=r"0F4 cannot run here: part 0 lies on rank 0, rank 1 has 1.*load one as"):
        lab.move_onto(0, 5, 1, 2)
    with pytest.raises(ArgumentError, match="rank 4"):
        lab.move_onto(0, 5, 4, 2)
    with pytest.raises(ArgumentError, match="to 17"):
        lab.move_onto(0, 5, 1, 17)
    twice = PipelineLab(stages=4, micro_batches=8, schedule="dualpipe")
    with pytest.raises(ArgumentError, match="0B0 needs what 0F0 kept, which ran on rank 3: do both on one rank"):
        twice.move_onto(0, 0, 3, 0)
    twice.clear()
    twice.put(0, "0F0")
    twice.move_onto(0, 0, 3, 0)
    assert [[str(a) for a in lane] for lane in twice.schedule] == [[], [], [], ["0F0"]]


def test_a_lane_that_is_gone_leaves_others_waiting_and_says_so():
    lab = PipelineLab(stages=2, micro_batches=2)
    lab.clear_rank(1)
    assert not lab.complete and not lab.faults
    assert lab.snapshot()["lanes"][0]["pending"]
    assert lab.why(0, 2) == f"Rank 0 stops at 2: {lab.schedule[0][2]} cannot run, as no rank has 1B0 yet."
    with pytest.raises(ArgumentError, match="4 actions are still to draw"):
        lab.run_simulated()


def test_undo_and_redo_go_through_everything_that_was_set():
    lab = PipelineLab(stages=4, micro_batches=8)
    shown = [lab.settings]
    for command, arguments in (("set_cap", (8,)), ("move", (0, 4, 5)), ("set_schedule", ("gpipe",)), ("clear", ())):
        getattr(lab, command)(*arguments)
        shown.append(lab.settings)
    for settings in reversed(shown[:-1]):
        lab.undo()
        assert lab.settings == settings
    lab.undo()
    for settings in shown[1:]:
        lab.redo()
        assert lab.settings == settings
    assert not lab.snapshot()["can_redo"]


@pytest.mark.parametrize("form", ["text", "csv"])
def test_schedules_go_out_as_text_and_come_back(form):
    drawn = PipelineLab(stages=4, micro_batches=8, schedule="zb_h1")
    drawn.move(3, 3, 4)
    lab = PipelineLab(stages=4, micro_batches=8, schedule="gpipe")
    lab.load(drawn.schedule.text() if form == "text" else drawn.schedule.to_csv())
    assert lab.schedule.ranks == drawn.schedule.ranks and lab.makespan == drawn.makespan


def test_a_text_that_cannot_run_is_marked_where_it_is_wrong():
    lab = PipelineLab(stages=2, micro_batches=2)
    lab.load("0B0 0F0 0F1 0B1\n1F0 1B0 1F1 1B1")
    assert lab.snapshot()["lanes"][0]["faults"][0][0] == 0 and "cannot run" in lab.snapshot()["status"]
    with pytest.raises(ArgumentError, match="this schedule cannot run: action 0 of rank 0"):
        lab.run_measured()
    for text, reason in (("0F0", "1 rank"), ("0F0 huh\n1F0", "line 1, column 5"), ("0F7\n1F0", "micro-batch 7")):
        with pytest.raises(ArgumentError, match=reason):
            lab.load(text)


def test_the_search_keeps_the_cap_and_is_no_worse_than_zb_h1():
    lab = PipelineLab(stages=4, micro_batches=8, cap=4)
    lab.search()
    assert lab.complete and not lab.faults and lab.makespan <= 27
    with pytest.raises(ArgumentError, match="lie in an order"):
        PipelineLab(stages=4, micro_batches=8, schedule="chimera").search()


# ---- runs ----


@pytest.fixture
def workers():
    yield
    close_all()


def shuffled(lab, seed, moves=60):
    """The lab after the legal ones among random moves."""
    draw, done = random.Random(seed), 0
    for _ in range(moves):
        rank = draw.randrange(lab.settings.stages)
        count = len(lab.schedule[rank])
        before = lab.schedule
        try:
            lab.move(rank, draw.randrange(count), draw.randrange(count))
        except ArgumentError:
            assert lab.schedule is before
        else:
            done += 1
    assert done
    return lab


@pytest.mark.quick(0)
@pytest.mark.parametrize(("net", "schedule"), [*(("stack", name) for name in schedule_names()), ("gpt", "zb_h1")])
def test_what_was_drawn_is_what_ranks_run(net, schedule):
    """A shuffled schedule, simulated: every rank does its actions in the order drawn."""
    lab = shuffled(PipelineLab(net, 2, 4, schedule), 3)
    lab.run_simulated(2)
    assert lab.wait(120) and lab.snapshot()["run"]["error"] is None
    ran = [[one.name for one in lane] for lane in lab.results["simulated"].lanes]
    assert ran == [[str(action) for action in lane] for lane in lab.schedule]
    shown = lab.snapshot()["ran"]["simulated"]
    assert shown["span"] * shown["tick_s"] == pytest.approx(lab.results["simulated"].step_s)
    assert 0 <= lab.results["simulated"].bubble < 1


@pytest.mark.quick(0)
@pytest.mark.parametrize("net", ["stack", "gpt"])
def test_what_recomputed_parts_keep_is_the_share_that_the_lab_draws(net):
    """Bytes per micro-batch, from two numbers of them: on a stage in the middle, which has no loss and no table."""

    def bytes_of(micro_batches, recompute):
        lab = PipelineLab(net, 3, micro_batches, "gpipe")
        lab.set_recompute(recompute)
        return lab.settings, predict_memory(lab.compiled(), rank=1).activations_bytes

    kept, again = (bytes_of(6, which)[1] - bytes_of(4, which)[1] for which in ((), (1,)))
    assert again / kept == pytest.approx(bytes_of(4, (1,))[0].share_of(1))


@pytest.mark.parametrize("change", [None, ("move", 3, 3, 4)])
def test_the_code_in_our_words_compiles_the_schedule_that_is_shown(change):
    lab = PipelineLab(stages=4, micro_batches=8, schedule="zb_h1")
    if change:
        getattr(lab, change[0])(*change[1:])
    job = get_subject("stack").job(4, 8)
    net = job.make(layers_of(4), "one")
    given = {"net": net, "x": job.batches[0][0], "y": job.batches[0][1], "loss": job.loss()}
    given["optimizer"] = job.optimizer(net.trainable_params())
    exec(lab.snapshot()["sections"]["ours"]["text"], given)
    ran = [[str(a) for a in stage.actions if a.kind in KINDS] for stage in given["plan"].stages]
    assert ran == [[str(a) for a in lane] for lane in lab.schedule]


@pytest.mark.exhaustive
def test_a_drawn_schedule_on_workers_equals_one_device_bit_for_bit(workers):
    lab = shuffled(PipelineLab("stack", 2, 4, "zb_h1"), 5)
    lab.run_measured(3)
    assert lab.wait(120) and lab.snapshot()["run"]["error"] is None
    result = lab.results["measured"]
    assert all(row.verdict == "identical" for row in result.equality.rows)
    assert [[one.name for one in lane] for lane in result.lanes] == [list(map(str, lane)) for lane in lab.schedule]
    shot = lab.snapshot()
    assert shot["loss"]["steps"] == 3 and shot["loss"]["largest_difference"] == 0 == shot["loss"]["bound"]
    assert shot["loss"]["parallel"][-1] < shot["loss"]["parallel"][0]
    assert "all" in lab.to_text() and "equal bit for bit" in lab.to_text()
    lab.move(0, 0, 0)  # nothing changes, nothing is forgotten
    assert "measured" in lab.results
    measured = shot["loss"]["parallel"]
    lab.run_simulated()  # Guards against a simulation that threw away what the workers had trained
    assert lab.wait(120) and lab.results["measured"] is result
    assert lab.snapshot()["loss"]["parallel"] == measured
    lab.set_cap(9)
    assert lab.results == {}
    [earlier] = lab.snapshot()["earlier"]
    assert earlier["label"] == "drawn, stack, 2 stages, 4 micro-batches" and earlier["losses"] == measured
    assert [row[0] for row in lab.earlier[0].rows] == ["simulated", "measured"]
    loss = f"{measured[-1]:.4g} at step 3"
    assert lab.earlier[0].rows[1][1:] == (time_text(result.step_s), percent(result.bubble), loss)
    assert "Earlier runs" in lab.to_text() and lab.snapshot()["said"] == ""
    lab.run_measured(3)
    lab.set_schedule("gpipe")
    assert lab.snapshot()["said"] == f"the run before ({earlier['label']}) was ended by this change"
    lab.close()


@pytest.mark.exhaustive
def test_two_copies_equal_one_device_to_rounding(workers):
    lab = PipelineLab("stack", 2, 4, "chimera")
    lab.run_measured(2)
    assert lab.wait(120) and lab.snapshot()["run"]["error"] is None
    assert lab.results["measured"].equality.equal
    lab.close()


@pytest.mark.exhaustive
def test_a_strategy_inside_a_stage_has_a_lane_per_stage():
    lab = PipelineLab("gpt", 2, 4, strategy="inner")
    lab.run_simulated(2)
    assert lab.wait(120) and lab.snapshot()["run"]["error"] is None
    assert len(lab.results["simulated"].lanes) == 2 and lab.settings.devices == 4


def test_only_another_number_of_layers_compiles_for_the_programs(monkeypatch):
    compiled = []
    monkeypatch.setattr(
        pipeline_code, "compile_network", lambda *args, **how: compiled.append(1) or compile_network(*args, **how)
    )
    pipeline_code._compiled.cache_clear()
    lab = PipelineLab("stack", 2, 2)
    lab.snapshot()
    for stages, micro_batches, schedule in ((4, 2, "1f1b"), (4, 8, "gpipe"), (8, 8, "gpipe"), (2, 4, "interleaved")):
        lab.set_stages(stages)
        lab.set_micro_batches(micro_batches)
        lab.set_schedule(schedule)
        lab.snapshot()
    assert len(compiled) == 1  # 8 layers, whatever the parts are
    lab.set_stages(6)
    lab.set_schedule("gpipe")
    lab.snapshot()
    assert len(compiled) == 2  # 12
