"""What every test gets: a check that it leaves nothing behind, and `rng`.

A test leaves no process, no name in /dev/shm and no open widget. What a fixture of wider scope (a pool per module)
holds was there before the test began and is not counted; the whole run is looked at once more at its end. Environment:

    PARALLEL_LAB_CI=1         a skipped test fails: on the build machine every tool is there, so nothing may be left out
                              in silence
    PARALLEL_LAB_TEST_SEED=n  seed of `rng` instead of the test's own
    PARALLEL_LAB_PORTABLE=1   with `-m portable`: what is promised of processes, faults, notebook and launcher, and
                              nothing may be asked for that only Linux has (portable/sitecustomize.py sees to it)

`pytest --share k/n` runs the k-th of n shares of the collected cases (k from 0), drawn by a checksum of their names;
all shares together are all cases. The build takes another one at each commit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import os
import re
import runpy
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
from _pytest.doctest import DoctestModule
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.runner import runtestprotocol

from parallel_lab.base import seeds
from parallel_lab.base.settings import context
from parallel_lab.base.system import SYSTEM
from parallel_lab.processes.shm import launch

GRACE_S = 3.0  # processes need a moment to end after they were asked to
HELPERS = ("resource_tracker", "forkserver")  # of multiprocess(ing); they live as long as the test run
SHM = Path("/dev/shm")
FOREIGN = ("mpich_shm_", "sm_segment.")  # MPI programs of others; ours have a folder (processes/mpi/launch.py)
PORTABLE = Path(__file__).with_name("portable")
EXHAUSTIVE = re.compile(r"exhaustive|mark\.quick")  # as in .ci/run
TURN = pytest.StashKey[int]()  # of a test: its place among all
PLACE = pytest.StashKey[int]()  # of a file or folder: its place in the folder around it


# ---- compiled modules ----


def pytest_configure(config: pytest.Config) -> None:
    """Tests start thousands of Python processes. Where the environment forbids compiled files (PYTHONDONTWRITEBYTECODE)
    they go to pytest's own cache: otherwise each process would compile the package again, which takes it a second.
    """
    # a script that starts the tests in the background (`pytest & wait`) has SIGINT ignored: tests that interrupt,
    # and the processes that they start, need what Python sets otherwise
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if SYSTEM.portable:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PORTABLE), os.environ.get("PYTHONPATH")]))
        if str(PORTABLE) not in sys.path:  # a worker of xdist has found it
            runpy.run_path(str(PORTABLE / "sitecustomize.py"))
    config.pluginmanager.register(PassedOver())
    config.pluginmanager.register(FromBothEnds())
    sys.modules.setdefault("rfc3987_syntax", None)  # nbformat's check of web addresses: compiled at import, in 4 s
    if sys.dont_write_bytecode and sys.pycache_prefix is None:
        sys.dont_write_bytecode, sys.pycache_prefix = False, str(config.cache.mkdir("compiled"))
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True, scope="session")
def workers_know_pytest() -> None:
    """A worker imports the file of a test for the first function of it that it runs, and pytest with it, in a sixth of
    a second: hundreds of workers have it from the server that they are forks of.
    """
    loaded = launch._loaded_for_ranks
    launch._loaded_for_ranks = lambda: f"{loaded()} pytest"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Tens of thousands of cases are made, and none is garbage: to search them takes as long as to make them. They stay
    for the whole run: later searches pass them over.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Iterator[None]:
    """Doctests are the package's: tests are not searched for any, which takes seconds."""
    return [node for node in (yield) if type(node) is pytest.Module]


class PassedOver:
    """What need not be looked at, in the package and in all folders of tests."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Iterator[None]:
        """Files that show no example have no doctest: to import them and to read their docstrings takes seconds."""
        found = yield
        shows = not found or ">>>" in file_path.read_text(encoding="utf-8")
        return [node for node in found if shows or not isinstance(node, DoctestModule)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, obj: object) -> list | None:
        """The quick run makes no cases of a test that is exhaustive whole: they would be more than it has."""
        if not isinstance(obj, FunctionType) or not _drops_exhaustive(collector.config):
            return None
        marks = [*getattr(obj, "pytestmark", ()), *collector.iter_markers()]
        if not any(mark.name == "exhaustive" for mark in marks):
            return None
        _check_says_exhaustive(collector.path)
        return []


class FromBothEnds:
    """On a fresh checkout every file of tests is compiled, and its assertions rewritten. Every other process begins at
    the end of each folder, so that each finds half of the files compiled by its neighbour; the tests are sorted
    afterwards (`pytest_collection_modifyitems`).
    """

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        report = yield
        if isinstance(collector, pytest.Directory) and report.passed and collector.path != collector.config.rootpath:
            for place, node in enumerate(report.result):
                node.stash[PLACE] = place
            if int(_worker(collector.config)[2:] or 0) % 2:
                report.result.reverse()
        return report


def _sort_by_place(items: list[pytest.Item]) -> None:
    """As if every folder had been read from its first file on; cases of a file stay as they came."""
    came: dict[pytest.Collector | pytest.Item, int] = {}
    for item in items:
        for node in item.listchain():
            came.setdefault(node, len(came))
    items.sort(key=lambda item: [node.stash.get(PLACE, came[node]) for node in item.listchain()])


def _worker(config: pytest.Config) -> str:
    """The name that xdist gave this process ("gw1"); "" without xdist."""
    return getattr(config, "workerinput", {}).get("workerid", "")


# ---- skips ----


def fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure on the build machine; an expected failure (xfail) does not count as a skip."""
    if os.environ.get("PARALLEL_LAB_CI") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, but PARALLEL_LAB_CI=1 allows no skip: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    mark = item.get_closest_marker("faults") if item.config.option.markexpr == "faults" else None
    if mark and not any(name == "faults" for name, _ in item.user_properties):
        item.user_properties.append(("faults", mark.args[0] if mark.args else "others"))
    report = yield
    fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    report = yield
    fail_if_skipped(report)
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """On the build machine a failure is shown at once: a build stopped at its time limit never comes to the summary."""
    if report.failed and os.environ.get("PARALLEL_LAB_CI") == "1" and "PYTEST_XDIST_WORKER" not in os.environ:
        print(
            f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.1f} s)\n{report.longreprtext}",
            file=sys.stderr,
            flush=True,
        )


# ---- the suite of faults: pytest -m faults ----

PROMISED_S = {"kills": 1.0, "interrupts": 1.0, "stops": 1.0, "launchers": 2.0}  # most, after the signal or the limit


@pytest.fixture
def told_after(request: pytest.FixtureRequest) -> Callable[[float, str], None]:
    """told_after(seconds, "kills"): from the signal to the error, for the table at the end."""
    return lambda seconds, what: request.node.user_properties.append(("told_after", (what, seconds)))


def few_of_each(items: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of the suite: of each test all quick ones, and others until there are as many as its mark says
    (`cases`), those whose names have the smallest checksums."""
    taken: dict[tuple, int] = {}
    chosen = set()
    order = sorted(items, key=lambda i: (i.get_closest_marker("exhaustive") is not None, zlib.crc32(i.name.encode())))
    for item in order:
        test, is_rare = (item.path, getattr(item, "originalname", item.name)), item.get_closest_marker("exhaustive")
        if not is_rare or taken.get(test, 0) < item.get_closest_marker("faults").kwargs.get("cases", 0):
            chosen.add(item.nodeid)
            taken[test] = taken.get(test, 0) + 1
    return [item for item in items if item.nodeid in chosen]


def fault_table(reports: list[pytest.TestReport]) -> list[str]:
    """A line for each check of the suite, and for each kind of signal."""
    checks: dict[str, list[bool]] = {}
    times: dict[str, list[float]] = {}
    for report in reports:
        said = dict(report.user_properties)
        if "faults" in said and (report.when == "call" or report.failed):
            checks.setdefault(said["faults"], []).append(report.passed)
            if "told_after" in said:
                times.setdefault(said["told_after"][0], []).append(said["told_after"][1])
    if not checks:
        return []
    lines = [f"{'check':<30} {'trials':>6} {'p50 ms':>7} {'p95 ms':>7} {'max ms':>7}  verdict"]
    for check, passed in sorted(checks.items()):
        failed = f"{passed.count(False)} FAILED" if not all(passed) else "held"
        lines.append(f"{check:<30} {len(passed):>6} {'':>7} {'':>7} {'':>7}  {failed}")
    for name, seconds in sorted(times.items()):
        p50, p95, most = np.quantile(seconds, [0.5, 0.95, 1.0]) * 1e3
        verdict = "held" if most <= PROMISED_S[name] * 1e3 else f"later than {PROMISED_S[name]:g} s"
        name = f"  signal to error: {name}"
        lines.append(f"{name:<30} {len(seconds):>6} {p50:7.0f} {p95:7.0f} {most:7.0f}  {verdict}")
    return lines


def pytest_terminal_summary(terminalreporter: object) -> None:
    reports = [one for several in terminalreporter.stats.values() for one in several if hasattr(one, "user_properties")]
    if terminalreporter.config.option.markexpr == "faults" and (lines := fault_table(reports)):
        terminalreporter.section("faults")
        for line in lines:
            terminalreporter.write_line(line)


# ---- the quick and the exhaustive tests ----


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Iterator[None]:
    """All but n cases of a test marked `quick(n)` are exhaustive. Which n: those whose names have the smallest
    checksums, so that they are spread over all parameters and stay the same when others are added.

    A file with exhaustive tests says so: the build looks for the marks, and collects no other files for them. The quick
    run drops exhaustive cases before pytest does more with them.
    """
    cases = yield
    if not isinstance(cases, list):  # a class, or not a test
        return cases
    drawn = cases[0].get_closest_marker("quick") if cases else None
    rare = [case.get_closest_marker("exhaustive") is not None for case in cases]
    quick = _quick([case.name for case in cases], rare, drawn)
    if len(quick) < len(cases):
        _check_says_exhaustive(collector.path)
    if _drops_exhaustive(collector.config):
        return [cases[at] for at in quick]
    for at, case in enumerate(cases):
        if at not in quick and not rare[at]:
            case.add_marker(pytest.mark.exhaustive)
    return cases


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """The quick run makes no items of exhaustive cases, which are more than two thirds of all: with their names,
    marks and fixtures they took each process 5 s. If none is quick they stay: a test without cases would be one.
    """
    yield
    if _drops_exhaustive(metafunc.config) and metafunc._calls:
        name, drawn = metafunc.definition.name, metafunc.definition.get_closest_marker("quick")
        rare = [any(mark.name == "exhaustive" for mark in call.marks) for call in metafunc._calls]
        quick = _quick([f"{name}[{call.id}]" for call in metafunc._calls], rare, drawn)
        if quick and len(quick) < len(metafunc._calls):
            _check_says_exhaustive(metafunc.definition.path)
            metafunc._calls[:] = [metafunc._calls[at] for at in quick]


def _quick(names: list[str], rare: list[bool], drawn: pytest.Mark | None) -> list[int]:
    """Places of the quick cases, in order: of those that are not `rare` as many as the mark `quick` says."""
    places = [at for at, is_rare in enumerate(rare) if not is_rare]
    if drawn is None:
        return places
    return sorted(sorted(places, key=lambda at: zlib.crc32(names[at].encode()))[: drawn.args[0]])


def _drops_exhaustive(config: pytest.Config) -> bool:
    named = any("::" in arg for arg in config.args)  # pytest would not find what is dropped
    return config.option.markexpr == "not exhaustive" and not named


@functools.cache
def _check_says_exhaustive(path: Path) -> None:
    if not EXHAUSTIVE.search(path.read_text(encoding="utf-8")):
        raise pytest.UsageError(f"{path}: a test here is exhaustive by another file; say so in a comment")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", metavar="k/n", help="of the collected cases the k-th of n shares only, k from 0")


OF_DRAWN = tuple(f"parallel_lab.{room}" for room in ("ops", "layout", "graph.", "train.dataset"))


def _read_few_constants() -> None:
    """Hypothesis draws one number in twenty from the constants of all modules that are loaded, and reads their sources
    for that: on a fresh checkout in more than ten seconds for each process. Six files draw by it, of these rooms.
    """
    providers = sys.modules.get("hypothesis.internal.conjecture.providers")
    seen = getattr(providers, "_seen_modules", None)
    if isinstance(seen, set):
        seen |= {id(module) for name, module in list(sys.modules.items()) if not name.startswith(OF_DRAWN)}


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads them
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _read_few_constants()
    if _worker(config):
        _sort_by_place(items)
    if drifting := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"{drifting[0]}: an address in its name, which each process has another of: give ids")
    if text := config.option.share:
        share, shares = map(int, text.split("/"))
        if not 0 <= share < shares:
            raise pytest.UsageError(f"--share {text}: of n shares k is one of 0 to n - 1")
        items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % shares == share]
    if config.option.markexpr == "faults":
        items[:] = few_of_each([item for item in items if item.get_closest_marker("faults")])
    for turn, item in enumerate(items):
        item.stash[TURN] = turn


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A process without work takes tests of the other, also earlier ones of the file that it has just ended: then what
    the file keeps (pools, which its last tests may have closed) begins anew.

    A process of xdist reports each test by six messages, which takes both sides as long as pytest needs for a small
    test. That a test began, was set up, torn down and ended says nothing more where it passed and nobody asked.
    """
    _watch_for_hangs(item.config)
    anew = nextitem is not None and nextitem.path == item.path and nextitem.stash[TURN] < item.stash[TURN]
    option = item.config.option
    brief = hasattr(item.config, "workerinput") and option.verbose <= 0 and not (option.durations or option.xmlpath)
    if not anew and not brief:
        return None
    if not brief:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=None if anew else nextitem):
        if not brief or report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    if not brief:
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


HANGS_S, AGAIN_S = 280, 10  # a little less than the `timeout` of pyproject.toml
_watched_from = 0.0


def _watch_for_hangs(config: pytest.Config) -> None:
    """What hangs in C is shown with its stack, which `timeout` cannot do. pytest's own `faulthandler_timeout` starts
    and joins a thread at each test, which takes as long as a small test: here at most every ten seconds.
    """
    global _watched_from
    if (now := time.monotonic()) - _watched_from > AGAIN_S and not config.option.usepdb:
        _watched_from = now
        faulthandler.dump_traceback_later(HANGS_S, file=config.stash[fault_handler_stderr_fd_key])


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()


# ---- processes ----


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # the process ended while we looked
        for thread in os.listdir(f"/proc/{pid}/task"):  # in plain words, because every test asks twice
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += [int(word) for word in file.read().split()]
    return found


def _command(pid: int) -> str | None:
    """The command line (empty for a moment while a program is being loaded); None for a process that has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return (
            None
            if state in "ZX"
            else Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        return None


def living_processes() -> dict[int, str]:
    """Descendants of the test run that are alive: {pid: command line}, without the helpers that multiprocess keeps and
    the workers that all tests of a folder share (`pools.py`).

    A worker has the command line of the fork server it was cloned from; only the server itself, our own child, is a
    helper.
    """
    pools = sys.modules.get("tests.pools")
    shared = pools.shared_workers() if pools else ()
    found, waiting = {}, [(pid, True) for pid in _children(os.getpid())]
    while waiting:
        pid, own = waiting.pop()
        command = None if pid in shared else _command(pid)
        if command is not None and not (own and any(name in command for name in HELPERS)):
            found[pid] = command
        waiting += [(child, False) for child in _children(pid)]
    return found


def _end_shared_pools() -> None:
    if pools := sys.modules.get("tests.pools"):
        pools.end_shared_pools()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The pools that the tests of a folder share end with its last test."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _end_shared_pools()


# ---- shared memory ----


def _users(name: str) -> list[int]:
    """Processes that look after the /dev/shm file or folder `name`: mapped, open, or in their command line."""
    target, found = str(SHM / name), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            named = target in (process / "maps").read_text() or target.encode() in (process / "cmdline").read_bytes()
            if named or any(os.readlink(link).startswith(target) for link in (process / "fd").iterdir()):
                found.append(int(process.name))
        except OSError:  # ended while we looked, or not ours to look at
            continue
    return found


def shared_names() -> dict[str, str]:
    """Names in /dev/shm: {name: the same}, to be compared with what was there before."""
    return {name: name for name in os.listdir(SHM) if not name.startswith(FOREIGN)} if SHM.is_dir() else {}


def own_new_names(before: dict[str, str]) -> dict[str, str]:
    """Names not there before that no living process outside this run uses: another run's come and go meanwhile."""
    return {name: name for name in shared_names() if name not in before and not _of_others(name)}


def _of_others(name: str) -> bool:
    """Whether a living process outside this run uses the name (another test run, a browser on the same machine)."""
    users = _users(name)
    return bool(users) and not {os.getpid(), *living_processes()} & set(users)


# ---- widgets ----


def open_widgets() -> dict[str, str]:
    """Open widgets: {model id: class}, without Layout and style helpers, which their owner does not close."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    if module is None:
        return {}
    widgets = sys.modules["ipywidgets"]
    helpers = (widgets.Layout, widgets.Style)
    return {key: type(widget).__name__ for key, widget in module._instances.items() if not isinstance(widget, helpers)}


# ---- the check ----


def _left(look: Callable[[], dict], before: dict, grace_s: float = GRACE_S) -> dict:
    """What `look` finds beyond `before`, after giving it a moment to go away."""
    end = time.monotonic() + grace_s
    while (left := {key: text for key, text in look().items() if key not in before}) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def _report(processes: dict, names: dict, widgets: dict) -> str:
    lines = [f"process {pid}: {command[:200]}" for pid, command in processes.items()]
    lines += [f"/dev/shm/{name}" for name in names]
    lines += [f"open widget {kind} (model {key})" for key, kind in widgets.items()]
    return "\n  ".join(lines)


@pytest.fixture(autouse=True, scope="session")
def nothing_left_by_the_run() -> Iterator[None]:
    """After the last test: no process and no name in /dev/shm beyond what was there before the first."""
    processes, names = living_processes(), shared_names()
    yield
    _end_shared_pools()
    left = _report(_left(living_processes, processes), _left(lambda: own_new_names(names), {}), {})
    if left:
        pytest.fail(f"left behind by the whole run:\n  {left}", pytrace=False)


_LOOKED: list[tuple[dict, dict, dict]] = []  # what the last look found, until a fixture of wider scope is made


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef) -> None:
    """What a fixture of wider scope makes belongs to no test: the next test looks again before it begins."""
    if fixturedef.scope != "function":
        _LOOKED.clear()


def _look() -> tuple[dict, dict, dict]:
    return living_processes(), shared_names(), open_widgets()


@pytest.fixture(autouse=True)
def nothing_left_behind(nothing_left_by_the_run: None) -> Iterator[None]:
    """After each test: no process, no name in /dev/shm, no open widget beyond what was there before it.

    To look takes as long as a small test: what was found after a test is what was there before the next one.
    """
    before = _LOOKED.pop() if _LOOKED else _look()
    yield
    now, left = _look(), ""
    if any(found.keys() - known.keys() for found, known in zip(now, before, strict=True)):
        processes, names, widgets = before
        names_left = _left(lambda: own_new_names(names), {})
        left = _report(_left(living_processes, processes), names_left, _left(open_widgets, widgets, 0.0))
        now = _look()
    _LOOKED[:] = [now]
    if left:
        pytest.fail(f"left behind by this test:\n  {left}", pytrace=False)


# ---- chance ----


@pytest.fixture(autouse=True)
def seeds_and_settings_as_before() -> Iterator[None]:
    """Tests draw what they would alone, and set no seed for the next: they run in any order, in several processes. What
    a test sets in the parallel context, the search's parameters or compat is forgotten after it.
    """
    of_datasets = seeds._dataset_seed
    before, compat = {function: dict(was_set) for function, was_set in context._set.items()}, context.get_compat()
    with seeds.temporary_seed(seeds.get_seed()):
        yield
    seeds.set_dataset_seed(of_datasets)
    context._set.update(before)
    if context.get_compat() != compat:
        context.set_compat(compat)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A generator seeded with the test's name; the seed is printed, so that a failing draw can be repeated."""
    named = os.environ.get("PARALLEL_LAB_TEST_SEED")
    seed = int(named) if named else zlib.crc32(request.node.nodeid.encode())
    print(f"rng seed {seed} (PARALLEL_LAB_TEST_SEED={seed} draws the same again)")
    return np.random.default_rng(seed)
