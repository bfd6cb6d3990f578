"""What a search found, saved as a strategy file, loaded, and trained: losses are those of one device."""

import numpy as np
import pytest

from parallel_lab import Session, compile, nn
from parallel_lab.cost.search import search
from parallel_lab.train.checkpoint.strategy_file import load_strategy, save_strategy
from tests.cost.test_search import strategies
from tests.train.sessions import net_and_data

PROCESSES = pytest.param("processes", marks=pytest.mark.exhaustive)


@pytest.mark.parametrize("executor", ["simulator", PROCESSES])
@pytest.mark.parametrize("method", ["exact", pytest.param("recursive_programming", marks=pytest.mark.exhaustive)])
def test_a_saved_search_trains_as_one_device(method, executor, pools, tmp_path):
    net, data = net_and_data(dims=(32, 64, 16), batch=32)
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    how = {"loss": nn.MSELoss(), "optimizer": optimizer, "device_num": 4, "dataset_strategy": "full_batch"}
    found = search(net, *data[0], method=method, cluster="gpu_node", **how)
    path = save_strategy(found, tmp_path / "found.json")
    assert {k: v for k, v in load_strategy(path).strategies.items() if k in found.strategies} == found.strategies
    plan = compile(net, *data[0], parallel_mode="semi_auto_parallel", strategy_ckpt_load_file=str(path), **how)
    assert strategies(plan) == strategies(found.plan)
    assert max(np.prod(cuts) for pair in found.strategies.values() for cuts in pair) > 1  # something is split
    one = compile(net, *data[0], parallel_mode="stand_alone", **{**how, "device_num": 1})
    pool = pools[4] if executor == "processes" else None
    with (
        Session(plan, net, optimizer, executor=executor, pool=pool) as session,
        Session(one, net, optimizer) as reference,
    ):
        losses, wanted = session.train(data, steps=9), reference.train(data, steps=9)
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
