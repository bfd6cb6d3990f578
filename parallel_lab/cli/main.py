"""The command `parallel-lab`: opens the notebooks, checks the machine, runs the quickstart.

    parallel-lab                     JupyterLab on the notebooks
    parallel-lab doctor              can this machine do what the lessons need?
    parallel-lab doctor train.py     what does this MindSpore script need that is missing here?
    parallel-lab doctor --hosts FILE can these hosts run a script together, over MPI?
    parallel-lab doctor --page       what works in this browser? (in a page: main(["doctor", "--page"]))
    parallel-lab quickstart          the quickstart in the terminal (quickstart_command.py)
    parallel-lab plan                how to train a transformer on thousands of devices (plan_command.py)
    parallel-lab bench               speed next to PyTorch's and MPI's (bench_command.py)
    parallel-lab run, msrun          a script on N ranks (run_command.py)
    parallel-lab site public         the lessons as static pages, and the reference (site_command.py, reference.py)
    parallel-lab grade submitted     points of a class, per student and part (grade_command.py)
    parallel-lab course, wall        a class: an nbgrader course; what was handed in, on a page (class_commands.py)

Exit codes: 0 done; 1 the doctor found a problem, or JupyterLab ended with one; 2 wrong arguments, or an error of ours,
shown in one line; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import parallel_lab.lab.shared

from ..base.errors import MissingPackage, ParallelLabError
from ..base.files import checkout_folder, shipped_folder, version
from .options import add_options, option, subcommand, whole_number
from .workbench import first_notebook, update_notebooks

WORKING_FOLDER = "parallel_lab_notebooks"

_EXAMPLES = """\
examples:
  parallel-lab                          open the notebooks in JupyterLab
  parallel-lab --no-browser --port 8899 only start the server, on that port, and print its address
  parallel-lab --folder ~/lessons       work on copies in that folder; notebooks you edited are never written over
  parallel-lab -- --log-level=WARN      what follows -- goes to JupyterLab as it is
  parallel-lab doctor                   check this machine
"""


# ---- JupyterLab ----


def jupyterlab_command(
    folder: Path, *, browser: bool = True, port: int | None = None, extra: Sequence[str] = ()
) -> list[str]:
    """Command of JupyterLab on `folder`, by this Python; `extra` goes last and wins. Raises MissingPackage."""
    if importlib.util.find_spec("jupyterlab") is None:
        hint = f"{sys.executable} -m pip install jupyterlab ('parallel-lab[jupyter]' brings it), or use environment.yml"
        raise MissingPackage("JupyterLab is not installed", hint=hint)
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    notebook = first_notebook(folder)
    if notebook:
        command.append(f"--LabApp.default_url=/lab/tree/{notebook}")
    if not browser:
        command.append("--no-browser")
    if port is not None:
        command.append(f"--port={port}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # often the only user of a container; JupyterLab refuses root without it
    return command + list(extra)


def jupyter_environment() -> dict[str, str]:
    """With the defaults that we ship: no news pop-up, file names at full width, exports that show labs' pages. They go
    last: what a user or an administrator has set wins.
    """
    ours = str(Path(parallel_lab.lab.shared.__file__).parent)
    path = os.environ.get("JUPYTER_CONFIG_PATH")
    return {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join([*([path] if path else []), ours])}


@contextlib.contextmanager
def _passing_on_signals(server: subprocess.Popen) -> Iterator[None]:
    """Ctrl-C reaches JupyterLab by itself (same terminal) and is its business (it asks back); SIGTERM is passed on."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


def _open_notebooks(args: argparse.Namespace) -> int:
    source = shipped_folder("notebooks")
    if args.folder is None and checkout_folder() is not None:
        folder = source
        print(f"Notebooks of this checkout: {folder}")
    else:
        folder = Path(args.folder or WORKING_FOLDER).expanduser().resolve()
        print(f"Working folder: {folder}", flush=True)
        print(update_notebooks(source, folder).text())
    command = jupyterlab_command(folder, browser=not args.no_browser, port=args.port, extra=args.jupyterlab_args)
    if "--allow-root" in command:
        print("You are root: JupyterLab is started with --allow-root.")
    print("Starting JupyterLab; end it with Ctrl-C.", flush=True)
    server = subprocess.Popen(command, env=jupyter_environment())
    with _passing_on_signals(server):
        code = server.wait()
    return 128 - code if code < 0 else code  # ended by a signal: the shell's convention


# ---- doctor ----


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _doctor(args: argparse.Namespace) -> int:
    if args.scripts:
        return _doctor_of_scripts(args)
    from .doctor import CHECKS, PAGE, check_hosts, examine, report_json

    page = {name: CHECKS[name] for name in PAGE}
    hosts = {"hosts": lambda: check_hosts(args.hosts, args.interface)}
    findings = []
    for finding in examine(hosts) if args.hosts else examine(page) if args.page else examine():
        findings.append(finding)
        if not args.json:
            print(finding.text(), flush=True)
    problems, warnings = (sum(f.status == status for f in findings) for status in ("problem", "warning"))
    usable, broken = "This machine can run the lessons", "The lessons will not run until the problems are fixed"
    if args.hosts:
        usable, broken = "These hosts can run scripts together", "They cannot until the problems are fixed"
    if args.json:
        print(report_json(findings))
    else:
        print(f"\n{broken if problems else usable}: {_count(problems, 'problem')}, {_count(warnings, 'warning')}.")
    return 1 if problems else 0


# ---- the command ----


def _doctor_of_scripts(args: argparse.Namespace) -> int:
    from .script_doctor import hiding, script_needs, scripts_in

    needs, faults, files = {}, {}, scripts_in(args.scripts)
    hidden = hiding(files)
    for file in files:
        try:
            needs[file] = script_needs(file)
        except ParallelLabError as error:  # one line of the report: the others are looked at all the same
            faults[file] = str(error)
    count = sum(map(len, needs.values()))
    if args.json:
        listed = {file: [asdict(need) for need in found] for file, found in needs.items()}
        listed |= {file: {"error": fault} for file, fault in faults.items()}
        print(json.dumps(listed | ({"hiding": hidden} if hidden else {}), indent=2))
    else:
        for line in (need.text(file) for file, found in needs.items() for need in found):
            print(line)
        for line in hidden:
            print(line)
        for fault in faults.values():
            print(f"parallel-lab: {fault}", file=sys.stderr)
        missing = f"{_count(count, 'name')} of MindSpore's missing here." if count else "Nothing is missing here."
        unread = f"{_count(len(faults), 'file')} could not be read."
        print(" ".join([*([missing] if needs or not faults else []), *([unread] if faults else [])]))
    return 2 if faults else 1 if count or hidden else 0


class _ShowVersion(argparse.Action):
    """Looks the version up only when it is asked for: the doctor must run where that fails."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"parallel-lab {version()}")
        parser.exit()


_FOLDER = f"work on copies in this folder (default: a checkout's own notebooks, else ./{WORKING_FOLDER})"
_PORT = "port of the server (default: JupyterLab's, 8888 or the next free)"
_OPTIONS = (
    option("--version", action=_ShowVersion, nargs=0, help="print the version and exit"),
    option("--folder", help=_FOLDER),
    option("--no-browser", action="store_true", help="start the server without opening a browser"),
    option("--port", type=whole_number(1, 65535), help=_PORT),
)


def _parser() -> argparse.ArgumentParser:
    from . import (
        bench_command,
        class_commands,
        grade_command,
        plan_command,
        quickstart_command,
        run_command,
        site_command,
    )

    parser = argparse.ArgumentParser(
        prog="parallel-lab",
        # argparse takes a subcommand for required
        usage="%(prog)s [-h] [--version] [--folder FOLDER] [--no-browser] [--port PORT] [SUBCOMMAND ...]",
        description="See and try distributed training of neural networks. Without a subcommand: opens the notebooks "
        "in JupyterLab.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, _OPTIONS)
    parser.set_defaults(run=_open_notebooks)
    subparsers = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND", help="one of:", prog="parallel-lab")
    subcommand(
        subparsers,
        "doctor",
        _doctor,
        (
            option(
                "scripts",
                nargs="*",
                metavar="SCRIPT",
                help="list what MindSpore scripts, or all in a folder, use and is missing",
            ),
            option(
                "--hosts", metavar="FILE", help="check the hosts of an mpirun host file (NAME slots=RANKS per line)"
            ),
            option("--interface", default="", metavar="NAME", help="the network that joins them: eth0 or 10.0.0.0/24"),
            option("--page", action="store_true", help="only what concerns a page in a browser, where this runs, too"),
            option("--json", action="store_true", help="print one JSON object instead of lines"),
        ),
        help="check this machine, or what MindSpore scripts need",
        description="Checks what the lessons need, and says how to fix what is missing; or lists what MindSpore "
        "scripts use and this package lacks, with lines. Exit code 0: usable; 1: a problem was found.",
        epilog="examples:\n  parallel-lab doctor\n  parallel-lab doctor train.py\n"
        "  parallel-lab doctor --hosts hosts.txt --interface eth0\n"
        "  parallel-lab doctor --json > doctor.json\n",
    )
    shown = (quickstart_command, plan_command, bench_command, run_command, site_command, grade_command, class_commands)
    for part in shown:
        part.add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. argparse ends wrong arguments, --help and --version by SystemExit."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # a closed one (>&-) must not become a file of ours
        if number:
            stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open
            setattr(sys, ("", "stdout", "stderr")[number], stream)
    os.close(number)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # no message is lost for a character that the terminal does not have
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except ParallelLabError as error:
        print(f"parallel-lab: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        if error.filename is None:
            raise
        print(f"parallel-lab: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("parallel-lab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has gone (`parallel-lab doctor | head -1`): nothing more can be shown
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # of our own output: a full disk
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            raise
        print(f"parallel-lab: the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2


def _run(arguments: list[str]) -> int:
    of_a_script = arguments[:1] in (["run"], ["msrun"])  # there -- is the script's business
    end = arguments.index("--") if "--" in arguments and not of_a_script else len(arguments)
    parser = _parser()
    args, unknown = parser.parse_known_args(arguments[:end])
    if unknown:  # the subcommand's own usage is the one that helps
        getattr(args, "parser", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    args.jupyterlab_args = arguments[end + 1 :]
    if args.jupyterlab_args and args.run is not _open_notebooks:
        parser.error("arguments after -- go to JupyterLab, which this subcommand does not start")
    return args.run(args)
