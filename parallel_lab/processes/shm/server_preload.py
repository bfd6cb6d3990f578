"""Imported once in the fork server, before any worker exists: what workers need, and two arrangements for a server.

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
import signal

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
    atexit.register(_remove_socket)


if PRELOAD in os.environ:  # in the server: what imports all files, to run their examples, is not a server
    _arrange(os.environ.pop(PRELOAD).split())
