"""HyperParallel's mesh, layout and placements under its own paths."""

import importlib
import itertools
import subprocess
import sys
from unittest import mock

import pytest
from parallel_lab.hyper_parallel.core.dtensor import _build_layout

import parallel_lab.hyper_parallel as hp
from parallel_lab.hyper_parallel import families  # noqa: F401  # which fills the table
from parallel_lab.hyper_parallel.rules import FAMILIES
from parallel_lab.layout.mesh_layout import MeshLayout
from parallel_lab.layout.notations import notations
from tests.house.source import ROOT

MESH = {"mesh_shape": (2, 4), "mesh_dim_names": ("dp", "tp")}
LAYOUT = hp.Layout((2, 4), ("dp", "tp"))


@pytest.fixture
def rank(request):
    """The facade's platform says that this process is a rank of eight."""
    with mock.patch("parallel_lab.hyper_parallel.core.device_mesh.platform") as platform:
        platform.get_rank.return_value, platform.get_world_size.return_value = request.param, 8
        yield request.param


@pytest.mark.parametrize("rank", range(8), indirect=True)
def test_a_mesh_seen_from_a_rank(rank):
    """Row-major: rank = 4 dp + tp."""
    mesh = hp.init_device_mesh("npu", **MESH)
    dp, tp = divmod(rank, 4)
    assert mesh.get_coordinate() == (dp, tp) and mesh.get_local_rank("tp") == tp
    assert mesh["tp"].rank_list == tuple(4 * dp + n for n in range(4)) == mesh.get_group("tp")
    assert mesh.get_rank_list_along_axis("dp") == [tp, 4 + tp] == mesh.get_devices_for_axis("dp", rank)
    assert mesh is hp.init_device_mesh("npu", **MESH) and mesh["tp"] is mesh["tp"]
    assert mesh.to_hash() == ((2, 4), ("dp", "tp"), tuple(range(8)))


@pytest.mark.parametrize("rank", [3], indirect=True)
def test_a_mesh_of_four_is_the_one_that_the_rank_is_in(rank):
    assert hp.init_device_mesh("npu", (2, 2), mesh_dim_names=("a", "b")).rank_list == (0, 1, 2, 3)


def test_a_flattened_mesh_is_found_by_its_name():
    mesh = hp.init_device_mesh("npu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    flat = mesh[("dp", "cp")].flatten("both")
    assert flat.rank_list == (0, 2, 4, 6) and mesh["both"] is flat and mesh.get_group("both") == flat.rank_list
    with pytest.raises(ValueError, match="flatten"):
        mesh.flatten("both")


MISTAKES = {
    "unknown name": (lambda mesh: mesh["pp"], KeyError),
    "other order": (lambda mesh: mesh["tp", "dp"], ValueError),
    "no name": (lambda mesh: mesh[0], TypeError),
    "which axis": (lambda mesh: mesh.get_group(), RuntimeError),
    "unknown axis": (lambda mesh: mesh.get_local_rank("pp"), ValueError),
    "axis 2": (lambda mesh: mesh.get_local_rank(2), ValueError),
    "ranks": (lambda mesh: hp.init_device_mesh("npu", (2, 4), rank_list=(0, 1)), ValueError),
    "names": (lambda mesh: hp.init_device_mesh("npu", (2, 4), mesh_dim_names=("dp",)), ValueError),
    "twice": (lambda mesh: hp.init_device_mesh("npu", (2, 4), mesh_dim_names=("dp", "dp")), ValueError),
    "shape": (lambda mesh: hp.Layout([2, 4], ("dp", "tp")), TypeError),
    "None": (lambda mesh: hp.Layout((2,), ("None",)), ValueError),
    "shape of floats": (lambda mesh: hp.Layout((2.0,), ("dp",)), hp.layout.LayoutTypeError),
    "ranks as a text": (lambda mesh: hp.Layout((2,), ("dp",), rank_list="ab"), ValueError),
    "both forms": (lambda mesh: LAYOUT(hp.Shard(0), "dp"), ValueError),
    "unknown alias": (lambda mesh: LAYOUT("pp"), ValueError),
    "alias twice": (lambda mesh: LAYOUT("dp", "dp"), ValueError),
    "split and pending": (lambda mesh: LAYOUT("dp").set_partial_by_dev_axis("dp", "sum"), ValueError),
    "reduction": (lambda mesh: LAYOUT("dp").set_partial_by_dev_axis("tp", "mean"), ValueError),
    "two on a dim": (lambda mesh: _build_layout(mesh, (hp.Shard(0), hp.Shard(0)), 2), ValueError),
    "dim": (lambda mesh: _build_layout(mesh, (hp.Shard(2), hp.Replicate()), 2), ValueError),
    "aliases": (lambda mesh: _build_layout(mesh, ("dp",), 2), ValueError),
    "no dims": (lambda mesh: LAYOUT.to_dict(), ValueError),
    "slice": (lambda mesh: LAYOUT("dp").get_global_shape((2, 2)), ValueError),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_has_the_type_that_hyper_parallel_gives_it(what):
    function, kind = MISTAKES[what]
    with pytest.raises(kind):
        function(hp.init_device_mesh("npu", **MESH))


PLACEMENTS = ("R", "S0", "S1", "Partial")
PAIRS = [pair for pair in itertools.product(PLACEMENTS, repeat=2) if pair not in {("S0", "S0"), ("S1", "S1")}]


@pytest.mark.parametrize(("dp", "tp"), PAIRS)
def test_both_forms_of_a_layout_are_one(dp, tp):
    """Placements, the aliases that say the same, and this package's layout of the same code."""
    made = [{"R": hp.Replicate(), "S0": hp.Shard(0), "S1": hp.Shard(1), "Partial": hp.Partial()}[p] for p in (dp, tp)]
    layout = LAYOUT(*made)
    layout.placement_to_tensor_map(2)
    names = {placement: name for name, placement in zip(("dp", "tp"), (dp, tp), strict=True)}
    alias = LAYOUT(names.get("S0", "None"), names.get("S1", "None"))
    for name, placement in zip(("dp", "tp"), (dp, tp), strict=True):
        if placement == "Partial":
            alias.set_partial_by_dev_axis(name, "sum")
    assert layout == alias and alias.placements == made and layout.compact_str == alias.compact_str
    codes = " ".join(p.replace("artial", "") for p in (dp, tp))
    assert alias.mesh_layout() == layout.mesh_layout() == MeshLayout.coded(LAYOUT.mesh.pivot, codes)


@pytest.mark.parametrize("entries", [("dp", "None"), (("dp", "tp"), "None"), (("tp", "dp"), "None"), ("tp", "dp")])
def test_aliases_say_what_their_notation_says(entries):
    layout = LAYOUT(*entries)
    text = f"Layout((2, 4), ('dp', 'tp')){entries!r}".replace("'", '"')
    assert layout.mesh_layout() == notations["hyper_parallel.alias"].parse(text, layout.mesh.pivot)
    split = [len(e) if isinstance(e, tuple) else e != "None" for e in entries]
    assert layout.get_global_shape((3, 5))[1] == 5 * ({"dp": 2, "None": 1}[entries[1]] if split[1] else 1)
    copies = 8
    for axis, size in (("dp", 2), ("tp", 4)):
        copies //= size if axis in str(entries) else 1
    assert layout.repeat_num() == copies


def test_a_layout_keeps_the_placements_that_it_was_given():
    given = [hp.Shard(-1), hp.Partial("max")]
    layout = _build_layout(LAYOUT.mesh, given, 2)
    assert layout.placements == given and layout.tensor_map == (-1, 1) and layout.partial == [None, "max"]
    assert given[0].is_shard(-1) and given[1].is_partial("max") and hp.Replicate().is_replicate()


def test_a_stage_before_the_last_has_no_loss():
    with mock.patch("parallel_lab.hyper_parallel.layout.platform") as platform:
        platform.get_world_size.return_value = 16
        assert LAYOUT("dp").repeat_num() == -1


def test_a_script_finds_the_same_objects_under_hyper_parallels_names():
    code = """
from parallel_lab.hyper_parallel._pages import stand_in
stand_in()
import hyper_parallel
from hyper_parallel import Layout
from hyper_parallel.core.layout import Layout as same
from hyper_parallel.core.shard.ops.parallel_matmul import MatMulExtDistributedOp
import parallel_lab.hyper_parallel.layout as ours
print(Layout is same is ours.Layout, ours.__spec__.name)
try:
    import hyper_parallel.trainer
except ModuleNotFoundError as error:
    print("trainer" in str(error))
try:
    hyper_parallel.fully_sharded
except AttributeError as error:
    print("init_device_mesh" in str(error))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert found.stdout.split("\n")[:3] == ["True parallel_lab.hyper_parallel.layout", "True", "True"], found.stderr


def test_every_family_has_its_module():
    for family in FAMILIES:
        page = importlib.import_module(f"parallel_lab.hyper_parallel.core.shard.ops.parallel_{family}")
        assert page.DistributedOp().infer_layout is not None


def test_a_ragged_split_is_by_units():
    ragged = hp.RaggedShard((0, 1), (1, 0, 3))
    assert ragged.pieces(8) == ((0, 2), (2, 2), (2, 8)) and ragged.is_shard(1) and not ragged.is_shard(2)
    assert ragged == hp.RaggedShard([0, 1], [1, 0, 3]) and len({ragged, hp.RaggedShard((0,), (1,))}) == 2
    for dims, units in (((1,), (1,)), ((0,), (0, 0)), ((), (1,)), ((0,), (-1, 2))):
        with pytest.raises(ValueError):
            hp.RaggedShard(dims, units)
    with pytest.raises(TypeError):
        hp.RaggedShard(0, (1,))
    with pytest.raises(ValueError, match="units"):
        ragged.pieces(9)
