"""Scripts that import from MindSpore's own modules: compile without running, read settings, save what was compiled."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.common.api import _cell_graph_executor
from parallel_lab.mindspore.nn.wrap.cell_wrapper import _VirtualDatasetCell
from parallel_lab.mindspore.ops._primitive_cache import _get_cache_prim
from parallel_lab.mindspore.ops.operations.comm_ops import _VirtualDataset
from parallel_lab.mindspore.parallel import (
    _cost_model_context,
    _tensor,
    _utils,
    restore_group_info_list,
    set_op_strategy_config,
)
from parallel_lab.mindspore.parallel._auto_parallel_context import auto_parallel_context
from parallel_lab.mindspore.parallel._cost_model_context import reset_cost_model_context, set_cost_model_context

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import MissingName, ParallelLabError, StrategyError
from parallel_lab.base.settings.context import reset_auto_parallel_context
from parallel_lab.mindspore import Parameter, Tensor, nn, ops
from parallel_lab.train.checkpoint.strategy_file import load_strategy
from tests.crossed import each_of

X = Tensor(np.ones((8, 16), np.float32))


@pytest.fixture(autouse=True)
def eight_ranks():
    ms.set_auto_parallel_context(device_num=8, global_rank=1, parallel_mode="semi_auto_parallel", full_batch=True)
    yield
    reset_auto_parallel_context()


class Net(nn.Cell):
    """x @ w with w: (16, 8)."""

    def __init__(self, strategy=((2, 2), (2, 1))):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((16, 8), np.float32)), "w")
        self.matmul = ops.MatMul().shard(strategy) if strategy else ops.MatMul()

    def construct(self, x, scale=None):
        out = self.matmul(x, self.w)
        return out if scale is None else out * scale


def test_a_network_is_compiled_by_the_context_and_not_run():
    net = _VirtualDatasetCell(Net())
    net.set_train()
    assert _cell_graph_executor.compile(net, X, 2.0, phase="train")[1]
    assert [[2, 2], [2, 1]] in _cell_graph_executor._get_shard_strategy(net).values()
    assert _cell_graph_executor.get_layouts(net)["w"].splits == (2, 1)
    with pytest.raises(StrategyError, match="matmul"):
        _cell_graph_executor.compile(Net(((2, 2), (4, 1))), X)
    with pytest.raises(TypeError, match="was not compiled"):
        _cell_graph_executor._get_shard_strategy(Net())


def test_tensors_in_tuples_lists_and_dicts_are_inputs_too():
    """They were constants, and without other inputs an error about dataset_strategy=()."""

    class Sum(nn.Cell):
        def construct(self, pair, more, factor=None):
            return pair[0] * pair[1] + more["x"][0] * factor

    ms.set_auto_parallel_context(full_batch=False, dataset_strategy="data_parallel")
    net = Sum()
    _cell_graph_executor.compile(net, (X, X), {"x": [X], "y": None}, 2.0)
    plan = net.compiled.plan
    assert [i.name for i in plan.graph.inputs if i.role == "data"] == ["pair_0", "pair_1", "more_0"]
    assert plan.value("more_0").layout.splits == (8, 1)


@each_of("mode", "stand_alone", "data_parallel", "semi_auto_parallel")
def test_a_network_may_have_no_inputs(mode):
    class Square(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w, self.mul = Parameter(X, "w"), ops.Mul().shard(((2, 2), (2, 2)))

        def construct(self):
            return self.mul(self.w, self.w)

    ms.set_auto_parallel_context(parallel_mode=mode, full_batch=False)
    net = Square()
    _cell_graph_executor.compile(net)
    assert _cell_graph_executor.get_layouts(net)["w"].splits == ((2, 2) if mode == "semi_auto_parallel" else (1, 1))


class Branches(nn.Cell):
    """Four layers next to eight, 128 x 128, as in MindSpore's test_allreduce_fusion.py."""

    def __init__(self):
        super().__init__()
        self.short, self.long = (
            nn.SequentialCell([nn.Dense(128, 128, has_bias=False) for _ in range(n)]) for n in (4, 8)
        )

    def construct(self, x):
        return self.short(x) + self.long(x)


@each_of(
    ("algorithm", "second"),
    (0, set()),
    (1, {"short.1", "short.2", "short.3", "long.5", "long.6", "long.7"}),  # what that test states; the others are 1
)
def test_the_numbers_that_the_cost_model_gives_to_messages_are_shown(algorithm, second):
    net = Branches()
    ms.set_auto_parallel_context(device_num=4, full_batch=False, dataset_strategy="data_parallel")
    times = {"costmodel_allreduce_fusion_times": 2, "costmodel_allreduce_fusion_tail_percent": 0.5}
    set_cost_model_context(costmodel_allreduce_fusion_algorithm=algorithm, multi_subgraphs=False, **times)
    try:
        loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(reduction="mean"))
        step = nn.TrainOneStepCell(loss, nn.SGD(net.trainable_params(), 0.1))
        _cell_graph_executor.compile(step, *[Tensor(np.ones((32, 128), np.float32))] * 2)
        told = _cell_graph_executor._get_allreduce_fusion(step)
    finally:
        reset_cost_model_context()
    names = [p.name for p in net.trainable_params()]
    assert told == {name: 1 + (name.rpartition(".")[0] in second) for name in names}


def test_strategies_have_no_effect_without_a_parallel_mode():
    ms.set_auto_parallel_context(parallel_mode="stand_alone", full_batch=False, device_num=1, global_rank=0)
    net = Net(((2, 4), (4, 1)))
    _cell_graph_executor.compile(net, X)
    assert _cell_graph_executor.get_layouts(net)["w"].splits == (1, 1)


@pytest.mark.parametrize("by", ["context", "environment"])
def test_the_ranks_with_the_same_slices_are_saved(tmp_path, by, monkeypatch):
    """The device matrix is (2, 2, repeated 2): rank 1 shares w's first half with the ranks whose second digit is 0."""
    file = tmp_path / ("new/group.pb" if by == "context" else "group.pb")  # the context makes folders
    if by == "context":
        ms.set_auto_parallel_context(group_ckpt_save_file=str(file))
    else:
        monkeypatch.setenv("GROUP_INFO_FILE", str(file))
    _cell_graph_executor.compile(Net(), X)
    assert restore_group_info_list(str(file)) == [0, 1, 4, 5]
    assert ms.restore_group_info_list is restore_group_info_list
    file.write_text("{}")
    for wrong, kind in ((str(file), ValueError), (str(tmp_path / "no"), ValueError), (3, TypeError)):
        with pytest.raises(kind):
            restore_group_info_list(wrong)


def test_strategies_of_operators_are_saved_and_taken_again(tmp_path):
    path = str(tmp_path / "new" / "operators.json")
    ms.set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="sharding_propagation")
    set_op_strategy_config("SAVE", path)
    _cell_graph_executor.compile(Net(), X)
    assert load_strategy(path).strategies["matmul"] == ((2, 2), (2, 1))
    set_op_strategy_config("LOAD", path)
    again = Net(None)
    _cell_graph_executor.compile(again, X)
    assert [[2, 2], [2, 1]] in _cell_graph_executor._get_shard_strategy(again).values()


@each_of(("mode", "path"), ("SAVE", "s.json"), ("SAVE", "/tmp/s.ckpt"), ("STORE", "/tmp/s.json"))
def test_a_wrong_form_of_saving_strategies_is_refused(mode, path):
    with pytest.raises(KeyError, match="set_op_strategy_config"):
        set_op_strategy_config(mode, path)


def test_settings_are_read_as_mindspores_own_modules_read_them():
    assert (_utils._get_device_num(), _utils._get_global_rank(), _utils._get_full_batch()) == (8, 1, True)
    assert _utils._is_in_auto_parallel_mode() and not _utils._is_in_data_parallel_mode()
    context = auto_parallel_context()
    context.set_device_num(4)
    context.set_all_reduce_fusion_split_indices([3, 5])
    assert (context.get_device_num(), context.get_all_reduce_fusion_split_indices()) == (4, [3, 5])
    with pytest.raises(MissingName, match="set_ or get_"):
        _ = context.device_num
    with pytest.raises(ValueError, match="colour"):
        context.set_colour(3)


def test_decorators_and_caches_of_the_graph_compiler_leave_things_as_they_are():
    from parallel_lab.mindspore._extends import cell_attr_register
    from parallel_lab.mindspore.ops.primitive import _primexpr

    assert cell_attr_register(attrs=["a"])(Net) is Net and _primexpr(len) is len
    assert _get_cache_prim(ops.Add) is ops.Add


def test_an_auto_parallel_is_compiled_by_its_own_settings():
    """8 ranks with whole w's, each shared by 4 (hsdp): 16 rows / 4, and an all_gather."""
    reset_auto_parallel_context()
    ms.set_auto_parallel_context(device_num=8)
    net = Net(((8, 1), (1, 1)))
    parallel = ms.parallel.auto_parallel.AutoParallel(nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)))
    parallel.dataset_strategy("full_batch")
    parallel.hsdp(shard_size=4, threshold=0)
    _cell_graph_executor.compile(parallel, X, phase="train")
    plan = parallel.compiled.plan
    assert plan.config.parallel_mode == "semi_auto_parallel"
    assert plan.value(plan.parameters[0].name).slice_shape == (4, 8)
    assert "all_gather" in {instr.kind for _, instr in plan.instructions()}


def test_shapes_and_values_of_what_all_ranks_feed():
    reset_auto_parallel_context()
    assert _utils._to_full_shapes([[4, 3], [2]], 8) == [(32, 3), (16,)]
    (whole, sens) = _utils._to_full_tensor(Tensor(np.ones((4, 3), np.float32)), 8, 1, 2.0)
    assert whole.asnumpy().sum(axis=1).tolist() == [0.0] * 4 + [3.0] * 4 + [0.0] * 24 and float(sens) == 2.0
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy=((1, 2), (1,)))
    assert _utils._need_to_full() and _utils._to_full_shapes([[4, 3], [2]], 8) == [(4, 6), (2,)]
    (whole, same) = _utils._to_full_tensor((np.ones((4, 3)), np.ones(2)), 8, 3)
    assert whole.shape == (4, 6) and whole.asnumpy()[:, 3:].all() and not whole.asnumpy()[:, :3].any()
    assert same.asnumpy().tolist() == [1.0, 1.0]
    for call in (lambda: _utils._to_full_shapes([[4, 3]], 8), lambda: _utils._to_full_tensor(np.ones(2), 8, 8)):
        with pytest.raises(ValueError):
            call()


def test_devices_and_batches_are_checked_as_the_modes_want():
    ms.set_auto_parallel_context(parallel_mode="data_parallel", full_batch=True)
    with pytest.raises(RuntimeError, match="full_batch"):
        _utils._check_full_batch()
    _utils._device_number_check("data_parallel", 8)
    with pytest.raises(ValueError, match="stand_alone"):
        _utils._device_number_check("stand_alone", 8)
    with pytest.raises(ValueError, match="parameter_broadcast"):
        _utils._parameter_broadcast_check("stand_alone", True)


def test_the_context_as_an_object_says_what_was_set_and_what_stands_in_dicts():
    held = auto_parallel_context()
    assert held.get_device_num_is_set() and not held.get_parameter_broadcast_is_set()
    ms.set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "size", "config": 16}})
    ms.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 24})
    assert (held.allreduce_fusion_threshold_mb(), held.allgather_fusion_threshold_mb()) == (16, 64)
    assert held.get_enable_all_reduce_fusion() and held.get_parallel_optimizer_threshold() == 24
    held.set_comm_fusion({"openstate": False})
    assert not held.get_enable_reduce_scatter_fusion()
    held.reset()
    assert held.get_device_num() == 1 and not held.get_device_num_is_set()


def test_inputs_that_are_said_to_come_from_a_dataset_pass_as_they_are():
    class Fed(Net):
        def __init__(self):
            super().__init__()
            self.fed = _VirtualDataset().shard(((8, 1), (1, 1)))

        def construct(self, x, y):
            x, y = self.fed(x, y)
            return super().construct(x) + self.fed(y)

    assert _cell_graph_executor.compile(Fed(), X, Tensor(np.ones((8, 8), np.float32)))[1]


def test_a_cell_of_a_virtual_dataset_holds_its_operator():
    """Scripts give the operator attributes or a strategy, and neither changes what the network computes."""
    cell = _VirtualDatasetCell(nn.ReLU())
    cell._virtual_dataset.add_prim_attr("tag", 1)
    assert cell._virtual_dataset.shard(((2, 1),)) is cell._virtual_dataset
    assert cell(Tensor(np.array([-1.0, 2.0], np.float32))).asnumpy().tolist() == [0, 2]


class Rows(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(np.zeros((64, 32), np.float32)), "table")
        self.gather, self.mean = ops.Gather().shard(((4, 1), (1, 1))), ops.ReduceMean().shard(((2, 1, 2),))

    def construct(self, x):
        return self.mean(self.gather(self.table, x, 0))


def test_rows_of_other_slices_are_masked_and_a_repeated_loss_is_divided():
    """Nodes as MindSpore 2.10 writes them; rank 5 of (4 parts, 2 repeats) has rows 32 to 47."""
    ms.set_auto_parallel_context(global_rank=5)
    step = nn.TrainOneStepCell(net := Rows(), nn.SGD(net.trainable_params()))
    phase, _ = _cell_graph_executor.compile(step.set_train(), Tensor(np.zeros((16, 8), np.int32)))
    nodes = _cell_graph_executor._graph_executor.get_parallel_graph_info(phase)["@graph_0"]
    number = "Tensor(shape=[], dtype={}, value={})".format
    expected = {
        "Sub-0": ["TupleGetItem-0", number("Int32", 32)],
        "ReLU-0": ["Sub-0"],
        "Minimum-0": ["ReLU-0", number("Int32", 15)],
        "Gather-0": ["_MirrorOperator-0", "Minimum-0", 0, 0],
        "Equal-0": ["Sub-0", "Minimum-0"],
        "DType-0": ["Gather-0"],
        "DtypeToEnum-0": ["DtypeToEnum", "dtype", "DType-0"],
        "Cast-0": ["Equal-0", "DtypeToEnum-0"],
        "ExpandDims-0": ["Cast-0", -1],
        "Mul-0": ["Gather-0", "ExpandDims-0"],
        "AllReduce-0": ["Mul-0"],
        "ReduceMean-0": ["_VirtualDiv-0", "()", False],
        "RealDiv-0": ["AllReduce-1", number("Float32", 4)],
    }
    assert {name: nodes[name]["inputs"] for name in expected} == expected
    assert "_VirtualDiv-1" not in nodes and nodes["_VirtualDiv-0"]["inputs"] != nodes["ReduceMean-0"]["inputs"]


def test_constants_of_the_searches_have_functions_of_their_own():
    _cost_model_context._set_rp_matmul_mem_coef(1024)
    _cost_model_context._set_algo_single_loop(False)
    assert _cost_model_context._get_rp_matmul_mem_coef() == 1024.0
    assert _cost_model_context._get_algo_single_loop() is False
    reset_cost_model_context()
    assert (_cost_model_context._get_rp_matmul_mem_coef(), _cost_model_context._get_algo_single_loop()) == (0.1, True)
    with pytest.raises(TypeError, match="multi_subgraphs"):
        _cost_model_context._set_multi_subgraphs(1)


def test_slices_by_device_matrix_and_tensor_map():
    """Rank 5 of [2, 4] is (1, 1): with map [0, 1] row part 1 of 4, column part 1 of 2; slice 1 * 2 + 1."""
    whole = np.arange(32.0).reshape(8, 4)
    assert _tensor._get_tensor_strategy([2, 4], [0, 1]) == [4, 2]
    assert _tensor._get_tensor_slice_index([2, 4], [4, 2], [0, 1], 5) == 3
    assert _tensor._get_slice_index([2, 4], [0, -1]) == 1  # of this rank, which is 1
    assert np.array_equal(_tensor._load_tensor(Tensor(whole), [2, 4], [0, 1], rank_id=5).asnumpy(), whole[2:4, 2:])
    assert np.array_equal(_tensor._load_tensor_by_layout(Tensor(whole), ([2, 4], [0, -1])).asnumpy(), whole[2:4])
    with pytest.raises(TypeError, match="device matrix"):
        _tensor._load_tensor_by_layout(Tensor(whole), 3)


@each_of(
    "name, given",
    ("_load_tensor", (Tensor(np.ones(4)), "24", np.int8(1))),
    ("_load_tensor", (Tensor(np.ones(4)), [2, 4], [1.5])),
    ("_load_tensor", (Tensor(np.ones(4)), [2, 4], [0], None, "0")),
    ("_load_tensor", ([object()], [2, 4], [0])),
    ("_load_tensor_by_layout", (Tensor(np.ones(4)), ([2, 4], [0]), b"")),
    ("_get_tensor_strategy", ([2, 4], 0)),
    ("_get_tensor_slice_index", ([2, 4], [4, 2, 1], [0, 1], 5)),
    ("_get_tensor_slice_index", ([2, 4], np.ones((2, 2)), [0, 1], 5)),
)
def test_bad_layouts_of_slices_are_refused_in_words(name, given):
    with pytest.raises(ParallelLabError):
        getattr(_tensor, name)(*given)


def test_steps_with_slices_are_the_steps_of_this_package():
    assert ms.nn.wrap.cell_wrapper._TrainGradAccuStepCell is nn.TrainOneStepCell
    assert ms.nn.wrap.loss_scale._TrainPipelineWithLossScaleCell is nn.TrainOneStepWithLossScaleCell


def test_summaries_and_dumps_leave_a_compiled_network_as_it_is(tmp_path):
    class Noted(Net):
        def __init__(self):
            super().__init__()
            self.scalar, self.picture, self.dump = ops.ScalarSummary(), ops.HistogramSummary(), ops.TensorDump()

        def construct(self, x):
            out = super().construct(x)
            self.scalar("sum", out.sum())
            self.picture("out", out)
            self.dump(str(tmp_path / "out"), out)
            return out

    kinds = []
    for net in (Noted(), Net()):
        _cell_graph_executor.compile(net, X)
        kinds.append([i.op for _, i in net.compiled.plan.instructions("forward") if i.kind == "compute"])
    assert set(kinds[0]) - set(kinds[1]) <= {"reduce_sum"} and not list(tmp_path.iterdir())
    ops.TensorDump()(str(tmp_path / "x.npy"), X)
    assert np.array_equal(np.load(tmp_path / "x_float32_0.npy"), X.asnumpy())
    with pytest.raises(ValueError, match="single element"):
        ops.ScalarSummary()("x", X)


def test_a_rank_that_sends_nothing_exchanges_without_an_argument():
    op = ops.NeighborExchange([], [1], ([8, 8],), (), ms.float32)

    class Exchange(nn.Cell):
        def construct(self, x):
            return op()[0] + x

    ms.set_auto_parallel_context(parallel_mode="data_parallel", dataset_strategy="data_parallel", global_rank=0)
    net = Exchange()
    _cell_graph_executor.compile(net, Tensor(np.ones((8, 8), np.float32)))
    assert "recv" in {i.kind for _, i in net.compiled.plan.instructions()}
