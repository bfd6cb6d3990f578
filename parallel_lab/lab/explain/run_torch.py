"""A PyTorch program run as rank 0 of a fake group, and the messages that it sends: the child of `explain(run=True)`.

    python run_torch.py program.py 8        # prints a line of JSON: {"messages": [...], "error": ""}

Needs torch, and nothing of this package. The process group answers at once and moves nothing, so one process is
enough; values are meaningless, shapes and messages are not. "cuda" means "cpu" in the program that is run. A message:
[kind, axis of the mesh, shape that the rank gives, reduction, dtype, phase], phase "setup" where it places a tensor.
"""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

KINDS = {  # of PyTorch's operators: the kind, and which argument is given
    "all_gather_into_tensor": ("all_gather", 0), "_allgather_base_": ("all_gather", 1), "allgather_": ("all_gather", 1),
    "all_reduce": ("all_reduce", 0), "allreduce_": ("all_reduce", 0), "reduce_scatter_tensor": ("reduce_scatter", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1), "all_to_all_single": ("all_to_all", 0),
    "shard_dim_alltoall": ("all_to_all", 0), "alltoall_base_": ("all_to_all", 1), "broadcast": ("broadcast", 0),
    "broadcast_": ("broadcast", 0), "scatter_": ("scatter", 0), "send": ("send", 0), "recv_": ("recv", 0),
}  # fmt: skip
MAIN = Path("on_cpu.py")
SETUP = ("broadcast", "scatter")  # with these PyTorch places a tensor that every rank has
ELSEWHERE = re.compile(r"(cuda|npu|xpu|hpu)(?=$|:\d*$)")


class _OnCpu(ast.NodeTransformer):
    """ "cuda" in the text becomes "cpu"."""

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        value = ELSEWHERE.sub("cpu", node.value) if isinstance(node.value, str) else node.value
        return ast.copy_location(ast.Constant(value), node)


def record(text: str, ranks: int) -> dict[str, Any]:
    """The messages of a program, and the error that ended it."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    import torch
    import torch.distributed as dist
    import torch.distributed.tensor._collective_utils as collective_utils
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from torch.utils._python_dispatch import TorchDispatchMode

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    dist.init_process_group = lambda *args, **kwargs: None
    dist.destroy_process_group = lambda *args, **kwargs: None
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.set_device = torch.accelerator.set_device_index = lambda *args: None
    torch.accelerator.current_accelerator = lambda *args, **kwargs: torch.device("cpu")
    move = {torch.Tensor: torch.Tensor.to, torch.nn.Module: torch.nn.Module.to}
    for kind in move:  # x.to(0) is of an accelerator
        kind.to = lambda self, *args, to=move[kind], **kw: to(  # type: ignore[method-assign,assignment]
            self, *("cpu" if type(a) is int else a for a in args), **kw
        )
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    torch.nn.Module.cuda = lambda self, *args: self  # type: ignore[method-assign]
    # on a CPU it would gather and cut instead, which no accelerator does
    exchange = torch.ops._dtensor.shard_dim_alltoall

    def all_to_all(value: Any, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int) -> Any:
        return exchange(value, gather_dim, shard_dim, mesh.get_group(mesh_dim).group_name)

    collective_utils.shard_dim_alltoall = all_to_all
    import torch.distributed.tensor.placement_types as placement_types

    placement_types.shard_dim_alltoall = all_to_all
    axes: dict[tuple[int, ...], str] = {}
    meshes: list[Any] = []
    made = DeviceMesh.__init__

    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        meshes.append(self)

    DeviceMesh.__init__ = noted  # type: ignore[method-assign]
    messages: list[list[Any]] = []

    from torch.nn.parallel import DistributedDataParallel

    replicate = DistributedDataParallel.__init__

    def reduced(state: Any, bucket: Any) -> Any:  # what is sent without a hook, whose answer a fake group has not
        done: Any = torch.futures.Future()
        dist.all_reduce(bucket.buffer(), group=state)
        done.set_result(bucket.buffer())
        return done

    def replicated(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any):
        sent = len(messages)
        replicate(self, module, None, None, *args, **kw)
        messages[sent:] = [[*m[:5], "setup"] for m in messages[sent:]]
        reduced.__annotations__.clear()  # which PyTorch would compare with types
        self.register_comm_hook(self.process_group, reduced)

    DistributedDataParallel.__init__ = replicated  # type: ignore[method-assign]
    from torch.distributed.fsdp import FullyShardedDataParallel

    shard = FullyShardedDataParallel.__init__

    def sharded(self: Any, *args: Any, device_id: Any = None, **kw: Any) -> None:
        shard(self, *args, device_id=torch.device("cpu"), **kw)

    FullyShardedDataParallel.__init__ = sharded  # type: ignore[method-assign]

    def axis_of(args: Any) -> str:
        while meshes:  # groups are made after a mesh, and not for every one
            mesh = meshes.pop()
            for axis in range(mesh.ndim):
                with suppress(RuntimeError):
                    name = (mesh.mesh_dim_names or [f"axis{n}" for n in range(mesh.ndim)])[axis]
                    axes.setdefault(tuple(dist.get_process_group_ranks(mesh.get_group(axis))), name)
        for arg in args:
            group = arg
            if isinstance(arg, torch.ScriptObject):
                group = dist.ProcessGroup.unbox(arg)
            elif isinstance(arg, str) and arg not in ("sum", "avg", "max", "min", "product"):
                group = dist.distributed_c10d._resolve_process_group(arg)
            if isinstance(group, dist.ProcessGroup):
                ranks = tuple(dist.get_process_group_ranks(group))
                return axes.get(ranks, "")
        return ""

    asked, all_reduce = ["sum"], dist.all_reduce  # a ReduceOp that is handed down does not say which it is

    def reduced_by(tensor: Any, op: Any = dist.ReduceOp.SUM, *args: Any, **kwargs: Any) -> Any:
        in_backward = torch._C._current_graph_task_id() != -1  # HSDP takes the mean of its copies: a sum in our lists
        asked.append("sum" if in_backward else str(op).rpartition(".")[2].lower())
        try:
            return all_reduce(tensor, op, *args, **kwargs)
        finally:
            asked.pop()

    dist.all_reduce = reduced_by

    def reduction(args: Any) -> str:
        return next((a for a in args if isinstance(a, str) and a in ("sum", "avg", "max", "min", "product")), asked[-1])

    from torch.distributed.pipelining.stage import _PipelineStageBase

    gradients: set[int] = set()  # tensors that stages of a pipeline exchange

    def marking(made: Any) -> Any:
        def marked(self: Any, *args: Any) -> Any:
            ops = made(self, *args)
            gradients.update(id(op.tensor) for op in ops)
            return ops

        return marked

    for name in ("get_bwd_recv_ops", "get_bwd_send_ops"):
        setattr(_PipelineStageBase, name, marking(getattr(_PipelineStageBase, name)))

    class Messages(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented
            name = func._schema.name.partition("::")
            if name[0] in ("_c10d_functional", "c10d", "_dtensor") and name[2] in KINDS:
                kind, at = KINDS[name[2]]
                given = args[at]
                while isinstance(given, (list, tuple)):
                    given = given[0] if given else None
                backward = torch._C._current_graph_task_id() != -1 or id(given) in gradients
                phase = "setup" if kind in SETUP else "backward" if backward else "forward"
                reduces = kind in ("all_reduce", "reduce_scatter")
                shape, dtype = (list(given.shape), str(given.dtype)[6:]) if given is not None else ([], "")
                messages.append([kind, axis_of(args), shape, reduction(args) if reduces else "", dtype, phase])
            return func(*args, **(kwargs or {}))

    error = ""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with Messages():
            for path, program in [(path, path.read_text("utf-8")) for path in Path().rglob("*.py")] + [(MAIN, text)]:
                path.write_text(ast.unparse(ast.fix_missing_locations(_OnCpu().visit(ast.parse(program)))), "utf-8")
            sys.path.insert(0, os.getcwd())
            runpy.run_path(str(MAIN), run_name="__main__")  # the whole purpose of run=True
    except (Exception, SystemExit) as fault:
        error = f"{type(fault).__name__}: {fault}"
    sys.stdout = out
    return {"messages": messages, "error": error, "torch": torch.__version__}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text, ranks = file.read(), int(sys.argv[2])
    sys.argv = sys.argv[:1]  # the program is started without options
    print(json.dumps(record(text, ranks)))
