"""Why the measured step of the Strategy Lab takes so much longer than the predicted one, and a profile that fits.

gap_of(plan, lanes, messages, rank, profile, cores)["text"]
fitted_profile(get_pool(8), room=8)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.cluster import Cluster, get_cluster
from ...base.errors import ParallelLabError
from ...base.system import cores
from ...base.units import plural, time_text
from ...graph.plan import Plan
from ...processes.measure import fit_link, measure_device, measured_cluster
from ...processes.shm import get_pool
from ..pictures.lanes import timeline_lanes
from ..shared.lab import LabRun

FAR = 3.0  # times: from here on the lab says why
FITTED = "this machine"
SIZES_BYTES = tuple(4**n for n in range(3, 11))  # 64 B to 1 MiB: what networks of the labs send
REPEATS = 20


def gap_of(
    predicted_s: float,
    lanes: Mapping[str, Any],
    messages: list[Mapping[str, Any]],
    rank: int,
    profile: Cluster,
    cores: int,
) -> dict[str, Any] | None:
    """Predicted and measured seconds of a step, the ratio and, from FAR on, one line on what makes it.

    predicted_s   of the step;  lanes: of the measured one (`timeline_lanes`);  messages: as `rank` sees them
    """
    if lanes["source"] != "measured":
        return None
    measured_s, devices = lanes["end"] * 1e-6, len(lanes["lanes"])
    ratio = measured_s / predicted_s if predicted_s > 0 else 1.0
    gap = {"predicted_s": predicted_s, "measured_s": measured_s, "ratio": ratio, "text": ""}
    if max(ratio, 1 / ratio) < FAR:
        return gap
    own = next(lane for lane in lanes["lanes"] if lane["rank"] == rank)
    in_messages_s = sum(b["end"] - b["start"] for b in own["bars"] if b["kind"] == "communication") * 1e-6
    timed = [m for m in messages if m["group"] and m["time_predicted_s"] is not None]
    here = f"{devices} Python processes" + (f" share {plural(cores, 'core')}" if devices > cores else "")
    times = f"{ratio:.0f} times" if ratio > 1 else f"1/{1 / ratio:.0f} of"
    text = f"{times} the predicted {time_text(predicted_s)}: {here}"
    if timed:
        each_s, told_s = in_messages_s / len(timed), sum(m["time_predicted_s"] for m in timed) / len(timed)
        text += f"; a message takes {time_text(each_s)}, by profile {profile.name!r} {time_text(told_s)}"
    return {**gap, "text": text}


def fitted_profile(pool: Any, room: int) -> Cluster:
    """The profile of this machine, from messages and computations of the pool's ranks, for up to `room` of them."""
    fit = fit_link(pool, "all_reduce", sizes_bytes=SIZES_BYTES, repeats=REPEATS)
    return measured_cluster(fit, device=measure_device(pool), world_size=room, name=FITTED)


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
        """Measure it on so many workers. changed: called at begin and end, perhaps in another thread."""
        fit = self.fit = LabRun("running", "measuring messages and ranks of this machine")

        def work() -> None:
            try:
                self.profile = fitted_profile(get_pool(devices), self._room)
                fit.state = "done"
                fit.text = f"predicted with a profile that {devices} ranks on this machine were measured for"
            except ParallelLabError as error:
                fit.state, fit.text, fit.error = "failed", "", str(error)
            finally:
                changed()
                fit.ended.set()

        fit.thread = threading.Thread(target=work, name="fit this machine", daemon=True)
        fit.thread.start()
        changed()

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is measured; whether that is so."""
        if self.fit.goes_on and self.fit.thread is not threading.current_thread():
            self.fit.ended.wait(timeout)
        return not self.fit.goes_on
