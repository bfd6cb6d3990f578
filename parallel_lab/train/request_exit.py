"""`OnRequestExit`: a training that is asked to end ends after its step, with a checkpoint of it.

    model.train(5, dataset, callbacks=[OnRequestExit(file_name="net", config_file="exit.json")])
    # `kill PID`, or {"GracefulExit": 1} written to exit.json: net_train.ckpt, and train() returns

Ranks that train together end in the same step, whichever of them was asked. Name, arguments and files: MindSpore,
train.OnRequestExit.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from ..base.checks import checked, flag, integer, path_text
from ..base.errors import DataFileError, shorten
from ..base.files import read_regular
from ..base.plain_json import parse_json
from .agreement import training_world
from .callbacks import Callback, RunContext, params_of
from .checkpoint_callback import FOLDER, PREFIX, training_records, write_records

LARGEST_FILE = 1 << 16  # bytes of the file that ends a run


class OnRequestExit(Callback):
    """Ends a run, and saves what is trained, on a signal or on what a file says.

    save_ckpt    write `<directory>/<file_name>_train.ckpt`, of several ranks each into `rank_<number>/` there: slices
                 where they are split, with the optimizer's states
    save_mindir  accepted: there is no MindIR here
    config_file  a JSON file, looked at after every step: {"GracefulExit": 1} ends the run
    sig          number of the signal; noticed where the run is in the main thread

    Raises ArgumentTypeError, ArgumentError; DataFileError for a config_file that is no JSON object.
    """

    @checked(
        save_ckpt=flag,
        save_mindir=flag,
        file_name=PREFIX,
        directory=FOLDER,
        config_file=path_text(kinds=(str, os.PathLike)) | None,
        sig=integer(1, signal.NSIG - 1),
    )
    def __init__(
        self,
        save_ckpt: bool = True,
        save_mindir: bool = True,
        file_name: str = "Net",
        directory: str | os.PathLike[str] = "./",
        config_file: str | None = None,
        sig: int = signal.SIGTERM,
    ) -> None:
        self._save, self._name, self._directory = save_ckpt, file_name, Path(directory).absolute()
        self._config_file = None if config_file is None else Path(config_file).absolute()
        self._signal, self._before, self._is_asked = sig, None, False

    def begin(self, run_context: RunContext) -> None:
        """Listen to the signal."""
        self._is_asked = False
        if self._before is None and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(self._signal, self._note)

    def __exit__(self, *error: Any) -> None:
        if self._before is not None:
            signal.signal(self._signal, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True

    def step_end(self, run_context: RunContext) -> None:
        """End here if a rank was asked to."""
        params = params_of(run_context)
        world = training_world(params.parallel_mode)
        ends = self._is_asked or self._told_by_file()
        if world is not None:
            ends = bool(world.comm.all_reduce(np.array([ends], np.int32), reduce="max", tag="OnRequestExit")[0])
        if ends:
            if self._save and params.mode == "train":
                folder = self._directory if world is None else self._directory / f"rank_{world.rank}"
                folder.mkdir(parents=True, exist_ok=True)
                records = training_records(params.network, params.optimizer, integrated=False)
                numbers = {"epoch_num": params.cur_epoch_num, "step_num": params.cur_step_num}
                write_records(folder / f"{self._name}_train.ckpt", records, numbers)
            run_context.request_stop()

    def _told_by_file(self) -> bool:
        path = self._config_file
        if path is None:
            return False
        allowed = '{"GracefulExit": 1}'
        try:
            content = parse_json(read_regular(path, LARGEST_FILE), str(path), DataFileError)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DataFileError(f"cannot be read: {error.strerror}", where=str(path), allowed=allowed) from error
        if not isinstance(content, dict):
            raise DataFileError("holds no JSON object", where=str(path), allowed=allowed)
        if (asked := content.get("GracefulExit", 0)) not in (0, 1):
            raise DataFileError(f"GracefulExit is {shorten(asked)}", where=str(path), allowed=f"{allowed}, or 0")
        return asked == 1
