"""Batches of a session: lists are repeated, datasets are read epoch by epoch, and no further than there are steps."""

import contextlib

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops
from parallel_lab.base.errors import ShapeError
from parallel_lab.train import dataset
from tests.nets import cell
from tests.pools import shared_pool


def mean():
    """w * mean(x), whose loss against 0 tells which x was read (learning rate 0 keeps w at 1)."""
    return cell(lambda net, x: ops.mul(x, net.w), w=Parameter(Tensor(np.ones((1, 1), np.float32)), name="w"))


class Absolute(nn.Cell):
    def construct(self, logits, labels):
        return ops.reduce_sum(logits - labels)


@contextlib.contextmanager
def session(executor):
    net = mean()
    rule = nn.SGD(net.trainable_params(), 0.0)
    x = np.zeros((2, 1), np.float32)
    plan = compile(net, x, x, loss=Absolute(), optimizer=rule, device_num=2, dataset_strategy="full_batch")
    with contextlib.ExitStack() as stack:
        pool = shared_pool(2) if executor == "processes" else None
        yield stack.enter_context(Session(plan, net, rule, executor=executor, pool=pool))


def numbers(count):
    """Batches whose sums are 0, 10, 20, ..."""
    return [(np.full((2, 1), 5 * i, np.float32), np.zeros((2, 1), np.float32)) for i in range(count)]


def pipeline(count, **options):
    """A dataset of `count` batches of two, sample i being the number i."""
    data = {"x": np.arange(2 * count, dtype=np.float32).reshape(-1, 1), "y": np.zeros((2 * count, 1), np.float32)}
    return dataset.NumpySlicesDataset(data, shuffle=False, **options).batch(2)


@pytest.mark.parametrize("executor", ["simulator", "processes"])
def test_a_list_is_gone_round_and_gone_on_with(executor):
    with session(executor) as s:
        assert s.train(numbers(3), 4) == [0, 10, 20, 0]
        assert s.train(numbers(3), 2) == [10, 20]


@pytest.mark.parametrize("executor", ["simulator", "processes"])
def test_a_dataset_is_read_anew_every_epoch_and_gone_on_with(executor):
    with session(executor) as s:
        assert s.train(pipeline(3), 4) == [1, 5, 9, 1]
        assert s.train(pipeline(3), 3) == [5, 9, 1]


def test_every_epoch_has_its_own_order():
    """The first epoch was replayed for ever: order and augmentation stood still."""
    data = {"x": np.arange(64, dtype=np.float32).reshape(-1, 1), "y": np.zeros((64, 1), np.float32)}
    shuffled = dataset.NumpySlicesDataset(data, shuffle=True).batch(2)
    with session("simulator") as s:
        losses = s.train(shuffled, 96)
    epochs = [losses[i : i + 32] for i in (0, 32, 64)]
    assert sum(epochs[0]) == sum(epochs[1]) == sum(range(64))
    assert epochs[0] != epochs[1] != epochs[2]


def test_an_endless_dataset_or_generator_is_read_as_far_as_there_are_steps():
    def endless():
        while True:
            yield from numbers(2)

    with session("simulator") as s:
        assert s.train(pipeline(2).repeat(), 3) == [1, 5, 1]
    with session("simulator") as s:
        source = endless()
        assert s.train(source, 3) == [0, 10, 0]
        assert s.train(source, 1) == [10]


def test_floats_are_not_class_numbers_after_compiling_either():
    net = nn.Dense(3, 4)
    x, y = np.zeros((8, 3), np.float32), np.zeros(8, np.int32)
    rule = nn.SGD(net.trainable_params(), 0.1)
    plan = compile(net, x, y, loss=nn.CrossEntropyLoss(), optimizer=rule, device_num=2, dataset_strategy="full_batch")
    with Session(plan, net, rule) as s:
        assert s.train([(x.astype(np.float64), y.astype(np.int64))], 1) == [pytest.approx(np.log(4), abs=1)]
        with pytest.raises(ShapeError, match=r"'label' is float64. int32, for which the plan was compiled"):
            s.train([(x, y + 0.9)], 1)
