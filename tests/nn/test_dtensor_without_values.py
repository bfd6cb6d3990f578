"""DTensors without values: the same messages as with them, and no memory."""

import contextlib

import numpy as np
import pytest

from parallel_lab import ops
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import Partial, Replicate, Shard
from parallel_lab.nn import Dense, LayerNorm, ReLU, SequentialCell
from parallel_lab.nn.fully_shard import MixedPrecisionPolicy, fully_shard
from parallel_lab.nn.parallel_styles import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallel_cross_entropy,
    parallelize_module,
)
from parallel_lab.nn.tensor.dtensor import DTensor, distribute_tensor
from parallel_lab.nn.tensor.dtensor_parts import dtensor_messages, hollow, without_gradients, without_values
from parallel_lab.nn.tensor.tensor import Tensor

MESH = DeviceMesh((2, 4), ("dp", "tp"))


def tensor_parallel():
    net = SequentialCell(LayerNorm((16,)), Dense(16, 32), ReLU(), Dense(32, 16))
    styles = {"1": ColwiseParallel(input_layouts=Shard(1)), "3": RowwiseParallel(output_layouts=Shard(1))}
    parallelize_module(net, MESH["tp"], {"0": SequenceParallel()} | styles)
    x = distribute_tensor(np.ones((2, 8, 16), np.float32), MESH["tp"], [Shard(1)], requires_grad=True)
    net(x).mean().backward()


def both():
    net = SequentialCell(Dense(16, 32), ReLU(), Dense(32, 16))
    parallelize_module(net, MESH["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net[0], mesh=MESH["dp"])
    fully_shard(net, mesh=MESH["dp"], mp_policy=MixedPrecisionPolicy(param_dtype="float16", reduce_dtype="float32"))
    net(Tensor(np.ones((4, 16), np.float32))).mean().backward()


def copies_of_shards():
    net = SequentialCell(*(Dense(16, 16) for _ in range(3)))
    for cell in net:
        fully_shard(cell, mesh=MESH, reshard_after_forward=2)
    fully_shard(net, mesh=MESH)
    for _ in range(2):
        net(Tensor(np.ones((4, 16), np.float32))).mean().backward()


def operators():
    x = distribute_tensor(np.ones((16, 8), np.float32), MESH, [Shard(0), Shard(1)], requires_grad=True)
    w = distribute_tensor(np.ones((8, 12), np.float32), MESH, [Replicate(), Shard(0)], requires_grad=True)
    y = ops.exp(ops.matmul(x, w) / 8.0).redistribute([Replicate(), Replicate()])
    (y.reshape((4, 4, 12)) + y.sum(0)).mean().backward()
    with without_gradients():
        assert not ops.exp(x).requires_grad


def uneven_moves():
    mesh = DeviceMesh((4,), ("tp",))
    x = distribute_tensor(np.ones((6, 7), np.float32), mesh, [Shard(0)])
    y = x.redistribute([Shard(1)]).redistribute([Replicate()]).redistribute([Shard(1)])
    z = DTensor.from_local(np.ones((6, 5), np.float32), mesh, [Partial()])
    for dim in (0, 1):
        z.redistribute([Shard(dim)]).redistribute([Replicate()])
    y.full_tensor()


def split_classes():
    mesh = DeviceMesh((8,), ("tp",))
    logits = distribute_tensor(np.ones((6, 16), np.float32), mesh, [Shard(1)], requires_grad=True)
    parallel_cross_entropy(logits, Tensor(np.zeros(6, np.int64))).sum().backward()


@pytest.mark.parametrize("program", [tensor_parallel, both, uneven_moves, copies_of_shards, operators, split_classes])
def test_messages_without_values_are_those_with_values(program):
    lists = []
    for how in (contextlib.nullcontext(), without_values()):
        with dtensor_messages() as sent, how:
            program()
        lists.append([(m.kind, m.axis, m.shape, m.dtype, m.size_bytes, m.reduce, m.reason) for m in sent])
    assert lists[0] == lists[1] != []


def test_a_tensor_of_a_terabyte_takes_no_memory_and_an_operator_on_it_no_time():
    with dtensor_messages() as sent, without_values():
        x = distribute_tensor(hollow((2**20, 2**18), "float32"), MESH, [Shard(0), Replicate()])
        w = distribute_tensor(hollow((2**18, 2**20), "float32"), MESH, [Replicate(), Shard(0)])
        y = ops.matmul(x, w).redistribute([Shard(0), Shard(1)])
    assert y.shape == (2**20, 2**20) and y.local(0).shape == (2**19, 2**18) and y.local(0).strides == (0, 0)
    assert [(m.kind, m.size_bytes) for m in sent] == [("reduce_scatter", 2**19 * 2**20 * 4)]
