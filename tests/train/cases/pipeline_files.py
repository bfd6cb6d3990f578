"""Checkpoints of pipelines on started ranks: saved under two stages, and training goes on under others."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn
from parallel_lab.base.hooks import current_world
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LambdaCallback, Model, checkpoint
from parallel_lab.train.dataset import NumpySlicesDataset
from tests.train.cases.nets import SquareLoss
from tests.train.cases.pipeline import PARTS_OF_BATCH, SETTINGS, Stack, data
from tests.train.worlds import case, refused


def trained(net, optimizer, rows):
    """Losses of a step for each 8 of these rows."""
    whole = nn.PipelineCell(nn.WithLossCell(net, SquareLoss()), PARTS_OF_BATCH)
    x, y = (each[rows] for each in data())
    batches, losses = NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(8), []
    model = Model(whole, optimizer=optimizer)
    seen = LambdaCallback(on_train_step_end=lambda run: losses.append(float(run.original_args().net_outputs)))
    model.train(1, batches, callbacks=[seen], dataset_sink_mode=False)
    return losses


def made(stages):
    net = Stack()
    for at, cell in enumerate((net.first, net.second, net.third, net.last)):
        cell.pipeline_stage = at * stages // 4
    net.norm.pipeline_stage = 2 * stages // 4
    return net, nn.Momentum(net.trainable_params(), 0.1, 0.9)


def resumed(before, after, how, **settings):
    """Two steps in `before` stages, a save, and one step more in `after` stages by networks made anew."""

    def run(here):
        here.settings(**{**SETTINGS, "pipeline_stages": before, **settings})
        net, optimizer = made(before)
        losses, folder = trained(net, optimizer, slice(0, 16)), here.folder
        noted = {}
        if here.alone:
            return {"losses": np.array(losses + trained(net, optimizer, slice(16, 24)))}, {}
        stage = here.rank * before // here.size
        away = next(p for p in net.get_parameters() if (p.name.split(".")[0] in ("first", "second")) == (stage > 0))
        noted["read"], noted["away"] = refused(away.asnumpy), away.name
        name = f"{before}_{after}_{how}_{here.size}"
        if how == "folder":
            records = checkpoint.network_records(net, integrated=False)
            records |= checkpoint.optimizer_records(optimizer, integrated=False)
            checkpoint.save_distributed(folder / name, records)
        else:
            both = nn.CellList([net, optimizer])
            checkpoint.save_checkpoint(both, folder / f"{name}_{here.rank}.ckpt", integrated_save=how == "whole")
            noted["saved"] = set(checkpoint.describe_checkpoint(folder / f"{name}_{here.rank}.ckpt").tensors)
            current_world().comm.barrier()
        here.settings(pipeline_stages=after)
        net, optimizer = made(after)
        if how == "folder":
            held = checkpoint.load_distributed(folder / name)
            for target in (net, optimizer):
                missing, _ = checkpoint.load_records(target, held)
                assert not missing, missing
        else:
            files = [folder / f"{name}_{rank}.ckpt" for rank in range(here.size)]
            model = Model(net)
            net.set_train(False)
            wanted = model.infer_predict_layout(Tensor(data()[0][:8]))
            net.set_train(True)
            noted["wanted"] = set(wanted)
            checkpoint.load_distributed_checkpoint(nn.CellList([net, optimizer]), files, wanted)
        return {"losses": np.array(losses + trained(net, optimizer, slice(16, 24)))}, noted

    return case(2, 4)(run)


SHARDED = {"enable_parallel_optimizer": True, "parallel_optimizer_config": {"parallel_optimizer_threshold": 0}}
CASES = {
    "slices, 2 to 1": resumed(2, 1, "slices"),
    "whole, 2 to 2": resumed(2, 2, "whole"),
    "folder, 2 to 1": resumed(2, 1, "folder"),
    "folder, 2 to 2, parallel optimizer": resumed(2, 2, "folder", **SHARDED),
    "slices, 2 to 2, parallel optimizer": resumed(2, 2, "slices", **SHARDED),
}
