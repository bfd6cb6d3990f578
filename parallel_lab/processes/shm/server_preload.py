"""Imported once in the fork server, before any worker exists: what workers need, and arrangements for a server.

Nothing else imports it. The process group of its own keeps a kill of the notebook's whole group (Jupyter's "restart
now") from the server, so that it lives the moment it takes to notice and to remove its socket folder: the notebook,
which made the folder, can no longer do it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import signal
from typing import Any

import dill  # noqa: F401
import numpy  # noqa: F401
import threadpoolctl
from multiprocess import forkserver

from ...base.interrupts import unblock
from .launch import PRELOAD
from .worker_main import communicator_class


def _remove_socket() -> None:
    address = getattr(forkserver._forkserver, "_forkserver_address", None)
    if isinstance(address, str) and address.startswith(os.sep):
        for remove, path in ((os.unlink, address), (os.rmdir, os.path.dirname(address))):
            # the notebook ended in order and was quicker, or keeps other files there
            with contextlib.suppress(OSError):
                remove(path)


_serve_one = forkserver._serve_one


def _serve_what_was_asked(*args: Any) -> int:
    """Be a worker. A start that was interrupted hangs up before it says what to do: then nobody wants this process, nor
    a traceback of it in the notebook. What the worker itself raises is reported before it comes here.
    """
    try:
        return _serve_one(*args)
    except (EOFError, pickle.UnpicklingError):
        return 1


def _arrange(names: list[str]) -> None:
    threadpoolctl.threadpool_limits(1)
    communicator_class()  # loaded here, once for all workers
    for name in names:
        importlib.import_module(name)
    # A worker's garbage collections would write into every object that they look at, and take a copy of its page: what
    # is there now stays for ever.
    gc.collect()
    gc.freeze()
    # born with it blocked (launch.py): what has come meanwhile is dropped here, and workers are born ignoring it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unblock()
    os.setpgid(0, 0)
    forkserver._serve_one = _serve_what_was_asked
    atexit.register(_remove_socket)


if PRELOAD in os.environ:  # in the server: what imports all files, to run their examples, is not a server
    _arrange(os.environ.pop(PRELOAD).split())
