"""The Hunt Lab: a training that is wrong, its graph with types, what was asked and answered, and the loss.

    lab = HuntLab("mlp", suspects=8, level="quiet", seed=3)
    lab.set_tensor("0.matmul"); lab.probe()             a point; lab.compare() of ranks 0 and 1 costs two
    lab.set_suspect(5); lab.set_mend("..."); lab.tell()
    print(lab.to_text())

Who looks at everything finds every bug. Par is what surely suffices, whatever the answers are. The hunt itself is
`game.py`, and runs nothing: all answers were computed when it was drawn. Points stay with a hunt: from the start
again, after another seed, in a branch and in a file of the lab. A page without a kernel is played, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ...base.errors import ArgumentError, shorten
from ...base.units import plural
from ...graph.value_types import ValueTypes, infer_types
from ..shared.lab import Lab, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.sections import Section, table
from .cases import ALIKE, AS_IT_SHOULD_BE, COMPARE, LEVELS, NETS, PROBE, STEPS, loss_row
from .game import Hunt
from .mutants import KINDS

SEEDS, RANKS = range(30), range(4)
COUNTS = dict.fromkeys(NETS, (4, 8, 16)) | {"experts": (4, 8)}  # a small network has few bugs that differ
# small networks have fewer bugs that look alike: all 32 of one have par 3, the other one has 12
FEW = {"mlp": "; par 3 at most", "experts": "; 8 at most"}
MOST_NAME = 30  # letters of an operator's name where a suspect is chosen
MENDS = dict.fromkeys(kind.mend for kind in KINDS.values())


class HuntLab(Lab):
    """A bug among suspects.

    net, suspects, level, seed   of the `Hunt`: one of NETS; one of its COUNTS; one of LEVELS; 0 to 29

    Raises ArgumentError for values that are not offered, and where a seed has too few bugs.
    """

    title = "Hunt Lab"
    scripts = ("hunt/story.js", "hunt/alone.js", "hunt/hunt_lab.js")
    styles = ("hunt/hunt_lab.css",)
    commands = ("probe", "compare", "tell", "forget", *COMMANDS)
    replayed = ("level",)
    frame_height_px = 780

    def __init__(
        self,
        net: str = "mlp",
        suspects: int = 8,
        level: str = "quiet",
        seed: int = 0,
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._hunts: dict[tuple[Any, ...], Hunt] = {}
        self._unread: dict[tuple[Any, ...], Mapping[str, Any]] = {}  # of a file, until they are chosen
        self._begin(net=net, suspects=suspects, level=level, seed=seed)
        self._draw()

    def _draw(self, **chosen: Any) -> dict[str, Any]:
        """Another hunt: a new one, or as it was left."""
        how = {"net": self._net, "suspects": self._suspects, "level": self._level, "seed": self._seed, **chosen}
        if (key := tuple(how.values())) not in self._hunts:
            self._hunts[key] = _as_left(Hunt(**how), self._unread.get(key))
            self._unread.pop(key, None)
        self.hunt = self._hunts[key]
        self.tensors = tuple(dict.fromkeys(look[1] for look in self.hunt.case.looks if look[0] == "probe"))
        self.types: ValueTypes = infer_types(self.hunt.plan)
        new = {"tensor": self.tensors[0], "rank": 0, "step": 0, "other": 1, "suspect": 0, "mend": next(iter(MENDS))}
        self._set(**new)
        return chosen

    # ---- what is hunted ----

    @setting("network", {name: label for name, (label, _) in NETS.items()})
    def set_net(self, net: str) -> dict[str, Any]:
        """Another network: a new hunt, with as many suspects as it can have, and as hard."""
        return self._draw(net=net, suspects=min(self._suspects, COUNTS[net][-1]))

    @setting("suspects", lambda lab: COUNTS[lab._net])
    def set_suspects(self, suspects: int) -> dict[str, Any]:
        """How many are shown: a new hunt."""
        return self._draw(suspects=suspects)

    @setting(
        "level", lambda lab: {n: f"{n}: {what}{FEW.get(lab._net, '') * (n == ALIKE)}" for n, what in LEVELS.items()}
    )
    def set_level(self, level: str) -> dict[str, Any]:
        """How much the loss shows: a new hunt."""
        return self._draw(level=level)

    @setting("seed", SEEDS)
    def set_seed(self, seed: int) -> dict[str, Any]:
        """Another bug; the same for all who take this seed."""
        return self._draw(seed=seed)

    # ---- what is asked ----

    set_tensor = offered("tensor", lambda lab: lab.tensors, "The value to probe.", look=True, tensor=str)
    set_rank = offered("rank", RANKS, "The rank to probe, and to compare with the other one.", look=True, rank=int)
    set_step = offered("step", range(STEPS), "The step in which to probe.", look=True, step=int)
    set_other = offered("other rank", RANKS, "The rank to compare with.", look=True, other=int)

    @setting("suspect", lambda lab: {n: _called(n, *one) for n, one in enumerate(lab.hunt.labels)}, look=True)
    def set_suspect(self, suspect: int) -> None:
        """Who it is: operator and kind."""

    set_mend = offered("mend", lambda lab: list(MENDS), "What makes it right.", look=True, mend=str)

    def probe(self) -> None:
        """Look at the chosen value, on the chosen rank, in the chosen step: one point."""
        self.hunt.probe(self._tensor, self._rank, self._step)
        self._changed("picture")

    def compare(self) -> None:
        """Compare the gradients of two ranks: two points. Raises ArgumentError for one rank twice."""
        self.hunt.compare(self._rank, self._other)
        self._changed("picture")

    def tell(self) -> None:
        """Name the chosen suspect with the chosen mend; what is not right costs two points."""
        self.hunt.name(*self.hunt.labels[self._suspect], self._mend)
        self._changed("picture")

    def forget(self) -> None:
        """The same hunt from the start; what was spent stays."""
        with self._lock:
            self.hunt.begin_again()
            self._draw()
        self._changed("picture")

    def branch(self) -> Self:
        """As `Lab.branch`, but for the hunts: what is asked there is asked here, too, and costs here."""
        other = super().branch()
        other._hunts, other._unread = self._hunts, self._unread
        return other

    def record(self) -> list[Any] | None:
        """Points and looks of every hunt that was begun."""
        begun = [(key, one) for key, one in self._hunts.items() if one.asked or one.tries > 1]
        how = [(key, [one.before, one.tries, [list(a.look) for a in one.asked]]) for key, one in begun]
        rows = [{"hunt": list(key), **dict(zip(_LEFT, left, strict=True))} for key, left in how]
        return [*rows, *map(dict, self._unread.values())] or None

    def take_record(self, record: Any) -> None:
        """Take up the hunts of a `record`. Raises ArgumentError for anything else."""
        if record is None:
            return
        if not isinstance(record, list) or not all(map(_is_row, record)):
            raise ArgumentError(f"record {shorten(record)}", where="HuntLab", allowed="Hunts, as `record` gives them")
        self._hunts.clear()
        self._unread = {tuple(row["hunt"]): row for row in record}
        self._draw()

    # ---- what is shown ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        hunt = self.hunt
        asked = plural(sum(a.look[0] != "name" for a in hunt.asked), "look")
        par = f"par {hunt.par}" if hunt.tries == 1 else "tried before"
        said = hunt.verdict or f"{len(hunt.left)} of {hunt.suspects} suspects fit the loss and all answers."
        return {
            "status": f"{asked}, {plural(hunt.spent, 'point')}; {par}. {said}",
            "sections": {
                "asked": self._looks(),
                "graph": self._graph(),
                "suspects": self._suspects_shown(),
                "loss": self._losses(),
            },
        }

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and what a page needs to answer and judge, sealed: not to be read at a glance (`alone.js`)."""
        with self._lock:
            return {**self.snapshot(), "sealed": self.hunt.sealed()}

    def questions(self) -> list[Question]:
        """What the gradient of a replicated value is before any message; par."""
        hunt, net, hides = self.hunt, NETS[self._net][0], ("sections", "status")
        text = "All ranks hold a value whole. What is its gradient, before a message adds it up?"
        why = "each rank has the addend of its own use of the value: copies have addends, addends have copies"
        words = ("replicated", "varying", "partial")
        points = (
            f"{len(hunt.case.start)} suspects fit the loss. A probe costs {PROBE} point, a comparison or a wrong name"
            f" {COMPARE}: how many points surely suffice?"
        )
        told = "the least worst case over all orders of looks and names, by going through them"
        return [
            Question(net, text, ("partial",), why, hides=hides, choices=words),
            Question(f"{net}, {hunt.suspects}, {hunt.level}, {hunt.seed}", points, (hunt.par,), told, hides=hides),
        ]

    def _looks(self) -> Section:
        words = {"probe": "probe {} on rank {}, step {}", "compare": "compare ranks {} and {}"}
        words["name"] = "name {}, {}, mended by {}"
        rows = [[words[a.look[0]].format(*a.look[1:]), a.answer, a.cost] for a in self.hunt.asked]
        prices = f"a probe {PROBE}, a comparison {COMPARE}, a wrong name {COMPARE}"
        return table("Asked", {"look": "name", "answer": "text", "points": "count"}, rows, small=prices)

    def _graph(self) -> Section:
        """Values in the order in which they are made; types along the axes, the outermost first."""
        probed = {a.look[1]: a.answer for a in self.hunt.asked if a.look[0] == "probe"}
        columns = {"value": "name", "type": "type", "gradient": "type", "answer": "text"}
        rows = [[n, self._type(n), self._type(n, True), probed.get(n, "")] for n in self.tensors]
        small = "as it should be: R replicated, S varying, P a pending sum (hatched)"
        return table("Graph", columns, rows, small=small, by=["tensor"], of={n: {"on": n} for n in self.tensors})

    def _type(self, name: str, of_gradient: bool = False) -> list[str]:
        found = self.types.of_gradient(name) if of_gradient else self.types.get(name)
        return list(reversed(found or ()))

    def _suspects_shown(self) -> Section:
        case, said = self.hunt.case, [f"its loss: {', '.join(loss_row(one))}" for one in self.hunt.case.suspects]
        fits = ["fits" if n in case.start else f"struck off; {loss}" for n, loss in enumerate(said)]
        rows = [[str(n), kind, operator, fits[n]] for n, (operator, kind) in enumerate(self.hunt.labels)]
        of = {str(n): {"on": str(n)} for n in range(len(rows))}
        columns = {"": "name", "kind": "text", "operator": "why", "loss": "text"}
        return table("Suspects", columns, rows, by=["suspect"], of=of)

    def _losses(self) -> Section:
        """Only whether a loss is right: its number would tell more than par counts."""
        bug = self.hunt.case.suspects[self.hunt.case.culprit]
        pairs = enumerate(zip(bug.losses, loss_row(bug), strict=True))
        rows = [[str(step), float(f"{loss:.6g}"), said] for step, (loss, said) in pairs]
        small = f"to six digits; who would not make it so is struck off: {len(self.hunt.case.start)} fit"
        return table("Loss", {"step": "name", AS_IT_SHOULD_BE: "number", "as it is": "text"}, rows, small=small)


_LEFT = ("before", "tries", "looks")


def _is_row(row: Any) -> bool:
    """Whether it has the form of a hunt in a record."""
    if not isinstance(row, Mapping) or row.keys() != {"hunt", *_LEFT} or not isinstance(row["looks"], list):
        return False
    lists = [row["hunt"], *row["looks"]]
    counts = type(row["before"]) is int and row["before"] >= 0 and type(row["tries"]) is int and row["tries"] >= 1
    return counts and all(isinstance(one, list) and one and all(type(x) in (str, int) for x in one) for one in lists)


def _as_left(hunt: Hunt, row: Mapping[str, Any] | None) -> Hunt:
    """A new hunt as another one was left. Raises ArgumentError for looks that it has not."""
    if row is not None:
        hunt.before, hunt.tries = row["before"], row["tries"]
        ask = {"probe": hunt.probe, "compare": hunt.compare, "name": hunt.name}
        for kind, *given in row["looks"]:
            if kind not in ask or len(given) != (2 if kind == "compare" else 3):
                raise ArgumentError(f"look {shorten([kind, *given])}", where="HuntLab", allowed="One of a hunt")
            ask[kind](*given)
    return hunt


def _called(number: int, operator: str, kind: str) -> str:
    """A suspect where it is chosen: the kind of its bug, and the end of what its operator is called."""
    return f"{number}: {kind}, {operator if len(operator) <= MOST_NAME else '...' + operator[3 - MOST_NAME :]}"
