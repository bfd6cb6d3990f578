"""What a script reads of a Cell that was compiled: layouts of parameters, names and strategies of operators, nodes."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest
from parallel_lab.mindspore._c_expression import reset_op_id
from parallel_lab.mindspore.common.api import _cell_graph_executor, _executor
from parallel_lab.mindspore.nn.wrap.cell_wrapper import _VirtualDatasetCell
from parallel_lab.mindspore.parallel._utils import _reset_op_id
from parallel_lab.mindspore.parallel.auto_parallel import AutoParallel

import parallel_lab.mindspore as ms
from parallel_lab.base.settings.compat import set_compat
from parallel_lab.base.settings.context import reset_auto_parallel_context
from parallel_lab.mindspore import Parameter, Tensor, nn, ops
from parallel_lab.mindspore._compiled_forms import group_name
from tests.crossed import each_of


def zeros(*shape):
    return Tensor(np.zeros(shape, np.float32))


@pytest.fixture(autouse=True)
def eight_ranks():
    ms.set_auto_parallel_context(device_num=8, global_rank=5, parallel_mode="semi_auto_parallel", full_batch=True)
    reset_op_id()
    yield
    reset_auto_parallel_context()


class Net(nn.Cell):
    """relu(x @ w.T) with w: (48, 24)."""

    def __init__(self, matmul=None, relu=None):
        super().__init__()
        self.w = Parameter(zeros(48, 24), "weight")
        self.matmul, self.relu = ops.MatMul(transpose_b=True), ops.ReLU()
        if matmul:
            self.matmul.shard(matmul)
        if relu:
            self.relu.shard(relu)

    def construct(self, x):
        return self.relu(self.matmul(x, self.w))


class Sum(nn.Cell):
    def __init__(self, network):
        super().__init__()
        self.network, self.sum = network, ops.ReduceSum()

    def construct(self, x):
        return self.sum(self.network(x))


def compiled(net, *inputs):
    net.set_train()
    phase, _ = _cell_graph_executor.compile(net, *inputs, phase="train", auto_parallel_mode=True)
    return phase


# The device matrix of a product is (rows of x, contracted dim, columns, repeated); axes of one rank are left out, and
# the tensor map counts the others from the right.
@each_of(
    ("matmul", "weight"),
    (((2, 1), (4, 1)), ([2, 4], [0, -1], [12, 24])),
    (((1, 2), (4, 2)), ([2, 4], [0, 1], [12, 12])),
    (((2, 2), (2, 2)), ([2, 2, 2], [0, 1], [24, 12])),
    (((2, 1), (2, 1)), ([2, 2, 2], [1, -1], [24, 24])),
    (((8, 1), (1, 1)), ([8], [-1, -1], [48, 24])),
    (((1, 1), (1, 1)), ([8], [-1, -1], [48, 24])),
    (None, ([8], [-1, -1], [48, 24])),
)
def test_layouts_are_tuples_of_device_matrix_tensor_map_and_slice(matmul, weight):
    net = Net(matmul, ((1, 8),))
    compiled(net, zeros(32, 24))
    whole = ([8], [-1, -1], [32, 24], 0, True, "")
    assert net.parameter_layout_dict == {"x": whole, "weight": (*weight, 0, True, "")}
    assert _cell_graph_executor._get_parameter_layout(net) == net.parameter_layout_dict


@each_of("wrap", lambda net: net, _VirtualDatasetCell)
def test_inputs_are_one_ranks_slices_unless_the_batch_is_full(wrap):
    """MindSpore multiplies the shapes that `compile` is given (ExtendInputArgsAbstractShape, ToFullShape): rows by the
    devices, or each dim by its count. They were taken as whole: (128, 4) under ((1, 8),) became (128, 0).
    """
    net = wrap(Net(((2, 1), (4, 1))))
    for strategy, full, layout in (
        ("full_batch", (32, 24), ([8], [-1, -1])),
        ("data_parallel", (256, 24), ([8], [0, -1])),
        (((2, 1),), (64, 24), ([2, 4], [1, -1])),
    ):
        ms.set_auto_parallel_context(dataset_strategy=strategy)
        compiled(net, zeros(32, 24))
        (source,) = net.compiled.plan.data_inputs
        assert net.compiled.plan.value(source.name).shape == full
        assert (*layout, [32, 24], 0, True, "") in net.parameter_layout_dict.values()
    ms.set_auto_parallel_context(dataset_strategy=((1, 8),))
    with pytest.raises(ValueError, match=r"\(32, 192\)"):
        compiled(net, zeros(32, 24))


def test_an_error_about_the_size_of_all_parts_says_how_it_came_about():
    """It named a 256 that stood nowhere in the script, under two tracebacks."""

    class Add(Net):
        def construct(self, x):
            return x + self.w

    ms.set_auto_parallel_context(dataset_strategy="data_parallel")
    said = r"dataset_strategy='data_parallel' takes inputs as parts of 8 ranks: \(48, 24\) makes \(384, 24\)"
    with pytest.raises(ValueError, match=said) as found:
        compiled(Add(), zeros(48, 24))
    assert found.value.__context__ is None and found.value.__cause__ is None
    ms.set_auto_parallel_context(dataset_strategy="full_batch")
    with pytest.raises(ValueError, match="operand shapes") as found:
        compiled(Add(), zeros(32, 24))
    assert "dataset_strategy" not in str(found.value)


def test_results_outside_training_have_a_virtual_output_with_its_strategy():
    """Whole with a full batch, else rows over all devices; in training, or with a strategy per input: none."""
    net = Net(((2, 1), (4, 1)), ((2, 4),))
    for fed, counts in (("full_batch", [1, 1]), ("data_parallel", [8, 1]), (((8, 1),), None)):
        ms.set_auto_parallel_context(dataset_strategy=fed)
        _cell_graph_executor.compile(net, zeros(32, 24))
        found = _cell_graph_executor._get_shard_strategy(net)
        assert found.get("Default/_VirtualOutput-op0") == (counts and [counts])
        assert _cell_graph_executor._get_num_parallel_ops(net) == 2
    compiled(net, zeros(32, 24))
    assert not [name for name in _cell_graph_executor._get_shard_strategy(net) if "Virtual" in name]


def test_an_optimizer_shard_keeps_the_matrix_and_names_its_group():
    """Ranks 1 and 5 of (2, 4) share 12 rows of the weight. The layout is what the network reads (recorded with 2.10;
    get_parallel_info.cc: slice_shape), that of the momentum its parameter's. The group's name is its size and a hash of
    "1-5" (device_manager.cc); that of "0-1-2-3" is on a page of the tutorials, and in seed 003. Without an optimizer
    parameters are divided all the same (ApplyParallelOptOnParam).
    """
    ms.set_auto_parallel_context(
        enable_parallel_optimizer=True, parallel_optimizer_config={"parallel_optimizer_threshold": 0}
    )
    net = Net(((2, 1), (4, 1)))
    step = nn.TrainOneStepCell(Sum(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    compiled(step, zeros(32, 24))
    form = ([2, 4], [0, -1], [12, 24], 0, True, group_name((1, 5)))
    assert step.parameter_layout_dict["network.w"] == step.parameter_layout_dict["moments.network.w"] == form
    (nodes,) = _executor.get_parallel_graph_info(compiled(net, zeros(32, 24))).values()
    assert net.parameter_layout_dict["network.w"] == form and nodes["AllGather-0"]["inputs"] == ["network.w"]
    assert nodes["Load-0"]["inputs"] == ["AllGather-0", "U"] and nodes["MatMul-0"]["inputs"][1] == "Load-0"
    compiled(Net(((8, 1), (1, 1))), zeros(32, 24))
    assert group_name((0, 1, 2, 3)) == "4-6301172352641561019" and group_name((1, 5)).startswith("2-")
    ms.set_auto_parallel_context(enable_parallel_optimizer=False)
    weight = Parameter(zeros(48, 24), "w")
    weight.init_data(step.parameter_layout_dict["network.w"])
    assert weight.shape == (6, 24)


def test_parts_of_a_manual_split_are_not_uniform():
    class Look(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = Parameter(zeros(20, 16), "table")
            self.gather = ops.Gather().shard(((8, 1), (1, 8))).add_prim_attr("manual_split", (1, 2, 3, 4, 1, 5, 2, 2))

        def construct(self, x):
            return self.gather(self.table, x, 0)

    ms.set_auto_parallel_context(full_batch=True)
    net = Look()
    compiled(net, Tensor(np.zeros((4, 8), np.int32)))
    assert net.parameter_layout_dict["table"] == ([8], [0, -1], [5, 16], 0, False, "")  # rank 5's five rows


@each_of("mode", "data_parallel", "hybrid_parallel", "stand_alone")
def test_a_full_batch_in_a_mode_that_splits_no_inputs_is_refused(mode):
    """MindSpore, _CellGraphExecutor.compile: _check_full_batch. It was compiled."""
    ms.set_auto_parallel_context(parallel_mode=mode)
    with pytest.raises(RuntimeError, match="full_batch=True"):
        compiled(Net(), zeros(32, 24))


def test_there_are_no_layouts_before_compiling_and_where_no_operator_is_split():
    net = Net()
    assert net.parameter_layout_dict == {}
    ms.set_auto_parallel_context(parallel_mode="data_parallel", full_batch=False)
    compiled(net, zeros(32, 24))
    assert net.parameter_layout_dict == {}
    with pytest.raises(TypeError, match="parameter_layout_dict"):
        net.parameter_layout_dict = [1]


def test_operators_are_named_by_scope_class_and_number_from_the_end():
    net = Sum(Net(((2, 1), (4, 1)), ((2, 4),)))
    expected = {"Default/ReduceSum-op0": [[8, 1]], "Default/network-Net/ReLU-op1": [[2, 4]]}
    expected["Default/network-Net/MatMul-op2"] = [[2, 1], [4, 1]]
    compiled(net, zeros(32, 24))
    assert _executor._get_shard_strategy(net) == expected
    compiled(Net(), zeros(32, 24))  # numbers go on: 3 and 4
    again = Net()
    compiled(again, zeros(32, 24))
    assert list(_executor._get_shard_strategy(again)) == ["Default/ReLU-op5", "Default/MatMul-op6"]
    _reset_op_id()
    again = Net()
    compiled(again, zeros(32, 24))
    assert list(_executor._get_shard_strategy(again)) == ["Default/ReLU-op0", "Default/MatMul-op1"]


def test_the_scope_of_what_an_auto_parallel_holds_is_network():
    ms.set_auto_parallel_context(parallel_mode="stand_alone")
    net = AutoParallel(Net(((2, 1), (4, 1))), parallel_mode="semi_auto")
    compiled(net, zeros(32, 24))
    found = _executor._get_shard_strategy(net)
    assert found == {"Default/network-Net/ReLU-op0": [[8, 1]], "Default/network-Net/MatMul-op1": [[2, 1], [4, 1]]}
    assert net.parameter_layout_dict["weight"] == ([2, 4], [0, -1], [12, 24], 0, True, "")


def test_a_reshape_has_the_strategy_of_what_it_reads():
    class Flat(Net):
        def __init__(self):
            super().__init__(((4, 1), (1, 1)), ((4, 1),))
            self.reshape = ops.Reshape()

        def construct(self, x):
            return self.relu(self.reshape(self.matmul(x, self.w), (96, 16)))

    net = Flat()
    compiled(net, zeros(32, 24))
    found = _cell_graph_executor._get_shard_strategy(net)
    assert [v for k, v in found.items() if re.search("Reshape-op", k)] == [[[4, 1]]]


def test_nodes_of_the_graph_have_inputs_and_attributes():
    """x: whole, then rows split 2 ways, columns 4 ways: each product is an addend of 4, summed over ranks 4 to 7."""
    net = Net(((2, 4), (1, 4)), ((2, 1),))
    phase = compiled(net, zeros(32, 24))
    nodes = _cell_graph_executor._graph_executor.get_parallel_graph_info(phase)["@graph_0"]
    assert nodes["Load-0"]["inputs"] == ["weight", "U"]
    assert nodes["StridedSlice-0"]["inputs"][:3] == [
        "TupleGetItem-0",
        "(16, 0)",
        "(32, 24)",
    ]  # rank 5 of (2, 4): rows 1, columns 1
    assert nodes["StridedSlice-1"]["inputs"][:3] == ["StridedSlice-0", "(0, 6)", "(16, 12)"]
    assert nodes["MatMul-0"]["inputs"] == ["StridedSlice-1", "Load-0", False, True]
    assert nodes["MakeTuple-0"]["inputs"] == ["x"] and nodes["TupleGetItem-0"]["inputs"] == ["MakeTuple-0", 0]
    assert nodes["AllReduce-0"]["inputs"] == ["MatMul-0"] and nodes["ReLU-0"]["inputs"] == ["AllReduce-0"]
    attrs = nodes["AllReduce-0"]["attrs"]
    expected = {"op": "sum", "fusion": 0, "group_rank_ids": "(4, 5, 6, 7)", "rank_size": 4}
    assert {k: attrs[k] for k in expected} == expected
    assert nodes["MatMul-0"]["attrs"]["transpose_b"] is True and nodes["Return-0"]["inputs"] == ["Depend-0"]
    assert nodes["Depend-0"]["inputs"] == ["ReLU-0", "UpdateState-0"]


# what an operator is given behind tensors of (64, 32) -> the inputs of its node (recorded with 2.10; gen_ops_prim.py)
@each_of(
    ("name", "op", "more", "strategy", "expected"),
    ("ReduceSum", ops.ReduceSum(), (1,), ((8, 1),), ["x", "(1)", False, False]),
    ("ReduceMean", ops.ReduceMean(True), (), ((8, 1),), ["x", "()", True]),
    ("Softmax", ops.Softmax(), (), ((8, 1),), ["x", "(-1)"]),
    ("Transpose", ops.Transpose(), ((1, 0),), ((8, 1),), ["x", "(1, 0)"]),
    ("Concat", ops.Concat(1), "listed", ((8, 1),) * 2, ["MakeTuple-1", 1]),
    ("GatherD", ops.GatherD(), "between", ((8, 1),) * 2, ["x", 1, "y"]),
    ("Tile", ops.Tile(), ((1, 4),), ((2, 4),), ["x", "(1, 1)"]),
    ("Slice", ops.Slice(), ((0, 0), (64, 16)), ((8, 1),), ["x", "(0, 0)", "(8, 16)"]),
    ("Split", ops.Split(1, 2), (), ((8, 1),), ["x", 1, 2]),
    ("Mul", ops.Mul(), (0.25,), ((8, 1), ()), ["x", "Tensor(shape=[], dtype=Float32, value=0.25)"]),
)
def test_a_node_has_its_values_among_its_inputs(name, op, more, strategy, expected):
    class One(nn.Cell):
        def construct(self, x, y):
            if more == "listed":
                return op((x, y))
            return op(x, 1, ops.cast(y, ms.int32)) if more == "between" else op(x, *more)

    op.shard(strategy)
    (nodes,) = _executor.get_parallel_graph_info(compiled(One(), zeros(64, 32), zeros(64, 32))).values()
    found = nodes[f"{name}-0"]["inputs"]
    assert [b if a in ("x", "y") else a for a, b in zip(expected, found, strict=True)] == found


def test_nodes_are_numbered_from_the_results_backwards():
    """TopoSort: what the result reads first comes first, though it is called later; one of several results is a node
    where it is read; each reader has a slice of its own; parameters are waited for as they are called. As 2.10.
    """

    class Fork(nn.Cell):
        def __init__(self):
            super().__init__()
            self.a, self.b = Parameter(zeros(24, 8), "a"), Parameter(zeros(24, 8), "b")
            self.matmul, self.split = ops.MatMul().shard(((8, 1), (1, 1))), ops.Split(1, 2).shard(((8, 1),))

        def construct(self, x):
            early = self.matmul(x, self.b)
            parts = self.split(early)
            return self.matmul(x, self.a)[:, :4] + parts[1] * parts[0]

    (nodes,) = _executor.get_parallel_graph_info(compiled(Fork(), zeros(32, 24))).values()
    assert nodes["Load-0"]["inputs"] == ["a", "U"] and nodes["Load-1"]["inputs"] == ["b", "U"]
    assert [nodes[f"MatMul-{n}"]["inputs"][0] for n in (0, 1)] == ["StridedSlice-0", "StridedSlice-2"]
    assert nodes["StridedSlice-2"] == nodes["StridedSlice-0"] and nodes["TupleGetItem-0"]["inputs"] == [
        "MakeTuple-0",
        0,
    ]
    assert nodes["TupleGetItem-1"]["inputs"] == ["Split-0", 1] and nodes["TupleGetItem-2"]["inputs"] == ["Split-0", 0]
    assert nodes["MakeTuple-1"]["inputs"] == ["Load-1", "Load-0"]


def test_a_redistribution_is_nodes_with_its_shapes():
    """A product whose rows rank 5 has whole, read by columns: the last 24 of 48, as its second digit of (4, 2) is 1."""
    net = Net(((1, 1), (1, 1)), ((4, 2),))
    (nodes,) = _executor.get_parallel_graph_info(compiled(net, zeros(32, 24))).values()
    slices = [map(ast.literal_eval, node["inputs"][1:4]) for name, node in nodes.items() if "StridedSlice" in name]
    slices = [tuple(one) for one in slices]
    assert {(begin[0], end[0]) for begin, end, _ in slices} >= {(16, 24)}
    assert {(begin[1], end[1]) for begin, end, _ in slices} >= {(24, 48)}


def test_gradients_have_fusion_numbers_by_parameter():
    """MindSpore, GetAllreduceFusion: every all_reduce of a gradient; by default a Parameter's own number, 1."""

    class Biased(Net):
        def construct(self, x):
            return self.relu(self.matmul(x, self.w) + self.bias)

    net = Biased(((8, 1), (1, 1)))
    net.bias = Parameter(zeros(48), "bias")
    net.bias.comm_fusion = 4
    step = nn.TrainOneStepCell(Sum(net), nn.Momentum([net.w, net.bias], 0.1, 0.9))
    compiled(step, zeros(32, 24))
    assert _executor._get_allreduce_fusion(step) == {"network.w": 1, "network.bias": 4}


@each_of("result", None, ())
def test_a_network_that_returns_nothing_has_no_gradient(result):
    class Nothing(Net):
        def construct(self, x):
            self.matmul(x, self.w)
            return result

    step = nn.TrainOneStepCell(Nothing(), nn.Momentum(Nothing().trainable_params(), 0.1, 0.9))
    with pytest.raises(TypeError, match=r"a loss that is (None|\[\])"):
        compiled(step, zeros(32, 24))


def test_propagation_reaches_a_parameter_through_a_reshape():
    """It ended in KeyError 'w', where the way back from the reshape came before the operator that cuts it."""

    class Shared(Net):
        def construct(self, x):
            return self.matmul(ops.reshape(self.w, (48, 24)), self.w).sum() + x

    ms.set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="sharding_propagation")
    net = Shared(((2, 2), (2, 2)))
    compiled(net, zeros(32, 24))
    assert net.parameter_layout_dict["weight"][2] == [24, 12]


@each_of("search", "recursive_programming", "dynamic_programming")
def test_a_batch_of_one_is_no_label_of_a_search(search):
    """recursive_programming ended in KeyError: '1'."""
    ms.set_auto_parallel_context(parallel_mode="auto_parallel", search_mode=search)
    net = Net()
    net.w = Parameter(zeros(1, 16, 16), "w")
    net.matmul = ops.BatchMatMul()
    compiled(net, zeros(8, 16, 16))
    ways = _executor._get_shard_strategy(net)["Default/BatchMatMul-op1"]
    assert ways[1][0] == 1 and np.prod(ways[0]) <= 8


def test_a_window_is_taken_from_what_a_neighbour_holds():
    class Conv(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = Parameter(zeros(4, 3, 3, 3), "kernel")
            self.conv = ops.Conv2D(4, 3, pad_mode="same").shard(((1, 1, 8, 1), (1, 1, 1, 1)))

        def construct(self, x):
            return self.conv(x, self.w)

    net = Conv()
    (nodes,) = _executor.get_parallel_graph_info(compiled(net, zeros(8, 3, 16, 12))).values()
    assert nodes["NeighborExchangeV2-0"]["inputs"] == ["StridedSlice-0"]
    assert nodes["Conv2D-0"]["inputs"] == ["NeighborExchangeV2-0", "Load-0"]
    assert nodes["StridedSlice-0"]["inputs"][:3] == ["TupleGetItem-0", "(0, 0, 10, 0)", "(8, 3, 12, 12)"]


def test_messages_that_share_a_bucket_are_nodes_of_their_own():
    class Two(nn.Cell):
        def __init__(self):
            super().__init__()
            self.a, self.b = Parameter(zeros(24, 24), "a"), Parameter(zeros(24, 24), "b")
            self.first, self.second = ops.MatMul(), ops.MatMul()

        def construct(self, x):
            return self.second(self.first(x, self.a), self.b)

    ms.set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "auto", "config": None}})
    net = Two()
    step = nn.TrainOneStepCell(Sum(net), nn.SGD(net.trainable_params(), 0.1))
    forward, nodes = _executor.get_parallel_graph_info(compiled(step, zeros(32, 24))).values()
    assert (
        forward["_MirrorOperator-0"]["inputs"] == ["Load-0"] and forward["MatMul-0"]["inputs"][1] == "_MirrorOperator-0"
    )
    assert not [name for name in forward if forward[name]["attrs"].get("fusion")]
    gradients = [n for name, n in nodes.items() if name.startswith("AllReduce") and n["attrs"]["fusion"]]
    assert len(gradients) == 2 and all(n["inputs"][0].startswith("MatMul") for n in gradients)
    made = set(nodes) | {"U", "a", "b", "x"}
    named = [i for n in nodes.values() for i in n["inputs"] if isinstance(i, str) and re.search(r"-\d+$", i)]
    assert set(named) <= made


def test_a_phase_is_known_while_nothing_has_changed():
    net = Net(((8, 1), (1, 1)))
    phase, made = _cell_graph_executor.compile(net, zeros(32, 24))
    assert made and _cell_graph_executor.has_compiled(phase) and not _cell_graph_executor.has_compiled("another")
    assert _cell_graph_executor.compile(net, zeros(32, 24)) == (phase, False)
    net.matmul.shard(((4, 1), (2, 1)))
    assert _cell_graph_executor.compile(net, zeros(32, 24)) == (phase, True)
    assert net.parameter_layout_dict["weight"][0] == [4, 2]
    with pytest.raises(ValueError, match="phase"):
        _cell_graph_executor.get_parallel_graph_info("another")


class Forms(nn.Cell):
    """The same computation from inputs in several forms."""

    def __init__(self):
        super().__init__()
        self.w, self.matmul = Parameter(zeros(24, 8), "weight"), ops.MatMul().shard(((8, 1), (1, 1)))

    def construct(self, x, more=None, *, scale=1.0):
        if isinstance(x, dict):
            x = x["x"]
        elif isinstance(x, (tuple, list)):
            x, more = x
        out = self.matmul(x, self.w) * scale
        return out if more is None else out + more


X, MORE = zeros(32, 24), zeros(32, 8)


@each_of(
    ("args", "kwargs", "count"),
    ((X,), {}, 1),
    ((X, None), {}, 1),
    ((X, MORE), {}, 2),
    ((X, 2.0), {}, 1),
    ((X,), {"scale": 3.0}, 1),
    ((X,), {"more": MORE}, 2),
    (((X, MORE),), {}, 2),
    (([X, MORE],), {}, 2),
    (({"x": X},), {}, 1),
)
def test_inputs_come_in_many_forms(args, kwargs, count):
    net = Forms()
    assert _cell_graph_executor.compile(net, *args, **kwargs)[1]
    assert len(net.compiled.plan.data_inputs) == count
    net.compile(*args, **kwargs)
    assert net.parameter_layout_dict["weight"] == ([8], [-1, -1], [24, 8], 0, True, "")


def test_inputs_may_be_set_before_or_not_be_needed():
    net = Forms()
    assert net.get_inputs() is None
    net.set_inputs(X, MORE)
    net.compile()
    assert len(net.compiled.plan.data_inputs) == 2 and net.get_inputs() == (X, MORE)

    class Own(Forms):
        def construct(self):
            return self.matmul(X, self.w)

    net = Own().set_train()
    assert _cell_graph_executor.compile(net)[1]
    assert list(_cell_graph_executor._get_shard_strategy(net).values()) == [[[8, 1], [1, 1]]]


@each_of("args", (), (X, MORE, 1))
def test_inputs_that_construct_does_not_take_are_refused(args):
    with pytest.raises(TypeError, match=r"construct\(x, more=None"):
        _cell_graph_executor.compile(Forms(), *args)


def test_a_network_is_compiled_and_run_and_on_one_device_strategies_mean_nothing():
    ms.set_auto_parallel_context(parallel_mode="stand_alone", device_num=1, global_rank=0, full_batch=False)
    net = Forms()
    net.w.set_data(np.ones((24, 8), np.float32))
    out = net.compile_and_run(Tensor(np.ones((2, 24), np.float32)))
    assert (out.asnumpy() == 24).all() and net.parameter_layout_dict == {}


def test_a_model_tells_what_training_compiled_of_its_network():
    """32 rows a rank: the whole batch has 256. Without a strategy rows are split among all."""
    net = Net(((4, 1), (2, 1)))
    model = ms.Model(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    batch = np.zeros((32, 24), np.float32), np.zeros(32, np.int32)
    model.train(1, ms.dataset.NumpySlicesDataset(batch, shuffle=False).batch(32), dataset_sink_mode=False)
    found = _cell_graph_executor._get_shard_strategy(model._train_network)
    backbone = "Default/network-WithLossCell/_backbone-Net"
    assert found[f"{backbone}/MatMul-op2"] == [[4, 1], [2, 1]] and found[f"{backbone}/ReLU-op1"] == [[8, 1]]
    assert model._train_network.parameter_layout_dict["weight"] == ([4, 2], [0, -1], [24, 24], 0, True, "")


def test_a_device_number_without_a_mode_is_said_to_have_no_effect():
    """As in MindSpore the program is one device's; nothing said so."""
    ms.set_auto_parallel_context(device_num=8, global_rank=0, parallel_mode="stand_alone", full_batch=False)
    net = Net(((2, 1), (4, 1)))
    net.compile(zeros(32, 24))
    plan = net.compiled.plan
    assert plan.device_num == 1
    assert "device_num=8 has no effect" in dict(plan.notes)["trace"] and "device_num=8 has no effect" in plan.text()
    ms.set_auto_parallel_context(device_num=1)
    net.compile(zeros(32, 24))
    assert "no effect" not in net.compiled.plan.text()


@each_of(
    "op",
    lambda: ops.AlltoAll(split_count=8, split_dim=0, concat_dim=1),
    lambda: ops.NeighborExchange([0], [1], ([8, 8],), ([8, 8],), ms.float32),
)
def test_messages_by_hand_compile_for_the_ranks_that_are_named_without_a_mode(op):
    """Also a rank's message to itself, which a run refuses: nothing runs here."""

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.op = op()

        def construct(self, x):
            return self.op((x,) if isinstance(self.op, ops.NeighborExchange) else x)

    ms.set_auto_parallel_context(parallel_mode="stand_alone", full_batch=False, global_rank=0)
    net = Net()
    compiled(net, zeros(8, 8))
    with pytest.raises(RuntimeError):
        net(zeros(8, 8))


class Staged(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = Net(), Net()
        self.first.w, self.second.w = Parameter(zeros(24, 24), "w"), Parameter(zeros(24, 24), "w")
        self.first.pipeline_stage, self.second.pipeline_stage = 0, 1

    def construct(self, x, label):
        return self.second(self.first(x))


@each_of(("rank", "here"), (0, "first"), (7, "second"))
def test_a_rank_lists_the_parameters_of_its_own_stage(rank, here):
    """MindSpore removes the others; here the network keeps them, and compiles for another rank."""
    ms.set_auto_parallel_context(global_rank=rank, pipeline_stages=2)
    net = nn.PipelineCell(Staged(), 2)
    assert len(net.trainable_params()) == 2
    compiled(net, zeros(32, 24), zeros(32, 24))
    assert [name for name, _ in net.parameters_and_names()] == [f"network.{here}.w"]
    ms.set_auto_parallel_context(global_rank=7 - rank)
    compiled(net, zeros(32, 24), zeros(32, 24))
    assert [name for name, _ in net.parameters_and_names()] != [f"network.{here}.w"]


@each_of(
    ("shapes", "wrap"),
    (([[8, 8]], ([8, 8],)), lambda x: (x,)),
    ((([8, 8],), [8, 8]), lambda x: (x,)),
    ((([8, 8],), ([8, 8],)), lambda x: x),
)
def test_neighbours_exchange_tuples(shapes, wrap):
    """A list of shapes, or a Tensor without a tuple, was taken."""
    op = ops.NeighborExchange([0], [1], *shapes, ms.float32)

    class Exchange(nn.Cell):
        def construct(self, x):
            return op(wrap(x))

    ms.set_auto_parallel_context(parallel_mode="data_parallel", dataset_strategy="data_parallel")
    with pytest.raises(TypeError, match=r"NeighborExchange.*tuple"):
        _cell_graph_executor.compile(Exchange(), zeros(8, 8))


def test_a_strategy_per_input_counts_whatever_full_batch_says_in_2_10():
    try:
        set_compat("2.10")
        ms.set_auto_parallel_context(dataset_strategy=((2, 1),), full_batch=True)
        net = Net(((2, 1), (4, 1)))
        compiled(net, zeros(32, 24))
    finally:
        set_compat("seeds")
    assert net.compiled.plan.data_inputs[0].shape == (64, 24)
    with pytest.raises(RuntimeError, match="give dataset_strategy two values"):
        ms.set_auto_parallel_context(dataset_strategy=((2, 1),), full_batch=True)
