"""What the compiler makes of a block, once for all equal ones: the work of a pipeline part as a list of numbers.

A GPT of three blocks on three pipeline stages is compiled with the real compiler, under the tensor strategy of
`nn.models.tensor_parallel`, for 2 t devices (two copies, so that the plan says what copies send each other):

    first    embedding and a block          read from stage 0
    middle   a block                        stage 1
    last     a block, the scores, the loss  stage 2

A part of n blocks is its kind and (n - 1) times `middle`. A group of the plan that reaches both copies reaches all d
of them in a larger one; slices of a rank do not depend on d. Among micro-batches that are powers of two, whose rows
divide alike, all numbers are affine, so that one and two sequences are compiled (two and four where the sequence is
split: that of one needs fewer reshapes). A network of 96 layers on 4096 devices costs what these cost, and the clock
over its parts is that of the whole plan (tests/cost/test_planner_point.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from ... import nn
from ...graph.actions import Stage
from ...graph.compiler import compile_network
from ...graph.instr import Instr
from ...graph.plan import Plan
from ...nn.models.gpt import GPT, LanguageModelLoss
from ...nn.models.strategies import tensor_parallel
from ..memory import predict_memory
from ..time import instr_flops, is_border, message_bytes, takes_border, touched_bytes
from .models import Transformer
from .point import PlanPoint

FLOAT_BYTES = 4  # of the compiled network's numbers


@dataclass(frozen=True)
class Message:
    """kind, bytes of the operand, ranks that split a layer among its members, whether all copies are members.

    hidden  it travels while the product that reads it computes another gradient, as in Megatron-LM, and takes no time
    """

    kind: str
    size_bytes: float
    tensor: int
    copies: bool
    hidden: bool = False


@dataclass(frozen=True)
class Work:
    """Instructions in a row: operations and bytes touched of each local one, and messages."""

    flops: np.ndarray
    touched_bytes: np.ndarray
    messages: tuple[Message, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """The work of a pipeline part with one block, and what it holds, in float32. Compiled once: equals only itself.

    ahead               of forward, what is done before another part's result is needed
    forward, backward   up to the message to the next part;  behind: of backward, what follows that message
    last                messages between copies, behind the last backward;  update;  scalars: of it, once a rank
    parameters          numbers in a rank's slices;  input_bytes: of one micro-batch
    kept_bytes          of a micro-batch from forward to backward
    spare_bytes         in addition, at each instruction of forward and backward;  update_bytes: of the update
    border_bytes        of what goes to the next part, and comes back as a gradient
    """

    ahead: Work
    forward: Work
    backward: Work
    behind: Work
    last: Work
    update: Work
    scalars: Work
    parameters: int
    input_bytes: float
    kept_bytes: int
    spare_bytes: np.ndarray
    update_bytes: np.ndarray
    border_bytes: int


@dataclass(frozen=True)
class Block:
    """Parts of a compiled network."""

    first: Part
    middle: Part
    last: Part


Terms = tuple[tuple[float, Part], ...]  # how often, what


def parts_of(model: Transformer, point: PlanPoint, blocks: int) -> dict[str, Terms]:
    """Parts of `blocks` blocks of a point: "first", "middle" and "last", or "only"."""
    shape = replace(model, layers=1, name="", source="")
    options: dict[str, Any] = {"recompute": point.recompute, "copies": point.data > 1}
    options["sequence"] = point.sequence_parallel
    if point.stages == 1:
        options["sums"] = point.micro_batches > 1
        sizes = (replace(shape, layers=n) for n in (1, 2))
        one, two = (compile_single(size, point.tensor, point.micro_batch, **options) for size in sizes)
        return {"only": ((2 - blocks, one), (blocks - 1, two))}
    block = compile_block(shape, point.tensor, point.micro_batch, **options)
    more = (blocks - 1, block.middle)
    return {"first": ((1, block.first), more), "middle": ((blocks, block.middle),), "last": ((1, block.last), more)}


def compile_single(
    model: Transformer,
    tensor: int,
    micro_batch: int,
    *,
    recompute: str,
    copies: bool,
    sums: bool,
    sequence: bool = False,
) -> Part:
    """A network on one stage.  sums: whether gradients of several micro-batches are added up."""
    how = _How(model, tensor, micro_batch, recompute=recompute, copies=copies, sequence=sequence, sums=sums)
    return _parts(how)[0]


def compile_block(
    model: Transformer, tensor: int, micro_batch: int, *, recompute: str, copies: bool, sequence: bool
) -> Block:
    """The three kinds of parts.

    recompute  "none", "attention" (the Cell of q, k, v, scores and projection runs again), "full": the block does
    copies     whether there are other copies of the network; without, no group reaches beyond the t ranks
    sequence   whether what lies outside of the products is split along the sequence

    Raises what the compiler raises: t no power of two, heads that it does not divide.
    """
    three = replace(model, layers=3)
    how = _How(three, tensor, micro_batch, 3, recompute=recompute, copies=copies, sequence=sequence)
    return Block(*_parts(how))


@dataclass(frozen=True)
class _How:
    """What is compiled: a network on 1 or 3 stages; the rest as `compile_block` and `compile_single` say."""

    model: Transformer
    tensor: int
    micro_batch: int
    stages: int = 1
    recompute: str = "none"
    copies: bool = False
    sequence: bool = False
    sums: bool = True

    def read(self, **more: bool) -> tuple[Part, ...]:
        settings: dict[str, Any] = {"recompute": self.recompute, "sequence": self.sequence, "stages": self.stages}
        settings |= {"micro_batches": 4 if self.sums else 1, **more}
        plan = compile_gpt(self.model, self.tensor, self.micro_batch, 1 + self.copies, **settings)
        return tuple(read_part(plan, stage, self.tensor, 1 + self.copies) for stage in plan.stages)


@lru_cache(maxsize=1024)
def _parts(how: _How) -> tuple[Part, ...]:
    """The parts of all stages; what follows from others exactly is not compiled."""
    unit, model, t = 1 + how.sequence, how.model, how.tensor
    if how.micro_batch > 2 * unit and not how.micro_batch & (how.micro_batch - 1):
        one, two = (_parts(replace(how, micro_batch=b)) for b in (unit, 2 * unit))
        return _affine(one, two, how.micro_batch // unit)
    cut = (model.heads, model.hidden, model.seq_length, model.vocab_size)
    if t > 4 and not t & (t - 1) and not any(size % t for size in cut):
        two, four = (_parts(replace(how, tensor=n)) for n in (2, 4))
        return _shared_by(two, four, t)
    states = _updates(_How(model, t, 1, how.stages, sequence=how.sequence))
    return tuple(
        replace(part, update=of.update, scalars=of.scalars, update_bytes=of.update_bytes)
        for part, of in zip(how.read(updates=False), states, strict=True)
    )


@lru_cache(maxsize=64)
def _updates(how: _How) -> tuple[Part, ...]:
    """Parts with their update: most instructions of a plan, and the same ones whatever else is done with the blocks."""
    return how.read()


def _shared_by(two: Any, four: Any, tensor: int) -> Any:
    """What is `two` on 2 ranks and `four` on 4, on more: a rank holds all of a number, or its share of it."""
    if isinstance(two, Message):
        size = _shared_by(two.size_bytes, four.size_bytes, tensor)
        return replace(two, size_bytes=size, tensor=1 if four.tensor == 1 else tensor)
    if isinstance(two, Part | Work):
        pairs = {f.name: (getattr(two, f.name), getattr(four, f.name)) for f in fields(two)}
        return replace(two, **{name: _shared_by(*pair, tensor) for name, pair in pairs.items()})
    if isinstance(two, tuple):
        return tuple(_shared_by(a, b, tensor) for a, b in zip(two, four, strict=True))
    less = (two - four) * (tensor - 4)
    return four - (less // tensor if isinstance(less, int) else less / tensor)


def _affine(one: Any, two: Any, at: int) -> Any:
    """What is `one` at 1 and `two` at 2, at another number."""
    if isinstance(one, Part | Work | Message):
        pairs = {f.name: (getattr(one, f.name), getattr(two, f.name)) for f in fields(one)}
        return replace(one, **{name: _affine(*pair, at) for name, pair in pairs.items()})
    if isinstance(one, tuple):
        return tuple(_affine(a, b, at) for a, b in zip(one, two, strict=True))
    return one if isinstance(one, str | bool) else one + (at - 1) * (two - one)


def compile_gpt(
    model: Transformer,
    tensor: int,
    micro_batch: int,
    data: int,
    *,
    stages: int = 1,
    micro_batches: int = 1,
    recompute: str = "none",
    sequence: bool = False,
    gather_again: bool = True,
    layers: int | None = None,
    updates: bool = True,
    chunks: int = 1,
    schedule: str = "1f1b",
    **settings: Any,
) -> Plan:
    """The whole plan of a model with Adam, for data * tensor * stages devices.

    sequence  split the sequence outside of the products;  gather_again: for backward, as Megatron-LM does
    layers    other than the model's;  updates: without, the plan ends with the gradients
    settings  further ones of `compile_network`
    """
    layers = model.layers if layers is None else layers
    sizes = {"hidden": model.hidden, "heads": model.heads, "seq_length": model.seq_length}
    split = {"sequence": sequence and tensor > 1, "gather_again": sequence and tensor > 1 and gather_again}
    net = tensor_parallel(GPT(model.vocab_size, layers=layers, **sizes), data, tensor, **split)
    options = dict(settings)
    for at, block in enumerate(net.blocks):
        if stages > 1:
            block.pipeline_stage = at * stages * chunks // layers % stages
        if recompute == "full":
            block.recompute()
        elif recompute == "attention":
            block.attention.recompute()
    if stages > 1:
        options |= {"pipeline_stages": stages, "schedule": schedule}
    if micro_batches > 1:
        options["grad_accumulation_step"] = micro_batches
    # its shape and dtype count, and its elements take no memory
    ids = np.broadcast_to(np.int32(0), (data * micro_batch * micro_batches, model.seq_length))
    options |= {"device_num": data * tensor * stages, "dataset_strategy": "full_batch"}
    optimizer = nn.Adam(net.trainable_params()) if updates else None
    return compile_network(net, ids, ids, loss=LanguageModelLoss(), optimizer=optimizer, **options)


# ---- reading a stage ----


def read_part(plan: Plan, stage: Stage, tensor: int, data: int) -> Part:
    """The work of a stage of a plan of `compile_gpt`, and what it holds."""
    own = tuple(i for i in plan.graph.inputs if i.name in plan.value_table and plan.held_by(i.name, stage.first))

    def work(instrs: Iterable[Instr]) -> Work:
        return _work(plan, instrs, stage, tensor)

    forward = [i for i in stage.program("forward") if not i.once]
    update = stage.program("update")
    scalars = [i for i in update if i.name not in {given.name for given in own}]
    once = [i for i in stage.program("backward") if i.once == "last" or (i.is_communication and i.carried)]
    backward = [i for i in stage.program("backward") if i not in once]
    sends = [at for at, i in enumerate(backward) if is_border(i) and i.attr("message", i.message) == "send"]
    cut = sends[0] if sends else len(backward)
    borders = [i for i in (*forward, *backward) if is_border(i) and i.ins]
    memory = predict_memory(plan, rank=stage.first)
    kept_bytes = memory.kept_bytes
    state_bytes = memory.params_bytes + memory.optimizer_bytes + memory.inputs_bytes
    busy = [p for p in memory.timeline if p.phase != "update"]
    if plan.graph.micro_batches > 1:  # every sum is there, and as many micro-batches as there are stages from here on
        held_bytes = memory.grads_bytes + kept_bytes * (len(plan.stages) - plan.stages.index(stage))
        spare = [p.total_bytes - state_bytes - held_bytes for p in busy]
    else:
        spare = [p.by_kind["workspace"] + p.by_kind["gathered"] for p in busy]
    extra = [p.total_bytes - state_bytes - memory.grads_bytes for p in memory.timeline if p.phase == "update"]
    return Part(
        ahead=work(forward[: next((at for at, i in enumerate(forward) if takes_border(i)), 0)]),
        forward=work(forward),
        backward=work(backward[:cut]),
        behind=work(backward[cut:]),
        last=work(once),
        update=work(i for i in update if i not in scalars),
        scalars=work(scalars),
        parameters=sum(plan.value(i.name).slice_bytes for i in own if i.role == "parameter") // FLOAT_BYTES,
        input_bytes=memory.inputs_bytes / plan.graph.micro_batches / data,
        kept_bytes=kept_bytes,
        spare_bytes=np.array(spare, float),
        update_bytes=np.array(extra, float),
        border_bytes=max((message_bytes(plan, i) for i in borders), default=0),
    )


def _work(plan: Plan, instrs: Iterable[Instr], stage: Stage, tensor: int) -> Work:
    rows, messages = [], []
    again = {node.name for node in plan.graph.nodes if dict(node.recompute).get("operands")}
    for instr in instrs:
        if is_border(instr) or not instr.runs_on(stage.first) or instr.kind == "wait":
            continue
        if instr.is_communication:
            group = [rank - stage.first for rank in instr.group(stage.first)]
            within, copies = len({rank % tensor for rank in group}), len({rank // tensor for rank in group}) > 1
            hidden = instr.name in again and instr.origin.made_by == "recompute"
            messages.append(Message(instr.message, message_bytes(plan, instr), within, copies, hidden))
            continue
        if instr.name in again and instr.origin.made_by == "recompute":
            continue  # the gathered rows in another shape
        rows.append((instr_flops(plan, instr), touched_bytes(plan, instr)))
    flops, touched = np.array(rows, float).reshape(-1, 2).T
    return Work(flops, touched, tuple(messages))
