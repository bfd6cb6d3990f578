"""The Rosetta Lab: where a tensor lies, in five notations; what one of them is changed to, the others follow.

    lab = RosettaLab("2 x 4", "16 x 32", "S0 R")
    print(lab.to_text())                # P('dp', None), [Shard(0), Replicate()], ((2, 1),), ...
    lab.set_form("jax.PartitionSpec", "P(('tp', 'dp'), None)")
    print(lab.to_text())                # _StridedShard in PyTorch, and no strategy: the reason is shown

Choose what each axis of the mesh does, or type into any notation. The cards show what each of the 8 ranks then holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby, product
from typing import Any

from ...base.errors import ArgumentError, shorten
from ...base.units import plural
from ...graph.value_types import types_of_dtensor
from ...layout.device_mesh import DeviceMesh
from ...layout.mesh_layout import MeshLayout, Replicate, Shard, StridedShard, placement_of
from ...layout.notations import notations, written
from ..shared.lab import Lab, offered, setting
from ..shared.questions import COMMANDS, Question
from ..shared.sections import Section, code, table
from .section import MORE, NAMES, VIEWS, notation_table, text_of, type_note

RANKS = 8
MESHES = {
    "8": DeviceMesh((8,), ("tp",)),
    "2 x 4": DeviceMesh((2, 4), ("dp", "tp")),
    "4 x 2": DeviceMesh((4, 2), ("dp", "tp")),
    "2 x 2 x 2": DeviceMesh((2, 2, 2), ("dp", "cp", "tp")),
    "permuted": DeviceMesh((2, 4), ("dp", "tp"), (0, 2, 4, 6, 1, 3, 5, 7)),
}
MESH_NAMES = {name: f"{name} ({', '.join(mesh.names)})" for name, mesh in MESHES.items()}
MESH_NAMES["permuted"] = "2 x 4, ranks 0 2 4 6 1 3 5 7"
SHAPES = {"16": (16,), "16 x 32": (16, 32), "10 x 32": (10, 32), "8 x 16 x 24": (8, 16, 24)}
DOES = {"R": "copies", "S0": "dim 0", "S1": "dim 1", "S2": "dim 2", "P": "addends"}
OUTER = {"left": "the left axis", "right": "the right axis"}
SUMMED = "A gradient's type is the one before a message adds it up."
ALL, PARTS = "all have one", ("cards", "forms")  # an answer; parts of the view


def _axis(lab: RosettaLab, name: str) -> dict[str, str]:
    """What an axis can do: hold copies; other things where the mesh has such an axis."""
    dims = len(SHAPES[lab._shape])
    there = name in lab._layout.mesh.names
    return {
        code: text for code, text in DOES.items() if code == "R" or (there and (code == "P" or int(code[1]) < dims))
    }


class RosettaLab(Lab):
    """A tensor on a mesh of 8 ranks.

    mesh    "8", "2 x 4", "4 x 2", "2 x 2 x 2" or "permuted", whose ranks are in another order
    shape   of the tensor: "16", "16 x 32", "10 x 32" (no multiple of 4) or "8 x 16 x 24"
    layout  what each axis of the mesh does, such as "S0 R" (`MeshLayout.coded`)

    Raises ArgumentError for a mesh and a shape that are not offered, LayoutError for a layout that does not fit.
    """

    title = "Rosetta Lab"
    scripts = ("pictures/slices.js", "rosetta/story.js", "rosetta/rosetta_lab.js")
    styles = ("rosetta/rosetta_lab.css",)
    commands = ("set_form", *COMMANDS)
    also_kept = ("set_form",)
    replayed = ("tp", "dp", "cp", "outer", "mesh", "shape")
    frame_height_px = 700

    def __init__(
        self,
        mesh: str = "2 x 4",
        shape: str = "16 x 32",
        layout: str = "S0 R",
        *,
        controls: str = "",
        story: bool = False,
    ) -> None:
        super().__init__(controls=controls, story=story)
        self.one_of(mesh, MESHES, "mesh")
        self.one_of(shape, SHAPES, "shape")
        self._layout = MeshLayout.coded(MESHES[mesh], layout).on(len(SHAPES[shape]))
        self._begin(mesh=mesh, shape=shape, rank=5)

    # ---- what is chosen ----

    @setting("mesh", MESH_NAMES)
    def set_mesh(self, mesh: str) -> dict[str, Any]:
        """Another mesh; axes with the same name do there what they did."""
        return {"layout": self._arranged({}, MESHES[mesh])}

    @setting("tensor", list(SHAPES))
    def set_shape(self, shape: str) -> dict[str, Any]:
        """Another tensor; an axis that splits a dim which it has not holds copies then."""
        return {"layout": self._arranged({}, self.layout.mesh, len(SHAPES[shape]))}

    @setting("dp", lambda lab: _axis(lab, "dp"), value=lambda lab: lab._does("dp"), typed=True)
    def set_dp(self, does: str) -> dict[str, Any]:
        """What the axis dp does: "R" copies, "S0" splits dim 0, "P" holds addends."""
        return self._placed("dp", does)

    @setting("cp", lambda lab: _axis(lab, "cp"), value=lambda lab: lab._does("cp"), typed=True)
    def set_cp(self, does: str) -> dict[str, Any]:
        """What the axis cp does."""
        return self._placed("cp", does)

    @setting("tp", lambda lab: _axis(lab, "tp"), value=lambda lab: lab._does("tp"), typed=True)
    def set_tp(self, does: str) -> dict[str, Any]:
        """What the axis tp does."""
        return self._placed("tp", does)

    @setting("outer", lambda lab: lab._orders(), value=lambda lab: lab._outer(), typed=True)
    def set_outer(self, outer: str) -> dict[str, Any]:
        """Which of several axes that split one dim cuts first: "left" or "right"."""
        self.one_of(outer, self._orders(), "outer")
        return {"layout": self._arranged({}, self.layout.mesh, outer=outer)}

    set_rank = offered("rank", range(RANKS), "The rank that is looked at.", look=True, rank=int)

    def set_form(self, notation: str, text: str) -> None:
        """Take the layout that a text in one of the notations says. Raises ArgumentError, or LayoutError with the place
        where the text ends to fit.
        """
        self.one_of(notation, NAMES, "notation")
        layout = notations[notation].parse(text, self.layout.mesh, SHAPES[self._shape])
        layout = layout.on(len(SHAPES[self._shape]))
        if sorted(layout.mesh.ranks) != list(range(RANKS)):
            allowed = f"A mesh of ranks 0 to {RANKS - 1}"
            raise ArgumentError(f"{shorten(str(layout.mesh), 100)}", where=type(self).__name__, allowed=allowed)
        same = next((name for name, mesh in MESHES.items() if mesh == layout.mesh), "own")
        self._change(layout=layout, mesh=same)

    def _placed(self, name: str, does: str) -> dict[str, Any]:
        self.one_of(does, _axis(self, name), name)
        return {"layout": self._arranged({name: does}, self.layout.mesh)}

    def _arranged(
        self, changed: Mapping[str, str], mesh: DeviceMesh, ndim: int | None = None, outer: str = ""
    ) -> MeshLayout:
        """The layout with changes on a mesh, for a tensor of so many dims; axes of one dim as `outer` says."""
        ndim = self.ndim if ndim is None else ndim
        does = {name: changed.get(name) or self._does(name) for name in mesh.names}
        dims: list[list[str]] = [[] for _ in range(ndim)]
        for name in mesh.names:
            if does[name][0] == "S" and int(does[name][1:]) < ndim:
                dims[int(does[name][1:])].append(name)
        if (outer or self._outer()) == "right":
            dims = [names[::-1] for names in dims]
        pending = {name: placement_of(code).reduce_op for name, code in does.items() if code[0] == "P"}
        return MeshLayout.from_dims(mesh, dims, pending)

    # ---- what there is ----

    @property
    def layout(self) -> MeshLayout:
        """Where the tensor lies."""
        return self._layout

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return SHAPES[self._shape]

    @property
    def ndim(self) -> int:
        """Its dims."""
        return len(self.shape)

    def _does(self, name: str) -> str:
        """What an axis does, whatever was cut before it: "R" where the mesh has no such axis."""
        mesh = self.layout.mesh
        placement = self.layout.placements[mesh.axis(name)] if name in mesh.names else Replicate()
        return f"S{placement.dim}" if isinstance(placement, StridedShard) else placement.code

    def _orders(self) -> dict[str, str]:
        """Which axis can be outer: either, where several split one dim."""
        dims = [p.dim for p in self.layout.placements if isinstance(p, (Shard, StridedShard))]
        return OUTER if len(set(dims)) < len(dims) else {"left": OUTER["left"]}

    def _outer(self) -> str:
        return "right" if any(isinstance(p, StridedShard) for p in self.layout.placements) else "left"

    def calls(self) -> list[list[Any]]:
        """The choices where they say all, otherwise the text of the layout."""
        calls = super().calls()
        if self._mesh in MESHES and self._arranged({}, self.layout.mesh) == self.layout:
            return calls
        text = notations["torch"].print(self.layout, self.shape)
        return [call for call in calls if call[0] in ("set_shape", "set_rank")] + [["set_form", "torch", text]]

    # ---- what is shown ----

    def chosen(self) -> dict[str, Any]:
        """Those that have more than one choice; a mesh of the learner's own is one more."""
        chosen = {name: field for name, field in super().chosen().items() if len(field["choices"]) > 1}
        if self._mesh not in MESHES:
            chosen["mesh"]["choices"].append({"value": self._mesh, "label": str(self.layout.mesh)})
        return chosen

    def parts(self) -> dict[str, Any]:
        """What the views show, as plain data."""
        cards = self._cards()
        types = [[n, *pair] for n, pair in zip(self.layout.mesh.names, types_of_dtensor(self.layout), strict=True)]
        return {
            "status": self._status(cards),
            "types": types,
            "picture": {"shape": list(self.shape), "drawn": self._drawn()},
            "cards": cards,
            "sections": {
                "forms": self._forms("Five notations", VIEWS),
                "rank": self._of_rank(cards),
                "types": {"kind": "lines", "title": "Types", "notes": [type_note(types), SUMMED]},
                "more": self._forms("More notations", MORE, tab=True),
                "ranks": self._rank_table(cards),
                "python": code("Code", self._code(), tab=True),
            },
        }

    def questions(self) -> list[Question]:
        """What a rank holds; which of the notations has no form."""
        layout, about, rank = self.layout, f"{self.layout} on {self.layout.mesh}, {self._shape}", self._rank
        every = written(layout, self.shape)
        forms = {name: every[name] for name in VIEWS}
        said = next((text for name in ("scaling_book", "torch") if (text := text_of(name, forms[name]))), "")
        asks = []
        dim = next((p.dim for p in layout.placements if isinstance(p, (Shard, StridedShard))), 0)
        runs = _runs(layout.indices(self.shape, rank)[dim])
        if len(runs) == 1:
            text = (
                f"{said} on {layout.mesh}, tensor {self._shape}: where does the part of dim {dim} on rank {rank} begin?"
            )
            at = ", ".join(f"{n} {at}" for n, at in zip(layout.mesh.names, layout.mesh.coordinates(rank), strict=True))
            why = f"rank {rank}, at {at}, holds {runs[0][0]}:{runs[0][1]}"
            asks.append(Question(f"part of {about}, {rank}", text, (runs[0][0],), why, hides=PARTS))
        missing = [NAMES[name][0] for name, form in forms.items() if form.text is None]
        text = f"Which has no form of {layout} on {layout.mesh}, for a tensor {self._shape}?"
        why = next((form.reason.rstrip(".") for form in forms.values() if form.text is None), "all five say the same")
        choices = (*(name for name, _ in VIEWS.values()), ALL)
        right = tuple(missing) or (ALL,)
        asks.append(Question(f"form of {about}", text, right, why, choices=choices, hides=PARTS))
        return asks

    def _status(self, cards: list[dict[str, Any]]) -> str:
        held, pending = Counter(card["slice"] for card in cards), self.layout.pending
        text = f"{RANKS} ranks hold {len(held)} different slices"
        text = text if len(held) > 1 else "Every rank holds the whole tensor"
        if pending:
            named = " and ".join(f"{name} ({op})" for name, op in pending.items())
            return f"{text}; along {named} they are addends, still to be reduced."
        alike = len(held) > 1 and len(set(held.values())) == 1
        return f"{text}, each on {plural(RANKS // len(held), 'rank')}." if alike else f"{text}."

    def _forms(self, title: str, names: Iterable[str], **more: Any) -> Section:
        return notation_table(title, {" ": self.layout}, self.shape, names, command="set_form", **more)

    def _drawn(self) -> dict[str, Any]:
        """Which dims go down, across, and into panels."""
        dims = [*range(self.ndim), None, None]
        parts = 1
        if self.ndim > 2:  # one panel for each part
            runs = [_runs(self.layout.indices(self.shape, rank)[2]) for rank in range(RANKS)]
            parts = len({run[0][0] for run in runs if run})
        return {"down": 0, "across": dims[1], "panels": 2 if parts > 1 else None, "parts": parts}

    def _cards(self) -> list[dict[str, Any]]:
        """A card for each rank: its slice as a number, as blocks and as text; who has the same, who adds up with it."""
        layout, shape = self.layout, self.shape
        runs = [[_runs(held) for held in layout.indices(shape, rank)] for rank in range(RANKS)]
        different: list[Any] = []
        for one in sorted(runs, key=lambda one: (not all(one), one)):  # who has nothing comes last
            if one not in different:
                different.append(one)
        cards = []
        for rank in range(RANKS):
            addends = sorted(set().union(*layout.addends_with(rank).values()) - {rank})
            same = [other for other in range(RANKS) if runs[other] == runs[rank] and other not in (rank, *addends)]
            at = zip(layout.mesh.names, layout.mesh.coordinates(rank), strict=True)
            cards.append({
                "rank": rank,
                "at": [f"{name} {place}" for name, place in at],
                "slice": different.index(runs[rank]),
                "blocks": [list(block) for block in product(*runs[rank])],
                "text": [" ".join(f"{a}:{b}" for a, b in one) or "nothing" for one in runs[rank]],
                "same": same,
                "addends": addends,
            })  # fmt: skip
        return cards

    def _of_rank(self, cards: list[dict[str, Any]]) -> Section:
        def notes(card: dict[str, Any]) -> list[str]:
            held = f"Rank {card['rank']}, at {', '.join(card['at'])}, holds [{', '.join(card['text'])}]"
            held += f"; the same is on {' '.join(map(str, card['same']))}" if card["same"] else ""
            return [
                f"{held}; it adds up with {' '.join(map(str, card['addends']))}." if card["addends"] else f"{held}."
            ]

        of = {str(card["rank"]): {"notes": notes(card)} for card in cards}
        return {"kind": "lines", "title": "Rank", "by": ["rank"], "of": of}

    def _rank_table(self, cards: list[dict[str, Any]]) -> Section:
        columns = {"rank": "name", "at": "text", "holds": "text", "the same on": "text", "adds up with": "text"}
        rows = [
            [str(card["rank"]), ", ".join(card["at"]), f"[{', '.join(card['text'])}]"]
            + [" ".join(map(str, card[name])) or "-" for name in ("same", "addends")]
            for card in cards
        ]
        return table("Ranks", columns, rows, tab=True)

    def _code(self) -> str:
        mesh = self.layout.mesh
        ranks = "" if mesh.in_order else f", {mesh.ranks}"
        return (
            f"mesh = pl.DeviceMesh({mesh.shape}, {mesh.names}{ranks})\n"
            f'layout = pl.notations["torch"].parse("{self.layout}", mesh)\n'
            f'print(pl.notations["jax.PartitionSpec"].print(layout, {self.shape}))\n'
            f"print([layout.slices({self.shape}, rank) for rank in range({RANKS})])"
        )


def _runs(held: Any) -> list[tuple[int, int]]:
    """Positions as runs without a gap: (start, stop)."""
    groups = (list(run) for _, run in groupby(enumerate(held.tolist()), lambda pair: pair[1] - pair[0]))
    return [(run[0][1], run[-1][1] + 1) for run in groups]
