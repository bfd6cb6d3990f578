"""What the Strategy Lab gives to take away, and takes: programs of its setting, lines of MindSpore, charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..code.data import DATA
from ..code.exports import code_of_strategies
from ..code.lab_code import WritesCode, shard_line
from ..code.pasted import check_strategies, named_strategies, read_code
from ..code.program import program_of
from ..pictures.charts import Chart, loss_chart, timeline_chart
from ..shared.earlier import CURVE
from ..shared.networks import NETWORKS
from ..shared.problems import get_problem
from ..shared.records import Plain, taken
from .training import Training


class StrategyExports(WritesCode):
    """Of a `StrategyLab`, which it is a part of."""

    def set_code(self, text: str) -> None:
        """Strategies (and device_num) from lines of MindSpore, such as "self.matmul.shard(((2, 4), (4, 1)))"; they are
        read, not executed. Raises ArgumentError naming the line, and changes nothing then.
        """
        found = read_code(text)
        with self._lock:
            devices = found.value("device_num", self._devices)
            if not found.strategies and "device_num" not in found.settings:
                raise found.nothing_for("strategy")
            self._offered(devices=devices)
            wanted = named_strategies(found, {o["name"]: o["op"] for o in self._operators().shown(set())})
            plain = dict.fromkeys(self._strategies)
            check_strategies(wanted, lambda some: self._compile({**plain, **some}, devices=devices))
            if devices != self._devices:
                self._take(devices=devices)
            given = {**self._strategies, **{name: one.strategy for name, one in wanted.items()}}
            for name in wanted:
                self._typed.pop(name, None)
            if given != self._strategies:
                self._adopt(given, self._compile(given))
        self._changed("picture")

    @property
    def paste_example(self) -> str:
        """The first operator that has a choice, with the last one of its strategies."""

        def line() -> str:
            operators = self._operators().shown(set())
            one = next((o for o in operators if len(o["choices"]) > 1), operators[0])
            return shard_line(one["name"], one["choices"][-1])

        return self._plans.drawn(self._plan, "paste_example", line)

    def record(self) -> dict[str, Any] | None:
        """The run, if it has begun, with its last measured step."""
        with self._lock:
            return self._run.record(self._plan) if self._run.parallel else None

    def take_record(self, record: Any) -> None:
        """Show this run, as a recorded one. Raises ArgumentError for what no such lab has run."""
        if isinstance(record, Mapping) and set(record) == {"run", "earlier"}:  # as older files have it
            earlier = taken(tuple[tuple[Plain, Plain, Plain], ...], record["earlier"], "earlier")
            self.take_earlier([[settings, [], steps, losses] for settings, steps, losses in earlier])
            record = record["run"]
        if record is not None:
            with self._lock:
                self._run = Training.of_record(record, self._plan)
            self._changed("picture")

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """ "timeline": one step, event by event; "loss": this run, one device, and earlier runs."""

        def runs() -> Chart:
            loss = self._run.loss(None, self._devices)
            now = [(loss[f"label_{name}"], loss[name], 1) for name in ("parallel", "single") if loss[name]]
            before = [(run.label, run.losses, -(-run.steps // CURVE)) for run in self._earlier]
            return loss_chart([*now, *before])

        return {"timeline": lambda: timeline_chart(self._timeline()), "loss": runs}

    def _code_key(self) -> Any:
        return self._plan

    def _codes(self) -> dict[str, str]:
        return self._plans.drawn(self._plan, "codes", self._written)

    def _written(self) -> dict[str, str]:
        title = f"{NETWORKS[self._net].label} on {get_problem(self._data).label}, {self._devices} devices"
        program = program_of(self._plan, self._job()[1], DATA[self._data], title)
        return code_of_strategies(program, fused=self._fusion == "fused", sliced=self._optimizer == "sliced")
