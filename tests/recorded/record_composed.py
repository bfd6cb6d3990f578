"""Record what PyTorch's DTensors send for reductions that are several operators here: var, std, logsumexp, norms; for
operators of two tensors, whose gradients read them in PyTorch's order; and where its rules are fewer, or others, on a
mesh of two axes, too.

    pip install -e ".[oracle]" && python tests/recorded/record_composed.py   # composed.json, pairs.json (PyTorch 2.14)

Rows as the `ops` of rosetta.json: one process, rank 0 of a fake group of 8 with meshes (4) and (2, 4); values are not
looked at. "seed_pl": how the gradient of the result lay, where that is pending. Without "grad" no operand asks for one:
a norm, whose root stays pending, then sends nothing until it is read ("norm1_read" doubles it); with a gradient it
sends its sum once more.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor._collective_utils as cu
import torch.distributed.tensor.placement_types as pt
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

MESHES = {(4,): ("tp",), (2, 4): ("dp", "tp")}
KINDS = {
    "all_gather_into_tensor": "all_gather",
    "all_reduce": "all_reduce",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
PLACEMENTS = {"R": Replicate(), "S0": Shard(0), "S1": Shard(1), "P": Partial()}
OTHERS = {"S2": Shard(2), "Pmax": Partial("max"), "Pavg": Partial("avg")}
OPERATORS = {
    **{f"var{dim}": lambda x, dim=dim: x.var(dim) for dim in (0, 1)},
    **{f"std{dim}": lambda x, dim=dim: x.std(dim) for dim in (0, 1)},
    "var": lambda x: x.var(),
    "std": lambda x: x.std(),
    "var_kept": lambda x: x.var(1, keepdim=True),
    **{f"logsumexp{dim}": lambda x, dim=dim: torch.logsumexp(x, dim) for dim in (0, 1)},
    "amax1": lambda x: x.amax(1),
    "amin0": lambda x: x.amin(0),
    "norm1": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm_inf1": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm1_read": lambda x: torch.linalg.vector_norm(x, 2, 1) * 2.0,
    "layer_norm": lambda x, w, b: torch.nn.functional.layer_norm(x, (16,), w, b),
    "softmax1": lambda x: torch.softmax(x, 1),
}

PAIRS = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "matmul": lambda a, b: a @ b,
    "tril": torch.tril,
    "pow": lambda a: a**2,
    "rdiv": lambda a: 2.0 / a,
}
ROWS, UNEVEN, STACK, VECTOR, LABELS, TEXT = [8, 16], [6, 16], [8, 12, 16], [16], [8], [8, 8]
functional = torch.nn.functional
# operator: (function, shapes of its operands, how they lie: over two axes "S0.P"); LABELS, TEXT are ints
MORE: dict[str, tuple[Any, list[list[int]], str]] = {
    "linear": (functional.linear, [ROWS, [12, 16], [12]], "S0 R P, S0 S1 P, R S1 S0, P S0 S0, S1 S1 S0, S1 S0 P"),
    "linear3": (functional.linear, [STACK, [20, 16], [20]], "S1 R R, S1 S1 R, S1 S0 P, S2 R S0, S0 P R, P S1 S0"),
    "addmm": (torch.addmm, [[12], ROWS, [16, 12]], "P S0 R, S0 S1 S0, P R S1"),
    "layer_norm": (OPERATORS["layer_norm"], [ROWS, VECTOR, VECTOR], "R R S0, S0 R P, S1 P S0"),
    "xent_mean": (functional.cross_entropy, [ROWS, LABELS], "S0 R, S0 S0, S1 R, P R"),
    "xent_sum": (lambda x, y: functional.cross_entropy(x, y, reduction="sum"), [ROWS, LABELS], "S1 S0, P S0"),
    "embedding": (functional.embedding, [LABELS, [12, 16]], "R P, S0 S0, S0 P"),
    "index_select0": (lambda x, i: torch.index_select(x, 0, i), [ROWS, LABELS], "S0 R, P R, S1 R"),
    "stack0": (lambda x, y: torch.stack([x, y]), [ROWS, ROWS], "S0 S1, S0 P, P R"),
    "argmax1": (lambda x: torch.argmax(x, 1), [ROWS], "S1, S0, P"),
    "sigmoid": (torch.sigmoid, [ROWS], "Pmax, P"),
    "floor": (torch.floor, [ROWS], "Pmax, S0"),
    "slice1": (lambda x: x[:, 2:6], [UNEVEN], "S0"),
    "unsqueeze1": (lambda x: x.unsqueeze(1), [UNEVEN], "S0"),
    "view_split": (lambda x: x.reshape(6, 4, 4), [UNEVEN], "S0"),
    "var1": (OPERATORS["var1"], [UNEVEN], "S0, P"),
    "max": (torch.max, [ROWS], "S0, S1, P, Pmax"),
    "min1": (lambda x: x.min(1)[0], [ROWS], "S0, S1, P, Pmax"),
    "flat_exp": (lambda x: torch.exp(x.reshape(-1, 16)), [STACK], "S1, S2"),
    "flat_add": (lambda x, y: x.reshape(-1, 16) + y, [STACK, [96, 16]], "S1 R, S1 S1"),
    "rms_norm": (
        lambda x, w: functional.rms_norm(x, (16,), w),
        [ROWS, VECTOR],
        "R P, R S0, S0 P, P R, P S0, P P, S0.R P.R, S0.R R.S0, S0.P R.R, S0.P P.P, R.P S0.R, S0.S0 R.P, S1 R",
    ),
    "argmax0": (lambda x: torch.argmax(x, 0), [[16, 32]], "S0.S0, S1.P, P.S0, S0.S1"),
    "argmin1": (lambda x: torch.argmin(x, 1), [[16, 32]], "S1.S1, S1.P, S0.S1"),
    "var0": (OPERATORS["var0"], [ROWS], "S0.P, S1.P, P.S0, P.P"),
    "std1": (OPERATORS["std1"], [ROWS], "S0.P, S1.P, P.S0"),
    "std": (OPERATORS["std"], [ROWS], "S0.P, P"),
    "embedding2": (
        functional.embedding,
        [TEXT, [16, 16]],
        "S0.S0 S0.S1, S0.S1 S1.P, S1.S0 S1.S0, R.S0 S1.S1, S0.R S0.R, S1.S1 S0.S1",
    ),
    "flat_mm": (lambda x, y: x.reshape(-1, 16) @ y, [STACK, [16, 20]], "S1 R, S1 S0, S1 S1"),
}
OTHER = {"matmul": [[16, 12]], "tril": [], "pow": [], "rdiv": []}


class Messages(TorchDispatchMode):
    """Notes messages: kind, axis, shape that the rank gives, reduction unless it is a sum."""

    now: Messages
    more = False  # whether MORE is recorded

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[list[Any]] = []
        Messages.now = self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        space, name = func._schema.name.split("::")
        if space == "_c10d_functional" and name in KINDS:
            reduction = args[1:2] if name in ("all_reduce", "reduce_scatter_tensor") and args[1] != "sum" else ()
            dtype = ["int64"] if args[0].dtype == torch.int64 else []
            self.sent.append([KINDS[name], axis_of(args), list(args[0].shape), *reduction, *dtype])
        return func(*args, **(kwargs or {}))


def axis_of(args: Any) -> str:
    """The axis of the mesh that the group of a message is along."""
    groups = {getattr(a, "group_name", a) for a in args if isinstance(a, str) or hasattr(a, "group_name")}
    return next(name for m in over.values() for name in m.mesh_dim_names if m.get_group(name).group_name in groups)


def all_to_all(given, gather_dim, shard_dim, mesh, mesh_dim):
    """Noted as the message that it is: on a CPU, PyTorch gathers and cuts."""
    Messages.now.sent.append(["all_to_all", mesh.mesh_dim_names[mesh_dim], list(given.shape)])
    shape, ranks = list(given.shape), mesh.size(mesh_dim)
    shape[gather_dim], shape[shard_dim] = shape[gather_dim] * ranks, shape[shard_dim] // ranks
    return given.new_zeros(shape)


def made(mesh, code: str, shape: list[int]) -> DTensor:
    local, placements = list(shape), [(PLACEMENTS | OTHERS)[each] for each in code.split(".")]
    for placement, ranks in zip(placements, mesh.shape, strict=True):
        if isinstance(placement, Shard):
            local[placement.dim] = -(-local[placement.dim] // ranks)  # rank 0 has no fewer than others
    values = torch.zeros(local, dtype=torch.int64) if shape in (LABELS, TEXT) else torch.randn(local)
    whole = {"shape": torch.Size(shape), "stride": torch.empty(shape, device="meta").stride()}
    return DTensor.from_local(values, mesh, placements, run_check=False, **whole)


def codes(x: DTensor) -> list[str]:
    return [
        f"SS{p.dim}:{p.split_factor}"
        if hasattr(p, "split_factor")
        else "R"
        if p.is_replicate()
        else f"S{p.dim}"
        if p.is_shard()
        else f"P{p.reduce_op}".replace("Psum", "P")
        for p in x.placements
    ]


def row(op: str, *given: str, seed: str = "", wanted: bool = True) -> dict[str, Any]:
    """given: how the operands lie; those that are not named are copies."""
    mesh = over[(2, 4) if "." in given[0] else (4,)]
    shapes = [[8, 16]] + (OTHER.get(op, [[8, 16]]) if op in PAIRS else [[16]] * (2 * (op == "layer_norm")))
    function, shapes, _ = MORE[op] if Messages.more else ((PAIRS | OPERATORS)[op], shapes, "")
    lie = (*given, *["R"] * (len(shapes) - len(given)))
    operands = [made(mesh, code, s) for code, s in zip(lie, shapes, strict=True)]
    operands = [x.requires_grad_(wanted and x.is_floating_point()) for x in operands]
    found: dict[str, Any] = {"op": op, "shapes": shapes, "mesh": list(mesh.shape)} | ({"grad": 1} if wanted else {})
    found["pl"] = [code.split(".") for code in lie]
    found |= {"seed_pl": [seed]} if seed else {}
    try:
        with Messages() as forward:
            out = function(*operands)
    except RuntimeError as error:
        return found | {"error": f"RuntimeError: {str(error)[:200]}"}
    found |= {"out_pl": codes(out), "out_shape": list(out.shape), "messages": forward.sent}
    if not wanted:
        return found
    split = ".".join(code if code in ("S0", "S1", "S2") else "R" for code in codes(out))
    gradient = made(mesh, seed or split, list(out.shape))
    try:
        with Messages() as back:
            out.backward(gradient)
    except RuntimeError as error:
        return found | {"error": f"RuntimeError: {str(error)[:200]}"}
    return found | {
        "bwd_messages": back.sent,
        "grad_pl": [codes(x.grad) if x.grad is not None else None for x in operands],
    }


def written(name: str, rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(map(json.dumps, rows))
    Path(__file__).with_name(name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    over = {
        shape: DeviceMesh("cpu", torch.arange(math.prod(shape)).reshape(shape), mesh_dim_names=names)
        for shape, names in MESHES.items()
    }
    plain = [row(op, code) for op in OPERATORS for code in ("S0", "S1", "P") if op not in ("layer_norm", "softmax1")]
    plain.append(row("norm1_read", "S1", wanted=False))
    pending = [row(op, code, seed="P") for op in ("layer_norm", "softmax1") for code in ("S0", "R")]
    written("composed.json", [*plain, *pending])
    for module in (cu, pt):
        module.shard_dim_alltoall = all_to_all
    count = {op: 1 + len(OTHER.get(op, [[]])) for op in PAIRS}
    pairs = [row(op, *lie) for op in PAIRS for lie in itertools.product(PLACEMENTS, repeat=count[op])]
    Messages.more = True
    ways = [(op, way.split()) for op, (_, _, ways) in MORE.items() for way in ways.split(", ")]
    written("pairs.json", pairs + [row(op, *way, wanted=not op.startswith("arg")) for op, way in ways])
