"""Random pipelines: a stack of layers, where its parts lie, the schedule that runs them, and what else is set.

    drawn = draw_named(seed)        # a schedule with a name, all settings
    drawn = draw_by_hand(seed)      # any legal order of F, B and W under any placement
    compare(drawn)                  # losses and parameters are those of one device fed the same micro-batches
    wrong = draw_illegal(seed)      # a legal schedule with one change, and the words of the reason

The same seed always draws the same, so a failing one can be had again from its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.schedules import Schedule, make_schedule, schedule_names
from parallel_lab.cost.schedules.order import do, key_of, loop, shape_v
from parallel_lab.graph.placement import placement_of
from parallel_lab.train.session import Session

SIZE, WORDS, STEPS = 8, 8, 2
OPTIMIZERS = {
    "sgd": lambda ps: nn.SGD(ps, 0.1),
    "momentum": lambda ps: nn.Momentum(ps, 0.1, 0.9),
    "adam": lambda ps: nn.Adam(ps, 0.01),
    "scaled": lambda ps: nn.Momentum(ps, 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(1024.0, 2, 2)),
    "clipped": lambda ps: nn.SGD(ps, 0.1, clip=nn.GradientClip("global_norm", 0.05)),
}
SHARDED = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
PARALLEL = [{}, {}, *({**SHARDED, "optimizer_level": f"level{n}"} for n in (1, 2, 3))]
FUSED = {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}


# ---- the network ----


class Block(nn.Cell):
    def __init__(self, norm, dropout):
        super().__init__()
        self.norm = nn.LayerNorm((SIZE,), dtype="float64") if norm else None
        self.fc = nn.Dense(SIZE, SIZE, dtype="float64")
        self.drop = nn.Dropout(p=0.25) if dropout else None

    def construct(self, x):
        made = ops.tanh(self.fc(x if self.norm is None else self.norm(x)))
        return x + (made if self.drop is None else self.drop(made))


class Stack(nn.Cell):
    """Blocks with residuals; `tied`: between two products with one table, on the first stage and the last one."""

    def __init__(self, blocks, norm, dropout, tied):
        super().__init__()
        pl.set_seed(5)
        self.blocks = nn.CellList([Block(norm, dropout) for _ in range(blocks)])
        self.front, self.back = ops.MatMul(), ops.MatMul(transpose_b=True)
        self.table = (
            pl.Parameter(np.random.default_rng(1).standard_normal((SIZE, SIZE)), name="table") if tied else None
        )
        self.set_train()

    def construct(self, x):
        x = x if self.table is None else self.front(x, self.table)
        for block in self.blocks:
            x = block(x)
        return x if self.table is None else self.back(x, self.table)


@dataclass
class Drawn:
    """A pipeline. `net`: arguments of Stack; `cuts`, `recomputed`: per block; `way`: the stage of each block where the
    schedule is illegal and does not tell."""

    seed: int
    schedule: Schedule
    width: int
    net: tuple[int, bool, bool, bool]
    optimizer: str
    rows: int
    cuts: tuple[Any, ...] = ()
    recomputed: tuple[bool, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    way: tuple[int, ...] | None = None

    @property
    def ranks(self) -> int:
        return len(self.schedule) * self.width


def data(rows):
    rng = np.random.default_rng(0)
    return rng.standard_normal((rows, SIZE)), rng.integers(0, WORDS, rows).astype(np.int32)


def planned(net, optimizer, rows, micro_batches, devices, **settings):
    made = OPTIMIZERS[optimizer](net.trainable_params())
    how = {"device_num": devices, "grad_accumulation_step": micro_batches, "optimizer": made, **settings}
    how = {"dataset_strategy": "full_batch", **how}
    one_rank = rows if how["dataset_strategy"] == "full_batch" else rows * how["pipeline_stages"] // devices
    return pl.compile(net, *data(one_rank), loss=nn.CrossEntropyLoss(), **how), made


@lru_cache(maxsize=64)
def on_one(net, optimizer, rows, micro_batches):
    """Losses and parameters of one device; computed once for all pipelines of a network."""
    stack = Stack(*net)
    plan, made = planned(stack, optimizer, rows, micro_batches, 1)
    with Session(plan, stack, made) as session:
        return session.train([data(rows)], STEPS), session.parameters()


def compiled(drawn: Drawn):
    """Its plan, network and optimizer."""
    net, schedule = Stack(*drawn.net), drawn.schedule
    stages = drawn.way or placement_of(schedule, schedule.parts).ways[0]
    if len(schedule) > 1:
        for block, stage in zip(net.blocks, stages, strict=True):
            block.pipeline_stage = stage
    for block, cut, again in zip(net.blocks, drawn.cuts, drawn.recomputed, strict=True):
        if cut is not None:
            block.fc.matmul.shard(cut)
        if again:
            block.recompute()
    how = {"pipeline_stages": len(schedule), **({"schedule": schedule} if len(schedule) > 1 else {})}
    how |= drawn.settings
    plan, made = planned(net, drawn.optimizer, drawn.rows, schedule.micro_batches, drawn.ranks, **how)
    return plan, net, made


def trained(drawn: Drawn, pool=None):
    plan, net, optimizer = compiled(drawn)
    ranks = {} if pool is None else {"executor": "processes", "pool": pool}
    batch, parallel = data(drawn.rows), "dataset_strategy" in drawn.settings
    with Session(plan, net, optimizer, **ranks) as session:
        return session.train([[of_ranks(a, drawn) if parallel else a for a in batch]], STEPS), session.parameters()


def of_ranks(rows, drawn):
    """A batch for ranks that each cut their own rows into micro-batches: a micro-batch has the same rows as before."""
    cut = rows.reshape(drawn.schedule.micro_batches, drawn.width, -1, *rows.shape[1:])
    return cut.swapaxes(0, 1).reshape(rows.shape)


def compare(drawn: Drawn, pool=None) -> None:
    """Train; with a pool, on its processes and on the simulator, which must give the same bits."""
    found, want = trained(drawn), on_one(drawn.net, drawn.optimizer, drawn.rows, drawn.schedule.micro_batches)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-10, err_msg=str(drawn))
    assert found[1].keys() >= want[1].keys(), drawn
    for name, value in want[1].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0, atol=1e-10, err_msg=f"{name} of {drawn}")
    if pool is not None:
        losses, parameters = trained(drawn, pool)
        assert losses == found[0], drawn
        for name, value in found[1].items():
            np.testing.assert_array_equal(parameters[name], value, err_msg=f"{name} of {drawn}")


# ---- settings ----


def pick(rng, options):
    return options[int(rng.integers(len(options)))]


def drawn_settings(rng, seed, schedule, ranks) -> Drawn:
    """Everything but the schedule; on so many ranks, or up to 8 (None)."""
    stages, parts = len(schedule), schedule.parts
    width = ranks // stages if ranks else pick(rng, [w for w in (1, 2, 4, 8) if w * stages <= 8])
    net = (parts, *(bool(rng.integers(2)) for _ in range(3)))

    def cut():
        a = pick(rng, [n for n in (1, 2, 4, 8) if n <= width])
        b = pick(rng, [n for n in (1, 2, 4, 8) if a * n <= width])
        c = pick(rng, [n for n in (1, 2, 4, 8) if a * b * n <= width])
        return (a, b), (c, b)

    cuts = tuple(cut() if rng.random() < 0.6 else None for _ in range(parts))
    recomputed = tuple(bool(rng.random() < 0.3) for _ in range(parts))
    settings = {**pick(rng, PARALLEL), **pick(rng, [{}, FUSED])}
    settings |= pick(rng, [{}, {"dataset_strategy": "data_parallel"}])
    rows = schedule.micro_batches * 8
    return Drawn(seed, schedule, width, net, pick(rng, list(OPTIMIZERS)), rows, cuts, recomputed, settings)


def draw_named(seed: int, ranks: int | None = None) -> Drawn:
    """A schedule with a name, on 1 to 8 stages; given to `compile` by its name or as an object."""
    rng = np.random.default_rng([16, seed])
    name = schedule_names()[seed % len(schedule_names())]
    counts = [n for n in range(1, 9) if not ranks or ranks % n == 0]
    while True:
        stages, chunks = pick(rng, counts), pick(rng, [1, 1, 2, 3])
        micro_batches = stages * pick(rng, [1, 2]) if rng.random() < 0.6 else int(rng.integers(1, 9))
        try:
            schedule = make_schedule(name, stages, micro_batches, chunks)
        except ArgumentError:
            continue  # numbers that it is not defined for
        if schedule.parts <= 8 and micro_batches <= 12:
            break
    drawn = drawn_settings(rng, seed, schedule, ranks)
    if 1 < stages <= micro_batches and rng.integers(2):
        drawn.settings |= {"schedule": name, "pipeline_interleave": True}
    return drawn


# ---- schedules by hand ----


def drawn_places(rng, stages, micro_batches):
    """Per micro-batch the rank of each part: around, as a V, at will, or two copies without a common rank."""
    kind = pick(rng, ["loop", "v", "any", "any", "copies"])
    chunks = int(rng.integers(1, 4 if stages < 4 else 3))
    if kind == "copies" and stages > 1 and micro_batches > 1:
        first = rng.permutation(stages).tolist()
        shift = int(rng.integers(1, stages))
        ways = [first, first[shift:] + first[:shift]]
        return [ways[0], ways[1], *(pick(rng, ways) for _ in range(micro_batches - 2))]
    if kind in ("loop", "v"):
        holds = (loop if kind == "loop" else shape_v)(stages, chunks)
        way = [next(r for r, mine in enumerate(holds) if k in mine) for k in range(stages * chunks)]
    else:
        way = rng.permutation([*range(stages), *rng.integers(0, stages, stages * (chunks - 1))]).tolist()
    return [way] * micro_batches


def needed(actions, parts):
    """What each action needs, directly."""
    return {key_of(a): Schedule.needs(Schedule("", parts, 1, (), ()), a) for a in actions}


def random_order(rng, actions, needs):
    """A random order in which nothing comes before what it needs; kinds that come early differ from draw to draw."""
    likes = {kind: float(rng.choice([0.1, 1.0, 8.0])) for kind in "FBW"}
    left, done, order = list(actions), set(), []
    while left:
        ready = [a for a in left if done.issuperset(needs[key_of(a)])]
        odds = np.array([likes[a.kind] for a in ready])
        action = ready[int(rng.choice(len(ready), p=odds / odds.sum()))]
        left.remove(action)
        done.add(key_of(action))
        order.append(action)
    return order


def drawn_actions(rng, least=1, most=8):
    """Places per micro-batch and all actions, for `least` to `most` stages."""
    stages = int(rng.integers(least, most + 1))
    micro_batches = int(rng.integers(min(least, 2), 7 if stages <= 4 else 5))
    places = drawn_places(rng, stages, micro_batches)
    kinds = pick(rng, ["FB", "FBW"])
    actions = [do(k, kind, n) for n, way in enumerate(places) for k in range(len(way)) for kind in kinds]
    return stages, places, actions


def lanes_of(order, places, stages):
    return [[a for a in order if places[a.micro_batch][a.stage] == rank] for rank in range(stages)]


def draw_by_hand(seed: int, ranks: int | None = None) -> Drawn:
    """Any legal order of F, B and W, divided or not, with any placement and no cap; through its text."""
    rng = np.random.default_rng([17, seed])
    while True:
        stages, places, actions = drawn_actions(rng, 2)
        if not ranks or ranks % stages == 0:
            break
    order = random_order(rng, actions, needed(actions, len(places[0])))
    text = Schedule.of(lanes_of(order, places, stages)).text()
    return drawn_settings(rng, seed, Schedule.from_text(text), ranks)


# ---- what is illegal ----

CHANGES = ("never", "twice", "placement", "input", "swap", "deadlock", "memory", "number")


def draw_illegal(seed: int) -> tuple[Drawn, str, str]:
    """A legal schedule with one change, the change, and what the refusal must say (a regular expression)."""
    rng = np.random.default_rng([18, seed])
    change = CHANGES[seed % len(CHANGES)]
    while True:
        stages, places, actions = drawn_actions(rng, 2, 5)
        if len(set(map(tuple, places))) == 1:
            break
    way, needs = places[0], needed(actions, len(places[0]))
    lanes = lanes_of(random_order(rng, actions, needs), places, stages)
    legal = Schedule.of(lanes)
    assert legal.check() == []
    action = pick(rng, [a for a in actions if change != "placement" or a.kind == "F"])
    rank = way[action.stage]
    lane, what = lanes[rank], {"holds": legal.holds, "parts": legal.parts, "micro_batches": legal.micro_batches}
    if change == "never":
        lane.remove(action)
        words = f": {action} is never done; it belongs on rank {rank}"
    elif change == "twice":
        lane.insert(int(rng.integers(lane.index(action) + 1, len(lane) + 1)), action)
        words = f"{action} is done a second time; the same rank"
    elif change == "placement":
        other = pick(rng, [r for r in range(stages) if r != rank])
        lane.remove(action)
        lanes[other].insert(int(rng.integers(len(lanes[other]) + 1)), action)
        words = f"{action} cannot run here: part {action.stage} lies on rank {rank}|needs what {action} kept"
    elif change == "number":
        wrong = do(legal.parts, "F", 0) if rng.integers(2) else do(action.stage, "F", legal.micro_batches)
        lane.insert(int(rng.integers(len(lane) + 1)), wrong)
        words = f"{wrong} has (part|micro-batch) "
    elif change == "memory":
        what["cap"] = tuple(peak - (r == rank) for r, peak in enumerate(legal.peaks))
        words = f"of rank {rank}: no memory for .F.*keeps {legal.peaks[rank] - 1} of {legal.peaks[rank] - 1} "
    elif change == "input":
        early, late = do(action.stage, "B", action.micro_batch), do(action.stage, "F", action.micro_batch)
        lane.remove(early)
        lane.insert(lane.index(late), early)
        words = f"{early} needs {late}, which the rank does only at action .*: {late} must come first"
    elif change == "swap":
        pairs = [(i, lane.index(do_)) for i, a in enumerate(lane) for do_ in lane if key_of(do_) in needs[key_of(a)]]
        later, earlier = pick(rng, pairs)
        lane[later], lane[earlier] = lane[earlier], lane[later]
        words = "must come first"
    else:
        lanes, words = circle(rng, actions, needs, way, stages), "deadlock|wait"
    drawn = drawn_settings(rng, seed, Schedule.of(lanes, **what), None)
    return replace(drawn, way=tuple(way)), change, words


def circle(rng, actions, needs, way, stages):
    """Lanes, each in order, two of which wait for each other: backward of one micro-batch for that of another, whose
    forward waits for the first rank's."""
    borders = [k for k in range(len(way) - 1) if way[k] != way[k + 1]]
    k = pick(rng, borders)
    n, m = rng.permutation(1 + max(a.micro_batch for a in actions))[:2].tolist()
    every: dict[Any, set[Any]] = {}

    def all_needs(key):
        if key not in every:
            every[key] = set(needs[key]).union(*map(all_needs, needs[key]))
        return every[key]

    found = []
    for rank in range(stages):
        mine = [a for a in actions if way[a.stage] == rank]
        keys = {key_of(a) for a in mine}
        inside = {key: all_needs(key) & keys for key in keys}
        for first, then in (((k, "B", n), (k, "F", m)), ((k + 1, "F", m), (k + 1, "B", n))):
            if then in keys:
                inside[then] = inside[then] | {first}
        found.append(random_order(rng, mine, inside))
    return found
