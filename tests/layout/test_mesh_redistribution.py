"""Redistributions over a mesh: values, the recorded lists, fewest bytes, what is refused."""

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout, Partial
from parallel_lab.layout.mesh_redistribution import redistribution
from parallel_lab.layout.mesh_views import reshaped
from parallel_lab.nn.tensor.dtensor import DTensor, dtensor_messages
from tests.recorded.ask_rosetta import NAMES, ROWS, drawn, redistribute

MESHES = {
    "four, uneven": (DeviceMesh((4,)), (5, 7), "R P S0 S1 Pmax Pavg"),
    "two by four": (DeviceMesh((2, 4)), (8, 16), "R P S0 S1 Pmax Pavg SS0:4"),
    "permuted": (DeviceMesh((2, 4), (), (3, 1, 0, 2, 7, 5, 6, 4)), (8, 16), "R P S0 S1 SS0:4"),
    "two by three, uneven": (DeviceMesh((2, 3)), (5, 7), "R P S0 S1 SS1:3"),
    "a cube": (DeviceMesh((2, 2, 2)), (8, 8), "R P S0 S1"),
}


def layouts_of(mesh, codes):
    for chosen in itertools.product(codes.split(), repeat=mesh.ndim):
        try:
            layout = MeshLayout.coded(mesh, chosen)
            layout.dims(2)
        except LayoutError:
            continue
        yield layout


def value_of(x):
    """The whole value of a DTensor by the definition: its parts at their positions, reduced where they are pending."""
    whole, pending = np.zeros(x.shape), x.layout.pending
    means = np.prod([x.mesh.axis_size(name) for name, op in pending.items() if op == "avg"])
    reduce = {"max": np.max, "min": np.min}.get(next(iter(pending.values()), ""), np.sum)
    for rank in x.mesh.ranks:
        group = {rank}
        for name in pending:
            group = {other for member in group for other in x.mesh.group(name, member)}
        parts = np.stack([x.local(member) for member in sorted(group)])
        whole[np.ix_(*x.layout.indices(x.shape, rank))] = reduce(parts, axis=0) / means
    return whole


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("case", MESHES)
def test_both_planners_keep_the_value_and_the_cheapest_sends_no_more(case, seed):
    mesh, shape, codes = MESHES[case]
    random, every = np.random.default_rng(seed), list(layouts_of(mesh, codes))
    for src, dst in random.choice(len(every), (15, 2)):
        src, dst = every[src], every[dst]
        x = drawn(shape, src, random)
        before, sent = value_of(x), []
        for planner in ("torch", "cheapest"):
            try:
                steps = redistribution(src, dst, shape, planner)
            except LayoutError:
                break
            moved = x
            for step in steps:
                for rank in mesh.ranks if step.communicates else ():
                    assert step.sent(shape, rank, moved.local(rank)).shape == step.sent_shape(shape, rank)
                moved = moved.redistribute(step.after)
            np.testing.assert_allclose(value_of(moved), before, rtol=1e-5, atol=1e-5)
            sent.append(sum(step.sent_elements(shape) for step in steps))
        assert len(sent) < 2 or sent[1] <= sent[0] + 1e-9


def test_bytes_that_a_step_predicts_are_those_of_its_message():
    # ring algorithms: a gather hands on n - 1 parts, an all_reduce 2 (n - 1) / n of what it reduces, the others half
    mesh, shape = DeviceMesh((4,), ("tp",)), (8, 16)
    predicted = {("S0", "R"): 32 * 3, ("P", "R"): 128 * 6 / 4, ("P", "S1"): 128 * 3 / 4, ("S0", "S1"): 32 * 3 / 4}
    for (src, dst), elements in predicted.items():
        (step,) = redistribution(MeshLayout.coded(mesh, src), MeshLayout.coded(mesh, dst), shape)
        assert step.sent_elements(shape) == elements
        with dtensor_messages() as sent:
            drawn(shape, step.before, np.random.default_rng(0)).redistribute(step.after)
        assert [m.size_bytes for m in sent] == [4 * np.prod(step.sent_shape(shape, 0))]


@pytest.mark.parametrize(("src", "dst"), [("R", "P"), ("S0", "Pmax"), ("P", "Pavg"), ("Pmax", "P")])
def test_nothing_but_an_addend_becomes_pending(src, dst):
    mesh = DeviceMesh((4,))
    with pytest.raises(LayoutError, match="addend"):
        redistribution(MeshLayout.coded(mesh, src), MeshLayout.coded(mesh, dst), (8, 8))


def test_layouts_over_two_meshes_are_refused():
    with pytest.raises(LayoutError, match="one mesh"):
        redistribution(MeshLayout.coded(DeviceMesh((4,)), "R"), MeshLayout.coded(DeviceMesh((2, 2)), "R R"), (8,))


@pytest.mark.parametrize(
    ("mesh", "shape", "new", "before", "after"),
    [  # PyTorch 2.14
        ((2, 4), (8, 4, 12), (32, 12), "S0 S1", "S0 SS0:4"),
        ((2, 4), (8, 4, 12), (32, 12), "S1 S0", "SS0:8 S0"),
        ((2, 4), (8, 4, 12), (32, 12), "S0 S0", "S0 S0"),
        ((4,), (4, 8, 12), (32, 12), "S2", "S1"),
        ((4,), (8, 16), (8, 4, 4), "S1", "S1"),
        ((2, 4), (32, 12), (8, 4, 12), "S0 SS0:4", "S0 S1"),
    ],
)
def test_a_reshape_of_the_parts_lies_as_recorded_and_holds_the_same_elements(mesh, shape, new, before, after):
    over = DeviceMesh(mesh, NAMES[len(mesh)])
    layout = MeshLayout.coded(over, before)
    made = reshaped(layout, shape, new)
    assert made.code == after
    flat = np.arange(np.prod(shape))
    for rank in over.ranks:
        held = flat.reshape(shape)[np.ix_(*layout.indices(shape, rank))].ravel()
        assert (flat.reshape(new)[np.ix_(*made.indices(new, rank))].ravel() == held).all()


def test_a_reshape_that_would_cut_parts_is_refused():
    with pytest.raises(LayoutError, match="Redistribute it first"):
        reshaped(MeshLayout.coded(DeviceMesh((8,)), "S1"), (8, 16), (8, 4, 4))


@pytest.mark.parametrize(
    "row", ROWS["redistribute"], ids=lambda row: f"{' '.join(row['src'])} to {' '.join(row['dst'])}"
)
def test_pytorchs_redistributions(row):
    answer = redistribute(**row)
    if "error" in row:
        assert "addend" in answer["error"]
        return
    asked = ("messages", "comms", "local", "steps", "grad_pl", "bwd_messages")
    assert {name: answer[name] for name in asked} == {name: row[name] for name in asked} and answer["err"] < 1e-4


def test_parts_that_do_not_make_up_the_shape_are_refused():
    mesh = DeviceMesh((4,))
    with pytest.raises(LayoutError, match="rank 3 gives"):
        DTensor.from_local(lambda rank: np.zeros(2), mesh, MeshLayout.coded(mesh, "S0").placements, shape=(7,))
    assert DTensor.from_local(np.zeros((2, 3)), mesh, [Partial()]).shape == (2, 3)


def test_the_inner_axis_leaves_a_dim_though_another_axis_splits_a_later_one():
    """The order within a dim was read as if the tensor ended there, and the axis gathered instead."""
    mesh = DeviceMesh((2, 2, 2), ("dp", "cp", "tp"))
    source, target = (MeshLayout.from_dims(mesh, dims) for dims in ((("tp", "dp"), ("cp",)), (("tp",), ("cp", "dp"))))
    (step,) = redistribution(source, target, (8, 8), "cheapest")
    assert (step.kind, step.name) == ("all_to_all", "dp")


def test_strides_of_unequal_pieces_move_or_are_refused():
    """An IndexError, or another rank's rows: the pieces that were cut before were taken to be of equal length."""
    row = redistribute([10], [2, 4], ["R", "P"], ["SS0:4", "S0"])
    assert row["messages"] == [["reduce_scatter", "tp", [12]]] and row["err"] < 1e-5  # PyTorch 2.14
    assert row["bwd_messages"] == [["all_gather", "dp", [2]], ["all_gather", "tp", [3]]]
    assert "equal parts" in redistribute([5], [2, 2, 2], ["R", "P", "S0"], ["SS0:4", "SS0:2", "S0"])["error"]
