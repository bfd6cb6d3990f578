"""Batches that reach a network by themselves."""

import numpy as np
import pytest
from parallel_lab.mindspore.common.api import _cell_graph_executor

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ArgumentError, ContextConflictError, DatasetError
from parallel_lab.mindspore import Parameter, Tensor, dataset as ds, nn, ops

X, Y = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12, dtype=np.int32)


def made(rows=12, batch=4):
    return ds.NumpySlicesDataset({"x": X[:rows], "y": Y[:rows]}, shuffle=False).batch(batch)


class Total(nn.Cell):
    """Adds the numbers of every batch that it is given to its sum."""

    def __init__(self):
        super().__init__()
        self.total = Parameter(Tensor(np.zeros((), np.float32)), name="total", requires_grad=False)

    def construct(self, x, y):
        ops.assign_add(self.total, x.sum())
        return x.sum(), y[0]


def test_without_sinking_an_epoch_is_its_batches():
    helper = ms.DatasetHelper(made(), dataset_sink_mode=False)
    for _ in range(2):
        assert [batch[1].asnumpy().tolist() for batch in helper] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert helper.types_shapes() == ([np.float32, np.int32], [[4, 2], [4]]) and helper.sink_size() == 3
    with pytest.raises(ContextConflictError, match="dataset_sink_mode"):
        ms.connect_network_with_dataset(Total(), helper)


@pytest.mark.parametrize(
    "sink_size, firsts, sums", [(-1, [8, 8], [276, 552]), (2, [4, 0], [120, 304]), (4, [0], [304])]
)
def test_a_connected_network_takes_its_batches_itself(sink_size, firsts, sums):
    """The sum of 0 to 23 is 276; a turn takes sink_size batches, from one epoch into the next."""
    helper = ms.DatasetHelper(made(), sink_size=sink_size, epoch_num=len(firsts))
    net = Total()
    step = ms.connect_network_with_dataset(net, helper)
    found = []
    for _ in firsts:
        for inputs in helper:
            found.append((int(step(*inputs)[1].asnumpy()), float(net.total.asnumpy())))
    assert found == list(zip(firsts, sums, strict=True))
    with pytest.raises(ArgumentError, match="another network"):
        ms.connect_network_with_dataset(Total(), helper)


def test_in_pynative_mode_sinking_gives_the_batches_to_the_loop():
    ms.set_context(mode=ms.PYNATIVE_MODE)
    helper, net = ms.DatasetHelper(made(), sink_size=2), Total()
    assert ms.connect_network_with_dataset(net, helper) is net
    assert [int(net(*inputs)[1].asnumpy()) for _ in range(2) for inputs in helper] == [0, 4, 8, 0]


def test_get_next_reads_the_queue_of_a_dataset():
    helper = ms.DatasetHelper(made(rows=8), epoch_num=1)
    types, shapes = helper.types_shapes()
    name = helper.iter.dataset.__transfer_dataset__.queue_name
    get_next = ops.GetNext(types, shapes, len(types), name)
    assert [get_next()[1].asnumpy()[0] for _ in range(2)] == [0, 4]
    with pytest.raises(DatasetError, match="1 epochs were read"):
        get_next()
    with pytest.raises(ArgumentError, match="no dataset sends to 'elsewhere'"):
        ops.GetNext(types, shapes, 2, "elsewhere")()
    with pytest.raises(ArgumentError, match="output_num=3"):
        ops.GetNext(types, shapes, 3, name)


def test_a_network_that_takes_its_batches_is_compiled_without_a_dataset():
    """x w with x: (32, 64) float32 from a queue that nobody fills: split as said, and refused when it runs."""

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.get_next, self.w = ops.GetNext([ms.float32, ms.int32], [[32, 64], [32]], 2, ""), nn.Dense(64, 8)
            self.w.matmul.shard(((4, 2), (1, 2)))

        def construct(self):
            data, _ = self.get_next()
            return self.w(data)

    net = Net()
    ms.set_auto_parallel_context(device_num=8, parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
    try:
        _cell_graph_executor.compile(net)
    finally:
        ms.reset_auto_parallel_context()
    assert ((4, 2), (1, 2)) in [n.strategy for n in net.compiled.plan.graph.nodes]
    with pytest.raises(ArgumentError, match="no dataset sends to ''"):
        net()


def test_shapes_of_uneven_batches():
    uneven = ds.NumpySlicesDataset({"x": X[:10], "y": Y[:10]}, shuffle=False).batch(4)
    assert ms.DatasetHelper(uneven, False).dynamic_min_max_shapes() == ([[2, 2], [2]], [[4, 2], [4]])


@pytest.mark.parametrize("config", [None, ms.JitConfig()])
def test_data_sink_makes_a_function_without_arguments(config):
    def added(x, y):
        return x.sum() + y.sum()

    run = ms.train.data_sink(added, made(), steps=6, sink_size=2, jit_config=config)
    sums = [X[i : i + 4].sum() + Y[i : i + 4].sum() for i in (0, 4, 8)]
    assert [float(run().asnumpy()) for _ in range(3)] == [sums[1], sums[0], sums[2]]
    with pytest.raises(DatasetError, match="2 epochs"):
        run()
    endless = ms.data_sink(added, made(), 3, config)
    assert [float(endless().asnumpy()) for _ in range(3)] == [sums[2], sums[2], sums[2]]
    used = made()
    ms.data_sink(added, used)
    with pytest.raises(ArgumentError, match="has been used"):
        ms.data_sink(added, used)
    with pytest.raises(ArgumentError, match="Columns like"):
        ms.data_sink(added, made(), 3, input_signature=(Tensor(X[:4]), Tensor(X[:4])))
