"""Parameters that hold a rank's slice before anything runs: init_data with a layout in MindSpore's form."""

from __future__ import annotations

import numpy as np
import pytest
from parallel_lab.mindspore.common.api import _cell_graph_executor
from parallel_lab.mindspore.common.initializer import initializer

import parallel_lab.mindspore as ms
from parallel_lab.base.settings.context import reset_auto_parallel_context
from parallel_lab.mindspore import Parameter, Tensor, nn, ops
from tests.crossed import each_of

RANK = 5


@pytest.fixture(autouse=True)
def eight_ranks():
    ms.set_auto_parallel_context(device_num=8, global_rank=RANK, parallel_mode="semi_auto_parallel")
    yield
    reset_auto_parallel_context()


def parameter(requires_grad=True):
    return Parameter(initializer("normal", [64, 32]), "w", requires_grad=requires_grad)


# rank 5 of the matrix (2, 4) has the digits 1 and 1
@each_of(
    ("layout", "rows", "columns"),
    (([2, 4], [1, -1], [32, 32], 0, True, ""), slice(32, 64), slice(0, 32)),
    (([2, 4], [0, 1], [16, 16], 0, True, ""), slice(16, 32), slice(16, 32)),
    (([2, 4], [-1, 0], [64, 8], 0, True, ""), slice(0, 64), slice(8, 16)),
    (([2, 4], [[1, 0], -1], [8, 32], 0, True, ""), slice(40, 48), slice(0, 32)),
    (([2, 4], [1, -1], [8, 32], 0, True, "4-5-6-7"), slice(40, 48), slice(0, 32)),
    (([8], [-1, -1], [64, 32], 0, True, ""), slice(0, 64), slice(0, 32)),
)
def test_a_slice_is_that_part_of_the_whole_draw(layout, rows, columns):
    whole, part = parameter().asnumpy(), parameter().init_data(layout)
    assert np.array_equal(part.asnumpy(), whole[rows, columns])
    assert part.sliced == (part.shape != (64, 32)) and part.full_shape == (64, 32)


@each_of(
    ("layout", "kind"),
    ([[2, 4], [1, -1], [32, 32], 0, True, ""], TypeError),
    (([2, 4], [1, -1], [32, 32]), ValueError),
    (("a", [1, -1], [32, 32], 0, True, ""), TypeError),
    (([2, 4], [1, -1], [16, 32], 0, True, ""), ValueError),
    (([2, 4], [5, -1], [32, 32], 0, True, ""), ValueError),
    (([3, 4], [1, -1], [32, 32], 0, True, ""), ValueError),
    (([2, 2], [1, -1], [32, 32], 0, True, ""), ValueError),
    (([2, 4], [1, -1], [16, 32], 0, True, "4-5"), ValueError),
    (([2, 4], [1, -1], [16, 32], 0, True, "a"), ValueError),
    (([2, 4], [1, -1], [32, 32], 0, False, ""), ValueError),
)
def test_layouts_of_another_form_are_refused(layout, kind):
    with pytest.raises(kind, match="layout"):
        parameter().init_data(layout)


class Net(nn.Cell):
    def __init__(self, strategy):
        super().__init__()
        self.w, self.matmul, self.sum = parameter(), ops.MatMul().shard(strategy), ops.ReduceSum()

    def construct(self, x):
        return self.sum(self.matmul(x, self.w))


@each_of("sharded", False, True)
@each_of("strategy", ((2, 2), (2, 2)), ((1, 2), (2, 1)), ((4, 1), (1, 2)), ((1, 1), (1, 8)), ((8, 1), (1, 1)))
def test_compiled_layouts_give_each_rank_what_its_plan_says(strategy, sharded):
    """The optimizer parallel divides what the ranks with equal slices would hold alike."""
    ms.set_auto_parallel_context(enable_parallel_optimizer=sharded)
    ms.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 0})
    net = Net(strategy)
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    _cell_graph_executor.compile(step, Tensor(np.zeros((16, 64), np.float32)))
    value = step.compiled.plan.value("w")
    part = parameter().init_data(step.parameter_layout_dict["w"], set_sliced=True)
    assert np.array_equal(part.asnumpy(), parameter().asnumpy()[value.layout.slice_index((64, 32), RANK)])


def test_slices_of_an_initializer_are_drawn_by_their_index():
    rule = initializer("normal", [8, 4])
    first, again, other = (rule.init_data(i, [2, 4]).asnumpy() for i in (0, 0, 1))
    assert first.shape == (2, 4) and np.array_equal(first, again) and not np.array_equal(first, other)
    assert (initializer("ones", [8, 4]).init_data(slice_index=3, shape=[2, 4]).asnumpy() == 1).all()
    assert rule.init_data() is rule


@each_of(
    ("args", "kind"),
    ((-1, [2, 4]), ValueError),
    (("a", [2, 4]), TypeError),
    ((0, 3), TypeError),
    ((0, [2.0]), TypeError),
)
def test_other_indices_and_shapes_are_refused(args, kind):
    with pytest.raises(kind, match="init_data"):
        initializer("ones", [8, 4]).init_data(*args)


def test_a_tensor_with_its_values_draws_none():
    with pytest.raises(TypeError, match="initializer"):
        Tensor([1.0]).init_data()


@each_of("name", "layerwise_parallel", "parallel_optimizer", "parallel_optimizer_comm_recompute", "requires_grad")
def test_flags_of_a_parameter_are_true_or_false(name):
    one = parameter()
    setattr(one, name, True)
    assert getattr(one, name) is True
    with pytest.raises(TypeError, match=name):
        setattr(one, name, 3)


def test_set_data_takes_another_shape_if_asked():
    one = parameter()
    with pytest.raises(ValueError, match="shape"):
        one.set_data(Tensor(np.zeros((32, 32), np.float32)))
    for wrong in (None, "a"):
        with pytest.raises(TypeError, match="data"):
            one.set_data(wrong, slice_shape=True)
    one.set_data(Tensor(np.zeros((32, 32), np.float32)), slice_shape=True)
    assert (one.shape, one.full_shape) == ((32, 32), (32, 32)) and not one.asnumpy().any()
