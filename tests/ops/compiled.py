"""Small networks compiled for simulated ranks, and what they give."""

from parallel_lab import compile, ops
from parallel_lab.run.simulator import Simulator
from tests.nets import cell


def behind(prim, strategy, *given):
    """An operator behind a ReLU, both with one strategy.  given: the operator's further arguments."""
    parts = {"relu": ops.ReLU().shard(strategy), "prim": prim.shard(strategy)}
    return cell(lambda net, x: net.prim(net.relu(x), *given), **parts)


def simulated(net, *arrays, device_num=8, **parameters):
    """(plan, simulator) after one step on these arrays."""
    plan = compile(net, *arrays, device_num=device_num, dataset_strategy="full_batch")
    sim = Simulator(plan, parameters)
    sim.run_step(*arrays)
    return plan, sim


def results(net, *arrays, device_num=8, **parameters):
    """The whole results of a network, assembled from the ranks' slices."""
    plan, sim = simulated(net, *arrays, device_num=device_num, **parameters)
    return [sim.full(name) for name in plan.outputs]
