"""Training plans drawn from one space of settings: stages and schedule, strategies, recomputed and offloaded blocks,
what lies on the host, fusion, the optimizer's split, dtype, accumulation. None of them may change what is trained.

    check(draw(7))                                                    # the same seed always draws the same case
    check(Case(blocks=4, devices=8, stages=(0, 0, 1, 1), micro_batches=4, optimizer="lamb", level=LEVELS["level3"]))

A case is a small network and how it is trained (computed once on one device), then everything that moves work and data.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.cost.schedules import Schedule, schedule_names
from parallel_lab.graph.placement import placement_of
from parallel_lab.graph.plan import Plan
from parallel_lab.train.session import Session
from tests.graph.drawn_schedules import draw_by_hand, draw_named
from tests.graph.random_choices import Choices, Seeded, pick

SIZE, STEPS = 8, 2
CLIP = nn.GradientClip("global_norm", 0.05)
OPTIMIZERS = {
    "sgd": lambda p: nn.SGD(p, 0.1, 0.9, 0.3, 0.01),
    "momentum": lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True),
    "adam": lambda p: nn.Adam(p, 0.01),
    "clipped-adam": lambda p: nn.Adam(p, 0.01, clip=CLIP),
    "adam-weight-decay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "rmsprop": lambda p: nn.RMSProp(p, 0.01, momentum=0.5, epsilon=1e-3, centered=True),
    "adagrad": lambda p: nn.Adagrad(p, learning_rate=0.1),
    "lamb": lambda p: nn.Lamb(p, 0.01, weight_decay=0.1),
    "lazy-adam": lambda p: nn.LazyAdam(p, 0.01, weight_decay=0.1),
    "ftrl": lambda p: nn.FTRL(p, learning_rate=0.1, l1=0.05, l2=0.01),
    "adafactor": lambda p: nn.AdaFactor(p, weight_decay=0.1, clip_threshold=0.5),
    "adam-amsgrad": lambda p: nn.Adam(p, 0.01, use_amsgrad=True),
    "adam-offload": lambda p: nn.AdamOffload(p, 0.01),
    "adamax": lambda p: nn.AdaMax(p, 0.01, weight_decay=0.1),
    "proximal-adagrad": lambda p: nn.ProximalAdagrad(p, 0.1, 0.05, l1=0.02, l2=0.1),
    "asgd": lambda p: nn.ASGD(p, 0.1, 0.2, 0.5, 1.0, weight_decay=0.1),
    "rprop": lambda p: nn.Rprop(p, 0.01, weight_decay=0.1),
    "centralized": lambda p: nn.Momentum(
        [{"params": p[:1], "grad_centralization": True, "weight_decay": 0.1}, {"params": p[1:]}], 0.1, 0.9
    ),
    "all-centralized": lambda p: nn.Lamb([{"params": p, "grad_centralization": True}], 0.01, weight_decay=0.1),
    "lars": lambda p: nn.LARS(nn.Momentum(p, 0.1, 0.9, weight_decay=0.1), coefficient=0.5, use_clip=True),
    "lars-groups": lambda p: nn.LARS(
        nn.SGD([{"params": p[:1], "weight_decay": 0.2}, {"params": p[1:], "lr": nn.WarmUpLR(0.2, 3)}], 0.1)
    ),
    "clip-value": lambda p: nn.Momentum(p, 0.1, 0.9, clip=nn.GradientClip("value", (-0.002, 0.001))),
    "clip-norm": lambda p: nn.Momentum(p, 0.1, 0.9, clip=nn.GradientClip("norm", 0.03)),
    "clip-global": lambda p: nn.Momentum(p, 0.1, 0.9, loss_scale=0.5, clip=CLIP),
    "scaled": lambda p: nn.Adam(p, 0.01, loss_scaler=nn.DynamicLossScaler(64, 2, 2)),
    "all-together": lambda p: nn.Lamb(
        p, nn.CosineDecayLR(0.001, 0.1, 4), weight_decay=0.1, clip=CLIP, loss_scaler=nn.DynamicLossScaler(64, 2, 2)
    ),
}
ON = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
ON_HOST = ("adam", "clipped-adam", "adam-weight-decay", "lazy-adam", "ftrl", "proximal-adagrad")  # can update there
LEVELS = {level: {**ON, "optimizer_level": level} for level in ("level1", "level2", "level3")}
AUTO = {"mode": "auto", "config": None}
FED_BY_RANKS = {"dataset_strategy": "data_parallel"}
DATA_PARALLEL = {"parallel_mode": "data_parallel", **FED_BY_RANKS, "gradients_mean": True}
FUSIONS = {
    "gradients": {"comm_fusion": {"allreduce": AUTO}},
    "all": {"comm_fusion": dict.fromkeys(("allreduce", "allgather", "reducescatter"), AUTO)},
    "size": {"comm_fusion": {"allreduce": {"mode": "size", "config": 1}}},
    "index": {"comm_fusion": {"allreduce": {"mode": "index", "config": [0, 4, 5]}}},
    "times": {"cost_model_fusion": ("times", 3, 0.2)},
    "hiding": {"cost_model_fusion": ("hiding", 0.1, 0.05, 1e-4, 1e-6)},
}
OFFLOADS = {"values": {"memory_offload": True}, "all": {"memory_offload": True, "offload_param": "cpu"}}
MARKS = {  # what is done to a block
    "again": lambda block: block.recompute(),
    "kept messages": lambda block: block.recompute(mp_comm_recompute=False),
    "gathered": lambda block: block.recompute(parallel_optimizer_comm_recompute=True),
    "sliced": lambda block: block.recompute(recompute_slice_activation=True),
    "operators": lambda block: [p.add_prim_attr("recompute", True) for p in (block.relu, block.random_or_tanh)],
    "one kept": lambda block: (block.recompute(), block.fc1.matmul.recompute(False)),
    "away": lambda block: block.offload(),
    "away early": lambda block: block.offload(3),
    "away and again": lambda block: (block.offload(2), block.fc1.matmul.recompute()),
}


# ---- the network ----


class Block(nn.Cell):
    """Norm, two products, dropout, and a residual."""

    def __init__(self, norm: bool, dropout: bool, dtype: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((SIZE,), dtype=dtype) if norm else None
        self.fc1, self.fc2 = (nn.Dense(SIZE, SIZE, dtype=dtype) for _ in range(2))
        self.relu, self.tanh, self.drop = ops.ReLU(), ops.Tanh(), nn.Dropout(p=0.25) if dropout else None
        self.random_or_tanh = self.tanh if self.drop is None else self.drop.dropout

    def construct(self, x: Any) -> Any:
        made = self.tanh(self.fc2(self.relu(self.fc1(x if self.norm is None else self.norm(x)))))
        return x + (made if self.drop is None else self.drop(made))


class Stack(nn.Cell):
    """Blocks; `tied`: between two products with one table, on the first stage and the last one; `statistics`: behind a
    batch norm, whose moving mean and variance are assigned."""

    def __init__(self, blocks: int, norm: bool, dropout: bool, tied: bool, statistics: bool, dtype: str) -> None:
        super().__init__()
        pl.set_seed(5)
        self.batch_norm = nn.BatchNorm1d(SIZE, dtype=dtype) if statistics else None
        self.blocks = nn.CellList([Block(norm, dropout, dtype) for _ in range(blocks)])
        self.front, self.back = ops.MatMul(), ops.MatMul(transpose_b=True)
        table = np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(dtype)
        self.table = pl.Parameter(table, name="table") if tied else None
        self.set_train()

    def construct(self, x: Any) -> Any:
        x = x if self.table is None else self.front(x, self.table)
        x = x if self.batch_norm is None else self.batch_norm(x)
        for block in self.blocks:
            x = block(x)
        return x if self.table is None else self.back(x, self.table)


def staged(net: Stack, stages: tuple[int, ...]) -> Stack:
    """The network with its blocks on these stages, if any."""
    for block, stage in zip(net.blocks, stages, strict=False):
        block.pipeline_stage = stage
    if stages and net.batch_norm is not None:
        net.batch_norm.pipeline_stage = stages[0]
    return net


# ---- a case ----


@dataclass
class Case:
    """What is trained, and how: only the first part may change a result."""

    blocks: int = 2
    norm: bool = True
    dropout: bool = True
    tied: bool = False
    statistics: bool = False
    dtype: str = "float64"
    half: str | None = None  # products are computed so
    optimizer: str = "adam"
    rows: int = 0  # of a batch; 0: eight for each micro-batch
    micro_batches: int = 1
    # results are equal but for rounding
    devices: int = 1
    stages: tuple[int, ...] = ()  # of each block
    schedule: Any = None  # a name or an object
    cuts: tuple[Any, ...] = ()  # strategy of each block's first product
    level: dict[str, Any] = field(default_factory=dict)  # how the optimizer is split
    settings: dict[str, Any] = field(default_factory=dict)
    # no bit changes
    marks: tuple[str, ...] = ()  # of each block: "" or one of MARKS; ("whole",): the network is recomputed
    cpu: tuple[int, ...] = ()  # blocks whose first product runs on the host
    target: str | None = None  # "CPU": the optimizer runs on the host
    free: dict[str, Any] = field(default_factory=dict)  # settings that only move and join things

    def __post_init__(self) -> None:
        self.rows = self.rows or 8 * self.micro_batches

    @property
    def trains(self) -> tuple[Any, ...]:
        """What one device needs to know."""
        parts = (self.blocks, self.norm, self.dropout, self.tied, self.statistics, self.dtype)
        return *parts, self.optimizer, self.rows, self.micro_batches

    @property
    def plain(self) -> Case:
        """The same without what changes no bit."""
        return dataclasses.replace(self, marks=(), cpu=(), target=None, free={})

    @property
    def on_device(self) -> Case:
        """The same with nothing on the host."""
        marks = tuple("" if mark.startswith("away") else mark for mark in self.marks)
        free = {name: value for name, value in self.free.items() if name not in OFFLOADS["all"]}
        optimizer = "adam" if self.optimizer == "adam-offload" else self.optimizer
        return dataclasses.replace(self, marks=marks, cpu=(), target=None, free=free, optimizer=optimizer)

    @property
    def uses_host(self) -> bool:
        away = any(mark.startswith("away") for mark in self.marks) or "memory_offload" in self.free
        return bool(away or self.cpu or self.target or self.optimizer == "adam-offload")

    @property
    def width(self) -> int:
        """Ranks of a stage."""
        return self.devices // (1 + max(self.stages, default=0))


def data(case: Case) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, labels = rng.standard_normal((case.rows, SIZE)), rng.integers(0, SIZE, case.rows)
    return x.astype(case.dtype), labels.astype(np.int32)


def fed(case: Case) -> tuple[np.ndarray, ...]:
    """A batch for ranks that each cut their own rows into micro-batches: a micro-batch has the same rows as before."""
    if case.settings.get("dataset_strategy") != "data_parallel":
        return data(case)
    cut = [a.reshape(case.micro_batches, case.width, -1, *a.shape[1:]) for a in data(case)]
    return tuple(a.swapaxes(0, 1).reshape(case.rows, *a.shape[3:]) for a in cut)


def compiled(case: Case) -> tuple[Plan, nn.Cell, Any]:
    """Its plan, network and optimizer."""
    net = Stack(*case.trains[:6])
    if case.half:
        net.to_float(case.half)
    staged(net, case.stages)
    for block, cut in zip(net.blocks, case.cuts, strict=False):
        if cut is not None:
            block.fc1.matmul.shard(cut)
    if case.marks == ("whole",):
        net.recompute()
    else:
        for block, mark in zip(net.blocks, case.marks, strict=False):
            MARKS.get(mark, lambda block: None)(block)
    for at in case.cpu:
        net.blocks[at].fc1.matmul.set_device("CPU")
    optimizer = OPTIMIZERS[case.optimizer](net.trainable_params())
    if case.target:
        optimizer.target = case.target
    how = {"device_num": case.devices, "optimizer": optimizer, "grad_accumulation_step": case.micro_batches}
    how |= {"dataset_strategy": "full_batch", "pipeline_stages": 1 + max(case.stages, default=0)}
    how |= {} if case.schedule is None else {"schedule": case.schedule}
    how |= {**case.level, **case.settings, **case.free}
    ways = case.width if how["dataset_strategy"] == "data_parallel" else 1
    inputs = (a[: case.rows // ways] for a in data(case))
    return pl.compile(net, *inputs, loss=nn.CrossEntropyLoss(), **how), net, optimizer


def trained(case: Case, made: tuple[Plan, nn.Cell, Any] | None = None, pool: Any = None) -> dict[str, Any]:
    """Losses, parameters, states and scalars after two steps, and the gradients of the last one, by name."""
    plan, net, optimizer = made or compiled(case)
    ranks = {} if pool is None else {"executor": "processes", "pool": pool}
    with Session(plan, net, optimizer, **ranks) as session:
        values = {"losses": np.array(session.train([fed(case)], STEPS)), **session.parameters()}
        states = session.values(s.name for s in plan.states if s.parameter)
        gradients = {f"gradient of {name}": value for name, value in session.gradients().items()}
        return values | states | gradients | session.scalars()


@lru_cache(maxsize=64)
def _on_one_device(*trains: Any) -> dict[str, Any]:
    return trained(Case(*trains[:6], optimizer=trains[6], rows=trains[7], micro_batches=trains[8]))


def on_one_device(case: Case) -> dict[str, Any]:
    """The same on one device; computed once for all cases that train it."""
    return _on_one_device(*case.trains)


# ---- the properties ----


def assert_equal(found: dict[str, Any], want: dict[str, Any], case: Case, bound: float = 1e-10) -> None:
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=bound, atol=bound, err_msg=f"{name} of {case}")


def assert_same_bits(found: dict[str, Any], want: dict[str, Any], case: Case) -> None:
    assert found.keys() == want.keys(), case
    for name, value in want.items():
        np.testing.assert_array_equal(found[name], value, err_msg=f"{name} of {case}")


def check(case: Case, pool: Any = None) -> Plan:
    """The plan trains as one device does, its JSON is the plan, and what only moves work and data changes no bit.

    pool  its processes give the simulator's bits
    """
    made = compiled(case)
    plan = made[0]
    found = trained(case, made)
    assert Plan.from_dict(plan.to_dict()) == plan
    assert bool(plan.host) == case.uses_host, case
    if case.half is None and case.dtype == "float64":
        own = {"losses"} if case.settings.get("parallel_mode") == "data_parallel" else set()  # each rank has its own
        assert_equal(found, {name: value for name, value in on_one_device(case).items() if name not in own}, case)
    if case != case.plain:
        assert_same_bits(found, trained(case.plain), case)
    if pool is not None:
        assert_same_bits(trained(case, made, pool), found, case)
    return plan


# ---- drawing ----


def draw(seed: int, ranks: int | None = None) -> Case:
    """A case for so many ranks, or for 1 to 8."""
    choices = Seeded([16, seed])
    counts = [n for n in range(1, 9) if not ranks or ranks % n == 0]
    kind = seed % 3
    if kind == 0:
        name = schedule_names()[seed // 3 % len(schedule_names())]
        return drawn_case(choices, draw_named(choices, name, counts), ranks)
    if kind == 1:
        return drawn_case(choices, draw_by_hand(choices, ranks), ranks)
    return drawn_case(choices, None, ranks)


def drawn_case(choices: Choices, schedule: Schedule | None, ranks: int | None = None) -> Case:
    """Everything but the schedule."""
    stages = len(schedule) if schedule else 1
    devices = ranks or stages * pick(choices, [w for w in (1, 2, 4, 8) if w * stages <= 8])
    width, in_stages = devices // stages, stages > 1
    case = Case(
        blocks=schedule.parts if schedule else 2,
        norm=choices.chance(0.5),
        dropout=choices.chance(0.5),
        tied=choices.chance(0.4),
        dtype="float64" if choices.chance(0.8) else "float32",
        optimizer=pick(choices, list(OPTIMIZERS)),
        micro_batches=schedule.micro_batches if schedule else pick(choices, [1, 2, 4]),
        devices=devices,
    )
    if in_stages:
        case.stages = placement_of(schedule, schedule.parts).ways[0]
        case.schedule = schedule
    # running statistics go on from one micro-batch to the next, in the order of their numbers
    in_order = not in_stages or list(range(case.micro_batches)) == [
        a.micro_batch for a in schedule[case.stages[0]] if (a.stage, a.kind) == (0, "F")
    ]
    case.statistics = in_order and choices.chance(0.2)
    case.cuts = tuple(cut(choices, width) if choices.chance(0.6) else None for _ in range(case.blocks))
    case.level = dict(pick(choices, [{}, *LEVELS.values()]))
    if case.level and width > 1 and choices.chance(0.3):
        case.level["optimizer_weight_shard_size"] = pick(choices, [n for n in (2, 4) if n <= width])
    if case.level and choices.chance(0.3):
        case.level["gradient_accumulation_shard"] = choices.chance(0.5)
    case.settings = dict(pick(choices, [{}, FED_BY_RANKS]))
    if not in_stages and choices.chance(0.2):  # every rank draws the masks of its own rows
        case.settings, case.dropout, case.statistics, case.level = dict(DATA_PARALLEL), False, False, {}
        if case.optimizer in ("lamb", "adam-weight-decay", "adafactor"):  # those whose updates ranks can share
            case.level = pick(choices, [{}, {"enable_parallel_optimizer": True}])
    if in_stages and schedule.name in schedule_names() and stages <= case.micro_batches and choices.chance(0.5):
        case.schedule, case.settings["pipeline_interleave"] = schedule.name, True
    case.free = {**pick(choices, [{}, *FUSIONS.values()]), **pick(choices, [{}, {}, *OFFLOADS.values()])}
    marks = [m for m in MARKS if "memory_offload" not in case.free or not m.startswith("away")]
    if in_stages:
        marks.remove("gathered")  # it is ignored there, with a warning
    case.marks = tuple(pick(choices, marks) if choices.chance(0.3) else "" for _ in range(case.blocks))
    case.cpu = tuple(i for i in range(case.blocks) if choices.chance(0.1))
    if case.optimizer in ON_HOST and choices.chance(0.3):
        case.target = "CPU"
    if case.dtype == "float32" and choices.chance(0.5):
        case.half = pick(choices, ["float16", "bfloat16"])
    return case


def cut(choices: Choices, width: int) -> Any:
    """A strategy of a product for so many ranks."""
    a = pick(choices, [n for n in (1, 2, 4, 8) if n <= width])
    b = pick(choices, [n for n in (1, 2, 4, 8) if a * n <= width])
    c = pick(choices, [n for n in (1, 2, 4, 8) if a * b * n <= width])
    return (a, b), (c, b)
