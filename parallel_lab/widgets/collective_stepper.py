"""The Collective Stepper as a widget: an anywidget that shows `stepper.snapshot()` and turns what the learner does into commands of the model.

    widget = CollectiveStepperWidget(CollectiveStepper("all_reduce", "ring", ranks=8))
    widget                                # last line of a cell

What goes to the page: `story` (every round; sent anew when something else is chosen) and `place` (where the stepper stands). What comes back:
messages {"command": "to", "arguments": [3], "number": 7}, each answered by {"kind": "answered", "number": 7, "refused": False}. The page shows a
step at once and does not wait for the answer.
"""

from __future__ import annotations

from typing import Any

from ..lab.collective_stepper import CollectiveStepper, front_end
from .lab_view import Commands, LabView, traitlets

__all__ = ["COMMANDS", "CollectiveStepperWidget"]

# What the page may ask of the model, and the types of the arguments.
COMMANDS: Commands = {
    "to": ((int,),),
    "next": (),
    "back": (),
    "reset": (),
    "follow": ((int, type(None)),),
    "choose_kind": ((str,),),
    "choose_algorithm": ((str,),),
    "choose_ranks": ((int,),),
    "choose_elements": ((int,),),
    "choose_cluster": ((str,),),
    "choose_contention": ((str,),),
}
PLACE = ("at", "follow", "counters", "status")


class CollectiveStepperWidget(LabView):
    """A view of `stepper`; several may show one model.

    story   what is shown, all rounds;  place: where it stands
    """

    _esm, _css = front_end()
    commands, frame_height_px = COMMANDS, 860

    story = traitlets.Dict().tag(sync=True)
    place = traitlets.Dict().tag(sync=True)

    def __init__(self, stepper: CollectiveStepper | None = None, **kwargs: Any) -> None:
        super().__init__(CollectiveStepper() if stepper is None else stepper, **kwargs)

    @property
    def stepper(self) -> CollectiveStepper:
        """The model behind this view."""
        return self._lab

    def _show(self) -> None:
        snapshot = self._lab.snapshot()
        story = {name: value for name, value in snapshot.items() if name not in PLACE}
        with self.hold_sync():
            if story != self.story:
                self.story = story
            self.place = {name: snapshot[name] for name in PLACE}
