"""How much a compiled step computes, and how much of a device's peak that uses: MindSpore's counts of flops.

    full_model, full_hardware, shard_model, shard_hardware, dynamic = flops_collection(net.current_phase)
    model.train(2, dataset, callbacks=[FlopsUtilizationCollector(dataset.get_dataset_size(), computility=10e9)])

    full       the undivided step           shard      what one device computes of it
    model      what the step asks for       hardware   with what is computed again for backward

Only products count, forward and backward: MatMul, BatchMatMul, Conv2D, FlashAttentionScore. The gradient of the latter
is twice its forward work for the model, three times for the hardware, which computes the scores again. MFU is model
flops / (seconds of a step * peak of the devices), HFU the same of hardware flops. Rules: MindSpore 2.10,
train.FlopsUtilizationCollector and common.api.flops_collection. Counts of one instruction: `cost/time.py`.
"""

from __future__ import annotations

import inspect
import os
import time
from functools import lru_cache
from math import floor
from pathlib import Path
from typing import Any, NamedTuple

from ..base.checks import checked, flag, integer, number
from ..base.errors import ArgumentError
from ..base.hooks import current_world
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.current import get_context
from ..base.settings.tables import GRAPH_MODE
from ..cost.time import instr_flops
from ..graph.compiler import compile_program
from ..graph.instr import Instr
from ..graph.plan import Plan, Stage
from ..graph.virtual_output import compile_forward
from ..layout.tensor_layout import TensorLayout
from ..ops.machine.opdef import OPS
from ..train.callbacks import Callback, RunContext, params_of
from ._executor import cell_graph_executor

__all__ = ["FlopsUtilizationCollector", "flops_collection"]

PRODUCTS = ("MatMul", "BatchMatMul", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "FlashAttentionScore")
ATTENTION_GRADIENT, OF_MODEL, OF_HARDWARE = "FlashAttentionScoreGrad", 2, 3  # times the forward work


class Flops(NamedTuple):
    """What one step computes, in the order of MindSpore's tuple."""

    full_model: int
    full_hardware: int
    shard_model: int
    shard_hardware: int

    def plus(self, other: Flops) -> Flops:
        """The sums of both."""
        return Flops(*(a + b for a, b in zip(self, other, strict=True)))


def stage_flops(plan: Plan, stage: Stage) -> Flops:
    """Those of one pipeline stage, all micro-batches of a step together."""
    total = Flops(0, 0, 0, 0)
    for action in stage.actions:
        for _, instr in stage.part(action):
            shard_model, shard_hardware = _of_instr(plan, instr)
            if shard_hardware:
                placed = (plan.value(name).layout for name in (*instr.ins, *instr.kept))
                split = plan.config.parallel_mode in SHARDED_MODES  # elsewhere each device has its own rows
                times = _parts(tuple(layout for layout in placed if layout is not None)) if split else stage.count
                total = total.plus(Flops(times * shard_model, times * shard_hardware, shard_model, shard_hardware))
    return total


def _of_instr(plan: Plan, instr: Instr) -> tuple[int, int]:
    """What it computes on one device, for the model and for the hardware."""
    if instr.op_class == ATTENTION_GRADIENT:
        shapes = tuple(plan.value(name).slice_shape for name in instr.ins[1:])  # behind the gradient that comes
        forward = OPS["flash_attention"].work_flops(shapes, dict(instr.attrs))
        return OF_MODEL * forward, OF_HARDWARE * forward
    flops = instr_flops(plan, instr) if instr.op_class in PRODUCTS else 0
    return (0 if instr.origin.made_by == "recompute" else flops), flops


@lru_cache(maxsize=4096)
def _parts(layouts: tuple[TensorLayout, ...]) -> int:
    """How many devices do different parts of the work whose operands and results lie like that; others repeat it."""
    ranks = range(layouts[0].device_num if layouts else 1)
    return len({tuple(one.slice_numbers(rank) for one in layouts) for rank in ranks})


def flops_collection(phase: str = "train") -> tuple[int, int, int, int, bool]:
    """(full model, full hardware, shard model, shard hardware flops, whether a size was unknown) of what was compiled
    under a phase, as the rank that it was compiled for runs it: of its pipeline stage. Raises ArgumentError.
    """
    record = cell_graph_executor.record_of(phase)
    plan = record.compiled.plan
    return *stage_flops(plan, plan.stage_of(plan.config.global_rank)), record.has_unknown_sizes


class FlopsUtilizationCollector(Callback):
    """Prints the flops of a step, once, and after steps how much of the peak they use.

        Full model flops is 6400, Full hardware flops is 6400, Shard model flops is 6400, Shard hardware flops is 6400.
        Train per step time: 135.572 ms, mfu:0.47% hfu:0.47%

    data_size            print after every so many steps
    computility          peak of one device, in flops per second
    full_flops           use of all devices by the whole step; False: of this device by its part. Both are the same
                         where devices do equal work, and nothing twice
    enable_ma_collector  write files for a collector (`flops_rank_0.txt`, `time_step_rank_0.txt`) into the folder of the
                         variable MA_LOG_DIR, or the current one; with computility=1 nothing is printed

    In data_parallel the whole step is that of all ranks; with pipeline stages, of all stages.

    Raises ArgumentTypeError (a TypeError) for another type; ArgumentError (a ValueError) in PYNATIVE_MODE, which
    compiles nothing.
    """

    @checked(data_size=integer(1), computility=number(0, above=True), full_flops=flag, enable_ma_collector=flag)
    def __init__(
        self, data_size: int, computility: float = 1, full_flops: bool = True, enable_ma_collector: bool = False
    ) -> None:
        self.data_size, self.computility, self.full_flops = data_size, computility, full_flops
        self.ma, self.verbose = enable_ma_collector, not (computility == 1 and enable_ma_collector)
        self.full_model_flops = self.full_hardware_flops = self.shard_model_flops = self.shard_hardware_flops = 0
        self.mfu = self.hfu = 0.0  # of the last step
        self.mfu_calculated = False
        self.step_time = time.perf_counter()

    def step_begin(self, run_context: RunContext) -> None:
        self.step_time = time.perf_counter()

    def step_end(self, run_context: RunContext) -> None:
        params, ended_s = params_of(run_context), time.perf_counter()
        step_s = (ended_s - self.step_time) / (
            params.batch_num if params.dataset_sink_mode and params.mode == "train" else 1
        )
        rank = getattr(current_world(), "rank", 0)
        if not self.mfu_calculated:
            self._count(params, rank)
        devices = params.device_number if self.full_flops else 1
        model, hardware = (
            (self.full_model_flops, self.full_hardware_flops)
            if self.full_flops
            else (self.shard_model_flops, self.shard_hardware_flops)
        )
        self.mfu, self.hfu = (flops / (step_s * self.computility * devices) for flops in (model, hardware))
        if self.ma:
            said = f'time_monitor{{type="per_step_time", rank_id="{rank}"}} {step_s * 1e3}'
            _write(f"time_step_rank_{rank}.txt", [said])
        if self.verbose and params.cur_step_num % self.data_size == 0:
            used = " ".join(f"{name}:{floor(x * 1e4) / 1e2:.2f}%" for name, x in (("mfu", self.mfu), ("hfu", self.hfu)))
            print(f"{params.mode.title()} per step time: {step_s * 1e3:5.3f} ms, {used}", flush=True)

    def _count(self, params: Any, rank: int) -> None:
        """Count the flops of a step, once it has run."""
        plan = params.get("plan") or self._compiled(params)
        rank = plan.config.global_rank if current_world() is None else rank
        whole = Flops(0, 0, 0, 0)
        for stage in plan.stages:
            whole = whole.plus(stage_flops(plan, stage))
        own = stage_flops(plan, plan.stage_of(rank))
        self.full_model_flops, self.full_hardware_flops = whole[:2]
        self.shard_model_flops, self.shard_hardware_flops = own[2:]
        self.mfu_calculated = True
        kinds = ("model", own.shard_model), ("hardware", own.shard_hardware)
        if self.ma:
            said = [f'flops{{type="{kind}_flops", rank_id="{rank}"}} {flops}' for kind, flops in kinds]
            _write(f"flops_rank_{rank}.txt", said)
        if self.verbose:
            full = ("Full", whole[:2]), ("Shard", own[2:])
            parts = [
                f"{which} {kind} flops is {flops}"
                for which, counted in full[0 if self.full_flops else 1 :]
                for kind, flops in zip(("model", "hardware"), counted, strict=True)
            ]
            print(", ".join(parts) + ".", flush=True)

    def _compiled(self, params: Any) -> Plan:
        """The plan of a step that has run at once, on one device."""
        if get_context("mode") != GRAPH_MODE:
            what, hint = "nothing is compiled in PYNATIVE_MODE", "set_context(mode=GRAPH_MODE)"
            raise ArgumentError(what, where="FlopsUtilizationCollector", hint=hint)
        alone = {"parallel_mode": "stand_alone"}
        if params.mode == "train":
            return compile_program(params.train_network, *params.train_dataset_element, **alone).plan
        network = params.eval_network
        taken = len(inspect.signature(getattr(network, "construct", network)).parameters)  # without labels
        return compile_forward(network, *params.valid_dataset_element[:taken], **alone).plan


def _write(name: str, lines: list[str]) -> None:
    """Write lines for the collector, each with the time in milliseconds."""
    now_ms = round(time.time() * 1e3)
    text = "".join(f"{line} {now_ms}\n" for line in lines)
    (Path(os.environ.get("MA_LOG_DIR", ".")) / name).write_text(text, encoding="utf-8")
