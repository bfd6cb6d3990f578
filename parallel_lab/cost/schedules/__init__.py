"""Schedules of pipelines: in which order every rank runs forward and backward of the micro-batches, as data.

    make_schedule("1f1b", 2, 4).text()      0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
                                            1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3

order     what a schedule is            naming, named/   those with a name, one function each
clock     when its actions run          checker          why it cannot run
text, torch_csv   saved and loaded      auto, exact      a good one, and the best, under a memory cap

Names: `schedule_names()`; gpipe, 1f1b and zero_bubble_v are MindSpore's (pipeline_scheduler).
"""

# ruff: noqa: F401 - imported for others: this is a public face

from .auto import Work, auto_schedule
from .checker import Fault
from .clock import Timing
from .exact import Found, best_schedule
from .naming import all_named
from .schedule import Schedule, make_schedule


def schedule_names() -> tuple[str, ...]:
    """The schedules that `make_schedule` knows."""
    return tuple(sorted(all_named()))
