"""A program for MindSpore (`templates/mindspore.jinja`): the network with its `shard` calls, settings, the training.

print(mindspore_code(program, 8, [], ["train = nn.TrainOneStepCell(net, optimizer)"]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .forms import FORMS
from .program import NoForm, Program, Step
from .text import call, render


@dataclass(frozen=True)
class CellText:
    """A Cell as `templates/mindspore.jinja` writes it.

    made    lines that give it parameters and operators;  arguments: of `construct`
    lines   of `construct`;  result: the expression that it returns
    """

    name: str
    made: Sequence[str]
    arguments: Sequence[str]
    lines: Sequence[str]
    result: str


def cell(program: Program, name: str, steps: Sequence[Step], inputs: Sequence[str]) -> CellText:
    """A Cell of some of the steps, which returns the result of the last.  inputs: the values that it receives"""
    names, made, lines = program.names, [], []
    used = {value for step in steps for value in step.ins}
    for drawn in program.parameters:
        if drawn.name not in used:
            continue
        made.append(f'self.{names[drawn.name]} = Parameter(Tensor(initial["{drawn.name}"]), "{drawn.name}")')
    known = {p.name: f"self.{names[p.name]}" for p in program.parameters}
    for step in steps:
        form = FORMS.get(step.op)
        if form is None:
            raise NoForm(
                f"operator {step.class_name} {step.name!r}", where="code for MindSpore", hint="Not written yet"
            )
        ins = [known.get(name, names.get(name, name)) for name in step.ins]
        out, op = names[step.out], f"self.{names[step.out]}"
        if step.op == "scaled_dot_product_attention":
            operators, calls = _attention(step, op, out, ins)
            made += operators
            lines += calls
            continue
        if step.op == "batch_norm":
            made += [f"{op}_{name}" for name in _moving(step)]
        if form.mindspore != FUNCTION:
            # MindSpore's BiasAdd splits no dim behind the channels: along a last dim a bias is added by Add
            last = step.op == "bias_add" and dict(step.attrs).get("data_format") == "NHWC"
            class_name = "Add" if last else form.mindspore or step.class_name
            made.append(f"{op} = ops.{class_name}({form.made(step.attrs)}){_sharded(step)}")
        lines.append(f"{out} = {form.called(op, ins, step.attrs)}")
    return CellText(name, made, [names[name] for name in inputs], lines[:-1], lines[-1].split(" = ", 1)[1])


def _moving(step: Step) -> list[str]:
    """The averages that a batch norm keeps alongside training."""
    kept = {"mean": "np.zeros", "variance": "np.ones"}
    of = step.name.removesuffix(".batch_norm")
    return [
        f'{name} = Parameter(Tensor({make}({step.shape[1]}, np.float32)), "{of}.moving_{name}", requires_grad=False)'
        for name, make in kept.items()
    ]


def _attention(step: Step, op: str, out: str, ins: list[str]) -> tuple[list[str], list[str]]:
    """MindSpore has no such operator on every device: products, mask and softmax, split by batch and heads."""
    *_, length, _, size = step.shape if len(step.shape) == 4 else (0, 0, 0, 0)
    cuts = None if step.strategy is None else (step.strategy[0][0], step.strategy[0][2])

    def shard(*strategy: tuple[int, ...]) -> str:
        return "" if cuts is None else f".shard({strategy})"

    batch, heads = cuts or (1, 1)
    before, after = (batch, 1, heads, 1), (batch, heads, 1, 1)
    made = [
        f"{op}_turn = ops.Transpose(){shard(before)}",
        f"{op}_scores = ops.BatchMatMul(transpose_b=True){shard(after, after)}",
        f"{op}_scale = ops.Mul(){shard(after, ())}",
        f"{op}_mask = ops.Add(){shard(after, (1, 1))}",
        f"{op}_softmax = ops.Softmax(){shard(after)}",
        f"{op}_values = ops.BatchMatMul(){shard(after, after)}",
        f"{op}_back = ops.Transpose(){shard(after)}",
        f"{op}_hidden = Tensor(np.triu(np.full(({length}, {length}), -1e9, np.float32), 1))",
    ]
    q, k, v = (f"{op}_turn({name}, (0, 2, 1, 3))" for name in ins)
    scale = step.attrs["scale"] or size**-0.5
    masked = [f"{out} = {op}_mask({out}, {op}_hidden)"] if step.attrs["is_causal"] else []
    run = [
        f"{out} = {op}_scale({op}_scores({q}, {k}), {scale!r})",
        *masked,
        f"{out} = {op}_values({op}_softmax({out}), {v})",
        f"{out} = {op}_back({out}, (0, 2, 1, 3))",
    ]
    return made, run


FUNCTION = "-"  # of a Form: called as a function, not as a Primitive


def _sharded(step: Step) -> str:
    return "" if step.strategy is None else f".shard({step.strategy})"


def optimizer_line(program: Program) -> str:
    """How MindSpore makes the optimizer."""
    rates = [f"{name}={value!r}" for name, value in program.rates.items()]
    return call(f"optimizer = nn.{program.optimizer}", ["net.trainable_params()", *rates])


def mindspore_code(
    program: Program,
    steps: int,
    settings: Sequence[str],
    wrapped: Sequence[str],
    *,
    rows: bool = False,
    cells: Sequence[CellText] = (),
) -> str:
    """The whole program.

    settings   lines before the network is made;  wrapped: lines that make `train` of `net` and `optimizer`
    cells      the classes, Net the last of them, if the network is not one Cell of all steps
    rows       each rank is fed its own rows of a batch
    """
    auto = any("AutoParallel" in line for line in wrapped)
    return render(
        "mindspore",
        program,
        f"parallel-lab run -n {program.devices} --as-mindspore program.py     (or: mpirun -n {program.devices} python)",
        [
            "import mindspore as ms",
            "import numpy as np",
            "from mindspore import Parameter, Tensor, nn, ops",
            f"from mindspore.communication import {'get_group_size, get_rank, ' if rows else ''}init",
            *(["from mindspore.parallel.auto_parallel import AutoParallel"] if auto else []),
        ],
        cells=cells or [cell(program, "Net", program.steps, program.inputs)],
        settings=settings,
        optimizer=optimizer_line(program),
        wrapped=wrapped,
        rows=rows,
        steps=steps,
    )
