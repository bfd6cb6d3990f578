"""`parallel-lab bench training`: it measures what it says, and tells what goes wrong. No test asserts a speed."""

import json

import numpy as np
import pytest

from parallel_lab import Tensor, nn, value_and_grad
from parallel_lab.base import seeds
from parallel_lab.cli import main as cli
from tests.bench import training
from tests.bench.cases import TRAINING_CASES
from tests.bench.training import training_text
from tests.crossed import each_of, first


@pytest.mark.parametrize("case", first(1, ["mlp", "transformer", "conv"]))
def test_networks_are_the_same_in_every_process_whatever_its_seed(case):
    net, _, x, labels = training.network(case)
    with seeds.temporary_seed(77):
        other, _, other_x, other_labels = training.network(case)
        others = {name: parameter.asnumpy() for name, parameter in other.parameters_dict().items()}
    assert np.array_equal(x, other_x) and np.array_equal(labels, other_labels)
    weights = {name: parameter.asnumpy() for name, parameter in net.parameters_dict().items()}
    assert weights.keys() == others.keys() and weights
    assert all(np.array_equal(weights[name], others[name]) for name in weights)


@pytest.mark.quick(0)
@pytest.mark.parametrize("case", [c for c in TRAINING_CASES if c != "tiny"])
def test_memory_of_a_step_is_counted_in_full(case):
    """The parts are known from the networks; the peak cannot be below what is alive when the backward pass begins."""
    found = training.memory(case)
    net, *_ = training.network(case)
    size = 4 * sum(int(np.prod(p.shape)) for p in net.trainable_params())
    assert (found["parameters"], found["gradients"], found["states"]) == (size, size, 0)
    assert found["peak"] >= found["parameters"] + found["activations"]


@pytest.mark.exhaustive
def test_activations_of_the_mlp_are_those_the_formula_says():
    """Input; per dense layer product and biased product; ReLU's result; the loss's few numbers: 256 rows of float32."""
    columns = 784 + 2 * (1024 + 1024 + 10) + 1024 + 1024
    found = training.memory("mlp")["activations"]
    assert 0 <= found - 4 * 256 * columns < 4 * 256 * 10


@pytest.mark.parametrize("case", first(1, ["mlp", "transformer", "conv"]))
def test_our_step_lowers_the_loss(case):
    net, loss, x, labels = training.network(case)
    optimizer = nn.SGD(net.trainable_params(), training.LEARNING_RATE)
    forward = value_and_grad(nn.WithLossCell(net, loss), None, optimizer.parameters)
    losses = []
    for _ in range(2):
        value, grads = forward(Tensor(x), Tensor(labels))
        optimizer(grads)
        losses.append(float(value))
    assert losses[1] < losses[0]


RESULT = {
    "case": "mlp",
    "threads": 2,
    "seconds": {"ours": [0.05, 0.06], "torch": [0.05, 0.05]},
    "median_s": {"ours": 0.055, "torch": 0.05},
    "ratio": 1.1,
    "limit": 1.1,
    "difference": 3e-7,
    "memory_bytes": {"peak": 300, "parameters": 100, "gradients": 100, "states": 0, "activations": 50},
    "memory_limit": 1.5,
}


def test_the_table_shows_times_ratio_difference_and_memory():
    text = training_text([RESULT])
    first = text.splitlines()[1].split()
    assert first == ["mlp", "55.00", "ms", "50.00", "ms", "1.10", "1.1", "3.0e-07", "0.0", "MiB", "1.20", "1.5"]
    assert "medians of 2 rounds in turns, 2 thread(s)" in text


def test_without_pytorch_the_table_says_how_to_get_it():
    alone = {**RESULT, "seconds": {"ours": [0.05]}, "median_s": {"ours": 0.05}, "ratio": None, "difference": None}
    text = training_text([alone])
    assert "not installed" in text and "pip install torch" in text


def test_the_command_measures_and_writes_its_numbers(tmp_path, capsys):
    file = tmp_path / "speed.json"
    assert cli.main(["bench", "training", "--cases", "tiny", "--rounds", "1", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["training"]
    assert [r["case"] for r in found] == ["tiny"] and len(found[0]["seconds"]["ours"]) == 1
    assert 0 < found[0]["median_s"]["ours"] < 1
    assert "us per operator" in capsys.readouterr().out


def test_wrong_arguments_are_refused(capsys):
    for wrong in (["--rounds", "0"], ["--cases", "rnn"], ["--threads", "two"]):
        with pytest.raises(SystemExit):
            cli.main(["bench", "training", *wrong])
        assert "error" in capsys.readouterr().err


@each_of(
    ("given", "said"),
    (["--ranks", "4"], "--ranks: only with --parallel"),
    (["--alone", "--ranks", "2", "4"], "--ranks and --alone: only with --parallel"),
    (["--parallel", "--cases", "mlp", "--threads", "2"], "--cases and --threads: not with --parallel"),
)
def test_an_option_of_the_other_form_is_refused(given, said, capsys):
    """It was taken and had no effect."""
    with pytest.raises(SystemExit):
        cli.main(["bench", "training", *given])
    assert said in capsys.readouterr().err
