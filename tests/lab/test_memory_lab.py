"""The Memory Lab without a widget: the puzzle, the paper's table, commands and refusals, forms."""

import json
import math
import re

import pytest

from parallel_lab.base.errors import ArgumentError, OptimizerParallelError, ShapeError
from parallel_lab.base.units import bytes_text
from parallel_lab.cost import MEMORY_KINDS
from parallel_lab.lab.memory.count import MOMENTS, predicted_ranks, simulated_ranks
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.memory.puzzle import choices, find_par
from parallel_lab.lab.memory.sections import HOLDS, KINDS, changed_text
from parallel_lab.lab.memory.subjects import SUBJECTS, WIDTHS, Settings, get_subject
from parallel_lab.lab.memory.zero import parse_count, zero_table
from parallel_lab.lab.shared.jobs import STACK_LAYERS
from parallel_lab.nn.optim.weight_groups import GROUPED_OPTIMIZERS
from parallel_lab.train.session import initial_values
from tests.crossed import each_of

pytestmark = pytest.mark.timeout(120)

WIDTH = 64  # of the stack in these tests: 8 weights of 16 KiB


def state(lab):
    shot = lab.snapshot()
    shot.pop("run")
    return shot


# ---- the puzzle ----


@pytest.mark.quick(0)
@pytest.mark.parametrize(("devices", "optimizer", "capacity"), [(2, "SGD", 600_000), (4, "Adam", 1_000_000)])
def test_par_fits_as_counted_and_nothing_wider_does(devices, optimizer, capacity):
    given = Settings(devices, optimizer=optimizer)
    par = find_par(given, capacity)
    job = get_subject("stack").job(par.width)
    plan = job.compile(par.settings)
    ranks = simulated_ranks(plan, initial_values(plan, job.net, job.optimizer(optimizer)), job.batches[0])
    assert max(r.peak_bytes for r in ranks) == par.peak_bytes <= capacity
    assert par.parameters == STACK_LAYERS * par.width**2
    wider = get_subject("stack").job(par.width + WIDTHS.step)
    for settings in choices(given):
        try:
            assert max(r.peak_bytes for r in predicted_ranks(wider.compile(settings))) > capacity, settings
        except OptimizerParallelError:
            assert settings.level == "grouping" and optimizer not in GROUPED_OPTIMIZERS


@pytest.mark.exhaustive
def test_wider_stacks_take_more_which_the_search_relies_on():
    for settings in choices(Settings(2, optimizer="Lamb")):
        peaks = [
            max(r.peak_bytes for r in predicted_ranks(get_subject("stack").job(w).compile(settings)))
            for w in (16, 48, 96)
        ]
        assert peaks == sorted(peaks) and len(set(peaks)) == 3, settings


@pytest.mark.exhaustive
def test_no_stack_may_fit():
    assert find_par(Settings(2), 1000) is None


@pytest.mark.exhaustive
def test_the_score_counts_parameters_that_fit():
    lab = MemoryLab("stack", 2, "SGD")
    lab.set_capacity(600_000)
    assert not lab.score.fits and lab.score.ratio is None and lab.score.parameters == STACK_LAYERS * 256**2
    with pytest.raises(ArgumentError, match="par is not known"):
        lab.show_best()
    for level, width in (("level1", 256), ("off", 16)):
        lab.set_level(level)
        lab.set_width(width)
        with pytest.raises(ArgumentError, match="no stack of your own under the line"):
            lab.find_par()
    lab.set_level("level1")
    lab.find_par()
    assert lab.wait(60)
    assert lab.score.fits and 0 < lab.score.ratio < 1 and lab.score.source == "predicted"
    lab.show_best()
    assert lab.score.ratio == 1 and lab.score.fits
    lab.run_simulated(1)
    assert lab.wait(60) and lab.score.source == "simulated" and lab.score.fits
    assert lab.snapshot()["sections"]["puzzle"]["small"] == "par"
    lab.set_capacity(500_000)  # another line, another par
    assert lab.score.par is None


def test_there_is_nothing_to_score_without_a_line_or_a_width():
    lab = MemoryLab("dense", 2)
    for prepare in (lambda: lab.set_capacity("1 MiB"), lambda: (lab.set_subject("stack"), lab.set_capacity(None))):
        prepare()
        with pytest.raises(ArgumentError, match="nothing to score"):
            _ = lab.score
        assert "puzzle" not in lab.snapshot()["sections"]


# ---- the paper's table ----

# Rajbhandari et al. 2020, table 1: GB per device for 7.5 B, 128 B and 1 T parameters at stages 1, 2 and 3, as printed
TABLE_1 = {(7.5e9, 64): (31.4, 16.6, 1.88), (7.5e9, 1024): (30.1, 15.1, 0.12)}
TABLE_1 |= {(128e9, 16): (608, 368, 128), (128e9, 1024): (513, 257, 2)}
TABLE_1 |= {(1e12, 4): (7000, 5500, 4000), (1e12, 256): (4046, 2054, 62.5)}


@pytest.mark.parametrize(("parameters", "degree"), TABLE_1)
def test_the_table_has_the_paper_s_numbers(parameters, degree):
    printed = TABLE_1[parameters, degree]
    table = zero_table(parameters, degree, 12)
    row = next(r for r in table["rows"] if r["ranks"] == degree)
    assert row["chosen"] and row["gb"][0] == 16 * parameters / 1e9
    for shown, stage, said in zip(row["gb"][1:], table["stages"][1:], printed, strict=True):
        assert shown == pytest.approx(said, rel=0.005, abs=0.005) and stage["total_gb"] == shown
        assert stage["params_gb"] + stage["grads_gb"] + stage["optimizer_gb"] == pytest.approx(shown)


def test_the_largest_models_are_the_paper_s_table_2():
    """32 GB, 64 ranks: 2 B, 7.6 B, 14.4 B and 128 B."""
    found = [stage["largest"] / 1e9 for stage in zero_table(7.5e9, 64, 12)["stages"]]
    assert found == pytest.approx([2, 7.6, 14.4, 128], rel=0.01)


def test_the_learner_s_model_is_shown_with_its_k():
    lab = MemoryLab("stack", 2)
    lab.set_zero("1T", 100, 8)
    zero = lab.snapshot()["zero"]
    assert zero["stages"][1]["total_gb"] == pytest.approx((4 + 8 / 100) * 1e12 / 1e9) and zero["degree"] == 100
    assert [r["ranks"] for r in zero["rows"] if r["chosen"]] == [100] and "K = 8" in lab.to_text()


@each_of("text, value", ("7.5B", 7.5e9), (" 350 m", 3.5e8), ("1,5T", 1.5e12), ("1e12", 1e12), (12, 12.0), ("64k", 64e3))
def test_numbers_of_parameters_are_read(text, value):
    assert parse_count(text) == pytest.approx(value)


@pytest.mark.parametrize("given", ["", "B", "many", "-1B", "1e30", "nan", float("inf"), 0, True, None, [1], "9" * 500])
def test_an_invalid_number_of_parameters_is_refused(given):
    with pytest.raises(ArgumentError, match="parameters="):
        parse_count(given)


# ---- commands ----


def test_weight_grouping_has_its_restrictions():
    lab = MemoryLab("dense", 8, "Adam", "data_parallel")
    before = state(lab)
    with pytest.raises(RuntimeError, match="with Adam in data_parallel mode"):
        lab.set_level("grouping")
    assert state(lab) == before and "with Adam" in before["sections"]["levels"]["rows"][1][1]
    lab.set_optimizer("Lamb")
    with pytest.raises(ValueError, match="8 ranks and 4 parameters"):
        lab.set_level("grouping")
    lab.set_devices(4)
    lab.set_level("grouping")
    assert [fact.owner for fact in lab.facts] == [0, 1, 2, 3]
    with pytest.raises(OptimizerParallelError):
        lab.set_devices(8)
    assert lab.settings.devices == 4


def test_micro_batches_must_divide_a_rank_s_rows():
    lab = MemoryLab("transformer", 8, parallel_mode="data_parallel")
    with pytest.raises(ShapeError, match="4 equal micro-batches"):
        lab.set_accumulation(4)
    assert lab.settings.accumulation == 1


def test_what_another_choice_does_not_have_falls_back():
    lab = MemoryLab("stack", 8, level="level3")
    lab.set_shard_size(4)
    lab.select_rank(7)
    lab.set_devices(2)
    assert lab.settings.shard_size == -1 and lab.snapshot()["rank"] == 1
    lab.set_parallel_mode("data_parallel")
    assert lab.settings.level == "off"


def test_a_run_is_forgotten_when_the_settings_change_and_not_when_the_look_does():
    lab = MemoryLab("stack", 2)
    lab.set_width(WIDTH)
    lab.run_simulated(1)
    assert lab.wait(60)
    for look in (
        lambda: lab.set_capacity("9 MiB"),
        lambda: lab.select_rank(1),
        lambda: lab.show_moment("resident"),
        lambda: lab.set_zero(1e9, 8),
    ):
        look()
        assert "simulated" in lab.results
    lab.show_source("predicted")
    lab.set_level("level2")
    assert not lab.results and lab.snapshot()["source"]["choices"] == ["predicted"]


WITH_UNIT = (("4 MiB", 4 << 20), ("900KB", 900 << 10), ("2g", 2 << 30))


@each_of("given, size", *WITH_UNIT, ("", 0), (None, 0), (77, 77), ("1.5 M", 3 << 19), ("12 B", 12))
def test_capacities_are_read(given, size):
    lab = MemoryLab("stack", 2)
    lab.set_capacity(given)
    assert lab.capacity_bytes == size and ("puzzle" in lab.snapshot()["sections"]) == (size > 0)


@pytest.mark.exhaustive
def test_a_defect_in_a_run_ends_it(monkeypatch):
    def broken(*_):
        raise ShapeError("no such thing")

    monkeypatch.setattr("parallel_lab.lab.memory.model.counted", broken)
    lab = MemoryLab("stack", 2)
    lab.run_simulated(1)
    assert lab.wait(60)
    run = lab.snapshot()["run"]
    assert run["state"] == "failed"
    assert "no such thing" in run["error"]
    assert run["can"]
    assert "The run failed" in lab.to_text()


# ---- forms ----


def test_the_kinds_are_those_of_the_cost_model():
    assert sorted(KINDS) == sorted(MEMORY_KINDS) and list(KINDS)[:4] == ["params", "grads", "optimizer", "activations"]


def elements(shape):
    """Of [256, 256], or of "8 x (256, 256)": parameters that are alike stand in one row."""
    if not isinstance(shape, str):
        return math.prod(shape)
    count, each = shape.split(" x ", 1)
    return int(count) * math.prod(int(n) for n in re.findall(r"\d+", each))


@pytest.mark.exhaustive
def test_equal_parameters_are_one_row_and_a_column_that_says_nothing_is_left_out():
    table = MemoryLab("stack", 4).snapshot()["sections"]["parameters"]
    assert [row[:4] for row in table["rows"]] == [
        ["layers.0.weight to layers.7.weight", "8 x (256, 256)", 8 * 256 * 256 * 4, "8 x (64, 256)"]
    ]
    assert "why not" not in table["columns"]
    lab = MemoryLab("stack", 4)
    lab.set_threshold(1000)  # more than a weight has: each row says so
    assert "why not" in lab.snapshot()["sections"]["parameters"]["columns"]


def test_the_lab_opens_on_model_states_the_papers_four_terms():
    """Adam on 8 x 256 x 256 float32 parameters: 2 MiB of them, as much of gradients, twice as much of moments; level1
    keeps a quarter of each on 4 ranks.
    """
    shot = MemoryLab("stack", 4).snapshot()
    assert shot["moment"]["value"] == "states"
    off, rank, *_ = shot["sections"]["memory"]["of"]["states|predicted"]["bars"]
    size = 8 * 256 * 256 * 4
    small = 64  # bytes besides the moments: learning rate and step
    for bar, ways in ((off, 1), (rank, 4)):
        assert bar["live"][:2] == [size // ways] * 2 and 0 <= bar["live"][2] - 2 * size // ways <= small
        assert bar["live"][3:] == [0] * (len(bar["live"]) - 3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_snapshot_is_plain_data_that_adds_up(subject):
    lab = MemoryLab(subject, 4, level="level1")
    lab.set_threshold(0)
    shot = lab.snapshot()
    assert json.loads(json.dumps(shot, allow_nan=False)) == shot
    drawn = shot["sections"]["memory"]["of"]
    for moment in MOMENTS:
        for bar in drawn[f"{moment}|predicted"]["bars"]:
            assert sum(bar["live"]) == bar["total"]
    steps = shot["steps_of"]["predicted"]
    step = steps["steps"][steps["of"][0]]
    peak = drawn["peak|predicted"]["bars"][1]["total"]
    assert max(map(sum, step["live"])) == sum(step["live"][step["peak"]]) == peak
    assert sum(p["count"] for p in step["phases"]) == len(step["live"])
    # experts lie on different ranks from the start: four slices, whichever level
    rows, own = shot["sections"]["parameters"]["rows"], "every rank holds a slice of its own"
    assert lab.parameter_count == sum(elements(row[1]) * (4 if row[-1] == own else 1) for row in rows)
    assert f" {lab.parameter_count} parameters;" in shot["notes"][0]
    rows = shot["sections"]["traffic"]["of"]["predicted|0"]["rows"]
    assert sum(row[1] for row in rows) == lab.ranks()[0].messages


def test_the_lead_follows_the_moment_and_says_what_changed():
    lab = MemoryLab("stack", 8, level="level1")
    for moment in MOMENTS:
        lab.show_moment(moment)
        shot, looks = lab.snapshot(), lab.page_snapshot()["looks"]["moment|source"]
        off, *ranks = (bar["total"] for bar in shot["sections"]["memory"]["of"][f"{moment}|predicted"]["bars"])
        assert (
            f"holds {bytes_text(max(ranks))} {HOLDS[moment]} (predicted): {bytes_text(off - max(ranks))}"
            in shot["status"]
        )
        assert f"({(off - max(ranks)) / off:.0%}) less than without, with the same traffic." in shot["status"]
        assert looks[f"{moment}|predicted"] == {name: shot[name] for name in ("status", "selected")}
        fullest = bytes_text(max(count.peak_bytes for count in lab.ranks()))
        assert shot["selected"] == f"Its fullest moment, {fullest}, fits into the 4 MiB of a device."
    assert "traffic: the same, 8 more messages" in lab.to_text()
    lab.set_level("off")
    assert changed_text(lab.ranks(), lab.ranks_without()) == "nothing has changed"
    shot = lab.snapshot()
    assert shot["status"].startswith("Each of the 8 ranks holds everything: ")
    assert shot["selected"].endswith(" more than the 4 MiB of a device.")


def test_the_text_has_every_part():
    lab = MemoryLab("stack", 2)
    lab.set_width(WIDTH)
    lab.set_threshold(0)
    lab.run_simulated(2)
    assert lab.wait(60)
    text = lab.to_text()
    lab.set_level("off")
    assert lab.earlier[0].settings == f"eight equal layers of width {WIDTH}, 2 ranks, Adam, level1"
    assert [source for source, _ in lab.earlier[0].rows] == ["simulated"]
    assert "Earlier runs" in lab.to_text() and "Earlier runs" not in text
    for words in (
        "Bytes per rank",
        "Messages of rank 0",
        "7.64 B",
        "Every level",
        "layers.7.weight",
        "EQUAL: 17 of 17",
        "Largest model",
        "In MindSpore",
        "In PyTorch",
    ):
        assert words in text
    assert 'parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_level": "level1"}' in text
    assert "1/2 x 128 KiB = 64 KiB" in text  # eight weights of 16 KiB, scattered and gathered by two
