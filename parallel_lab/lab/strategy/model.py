"""`StrategyLab`: the headless model behind the Strategy Lab widget.

    lab = StrategyLab(devices=8)
    lab.set_strategy("matmul", "((2, 4), (4, 1))")
    lab.select_rank(5)
    lab.run(); lab.wait()
    print(lab.to_text())

State, commands, `snapshot()`. Every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing, except `set_strategy`: a refused strategy is kept beside its operator
with the reason, and the picture stays at the last good one. Training runs in worker processes under a helper thread; no
command waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from ...base.checks import integer
from ...base.errors import ParallelLabError
from ...base.events import Event
from ...base.settings.context import default_settings
from ...graph.plan import Plan
from ..pictures import picture
from ..pictures.duals import redistribution_of, with_duals
from ..pictures.graph_strip import graph_strip
from ..pictures.layers import flow_graph, plan_layers
from ..pictures.numbers import simulated_step, slice_numbers
from ..shared.lab import Choice, RunsOneThing
from ..shared.networks import NETWORKS
from ..shared.problems import PROBLEMS, get_problem, problems_of
from ..shared.questions import COMMANDS, Question
from .ask import strategy_questions
from .exports import StrategyExports
from .gap import Machine
from .operators import Operators, first_tensor, layer_of_entries, parse_strategy, same_source
from .plans import Plans, Setting, job_of, own_copy
from .sections import pair_status, rank_status, strategy_text, tensor_status
from .training import PACES, Training

DEVICES = (1, 2, 4, 8)
PHASES = ("forward", "backward")
FUSIONS = {"alone": "single", "fused": "fused"}  # gradient sums
OPTIMIZERS = {"whole": "whole", "sliced": "sliced"}  # what ranks with the same parameter keep of its states
SPEEDS = {name: f"{pace:g} steps/s" if pace < math.inf else "full" for name, pace in PACES.items()}
MOST_STEPS = 100_000


class StrategyLab(StrategyExports, RunsOneThing):
    """A small network, its strategies, and a training run to watch.

    net      one of NETWORKS: "quickstart", "megatron", "dense", "convnet", "transformer", "embedding"
    devices  1, 2, 4 or 8
    data     one of PROBLEMS that the network takes, such as "seed" (the fixed batch of the quickstart) or "digits";
             default: its first
    steps    training steps of one run;  speed: "slow", "medium" or "full"
    simple   for a first lesson: head, one operator's strategy, the picture and the loss; nothing else is shown
    tour     whether the page begins with a tour, which a reader ends for ever with one click (`tour.js`)

    Listeners (`on_change`) are told "picture", "run" or "loss". `close()` ends a running training and forgets all
    listeners.
    """

    scripts = (
        *("shared/transport.js", "pictures/slices.js", "pictures/moves.js"),
        *("strategy/graph.js", "strategy/pairs.js", "strategy/numbers.js", "strategy/tour.js"),
        "strategy/strategy_lab.js",
    )
    styles = ("shared/transport.css", "pictures/moves.css", "strategy/strategy_lab.css", "strategy/pairs.css")
    commands = (
        *("set_net", "set_devices", "set_data", "set_preset", "set_strategy", "set_code"),
        *("set_fusion", "set_optimizer"),
        *("select_tensor", "select_phase", "select_rank", "select_message", "to", "show_numbers", *COMMANDS),
        *("run", "pause", "resume", "stop", "reset", "set_speed", "set_steps", "fit_machine"),
    )
    looks: ClassVar[dict[str, str]] = {"select_tensor": "tensor", "select_message": "message", "to": "at"}
    looks |= {"select_phase": "phase", "select_rank": "rank"}
    replayed = ("preset", "devices", "data", "net")
    also_kept = ("set_strategy", "set_steps", "show_numbers")
    often, apart = ("run", "loss"), ("timeline", "operators", "graph", "tensors")
    frame_height_px = 860
    words = staticmethod(strategy_text)

    def __init__(
        self,
        net: str = "quickstart",
        devices: int = 8,
        data: str | None = None,
        steps: int = 100,
        *,
        speed: str = "full",
        simple: bool = False,
        tour: bool = False,
    ) -> None:
        super().__init__()
        self._tour = tour
        self._simple, self._speed = simple, self.one_of(speed, PACES, "speed")
        self._fusion, self._optimizer, self._said = "alone", "whole", ""
        self._plans = Plans()
        self._net = self.one_of(net, NETWORKS, "net")
        self._devices, self._steps = self.one_of(devices, DEVICES, "devices"), steps
        self._data = self._checked_data(problems_of(NETWORKS[net].kind)[0] if data is None else data)
        self._run: Training = Training(steps=steps)
        self._typed: dict[str, tuple[str, str]] = {}
        self._phase = "forward"
        self._message: int | None = None  # the selected one, and
        self._moves: dict[str, Any] | None = None  # of a redistribution, what moves in it
        self._at = 0  # frames that are done
        self._numbers = False  # whether those of the slice are shown
        self._ranks: tuple[Plan, Any] | None = None  # a plan, and its simulated first step
        self._lanes: tuple[tuple[Event, ...], dict[str, Any]] | None = None  # of the measured step
        self._machine = Machine(DEVICES[-1])  # that predictions are made for
        self._rank = min(5, devices - 1)
        self._preset, self._tensor = next(iter(NETWORKS[net].presets)), ""
        self._update()

    # ---- choosing ----

    def choices(self) -> dict[str, Choice]:
        """What can be chosen now."""
        presets = {name: name for name in NETWORKS[self._net].presets}
        return {
            "net": Choice("net", self._net, NETWORKS),
            "devices": Choice("devices", self._devices, DEVICES),
            "data": Choice("data", self._data, {n: get_problem(n) for n in problems_of(NETWORKS[self._net].kind)}),
            "preset": Choice("preset", self._preset if self._strategies == self._given else "", presets),
            "phase": Choice("phase", self._phase, PHASES),
            "rank": Choice("rank", self._rank, range(self._devices)),
            "tensor": Choice("tensor", self._tensor, [e.value for e in self._entries()]),
            "speed": Choice("speed", self._speed, SPEEDS),
            "fusion": Choice("gradient sums", self._fusion, FUSIONS),
            "optimizer": Choice("optimizer states", self._optimizer, OPTIMIZERS),
        }

    def options(self) -> dict[str, Any]:
        return {"simple": self._simple, "tour": self._tour}

    def calls(self) -> list[list[Any]]:
        """Those of the choices: also the preset that strategies were changed from; then what was changed."""
        with self._lock:
            plain = {call[0]: call for call in super().calls()} | {"set_preset": ["set_preset", self._preset]}
            first = [plain.pop(f"set_{name}") for name in ("net", "devices", "data", "preset")]
            named = {name: None if value is None else str(value) for name, value in self._strategies.items()}
            changed = [["set_strategy", n, v] for n, v in named.items() if self._strategies[n] != self._given[n]]
            looked = [plain.pop(f"select_{name}") for name in ("tensor", "phase", "rank")]
            message = [] if self._message is None else [["select_message", self._message], ["to", self._at]]
            numbers = [["show_numbers", True]] if self._numbers else []
            changed += [*plain.values(), ["set_steps", self._steps], *numbers]
            return [*first, *changed, looked[0], *message, *looked[1:]]

    def replays(self) -> Iterable[list[Any]]:
        """Presets and devices, every strategy of an operator by itself, then other data and networks."""
        choices, strategies = list(super().replays()), []
        for one in self._operators().shown({e.value for e in self._entries()}):
            changed = self._strategies[one["name"]] != self._given[one["name"]]
            values = [*one["choices"], *([None] if one["source"] != "default" or changed else [])]
            strategies += [["set_strategy", one["name"], value] for value in values]
        first = [call for call in choices if call[0] in ("set_preset", "set_devices")]
        return [*first, *strategies, *(call for call in choices if call not in first)]

    def set_net(self, name: str) -> None:
        """Another network, with its first preset, and with data it takes. Raises ArgumentError; ends a run, whose curve
        stays.
        """
        with self._lock:
            known = problems_of(NETWORKS[self.one_of(name, NETWORKS, "net")].kind)
            changes = {"net": name, "data": self._data if self._data in known else known[0]}
            if name != self._net:
                changes |= {"preset": next(iter(NETWORKS[name].presets)), "tensor": ""}
            self._change(**changes)

    def set_devices(self, n: int) -> None:
        """Another number of ranks, with the strategies of the chosen preset for it. A training goes on with them."""
        self._choose(devices=n)

    def set_fusion(self, name: str) -> None:
        """Sum gradients "alone", one message each, or "fused" into few. A training goes on that way."""
        self._resettle(fusion=name)

    def set_optimizer(self, name: str) -> None:
        """Optimizer parallel: ranks with the same parameter keep its states "whole", or each a slice of parameter and
        states ("sliced"). A training goes on that way.
        """
        self._resettle(optimizer=name)

    def _resettle(self, **given: str) -> None:
        """Other settings with the same strategies."""
        with self._lock:
            changes, before = self._offered(**given), dict(vars(self))
            self._set(**changes)
            try:
                self._adopt(self._strategies, self._compile(self._strategies))
            except ParallelLabError:
                vars(self).update(before)
                raise
        self._changed("picture")

    def set_data(self, name: str) -> None:
        """Other data: one of PROBLEMS that the network takes. Ends a run, whose curve stays."""
        with self._lock:
            self._change(data=self._checked_data(name))

    def set_preset(self, name: str) -> None:
        """Take one of the network's sets of strategies, such as "data parallel". Raises ArgumentError. A training goes
        on with them.
        """
        with self._lock:
            self._change(**self._offered(preset=name), tensor="")

    def _checked_data(self, name: str) -> str:
        what = f"data for the network {self._net!r}:" if name in PROBLEMS else "data"
        return self.one_of(name, problems_of(NETWORKS[self._net].kind), what)

    def _update(self) -> None:
        """Strategies and plan for the chosen preset; what is looked at, as far as it still exists."""
        self._typed = {}
        self._look_at_message(None)
        self._take_preset()
        self._rank = min(self._rank, self._devices - 1)
        if self._tensor not in self.choices()["tensor"].known:
            self._tensor = first_tensor(self._plan, self._strategies, NETWORKS[self._net].look)
        self._after_change()

    def _adopt(self, strategies: dict[str, Any], plan: Plan) -> None:
        """Other strategies or settings, and their plan, in place of the present ones."""
        self._strategies, self._plan = strategies, plan
        self._look_at_message(None)
        self._after_change()
        known = {e.value: e for e in self._entries()}
        if self._tensor not in known:
            self._tensor = same_source(self._tensor, known)

    def _after_change(self) -> None:
        """A training that goes on takes its next step with the present plan. Where it cannot, it ends and says so."""
        run, now = self._run, self._settings()
        same = all(run.settings.get(key) == now[key] for key in ("net", "data"))
        if run.goes_on and run.state != "stopping" and same:
            run.ask_to_switch(self._plan, now)
        else:
            self._end_training()

    def set_strategy(self, operator: str, text: str | tuple | None) -> None:
        """Give an operator a strategy: as text such as "((2, 4), (4, 1))", as a tuple, or None for the default.

        A refused one does not raise: the operator shows the text and the reason, and the picture stays. An unknown
        operator raises ArgumentError. A training that goes on takes its next step with the new strategy; parameters
        and optimizer states are moved there between two steps.
        """
        with self._lock:
            self.one_of(operator, self._strategies, "operator", "set_strategy")
            try:
                wanted = {**self._strategies, operator: parse_strategy(text)}
                plan = self._compile(wanted)
            except ParallelLabError as error:
                self._typed[operator] = (str(text), str(error))
            else:
                self._typed.pop(operator, None)
                if wanted != self._strategies:
                    self._adopt(wanted, plan)
        self._changed("picture")

    def select_tensor(self, tensor: str) -> None:
        """The tensor to look at, by its id in the snapshot."""
        with self._lock:
            known = self._offered(tensor=tensor)
            self._look_at_message(None)
        self._look(**known)

    def select_message(self, number: int) -> None:
        """A message to look at, by its number: with its partner (the backward of a forward message), its tensor, and
        what moves in its redistribution.
        """
        with self._lock:
            table = picture.message_table(self._plan, self._rank)
            number = integer(1, len(table))("StrategyLab.select_message", "number", number)
            self._look_at_message(number)
            tensor, phase = table[number - 1]["tensor"], table[number - 1]["phase"]
            self._set(**({} if tensor is None else {"tensor": tensor, "phase": phase}))
        self._changed("picture")

    def _look_at_message(self, number: int | None) -> None:
        self._message, self._at = number, 0
        self._moves = None if number is None else self._moves_of(number)

    def _moves_of(self, number: int) -> dict[str, Any] | None:
        plan = self._plan
        return self._plans.drawn(plan, ("moves", number), lambda: redistribution_of(plan, number))

    def to(self, number: int) -> None:
        """To where so many frames of the selected message's redistribution are done."""
        with self._lock:
            last = len(self._moves["frames"]) if self._moves else 0
            self._at = integer(0, last)("StrategyLab.to", "move", number)
        self._changed("picture")

    def select_phase(self, phase: str) -> None:
        """Look at the tensor ("forward") or at its gradient ("backward")."""
        self._look(phase=phase)

    def select_rank(self, rank: int) -> None:
        """The rank whose holdings, groups and messages are shown."""
        self._look(rank=rank)

    def show_numbers(self, on: bool) -> None:
        """Show the numbers in the slice that is looked at: of the first step, simulated once for each plan."""
        with self._lock:
            self._numbers = on
        self._changed("picture")

    def _slice_numbers(self, entry: picture.TensorEntry, drawn: dict[str, Any]) -> dict[str, Any] | None:
        if not self._numbers:
            return None
        if self._ranks is None or self._ranks[0] is not self._plan:
            net, optimizer, batches = self._job()
            with default_settings():
                self._ranks = (self._plan, simulated_step(self._plan, net, optimizer, batches[0]))
        found = slice_numbers(self._plan, self._ranks[1], entry, self._phase, self._rank, drawn)
        return None if found is None else {**found, "source": "simulated: first step, before the update"}

    def questions(self) -> list[Question]:
        """Of the selected message its bytes; which edge carries most; who holds the same part of the tensor."""
        return strategy_questions(self._plan, self._rank, self._message, self._tensor, bool(self._facts.layers))

    # ---- training ----

    def run(self) -> None:
        """Train from the initial parameters, one worker process per rank. Returns at once; nothing during a run."""
        with self._lock:
            if self._run.goes_on:
                return
            how = {"steps": self._steps, "pace": PACES[self._speed], "settings": self._settings()}
            training, self._said = Training("starting", **how), ""
            one_device = self._compile({}, devices=1)
            self._keep_curve()
            # everything the thread needs is taken here: the lab may be set to another network while it works
            given, sensitive = (self._plan, one_device, *self._job()), get_problem(self._data).sensitive

        def work() -> None:
            training.work(*given, sensitive=sensitive, lock=self._lock, tell=lambda what: self._tell(training, what))

        self._start("", work, "", training)

    def pause(self) -> None:
        """Halt after the present step."""
        with self._lock:
            if self._run.state != "running":
                return
            self._run.pause()
        self._changed("run")

    def resume(self) -> None:
        """Go on after a pause."""
        with self._lock:
            if self._run.state != "paused":
                return
            self._run.resume()
        self._changed("run")

    def set_speed(self, name: str) -> None:
        """How many steps a second a run takes at most: "slow", "medium" or "full". Acts on a run that goes on, too."""
        with self._lock:
            self._set(**self._offered(speed=name))
            self._run.pace = PACES[name]
            self._run.end_part()
        self._changed("picture")

    def set_steps(self, steps: int) -> None:
        """Steps of a run, 1 to 100,000; also of the one that goes on, if any."""
        steps = integer(1, MOST_STEPS)("StrategyLab.set_steps", "steps", steps)
        with self._lock:
            self._steps = steps
            if self._run.goes_on or self._run.state == "idle":
                self._run.steps = max(steps, len(self._run.parallel))
                self._run.end_part()
        self._changed("picture")

    def stop(self) -> None:
        """End the run after the present step; what was measured stays."""
        with self._lock:
            if not self._run.goes_on:
                return
            self._run.ask_to_end()
            self._run.state = "stopping"
        self._changed("run")

    def reset(self) -> None:
        """Forget the run and the earlier ones: curves, counts and times."""
        with self._lock:
            self._end_training()
            self._earlier, self._said = [], ""
        self._changed("run")
        self._changed("picture")

    def idle_run(self) -> Training:
        return Training(steps=self._steps)

    def _end_training(self) -> None:
        """Detach the present run, so that its thread changes nothing any more, and ask it to end. Its curve stays."""
        self._keep_curve()
        training, self._run = self._run, self.idle_run()
        if training.goes_on:
            at = len(training.parallel)
            stays = "; its curve stays" if at else ""
            self._said = f"the run before (of {training.label}) was ended after step {at} by this change{stays}"
        training.ask_to_end()

    def _keep_curve(self) -> None:
        """The present run is an earlier one from now on."""
        if self._run.parallel:
            self._keep_earlier(self._run.as_earlier())

    def _settings(self) -> dict[str, str]:
        """What is set, in words; strategies only where they are not the preset's."""
        changed = {n: v for n, v in self._strategies.items() if v != self._given[n]}
        return {
            "net": NETWORKS[self._net].label,
            "data": get_problem(self._data).label,
            "devices": f"{self._devices} rank{'s' if self._devices > 1 else ''}",
            "preset": self._preset,
            **{name: f"{name} {value or 'default'}" for name, value in changed.items()},
            **({"fusion": "gradient sums fused"} if self._fusion == "fused" else {}),
            **({"optimizer": "optimizer states sliced"} if self._optimizer == "sliced" else {}),
        }

    # ---- compiling ----

    @property
    def plan(self) -> Plan:
        """The plan behind the picture."""
        return self._plan

    @property
    def events(self) -> tuple[Event, ...]:
        """What was measured of the present plan in the last step that was looked at; empty before there was one."""
        return self._run.events_of(self._plan)

    def _setting(self) -> Setting:
        return Setting(self._net, self._data, self._devices, self._fusion == "fused", self._optimizer == "sliced")

    def _job(self) -> tuple[Any, Any, list]:
        """The network as it is before the first step, its optimizer, and the batches."""
        return job_of(self._net, self._data, self._strategies)

    def _compile(self, strategies: Mapping[str, Any], **other: Any) -> Plan:
        """The plan with these strategies.  other: fields of the setting that differ"""
        return self._plans.plan(self._setting()._replace(**other), strategies)

    def _take_preset(self) -> None:
        """Set strategies, plan and facts of the operators from the preset for the present network, devices and data."""
        self._facts = self._plans.facts(self._net, self._data)
        wanted = NETWORKS[self._net].presets[self._preset](self._devices)
        self._given = self._strategies = self._plans.fitting(self._setting(), wanted)
        self._plan = self._compile(self._strategies)

    # ---- looking ----

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and what it has of every other tensor, phase and rank."""
        with self._lock:
            entries = self._entries()
            pictures = {f"{e.value}|{phase}": self._tensor_part(e, phase) for e in entries for phase in PHASES}
            ranks = {str(n): self._rank_part(n) for n in range(self._devices)}
            shot = self.snapshot()
            messages = {"null": {"moves": None, "status_message": ""}}
            for m in shot["messages"]:
                there = {} if m["tensor"] is None else {"tensor": m["tensor"], "phase": m["phase"]}
                shown = {"moves": self._moves_of(m["number"]), "status_message": pair_status(m)}
                messages[str(m["number"])] = {**shown, **there, "at": 0}
            here = {f"{self._tensor}|{self._phase}|{self._rank}": {"numbers": shot["numbers"]}, "*": {"numbers": None}}
            looks = {"message": messages, "tensor|phase": pictures, "rank": ranks, "tensor|phase|rank": here}
            return {**shot, "looks": looks}

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data."""
        with self._lock:
            plan = self._plan
            entries = self._entries()
            entry = next(e for e in entries if e.value == self._tensor)
            tensor, rank = self._tensor_part(entry, self._phase), self._rank_part(self._rank)
            messages = rank["messages"]
            timeline, told = self._timeline(), "" if self._message is None else pair_status(messages[self._message - 1])
            layers, layer_of = (
                plan_layers(plan, self._facts.layers) if self._facts.layers else {},
                layer_of_entries(plan, self._facts.layers),
            )
            return {
                "version": 1,
                "title": "Strategy Lab",
                "simple": self._simple,
                "tour": self._tour,
                "steps": self._steps,
                "earlier": [run.curve() for run in self._earlier],
                "said": self._said,
                **self.chosen(),
                "operators": self._operators().shown({e.value for e in entries}),
                "graph": flow_graph(plan, messages, layers) if layers else graph_strip(plan, messages),
                "tensors": [
                    {
                        "id": e.value,
                        "label": e.label,
                        "shape": list(plan.value(e.base).shape),
                        "dtype": plan.value(e.base).dtype,
                        "layer": layer_of(e),
                    }
                    for e in entries
                ],
                "tensor": self._tensor,
                "phase": self._phase,
                "phases": list(PHASES),
                "rank": self._rank,
                "message": self._message,
                "moves": self._moves,
                "at": self._at,
                "numbers": self._slice_numbers(entry, tensor["picture"]["drawn"]),
                "predict": self.asked(),
                "numbers_shown": self._numbers,
                **tensor,
                **rank,
                **self.progress(),
                "timeline": timeline,
                "sections": {} if self._simple else self.code_sections(),
                "gap": self._machine.gap(plan, timeline, messages, self._rank),
                "fit": self._machine.to_dict(),
                "status_message": told,
                "status": told or f"{tensor['status_tensor']} {rank['status_rank']}",
            }

    def _entries(self) -> tuple[picture.TensorEntry, ...]:
        return self._plans.drawn(self._plan, "entries", lambda: picture.tensor_entries(self._plan))

    def _tensor_part(self, entry: picture.TensorEntry, phase: str) -> dict[str, Any]:
        """What depends on the tensor and the phase that are looked at."""
        shown, cards = self._plans.drawn(
            self._plan, (entry.value, phase), lambda: list(picture.tensor_picture(self._plan, entry, phase))
        )
        return {"picture": shown, "cards": cards, "status_tensor": tensor_status(shown, self._devices)}

    def _rank_part(self, rank: int) -> dict[str, Any]:
        """What depends on the rank that is looked at."""
        plan, events, profile = self._plan, self.events, self._machine.profile

        def messages() -> list[dict[str, Any]]:
            return with_duals(plan, picture.message_table(plan, rank, events, profile))

        table = messages() if events else self._plans.drawn(plan, ("messages", rank, profile), messages)
        detail = self._plans.drawn(plan, ("rank", rank), lambda: picture.rank_detail(plan, rank))
        told = {"messages": table, "message_totals": picture.totals(table)}
        return {"rank_detail": detail, **told, "status_rank": rank_status(rank, table, self._devices)}

    def _timeline(self) -> dict[str, Any]:
        """The lanes, kept until plan or events change: to predict them takes as long as the rest of a snapshot."""
        plan, events, profile = self._plan, self.events, self._machine.profile
        if not events:
            return self._plans.drawn(plan, ("lanes", profile), lambda: picture.timeline_lanes(plan, (), profile))
        if self._lanes is None or self._lanes[0] is not events:
            self._lanes = events, picture.timeline_lanes(plan, events)
        recorded = {"source": "measured (recorded)"} if self._run.state == "recorded" else {}
        return {**own_copy(self._lanes[1]), **recorded}

    def fit_machine(self) -> None:
        """Measure this machine for some seconds, and predict with its own profile from now on, in place of "laptop".
        Returns at once, `wait()` waits; nothing while it is measured or a training goes on.
        """
        if not (self._run.goes_on or self._machine.fit.goes_on):
            self._machine.start_fit(max(2, self._devices), lambda: self._changed("picture"))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run and no measuring goes on."""
        return super().wait(timeout) and self._machine.wait(timeout)

    def _operators(self) -> Operators:
        facts = self._facts
        return Operators(self._plan, self._strategies, self._given, self._typed, facts.composed, facts.layers)

    def loss_arrays(self, since: int = 0) -> dict[str, np.ndarray]:
        """Losses from step `since` on, as float32: "parallel" and "single"."""
        return self._run.loss_arrays(since)

    def progress(self) -> dict[str, Any]:
        """The parts of the snapshot that change with every step: "run" and "loss"."""
        with self._lock:
            run, loss = self._run.run_state(self._devices), self._run.loss(self._plan, self._devices)
            run["can"]["reset"] |= bool(self._earlier)
            return {"run": run, "loss": loss}
