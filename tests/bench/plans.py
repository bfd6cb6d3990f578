"""How long a search over more than 100,000 plans of a model takes on this machine, on one core.

    python -m tests.bench.plans          seconds of each search, and what was found

All letters: data, optimizer levels with and without groups, tensor, context in every way, stages with every schedule,
experts, micro-batches, recompute, offload. The goal is 10 s for 100,000 plans; nothing asserts it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from parallel_lab.cost.planner import Found, get_decoder, get_machine, search_plans
from parallel_lab.cost.planner.decoder_point import SCHEDULES

GOAL_S, GOAL_PLANS = 10.0, 100_000
WHOLE = {"micro_batch": (1, 2, 4), "levels": (1, 2, 3), "chunks": (1, 2, 4), "schedules": SCHEDULES, "replicas": (1, 2)}
WHOLE |= {"offload": ("none", "optimizer", "activations"), "one_copy": True}


@dataclass(frozen=True)
class Searched:
    """A search.  seconds: of all, the points made, priced, judged, and the line predicted"""

    name: str
    seconds: float
    found: Found

    @property
    def plans(self) -> int:
        """Plans that were looked at."""
        return len(self.found.verdicts)

    @property
    def seconds_of_goal(self) -> float:
        """Seconds for as many plans as the goal names, if they take as long each."""
        return self.seconds * GOAL_PLANS / self.plans

    def text(self) -> str:
        """One line."""
        best = self.found.winner
        rate = f"{self.seconds:.1f} s for {self.plans:,} plans: {self.seconds_of_goal:.1f} s for {GOAL_PLANS:,}"
        return f"{self.name:18} {rate}; best {best.point.text()}, {best.step_s:.3g} s"


def search(name: str, devices: int = 256, batch: int = 512, **options: object) -> Searched:
    """The whole space of a decoder on H100s. options: of `search_plans`"""
    started = time.process_time()
    how = {**WHOLE, **options}
    found = search_plans(get_decoder(name), get_machine("dgx_h100", devices), batch, seq_length=8192, **how)
    return Searched(name, time.process_time() - started, found)


if __name__ == "__main__":
    for decoder, few in (("llama3_70b", {}), ("mixtral_8x7b", {"schedules": ("1f1b", "zb_h1"), "offload": ("none",)})):
        print(search(decoder, **few).text())
