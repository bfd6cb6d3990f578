"""What scripts read back has MindSpore's form: attributes of layers, an optimizer's rate, step and moments.

Forms: MindSpore 2.10, nn/layer/*.py and nn/optim/optimizer.py.
"""

import copy
import pickle

import numpy as np
import pytest
from parallel_lab.mindspore.common.initializer import HeUniform, Normal, Uniform

import parallel_lab.mindspore as ms
from parallel_lab.mindspore import Parameter, Tensor, nn, ops
from tests.crossed import each_of

LAYERS = {
    "conv2d": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, pad_mode="pad", padding=1, dilation=(1, 2), group=2, has_bias=True),
        {
            "kernel_size": (3, 3),
            "stride": (2, 2),
            "dilation": (1, 2),
            "padding": 1,
            "pad_mode": "pad",
            "group": 2,
            "in_channels": 4,
            "out_channels": 6,
            "has_bias": True,
            "data_format": "NCHW",
            "weight_init": HeUniform,
            "bias_init": Uniform,
        },
    ),
    "conv2d of its own values": (
        lambda: nn.Conv2d(3, 8, (3, 5), weight_init=Normal(0.02)),
        {"kernel_size": (3, 5), "weight_init": Normal},
    ),
    "conv1d": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, pad_mode="pad", padding=1),
        {"kernel_size": (1, 3), "stride": (1, 2), "dilation": (1, 1), "padding": (0, 0, 1, 1)},
    ),
    "conv3d": (
        lambda: nn.Conv3d(4, 6, 3, stride=(1, 2, 1)),
        {"kernel_size": (3, 3, 3), "stride": (1, 2, 1), "dilation": (1, 1, 1)},
    ),
    "conv2d transposed": (
        lambda: nn.Conv2dTranspose(4, 6, 3, 2),
        {"kernel_size": (3, 3), "stride": (2, 2), "output_padding": 0},
    ),
    "conv1d transposed": (lambda: nn.Conv1dTranspose(4, 6, 3, 2), {"kernel_size": (1, 3), "stride": (1, 2)}),
    "max_pool2d": (lambda: nn.MaxPool2d(3, 2), {"kernel_size": 3, "stride": 2, "pad_mode": "valid"}),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, 2), {"kernel_size": (1, 3), "stride": (1, 2)}),
    "batch_norm": (
        lambda: nn.BatchNorm2d(4, 1e-3, 0.75, gamma_init=0.5),
        {
            "num_features": 4,
            "eps": 1e-3,
            "momentum": 0.25,
            "gamma_init": 0.5,
            "moving_var_init": "ones",
            "affine": True,
        },
    ),
    "layer_norm": (lambda: nn.LayerNorm([4], epsilon=1e-5), {"epsilon": 1e-5, "begin_norm_axis": -1}),
    "group_norm": (lambda: nn.GroupNorm(2, 4), {"num_groups": 2, "num_channels": 4, "eps": 1e-5}),
    "dense": (lambda: nn.Dense(3, 2, has_bias=False), {"in_channels": 3, "out_channels": 2, "has_bias": False}),
    "dropout": (lambda: nn.Dropout(p=0.25), {"p": 0.25, "keep_prob": 0.75}),
    "embedding": (lambda: nn.Embedding(7, 3), {"vocab_size": 7, "embedding_size": 3, "dtype": ms.float32}),
    "lstm": (lambda: nn.LSTM(4, 3, 2), {"input_size": 4, "hidden_size": 3, "num_layers": 2}),
    "upsample": (lambda: nn.Upsample(scale_factor=2.0), {"scale_factor": 2.0, "mode": "nearest", "size": None}),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_arguments_of_layers_are_attributes_in_the_form_of_mindspore(layer):
    make, expected = LAYERS[layer]
    made = make()
    found = {name: getattr(made, name) for name in expected}
    kinds = {name: type(value) for name, value in found.items() if isinstance(expected[name], type)}
    assert {**found, **kinds} == expected


def test_an_initial_value_that_is_a_parameter_is_not_the_layers():
    weight = Parameter(np.ones((2, 3), np.float32), "mine")
    layer = nn.Dense(3, 2, weight_init=weight, has_bias=False)
    assert layer.weight_init is weight and [p.name for p in layer.get_parameters()] == ["weight"]


# ---- optimizers ----


def unit_net():
    return nn.Dense(2, 1, weight_init="ones", has_bias=False)


def gradient(value):
    return (Tensor(np.full((1, 2), value, np.float32)),)


def test_a_constant_rate_is_a_parameter_that_may_be_assigned():
    net = unit_net()
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    rate = optimizer.learning_rate
    assert isinstance(rate, Parameter) and rate.name == "learning_rate" and rate.dtype == ms.float32
    ops.assign(rate, Tensor(0.25, ms.float32))
    assert optimizer.learning_rate is rate and float(optimizer.get_lr().asnumpy()) == 0.25
    optimizer(gradient(1))
    np.testing.assert_array_equal(net.weight.asnumpy(), [[0.75, 0.75]])
    optimizer.learning_rate.set_data(Tensor(0.5))
    optimizer(gradient(1))
    np.testing.assert_array_equal(net.weight.asnumpy(), [[0.25, 0.25]])
    assert optimizer.global_step.asnumpy().tolist() == [2] and optimizer.global_step.dtype == ms.int32
    assert not list(optimizer.get_parameters()), "they are no part of the network that a step trains and saves"


def test_rates_of_groups_and_schedules():
    a, b = (Parameter(Tensor([1.0]), name) for name in "ab")
    groups = nn.Momentum([{"params": [a], "lr": 0.05}, {"params": [b]}], 0.01, 0.9)
    assert [p.asnumpy() for p in groups.learning_rate] == [np.float32(0.05), np.float32(0.01)]
    assert groups.get_lr_parameter([a])[0].asnumpy() == np.float32(0.05)  # MindSpore's documented example
    listed = nn.Momentum([a], [0.5, 0.25], 0.9)
    assert isinstance(listed.learning_rate, nn.Cell) and listed.learning_rate.learning_rate.asnumpy().tolist() == [
        0.5,
        0.25,
    ]
    listed((Tensor([0.0]),))
    assert listed.get_lr().asnumpy() == 0.25 == listed.learning_rate(listed.global_step).asnumpy()
    # one of them changes: a list of Cells, called with a Tensor, as public callbacks read them
    mixed = nn.Momentum([{"params": [a], "lr": 0.05}, {"params": [b], "lr": nn.CosineDecayLR(0.0, 1.0, 4)}], 0.01, 0.9)
    assert isinstance(mixed.learning_rate, nn.CellList)
    assert [rate(Tensor(2)).asnumpy() for rate in mixed.learning_rate] == [np.float32(0.05), 0.5]
    own = nn.Momentum([{"params": [a], "lr": lambda step: 0.5}, {"params": [b]}], 0.01, 0.9)
    assert own.learning_rate[0](3) == 0.5 and own.learning_rate[1](3) == 0.01


@each_of(
    "make, names",
    (lambda p: nn.Momentum(p, 0.1, 0.9), ["moments"]),
    (lambda p: nn.Adam(p), ["moment1", "moment2"]),
    (lambda p: nn.AdamWeightDecay(p), ["moments1", "moments2"]),
    (lambda p: nn.Lamb(p, 0.1), ["moments1", "moments2"]),
    (lambda p: nn.RMSProp(p), ["moment", "ms"]),
    (lambda p: nn.FTRL(p), ["moments", "linear"]),
    (lambda p: nn.SGD(p, 0.1, momentum=0.9), ["accum"]),
)
def test_moments_are_parameters_that_a_step_changes_and_that_change_a_step(make, names):
    net = unit_net()
    optimizer = make(net.trainable_params())
    first = [getattr(optimizer, name)[0].asnumpy().copy() for name in names]
    optimizer(gradient(2))
    held = {value.tobytes() for value in optimizer.states["weight"].values()}
    for name, before in zip(names, first, strict=True):
        (moment,) = getattr(optimizer, name)
        assert (
            isinstance(moment, Parameter) and moment.asnumpy().tobytes() in held and (moment.asnumpy() != before).all()
        )
    ops.assign(moment, Tensor(np.full((1, 2), 3.0, np.float32)))
    assert any((value == 3).all() for value in optimizer.states["weight"].values())
    other = copy.deepcopy(optimizer)
    ops.assign(getattr(other, name)[0], Tensor(np.full((1, 2), 5.0, np.float32)))
    assert (moment.asnumpy() == 3).all() and pickle.loads(pickle.dumps(net.weight)).shape == (1, 2)


class OwnStep(nn.Optimizer):
    def __init__(self, params, rate):
        super().__init__(rate, params)

    def construct(self, gradients):
        for p, g in zip(self.parameters, gradients, strict=True):
            ops.assign(p, p - g * self.get_lr())
        return True


@each_of("rate, weights", (0.5, [0.5, 0.375]), ([0.5, 0.25], [0.5, 0.25]))
def test_an_optimizer_with_a_construct_of_its_own_reads_the_rate_of_every_step(rate, weights):
    net = unit_net()
    optimizer = OwnStep(net.trainable_params(), rate)
    for step, weight in enumerate(weights):
        optimizer(gradient(1))
        np.testing.assert_array_equal(net.weight.asnumpy(), [[weight, weight]])
        assert optimizer.global_step == step + 1
        if rate == 0.5:
            ops.assign(optimizer.learning_rate, Tensor(0.125))
