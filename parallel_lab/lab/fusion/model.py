"""`FusionLab`: the headless model behind the Fusion Lab widget, and the puzzle "fusion golf".

    lab = FusionLab("golf")
    lab.set_index([0, 3, 5])           # inclusive: a message ends with gradient 0, 3, 5 and with the last
    lab.score.ratio                    # 1.0: the shortest step there is
    lab = FusionLab("chain", devices=4)
    lab.set_mode("size"); lab.set_size(4)
    lab.run_simulated(); lab.run_measured(); lab.wait()
    print(lab.to_text())

State, commands, `snapshot()`; every control of the widget is one of these method calls. A command that is refused
raises a ParallelLabError and changes nothing. Gradients stand in the order in which backward makes them; a *cut* k lies
before gradient k. Groups follow MindSpore's rules (`parallel_lab/base/settings/fusion_rules.py`): of a network they are
read off its compiled plan, of the puzzle they are computed from its list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, Self

from ...base.checks import is_int
from ...base.cluster import CLUSTERS, Cluster, Link, cluster_for, get_cluster
from ...base.errors import ArgumentError, shorten
from ...base.settings.checks import FUSION_WORDINGS, SETTINGS, check_fusion_indices, integer
from ...base.settings.fusion_rules import indices_of
from ...base.units import plural, time_text
from ...graph.plan import Plan
from ..code.lab_code import WritesCode
from ..shared.lab import offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.running import ComparesRuns
from ..shared.what_if import WeighsChoices, Weight
from .case import MODES, Score, Settings
from .code import PARALLEL_MODES, codes_of, mindspore_lines, numbers_in, settings_in
from .compiled import Plans, Setup
from .lanes import Lanes, made_by, overlap_lanes, plan_lanes
from .run import RunResult, check_result, trained
from .sections import config_view, fusion_sections, lanes_view, line_text, status_text, tried_view
from .subjects import SUBJECTS, Subject, get_subject

DEVICES = (2, 4, 8)


class FusionLab(WeighsChoices, ComparesRuns, WritesCode):
    """The gradients of one training step, and the messages they travel in.

    subject        one of SUBJECTS: "golf" (the puzzle, on paper), "chain", "dense", "convnet", "transformer"
    devices        2, 4 or 8 ranks
    parallel_mode  "data_parallel" or "semi_auto_parallel": they count sizes and positions differently
    cluster        profile for predicted and simulated times: a name, or a Cluster such as `cost.measured_cluster(fit)`
                   (then this machine's own)

    Listeners (`on_change`) receive "picture" or "run". `close()` forgets all listeners.
    """

    title = "Fusion Lab"
    scripts = ("shared/scrub.js", "fusion/past.js", "fusion/story.js", "fusion/fusion_lab.js")
    styles = ("fusion/fusion_lab.css",)
    commands = (
        *("set_config", "set_code", "set_line", "reset_line", "move_cut", "add_cut", "remove_cut", "show_best"),
        *("run_simulated", "run_measured", "stop", *COMMANDS),
    )
    paste_example = 'net.comm_fusion({"allreduce": {"mode": "size", "config": 8}})'
    replayed = ("mode", "devices", "parallel_mode", "wording")
    free = ("devices", "parallel_mode", "wording")
    also_kept, weighed = ("set_line", "set_config"), ("set_mode",)
    against, apart = ("with this fusion", "without"), ("recording",)
    steps, result_type = 8, RunResult

    def __init__(
        self,
        subject: str = "golf",
        devices: int = 4,
        parallel_mode: str = "data_parallel",
        cluster: str | Cluster | None = None,
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self._settings, self._mode = Settings(), "auto"
        self._begin(subject=get_subject(subject).name, devices=devices, parallel_mode=parallel_mode)
        self._cluster = self._checked_cluster(cluster)
        self._own_line: Link | None = None
        self._plans = Plans()
        self._tried: Lanes | None = None  # the grouping before this one, and what both are of
        self._tried_of: Setup | None = None
        self._own_try = False  # at the puzzle: a grouping between the two extremes, shorter than both
        self._update()

    # ---- choosing what is looked at ----

    @setting("gradients of", SUBJECTS, only_new=True)
    def set_subject(self, name: str) -> dict[str, Any]:
        """Another network, or the puzzle. Index and ids are forgotten: they belong to a list."""
        return {"mode": "off" if self._mode == "off" else "auto", "settings": Settings(), "own_line": None}

    set_devices = offered("devices", DEVICES, "Another number of ranks: 2, 4 or 8.", n=int)
    set_parallel_mode = offered("parallel mode", PARALLEL_MODES, '"data_parallel" or "semi_auto_parallel".', mode=str)

    @setting("fusion", MODES)
    def set_mode(self, mode: str) -> dict[str, Any]:
        """One of MODES. For "index" and "ids" that were never given, those that make the present messages."""
        now = self._settings
        if mode == "index" and not now.indices:
            groups = self._case.by_position(self.groups)
            return {"indices": indices_of(groups, now.wording) or (self._plans.last_position(self._setup()),)}
        return {"ids": self._as_ids(self.groups)} if mode == "ids" and not now.ids else {}

    @setting("an index", FUSION_WORDINGS)
    def set_wording(self, wording: str) -> None:
        """How positions are counted: "inclusive" as the real system does, "first_n" as the seeds' text reads."""

    @setting(
        "profile",
        lambda lab: dict.fromkeys([*(c.name for c in CLUSTERS), lab.cluster.name]),
        value=lambda lab: lab.cluster.name,
        typed=True,
    )
    def set_cluster(self, cluster: str | Cluster) -> dict[str, Any]:
        """The profile of predicted and simulated times: name or Cluster. Raises ArgumentError: unknown, too small."""
        return {"cluster": self._checked_cluster(cluster), "own_line": None}

    show_source = ComparesRuns.show_source

    def calls(self) -> list[list[Any]]:
        """Those of the settings; each mode that was given something, and last the one that is on."""
        with self._lock:
            known = {call[0]: call for call in super().calls()}
            last = [known.pop(name) for name in ("set_mode", "show_source")]
            now, plain, own = self._settings, Settings(), self._own_line
            config = {"index": now.indices, "ids": [now.ids[name] for name in self._case.names if now.ids]}
            if now.size_mb != plain.size_mb:
                config["size"] = (now.size_mb,)
            texts = {mode: " ".join(map(str, numbers)) for mode, numbers in config.items() if numbers}
            modes = [call for mode, text in texts.items() for call in (["set_mode", mode], ["set_config", text])]
            line = [] if own is None else [["set_line", own.alpha_s, own.beta_s_per_byte]]
            return [*known.values(), *line, *modes, *last]

    def replays(self) -> Iterable[list[Any]]:
        """The choices, and the cuts; of the puzzle, where only they matter, the modes and the cuts."""
        on_paper = self.subject.job is None
        yield from (call for call in super().replays() if not on_paper or call[0] == "set_mode")
        cuts, count = self.cuts, len(self._case.names)
        yield from (["add_cut", at] for at in range(1, count) if at not in cuts)
        yield from (["remove_cut", cut] for cut in cuts)
        for cut, low, high in zip(cuts, (0, *cuts), (*cuts[1:], count), strict=False):
            yield from (["move_cut", cut, to] for to in range(low + 1, high) if to != cut)

    def set_line(self, alpha_s: float | str, beta_s_per_byte: float | str) -> None:
        """What a message costs: alpha_s to start, beta_s_per_byte per byte. In the puzzle that is a whole message, in
        a network one hop between ranks (an all_reduce of n ranks has 2 (n - 1) of them). Raises ArgumentError unless
        both are times; a text is not.
        """
        for name, given in (("alpha", alpha_s), ("beta", beta_s_per_byte)):
            if isinstance(given, str):
                what = f"{name} {shorten(given)}"
                raise ArgumentError(what, where="FusionLab.set_line", allowed="A finite number, 0 or more")
        self._change(own_line=Link(float(alpha_s), float(beta_s_per_byte)))

    def reset_line(self) -> None:
        """Back to the profile's link, or the puzzle's."""
        self._change(own_line=None)

    # ---- choosing messages ----

    def set_size(self, threshold_mb: int) -> None:
        """Mode "size" with this threshold in MB (int; 1024 * 1024 bytes; semi_auto_parallel: 262144 elements)."""
        self._change(mode="size", size_mb=integer(0)("FusionLab.set_size", "threshold_mb", threshold_mb, SETTINGS))

    def set_index(self, indices: Sequence[int]) -> None:
        """Mode "index": positions at which messages end, as `comm_fusion` takes them."""
        checked = check_fusion_indices("FusionLab.set_index", "indices", list(indices))
        self._change(mode="index", indices=tuple(checked))

    def set_ids(self, ids: Mapping[str, int]) -> None:
        """Mode "ids": `comm_fusion` of some parameters; others keep theirs. Equal ids share a message, 0 is alone."""
        with self._lock:
            for name in ids:
                self.one_of(name, self._case.names, "parameter", "FusionLab.set_ids")
            checked = {n: integer(0)("FusionLab.set_ids", f"ids[{n!r}]", value, SETTINGS) for n, value in ids.items()}
            self._change(mode="ids", ids={**(self._settings.ids or self._as_ids(self.groups)), **checked})

    def set_config(self, text: str) -> None:
        """What "size", "index" or "ids" (backward's order: "1 1 2") is set to, as text. Raises ArgumentError."""
        names = self._case.names
        numbers = numbers_in(text, self._mode, len(names))
        if self._mode == "size":
            self.set_size(*numbers)
        elif self._mode == "index":
            self.set_index(numbers)
        else:
            self.set_ids(dict(zip(names, numbers, strict=True)))

    def set_code(self, text: str) -> None:
        """Parallel mode and fusion from lines of MindSpore: `set_auto_parallel_context(comm_fusion=...)`, the same of
        AutoParallel, `parameter.comm_fusion = 2`; read, not executed. Raises ArgumentError and changes nothing.
        """
        self._change(**settings_in(text, self._case.names))

    def set_cuts(self, cuts: Sequence[int]) -> None:
        """Messages from gradient 0 and each cut on, in the order of backward: mode "index" where it can, else "ids"."""
        with self._lock:
            count = len(self._case.names)
            wrong = [cut for cut in cuts if not is_int(cut, 1, count - 1)]
            if wrong:
                what = f"cut {shorten(wrong[0])}"
                raise ArgumentError(what, where="FusionLab", allowed=f"Ints from 1 to {count - 1}")
            self._send_as(tuple(accumulate(int(position in set(cuts)) for position in range(count))))

    def move_cut(self, cut: int, to: int) -> None:
        """Move a cut to another place; onto another cut: the two become one."""
        self._known_cut(cut, "move_cut")
        self.set_cuts([to if c == cut else c for c in self.cuts])

    def add_cut(self, at: int) -> None:
        """Two messages instead of one."""
        self.set_cuts([*self.cuts, at])

    def remove_cut(self, cut: int) -> None:
        """One message instead of two."""
        self._known_cut(cut, "remove_cut")
        self.set_cuts([c for c in self.cuts if c != cut])

    def _known_cut(self, cut: int, command: str) -> None:
        if cut not in self.cuts:
            where = f"FusionLab.{command}"
            raise ArgumentError(f"there is no cut {shorten(cut)}", where=where, allowed=f"One of {self.cuts}")

    def show_best(self) -> None:
        """The solution: the grouping that `cost.overlap.best_grouping` finds. For the puzzle only after a try of one's
        own that beats one message with everything, and every gradient alone. Raises ArgumentError before.
        """
        with self._lock:
            if self.subject.job is None and not self._own_try:
                what = "no grouping of your own yet beats all in one message and each alone"
                hint = "Set cuts until one does; par is shown then"
                raise ArgumentError(what, where="FusionLab.show_best", hint=hint)
            self._send_as(self._case.best_groups())

    # ---- what there is ----

    def branch(self) -> Self:
        other = super().branch()
        other._plans = self._plans.copy()
        return other

    @property
    def subject(self) -> Subject:
        """The network that is looked at, or the puzzle."""
        return SUBJECTS[self._subject]

    @property
    def cluster(self) -> Cluster:
        """Where it runs, with a line of one's own in it."""
        cluster, own = self._cluster or cluster_for(self._devices), self._own_line
        return cluster if own is None else replace(cluster, link=own, node_link=cluster.node_link and own)

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of its message, per gradient in the order of backward."""
        number = {name: n for n, sent in enumerate(self._lanes.messages) for name in sent.members}
        return tuple(number[name] for name in self._case.names)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where neighbours travel in different messages."""
        groups = self.groups
        return tuple(k for k in range(1, len(groups)) if groups[k] != groups[k - 1])

    @property
    def lanes(self) -> Lanes:
        """The predicted step."""
        return self._lanes

    def weight(self) -> Weight:
        """The predicted step: its time, the part of it in which a rank only waits for messages, and how many."""
        step: Weight = {"step": (self._lanes.step_s, "time"), "exposed": (self._lanes.exposed_s, "time")}
        return step | {"messages": (len(self._lanes.messages), "count")}

    @property
    def plan(self) -> Plan | None:
        """The compiled plan; None for the puzzle."""
        return self._plan

    @property
    def parallel_mode(self) -> str:
        """One of PARALLEL_MODES."""
        return self._parallel_mode

    @property
    def comm_fusion(self) -> dict[str, Any]:
        """The present setting, as `set_auto_parallel_context(comm_fusion=...)` takes it; {} for "off" and "ids"."""
        return self._plans.comm_fusion(self._setup(), self._mode, self._settings)

    @property
    def score(self) -> Score:
        """The predicted step next to par. For a network, both count what packing costs."""
        with self._lock:
            score = self._plans.score(self._setup(), self._settings)
            return replace(score, step_s=self._lanes.step_s)

    # ---- running ----

    def _in_words(self) -> str:
        mode = f"fusion {self._mode} {self._config_view()['text']}".rstrip()
        return f"{self.subject.label}, {self._devices} devices, {self._parallel_mode.replace('_', ' ')}, {mode}"

    def _config_view(self, beyond: int = 0) -> dict[str, Any]:
        last = self._plans.last_position(self._setup()) + beyond
        return config_view(self, self._settings, self._mode, self._case.names, last)

    def _told(self, result: RunResult) -> str:
        times = f"{time_text(result.step_s)} a step, {time_text(result.unfused_s)} without fusion"
        return f"{times}, {plural(result.sent, 'message')}"

    def _work_of(self, source: str, steps: int) -> partial:
        setup = self._setup()
        if setup.on_paper:
            hint = "Take the subject 'chain': a network with gradients of these proportions"
            raise ArgumentError(f"{setup.subject.label} is on paper", where=f"FusionLab.run_{source}", hint=hint)
        unfused = self._plans.plan(setup, "off", self._settings)
        job = self._plans.job(setup)
        how = self._run_is_stopped, self._count, self._keep_recording
        return partial(trained, source, job, self._plan, unfused, setup.costs, steps, *how)

    def _settings_now(self) -> Any:
        return self._setup(), self._mode, self._settings

    def _check_result(self, result: RunResult) -> None:
        self._work_of(result.source, result.steps)  # raises where nothing can run
        check_result(result, self._case.names)

    def _done(self, source: str, steps: int) -> str:
        return f"{source}: median of {steps} steps"

    # ---- forms ----

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        on_paper, run = self.subject.job is None, self._run.to_dict()
        line = self._case.line if on_paper else self.cluster.link_for(range(self._devices))
        lanes = {"predicted": self._lanes, **{name: result.lanes for name, result in self._results.items()}}
        lanes_of = {name: lanes_view(found, self._case) for name, found in lanes.items()}
        config = self._config_view(self._settings.wording == "first_n")
        return {
            "status": status_text(self._lanes, self.score),
            "notes": [f"{self.subject.note}.", config["hint"], *self._tried_note()],
            "config": config,
            "line": {
                "own": self._own_line is not None,
                "per": "message" if on_paper else "hop",
                "alpha_s": line.alpha_s,
                "beta_s_per_byte": line.beta_s_per_byte,
            },
            "cuts": list(self.cuts),
            "axis_s": self._axis_s(),
            "tried": self._tried and tried_view(self._tried),
            "weight": {name: list(found) for name, found in self.weight().items()},
            "sections": {
                **fusion_sections(self, self._case, lanes_of),
                **self.recorded_sections(),
                **self.code_sections(),
            },
            "recording": self.shown_recording(),
            "made_by": self._plan and self.recording and made_by(self._plan, self._lanes),
            "run": {**run, "can": not on_paper and not self._run.goes_on},
        }

    def _tried_note(self) -> list[str]:
        if self._tried is None:
            return []
        sent = plural(len(self._tried.messages), "message")
        return [f"Before: {sent}, a step of {time_text(self._tried.step_s)}."]

    def _axis_s(self) -> float:
        """The time axis, from the start of backward, is that of "nothing set", so that tries can be compared by eye."""
        off = self._case.off
        return max([off.backward_s, *(m.end_s for m in off.messages)]) - off.forward_s

    def questions(self) -> list[Question]:
        """How long messages go on when backward has ended."""
        lanes, exposed_ms = self._lanes, 1e3 * self._lanes.exposed_s
        if not lanes.messages:
            return []
        sending, exposed = time_text(lanes.communication_s), time_text(lanes.exposed_s)
        why = f"sending takes {sending}; {exposed} of it lie after the end of backward at {time_text(lanes.backward_s)}"
        text = "For how many ms are messages sent after backward has ended, with nothing left to compute?"
        key = f"exposed of {self._subject}, {self._devices}, {self._mode}, {self.groups}"
        right = (float(f"{exposed_ms:.3g}"),)
        return [Question(key, text, right, why, unit="ms", within=0.1, hides=("picture", "below", "tables"))]

    def line_text(self) -> str:
        """What a message costs, in words."""
        on_paper = self.subject.job is None
        return line_text(self._case.line, None if on_paper else self.cluster, self._devices)

    def export(self) -> str:
        """The lines that ask MindSpore for these messages; its positions are inclusive, whatever the wording here."""
        return mindspore_lines(self._setup(), self._plans, self._mode, self._settings)

    # ---- inside ----

    def _update(self) -> None:
        """Case, plan and lanes of the present settings."""
        setup = self._setup()
        case = self._plans.case(setup, self._settings)
        if setup.on_paper:
            groups = case.groups(self._mode, self._parallel_mode, self._settings)
            extremes = [case.overlap(g).step_s for g in (range(len(groups)), [0] * len(groups))]
            self._own_try |= case.overlap(groups).step_s < min(extremes) * (1 - 1e-9)
            plan, lanes = None, overlap_lanes(case.overlap(groups, after_backward=self._mode == "off"))
        else:
            plan = self._plans.plan(setup, self._mode, self._settings)
            lanes = plan_lanes(plan, setup.costs)
        before = getattr(self, "_lanes", None)
        if setup != self._tried_of:  # another network, or other costs: no try of this one
            self._tried, self._tried_of = None, setup
        elif before is not None and before.groups != lanes.groups:
            self._tried = before
        self._case, self._plan, self._lanes = case, plan, lanes
        self._forget_runs()

    def _code_key(self) -> Any:
        return self._settings_now()

    def _codes(self) -> dict[str, str]:
        return codes_of(self._setup(), self._plans, self._mode, self._settings, self._plan)

    def _setup(self) -> Setup:
        return Setup(self._subject, self._devices, self._parallel_mode, self.cluster, self._own_line)

    def _as_ids(self, groups: Sequence[int]) -> dict[str, int]:
        return {name: group + 1 for name, group in zip(self._case.names, groups, strict=True)}

    def _send_as(self, groups: tuple[int, ...]) -> None:
        """These messages, by index if there is a list for them, else by ids."""
        wording = self._settings.wording
        indices = indices_of(self._case.by_position(groups), wording)
        if indices is None:
            self._change(mode="ids", ids=self._as_ids(groups))
        else:  # one message: a position that cuts nothing
            last = self._plans.last_position(self._setup()) + (wording == "first_n")
            self._change(mode="index", indices=indices or (last,))

    def _checked_cluster(self, cluster: str | Cluster | None) -> Cluster | None:
        profile = None if cluster is None else get_cluster(cluster)
        if profile is not None:
            profile.check_device_num(self._devices)
        return profile
