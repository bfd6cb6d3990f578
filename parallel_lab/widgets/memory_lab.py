"""The Memory Lab as a widget: an anywidget that shows `lab.snapshot()` and turns what the learner does into commands of the model.

    widget = MemoryLabWidget(lab)       # `lab` is the headless model; it works without a widget, and several widgets may show one lab
    widget                              # last line of a cell

What goes to the page: the trait `snapshot`. What comes back: messages {"command": "set_level", "arguments": ["level3"], "number": 7}, each
answered by {"kind": "answered", "number": 7, "refused": False} (`lab_view.py`).
"""

from __future__ import annotations

from ..lab.memory_page import memory_front_end
from .lab_view import Commands, LabView, traitlets

__all__ = ["COMMANDS", "MemoryLabWidget"]

# What the page may ask of the model, and the types of the arguments.
COMMANDS: Commands = {
    "set_subject": ((str,),),
    "set_width": ((int, float, str),),  # what was typed; the model says what it may be
    "set_devices": ((int,),),
    "set_parallel_mode": ((str,),),
    "set_optimizer": ((str,),),
    "set_level": ((str,),),
    "set_threshold": ((int, float, str),),
    "set_shard_size": ((int,),),
    "set_accumulation": ((int,),),
    "set_accumulation_shard": ((bool,),),
    "set_capacity": ((str,),),
    "select_rank": ((int,),),
    "show_moment": ((str,),),
    "show_source": ((str,),),
    "set_zero": ((str,), (int, float, str), (int, float, str)),
    "run_simulated": (),
    "run_measured": (),
    "stop": (),
    "find_par": (),
    "show_best": (),
}


class MemoryLabWidget(LabView):
    """A view of `lab`, the headless Memory Lab.

    snapshot   what is shown; the page's copy
    """

    _esm, _css = memory_front_end()
    commands = COMMANDS

    snapshot = traitlets.Dict().tag(sync=True)

    def _show(self) -> None:
        self.snapshot = self._lab.snapshot()
