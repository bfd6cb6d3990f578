"""What a network returns outside training: MindSpore's virtual output behind every result.

    compile_forward(net, x, dataset_strategy="full_batch", device_num=8)    # every rank gets the whole result

With "full_batch" every rank gets whole results; with "data_parallel" rows over all devices, or, where dim 0 does not
divide, the whole. Results without dims stay, and so does everything where each input has a strategy of its own, in
training and where gradients are asked for. Sources: MindSpore, step_parallel_utils.cc (IsInsertVirtualOutput),
step_parallel.cc (InsertVirtualOutput), virtual_output_info.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..base.collector import without_collector
from ..base.settings.config import ParallelConfig
from ..layout.tensor_layout import TensorLayout
from .compile_task import check
from .compiler import Compiled, finish, trace
from .draft import Draft
from .passes import PASSES, Pass
from .passes.parallelize import Builder


def result_layout(config: ParallelConfig, shape: tuple[int, ...]) -> TensorLayout | None:
    """How a result of this shape is returned; None: as its operator leaves it."""
    if not shape or config.local or not isinstance(config.dataset_strategy, str):
        return None
    parts = 1 if config.dataset_strategy == "full_batch" or shape[0] % config.device_num else config.device_num
    return TensorLayout.from_strategy((parts,) + (1,) * (len(shape) - 1), config.device_num)


def virtual_output(draft: Draft) -> Draft:
    """The pass, after `parallelize`: brings every result into its `result_layout`."""
    graph, build = draft.graph, Builder(draft)
    if graph.seeds or graph.updates or draft.training.differentiated or not draft.program("forward"):
        return draft
    build.values, instrs = draft.value_table(), list(draft.program("forward"))
    returned: dict[str, str] = {}
    for name, value in zip(graph.outputs, draft.outputs, strict=True):
        held = build.values.get(value)
        want = result_layout(draft.config, held.shape) if held is not None else None
        if held is None or want is None or value in returned or held.placed.same_placement(want):
            continue
        maker = graph.node(name) or next(node for node in graph.nodes if name in node.ins)
        # what reads the result, in the program's texts: it belongs where the result's operator does
        reader = replace(maker, name="virtual_output", op_class="_VirtualOutput", strategy=(want.splits,))
        returned[value] = build.redistribute(value, held.placed, held.shape, want, reader, 0)
        instrs += (replace(instr, stage=max(maker.stage, 0), once=maker.once) for instr in build.instrs)
        build.instrs.clear()
    bridges = tuple((name, returned.get(value, value)) for name, value in draft.bridges)
    outputs = tuple(returned.get(value, value) for value in draft.outputs)
    done = draft.with_program("forward", tuple(instrs), build.values, outputs=outputs, bridges=bridges)
    return done.noted("virtual_output", f"{len(returned)} results are brought into the layout of the inputs")


_AFTER = next(at for at, one in enumerate(PASSES, 1) if one.name == "parallelize")
FORWARD_PASSES = (
    *PASSES[:_AFTER],
    Pass("virtual_output", virtual_output, "operators are split", "a program"),
    *PASSES[_AFTER:],
)


@without_collector
def compile_forward(
    network: Callable[..., Any], *inputs: Any, passes: Iterable[Pass] = FORWARD_PASSES, **options: Any
) -> Compiled:
    """As `compile_program`, for a network that is called outside training: with the virtual output."""
    task = check(network, inputs, **options)
    return finish(replace(task, passes=passes), trace(task))
