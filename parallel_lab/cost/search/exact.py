"""The exact optimum, with its proof: by branch and bound, or as an integer program.

    branch_and_bound   choices in order, candidates cheapest first; a branch is left when even the least that is open
                       could cost no less than the best plan so far. No library; for small networks
    integer_program    x[operator, candidate] is 0 or 1, y[edge, candidate, candidate] is what both ends say; the sum is
                       least, and a device's bytes are within the limit (Alpa, OSDI 2022, section 4.2). Solved by HiGHS
                       in SciPy, which the extra `search` installs

Both say what they can prove: `Solution.lower_bound`, and `gap`, how much better another plan could be.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

import numpy as np

from ...base.errors import ArgumentError, MissingPackage, StrategyError
from .eliminate import Solution
from .problem import Problem

SMALL = 200_000  # plans that are tried one by one without a thought
MOST_BRANCHES = 2_000_000


@dataclass(frozen=True)
class Improvement:
    """A step of branch and bound: a plan that costs less than those before, found after so many branches."""

    branches: int
    chosen: tuple[int, ...]
    cost: float

    def text(self) -> str:
        """In words."""
        return f"after {self.branches:,} branches: a plan of cost {self.cost:.6g}"


def exact(problem: Problem, memory_limit: int | None = None, *, time_limit_s: float = 60.0) -> Solution:
    """The plan of least cost within the limit, with a proof or a gap: small problems by branch and bound.

    memory_limit  bytes of a device; None: any;  time_limit_s: after it the best plan so far is the answer
    """
    if problem.plans <= SMALL:
        return branch_and_bound(problem, memory_limit, time_limit_s=time_limit_s)
    return integer_program(problem, memory_limit, time_limit_s=time_limit_s)


def branch_and_bound(problem: Problem, memory_limit: int | None = None, *, time_limit_s: float = 60.0) -> Solution:
    """The plan of least cost. Raises StrategyError if none is within the limit."""
    _check_time(time_limit_s)
    count = len(problem.choices)
    # an edge belongs to the later of its two ends: when that is decided, both are known
    before: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(count)]
    for pair, table in zip(problem.pairs, problem.between, strict=True):
        late, early = max(pair.source, pair.target), min(pair.source, pair.target)
        before[late].append((early, table if pair.source == early else table.T))
    # the least that what is still open can cost, whatever was decided
    open_cost, open_memory = [0.0] * (count + 1), [0] * (count + 1)
    for n in reversed(range(count)):
        around = sum((table.min(axis=0) for _, table in before[n]), np.zeros(len(problem.own[n])))
        open_cost[n] = open_cost[n + 1] + float((problem.own[n] + around).min())
        open_memory[n] = open_memory[n + 1] + int(problem.choices[n].memory_bytes.min())
    limit = math.inf if memory_limit is None else memory_limit
    best: tuple[float, tuple[int, ...]] | None = None
    steps: list[Improvement] = []
    end, branches, lower = time.monotonic() + time_limit_s, 0, math.inf
    chosen: list[int] = []

    def branch(n: int, cost: float, size: int) -> None:
        nonlocal best, branches, lower
        if n == count:
            best = cost, tuple(chosen)
            steps.append(Improvement(branches, tuple(chosen), cost))
            return
        branches += 1
        costs = cost + problem.own[n] + sum((table[chosen[early]] for early, table in before[n]), 0.0)
        for c in np.argsort(costs, kind="stable"):
            bound = float(costs[c]) + open_cost[n + 1]
            held = size + int(problem.choices[n].memory_bytes[c])
            if not math.isfinite(bound) or (best is not None and bound >= best[0]):
                return
            if held + open_memory[n + 1] > limit:
                continue
            if branches > MOST_BRANCHES or time.monotonic() > end:
                lower = min(lower, bound)
                continue
            chosen.append(int(c))
            branch(n + 1, float(costs[c]), held)
            chosen.pop()

    branch(0, 0.0, 0)
    if best is None:
        raise _none(memory_limit, cut_short=math.isfinite(lower))
    plan = best[1]
    cost = problem.cost(plan)
    return Solution("branch_and_bound", plan, cost, problem.memory_bytes(plan), min(cost, lower), tuple(steps))


def integer_program(problem: Problem, memory_limit: int | None = None, *, time_limit_s: float = 60.0) -> Solution:
    """The plan of least cost. Raises StrategyError if none is within the limit; MissingPackage without SciPy."""
    _check_time(time_limit_s)
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        hint = "pip install 'parallel-lab[search]'; dynamic_programming needs nothing"
        raise MissingPackage("SciPy is not installed", where="integer_program", hint=hint) from error
    sizes = [len(choice.candidates) for choice in problem.choices]
    first = np.concatenate([[0], np.cumsum(sizes)])
    costs, ends = [np.concatenate(problem.own)], [np.ones(first[-1])]
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    numbers: list[np.ndarray] = []
    right_sides: list[float] = []

    def equation(at: np.ndarray, factors: np.ndarray, value: float) -> None:
        rows.append(np.full(len(at), len(right_sides)))
        columns.append(at)
        numbers.append(factors)
        right_sides.append(value)

    for n, size in enumerate(sizes):
        equation(np.arange(first[n], first[n + 1]), np.ones(size), 1.0)
    place = int(first[-1])
    for pair, table in zip(problem.pairs, problem.between, strict=True):
        here = place + np.arange(table.size).reshape(table.shape)
        possible = np.isfinite(table)
        costs.append(np.where(possible, table, 0.0).ravel())
        ends.append(possible.ravel().astype(float))
        place += table.size
        for s, row in enumerate(here):
            equation(np.append(row, first[pair.source] + s), np.append(np.ones(len(row)), -1.0), 0.0)
        for t, row in enumerate(here.T):
            equation(np.append(row, first[pair.target] + t), np.append(np.ones(len(row)), -1.0), 0.0)
    cells = np.concatenate(numbers), (np.concatenate(rows), np.concatenate(columns))
    rules = [LinearConstraint(coo_array(cells, shape=(len(right_sides), place)).tocsr(), right_sides, right_sides)]
    whole = np.zeros(place)
    whole[: first[-1]] = 1
    if memory_limit is not None:
        held = np.zeros(place)
        held[: first[-1]] = np.concatenate([choice.memory_bytes for choice in problem.choices])
        most = max(1.0, float(memory_limit))
        rules.append(LinearConstraint(coo_array(held[None] / most), -np.inf, memory_limit / most))
    weights = np.concatenate(costs)
    scale = float(np.abs(weights).max(initial=0.0)) or 1.0  # seconds are small numbers, and HiGHS has tolerances
    options = {"time_limit": time_limit_s, "mip_rel_gap": 0.0}
    bounds = Bounds(0, np.concatenate(ends))
    solution = milp(weights / scale, constraints=rules, bounds=bounds, integrality=whole, options=options)
    if solution.x is None:
        raise _none(memory_limit, cut_short=solution.status == 1)
    chosen = tuple(int(solution.x[a:b].argmax()) for a, b in itertools.pairwise(first))
    cost = problem.cost(chosen)
    # what HiGHS calls optimal is so within its own tolerance, a millionth
    bound = cost if solution.status == 0 else min(cost, float(solution.mip_dual_bound) * scale)
    return Solution("integer_program", chosen, cost, problem.memory_bytes(chosen), bound)


def _check_time(time_limit_s: float) -> None:
    if isinstance(time_limit_s, bool) or not isinstance(time_limit_s, int | float) or not 0 < time_limit_s < math.inf:
        what = f"time_limit_s={time_limit_s!r}"
        raise ArgumentError(what, where="exact search", allowed="Seconds, above 0")


def _none(memory_limit: int | None, *, cut_short: bool) -> StrategyError:
    where = "exact search"
    if cut_short:
        hint = "Give it more time, or use dynamic_programming"
        return StrategyError("the time was over before any plan was found", where=where, hint=hint)
    if memory_limit is None:
        allowed = "Operators that read one Parameter must split it equally"
        return StrategyError("no choice of strategies fits together", where=where, allowed=allowed)
    what = f"no choice of strategies needs at most {memory_limit:,} bytes of a device"
    return StrategyError(what, where=where, allowed="A larger memory limit", hint="More devices need less")
