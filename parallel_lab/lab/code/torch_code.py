"""Programs for PyTorch: DTensor for strategies, DDP for fusion, FSDP2 for the optimizer parallel.

    print(dtensor_code(program, steps=8))

All run with gloo on one machine. A loss is printed as the lab's is: of all rows, whatever ranks computed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...layout.tensor_layout import TensorLayout
from .forms import FORMS
from .program import RESERVED, NoForm, Program, Step, fresh
from .text import beginning, block, call, initial_lines

WHERE = "code for PyTorch"
# Operators whose DTensor rules do not cover what a strategy may split
NO_DTENSOR = {
    "convolution": "a convolution split along height or channels: DTensor exchanges no halo",
    "max_pool": "a pooling of split pictures",
    "batch_norm": "a batch norm whose sums run over ranks",
}
OPTIMIZERS = {"SGD": "torch.optim.SGD", "Momentum": "torch.optim.SGD"}  # the others are written out: `OWN`

# Per optimizer: what its text says, and the lines that move `p` by `mean` and `square`, the means of gradients and of
# their squares
OWN = {
    "Adam": (
        "MindSpore's rule, which adds eps before the means are corrected; torch.optim.Adam adds it afterwards.",
        ["rate = lr * (1 - beta2**t) ** 0.5 / (1 - beta1**t)", "p.sub_(mean / (square.sqrt() + eps), alpha=rate)"],
    ),
    "AdamWeightDecay": (
        "MindSpore's rule, that of BERT: the means are not corrected as torch.optim.AdamW does.",
        ["p.sub_(mean / (square.sqrt() + eps), alpha=lr)"],
    ),
    "Lamb": (
        "A step as long as the parameter; torch.optim has none.",
        [
            "step = mean / (1 - beta1**t) / ((square / (1 - beta2**t)).sqrt() + eps)",
            "long, short = length(p), length(step)",
            "p.sub_(step, alpha=lr * (long / short if long and short else 1.0))",
        ],
    ),
}
OWN_CLASS = '''\
class {name}(torch.optim.Optimizer):
    """{text}"""

    def __init__(self, parameters, lr, betas, eps):
        super().__init__(parameters, {{"lr": lr, "betas": betas, "eps": eps}})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), eps, lr = group["betas"], group["eps"], group["lr"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(t=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["t"] += 1
                t, mean, square = state["t"], state["mean"], state["square"]
                mean.lerp_(p.grad, 1 - beta1)
                square.mul_(beta2).add_(p.grad * p.grad, alpha=1 - beta2)'''
LENGTH = """\
def length(values):  # of all values, of which a rank may have a share
    found = torch.linalg.vector_norm(values)
    return (found.full_tensor() if hasattr(found, "full_tensor") else found).item()"""


def placements(layout: TensorLayout) -> str:
    """A layout as DTensor's placements: for every mesh dim what is split along it.

    >>> placements(TensorLayout((2, 4), ((1,), (0,))))
    '[Shard(0), Shard(1)]'

    Raises NoForm where a dim is split by mesh dims in another order than the mesh has them.
    """
    found = ["Replicate()"] * len(layout.device_matrix)
    for dim, axes in enumerate(layout.tensor_map):
        axes = [axes] if isinstance(axes, int) else list(axes)
        places = [len(found) - 1 - axis for axis in axes if axis >= 0]
        if places != sorted(places):
            what = f"dim {dim} is split by mesh dims {places}, the outer one last"
            raise NoForm(what, where=WHERE, allowed="DTensor splits a dim by mesh dims in their order")
        for place in places:
            found[place] = f"Shard({dim})"
    return f"[{', '.join(found)}]"


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
    given = [f"lr={rates['learning_rate']!r}"]
    if name == "Momentum":
        given.append(f"momentum={rates['momentum']!r}")
    if name in OWN:
        given += [f"betas=({rates['beta1']!r}, {rates['beta2']!r})", f"eps={rates['eps']!r}"]
    made = OPTIMIZERS.get(name, name)
    if dealt:
        return call("optimizer = ZeroRedundancyOptimizer", ["net.parameters()", made, *given])
    return call(f"optimizer = {made}", ["net.parameters()", *given])


ATTENTION = """\
def attention(q, k, v, is_causal):  # (batch, sequence, heads, size)
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal).transpose(1, 2)


"""
ATTENTION_SPLIT = """\
def attention(q, k, v, is_causal):  # (batch, sequence, heads, size); split by batch and heads, each rank has its own
    where = q.placements
    q, k, v = (part.to_local().transpose(1, 2) for part in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return DTensor.from_local(out.transpose(1, 2), mesh, where)


"""


def helpers(program: Program, *, split: bool = False) -> list[str]:
    """Functions and classes that the program's lines call."""
    asked = any(step.op == "scaled_dot_product_attention" for step in program.steps)
    attention = (ATTENTION_SPLIT if split else ATTENTION).splitlines() if asked else []
    return [*attention, *optimizer_class(program)]


def optimizer_class(program: Program) -> list[str]:
    """The class that `optimizer_line` names, where PyTorch has none."""
    if program.optimizer not in OWN:
        return []
    text, update = OWN[program.optimizer]
    lines = [
        *OWN_CLASS.format(name=program.optimizer, text=text).splitlines(),
        *(f"{' ' * 16}{line}" for line in update),
    ]
    return [*([*LENGTH.splitlines(), "", ""] if any("length(" in line for line in update) else []), *lines, "", ""]


def module(
    program: Program, name: str, steps: Iterable[Step], ins: Sequence[str], made: str, moved: bool = False
) -> list[str]:
    """A Module of some of the steps.  ins: what it is given;  made: of a parameter, with {} for its name;  moved: with
    redistributions.
    """
    names, steps = program.names, list(steps)
    start = program.placements()[0] if moved else {}
    used = {value for step in steps for value in step.ins}
    own = [p for p in program.parameters if p.name in used]
    known = {p.name: f"self.{names[p.name]}" for p in own}
    init = ["super().__init__()"]
    for p in own:
        where = f", {placements(start[p.name])}" if moved else ""
        init.append(f"{known[p.name]} = torch.nn.Parameter({made.format(_quoted(p.name)).removesuffix(')')}{where}))")
    arguments = ", ".join(["self", *(names[value] for value in ins)])
    return [
        f"class {name}(torch.nn.Module):",
        *block(["def __init__(self):", *block(init)]),
        "",
        *block([f"def forward({arguments}):", *block(_run(program, steps, known, moved))]),
    ]


def function(program: Program, name: str, moved: bool = False) -> list[str]:
    """A function of the program's inputs, without parameters."""
    arguments = ", ".join(program.names[value] for value in program.inputs)
    return [f"def {name}({arguments}):", *block(_run(program, program.steps, {}, moved))]


def _run(program: Program, steps: Iterable[Step], known: dict[str, str], moved: bool) -> list[str]:
    """The lines of the steps, the last of which returns.  known: {parameter: what it is called}"""
    names, run = program.names, []
    moves = program.placements()[1] if moved else [{}] * len(program.steps)
    number = {step.out: n for n, step in enumerate(program.steps)}
    for step in steps:
        for value, layout in moves[number[step.out]].items():
            target = names[value]
            source = known.pop(value, target)
            run.append(f"{target} = {source}.redistribute(mesh, {placements(layout)})")
        args = [known.get(value, names.get(value, value)) for value in step.ins]
        run.append(f"{names[step.out]} = {expression(step, args)}")
    return [*run[:-1], f"return {run[-1].split(' = ', 1)[1]}"]


def imports(program: Program, *more: str) -> list[str]:
    """The lines that import what the program names."""
    functional = any("F." in expression(s, s.ins) or "attention(" in expression(s, s.ins) for s in program.steps)
    named = ["import torch.nn.functional as F"] if functional else []
    return ["import numpy as np", "import torch", "import torch.distributed as dist", *named, *more]


def how(program: Program) -> str:
    """The command that runs it."""
    return f"torchrun --nproc-per-node {program.devices} program.py"


BEGIN = ["torch.set_num_threads(1)", 'dist.init_process_group("gloo")']
STEP = ["optimizer.zero_grad()", "loss = net(*batch)", "loss.backward()", "optimizer.step()"]


def dtensor_code(program: Program, steps: int, notes: Sequence[str] = ()) -> str:
    """The strategies as DTensor placements.  notes: what is not in it

    Raises NoForm with what DTensor has no form for.
    """
    for step in program.steps:
        split = any(layout.tensor_map and any(map(_splits, layout.tensor_map[1:])) for layout in step.layouts)
        if step.op in NO_DTENSOR and (split or step.op == "batch_norm"):
            raise NoForm(f"{step.name!r}: {NO_DTENSOR[step.op]}", where=WHERE)
    start, _ = program.placements()
    placed = [f"placed(batch[{n}], {placements(start[name])})" for n, name in enumerate(program.inputs)]
    lines = [
        *initial_lines(program),
        "",
        *BEGIN,
        f'mesh = init_device_mesh("cpu", {program.device_matrix})',
        "",
        "",
        "def placed(values, where):",
        *block(["return distribute_tensor(torch.from_numpy(values), mesh, where)"]),
        "",
        "",
        *helpers(program, split=True),
        *module(program, "Net", program.steps, program.inputs, "placed(initial[{}]", moved=True),
        "",
        "",
        "net = Net()",
        optimizer_line(program),
        f"for number in range({steps}):",
        *block(
            [
                "batch = batches[number % len(batches)]",
                "batch = [",
                *block(f"{part}," for part in placed),
                "]",
                *STEP,
                "loss = loss.full_tensor().item()  # the addends of all ranks together",
                *_said("loss"),
            ]
        ),
        *END,
    ]
    words = [name for name in ("DTensor", "Replicate", "Shard") if any(name in line for line in lines)]
    more = [
        "from torch.distributed.device_mesh import init_device_mesh",
        f"from torch.distributed.tensor import {', '.join([*words, 'distribute_tensor'])}",
    ]
    return beginning(program, how(program), imports(program, *more), notes) + "\n".join(lines)


END = ["dist.destroy_process_group()", ""]


def _said(loss: str) -> list[str]:
    return ["if dist.get_rank() == 0:", f'    print(f"step {{number + 1}}: loss {{{loss}:.8g}}")']


# ---- ranks that hold whole networks, or shares of every parameter ----

LAYER = """\
class Layer(torch.nn.Module):  # what one operator keeps: a unit of its own for FSDP
    def __init__(self, run, **values):
        super().__init__()
        self.run = run
        for name, array in values.items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(array)))

    def forward(self, *x):
        return self.run(*x, **dict(self.named_parameters()))


"""


def layered(program: Program) -> list[str]:
    """A Module whose operators with parameters are Modules of their own."""
    names, made, run = program.names, [], []
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
        run.append(f"{names[step.out]} = {text}")
    run[-1] = f"return {run[-1].split(' = ', 1)[1]}"
    arguments = ", ".join(["self", *(names[value] for value in program.inputs)])
    made = [line for text in made for line in text.splitlines()]
    return [
        *LAYER.splitlines(),
        "class Net(torch.nn.Module):",
        *block(["def __init__(self):", *block(["super().__init__()", *made])]),
        "",
        *block([f"def forward({arguments}):", *block(run)]),
    ]


def _quoted(name: str) -> str:
    return f'"{name}"'


ROWS = [
    "batch = batches[number % len(batches)]",
    "rows = len(batch[0]) // dist.get_world_size()",
    "batch = [torch.from_numpy(part[dist.get_rank() * rows :][:rows]) for part in batch]",
]
MEAN = ["dist.all_reduce(loss)", "loss = loss.item() / dist.get_world_size()  # of all ranks' rows"]


def rows_code(
    program: Program,
    steps: int,
    wrapped: Sequence[str],
    more: Sequence[str] = (),
    *,
    notes: Sequence[str] = (),
    layers: bool = False,
    dealt: bool = False,
    step: Sequence[str] = STEP,
) -> str:
    """A program whose ranks compute with rows of their own.

    wrapped   lines after `net = Net()`;  more: imports;  layers: every operator with parameters is a Module
    dealt     as of `optimizer_line`;  step: lines of a step
    """
    net = layered(program) if layers else module(program, "Net", program.steps, program.inputs, FROM_ARRAY)
    lines = [
        *initial_lines(program),
        "",
        *BEGIN,
        "",
        "",
        *helpers(program),
        *net,
        "",
        "",
        "net = Net()",
        *wrapped,
        optimizer_line(program, dealt=dealt),
        f"for number in range({steps}):",
        *block([*ROWS, *step, "loss = loss.detach()", *MEAN, *_said("loss")]),
        *END,
    ]
    return beginning(program, how(program), imports(program, *more), notes) + "\n".join(lines)


FROM_ARRAY = "torch.from_numpy(initial[{}])"
DDP = "from torch.nn.parallel import DistributedDataParallel"


ZERO = "from torch.distributed.optim import ZeroRedundancyOptimizer"


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
    if bucket_mb is None:
        each = ["for parameter in net.parameters():  # one message each, after backward"]
        each += ["    dist.all_reduce(parameter.grad)", "    parameter.grad /= dist.get_world_size()"]
        return rows_code(program, steps, [], step=[*STEP[:-1], *each, STEP[-1]])
    wrapped = [f"net = DistributedDataParallel(net, bucket_cap_mb={bucket_mb!r})"]
    step = STEP if parts == 1 else accumulated(parts, [f"net.require_backward_grad_sync = k == {parts - 1}"])
    more = [*([ZERO] if dealt else []), DDP]
    return rows_code(program, steps, wrapped, more, notes=notes, dealt=dealt, step=step)


def fsdp_code(
    program: Program, steps: int, reshard: bool, share: int, parts: int, every: bool, notes: Sequence[str] = ()
) -> str:
    """Parameters in shares, gathered again for backward if `reshard`.

    share   ranks that share a parameter;  parts: micro-batches whose gradients are added up;  every: gradients are
            reduced after each of them
    """
    devices, given = program.devices, f"reshard_after_forward={reshard}"
    mesh, more = [], ["from torch.distributed.fsdp import fully_shard"]
    if 0 < share < devices:
        names = 'mesh_dim_names=("copies", "shares")'
        mesh = [f'mesh = init_device_mesh("cpu", ({devices // share}, {share}), {names})']
        more.insert(0, "from torch.distributed.device_mesh import init_device_mesh")
        given = f"mesh=mesh, {given}"
    wrapped = [*mesh, "for layer in net.children():", f"    fully_shard(layer, {given})", f"fully_shard(net, {given})"]
    step = (
        STEP
        if parts == 1
        else accumulated(parts, [] if every else [f"net.set_requires_gradient_sync(k == {parts - 1})"])
    )
    return rows_code(program, steps, wrapped, more, notes=notes, layers=True, step=step)


def accumulated(parts: int, before: Sequence[str]) -> list[str]:
    """A step of several micro-batches whose gradients are added up."""
    return [
        "optimizer.zero_grad()",
        "losses = []",
        f"for k, part in enumerate(zip(*(rows.chunk({parts}) for rows in batch))):",
        *block([*before, "losses.append(net(*part))", "losses[-1].backward()"]),
        "optimizer.step()",
        "loss = sum(losses)  # added up, as MindSpore does",
    ]


def _splits(axes: int | tuple[int, ...]) -> bool:
    return bool(axes) if isinstance(axes, tuple) else axes >= 0
