"""A notebook or a launcher whose ranks are killed or stopped, or that is interrupted, at a random moment: told at once
in words, the next run works, nothing is left. 300 draws; the suite of faults tries some of them.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time

import numpy as np
import pytest

from parallel_lab.base.errors import CheckpointError
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import TensorRecord, load_distributed, save_distributed
from tests.crossed import first
from tests.processes.disturbed import ELEMENTS, SAID
from tests.processes.launched import LAB, ROOT, Started, script, started
from tests.processes.processes import descendants
from tests.processes.test_launch import LOOP

SEED = 20261127
DRAWS = 300
BOUND_S = 5.0  # of what is promised within 1 s: other work on the machine must not fail a test
# of collectives: of those that a stopped rank is to run into, of a launcher's, whose ranks start within it, too, and of
# others
STOP_LIMIT_S, STOP_RUN_LIMIT_S, LIMIT_S = 4.0, 12.0, 30.0
PLACES = {
    "kill": ("start", "sums", "train", "save", "run", "run start"),
    "stop": ("sums", "train", "save", "run"),
    "interrupt": ("start", "start", "sums", "train", "save", "run", "run start"),
}
FAULTS = ("kill", "kill", "kill", "stop", "interrupt", "interrupt")

pytestmark = pytest.mark.timeout(150)


def drawn(number: int) -> tuple[str, str, int, random.Random]:
    """(fault, place, ranks, a generator for the rest)."""
    draw = random.Random(SEED + number)
    fault = draw.choice(FAULTS)
    return fault, draw.choice(PLACES[fault]), draw.choice((2, 4, 8)), draw


def send(fault: str, run: Started, victims: list[int], draw: random.Random) -> tuple[float, int]:
    """(moment of the signal, the process that got it)."""
    if fault == "interrupt":
        pid, sent = run.process.pid, time.time()
        (os.killpg if draw.random() < 0.5 else os.kill)(pid, signal.SIGINT)
        return sent, pid
    pid, sent = draw.choice(victims), time.time()
    os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    return sent, pid


# ---- a notebook ----


def check_disturbed_notebook(folder, fault, place, ranks, draw, told_after) -> None:
    (folder / "temporary").mkdir()
    # files that an import was just reading are closed by the garbage collector: no reason to print a warning
    how = {"TMPDIR": str(folder / "temporary"), "PYTHONWARNINGS": ""}
    promised_s = STOP_LIMIT_S if fault == "stop" else 0.0
    words = ("tests.processes.disturbed", place, str(ranks), str(promised_s or LIMIT_S))
    with started(sys.executable, "-m", *words, cwd=folder, **how) as run:
        assert run.process.stdout.readline() == "imports\n"
        pids: list[int] = []
        if place != "start":
            while not (line := run.process.stdout.readline()).startswith("begun"):
                assert line and not line.startswith("told"), line
            pids = [int(word) for word in line.split()[1:]]
            time.sleep(draw.uniform(0, 0.1))
        else:
            time.sleep(draw.uniform(0, 1.5))
            while (
                fault == "kill" and not pids and run.process.poll() is None
            ):  # the fork server, or ranks as far as there are any
                pids = descendants(run.process.pid)
                time.sleep(0.005)
        sent, victim = send(fault, run, pids, draw)
        lines = []
        while not lines or lines[-1][:4] not in ("next", ""):  # what readline has read ahead, wait does not see
            lines.append(run.process.stdout.readline())
            if place == "start" and fault == "kill" and lines[-1].startswith("begun") and str(victim) not in lines[-1]:
                time.sleep(0.3)  # a fork server's ranks die with it, and it may have been killed once they had begun
                if {*map(int, lines[-1].split()[1:])} <= {*descendants(run.process.pid)}:
                    sent, _ = send("interrupt", run, [], draw)  # what was killed has been replaced
                    fault = "interrupt"
        code, rest = run.wait()
        assert run.gone_after(2.0) is not None
    output = [line for line in [*lines, *rest.splitlines(keepends=True)] if line]
    print(f"{fault} of {victim}, {place}, {ranks} ranks\n{''.join(output)}")
    told = next((line for line in output if line.startswith("told")), "")
    _, moment, name, is_ours, said = told.split(" ", 4)
    taken_s = float(moment) - sent
    others = [line for line in output if line.split(" ")[0].strip() not in SAID]
    assert len(others) <= 5 and code == 0
    assert output[-1] == "next right\n"
    if fault == "interrupt":
        assert name in ("Interrupted", "KeyboardInterrupt")  # the second of a start, and where `result` waited
    else:
        rank = pids.index(victim) if place != "start" else r"\d+"
        word = "killed by SIGKILL" if fault == "kill" else "stopped by a signal"
        assert is_ours == "True" and name == ("RankDied" if fault == "kill" else "CollectiveTimeout")
        assert re.search(rf"rank {rank} \(pid {victim}.*{word}", said) or place == "start"
    told_after(taken_s - promised_s, f"{fault}s")
    assert taken_s < promised_s + BOUND_S
    assert not os.listdir(folder / "temporary")
    if place == "save":
        check_saved(folder / "saved", ranks)


def check_saved(folder, ranks) -> None:
    """What is there is one whole save, and the next one clears up."""
    try:
        value = load_distributed(folder)["w"].array
        assert len(set(value.tolist())) == 1
    except CheckpointError as error:
        assert "no save was ever finished" in str(error)
    part = TensorRecord(np.ones(ELEMENTS), (ELEMENTS,), TensorLayout((1,), (-1,)), 0)
    save_distributed(folder, {"w": part}, rank=0, world_size=1, barrier=lambda: None)
    assert len(os.listdir(folder)) == 2


# ---- a launcher ----


def check_disturbed_launcher(folder, fault, place, ranks, draw, told_after) -> None:
    script(folder, LOOP)
    (folder / "temporary").mkdir()
    how = {"TMPDIR": str(folder / "temporary"), "PYTHONWARNINGS": ""}
    promised_s = STOP_RUN_LIMIT_S if fault == "stop" else 0.0
    command = (*LAB, "run", "-n", str(ranks), "--timeout", str(promised_s or LIMIT_S), "train.py")
    with started(*command, cwd=folder, **how) as run:
        if place == "run":
            run.wait_for(*(folder / f"ready.{rank}" for rank in range(ranks)))
            time.sleep(draw.uniform(0, 0.1))
        else:
            time.sleep(draw.uniform(0.4, 1.5))
        found = run.ranks()
        while fault == "kill" and not found:
            found = run.ranks()
        sent, victim = send(fault, run, sorted(found), draw)
        code, output = run.wait()
        taken_s = time.time() - sent
        assert run.gone_after(2.0) is not None, output
    print(f"{fault} of {found.get(victim, 'launcher')}, {place}, {ranks} ranks\n{output}")
    if fault == "interrupt":
        if "log_output" not in os.listdir(folder):  # Python itself was still starting, and none of ours had begun
            return
        assert code == 130 and len(output.splitlines()) <= 5
    elif fault == "kill":
        assert code == 128 + 9
        assert re.search(rf"rank {found[victim]} \(pid {victim}\) was killed by SIGKILL", output)
    else:
        assert code == 1 and re.search(rf"rank {found[victim]} \(pid {victim}, stopped by a signal", output)
    assert len(output.splitlines()) <= ranks + 5 and "Traceback" not in output
    told_after(taken_s - promised_s, "launchers")
    assert taken_s < promised_s + 2.0 + BOUND_S
    assert not os.listdir(folder / "temporary")
    script(folder, "init(); print(float(hooks.current_world().comm.all_reduce(np.ones(2))[0]))")
    with started(*LAB, "run", "-n", str(ranks), "train.py", cwd=folder) as run:
        code, output = run.wait()
    assert code == 0 and output.count(f"{float(ranks)}") == ranks, output


@pytest.mark.faults("random moments", cases=24)
@pytest.mark.parametrize("number", first(0, range(DRAWS)))  # `first`: the others are exhaustive
def test_a_disturbance_at_a_random_moment_is_reported_in_words(tmp_path, told_after, number):
    fault, place, ranks, draw = drawn(number)
    print(f"seed {SEED + number}, from {ROOT}")
    check = check_disturbed_launcher if place.startswith("run") else check_disturbed_notebook
    check(tmp_path, fault, place, ranks, draw, told_after)
