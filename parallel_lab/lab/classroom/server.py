"""The server of a live class (live.py): one thread of the teacher's process, the standard library, and hard limits.

    with ClassServer(LiveClass(), host="0.0.0.0", port=8123) as server:
        print(server.joining, server.page)

    POST /join   Bearer CODE    {"name": "Ada"}                        {"key": ..., "name": "Ada"}
    POST /say    Bearer KEY     {"number", "checks", "predictions"}    {}
    POST /leave  Bearer KEY     {}                                     {}
    GET  /                                                             the teacher's page, still empty
    POST /class  Bearer TOKEN   {"since", "reveal", ...}               what that page shows
    POST /csv    Bearer TOKEN   {}                                     the table

The last three only from the teacher's own machine. A request has a connection of its own, for CONNECTION_S at most, and
the asker is checked before a body is read. What two readers could take for different things (a header twice, chunks, a
folded line) is refused. A `Host` that is not this machine's comes from a page that has bent its own name to this
address, an `Origin` from somebody else's page.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from ...base.errors import DataFileError, WorldError
from ...base.plain_json import parse_json
from .items import class_csv
from .live import LiveClass, NotJoined
from .wall import live_wall

HEAD_BYTES, BODY_BYTES, MOST_HEADERS = 16 << 10, 128 << 10, 50
CONNECTION_S, CONNECTIONS, OF_ADDRESS = 5.0, 64, 16  # so long, so many at a time, of one address
PER_S, WRONG_CODE = 60, 20  # requests of an address in a second; what a wrong code counts as: 3 guesses of 31^8
ANY = "0.0.0.0"  # every network that this machine is in
LINE = re.compile(r"([A-Z]{1,10}) (/[a-z]*) HTTP/1\.[01]")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
SAFE = "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
SAFE += "Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n"
POLICY = "Content-Security-Policy: default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
POLICY += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Live class</title><style nonce="{nonce}">{style}</style></head>
<body class="wall-live"><main class="wall" id="wall"><h1>Live class</h1></main>
<script nonce="{nonce}">{script}</script></body></html>
"""


class _Refused(Exception):
    """status, and why"""


class ClassServer:
    """A live class on the network, while the `with` block runs.  port: 0: any free one;  faults: of the server itself

    Raises WorldError where it cannot listen there.
    """

    def __init__(self, live: LiveClass, host: str = "127.0.0.1", port: int = 0) -> None:
        self.live, self.host, self.port, self.faults = live, host, port, deque[str](maxlen=20)
        self._open, self._asked, self._second = Counter[str](), Counter[str](), 0
        self._ready, self._fault = threading.Event(), ""
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="live class", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._fault:
            hint = "Another --port, or a --host of this machine"
            raise WorldError(self._fault, where=f"live class on {self.host}:{self.port}", hint=hint)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(2 * CONNECTION_S)

    @property
    def joining(self) -> str:
        """The line with which a learner joins."""
        host = _own_address() if self.host == ANY else self.host
        return f'join("http://{host}:{self.port}", "{self.live.code}", name="...")'

    @property
    def page(self) -> str:
        """The address of the teacher's page, to open on this machine."""
        return f"http://{'127.0.0.1' if self.host == ANY else self.host}:{self.port}/#{self.live.token}"

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._connected, self.host, self.port, limit=HEAD_BYTES)
            self.port = server.sockets[0].getsockname()[1]
        except OSError as error:
            self._fault = str(error)
            return
        finally:
            self._ready.set()
        async with server:
            await self._stopped.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, here = (str((writer.get_extra_info(name) or ("",))[0]) for name in ("peername", "sockname"))
        if self._open.total() >= CONNECTIONS or self._open[peer] >= OF_ADDRESS:
            writer.transport.abort()
            return
        self._open[peer] += 1
        try:
            async with asyncio.timeout(CONNECTION_S):
                writer.transport.set_write_buffer_limits(0)  # `drain` then waits until all is sent
                writer.write(await self._reply(reader, peer, here))
                await writer.drain()
            writer.close()
        except (TimeoutError, OSError, EOFError):  # too slow, or gone
            writer.transport.abort()
        finally:
            self._open -= Counter([peer])

    async def _reply(self, reader: asyncio.StreamReader, peer: str, here: str) -> bytes:
        try:
            return await self._answer(reader, peer, here)
        except _Refused as refused:
            status, why = refused.args
        except asyncio.LimitOverrunError:
            status, why = 431, f"a head of more than {HEAD_BYTES} bytes"
        except NotJoined as error:
            self._pay(peer, WRONG_CODE)
            status, why = 403, str(error)
        except DataFileError as error:
            status, why = 400, str(error)
        except (OSError, EOFError):
            raise
        except Exception as error:  # one request must not end the class; the teacher is shown it
            self.faults.append(f"{type(error).__name__}: {error}")
            status, why = 500, "a fault of the server"
        return _message({"error": why}, status)

    async def _answer(self, reader: asyncio.StreamReader, peer: str, here: str) -> bytes:
        live = self.live
        method, path, headers = _head(await reader.readuntil(b"\r\n\r\n"))
        key = headers.get("authorization", "").removeprefix("Bearer ")
        is_teacher = secrets.compare_digest(key.encode(), live.token.encode())
        if not is_teacher and not self._pay(peer):
            raise _Refused(429, "too many requests")
        name = socket.gethostname().lower()
        hosts = {f"{one}:{self.port}" for one in (here, "127.0.0.1", "localhost", name, f"{name}.local")}
        host = headers.get("host", "").lower()
        if host not in hosts:
            raise _Refused(421, "another Host")
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            raise _Refused(403, "another Origin")
        is_here = peer in (here, "127.0.0.1")
        if method == "GET" and path == "/" and is_here:
            return _page()
        if method != "POST" or path not in ("/join", "/say", "/leave", "/class", "/csv"):
            raise _Refused(404 if method == "GET" else 405, "A live class: take part from a notebook")
        if path in ("/class", "/csv") and not (is_teacher and is_here):
            raise NotJoined("not the teacher", where=path)
        if path in ("/say", "/leave") and not live.knows(key):
            raise NotJoined("a key that is not known", where=path, hint="Join again")
        told = await _body(reader, headers)
        if path == "/join":
            return _message(dict(zip(("key", "name"), live.join(key, told.get("name"), peer), strict=True)))
        if path == "/csv":
            return _message(class_csv(live.shown()), kind="text/csv")
        if path != "/class":
            live.say(key, told) if path == "/say" else live.leave(key)
            return _message({})
        live.teach(told)
        shown = {"version": live.version, "here": live.here, "fault": " ".join(self.faults)}
        return _message(
            shown if told.get("since") == live.version else {**shown, "html": live_wall(live, self.joining)}
        )

    def _pay(self, peer: str, cost: int = 1) -> bool:
        """Count a request of an address; whether it may have it in this second."""
        if self._second != int(time.monotonic()):
            self._second, self._asked = int(time.monotonic()), Counter()
        self._asked[peer] += cost
        return self._asked[peer] <= PER_S


def _message(told: Any, status: int = 200, kind: str = "application/json", more: str = "") -> bytes:
    body = (told if isinstance(told, str) else json.dumps(told)).encode()
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}; charset=utf-8\r\n"
    return f"{first}Content-Length: {len(body)}\r\n{SAFE}{more}\r\n".encode() + body


def _page() -> bytes:
    nonce, here = secrets.token_urlsafe(16), Path(__file__).parent
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("wall.css", "live.js"))
    page = PAGE.format(nonce=nonce, style=style, script=script)
    return _message(page, kind="text/html", more=POLICY.format(nonce))


def _head(data: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path and headers (names in small letters) of a request. Raises _Refused."""
    first, *lines = data[:-4].decode("latin-1").split("\r\n")
    line = LINE.fullmatch(first)
    if line is None or len(lines) > MOST_HEADERS:
        raise _Refused(400 if line is None else 431, "no request of HTTP/1.1 in its plain form")
    headers: dict[str, str] = {}
    for text in lines:
        found = HEADER.fullmatch(text)
        if found is None or found[1].lower() in headers:
            raise _Refused(400, "a header twice, or in another form")
        headers[found[1].lower()] = found[2].strip()
    return line[1], line[2], headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> dict[str, Any]:
    """The JSON object of a request, whose asker is known. Raises _Refused, DataFileError."""
    length = headers.get("content-length", "")
    if "transfer-encoding" in headers:
        raise _Refused(501, "chunks")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _Refused(415, "Content-Type: application/json")
    if not re.fullmatch(r"[0-9]{1,12}", length):
        raise _Refused(411, "Content-Length")
    if int(length) > BODY_BYTES:
        raise _Refused(413, f"at most {BODY_BYTES} bytes")
    told = parse_json(await reader.readexactly(int(length)), "request", DataFileError, max_bytes=BODY_BYTES)
    if not isinstance(told, dict):
        raise DataFileError("not an object", where="request")
    return told


def _own_address() -> str:
    """This machine's address on its network: that from which it would send. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address of no machine (RFC 5737)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
