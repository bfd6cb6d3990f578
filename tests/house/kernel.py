"""An evening with the kernel: from one slice to eight ranks, which files are read, and which parts of them.

A part is written as `parallel_lab.lab.lessons.inside` says, by which the notebook shows it.
What a part calls in its own file is a part too, or named: a word says what it does.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

from parallel_lab.lab.lessons.inside import part_of
from tests.house.source import PACKAGE, tree


class Stop(NamedTuple):
    """A file of the evening.  parts: None for the whole file;  named: what the parts call, and what it does"""

    path: str
    parts: tuple[str, ...] | None = None
    named: dict[str, str] = {}  # noqa: RUF012 - a table that nothing changes


KERNEL = (
    Stop("layout/tensor_layout.py"),
    Stop("ops/linalg.py", ("about", "_labels", "matmul", "@matmul.vjp")),
    Stop(
        "ops/machine/registry.py",
        ("about", "op"),
        {
            "Case": "an example, from which the battery draws data",
            "_cases": "refuses examples that are not cases",
            "_refuse_twice": "refuses names that are declared already",
        },
    ),
    Stop(
        "ops/machine/opdef.py",
        ("about", "Results", "OpDef.", "OpDef.compute", "OpDef.vjp", "OpDef.signature_for", "OpDef.infer"),
        {
            "OpDef.meets": "what makes one dtype of the operands'",
            "OpDef._rounded": "bfloat16 is computed in float32",
            "OpDef._infer": "sizes of labels, then the result's shape and dtype",
            "_inferred": "the same, kept for equal layers",
        },
    ),
    Stop("ops/machine/signature.py"),
    Stop("ops/machine/split_labels.py"),
    Stop("ops/machine/sharding.py", ("about", "sharding_rule", "_rule")),
    Stop("graph/ir.py", ("about", "GraphInput.", "Node.", "Graph.")),
    Stop("graph/draft.py", ("about", "Draft."), {"Training": "what is to be done besides computing the outputs"}),
    Stop("graph/instr.py"),
    Stop(
        "graph/trace.py",
        (
            *("about", "Scope", "Tracer.", "Tracer.__init__", "Tracer.enter", "Tracer.leave", "Tracer.scope_text"),
            *("Tracer.path", "Tracer.named", "Tracer.data", "Tracer.operand", "Tracer.record", "Traced"),
            *("trace_network", "_read"),
        ),
        {
            "Tracer._parameter": "the value of a Parameter at this line",
            "Tracer._own_parameter": "a Parameter becomes an input of the graph",
            "Tracer._constant": "an array becomes an input of the graph",
            "Tracer._scalar": "a number becomes an input of the graph",
            "Tracer._base": "a readable name: the Cell's path and the operator",
            "Tracer._class_name": "MatMul of more than two dims is MindSpore's BatchMatMul",
        },
    ),
    Stop(
        "graph/compiler.py",
        ("about", "compile_program", "trace", "finish"),
        {
            "Compiled": "the plan with the learner's objects",
            "_check_sums": "micro-batches hand on sums only",
            "_check_loss": "a loss is a float",
            "_order": "names of the parameters as the optimizer has them",
            "_trace_note": "how large the network is",
            "targets_of": "where optimizers run",
        },
    ),
    Stop("graph/passes/__init__.py", ("about", "Pass", "PASSES", "run_passes"), {"CONDITIONS": "words -> when"}),
    Stop(
        "graph/passes/parallelize.py",
        (
            *("about", "Builder.", "Builder.__init__", "Builder.add", "Builder.insert", "Builder.operand"),
            *("Builder.redistribute", "Builder.compute", "Builder.combine", "parallelize"),
        ),
        {
            "View": "a value under another layout, or in another dtype",
            "Builder.layout_and_shape": "where an operand lies, and its global shape",
            "Builder.parameter": "a parameter lies as its first reader wants it",
            "Builder.cast_parameter": "a parameter that is read in another dtype",
            "Builder.alias": "a result that has another name in the graph",
            "Builder.root": "the value that reshapes begin with",
            "Builder.left_partial": "sums that wait for the reader of their reshaped rows: one reduce_scatter",
            "Builder.there": "what was made before for the same layout, on this side of an if",
            "Builder.windowed": "a halo_exchange, where a slice does not suffice",
            "Builder.exchange": "rows of experts, sent where their counts say",
            "Builder.scatter": "partial sums are scattered, not left with every rank",
            "Builder.check_nested": "rows split twice cannot be gathered",
            "step_attrs": "a step of a redistribution as attributes of a message",
            "output_value": "outputs are brought to the layout in which they are returned",
        },
    ),
    Stop(
        "graph/passes/differentiate.py",
        (
            *("about", "Backward.", "Backward.__init__", "Backward.give"),
            *("Backward.take", "Backward.take_array", "Backward.array"),
            *("Backward.run", "Backward.run_part", "Backward.operator_back", "Backward.result"),
            *("Backward.gradient_value", "differentiate"),
        ),
        {
            "Backward.run_micro_batches": "after, in and before micro-batches, with sums in between",
            "Backward.sides": "the conditions of a forward instruction, in a loop those of backward's loop",
            "Backward.or_zeros": "the gradient of one side of an if, and zeros if that is not taken",
            "Backward.alike": "two values lie alike",
            "Backward.across": "a rule's helper value, combined over ranks",
            "loss_scale_name": "the value that scales the loss",
            "_order": "the parameter used last comes first",
        },
    ),
    Stop(
        "graph/passes/message_gradients.py",
        ("about", "message_back"),
        {"_border_back": "between stages of a pipeline", "_extreme_back": "of a maximum, called by the network"},
    ),
    Stop(
        "graph/passes/parameter_gradients.py",
        ("about", "mirror"),
        {"_sum_dtype": "16 bits are summed in float32", "_widened": "a cast to it"},
    ),
    Stop(
        "graph/plan.py",
        ("about", "State", "Plan.", "Plan.value", "Plan.stage_of", "Plan.held_by", "Plan.at", "Plan.instructions"),
    ),
    Stop("graph/kinds.py", ("about", "OnRank", "KindDef", "_run_compute", "_run_slice", "kind_of_message", "KINDS")),
    Stop("run/interpreter.py"),
    Stop("run/frame.py"),
    Stop(
        "run/communicator.py",
        ("about", "Request.", "Request.descriptor", "Start", "Wait", "answer", "_answered", "check_match"),
        {
            "_dtype_name": "str(dtype)",
            "describe": "a request in words",
            "detail": "a descriptor in words",
            "delivered": "a reply in the array that the request gave for it",
        },
    ),
    Stop(
        "run/simulator.py",
        (
            *("about", "_Started", "_Engine.", "_Engine.__init__", "_Engine.advance", "_Engine.send", "_Engine.begin"),
            *("_Engine.answer_started", "_Engine.answers", "simulate", "Simulator.", "Simulator.__init__"),
            *("Simulator.run_step",),
        ),
        {
            "_Engine.counted": "the request with its number",
            "_Engine.claimed": "a handle is waited for once",
            "_Engine.deadlock": "which rank waits for which, for ever",
            "Simulator._need": "a value for every parameter",
            "Simulator._need_states": "a value for every optimizer state",
            "Simulator.full": "slices of all ranks as one tensor",
        },
    ),
)


def nodes_of(path: Path, part: str) -> tuple[int, int, list[ast.stmt]]:
    """(first line, last line, statements) of a part."""
    return part_of(tree(path), path.name, part)


def lines_of(stop: Stop) -> int:
    """How many lines of a file are read."""
    path = PACKAGE / stop.path
    if stop.parts is None:
        return len(path.read_text(encoding="utf-8").splitlines())
    return sum(last - first + 1 for first, last, _ in (nodes_of(path, part) for part in stop.parts))


def called_and_not_shown(stop: Stop) -> set[str]:
    """Functions, classes and methods of the file that its parts call, and that are neither shown nor named."""
    if stop.parts is None:
        return set()
    path = PACKAGE / stop.path
    here = {node.name: node for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    methods = {
        f"{name}.{method.name}"
        for name, node in here.items()
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef)
    }
    called = set()
    for part in stop.parts:
        for call in (each for node in nodes_of(path, part)[2] for each in ast.walk(node) if isinstance(each, ast.Call)):
            target = ast.unparse(call.func)
            owner = part.partition(".")[0]
            if target in here:
                called.add(target)
            elif target.startswith("self.") and f"{owner}.{target[5:]}" in methods:
                called.add(f"{owner}.{target[5:]}")
    shown = {*stop.parts, *stop.named, *(part.removesuffix(".") for part in stop.parts)}
    shown |= {method for method in methods if method.partition(".")[0] in stop.parts}
    return called - shown
