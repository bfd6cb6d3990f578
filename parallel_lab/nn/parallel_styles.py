"""`parallelize_module`: tensor and sequence parallelism as a plan over the names of a network's Cells.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    parallelize_module(net, mesh["tp"], {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    net(x)                            forward: one all_reduce of what w2 gives

A style makes DTensors of a Cell's Parameters, and lays out its inputs and outputs: a Cell is given a rank's own parts,
which `input_layouts` says how to read; it gives back parts again, or DTensors (use_local_output=False). Between
Cells every rank computes with what it has. Rules and defaults: PyTorch 2.14, torch.distributed.tensor.parallel.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..base.checks import fitting, fitting_class
from ..base.errors import ArgumentError, ArgumentTypeError, LayoutError, NotBuiltYet, shorten
from ..layout.device_mesh import DeviceMesh
from ..layout.mesh_layout import AxisPlacement, MeshLayout, Replicate, Shard
from ..ops.reduce import reduce_max
from ..ops.shape import reshape
from ..ops.split_cross_entropy import exp_sums, split_losses, split_losses_grad
from .cell import Cell
from .tensor.dtensor import DTensor, Moved, RankTensors, distribute_tensor
from .tensor.dtensor_calls import on_ranks
from .tensor.dtensor_parameter import as_dtensor, distribute_parameter
from .tensor.dtensor_parts import begins, move, on_part, valueless
from .tensor.dtensor_surroundings import loss_var
from .tensor.tensor import Node

COPIES, LAST_DIM = Replicate(), Shard(-1)
Several = AxisPlacement | tuple[AxisPlacement | None, ...] | None


class ParallelStyle:
    """What `parallelize_module` does with a Cell."""

    def apply(self, cell: Cell, mesh: DeviceMesh) -> None:
        """Change the Cell's Parameters, and register what lays out its inputs and outputs."""
        raise NotImplementedError


@fitting_class
@dataclass(frozen=True, kw_only=True)
class ColwiseParallel(ParallelStyle):
    """The outputs of a Dense are split; of an Embedding, the columns of its table.

    input_layouts     how the input lies; it is made whole on every rank
    output_layouts    how the output is to lie: Shard(-1) needs no message
    use_local_output  give ranks' own parts, not a DTensor

    Raises NotBuiltYet (a NotImplementedError) for other Cells.
    """

    input_layouts: AxisPlacement = COPIES
    output_layouts: AxisPlacement = LAST_DIM
    use_local_output: bool = True

    def apply(self, cell: Cell, mesh: DeviceMesh) -> None:
        kind = _kind(cell, "ColwiseParallel")
        for name in list(cell._params):
            distribute_parameter(cell, name, mesh, [Shard(0 if kind == "dense" else 1)])
        _lay_out(cell, mesh, self.input_layouts, Replicate(), self.output_layouts, self.use_local_output)


@fitting_class
@dataclass(frozen=True, kw_only=True)
class RowwiseParallel(ParallelStyle):
    """The inputs of a Dense are split, so that its output is pending; of an Embedding, the rows of its table.

    input_layouts     how the input lies; a Dense wants Shard(-1), an Embedding copies
    output_layouts    how the output is to lie: Replicate() reduces it, Shard(1) reduces and scatters
    use_local_output  give ranks' own parts, not a DTensor

    Raises NotBuiltYet (a NotImplementedError) for other Cells.
    """

    input_layouts: AxisPlacement = LAST_DIM
    output_layouts: AxisPlacement = COPIES
    use_local_output: bool = True

    def apply(self, cell: Cell, mesh: DeviceMesh) -> None:
        kind = _kind(cell, "RowwiseParallel")
        for name, parameter in list(cell._params.items()):
            rows = Shard(0) if kind == "embedding" else Shard(1) if len(parameter.full_shape) > 1 else Replicate()
            distribute_parameter(cell, name, mesh, [rows])
        wanted = Shard(-1) if kind == "dense" else Replicate()
        _lay_out(cell, mesh, self.input_layouts, wanted, self.output_layouts, self.use_local_output)


@fitting_class
@dataclass(frozen=True)
class SequenceParallel(ParallelStyle):
    """A norm or a dropout on a split sequence: copies of its Parameters, whose gradients are pending.

    sequence_dim      dim of the input that is split
    use_local_output  give ranks' own parts, not a DTensor
    """

    sequence_dim: int = 1
    use_local_output: bool = False

    def apply(self, cell: Cell, mesh: DeviceMesh) -> None:
        for _, below in cell.cells_and_names():
            for name in list(below._params):  # type: ignore[attr-defined]
                distribute_parameter(below, name, mesh, [Replicate()])
        split = Shard(self.sequence_dim)
        _lay_out(cell, mesh, split, split, None, self.use_local_output)


@fitting_class
@dataclass(frozen=True, kw_only=True)
class PrepareModuleInput(ParallelStyle):
    """The inputs of a Cell laid out otherwise before it runs.

    input_layouts, desired_input_layouts  one per input, None for one that is left alone; or one for a single input
    use_local_output  give the Cell ranks' own parts, not DTensors

    Raises ArgumentError unless both are as many.
    """

    input_layouts: Several = None
    desired_input_layouts: Several = None
    use_local_output: bool = False

    def __post_init__(self) -> None:
        _as_many("PrepareModuleInput", self.input_layouts, self.desired_input_layouts)

    def apply(self, cell: Cell, mesh: DeviceMesh) -> None:
        before, after = _tuple(self.input_layouts), _tuple(self.desired_input_layouts)

        def prepare(cell: Cell, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            if len(inputs) != len(before):
                given = f"{len(inputs)} inputs by position and {len(before)} input_layouts"
                raise ArgumentError(given, where=cell._where(), allowed="One layout per input")
            laid = zip(inputs, before, after, strict=True)
            return tuple(_moved(x, mesh, a, b, self.use_local_output) for x, a, b in laid)

        cell.register_forward_pre_hook(prepare)


@fitting_class
@dataclass(frozen=True, kw_only=True)
class PrepareModuleOutput(ParallelStyle):
    """The outputs of a Cell laid out otherwise after it ran.

    output_layouts, desired_output_layouts  one per output, None for one that is left alone; or one for a single output
    use_local_output  give ranks' own parts, not DTensors

    Raises ArgumentError unless both are as many.
    """

    output_layouts: Several
    desired_output_layouts: Several
    use_local_output: bool = True

    def __post_init__(self) -> None:
        _as_many("PrepareModuleOutput", self.output_layouts, self.desired_output_layouts)

    def apply(self, cell: Cell, mesh: DeviceMesh) -> None:
        before, after = _tuple(self.output_layouts), _tuple(self.desired_output_layouts)

        def prepare(cell: Cell, inputs: Any, output: Any) -> Any:
            outputs = output if isinstance(output, tuple) else (output,)
            if len(outputs) != len(before):
                given = f"{len(outputs)} outputs and {len(before)} output_layouts"
                raise ArgumentError(given, where=cell._where(), allowed="One layout per output")
            laid = zip(outputs, before, after, strict=True)
            moved = tuple(_moved(x, mesh, a, b, self.use_local_output) for x, a, b in laid)
            return moved if isinstance(output, tuple) else moved[0]

        cell.register_forward_hook(prepare)


@fitting
def parallelize_module(
    module: Cell, device_mesh: DeviceMesh, parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle]
) -> Cell:
    """Apply a style to a Cell, or styles to Cells inside it by their paths ("layers.*.w1"). Returns the Cell.

    Raises LayoutError for a mesh of several axes; warns where a path names no Cell, which PyTorch lets pass too.
    """
    if device_mesh.ndim != 1:
        hint = f'Pass one of its axes: mesh["{device_mesh.names[-1]}"]'
        raise LayoutError(f"{device_mesh}", where="parallelize_module", allowed="A mesh of one axis", hint=hint)
    plan = {"": parallelize_plan} if isinstance(parallelize_plan, ParallelStyle) else parallelize_plan
    cells = dict(module.cells_and_names())
    for pattern, style in plan.items():
        if not isinstance(style, ParallelStyle):
            allowed = "ColwiseParallel(), RowwiseParallel(), ..."
            raise ArgumentTypeError(f"{pattern!r}: {shorten(style)}", where="parallelize_module", allowed=allowed)
        found = [cells[path] for path in matching(cells, pattern)]
        if not found:
            known = shorten([path for path in cells if path])
            warnings.warn(f"parallelize_module: no Cell {pattern!r}; there are {known}", stacklevel=2)
        for cell in found:
            style.apply(cell, device_mesh)  # type: ignore[arg-type]
    return module


def matching(paths: Iterable[str], pattern: str) -> list[str]:
    """The paths that a path of a plan means: "layers.*.w1"."""
    tokens = pattern.split(".")
    return [p for p in paths if len(parts := p.split(".")) == len(tokens) and all(map(fnmatchcase, parts, tokens))]


def _kind(cell: Cell, style: str) -> str:
    names = {kind.__name__ for kind in type(cell).__mro__}  # inventory classes, and MindSpore's mint
    if names & {"Dense", "Linear"}:
        return "dense"
    if "Embedding" in names:
        return "embedding"
    raise NotBuiltYet(
        f"{style} of {cell._where()}", allowed="nn.Dense and nn.Embedding", hint="Norms: SequenceParallel"
    )


def _lay_out(
    cell: Cell, mesh: DeviceMesh, given: AxisPlacement, wanted: AxisPlacement, out: AxisPlacement | None, local: bool
) -> None:
    """Lay out the first input and the output of a Cell.  out: None leaves the output as it lies."""

    def before(cell: Cell, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_moved(inputs[0], mesh, given, wanted, False), *inputs[1:])

    def after(cell: Cell, inputs: Any, output: Any) -> Any:
        return _moved(output, mesh, None, out, local)

    cell.register_forward_pre_hook(before)
    cell.register_forward_hook(after)


def _moved(value: Any, mesh: DeviceMesh, given: AxisPlacement | None, wanted: AxisPlacement | None, local: bool) -> Any:
    """A value read as `given`, laid out as `wanted`."""
    x = as_dtensor(value, mesh, given)
    if not isinstance(x, DTensor) or isinstance(x, RankTensors):
        return value
    if wanted is not None and x.placements != MeshLayout(x.mesh, (wanted,)).on(x.ndim).placements:
        x = x.redistribute([wanted])  # only then: its gradient would be reduced on the way back
    return x.to_local() if local else x


def _tuple(layouts: Several) -> tuple[AxisPlacement | None, ...]:
    return layouts if isinstance(layouts, tuple) else (layouts,)


def _as_many(where: str, before: Several, after: Several) -> None:
    if len(_tuple(before)) != len(_tuple(after)):
        raise ArgumentError(f"{shorten(before)} and {shorten(after)}", where=where, allowed="As many of both")


@contextmanager
def loss_parallel() -> Iterator[None]:
    """Inside, cross_entropy of logits whose classes are split does not gather them: `parallel_cross_entropy`.

    with loss_parallel():
        loss = ops.cross_entropy(logits, labels)
        loss.backward()

    PyTorch: torch.distributed.tensor.parallel.loss_parallel, where a mean takes a mesh of one axis only.
    """
    token = loss_var.set(parallel_cross_entropy)
    try:
        yield
    finally:
        loss_var.reset(token)


@on_ranks()
def parallel_cross_entropy(logits: DTensor, labels: Any) -> DTensor:
    """Cross-entropy of each row whose classes are split, which are not gathered: what PyTorch does in loss_parallel.

    logits  (rows, classes), the classes split by some axes;  labels  (rows,) int, a DTensor of the same mesh, or the
    same Tensor on every rank

    Returns (rows,), whole along the axes that split the classes. Sends three messages of (rows, 1) along each of them:
    the largest logit, the sum of exponentials, the label's logit.
    """
    rows, classes = logits.shape
    kept = MeshLayout(logits.mesh, tuple(p if p == Shard(0) else Replicate() for p in logits.placements))
    if not isinstance(labels, DTensor) or labels.alone:
        labels = distribute_tensor(labels, logits.mesh)
    x, labels = reshape(logits.detach(), (rows, classes, 1)), move(reshape(labels, (rows, 1)), kept, "labels")
    largest = move(reduce_max(x, 1), kept, "the largest logit")
    sums = move(exp_sums(x, largest), kept, "the sum of exponentials")
    losses = move(split_losses(x, largest, sums, labels, classes=classes), kept, "the label's logit")

    def gradient(g: DTensor) -> DTensor:
        g, parts = move(g, kept, "gradient of parallel_cross_entropy"), {}
        if valueless():
            return logits.detach()
        for rank, part in logits._locals.items():
            own = (largest.local(rank)[:, 0], sums.local(rank)[:, 0], labels.local(rank)[:, 0])
            attrs = {"classes": classes, "offset": begins(logits.layout, logits.shape, 1, rank)}
            parts[rank] = on_part(split_losses_grad, (g.local(rank), part, *own), attrs)
        return logits.like(parts, logits.layout, logits.shape)

    result = reshape(losses, (rows,))
    if logits.requires_grad:
        result.node = Node(Moved("parallel_cross_entropy", gradient), (logits,), {})
    return result
