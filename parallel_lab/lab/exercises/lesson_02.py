"""Exercises of lesson 02, collectives and alpha-beta: a ring written from sends, a line through your own measurements,
the all-reduce menu.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base.errors import ParallelLabError, shorten
from ...processes.measure.fit import Fit, fit_line
from ..collectives.all_reduce_menu import AllReduceMenu
from .book import Exercise
from .rings import RING, ring_parts
from .running import Fault, attempt, read_number
from .verdict import Part

CLOSE = 0.2  # of alpha and beta, relative

# ---- 02.3: your own line ----

SIZES_BYTES = tuple(1 << power for power in range(6, 25, 2))  # 64 B to 16 MiB
TRUE_LINES = ((3e-6, 2e-10), (4e-5, 1e-9))  # (alpha in s, beta in s per byte): shared memory, a local network
NOISE = (0.03, -0.05, 0.04, -0.02, 0.05, -0.04, 0.02, 0.05, -0.05, 0.05)  # relative, one per size


def _line_of(
    function: Any, sizes: tuple[int, ...], times: list[float]
) -> tuple[tuple[float, float] | None, Fault | None]:
    """(alpha, beta) of a learner's function, or the fault in it."""
    called = attempt(function, np.array(sizes, np.float64), np.array(times))
    if called.fault is not None:
        return None, called.fault
    try:
        alpha, beta = called.value
        pair = (float(alpha), float(beta))
    except Exception:  # whatever a learner's object does
        return None, Fault(f"returned {shorten(called.value)}; a pair of numbers is needed: alpha_s, beta_s_per_byte")
    return (pair, None) if all(map(math.isfinite, pair)) else (None, Fault(f"returned {pair}"))


def _text(line: tuple[float, float]) -> str:
    return f"alpha {line[0] * 1e6:.4g} us per message, beta {line[1] * 1e9:.4g} ns per byte"


def _off(found: float, true: float) -> bool:
    return not abs(found - true) <= CLOSE * true  # nan is off


def _line_part(function: Any, name: str, noise: tuple[float, ...], rule: str) -> Part:
    for alpha, beta in TRUE_LINES:
        times = [(alpha + beta * m) * (1 + e) for m, e in zip(SIZES_BYTES, noise, strict=True)]
        line, fault = _line_of(function, SIZES_BYTES, times)
        if fault is not None:
            return fault.part(name, rule)
        if not _off(line[0], alpha) and not _off(line[1], beta):
            continue
        return Part(
            name,
            False,
            _text(line),
            f"{_text((alpha, beta))}: {rule}",
            _line_note(line, (alpha, beta), times),
            op="alpha" * _off(line[0], alpha),
        )
    return Part(name, True, f"within {CLOSE:.0%} of alpha and of beta")


def _line_note(line: tuple[float, float], true: tuple[float, float], times: list[float]) -> str:
    """What a wrong line is, by fitting the wrong way and comparing."""
    if not _off(line[0], true[1]) and not _off(line[1], true[0]):
        return (
            "Swapped: alpha is the start-up in seconds, beta the seconds per byte. (MindSpore's cost model names "
            "them the other way round.)"
        )
    if not _off(line[1], 1 / true[1]):
        return "That is the bandwidth in bytes per second; beta is 1 / bandwidth."
    slope, start = np.polyfit(SIZES_BYTES, times, 1)
    if np.isclose(line[0], start, rtol=1e-3) and np.isclose(line[1], slope, rtol=1e-3):
        share = max(times) / sum(times)
        return (
            f"These are the numbers of the usual least squares. The largest message has {share:.0%} of all the time, "
            "so its error alone, many times "
            "the start-up, decides about alpha. Let each size count by its relative error."
        )
    if not _off(line[0], times[0]) and _off(line[0], true[0]):
        return "Alpha is the time of the smallest message: its bytes are in it too."
    return ""


def _alpha_beta(answer: Any, fit: Any = None) -> Iterator[Part]:
    given = answer if isinstance(answer, dict) else {}
    if not isinstance(answer, dict):
        given = {"line": answer} if callable(answer) else {}
    function, half = given.get("line"), given.get("half_size_bytes")
    exact = _line_part(function, "exact times", (0.0,) * len(SIZES_BYTES), "t = alpha + beta m without any noise")
    yield exact
    if exact.passed:
        yield _line_part(function, "noisy times", NOISE, "times that are up to 5 % off, as measured ones are")
    if not isinstance(fit, Fit):
        what = "No fit was given" if fit is None else f"fit={shorten(fit)}"
        yield Part("your machine", False, what, 'check("02.3", ..., fit=fit) with the fit of fit_link')
        return
    mine = fit_line(
        fit.sizes_bytes, [[t] for t in fit.median_s]
    )  # from the measured times, whatever the fit says of itself
    line = None
    if exact.passed:
        own, line = _own_line(function, mine)
        yield own
    yield _half(half, mine, line)


def _spread(line: tuple[float, float], fit: Fit) -> float:
    """Root mean square of (line - measured) / measured."""
    return math.sqrt(
        sum(((line[0] + line[1] * m - t) / t) ** 2 for m, t in zip(fit.sizes_bytes, fit.median_s, strict=True))
        / len(fit.sizes_bytes)
    )


def _own_line(function: Any, fit: Fit) -> tuple[Part, tuple[float, float] | None]:
    """The part, and the learner's line if it passes."""
    best = _spread((fit.alpha_s, fit.beta_s_per_byte), fit)
    rule = f"off by {best:.1%} of the measured times (root mean square), as the best line is, or up to {CLOSE:.0%} more"
    line, fault = _line_of(function, fit.sizes_bytes, list(fit.median_s))
    if fault is not None:
        return fault.part("your machine", rule), None
    off = _spread(line, fit)
    part = Part(
        "your machine",
        bool(off <= best * (1 + CLOSE) + 0.01),
        f"{_text(line)}: off by {off:.1%}",
        rule,
        _line_note_own(line, fit),
    )
    return part, line if part.passed else None


def _line_note_own(line: tuple[float, float], fit: Fit) -> str:
    slope, start = np.polyfit(fit.sizes_bytes, fit.median_s, 1)
    plain = np.isclose(line[0], start, rtol=1e-3) and np.isclose(line[1], slope, rtol=1e-3)
    if not plain:
        return ""
    negative = ", and it came out negative: a message that arrives before it is sent" if start < 0 else ""
    return f"These are the numbers of the usual least squares: the largest message decides about alpha{negative}."


def _half(given: Any, fit: Fit, line: tuple[float, float] | None) -> Part:
    """line: the learner's own, where it is as good as the fit's: the number may come from either."""
    name, true = "half_size_bytes", fit.half_size_bytes
    alpha, beta = fit.alpha_s, fit.beta_s_per_byte
    rule = f"alpha / beta = {alpha:.3g} s / {beta:.3g} s per byte = {true:.4g} bytes: where alpha = beta m"
    number = read_number(given)
    if number is None:
        what = "Bytes of the message whose start-up takes as long as its bytes do"
        return Part(name, False, "no number yet" if given is None else shorten(given), what)
    if math.isinf(true):
        return Part(name, math.isinf(number), f"{number:.4g}", "infinite: bytes cost nothing on this fit")
    if not _off(number, true):
        return Part(name, True, f"{number:.4g} bytes; {rule}")
    if line is not None and min(line) > 0 and not _off(number, line[0] / line[1]):
        return Part(name, True, f"{number:.4g} bytes: alpha / beta of your line")
    wrong = {
        "That is beta / alpha: right with MindSpore's letters, where alpha is the time per byte, and upside "
        "down here.": beta / alpha if alpha else 0,
        "A factor of 1000 is missing: us and ns, or kilobytes and bytes.": true / 1e3,
        "That is 1000 times as much: mind the units, us and ns.": true * 1e3,
        "That is alpha in us divided by beta in s, or the like: mind the units.": true * 1e6,
        "That is 1 / beta, the bandwidth.": 1 / beta,
    }
    note = next((text for text, value in wrong.items() if value and not _off(number, value)), "")
    return Part(
        name, False, f"{number:.4g}", f"within {CLOSE:.0%} of alpha / beta of the line through your times", note
    )


# ---- 02.4: the all-reduce menu ----

MENU_NOTES = {
    "ring": "The ring sends the fewest bytes, and pays for it with 2 (n - 1) = 14 start-ups of 5 us each.",
    "recursive_doubling": "Recursive doubling sends the whole message log2 n times: for large ones the bytes decide.",
    "tree": "One rank has everything added up at the root, then handed out: whole messages, log2 n times, twice.",
    "direct": "Every rank sends to every other: n - 1 start-ups, and far neighbours are far.",
}


def _menu(answer: Any) -> Iterator[Part]:
    menu = AllReduceMenu()
    listed = answer if isinstance(answer, list | tuple) else ()
    given = answer if isinstance(answer, dict) else dict(zip((o.size_bytes for o in menu.orders), listed, strict=False))
    prices = dict(zip(menu.orders, menu.prices_s, strict=True))
    for order, part_name in zip(menu.orders, MENU_PARTS, strict=True):
        choice, price = given.get(order.size_bytes), prices[order]
        if not isinstance(choice, str) or choice not in price:
            found = "no choice yet" if choice is None else shorten(choice)
            yield Part(part_name, False, found, f"One of {', '.join(menu.names)}")
            continue
        best = min(price.values())
        found = f"{choice}: {order.count} x {price[choice] * 1e6:.1f} us (predicted)"
        note = "" if price[choice] <= best else MENU_NOTES.get(choice, "")
        expected = (
            ""
            if price[choice] <= best
            else f"{best * 1e6:.1f} us is possible: {price[choice] / best:.2f} times as fast"
        )
        yield Part(part_name, bool(price[choice] <= best), found, expected, note)
    try:
        score = menu.score([given.get(o.size_bytes) for o in menu.orders])
    except ParallelLabError:
        return
    rings = menu.score(["ring"] * len(menu.orders))
    note = (
        f"A ring is not always best: everywhere it takes {rings.ratio:.2f} times par."
        if set(score.choices) == {"ring"}
        else ""
    )
    if score.reached_par and "halving_doubling_near_first" in score.choices:
        note = "You have found near-first halving: in a ring, the large halves go to near neighbours."
    yield Part(
        "whole menu",
        score.reached_par,
        score.text,
        f"{score.par_s * 1e6:.0f} us, the best of all {len(menu.names)}^4 choices",
        note,
    )


MENU_PARTS = tuple(order.label for order in AllReduceMenu.ORDERS)

EXERCISES = (
    Exercise(
        "02.1",
        "ring reduce_scatter",
        RING,
        (
            "In the last step rank r must add its own addend to a chunk r that holds all the others. Where was that "
            "sum one step earlier?",
            "Step through reduce_scatter by ring in the stepper above and write down which chunk rank 0 sends in "
            "steps 1, 2 and 3.",
            "In each of the n - 1 steps a rank sends one chunk to rank + 1 and receives another one from rank - 1, to "
            "which it adds its own addend.",
            "Begin with the chunk of your left neighbour, rank - 1. In step s = 0, 1, ... send chunk rank - 1 - s, "
            "then receive chunk rank - 2 - s "
            "from the left and add it to your own; all numbers modulo the number of ranks. After n - 1 steps the "
            "chunk you added last is chunk rank: "
            "return it.",
        ),
        lambda answer: ring_parts(answer, "reduce_scatter"),
    ),
    Exercise(
        "02.2",
        "ring all_gather",
        RING,
        (
            "After the first step you have two chunks. Which of them does your right neighbour not have yet?",
            "Step through all_gather by ring in the stepper: compare what a rank receives in one step with what it "
            "sends in the next.",
            "Send your own chunk first; from then on pass on what you received last.",
            "In step s = 0, 1, ... send chunk rank - s to rank + 1 and receive chunk rank - 1 - s from rank - 1, "
            "modulo the number of "
            "ranks; put it into its place. After n - 1 steps all places are filled: return them in order.",
        ),
        lambda answer: ring_parts(answer, "all_gather"),
    ),
    Exercise(
        "02.3",
        "alpha, beta and the size between them",
        (("exact times", 1), ("noisy times", 2), ("your machine", 1), ("half_size_bytes", 1)),
        (
            "The largest message takes thousands of times as long as the smallest. What does an error of 5 % there do "
            "to a sum of squares?",
            "Look at the residuals of the fit: in which unit would an error of 1 us and one of 100 us count the same?",
            "Divide both sides of alpha + beta m = t by t: now every size is asked for 1, and its error is relative.",
            "Solve the least squares problem with the rows (1 / t, m / t) and the right side 1 for (alpha, beta), for "
            "instance with "
            "numpy.linalg.lstsq. The size is alpha / beta, with alpha in seconds and beta in seconds per byte.",
        ),
        _alpha_beta,
    ),
    Exercise(
        "02.4",
        "all-reduce menu",
        tuple((name, 1) for name in (*MENU_PARTS, "whole menu")),
        (
            "For which of the four orders do the start-ups cost more than the bytes?",
            "Print menu.to_text() and read it row by row: where are two algorithms close?",
            "The fewest rounds win at 1 kB, the fewest bytes on every link at 1 MB and 64 MB; 64 kB lies between.",
            "Recursive doubling for 1 kB, the ring for 1 MB and 64 MB. For 64 kB halving and doubling is best, in the "
            "form that sends its large "
            "halves to near neighbours.",
        ),
        _menu,
    ),
)
