"""Why the measured step of the Strategy Lab takes so much longer than the predicted one, and a profile that fits.

gap_of(plan, lanes, messages, rank, profile, cores)["text"]
Machine(room=8).start_fit(8, changed)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.cluster import Cluster, get_cluster
from ...base.driver import DRIVER
from ...base.errors import ParallelLabError
from ...base.progress import Progress
from ...base.system import cores
from ...graph.plan import Plan
from ...processes.measure import fit_machine
from ...processes.shm import get_pool
from ..pictures.lanes import timeline_lanes
from ..shared.lab import LabRun
from ..shared.running import wait_for
from ..shared.step_times import Term, apart_text


def gap_of(
    predicted_s: float,
    lanes: Mapping[str, Any],
    messages: list[Mapping[str, Any]],
    rank: int,
    profile: Cluster,
    cores: int,
) -> dict[str, Any] | None:
    """Predicted and measured seconds of a step, the ratio and, where they are far apart, one line on what makes it.

    predicted_s   of the step;  lanes: of the measured one (`timeline_lanes`);  messages: as `rank` sees them
    """
    if lanes["source"] != "measured":
        return None
    measured_s, devices = lanes["end"] * 1e-6, len(lanes["lanes"])
    own = next(lane for lane in lanes["lanes"] if lane["rank"] == rank)
    computing_s = sum(b["end"] - b["start"] for b in own["bars"] if b["kind"] == "compute") * 1e-6
    told_s = sum(m["time_predicted_s"] or 0.0 for m in messages if m["group"])
    terms = (
        Term("computing", computing_s, max(predicted_s - told_s, 0.0)),
        Term("messages and waits", measured_s - computing_s, told_s),
    )
    text = apart_text(predicted_s, measured_s, devices, cores, profile.name, terms)
    ratio = measured_s / predicted_s if predicted_s > 0 else 1.0
    return {"predicted_s": predicted_s, "measured_s": measured_s, "ratio": ratio, "text": text}


class Machine:
    """The profile that predictions are made with: the laptop's, until this machine was measured.

    room   ranks that a measured one has room for;  fit: how measuring goes
    """

    def __init__(self, room: int) -> None:
        self.profile, self.fit, self._room = get_cluster("laptop"), LabRun(), room
        self._predicted: tuple[Plan, Cluster, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """For a snapshot."""
        return {**self.fit.to_dict(), "profile": self.profile.name}

    def gap(
        self, plan: Plan, lanes: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], rank: int
    ) -> dict[str, Any] | None:
        """`gap_of` the plan's step; the prediction is kept until plan or profile change."""
        if lanes["source"] != "measured":
            return None
        if self._predicted is None or self._predicted[0] is not plan or self._predicted[1] is not self.profile:
            self._predicted = plan, self.profile, timeline_lanes(plan, (), self.profile)["end"] * 1e-6
        return gap_of(self._predicted[2], lanes, messages, rank, self.profile, cores())

    def start_fit(self, devices: int, changed: Callable[[], None]) -> None:
        """Measure it on so many workers. changed: called whenever there is more to say, perhaps in another thread."""
        fit = LabRun("running", "measuring messages and ranks of this machine", progress=Progress(heard=changed))
        self.fit = fit

        def work() -> None:
            try:
                self.profile = fit_machine(get_pool(devices), world_size=self._room, progress=fit.progress)
                fit.state = "done"
                fit.text = f"predicted with a profile that {devices} ranks on this machine were measured for"
            except ParallelLabError as error:
                fit.state, fit.text, fit.error = "failed", "", str(error)
            finally:
                changed()
                fit.ended.set()

        fit.thread = DRIVER.start(work, "fit this machine")
        changed()

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is measured; whether that is so."""
        return wait_for(lambda: self.fit, timeout)
