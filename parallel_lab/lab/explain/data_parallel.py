"""DistributedDataParallel: copies on all ranks whose gradients are added up in buckets; FullyShardedDataParallel, the
older fully_shard; and what feeds each rank.

The first backward sends all gradients as one message. From the second on they travel in buckets, in the order in which
the first had computed them: one of 1 MiB at least, then of 25 MiB each (`bucket_cap_mb`: all of that size). What makes
copies equal before training is left out, as in all lists. Rules: PyTorch 2.14, torch/nn/parallel/distributed.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...layout.device_mesh import DeviceMesh
from ...nn import fully_shard as sharding
from ...nn.tensor.dtensor_gradients import after_backward
from ...nn.tensor.dtensor_parts import Parts, hollow, note
from ...nn.tensor.tape import history
from .front import PYTHON, Front, Table, last
from .torch_names import axis_of
from .values import Instance, NotRead

MIB = 2**20
QUIET = ("device_ids", "output_device", "dim", "broadcast_buffers", "init_sync", "check_reduction",
         "gradient_as_bucket_view", "skip_all_reduce_unused_params", "device_id", "sync_module_states", "param_init_fn",
         "limit_all_gathers")  # fmt: skip  # options that change no message


def buckets(sizes: Sequence[int], cap: float | None) -> list[list[int]]:
    """Numbers of gradients that travel together.  sizes: in bytes, in the order in which they are there; cap: in MiB

    >>> buckets([300_000, 800_000, 4, 30_000_000, 8], None)
    [[0, 1], [2, 3], [4]]
    """
    found: list[list[int]] = [[]]
    for number, _ in enumerate(sizes):
        limit = cap * MIB if cap is not None else MIB if len(found) == 1 else 25 * MIB
        found[-1].append(number)
        found += [[]] if sum(sizes[n] for n in found[-1]) >= limit else []
    return [each for each in found if each]


def replicated(front: Any, module: Any, *args: Any, process_group: Any = None, **kw: Any) -> Any:
    """DistributedDataParallel(module, device_ids, ...)"""
    of = front.layer("DistributedDataParallel", module=module)
    cap, unknown = kw.pop("bucket_cap_mb", None), [key for key in kw if key not in QUIET and kw[key]]
    if unknown or len(args) > 2:
        raise NotRead(f"DistributedDataParallel with {', '.join(unknown) or 'these arguments'} is not read")
    if any(not p.alone for _, p in of._paths()):
        raise NotRead("DistributedDataParallel of distributed parameters is not read")
    of.names[" ddp"] = {"axis": axis_of(front, process_group), "cap": cap, "sync": True, "order": None}
    return of


def forward(front: Any, of: Any, *args: Any, **kw: Any) -> Any:
    """The network; its gradients are added up at the end of backward."""
    out = front.invoke(of.names["module"], list(args), kw)
    state, results = of.names[" ddp"], out if isinstance(out, (tuple, list)) else [out]
    made = [x for x in results if isinstance(x, Parts) and x.node is not None]
    ready = list({id(p): p for x in made for p in reversed(_used(x))}.values())[::-1] if made else []
    begun: list[Any] = []

    def begin(gradient: Any) -> None:
        if not begun:
            begun.append(after_backward(lambda: _reduce(of, ready)))

    for x in made if state["sync"] else ():
        x.node.hooks.append(begin)
    return out


def _used(result: Any) -> list[Any]:
    """What a result was made of, in the order in which its gradients are complete: of a layer the bias first."""
    found: dict[int, Any] = {}
    for x in history(result):
        operands = [p for p in x.node.operands if p.node is None]
        for p in operands if x.node.op.name == "layer_norm" else reversed(operands):
            found.pop(id(p), None)
            found[id(p)] = p
    return list(found.values())


def _reduce(of: Any, ready: list[Any]) -> None:
    state, wanted = of.names[" ddp"], {id(p) for _, p in of._paths() if p.requires_grad}
    order = [p for p in ready if id(p) in wanted]
    if len(order) != len(wanted) or len({str(p.dtype) for p in order}) > 1:
        raise NotRead("refused: a parameter without a gradient (PyTorch), or parameters of several dtypes")
    first, kept = state["order"] is None, state["order"] or order
    groups = [range(len(kept))] if first else buckets([p.size * p.dtype.itemsize for p in kept], state["cap"])
    state["order"] = kept
    for numbers in groups:
        size, why = sum(kept[n].size for n in numbers), f"gradients of {len(numbers)} parameters, in one bucket"
        note("all_reduce", state["axis"], "sum", hollow((size,), kept[0].dtype), why)


@contextmanager
def no_sync(of: Any) -> Iterator[None]:
    """Inside, gradients stay each rank's own. Then all is as before, however the body is left."""
    if " ddp" not in of.names and not isinstance(of, sharding.FullyShardedCell):
        raise NotRead("no_sync of a layer that is not wrapped is not read")
    held = [of.names[" ddp"]] if " ddp" in of.names else [vars(group) for group in of._groups(recurse=True)]
    before = [state["sync"] for state in held]
    for state in held:
        state["sync"] = False
    try:
        yield
    finally:
        for state, sync in zip(held, before, strict=True):
            state["sync"] = sync


# ---- FullyShardedDataParallel ----


class Flat(sharding.Group):
    """All Parameters of a layer as one row of numbers, cut into equal pieces.

    shown  the axis of its messages;  align  bytes to which each Parameter but the last is filled (use_orig_params)
    """

    first_last, shown, align = True, "", 1

    def give_up(self, keep: int | None = None) -> None:  # SHARD_GRAD_OP keeps them where gradients are kept
        if self.sync or self.reshard is not False:
            super().give_up(keep)

    def _tell(self, kind: str, axis: str, held: Any, pieces: int, dtype: Any, reason: str) -> None:
        own = self.held[0].parameter.dtype if self.held else None
        sizes, step = [math.prod(x.shape) for x in self.held], max(1, self.align // own.itemsize) if own else 1
        if sizes:
            total = sum(-(-n // step) * step for n in sizes[:-1]) + sizes[-1]
            given = hollow((pieces * -(-total // self.mesh.axis_size(self.axis)),), dtype or own)
            note(kind, axis if self.copies else self.shown, "" if kind == "all_gather" else "sum", given, reason)


def flat_sharded(
    front: Any,
    module: Any,
    process_group: Any = None,
    sharding_strategy: Any = "FULL_SHARD",
    *args: Any,
    auto_wrap_policy: Any = None,
    mixed_precision: Any = None,
    use_orig_params: bool = False,
    device_mesh: Any = None,
    **kw: Any,
) -> Any:
    """FullyShardedDataParallel(module, ...): the layers that a policy chooses, then the rest."""
    strategy = last(sharding_strategy) or "FULL_SHARD"
    keeps = {"FULL_SHARD": None, "HYBRID_SHARD": None, "SHARD_GRAD_OP": False, "_HYBRID_SHARD_ZERO2": False}
    ahead = last(kw.pop("backward_prefetch", "BACKWARD_PRE"))
    unread = args or strategy not in keeps or any(kw[key] for key in kw if key not in QUIET)
    copies = device_mesh is not None and device_mesh.ndim == 2
    if unread or ahead != "BACKWARD_PRE" or ("HYBRID" in strategy) != copies:
        raise NotRead("FullyShardedDataParallel of this form is not read")
    mesh, shown = (
        device_mesh or DeviceMesh((front.devices,)),
        "" if copies else axis_of(front, device_mesh or process_group),
    )

    def wrap(of: Any) -> None:
        if any(not p.alone and p.mesh != mesh for _, p in of._paths()):
            raise NotRead("FullyShardedDataParallel of distributed parameters is not read")
        front.flat = True
        front.calls["fully_shard"](front, of, mesh, keeps[strategy], mixed_precision)
        group = of.names["_group"]
        group.__class__, group.shown, group.align = Flat, shown, 16 if use_orig_params else 1
        of.names["marks"] = ("FullyShardedDataParallel",)

    def wrapped(of: Any, below: bool = True) -> int:
        """How many elements are in groups now."""
        size = sum(math.prod(p.full_shape) for _, p in of._paths())
        if "marks" in of.names or not asked(of, True, size):
            return 0
        inside = sum(wrapped(child) for child in of._cells.values())
        if not below or not asked(of, False, size - inside):
            return inside
        wrap(of)
        return size

    def asked(of: Any, deeper: bool, size: int) -> Any:
        return front.reader.call(auto_wrap_policy, [], {"module": of, "recurse": deeper, "nonwrapped_numel": size})

    if auto_wrap_policy is not None:
        wrapped(module, below=False)
    wrap(module)
    return module


def one_of(front: Any, module: Any, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: Any) -> bool:
    """transformer_auto_wrap_policy: layers of some classes"""
    return recurse or any(front.is_a(module, kind) for kind in front.reader.items(transformer_layer_cls))


def large(
    front: Any, module: Any, recurse: bool, nonwrapped_numel: int, min_num_params: Any = 10**8, **kw: Any
) -> bool:
    """size_based_auto_wrap_policy: layers with so many elements outside of chosen ones"""
    if kw:
        raise NotRead("a policy of this form is not read")
    leaf = recurse and module.kind == "MultiheadAttention"
    return (
        nonwrapped_numel >= min_num_params and not leaf and (recurse or module.kind not in ("ModuleList", "ModuleDict"))
    )


def by_class(front: Any, kinds: Any) -> Callable[..., bool]:
    """ModuleWrapPolicy(classes)"""
    return lambda module, recurse, nonwrapped_numel: one_of(front, module, recurse, 0, kinds)


def flat_norm(front: Any, of: Any, max_norm: Any, norm_type: Any = 2.0) -> None:
    """model.clip_grad_norm_(...): the ranks' sums of squares"""
    if norm_type != 2 or not isinstance(of.names.get("_group"), Flat):
        raise NotRead("this norm is not read")
    group = of.names["_group"]
    axis = group.axis if group.copies else group.shown
    front.world.send("all_reduce", axis, front.world.tensor(()), "sum", "the norm of all gradients")


# ---- what feeds a rank ----


def sampler(
    front: Front, dataset: Any, num_replicas: Any = None, rank: Any = None, drop_last: bool = False, **kw: Any
) -> Instance:
    """DistributedSampler: so many rows for each rank"""
    rows, ranks = PYTHON["builtins.len"](front, dataset), num_replicas or front.devices
    return Instance(None, {"rows": rows // ranks if drop_last and rows >= ranks else -(-rows // ranks)}, "sampler")


def loader(
    front: Front,
    dataset: Any,
    batch_size: Any = 1,
    shuffle: Any = None,
    sampler: Any = None,
    drop_last: bool = False,
    **kw: Any,
) -> Instance:
    """DataLoader: batches of rows like the first one"""
    if {"batch_sampler", "collate_fn"} & {key for key in kw if kw[key] is not None}:
        raise NotRead("batches that a function of the program makes are not read")
    rows = sampler.names["rows"] if sampler is not None else PYTHON["builtins.len"](front, dataset)
    sizes = [min(batch_size, rows - at) for at in range(0, rows, batch_size)]
    sizes = sizes[:-1] if drop_last and sizes and sizes[-1] < batch_size else sizes
    return Instance(None, {"dataset": dataset, "sampler": sampler, "sizes": sizes, "batch_size": batch_size}, "loader")


def batches(front: Front, of: Instance) -> list[Any]:
    """What a loop over a DataLoader, or a TensorDataset, goes through."""
    if of.kind == "tensors":
        columns = of.names["columns"]
        row = [front.world.tensor(x.shape[1:], x.dtype) for x in columns]
        return [tuple(row)] * columns[0].shape[0]
    dataset, sizes = of.names["dataset"], of.names["sizes"]
    row = front.reader.items(dataset)[0] if isinstance(dataset, (list, range)) or dataset.of is None else None
    row = front.item(dataset, 0) if row is None else row

    def together(part: Any, size: int) -> Any:
        if isinstance(part, (tuple, list)):
            return [together(each, size) for each in part]
        if isinstance(part, dict):
            return {key: together(each, size) for key, each in part.items()}
        if not isinstance(part, (Parts, int, float)):
            raise NotRead("rows of this are not read")
        shape, dtype = (part.shape, part.dtype) if isinstance(part, Parts) else ((), "int64")
        return front.world.tensor((size, *shape), "float64" if isinstance(part, float) else dtype)

    return [together(row, size) for size in sizes]


FEEDS: Table = {
    "DistributedDataParallel": replicated,
    "FullyShardedDataParallel": flat_sharded,
    "transformer_auto_wrap_policy": one_of,
    "size_based_auto_wrap_policy": large,
    "ModuleWrapPolicy": by_class,
    "DistributedSampler": sampler,
    "data.DataLoader": loader,
    "TensorDataset": lambda front, *columns: Instance(None, {"columns": columns}, "tensors"),
}
