"""Optimizer parallel on real ranks: in the modes that split operators, and weight grouping in data_parallel mode."""

from __future__ import annotations

import numpy as np

from parallel_lab import nn, ops, value_and_grad
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.wrap import TrainOneStepCell
from parallel_lab.train import AutoParallel, jit
from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
from parallel_lab.train.checkpoint.folder import load_distributed, save_distributed
from parallel_lab.train.checkpoint.values import load_records, network_records, optimizer_records
from parallel_lab.train.engine import make_eval_step, make_train_step
from tests.train.cases.compiled_steps import made_step, tensors
from tests.train.cases.nets import Net, SquareLoss, batch, numbers
from tests.train.worlds import case, parameters, refused

# rows of the batch split among all ranks, so every rank would hold all weights; the second: v's columns split in 2
ROWS = {2: ((2, 1), (1, 1)), 4: ((4, 1), (1, 1))}
HALF = {2: ((1, 1), (1, 2)), 4: ((2, 1), (1, 2))}
SEMI = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch", "enable_parallel_optimizer": True}
GROUPED = {"parallel_mode": "data_parallel", "gradients_mean": True, "enable_parallel_optimizer": True}


def config(**more):
    return {"parallel_optimizer_config": {"parallel_optimizer_threshold": 0, **more}}


SHARDED = {**SEMI, **config()}


def states(here, optimizer):
    """The optimizer's states, whole: a collective where they are split, or held by one rank."""
    records = optimizer_records(optimizer, integrated=True)
    return {f"state {name}": record.array for name, record in records.items() if record.array.ndim}


def held(net, optimizer):
    """What this rank holds: shapes of Parameters and of states."""
    kept = {name: sorted(array.shape for array in kinds.values()) for name, kinds in optimizer.states.items()}
    return {p.name: p.asnumpy().shape for p in net.get_parameters()}, kept


def made(here, strategies=(ROWS, HALF)):
    net = Net(tuple(s[here.size] for s in strategies)) if not here.alone else Net()
    net.set_train()
    return net


def begun(here, settings, make_optimizer, strategies=(ROWS, HALF)):
    """A network, its optimizer and the step of training under these settings."""
    here.settings(**settings)
    net = made(here, strategies)
    optimizer = make_optimizer(net.trainable_params())
    return net, optimizer, make_train_step(net, SquareLoss(), optimizer)


# ---- modes that split operators ----


def trained_in_context(make_optimizer, **settings):
    def run(here):
        net, optimizer, step = begun(here, {**SEMI, **config(**settings)}, make_optimizer)
        losses = [here.full(step(*batch())) for _ in range(4)]
        return {"losses": losses, **parameters(here, net), **states(here, optimizer)}, held(net, optimizer)

    return case(2, 4, quick=(2, 4) if "optimizer_weight_shard_size" in settings else (2,))(run)


def adam(params):
    return nn.Adam(params, 0.02, weight_decay=0.01)


def lamb_clipped(params):
    return nn.Lamb(params, 0.02, weight_decay=0.01, clip=nn.GradientClip("global_norm", 0.2))


def adafactor(params):
    return nn.AdaFactor(params, weight_decay=0.01)


def scaled(params):
    return nn.Momentum(params, 0.05, 0.9, loss_scaler=nn.DynamicLossScaler(2.0**10, 4, 2))


CASES = {
    f"{make.__name__} {name}": trained_in_context(make, **settings)
    for make in (adam, lamb_clipped, adafactor, scaled)
    for name, settings in {
        "level1": {},
        "level2": {"optimizer_level": "level2"},
        "level3": {"optimizer_level": "level3"},
        "in twos": {"optimizer_weight_shard_size": 2},
    }.items()
}


@case(2, 4, quick=(2, 4))
def hsdp_of_a_function(here):
    net = made(here)
    optimizer = nn.Momentum(net.trainable_params(), nn.PolynomialDecayLR(0.2, 0.01, 10, 2.0), 0.9)
    step = made_step(net, optimizer)
    if not here.alone:
        step = AutoParallel(step)
        step.dataset_strategy("full_batch")
        step.hsdp(shard_size=2, threshold=0, optimizer_level="level3")
    found = []
    for rows in (16, 32, 16):
        loss, logits = step(*tensors(*batch(rows)))
        found += [here.full(loss), here.full(logits)]
    notes = {} if here.alone else {"level": step.plan.config.optimizer_level, "held": held(net, optimizer)}
    return {"found": found, **parameters(here, net), **states(here, optimizer)}, notes


@case(4)
def hsdp_of_a_model(here):
    """By Model.train, its evaluation in between: the network is gathered for it."""
    net = made(here)
    optimizer = nn.Adam(net.trainable_params(), 0.02)
    wrapped = net
    if not here.alone:
        wrapped = AutoParallel(net)
        wrapped.dataset_strategy("full_batch")
        wrapped.hsdp(threshold=0)
    step, look = make_train_step(wrapped, SquareLoss(), optimizer), make_eval_step(wrapped, SquareLoss())
    found = []
    for _ in range(3):
        found.append(here.full(step(*batch())))
        loss, outputs, _ = look(*batch())
        found += [here.full(loss), here.full(list(outputs))]
    return {"found": found, **parameters(here, net), **states(here, optimizer)}, held(net, optimizer)


class ReadsShapes(nn.Cell):
    """(n, 12) -> (n, 16): layers and lines of its own that look at the shapes of parameters while they are traced."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Dense(12, 8, dtype=np.float64), nn.BatchNorm1d(8, dtype=np.float64)
        self.second = Net()
        self.scale = Parameter(numbers(8, 8), name="scale")

    def construct(self, x):
        x = self.norm(self.first(x)) * ops.reshape(self.scale, (1, self.scale.shape[0]))
        padded = ops.concat((x, x[:, : self.second.w.shape[0] - self.scale.shape[0]]), 1)
        return self.second(padded) / len(self.scale)


@case(2, 4)
def looked_at_after_training(here):
    """A network whose parameters are slices by now is traced again, in evaluation mode and for another batch: for it
    they are whole.

    BatchNorm once compared its channels with the rows of a slice.
    """
    here.settings(**SHARDED)
    net = ReadsShapes()
    step = make_train_step(net, SquareLoss(), nn.Adam(net.trainable_params(), 0.02))
    look = make_eval_step(net, SquareLoss())
    found = []
    for rows in (16, 32):
        net.set_train()
        found.append(here.full(step(*batch(rows))))
        net.set_train(False)
        loss, outputs, _ = look(*batch(rows))
        found += [here.full(loss), here.full(list(outputs))]
    return {"found": found, **parameters(here, net)}, {p.name: p.asnumpy().shape for p in net.get_parameters()}


@case(4)
def gradients_alone(here):
    """A compiled function returns slices of gradients; the optimizer, which runs at once, takes them as they are."""
    here.settings(**SHARDED)
    found = {}
    for make in (adafactor, lambda params: nn.Lamb(params, 0.02, weight_decay=0.1)):
        net = made(here)
        optimizer = make(net.trainable_params())
        forward = lambda x, y, net=net: SquareLoss()(net(x), y)  # noqa: E731
        gradient = jit(value_and_grad(forward, None, net.trainable_params()))
        losses, slices = [], []
        for _ in range(3):
            loss, grads = gradient(*tensors(*batch()))
            optimizer(grads)
            losses.append(here.full(loss))
            slices.append([g.shape for g in grads])
        found[type(optimizer).__name__] = {"losses": losses, **parameters(here, net), **states(here, optimizer)}
    return found, {"slices": slices, "held": held(net, optimizer)}


@case(4)
def whole_of_a_parameter(here):
    """`full()` gathers a Parameter while the world lives."""
    here.settings(**SHARDED)
    net = made(here)
    step = make_train_step(net, SquareLoss(), nn.SGD(net.trainable_params(), 0.1))
    step(*batch())
    notes = {"w": net.w.asnumpy().shape, "layout": str(net.w.layout)}
    return {"w": net.w.full().asnumpy(), "v": net.v.full().asnumpy()}, notes


def brought_to(state, net, optimizer, saved):
    """Give net and optimizer what a folder or a file holds; on one device, where nothing is saved, that of `state`."""
    if saved is None:
        for mine, theirs in zip(net.get_parameters(), state[0].get_parameters(), strict=True):
            mine.set_data(theirs.asnumpy().copy())
        load_records(optimizer, optimizer_records(state[1]))
    elif saved.is_dir():
        loaded = load_distributed(saved)
        assert load_records(net, loaded)[0] == [] and load_records(optimizer, loaded)[0] == []
    else:
        assert load_param_into_net(TrainOneStepCell(net, optimizer), load_checkpoint(str(saved)))[0] == []


def saved_and_loaded(here, make):
    """Two steps, saved as folder and whole files; each goes on in a net split otherwise, without optimizer parallel."""
    net, optimizer, step = begun(here, SHARDED, make)
    for _ in range(2):
        step(*batch())
    found, notes = {}, {}
    if not here.alone:
        folder, file = here.folder / "hsdp", here.folder / "hsdp" / f"whole_{here.rank}.ckpt"
        records = {**network_records(net, integrated=False), **optimizer_records(optimizer, integrated=False)}
        notes["cut"] = sorted(name for name, record in records.items() if not record.is_whole)
        save_distributed(folder, records)
        save_checkpoint(TrainOneStepCell(net, optimizer), str(file), integrated_save=True)
    for name in ("folder", "file"):
        here.settings(enable_parallel_optimizer=False)
        other = made(here, (HALF, ROWS))
        other.set_train()
        resumed = make(other.trainable_params())
        brought_to((net, optimizer), other, resumed, None if here.alone else {"folder": folder, "file": file}[name])
        again = make_train_step(other, SquareLoss(), resumed)
        found[name] = [here.full(again(*batch())) for _ in range(2)]
        found[f"{name} parameters"], found[f"{name} states"] = parameters(here, other), states(here, resumed)
    return found, notes


@case(4)
def saved_under_it_and_loaded_without(here):
    return saved_and_loaded(here, adam)


@case(4)
def means_saved_under_it_and_loaded_without(here):
    """States with fewer dims than their parameter."""
    return saved_and_loaded(here, adafactor)


@case(4)
def saved_without_it_and_loaded_under_it(here):
    net, optimizer, step = begun(here, {**SEMI, "enable_parallel_optimizer": False}, adam, (HALF, ROWS))
    for _ in range(2):
        step(*batch())
    records = {**network_records(net), **optimizer_records(optimizer)}
    here.settings(**SHARDED)
    other = made(here)
    resumed = adam(other.trainable_params())
    load_records(other, records)
    load_records(resumed, records)
    again = make_train_step(other, SquareLoss(), resumed)
    losses = [here.full(again(*batch())) for _ in range(2)]
    return {"losses": losses, **parameters(here, other), **states(here, resumed)}, held(other, resumed)


# ---- data_parallel: weight grouping ----


def grouped(make_optimizer):
    def run(here):
        net, optimizer, step = begun(here, GROUPED, make_optimizer)
        losses = [here.mean(step(*here.rows(*batch()))) for _ in range(4)]
        return {"losses": losses, **parameters(here, net), **states(here, optimizer)}, held(net, optimizer)

    return case(2)(run)


CASES |= {f"grouped {make.__name__}": grouped(make) for make in (lamb_clipped,)}
CASES["grouped adam with weight decay"] = grouped(lambda params: nn.AdamWeightDecay(params, 0.02, weight_decay=0.01))


@case(2)
def grouped_at_once(here):
    """Operator by operator: TrainOneStepCell sums gradients, the optimizer updates its share and sends it."""
    here.settings(**GROUPED)
    net = made(here)
    optimizer = nn.AdamWeightDecay(net.trainable_params(), 0.02, weight_decay=0.01)
    step = TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer)
    losses = [here.mean(step(*tensors(*here.rows(*batch())))) for _ in range(4)]
    return {"losses": losses, **parameters(here, net), **states(here, optimizer)}, held(net, optimizer)


@case(2)
def grouped_then_at_once_then_not(here):
    """States go to the ranks that need them: compiled, at once, and without optimizer parallel."""
    net, optimizer, step = begun(here, GROUPED, lamb_clipped)
    at_once = TrainOneStepCell(nn.WithLossCell(net, SquareLoss()), optimizer)
    losses, kept = [], []
    for _ in range(2):
        losses.append(here.mean(step(*here.rows(*batch()))))
        kept.append(sorted(optimizer.states))
        losses.append(here.mean(at_once(*tensors(*here.rows(*batch())))))
        kept.append(sorted(optimizer.states))
        here.settings(enable_parallel_optimizer=False)
        losses.append(here.mean(at_once(*tensors(*here.rows(*batch())))))
        kept.append(sorted(optimizer.states))
        step = make_train_step(net, SquareLoss(), optimizer)
        losses.append(here.mean(step(*here.rows(*batch()))))
        kept.append(sorted(optimizer.states))
        here.settings(**GROUPED)
        step = make_train_step(net, SquareLoss(), optimizer)
    return {"losses": losses, **parameters(here, net), **states(here, optimizer)}, {"kept": kept}


@case(2)
def cut_then_grouped(here):
    """Each rank has a slice of every state, then one rank the whole of each."""
    net = made(here)
    optimizer = lamb_clipped(net.trainable_params())
    losses, kept = [], []
    for _ in range(2):
        here.settings(gradients_mean=False, **SEMI, **config())
        losses.append(here.full(make_train_step(net, SquareLoss(), optimizer)(*batch())))
        kept.append(sorted(optimizer.states))
        here.settings(dataset_strategy="data_parallel", **GROUPED)
        losses.append(here.mean(make_train_step(net, SquareLoss(), optimizer)(*here.rows(*batch()))))
        kept.append(sorted(optimizer.states))
    return {"losses": losses, **parameters(here, net), **states(here, optimizer)}, {"kept": kept}


@case(2)
def grouped_saved_and_loaded(here):
    """A file of whole tensors and a folder in which each rank has its share: both bring all states back."""
    net, optimizer, step = begun(here, GROUPED, lamb_clipped)
    for _ in range(2):
        step(*here.rows(*batch()))
    notes, found = {}, {}
    if not here.alone:
        folder, file = here.folder / "grouped", here.folder / f"grouped_{here.rank}.ckpt"
        mine = optimizer_records(optimizer, integrated=False)
        notes["mine"] = sorted(name for name, record in mine.items() if record.array.ndim)
        save_distributed(folder, {**network_records(net, integrated=False), **mine})
        save_checkpoint(TrainOneStepCell(net, optimizer), str(file))
        notes["file"] = sorted(name for name in load_checkpoint(str(file)) if name.startswith("lamb_"))
    for name in ("folder", "file"):
        other = made(here)
        resumed = lamb_clipped(other.trainable_params())
        brought_to((net, optimizer), other, resumed, None if here.alone else {"folder": folder, "file": file}[name])
        again = make_train_step(other, SquareLoss(), resumed)
        found[name] = [here.mean(again(*here.rows(*batch()))) for _ in range(2)]
        found[f"{name} parameters"], found[f"{name} states"] = parameters(here, other), states(here, resumed)
    return found, notes


@case(2, compared=False)
def refusals(here):
    """What is refused, with the class of MindSpore's error."""
    found = {}
    net = made(here)
    here.settings(**GROUPED)
    found["adam"] = refused(lambda: nn.Adam(net.trainable_params()))
    here.settings(parallel_mode="hybrid_parallel")
    found["hybrid"] = refused(lambda: nn.Lamb(net.trainable_params(), 0.1))
    here.settings(parallel_mode="data_parallel")
    found["few"] = refused(lambda: nn.Lamb([net.w], 0.1))
    here.settings(parallel_mode="data_parallel", enable_parallel_optimizer=False)
    optimizer = nn.Adam(net.trainable_params())
    here.settings(**GROUPED)
    found["step"] = refused(lambda: make_train_step(net, SquareLoss(), optimizer)(*here.rows(*batch())))
    return {}, found
