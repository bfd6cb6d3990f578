"""What the Strategy Lab gives to take away, and takes: programs of its setting, lines of MindSpore, charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import ParallelLabError
from ..code.data import DATA
from ..code.exports import code_of_strategies
from ..code.lab_code import WritesCode
from ..code.pasted import check_strategies, named_strategies, read_code
from ..code.program import program_of
from ..pictures.charts import Chart, loss_chart, timeline_chart
from ..shared.networks import NETWORKS
from ..shared.problems import get_problem


class StrategyExports(WritesCode):
    """Of a `StrategyLab`, which it is a part of."""

    def set_code(self, text: str) -> None:
        """Strategies (and device_num) from lines of MindSpore, such as "self.matmul.shard(((2, 4), (4, 1)))"; they are
        read, not executed. Raises ArgumentError naming the line, and changes nothing then.
        """
        found = read_code(text)
        with self._lock:
            before = self._devices
            if "device_num" in found.settings and found.value("device_num") != before:
                self.set_devices(found.value("device_num"))
            elif not found.strategies:
                raise found.nothing_for("strategy")
            try:
                wanted = named_strategies(found, {o["name"]: o["op"] for o in self._operators(set())})
                check_strategies(wanted, lambda some: self._compile({**self._strategies, **some}))
            except ParallelLabError:
                if self._devices != before:
                    self.set_devices(before)
                raise
            for name, sharded in wanted.items():
                self.set_strategy(name, sharded.strategy)

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """ "timeline": one step, event by event; "loss": this run, one device, and earlier runs."""

        def runs() -> Chart:
            loss = self._run.loss(None, self._devices)
            now = [(loss[f"label_{name}"], loss[name]) for name in ("parallel", "single") if loss[name]]
            return loss_chart([*now, *((run["label"], run["losses"]) for run in self._earlier)])

        return {"timeline": lambda: timeline_chart(self._timeline(self._plan, self._run.events)), "loss": runs}

    def _code_key(self) -> Any:
        return self._plan

    def _codes(self) -> dict[str, str]:
        title = f"{NETWORKS[self._net].label} on {get_problem(self._data).label}, {self._devices} devices"
        program = program_of(self._plan, self._job()[1], DATA[self._data], title)
        return code_of_strategies(program)
