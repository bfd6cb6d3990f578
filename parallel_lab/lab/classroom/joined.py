"""A notebook in a live class (live.py): what it keeps of checks and predictions is sent to the teacher's process.

    joined = join("http://192.168.1.5:8123", "K7MPQ3XW", name="Ada")
    joined                    # how it goes
    joined.leave()

Nothing is sent before `join`, and nothing else than: verdicts (exercise, parts passed, points, misconceptions), and the
first answer to each prediction with what is right. A thread of its own looks once a second whether there is something
new; where the teacher is gone it tries again, ever less often, and the notebook notices nothing. `http.client` and not
`urllib.request`: nothing goes through a proxy, and nobody can send it elsewhere.
"""

from __future__ import annotations

import atexit
import http.client
import json
import re
import threading
import time
from typing import Any

from ...base.errors import ArgumentError, WorldError, shorten
from ...base.units import plural
from .roll import this_session

TIMEOUT_S, EVERY_S, BEAT_S, LONGEST_S = 3.0, 1.0, 10.0, 30.0
MOST_REPLY = 64 << 10
GONE = (OSError, http.client.HTTPException, ValueError)  # where no teacher answers, or somebody else does
PART = ("name", "passed", "earned", "points", "idea")


def join(address: str, code: str, name: str = "") -> Joined:
    """Join a live class; a class that this notebook was in before is left.

    address  that the teacher shows, such as "http://192.168.1.5:8123"
    code     that the teacher shows
    name     to be shown; the teacher can hide all names

    Raises ArgumentError for another code or address, WorldError where nobody answers.
    """
    for thread in threading.enumerate():
        if isinstance(thread, Joined):
            thread.leave()
    return Joined(address, code, name)


def session_now() -> dict[str, list[Any]]:
    """What is sent: of each verdict what a wall shows, and every prediction that is kept."""
    told = this_session()
    for check in told["checks"]:
        check["parts"] = [{name: part[name] for name in PART} for part in check["parts"]]
    return {"checks": told["checks"], "predictions": told["predictions"]}


class Joined(threading.Thread):
    """A notebook that has joined; see `join`.  name: under which it is shown;  status: how it goes, in words"""

    def __init__(self, address: str, code: str, name: str) -> None:
        super().__init__(name="live class", daemon=True)
        found = re.fullmatch(r"http://([\w.-]+):([0-9]{1,5})/?", address) if isinstance(address, str) else None
        if found is None or not 0 < int(found[2]) < 1 << 16:
            allowed = 'Such as "http://192.168.1.5:8123"'
            raise ArgumentError(f"address={shorten(address)}", where="join", allowed=allowed)
        self._host, self._port, self._over, self._number = found[1], int(found[2]), threading.Event(), 0
        self._sent, self._sent_at = None, 0.0
        try:
            status, told = self._post("/join", str(code).strip(), {"name": str(name)})
        except GONE as error:
            hint = "Is this the address that your teacher shows, and are you in the same network?"
            raise WorldError(f"nobody answers: {error}", where=f"join {address}", hint=hint) from error
        if status != 200:
            hint = "The code that your teacher shows"
            raise ArgumentError(f"refused: {told.get('error')}", where="join", hint=hint)
        self._key, self.shown_as = str(told.get("key")), str(told.get("name"))
        self.status = "joined; nothing to send yet"
        atexit.register(self.leave)
        self.start()

    def __repr__(self) -> str:
        return f"In the live class at {self._host}:{self._port} as {self.shown_as}: {self.status}"

    def leave(self) -> None:
        """Send nothing any more. What was sent stays with the teacher."""
        atexit.unregister(self.leave)
        if self._over.is_set():
            return
        self._over.set()
        self.status = "left"
        if threading.current_thread() is not self:
            self.join(2 * TIMEOUT_S)
        try:
            self._post("/leave", self._key, {}, timeout_s=1.0)
        except GONE:
            return

    def run(self) -> None:
        """What the thread does."""
        wait_s = EVERY_S
        while not self._over.wait(wait_s):
            told = session_now()
            if told == self._sent and time.monotonic() - self._sent_at < BEAT_S:
                continue
            self._number += 1
            try:
                status, answer = self._post("/say", self._key, {"number": self._number, **told})
            except GONE:
                wait_s = min(2 * wait_s, LONGEST_S)
                self.status = f"the teacher cannot be reached; the next try is in {wait_s:g} s"
                continue
            if status == 403:
                self.status = "the class is over, or does not know this notebook any more: join again"
                return
            wait_s = EVERY_S if status != 429 else min(2 * wait_s, LONGEST_S)
            if status != 429:
                self._sent, self._sent_at = told, time.monotonic()
            counts = f"{plural(len(told['checks']), 'verdict')}, {plural(len(told['predictions']), 'prediction')}"
            self.status = f"{counts} sent" if status == 200 else f"refused: {answer.get('error')}"

    def _post(self, path: str, key: str, told: Any, timeout_s: float = TIMEOUT_S) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            connection.request("POST", path, json.dumps(told, default=str).encode(), headers)
            reply = connection.getresponse()
            answer = json.loads(reply.read(MOST_REPLY) or b"{}")
            return reply.status, answer if isinstance(answer, dict) else {}
        finally:
            connection.close()
