"""Lines of MindSpore, read for their settings and never executed.

    lines = read_code("self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))")
    lines.strategies       (Sharded(line=1, name="matmul", op="MatMul", strategy=((2, 4), (4, 1))),)

Understood are the calls and assignments in UNDERSTOOD, wherever they stand: in a class, a function or a loop. Their
arguments may be literals, names of literals assigned above, and sums and products of those. Everything else in a
program is passed over.
"""

from __future__ import annotations

import ast
import operator
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.errors import ArgumentError, ParallelLabError, shorten

UNDERSTOOD = (
    "ops.MatMul().shard(...), self.matmul.shard(...), set_auto_parallel_context(...), AutoParallel's comm_fusion(...), "
    "hsdp(...) and pipeline(...), parameter.comm_fusion = ..., set_comm_fusion(...), nn.PipelineCell, "
    "nn.GradAccumulation and nn.Momentum or another optimizer"
)
LARGEST = 100_000  # characters
CALLS = {
    "set_auto_parallel_context": (),
    "comm_fusion": ("comm_fusion",),
    "hsdp": ("shard_size", "threshold", "optimizer_level"),
    "AutoParallel": (None, "parallel_mode"),
    "pipeline": ("stages", "output_broadcast", "interleave", "scheduler"),
    "PipelineCell": (None, "micro_size"),
    "GradAccumulation": (None, "micro_size"),
}
OPTIMIZERS = ("SGD", "Momentum", "Adam", "AdamWeightDecay", "Lamb")
_SUMS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True)
class Sharded:
    """A `shard` call.  name: of the operator, "" where the line says none;  op: its class, where the line says it"""

    line: int
    name: str
    op: str
    strategy: Any


@dataclass
class Pasted:
    """What was found.

    settings   {name: (line, value)} of the context, of `hsdp`, `pipeline` and the cells
    ids        {parameter or the beginning of its name: (line, comm_fusion)}
    """

    strategies: list[Sharded] = field(default_factory=list)
    settings: dict[str, tuple[int, Any]] = field(default_factory=dict)
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a setting."""
        return self.settings[name][1] if name in self.settings else default

    def first(self, *names: str) -> Any:
        """The value of the first of these settings that was given."""
        return next((self.settings[name][1] for name in names if name in self.settings), None)

    def nothing_for(self, what: str) -> ArgumentError:
        """The error for lines that set nothing of this lab."""
        names = [
            *self.settings,
            *(f"{s.name or s.op}.shard" for s in self.strategies),
            *(["comm_fusion"] if self.ids else []),
        ]
        summary = f"they set {', '.join(names)}" if names else "they set nothing"
        return ArgumentError(
            f"these lines have no {what}: {summary}", where="set_code", allowed=f"Understood: {UNDERSTOOD}"
        )


def fault(line: int, what: str, allowed: str = "", hint: str = "") -> ArgumentError:
    """An error that names the line."""
    return ArgumentError(f"line {line}: {what}", where="set_code", allowed=allowed, hint=hint)


def read_code(text: str) -> Pasted:
    """What the lines set. Raises ArgumentError, with the line, if one is not Python or its value not a literal."""
    if not isinstance(text, str) or len(text) > LARGEST:
        what = f"a text of {len(text)} characters" if isinstance(text, str) else shorten(text)
        raise ArgumentError(what, where="set_code", allowed=f"A text of at most {LARGEST} characters")
    try:
        tree = ast.parse(_dedented(text))
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        shown = text.splitlines()[line - 1].strip() if line <= len(text.splitlines()) else ""
        raise fault(line, f"{shorten(shown)} cannot be read", f"These parts of Python: {UNDERSTOOD}") from None
    found, known = Pasted(), {}
    try:
        for node in _in_order(tree):
            _take(node, found, known)
    except RecursionError:
        raise ArgumentError("lines nested too deeply", where="set_code", allowed=f"Understood: {UNDERSTOOD}") from None
    return found


def _dedented(text: str) -> str:
    """Lines copied out of a class, as lines of their own; their numbers stay."""
    return textwrap.dedent(text.expandtabs()).replace("\r\n", "\n")


def _in_order(tree: ast.AST) -> list[ast.AST]:
    """Statements' assignments and calls, in the order of their lines."""
    wanted = [n for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.AnnAssign | ast.Call)]
    # of a line the assignment first: it may name the operator that a call in it makes
    return sorted(wanted, key=lambda n: (n.lineno, isinstance(n, ast.Call), n.col_offset))


def _take(node: ast.AST, found: Pasted, known: dict[str, Any]) -> None:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        _assigned(node, found, known)
        return
    assert isinstance(node, ast.Call)
    name = _last(node.func)
    if name == "shard" and isinstance(node.func, ast.Attribute):
        _sharded(node, found, known)
    elif name == "set_comm_fusion" and isinstance(node.func, ast.Attribute):
        value = _argument(node, 0, "fusion_type", known)
        found.ids[_path(node.func.value)] = (node.lineno, value)
    elif name in OPTIMIZERS:
        found.settings["optimizer"] = (node.lineno, name)
    elif name in CALLS:
        for position, part in enumerate(node.args):
            names = CALLS[name]
            if position < len(names) and names[position]:
                found.settings[names[position]] = (part.lineno, _value(part, known))
        for keyword in node.keywords:
            if keyword.arg and _last(keyword.value) not in ("net", "network"):
                setting = keyword.arg if name != "comm_fusion" else "comm_fusion"
                found.settings[setting] = (keyword.value.lineno, _value(keyword.value, known))
        if name in ("PipelineCell", "GradAccumulation"):
            found.settings[name] = (node.lineno, found.value("micro_size"))


def _assigned(node: ast.Assign | ast.AnnAssign, found: Pasted, known: dict[str, Any]) -> None:
    """Names of literals are kept; `x.comm_fusion = 2` is taken."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    target, value = targets[0], node.value
    if value is None:
        return
    if isinstance(target, ast.Attribute) and target.attr == "comm_fusion":
        if isinstance(value, ast.Subscript):  # {...}[parameter.name]
            ids = _value(value.value, known)
            if not isinstance(ids, dict):
                raise fault(
                    node.lineno, "comm_fusion from something else than a dict", "{parameter: number}[parameter.name]"
                )
            found.ids |= {name: (node.lineno, number) for name, number in ids.items()}
        else:
            found.ids[_path(target.value)] = (node.lineno, _value(value, known))
        return
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call) and _last(n.func) == "shard"]
    if calls and isinstance(target, ast.Attribute | ast.Name):
        known[_MARK, id(calls[0])] = _path(target)
    try:
        held = _value(value, known)
    except ArgumentError:
        return
    if isinstance(target, ast.Name):
        known[target.id] = held
    elif isinstance(target, ast.Tuple) and isinstance(held, tuple | list) and len(held) == len(target.elts):
        known.update({t.id: v for t, v in zip(target.elts, held, strict=True) if isinstance(t, ast.Name)})


_MARK = "the name that a line gives to a call"


def _sharded(node: ast.Call, found: Pasted, known: dict[str, Any]) -> None:
    assert isinstance(node.func, ast.Attribute)
    of = node.func.value
    op = _last(of.func) if isinstance(of, ast.Call) else ""
    name = known.get((_MARK, id(node)), "") if op else _path(of)
    strategy = _argument(node, 0, "in_strategy", known)
    found.strategies.append(Sharded(node.lineno, name, op, strategy))


def _argument(node: ast.Call, position: int, name: str, known: Mapping[Any, Any]) -> Any:
    argument = node.args[position] if len(node.args) > position else None
    argument = next((k.value for k in node.keywords if k.arg == name), argument)
    if argument is None:
        raise fault(node.lineno, f"{_last(node.func)}() without {name}", "One argument")
    return _value(argument, known)


def _value(node: ast.AST, known: Mapping[Any, Any]) -> Any:
    """A literal, a known name, or a sum or product of ints. Raises ArgumentError for the rest."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Tuple | ast.List):
        items = [_value(item, known) for item in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {
            _value(k, known): _value(v, known) for k, v in zip(node.keys, node.values, strict=True) if k is not None
        }
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    if isinstance(node, ast.Attribute) and _last(node.value) == "ParallelMode":
        return node.attr.lower()
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, known)
        if isinstance(value, int | float):
            return -value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        left, right = _value(node.left, known), _value(node.right, known)
        small = isinstance(left, int) and isinstance(right, int) and abs(left) < 2**40 and abs(right) < 2**40
        if small and not (isinstance(node.op, ast.FloorDiv) and right == 0):
            return _SUMS[type(node.op)](left, right)
    what = f"{shorten(ast.unparse(node))} is not known"
    raise fault(
        getattr(node, "lineno", 1), what, "Literals, names of literals assigned above, sums and products of ints"
    )


def _last(node: ast.AST) -> str:
    """The last name of "ops.MatMul"."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _path(node: ast.AST) -> str:
    """ "dense1.matmul" of self.dense1.matmul, net.dense1.matmul and dense1.matmul."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name) and (node.id not in ("self", "net", "network") or not names):
        names.append(node.id)
    return ".".join(reversed(names))


# ---- strategies for operators that a lab has ----


RESULTS = ("_0", "_batch_norm_apply")  # what names of results end in, behind the operator's


def named_strategies(found: Pasted, operators: Mapping[str, str]) -> dict[str, Sharded]:
    """{operator of the lab: its `shard` call}.  operators: {name: class}, in order.

    A name may be written with _ for the dot, or be that of a result, as in programs that a lab writes. Calls without a
    name belong to the operators of their class, in order. Raises ArgumentError naming the line and the operators.
    """
    plain = {name.replace(".", "_"): name for name in operators}
    taken: dict[str, Sharded] = {}
    for one in found.strategies:
        flat = one.name.replace(".", "_")
        of_result = next((flat.removesuffix(end) for end in RESULTS if flat.endswith(end)), "")
        name = one.name if one.name in operators else plain.get(flat) or plain.get(of_result, "")
        whole = next((n for known, n in plain.items() if flat.startswith(f"{known}_")), "")
        if not name and whole and operators[whole] == "ScaledDotProductAttention":
            if one.name.endswith("_turn"):  # written as products, mask and softmax; q, k and v are turned
                taken[whole] = replace(one, strategy=one.strategy * 3)
            continue
        if not name and not one.name:
            name = next((n for n, op in operators.items() if op == one.op and n not in taken), "")
        if not name:
            known = ", ".join(f"{n} ({op})" for n, op in operators.items())
            what = f"there is no operator {shorten(one.name or one.op)}"
            raise fault(one.line, f"{what} left" if one.op and not one.name else what, f"Operators: {known}")
        taken[name] = one
    return taken


def check_strategies(wanted: Mapping[str, Sharded], compiled: Callable[[dict[str, Any]], Any]) -> None:
    """Raise the error of `compiled` with the line of the first call that makes it."""
    some: dict[str, Any] = {}
    for name, one in wanted.items():
        some[name] = one.strategy
        try:
            compiled(some)
        except ParallelLabError as error:
            raise fault(one.line, str(error)) from None
