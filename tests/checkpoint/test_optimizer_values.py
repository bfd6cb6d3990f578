"""Optimizer states in checkpoints: a resumed training goes on bit for bit as if nothing had happened."""

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn, ops, value_and_grad
from parallel_lab.base.errors import CheckpointError
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.nn.optim.amp import DynamicLossScaler
from parallel_lab.train import checkpoint
from parallel_lab.train.checkpoint.values import parameter_of_state
from tests.checkpoint.drawn import same_bits
from tests.checkpoint.worlds import as_rank
from tests.crossed import each_of


class Net(nn.Cell):
    def __init__(self, seed, dtypes=("float32", "float32")):
        super().__init__()
        draw = np.random.default_rng(seed)
        self.w = Parameter(Tensor(draw.standard_normal((6, 4)).astype(dtypes[0])), name="w")
        self.b = Parameter(Tensor(draw.standard_normal(4).astype(dtypes[1])), name="b")

    def construct(self, x):
        return ops.add(ops.cast(ops.matmul(ops.cast(x, str(self.w.dtype)), self.w), str(self.b.dtype)), self.b)


OPTIMIZERS = {
    "SGD": lambda p: nn.SGD(p, 0.1),
    "SGD-momentum": lambda p: nn.SGD(p, 0.1, momentum=0.9, dampening=0.5),
    "Momentum": lambda p: nn.Momentum(p, 0.1, 0.9),
    "Adam": lambda p: nn.Adam(p, 0.01),
    "Adam-schedule": lambda p: nn.Adam(p, [0.01 / (i + 1) for i in range(100)]),
    "AdamWeightDecay": lambda p: nn.AdamWeightDecay(p, 0.01, weight_decay=0.1),
    "RMSProp": lambda p: nn.RMSProp(p, 0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: nn.Adagrad(p),
    "Lamb": lambda p: nn.Lamb(p, 0.01),
    "AdaFactor": lambda p: nn.AdaFactor(p),
    "FTRL": lambda p: nn.FTRL(p, learning_rate=0.1),
    "LARS": lambda p: nn.LARS(nn.Momentum(p, 0.1, 0.9), lars_filter=lambda x: True),
    "groups": lambda p: nn.Adam([{"params": p[:1], "lr": 0.02}, {"params": p[1:]}], 0.01),
    "scaler": lambda p: nn.Momentum(p, 0.1, 0.9, loss_scaler=DynamicLossScaler(8.0, 2, 3)),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)


def train(net, optimizer, steps):
    def forward(x):
        loss = ops.reduce_mean(ops.square(ops.cast(net(x), "float32")))
        return optimizer.loss_scaler.scale(loss) if optimizer.loss_scaler else loss

    losses, gradient = [], value_and_grad(forward, None, optimizer.parameters)
    for _ in range(steps):
        loss, grads = gradient(Tensor(X))
        optimizer(grads)
        losses.append(float(loss))
    return losses


@pytest.mark.quick(2)
@every_optimizer
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64")], ids=["float32", "mixed"])
def test_a_resumed_training_gives_the_losses_of_one_that_never_stopped(tmp_path, make, dtypes):
    net = Net(1, dtypes)
    optimizer = make(net.trainable_params())
    train(net, optimizer, 5)
    checkpoint.save_checkpoint(net, tmp_path / "net.ckpt")
    checkpoint.save_checkpoint(optimizer, tmp_path / "opt.ckpt")
    expected = train(net, optimizer, 5)

    other = Net(2, dtypes)
    resumed = make(other.trainable_params())
    train(other, resumed, 2)  # it has states of its own, which are replaced
    assert checkpoint.load_param_into_net(other, checkpoint.load_checkpoint(tmp_path / "net.ckpt")) == ([], [])
    assert checkpoint.load_param_into_net(resumed, checkpoint.load_checkpoint(tmp_path / "opt.ckpt")) == ([], [])
    assert resumed.global_step == 5
    assert train(other, resumed, 5) == expected


@pytest.mark.quick(2)
@every_optimizer
def test_forgetting_the_optimizer_would_be_seen(tmp_path, make):
    """The tooth: without its states (or its place in the schedule) the losses differ, for every rule that has any."""
    net = Net(1)
    optimizer = make(net.trainable_params())
    train(net, optimizer, 5)
    checkpoint.save_checkpoint(net, tmp_path / "net.ckpt")
    values = checkpoint.optimizer_values(optimizer)
    expected = train(net, optimizer, 5)
    other = Net(2)
    fresh = make(other.trainable_params())
    checkpoint.load_param_into_net(other, checkpoint.load_checkpoint(tmp_path / "net.ckpt"))
    keeps_nothing = {name for name in values if not name.startswith("learning_rate")} == {"global_step"}
    assert (train(other, fresh, 5) == expected) is (keeps_nothing and not fresh.has_schedule)


def test_names_are_mindspores(tmp_path):
    net = Net(1)
    adam, momentum = nn.Adam(net.trainable_params(), 0.01), nn.Momentum(net.trainable_params(), 0.1, 0.9)
    shared = {"learning_rate", "global_step"}
    assert set(checkpoint.optimizer_values(momentum)) == {"moments.w", "moments.b"} | shared
    expected = {f"moment{i}.{n}" for i in (1, 2) for n in "wb"} | {"beta1_power", "beta2_power"}
    assert set(checkpoint.optimizer_values(adam)) == expected | shared


def test_values_of_one_optimizer_can_be_given_to_another():
    net, other = Net(1), Net(1)
    one, two = nn.Adam(net.trainable_params(), 0.01), nn.Adam(other.trainable_params(), 0.5)
    train(net, one, 3)
    checkpoint.load_param_into_net(other, {p.name: p for p in net.get_parameters()})
    assert checkpoint.load_optimizer_values(two, checkpoint.optimizer_values(one)) == ([], [])
    assert two.learning_rate == 0.01
    assert train(net, one, 3) == train(other, two, 3)


def test_a_cell_that_holds_the_optimizer_is_saved_with_it(tmp_path):
    class Trainer(nn.Cell):
        def __init__(self, seed):
            super().__init__()
            self.network = Net(seed)
            self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)

    trainer = Trainer(1)
    train(trainer.network, trainer.optimizer, 3)
    checkpoint.save_checkpoint(trainer, tmp_path / "x.ckpt")
    loaded = checkpoint.load_checkpoint(tmp_path / "x.ckpt")
    assert {"network.w", "network.b", "moments.network.w", "moments.network.b", "global_step"} <= set(loaded)
    other = Trainer(2)
    assert checkpoint.load_param_into_net(other, loaded) == ([], [])
    assert train(other.network, other.optimizer, 3) == train(trainer.network, trainer.optimizer, 3)


def test_what_is_missing_is_named_and_the_rest_is_kept():
    net = Net(1)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    train(net, optimizer, 2)
    before = checkpoint.optimizer_values(optimizer)
    values = {name: value + 1 for name, value in before.items() if name.endswith(".w")}
    missing, unused = checkpoint.load_optimizer_values(optimizer, {**values, "moment1.other": np.zeros(2)})
    assert sorted(missing) == sorted(name for name in before if not name.endswith(".w"))
    assert unused == ["moment1.other"]
    after = checkpoint.optimizer_values(optimizer)
    assert all(same_bits(after[name], np.asarray(values.get(name, before[name]))) for name in before)


@each_of(
    ("change", "said"),
    ({"moment1.w": np.zeros((6, 5), np.float32)}, r"'moment1.w': it has shape \(6, 5\)"),
    ({"moment1.w": np.zeros((6, 4), np.int32)}, "'moment1.w': its dtype is int32"),
    ({"moment1.w": None}, r"moment2.w without moment1"),
    ({"global_step": np.zeros(3)}, "'global_step'"),
    ({"beta1_power": np.zeros((2, 2), np.float32)}, "'beta1_power'"),
    ({"learning_rate": np.float64(-0.1)}, "'learning_rate': it is -0.1"),
    ({"learning_rate": np.float64(np.inf)}, "'learning_rate': it is inf"),
)
def test_what_does_not_fit_changes_nothing(change, said):
    net = Net(1)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    train(net, optimizer, 2)
    before = checkpoint.optimizer_values(optimizer)
    changed = {**{name: value + 1 for name, value in before.items()}, **change}
    values = {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(CheckpointError, match=said):
        checkpoint.load_optimizer_values(optimizer, values)
    after = checkpoint.optimizer_values(optimizer)
    assert all(same_bits(after[name], before[name]) for name in before)


@every_optimizer
def test_every_state_is_known_as_one_by_its_name(make):
    """Else it would load as a network's parameter; `parameter_of_state` has its own list: files have no optimizer."""
    optimizer = make(Net(1).trainable_params())
    for name, states in optimizer.states.items():
        assert {kind: parameter_of_state(f"{kind}.{name}") for kind in states} == dict.fromkeys(states, name)


# ---- on ranks ----

ROWS = TensorLayout((2, 2), (1, -1))


def test_states_of_a_cut_parameter_are_sliced_or_joined():
    net = Net(1)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    full = np.arange(24, dtype=np.float32).reshape(6, 4)
    with as_rank(3, 4, {"w": (full, ROWS)}) as tags:
        net.w.hold(np.array(net.w.asnumpy()[3:]), ROWS)
        states = {"w": {"moments": full[3:]}, "b": {"moments": np.ones(4, np.float32)}}
        optimizer.keep_states(states, {"w": ROWS, "b": None}, {})
        own = checkpoint.optimizer_records(optimizer, integrated=False)["moments.w"]
        assert (own.layout, own.global_shape, own.rank, tags) == (ROWS, (6, 4), 3, [])
        assert same_bits(own.array, full[3:])
        whole = checkpoint.optimizer_records(optimizer)["moments.w"]
        assert whole.layout is None and same_bits(whole.array, full) and len(tags) == 1


def test_slices_and_whole_states_are_taken_by_a_rank():
    full = np.arange(24, dtype=np.float32).reshape(6, 4)
    net = Net(1)
    source = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    source.keep_states({"w": {"moments": full}, "b": {"moments": np.ones(4, np.float32)}}, {"w": None, "b": None}, {})
    whole = checkpoint.optimizer_records(source)
    with as_rank(2, 4):
        other = Net(2)
        other.w.hold(np.array(other.w.asnumpy()[3:]), ROWS)
        target = nn.Momentum(other.trainable_params(), 0.1, 0.9)
        zeros = {"w": {"moments": np.zeros((3, 4), np.float32)}, "b": {"moments": np.zeros(4, np.float32)}}
        target.keep_states(zeros, {"w": ROWS, "b": None}, {})
        checkpoint.load_optimizer_values(target, whole)
        assert target.state_layouts == {"w": ROWS}
        assert same_bits(target.states["w"]["moments"], full[3:])
        # its own slices
        checkpoint.load_optimizer_values(target, checkpoint.optimizer_records(target, integrated=False))
        assert same_bits(target.states["w"]["moments"], full[3:])
