"""Metrics: what an evaluation measures, batch by batch.

    model = Model(net, loss_fn, optimizer, metrics={"accuracy", "loss"})        # by name
    model = Model(net, loss_fn, optimizer, metrics={"top 3": TopKCategoricalAccuracy(3)})
    model.eval(dataset)                                                         # {"top 3": 0.9}

A metric of your own is a subclass of `Metric` with `clear`, `update` and `eval`. Predictions and labels may be Tensors,
arrays or lists. Counts are kept in float64 and Python ints, so results do not depend on the size of the batches. Names,
formulas and errors: MindSpore, train.metrics.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.checks import Errors, checked, choice, fitting, flag, integer, is_int, nearest, number
from ..base.dtypes import plain_array
from ..base.errors import ArgumentError, ArgumentTypeError, MetricEmpty, MetricKeyError, shorten
from ..nn.tensor.tensor import Tensor


def rearrange_inputs(func: Callable) -> Callable:
    """For the `update` of a metric of your own: gives it the inputs that `set_indexes` chose, in that order."""

    @functools.wraps(func)
    def wrapper(self: Any, *inputs: Any) -> Any:
        chosen = self.indexes
        if not chosen:
            return func(self, *inputs)
        beyond = [i for i in chosen if not -len(inputs) <= i < len(inputs)]
        if beyond:
            what = f"index {beyond[0]}, but update got {len(inputs)} inputs"
            where = f"{type(self).__name__}.set_indexes"
            raise ArgumentError(what, where=where, allowed="Positions among the inputs of update")
        return func(self, *(inputs[i] for i in chosen))

    return fitting(wrapper)


class Metric(ABC):
    """Base of metrics: `clear()` starts over, `update(predictions, labels)` adds a batch, `eval()` gives the result."""

    _indexes: list[int] | None = None

    @property
    def indexes(self) -> list[int] | None:
        """Positions of the inputs that `update` is to use; None: as they come."""
        return self._indexes

    def set_indexes(self, indexes: list[int]) -> Metric:
        """Choose and order the inputs of `update`: with [2, 0], update(a, b, c) uses (c, a). Returns self."""
        if not isinstance(indexes, list) or not all(map(is_int, indexes)):
            where = f"{type(self).__name__}.set_indexes"
            raise ArgumentTypeError(f"indexes={shorten(indexes)}", where=where, allowed="A list of ints")
        self._indexes = indexes
        return self

    def __call__(self, *inputs: Any) -> Any:
        """The result for these inputs alone."""
        self.clear()
        self.update(*inputs)
        return self.eval()

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def update(self, *inputs: Any) -> None:
        """Take in a batch: predictions and labels."""

    @abstractmethod
    def eval(self) -> Any:
        """The result of all batches since `clear`."""

    # ---- for subclasses ----

    def _convert_data(self, data: Any) -> np.ndarray:
        """A Tensor, array or list as an array. Raises ArgumentTypeError (a TypeError)."""
        if isinstance(data, Tensor):
            return data.asnumpy()
        if isinstance(data, (np.ndarray, list, np.generic)):
            return plain_array(data, where=type(self).__name__)
        raise ArgumentTypeError(f"input {shorten(data)}", where=type(self).__name__, allowed="A Tensor, array or list")

    def _pair(self, inputs: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Predictions and labels as arrays. Raises ArgumentError for another number of inputs."""
        if len(inputs) != 2:
            what, allowed = f"update got {len(inputs)} inputs", "2: predictions and labels"
            raise ArgumentError(what, where=type(self).__name__, allowed=allowed, hint="Use set_indexes")
        return self._convert_data(inputs[0]), self._convert_data(inputs[1])

    def _not_empty(self, count: int) -> None:
        """Raise MetricEmpty (a RuntimeError) if nothing was taken in."""
        if not count:
            what = "there is no result: no sample was taken in"
            raise MetricEmpty(what, where=type(self).__name__, hint="Call update first")

    def _refuse(self, what: str, allowed: str) -> ArgumentError:
        return ArgumentError(what, where=f"{type(self).__name__}.update", allowed=allowed)


class _Mean(Metric):
    """A total over a count, both added up batch by batch."""

    @fitting
    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._total = self._count = 0

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        total, count = self._measured(inputs)
        self._total += total
        self._count += count

    def eval(self) -> float:
        self._not_empty(self._count)
        return self._total / self._count

    @abstractmethod
    def _measured(self, inputs: tuple[Any, ...]) -> tuple[float, int]:
        """The total and the count of a batch."""


# ---- losses and differences ----


class Loss(_Mean):
    """The mean of the batches' losses.  update(loss): () or (n,), whose mean is taken."""

    def _measured(self, inputs: tuple[Any, ...]) -> tuple[float, int]:
        if len(inputs) != 1:
            raise self._refuse(f"got {len(inputs)} inputs", "1: the loss")
        loss = self._convert_data(inputs[0])
        if loss.ndim > 1:
            raise self._refuse(f"loss of shape {loss.shape}", "A number, or one dim whose mean is taken")
        return float(loss.mean(dtype=np.float64)), 1


class _MeanDifference(_Mean):
    """The sum of `distance(difference)` over all elements, divided by the number of samples, as in MindSpore."""

    distance: Callable[[np.ndarray], np.ndarray]

    def _measured(self, inputs: tuple[Any, ...]) -> tuple[float, int]:
        predictions, labels = self._pair(inputs)
        if labels.size != predictions.size or not labels.ndim:
            what = f"predictions {predictions.shape} and labels {labels.shape}"
            raise self._refuse(what, "The same number of elements, at least one dim")
        difference = labels.reshape(predictions.shape).astype(np.float64) - predictions
        return float(self.distance(difference).sum()), labels.shape[0]


class MAE(_MeanDifference):
    """Sum of absolute differences over the number of samples.  update(predictions, labels): (n, ...) both."""

    distance = np.abs


class MSE(_MeanDifference):
    """Sum of squared differences over the number of samples.  update(predictions, labels): (n, ...) both."""

    distance = np.square


# ---- classes ----


def is_one_hot(labels: np.ndarray) -> bool:
    """Whether every sample has exactly one 1 along dim 1, and 0 elsewhere."""
    return labels.ndim > 1 and bool(np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all())


class _Classes(Metric):
    """Base of metrics of classes: checks the shapes and remembers how many classes there are.

    "classification": scores (n, c, ...), labels (n, ...) or one-hot. "multilabel": both (n, c, ...), of 0 and 1
    """

    eval_types = ("classification", "multilabel")

    @fitting
    def __init__(self, eval_type: str = "classification") -> None:
        super().__init__()
        errors = Errors(ArgumentTypeError, ArgumentTypeError)
        self._type = choice(*self.eval_types)(type(self).__name__, "eval_type", eval_type, errors)
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._class_num = 0

    def _checked(self, inputs: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Predictions, and labels as class numbers or, in the multilabel case, as 0 and 1. Raises ArgumentError."""
        scores, labels = self._pair(inputs)
        shapes = f"predictions {scores.shape} and labels {labels.shape}"
        if scores.ndim < 2:
            raise self._refuse(f"predictions of shape {scores.shape}", "(samples, classes, ...)")
        if self._type == "multilabel":
            if scores.shape != labels.shape:
                raise self._refuse(shapes, "The same shape")
            if not (np.isin(scores, (0, 1)).all() and np.isin(labels, (0, 1)).all()):
                raise self._refuse("a prediction or label that is neither 0 nor 1", "0 and 1 in the multilabel case")
        else:
            if scores.shape == labels.shape and is_one_hot(labels):
                labels = labels.argmax(axis=1)
            if labels.shape != (scores.shape[0], *scores.shape[2:]):
                raise self._refuse(shapes, "Labels have the predictions' shape without dim 1, or are one-hot")
        if self._class_num not in (0, scores.shape[1]):
            what = f"predictions have {scores.shape[1]} classes, those before had {self._class_num}"
            raise self._refuse(what, "The same number in every batch")
        self._class_num = scores.shape[1]
        return scores, labels


class Accuracy(_Classes, _Mean):
    """The share of samples whose highest score is the label's; multilabel: whose classes all agree."""

    def _measured(self, inputs: tuple[Any, ...]) -> tuple[float, int]:
        scores, labels = self._checked(inputs)
        right = (scores == labels).all(axis=1) if self._type == "multilabel" else scores.argmax(axis=1) == labels
        return int(right.sum()), right.size


class TopKCategoricalAccuracy(_Classes, _Mean):
    """Share of labels (n,) or (n, c) among the k highest scores (n, c); the first of equal scores is higher."""

    eval_types = ("classification",)

    @checked(k=integer(1))
    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def _measured(self, inputs: tuple[Any, ...]) -> tuple[float, int]:
        scores, labels = self._checked(inputs)
        best = np.argsort(-scores.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        right = (best == labels[:, None]).any(axis=1)
        return int(right.sum()), right.size


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """TopKCategoricalAccuracy with k = 1."""

    @fitting
    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """TopKCategoricalAccuracy with k = 5."""

    @fitting
    def __init__(self) -> None:
        super().__init__(5)


class _Counted(_Classes):
    """Base of metrics of counted positives: per class in classification; multilabel per sample, all results kept."""

    def clear(self) -> None:
        super().clear()
        self._counts: list[np.ndarray] = []

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, actual = self._per_class(inputs)
        axis = 1 if self._type == "multilabel" else 0
        # true, predicted, actual positives
        counts = np.stack([(predicted * actual).sum(axis), predicted.sum(axis), actual.sum(axis)])
        self._counts = [*self._counts, counts] if self._type == "multilabel" else [sum(self._counts, counts)]

    def _per_class(self, inputs: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(predictions, labels) of 0 and 1 as (rows, classes) of float64, a row for each sample and place."""
        scores, labels = self._checked(inputs)
        if self._type == "multilabel":
            rows = (np.moveaxis(a, 1, -1).reshape(-1, self._class_num) for a in (scores, labels))
            return tuple(a.astype(np.float64) for a in rows)
        if not np.isin(labels, np.arange(self._class_num)).all():
            raise self._refuse("a label that is not a class number", f"0 to {self._class_num - 1}")
        ones = np.eye(self._class_num)
        return ones[scores.argmax(axis=1).reshape(-1)], ones[labels.reshape(-1).astype(np.int64)]

    def eval(self, average: bool = False) -> Any:
        """One value per class (multilabel: per sample); average: their mean. 0 where there is nothing to divide by."""
        self._not_empty(self._class_num)
        flag(type(self).__name__, "average", average)
        above, below = self._ratio(*np.concatenate(self._counts, axis=1))
        result = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        return float(result.mean()) if average else result

    @abstractmethod
    def _ratio(self, true: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The result as (dividend, divisor), from counts of positives."""


class Precision(_Counted):
    """True positives over predicted positives, per class (multilabel: per sample)."""

    def _ratio(self, true: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return true, predicted


class Recall(_Counted):
    """True positives over actual positives, per class (multilabel: per sample)."""

    def _ratio(self, true: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return true, actual


class Fbeta(_Counted):
    """(1 + beta²) · true positives / (beta² · actual + predicted positives), per class; beta > 0 weighs recall."""

    eval_types = ("classification",)

    @checked(beta=number(0, above=True))
    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta

    def _ratio(self, true: np.ndarray, predicted: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weight = self.beta**2
        return (1 + weight) * true, weight * actual + predicted


class F1(Fbeta):
    """Fbeta with beta 1: the harmonic mean of precision and recall."""

    @fitting
    def __init__(self) -> None:
        super().__init__(1.0)


# ---- by name ----

_BY_NAME: dict[str, type[Metric]] = {
    "F1": F1,
    "acc": Accuracy,
    "accuracy": Accuracy,
    "loss": Loss,
    "mae": MAE,
    "mse": MSE,
    "precision": Precision,
    "recall": Recall,
    "top_1_accuracy": Top1CategoricalAccuracy,
    "top_5_accuracy": Top5CategoricalAccuracy,
    "topk": TopKCategoricalAccuracy,
}


def names() -> list[str]:
    """The names of metrics, sorted."""
    return sorted(_BY_NAME)


def get_metric_fn(name: str, *args: Any, **kwargs: Any) -> Metric:
    """The metric called `name`, made with these arguments. Raises MetricKeyError (a KeyError and ValueError)."""
    if not isinstance(name, str) or name not in _BY_NAME:
        hint = nearest(name, _BY_NAME) if isinstance(name, str) else ""
        hint = hint or "A metric of your own is given by name: metrics={'mine': MyMetric()}"
        what = f"there is no metric {shorten(name)}"
        raise MetricKeyError(what, where="metrics", allowed=f"Names: {', '.join(names())}", hint=hint)
    return _BY_NAME[name](*args, **kwargs)


def get_metrics(metrics: Any) -> dict[str, Metric]:
    """{name: Metric} from a set of names, a dict of Metrics or None. Raises ArgumentTypeError, MetricKeyError."""

    def refused(what: str) -> ArgumentTypeError:
        allowed = "A set of names such as {'accuracy', 'loss'}, or a dict {name: Metric}"
        return ArgumentTypeError(what, where="Model(metrics=)", allowed=allowed)

    if metrics is None:
        return {}
    if isinstance(metrics, (set, frozenset)):
        for name in metrics:
            if not isinstance(name, str):
                raise refused(f"{shorten(name)} in a set of metrics")
            if name == "topk":
                hint = "metrics={'topk': TopKCategoricalAccuracy(3)}"
                raise ArgumentError("'topk' needs its k", where="Model(metrics=)", hint=hint)
        return {name: get_metric_fn(name) for name in sorted(metrics)}
    if not isinstance(metrics, dict):
        raise refused(f"metrics={shorten(metrics)}")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not isinstance(metric, Metric):
            raise refused(f"{shorten(name)}: {shorten(metric)} in metrics")
    return dict(metrics)
