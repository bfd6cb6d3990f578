"""Networks compiled with `search_mode="sharding_propagation"`, and the strategies that were chosen."""

from functools import partial

import numpy as np

from parallel_lab import compile, ops

S = ((2, 4), (4, 1))
AUTO = {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"}


def array(*shape):
    return np.ones(shape, "f")


def propagated(net, *inputs, device_num=8, dataset_strategy="full_batch", **settings):
    return compile(net, *inputs, device_num=device_num, dataset_strategy=dataset_strategy, **AUTO, **settings)


def strategies(plan):
    """{operator: strategy} of the forward operators."""
    return {n.name: n.strategy for n in plan.graph.nodes if n.strategy is not None}


def why(plan, name):
    return plan.graph.node(name).strategy_reason


def forgetful(drawn, seed):
    """The drawn net with most of its strategies taken away; None if none is left."""
    rng, kept = np.random.default_rng(seed), 0
    for step in drawn.net.steps:
        primitive = step.call.args[0] if isinstance(step.call, partial) else step.call
        if isinstance(primitive, ops.Primitive) and primitive.in_strategy is not None:
            if rng.random() < 0.6:
                primitive.in_strategy = primitive.out_strategy = None
            else:
                kept += primitive.name != "Cast"  # whose strategy does not count in a search
    return drawn if kept else None
