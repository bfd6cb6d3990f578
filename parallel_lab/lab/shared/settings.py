"""What a learner sets in a lab: a setting is declared where its command is, once.

    class CostLab(Lab):
        commands = ("reset",)                       # those that are not settings

        set_ranks = offered("ranks", (2, 4, 8), "Another number of ranks.", ranks=int)
        set_rank = offered("rank", lambda lab: range(lab._ranks), "Whose messages are shown.", look=True, rank=int)

From the declaration follow the choice that views offer (`choices`), the command that checks a value and takes it, what
a page may ask (`commands`), what is kept in files and links (`calls`), and the text of the command. The value lies in
the attribute of the same name with an underscore, or in the field of that name where a lab holds its settings as one
frozen value (`_settings`).
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple, get_args, get_type_hints

from ...base.checks import text
from ...base.errors import ArgumentError, ParallelLabError, shorten

VERBS = ("set", "choose", "select", "show")  # of commands that set something
TYPE_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}


class Choice(NamedTuple):
    """A thing that a learner chooses: its name for people, the choice, and the known values (with labels, if any)."""

    label: str
    value: Any
    known: Iterable[Any]

    def shown(self) -> dict[str, Any]:
        """As a snapshot has it: "label", "value" and "choices"."""
        labels = self.known if isinstance(self.known, Mapping) else {}
        labels = {name: getattr(label, "label", label) for name, label in labels.items()}
        choices = [{"value": k, "label": labels[k]} if isinstance(labels.get(k), str) else k for k in self.known]
        return {"label": self.label, "value": self.value, "choices": choices}


@dataclass(frozen=True)
class Setting:
    """A declared setting.

    name, command   "ranks", "set_ranks"
    label           its name for people; "": a view offers no choice, the value is typed
    known           values that can be chosen (with labels, if a Mapping), or a function of the lab
    value           what is set now, as it is shown and kept; a function of the lab
    look            it only chooses what is looked at
    """

    name: str
    command: str
    label: str
    known: Iterable[Any] | Callable[[Any], Iterable[Any]]
    value: Callable[[Any], Any]
    look: bool

    def choice(self, lab: Any) -> Choice:
        """What can be chosen now."""
        return Choice(self.label, self.value(lab), self.known(lab) if callable(self.known) else self.known)

    def call(self, lab: Any) -> list[Any] | None:
        """The command that sets it as it is now; None where no command can, or nothing is set."""
        choice = self.choice(lab)
        fits = choice.value in choice.known if self.label else choice.value is not None
        return [self.command, choice.value] if fits else None


def setting(
    label: str = "",
    known: Iterable[Any] | Callable[[Any], Iterable[Any]] = (),
    *,
    value: Callable[[Any], Any] | None = None,
    look: bool = False,
    typed: bool = False,
    only_new: bool = False,
    by_itself: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a method that says what a command takes the command itself, see `Setting`.

    The command refuses what is not among the known values (ArgumentError), takes the value and what the method returns,
    a dict of further changes, and tells the views.

    typed       any value may be given: the method checks it, and all changes are those that it returns
    only_new    what is set already is not set again
    by_itself   the method does everything; only what views offer, and what is kept, follows
    """

    def declare(method: Callable[..., Any]) -> Callable[..., None]:
        name = method.__name__.partition("_")[2]
        form = inspect.signature(method)

        @functools.wraps(method)
        def command(lab: Any, *arguments: Any, **named: Any) -> None:
            if by_itself:
                method(lab, *arguments, **named)
                return
            value = form.bind(lab, *arguments, **named).args[1]
            with lab._lock:
                changes = {} if typed else lab._offered(**{name: value})
                if only_new and value == lab._value(name):
                    return
                changes |= method(lab, value) or {}
                changed = lab._set(**changes) if look else lab._take(**changes)
            if changed:
                lab._changed("picture")

        command.__signature__ = form.replace(return_annotation="None")  # type: ignore[attr-defined]
        now = value or (lambda lab: lab._value(name))
        command.setting = Setting(name, method.__name__, label, known, now, look)  # type: ignore[attr-defined]
        return command

    return declare


class offered:
    """A setting that takes one of the known values, and that is all: the command in a line of its class.

    text   of the command;  argument: its name and type, such as ranks=int;  the others are those of `setting`
    """

    def __init__(self, label: str, known: Any, text: str, *, look: bool = False, **argument: type) -> None:
        self.declare, self.text, self.argument = setting(label, known, look=look), text, argument

    def __set_name__(self, owner: type, name: str) -> None:
        def method(lab: Any, value: Any) -> None: ...

        ((argument, kind),) = self.argument.items()
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        form = inspect.Signature([own, own.replace(name=argument, annotation=kind.__name__)])
        facts = {"__qualname__": f"{owner.__qualname__}.{name}", "__module__": owner.__module__, "__signature__": form}
        for fact, value in {**facts, "__name__": name, "__doc__": self.text}.items():
            setattr(method, fact, value)
        command = self.declare(method)
        command.__annotations__ = {argument: kind, "return": type(None)}
        setattr(owner, name, command)


class ModelWithSettings:
    """A model that tells its views when it changes, with settings. `__init__` must run before the first change.

    commands   what a page may ask: names of methods, whose annotations say what arguments may be. A class names those
               that are not settings; `setting` adds the others before them
    looks      commands that only choose what is looked at, and which part of the snapshot each one sets
    declared   {name: its `Setting`}
    """

    commands: ClassVar[tuple[str, ...]] = ()
    looks: ClassVar[Mapping[str, str]] = {}
    declared: ClassVar[Mapping[str, Setting]] = {}
    is_branch: bool = False  # a copy: a setting that a page is computed for
    _settings: Any = None  # those that a lab holds as one frozen value

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        declared: dict[str, Setting] = {}
        for part in reversed(cls.__mro__):
            for member in vars(part).values():
                if one := getattr(member, "setting", None):
                    declared.pop(one.name, None)  # a class may name an inherited one in its own order
                    declared[one.name] = one
        cls.declared = declared
        cls.commands = tuple(dict.fromkeys((*(one.command for one in declared.values()), *cls.commands)))
        # those that the class lists come first, in its own order
        cls.looks = {**cls.looks, **{one.command: one.name for one in declared.values() if one.look}}

    def __init__(self, *, controls: str = "", story: bool = False) -> None:
        self._listeners: list[Callable[..., None]] = []
        self._lock = threading.RLock()
        self.hide(controls)
        self.story = story

    # ---- listeners ----

    def on_change(self, callback: Callable[..., None]) -> Callable[[], None]:
        """Call `callback` after every change, perhaps from a helper thread; returns a function that ends it.
        Some models add what changed: "picture", "run", or "loss" at every step of a training.
        """
        self._listeners.append(callback)

        def unsubscribe() -> None:
            with suppress(ValueError):  # called twice, or after the model has forgotten all
                self._listeners.remove(callback)

        return unsubscribe

    def _changed(self, *what: str) -> None:
        for callback in list(self._listeners):
            callback(*what)

    def close(self) -> None:
        """Forget the listeners."""
        self._listeners.clear()

    # ---- what can be set ----

    def choices(self) -> dict[str, Choice]:
        """What can be chosen now, by the name of the setting."""
        return {name: one.choice(self) for name, one in self.declared.items() if one.label}

    def chosen(self) -> dict[str, Any]:
        """`choices` as a snapshot has them."""
        return {name: choice.shown() for name, choice in self.choices().items()}

    def calls(self) -> list[list[Any]]:
        """The commands that make a new lab of this kind what this one is: one for each setting that has a command."""
        return [call for one in self.declared.values() if (call := one.call(self)) is not None]

    @classmethod
    def command_of(cls, name: str) -> str | None:
        """The command that sets a choice, such as set_mode of "mode"; None without such a command."""
        names = (f"{verb}_{name}" for verb in VERBS)
        return next((command for command in names if command in cls.commands), None)

    # ---- what a teacher hides ----

    @property
    def hidden(self) -> list[str]:
        """The commands that `hide` has hidden."""
        return [name for name in self.commands if isinstance(vars(self).get(name), functools.partial)]

    def hide(self, controls: str) -> None:
        """Hide single controls: "-preset,-search" hides these two, and what they do is refused from then on.

        controls  names of settings and of other commands, a minus before each, commas between; "": no more

        Raises ArgumentError for a name that no control has, with those there are.
        """
        known: dict[str, list[str]] = {}
        for command in self.commands:
            if command != "stop":  # whatever runs can be ended
                known.setdefault(control_of(command), []).append(command)
        asked = text(type(self).__name__, "controls", controls).replace(" ", "")
        for one in asked.split(",") if asked else ():
            name = control_of(one[1:])
            if one[:1] != "-" or name not in known:
                allowed = f"Names with a minus before each and commas between, of {', '.join(known)}"
                raise ArgumentError(f"controls={shorten(controls)}", where=type(self).__name__, allowed=allowed)
            for command in known[name]:
                setattr(self, command, functools.partial(_refuse, type(self).__name__, name))

    @classmethod
    def argument_types(cls, command: str) -> list[tuple[type, ...]]:
        """Per argument that a page gives a command (all but those that default to None) the types it may have."""
        method = getattr(cls, command)
        parameters = inspect.signature(method).parameters.items()
        sent = [name for name, p in parameters if name != "self" and p.default is not None]
        return [get_args(hint) or (hint,) for name, hint in get_type_hints(method).items() if name in sent]

    @classmethod
    def check_command(cls, name: Any, arguments: tuple[Any, ...], where: str) -> None:
        """Raise ParallelLabError for unknown commands and other types of arguments. True and False are not numbers."""
        if not isinstance(name, str) or name not in cls.commands:
            known = ", ".join(cls.commands)
            raise ParallelLabError(f"unknown command {shorten(name)}", where=where, allowed=f"One of {known}")
        types_of = cls.argument_types(name)
        fits = len(arguments) == len(types_of) and all(
            isinstance(value, (*types, int) if float in types else types)
            and (bool in types or not isinstance(value, bool))
            for value, types in zip(arguments, types_of, strict=True)
        )
        if not fits:
            names = (" or ".join(TYPE_WORDS.get(t, t.__name__) for t in types) for types in types_of)
            allowed = f"Expected {', '.join(names) or 'no arguments'}"
            what = shorten(arguments[0]) if len(arguments) == len(types_of) == 1 else f"arguments {shorten(arguments)}"
            raise ParallelLabError(what, where=f"{where}, {name}", allowed=allowed)

    @classmethod
    def one_of(cls, value: Any, known: Any, what: str, where: str | None = None) -> Any:
        """`value`, if it is one of `known` ints and texts. Raises ArgumentError for others, and for True and False."""
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value not in known:
            where = cls.__name__ if where is None else where
            allowed = f"One of {', '.join(map(str, known))}"
            raise ArgumentError(f"{what} {shorten(value)}", where=where, allowed=allowed)
        return value

    # ---- changing it ----

    def _begin(self, **values: Any) -> None:
        """The first values. Raises ArgumentError for values that are not offered."""
        self._set(**values)
        self._offered(**values)

    def _offered(self, **values: Any) -> dict[str, Any]:
        """The values, if they are among the choices. Raises ArgumentError."""
        for name, value in values.items():
            self.one_of(value, self.declared[name].choice(self).known, name)
        return values

    def _choose(self, **values: Any) -> None:
        """Choose among what is offered; raises what `_update` raises, and changes nothing then."""
        self._change(**self._offered(**values))

    def _change(self, **changes: Any) -> None:
        """The same for values that were checked."""
        with self._lock:
            changed = self._take(**changes)
        if changed:
            self._changed("picture")

    def _take(self, **changes: Any) -> bool:
        """Set them and compute what follows; False: all is as it was."""
        before = dict(vars(self))
        try:
            self._set(**changes)
            self._update()
        except ParallelLabError:
            vars(self).update(before)
            raise
        return True

    def _value(self, name: str) -> Any:
        """What a setting is now."""
        held = self._settings
        return getattr(held, name) if name in _names_of(held) else getattr(self, f"_{name}")

    def _set(self, **changes: Any) -> bool:
        held = {name: changes.pop(name) for name in _names_of(self._settings) if name in changes}
        if held:
            self._settings = replace(self._settings, **held)
        vars(self).update({f"_{name}": value for name, value in changes.items()})
        return True

    def _update(self) -> None:
        """Compute what follows from the choices."""


def control_of(command: str) -> str:
    """The name of what a command sets, such as "mode" of set_mode; of another command its own."""
    verb, _, rest = command.partition("_")
    return rest if verb in VERBS else command


def _refuse(lab: str, name: str, *_: Any, **__: Any) -> None:
    raise ArgumentError(f"{name} is hidden", where=lab, hint="A teacher has hidden it in this lab: try another way")


def _names_of(held: Any) -> tuple[str, ...]:
    return () if held is None else tuple(field.name for field in fields(held))
