"""One transformer on eight ranks, composed of everything: stages, data, tensor and optimizer parallel, micro-batches,
recompute. The capstone of lesson 12 trains it, and its grader computes everything again.

    runs = [{"stages": 2, "dp": 4, "tp": 1, "micro_batches": 4, "recompute": [0, 1]}]
    print(layouts_text(*runs))                  memory, traffic and time of each; a new one is a run
    work = train(runs)                          two steps of the last one on eight real processes, and on one device

There are 32,768 layouts, and a learner has ten runs: the desk that counts hints counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ... import nn
from ...base.cluster import Cluster, Device, Link
from ...base.errors import ArgumentError, shorten
from ...base.events import Event
from ...base.settings.current import default_settings
from ...base.units import plural, table_lines, time_text
from ...cost.timeline import predict_timeline
from ...graph.compiler import compile_network
from ...graph.plan import Plan
from ...nn.models import GPT, tensor_parallel
from ...train.session import Session, initial_values
from ..memory.count import Count, predicted_ranks, simulated_ranks
from ..shared.equality import Equality, compare_plans
from ..shared.problems import get_problem
from .book import spend

DEVICES, BLOCKS, STEPS, EARLIER_STEPS = 8, 8, 2, 10
RUNS, MOST_LINES = 10, 100  # different layouts that a learner may look at; lines of an answer
LEVELS = ("off", "level1", "level2", "level3")
WAYS = (1, 2, 4, 8)
SCHEDULES = ("1f1b", "gpipe")
HIDDEN, HEADS, RATE = 64, 8, 0.001
# as much slower than accelerators as the network is smaller: 10 GFLOP/s, 100 GB/s of memory, links of 5 us and 1 GB/s
MACHINE = Cluster("eight small accelerators", Device(10e9, 1 << 30, 100e9, 0.0), Link(5e-6, 1e-9), DEVICES)
FORM = (
    f"dp, tp and stages out of {WAYS}, dp * tp * stages = {DEVICES}; micro_batches out of {WAYS}, at least as many as "
    f"stages; schedule: one of {SCHEDULES}; level: one of {LEVELS}; recompute: True, False, or a list of blocks, 0 to "
    f"{BLOCKS - 1}"
)


@dataclass(frozen=True)
class Layout:
    """dp: slices of the batch;  tp: slices of the network;  stages: of the pipeline, dp * tp * stages = 8;
    level: of the optimizer parallel, or "off";  recompute: blocks that are recomputed in the backward pass;
    micro_batches, schedule: of a step."""

    dp: int
    tp: int
    level: str = "off"
    recompute: tuple[int, ...] = ()
    stages: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"

    def __str__(self) -> str:
        text = f"stages {self.stages}, dp {self.dp}, tp {self.tp}, {self.micro_batches} x {self.schedule}, {self.level}"
        return text + f", recompute {' '.join(map(str, self.recompute))}" * bool(self.recompute)


def read_layout(choice: Any, where: str = "layout") -> Layout:
    """A dict as a Layout. Raises ArgumentError if it is not one."""
    if isinstance(choice, Layout):
        choice = asdict(choice)
    names = {one.name for one in fields(Layout)}
    if not isinstance(choice, Mapping) or not {"dp", "tp"} <= set(choice) <= names:
        raise ArgumentError(shorten(choice), where=where, allowed=f"A dict with {', '.join(sorted(names))}")
    again = choice.get("recompute", False)
    blocks = tuple(range(BLOCKS)) if again is True else () if again is False else again
    layout = Layout(**{**choice, "recompute": tuple(blocks) if isinstance(blocks, list) else blocks})
    known = dict.fromkeys(("dp", "tp", "stages", "micro_batches"), WAYS) | {"level": LEVELS, "schedule": SCHEDULES}
    wrong = [
        f"{name}={shorten(value)}"
        for name, allowed in known.items()
        if not isinstance(value := getattr(layout, name), type(allowed[0])) or value is True or value not in allowed
    ]
    if not wrong and (product := layout.dp * layout.tp * layout.stages) != DEVICES:
        wrong = [f"dp {layout.dp} * tp {layout.tp} * stages {layout.stages} is {product}"]
    elif not wrong and layout.micro_batches < layout.stages:
        wrong = [f"{plural(layout.micro_batches, 'micro-batch', 'es')} for {layout.stages} stages"]
    listed = layout.recompute
    if not isinstance(listed, tuple) or not all(type(n) is int and 0 <= n < BLOCKS for n in listed):
        wrong.append(f"recompute={shorten(again)}")
    if wrong:
        raise ArgumentError(", ".join(wrong), where=where, allowed=FORM)
    return replace(layout, recompute=tuple(sorted(set(layout.recompute))))


def is_earlier(choice: Any) -> bool:
    """Whether it is a layout as earlier editions of the lesson asked for it: of one block, without stages."""
    return isinstance(choice, Mapping) and isinstance(choice.get("recompute", False), bool) and "stages" not in choice


@dataclass(frozen=True)
class Composed:
    """The network with a layout.  earlier: that of earlier editions, one block and a quarter of the rows, whose work is
    still graded."""

    layout: Layout
    earlier: bool = False

    def job(self, alone: bool = False) -> tuple[Plan, GPT, Any, tuple]:
        """(plan, network, optimizer, batches), anew; alone: the same micro-batches on one device."""
        layout, problem = Layout(1, 1) if alone else self.layout, get_problem("text")
        with default_settings():
            blocks = 1 if self.earlier else BLOCKS
            net = GPT(problem.in_dim, hidden=HIDDEN, layers=blocks, heads=HEADS, seq_length=16, inner=4 * HIDDEN)
            tensor_parallel(net, layout.dp, layout.tp)
            for number, block in enumerate(net.blocks):
                # a bias of the keys moves no softmax: its gradient is nothing but rounding
                block.attention.key.bias.requires_grad = self.earlier
                if layout.stages > 1:
                    block.pipeline_stage = number * layout.stages // BLOCKS
                if number in layout.recompute:
                    block.recompute()
            parameters = net.trainable_params()
            optimizer = problem.optimizer(parameters) if self.earlier else nn.Adam(parameters, RATE)
            whole = (tuple(map(np.concatenate, zip(*problem.batches, strict=True))),)
            batches = problem.batches if self.earlier else whole
            how = {"device_num": 1 if alone else DEVICES, "pipeline_stages": layout.stages, **self._level(layout)}
            how |= {"schedule": layout.schedule} if layout.stages > 1 else {}
            how |= {"grad_accumulation_step": self.layout.micro_batches, "dataset_strategy": "full_batch"}
            return (
                compile_network(net, *batches[0], loss=problem.loss(), optimizer=optimizer, **how),
                net,
                optimizer,
                batches,
            )

    def _level(self, layout: Layout) -> dict[str, Any]:
        """Level 1 keeps gradients whole while those of micro-batches are added up."""
        if layout.level == "off":
            return {}
        sharded = self.earlier or layout.level != "level1"
        how = {"enable_parallel_optimizer": True, "optimizer_level": layout.level}
        return {**how, "gradient_accumulation_shard": sharded}

    @cached_property
    def plan(self) -> Plan:
        """Compiled once, to look at."""
        return self.job()[0]

    @cached_property
    def predicted(self) -> tuple[Count, ...]:
        """The count of every rank, from the plan."""
        return predicted_ranks(self.plan)

    @property
    def counted(self) -> tuple[Count, ...]:
        """The count of every rank where it runs: a step on simulated ranks."""
        plan, net, optimizer, batches = self.job()
        return simulated_ranks(plan, initial_values(plan, net, optimizer), batches[0])

    @property
    def memory_bytes(self) -> int:
        """What the fullest rank holds at its fullest moment."""
        return max(count.peak_bytes for count in self.predicted)

    @property
    def sent_bytes(self) -> int:
        """What the rank sends in a step that sends most."""
        return max(count.sent_bytes for count in self.predicted)

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step on MACHINE, predicted."""
        return predict_timeline(self.plan, MACHINE, ranks=()).end_s

    @property
    def choice(self) -> dict[str, Any]:
        """The layout as it is handed in."""
        mine = asdict(self.layout)
        if not self.earlier:
            return mine
        return {**{name: mine[name] for name in ("dp", "tp", "level")}, "recompute": bool(self.layout.recompute)}

    @property
    def steps(self) -> int:
        """That it is trained for."""
        return EARLIER_STEPS if self.earlier else STEPS

    @cached_property
    def messages(self) -> Counter[tuple[Any, ...]]:
        """Those of a step, from the plan."""
        return messages_in(predict_timeline(self.plan, MACHINE).log)

    def trained(self, executor: str = "simulator") -> tuple[list[float], list[Event]]:
        """Mean losses, and the messages of the last step."""
        plan, net, optimizer, batches = self.job()
        with Session(plan, net, optimizer, executor=executor) as session:
            losses = [loss / self.layout.micro_batches for loss in session.train(batches, self.steps, record=1)]
            return losses, [event for event in session.events if event.kind == "communication"]

    def report(self, executor: str = "simulator") -> Equality:
        """Every tensor after the last step, compared with one device's."""
        plan, net, optimizer, batches = self.job()
        alone = self.job(alone=True)[0]
        return compare_plans(plan, alone, net, optimizer, batches, self.steps, executors=(executor, "simulator"))


@dataclass(frozen=True)
class Work:
    """A capstone's answer.  layout;  trace: messages of the last step;  report: each tensor against one device's;
    runs: what was looked at before, in order."""

    layout: dict[str, Any]
    losses: tuple[float, ...]
    trace: tuple[Event, ...]
    report: Equality
    runs: tuple[dict[str, Any], ...] = ()

    def __str__(self) -> str:
        head = f"{len(self.losses)} steps on {DEVICES} processes, loss {self.losses[0]:.4f} -> {self.losses[-1]:.4f}"
        equal = "EQUAL" if self.report.equal else "DIFFERENT"
        return f"{head}; trace of {len(self.trace)} messages; {equal} to one device"

    __repr__ = __str__


def read_runs(answer: Any) -> tuple[Composed, ...]:
    """The layouts that an answer names, the last one its own: of Work, of a dict of its parts, of a list of layouts, or
    of one layout. Raises ArgumentError."""
    if isinstance(answer, Work):
        return read_runs([*answer.runs, answer.layout])
    if isinstance(answer, Mapping) and "layout" in answer:
        return read_runs([*answer.get("runs", ()), answer["layout"]])
    if isinstance(answer, list | tuple) and len(answer) > MOST_LINES:
        raise ArgumentError(f"{len(answer)} layouts", where="layout", allowed=f"At most {RUNS} different ones")
    choices = answer if isinstance(answer, list | tuple) and answer else [answer]
    return tuple(Composed(read_layout(choice), is_earlier(choice)) for choice in choices)


def tries_of(answer: Any) -> list[tuple[Any, ...]]:
    """The same as plain tuples, which a page can write into a file. Raises ArgumentError."""
    return [astuple(one) for one in read_runs(answer)]


def count_runs(*choices: Any) -> list[Composed]:
    """These layouts, counted as runs: one that was tried before costs none. Raises ArgumentError, and counts none,
    where a layout is invalid, or there are too many."""
    composed = [one for choice in choices for one in read_runs(choice)]
    spend("12.1", map(astuple, composed))
    return composed


def train(choice: Any) -> Work:
    """A few steps on eight real processes, recorded, and the same on one device: of a layout, or the last of several.
    Each is a run. Raises ArgumentError for an invalid layout."""
    *before, composed = count_runs(choice)
    losses, trace = composed.trained("processes")
    runs = tuple(one.choice for one in before)
    return Work(composed.choice, tuple(losses), tuple(trace), composed.report("processes"), runs)


def messages_in(events: Iterable[Event]) -> Counter[tuple[Any, ...]]:
    """The messages of a trace, whatever their times: (rank, phase, name, op, group, bytes sent) of each."""
    found = (e for e in events if e.kind == "communication")
    return Counter((e.rank, e.phase, e.name, e.op, e.group, e.bytes * (e.op != "recv")) for e in found)


def layouts_text(*choices: Any) -> str:
    """Layouts side by side, predicted from their plans: each number is that of the rank that has, or sends, most, in
    bytes as the budgets are. Each layout is one of RUNS."""
    rows = [("layout", "model states", "fullest moment", "sent in a step", "messages", "step")]
    for composed in count_runs(*choices):
        counts = composed.predicted
        states = max(sum(count.at("states").values()) for count in counts)
        row = (states, max(count.peak_bytes for count in counts), max(count.sent_bytes for count in counts))
        messages = max(count.messages for count in counts)
        rows.append((str(composed.layout), *(f"{n:,}" for n in row), str(messages), time_text(composed.step_s)))
    return "\n".join(table_lines(rows, right=range(1, 6)))
