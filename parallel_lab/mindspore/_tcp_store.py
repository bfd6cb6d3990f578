"""`mindspore.mint.distributed.TCPStore`: keys and values that several processes share."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Client, Listener
from typing import Any

from ..base.checks import checked, flag, instance, integer, text
from ..base.errors import WorldError, WorldTimeout


class TCPStore:
    """Keys and values that several processes share: one of them, the master, keeps them and answers the others.

    host_name, port  where the master listens;  is_master: whether this process is the master
    timeout          longest wait for the master, and for a key that `get` asks for
    world_size, wait_for_workers  how many processes use it, and whether the master waits until all have connected
    multi_tenant, master_listen_fd, use_libuv  without effect, as in MindSpore

    Raises WorldTimeout (a TimeoutError and RuntimeError) when the time is over.
    """

    @checked("TCPStore", host_name=text, port=integer(0, 65535), is_master=flag, wait_for_workers=flag)
    @checked("TCPStore", world_size=integer(1) | None, timeout=instance(timedelta, "A timedelta"))
    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        self.host, self.port, self._timeout_s = host_name, port, timeout.total_seconds()
        self._values: dict[str, bytes] = {}
        self._changed, self._workers, self._line = threading.Condition(), 0, threading.Lock()
        if not is_master:
            end = time.monotonic() + self._timeout_s
            while True:
                try:
                    self._master = Client((host_name, port))
                    return
                except ConnectionError:
                    if time.monotonic() > end:
                        what = f"no master at {host_name}:{port} within {self._timeout_s:g} s"
                        raise WorldTimeout(what, where="TCPStore") from None
                    time.sleep(0.01)
        self._master, self._listener = None, Listener((host_name, port))
        threading.Thread(target=self._accept, daemon=True).start()
        wanted = (world_size or 1) - 1
        if wait_for_workers and not self._wait(lambda: self._workers >= wanted):
            raise WorldTimeout(f"{self._workers} of {wanted} other processes have connected", where="TCPStore")

    def _wait(self, ready: Callable[[], bool]) -> bool:
        with self._changed:
            return self._changed.wait_for(ready, self._timeout_s)

    def _accept(self) -> None:
        while True:
            worker = self._listener.accept()
            with self._changed:
                self._workers += 1
                self._changed.notify_all()
            threading.Thread(target=self._serve, args=(worker,), daemon=True).start()

    def _serve(self, worker: Any) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                what, key, value = json.loads(worker.recv_bytes())
                worker.send_bytes(json.dumps(self._answer(what, key, value)).encode())

    def _answer(self, what: str, key: str, value: Any) -> Any:
        """What the master answers; bytes are texts of Latin-1 on their way, None says that there was no such key."""
        if what == "get" and not self._wait(lambda: key in self._values):
            return None
        with self._changed:
            if what == "set":
                self._values[key] = value.encode("latin-1")
            elif what == "add":
                held = self._values.get(key, b"0")
                if not held.lstrip(b"-").isdigit():
                    return None
                value += int(held)
                self._values[key] = str(value).encode()
            elif what == "get":
                value = self._values[key].decode("latin-1")
            else:
                value = self._values.pop(key, None) is not None
            self._changed.notify_all()
            return value

    def _ask(self, what: str, key: str, value: Any = None) -> Any:
        text(f"TCPStore.{what}", "key", key)
        if self._master is None:
            return self._answer(what, key, value)
        try:
            with self._line:
                self._master.send_bytes(json.dumps([what, key, value]).encode())
                return json.loads(self._master.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorldError(f"the master at {self.host}:{self.port} is gone", where=f"TCPStore.{what}") from error

    def set(self, key: str, value: bytes | str) -> None:
        """Keep a value."""
        value = instance((bytes, str), "bytes or a str")("TCPStore.set", "value", value)
        self._ask("set", key, (value.encode() if isinstance(value, str) else value).decode("latin-1"))

    def get(self, key: str) -> bytes:
        """The value of a key, once there is one."""
        found = self._ask("get", key)
        if found is None:
            raise WorldTimeout(f"no value of {key!r} within {self._timeout_s:g} s", where="TCPStore.get")
        return found.encode("latin-1")

    def add(self, key: str, amount: int) -> int:
        """Count a key on, from 0; the new count."""
        count = self._ask("add", key, integer()("TCPStore.add", "amount", amount))
        if count is None:
            raise WorldError(f"{key!r} does not hold a number", where="TCPStore.add", hint="Take another key")
        return count

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether there was one."""
        return self._ask("delete_key", key)
