"""A recorded run: what each rank did at every step, bounded, the same on all executors, and read within limits."""

from __future__ import annotations

import base64
import copy
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, DataFileError
from parallel_lab.lab.shared.recording import ARRAYS, MOST_BYTES, MOST_STEPS, MOST_SUMS, MOST_TIMES, Recording, recorded
from parallel_lab.lab.strategy.model import StrategyLab
from parallel_lab.train.recorder import Recorder
from parallel_lab.train.session import Session
from tests.pools import shared_pool


def session_of(executor: str = "simulator", devices: int = 8) -> tuple[Session, Recorder, list]:
    plan, _, net, optimizer, batches = StrategyLab(devices=devices)._prepared()
    pool = None if executor == "simulator" else shared_pool(devices)
    session = Session(plan, net, optimizer, executor=executor, pool=pool, check_finite=False)
    return session, Recorder(session), batches


def run_of(executor: str, steps: int, devices: int = 8) -> tuple[Recording, list[float]]:
    session, recorder, batches = session_of(executor, devices)
    with session:
        losses = session.train(batches, steps)
        return recorded(session.plan, recorder.take()), losses


@pytest.fixture(scope="module")
def simulated() -> Recording:
    return run_of("simulator", 6)[0]


def test_a_recording_has_what_the_run_had_and_all_executors_the_same():
    runs = {executor: run_of(executor, 5, 2) for executor in ("simulator", "processes")}
    (simulated, losses), (measured, on_ranks) = runs.values()
    assert losses == on_ranks and (simulated.source, measured.source) == ("simulated", "measured")
    for found in (simulated, measured):
        assert found.losses.tolist() == [[loss, loss] for loss in losses]
        assert found.steps.tolist() == [1, 2, 3, 4, 5] and found.timed.tolist() == [0, 1, 2, 3, 4]
        assert (found.times[:, :, 0].min(axis=1) == 0).all()  # every step begins at 0
        assert np.allclose(found.times[:, :, 1].max(axis=1) * 1e-7, found.took, atol=2e-7)
    for name in ("sent", "held", "sums", "sizes"):
        assert (getattr(simulated, name) == getattr(measured, name)).all(), name


def test_what_it_says_of_a_slice_is_the_slice():
    """Sizes against the parameters that the session has, cut as the plan says; bytes against the plan's messages."""
    session, recorder, batches = session_of()
    with session:
        session.train(batches, 3)
        found, plan = recorded(session.plan, recorder.take()), session.plan
        for t, name in enumerate(found.tensors):
            for rank, part in enumerate(session.slices(name)):
                assert found.sizes[-1, rank, t] == np.float32(np.sqrt(np.mean(part.astype(np.float64) ** 2)))
                assert found.sums[-1, rank, t] == zlib.crc32(part.tobytes())
                alike = [r for r in range(8) if found.holders[t][r] == found.holders[t][rank]]
                assert alike == [r for r, own in enumerate(session.slices(name)) if np.array_equal(own, part)]
    sums = [i for _, i in plan.instructions() if i.kind == "all_reduce"]
    assert (found.sent == sum(plan.value(i.ins[0]).slice_bytes for i in sums)).all()
    assert "copies were equal at every step" in found.verdict and "steps 1 to 3 of 8 ranks, all kept" in found.said


def test_the_first_step_at_which_a_rank_differs_from_its_copies():
    session, recorder, batches = session_of()
    with session:
        session.train(batches, 4)
        found = recorded(session.plan, recorder.take())
        session._simulator.envs[3]["w2"][0, 0] += np.float32(1e-3)  # behind the back of all others
        session.train(batches, 3)
        both = found.followed_by(recorded(session.plan, recorder.take()))
    (copies,) = {tuple(r for r in range(8) if mine[r] == mine[3] and r != 3) for mine in both.holders[1:]}
    one = both.first_difference(3)
    assert (one.step, one.tensor) == (5, "w2") and one.others == copies and found.first_difference(3) is None
    assert "step 5 is the first at which rank 3's part of w2 differs from what rank" in both.verdict
    assert all(both.first_difference(r) is None for r in range(8) if r not in (3, *copies))
    assert len(copies) != 1 or both.first_difference(copies[0]).step == 5  # of two, nobody knows which is right
    with pytest.raises(ArgumentError, match="rank 8"):
        both.first_difference(8)


@pytest.mark.exhaustive
def test_a_long_run_is_thinned_and_a_file_stays_below_five_megabytes(simulated, tmp_path):
    parts, rng = [], np.random.default_rng(3)
    for first in range(1, 3001, 100):
        numbers = np.arange(first, first + 100)
        times = np.sort(rng.integers(0, 2**20, (100, simulated.times.shape[1], 2)), axis=2)
        shape = 100, *simulated.sums.shape[1:]
        sums = np.full(shape, 7)
        if first == 801:
            sums[1, 3, 0] = 8  # step 802, which is not kept in the end
        parts.append(
            replace(
                simulated, first=first, taken=100, steps=numbers, sums=sums, sizes=rng.normal(size=shape), times=times,
                losses=rng.normal(size=shape[:2]), sent=np.ones(shape[:2]), held=np.ones(shape[:2]),
                took=rng.random(100), timed=np.arange(100),
            )
        )  # fmt: skip
    found = parts[0]
    for part in parts[1:]:
        found = found.followed_by(part)
    assert found.taken == 3000 and found.every == 4 and len(found.steps) == 751 <= MOST_STEPS
    assert found.steps.tolist() == [*range(1, 3000, 4), 3000]
    assert found.times.size <= MOST_TIMES + found.times[0].size and found.sums.size <= MOST_SUMS
    for place, at in enumerate(found.timed.tolist()):  # the right times stand with the right steps
        part = parts[(found.steps[at] - 1) // 100]
        assert (found.times[place] == part.times[(found.steps[at] - 1) % 100]).all()
    path = found.save(tmp_path / "run.json")
    assert path.stat().st_size <= 5_000_000 <= MOST_BYTES
    again = Recording.load(path)
    assert all((getattr(again, name) == getattr(found, name)).all() for name in ARRAYS)
    assert again.text() == found.text() and again.lanes == found.lanes and again.holders == found.holders
    assert "one in 4 kept" in found.said


@pytest.mark.exhaustive
def test_a_long_program_leaves_less_room_for_times(simulated, tmp_path):
    """Each of 2,176 instructions has a long name: 2 MB. The file of 1,000 steps was longer than 5 MB."""
    lanes = tuple(
        tuple(
            replace(one, name=f"{copy} of {one.name} on {rank} ".ljust(900, "n")) for copy in range(8) for one in lane
        )
        for rank, lane in enumerate(simulated.lanes)
    )
    count, rng = sum(map(len, lanes)), np.random.default_rng(4)
    steps, each = np.arange(1, 1001), simulated.sums.shape[1:]
    found = replace(
        simulated, lanes=lanes, taken=1000, steps=steps, timed=np.arange(1000), took=rng.random(1000),
        times=np.sort(rng.integers(0, 2**23, (1000, count, 2)), axis=2), sums=rng.integers(0, 2**32, (1000, *each)),
        **{name: rng.random((1000, *each[:1])) for name in ("losses", "sent", "held")}, sizes=rng.random((1000, *each)),
    )._bounded()  # fmt: skip
    assert 1_500_000 < found.save(tmp_path / "run.json").stat().st_size <= 5_000_000
    assert len(found.steps) == 1000 and 1 < len(found.timed) < 1000
    assert f"with the times of {len(found.timed)} of 1000" in found.said
    assert Recording.load(tmp_path / "run.json").lanes == lanes


def test_a_run_that_goes_on_with_another_program_is_another_recording(simulated):
    other, _ = run_of("simulator", 2, 4)
    assert simulated.followed_by(other) is other


JUNK = {
    "no form": lambda d: d.update(format="else"),
    "another version": lambda d: d.update(version=3),
    "a field more": lambda d: d.update(more=1),
    "a rank that is not there": lambda d: d["holders"][0].__setitem__(0, 9),
    "a row that is not there": lambda d: d["lanes"][0].__setitem__(0, 10**6),
    "too many steps": lambda d: d.update(counts=[10**9, 1]),
    "no steps": lambda d: d.update(counts=[0, 0]),
    "another source": lambda d: d.update(source="guessed"),
    "an array too few": lambda d: d["arrays"].pop("sums"),
    "no base64": lambda d: d["arrays"].update(sums="*"),
    "not deflated": lambda d: d["arrays"].update(sums="AAAA"),
    "too short": lambda d: d["arrays"].update(sums=packed(b"\0" * 4)),
    "a bomb": lambda d: d["arrays"].update(sums=packed(b"\0" * 50_000_000)),
    "NaN": lambda d: d["arrays"].update(held=packed(np.full((6, 8), np.nan).tobytes())),
    "steps in no order": lambda d: d["arrays"].update(steps=packed(np.arange(6, 0, -1, "<u4").tobytes())),
    "times that run backwards": lambda d: d["arrays"].update(times=backwards(d)),
}


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def backwards(data: dict) -> str:
    times = np.zeros((6, sum(map(len, data["lanes"])), 2), "<u4")
    times[0, 0, 0] = 1
    return packed(times.tobytes())


@pytest.mark.quick(4)
@pytest.mark.parametrize("fault", JUNK)
def test_a_file_that_is_not_as_it_must_be_is_refused(fault, simulated, tmp_path):
    data = copy.deepcopy(simulated.packed)
    JUNK[fault](data)
    (tmp_path / "run.json").write_text(json.dumps(data))
    with pytest.raises(DataFileError):
        Recording.load(tmp_path / "run.json")
