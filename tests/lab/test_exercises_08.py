"""Lesson 08's exercises: right answers pass, wrong ones fail where they are wrong and hear what they are."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.memory import predict_memory
from parallel_lab.lab.exercises import lesson_08
from parallel_lab.lab.exercises.book import Desk
from parallel_lab.lab.memory.count import predicted_ranks
from parallel_lab.lab.memory.subjects import WIDTHS, Settings, get_subject
from parallel_lab.run.communicator import Request, Start, Wait
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, told, words_of

# ---- 08.1: bytes of every stage ----


def held(parameters, ranks, stage, p, g, s):
    return parameters * (
        p / (ranks if stage >= 3 else 1) + g / (ranks if stage >= 2 else 1) + s / (ranks if stage >= 1 else 1)
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", [float, np.float64, lambda value: np.array(value)])
def test_the_formulas_of_the_stages_pass(form):
    assert passes(check("08.1", lambda *given: form(held(*given))), 5)


def test_the_count_of_the_arrays_is_the_formulas_to_the_byte():
    """16 bytes per parameter of float32 with two states; stages as the paper has them."""
    for stage, parameters, settings, counted in lesson_08._counted_states():
        assert parameters == 8 * 64 * 64
        assert counted == held(parameters, settings.devices, stage, 4, 4, 8)
    assert [stage for stage, *_ in lesson_08._counted_states()] == [0, 1, 3, 3]


@each_of(
    ("answer", "part", "words"),
    (lambda n, r, stage, p, g, s: n * (p + g + s), "stage 1", "That is stage 0"),
    (lambda n, r, stage, p, g, s: held(n, r, 3 if stage else 0, p, g, s), "stage 1", "That is stage 3"),
    (lambda n, r, stage, p, g, s: held(n, r, min(stage, 1), p, g, s), "stage 2", "That is stage 1"),
    (lambda n, r, stage, p, g, s: r * held(n, r, stage, p, g, s), "stage 1", "All ranks together"),
    (lambda n, r, stage, p, g, s: held(n, r, stage, p, 0, s), "stage 0", "The gradients are missing"),
    (lambda n, r, stage, p, g, s: held(n, r, stage, p, g, 0), "stage 0", "The optimizer states are missing"),
    (lambda n, r, stage, p, g, s: n * p, "stage 0", "The parameters alone"),
    (lambda n, r, stage, p, g, s: held(n, r, stage, p, g, 0) + n * s, "stage 1", "That is stage 0"),
    (lambda n, r, stage, p, g, s: held(n, r, min(stage, 2), p, g, 0) + n * s, "stage 2", "sharded here, not whole"),
    (lambda n, r, stage, p, g, s: held(n, r, stage, p, g, s) / 1e9, "stage 0", "That is in GB"),
    (lambda n, r, stage, p, g, s: n, "stage 0", "elements, not bytes"),
    (lambda n, r, stage, p, g, s: held(n, r, stage, 2, 2, 12), "stage 0", "4 + 4 + 4 bytes each"),
    (lambda n, r, stage, p, g, s: None, "stage 0", "None"),
)
def test_wrong_bytes_are_explained(answer, part, words):
    assert words in told("08.1", answer, part)


# ---- 08.2: a ZeRO-1 step ----


def zero1(*, reduce="mean", mine=None, whole_velocity=False, gather=True, decay=0.9, sign=1.0, keep=True):
    """A right step; its options are what can go wrong in it."""

    def program(rank, ranks, weights, gradient, velocity):
        everybody, width = tuple(range(ranks)), len(weights) // ranks
        place = rank if mine is None else mine(rank, ranks)
        own = slice(place * width, (place + 1) * width)
        part = yield Request("reduce_scatter", everybody, gradient, reduce=reduce)
        new = decay * velocity + part
        weights[own] = weights[own] - sign * 0.1 * new
        if gather:
            weights = yield Request("all_gather", everybody, weights[own])
        if whole_velocity:
            new = yield Request("all_gather", everybody, new)
            return weights, new
        return weights, new if keep else velocity

    return program


def with_all_reduce(rank, ranks, weights, gradient, velocity):
    everybody, width = tuple(range(ranks)), len(weights) // ranks
    own = slice(rank * width, (rank + 1) * width)
    total = yield Request("all_reduce", everybody, gradient)
    velocity = 0.9 * velocity + total[own] / ranks
    weights = yield Request("all_gather", everybody, weights[own] - 0.1 * velocity)
    return weights, velocity


def plain(rank, ranks, weights, gradient, velocity):
    gradient = yield Request("all_reduce", tuple(range(ranks)), gradient, reduce="mean")
    return weights - 0.1 * gradient, velocity


def gathering_everything(rank, ranks, weights, gradient, velocity):
    """Right, but each rank hands its whole new weights to everybody."""
    everybody, width = tuple(range(ranks)), len(weights) // ranks
    own = slice(rank * width, (rank + 1) * width)
    part = yield Request("reduce_scatter", everybody, gradient, reduce="mean")
    velocity = 0.9 * velocity + part
    weights[own] -= 0.1 * velocity
    every = yield Request("all_gather", everybody, weights)
    return np.concatenate([every[r * len(weights) :][r * width : (r + 1) * width] for r in range(ranks)]), velocity


def started(rank, ranks, weights, gradient, velocity):
    """The same with started messages, and a sum divided by hand."""
    everybody, width = tuple(range(ranks)), len(weights) // ranks
    handle = yield Start(Request("reduce_scatter", everybody, gradient))
    velocity = 0.9 * velocity + (yield Wait(handle)) / ranks
    return (
        yield Request("all_gather", everybody, weights[rank * width : (rank + 1) * width] - 0.1 * velocity)
    ), velocity


@pytest.mark.quick(1)
@pytest.mark.parametrize("answer", [zero1(), started], ids=["asked", "started"])
def test_a_right_step_passes(answer):
    assert passes(check("08.2", answer), 6)


@pytest.mark.quick(3)
@each_of(
    ("answer", "part", "words"),
    (plain, "20 steps", "It came back as it was"),
    (plain, "bytes", "that is plain data parallel"),
    (plain, "messages", "needs 1/p of it"),
    (with_all_reduce, "bytes", "3 (p - 1)/p n: half as much again"),
    (with_all_reduce, "messages", "all_reduce, all_gather"),
    (gathering_everything, "bytes", "send your slice only"),
    (zero1(reduce="sum"), "one step", "summed, not averaged"),
    (zero1(gather=False), "one step", "they need it too"),
    (zero1(gather=False), "bytes", "one half of it"),
    (zero1(mine=lambda r, p: (r + 1) % p), "one step", ""),
    (zero1(sign=-1.0), "one step", "The sign is wrong"),
    (zero1(decay=0.5), "20 steps", "a later one is not"),
    (zero1(keep=False), "20 steps", "It came back as it was"),
    (zero1(whole_velocity=True), "one step", ""),
    (lambda rank, ranks, w, g, v: (w, v), "one step", "Nothing was changed yet"),
    (lambda rank, ranks, w, g, v: (w - 0.1 * g, v), "one step", "never added up"),
    (lambda rank, ranks, w, g, v: None, "one step", "without a return"),
    (lambda rank, ranks, w, g, v: (w[:3], v), "one step", "all weights"),
)
def test_a_wrong_step_is_explained(answer, part, words):
    wrong = failed(check("08.2", answer))
    assert part in wrong and words in words_of(wrong[part])


def test_a_velocity_that_is_whole_is_the_memory_that_should_have_been_saved():
    def whole(rank, ranks, weights, gradient, velocity):
        everybody, width = tuple(range(ranks)), len(weights) // ranks
        own = slice(rank * width, (rank + 1) * width)
        part = yield Request("reduce_scatter", everybody, gradient, reduce="mean")
        mine = 0.9 * (velocity if len(velocity) == width else velocity[own]) + part
        weights = yield Request("all_gather", everybody, weights[own] - 0.1 * mine)
        return weights, (yield Request("all_gather", everybody, mine))

    wrong = failed(check("08.2", whole))
    assert set(wrong) == {"a slice of the velocity", "messages", "bytes"}
    assert "the memory that ZeRO-1 saves" in wrong["a slice of the velocity"].note


def test_bytes_are_counted_by_the_engine():
    """reduce_scatter (p-1)/p n and all_gather (p-1)/p n with p = 4 and n = 48 float64; all_reduce counts for two."""
    n = 48 * 8
    part = failed(check("08.2", with_all_reduce))["bytes"]
    assert part.found == f"{3 * 3 * n // 4} bytes sent by rank 0"
    assert part.expected.startswith(f"{2 * 3 * n // 4} bytes on 4 ranks")
    assert "at test_exercises_08.py:" in part.op


def test_a_fault_is_on_the_learner_s_line():
    def misspelt(rank, ranks, *given):
        yield Request("reduce_scater", tuple(range(ranks)), np.zeros(ranks))

    text = str(check("08.2", misspelt))
    assert "'reduce_scater' at test_exercises_08.py:" in text and "zero_step.py" not in text


def test_ranks_that_do_not_ask_for_the_same_get_an_error():
    def first_rank_alone(rank, ranks, weights, gradient, velocity):
        if rank == 0:
            yield Request("reduce_scatter", tuple(range(ranks)), gradient)
        return weights, velocity

    verdict = check("08.2", first_rank_alone)
    assert [part.passed for part in verdict.parts] == [False, None, None, None, None]
    assert "Every rank finishes" in verdict.parts[0].expected


def test_an_answer_for_four_ranks_only_does_not_pass():
    def four(rank, ranks, weights, gradient, velocity):
        return (yield from zero1()(rank, ranks, weights, gradient, velocity)) if ranks == 4 else (weights, velocity)

    assert set(failed(check("08.2", four))) >= {"one step", "20 steps"}


# ---- 08.3: the largest model under the cap ----

CAP = 4 * 2**20


def peak(width, **settings):
    job = get_subject("stack").job(width)
    return predict_memory(job.compile(Settings(devices=8, optimizer="Adam", threshold_kb=0, **settings))).peak_bytes


@pytest.mark.exhaustive
def test_par_is_the_widest_stack_of_the_best_level():
    """Among the levels without accumulation it is the widest that fits; the next one does not."""
    par = lesson_08._par()
    fitting = {
        level: max(w for w in range(256, 449, 16) if w == 256 or peak(w, level=level) <= CAP)
        for level in ("level1", "level3")
    }
    assert fitting["level3"] == par.width > fitting["level1"]
    assert peak(par.width, level="level3") <= CAP < peak(par.width + 16, level="level3")
    assert par.parameters == 8 * par.width**2
    assert passes(check("08.3", {"width": par.width, "level": "level3"}), 5)


@pytest.mark.exhaustive
def test_the_best_without_sharing_is_a_border():
    width, parameters = lesson_08._best_without()
    assert parameters == 8 * width**2
    assert peak(width, level="off") <= CAP < peak(width + 16, level="off")


ALL = {"a model", "fits", "beats level off", "par"}


@pytest.mark.quick(0)
@each_of(
    ("model", "parts", "words"),
    ({"width": 256, "level": "off"}, ALL - {"a model"}, "Adam's two states per parameter"),
    ({"width": 128, "level": "off"}, {"beats level off", "par"}, "Nothing is sharded"),
    ({"width": 256, "level": "level1"}, {"par"}, "which level does not keep them?"),
    ({"width": np.float64(256), "level": "level1"}, {"par"}, "which level does not keep them?"),
    ({"width": 256, "level": "level3"}, {"par"}, "would a wider model still fit"),
    ({"width": 1024, "level": "level3"}, ALL - {"a model"}, "at most 4 MiB"),
    ({"width": 256, "level": "level1", "threshold_kb": 1024}, ALL - {"a model"}, "at most 4 MiB"),
    ({"width": 100, "level": "off"}, ALL, "A multiple of 16"),
    ({"width": 256, "level": "level4"}, ALL, "level1, level2, level3"),
    ({"width": 256, "optimizer": "SGD"}, ALL, "not a setting of this puzzle"),
    ({"width": 256, "level": "grouping", "parallel_mode": "data_parallel"}, ALL, "Lamb, AdamWeightDecay"),
    ({"width": 256, "level": "level1", "shard_size": 16}, ALL, "optimizer_weight_shard_size=16"),
    (None, ALL, "no model yet"),
    ([1], ALL, "width"),
)
def test_a_wrong_model_is_explained(model, parts, words):
    wrong = failed(check("08.3", model))
    assert set(wrong) == parts
    assert any(words in words_of(part) for part in wrong.values())


@pytest.mark.exhaustive
def test_the_largest_model_is_shown_after_an_own_attempt():
    desk = Desk()
    desk.check("08.3", {"width": 128, "level": "off"})
    with pytest.raises(ArgumentError, match="own passes 'beats level off'"):
        desk.par("08.3")
    desk.check("08.3", {"width": 256, "level": "level3"})
    found, names = desk.par("08.3"), {}
    exec(found.text, names)
    assert found.yours.startswith(f"{8 * 256**2:,} parameters") and passes(check("08.3", names["model"]), 5)


def test_a_model_that_does_not_fit_names_the_moment():
    part = failed(check("08.3", {"width": 256, "level": "off"}))["fits"]
    assert part.rank == 0 and part.op.startswith("update: ")


@pytest.mark.exhaustive
def test_the_width_of_who_thinks_that_all_memory_is_cut_is_counted():
    """The widest stack whose peak without optimizer parallel is at most 8 times the capacity; 16 more is too wide."""
    given = Settings(devices=8, optimizer="Adam", level="off")
    width = lesson_08.WIDEST_IF_ALL_WERE_CUT
    peaks = [
        predicted_ranks(get_subject("stack").job(w).compile(given))[0].peak_bytes for w in (width, width + WIDTHS.step)
    ]
    assert peaks[0] <= 8 * lesson_08.CAPACITY_BYTES < peaks[1]
    wrong = check("08.3", {"width": width, "level": "level3"})
    assert failed(wrong)["fits"].idea == "ZeRO cuts all memory"
    other = check("08.3", {"width": width + WIDTHS.step, "level": "level3"})
    assert failed(other)["fits"].idea == "" and "Most of it is" in failed(other)["fits"].note
