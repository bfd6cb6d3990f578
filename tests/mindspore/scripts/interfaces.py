"""The settings and interfaces that MindSpore's page on distributed parallel training lists, set and read back one after
the other.

The page has them as separate pieces. What differs, and why:
- the strategy file to be written has a name of its own; the page gives "./", a folder
- settings that contradict each other (full_batch and its absence, several comm_fusion dicts) are reset in between, as
  the page's separate programs do
"""

import os

import numpy as np

import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
from mindspore import Parameter, Tensor, context
from mindspore.communication import get_group_size, get_rank, init


def told(**settings):
    context.set_auto_parallel_context(**settings)
    for key in settings:
        print(key, context.get_auto_parallel_context(key))


context.set_context(mode=context.GRAPH_MODE, device_target="GPU")
told(device_num=8)
told(global_rank=0)
context.reset_auto_parallel_context()
told(device_num=8, gradients_mean=False)
told(parallel_mode="semi_auto_parallel")
told(all_reduce_fusion_config=[20, 35])
told(enable_parallel_optimizer=True, parallel_optimizer_config={"gradient_accumulation_shard": True})
told(parameter_broadcast=True)
for fusion in (
    {"allreduce": {"mode": "auto", "config": None}},
    {"allreduce": {"mode": "size", "config": 32}},
    {"allreduce": {"mode": "index", "config": [20, 35]}},
    {"allgather": {"mode": "size", "config": 16}, "reducescatter": {"mode": "size", "config": 32}},
):
    context.set_auto_parallel_context(comm_fusion=fusion)
    kept = context.get_auto_parallel_context("comm_fusion")
    print("comm_fusion", {kind: kept[kind] for kind in fusion})
told(gradient_fp32_sync=False)
told(search_mode="dynamic_programming")
told(strategy_ckpt_load_file="./")
told(strategy_ckpt_save_file=os.path.join("kept", "strategy.ckpt"))
told(full_batch=False)
told(pipeline_stages=4)

init()
print("rank", get_rank(), "of", get_group_size())


class Net(nn.Cell):
    """Two products, whose weights get fusion ids, and one weight that two operators split differently."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = ops.MatMul(), ops.MatMul()
        self.p1 = Parameter(Tensor(np.ones([48, 64]).astype(np.float32)), name="weight1")
        self.p1.comm_fusion = 2
        self.p2 = Parameter(Tensor(np.ones([64, 16]).astype(np.float32)), name="weight2")

    def construct(self, x, y):
        return self.fc2(self.fc1(x, self.p1), self.p2) - y


class Shared(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mul1 = ops.Mul().shard(((8, 1), (8, 1)))
        self.mul2 = ops.Mul().shard(((1, 8), (1, 8)))
        self.weight = Parameter(Tensor(np.ones([16, 32]), dtype=ms.float32), "weight1")

    def construct(self, x):
        return self.mul2(self.mul1(x, self.weight), self.weight)


net = Net()
print(
    "fusion ids",
    [p.comm_fusion for p in net.trainable_params()],
    "then",
    [p.comm_fusion for p in net.set_comm_fusion(2).trainable_params()],
)
print("cross_batch", ops.ReduceMean().add_prim_attr("cross_batch", True).prim_attrs["cross_batch"])
print("fusion", ops.AllReduce().add_prim_attr("fusion", 1).prim_attrs["fusion"])
print(
    "layerwise_parallel", Parameter(Tensor(np.ones([2, 2])), name="weight1", layerwise_parallel=True).layerwise_parallel
)
print("add", ops.Add().shard(((1, 1), (1, 1))))

context.reset_auto_parallel_context()
context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
try:
    Shared()(Tensor(np.ones([16, 32]), ms.float32))
except RuntimeError as error:
    print("refused:", error)
