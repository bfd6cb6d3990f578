"""fully_shard: messages in PyTorch's order and sizes, gradients equal to one device's mean over ranks."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, LayoutError
from parallel_lab.layout.mesh_layout import Replicate, Shard
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.dtensor import distribute_tensor, dtensor_messages
from parallel_lab.nn.tensor.dtensor_parameter import update
from tests.recorded import ask_rosetta
from tests.recorded.ask_rosetta import ROWS, listed
from tests.recorded.rosetta_networks import Layered

LINE = pl.DeviceMesh((8,), ("dp",))
GRID = pl.DeviceMesh((2, 4), ("dp", "tp"))
HYBRID = pl.DeviceMesh((2, 4), ("replicate", "shard"))
AG, RS = ["all_gather", "dp", [34]], ["reduce_scatter", "dp", [272]]


@pytest.mark.parametrize("row", ROWS["fsdp"], ids=lambda row: row["case"])
def test_pytorchs_messages(row):
    answer = ask_rosetta.fsdp(**row)
    assert answer == {name: row[name] for name in answer}


def grouped(mesh, root=None, network=None, **options):
    """Three layers, each a group, and the head."""
    network = network or Layered()
    for layer in network.layers:
        pl.fully_shard(layer, mesh=mesh, **options)
    return pl.fully_shard(network, mesh=mesh, **(root or {}))


def of_tensor_parallel(mesh):
    plan = {"layers.0": pl.ColwiseParallel(), "layers.1": pl.RowwiseParallel()}
    return grouped(mesh["dp"], network=pl.parallelize_module(Layered(), mesh["tp"], plan))


def listed_group(mesh):
    network = Layered()
    pl.fully_shard([network.layers[0], network.layers[1]], mesh=mesh)
    return pl.fully_shard(network, mesh=mesh)


def two_dims(parameter):
    return Shard(1) if len(parameter.full_shape) == 2 else None


def gather(size):
    return ["all_gather", "dp", [size]]


def scatter(size):
    return ["reduce_scatter", "dp", [size]]


FOUR, BACK = [AG] * 4, [AG, AG, RS, AG, RS, RS, RS]
# network, mesh, messages forward and backward, recorded with PyTorch 2.14 and a fake group
CASES = {
    "layers": (grouped, LINE, FOUR, BACK),
    "kept after forward": (lambda m: grouped(m, reshard_after_forward=False), LINE, FOUR, [RS] * 4),
    "root given up too": (lambda m: grouped(m, {"reshard_after_forward": True}), LINE, FOUR, [AG, *BACK]),
    "kept among four": (
        lambda m: grouped(m, reshard_after_forward=4),
        LINE,
        FOUR,
        [gather(68), gather(68), RS, gather(68), RS, RS, RS],
    ),
    "root only": (lambda m: pl.fully_shard(Layered(), mesh=m), LINE, [gather(136)], [scatter(1088)]),
    "two layers, one group": (listed_group, LINE, [gather(68)] * 2, [gather(68), scatter(544), scatter(544)]),
    "columns": (
        lambda m: grouped(m, {"shard_placement_fn": two_dims}, shard_placement_fn=two_dims),
        LINE,
        [gather(22), AG, AG, AG],
        [AG, AG, RS, AG, RS, scatter(176), RS],
    ),
    "over tensor parallelism": (
        of_tensor_parallel,
        GRID,
        [gather(85), gather(34), gather(40), ["all_reduce", "tp", [4, 16]], gather(136)],
        [gather(136), gather(40), scatter(272), gather(34), scatter(80), scatter(170), scatter(68)],
    ),
    "copies of parts": (grouped, HYBRID, None, None),
}


def one_device(whole, ranks):
    """(Parameters, their gradients): the mean over ranks of what each has from its rows."""
    alone = Layered()
    parameters = alone.trainable_params()
    _, grads = value_and_grad(lambda x: alone(x).sum() / ranks, None, parameters)(pl.Tensor(whole))
    return parameters, [g.asnumpy() for g in grads]


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", CASES)
def test_messages_are_pytorchs_and_gradients_one_devices(name):
    make, mesh, forward, backward = CASES[name]
    network = make(mesh)
    batches = 2 if mesh is GRID else 8
    whole = np.random.default_rng(5).normal(size=(4 * batches, 16)).astype(np.float32)
    split = {LINE: [Shard(0)], GRID: [Shard(0), Replicate()], HYBRID: [Shard(0), Shard(0)]}[mesh]
    x = distribute_tensor(whole, mesh, split).to_local()
    alone, wanted = one_device(whole, batches)
    for _ in range(2):  # the second step is as the first
        with dtensor_messages() as sent:
            out = network(x)
        with dtensor_messages() as back:
            out.sum().backward()
        if forward is not None:
            assert (listed(sent), listed(back)) == (forward, backward)
        for (path, parameter), value, grad in zip(network.parameters_and_names(), alone, wanted, strict=True):
            np.testing.assert_array_equal(parameter.asnumpy(), value.asnumpy())
            assert parameter.grad.layout == parameter.layout
            np.testing.assert_allclose(parameter.grad.asnumpy(), grad, rtol=1e-4, atol=1e-5, err_msg=path)
            parameter.grad = None


def test_gradients_of_micro_batches_add_up_before_they_are_sent():
    network = grouped(LINE)
    whole = np.random.default_rng(6).normal(size=(16, 16)).astype(np.float32)
    x = distribute_tensor(whole, LINE, [Shard(0)]).to_local()
    for sync in (False, True):
        network.set_requires_gradient_sync(sync)
        network(x).sum().backward()
        assert (network.head.weight.grad is None) is not sync
    _, wanted = one_device(whole, 8)
    np.testing.assert_allclose(network.head.weight.grad.asnumpy(), 2 * wanted[6], rtol=1e-4)
    weight = network.head.weight.asnumpy()
    update(network.trainable_params(), lambda p, g: p - 0.25 * g)
    np.testing.assert_allclose(network.head.weight.asnumpy(), weight - 0.5 * wanted[6], rtol=1e-4, atol=1e-6)


def test_copies_wait_for_their_reduction_until_it_is_required():
    network = grouped(HYBRID)
    whole = np.random.default_rng(7).normal(size=(16, 16)).astype(np.float32)
    x = distribute_tensor(whole, HYBRID, [Shard(0), Shard(0)]).to_local()
    network.set_requires_all_reduce(False)
    with dtensor_messages() as sent:
        network(x).sum().backward()
    assert "all_reduce" not in {m.kind for m in sent} and network.head.weight.grad is None
    network.set_requires_all_reduce(True)
    network(x).sum().backward()
    np.testing.assert_allclose(network.head.weight.grad.asnumpy(), 2 * one_device(whole, 8)[1][6], rtol=1e-4)


def test_half_the_bytes_forward_and_sums_in_float32():
    policy = {"mp_policy": pl.MixedPrecisionPolicy("bfloat16", "float32")}
    network = grouped(LINE, policy, **policy)
    x = distribute_tensor(np.ones((16, 16), np.float32), LINE, [Shard(0)]).to_local()
    with dtensor_messages() as sent:
        out = network(x)
        out.sum().backward()
    assert {m.kind: m.dtype for m in sent} == {"all_gather": "bfloat16", "reduce_scatter": "float32"}
    assert out.dtype == "bfloat16" and network.head.weight.grad.dtype == np.float32
    np.testing.assert_allclose(network.head.bias.grad.asnumpy(), 2.0)


def test_a_cell_holds_parts_but_while_it_runs_and_on_request():
    network = grouped(LINE)
    assert network.head.weight.shape == (10, 16) and network.head.weight.local(5).shape == (0, 16)
    network.unshard()
    assert network.head.weight.local(5).shape == (10, 16)
    network.reshard()
    assert network.head.weight.local(4).shape == (2, 16)


def test_what_cannot_be_sharded_is_refused():
    with pytest.raises(ArgumentError, match="divides 8"):
        pl.fully_shard(Layered(), mesh=LINE, reshard_after_forward=3)
    with pytest.raises(ArgumentTypeError, match="A Cell, or a list"):
        pl.fully_shard([], mesh=LINE)
    with pytest.raises(LayoutError, match="One axis, or two"):
        pl.fully_shard(Layered(), mesh=pl.DeviceMesh((2, 2, 2)))
    with pytest.raises(ArgumentError, match="A Cell once"):
        pl.fully_shard(grouped(LINE), mesh=LINE)
    with pytest.raises(LayoutError, match="that the ranks divide"):
        pl.fully_shard(pl.nn.Dense(12, 8), mesh=LINE, shard_placement_fn=two_dims)
