"""What became of a job: the results, or one error that shows the first cause and folds its consequences into a line."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import dill

from ..base.errors import CollectiveMismatch, ParallelLabError, RankDied, RankRaised
from .faults import FAULT_ERRORS, limited
from .flight import FlightEntry
from .jobs import Job
from .learners_files import NOT_FOUND, learners_folders, same_names

TEXT_LIMIT = 4_000  # characters of an exception's text that are shown; `__cause__` has it whole


def load_report(kind: bytes, body: bytes) -> tuple[str, object]:
    """("result", value), ("stopped", None) or ("error", dict)."""
    if kind == b"S":
        return "stopped", None
    try:
        value = dill.loads(body)
    except Exception as error:  # a value whose class does not exist here
        kind_of_error = type(error).__name__
        what = f"the notebook cannot rebuild what the rank returned ({kind_of_error}: {error})"
        told = {"kind": "raised", "secondary": False, "type": kind_of_error, "text": what}
        return "error", {**told, "time_s": 0.0, "frames": [], "cause": None}
    return ("result" if kind == b"D" else "error"), value


def death_text(rank: int, pid: int, code: int | None, entry: FlightEntry | None = None) -> str:
    """How the process of a rank ended, and in which call."""
    name = _signal_name(code)
    if name is None:
        how = "ended" if code is None else f"ended with exit code {code}"  # None: mpirun has not told it in time
    else:
        how = f"was killed by {name}" + (f" (signal {-code})" if name.startswith("SIG") else "")
    where = "" if entry is None else f" {'in' if entry.end_s is None else 'after'} {entry}"
    return f"rank {rank} (pid {pid}) {how}{where}"


class Memory(Protocol):
    """What is known of the calls of a run: an arena, or what ranks under MPI have told."""

    def last_entry(self, rank: int) -> FlightEntry | None:
        """What `rank` asked for last."""

    def read_fault(self) -> tuple[int, dict] | None:
        """(author, note) of the fault that stopped the run, or None."""

    def unread(self) -> str:
        """What is wrong with the messages of a run that has ended, "" when nothing is."""


def settle(
    memory: Memory, pids: Sequence[int], job: Job, dead: Mapping[int, int | None], killed: Collection[int]
) -> tuple[list | None, BaseException | None]:
    """(results, None) or (None, error) of a job whose ranks have all reported or are gone. `pids`: process per rank;
    `dead`: exit codes of ranks that died by themselves, the first one first; `killed`: ranks ended by the pool.
    """
    return _Run(memory, pids, job, killed).settle(dead)


@dataclass(frozen=True)
class _Run:
    memory: Memory
    pids: Sequence[int]
    job: Job
    killed: Collection[int]

    def settle(self, dead: Mapping[int, int | None]) -> tuple[list | None, BaseException | None]:
        job, reports = self.job, self.job._reports
        errors = {rank: body for rank, (kind, body) in reports.items() if kind == "error"}
        first_hand = {rank: body for rank, body in errors.items() if not body["secondary"]}
        fault = self.memory.read_fault()
        # a rank may have raised before another died: the fault note, which keeps the first fault, says which was first
        if dead and not (fault and fault[1]["kind"] == "RankRaised" and first_hand):
            return None, self._died(dead)
        if job._interrupted:
            return None, KeyboardInterrupt("the run was interrupted")
        if first_hand:
            return None, self._raised(first_hand)
        if fault is not None:
            note = fault[1]
            culprits = set(note.get("ranks") or ())
            others = self._consequences(culprits if note["kind"] != "DeadlockError" else set())
            error = FAULT_ERRORS.get(note["kind"], ParallelLabError)(_sentences(note["text"], others))
            return None, _set(error, ranks=sorted(culprits))
        unread = self.memory.unread() if job._control != "stop" else ""
        if unread:
            return None, CollectiveMismatch(unread)
        return [reports[rank][1] for rank in range(len(self.pids))], None

    def _died(self, dead: Mapping[int, int | None]) -> BaseException:
        rank, code = next(iter(dead.items()))
        pid, entry = self.pids[rank], self.memory.last_entry(rank)
        error = RankDied(_sentences(death_text(rank, pid, code, entry), self._consequences(set(dead))))
        return _set(error, rank=rank, pid=pid, exit_code=code, signal_name=_signal_name(code), entry=entry)

    def _raised(self, first_hand: dict[int, dict]) -> BaseException:
        rank = min(first_hand, key=lambda r: first_hand[r]["time_s"])
        pid, body = self.pids[rank], first_hand[rank]
        same = {r for r, b in first_hand.items() if r != rank and b["type"] == body["type"]}
        folded = self._consequences({rank}, same)
        if body["kind"] != "raised":  # one of our own: it names its ranks itself
            error = FAULT_ERRORS.get(body["kind"], ParallelLabError)(_sentences(body["text"], folded))
            note = self.memory.read_fault()
            return _set(error, rank=rank, pid=pid, ranks=note[1].get("ranks", [rank]) if note else [rank])
        text = limited(body["text"], TEXT_LIMIT)
        # source lines are looked up here: cells are known to the notebook, not to its workers
        frames = [traceback.FrameSummary(*place, line=source or None) for *place, source in body["frames"]]
        where = "".join(traceback.format_list(_readable(frames))).rstrip()
        message_text = _sentences(f"rank {rank} (pid {pid}) raised {body['type']}: {text}", folded)
        error = RankRaised(f"{message_text}\n{where}" if where else message_text)
        for folder in sorted(learners_folders()) if body["type"] in NOT_FOUND else ():
            for line in same_names(folder, f" raised {body['type']}: {text}", first=False):
                error.add_note(line)
        if body["cause"] is not None:
            try:
                error.__cause__ = dill.loads(body["cause"])
            except Exception as failure:  # its class does not exist here; the text above says what it was
                error.add_note(f"The original {body['type']} could not be rebuilt here ({type(failure).__name__}).")
        return _set(error, rank=rank, pid=pid, frames=frames, ranks=[rank])

    def _consequences(self, causes: set[int], same: Collection[int] = ()) -> str:
        """One line about the other ranks: which raised the same, which were stopped where, which were killed."""
        parts = [f"{_ranks(same)} raised the same"] if same else []
        places: dict[str, list[int]] = {}
        for rank in sorted(set(range(len(self.pids))) - causes - {*same, *self.killed}):
            kind, body = self.job._reports.get(rank, ("", None))
            if kind == "stopped" or (kind == "error" and body["secondary"]):
                entry = self.memory.last_entry(rank)
                origin = f" ({entry.origin})" if entry and entry.origin else ""
                place = f"in {entry.kind} #{entry.number}{origin}" if entry else "before the first call"
                places.setdefault(place, []).append(rank)
        parts += [f"{_ranks(ranks)} stopped {place}" for place, ranks in places.items()]
        if self.killed:
            parts.append(f"{_ranks(self.killed)} did not come back and the workers were ended, their state is lost")
        text = "; ".join(parts)
        return text[:1].upper() + text[1:]


def _readable(frames: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Frames of notebook cells under the names the notebook shows, such as "In[3]"."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    shown = ((f"In[{names[f.filename]}]" if f.filename in names else f.filename, f) for f in frames)
    return [traceback.FrameSummary(name, f.lineno, f.name, line=f.line) for name, f in shown]


def _ranks(ranks) -> str:
    ordered = sorted(ranks)
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(map(str, ordered))}"


def _sentences(*parts: str) -> str:
    return " ".join(p if p.endswith((".", "\n")) else p + "." for p in parts if p)


def _signal_name(code: int | None) -> str | None:
    if code is None or code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _set(error: BaseException, **attributes: object) -> BaseException:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error
