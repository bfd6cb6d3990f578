"""What each axis of a mesh does to a tensor, and the same by dims, by slices, as a TensorLayout."""

import itertools

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError, LayoutTypeError
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard, placement_of
from tests.refusals import refused

MESHES = [DeviceMesh((4,), ("tp",)), DeviceMesh((2, 4), ("dp", "tp")), DeviceMesh((2, 2, 2), ("dp", "cp", "tp"))]


def drawn_dims(random, mesh, ndim):
    """Axes in any order, each on a dim, pending, or unused."""
    dims, pending = [[] for _ in range(ndim)], {}
    for name in random.permutation(mesh.names).tolist():
        where = random.integers(ndim + 2)
        if where < ndim:
            dims[where].append(name)
        elif where == ndim:
            pending[name] = "sum"
    return tuple(map(tuple, dims)), pending


@pytest.mark.parametrize("seed", range(30))
def test_a_drawn_layout_reads_back_and_places_slices_as_its_tensor_layout_does(seed):
    random = np.random.default_rng(seed)
    mesh, ndim = MESHES[seed % 3], int(random.integers(1, 4))
    dims, pending = drawn_dims(random, mesh, ndim)
    shape = (16, 32, 8)[:ndim]
    layout = MeshLayout.from_dims(mesh, dims, pending)
    assert layout.dims(ndim) == dims and layout.pending == pending
    assert MeshLayout.coded(mesh, layout.code) == layout
    plain = layout.tensor_layout(ndim, shape)
    assert MeshLayout.of(plain, mesh.names) == layout
    for rank in range(mesh.size):
        wanted = tuple((part.start, part.stop) for part in plain.slice_index(shape, rank))
        assert layout.slices(shape, rank) == wanted
        assert layout.local_shape(shape, rank) == plain.slice_shape(shape)


def test_pieces_that_do_not_divide_are_those_of_torch_chunk():
    # PyTorch 2.14: 5 on 4 is 2, 2, 1, 0; nested on (2, 4) it is 1, 1, 1, 0 and 1, 1, 0, 0
    sizes = {(5, 0): [2, 2, 1, 0], (3, 0): [1, 1, 1, 0], (5, 1): [1, 1, 1, 0, 1, 1, 0, 0]}
    for (size, which), wanted in sizes.items():
        mesh = MESHES[which]
        layout = MeshLayout(mesh, (Shard(0),) * mesh.ndim)
        assert [layout.local_shape((size,), rank)[0] for rank in range(mesh.size)] == wanted


def test_strided_pieces_that_do_not_divide_are_pytorchs():
    """What lies before them is cut by torch.chunk, too: pieces of 3, 3, 3, 1. All were as long as the smallest."""
    held = {  # PyTorch 2.14, [_StridedShard(0, split_factor=4), Shard(0)] on (2, 4)
        10: [[0, 1], [3, 4], [6, 7], [9], [2], [5], [8], []],
        9: [[0, 1], [3, 4], [6, 7], [], [2], [5], [8], []],
        5: [[0], [2], [4], [], [1], [3], [], []],
    }
    layout = MeshLayout.coded(MESHES[1], "SS0:4 S0")
    for size, wanted in held.items():
        assert [layout.indices((size,), rank)[0].tolist() for rank in range(8)] == wanted


def test_every_position_is_held_by_as_many_ranks_as_there_are_copies():
    for mesh, codes in itertools.product(MESHES[1:2], itertools.product(("R", "S0", "SS0:4", "SS0:3", "S1"), repeat=2)):
        layout, held = MeshLayout.coded(mesh, codes), np.zeros((7, 9), int)
        for rank in range(mesh.size):
            held[np.ix_(*layout.indices((7, 9), rank))] += 1
        copies = np.prod([n for n, code in zip(mesh.shape, codes, strict=True) if code == "R"], dtype=int)
        assert (held == copies).all(), codes


def test_what_split_a_dim_before_decides_whether_there_is_a_form_by_dims():
    mesh = MESHES[1]
    assert MeshLayout.coded(mesh, "SS0:4 S0").dims(1) == (("tp", "dp"),)
    assert MeshLayout.coded(mesh, "S0 S0").dims(1) == (("dp", "tp"),)
    for codes in ("SS0:2 S0", "S0 SS0:4", "SS0:4 R"):  # two of the four; nothing to its right; not split there
        with pytest.raises(LayoutError, match="split_factor"):
            MeshLayout.coded(mesh, codes).dims(1)


def test_permuted_ranks_hold_what_their_place_in_the_mesh_says():
    mesh = DeviceMesh((2, 4), ("dp", "tp"), (0, 2, 4, 6, 1, 3, 5, 7))
    layout = MeshLayout(mesh, (Shard(0), Shard(1)))
    assert layout.slices((16, 32), 5) == ((8, 16), (16, 24))
    assert mesh.group("tp", 5) == (1, 3, 5, 7) and mesh.group("dp", 5) == (4, 5)
    with pytest.raises(LayoutError, match="row-major"):
        layout.tensor_layout(2)


def test_equal_placements_are_recognised_over_different_meshes():
    one = MeshLayout.coded(DeviceMesh((8,), ("all",)), "S0")
    two = MeshLayout.coded(MESHES[1], "S0 S0")
    assert one.same_placement(two, (16,)) and not one.same_placement(MeshLayout.coded(MESHES[1], "SS0:4 S0"), (16,))
    assert not MeshLayout.coded(MESHES[1], "S0 P").same_placement(MeshLayout.coded(MESHES[1], "S0 R"), (16,))


test_a_wrong_layout_is_refused_and_the_error_says_what_is_allowed = refused(
    (lambda: DeviceMesh((2, 4), ("dp",)), LayoutError, "2 names"),
    (lambda: DeviceMesh((2, 4), ("dp", "dp")), LayoutError, "each its own"),
    (lambda: DeviceMesh((2,), ranks=(0, 0)), LayoutError, "2 different ranks"),
    (lambda: DeviceMesh("24"), LayoutTypeError, "tuple of ints"),
    (lambda: MeshLayout(MESHES[1], (Shard(0),)), LayoutError, "One per axis"),
    (lambda: MeshLayout(MESHES[1], ("S0", "R")), LayoutTypeError, "Shard"),
    (lambda: MeshLayout(MESHES[1], (Partial("max"), Partial())), LayoutError, "One kind"),
    (lambda: MeshLayout.from_dims(MESHES[1], (("dp",), ("dp",))), LayoutError, "used twice"),
    (lambda: MeshLayout.coded(MESHES[0], "S2").indices((4, 4), 0), LayoutError, "from -2 to 1"),
    (lambda: MESHES[0].coordinates(4), LayoutError, "not in the mesh"),
    (lambda: placement_of("S0:4"), LayoutError, "SS0:4"),
    (lambda: Partial("mean"), LayoutError, "avg"),
    (lambda: StridedShard(0, 0), LayoutError, "split_factor"),
)


def test_a_negative_dim_counts_from_the_right_and_sums_go_with_means():
    assert MeshLayout(MESHES[0], (Shard(-1),)).on(3).placements == (Shard(2),)
    assert MeshLayout(MESHES[1], (Partial("avg"), Partial())).pending == {"dp": "avg", "tp": "sum"}
    assert str(MeshLayout(MESHES[1], (StridedShard(0, 4), Replicate()))) == (
        "[_StridedShard(0, split_factor=4), Replicate()]"
    )


@pytest.mark.parametrize("names", [("dp",), ("cp",), ("tp",), ("dp", "tp"), ("cp", "tp"), ("dp", "cp", "tp")])
def test_a_mesh_over_some_axes_has_the_ranks_at_the_origin_of_the_others(names):
    mesh = DeviceMesh((2, 3, 4), ("dp", "cp", "tp"), tuple(range(23, -1, -1)))
    steps = {"dp": 12, "cp": 4, "tp": 1}
    places = itertools.product(*(range(mesh.axis_size(name)) for name in names))
    part = mesh[names]
    assert part.names == names and part.shape == tuple(map(mesh.axis_size, names))
    assert list(part.ranks) == [
        23 - sum(at * steps[name] for at, name in zip(place, names, strict=True)) for place in places
    ]
