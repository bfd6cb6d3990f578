"""Rank tables: what they may say, and processes that a shell starts one by one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time

import pytest

from parallel_lab.base.errors import NotBuiltYet, WorldError
from parallel_lab.processes.world import hub
from parallel_lab.processes.world.hub import Hub, RendezvousSpec
from parallel_lab.processes.world.rank_table import read_rank_table
from parallel_lab.processes.world.rendezvous import join_rendezvous
from tests.crossed import each_of
from tests.processes.launched import script, started

pytestmark = pytest.mark.timeout(150)


def table(devices, **changes):
    """A rank table of one server; rank r has card devices[r]."""
    cards = [{"device_id": str(d), "device_ip": f"192.1.27.{d}", "rank_id": str(r)} for r, d in enumerate(devices)]
    whole = {"version": "1.0", "server_count": "1", "status": "completed"}
    return {**whole, "server_list": [{"server_id": "10.0.0.1", "device": cards, "host_nic_ip": "reserve"}], **changes}


def write(folder, content, name="hccl.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


# ---- tables ----


@each_of(
    "devices", (0,), (5,), (0, 1), (3, 2), (4, 7), (0, 1, 2, 3), (7, 6, 5, 4), tuple(range(8)), (1, 0, 3, 2, 5, 4, 7, 6)
)
def test_tables_the_real_machine_takes_are_taken(tmp_path, devices):
    assert read_rank_table(write(tmp_path, table(devices))).devices == devices


def test_layout_of_the_text_does_not_matter_but_content_does(tmp_path):
    plain = read_rank_table(write(tmp_path, table((0, 1))))
    pretty = read_rank_table(write(tmp_path, json.dumps(table((0, 1)), indent=4, sort_keys=True), "other.json"))
    assert plain == pretty
    assert plain.key != read_rank_table(write(tmp_path, table((1, 0)))).key


@pytest.mark.parametrize(
    ("devices", "words"),
    [((0, 4), "straddle"), ((3, 4), "straddle"), ((0, 1, 2, 4), r"\[0, 1, 2, 4\], straddle.*Cards 0 to 3")],
)
def test_cards_on_both_sides_of_a_server_are_refused(tmp_path, devices, words):
    with pytest.raises(ValueError, match=words):
        read_rank_table(write(tmp_path, table(devices)))


@pytest.mark.parametrize("devices", [(0, 1, 2), tuple(range(5)), tuple(range(6)), tuple(range(7))])
def test_other_counts_than_1_2_4_8_are_refused(tmp_path, devices):
    with pytest.raises(ValueError, match="1, 2, 4 or 8"):
        read_rank_table(write(tmp_path, table(devices)))


def server(position, count):
    cards = [{"device_id": str(d), "device_ip": "1.2.3.4", "rank_id": str(8 * position + d)} for d in range(count)]
    return {"server_id": f"10.0.0.{position}", "device": cards, "host_nic_ip": "reserve"}


def test_several_servers_are_refused_with_what_to_do_instead(tmp_path):
    with pytest.raises(NotBuiltYet, match=r"2 servers.*one machine.*mpirun"):
        read_rank_table(write(tmp_path, table((), server_count="2", server_list=[server(0, 8), server(1, 8)])))


def card(**changes):
    cards = [
        {"device_id": "0", "device_ip": "1.1.1.1", "rank_id": "0"},
        {"device_id": "1", "device_ip": "1.1.1.2", "rank_id": "1"},
    ]
    for name, value in changes.items():
        if value is None:
            del cards[1][name]
        else:
            cards[1][name] = value
    return table((), server_list=[{"server_id": "10.0.0.1", "device": cards}])


@each_of(
    ("content", "words"),
    ("{", "invalid JSON"),
    ("[" * 100_000, "nested deeper"),
    ("[1]", "stands where an object belongs"),
    (table((0, 1), server_list="x"), "server_list='x'.*a list"),
    (table((0, 1), version="0.9"), "version '0.9'.*1.0"),
    (table((0, 1), version=1.0), "version=1.0.*string"),
    (table((0, 1), status="initializing"), "completed"),
    (table((0, 1), server_count="2"), "server_count '2', and server_list has 1"),
    (table((0, 1), server_count="one"), "number in quotes"),
    (table((), server_count="0", server_list=[]), "server_count"),
    (table(()), "At least one card"),
    (table((), server_list=[{"device": []}]), "server 0: the field 'server_id' is missing"),
    (card(rank_id=None), "'rank_id' is missing"),
    (card(device_id=None), "'device_id' is missing"),
    (card(rank_id=1), "rank_id=1.*a string"),
    (card(rank_id="-1"), "number in quotes"),
    (card(rank_id="2"), r"rank ids \[0, 2\].*0 to 1"),
    (card(rank_id="0"), r"rank ids \[0, 0\]"),
    (card(device_id="0"), "device_id 0 of server 0 is given to two ranks"),
    (card(device_id="8"), "device_id 8.*0 to 7"),
    (table((), server_count="2", server_list=[server(0, 8), server(1, 4)]), r"\[8, 4\] cards.*8 cards each"),
    ({k: v for k, v in table((0, 1)).items() if k != "status"}, "'status' is missing.*Found: version"),
)
def test_a_table_that_breaks_a_rule_is_refused_with_the_reason(tmp_path, content, words):
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=words) as caught:
        read_rank_table(path)
    assert isinstance(caught.value, WorldError) and str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RuntimeError, match=r"nowhere\.json: cannot be read: No such file"):
        read_rank_table(tmp_path / "nowhere.json")


# ---- processes that meet ----


@contextlib.contextmanager
def ranks_by_hand(folder, numbers, **common):
    """One process per number in `numbers`, started as a shell would."""
    with contextlib.ExitStack() as stack:
        runs = {}
        for rank in numbers:
            own = {"RANK_TABLE_FILE": str(folder / "hccl.json"), "RANK_ID": str(rank), "DEVICE_ID": str(rank), **common}
            runs[rank] = stack.enter_context(started(sys.executable, "train.py", cwd=folder, **own))
        yield runs


@pytest.mark.portable
@pytest.mark.exhaustive
def test_two_processes_meet_and_a_second_run_follows_the_first(tmp_path):
    write(tmp_path, table((0, 1)))
    total = "hooks.current_world().comm.all_reduce(np.arange(2.0)).tolist()"
    script(tmp_path, f"init()\nprint(get_rank(), {total}, hooks.current_world().launcher)")
    for _ in range(2):
        with ranks_by_hand(tmp_path, (1, 0), RANK_SIZE="2") as runs:
            found = {rank: run.wait() for rank, run in runs.items()}
        assert found == {rank: (0, f"{rank} [0.0, 2.0] a rank table\n") for rank in (0, 1)}


@pytest.mark.exhaustive
def test_a_table_of_one_rank_needs_nobody(tmp_path):
    write(tmp_path, table((0,)))
    script(tmp_path, "init()\nprint(hooks.current_world().comm.all_reduce(np.ones(2)).tolist())")
    with ranks_by_hand(tmp_path, (0,)) as runs:
        assert runs[0].wait() == (0, "[1.0, 1.0]\n")


@pytest.mark.exhaustive
@pytest.mark.portable
@pytest.mark.parametrize(("present", "missing"), [(0, 1), pytest.param(1, 0, marks=pytest.mark.exhaustive)])
def test_a_rank_that_does_not_come_is_named_in_time(tmp_path, present, missing):
    write(tmp_path, table((0, 1)))
    script(tmp_path, "init()")
    with ranks_by_hand(tmp_path, (present,), HCCL_CONNECT_TIMEOUT="1.5") as runs:
        code, output = runs[present].wait()
    late = f"rank {missing} did not come within 1.5 s (HCCL_CONNECT_TIMEOUT) to meet by rank table hccl.json"
    assert code == 1 and f"WorldTimeout: init: {late}" in output


@each_of(
    ("variables", "words"),
    ({"RANK_ID": "2"}, "RANK_ID=2 is not in the table.*0 to 1"),
    ({"RANK_ID": "x"}, "RANK_ID='x'.*whole number"),
    ({"RANK_SIZE": "8"}, "RANK_SIZE=8, and the table has 2 ranks"),
    ({"DEVICE_ID": "1"}, "DEVICE_ID=1, and the table gives rank 0 the card 0"),
    ({"HCCL_CONNECT_TIMEOUT": "soon"}, "HCCL_CONNECT_TIMEOUT='soon'"),
)
def test_an_environment_that_contradicts_the_table_is_refused(tmp_path, monkeypatch, variables, words):
    from parallel_lab.processes.world.rank_table import meet_by_table

    path = write(tmp_path, table((0, 1)))
    given = {"RANK_TABLE_FILE": str(path), "RANK_ID": "0", "DEVICE_ID": "", "RANK_SIZE": "", **variables}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=words):
        meet_by_table("hccl")


BUSY = """
    init()
    comm = hooks.current_world().comm
    comm.barrier()
    open(f"ready.{get_rank()}", "w").close()
    if get_rank() == 2:
        time.sleep(1000)  # asks for nothing any more
    while True:
        comm.barrier(group=(0, 1, 3))
"""


@pytest.mark.portable
@pytest.mark.exhaustive
@pytest.mark.faults("ends of notebooks, launchers")
@pytest.mark.parametrize("victim", [1, pytest.param(0, marks=pytest.mark.exhaustive)])
def test_a_killed_rank_ends_all_the_others(tmp_path, victim):
    write(tmp_path, table((0, 1, 2, 3)))
    script(tmp_path, BUSY)
    with ranks_by_hand(tmp_path, range(4)) as runs:
        for rank, run in runs.items():
            run.wait_for(tmp_path / f"ready.{rank}")
        start = time.monotonic()
        os.kill(runs[victim].process.pid, signal.SIGKILL)
        found = {rank: run.wait() for rank, run in runs.items() if rank != victim}
        taken_s = time.monotonic() - start
    print(f"all over after {taken_s:.1f} s")
    for rank in {0, 1, 3} - {victim}:
        text = rf"RankDied: rank {victim} \(pid {runs[victim].process.pid}\) ended without"
        assert found[rank][0] == 1 and re.search(text, found[rank][1])
    assert found[2][0] == 1 and "parallel-lab: rank 2 is ended: rank" in found[2][1]
    assert taken_s < 20


@pytest.mark.portable
@pytest.mark.exhaustive
def test_a_second_process_with_the_same_rank_is_turned_away(tmp_path):
    write(tmp_path, table((0, 1, 2, 3)))
    script(tmp_path, "init()\nprint(get_rank())")
    with ranks_by_hand(tmp_path, (0, 1)) as runs, ranks_by_hand(tmp_path, (1,)) as second:
        end = time.monotonic() + 30
        ended = None
        while ended is None and time.monotonic() < end:
            ended = next((run for run in (runs[1], second[1]) if run.process.poll() is not None), None)
            time.sleep(0.02)
        assert ended is not None
        code, output = ended.wait()
        assert code == 1 and "rank 1 is taken" in output
        with ranks_by_hand(tmp_path, (2, 3)) as others:
            left = [run for run in (runs[1], second[1]) if run is not ended]
            assert [run.wait() for run in (runs[0], *left, *others.values())] == [(0, f"{rank}\n") for rank in range(4)]


@pytest.mark.parametrize("uid", [None, 12345])
def test_both_sides_say_whose_the_socket_is(monkeypatch, uid):
    """Rank 0 said "another run is under way, wait for it" of another user's socket; rank 1 said whose it is."""
    name = f"parallel_lab-{os.getpid()}-{uid}"
    plan = RendezvousSpec(name, "rank table x.json", "rank 0", 2, "a rank table", 5.0, "HCCL_CONNECT_TIMEOUT")
    monkeypatch.setattr(hub, "BUSY_S", 0.0)
    if uid:
        monkeypatch.setattr(hub, "peer_identity", lambda end: (7, uid))
    said = (
        "belongs to another user: process 7 of user 12345.*MS_SCHED_PORT" if uid else "another run of rank table x.json"
    )
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(hub.socket_address(name))
        theirs.listen()
        with pytest.raises(WorldError, match=said):
            Hub(plan, 0)
        if uid:
            with pytest.raises(WorldError, match=said):
                join_rendezvous(plan, 1, "x")


SHELL = """#!/bin/bash
# one folder and one log per card; card 0 in the foreground, its exit code counts
export RANK_SIZE=$1
export RANK_TABLE_FILE=$(pwd)/rank_table_${RANK_SIZE}pcs.json
start() {
    rm -rf device$1 && mkdir device$1 && cp ./test_training.py device$1/ && cd device$1
    export DEVICE_ID=$1 RANK_ID=$1
    env > env$1.log
    if [ $1 -eq 0 ]; then $PYTEST -s -v ./test_training.py > train.log$1 2>&1
    else $PYTEST -s -v ./test_training.py > train.log$1 2>&1 & fi
    code=$?
    cd ..
}
for ((i = 1; i < RANK_SIZE; i++)); do start $i; done
start 0
if [ $code -eq 0 ]; then echo "training success"; else echo "training failed"; wait; exit 2; fi
wait
"""

TEST_FILE = """
import os
import numpy as np
from parallel_lab.base import hooks, seeds
from parallel_lab.train.communication import init, get_rank, get_group_size

def test_train():
    init()
    total = hooks.current_world().comm.all_reduce(np.ones(3) * int(os.environ["DEVICE_ID"]))
    print(f"epoch: 1 step: 156, loss is {total[0]} ({get_rank()} of {get_group_size()})")
    assert get_rank() != FAILING
    hooks.current_world().comm.barrier()
"""


@pytest.mark.exhaustive
@each_of("failing", -1, pytest.param(1, marks=pytest.mark.exhaustive), ids=["success", "rank 1 fails"])
def test_a_shell_script_with_pytest_as_its_entry_point(tmp_path, failing):
    write(tmp_path, table((0, 1)), "rank_table_2pcs.json")
    (tmp_path / "test_training.py").write_text(TEST_FILE.replace("FAILING", str(failing)))
    (tmp_path / "run.sh").write_text(SHELL)
    pytest_command = f"{sys.executable} -m pytest -p no:cacheprovider -c {os.devnull} --rootdir {tmp_path}"
    with started("bash", "run.sh", "2", cwd=tmp_path, PYTEST=pytest_command) as run:
        code, output = run.wait()
        assert run.gone_after(5.0) is not None
    logs = [(tmp_path / f"device{k}/train.log{k}").read_text() for k in range(2)]
    assert (code, output.strip()) == ((0, "training success") if failing < 0 else (2, "training failed")), logs
    for rank, log in enumerate(logs):
        assert f"epoch: 1 step: 156, loss is 1.0 ({rank} of 2)" in log
    if failing < 0:
        assert all("1 passed" in log for log in logs)
    else:
        assert "1 failed" in logs[1] and "RankRaised: rank 1 raised AssertionError" in logs[0]
