"""Tracing: names, scopes and origins of operators; what a traced value refuses, with the learner's file and line."""

import inspect

import numpy as np
import pytest

from parallel_lab import Parameter, Session, ShapeError, Simulator, Tensor, TraceError, compile, compile_steps, nn, ops
from parallel_lab.nn.initializer import initializer
from parallel_lab.processes.shm import WorkerPool
from tests.nets import cell

X = np.ones((8, 4), np.float32)


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((4, 4), np.float32), name="w")
        self.product = ops.MatMul()
        self.relu = ops.ReLU()

    def construct(self, x):
        product = self.product(x, self.w)
        return self.relu(product)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def construct(self, x):
        return self.second(self.first(x))


def graph_of(network, *inputs, **options):
    return dict(compile_steps(network, *(inputs or (X,)), device_num=1, **options))["trace"].graph


def line_of(function, text):
    """Number of the line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, line in enumerate(lines) if text in line)


# ---- names, scopes, origins ----


def test_operators_are_named_by_cell_path_and_attribute():
    assert [n.name for n in graph_of(Net()).nodes] == ["first.product", "first.relu", "second.product", "second.relu"]


def test_scopes_are_mindspores():
    nodes = graph_of(Net(), X, X, loss=nn.MSELoss()).nodes
    assert nodes[0].origin.scope == "Default/network-WithLossCell/_backbone-Net/first-Block"
    assert nodes[-1].origin.scope == "Default/network-WithLossCell/_loss_fn-MSELoss"


def test_origin_is_the_line_in_construct():
    nodes = graph_of(Net()).nodes
    for node, text in zip(nodes[:2], ("self.product(x, self.w)", "self.relu(product)"), strict=True):
        assert node.origin.file == __file__
        assert node.origin.line == line_of(Block.construct, text)
        assert text in node.origin.text


def test_a_second_use_of_an_operator_gets_a_number():
    relu = ops.ReLU()
    assert [n.name for n in graph_of(lambda x: relu(relu(relu(x)))).nodes] == ["relu", "relu_1", "relu_2"]


def test_instance_name_attribute_names_the_operator():
    relu = ops.ReLU().add_prim_attr("instance_name", "activation")
    assert [n.name for n in graph_of(lambda x: relu(x)).nodes] == ["activation"]


def test_the_learners_own_code_sees_tensors():
    """`isinstance(x, Tensor)` was False while a network was traced, and took the other branch without a word."""
    seen = []

    def net(x):
        seen.append([isinstance(x, kind) for kind in (Tensor, (int, Tensor), Parameter, np.ndarray, float)])
        return ops.relu(x)

    graph_of(net)
    assert seen == [[True, True, False, False, False]]


def test_inputs_are_named_as_in_construct_and_the_label_is_last():
    assert [i.name for i in graph_of(Net(), X, X, loss=nn.MSELoss()).inputs if i.role == "data"] == ["x", "label"]


def test_parameters_are_in_order_of_use_with_their_cell_path():
    assert [i.name for i in graph_of(Net()).inputs if i.role == "parameter"] == ["first.w", "second.w"]


def test_graph_text_has_strategies_shapes_and_places():
    text = dict(compile_steps(Net(), X, device_num=8, dataset_strategy="full_batch"))["strategies"].graph.text()
    line = line_of(Block.construct, "self.product(x, self.w)")
    assert (
        "%first.product = MatMul(%x, %first.w)  strategy ((8, 1), (1, 1)) (default)    # (8, 4) float32, "
        f"test_trace.py:{line}" in text
    )


@pytest.mark.parametrize("name", ["x", "label", "relu", "product", "relu.for.product", "1.0:float32", "learning_rate"])
def test_a_parameter_keeps_its_name_whatever_else_is_called_so(name):
    """`relu` was once overwritten in the value table by the operator of that name; the product read the wrong one."""
    parts = {"p": Parameter(np.full((4, 4), 2.0, np.float32), name=name), "relu": ops.ReLU(), "product": ops.MatMul()}
    net = cell(lambda net, x: net.relu(net.product(net.relu(x), net.p)), **parts)
    plan = compile(net, X, X, loss=nn.MSELoss(), device_num=4, dataset_strategy="full_batch")
    assert [p.name for p in plan.parameters] == [name]
    assert plan.value(name).shape == (4, 4)
    assert [g for g, _ in plan.gradients] == [name]


def test_in_a_function_such_a_parameter_is_refused_by_name():
    w = Parameter(np.ones(4, np.float32), name="mul")
    words = r"test_trace.py:\d+: a parameter and an input or operator before it are named 'mul'"
    with pytest.raises(TraceError, match=words):
        compile(lambda x: x * 2.0 * w, X, device_num=1)


def test_two_parameters_of_one_name_are_refused_by_name():
    a, b = (Parameter(np.ones(4, np.float32), name="w") for _ in range(2))
    with pytest.raises(TraceError, match="two parameters are named 'w'"):
        compile(lambda x: x * a * b, X, device_num=1)


# ---- what needs numbers ----


def reads(how):
    return cell(lambda net, x: how(x * 2.0))


def branch(x):
    if x:
        return x
    return -x


def loop(x):
    while x:
        x = x - 1.0
    return x


READS = {
    "asnumpy": (lambda x: Tensor(x.asnumpy()), "asnumpy()"),
    "item": (lambda x: x.item(), "item()"),
    "if": (branch, "a truth test"),
    "while": (loop, "a truth test"),
    "float": (lambda x: x * float(x), "float()"),
    "int": (lambda x: x * int(x), "int()"),
    "array": (lambda x: np.asarray(x), "a conversion to a numpy array"),
    "and": (lambda x: x and x, "a truth test"),
    "in": (lambda x: x if 1.0 in x else -x, "a search"),
    "format": (lambda x: print(f"{x:.3f}"), "the format '.3f'"),
    "round": (lambda x: round(x), "round()"),
}
NO_OPERATOR = {
    "attribute": (lambda x: x.relu(), "the attribute 'relu'", "Use ops.relu"),
    "misspelt": (lambda x: x.reshap(2, -1), "the attribute 'reshap'", "Did you mean 'reshape'"),
    "np.sin": (lambda x: np.sin(x), "np.sin", "Use ops.sin"),
    "np.cbrt": (lambda x: np.cbrt(x), "np.cbrt", "operators instead"),
    "np.exp": (lambda x: np.exp(x), "np.exp", "Use ops.exp"),
    "np.maximum": (lambda x: np.maximum(x, 0), "np.maximum", "Use ops.maximum"),
    "np.maximum, array first": (lambda x: np.maximum(X, x), "np.maximum", "Use ops.maximum"),
    "np.matmul": (lambda x: np.matmul(x, X.T), "np.matmul", "Use ops.matmul"),
    "np.sum": (lambda x: np.sum(x), "np.sum", "Use ops.reduce_sum"),
    "np.reshape": (lambda x: np.reshape(x, (4, 8)), "np.reshape", "Use ops.reshape"),
    "np.concatenate": (lambda x: np.concatenate([x, x]), "np.concatenate", "Use ops.concat"),
    "np.flip": (lambda x: np.flip(x), "np.flip", "operators instead"),
}


@pytest.mark.parametrize("how", NO_OPERATOR)
def test_anything_but_an_operator_is_refused_with_file_line_and_what_to_use(how):
    function, what, hint = NO_OPERATOR[how]
    line = function.__code__.co_firstlineno
    with pytest.raises(TraceError) as caught:
        compile(reads(function), X, device_num=1)
    where = f"test_trace.py:{line}: {what} of 'mul' (shape (8, 4), float32)"
    assert str(caught.value).startswith(f"{where} is not an operator yet")
    assert hint in str(caught.value)


def test_an_array_on_the_left_of_a_traced_value_is_recorded():
    assert [n.op_class for n in graph_of(lambda x: np.float32(2) * (X + x)).nodes] == ["Add", "Mul"]


def test_indexing_rows_and_remainders_are_recorded():
    assert [n.op_class for n in graph_of(lambda x: x[1:3, 0] % 2).nodes] == ["StridedSlice", "Squeeze", "FloorMod"]
    assert len(graph_of(lambda x: sum(row for row in x[:3])).nodes) > 3


def test_equality_is_recorded_element_by_element():
    nodes = graph_of(lambda x: ops.cast(x == 0, "float32") + ops.cast(x != X, "float32")).nodes
    assert [n.op_class for n in nodes] == ["Equal", "Cast", "NotEqual", "Cast", "Add"]
    assert [n.shape for n in nodes] == [(8, 4)] * 5


def test_a_branch_on_equality_is_refused():
    """It used to compare objects, and silently took the other branch."""
    with pytest.raises(TraceError, match=r"test_trace.py:\d+: a truth test .* needs the numbers of 'equal'"):
        compile(lambda x: x if x * 1.0 == 0 else -x, X, device_num=1)


def test_layers_in_a_plain_list_get_the_hint_to_use_cell_list():
    def listed(holder):
        layers = holder([nn.Dense(4, 4), nn.Dense(4, 4)])
        return cell(lambda net, x: net.layers[1](net.layers[0](x)), layers=layers)

    with pytest.raises(TraceError, match=r"two parameters are named 'weight'.*nn\.CellList.*ParameterTuple"):
        compile(listed(list), X, device_num=1)
    assert len(compile(listed(nn.CellList), X, device_num=1).parameters) == 4


FAULTS = {
    "softmax": (lambda x: ops.Softmax(axis=7)(x), r"Softmax.*axis=7.*-2 to 1"),
    "reduce": (lambda x: ops.ReduceSum()(x, 5), r"ReduceSum.*axis=5.*-2 to 1"),
    "one hot of floats": (lambda x: ops.one_hot(x, 3, 1.0, 0.0), "OneHot.*float32.*must be ints"),
    "sparse": (lambda x: ops.SparseSoftmaxCrossEntropyWithLogits()(x, x.sum(1)), "labels are float32"),
}


@pytest.mark.parametrize("how", FAULTS)
def test_attributes_and_dtypes_an_operator_cannot_take_are_refused_while_tracing(how):
    function, words = FAULTS[how]
    with pytest.raises(ShapeError, match=words):
        compile(function, X, device_num=1)


@pytest.mark.parametrize("how", READS)
def test_reading_a_value_is_refused_with_file_and_line(how):
    function, what = READS[how]
    with pytest.raises(TraceError) as caught:
        compile(reads(function), X, device_num=1)
    text = str(caught.value)
    lines, first = inspect.getsourcelines(function)
    place, _, rest = text.partition(": ")
    file, _, line = place.partition(":")
    assert file == "test_trace.py"
    assert first <= int(line) < first + len(lines) + 1
    assert rest.startswith(f"{what}")
    assert "'mul' (shape (8, 4), float32)" in rest
    assert "operators instead" in rest


def test_a_parameters_value_cannot_be_read_while_tracing():
    w = Parameter(initializer("ones", (4,)), name="w")
    with pytest.raises(TraceError, match=r"test_trace.py:\d+.*parameter 'w'"):
        compile(lambda x: x * float(w.asnumpy()[0]), X, device_num=1)


def test_a_value_of_another_trace_is_refused():
    kept = []

    def keep(x):
        kept.append(x)
        return x * 2.0

    compile(keep, X, device_num=1)
    with pytest.raises(TraceError, match=r"'x' belongs to another trace"):
        compile(lambda x: x + kept[0], X, device_num=1)


def test_print_in_construct_shows_the_shape_at_once_and_every_ranks_slice_when_it_runs(capsys):
    def prints(x):
        y = ops.mul(x, 2.0)
        print(y)
        return y

    plan = compile(prints, X, device_num=8, dataset_strategy="full_batch")
    assert capsys.readouterr().out.startswith("Tensor(mul: global shape (8, 4), float32")
    assert [i.kind for _, i in plan.instructions()].count("print") == 1
    Simulator(plan, {}).run_step(X)
    lines = capsys.readouterr().out.splitlines()
    line = next(i.origin.line for _, i in plan.instructions() if i.kind == "print")
    place = f"of (8, 4) (device_matrix (8, 1), tensor_map (1, -1)), printed at test_trace.py:{line}"
    assert lines[0::2] == [f"rank {r}: mul[{r}:{r + 1}, :] {place}" for r in range(8)]
    assert lines[1::2] == [str(2 * X[r : r + 1]) for r in range(8)]


def test_what_is_printed_on_processes_reaches_the_notebook(capsys):
    def prints(x):
        print(x)
        return ops.reduce_sum(x)

    plan = compile(prints, X, device_num=2, dataset_strategy="full_batch")
    with WorkerPool(2) as pool, Session(plan, {}, executor="processes", pool=pool) as session:
        session.train([(X,)], 1)
    out = capsys.readouterr().out
    assert all(out.count(f"rank {r}: x[:, :] of (8, 4)") == 1 for r in range(2))


def test_shapes_in_a_trace_are_global_ints():
    seen = []

    def look(x):
        seen.append((x.shape, len(x), x.ndim, x.size))
        return x * 2.0

    compile(look, np.ones((2, 4), np.float32), device_num=8, dataset_strategy="data_parallel")
    assert seen == [((16, 4), 16, 2, 64)]


# ---- what a network may return, and what it may be given ----


@pytest.mark.parametrize("returned", [None, 1.0, np.ones(3), "loss"])
def test_a_network_that_returns_no_traced_value_is_refused(returned):
    with pytest.raises(TraceError, match="the network returned"):
        compile(lambda x: (x * 2.0, returned), X, device_num=1)


def test_a_network_that_returns_its_input_passes_it_on():
    compiled = compile(lambda x: x, X, device_num=1)
    assert [node.op_class for node in compiled.graph.nodes] == ["Identity"]


@pytest.mark.parametrize("given", [[1.0, 2.0], 3.0, "x", None])
def test_inputs_that_are_not_tensors_are_refused_with_their_position(given):
    with pytest.raises(ShapeError, match="compile: input 1 is"):
        compile(lambda x, y: x * 2.0, X, given, device_num=1)


def test_no_inputs_are_refused():
    with pytest.raises(ShapeError, match="no inputs"):
        compile(lambda: None, device_num=1)


def test_a_shape_fault_names_operator_and_line():
    w = Parameter(np.ones((5, 4), np.float32), name="w")
    words = r"MatMul 'matmul' \(test_trace.py:\d+\): operand 1 has 5 elements in dim 0 \('k'\)"
    with pytest.raises(ShapeError, match=words):
        compile(lambda x: ops.matmul(x, w), X, device_num=1)


def test_a_loss_over_several_inputs_takes_the_label_last():
    """Only two inputs used to be possible with a loss: the third was one argument too many for WithLossCell."""
    two = cell(lambda net, left, right: ops.matmul(left * right, net.w), w=Parameter(np.ones((4, 4)), name="w"))
    plan = compile(two, X, X, X, loss=nn.MSELoss(), device_num=8, dataset_strategy="full_batch")
    assert [i.name for i in plan.data_inputs] == ["left", "right", "label"]


def test_after_a_failed_trace_operators_run_at_once_again():
    with pytest.raises(TraceError):
        compile(reads(branch), X, device_num=1)
    assert (Tensor(X) * 2.0).asnumpy().sum() == 64


def test_what_an_operator_refuses_is_reported_with_its_place():
    net = cell(lambda net, x: net.soft(x), soft=ops.Softmax(axis=5))
    with pytest.raises(ShapeError, match=r"^Softmax 'soft' \(test_trace.py:\d+\): axis=5 for a tensor of shape"):
        compile(net, X, device_num=1)


def test_a_strategy_given_to_a_layer_is_led_to_its_operators():
    with pytest.raises(ValueError, match=r"One strategy per input. For an operator inside \(matmul.*\): .matmul.shard"):
        nn.Dense(4, 4).shard(((1, 1), (1, 1)))
