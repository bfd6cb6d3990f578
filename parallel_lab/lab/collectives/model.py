"""`CollectiveStepper`: a collective algorithm, walked through round by round.

    stepper = CollectiveStepper("all_reduce", "ring", ranks=4)
    stepper.next(); stepper.next()
    print(stepper.to_text())
    stepper.show(custom_algorithm("all_reduce", my_rounds, ranks=4))      # your own list of sends

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. What is counted comes from the list of sends, the formula beside it from
the papers; times are predicted by alpha-beta-gamma.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ...base.cluster import CLUSTERS, get_cluster
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...base.units import bytes_text, time_text
from ...ops.collectives.definitions import MESSAGES
from ..shared.lab import Commands, Lab
from .algorithms.algorithm import CONTENTION, Algorithm, Counts, algorithm
from .algorithms.rounds import KINDS, REDUCING, ROOTED
from .algorithms.table import algorithm_names, text_for
from .algorithms.walk import goal
from .words import cell_text, chunk_label, chunk_unit, goal_text, round_text, start_text, to_text

RANKS = (2, 3, 4, 5, 6, 8)
SIZES = (64, 1024, 16384, 262144, 16777216)  # elements of S: 256 B to 64 MiB of float32
ITEM_BYTES = 4
CONTENTION_WORDS = {"none": "a link for every pair", "hops": "a ring of links: hops cost"}


class CollectiveStepper(Lab):
    """One algorithm and a place in it.

    kind       one of KINDS;  algorithm: one of `algorithm_names(kind)`, or an `Algorithm`;  ranks: one of RANKS
    elements   of S in float32, rounded up so that all chunks are equal (real libraries pad, too)
    cluster    whose links and memory the predicted times are of;  contention: "none" or "hops"

    `at` is how many rounds are done. `follow` is the chunk that is looked at, None for all.
    """

    scripts, styles = ("collectives/collective_stepper.js",), ("collectives/collective_stepper.css",)
    commands: ClassVar[Commands] = {
        "to": ((int,),),
        "next": (),
        "back": (),
        "reset": (),
        "follow": ((int, type(None)),),
        "choose_kind": ((str,),),
        "choose_algorithm": ((str,),),
        "choose_ranks": ((int,),),
        "choose_elements": ((int,),),
        "choose_cluster": ((str,),),
        "choose_contention": ((str,),),
    }
    often = ("at", "follow", "counters", "status")
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
    ) -> None:
        super().__init__()
        self._elements, self._cluster, self._contention = (
            _checked_elements(elements),
            get_cluster(cluster),
            _checked_contention(contention),
        )
        self._own: Algorithm | None = None
        self._follow: int | None = None
        self._at = 0
        self._story: dict[str, Any] | None = None
        if isinstance(algorithm, Algorithm):
            self._own = self._shown = algorithm
        else:
            self._shown = _named(kind, algorithm, ranks)

    # ---- where it stands ----

    @property
    def algorithm(self) -> Algorithm:
        """The list of sends that is shown."""
        return self._shown

    @property
    def at(self) -> int:
        """Rounds that are done: 0 is the start."""
        return self._at

    @property
    def rounds(self) -> int:
        """Rounds that can be stepped through; of a list that goes wrong, those before."""
        return len(self._shown.walked.states) - 1

    @property
    def elements(self) -> int:
        """Elements of S, padded so that chunks are equal."""
        return math.ceil(self._elements / self._shown.chunks) * self._shown.chunks

    @property
    def size_bytes(self) -> int:
        """Bytes of S, float32."""
        return self.elements * ITEM_BYTES

    # ---- stepping ----

    def next(self) -> None:
        """One round on; stays at the end."""
        self.to(min(self._at + 1, self.rounds))

    def back(self) -> None:
        """One round back; stays at the start."""
        self.to(max(self._at - 1, 0))

    def reset(self) -> None:
        """To the start."""
        self.to(0)

    def to(self, number: int) -> None:
        """To where `number` rounds are done. Raises ArgumentError outside 0 ... rounds."""
        if isinstance(number, bool) or not isinstance(number, int):
            raise ArgumentTypeError(f"round {shorten(number)}", where="CollectiveStepper", allowed="An int")
        with self._lock:
            if not 0 <= number <= self.rounds:
                raise ArgumentError(
                    f"round {number}", where="CollectiveStepper", allowed=f"From 0, the start, to {self.rounds}"
                )
            moved, self._at = self._at != number, number
        if moved:
            self._changed()

    # ---- choosing ----

    def choose_kind(self, kind: str) -> None:
        """Another collective, by an algorithm of the same name where it has one."""
        with self._lock:
            names = algorithm_names(kind, self._shown.ranks)
            self._take(_named(kind, self._shown.name if self._shown.name in names else names[0], self._shown.ranks))
        self._changed_story()

    def choose_algorithm(self, name: str) -> None:
        """Another algorithm for the same collective; the name of your own shows it again."""
        with self._lock:
            own = self._own if self._own is not None and self._own.name == name else None
            self._take(own or _named(self._shown.kind, name, self._shown.ranks), keep_own=True)
        self._changed_story()

    def choose_ranks(self, ranks: int) -> None:
        """Another number of ranks; an algorithm that cannot take it gives way to the first that can."""
        with self._lock:
            _checked_ranks(ranks)
            names = algorithm_names(self._shown.kind, ranks)
            self._take(_named(self._shown.kind, self._shown.name if self._shown.name in names else names[0], ranks))
        self._changed_story()

    def choose_elements(self, elements: int) -> None:
        """Another size of S. The place in the algorithm stays."""
        with self._lock:
            self._elements = _checked_elements(elements)
        self._changed_story()

    def choose_cluster(self, name: str) -> None:
        """Other links and devices, for the predicted times: "laptop", "gpu_node" or "two_nodes" (its links between
        nodes).
        """
        with self._lock:
            self._cluster = get_cluster(name)
        self._changed_story()

    def choose_contention(self, contention: str) -> None:
        """ "none": a link for every pair; "hops": ranks in a ring, bytes cost as many times as they make hops."""
        with self._lock:
            self._contention = _checked_contention(contention)
        self._changed_story()

    def follow(self, chunk: int | None) -> None:
        """Look at one chunk; None: at all."""
        with self._lock:
            if chunk is not None and (
                isinstance(chunk, bool) or not isinstance(chunk, int) or not 0 <= chunk < self._shown.chunks
            ):
                allowed = f"From 0 to {self._shown.chunks - 1}, or None for all"
                raise ArgumentError(f"chunk {shorten(chunk)}", where="CollectiveStepper", allowed=allowed)
            self._follow = chunk
        self._changed()

    def show(self, chosen: Algorithm) -> None:
        """Step through any `Algorithm`, such as one of `custom_algorithm`."""
        if not isinstance(chosen, Algorithm):
            allowed = "An Algorithm: algorithm(...) or custom_algorithm(...)"
            raise ArgumentTypeError(shorten(chosen), where="CollectiveStepper.show", allowed=allowed)
        with self._lock:
            self._take(chosen)
            self._own = chosen if chosen.formula is None else None
        self._changed_story()

    def _changed_story(self) -> None:
        """Something else is chosen: the rounds have to be told anew."""
        self._story = None
        self._changed()

    def _take(self, chosen: Algorithm, *, keep_own: bool = False) -> None:
        self._shown, self._at, self._follow = chosen, 0, None
        if not keep_own:
            self._own = None

    # ---- what is shown ----

    def snapshot(self) -> dict[str, Any]:
        """All that a view draws, as plain data: every round as a frame, and where the stepper stands."""
        with self._lock:
            if self._story is None:
                self._story = self._tell()
            story, at = self._story, self._at
            return {
                **story,
                "at": at,
                "follow": self._follow,
                "counters": self._counters(at),
                "status": story["frames"][at]["text"],
            }

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and the counters of every round: what a page without a kernel needs."""
        return {**self.snapshot(), "counters_by_round": [self._counters(at) for at in range(self.rounds + 1)]}

    def _link(self) -> Any:
        return self._cluster.node_link or self._cluster.link

    def _time_s(self, chosen: Algorithm) -> float:
        gamma = self._cluster.device.gamma_s_per_byte
        return chosen.time_s(self.size_bytes, self._link(), gamma_s_per_byte=gamma, contention=self._contention)

    def _tell(self) -> dict[str, Any]:
        a = self._shown
        columns = a.ranks if MESSAGES[a.kind].chunks == "pair" else 1
        names = list(algorithm_names(a.kind, a.ranks)) + ([self._own.name] if self._own is not None else [])
        verdict = a.check()
        return {
            "version": 1,
            "title": f"{a.kind} by {a.name}, {a.ranks} ranks",
            "kind": {"value": a.kind, "choices": list(KINDS)},
            "algorithm": {"value": a.name, "choices": names, "words": a.words},
            "ranks": {"value": a.ranks, "choices": sorted({*RANKS, a.ranks})},
            "elements": {"value": self._elements, "padded": self.elements, "choices": self._size_choices()},
            "cluster": {"value": self._cluster.name, "choices": [c.name for c in CLUSTERS]},
            "contention": {
                "value": self._contention,
                "choices": [{"value": c, "label": CONTENTION_WORDS[c]} for c in CONTENTION],
            },
            "machine": self._machine(),
            "size_bytes": self.size_bytes,
            "chunk_bytes": self.size_bytes // a.chunks,
            "root": a.root if a.kind in ROOTED else None,
            "reducing": a.kind in REDUCING,
            "rounds": self.rounds,
            "phases": [{"name": p.name, "rounds": len(p.rounds)} for p in a.phases],
            "goal": goal_text(a),
            "fault": None if verdict else verdict.text,
            "limit_bytes": max(int(c.sent_bytes(self.size_bytes)) for c in a.counts()),
            "chunks": [self._chunk(c, columns) for c in range(a.chunks)],
            "rows": a.chunks // columns,
            "slots": columns,
            "frames": [self._frame(t) for t in range(self.rounds + 1)],
            "compare": self._compare(names),
        }

    def _size_choices(self) -> list[dict[str, Any]]:
        return [{"value": n, "label": bytes_text(n * ITEM_BYTES)} for n in sorted({*SIZES, self._elements})]

    def _machine(self) -> str:
        link = self._link()
        bandwidth = f"{1e-9 / link.beta_s_per_byte:.3g} GB/s" if link.beta_s_per_byte else "free bytes"
        gamma = f"gamma {self._cluster.device.gamma_s_per_byte * 1e9:.3g} ns for each byte that is added"
        return (
            f"{self._cluster.name}: alpha {time_text(link.alpha_s)}, {bandwidth}, {gamma}; "
            f"{CONTENTION_WORDS[self._contention]}"
        )

    def _chunk(self, chunk: int, columns: int) -> dict[str, Any]:
        """Its label, the slice of the data it is (colour), and its place on a card."""
        a = self._shown
        source, row = (chunk // a.ranks, chunk % a.ranks) if columns > 1 else (chunk, chunk)
        return {
            "label": chunk_label(a.kind, chunk, a.ranks),
            "hue": source,
            "row": row,
            "slot": source if columns > 1 else 0,
        }

    def _frame(self, at: int) -> dict[str, Any]:
        a, chunk_bytes = self._shown, self.size_bytes // self._shown.chunks
        arrivals: dict[tuple[int, int], list[Any]] = {}
        for arrival in a.arrivals(at) if at else ():
            arrivals.setdefault((arrival.destination, arrival.chunk), []).append(arrival)
        wanted, state = goal(a.kind, a.ranks, a.chunks, a.root), a.walked.states[at]
        passed_on = {(s.source, c) for sends in a.rounds[:at] for s in sends for c in s.chunks}
        cards, met = [], 0
        for rank in range(a.ranks):
            cells = []
            for chunk in range(a.chunks):
                held, came = state[rank][chunk], arrivals.get((rank, chunk), [])
                if held is None:
                    cells.append(None)
                    continue
                done = held.mask == wanted[rank][chunk]
                met += done
                masks = [state[other][chunk].mask for other in range(a.ranks) if state[other][chunk] is not None]
                spent = not done and (
                    any(held.mask | m == m and held.mask != m for m in masks)
                    if a.kind in REDUCING
                    else wanted[rank][chunk] is None and (rank, chunk) in passed_on
                )
                cells.append(
                    {
                        "state": "done" if done else "spent" if spent else "partial" if a.kind in REDUCING else "held",
                        "who": list(held.ranks),
                        "sum": str(held) if a.kind in REDUCING else "",
                        "from": [c.source for c in came],
                        "add": bool(came and came[0].add),
                    }
                )
            texts = [
                f"{chunk_unit(a.kind)} {chunk_label(a.kind, c, a.ranks)} {cell_text(a.kind, cell, a.ranks)}"
                for c, cell in enumerate(cells)
                if cell
            ]
            cards.append({"rank": rank, "cells": cells, "text": "; ".join(texts) or "nothing yet"})
        counts = a.counts(at)
        return {
            "round": at,
            "phase": a.phase_of(at) if at else "",
            "text": self._sentence(at, chunk_bytes),
            "cards": cards,
            "messages": [
                {
                    "source": s.source,
                    "destination": s.destination,
                    "chunks": list(s.chunks),
                    "add": s.add,
                    "bytes": len(s.chunks) * chunk_bytes,
                }
                for s in (a.rounds[at - 1] if at else ())
            ],
            "sent": [int(c.sent_bytes(self.size_bytes)) for c in counts],
            "messages_sent": [c.messages for c in counts],
            "met": met,
            "wanted": sum(mask is not None for row in wanted for mask in row),
        }

    def _sentence(self, at: int, chunk_bytes: int) -> str:
        a, total = self._shown, len(self._shown.rounds)
        if at == 0:
            return f"Start: {start_text(a)}. At the end {goal_text(a)}."
        name = a.phase_of(at)
        text = f"Round {at} of {total}{f' ({name})' if name else ''}: {round_text(a, at, chunk_bytes)}."
        if at == self.rounds:
            fault = a.walked.fault
            text += f" Here it goes wrong. {fault.text}" if fault else f" Done: {goal_text(a)}."
        return text

    def _counters(self, at: int) -> list[dict[str, Any]]:
        """Rows of the table "counted and by formula": of the rank that sends most."""
        a, f, size = self._shown, self._shown.formula, self.size_bytes
        n, k = a.ranks, a.chunks if a.kind in ("broadcast", "reduce") else a.ranks
        counts, ends = a.counts(at), a.counts()
        link, gamma = self._link(), self._cluster.device.gamma_s_per_byte
        times = a.round_times_s(size, link, gamma_s_per_byte=gamma, contention=self._contention)
        free = None
        if f is not None and self._contention == "none":
            free = (
                f.alphas(n, k) * link.alpha_s
                + float(f.betas(n, k)) * size * link.beta_s_per_byte
                + float(f.gammas(n, k)) * size * gamma
            )
        sent = None if f is None else int(f.sent(n, k) * size)
        texts = ["", "", "", ""]
        if f is not None:
            texts = [text_for(text, n) for text in (f.rounds_text, f.messages_text, f.sent_text, f.time_text)]
            texts[2] += "" if texts[2] == "S" else f" = {f.sent(n, k)} S"

        def most(found: tuple[Counts, ...], what: str) -> Any:
            return max(getattr(c, what) for c in found)

        def row(label: str, unit: str, now: Any, end: Any, formula: Any, text: str) -> dict[str, Any]:
            met = formula is not None and (
                math.isclose(end, formula, rel_tol=1e-9) if unit == "seconds" else end == formula
            )
            return {
                "label": label,
                "unit": unit,
                "now": now,
                "end": end,
                "formula": formula,
                "formula_text": text,
                "met": met,
            }

        return [
            row("rounds", "count", at, len(a.rounds), f and f.rounds(n, k), texts[0]),
            row(
                "messages of the busiest rank",
                "count",
                most(counts, "messages"),
                most(ends, "messages"),
                f and f.messages(n, k),
                texts[1],
            ),
            row(
                "bytes sent by the busiest rank",
                "bytes",
                int(most(counts, "sent") * size),
                int(most(ends, "sent") * size),
                sent,
                texts[2],
            ),
            row("time, predicted", "seconds", sum(times[:at]), sum(times), free, texts[3]),
        ]

    def _compare(self, names: list[str]) -> list[dict[str, Any]]:
        """Every algorithm of this collective on these ranks, for this size."""
        a = self._shown
        rows = []
        for name in names:
            own = self._own is not None and name == self._own.name
            found = self._own if own else a if name == a.name else algorithm(a.kind, name, a.ranks, root=a.root)
            sent = max((c.sent for c in found.counts()), default=0)
            wrong = own and not found.check()
            rows.append(
                {
                    "name": name,
                    "rounds": len(found.rounds),
                    "sent": int(sent * self.size_bytes),
                    "time_s": self._time_s(found),
                    "wrong": bool(wrong),
                }
            )
        best = min(row["time_s"] for row in rows if not row["wrong"])
        return [
            {**row, "shown": row["name"] == a.name, "fastest": not row["wrong"] and row["time_s"] <= best * (1 + 1e-9)}
            for row in rows
        ]


# ---- checks ----


def _checked_ranks(ranks: Any) -> int:
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise ArgumentTypeError(f"ranks={shorten(ranks)}", where="CollectiveStepper", allowed="An int")
    if ranks not in RANKS:
        raise ArgumentError(f"ranks={ranks}", where="CollectiveStepper", allowed=f"One of {', '.join(map(str, RANKS))}")
    return ranks


def _named(kind: str, name: str, ranks: int) -> Algorithm:
    return algorithm(kind, name, _checked_ranks(ranks))


def _checked_elements(elements: Any) -> int:
    if isinstance(elements, bool) or not isinstance(elements, int):
        raise ArgumentTypeError(f"elements={shorten(elements)}", where="CollectiveStepper", allowed="An int")
    if not 1 <= elements <= 1 << 40:
        raise ArgumentError(f"elements={elements}", where="CollectiveStepper", allowed="From 1 to 2^40")
    return elements


def _checked_contention(contention: Any) -> str:
    if contention not in CONTENTION:
        raise ArgumentError(
            f"contention={shorten(contention)}", where="CollectiveStepper", allowed=f"One of {', '.join(CONTENTION)}"
        )
    return contention
