"""The outer choice: how to spend so many devices on copies, layers' ranks and stages, and what to give up for memory.

    found = search_plans("gpt3_175b", get_machine("dgx_a100", 1024), batch=1536)
    print(found.winner.explain())
    print(found.text())                  winner, the line of time against memory, what was refused and why
    print(found.why(found.verdicts[7]))  one point next to the winner, term by term

Every point of the space is looked at. In turn it is refused where it does not fit the model, where its states alone are
more than the memory, where its prediction is, or where no schedule could make it faster than a point that was predicted
and needs no more memory (`Pricing.least_s`). The clock runs for the others, so winner and line are those of the whole
space. No plan of all devices is compiled, and the time does not depend on how many there are.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ...base.checks import choice, flag, integer, number, sequence_of
from ...base.cluster import Cluster
from ...base.collector import without_collector
from ...base.errors import ArgumentError
from ...base.progress import Progress
from ...base.units import bytes_text, table_lines, time_text
from .clusters import Machine, get_machine
from .decoder_point import NUMBERS, OFFLOADS, SCHEDULES, STATES, WAYS, Columns, DecoderPoint, decoder_space
from .decoders import KEPT, Decoder
from .models import RECOMPUTE, Transformer
from .point import PRECISIONS, PlanPoint, Prediction
from .predict import Pricing, get_model, pricing_of
from .verdicts import Verdict, Verdicts, judge_decoders, over_text

_TOLD = {
    "misfit": "do not fit the model, the batch or a schedule",
    "states": "have larger states than the memory",
    "memory": "need more memory",
    "slower": "are slower than a point that needs no more memory",
}
_COUNTS = sequence_of(integer(1), "Whole numbers of at least 1 in a list or tuple")
_CHECKS = {
    "micro_batch": _COUNTS,
    "chunks": _COUNTS,
    "levels": sequence_of(integer(0, 3), "Numbers from 0 to 3 in a list or tuple"),
    "recompute": sequence_of(choice(*RECOMPUTE), f"Some of {', '.join(RECOMPUTE)} in a list or tuple"),
    "sequence_parallel": sequence_of(flag, "True and False in a list or tuple"),
    "overlap": flag,
}
_OF_DECODERS = {
    **{name: _CHECKS[name] for name in ("micro_batch", "chunks", "levels", "sequence_parallel")},
    **dict.fromkeys(("context", "expert", "expert_tensor", "replicas"), _COUNTS),
    "schedules": sequence_of(choice(*SCHEDULES), f"Some of {', '.join(SCHEDULES)} in a list or tuple"),
    "offload": sequence_of(choice(*OFFLOADS), f"Some of {', '.join(OFFLOADS)} in a list or tuple"),
    **{"numbers": choice(*NUMBERS), "states": choice(*STATES), "gradient_bytes": choice(4, 2)},
    **dict.fromkeys(("flash", "fused", "overlap", "tensor_overlap", "one_copy"), flag),
    "ways": sequence_of(choice(*WAYS), f"Some of {', '.join(WAYS)} in a list or tuple"),
    "recompute": sequence_of(choice(*KEPT), f"Some of {', '.join(KEPT)} in a list or tuple"),
}


@dataclass(frozen=True)
class Found:
    """Verdicts of all points, in the order of the space."""

    model: Transformer | Decoder
    machine: Machine
    batch: int
    memory_bytes: float
    precision: str
    verdicts: Verdicts

    words = _TOLD  # {kind of a verdict: in words}

    @property
    def line(self) -> tuple[Prediction, ...]:
        """Points than which none is faster with as little memory, the fastest first."""
        return tuple(sorted(self.verdicts.predictions.values(), key=lambda p: p.step_s))

    @property
    def winner(self) -> Prediction:
        """The fastest. Raises ArgumentError where nothing fits, with what is nearest."""
        if not self.line:
            near = self.verdicts.nearest("states", "memory")
            hint = f"The least is {near.point.text()}: {near.reason}" if near else self.verdicts[0].reason
            what = f"none of {len(self.verdicts)} points of {self.model.name} fits"
            raise ArgumentError(what, where=f"{self.machine.cluster.name}, batch {self.batch}", hint=hint)
        return self.line[0]

    @property
    def counts(self) -> dict[str, int]:
        """How many points for each reason; "best": on the line."""
        refused = Counter(self.verdicts.kinds.tolist())
        return {"best": refused[""], **{kind: refused[kind] for kind in _TOLD}}

    def why(self, verdict: Verdict) -> str:
        """Why a point is refused; for one that could be, its terms next to the winner's, and the one that decides."""
        head = f"{verdict.point.text()}: {verdict.reason or 'on the line of time against memory'}"
        if verdict.kind in ("misfit", "states"):
            return head
        best = self.winner
        here = (
            verdict.prediction
            or pricing_of(self.model)(self.model, verdict.point, self.machine, self.precision).predict()
        )
        more = {name: getattr(here, name) - getattr(best, name) for name in here.terms}
        rows = [("", "this", "winner", "more")]
        for name in here.terms:
            a, b = (time_text(getattr(p, name)) for p in (here, best))
            rows.append((name.removesuffix("_s"), a, b, f"{more[name]:+.3g} s"))
        rows.append(("memory", bytes_text(here.memory_bytes), bytes_text(best.memory_bytes), ""))
        lines = [head, *table_lines(rows, right=[1, 2, 3])]
        if more["step_s"] > 0:
            lines.append(f"What it loses most by: {max(here.terms[1:], key=more.__getitem__).removesuffix('_s')}.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self, most: int = 12) -> str:
        """The line of time against memory (at most so many points of it), and how many were refused, by reason."""
        counts, devices = self.counts, self.winner.point.devices
        head = f"{self.model.name} on {devices} devices of {self.machine.cluster.name}, batch {self.batch}"
        rows = [("step", "MFU", "waiting", "memory", "plan")]
        for p in self.line[:most]:
            size, plan = bytes_text(p.memory_bytes), p.point.text()
            rows.append((time_text(p.step_s), f"{p.mfu:.1%}", f"{p.bubble:.1%}", size, plan))
        lines = [
            f"{head}; at most {bytes_text(self.memory_bytes)} a rank; predicted",
            *table_lines(rows, right=range(4)),
        ]
        if len(self.line) > most:
            lines.append(f"... and {len(self.line) - most} more with less memory")
        lines.append(f"{len(self.verdicts)} points: {counts['best']} best")
        lines += [f"  {counts[kind]} {words}" for kind, words in _TOLD.items() if counts[kind]]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        listed = [{"point": dict(vars(v.point)), "kind": v.kind, "reason": v.reason} for v in self.verdicts if v.kind]
        best = {"winner": self.winner.to_dict(), "line": [p.to_dict() for p in self.line]}
        return {**best, "counts": self.counts, "refused": listed, "memory_bytes": self.memory_bytes}


def space(
    model: Transformer,
    devices: int,
    batch: int,
    *,
    tensor: Sequence[int],
    micro_batch: Sequence[int] = (1, 2, 4, 8),
    chunks: Sequence[int] = (1, 2, 4),
    levels: Sequence[int] = (0, 1, 2, 3),
    recompute: Sequence[str] = RECOMPUTE,
    sequence_parallel: Sequence[bool] = (False, True),
    overlap: bool = True,
) -> Iterator[PlanPoint]:
    """All points with exactly so many devices and sequences: every number of stages that divides the layers."""
    for t in tensor:
        most = math.gcd(model.layers, devices // t) if devices % t == 0 else 0
        for stages in (p for p in range(1, most + 1) if most % p == 0):
            data = devices // (t * stages)
            for b, v in itertools.product(micro_batch, chunks):
                if batch % (data * b) or (v > 1 and (stages == 1 or model.layers % (stages * v))):
                    continue
                m, schedule = batch // (data * b), "interleaved" if v > 1 else "1f1b"
                rest = (levels if data > 1 else (0,), recompute, sequence_parallel if t > 1 else (False,))
                for more in itertools.product(*rest):
                    yield PlanPoint(data, t, stages, b, m, v, schedule, *more, overlap=overlap and data > 1)


def search_plans(
    model: Transformer | Decoder | str,
    machine: Machine | Cluster | str,
    batch: int,
    *,
    seq_length: int | None = None,
    devices: int | None = None,
    memory_bytes: float | None = None,
    points: Iterable[PlanPoint] | Iterable[DecoderPoint] | None = None,
    tensor: Sequence[int] | None = None,
    precision: str = "mixed",
    progress: Progress | None = None,
    **options: Any,
) -> Found:
    """The fastest way to train a model on a machine with `batch` sequences a step, and all others with their reasons.

    seq_length    of a Decoder, which sets no length itself: tokens of a sequence
    memory_bytes  of a rank; None: of its device
    points        the space; None: `space` of all devices with `options`, the keywords of `space`; for a Decoder
                  `decoder_space`: context, expert, expert_tensor, ways, ...
    progress      counts points: each is priced, and then timed or found to be slower
    tensor        None: powers of two up to a node's devices and the heads

    Raises ArgumentError for an empty space; `Found.winner` where nothing fits.
    """
    where = "search_plans"
    model, machine = get_model(model), get_machine(machine, devices)
    of_decoder = isinstance(model, Decoder)
    if of_decoder != (seq_length is not None):
        allowed = "Tokens of a sequence" if of_decoder else f"None: {model.name} has its own"
        raise ArgumentError(f"seq_length={seq_length} for {model.name}", where=where, allowed=allowed)
    batch = integer(1)(where, "batch", batch)
    choice(*PRECISIONS)(where, "precision", precision)
    cap = machine.cluster.device.memory_bytes if memory_bytes is None else memory_bytes
    cap = number(0, above=True)(where, "memory_bytes", cap)
    if points is None:
        checks: dict[str, Any] = _OF_DECODERS if of_decoder else _CHECKS
        for name, value in options.items():
            options[name] = checks[choice(*checks)(where, "option", name)](where, name, value)
        most = min(machine.cluster.devices_per_node, machine.cluster.device_num)
        powers = [1 << n for n in range(11) if 1 << n <= most and model.heads % (1 << n) == 0]
        tensor = powers if tensor is None else _COUNTS(where, "tensor", tensor)
        options["tensor"] = tensor
        if isinstance(model, Decoder):
            own = {"seq_length": integer(1)(where, "seq_length", seq_length), "node": machine.cluster.devices_per_node}
            points = decoder_space(model, machine.cluster.device_num, batch, **own, **options)
        else:
            points = space(model, machine.cluster.device_num, batch, **options)
    listed = Columns.of_points(cast(Any, points)) if of_decoder else tuple(points)
    if not len(listed):
        what = f"no way to spend {machine.cluster.device_num} devices on {model.layers} layers with batch {batch}"
        hint = "The batch must be a multiple of the copies: devices / (ranks of a layer * stages)"
        raise ArgumentError(what, where=where, hint=hint)
    if isinstance(model, Decoder):
        found = judge_decoders(model, machine, cast(Columns, listed), cap)
    else:
        found = _verdicts(model, machine, cast(Any, listed), cap, precision, progress or Progress())
    return Found(model, machine, batch, cap, precision, found)


_Best = tuple[float, float, int]  # seconds, bytes, place in the space


@without_collector
def _verdicts(
    model: Transformer, machine: Machine, points: Sequence[PlanPoint], cap: float, precision: str, progress: Progress
) -> Verdicts:
    verdicts: dict[int, Verdict] = {}
    price = Pricing
    priced: list[tuple[float, float, int]] = []
    progress.begin(2 * len(points))
    for at, point in enumerate(points):
        progress.step()
        if fault := price.misfit(model, point, machine.cluster):
            verdicts[at] = Verdict(point, "misfit", fault)
        elif (states := price.states_bytes(model, point, precision)) > cap:
            verdicts[at] = Verdict(point, "states", f"states alone {over_text(states, cap)}", memory_bytes=states)
        else:
            one = price(model, point, machine, precision)
            priced.append((one.least_s, one.memory_bytes, at))
            if one.memory_bytes > cap:
                verdicts[at] = Verdict(point, "memory", over_text(one.memory_bytes, cap), *priced.pop()[:2])

    def refuse(seconds: float, size: float, at: int, by: _Best) -> None:
        this, other = (f"{time_text(s)} and {bytes_text(n)}" for s, n in ((seconds, size), by[:2]))
        verdicts[at] = Verdict(
            points[at], "slower", f"at least {this}; {points[by[2]].text()} takes {other}", seconds, size
        )

    best: list[_Best] = []
    clocked: dict[int, tuple[float, int]] = {}
    for least_s, size, at in sorted(priced):
        progress.step(len(points) / len(priced))
        better = next((b for b in best if b[0] <= least_s and b[1] <= size), None)
        if better is None:
            one = price(model, points[at], machine, precision)
            clocked[at] = one.clock(one.borders())
            least_s = clocked[at][0]
            better = next((b for b in best if b[0] <= least_s and b[1] <= size), None)
        if better is not None:
            refuse(least_s, size, at, better)
            continue
        for worse in [b for b in best if least_s <= b[0] and size <= b[1]]:
            best.remove(worse)
            refuse(*worse, (least_s, size, at))
        best.append((least_s, size, at))
    for seconds, size, at in best:
        prediction = price(model, points[at], machine, precision).predict(clocked=clocked[at])
        verdicts[at] = Verdict(points[at], "", "", seconds, size, prediction)
    every = [verdicts[at] for at in range(len(points))]
    kinds, seconds, sizes = ([getattr(v, name) for v in every] for name in ("kind", "least_s", "memory_bytes"))
    on_line = {at: v.prediction for at, v in verdicts.items() if v.prediction is not None}
    return Verdicts(points, kinds, seconds, sizes, lambda at: verdicts[at].reason, on_line)
