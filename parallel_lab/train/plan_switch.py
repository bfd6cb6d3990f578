"""From one plan to another between two steps: parameters and optimizer states go from the slices of the old layouts to
those of the new ones, and the training goes on.

    switched = session.switch(compile(net, *batch, loss=loss, optimizer=optimizer, device_num=8, ...))
    print(switched)                     # after step 37: 24 KiB in 12 messages between 8 ranks; ...

Whatever a new rank lacks comes from the nearest rank that has it: one message per pair of ranks, with what they share
of all tensors. With another number of ranks these are other workers: the slices go through this process, each once on
the way in. A tensor is known by its name, a state by its parameter and kind; layouts, stages and owners may all differ.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import PlanError, shorten
from ..base.units import bytes_text
from ..graph.plan import Plan
from ..layout.tensor_layout import TensorLayout
from ..run.communicator import Request
from ..run.simulator import simulate
from .checkpoint.reslice import Index, holder, overlaps, whole

WHERE = "Session.switch"


class Piece(NamedTuple):
    """What a rank needs of one tensor: these elements of `old` on rank `source` are those of its `new`."""

    old: str
    new: str
    source: int
    taken: Index
    placed: Index
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        return int(np.prod([s.stop - s.start for s in self.placed], dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class RankMoves:
    """What one rank does: its new tensors (shape, dtype), and the pieces it keeps, sends by rank, receives by rank."""

    new: dict[str, tuple[tuple[int, ...], str]]
    own: tuple[Piece, ...] = ()
    sends: dict[int, tuple[Piece, ...]] = field(default_factory=dict)
    takes: dict[int, tuple[Piece, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Switched:
    """What a switch has moved; counted, not predicted.

    step        steps before it
    devices     ranks before and after
    moved       bytes that went between ranks, or in and out of this process;  messages: in so many
    total       bytes of parameters and states on all ranks of the new plan
    same_workers  whether the workers are the same as before
    """

    step: int
    devices: tuple[int, int]
    moved_bytes: int
    messages: int
    total_bytes: int
    same_workers: bool

    def __str__(self) -> str:
        before, after = self.devices
        several = "message" if self.messages == 1 else "messages"
        moved = f"{bytes_text(self.moved_bytes)} in {self.messages} {several}"
        if not self.same_workers:
            way = f"{moved} through the notebook's process, from {before} to {after} ranks"
        elif not self.messages:
            way = "nothing had to move"
        else:
            way = f"{moved} between ranks; the rest lay in place"
        of = f"parameters and optimizer states ({bytes_text(self.total_bytes)} on all ranks)"
        return f"switched after step {self.step}: {of}: {way}"


def _facts(plan: Plan) -> dict[tuple[str, ...], str]:
    """{what it is: value name} of all that lives from step to step."""
    facts = {("parameter", p.name): p.name for p in plan.parameters}
    return facts | {("state", s.parameter, s.kind, plan.value(s.name).dtype): s.name for s in plan.states}


def matched(old: Plan, new: Plan) -> dict[str, str]:
    """{value name in `new`: in `old`} of parameters and states. PlanError: they do not train the same."""
    if not isinstance(new, Plan):
        raise PlanError(f"plan is {shorten(new)}", where=WHERE, allowed="What parallel_lab.compile returns")
    if new.optimizer != old.optimizer:
        what = f"the new plan was compiled with {new.optimizer or 'no optimizer'}, the session trains with "
        raise PlanError(what + (old.optimizer or "none"), where=WHERE, allowed="The same optimizer, the same settings")
    inputs = [[(i.shape, i.dtype) for i in plan.data_inputs] for plan in (old, new)]
    if inputs[0] != inputs[1]:
        what, allowed = f"the new plan takes inputs {inputs[1]}", f"Those of the training: {inputs[0]}"
        raise PlanError(what, where=WHERE, allowed=allowed, hint="Compile with the same batch")
    before, after = _facts(old), _facts(new)
    for missing, of in ((before.keys() - after.keys(), "new plan"), (after.keys() - before.keys(), "training")):
        if missing:
            what = f"the {of} has no {' '.join(sorted(missing)[0])}"
            raise PlanError(what, where=WHERE, hint="Compile the same network with other strategies or settings")
    for key, name in after.items():
        have, want = old.value(before[key]), new.value(name)
        if (have.shape, have.dtype) != (want.shape, want.dtype):
            what = f"{name!r} is {want.dtype} {want.shape}"
            raise PlanError(what, where=WHERE, allowed=f"{have.dtype} {have.shape}, as in the training")
    return {name: before[key] for key, name in after.items()}


def _placed(plan: Plan, name: str) -> TensorLayout:
    layout = plan.value(name).layout
    return whole(len(plan.value(name).shape)) if layout is None or plan.owner_of(name) is not None else layout


def _pieces(old: Plan, new: Plan, names: Mapping[str, str], rank: int) -> Iterator[Piece]:
    """What `rank` of the new plan needs, from the nearest rank that has it: itself, its old stage, the first stage."""
    local, place = rank % old.stages[0].count, rank % new.stages[0].count
    for name, before in names.items():
        if not new.held_by(name, rank):
            continue
        value, src, dst = new.value(name), _placed(old, before), _placed(new, name)
        owner, own = old.owner_of(before), rank < old.device_num and old.held_by(before, rank)
        stage = old.stages[old.at(rank)] if own else next(s for s in old.stages if old.held_by(before, s.first))
        shape = dst.slice_shape(value.shape)
        for source, taken, placed in overlaps(src, dst, value.shape, place if dst.device_num > 1 else 0, ()):
            if owner is not None:
                at = owner
            elif src.device_num == 1:
                at = rank if own else stage.first
            else:
                at = stage.first + holder(src, src.slice_numbers(source), local if own else place)
            yield Piece(before, name, at, taken, placed, shape, value.dtype)


def moves_of(old: Plan, new: Plan) -> list[RankMoves]:
    """Per rank of `new` what it keeps, sends and receives. `sends` only where both have the same number of ranks."""
    names = matched(old, new)
    own: list[list[Piece]] = []
    takes: list[dict[int, list[Piece]]] = []
    sends: list[dict[int, list[Piece]]] = [defaultdict(list) for _ in range(max(old.device_num, new.device_num))]
    for rank in range(new.device_num):
        mine, others = [], defaultdict(list)
        for piece in _pieces(old, new, names, rank):
            if piece.source == rank:
                mine.append(piece)
            else:
                others[piece.source].append(piece)
                sends[piece.source][rank].append(piece)
        own.append(mine)
        takes.append(others)

    def held(rank: int) -> dict[str, tuple[tuple[int, ...], str]]:
        return {
            name: (_placed(new, name).slice_shape(new.value(name).shape), new.value(name).dtype)
            for name in names
            if new.held_by(name, rank)
        }

    def tuples(found: Mapping[int, list[Piece]]) -> dict[int, tuple[Piece, ...]]:
        return {rank: tuple(pieces) for rank, pieces in sorted(found.items())}

    same = old.device_num == new.device_num
    return [
        RankMoves(held(r), tuple(own[r]), tuples(sends[r]) if same else {}, tuples(takes[r]))
        for r in range(new.device_num)
    ]


def move_on_rank(
    moves: RankMoves, rank: int, env: Mapping[str, np.ndarray]
) -> Generator[Request, Any, tuple[dict[str, np.ndarray], int, int]]:
    """One rank's program: (its new tensors, bytes and messages it has sent). The old ones stay as they are."""
    sent = 0
    for target, pieces in moves.sends.items():
        parts = [np.ascontiguousarray(env[p.old][p.taken]).reshape(-1).view(np.uint8) for p in pieces]
        message = np.concatenate(parts)
        sent += message.nbytes
        yield Request("send", (rank, target), message, origin=WHERE)
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in moves.new.items()}
    for piece in moves.own:
        arrays[piece.new][piece.placed] = env[piece.old][piece.taken]
    for source, pieces in moves.takes.items():
        size = sum(p.size_bytes for p in pieces)
        message = yield Request("recv", (source, rank), shape=(size,), dtype="uint8", origin=WHERE)
        ends = list(itertools.accumulate((p.size_bytes for p in pieces), initial=0))
        for piece, begin, end in zip(pieces, ends, ends[1:], strict=False):
            part = arrays[piece.new][piece.placed]
            arrays[piece.new][piece.placed] = message[begin:end].view(piece.dtype).reshape(part.shape)
    return arrays, sent, len(moves.sends)


def needed(moves: list[RankMoves], ranks: int) -> list[list[str]]:
    """Per old rank the names that this process must collect, each slice from one rank."""
    names: list[dict[str, None]] = [{} for _ in range(ranks)]
    for mine in moves:
        for piece in itertools.chain(mine.own, *mine.takes.values()):
            names[piece.source][piece.old] = None
    return [list(found) for found in names]


def size_of(envs: Iterable[Mapping[str, np.ndarray]]) -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for env in envs for array in env.values())


Amount = tuple[int, int, int]  # bytes moved, messages, bytes on all ranks
Envs = list[dict[str, np.ndarray]]


def between_ranks(counts: Iterable[tuple[int, int, int]]) -> Amount:
    """The sum of what the ranks have counted."""
    moved, messages, total = (sum(column) for column in zip(*counts, strict=True))
    return moved, messages, total


def on_simulator(moves: list[RankMoves], envs: Sequence[Mapping[str, np.ndarray]]) -> tuple[Envs, Amount]:
    """The new tensors of simulated ranks, by the messages of `move_on_rank`."""
    results = simulate([move_on_rank(mine, rank, envs[rank]) for rank, mine in enumerate(moves)])
    envs_after = [env for env, _, _ in results]
    return envs_after, between_ranks((sent, messages, size_of([env])) for env, sent, messages in results)


def through_here(moves: list[RankMoves], parts: Sequence[Mapping[str, np.ndarray]]) -> tuple[Envs, Amount]:
    """The new tensors of other ranks, from `parts` by old rank: what comes in once, and each rank's own goes out."""
    envs_after: Envs = []
    for mine in moves:
        env = {name: np.zeros(shape, dtype) for name, (shape, dtype) in mine.new.items()}
        for piece in itertools.chain(mine.own, *mine.takes.values()):
            env[piece.new][piece.placed] = parts[piece.source][piece.old][piece.taken]
        envs_after.append(env)
    used = [{name: parts[rank][name] for name in names} for rank, names in enumerate(needed(moves, len(parts)))]
    total = size_of(envs_after)
    return envs_after, (size_of(used) + total, sum(map(bool, used)) + len(envs_after), total)
