"""`SearchLab`: the headless model behind the Search Lab widget.

    lab = SearchLab("quickstart", devices=8)
    lab.set_pin("matmul", "((8, 1), (1, 1))")           # argue: and the winner is another one
    lab.set_capacity("4 KiB"); lab.set_weight("gradients", 2); lab.set_bandwidth(0.1); lab.set_mode("exact")
    lab.select_point("front 3"); lab.take("front 3")    # look at a plan; make it the own choice
    lab.run(); lab.wait()                               # train winner and own choice on worker processes
    print(lab.to_text())

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. Costs and bytes are predicted by the model of costs that is named; step
times of a run are predicted, simulated and measured, and say which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from ...base.checks import size_or_none
from ...base.units import plural
from ...graph.plan import Plan
from ..code.lab_code import WritesCode
from ..shared.earlier import EarlierRun
from ..shared.lab import LabRun, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.records import taken, written
from ..shared.running import RunsOneThing, possible
from ..strategy.operators import parse_strategy
from .arguments import BANDWIDTHS, LATENCIES, WEIGHTS, Arguments, candidates_of, checked_factor, checked_pin, factors
from .code import codes_of, example_line, strategies_in
from .run import STEPS, RunResult, check_result, run_both
from .sections import amount, own_text, run_text, search_sections, search_text, status_text
from .space import CLUSTERS, COSTS, LONG, MODES, Argued, Candidate, Point, Setting, Space, Strategies, space_of
from .subjects import SUBJECTS
from .views import candidates_view, plan_view, point_view, terms_view

DEVICES = (2, 4, 8)
MOST_DRAWN = 6  # plans of the front of a long network that a page of its own can draw
WINNER, OWN = "winner", "yours"


class SearchLab(WritesCode, RunsOneThing):
    """A search for strategies that one can argue with.

    net       one of SUBJECTS: "quickstart", "megatron", "dense", "gap", "wide", "embedding", "convnet", "transformer"
    devices   2, 4 or 8
    mode      "exact", "dynamic_programming", "recursive_programming" or "sharding_propagation"
    costs     "time", seconds of the plan on `cluster`, or "mindspore", its own sum of bytes
    cluster   "laptop", "gpu_node" or "two_nodes" (the devices are divided between them)

    `close()` ends a run and forgets all listeners.
    """

    title = "Search Lab"
    scripts = ("pictures/slices.js", "search/search_plot.js", "search/story.js", "search/search_lab.js")
    styles = ("search/search_lab.css",)
    commands = (
        *("set_weight", "set_pin", "clear_arguments", "set_own_strategy", "take"),
        *("select_point", "to", "run", "stop", "set_code", *COMMANDS),
    )
    looks: ClassVar[dict[str, str]] = {"select_operator": "operator", "select_point": "point", "to": "at"}
    replayed = ("mode", "capacity", "own", "costs", "bandwidth", "latency", "cluster", "devices", "net")
    free = ("mode", "capacity", "bandwidth", "latency")
    also_kept, runs = ("set_weight", "set_pin", "set_own_strategy"), "run"
    frame_height_px = 860
    words = staticmethod(search_text)

    def __init__(
        self,
        net: str = "quickstart",
        devices: int = 8,
        mode: str = "exact",
        costs: str = "time",
        cluster: str = "laptop",
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._begin(net=net, devices=devices, mode=mode, costs=costs, cluster=cluster)
        self._bandwidth = self._latency = 1.0
        self._capacity, self._operator, self._point, self._at = 0, "", WINNER, 0
        self._pins: Strategies = {}
        self._weights: dict[str, float] = {}
        self._own, self._changed_own = next(iter(SUBJECTS[net].presets)), {}
        self._result: RunResult | None = None
        self._recorded, self._ran_as = False, ""
        self._update()

    # ---- choosing ----

    @setting("network", SUBJECTS, only_new=True)
    def set_net(self, name: str) -> dict[str, Any]:
        """Another network, without pins and cap, and with its first preset as the own choice."""
        fresh = {"pins": {}, "capacity": 0, "own": next(iter(SUBJECTS[name].presets)), "changed_own": {}}
        return {"operator": "", **fresh}

    @setting("devices", DEVICES)
    def set_devices(self, n: int) -> dict[str, Any]:
        """Another number of devices, without pins and cap, and with the own preset for it."""
        return {"pins": {}, "capacity": 0, "changed_own": {}}

    set_cluster = offered("on", CLUSTERS, 'Where it runs: "laptop", "gpu_node" or "two_nodes".', name=str)
    set_mode = offered("search", MODES, "How is searched: one of MODES.", name=str)

    @setting("costs", COSTS)
    def set_costs(self, name: str) -> dict[str, Any]:
        """By which costs: "time" or "mindspore". Weights count again as they are."""
        return {"weights": {}, "capacity": 0}

    @setting(
        "bandwidth",
        lambda lab: factors(BANDWIDTHS, lab._bandwidth),
        value=lambda lab: f"{lab._bandwidth:g}",
        typed=True,
    )
    def set_bandwidth(self, times: int | float | str) -> dict[str, Any]:
        """Links (of "two_nodes" those between them) that carry so many times as many bytes per second."""
        return {"bandwidth": checked_factor("bandwidth", times)}

    @setting("latency", lambda lab: factors(LATENCIES, lab._latency), value=lambda lab: f"{lab._latency:g}", typed=True)
    def set_latency(self, times: int | float | str) -> dict[str, Any]:
        """Messages that begin after so many times the time."""
        return {"latency": checked_factor("latency", times)}

    @setting(
        "a device has", lambda lab: lab._arguments().caps(), value=lambda lab: str(lab._capacity or ""), typed=True
    )
    def set_capacity(self, capacity: int | str | None) -> dict[str, Any]:
        """A device's memory: bytes, or a text such as "4 KiB"; None, 0 or blank: any. Raises StrategyError where no
        plan needs as little.
        """
        return {"capacity": size_or_none("SearchLab", "capacity", capacity)}

    @setting(
        "yours",
        lambda lab: {name: name for name in SUBJECTS[lab._net].presets},
        value=lambda lab: "" if lab._changed_own else lab._own,
    )
    def set_own(self, name: str) -> dict[str, Any]:
        """The own choice: one of the network's presets."""
        return {"changed_own": {}}

    @setting("operator", lambda lab: [c.name for c in lab.space.operators], look=True)
    def select_operator(self, operator: str) -> None:
        """The operator whose candidates and slices are shown."""

    def calls(self) -> list[list[Any]]:
        """Those of the choices; weights, pins and own strategies one by one; then what is looked at."""
        with self._lock:
            plain = {call[0]: call for call in super().calls()} | {"set_own": ["set_own", self._own]}
            looked = [plain.pop("select_operator")]
            weights = [["set_weight", term, f"{weight:g}"] for term, weight in self._weights.items()]
            pins = [["set_pin", name, str(strategy)] for name, strategy in self._pins.items()]
            own = [["set_own_strategy", name, str(strategy)] for name, strategy in self._changed_own.items()]
            capacity = [plain.pop("set_capacity")]
            looked += [["select_point", self._point], ["to", self._at]]
            return [*plain.values(), *weights, *pins, *capacity, *own, *looked]

    def replays(self) -> Iterable[list[Any]]:
        """Modes, weights and memory, then a pin of every candidate of the operator in sight, then the other choices."""
        choices = list(super().replays())
        first = [call for call in choices if call[0] in ("set_mode", "set_capacity", "set_own")]
        weights = [["set_weight", term.name, weight] for term in self.argued.whole.terms for weight in WEIGHTS]
        pins: list[list[Any]] = [["set_pin", name, None] for name in self._pins]
        names = [self._operator, *(c.name for c in self.space.operators if c.name != self._operator)]
        pinned = [["set_pin", n, str(s)] for n in names for s in self._choice_of(n).candidates]
        own = len(self._choice_of(self._operator).candidates)
        rest = [call for call in choices if call not in first]
        return [["clear_arguments"], *first, *pins, *pinned[:own], *weights, *rest, *pinned[own:]]

    def set_weight(self, term: str, weight: int | float | str) -> None:
        """So many times what a term counts in the sum that the search makes least; 1 is as it is."""
        known = [t.name for t in self.space.problem.terms]
        self.one_of(term, known, "term", "SearchLab.set_weight")
        factor = checked_factor("weight", weight)
        others = {t: w for t, w in self._weights.items() if t != term}
        self._change(weights={**others, **({} if factor == 1 else {term: factor})})

    def set_pin(self, operator: str, strategy: str | tuple | None) -> None:
        """Give an operator one of its candidates, whatever the search would take; None: take the pin out."""
        choice = self._choice_of(operator)
        pins = {name: pin for name, pin in self._pins.items() if name != operator}
        if strategy is not None:
            pins[operator] = checked_pin(choice.candidates, strategy, operator)
        self._change(pins=pins)

    def clear_arguments(self) -> None:
        """No pins, no cap, every term as it is, links as they are."""
        self._change(pins={}, capacity=0, weights={}, bandwidth=1.0, latency=1.0)

    def set_own_strategy(self, operator: str, strategy: str | tuple) -> None:
        """Another strategy for an operator of the own choice. Raises what compiling raises."""
        self._choice_of(operator)
        self._change_own({**self._changed_own, operator: parse_strategy(strategy)})

    def take(self, point: str) -> None:
        """Make a plan the own choice: "winner", or another point of the picture."""
        plan = self._point_of(point)
        base = dict(self.space.preset(self._own))
        self._change_own({name: s for name, s in plan.strategies.items() if s != base[name]})

    def _change_own(self, changed: Mapping[str, Any]) -> None:
        self.space.plan({**dict(self.space.preset(self._own)), **changed})  # raises where it is impossible
        self._change(changed_own=dict(changed))

    def set_code(self, text: str) -> None:
        """The own choice from lines of MindSpore, such as "self.matmul.shard(((2, 4), (4, 1)))"; they are read, not
        executed. Raises ArgumentError naming the line, and changes nothing then.
        """
        self._change_own({**self._changed_own, **strategies_in(text, self.space)})

    @property
    def paste_example(self) -> str:
        """The first operator that has a choice, with the last one of its candidates."""
        return example_line(self.space)

    # ---- looking ----

    def select_point(self, point: str) -> None:
        """The plan that is drawn: "winner", "yours", "front 3", or the best one with a candidate."""
        with self._lock:
            self._point_of(point)
            self._point = point
        self._changed("picture")

    def to(self, number: int) -> None:
        """To a step of the search, from 0."""
        with self._lock:
            self._at = self.one_of(number, range(len(self.argued.steps)), "step", "SearchLab.to")
        self._changed("picture")

    # ---- what there is ----

    @property
    def space(self) -> Space:
        """All there is to choose, with its costs."""
        return space_of(self._setting())

    @property
    def argued(self) -> Argued:
        """What the search makes of it."""
        return self._arguments().argued

    def argued_with(self, **other: Any) -> Argued:
        """The same with other settings: bandwidth, latency, pins, capacity, weights or mode."""
        return self._arguments().other(**other).argued

    @property
    def winner(self) -> Point:
        """The plan that the search takes."""
        return self.argued.winner

    @property
    def own(self) -> Point:
        """The own choice."""
        return self.argued.point({**dict(self.space.preset(self._own)), **self._changed_own})

    @property
    def own_name(self) -> str:
        """The own choice in words."""
        return own_text(self._own, self._changed_own)

    @property
    def plan(self) -> Plan:
        """The winner, compiled."""
        return self.space.plan(self.winner.strategies)

    @property
    def pins(self) -> Strategies:
        """{operator: the strategy it must have}."""
        return dict(self._pins)

    @property
    def result(self) -> RunResult | None:
        """What winner and own choice did on workers, if they have run with these settings."""
        return self._result

    @property
    def recorded(self) -> bool:
        """Whether the result was read from a file."""
        return self._recorded

    def candidates(self, operator: str | None = None) -> list[Candidate]:
        """The best plan with each candidate of an operator (of the one in sight): the chosen one, then by cost."""
        name = self._operator if operator is None else self._choice_of(operator).name
        return candidates_of(self.argued, name)

    def points(self) -> dict[str, Point]:
        """What can be drawn, besides the best plans with each candidate: the winner, the own choice, the front."""
        front = {f"front {n}": point for n, point in enumerate(self.argued.front, 1)}
        return {WINNER: self.winner, OWN: self.own, **front}

    def point_name(self, candidate: Candidate, operator: str) -> str:
        """What the best plan with a candidate is called."""
        return WINNER if candidate.point.key == self.winner.key else f"{operator} {candidate.strategy}"

    def _point_of(self, name: str) -> Point:
        points = self.points()
        if name in points:
            return points[name]
        for choice in self.space.operators:
            for one in self.candidates(choice.name) if str(name).startswith(f"{choice.name} ") else ():
                if name == self.point_name(one, choice.name):
                    return one.point
        return points[self.one_of(name, points, "point")]

    # ---- running ----

    def run(self) -> None:
        """Train the winner and the own choice on worker processes: step times, and equality with one device. Returns at
        once, `wait()` waits; nothing while it runs.
        """
        with self._lock:
            space, key, words = self.space, self._run_key(), self._in_words()
            plans = {WINNER: self.plan, OWN: space.plan(self.own.strategies)}

        def work() -> str:
            result = run_both(space.subject.kept, plans, space.profile, self._run_is_stopped, self._count)
            with self._lock:
                if key != self._run_key():
                    return "the settings have changed since: run both again"
                self._result, self._recorded, self._ran_as = result, False, words
            return f"{result.source}: {STEPS} steps of each, compared with one device{possible('measured')[1]}"

        self._start("training the winner and your choice, and both on one device", work)

    def _in_words(self) -> str:
        """The settings, as an earlier run is called."""
        return f"{self._net}, {self._devices} devices, {self._cluster}, {self._mode}"

    def record(self) -> Any:
        """The result; None: nothing has run."""
        return None if self._result is None else written(self._result)

    def take_record(self, record: Any) -> None:
        """Show this result, as a recorded one. Raises ArgumentError unless such a lab has run it."""
        if record is None:
            return
        result = taken(RunResult, record, "run")
        check_result(result)
        with self._lock:
            self._result, self._recorded, self._ran_as = result, True, self._in_words()
            self._run = LabRun("recorded", f"recorded: {result.source} in an earlier run")
        self._changed("picture")

    # ---- forms ----

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and what it has of every other operator, and of points that are likely to be looked at."""
        with self._lock:
            operators = {c.name: self._operator_part(c.name) for c in self.space.operators}
            points = self.points()
            few = self.is_branch or len(operators) > LONG
            if few:
                every = len(points) if self.is_branch else max(1, len(points) // MOST_DRAWN)
                points = dict([*list(points.items())[:2], *list(points.items())[2::every]])
            else:
                points |= {self.point_name(c, self._operator): c.point for c in self.candidates()}
            points.setdefault(self._point, self._point_of(self._point))
            drawn = {name: self._point_part(name, point) for name, point in points.items()}
            return {**self.snapshot(), "looks": {"operator": operators, "point": drawn}}

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        argued, run = self.argued, self._run.to_dict()
        steps = [step._asdict() | {"done": list(step.done)} for step in argued.steps]
        return {
            "status": status_text(self),
            "notes": [self.space.subject.note],
            "operator": self._operator,
            "point": self._point,
            "at": self._at,
            "unit": argued.unit,
            "line": f"nothing{' found' if len(self.space.operators) > LONG else ''} beats it",
            "capacity_bytes": self._capacity,
            "pins": {name: str(strategy) for name, strategy in self._pins.items()},
            "arguments": self.arguments,
            "terms": terms_view(argued, self._weights),
            "operators": [c.name for c in self.space.operators],
            "points": [point_view(name, point) for name, point in self.points().items()],
            "steps": steps,
            **self._operator_part(self._operator),
            **self._point_part(self._point, self._point_of(self._point)),
            "run": {**run, "can": run["state"] != "running"},
            "sections": {**search_sections(self), **self.code_sections()},
        }

    def questions(self) -> list[Question]:
        """How far the own choice is from the winner, and which operator has the most strategies to choose from."""
        winner, own, about = self.winner, self.own, f"{self._setting()}, {self._mode}, {self.own_name}"
        hides, asks = ("net", "cards", "plot", "candidates", "steps", "tables"), []
        if own.cost and winner.cost and own.key != winner.key:
            ratio = float(f"{own.cost / winner.cost:.3g}")
            text = f"Your choice is {self.own_name}. It costs how many times as much as what the search takes?"
            why = f"{amount(self.argued, own.cost)} against {amount(self.argued, winner.cost)}, predicted"
            asks.append(Question(f"ratio of {about}", text, (ratio,), why, unit="times", within=0.2, hides=hides))
        counts = {choice.name: len(choice.candidates) for choice in self.space.operators}
        right = tuple(name for name, count in counts.items() if count == max(counts.values()))
        text = f"Click the operator that has the most strategies on {plural(self._devices, 'device')}."
        why = f"{max(counts.values())} strategies: the more dims, the more ways to split"
        hides = ("candidates", "steps", "tables")
        return [*asks, Question(f"most of {about}", text, right, why, by="select_operator", hides=hides)]

    @property
    def arguments(self) -> int:
        """How many things were argued."""
        factors = (self._bandwidth != 1) + (self._latency != 1)
        return len(self._pins) + len(self._weights) + bool(self._capacity) + factors

    def _operator_part(self, operator: str) -> dict[str, Any]:
        """What depends on the operator that is looked at."""
        name_of = partial(self.point_name, operator=operator)
        return candidates_view(self.argued, self.candidates(operator), name_of, self._pins.get(operator))

    def _point_part(self, name: str, point: Point) -> dict[str, Any]:
        """What depends on the plan that is drawn."""
        return plan_view(self.space, name, point)

    # ---- inside ----

    def _setting(self) -> Setting:
        return Setting(self._net, self._devices, self._cluster, self._costs, self._bandwidth, self._latency)

    def _arguments(self) -> Arguments:
        return Arguments(self._setting(), self._mode, self._pins, self._capacity, self._weights)

    def _choice_of(self, operator: str) -> Any:
        names = [choice.name for choice in self.space.operators]
        return self.space.operators[names.index(self.one_of(operator, names, "operator"))]

    def _run_key(self) -> Any:
        return self._setting(), self.winner.key, self.own.key

    def _update(self) -> None:
        """What follows from the choices; raises where nothing fits."""
        before = getattr(self, "_ran", None)
        argued = self.argued
        self.space.plan(argued.winner.strategies)
        names = [choice.name for choice in self.space.operators]
        if self._operator not in names:
            self._operator = next((c.name for c in self.space.operators if len(c.candidates) > 1), names[0])
        if self._point not in (WINNER, OWN):
            self._point = WINNER
        self._at = len(argued.steps) - 1
        self._ran = self._run_key()
        if self._ran != before:
            if found := getattr(self, "_result", None):
                rows = tuple((found.source, f"{p.name}: {run_text(p, found.source)}") for p in found.plans)
                self._keep_earlier(EarlierRun(self._ran_as, rows, recorded=self._recorded))
            self._result, self._recorded = None, False
            if not self._run.goes_on:
                self._run = LabRun()

    def _code_key(self) -> Any:
        return self._run_key()

    def _codes(self) -> dict[str, str]:
        """The winner's program."""
        title = f"{self.space.subject.label}, {MODES[self._mode]}, {self._devices} ranks"
        return codes_of(self.plan, self.space, title)
