"""The part of a trace for `if` on a tensor's value: both sides are written down, and each runs only where it is taken.

    if self.step % 2 == 0:          equal = Equal(floormod, 0)
        y = ops.exp(x)              exp = Exp(x)                   {if: %equal}
    else:
        y = x * 2                   mul = Mul(x, 2)                {if: not %equal}
    return y                        y = Branch(equal, exp, mul)    which of both is there

What a side changes (variables, Parameters, items of tensors) is one of two values where the sides meet. Ranks that
exchange something on a side must decide alike; where they do not, the run ends with a CollectiveMismatch.
`python_branches.py` finds the `if` in the function's source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import TraceError, shorten
from ..base.origin import caller
from ..nn.tensor.parameter import Parameter
from ..ops.machine.registry import OPS
from .forms import map_form
from .instr import Pairs
from .traced_step import TracedStep
from .traced_value import TracedValue


class Missing:
    """What a variable holds that a side does not set; `returned`: it is what the function returns."""

    def __init__(self, name: str, *, returned: bool = False) -> None:
        self.name, self.returned = name, returned


class Variables(NamedTuple):
    """What a side or a turn may set: the `names`, and functions that read and set all values together."""

    names: Sequence[str]
    read: Callable[[], tuple[Any, ...]]
    set: Callable[[tuple[Any, ...]], None]


class _Changed(NamedTuple):
    """What a side can change besides variables: new values of Parameters, also after an optimizer's step; names of
    Tensors and traced values whose items were set.
    """

    assigns: dict[str, str]
    updated: dict[str, str]
    held: dict[int, str]
    items: dict[int, tuple[TracedValue, str]]


class TracedBranches(TracedStep):
    """What a `Tracer` notes of the sides of an `if`."""

    constant_names: dict[int, str]

    def __init__(self) -> None:
        super().__init__()
        self.loops = 0  # on tensors, in which what comes next stands
        self.when: Pairs = ()  # on which side of which `if` what comes next runs
        self.made_when: dict[str, Pairs] = {}
        self.between_sides = False  # whether variables are read or set between the sides
        self.opposites: dict[str, str] = {}  # {what a `not` has made: of what}
        self.items: dict[int, tuple[TracedValue, str]] = {}  # traced values whose items a side has set, and were

    def truth(self, value: TracedValue) -> TracedValue:
        """A tensor of one element as () bool. Raises TraceError for any other."""
        if value.shape:
            if np.prod(value.shape) != 1:
                what = f"a truth test of {value.name!r} (shape {value.shape}, {value.dtype})"
                raise TraceError(what, where=caller(self.scope_text()).place, allowed="A tensor of one element")
            value = OPS["reshape"](value, shape=())
        if value.dtype.kind != "b":
            return OPS["not_equal"](value, 0)
        maker = next((node for node in self.nodes if value.name in node.outs), None)
        moved = maker is None or maker.opdef.view or maker.op == "cast"  # its reader decides where it lies
        return OPS["equal"](value, True) if moved else value

    def negated(self, value: TracedValue) -> TracedValue:
        """`not value`."""
        value = self.truth(value)
        result = OPS["logical_not"](value)
        self.opposites[result.name] = value.name
        return result

    def branched(self, condition: TracedValue, sides: Sequence[Callable[[], object]], variables: Variables) -> None:
        """Run both sides of an `if`, and go on with the variables as one of them leaves them."""
        taken, place = self.truth(condition), caller(self.scope_text()).place
        outer, before, kept = self.when, self._between(variables.read), self._changed()
        ends = []
        for side, run in zip((True, False), sides, strict=True):
            self._between(variables.set, before)
            self._restore(kept)
            self.when = (*outer, (taken.name, side))
            try:
                run()
            finally:
                self.when = outer
            ends.append((self._between(variables.read), self._changed()))
        (then, then_changed), (other, other_changed) = ends
        self._restore(kept)
        self._meet(taken, kept, then_changed, other_changed)
        pairs = zip(variables.names, then, other, strict=True)
        self._between(variables.set, tuple(self.either(taken, a, b, name, place) for name, a, b in pairs))

    def _between(self, call: Callable[..., Any], *values: Any) -> Any:
        """Read or set the variables of an `if` or a loop."""
        self.between_sides = True
        try:
            return call(*values)
        finally:
            self.between_sides = False

    def written(self) -> tuple[int, int, _Changed]:
        """How much has been written down; `looped` takes this mark of the moment before the loop showed itself."""
        return len(self.nodes), len(self.prints), self._changed()

    def looped(
        self,
        test: Callable[[], Any],
        body: Callable[[], object],
        variables: Variables,
        before: tuple[int, int, _Changed],
    ) -> None:
        """A `while` on a tensor: one turn is written down, of variables, Parameters and items that it changes."""
        (nodes, prints, kept), begin = before, self._between(variables.read)
        self._restore(kept)
        self._turn(test, body, variables, ((), ()))
        changed = self._changed()
        parameters = [name for name, value in changed.assigns.items() if kept.assigns.get(name) != value]
        items = [value for key, (value, now) in changed.items.items() if (value, now) != kept.items.get(key)]
        phases = {node.phase for node in self.nodes[nodes:]}
        del self.nodes[nodes:], self.prints[prints:]
        self._restore(kept)
        self._between(variables.set, begin)
        if "after" in phases or any(name in self.updated for name in parameters):
            raise self.twice("a loop on a tensor behind an optimizer's step", "Read the new values in the next call")
        was, self.in_update = self.in_update, self.in_update or "update" in phases
        try:
            self._turn(test, body, variables, (parameters, items))
        finally:
            self.in_update = was

    def _turn(
        self,
        test: Callable[[], Any],
        body: Callable[[], object],
        variables: Variables,
        changes: tuple[Sequence[str], Sequence[TracedValue]],
    ) -> None:
        """Write down one turn of a loop, in which these Parameters and items of values change."""
        outer, place, (parameters, items) = self.when, caller(self.scope_text()).place, changes
        values = [*self._between(variables.read), *map(self._held, parameters), *items]
        entered = [map_form(self._entered, value) for value in values]
        count = len(values) - len(parameters) - len(items)
        self.assigns |= {name: value.name for name, value in zip(parameters, entered[count:], strict=False)}
        for value, now in zip(items, entered[count + len(parameters) :], strict=True):
            self.item_set(value, now.name)
        self._between(variables.set, map_form(_copied, tuple(entered[:count])))
        loop = OPS["logical_not"](self.operand(False, []))
        self.when, self.loops = (*outer, (loop.name, True)), self.loops + 1
        try:
            condition = test()
            if not isinstance(condition, TracedValue):
                hint = "Let it depend on what a turn changes"
                raise TraceError(f"a while on {shorten(condition)}", where=place, allowed="A condition", hint=hint)
            condition = self.truth(condition)
            self.when = (*outer, (loop.name, True), (condition.name, True))
            body()
            self.when = (*outer, (loop.name, True))
            ends = [*self._between(variables.read), *map(self._held, parameters), *items]
            every = zip((*variables.names, *parameters, *(v.name for v in items)), entered, ends, strict=True)
            after = [self._carried(condition, loop.name, now, end, name, place) for name, now, end in every]
        finally:
            self.when, self.loops = outer, self.loops - 1
        self.assigns |= {name: value.name for name, value in zip(parameters, after[count:], strict=False)}
        for value, end in zip(items, after[count + len(parameters) :], strict=True):
            value.name = end.name
        self._between(variables.set, tuple(after[:count]))

    def _held(self, name: str) -> TracedValue:
        """What a Parameter holds now."""
        return TracedValue(self.assigns.get(name, name), self.inputs[name].shape, self.inputs[name].dtype, self)

    def _entered(self, value: Any) -> Any:
        """What a variable holds as the first turn finds it: a value of its own, if it is a tensor or a number."""
        tensor = hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, Parameter)
        return OPS["identity"](self.operand(value, [])) if tensor or _is_number(value) else value

    def _carried(self, condition: TracedValue, loop: str, now: Any, end: Any, name: str, place: str) -> Any:
        """What a variable holds behind a loop. Raises TraceError where a turn makes something else of it."""
        if isinstance(now, (list, tuple)) and type(end) is type(now) and len(end) == len(now):
            pairs = enumerate(zip(now, end, strict=True))
            return type(now)(self._carried(condition, loop, a, b, f"{name}[{n}]", place) for n, (a, b) in pairs)
        if isinstance(now, dict) and isinstance(end, dict) and end.keys() == now.keys():
            return {
                key: self._carried(condition, loop, a, end[key], f"{name}[{key!r}]", place) for key, a in now.items()
            }
        if isinstance(now, Missing):
            return now  # set in each turn before it is read
        if isinstance(now, TracedValue):
            if isinstance(end, TracedValue) and end.name == now.name:
                return now
            try:
                following = self.operand(end, [now])
            except TraceError:
                following = None
            if following is not None and (following.shape, following.dtype) == (now.shape, now.dtype):
                return OPS["loop"](condition, now, following, of=loop)
            after = shorten(end) if following is None else f"shape {following.shape}, {following.dtype}"
            what = f"{name!r} is shape {now.shape}, {now.dtype} before a turn of the loop, and {after} after it"
            hint = "Give it its shape and dtype before the loop"
            raise TraceError(what, where=place, allowed="One shape and dtype", hint=hint)
        if now is end:
            return now
        what = f"{name!r} is {shorten(now)} before a turn of the loop, and {shorten(end)} after it"
        raise TraceError(what, where=place, allowed="Tensors and numbers change in a loop on a tensor")

    def either(self, taken: TracedValue, then: Any, other: Any, name: str, place: str) -> Any:
        """A variable's value after an `if`. Raises TraceError if one tensor cannot hold what the two sides leave."""
        if then is True and isinstance(other, TracedValue) and self.opposites.get(taken.name) == other.name:
            return True  # "not returned yet: return now": it has returned, either way
        if then is other or (type(then) is type(other) and isinstance(then, (bool, int, float, str)) and then == other):
            return then
        if isinstance(then, Missing) or isinstance(other, Missing):
            given, side = (other, False) if isinstance(then, Missing) else (then, True)
            missing = then if given is other else other
            if isinstance(given, Missing) or not missing.returned:
                return missing
            zeros = map_form(_zeros, given)  # a later `if` says that the function has not returned yet
            return self.either(taken, *((given, zeros) if side else (zeros, given)), name, place)
        if type(then) is type(other) and isinstance(then, (list, tuple)) and len(then) == len(other):
            pairs = enumerate(zip(then, other, strict=True))
            parts = [self.either(taken, a, b, f"{name}[{n}]", place) for n, (a, b) in pairs]
            return type(then)(*parts) if hasattr(then, "_fields") else type(then)(parts)
        if type(then) is type(other) is dict and then.keys() == other.keys():
            return {key: self.either(taken, then[key], other[key], f"{name}[{key!r}]", place) for key in then}
        return self._one_of(taken, then, other, name, place)

    def _one_of(self, taken: TracedValue, then: Any, other: Any, name: str, place: str) -> TracedValue:
        numbers = _is_number(then) and _is_number(other)
        if numbers and type(then) is not type(other):  # 1 or 2.0
            then, other = float(then), float(other)
        try:
            a, b = self.operand(then, [] if numbers else [other]), self.operand(other, [] if numbers else [then])
        except TraceError:
            a = b = None
        if a is None or b is None or (a.shape, a.dtype) != (b.shape, b.dtype):
            shown = [f"shape {v.shape}, {v.dtype}" if v is not None else shorten(x) for v, x in ((a, then), (b, other))]
            what = f"{name!r} is {shown[0]} where the condition holds, and {shown[1]} where it does not"
            hint = "Set it on both sides of the if, to tensors of one shape and dtype"
            raise TraceError(what, where=place, allowed="Tensors of one shape and dtype, or one value", hint=hint)
        return OPS["branch"](taken, a, b)

    def shown(self, value: TracedValue) -> str:
        """The name under which `value` is printed: where this line stands, if that is on one side, or in a loop."""
        return value.name if self.made_when.get(value.name, ()) == self.when else OPS["identity"](value).name

    # ---- what a side changes besides variables ----

    def item_set(self, value: TracedValue, name: str) -> None:
        """Items of `value` are set: it stands for `name` from now on."""
        if self.when:
            self.items.setdefault(id(value), (value, value.name))
        value.name = name

    def _changed(self) -> _Changed:
        items = {key: (value, value.name) for key, (value, _) in self.items.items()}
        return _Changed(dict(self.assigns), dict(self.updated), dict(self.constant_names), items)

    def _restore(self, kept: _Changed) -> None:
        """As it was before the `if`. What a side met for the first time stays known."""
        self.assigns, self.updated = dict(kept.assigns), {n: kept.updated.get(n, "") for n in self.updated}
        self.constant_names |= kept.held
        for key, (value, first) in self.items.items():
            value.name = kept.items[key][1] if key in kept.items else first

    def _meet(self, taken: TracedValue, kept: _Changed, then: _Changed, other: _Changed) -> None:
        """Choose between the new values that the sides have given."""

        def chosen(a: str, b: str) -> str:
            shape, dtype = self._shape_of(a if a not in self.inputs else b)
            return OPS["branch"](taken, TracedValue(a, shape, dtype, self), TracedValue(b, shape, dtype, self)).name

        for name in {**then.assigns, **other.assigns}:
            late = name in self.updated and (then.updated.get(name) or other.updated.get(name))
            if late and then.updated.get(name) != other.updated.get(name):
                base = self.value_now(name)
                new = chosen(then.updated.get(name) or base, other.updated.get(name) or base)
                self.updated[name] = self.assigns[name] = new
            else:
                base = kept.assigns.get(name, name)
                a, b = then.assigns.get(name, base), other.assigns.get(name, base)
                self.assigns[name] = a if a == b else chosen(a, b)
        for key in {**then.held, **other.held}:
            a, b, base = then.held.get(key), other.held.get(key), kept.held.get(key)
            if a != b and base is not None:
                self.constant_names[key] = chosen(a or base, b or base)
        for key, (value, first) in self.items.items():
            a, b = (end.items[key][1] if key in end.items else first for end in (then, other))
            value.name = a if a == b else chosen(a, b)
        if not self.when:
            self.items.clear()

    def _shape_of(self, name: str) -> tuple[tuple[int, ...], str]:
        if name in self.inputs:
            return self.inputs[name].shape, self.inputs[name].dtype
        node, at = next((n, n.outs.index(name)) for n in self.nodes if name in n.outs)
        return node.shapes[at], node.dtypes[at]

    # ---- out of an `if`, for an optimizer that is called on one side ----

    def only_here(self, optimizer: Any, gradients: Sequence[Any]) -> list[TracedValue]:
        values = []
        for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
            value, held = self.operand(gradient, [parameter]), self.operand(parameter, [])
            held = held if held.dtype == value.dtype else OPS["cast"](held, dtype=str(value.dtype))
            values.append(self._outside(value, held, self.made_when.get(value.name, ())))
        taken = self._outside(self.operand(True, []), self.operand(False, []), self.when)
        self.when = ()
        skipped = OPS["logical_not"](taken)
        if self.skip:
            skipped = OPS["logical_or"](skipped, TracedValue(self.skip, (), "bool", self))
        self.skip = skipped.name
        return values

    def _outside(self, value: TracedValue, otherwise: TracedValue, sides_of: Pairs) -> TracedValue:
        """`value`, there on these sides, for use outside of every `if`; `otherwise` if one of them is not taken."""
        here, depth = self.when, len(sides_of)
        while depth:
            depth -= 1
            (condition, side), self.when = here[depth], here[:depth]
            sides = (value, otherwise) if side else (otherwise, value)
            value = OPS["branch"](TracedValue(condition, (), "bool", self), *sides)
        self.when = here
        return value


def _zeros(value: Any) -> Any:
    """In the place of what a side returns; nothing reads them."""
    return np.zeros(value.shape, str(value.dtype)) if hasattr(value, "shape") else value


def _copied(value: Any) -> Any:
    """The same value as an object of its own, whose items may be set."""
    return TracedValue(value.name, value.shape, str(value.dtype), value.tracer) if type(value) is TracedValue else value


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float))
