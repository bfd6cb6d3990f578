"""Communication functions: who may call them when, what they refuse, and what they know of ranks and groups."""

from __future__ import annotations

import json
import os
import types

import numpy as np
import pytest

from parallel_lab import communication
from parallel_lab.base import hooks, seeds
from parallel_lab.base.errors import ParallelLabError, WorldError
from parallel_lab.base.events import EventLog
from parallel_lab.mindspore._communication import (
    GlobalComm,
    create_group,
    destroy_group,
    get_group_rank_from_world_rank,
    get_group_size,
    get_local_rank,
    get_local_rank_size,
    get_process_group_ranks,
    get_rank,
    get_world_rank_from_group_rank,
    init,
    release,
)
from parallel_lab.processes.world import world as world_module
from parallel_lab.processes.world.world import World, merge_events
from parallel_lab.run.calls import MessageRecord
from parallel_lab.run.communicator import answer
from tests.crossed import each_of
from tests.processes.launched import lines_of, run_ranks

LAUNCHERS = ("PARALLEL_LAB_WORLD", "RANK_TABLE_FILE", "RANK_ID", "MS_ROLE", "OMPI_COMM_WORLD_SIZE")
LAUNCHERS += ("PMI_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


class Alone:
    """A communicator of one rank that answers only what needs no other: names and numbers are tested with it."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.recording, self.records = False, []


@pytest.fixture
def rank_5_of_8():
    closed = []
    told = {"library": "nccl", "on_close": lambda: closed.append(True)}
    world = World(Alone(5, 8), backend="shared_memory", launcher="test", **told)
    world.closed_calls = closed
    hooks.set_world(world)
    yield world
    world.close()


# ---- before init ----


@each_of(
    "call",
    get_rank,
    get_group_size,
    get_local_rank,
    get_local_rank_size,
    get_process_group_ranks,
    release,
    lambda: create_group("g", [0, 1]),
    lambda: destroy_group("g"),
    lambda: get_world_rank_from_group_rank("g", 0),
    lambda: get_group_rank_from_world_rank(0, "g"),
)
def test_every_function_asks_for_init_first(call):
    # MindSpore: RuntimeError "Distributed Communication has not been inited ... Please call `init()` method first."
    with pytest.raises(RuntimeError, match=r"not initialised.*Call init\(\) first.*parallel-lab run") as caught:
        call()
    assert isinstance(caught.value, WorldError)


def test_init_in_a_process_that_was_started_alone_passes_if_it_should_not_check(monkeypatch):
    """MindSpore's scripts that only compile say so before they call init."""
    monkeypatch.setattr(GlobalComm, "CHECK_ENVS", False)
    init("hccl")
    assert hooks.current_world() is None and not GlobalComm.INITED


def test_init_in_a_process_that_was_started_alone_names_the_ways():
    ways = r"started alone.*parallel-lab run.*mpirun.*RANK_TABLE_FILE.*MS_WORKER_NUM.*%%ranks"
    with pytest.raises(RuntimeError, match=ways):
        init()
    assert hooks.current_world() is None and not GlobalComm.INITED


@pytest.mark.parametrize(("half", "other"), [("RANK_TABLE_FILE", "RANK_ID"), ("RANK_ID", "RANK_TABLE_FILE")])
def test_half_a_rank_table_environment_is_named(monkeypatch, half, other):
    monkeypatch.setenv(half, "0")
    with pytest.raises(RuntimeError, match=f"{half} is set, but {other} is not"):
        init()


@pytest.mark.parametrize("name", [1, True, b"nccl", ["hccl"], object()])
def test_a_backend_that_is_not_a_string_is_a_type_error(name):
    with pytest.raises(TypeError, match=r"backend_name=.*'hccl', 'nccl', 'mccl', 'mpi'") as caught:
        init(name)
    assert isinstance(caught.value, ParallelLabError)


@pytest.mark.parametrize("name", ["", "HCCL", "gloo", "nccl "])
def test_an_unknown_backend_is_a_value_error_and_a_runtime_error(name):
    with pytest.raises(ValueError, match="'hccl', 'nccl', 'mccl', 'mpi'") as caught:
        init(name)
    assert isinstance(caught.value, RuntimeError)


def test_an_environment_no_launcher_wrote_is_refused(monkeypatch):
    monkeypatch.setenv("PARALLEL_LAB_WORLD", '{"rank": 0}')
    with pytest.raises(RuntimeError, match="not what a launcher writes"):
        init()


# ---- names and numbers ----


def test_ranks_and_sizes(rank_5_of_8):
    assert (get_rank(), get_group_size(), get_local_rank(), get_local_rank_size()) == (5, 8, 5, 8)
    assert get_rank("hccl_world_group") == get_rank("nccl_world_group") == get_rank("mccl_world_group") == 5
    assert get_process_group_ranks() == list(range(8))
    assert (GlobalComm.BACKEND, GlobalComm.WORLD_COMM_GROUP, GlobalComm.INITED) == ("nccl", "nccl_world_group", True)
    assert communication.HCCL_WORLD_COMM_GROUP == "hccl_world_group"
    assert communication.NCCL_WORLD_COMM_GROUP == "nccl_world_group"
    init("hccl")  # a second one does nothing
    assert hooks.current_world() is rank_5_of_8


def test_a_group_numbers_its_members_in_ascending_order(rank_5_of_8):
    create_group("odd", [1, 3, 5, 7])
    assert (get_rank("odd"), get_group_size("odd"), get_local_rank("odd"), get_local_rank_size("odd")) == (2, 4, 2, 4)
    assert [get_world_rank_from_group_rank("odd", i) for i in range(4)] == [1, 3, 5, 7]
    assert get_group_rank_from_world_rank(7, "odd") == 3
    assert rank_5_of_8.group("odd") == (1, 3, 5, 7) and rank_5_of_8.group() == tuple(range(8))
    create_group("odd", [1, 3, 5, 7])  # the same again
    destroy_group("odd")
    with pytest.raises(ValueError, match="no group 'odd'"):
        get_rank("odd")


def test_a_rank_outside_a_group_has_no_number_in_it(rank_5_of_8):
    create_group("even", [0, 2])
    assert get_group_size("even") == 2
    with pytest.raises(ValueError, match=r"rank 5 is not in group 'even', whose ranks are \[0, 2\]"):
        get_rank("even")


@pytest.mark.quick(8)
@each_of(
    ("call", "kind", "words"),
    (lambda: create_group(7, [0]), TypeError, "group=7"),
    (lambda: create_group("", [0]), ValueError, "0 characters"),
    (lambda: create_group("g" * 128, [0]), ValueError, "128 characters.*1 to 127"),
    (lambda: create_group("g", (0, 1)), TypeError, r"rank_ids=\(0, 1\).*list"),
    (lambda: create_group("g", "01"), TypeError, "list"),
    (lambda: create_group("g", [0, "1"]), TypeError, "'1'"),
    (lambda: create_group("g", [0, True]), TypeError, "True"),
    (lambda: create_group("g", [0, 1.0]), TypeError, "1.0"),
    (lambda: create_group("g", []), ValueError, "At least one"),
    (lambda: create_group("g", [0, 8]), ValueError, "0 to 7"),
    (lambda: create_group("g", [-1, 0]), ValueError, "0 to 7"),
    (lambda: create_group("g", [0, 0]), ValueError, r"twice.*\[0\]"),
    (lambda: create_group("g", [3, 1]), ValueError, r"ascending.*\[1, 3\]"),
    (lambda: create_group("g", [0], options={}), ValueError, "options"),
    (lambda: create_group("hccl_world_group", [0]), ValueError, "already exists"),
    (lambda: destroy_group("hccl_world_group"), ValueError, "all ranks"),
    (lambda: destroy_group("x"), ValueError, "no group 'x'"),
    (lambda: destroy_group(None), TypeError, "group=None"),
    (lambda: get_rank(3), TypeError, "group=3"),
    (lambda: get_rank("x"), ValueError, "no group 'x'"),
    (lambda: get_group_size(b"x"), TypeError, "b'x'"),
    (lambda: get_world_rank_from_group_rank("nccl_world_group", 8), ValueError, "0 to 7"),
    (lambda: get_world_rank_from_group_rank("nccl_world_group", -1), ValueError, "0 to 7"),
    (lambda: get_world_rank_from_group_rank("nccl_world_group", "0"), TypeError, "'0'"),
    (lambda: get_group_rank_from_world_rank(9, "nccl_world_group"), ValueError, "not in group"),
    (lambda: get_group_rank_from_world_rank(None, "nccl_world_group"), TypeError, "None"),
)
def test_what_does_not_describe_a_group_is_refused(rank_5_of_8, call, kind, words):
    with pytest.raises(kind, match=words) as caught:
        call()
    assert isinstance(caught.value, WorldError)
    assert sorted(rank_5_of_8.groups) == ["hccl_world_group", "mccl_world_group", "nccl_world_group"]


def test_release_leaves_once_and_names_are_gone(rank_5_of_8):
    release()
    rank_5_of_8.close()
    assert rank_5_of_8.closed_calls == [True]
    assert hooks.current_world() is None and GlobalComm.BACKEND == ""
    with pytest.raises(RuntimeError, match="not initialised"):
        get_rank()


def test_local_numbers_under_mpi_are_mpirun_s(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
    world = World(Alone(5, 8), backend="mpi", launcher="mpirun")
    assert (world.local_rank, world.local_size) == (1, 4)
    world.close()


# ---- meeting for the first time ----


def test_rank_0_decides_the_seed(monkeypatch):
    taken = {}

    class Recorded(Alone):
        def answer(self, request):
            if self.rank == 0:
                taken["value"] = request.value
            return taken["value"].copy()

    before = seeds.get_seed()
    try:
        for rank, own in ((0, 41), (1, 9)):
            seeds.set_seed(own)
            world = World(Recorded(rank, 2), backend="shared_memory", launcher="test")
            world.agree()
            world.close()
            assert seeds.get_seed() == 41
    finally:
        seeds.set_seed(before)


# ---- events ----


def test_the_last_rank_to_close_writes_the_events_of_all(tmp_path, monkeypatch):
    monkeypatch.setenv(world_module.EVENTS_VARIABLE, str(tmp_path / "run.json"))
    worlds = [World(Alone(rank, 2), backend="shared_memory", launcher="test") for rank in range(2)]
    for world in worlds:
        assert world.comm.recording
        world._events_key = "k"
        record = MessageRecord(0, "all_reduce", 1.0 + world.rank, 2.0 + world.rank, 80, (0, 1), "a.py:3", step=4)
        world.comm.records.append(record)
    worlds[1].close()
    assert not (tmp_path / "run.json").exists()
    worlds[0].close()
    whole = json.loads((tmp_path / "run.json").read_text())
    expected = [(0, "all_reduce", 80, [0, 1], 1.0), (1, "all_reduce", 80, [0, 1], 2.0)]
    assert [(e["rank"], e["op"], e["bytes"], e["group"], e["start_s"]) for e in whole["events"]] == expected
    assert [(e.rank, e.step) for e in EventLog.load(tmp_path / "run.json")] == [(0, 4), (1, 4)]
    assert os.listdir(tmp_path) == ["run.json"]


def test_merging_what_is_not_there_writes_nothing(tmp_path):
    merge_events(tmp_path / "nothing", tmp_path / "run.json")
    assert os.listdir(tmp_path) == []


# ---- for real ----


@pytest.mark.exhaustive
def test_groups_of_real_ranks_reduce_among_themselves(tmp_path):
    body = """
        from parallel_lab.run.communicator import Request
        init()
        rank = get_rank()
        create_group("low", [0, 1])
        create_group("high", [2, 3])
        name = "low" if rank < 2 else "high"
        world = hooks.current_world()
        total = world.comm.answer(Request("all_reduce", world.group(name), np.full(2, float(rank))))
        print(name, get_rank(name), total.tolist())
        if rank == 0:
            world.comm.send(np.arange(3), to=3)
        if rank == 3:
            print(world.comm.recv(0).tolist())
        release()
        try:
            init()
        except RuntimeError as error:
            print(str(error)[:36])
    """
    code, output = run_ranks(tmp_path, 4, body)
    assert code == 0, output
    sums = {"low": [0.0 + 1.0] * 2, "high": [2.0 + 3.0] * 2}
    for rank in range(4):
        name = "low" if rank < 2 else "high"
        received = ["[0, 1, 2]"] if rank == 3 else []
        expected = [f"{name} {rank % 2} {sums[name]}", *received, "init: this rank has left its world, "]
        assert lines_of(output, rank) == expected


@pytest.mark.exhaustive
def test_real_ranks_give_the_bits_of_the_reference_answer(tmp_path, rng):
    from parallel_lab.run.communicator import Request

    values = [rng.standard_normal((6, 4)).astype("f4") * 10.0**r for r in range(3)]
    np.savez(tmp_path / "values.npz", *values)
    body = """
        init()
        comm = hooks.current_world().comm
        mine = np.load("values.npz")[f"arr_{get_rank()}"]
        results = comm.all_reduce(mine), comm.reduce_scatter(mine, dim=0), comm.all_gather(mine, dim=1)
        np.savez(f"out{get_rank()}.npz", *results)
    """
    code, output = run_ranks(tmp_path, 3, body)
    assert code == 0, output
    group = (0, 1, 2)
    wanted = [
        answer([Request("all_reduce", group, v) for v in values]),
        answer([Request("reduce_scatter", group, v, dim=0) for v in values]),
        answer([Request("all_gather", group, v, dim=1) for v in values]),
    ]
    for rank in range(3):
        found = np.load(tmp_path / f"out{rank}.npz")
        for position, replies in enumerate(wanted):
            np.testing.assert_array_equal(found[f"arr_{position}"], replies[rank], strict=True)


def test_a_plain_namespace_is_enough_of_a_communicator_for_names():
    comm = types.SimpleNamespace(rank=0, world_size=2, recording=False, records=[])
    world = World(comm, backend="shared_memory", launcher="x")
    assert "rank 0 of 2" in repr(world)
    world.close()
    assert "closed" in repr(world)


@pytest.mark.quick(2)
@each_of(
    ("messages", "numbers", "updates", "size", "warns"),
    (0, 0, 3, 2, True),  # each rank has trained a model of its own, in silence
    (0, 2, 3, 2, True),  # but showed a mean of the losses
    (1, 0, 3, 2, False),
    (0, 0, 1, 2, False),  # what was exchanged before gradients, such as activations, is not known after one step
    (0, 0, 3, 1, False),
)
def test_a_training_that_adds_no_gradients_up_warns_at_the_end(capfd, messages, numbers, updates, size, warns):
    comm = Alone(0, size)
    comm.messages_made = 4  # before: initial weights
    world = World(comm, backend="shared_memory", launcher="test")
    for _ in range(2):
        world.note_gradients()
    for _ in range(numbers):
        world.note_sum(np.ones(1), (0, 1))
        comm.messages_made += 1
    comm.messages_made += messages
    world.updates = updates
    world.close()
    text = f"warning: {updates} updates, and no gradients were added up: each of the {size} ranks has trained"
    assert (text in capfd.readouterr().err) == warns
