"""The Rosetta Lab: one notation is changed, the others and the cards follow; where it has no form, the reason."""

from __future__ import annotations

import pytest

from parallel_lab.base.errors import ArgumentError, LayoutError
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.rosetta.model import ALL, MESHES, RosettaLab
from parallel_lab.lab.rosetta.section import VIEWS
from tests.crossed import each_of


def shown(lab: RosettaLab, section: str = "forms") -> dict[str, str | None]:
    """{notation: its text}."""
    return {cell[0]: cell[1] for _, cell in lab.snapshot()["sections"][section]["rows"]}


# the layouts "columns of the first axis outside" and "rows over both axes" on the mesh (2, 4) of a (16, 32) tensor
STRIDED = {
    "mindspore.strategy": None,
    "mindspore.Layout": 'Layout((2, 4), ("dp", "tp"))(("tp", "dp"), "None")',
    "torch": "[_StridedShard(0, split_factor=4), Shard(0)]",
    "jax.PartitionSpec": "PartitionSpec(('tp', 'dp'), None)",
    "scaling_book": "A[I_{YX}, J]",
}


@pytest.mark.parametrize("name", [name for name, text in STRIDED.items() if text])
def test_a_text_typed_into_one_notation_changes_all_others_and_the_cards(name):
    lab = RosettaLab()
    lab.set_form(name, STRIDED[name])
    assert shown(lab) == STRIDED
    assert [card["text"] for card in lab.snapshot()["cards"]][5] == ["6:8", "0:32"]
    assert [field["value"] for field in (lab.snapshot()[axis] for axis in ("dp", "tp", "outer"))] == [
        "S0",
        "S0",
        "right",
    ]


def test_the_choices_of_axes_write_the_same_and_an_order_can_be_turned():
    lab = RosettaLab()
    lab.set_tp("S0")
    assert shown(lab)["mindspore.strategy"] == "((8, 1),)" and shown(lab, "more")["alpa"] == "S01R"
    lab.set_outer("right")
    assert shown(lab) == STRIDED
    lab.set_tp("P")
    assert shown(lab)["scaling_book"] == "A[I_X, J] {U_Y}" and shown(lab)["mindspore.Layout"] is None
    (note,) = lab.snapshot()["sections"]["rank"]["of"]["5"]["notes"]
    assert note == "Rank 5, at dp 1, tp 1, holds [8:16, 0:32]; it adds up with 4 6 7."
    assert "outer" not in lab.snapshot()


def test_a_strategy_may_bring_a_mesh_of_its_own_and_files_keep_it():
    lab = RosettaLab()
    lab.set_form("mindspore.strategy", "((1, 4),)")
    mesh = lab.snapshot()["mesh"]
    assert (mesh["value"], mesh["choices"][-1]["label"]) == ("own", "mesh (dim1=4, copies=2)")
    assert RosettaLab.of_state(lab.state()).layout == lab.layout
    lab.set_form("mindspore.Layout", 'Layout((2, 2, 2), ("dp", "cp", "tp"))("dp", ("cp", "tp"))')
    assert lab.snapshot()["mesh"]["value"] == "2 x 2 x 2" and lab.layout.mesh == MESHES["2 x 2 x 2"]
    lab.set_mesh("permuted")
    assert shown(lab)["scaling_book"] is None


def test_uneven_slices_are_drawn_as_pytorch_cuts_them_and_have_no_other_form():
    lab = RosettaLab(shape="10 x 32", layout="R S0")
    assert [card["text"][0] for card in lab.snapshot()["cards"][:4]] == ["0:3", "3:6", "6:9", "9:10"]
    assert [name for name, text in shown(lab).items() if text] == ["torch"]
    lab.set_form("torch", "[Shard(0), Shard(0)]")
    cards = lab.snapshot()["cards"]
    assert [card["text"][0] for card in cards] == ["0:2", "2:4", "4:5", "nothing", "5:7", "7:9", "9:10", "nothing"]
    assert [card["slice"] for card in cards] == [0, 1, 2, 6, 3, 4, 5, 6] and cards[7]["blocks"] == []


def test_positions_with_gaps_are_several_blocks():
    lab = RosettaLab("8", "16", "SS0:2")
    card = lab.snapshot()["cards"][1]
    assert card["blocks"] == [[(1, 2)], [(9, 10)]] and card["text"] == ["1:2 9:10"]
    assert "StridedShard" in lab.to_text().split("scaling book")[1].split("\n")[0]


@pytest.mark.parametrize("axes", ["S0 S1", "S0 P", "S1 S1"])
def test_questions_are_right_by_the_slices_and_the_forms_shown(axes):
    lab = RosettaLab(layout=axes)
    lab.set_rank(6)
    part, form = lab.questions()
    dim = int(axes[1])
    assert part.right == (lab.layout.slices((16, 32), 6)[dim][0],) and f"dim {dim}" in part.text
    missing = [name for name, _ in VIEWS.items() if shown(lab)[name] is None]
    assert form.right == (tuple(VIEWS[name][0] for name in missing) or (ALL,))


def test_what_does_not_fit_is_refused_with_its_place():
    lab = RosettaLab()
    before = lab.calls()
    for notation, text, words in [
        ("jax.PartitionSpec", "P('dp', 'ep')", "no axis 'ep'"),
        ("torch", "[Shard(0), Shard(2)]", r"Shard\(2\) of a tensor of 2 dims"),
        ("scaling_book", "A[I_X J]", r"A\[I_X <-- here: 'J\]'"),
    ]:
        with pytest.raises(LayoutError, match=words):
            lab.set_form(notation, text)
    with pytest.raises(ArgumentError, match="ranks 0 to 7"):
        lab.set_form("mindspore.Layout", 'Layout((4,), ("tp",))("tp", "None")')
    with pytest.raises(ArgumentError, match="dp 'S9'"):
        RosettaLab(shape="16").set_dp("S9")
    assert lab.calls() == before


def test_the_redistribution_lab_shows_both_layouts_in_the_notations():
    rows = RedistributionLab(have="4 x 1", copies="addends").snapshot()["sections"]["forms"]["rows"]
    texts = {cells[0][0]: [cell[1] for cell in cells] for _, *cells in rows}
    assert texts["jax.PartitionSpec"] == [
        *("PartitionSpec('rows', None, unreduced={'copies'})", "PartitionSpec(None, 'columns')")
    ]
    assert texts["mindspore.strategy"] == [None, "((1, 8),)"]


@each_of(
    ("layout", "types", "said"),
    ("S0 R", [["dp", "S0", "S0"], ["tp", "R", "P"]], "S0 R, gradient S0 P"),  # copies have addends of a gradient
    ("P S1", [["dp", "P", "R"], ["tp", "S1", "S1"]], "P S1, gradient R S1"),  # addends have copies
    ("SS0:4 S0", [["dp", "S0", "S0"], ["tp", "S0", "S0"]], "S0 S0, gradient S0 S0"),  # whichever cuts first,
)
def test_the_type_of_the_tensor_and_of_its_gradient_is_shown_along_each_axis(layout, types, said):
    lab = RosettaLab("2 x 4", "16 x 32", layout)
    assert lab.snapshot()["types"] == types
    assert f"Type along dp, tp: {said}." in lab.to_text() and f"Type along dp, tp: {said}." in lab.to_html()
