"""MindSpore's functions for one file: save_checkpoint, load_checkpoint, load_param_into_net.

    save_checkpoint(net, "net.ckpt", append_dict={"epoch": 3})
    params = load_checkpoint("net.ckpt")                   {name: Parameter}
    not_loaded, not_used = load_param_into_net(net, params)

Signatures and defaults: MindSpore (train/serialization.py, 2.x). Differences: checksums are always written and always
checked, whatever `crc_check` says; an optimizer can be saved and loaded like a Cell, and a Cell that holds one
(TrainOneStepCell) is saved with its states; a slice in a file knows what it is a slice of; encryption is missing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...base.checks import Check, checked, choice, flag, instance, sequence_of, text
from ...base.errors import (
    CheckpointCorrupt,
    CheckpointError,
    CheckpointFolderError,
    CheckpointTypeError,
    MissingPackage,
    NotBuiltYet,
    shorten,
)
from ...nn.cell import Cell
from ...nn.optim.optimizer import Optimizer
from ...nn.tensor.parameter import Parameter
from ...nn.tensor.tensor import Tensor
from .folder import MANIFEST, load_distributed, read_manifest
from .format import read_checkpoint, write_checkpoint
from .records import CHECKPOINT, FILE, TensorRecord, check_name
from .values import load_records, network_records, optimizer_records, record_of


def _read_prefix(value: Any) -> str:
    plain = text.read(value)
    if not plain:
        raise ValueError
    return plain


SUFFIXES = {"ckpt": ".ckpt", "safetensors": ".safetensors"}
TEXTS = "append"  # where the file's meta keeps the texts of append_dict and append_info
NETWORK = instance((Cell, Optimizer), "A Cell or an optimizer")
CHOICE = instance(Callable, "A function of a name")
PREFIXES = sequence_of(Check("", _read_prefix), "A prefix that is not empty, or a list of them", one=True)


class LoadedParameters(dict):
    """{name: Parameter, or str for a text} of `path`; `ranks`: {name: rank} of parts; `meta`: the writer's."""

    def __init__(
        self, parameters: Mapping[str, Any], path: Path, ranks: Mapping[str, int], meta: Mapping[str, Any]
    ) -> None:
        super().__init__(parameters)
        self.path, self.ranks, self.meta = path, dict(ranks), dict(meta)


# ---- saving ----


def _read_async(value: Any) -> bool:
    if not isinstance(value, bool) and value not in ("thread", "process"):
        raise TypeError
    return bool(value)


# MindSpore names what writes in the background; here it is a thread
ASYNC = Check("True or False, or 'thread' or 'process'", _read_async)


@checked(
    "",
    CHECKPOINT,
    ckpt_file_name=FILE,
    integrated_save=flag,
    async_save=ASYNC,
    append_dict=instance(Mapping, "A dict") | None,
    enc_mode=text,
    crc_check=flag,
    choice_func=CHOICE | None,
    format=choice(*SUFFIXES),
)
def save_checkpoint(
    save_obj: Any,
    ckpt_file_name: str | os.PathLike[str],
    integrated_save: bool = True,
    async_save: bool | str = False,
    append_dict: Mapping[str, Any] | None = None,
    enc_key: bytes | None = None,
    enc_mode: str = "AES-GCM",
    choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False,
    format: str = "ckpt",
) -> None:
    """Save parameters to a file.

    save_obj         Cell, optimizer, list of Parameters or {"name": ..., "data": ...}, {name: Parameter, Tensor or str}
    ckpt_file_name   file; ".ckpt" is added if it is missing. An older one is replaced, in one step
    integrated_save  parameters that are sharded are gathered, so that every rank saves them whole:
                     every rank calls this; False: slices, with their layouts. A dict is saved as it is
    async_save       write in a thread (also "thread", "process"); `wait_for_saves()` waits for it, and so do the next
                     save and load
    append_dict      {name: int, float, bool, str, Parameter or Tensor} to be saved too
    choice_func      of a parameter's name: whether it is saved
    crc_check        accepted; the checksums are always there
    format           "ckpt" or "safetensors": the ending of the name; the content is the same

    Raises CheckpointTypeError (a TypeError) for arguments of other types, CheckpointError (a ValueError) for names not
    allowed or standing twice, CheckpointWriteError (an OSError) if the file cannot be written.
    """
    where = "save_checkpoint"
    path, ending = Path(_file_name(ckpt_file_name, where)), SUFFIXES[format]
    if path.is_dir():
        what, hint = f"{ckpt_file_name!r} is a folder", "Name a file in it, such as 'net.ckpt'"
        raise CheckpointFolderError(what, where=where, allowed="The name of a file", hint=hint)
    path = path if path.name.endswith(ending) else path.with_name(path.name + ending)
    refuse_encryption(enc_key, where)
    records, texts = _records_of(save_obj, integrated_save, choice_func)
    _append(append_dict, records, texts)
    for name in (*records, *texts):
        check_name(name, where)
    meta = {TEXTS: texts} if texts else {}
    wait_for_saves()  # two saves of one file come in the order in which they were asked for
    if async_save:
        copies = {name: replace(record, array=np.array(record.array)) for name, record in records.items()}
        SaveThread(path, lambda: write_checkpoint(path, copies, meta=meta)).start()
    else:
        write_checkpoint(path, records, meta=meta)


class SaveThread(threading.Thread):
    """Writes a checkpoint in a thread that Python's end waits for; errors: by `wait_for_saves`, or printed."""

    def __init__(self, path: Path, write: Callable[[], Any], *, is_awaited: bool = False) -> None:
        super().__init__(name=f"parallel_lab-save {path.name}")
        self.write, self.is_awaited = write, is_awaited
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.write()
        except BaseException as error:
            self.error = error
            if not self.is_awaited:
                raise


def _running() -> list[SaveThread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, SaveThread)]


def async_ckpt_thread_status() -> bool:
    """Whether a save is being written in the background."""
    return bool(_running())


def wait_for_saves() -> None:
    """Wait until all saves in the background are written. Raises what went wrong with one that was still running."""
    threads = [thread for thread in _running() if thread is not threading.current_thread()]
    for thread in threads:
        thread.is_awaited = True
    for thread in threads:
        thread.join()
    for thread in threads:
        if thread.error is not None:
            raise thread.error


def _file_name(name: str, where: str) -> str:
    if name.endswith(os.sep) and not os.path.isdir(name):
        raise CheckpointError(f"ckpt_file_name={shorten(name)}", where=where, allowed="The name of a file")
    return name


def refuse_encryption(key: Any, where: str) -> None:
    """Raise NotBuiltYet if a key is given, CheckpointTypeError if it is not one. The texts do not show it."""
    if key is not None and not isinstance(key, bytes):
        raise CheckpointTypeError("enc_key or dec_key is not bytes", where=where, allowed="None")
    if key is not None:
        hint = "Omit the key, and encrypt the file with a tool made for that"
        raise NotBuiltYet("checkpoints cannot be encrypted", where=where, hint=hint)


def _records_of(
    save_obj: Any, integrated: bool, choose: Callable[[str], bool] | None
) -> tuple[dict[str, TensorRecord], dict[str, str]]:
    """({name: record}, {name: text}) of what is to be saved."""
    where = "save_checkpoint"
    if isinstance(save_obj, Cell):
        return network_records(save_obj, integrated=integrated, choose=choose), {}
    if isinstance(save_obj, Optimizer):
        return optimizer_records(save_obj, integrated=integrated, choose=choose), {}
    records: dict[str, TensorRecord] = {}
    texts: dict[str, str] = {}
    ranks, integrated = getattr(save_obj, "ranks", {}), integrated and not isinstance(save_obj, dict)
    for name, data in _named(save_obj, where):
        if choose is not None and not choose(name):
            continue
        if name in records or name in texts:
            raise CheckpointError(f"the name {name!r} stands twice", where=where, allowed="Each name once")
        if isinstance(data, str):
            texts[name] = data
        else:
            rank, place = ranks.get(name), f"{where}, {name!r}"
            records[name] = record_of(data, integrated=integrated, rank=rank, where=place)
    return records, texts


def _named(save_obj: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The names and values of a dict or a list that is to be saved."""
    if isinstance(save_obj, dict):
        for name, value in save_obj.items():
            if not isinstance(name, str) or not isinstance(value, (Parameter, Tensor, np.ndarray, str)):
                what = f"the entry {shorten(name)}: {shorten(value)}"
                raise CheckpointTypeError(what, where=where, allowed="Names as str, values as Parameter, Tensor or str")
            yield name, value
        return
    if not isinstance(save_obj, (list, tuple)):
        what = f"save_obj is a {type(save_obj).__name__}: {shorten(save_obj)}"
        allowed = "A Cell, an optimizer, a list of Parameters or of {'name', 'data'}, or a dict of Parameters"
        raise CheckpointTypeError(what, where=where, allowed=allowed)
    for i, one in enumerate(save_obj):
        given = {"name": one.name, "data": one} if isinstance(one, Parameter) else one
        if not isinstance(given, dict) or not {"name", "data"} <= given.keys() or not isinstance(given["name"], str):
            what = f"element {i} is {shorten(one)}"
            raise CheckpointTypeError(what, where=where, allowed="A Parameter, or {'name': str, 'data': Tensor}")
        yield given["name"], given["data"]


def _append(append_dict: Mapping[str, Any] | None, records: dict[str, TensorRecord], texts: dict[str, str]) -> None:
    where = "save_checkpoint, append_dict"
    for name, value in (append_dict or {}).items():
        if not isinstance(name, str) or not isinstance(value, (int, float, str, Tensor, np.generic)):
            what = f"the entry {shorten(name)}: {shorten(value)}"
            allowed = "Names as str, values as int, float, bool, str, Parameter or Tensor"
            raise CheckpointTypeError(what, where=where, allowed=allowed)
        if name in records or name in texts:
            raise CheckpointError(f"the name {name!r} is that of a parameter", where=where, allowed="Another name")
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise CheckpointError(f"{name}={shorten(value)}", where=where, allowed="An int of 64 bits")
        else:
            records[name] = record_of(value, where=f"{where}, {name!r}")


# ---- loading ----


@checked(
    "",
    CHECKPOINT,
    ckpt_file_name=FILE,
    net=NETWORK | None,
    filter_prefix=PREFIXES | None,
    specify_prefix=PREFIXES | None,
    choice_func=CHOICE | None,
    format=choice(*SUFFIXES),
)
def load_checkpoint(
    ckpt_file_name: str | os.PathLike[str],
    net: Cell | Optimizer | None = None,
    strict_load: bool = False,
    filter_prefix: str | list[str] | tuple[str, ...] | None = None,
    dec_key: bytes | None = None,
    dec_mode: str = "AES-GCM",
    specify_prefix: str | list[str] | tuple[str, ...] | None = None,
    choice_func: Callable[[str], bool] | None = None,
    crc_check: bool = False,
    remove_redundancy: bool = False,
    format: str = "ckpt",
) -> LoadedParameters:
    """Load a checkpoint: {name: Parameter}, texts as str.

    ckpt_file_name   the file; or the folder of a distributed checkpoint, whose tensors are gathered
    net              load it into this network too, as `load_param_into_net`
    filter_prefix    omit names that begin so (one or several)
    specify_prefix   load only names that begin so; either of the two has precedence over choice_func, as in MindSpore
    choice_func      of a name: whether it is loaded
    crc_check, remove_redundancy   accepted; checksums are always compared, and a file need not hold everything
    format           "ckpt"; "safetensors": the name's end, and other programs' files, without checksums, are taken

    Raises CheckpointError (a ValueError) if there is no such file, or nothing is left to be loaded; CheckpointCorrupt
    if it is damaged; CheckpointTypeError for arguments of other types.
    """
    where = "load_checkpoint"
    path = Path(_file_name(ckpt_file_name, where))
    refuse_encryption(dec_key, where)
    wanted = _wanted(filter_prefix, specify_prefix, choice_func)
    wait_for_saves()
    if path.is_dir():
        records, meta = _from_folder(path)
    elif path.suffix != SUFFIXES[format] and path.exists():
        what = f"{ckpt_file_name!r} does not end with {SUFFIXES[format]!r}"
        raise CheckpointError(what, where=where, allowed=f"A {SUFFIXES[format]} file")
    elif format == "safetensors":
        records, meta = _from_safetensors(path)
    else:
        found = read_checkpoint(path)
        records, meta = found.tensors, found.meta
    texts = meta.get(TEXTS, {})
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise CheckpointCorrupt("the texts are not as they were written", where=ckpt_file_name)
    kept = {name: record for name, record in records.items() if wanted(name)}
    parameters = {name: parameter_from(name, record) for name, record in kept.items()}
    parameters.update({name: value for name, value in texts.items() if wanted(name)})
    if not parameters:
        allowed = f"It holds {shorten([*records, *texts])}"
        raise CheckpointError("nothing was loaded", where=ckpt_file_name, allowed=allowed, hint="Check the prefixes")
    loaded = LoadedParameters(parameters, path, {name: record.rank for name, record in kept.items()}, meta)
    if net is not None:
        load_records(net, kept, strict=strict_load)
    return loaded


def parameter_from(name: str, record: TensorRecord) -> Parameter:
    """The Parameter of a record; a slice's has the whole's shape and the layout."""
    parameter = Parameter(Tensor(record.array), name=name)
    if not record.is_whole:
        parameter.full_shape = record.global_shape
        parameter.hold(parameter.asnumpy(), record.layout)
    return parameter


def _wanted(left_out: tuple[str, ...] | None, only: tuple[str, ...] | None, choice: Any) -> Callable[[str], bool]:
    if left_out is None and only is None:
        return choice or (lambda name: True)
    return lambda name: not (left_out and name.startswith(left_out)) and (not only or name.startswith(only))


def _from_folder(path: Path) -> tuple[dict[str, TensorRecord], dict[str, Any]]:
    if (path / MANIFEST).exists():
        return load_distributed(path, rank=0), read_manifest(path).meta
    files = sorted(path.glob("*.ckpt"), key=lambda file: file.stat().st_mtime)
    hint = f"Name the file: the newest one there is {str(files[-1])!r}" if files else "There is no .ckpt file in it"
    what = f"{str(path)!r} is a folder"
    raise CheckpointFolderError(what, where="load_checkpoint", allowed="A checkpoint file", hint=hint)


def _from_safetensors(path: Path) -> tuple[dict[str, TensorRecord], dict[str, Any]]:
    """One of our files, or one from elsewhere."""
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        what = "the package safetensors is missing"
        hint = "Install what environment.yml lists: pip install safetensors"
        raise MissingPackage(what, where="load_checkpoint", hint=hint) from error
    if not path.is_file():
        raise CheckpointError("there is no such file", where=str(path), allowed="An existing checkpoint file")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
        if {"sha256", "tensors"} & metadata.keys():
            found = read_checkpoint(path)
            return found.tensors, found.meta
        arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError, TypeError, KeyError) as error:
        raise CheckpointCorrupt(f"safetensors refuses it: {error}", where=str(path)) from None
    for name in arrays:
        check_name(name, str(path), CheckpointCorrupt)
    return {name: TensorRecord(array) for name, array in sorted(arrays.items())}, {}


@checked(
    "",
    CHECKPOINT,
    net=NETWORK,
    parameter_dict=instance(Mapping, "A dict of Parameters"),
    strict_load=flag,
    remove_redundancy=flag,
)
def load_param_into_net(
    net: Cell | Optimizer, parameter_dict: Mapping[str, Any], strict_load: bool = False, remove_redundancy: bool = False
) -> tuple[list[str], list[str]]:
    """Load parameters into a network or optimizer: (its names not loaded, names of the dict not used).

    net             a Cell (and the optimizers it holds), or an optimizer
    parameter_dict  what `load_checkpoint` gave, or {name: Parameter}. On a rank of a compiled network, whole tensors
                    are split for it; slices must be this rank's own
    strict_load     False: floats and ints are cast to the network's dtype; names may differ by a prefix
    remove_redundancy  accepted: what is not in the dict is left as it is

    Nothing is changed unless everything fits. Raises CheckpointTypeError (a TypeError) for arguments of other types,
    CheckpointError (a RuntimeError) for shapes and dtypes that do not fit.
    """
    where = "load_param_into_net"
    ranks, records = getattr(parameter_dict, "ranks", {}), {}
    for name, value in parameter_dict.items():
        if not isinstance(name, str) or not isinstance(value, (Tensor, str)):
            what = f"parameter_dict has {shorten(name)}: {shorten(value)}"
            raise CheckpointTypeError(what, where=where, allowed="Names as str, values as Parameter")
        if not isinstance(value, str):  # a text that was appended: nothing to load
            records[name] = record_of(value, rank=ranks.get(name), where=f"{where}, {name!r}")
    return load_records(net, records, strict=strict_load)
