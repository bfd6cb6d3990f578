"""The Redistribution Lab: every pair of layouts, by both ways, ends where it should and says what it costs."""

from __future__ import annotations

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.units import bytes_text
from parallel_lab.lab.pictures.moves import moves
from parallel_lab.lab.redistribution.model import (
    COPIES,
    DEVICES,
    SHAPE,
    STEPS,
    RedistributionLab,
    run_steps,
    strategies,
)
from parallel_lab.layout.redistribution_steps import received_elements
from tests.layout.folding import lower_bound_elements

EVERY = [(n, a, b, copies) for n in DEVICES for a in strategies(n) for b in strategies(n) for copies in COPIES]
F32 = 4
HALVES = ("first", "second")


@pytest.mark.quick(14)
@pytest.mark.parametrize(("devices", "have", "want", "copies"), EVERY)
@pytest.mark.parametrize("steps", STEPS)
def test_every_rank_gets_its_slice_and_no_way_beats_the_bound(devices, have, want, copies, steps):
    lab = RedistributionLab(devices, have, want, copies, steps)
    shot = lab.snapshot()
    expected = [[f"moved on {devices} simulated ranks: {devices} of {devices} have the slice they need", True]]
    assert shot["sections"]["slices"]["notes"] == expected
    of = shot["sections"]["steps"]["of"]
    received = max(([row[-1] for row in of[str(rank)]["rows"]] for rank in range(devices)), key=sum)
    if lab.source.is_partial:
        assert lab.least_bytes is None and "no way" not in shot["status"]
    else:
        assert sum(received) >= lab.least_bytes == F32 * lower_bound_elements(lab.source, lab.target, SHAPE)
        assert steps != "exact" or sum(received) == lab.least_bytes
    assert bool(received) or lab.source.same_placement(lab.target)


def at(block):
    return tuple(slice(*span) for span in block)


@pytest.mark.quick(5)
@pytest.mark.parametrize(("devices", "have", "want", "copies"), EVERY)
@pytest.mark.parametrize("steps", STEPS)
def test_moves_bring_every_rank_exactly_its_slice_and_send_what_is_counted(devices, have, want, copies, steps):
    """Each rank's memory is a whole tensor whose parts are known: per element, whose values are added up there (a
    bit per rank; all bits of copies are one).
    """
    lab = RedistributionLab(devices, have, want, copies, steps)
    sums = lab.source.is_partial
    ranks = range(devices)

    def slices(layout, worth):
        held = [np.zeros(SHAPE, int) for _ in ranks]
        for rank in ranks:
            held[rank][layout.slice_index(SHAPE, rank)] = worth(rank)
        return held

    held = slices(lab.source, lambda rank: 1 << rank if sums else 1)
    received = 0
    for frame in moves(lab.plan, lab.source, SHAPE):
        for rank in ranks:
            drawn = np.zeros(SHAPE, bool)
            for block in frame.before[rank]:
                drawn[at(block)] = True
            # of an all_reduce's sums a rank keeps only the part that it has added up: what follows replaces the rest
            assert not drawn[held[rank] == 0].any()
            held[rank][~drawn] = 0
        after = [np.zeros(SHAPE, int) for _ in ranks]
        for rank in ranks:
            for block in frame.kept[rank]:
                assert held[rank][at(block)].all()
                after[rank][at(block)] = held[rank][at(block)]
        for hop in frame.hops:
            for block in hop.blocks:
                sent, there = held[hop.source][at(block)], after[hop.destination][at(block)]
                assert sent.all()
                if hop.adds:
                    assert not (sent & there).any(), "a value is added twice"
                else:
                    assert not there.any(), "something is sent to where it is already"
                after[hop.destination][at(block)] = sent | there
        received += sum(hop.elements for hop in frame.hops)
        for rank in ranks:
            drawn = np.zeros(SHAPE, int)
            for block in frame.after[rank]:
                drawn[at(block)] += 1
            assert np.array_equal(after[rank] > 0, drawn == 1)
        held = after
    complete = {rank: sum(1 << r for r in lab.source.partial_group(rank)) if sums else 1 for rank in ranks}
    for rank, wanted in enumerate(slices(lab.target, lambda rank: 1)):
        assert np.array_equal(held[rank] > 0, wanted > 0)
        if sums:  # every element is the sum of one value from each rank of some group of the source
            assert set(np.unique(held[rank])) - {0} <= set(complete.values())
    assert received == sum(received_elements(lab.plan, rank) for rank in ranks)


@pytest.mark.quick(10)
@pytest.mark.parametrize(("devices", "have", "want", "copies"), EVERY)
@pytest.mark.parametrize("steps", STEPS)
def test_steps_are_counted_alike_wherever_they_are_shown(devices, have, want, copies, steps):
    """The lab said "4 steps" above a picture of "2 moves"."""
    shot = RedistributionLab(devices, have, want, copies, steps).snapshot()
    frames, rows = shot["moves"]["frames"], shot["sections"]["steps"]["of"]["0"]["rows"]
    named = [f"{frame['step']} {frame['title'].partition(',')[0]}" for frame in frames]
    assert list(dict.fromkeys(named)) == [row[0] for row in rows]
    assert [f["title"] for f in frames if "half" in f["title"]] in ([], [f"all_reduce, {n} half" for n in HALVES])
    assert [f["held_bytes"] for f in frames if "second half" not in f["title"]] == [row[-2] for row in rows]
    assert {row[0]: row[1] for row in shot["sections"]["compare"]["rows"]}[STEPS[steps]] == len(rows)
    assert shot["status"].startswith(f"{len(rows)} step" if rows else "The tensor is where it is needed")
    numbers = [int(line.split(".")[0]) for line in shot["sections"]["moves"]["notes"] if line[0].isdigit()]
    assert numbers == [frame["step"] for frame in frames]


def test_an_uneven_all_reduce_sends_every_element_to_the_others_twice():
    """5 elements on 3 ranks: parts of 2, 2 and 1; every part goes to two ranks, and its sum to two."""
    layout = pl.TensorLayout((3,), (-1,), (0,))
    steps = pl.plan_redistribution(layout, pl.TensorLayout((3,), (-1,)), (5,))
    first, second = moves(steps, layout, (5,))
    assert sorted(hop.elements for hop in first.hops) == [1, 1, 2, 2, 2, 2] == sorted(h.elements for h in second.hops)
    assert all(hop.adds for hop in first.hops) and not any(hop.adds for hop in second.hops)


def test_the_peak_is_the_slice_before_and_the_slice_after():
    """64 x 64 rows to columns on 8 ranks: all_gather holds a slice and the whole, the others two slices."""
    rows, columns = pl.TensorLayout((8,), (0, -1)), pl.TensorLayout((8,), (-1, 0))
    for manner, peak in (({}, 512 + 4096), ({"alltoall": True}, 512 + 512), ({"exact": True}, 512 + 512)):
        frames = moves(pl.plan_redistribution(rows, columns, (64, 64), **manner), rows, (64, 64))
        assert max(frame.held for frame in frames) == peak


def test_every_move_is_in_the_text_and_stepping_says_where_it_stands():
    lab = RedistributionLab(4, "4 x 1", "1 x 4", steps="all_to_all")
    assert "rank 1 keeps [4:8, 8:16]; gets [0:4, 8:16] from 0 (128 B)" in lab.to_text()
    lab.next()
    lab.next()
    assert lab.at == 1 == len(lab.moves["frames"])
    lab.back()
    lab.back()
    assert lab.at == 0
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        lab.to(2)
    lab.to(1)
    lab.set_want("2 x 2")
    assert lab.at == 0
    lab.to(len(lab.moves["frames"]))
    lab.reset()
    assert lab.snapshot()["at"] == 0


WAYS = [("gather", 7 * 2 * 32 * F32), ("all_to_all", 7 * 2 * 4 * F32), ("exact", 7 * 2 * 4 * F32)]


@pytest.mark.parametrize(("steps", "received"), WAYS)
def test_rows_to_columns_on_eight_ranks(steps, received):
    """all_gather brings seven slices of (2, 32), all_to_all and exchange seven pieces of (2, 4): an eighth."""
    lab = RedistributionLab(8, "8 x 1", "1 x 8", steps=steps)
    least = bytes_text(7 * 2 * 4 * F32)
    assert f"every rank receives {bytes_text(received)} (predicted); no way needs less than {least}." in lab.to_text()


def test_three_ways_are_compared_with_the_least():
    """(1, 8) to (2, 4) on (16, 32): gathered 7/8 of 512 elements, doubled three times; a rank that has no column of its
    new slice lacks all of it, (8, 8), and gets it from the two that have 4 columns each.
    """
    compare = RedistributionLab(8, "1 x 8", "2 x 4").snapshot()["sections"]["compare"]
    rows = {row[0]: row[1:] for row in compare["rows"]}
    assert rows[STEPS["gather"]][1:3] == [3, 448] and rows[STEPS["exact"]] == [1, 2, 64, 64 * F32, 128 * F32]
    assert rows[STEPS["exact"]][2] < rows[STEPS["all_to_all"]][2] < 448
    assert compare["notes"] == [
        ["a rank lacks at most 64 elements of its slice and must receive those; exact pieces bring 64", True]
    ]


def test_an_exchange_is_described_and_drawn():
    lab = RedistributionLab(8, "1 x 8", "2 x 4", steps="exact")
    (frame,) = lab.moves["frames"]
    assert frame["text"] == "exchange: a rank receives at most 2 x 128 B, each from one rank that has what it lacks."
    assert "rank 0 keeps [0:8, 0:4]; gets [0:8, 4:8] from 1 (128 B)" in lab.to_text()


@pytest.mark.parametrize(("copies", "steps"), [("addends", "all_to_all"), ("copies", "exact")])
def test_steps_are_those_of_the_line_that_can_be_copied(capsys, copies, steps):
    lab = RedistributionLab(8, "2 x 2", "1 x 4", copies, steps)
    exec(lab.snapshot()["sections"]["python"]["text"], {"pl": pl})
    assert capsys.readouterr().out == "".join(f"{step}\n" for step in lab.plan)


def test_choices_that_fewer_ranks_cannot_have_become_rows():
    lab = RedistributionLab(8, "1 x 8", "2 x 1")
    lab.set_rank(7)
    lab.set_devices(4)
    assert [lab.chosen()[name]["value"] for name in ("have", "want", "rank")] == ["4 x 1", "2 x 1", 3]
    assert lab.target.slice_shape(SHAPE) == (8, 32)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("copies", "steps"), [*((copies, "all_to_all") for copies in COPIES), ("copies", "exact")])
def test_real_ranks_give_the_slices_of_the_simulated_ones_and_send_what_is_predicted(copies, steps):
    lab = RedistributionLab(4, "2 x 1", "1 x 4", copies, steps)
    whole = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)

    def program(comm):
        comm.recording = True
        part = whole[lab.source.slice_index(SHAPE, comm.rank)]
        mine = part * (lab.source.partial_group(comm.rank)[0] == comm.rank)
        return run_steps(comm, lab.plan, np.ascontiguousarray(mine)), sum(m.size_bytes for m in comm.sent())

    with pl.WorkerPool(4) as pool:
        replies = pool.run(program)
    received = sum(row[-1] for row in lab.snapshot()["sections"]["steps"]["of"]["0"]["rows"])
    for rank, (value, sent) in enumerate(replies):
        np.testing.assert_array_equal(value, whole[lab.target.slice_index(SHAPE, rank)], strict=True)
        assert sent == received


@pytest.mark.quick(4)
@pytest.mark.parametrize("have", strategies(8))
def test_partial_sums_that_cannot_be_are_explained(have):
    """Only ranks with the same slice can hold addends of it."""
    said = RedistributionLab(8, have, "1 x 8", "addends").snapshot()["selected"]
    rows, columns = map(int, have.split(" x "))
    alone = f"No two ranks hold the same slice of {have}, so there are no partial sums."
    assert said == (alone if rows * columns == 8 else "")
    assert RedistributionLab(8, have, "1 x 8").snapshot()["selected"] == ""
