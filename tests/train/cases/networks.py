"""Cases that train the networks of the labs, with the strategies that each begins with."""

from __future__ import annotations

import numpy as np

from parallel_lab.lab.shared.networks import NETWORKS, apply_strategies
from parallel_lab.lab.shared.problems import get_problem, problems_of
from parallel_lab.train.engine import make_train_step
from tests.train.worlds import case, parameters

STEPS = 4


@case(4)
def quickstart(here):
    return trained(here, "quickstart")


@case(4)
def gpt(here):
    return trained(here, "transformer")


def trained(here, name):
    network = NETWORKS[name]
    problem = get_problem(problems_of(network.kind)[0])
    here.settings(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    net = network.factory(problem).set_train()
    if not here.alone:
        apply_strategies(net, network.preset(here.size))
    step = make_train_step(net, problem.loss(), problem.optimizer(net.trainable_params()))
    batches = [problem.batches[number % len(problem.batches)] for number in range(STEPS)]
    losses = np.array([float(step(*batch)) for batch in batches], np.float32)
    return {"losses": losses, **parameters(here, net)}, {}
