"""The networks and problems of the labs: what they train on, their operators by name, and that their presets are right."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.dataset import load_digits, seed_batch
from parallel_lab.errors import ArgumentError, StrategyError
from parallel_lab.lab.networks import NETWORKS, PROBLEMS, DenseNet, MegatronMlp, QuickNet, apply_strategies, get_problem, operator_primitives

each_problem = pytest.mark.parametrize("data", PROBLEMS)
each_net = pytest.mark.parametrize("name", NETWORKS)


def compiled(data, name, devices, strategies=None):
    """(plan, net, optimizer, problem) of a network with its preset."""
    problem, network = get_problem(data), NETWORKS[name]
    net = apply_strategies(network.factory(problem), network.preset(devices) if strategies is None else strategies)
    optimizer = problem.optimizer(net.trainable_params())
    how = {"device_num": devices, "dataset_strategy": "full_batch"}
    return pl.compile(net, *problem.batches[0], loss=problem.loss(), optimizer=optimizer, **how), net, optimizer, problem


def losses(data, name, devices, steps):
    plan, net, optimizer, problem = compiled(data, name, devices)
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
    assert {(x.shape, str(x.dtype), y.shape, str(y.dtype)) for x, y in problem.batches} == {((32, 784), "float32", (32,), "int32")}
    np.testing.assert_array_equal(np.concatenate([x for x, _ in problem.batches]), images)
    np.testing.assert_array_equal(np.concatenate([y for _, y in problem.batches]), labels)


@each_problem
def test_a_problem_is_shared_and_cannot_be_changed_by_accident(data):
    problem = get_problem(data)
    assert get_problem(data) is problem
    with pytest.raises(ValueError, match="read-only"):
        problem.batches[0][0][0, 0] = 1


def test_an_unknown_problem_is_refused_with_the_names_there_are():
    with pytest.raises(ArgumentError, match=r"'mnist' is not known.*seed, digits"):
        get_problem("mnist")


# ---- operators by name ----


@each_problem
@each_net
def test_operators_are_named_as_in_the_plan(data, name):
    plan, net, _, _ = compiled(data, name, 1, {})
    of_the_net = [n.name for n in plan.graph.nodes if not n.name.startswith("loss_fn.")]
    assert sorted(operator_primitives(net)) == sorted(of_the_net)


def test_the_operators_of_the_three_networks():
    assert list(operator_primitives(QuickNet(4, 4, 4))) == ["matmul", "relu", "matmul2"]
    assert list(operator_primitives(MegatronMlp(4, 4, 4))) == ["mm1", "add1", "gelu", "mm2", "add2"]
    assert set(operator_primitives(DenseNet(4, 4, 4))) == {"dense1.matmul", "dense1.bias_add", "relu", "dense2.matmul", "dense2.bias_add"}


def test_parameters_have_the_names_of_the_quickstart():
    assert [p.name for p in QuickNet(32, 16, 16).trainable_params()] == ["w", "w2"]
    assert [p.name for p in MegatronMlp(32, 16, 16).trainable_params()] == ["w1", "b1", "w2", "b2"]


def test_a_strategy_reaches_its_operator_and_none_takes_it_back():
    net = DenseNet(32, 16, 16)
    chosen = ((2, 4), (1, 4))
    assert apply_strategies(net, {"dense2.matmul": chosen}) is net
    assert net.dense2.matmul.in_strategy == chosen
    assert net.dense1.matmul.in_strategy is None
    apply_strategies(net, {"relu": ((8, 1),)})
    assert net.dense2.matmul.in_strategy == chosen
    apply_strategies(net, {"dense2.matmul": None})
    assert net.dense2.matmul.in_strategy is None


def test_an_unknown_operator_is_refused_with_the_names_and_nothing_is_changed():
    net = QuickNet(32, 16, 16)
    with pytest.raises(StrategyError, match=r"no operator 'matmul3'.*matmul, relu, matmul2"):
        apply_strategies(net, {"matmul": ((2, 4), (4, 1)), "matmul3": ((1, 1), (1, 1))})
    assert net.matmul.in_strategy is None


# ---- presets ----


def test_the_quickstart_preset_on_8_ranks_is_what_seed_003_prints():
    plan = compiled("seed", "quickstart", 8)[0]
    chosen = {n.name: (n.strategy, n.strategy_source) for n in plan.graph.nodes}
    assert chosen["matmul"] == (((2, 4), (4, 1)), "user")
    assert chosen["relu"] == (((2, 4),), "user")
    assert chosen["matmul2"] == (((2, 4), (4, 1)), "user")


@each_problem
@each_net
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_preset_uses_every_rank_and_trains_as_one_device_does(data, name, devices):
    plan = compiled(data, name, devices)[0]
    preset = NETWORKS[name].preset(devices)
    # a preset that fell back to all-ones strategies would be right and teach nothing
    assert all(n.strategy == preset[n.name] for n in plan.graph.nodes if n.name in preset)
    (rows, _), other = plan.graph.nodes[0].strategy  # a MatMul in every network; the contracted dim is cut equally in both operands
    assert rows * np.prod(other) == devices
    found, wanted = losses(data, name, devices, 3), losses(data, name, 1, 3)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for key, value in wanted[1].items():
        np.testing.assert_allclose(found[1][key], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=key)


def test_megatron_needs_one_all_reduce_in_forward_besides_the_loss():
    plan = compiled("seed", "megatron", 8)[0]
    reduced = [i.name for _, i in plan.instructions("forward") if i.kind == "all_reduce" and not i.name.startswith("loss_fn.")]
    assert reduced == ["mm2"]


@each_problem
@each_net
def test_a_hundred_steps_bring_the_loss_down_clearly(data, name):
    run = losses(data, name, 1, 100)[0]
    assert np.isfinite(run).all()
    assert run[-5:].mean() < 0.3 * run[0]


@each_net
def test_initial_values_do_not_depend_on_what_was_made_before(name):
    problem = get_problem("digits")
    first = NETWORKS[name].factory(problem)
    draws = {p.name: p.asnumpy() for p in first.trainable_params()}
    other = NETWORKS["quickstart"].factory(get_problem("seed"))
    assert other.weight.asnumpy().shape == (32, 16)
    again = NETWORKS[name].factory(problem)
    for p in reversed(again.trainable_params()):
        np.testing.assert_array_equal(p.asnumpy(), draws[p.name])
