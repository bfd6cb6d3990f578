"""What a hostile submission gets: every attempt in cells of one notebook, told by what it hands in.

An attempt answers "got", and so earns a point, only if it has read, reached or changed something outside.
"""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallel_lab.lab.grading import marks
from parallel_lab.lab.grading.confine import Limits, descendants
from parallel_lab.lab.grading.marks import grade_folder
from tests.lab.graded import submit
from tests.lab.test_grading import FUNCTIONS, HOSTILE

pytestmark = [
    pytest.mark.faults("hostile submissions", cases=4),
    pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's"),
]

# a body whose value is true where it got something; {secret}, {port}, {udp}, {path}, {abstract}, {parent}: outside
ATTACKS = {
    "reads a file of the teacher's": "open({secret!r}).read()",
    "reads another submission": "open({parent!r} + '/class/ada/mine.ipynb').read()",
    "lists the class": "os.listdir({parent!r} + '/class')",
    "lists home": f"strangers({str(Path.home())!r}) + strangers('/home')",
    "lists /tmp": "strangers('/tmp')",
    "reads passwd": "open('/etc/passwd').read()",
    "reads a teacher's variable": "os.environ.get('TEACHER_TOKEN')",
    "knows the teacher's folder": "os.environ.get('PWD') or os.environ.get('OLDPWD')",
    "environ of the parent": "open(f'/proc/{{os.getppid() or 1 << 22}}/environ').read()",
    "memory of the parent": "open(f'/proc/{{os.getppid() or 1 << 22}}/mem', 'rb').read(1)",
    "commands of others": "any(b'pytest' in command(n) for n in os.listdir('/proc') if n.isdigit())",
    "links to a secret": "os.symlink({secret!r}, 'link') or open('link').read()",
    "hard link": "os.link({secret!r}, 'hard') or open('hard').read()",
    "writes outside": "open({parent!r} + '/written', 'w')",
    "writes into the package": "open(parallel_lab.__file__, 'a')",
    "writes into numpy": "open(np.__file__, 'a')",
    "overwrites the marks": "open({parent!r} + '/marks.csv', 'w')",
    "writes /dev/shm": "open('/dev/shm/left', 'w')",
    "writes to the kernel": "open('/proc/sys/kernel/core_pattern', 'r+')",
    "TCP": "socket.create_connection(('127.0.0.1', {port}), 1)",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {udp}))",
    "UDP over IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('::1', {udp}))",
    "DNS": "socket.getaddrinfo('example.org', 80)",
    "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "vsock": "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
    "listens": "socket.create_server(('127.0.0.1', 0))",
    "agent's socket": "socket.socket(socket.AF_UNIX).connect({path!r}) or 1",
    "agent's datagrams": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', {path!r})",
    "pair to an agent": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', {path!r})",
    "abstract socket": "socket.socket(socket.AF_UNIX).connect({abstract!r}) or 1",
    "ends the grader": "[os.kill(n, 9) for n in ({grading}, {grading} + 1) if n != os.getpid()]",
    "ends all": "os.getpid() != 1 and os.kill(-1, 0) or not os.getpid()",
    "limits the grader": "resource.prlimit({grading}, resource.RLIMIT_CPU, (1, 1))",
    "traces": "libc.ptrace(16, {grading}, 0, 0) == 0",
    "a namespace of its own": "libc.unshare(0x10000000) == 0",
    "mounts": "libc.mount(b'none', os.getcwd().encode(), b'tmpfs', 0, None) == 0",
    "a device": "os.mknod('device', 0o60600, os.makedev(8, 0)) or 1",
    "io_uring": "libc.syscall(425, 1, bytes(120)) >= 0",
    "keys": "libc.syscall(250, 0, -3, 1) >= 0",
    "shared memory that stays": "libc.syscall(29, 0, 4096, 0o1600) >= 0",
    "a signal by a file's owner": "fcntl.fcntl(0, fcntl.F_SETOWN, {grading}) == 0",
    "types on the terminal": "fcntl.ioctl(0, 0x5412, b'x') or 1",
    "a signal by a descriptor": "libc.syscall(424, libc.syscall(434, {grading}, 0), 9, 0, 0) == 0",
    "a signal with a value": "libc.syscall(129, {grading}, 9, bytes(128)) == 0",
    "a signal to a thread": "libc.syscall(234, {grading}, {grading}, 9) == 0 or libc.syscall(200, {grading}, 9) == 0",
    "a signal to a group": "os.killpg(os.getpgid({grading}), 9) or 1",
    "a socket's owner": "fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', {grading}))",
    "a file's owner, in the newer form": "fcntl.fcntl(0, 15, struct.pack('ii', 1, {grading}))",
    "memory by another call": "libc.syscall(310, {grading}, 0, 0, 0, 0, 0) == 0",
    "takes a descriptor": "libc.syscall(438, libc.syscall(434, {grading}, 0), 1, 0) >= 0",
    "a socket by numbers of x32": "libc.syscall(0x40000000 + 41, 2, 1, 0) >= 0",
    "a namespace by clone": "libc.syscall(56, 0x10000011, 0, 0, 0, 0) >= 0",
    "enters a namespace": "libc.syscall(308, os.open('/proc/self/ns/net', os.O_RDONLY), 0) == 0",
    "messages that stay": "libc.syscall(68, 4242, 0o1600) >= 0",
    "semaphores that stay": "libc.syscall(64, 4242, 1, 0o1600) >= 0",
    "a queue that stays": "libc.syscall(240, b'queue', 0o102, 0o600, 0) >= 0",
    "programs of the kernel": "libc.syscall(321, 0, bytes(120), 120) >= 0",
    "counters of the kernel": "libc.syscall(298, bytes(128), 0, -1, -1, 0) >= 0",
    "log of the kernel": "libc.syscall(103, 3, bytes(16), 16) >= 0",
    "slows the grader": "os.setpriority(os.PRIO_PROCESS, {grading}, 19) or 1",
    "the grader's turn last": "os.sched_setscheduler({grading}, os.SCHED_IDLE, os.sched_param(0)) or 1",
    "sets the clock": "time.clock_settime(time.CLOCK_REALTIME, time.time()) or 1",
    "names the machine": "socket.sethostname('mine') or 1",
    "root of another process": "open('/proc/1/root' + {secret!r}).read()",
    "folder of the parent": "strangers(f'/proc/{{os.getppid() or 1 << 22}}/cwd')",
    "a device by its number": "open('/dev/mem', 'rb').read(1) or open('/dev/vda', 'rb').read(1)",
}
EXERCISES = """
from parallel_lab.lab.exercises import Exercise, compare_calls, judged

def grader(answer):
    yield judged("got", compare_calls, answer, [()], lambda: "got", (), "nothing")

EXERCISES = tuple(Exercise(f"x.{n}", "t", (("got", 1),), ("a?", "b", "c", "d"), grader) for n in range(%d))
"""
START = """
import ctypes, fcntl, os, resource, socket, struct, sys, time
import numpy as np
import parallel_lab
libc = ctypes.CDLL(None)

def strangers(folder):  # where Python or the package lies in it, their names are no news
    own = [os.getcwd(), sys.prefix, sys.base_prefix, str(sys.pycache_prefix), parallel_lab.__file__, *sys.path]
    return [name for name in os.listdir(folder) if not any(f"{path}/".startswith(f"{folder}/{name}/") for path in own)]

def command(n):
    try:
        return open(f'/proc/{n}/cmdline', 'rb').read()
    except FileNotFoundError:  # it has ended
        return b''
"""
ATTEMPT = """
def attempt_{n}():
    try:
        return "got" if ({body}) else "nothing"
    except Exception as error:
        return repr(error)
"""
SCRIPT = "import sys; from parallel_lab.cli.main import main; sys.exit(main(sys.argv[1:]))"
HONEST = "def attempt_0(): return 'got'", 'check("x.0", attempt_0)'


def notebook(path: Path, *sources: str) -> None:
    cells = [{"cell_type": "code", "metadata": {}, "source": source} for source in sources]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")


PLAYED = {
    "as it is": {},
    "without Landlock": {"landlock": 0},
    "without namespaces": {"namespaces": False},
    "Linux 5.13, no namespaces": {"namespaces": False, "landlock": 1},
}


@pytest.mark.timeout(300)
@pytest.mark.quick(1)  # the other machines are exhaustive
@pytest.mark.parametrize("machine", PLAYED)
def test_no_attempt_reads_sends_or_ends_anything(tmp_path, monkeypatch, machine):
    """By hand: 0 points for every attempt, and the honest notebook's 1."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    (tmp_path / "own.py").write_text(EXERCISES % len(ATTACKS), encoding="utf-8")
    monkeypatch.setenv("TEACHER_TOKEN", "secret")
    find = marks.found_walls
    monkeypatch.setattr(marks, "found_walls", lambda *args: {**find(*args), **PLAYED[machine]})
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_UNIX) as agent, socket.socket(socket.AF_UNIX) as abstract:
            agent.bind(str(tmp_path / "agent"))
            abstract.bind(f"\0{tmp_path.name}")
            for each in (agent, abstract):
                each.listen()
            places = {"secret": str(secret), "parent": str(tmp_path), "port": tcp.getsockname()[1]}
            places |= {"udp": udp.getsockname()[1], "path": str(tmp_path / "agent"), "abstract": f"\0{tmp_path.name}"}
            places |= {"grading": os.getpid()}
            cells = [START]
            for n, body in enumerate(ATTACKS.values()):
                cells += [ATTEMPT.format(n=n, body=body.format(**places)), f'check("x.{n}", attempt_{n})']
            notebook(tmp_path / "class" / "eve" / "mine.ipynb", *cells)
            notebook(tmp_path / "class" / "ada" / "mine.ipynb", *HONEST)
            lines: list[str] = []
            table = grade_folder(tmp_path / "class", exercises=tmp_path / "own.py", tell=lines.append)
            for each in (tcp, udp, agent, abstract):
                each.settimeout(0)
                with pytest.raises(BlockingIOError):
                    each.recv(1) if each is udp else each.accept()
    earned = {mark.exercise for mark in table.marks if mark.student == "eve" and mark.points != 0}
    # which the first line says; in a chroot nobody makes namespaces
    command = ["unshare", "--user", "--pid", "--fork", "--mount-proc", "--map-root-user", "true"]
    makes = subprocess.run(command, check=False, capture_output=True).returncode == 0
    seen = [] if makes and "namespaces" not in PLAYED[machine] else ["commands of others"]
    assert [what for n, what in enumerate(ATTACKS) if f"x.{n}" in earned] == seen
    assert ("see which programs run" in lines[0]) == bool(seen)
    assert table.total("ada") == (1, 1, 0) and not (tmp_path / "written").exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize("start", [("-P", "-c", SCRIPT), ("-m", "parallel_lab")], ids=["script", "module"])
def test_a_file_next_to_the_notebooks_is_not_imported_by_the_grader(tmp_path, start):
    """A numpy.py where the teacher stands would write the marks; it does not run."""
    (tmp_path / "own.py").write_text(EXERCISES % 1, encoding="utf-8")
    notebook(tmp_path / "class" / "ada" / "mine.ipynb", *HONEST)
    forged = f"open({str(tmp_path / 'ran')!r}, 'w').close()"
    for name in ("numpy.py", "secrets.py", "shlex.py", "ada/__init__.py"):
        (tmp_path / "class" / name).write_text(forged, encoding="utf-8")
    told = ["grade", ".", "--exercises", "../own.py", "--out", "../marks.csv"]
    done = subprocess.run([sys.executable, *start, *told], cwd=tmp_path / "class", check=False)
    assert done.returncode == 0 and not (tmp_path / "ran").exists()
    with (tmp_path / "marks.csv").open(encoding="utf-8", newline="") as file:
        assert [row["points"] for row in csv.DictReader(file)] == ["1"]


@pytest.mark.parametrize("name", ["runpy.py", "warnings.py", "keyword/__init__.py"])
def test_grading_refuses_where_a_learners_file_has_run_first(tmp_path, name):
    """`python -m` imports a part of the standard library before the command can forget the current folder: another part
    in each Python.
    """
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()", encoding="utf-8")
    command = [sys.executable, "-m", "parallel_lab", "grade", "."]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    refused = "runs before the command" in done.stderr or "Could not import runpy" in done.stderr
    assert refused or ("no notebook is in" in done.stderr and not (tmp_path / "ran").exists())
    assert done.returncode == (1 if refused else 2)
    assert refused or (sys.version_info >= (3, 12) and name != "runpy.py")


@pytest.mark.exhaustive
def test_of_two_notebooks_of_a_lesson_the_newest_counts_and_each_student_has_a_file(tmp_path):
    """By hand: 1 point, not 2; "ann b" and "ann_b" have two files."""
    (tmp_path / "own.py").write_text(EXERCISES % 1, encoding="utf-8")
    for name, body in {"old": HONEST[0], "new": "def attempt_0(): return 'got'", "mine": HONEST[0]}.items():
        student = "ann_b" if name == "mine" else "ann b"
        notebook(tmp_path / "class" / student / f"{name}.ipynb", body, HONEST[1])
    os.utime(tmp_path / "class" / "ann b" / "old.ipynb", (1, 1))
    lines: list[str] = []
    table = grade_folder(tmp_path / "class", exercises=tmp_path / "own.py", tell=lines.append)
    assert table.total("ann b") == table.total("ann_b") == (1, 1, 0)
    assert "left out ann b: ann b/old.ipynb: the same lesson is in ann b: ann b/new.ipynb, which is newer" in lines
    table.write_json(tmp_path / "checks")
    assert len(list((tmp_path / "checks").iterdir())) == 2


def graded(tmp_path, notebooks, **options):
    """(points by student, lines, as `tell` had them) of notebooks {"student/name": cells}, with one exercise."""
    (tmp_path / "own.py").write_text(EXERCISES % 1, encoding="utf-8")
    for name, cells in notebooks.items():
        notebook(tmp_path / "class" / f"{name}.ipynb", *cells)
    lines: list[str] = []
    table = grade_folder(tmp_path / "class", exercises=tmp_path / "own.py", tell=lines.append, **options)
    return table, lines


# the submission's end of the wire to the grader: what it says there first would be taken for the pupil's replies
WIRE = """
import json, os, socket, struct
ends = []
for fd in range(3, 64):
    try:
        ends.append(socket.socket(fileno=os.dup(fd)))
    except OSError:
        pass
def say(data):
    for end in ends:
        end.settimeout(1)
        try:
            end.sendall(data)
        except OSError:
            pass
"""
FORGED = """
for number in range(200):
    told = {"id": number, "answer": "got", "value": "got", "given": {}, "untouched": False, "fault": "", "points": 9}
    data = json.dumps(told).encode()
    say(struct.pack(">I", len(data)) + data)
"""
CELLS = HOSTILE | {
    "brackets on the wire": WIRE + "say(struct.pack('>I', 40 << 20) + b'[' * (40 << 20))",
    "announces four gigabytes": WIRE + "say(b'\\xff' * 4)",
    "a list where a reply belongs": WIRE + "say(struct.pack('>I', 2) + b'[]')",
    "closes the wire": "import os\nos.closerange(3, 64)",
    "stands still": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "exits in an import": "open('early.py', 'w').write('raise SystemExit(0)')\nimport early",
    "a thousand files": "for n in range(1000): open(f'file{n}', 'w').write('x' * 1000)",
    "forty that leave": "import os\nfor _ in range(40):\n    if os.fork() == 0:\n        os.setsid()\n"
    "        os.execv('/bin/sleep', ['sleep', '3600'])",
}
BODIES = FUNCTIONS | {
    "deep": "x = []\nfor _ in range(100_000): x = [x]\nreturn x",
    "equal to all": "class Equal(str):\n    __eq__ = lambda *given: True\n    __hash__ = None\nreturn Equal('x')",
    "an array equal to all": "import numpy as np\nclass Equal(np.ndarray):\n    __eq__ = __array_function__ = "
    "__array_ufunc__ = lambda *given, **more: True\nreturn np.zeros(3).view(Equal)",
    "not a number": "return float('nan')",
    "runs where it is unpacked": "class Runs:\n    def __reduce__(self): return print, ('got',)\nreturn Runs()",
    "shows what is asked for": "class Shows:\n    __repr__ = __str__ = lambda self: 'got'\nreturn Shows()",
    "raises what is asked for": "raise AssertionError('got')",
    "a number of many digits": "import decimal\nreturn decimal.Decimal('1e999999999')",
    "claims a class": "class Claims:\n    __class__ = str\n    __eq__ = lambda *given: True\nreturn Claims()",
    "a number equal to all": "class Equal(float):\n    __eq__ = lambda *given: True\nreturn Equal(1)",
    "hooks of numpy": "class Hooks:\n    __array__ = __array_function__ = lambda *given, **more: ['got']\n"
    "    __array_priority__ = 1e9\nreturn Hooks()",
    "iterates for ever": "import itertools\nreturn itertools.cycle(['got'])",
}


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("machine", ["as it is", "Linux 5.13, no namespaces"])
def test_whatever_a_notebook_does_its_honest_answer_counts_and_no_other(tmp_path, monkeypatch, machine):
    """By hand: 1 point behind every hostile cell, 0 for every hostile function and for forged replies."""
    find = marks.found_walls
    monkeypatch.setattr(marks, "found_walls", lambda *args: {**find(*args), **PLAYED[machine]})
    notebooks = {f"{name}/mine": (source, *HONEST) for name, source in CELLS.items()}
    for name, body in BODIES.items():
        indented = body.replace("\n", "\n    ")
        notebooks[f"returns {name}/mine"] = f"def attempt_0():\n    {indented}", HONEST[1]
    notebooks["returns forged/mine"] = (WIRE + FORGED, "def attempt_0(): return 'wrong'", HONEST[1])
    before = descendants(os.getpid())
    table, _ = graded(tmp_path, notebooks, limits=Limits(time_s=60.0, cell_s=1.0, memory_bytes=1 << 30), jobs=2)
    found = {mark.student: mark.points for mark in table.marks}
    assert found == {name.partition("/")[0]: int(not name.startswith("returns ")) for name in notebooks}
    assert descendants(os.getpid()) == before


# cells that change what runs behind them; the function that is handed in is wrong
BEHIND = {
    "builtins": "import builtins\nbuiltins.isinstance = builtins.len = lambda *given: 1 / 0",
    "modules": "import sys\nfor name in [*sys.modules]:\n    if 'parallel_lab' in name: sys.modules[name] = None",
    "a collection of garbage": "import gc, os\ngc.callbacks.append(lambda *given: os._exit(0))\ngc.collect()",
    "the end of a process": "import atexit, os\natexit.register(lambda: os.fork())",
    "each line": "import sys\nsys.settrace(lambda *given: 1 / 0)\nsys.setprofile(lambda *given: 1 / 0)",
    "what is watched": "import sys\nsys.addaudithook(lambda *given: 1 / 0)",
    "depth": "import sys\nsys.setrecursionlimit(120)",
    "the clock": "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
    "a loop of checks": "from parallel_lab.lab.exercises import check\nwhile True: check('x.0', lambda: 'got')",
    "a thread that never stops talking": WIRE
    + "import threading\ntold = json.dumps({'id': -1, 'answer': 'got', 'value': 'got'}).encode()\n"
    "def talk():\n    while True: say(struct.pack('>I', len(told)) + told)\n"
    "threading.Thread(target=talk, daemon=True).start()",
}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_what_a_cell_changes_behind_itself_earns_nothing_and_the_machine_is_not_blamed(tmp_path):
    """By hand: 0 points for each, and not an error, which would be a mark that nobody can give."""
    wrong = "def attempt_0(): return 'wrong'"
    notebooks = {f"{name}/mine": (source, wrong, HONEST[1]) for name, source in BEHIND.items()}
    limits = Limits(time_s=60.0, cell_s=2.0, memory_bytes=1 << 30)
    table, _ = graded(tmp_path, notebooks | {"ada/mine": HONEST}, limits=limits, jobs=2)
    assert {mark.student: mark.points for mark in table.marks} == dict.fromkeys(BEHIND, 0) | {"ada": 1}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "cell", ["nonlocal x", "def f(x, x): pass", "x = 1\nglobal x", "x = '\ud800'", "-" * 9999 + "1"]
)
def test_a_cell_that_nobody_can_compile_costs_no_other_cell(tmp_path, cell):
    """The first three parse, and the table of their names cannot be made: there was no mark for the notebook."""
    table, _ = graded(tmp_path, {"ada/mine": (cell, *HONEST)})
    assert table.total("ada") == (1, 1, 0), table.marks


@pytest.mark.exhaustive
def test_a_call_too_long_to_be_written_ends_no_grading(tmp_path):
    """A RecursionError in the command itself: nobody had marks."""
    table, _ = graded(tmp_path, {"eve/mine": (f"check('x.0', {'1+' * 900}1)",), "ada/mine": HONEST})
    assert table.total("ada") == (1, 1, 0) and not [
        mark for mark in table.marks if mark.points and mark.student == "eve"
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("newer", ["mine", "other"])
def test_a_notebook_of_ones_own_counts_only_without_the_one_that_was_handed_out(tmp_path, newer):
    """By hand: 1 point. With another blank in its call nothing of the second is of the lesson, and it was 2."""
    notebook(tmp_path / "release" / "lesson.ipynb", "def attempt_0(): ...", HONEST[1])
    other = "def attempt_0(): return 'got'  # mine", 'check("x.0",  attempt_0)'
    for name, cells in {"mine": HONEST, "other": other}.items():
        notebook(tmp_path / "class" / "eve" / f"{name}.ipynb", *cells)
        os.utime(tmp_path / "class" / "eve" / f"{name}.ipynb", (1 + (name == newer),) * 2)
    table, lines = graded(tmp_path, {"bo/other": other}, release=tmp_path / "release")
    assert table.total("eve") == table.total("bo") == (1, 1, 0)
    assert [line.split("ipynb")[0] for line in lines if line.startswith("left out")] == ["left out eve: eve/other."]


@pytest.mark.exhaustive
def test_folders_of_any_depth_and_names_of_any_length_cost_nobody_a_mark_and_have_a_line(tmp_path):
    """A RecursionError, an OSError at the end of the grading, and a student left out without a word."""
    deep, before = tmp_path / "class" / "deep", os.getcwd()
    deep.mkdir(parents=True)
    try:
        os.chdir(deep)
        for _ in range(3000):  # deeper than a path can name
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.chdir(before)
    (tmp_path / "class" / "capitals").mkdir()
    (tmp_path / "class" / "capitals" / "MINE.IPYNB").touch()
    table, lines = graded(tmp_path, {f"{'b' * 255}/mine": HONEST, "line\nend/mine": HONEST, "ada/mine": HONEST})
    table.write_json(tmp_path / "checks")
    assert sorted(mark.points for mark in table.marks) == [1, 1, 1] == [1] * len(list((tmp_path / "checks").iterdir()))
    left = [line for line in lines if line.startswith("left out")]
    assert len(left) == 3 and "more than 40 folders deep" in left[0] and not any("\n" in line for line in lines)
    assert left[1:] == [f"left out {name}: it holds no file whose name ends in .ipynb" for name in ("capitals", "deep")]
    subprocess.run(["rm", "-rf", str(tmp_path / "class" / "deep")], check=True)


# as `Pupil` starts a process: what was there before it is over
WATCHED = """
import os, subprocess, sys, time
from pathlib import Path
from parallel_lab.lab.grading.confine import Limits, Watch, end_all
watch = Watch(Limits(processes=1), Path(sys.argv[1]))
def start():
    return subprocess.Popen(["sleep", "60"])
with watch.ending:
    many = [start() for _ in range(3)]
    time.sleep(0.5)
    end_all(os.getpid())
    one = start()
time.sleep(0.5)
watch.close()
print(one.poll(), repr(watch.reason))
end_all(os.getpid())
"""


def test_a_process_is_not_ended_for_those_before_it(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path)], check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.stdout == "None ''\n"


LATER = """
import os, threading, time
def later():
    time.sleep(3.5)
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(60)
threading.Thread(target=later).start()
while True: pass
"""


@pytest.mark.exhaustive
def test_what_a_stopped_cell_has_left_behind_is_not_the_next_ones_fault(tmp_path):
    """By hand: 1 point; the cell that hands in is the one that runs when there are too many processes."""
    slow = "import time\ntime.sleep(2.5)\n" + HONEST[0], HONEST[1]
    table, _ = graded(tmp_path, {"eve/mine": (LATER, *slow)}, limits=Limits(cell_s=3.0))
    assert table.total("eve") == (1, 1, 0), table.marks


# the ranks of an algorithm that share the memory of one process, and send nothing
SHARED = """
parts = {}
def shared(rank, ranks, chunks):
    parts[rank] = chunks
    yield Request("barrier", tuple(range(ranks)))
    return sum(parts[other][rank] for other in range(ranks))
"""


@pytest.mark.exhaustive
def test_ranks_that_share_memory_and_send_nothing_earn_nothing(tmp_path):
    submit(tmp_path, "eve", "02", ["02.1"], answers={"02.1": SHARED})
    assert grade_folder(tmp_path).total("eve")[0] == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("at_once", [False, True])
def test_grading_goes_on_where_its_process_was_ended(tmp_path, monkeypatch, at_once):
    """All marks were lost, of those graded before too: on Linux before 6.12 a submission can send the signal. At once:
    before anything is graded.
    """
    started = []

    def start(command, *args, **more):
        started.append(subprocess.Popen(command, *args, **more))
        if at_once and len(started) == 1:
            started[0].kill()
        return started[-1]

    def end_once(rows):
        if len(started) == 1:
            started[0].kill()

    monkeypatch.setattr(marks, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start}))
    table, _ = graded(tmp_path, {f"{name}/mine": HONEST for name in ("ada", "ben", "cy")}, jobs=1, graded=end_once)
    assert len(started) == 2
    assert [(mark.student, mark.points) for mark in table.marks] == [("ada", 1), ("ben", 1), ("cy", 1)]


@pytest.mark.exhaustive
def test_memory_in_nameless_files_counts(tmp_path):
    """800 MB in memfds under a limit of 512: the cell that fills them is ended, and what it held is gone. The cells
    behind it run in another process, which was ended for the memory of the first.
    """
    fills = "import os\nheld = [os.memfd_create('m') for _ in range(8)]\nfor f in held: os.write(f, bytes(100 << 20))"
    keeps = "def attempt_0(): return 'got' if len(held) == 8 else 'nothing'"
    notebooks = {"eve/mine": (fills, keeps, HONEST[1]), "ada/mine": (fills, *HONEST)}
    table, _ = graded(tmp_path, notebooks, limits=Limits(memory_bytes=512 << 20))
    assert [(mark.student, mark.points) for mark in table.marks] == [("ada", 1), ("eve", 0)]


# cells that claim that the machine lacks a package, or what workers need: they want no mark, which is more than 0
LACKING = {
    "numpy is missing": 'raise ModuleNotFoundError("", name="numpy")',
    "a package that no cell imports": "raise ModuleNotFoundError(name='no_such')",
    "imported in a branch": "if not 1:\n    import no_such\nraise ModuleNotFoundError(name='no_such')",
    "imported in a function": "def unused():\n    import no_such\nraise ModuleNotFoundError(name='no_such')",
    "imported where it is tried": "try:\n    import no_such\nexcept ImportError: raise",
    "hides numpy": "import sys\nsys.modules['numpy'] = None\nimport numpy",
    "a hook of imports": "import sys\nclass Hook:\n    def find_spec(self, name, *given):\n"
    "        raise ModuleNotFoundError(name=name)\nsys.meta_path.insert(0, Hook())\n"
    "for name in ('numpy', 'wave'): sys.modules.pop(name, None)\nimport numpy, wave",
    "replaces the statement": "import builtins\ndef none(name, *given, **more): raise ModuleNotFoundError(name=name)\n"
    "builtins.__import__ = none\nimport json",
    "an import that is not needed": "import no_such",
    "hides a package of ours": "import sys\nsys.modules['ml_dtypes'] = None\n"
    "from parallel_lab.base.dtypes import as_dtype\nas_dtype('bfloat16')",
    "an error of ours": "from parallel_lab.base.errors import NoProcesses\nraise NoProcesses('in a browser')",
    "raised in a file of ours": "import parallel_lab\nfrom parallel_lab.base.errors import MissingPackage\n"
    "exec(compile('raise MissingPackage(\"torch\")', parallel_lab.__file__, 'exec'))",
    "lowers its own limit": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
    "import parallel_lab\nparallel_lab.WorkerPool(8)",
    "uses up what it may open": "import parallel_lab, resource\nheld = []\n"
    "while len(held) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 60: held.append(open('/dev/null'))\n"
    "parallel_lab.WorkerPool(8)",
    "uses up its files": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    "import parallel_lab\nparallel_lab.WorkerPool(8)",
    "exits as if killed": "import os\nos._exit(137)",
    "ends for memory": "x = []\nwhile True: x.append(bytearray(64 << 20))",
    "replies for the cell": WIRE
    + "lost = {'fault': 'x', 'machine': 'LimitTooLow: x', 'missing': 'no_such', 'lacks': True}\n"
    "for number in range(99):\n    data = json.dumps({'id': number, **lost}).encode()\n"
    "    say(struct.pack('>I', len(data)) + data)",
    "folders that nobody can remove": "import os\nfor _ in range(3000):\n    os.mkdir('a')\n    os.chdir('a')\n"
    "os._exit(0)",
    "a folder that nobody may look into": "import os\nos.makedirs('a/b')\nos.chmod('a', 0)\nos._exit(0)",
}


@pytest.mark.quick(0)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("some", range(4))
def test_what_a_machine_lacks_is_found_by_the_grader_alone(tmp_path, some):
    """By hand: 0 points, and not an error, for each."""
    cells = dict(list(LACKING.items())[some::4])
    limits = Limits(time_s=60.0, cell_s=20.0, memory_bytes=1 << 30)
    notebooks = {f"{name}/mine": (cell, HONEST[1]) for name, cell in cells.items()}
    table, _ = graded(tmp_path, notebooks, limits=limits, jobs=5)
    assert {mark.student: (mark.points, mark.status) for mark in table.marks} == dict.fromkeys(cells, (0, "no answer"))


FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from pathlib import Path
from parallel_lab.lab.grading.marks import grade_folder
for mark in grade_folder(Path(sys.argv[1]), exercises=Path(sys.argv[2]), jobs=3).marks:
    print(mark.student, mark.points, mark.status, mark.note)
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_machine_that_lacks_something_gives_no_mark_and_the_reason(tmp_path):
    """40 open files in all: 8 workers need more, which a process of the grader's own finds. Others have marks."""
    pool = "import parallel_lab\nwith parallel_lab.WorkerPool(8) as pool: pool.run(lambda comm: comm.rank)\n"
    (tmp_path / "own.py").write_text(EXERCISES % 1, encoding="utf-8")
    for name, cells in {"ada": HONEST, "ben": (pool + HONEST[0], HONEST[1]), "cy": ("1 / 0", HONEST[1])}.items():
        notebook(tmp_path / "class" / name / "mine.ipynb", *cells)
    command = [sys.executable, "-c", FEW, str(tmp_path / "class"), str(tmp_path / "own.py")]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert [line.split()[:4] for line in said] == [
        ["ada", "1", "passed"],
        ["ben", "None", "error", "this"],
        ["cy", "0", "no", "answer"],
    ]
    assert f"8 workers need {48 + (sys.version_info >= (3, 14))} open files" in said[1]


@pytest.mark.exhaustive
def test_what_is_told_holds_no_escapes_and_names_what_is_left_out(tmp_path):
    table, lines = graded(tmp_path, {"ada\x1b[2J/mine": HONEST, ".hidden/mine": HONEST})
    assert "\x1b" not in "".join((*lines, table.text() if hasattr(table, "text") else ""))
    assert any(line.startswith("left out") and ".hidden" in line for line in lines)
    assert [mark.points for mark in table.marks] == [1]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "kept"), [("train.py", True), ("parallel-lab", False)])
def test_only_the_command_itself_forgets_the_current_folder(tmp_path, name, kept):
    """A script of a learner's with the argument `grade` imports what lies next to it."""
    (tmp_path / name).write_text("import parallel_lab\nimport own_part", encoding="utf-8")
    (tmp_path / "own_part.py").touch()
    done = subprocess.run([sys.executable, name, "grade"], cwd=tmp_path, check=False, capture_output=True)
    assert (done.returncode == 0) == kept
