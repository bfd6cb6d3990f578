"""`Model`: a network, its loss and its optimizer, trained, evaluated and used with one call each.

    model = Model(net, loss_fn=nn.MSELoss(), optimizer=nn.Momentum(net.trainable_params(), 0.2, 0.1), metrics={"mae"})
    model.train(5, dataset, callbacks=[LossMonitor()])
    model.eval(dataset)                     # {"mae": 0.12}
    model.predict(Tensor(x))

What a step is (eager on one device, compiled and split in the parallel modes) is `engine.py`'s; this is the loop around
it. The parallel settings are read when a network is first trained, evaluated or used: set them before. In data_parallel
mode each rank trains on the rows of its own dataset and sees its own loss; before the first step the ranks tell each
other how many steps they are about to take. Words: MindSpore, train.Model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from ..base.checks import checked, choice, flag, integer
from ..base.errors import (
    ArgumentError,
    ArgumentTypeError,
    CollectiveMismatch,
    DatasetError,
    ModelError,
    NotBuiltYet,
    shorten,
)
from ..base.hooks import current_world, from_above
from ..base.settings.checks import SHARDED_MODES
from ..base.settings.current import frozen
from ..layout.tensor_layout import TensorLayout
from ..nn.feeding import GradAccumulation, WithLossCell
from ..nn.wrap import TrainOneStepCell
from . import arguments
from .agreement import groups_of, said_by_all, training_world
from .auto_parallel import AutoParallel
from .callbacks import Callback, CallbackList, CallbackParams, RunContext, as_callbacks, loss_value
from .checkpoint_callback import ModelCheckpoint, check_places
from .engine import EvalStep, PredictStep, TrainStep, layouts
from .feed import Feed, check_dataset, first_row
from .metrics import Loss, get_metrics
from .mixed import AMP_LEVELS, in_float16, with_loss_scale
from .progress import ProgressBar

_MISSING: Any = object()
TRAINING = {
    "epoch": integer(1),
    "dataset_sink_mode": flag,
    "sink_size": arguments.SINK_SIZE,
    "initial_epoch": integer(0),
    "progress": flag,
}  # arguments of train and fit


class Model:
    """A network with all that is needed to train, evaluate and use it.

    network       a Cell; without loss_fn it returns the loss itself, without optimizer it also updates its parameters
    loss_fn       a Cell or function of (outputs, label); the dataset then has two columns, data and label
    optimizer     of parameters of the network
    metrics       what `eval` measures: a set of names such as {"accuracy", "loss"}, or a dict {name: Metric}
    eval_network  what `eval` runs instead of network and loss; its outputs go to the metrics
    eval_indexes  positions of [loss, prediction, label] in eval_network's outputs; None: metrics get all
    amp_level     "O0", "O1", "O2", "O3" or "auto": what computes in float16 (`mixed.py`)
    boost_level   "O0"; MindSpore's other levels are for its accelerators

    Keywords: loss_scale_manager (a FixedLossScaleManager or DynamicLossScaleManager), keep_batchnorm_fp32 (bool).

    Raises ArgumentTypeError (a TypeError and ValueError) and ArgumentError (a ValueError).
    """

    @checked(
        network=arguments.NETWORK,
        loss_fn=arguments.LOSS | None,
        optimizer=arguments.OPTIMIZER | None,
        eval_network=arguments.NETWORK | None,
        eval_indexes=arguments.INDEXES | None,
        amp_level=choice(*AMP_LEVELS),
        boost_level=choice("O0", "O1", "O2"),
    )
    def __init__(
        self,
        network: Any = _MISSING,
        loss_fn: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        eval_network: Any = None,
        eval_indexes: Any = None,
        amp_level: str = "O0",
        boost_level: str = "O0",
        **kwargs: Any,
    ) -> None:
        arguments.check_keywords(kwargs)
        if network is _MISSING:
            raise ArgumentTypeError("network is missing", where="Model", hint="Model(network, loss_fn, optimizer)")
        arguments.check_boost(boost_level)
        level = "O0" if amp_level == "auto" else amp_level
        if optimizer is None and (level != "O0" or kwargs.get("loss_scale_manager") is not None):
            what = f"amp_level={amp_level!r}" if level != "O0" else "a loss_scale_manager"
            raise ArgumentError(f"{what} without an optimizer", where="Model", hint="Give optimizer=..., or omit it")
        self._metrics = get_metrics(metrics)
        self._eval_indexes = eval_indexes
        if self._metrics and eval_network is None and loss_fn is None:
            hint = "Give loss_fn=..., or eval_network=... whose outputs go to the metrics"
            raise ArgumentError("metrics without a loss_fn or an eval_network", where="Model", hint=hint)
        if optimizer is not None:
            with_loss_scale(optimizer, kwargs.get("loss_scale_manager"), level)
        self._network = network
        self._computing = in_float16(network, level, kwargs.get("keep_batchnorm_fp32"))
        self._loss_fn, self._optimizer, self._eval_network = loss_fn, optimizer, eval_network

    # ---- the networks and their steps, made when they are first asked for ----

    @cached_property
    def train_network(self) -> Any:
        """The network with its loss and optimizer, if given: to look at, save, load into. `engine.py` runs it."""
        whole = self._computing if self._loss_fn is None else WithLossCell(self._computing, self._loss_fn)
        is_step = self._optimizer is None or (self._loss_fn is None and isinstance(whole, TrainOneStepCell))
        return whole if is_step else TrainOneStepCell(whole, self._optimizer)

    @property
    def _train_network(self) -> Any:
        """`train_network`, with the program that training has compiled of it, for MindSpore's scripts."""
        compiled = self.__dict__["_train_step"].compiled if "_train_step" in self.__dict__ else None
        return (
            self.train_network
            if compiled is None
            else from_above("cell_executor")().adopt(self.train_network, compiled)
        )

    @property
    def eval_network(self) -> Any:
        """The network that `eval` runs; None without metrics."""
        if self._eval_network is not None or not self._metrics:
            return self._eval_network
        return self._eval_step.network

    @property
    def predict_network(self) -> Any:
        """The network that `predict` runs: the one that was given."""
        return self._network

    _predict_network = property(lambda self: self._network)

    @cached_property
    def _train_step(self) -> TrainStep:
        return TrainStep(self._computing, self._loss_fn, self._optimizer)

    @cached_property
    def _eval_step(self) -> EvalStep | PredictStep:
        own = self._eval_network
        return EvalStep(self._computing, self._loss_fn) if own is None else PredictStep(own)

    @cached_property
    def _predict_step(self) -> PredictStep:
        return PredictStep(self._network)

    # ---- training ----

    @checked(**TRAINING)
    def train(
        self,
        epoch: int = _MISSING,
        train_dataset: Any = _MISSING,
        callbacks: Callback | list[Callback] | None = None,
        dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        progress: bool = False,
    ) -> None:
        """Train for `epoch` epochs.

        epoch              the last epoch, at least 1
        train_dataset      a Dataset: with a loss_fn two columns, data and label; else the inputs of the network
        callbacks          a Callback or a list of them
        dataset_sink_mode  the same steps, but callbacks hear of them only once per epoch, with the last step's loss
        sink_size          steps of an epoch in sink mode, read on where the last ended; -1: all
        initial_epoch      epochs done before: numbers and dataset go on behind them
        progress           show a progress bar (on rank 0)

        The network is in training mode (`set_train`) afterwards.
        """
        self._fit("Model.train", epoch, train_dataset, callbacks, dataset_sink_mode, sink_size, initial_epoch, progress)

    @checked(**TRAINING, valid_dataset_sink_mode=flag)
    def fit(
        self,
        epoch: int = _MISSING,
        train_dataset: Any = _MISSING,
        valid_dataset: Any = None,
        valid_frequency: int | Collection[int] = 1,
        callbacks: Callback | list[Callback] | None = None,
        dataset_sink_mode: bool = False,
        valid_dataset_sink_mode: bool = False,
        sink_size: int = -1,
        initial_epoch: int = 0,
        *,
        progress: bool = False,
    ) -> None:
        """`train`, with an evaluation after epochs.

        valid_dataset    a Dataset for `eval`; None: no evaluation
        valid_frequency  evaluate after the first epoch and every so many, or after a list, tuple or set of epochs

        At an epoch's end callbacks find `eval_results` and `metrics`, with "eval_loss" if there is a loss.
        """
        if not self._metrics:
            what = "the Model has no metrics"
            raise ArgumentError(what, where="Model.fit", hint="Model(..., metrics={'accuracy'}), or use train()")
        if valid_dataset is not None:
            valid_dataset = check_dataset("Model.fit", "valid_dataset", valid_dataset)
        evaluation = None if valid_dataset is None else (valid_dataset, arguments.checked_frequency(valid_frequency))
        sink = dataset_sink_mode, sink_size
        self._fit("Model.fit", epoch, train_dataset, callbacks, *sink, initial_epoch, progress, evaluation)

    def _fit(
        self,
        where: str,
        epoch: int,
        dataset: Any,
        callbacks: Any,
        sink: bool,
        sink_size: int,
        first: int,
        progress: bool,
        evaluation: tuple[Any, Callable[[int], bool]] | None = None,
    ) -> None:
        """`train` and `fit`; evaluation: (dataset, whether to evaluate after an epoch)."""
        for name, value in (("epoch", epoch), ("train_dataset", dataset)):
            if value is _MISSING:
                hint = f"{where.lower()}(10, dataset, ...) trains for 10 epochs"
                raise ArgumentTypeError(f"{name} is missing", where=where, hint=hint)
        if first >= epoch:
            what = f"initial_epoch={first} with epoch={epoch}"
            raise ArgumentError(what, where=where, allowed="initial_epoch below epoch, the last one")
        given, dataset = dataset, check_dataset(where, "train_dataset", dataset)
        called = [*as_callbacks(callbacks, where), *([ProgressBar()] if progress else [])]
        self._check_trainable(where)
        steps = sink_size if sink and sink_size > 0 else dataset.get_dataset_size()
        self._agree(where, called, epochs=[first, epoch], steps_per_epoch=steps)
        params = self._params("train", called, batch_num=steps, dataset_sink_mode=sink)
        step = self._train_step
        params.update(train_network=self.train_network, optimizer=self._optimizer)
        params.update(train_dataset=given, train_dataset_element=None, epoch_num=epoch, plan=None)
        if evaluation is not None:
            params.update(valid_dataset=evaluation[0], eval_results={}, metrics=None)
        self._network.set_train(True)
        feed = Feed(dataset, first * steps)
        with CallbackList(called) as calls:
            run = RunContext(params)
            calls.call("on_train_begin", run)
            for number in range(first + 1, epoch + 1):
                params.cur_epoch_num = number
                calls.call("on_train_epoch_begin", run)
                (self._sunk_epoch if sink else self._epoch)(where, step, feed, steps, calls, run)
                if evaluation is not None:
                    self._evaluate_in_fit(evaluation, params, calls)
                calls.call("on_train_epoch_end", run)
                if run.get_stop_requested():
                    break
            calls.call("on_train_end", run)

    def _epoch(self, where: str, step: Any, feed: Feed, steps: int, calls: CallbackList, run: RunContext) -> None:
        """One epoch, step by step."""
        params = run.original_args()
        for columns in feed.epoch():
            self._check_columns(where, "train_dataset", columns)
            params.cur_step_num += 1
            params.train_dataset_element = columns
            calls.call("on_train_step_begin", run)
            params.net_outputs = step(*columns)
            params.plan = step.plan
            calls.call("on_train_step_end", run)
            if run.get_stop_requested():
                return

    def _sunk_epoch(self, where: str, step: Any, feed: Feed, steps: int, calls: CallbackList, run: RunContext) -> None:
        """One epoch in sink mode: for callbacks its steps are one, whose number is that of the last."""
        params = run.original_args()
        params.cur_step_num += steps
        calls.call("on_train_step_begin", run)
        for columns in feed.take(steps):
            self._check_columns(where, "train_dataset", columns)
            params.train_dataset_element, params.net_outputs = columns, step(*columns)
        params.plan = step.plan
        calls.call("on_train_step_end", run)

    def _agree(self, where: str, callbacks: list[Callback], **numbers: Any) -> None:
        """Refuse on all ranks what would let them wait for each other, or write over each other's files."""
        mode = self._parallel_mode()
        world = training_world(mode)
        if world is None:
            return
        places = [one.place() for one in callbacks if isinstance(one, ModelCheckpoint)]
        answers = said_by_all(world, {**numbers, "places": places})
        for name in numbers:
            groups = groups_of([one[name] for one in answers])
            if len(groups) > 1:
                who = "; ".join(f"{value} on rank {', '.join(map(str, ranks))}" for value, ranks in groups.items())
                allowed = f"The same {name} on every rank: they wait for each other in every step"
                raise CollectiveMismatch(f"{name} is {who}", where=where, allowed=allowed)
        check_places(where, [one["places"] for one in answers], mode)

    def _parallel_mode(self) -> str:
        return self._settings()[0]

    def _settings(self) -> tuple[str, Any]:
        """(parallel_mode, dataset_strategy) of the context, or of the AutoParallel that the network is."""
        if isinstance(self._network, AutoParallel):
            settings = self._network.settings()
            return settings["parallel_mode"], settings["dataset_strategy"]
        config = frozen()
        return config.parallel_mode, config.dataset_strategy

    def _check_trainable(self, where: str) -> None:
        if self._loss_fn is None:
            return
        if self._optimizer is None:
            hint = "Give Model optimizer=..., or a network that updates its parameters, without a loss_fn"
            raise ArgumentError("a loss_fn without an optimizer: nothing would be trained", where=where, hint=hint)
        arguments.check_construct(where, self._network)

    def _params(self, mode: str, callbacks: list[Callback], **more: Any) -> CallbackParams:
        config, world = frozen(), current_world()
        device_number = config.device_num if world is None else world.world_size
        params = CallbackParams(mode=mode, network=self._network, loss_fn=self._loss_fn, cur_step_num=0, **more)
        params.update(parallel_mode=self._parallel_mode(), device_number=device_number, list_callback=callbacks)
        return params

    def _check_columns(self, where: str, name: str, columns: tuple[Any, ...]) -> None:
        if self._loss_fn is not None and len(columns) != 2:
            hint = (
                "Drop columns with project(), or omit loss_fn: then the network gets all columns and computes the loss"
            )
            what = f"{name} has {len(columns)} columns"
            raise DatasetError(what, where=where, allowed="With a loss_fn two: data and label", hint=hint)

    # ---- evaluation ----

    @checked(dataset_sink_mode=flag, progress=flag)
    def eval(
        self,
        valid_dataset: Any,
        callbacks: Callback | list[Callback] | None = None,
        dataset_sink_mode: bool = False,
        *,
        progress: bool = False,
    ) -> dict[str, Any]:
        """The metrics over a dataset: {name: result}; in evaluation mode. `dataset_sink_mode` makes no difference.

        In semi_auto and auto_parallel the outputs are gathered, and every rank gets the result for the whole batch;
        in data_parallel each rank measures the rows of its own dataset.
        """
        where = "Model.eval"
        if not self._metrics:
            what = "the Model has no metrics"
            raise ArgumentError(what, where=where, hint="Model(..., metrics={'accuracy', 'loss'})")
        valid_dataset = check_dataset(where, "valid_dataset", valid_dataset)
        called = [*as_callbacks(callbacks, where), *([ProgressBar()] if progress else [])]
        size = valid_dataset.get_dataset_size()
        params = self._params("eval", called, batch_num=size, dataset_sink_mode=dataset_sink_mode)
        with CallbackList(called) as calls:
            return self._evaluate(where, valid_dataset, calls, params)[0]

    def _evaluate(
        self, where: str, dataset: Any, calls: CallbackList, params: CallbackParams
    ) -> tuple[dict[str, Any], float | None]:
        """The metrics, and the mean loss if there is a loss."""
        if params.parallel_mode in SHARDED_MODES:  # in the others a rank may evaluate for itself
            self._agree(where, [], evaluation_steps=params.batch_num)
        step = self._eval_step
        params.update(eval_network=step.network, valid_dataset=dataset)
        run, losses = RunContext(params), []
        for metric in self._metrics.values():
            metric.clear()
        with _in_evaluation_mode(self._network if self._eval_network is None else self._eval_network):
            calls.call("on_eval_begin", run)
            calls.call("on_eval_epoch_begin", run)
            for columns in Feed(dataset).epoch():
                params.cur_step_num += 1
                calls.call("on_eval_step_begin", run)
                params.valid_dataset_element = columns
                params.net_outputs = outputs = self._evaluated(where, step, columns)
                params.plan = step.plan
                calls.call("on_eval_step_end", run)
                self._update_metrics(where, outputs)
                if self._eval_network is None:
                    losses.append(loss_value(outputs[0]))
                elif self._eval_indexes is not None:
                    losses.append(loss_value(outputs[self._eval_indexes[0]]))
            calls.call("on_eval_epoch_end", run)
        params.metrics = {name: metric.eval() for name, metric in self._metrics.items()}
        calls.call("on_eval_end", run)
        return params.metrics, sum(losses) / len(losses) if losses else None

    def _evaluated(self, where: str, step: Any, columns: tuple[Any, ...]) -> tuple[Any, ...]:
        """What metrics are updated with: (loss, outputs, labels), or the outputs of the Model's own eval_network."""
        if self._eval_network is not None:
            outputs = step(*columns)
            return tuple(outputs) if isinstance(outputs, (list, tuple)) else (outputs,)
        self._check_columns(where, "valid_dataset", columns)
        loss, outputs, labels = step(*columns)
        return loss, outputs[0] if len(outputs) == 1 else outputs, labels

    def _update_metrics(self, where: str, outputs: tuple[Any, ...]) -> None:
        at = (0, 1, 2) if self._eval_network is None else self._eval_indexes
        if at is not None and max(at) >= len(outputs):
            what = f"eval_indexes={list(at)}, but the eval_network gave {len(outputs)} outputs"
            raise ArgumentError(what, where=where, allowed="Positions of loss, prediction and label")
        for metric in self._metrics.values():
            if at is None or metric.indexes:
                metric.update(*outputs)
            elif isinstance(metric, Loss):
                metric.update(outputs[at[0]])
            else:
                metric.update(outputs[at[1]], outputs[at[2]])

    def _evaluate_in_fit(
        self, evaluation: tuple[Any, Callable[[int], bool]], params: CallbackParams, calls: CallbackList
    ) -> None:
        """The evaluation after an epoch of `fit`: its results go into the parameters of the training."""
        dataset, is_due = evaluation
        params.update(eval_results={}, metrics=None)
        if is_due(params.cur_epoch_num):
            inner = self._params("eval", calls.callbacks, batch_num=dataset.get_dataset_size(), dataset_sink_mode=False)
            inner.update(cur_epoch_num=params.cur_epoch_num, epoch_num=params.epoch_num)
            results, loss = self._evaluate("Model.fit", dataset, calls, inner)
            params.metrics = results
            params.eval_results = results if loss is None else {**results, "eval_loss": loss}

    # ---- use ----

    def predict(self, *predict_data: Any, backend: str | None = None) -> Any:
        """Outputs for Tensors, numbers, or tuples and lists of them; in semi_auto and auto_parallel for those of all
        ranks, in full; with dataset_strategy="data_parallel" each rank's are a part of them.

        backend       None; "lite" is refused
        """
        where = "Model.predict"
        if backend is not None:
            raise NotBuiltYet(f"backend={shorten(backend)}", where=where, allowed="None: numpy", hint="Omit backend")
        if not predict_data:
            raise ArgumentTypeError("there is nothing to predict from", where=where, hint="model.predict(Tensor(x))")
        inner = self._network.network if isinstance(self._network, AutoParallel) else self._network
        if isinstance(inner, GradAccumulation):
            what, hint = "a GradAccumulation adds up what its parts of a batch give", "Give Model the network inside it"
            raise ModelError(what, where=where, allowed="A network that is used as it stands", hint=hint)
        arguments.check_inputs(where, predict_data)
        arguments.tell_of_parts(where, *self._settings())
        with _in_evaluation_mode(self._network):
            return self._predict_step(*predict_data)

    @checked(skip_backend_compile=flag)
    def infer_predict_layout(self, *predict_data: Any, skip_backend_compile: bool = False) -> dict[str, TensorLayout]:
        """How `predict` of whole inputs would split parameters: {parameter name: layout}. Nothing is trained.

        Raises ModelError (a RuntimeError) outside semi_auto and auto_parallel mode and in PyNative mode.
        """
        where = "Model.infer_predict_layout"
        arguments.check_layouts_wanted(where, self._parallel_mode())
        arguments.tell_of_parts(where, *self._settings())
        arguments.check_inputs(where, predict_data)
        with _in_evaluation_mode(self._network):
            self._predict_step.prepare(*predict_data)
            return layouts(self._predict_step)

    @checked(dataset_sink_mode=flag, sink_size=arguments.SINK_SIZE)
    def infer_train_layout(
        self, train_dataset: Any, dataset_sink_mode: bool = True, sink_size: int = -1
    ) -> dict[str, TensorLayout]:
        """How `train` would split parameters: {parameter name: layout}. Reads one row, trains nothing.

        Raises ModelError (a RuntimeError) outside semi_auto and auto_parallel mode and in PyNative mode.
        """
        where = "Model.infer_train_layout"
        arguments.check_layouts_wanted(where, self._parallel_mode())
        return layouts(self._compiled(where, check_dataset(where, "train_dataset", train_dataset)))

    @checked(sink_size=arguments.SINK_SIZE, epoch=integer(1), sink_mode=flag)
    def build(
        self,
        train_dataset: Any = None,
        valid_dataset: Any = None,
        sink_size: int = -1,
        epoch: int = 1,
        jit_config: Any = None,
        sink_mode: bool = True,
    ) -> None:
        """Compile before the first step, by the first row of a dataset, so that errors show now. Nothing is trained."""
        where = "Model.build"
        if train_dataset is None and valid_dataset is None:
            raise ArgumentError("train_dataset and valid_dataset are both None", where=where, allowed="At least one")
        if train_dataset is not None:
            self._compiled(where, check_dataset(where, "train_dataset", train_dataset))
        if valid_dataset is not None:
            if not self._metrics:
                what = "valid_dataset, but the Model has no metrics"
                raise ModelError(what, where=where, hint="Model(..., metrics={'accuracy'})")
            columns = first_row(check_dataset(where, "valid_dataset", valid_dataset))
            with _in_evaluation_mode(self._network if self._eval_network is None else self._eval_network):
                self._evaluated(where, self._eval_step, columns)  # which changes nothing

    def _compiled(self, where: str, dataset: Any) -> Any:
        """The step of training, compiled for the dataset's first row."""
        columns = first_row(dataset)
        self._check_columns(where, "train_dataset", columns)
        self._check_trainable(where)
        self._network.set_train(True)
        self._train_step.prepare(*columns)
        return self._train_step


@contextmanager
def _in_evaluation_mode(network: Any) -> Iterator[None]:
    """`set_train(False)` meanwhile; afterwards every Cell is as it was."""
    modes = [(cell, cell.training) for _, cell in network.cells_and_names()]
    network.set_train(False)
    try:
        yield
    finally:
        for cell, training in modes:
            cell.training = training
