"""Starting ranks with mpirun, and telling whether this process is one of them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base.checks import integer
from ...base.errors import MissingPackage
from ...base.system import SYSTEM, require_processes

# for a worker, in JSON: address and key of the notebook's socket, timeout_s, warn_after_s, reproducible
ADDRESS_VARIABLE = "PARALLEL_LAB_MPI_NOTEBOOK"
INSTALL_HINT = "apt-get install openmpi-bin (or conda install openmpi), then pip install 'mpi4py>=4.1'; "
INSTALL_HINT += "environment.yml says the same"
# what the launchers of Open MPI, MPICH and those built on it, and process managers that speak PMIx, leave in the
# environment of a rank
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
_VERSION_LIMIT_S = 20.0
LOST_HOST_S = 8  # a host that says nothing for so long
_END_LIMIT_S = 5.0  # for the keeper to end everything; measured: 0.1 s


def launched_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether mpirun (or another MPI launcher) started this process."""
    return any(name in environment for name in _MARKS)


def rank_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` without what an MPI launcher left in it, so that mpirun can be started again."""
    marks = ("OMPI_COMM_WORLD", "OMPI_UNIVERSE", "PMIX_", "PMI_", "MPI_LOCAL", "ORTE_")
    return {name: value for name, value in environment.items() if not name.startswith(marks)}


def require_mpi4py() -> None:
    """Raise MissingPackage unless mpi4py is installed. It is not imported: that would start MPI in this process."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingPackage("mpi4py is not installed", where="MPI", hint=INSTALL_HINT)


def find_mpirun(path: str | None = None) -> str | None:
    """Path of mpirun or mpiexec, in the folders of `path` (default: PATH), or None."""
    return shutil.which("mpirun", path=path) or shutil.which("mpiexec", path=path)


def mpirun_version(path: str | None = None) -> str:
    """What `mpirun --version` says; "" without mpirun. path: as in `find_mpirun`"""
    launcher = find_mpirun(path)
    return _version_text(launcher) if launcher else ""


@functools.lru_cache(maxsize=8)
def _version_text(launcher: str) -> str:
    try:
        found_by = {**os.environ, "PATH": f"{os.path.dirname(launcher)}:{os.environ.get('PATH', '')}"}  # Intel's script
        options = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "env": found_by}
        found = subprocess.run([launcher, "--version"], timeout=_VERSION_LIMIT_S, **options)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout


def mpirun_command(
    n: int, argv: Sequence[str], *, oversubscribe: bool = True, launcher: str | None = None, hosts: Hosts | None = None
) -> list[str]:
    """The command that starts `argv` as `n` ranks here, or on `hosts`; `oversubscribe`: more ranks than cores, none
    tied to a core; `launcher`: path of mpirun (default: the one found). Open MPI refuses root unless told; MPICH and
    its relatives neither know nor need these options. Raises MissingPackage without mpirun.
    """
    integer(1, kinds=int)("mpirun_command", "n", n)
    launcher = launcher or find_mpirun()
    if launcher is None:
        raise MissingPackage("mpirun was not found", where="MPI", hint=INSTALL_HINT)
    options = []
    if any(name in _version_text(launcher) for name in ("Open MPI", "OpenRTE")):
        if oversubscribe:
            options += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            options.append("--allow-run-as-root")
        if hosts is not None:
            options += hosts.options()
    elif hosts is not None:
        what, hint = f"{launcher} is not Open MPI", "Start the script with your MPI's own options for hosts"
        raise MissingPackage(what, where="MPI over hosts", hint=hint)
    return [launcher, *options, "-n", str(n), *argv]


@dataclass(frozen=True)
class Hosts:
    """Hosts to run on: `file` has a line "NAME slots=RANKS" for each, as Open MPI's --hostfile. `interface`: the
    network between them, as "eth0" or "10.0.0.0/24"; without it Open MPI tries all that it finds, and may wait for one
    that leads nowhere.
    """

    file: str
    interface: str = ""

    def options(self) -> list[str]:
        """mpirun's: where, over what, that ranks find the packages that this process finds, and that a host which is
        no longer heard of is given up after LOST_HOST_S, not 480 s.
        """
        options = ["--hostfile", self.file, "-x", "PYTHONPATH", "-x", "PATH"]
        for layer in ("oob_tcp", "btl_tcp") if self.interface else ():  # control, data
            options += ["--mca", f"{layer}_if_include", self.interface]
        for name, seconds in (("time", LOST_HOST_S - 3), ("intvl", 1), ("probes", 3)):
            options += ["--mca", f"oob_tcp_keepalive_{name}", str(seconds)]
        return options


def _on_one_machine(launcher: str | None) -> dict[str, str]:
    """What lets Open MPI's ranks talk through shared memory alone: otherwise each of them listens on all interfaces
    (`ss -ltnp`). mpirun itself does whatever it is asked: the keeper looks after its sockets.
    """
    own_memory = "vader" if re.search(r"\b4\.\d+\.\d+", _version_text(launcher or "mpirun")) else "sm"
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": f"self,{own_memory}", "OMPI_MCA_oob_tcp_if_include": loopback}


class KeptMpirun:
    """mpirun under a keeper (keeper.py), with a `folder` for files and `segments` for Open MPI's shared memory, named
    after `prefix` and this process. Leaving the `with` statement, or `end`, ends everything and removes them.
    """

    def __init__(self, prefix: str) -> None:
        require_processes("MPI")
        # short, because paths of sockets are limited to 103 characters on a Mac
        name = f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
        self.folder = Path(tempfile.gettempdir(), name)
        in_memory = SYSTEM.memory_files and os.access("/dev/shm", os.W_OK)
        self.segments = Path("/dev/shm", name) if in_memory else self.folder
        self.folders = tuple(dict.fromkeys((str(self.folder), str(self.segments))))
        self.keeper: subprocess.Popen | None = None
        try:
            for folder in self.folders:
                os.mkdir(folder, 0o700)
        except OSError:
            self.end()
            raise

    def start(
        self, ranks: int, argv: Sequence[str], environment: Mapping[str, str], **streams: Any
    ) -> subprocess.Popen:
        """The keeper; mpirun, found by PATH of `environment`, starts `argv` as so many ranks. Raises MissingPackage."""
        path = environment.get("PATH")
        other = {} if path in (None, os.environ.get("PATH")) else {"launcher": find_mpirun(path)}
        told = {"linux": SYSTEM.parent_signal, "ends": SYSTEM.process_ends, "states": SYSTEM.states}
        order = json.dumps({"command": mpirun_command(ranks, argv, **other), "folders": self.folders, **told})
        require_mpi4py()
        variables = {
            **_on_one_machine(find_mpirun(path)),
            **rank_environment(environment),
            "OMPI_MCA_orte_tmpdir_base": str(self.folder),  # Open MPI 4
            "PRTE_MCA_prte_tmpdir_base": str(self.folder),  # Open MPI 5
            "OMPI_MCA_btl_vader_backing_directory": str(self.segments),  # Open MPI 4
            "OMPI_MCA_btl_sm_backing_directory": str(self.segments),  # Open MPI 5
        }
        command = [sys.executable, "-P", str(Path(__file__).with_name("keeper.py")), order]
        self.keeper = subprocess.Popen(command, stdin=subprocess.PIPE, env=variables, start_new_session=True, **streams)
        return self.keeper

    def end(self) -> None:
        """End mpirun and all ranks, and remove the folders. Called again, does nothing."""
        if self.keeper is not None:
            with contextlib.suppress(OSError):
                self.keeper.stdin.close()  # the keeper ends everything when it sees this
            try:
                self.keeper.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.keeper.kill()
                self.keeper.wait()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> KeptMpirun:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
