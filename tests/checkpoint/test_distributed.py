"""merge_sliced_parameter, load_distributed_checkpoint: rows of oracle and documentation, any layout to any other."""

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, nn
from parallel_lab.base.errors import CheckpointError, CheckpointKeyError, CheckpointTypeError
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_auto_parallel_context
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.mindspore._checkpoint import (
    TensorRecord,
    build_searched_strategy,
    load_distributed_checkpoint,
    merge_sliced_parameter,
    read_checkpoint,
    save_checkpoint,
    write_checkpoint,
)
from tests.checkpoint.drawn import draw_array, draw_layout, draw_shape, parts_of, same_bits, strategy_file
from tests.checkpoint.worlds import as_rank


def parameters(arrays, name="w"):
    return [Parameter(Tensor(np.array(array)), name=name) for array in arrays]


# ---- merging ----


def test_the_example_of_the_documentation():
    """[[1,2,3,4],[5,6,7,8]] split [2, 1] on two devices: one row each (MindSpore: save_load_model_hybrid_parallel)."""
    slices = parameters(np.array([[[1.0, 2, 3, 4]], [[5.0, 6, 7, 8]]], np.float32))
    layout = TensorLayout.from_strategy((2, 1), 2)
    for strategy in ({"w": layout}, {"w": [[2, 1], [1, -1]]}, None):
        merged = merge_sliced_parameter(slices, strategy)
        assert merged.asnumpy().tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
        assert (merged.name, merged.dtype, merged.layout) == ("w", np.float32, None)


def test_without_a_strategy_slices_are_joined_along_dim_0():
    """Four slices of 3 give 12 elements in the order of the ranks (MindSpore's example for merge_sliced_parameter)."""
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((4, 3))
    merged = merge_sliced_parameter(parameters(arrays, "network.embedding_table"))
    assert merged.name == "network.embedding_table" and same_bits(merged.asnumpy(), arrays.reshape(12))


@pytest.mark.quick(10)
@pytest.mark.parametrize("case", range(30))
def test_slices_of_any_layout_are_merged(rng, case):
    layout = draw_layout(rng, int(rng.integers(1, 4)))
    full = draw_array(rng, draw_shape(rng, layout))
    slices = parameters([record.array for record in parts_of(full, layout, 0)])
    assert same_bits(merge_sliced_parameter(slices, {"w": layout}).asnumpy(), full)


def test_the_last_rank_wins_among_equal_slices():
    layout = TensorLayout((2, 2), (1,))
    merged = merge_sliced_parameter(parameters(np.repeat(np.arange(4.0)[:, None], 2, 1)), {"w": layout})
    assert merged.asnumpy().tolist() == [1, 1, 3, 3]


def test_flags_of_the_parameter_are_kept():
    slices = [Parameter(Tensor([1.0]), name="w", requires_grad=False, layerwise_parallel=True)] * 2
    merged = merge_sliced_parameter(slices)
    assert (merged.requires_grad, merged.layerwise_parallel) == (False, True)


ONE = [[1.0, 2.0]]
MERGE_ERRORS = [
    (["w"], TypeError, "sliced_parameters='w'"),  # oracle/errors.json, merge_sliced_not_list
    ([parameters(ONE), {"w": 3}], ValueError, "strategy\\['w'\\]: it is 3"),  # merge_sliced_strategy_bad
    ([[]], ValueError, "empty"),
    ([[Tensor([1.0])]], TypeError, r"sliced_parameters\[0\]"),
    ([parameters(ONE), [1]], TypeError, r"strategy=\[1\]"),
    ([parameters(ONE) + parameters(ONE, "v")], ValueError, "slice 1 is 'v'"),
    ([parameters(ONE) + parameters([[1.0]])], ValueError, r"\(1,\)"),
    ([parameters(ONE), {"v": TensorLayout((1,), (-1,))}], KeyError, "no entry for 'w'"),
    ([parameters(ONE), {"w": TensorLayout((2,), (0,))}], ValueError, "1 slices. 2, one per rank"),
    ([parameters(ONE * 2), {"w": TensorLayout((2,), (0, -1))}], ValueError, "dims"),
    ([parameters([1.0, 2.0])], ValueError, "is a number"),
]


@pytest.mark.parametrize(("given", "kind", "said"), MERGE_ERRORS, ids=range(len(MERGE_ERRORS)))
def test_errors_are_of_mindspores_classes(given, kind, said):
    with pytest.raises(kind, match=said) as caught:
        merge_sliced_parameter(*given)
    assert isinstance(caught.value, CheckpointError)
    assert not str(caught.value).startswith(("'", '"'))  # no repr of the text, as a KeyError shows


# ---- strategy files ----


def test_build_searched_strategy_gives_layouts(tmp_path):
    layouts = {"w": TensorLayout((2, 2), (1, 0)), "b": TensorLayout((4,), (0,))}
    assert build_searched_strategy(strategy_file(tmp_path / "s.ckpt", layouts, {"w": (4, 4), "b": (8,)}, 4)) == layouts
    with pytest.raises(TypeError):
        build_searched_strategy(3)
    with pytest.raises(ValueError, match="no such strategy file"):
        build_searched_strategy("/nope/src.ckpt")


# ---- loading into a network ----


class Net(nn.Cell):
    def __init__(self, shape):
        super().__init__()
        self.w = Parameter(Tensor(np.zeros(shape, np.float32)), name="w")
        self.s = Parameter(Tensor(np.zeros(3, np.float32)), name="s")

    def construct(self, x):
        return x


def write_ranks(folder, full, layout, world_size, bare=False):
    """One file per rank with the parts of w; bare: as plain arrays that know of no whole."""
    files = []
    for rank in range(world_size):
        part = parts_of(full, layout, world_size)[rank]
        tensors = {"w": TensorRecord(part.array) if bare else part, "s": TensorRecord(np.arange(3, dtype=np.float32))}
        files.append(str(write_checkpoint(folder / f"r{rank}.ckpt", tensors)))
    return files


@pytest.mark.quick(3)
@pytest.mark.parametrize("case", range(25))
def test_files_of_any_run_go_into_a_network_of_any_other(tmp_path, rng, case):
    m, n = (int(rng.choice([1, 2, 4, 6, 8])) for _ in range(2))
    src, dst = draw_layout(rng, 2, m), draw_layout(rng, 2, n)
    full = draw_array(rng, draw_shape(rng, src, dst))
    files = write_ranks(tmp_path, full, src, m)
    for rank in range(n):
        with as_rank(rank, n):
            net = Net(full.shape)
            load_distributed_checkpoint(net, files, {"w": dst})
            expected = full[dst.slice_index(full.shape, rank)]
            assert same_bits(net.w.asnumpy(), np.ascontiguousarray(expected))
            assert net.w.full_shape == full.shape
            assert net.s.asnumpy().tolist() == [0, 1, 2]


def test_without_a_predict_strategy_everything_is_merged(tmp_path, rng):
    layout, full = TensorLayout((2, 2), (0, 1)), draw_array(rng, (4, 6))
    net = Net((4, 6))
    assert load_distributed_checkpoint(net, write_ranks(tmp_path, full, layout, 4)) is None
    assert net.w.layout is None and same_bits(net.w.asnumpy(), full)


def test_a_network_that_is_cut_already_gets_its_slices(tmp_path, rng):
    src, own, full = TensorLayout((2, 2), (0, 1)), TensorLayout((2,), (0, -1)), draw_array(rng, (4, 6))
    files = write_ranks(tmp_path, full, src, 4)
    with as_rank(1, 2):
        net = Net((4, 6))
        net.w.hold(np.zeros((2, 6), np.float32), own)
        load_distributed_checkpoint(net, files)
        assert net.w.layout == own and same_bits(net.w.asnumpy(), full[2:])


def test_an_unchanged_layout_reads_its_own_file_only(tmp_path, rng, monkeypatch):
    layout, full = TensorLayout((4,), (0, -1)), draw_array(rng, (8, 4))
    files, read = write_ranks(tmp_path, full, layout, 4), []
    path = "parallel_lab.train.checkpoint.distributed.read_checkpoint"
    monkeypatch.setattr(path, lambda p, n: (read.append(p.name), read_checkpoint(p, n))[1])
    with as_rank(2, 4):
        load_distributed_checkpoint(Net((8, 4)), files, {"w": layout})
    assert read == ["r2.ckpt"]


@pytest.mark.parametrize("by", ["argument", "context"])
def test_a_strategy_file_explains_bare_slices(tmp_path, rng, by):
    layout, full = TensorLayout((2, 2), (0, 1)), draw_array(rng, (4, 6))
    files = write_ranks(tmp_path, full, layout, 4, bare=True)
    strategy = strategy_file(tmp_path / "s.json", {"w": layout}, {"w": (4, 6)}, 4)
    net = Net((4, 6))
    try:
        if by == "context":
            set_auto_parallel_context(strategy_ckpt_load_file=strategy)
        load_distributed_checkpoint(net, files, train_strategy_filename=strategy if by == "argument" else None)
    finally:
        reset_auto_parallel_context()
    assert same_bits(net.w.asnumpy(), full)


def test_optimizer_states_go_with_their_parameters(tmp_path, rng):
    class Trainer(nn.Cell):
        def __init__(self):
            super().__init__()
            self.network = Net((4, 6))
            self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)

    layout, full, moments = TensorLayout((2, 2), (0, 1)), draw_array(rng, (4, 6)), draw_array(rng, (4, 6))
    files = []
    for rank in range(4):
        given = {"network.w": parts_of(full, layout, 4)[rank], "moments.network.w": parts_of(moments, layout, 4)[rank]}
        given["network.s"] = TensorRecord(np.zeros(3, np.float32))
        given["moments.network.s"] = TensorRecord(np.ones(3, np.float32))
        given |= {"learning_rate": TensorRecord(np.float64(0.5)), "global_step": TensorRecord(np.int64(7))}
        files.append(write_checkpoint(tmp_path / f"{rank}.ckpt", given))
    target = TensorLayout((2,), (-1, 0))
    with as_rank(1, 2):
        trainer = Trainer()
        load_distributed_checkpoint(trainer, files, {"network.w": target})
        assert same_bits(trainer.network.w.asnumpy(), np.ascontiguousarray(full[:, 3:]))
        assert same_bits(trainer.optimizer.states["network.w"]["moments"], np.ascontiguousarray(moments[:, 3:]))
        assert trainer.optimizer.state_layouts == {"network.w": target}
        assert (trainer.optimizer.global_step, trainer.optimizer.learning_rate) == (7, 0.5)


def test_parameters_that_are_in_no_file_are_named_in_a_warning(tmp_path):
    file = write_checkpoint(tmp_path / "x.ckpt", {"w": TensorRecord(np.ones((2, 2), np.float32))})
    net = Net((2, 2))
    with pytest.warns(UserWarning, match="1 parameters are in none of the files.*'s'"):
        load_distributed_checkpoint(net, [file])
    assert net.w.asnumpy().tolist() == [[1, 1], [1, 1]]


@pytest.fixture
def saved(tmp_path, rng):
    layout, full = TensorLayout((2,), (0, -1)), draw_array(rng, (4, 6))
    files = write_ranks(tmp_path, full, layout, 2)
    strategy_file(tmp_path / "s.json", {"w": layout}, {"w": (4, 6)}, 2)
    strategy_file(tmp_path / "columns.json", {"w": TensorLayout((2,), (-1, 0))}, {"w": (4, 6)}, 2)
    save_checkpoint(Net((4, 6)), tmp_path / "other.ckpt")
    (tmp_path / "x.txt").write_text("")
    return tmp_path, files


# what comes behind the network, from the folder d and its files f; the network, if it is another than (4, 6)
LOAD_ERRORS = [
    (lambda d, f: [f], CheckpointTypeError, "network", "net"),
    (lambda d, f: [f], RuntimeError, r"shape \(4, 6\)", Net((4, 5))),
    (lambda d, f: [f[0]], CheckpointTypeError, "checkpoint_filenames"),
    (lambda d, f: [[f[0], 3]], CheckpointTypeError, r"checkpoint_filenames\[1\]"),
    (lambda d, f: [f, [1]], CheckpointTypeError, "predict_strategy"),
    (lambda d, f: [[]], ValueError, "empty"),
    (lambda d, f: [f[:1]], ValueError, "1 files. 2, one per rank"),
    (lambda d, f: [[*f, str(d / "other.ckpt")]], ValueError, "other.ckpt holds 'w'"),
    (lambda d, f: [[f[0], f[0]]], ValueError, "both hold the part of rank 0"),
    (lambda d, f: [[f[0], str(d / "none.ckpt")]], ValueError, "does not exist"),
    (lambda d, f: [[f[0], str(d / "x.txt")]], ValueError, "does not end with"),
    (lambda d, f: [f, None, str(d / "none.json")], ValueError, "no such strategy file"),
    (lambda d, f: [f, None, str(d / "columns.json")], ValueError, "the strategy says"),
    (lambda d, f: [f, {"w": 3}], ValueError, r"strategy\['w'\]"),
]


@pytest.mark.parametrize("case", LOAD_ERRORS, ids=range(len(LOAD_ERRORS)))
def test_what_does_not_fit_is_refused_by_the_documented_class(saved, case):
    given, kind, said, *network = case
    with pytest.raises(kind, match=said) as caught:
        load_distributed_checkpoint(*(network or [Net((4, 6))]), *given(*saved))
    assert isinstance(caught.value, CheckpointError)


def test_a_key_error_reads_like_the_others():
    assert str(CheckpointKeyError("w is missing")) == "w is missing"
