"""Programs read statement by statement, and never executed: a small interpreter of Python over the syntax tree.

    reader = Reader(Files(text, folder), tables)
    reader.read()
    reader.unread                   [(line, what was not understood)]

Numbers, text, tuples, lists, dicts, functions and classes of the program are values here; every name that it imports is
a dotted name, and a call of one is looked up in tables (`torch_names`, `jax_names`), whose entries are functions of
ours. Nothing else can be reached: no attribute of a Python object, no import, no exec. What is not in the tables
becomes `Unread`, with its line, and so does what is computed from it. Steps, sizes and depth have limits.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...base.errors import ParallelLabError, shorten
from .syntax import BINARY, COMPARE, QUIET, Files, Imports, formatted, marks_of, parsed, yields
from .values import (
    LONGEST,
    PLAIN,
    TOO_WIDE,
    UNKNOWN,
    Bound,
    Class,
    Endless,
    Function,
    Instance,
    Leave,
    Name,
    NotRead,
    Scopes,
    Stopped,
    Unread,
    limited,
    needed,
)  # fmt: skip

STEPS = 200_000  # expressions and statements that are read, loops counted
SEQUENCE = 4096  # elements of a list, turns of a loop
SECONDS = 4  # of reading, of the processor: the programs of the tests take 0.4 at most
DEPTH = 24  # calls within calls of the program's functions
NESTED = 60  # expressions within expressions
FAULTS = TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError
ITEMS = 64  # of a generator
YIELDED = " yielded"  # in the scope of a generator: its items
ELSEWHERE = " elsewhere"  # in a scope: the scopes of the names that it calls global or nonlocal


class Reader(Imports):
    """Reads one program.

    hooks  what answers for everything but plain Python (`front.Front`)
    """

    def __init__(self, files: Files, hooks: Any) -> None:
        super().__init__(files)
        self.hooks, self.tree = hooks, parsed(files.text)
        self.globals: dict[str, Any] = {"__name__": "__main__", "__file__": "program.py", "__package__": ""}
        self.line, self.steps, self.depth, self.nested, self.latest = 1, 0, 0, 0, time.process_time() + SECONDS
        self.unread: dict[int, str] = {}
        self.watched: Callable[[Any], None] = lambda value: None  # sees what expressions give

    # ---- statements ----

    def read(self) -> None:
        """Read the program to its end, or to where it raises an error."""
        try:
            self.block(self.tree.body, [self.globals])
        except Stopped as stop:
            self.note(self.line, str(stop))
        except Leave:
            pass

    def block(self, body: Sequence[ast.stmt], scopes: Scopes) -> None:
        """Statements, one after the other; one that is not understood is noted, and the next is read."""
        for node in body:
            self.line = node.lineno
            self._step()
            try:
                self._handler("_s_", node)(node, scopes)
            except NotRead as reason:
                self.note(node.lineno, str(reason))
            except RecursionError:
                self.note(node.lineno, "something that contains itself, or is nested too deeply")

    def _handler(self, kind: str, node: ast.AST) -> Callable[..., Any]:
        found = getattr(self, kind + type(node).__name__.lower(), None)
        if found is None:
            raise NotRead(f"{shorten(ast.unparse(node))} is not read")
        return found

    def note(self, line: int, reason: str) -> None:
        """Report a line."""
        self.unread.setdefault(line, reason)

    def _step(self) -> None:
        self.steps += 1
        self.in_time()

    def in_time(self) -> None:
        """Raises Stopped after too many steps, or too long."""
        if self.steps > STEPS or time.process_time() > self.latest:
            raise Stopped(f"more than {STEPS} steps, or {SECONDS} s: the rest is not read")

    def _s_expr(self, node: Any, scopes: Scopes) -> None:
        self.value(node.value, scopes)

    def _s_assign(self, node: Any, scopes: Scopes) -> None:
        value = self.value(node.value, scopes)
        for target in node.targets:
            self.bind(target, value, scopes)

    def _s_annassign(self, node: Any, scopes: Scopes) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value, scopes), scopes)

    def _s_augassign(self, node: Any, scopes: Scopes) -> None:
        old = self.value(ast.copy_location(ast.parse(ast.unparse(node.target), mode="eval").body, node), scopes)
        new = self.value(node.value, scopes)
        if isinstance(old, list) and isinstance(node.op, ast.Add):
            if len(old) < SEQUENCE:
                old += self.items(new)
            return
        held = self.hooks.in_place(old, type(node.op).__name__, new)
        self.bind(node.target, self.operate(type(node.op), old, new) if held is None else held, scopes)

    def _s_functiondef(self, node: Any, scopes: Scopes) -> None:
        made: Any = self._function(node, scopes)
        for decorator in reversed(node.decorator_list):
            made = self.call(self.value(decorator, scopes), [made], {})
        scopes[0][node.name] = made

    def _function(self, node: Any, scopes: Scopes) -> Function:
        given = node.args
        positional = [a.arg for a in (*given.posonlyargs, *given.args)]
        names = positional[len(positional) - len(given.defaults) :] + [a.arg for a in given.kwonlyargs]
        values = [None if d is None else self.value(d, scopes) for d in (*given.defaults, *given.kw_defaults)]
        return Function(node, list(scopes), dict(zip(names, values, strict=True)))

    _e_lambda = _function

    def _s_classdef(self, node: Any, scopes: Scopes) -> None:
        made = Class(node.name, [self.value(b, scopes) for b in node.bases], {})
        self.block(node.body, [made.names, *scopes])
        made.fields = [
            s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        for held in made.names.values():
            if isinstance(held, Function):
                held.of, held.scopes = made, held.scopes[1:]  # a method does not see the names of its class
        scopes[0][node.name] = made
        for decorator in node.decorator_list:
            self.value(decorator, scopes)

    def _s_return(self, node: Any, scopes: Scopes) -> None:
        raise Leave("return", None if node.value is None else self.value(node.value, scopes))

    def _s_break(self, node: Any, scopes: Scopes) -> None:
        raise Leave(type(node).__name__.lower())

    _s_continue = _s_break

    def _s_assert(self, node: Any, scopes: Scopes) -> None:
        """Its condition."""
        if isinstance(node, ast.Assert):
            self.value(node.test, scopes)

    _s_pass = _s_assert

    def _s_global(self, node: Any, scopes: Scopes) -> None:
        """Names that are bound elsewhere from here on."""
        outer = scopes[-1:] if isinstance(node, ast.Global) else scopes[1:-1]
        for name in node.names:
            where = next((scope for scope in outer if name in scope), outer[-1])
            scopes[0][ELSEWHERE] = {**scopes[0].get(ELSEWHERE, {}), name: where}

    _s_nonlocal = _s_global

    def _s_delete(self, node: Any, scopes: Scopes) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scopes[0].pop(target.id, None)
                continue
            holder = needed(self.value(target.value, scopes))
            key = target.attr if isinstance(target, ast.Attribute) else needed(self.value(target.slice, scopes))
            if isinstance(holder, (dict, list)) and isinstance(key, (int, str)):
                self.checked(partial(holder.__delitem__, key))
            elif isinstance(holder, Instance):
                self.checked(partial(holder.drop, key))
            else:
                raise NotRead(f"del {shorten(ast.unparse(target))} is not read")

    def _s_raise(self, node: Any, scopes: Scopes) -> None:
        raise Stopped("the program raises an error here")

    def _s_if(self, node: Any, scopes: Scopes) -> None:
        try:
            holds = self.truth(node.test, scopes)
        except NotRead:
            inside = [part for one in (*node.body, *node.orelse) for part in ast.walk(one)]
            quiet = node.test.lineno not in self.unread and all(self._is_quiet(part, scopes) for part in inside)
            for part in inside:
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    self.bind(part, self.hooks.number() if quiet else Unread(node.lineno), scopes)
            if not quiet:
                raise
            return
        self.block(node.body if holds else node.orelse, scopes)

    def _is_quiet(self, node: ast.AST, scopes: Scopes) -> bool:
        """Whether this changes nothing but names, so that nobody misses it if it is not read."""
        if isinstance(node, ast.Call):
            return self.hooks.is_silent(getattr(node.func, "attr", getattr(node.func, "id", "")))
        if isinstance(node, ast.AugAssign):  # of a counter
            name = getattr(node.target, "id", "")
            return isinstance(next((scope[name] for scope in scopes if name in scope), None), (int, float))
        return isinstance(node, QUIET) or isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)

    def truth(self, node: ast.expr, scopes: Scopes) -> bool:
        """A condition. Raises NotRead where it is not known."""
        value = self.value(node, scopes)
        if isinstance(value, Unread) or not self.hooks.known(value):
            raise NotRead(f"the condition {shorten(ast.unparse(node))} is not known: neither branch is read")
        return bool(value)

    def _s_while(self, node: Any, scopes: Scopes) -> None:
        for _ in range(SEQUENCE):
            if not self.truth(node.test, scopes):
                return self.block(node.orelse, scopes)
            if self._turn(node, scopes):
                return None
        raise NotRead(f"more than {SEQUENCE} turns")

    def _s_for(self, node: Any, scopes: Scopes) -> None:
        for item in self.items(self.value(node.iter, scopes)):
            self.bind(node.target, item, scopes)
            if self._turn(node, scopes):
                return
        self.block(node.orelse, scopes)

    def _turn(self, node: Any, scopes: Scopes) -> bool:
        """The body of a loop, once: whether it was left."""
        try:
            self.block(node.body, scopes)
        except Leave as leave:
            if leave.kind in ("return", "endless"):
                raise
            return leave.kind == "break"
        return False

    def items(self, value: Any) -> list[Any]:
        """What a loop or an unpacking goes through. Raises NotRead."""
        if isinstance(value, Endless):
            raise NotRead(f"a loop over a generator of more than {ITEMS} items is not read")
        if not isinstance(value, (tuple, list, dict, range)):
            return self.hooks.items(needed(value))
        if len(value) > SEQUENCE:
            raise NotRead(f"{len(value)} turns: at most {SEQUENCE} are read")
        return list(value)

    def _s_with(self, node: Any, scopes: Scopes) -> None:
        entered = [self.value(item.context_expr, scopes) for item in node.items]
        own = [one for one in entered if isinstance(one, Instance) and one.of is not None and one.of.find("__enter__")]
        for item, value in zip(node.items, entered, strict=True):
            made = self.call(self.attribute(value, "__enter__"), [], {}) if value in own else value
            if item.optional_vars is not None:
                self.bind(item.optional_vars, made, scopes)

        def leave() -> None:
            for value in reversed(own):
                self.call(self.attribute(value, "__exit__"), [None, None, None], {})

        with self.hooks.within(entered):
            self._ended_by(node.body, scopes, leave)

    def _s_try(self, node: Any, scopes: Scopes) -> None:
        self._ended_by([*node.body, *node.orelse], scopes, lambda: self.block(node.finalbody, scopes))

    def _ended_by(self, body: list[ast.stmt], scopes: Scopes, end: Callable[[], None]) -> None:
        """The body, then `end`, also after a return, break or continue."""
        try:
            self.block(body, scopes)
        except Leave:
            end()
            raise
        end()

    def bind(self, target: ast.expr, value: Any, scopes: Scopes) -> None:
        """target = value"""
        if isinstance(target, ast.Name):
            scopes[0].get(ELSEWHERE, {}).get(target.id, scopes[0])[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = [value] * len(target.elts) if isinstance(value, Unread) else self.items(value)
            at = next((i for i, part in enumerate(target.elts) if isinstance(part, ast.Starred)), None)
            if at is not None and len(parts) + 1 >= len(target.elts):
                end = len(parts) - (len(target.elts) - at - 1)
                parts = [*parts[:at], list(parts[at:end]), *parts[end:]]
            if len(parts) != len(target.elts):
                raise NotRead(f"{len(parts)} values for {len(target.elts)} names")
            for part, of in zip(target.elts, parts, strict=True):
                self.bind(part.value if isinstance(part, ast.Starred) else part, of, scopes)
        elif isinstance(target, ast.Attribute):
            holder = self.value(target.value, scopes)
            if isinstance(holder, Instance):
                self.checked(lambda: holder.keep(target.attr, value))
            else:
                self.hooks.set_attribute(holder, target.attr, value)
        elif isinstance(target, ast.Subscript):
            holder, key = self.value(target.value, scopes), self.value(target.slice, scopes)
            if isinstance(holder, Instance) and isinstance(key, (str, int)):
                self.checked(lambda: holder.keep(holder.place(key), value))
            elif isinstance(holder, (list, dict)) and isinstance(key, (int, str, tuple)) and len(holder) < SEQUENCE:
                self.checked(lambda: holder.__setitem__(key, value))
            elif not isinstance(holder, Name):  # os.environ[...] = ...
                raise NotRead(f"{shorten(ast.unparse(target))} = ... is not read")
        else:
            raise NotRead(f"{shorten(ast.unparse(target))} = ... is not read")

    # ---- expressions ----

    def value(self, node: ast.expr, scopes: Scopes) -> Any:
        """What an expression gives. One that is not understood is noted with its line, and gives Unread."""
        self._step()
        before, self.nested, self.line = self.line, self.nested + 1, node.lineno
        try:
            if self.nested > NESTED * (1 + self.depth):
                raise NotRead("expressions are nested too deeply")
            made = limited(self._handler("_e_", node)(node, scopes))
            self.watched(made)
            return made
        except NotRead as reason:
            self.note(node.lineno, str(reason))
            return Unread(node.lineno)
        finally:
            self.line, self.nested = before, self.nested - 1

    def _e_constant(self, node: Any, scopes: Scopes) -> Any:
        return node.value

    def _e_name(self, node: Any, scopes: Scopes) -> Any:
        for scope in scopes:
            scope = scope.get(ELSEWHERE, {}).get(node.id, scope)
            if node.id in scope:
                return scope[node.id]
        for module in (*self.stars, "builtins"):
            if self.hooks.knows(f"{module}.{node.id}"):
                return Name(f"{module}.{node.id}")
        raise NotRead(f"the name {shorten(node.id)} is not known")

    def _e_tuple(self, node: Any, scopes: Scopes) -> Any:
        parts: list[Any] = []
        for part in node.elts:
            starred = isinstance(part, ast.Starred)
            parts += self.items(self.value(part.value, scopes)) if starred else [self.value(part, scopes)]
        return parts if isinstance(node, ast.List) else tuple(parts)

    _e_list = _e_set = _e_tuple

    def _e_dict(self, node: Any, scopes: Scopes) -> Any:
        made: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            held = self.value(value, scopes)
            name = None if key is None else self.value(key, scopes)
            pairs = held if key is None else {name: held} if isinstance(name, (str, int)) else None
            if not isinstance(pairs, dict):
                raise NotRead(f"a key of {shorten(ast.unparse(node))} is not known")
            made |= pairs
        return made

    def _e_attribute(self, node: Any, scopes: Scopes) -> Any:
        return self.attribute(self.value(node.value, scopes), node.attr)

    def attribute(self, holder: Any, name: str) -> Any:
        """holder.name"""
        if isinstance(needed(holder), Name):
            return self.hooks.constant(f"{holder.path}.{name}")
        if isinstance(holder, Instance):
            if name in holder.names:
                return holder.names[name]
            if holder.of is not None and (found := holder.of.find(name)) is not None:
                return self._of_class(holder, found)
        if isinstance(holder, Class) and (found := holder.find(name)) is not None:
            return Bound(holder, found) if "classmethod" in marks_of(found) else found
        if isinstance(holder, Bound) and holder.start is not None:  # super()
            found = next(
                (f for b in holder.start.bases if isinstance(b, Class) and (f := b.find(name)) is not None), None
            )
            return Bound(holder.of, name if found is None else found)
        return self.hooks.attribute(holder, name)

    def _of_class(self, holder: Any, found: Any) -> Any:
        marks = marks_of(found)
        if "staticmethod" in marks or not isinstance(found, Function):
            return found
        if "classmethod" in marks:
            return Bound(holder.of, found)
        return self.call(Bound(holder, found), [], {}) if "property" in marks else Bound(holder, found)

    def _e_subscript(self, node: Any, scopes: Scopes) -> Any:
        holder, key = needed(self.value(node.value, scopes)), needed(self.value(node.slice, scopes))
        if isinstance(holder, (tuple, list, dict, str)) and isinstance(key, (int, str, slice, tuple)):
            return self.checked(lambda: holder[key])  # type: ignore[index]
        return self.hooks.item(holder, key)

    def _e_slice(self, node: Any, scopes: Scopes) -> Any:
        return slice(*(None if p is None else self.value(p, scopes) for p in (node.lower, node.upper, node.step)))

    def _e_binop(self, node: Any, scopes: Scopes) -> Any:
        return self.operate(type(node.op), self.value(node.left, scopes), self.value(node.right, scopes))

    def operate(self, kind: type, left: Any, right: Any) -> Any:
        """left (operator) right"""
        if not (isinstance(needed(left), PLAIN) and isinstance(needed(right), PLAIN)):
            told = kind is ast.Mod and isinstance(left, str)  # a text with a tensor's value in it
            return UNKNOWN if told else self.hooks.operate(kind.__name__, left, right)
        if kind is ast.Mod and isinstance(left, str):
            return self.checked(lambda: formatted(left, right))
        lengths = [len(x) for x in (left, right) if isinstance(x, (str, tuple, list))]
        numbers = [abs(x) for x in (left, right) if isinstance(x, (int, float))]
        too_long = kind is ast.Mult and lengths and numbers and lengths[0] * max(numbers) > SEQUENCE
        if kind not in BINARY or too_long or kind is ast.Pow and (len(numbers) < 2 or numbers[1] > 64):
            raise NotRead(f"{kind.__name__} of {shorten(left)} and {shorten(right)} is not read")
        return limited(self.checked(lambda: BINARY[kind](left, right)))

    def _e_unaryop(self, node: Any, scopes: Scopes) -> Any:
        value = needed(self.value(node.operand, scopes))
        if isinstance(node.op, ast.Not):
            return not value if self.hooks.known(value) else value
        if isinstance(node.op, ast.Invert):
            raise NotRead(f"{shorten(ast.unparse(node))} is not read")
        if isinstance(value, (int, float)):
            return -value if isinstance(node.op, ast.USub) else value
        return self.operate(ast.Mult, value, -1)

    def _e_boolop(self, node: Any, scopes: Scopes) -> Any:
        value: Any = None
        for part in node.values:
            value = needed(self.value(part, scopes))
            if not self.hooks.known(value) or bool(value) is isinstance(node.op, ast.Or):
                break  # with a value that is not known all is not known
        return value

    def _e_compare(self, node: Any, scopes: Scopes) -> Any:
        left = needed(self.value(node.left, scopes))
        for op, other in zip(node.ops, node.comparators, strict=True):
            right = needed(self.value(other, scopes))
            both = isinstance(left, PLAIN) and isinstance(right, PLAIN) or isinstance(op, (ast.Is, ast.IsNot))
            name = type(op).__name__
            ask = COMPARE[type(op)] if both else partial(self.hooks.operate, name)
            held = self.checked(partial(ask, left, right))
            if held is not True:
                return held
            left = right
        return True

    def _e_ifexp(self, node: Any, scopes: Scopes) -> Any:
        return self.value(node.body if self.truth(node.test, scopes) else node.orelse, scopes)

    def _e_joinedstr(self, node: Any, scopes: Scopes) -> Any:
        parts = [p.value if isinstance(p, ast.Constant) else self._shown(p, scopes) for p in node.values]
        return "".join(parts)[:LONGEST]

    def _shown(self, node: Any, scopes: Scopes) -> str:
        """{value!r:>8} in a text."""
        value, spec = self.value(node.value, scopes), "" if node.format_spec is None else node.format_spec
        spec = spec and self._e_joinedstr(spec, scopes)
        if not isinstance(value, (str, int, float)) or TOO_WIDE.search(spec):
            return UNKNOWN
        value = repr(value) if chr(max(node.conversion, 0)) == "r" else value
        return self.checked(lambda: format(value, spec))

    def _e_namedexpr(self, node: Any, scopes: Scopes) -> Any:
        value = self.value(node.value, scopes)
        self.bind(node.target, value, scopes)
        return value

    def _e_listcomp(self, node: Any, scopes: Scopes) -> Any:
        made: list[Any] = []
        self._comprehend(node, 0, [{}, *scopes], made)
        return dict(made) if isinstance(node, ast.DictComp) else made

    _e_generatorexp = _e_setcomp = _e_dictcomp = _e_listcomp

    def _comprehend(self, node: Any, at: int, scopes: Scopes, made: list[Any]) -> None:
        if at == len(node.generators):
            parts = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
            values = tuple(self.value(part, scopes) for part in parts)
            made.append(values if len(values) > 1 else values[0])
            return
        part = node.generators[at]
        for item in self.items(self.value(part.iter, scopes)):
            self.bind(part.target, item, scopes)
            if all(self.truth(test, scopes) for test in part.ifs):
                self._comprehend(node, at + 1, scopes, made)

    def _e_yield(self, node: Any, scopes: Scopes) -> Any:
        """A generator is read to its end before its first item is used, or up to `ITEMS` of them."""
        items = next(scope[YIELDED] for scope in scopes if YIELDED in scope)
        value = None if node.value is None else self.value(node.value, scopes)
        items += self.items(value) if isinstance(node, ast.YieldFrom) else [value]
        if len(items) >= ITEMS:
            raise Leave("endless")

    _e_yieldfrom = _e_yield

    def _e_call(self, node: Any, scopes: Scopes) -> Any:
        if getattr(node.func, "id", "") == "super":
            holder, of = next((s["__of__"] for s in scopes if "__of__" in s), (None, None))
            return Bound(holder, "", start=of)
        of = needed(self.value(node.func, scopes))
        args, kwargs = list(self._e_tuple(ast.Tuple(node.args), scopes)), {}
        for part in node.keywords:
            held = self.value(part.value, scopes)
            if part.arg is not None:
                kwargs[part.arg] = held
            elif isinstance(held, dict):
                kwargs |= {str(key): one for key, one in held.items()}
        return self.call(of, args, kwargs)

    def call(self, of: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """of(*args, **kwargs)"""
        if isinstance(of, Function):
            return self.run(of, args, kwargs)
        if isinstance(of, Bound) and isinstance(of.what, Function):
            return self.run(of.what, [of.of, *args], kwargs)
        if not isinstance(of, Class):
            return self.checked(lambda: self.hooks.call(of, args, kwargs))
        made = self.hooks.made(of)
        if (start := of.find("__init__")) is not None:
            self.run(start, [made, *args], kwargs)
        else:
            self.checked(lambda: made.begin(args, kwargs))
            if (after := of.find("__post_init__")) is not None:
                self.run(after, [made], {})
        return made

    def checked(self, ask: Callable[[], Any]) -> Any:
        """What an entry of the tables gives. Its errors, and arguments that it does not have, are notes."""
        try:
            return ask()
        except ParallelLabError as error:
            raise NotRead(f"refused: {error}") from None
        except FAULTS as error:
            raise NotRead(f"values that are not read ({shorten(str(error))})") from None

    def run(self, of: Function, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The body of a function of the program. Raises NotRead for arguments that it does not have."""
        wanted = of.node.args
        names = [a.arg for a in (*wanted.posonlyargs, *wanted.args)]
        known = {*names, *(a.arg for a in wanted.kwonlyargs)}
        more = {k: v for k, v in kwargs.items() if k not in known}
        scope = of.defaults | dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in known}
        if wanted.vararg:
            scope[wanted.vararg.arg] = tuple(args[len(names) :])
        if wanted.kwarg:
            scope[wanted.kwarg.arg], more = more, {}
        missing = [name for name in known if name not in scope]
        if more or missing or len(args) > len(names) and not wanted.vararg:
            what = getattr(of.node, "name", "the lambda")
            raise NotRead(f"arguments of {what} that do not fit: {shorten([*more, *missing])}")
        if self.depth >= DEPTH:
            raise NotRead(f"calls nested deeper than {DEPTH}")
        if of.of is not None:
            scope["__of__"] = args[0] if args else None, of.of
        line, self.depth = self.line, self.depth + 1
        try:
            if isinstance(of.node, ast.Lambda):
                return self.value(of.node.body, [scope, *of.scopes])
            if yields(of.node):
                return self._generated(of, scope)
            self.block(of.node.body, [scope, *of.scopes])
        except Leave as leave:
            return leave.value
        finally:
            self.depth, self.line = self.depth - 1, line
        return None

    def _generated(self, of: Function, scope: dict[str, Any]) -> Any:
        """The items of a generator. Raises NotRead for one whose messages others would come between."""
        scope[YIELDED], before = [], self.hooks.happened()
        try:
            self.block(of.node.body, [scope, *of.scopes])
        except Leave as leave:
            if leave.kind == "endless":
                return Endless(scope[YIELDED])
        if self.hooks.happened() != before:
            raise NotRead("a generator that sends messages is not read")
        return scope[YIELDED]
