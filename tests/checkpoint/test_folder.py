"""Distributed checkpoints: a folder of rank files under one manifest."""

import json
import os
import re
import threading

import numpy as np
import pytest

from parallel_lab.base.errors import CheckpointCorrupt, CheckpointError, CheckpointFolderError, CheckpointWriteError
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train import checkpoint
from parallel_lab.train.checkpoint.folder import MANIFEST
from tests.checkpoint.drawn import DTYPES, draw_array, draw_layout, draw_shape, names, parts_of, same_bits
from tests.checkpoint.ranks import run_ranks


def save(folder, fulls, layouts, world_size, meta=None):
    """Save {name: full array} as `world_size` ranks, split by {name: layout}."""
    records = {name: parts_of(full, layouts[name], world_size) for name, full in fulls.items()}

    def rank_main(rank, barrier):
        own = {name: parts[rank] for name, parts in records.items()}
        return checkpoint.save_distributed(folder, own, rank=rank, world_size=world_size, barrier=barrier, meta=meta)

    return run_ranks(world_size, rank_main)


@pytest.mark.quick(4)
@pytest.mark.parametrize("case", range(40))
def test_a_world_of_any_size_is_loaded_by_one_of_any_other(tmp_path, rng, case):
    """M -> N ranks through files, several tensors with own layouts; expected: numpy's index into the original."""
    m, n = (int(rng.choice([1, 2, 3, 4, 6, 8])) for _ in range(2))
    fulls, sources, targets = {}, {}, {}
    for i in range(3):
        ndim = int(rng.integers(1, 4))
        sources[f"t{i}"] = draw_layout(rng, ndim, m) if rng.random() < 0.8 else None
        targets[f"t{i}"] = draw_layout(rng, ndim, n) if rng.random() < 0.8 else None
        given = [layout for layout in (sources[f"t{i}"], targets[f"t{i}"]) if layout is not None]
        given = given or [TensorLayout((1,), ((),) * ndim)]
        fulls[f"t{i}"] = draw_array(rng, draw_shape(rng, *given), str(rng.choice(DTYPES)))
    save(tmp_path / "d", fulls, sources, m)
    for rank in range(n):
        found = checkpoint.load_distributed(tmp_path / "d", targets, rank=rank)
        for name, full in fulls.items():
            layout = targets[name]
            expected = full if layout is None else np.ascontiguousarray(full[layout.slice_index(full.shape, rank)])
            assert same_bits(found[name].array, expected)
            assert (found[name].layout, found[name].global_shape) == (layout, full.shape)
    assert all(
        same_bits(record.array, fulls[name]) for name, record in checkpoint.load_distributed(tmp_path / "d").items()
    )


def test_only_the_files_that_are_needed_are_read(tmp_path, rng, monkeypatch):
    rows, full = TensorLayout((8,), (0, -1)), draw_array(rng, (16, 4))
    save(tmp_path / "d", {"w": full}, {"w": rows}, 8)
    read = []

    def noted(path, names):
        read.append(path.name)
        return checkpoint.read_checkpoint(path, names)

    monkeypatch.setattr("parallel_lab.train.checkpoint.format.read_checkpoint", noted)
    checkpoint.load_distributed(tmp_path / "d", {"w": TensorLayout((4,), (0, -1))}, rank=2)
    assert read == ["rank_4-1.ckpt", "rank_5-1.ckpt"]
    read.clear()
    checkpoint.load_distributed(tmp_path / "d", {"w": rows}, rank=3)
    assert read == ["rank_3-1.ckpt"]


def test_the_manifest_names_files_tensors_and_meta(tmp_path, rng):
    layout, full = TensorLayout((2, 2), (1, -1)), draw_array(rng, (4, 3))
    paths = save(tmp_path / "d", {"w": full, "step": np.int64(5)}, {"w": layout, "step": None}, 4, {"epoch": 2})
    assert set(paths) == {tmp_path / "d" / MANIFEST}
    manifest = checkpoint.read_manifest(tmp_path / "d")
    assert (manifest.world_size, manifest.save, manifest.meta) == (4, 1, {"epoch": 2})
    assert [file.name for file in manifest.files] == [f"rank_{rank}-1.ckpt" for rank in range(4)]
    assert all(file.size_bytes == (tmp_path / "d" / file.name).stat().st_size for file in manifest.files)
    w = manifest.tensors["w"]
    assert (w.layout, w.global_shape, w.dtype) == (layout, (4, 3), "float32")
    assert manifest.tensors["step"].holders == tuple((rank, rank) for rank in range(4))


def test_a_new_save_takes_the_place_of_the_old_one(tmp_path):
    for number in range(1, 4):
        world_size = [4, 2, 3][number - 1]
        save(tmp_path / "d", {"w": np.full(12, float(number))}, {"w": TensorLayout((world_size,), (0,))}, world_size)
        assert names(tmp_path / "d") == [MANIFEST, *[f"rank_{rank}-{number}.ckpt" for rank in range(world_size)]]
        assert checkpoint.load_distributed(tmp_path / "d")["w"].array.tolist() == [number] * 12


def test_load_checkpoint_puts_a_folder_together(tmp_path, rng):
    layout, full = TensorLayout((4,), (-1, 0)), draw_array(rng, (3, 8))
    save(tmp_path / "d", {"w": full}, {"w": layout}, 4, {"epoch": 9})
    loaded = checkpoint.load_checkpoint(tmp_path / "d")
    assert same_bits(loaded["w"].asnumpy(), full)
    assert loaded.meta == {"epoch": 9}


def test_one_rank_alone_needs_no_barrier(tmp_path):
    checkpoint.save_distributed(tmp_path / "deep" / "d", {"w": checkpoint.TensorRecord(np.arange(3))})
    assert checkpoint.load_distributed(tmp_path / "deep" / "d")["w"].array.tolist() == [0, 1, 2]


def test_tensors_that_only_some_ranks_have_are_found(tmp_path):
    """As of pipeline stages."""

    def rank_main(rank, barrier):
        own = {f"stage{rank}": checkpoint.TensorRecord(np.full(2, rank))}
        return checkpoint.save_distributed(tmp_path, own, rank=rank, world_size=3, barrier=barrier)

    run_ranks(3, rank_main)
    found = {name: record.array.tolist() for name, record in checkpoint.load_distributed(tmp_path).items()}
    assert found == {f"stage{r}": [r, r] for r in range(3)}


def test_some_names_can_be_loaded_alone(tmp_path):
    save(tmp_path / "d", {"a": np.zeros(2), "b": np.ones(2)}, {"a": None, "b": None}, 2)
    assert list(checkpoint.load_distributed(tmp_path / "d", names=["b"])) == ["b"]


# ---- when it does not go well ----


def test_a_broken_save_leaves_the_old_one_and_the_next_save_clears_up(tmp_path, monkeypatch):
    layout = {"w": TensorLayout((2,), (0,))}
    save(tmp_path / "d", {"w": np.zeros(4)}, layout, 2)

    def fails(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        # the manifest cannot be written, the rank files can
        broken.setattr("parallel_lab.train.checkpoint.folder.write_whole", fails)
        with pytest.raises(OSError, match="No space"):
            save(tmp_path / "d", {"w": np.ones(4)}, layout, 2)
    assert checkpoint.load_distributed(tmp_path / "d")["w"].array.tolist() == [0] * 4
    assert len(names(tmp_path / "d")) == 5
    save(tmp_path / "d", {"w": np.full(4, 2.0)}, layout, 2)
    assert names(tmp_path / "d") == [MANIFEST, "rank_0-3.ckpt", "rank_1-3.ckpt"]
    assert checkpoint.load_distributed(tmp_path / "d")["w"].array.tolist() == [2] * 4


def test_ranks_that_disagree_are_refused_and_the_old_save_stays(tmp_path):
    save(tmp_path, {"w": np.zeros(4)}, {"w": None}, 2)

    def rank_main(rank, barrier):
        own = {"w": checkpoint.TensorRecord(np.ones([(4,), (6,)][rank]))}
        return checkpoint.save_distributed(tmp_path, own, rank=rank, world_size=2, barrier=barrier)

    with pytest.raises(CheckpointError, match="One dtype, shape and layout on all ranks"):
        run_ranks(2, rank_main)
    assert checkpoint.load_distributed(tmp_path)["w"].array.tolist() == [0] * 4


LAYOUTS = {
    "whole": (4, None),
    "split_nowhere": (4, TensorLayout((4,), (-1, -1))),
    "rows_held_twice": (4, TensorLayout((2, 2), (1, -1))),
    "columns_held_by_four": (8, TensorLayout((4, 2), (-1, 0))),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_that_differ_are_refused_and_the_old_save_stays(tmp_path, rng, layout, dtype):
    """Each rank once holds one other bit than those that have the same part."""
    ranks, layout = LAYOUTS[layout]
    full = draw_array(rng, (8, 4), dtype)
    save(tmp_path, {"first": full, "w": full}, {"first": None, "w": layout}, ranks)
    for odd in range(ranks):
        parts = parts_of(full, layout, ranks)
        changed = np.array(parts[odd].array)
        changed.reshape(-1).view(np.uint8)[odd] ^= 1
        own = checkpoint.TensorRecord(changed, full.shape, layout, parts[odd].rank)

        def rank_main(rank, barrier, odd=odd, parts=parts, own=own):
            mine = {"first": checkpoint.TensorRecord(full), "w": own if rank == odd else parts[rank]}
            return checkpoint.save_distributed(tmp_path, mine, rank=rank, world_size=ranks, barrier=barrier)

        with pytest.raises(CheckpointError, match=r"tensor 'w' has other values on rank \d than on rank \d") as caught:
            run_ranks(ranks, rank_main)
        found = {int(word) for word in re.findall(r"on rank (\d)", str(caught.value))}
        alike = {r for r in range(ranks) if layout is None or layout.slice_index(full.shape, r) == slices(layout, odd)}
        assert len(found) == 2 and found <= alike and (odd in found or len(alike) > 2)
        assert same_bits(checkpoint.load_distributed(tmp_path)["w"].array, full)


def slices(layout, rank):
    return layout.slice_index((8, 4), rank)


def test_each_rank_may_have_statistics_of_its_own(tmp_path):
    def rank_main(rank, barrier):
        own = {"moving_mean": checkpoint.TensorRecord(np.full(3, float(rank)), own=True)}
        return checkpoint.save_distributed(tmp_path, own, rank=rank, world_size=3, barrier=barrier)

    run_ranks(3, rank_main)
    assert set(checkpoint.load_distributed(tmp_path)["moving_mean"].array.tolist()) <= {0.0, 1.0, 2.0}


def test_a_reader_alongside_a_writer_sees_whole_saves_only(tmp_path):
    """The writer removes the files of the save before; a reader that meant those starts again."""
    layouts, seen, stop, errors = {"w": TensorLayout((2,), (0,))}, set(), threading.Event(), []
    save(tmp_path / "d", {"w": np.zeros(1000)}, layouts, 2)

    def read():
        while not stop.is_set():
            try:
                seen.add(tuple(set(checkpoint.load_distributed(tmp_path / "d")["w"].array.tolist())))
            except Exception as error:
                errors.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 16):
            save(tmp_path / "d", {"w": np.full(1000, float(number))}, layouts, 2)
    finally:
        stop.set()
        reader.join()
    assert not errors
    assert all(len(values) == 1 for values in seen)


def test_a_folder_without_a_manifest_is_not_a_checkpoint(tmp_path):
    save(tmp_path / "d", {"w": np.zeros(4)}, {"w": None}, 2)
    (tmp_path / "d" / MANIFEST).unlink()
    with pytest.raises(CheckpointError, match="no save was ever finished"):
        checkpoint.load_distributed(tmp_path / "d")
    with pytest.raises(NotADirectoryError):
        checkpoint.load_distributed(tmp_path / "none")


def test_a_missing_part_is_corruption(tmp_path):
    layout = TensorLayout((2,), (0,))
    own = {"w": checkpoint.TensorRecord(np.zeros(2), (4,), layout, 0)}  # rank 1 has forgotten its part
    run_ranks(
        2, lambda r, b: checkpoint.save_distributed(tmp_path, own if r == 0 else {}, rank=r, world_size=2, barrier=b)
    )
    with pytest.raises(CheckpointCorrupt, match="the part of rank 1 is in none of the files"):
        checkpoint.load_distributed(tmp_path)


def test_what_cannot_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFolderError, match="it is a file"):
        checkpoint.save_distributed(tmp_path / "file", {})
    with pytest.raises(CheckpointError, match="no barrier"):
        checkpoint.save_distributed(tmp_path / "d", {}, rank=0, world_size=2)
    with pytest.raises(CheckpointError, match="rank 2 of 2"):
        checkpoint.save_distributed(tmp_path / "d", {}, rank=2, world_size=2, barrier=lambda: None)
    with pytest.raises(CheckpointWriteError):
        checkpoint.save_distributed("/proc/none/d", {})
    save(tmp_path / "d", {"w": np.zeros((4, 6))}, {"w": None}, 1)
    with pytest.raises(CheckpointError, match="cannot be split 5 ways"):
        checkpoint.load_distributed(tmp_path / "d", {"w": TensorLayout((5,), (0, -1))})
    with pytest.raises(CheckpointError, match="no tensor 'v'"):
        checkpoint.load_distributed(tmp_path / "d", {"v": None})
    with pytest.raises(CheckpointError, match="meta"):
        checkpoint.save_distributed(tmp_path / "e", {}, meta={"x": object()})


def test_a_manifest_for_many_ranks_stays_small(tmp_path):
    tensors = [f"t{i}" for i in range(20)]
    save(tmp_path, dict.fromkeys(tensors, np.zeros(64)), dict.fromkeys(tensors, TensorLayout((16,), (0,))), 16)
    content = json.loads((tmp_path / MANIFEST).read_text())
    assert {one["holders"] for one in content["tensors"].values()} == {"all"}
    assert os.path.getsize(tmp_path / MANIFEST) < 8000


def test_what_a_save_left_that_did_not_end_is_removed_before_the_next_one_writes(tmp_path, monkeypatch):
    """On a full disk there was no room for the next, smaller save until somebody deleted the files by hand."""
    from parallel_lab.train.checkpoint import folder as module

    record = {"w": checkpoint.TensorRecord(np.ones(3, np.float32))}

    def save():
        return checkpoint.save_distributed(tmp_path, record, rank=0, world_size=1, barrier=lambda: None)

    save()
    litter = [tmp_path / name for name in ("rank_0-2.ckpt", "rank_1-2.ckpt", "rank_3-5.ckpt")]
    for path in litter:
        path.write_bytes(b"x" * 100)
    there = []
    write = module.file_format.write_checkpoint
    noted = lambda *given, **more: (there.extend(os.listdir(tmp_path)), write(*given, **more))[1]  # noqa: E731
    monkeypatch.setattr(module.file_format, "write_checkpoint", noted)
    save()
    assert sorted(there) == ["manifest.json", "rank_0-1.ckpt"]  # the whole one stays until the new one counts
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "rank_0-6.ckpt"]


def test_a_damaged_manifest_keeps_the_files_it_may_have_named(tmp_path):
    record = {"w": checkpoint.TensorRecord(np.ones(3, np.float32))}
    checkpoint.save_distributed(tmp_path, record, rank=0, world_size=1, barrier=lambda: None)
    (tmp_path / MANIFEST).write_text("{")
    from parallel_lab.train.checkpoint.folder import _remove_unfinished

    _remove_unfinished(tmp_path)
    assert "rank_0-1.ckpt" in os.listdir(tmp_path)
