"""One transformer on eight ranks, composed of everything: data, tensor and optimizer parallel, and recompute. The
capstone of lesson 12 trains it, and its grader computes everything again.

    layout = {"dp": 4, "tp": 2, "level": "level1", "recompute": False}
    found = Composed.of(layout)
    found.memory_bytes, found.sent_bytes        of the fullest rank, of the rank that sends most: counted in a step
    work = train(layout)                        ten steps on eight real processes, and on one device
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import Any

from ...base.errors import ArgumentError, shorten
from ...base.events import Event
from ...base.units import bytes_text, table_lines
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.models import GPT, tensor_parallel
from ...train.session import Session, initial_values
from ..memory.count import Count, predicted_ranks, simulated_ranks
from ..shared.equality import Equality, prove_equal
from ..shared.problems import get_problem

DEVICES, STEPS = 8, 10
RUNS = 10  # different layouts that a session may predict or train
LEVELS = ("off", "level1", "level2", "level3")
WAYS = (1, 2, 4, 8)
HIDDEN, HEADS = 64, 8


@dataclass(frozen=True)
class Layout:
    """dp: slices of the batch;  tp: slices of the network, dp * tp = 8;  level: of the optimizer parallel, or "off";
    recompute: whether the block is recomputed in the backward pass."""

    dp: int
    tp: int
    level: str = "off"
    recompute: bool = False


def layouts() -> Iterable[Layout]:
    """All there are."""
    for dp, level, recompute in product(WAYS, LEVELS, (False, True)):
        yield Layout(dp, DEVICES // dp, level, recompute)


def read_layout(choice: Any, where: str = "layout") -> Layout:
    """A dict as a Layout. Raises ArgumentError if it is not one."""
    names = tuple(Layout.__dataclass_fields__)
    if isinstance(choice, Layout):
        return choice
    if not isinstance(choice, Mapping) or not {"dp", "tp"} <= set(choice) <= set(names):
        raise ArgumentError(shorten(choice), where=where, allowed=f"A dict with {', '.join(names)}")
    layout = Layout(**choice)
    if layout not in list(layouts()):
        rule = f"dp and tp out of {WAYS} with dp * tp = {DEVICES}; level: one of {LEVELS}; recompute: True or False"
        raise ArgumentError(shorten(dict(choice)), where=where, allowed=rule)
    return layout


@dataclass(frozen=True)
class Composed:
    """The network with a layout."""

    layout: Layout

    @classmethod
    def of(cls, choice: Any) -> Composed:
        """What a dict describes. Raises ArgumentError."""
        return cls(read_layout(choice))

    def job(self) -> tuple[Any, Any, Any, tuple]:
        """(network, loss, optimizer, batches), anew."""
        problem = get_problem("text")
        net = GPT(problem.in_dim, hidden=HIDDEN, layers=1, heads=HEADS, seq_length=16, inner=4 * HIDDEN)
        tensor_parallel(net, self.layout.dp, self.layout.tp)
        if self.layout.recompute:
            for block in net.blocks:
                block.recompute()
        return net, problem.loss(), problem.optimizer(net.trainable_params()), problem.batches

    @property
    def settings(self) -> dict[str, Any]:
        """For `compile`."""
        level = self.layout.level
        return {} if level == "off" else {"enable_parallel_optimizer": True, "optimizer_level": level}

    def _compile(self, net: Any, loss: Any, optimizer: Any, batches: tuple) -> Plan:
        how = {"device_num": DEVICES, "dataset_strategy": "full_batch", **self.settings}
        return compile_network(net, *batches[0], loss=loss, optimizer=optimizer, **how)

    @cached_property
    def predicted(self) -> tuple[Count, ...]:
        """The count of every rank, from the plan."""
        return predicted_ranks(self._compile(*self.job()))

    @cached_property
    def counted(self) -> tuple[Count, ...]:
        """The count of every rank where it runs: a step on simulated ranks."""
        net, loss, optimizer, batches = self.job()
        plan = self._compile(net, loss, optimizer, batches)
        return simulated_ranks(plan, initial_values(plan, net, optimizer), batches[0])

    @property
    def memory_bytes(self) -> int:
        """What the fullest rank holds at its fullest moment."""
        return max(count.peak_bytes for count in self.counted)

    @property
    def sent_bytes(self) -> int:
        """What the rank sends in a step that sends most."""
        return max(count.sent_bytes for count in self.counted)

    def trained(self, executor: str = "simulator", steps: int = STEPS) -> tuple[list[float], list[Event]]:
        """Losses, and the events of the last step."""
        net, loss, optimizer, batches = self.job()
        plan = self._compile(net, loss, optimizer, batches)
        with Session(plan, net, optimizer, executor=executor) as session:
            return session.train(batches, steps, record=1), list(session.events)

    def report(self, executor: str = "simulator") -> Equality:
        """Every tensor after STEPS steps, compared with one device's."""
        net, loss, optimizer, batches = self.job()
        how = {"loss": loss, "optimizer": optimizer, "device_num": DEVICES, "executor": executor}
        return prove_equal(net, batches, **how, steps=STEPS, **self.settings)


@dataclass(frozen=True)
class Work:
    """A capstone's answer.  layout;  trace: events of the last step;  report: each tensor against one device's."""

    layout: dict[str, Any]
    losses: tuple[float, ...]
    trace: tuple[Event, ...]
    report: Equality

    def __str__(self) -> str:
        head = f"{STEPS} steps on {DEVICES} processes, loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"
        return (
            f"{head}; trace of {len(self.trace)} events; {'EQUAL' if self.report.equal else 'DIFFERENT'} to one device"
        )

    __repr__ = __str__


_TRIED: dict[Layout, None] = {}  # of this session


def count_runs(*choices: Any) -> list[Composed]:
    """These layouts, counted as runs: one that was tried before costs none. Raises ArgumentError, and counts none,
    where a layout is invalid, or there are too many."""
    composed = [Composed.of(choice) for choice in choices]
    tried = dict.fromkeys([*_TRIED, *(one.layout for one in composed)])
    if len(tried) > RUNS:
        allowed = f"{RUNS} different ones in a session, predicted or trained; {RUNS - len(_TRIED)} left"
        raise ArgumentError(f"{len(tried) - len(_TRIED)} more layouts", where="layout", allowed=allowed)
    _TRIED.update(tried)
    return composed


def train(choice: Any) -> Work:
    """Ten steps on eight real processes, recorded, and the same on one device: one of RUNS. Raises ArgumentError for
    an invalid layout."""
    (composed,) = count_runs(choice)
    losses, trace = composed.trained("processes")
    return Work(asdict(composed.layout), tuple(losses), tuple(trace), composed.report("processes"))


def messages_in(events: Iterable[Event]) -> Counter[tuple[Any, ...]]:
    """The messages of a trace, whatever their times: (rank, phase, name, op, group, bytes) of each."""
    return Counter((e.rank, e.phase, e.name, e.op, e.group, e.bytes) for e in events if e.kind == "communication")


@lru_cache(maxsize=4)
def _least_memory(budget_bytes: int) -> tuple[int, Layout]:
    """The least bytes that the fullest rank holds, of all layouts that send no more than the budget: by trying all."""
    fitting = []
    for layout in layouts():
        counts = Composed(layout).predicted
        if max(count.sent_bytes for count in counts) <= budget_bytes:
            fitting.append((max(count.peak_bytes for count in counts), layout))
    return min(fitting, key=lambda each: each[0])


def layouts_text(*choices: Any) -> str:
    """Layouts side by side, predicted from their plans: each number is that of the rank that has, or sends, most. Each
    layout is one of RUNS."""
    rows = [("layout", "model states", "fullest moment", "sent in a step", "messages")]
    for composed in count_runs(*choices):
        counts, layout = composed.predicted, composed.layout
        name = f"dp {layout.dp}, tp {layout.tp}, {layout.level}" + ", recompute" * layout.recompute
        states = max(sum(count.at("states").values()) for count in counts)
        row = (states, max(count.peak_bytes for count in counts), max(count.sent_bytes for count in counts))
        rows.append((name, *map(bytes_text, row), str(max(count.messages for count in counts))))
    return "\n".join(table_lines(rows, right=(1, 2, 3, 4)))
