"""The callbacks that come with the package."""

import re

import numpy as np
import pytest

from parallel_lab import Tensor, nn, train
from parallel_lab.base.errors import LossNotFinite, NotBuiltYet
from parallel_lab.train.dataset import GeneratorDataset
from tests.crossed import each_of
from tests.refusals import refused
from tests.train.runs import Affine, affine_model, batches, quick_data, quick_model, recorded


def lines(capsys):
    return capsys.readouterr().out.splitlines()


# ---- LossMonitor ----


def test_loss_monitor_prints_each_step_as_the_seeds_show_it(capsys):
    run = recorded()
    quick_model(run).train(5, quick_data(run), callbacks=train.LossMonitor())
    found = lines(capsys)
    matched = [re.fullmatch(r"epoch: (\d+) step: (\d+), loss is (\S+)", line) for line in found]
    assert [(int(m[1]), int(m[2])) for m in matched] == [(epoch, step) for epoch in range(1, 6) for step in range(1, 5)]
    np.testing.assert_allclose([float(m[3]) for m in matched], run["loss"], rtol=2e-6)


def test_the_loss_is_printed_as_the_float_of_its_value(capsys):
    # seed 003 prints 0.367389976978302: the float64 that a float32 becomes, not float32's own shortest form 0.36738998
    value = np.float32(0.36738998)
    RunOnce(Tensor(value)).drive(train.LossMonitor())
    assert lines(capsys) == ["epoch: 3 step: 2, loss is 0.367389976978302"]


class RunOnce:
    """The parameters of epoch 3, step 2 of 4, with some outputs."""

    def __init__(self, outputs):
        from parallel_lab.train import CallbackParams

        numbers = {"cur_epoch_num": 3, "cur_step_num": 10, "batch_num": 4, "dataset_sink_mode": False}
        self.context = train.RunContext(CallbackParams(mode="train", net_outputs=outputs, **numbers))

    def drive(self, callback):
        callback.on_train_begin(self.context)
        callback.on_train_step_end(self.context)


@each_of(
    ("outputs", "text"),
    (Tensor(np.array([1.0, 2.0], np.float32)), "1.5"),  # the mean of several losses
    ((Tensor(np.float32(2)), Tensor(np.float32(7))), "2.0"),  # the first of several outputs
    ([np.float32(3)], "3.0"),
    (0.25, "0.25"),
)
def test_loss_monitor_finds_the_loss_in_what_a_step_returned(outputs, text, capsys):
    RunOnce(outputs).drive(train.LossMonitor())
    assert lines(capsys) == [f"epoch: 3 step: 2, loss is {text}"]


@pytest.mark.parametrize(("times", "steps"), [(0, []), (1, [1, 2, 3, 4, 1, 2, 3, 4]), (3, [3, 2]), (5, [1])])
def test_per_print_times_counts_steps_across_epochs(times, steps, capsys):
    affine_model().train(2, batches(), callbacks=train.LossMonitor(times))
    assert [int(re.search(r"step: (\d+)", line)[1]) for line in lines(capsys)] == steps


def test_a_second_training_is_printed_as_the_first(capsys):
    monitor, model = train.LossMonitor(2), affine_model()
    model.train(1, batches(), callbacks=monitor)
    model.train(1, batches(), callbacks=monitor)
    assert [int(re.search(r"step: (\d+)", line)[1]) for line in lines(capsys)] == [2, 4, 2, 4]


def test_in_sink_mode_the_step_is_the_last_of_the_epoch(capsys):
    run = recorded()
    quick_model(run).train(5, quick_data(run), callbacks=train.LossMonitor(), dataset_sink_mode=True)
    found = lines(capsys)
    assert [line.split(",")[0] for line in found] == [f"epoch: {epoch} step: 4" for epoch in range(1, 6)]
    np.testing.assert_allclose([float(line.split()[-1]) for line in found], run["loss"][3::4], rtol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_not_finite_ends_the_training(value):
    net, rows = Affine(), [np.ones((2, 3), np.float32)]
    data = GeneratorDataset(
        lambda: ((rows[0], np.full((2, 1), y, np.float32)) for y in (1.0, 1.0, value, 1.0)), ["data", "label"]
    )
    model = train.Model(net, lambda out, label: (out - label).mean(), nn.SGD(net.trainable_params(), 0.0))
    steps = []
    with pytest.raises(LossNotFinite, match=r"epoch: 1 step: 3: the loss is (nan|-?inf)") as caught:
        watch = train.LambdaCallback(on_train_step_end=lambda c: steps.append(c.original_args().cur_step_num))
        model.train(2, data, callbacks=[watch, train.LossMonitor()])
    assert steps == [1, 2, 3] and isinstance(caught.value, ValueError)


def test_fit_prints_the_evaluation_of_the_epoch(capsys):
    model = affine_model(metrics={"mae"})
    model.fit(2, batches(), batches(6, 3), callbacks=train.LossMonitor(4))
    found = lines(capsys)
    expected = [text for epoch in (1, 2) for text in (f"epoch: {epoch} step: 4", f"Eval result: epoch {epoch}")]
    assert [line.split(",")[0] for line in found] == expected
    assert found[3] == f"Eval result: epoch 2, metrics: {model.eval(batches(6, 3))}"


# ---- TimeMonitor ----

TIMES = r"{} epoch time: +([\d.]+) ms, per step time: +([\d.]+) ms"


def test_time_monitor_divides_the_epoch_by_its_steps(capsys):
    affine_model().train(3, batches(), callbacks=train.TimeMonitor())
    found = [re.fullmatch(TIMES.format("Train"), line) for line in lines(capsys)]
    assert len(found) == 3
    for match in found:
        assert float(match[1]) > 0 and float(match[1]) / 4 == pytest.approx(
            float(match[2]), abs=1e-3
        )  # printed to 0.001 ms


def test_time_monitor_can_show_the_wait_for_data(capsys):
    affine_model().train(1, batches(), callbacks=train.TimeMonitor(data_time=True))
    form = TIMES.format("Train") + r" \(data time: +([\d.]+) ms\)"
    epoch_ms, _, data_ms = re.fullmatch(form, lines(capsys)[0]).groups()
    assert 0 < float(data_ms) * 4 < float(epoch_ms)


def test_time_monitor_times_evaluations_too_and_keeps_the_two_apart(capsys):
    monitor, slow = train.TimeMonitor(), []

    def sleep(_):
        import time

        slow.append(time.sleep(0.02))

    watch = train.LambdaCallback(on_eval_step_end=sleep)
    affine_model(metrics={"mae"}).fit(1, batches(3, 3), batches(3, 3), callbacks=[monitor, watch])
    evaluation, training = lines(capsys)
    assert float(re.fullmatch(TIMES.format("Eval"), evaluation)[1]) >= 20
    assert float(re.fullmatch(TIMES.format("Train"), training)[1]) >= 20  # the evaluation is inside the epoch


# ---- values that are kept ----


def test_history_keeps_the_last_loss_of_each_epoch_and_the_metrics_of_fit():
    run, history = recorded(), train.History()
    quick_model(run).train(5, quick_data(run), callbacks=history)
    assert history.epoch == {"epoch": [1, 2, 3, 4, 5]}
    np.testing.assert_allclose(history.history["net_output"], run["loss"][3::4], rtol=2e-6)
    quick_model(run, metrics={"mse"}).fit(2, quick_data(run), quick_data(run, 1), callbacks=history)
    assert history.epoch == {"epoch": [1, 2]} and len(history.history["mse"]) == 2


def test_lambda_callback_calls_its_functions():
    seen = []
    moments = ("begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end")
    names = [f"on_{phase}_{moment}" for phase in ("train", "eval") for moment in moments]
    watch = train.LambdaCallback(**{name: lambda _, name=name: seen.append(name) for name in names})
    model = affine_model(metrics={"mae"})
    model.train(1, batches(3, 3), callbacks=watch)
    model.eval(batches(3, 3), callbacks=watch)
    assert seen == names


def test_on_train_step_end_takes_the_place_of_step_end():
    class Both(train.Callback):
        def __init__(self):
            self.seen = []

        def step_end(self, run_context):
            self.seen.append("step_end")

        def on_train_step_end(self, run_context):
            self.seen.append("on_train_step_end")

    both = Both()
    model = affine_model(metrics={"mae"})
    model.train(1, batches(3, 3), callbacks=both)
    model.eval(batches(3, 3), callbacks=both)
    assert both.seen == ["on_train_step_end", "step_end"]


# ---- learning rates ----


def test_learning_rate_scheduler_sets_the_rate_of_the_next_step():
    given = []

    def halve(rate, step):
        given.append((rate, step))
        return rate / 2

    model = affine_model()
    model.train(1, batches(), callbacks=train.LearningRateScheduler(halve))
    assert given == [(0.1, 1), (0.05, 2), (0.025, 3), (0.0125, 4)]
    # the same steps with the rates as a list
    net = Affine()
    listed = train.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), [0.1, 0.05, 0.025, 0.0125]))
    listed.train(1, batches())
    np.testing.assert_array_equal(model.predict_network.dense.weight.asnumpy(), net.dense.weight.asnumpy())


class Told(train.Metric):
    """A metric that says what the test wants."""

    def __init__(self, values):
        super().__init__()
        self.values = iter(values)

    def clear(self):
        self.now = next(self.values)

    def update(self, *inputs):
        pass

    def eval(self):
        return self.now


def fit_told(values, *callbacks, epochs=None):
    """Fit with a metric "told" that has these values; the model and the epochs that were trained."""
    seen = []
    model = affine_model(metrics={"told": Told(values)})
    watch = train.LambdaCallback(on_train_epoch_end=lambda c: seen.append(c.original_args().cur_epoch_num))
    model.fit(epochs or len(values), batches(6, 3), batches(3, 3), callbacks=[*callbacks, watch])
    return model, len(seen)


@pytest.mark.quick(1)
@each_of(
    ("options", "values", "epochs"),
    ({"patience": 2, "mode": "max"}, [1, 2, 3, 3, 3, 9], 5),
    ({"patience": 2, "mode": "min"}, [3, 2, 1, 1, 0, 0, 0, 9], 7),
    ({"patience": 2, "mode": "max", "min_delta": 0.5}, [1, 2, 2.4, 2.5, 9], 4),
    ({"patience": 0, "mode": "max"}, [1, 2, 2, 9], 3),
    # better each time, never better than the baseline
    ({"patience": 2, "mode": "max", "baseline": 5}, [1, 2, 9], 2),
    ({"patience": 3, "mode": "max"}, [1, 2, 3, 4], 4),
    ({"patience": 1, "mode": "auto"}, [1, 2, 0, 9], 3),  # of an unknown name more is better
)
def test_early_stopping_waits_for_its_patience(options, values, epochs):
    stop = train.EarlyStopping("told", **options)
    assert fit_told(values, stop)[1] == epochs
    assert stop.stopped_epoch == (epochs if epochs < len(values) else 0)


def test_early_stopping_watches_the_loss_and_says_so(capsys):
    net = Affine()
    model = train.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.0))  # a loss that stays
    model.train(9, batches(3, 3), callbacks=train.EarlyStopping("loss", patience=2, verbose=True))
    assert lines(capsys) == ["Epoch 00003: early stopping"]


def test_early_stopping_can_put_the_best_weights_back():
    weights = []
    keep = train.LambdaCallback(
        on_train_epoch_end=lambda c: weights.append(c.original_args().network.dense.weight.asnumpy().copy())
    )
    model, _ = fit_told(
        [1, 5, 2, 2, 9], keep, train.EarlyStopping("told", patience=2, mode="max", restore_best_weights=True)
    )
    np.testing.assert_array_equal(model.predict_network.dense.weight.asnumpy(), weights[1])
    assert not np.array_equal(weights[1], weights[-1])


@each_of(
    ("options", "values", "rates"),
    ({"patience": 2, "mode": "max"}, [1, 1, 1, 1, 1], [0.1, 0.1, 0.01, 0.01, 0.001]),
    ({"patience": 1, "mode": "max", "cooldown": 2}, [1, 1, 1, 1, 1], [0.1, 0.01, 0.01, 0.001, 0.001]),
    ({"patience": 1, "mode": "max", "factor": 0.5, "min_lr": 0.03}, [1, 1, 1, 1], [0.1, 0.05, 0.03, 0.03]),
    ({"patience": 1, "mode": "max"}, [1, 2, 3, 4], [0.1, 0.1, 0.1, 0.1]),
)
def test_reduce_lr_on_plateau_multiplies_the_rate(options, values, rates):
    seen = []
    rate = lambda c: c.original_args().optimizer.learning_rates(0)["learning_rate"]  # noqa: E731
    note = train.LambdaCallback(on_train_epoch_end=lambda c: seen.append(rate(c)))
    fit_told(values, train.ReduceLROnPlateau("told", **options), note)
    assert seen == pytest.approx(rates, rel=1e-12)


def test_a_monitor_that_is_not_evaluated_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"'acc' is not evaluated.*loss, eval_loss, told"):
        fit_told([1, 2], train.EarlyStopping("acc"))


def test_an_evaluation_is_not_missed_in_epochs_without_one():
    model = affine_model(metrics={"told": Told([1, 1, 1])})
    stop = train.EarlyStopping("told", patience=2, mode="max")
    model.fit(9, batches(3, 3), batches(3, 3), valid_frequency=[2, 4, 6], callbacks=stop)
    assert stop.stopped_epoch == 6


test_arguments_that_are_refused = refused(
    (lambda: train.LambdaCallback(on_train_begin=3), TypeError, "on_train_begin=3"),
    (lambda: train.LearningRateScheduler(0.1), TypeError, "learning_rate_function=0.1"),
    (lambda: train.EarlyStopping(3), TypeError, "monitor=3"),
    (lambda: train.RunContext([]), TypeError, r"original_args=\[\]"),
    (lambda: affine_model().train(1, batches(), callbacks=train.EarlyStopping()), ValueError, "'eval_loss'.*Model.fit"),
    (lambda: train.SummaryCollector("./summary"), NotBuiltYet, "MindInsight.*LossMonitor"),
)


@each_of("callback", train.ReduceLROnPlateau("loss"), train.LearningRateScheduler(lambda rate, step: rate))
def test_a_schedule_and_a_callback_do_not_both_set_the_rate(callback):
    net = Affine()
    model = train.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), [0.1] * 20))
    with pytest.raises(ValueError, match="learning rate is"):
        model.train(1, batches(), callbacks=callback)
