"""`CollectiveStepper`: a collective algorithm, walked through round by round.

    stepper = CollectiveStepper("all_reduce", "ring", ranks=4)
    stepper.next(); stepper.next()
    print(stepper.to_text())
    stepper.show(custom_algorithm("all_reduce", my_rounds, ranks=4))      # your own list of sends

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. What is counted comes from the list of sends, the formula next to it from
the papers; times are predicted by alpha-beta-gamma.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ...base.checks import choice, instance, integer
from ...base.cluster import CLUSTERS, get_cluster
from ...base.errors import ArgumentError
from ...base.units import bytes_text, time_text
from ...ops.collectives.definitions import MESSAGES
from ..shared.lab import Lab
from ..shared.questions import COMMANDS, Question
from .algorithms.algorithm import CONTENTION, Algorithm, algorithm
from .algorithms.rounds import KINDS, REDUCING, ROOTED
from .algorithms.table import algorithm_names, formula_texts
from .algorithms.walk import Arrival, goal
from .words import cell_text, chunk_label, goal_text, round_text, start_text, to_text

RANKS = (2, 3, 4, 5, 6, 8)
SIZES = (64, 1024, 16384, 262144, 16777216)  # elements of S: 256 B to 64 MiB of float32
ITEM_BYTES = 4
ELEMENTS = integer(1, 1 << 40)
CONTENTION_WORDS = {"none": "a link for every pair", "hops": "a ring of links: hops cost"}


class CollectiveStepper(Lab):
    """One algorithm and a place in it.

    kind       one of KINDS;  algorithm: one of `algorithm_names(kind)`, or an `Algorithm`;  ranks: one of RANKS
    elements   of S in float32, rounded up so that all chunks are equal (real libraries pad, too)
    cluster    whose links and memory the predicted times are of;  contention: "none" or "hops"

    `at` is how many rounds are done. `follow` is the chunk that is looked at, None for all.
    """

    scripts = ("shared/transport.js", "collectives/collective_stepper.js")
    styles = ("shared/transport.css", "collectives/collective_stepper.css")
    commands = ("to", "next", "back", "reset", "follow", "choose_kind", "choose_algorithm", "choose_ranks")
    commands += ("choose_elements", "choose_cluster", "choose_contention", *COMMANDS)
    looks: ClassVar[dict[str, str]] = {"to": "at", "follow": "follow"}
    also_kept = ("choose_kind", "choose_ranks", "choose_algorithm", "choose_elements", "choose_cluster")
    also_kept += ("choose_contention",)
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
    ) -> None:
        super().__init__()
        self._elements = ELEMENTS("CollectiveStepper", "elements", elements)
        self._contention = choice(*CONTENTION)("CollectiveStepper", "contention", contention)
        self._cluster = get_cluster(cluster)
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
        with self._lock:
            number = integer(0, self.rounds)("CollectiveStepper", "round", number)
            moved, self._at = self._at != number, number
        if moved:
            self._changed()

    # ---- choosing ----

    def choose_kind(self, kind: str) -> None:
        """Another collective, by an algorithm of the same name where it has one."""
        self._show_alike(kind, self._shown.ranks)

    def choose_algorithm(self, name: str) -> None:
        """Another algorithm for the same collective; the name of your own shows it again."""
        with self._lock:
            own = self._own if self._own is not None and self._own.name == name else None
            self._show(own or _named(self._shown.kind, name, self._shown.ranks), keep_own=True)
        self._changed_story()

    def choose_ranks(self, ranks: int) -> None:
        """Another number of ranks; an algorithm that cannot take it gives way to the first that can."""
        self._show_alike(self._shown.kind, choice(*RANKS)("CollectiveStepper", "ranks", ranks))

    def _show_alike(self, kind: str, ranks: int) -> None:
        """The algorithm of the same name where it exists, otherwise the first."""
        with self._lock:
            names = algorithm_names(kind, ranks)
            self._show(_named(kind, self._shown.name if self._shown.name in names else names[0], ranks))
        self._changed_story()

    def choose_elements(self, elements: int) -> None:
        """Another size of S. The place in the algorithm stays."""
        self._changed_story(_elements=ELEMENTS("CollectiveStepper", "elements", elements))

    def choose_cluster(self, name: str) -> None:
        """Other links and devices for the predicted times: "laptop", "gpu_node", "two_nodes" (links between nodes)."""
        self._changed_story(_cluster=get_cluster(name))

    def choose_contention(self, contention: str) -> None:
        """ "none": a link for every pair; "hops": ranks in a ring, bytes cost as many times as they make hops."""
        self._changed_story(_contention=choice(*CONTENTION)("CollectiveStepper", "contention", contention))

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
        with self._lock:
            self._show(chosen)
            self._own = chosen if chosen.formula is None else None
        self._changed_story()

    def _changed_story(self, **fields: Any) -> None:
        """Something else is chosen: the frames are made again."""
        with self._lock:
            vars(self).update(fields, _story=None)
        self._changed()

    def _show(self, chosen: Algorithm, *, keep_own: bool = False) -> None:
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
            now = {"at": at, "follow": self._follow, "status": story["frames"][at]["text"]}
            return {**story, **now, "counters": self._counters(at), "predict": self.asked()}

    def questions(self) -> list[Question]:
        """How many rounds the algorithm needs; what its busiest rank sends, in chunks."""
        a = self._shown
        what, hides = f"{a.kind} by {a.name} on {a.ranks} ranks", ("transport", "arcs", "tables")
        rounds, _, sent, _ = self._counters(len(a.walked.states) - 1)
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
        shot = self.snapshot()
        rounds = {str(at): {"counters": self._counters(at)} for at in range(self.rounds + 1)}
        for frame in shot["frames"]:
            rounds[str(frame["round"])]["status"] = frame["text"]
        return {**shot, "looks": {"at": rounds}}

    def calls(self) -> list[list[Any]]:
        """The commands that make a new stepper what this one is. Raises ArgumentError for an algorithm of one's own."""
        a = self._shown
        if a.formula is None:
            hint = "Keep its list of sends, and show it again with custom_algorithm"
            raise ArgumentError(f"{a.name!r} is an algorithm of your own", where="CollectiveStepper.calls", hint=hint)
        settings = {"kind": a.kind, "ranks": a.ranks, "algorithm": a.name, "elements": self._elements}
        settings |= {"cluster": self._cluster.name, "contention": self._contention}
        chosen = [[f"choose_{name}", value] for name, value in settings.items()]
        followed = [] if self._follow is None else [["follow", self._follow]]
        return [*chosen, ["to", self._at], *followed]

    def replays(self) -> Iterable[list[Any]]:
        """Algorithms, ranks and collectives, then sizes, machines and links."""
        a = self._shown
        known = {"algorithm": algorithm_names(a.kind, a.ranks), "ranks": RANKS, "kind": KINDS, "elements": SIZES}
        known |= {"cluster": [c.name for c in CLUSTERS], "contention": CONTENTION}
        return ([f"choose_{name}", value] for name, values in known.items() for value in values)

    def _link(self) -> Any:
        return self._cluster.node_link or self._cluster.link

    def _time_s(self, chosen: Algorithm) -> float:
        gamma = self._cluster.device.gamma_s_per_byte
        return chosen.time_s(self.size_bytes, self._link(), gamma_s_per_byte=gamma, contention=self._contention)

    def _tell(self) -> dict[str, Any]:
        a = self._shown
        columns = a.ranks if MESSAGES[a.kind].chunks == "pair" else 1
        names = [*algorithm_names(a.kind, a.ranks), *([self._own.name] if self._own is not None else [])]
        sizes = sorted({*SIZES, self._elements})
        verdict = a.check()
        return {
            "version": 1,
            "title": f"{a.kind} by {a.name}, {a.ranks} ranks",
            "kind": {"value": a.kind, "choices": list(KINDS)},
            "algorithm": {"value": a.name, "choices": names, "words": a.words},
            "ranks": {"value": a.ranks, "choices": sorted({*RANKS, a.ranks})},
            "elements": {
                "value": self._elements,
                "padded": self.elements,
                "choices": [{"value": n, "label": bytes_text(n * ITEM_BYTES)} for n in sizes],
            },
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

    def _machine(self) -> str:
        link = self._link()
        bandwidth = f"{1e-9 / link.beta_s_per_byte:.3g} GB/s" if link.beta_s_per_byte else "free bytes"
        gamma = f"gamma {self._cluster.device.gamma_s_per_byte * 1e9:.3g} ns for each byte that is added"
        text = f"{self._cluster.name}: alpha {time_text(link.alpha_s)} to start a message, {bandwidth}, {gamma}; "
        return text + f"{CONTENTION_WORDS[self._contention]}"

    def _chunk(self, chunk: int, columns: int) -> dict[str, Any]:
        """Its label, the slice of the data it is (colour), and its place on a card."""
        a = self._shown
        source, row = (chunk // a.ranks, chunk % a.ranks) if columns > 1 else (chunk, chunk)
        slot = source if columns > 1 else 0
        return {"label": chunk_label(a.kind, chunk, a.ranks), "hue": source, "row": row, "slot": slot}

    def _frame(self, at: int) -> dict[str, Any]:
        a, chunk_bytes = self._shown, self.size_bytes // self._shown.chunks
        wanted = goal(a.kind, a.ranks, a.chunks, a.root)
        cards = []
        for rank, cells in enumerate(self._cells(at, wanted)):
            held = [(chunk_label(a.kind, chunk, a.ranks), cell) for chunk, cell in enumerate(cells) if cell]
            texts = [f"chunk {label} {cell_text(a.kind, cell, a.ranks)}" for label, cell in held]
            cards.append({"rank": rank, "cells": cells, "text": "; ".join(texts) or "nothing yet"})
        sends = [(send, list(send.chunks)) for send in (a.rounds[at - 1] if at else ())]
        messages = [{**vars(send), "chunks": c, "bytes": len(c) * chunk_bytes} for send, c in sends]
        counts = a.counts(at)
        return {
            "round": at,
            "phase": a.phase_of(at) if at else "",
            "text": self._sentence(at, chunk_bytes),
            "cards": cards,
            "messages": messages,
            "sent": [int(c.sent_bytes(self.size_bytes)) for c in counts],
            "messages_sent": [c.messages for c in counts],
            "met": sum(bool(cell) and cell["state"] == "done" for card in cards for cell in card["cells"]),
            "wanted": sum(mask is not None for row in wanted for mask in row),
        }

    def _cells(self, at: int, wanted: Sequence[Sequence[int | None]]) -> list[list[dict[str, Any] | None]]:
        """[rank][chunk]: what lies there after a round, and whether it is done, partial, held or spent."""
        a, state = self._shown, self._shown.walked.states[at]
        reducing = a.kind in REDUCING
        arrivals: dict[tuple[int, int], list[Arrival]] = {}
        for arrival in a.arrivals(at) if at else ():
            arrivals.setdefault((arrival.destination, arrival.chunk), []).append(arrival)
        passed_on = {(s.source, c) for sends in a.rounds[:at] for s in sends for c in s.chunks}

        def cell(rank: int, chunk: int) -> dict[str, Any] | None:
            held, came = state[rank][chunk], arrivals.get((rank, chunk), [])
            if held is None:
                return None
            if held.mask == wanted[rank][chunk]:
                word = "done"
            elif reducing:
                masks = [row[chunk].mask for row in state if row[chunk] is not None]
                word = "spent" if any(held.mask | m == m != held.mask for m in masks) else "partial"
            else:
                word = "spent" if wanted[rank][chunk] is None and (rank, chunk) in passed_on else "held"
            shown = {"state": word, "who": list(held.ranks), "sum": str(held) if reducing else ""}
            return shown | {"from": [c.source for c in came], "add": bool(came and came[0].add)}

        return [[cell(rank, chunk) for chunk in range(a.chunks)] for rank in range(a.ranks)]

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
        link, gamma = self._link(), self._cluster.device.gamma_s_per_byte
        times = a.round_times_s(size, link, gamma_s_per_byte=gamma, contention=self._contention)
        closed, texts = (None,) * 4, ("",) * 4
        if f is not None:
            n, k = a.ranks, a.chunks if a.kind in ("broadcast", "reduce") else a.ranks
            sent, sending_s = f.sent(n, k), float(f.betas(n, k)) * size * link.beta_s_per_byte
            free_s = f.alphas(n, k) * link.alpha_s + sending_s + float(f.gammas(n, k)) * size * gamma
            closed = f.rounds(n, k), f.messages(n, k), int(sent * size), free_s if self._contention == "none" else None
            rounds, messages, bytes_sent, time = formula_texts(f, n)
            texts = rounds, messages, bytes_sent if bytes_sent == "S" else f"{bytes_sent} = {sent} S", time

        def most(what: str, unit: int) -> tuple[int, int]:
            """So far, and at the end."""
            return tuple(int(max(getattr(c, what) for c in counts) * unit) for counts in (a.counts(at), a.counts()))

        counted = (
            ("rounds", "count", at, len(a.rounds)),
            ("messages of the busiest rank", "count", *most("messages", 1)),
            ("bytes sent by the busiest rank", "bytes", *most("sent", size)),
            ("time, predicted", "seconds", sum(times[:at]), sum(times)),
        )
        rows = []
        for (label, unit, now, end), formula, text in zip(counted, closed, texts, strict=True):
            row = {"label": label, "unit": unit, "now": now, "end": end, "formula": formula, "formula_text": text}
            met = formula is not None and math.isclose(end, formula, rel_tol=1e-9 if unit == "seconds" else 0)
            rows.append({**row, "met": met})
        return rows

    def _compare(self, names: list[str]) -> list[dict[str, Any]]:
        """Every algorithm of this collective on these ranks, for this size."""
        a = self._shown
        rows = []
        for name in names:
            own = self._own is not None and name == self._own.name
            found = self._own if own else a if name == a.name else algorithm(a.kind, name, a.ranks, root=a.root)
            sent = max((c.sent for c in found.counts()), default=0)
            row = {"name": name, "rounds": len(found.rounds), "sent": int(sent * self.size_bytes)}
            rows.append(row | {"time_s": self._time_s(found), "wrong": own and not found.check()})
        fastest_s = min(row["time_s"] for row in rows if not row["wrong"]) * (1 + 1e-9)
        for row in rows:
            row |= {"shown": row["name"] == a.name, "fastest": not row["wrong"] and row["time_s"] <= fastest_s}
        return rows


def _named(kind: str, name: str, ranks: int) -> Algorithm:
    for given, value in {"kind": kind, "algorithm": name}.items():
        instance(str, "The name of one")("CollectiveStepper", given, value)
    return algorithm(kind, name, choice(*RANKS)("CollectiveStepper", "ranks", ranks))
