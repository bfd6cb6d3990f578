"""`Model` in a process that is not a rank, for several devices: compiled and refused, not run; own datasets."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.base.errors import DatasetError, StrategyError
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_auto_parallel_context
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.train import LossMonitor, Model
from parallel_lab.train.metrics import MSE
from tests.crossed import each_of

RNG = np.random.default_rng(5)
X, Y = (Tensor(RNG.normal(size=shape).astype(np.float32)) for shape in ((8, 6), (8, 4)))


@pytest.fixture(autouse=True)
def settings():
    yield
    reset_auto_parallel_context()


class Net(nn.Cell):
    """x @ w with w: (6, 4)."""

    def __init__(self, strategy=((2, 2), (2, 1))):
        super().__init__()
        self.w = Parameter(Tensor(RNG.normal(size=(6, 4)).astype(np.float32)), "w")
        self.matmul = ops.MatMul().shard(strategy)

    def construct(self, x):
        return self.matmul(x, self.w)


class Rows:
    """Three rows, each the same, in the way that scripts write a dataset of their own."""

    def __init__(self, count=3):
        self.count, self.at, self.resets = count, 0, 0

    def get_dataset_size(self):
        return self.count

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.count:
            raise StopIteration
        self.at += 1
        return X, Y

    def reset(self):
        self.at, self.resets = 0, self.resets + 1


class Made(Rows):
    """Rows from an iterator that is made, as MindSpore's own datasets make them."""

    def create_tuple_iterator(self, num_epochs=-1, do_copy=True):
        return self

    def get_repeat_count(self):
        return 1


class Generated:
    """A generator per epoch, and no reset."""

    def get_dataset_size(self):
        return 3

    def create_tuple_iterator(self):
        for _ in range(3):
            yield X.asnumpy(), Y.asnumpy()


class Named(Generated):
    """Rows with names."""

    create_tuple_iterator = None

    def create_dict_iterator(self, num_epochs=-1, output_numpy=False):
        for _ in range(3):
            yield {"data": X, "label": Y}


def model(net=None, metrics=None, **options):
    net = net or Net()
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    return Model(net, nn.MSELoss(), optimizer, metrics=metrics, **options)


@pytest.mark.quick(4)
@each_of("rows", Rows, Made, Generated, Named)
@each_of("sink", False, True)
def test_any_object_with_a_size_and_an_iterator_is_a_dataset(rows, sink):
    """Two epochs of three equal rows: as six steps on that row."""
    trained, expected = Net(), Net()
    expected.w.set_data(trained.w.asnumpy())
    optimizer = nn.Momentum(trained.trainable_params(), 0.1, 0.9)
    Model(trained, nn.MSELoss(), optimizer).train(2, rows(), dataset_sink_mode=sink)
    step = nn.TrainOneStepCell(
        nn.WithLossCell(expected, nn.MSELoss()), nn.Momentum(expected.trainable_params(), 0.1, 0.9)
    )
    for _ in range(6):
        step(X, Y)
    assert optimizer.global_step == 6
    np.testing.assert_array_equal(trained.w.asnumpy(), expected.w.asnumpy())


def test_a_dataset_begins_again_after_every_epoch_and_after_a_look_at_its_first_row():
    rows = Rows()
    learner = model(metrics={"loss"})
    learner.build(rows)
    assert (rows.at, rows.resets) == (0, 1)
    learner.train(2, rows)
    assert (rows.at, rows.resets) == (0, 3)
    assert learner.eval(rows)["loss"] > 0
    assert (rows.at, rows.resets) == (0, 4)


@each_of(("rows", "kind"), ([1, 2], TypeError), (object(), TypeError), (Rows, TypeError), (Rows(0), DatasetError))
def test_anything_but_a_dataset_is_refused(rows, kind):
    with pytest.raises(kind, match="train_dataset"):
        model().train(1, rows)


@each_of(
    ("mode", "strategy"),
    ("semi_auto_parallel", "full_batch"),
    ("semi_auto_parallel", "data_parallel"),
    ("data_parallel", "data_parallel"),
)
def test_training_alone_for_eight_devices_is_compiled_and_not_run(mode, strategy, logged, capsys):
    set_auto_parallel_context(parallel_mode=mode, device_num=8, global_rank=3, dataset_strategy=strategy)
    learner = model()
    before = learner.predict_network.w.asnumpy().copy()
    learner.train(2, Rows(), callbacks=LossMonitor())
    assert [text.count("not run, as this process is not a rank") for text in logged] == [1]
    assert capsys.readouterr().out.splitlines()[-1] == "epoch: 2 step: 3, loss is 0.0"
    plan = learner._train_step.plan
    assert plan.device_num == 8
    assert plan.value(plan.data_inputs[0].name).shape == (8 if strategy == "full_batch" else 64, 6)
    np.testing.assert_array_equal(learner.predict_network.w.asnumpy(), before)


def test_evaluation_and_prediction_alone_have_the_shapes_of_the_whole():
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")
    learner = model(metrics={"mse": MSE()})
    assert learner.predict(X).shape == (8, 4)
    assert learner.eval(Rows()) == {"mse": pytest.approx(float((Y.asnumpy() ** 2).sum() / 8), rel=1e-6)}
    assert set(learner.infer_predict_layout(X)) == {"w"}
    set_auto_parallel_context(dataset_strategy="data_parallel")
    # zeros: the labels of the other ranks are missing
    assert model(metrics={"mse": MSE()}).eval(Rows()) == {"mse": 0.0}


@each_of("call", "train", "predict", "eval")
def test_what_a_run_would_refuse_is_refused_alone(call):
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")
    learner = model(Net(((2, 2), (4, 1))), metrics={"loss"})
    with pytest.raises(StrategyError, match="matmul"):
        {"train": lambda: learner.train(1, Rows()), "predict": lambda: learner.predict(X)}.get(
            call, lambda: learner.eval(Rows())
        )()
