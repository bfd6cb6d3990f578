"""An algorithm as the Collective Stepper shows it: every round as a frame, and its costs next to other algorithms'.

    machine = Machine(65536, get_cluster("laptop"))
    story(algorithm("all_reduce", "ring", 4), machine)["frames"][2]["text"]
    counters(algorithm("all_reduce", "ring", 4), machine, at=2)

Pure functions. What is counted comes from the list of sends, the formula next to it from the papers; times are
predicted by alpha-beta-gamma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...base.cluster import Cluster, Link
from ...base.units import time_text
from .algorithms.algorithm import Algorithm
from .algorithms.rounds import REDUCING, ROOTED, STORIES
from .algorithms.table import formula_texts
from .algorithms.walk import Arrival, goal
from .words import cell_text, chunk_label, goal_text, round_text, start_text

CONTENTION_WORDS = {"none": "a link for every pair", "hops": "a ring of links: hops cost"}


@dataclass(frozen=True)
class Machine:
    """What costs depend on: bytes of S, whose links and memory, and what messages that share a link cost."""

    size_bytes: int
    cluster: Cluster
    contention: str = "none"

    @property
    def link(self) -> Link:
        """Between nodes, where there are several."""
        return self.cluster.node_link or self.cluster.link

    @property
    def gamma_s_per_byte(self) -> float:
        """Seconds for each byte that is added."""
        return self.cluster.device.gamma_s_per_byte

    def round_times_s(self, algorithm: Algorithm) -> Sequence[float]:
        """Seconds of each round."""
        how = {"gamma_s_per_byte": self.gamma_s_per_byte, "contention": self.contention}
        return algorithm.round_times_s(self.size_bytes, self.link, **how)

    @property
    def text(self) -> str:
        """In words."""
        link = self.link
        bandwidth = f"{1e-9 / link.beta_s_per_byte:.3g} GB/s" if link.beta_s_per_byte else "free bytes"
        gamma = f"gamma {self.gamma_s_per_byte * 1e9:.3g} ns for each byte that is added"
        text = f"{self.cluster.name}: alpha {time_text(link.alpha_s)} to start a message, {bandwidth}, {gamma}; "
        return text + CONTENTION_WORDS[self.contention]


def story(a: Algorithm, machine: Machine) -> dict[str, Any]:
    """What does not depend on the place in the algorithm."""
    columns = a.ranks if STORIES[a.kind].moves == "pair" else 1
    verdict = a.check()
    return {
        "machine": machine.text,
        "size_bytes": machine.size_bytes,
        "chunk_bytes": machine.size_bytes // a.chunks,
        "root": a.root if a.kind in ROOTED else None,
        "reducing": a.kind in REDUCING,
        "rounds": last_round(a),
        "phases": [{"name": p.name, "rounds": len(p.rounds)} for p in a.phases],
        "goal": goal_text(a),
        "fault": None if verdict else verdict.text,
        "limit_bytes": max(int(c.sent_bytes(machine.size_bytes)) for c in a.counts()),
        "chunks": [_chunk(a, c, columns) for c in range(a.chunks)],
        "rows": a.chunks // columns,
        "slots": columns,
        "frames": [_frame(a, machine.size_bytes, at) for at in range(last_round(a) + 1)],
    }


def last_round(a: Algorithm) -> int:
    """Rounds that can be stepped through; of a list that goes wrong, those before."""
    return len(a.walked.states) - 1


def _chunk(a: Algorithm, chunk: int, columns: int) -> dict[str, Any]:
    """Its label, the slice of the data it is (colour), and its place on a card."""
    source, row = (chunk // a.ranks, chunk % a.ranks) if columns > 1 else (chunk, chunk)
    slot = source if columns > 1 else 0
    return {"label": chunk_label(a.kind, chunk, a.ranks), "hue": source, "row": row, "slot": slot}


def _frame(a: Algorithm, size_bytes: int, at: int) -> dict[str, Any]:
    chunk_bytes, goals = size_bytes // a.chunks, goal(a.kind, a.ranks, a.chunks, a.root)
    cards = []
    for rank, cells in enumerate(_cells(a, at, goals)):
        held = [(chunk_label(a.kind, chunk, a.ranks), cell) for chunk, cell in enumerate(cells) if cell]
        texts = [f"chunk {label} {cell_text(a.kind, cell, a.ranks)}" for label, cell in held]
        cards.append({"rank": rank, "cells": cells, "text": "; ".join(texts) or "nothing yet"})
    sends = [(send, list(send.chunks)) for send in (a.rounds[at - 1] if at else ())]
    counts = a.counts(at)
    return {
        "round": at,
        "phase": a.phase_of(at) if at else "",
        "text": _sentence(a, at, chunk_bytes),
        "cards": cards,
        "messages": [{**vars(send), "chunks": c, "bytes": len(c) * chunk_bytes} for send, c in sends],
        "sent": [int(c.sent_bytes(size_bytes)) for c in counts],
        "messages_sent": [c.messages for c in counts],
        "met": sum(bool(cell) and cell["state"] == "done" for card in cards for cell in card["cells"]),
        "wanted": sum(mask is not None for row in goals for mask in row),
    }


def _cells(a: Algorithm, at: int, goals: Sequence[Sequence[int | None]]) -> list[list[dict[str, Any] | None]]:
    """[rank][chunk]: what lies there after a round, and whether it is done, partial, held or spent."""
    state, reducing = a.walked.states[at], a.kind in REDUCING
    arrivals: dict[tuple[int, int], list[Arrival]] = {}
    for arrival in a.arrivals(at) if at else ():
        arrivals.setdefault((arrival.destination, arrival.chunk), []).append(arrival)
    passed_on = {(s.source, c) for sends in a.rounds[:at] for s in sends for c in s.chunks}

    def cell(rank: int, chunk: int) -> dict[str, Any] | None:
        held, came = state[rank][chunk], arrivals.get((rank, chunk), [])
        if held is None:
            return None
        if held.mask == goals[rank][chunk]:
            word = "done"
        elif reducing:
            masks = [row[chunk].mask for row in state if row[chunk] is not None]
            word = "spent" if any(held.mask | m == m != held.mask for m in masks) else "partial"
        else:
            word = "spent" if goals[rank][chunk] is None and (rank, chunk) in passed_on else "held"
        shown = {"state": word, "who": list(held.ranks), "sum": str(held) if reducing else ""}
        return shown | {"from": [c.source for c in came], "add": bool(came and came[0].add)}

    return [[cell(rank, chunk) for chunk in range(a.chunks)] for rank in range(a.ranks)]


def _sentence(a: Algorithm, at: int, chunk_bytes: int) -> str:
    if at == 0:
        return f"Start: {start_text(a)}. At the end {goal_text(a)}."
    name = a.phase_of(at)
    text = f"Round {at} of {len(a.rounds)}{f' ({name})' if name else ''}: {round_text(a, at, chunk_bytes)}."
    if at == last_round(a):
        fault = a.walked.fault
        text += f" Here it goes wrong. {fault.text}" if fault else f" Done: {goal_text(a)}."
    return text


def counters(a: Algorithm, machine: Machine, at: int, times: Sequence[float] | None = None) -> list[dict[str, Any]]:
    """Rows of the table "counted, and by formula" after `at` rounds: of the rank that sends most.

    times  seconds of each round, where they are known
    """
    f, size, link = a.formula, machine.size_bytes, machine.link
    times = machine.round_times_s(a) if times is None else times
    closed, texts = (None,) * 4, ("",) * 4
    if f is not None:
        n, k = a.ranks, a.chunks if a.kind in ("broadcast", "reduce") else a.ranks
        sent, sending_s = f.sent(n, k), float(f.betas(n, k)) * size * link.beta_s_per_byte
        free_s = f.alphas(n, k) * link.alpha_s + sending_s + float(f.gammas(n, k)) * size * machine.gamma_s_per_byte
        in_all_s = free_s if machine.contention == "none" else None
        closed = f.rounds(n, k), f.messages(n, k), int(sent * size), in_all_s
        rounds, messages, bytes_sent, time = formula_texts(f, n)
        texts = rounds, messages, bytes_sent if bytes_sent == "S" else f"{bytes_sent} = {sent} S", time

    so_far_and_in_all = a.counts(at), a.counts()

    def most(what: str, unit: int) -> tuple[int, int]:
        """So far, and at the end."""
        return tuple(int(max(getattr(c, what) for c in counts) * unit) for counts in so_far_and_in_all)

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


def compared(shown: Algorithm, others: Sequence[Algorithm], machine: Machine) -> list[dict[str, Any]]:
    """The algorithms side by side, for this size; a list of one's own may be wrong."""
    rows = []
    for one in others:
        sent, wrong = max((c.sent for c in one.counts()), default=0), one.formula is None and not one.check()
        row = {"name": one.name, "rounds": len(one.rounds), "sent": int(sent * machine.size_bytes)}
        rows.append(row | {"time_s": sum(machine.round_times_s(one)), "wrong": wrong, "shown": one.name == shown.name})
    fastest_s = min(row["time_s"] for row in rows if not row["wrong"]) * (1 + 1e-9)
    return [row | {"fastest": not row["wrong"] and row["time_s"] <= fastest_s} for row in rows]
