"""The networks: sizes are their papers', and under every strategy helper they train as one device does."""

import numpy as np
import pytest

from parallel_lab import Session, StrategyError, Tensor, compile, nn
from parallel_lab.base.errors import ArgumentError, ShapeError
from parallel_lab.nn import models
from parallel_lab.train.dataset import load_digits_cifar
from tests.crossed import each_of
from tests.refusals import refused

BOUND = 1e-9  # float64; a missing or doubled addend is off by a tenth at least


def in_float64(net):
    for p in net.get_parameters():
        p._initial, p._data = None, p.asnumpy().astype(np.float64)
    return net


def trained(net, loss, batches, optimizer, **settings):
    """Losses and parameters after one step per batch."""
    plan = compile(net, *batches[0], loss=loss, optimizer=optimizer, dataset_strategy="full_batch", **settings)
    with Session(plan, net, optimizer) as session:
        return session.train(batches, len(batches)), session.parameters(), plan


def check_equal(net, loss, batches, *cuts, rate=0.01):
    """Train on one device and, after each of `splits(net)`, on 8; compare losses, parameters. Returns 8's last plan."""
    rule = nn.Momentum(net.trainable_params(), rate, 0.9)
    losses, values, _ = trained(net, loss, batches, rule, parallel_mode="stand_alone", device_num=1)
    assert losses[0] != losses[-1]
    for cut in cuts:
        cut(net)
        got, found, plan = trained(net, loss, batches, rule, device_num=8)
        assert got == pytest.approx(losses, rel=BOUND)
        for name, value in values.items():
            far = np.abs(found[name] - value).max() / max(np.abs(value).max(), 1e-3)
            assert far <= BOUND, f"{name} is {far:.3g} off"
    return plan


def count(net):
    return sum(int(np.prod(p.shape)) for p in net.trainable_params())


def pictures(count, steps, dtype=np.float64):
    x, y = load_digits_cifar("train")
    return [(x[i * count : (i + 1) * count].astype(dtype), y[i * count : (i + 1) * count]) for i in range(steps)]


def tokens(rng, steps, n=8, s=16, vocab=48):
    ids = [rng.integers(0, vocab, (n, s + 1)).astype(np.int32) for _ in range(steps)]
    return [(i[:, :-1].copy(), i[:, 1:].copy()) for i in ids]


# ---- sizes ----


@pytest.mark.quick(4)
@each_of(
    ("make", "size"),
    (
        lambda: models.resnet18(1000, "imagenet"),
        11_689_512,
    ),  # both as published with the architectures' reference weights
    (lambda: models.resnet50(1000, "imagenet"), 25_557_032),
    (models.LeNet5, 61_706),  # 156 + 2416 + 48120 + 10164 + 850 weights and biases
    (lambda: models.GPT(50, 32, 2, 4, 16, tied=True), 50 * 32 + 16 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32),
    (lambda: models.GPT(50, 32, 2, 4, 16), 2 * 50 * 32 + 16 * 32 + 2 * (12 * 32**2 + 13 * 32) + 2 * 32),
    (lambda: models.WideDeep(100, 5, 8, (16, 4)), 100 + 1 + 800 + (40 * 16 + 16) + (16 * 4 + 4) + 5),
)
def test_number_of_parameters_is_that_of_the_paper(make, size):
    assert count(make()) == size


@pytest.mark.quick(2)
@each_of(
    ("net", "shape", "result"),
    (lambda: models.LeNet5(7, 3), (2, 3, 32, 32), (2, 7)),
    (lambda: models.LeNet5(10, 1, size=28), (2, 1, 28, 28), (2, 10)),
    (lambda: models.resnet18(5, width=4), (2, 3, 16, 16), (2, 5)),
    (lambda: models.resnet18(5, "imagenet", width=4), (2, 3, 32, 32), (2, 5)),
    (lambda: models.resnet50(5, width=4), (2, 3, 16, 16), (2, 5)),
)
def test_pictures_become_scores(net, shape, result):
    net = net()
    net.set_train()
    assert net(Tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))).shape == result


def test_a_causal_network_does_not_look_ahead(rng):
    net = models.GPT(48, 32, 2, 4, 16)
    ids = rng.integers(0, 48, (1, 12))
    scores = net(Tensor(ids)).asnumpy().reshape(12, 48)
    changed = ids.copy()
    changed[0, 7] = (changed[0, 7] + 1) % 48
    other = net(Tensor(changed)).asnumpy().reshape(12, 48)
    np.testing.assert_array_equal(scores[:7], other[:7])
    assert (scores[7:] != other[7:]).any(axis=1).all()


def test_tied_tables_are_one_parameter_whose_gradient_has_both_parts(rng):
    net = models.GPT(48, 32, 1, 4, 16, tied=True)
    assert "head" not in net.parameters_dict() and len([p for p in net.trainable_params() if p.shape == (48, 32)]) == 1
    with pytest.raises(ShapeError, match=r"ids of shape \(2, 17\)"):
        net(Tensor(rng.integers(0, 48, (2, 17))))


# ---- strategies ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("dp", "mp"), [(8, 1), (4, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize("tied", [False, True])
def test_gpt_trains_as_one_device_does_with_megatrons_messages(dp, mp, tied, rng):
    layers, hidden, n, s = 2, 32, 8, 8
    net = in_float64(models.GPT(48, hidden, layers, 8, s, tied=tied))
    plan = check_equal(
        net, models.LanguageModelLoss(), tokens(rng, 3, n, s), lambda net: models.tensor_parallel(net, dp, mp)
    )
    parameters = {p.name for p in plan.parameters}
    sums = [(phase, i) for phase, i in plan.instructions() if i.is_communication]
    assert {i.kind for _, i in sums} == {"all_reduce"}
    inside = [(phase, i) for phase, i in sums if plan.value(i.ins[0]).slice_shape and i.name not in parameters]
    each = 2 * layers if mp > 1 else 0  # Shoeybi et al. 2019: two all_reduces per layer forward, two backward
    assert [phase for phase, _ in inside].count("forward") == each
    assert [phase for phase, _ in inside].count("backward") == each
    for _, instr in inside:
        assert plan.value(instr.ins[0]).slice_bytes == n // dp * s * hidden * 8
        assert instr.group_size == mp
    # the rest: the loss, and one sum per parameter among the ranks that hold the same slice of it
    assert len(sums) - len(inside) == 1 + sum(plan.value(p.name).layout.replica_count > 1 for p in plan.parameters)


@pytest.mark.quick(0)
@pytest.mark.parametrize(("dp", "mp"), [(8, 1), (2, 4)])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoder_trains_as_one_device_does(dp, mp, norm_first, rng):
    net = in_float64(models.TransformerClassifier(48, 5, 32, 2, 4, 16, norm_first=norm_first))
    batches = [(ids, rng.integers(0, 5, 8).astype(np.int32)) for ids, _ in tokens(rng, 3)]
    check_equal(net, nn.CrossEntropyLoss(), batches, lambda net: models.tensor_parallel(net, dp, mp))


def test_dropout_does_not_depend_on_the_number_of_ranks(rng):
    net = in_float64(models.GPT(48, 32, 1, 4, 16, dropout=0.3))
    net.set_train()
    check_equal(net, models.LanguageModelLoss(), tokens(rng, 3), lambda net: models.tensor_parallel(net, 2, 4))


@pytest.mark.quick(0)
@pytest.mark.parametrize(("dp", "mp"), [(8, 1), (2, 4)])
@each_of("make", lambda: models.resnet18(width=4), lambda: models.resnet50(width=4), ids=["basic", "bottleneck"])
def test_residual_networks_train_as_one_device_does(dp, mp, make):
    net = in_float64(make())
    net.set_train()
    batches = [(x[:, :, ::4, ::4].copy(), y) for x, y in pictures(8, 2)]
    plan = check_equal(net, nn.CrossEntropyLoss(), batches, lambda net: models.tensor_parallel(net, dp, mp))
    assert plan.forward_assignments, "running statistics"


def test_lenet_trains_as_one_device_does():
    net = in_float64(models.LeNet5(10, 3))
    check_equal(net, nn.CrossEntropyLoss(), pictures(8, 3), lambda net: models.tensor_parallel(net, 2, 4))


@pytest.mark.parametrize("how", ["row", "column"])
def test_wide_and_deep_with_split_tables_trains_as_one_device_does(how, rng):
    net = in_float64(models.WideDeep(64, 5, 16, (32, 16)))

    def batch():
        clicks = rng.integers(0, 2, (16, 1)).astype(np.float64)
        return rng.integers(0, 64, (16, 5)).astype(np.int32), rng.uniform(size=(16, 5)), clicks

    batches = [batch() for _ in range(3)]
    plan = check_equal(net, nn.BCEWithLogitsLoss(), batches, lambda net: models.split_embeddings(net, how, 8))
    assert plan.value("deep_table").slice_shape == ((8, 16) if how == "row" else (64, 2))
    assert plan.value("wide_table").slice_shape == ((8, 1) if how == "row" else (64, 1))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_resnet50_on_pictures_in_cifars_layout_trains_as_one_device_does():
    """Global batch 16, 32x32 pictures, 3 steps, data parallel and with channels and classifier split.

    In float64: in float32 single inputs of a ReLU that are almost 0 change sign with the order of sums, and the losses
    part by 1e-3.
    """
    net = in_float64(models.resnet50(10))
    net.set_train()
    # at ten times this rate the first steps go up, and rounding grows with them
    cuts = (models.data_parallel, lambda net: models.tensor_parallel(net, 4, 2))
    check_equal(net, nn.CrossEntropyLoss(), pictures(16, 3), *cuts, rate=0.001)


def test_data_parallel_takes_strategies_away_again():
    net = models.tensor_parallel(models.GPT(48, 32, 1, 4, 16), 2, 4)
    assert net.scores.in_strategy is not None
    models.data_parallel(net)
    assert all(p.in_strategy is None for _, cell in net.cells_and_names() for p in cell._primitives.values())


test_what_cannot_be_is_refused_in_words = refused(
    (lambda: models.tensor_parallel(models.GPT(48, 32, 1, 4, 16), 1, 8), StrategyError, "mp=8 with 4 heads"),
    (lambda: models.tensor_parallel(nn.Dense(4, 4), 2, 2), ArgumentError, "One of GPT"),
    (lambda: models.split_embeddings(models.WideDeep(8, 2), "diagonal", 2), ArgumentError, "'row' or 'column'"),
    (lambda: models.split_embeddings(models.LeNet5(), "row", 2), ArgumentError, "A WideDeep network"),
    (lambda: models.GPT(48, 32, 1, 5, 16), ArgumentError, "heads divides hidden"),
    (lambda: models.LeNet5(size=30), ArgumentError, "size=30. A multiple of 4"),
    (lambda: models.ResNet(nn.Dense, (1,)), ArgumentError, "BasicBlock or Bottleneck"),
    (lambda: models.WideDeep(8, 2, layers="ab"), ArgumentError, "layers='ab'"),
)


def test_messages_name_the_networks_own_lines(rng):
    """They named the line of nn.Dense, which is the same for every layer."""
    net = models.tensor_parallel(models.GPT(48, 32, 1, 4, 16), 2, 4)
    plan = compile(
        net, *tokens(rng, 1)[0], loss=models.LanguageModelLoss(), device_num=8, dataset_strategy="full_batch"
    )
    inside = [i for _, i in plan.instructions("forward") if i.is_communication and i.name.endswith("matmul")]
    assert len(inside) == 2 and len({i.origin.place for i in inside}) == 2
    assert all(i.origin.place.startswith("gpt.py:") for i in inside)
    assert "self.out(" in inside[0].origin.text and "self.fc2(" in inside[1].origin.text
