"""Searches find sequence, context and expert parallelism, and what they propose computes what one device does."""

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn
from parallel_lab.cost import get_cluster, step_time_s
from parallel_lab.cost.search import search
from parallel_lab.nn.models.context import ContextGPT
from parallel_lab.nn.models.gpt import GPT, LanguageModelLoss
from parallel_lab.nn.models.moe_gpt import MoEGPT, MoELanguageModelLoss
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.ops.context_attention import context_attention
from parallel_lab.ops.elementwise import mul
from parallel_lab.run.simulator import Simulator

IDS = np.random.default_rng(0).integers(0, 32, (1, 16)).astype(np.int32)  # one sample: no rank has another one
ALL = {"device_num": 4, "dataset_strategy": "full_batch", "method": "dynamic_programming"}
SIZES = {"vocab_size": 32, "hidden": 16, "layers": 2}
EXPERTS = {"experts": 4, "k": 2, "seq_length": 16}
TOKENS = {  # one head, so that only tokens can be split
    "ring": ((1, 4, 1, 1, 1), (1, 4, 1, 1), (1, 4, 1, 1)),
    "gather": ((1, 4, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)),
}
NETS = {  # network, its loss, {operator: what it is when a device holds as little as possible}
    "sequence": (
        lambda: GPT(**SIZES, heads=4, seq_length=16),
        LanguageModelLoss,
        {"norm1.layer_norm": ((1, 4, 1), (1,), (1,)), "norm2.layer_norm": ((1, 4, 1), (1,), (1,))},
    ),
    **{
        method: (
            lambda method=method: ContextGPT(**SIZES, heads=1, method=method, placement="zigzag", ranks=4),
            nn.CrossEntropyLoss,
            {"attention.attention": strategy, "norm1.layer_norm": ((1, 4, 1), (1,), (1,))},
        )
        for method, strategy in TOKENS.items()
    },
    "experts": (
        lambda: MoEGPT(**SIZES, **EXPERTS, heads=4, moe={"expert_parallel": 4}),
        MoELanguageModelLoss,
        {"moe.exchange": ((1, 4, 1, 1), (1, 1, 1)), "moe.first": ((1, 4, 1, 1), (1, 1, 1), (4, 1, 1))},
    ),
    "experts with capacity": (
        lambda: MoEGPT(**SIZES, **EXPERTS, heads=4, moe={"expert_parallel": 4, "capacity_factor": 2.0}),
        MoELanguageModelLoss,
        {"moe.dispatch": ((1, 4, 1, 1), (1, 4, 1, 1)), "moe.first": ((1, 1, 4, 1, 1), (4, 1, 1))},
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NETS)
def test_where_memory_is_short_tokens_and_experts_are_split(name):
    make, loss, wanted = NETS[name]
    net = make()
    free = search(net, IDS, IDS, loss=loss(), **ALL)
    least = sum(int(choice.memory_bytes.min()) for choice in free.problem.choices)  # no plan holds less
    found = free.again(memory_limit=least)
    assert found.best.memory_bytes == least < free.best.memory_bytes
    for block in range(2):
        assert {op: found.strategies[f"blocks.{block}.{op}"] for op in wanted} == wanted
    sim = Simulator(found.plan, {name: p.asnumpy() for name, p in net.parameters_dict().items()})
    sim.begin(IDS, IDS)
    while sim.next_instruction() is not None:
        pass
    one = loss()(net(Tensor(IDS)), Tensor(IDS))
    np.testing.assert_allclose(sim.full(found.plan.outputs[0]), one.asnumpy(), rtol=1e-6)
    parameters = list(net.trainable_params())
    for parameter, want in zip(parameters, gradients(one, parameters), strict=True):
        np.testing.assert_allclose(sim.full(dict(found.plan.gradients)[parameter.name]), want, rtol=0, atol=1e-6)


class Attention(nn.Cell):
    """Queries times a weight look at keys."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(np.ones((1, 16, 1, 1, 4), "f"), name="weight")
        self.mul, self.attention = mul.primitive(), context_attention.primitive(causal=True)

    def construct(self, q, k, v):
        return self.attention(self.mul(q, self.weight), k, v)[0]


def test_a_ring_costs_what_its_messages_do():
    """An operator that sends its own messages was priced as if keys of other ranks were there."""
    q, k = np.ones((1, 16, 1, 1, 4), "f"), np.ones((1, 16, 1, 4), "f")
    tokens = TOKENS["ring"]
    found = search(Attention(), q, k, k, q, loss=nn.MSELoss(), cluster="gpu_node", **ALL)
    found = found.again(pinned={"attention": tokens, "mul": (tokens[0], tokens[0])})
    assert found.problem.by_term(found.best.chosen)["partial sums"] > 0
    assert found.best.cost == pytest.approx(step_time_s(found.plan, get_cluster("gpu_node")).total_s, rel=1e-12)
