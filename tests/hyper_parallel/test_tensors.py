"""HyperParallel's DTensor, and functions and networks laid out by it: values as on one device."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import parallel_lab as pl
import parallel_lab.hyper_parallel as hp
from parallel_lab import nn
from tests.crossed import each_of
from tests.house.source import ROOT

MESH = hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
X, W = np.arange(32.0, dtype=np.float32).reshape(4, 8), np.arange(24.0, dtype=np.float32).reshape(8, 3)


@each_of(
    "placements",
    (hp.Shard(0), hp.Replicate()),
    ("dp", "None"),
    (("tp", "dp"), "None"),
    hp.Layout((2, 2), ("dp", "tp"))("tp", "dp"),
)
def test_a_tensor_is_cut_and_gathered(placements):
    x = hp.distribute_tensor(X, MESH, placements)
    assert x.shape == (4, 8) and np.prod(x.local_shape) < 32
    assert np.array_equal(x.full_tensor().asnumpy(), X)
    moved = x.redistribute(MESH, ("None", "tp"))
    assert moved.placements == (hp.Replicate(), hp.Shard(1)) and np.array_equal(moved.full_tensor().asnumpy(), X)


def test_addends_are_reduced_where_a_script_asks_for_it():
    x, w = hp.distribute_tensor(X, MESH, ("None", "tp")), hp.distribute_tensor(W, MESH, ("tp", "None"))
    with pl.dtensor_messages() as sent:
        y = x @ w
        assert not sent and y.placements == (hp.Replicate(), hp.Partial())
        whole = y.reduce_partial()
    assert [(m.kind, m.axis) for m in sent] == [("all_reduce", "tp")]
    assert whole.layout.pending == {} and np.array_equal(whole.local(3), X @ W)


def test_operands_that_would_have_to_move_are_refused():
    x, w = hp.distribute_tensor(X, MESH, ("dp", "None")), hp.distribute_tensor(W, MESH, ("dp", "None"))
    with pytest.raises(ValueError, match="redistribute"):
        x @ w


def test_a_function_of_parts_becomes_one_of_tensors():
    add = hp.custom_shard(lambda a, n: a + n, MESH, ((hp.Shard(0), hp.Replicate()),), (("dp", "None"), None))
    y = add(hp.distribute_tensor(X, MESH, ("None", "None")), 1.0)
    assert y.placements[0] == hp.Shard(0) and np.array_equal(y.full_tensor().asnumpy(), X + 1)
    with pytest.raises(TypeError):
        add(hp.distribute_tensor(X, MESH, ("dp", "None")), hp.distribute_tensor(X, MESH, ("dp", "None")))
    with pytest.raises(ValueError, match="arguments"):
        add(1.0)


def test_a_network_is_laid_out_by_names():
    """The gradient of sum(x w^T) by w is the sum of x's rows, in every row."""
    net = nn.Dense(8, 4, has_bias=False)
    weight = net.weight.asnumpy().copy()
    plan = hp.ShardingPlan({"weight": ("tp", "None")}, {"input": ("dp", "None")}, {"output": ("dp", "None")})
    hp.shard_module(net, MESH, plan)
    assert net.weight.placements == (hp.Replicate(), hp.Shard(0))
    x = hp.distribute_tensor(X, MESH, ("None", "None"))
    y = net(x)
    assert y.placements == (hp.Shard(0), hp.Replicate())
    np.testing.assert_allclose(y.full_tensor().asnumpy(), X @ weight.T, rtol=1e-6)
    value, (grad,) = hp.parallelize_value_and_grad(lambda x: net(x).sum(), [net.weight])(x)
    np.testing.assert_allclose(float(value), (X @ weight.T).sum(), rtol=1e-5)
    np.testing.assert_allclose(grad.full_tensor().asnumpy(), np.tile(X.sum(0), (4, 1)), rtol=1e-5)
    with pytest.raises(ValueError, match="no Parameter"):
        hp.shard_module(net, MESH, hp.ShardingPlan({"bias": ("tp",)}))
    with pytest.raises(ValueError, match="inputs"):
        hp.shard_module(net, MESH, hp.ShardingPlan(input_plan={"inputs": ("dp",)}))


def test_parameters_are_gathered_for_their_use():
    mesh = hp.init_device_mesh("npu", (4,), mesh_dim_names=("dp",))
    net = nn.Dense(8, 4, has_bias=False)
    weight = net.weight.asnumpy().copy()
    assert hp.fully_shard(net, mesh) is net
    with pl.dtensor_messages() as sent:
        y = net(pl.DTensor.from_local(X, mesh.pivot).to_local())
    np.testing.assert_allclose(y.local(2), X @ weight.T, rtol=1e-6)
    assert [(m.kind, m.shape) for m in sent] == [("all_gather", (8,))]


@pytest.mark.exhaustive
def test_a_script_runs_on_ranks(tmp_path):
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import numpy as np
        from mindspore.communication import init
        from hyper_parallel import DTensor, init_device_mesh
        from hyper_parallel.core.placement_types import Partial, Replicate, Shard

        init()
        mesh = init_device_mesh("npu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = DTensor.from_local(np.full((2, 2), mesh.rank, np.float32), mesh, (Shard(0), Partial()))
        print(mesh["dp"].rank_list, x.shape, x.reduce_partial().full_tensor().asnumpy()[:, 0].tolist())
        """)
    )
    command = [sys.executable, "-m", "parallel_lab", "run", "-n", "4", "--as-hyper-parallel", "script.py"]
    found = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}
    )
    lines = sorted(line.partition(" ")[2].strip() for line in found.stdout.splitlines())
    assert next(line for line in lines if "(4, 2)" in line).endswith("(4, 2) [1.0, 1.0, 5.0, 5.0]"), found
    assert sum("(1, 3)" in line for line in lines) == 2 == sum("(0, 2)" in line for line in lines)


def test_tensors_are_made_from_a_shape():
    x = hp.ones(4, 8, device_mesh=MESH, placements=("dp", "None"), requires_grad=True)
    assert x.local_shape == (2, 8) and x.requires_grad and x.dtype == np.float32 and float(x.sum()) == 32
    assert not hp.zeros((4,), device_mesh=MESH, placements=("tp",), dtype="int32").asnumpy().any()
    assert np.array_equal(hp.full((2, 2), 3, device_mesh=MESH, placements=("None", "tp")).asnumpy(), np.full((2, 2), 3))
    draws = []
    for placements in (("dp", "tp"), ("None", "None")):  # what is drawn does not depend on how it is cut
        pl.set_seed(5)
        draws.append(hp.randn(4, 4, device_mesh=MESH, placements=placements).asnumpy())
    assert np.array_equal(*draws) and np.unique(draws[0]).size == 16


def test_without_dispatch_operators_run_on_parts():
    x = hp.distribute_tensor(X, MESH, ("dp", "None"))
    with hp.SkipDTensorDispatch():
        y = x + x
    assert not isinstance(y, hp.DTensor) and np.array_equal(y.local(2), 2 * X[2:])
    assert isinstance(x + x, hp.DTensor)


@pytest.mark.parametrize(("op", "factor"), [("avg", 1.0), ("sum:ReduceOp", 4.0)])
def test_gradients_of_ranks_are_averaged_or_added(op, factor):
    """Each of four ranks has the same input: the mean of their gradients is the gradient of one, their sum four."""
    mesh = hp.init_device_mesh("npu", (4,), mesh_dim_names=("dp",))
    net = hp.fully_shard(nn.Dense(8, 4, has_bias=False), mesh, comm_fusion=True)
    assert isinstance(net, hp.HSDPModule) and isinstance(net, nn.Dense)
    net.set_reduce_op_type(op)
    net(pl.DTensor.from_local(X, mesh.pivot).to_local()).sum().backward(None)
    np.testing.assert_allclose(net.weight.grad.asnumpy(), factor * np.tile(X.sum(0), (4, 1)), rtol=1e-5)
    net.zero_grads()
    assert net.weight.grad is None
    with pytest.raises(ValueError, match="avg"):
        net.set_reduce_op_type("max")


def test_groups_of_ranks():
    assert hp.split_group(None, [[2, 3], [1, 0]]) == (0, 1) and hp.split_group(None, [[2, 3]]) is None
    assert hp.get_process_group_ranks((1, 3)) == [1, 3] and hp.get_platform().get_rank() == 0
    for wrong in ([[0, 1], [1, 2]], []):
        with pytest.raises(ValueError, match="split_ranks"):
            hp.split_group((0, 1, 2), wrong)


@pytest.mark.parametrize("entries", [("dp", "None"), (("tp", "dp"), "None"), ("tp", "dp"), ("None", "None")])
def test_the_layout_of_a_tensor_is_a_layout(entries):
    """Also that of what an operator gives, and a pending one's."""
    x = hp.distribute_tensor(X, MESH, entries)
    given = hp.Layout((2, 2), ("dp", "tp"))(*entries)
    for y in (x, x + x, x.redistribute(MESH, ("None", "None")).redistribute(MESH, entries)):
        assert y.layout == given and y.layout.tensor_map == given.tensor_map
        assert y.layout.alias_tensor_map == entries and y.layout.rank_list == (0, 1, 2, 3)
        assert y.layout.get_global_shape(y.local_shape) == y.shape and not y.layout.is_partial()
    if entries[0] == "dp":
        assert x.sum(0).layout.partial == ["sum", None] and x.sum(0).layout.compact_str == x.sum(0).layout.compact_str
    assert x.layout == given.mesh_layout() and hash(x.layout) == hash(given.mesh_layout())
    with pytest.raises(AttributeError):
        _ = x.layout.split


def test_a_checkpoint_fits_networks_that_are_laid_out_otherwise(tmp_path):
    """Whole in the file; cut by columns in one network, by rows in the other."""
    platform, nets = hp.get_platform(), []
    for style in (pl.ColwiseParallel(), pl.RowwiseParallel()):
        nets.append(pl.parallelize_module(nn.Dense(8, 4), pl.DeviceMesh((2,), ("tp",)), style))
    platform.save_checkpoint(nets[0], str(tmp_path / "net.ckpt"))
    loaded = platform.load_checkpoint(str(tmp_path / "net.ckpt"))
    assert loaded["weight"].shape == (4, 8)
    before = nets[1].weight.placements
    assert pl.load_param_into_net(nets[1], loaded) == ([], [])
    assert np.array_equal(nets[1].weight.asnumpy(), nets[0].weight.asnumpy())
    assert nets[1].weight.placements == before and np.array_equal(
        nets[1].weight.local(1), loaded["weight"].asnumpy()[:, 4:]
    )
