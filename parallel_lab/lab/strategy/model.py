"""`StrategyLab`: the headless model behind the Strategy Lab widget.

    lab = StrategyLab(devices=8)
    lab.set_strategy("matmul", "((2, 4), (4, 1))")
    lab.select_rank(5)
    lab.run(); lab.wait()
    print(lab.to_text())
    lab.recording.first_difference(3)

State, commands, `snapshot()`. Every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing, except `set_strategy`: a refused strategy is kept with its operator
with the reason, and the picture stays at the last good one. Training runs in worker processes under a helper thread; no
command waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from ...base.checks import integer
from ...base.errors import ParallelLabError
from ...base.units import plural
from ...graph.plan import Plan
from ..code.lab_code import WritesCode
from ..pictures import picture
from ..pictures.charts import Chart, timeline_chart
from ..shared.lab import setting
from ..shared.networks import NETWORKS
from ..shared.problems import PROBLEMS, get_problem, problems_of
from ..shared.questions import COMMANDS, Question
from ..shared.what_if import WeighsChoices, Weight
from .code import codes_of, example_line, strategies_in
from .machine import Machine
from .operators import Operators, first_tensor, parse_strategy, same_source
from .pictures import PHASES, Pictures
from .plans import Plans, Setting, facts_of, job_of
from .questions import strategy_questions
from .sections import pair_status, strategy_text
from .training_lab import TrainingLab

DEVICES = (1, 2, 4, 8)
FUSIONS = {"alone": "single", "fused": "fused"}  # gradient sums
OPTIMIZERS = {"whole": "whole", "sliced": "sliced"}  # what ranks with the same parameter keep of its states


class StrategyLab(WeighsChoices, WritesCode, TrainingLab):
    """A small network, its strategies, and a training run to watch.

    net      one of NETWORKS: "quickstart", "megatron", "dense", "convnet", "transformer", "embedding"
    devices  1, 2, 4 or 8
    data     one of PROBLEMS that the network takes, such as "seed" (the fixed batch of the quickstart) or "digits";
             default: its first
    steps    training steps of one run;  speed: "slow", "medium" or "full"
    simple   for a first lesson: head, one operator's strategy, the picture and the loss; nothing else is shown
    tour     whether the page begins with a tour, which a reader ends for ever with one click (`story.js`)

    Listeners (`on_change`) receive "picture", "run" or "loss". `close()` ends a running training and forgets all
    listeners.
    """

    title = "Strategy Lab"
    scripts = (
        *("shared/transport.js", "shared/scrub.js", "pictures/slices.js", "pictures/moves.js"),
        *(
            "strategy/graph.js",
            "strategy/operators.js",
            "strategy/pairs.js",
            "strategy/numbers.js",
            "strategy/story.js",
        ),
        "strategy/strategy_lab.js",
    )
    styles = ("shared/transport.css", "pictures/moves.css", "strategy/strategy_lab.css", "strategy/pairs.css")
    commands = (
        *("set_strategy", "set_code", "select_message", "to", *COMMANDS),
        *("run", "pause", "resume", "stop", "reset", "fit_machine"),
    )
    looks: ClassVar[dict[str, str]] = {"select_tensor": "tensor", "select_message": "message", "to": "at"}
    replayed = ("preset", "devices", "data", "net")
    also_kept = ("set_strategy",)
    often, apart = ("run", "loss"), ("timeline", "operators", "graph", "tensors", "recording")
    weighed = ("set_strategy",)
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
        controls: str = "",
    ) -> None:
        super().__init__(steps, speed, controls=controls, story=tour)
        self._simple = simple
        self._fusion, self._optimizer = "alone", "whole"
        self._plans = Plans()
        self._pictures = Pictures(self._plans)
        self._net = self.one_of(net, NETWORKS, "net")
        self._devices = self.one_of(devices, DEVICES, "devices")
        self._data = self._checked_data(problems_of(NETWORKS[net].kind)[0] if data is None else data)
        self._typed: dict[str, tuple[str, str]] = {}
        self._phase = "forward"
        self._message: int | None = None  # the selected one, and
        self._moves: dict[str, Any] | None = None  # of a redistribution, what moves in it
        self._at = 0  # frames that are done
        self._numbers = False  # whether those of the slice are shown
        self._machine = Machine(DEVICES[-1])  # that predictions are made for
        self._rank = min(5, devices - 1)
        self._preset, self._tensor = next(iter(NETWORKS[net].presets)), ""
        self._update()

    # ---- choosing ----

    @setting("net", NETWORKS)
    def set_net(self, name: str) -> dict[str, Any]:
        """Another network, with its first preset, and with data it takes. Raises ArgumentError; ends a run, whose curve
        stays.
        """
        known = problems_of(NETWORKS[name].kind)
        fresh = {} if name == self._net else {"preset": next(iter(NETWORKS[name].presets)), "tensor": ""}
        return {"data": self._data if self._data in known else known[0], **fresh}

    @setting("devices", DEVICES)
    def set_devices(self, n: int) -> None:
        """Another number of ranks, with the strategies of the chosen preset for it. A training goes on with them."""

    @setting("data", lambda lab: {n: get_problem(n) for n in problems_of(NETWORKS[lab._net].kind)}, typed=True)
    def set_data(self, name: str) -> dict[str, Any]:
        """Other data: one of PROBLEMS that the network takes. Ends a run, whose curve stays."""
        return {"data": self._checked_data(name)}

    @setting(
        "preset",
        lambda lab: {name: name for name in NETWORKS[lab._net].presets},
        value=lambda lab: lab._preset if lab._strategies == lab._given else "",
    )
    def set_preset(self, name: str) -> dict[str, Any]:
        """Take one of the network's sets of strategies, such as "data parallel". Raises ArgumentError. A training goes
        on with them.
        """
        return {"tensor": ""}

    @setting("phase", PHASES, look=True)
    def select_phase(self, phase: str) -> None:
        """Look at the tensor ("forward") or at its gradient ("backward")."""

    @setting("rank", lambda lab: range(lab._devices), look=True)
    def select_rank(self, rank: int) -> None:
        """The rank whose holdings, groups and messages are shown."""

    @setting("tensor", lambda lab: [e.value for e in lab._entries()], look=True)
    def select_tensor(self, tensor: str) -> None:
        """The tensor to look at, by its id in the snapshot."""
        self._look_at_message(None)

    set_speed = TrainingLab.set_speed

    @setting("gradient sums", FUSIONS, by_itself=True)
    def set_fusion(self, name: str) -> None:
        """Sum gradients "alone", one message each, or "fused" into few. A training goes on that way."""
        self._resettle(fusion=name)

    @setting("optimizer states", OPTIMIZERS, by_itself=True)
    def set_optimizer(self, name: str) -> None:
        """Optimizer parallel: ranks with the same parameter keep its states "whole", or each a slice of parameter and
        states ("sliced"). A training goes on that way.
        """
        self._resettle(optimizer=name)

    def options(self) -> dict[str, Any]:
        return {"simple": self._simple, "tour": self.story}

    def calls(self) -> list[list[Any]]:
        """Those of the choices: also the preset that strategies were changed from; then what was changed."""
        with self._lock:
            plain = {call[0]: call for call in super().calls()} | {"set_preset": ["set_preset", self._preset]}
            first = [plain.pop(f"set_{name}") for name in ("net", "devices", "data", "preset")]
            named = {name: None if value is None else str(value) for name, value in self._strategies.items()}
            changed = [["set_strategy", n, v] for n, v in named.items() if self._strategies[n] != self._given[n]]
            looked = [plain.pop(f"select_{name}") for name in ("tensor", "phase", "rank")]
            message = [] if self._message is None else [["select_message", self._message], ["to", self._at]]
            return [*first, *changed, *plain.values(), looked[0], *message, *looked[1:]]

    def weight(self) -> Weight:
        """Of a step on the rank that is looked at: its time, bytes that the rank sends, and its memory."""
        with self._lock:
            return self._pictures.rank(self._plan, self._rank, (), self._machine.profile)["weight"]

    def what_if(self, command: str, *arguments: Any) -> Self:
        """Looked at is what the operator gives."""
        other = super().what_if(command, *arguments)
        other._tensor = other._operators().result_of(arguments[0], {e.value for e in other._entries()})
        return other

    def refusal(self, call: Sequence[Any]) -> str:
        return self._typed.get(call[1], ("", ""))[1] if call[0] == "set_strategy" else ""

    def stands(self, *more: Any) -> str:
        return super().stands(self._machine.profile, *more)

    def replays(self) -> Iterable[list[Any]]:
        """Presets and devices, every strategy of an operator by itself, then other data and networks."""
        choices, strategies = list(super().replays()), []
        for one in self._operators().shown({e.value for e in self._entries()}):
            changed = self._strategies[one["name"]] != self._given[one["name"]]
            values = [*one["choices"], *([None] if one["source"] != "default" or changed else [])]
            strategies += [["set_strategy", one["name"], value] for value in values]
        first = [call for call in choices if call[0] in ("set_preset", "set_devices")]
        return [*first, *strategies, *(call for call in choices if call not in first)]

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

    def _checked_data(self, name: str) -> str:
        what = f"data for the network {self._net!r}:" if name in PROBLEMS else "data"
        return self.one_of(name, problems_of(NETWORKS[self._net].kind), what)

    def _update(self) -> None:
        """Strategies and plan for the chosen preset; what is looked at, as far as it still exists."""
        self._typed = {}
        self._look_at_message(None)
        self._take_preset()
        self._rank = min(self._rank, self._devices - 1)
        if self._tensor not in {e.value for e in self._entries()}:
            self._tensor = first_tensor(self._plan, self._strategies, NETWORKS[self._net].look)
        self._after_change()

    def _adopt(self, strategies: dict[str, Any], plan: Plan) -> None:
        """Other strategies or settings, and their plan, instead of the present ones."""
        self._strategies, self._plan = strategies, plan
        self._look_at_message(None)
        self._after_change()
        known = {e.value: e for e in self._entries()}
        if self._tensor not in known:
            self._tensor = same_source(self._tensor, known)

    def _after_change(self) -> None:
        """A training that goes on takes its next step with the present plan. Where it cannot, it ends and says so."""
        run, now = self._run, self._in_words()
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
        self._moves = None if number is None else self._pictures.moves(self._plan, number)

    def to(self, number: int) -> None:
        """To where so many frames of the selected message's redistribution are done."""
        with self._lock:
            last = len(self._moves["frames"]) if self._moves else 0
            self._at = integer(0, last)("StrategyLab.to", "move", number)
        self._changed("picture")

    @setting(by_itself=True, value=lambda lab: lab._numbers or None)
    def show_numbers(self, on: bool) -> None:
        """Show the numbers in the slice that is looked at: of the first step, simulated once for each plan."""
        with self._lock:
            self._numbers = on
        self._changed("picture")

    def questions(self) -> list[Question]:
        """The selected message's bytes; which edge carries most; who holds the same part of the tensor."""
        return strategy_questions(self._plan, self._rank, self._message, self._tensor, bool(self._facts.layers))

    # ---- what is trained ----

    def _prepared(self) -> tuple[Any, ...]:
        return self._plan, self._compile({}, devices=1), *self._job()

    @property
    def sensitive(self) -> bool:
        """Whether rounding may grow in this training."""
        return get_problem(self._data).sensitive

    def _in_words(self) -> dict[str, str]:
        """What is set, in words; strategies only where they are not the preset's."""
        changed = {n: v for n, v in self._strategies.items() if v != self._given[n]}
        return {
            "net": NETWORKS[self._net].label,
            "data": get_problem(self._data).label,
            "devices": plural(self._devices, "rank"),
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
        self._facts = facts_of(self._net, self._data)
        wanted = NETWORKS[self._net].presets[self._preset](self._devices)
        self._given = self._strategies = self._plans.fitting(self._setting(), wanted)
        self._plan = self._compile(self._strategies)

    # ---- forms ----

    def page_snapshot(self) -> dict[str, Any]:
        """The snapshot, and what it has of every other tensor, phase and rank."""
        with self._lock:
            shot = self.snapshot()
            looks = self._pictures.all_looks(self._plan, shot["messages"], self.events, self._machine.profile)
            here = {f"{self._tensor}|{self._phase}|{self._rank}": {"numbers": shot["numbers"]}, "*": {"numbers": None}}
            return {**shot, "looks": {**looks, "tensor|phase|rank": here}}

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        plan, shown, layers, profile = self._plan, self._pictures, self._facts.layers, self._machine.profile
        entries = self._entries()
        entry = shown.entry(plan, self._tensor)
        tensor, rank = shown.tensor(plan, entry, self._phase), shown.rank(plan, self._rank, self.events, profile)
        messages, timeline, numbers = rank["messages"], self._timeline(), None
        pair = "" if self._message is None else pair_status(messages[self._message - 1])
        if self._numbers:
            drawn = tensor["picture"]["drawn"]
            numbers = shown.numbers(plan, entry, self._phase, self._rank, drawn, self._job)
        return {
            "simple": self._simple,
            "steps": self._steps,
            "earlier": [run.curve() for run in self._earlier],
            "said": self._said,
            "operators": self._operators().shown({e.value for e in entries}),
            "graph": shown.graph(plan, messages, layers),
            "tensors": shown.tensors(plan, layers),
            "tensor": self._tensor,
            "phase": self._phase,
            "phases": list(PHASES),
            "rank": self._rank,
            "message": self._message,
            "moves": self._moves,
            "at": self._at,
            "numbers": numbers,
            "numbers_shown": self._numbers,
            **tensor,
            **rank,
            **self.progress(),
            "timeline": timeline,
            "recording": self.shown_recording(),
            "sections": {} if self._simple else self.code_sections(),
            "gap": self._machine.gap(plan, timeline, messages, self._rank),
            "fit": self._machine.to_dict(),
            "status_message": pair,
            "status": f"{rank['status_rank']} {pair or tensor['status_tensor']}",
        }

    def _entries(self) -> tuple[picture.TensorEntry, ...]:
        return self._pictures.entries(self._plan)

    def _timeline(self) -> dict[str, Any]:
        lanes = self._pictures.timeline(self._plan, self.events, self._machine.profile)
        recorded = self.events and self._run.state == "recorded"
        return {**lanes, "source": f"{lanes['source']} (recorded)"} if recorded else lanes

    def charts(self) -> dict[str, Callable[[], Chart]]:
        """ "timeline": one step, event by event; "loss": this run, one device, and earlier runs."""
        return {"timeline": lambda: timeline_chart(self._timeline()), **super().charts()}

    # ---- as code ----

    def set_code(self, text: str) -> None:
        """Strategies (and device_num) from lines of MindSpore, such as "self.matmul.shard(((2, 4), (4, 1)))"; they are
        read, not executed. Raises ArgumentError naming the line, and changes nothing then.
        """
        plain = dict.fromkeys(self._strategies)

        def compiled(some: Mapping[str, Any], devices: int) -> Plan:
            return self._compile({**plain, **some}, **self._offered(devices=devices))

        with self._lock:
            changed, devices = strategies_in(text, self._operators(), self._devices, compiled)
            if self._offered(devices=devices)["devices"] != self._devices:
                self._take(devices=devices)
            strategies = {**self._strategies, **changed}
            for name in changed:
                self._typed.pop(name, None)
            if strategies != self._strategies:
                self._adopt(strategies, self._compile(strategies))
        self._changed("picture")

    @property
    def paste_example(self) -> str:
        """The first operator that has a choice, with the last one of its strategies."""
        return self._plans.drawn(self._plan, "paste_example", lambda: example_line(self._operators()))

    def _code_key(self) -> Any:
        return self._plan

    def _codes(self) -> dict[str, str]:
        return self._plans.drawn(self._plan, "codes", lambda: codes_of(self._plan, self._setting(), self._job()[1]))

    # ---- measuring this machine ----

    def fit_machine(self) -> None:
        """Measure this machine for some seconds, and predict with its own profile from now on, instead of "laptop".
        Returns at once, `wait()` waits; nothing while it is measured or a training goes on.
        """
        if not (self._run.goes_on or self._machine.fit.goes_on):
            self._machine.start_fit(max(2, self._devices), lambda: self._changed("picture"))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no run and no measuring goes on."""
        return super().wait(timeout) and self._machine.wait(timeout)

    def _operators(self) -> Operators:
        facts = self._facts
        types = self._pictures.types(self._plan)
        return Operators(self._plan, self._strategies, self._given, self._typed, facts.composed, facts.layers, types)
