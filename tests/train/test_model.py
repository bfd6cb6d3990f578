"""`Model`: training, evaluation and prediction on one device, and what is refused."""

import numpy as np
import pytest

from parallel_lab import Tensor, nn, ops
from parallel_lab.base.errors import ModelError, NotBuiltYet, ParallelLabError
from parallel_lab.base.settings.context import set_auto_parallel_context
from parallel_lab.train import MAE, Callback, LambdaCallback, Loss, LossMonitor, Metric, Model
from parallel_lab.train.dataset import NumpySlicesDataset
from tests.crossed import each_of
from tests.refusals import refused
from tests.train.runs import Affine, Log, affine_model, batches, numbers, quick_data, quick_model, recorded


def losses_of(model, epochs, dataset, **options):
    """The loss of every step that callbacks hear of."""
    found = []
    watch = LambdaCallback(on_train_step_end=lambda c: found.append(float(c.original_args().net_outputs)))
    model.train(epochs, dataset, callbacks=watch, **options)
    return found


# ---- training ----


def test_train_takes_the_steps_that_were_recorded():
    run = recorded()
    losses = losses_of(quick_model(run), 5, quick_data(run))
    np.testing.assert_allclose(losses, run["loss"], rtol=2e-6)


@each_of("sink_size, epochs, heard", (-1, 5, [3, 7, 11, 15, 19]), (2, 10, list(range(1, 20, 2))), (10, 2, [9, 19]))
def test_sink_mode_takes_the_same_steps_and_tells_of_the_last_of_each_epoch(sink_size, epochs, heard):
    run = recorded()
    losses = losses_of(quick_model(run), epochs, quick_data(run), dataset_sink_mode=True, sink_size=sink_size)
    np.testing.assert_allclose(losses, run["loss"][heard], rtol=2e-6)


def test_sink_size_is_read_on_across_the_epochs_of_the_dataset():
    seen = []

    class Watch(nn.Cell):
        def construct(self, x):
            seen.append(float(x.asnumpy()[0]))
            return ops.sum(x)

    rows = NumpySlicesDataset((np.arange(5, dtype=np.float32)[:, None],), ["data"], shuffle=False)
    Model(Watch()).train(4, rows, dataset_sink_mode=True, sink_size=3)
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_order_and_numbers_of_the_calls():
    log = Log()
    affine_model().train(2, batches(6, 3), callbacks=log)
    steps = [("step_begin", 1), ("step_end", 1), ("step_begin", 2), ("step_end", 2)]
    epoch = [("epoch_begin", 0), *steps, ("epoch_end", 2)]
    expected = [("begin", None, 0)]
    expected += [(name, 1, step) for name, step in epoch] + [(name, 2, step + 2) for name, step in epoch]
    assert log.calls == [*expected, ("end", 2, 4)]


def test_sink_mode_calls_step_end_once_per_epoch_with_the_number_of_its_last_step():
    log = Log()
    affine_model().train(2, batches(6, 3), callbacks=log, dataset_sink_mode=True)
    expected = [(name, epoch, 2 * epoch) for epoch in (1, 2) for name in ("step_begin", "step_end")]
    assert [call for call in log.calls if "step" in call[0]] == expected


def test_callbacks_find_what_the_run_is_about():
    model, data, seen = affine_model(), batches(), {}
    watch = LambdaCallback(on_train_step_end=lambda c: seen.update(c.original_args()))
    model.train(2, data, callbacks=[watch])
    assert (
        seen["network"] is model.predict_network and seen["train_dataset"] is data and seen["list_callback"] == [watch]
    )
    assert (seen["epoch_num"], seen["cur_epoch_num"], seen["batch_num"], seen["cur_step_num"]) == (2, 2, 4, 8)
    facts = ("mode", "parallel_mode", "device_number", "dataset_sink_mode")
    assert [seen[name] for name in facts] == ["train", "stand_alone", 1, False]
    assert [column.shape for column in seen["train_dataset_element"]] == [(3, 3), (3, 1)]
    assert isinstance(seen["optimizer"], nn.SGD)
    assert isinstance(seen["loss_fn"], nn.MSELoss)
    assert seen["net_outputs"].shape == ()


def test_a_parameter_of_callbacks_that_is_not_there_is_named_with_its_neighbour():
    watch = LambdaCallback(on_train_step_end=lambda c: c.original_args().cur_epoch)
    with pytest.raises(AttributeError, match=r"no 'cur_epoch'.*'cur_epoch_num'"):
        affine_model().train(1, batches(), callbacks=watch)


def test_request_stop_ends_the_run_after_the_step():
    log = Log()
    stop = LambdaCallback(on_train_step_end=lambda c: c.request_stop() if c.original_args().cur_step_num == 6 else None)
    affine_model().train(5, batches(), callbacks=[log, stop])
    assert log.calls[-3:] == [("step_end", 2, 6), ("epoch_end", 2, 6), ("end", 2, 6)]


def test_a_callback_is_left_even_if_the_training_fails():
    class Held(Callback):
        left = None

        def __exit__(self, *error):
            self.left = error

    held = Held()
    with pytest.raises(ZeroDivisionError):
        affine_model().train(1, batches(), callbacks=[held, LambdaCallback(on_train_step_end=lambda c: 1 / 0)])
    assert held.left[0] is ZeroDivisionError


@pytest.mark.parametrize("sink", [False, True])
def test_initial_epoch_goes_on_where_the_epochs_before_ended(sink):
    def data():
        return NumpySlicesDataset(numbers(), ["data", "label"], shuffle=False).shuffle(6).batch(3)

    whole = losses_of(affine_model(), 4, data(), dataset_sink_mode=sink)
    model = affine_model()
    first = losses_of(model, 2, data(), dataset_sink_mode=sink)
    rest = losses_of(model, 4, data(), initial_epoch=2, dataset_sink_mode=sink)
    assert [*first, *rest] == whole


def test_a_dataset_without_end_has_epochs_of_its_length():
    run = recorded()
    losses = losses_of(quick_model(run), 5, quick_data(run).repeat())
    assert len(losses) == 20
    np.testing.assert_allclose(losses, run["loss"], rtol=2e-6)


def test_without_loss_fn_the_network_gets_all_columns_and_returns_the_loss():
    class WithLoss(Affine):
        def construct(self, x, y, weight):
            return ops.mean(weight * (self.dense(x) - y) ** 2)

    x, y = numbers()
    data = NumpySlicesDataset((x, y, np.full_like(y, 2)), ["data", "label", "weight"], shuffle=False).batch(3)
    net = WithLoss()
    losses = losses_of(Model(net, optimizer=nn.SGD(net.trainable_params(), 0.1)), 1, data)
    assert losses[0] == pytest.approx(2 * np.mean(y[:3] ** 2), rel=1e-6)  # the weight begins at 0


def test_a_network_that_trains_itself_needs_neither_loss_nor_optimizer():
    net = Affine()
    whole = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))
    assert losses_of(Model(whole), 2, batches()) == losses_of(affine_model(), 2, batches())


def test_the_network_is_in_training_mode_while_it_is_trained_and_not_while_it_is_evaluated():
    modes = []

    class Watch(Affine):
        def construct(self, x):
            modes.append(self.training)
            return super().construct(x)

    net = Watch()
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), metrics={"loss"})
    model.train(1, batches(3, 3))
    model.eval(batches(3, 3))
    model.predict(Tensor(numbers()[0]))
    assert modes == [True, False, False] and net.training and net.dense.training


# ---- evaluation ----


def test_eval_gives_the_metrics_of_the_formula():
    model = affine_model(metrics={"mae", "mse", "loss"})
    x, y = numbers()
    model.train(2, batches())
    weight = model.predict_network.dense.weight.asnumpy()
    difference = (x @ weight.T - y).astype(np.float64)
    found = model.eval(batches())
    assert found["mae"] == pytest.approx(np.abs(difference).mean(), rel=1e-5)
    assert found["mse"] == pytest.approx(np.square(difference).mean(), rel=1e-5)
    # batches of one size: the mean of their means
    assert found["loss"] == pytest.approx(np.square(difference).mean(), rel=1e-5)


def test_eval_changes_no_parameter_and_starts_its_metrics_anew():
    model = affine_model(metrics={"mae"})
    before = model.predict_network.dense.weight.asnumpy().copy()
    assert model.eval(batches()) == model.eval(batches())
    np.testing.assert_array_equal(model.predict_network.dense.weight.asnumpy(), before)


def test_eval_calls_its_callbacks_with_the_results_at_the_end():
    log, seen = Log(), {}
    model = affine_model(metrics={"mae"})
    watch = LambdaCallback(on_eval_end=lambda c: seen.update(c.original_args()))
    result = model.eval(batches(6, 3), callbacks=[log, watch])
    steps = ["step_begin", "step_end"] * 2
    assert [name for name, _, _ in log.calls] == ["begin", "epoch_begin", *steps, "epoch_end", "end"]
    assert seen["metrics"] == result and seen["mode"] == "eval" and seen["batch_num"] == 2


def test_a_metric_of_ones_own_gets_predictions_and_labels():
    class Largest(Metric):
        def clear(self):
            self.found = 0.0

        def update(self, *inputs):
            self.found = max(self.found, float(np.abs(inputs[0].asnumpy() - inputs[1].asnumpy()).max()))

        def eval(self):
            return self.found

    _, y = numbers()
    # the weight is 0
    assert affine_model(metrics={"largest": Largest()}).eval(batches()) == {"largest": float(np.abs(y).max())}


def test_eval_network_gives_its_outputs_to_the_metrics_by_eval_indexes():
    class Own(nn.Cell):
        def construct(self, x, y):
            return y, ops.mean(x), y + 1.0, y

    x, _ = numbers(6)
    model = Model(Affine(), eval_network=Own(), eval_indexes=[1, 2, 3], metrics={"mae": MAE(), "loss": Loss()})
    found = model.eval(batches(6, 3))
    assert found["mae"] == pytest.approx(1.0, rel=1e-6)
    assert found["loss"] == pytest.approx(x.mean(), rel=1e-5)


def test_set_indexes_chooses_among_all_outputs_of_an_eval_network():
    class Own(nn.Cell):
        def construct(self, x, y):
            return y + 3.0, x, y

    model = Model(Affine(), eval_network=Own(), metrics={"mae": MAE().set_indexes([0, 2])})
    assert model.eval(batches())["mae"] == pytest.approx(3.0, rel=1e-6)


@pytest.mark.parametrize(("frequency", "epochs"), [(1, [1, 2, 3, 4, 5]), (2, [1, 2, 4]), ([3, 5], [3, 5]), ({2}, [2])])
def test_fit_evaluates_after_the_epochs_asked_for(frequency, epochs):
    seen = []

    def note(context):
        params = context.original_args()
        if params.eval_results:
            seen.append((params.cur_epoch_num, sorted(params.eval_results)))

    watch = LambdaCallback(on_train_epoch_end=note)
    affine_model(metrics={"mae"}).fit(5, batches(), batches(6, 3), frequency, callbacks=watch)
    assert seen == [(epoch, ["eval_loss", "mae"]) for epoch in epochs]


def test_fit_trains_as_train_does_and_evaluates_what_was_trained():
    results, one, other = [], affine_model(metrics={"mse"}), affine_model(metrics={"mse"})
    watch = LambdaCallback(on_train_epoch_end=lambda c: results.append(dict(c.original_args().eval_results)))
    one.fit(2, batches(), batches(), callbacks=watch)
    for result in results:
        other.train(1, batches())
        assert result["mse"] == other.eval(batches())["mse"]
        assert result["eval_loss"] == pytest.approx(result["mse"], rel=1e-6)


# ---- use ----


def test_predict_gives_what_the_network_gives():
    model = affine_model()
    model.train(1, batches())
    x, _ = numbers()
    np.testing.assert_array_equal(model.predict(Tensor(x)).asnumpy(), model.predict_network(Tensor(x)).asnumpy())


def test_build_checks_the_first_row_and_trains_nothing():
    model = affine_model(metrics={"mae"})
    model.build(batches(), batches())
    assert not model.predict_network.dense.weight.asnumpy().any()
    with pytest.raises(ValueError, match="1 columns"):
        model.build(batches().project("data"))


# ---- float16 ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_amp_levels_compute_in_float16_and_train(level):
    net = Affine()
    model = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1), amp_level=level, metrics={"loss"})
    losses = losses_of(model, 10, batches())
    assert net.dense.compute_dtype == "float16" and net.dense.weight.dtype == np.float32
    assert losses[-1] < losses[0] / 20
    assert isinstance(model.predict(Tensor(numbers()[0])), Tensor) and model.eval(batches())["loss"] < losses[0]


def test_level_o2_keeps_batch_normalisation_in_float32_and_o3_does_not():
    def net():
        return nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4), nn.Dense(4, 1))

    kept, cast, asked = net(), net(), net()
    Model(kept, nn.MSELoss(), nn.SGD(kept.trainable_params(), 0.1), amp_level="O2")
    Model(cast, nn.MSELoss(), nn.SGD(cast.trainable_params(), 0.1), amp_level="O3")
    Model(asked, nn.MSELoss(), nn.SGD(asked.trainable_params(), 0.1), amp_level="O3", keep_batchnorm_fp32=True)
    assert [n[1].compute_dtype for n in (kept, cast, asked)] == ["float32", "float16", "float32"]


def scaled_model(manager, learning_rate=0.1, **options):
    net = Affine()
    optimizer = nn.SGD(net.trainable_params(), learning_rate, **options)
    return Model(net, nn.MSELoss(), optimizer, loss_scale_manager=manager)


@pytest.mark.quick(1)
@each_of(
    ("manager", "options"),
    (nn.FixedLossScaleManager(1024.0), {}),
    (nn.FixedLossScaleManager(1024.0, drop_overflow_update=False), {"loss_scale": 1024.0}),
    (nn.DynamicLossScaleManager(2**10, 2, 50), {}),
)
def test_a_loss_scale_by_a_power_of_two_changes_nothing(manager, options):
    assert losses_of(scaled_model(manager, **options), 3, batches()) == losses_of(affine_model(), 3, batches())


@pytest.mark.parametrize(
    ("manager", "own", "factor"),
    [
        (nn.FixedLossScaleManager(1024.0), 2.0, 1 / 2),  # divided away twice
        (nn.FixedLossScaleManager(8.0, drop_overflow_update=False), 1.0, 8),  # never
        (nn.FixedLossScaleManager(8.0, drop_overflow_update=False), 16.0, 1 / 2),
    ],
)
def test_an_optimizer_divides_by_its_own_loss_scale_whatever_the_manager_multiplies_by(manager, own, factor, capsys):
    """MindSpore refuses none of these: the gradients are multiplied by what is left."""
    net = Affine()
    plain = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01 * factor))
    model = scaled_model(manager, learning_rate=0.01, loss_scale=own)
    np.testing.assert_allclose(losses_of(model, 3, batches()), losses_of(plain, 3, batches()), rtol=1e-6)
    assert f"gradients are multiplied by {factor:g}" in capsys.readouterr().err


# ---- what is refused ----

DENSE = Affine()


test_arguments_that_are_refused = refused(
    ({"loss_fb": nn.MSELoss()}, ValueError, "'loss_fb'.*loss_fn="),
    ({"loss_fb": nn.MSELoss()}, TypeError, "'loss_fb'"),
    ({"optimiser": None}, ValueError, "optimizer="),
    ({"loss_fn": nn.MSELoss}, TypeError, r"MSELoss\("),
    ({"loss_fn": 3}, TypeError, "loss_fn=3"),
    ({"optimizer": nn.Momentum}, TypeError, r"Momentum\(net.trainable_params"),
    ({"optimizer": 0.1}, TypeError, "optimizer=0.1"),
    ({"metrics": "acc"}, TypeError, "metrics='acc'"),
    ({"metrics": ["acc"]}, TypeError, "set of names"),
    ({"metrics": {"accurracy"}, "loss_fn": nn.MSELoss()}, KeyError, "'accurracy'.*'accuracy'"),
    ({"metrics": {"acc": nn.MSELoss()}}, TypeError, "dict"),
    ({"metrics": {"acc"}}, ValueError, "loss_fn"),
    ({"metrics": {"topk"}, "loss_fn": nn.MSELoss()}, ValueError, "TopKCategoricalAccuracy"),
    ({"eval_network": 5}, TypeError, "eval_network=5"),
    ({"eval_indexes": [0, 1]}, ValueError, "eval_indexes"),
    ({"eval_indexes": 1}, TypeError, "eval_indexes"),
    ({"amp_level": "O2"}, ValueError, "without an optimizer"),
    ({"loss_scale_manager": nn.FixedLossScaleManager()}, ValueError, "without an optimizer"),
    ({"boost_level": "O1"}, NotImplementedError, "boost_level"),
    ({"loss_scale_manager": 1024, "optimizer": nn.SGD(DENSE.trainable_params())}, TypeError, "loss_scale_manager=1024"),
    by=lambda arguments: Model(DENSE, **arguments),
)


@pytest.mark.parametrize("network", [None, nn.Dense, lambda x: x])
def test_a_network_that_is_not_a_cell_is_refused(network):
    with pytest.raises(TypeError, match="network="):
        Model(network)


@each_of(
    ("arguments", "kind", "text"),
    ({"epoch": 0}, ValueError, "epoch=0.*at least 1"),
    ({"train_dataset": [(1, 2)]}, TypeError, "train_dataset=.*GeneratorDataset"),
    ({"callbacks": nn.MSELoss()}, TypeError, "LossMonitor"),
    ({"callbacks": [LossMonitor(), nn.MSELoss()]}, TypeError, r"callbacks\[1\] is the MSELoss cell.*loss_fn"),
    ({"callbacks": LossMonitor}, TypeError, r"LossMonitor\(\)"),
    ({"callbacks": [LossMonitor]}, TypeError, r"LossMonitor\(\)"),
    ({"callbacks": {LossMonitor()}}, TypeError, "list of Callbacks"),
    ({"sink_size": 0}, ValueError, "sink_size=0"),
    ({"sink_size": -2}, ValueError, "sink_size=-2"),
    ({"sink_size": "8"}, TypeError, "sink_size='8'"),
    ({"initial_epoch": 2}, ValueError, "initial_epoch=2 with epoch=2"),
)
def test_arguments_of_train_that_are_refused_before_anything_runs(arguments, kind, text):
    log, model = Log(), affine_model()
    given = {"epoch": 2, "train_dataset": batches(), "callbacks": log, **arguments}
    with pytest.raises(kind, match=text) as caught:
        model.train(**given)
    assert isinstance(caught.value, ParallelLabError) and log.calls == []
    assert not model.predict_network.dense.weight.asnumpy().any()


def test_train_without_an_epoch_names_it():
    with pytest.raises(TypeError, match=r"Model.train: epoch is missing.*train\(10, dataset"):
        affine_model().train(train_dataset=batches(), callbacks=[LossMonitor()])
    with pytest.raises(TypeError, match="train_dataset is missing"):
        affine_model().train(3)


@pytest.mark.parametrize("columns", [1, 3])
def test_with_a_loss_fn_the_dataset_has_two_columns(columns):
    x, y = numbers()
    data = NumpySlicesDataset((x, y, y)[:columns], ["data", "label", "more"][:columns], shuffle=False).batch(3)
    with pytest.raises(ValueError, match=f"{columns} columns.*two: data and label"):
        affine_model().train(1, data)


def test_a_dataset_without_rows_is_refused():
    with pytest.raises(ValueError, match=r"no rows.*drop_remainder"):
        affine_model().train(1, NumpySlicesDataset(numbers(), ["data", "label"]).batch(20, drop_remainder=True))


def test_a_construct_that_takes_the_label_is_refused_with_its_line():
    class WithLabel(Affine):
        def construct(self, inputs, label):
            return self.dense(inputs)

    net = WithLabel()
    line = WithLabel.construct.__code__.co_firstlineno
    with pytest.raises(
        TypeError, match=rf"WithLabel \(test_model.py:{line}\) needs \(inputs, label\).*Take label out of construct"
    ):
        Model(net, nn.MSELoss(), nn.SGD(net.trainable_params())).train(1, batches())


def test_a_loss_without_an_optimizer_trains_nothing_and_is_refused():
    with pytest.raises(ValueError, match="without an optimizer"):
        Model(Affine(), nn.MSELoss()).train(1, batches())


def fit_every(frequency):
    affine_model(metrics={"mae"}).fit(1, batches(), batches(), valid_frequency=frequency)


test_calls_that_are_refused = refused(
    (lambda: affine_model().eval(batches()), ValueError, "no metrics"),
    (lambda: affine_model().fit(1, batches(), batches()), ValueError, "no metrics"),
    (lambda: affine_model(metrics={"mae"}).eval([1]), TypeError, "valid_dataset="),
    (lambda: fit_every(0), ValueError, "valid_frequency=0"),
    (lambda: fit_every("2"), TypeError, "valid_frequency='2'"),
    (lambda: affine_model().predict(), TypeError, "nothing to predict"),
    (lambda: affine_model().predict(numbers()[0]), TypeError, r"Tensor\(x\)"),
    (lambda: affine_model().predict("x"), TypeError, "A Tensor"),
    (lambda: affine_model().predict(Tensor(1.0), backend="lite"), NotBuiltYet, "lite"),
    (lambda: affine_model().build(), ValueError, "both None"),
    (lambda: affine_model().build(valid_dataset=batches()), RuntimeError, "no metrics"),
    (lambda: affine_model().infer_predict_layout(Tensor(1.0)), RuntimeError, "'stand_alone'.*semi_auto_parallel"),
    (lambda: affine_model().infer_train_layout(batches()), RuntimeError, "'stand_alone'"),
)


def test_prediction_in_semi_auto_mode_says_whose_inputs_it_takes(logged):
    """Refused before; MindSpore warns, and its samples predict with the default dataset_strategy."""
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel", device_num=2)
    x = Tensor(numbers()[0])
    assert set(affine_model().infer_predict_layout(x)) == {"dense.weight"}
    assert affine_model().predict(x).shape[0] == 2 * x.shape[0]
    told = [text for text in logged if "one after the other" in text]
    assert [text.partition(":")[0] for text in told] == ["Model.infer_predict_layout", "Model.predict"]
    logged.clear()
    set_auto_parallel_context(dataset_strategy="full_batch")
    assert affine_model().predict(x).shape == (x.shape[0], 1)
    assert not any("one after the other" in text for text in logged)


@each_of(
    ("settings", "kind", "words"),
    ({"device_num": 8}, ValueError, "device_num=8.*stand_alone"),
    ({"full_batch": True}, RuntimeError, "full_batch=True.*'stand_alone'.*semi_auto_parallel"),
    ({"full_batch": True, "parallel_mode": "data_parallel"}, RuntimeError, "full_batch=True.*'data_parallel'"),
    ({"full_batch": True, "parallel_mode": "hybrid_parallel"}, RuntimeError, "full_batch=True.*'hybrid_parallel'"),
    (
        {"enable_parallel_optimizer": True},
        RuntimeError,
        "enable_parallel_optimizer=True with parallel_mode='stand_alone'",
    ),
    ({"pipeline_stages": 2}, ValueError, "pipeline_stages=2 with parallel_mode='stand_alone'"),
)
def test_settings_that_training_would_have_to_ignore_are_refused(settings, kind, words):
    set_auto_parallel_context(**settings)
    with pytest.raises(kind, match=words):
        affine_model().train(1, batches())


def test_a_recomputed_network_trains_as_ever():
    plain, recomputed = affine_model(), affine_model()
    recomputed.predict_network.recompute()
    for model in (plain, recomputed):
        model.train(1, batches())
    for one, other in zip(*(m.predict_network.get_parameters() for m in (plain, recomputed)), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


def test_a_loss_that_compares_is_refused():
    with pytest.raises(ParallelLabError, match=r"a Tensor of bool.*Floats"):
        Model(Affine(), ops.Equal(), nn.SGD(Affine().trainable_params(), 0.1)).train(1, batches())


def test_predicting_with_a_grad_accumulation_is_refused():
    """It predicted before: the sum of what the parts of the batch give, which is not a prediction."""
    x = Tensor(np.ones((4, 3), np.float32))
    with pytest.raises(ModelError, match=r"Model\.predict: a GradAccumulation.*Give Model the network inside it"):
        Model(nn.GradAccumulation(nn.Dense(3, 2), 2)).predict(x)
