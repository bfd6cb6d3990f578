"""What there is to choose for one setting, and what each search makes of it: points, each one a whole plan.

    space = space_of(Setting("quickstart", devices=8))
    argued = Argued(space, mode="exact", pins={"matmul": ((8, 1), (1, 1))}, capacity=0, weights={})
    argued.winner.cost, argued.winner.memory_bytes      of the plan that the search takes
    argued.front                                        the points that no other beats in cost and memory
    argued.candidates("matmul")                         the best plan with each candidate, and the term that decides

Costs and bytes are predicted, by the model of costs that the setting names; nothing runs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ...base.cluster import Cluster, Link, get_cluster
from ...base.errors import ArgumentError, StrategyError
from ...base.settings.current import default_settings
from ...cost.search import (
    Elimination,
    Halving,
    Improvement,
    Solution,
    eliminate,
    exact,
    mindspore_problem,
    pareto,
    propagate_strategies,
    recursive_search,
    search,
    settling_order,
    time_problem,
)
from ...cost.search.problem import Choice, Problem, amount_text
from ...cost.search.search_modes import with_strategies
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...ops.machine.primitive import Strategy
from .subjects import SUBJECTS

MODES = {
    "exact": "exact",
    "dynamic_programming": "dynamic programming",
    "recursive_programming": "recursive",
    "sharding_propagation": "propagation",
}
COSTS = {"time": "seconds", "mindspore": "MindSpore's"}
CLUSTERS = {"laptop": "laptop", "gpu_node": "GPU node", "two_nodes": "two GPU nodes"}
FRONT_STEP = 0.03  # of plans on the front whose costs are as near as this, one is looked for: a picture shows no more
LONG = 12  # operators; above it only the front's plans that the picture can tell apart are looked for
KEPT = 12  # spaces: a lesson goes to and fro between few
PLANS = 64  # compiled plans of a space

Strategies = dict[str, Strategy]


class Setting(NamedTuple):
    """What a space depends on.  bandwidth, latency: factors of the links' (of "two_nodes": of that between them)"""

    net: str = "quickstart"
    devices: int = 8
    cluster: str = "laptop"
    costs: str = "time"
    bandwidth: float = 1.0
    latency: float = 1.0

    def profile(self) -> Cluster:
        """The cluster with these links; the devices of "two_nodes" are divided between its nodes."""
        cluster = get_cluster(self.cluster)
        if self.cluster == "two_nodes":
            nodes = replace(cluster, devices_per_node=self.devices // 2)
            return replace(nodes, node_link=self._scaled(cluster.node_link))
        return replace(cluster, link=self._scaled(cluster.link))

    def _scaled(self, link: Link) -> Link:
        return Link(link.alpha_s * self.latency, link.beta_s_per_byte / self.bandwidth)


@dataclass(frozen=True)
class Point:
    """A whole plan.  terms: {name: its sum, not weighed};  cost: weighed;  memory_bytes: of a device"""

    strategies: Mapping[str, Strategy] = field(hash=False)
    terms: Mapping[str, float] = field(hash=False)
    cost: float
    memory_bytes: int

    @property
    def key(self) -> str:
        return repr(tuple(self.strategies.items()))


class Candidate(NamedTuple):
    """A candidate of an operator.

    own    {term: of this operator under it, with what lies between it and its neighbours in `point`}
    point  the best plan with it;  more: {term: weighed, how much more that plan costs than the winner}
    """

    strategy: Strategy
    own: dict[str, float]
    point: Point
    more: dict[str, float]
    chosen: bool

    @property
    def term(self) -> tuple[str, float]:
        """The term that decides, and by how much."""
        return deciding(self.more)


def deciding(more: Mapping[str, float]) -> tuple[str, float]:
    """Among differences by term the largest in the direction of their sum: ("partial sums", 5.6e-05)."""
    sign = 1 if sum(more.values()) >= 0 else -1
    return max(more.items(), key=lambda pair: sign * pair[1])


class Step(NamedTuple):
    """A step of a search.  operator: "" where it is about several;  done: operators that are dealt with by then"""

    text: str
    operator: str
    done: tuple[str, ...]


class Space:
    """All choices of one setting; may be asked in several threads."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.profile = setting, setting.profile()
        self.subject = SUBJECTS[setting.net]
        job = self.subject.kept
        self.how: dict[str, Any] = {"loss": job.loss, "optimizer": job.optimizer, "device_num": setting.devices}
        self.how |= {"dataset_strategy": "full_batch"}
        how = {"method": "dynamic_programming", "costs": setting.costs, "cluster": self.profile}
        with default_settings():
            result = search(job.net, *job.batches[0], **self.how, **how)
        self.problem, self.draft, self._compile_with = result.problem, result.draft, result.compile_with
        self._plans: dict[str, Plan] = {}
        self._presets: dict[str, tuple[tuple[str, Strategy], ...]] = {}
        self._lock = threading.Lock()

    @property
    def operators(self) -> tuple[Choice, ...]:
        """What is chosen for: without the dataset."""
        return tuple(choice for choice in self.problem.choices if choice.name)

    def plan(self, strategies: Mapping[str, Strategy]) -> Plan:
        """The network compiled with these strategies; kept. Raises ParallelLabError where they do not go together."""
        key = repr(tuple(strategies.items()))
        if key not in self._plans:
            with default_settings():
                plan = self._compile_with(strategies, {})
            with self._lock:
                if len(self._plans) >= PLANS:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[key] = plan
        return self._plans[key]

    def preset(self, name: str) -> tuple[tuple[str, Strategy], ...]:
        """(operator, strategy) of every operator of a preset; where it says nothing, the library's default."""
        if name not in self._presets:
            strategies = self.subject.presets[name](self.setting.devices)
            with default_settings():
                net = self.subject.with_strategies(strategies)
                plan = compile_network(net, *self.subject.kept.batches[0], **{**self.how, "optimizer": None})
            nodes = ((choice.name, plan.graph.node(choice.name)) for choice in self.operators)
            self._presets[name] = tuple((operator, node.strategy) for operator, node in nodes)
        return self._presets[name]

    def priced(self, strategies: Mapping[str, Strategy]) -> Problem:
        """The problem whose only candidates these are: they need not be among those of a search."""
        with default_settings():
            graph = with_strategies(self.draft.graph, self.draft.config, strategies, {})
            if self.setting.costs == "mindspore":
                return mindspore_problem(graph, self.draft.config)
            states = len(self.subject.kept.optimizer.state_names)
            return time_problem(graph, self.draft.config, self.profile, states=states)


@lru_cache(maxsize=KEPT)
def space_of(setting: Setting) -> Space:
    """The space of a setting, the same object as long as it is kept. Raises StrategyError where nothing fits."""
    return Space(setting)


class Argued:
    """A space with what a learner argues: pins, a memory limit, weights of terms, and how is searched.

    pins       {operator: the strategy it must have};  capacity: bytes per device, 0: any
    weights    {term: so many times what the model of costs lets it count}, 1 where nothing is said

    Raises ParallelLabError where nothing fits.
    """

    def __init__(
        self, space: Space, mode: str, pins: Mapping[str, Strategy], capacity: int, weights: Mapping[str, float]
    ) -> None:
        self.space, self.mode, self.pins, self.capacity, self.weights = space, mode, pins, capacity, weights
        self.limit = capacity or None
        self.counts = {t.name: t.weight * weights[t.name] for t in space.problem.terms if t.name in weights}
        self.whole = space.problem.weighed(**self.counts)
        self.problem = self.whole.pinned(pins)
        self.solution = self._solution()
        self.winner = self.point(self.problem.strategies(self.solution.chosen)) if self.searches else self._spread()

    @property
    def searches(self) -> bool:
        """Whether the mode makes the sum least; the others have rules of their own."""
        return self.mode in ("exact", "dynamic_programming")

    def _solution(self) -> Solution:
        """The plan of least cost within the limit."""
        method = exact if self.mode == "exact" else eliminate
        return method(self.problem, self.limit)

    def _spread(self) -> Point:
        """The plan that propagation or halving leads to."""
        config = self.space.draft.config
        with default_settings():
            if self.mode == "recursive_programming":
                found, self._halvings = recursive_search(self.space.draft.graph, config)
                return self.point(found)
            graph = with_strategies(self.space.draft.graph, config, self.seeds, {})
            self._order, graph = settling_order(graph, config), propagate_strategies(graph, config)
        self._reasons = {node.name: node.strategy_reason for node in graph.nodes}
        return self.point({choice.name: graph.node(choice.name).strategy for choice in self.space.operators})

    @cached_property
    def seeds(self) -> Strategies:
        """What propagation starts from: the pins, or without any the batch split of the first operator."""
        if self.pins:
            return dict(self.pins)
        first = next(choice for choice in self.space.operators if len(choice.candidates) > 1)
        rows = max(first.candidates, key=lambda strategy: (strategy[0][:1], -sum(map(sum, strategy))))
        return {first.name: rows}

    # ---- points ----

    def point(self, strategies: Mapping[str, Strategy]) -> Point:
        """The plan with these strategies, priced."""
        strategies = {choice.name: strategies[choice.name] for choice in self.space.operators}
        try:
            problem, chosen = self.whole, self.whole.chosen(strategies)
        except ArgumentError:
            problem = self.space.priced(strategies).weighed(**self.counts)
            chosen = (0,) * len(problem.choices)
        return Point(strategies, problem.by_term(chosen), problem.cost(chosen), problem.memory_bytes(chosen))

    @cached_property
    def best(self) -> Point:
        """The plan of least cost, whatever the mode."""
        return self.point(self.problem.strategies(self.solution.chosen))

    @cached_property
    def front(self) -> tuple[Point, ...]:
        """Plans (with the pins) that no other beats in both cost and memory, the cheapest first."""
        step = FRONT_STEP if len(self.space.operators) > LONG else 0.0
        points = [self.point(self.problem.strategies(one.chosen)) for one in pareto(self.problem, approximate=step)]
        return tuple(points)

    def more(self, point: Point) -> dict[str, float]:
        """By term, weighed: how much more a plan costs than the winner."""
        terms = self.whole.terms
        return {t.name: t.weight * (point.terms[t.name] - self.winner.terms[t.name]) for t in terms}

    def candidates(self, operator: str) -> list[Candidate]:
        """The best plan with each candidate of an operator that fits: the chosen one, then by cost; other pins hold."""
        number, candidates = self.whole.numbers[operator], []
        others = {name: strategy for name, strategy in self.pins.items() if name != operator}
        for strategy in self.whole.choices[number].candidates:
            problem = self.whole.pinned({**others, operator: strategy})
            try:
                solution = eliminate(problem, self.limit)
            except StrategyError:  # it fits together with nothing, or not into the memory
                continue
            mine = self.winner.strategies[operator] == strategy
            if mine and self.searches:  # of several that cost the same the one that was taken
                candidates.append(
                    Candidate(strategy, self._own_of_winner(number), self.winner, self.more(self.winner), mine)
                )
                continue
            point = self.point(problem.strategies(solution.chosen))
            own = self._around(problem, number, solution.chosen)
            candidates.append(Candidate(strategy, own, point, self.more(point), mine))
        return sorted(candidates, key=lambda one: (not one.chosen, one.point.cost))

    def _own_of_winner(self, number: int) -> dict[str, float]:
        try:
            return self._around(self.whole, number, self.whole.chosen(self.winner.strategies))
        except ArgumentError:  # a search by rules may leave the candidates
            problem = self.space.priced(self.winner.strategies)
            return self._around(problem, number, (0,) * len(problem.choices))

    @staticmethod
    def _around(problem: Problem, number: int, chosen: tuple[int, ...]) -> dict[str, float]:
        """{term: of one operator, with the pairs it is in}."""
        total = problem.choices[number].costs[chosen[number]].copy()
        for pair in problem.pairs:
            if number in (pair.source, pair.target):
                total += pair.costs[chosen[pair.source], chosen[pair.target]]
        return {term.name: float(value) for term, value in zip(problem.terms, total, strict=True)}

    def without(self, **fields: Any) -> Argued:
        """The same argument with something else: space, mode, pins, capacity or weights."""
        kept = {name: getattr(self, name) for name in ("space", "mode", "pins", "capacity", "weights")}
        return Argued(**{**kept, **fields})

    # ---- how it was found ----

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """What the search did, in order."""
        if self.mode == "recursive_programming":
            return self._halved()
        if self.mode == "sharding_propagation":
            return self._propagated()
        return self._improved() if self.mode == "exact" else self._eliminated()

    def _halved(self) -> tuple[Step, ...]:
        steps: list[Halving] = list(self._halvings)
        names = [step.operator for step in steps]
        return tuple(
            Step(step.text(), step.operator, tuple(dict.fromkeys(names[: n + 1]))) for n, step in enumerate(steps)
        )

    def _propagated(self) -> tuple[Step, ...]:
        found, strategies = [], self.winner.strategies
        for n, name in enumerate(self._order):
            why = "given" if name in self.seeds else self._reasons.get(name, "")
            found.append(Step(f"{name} takes {strategies[name]}: {why}", name, self._order[: n + 1]))
        return tuple(found)

    def _improved(self) -> tuple[Step, ...]:
        """Each better plan that branch and bound has met, then what it proves."""
        found, before, every = [], None, tuple(choice.name for choice in self.space.operators)
        for step in self.solution.steps:
            assert isinstance(step, Improvement)
            now = self.problem.strategies(step.chosen)
            changed = [n for n in every if before is not None and before[n] != now[n]]
            what = f"other strategies for {', '.join(changed[:3])}{' and more' if len(changed) > 3 else ''}"
            what = what if changed else "the first plan that fits"
            saying = f"after {step.branches:,} branches a plan of {self.amount(step.cost)}: {what}"
            found.append(Step(saying, changed[0] if changed else "", tuple(changed)))
            before = now
        proof = "no plan costs less" if self.solution.proved else f"another may cost {self.solution.gap:.1%} less"
        how = "HiGHS, integer program" if not self.solution.steps else "all other branches are ruled out"
        return (*found, Step(f"{how}: {proof}, of {self.problem.plans:,} plans", "", every))

    def _eliminated(self) -> tuple[Step, ...]:
        """Operators taken out one by one, and then, backwards, what each of them takes."""
        steps: list[Elimination] = list(self.solution.steps)
        found, gone = [], []
        for step in steps:
            gone += [step.operator] if step.kind != "Edge" and step.operator != "the dataset" else []
            found.append(Step(step.text(), gone[-1] if step.kind != "Edge" and gone else "", tuple(gone)))
        back: list[str] = []
        for name in reversed(gone):
            back.append(name)
            text = f"back: {name!r} takes {self.winner.strategies[name]}, the best one given what is known so far"
            found.append(Step(text, name, tuple(n for n in gone if n not in back)))
        return tuple(found)

    def amount(self, value: float) -> str:
        """A weighed sum of terms in words."""
        return amount_text(value, self.unit)

    @property
    def unit(self) -> str:
        """The unit of sums of terms."""
        return self.whole.terms[0].unit
