"""Other things that a Model does in pipeline stages: evaluating, predicting, stages by a table, strategy files."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops
from parallel_lab.base.hooks import current_world
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model
from parallel_lab.train.auto_parallel import AutoParallel
from parallel_lab.train.dataset import NumpySlicesDataset
from tests.train.cases.nets import SquareLoss, numbers
from tests.train.cases.pipeline import PARTS_OF_BATCH, SETTINGS, Stack, data
from tests.train.worlds import case


def batches():
    x, y = data()
    return NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(8)


def trained(net, whole, epochs=1):
    losses = []
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    seen = LambdaCallback(on_train_step_end=lambda run: losses.append(float(run.original_args().net_outputs)))
    model = Model(whole, optimizer=optimizer)
    model.train(epochs, batches(), callbacks=[seen], dataset_sink_mode=False)
    return model, np.array(losses)


def evaluating(sink):
    def run(here):
        """The loss of a trained network, as a metric; then one more epoch."""
        here.settings(**SETTINGS, pipeline_result_broadcast=True)
        net = Stack()
        _, losses = trained(net, nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), PARTS_OF_BATCH))
        model = Model(net, SquareLoss(), metrics={"loss", "mse"})
        found = model.eval(batches(), dataset_sink_mode=sink)
        _, after = trained(net, nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), PARTS_OF_BATCH))
        return {"losses": losses, "after": after, **{k: np.array(v) for k, v in found.items()}}, {}

    return case(2, 4, quick=())(run)


@case(2, 4, quick=())
def evaluating_without_telling(here):
    """pipeline_result_broadcast=False holds for predictions of the network; metrics are every rank's."""
    here.settings(**SETTINGS)
    model = Model(Stack(), SquareLoss(), metrics={"loss", "mae"})
    found = model.eval(batches(), dataset_sink_mode=False)
    return {name: np.array(value) for name, value in found.items()}, {}


def predicting(broadcast):
    def run(here):
        here.settings(**SETTINGS, pipeline_result_broadcast=broadcast)
        net = Stack()
        model = Model(net)
        if not here.alone:
            model.infer_predict_layout(Tensor(data()[0][:8]))
        out = model.predict(Tensor(data()[0][:8]))
        last = here.alone or broadcast or here.rank >= here.size // 2
        mine = np.array(here.full(out)) if last else np.zeros((8, 8))
        return {"out": mine if here.alone else current_world().comm.broadcast(mine, root=here.size - 1)}, {}

    return case(2, 4, quick=())(run)


class Plain(nn.Cell):
    """Two layers without stages of their own."""

    def __init__(self):
        super().__init__()
        self.front, self.back = (nn.Dense(8, 8, Tensor(numbers(n, 8, 8) / 3), dtype="float64") for n in (1, 2))

    def construct(self, x):
        return self.back(ops.tanh(self.front(x)))


def by_table(form):
    """stage_config instead of pipeline_stage: names behind the prefix of WithLossCell."""

    def run(here):
        here.settings(**SETTINGS)
        net = Plain()
        whole = nn.WithLossCell(net, SquareLoss())
        stages = {"_backbone.front": 0, "_backbone.back": 1}
        whole = form(whole, PARTS_OF_BATCH, stage_config=stages)
        _, losses = trained(net, whole, 2)
        return {"losses": losses}, {}

    return case(2, 4, quick=())(run)


def strategy_file(here):
    """Saved by one network in stages, and loaded for another: the same losses, split as the file says."""
    path = str(here.folder / "strategy.json") if not here.alone else ""
    losses = {}
    for name in ("save", "load"):
        if not here.alone:
            key = f"strategy_ckpt_{name}_file"
            here.settings(strategy_ckpt_save_file="", strategy_ckpt_load_file="")
            here.settings(**SETTINGS, **{key: path})
        net = Stack()
        if name == "save":
            net.first.matmul.shard(((here.size // 2, 1), (1, 1)))
            net.third.matmul.shard(((1, 1), (here.size // 2, 1)))
        _, losses[name] = trained(net, nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), PARTS_OF_BATCH))
    return losses, {}


def in_auto_parallel(scheduler):
    """AutoParallel.pipeline with output_broadcast; the network predicts."""

    def run(here):
        net = Stack()
        net.set_train(False)
        if not here.alone:
            net = AutoParallel(net, parallel_mode="semi_auto")
            net.dataset_strategy("full_batch")
            net.pipeline(stages=2, output_broadcast=True, scheduler=scheduler)
        return {"out": here.full(net(Tensor(data()[0][:8])))}, {}

    return case(2, 4, quick=())(run)


CASES = {
    "evaluating": evaluating(False),
    "evaluating, sink": evaluating(True),
    "predicting": predicting(False),
    "predicting, told": predicting(True),
    "by table": by_table(nn.PipelineCell),
    "by table, Pipeline": by_table(nn.Pipeline),
    "by strategy file": case(2, 4, quick=())(strategy_file),
    "in AutoParallel": in_auto_parallel("1f1b"),
    "in AutoParallel, gpipe": in_auto_parallel("gpipe"),
}
