"""What a teacher needs (lab/classroom/): `parallel-lab course FOLDER`, the lessons as the source of an nbgrader course,
and `parallel-lab wall FOLDER`, what a class has handed in on one page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sized
from pathlib import Path
from typing import Any

from .options import option, subcommand


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
            option("folder", metavar="FOLDER", help="with the files that learners wrote with hand_in or lab.save"),
            option("--out", metavar="FILE", default="wall.html", help="the page to write (default: %(default)s)"),
            option("--hide-names", action="store_true", help="learner 1, learner 2, ...: no name is in the page"),
            option("--text", action="store_true", help="print it instead of writing a page"),
            option("--reveal", action="store_true", help="with --text: say which predictions are right"),
        ),
        help="show what a class has handed in on one page",
        description="Gathers saved labs, predictions and results of checks from files into one page that needs no "
        "server and no network: plans by time and memory, predictions before they are revealed, misconceptions.",
        epilog="examples:\n  parallel-lab wall collected --out wall.html\n  parallel-lab wall collected --text\n",
    )


def _course(args: argparse.Namespace) -> int:
    from ..lab.classroom.course import write_course

    for path in write_course(Path(args.folder), args.lesson, own_numbers=args.own_numbers):
        print(path)
    return 0


def _count(found: Sized, word: str) -> str:
    return f"{len(found)} {word}{'' if len(found) == 1 else 's'}"


def _wall(args: argparse.Namespace) -> int:
    from ..base.files import write_whole
    from ..lab.classroom.roll import read_class
    from ..lab.classroom.wall import wall_page

    roll = read_class(args.folder)
    if args.hide_names:
        roll = roll.nameless()
    if args.text:
        print(roll.to_text(reveal=args.reveal))
        return 0
    for path, why in roll.refused:
        print(f"not read: {path}: {why}")
    learners, labs = _count(roll.learners, "learner"), _count(roll.layouts, "lab")
    print(f"{write_whole(args.out, wall_page(roll))}: {learners}, {labs}")
    return 0
