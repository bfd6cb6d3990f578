"""A search that one can argue with: what was chosen, what else there was, and what would have to change.

    found = search(net, x, label, loss=nn.MSELoss(), device_num=8, cluster="two_nodes")
    print(found.text())                       the strategy of every operator, and what it costs
    print(found.candidates_text("matmul"))    its candidates: the best plan with each of them, and the term that decides
    found.plan                                the compiled plan, with these strategies
    found.again(pinned={"matmul": ((8, 1), (1, 1))})        the same search with one choice made by hand
    found.again(weights={"redistribution": 0.0})            or with terms that count otherwise

Seconds are those of the plan: for a network whose tensors are brought to one layout each, the sum that the search makes
least equals `step_time_s` of what it compiles, but for the optimizer's update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.checks import choice
from ...base.cluster import Cluster, get_cluster
from ...base.errors import StrategyError
from ...graph.compiler import compile_network
from ...graph.ir import Draft
from ...graph.passes import PASSES, Pass
from ...graph.plan import Plan
from ...ops.machine.primitive import Strategy
from .eliminate import Solution, eliminate
from .exact import branch_and_bound, exact, integer_program
from .mindspore_model import mindspore_problem
from .problem import Problem, amount_text
from .search_modes import reasons, with_strategies
from .time_model import time_problem

METHODS: dict[str, Callable[[Problem, int | None], Solution]] = {
    "dynamic_programming": eliminate,
    "exact": exact,
    "branch_and_bound": branch_and_bound,
    "integer_program": integer_program,
}
COSTS = ("time", "mindspore")


@dataclass(frozen=True)
class Candidate:
    """A candidate of an operator.  cost: of the best plan with it;  more: {term: how much more that plan costs}."""

    strategy: Strategy
    cost: float
    more: dict[str, float]
    chosen: bool = False

    def why(self, unit: str) -> str:
        """Which term decides against it."""
        if self.chosen:
            return "chosen"
        term, amount = max(self.more.items(), key=lambda pair: pair[1])
        return f"{amount_text(amount, unit)} more of {term}" if amount > 0 else "as good"


@dataclass(frozen=True)
class Found:
    """What a search found.

    problem   what there was to choose;  best: what was chosen, with its proof;  plan: the network compiled with it
    draft     the traced network before anything was chosen
    compile_with   compiles the network with other strategies: (strategies, reasons) -> Plan
    """

    problem: Problem
    best: Solution
    method: str
    memory_limit: int | None
    plan: Plan = field(repr=False)
    compile_with: Callable[[Mapping[str, Strategy], Mapping[str, str]], Plan] = field(repr=False, compare=False)
    draft: Draft = field(repr=False, compare=False)

    @property
    def strategies(self) -> dict[str, Strategy]:
        """{operator: its strategy}."""
        found = self.problem.strategies(self.best.chosen)
        return {name: strategy for name, strategy in found.items() if name}

    @property
    def unit(self) -> str:
        """Of the weighed sum: "s", or "" where terms of other weights are added."""
        weights = {term.weight for term in self.problem.terms}
        return self.problem.terms[0].unit if weights == {1.0} else ""

    def again(
        self,
        *,
        pinned: Mapping[str, Strategy] | None = None,
        weights: Mapping[str, float] | None = None,
        method: str | None = None,
        memory_limit: int | None = None,
    ) -> Found:
        """The same search with some operators' strategies given, other weights of terms, another method or limit."""
        problem = self.problem.pinned(pinned or {}).weighed(**(weights or {}))
        method = method or self.method
        choice(*METHODS)("search", "method", method)
        limit = self.memory_limit if memory_limit is None else memory_limit
        best = METHODS[method](problem, limit)
        plan = self.compile_with(problem.strategies(best.chosen), reasons(problem, best))
        return Found(problem, best, method, limit, plan, self.compile_with, self.draft)

    def candidates(self, operator: str) -> list[Candidate]:
        """The best plan with each candidate of an operator that fits, the cheapest first."""
        choice(*self.strategies)("search", "operator", operator)
        number = self.problem.numbers[operator]
        mine, found = self.problem.by_term(self.best.chosen), []
        for at, strategy in enumerate(self.problem.choices[number].candidates):
            if at == self.best.chosen[number]:
                found.append(Candidate(strategy, self.best.cost, {}, chosen=True))
                continue
            try:
                other = eliminate(self.problem.pinned({operator: strategy}), self.memory_limit)
            except StrategyError:  # it fits together with nothing, or not into the memory
                continue
            theirs = self.problem.pinned({operator: strategy}).by_term(other.chosen)
            more = {t.name: t.weight * (theirs[t.name] - mine[t.name]) for t in self.problem.terms}
            found.append(Candidate(strategy, other.cost, more))
        return sorted(found, key=lambda one: (one.cost, not one.chosen))

    # ---- in words ----

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
        lines.append(f"  in all {amount_text(best.cost, self.unit)}, {best.memory_bytes:,} bytes of a device; {proof}")
        return "\n".join(lines)

    def candidates_text(self, operator: str) -> str:
        """A line for each candidate of an operator: the best plan with it, and which term decides."""
        lines = [f"{operator}: the best plan with each of its candidates"]
        for one in self.candidates(operator):
            lines.append(f"  {one.strategy}  {amount_text(one.cost, self.unit)}  {one.why(self.unit)}")
        return "\n".join(lines)

    def steps_text(self) -> str:
        """What dynamic programming did, in order."""
        return "\n".join(f"{n}. {step.text()}" for n, step in enumerate(eliminate(self.problem).steps, 1))


def search(
    network: Callable,
    *inputs: Any,
    method: str = "exact",
    costs: str = "time",
    cluster: Cluster | str = "laptop",
    memory_limit: int | None = None,
    **options: Any,
) -> Found:
    """Choose strategies for a network's operators; those that were given one keep it.

    network, inputs, options  as for `compile`
    method        "exact" (proved, or with its gap), "dynamic_programming", "branch_and_bound", "integer_program"
    costs         "time": seconds on `cluster`; "mindspore": its own sum of bytes (`set_cost_model_context`)
    memory_limit  bytes of a device; None: any

    Raises StrategyError where nothing fits; ArgumentError for an unknown method or cluster; what `compile` raises.
    """
    choice(*METHODS)("search", "method", method)
    choice(*COSTS)("search", "costs", costs)
    cluster = get_cluster(cluster)
    settings = {"parallel_mode": "semi_auto_parallel", **options}
    states = len(getattr(options.get("optimizer"), "state_names", ()))
    searched: list[tuple[Problem, Solution, Draft]] = []

    def compile_with(strategies: Mapping[str, Strategy] | None, why: Mapping[str, str]) -> Plan:
        def taken(draft: Draft) -> Draft:
            given, told = strategies, why
            if given is None:
                problem = mindspore_problem(draft.graph, draft.config)
                if costs == "time":
                    problem = time_problem(draft.graph, draft.config, cluster, states=states)
                best = METHODS[method](problem, memory_limit)
                searched.append((problem, best, draft))
                given, told = problem.strategies(best.chosen), reasons(problem, best)
            return replace(draft, graph=with_strategies(draft.graph, draft.config, given, told))

        return compile_network(network, *inputs, passes=[Pass("searched", taken), *PASSES], **settings)

    plan = compile_with(None, {})
    problem, best, draft = searched[0]
    return Found(problem, best, method, memory_limit, plan, compile_with, draft)
