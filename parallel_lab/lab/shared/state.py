"""A lab in a small file: the commands that make a new lab what this one is, and the record of what it has run.

    lab.save("mine.json")
    lab = FusionLab.open("mine.json")           # or pl.open_lab("mine.json"), whatever lab it is

    {"format": "parallel_lab lab", "version": 1, "kind": "FusionLab", "options": {},
     "calls": [["set_subject", "golf"], ["set_mode", "index"], ["set_config", "0 3 5"], ...],
     "earlier": [], "record": null, "recording": {...}}      the last one where a run was recorded (recording.py)

A link to a page (`Lab.link`) carries the same in its fragment, and a page does the calls that it can.

A file is nobody's word: only commands that choose something are done, each checked as if a view had sent it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

from ...base.errors import ArgumentError, DataFileError, ParallelLabError, shorten
from ...base.files import write_whole
from ...base.plain_json import read_json
from .questions import ModelWithQuestions
from .settings import control_of

FORMAT, VERSION = "parallel_lab lab", 1
MOST_BYTES = 12 << 20  # a recording, 5 MB, and the curves of a few runs of 100,000 steps at most
MOST_CALLS = 500
MOST_OPTIONS = 20
_KEYS = {"format", "version", "kind", "options", "calls", "controls", "earlier", "record", "recording"}
RECORDS = ("record", "earlier", "recording")  # parts of a state that are long


class ModelWithFile(ModelWithQuestions):
    """A model whose settings, and what has run with them, can be kept in a file.

    also_kept   commands that `calls` uses although they are not of a setting
    """

    also_kept: ClassVar[tuple[str, ...]] = ()

    def options(self) -> dict[str, Any]:
        """Arguments of the class that no command sets."""
        return {}

    def record(self) -> Any:
        """What has run, as plain data; None: nothing."""
        return None

    def take_record(self, record: Any) -> None:
        """Show what another lab with these settings has run. Raises ParallelLabError unless it is a record of that."""
        if record is not None:
            raise ArgumentError("a record", where=type(self).__name__, allowed="None: such a lab runs nothing")

    def earlier_record(self) -> list[Any]:
        """What was run with other settings, as plain data (earlier.py)."""
        return []

    def take_earlier(self, record: Any) -> None:
        """Show what another lab has run with other settings. Raises ParallelLabError unless it is a record of that."""
        if record != []:
            raise ArgumentError("earlier runs", where=type(self).__name__, allowed="None: such a lab runs nothing")

    take_recording = take_record  # of the run that was taken: recordings of other labs are no better

    def kept_recording(self) -> Any:
        """The recording of that run, as plain data; None: there is none."""
        return None

    @property
    def controls(self) -> str:
        """What is hidden, as `hide` takes it."""
        return ",".join(f"-{name}" for name in dict.fromkeys(map(control_of, self.hidden)))

    def state(self) -> dict[str, Any]:
        """The settings, and records of what has run with them and with earlier ones, as plain data (state.py)."""
        with self._lock:
            asks = [["set_predict", True]] if "set_predict" in self.commands and self._predict else []
            how = {"options": self.options(), "calls": [*self.calls(), *asks]}
            how |= {"controls": hidden} if (hidden := self.controls) else {}
            how |= {"earlier": self.earlier_record(), "record": self.record()}
        return {"format": FORMAT, "version": VERSION, "kind": type(self).__name__, **how}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the state, and the recording, into a small file and return `path`: it is whole, or as it was before.
        Raises DataFileError where it cannot be written."""
        text = state_text(self.state() | {"recording": self.kept_recording()})
        if len(text.encode()) > MOST_BYTES:
            hint = "Without the record: lab.reset(), or a change of a setting, forgets what has run"
            raise DataFileError(f"{len(text)} characters", where=str(path), allowed=f"{MOST_BYTES} bytes", hint=hint)
        return write_whole(path, text)

    def link(self, page: str = "") -> str:
        """The address of a page of such a lab, with these settings: a page takes those that it can replay."""
        return f"{page}#{fragment(self.state())}"

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """The lab that `save` has written. Raises DataFileError for another file, also for one of another lab."""
        return cls.of_state(read_state(path), str(path))

    @classmethod
    def of_state(cls, state: Mapping[str, Any], where: str = "state") -> Self:
        """The lab of a `state`. Raises DataFileError, where something is not as it must be."""
        state = checked_state(state, where)
        if cls.__name__ != state["kind"]:
            hint = "pl.open_lab(path) opens any lab"
            raise DataFileError(f"a {shorten(state['kind'])}", where=where, allowed=f"A {cls.__name__}", hint=hint)
        known = cls().options()
        options = dict(state.get("options", {}))
        if not all(name in known and type(value) is type(known[name]) for name, value in options.items()):
            raise DataFileError(f"options {shorten(options)}", where=where, allowed=f"Such as {known}")
        lab = cls(**options)
        kept = {"set_predict", *cls.looks, *cls.also_kept, *map(cls.command_of, lab.choices())}
        kept |= {one.command for one in cls.declared.values()}

        def do(calls: list[list[Any]]) -> None:
            for call in calls:
                if call in lab.calls():
                    continue
                try:
                    lab.one_of(call[0], sorted(kept - {None}), "command")
                    lab.check_command(call[0], tuple(call[1:]), cls.__name__)
                    getattr(lab, call[0])(*call[1:])
                except ParallelLabError as error:
                    raise refusal(where, call, error) from error

        do([call for call in state["calls"] if call[0] not in cls.looks])
        for part in RECORDS:
            try:
                if part in state:  # older files lack some
                    getattr(lab, f"take_{part}")(state[part])
            except ParallelLabError as error:
                raise refusal(where, [part], error) from error
        do([call for call in state["calls"] if call[0] in cls.looks])  # what has run can be looked at
        try:
            lab.hide(state.get("controls", ""))
        except ParallelLabError as error:
            raise DataFileError(str(error), where=where) from error
        return lab


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The state in a file, its outer form checked. Raises DataFileError."""
    limits = {"max_bytes": MOST_BYTES, "max_depth": 12}
    return checked_state(read_json(path, DataFileError, hint="lab.save(path) writes one", **limits), str(path))


def checked_state(state: Any, where: str) -> dict[str, Any]:
    """`state`, if it has the form of one. Raises DataFileError."""
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise DataFileError("not the file of a lab", where=where, hint="lab.save(path) writes one")
    if state.get("version") != VERSION or type(state["version"]) is not int:
        what = f"version {shorten(state.get('version'))} of the form of a lab"
        raise DataFileError(what, where=where, allowed=f"Version {VERSION}", hint="A newer parallel_lab may read it")
    calls, options = state.get("calls"), state.get("options", {})
    fits = state.keys() <= _KEYS and isinstance(state.get("kind"), str) and isinstance(calls, list)
    fits = fits and all(isinstance(call, list) and call and isinstance(call[0], str) for call in calls)
    if not fits or len(calls) > MOST_CALLS or not isinstance(options, Mapping) or len(options) > MOST_OPTIONS:
        allowed = f'"kind", a name; "calls", at most {MOST_CALLS} lists of a command and its arguments; "options"'
        raise DataFileError("the form of a lab is not kept", where=where, allowed=allowed)
    return dict(state)


def state_text(state: Mapping[str, Any]) -> str:
    """The state as a file has it, each record on a line of its own. Raises ValueError for NaN."""
    how = {"ensure_ascii": False, "allow_nan": False}
    short = {name: value for name, value in state.items() if name not in RECORDS}
    lines = [f' "{name}": {json.dumps(state[name], separators=(",", ":"), **how)}' for name in RECORDS if name in state]
    return ",\n".join([json.dumps(short, indent=1, **how).removesuffix("\n}"), *lines]) + "\n}\n"


def fragment(state: Mapping[str, Any]) -> str:
    """The state as the fragment of a page's address, without records; options where one is set."""
    extra = ["options"] if any(state["options"].values()) else []
    short = {name: state[name] for name in ("kind", "version", "calls", *extra)}
    hidden = f"&controls={state['controls']}" if state.get("controls") else ""
    return "state=" + quote(json.dumps(short, separators=(",", ":"), ensure_ascii=False), safe="") + hidden


def refusal(where: str, call: Any, error: ParallelLabError) -> DataFileError:
    """Why a state cannot be taken."""
    return DataFileError(f"{shorten(call[0])}({', '.join(map(shorten, call[1:]))}): {error}", where=where)
