"""A program for MindSpore (`templates/mindspore.jinja`): the network with its `shard` calls, settings, the training.

print(mindspore_code(program, 8, [], ["train = nn.TrainOneStepCell(net, optimizer)"]))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        if step.op in _SEVERAL:
            operators, calls = _SEVERAL[step.op](step, op, out, ins)
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
        called = form.called(op, ins, step.attrs)
        if step.op == "matmul" and len(step.shape) > 2:  # MindSpore's takes matrices
            inner = next(p.shape for p in program.parameters if p.name == step.ins[1])[-step.attrs["transpose_b"]]
            rows = form.called(op, [f"ops.reshape({ins[0]}, (-1, {inner}))", *ins[1:]], step.attrs)
            called = f"ops.reshape({rows}, (-1, {', '.join(map(str, step.shape[1:]))}))"
        lines.append(f"{out} = {called}")
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


def _route(step: Step, op: str, out: str, ins: list[str]) -> tuple[list[str], list[str]]:
    """Weights of all experts, 0 of those that are not chosen, from the logits.  (b, s, e) -> (b, s, e)"""
    FORMS[step.op].torch(ins, step.attrs)  # refuses other routers
    cut = None if step.strategy is None else step.strategy[0]
    made = [
        *_made(op, cut and (cut,), softmax="Softmax()", best="TopK(sorted=True)", sum="ReduceSum(keep_dims=True)"),
        *_made(op, cut and (cut, cut), share="RealDiv()"),
        *_made(op, cut and ((*cut, 1), (), ()), one_hot="OneHot()"),
        *_made(op, cut and ((*cut, 1), (*cut, 1)), spread="Mul()"),
        *_made(op, cut and ((*cut, 1),), total="ReduceSum()"),
    ]
    return made, [
        f"values, chosen = {op}_best({op}_softmax({ins[0]}), {step.attrs['k']})",
        f"values = {op}_share(values, {op}_sum(values, -1))",
        f"chosen = {op}_one_hot(chosen, {step.attrs['experts']}, Tensor(1.0, ms.float32), Tensor(0.0, ms.float32))",
        f"{out} = {op}_total({op}_spread(chosen, ops.expand_dims(values, -1)), 2)",
    ]


def _load(step: Step, op: str, out: str, ins: list[str]) -> tuple[list[str], list[str]]:
    """Choices of each expert, of all ranks; where each has rows of its own, the mean of theirs."""
    cut = None if step.strategy is None else step.strategy[0]
    made = [
        *_made(op, cut and (cut, ()), more="Greater()"),
        *_made(op, cut and (cut,), cast="Cast()", sum="ReduceSum()"),
    ]
    run = [f"{out} = {op}_sum({op}_cast({op}_more(ops.stop_gradient({ins[0]}), 0.0), ms.float32), (0, 1))"]
    if step.attrs["local"]:
        made, run = [*made, f"{op}_all = ops.AllReduce()"], [*run, f"{out} = {op}_all({out}) / get_group_size()"]
    return made, run


def _experts(step: Step, op: str, out: str, ins: list[str]) -> tuple[list[str], list[str]]:
    """Each expert has a slot for every token; those of other tokens are 0, and travel, too: all_to_alls between
    operators that split tokens and experts, for in semi_auto no message is as large as the router says.
    """
    (x, weights, up, down), inner = ins, step.attrs["activation"]
    ranks = None if step.strategy is None else math.prod(step.strategy[0][:2])
    by_token, by_expert = ((1, ranks, 1), (ranks, 1, 1)) if ranks else (None, None)
    activation = f"{FORMS[inner.op].mindspore or inner.class_name}({FORMS[inner.op].made(inner.attrs)})"
    made = [
        *_made(op, ranks and ((ranks, 1),), turn="Transpose()"),
        *_made(op, by_token and (by_token, ()), more="Greater()"),
        *_made(op, by_token and (by_token,), cast="Cast()", total="ReduceSum()"),
        *_made(op, by_token and (by_token, by_token), dispatch="Mul()", combine="Mul()"),
        *_made(op, by_expert and (by_expert, by_expert), first="BatchMatMul()", second="BatchMatMul()"),
        *_made(op, by_expert and (by_expert,), activation=activation),
    ]
    return made, [
        f"shares = {op}_turn(ops.reshape({weights}, (-1, {step.attrs['experts']})), (1, 0)).expand_dims(-1)",
        f"chosen = {op}_cast({op}_more(ops.stop_gradient(shares), 0.0), ms.float32)",
        f"{out} = {op}_dispatch(ops.reshape({x}, (1, -1, {step.shape[-1]})), chosen)",
        f"{out} = {op}_second({op}_activation({op}_first({out}, {up})), {down})",
        f"{out} = {op}_total({op}_combine({out}, shares), 0)",
        f"{out} = ops.reshape({out}, (-1, {', '.join(map(str, step.shape[1:]))}))",
    ]


def _made(op: str, strategy: tuple[Any, ...] | None, **classes: str) -> list[str]:
    """Lines that make operators: name=class."""
    shard = "" if strategy is None else f".shard({strategy})"
    return [f"{op}_{name} = ops.{made}{shard}" for name, made in classes.items()]


_SEVERAL = {
    "scaled_dot_product_attention": _attention,
    "route_tokens": _route,
    "expert_load": _load,
    "experts": _experts,
}
FUNCTION = "-"  # of a Form: called as a function, not as a Primitive


def _sharded(step: Step) -> str:
    strategy = step.strategy
    if strategy is not None and step.op == "matmul" and len(step.shape) > 2:
        strategy = ((math.prod(strategy[0][:-1]), strategy[0][-1]), *strategy[1:])
    return "" if strategy is None else f".shard({strategy})"


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
