"""Starting ranks with mpirun, and telling whether this process is one of them."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from ...base.errors import ArgumentError, MissingPackage, shorten

INSTALL_HINT = (
    "apt-get install openmpi-bin (or conda install openmpi), then pip install 'mpi4py>=4.1'; "
    "environment.yml says the same"
)
# what the launchers of Open MPI, MPICH and those built on it, and process managers that speak PMIx, leave in the
# environment of a rank
_MARKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")
_VERSION_LIMIT_S = 20.0


def launched_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether mpirun (or another MPI launcher) started this process."""
    return any(name in environment for name in _MARKS)


def rank_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environment` as for a process that is no rank: without what an MPI launcher left in it, so that mpirun can be
    started again.
    """
    return {
        n: v
        for n, v in environment.items()
        if not n.startswith(("OMPI_COMM_WORLD", "OMPI_UNIVERSE", "PMIX_", "PMI_", "MPI_LOCAL", "ORTE_"))
    }


def session_folders(folder: str, segments: str) -> dict[str, str]:
    """Variables with which Open MPI puts its session into `folder` and its shared memory into `segments`: what a killed
    mpirun leaves is known.
    """
    return {
        "OMPI_MCA_orte_tmpdir_base": folder,  # Open MPI 4
        "PRTE_MCA_prte_tmpdir_base": folder,  # Open MPI 5
        "OMPI_MCA_btl_vader_backing_directory": segments,  # Open MPI 4
        "OMPI_MCA_btl_sm_backing_directory": segments,  # Open MPI 5
    }


def require_mpi4py() -> None:
    """Raise MissingPackage unless mpi4py is installed. It is not imported: that would start MPI in this process."""
    if importlib.util.find_spec("mpi4py") is None:
        raise MissingPackage("mpi4py is not installed", where="MPI", hint=INSTALL_HINT)


def find_mpirun() -> str | None:
    """Path of mpirun or mpiexec, or None."""
    return shutil.which("mpirun") or shutil.which("mpiexec")


def mpirun_version() -> str:
    """The first line of `mpirun --version`; "" without mpirun."""
    launcher = find_mpirun()
    return (
        ""
        if launcher is None
        else next((line.strip() for line in _version_text(launcher).splitlines() if line.strip()), "")
    )


@functools.lru_cache(maxsize=8)
def _version_text(launcher: str) -> str:
    try:
        found = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, timeout=_VERSION_LIMIT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout


def _is_open_mpi(launcher: str) -> bool:
    return any(name in _version_text(launcher) for name in ("Open MPI", "OpenRTE"))


def mpirun_command(
    n: int, argv: Sequence[str], *, oversubscribe: bool = True, launcher: str | None = None
) -> list[str]:
    """The command that starts `argv` as `n` ranks on this machine.

    oversubscribe  more ranks than cores are allowed, and none is tied to a core
    launcher       path of mpirun; default: the one found

    Open MPI refuses to run as root unless told; MPICH and its relatives know neither option and need neither. Raises
    MissingPackage without mpirun.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ArgumentError(f"n={shorten(n)}", where="mpirun_command", allowed="A number of ranks, 1 or more")
    launcher = launcher or find_mpirun()
    if launcher is None:
        raise MissingPackage("mpirun was not found", where="MPI", hint=INSTALL_HINT)
    options = []
    if _is_open_mpi(launcher):
        if oversubscribe:
            options += ["--oversubscribe", "--bind-to", "none"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            options.append("--allow-run-as-root")
    return [launcher, *options, "-n", str(n), *argv]
