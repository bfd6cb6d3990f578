"""A collective algorithm in words: what a round does, what a rank has, and the whole stepper as text.

    print(to_text(stepper.snapshot()))

Pure functions of an `Algorithm` or of a snapshot of the Collective Stepper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...base.units import bytes_text, table_lines, time_text
from ..shared.sections import last_answer, open_question
from .algorithms.algorithm import Algorithm
from .algorithms.rounds import REDUCING, STORIES, Send

LISTED = 8  # messages of a round that are named one by one


def start_text(algorithm: Algorithm) -> str:
    """What lies where before the first round."""
    return STORIES[algorithm.kind].starts.format(root=algorithm.root)


def goal_text(algorithm: Algorithm) -> str:
    """What the collective promises."""
    return STORIES[algorithm.kind].goal.format(root=algorithm.root)


def chunk_label(kind: str, chunk: int, ranks: int) -> str:
    """What a chunk is called: its number; of all_to_all, from whom to whom."""
    return f"{chunk // ranks}→{chunk % ranks}" if STORIES[kind].moves == "pair" else str(chunk)


def round_text(algorithm: Algorithm, number: int, chunk_bytes: int) -> str:
    """What happens in round `number`, counted from 1, in a sentence.

    >>> from parallel_lab.lab.collectives.algorithms.algorithm import algorithm
    >>> round_text(algorithm("all_reduce", "ring", 4), 1, 16384)
    'every rank sends 1 chunk (16 KiB) to its right neighbour, which adds it'
    >>> round_text(algorithm("all_reduce", "recursive_doubling", 4), 2, 16384)
    'partners 2 apart swap 4 chunks (64 KiB) and add'
    """
    sends, n = algorithm.rounds[number - 1], algorithm.ranks
    counts = sorted({len(s.chunks) for s in sends})
    amount = "nothing"
    if counts:
        few, many = counts[0], counts[-1]
        of = " to ".join(map(str, sorted({few, many})))
        size = " to ".join(bytes_text(count * chunk_bytes) for count in sorted({few, many}))
        amount = f"{of} chunk{'' if many == 1 else 's'} ({size})"
    adds = {s.add for s in sends}
    it = "it" if counts == [1] else "them"
    ending = f", which adds {it}" if adds == {True} else ""
    shifts = {(s.destination - s.source) % n for s in sends}
    flips = {s.source ^ s.destination for s in sends}
    if len(sends) == n and len(flips) == 1:
        apart = next(iter(flips))
        return f"partners {apart} apart swap {amount}{' and add' if adds == {True} else ''}"
    if len(sends) == n > 2 and len(shifts) == 1:
        shift = next(iter(shifts))
        return f"every rank sends {amount} {_neighbour(shift, n)}{ending}"
    if n > 2 and len(sends) == n * (n - 1):
        return f"every rank sends {amount} to every other{', which adds it' if adds == {True} else ''}"
    destinations = {s.destination for s in sends}
    if len(sends) > 2 and len({s.source for s in sends}) == 1:
        return f"rank {sends[0].source} sends {amount} to each other rank"
    if len(sends) > 2 and len(destinations) == 1:
        return (
            f"rank {sends[0].destination} receives {amount} from each other rank{' and adds' if adds == {True} else ''}"
        )
    return f"{_pairs(sends)}: {amount}{' each' if len(sends) > 1 else ''}{', added' if adds == {True} else ''}"


def _neighbour(shift: int, n: int) -> str:
    if shift == 1:
        return "to its right neighbour"
    if shift == n - 1:
        return "to its left neighbour"
    return f"to the rank {shift} places on" if shift <= n // 2 else f"to the rank {n - shift} places back"


def _pairs(sends: Sequence[Send]) -> str:
    named = [f"{s.source}→{s.destination}" for s in sorted(sends, key=lambda s: (s.source, s.destination))[:LISTED]]
    return ", ".join(named) + (f" and {len(sends) - LISTED} more" if len(sends) > LISTED else "")


def cell_text(kind: str, cell: Mapping[str, Any] | None, ranks: int) -> str:
    """What one place of a card holds, in words."""
    if cell is None:
        return "nothing"
    who, sources = cell["who"], ", ".join(map(str, cell["from"]))
    if kind not in REDUCING:
        text = "there"
    elif len(who) == ranks:
        text = "complete sum"
    elif len(who) == 1:
        text = f"partial sum of rank {who[0]}"
    else:
        text = f"sum of ranks {', '.join(map(str, who))} ({len(who)} of {ranks} partial sums)"
    if sources:
        text += f", {'added' if cell['add'] else 'came'} from rank{'s' if len(cell['from']) > 1 else ''} {sources}"
    return text + (", passed on" if cell["state"] == "spent" else "")


def to_text(snapshot: Mapping[str, Any]) -> str:
    """Everything the Collective Stepper shows, as plain text: its place, the ranks, the counts, rounds, algorithms."""
    if covered := open_question(snapshot):
        return covered
    s, frame = snapshot, snapshot["frames"][snapshot["at"]]
    labels = [c["label"] for c in s["chunks"]]
    kind = s["kind"]["value"]
    named = f"{'an' if kind.startswith('all_') else 'a'} {kind}"
    wrong = [f"This list of sends is not {named}. {s['fault']}"] if s["fault"] else []
    lines = [s["title"], *wrong, frame["text"], *last_answer(s), "", f"RANKS AFTER {s['at']} OF {s['rounds']} ROUNDS"]
    for card in frame["cards"]:
        lines.append(f"  rank {card['rank']}: {card['text']}")
    for message in frame["messages"]:
        which, done = ", ".join(labels[c] for c in message["chunks"]), "added" if message["add"] else "stored"
        way = f"{message['source']} -> {message['destination']}"
        lines.append(f"  message {way}: {which}; {bytes_text(message['bytes'])}, {done}")
    rows = [("what", "so far", "at the end", "formula", ""), *map(_counter, s["counters"])]
    lines += ["", "COUNTED, AND BY FORMULA", *table_lines(rows, indent="  ")]
    lines += ["", f"SENT SO FAR: {', '.join(f'rank {r} {bytes_text(b)}' for r, b in enumerate(frame['sent']))}"]
    lines += ["", "ROUNDS", *(f"  {f['text']}" for f in s["frames"])]
    rows = [("algorithm", "rounds", "sent by the busiest rank", "time predicted")]
    for c in s["compare"]:
        name, time = c["name"] + " <- shown" * c["shown"], time_text(c["time_s"]) + " fastest" * c["fastest"]
        rows.append((name, str(c["rounds"]), bytes_text(c["sent"]), time))
    lines += ["", f"ALGORITHMS FOR {s['kind']['value']} ({s['machine']})", *table_lines(rows, indent="  ")]
    return "\n".join(lines) + "\n"


def _counter(row: Mapping[str, Any]) -> tuple[str, ...]:
    show = {"count": str, "bytes": bytes_text, "seconds": time_text}[row["unit"]]
    formula = "-" if row["formula"] is None else f"{row['formula_text']} = {show(row['formula'])}"
    met = "" if row["formula"] is None else "met" if row["met"] else "NOT MET"
    return row["label"], show(row["now"]), show(row["end"]), formula, met
