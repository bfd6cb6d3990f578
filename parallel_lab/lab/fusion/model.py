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

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

from ...base.cluster import CLUSTERS, Cluster, Link, cluster_for, get_cluster
from ...base.errors import ArgumentError, ParallelLabError, shorten
from ...base.settings.checks import FUSION_WORDINGS, SETTINGS, check_fusion_indices, integer
from ...base.settings.fusion_rules import indices_of
from ...base.units import time_text
from ...graph.plan import Plan
from ..shared.lab import Commands, LabRun, RunsOneThing
from .case import MODES, Case, Score, Settings, network_case, paper_case
from .lanes import Lanes, overlap_lanes, plan_lanes
from .run import RunResult, trained
from .subjects import GOLF, GOLF_LINE, SUBJECTS, Job, get_subject
from .views import config_view, lanes_view, times_view
from .words import export_line, fusion_text, status_text

DEVICES = (2, 4, 8)
PARALLEL_MODES = ("data_parallel", "semi_auto_parallel")
LARGEST_TEXT = 2000  # characters of a typed list
STEPS = 8  # that a run counts

_Key = tuple[Any, ...]


class FusionLab(RunsOneThing):
    """The gradients of one training step, and the messages they travel in.

    subject        one of SUBJECTS: "golf" (the puzzle, on paper), "chain", "dense", "convnet", "transformer"
    devices        2, 4 or 8 ranks
    parallel_mode  "data_parallel" or "semi_auto_parallel": they count sizes and positions differently
    cluster        profile for predicted and simulated times: a name, or a Cluster such as `cost.measured_cluster(fit)`
                   (then this machine's own)

    Listeners (`on_change`) are told "picture" or "run". `close()` forgets all listeners.
    """

    scripts, styles = ("fusion/fusion_lab.js",), ("fusion/fusion_lab.css",)
    commands: ClassVar[Commands] = {
        "set_subject": ((str,),),
        "set_devices": ((int,),),
        "set_parallel_mode": ((str,),),
        "set_mode": ((str,),),
        "set_config": ((str,),),
        "set_wording": ((str,),),
        "set_cluster": ((str,),),
        # a text is what was typed and is no number: the model refuses it
        "set_line": ((int, float, str), (int, float, str)),
        "reset_line": (),
        "move_cut": ((int,), (int,)),
        "add_cut": ((int,),),
        "remove_cut": ((int,),),
        "show_best": (),
        "show_source": ((str,),),
        "run_simulated": (),
        "run_measured": (),
        "stop": (),
    }
    words = staticmethod(fusion_text)

    def __init__(
        self,
        subject: str = "golf",
        devices: int = 4,
        parallel_mode: str = "data_parallel",
        cluster: str | Cluster | None = None,
    ) -> None:
        super().__init__()
        self._subject = get_subject(subject)
        self._devices = self.one_of(devices, DEVICES, "devices")
        self._parallel_mode = self.one_of(parallel_mode, PARALLEL_MODES, "parallel_mode")
        self._cluster = self._checked_cluster(cluster)
        self._own_line: Link | None = None
        self._mode, self._given = "auto", Settings()
        self._job: Job | None = None
        self._cases: dict[_Key, Case] = {}
        self._scores: dict[_Key, Score] = {}
        self._results: dict[str, RunResult] = {}
        self._source = "predicted"
        self._update()

    # ---- choosing what is looked at ----

    def set_subject(self, name: str) -> None:
        """Another network, or the puzzle. Index and ids are forgotten: they belong to a list."""
        subject = get_subject(name)
        with self._lock:
            if subject is not self._subject:
                self._change(
                    _subject=subject,
                    _job=None,
                    _given=Settings(),
                    _own_line=None,
                    _mode="auto" if self._mode != "off" else "off",
                )
        self._changed("picture")

    def set_devices(self, n: int) -> None:
        """Another number of ranks: 2, 4 or 8."""
        with self._lock:
            self._change(_devices=self.one_of(n, DEVICES, "devices"))
        self._changed("picture")

    def set_parallel_mode(self, mode: str) -> None:
        """ "data_parallel" or "semi_auto_parallel"."""
        with self._lock:
            self._change(_parallel_mode=self.one_of(mode, PARALLEL_MODES, "parallel_mode"))
        self._changed("picture")

    def set_cluster(self, cluster: str | Cluster) -> None:
        """The profile behind predicted and simulated times: a name or a Cluster. Raises ArgumentError if it is not
        known or too small.
        """
        with self._lock:
            self._change(_cluster=self._checked_cluster(cluster), _own_line=None)
        self._changed("picture")

    def set_line(self, alpha_s: float | str, beta_s_per_byte: float | str) -> None:
        """What a message costs: alpha_s to start and beta_s_per_byte per byte. Of the puzzle a whole message, of a
        network one hop between ranks (an all_reduce of n ranks has 2 (n - 1) of them). Raises ArgumentError for what is
        no time, among it every text.
        """
        for name, given in (("alpha", alpha_s), ("beta", beta_s_per_byte)):
            if isinstance(given, str):
                raise ArgumentError(
                    f"{name} {shorten(given)}", where="FusionLab.set_line", allowed="A finite number, 0 or more"
                )
        with self._lock:
            self._change(_own_line=Link(float(alpha_s), float(beta_s_per_byte)))
        self._changed("picture")

    def reset_line(self) -> None:
        """Back to the profile's link, or the puzzle's."""
        with self._lock:
            self._change(_own_line=None)
        self._changed("picture")

    # ---- choosing messages ----

    def set_mode(self, mode: str) -> None:
        """One of MODES. For "index" and "ids" that were never given, those that make the messages there are now."""
        with self._lock:
            self.one_of(mode, tuple(MODES), "mode")
            given = self._given
            if mode == "index" and not given.indices:
                groups = self._case.by_position(self.groups)
                given = replace(given, indices=indices_of(groups, given.wording) or (self._last_position(),))
            if mode == "ids" and not given.ids:
                given = replace(given, ids=self._as_ids(self.groups))
            self._change(_mode=mode, _given=given)
        self._changed("picture")

    def set_size(self, threshold_mb: int) -> None:
        """Mode "size" with this threshold, an int in MB (1 MB = 1024 * 1024 bytes in data_parallel; 262144 elements in
        semi_auto_parallel).
        """
        with self._lock:
            size_mb = integer(0)("FusionLab.set_size", "threshold_mb", threshold_mb, SETTINGS)
            self._change(_mode="size", _given=replace(self._given, size_mb=size_mb))
        self._changed("picture")

    def set_index(self, indices: Sequence[int]) -> None:
        """Mode "index": positions at which messages end, as `comm_fusion` takes them."""
        with self._lock:
            checked = tuple(check_fusion_indices("FusionLab.set_index", "indices", list(indices)))
            self._change(_mode="index", _given=replace(self._given, indices=checked))
        self._changed("picture")

    def set_ids(self, ids: Mapping[str, int]) -> None:
        """Mode "ids": `comm_fusion` of some parameters; the others keep theirs. Equal ids share a message, 0 travels
        alone.
        """
        with self._lock:
            names = self._case.names
            unknown = [name for name in ids if name not in names]
            if unknown:
                raise ArgumentError(
                    f"parameter {shorten(unknown[0])}", where="FusionLab.set_ids", allowed=f"One of {', '.join(names)}"
                )
            given = {
                name: integer(0)("FusionLab.set_ids", f"ids[{name!r}]", number, SETTINGS)
                for name, number in ids.items()
            }
            self._change(
                _mode="ids",
                _given=replace(self._given, ids={**(self._given.ids or self._as_ids(self.groups)), **given}),
            )
        self._changed("picture")

    def set_config(self, text: str) -> None:
        """What mode "size" or "index" is set to, as text: "8", or "[0, 3, 5]"; of "ids" the numbers in the order of
        backward: "1 1 2".

        Raises ArgumentError for a text that cannot be read, or a mode that takes none.
        """
        numbers = _numbers(text)
        if numbers is None:
            pass  # refused below, with what this mode takes
        elif self._mode == "size" and len(numbers) == 1:
            return self.set_size(numbers[0])
        elif self._mode == "index":
            return self.set_index(numbers)
        elif self._mode == "ids" and len(numbers) == len(self._case.names):
            return self.set_ids(dict(zip(self._case.names, numbers, strict=True)))
        wanted = {
            "size": "One whole number of MB, such as 8",
            "index": "Rising whole numbers, such as [0, 3, 5]",
            "ids": f"{len(self._case.names)} whole numbers, one per gradient",
        }
        allowed = wanted.get(self._mode, "Nothing: this mode has no setting")
        raise ArgumentError(f"setting {shorten(text)} of mode {self._mode!r}", where="FusionLab", allowed=allowed)

    def set_wording(self, wording: str) -> None:
        """How positions are counted: "inclusive" as the real system does, "first_n" as the seeds' text reads."""
        with self._lock:
            self._change(_given=replace(self._given, wording=self.one_of(wording, FUSION_WORDINGS, "wording")))
        self._changed("picture")

    def set_cuts(self, cuts: Sequence[int]) -> None:
        """Messages that begin at gradient 0 and at each cut, in the order of backward. Written as mode "index", or
        where no index list makes them as "ids".
        """
        with self._lock:
            count = len(self._case.names)
            wrong = [c for c in cuts if isinstance(c, bool) or not isinstance(c, int) or not 0 < c < count]
            if wrong:
                raise ArgumentError(
                    f"cut {shorten(wrong[0])}", where="FusionLab", allowed=f"Ints from 1 to {count - 1}"
                )
            self._take(tuple(accumulate(int(position in set(cuts)) for position in range(count))))
        self._changed("picture")

    def move_cut(self, cut: int, to: int) -> None:
        """Move a cut to another place; onto another cut: the two become one."""
        if cut not in self.cuts:
            raise ArgumentError(
                f"there is no cut {shorten(cut)}", where="FusionLab.move_cut", allowed=f"One of {self.cuts}"
            )
        self.set_cuts([to if c == cut else c for c in self.cuts])

    def add_cut(self, at: int) -> None:
        """Two messages in place of one."""
        self.set_cuts([*self.cuts, at])

    def remove_cut(self, cut: int) -> None:
        """One message in place of two."""
        if cut not in self.cuts:
            raise ArgumentError(
                f"there is no cut {shorten(cut)}", where="FusionLab.remove_cut", allowed=f"One of {self.cuts}"
            )
        self.set_cuts([c for c in self.cuts if c != cut])

    def show_best(self) -> None:
        """The solution: the grouping that `cost.overlap.best_grouping` finds."""
        with self._lock:
            self._take(self._case.best_groups())
        self._changed("picture")

    def show_source(self, source: str) -> None:
        """Whose lanes are shown: "predicted", or "simulated" or "measured" once that was run. Raises ArgumentError."""
        with self._lock:
            self._source = self.one_of(source, ("predicted", *self._results), "source")
        self._changed("picture")

    # ---- what there is ----

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

    @property
    def plan(self) -> Plan | None:
        """The compiled plan; None for the puzzle."""
        return self._plan

    @property
    def results(self) -> dict[str, RunResult]:
        """What was run with the present settings: "simulated", "measured"."""
        return dict(self._results)

    @property
    def comm_fusion(self) -> dict[str, Any]:
        """The present setting, as `set_auto_parallel_context(comm_fusion=...)` takes it; {} for modes "off" and
        "ids".
        """
        return self._setting(self._mode)

    @property
    def score(self) -> Score:
        """The predicted step beside par. Of a network, what packing costs is counted in both."""
        with self._lock:
            key = self._key()
            if key not in self._scores:
                self._scores[key] = self._case.score(self._parallel_mode)
            return replace(self._scores[key], step_s=self._lanes.step_s)

    # ---- running ----

    def run_simulated(self, steps: int = STEPS) -> None:
        """Train in the simulator, with the present fusion and without any. Returns at once; `wait()` waits. Raises
        ArgumentError for the puzzle.
        """
        self._start_run("simulated", steps)

    def run_measured(self, steps: int = STEPS) -> None:
        """Train on one worker process per rank, with the present fusion and without any. Returns at once; `wait()`
        waits.
        """
        self._start_run("measured", steps)

    def _start_run(self, source: str, steps: int) -> None:
        with self._lock:
            if self._subject.job is None:
                what, hint = (
                    f"{self._subject.label} is on paper",
                    "Take the subject 'chain': a network with gradients of these proportions",
                )
                raise ArgumentError(what, where=f"FusionLab.run_{source}", hint=hint)
            if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
                raise ArgumentError(
                    f"steps={shorten(steps)}", where=f"FusionLab.run_{source}", allowed="An int, at least 1"
                )
            settings, job, plan, unfused, cluster = (
                self._settings(),
                self._job_made(),
                self._plan,
                self._compiled("off"),
                self._costs(),
            )

        def run() -> str:
            result = trained(source, job, plan, unfused, cluster, steps, self._run.stop.is_set)
            with self._lock:
                if settings != self._settings():  # the lab shows something else by now
                    return f"{source}: the settings have changed since"
                self._results[source] = result
            return f"{source}: median of {steps} steps"

        self._start(f"{source}: {steps} steps with this fusion and {steps} without", run, f"{source} failed")

    # ---- forms ----

    def snapshot(self) -> dict[str, Any]:
        """Everything the views show, as plain data."""
        with self._lock:
            score, line, source = self.score, self._case.line, self._source
            on_paper = self._subject.job is None
            given = line if on_paper else self._costs().link_for(range(self._devices))
            lanes = {"predicted": self._lanes, **{name: result.lanes for name, result in self._results.items()}}
            lanes_of = {name: lanes_view(found, self._case) for name, found in lanes.items()}
            shot: dict[str, Any] = {
                "version": 1,
                "title": "Fusion Lab",
                "subject": {
                    "value": self._subject.name,
                    "choices": [{"value": x.name, "label": x.label} for x in SUBJECTS.values()],
                },
                "devices": {"value": self._devices, "choices": list(DEVICES)},
                "parallel_mode": {"value": self._parallel_mode, "choices": list(PARALLEL_MODES)},
                "mode": {
                    "value": self._mode,
                    "choices": [{"value": name, "label": label} for name, label in MODES.items()],
                },
                "config": config_view(
                    self._mode,
                    self._parallel_mode,
                    self._given,
                    self._case.names,
                    self._last_position(),
                    on_paper=on_paper,
                ),
                "wording": {"value": self._given.wording, "choices": list(FUSION_WORDINGS)},
                "cluster": self._clusters(),
                "line": {
                    "own": self._own_line is not None,
                    "alpha_s": line.alpha_s,
                    "beta_s_per_byte": line.beta_s_per_byte,
                    "text": self._line_text(),
                    "per": "message" if on_paper else "hop",
                    "given_alpha_s": given.alpha_s,
                    "given_beta_s_per_byte": given.beta_s_per_byte,
                },
                "source": source,
                "lanes": lanes_of[source],
                "lanes_of": lanes_of,
                "cuts": list(self.cuts),
                "times": times_view(self._case, self._lanes, self._results, on_paper=on_paper),
                "equality": [
                    {
                        "source": r.source,
                        "equal": r.equal,
                        "compared": r.compared,
                        "differs": r.differs,
                        "steps": r.taken,
                    }
                    for r in self._results.values()
                ],
                "golf": {
                    "step_s": score.step_s,
                    "par_s": score.par_s,
                    "ratio": score.ratio,
                    "best_size_mb": score.best_size[0],
                    "best_size_s": score.best_size[1],
                    "off_s": self._case.off.step_s,
                    "each_s": self._case.each.step_s,
                },
                "export": self.export(),
                "run": {**self._run.to_dict(), "can": not on_paper and not self._run.goes_on},
            }
            shot["subject"]["note"] = self._subject.note
            shot["status"] = status_text(shot | {"lanes": lanes_of["predicted"]})
            return shot

    def _clusters(self) -> dict[str, Any]:
        now = self._cluster or cluster_for(self._devices)
        names = [c.name for c in CLUSTERS]
        return {"value": now.name, "choices": names if now.name in names else [*names, now.name]}

    def _line_text(self) -> str:
        line = self._case.line
        start, per_mb = time_text(line.alpha_s), time_text(line.beta_s_per_byte * 1024 * 1024)
        text = f"A message takes alpha + beta m: alpha {start} to start, beta {per_mb} per MB (m: its size)."
        if self._subject.job is None:
            return text
        costs = self._costs()
        hops = 2 * (self._devices - 1)
        return (
            f"{text} An all_reduce of {self._devices} ranks has {hops} hops of {time_text(costs.link.alpha_s)} on "
            f"profile {costs.name!r}."
        )

    def export(self) -> str:
        """The lines that ask MindSpore for these messages: its positions are inclusive, whatever the wording here
        is.
        """
        given, setting = self._given, self.comm_fusion
        if self._mode == "index" and given.wording == "first_n":
            ends = [first - 1 for first in given.indices if first] or [self._last_position()]
            setting = {"allreduce": {"mode": "index", "config": ends}}
        return export_line(self._mode, setting, given.ids, self._parallel_mode)

    # ---- inside ----

    def _change(self, **changes: Any) -> None:
        """Take the changes, or none of them if what they ask for is refused."""
        before = {name: getattr(self, name) for name in (*changes, "_job", "_results", "_run", "_source")}
        try:
            for name, value in changes.items():
                setattr(self, name, value)
            self._update()
        except ParallelLabError:
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _update(self) -> None:
        """Case, plan and lanes of the present settings. What was run before is no longer about them."""
        case = self._case_now()
        if self._subject.job is None:
            groups = case.groups(self._mode, self._parallel_mode, self._given)
            plan, lanes = None, overlap_lanes(case.overlap(groups, after_backward=self._mode == "off"))
        else:
            plan = self._compiled(self._mode)
            lanes = plan_lanes(plan, self._costs())
        self._case, self._plan, self._lanes = case, plan, lanes
        self._results, self._source = {}, "predicted"
        if not self._run.goes_on:
            self._run = LabRun()

    def _settings(self) -> _Key:
        return (*self._key(), self._mode, self._given)

    def _key(self) -> _Key:
        return self._subject.name, self._devices, self._parallel_mode, self._costs(), self._own_line

    def _costs(self) -> Cluster:
        cluster = self._cluster or cluster_for(self._devices)
        return (
            cluster
            if self._own_line is None
            else replace(cluster, link=self._own_line, node_link=cluster.node_link and self._own_line)
        )

    def _job_made(self) -> Job:
        if self._job is None:
            self._job = self._subject.job()
        return self._job

    def _compiled(self, mode: str) -> Plan:
        """The plan of the subject, anew: ids of parameters are kept by the network, so a network that had some cannot
        forget them.
        """
        if mode == "ids" or (
            self._job is not None and any(p.comm_fusion_given for p in self._job.net.trainable_params())
        ):
            self._job = None
        ids = self._given.ids if mode == "ids" else None
        how = {"comm_fusion": self._setting(mode), "ids": ids, "fusion_index": self._given.wording}
        return self._job_made().compile(devices=self._devices, parallel_mode=self._parallel_mode, **how)

    def _setting(self, mode: str) -> dict[str, Any]:
        return self._given.comm_fusion(mode, self._last_position() + 1)

    def _last_position(self) -> int:
        return len(self._job_made().net.trainable_params() if self._subject.job else GOLF) - 1

    def _case_now(self) -> Case:
        key = self._key()
        if key not in self._cases:
            if self._subject.job is None:
                self._cases[key] = paper_case(self._own_line or GOLF_LINE)
            else:
                off, each = self._compiled("off"), self._compiled("each")
                self._cases[key] = network_case(self._job_made(), off, each, self._costs())
        return self._cases[key]

    def _as_ids(self, groups: Sequence[int]) -> dict[str, int]:
        return {name: group + 1 for name, group in zip(self._case.names, groups, strict=True)}

    def _take(self, groups: tuple[int, ...]) -> None:
        """These messages, by index if there is a list for them, else by ids."""
        given = self._given
        indices = indices_of(self._case.by_position(groups), given.wording)
        if indices is None:
            self._change(_mode="ids", _given=replace(given, ids=self._as_ids(groups)))
        else:  # one message: a position that cuts nothing
            self._change(
                _mode="index",
                _given=replace(given, indices=indices or (self._last_position() + (given.wording == "first_n"),)),
            )

    def _checked_cluster(self, cluster: str | Cluster | None) -> Cluster | None:
        found = None if cluster is None else get_cluster(cluster)
        if found is not None:
            found.check_device_num(self._devices)
        return found


def _numbers(text: str) -> list[int] | None:
    """The whole numbers of a typed list: "[0, 3, 5]", "0 3 5"; None for any other text. Raises ArgumentError for
    what is no text.
    """
    if not isinstance(text, str) or len(text) > LARGEST_TEXT:
        raise ArgumentError(
            f"setting {shorten(text)}", where="FusionLab", allowed=f"A text of at most {LARGEST_TEXT} characters"
        )
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 11 for word in words):
        return None
    return [int(word) for word in words]
