"""A search that one can argue with: what was chosen, what else there was, and what would have to change.

    found = search(net, x, label, loss=nn.MSELoss(), device_num=8, cluster="two_nodes")
    print(found.text())                       the strategy of every operator, and what it costs
    print(found.candidates_text("matmul"))    its candidates: the best plan with each of them, and the term that decides
    found.plan                                the compiled plan, with these strategies
    found.again(pinned={"matmul": ((8, 1), (1, 1))})        the same search with one choice made by hand
    found.again(weights={"redistribution": 0.0})            or with terms that count otherwise
    found.again(method="sharding_propagation")              what that mode takes, what it compared, what it loses

Seconds are those of the plan: for a network whose tensors are brought to one layout each, the sum that the search makes
least equals `step_time_s` of what it compiles, but for the optimizer's update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.checks import choice, number
from ...base.cluster import Cluster, get_cluster
from ...base.errors import StrategyError
from ...graph.compiler import compile_network
from ...graph.draft import Draft
from ...graph.passes import PASSES, Pass
from ...graph.plan import Plan
from ...layout.named_layout import AnyStrategy
from .alpa_model import Mesh, alpa_problem
from .eliminate import Solution, eliminate
from .exact import branch_and_bound, exact, integer_program
from .mindspore_model import mindspore_problem
from .places import configured
from .problem import Problem, amount_text
from .search_modes import reasons, with_strategies
from .time_model import time_problem
from .walks import WALKS, Compared, compared, flip, walk

METHODS: dict[str, Callable[[Problem, int | None], Solution]] = {
    "dynamic_programming": eliminate,
    "exact": exact,
    "branch_and_bound": branch_and_bound,
    "integer_program": integer_program,
}
COSTS = ("time", "mindspore")
_LIMIT = number(0, above=True) | None


@dataclass(frozen=True)
class Candidate:
    """A candidate of an operator.  cost: of the best plan with it;  more: {term: how much more that plan costs}."""

    strategy: AnyStrategy
    cost: float
    more: dict[str, float]
    chosen: bool = False

    def why(self, unit: str) -> str:
        """Which term decides against it."""
        if self.chosen:
            return "chosen"
        total = sum(self.more.values())
        if total < 0:  # the chosen one is not an optimum
            term, amount = min(self.more.items(), key=lambda pair: pair[1])
            return f"{amount_text(-total, unit)} less; {amount_text(-amount, unit)} less of {term}"
        term, amount = max(self.more.items(), key=lambda pair: pair[1])
        return f"{amount_text(amount, unit)} more of {term}" if amount > 0 else "as good"


@dataclass(frozen=True)
class Asked:
    """What was searched: a traced network, and whose numbers price it."""

    draft: Draft
    costs: str | Mesh
    cluster: Cluster
    states: int

    def problem(self, also: Mapping[str, AnyStrategy] | None = None) -> Problem:
        """The choices, with what they cost.  also: more candidates, of operators by name"""
        if isinstance(self.costs, Mesh):
            return alpa_problem(self.draft.graph, self.draft.config, self.costs, also)
        if self.costs == "time":
            return time_problem(self.draft.graph, self.draft.config, self.cluster, states=self.states, also=also)
        return mindspore_problem(self.draft.graph, self.draft.config, also)

    def solved(
        self, problem: Problem | None, method: str, limit: int | None, pinned: Mapping[str, AnyStrategy]
    ) -> tuple[Problem, Solution]:
        """What a method takes, and from which problem: a walk may leave the candidates that others look at.

        problem  None: that of the network;  pinned: strategies that are given
        """
        if method not in WALKS:
            problem = (problem or self.problem()).pinned(pinned)
            return problem, METHODS[method](problem, limit)
        found, steps = walk(self.draft.graph, self.draft.config, method, pinned)
        wide = self.problem(found)
        if problem is not None:
            wide = wide.weighed(**{term.name: term.weight for term in problem.terms})
        wide = wide.pinned(pinned)
        taken = wide.chosen({name: found[name] for name in wide.numbers if name in found})
        held = wide.memory_bytes(taken)
        if limit is not None and held > limit:
            what, hint = f"{method} looks at no memory: its plan holds {held:,} bytes", "Use dynamic_programming"
            raise StrategyError(what, where="search of strategies", allowed=f"At most {limit:,}", hint=hint)
        try:
            least = eliminate(wide, limit).cost
        except StrategyError:  # its tables would be too large: nothing is proved
            least = 0.0
        return wide, Solution(method, taken, wide.cost(taken), held, least, steps)


@dataclass(frozen=True)
class Found:
    """What a search found.

    problem   what there was to choose;  best: what was chosen, with its proof;  plan: the network compiled with it
    asked     the network and whose numbers price it
    compile_with   compiles the network with other strategies: (strategies, reasons) -> Plan
    """

    problem: Problem
    best: Solution
    method: str
    memory_limit: int | None
    plan: Plan = field(repr=False)
    compile_with: Callable[[Mapping[str, AnyStrategy], Mapping[str, str]], Plan] = field(repr=False, compare=False)
    asked: Asked = field(repr=False, compare=False)

    @property
    def strategies(self) -> dict[str, AnyStrategy]:
        """{operator: its strategy}."""
        by_operator = self.problem.strategies(self.best.chosen)
        return {name: strategy for name, strategy in by_operator.items() if name}

    @property
    def unit(self) -> str:
        """The unit of the weighed sum: "s", or "" where terms of other weights are added."""
        weights = {term.weight for term in self.problem.terms}
        return self.problem.terms[0].unit if weights == {1.0} else ""

    def again(
        self,
        *,
        pinned: Mapping[str, AnyStrategy] | None = None,
        weights: Mapping[str, float] | None = None,
        method: str | None = None,
        memory_limit: int | None = None,
    ) -> Found:
        """The same search with some operators' strategies given, other weights of terms, another method or limit."""
        problem = self.problem.weighed(**(weights or {}))
        method = method or self.method
        choice(*METHODS, *WALKS)("search", "method", method)
        _LIMIT("search", "memory_limit", memory_limit)
        limit = self.memory_limit if memory_limit is None else memory_limit
        problem, best = self.asked.solved(problem, method, limit, {**self.pinned, **(pinned or {})})
        plan = self.compile_with(problem.strategies(best.chosen), reasons(problem, best))
        return replace(self, problem=problem, best=best, method=method, memory_limit=limit, plan=plan)

    @property
    def draft(self) -> Draft:
        """The traced network before anything was chosen."""
        return self.asked.draft

    @property
    def pinned(self) -> dict[str, AnyStrategy]:
        """Strategies given to `again`."""
        return {one.name: one.candidates[0] for one in self.problem.choices if one.fixed == "pinned"}

    def candidates(self, operator: str) -> list[Candidate]:
        """The best plan with each candidate of an operator that fits, the cheapest first."""
        choice(*self.strategies)("search", "operator", operator)
        number = self.problem.numbers[operator]
        mine, rows = self.problem.by_term(self.best.chosen), []
        for at, strategy in enumerate(self.problem.choices[number].candidates):
            if at == self.best.chosen[number]:
                rows.append(Candidate(strategy, self.best.cost, {}, chosen=True))
                continue
            try:
                other = eliminate(self.problem.pinned({operator: strategy}), self.memory_limit)
            except StrategyError:  # it fits together with nothing, or not into the memory
                continue
            theirs = self.problem.pinned({operator: strategy}).by_term(other.chosen)
            more = {t.name: t.weight * (theirs[t.name] - mine[t.name]) for t in self.problem.terms}
            rows.append(Candidate(strategy, other.cost, more))
        return sorted(rows, key=lambda one: (one.cost, not one.chosen))

    # ---- in words ----

    def __repr__(self) -> str:
        """A cell that ends with it shows its text."""
        return self.text()

    def text(self) -> str:
        """The strategies, the sum by term, and what is proved."""
        problem, best = self.problem, self.best
        width = max(map(len, self.strategies), default=0)
        lines = [f"{self.method}, costs {problem.model!r}: {problem.plans:,} plans for {problem.device_num} devices"]
        for one, chosen in zip(problem.choices, best.chosen, strict=True):
            if one.name:
                of = one.fixed or f"of {len(one.candidates)}"
                lines.append(f"  {one.name:{width}}  {one.candidates[chosen]}  {of}")
        sums = problem.by_term(best.chosen)
        lines += [f"  {term.name}: {term.text(sums[term.name])} (predicted: {term.formula})" for term in problem.terms]
        proof = "no plan costs less" if best.proved else f"another one may cost {best.gap:.1%} less"
        if self.method in WALKS and not best.proved and best.lower_bound > 0:
            least = amount_text(best.lower_bound, self.unit)
            proof = f"the least there is costs {least}, {best.cost / best.lower_bound:.3g} times less"
        lines.append(f"  in all {amount_text(best.cost, self.unit)}, {best.memory_bytes:,} bytes of a device; {proof}")
        return "\n".join(lines)

    def compared(self, operator: str) -> list[Compared]:
        """What sharding_propagation compared for an operator, the chosen one first; [] of other methods."""
        choice(*self.strategies)("search", "operator", operator)
        walked = self.best.steps if self.method == "sharding_propagation" else ()
        return [one for settled in walked if settled.operator == operator for one in compared(settled)]

    def flips(self, operator: str, strategy: AnyStrategy) -> tuple[str, AnyStrategy] | None:
        """(neighbour, a strategy of it) with which sharding_propagation takes another one; None: no neighbour's does.

        Raises ArgumentError after another method.
        """
        choice("sharding_propagation")("flips", "method", self.method)
        settled = next(step for step in self.best.steps if step.operator == operator)
        return flip(self.draft.graph, self.draft.config, settled, strategy, self.pinned)

    def compared_text(self, operator: str) -> str:
        """Where sharding_propagation took an operator's strategy from: a line for each that was looked at, with the
        term that decided, and what would flip it.
        """
        rows = self.compared(operator)
        if not rows:
            return f"{operator}: {self.method} does not compare it with its neighbours alone"
        settled = next(step for step in self.best.steps if step.operator == operator)
        lines = [f"{operator}: {settled.reason}"]
        for one in rows:
            line = f"  {one.strategy}  {one.reason}"
            if not one.chosen:
                other = self.flips(operator, one.strategy)
                line += f"; taken if {other[0]!r} is given {other[1]}" if other else "; taken if it is given"
            lines.append(line)
        return "\n".join(lines)

    def candidates_text(self, operator: str) -> str:
        """A line for each candidate of an operator: the best plan with it, and which term decides; before them what
        sharding_propagation compared.
        """
        lines = [self.compared_text(operator)] if self.method == "sharding_propagation" else []
        lines.append(f"{operator}: the best plan with each of its candidates")
        for one in self.candidates(operator):
            lines.append(f"  {one.strategy}  {amount_text(one.cost, self.unit)}  {one.why(self.unit)}")
        return "\n".join(lines)

    def steps_text(self) -> str:
        """What a walk did, in order; for the other modes, what dynamic programming does."""
        steps = self.best.steps if self.method in WALKS else eliminate(self.problem).steps
        return "\n".join(f"{n}. {step.text()}" for n, step in enumerate(steps, 1))


def search(
    network: Callable[..., Any],
    *inputs: Any,
    method: str = "exact",
    costs: str | Mesh = "time",
    cluster: Cluster | str = "laptop",
    memory_limit: int | None = None,
    **options: Any,
) -> Found:
    """Choose strategies for a network's operators; those that were given one keep it.

    network, inputs, options  as for `compile`
    method        "exact" (proved, or with its gap), "dynamic_programming", "branch_and_bound", "integer_program"; or a
                  walk, with what it could have saved: "sharding_propagation", "recursive_programming"
    costs         "time": seconds on `cluster`; "mindspore": its own sum of bytes (`set_cost_model_context`); a `Mesh`:
                  Alpa's numbers, and strategies of layouts on it
    memory_limit  bytes of a device; None: any

    Raises StrategyError where nothing fits; ArgumentError for an unknown method or cluster, a limit that is not a
    number above 0, and costs that are too large to be added; what `compile` raises.
    """
    choice(*METHODS, *WALKS)("search", "method", method)
    if not isinstance(costs, Mesh):
        choice(*COSTS)("search", "costs", costs)
    _LIMIT("search", "memory_limit", memory_limit)
    cluster = get_cluster(cluster)
    settings: dict[str, Any] = {"parallel_mode": "semi_auto_parallel", **options}
    states = len(getattr(options.get("optimizer"), "state_names", ()))
    searched: list[tuple[Asked, Problem, Solution]] = []

    def compile_with(strategies: Mapping[str, AnyStrategy] | None, why: Mapping[str, str]) -> Plan:
        def taken(draft: Draft) -> Draft:
            given, told = strategies, why
            if given is None:
                asked = Asked(draft, costs, cluster, states)
                problem, best = asked.solved(None, method, memory_limit, {})
                searched.append((asked, problem, best))
                given, told = problem.strategies(best.chosen), reasons(problem, best)
            others = any(configured(n) and given.get(n.name, n.strategy) != n.strategy for n in draft.graph.nodes)
            graph = with_strategies(draft.graph, draft.config, given, told, given_too=others)
            return replace(draft, graph=graph)

        return compile_network(network, *inputs, passes=[Pass("searched", taken), *PASSES], **settings)

    plan = compile_with(None, {})
    asked, problem, best = searched[0]
    return Found(problem, best, method, memory_limit, plan, compile_with, asked)
