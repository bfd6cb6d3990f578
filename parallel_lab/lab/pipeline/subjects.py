"""The networks whose parts run on the stages of a pipeline.

    job = get_subject("stack").job(parts=8, micro_batches=16)
    plan = job.compile(schedule, strategy="one")           one program per stage, run in the schedule's order
    alone = job.compile(None)                              the same micro-batches on one device

A network has as many equal layers as it takes for every part to have the same number of them, at least LAYERS; a
micro-batch always has as many samples, so that more micro-batches make a larger batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import nn
from ...base.settings.current import default_settings
from ...cost.schedules import Schedule
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.initializer import Normal, initializer
from ...nn.models import GPT, LanguageModelLoss, tensor_parallel
from ...nn.tensor.parameter import Parameter
from ...ops.activation import relu
from ...ops.elementwise import add
from ...ops.linalg import matmul
from ..shared.jobs import Subject, named
from ..shared.problems import get_problem

LAYERS = 8  # at least; as many more as make the parts equal
STACK_WIDTH, STACK_ROWS = 256, 128  # about 0.5 ms for a layer's forward of a micro-batch: more than a message takes
INITIAL = 0.01  # standard deviation of the stack's initial weights
GPT_HIDDEN, GPT_SEQUENCES = 32, 4  # sequences of a micro-batch

# devices of a stage, by the name of the strategy inside it
STRATEGIES = {"one": 1, "batch": 2, "inner": 2}
STRATEGY_LABELS = {"one": "1 device", "batch": "2, batch split", "inner": "2, products split"}


class StackLayer(nn.Cell):
    """A product and a ReLU, added to what came in.  x: (rows, width) -> (rows, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = Parameter(initializer(Normal(INITIAL), [width, width]))
        self.matmul, self.relu, self.add = matmul.primitive(), relu.primitive(), add.primitive()

    def construct(self, x: Any) -> Any:
        return self.add(self.relu(self.matmul(x, self.weight)), x)


class StackNet(nn.Cell):
    """The quickstart's product and ReLU, many times.  x: (rows, width) -> (rows, width)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.CellList([StackLayer(width) for _ in range(layers)])

    def construct(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


@dataclass(frozen=True, eq=False)
class Job:
    """A network with equal parts, ready to be compiled and trained; `batches` are global inputs of one step each.

    parts   of the network;  micro_batches: pieces of a batch
    make    a fresh network of so many blocks (`net.blocks`), with the strategy of that name in it
    """

    parts: int
    micro_batches: int
    make: Callable[[int, str], nn.Cell]
    loss: Callable[[], nn.Cell]
    optimizer: Callable[[list[Parameter]], nn.Optimizer]
    batches: tuple[tuple[np.ndarray, ...], ...]

    def compile(
        self, schedule: Schedule | None, strategy: str = "one", recompute: tuple[int, ...] = ()
    ) -> tuple[Plan, nn.Cell, nn.Optimizer]:
        """The plan that runs the schedule, its network and its optimizer; None: all micro-batches on one device.

        recompute   parts whose layers are recomputed in backward
        """
        layers = layers_of(self.parts)
        with default_settings():
            net = self.make(layers, strategy if schedule is not None else "one")
            optimizer = self.optimizer(net.trainable_params())
            how: dict[str, Any] = {"device_num": 1}
            if schedule is not None:
                part_of = [number * self.parts // layers for number in range(layers)]
                twice = self.parts < sum(map(len, schedule.holds))
                where = {k: rank for rank, mine in enumerate(schedule.holds) for k in (mine[:1] if twice else mine)}
                for block, part in zip(net.blocks, part_of, strict=True):
                    block.pipeline_stage = where[part]
                    if part in recompute:
                        block.recompute()
                stages = len(schedule)
                how = {"device_num": stages * STRATEGIES[strategy], "pipeline_stages": stages}
                how["schedule"] = schedule
                how["pipeline_interleave"] = self.parts > stages
            how |= {"grad_accumulation_step": self.micro_batches, "dataset_strategy": "full_batch"}
            plan = compile_network(net, *self.batches[0], loss=self.loss(), optimizer=optimizer, **how)
            return plan, net, optimizer


def layers_of(parts: int) -> int:
    """Layers of the network: as few as make the parts equal, at least LAYERS.

    >>> layers_of(4), layers_of(6), layers_of(16)
    (8, 12, 16)
    """
    return parts * -(-LAYERS // parts)


def _stack(layers: int, strategy: str) -> nn.Cell:
    net = StackNet(STACK_WIDTH, layers)
    for block in net.blocks if strategy == "inner" else ():
        block.matmul.shard(((1, 2), (2, 1)))
    return net


def _stack_job(parts: int, micro_batches: int) -> Job:
    draw = np.random.default_rng(7)
    x = draw.normal(size=(micro_batches * STACK_ROWS, STACK_WIDTH)).astype(np.float32)
    y = np.tanh(x @ draw.normal(size=(STACK_WIDTH, STACK_WIDTH)).astype(np.float32) / 8)

    def optimizer(parameters: list[Parameter]) -> nn.Optimizer:
        return nn.Momentum(parameters, 8.0 / micro_batches, 0.9)  # gradients of micro-batches are added up

    return Job(parts, micro_batches, _stack, nn.MSELoss, optimizer, ((x, y),))


def _gpt(layers: int, strategy: str) -> nn.Cell:
    sequence = get_problem("text").batches[0][0].shape[1]
    vocabulary = get_problem("text").in_dim
    net = GPT(vocabulary, hidden=GPT_HIDDEN, layers=layers, heads=4, seq_length=sequence, inner=2 * GPT_HIDDEN)
    return tensor_parallel(net, 1, 2) if strategy == "inner" else net


def _gpt_job(parts: int, micro_batches: int) -> Job:
    ids, following = (np.concatenate(columns) for columns in zip(*get_problem("text").batches, strict=True))
    rows = np.arange(micro_batches * GPT_SEQUENCES) % len(ids)

    def optimizer(parameters: list[Parameter]) -> nn.Optimizer:
        return nn.Adam(parameters, 0.01)

    return Job(parts, micro_batches, _gpt, LanguageModelLoss, optimizer, ((ids[rows], following[rows]),))


_STACK = f"products of width {STACK_WIDTH} with a ReLU, as in the quickstart; a micro-batch has {STACK_ROWS} rows"
_GPT = f"GPT blocks of width {GPT_HIDDEN} that count in words; a micro-batch has {GPT_SEQUENCES} sequences"
_SUBJECTS = (Subject("stack", "stack", _STACK, _stack_job), Subject("gpt", "GPT", _GPT, _gpt_job))
SUBJECTS = {subject.name: subject for subject in _SUBJECTS}


def get_subject(name: str) -> Subject:
    """The subject of that name. Raises ArgumentError for another one."""
    return named(SUBJECTS, name, "net", "PipelineLab")
