"""Run the PyTorch and JAX texts of the lessons ("the same in ..."), each with its surroundings, in fresh processes.

pip install -e ".[oracle]" && python tests/recorded/run_lesson_programs.py          # all
python tests/recorded/run_lesson_programs.py 05 12 JAX                              # some lessons, or one target
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
LIMIT_S = 200
PASSED = "equal on rank"


def failure(lesson: str, target: str) -> str:
    """What a text's program printed, if it did not come to its end on every rank; else nothing."""
    from tests.recorded.lesson_programs import BEGIN, PROGRAMS, blocks

    ranks, before, after = PROGRAMS[lesson, target]
    number, starts = ("rank", ranks) if target == "PyTorch" else ("0", 1)
    # one write: torchrun's processes share the output
    end = f'print(f"{PASSED} {{{number}}}\\n", end="", flush=True)\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lesson.py"
        path.write_text("\n".join((BEGIN[target], before, blocks(lesson)[target], after, end)), encoding="utf-8")
        command = [sys.executable, path.name]
        if target == "PyTorch":
            command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        more = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=LIMIT_S
        )
    # not the exit code: PyTorch 2.13 at times aborts at its very end, after the last line
    passed = {line for line in done.stdout.splitlines() if line.startswith(PASSED)}
    return "" if len(passed) == starts else f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def main(wanted: list[str]) -> None:
    from tests.recorded.lesson_programs import PROGRAMS

    wrong = []
    for lesson, target in PROGRAMS:
        lessons, targets = [w for w in wanted if w.isdigit()], [w for w in wanted if not w.isdigit()]
        if lessons and lesson not in lessons or targets and target not in targets:
            continue
        told = failure(lesson, target)
        print(f"lesson {lesson}, {target}: {told or 'as undivided'}", flush=True)
        if told:
            wrong.append(f"{lesson} {target}")
    if wrong:
        raise SystemExit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main(sys.argv[1:])
