"""parallelize_module: messages and placements that PyTorch was recorded to have; gradients equal to one device's."""

from fnmatch import fnmatch
from functools import partial

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentError, LayoutError, LayoutTypeError, NotBuiltYet
from parallel_lab.layout.mesh_layout import Partial, Replicate, Shard
from parallel_lab.nn.parallel_styles import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallel_cross_entropy,
)
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.dtensor import DTensor, distribute_tensor, dtensor_messages
from parallel_lab.nn.tensor.dtensor_parameter import clip_gradients, update
from tests.crossed import each_of
from tests.recorded import ask_rosetta
from tests.recorded.ask_rosetta import ROWS
from tests.recorded.rosetta_networks import MLP, Block, Decoder

LINE = pl.DeviceMesh((4,), ("tp",))
GRID = pl.DeviceMesh((2, 4), ("dp", "tp"))
LETTER = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS", "all_to_all": "AA"}


@pytest.mark.parametrize("row", ROWS["modules"], ids=lambda row: row["case"])
def test_pytorchs_networks(row):
    answer = ask_rosetta.modules(**row)
    assert answer == {name: row[name] for name in answer}


COLUMNS, ROWS_OF = ColwiseParallel(), RowwiseParallel()
SPLIT_DENSES = {
    **{f"attention.w{one}": COLUMNS for one in "qkv"},
    **{"attention.wo": ROWS_OF, "feed_forward.w1": COLUMNS, "feed_forward.w3": COLUMNS, "feed_forward.w2": ROWS_OF},
}
ONCE = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
WHOLE = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
SEQUENCE = {
    **SPLIT_DENSES,
    **{"*_norm": SequenceParallel(), "attention": WHOLE, "feed_forward": WHOLE},
    **dict.fromkeys(("attention.wo", "feed_forward.w2"), RowwiseParallel(output_layouts=Shard(1))),
}
MODEL = {
    "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    **{f"layers.*.{path}": style for path, style in SEQUENCE.items()},
    **{"norm": SequenceParallel(), "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())},
}
# network, plan, how the input lies and whether it wants a gradient, messages of PyTorch 2.14 forward and backward
PLANS = {
    "mlp": (MLP, {"w1": COLUMNS, "w2": ROWS_OF}, Replicate(), False, "AR", ""),
    "mlp, gradient of the input": (MLP, {"w1": COLUMNS, "w2": ROWS_OF}, Replicate(), True, "AR", "AR"),
    "mlp between split rows": (
        MLP,
        {"w1": ColwiseParallel(input_layouts=Shard(0)), "w2": RowwiseParallel(output_layouts=Shard(0))},
        *(Shard(0), True, "AG RS", "AG RS"),
    ),
    "rows, then columns": (
        MLP,
        {"w1": RowwiseParallel(input_layouts=Replicate()), "w2": ColwiseParallel(output_layouts=Replicate())},
        *(Replicate(), False, "AR AG", "AR"),
    ),
    "block": (Block, SPLIT_DENSES, Replicate(), False, "AR AR", "AR AR AR AR AR"),
    "block, inputs prepared once": (
        Block,
        {**SPLIT_DENSES, "attention": ONCE, "feed_forward": ONCE},
        *(Replicate(), False, "AR AR", "AR AR"),
    ),
    "block, sequence split": (Block, SEQUENCE, Shard(1), False, "AG RS AG RS", "AG RS AG RS"),
    "model": (Decoder, MODEL, Replicate(), False, "RS AG RS AG RS AG AG", "RS AG RS AG RS AG"),
}


CASES = [(name, LINE) for name in PLANS] + [("mlp between split rows", GRID["tp"]), ("model", GRID["tp"])]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_messages_are_pytorchs_and_gradients_one_devices(name, mesh):
    make, plan, placement, wanted, forward, backward = PLANS[name]
    shape = (8, 16) if make is MLP else (2, 8) if make is Decoder else (2, 8, 16)
    random = np.random.default_rng(3)
    whole = random.integers(0, 24, shape) if make is Decoder else random.normal(size=shape).astype(np.float32)
    alone, network = make(), pl.parallelize_module(make(), mesh, plan)
    x = distribute_tensor(whole, mesh, [placement], requires_grad=wanted)
    with dtensor_messages() as sent:
        out = network(x.to_local())
    with dtensor_messages() as back:
        (out.sum() * 0.5).backward()
    assert " ".join(LETTER[m.kind] for m in sent) == forward
    assert " ".join(LETTER[m.kind] for m in back) == backward
    _, grads = value_and_grad(lambda x: alone(x).sum() * 0.5, None, alone.trainable_params())(pl.Tensor(whole))
    for (path, parameter), grad in zip(network.parameters_and_names(), grads, strict=True):
        have = parameter.grad.asnumpy() if isinstance(parameter, DTensor) else parameter.grad.local(3)
        rounding = max(2e-5, 1e-6 * float(np.abs(grad.asnumpy()).max()))  # addends cancel
        np.testing.assert_allclose(have, grad.asnumpy(), rtol=1e-4, atol=rounding, err_msg=path)


def test_norms_of_a_split_sequence_have_pending_gradients_until_somebody_reads_them():
    network = pl.parallelize_module(nn.SequentialCell(nn.LayerNorm((16,))), LINE, {"0": SequenceParallel()})
    whole = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    out = network(distribute_tensor(whole, LINE, [Shard(1)]).to_local())
    assert out.layout.code == "S1"
    (out * out).sum().backward()
    gamma, beta = network.trainable_params()
    assert gamma.grad.layout.code == beta.grad.layout.code == "P"
    wanted = gamma.grad.asnumpy() * 1.0
    with dtensor_messages() as sent:
        update([gamma], lambda p, g: p - 0.5 * g)
        norm = clip_gradients([beta], 1.0)
    assert [m.reason for m in sent[:2]] == [
        "an update reads the gradient of 0.gamma: P -> R",
        "clipping reads the gradient of 0.beta: P -> R",
    ]
    np.testing.assert_allclose(gamma.asnumpy(), 1.0 - 0.5 * wanted, rtol=1e-6)
    assert gamma.grad is None and abs(np.linalg.norm(beta.grad.asnumpy()) - min(1.0, norm)) < 1e-4


def test_a_mesh_of_two_axes_computes_along_one_in_every_group():
    mesh = pl.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    assert mesh["dp", "tp"] is mesh and mesh["dp"].group("dp", 5) == (1, 5)
    tp = mesh["tp"]
    assert tp.shape == (4,) and tp.group("tp", 5) == (4, 5, 6, 7) and tp.coordinates(6) == (2,)
    assert tp["tp"].members == mesh.ranks and tp != LINE
    parts = DTensor.from_local(lambda rank: np.full((1, 2), float(rank)), tp, [Partial()])
    reduced = parts.redistribute([Replicate()])
    assert [float(reduced.local(rank)[0, 0]) for rank in (0, 7)] == [6.0, 22.0]
    with pytest.raises(LayoutTypeError, match="its own value"):
        reduced.full_tensor()
    for names in (("tp", "dp"), ("pp",), ()):
        with pytest.raises(LayoutError):
            mesh[names]


def test_what_a_plan_cannot_say_is_refused():
    with pytest.raises(LayoutError, match=r'mesh\["tp"\]'):
        pl.parallelize_module(MLP(), GRID, {"w1": COLUMNS})
    with pytest.raises(NotBuiltYet, match="SequenceParallel"):
        pl.parallelize_module(nn.SequentialCell(nn.LayerNorm((16,))), LINE, {"0": COLUMNS})
    with pytest.raises(ArgumentError, match="As many"):
        PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=(Shard(0), Shard(1)))
    with pytest.warns(UserWarning, match="no Cell 'w9'"):
        pl.parallelize_module(MLP(), LINE, {"w9": COLUMNS})
    both = PrepareModuleInput(input_layouts=(Shard(0), None), desired_input_layouts=(Replicate(), None))
    network = pl.parallelize_module(MLP(), LINE, both)
    with pytest.raises(ArgumentError, match="1 inputs by position and 2"):
        network(pl.Tensor(np.ones((8, 16), np.float32)))


def test_outputs_are_prepared_and_stay_dtensors_on_request():
    gather = PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate(), use_local_output=False)
    network = pl.parallelize_module(nn.Dense(16, 4), LINE, gather)
    out = network(distribute_tensor(np.ones((8, 16), np.float32), LINE, [Shard(0)]).to_local())
    assert out.shape == (8, 4) and out.layout.code == "R"


def test_the_loss_of_split_classes_gathers_none_of_them():
    # recorded: PyTorch 2.14, loss_parallel, logits split by rows and classes on (2, 4)
    random = np.random.default_rng(2)
    whole, labels = random.normal(size=(8, 16)).astype(np.float32), random.integers(0, 16, 8)
    logits = distribute_tensor(whole, GRID, [Shard(0), Shard(1)], requires_grad=True)
    with dtensor_messages() as sent:
        losses = parallel_cross_entropy(logits, distribute_tensor(labels, GRID, [Shard(0), Replicate()]))
    wanted = [["all_reduce", "tp", [4, 1], "max"], ["all_reduce", "tp", [4, 1]], ["all_reduce", "tp", [4, 1]]]
    assert ask_rosetta.listed(sent) == wanted and losses.layout.code == "S0 R"
    with dtensor_messages() as back:
        losses.backward(distribute_tensor(np.arange(8, dtype=np.float32), GRID, [Shard(0), Replicate()]))
    assert not back and logits.grad.layout.code == "S0 S1"
    exps = np.exp(whole.astype(np.float64))
    share = exps / exps.sum(1, keepdims=True)
    np.testing.assert_allclose(losses.asnumpy(), -np.log(share[np.arange(8), labels]), rtol=1e-5)
    expected = (share - np.eye(16)[labels]) * np.arange(8)[:, None]
    np.testing.assert_allclose(logits.grad.asnumpy(), expected, rtol=1e-4, atol=1e-6)


@each_of(
    ("words", "name"),
    ("w1 Colwise(input Shard(0)), w2 Rowwise(output Shard(0))", "mlp between split rows"),
    ("norms SP, wq wk wv w1 w3 Colwise, wo w2 out Shard(1), PrepareModuleInput", "block, sequence split"),
    (
        "embedding Rowwise(in Replicate, out Shard(1)), SP block, norm SP, output Colwise(in Shard(1), out Replicate)",
        "model",
    ),
)
def test_plans_in_words_are_those_plans(words, name):
    make, plan, *_ = PLANS[name]
    paths = [path for path, _ in make().cells_and_names()]
    found = ask_rosetta.styles(words, make())
    expanded = {p: style for pattern, style in plan.items() for p in paths if fnmatch(p, pattern)}
    assert {p: repr(s) for p, s in found.items()} == {p: repr(s) for p, s in expanded.items()}


@pytest.mark.parametrize("loss", ["mean", "sum", "none", "a Cell"])
def test_in_loss_parallel_cross_entropy_sends_a_number_or_two_per_row(loss):
    # recorded: PyTorch 2.14, loss_parallel, logits split by classes on (4); the backward sends nothing
    random = np.random.default_rng(3)
    whole, labels = random.normal(size=(8, 16)).astype(np.float32), random.integers(0, 16, 8)
    of = nn.CrossEntropyLoss() if loss == "a Cell" else partial(ops.cross_entropy, reduction=loss)
    logits = distribute_tensor(whole, LINE, [Shard(1)], requires_grad=True)
    with loss_parallel(), dtensor_messages() as sent:
        value = of(logits, distribute_tensor(labels, LINE))
        value.sum().backward()
    wanted = [["all_reduce", "tp", [8, 1], "max"], ["all_reduce", "tp", [8, 1]], ["all_reduce", "tp", [8, 1]]]
    assert ask_rosetta.listed(sent) == wanted and (value.layout.code, logits.grad.layout.code) == ("R", "S1")
    alone, grads = pl.value_and_grad(lambda x: of(x, pl.Tensor(labels)).sum(), 0)(pl.Tensor(whole))
    np.testing.assert_allclose(float(value.sum()), float(alone), rtol=1e-5)
    np.testing.assert_allclose(logits.grad.asnumpy(), grads.asnumpy(), rtol=1e-4, atol=1e-6)
    with loss_parallel(), pytest.raises(NotBuiltYet, match="labels"):
        ops.cross_entropy(logits, distribute_tensor(labels, LINE), label_smoothing=0.1)
    with dtensor_messages() as gathered:
        of(logits, distribute_tensor(labels, LINE))
    assert [m.kind for m in gathered] == ["all_gather"]
