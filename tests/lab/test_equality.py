"""The proof of equality: equal runs pass with their rows, and one perturbed parameter, gradient or step is found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.base.errors import StrategyError
from parallel_lab.base.seeds import set_seed
from parallel_lab.graph.compiler import compile_network
from parallel_lab.lab.shared import equality
from parallel_lab.lab.shared.networks import NETWORKS, apply_strategies
from parallel_lab.lab.shared.problems import get_problem, problems_of
from parallel_lab.processes.shm import close_all
from parallel_lab.train.session import Session

EPS = float(np.finfo(np.float32).eps)


def job(name: str = "quickstart", devices: int = 8, data: str = "seed"):
    problem, network = get_problem(data), NETWORKS[name]
    net = apply_strategies(network.factory(problem), {} if data == "digits" else network.preset(devices))
    return problem, net, problem.optimizer(net.trainable_params())


def sessions(devices: int = 8):
    problem, net, optimizer = job(devices=devices)
    how = {"loss": problem.loss(), "optimizer": optimizer}
    split = compile_network(net, *problem.batches[0], dataset_strategy="full_batch", device_num=devices, **how)
    whole = compile_network(net, *problem.batches[0], parallel_mode="stand_alone", **how)
    return problem, net, optimizer, split, whole


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("name", "data"), [(name, data) for name, network in NETWORKS.items() for data in problems_of(network.kind)]
)
def test_split_runs_equal_one_device_tensor_by_tensor(name, data):
    problem, net, optimizer = job(name, 4, data)
    proof = equality.prove_equal(
        net, problem.batches, loss=problem.loss(), optimizer=optimizer, device_num=4, steps=5, executor="simulator"
    )
    # batch norm's statistics are not trained
    trained, names = [p.name for p in net.trainable_params()], [p.name for p in net.get_parameters()]
    found, wanted = (
        [r.tensor for r in proof.rows],
        [*(f"gradient of {n}, step 1" for n in trained), *(f"{n} after step 5" for n in names)],
    )
    assert found[0] == "loss, 5 steps" and sorted(found[1:]) == sorted(wanted)
    assert proof.equal and all(r.bound > 0 for r in proof.rows), str(proof)
    assert "EQUAL" in str(proof) and f"{len(proof.rows)} of {len(proof.rows)} tensors" in str(proof)


@pytest.mark.exhaustive
def test_worker_processes_are_named_in_the_title_and_agree_with_the_simulator():
    problem, net, optimizer = job(devices=2)
    run = {"loss": problem.loss(), "optimizer": optimizer, "device_num": 2, "steps": 3}
    try:
        real = equality.prove_equal(net, problem.batches, executor="processes", **run)
    finally:
        close_all()
    simulated = equality.prove_equal(net, problem.batches, executor="simulator", **run)
    assert real.title == "2 worker processes against one device"
    assert simulated.title == "2 simulated ranks against one device"
    assert real.equal and [r.largest_difference for r in real.rows] == [r.largest_difference for r in simulated.rows]


@pytest.mark.parametrize("perturbed", ["w", "w2"])
def test_one_perturbed_parameter_makes_the_proof_fail(perturbed):
    """One element of one parameter off by a thousandth of the largest: far above rounding, unseen in a loss curve."""
    problem, net, optimizer, split, whole = sessions()
    given = {n: p.asnumpy().copy() for n, p in net.parameters_dict().items()}
    given[perturbed][3, 5] += np.abs(given[perturbed]).max() * 1e-3
    with Session(split, given, optimizer) as session, Session(whole, net, optimizer) as reference:
        proof = equality.compare_sessions(session, reference, problem.batches, 1)
    found = {r.tensor: r.verdict for r in proof.rows}
    assert not proof.equal and found[f"{perturbed} after step 1"] == "different"
    assert "DIFFERENT" in str(proof) and "Different" in proof._repr_html_()
    assert proof.verdict == f"DIFFERENT: {list(found.values()).count('different')} of {len(found)} tensors"


def test_a_wrong_step_makes_the_proof_fail():
    problem, net, optimizer, split, whole = sessions()
    other = nn.Momentum(net.trainable_params(), 0.21, 0.1)  # the problem's own rate is 0.2
    with Session(split, net, other) as session, Session(whole, net, optimizer) as reference:
        proof = equality.compare_sessions(session, reference, problem.batches, 2)
    found = {r.tensor: r.verdict for r in proof.rows}
    assert found["w2 after step 2"] == "different" and found["gradient of w2, step 1"] != "different"


def test_values_that_are_not_numbers_are_never_equal():
    row = equality.EqualityRow("w", float("inf"), 1e-3)
    assert not row.equal and row.verdict == "different" and not equality.Equality("t", (row,)).equal


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [(0.0, "identical"), (1e-7, "equal to rounding"), (1e-6, "equal to rounding"), (2e-6, "different")],
)
def test_verdicts(difference, verdict):
    assert equality.EqualityRow("w", difference, 1e-6).verdict == verdict


def test_the_worst_row_uses_up_most_of_its_bound():
    rows = (
        equality.EqualityRow("a", 5e-7, 1e-6),
        equality.EqualityRow("b", 1e-6, 1e-3),
        equality.EqualityRow("c", 0.0, 0.0),
    )
    assert equality.Equality("t", rows).worst.tensor == "a"
    assert equality.Equality("t", (*rows, equality.EqualityRow("d", 1e-30, 0.0))).worst.tensor in ("a", "d")


def test_the_bound_grows_with_additions_steps_and_magnitude():
    """4 sqrt(n) eps steps max|value|. n: twice (k = 32, 16 of products, 1 for ReLU, the loss's sums); the rows."""
    _, _, _, _, whole = sessions()
    value = np.array([[0.5, -2.0]], np.float32)
    n = equality.additions_behind(whole)
    assert n >= 2 * (32 + 16 + 1) + 16
    assert equality.rounding_bound(whole, value, 3) == pytest.approx(4 * math.sqrt(n) * EPS * 3 * 2.0)
    assert equality.rounding_bound(whole, np.zeros((0,), np.float32)) == 0.0


def test_a_refused_strategy_is_refused_before_anything_runs():
    problem, net, optimizer = job()
    apply_strategies(net, {"matmul": ((2, 4), (2, 1))})
    with pytest.raises(StrategyError, match="equally"):
        equality.prove_equal(
            net, problem.batches, loss=problem.loss(), optimizer=optimizer, device_num=8, steps=1, executor="simulator"
        )


def test_the_notebooks_table_is_escaped():
    page = equality.Equality("<t>", (equality.EqualityRow("<w>", 0.0, 1e-6),))._repr_html_()
    assert "&lt;t&gt;" in page and "&lt;w&gt;" in page and "<w>" not in page and page.count("scope='col'") == 4


@pytest.mark.exhaustive
def test_adam_that_makes_much_of_small_gradients_is_not_called_different():
    """Adam divides by a root mean square: a gradient of rounding size moves a weight by a whole rate on one device."""
    for seed in range(6):
        set_seed(seed)
        net = nn.SequentialCell(nn.Dense(16, 64, activation="gelu"), nn.Dense(64, 16), nn.Dense(16, 16))
        net[0].matmul.shard(((2, 1), (4, 1)))
        net[1].matmul.shard(((2, 4), (1, 4)))
        rng = np.random.default_rng(seed)
        batch = (rng.random((16, 16), dtype=np.float32), rng.integers(0, 16, 16).astype(np.int32))
        optimizer = nn.Adam(net.trainable_params(), 0.01)
        proof = equality.prove_equal(
            net, [batch], loss=nn.CrossEntropyLoss(), optimizer=optimizer, device_num=8, steps=1, executor="simulator"
        )
        assert proof.equal, f"seed {seed}\n{proof}"
    set_seed(1)


@pytest.mark.parametrize("steps", [0, -1, 1.5, "2"])
def test_invalid_steps_are_refused(steps):
    problem = get_problem("seed")
    net = NETWORKS["quickstart"].factory(problem)
    with pytest.raises(ValueError, match="steps="):
        how = {"loss": problem.loss(), "optimizer": problem.optimizer(net.trainable_params())}
        equality.prove_equal(net, problem.batches, **how, steps=steps, executor="simulator")
