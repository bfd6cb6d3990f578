"""Programs for PyTorch: DTensor for strategies, DDP for fusion, FSDP2 for the optimizer parallel.

    print(dtensor_code(program, steps=8))

All run with gloo on one machine. A loss is printed as the lab's is: of all rows, whatever ranks computed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...layout.tensor_layout import TensorLayout
from .forms import FORMS
from .program import RESERVED, NoForm, Program, Step, fresh
from .text import call, render

WHERE = "code for PyTorch"
# Operators whose DTensor rules do not cover what a strategy may split
NO_DTENSOR = {
    "convolution": "a convolution split along height or channels: DTensor exchanges no halo",
    "max_pool": "a pooling of split pictures",
    "batch_norm": "a batch norm whose sums run over ranks",
}
OPTIMIZERS = {"SGD": "torch.optim.SGD", "Momentum": "torch.optim.SGD"}  # the others are written out

OWN = ("Adam", "AdamWeightDecay", "Lamb")  # templates/torch_parts.jinja has their rules


def placements(layout: TensorLayout) -> str:
    """A layout as DTensor's placements: for every mesh dim what is split along it.

    >>> placements(TensorLayout((2, 4), ((1,), (0,))))
    '[Shard(0), Shard(1)]'

    Raises NoForm where a dim is split by mesh dims in another order than the mesh has them.
    """
    placed = ["Replicate()"] * len(layout.device_matrix)
    for dim, axes in enumerate(layout.tensor_map):
        axes = [axes] if isinstance(axes, int) else list(axes)
        places = [len(placed) - 1 - axis for axis in axes if axis >= 0]
        if places != sorted(places):
            what = f"dim {dim} is split by mesh dims {places}, the outer one last"
            raise NoForm(what, where=WHERE, allowed="DTensor splits a dim by mesh dims in their order")
        for place in places:
            placed[place] = f"Shard({dim})"
    return f"[{', '.join(placed)}]"


def expression(step: Step, ins: Sequence[str]) -> str:
    """What the step computes."""
    form = FORMS.get(step.op)
    if form is None:
        raise NoForm(f"operator {step.class_name} {step.name!r}", where=WHERE, hint="It is not written yet")
    return form.torch(ins, step.attrs)


def optimizer_line(program: Program, *, dealt: bool = False) -> str:
    """How PyTorch makes the optimizer. Raises NoForm for those it has no equal of.

    dealt   whole parameters are dealt out to ranks: each updates its own and sends them to the others
    """
    rates, name = program.rates, program.optimizer
    if name not in OPTIMIZERS and name not in OWN:
        what = f"MindSpore's {name} has no equal in torch.optim"
        raise NoForm(what, where=WHERE, allowed=f"One of {', '.join([*OPTIMIZERS, *OWN])}")
    arguments = [f"lr={rates['learning_rate']!r}"]
    if name == "Momentum":
        arguments.append(f"momentum={rates['momentum']!r}")
    if name in OWN:
        arguments += [f"betas=({rates['beta1']!r}, {rates['beta2']!r})", f"eps={rates['eps']!r}"]
    maker = OPTIMIZERS.get(name, name)
    if dealt:
        return call("optimizer = ZeroRedundancyOptimizer", ["net.parameters()", maker, *arguments])
    return call(f"optimizer = {maker}", ["net.parameters()", *arguments])


@dataclass(frozen=True)
class Part:
    """A Module, or a function, of some steps, as `templates/torch_parts.jinja` writes it.

    made        lines that give a Module its Parameters;  arguments: of `forward`, or of the function
    taken       lines that make DTensors of a device's own slices;  lines: the steps;  result: what the last computes
    sent        how the result is sent on, as a call's end: ".full_tensor()"; "": it is returned as it is
    recomputed  `forward` is computed again in backward
    """

    name: str
    arguments: Sequence[str]
    lines: Sequence[str]
    result: str
    made: Sequence[str] = ()
    taken: Sequence[str] = ()
    sent: str = ""
    recomputed: bool = False


def part_of(program: Program, name: str, steps: Iterable[Step], ins: Sequence[str], *, moved: bool = False) -> Part:
    """A Module of some of the steps, or a function where they have no Parameter.

    ins    the values that it receives
    moved  values are DTensors, with their redistributions; otherwise they are tensors
    """
    names, steps = program.names, list(steps)
    start, moves = program.placements() if moved else ({}, [{}] * len(program.steps))
    used = {value for step in steps for value in step.ins}
    own = [p.name for p in program.parameters if p.name in used]
    known, made = {name: f"self.{names[name]}" for name in own}, []
    for parameter in own:
        array = f'initial["{parameter}"]'
        value = f"placed({array}, {placements(start[parameter])})" if moved else f"torch.from_numpy({array})"
        made.append(f"{known[parameter]} = torch.nn.Parameter({value})")
    number, lines = {step.out: n for n, step in enumerate(program.steps)}, []
    for step in steps:
        for value, layout in moves[number[step.out]].items():
            target = names[value]
            source = known.pop(value, target)
            lines.append(f"{target} = {source}.redistribute(mesh, {placements(layout)})")
        args = [known.get(value, names.get(value, value)) for value in step.ins]
        lines.append(f"{names[step.out]} = {expression(step, args)}")
    return Part(name, [names[value] for value in ins], lines[:-1], lines[-1].split(" = ", 1)[1], made)


def imports(program: Program, *more: str) -> list[str]:
    """The lines that import what the program names."""
    functional = any("F." in expression(s, s.ins) or "attention(" in expression(s, s.ins) for s in program.steps)
    named = ["import torch.nn.functional as F"] if functional else []
    return ["import numpy as np", "import torch", "import torch.distributed as dist", *named, *more]


MESH = "from torch.distributed.device_mesh import init_device_mesh"
DDP = "from torch.nn.parallel import DistributedDataParallel"
ZERO = "from torch.distributed.optim import ZeroRedundancyOptimizer"


def how(program: Program) -> str:
    """The command that runs it."""
    return f"torchrun --nproc-per-node {program.devices} program.py"


def dtensor_code(program: Program, steps: int, notes: Sequence[str] = ()) -> str:
    """The strategies as DTensor placements.  notes: what is not in it

    Raises NoForm with what DTensor has no form for.
    """
    for step in program.steps:
        split = any(layout.tensor_map and any(map(_splits, layout.tensor_map[1:])) for layout in step.layouts)
        if step.op in NO_DTENSOR and (split or step.op == "batch_norm"):
            raise NoForm(f"{step.name!r}: {NO_DTENSOR[step.op]}", where=WHERE)
    start, _ = program.placements()
    return render(
        "torch_dtensor",
        program,
        how(program),
        imports(program, MESH, "from torch.distributed.tensor import {words}distribute_tensor"),
        notes,
        net=part_of(program, "Net", program.steps, program.inputs, moved=True),
        optimizer=optimizer_line(program),
        fed=[placements(start[name]) for name in program.inputs],
        steps=steps,
    )


# ---- ranks that hold whole networks, or shares of every parameter ----


def layered(program: Program) -> Part:
    """A Module whose operators with parameters are Modules of their own."""
    names, made, lines = program.names, [], []
    short = {p.name: fresh(p.name.rpartition(".")[2] or p.name, RESERVED) for p in program.parameters}
    for step in program.steps:
        own = [value for value in step.ins if value in short]
        fed = list(dict.fromkeys(names[v] for v in step.ins if v not in short and v in names))
        text = expression(step, [short.get(value, names.get(value, value)) for value in step.ins])
        if own:
            values = [f'{short[value]}=initial["{value}"]' for value in own]
            arguments = ", ".join([*fed, *(short[value] for value in own)])
            made.append(call(f"self.{names[step.out]} = Layer", [f"lambda {arguments}: {text}", *values]))
            text = f"self.{names[step.out]}({', '.join(fed)})"
        lines.append(f"{names[step.out]} = {text}")
    return Part("Net", [names[value] for value in program.inputs], lines[:-1], lines[-1].split(" = ", 1)[1], made)


def ddp_code(
    program: Program,
    steps: int,
    bucket_mb: float | None,
    *,
    parts: int = 1,
    dealt: bool = False,
    notes: Sequence[str] = (),
) -> str:
    """Gradients in DDP's buckets of so many MB; None: each by itself after backward, as without DDP.

    parts   micro-batches whose gradients are added up before they are sent;  dealt: as of `optimizer_line`
    """
    more = [*([ZERO] if dealt else []), *([] if bucket_mb is None else [DDP])]
    return render(
        "torch_rows",
        program,
        how(program),
        imports(program, *more),
        notes,
        manner="each" if bucket_mb is None else "ddp",
        net=part_of(program, "Net", program.steps, program.inputs),
        bucket_mb=bucket_mb,
        optimizer=optimizer_line(program, dealt=dealt),
        micro_batches=parts,
        steps=steps,
    )


def fsdp_code(
    program: Program, steps: int, reshard: bool, share: int, parts: int, every: bool, notes: Sequence[str] = ()
) -> str:
    """Parameters in shares, gathered again for backward if `reshard`.

    share   ranks that share a parameter;  parts: micro-batches whose gradients are added up;  every: gradients are
            reduced after each of them
    """
    share = share if 0 < share < program.devices else 0  # 0: all of them
    more = [*([MESH] if share else []), "from torch.distributed.fsdp import fully_shard"]
    return render(
        "torch_rows",
        program,
        how(program),
        imports(program, *more),
        notes,
        manner="fsdp",
        net=layered(program),
        share=share,
        reshard=reshard,
        optimizer=optimizer_line(program),
        micro_batches=parts,
        every=every,
        steps=steps,
    )


def _splits(axes: int | tuple[int, ...]) -> bool:
    return bool(axes) if isinstance(axes, tuple) else axes >= 0
