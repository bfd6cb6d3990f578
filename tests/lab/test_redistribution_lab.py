"""The Redistribution Lab: every pair of layouts, by both ways, ends where it should and says what it costs."""

from __future__ import annotations

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.redistribution.model import (
    COPIES,
    DEVICES,
    SHAPE,
    STEPS,
    RedistributionLab,
    run_steps,
    strategies,
)
from tests.crossed import each_of
from tests.layout.folding import lower_bound_elements

EVERY = [(n, a, b, copies) for n in DEVICES for a in strategies(n) for b in strategies(n) for copies in COPIES]
F32 = 4


@pytest.mark.quick(40)
@pytest.mark.parametrize(("devices", "have", "want", "copies"), EVERY)
@pytest.mark.parametrize("steps", STEPS)
def test_every_rank_gets_its_slice_and_no_way_beats_the_bound(devices, have, want, copies, steps):
    lab = RedistributionLab(devices, have, want, copies, steps)
    shot = lab.snapshot()
    expected = [[f"moved on {devices} simulated ranks: {devices} of {devices} have the slice they need", True]]
    assert shot["sections"]["slices"]["notes"] == expected
    received = [row[-1] for row in shot["sections"]["steps"]["of"]["0"]["rows"]]
    if lab.source.is_partial:
        assert lab.least_bytes is None and "no way" not in shot["status"]
    else:
        assert sum(received) >= lab.least_bytes == F32 * lower_bound_elements(lab.source, lab.target, SHAPE)
    assert bool(received) or lab.source.same_placement(lab.target)


@pytest.mark.parametrize(("steps", "received"), [("gather", 7 * 2 * 32 * F32), ("all_to_all", 7 * 2 * 4 * F32)])
def test_rows_to_columns_on_eight_ranks(steps, received):
    """all_gather brings seven slices of (2, 32), all_to_all seven pieces of (2, 4): an eighth."""
    lab = RedistributionLab(8, "8 x 1", "1 x 8", steps=steps)
    assert f"every rank receives {received} bytes; no way needs less than {7 * 2 * 4 * F32}." in lab.to_text()


def test_steps_are_those_of_the_line_that_can_be_copied(capsys):
    lab = RedistributionLab(8, "2 x 2", "1 x 4", "addends", "all_to_all")
    exec(lab.snapshot()["sections"]["python"]["text"], {"pl": pl})
    assert capsys.readouterr().out == "".join(f"{step}\n" for step in lab.plan)


def test_choices_that_fewer_ranks_cannot_have_become_rows():
    lab = RedistributionLab(8, "1 x 8", "2 x 1")
    lab.set_rank(7)
    lab.set_devices(4)
    assert [lab.chosen()[name]["value"] for name in ("have", "want", "rank")] == ["4 x 1", "2 x 1", 3]
    assert lab.target.slice_shape(SHAPE) == (8, 32)


@each_of("name, value", ("devices", 3), ("have", "3 x 1"), ("want", 1), ("copies", True), ("steps", "ring"))
def test_other_choices_are_refused(name, value):
    with pytest.raises(ArgumentError, match=f"RedistributionLab: {name} {value!r}. One of "):
        RedistributionLab(**{name: value})


@pytest.mark.parametrize("copies", COPIES)
def test_real_ranks_give_the_slices_of_the_simulated_ones_and_send_what_is_predicted(copies):
    lab = RedistributionLab(4, "2 x 1", "1 x 4", copies, "all_to_all")
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
