"""What is around a call of DTensors: policy, whether gradients and values are kept, who collects messages, who records.

with dtensor_policy("cheapest"), dtensor_messages() as sent:
    y = x @ w
print(*sent, sep="\\n")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...base.checks import choice
from ...base.dtypes import as_dtype
from ...base.errors import TraceError
from ...base.hooks import current_tracer, current_world
from ...base.origin import caller
from ...ops.machine.axis_rules import POLICIES

policy_var: ContextVar[str] = ContextVar("parallel_lab_dtensor_policy", default="torch")
planner_var: ContextVar[str] = ContextVar("parallel_lab_dtensor_planner", default="")
implicit_var: ContextVar[bool] = ContextVar("parallel_lab_implicit_replication", default=False)
loss_var: ContextVar[Callable[..., Any] | None] = ContextVar("parallel_lab_loss_parallel", default=None)
log_var: ContextVar[Any] = ContextVar("parallel_lab_dtensor_messages", default=None)
hollow_var: ContextVar[Callable[..., None] | None] = ContextVar("parallel_lab_dtensor_hollow", default=None)
node_var: ContextVar[Any] = ContextVar("parallel_lab_dtensor_node", default=None)  # whose gradient passes
recording_var: ContextVar[bool] = ContextVar("parallel_lab_dtensor_recording", default=True)


@dataclass(frozen=True)
class Message:
    """A message that every rank of the mesh took part in.

    kind        all_gather, all_to_all, all_reduce or reduce_scatter;  axis: of the mesh;  reduce: of the last two
    shape, dtype, size_bytes  of what a rank handed over
    reason      "operand 1 of MatMul: S0 -> R", "redistribute", "gradient of ..."
    where       the learner's line
    """

    kind: str
    axis: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    reduce: str
    reason: str
    where: str

    def __str__(self) -> str:
        reduce = f" ({self.reduce})" if self.reduce not in ("", "sum") else ""
        return f"{self.kind}{reduce} over {self.axis}: {self.shape}, {self.size_bytes} bytes; {self.reason}"


@contextmanager
def dtensor_messages(into: Any = None) -> Iterator[Any]:
    """Collect the messages of what runs inside.  into: what has `append`; None: a list

    with dtensor_messages() as sent:
        y = x @ w
    print(*sent, sep="\\n")
    """
    noted = [] if into is None else into
    token = log_var.set(noted)
    try:
        yield noted
    finally:
        log_var.reset(token)


class Hollow(np.ndarray):
    """A rank's part whose shape and dtype are known, and nothing else: it takes no memory, whatever its size.

    made_of  the parts that it depends on;  sent  the messages that were sent for it
    """

    made_of: tuple[Any, ...]
    sent: tuple[Message, ...]

    def __array_finalize__(self, parent: Any) -> None:
        self.made_of, self.sent = (parent,) if isinstance(parent, Hollow) else (), ()


def hollow(shape: Sequence[int], dtype: Any, made_of: Sequence[Any] = (), sent: Sequence[Message] = ()) -> Hollow:
    """A part without values."""
    made = np.broadcast_to(np.zeros((), as_dtype(str(dtype))), tuple(shape)).view(Hollow)
    made.made_of, made.sent = tuple(made_of), tuple(sent)
    return made


@contextmanager
def without_values(told: Callable[..., None] = lambda op, operands, results: None) -> Iterator[None]:
    """Inside, DTensors have no values: operators choose layouts and note messages, and compute nothing.

    The first rank of a mesh is played alone, as one process of PyTorch's "fake" group plays rank 0.
    told  called with each operator, its operands as they were laid out for it, and its results; in `backward` also
          with each operator whose rule was used, the gradients of its operands, and ()
    """
    token = hollow_var.set(told)
    try:
        yield
    finally:
        hollow_var.reset(token)


def valueless() -> bool:
    """Whether DTensors have no values here."""
    return hollow_var.get() is not None


@contextmanager
def without_gradients() -> Iterator[None]:
    """Inside, nothing that is computed with DTensors asks for a gradient (PyTorch's no_grad)."""
    token = recording_var.set(False)
    try:
        yield
    finally:
        recording_var.reset(token)


@contextmanager
def dtensor_policy(name: str, planner: str = "") -> Iterator[None]:
    """How operators inside choose layouts.

    "torch": by PyTorch's prices, its planner;  "cheapest": fewest bytes;  "explicit": no message that was not asked for
    (HyperParallel, JAX with explicit axes);  "reduce_at_once": as "cheapest", and no result stays pending (MindSpore);
    "gspmd": what JAX's compiler does, where that is known; the rest is refused
    planner  of redistributions, see `mesh_redistribution.py`; "": PyTorch's under its policy, the cheapest under others
    """
    tokens = policy_var.set(choice(*POLICIES, "gspmd")("dtensor_policy", "name", name)), planner_var.set(planner)
    try:
        yield
    finally:
        policy_var.reset(tokens[0])
        planner_var.reset(tokens[1])


@contextmanager
def implicit_replication(taken: bool = True) -> Iterator[None]:
    """Inside, a Tensor or an array that meets a DTensor is taken for a copy that every rank holds; False: refused."""
    token = implicit_var.set(taken)
    try:
        yield
    finally:
        implicit_var.reset(token)


class Surroundings(NamedTuple):
    """What is around a call: policy, planner, Tensors taken for copies, gradients, whether messages are collected."""

    policy: str
    planner: str
    implicit: bool
    recording: bool
    collects: bool

    @classmethod
    def now(cls) -> tuple[Surroundings, Any]:
        """Those of the caller, and where it collects messages."""
        log = log_var.get()
        return cls(policy_var.get(), planner_var.get(), implicit_var.get(), recording_var.get(), log is not None), log

    @contextmanager
    def entered(self) -> Iterator[list[Message]]:
        """The same around what runs inside; gives the messages."""
        with dtensor_policy(self.policy, self.planner), ExitStack() as stack:
            if self.implicit:
                stack.enter_context(implicit_replication())
            if not self.recording:
                stack.enter_context(without_gradients())
            yield stack.enter_context(dtensor_messages()) if self.collects else []


class TracedDTensor(TraceError):
    """DTensors in a program that is traced as one of Tensors."""


def recorder() -> Any:
    """What writes down a program that is compiled (`graph/dtensor_programs.py`), in which a part has no numbers, and
    one rank stands for all; None where operators run at once. Raises TracedDTensor in the trace of another program.
    """
    tracer = current_tracer.get()
    if tracer is None or hasattr(tracer, "parts_of"):
        return tracer
    raise TracedDTensor("a DTensor", where=caller().place, allowed="A program that is given to compile or jit")


def place() -> str:
    """The learner's line; on workers that of the notebook that called them."""
    return getattr(current_world(), "place", "") or caller().place


def note(kind: str, axis: str, reduce: str, sent: np.ndarray, reason: str) -> tuple[Message, ...]:
    """Enter a message into the log of the `dtensor_messages()` around. Returns it, if there is one."""
    log = log_var.get()
    if log is None:
        return ()
    line = "" if valueless() else place()
    log.append(made := Message(kind, axis, sent.shape, str(sent.dtype), sent.nbytes, reduce, reason, line))
    return (made,)
