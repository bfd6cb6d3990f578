"""save_checkpoint, load_checkpoint, load_param_into_net: MindSpore's arguments, results and errors."""

import os
import threading

import numpy as np
import pytest
import safetensors.numpy

from parallel_lab import Parameter, Tensor, nn
from parallel_lab.base.errors import CheckpointCorrupt, CheckpointError, CheckpointTypeError, NotBuiltYet
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.train.checkpoint import (
    async_ckpt_thread_status,
    describe_checkpoint,
    load_checkpoint,
    load_param_into_net,
    read_checkpoint,
    save_checkpoint,
    wait_for_saves,
)
from tests.checkpoint.drawn import same_bits
from tests.checkpoint.worlds import as_rank
from tests.nets import cell


class Net(nn.Cell):
    def __init__(self, seed=0, dtype=np.float32):
        super().__init__()
        draw = np.random.default_rng(seed)
        self.w = Parameter(Tensor(draw.standard_normal((6, 4)).astype(dtype)), name="w")
        self.b = Parameter(Tensor(draw.standard_normal(4).astype(dtype)), name="b")
        self.mean = Parameter(Tensor(draw.standard_normal(4).astype(dtype)), name="mean", requires_grad=False)

    def construct(self, x):
        return x @ self.w + self.b


def outer(seed=0):
    return cell(lambda net, x: net.inner(x), inner=Net(seed))


def values(net):
    return {p.name: np.array(p.asnumpy()) for p in net.get_parameters()}


def same_values(one, other):
    return one.keys() == other.keys() and all(same_bits(one[name], other[name]) for name in one)


# ---- there and back ----


def test_a_network_comes_back_bit_for_bit(tmp_path):
    net, other = Net(1), Net(2)
    assert save_checkpoint(net, str(tmp_path / "x.ckpt")) is None
    loaded = load_checkpoint(str(tmp_path / "x.ckpt"))
    assert list(loaded) == ["w", "b", "mean"]
    assert all(isinstance(p, Parameter) and p.name == name for name, p in loaded.items())
    assert load_param_into_net(other, loaded) == ([], [])
    assert same_values(values(other), values(net))


def test_load_checkpoint_can_load_into_the_network_at_once(tmp_path):
    net, other = Net(1), Net(2)
    save_checkpoint(net, tmp_path / "x")
    assert (tmp_path / "x.ckpt").exists()  # the ending was added
    load_checkpoint(tmp_path / "x.ckpt", other)
    assert same_values(values(other), values(net))


def test_what_is_loaded_does_not_share_memory(tmp_path):
    net, other = Net(1), Net(2)
    save_checkpoint(net, tmp_path / "x.ckpt")
    loaded = load_checkpoint(tmp_path / "x.ckpt")
    load_param_into_net(other, loaded)
    loaded["w"].asnumpy()[:] = 0
    assert same_values(values(other), values(net))


SAVED = {
    "cell": lambda net: net,
    "list-of-parameters": lambda net: list(net.get_parameters()),
    "list-of-dicts": lambda net: [{"name": p.name, "data": p} for p in net.get_parameters()],
    "list-of-tensors": lambda net: [{"name": p.name, "data": Tensor(p.asnumpy())} for p in net.get_parameters()],
    "dict": lambda net: {p.name: p for p in net.get_parameters()},
}


@pytest.mark.parametrize("form", SAVED.values(), ids=SAVED)
def test_every_form_of_save_obj_holds_the_same(tmp_path, form):
    net = Net(3)
    save_checkpoint(form(net), tmp_path / "x.ckpt")
    assert same_values({name: p.asnumpy() for name, p in load_checkpoint(tmp_path / "x.ckpt").items()}, values(net))


def test_trainable_params_alone(tmp_path):
    net = Net()
    save_checkpoint(net.trainable_params(), tmp_path / "x.ckpt")
    assert list(load_checkpoint(tmp_path / "x.ckpt")) == ["w", "b"]


def test_what_was_loaded_can_be_saved_again(tmp_path):
    save_checkpoint(Net(4), tmp_path / "x.ckpt", append_dict={"note": "hi", "epoch": 3})
    save_checkpoint(load_checkpoint(tmp_path / "x.ckpt"), tmp_path / "y.ckpt")
    first, second = load_checkpoint(tmp_path / "x.ckpt"), load_checkpoint(tmp_path / "y.ckpt")
    assert first.pop("note") == second.pop("note") == "hi"
    assert same_values({n: p.asnumpy() for n, p in first.items()}, {n: p.asnumpy() for n, p in second.items()})


def test_append_dict_keeps_numbers_tensors_and_texts(tmp_path):
    given = {"epoch": 7, "loss": 0.25, "done": True, "text": "ü\n", "t": Tensor([1.0, 2.0])}
    save_checkpoint(Net(), tmp_path / "x.ckpt", append_dict=given)
    loaded = load_checkpoint(tmp_path / "x.ckpt")
    assert loaded["text"] == "ü\n"
    assert [loaded[name].asnumpy().item() for name in ("epoch", "loss", "done")] == [7, 0.25, True]
    assert loaded["t"].asnumpy().tolist() == [1.0, 2.0]
    assert load_param_into_net(Net(), loaded) == ([], ["epoch", "loss", "done", "t"])


def test_choice_func_and_prefixes_choose(tmp_path):
    save_checkpoint(Net(), tmp_path / "x.ckpt", choice_func=lambda name: name != "mean")
    assert list(load_checkpoint(tmp_path / "x.ckpt")) == ["w", "b"]
    save_checkpoint(outer(), tmp_path / "y.ckpt", append_dict={"epoch": 1})
    file = tmp_path / "y.ckpt"
    assert list(load_checkpoint(file, filter_prefix="inner.w")) == ["inner.b", "inner.mean", "epoch"]
    assert list(load_checkpoint(file, filter_prefix=["inner.w", "epoch"])) == ["inner.b", "inner.mean"]
    assert list(load_checkpoint(file, specify_prefix=("inner.",), filter_prefix="inner.m")) == ["inner.w", "inner.b"]
    assert list(load_checkpoint(file, choice_func=lambda name: name.endswith("b"))) == ["inner.b"]
    with pytest.raises(CheckpointError, match="nothing was loaded"):
        load_checkpoint(file, specify_prefix="none")


def test_safetensors_files_of_others_are_read_and_ours_too(tmp_path):
    safetensors.numpy.save_file({"w": np.ones((2, 3), np.float32)}, tmp_path / "x.safetensors")
    assert load_checkpoint(tmp_path / "x.safetensors", format="safetensors")["w"].asnumpy().tolist() == [[1, 1, 1]] * 2
    save_checkpoint(Net(5), tmp_path / "y", format="safetensors")
    loaded = load_checkpoint(tmp_path / "y.safetensors", format="safetensors")
    assert same_values({n: p.asnumpy() for n, p in loaded.items()}, values(Net(5)))
    data = bytearray((tmp_path / "y.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "y.safetensors").write_bytes(data)
    with pytest.raises(CheckpointCorrupt):
        load_checkpoint(tmp_path / "y.safetensors", format="safetensors")
    (tmp_path / "z.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointCorrupt):
        load_checkpoint(tmp_path / "z.safetensors", format="safetensors")


# ---- in the background ----


def test_a_save_in_the_background_holds_the_values_of_the_call(tmp_path, monkeypatch):
    net, go = Net(1), threading.Event()
    expected = values(net)
    from parallel_lab.train.checkpoint import serialization

    write = serialization.write_checkpoint

    def delayed(*args, **kwargs):
        go.wait(30)
        return write(*args, **kwargs)

    monkeypatch.setattr(serialization, "write_checkpoint", delayed)
    save_checkpoint(net, tmp_path / "x.ckpt", async_save=True)
    assert async_ckpt_thread_status()
    net.w.asnumpy()[:] = 0  # training goes on
    go.set()
    loaded = load_checkpoint(tmp_path / "x.ckpt")  # waits
    assert not async_ckpt_thread_status()
    assert same_values({n: p.asnumpy() for n, p in loaded.items()}, expected)


def test_an_error_in_the_background_is_raised_where_it_is_awaited(tmp_path, monkeypatch):
    go = threading.Event()
    from parallel_lab.train.checkpoint import serialization

    def fails(*_args, **_kwargs):
        go.wait(30)
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(serialization, "write_checkpoint", fails)
    save_checkpoint(Net(), tmp_path / "x.ckpt", async_save=True)
    threading.Timer(0.05, go.set).start()
    with pytest.raises(CheckpointError, match="the disk is full"):
        wait_for_saves()
    wait_for_saves()  # said once


# ---- loading into a network ----


def test_names_on_both_sides_that_do_not_match_are_returned(tmp_path):
    save_checkpoint([{"name": "w", "data": Net().w}, {"name": "more", "data": Tensor([1.0])}], tmp_path / "x.ckpt")
    net = Net(2)
    before = values(net)
    assert load_param_into_net(net, load_checkpoint(tmp_path / "x.ckpt")) == (["b", "mean"], ["more"])
    assert same_bits(net.b.asnumpy(), before["b"]) and not same_bits(net.w.asnumpy(), before["w"])


def test_names_that_differ_by_one_prefix_are_matched_unless_strict(tmp_path):
    save_checkpoint(outer(1), tmp_path / "x.ckpt")
    loaded, net = load_checkpoint(tmp_path / "x.ckpt"), Net(2)
    own = ["w", "b", "mean"]
    assert load_param_into_net(net, loaded, strict_load=True) == (own, [f"inner.{name}" for name in own])
    assert load_param_into_net(net, loaded) == ([], [])
    assert same_values(values(net), values(Net(1)))


def test_an_optimizer_state_is_never_taken_for_its_parameter():
    """Wrong would be: "moments.w" ends with "w" and has its shape, so the weights become the momentum."""
    net = Net(1)
    before = values(net)
    given = {"moments.w": Parameter(Tensor(np.zeros((6, 4), np.float32)), name="moments.w")}
    assert load_param_into_net(net, given) == (["w", "b", "mean"], ["moments.w"])
    assert same_values(values(net), before)


@pytest.mark.parametrize(("saved", "own"), [("float64", "float32"), ("float16", "float32"), ("float32", "float16")])
def test_floats_are_cast_to_the_networks_dtype_unless_strict(tmp_path, saved, own):
    save_checkpoint(Net(1, saved), tmp_path / "x.ckpt")
    loaded, net = load_checkpoint(tmp_path / "x.ckpt"), Net(2, own)
    with pytest.raises(CheckpointError, match=rf"'w'.*dtype is {saved}.*{own}") as caught:
        load_param_into_net(net, loaded, strict_load=True)
    assert isinstance(caught.value, RuntimeError)
    assert same_values(values(net), values(Net(2, own)))
    load_param_into_net(net, loaded)
    assert same_values(values(net), {n: v.astype(own) for n, v in values(Net(1, saved)).items()})


def test_kinds_are_not_mixed_and_ints_must_fit():
    class Counter(nn.Cell):
        def __init__(self):
            super().__init__()
            self.n = Parameter(Tensor(np.zeros(2, np.int32)), name="n", requires_grad=False)

    cell = Counter()
    load_param_into_net(cell, {"n": Parameter(Tensor(np.array([1, 2], np.int64)), name="n")})
    assert cell.n.asnumpy().tolist() == [1, 2]
    for data in (np.array([1.0, 2.0]), np.array([True, False]), np.array([1 << 40, 0])):
        with pytest.raises(CheckpointError, match="'n'"):
            load_param_into_net(cell, {"n": Parameter(Tensor(data), name="n")})
    assert cell.n.asnumpy().tolist() == [1, 2]


def test_a_shape_that_does_not_fit_changes_nothing():
    net = Net(1)
    before = values(net)
    shapes = {"w": (6, 4), "b": (5,)}
    given = {name: Parameter(Tensor(np.zeros(shape, np.float32)), name=name) for name, shape in shapes.items()}
    with pytest.raises(RuntimeError, match=r"parameter 'b': it has shape \(5,\). Shape \(4,\)"):
        load_param_into_net(net, given)
    assert same_values(values(net), before)


def test_scalars_of_either_form_fit():
    class One(nn.Cell):
        def __init__(self):
            super().__init__()
            self.s = Parameter(Tensor(np.float32(1)), name="s")

    cell = One()
    load_param_into_net(cell, {"s": Parameter(Tensor(np.array([2], np.float32)), name="s")})
    assert cell.s.asnumpy().tolist() == 2


# ---- slices ----

ROWS = TensorLayout((2, 2), (1, -1))


def held_by(net, rank, layout=ROWS):
    """The network as `rank` of four holds it: w split by `layout`."""
    net.w.hold(np.array(net.w.asnumpy()[layout.slice_index((6, 4), rank)]), layout)
    return net


def test_integrated_save_puts_slices_together(tmp_path):
    full = values(Net(1))
    with as_rank(2, 4, {"w": (full["w"], ROWS)}) as tags:
        save_checkpoint(held_by(Net(1), 2), tmp_path / "x.ckpt")
    assert len(tags) == 1
    assert same_values({n: p.asnumpy() for n, p in load_checkpoint(tmp_path / "x.ckpt").items()}, full)


def test_without_it_each_rank_saves_its_slice_with_its_place(tmp_path):
    with as_rank(3, 4) as tags:
        save_checkpoint(held_by(Net(1), 3), tmp_path / "x.ckpt", integrated_save=False)
    assert tags == []
    one = describe_checkpoint(tmp_path / "x.ckpt").tensors["w"]
    assert (one.shape, one.global_shape, one.layout, one.rank) == ((3, 4), (6, 4), ROWS, 3)
    loaded = load_checkpoint(tmp_path / "x.ckpt")
    assert (loaded["w"].layout, loaded["w"].full_shape, loaded.ranks["w"]) == (ROWS, (6, 4), 3)
    assert same_bits(loaded["w"].asnumpy(), values(Net(1))["w"][3:])
    save_checkpoint(loaded, tmp_path / "y.ckpt")  # in a process that is not a rank
    assert describe_checkpoint(tmp_path / "y.ckpt").tensors["w"] == one


def test_a_whole_tensor_is_cut_for_a_network_that_holds_slices(tmp_path):
    save_checkpoint(Net(1), tmp_path / "x.ckpt")
    columns = TensorLayout((2, 2), (-1, 0))
    with as_rank(1, 4):
        net = held_by(Net(2), 1, columns)
        load_param_into_net(net, load_checkpoint(tmp_path / "x.ckpt"))
        assert net.w.layout == columns
        assert same_bits(net.w.asnumpy(), np.ascontiguousarray(values(Net(1))["w"][:, 2:]))


def test_a_ranks_own_slice_goes_into_its_network_whether_it_is_cut_yet_or_not(tmp_path):
    with as_rank(3, 4):
        save_checkpoint(held_by(Net(1), 3), tmp_path / "x.ckpt", integrated_save=False)
        for net in (Net(2), held_by(Net(2), 3)):
            load_param_into_net(net, load_checkpoint(tmp_path / "x.ckpt"))
            assert net.w.layout == ROWS and same_bits(net.w.asnumpy(), values(Net(1))["w"][3:])


@pytest.mark.parametrize(("rank", "world_size"), [(0, 4), (3, 8), (None, None)])
def test_the_slice_of_another_rank_is_refused(tmp_path, rank, world_size):
    """Wrong would be: it has the right shape, and rank 0 trains on with the rows of rank 3."""
    with as_rank(3, 4):
        save_checkpoint(held_by(Net(1), 3), tmp_path / "x.ckpt", integrated_save=False)
    loaded = load_checkpoint(tmp_path / "x.ckpt")
    with pytest.raises(CheckpointError, match=r"slice of rank 3 of 4.*load_distributed_checkpoint"):
        if rank is None:
            load_param_into_net(Net(2), loaded)
        else:
            with as_rank(rank, world_size):
                load_param_into_net(Net(2), loaded)


# ---- errors ----

TYPES = [
    lambda d: save_checkpoint(3, d + "/x"),
    lambda d: save_checkpoint("net", d + "/x"),
    lambda d: save_checkpoint(Net(), 3),
    lambda d: save_checkpoint(Net(), None),
    lambda d: save_checkpoint(Net(), d + "/x", async_save="yes"),
    lambda d: save_checkpoint(Net(), d + "/x", append_dict=[1]),
    lambda d: save_checkpoint(Net(), d + "/x", append_dict={"a": [1]}),
    lambda d: save_checkpoint(Net(), d + "/x", append_dict={1: 1}),
    lambda d: save_checkpoint(Net(), d + "/x", choice_func="w"),
    lambda d: save_checkpoint([1], d + "/x"),
    lambda d: save_checkpoint([{"name": 1, "data": Tensor(1.0)}], d + "/x"),
    lambda d: save_checkpoint([{"name": "a"}], d + "/x"),
    lambda d: save_checkpoint({"a": [1]}, d + "/x"),
    lambda d: save_checkpoint({1: Tensor(1.0)}, d + "/x"),
    lambda d: load_checkpoint(3),
    lambda d: load_checkpoint(d + "/good.ckpt", net="net"),
    lambda d: load_checkpoint(d + "/good.ckpt", filter_prefix=3),
    lambda d: load_checkpoint(d + "/good.ckpt", specify_prefix=["a", 3]),
    lambda d: load_checkpoint(d + "/good.ckpt", choice_func=3),
    lambda d: load_param_into_net("net", {}),
    lambda d: load_param_into_net(Net(), [Net().w]),
    lambda d: load_param_into_net(Net(), {"w": 3}),
    lambda d: load_param_into_net(Net(), {3: Net().w}),
]


@pytest.mark.parametrize("call", TYPES, ids=range(len(TYPES)))
def test_wrong_types_are_type_errors(tmp_path, call):
    save_checkpoint(Net(), tmp_path / "good.ckpt")
    with pytest.raises(CheckpointTypeError) as caught:
        call(str(tmp_path))
    assert isinstance(caught.value, TypeError)
    assert [path.name for path in tmp_path.iterdir()] == ["good.ckpt"]


VALUES = [
    (lambda d: save_checkpoint([Net().w, Net().w], d + "/x"), "'w' stands twice"),
    (lambda d: save_checkpoint(Net(), d + "/x", append_dict={"w": 1}), "'w' is that of a parameter"),
    (lambda d: save_checkpoint({"a/b": Tensor(1.0)}, d + "/x"), "not allowed"),
    (lambda d: save_checkpoint(Net(), d + "/x", append_dict={"../n": "text"}), "not allowed"),
    (lambda d: save_checkpoint(Net(), d + "/x", append_dict={"n": 1 << 70}), "64 bits"),
    (lambda d: save_checkpoint(Net(), ""), "The name of a file"),
    (lambda d: save_checkpoint(Net(), d + "/new/"), "The name of a file"),
    (lambda d: load_checkpoint(d + "/none.ckpt"), "no such file"),
    (lambda d: load_checkpoint(d + "/other.txt"), "does not end with '.ckpt'"),
    (lambda d: load_checkpoint(d), "is a folder.*good.ckpt"),
    (lambda d: load_checkpoint(d + "/good.ckpt", filter_prefix=""), "not empty"),
]


@pytest.mark.parametrize(("call", "said"), VALUES, ids=range(len(VALUES)))
def test_wrong_values_are_value_errors(tmp_path, call, said):
    save_checkpoint(Net(), tmp_path / "good.ckpt")
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(ValueError, match=said):
        call(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.ckpt", "other.txt"]


def test_folders_and_missing_folders_have_their_own_classes(tmp_path):
    with pytest.raises(IsADirectoryError, match="Name a file in it"):
        save_checkpoint(Net(), tmp_path)
    with pytest.raises(OSError, match="No such file or directory"):
        save_checkpoint(Net(), tmp_path / "none" / "x.ckpt")
    with pytest.raises(NotBuiltYet):
        save_checkpoint(Net(), tmp_path / "x", enc_key=b"0" * 16)
    with pytest.raises(NotBuiltYet):
        load_checkpoint(tmp_path / "x", dec_key=b"0" * 16)


def test_a_damaged_file_is_a_value_error_too(tmp_path):
    save_checkpoint(Net(), tmp_path / "x.ckpt")
    os.truncate(tmp_path / "x.ckpt", 300)
    with pytest.raises(ValueError, match=r"x\.ckpt") as caught:
        load_checkpoint(tmp_path / "x.ckpt")
    assert isinstance(caught.value, CheckpointCorrupt)
    with pytest.raises(CheckpointCorrupt):
        read_checkpoint(tmp_path / "x.ckpt")
