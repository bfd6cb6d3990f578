"""Dense, activations, and the Cells that hold others in order."""

from collections import OrderedDict

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.base.errors import CellError, ParallelLabError, ShapeError
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.ops.machine.primitive import Primitive
from tests.crossed import each_of
from tests.nets import cell
from tests.recorded import nets
from tests.refusals import refused

X = np.random.default_rng(7).normal(size=(6, 4)).astype(np.float32)


# ---- Dense ----


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (2, 1, 3, 4)])
def test_dense_takes_inputs_of_any_rank(shape):
    dense, x = nn.Dense(4, 3, activation="tanh"), np.resize(X, shape)
    expected = np.tanh(x @ dense.weight.asnumpy().T + dense.bias.asnumpy())
    result = dense(Tensor(x))
    assert result.shape == (*shape[:-1], 3)
    np.testing.assert_allclose(result.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_default_initial_values_are_uniform_within_one_over_the_root_of_the_inputs():
    dense = nn.Dense(100, 200)
    for values, least in ((dense.weight.asnumpy(), 0.0999), (dense.bias.asnumpy(), 0.09)):
        assert least < np.abs(values).max() <= 0.1
        assert values.std() == pytest.approx(0.1 / np.sqrt(3), rel=0.1)


def test_initial_values_can_be_given():
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    dense = nn.Dense(4, 3, weight_init=Tensor(values), bias_init="ones")
    np.testing.assert_array_equal(dense.weight.asnumpy(), values)
    np.testing.assert_array_equal(dense.bias.asnumpy(), np.ones(3))
    with pytest.raises(ShapeError, match=r"values of shape \(3, 4\)\. Shape \(4, 3\)"):
        nn.Dense(3, 4, weight_init=Tensor(values))


def test_without_bias_there_is_no_bias():
    dense = nn.Dense(4, 3, has_bias=False)
    assert dense.bias is None
    assert [p.name for p in dense.get_parameters()] == ["weight"]
    np.testing.assert_allclose(dense(Tensor(X)).asnumpy(), X @ dense.weight.asnumpy().T, rtol=1e-5, atol=1e-6)


def test_the_operators_of_dense_can_be_sharded():
    dense = nn.Dense(4, 8)
    dense.matmul.shard(((2, 1), (4, 1)))
    dense.bias_add.shard(((2, 4), (4,)))
    assert isinstance(dense.matmul, Primitive)
    assert (dense.matmul.name, dense.matmul.instance_name) == ("MatMul", "matmul")
    assert dense.matmul.given == {"transpose_b": True}
    assert (dense.bias_add.name, dense.bias_add.instance_name) == ("BiasAdd", "bias_add")


@pytest.mark.parametrize("activation", [nn.ReLU(), ops.ReLU(), "relu"], ids=["cell", "primitive", "name"])
def test_dense_takes_its_activation_as_cell_primitive_or_name(activation):
    dense = nn.Dense(4, 3, activation=activation)
    plain = X @ dense.weight.asnumpy().T + dense.bias.asnumpy()
    np.testing.assert_allclose(dense(Tensor(X)).asnumpy(), np.maximum(plain, 0), rtol=1e-5, atol=1e-6)


test_unfit_arguments_of_dense_are_refused = refused(
    ({"activation": "reluu"}, ValueError, "'reluu' is not known.*relu, gelu"),
    ({"activation": 3}, TypeError, "A name, a Cell"),
    ({"weight_init": "norml"}, ValueError, "'norml' is not known"),
    by=lambda given: nn.Dense(**{"in_channels": 4, "out_channels": 3, **given}),
)


@pytest.mark.parametrize("shape", [(), (4, 3), (5,)])
def test_dense_refuses_other_input_sizes(shape):
    with pytest.raises(ShapeError, match=r"Dense 'd1': an input of shape .* 4 elements"):
        nets.Mlp(4, 6, 2).d1(Tensor(np.ones(shape)))


# ---- activations ----


@pytest.mark.parametrize("name", nn.ACTIVATIONS)
def test_an_activation_is_had_by_its_name(name):
    assert type(nn.get_activation(name)).__name__.lower() == name.replace("_", "")


def test_softmax_takes_an_axis():
    np.testing.assert_allclose(nn.Softmax(0)(Tensor(X)).asnumpy().sum(0), np.ones(4), rtol=1e-6)
    with pytest.raises(TypeError, match="axis=None"):
        nn.Softmax(None)


# ---- in order ----


def times(factor):
    """x * factor."""
    return cell(lambda net, x: x * net.factor + 1.0, factor=Parameter(Tensor(float(factor))))


def factors(cells):
    return [float(c.factor) for c in cells]


@each_of(
    "make",
    lambda a, b: nn.SequentialCell(a, b),
    lambda a, b: nn.SequentialCell([a, b]),
    lambda a, b: nn.SequentialCell((a, b)),
    lambda a, b: nn.SequentialCell(OrderedDict(first=a, second=b)),
    lambda a, b: nn.SequentialCell(a).append(b),
    ids=["arguments", "list", "tuple", "dict", "append"],
)
def test_a_sequence_runs_its_cells_in_order(make):
    assert float(make(times(2), times(5))(Tensor(3.0))) == (3 * 2 + 1) * 5 + 1


def test_a_dict_gives_the_cells_its_keys_as_names():
    net = nn.SequentialCell(OrderedDict(first=times(2), second=times(5)))
    assert [p.name for p in net.get_parameters()] == ["first.factor", "second.factor"]
    assert net.second is net[1]


@pytest.mark.parametrize("kind", [nn.SequentialCell, nn.CellList])
def test_cells_in_order_are_changed_like_a_list(kind):
    cells = kind([times(0), times(1)])
    assert cells.append(times(2)) is cells
    cells.extend([times(3), times(4)])
    cells.insert(1, times(9))
    assert factors(cells) == [0, 9, 1, 2, 3, 4]
    cells[0] = times(7)
    del cells[2]
    cells.insert(-1, times(8))
    assert factors(cells) == [7, 9, 2, 3, 8, 4]
    assert (len(cells), float(cells[-1].factor), factors(cells[1:4:2])) == (6, 4, [9, 3])
    assert [p.name for p in cells.get_parameters()] == [f"{i}.factor" for i in range(6)]
    assert [c.cell_name for c in cells] == [str(i) for i in range(6)]
    del cells[1:]
    assert factors(cells) == [7]


def test_a_slice_runs_and_leaves_the_names_of_the_whole_alone():
    net = nn.SequentialCell(times(2), times(3), times(5))
    part = net[1:]
    assert isinstance(part, nn.SequentialCell)
    assert float(part(Tensor(1.0))) == (1 * 3 + 1) * 5 + 1
    part.append(times(7))
    assert [p.name for p in net.get_parameters()] == ["0.factor", "1.factor", "2.factor"]
    assert len(part) == 3
    assert len(net) == 3


def test_cells_added_to_a_nested_list_get_the_whole_path():
    net = nets.Layers(1, 4)
    net.blocks.append(nets.One(4, None))
    net.blocks.insert(0, nets.One(4, None))
    assert [p.name for p in net.get_parameters()] == ["blocks.0.w", "blocks.1.w", "blocks.2.w"]


def test_a_list_is_not_called():
    with pytest.raises(CellError, match="a CellList is not called"):
        nn.CellList([times(2)])(Tensor(1.0))


@each_of(
    ("change", "error"),
    (lambda cells: cells[2], IndexError),
    (lambda cells: cells[-3], IndexError),
    (lambda cells: cells["0"], TypeError),
    (lambda cells: cells.append(3), TypeError),
    (lambda cells: cells.insert(0, ops.ReLU()), TypeError),
    (lambda cells: cells.insert(5, times(1)), IndexError),
    (lambda cells: cells.__setitem__(0, 3), TypeError),
    ids=["past the end", "before the start", "text", "append number", "insert primitive", "insert far", "set number"],
)
@pytest.mark.parametrize("kind", [nn.SequentialCell, nn.CellList])
def test_what_a_list_refuses(kind, change, error):
    cells = kind([times(2), times(3)])
    with pytest.raises(error) as caught:
        change(cells)
    assert isinstance(caught.value, ParallelLabError)
    assert factors(cells) == [2, 3]


def test_a_sequence_of_other_things_is_refused():
    with pytest.raises(TypeError, match="Cells only"):
        nn.SequentialCell([nn.ReLU(), "relu"])


@each_of(
    ("layer", "shown"),
    (nn.LeakyReLU(), "LeakyReLU(alpha=0.2)"),
    (nn.SmoothL1Loss(0.5), "SmoothL1Loss(reduction='none', beta=0.5)"),
    (nn.RMSNorm([2, 3]), "RMSNorm(normalized_shape=(2, 3), epsilon=1e-06)"),
    (nn.WarmUpLR(1.0, warmup_steps=3), "WarmUpLR(learning_rate=1.0, warmup_steps=3)"),
)
def test_settings_as_checked_are_what_repr_shows_those_of_the_base_class_first(layer, shown):
    assert repr(layer) == shown


def test_a_missing_argument_is_refused_with_what_the_class_takes():
    with pytest.raises(
        TypeError, match=r"Dense: missing argument 'out_channels'. It takes \(in_channels, out_channels, w"
    ):
        nn.Dense(4)
