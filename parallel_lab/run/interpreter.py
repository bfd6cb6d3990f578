"""One interpreter: a rank's program as a generator.

`rank_step(plan, rank, env)` does the local work of one training step and yields a `Request` wherever the plan has a message, `Start` and `Wait` where
it has one that travels while the rank computes; whoever drives the generator answers. The simulator drives all ranks in one process, a worker drives
its own and answers through shared memory.

`env` maps value names to this rank's arrays: parameters, optimizer states, inputs, and what the step makes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import ShapeError, message
from ..graph.ir import Instr
from ..layout import slice_text
from ..nn.amp import LOSS_SCALE
from ..plan import Plan
from ..plan_view import CLASS_NAMES
from ..slices import assemble
from .communicator import Request, Start, Wait

__all__ = ["Env", "Tick", "computing", "gather_value", "one_blas_thread", "rank_step", "slice_value", "step_inputs"]

Env = dict[str, np.ndarray]


class Tick:
    """Yielded after an instruction when the driver asked to step: which one has just run."""

    __slots__ = ("instr", "phase", "position")

    def __init__(self, phase: str, position: int, instr: Instr) -> None:
        self.phase, self.position, self.instr = phase, position, instr

    def __repr__(self) -> str:
        """Phase, position and line of the plan: `forward 3: matmul = AllReduce(matmul.partial)`."""
        name = self.instr.op_class or CLASS_NAMES.get(self.instr.kind) or self.instr.kind.title()
        return f"{self.phase} {self.position}: {self.instr.out} = {name}({', '.join(self.instr.ins)})"


@lru_cache(maxsize=1)
def _controller() -> Any:
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Compute with one BLAS thread: thread counts change the bits of large products, and ranks must not fight over cores."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def computing(plan: Plan) -> Generator[None]:
    """One BLAS thread; and no warnings of numpy about overflow if the plan has a loss scale, for then it handles overflow itself."""
    quiet = {} if all(state.kind != LOSS_SCALE for state in plan.states) else {"over": "ignore", "invalid": "ignore", "divide": "ignore"}
    with one_blas_thread(), np.errstate(**quiet):
        yield


def rank_step(
    plan: Plan,
    rank: int,
    env: Env,
    *,
    phases: Iterable[str] | None = None,
    step: int = 0,
    ticks: bool = False,
    observe: Callable[..., None] | None = None,
    show: Callable[[str], None] = print,
    empty: Callable[[tuple[int, ...], Any], np.ndarray] = np.empty,
    progress: Callable[[], None] | None = None,
) -> Generator[Request | Start | Wait | Tick, Any, Env]:
    """Run the programs of one step on `rank`, in the order of its stage's actions; `env` is changed in place and returned.

    phases   run only these programs
    step     how many steps were taken before: what random masks depend on
    show     receives the text of what `construct` prints
    ticks    also yield a Tick after every instruction (answered with None)
    empty    gives the memory of buckets: a communicator's, where other ranks can read them without a copy
    progress called after every local instruction while a message is on its way
    observe  called after every instruction with (phase, instruction, start, end, bytes, arrived): perf_counter seconds; the bytes of the array handed
             over to a message (0 for local work); of a wait when its message was complete, None of all others

    Values that nothing reads any more are dropped at once, so memory follows the plan.
    """
    stage = plan.stage_of(rank)
    env.update((name, value) for name, value in plan.scalars.items() if name not in env)
    env.update((i.name, np.asarray(step, i.dtype)) for i in plan.graph.inputs if i.role == "step")
    if phases is None or "backward" in phases:
        for _, gradient in plan.gradients:
            env.pop(gradient, None)  # that of the step before
    travelling, last_forward = 0, next((a for a in reversed(stage.actions) if a.program == "forward"), None)
    for action in stage.actions:
        phase = action.program
        if phases is not None and phase not in phases:
            continue
        dead = plan.last_uses[phase]
        for position, instr in stage.part(action):
            start, handed_over, handle = time.perf_counter(), 0, None
            if not instr.runs_on(rank):
                pass  # another rank's
            elif instr.is_communication:
                request = request_of(instr, rank, env)
                handed_over = 0 if request.value is None else request.value.nbytes
                if instr.kind == "start":
                    travelling += 1
                    env[instr.out] = yield Start(request)
                else:
                    env[instr.out] = yield request
            elif instr.kind == "wait":
                handle = env[instr.ins[0]]
                env[instr.out] = yield Wait(handle)
                travelling -= 1
            elif instr.kind == "concat":
                env[instr.out] = _side_by_side(instr, env, empty(plan.value(instr.out).shape, plan.value(instr.out).dtype))
            elif instr.kind == "print":
                env[instr.out] = env[instr.ins[0]]
                show(printed_text(plan, instr, rank, env[instr.out]))
            else:
                env[instr.out] = _local(instr, rank, env)
            if travelling and progress is not None:
                progress()
            if observe is not None and instr.runs_on(rank):
                end = time.perf_counter()
                observe(phase, instr, start, end, handed_over, None if handle is None else end if handle.end_s is None else handle.end_s)
            if ticks:
                yield Tick(phase, position, instr)
            else:
                for name in dead.get(position, ()):
                    env.pop(name, None)
        if action == last_forward and plan.forward_assignments:
            env.update({target: env[source] for target, source in plan.forward_assignments})
        if phase == "update":
            new = {target: env[source] for target, source in plan.assignments if plan.held_by(target, rank)}
            env.update(new)
    return env


_OF_REQUEST = frozenset(("dim", "split_dim", "concat_dim", "reduce", "window", "root", "shape", "dtype"))  # attributes of messages


def request_of(instr: Instr, rank: int, env: Env) -> Request:
    """The request that one communication instruction makes. A bucket's sum takes the bucket's place: nothing else reads it."""
    fields = {name: value for name, value in instr.attrs if name in _OF_REQUEST and value is not None}
    place, value = instr.origin.place, env[instr.ins[0]] if fields.get("root", rank) == rank else None
    out = value if instr.in_place else None
    return Request(instr.message, instr.group(rank), value, origin=f"{instr.out}" + (f" ({place})" if place else ""), out=out, **fields)


def _side_by_side(instr: Instr, env: Env, bucket: np.ndarray) -> np.ndarray:
    """The operands of a concat, each as (rows, its size / rows), joined in `bucket`."""
    at = 0
    for name in instr.ins:
        part = env[name].reshape(len(bucket), -1)
        bucket[:, at : at + part.shape[1]] = part
        at += part.shape[1]
    return bucket


def printed_text(plan: Plan, instr: Instr, rank: int, array: np.ndarray) -> str:
    """What a print instruction shows on one rank: whose slice it is, where the line stands, and the numbers."""
    value = plan.value(instr.ins[0])
    if value.layout is None:  # every rank runs the network on its own rows
        return f"rank {rank}: its own {instr.name} {value.shape}, printed at {instr.origin.place}\n{array}"
    index = slice_text(value.layout.slice_index(value.shape, rank), value.shape) if value.shape else ""
    return f"rank {rank}: {instr.name}{index} of {value.shape} ({value.layout}), printed at {instr.origin.place}\n{array}"


def _local(instr: Instr, rank: int, env: Env) -> np.ndarray:
    arrays = [env[name] for name in instr.ins]
    if instr.kind == "compute":
        op, attrs = instr.opdef, dict(instr.attrs)
        if instr.offset_axes:
            shapes = tuple(a.shape for a in arrays)
            labels = op.offset_labels(op.signature_for(shapes, attrs)) if op.infer_fn is None else ""
            sizes = op.part_sizes(shapes, attrs, labels)
            starts = tuple(instr.position(rank, axes) * size for axes, size in zip(instr.offset_axes, sizes, strict=True))
            attrs["offset"] = starts if len(starts) > 1 else starts[0]
        return _computed(instr, rank, arrays, attrs)
    if instr.kind == "reshape":
        return arrays[0].reshape(instr.attr("shape"))
    if instr.kind == "split":
        return np.ascontiguousarray(arrays[0][:, instr.attr("start") : instr.attr("stop")]).reshape(instr.attr("shape"))
    if instr.kind == "slice":
        dim = instr.attr("dim")
        part = arrays[0].shape[dim] // instr.group_size
        start = instr.position(rank) * part
        # a copy: a view would keep the whole operand alive after the plan has dropped it
        return np.array(arrays[0][(slice(None),) * dim + (slice(start, start + part),)], order="C")
    raise ShapeError(message(f"kind {instr.kind!r} cannot be run", where=f"instruction {instr.out!r}"))


def _computed(instr: Instr, rank: int, arrays: list[np.ndarray], attrs: dict[str, Any]) -> np.ndarray:
    """The operator's result. What it refuses because of the numbers (an index outside, a label that is no class) is said with its place and rank."""
    try:
        return instr.opdef.compute(*arrays, **attrs)
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        place = instr.origin.place
        where = f"{instr.name!r} on rank {rank}" + (f" ({place})" if place else "")
        raise ShapeError(message(str(error), where=where)) from error


# ---- between full tensors and slices ----


def slice_value(plan: Plan, name: str, full: np.ndarray, rank: int) -> np.ndarray:
    """This rank's slice of a full tensor: a C-contiguous copy."""
    value = plan.value(name)
    full = np.asarray(full)
    if full.shape != value.shape:
        raise ShapeError(message(f"{name!r} has shape {full.shape}", where="slice_value", allowed=f"Its global shape {value.shape}"))
    if full.dtype != value.dtype and not np.can_cast(full.dtype, value.dtype, "same_kind"):
        hint = f"Convert it: astype({value.dtype!r})" if full.dtype.kind != "f" else "Class numbers are ints; or compile for floats"
        raise ShapeError(
            message(f"{name!r} is {full.dtype}", where="slice_value", allowed=f"{value.dtype}, for which the plan was compiled", hint=hint)
        )
    return np.array(full[value.layout.slice_index(value.shape, rank)], dtype=value.dtype, order="C")


def gather_value(plan: Plan, name: str, slices: list[np.ndarray]) -> np.ndarray:
    """The full tensor from every rank's slice; pending partial results are combined in rank order.

    Of a value that each rank has for itself (the loss in data_parallel mode), rank 0's; of one that a single rank holds, that one's (None for the
    others).
    """
    value, owner = plan.value(name), plan.owner_of(name)
    if owner is not None:
        return np.array(slices[owner])
    return assemble(slices, value.shape, value.layout)


def step_inputs(plan: Plan, rank: int, inputs: Iterable[Any]) -> Env:
    """This rank's part of one step's data, from the global batch, in the order `compile` was given it."""
    given = [np.asarray(x.asnumpy() if hasattr(x, "asnumpy") else x) for x in inputs]
    expected = plan.data_inputs
    if len(given) != len(expected):
        raise ShapeError(
            message(f"got {len(given)} inputs", where=f"plan {plan.graph.name}", allowed=f"{len(expected)}: {', '.join(i.name for i in expected)}")
        )
    return {i.name: slice_value(plan, i.name, x, rank) for i, x in zip(expected, given, strict=True)} | {
        name: slice_value(plan, name, array, rank) for name, array in plan.constant_arrays.items()
    }
