"""Balance of experts: losses that reward alike loads, the bias that needs no loss, and the loads themselves.

    f_i   share of the choices that went to expert i         P_i   mean score of expert i
    balance loss = E * sum of f_i P_i                        1 if all are alike, at most E / k

The choices have no gradient, the scores do: an expert with more than its share has its scores pushed down. f and P are
over *all* tokens of the batch; the mean of what each rank computes for its own tokens is another function, and a larger
one as a rule. Factors (alpha, beta) are the caller's.

Sources: Fedus et al. 2021 (4)-(6); Zoph et al. 2022 (5); Wang et al. 2024 algorithm 1; DeepSeek-V3 (17)-(20).
"""

from __future__ import annotations

import numpy as np

from ..base.checks import integer
from ..base.errors import ArgumentError
from .activation import sigmoid_of, softmax_gradient_of, softmax_of
from .machine.operand_checks import floats, ints
from .machine.registry import case, gradient, op
from .routing import choose

# ---- on arrays ----


def load_of(experts: np.ndarray, count: int) -> np.ndarray:
    """How many choices each expert has.  experts: (...) from 0 to count - 1; others are dropped -> (count,)."""
    inside = experts[(experts >= 0) & (experts < count)]
    return np.bincount(inside.reshape(-1), minlength=count)


def normalised_scores(logits: np.ndarray, scores: str) -> np.ndarray:
    """Scores that add up to 1 over the experts: the softmax, or the sigmoids over their sum.  (..., e) -> (..., e)."""
    if scores == "softmax":
        return softmax_of(logits)
    each = sigmoid_of(logits)
    return each / each.sum(axis=-1, keepdims=True)


def balance_loss(logits: np.ndarray, k: int, scores: str = "softmax", *, parts: int = 1) -> float:
    """E * sum of f_i P_i over all tokens, without its factor.  logits: (t, e).

    parts   1: counts of all tokens. More: the mean of what so many ranks compute, each for its own tokens, in order
            (MindFormers: E^2 times the mean of f_i P_i per rank, which is the same)
    """
    return float(np.mean(sequence_losses(logits.reshape(parts, -1, logits.shape[-1]), k, scores)))


def sequence_losses(logits: np.ndarray, k: int, scores: str = "softmax") -> np.ndarray:
    """The balance loss of each sequence, f and P over its own tokens.  logits: (b, s, e) -> (b,)."""
    _, length, count = logits.shape
    experts, _ = choose(logits, k, "sigmoid" if scores == "sigmoid" else "softmax_topk")
    loads = np.stack([load_of(own, count) for own in experts])
    return count * (loads / (k * length) * normalised_scores(logits, scores).mean(axis=1)).sum(axis=-1)


def loss_per_choice(logits: np.ndarray, k: int) -> float:
    """MindSpore's older form: a loss for each choice, of what earlier choices left, normalised again; their sum.

    logits: (t, e). Alike experts give k, not 1 (mindspore.nn.transformer).
    """
    t, count = logits.shape
    rest, total = softmax_of(logits), 0.0
    for _ in range(k):
        rest = rest / rest.sum(axis=-1, keepdims=True)
        chosen = np.argmax(rest, axis=-1)
        total += count * float((load_of(chosen, count) / t * rest.mean(axis=0)).sum())
        rest[np.arange(t), chosen] = 0
    return total


def z_loss(logits: np.ndarray) -> float:
    """Mean of the squared log-sum-exp of the logits, without its factor: it keeps them small.  logits: (..., e)."""
    return float(np.mean(log_sum_exp(logits) ** 2))


def log_sum_exp(logits: np.ndarray) -> np.ndarray:
    """log of the sum of exp(logits) along the last dim.  (..., e) -> (...)."""
    top = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]


def bias_change(load: np.ndarray, rate: float, *, centred: bool = False) -> np.ndarray:
    """What is added to the selection bias after a step: rate * sign(mean load - load).  load: (e,) -> (e,).

    load      choices of all ranks and micro-batches, or the replicas' biases drift apart
    centred   take the mean of the change off: no choice differs, and the biases keep their mean (torchtitan)
    """
    load = np.asarray(load)
    if load.ndim != 1 or not load.size:
        raise ArgumentError(f"load of shape {load.shape}", where="bias_change", allowed="(e,): a count per expert")
    change = rate * np.sign(load.mean() - load)
    return change - change.mean() if centred else change


# ---- operators ----


def _load_labels(shapes, *, per_sequence, **_):
    rows = "abcd"[: len(shapes[0]) - 1]
    return f"{rows}k->{rows[0] if per_sequence else ''}e"


@op(
    _load_labels,
    name="ExpertLoad",
    attrs={"expert_num": integer(1)},
    check=lambda operands, **_: ints(operands[0], "experts"),
    dtype="float32",
    sizes=lambda shapes, *, expert_num, **_: {"e": expert_num},
    whole="ke",
    flops=1,
    example=(
        case((8, 2), ints={0: 4}, expert_num=4),
        case((4, 8, 2), ints={0: 4}, expert_num=4),
        case((4, 8, 2), ints={0: 4}, expert_num=4, per_sequence=True),
    ),
)
def expert_load(experts, *, expert_num=1, per_sequence=False):
    """How many choices each expert has: of all ranks, where tokens are split.  experts: (..., k) -> (e,) float32.

    per_sequence   count each index of dim 0 for itself: (b, s, k) -> (b, e)
    Numbers outside of 0 to expert_num - 1 are dropped choices. No gradient.
    """
    own = experts.reshape(len(experts) if per_sequence else 1, -1)
    loads = np.stack([load_of(one, expert_num) for one in own]).astype(np.float32)
    return loads if per_sequence else loads[0]


@op(
    "...e->...e",
    name="ExpertScores",
    check=lambda operands, **_: floats(operands[0]),
    whole="e",
    dtype=0,
    flops=4,
    example=(case((8, 4)), case((2, 8, 4), scores="sigmoid")),
)
def expert_scores(logits, *, scores="softmax"):
    """Scores that add up to 1 over the experts.  logits: (..., e) -> (..., e).  scores: "softmax" or "sigmoid"."""
    return normalised_scores(logits, scores)


@gradient(expert_scores, result_shape=1)
def expert_scores_grad(g, logits, *, scores):
    """Gradient for the logits.  g, logits: (..., e) -> (..., e)."""
    p = normalised_scores(logits, scores)
    if scores == "softmax":
        return softmax_gradient_of(g, p)
    each = sigmoid_of(logits)
    return (g - (g * p).sum(axis=-1, keepdims=True)) / each.sum(axis=-1, keepdims=True) * each * (1 - each)


@op(
    "...e->...",
    name="SquaredLogSumExp",
    check=lambda operands, **_: floats(operands[0]),
    whole="e",
    dtype=0,
    flops=4,
    example=(case((8, 4)), case((2, 8, 4))),
)
def squared_log_sum_exp(logits):
    """The square of log(sum of exp(logits)): the z-loss of each token.  logits: (..., e) -> (...)."""
    return log_sum_exp(logits) ** 2


@gradient(squared_log_sum_exp, result_shape=1)
def squared_log_sum_exp_grad(g, logits):
    """Gradient for the logits.  g: (...), logits: (..., e) -> (..., e)."""
    return (2 * g * log_sum_exp(logits))[..., None] * softmax_of(logits)


@op(
    "e,e->e",
    name="BiasStep",
    dtype=0,
    whole="e",
    flops=3,
    example=(case((4,), (4,)), case((4,), (4,), rate=0.5, centred=True)),
)
def bias_step(bias, load, *, rate=1e-3, centred=False):
    """The selection bias after a step; no gradient.  bias, load: (e,) -> (e,).  See `bias_change`."""
    return (bias + bias_change(load, rate, centred=centred)).astype(bias.dtype, copy=False)
