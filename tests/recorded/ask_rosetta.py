"""Who answers the rows of `rosetta.json`: a function for each family, which calls public names only.

    layouts(ROWS["layouts"][0])     {"slices": [...], "b": "Layout(...)", "reason": "", "forms": ..., "no_form": ...}

A function takes a row and returns, under the names of the recorded file, what the row says was observed.
"""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import parallel_lab as pl
from parallel_lab import ops as our
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout, Partial, Replicate, Shard
from parallel_lab.layout.mesh_redistribution import redistribution
from parallel_lab.layout.notations import written
from parallel_lab.nn.parallel_styles import parallel_cross_entropy
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.dtensor import DTensor, RankTensors, dtensor_messages
from parallel_lab.nn.tensor.dtensor_parts import Message, dual
from parallel_lab.nn.tensor.tensor import Tensor
from tests.recorded.rosetta_networks import network_of, recorded_name

Row = dict[str, Any]
ROWS: dict[str, list[Row]] = {
    name: rows
    for name, rows in json.loads(Path(__file__).with_name("rosetta.json").read_text(encoding="utf-8")).items()
    if isinstance(rows, list)
}


# ---- layouts ----


def layouts(row: Row) -> Row:
    """`a` read with the row's mesh and shape: every rank's slices, `b` or the reason, and all other notations.

    What the text of `a` does not say is taken from the row: the mesh, and which reduction is pending.
    """
    mesh = pl.DeviceMesh(tuple(row["mesh"]), tuple(row["names"]), tuple(row.get("ranks", ())))
    shape, (notation, text), wanted = tuple(row["shape"]), row["a"], row["b"][0]
    layout = pl.notations[notation].parse(text, mesh, shape, next(iter(row.get("partial", {}).values()), "sum"))
    forms = written(layout, shape)
    return {
        "slices": [[list(run) for run in layout.slices(shape, rank)] for rank in range(mesh.size)],
        "b": forms[wanted].text,
        "reason": forms[wanted].reason,
        "forms": {name: form.text for name, form in forms.items()},
        "no_form": {name: form.reason for name, form in forms.items() if form.text is None},
    }


# ---- redistributions and operators of DTensors ----
# Values are drawn, each addend another one, so that a reduction left out shows; `err` and `grad_err` are differences
# from the undivided computation.

NAMES = {1: ("tp",), 2: ("dp", "tp"), 3: ("dp", "cp", "tp")}


def mesh_of(shape: Sequence[int]) -> DeviceMesh:
    return DeviceMesh(tuple(shape), NAMES[len(shape)])


def drawn(shape: Sequence[int], layout: MeshLayout, rng: np.random.Generator, high: int | None = None) -> DTensor:
    """A DTensor of drawn values. Pending parts differ by rank; what they reduce to is the value of the whole."""
    whole = rng.normal(size=tuple(shape)).astype(np.float32) if high is None else rng.integers(0, high, tuple(shape))

    def part(rank: int) -> np.ndarray:
        mine = whole[np.ix_(*layout.indices(whole.shape, rank))] if shape else whole
        for axis, placement in enumerate(layout.placements):
            if isinstance(placement, Partial):
                mine = addend(mine, placement.reduce_op, layout.mesh.coordinates(rank)[axis], layout.mesh.shape[axis])
        return np.array(mine)

    return DTensor.from_local(part, layout.mesh, layout.placements, shape=tuple(shape)).requires_grad_(high is None)


def addend(whole: np.ndarray, reduce: str, place: int, ranks: int) -> np.ndarray:
    """One of the parts that reduce to `whole`."""
    share = whole.dtype.type((place + 1) / (ranks * (ranks + 1) / 2))
    return {
        "sum": lambda: whole * share,
        "avg": lambda: whole * share * whole.dtype.type(ranks),
        "max": lambda: whole - whole.dtype.type(place),
        "min": lambda: whole + whole.dtype.type(place),
        "product": lambda: whole if place == 0 else np.ones_like(whole),
    }[reduce]()


def listed(sent: Sequence[Message]) -> list[list[Any]]:
    return [
        [m.kind, m.axis, list(m.shape), *(each for each in (m.reduce, m.dtype) if each not in ("", "sum", "float32"))]
        for m in sent
    ]


def codes(x: Any) -> list[str] | None:
    return None if x is None else x.layout.code.split()


def redistribute(shape: list[int], mesh: list[int], src: list[str], dst: list[str], **_: Any) -> Row:
    """A redistribution and the gradient's way back."""
    over = mesh_of(mesh)
    start, end = MeshLayout.coded(over, src), MeshLayout.coded(over, dst)
    x = drawn(shape, start, np.random.default_rng(0))
    with dtensor_messages() as sent:
        try:
            moved = x.redistribute(end)
        except ParallelLabError as error:
            return {"error": str(error)}
    with dtensor_messages() as back:
        seed = drawn(shape, dual(end), np.random.default_rng(1))
        moved.backward(seed)
    local = [list(moved.local(rank).shape) for rank in over.ranks]
    return {
        "messages": listed(sent),
        "comms": dict(Counter(m.kind for m in sent)),
        "local": local[0] if all(part == local[0] for part in local) else local,
        "steps": [str(step).replace(" -> ", "->") for step in redistribution(start, end, tuple(shape))],
        "err": float(np.abs(moved.asnumpy() - x.asnumpy()).max(initial=0)),
        "grad_pl": codes(x.grad),
        "bwd_messages": listed(back),
    }


def seed_layout(layout: MeshLayout) -> MeshLayout:
    """How the recorded programs lay out the gradient they begin with: copies where the result is not plainly split."""
    return MeshLayout(layout.mesh, tuple(p if isinstance(p, Shard) else Replicate() for p in layout.placements))


PROGRAMS: dict[str, Any] = {
    **dict.fromkeys(("linear", "linear3"), our.linear),
    "linear_nb": lambda x, w: our.matmul(x, w, transpose_b=True),
    "var_kept": lambda x: our.var(x, 1, ddof=1, keep_dims=True),
    "norm_inf1": lambda x: our.norm(x, float("inf"), 1),
    "norm1_read": lambda x: our.norm(x, 2, 1) * 2.0,
    "addmm": our.addmm,
    "baddbmm": lambda c, a, b: c + a @ b,
    "where": lambda c, a, b: our.select(c > 0, a, b),
    "masked_fill": lambda a, m: our.masked_fill(a, m > 0, 0.0),
    "layer_norm": lambda a, g, b: our.layer_normalization(a, g, b)[0],
    "rms_norm": lambda a, g: our.rms_normalization(a, g)[0],
    **dict.fromkeys(("embedding", "embedding2"), lambda i, w: our.embedding(i, w)),
    "mlp": lambda x, a, b: our.relu(x @ a) @ b,
    "mlp_residual": lambda x, a, b: x + our.relu(x @ a) @ b,
    "chain3": lambda x, a, b: (our.relu(x @ a) @ b).sum(),
    "conv2d": lambda x, w: our.convolution(x, w, pad_mode="pad", pad=1),
    "sdpa_cpu_flash": lambda q, k, v: our.scaled_dot_product_attention(q, k, v),
    "sdpa": lambda q, k, v: our.scaled_dot_product_attention(q, k, v),
    **{f"xent_{how}": partial(our.cross_entropy, reduction=how) for how in ("mean", "sum", "none")},
    "expand": lambda a: our.broadcast_to(our.expand_dims(a, 1), shape=(a.shape[0], 3, *a.shape[1:])),
    "view_merge": lambda a: our.reshape(a, (a.shape[0] * a.shape[1], *a.shape[2:])),
    "view_split": lambda a: our.reshape(a, (*a.shape[:-1], 4, a.shape[-1] // 4)),
    "flat_exp": lambda a: our.exp(our.reshape(a, (-1, a.shape[-1]))),
    "flat_add": lambda a, b: our.reshape(a, (-1, a.shape[-1])) + b,
    "flat_mm": lambda a, b: our.reshape(a, (-1, a.shape[-1])) @ b,
    "t": lambda a: our.transpose(a, (1, 0)),
    "sub_mean": lambda a: a - our.reduce_mean(a, 0, keep_dims=True),
    **dict.fromkeys(("matmul", "mm", "bmm"), lambda a, b: a @ b),
    **{name: getattr(our, name) for name in ("add", "sub", "mul", "div", "maximum", "minimum", "exp", "tanh", "relu")},
    **{name: getattr(our, name) for name in ("sigmoid", "gelu", "silu", "erf", "floor", "sign", "sqrt", "abs", "log")},
    **{name: getattr(our, name) for name in ("neg", "sin", "cos", "rsqrt", "tril", "triu", "ceil", "expm1", "round")},
    **dict.fromkeys(("clone", "to_same"), our.identity),
    **dict.fromkeys(("to", "to_dtype", "cast"), lambda a: our.cast(a, "float64")),
    **dict.fromkeys(("add_scalar", "scalar_add"), lambda a: a + 2.0),
    **dict.fromkeys(("mul_scalar", "scalar_mul"), lambda a: a * 2.0),
    **dict.fromkeys(("div_scalar", "scalar_div"), lambda a: a / 2.0),
    **dict.fromkeys(("rsub", "rsub_scalar"), lambda a: 2.0 - a),
    **dict.fromkeys(("pow", "pow_scalar", "pow2", "square"), lambda a: a**2),
    "rdiv": lambda a: 2.0 / a,
}
# along a dim, whose number ends the name: "amax1"; without one over all
ALONG: dict[str, Any] = {
    "sum": lambda d, a: our.reduce_sum(a, d),
    "mean": lambda d, a: our.reduce_mean(a, d),
    "prod": lambda d, a: our.reduce_prod(a, d),
    "norm": lambda d, a: our.lp_norm(a, d if d is not None else tuple(range(len(a.shape)))),
    "vector_norm": lambda d, a: our.lp_norm(a, d if d is not None else tuple(range(len(a.shape)))),
    "softmax": lambda d, a: our.softmax(a, axis=d),
    "log_softmax": lambda d, a: our.log_softmax(a, axis=d),
    "logsumexp": lambda d, a: our.logsumexp(a, d),
    "argmax": lambda d, a: our.argmax(a, d, output_type="int64"),
    "argmin": lambda d, a: our.argmin(a, d, output_type="int64"),
    "sort": lambda d, a: our.sort(a, axis=d)[0],
    "topk": lambda d, a: our.top_k(a, 3)[0],
    "cumsum": lambda d, a: our.cumsum(a, d),
    "cat": lambda d, *many: our.concat(*many, axis=d),
    "stack": lambda d, *many: our.stack(*many, axis=d or 0),
    "select": lambda d, a: a[(*(slice(None),) * d, 0)],
    "slice": lambda d, a: a[2:6] if d == 0 else a[:, 2:6],
    "index_select": lambda d, a, i: our.index_select(a, d, i),
    "gather": lambda d, a, i: our.gather_elements(a, d, i),
    "flip": lambda d, a: our.flip(a, (d,)),
    "roll": lambda d, a: our.roll(a, 1, d),
    "unsqueeze": lambda d, a: our.expand_dims(a, d),
    "permute": lambda d, a: our.transpose(a, tuple(reversed(range(len(a.shape))))),
    **{name: lambda d, a: our.split_parts(a, axis=d, output_num=2)[0] for name in ("split", "chunk")},
    "amax": lambda d, a: our.reduce_max(a, d),
    "amin": lambda d, a: our.reduce_min(a, d),
    "max": lambda d, a: our.max(a, d)[0] if d is not None else our.reduce_max(a),
    "min": lambda d, a: our.min(a, d)[0] if d is not None else our.reduce_min(a),
    **{name: lambda d, a, how=name: getattr(our, how)(a, d) for name in ("var", "std")},
}


def program(name: str) -> Any:
    """What a row's operator is here, a function of tensors."""
    if name in PROGRAMS:
        return PROGRAMS[name]
    base = name.rstrip("0123456789")
    return partial(ALONG[base], int(name[len(base) :]) if len(base) < len(name) else None)


INTEGERS = {"gather": {1: 3}, "index_select": {1: 5}, "embedding": {0: 12}, "xent": {1: 16}}  # operand: below


def ops(
    op: str,
    shapes: list[list[int]],
    mesh: list[int],
    pl: list[list[str]],
    grad: int = 0,
    loss_parallel: int = 0,
    seed_pl: Sequence[str] = (),
    **_: Any,
) -> Row:
    """An operator (or a few), forward and backward."""
    over, rng = mesh_of(mesh), np.random.default_rng(0)
    high = next((below for begin, below in INTEGERS.items() if op.startswith(begin)), {})
    layouts = [MeshLayout.coded(over, p) for p in pl]
    operands = [drawn(s, to, rng, high.get(i)) for i, (s, to) in enumerate(zip(shapes, layouts, strict=True))]
    wholes = [x.asnumpy() for x in operands]
    with dtensor_messages() as sent:
        try:
            out = (parallel_cross_entropy if loss_parallel else program(op))(*operands)
        except ParallelLabError as error:
            return {"error": str(error)}
    alone = [Tensor(x) for x in wholes]
    reference = program(op)(*alone).asnumpy()
    local = [list(out.local(rank).shape) for rank in over.ranks]
    row: Row = {
        "out_pl": codes(out),
        "out_shape": list(out.shape),
        "local": local[0] if all(part == local[0] for part in local) else local,
        "comms": dict(Counter(m.kind for m in sent)),
        "messages": listed(sent),
        "err": float(np.abs(out.asnumpy() - reference).max(initial=0)),
    }
    if not grad:
        return row
    begin = MeshLayout.coded(over, seed_pl) if seed_pl else seed_layout(out.layout)
    seed = drawn(out.shape, begin, np.random.default_rng(1))
    with dtensor_messages() as back:
        out.backward(seed)
    row |= {"bwd_comms": dict(Counter(m.kind for m in back)), "bwd_messages": listed(back)}
    row |= {"grad_pl": [codes(x.grad) for x in operands]}
    if out.shape:
        row["grad_out_pl"] = codes(seed)
    wanted = undivided(program(op), wholes, seed.asnumpy(), [i for i in range(len(wholes)) if i not in high])
    row["grad_err"] = max(
        (
            float(np.abs(x.grad.asnumpy() - wanted[i]).max(initial=0))
            for i, x in enumerate(operands)
            if x.grad is not None
        ),
        default=0.0,
    )
    return row


def undivided(program: Any, wholes: list[np.ndarray], seed: np.ndarray, positions: list[int]) -> dict[int, np.ndarray]:
    """The gradients on one device."""

    def weighted(*inputs: Any) -> Any:
        return (program(*inputs) * Tensor(seed)).sum()

    _, grads = value_and_grad(weighted, tuple(positions))(*map(pl.Tensor, wholes))
    return dict(zip(positions, (g.asnumpy() for g in grads), strict=True))


# ---- parallelize_module ----


STYLES = {"Col": pl.ColwiseParallel, "Row": pl.RowwiseParallel}


def styles(text: str, network: Any) -> dict[str, Any]:
    """A plan as the recorded file words it: "w1 Colwise(input Shard(0)), wo w2 out Shard(1), norms SP"."""
    cells, plan = {path: cell for path, cell in network.cells_and_names() if path}, {}
    text = text.replace("SP block", "norms SP, wq wk wv w1 w3 Colwise, wo w2 out Shard(1), PrepareModuleInput")
    for item in re.findall(r"(?:[^,;()]|\((?:[^()]|\([^()]*\))*\))+", text):
        words = item.split("(")[0].split()
        sides = dict(re.findall(r"\b(in|out)(?:put)?(?:_layouts)?[ =]+((?:Rep|Shard)\w*(?:\(-?\d*\))?)", item))
        options: Row = {f"{side}put_layouts": placed(word) for side, word in sides.items()}
        if "local_output=False" in item or "DTensor" in item:
            options["use_local_output"] = False
        style: Any = next((kind(**options) for start, kind in STYLES.items() if f" {start}" in item), None)
        if style is None and sides:
            style = pl.RowwiseParallel(**options)
        if re.search(r"\bSP\b|Sequence", item):
            style = pl.SequenceParallel()
        if "PrepareModuleInput" in item:
            before = Replicate() if "Shard" not in item and "Replicate" in item else Shard(1)
            style = pl.PrepareModuleInput(input_layouts=before, desired_input_layouts=Replicate())
            words = [word for word in words if word in cells] or ["attention", "feed_forward"]
        for path, cell in cells.items():
            last, kind = path.split(".")[-1], type(cell).__name__
            if style and any(
                word in (path, last) or (word == "norms" and "Norm" in kind) or (word in kind.lower() and "emb" in word)
                for word in words
            ):
                plan[path] = style
    return plan


def placed(word: str) -> Any:
    return Replicate() if word.startswith("Rep") else Shard(int(re.findall(r"-?\d+", word)[0]))


def modules(plan: str, mesh: list[int], input: list[int], params: Row, **_: Any) -> Row:
    """A network under a plan, every rank given the same input, forward and backward of the sum of what it gives."""
    over, network = mesh_of(mesh), network_of(list(params))
    try:
        pl.parallelize_module(network, over, styles(plan, network))
    except ParallelLabError as error:
        return {"error": str(error)}
    rng, ids = np.random.default_rng(0), "embedding" in repr(network).lower()
    x = Tensor(rng.integers(0, 24, input) if ids else rng.normal(size=input).astype(np.float32))
    if re.search(r"grad|needs", plan):  # of the input
        x = RankTensors(dict.fromkeys(over.ranks, x.asnumpy()), over).requires_grad_()
    with dtensor_messages() as sent:
        out = network(x)
    with dtensor_messages() as back:
        out.sum().backward()
    held = {recorded_name(path): p for path, p in network.parameters_and_names()}
    own = {name: isinstance(p, DTensor) for name, p in held.items()}
    first = over.ranks[0]
    return {
        "params": {
            name: [codes(p), list(p.local(first).shape)] if own[name] else ["plain", list(p.shape)]
            for name, p in held.items()
        },
        "comms": dict(Counter(m.kind for m in sent)),
        "messages": listed(sent),
        "out": ["local" if out.alone else codes(out), list(out.local(first).shape)],
        "bwd_comms": dict(Counter(m.kind for m in back)),
        "bwd_messages": listed(back),
        "grads": {name: codes(p.grad) if own[name] else "plain" for name, p in held.items()},
    }


# ---- where a DTensor begins and ends ----


def border(case: str, **_: Any) -> Row:
    """A case in the words of the recorded file, on 4 ranks: "inplace R += S0", "from_local S0 -> R", ..."""
    try:
        return bordering(case)
    except ParallelLabError as error:
        return {"error": str(error)}


def bordering(case: str) -> Row:
    over = mesh_of([4])
    found = re.findall(r"\b(?:Shard\(\d\)|Replicate\(\)|Partial\(\w*\)|S\d|R|P\w*)(?![\w(])", case)
    words = [w for w in found if w != "Partial"]
    places = [as_placement(word) for word in words]
    given = re.findall(r"grad_placements=\[(.*?)\]", case)
    back = [as_placement(given[0])] if given else None
    if "torch.Tensor" in case:
        return {"out_pl": codes(ones([Shard(0)], over) + Tensor(np.ones((8, 4), np.float32)))}
    if "without placements" in case:
        ones([Shard(0)], over).redistribute()
    if "mixed" in case:
        return {"out_pl": MeshLayout(mesh_of([2, 4]), (Partial(), Partial("max"))).code.split()}
    if case.startswith("distribute_tensor"):
        shape = (8, 4) if "2-d" in case else (8,)
        return {"out_pl": codes(pl.distribute_tensor(np.ones(shape, np.float32), over, places[:1]))}
    if "uneven" in case:
        made = DTensor.from_local(lambda rank: np.ones(((2, 2), (2, 2), (1, 2), (0, 2))[rank]), over, [Shard(0)])
        return {"shape": str(made.shape)}
    if "inplace" in case:
        x, y = (ones([place], over) for place in places[:2])
        sign = re.findall(r"[-+*/]=", case)[0]
        with dtensor_messages() as sent:
            x = {"+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "/=": operator.itruediv}[sign](x, y)
        return {"out_pl": codes(x), "messages": listed(sent)}
    if case.startswith("from_local"):
        local = RankTensors({rank: np.ones((2, 4), np.float32) for rank in over.ranks}, over).requires_grad_()
        made = DTensor.from_local(local, over, places[:1], grad_placements=back)
        moved = made.redistribute(places[1:2]) if "->" in case else made
        with dtensor_messages() as sent:
            moved.backward(drawn(moved.shape, dual(moved.layout), np.random.default_rng(1)) * 0.0 + 1.0)
        return {
            "bwd_messages": listed(sent),
            "grad_local": [list(local.grad.local(rank).shape) for rank in over.ranks],
            "grad_sum_rank0": float(local.grad.local(0).sum()),
        }
    x = ones(places[:1], over).requires_grad_()
    with dtensor_messages() as sent:
        whole = "full" in case
        local = x.full_tensor(grad_placements=back or [Replicate()]) if whole else x.to_local(grad_placements=back)
    with dtensor_messages() as returned:
        local.sum().backward()
    return {
        "messages": listed(sent),
        "grad_pl": codes(x.grad),
        "bwd_messages": listed(returned),
        "grad_full_sum": float(x.grad.asnumpy().sum()),
    }


def as_placement(word: str) -> Any:
    return MeshLayout.coded(mesh_of([4]), [re.sub(r"^(\w)\w*\((\w*)\)$", r"\1\2", word)]).placements[0]


def ones(placements: Sequence[Any], over: DeviceMesh) -> DTensor:
    layout = MeshLayout(over, tuple(placements))
    return DTensor.from_local(
        lambda rank: np.ones(layout.local_shape((8, 4), rank), np.float32), over, placements, shape=(8, 4)
    )


# ---- fully_shard ----


def fsdp(case: str, mesh: list[int], params: Row, text: str = "", **_: Any) -> Row:
    """Three layers and a head, in groups as the row's words say: the messages of one step, or of two micro-batches."""
    said, network = f"{case} {text}", network_of(list(params))
    hybrid = "hsdp" in said.lower() or "replicate" in said
    over = DeviceMesh(tuple(mesh), ("replicate", "shard")) if hybrid else mesh_of(mesh)
    data = over if hybrid or over.ndim == 1 else over["dp"]
    if data is not over:
        kinds = {"S0": pl.ColwiseParallel(), "S1": pl.RowwiseParallel()}
        cut = {name.removesuffix(".weight"): p[0] for name, p in params.items() if name.endswith("weight")}
        pl.parallelize_module(
            network, over["tp"], {n: kinds[c[1]] for n, c in cut.items() if len(c) == 2 and c[1] != "R"}
        )
    reshard = re.findall(r"reshard_after_forward ?=? ?(True|False|\d+)", said) or re.findall(r"^= ?(\d+)", said)
    value = (
        {"True": True, "False": False}.get(reshard[0], int(reshard[0]) if reshard[0].isdigit() else None)
        if reshard
        else None
    )
    options: Row = {"mesh": data}
    if "bf16" in said or "bfloat16" in said:
        options["mp_policy"] = pl.MixedPrecisionPolicy("bfloat16", "float32" if "float32" in said else None)
    if "Shard(1)" in said or "placement" in said:
        options["shard_placement_fn"] = lambda p: Shard(1) if len(p.full_shape) == 2 else Shard(0)
    layers = [] if "root only" in said else list(network.layers)
    inner = {} if value in (None, True) else {"reshard_after_forward": value}
    for layer in [layers] if "list" in said and layers else layers:
        pl.fully_shard(layer, **options, **inner)
    pl.fully_shard(network, **options, **({"reshard_after_forward": True} if value is True else {}))
    x = Tensor(np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32))
    logs = []
    for micro in range(2 if "accumulation" in said or "sync" in said else 1):
        if "accumulation" in said or "sync" in said:
            network.set_requires_gradient_sync(bool(micro))
        with dtensor_messages() as sent:
            out = network(x)
        with dtensor_messages() as back:
            out.sum().backward()
        logs.append((listed(sent), listed(back)))
    held = list(network.parameters_and_names())
    first = over.ranks[0]
    row: Row = {
        "params": {name: [codes(p), list(p.shape), list(p.local(first).shape)] for name, p in held},
        "grads": {name: codes(p.grad) for name, p in held},
    }
    if len(logs) == 1:
        return row | {"fwd": logs[0][0], "bwd": logs[0][1]}
    return row | {f"micro{number}": sent + back for number, (sent, back) in enumerate(logs)}
