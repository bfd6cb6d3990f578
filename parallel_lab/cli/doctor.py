"""`parallel-lab doctor`: can this machine do what the lessons need, and if not, what fixes it?

Every check is a function that returns status, fact and fix (`Result`); CHECKS names them. What may hang or crash
(starting workers, loading an MPI library) happens in a process of its own, under a time limit.

    >>> Finding("python", "ok", "3.11.7").text()
    'ok       python     3.11.7'
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ..base.driver import DRIVER, LoopDriver
from ..base.errors import DataFileError, SharedMemoryTooSmall
from ..base.files import checkout_folder, read_regular, shipped_folder
from ..base.system import IN_BROWSER, SYSTEM, TRIED, VARIABLE, cores, free_memory_bytes

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MINIMUM_PYTHON = (3, 11)
_MIB, _GIB = 1 << 20, 1 << 30
_SHARED_BYTES = 64 * _MIB  # what a trial of shared memory takes
_WORKERS_LIMIT_S = 60.0  # a cold start takes about a second; this is for a machine that is swapping
_MPI_LIMIT_S = 30.0
_PIP = "%pip install" if IN_BROWSER else f"{sys.executable} -m pip install"
JUPYTERLAB = "4.5.7"  # the extra jupyter

# status, what was found and, unless the status is "ok", what to do about it; () for no finding
Result = tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """What a check `found` (with numbers), and how to `mend` it (never empty unless "ok").

    status  "ok"; "warning": the lessons run, something is slower or left out; "problem": they do not run
    """

    name: str
    status: str
    found: str
    mend: str = ""

    def text(self) -> str:
        """The finding as one line, and a second one with how to fix it."""
        line = f"{self.status:8} {self.name:10} {self.found}"
        return f"{line}\n{'':19} -> {self.mend}" if self.mend else line


# ---- the machine ----


def check_python() -> Result:
    """Python 3.11 or newer, 64 bits."""
    system = f"{platform.python_implementation()}, {platform.system()} {platform.machine()}"
    found = f"{platform.python_version()} ({system}), {sys.executable}"
    if sys.version_info[:2] < _MINIMUM_PYTHON:
        return "problem", found, "Install Python 3.11 or newer, or use environment.yml"
    if sys.maxsize < 1 << 32 and not IN_BROWSER:  # whose WebAssembly has 32 bits
        return "problem", f"{found}, 32 bits", "Install a 64-bit Python"
    return "ok", found


def check_system() -> Result:
    """Which ways ranks take on this system, and what of it was ever run."""
    tried = TRIED.get(SYSTEM.name, "never tried; if it is a Unix, ranks take the ways of a Mac")
    if SYSTEM.name == "Linux" and not SYSTEM.portable:
        without = f"; without {', '.join(SYSTEM.missing)}" if SYSTEM.missing else ""
        return "ok", f"Linux: {tried}{without}"
    if SYSTEM.portable:
        found = f"{SYSTEM.name} with {VARIABLE}={os.environ[VARIABLE]}: ranks take the ways of a Mac"
        return "warning", found, f"Unset {VARIABLE}, unless you test them: {SYSTEM.name} has faster ones"
    other = "Please report what does not work"
    mend = "WSL 2 is a Linux, and has everything" if SYSTEM.name == "Windows" else other
    return "warning", f"{SYSTEM.name}: {tried}", mend


def check_page() -> Result:
    """In a browser: what runs meanwhile, and whether controls answer."""
    if not isinstance(DRIVER, LoopDriver):
        return ()
    found = "no threads and no processes: ranks are simulated in turns of the page's event loop"
    if not DRIVER.can_sleep:
        mend = "Controls answer when a run has ended; a newer browser can take a run aside (WebAssembly's JSPI)"
        return "warning", f"{found}, a run in one piece", mend
    return "ok", f"{found}; controls answer while a training runs"


def _cgroup_number(name: str) -> str | None:
    """First word of a limit of the container this runs in (cgroup 2), None without a limit."""
    if not SYSTEM.states:
        return None
    try:
        word = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").split()[0]
    except (OSError, IndexError):
        return None
    return None if word == "max" else word


def check_cores() -> Result:
    """Cores this process may use; one is enough to run, two show real parallel work."""
    if IN_BROWSER:  # a page has one
        return ()
    usable = cores()
    quota = _cgroup_number("cpu.max")
    limit = int(quota) / 100_000 if quota else None  # microseconds per period; 100,000 is the kernel's usual period
    found = f"{usable} usable" + (f", limited by the container to the time of {limit:g}" if limit else "")
    if usable < 2 or (limit is not None and limit < 2):
        mend = "Everything runs, but ranks take turns: give the machine 2 cores or more to see a speed-up"
        return "warning", found, mend
    return "ok", found


def available_memory_bytes() -> int | None:
    """Memory that can be had now: the machine's, or what the container has left; None where the system does not say."""
    available = free_memory_bytes()
    if available is None:
        return None
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    return min(available, max(int(limit) - int(used), 0)) if limit and used else available


def check_memory() -> Result:
    """Free memory: a notebook kernel and eight workers take about 1 GiB."""
    if IN_BROWSER:  # it gets what it asks for, up to 4 GiB
        return ()
    available = available_memory_bytes()
    if available is None:
        mend = "Keep 2 GiB free for eight workers and a browser"
        return "warning", "this system does not say how much is free", mend
    found = f"{available / _GIB:.1f} GiB free"
    if available < _GIB // 2:
        return "problem", found, "Close other programs until 1 GiB is free, or raise the container's limit"
    if available < 2 * _GIB:
        return "warning", found, "Use 4 workers rather than 8, or close other programs"
    return "ok", found


def check_shared() -> Result:
    """Nameless shared memory for the workers."""
    if not SYSTEM.processes:
        return ()
    from ..processes.shm.shared_memory import SharedBlock

    try:
        block = SharedBlock(_SHARED_BYTES)
    except SharedMemoryTooSmall as error:
        mend = "Raise the container's memory limit, or allow memfd_create in its profile"
        return "problem", f"no nameless shared memory: {error}", mend
    block.map[0] = block.map[_SHARED_BYTES - 1] = 7
    block.close()
    how = "memfd" if SYSTEM.memory_files else "an unlinked file"
    return "ok", f"{_SHARED_BYTES // _MIB} MiB of nameless shared memory made and released ({how})"


def check_dev_shm() -> Result:
    """The size of /dev/shm, which the browser uses."""
    if not SYSTEM.memory_files or not Path("/dev/shm").is_dir():
        return ()
    state = os.statvfs("/dev/shm")
    free = state.f_bavail * state.f_frsize
    if free < _SHARED_BYTES:
        mend = "Start the container with --shm-size=1g; Chromium and named segments need it"
        return "warning", f"{free / _MIB:.0f} MiB free", mend
    return "ok", f"{free / _MIB:,.0f} MiB free"


# ---- packages ----


def requirements() -> tuple[str, ...]:
    """What the package declares it needs here, such as "numpy>=2.0", without the extras."""
    import tomllib

    checkout = checkout_folder()
    if checkout is not None:
        project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = project["dependencies"]
    else:
        lines = [line for line in importlib.metadata.requires("parallel-lab") or () if "extra ==" not in line]
    # the one marker that there is: not in a browser
    return tuple(line.partition(";")[0].strip() for line in lines if not (IN_BROWSER and ";" in line))


def _numbers(version: str) -> tuple[int, ...]:
    """The release numbers of a version, without trailing zeros, which do not count."""
    numbers = [int(part) for part in re.match(r"[\d.]*", version).group().split(".") if part]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def meets(version: str, limit: str) -> bool:
    """Whether `version` is at least `limit`, by their release numbers.

    >>> meets("8.10.0", "8.9"), meets("2.0.0", "2"), meets("0.9", "0.9.18")
    (True, True, False)
    """
    return _numbers(version) >= _numbers(limit)


def check_packages() -> Result:
    """Every declared package is installed and new enough."""
    faults, present, missing = [], [], []
    for requirement in requirements():
        name, _, limit = requirement.partition(">=")
        try:
            version = importlib.metadata.version(name)
            present.append(f"{name} {version}")
            fault = "" if meets(version, limit) else f"{name} is {version}, but {limit} or newer is needed"
        except importlib.metadata.PackageNotFoundError:
            fault = f"{name} is missing"
        if fault:
            faults.append(fault)
            missing.append(f'"{requirement}"')
    return ("problem", "; ".join(faults), f"{_PIP} {' '.join(missing)}") if faults else ("ok", ", ".join(present))


def check_numpy() -> Result:
    """numpy multiplies matrices rightly, with which BLAS, on how many threads."""
    try:
        import numpy as np

        threadpoolctl = None if IN_BROWSER else importlib.import_module("threadpoolctl")
    except ImportError as error:
        return "problem", str(error), f"{_PIP} numpy threadpoolctl"
    size = 96
    a = np.arange(size * size, dtype=np.float64).reshape(size, size) % 7
    wrong = np.abs(a @ a.T - np.einsum("ik,jk->ij", a, a, optimize=False)).max()  # small whole numbers: both are exact
    if wrong:
        found = f"{np.__version__} gives wrong matrix products (off by {wrong:g})"
        return "problem", found, "Install numpy again: its BLAS is broken"
    if threadpoolctl is None:
        return "ok", f"{np.__version__}, its BLAS in one thread"
    pools = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
    if not pools:
        mend = "Set OMP_NUM_THREADS=1 so that workers do not fight over cores"
        return "warning", f"{np.__version__}, BLAS not known to threadpoolctl", mend
    blas = (f"{pool['internal_api']} {pool['version']} with {pool['num_threads']} threads" for pool in pools)
    return "ok", f"{np.__version__}, {', '.join(blas)}"


def check_jupyter() -> Result:
    """JupyterLab and a Python kernel for it; a page in a browser is one."""
    if IN_BROWSER:
        return ()
    missing = [name for name in ("jupyterlab", "ipykernel") if importlib.util.find_spec(name) is None]
    if missing:
        return "problem", f"{' and '.join(missing)} not found", f"{_PIP} {' '.join(missing)}"
    lab, kernel = map(importlib.metadata.version, ("jupyterlab", "ipykernel"))
    if not meets(lab, JUPYTERLAB):
        return "problem", f"JupyterLab is {lab}, but {JUPYTERLAB} or newer is needed", f"{_PIP} -U jupyterlab"
    return "ok", f"JupyterLab {lab}, ipykernel {kernel}"


def check_lessons() -> Result:
    """The notebooks and the digits that come with the package."""
    try:
        from ..train.dataset.digits import load_digits

        count = len(list(shipped_folder("notebooks").glob("*.ipynb")))
        images, _ = load_digits()
    except DataFileError as error:
        mend = "Install the package again: pip install --force-reinstall parallel-lab"
        return "problem", str(error).partition(". ")[0], mend
    if not count:
        mend = "Install the package again, or use a complete checkout"
        return "problem", f"no notebook in {shipped_folder('notebooks')}", mend
    return "ok", f"{count} notebooks, {len(images)} training digits"


# ---- processes ----


def _process_number(*_given: object) -> int:
    """What each worker of the trial runs; shipped to it by reference."""
    return os.getpid()


def try_workers(world_size: int = 2) -> None:
    """Start workers, run one function on each, end them. Prints how many different processes answered."""
    from ..processes.shm import WorkerPool

    with WorkerPool(world_size) as pool:
        print(len({int(number) for number in pool.run(_process_number)} - {os.getpid()}))


def _python(code: str, limit_s: float) -> tuple[int | None, str]:
    """As `_finish`, with the last line alone, of `code` in a fresh Python."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    exit_code, lines = _finish([sys.executable, "-c", code], limit_s, {**os.environ, "PYTHONPATH": path})
    return exit_code, lines[-1] if lines else ""


def _finish(command: list[str], limit_s: float, environment: Mapping[str, str]) -> tuple[int | None, list[str]]:
    """Exit code (None: not ended in `limit_s` seconds, so killed with all its processes) and lines of output."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    options = {"text": True, "errors": "replace", "env": environment, "start_new_session": True}
    process = subprocess.Popen(command, **streams, **options)
    try:
        output, _ = process.communicate(timeout=limit_s)
        exit_code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        getattr(os, "killpg", os.kill)(process.pid, 9)  # its workers too
        output, _ = process.communicate()
        exit_code = None
    return exit_code, [line.strip() for line in output.splitlines() if line.strip()]


def check_workers(world_size: int = 2) -> Result:
    """Two worker processes start, answer and end."""
    if not SYSTEM.processes:
        mend = "WSL 2 is a Linux, and has everything" if SYSTEM.name == "Windows" else "Install Python for real ones"
        return "warning", f"none {SYSTEM.place}: labs simulate their ranks, with the same numbers", mend
    trial = f"from parallel_lab.cli.doctor import try_workers; try_workers({world_size})"
    code, line = _python(trial, _WORKERS_LIMIT_S)
    if code is None:
        mend = "Check whether a security program or a process limit (ulimit -u) blocks new processes"
        return "problem", f"no answer within {_WORKERS_LIMIT_S:g} s", mend
    if code or line != str(world_size):
        mend = "Fix the problems above first; then see what the message names"
        return "problem", f"could not run {world_size}: {line}", mend
    return "ok", f"{world_size} processes started, answered and ended"


_MPI_TRIAL = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank() + 1)
if MPI.COMM_WORLD.Get_rank() == 0:
    print("trial", total, MPI.Get_library_version().splitlines()[0].split(",")[0].strip(chr(0)))
"""


def check_mpi() -> Result:
    """mpirun and mpi4py: two ranks start, add and end. Says the line that runs a script on this machine."""
    from ..processes.mpi.launch import INSTALL_HINT, find_mpirun, mpirun_command, rank_environment

    launcher, has_mpi4py = find_mpirun(), importlib.util.find_spec("mpi4py") is not None
    mend = f"Only for running under MPI: {INSTALL_HINT}"
    if launcher is None or not has_mpi4py:
        return "warning", f"mpi4py is {'' if has_mpi4py else 'not '}installed, launcher: {launcher or 'none'}", mend
    code, lines = _finish(mpirun_command(2, [sys.executable, "-c", _MPI_TRIAL]), _MPI_LIMIT_S, rank_environment())
    answers = [line.removeprefix("trial 3 ") for line in lines if line.startswith("trial 3 ")]  # 1 + 2: both took part
    if code != 0 or not answers:
        last_words = " | ".join(line for line in lines if line.strip("-*"))[:500] or f"exit code {code}"
        return "warning", f"{launcher} could not run 2 ranks: {'no answer' if code is None else last_words}", mend
    command = mpirun_command(8, ["python", "script.py"])
    if shutil.which("mpirun") == launcher:
        command[0] = "mpirun"
    return "ok", f"{answers[0]}; 2 ranks added and ended. Run a script: {shlex.join(command)}"


_LARGEST_HOSTFILE = 1 << 20  # bytes: thirty thousand hosts
_HOSTS_TRIAL = """
import platform, socket
from importlib.metadata import version
from mpi4py import MPI
facts = MPI.COMM_WORLD.gather([socket.gethostname(), platform.python_version(), version("parallel-lab")])
total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank() + 1)
if MPI.COMM_WORLD.Get_rank() == 0:
    import json
    print("trial", total, json.dumps(facts))
"""


def check_hosts(file: str, interface: str = "") -> Result:
    """Ranks start on all hosts of a file, as many as it has slots, and add over the network; every host has the same
    Python and the same version of this package. Says the lines that run a script there.
    """
    from ..processes.mpi.launch import Hosts, mpirun_command, rank_environment

    try:
        slots = read_slots(file)
    except DataFileError as error:
        return "problem", str(error), 'Write a line "NAME slots=RANKS" for each host'
    ranks, hosts = sum(slots.values()), Hosts(file, interface)
    command = mpirun_command(ranks, [sys.executable, "-c", _HOSTS_TRIAL], hosts=hosts)
    code, lines = _finish(command, _MPI_LIMIT_S, rank_environment())
    start = f"trial {ranks * (ranks + 1) // 2} "
    answers = [line.removeprefix(start) for line in lines if line.startswith(start)]
    if code != 0 or not answers:
        last_words = " | ".join(line for line in lines if line.strip("-*"))[:500] or f"exit code {code}"
        mend = "ssh must reach each host without a password, with the same paths to Python and the script on all; "
        mend += "--interface names the network that joins them (ip -br addr)"
        return "problem", f"{ranks} ranks on {', '.join(slots)}: {'no answer' if code is None else last_words}", mend
    facts = json.loads(answers[0])
    found = "; ".join(f"{name} {sum(f[0] == name for f in facts)} ranks" for name in dict.fromkeys(f[0] for f in facts))
    versions = {f"Python {python}, parallel-lab {own}" for _, python, own in facts}
    if len(versions) > 1:
        each = "; ".join(dict.fromkeys(f"{name}: Python {python}, parallel-lab {own}" for name, python, own in facts))
        return "problem", f"the hosts differ: {each}", "Install the same versions on all"
    script = mpirun_command(ranks, ["python", "script.py"], hosts=hosts)
    script[0] = "mpirun"
    slurm = f'sbatch -N {len(slots)} -n {ranks} --wrap "mpirun -x PYTHONPATH python script.py"'
    return "ok", f"{found} added and ended ({versions.pop()}). Run a script: {shlex.join(script)}; under Slurm: {slurm}"


def read_slots(file: str | os.PathLike[str]) -> dict[str, int]:
    """{host: ranks} of a hostfile: lines "NAME slots=RANKS", one rank where nothing is said; # begins a comment. Raises
    DataFileError for a file that cannot be read, names no host, or asks for more ranks than there can be.
    """
    try:
        text = read_regular(file, _LARGEST_HOSTFILE).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataFileError(f"{file} cannot be read: {error}", where="doctor") from error
    slots: dict[str, int] = {}
    for line in text.splitlines():
        name, *rest = line.partition("#")[0].split() or [""]
        if name:
            match = re.search(r"slots\s*=\s*(\d{1,9})", " ".join(rest), re.ASCII)
            slots[name] = slots.get(name, 0) + (int(match[1]) if match else 1)
    if not slots:
        raise DataFileError(f"{file} names no host", where="doctor")
    return slots


def find_chromium() -> str | None:
    """Path of a Chromium or Chrome, or None. PARALLEL_LAB_CHROMIUM names one explicitly."""
    named = os.environ.get("PARALLEL_LAB_CHROMIUM")
    return named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def check_browser() -> Result:
    """A Chromium for the browser tests; any browser shows the notebooks."""
    mend = "Only the browser tests need it: apt-get install chromium. Any browser shows the lessons"
    path = find_chromium()
    return ("ok", path) if path else ("warning", "no Chromium found", mend)


CHECKS: dict[str, Callable[[], Result]] = {
    "python": check_python,
    "system": check_system,
    "page": check_page,
    "cores": check_cores,
    "memory": check_memory,
    "shared": check_shared,
    "/dev/shm": check_dev_shm,
    "packages": check_packages,
    "numpy": check_numpy,
    "jupyter": check_jupyter,
    "lessons": check_lessons,
    "workers": check_workers,
    "browser": check_browser,
    "mpi": check_mpi,
}


PAGE = ("python", "system", "page", "packages", "numpy", "lessons", "workers")  # what concerns a browser


def examine(checks: Mapping[str, Callable[[], Result]] = CHECKS) -> Iterator[Finding]:
    """The findings, one after the other. A check that fails by itself is a problem, not the end of the examination."""
    for name, check in checks.items():
        try:
            result = check()
        except Exception as error:
            found = f"the check itself failed: {type(error).__name__}: {error}"
            result = "problem", found, "Please report this line"
        if result:
            yield Finding(name, *result)


def report_json(findings: Iterable[Finding]) -> str:
    """The findings as one JSON object: {"usable": bool, "findings": [{name, status, found, mend}, ...]}."""
    listed = [asdict(finding) for finding in findings]
    usable = all(finding["status"] != "problem" for finding in listed)
    return json.dumps({"usable": usable, "findings": listed}, indent=2)
