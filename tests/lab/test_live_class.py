"""A live class: what honest notebooks say is counted as computed by hand, and hostile requests change nothing."""

from __future__ import annotations

import itertools
import json
import socket
import time
import tracemalloc

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, WorldError
from parallel_lab.cli import class_commands
from parallel_lab.cli.main import main
from parallel_lab.lab.classroom import analysed, class_csv, join, server as servers
from parallel_lab.lab.classroom.joined import session_now
from parallel_lab.lab.classroom.live import MOST_ANSWERS, MOST_LEARNERS, MOST_QUESTIONS, SILENT_S, LiveClass, NotJoined
from parallel_lab.lab.classroom.roll import Collected, take
from parallel_lab.lab.classroom.wall import wall_text
from parallel_lab.lab.exercises import book
from parallel_lab.lab.shared import prediction
from tests.browser.lab_page import CHROMIUM, axe_faults

MEAN = "all_reduce averages"
QUESTION = {"key": "rounds = 6", "text": "How many rounds?", "yours": 6, "right": [6]}


def verdict(number="03.1", points=3, most=3, idea="", **more):
    parts = [{"name": "sgd", "passed": not idea, "idea": idea}]
    return {"exercise": number, "points": points, "max_points": most, "tried": True, "parts": parts, **more}


def said(number=1, checks=(), predictions=()):
    return {"number": number, "checks": list(checks), "predictions": list(predictions)}


class Client:
    """Raw requests to a server, as text or bytes; none is sent by a library."""

    def __init__(self, server):
        self.server, self.address = server, ("127.0.0.1", server.port)
        self.address_of_class = f"http://127.0.0.1:{server.port}"

    def raw(self, data: bytes, *, pause_s: float = 0.0) -> bytes:
        with socket.create_connection(self.address, timeout=10) as connection:
            try:
                if pause_s:
                    for n in range(len(data)):
                        connection.sendall(data[n : n + 1])
                        time.sleep(pause_s)
                connection.sendall(data)
                return b"".join(iter(lambda: connection.recv(1 << 16), b""))
            except ConnectionError:
                return b""

    def head(self, path, length, key="", method="POST", **headers):
        usual = {"Host": f"127.0.0.1:{self.address[1]}", "Content-Type": "application/json"}
        usual |= {"Content-Length": length, "Authorization": f"Bearer {key}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        lines = [f"{name}: {value}" for name, value in usual.items() if value is not None]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()

    def post(self, path, told, key="", **headers):
        """(status, the answer)"""
        body = told if isinstance(told, bytes) else json.dumps(told).encode()
        reply = self.raw(self.head(path, len(body), key, **headers) + body)
        return (int(reply.split()[1]), reply.partition(b"\r\n\r\n")[2].decode()) if reply else (0, "")

    def join(self, name="Ada"):
        return json.loads(self.post("/join", {"name": name}, self.server.live.code)[1])["key"]

    def page(self, **asks):
        return json.loads(self.post("/class", {"since": -1, **asks}, self.server.live.token)[1])["html"]


@pytest.fixture
def client(monkeypatch):
    monkeypatch.setattr(servers, "CONNECTION_S", 0.5)
    with servers.ClassServer(LiveClass()) as server:
        yield Client(server)
        assert Client(server).post("/class", {"since": 0}, server.live.token)[0] == 200  # the class goes on
        assert not server.faults and server._open.total() <= 1
    assert not server._thread.is_alive()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


# ---- what is counted ----

# points of six learners in three exercises worth 4, 3 and 5; None: not tried
SHARES = dict(zip("abcdef", [(4, 3, 5), (4, 2, 4), (3, 2, 5), (2, 1, 1), (1, 0, None), (0, 2, 0)], strict=True))


def test_item_analysis_follows_its_formulas():
    found, most = Collected(), {"02.1": 4, "03.1": 3, "06.1": 5}
    for learner, points in SHARES.items():
        rows = [(n, got, top) for (n, top), got in zip(most.items(), points, strict=True) if got is not None]
        checks = [verdict(n, got, top, MEAN if n == "03.1" and got < 2 else "") for n, got, top in rows]
        checks += [verdict("06.1", 0, 5, tried=False)] if learner == "e" else []
        told = {"format": "parallel_lab.class", "version": 1, "learner": learner, "checks": checks}
        take(told, learner, found)
    first, second, third = analysed(found.roll())
    # shares of 02.1, and of 7 or 8 = 3 + 5 points of the others (e: of 3)
    share, rest = [1, 1, 0.75, 0.5, 0.25, 0], [8 / 8, 6 / 8, 7 / 8, 2 / 8, 0 / 3, 2 / 8]
    x, y = np.array(share) - np.mean(share), np.array(rest) - np.mean(rest)
    assert first.difficulty == pytest.approx(3.5 / 6)
    assert first.discrimination == pytest.approx((x @ y) / np.sqrt((x @ x) * (y @ y)))
    assert second.idea == (MEAN, 2) and first.idea is None  # of d and e
    assert (third.learners, third.difficulty) == (5, pytest.approx((5 + 4 + 5 + 1 + 0) / 25))
    del found.points["02.1"]["f"], found.points["02.1"]["e"]  # four are too few
    assert analysed(found.roll())[0].discrimination is None
    assert "02.1      4 " in wall_text(found.roll())


def test_a_notebook_sends_what_it_keeps_and_an_answer_after_the_reveal_is_too_late(client, monkeypatch):
    monkeypatch.setattr(prediction._FIRST, "_kept", {"rounds = 6": QUESTION})
    monkeypatch.setattr(book._DESK, "results", {})
    with pytest.raises(ArgumentError, match="refused"):
        join(client.address_of_class, "WRONG", "Ada")
    joined = join(client.address_of_class, client.server.live.code.lower(), "Ada")
    book.check("03.1", {"sgd": 1})
    for _ in range(100):
        if "1 verdict, 1 prediction sent" in repr(joined):
            break
        time.sleep(0.05)
    again = join(client.address_of_class, client.server.live.code, "Ada")  # the cell is run again
    assert joined.status == "left" and again.shown_as == "Ada"
    roll = client.server.live.roll()
    assert roll.learners == ("Ada",) and roll.histogram("How many rounds?") == [("6", 1)] and "03.1" in roll.points
    page = client.page()
    assert "How many rounds?" in page and "Right" not in page and "wall-right" not in page
    ident = roll.ids["How many rounds?"]
    assert "Right: 6." in client.page(reveal=ident)
    late = client.join("Bo")
    assert client.post("/say", said(1, predictions=[QUESTION]), late)[0] == 200
    assert client.server.live.roll().histogram("How many rounds?") == [("6", 1)] and ">Ada<" in client.page()
    assert ">Ada<" not in client.page(names=False) and "learner 1" in client.page()
    assert "Right" not in client.page(cover=ident)
    client.server.live._places.clear()  # another class: the notebook stops by itself
    again._over.set()
    again.leave()
    with pytest.raises(WorldError, match="nobody answers"):
        join("http://127.0.0.1:9", "X", "Ada")
    for address in ("192.168.1.5", "https://x:1", "http://x", "http://x:99999", 7):
        with pytest.raises(ArgumentError, match="address="):
            join(address, "X")


def test_a_prediction_is_shown_before_its_notebook_has_compared_it_and_what_is_right_comes_later(client):
    """What is right was kept as it was first sent: after the reveal the wall said "Right: ."."""
    key, asked = client.join("Ada"), {**QUESTION, "key": "How many rounds?", "right": []}
    numbers = itertools.count(1)

    def say(yours, *right):
        client.post("/say", said(next(numbers), predictions=[{**asked, "yours": yours, "right": list(right)}]), key)
        return client.server.live.roll().histogram("How many rounds?")

    assert say(4) == [("4", 1)] and say(3) == [("3", 1)]  # changed in the form, before anything is known
    ident = client.server.live.roll().ids["How many rounds?"]
    page = client.page(reveal=ident)
    assert "is known once a notebook has compared it" in page and "Right:" not in page
    assert say(6, 6) == [("3", 1)]  # too late; but now it is known what is right
    assert "Right: 6. Nobody answered that." in client.page(names=True)
    say(3, 7)
    assert client.server.live.roll().right == {"How many rounds?": ("6",)}


def test_a_lost_teacher_is_looked_for_ever_less_often(monkeypatch):
    monkeypatch.setattr(prediction._FIRST, "_kept", {})
    with servers.ClassServer(LiveClass()) as server:
        joined = join(f"http://127.0.0.1:{server.port}", server.live.code, "Ada")
    prediction._FIRST.add(QUESTION)
    for _ in range(100):
        if "cannot be reached; the next try is in 2 s" in joined.status:
            break
        time.sleep(0.05)
    else:
        raise AssertionError(joined.status)
    joined.leave()
    assert not joined.is_alive() and session_now()["predictions"] == [QUESTION]


def test_names_are_kept_apart_and_a_notebook_that_is_gone_is_continued():
    now = [0.0]
    live = LiveClass(clock=lambda: now[0])
    key, name = live.join(live.code, "Ada", "10.0.0.1")
    live.say(key, said(5, [verdict()], [QUESTION]))
    assert name == "Ada" and live.join(live.code, "Ada", "10.0.0.2")[1] == "Ada (2)"
    now[0] = SILENT_S + 1
    other, name = live.join(live.code, "Ada", "10.0.0.1")  # the kernel was restarted
    assert name == "Ada" and not live.knows(key) and live.roll().answers["How many rounds?"] == {"Ada": "6"}
    live.say(other, said(1, predictions=[{**QUESTION, "yours": 3}]))  # the first answer counts
    assert live.roll().answers["How many rounds?"] == {"Ada": "6"} and live.here == 1
    live.teach({"remove": 1})
    assert live.roll().learners == ("Ada (2)",)


def test_the_command_runs_a_class_until_it_is_interrupted_and_writes_what_was_asked_for(tmp_path, capsys, monkeypatch):
    def wait(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(class_commands.Event, "wait", wait)
    monkeypatch.setattr(servers.ClassServer, "__enter__", lambda self: self)
    monkeypatch.setattr(servers.ClassServer, "__exit__", lambda self, *_: None)
    assert main(["wall", "--live", "--host", "127.0.0.1", "--csv", str(tmp_path / "class.csv")]) == 0
    told = capsys.readouterr().out
    assert 'join("http://127.0.0.1:8123", "' in told and "http://127.0.0.1:8123/#" in told
    assert [path.name for path in tmp_path.iterdir()] == ["class.csv"]
    for wrong in (["wall"], ["wall", "folder", "--live"]):
        with pytest.raises(SystemExit):
            main(wrong)


# ---- hostile requests ----

BODY = json.dumps({"name": "x"})
REFUSED = {  # name: (what is sent, by the client's `head`; the status)
    "oversized": (lambda c: c.head("/join", 10**9, c.server.live.code), 413),
    "deep": (lambda c: c.head("/join", 9000, c.server.live.code) + b"[" * 9000, 400),
    "NaN": (lambda c: c.head("/join", 12, c.server.live.code) + b'{"name":NaN}', 400),
    "key twice": (lambda c: c.head("/join", 21, c.server.live.code) + b'{"name":1,"name":"x"}', 400),
    "wrong code": (lambda c: c.head("/join", 2, "AAAAAAAA") + b"{}", 403),
    "traversal": (lambda c: b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
    "a file": (lambda c: b"GET /wall HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % c.address[1], 404),
    "form": (lambda c: c.head("/join", 2, c.server.live.code, Content_Type="text/plain") + b"{}", 415),
    "chunks": (lambda c: c.head("/join", None, c.server.live.code, Transfer_Encoding="chunked") + b"0\r\n\r\n", 501),
    "length twice": (lambda c: c.head("/join", "2\r\nContent-Length: 3", c.server.live.code) + b"{}", 400),
    "no length": (lambda c: c.head("/join", None, c.server.live.code), 411),
    "folded": (lambda c: c.head("/join", 2, "x", X="a\r\n b") + b"{}", 400),
    "bare line end": (lambda c: c.head("/join", 2, "x", X="a\nHost: b") + b"{}", 400),
    "many headers": (lambda c: c.head("/join", 2, "x", **{f"X{n}": "1" for n in range(500)}), 431),
    "endless head": (lambda c: b"POST /join HTTP/1.1\r\nX: " + b"a" * 200_000, 431),
    "other methods": (lambda c: c.head("/join", 2, "x", method="PUT") + b"{}", 405),
    "preflight": (lambda c: c.head("/class", 0, method="OPTIONS"), 405),
    "rebound name": (lambda c: c.head("/class", 2, c.server.live.token, Host="evil.example") + b"{}", 421),
    "no Host": (lambda c: c.head("/join", 2, c.server.live.code, Host=None) + b"{}", 421),
    "another page": (lambda c: c.head("/class", 2, c.server.live.token, Origin="http://evil.example") + b"{}", 403),
    "no token": (lambda c: c.head("/class", 2, c.server.live.code) + b"{}", 403),
    "no key": (lambda c: c.head("/say", 2, c.server.live.token + "x") + b"{}", 403),
    "HTTP/0.9": (lambda c: b"GET /\r\n\r\n", 400),
    "TLS": (lambda c: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_request_is_refused(client, name):
    make, status = REFUSED[name]
    reply = client.raw(make(client))
    assert reply.startswith(f"HTTP/1.1 {status} ".encode()) or (name == "endless head" and not reply)
    assert client.server.live.version == 0 and b"passwd" not in reply and b"Access-Control" not in reply


def test_who_is_slow_or_gone_half_way_is_cut_off(client):
    begun = time.monotonic()
    assert client.raw(client.head("/join", 2, client.server.live.code), pause_s=0.02) == b""
    assert client.raw(client.head("/join", 99, client.server.live.code) + b"{") == b""  # the body never comes
    assert time.monotonic() - begun < 5
    waiting = [socket.create_connection(client.address) for _ in range(servers.OF_ADDRESS + 5)]
    deadline = time.monotonic() + 5
    while client.post("/class", {}, client.server.live.token)[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert time.monotonic() < deadline
    for one in waiting:
        one.close()
    with socket.create_connection(client.address) as gone:
        gone.sendall(client.head("/join", 50, client.server.live.code) + b"{")


HOSTILE_NAME = "<script>alert(1)</script>\u202e\0\n\x1b[2J"


def test_texts_are_one_line_are_escaped_and_are_no_formula(client):
    key = client.join(HOSTILE_NAME)
    told = {"key": "=1+1", "text": "<img src=x onerror=alert(1)>", "yours": "@SUM(1)\r=2", "right": ["</pre><b>"]}
    assert client.post("/say", said(1, [verdict(idea=MEAN, points=0)], [told]), key)[0] == 200
    page = client.page(reveal=next(iter(client.server.live.roll().ids.values())))
    assert not any(text in page for text in ("<script", "<img", "</pre><b>", "\u202e", "\0", "\x1b"))
    assert "&lt;script&gt;" in page and "&lt;img src=x" in page
    table = client.post("/csv", {}, client.server.live.token)[1]
    assert "'@SUM(1)" in table and "\n=" not in table and ",@" not in table
    assert class_csv(client.server.live.shown()).count("\r\n") == 3
    shell = client.raw(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{client.address[1]}\r\n\r\n".encode()).decode()
    assert "script-src 'nonce-" in shell and "unsafe-inline" not in shell and client.server.live.token not in shell


WRONG = {
    "points": {"checks": [verdict(points=10**400)]},
    "above": {"checks": [verdict(points=4)]},
    "true": {"checks": [verdict(points=True)]},
    "twice": {"checks": [verdict(), verdict()]},
    "no list": {"checks": {"a": 1}},
    "parts": {"checks": [verdict(parts=[{"name": ["sgd"], "passed": 1, "idea": {}}])]},
    "right": {"predictions": [{**QUESTION, "right": 6}]},
    "number": {"number": 2**60},
    "no int": {"number": 1e9},
    "more": {"labs": []},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_message_of_another_form_changes_nothing(name):
    live = LiveClass()
    key, _ = live.join(live.code, "Ada", "")
    before = live.version, live.roll()
    with pytest.raises(ValueError, match="say"):
        live.say(key, said() | WRONG[name])
    assert (live.version, live.roll()) == before


def test_a_message_that_was_there_is_refused_and_unknown_exercises_do_not_count(client):
    key = client.join()
    message = said(1, [verdict(), verdict("99.9", 1, 1), verdict("02.1", 10**6, 10**6)])
    assert [client.post("/say", message, key)[0] for _ in range(2)] == [200, 400]
    assert list(client.server.live.roll().points) == ["03.1"]
    with pytest.raises(NotJoined):
        client.server.live.say("another", message)


def test_floods_are_bounded_in_number_and_in_memory(client):
    live = client.server.live
    tracemalloc.start()
    try:
        keys = [live.join(live.code, f"{n} " + "x" * 10_000, "10.0.0.1")[0] for n in range(MOST_LEARNERS)]
        with pytest.raises(ValueError, match="full"):
            live.join(live.code, "one more", "10.0.0.1")
        for n, key in enumerate(keys[:5]):
            many = [{**QUESTION, "key": f"{n} {i}", "yours": "y" * 1000} for i in range(1000)]
            live.say(key, said(1, predictions=many))
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
    assert [len(live._places[key].answers) for key in keys[:6]] == [
        MOST_ANSWERS,
        MOST_QUESTIONS - MOST_ANSWERS,
        0,
        0,
        0,
        0,
    ]
    guesses = [client.post("/join", {"name": "x"}, f"GUESS{n}")[0] for n in range(40)]
    assert guesses[0] == 403 and guesses.count(403) < 20 and guesses[-1] == 429


@pytest.mark.exhaustive
@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium")
def test_the_teacher_sees_answers_come_and_reveals_them(client, tmp_path):
    from playwright.sync_api import expect

    from tests.browser.jupyterlab import chromium_page

    with chromium_page() as page:
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.goto(client.server.page)
        expect(page.get_by_role("heading", name="Live class")).to_be_visible()
        assert client.server.live.token not in page.url
        client.post("/say", said(1, [verdict()], [QUESTION]), client.join(HOSTILE_NAME))
        expect(page.get_by_role("heading", name="How many rounds?")).to_be_visible()
        assert page.get_by_text("Right: 6.").count() == 0
        page.get_by_role("button", name="reveal").click()
        expect(page.get_by_text("Right: 6.")).to_be_visible()
        assert axe_faults(page) == []
        page.get_by_role("button", name="Hide names").click()
        expect(page.get_by_text("<script>").first).to_have_count(0)
        with page.expect_download() as table:
            page.get_by_role("button", name="Save the table (CSV)").click()
        table.value.save_as(tmp_path / "class.csv")
        assert "How many rounds?" in (tmp_path / "class.csv").read_text()
        page.reload()
        expect(page.get_by_text("Right: 6.")).to_be_visible()
        assert not errors
