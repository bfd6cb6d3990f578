"""Networks and plans that the tests of sessions share; the fixtures `pools` and `ready` are in `conftest.py`."""

import numpy as np

from parallel_lab import compile, nn
from tests.recorded.nets import Quick

S = ((2, 4), (4, 1))


def net_and_data(*triple, dims=(32, 16, 16), batch=16, batches=3, seed=5, dtype=np.float32):
    rng = np.random.default_rng(seed)
    net = Quick(*dims, *triple)
    for p in net.trainable_params():
        p._initial, p._data = None, (rng.normal(size=p.shape) / np.sqrt(p.shape[0])).astype(dtype)
    data = [
        (rng.normal(size=(batch, dims[0])).astype(dtype), rng.normal(size=(batch, dims[2])).astype(dtype))
        for _ in range(batches)
    ]
    return net, data


def plan_for(net, data, devices, optimizer=None, **settings):
    optimizer = optimizer or nn.Momentum(net.trainable_params(), 0.05, 0.9)
    how = {"optimizer": optimizer, "device_num": devices, "dataset_strategy": "full_batch", **settings}
    plan = compile(net, *data[0], loss=nn.MSELoss(), **how)
    return plan, optimizer
