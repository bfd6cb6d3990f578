"""How much of a causal ring's time is useful on this machine, next to the formula: its ranks wait for the busiest.

    share = what a rank works if heads are split (everybody does the same) / the longest rank of every step, added up

Both on the same workers, in turns, in seconds on a core, the shortest of all rounds: who else computes on this machine
says little then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from parallel_lab import Parameter, nn, ops
from parallel_lab.base.events import EventLog
from parallel_lab.base.system import cores
from parallel_lab.graph.compiler import compile_network
from parallel_lab.layout.placements import Placement, attention_work
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.bench.goals import Goal, goal_rows
from tests.bench.page import tables_text

STEP_S, TOKENS, SIZE, LIMIT = 0.05, 8192, 64, 0.10  # a step at least; tokens of a rank; of a head; shares apart
# with fewer tokens tiles on the diagonal, half of whose pairs are hidden, take some points of striped's share
HIDDEN = "hidden blocks computed"
WAYS = ("contiguous", "zigzag", "striped", HIDDEN)


class _Scaled(nn.Cell):
    """Attention of three parameters, a head for each rank, times the input."""

    def __init__(self, ranks: int, tokens: int, way: str) -> None:
        super().__init__()
        rng, cuts = np.random.default_rng(0), (1, 1, ranks, 1) if way == "heads" else (1, ranks, 1, 1)
        shapes = {"q": (1, tokens, ranks, 1, SIZE), "k": (1, tokens, ranks, SIZE), "v": (1, tokens, ranks, SIZE)}
        for name, shape in shapes.items():
            setattr(self, name, Parameter(rng.standard_normal(shape, dtype=np.float32), name=name))
        placement = way if way in ("zigzag", "striped") else "contiguous"
        self.attention = ops.ContextAttention(placement=placement, ranks=ranks, compute_all=way == HIDDEN)
        self.attention.shard(((*cuts, 1), cuts, cuts))

    def construct(self, x: np.ndarray) -> np.ndarray:
        return ops.mul(self.attention(self.q, self.k, self.v)[0], x)


Steps = dict[str, dict[int, float]]  # step: {rank: seconds on a core}


def run_once(pool: WorkerPool, tokens: int, way: str, steps: Steps) -> None:
    """Run forward, the second time into `steps`, where the shortest time of each stays."""
    net, x = _Scaled(pool.world_size, tokens, way), np.ones((1, tokens, pool.world_size, 1, SIZE), np.float32)
    optimizer = nn.SGD(net.trainable_params(), 1e-6)
    how = {"loss": nn.MSELoss(), "optimizer": optimizer, "dataset_strategy": "full_batch"}
    plan = compile_network(net, x, x, device_num=pool.world_size, **how)
    with Session(plan, net, optimizer, executor="processes", pool=pool) as session:
        session.train([(x, x)], 2, record=1, phases=["forward"])
        for event in EventLog(tuple(session.events)).filter(kind="compute", op=["AttentionBlock", "ContextAttention"]):
            of_ranks = steps.setdefault(event.name, {})
            of_ranks[event.rank] = min(event.work_s, of_ranks.get(event.rank, event.work_s))


@dataclass(frozen=True)
class UsefulShare:
    """A causal ring in this way: its useful share, counted and measured, and the shortest of its steps, in seconds."""

    ranks: int
    way: str
    tokens: int
    counted: float
    measured: float
    step_s: float


def counted_share(ranks: int, tokens: int, way: str) -> float:
    """The useful share by the pairs that ranks compute."""
    if way == HIDDEN:
        return (tokens + 1) / (2 * tokens)
    return float(attention_work(Placement(way, tokens, ranks)).useful_share)


def measure_context(
    tokens: int = TOKENS, rounds: int = 8, *, tell: Callable[[str], object] = lambda text: None
) -> list[UsefulShare]:
    """Every way on 2, 4, ... ranks, up to the number of cores, each with so many tokens."""
    found = []
    for ranks in (1 << n for n in range(1, cores().bit_length()) if 1 << n <= cores()):
        taken: dict[str, Steps] = {way: {} for way in ("heads", *WAYS)}
        with WorkerPool(ranks) as pool:
            for number in range(rounds):
                tell(f"{ranks} ranks, round {number + 1} of {rounds}")
                for way, steps in taken.items():
                    run_once(pool, tokens * ranks, way, steps)
        (useful,) = (mean(of_ranks.values()) for of_ranks in taken["heads"].values())
        for way in WAYS:
            counted, longest = counted_share(ranks, tokens * ranks, way), [max(s.values()) for s in taken[way].values()]
            found.append(UsefulShare(ranks, way, tokens, counted, useful / sum(longest), min(longest)))
    return found


def context_goals(found: Sequence[UsefulShare]) -> tuple[Goal, ...]:
    """How far apart measured and counted share are; not measured where a step took less than STEP_S."""
    return tuple(
        Goal(
            f"{f.way}, {f.ranks} ranks, measured - counted share",
            "the step",
            LIMIT,
            abs(f.measured - f.counted) if f.step_s >= STEP_S else None,
        )
        for f in found
    )


def context_text(found: Sequence[UsefulShare]) -> str:
    """The table, the number of cores, and the goals."""
    rows = [("way", "ranks", "tokens of a rank", "counted", "measured", "shortest step")]
    rows += [
        (f.way, str(f.ranks), str(f.tokens), f"{f.counted:.3f}", f"{f.measured:.3f}", f"{1e3 * f.step_s:.0f} ms")
        for f in found
    ]
    return tables_text([(rows, 1), (goal_rows(context_goals(found)), 2)], [f"{cores()} cores"])
