"""`Model` on real ranks: losses, checkpoints, evaluation, and what is refused before ranks wait for each other."""

import json

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net
from parallel_lab.train.checkpoint.format import read_checkpoint
from parallel_lab.train.dataset import GeneratorDataset
from tests.processes.launched import LAB, started
from tests.recorded import nets

TIMEOUT_S = 120
STRATEGIES = (((1, 2), (2, 1)), None, None)  # the contraction of the first product is split: its results are summed

COMMON = f"""
import json, sys
import numpy as np
from parallel_lab import Tensor, nn, set_auto_parallel_context
from parallel_lab.train.communication import get_group_size, get_rank, init
from parallel_lab.train.dataset import GeneratorDataset
from parallel_lab.train import *
from tests.recorded import nets

# gradients_mean in data_parallel only: elsewhere the gradients are those of one device
set_auto_parallel_context(parallel_mode=sys.argv[1], gradients_mean=sys.argv[1] == "data_parallel")
init()
rank, size = get_rank(), get_group_size()
x, y = (np.random.default_rng(seed).normal(size=(8, n)).astype(np.float32) for seed, n in ((0, 32), (1, 16)))
rows = slice(rank * 8 // size, (rank + 1) * 8 // size)

def data(steps=4):
    return GeneratorDataset(lambda: ((x[rows], y[rows]) for _ in range(steps)), ["data", "label"])

def model(**more):
    net = nets.Quick(32, 16, 16, *(({STRATEGIES}) if sys.argv[1] == "semi_auto_parallel" else ()))
    return Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 2.0, 0.1), **more)

def refused(call):
    try:
        call()
    except Exception as error:
        say("refused", [type(error).__name__, str(error)])

def say(name, value):
    with open(f"said_{{rank}}.jsonl", "a") as file:
        file.write(json.dumps([name, value]) + "\\n")
"""


def run(folder, ranks, mode, code):
    """What each rank said, [{name: [values]}]; the console."""
    (folder / "script.py").write_text(COMMON + code)
    with started(*LAB, "run", "-n", str(ranks), "script.py", mode, cwd=folder) as process:
        status, console = process.wait(TIMEOUT_S)
    assert status == 0, console
    said = []
    for rank in range(ranks):
        found = {}
        for line in (folder / f"said_{rank}.jsonl").read_text().splitlines():
            name, value = json.loads(line)
            found.setdefault(name, []).append(value)
        said.append(found)
    return said, console


def undivided(epochs=2, model=None, first=0):
    """The same training on one device, on what the ranks feed together: (losses, Model)."""
    x, y = (np.random.default_rng(seed).normal(size=(8, n)).astype(np.float32) for seed, n in ((0, 32), (1, 16)))
    if model is None:
        net = nets.Quick(32, 16, 16)
        model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 2.0, 0.1), metrics={"mse", "mae"})
    losses = []
    watch = LambdaCallback(on_train_step_end=lambda c: losses.append(float(c.original_args().net_outputs)))
    data = GeneratorDataset(lambda: ((x, y) for _ in range(4)), ["data", "label"])
    model.train(epochs, data, callbacks=watch, initial_epoch=first)
    return losses, model


# Sums of the ranks are rounded in another order than undivided ones: measured 3e-7 over 8 steps of losses around 1,
# allowed ten times that.
CLOSE = {"rtol": 3e-6, "atol": 3e-6}

TRAIN = """
losses = []
watch = LambdaCallback(on_train_step_end=lambda c: losses.append(float(c.original_args().net_outputs.asnumpy())))
m = model(metrics={"mse", "mae"})
m.train(2, data(), callbacks=[LossMonitor(), watch, ModelCheckpoint("net", f"rank_{rank}")])
say("losses", losses)
say("eval", m.eval(data(1)))
"""


def test_data_parallel_prints_each_rank_s_loss_and_learns_as_one_device(tmp_path):
    said, console = run(tmp_path, 2, "data_parallel", TRAIN)
    losses, model = undivided()
    own = np.array([one["losses"][0] for one in said])
    assert not np.allclose(own[0], own[1])
    np.testing.assert_allclose(own.mean(0), losses, **CLOSE)
    for rank in range(2):
        assert f"[{rank}] epoch: 1 step: 1, loss is {own[rank][0]}" in console.splitlines()
        stored = read_checkpoint(tmp_path / f"rank_{rank}" / "net-2_4.ckpt").tensors
        for name, parameter in model.predict_network.parameters_dict().items():
            np.testing.assert_allclose(stored[name].array, parameter.asnumpy(), **CLOSE)
    # each rank measures its own rows: of equal parts the mean of the means is the mean
    whole = model.eval(GeneratorDataset(lambda: iter([both_halves()]), ["data", "label"]))
    for name, value in whole.items():
        assert np.mean([one["eval"][0][name] for one in said]) == pytest.approx(value, rel=1e-5)


def both_halves():
    return tuple(np.random.default_rng(seed).normal(size=(8, n)).astype(np.float32) for seed, n in ((0, 32), (1, 16)))


MORE_OF_SEMI_AUTO = """
plain = ModelCheckpoint("own", f"rank_{rank}", CheckpointConfig(4, integrated_save=False))
clock = iter(range(10**9))  # every look at it is a second later; on rank 0 slower than on the others
seconds = CheckpointConfig(0, 3, keep_checkpoint_max=9)
timed = ModelCheckpoint("timed", f"rank_{rank}", seconds, clock=lambda: next(clock) * (1 if rank == 0 else 7))
m = model()
m.train(2, data(), callbacks=[plain, timed])
set_auto_parallel_context(full_batch=True)
say("predicted", m.predict(Tensor(x)).asnumpy().tolist())
layouts = m.infer_predict_layout(Tensor(x))
maps = {name: [list(axes) for axes in layout.tensor_map] for name, layout in layouts.items()}
say("layouts", {name: [list(layout.device_matrix), maps[name]] for name, layout in layouts.items()})
say("held", {p.name: list(p.asnumpy().shape) for p in m.predict_network.get_parameters()})
"""


@pytest.mark.exhaustive
def test_semi_auto_parallel_equals_one_device_and_saves_wholes_or_slices(tmp_path):
    said, console = run(tmp_path, 4, "semi_auto_parallel", TRAIN + MORE_OF_SEMI_AUTO)
    losses, model = undivided()
    for rank, one in enumerate(said):
        np.testing.assert_allclose(one["losses"][0], losses, **CLOSE)
        assert one["losses"] == said[0]["losses"] and one["eval"] == said[0]["eval"]
        assert f"[{rank}] epoch: 2 step: 4, loss is {one['losses'][0][-1]}" in console.splitlines()
    x, _ = both_halves()
    whole = model.eval(GeneratorDataset(lambda: iter([both_halves()]), ["data", "label"]))
    assert said[0]["eval"][0] == {name: pytest.approx(value, rel=1e-5) for name, value in whole.items()}
    np.testing.assert_allclose(said[3]["predicted"][0], model.predict(_tensor(x)).asnumpy(), **CLOSE)
    # the first weight's rows are split in two: device matrix and map of strategy ((2, 2), (2, 1)), or one that puts the
    # same slices there
    held = [one["held"][0]["w"] for one in said]
    assert held == [[16, 16]] * 4 and said[0]["layouts"][0].keys() == {"w", "w2"}
    for rank in range(4):
        folder = tmp_path / f"rank_{rank}"
        stored, slices = (read_checkpoint(folder / f"{name}-2_4.ckpt").tensors for name in ("net", "own"))
        for name, parameter in model.predict_network.parameters_dict().items():
            np.testing.assert_allclose(stored[name].array, parameter.asnumpy(), **CLOSE)
        assert stored["moments.w"].array.shape == (32, 16)
        assert slices["moments.w"].array.shape == slices["w"].array.shape == (16, 16)
        part = slices["w"].layout.slice_index((32, 16), rank)
        np.testing.assert_allclose(slices["w"].array, model.predict_network.weight.asnumpy()[part], **CLOSE)
        timed = sorted(p.name for p in folder.glob("timed-*.ckpt"))
        assert timed == sorted(p.name for p in (tmp_path / "rank_0").glob("timed-*.ckpt")) and 1 < len(timed) < 8
        graph = json.loads((folder / "net-graph.meta").read_text())
        assert graph["rank"] == rank and any("AllReduce" in line or "all_reduce" in line for line in graph["program"])


def _tensor(array):
    from parallel_lab import Tensor

    return Tensor(array)


SAVING = """
m = model()
m.train(1, data(), callbacks=ModelCheckpoint("net", f"rank_{rank}", CheckpointConfig(4)))
say("done", True)
"""
GOING_ON = """
from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net
losses, m = [], model()
assert load_param_into_net(m.train_network, load_checkpoint("../rank_0/net-1_4.ckpt")) == ([], [])
watch = LambdaCallback(on_train_step_end=lambda c: losses.append(float(c.original_args().net_outputs.asnumpy())))
m.train(3, data(), callbacks=watch, initial_epoch=1)
say("losses", losses)
"""


@pytest.mark.exhaustive
def test_a_training_of_ranks_goes_on_alone_and_on_ranks_again(tmp_path):
    run(tmp_path, 2, "semi_auto_parallel", SAVING)
    whole, _ = undivided(3)
    net = nets.Quick(32, 16, 16)
    alone = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), 2.0, 0.1))
    assert load_param_into_net(alone.train_network, load_checkpoint(tmp_path / "rank_1" / "net-1_4.ckpt")) == ([], [])
    np.testing.assert_allclose(undivided(3, alone, first=1)[0], whole[4:], **CLOSE)
    (tmp_path / "again").mkdir()
    said, _ = run(tmp_path / "again", 4, "semi_auto_parallel", GOING_ON)
    np.testing.assert_allclose(said[2]["losses"][0], whole[4:], **CLOSE)


REFUSALS = """
refused(lambda: model().train(1 + rank, data()))
refused(lambda: model().train(2, data(3 + rank)))
refused(lambda: model().train(2, data(), callbacks=ModelCheckpoint("net", "same")))
refused(lambda: model().train(2, data(), callbacks=ModelCheckpoint("net", "/".join((".", "same")))))
m = model()
alone = [ModelCheckpoint("net", "alone")] if rank == 0 else None  # in data_parallel it needs no other rank
m.train(1, data(), callbacks=alone)
stop = EarlyStopping("loss", patience=2, min_delta=1e9)
m.train(20, data(), callbacks=stop)
say("stopped", [stop.stopped_epoch, stop.best])
"""


@pytest.mark.exhaustive
def test_what_ranks_would_do_differently_is_refused_on_all_of_them(tmp_path):
    said, _ = run(tmp_path, 2, "data_parallel", REFUSALS)
    for one in said:
        kinds = ["CollectiveMismatch", "CollectiveMismatch", "ArgumentError", "ArgumentError"]
        assert [kind for kind, _ in one["refused"]] == kinds
        texts = [text for _, text in one["refused"]]
        assert "epochs is [0, 1] on rank 0; [0, 2] on rank 1" in texts[0]
        assert "steps_per_epoch is 3 on rank 0; 4 on rank 1" in texts[1]
        assert f"ranks 0, 1 all save their checkpoints to {tmp_path / 'same'}" in texts[2] and texts[3] == texts[2]
        assert one["stopped"] == said[0]["stopped"]  # the mean of the ranks' losses: all stop together
    assert said[0]["stopped"][0][0] == 3  # nothing is better by 1e9 than the first epoch
    assert sorted(p.name for p in (tmp_path / "alone").glob("*.ckpt")) == [f"net-1_{step}.ckpt" for step in range(1, 5)]


@pytest.mark.exhaustive
def test_slices_are_joined_and_batches_evaluated_by_all_ranks_or_by_none(tmp_path):
    said, _ = run(
        tmp_path,
        2,
        "semi_auto_parallel",
        """
refused(lambda: model().train(1, data(), callbacks=[ModelCheckpoint("net", "rank_0")] if rank == 0 else None))
own = CheckpointConfig(integrated_save=False)
model().train(1, data(), callbacks=[ModelCheckpoint("net", "rank_0", own)] if rank == 0 else None)
refused(lambda: model(metrics={"mse"}).eval(data(2 + rank)))
""",
    )
    for one in said:
        saving, evaluating = one["refused"]
        assert saving[0] == evaluating[0] == "CollectiveMismatch" and "integrated_save=False" in saving[1]
        assert "evaluation_steps is 2 on rank 0; 3 on rank 1" in evaluating[1]
    assert (tmp_path / "rank_0" / "net-1_4.ckpt").is_file()


ONE_IS_ASKED = """
import os
from parallel_lab.train import OnRequestExit
steps = []

def after(context):
    steps.append(context.original_args().cur_step_num)
    if rank == 1 and steps[-1] == 3:
        os.kill(os.getpid(), 15)

model().train(2, data(), callbacks=[LambdaCallback(on_train_step_end=after), OnRequestExit(file_name="net")])
say("steps", steps)
"""


@pytest.mark.exhaustive
def test_ranks_end_in_the_same_step_when_one_of_them_is_asked(tmp_path):
    said, _ = run(tmp_path, 2, "data_parallel", ONE_IS_ASKED)
    assert [one["steps"] for one in said] == [[[1, 2, 3]]] * 2
    saved = [load_checkpoint(str(tmp_path / f"rank_{rank}" / "net_train.ckpt")) for rank in range(2)]
    assert [one["step_num"] for one in saved] == [3, 3]
