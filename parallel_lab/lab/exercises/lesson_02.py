"""Lesson 02, collectives and alpha-beta: rings from sends, a line through your measurements, the all-reduce menu."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...base.cluster import Link
from ...base.errors import ParallelLabError, shorten
from ...processes.measure.fit import Fit, fit_line
from ..collectives.all_reduce_menu import AllReduceMenu
from .book import Exercise
from .ideas import Idea, compare_calls, slip
from .reading import another_form
from .ring_collectives import RING, ring_parts
from .running import ask, read_number
from .verdict import Note, Part, Wrong, judged

CLOSE = 0.2  # of alpha and beta, relative

# ---- 02.3, as earlier editions of the lesson asked it: a line through times ----

SIZES_BYTES = tuple(1 << power for power in range(6, 25, 2))  # 64 B to 16 MiB
TRUE_LINES = ((3e-6, 2e-10), (4e-5, 1e-9))  # (alpha in s, beta in s per byte): shared memory, a local network
NOISE = (0.03, -0.05, 0.04, -0.02, 0.05, -0.04, 0.02, 0.05, -0.05, 0.05)  # relative, one per size


Line = tuple[float, float]  # alpha in s, beta in s per byte


def _line_of(function: Any, sizes: tuple[int, ...], times: Sequence[float], rule: str) -> Line:
    """What a learner's function returns. Raises Wrong if that is not a line."""
    value = ask(rule, function, np.array(sizes, np.float64), np.array(times))
    try:
        alpha, beta = value
        line = (float(alpha), float(beta))
    except Exception as error:  # whatever a learner's object does
        text = f"returned {shorten(value)}; a pair of numbers is needed: alpha_s, beta_s_per_byte"
        raise Wrong(text, rule, form="A pair of numbers") from error
    if not all(map(math.isfinite, line)):
        raise Wrong(f"returned {line}", rule)
    return line


def _text(line: Line) -> str:
    return f"alpha {line[0] * 1e6:.4g} us per message, beta {line[1] * 1e9:.4g} ns per byte"


def _off(value: float, true: float) -> bool:
    return not abs(value - true) <= CLOSE * true  # nan is off


def _usual_line(line: Line, sizes: Sequence[int], times: Sequence[float]) -> Line | None:
    """The line of the usual least squares, if that is what `line` is."""
    beta, alpha = np.polyfit(sizes, times, 1)
    return (alpha, beta) if np.allclose(line, (alpha, beta), rtol=1e-3) else None


def _close_line(function: Any, noise: Sequence[float], rule: str, lines: Sequence[Line] = TRUE_LINES) -> str:
    for alpha, beta in lines:
        times = [(alpha + beta * m) * (1 + e) for m, e in zip(SIZES_BYTES, noise, strict=True)]
        line = _line_of(function, SIZES_BYTES, times, rule)
        if _off(line[0], alpha) or _off(line[1], beta):
            note, op = _line_note(line, (alpha, beta), times), "alpha" * _off(line[0], alpha)
            raise Wrong(_text(line), f"{_text((alpha, beta))}: {rule}", note, None, op)
    return f"within {CLOSE:.0%} of alpha and of beta"


def _line_note(line: Line, true: Line, times: list[float]) -> str:
    """What a wrong line is, by fitting the wrong way and comparing."""
    if not _off(line[0], true[1]) and not _off(line[1], true[0]):
        text = "Swapped: alpha is the start-up in seconds, beta the seconds per byte. "
        return text + "(MindSpore's cost model names them the other way round.)"
    if not _off(line[1], 1 / true[1]):
        return "That is the bandwidth in bytes per second; beta is 1 / bandwidth."
    if _usual_line(line, SIZES_BYTES, times):
        return (
            f"These are the numbers of the usual least squares. The largest message has {max(times) / sum(times):.0%} "
            "of all the time, so its error alone, many times the start-up, decides about alpha. Let each size count by "
            "its relative error."
        )
    if not _off(line[0], times[0]) and _off(line[0], true[0]):
        return "Alpha is the time of the smallest message: its bytes are in it too."
    return ""


def _entries(answer: Any) -> dict[str, Any]:
    return answer if isinstance(answer, dict) else {"line": answer} if callable(answer) else {}


def _drawn_times(name: str, answer: Any, rng: np.random.Generator) -> None:
    """A line between shared memory's and a slow network's; errors of up to 5 %, where there are any."""
    line = float(10 ** rng.uniform(-5.5, -4)), float(10 ** rng.uniform(-9.7, -8.7))
    noise = rng.uniform(-0.05, 0.05, len(SIZES_BYTES)) if name == "noisy times" else np.zeros(len(SIZES_BYTES))
    _close_line(_entries(answer).get("line"), [float(e) for e in noise], "a line through these times", [line])


def _alpha_beta(answer: Any, fit: Any = None) -> Iterator[Part]:
    entries = _entries(answer)
    function = entries.get("line")
    exact = judged(
        "exact times", _close_line, function, (0.0,) * len(SIZES_BYTES), "t = alpha + beta m without any noise"
    )
    yield exact
    if exact.passed:
        rule = "times that are up to 5 % off, as measured ones are"
        yield judged("noisy times", _close_line, function, NOISE, rule)
    if not isinstance(fit, Fit):
        what = "No fit was given" if fit is None else f"fit={shorten(fit)}"
        yield Part("your machine", False, what, 'check("02.3", ..., fit=fit) with the fit of fit_link')
        return
    # from the measured times, whatever the fit says of itself
    fit = fit_line(fit.sizes_bytes, [[t] for t in fit.median_s])
    line = None
    if exact.passed:
        own, line = _own_line(function, fit)
        yield own
    yield judged("half_size_bytes", _half, entries.get("half_size_bytes"), fit, line)


def _spread(line: Line, fit: Fit) -> float:
    """Root mean square of (line - measured) / measured."""
    off = [(line[0] + line[1] * m - t) / t for m, t in zip(fit.sizes_bytes, fit.median_s, strict=True)]
    return math.sqrt(sum(x**2 for x in off) / len(off))


def _own_line(function: Any, fit: Fit) -> tuple[Part, Line | None]:
    """The part, and the learner's line if it passes."""
    best = _spread((fit.alpha_s, fit.beta_s_per_byte), fit)
    rule = f"off by {best:.1%} of the measured times (root mean square), as the best line is, or up to {CLOSE:.0%} more"
    try:
        line = _line_of(function, fit.sizes_bytes, fit.median_s, rule)
    except Wrong as wrong:
        return wrong.part("your machine"), None
    off, note = _spread(line, fit), ""
    if usual := _usual_line(line, fit.sizes_bytes, fit.median_s):
        negative = ", and it came out negative: a message that arrives before it is sent" if usual[0] < 0 else ""
        note = f"These are the numbers of the usual least squares: the largest message decides about alpha{negative}."
    passed = bool(off <= best * (1 + CLOSE) + 0.01)
    return Part("your machine", passed, f"{_text(line)}: off by {off:.1%}", rule, note), line if passed else None


def _half(answer: Any, fit: Fit, line: Line | None) -> str:
    """line: the learner's own, where it is as good as the fit's: the number may come from either."""
    true, alpha, beta = fit.half_size_bytes, fit.alpha_s, fit.beta_s_per_byte
    number = read_number(answer)
    if number is None:
        raise another_form(answer, "Bytes of the message whose start-up takes as long as its bytes do", "no number yet")
    text = f"{number:.4g}"
    if math.isinf(true):
        if not math.isinf(number):
            raise Wrong(text, "infinite: bytes cost nothing on this fit")
        return text
    if not _off(number, true):
        rule = f"alpha / beta = {alpha:.3g} s / {beta:.3g} s per byte = {true:.4g} bytes: where alpha = beta m"
        return f"{text} bytes; {rule}"
    if line is not None and min(line) > 0 and not _off(number, line[0] / line[1]):
        return f"{text} bytes: alpha / beta of your line"
    slips = ((idea, idea.answer(alpha, beta, true)) for idea in HALF_IDEAS)
    note = next((idea.told for idea, value in slips if value and not _off(number, value)), "")
    raise Wrong(text, f"within {CLOSE:.0%} of alpha / beta of the line through your times", note)


LINE_START = '''\
def my_line(sizes_bytes, times_s):
    """Returns (alpha in seconds per message, beta in seconds per byte)."""
    beta_s_per_byte, alpha_s = np.polyfit(sizes_bytes, times_s, 1)
    return alpha_s, beta_s_per_byte


half_size_bytes = None

check("02.3", {"line": my_line, "half_size_bytes": half_size_bytes}, fit=fit)
'''

HALF_IDEAS = (  # from alpha, beta and the right size
    slip(
        "That is beta / alpha: right with MindSpore's letters, where alpha is the time per byte, and upside down here.",
        lambda alpha, beta, true: beta / alpha if alpha else 0,
    ),
    slip("A factor of 1000 is missing: us and ns, or kilobytes and bytes.", lambda alpha, beta, true: true / 1e3),
    slip("That is 1000 times as much: mind the units, us and ns.", lambda alpha, beta, true: true * 1e3),
    slip(
        "That is alpha in us divided by beta in s, or the like: mind the units.", lambda alpha, beta, true: true * 1e6
    ),
    slip("That is 1 / beta, the bandwidth.", lambda alpha, beta, true: 1 / beta),
)


# ---- 02.3: where a ring takes over ----

SWITCHES = ((4, 5e-6, 1e-9), (8, 5e-6, 1e-9), (16, 2e-6, 3e-10), (8, 4e-5, 2e-10))  # ranks, alpha in s, beta in s/byte
RING_RULE = "2 (n - 1) messages, each a chunk of size_bytes / ranks: n - 1 to add up, n - 1 to hand out"
SWITCH_RULE = "there the ring's extra start-ups cost as much as the bytes it saves: both take the same time"


def _ring_s(ranks: int, size_bytes: float, alpha_s: float, beta_s_per_byte: float) -> float:
    return 2 * (ranks - 1) * (alpha_s + beta_s_per_byte * size_bytes / ranks)


def _switch_bytes(ranks: int, alpha_s: float, beta_s_per_byte: float) -> float:
    rounds, messages = math.log2(ranks), 2 * (ranks - 1)
    return alpha_s * (messages - rounds) / (beta_s_per_byte * (rounds - messages / ranks))


RING_SLIPS = (
    slip("Half of it: the sums must be handed out too, in n - 1 messages more.", lambda *of: _ring_s(*of) / 2),
    slip("A message of a ring holds a chunk, not the whole array.", lambda n, m, a, b: 2 * (n - 1) * (a + b * m)),
    slip("That is n messages each way: a ring needs n - 1.", lambda n, m, a, b: 2 * n * (a + b * m / n)),
)
SWITCH_SLIPS = (
    slip("That is where ONE message costs as much start-up as bytes. Compare two all_reduces.", lambda n, a, b: a / b),
    slip(
        "A rank sends all of the array in each of the log2 n rounds, not once.",
        lambda n, a, b: a * (2 * (n - 1) - math.log2(n)) / (b * (2 * (n - 1) / n - 1)),
    ),
)


def _drawn_switches(rng: np.random.Generator) -> list[tuple[int, float, float]]:
    return [(int(rng.choice([4, 8, 16, 32])), 10 ** rng.uniform(-6, -4), 10 ** rng.uniform(-10, -8)) for _ in range(4)]


def _in_ring(cases: Sequence[tuple[int, float, float]]) -> list[tuple[int, int, float, float]]:
    return [(n, size, alpha, beta) for n, alpha, beta in cases for size in (4096, 1 << 24)]


def _ring_part(answer: Any, cases: Sequence[tuple[int, float, float]]) -> str:
    return compare_calls(_entries(answer).get("ring"), _in_ring(cases), _ring_s, RING_SLIPS, RING_RULE)


def _switch_part(answer: Any, cases: Sequence[tuple[int, float, float]]) -> str:
    return compare_calls(_entries(answer).get("switch"), cases, _switch_bytes, SWITCH_SLIPS, SWITCH_RULE)


def _taking_over(answer: Any, fit: Any = None) -> Iterator[Part]:
    if isinstance(fit, Fit):
        fit = fit_line(fit.sizes_bytes, [[t] for t in fit.median_s])  # whatever it says of itself
        yield judged("half_size_bytes", _half, _entries(answer).get("half_size_bytes"), fit, None)
    else:
        what = "No fit was given" if fit is None else f"fit={shorten(fit)}"
        yield Part("half_size_bytes", False, what, 'check("02.3", ..., fit=fit) with the fit of fit_link')
    yield judged("ring", _ring_part, answer, SWITCHES)
    yield judged("switch", _switch_part, answer, SWITCHES)


# ---- 02.4: the all-reduce menu ----

MENU_PARTS = tuple(order.label for order in AllReduceMenu.ORDERS)
OWN_RANKS, OWN_STARTS_US, OWN_GB_PER_S = (4, 8, 16), (1, 2, 3, 5, 8, 12, 20, 30), (1, 2, 5, 8, 16, 25)
MENU_NOTES = {
    "recursive_doubling": "Recursive doubling sends the whole message log2 n times: for large ones the bytes decide.",
    "tree": "Everything is added up at one root, then handed out: whole messages, log2 n times each way.",
    "direct": "Every rank sends to every other: n - 1 start-ups, and distant ranks are many links away.",
}


def _menu(menu: AllReduceMenu, answer: Any, /) -> Iterator[Part]:
    if answer is not None and not isinstance(answer, dict | list | tuple):
        raise another_form(answer, "the name of an algorithm for each size")
    listed = answer or () if not isinstance(answer, dict) else ()
    choices = (
        answer if isinstance(answer, dict) else dict(zip((o.size_bytes for o in menu.orders), listed, strict=False))
    )
    for name, order, price in zip(MENU_PARTS, menu.orders, menu.prices_s, strict=True):
        yield judged(name, _best_choice, choices.get(order.size_bytes), order.count, price, menu)
    try:
        score = menu.score([choices.get(o.size_bytes) for o in menu.orders])
    except ParallelLabError:
        return
    note = ""
    if set(score.choices) == {"ring"}:
        text = f"A ring is not always best: everywhere it takes {score.ratio:.2f} times par."
        note = Note(text, "a ring is always best")
    if score.reached_par and "halving_doubling_near_first" in score.choices:
        note = "You have found near-first halving: in a ring, the large halves go to near neighbours."
    expected = f"{score.par_s * 1e6:.0f} us, the best of all {len(menu.names)}^4 choices"
    yield Part("par", score.reached_par, score.text, expected, note)


def _shown_menu(menu: AllReduceMenu) -> str:
    return f"choices = {dict(zip((order.size_bytes for order in menu.orders), menu.par, strict=True))}"


def _told(menu: AllReduceMenu) -> str:
    link = menu.link
    return f"{menu.ranks} ranks, alpha {link.alpha_s * 1e6:g} us, {1e-9 / link.beta_s_per_byte:g} GB/s per link"


def _own_menu(rng: np.random.Generator) -> dict[str, Any]:
    ranks, start_us, gb_per_s = (int(rng.choice(each)) for each in (OWN_RANKS, OWN_STARTS_US, OWN_GB_PER_S))
    menu = AllReduceMenu(ranks=ranks, link=Link(start_us * 1e-6, 1e-9 / gb_per_s))
    return {
        "numbers": f"{_told(menu)}\n{menu.to_text()}",
        "grader": partial(_menu, menu),
        "par": partial(_shown_menu, menu),
        "hints": (MENU_HINTS[0], 'Read print(numbers("02.4")) row by row: where are two algorithms close?', *OWN_HINTS),
    }


def _menu_note(choice: str, menu: AllReduceMenu) -> str:
    if choice == "ring":
        text = "A ring is not always best: it sends the fewest bytes, and pays for it with 2 (n - 1) = "
        text += f"{2 * (menu.ranks - 1)} start-ups of {menu.link.alpha_s * 1e6:g} us."
        return Note(text, "a ring is always best")
    return MENU_NOTES.get(choice, "")


def _best_choice(choice: Any, count: int, price: Mapping[str, float], menu: AllReduceMenu) -> str:
    if not isinstance(choice, str) or choice not in price:
        raise another_form(choice, f"One of {', '.join(price)}", "no choice yet")
    text, best = f"{choice}: {count} x {price[choice] * 1e6:.1f} us (predicted)", min(price.values())
    if price[choice] > best:
        faster = f"{best * 1e6:.1f} us is possible: {price[choice] / best:.2f} times as fast"
        raise Wrong(text, faster, _menu_note(choice, menu))
    return text


MENU_HINTS = (
    "For which of the four orders do the start-ups cost more than the bytes?",
    "Print menu.to_text() and read it row by row: where are two algorithms close?",
)
OWN_HINTS = (
    "The fewest rounds win where the messages are small, the fewest bytes on every link where they are large.",
    "In each row of the table choose the algorithm with the least time: nothing else counts.",
)


EXERCISES = (
    Exercise(
        "02.1",
        "ring reduce_scatter",
        RING,
        (
            "In the last step rank r must add its own addend to a chunk r that holds all the others. Where was that "
            "sum one step earlier?",
            "Step through reduce_scatter by ring in the stepper above: which chunk does rank 0 send in each step?",
            "In each of the n - 1 steps a rank sends one chunk to rank + 1 and receives another one from rank - 1, to "
            "which it adds its own addend.",
            "Begin with the chunk of your left neighbour, rank - 1. In step s = 0, 1, ... send chunk rank - 1 - s, "
            "then receive chunk rank - 2 - s from the left and add it to your own; all numbers modulo the number of "
            "ranks. After n - 1 steps the chunk you added last is chunk rank: return it.",
        ),
        lambda answer: ring_parts(answer, "reduce_scatter"),
        start="""\
def ring_reduce_scatter(rank, ranks, chunks):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    for _ in range(1):
        yield Request("send", (rank, right), chunks[rank])
        arrived = yield Request("recv", (left, rank))
        chunks[left] = chunks[left] + arrived
    return chunks[rank]


check("02.1", ring_reduce_scatter)
""",
    ),
    Exercise(
        "02.2",
        "ring all_gather",
        RING,
        (
            "After the first step you have two chunks. Which of them does your right neighbour not have yet?",
            "Step through all_gather by ring in the stepper: compare what a rank receives with what it sends next.",
            "Send your own chunk first; from then on pass on what you received last.",
            "In step s = 0, 1, ... send chunk rank - s to rank + 1 and receive chunk rank - 1 - s from rank - 1, "
            "modulo the number of "
            "ranks; put it into its place. After n - 1 steps all places are filled: return them in order.",
        ),
        lambda answer: ring_parts(answer, "all_gather"),
        start="""\
def ring_all_gather(rank, ranks, chunk):
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    chunks = [np.zeros_like(chunk) for _ in range(ranks)]
    chunks[rank] = chunk
    for _ in range(1):
        yield Request("send", (rank, right), chunk)
        chunks[left] = yield Request("recv", (left, rank))
    return chunks


check("02.2", ring_all_gather)
""",
    ),
    Exercise(
        "02.3",
        "where a ring takes over",
        (("half_size_bytes", 1), ("ring", 2), ("switch", 2)),
        (
            "What does the ring pay more of than the fewest rounds, and what does it save?",
            "Count both in the stepper: how many messages does a rank send, and how many bytes does each hold?",
            "Fewest rounds: log2 n messages with the whole array, so log2 n (alpha + beta S). Set it equal to the time "
            "of the ring and solve for S.",
            "The ring takes 2 (n - 1) (alpha + beta S / n). It is faster from S = alpha (2 (n - 1) - log2 n) / (beta "
            "(log2 n - 2 (n - 1) / n)) on. half_size_bytes is fit.alpha_s / fit.beta_s_per_byte.",
        ),
        _taking_over,
        drawn={
            "ring": lambda answer, rng: _ring_part(answer, _drawn_switches(rng)),
            "switch": lambda answer, rng: _switch_part(answer, _drawn_switches(rng)),
        },
        earlier=(
            lambda answer: callable(answer) or (isinstance(answer, dict) and "line" in answer),
            {
                "title": "alpha, beta and the size between them",
                "parts": (("exact times", 1), ("noisy times", 2), ("your machine", 1), ("half_size_bytes", 1)),
                "grader": _alpha_beta,
                "drawn": {name: partial(_drawn_times, name) for name in ("exact times", "noisy times")},
                "start": LINE_START,
            },
        ),
        start="""\
def ring_s(ranks, size_bytes, alpha_s, beta_s_per_byte):
    return ranks * (alpha_s + beta_s_per_byte * size_bytes)


def switch_bytes(ranks, alpha_s, beta_s_per_byte):
    return alpha_s / beta_s_per_byte


half_size_bytes = None

check("02.3", {"ring": ring_s, "switch": switch_bytes, "half_size_bytes": half_size_bytes}, fit=fit)
""",
    ),
    Exercise(
        "02.4",
        "all-reduce menu",
        tuple((name, 1) for name in (*MENU_PARTS, "par")),
        (
            *MENU_HINTS,
            "The fewest rounds win at 1 kB, the fewest bytes on every link at 1 MB and 64 MB; 64 kB lies between.",
            "Recursive doubling for 1 kB, the ring for 1 MB and 64 MB. For 64 kB halving and doubling is best, in the "
            "form that sends its large halves to near neighbours.",
        ),
        partial(_menu, AllReduceMenu()),
        partial(_shown_menu, AllReduceMenu()),
        MENU_PARTS[0],
        numbers=_told(AllReduceMenu()),
        own=_own_menu,
        ideas=(
            Idea(
                "a ring is always best",
                "A ring is not always best",
                dict.fromkeys((order.size_bytes for order in AllReduceMenu.ORDERS), "ring"),
                "par",
            ),
        ),
        start="""\
choices = {1_000: None, 64_000: None, 1_000_000: None, 64_000_000: None}

check("02.4", choices)
""",
    ),
)
