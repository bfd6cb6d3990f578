"""The strategy file: what a plan was compiled with, there and back; and what is refused, field by field."""

import copy
import json
import os

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn
from parallel_lab.base.errors import CheckpointError, CheckpointTypeError, CheckpointWriteError
from parallel_lab.layout.named_layout import Layout, LayoutStrategy
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.mindspore._checkpoint import build_searched_strategy
from parallel_lab.train.checkpoint import strategy_file
from parallel_lab.train.checkpoint.distributed import as_layout
from tests.crossed import each_of
from tests.nets import cell
from tests.recorded import nets


def compiled(net, *shapes, device_num):
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    settings = {"device_num": device_num, "parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    inputs = (np.zeros(shape, np.float32) for shape in shapes)
    return pl.compile(net, *inputs, loss=nn.MSELoss(), optimizer=optimizer, **settings)


@pytest.fixture(scope="module")
def plan():
    net = nets.Quick(32, 16, 16, ((2, 4), (4, 1)), ((2, 4),), ((8, 1), (1, 1)))
    return compiled(net, (64, 32), (64, 16), device_num=8)


def test_a_plans_strategies_come_back(plan, tmp_path):
    path = strategy_file.save_strategy(plan, tmp_path / "strategy.json")
    found = strategy_file.load_strategy(path)
    assert found == strategy_file.plan_strategy(plan)
    assert found.layouts == {p.name: plan.value(p.name).layout for p in plan.parameters}
    assert found.layouts == build_searched_strategy(str(path))
    assert found.strategies == {node.name: node.strategy for node in plan.graph.nodes if node.strategy is not None}
    assert ((2, 4), (4, 1)) in found.strategies.values()
    assert (found.device_num, found.stages) == (8, ((0, 8),))


def test_the_file_holds_what_mindspores_holds(plan, tmp_path):
    """MindSpore's words: device matrix, tensor map, slice shape, ... per parameter; the strategy per operator."""
    content = json.loads(strategy_file.save_strategy(plan, tmp_path / "s.json").read_text())
    assert (content["format"], content["version"], content["device_num"]) == ("parallel_lab-strategy", 1, 8)
    first = next(p for p in plan.parameters if plan.value(p.name).layout.splits == (4, 1))
    one = content["parameters"][first.name]
    words = "device_matrix, tensor_map, slice_shape, field_size, opt_shard_step, opt_shard_size, stages"
    assert {*words.split(", ")} <= one.keys()
    assert np.array_equal(np.array(one["slice_shape"]) * (4, 1), first.shape)
    assert [[2, 4], [4, 1]] in [operator["strategy"] for operator in content["operators"].values()]


@pytest.mark.parametrize("name", ["strategy.json", "train_strategy.ckpt", "strategy.txt", "new/folder/s.json"])
def test_any_file_name_will_do_and_folders_are_made(plan, tmp_path, name):
    strategy_file.save_strategy(plan, str(tmp_path / name))
    assert strategy_file.load_strategy(str(tmp_path / name)).device_num == 8


def test_a_folder_stands_for_the_file_in_it(plan, tmp_path, monkeypatch):
    """Seed 000 sets strategy_ckpt_save_file="./"."""
    monkeypatch.chdir(tmp_path)
    assert strategy_file.save_strategy(plan, "./").name == strategy_file.DEFAULT_NAME
    assert (tmp_path / strategy_file.DEFAULT_NAME).exists()
    assert (
        strategy_file.load_strategy("./")
        == strategy_file.load_strategy(tmp_path)
        == strategy_file.load_strategy(strategy_file.DEFAULT_NAME)
    )
    strategy_file.save_strategy(plan, "new/")
    assert (tmp_path / "new" / strategy_file.DEFAULT_NAME).exists()


def test_only_trainable_params_is_the_default(tmp_path):
    net = cell(lambda net, x: net.bn(net.dense(x)), dense=nn.Dense(4, 4), bn=nn.BatchNorm1d(4)).set_train()
    plan = compiled(net, (8, 4), (8, 4), device_num=2)
    trained, known = ({p.name for p in some} for some in (net.trainable_params(), net.get_parameters()))
    assert strategy_file.plan_strategy(plan).layouts.keys() == trained
    assert strategy_file.plan_strategy(plan, only_trainable_params=False).layouts.keys() == known > trained


def test_layouts_with_named_axes_come_back(tmp_path):
    layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
    strategy = LayoutStrategy((layout("dp", ("sp", "mp")), layout(("sp", "mp"), "None"), layout), True)
    operators = (
        strategy_file.OperatorStrategy("m", "MatMul", strategy, None, "user"),
        strategy_file.OperatorStrategy("r", "ReLU", None),
    )
    file = strategy_file.StrategyFile(8, (), operators, ((0, 8),))
    strategy_file.save_strategy(file, tmp_path / "s.json")
    assert strategy_file.load_strategy(tmp_path / "s.json") == file


def test_ranks_that_write_at_once_leave_one_whole_file(plan, tmp_path):
    from tests.checkpoint.ranks import run_ranks

    run_ranks(4, lambda rank, barrier: (barrier(), strategy_file.save_strategy(plan, tmp_path / "s.json")))
    assert strategy_file.load_strategy(tmp_path / "s.json") == strategy_file.plan_strategy(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]


# ---- what is refused ----


def written(plan, path, change):
    content = json.loads(strategy_file.save_strategy(plan, path).read_text())
    first = next(iter(content["parameters"]))
    operator = next(iter(content["operators"]))
    change(content, content["parameters"][first], content["operators"][operator])
    path.write_text(json.dumps(content))
    return path


EDITS = {
    "format": (lambda c, p, o: c.update(format="x"), "not a strategy file"),
    "version": (lambda c, p, o: c.update(version=2), "version 2"),
    "more": (lambda c, p, o: c.update(more=1), "the content"),
    "less": (lambda c, p, o: c.pop("stages"), "the content"),
    "device_num": (lambda c, p, o: c.update(device_num=0), "device_num is 0"),
    "device_num-text": (lambda c, p, o: c.update(device_num="8"), "device_num is '8'"),
    "device_num-bool": (lambda c, p, o: c.update(device_num=True), "device_num is True"),
    "device_num-huge": (lambda c, p, o: c.update(device_num=10**18), "device_num"),
    "stages": (lambda c, p, o: c.update(stages=[[0, 9]]), "stages"),
    "stages-flat": (lambda c, p, o: c.update(stages=[0, 8]), "stages"),
    "parameters": (lambda c, p, o: c.update(parameters=[]), "parameters is"),
    "parameter": (lambda c, p, o: c["parameters"].update(w=3), "parameters\\['w'\\] is 3"),
    "shape": (lambda c, p, o: p.update(shape=[-1, 2]), "shape is -1"),
    "slice_shape": (lambda c, p, o: p.update(slice_shape=[1, 1]), "slice_shape is"),
    "device_matrix": (lambda c, p, o: p.update(device_matrix=[3]), "parameters"),
    "device_matrix-3": (
        lambda c, p, o: p.update(device_matrix=[3], tensor_map=[[], []], slice_shape=p["shape"]),
        "divides the 8 devices",
    ),
    "tensor_map": (lambda c, p, o: p.update(tensor_map=[[9], []]), "axis 9 does not exist"),
    "tensor_map-flat": (lambda c, p, o: p.update(tensor_map=[1, -1]), "tensor_map"),
    "dtype": (lambda c, p, o: p.update(dtype="\x1b[31m"), "dtype"),
    "trainable": (lambda c, p, o: p.update(trainable=1), "trainable is 1"),
    "field_size": (lambda c, p, o: p.update(field_size=2), "split evenly"),
    "parameter-stages": (lambda c, p, o: p.update(stages=[5]), "stages"),
    "opt_shard": (lambda c, p, o: p.update(opt_shard_step="x"), "opt_shard_step"),
    "operators": (lambda c, p, o: c.update(operators=None), "operators is None"),
    "strategy": (lambda c, p, o: o.update(strategy=[[0, 1]]), "strategy is 0"),
    "strategy-large": (lambda c, p, o: o.update(strategy=[[16, 1]]), "At most 8 slices"),
    "strategy-text": (lambda c, p, o: o.update(strategy="((1,1),)"), "strategy is"),
    "strategy-layout": (
        lambda c, p, o: o.update(strategy={"device_matrix": [2], "alias_name": ["a"], "dims": [["b"]], "nd_tp": False}),
        "axis 'b'",
    ),
    "strategy-names": (
        lambda c, p, o: o.update(strategy={"device_matrix": [2], "alias_name": [3], "dims": [], "nd_tp": False}),
        "alias_name",
    ),
    "op": (lambda c, p, o: o.update(op=""), "op is ''"),
    "source": (lambda c, p, o: o.update(source=None), "source"),
}


@pytest.mark.parametrize(("change", "said"), EDITS.values(), ids=EDITS)
def test_a_wrong_field_is_named(plan, tmp_path, change, said):
    path = written(plan, tmp_path / "s.json", change)
    with pytest.raises(CheckpointError, match=said) as caught:
        strategy_file.load_strategy(path)
    assert isinstance(caught.value, ValueError) and str(caught.value).startswith(str(path))


@pytest.mark.quick(0)
@pytest.mark.parametrize("part", range(8))
def test_no_changed_byte_is_read_as_something_else(plan, tmp_path, part):
    """Each byte replaced by others, and left out: refused, or read as it was (space between the tokens)."""
    path = strategy_file.save_strategy(plan, tmp_path / "s.json")
    data, right, refused = path.read_bytes(), strategy_file.load_strategy(path), 0
    for at in range(part, len(data), 8):
        for byte in (*(bytes([data[at] ^ bit]) for bit in (1, 2, 16)), b"1", b" ", b""):
            if byte == data[at : at + 1]:
                continue
            path.write_bytes(data[:at] + byte + data[at + 1 :])
            try:
                assert strategy_file.load_strategy(path) == right, (at, byte)
            except CheckpointError:
                refused += 1
    print(f"{refused} of {len(data)} x 6 / 8 refused")
    assert refused > len(data) / 2


@pytest.mark.parametrize("stages", [[[0, 1]], [[0, 4], [0, 4]], [[0, 2], [4, 4]], [[1, 7]], [[0, 4], [5, 3]]])
def test_stages_have_all_ranks_between_them(plan, tmp_path, stages):
    path = written(plan, tmp_path / "s.json", lambda c, p, o: (c.update(stages=stages), c.pop("sha256")))
    with pytest.raises(CheckpointError, match="together all 8"):
        strategy_file.load_strategy(path)


def test_file_that_was_changed_on_purpose_has_no_sum(plan, tmp_path):
    changed = written(plan, tmp_path / "s.json", lambda c, p, o: o.update(source="user, later"))
    with pytest.raises(CheckpointError, match="sha256 does not fit"):
        strategy_file.load_strategy(changed)
    changed = written(plan, tmp_path / "s.json", lambda c, p, o: (o.update(source="user, later"), c.pop("sha256")))
    assert "user, later" in {one.source for one in strategy_file.load_strategy(changed).operators}


BYTES = {
    "empty": b"",
    "binary": bytes(range(256)),
    "twice": b'{"format": "parallel_lab-strategy", "format": "parallel_lab-strategy"}',
    "nan": b'{"format": NaN}',
    "deep": b"[" * 1000,
    "large": b" " * ((16 << 20) + 1),
    "items": b"[" + b"1," * 1_000_001 + b"1]",
    "protobuf": b"\n\x12\n\x02w1\x12\x0c\n\x04\x08\x02\x08\x04",
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_anything_but_a_strategy_file_is_refused(tmp_path, data):
    (tmp_path / "s.ckpt").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"s\.ckpt"):
        strategy_file.load_strategy(tmp_path / "s.ckpt")


def random_change(rng, value):
    """`value` with one leaf, key or element replaced, left out or added, anywhere in it."""
    junk = [None, True, -1, 0, 1, 10**18, 0.5, "", "x", "\x00", [], [[]], {}, {"a": 1}, [1, [2]], -(10**30)]
    made = copy.deepcopy(value)
    place, parent, key = made, None, None
    while isinstance(place, (dict, list)) and place and rng.random() < 0.8:
        parent = place
        key = list(place)[int(rng.integers(len(place)))] if isinstance(place, dict) else int(rng.integers(len(place)))
        place = parent[key]
    if parent is None:
        return junk[int(rng.integers(len(junk)))]
    if rng.random() < 0.2:
        del parent[key]
    else:
        parent[key] = junk[int(rng.integers(len(junk)))]
    return made


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.exhaustive)])
def test_changed_files_are_read_or_refused_in_one_class(plan, tmp_path, rng, count):
    """What is read must fit together: every slice shape follows from its layout."""
    good = json.loads(strategy_file.save_strategy(plan, tmp_path / "s.json").read_text())
    path, refused = tmp_path / "junk.json", 0
    for _ in range(count):
        content = random_change(rng, good)
        path.write_text(json.dumps(content))
        try:
            found = strategy_file.load_strategy(path)
        except CheckpointError as error:
            refused += 1
            assert len(str(error)) < 600, content
            continue
        assert isinstance(found, strategy_file.StrategyFile)
        for p in found.parameters:
            assert found.device_num % p.layout.device_num == 0 and p.slice_shape == p.layout.slice_shape(p.shape)
    print(f"{refused} of {count} refused")
    assert refused > count / 2


def test_invalid_paths_are_refused(plan, tmp_path):
    for path in (None, 3, b"x", ["x"]):
        with pytest.raises(CheckpointTypeError):
            strategy_file.strategy_path(path)
    for path in ("", "a\0b"):
        with pytest.raises(CheckpointError):
            strategy_file.strategy_path(path)
    with pytest.raises(CheckpointError, match="no such strategy file"):
        strategy_file.load_strategy(tmp_path / "none.json")
    with pytest.raises(CheckpointWriteError):
        strategy_file.save_strategy(plan, "/proc/none/s.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointWriteError):
        strategy_file.save_strategy(plan, tmp_path / "file" / "s.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match="it is a pipe"):
        strategy_file.load_strategy(tmp_path / "pipe")


# ---- layouts in dicts ----


@each_of(
    "value",
    TensorLayout((2, 4), (0, -1)),
    Layout((2, 4), ("a", "b"))("b", "None"),
    strategy_file.ParameterStrategy("w", (8, 4), "float32", TensorLayout((2, 4), (0, -1))),
    [[2, 4], [0, -1]],
    [[2, 4], [0, -1], [2, 4], 0, True, ""],
    ((2, 4), ((0,), ())),
    ids=["TensorLayout", "Layout", "ParameterStrategy", "lists", "MindSpore", "tuples"],
)
def test_every_form_of_a_layout_is_understood(value):
    assert as_layout(value, "here") == TensorLayout((2, 4), (0, -1))


@pytest.mark.parametrize("value", [3, "x", [], [[2]], [2, 4], [[2], [5]], {"a": 1}, [["2"], [0]]])
def test_anything_but_a_layout_is_a_value_error(value):
    with pytest.raises(CheckpointError, match="here: it is"):
        as_layout(value, "here")


def test_a_prediction_with_fewer_dims_takes_the_strategies_that_fit(tmp_path):
    """Refused before: Flatten's ((4, 1, 1),) for an input of two dims. MindSpore saves those of weights' readers."""

    class Flat(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = pl.nn.Parameter(pl.Tensor(np.ones((8, 6), np.float32)), "w")
            self.flatten, self.relu, self.matmul = pl.ops.Flatten(), pl.ops.ReLU(), pl.ops.MatMul()

        def construct(self, x):
            return self.matmul(self.relu(self.flatten(x)), self.w)

    trained = Flat()
    trained.relu.shard(((2, 2),))
    trained.matmul.shard(((2, 2), (2, 1)))
    options = {"device_num": 4, "dataset_strategy": "full_batch"}
    plan = pl.compile(trained, np.ones((4, 2, 4), np.float32), **options)
    path = str(strategy_file.save_strategy(plan, tmp_path / "s.json"))
    plan = pl.compile(Flat(), np.ones((2, 8), np.float32), strategy_ckpt_load_file=path, **options)
    found = {n.name: n.strategy for n in plan.graph.nodes if n.phase == "forward"}
    assert (found["matmul"], found["relu"]) == (((2, 2), (2, 1)), ((2, 2),))
    assert plan.value("w").layout.splits == (2, 1)
