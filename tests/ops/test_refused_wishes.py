"""What MindSpore refuses with a strategy: EmbeddingLookup off the host, groups of BatchNorm, interleaved parts."""

import numpy as np
import pytest

from parallel_lab import Layout, Session, compile, nn, ops
from parallel_lab.base.errors import StrategyError
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.nets import cell

FULL = {"dataset_strategy": "full_batch"}


def looking_up(lookup):
    table = Parameter(Tensor(np.arange(32.0).reshape(8, 4)), name="table")
    return cell(lambda net, ids: ops.reduce_sum(net.lookup(net.table, ids, 0) * 2.0), table=table, lookup=lookup)


@pytest.mark.parametrize(
    ("mode", "strategy"),
    [("semi_auto_parallel", None), ("semi_auto_parallel", ((1, 2), (4,))), ("auto_parallel", ((8, 1), (1,)))],
)
def test_embedding_lookup_wants_the_host_where_operators_are_split(mode, strategy):
    """Wrong was: it ran on the device, where MindSpore refuses it ("must be set the cpu target")."""
    ids, how = np.arange(8), {**FULL, "parallel_mode": mode, "search_mode": "sharding_propagation", "device_num": 8}

    def lookup():
        return ops.EmbeddingLookup() if strategy is None else ops.EmbeddingLookup().shard(strategy)

    with pytest.raises(RuntimeError, match=r"EmbeddingLookup 'lookup'.*has no target.*set_device\('CPU'\)") as error:
        compile(looking_up(lookup()), ids, **how)
    assert isinstance(error.value, StrategyError)
    net = looking_up(lookup().set_device("CPU"))
    with Session(compile(net, ids, **how), net) as session:
        assert session.outputs(ids)[0] == 2 * np.arange(32.0).sum()


@pytest.mark.parametrize("how", [{"device_num": 1}, {"device_num": 8, "parallel_mode": "data_parallel"}])
def test_elsewhere_embedding_lookup_runs_where_it_is(how):
    plan = compile(looking_up(ops.EmbeddingLookup()), np.arange(8), **how, **({} if how["device_num"] > 1 else FULL))
    assert not plan.host and plan.graph.node("lookup").target == ""


ROWS_OF_8 = ((8, 1, 1, 1), (1,), (1,), (1,), (1,))


class Normed(nn.Cell):
    def __init__(self, size, strategy=ROWS_OF_8):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.norm.bn_train.add_prim_attr("group_size", size)
        self.norm.bn_train.shard(strategy)

    def construct(self, x):
        return ops.reduce_sum(self.norm(x) * x)


@pytest.mark.parametrize(("size", "strategy", "words"), [
    (3, ROWS_OF_8, "group_size=3.*power of two that divides the 8 devices"),
    (16, ROWS_OF_8, "group_size=16.*power of two"),
    ("8", ROWS_OF_8, "group_size='8'"),
    (2, ((4, 1, 1, 1), (1,), (1,), (1,), (1,)), "group_size=2 with 16 samples split 4 ways.*each of 8 devices"),
])  # fmt: skip
def test_batch_norm_of_wrong_groups_is_refused_with_its_reason(size, strategy, words):
    """Wrong was: the attribute was not looked at, and all ranks' samples were normalised together."""
    x = np.random.default_rng(0).normal(size=(16, 3, 2, 2)).astype(np.float32)
    with pytest.raises(StrategyError, match=rf"(?s)BatchNorm.*test_refused_wishes.py.*{words}"):
        compile(Normed(size, strategy).set_train(), x, device_num=8, **FULL)
    # it is an attribute of training in the modes that split operators
    compile(Normed(size, strategy).set_train(False), x, device_num=8, **FULL)
    compile(Normed(size, strategy).set_train(), x, device_num=8, parallel_mode="data_parallel")


class Blocks(nn.Cell):
    """Batch norm of every block of rows on its own, one block after the other."""

    def __init__(self, count, size=None):
        super().__init__()
        self.norm, self.count = nn.BatchNorm2d(3, dtype=np.float64), count
        if size is not None:
            self.norm.bn_train.add_prim_attr("group_size", size)
            self.norm.bn_train.shard(ROWS_OF_8)

    def construct(self, x):
        if self.count == 1:
            return self.norm(x)
        return ops.concat([self.norm(block) for block in ops.split_parts(x, axis=0, output_num=self.count)])


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_batch_norm_of_groups_normalises_the_groups_samples(size):
    """As every block on one device: results, gradients; the moving mean is that of all rows. It was NotBuiltYet."""
    rng, found = np.random.default_rng(0), []
    x, y = rng.normal(2.0, 3.0, (16, 3, 2, 2)), rng.normal(size=(16, 3, 2, 2))
    for net, devices in ((Blocks(1, size), 8), (Blocks(8 // size), 1)):
        net.set_train()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        plan = compile(net, x, y, loss=nn.MSELoss(), optimizer=optimizer, device_num=devices, **FULL)
        with Session(plan, net, optimizer) as session:
            found.append((session.train([(x, y)], 2), session.parameters()))
        if devices == 8:
            exchanged = [m.group_size for m in plan.stages[0].program("forward") if m.is_communication]
            assert exchanged[:2] == [size, size] if size > 1 else size not in exchanged[:1]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-11)
    for name in ("norm.gamma", "norm.beta"):
        np.testing.assert_allclose(found[0][1][name], found[1][1][name], rtol=1e-10)
    moved = x.mean((0, 2, 3)) * (1 - 0.9**2)  # two steps of momentum 0.9, from zeros
    np.testing.assert_allclose(found[0][1]["norm.moving_mean"], moved, rtol=1e-10)


def test_batch_norm_of_all_devices_is_batch_norm():
    x, found = np.random.default_rng(0).normal(size=(16, 3, 2, 2)).astype(np.float32), []
    for size in (8, None):
        net = Normed(8).set_train()
        if size is None:
            net.norm.bn_train.del_prim_attr("group_size")
        found.append(compile(net, x, device_num=8, **FULL).to_dict(rank=3)["comm"])
    assert found[0] == found[1] and found[0]


PARTS = Layout((2, 4, 2), ("dp", "mp", "interleaved_parallel"))
WHOLE = Layout((2, 4), ("dp", "mp"))


class Behind(nn.Cell):
    def __init__(self, first, layout, last=None, out=None):
        super().__init__()
        self.first, self.last = first.shard((layout,), **(out or {})), ops.Tanh()
        if last is not None:
            self.last.shard((last,))

    def construct(self, x):
        made = self.first(x)
        return self.last(made[0] if isinstance(made, tuple) else made)


@pytest.mark.parametrize(("first", "layout", "last", "words"), [
    (lambda: ops.SortExt(), PARTS(("dp", "interleaved_parallel"), "None"), None, "SortExt 'first'.*whole slices"),
    (lambda: ops.Sort(0), PARTS("None", ("mp", "interleaved_parallel")), None, "Sort 'first'.*whole slices"),
    (lambda: ops.Split(1, 2), PARTS("dp", "interleaved_parallel"), None, "splits dim 1.*Any other dim: Split"),
    (lambda: ops.Split(-1, 2), PARTS("dp", "interleaved_parallel"), None, "splits dim 1"),
])  # fmt: skip
def test_operators_that_take_no_interleaved_parts_refuse_them(first, layout, last, words):
    with pytest.raises(StrategyError, match=rf"{words}.*without 'interleaved_parallel'"):
        compile(Behind(first(), layout, last), np.zeros((16, 16)), device_num=8, **FULL)


@pytest.mark.quick(2)
@pytest.mark.parametrize("last", [None, PARTS(("dp", "interleaved_parallel"), "None")])
@pytest.mark.parametrize("first", [lambda: ops.Split(1, 2), lambda: ops.ReLU()])
def test_others_take_them(first, last):
    """The last operator of a network too, in training and outside (recorded with 2.10)."""
    layout = PARTS(("dp", "interleaved_parallel"), "None")
    plan = compile(Behind(first(), layout, last), np.zeros((16, 16)), device_num=8, **FULL)
    assert plan.graph.node("first").strategy.parts == 2


def padded(mode, strategy):
    pad = ops.PadV3(mode=mode)
    return cell(lambda net, x: net.pad(x, (1, 2)), pad=pad if strategy is None else pad.shard(strategy))


def repeated(multiples, strategy):
    return cell(lambda net, x: net.tile(x, multiples), tile=ops.Tile().shard(strategy))


SPLIT_OUT = {"out_strategy": (WHOLE("dp", "None"),) * 2}
REFUSED = {
    "pad": (lambda: padded("reflect", ((8, 1),)), "PadV3 'pad'.*mode 'reflect'.*only 'constant'"),
    "pad whole": (lambda: padded("circular", ((1, 1),)), "PadV3 'pad'.*mode 'circular'"),
    "split": (
        lambda: Behind(ops.Split(1, 2), WHOLE("dp", "None"), out=SPLIT_OUT),
        "Split 'first'.*layout of the input",
    ),
    "tile": (
        lambda: repeated((4, 1), (WHOLE("dp", "mp"),)),
        "Tile 'tile'.*splits dim 0 of input 0 by a layout.*counts",
    ),
}
TAKEN = {
    "pad of zeros": lambda: padded("constant", ((8, 1),)),
    "pad without a strategy": lambda: padded("reflect", None),
    "split": lambda: Behind(ops.Split(1, 2), WHOLE("dp", "None")),
    "tile by multiples": lambda: repeated((4, 1), ((4, 2),)),
    "tile of another dim": lambda: repeated((4, 1), (WHOLE("None", ("dp", "mp")),)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_strategy_could_mean_is_refused(case):
    """Wrong was: all four were compiled, where MindSpore refuses them (pad_info, split_info, tile_info)."""
    net, words = REFUSED[case]
    with pytest.raises(StrategyError, match=words):
        compile(net(), np.zeros((16, 16)), device_num=8, **FULL)


@pytest.mark.parametrize("case", TAKEN)
def test_what_is_close_by_is_taken(case):
    assert compile(TAKEN[case](), np.zeros((16, 16)), device_num=8, **FULL).device_num == 8
