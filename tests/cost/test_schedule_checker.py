"""The checker gives the right reason why a schedule cannot run, and passes those that can."""

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, make_schedule


def only(text, kind, *words, **what):
    """The one fault of a drawn schedule."""
    cap, rendezvous = what.pop("cap", None), what.pop("rendezvous", False)
    faults = Schedule.from_text(text, **what).check(cap, rendezvous=rendezvous)
    assert [fault.kind for fault in faults] == [kind], [str(fault) for fault in faults]
    for word in words:
        assert word in str(faults[0])
    return faults[0]


def test_every_fault_has_its_sentence():
    only("0F0 0B0\n1F0 1B0 2F0", "number", "part 2; the network has parts 0 to 1", parts=2)
    only("0F0 0F1 0B0\n1F0 1B0", "number", "micro-batch 1; there are 0 to 0", micro_batches=1)
    text = "0F0 0B0 1B0\n1F0"
    faults = Schedule.from_text(text, holds="loop").check()
    assert (faults[0].kind, faults[0].rank, faults[0].position) == ("placement", 0, 2)
    assert "part 1 lies on rank 1, rank 0 has 0" in str(faults[0])
    split = Schedule.from_text("0F0 1B0\n1F0 0B0", holds=((0, 1), (0, 1))).check()
    assert [f.kind for f in split] == ["placement", "placement"] and "which ran on rank 1" in str(split[0])
    only("0F0 0B0 0F0\n1F0 1B0", "twice", "0F0 is done a second time; the same rank has done it")
    only("0F0 0B0\n1B0", "never", "1F0 is never done; it belongs on rank 1, and 1B0 of rank 1 waits for it")
    only("0F0 0B0\n1F0", "never", "1B0 is never done", "0B0 of rank 0 waits for it")
    only("0F0 0B0 0W0 0F1 0B1", "never", "0W1 is never done")
    only("0B0 0F0\n1F0 1B0", "input", "0B0 needs 0F0", "only at action 1", "0F0 must come first")
    only("0F0 0F1 0F2 0B0 0B1 0B2", "memory", "action 2 of rank 0", "keeps 2 of 2 (0F0, 0F1); a B of one", cap=2)
    only("0F0 0B0 0F1 0W0 0B1 0W1", "memory", "a W of one of them", cap=1)
    only("0B0 0F0 0F1 0B1", "input", "0F0 must come first", cap=1)  # and no memory lacks when it does
    only("0F0 0F9 0B0", "number", "micro-batch 9", micro_batches=1, cap=1)
    missing = Schedule.from_text("0F0 0F1 0B1").check(1)  # why memory is short comes first
    assert [fault.kind for fault in missing] == ["never", "memory"]
    assert Schedule.from_text("0F0 0F1 0B0 0B1").check(2) == []
    with pytest.raises(ArgumentError, match="one for each of 1 ranks"):
        Schedule.from_text("0F0 0B0").check((1, 2))


def test_a_circle_of_waits_is_reported_as_one():
    fault = only(
        "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1",
        "deadlock",
        "rank 0 waits, before 0B0, for 1B0 of rank 1",
        "rank 1 waits, before 1F1, for 0F1 of rank 0",
    )
    assert (fault.rank, fault.position) == (0, 1)


def test_messages_that_wait_for_their_partner_can_block_what_would_run():
    """1F1B: rank 0 has a forward to send while rank 1 has a gradient to send. GPipe never sends both ways at once."""
    schedule = make_schedule("1f1b", 2, 4)
    assert schedule.check() == []
    (fault,) = schedule.check(rendezvous=True)
    assert fault.kind == "deadlock"
    assert "rank 0 waits to send 0F1 to rank 1" in str(fault) and "rank 1 waits to send 1B0 to rank 0" in str(fault)
    for stages in (2, 3, 5):
        assert make_schedule("gpipe", stages, 4).check(rendezvous=True) == []
    in_turn = "0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1"
    assert Schedule.from_text(in_turn).check(rendezvous=True) == []


NAMES = (
    "gpipe",
    "1f1b",
    "eager_1f1b",
    "interleaved",
    "zb_h1",
    "zb_h2",
    "zero_bubble_v",
    "v_half",
    "chimera",
    "dualpipe",
)


def drawn(seed):
    """A legal schedule: a named one whose neighbouring actions were swapped at random, where it could still run."""
    rng = np.random.default_rng([5, seed])
    name = NAMES[seed % len(NAMES)]
    stages = int(rng.choice([2, 4]))
    schedule = make_schedule(name, stages, int(rng.choice([2, 3])) * 2 * stages, 2 if name == "interleaved" else 1)
    cells = [list(schedule.cells(rank)) for rank in range(stages)]
    for _ in range(12):
        rank = int(rng.integers(stages))
        at = int(rng.integers(len(cells[rank]) - 1))
        tried = [list(mine) for mine in cells]
        tried[rank][at], tried[rank][at + 1] = tried[rank][at + 1], tried[rank][at]
        if runs(tried, schedule):
            cells = tried
    return again(cells, schedule), rng


def again(cells, schedule):
    return Schedule.of(cells, parts=schedule.parts, micro_batches=schedule.micro_batches, holds=schedule.holds)


def runs(cells, schedule):
    """An independent judge: keep taking any rank's next action whose inputs are there."""
    done, left = set(), [list(mine) for mine in cells]
    moved = True
    while moved:
        moved = False
        for mine in left:
            while mine:
                inside = set()
                for action in mine[0]:
                    needed = set(schedule.needs(action))
                    if not needed <= done | inside:
                        break
                    inside.add((action.stage, action.kind, action.micro_batch))
                else:
                    done |= inside
                    mine.pop(0)
                    moved = True
                    continue
                break
    return not any(left)


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.quick(14)
def test_legal_schedules_pass(seed):
    schedule, _ = drawn(seed)
    assert schedule.check(schedule.peaks) == []
    assert schedule.clock().makespan > 0


@pytest.mark.parametrize("seed", range(300))
@pytest.mark.quick(20)
def test_illegal_schedules_get_the_right_reason(seed):
    """One change that makes a legal schedule illegal; the reason and the action are known from the change."""
    schedule, rng = drawn(seed)
    cells = [[list(cell) for cell in schedule.cells(rank)] for rank in range(len(schedule.ranks))]
    rank = int(rng.integers(len(cells)))
    at = int(rng.integers(len(cells[rank])))
    action = cells[rank][at][0]
    change = ("never", "twice", "placement", "memory", "input", "number", "deadlock")[seed // len(NAMES) % 7]
    cap = None
    if change == "never":
        cells[rank][at].remove(action)
    elif change == "twice":
        cells[rank].insert(int(rng.integers(at + 1, len(cells[rank]) + 1)), [action])
    elif change == "placement":
        away = [r for r, parts in enumerate(schedule.holds) if action.stage not in parts]
        if not away:
            away, schedule = [1 - rank], again([[tuple(c) for c in mine] for mine in cells], schedule)
            schedule = Schedule.of(
                schedule_cells(schedule),
                parts=schedule.parts,
                micro_batches=schedule.micro_batches,
                holds=[p if r != 1 - rank else tuple(set(p) - {action.stage}) for r, p in enumerate(schedule.holds)],
            )
        target = int(rng.choice(away))
        cells[rank][at].remove(action)
        cells[target].insert(int(rng.integers(len(cells[target]) + 1)), [action])
    elif change == "memory":
        cap = [peak - (r == rank) for r, peak in enumerate(schedule.peaks)]
    elif change == "input":
        action = next(a for cell in cells[rank][at:] + cells[rank] for a in cell if a.kind == "B")
        whole = next(cell for cell in cells[rank] if action in cell)
        whole.remove(action)
        first = next(
            i
            for i, cell in enumerate(cells[rank])
            for a in cell
            if a.kind == "F" and a.stage == action.stage and a.micro_batch == action.micro_batch
        )
        cells[rank].insert(first, [action])
    elif change == "number":
        cells[rank].insert(at, [type(action)(schedule.parts, "F", 0, "forward")])
    else:
        # rank 0 asks for a gradient before it has sent the forward that the other rank does first
        cells, schedule = circle(schedule)
    found = again([[tuple(cell) for cell in mine if cell] for mine in cells], schedule).check(cap)
    reasons = {fault.kind: fault for fault in reversed(found)}
    assert change in reasons, (change, str(action), [str(f) for f in found])
    if change in ("never", "twice", "input", "placement"):
        assert str(action) in {fault.action for fault in found if fault.kind == change}
    if change in ("memory", "twice", "number", "never"):
        assert set(reasons) <= {change}


def schedule_cells(schedule):
    return [list(schedule.cells(rank)) for rank in range(len(schedule.ranks))]


def circle(schedule):
    """The first backward of part 0 right after its first forward, and on the last rank the first backward after the
    forwards of all micro-batches: each then waits for the other."""
    last = schedule.parts - 1
    name, stages = "gpipe", max(2, len(schedule.ranks))
    plain = make_schedule(name, stages, schedule.micro_batches)
    cells = [[list(cell) for cell in plain.cells(rank)] for rank in range(stages)]
    first = next(cell for cell in cells[0] if cell[0].kind == "B")
    cells[0].remove(first)
    cells[0].insert(1, first)
    assert last >= 1
    return cells, plain
