"""`parallel-lab grade FOLDER`: points of a class, per student and part."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.files import check_writable
from ..base.progress import shown
from ..lab.grading.confine import Limits
from .options import option, seconds, subcommand, whole_number

if TYPE_CHECKING:
    from ..lab.grading.marks import Mark

USUAL = Limits()


def add_parser(subparsers: Any) -> None:
    """Adds the subcommand."""
    subcommand(
        subparsers,
        "grade",
        _run,
        (
            option(
                "folder",
                help="FOLDER/STUDENT/NOTEBOOK.ipynb, such as nbgrader's submitted/; or NOTEBOOK_STUDENT.ipynb; "
                "or, of lessons in a browser, STUDENT/checks.json",
            ),
            option("--out", default="marks.csv", metavar="FILE", help="the table (default: marks.csv)"),
            option("--json", metavar="FOLDER", help="also write each student's verdicts, for `parallel-lab wall`"),
            option("--release", metavar="FOLDER", help="the notebooks as handed out (default: the course's own)"),
            option("--exercises", metavar="FILE", help="a Python file with exercises of your own, EXERCISES"),
            option(
                "--own-numbers", action="store_true", help="each student has numbers of their own, where it matters"
            ),
            option("--seed", type=whole_number(0), help="of hidden inputs (default: another one each time)"),
            option("--jobs", type=whole_number(1, 64), default=os.cpu_count() or 1, help="submissions at a time"),
            option("--time", type=seconds, default=USUAL.time_s, metavar="S", help="seconds for one (default: 300)"),
            option(
                "--memory", type=whole_number(256), default=2048, metavar="MIB", help="memory of one (default: 2048)"
            ),
        ),
        help="grade a folder of notebooks",
        description="Runs each notebook, and what was run in a page, in fresh processes, within limits, and judges the "
        "answers from outside. An untouched exercise earns 0 points; where this machine is to blame there is no mark, "
        "and the exit code is 1.",
        epilog="examples:\n  parallel-lab grade submitted\n"
        "  parallel-lab grade submitted --out week2.csv --json checks\n",
    )


def _run(args: argparse.Namespace) -> int:
    from ..lab.grading import marks

    out = Path(args.out)
    if Path(args.folder).is_dir():
        check_writable(out)  # before an hour of grading, whose marks would be lost
        if args.json:
            Path(args.json).mkdir(parents=True, exist_ok=True)
    cell_s = min(USUAL.cell_s, args.time / 3)  # an endless loop leaves time for other exercises
    limits = Limits(time_s=args.time, cell_s=cell_s, memory_bytes=args.memory << 20)
    begun = False

    def add(more: Iterable[Mark]) -> None:
        nonlocal begun
        with out.open("a" if begun else "w", encoding="utf-8", newline="") as file:
            marks.write_rows(file, more, head=not begun)
        begun = True

    with shown("grading") as progress:
        table = marks.grade_folder(
            Path(args.folder),
            limits=limits,
            release=Path(args.release) if args.release else None,
            exercises=Path(args.exercises) if args.exercises else None,
            jobs=args.jobs,
            own_numbers=args.own_numbers,
            seed=args.seed,
            tell=progress.say,
            progress=progress,
            graded=add,
        )
    table.write_csv(out)  # in the order of names
    if args.json:
        table.write_json(Path(args.json))
    print(table.summary())
    for mark in table.errors[:20]:
        where = " ".join(filter(None, (mark.student, mark.notebook, mark.exercise, mark.part)))
        print(marks.printable(f"no mark: {where}: {mark.note}"))
    print(f"The table is in {args.out}.")
    return 1 if table.errors else 0
