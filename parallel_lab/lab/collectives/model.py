"""`CollectiveStepper`: a collective algorithm, walked through round by round.

    stepper = CollectiveStepper("all_reduce", "ring", ranks=4)
    stepper.next(); stepper.next()
    print(stepper.to_text())
    stepper.show(custom_algorithm("all_reduce", my_rounds, ranks=4))      # your own list of sends

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. What is shown of an algorithm is in `story.py`.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ...base.checks import choice, instance, integer
from ...base.cluster import CLUSTERS, get_cluster
from ...base.errors import ArgumentError
from ...base.units import bytes_text
from ..shared.lab import Stepped, setting
from ..shared.questions import COMMANDS, Question
from .algorithms.algorithm import CONTENTION, Algorithm, algorithm
from .algorithms.rounds import KINDS
from .algorithms.table import algorithm_names
from .story import CONTENTION_WORDS, Machine, compared, counters, last_round, story
from .words import to_text

RANKS = (2, 3, 4, 5, 6, 8)
SIZES = (64, 1024, 16384, 262144, 16777216)  # elements of S: 256 B to 64 MiB of float32
ITEM_BYTES = 4
ELEMENTS = integer(1, 1 << 40)


class CollectiveStepper(Stepped):
    """One algorithm and a place in it.

    kind       one of KINDS;  algorithm: one of `algorithm_names(kind)`, or an `Algorithm`;  ranks: one of RANKS
    elements   of S in float32, rounded up so that all chunks are equal (real libraries pad, too)
    cluster    whose links and memory the predicted times are of;  contention: "none" or "hops"

    `at` is how many rounds are done. `follow` is the chunk that is looked at, None for all.
    """

    scripts = ("shared/transport.js", "collectives/story.js", "collectives/collective_stepper.js")
    styles = ("shared/transport.css", "collectives/collective_stepper.css")
    commands = (*Stepped.commands, "follow", *COMMANDS)
    looks: ClassVar[dict[str, str]] = {**Stepped.looks, "follow": "follow"}
    replayed = ("algorithm", "ranks", "kind", "elements", "cluster", "contention")
    often = ("at", "follow", "counters", "status", "predict")
    frame_height_px = 860
    words = staticmethod(to_text)

    def __init__(
        self,
        kind: str = "all_reduce",
        algorithm: str | Algorithm = "ring",
        ranks: int = 4,
        elements: int = 16384,
        *,
        cluster: str = "laptop",
        contention: str = "none",
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._elements = ELEMENTS("CollectiveStepper", "elements", elements)
        self._contention = choice(*CONTENTION)("CollectiveStepper", "contention", contention)
        self._cluster = get_cluster(cluster)
        self._own: Algorithm | None = None
        self._follow: int | None = None
        self._story: dict[str, Any] | None = None
        if isinstance(algorithm, Algorithm):
            self._own = self._shown = algorithm
        else:
            self._shown = _named(kind, algorithm, ranks)

    # ---- choosing ----

    @setting("collective", KINDS, value=lambda lab: lab.algorithm.kind, typed=True)
    def choose_kind(self, kind: str) -> dict[str, Any]:
        """Another collective, by an algorithm of the same name where it has one."""
        return self._alike(kind, self._shown.ranks)

    @setting(
        "ranks", lambda lab: sorted({*RANKS, lab.algorithm.ranks}), value=lambda lab: lab.algorithm.ranks, typed=True
    )
    def choose_ranks(self, ranks: int) -> dict[str, Any]:
        """Another number of ranks; an algorithm that cannot take it gives way to the first that can."""
        return self._alike(self._shown.kind, choice(*RANKS)("CollectiveStepper", "ranks", ranks))

    @setting(
        "algorithm", lambda lab: [one.name for one in lab.algorithms], value=lambda lab: lab.algorithm.name, typed=True
    )
    def choose_algorithm(self, name: str) -> dict[str, Any]:
        """Another algorithm for the same collective; the name of your own shows it again."""
        own = self._own if self._own is not None and self._own.name == name else None
        return _from_the_start(own or _named(self._shown.kind, name, self._shown.ranks))

    @setting("S", lambda lab: {n: bytes_text(n * ITEM_BYTES) for n in sorted({*SIZES, lab._elements})}, typed=True)
    def choose_elements(self, elements: int) -> dict[str, Any]:
        """Another size of S. The place in the algorithm stays."""
        return {"elements": ELEMENTS("CollectiveStepper", "elements", elements)}

    @setting("machine", [one.name for one in CLUSTERS], value=lambda lab: lab._cluster.name, typed=True)
    def choose_cluster(self, name: str) -> dict[str, Any]:
        """Other links and devices for the predicted times: "laptop", "gpu_node", "two_nodes" (links between nodes)."""
        return {"cluster": get_cluster(name)}

    @setting("links", CONTENTION_WORDS)
    def choose_contention(self, contention: str) -> None:
        """ "none": a link for every pair; "hops": ranks in a ring, bytes cost as many times as they make hops."""

    def follow(self, chunk: int | None) -> None:
        """Look at one chunk; None: at all."""
        with self._lock:
            chunks = integer(0, self._shown.chunks - 1) | None
            self._follow = chunks("CollectiveStepper", "chunk", chunk)
        self._changed()

    def show(self, chosen: Algorithm) -> None:
        """Step through any `Algorithm`, such as one of `custom_algorithm`."""
        allowed = "An Algorithm: algorithm(...) or custom_algorithm(...)"
        instance(Algorithm, allowed)("CollectiveStepper.show", "chosen", chosen)
        self._change(**_from_the_start(chosen), own=chosen if chosen.formula is None else None)

    def _alike(self, kind: str, ranks: int) -> dict[str, Any]:
        """The algorithm of the same name where it exists, otherwise the first; one's own is forgotten."""
        names = algorithm_names(kind, ranks)
        name = self._shown.name if self._shown.name in names else names[0]
        return {**_from_the_start(_named(kind, name, ranks)), "own": None}

    def _update(self) -> None:
        self._story = None

    def _changed(self, *what: str) -> None:
        super()._changed()  # its listeners do not hear what has changed

    # ---- where it stands ----

    @property
    def algorithm(self) -> Algorithm:
        """The list of sends that is shown."""
        return self._shown

    @property
    def algorithms(self) -> list[Algorithm]:
        """Every algorithm of this collective on these ranks, and the last list of one's own."""
        a = self._shown
        own = [self._own] if self._own is not None else []
        return [*(algorithm(a.kind, name, a.ranks, root=a.root) for name in algorithm_names(a.kind, a.ranks)), *own]

    @property
    def rounds(self) -> int:
        """Rounds that can be stepped through; of a list that goes wrong, those before."""
        return last_round(self._shown)

    @property
    def last(self) -> int:
        return self.rounds

    @property
    def elements(self) -> int:
        """Elements of S, padded so that chunks are equal."""
        return math.ceil(self._elements / self._shown.chunks) * self._shown.chunks

    @property
    def size_bytes(self) -> int:
        """Bytes of S, float32."""
        return self.elements * ITEM_BYTES

    @property
    def machine(self) -> Machine:
        """What the costs depend on."""
        return Machine(self.size_bytes, self._cluster, self._contention)

    # ---- what is shown ----

    def snapshot(self) -> dict[str, Any]:
        """All that a view draws, as plain data: every round as a frame, and where the stepper stands."""
        with self._lock:
            a, at = self._shown, self._at
            if self._story is None:
                self._story = {
                    "version": 1,
                    "title": f"{a.kind} by {a.name}, {a.ranks} ranks",
                    **self.chosen(),
                    **story(a, self.machine),
                    "compare": compared(a, self.algorithms, self.machine),
                }
                self._story["algorithm"]["words"] = a.words
                self._story["elements"]["padded"] = self.elements
            now = {"at": at, "follow": self._follow, "status": self._story["frames"][at]["text"]}
            return {**self._story, **now, "counters": counters(a, self.machine, at), "predict": self.asked()}

    def questions(self) -> list[Question]:
        """How many rounds the algorithm needs; what its busiest rank sends, in chunks."""
        a = self._shown
        what, hides = f"{a.kind} by {a.name} on {a.ranks} ranks", ("transport", "arcs", "tables")
        rounds, _, sent, _ = counters(a, self.machine, self.rounds)
        formula = f" = {rounds['formula_text']}" if rounds["formula_text"] else ""
        chunks = sent["end"] * a.chunks / self.size_bytes
        of_s = f" of {a.chunks} chunks of {bytes_text(self.size_bytes // a.chunks)} each: {bytes_text(sent['end'])}"
        return [
            Question(
                f"rounds of {what}",
                f"How many rounds does {what} need?",
                (len(a.rounds),),
                f"{len(a.rounds)} rounds{formula}",
                unit="rounds",
                hides=hides,
            ),
            Question(
                f"chunks of {what}",
                f"How many chunks does the busiest rank send in {what}, counting a chunk twice if it sends it twice?",
                (int(chunks) if chunks == int(chunks) else chunks,),
                f"{chunks:g} sends{of_s}",
                unit="chunks",
                hides=(*hides, "cards"),
            ),
        ]

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and what changes with every round: its counters and its sentence."""
        shot, a = self.snapshot(), self._shown
        times = self.machine.round_times_s(a)
        of = {"at": {str(f["round"]): {"status": f["text"]} for f in shot["frames"]}}
        for at, looks in of["at"].items():
            looks["counters"] = counters(a, self.machine, int(at), times)
        return {**shot, "looks": of}

    def calls(self) -> list[list[Any]]:
        """Those of the settings, and the chunk and the place. Raises ArgumentError for an algorithm of one's own."""
        if self._shown.formula is None:
            what, hint = self._shown.name, "Keep its list of sends, and show it again with custom_algorithm"
            raise ArgumentError(f"{what!r} is an algorithm of your own", where="CollectiveStepper.calls", hint=hint)
        followed = [] if self._follow is None else [["follow", self._follow]]
        return [*super().calls(), *followed]


def _named(kind: str, name: str, ranks: int) -> Algorithm:
    for argument, value in {"kind": kind, "algorithm": name}.items():
        instance(str, "The name of one")("CollectiveStepper", argument, value)
    return algorithm(kind, name, choice(*RANKS)("CollectiveStepper", "ranks", ranks))


def _from_the_start(shown: Algorithm) -> dict[str, Any]:
    """The changes that show an algorithm."""
    return {"shown": shown, "at": 0, "follow": None}
