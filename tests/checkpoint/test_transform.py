"""Checkpoint files re-sliced without a network: any strategy and number of ranks to any other."""

import numpy as np
import pytest

from parallel_lab.base.errors import CheckpointError, CheckpointTypeError
from parallel_lab.base.settings.context import set_compat
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.mindspore._checkpoint import (
    TensorRecord,
    build_searched_strategy,
    load_checkpoint,
    merge_pipeline_strategys,
    rank_list_for_transform,
    read_checkpoint,
    save_distributed,
    transform_checkpoint_by_rank,
    transform_checkpoints,
    write_checkpoint,
)
from tests.checkpoint.drawn import draw_array, draw_layout, draw_shape, names, parts_of, same_bits, strategy_file
from tests.checkpoint.ranks import run_ranks


def write_ranks(folder, fulls, layouts, world_size, name="net-3_9.ckpt", bare=False):
    for rank in range(world_size):
        (folder / f"rank_{rank}").mkdir(parents=True, exist_ok=True)
        own = {n: parts_of(full, layouts.get(n), world_size)[rank] for n, full in fulls.items()}
        write_checkpoint(
            folder / f"rank_{rank}" / name, {n: TensorRecord(r.array) for n, r in own.items()} if bare else own
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", range(40))
def test_any_strategy_becomes_any_other(tmp_path, rng, case):
    """Parameters, states, a scalar, M -> N ranks; expected: numpy's index into the original. Half are bare slices."""
    m, n = (int(rng.choice([1, 2, 3, 4, 6, 8])) for _ in range(2))
    src, dst, shapes, fulls = {}, {}, {}, {"step": np.asarray(np.float32(case))}
    for name in ("w", "v"):
        ndim = int(rng.integers(1, 4))
        src[name], dst[name] = draw_layout(rng, ndim, m), draw_layout(rng, ndim, n)
        shapes[name] = draw_shape(rng, src[name], dst[name])
        fulls[name], fulls[f"moments.{name}"] = draw_array(rng, shapes[name]), draw_array(rng, shapes[name])
    bare = bool(rng.integers(2))
    write_ranks(
        tmp_path / "src", fulls, src | {f"moments.{name}": layout for name, layout in src.items()}, m, bare=bare
    )
    source = strategy_file(tmp_path / "src.json", src, shapes, m) if bare or rng.integers(2) else None
    target = strategy_file(tmp_path / "dst.ckpt", dst, shapes, n)
    transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "dst"), "new", source, target)
    assert names(tmp_path / "dst") == sorted(f"rank_{rank}/new{rank}.ckpt" for rank in range(n))
    for rank in range(n):
        found = read_checkpoint(tmp_path / "dst" / f"rank_{rank}" / f"new{rank}.ckpt").tensors
        assert found.keys() == fulls.keys()
        for name, full in fulls.items():
            layout = dst.get(name.removeprefix("moments."))
            expected = full if layout is None else np.ascontiguousarray(full[layout.slice_index(full.shape, rank)])
            assert same_bits(found[name].array, expected), name
            assert found[name].global_shape == full.shape
    transform_checkpoints(tmp_path / "dst", tmp_path / "whole", "w")  # what the files say, gathered
    assert names(tmp_path / "whole") == ["rank_0/w0.ckpt"]
    whole = load_checkpoint(tmp_path / "whole" / "rank_0" / "w0.ckpt")
    assert all(same_bits(p.asnumpy(), fulls[name]) for name, p in whole.items())


def test_the_needed_ranks_are_listed_and_are_enough(tmp_path, rng):
    shapes = {"w": (8, 8)}
    source = strategy_file(tmp_path / "src.json", {"w": TensorLayout((8,), (0, -1))}, shapes, 8)
    target = strategy_file(tmp_path / "dst.json", {"w": TensorLayout((4,), (0, -1))}, shapes, 4)
    assert [rank_list_for_transform(rank, source, target) for rank in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert rank_list_for_transform(0, source, None) == list(range(8))
    assert rank_list_for_transform(3, None, target) == [0]
    assert rank_list_for_transform(0) == [0]
    full = draw_array(rng, (8, 8))
    write_ranks(tmp_path / "src", {"w": full}, {"w": TensorLayout((8,), (0, -1))}, 8)
    for rank in range(4):
        needed = rank_list_for_transform(rank, source, target)
        files = {r: str(tmp_path / "src" / f"rank_{r}" / "net-3_9.ckpt") for r in needed}
        transform_checkpoint_by_rank(rank, files, str(tmp_path / f"new/{rank}.ckpt"), source, target)
        found = read_checkpoint(tmp_path / f"new/{rank}.ckpt").tensors["w"]
        assert same_bits(found.array, full[2 * rank : 2 * rank + 2]) and found.rank == rank


def test_one_of_equal_slices_is_read_from_a_rank_that_is_needed_anyway(tmp_path, rng):
    """Rank 1 of 2 needs the parts 4 to 7 of w, which one rank each has, and 2 and 3 of b: on ranks 2 and 6, 3 and 7."""
    layouts = {"b": TensorLayout((2, 4), (0, -1)), "w": TensorLayout((8,), (0, -1))}
    shapes, halves = dict.fromkeys(layouts, (8, 8)), dict.fromkeys(layouts, TensorLayout((2,), (0, -1)))
    files = strategy_file(tmp_path / "src", layouts, shapes, 8), strategy_file(tmp_path / "dst", halves, shapes, 2)
    assert rank_list_for_transform(1, *files) == [4, 5, 6, 7]
    fulls = {name: draw_array(rng, (8, 8)) for name in layouts}
    write_ranks(tmp_path / "src_files", fulls, layouts, 8)
    given = {rank: str(tmp_path / f"src_files/rank_{rank}/net-3_9.ckpt") for rank in (4, 5, 6, 7)}
    transform_checkpoint_by_rank(1, given, str(tmp_path / "new.ckpt"), *files)
    found = read_checkpoint(tmp_path / "new.ckpt").tensors
    assert all(same_bits(found[name].array, fulls[name][4:]) for name in layouts)


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", range(25))
def test_the_listed_ranks_are_enough_for_parameters_in_any_layouts(tmp_path, rng, case):
    layouts = {name: draw_layout(rng, 2, 8) for name in "abc"}
    wanted = {name: draw_layout(rng, 2, 4) for name in "abc"}
    shapes = {name: draw_shape(rng, layouts[name], wanted[name]) for name in "abc"}
    files = strategy_file(tmp_path / "src", layouts, shapes, 8), strategy_file(tmp_path / "dst", wanted, shapes, 4)
    fulls = {name: draw_array(rng, shapes[name]) for name in "abc"}
    write_ranks(tmp_path / "src_files", fulls, layouts, 8)
    for rank in range(4):
        needed = rank_list_for_transform(rank, *files)
        given = {n: str(tmp_path / f"src_files/rank_{n}/net-3_9.ckpt") for n in needed}
        transform_checkpoint_by_rank(rank, given, str(tmp_path / "new.ckpt"), *files)
        found = read_checkpoint(tmp_path / "new.ckpt").tensors
        for name, full in fulls.items():
            assert same_bits(found[name].array, full[wanted[name].slice_index(full.shape, rank)])


@pytest.mark.parametrize(("compat", "expected"), [("seeds", [0]), ("2.10", [0, 4])])
def test_2_10_names_the_ranks_of_whole_groups(tmp_path, compat, expected):
    """Two column halves, each on 4 ranks, to 4 row blocks of 2 halves: rank 0 has what it needs, but MindSpore gathers
    the columns first, over {0, 4}, and then slices."""
    shapes = {"w": (16, 16)}
    layouts = [TensorLayout.from_strategy(cuts, 8) for cuts in ((1, 2), (4, 2))]
    files = [strategy_file(tmp_path / f"{i}.json", {"w": one}, shapes, 8) for i, one in enumerate(layouts)]
    set_compat(compat)
    try:
        assert rank_list_for_transform(0, *files) == expected
    finally:
        set_compat("seeds")


def test_strategy_files_of_stages_become_one(tmp_path):
    one, other = TensorLayout((8,), (0, -1)), TensorLayout((2, 4), (1, 0))
    folder = tmp_path / "stages"
    strategy_file(folder / "0.ckpt", {"a": one}, {"a": (8, 8)}, 8)
    strategy_file(folder / "1.ckpt", {"a": one, "b": other}, dict.fromkeys("ab", (8, 8)), 8)
    merge_pipeline_strategys(str(folder), str(tmp_path / "all.ckpt"))
    assert build_searched_strategy(str(tmp_path / "all.ckpt")) == {"a": one, "b": other}
    with pytest.raises(NotADirectoryError, match="missing"):
        merge_pipeline_strategys(str(tmp_path / "missing"), str(tmp_path / "all.ckpt"))
    with pytest.raises(TypeError, match="src_strategy_dirs"):
        merge_pipeline_strategys(3, str(tmp_path / "all.ckpt"))
    strategy_file(folder / "2.ckpt", {"b": one}, {"b": (8, 8)}, 8)
    with pytest.raises(ValueError, match=r"2\.ckpt says of 'b'"):
        merge_pipeline_strategys(str(folder), str(tmp_path / "all.ckpt"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no file"):
        merge_pipeline_strategys(str(tmp_path / "empty"), str(tmp_path / "all.ckpt"))


def test_the_last_of_several_files_is_taken_by_its_numbers(tmp_path):
    for step in (9, 10):
        full, layouts = {"w": np.full(4, float(step))}, {"w": TensorLayout((2,), (0,))}
        write_ranks(tmp_path / "src", full, layouts, 2, name=f"net-1_{step}.ckpt")
    transform_checkpoints(tmp_path / "src", tmp_path / "dst", "x")
    assert load_checkpoint(tmp_path / "dst" / "rank_0" / "x0.ckpt")["w"].asnumpy().tolist() == [10] * 4


def test_the_folder_of_a_distributed_save_is_a_source_too(tmp_path, rng):
    layout, full = TensorLayout((4,), (0,)), draw_array(rng, (12,))
    records = parts_of(full, layout, 4)
    run_ranks(4, lambda r, b: save_distributed(tmp_path / "src", {"w": records[r]}, rank=r, world_size=4, barrier=b))
    target = strategy_file(tmp_path / "dst.json", {"w": TensorLayout((3,), (0,))}, {"w": (12,)}, 3)
    transform_checkpoints(tmp_path / "src", tmp_path / "dst", "x", None, target)
    for rank in range(3):
        found = load_checkpoint(tmp_path / "dst" / f"rank_{rank}" / f"x{rank}.ckpt")
        assert same_bits(found["w"].asnumpy(), full[4 * rank : 4 * rank + 4])


@pytest.fixture
def given(tmp_path):
    layout = TensorLayout((2,), (0,))
    write_ranks(tmp_path / "src", {"w": np.zeros(4, np.float32)}, {"w": layout}, 2)
    strategy_file(tmp_path / "s.json", {"w": layout}, {"w": (4,)}, 2)
    strategy_file(tmp_path / "s3.json", {"w": TensorLayout((3,), (0,))}, {"w": (6,)}, 3)
    strategy_file(tmp_path / "empty.json", {}, {}, 2)
    (tmp_path / "none").mkdir()
    (tmp_path / "hole" / "rank_1").mkdir(parents=True)
    write_checkpoint(tmp_path / "hole" / "rank_1" / "x.ckpt", {})
    (tmp_path / "bare" / "rank_0").mkdir(parents=True)
    return tmp_path


def source(d, rank=0):
    return {rank: str(d / "src" / f"rank_{rank}" / "net-3_9.ckpt")}


ERRORS = [
    (
        lambda d: rank_list_for_transform(0, "/nope/src.ckpt", "/nope/dst.ckpt"),
        ValueError,
        "/nope/src.ckpt: there is no such strategy file",
    ),
    (lambda d: rank_list_for_transform(0, 3), TypeError, "src_strategy_file"),
    (lambda d: rank_list_for_transform(0, None, 3), TypeError, "dst_strategy_file"),
    (lambda d: rank_list_for_transform(2, None, str(d / "s.json")), ValueError, "rank_id=2. 0 to 1"),
    (lambda d: rank_list_for_transform(0, str(d / "empty.json")), ValueError, "no parameters"),
    (lambda d: rank_list_for_transform(0, str(d / "s.json"), str(d / "s3.json")), ValueError, r"shape \(4,\).*\(6,\)"),
    (lambda d: transform_checkpoint_by_rank(0, [1], "x.ckpt"), TypeError, "checkpoint_files_map"),
    (lambda d: transform_checkpoint_by_rank(0, source(d), 3), TypeError, "save_checkpoint_file_name"),
    (lambda d: transform_checkpoint_by_rank(0, source(d), "x"), ValueError, "'.ckpt'"),
    (lambda d: transform_checkpoint_by_rank(0, {0: "/nope.ckpt"}, "x.ckpt"), ValueError, "missing"),
    (lambda d: transform_checkpoint_by_rank(0, {"0": "x"}, "x.ckpt"), TypeError, "checkpoint_files_map has '0'"),
    (lambda d: transform_checkpoint_by_rank(0, {}, "x.ckpt"), ValueError, "empty"),
    (
        lambda d: transform_checkpoint_by_rank(0, source(d), str(d / "x.ckpt")),
        ValueError,
        "the part of rank 1 is in none",
    ),
    (
        lambda d: transform_checkpoint_by_rank(0, source(d), str(d / "x.ckpt"), None, str(d / "s3.json")),
        ValueError,
        r"shape \(4,\), and \(6,\)",
    ),
    (lambda d: transform_checkpoints(3, "x", "p"), TypeError, "src_checkpoints_dir"),
    (lambda d: transform_checkpoints(str(d), "x", "../p"), ValueError, "not allowed"),
    (lambda d: transform_checkpoints(str(d / "nope"), "x", "p"), NotADirectoryError, "is not a folder"),
    (lambda d: transform_checkpoints(str(d / "none"), "x", "p"), ValueError, "folders of ranks"),
    (lambda d: transform_checkpoints(str(d / "hole"), "x", "p"), ValueError, "folders of ranks"),
    (lambda d: transform_checkpoints(str(d / "bare"), "x", "p"), ValueError, "no .ckpt file"),
    (lambda d: transform_checkpoints(str(d / "src"), "x", "p", str(d / "s3.json")), ValueError, "rank_0 to rank_2"),
]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("call", "kind", "said"), ERRORS, ids=range(len(ERRORS)))
def test_what_does_not_fit_is_refused_by_the_documented_class(given, monkeypatch, call, kind, said):
    monkeypatch.chdir(given)
    before = names(given)
    with pytest.raises(kind, match=said) as caught:
        call(given)
    assert isinstance(caught.value, CheckpointError)
    assert isinstance(caught.value, CheckpointTypeError) is (kind is TypeError)
    assert names(given) == before
