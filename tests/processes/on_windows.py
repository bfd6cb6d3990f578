"""A Python that has no more of os, signal and socket than Windows has, and its rule for files: what is open is neither
renamed nor removed. It imports every module of the package, simulates ranks, and runs labs.

    python tests/processes/on_windows.py FOLDER

Not Windows: libraries are loaded before, and Python's own modules go on as on this system.
"""

import importlib
import os
import pkgutil
import platform
import signal
import socket
import sys
import warnings
from pathlib import Path

# Python library reference, "Availability": Unix, or not Windows
ABSENT = {
    os: "fork forkpty killpg setpgid getpgid setsid getuid geteuid getgid waitid wait3 wait4 register_at_fork mkfifo "
    "sched_yield sched_getaffinity sched_setaffinity posix_fallocate posix_fadvise pread pwrite fchown chown "
    "getloadavg sysconf statvfs nice pipe2 memfd_create pidfd_open eventfd O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_NOCTTY "
    "O_DIRECTORY WNOHANG WNOWAIT WEXITED P_PID posix_spawn set_blocking sync",
    signal: "SIGKILL SIGHUP SIGSTOP SIGCONT SIGALRM SIGCHLD SIGUSR1 SIGUSR2 SIGTSTP SIGQUIT SIGPIPE setitimer "
    "getitimer ITIMER_REAL pthread_sigmask pthread_kill SIG_BLOCK SIG_UNBLOCK SIG_SETMASK alarm pause sigwait",
    socket: "AF_UNIX SO_PEERCRED SCM_RIGHTS CMSG_LEN send_fds recv_fds",
}
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "mpi4py")
LIBRARIES = "numpy dill multiprocess.connection multiprocess.forkserver multiprocess.reduction threadpoolctl asyncio "
LIBRARIES += "subprocess tempfile shutil http.server ipywidgets anywidget plotly.graph_objects IPython nbformat "
LIBRARIES += "jupyter_client nbconvert ipykernel.kernelbase unittest.mock concurrent.futures.process PIL.Image "
LIBRARIES += "nbgrader.api"
OF_RANKS = (".rank_main", ".keeper", ".worker", ".server_preload", ".__main__")  # run by what is refused


def become_windows() -> None:
    """Take away what is not there, and let open files stay as they are."""
    for name in LIBRARIES.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    for module, names in ABSENT.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    for name in MODULES:
        sys.modules[name] = None
    platform.system = lambda: "Windows"
    sys.addaudithook(_refuse_open)


def _refuse_open(event: str, args: tuple) -> None:
    if event in ("os.rename", "os.remove"):
        for path in args[:2]:
            if isinstance(path, (str, os.PathLike)) and _is_open(os.path.realpath(path)):
                raise PermissionError(13, "it is used by this process", os.fspath(path))


def _is_open(path: str) -> bool:
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == path:
                return True
        except OSError:
            continue
    return False


def import_all() -> int:
    """Every module that a learner's process may load."""
    import parallel_lab

    count = 0
    for found in pkgutil.walk_packages(parallel_lab.__path__, "parallel_lab."):
        if not found.name.endswith(OF_RANKS) and "._path" not in found.name:
            importlib.import_module(found.name)
            count += 1
    return count


def refusals() -> list[str]:
    """What is said to those who want processes."""
    import parallel_lab as pl
    from parallel_lab.base.errors import NoProcesses
    from parallel_lab.processes.launch import Console, LaunchSpec, launch, launch_over_mpi
    from parallel_lab.processes.mpi.pool import get_mpi_pool
    from parallel_lab.processes.shm import get_pool
    from parallel_lab.processes.world.hub import Hub

    spec = LaunchSpec(("train.py",), 2)
    said = []
    for call in (
        lambda: pl.WorkerPool(2),
        lambda: get_pool(2),
        lambda: launch(spec, Console(2)),
        lambda: launch_over_mpi(spec, Console(2)),
        lambda: get_mpi_pool(2),
        lambda: Hub(None),
    ):
        try:
            call()
        except NoProcesses as error:
            said.append(str(error))
    return said


def train() -> None:
    """A session that asks for processes is a simulated one, with its losses."""
    import parallel_lab as pl
    from parallel_lab import nn
    from parallel_lab.lab.lessons.quickstart import QuickNet

    (x, label), net = pl.dataset.seed_batch(), QuickNet(in_dim=32, hidden_dim=16, out_dim=16)
    net.matmul.shard(((2, 4), (4, 1)))
    opt = nn.Momentum(net.trainable_params(), learning_rate=0.2, momentum=0.1)
    plan = pl.compile(net, x, label, loss=nn.MSELoss(), optimizer=opt, device_num=8, dataset_strategy="full_batch")
    with pl.Session(plan, net, opt) as session:
        want = session.train([(x, label)], steps=5)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pl.Session(plan, net, opt, executor="processes") as session:
            run = session.start([(x, label)], 5)
            print("same losses", run.result() == want, session.executor)
    print("warned", [str(warning.message) for warning in seen])


def labs(folder: Path) -> None:
    """Each lab's measured run, its file and its page."""
    import parallel_lab as pl
    from parallel_lab.lab.quickstart.model import Quickstart

    strategy = pl.StrategyLab("quickstart", devices=4)
    strategy.set_steps(3)
    strategy.run()
    for lab in (pl.FusionLab("chain"), pl.MemoryLab(), pl.PipelineLab()):
        lab.run_measured(2)
        lab.wait()
        print(type(lab).__name__, lab.progress()["run"] if lab.often else lab.snapshot()["run"])
    lab.to_html(folder / "pipeline.html")
    strategy.wait()
    print("StrategyLab", strategy.snapshot()["run"])
    strategy.save(folder / "strategy.json")
    strategy.save(folder / "strategy.json")  # over a file that is there
    result = Quickstart(devices=2, epochs=1).run()
    print("Quickstart", result.executor, result.equal, result.to_html(folder / "report.html").name)
    print("files", sorted(path.name for path in folder.iterdir()))


if __name__ == "__main__":
    become_windows()
    print("modules", import_all())
    for text in refusals():
        print("refused", text)
    train()
    labs(Path(sys.argv[1]))
    from parallel_lab.cli import doctor

    for finding in doctor.examine({name: doctor.CHECKS[name] for name in ("system", "cores", "memory", "workers")}):
        print("doctor", finding.text())
