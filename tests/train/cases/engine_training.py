"""Cases of training steps: every mode with every optimizer, and the sums of gradients. They run with `engine.py`."""

from __future__ import annotations

from parallel_lab import nn
from parallel_lab.train.engine import layouts, make_train_step
from tests.train.cases.nets import DATA, Net, SquareLoss, batch, cuts
from tests.train.worlds import case, parameters

STEPS = 3


# ---- every mode with every optimizer ----


def rows_of_each(here):
    x, y = batch()
    return here.rows(x, y)


def whole(here):
    return batch()


def as_tuple(here):
    x, y = batch()
    return here.part(x, (1, 4)), here.part(y, (4, 1))


def no_strategies(here):
    return (None, None)


def both_cut(here):
    return cuts(here.size)


def first_cut(here):
    return cuts(here.size)[0], None


ROWS = {"parallel_mode": "semi_auto_parallel"}
SEMI = {**ROWS, "dataset_strategy": "full_batch"}
# name: (settings, strategies, what a rank is fed, whether losses are each rank's own)
MODES = {
    "data_parallel": (DATA, no_strategies, rows_of_each, True),
    "hybrid_parallel": ({**DATA, "parallel_mode": "hybrid_parallel"}, no_strategies, rows_of_each, True),
    "semi_auto, rows": (ROWS, no_strategies, rows_of_each, False),
    "semi_auto, split, full_batch": (SEMI, both_cut, whole, False),
    "semi_auto, split, rows": (ROWS, both_cut, rows_of_each, False),
    "semi_auto, split, tuple": ({**ROWS, "dataset_strategy": ((1, 4), (4, 1))}, first_cut, as_tuple, False),
    "auto_parallel": (
        {**SEMI, "parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"},
        first_cut,
        whole,
        False,
    ),
    "stand_alone": ({"parallel_mode": "stand_alone"}, no_strategies, whole, False),
}


def sgd(net):
    return nn.SGD(net.trainable_params(), 0.05, momentum=0.8, weight_decay=0.01, nesterov=True)


def momentum_in_groups(net):
    biases = [p for p in net.trainable_params() if p.name == "bias"]
    others = [p for p in net.trainable_params() if p.name != "bias"]
    rates = nn.ExponentialDecayLR(0.1, 0.5, 1)
    return nn.Momentum([{"params": biases, "lr": 0.3}, {"params": others, "weight_decay": 0.1}], rates, 0.9)


def adam(net):
    return nn.Adam(net.trainable_params(), [0.1, 0.02, 0.3], weight_decay=0.01)


def lamb(net):
    return nn.Lamb(net.trainable_params(), 0.05, weight_decay=0.02)


def lars(net):
    return nn.LARS(nn.Momentum(net.trainable_params(), 0.5, 0.9, weight_decay=0.01), coefficient=0.05)


def clipped(net):
    return nn.Adam(net.trainable_params(), 0.05, clip=nn.GradientClip("global_norm", 0.3))


def clipped_each(net):
    return nn.SGD(net.trainable_params(), 0.5, clip=nn.GradientClip("norm", 0.1))


def scaled(net):
    # the scale grows after every second step
    return nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scaler=nn.DynamicLossScaler(2.0**10, 4, 2))


OPTIMIZERS = (sgd, momentum_in_groups, adam, lamb, lars, clipped, clipped_each, scaled)


def states(here, optimizer, net):
    """The optimizer's states, gathered from the ranks' slices."""
    from parallel_lab.layout.slices import gather_full

    shapes = {p.name: p.full_shape for p in net.get_parameters()}
    held = optimizer.states
    return {
        f"{kind} of {name}": gather_full(array, shapes[name], optimizer.state_layouts.get(name))
        for name, kinds in held.items()
        for kind, array in kinds.items()
    }


def trained(here, net, optimizer, feed, *, loss=None, own_losses=False, steps=STEPS):
    step = make_train_step(net, loss or SquareLoss(), optimizer)
    losses = [step(*feed) for _ in range(steps)]
    return step, [here.mean(one) if own_losses else here.full(one) for one in losses]


def trains(mode, make_optimizer):
    settings, strategies, feed, own = MODES[mode]

    def run(here):
        here.settings(**settings)
        net = Net(strategies(here))
        net.set_train()
        optimizer = make_optimizer(net)
        step, losses = trained(here, net, optimizer, feed(here) if not here.alone else batch(), own_losses=own)
        kept = {name: {kind: array.shape for kind, array in kinds.items()} for name, kinds in optimizer.states.items()}
        notes = {"held": {p.name: p.asnumpy().shape for p in net.get_parameters()}, "kept": kept}
        notes |= {"layouts": {name: str(one) for name, one in layouts(step).items()}, "plan": step.plan is not None}
        same = {"losses": losses, **parameters(here, net), **states(here, optimizer, net)}
        rates = optimizer.get_lr() if make_optimizer is not adam else 0
        return {**same, "steps": optimizer.global_step, "rates": rates}, notes

    sizes = {"semi_auto, split, full_batch": (2, 4, 8), "data_parallel": (2, 4), "stand_alone": (2,)}.get(mode, (4,))
    # where all ranks are 4, each mode meets one optimizer in the quick suite
    quick = sizes[:1] if 2 in sizes or OPTIMIZERS[list(MODES).index(mode)] is make_optimizer else ()
    return case(*sizes, quick=(2, 4) if (mode, make_optimizer) == ("data_parallel", adam) else quick)(run)


CASES = {f"{mode} with {make.__name__}": trains(mode, make) for mode in MODES for make in OPTIMIZERS}


# ---- how gradients are added up (mindspore.md 10.3) ----


def factors(settings, factor_of, strategies=no_strategies):
    """One step of SGD; one device's rates are multiplied by the factor expected in the ranks' gradients."""

    def run(here):
        here.settings(**settings)
        net = Net(strategies(here))
        rates = {p.name: 0.1 * (factor_of(here.size)[p.name] if here.alone else 1.0) for p in net.trainable_params()}
        optimizer = nn.SGD([{"params": [p], "lr": rates[p.name]} for p in net.trainable_params()], 0.1)
        own = settings["parallel_mode"] == "data_parallel"
        local = own or settings.get("dataset_strategy") != "full_batch"
        trained(here, net, optimizer, here.rows(*batch()) if local else batch(), steps=1)
        return parameters(here, net), {}

    return case(2, 4)(run)


def as_one_device(size):
    return dict.fromkeys(("w", "bias", "v"), 1.0)


def times_ranks(size):
    return dict.fromkeys(("w", "bias", "v"), float(size))


def by_copies(size):
    # fc1 ((half, 2), (2, 1)): half of the ranks hold the same rows of w. The bias follows the rows of its sum: all
    # ranks hold it. fc2 ((1, 2), # (2, half)) splits v into as many parts as there are ranks
    return {"w": 1 / (size // 2), "bias": 1 / size, "v": 1.0}


CASES |= {
    "data_parallel sums": factors({**DATA, "gradients_mean": False}, times_ranks),
    "data_parallel means": factors(DATA, as_one_device),
    "semi_auto sums": factors({**SEMI, "gradients_mean": False}, as_one_device, both_cut),
    "semi_auto means": factors({**SEMI, "gradients_mean": True}, by_copies, both_cut),
    "semi_auto without loss_repeated_mean": factors({**SEMI, "loss_repeated_mean": False}, times_ranks, both_cut),
}


@case(2, 4, own=True)
def layerwise_parameters_keep_their_own_gradient(here):
    here.settings(parallel_mode="hybrid_parallel", gradients_mean=True)
    x, y = batch()

    def one(feed, layerwise):
        net = Net()
        net.v.layerwise_parallel = layerwise
        step, _ = trained(here, net, nn.SGD(net.trainable_params(), 0.5), feed, steps=1)
        return net, step

    if here.alone:
        # what all ranks fed together for the shared ones, what this rank was fed for its own
        both, _ = one((x, y), False)
        own, _ = one((here.own_rows(x), here.own_rows(y)), False)
        return {"w": both.w.asnumpy(), "bias": both.b.asnumpy(), "v": own.v.asnumpy()}, {}
    net, step = one(here.rows(x, y), True)
    messages = [i.out for _, i in step.plan.instructions() if i.is_communication]
    return {"w": net.w.asnumpy(), "bias": net.b.asnumpy(), "v": net.v.asnumpy()}, {"messages": messages}
