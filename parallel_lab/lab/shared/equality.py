"""The proof next to every claim: a split run equals one device, tensor by tensor, to rounding.

    proof = prove_equal(net, batches, loss=nn.MSELoss(), optimizer=opt, device_num=8, steps=20, executor="processes")
    print(proof)            a table: tensor, largest difference, rounding bound, verdict
    proof.equal             True or False

Compared are the loss of every step, the gradient of every parameter in the first step, and every parameter after the
last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.checks import integer
from ...base.errors import ArgumentError, escape, shorten
from ...base.hooks import breathe
from ...base.units import table_lines
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...train.session import Session
from .recording import Keeper, Recording
from .running import Stopped
from .sections import html_table

HEAD = ("tensor", "largest difference", "rounding bound", "verdict")
COLUMNS = dict(zip(HEAD, ("name", "small", "small", "verdict"), strict=True))  # of a section


@dataclass(frozen=True)
class EqualityRow:
    """One tensor: where the two runs differ most, by how much, and how much rounding allows."""

    tensor: str
    largest_difference: float
    bound: float

    @property
    def equal(self) -> bool:
        return bool(self.largest_difference <= self.bound)

    @property
    def verdict(self) -> str:
        """One of "identical", "equal to rounding" and "different"."""
        return "identical" if self.largest_difference == 0 else "equal to rounding" if self.equal else "different"


@dataclass(frozen=True)
class Equality:
    """The table. Prints as text, shows as a table in a notebook; `equal` is the verdict on all of it."""

    title: str
    rows: tuple[EqualityRow, ...]

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows)

    @property
    def worst(self) -> EqualityRow:
        """The row that uses up most of its bound."""
        return max(
            self.rows, key=lambda r: r.largest_difference / r.bound if r.bound else float(r.largest_difference > 0)
        )

    @property
    def verdict(self) -> str:
        """How many tensors are equal, or how many differ if any does."""
        number = len(self.rows) if self.equal else sum(not row.equal for row in self.rows)
        return f"{'EQUAL' if self.equal else 'DIFFERENT'}: {number} of {len(self.rows)} tensors"

    def _cells(self) -> list[tuple[str, str, str, str]]:
        return [(r.tensor, f"{r.largest_difference:.2e}", f"{r.bound:.2e}", r.verdict) for r in self.rows]

    def __str__(self) -> str:
        return "\n".join([self.title, *table_lines([HEAD, *self._cells()]), self.verdict])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        verdict = f"<p><strong>{self.verdict.capitalize()}.</strong></p>"
        return f"<p>{escape(self.title)}</p>{html_table(HEAD, self._cells())}{verdict}"


def rows_of(equality: Equality, *before: str) -> list[list[Any]]:
    """Rows of a section with `COLUMNS`.  before: cells that stand before each row"""
    return [[*before, r.tensor, r.largest_difference, r.bound, [r.verdict, r.equal]] for r in equality.rows]


def bits_of(proofs: Iterable[Equality]) -> str:
    """ "same" where every tensor of every proof is identical, bit for bit, else "different"."""
    return "same" if all(row.largest_difference == 0 for proof in proofs for row in proof.rows) else "different"


def additions_behind(plan: Plan) -> int:
    """Additions behind one element of a gradient, forward and backward: the lengths of all sums of the step."""
    shapes = plan.graph.shapes()
    total = 0
    for node in plan.graph.nodes:
        op, operands, attrs = node.opdef, tuple(shapes[i] for i in node.ins), dict(node.attrs)
        if op.view:
            continue
        signature = op.signature_for(operands, attrs)
        sizes = op.label_sizes(signature, operands, attrs)
        # "same": every rank has the whole result already, nothing is added along what goes
        summed = signature.reduced if op.reduce != "same" else ()
        gone = {*summed, *op.whole_labels(signature, operands, attrs)}
        total += math.prod(sizes[c] for c in gone if any(c in labels for labels in signature.ins))
    rows = max((i.shape[0] for i in plan.data_inputs if i.shape), default=1)
    return 2 * total + rows


def rounding_bound(plan: Plan, value: np.ndarray, steps: int = 1) -> float:
    """How far two runs that add in different orders may differ in `value`: 4 sqrt(n) eps x steps x largest magnitude, n
    additions behind one element.

    Rounding errors of a sum of n terms behave like a random walk: with high probability they stay below lambda sqrt(n)
    eps times the sum of magnitudes, lambda a small constant, here 4 (Higham and Mary 2019, theorem 2.4). The sums of
    one step follow each other, so their lengths add up; each step starts from the last one's result, so steps add up
    too. First order, the largest element standing for the terms.
    """
    magnitude = float(np.max(np.abs(value))) if value.size else 0.0
    eps = float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 0.0
    return 4 * math.sqrt(additions_behind(plan)) * eps * steps * magnitude


def compare_sessions(
    session: Session,
    reference: Session,
    batches: Sequence[Any],
    steps: int,
    nudged: Session | None = None,
    stopped: Callable[[], bool] | None = None,
    count: Callable[[float], None] = lambda trained: None,
    train: Callable[..., list[float]] | None = None,
) -> Equality:
    """Train both for `steps` steps (at least 1) and compare them. All must be at their first step.

    nudged  a third session, as `reference`, whose parameters start off by as much as rounding moves numbers (`nudge`).
            Twice what that does to a tensor is added to its bound: some rules (Adam divides by the root of a mean
            square) make much of a small difference, on one device too.
    stopped   asked again and again; once it is true, Stopped is raised;  count: takes how many have been trained
    train     what trains `session`; None: its own `train`
    """
    integer(1)("equality with one device", "steps", steps)
    found = []
    for one in (session, reference, *([nudged] if nudged is not None else [])):
        how = one.train if train is None or found else train
        found.append(_trained(one, how, batches, steps, stopped))
        count(len(found))
    got, want, near = found[0], found[1], found[-1]
    where = {"processes": "worker processes", "mpi": "ranks of MPI"}.get(session.executor, "simulated ranks")
    return Equality(
        f"{session.plan.device_num} {where} against one device", equality_rows(reference.plan, got, want, near)
    )


def compare_plans(
    plan: Plan,
    reference: Plan,
    net: Any,
    optimizer: Any,
    batches: Sequence[Any],
    steps: int,
    *,
    executors: tuple[str, str],
    stopped: Callable[[], bool] | None = None,
    count: Callable[[float], None] = lambda trained: None,
    keep: Callable[[Recording | None], None] | None = None,
) -> Equality:
    """Both plans trained from the network's parameters, and the second one from a nudged start, which is simulated.

    executors   of the two;  stopped, count: as for `compare_sessions`
    keep        takes the recording of the first one, which is recorded then
    """
    start = {name: p.asnumpy() for name, p in net.parameters_dict().items()}
    with (
        Session(plan, net, optimizer, executor=executors[0], check_finite=False, unchecked=None) as session,
        Session(reference, net, optimizer, executor=executors[1], check_finite=False) as other,
        Session(reference, start | nudge(reference, start), optimizer, check_finite=False) as nudged,
    ):
        keeper = None if keep is None else Keeper(session)
        train = None if keeper is None else keeper.train
        proof = compare_sessions(session, other, batches, steps, nudged, stopped, count, train)
        if keep is not None and keeper is not None:
            keep(keeper.recording)
        return proof


Values = Mapping[str, tuple[np.ndarray, int]]  # by the name of its row, a value and the steps behind it


def equality_rows(plan: Plan, got: Values, want: Values, near: Values | None = None) -> tuple[EqualityRow, ...]:
    """A row for each value of `want`, those of one device with this plan. near: those of a nudged start."""
    rows = []
    for name, (value, steps) in want.items():
        breathe()
        moved = _largest_difference((near or want)[name][0], value)
        bound = rounding_bound(plan, value, steps) + (2 * moved if math.isfinite(moved) else 0.0)
        rows.append(EqualityRow(name, _largest_difference(got[name][0], value), bound))
    return tuple(rows)


def _trained(
    session: Session,
    train: Callable[..., list[float]],
    batches: Sequence[Any],
    steps: int,
    stopped: Callable[[], bool] | None,
) -> Values:
    losses = train(batches, 1)
    gradients = session.gradients()
    if steps > 1:
        losses += train(batches, steps - 1, stopped=stopped)
    if stopped is not None and stopped():
        raise Stopped
    return compared(session.plan, losses, gradients, session.parameters())


def compared(
    plan: Plan, losses: Sequence[float], gradients: Mapping[str, np.ndarray], parameters: Mapping[str, np.ndarray]
) -> Values:
    """What is compared of a training with this plan: every loss, the first gradients, the last parameters."""
    steps, dtype = len(losses), plan.value(plan.outputs[0]).dtype
    values = {f"loss, {steps} steps": (np.asarray(losses, dtype), steps)}
    values |= {f"gradient of {n}, step 1": (gradients[n], 1) for n in parameters if n in gradients}
    return values | {f"{n} after step {steps}": (p, steps) for n, p in parameters.items()}


def _largest_difference(got: np.ndarray, want: np.ndarray) -> float:
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    worst = float(difference.max()) if difference.size else 0.0
    return worst if np.isfinite(worst) else float("inf")


def nudge(plan: Plan, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters, each element moved up or down (fixed seed) by the amount `rounding_bound` allows a step."""
    rng = np.random.default_rng(0)
    moved = {}
    for name, value in parameters.items():
        eps = np.finfo(value.dtype).eps if value.dtype.kind == "f" else 0
        moved[name] = (
            value * (1 + 4 * math.sqrt(additions_behind(plan)) * eps * rng.choice([-1.0, 1.0], value.shape))
        ).astype(value.dtype)
    return moved


def prove_equal(
    network: Any,
    batches: Sequence[Any],
    *,
    loss: Any,
    optimizer: Any,
    device_num: int = 8,
    steps: int = 20,
    executor: str = "processes",
    **settings: Any,
) -> Equality:
    """Train `network` on device_num ranks and on one, from equal parameters, on global `batches`, labels last.

    settings  further ones of `compile`, for the ranks
    """
    if not isinstance(batches, (list, tuple)) or not batches or not isinstance(batches[0], (list, tuple)):
        what = f"batches is {shorten(batches)}"
        raise ArgumentError(what, where="prove_equal", allowed="A list with one tuple of inputs per step: [(x, label)]")
    plans = [
        compile_network(network, *batches[0], loss=loss, optimizer=optimizer, dataset_strategy="full_batch", **how)
        for how in ({"device_num": device_num, **settings}, {"parallel_mode": "stand_alone"})
    ]
    return compare_plans(*plans, network, optimizer, batches, steps, executors=(executor, "simulator"))
