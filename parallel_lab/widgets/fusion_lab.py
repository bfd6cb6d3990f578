"""The Fusion Lab as a widget: an anywidget that shows `lab.snapshot()` and turns what the learner does into commands of the model.

    widget = FusionLabWidget(lab)       # `lab` is the headless model; it works without a widget, and several widgets may show one lab
    widget                              # last line of a cell

What goes to the page: the trait `snapshot`. What comes back: messages {"command": "move_cut", "arguments": [4, 6], "number": 7}, each answered by
{"kind": "answered", "number": 7, "refused": False} (`lab_view.py`).
"""

from __future__ import annotations

from ..lab.fusion_page import fusion_front_end
from .lab_view import Commands, LabView, traitlets

__all__ = ["COMMANDS", "FusionLabWidget"]

# What the page may ask of the model, and the types of the arguments.
COMMANDS: Commands = {
    "set_subject": ((str,),),
    "set_devices": ((int,),),
    "set_parallel_mode": ((str,),),
    "set_mode": ((str,),),
    "set_config": ((str,),),
    "set_wording": ((str,),),
    "set_cluster": ((str,),),
    "set_line": ((int, float, str), (int, float, str)),  # a text is what was typed and is no number: the model refuses it
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


class FusionLabWidget(LabView):
    """A view of `lab`, the headless Fusion Lab.

    snapshot   what is shown; the page's copy
    """

    _esm, _css = fusion_front_end()
    commands = COMMANDS

    snapshot = traitlets.Dict().tag(sync=True)

    def _show(self) -> None:
        self.snapshot = self._lab.snapshot()
