"""What a teacher needs (lab/classroom/): `parallel-lab course FOLDER`, the lessons as the source of an nbgrader course,
and `parallel-lab wall FOLDER`, what a class has handed in on one page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sized
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from ..base.files import write_whole
from .options import option, subcommand, whole_number


def add_parser(subparsers: Any) -> None:
    """Add both subcommands."""
    subcommand(
        subparsers,
        "course",
        _course,
        (
            option("folder", metavar="FOLDER", help="of the course; it may exist already"),
            option("--lesson", nargs="+", metavar="NN", default=None, help="only these lessons, by number: 02 04"),
            option(
                "--own-numbers", action="store_true", help="each student has numbers of their own, where it matters"
            ),
        ),
        help="write the lessons as the source of an nbgrader course",
        description="Writes nbgrader_config.py and, for each lesson with exercises, an assignment in FOLDER/source. "
        "Needs nbgrader to go on: pip install 'parallel-lab[classroom]'.",
        epilog="examples:\n  parallel-lab course autumn --lesson 02 03\n  cd autumn\n"
        "  nbgrader generate_assignment lesson_02 --create\n  nbgrader autograde lesson_02\n",
    )
    subcommand(
        subparsers,
        "wall",
        _wall,
        (
            option("folder", metavar="FOLDER", nargs="?", help="with the files that learners wrote: hand_in, lab.save"),
            option("--live", action="store_true", help="instead of a folder: a class that joins over the network, now"),
            option("--host", default="0.0.0.0", help="with --live: where to listen (default: every network)"),
            option("--port", type=whole_number(0, 65535), default=8123, help="with --live (default: %(default)s)"),
            option("--out", metavar="FILE", help="the page to write (default: wall.html; with --live none)"),
            option("--hide-names", action="store_true", help="learner 1, learner 2, ...: no name is in the page"),
            option("--csv", metavar="FILE", help="also write points and predictions as a table"),
            option("--text", action="store_true", help="print it instead of writing a page"),
            option("--reveal", action="store_true", help="with --text: say which predictions are right"),
        ),
        help="show what a class has handed in on one page",
        description="Gathers saved labs, predictions and results of checks from files into one page that needs no "
        "server and no network: plans by time and memory, predictions before they are revealed, misconceptions, how "
        "hard each exercise is.",
        epilog="examples:\n  parallel-lab wall collected --out wall.html\n  parallel-lab wall collected --text\n"
        "  parallel-lab wall --live --csv class.csv\n",
    )


def _course(args: argparse.Namespace) -> int:
    from ..lab.classroom.course import write_course

    for path in write_course(Path(args.folder), args.lesson, own_numbers=args.own_numbers):
        print(path)
    return 0


def _count(found: Sized, word: str) -> str:
    return f"{len(found)} {word}{'' if len(found) == 1 else 's'}"


def _wall(args: argparse.Namespace) -> int:
    from ..lab.classroom import class_csv, read_class, wall_page, wall_text

    if args.live == bool(args.folder):
        args.parser.error("name a FOLDER, or --live")
    roll = _live_class(args) if args.live else read_class(args.folder)
    if args.hide_names:
        roll = roll.nameless()
    if args.csv:
        write_whole(args.csv, class_csv(roll))
    if args.text:
        print(wall_text(roll, reveal=args.reveal))
        return 0
    for path, why in roll.refused:
        print(f"not read: {path}: {why}")
    learners, labs = _count(roll.learners, "learner"), _count(roll.layouts, "lab")
    out = args.out or ("" if args.live else "wall.html")
    print(f"{write_whole(out, wall_page(roll)) if out else 'the class is over'}: {learners}, {labs}")
    return 0


def _live_class(args: argparse.Namespace) -> Any:
    """What a class has said until the teacher presses Ctrl-C."""
    from ..lab.classroom.server import ClassServer, LiveClass

    live = LiveClass(hide_names=args.hide_names)
    with ClassServer(live, args.host, args.port) as server:
        print(f"learners:  from parallel_lab.lab.classroom import join\n           {server.joining}")
        print(f"your page: {server.page}\n           keep this address to yourself; Ctrl-C ends the class", flush=True)
        with suppress(KeyboardInterrupt):
            Event().wait()
    return live.roll()
