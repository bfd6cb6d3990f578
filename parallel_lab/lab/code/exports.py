"""What each lab's setting is in MindSpore, PyTorch and JAX: `code_of_strategies` and so on give all three as text.

code_of_fusion(...)["torch"]          a program, or in words why PyTorch has no such form
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...base.errors import ParallelLabError
from ...base.settings.config import FUSION_THRESHOLD_MB
from .jax_code import jax_code
from .mindspore_code import mindspore_code
from .program import LABELS, NoForm, Program
from .torch_code import ddp_code, dtensor_code, fsdp_code

STEPS = 8  # of a program

Codes = dict[str, str]


def in_words(target: str, make: Callable[[], str]) -> str:
    """A program, or a comment with the reason why it is missing."""
    try:
        return make()
    except ParallelLabError as error:
        return f"# {LABELS[target]} has no form of this setting.\n# {error}\n"


def is_program(text: str) -> bool:
    """Whether a text of `in_words` is a program."""
    return text.startswith('"""')


def _all(**makers: Callable[[], str]) -> Codes:
    return {target: in_words(target, make) for target, make in makers.items()}


STEP_CELL = "nn.TrainOneStepCell(net, optimizer)"
AUTO = [f'train = AutoParallel({STEP_CELL}, parallel_mode="semi_auto")', 'train.dataset_strategy("full_batch")']


def code_of_strategies(program: Program, *, fused: bool = False, sliced: bool = False) -> Codes:
    """The Strategy Lab's setting.  fused: gradient sums in few messages;  sliced: optimizer parallel"""
    wrapped, missing = list(AUTO), []
    if fused:
        wrapped.append('train.comm_fusion({"allreduce": {"mode": "auto", "config": None}})')
        missing.append("sums of gradients in few messages")
    if sliced:
        wrapped.append('train.hsdp(threshold=0, optimizer_level="level1")')
        missing.append("a slice of parameter and optimizer states per rank")
    notes = [f"Not in it, for it has no setting of its own: {' and '.join(missing)}."] if missing else []
    return _all(
        mindspore=lambda: mindspore_code(program, STEPS, [], wrapped),
        torch=lambda: dtensor_code(program, STEPS, notes),
        jax=lambda: jax_code(program, STEPS, notes),
    )


NO_BUCKETS = (
    "JAX has no setting for fusion: XLA combines messages by itself, up to a threshold of its own",
    "(--xla_gpu_all_reduce_combine_threshold_bytes on GPUs).",
)


def code_of_fusion(
    program: Program, whole: Program, mode: str, setting: Mapping[str, Any], ids: Mapping[str, int], local: bool
) -> Codes:
    """The Fusion Lab's setting.  whole: the program on global shapes with the batch split;  local: data_parallel"""
    config = dict(setting) if setting else {"openstate": False}
    settings, wrapped = [], list(AUTO)
    if mode == "ids":
        numbers = ", ".join(f'"{name}": {number}' for name, number in ids.items())
        wrapped.insert(0, f"fusion = {{{numbers}}}")
        wrapped[1:1] = [
            "for parameter in net.trainable_params():",
            "    parameter.comm_fusion = fusion[parameter.name]",
        ]
    elif not local:
        wrapped.append(f"train.comm_fusion({config!r})".replace("'", '"'))
    if local:
        argument = "" if mode == "ids" else f", comm_fusion={config!r}".replace("'", '"')
        settings = [f'ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True{argument})']
        wrapped = [*wrapped[: -len(AUTO)], f"train = {STEP_CELL}"]

    def torch() -> str:
        if mode in ("index", "ids"):
            what = f"fusion by {'position' if mode == 'index' else 'comm_fusion of each parameter'}"
            raise NoForm(what, where="DDP", allowed="A bucket ends where bucket_cap_mb is full, not where one says")
        size_mb = config["allreduce"]["config"] if mode == "size" else FUSION_THRESHOLD_MB
        if mode == "size" and not size_mb:
            raise NoForm("a threshold of 0 MB", where="DDP", allowed="bucket_cap_mb above 0")
        return ddp_code(program, STEPS, {"off": None, "each": 1e-6}.get(mode, size_mb))

    return _all(
        mindspore=lambda: mindspore_code(program, STEPS, settings, wrapped, rows=local),
        torch=torch,
        jax=lambda: jax_code(_global(whole, local), STEPS, NO_BUCKETS),
    )


def _global(program: Program, local: bool) -> Program:
    """The program, if one that computes on global shapes gives the same numbers."""
    if local and any(step.op == "batch_norm" for step in program.steps):
        what = "in data_parallel mode every rank normalises its own rows; a jitted step normalises all"
        raise NoForm(what, where="code for JAX")
    return program


def code_of_memory(program: Program, whole: Program, settings: Any, context: str) -> Codes:
    """The Memory Lab's setting.  settings: its `Settings`;  context: the lines that set MindSpore's context"""
    level, local, parts = settings.level, settings.parallel_mode == "data_parallel", settings.accumulation
    lines = context.replace("mindspore.", "ms.").splitlines()
    inner = "net" if parts == 1 else f"nn.GradAccumulation(net, {parts})"
    notes = []
    if level.startswith("level") and settings.threshold_kb:
        notes = [f"FSDP2 shards every parameter; MindSpore leaves those under {settings.threshold_kb} KB whole."]

    def torch() -> str:
        if level == "grouping":
            notice = [
                "ZeroRedundancyOptimizer deals parameters out by rules of its own: which rank has which may differ."
            ]
            return ddp_code(program, STEPS, FUSION_THRESHOLD_MB, parts=parts, dealt=True, notes=notice)
        if level == "off":
            return ddp_code(program, STEPS, FUSION_THRESHOLD_MB, parts=parts)
        every = level != "level1" or settings.accumulation_shard
        return fsdp_code(program, STEPS, level == "level3", settings.shard_size, parts, every, notes)

    def jax() -> str:
        if level != "off":
            what = "shares of parameters that ranks gather for a while"
            allowed = "A NamedSharding says how a parameter lies; when it is gathered is XLA's choice"
            raise NoForm(what, where="code for JAX", allowed=allowed)
        if parts > 1 and program.has("experts"):
            what = "micro-batches with a balance loss, which depends on whose tokens are counted together"
            raise NoForm(what, where="code for JAX", allowed="One batch: micro-batches are parts of each rank's rows")
        return jax_code(_global(whole, local), STEPS, parts=parts)

    wrapped = [f"train = {STEP_CELL.replace('net', inner, 1)}"]
    return _all(mindspore=lambda: mindspore_code(program, STEPS, lines[:1], wrapped, rows=True), torch=torch, jax=jax)
