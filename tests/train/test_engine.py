"""Steps of training, evaluation and prediction on processes, in every mode, against one device: `cases/engine.py`."""

import os
import signal
import time

import numpy as np
import pytest

from tests.crossed import each_of
from tests.processes.launched import LAB, started
from tests.train.cases import engine
from tests.train.worlds import assert_refused, compared, sizes

worlds, test_ranks_equal_one_device = compared(engine, quick=4)  # the larger ones are exhaustive


@pytest.mark.parametrize("size", sizes(2, 4))
def test_a_parameter_goes_to_the_layout_of_the_program_that_runs(worlds, size):
    training, evaluation = ((12 // size, 8), (8, 16 // size)), ((12, 8 // size), (8 // size, 16))
    for note in worlds.notes(size, "layouts_that_change_between_training_and_evaluation"):
        assert note["held"] == [training, evaluation] * 3


def test_ranks_that_begin_differently_hear_which_parameter(worlds):
    for note in worlds.notes(2, "different_beginnings"):
        for mode in ("semi_auto_parallel", "auto_parallel"):
            for kinds, text in note[mode]:  # also when it is tried again
                assert {"WorldError", "RuntimeError"} <= set(kinds)
                assert "parameter '0.weight' begins with other values on rank 1" in text
        kinds, text = note["a Cell that is called"][0]
        assert "WorldError" in kinds and "begins with other values on rank 1 than on rank 0" in text


@pytest.mark.quick(7)
@each_of("how", "if", "strategy", "number", "constant", "message", "output", "optimizer", "local messages")
def test_programs_that_differ_are_refused_on_every_rank_before_step_1(worlds, how):
    for note in worlds.notes(2, "unequal_programs"):
        kinds, text, *unchanged = note[how]
        assert "CollectiveMismatch" in kinds
        other = "rank 0 calls AllReduce of w at" if how == "local messages" else "rank 1 has compiled another program"
        assert text.startswith(f"before step 1: {other}")
        assert "get_rank()" in text and (how == "local messages" or " in place of " in text)
        assert all(unchanged)


def test_ranks_of_data_parallel_may_compute_different_things(worlds):
    for note in worlds.notes(2, "unequal_programs"):
        assert note["local"][0] == ("nothing",)


def test_a_network_that_communicates_itself_is_compiled_in_data_parallel(worlds):
    assert all(note["plan"] for note in worlds.notes(4, "collectives_in_construct_are_compiled_in_data_parallel"))


def test_a_network_that_communicates_itself_is_refused_in_semi_auto(worlds):
    for note in worlds.notes(2, "collectives_in_construct_are_refused_in_semi_auto"):
        kinds, text = note["refused"]
        assert (
            "TracedCommunication" in kinds and "engine.py:" in text and "AllReduce" in text and "data_parallel" in text
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", sizes(2, 4))
@pytest.mark.parametrize("way", ["engine", "function"])
def test_half_precision_gradients_travel_in_single_precision_if_that_is_set(worlds, size, way):
    """Those of w (8, 16); at once they go along with those of the bias (16,), which has single precision. Compiled, the
    loss is added up, too.
    """
    wide, plain = (f"half precision, {way}, {how}" for how in ("in single", "as it is"))
    single, others = 8 * 16 * 4, [16 * 4, 4] if way == "engine" else [16 * 4]
    together = [single, *others] if way == "engine" else [single + 16 * 4]
    for name, sent in ((wide, together), (plain, [single // 2, *others])):
        # of an all_reduce's bytes 2 (n - 1) / n leave a rank
        expected = sorted(("all_reduce", 2 * one * (size - 1) // size) for one in sent)
        assert [sorted(note) for note in worlds.notes(size, name)] == [expected] * size
    # and it can be seen in the numbers, where more than two are added: a sum of two is rounded once in both
    assert size == 2 or not np.array_equal(worlds.of(size, wide)[0][0]["w"], worlds.of(size, plain)[0][0]["w"])


@pytest.mark.parametrize(
    ("name", "word"),
    [("print, semi_auto", "product[:, {}:{}] of (16, 16)"), ("print, data_parallel", "its own product (8, 16)")],
)
def test_print_in_construct_shows_every_rank_s_slice_in_every_step(worlds, name, word):
    for rank, note in enumerate(worlds.notes(2, name)):
        shown = note["shown"]
        assert shown.count(note["part"]) == 2 and shown.count(f"rank {rank}: ") == 2 and shown.count("seen") == 1
        assert word.format(8 * rank, 8 * rank + 8) in shown and "engine.py:" in shown


@each_of(
    ("what", "kind", "words"),
    ("index", "ShapeError", ("'gather' on rank {}", "engine.py:", "index is 99")),
    ("shape", "ShapeError", ("MatMul 'fc1'", "nets.py:", "12 elements")),
    ("dtype", "ShapeError", ("input 'x' has dtype complex128",)),
    ("devices", "ContextConflictError", ("device_num=8", "2, the number of ranks")),
)
def test_errors_of_a_step_name_operator_and_line(worlds, what, kind, words):
    for rank, note in enumerate(worlds.notes(2, "errors_in_a_step")):
        assert_refused(note[what], kind, [word.format(rank) for word in words])


ENDLESS = """
import numpy as np
from pathlib import Path
from parallel_lab import nn, set_auto_parallel_context
from parallel_lab.train.communication import get_rank, init
from parallel_lab.train import make_train_step
from tests.train.cases.nets import Net, SquareLoss, batch

set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
init()
net = Net((((1, 2), (2, 1)), None))
step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.0))
count = 0
while True:
    step(*batch())
    count += 1
    if count == 20:
        Path(f"running_{get_rank()}").touch()
"""


@pytest.mark.exhaustive
def test_an_interrupt_in_the_middle_of_training_leaves_nothing(tmp_path):
    (tmp_path / "script.py").write_text(ENDLESS)
    with started(*LAB, "run", "-n", "2", "script.py", cwd=tmp_path) as run:
        run.wait_for(tmp_path / "running_0", tmp_path / "running_1")
        start = time.monotonic()
        os.kill(run.process.pid, signal.SIGINT)
        code, console = run.wait(30)
        assert code != 0 and time.monotonic() - start < 20, console
        assert run.gone_after(5) is not None, console


@pytest.mark.exhaustive
def test_the_folder_of_the_script_does_not_count(tmp_path):
    for rank in range(2):
        (tmp_path / f"device{rank}").mkdir()
        (tmp_path / f"device{rank}" / "train_net.py").write_text(COPIED)
    start = "import os, runpy, sys; from parallel_lab.train.communication import get_rank, init; init()\n"
    (tmp_path / "script.py").write_text(
        start + "runpy.run_path(f'device{get_rank()}/train_net.py', run_name='__main__')\n"
    )
    with started(*LAB, "run", "-n", "2", "script.py", cwd=tmp_path) as run:
        code, console = run.wait()
    assert code == 0 and console.count("equal programs") == 2, console


COPIED = """
import numpy as np
from parallel_lab import Parameter, nn, ops, set_auto_parallel_context
from parallel_lab.train import make_train_step

class Copied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((4, 4)), name="w")

    def construct(self, x):
        return ops.matmul(x, self.w)

set_auto_parallel_context(parallel_mode="semi_auto_parallel")
net = Copied()
step = make_train_step(net, lambda out, y: ops.reduce_mean(out - y), nn.SGD(net.trainable_params(), 0.1))
step(np.ones((2, 4)), np.ones((2, 4)))
print("equal programs", flush=True)
"""
