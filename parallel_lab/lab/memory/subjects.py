"""What the Memory Lab looks at: networks that train, and the settings of the optimizer parallel they are compiled with.

    job = get_subject("stack").job(256)
    plan = job.compile(Settings(devices=8, optimizer="Adam", level="level1"))

"stack" is eight Dense layers of one width, which can be chosen: every weight can be split by 2, 4 and 8, so that the
formulas of the ZeRO paper hold to the byte. The others are the networks of the other labs, whose small and odd
parameters the rules leave whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import nn
from ...base.settings.current import default_settings
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.models import MoEGPT, MoELanguageModelLoss
from ...nn.tensor.parameter import Parameter
from ..shared import jobs
from ..shared.jobs import JOBS, named
from ..shared.networks import NETWORKS
from .splits import split

LEVELS = {
    "data_parallel": {
        "off": "off: every rank holds everything",
        "grouping": "weight grouping: whole parameters are distributed",
    },
    "semi_auto_parallel": {
        "off": "off: every rank holds everything",
        "level1": "level1: weights and optimizer states are sharded",
        "level2": "level2: accumulated gradients as well",
        "level3": "level3: weights are gathered again for backward",
    },
}

# Steps so small that no loss of these networks grows; AdamWeightDecay and Lamb are the ones that weight grouping takes
OPTIMIZERS: dict[str, Callable[[list[Parameter]], nn.Optimizer]] = {
    "SGD": lambda parameters: nn.SGD(parameters, 0.01),
    "Momentum": lambda parameters: nn.Momentum(parameters, 0.01, 0.9),
    "Adam": lambda parameters: nn.Adam(parameters, 0.001),
    "AdamWeightDecay": lambda parameters: nn.AdamWeightDecay(parameters, 0.001),
    "Lamb": lambda parameters: nn.Lamb(parameters, 0.001),
}

DEVICES = (2, 4, 8)
SHARD_SIZES = (-1, 2, 4, 8)
ACCUMULATIONS = (1, 2, 4)
WIDTHS = range(16, 1025, 16)  # of the stack: 2, 4 and 8 ranks can share the rows of a weight


@dataclass(frozen=True)
class Settings:
    """How a network is compiled. All fields are as `ParallelConfig` names them, but

    level         "off", "grouping" (optimizer parallel in data_parallel mode), or the optimizer level of the modes that
                  split operators
    threshold_kb  parallel_optimizer_threshold;  shard_size: optimizer_weight_shard_size, -1 for all that hold the same
                  slice
    accumulation  grad_accumulation_step;  accumulation_shard: gradient_accumulation_shard
    split         how the network's operators are split, one of `splits.SPLITS`
    """

    devices: int = 8
    parallel_mode: str = "semi_auto_parallel"
    optimizer: str = "Adam"
    level: str = "level1"
    threshold_kb: int = 64
    shard_size: int = -1
    accumulation: int = 1
    accumulation_shard: bool = True
    split: str = "batch"

    def replaced(self, **fields: Any) -> Settings:
        """The same with other fields."""
        return replace(self, **fields)

    def without(self) -> Settings:
        """The same without optimizer parallel; what only matters with it as it is by default."""
        plain = Settings()
        kept = {name: getattr(plain, name) for name in ("threshold_kb", "shard_size", "accumulation_shard")}
        return replace(self, level="off", **kept)

    def config(self) -> dict[str, Any]:
        """The fields of ParallelConfig that are not as they are by default."""
        return {
            "device_num": self.devices,
            "parallel_mode": self.parallel_mode,
            "dataset_strategy": "data_parallel" if self.split == "batch" else "full_batch",
            # the loss is the mean over the whole batch, no matter which ranks compute it: of one rank's rows in
            # data_parallel, of all rows where operators are split
            "gradients_mean": self.parallel_mode == "data_parallel",
            "enable_parallel_optimizer": self.level != "off",
            "optimizer_level": self.level if self.level.startswith("level") else "level1",
            "parallel_optimizer_threshold": self.threshold_kb,
            "optimizer_weight_shard_size": self.shard_size,
            "grad_accumulation_step": self.accumulation,
            "gradient_accumulation_shard": self.accumulation_shard,
        }


@dataclass(frozen=True, eq=False)
class Job:
    """A network ready to be compiled and trained; `batches` are global inputs of one step each."""

    net: nn.Cell
    loss: nn.Cell
    batches: tuple[tuple[np.ndarray, ...], ...]
    _optimizers: dict[str, nn.Optimizer] = field(default_factory=dict)

    @classmethod
    def of(cls, job: jobs.Job) -> Job:
        """A job of the table, with any of the optimizers."""
        return cls(job.net, job.loss, job.batches)

    def optimizer(self, name: str) -> nn.Optimizer:
        """The optimizer of that name, always the same one."""
        if name not in self._optimizers:
            with default_settings():
                self._optimizers[name] = OPTIMIZERS[name](self.net.trainable_params())
        return self._optimizers[name]

    def compile(self, settings: Settings) -> Plan:
        """The plan, the batch split among the ranks. Raises as `compile` does for settings that do not go together."""
        rows = len(self.batches[0][0]) // (settings.devices if settings.split == "batch" else 1)
        inputs = tuple(part[:rows] for part in self.batches[0])
        how = {"loss": self.loss, "optimizer": self.optimizer(settings.optimizer), **settings.config()}
        split(self.net, settings.split, settings.devices if settings.parallel_mode != "data_parallel" else 1)
        with default_settings():
            return compile_network(self.net, *inputs, **how)

    @property
    def parameter_count(self) -> int:
        """Elements of all trainable parameters."""
        return sum(int(np.prod(p.shape)) for p in self.net.trainable_params())


@dataclass(frozen=True)
class Subject(jobs.Subject):
    """A network whose memory is looked at; `job` makes it, of a width if `width` (the one to begin with) is not 0.
    capacity_bytes   memory of a device to begin with; 0: no line
    """

    width: int = 0
    capacity_bytes: int = 0


def _stack(width: int) -> Job:
    return Job.of(JOBS["stack"](width))


def _network(name: str, data: str, note: str) -> Subject:
    """A network of the labs, with the data of that name."""
    return Subject(name, NETWORKS[name].label, note, lambda width: Job.of(JOBS[name](data)), data)


def _experts(width: int) -> Job:
    """A GPT of 8 experts; where operators are split, each rank has its share of them."""
    job = JOBS["transformer"]("text")
    sizes = {"seq_length": job.net.seq_length, "hidden": job.net.hidden, "inner": job.net.hidden, "layers": 1}
    with default_settings():
        net = MoEGPT(job.net.vocab_size, heads=4, experts=max(DEVICES), moe={"balance_factor": 0.01}, **sizes)
    return Job(net, MoELanguageModelLoss(), job.batches)


_STACK = "eight Dense layers without bias, tanh between them, 512 rows"
_SUBJECTS = (
    Subject("stack", "eight equal layers", _STACK, _stack, width=jobs.STACK_WIDTH, capacity_bytes=4 * 1024 * 1024),
    _network("dense", "digits", "two Dense layers on handwritten digits; 8 ranks cannot share 10 classes"),
    _network("convnet", "pictures", "two convolutions with batch norm on colour digits: small weights"),
    _network("transformer", "text", "a one-block GPT that learns to count in words: many small parameters"),
    Subject("experts", "GPT of experts", "a one-block GPT whose tokens travel to 8 experts", _experts, "text"),
    _network("embedding", "clicks", "tables of features and two dense layers"),
)
SUBJECTS = {subject.name: subject for subject in _SUBJECTS}


def get_subject(name: str) -> Subject:
    """The subject of that name. Raises ArgumentError for another one."""
    return named(SUBJECTS, name, "subject", "MemoryLab")
