"""The labs' networks and problems: what they train on, operators by name, and that presets are right."""

from functools import cache

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, StrategyError
from parallel_lab.lab.pictures.layers import operator_of
from parallel_lab.lab.shared import networks
from parallel_lab.lab.shared.problems import PROBLEMS, get_problem, problems_of
from parallel_lab.train.dataset import load_digits, load_digits_cifar, seed_batch

PAIRS = [(data, name) for name, network in networks.NETWORKS.items() for data in problems_of(network.kind)]
each_problem = pytest.mark.parametrize("data", PROBLEMS)
each_net = pytest.mark.parametrize("name", networks.NETWORKS)
each_pair = pytest.mark.parametrize(("data", "name"), PAIRS)


def compiled(data, name, devices, strategies=None):
    """(plan, net, optimizer, problem) of a network with its preset."""
    problem, network = get_problem(data), networks.NETWORKS[name]
    net = networks.apply_strategies(
        network.factory(problem), network.preset(devices) if strategies is None else strategies
    )
    optimizer = problem.optimizer(net.trainable_params())
    how = {"device_num": devices, "dataset_strategy": "full_batch"}
    plan = pl.compile(net, *problem.batches[0], loss=problem.loss(), optimizer=optimizer, **how)
    return plan, net, optimizer, problem


def losses(data, name, devices, steps, strategies=None):
    plan, net, optimizer, problem = compiled(data, name, devices, strategies)
    with pl.Session(plan, net, optimizer) as session:
        return np.array(session.train(problem.batches, steps)), session.parameters()


# ---- problems ----


def test_the_seed_problem_is_the_quickstart_s_batch():
    problem = get_problem("seed")
    assert len(problem.batches) == 1
    for have, want in zip(problem.batches[0], seed_batch(16, 32, 16), strict=True):
        np.testing.assert_array_equal(have, want)
    assert (problem.in_dim, problem.hidden_dim, problem.out_dim, problem.steps_per_epoch) == (32, 16, 16, 4)


def test_the_digits_come_in_45_batches_of_32_that_are_all_of_the_training_images():
    problem, (images, labels) = get_problem("digits"), load_digits()
    assert len(problem.batches) == problem.steps_per_epoch == 1440 // 32
    assert {(x.shape, str(x.dtype), y.shape, str(y.dtype)) for x, y in problem.batches} == {
        ((32, 784), "float32", (32,), "int32")
    }
    np.testing.assert_array_equal(np.concatenate([x for x, _ in problem.batches]), images)
    np.testing.assert_array_equal(np.concatenate([y for _, y in problem.batches]), labels)


@each_problem
def test_a_problem_is_shared_and_cannot_be_changed_by_accident(data):
    problem = get_problem(data)
    assert get_problem(data) is problem
    for array in problem.batches[0]:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_an_unknown_problem_is_refused_with_the_names_there_are():
    with pytest.raises(ArgumentError, match=r"'mnist' is not known.*seed, digits, pictures"):
        get_problem("mnist")


def test_the_pictures_are_the_colour_digits_around_zero():
    problem, (images, labels) = get_problem("pictures"), load_digits_cifar()
    assert {(x.shape, str(x.dtype), y.shape) for x, y in problem.batches} == {((32, 3, 32, 32), "float32", (32,))}
    np.testing.assert_allclose(np.concatenate([x for x, _ in problem.batches]) / 4 + 0.5, images, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([y for _, y in problem.batches]), labels)


def test_the_text_counts_from_zero_and_the_label_is_the_letter_that_follows():
    letters = " abcdefghijklmnopqrstuvwxyz"
    batches = get_problem("text").batches
    read = "".join(letters[i] for x, _ in batches for i in x.ravel())
    assert read.startswith("zero one two three ") and "nineteen twenty twenty one twenty two" in read
    for x, y in batches:
        assert x.shape == y.shape == (16, 16)
        np.testing.assert_array_equal(x.ravel()[1:], y.ravel()[:-1])


def test_clicks_have_one_feature_of_each_field_and_both_answers():
    for ids, weights, clicked in get_problem("clicks").batches:
        assert (ids // 16 == np.arange(4)).all() and (weights == 1).all()
        assert clicked.shape == (64, 1) and 0.2 < clicked.mean() < 0.8 and set(np.unique(clicked)) == {0.0, 1.0}


def test_every_kind_of_network_has_a_problem_and_every_problem_a_network():
    assert {name for network in networks.NETWORKS.values() for name in problems_of(network.kind)} == set(PROBLEMS)
    assert all(get_problem(data).kind == networks.NETWORKS[name].kind for data, name in PAIRS)


# ---- operators by name ----


@pytest.mark.quick(4)
@each_pair
def test_operators_are_named_as_in_the_plan(data, name):
    """If a network is made of others, its parts carry the operator's name in front."""
    plan, net, _, _ = compiled(data, name, 1, {})
    primitives = networks.operator_primitives(net)
    of_the_net = {
        n.name: operator_of(n.name, primitives)
        for n in plan.graph.nodes
        if not n.name.startswith("loss_fn.") and not n.opdef.view
    }
    assert all(of_the_net.values())
    # the position table is sliced for shorter sequences only
    assert set(primitives) - set(of_the_net.values()) <= {"position"}


def test_operators_of_one_library_layer_are_one_layer():
    net = networks.NETWORKS["transformer"].factory(get_problem("text"))
    layers = networks.operator_layers(net)
    expected = {f"blocks.0.mlp.fc1.{part}" for part in ("matmul", "bias_add", "activation.gelu")}
    assert {k for k, v in layers.items() if v == "blocks.0.mlp.fc1"} == expected
    assert layers["blocks.0.attention.attention"] == "blocks.0.attention.attention" and layers["embed"] == "embed"
    assert set(layers) == set(networks.operator_primitives(net))


def test_the_operators_of_the_three_networks():
    assert list(networks.operator_primitives(networks.QuickNet(4, 4, 4))) == ["matmul", "relu", "matmul2"]
    assert list(networks.operator_primitives(networks.MegatronMlp(4, 4, 4))) == ["mm1", "add1", "gelu", "mm2", "add2"]
    expected = {"dense1.matmul", "dense1.bias_add", "relu", "dense2.matmul", "dense2.bias_add"}
    assert set(networks.operator_primitives(networks.DenseNet(4, 4, 4))) == expected


def test_parameters_have_the_names_of_the_quickstart():
    assert [p.name for p in networks.QuickNet(32, 16, 16).trainable_params()] == ["w", "w2"]
    assert [p.name for p in networks.MegatronMlp(32, 16, 16).trainable_params()] == ["w1", "b1", "w2", "b2"]


def test_a_strategy_reaches_its_operator_and_none_takes_it_back():
    net = networks.DenseNet(32, 16, 16)
    chosen = ((2, 4), (1, 4))
    assert networks.apply_strategies(net, {"dense2.matmul": chosen}) is net
    assert net.dense2.matmul.in_strategy == chosen
    assert net.dense1.matmul.in_strategy is None
    networks.apply_strategies(net, {"relu": ((8, 1),)})
    assert net.dense2.matmul.in_strategy == chosen
    networks.apply_strategies(net, {"dense2.matmul": None})
    assert net.dense2.matmul.in_strategy is None


def test_an_unknown_operator_is_refused_with_the_names_and_nothing_is_changed():
    net = networks.QuickNet(32, 16, 16)
    with pytest.raises(StrategyError, match=r"no operator 'matmul3'.*matmul, relu, matmul2"):
        networks.apply_strategies(net, {"matmul": ((2, 4), (4, 1)), "matmul3": ((1, 1), (1, 1))})
    assert net.matmul.in_strategy is None


# ---- presets ----


def test_the_quickstart_preset_on_8_ranks_is_what_seed_003_prints():
    plan = compiled("seed", "quickstart", 8)[0]
    chosen = {n.name: (n.strategy, n.strategy_source) for n in plan.graph.nodes}
    assert chosen["matmul"] == (((2, 4), (4, 1)), "user")
    assert chosen["relu"] == (((2, 4),), "user")
    assert chosen["matmul2"] == (((2, 4), (4, 1)), "user")


@pytest.mark.quick(8)
@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize(
    ("data", "name", "preset"), [(d, n, p) for d, n in PAIRS for p in networks.NETWORKS[n].presets]
)
def test_a_preset_is_in_force_and_uses_every_rank(data, name, preset, devices):
    """A preset that fell back to all-ones strategies would be right and teach nothing."""
    given = networks.NETWORKS[name].presets[preset](devices)
    plan = compiled(data, name, devices, given)[0]
    assert all(n.strategy == given[n.name] for n in plan.graph.nodes if n.name in given)
    most = max(
        np.prod([*layout.splits, len(layout.partial_group(0))])
        for _, v in plan.values
        if (layout := v.layout) is not None
    )
    assert most == devices


@pytest.mark.quick(1)
@each_pair
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_preset_trains_as_one_device_does(data, name, devices):
    same_as_one_device(data, name, devices, None)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("data", "name", "preset"),
    [
        (d, n, p)
        for d, n in PAIRS
        if len(networks.NETWORKS[n].presets) > 1 and d != "digits"
        for p in list(networks.NETWORKS[n].presets)[1:]
    ],
)
def test_the_other_presets_train_as_one_device_does(data, name, preset):
    same_as_one_device(data, name, 8, networks.NETWORKS[name].presets[preset](8))


@cache
def on_one_device(data, name):
    return losses(data, name, 1, 3, {})


def same_as_one_device(data, name, devices, strategies):
    found, wanted = losses(data, name, devices, 3, strategies), on_one_device(data, name)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    if networks.NETWORKS[name].kind != "rows":
        # Adam makes a whole step of a gradient that is nothing but rounding: test_equality.py has the bound for its
        # parameters
        return
    for key, value in wanted[1].items():
        np.testing.assert_allclose(found[1][key], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=key)


def test_the_height_preset_exchanges_halos_and_the_channels_preset_adds_up():
    kinds = {
        p: [(i.kind, i.name) for _, i in compiled("pictures", "convnet", 8, make(8))[0].instructions("forward")]
        for p, make in CONV.items()
    }
    expected = [("halo_exchange", "conv1.conv2d"), ("halo_exchange", "conv2.conv2d")]
    assert [k for k in kinds["batch and height"] if k[0] == "halo_exchange"] == expected
    assert ("all_reduce", "conv2.conv2d") in kinds["batch and channels"]
    assert ("all_reduce", "conv1.conv2d") not in kinds["batch and channels"]
    assert not any(
        kind.startswith("halo") for name in ("batch and channels", "data parallel") for kind, _ in kinds[name]
    )


CONV = networks.NETWORKS["convnet"].presets


def test_the_transformer_s_block_needs_two_all_reduces_in_forward():
    """Megatron-LM, section 3: one after the attention and one after the MLP."""
    plan = compiled("text", "transformer", 8)[0]
    reduced = [
        i.name for _, i in plan.instructions("forward") if i.kind == "all_reduce" and not i.name.startswith("loss_fn.")
    ]
    assert reduced == ["blocks.0.attention.out.matmul", "blocks.0.mlp.fc2.matmul"]


def test_tables_by_rows_add_up_and_tables_by_columns_are_gathered():
    presets = networks.NETWORKS["embedding"].presets
    rows, columns = (
        compiled("clicks", "embedding", 8, presets[f"tables by {how}"](8))[0] for how in ("rows", "columns")
    )
    assert rows.value("deep_table").slice_shape == (8, 16) and columns.value("deep_table").slice_shape == (64, 2)
    found = [i.name for _, i in rows.instructions("forward") if i.kind == "all_reduce" and "gather" in i.name]
    assert found == ["wide_gather", "deep_gather"]
    assert any(i.kind == "all_gather" for _, i in columns.instructions("forward"))


def test_megatron_needs_one_all_reduce_in_forward_besides_the_loss():
    plan = compiled("seed", "megatron", 8)[0]
    reduced = [
        i.name for _, i in plan.instructions("forward") if i.kind == "all_reduce" and not i.name.startswith("loss_fn.")
    ]
    assert reduced == ["mm2"]


@pytest.mark.exhaustive
@each_pair
def test_a_hundred_steps_bring_the_loss_down_clearly(data, name):
    run = losses(data, name, 1, 100)[0]
    assert np.isfinite(run).all()
    assert run[-5:].mean() < 0.3 * run[0]


def test_pictures_of_another_size_fit_too():
    net = networks.ConvNet(1, 8, 4, 3)
    assert net(pl.Tensor(np.ones((2, 1, 8, 8), np.float32))).shape == (2, 3)


@each_net
def test_initial_values_do_not_depend_on_what_was_made_before(name):
    problem = get_problem(problems_of(networks.NETWORKS[name].kind)[-1])
    first = networks.NETWORKS[name].factory(problem)
    draws = {p.name: p.asnumpy() for p in first.trainable_params()}
    other = networks.NETWORKS["quickstart"].factory(get_problem("seed"))
    assert other.weight.asnumpy().shape == (32, 16)
    again = networks.NETWORKS[name].factory(problem)
    for p in reversed(again.trainable_params()):
        np.testing.assert_array_equal(p.asnumpy(), draws[p.name])
