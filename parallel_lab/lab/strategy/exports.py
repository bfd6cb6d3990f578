"""What the Strategy Lab gives to take away, and takes: programs of its setting, lines of MindSpore, charts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import ArgumentError
from ..code.data import DATA
from ..code.exports import code_of_strategies
from ..code.lab_code import WritesCode
from ..code.pasted import check_strategies, named_strategies, read_code
from ..code.program import program_of
from ..pictures.charts import Chart, loss_chart, timeline_chart
from ..shared.lab import EARLIER
from ..shared.networks import NETWORKS
from ..shared.problems import get_problem
from ..shared.records import LONGEST, MOST_LOSSES, Plain, losses_taken, losses_written, part_of, taken
from .training import CURVE, Training

RECORDED = "recorded: "  # before the settings of a run that was read from a file


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

    def record(self) -> dict[str, Any] | None:
        """The run, if it has begun, with its last measured step, and the curves of the earlier ones with their
        settings.
        """
        with self._lock:
            earlier = [
                [one["label"].removeprefix(RECORDED)[:LONGEST], one["steps"], losses_written(one["losses"])]
                for one in self._earlier
            ]
            run = self._run.record(self._plan) if self._run.parallel else None
            return {"run": run, "earlier": earlier} if run or earlier else None

    def take_record(self, record: Any) -> None:
        """Show these runs, as recorded ones. Raises ArgumentError for what no such lab has run."""
        if record is None:
            return
        run, earlier = part_of(record, "StrategyLab", "run", "earlier")
        curves = []
        for label, steps, losses in taken(tuple[tuple[str, int, Plain], ...], earlier, "earlier"):
            curve = losses_taken(losses, "earlier", CURVE)
            if not 0 < len(curve) <= steps <= MOST_LOSSES:
                raise ArgumentError(f"{len(curve)} losses of {steps} steps", where="earlier")
            curves.append({"label": f"{RECORDED}{label}", "steps": steps, "losses": curve})
        if len(curves) > EARLIER:
            raise ArgumentError(f"{len(curves)} earlier runs", where="StrategyLab", allowed=f"At most {EARLIER}")
        with self._lock:
            self._run, self._earlier = self.idle_run() if run is None else Training.of_record(run, self._plan), curves
        self._changed("picture")

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """ "timeline": one step, event by event; "loss": this run, one device, and earlier runs."""

        def runs() -> Chart:
            loss = self._run.loss(None, self._devices)
            now = [(loss[f"label_{name}"], loss[name], 1) for name in ("parallel", "single") if loss[name]]
            before = [(run["label"], run["losses"], -(-run["steps"] // CURVE)) for run in self._earlier]
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
