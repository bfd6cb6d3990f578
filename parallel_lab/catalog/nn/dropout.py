"""Dropout of whole channels."""

from __future__ import annotations

from ...base.checks import checked, probability
from ...nn.layers.dropout import Dropout


class _ChannelDropout(Dropout):
    dims = 2

    @checked(p=probability)
    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=p)


def _channels(name: str, shape: str) -> type[_ChannelDropout]:
    text = "Whole channels set to 0 with probability p, the others divided by 1 - p; in training only."
    form = {"rank": shape.count(",") + 1, "__doc__": f"{text}  x: {shape} -> {shape}.", "__module__": __name__}
    return type(name, (_ChannelDropout,), form)


Dropout1d = _channels("Dropout1d", "(n, c, l)")
Dropout2d = _channels("Dropout2d", "(n, c, h, w)")
Dropout3d = _channels("Dropout3d", "(n, c, d, h, w)")
