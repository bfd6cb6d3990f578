"""Cell: what is registered, how Parameters are named, what is refused, what a tracer hears."""

import numpy as np
import pytest

from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, CellError, ParallelLabError, ShapeError
from parallel_lab.base.hooks import current_tracer
from parallel_lab.base.settings.context import reset_auto_parallel_context, set_auto_parallel_context
from parallel_lab.nn.initializer import initializer
from parallel_lab.nn.tensor.parameter import Parameter, ParameterTuple
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.recorded import nets
from tests.refusals import refused


def weight(name=None, **settings):
    return Parameter(initializer("ones", [2, 3]), name, **settings)


class Leaf(nn.Cell):
    """One Parameter, under the attribute `w`."""

    def __init__(self, parameter=None):
        super().__init__()
        self.w = weight() if parameter is None else parameter
        self.mul = ops.Mul()

    def construct(self, x):
        return self.mul(x, self.w)


class Outer(nn.Cell):
    """Any attributes, given by keyword, and a body given as `run`."""

    def __init__(self, run=None, **attributes):
        super().__init__()
        self.run = run
        for name, value in attributes.items():
            setattr(self, name, value)

    def construct(self, *inputs):
        return self.run(self, *inputs)


def names(cell):
    return [p.name for p in cell.get_parameters()]


# ---- names ----


@each_of(
    ("net", "expected"),
    (lambda: nets.Quick(4, 6, 2), ["w", "w2"]),
    (lambda: nets.Mlp(4, 6, 2), ["d1.weight", "d1.bias", "d2.weight", "d2.bias", "d3.weight", "d3.bias"]),
    (lambda: nets.Layers(3, 4), ["blocks.0.w", "blocks.1.w", "blocks.2.w"]),
    (lambda: nets.Chain([4, 6, 2], None), ["w1", "w2"]),
    (lambda: nets.SharedWeight(8, ((1, 8), (8, 1)), ((1, 8), (8, 1))), ["w"]),
    (lambda: nn.WithLossCell(nets.Quick(4, 6, 2), nn.MSELoss()), ["w", "w2"]),
    (lambda: nn.WithLossCell(nets.Layers(2, 4), nn.MSELoss()), ["blocks.0.w", "blocks.1.w"]),
    (
        lambda: nn.SequentialCell(nn.Dense(4, 6, has_bias=False), nn.ReLU(), nn.Dense(6, 2)),
        ["0.weight", "2.weight", "2.bias"],
    ),
    ids=["own names", "layers", "list", "tuple", "used twice", "with loss", "list with loss", "sequence"],
)
def test_parameters_have_mindspores_names(net, expected):
    assert names(net()) == expected


def test_a_parameter_without_a_name_takes_its_attributes():
    assert names(Outer(alpha=weight(), beta=weight("own"))) == ["alpha", "own"]


def test_in_a_child_the_path_replaces_the_own_name():
    inner = Outer(weight=weight("w"), pair=ParameterTuple([weight("p"), weight("q")]))
    assert names(inner) == ["w", "p", "q"]
    assert names(Outer(net=inner)) == ["net.weight", "net.p", "net.q"]


def test_unnamed_parameters_of_a_tuple_are_numbered():
    assert names(Outer(ws=ParameterTuple([weight(), weight()]))) == ["ws.0", "ws.1"]
    assert names(Outer(net=Outer(ws=ParameterTuple([weight(), weight()])))) == ["net.ws.0", "net.ws.1"]


def test_what_is_added_to_a_nested_cell_gets_the_whole_path():
    net = Outer(a=Outer(b=Outer()))
    net.a.b.late = Leaf()
    net.a.b.alone = weight("given")
    assert sorted(names(net)) == ["a.b.alone", "a.b.late.w"]


def test_a_parameter_shared_by_two_cells_is_listed_once_under_its_first_path():
    shared = weight("w")
    net = Outer(a=Leaf(shared), b=Leaf(shared))
    assert names(net) == ["a.w"]
    assert net.a.w is net.b.w is shared
    assert [path for path, _ in Outer(net=net).parameters_and_names()] == ["net.a.w"] == [shared.name]


def test_a_cell_held_twice_is_listed_once_and_keeps_its_first_name():
    leaf = Leaf()
    net = Outer(first=leaf, second=leaf)
    assert names(net) == ["first.w"]
    assert leaf.cell_name == "first"
    assert list(net.name_cells()) == ["first"]


def test_a_cell_that_blocks_of_several_lists_share_keeps_its_place_as_name():
    """Wrong before: each list gave what its blocks share the name within that list, "0.shared.w", twice."""

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.a, self.b = Leaf(), Leaf()
            self.first = nn.CellList([Outer(shared=self.a, own=Leaf()), Outer(shared=self.a)])
            self.second = nn.SequentialCell(Outer(shared=self.b), Outer(shared=self.a))

    assert names(Net()) == ["a.w", "b.w", "first.0.own.w"]
    assert names(Outer(net=Net())) == ["net.a.w", "net.b.w", "net.first.0.own.w"]
    assert names(Outer(shared=Leaf())) == ["shared.w"]


def test_update_parameters_name_puts_a_prefix_before_every_path():
    net = nets.Layers(2, 4)
    net.update_parameters_name("backbone.")
    assert names(net) == ["backbone.blocks.0.w", "backbone.blocks.1.w"]


def test_two_parameters_of_one_name_are_refused_with_both_paths():
    net = Outer(a=weight("w"), b=weight("w"))
    with pytest.raises(ValueError, match=r"Outer: two Parameters are named 'w': 'a' and 'b'\. Give each its own name"):
        net.trainable_params()


def test_a_child_gives_equal_names_different_paths():
    assert names(Outer(net=Outer(a=weight("w"), b=weight("w")))) == ["net.a", "net.b"]


def test_a_tuple_with_two_parameters_of_one_name_is_refused():
    one = weight("w")
    assert len(ParameterTuple([one, one, weight(), weight()])) == 4
    with pytest.raises(ArgumentError, match="ParameterTuple: two Parameters are named 'w'"):
        ParameterTuple([one, weight("w")])


# ---- registration ----


def test_parameters_cells_and_primitives_are_found():
    net = nets.Mlp(4, 6, 2)
    assert [name for name, _ in net.cells_and_names()] == ["", "d1", "d1.activation", "d2", "d2.activation", "d3"]
    assert list(net.cells()) == [net.d1, net.d2, net.d3]
    assert net.parameters_dict()["d2.bias"] is net.d2.bias
    assert [p.name for p in net.d1.get_parameters(expand=False)] == ["d1.weight", "d1.bias"]


def test_trainable_and_untrainable_parameters_are_told_apart():
    net = Outer(a=weight(), child=Leaf(weight(requires_grad=False)))
    assert [p.name for p in net.trainable_params()] == ["a"]
    assert [p.name for p in net.untrainable_params()] == ["child.w"]
    assert net.untrainable_params(recurse=False) == []


def test_a_primitive_takes_the_name_of_its_attribute_unless_it_has_one():
    net = Outer(matmul=ops.MatMul(), relu=ops.ReLU().add_prim_attr("instance_name", "mine"))
    assert (net.matmul.instance_name, net.relu.instance_name) == ("matmul", "mine")


def test_a_parameter_can_be_replaced_by_another_or_removed():
    net = Outer(a=weight(), b=weight())
    new = net.a = weight("new")
    assert names(net) == ["new", "b"]
    assert net.a is new
    net.b = None
    assert names(net) == ["new"]
    assert net.b is None
    del net.a
    assert names(net) == []
    assert not hasattr(net, "a")


def test_replacing_a_tuple_forgets_its_parameters():
    net = Outer(ws=ParameterTuple([weight("a"), weight("b")]))
    net.ws = ParameterTuple([weight("c")])
    assert names(net) == ["c"]


def test_a_cell_can_be_replaced():
    net = nets.Mlp(4, 6, 2)
    net.d2 = nn.Dense(6, 6, has_bias=False)
    assert names(net) == ["d1.weight", "d1.bias", "d2.weight", "d3.weight", "d3.bias"]


def test_a_cell_can_be_wrapped_in_its_place():
    net = nets.Mlp(4, 6, 2)
    net.d2 = nn.SequentialCell(net.d2, nn.ReLU())
    assert names(net) == ["d1.weight", "d1.bias", "d2.0.weight", "d2.0.bias", "d3.weight", "d3.bias"]


def test_a_cell_gives_way_to_a_primitive_or_a_function_but_not_to_a_number():
    net = nets.Mlp(4, 6, 2)
    net.d1.activation = ops.ReLU()
    net.d2.activation = abs
    assert [name for name, _ in net.cells_and_names()] == ["", "d1", "d2", "d3"]
    with pytest.raises(TypeError, match="'d3' is a Cell"):
        net.d3 = 4


def test_a_parameter_does_not_take_the_name_of_one_in_a_tuple():
    with pytest.raises(ArgumentError, match="two Parameters are registered as 'a'"):
        Outer(ws=ParameterTuple([weight("a"), weight("b")]), a=weight())


@pytest.mark.parametrize("value", [np.ones((2, 3)), "ones", 3], ids=["array", "text", "number"])
def test_values_are_not_assigned_over_a_parameter(value):
    net = Outer(a=weight())
    with pytest.raises(TypeError, match=r"'a' is a Parameter.*Change its values with a\.set_data"):
        net.a = value


def test_a_tensor_that_is_assigned_to_a_parameter_is_its_new_value():
    """MindSpore: `self.count += 1` in construct."""
    net, held = Outer(a=weight(), count=Parameter(Tensor(2, "int32"), name="count")), np.full((2, 3), 7, np.float32)
    kept = net.a
    net.a = Tensor(held)
    net.count += 1
    net.count = net.count * 2
    net.count = 1 + net.count
    assert net.a is kept and isinstance(net.count, Parameter) and net.count.asnumpy() == 7
    np.testing.assert_array_equal(kept.asnumpy(), held)
    with pytest.raises(ShapeError, match="a value of shape"):
        net.a = Tensor(np.ones(5))


def test_insert_child_and_parameter_register_like_assignment():
    net = Outer()
    net.insert_child_to_cell("leaf", Leaf())
    net.insert_param_to_cell("alpha", weight())
    assert names(net) == ["alpha", "leaf.w"]
    assert net.leaf.cell_name == "leaf"


test_children_with_unfit_names_are_refused = refused(
    ("a.b", Leaf(), ValueError),
    ("", Leaf(), ValueError),
    ("leaf", Leaf(), ValueError),
    (3, Leaf(), TypeError),
    ("x", 3, TypeError),
    by=lambda name, child: Outer(leaf=Leaf()).insert_child_to_cell(name, child),
)


def test_a_cell_inside_itself_is_refused():
    net = Outer(child=Outer())
    with pytest.raises(ArgumentError, match="cannot be inside itself"):
        net.child.loop = net


# ---- mistakes ----


class Forgetful(nn.Cell):
    """Assigns before super().__init__()."""

    def __init__(self, value):
        self.value = value
        super().__init__()


class NeverInitialised(nn.Cell):
    """Does not call super().__init__() at all."""

    def __init__(self):
        self.size = 3

    def construct(self, x):
        return x


@each_of("value", weight("w"), ops.ReLU(), ParameterTuple([weight("w")]), ids=["parameter", "primitive", "tuple"])
def test_assigning_before_super_init_is_refused(value):
    with pytest.raises(
        CellError,
        match=r"Forgetful: the Cell is used before super\(\).__init__\(\)\. Make super\(\).__init__\(\) the first line",
    ):
        Forgetful(value)


def test_calling_without_super_init_is_refused():
    with pytest.raises(CellError, match="NeverInitialised: the Cell is used before super"):
        NeverInitialised()(1)


def test_a_cell_without_construct_says_so():
    class Empty(nn.Cell):
        """Nothing."""

    with pytest.raises(CellError, match="Empty has no construct"):
        Empty()(Tensor(1.0))


def test_a_missing_attribute_is_an_attribute_error_with_the_nearest_name():
    with pytest.raises(
        AttributeError, match=r"Quick: there is no attribute 'matmull'\. Did you mean 'matmul'\?"
    ) as caught:
        _ = nets.Quick(4, 6, 2).matmull
    assert isinstance(caught.value, ParallelLabError)
    assert not hasattr(nets.Quick(4, 6, 2), "bias")


# ---- settings ----


def test_set_train_reaches_every_cell():
    net = nets.Mlp(4, 6, 2)
    assert net.set_train() is net
    assert all(c.training for _, c in net.cells_and_names())
    net.d1.set_train(False)
    assert [c.training for c in (net, net.d1, net.d1.activation, net.d2)] == [True, False, False, True]
    with pytest.raises(TypeError, match="mode=1"):
        net.set_train(1)


def test_set_grad_is_accepted():
    net = nets.Mlp(4, 6, 2)
    assert net.set_grad() is net
    assert len(net.trainable_params()) == 6


def test_set_comm_fusion_marks_trainable_parameters_and_later_calls_win():
    net = nets.Layers(4, 4, fusion=[0, 0, 1, 2])
    assert [p.comm_fusion for p in net.get_parameters()] == [0, 0, 1, 2]
    assert net.set_comm_fusion(7) is net
    assert [p.comm_fusion for p in net.get_parameters()] == [7, 7, 7, 7]


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (True, TypeError)])
def test_fusion_ids_are_whole_and_not_negative(value, error):
    with pytest.raises(error, match="An int, at least 0") as caught:
        nn.Dense(2, 2).set_comm_fusion(value)
    assert isinstance(caught.value, ParallelLabError)


def test_recompute_records_its_options():
    net = nets.Layers(2, 4, recompute=True)
    assert net.recompute_options is None
    assert net.blocks[0].recompute_options["mp_comm_recompute"] is True
    net.blocks[1].recompute(mp_comm_recompute=False)
    assert net.blocks[1].recompute_options["mp_comm_recompute"] is False
    with pytest.raises(ArgumentTypeError, match="mp_comm_recompute=1"):
        net.recompute(mp_comm_recompute=1)
    with pytest.raises(ArgumentError, match="option 'everything' is not known"):
        net.recompute(everything=True)


def test_pipeline_stage_is_a_plain_attribute():
    assert [c.pipeline_stage for c in nets.Layers(3, 4, stages=[0, 0, 1]).blocks] == [0, 0, 1]
    assert nets.Quick(4, 6, 2).pipeline_stage is None


def test_parameters_and_cells_are_found_by_their_paths():
    net = nn.SequentialCell(nn.SequentialCell(nn.Dense(2, 3)))
    assert net.get_parameter("0.0.weight") is net.get_sub_cell("0.0").weight and net.get_sub_cell("") is net
    for look in (net.get_parameter, net.get_sub_cell):
        with pytest.raises(ArgumentError, match=r"target='0\.0\.weights'.*A path of attributes"):
            look("0.0.weights")


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (3, 0), (4, 1), (7, 1)])
def test_the_parameters_of_the_own_stage_are_listed(rank, stage):
    net = nn.SequentialCell(nn.Dense(2, 3), nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 2)))
    set_auto_parallel_context(device_num=8, global_rank=rank, pipeline_stages=2, parallel_mode="semi_auto_parallel")
    try:
        net[0].pipeline_stage = 0
        with pytest.raises(RuntimeError, match=r"'1\.0\.weight' lies on no stage"):
            net.infer_param_pipeline_stage()
        net[1].pipeline_stage = 1
        assert net.infer_param_pipeline_stage() == net[stage].trainable_params()
    finally:
        reset_auto_parallel_context()


def test_repr_shows_the_tree():
    lines = repr(nets.Mlp(4, 6, 2)).splitlines()
    assert lines[0] == "Mlp("
    assert "  (d1): Dense(" in lines
    assert "    in_channels=4, out_channels=6, has_bias=True" in lines
    assert "    (activation): ReLU()" in lines
    assert "  (d3): Dense(in_channels=6, out_channels=2, has_bias=True)" in lines


# ---- tracing ----


class Listener:
    """A tracer that notes Cell borders and the scope of every operator."""

    def __init__(self):
        self.open, self.ops = [], []

    def enter(self, cell):
        self.open.append(f"{cell.cell_name}-{type(cell).__name__}")

    def leave(self):
        self.open.pop()

    def staged(self, function):
        return function

    def record(self, op, operands, attrs, primitive):
        self.ops.append((op.class_name, "/".join(self.open)))
        return operands[0]


@pytest.fixture
def listener():
    listener = Listener()
    token = current_tracer.set(listener)
    yield listener
    current_tracer.reset(token)


def test_a_tracer_hears_the_scopes_that_mindspore_prints(listener):
    net = nn.WithLossCell(nets.Layers(2, 4), nn.MSELoss())
    net(Tensor(np.ones((4, 4))), Tensor(np.ones((4, 4))))
    root = "-WithLossCell/_backbone-Layers/blocks-CellList"
    loss = "-WithLossCell/_loss_fn-MSELoss"
    of_cells = [(op, f"{root}/{i}-One") for i in (0, 1) for op in ("MatMul", "ReLU")]
    assert listener.ops == [*of_cells, ("Sub", loss), ("Square", loss), ("ReduceMean", loss)]
    assert listener.open == []


def test_a_cell_that_raises_is_left_too(listener):
    with pytest.raises(ZeroDivisionError):
        Outer(run=lambda self, x: self.child(x), child=Outer(run=lambda self, x: 1 / 0))(3)
    assert listener.open == []


@pytest.mark.parametrize(("value", "kind"), [(-1, ValueError), ("1", TypeError), (1.5, TypeError), (True, TypeError)])
def test_an_invalid_pipeline_stage_is_refused(value, kind):
    layer = nn.Dense(2, 2)
    layer.pipeline_stage = 1
    with pytest.raises(kind, match=r"Dense: pipeline_stage=.*An int, at least 0"):
        layer.pipeline_stage = value
    assert layer.pipeline_stage == 1 and nn.Dense(2, 2).pipeline_stage is None


def test_flags_of_the_graph_compiler_become_attributes():
    layer = nn.Dense(2, 2)
    assert layer.add_flags(defer_inline=True) is layer and layer.defer_inline is True
