"""Metrics against their formulas, written out here."""

import numpy as np
import pytest

from parallel_lab import Tensor
from parallel_lab.train import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Fbeta,
    Loss,
    Metric,
    Precision,
    Recall,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    get_metric_fn,
    get_metrics,
    names,
    rearrange_inputs,
)
from tests.crossed import each_of
from tests.refusals import refused

SCORES = [[0.2, 0.5, 0.1, 0.3], [0.9, 0.1, 0.4, 0.2], [0.3, 0.2, 0.8, 0.7]]
SCORES += [[0.1, 0.6, 0.2, 0.4], [0.5, 0.4, 0.3, 0.2], [0.3, 0.1, 0.2, 0.6]]
LABELS = [1, 0, 3, 1, 2, 3]  # highest scores: 1, 0, 2, 1, 0, 3


def fed(metric, scores, labels, sizes):
    """The result after batches of these sizes."""
    metric.clear()
    start = 0
    for size in sizes:
        metric.update(Tensor(np.float32(scores[start : start + size])), Tensor(np.array(labels[start : start + size])))
        start += size
    return metric.eval()


# by hand: right are samples 0, 1, 3, 5; per class (true, predicted, actual): 0: (1, 2, 1), 1: (2, 2, 2), 2: (0, 1, 1),
# 3: (1, 1, 2)
BY_HAND = [
    (Accuracy(), 4 / 6),
    (Precision(), [1 / 2, 1, 0, 1]),
    (Recall(), [1, 1, 0, 1 / 2]),
    (F1(), [2 / 3, 1, 0, 2 / 3]),
    (Fbeta(2), [5 / 6, 1, 0, 5 / 9]),  # 5 * true / (4 * actual + predicted)
    (Top1CategoricalAccuracy(), 4 / 6),
    (TopKCategoricalAccuracy(2), 5 / 6),  # sample 2: class 3 is second; sample 4: class 2 is third
    (TopKCategoricalAccuracy(3), 6 / 6),
    (Top5CategoricalAccuracy(), 6 / 6),  # more than there are classes
]


@pytest.mark.quick(9)
@pytest.mark.parametrize("sizes", [(6,), (4, 2), (1, 1, 1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize(
    ("metric", "expected"), BY_HAND, ids=lambda x: type(x).__name__ if isinstance(x, Metric) else ""
)
def test_classification_is_what_was_counted_by_hand_in_batches_of_any_size(metric, expected, sizes):
    np.testing.assert_allclose(fed(metric, SCORES, LABELS, sizes), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("metric", "expected"), BY_HAND, ids=lambda x: type(x).__name__ if isinstance(x, Metric) else ""
)
def test_labels_may_be_one_hot(metric, expected):
    np.testing.assert_allclose(fed(metric, SCORES, np.eye(4, dtype=np.int32)[LABELS], (3, 3)), expected, rtol=1e-12)


def counted(scores, labels, classes):
    """(true, predicted, actual) positives per class, sample by sample."""
    true, predicted, actual = np.zeros(classes), np.zeros(classes), np.zeros(classes)
    for row, label in zip(scores, labels, strict=True):
        guess = max(range(classes), key=lambda c: row[c])
        predicted[guess] += 1
        actual[label] += 1
        true[label] += guess == label
    return true, predicted, actual


@pytest.mark.parametrize("seed", range(5))
def test_classification_equals_the_formulas_on_random_scores(seed):
    rng = np.random.default_rng(seed)
    scores, labels = rng.normal(size=(50, 5)).astype(np.float32), rng.integers(0, 5, 50)
    true, predicted, actual = counted(scores, labels, 5)
    assert predicted.all() and actual.all(), "nothing is divided by 0 here"
    precision, recall, sizes = true / predicted, true / actual, (20, 17, 13)
    both = precision + recall
    assert fed(Accuracy(), scores, labels, sizes) == true.sum() / 50
    np.testing.assert_allclose(fed(Precision(), scores, labels, sizes), precision, rtol=1e-12)
    np.testing.assert_allclose(fed(Recall(), scores, labels, sizes), recall, rtol=1e-12)
    harmonic = np.divide(2 * precision * recall, both, out=np.zeros(5), where=both > 0)
    np.testing.assert_allclose(fed(F1(), scores, labels, sizes), harmonic, rtol=1e-12)
    weighted = np.divide(1.25 * precision * recall, 0.25 * precision + recall, out=np.zeros(5), where=both > 0)
    np.testing.assert_allclose(fed(Fbeta(0.5), scores, labels, sizes), weighted, rtol=1e-12)
    among = [label in sorted(range(5), key=lambda c: -row[c])[:3] for row, label in zip(scores, labels, strict=True)]
    assert fed(TopKCategoricalAccuracy(3), scores, labels, sizes) == sum(among) / 50


def test_average_is_the_mean_over_the_classes():
    metric = Precision()
    fed(metric, SCORES, LABELS, (6,))
    assert metric.eval(average=True) == pytest.approx((0.5 + 1 + 0 + 1) / 4, rel=1e-12)


def test_the_first_class_of_equal_scores_counts_as_higher():
    equal = np.zeros((3, 4))
    assert fed(TopKCategoricalAccuracy(2), equal, [0, 1, 2], (3,)) == pytest.approx(2 / 3)


def test_dims_after_the_classes_are_places_of_their_own():
    scores = np.zeros((2, 3, 2))
    scores[0, 1, 0] = scores[0, 2, 1] = scores[1, 0, 0] = scores[1, 0, 1] = 1  # highest: [1, 2], [0, 0]
    assert fed(Accuracy(), scores, [[1, 2], [0, 1]], (2,)) == 3 / 4
    np.testing.assert_allclose(fed(Recall(), scores, [[1, 2], [0, 1]], (1, 1)), [1, 1 / 2, 1], rtol=1e-12)


MULTI_PREDICTED = [[1, 0, 1], [0, 1, 1], [1, 1, 1]]
MULTI_ACTUAL = [[1, 0, 1], [0, 0, 1], [1, 0, 0]]


@each_of(
    ("metric", "expected"),
    (Accuracy("multilabel"), 1 / 3),  # every class of a sample must agree
    (Precision("multilabel"), [2 / 2, 1 / 2, 1 / 3]),
    (Recall("multilabel"), [2 / 2, 1 / 1, 1 / 1]),
)
def test_multilabel_counts_per_sample(metric, expected):
    np.testing.assert_allclose(fed(metric, MULTI_PREDICTED, MULTI_ACTUAL, (2, 1)), expected, rtol=1e-12)


def test_differences_are_sums_over_the_number_of_samples():
    predicted, actual = np.arange(8.0).reshape(4, 2), np.zeros((4, 2))
    assert fed(MAE(), predicted, actual, (3, 1)) == sum(range(8)) / 4
    assert fed(MSE(), predicted, actual, (3, 1)) == sum(n * n for n in range(8)) / 4


def test_loss_is_the_mean_of_the_batches():
    metric = Loss()
    for value in (0.5, np.array([1.0, 2.0]), Tensor(np.float32(3))):
        metric.update(np.asarray(value) if isinstance(value, float) else value)
    assert metric.eval() == (0.5 + 1.5 + 3) / 3


def test_called_a_metric_gives_the_result_of_these_inputs_alone():
    metric = Accuracy()
    metric.update(np.array(SCORES), np.array([0] * 6))
    assert metric(np.array(SCORES), np.array(LABELS)) == 4 / 6


def test_rearrange_inputs_gives_update_what_set_indexes_chose():
    class Kept(Metric):
        def clear(self):
            self.got = None

        @rearrange_inputs
        def update(self, *inputs):
            self.got = inputs

        def eval(self):
            return self.got

    assert Kept()("a", "b", "c") == ("a", "b", "c")
    assert Kept().set_indexes([2, 0])("a", "b", "c") == ("c", "a")
    with pytest.raises(ValueError, match="index 3, but update got 3 inputs"):
        Kept().set_indexes([3])("a", "b", "c")


def test_metrics_by_name():
    made = get_metrics({"acc", "F1", "loss", "mae", "mse", "precision", "recall", "top_1_accuracy", "top_5_accuracy"})
    kinds = (F1, Accuracy, Loss, MAE, MSE, Precision, Recall, Top1CategoricalAccuracy, Top5CategoricalAccuracy)
    assert [type(metric) for metric in made.values()] == list(kinds)
    assert isinstance(get_metric_fn("topk", 3), TopKCategoricalAccuracy)
    assert isinstance(get_metric_fn("accuracy", "multilabel"), Accuracy)
    assert set(made) < set(names()) == {*made, "accuracy", "topk"} and names() == sorted(names())


@each_of("metric", Accuracy(), Precision(), Recall(), F1(), Loss(), MAE(), MSE(), TopKCategoricalAccuracy(2))
def test_a_metric_without_a_sample_lacks_a_result(metric):
    metric.clear()
    with pytest.raises(RuntimeError, match=f"{type(metric).__name__}: there is no result"):
        metric.eval()


S = np.array(SCORES)


test_what_is_refused = refused(
    (lambda: Accuracy("multi"), TypeError, "eval_type='multi'"),
    (lambda: Accuracy().update(S), ValueError, "1 inputs"),
    (lambda: Accuracy().update(S, np.zeros((6, 2))), ValueError, r"predictions \(6, 4\) and labels \(6, 2\)"),
    (lambda: Accuracy().update(S, np.zeros(5)), ValueError, "labels"),
    (lambda: Accuracy().update(S[0], np.zeros(1)), ValueError, r"\(samples, classes, ...\)"),
    (lambda: Accuracy("multilabel").update(S, S), ValueError, "neither 0 nor 1"),
    (lambda: Accuracy("multilabel").update(np.ones((2, 3)), np.ones((2, 2))), ValueError, "same shape"),
    (lambda: Precision().update(S, np.array([0, 1, 2, 3, 4, 0])), ValueError, "0 to 3"),
    (lambda: Recall().update(S, np.array([0, 1, 2, 3, -1, 0])), ValueError, "0 to 3"),
    (lambda: Accuracy().update("text", S), TypeError, "input 'text'"),
    (lambda: Loss().update(np.zeros((2, 2))), ValueError, r"\(2, 2\)"),
    (lambda: Loss().update(S, S), ValueError, "2 inputs"),
    (lambda: MAE().update(S, np.zeros((6, 3))), ValueError, "same number"),
    (lambda: Accuracy().set_indexes((0, 1)), ValueError, "list of ints"),
    (lambda: Accuracy().set_indexes([0.5]), ValueError, "list of ints"),
    (lambda: get_metric_fn("fscore"), KeyError, "there is no metric 'fscore'"),
    (lambda: get_metrics({1, 2}), TypeError, "set of names"),
    (lambda: get_metrics([Accuracy()]), TypeError, "metrics="),
)


def test_the_number_of_classes_stays_the_same():
    metric = Accuracy()
    metric.update(S, np.array(LABELS))
    with pytest.raises(ValueError, match="3 classes, those before had 4"):
        metric.update(S[:, :3], np.array([0] * 6))
