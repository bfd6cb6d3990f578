"""The Search Lab in words: tables (`shared/sections.py`), and the sentences that say which term decides.

print(search_text(lab.snapshot()))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...base.units import bytes_text, plural
from ...cost.search.problem import amount_text
from ...ops.machine.primitive import Strategy
from ..shared.earlier import earlier_runs
from ..shared.equality import rows_of
from ..shared.sections import Section, snapshot_text, table
from ..shared.step_times import Term, apart_text
from .run import PlanRun, RunResult
from .space import MODES, Argued, Point, deciding

WORST = {"exact": "the exact search", "dynamic_programming": "dynamic programming"}
WORST |= {"recursive_programming": "halving", "sharding_propagation": "propagation"}
NAMED = 3  # operators of a plan that a sentence names
HARDER = (2, 10)  # times a term counts, to see what would flip the choice
SAME = 1e-9  # part of a cost below which two are equal


# ---- plans in words ----


def own_text(preset: str, changed: Mapping[str, Any]) -> str:
    """ "data parallel", "data parallel, but for matmul"."""
    return f"{preset}, but for {_some(list(changed))}" if changed else preset


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def plan_text(strategies: Mapping[str, Strategy], choices: Iterable[Any]) -> str:
    """The operators of a plan that read two tensors: "matmul ((2, 1), (1, 4)), matmul2 ((2, 2), (2, 2))"."""
    heavy = [c.name for c in choices if c.op_class in HEAVY and not c.name.startswith("loss_fn.")]
    heavy = heavy or list(strategies)[:1]
    return _some([f"{short(name)} {strategies[name]}" for name in heavy])


def short(name: str) -> str:
    """The end of an operator's name, which tells it from others: "query.matmul"."""
    return ".".join(name.split(".")[-2:])


HEAVY = ("MatMul", "BatchMatMul", "Conv2D", "Gather", "ScaledDotProductAttention")


def change_text(one: Point, other: Point) -> str:
    """In which operators the second plan differs: "matmul ((8, 1), (1, 1))"; the loss only if nothing else does."""
    changed = [n for n, strategy in other.strategies.items() if one.strategies[n] != strategy]
    own = [n for n in changed if not n.startswith("loss_fn.")]
    return _some([f"{short(n)} {other.strategies[n]}" for n in own or changed])


def amount(argued: Argued, value: float) -> str:
    """A weighed sum; weighed seconds are no longer seconds: a count of them."""
    return amount_text(value, argued.unit)


def share_text(ratio: float) -> str:
    """How much more than 1: "38 % more", "2.35 times as much"."""
    return f"{ratio:.3g} times as much" if ratio >= 2 else f"{(ratio - 1):.0%} more"


# ---- sentences ----


def status_text(lab: Any) -> str:
    """What was taken, against the own choice and the least there is; then what each argument has changed."""
    argued, winner, own = lab.argued, lab.winner, lab.own
    sentences = [
        f"{WORST[lab.choices()['mode'].value].capitalize()} takes {plan_text(winner.strategies, lab.space.operators)}"
    ]
    sentences[0] += f": {amount(argued, winner.cost)} and {bytes_text(winner.memory_bytes)} per device"
    sentences[0] += f"{_against(argued, winner, own)} (predicted)."
    if not argued.searches:
        sentences.append(_excess(argued))
    if argued.limit and winner.memory_bytes > argued.limit:
        sentences.append(
            f"It needs more than the {bytes_text(argued.limit)} of a device: this search does not consider memory."
        )
    sentences += [text for text in _arguments(lab) if text]
    return " ".join(filter(None, sentences))


def _against(argued: Argued, winner: Point, own: Point) -> str:
    """ ", 38 % less than yours, mostly of gradients"."""
    if own.key == winner.key:
        return ", which is your choice"
    more = argued.more(own)
    if abs(own.cost - winner.cost) <= SAME * winner.cost:
        return ", as much as yours"
    term, by = deciding(more)
    if own.cost < winner.cost:
        ratio = share_text(winner.cost / own.cost) if own.cost else "more"
        return f", {ratio} {'as' if 'as much' in ratio else 'than'} yours: {amount(argued, -by)} more of {term}"
    part = 1 - winner.cost / own.cost if own.cost else 0.0
    return f", {part:.0%} less than yours: yours has {amount(argued, by)} more of {term}"


def _excess(argued: Argued) -> str:
    """What a search by rules misses."""
    best, winner = argued.best, argued.winner
    if winner.cost <= best.cost * (1 + SAME):
        return "No plan costs less."
    term, by = deciding({name: -value for name, value in argued.more(best).items()})
    ratio = winner.cost / best.cost if best.cost else float("inf")
    text = f"The least is {amount(argued, best.cost)}: this is {share_text(ratio)}, "
    text += f"with {amount(argued, by)} more of {term}."
    if argued.mode == "recursive_programming" and argued.pins:
        return f"{text} It looks at no pins."
    return text


def _arguments(lab: Any) -> Iterable[str]:
    """For each thing that was argued, what would win without it."""
    argued = lab.argued
    for name, other in lab_arguments(lab):
        if other is None:
            yield f"Without {name} nothing fits."
            continue
        if other.winner.key == argued.winner.key:
            yield f"{name[:1].upper()}{name[1:]} changes nothing."
            continue
        then = argued.point(other.winner.strategies)
        less = {t: -value for t, value in argued.more(then).items()}
        saves = argued.winner.cost - then.cost
        term, by = deciding(less)
        text = f"Without {name} the winner would be {change_text(argued.winner, other.winner)}"
        if saves > SAME * argued.winner.cost:
            yield f"{text}: {amount(argued, saves)} less, with {amount(argued, by)} less of {term}."
        else:  # in the present costs the winner is the better one
            term, by = deciding(argued.more(then))
            yield f"{text}, which now has {amount(argued, by)} more of {term}."


def lab_arguments(lab: Any) -> Iterable[tuple[str, Argued | None]]:
    """(what was argued, what the search makes of the rest); the latter None where nothing fits."""
    argued, arguments = lab.argued, []
    if argued.limit:
        arguments.append((f"the cap of {bytes_text(argued.limit)}", {"capacity": 0}))
    for name in lab.pins:
        rest = {n: s for n, s in lab.pins.items() if n != name}
        arguments.append((f"the pin of {name}", {"pins": rest}))
    for term, weight in argued.weights.items():
        rest_of = {t: w for t, w in argued.weights.items() if t != term}
        arguments.append((f"the weight {weight:g} of {term}", {"weights": rest_of}))
    setting = argued.space.setting
    if setting.bandwidth != 1:
        arguments.append((f"{setting.bandwidth:g} times the bandwidth", {"bandwidth": 1.0}))
    if setting.latency != 1:
        arguments.append((f"{setting.latency:g} times the latency", {"latency": 1.0}))
    for name, other in arguments:
        yield name, lab.argued_with(**other)


# ---- tables ----


def search_sections(lab: Any) -> dict[str, Section]:
    """Sections by name; on a page they are behind tabs."""
    return {"terms": _terms(lab), "flips": _flips(lab), **_runs(lab), **earlier_runs(lab.earlier)}


def _terms(lab: Any) -> Section:
    """Terms of the winner, the own choice and the least, with their formulas."""
    argued, own, rows = lab.argued, lab.own, []
    for term in argued.whole.terms:
        values = [p.terms[term.name] for p in (argued.winner, own, argued.best)]
        rows.append([term.name, f"{term.weight:g}", *map(term.text, values), term.formula])
    points = (argued.winner, own, argued.best)
    rows.append(["sum", "", *(amount(argued, p.cost) for p in points), ""])
    rows.append(["bytes per device", "", *(bytes_text(p.memory_bytes) for p in points), ""])
    columns = {"term": "name", "counts": "number", "winner": "number", "yours": "number", "least": "number"}
    columns |= {"formula": "why"}
    proof = f"yours: {lab.own_name}; {argued.problem.plans:,} plans"
    return table("Terms", columns, rows, small=f"predicted; {proof}")


def _flips(lab: Any) -> Section:
    """What would make another plan win: an argument less, or a term that counts more."""
    argued, rows = lab.argued, []
    for name, other in lab_arguments(lab):
        rows.append(_flip(lab, f"without {name}", other))
    for term in argued.whole.terms:
        for times in (0, *HARDER):
            weight = argued.weights.get(term.name, 1.0) * times
            other = lab.argued_with(weights={**argued.weights, term.name: weight}) if argued.searches else None
            if other is not None and other.winner.key != argued.winner.key:
                counts = "does not count" if not times else f"counts {times} times"
                rows.append(_flip(lab, f"{term.name} {counts}", other))
                break
    columns = {"if": "name", "then the winner is": "why", "costs now": "number", "decided by": "why"}
    notes = [] if rows else ["No other plan wins when one term is left out, or counts 2 or 10 times."]
    return table("What would flip it", columns, rows, small="each alone, predicted", notes=notes)


def _flip(lab: Any, name: str, other: Argued) -> list[Any]:
    argued = lab.argued
    if other.winner.key == argued.winner.key:
        return [name, "the same", amount(argued, argued.winner.cost), ""]
    then = argued.point(other.winner.strategies)
    term, by = deciding(argued.more(then))
    side = "more" if by >= 0 else "less"
    decided = f"now {amount(argued, abs(by))} {side} of {term}"
    return [name, change_text(argued.winner, other.winner), amount(argued, then.cost), decided]


def run_text(run: PlanRun, source: str) -> str:
    """Step times of a plan that was trained, in words.  source: as of its RunResult"""
    times = {"predicted": run.predicted_s, "simulated": run.simulated_s, source: run.measured_s}
    return ", ".join(f"{amount_text(time_s, 's')} {source}" for source, time_s in times.items())


def _measured(result: RunResult, ranks: int, recorded: str) -> str:
    """Which plan was faster on workers, and why that is far from what was predicted, if it is."""
    one, other = result.plans
    ahead = "winner" if one.measured_s <= other.measured_s else "own choice"
    text = f"measured on workers of a machine with {result.cores} cores{recorded}: there the {ahead} is faster, by "
    text += f"{abs(other.measured_s / one.measured_s - 1):.0%} of the winner's step."
    far = max(result.plans, key=lambda run: run.measured_s / run.predicted_s)
    terms = (
        Term("computing", far.simulated_s, far.predicted_s),
        Term("waits and turns on the cores", far.measured_s - far.simulated_s, 0.0),
    )
    apart = apart_text(far.predicted_s, far.measured_s, ranks, result.cores, result.profile, terms)
    return f"{text} Measured: {apart}." if apart else text


def _runs(lab: Any) -> dict[str, Section]:
    """Step times and equality of both plans."""
    result = lab.result
    if result is None:
        return {}
    columns = {"plan": "name", "predicted": "time", "simulated": "time", "measured": "time"}
    columns |= {"quickest to slowest": "text", "against one device": "verdict"}
    names, rows, equal = {"winner": "winner", "yours": f"yours: {lab.own_name}"}, [], []
    for run in result.plans:
        measured: list[Any] = [None, ""]
        if result.source == "measured":
            measured = [run.measured_s, f"{amount_text(run.quickest_s, 's')} to {amount_text(run.slowest_s, 's')}"]
        verdict = [run.equality.verdict, run.equality.equal]
        rows.append([names[run.name], run.predicted_s, run.simulated_s, *measured, verdict])
        equal += rows_of(run.equality, run.name)
    recorded = " (recorded)" if lab.recorded else ""
    note = f"Predicted and simulated for the profile {result.profile!r}, the optimizer's update included; "
    if result.source == "simulated":
        note += f"nothing was measured{recorded}: no processes could be started."
    else:
        note += _measured(result, lab.space.setting.devices, recorded)
    heads = {"plan": "name", "tensor": "text", "largest difference": "small", "rounding bound": "small", "": "verdict"}
    return {
        "runs": table("Both trained", columns, rows, small=f"{result.steps} steps, medians{recorded}", notes=[note]),
        "equality": table("Same numbers?", heads, equal, small=f"{result.steps} steps against one device{recorded}"),
    }


# ---- everything as text ----


def search_text(s: Mapping[str, Any]) -> str:
    """Everything the Search Lab shows; the second line says the whole picture."""
    own = {**s["own"], "value": s["own"]["value"] or "changed by you"}
    operator = {"label": "operator", "value": s["operator"], "choices": []}
    notes = [*s["notes"], *_argued_notes(s), f"Run of both: {s['run']['state']}. {s['run']['text']}".strip()]
    shown = {"candidates": _candidates(s), "points": _points(s), "net": _net(s), "steps": _steps(s)}
    sections = {**shown, **s["sections"]}
    return snapshot_text({**s, "own": own, "operator": operator, "notes": notes, "sections": sections})


def _argued_notes(s: Mapping[str, Any]) -> list[str]:
    pins = ", ".join(f"{name} {strategy}" for name, strategy in s["pins"].items())
    return [f"Pinned: {pins}."] if pins else []


def _candidates(s: Mapping[str, Any]) -> Section:
    unit, rows = s["unit"], []
    for c in s["candidates"]:
        rows.append(
            [c["strategy"], *(amount_text(v, unit) for v in c["own"]), amount_text(c["cost"], unit), _why(c, unit)]
        )
    columns = {"strategy": "text", **{t["name"]: "text" for t in s["terms"]}, "best plan": "text", "decided by": "text"}
    chosen = next((c["strategy"] for c in s["candidates"] if c["chosen"]), "")
    small = "its own terms in the best plan with it, predicted"
    return table(f"Candidates of {s['operator']}", columns, rows, small=small, on=chosen)


def _why(c: Mapping[str, Any], unit: str) -> str:
    more = c["more"]
    place = " elsewhere" if c["elsewhere"] else ""
    text = f"{amount_text(abs(more), unit)} {'more' if more > 0 else 'less'} of {c['term']}{place}" if more else ""
    if c["chosen"]:
        held = "chosen, pinned" if c["pinned"] else "chosen"
        return f"{held}; with others next to it {text}" if text else held
    return text or "as good"


def _points(s: Mapping[str, Any]) -> Section:
    rows = [[p["id"], amount_text(p["cost"], s["unit"]), bytes_text(p["memory"])] for p in s["points"]]
    columns = {"plan": "name", "cost": "text", "bytes per device": "text"}
    return table("Plans: cost against memory", columns, rows, small=f"front: {s['line']}", on=s["point"])


def _net(s: Mapping[str, Any]) -> Section:
    rows = []
    for o in s["net_of"]:
        picture = o["picture"]
        lies = "a number, on every device"
        if picture:
            partial = (
                f", each a pending {picture['partial']['reduce']} of {picture['partial']['count']}"
                if picture["partial"]
                else ""
            )
            lies = f"{tuple(picture['shape'])} in {plural(picture['slices'], 'slice')}{partial}"
        rows.append([o["name"], o["strategy"], lies])
    columns = {"operator": "name", "strategy": "text", "its result": "text"}
    return table(f"The net of {s['point']}", columns, rows, on=s["operator"])


def _steps(s: Mapping[str, Any]) -> Section:
    notes = [f"{'>' if n == s['at'] else ' '} {n + 1}. {step['text']}" for n, step in enumerate(s["steps"])]
    return {"kind": "lines", "title": "Steps of the search", "small": MODES[s["mode"]["value"]], "notes": notes}
