"""Optimizer parallel on real ranks: in the modes that split operators, and weight grouping in data_parallel mode."""

from __future__ import annotations

from parallel_lab import nn, value_and_grad
from parallel_lab.nn.wrap import TrainOneStepCell
from parallel_lab.train import jit
from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint
from parallel_lab.train.checkpoint.folder import load_distributed, save_distributed
from parallel_lab.train.checkpoint.values import load_records, network_records, optimizer_records
from parallel_lab.train.engine import make_train_step
from tests.train.cases.forms import OPTIMIZERS, rows_and_half
from tests.train.cases.nets import DATA, SEMI, SHARDED, Net, SquareLoss, batch, held, states, tensors
from tests.train.worlds import case, parameters, refused

GROUPED, ON = {**DATA, "enable_parallel_optimizer": True}, {**SEMI, **SHARDED}


def halves(size):
    """Other strategies than those of `rows_and_half`: the products' are swapped."""
    return rows_and_half(size)[::-1]


def made(here, cut=rows_and_half):
    net = Net() if here.alone else Net(cut(here.size))
    net.set_train()
    return net


def begun(here, settings, make_optimizer, cut=rows_and_half):
    """A network, its optimizer and the step of training under these settings."""
    here.settings(**settings)
    net = made(here, cut)
    optimizer = make_optimizer(net.trainable_params())
    return net, optimizer, make_train_step(net, SquareLoss(), optimizer)


# ---- modes that split operators ----

adam, adafactor, lamb_clipped = (OPTIMIZERS[name] for name in ("adam", "adafactor", "lamb, clipped"))


@case(4)
def gradients_alone(here):
    """A compiled function returns slices of gradients; the optimizer, which runs at once, takes them as they are."""
    here.settings(**ON)
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
        found[type(optimizer).__name__] = {"losses": losses, **parameters(here, net), **states(optimizer)}
    return found, {"slices": slices, "held": held(net, optimizer)}


@case(4)
def whole_of_a_parameter(here):
    """`full()` gathers a Parameter while the world lives."""
    here.settings(**ON)
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
    net, optimizer, step = begun(here, ON, make)
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
        other = made(here, halves)
        other.set_train()
        resumed = make(other.trainable_params())
        brought_to((net, optimizer), other, resumed, None if here.alone else {"folder": folder, "file": file}[name])
        again = make_train_step(other, SquareLoss(), resumed)
        found[name] = [here.full(again(*batch())) for _ in range(2)]
        found[f"{name} parameters"], found[f"{name} states"] = parameters(here, other), states(resumed)
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
    net, optimizer, step = begun(here, SEMI, adam, halves)
    for _ in range(2):
        step(*batch())
    records = {**network_records(net), **optimizer_records(optimizer)}
    here.settings(**ON)
    other = made(here)
    resumed = adam(other.trainable_params())
    load_records(other, records)
    load_records(resumed, records)
    again = make_train_step(other, SquareLoss(), resumed)
    losses = [here.full(again(*batch())) for _ in range(2)]
    return {"losses": losses, **parameters(here, other), **states(resumed)}, held(other, resumed)


# ---- data_parallel: weight grouping ----


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
    return {"losses": losses, **parameters(here, net), **states(optimizer)}, {"kept": kept}


@case(2)
def cut_then_grouped(here):
    """Each rank has a slice of every state, then one rank the whole of each."""
    net = made(here)
    optimizer = lamb_clipped(net.trainable_params())
    losses, kept = [], []
    for _ in range(2):
        here.settings(gradients_mean=False, **ON)
        losses.append(here.full(make_train_step(net, SquareLoss(), optimizer)(*batch())))
        kept.append(sorted(optimizer.states))
        here.settings(dataset_strategy="data_parallel", **GROUPED)
        losses.append(here.mean(make_train_step(net, SquareLoss(), optimizer)(*here.rows(*batch()))))
        kept.append(sorted(optimizer.states))
    return {"losses": losses, **parameters(here, net), **states(optimizer)}, {"kept": kept}


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
        found[f"{name} parameters"], found[f"{name} states"] = parameters(here, other), states(resumed)
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
