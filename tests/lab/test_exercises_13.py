"""The ladder of broken scripts: each fails as its text says, its repair passes, what deletes the parallelism does not.

What one device computes stands in the grader, with numpy alone; the right answers here are repairs of single lines.
"""

from __future__ import annotations

import os
import sys
import threading

import nbformat
import numpy as np
import pytest

from parallel_lab.base import hooks, seeds
from parallel_lab.base.files import shipped_folder
from parallel_lab.base.settings.current import get_auto_parallel_context
from parallel_lab.lab.exercises import get_exercise
from parallel_lab.lab.exercises.broken_scripts import SCRIPTS
from parallel_lab.lab.exercises.lesson_13 import LADDER, written
from parallel_lab.lab.exercises.played_ranks import on_ranks
from parallel_lab.lab.exercises.running import run_programs
from tests.crossed import each_of
from tests.lab.verdicts import check, failed, passes, words_of
from tests.notebooks.answers import ANSWERS, REPAIRS

each_script = pytest.mark.parametrize("number", SCRIPTS)


def edited(number: str, *changes: tuple[str, str]):
    """The repaired script with further changes."""
    source = ANSWERS[number]
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return written(source)


@pytest.mark.quick(6)
@each_script
@pytest.mark.filterwarnings("ignore:before step 1", "ignore:copies of ranks")
def test_a_script_fails_as_its_text_says(number):
    verdict, says = check(number, written(SCRIPTS[number].start)), SCRIPTS[number].says
    parts = {part.name: part for part in verdict.parts}
    if says:
        assert says in parts["runs"].found and parts["in parallel"].passed is None
    else:
        assert parts["runs"].passed and parts["one device"].passed is False and parts["one device"].note


@pytest.mark.quick(6)
@each_script
def test_the_repaired_script_passes(number):
    assert REPAIRS[number][0] in SCRIPTS[number].start
    assert passes(check(number, written(ANSWERS[number])), 3)


SHARDED = ", num_shards=get_group_size(), shard_id=get_rank()"
STRATEGY = "((2, 1), (2, 1))"


@pytest.mark.quick(2)
@each_of(
    ("number", "changes"),
    # without the mean of gradients, a rate that is a quarter: SGD cannot tell the difference
    ("13.6", [("gradients_mean=True", "gradients_mean=False"), ("0.1))", "0.1 / 4))")]),
    ("13.7", [(SHARDED, ""), ("zip(x, y,", "zip(x[get_rank() :: 4], y[get_rank() :: 4],")]),
    ("13.7", [(SHARDED, ""), ("zip(x, y,", "zip(*(a[4 * get_rank() :][:4] for a in (x, y)),")]),
    ("13.2", [(STRATEGY, "((1, 1), (2, 1))")]),
    ("13.2", [(STRATEGY, "((1, 1), (4, 1))")]),
    ("13.2", [(STRATEGY, "((1, 4), (1, 4))")]),
    ("13.2", [(STRATEGY, "((1, 2), (2, 2))")]),
    ("13.2", [(STRATEGY, "((2, 2), (1, 2))")]),
    ("13.8", [("    ms.set_seed(100)\n", "")]),
    ("13.9", [('"data_parallel"', "((4, 1), (4, 1))")]),
)
def test_there_is_more_than_one_repair(number, changes):
    assert passes(check(number, edited(number, *changes)), 3)


@pytest.mark.quick(3)
@each_of(
    ("number", "changes"),
    ("13.3", [("pipeline_stages=2", "pipeline_stages=1"), ("= 0, 1\n", "= 0, 0\n")]),
    (
        "13.5",
        [
            (
                "ms.ops.AllGather()(mine).asnumpy().T",
                "x @ ms.numpy.concatenate([ms.Tensor(f['weight']) for f in files]).asnumpy().T",
            )
        ],
    ),
    ("13.1", [("ms.ops.AllReduce()(ms.Tensor(x))", "ms.Tensor(x)")]),
    ("13.4", [("ms.ops.AllReduce()(ms.Tensor(loss)) / get_group_size()", "ms.Tensor(loss)")]),
    ("13.6", [("data_parallel", "stand_alone")]),
    ("13.8", [("data_parallel", "stand_alone")]),
    ("13.10", [("optimizer=True", "optimizer=False")]),
)
def test_a_script_whose_parallelism_was_deleted_is_not_repaired(number, changes):
    part = failed(check(number, edited(number, *changes)))["in parallel"]
    assert part.found.startswith("0 bytes") and LADDER[number].alone in part.note


@pytest.mark.quick(1)
@each_of(
    ("number", "changes", "words"),
    # all ranks read all rows at once: the weights would be right, and three quarters of the work are wasted
    ("13.7", [(SHARDED, ""), ("batch(4)", "batch(16)")], "three quarters of the work"),
    ("13.1", [("total.asnumpy() / get_group_size()", "x")], "nothing was added up"),
    ("13.4", [("ms.ops.AllReduce()(ms.Tensor(loss)) / get_group_size()", "ms.Tensor(loss)")], "nothing was added up"),
    ("13.2", [(STRATEGY, "((1, 1), (1, 1))")], "it is the weight that must be split"),
    ("13.2", [(STRATEGY, "((4, 1), (1, 1))")], "it is the weight that must be split"),
    ("13.8", [("return before, net", "return net")], "Two arrays"),
    ("13.8", [('"normal"', '"zeros"')], "all alike"),
    ("13.8", [("train(3,", "train(2,")], "rank 0 ends with"),
)
def test_half_a_repair_hears_what_is_missing(number, changes, words):
    assert words in words_of(failed(check(number, edited(number, *changes)))["one device"])


@each_of("answer", None, 3, "13.1", [1])
def test_another_answer_than_a_script_hears_the_form(answer):
    first = check("13.1", on_ranks(answer)).first_failure
    assert first.name == "runs" and "on_ranks" in first.form


def test_the_lesson_quotes_what_the_scripts_say():
    (path,) = shipped_folder("notebooks").glob("13_*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    for number, script in SCRIPTS.items():
        (text,) = [c.source for c in cells if c.source.startswith(f"### Exercise {number}:")]
        assert script.says in text and script.title in text


@pytest.mark.exhaustive
def test_a_check_runs_the_script_in_a_process_of_its_own():
    def script(x):
        import os

        return os.getpid()

    (runs, one, _) = get_exercise("13.1").judge(on_ranks(script))
    assert runs.passed and "array" not in one.found and one.found != f"rank 0 returns {os.getpid()}"


def test_the_import_of_mindspore_ends_with_a_rank():
    before, imported = [*sys.path], {name for name in sys.modules if name.split(".")[0] == "mindspore"}
    assert passes(check("13.1", written(ANSWERS["13.1"])), 3)
    assert sys.path == before and {name for name in sys.modules if name.split(".")[0] == "mindspore"} == imported


# ---- ranks that are played ----


def test_each_rank_has_settings_seed_and_world_of_its_own_and_leaves_none_behind():
    def script(value):
        from mindspore import get_auto_parallel_context, set_auto_parallel_context, set_seed
        from mindspore.communication import get_rank, init

        init()
        set_seed(100 + get_rank())
        set_auto_parallel_context(device_num=8, global_rank=get_rank())
        hooks.current_world().comm.barrier()  # here the others run
        return value, get_rank(), seeds.get_seed(), get_auto_parallel_context("global_rank")

    seed = seeds.get_seed()
    run = run_programs(on_ranks(script), 3, [(n,) for n in "abc"])
    assert run.results == (("a", 0, 100, 0), ("b", 1, 101, 1), ("c", 2, 102, 2)), run.fault
    assert seeds.get_seed() == seed and hooks.current_world() is None
    assert get_auto_parallel_context("global_rank") == 0 and get_auto_parallel_context("device_num") == 1


def test_what_is_started_goes_on_while_a_rank_works_and_arrives_in_its_array():
    def script(x):
        from mindspore.communication import init

        init()
        comm, room = hooks.current_world().comm, np.empty(3)
        handle = comm.start("all_reduce", x, (0, 1), out=room)
        assert not handle.done()
        back = handle.wait()
        return back is room, room, handle.done()

    run = run_programs(on_ranks(script), 2, [(np.array([1.0, 2, 3]),), (np.array([4.0, 4, 4]),)])
    for same, room, done in run.results:
        assert same and done and list(room) == [5, 6, 7]
    assert run.sent_bytes(1) == 24  # 2 (p - 1) / p of three doubles


def test_ranks_that_are_left_in_the_middle_of_a_message_end_their_threads():
    def script():
        from mindspore.communication import get_rank, init

        init()
        if get_rank() == 2:
            raise OSError("the disk of rank 2")
        hooks.current_world().comm.barrier()

    run = run_programs(on_ranks(script), 3, [()] * 3)
    assert "the disk of rank 2" in run.fault.text and run.fault.rank == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]
    assert hooks.current_world() is None
