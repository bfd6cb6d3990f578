"""What the labs train on: data, loss and optimizer of four kinds of network.

problem = get_problem("digits")
problem.kind            "rows": a network takes it if it is made for that kind
problem.batches[0]      global inputs of one step, the label last

rows      one row of numbers per sample: the quickstart's fixed batch, handwritten digits
pictures  (n, channels, height, width)
text      token numbers and, for every position, the token that follows
clicks    feature numbers and their weights, and whether there was a click
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ... import nn
from ...base.errors import ArgumentError, shorten
from ...nn.initializer import HeUniform
from ...nn.models import LanguageModelLoss
from ...nn.tensor.parameter import Parameter
from ...train.dataset.digits import load_digits, seed_batch
from ...train.dataset.images import load_digits_cifar

BATCH_SIZE = 32  # digits: 45 batches of the 1440 images; every power of two up to it splits a batch evenly
SEQUENCES, SEQUENCE = 16, 16  # text: sequences per batch, letters per sequence
ALPHABET = 32  # the blank and 26 letters, and as many more as make it a power of two, so that the table may be split
CLICKS, FIELDS, FEATURES = 64, 4, 16  # clicks: samples per batch, fields per sample, features per field


@dataclass(frozen=True, eq=False)
class Problem:
    """Data, loss and optimizer, and the sizes a network needs.

    label      its name for people, short enough for a menu
    kind       "rows", "pictures", "text" or "clicks"
    batches    global inputs of one step each, the label last, gone round and round: (x (rows, in_dim) float32, label)
               for rows
    loss       makes the loss Cell;  optimizer: makes the optimizer for a list of Parameters
    in_dim     columns, channels, letters or features;  hidden_dim: width inside;  out_dim: of the result
    weight     rule of initial weights, as `initializer` takes it
    steps_per_epoch   steps that count as one epoch in a training log
    sensitive  rounding may grow beyond what the lengths of the sums tell: ReLU and max pooling have kinks, Adam divides
               by the root of a mean square
    """

    name: str
    label: str
    batches: tuple[tuple[np.ndarray, ...], ...]
    loss: Callable[[], nn.Cell]
    optimizer: Callable[[list[Parameter]], nn.Optimizer]
    in_dim: int
    hidden_dim: int
    out_dim: int
    weight: Any
    steps_per_epoch: int
    note: str
    kind: str = "rows"
    sensitive: bool = False


def _momentum(learning_rate: float, momentum: float) -> Callable[[list[Parameter]], nn.Optimizer]:
    return lambda parameters: nn.Momentum(parameters, learning_rate, momentum)


def _adam(learning_rate: float) -> Callable[[list[Parameter]], nn.Optimizer]:
    return lambda parameters: nn.Adam(parameters, learning_rate)


def _seed() -> Problem:
    return Problem(
        name="seed",
        label="fixed batch",
        batches=(_read_only(*seed_batch(16, 32, 16)),),
        loss=nn.MSELoss,
        optimizer=_momentum(0.2, 0.1),
        in_dim=32,
        hidden_dim=16,
        out_dim=16,
        weight="normal",
        steps_per_epoch=4,
        note="one random batch: the data, sizes and settings of MindSpore's automatic-parallel quickstart; an epoch "
        "is 4 steps on the same batch",
    )


def _digits() -> Problem:
    images, labels = load_digits()  # the files hold the classes well mixed, so batches are taken in their order
    batches = _batches(images, labels)
    return Problem(
        name="digits",
        label="digits",
        batches=batches,
        loss=nn.CrossEntropyLoss,
        optimizer=_momentum(0.1, 0.5),
        in_dim=images.shape[1],
        hidden_dim=64,
        out_dim=10,
        # weights are stored (in, out) here, so their fan_in is what the rule calls fan_out
        weight=HeUniform(mode="fan_out", nonlinearity="relu"),
        steps_per_epoch=len(batches),
        note=f"{len(images)} handwritten digits of 28 x 28, {len(batches)} batches of {BATCH_SIZE}; 10 classes can be "
        "split in 1 or 2 slices only",
    )


def _pictures() -> Problem:
    images, labels = load_digits_cifar()
    batches = _batches((images - np.float32(0.5)) / np.float32(0.25), labels)
    return Problem(
        name="pictures",
        label="colour digits",
        batches=batches,
        loss=nn.CrossEntropyLoss,
        optimizer=_adam(0.003),
        in_dim=images.shape[1],
        hidden_dim=8,
        out_dim=10,
        weight="he_normal",
        steps_per_epoch=len(batches),
        note=f"{len(images)} coloured handwritten digits in CIFAR-10's form, 3 x 32 x 32, {len(batches)} batches of "
        f"{BATCH_SIZE}",
        kind="pictures",
        sensitive=True,
    )


ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
ONES += ("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def _counting() -> str:
    """The numbers from zero to ninety-nine in words, with a blank between words."""
    return " ".join([*ONES, *(ten if not one else f"{ten} {ONES[one]}" for ten in TENS for one in range(10))])


def _text() -> Problem:
    text = _counting()
    tokens = np.array([0 if letter == " " else ord(letter) - ord("a") + 1 for letter in text], np.int32)
    size = SEQUENCES * SEQUENCE
    starts = range(0, len(tokens) - size, size)
    pairs = ((tokens[i : i + size], tokens[i + 1 : i + 1 + size]) for i in starts)
    batches = tuple(_read_only(*(part.reshape(SEQUENCES, SEQUENCE) for part in pair)) for pair in pairs)
    return Problem(
        name="text",
        label="counting in words",
        batches=batches,
        loss=LanguageModelLoss,
        optimizer=_adam(0.01),
        in_dim=ALPHABET,
        hidden_dim=32,
        out_dim=ALPHABET,
        weight="normal",
        steps_per_epoch=len(batches),
        note=f'"{text[:22]} ..." to ninety nine, letter by letter: {len(batches)} batches of {SEQUENCES} sequences of '
        f"{SEQUENCE}; guess the next one",
        kind="text",
        sensitive=True,
    )


def _clicks() -> Problem:
    """A click means a sum above 0: each feature's worth, plus the first two's as a pair, which no sum can tell."""
    draw = np.random.default_rng(3)
    worth, pair = draw.normal(size=FIELDS * FEATURES), draw.normal(size=(FEATURES, FEATURES))
    batches = []
    for _ in range(8):
        chosen = draw.integers(0, FEATURES, (CLICKS, FIELDS))
        ids = chosen + np.arange(FIELDS) * FEATURES
        clicked = worth[ids].sum(axis=1) + 2 * pair[chosen[:, 0], chosen[:, 1]] > 0
        weights, label = np.ones(ids.shape, np.float32), clicked.astype(np.float32)[:, None]
        batches.append(_read_only(ids.astype(np.int32), weights, label))
    return Problem(
        name="clicks",
        label="clicks",
        batches=tuple(batches),
        loss=nn.BCEWithLogitsLoss,
        optimizer=_adam(0.03),
        in_dim=FIELDS * FEATURES,
        hidden_dim=32,
        out_dim=1,
        weight="normal",
        steps_per_epoch=len(batches),
        note=f"made-up visitors with {FIELDS} features out of {FIELDS * FEATURES}, and whether they clicked: "
        f"{len(batches)} batches of {CLICKS}",
        kind="clicks",
        sensitive=True,
    )


def _batches(inputs: np.ndarray, labels: np.ndarray) -> tuple[tuple[np.ndarray, ...], ...]:
    starts = range(0, len(inputs) - BATCH_SIZE + 1, BATCH_SIZE)
    return tuple(_read_only(inputs[i : i + BATCH_SIZE], labels[i : i + BATCH_SIZE]) for i in starts)


def _read_only(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arrays, closed for writing: everyone shares one problem."""
    for array in arrays:
        array.flags.writeable = False
    return arrays


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "seed": _seed,
    "digits": _digits,
    "pictures": _pictures,
    "text": _text,
    "clicks": _clicks,
}
KINDS = {"seed": "rows", "digits": "rows"}  # known without loading the data; the name of any other is its kind


@cache
def get_problem(name: str) -> Problem:
    """The problem of that name in PROBLEMS; the same object on every call. Raises ArgumentError for another name.

    >>> problem = get_problem("seed")
    >>> [array.shape for array in problem.batches[0]], problem.in_dim, problem.hidden_dim, problem.out_dim
    ([(16, 32), (16, 16)], 32, 16, 16)
    """
    if name not in PROBLEMS:
        raise ArgumentError(f"problem {shorten(name)} is not known", allowed=f"One of {', '.join(PROBLEMS)}")
    return PROBLEMS[name]()


def problems_of(kind: str) -> tuple[str, ...]:
    """Names of the problems of a kind.

    >>> problems_of("rows")
    ('seed', 'digits')
    """
    return tuple(name for name in PROBLEMS if KINDS.get(name, name) == kind)
