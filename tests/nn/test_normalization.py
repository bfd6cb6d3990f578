"""Normalising layers: formulas, running statistics, and training under strategies."""

import numpy as np
import pytest

from parallel_lab import Session, ShapeError, compile, nn, ops, set_auto_parallel_context
from parallel_lab.base.errors import TracedCommunication
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.run.simulator import Simulator
from tests.crossed import each_of
from tests.nn.one_device import check_equals_one_device, messages, trained
from tests.refusals import refused

X = np.random.default_rng(3).normal(2.0, 3.0, (8, 4, 2, 6))
SCALE, SHIFT = np.array([0.5, 1.0, 2.0, 3.0]), np.array([-1.0, 0.0, 1.0, 2.0])


def normalized(x, axes, eps):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def along_channels(values, ndim):
    return values.reshape(-1, *(1,) * (ndim - 2))


@each_of("layer, shape", (nn.InstanceNorm1d, (8, 4, 12)), (nn.InstanceNorm2d, (8, 4, 2, 6)))
def test_instance_norm_normalises_every_channel_of_every_sample(layer, shape):
    x = np.resize(X, shape)
    norm = layer(4, gamma_init=Tensor(SCALE), beta_init=Tensor(SHIFT), dtype=np.float64)
    expected = normalized(x, tuple(range(2, len(shape))), 1e-5) * along_channels(SCALE, len(shape))
    for training in (True, False):  # there are no running statistics
        found = norm.set_train(training)(Tensor(x)).asnumpy()
        np.testing.assert_allclose(found, expected + along_channels(SHIFT, len(shape)), rtol=1e-12, atol=1e-12)
    assert not nn.InstanceNorm3d(4, affine=False).trainable_params()
    with pytest.raises(ShapeError, match=r"InstanceNorm.*shape \(8, 4\).*with c = 4"):
        norm(Tensor(x.reshape(8, 4, -1)[..., 0]))


def test_instance_norm_with_split_channels_trains_as_on_one_device():
    def shard(net):
        net.group_norm.shard(((2, 4, 1, 1), (4,), (4,)))

    given = X, np.roll(X, 1, 1)
    check_equals_one_device(lambda: nn.InstanceNorm2d(4, dtype=np.float64), nn.MSELoss(), given, shard)


@each_of(
    "setting, training, of_batch", (True, False, True), (False, True, False), (None, True, True), (None, False, False)
)
def test_use_batch_statistics_goes_before_the_training_mode(setting, training, of_batch):
    bn = nn.BatchNorm2d(4, use_batch_statistics=setting, dtype=np.float64)
    bn.set_train(training)
    result = bn(Tensor(X)).asnumpy()
    assert np.allclose(result.mean((0, 2, 3)), 0) == of_batch
    assert np.allclose(bn.moving_mean.asnumpy(), 0) != of_batch


def test_running_statistics_are_not_trained_parameters():
    bn = nn.BatchNorm2d(4, affine=False)
    assert bn.trainable_params() == []
    assert [p.name for p in bn.get_parameters()] == ["gamma", "beta", "moving_mean", "moving_variance"]


class ConvLike(nn.Cell):
    """1x1 product over channels, batch norm, mean over positions."""

    def __init__(self, norm=nn.BatchNorm2d, **options):
        super().__init__()
        self.mix = nn.Dense(4, 8, dtype=np.float64)
        self.last, self.first = ops.Transpose(), ops.Transpose()
        self.bn = norm(8, dtype=np.float64, **options)
        self.relu, self.mean = ops.ReLU(), ops.ReduceMean()

    def construct(self, x):
        x = self.first(self.mix(self.last(x, (0, 2, 3, 1))), (0, 3, 1, 2))
        return self.mean(self.relu(self.bn(x)), (2, 3))


TARGET = np.random.default_rng(4).normal(size=(8, 8))
STRATEGIES = {"batch": (8, 1, 1, 1), "channels": (1, 8, 1, 1), "batch and channels": (2, 4, 1, 1)}
STRATEGIES |= {"with repeated calculation": (2, 2, 1, 1), "height and width": (2, 1, 2, 2)}


@pytest.mark.quick(1)
@pytest.mark.parametrize("how", STRATEGIES)
def test_batch_norm_trains_as_on_one_device_with_its_running_statistics(how):
    cuts = STRATEGIES[how]
    plan = check_equals_one_device(
        ConvLike, nn.MSELoss(), (X, TARGET), lambda net: net.bn.batch_norm.shard((cuts, *((cuts[1],),) * 4)), steps=3
    )
    sums = [i for i in messages(plan) if plan.value(i.out).shape == (2, 8)]
    cut = cuts[0] * cuts[2] * cuts[3]
    expected = [("all_reduce", cut, (2, 8))] if cut > 1 else []
    assert [(i.kind, i.group_size, plan.value(i.out).shape) for i in sums] == expected
    back = [i for i in messages(plan, "backward") if plan.value(i.out).shape == (2, 8)]
    assert len(back) == len(sums)


def test_without_a_strategy_the_batch_is_cut_and_the_statistics_are_still_those_of_all():
    check_equals_one_device(ConvLike, nn.MSELoss(), (X, TARGET), lambda net: None)


@pytest.mark.quick(1)
@each_of("norm, sync", (nn.BatchNorm2d, {"sync": True}), (nn.BatchNorm2d, {}), (nn.SyncBatchNorm, {}))
def test_in_data_parallel_mode_training_equals_one_device_only_with_sync(norm, sync):
    net = ConvLike(norm, **sync)
    sync = bool(sync) or norm is nn.SyncBatchNorm
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    settings = {"parallel_mode": "data_parallel", "device_num": 8, "gradients_mean": True}
    plan = compile(net, X[:1], TARGET[:1], loss=nn.MSELoss(), optimizer=optimizer, **settings)
    assert len(messages(plan)) == int(sync)
    with Session(plan, net, optimizer) as session:
        session.train([(X, TARGET)], 2)
        found = session.parameters()
    _, wanted, _ = trained(ConvLike, nn.MSELoss(), (X, TARGET), steps=2)
    for name in ("mix.weight", "bn.gamma", "bn.beta"):
        assert np.allclose(found[name], wanted[name], rtol=1e-10, atol=1e-12) == sync, name


LOCAL = {"parallel_mode": "data_parallel", "device_num": 8, "dataset_strategy": "data_parallel"}


@each_of("groups", [[0, 1, 2, 3], [7, 6, 5, 4]], [[0, 2], [1, 3], [4, 6], [5, 7]])
def test_ranks_of_one_group_share_statistics(groups):
    layer = nn.SyncBatchNorm(4, dtype=np.float64, process_groups=groups).set_train()
    plan = compile(layer, X[:1], **LOCAL)
    simulator = Simulator(plan, {p.name: p.asnumpy() for p in layer.get_parameters()})
    simulator.run_step(X)
    for group in groups:
        expected = normalized(X[sorted(group)], (0, 2, 3), 1e-5)
        found = np.concatenate([simulator.value(plan.outputs[0], rank) for rank in sorted(group)])
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


test_what_sync_batch_norm_refuses = refused(
    (lambda: nn.SyncBatchNorm(4)(Tensor(X[0])), ShapeError, r"\(n, c\) or \(n, c, h, w\)"),
    (
        lambda: compile(nn.SyncBatchNorm(4), X, parallel_mode="semi_auto_parallel", device_num=8),
        RuntimeError,
        "semi_auto_parallel.*nn.BatchNorm2d",
    ),
    (
        lambda: compile(nn.SyncBatchNorm(4, process_groups=[[0, 1], [2]]).set_train(), X[:1], **LOCAL),
        TracedCommunication,  # a rank alone: no program for all ranks says that
        r"exchanges within \(\(0, 1\),\), in a plan for 8 ranks",
    ),
)


def test_ranks_are_checked_against_the_number_that_is_set():
    set_auto_parallel_context(device_num=8)
    nn.SyncBatchNorm(4, process_groups=[[0, 7]])
    with pytest.raises(ValueError, match=r"process_groups=\[\[0, 8\]\]\. Ranks from 0 to 7"):
        nn.SyncBatchNorm(4, process_groups=[[0, 8]])


# ---- layer, RMS and group norm ----


@pytest.mark.parametrize("layer", [lambda: nn.LayerNorm((6,)), lambda: nn.RMSNorm((6,))], ids=["layer", "rms"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_results_have_the_wider_dtype_of_input_and_parameters(layer, dtype):
    assert layer()(Tensor(X.astype(dtype))).dtype == max(np.dtype(dtype), np.dtype(np.float32))


test_what_normalising_layers_refuse = refused(
    (lambda: nn.BatchNorm2d(3)(Tensor(X)), ShapeError, r"shape \(8, 4, 2, 6\).*c = 3"),
    (lambda: nn.BatchNorm1d(4)(Tensor(X)), ShapeError, r"\(n, c\) or \(n, c, l\)"),
    (lambda: nn.LayerNorm((2, 6)), ValueError, "Give begin_params_axis=-2"),
    (lambda: nn.LayerNorm((5,))(Tensor(X)), ShapeError, r"LayerNorm: gamma has shape \(5,\). \(6,\)"),
    (lambda: nn.RMSNorm((5,))(Tensor(X)), ShapeError, r"gamma has shape \(5,\)"),
    (lambda: nn.GroupNorm(3, 4), ValueError, "num_groups=3 with num_channels=4"),
    (lambda: ops.BatchNorm(is_training=True)(X[:1, :, 0, 0], *[SCALE] * 4), ShapeError, "one element per channel"),
    (lambda: ops.layer_norm(X, (3,), SCALE, SHIFT), ShapeError, "normalized_shape="),
)
