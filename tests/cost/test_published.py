"""Published runs: the formula of operations, prediction against what was printed, and rows that say what cannot be."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import (
    DecoderPoint,
    changed_run,
    chip_errors,
    error_bar_text,
    get_decoder,
    get_machine,
    predict_point,
    published_rows,
    published_run,
    read_run,
    report_run,
    reports,
    run_table,
)
from parallel_lab.cost.planner.clusters import MACHINES
from parallel_lab.cost.planner.decoder_memory import stages_of
from parallel_lab.cost.planner.published import publisher_of
from tests.crossed import each_of
from tests.recorded.ask_runs import ask_row, table_of
from tests.refusals import refused

ROWS = published_rows()
BOTH = [n for n, row in ROWS.items() if "tflops_per_device" in row["measured"]]
BOTH = [n for n in BOTH if {"step_s", "tokens_per_s_per_device"} & ROWS[n]["measured"].keys()]


def test_the_file_has_every_run_with_source_and_confidence():
    assert len(ROWS) == 62 and all(row["source"] and row["confidence"] for row in ROWS.values())
    assert sum(row["bar"] for row in ROWS.values()) == 41


@pytest.mark.parametrize("name", BOTH)
def test_operations_of_a_token_are_those_that_printed_rates_imply(name):
    """Nothing is fitted: TFLOP/s over tokens per second, both printed, against the formula."""
    assert len(BOTH) == 12
    error = published_run(name).formula_error
    assert error is not None and abs(error) < 0.01


def test_one_formula_and_three_ways_to_count():
    """Causal counts half of the scores; hardware what is computed again, as 96 against 72 of SC21's formula."""
    run = published_run("sc21-145.6b")
    h, layers, s, v = 12288, 80, 2048, 51200
    own = 72 * layers * h * h * (1 + s / (6 * h) + v / (12 * layers * h))
    again = 96 * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    assert run.flops_per_token("all") == pytest.approx(own, rel=1e-4)
    assert run.flops_per_token("hardware") == pytest.approx(again, rel=1e-4)
    assert run.flops_per_token("all") - run.flops_per_token("causal") == 6 * layers * s * h


def test_bars_of_step_times_are_met():
    """At least half of the rows that count within a tenth, three quarters within a quarter; each of the rest names a
    term. Fitted rows do not count, nor do chips with fewer than three rows.
    """
    counted = [r for r in reports().values() if r.run.bar and not r.fitted and r.error is not None]
    bars = [name for name, row in ROWS.items() if row["bar"]]
    rows_of = [reports()[name].chip for name in bars]
    counted = [r for r in counted if rows_of.count(r.chip) >= 3]
    errors = sorted(abs(r.error) for r in counted)
    print(f"{len(errors)} rows, median {statistics.median(errors):.1%}, largest {errors[-1]:.1%}")
    assert len(errors) >= 30 and sum(e <= 0.10 for e in errors) >= len(errors) / 2
    assert sum(e <= 0.25 for e in errors) >= 0.75 * len(errors)
    assert all(r.off_text for r in counted if abs(r.error) > 0.10)


def test_a_run_on_which_constants_were_fitted_says_that_it_proves_nothing():
    for name, report in reports().items():
        fitted = report.run.machine.reached.fitted if report.run.machine and report.run.machine.reached else ()
        assert ("proves nothing" in report.text()) == (name in fitted and report.seconds is not None)
    other = report_run("llama3-405b-16k").text()
    assert "fitted on nemotron4-340b-dgxc-128 and nemo-llama3-8b-h100-2511, not on this run" in other


def test_nothing_is_fitted_on_more_than_two_named_runs_of_a_chip():
    for machine in MACHINES:
        fitted = machine.reached.fitted if machine.reached else ()
        assert len(fitted) <= 2 and all(name in ROWS for name in fitted)


@pytest.mark.parametrize("name", [n for n in ROWS if n.startswith("rfa-")])
def test_shares_of_a_kernels_speed_are_within_fifteen_points(name):
    report = report_run(name)
    assert abs(report.share - report.run.measured["share_of_flash_attention"]) < 0.15


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if "memory_gib" in row["measured"]])
def test_memory_is_no_more_than_what_was_printed(name):
    """Printed is what the allocator has reserved; predicted is what is needed: at least half of that, at most a tenth
    more.
    """
    assert -0.5 < report_run(name).memory_error < 0.1


def test_memory_is_within_fifteen_percent_or_says_what_is_off():
    """Predicted is needed, printed reserved; so what misses by more has a kind of bytes that would explain it."""
    found = {name: r for name, r in reports().items() if r.memory_error is not None}
    near = [name for name, r in found.items() if abs(r.memory_error) <= 0.15]
    print(f"{len(near)} of {len(found)} within 15 %")
    assert len(near) >= 11
    for name, report in found.items():
        assert (report.memory_off is None) == (name in near), name
        assert bool(report.memory_off_text) == ("most likely off in memory" in report.text()) == (name not in near)
        if report.memory_off is not None:
            kind, times = report.memory_off
            more = (times - 1) * report.prediction.memory[kind] / 2**30
            assert report.prediction.memory_bytes / 2**30 + more == pytest.approx(report.run.measured["memory_gib"])


def test_tables_stay_whole_from_forward_to_backward_where_parameters_are_divided():
    """PyTorch's fully_shard gathers what belongs to no layer once a step; numbers of 2 bytes."""
    both = [predict_point("llama3_8b", DecoderPoint(8192, 8, level=level), "dgx_h100") for level in (2, 3)]
    more = both[1].memory["workspace"] - both[0].memory["workspace"]
    layer = (get_decoder("llama3_8b").parameters) / 32
    assert more == pytest.approx(2 * 2 * 128256 * 4096 + 6 * layer, rel=1e-6)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_pytorch_keeps_of_messages(recompute):
    """8,192 tokens on 8 ranks, the first of 4 stages: gathered rows of two blocks, 2 x 4 buffers of a slice's size."""
    points = [DecoderPoint(8192, tensor=8, stages=4, micro_batches=4, recompute=recompute)]
    points.append(dataclasses.replace(points[0], kept_messages=True))
    plain, kept = (predict_point("llama3_405b", point, get_machine("dgx_h100", 32)).memory for point in points)
    rows, slice_bytes = 2 * 8192 * 16384 * 7 / 8, 2 * 8192 * 16384 / 8
    layers = stages_of(get_decoder("llama3_405b"), 4, 4)[0].layers[0]
    again = recompute == "full"
    assert kept["activations"] - plain["activations"] == pytest.approx(0 if again else 4 * layers * 2 * rows)
    # while a layer runs: its two inputs, if they came again, and a gradient; of Megatron an input and a gradient
    assert kept["workspace"] - plain["workspace"] == pytest.approx(((3 if again else 1) - 2) * rows + 8 * slice_bytes)


def test_micro_batches_of_torchtitan_are_as_many_as_parts():
    """Its configuration's default; 16 parts of 8 ranks: 16 micro-batches of 2 of the 32 sequences of a copy."""
    point = published_run("titan-405b-interleaved").point
    assert (point.micro_batch, point.micro_batches, point.chunks) == (2, 16, 2)


def test_a_run_whose_like_printed_less_says_so():
    text = report_run("titan-405b-cp8").memory_off_text
    assert "titan-405b-cp1 needs as many by the same rules and printed 75.3" in text and "9.6 GiB" in text


def test_a_row_of_the_same_form_is_read_like_those_of_the_file():
    row = dict(ROWS["titan-8b-128"], id="mine")
    assert ask_row(row)["step_s"] == report_run("titan-8b-128").seconds
    assert ask_row(row)["flops_per_token"]["causal"] == 51_470_401_536
    assert "mine" in table_of([row]) and "titan-8b-128" in run_table([report_run("titan-8b-128")])


def test_a_run_without_degrees_gets_the_fastest_plan():
    run = published_run("mixtral-8x7b-issue756")
    assert run.assumed == ("degrees: the fastest plan found",) and run.point.devices == 16


test_rows_that_say_what_cannot_be_are_refused = refused(
    ({"devices": 0}, "devices=0"),
    ({"devices": None}, "devices"),
    ({"seq_length": "long"}, "seq_length"),
    ({"id": 7}, "An object with id"),
    ({"parallel": [8, 8]}, "An object"),
    ({"parallel": {"tp": -8, "dp": 16}}, "tp=-8"),  # it was read as a run without degrees
    ({"parallel": {"fsdp": 16, "pp": 8, "schedule": "spiral"}}, "'1f1b', 'interleaved'"),
    ({"measured": [1]}, "An object"),
    ({"measured": {"tokens_per_s_per_device": 0}}, "above 0"),
    ({"measured": {"step_s": "3"}}, "step_s='3'"),
    ({"measured": {"step_s": float("nan")}}, "finite"),
    by=lambda changed: read_run({**ROWS["titan-8b-128"], **changed}),
)


@each_of(
    ("changed", "why"),
    ({"model": "gpt5"}, "model 'gpt5' is not known"),
    ({"hardware": "abacus"}, "hardware 'abacus' is not known"),
    ({"parallel": {"tp": 3, "dp": 1}}, "devices of 128"),
    ({"parallel": {"tp": 64, "dp": 2}}, "32 heads on 64 ranks"),
    ({"seq_length": None}, "no sequence length"),
)
def test_rows_that_cannot_be_predicted_say_why(changed, why):
    report = report_run({**ROWS["titan-8b-128"], **changed})
    assert report.seconds is None and why in report.run.why and "not predicted" in report.text()


def test_an_unknown_run_is_refused_with_the_nearest():
    with pytest.raises(ArgumentError, match="nearest is 'llama3-405b-16k'"):
        published_run("llama3-405b-16")


def test_the_year_of_a_source_tells_what_its_software_does():
    assert publisher_of({"source": "Smith et al. 2201.11990"}).fields["flash"] is False
    assert publisher_of({"source": "Somebody 2501.01234"}).fields == {}


def test_half_the_link_takes_longer_where_a_link_decides():
    run = published_run("nemo-qwen3-235b-h100-2511")
    slow = report_run(changed_run(run, between=0.5))
    fast = report_run(run)
    more = slow.prediction.expert_s - fast.prediction.expert_s
    assert more > 0 and slow.seconds - fast.seconds >= more > 0.2 * fast.seconds


def test_other_degrees_keep_devices_and_batch():
    run = changed_run(published_run("titan-405b-cp1"), context=2)
    assert (run.point.context, run.point.data, run.point.devices) == (2, 4, 512)
    assert run.point.batch == published_run("titan-405b-cp1").point.batch
    with pytest.raises(ArgumentError):
        changed_run(published_run("titan-405b-cp1"), context=0)


def test_every_prediction_has_an_error_bar():
    assert "published runs of dgx_a100" in error_bar_text("dgx_a100")
    assert "of chips with h100_roce's constants" in error_bar_text("h100_roce")
    assert "of other chips" in error_bar_text("tpu_v5p") and set(chip_errors()) >= {"dgx_a100", "dgx_h100", "h100_500w"}


def test_a_waterfall_ends_at_the_step():
    report = report_run("llama3-405b-16k")
    rows = report.waterfall()
    assert rows[0][2] == 0 and rows[-1][1] + rows[-1][2] == pytest.approx(report.seconds)


def test_known_chips_have_two_rates_and_a_host():
    h100 = get_machine("dgx_h100", 8)
    assert h100.rate("attention") <= h100.rate("bf16") < h100.rate("fp8") < h100.fp8_flops_per_s
    plain = dataclasses.replace(h100, reached=None)
    assert plain.rate("bf16") == plain.rate("attention") == h100.cluster.device.flops_per_s
