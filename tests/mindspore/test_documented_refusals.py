"""What MindSpore's documents refuse by the kind of an argument, for every operator and function that has such a one.

A rule per kind, not a case per function: tensors, switches, seeds, dtypes, floats. What the documents call "Tensor or
number" is listed here by class name; all else takes tensors alone (and arrays, which are tensors to this package).
"""

import inspect
import re

import numpy as np
import pytest

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import ParallelLabError, shorten
from parallel_lab.mindspore import mint, nn, ops
from parallel_lab.ops.machine.registry import OPS
from tests.junk import declared
from tests.mindspore.test_misuse import CALLS, Net
from tests.refusals import refused

# documented as Union[Tensor, Number, bool], all operands or those named
TAKE_NUMBERS = {
    *("Add", "Sub", "Mul", "Div", "RealDiv", "FloorDiv", "FloorMod", "Mod", "Pow", "Maximum", "Minimum"),
    *("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr", "LogicalXor"),
    *("Select", "MaskedFill", "SquaredDifference", "Atan2", "Xdivy", "Xlogy", "MulNoNan", "DivNoNan", "TruncateDiv"),
    *("TruncateMod", "Copysign", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "LeftShift", "RightShift", "AddExt"),
    *("SubExt", "Lerp", "Addcmul", "Addcdiv", "Assign", "AssignAdd", "AssignSub", "OneHot", "UniqueWithPad", "Zeta"),
    *("BinaryCrossEntropy", "BCEWithLogitsLoss"),  # the weights, which their functions do not take as numbers
}
COUNTED = ("Dropout", "Randperm", "UniformCandidateSampler", "LogUniformCandidateSampler", "Embedding")  # a step, ids
BENEATH = ("Quantize", "Rescale")  # what Quant and Dequant make use of, with numbers as scales
NUMBERS = {*TAKE_NUMBERS, *COUNTED, *BENEATH}
OPERATORS = {o.name: o for o in OPS.values() if not o.internal and o.cases and not o.variadic and not o.writes}


def operands_of(op):
    case = op.cases[0]
    arrays = case.arrays(np.random.default_rng(0), np.float32)
    return dict(zip(op.tensors, map(ms.Tensor, arrays), strict=True)), dict(case.attrs)


@pytest.mark.quick(15)
@pytest.mark.parametrize("name", OPERATORS)
def test_no_operator_takes_a_list_text_or_nothing_for_a_tensor(name):
    """MindSpore: TypeError. Lists were taken as arrays."""
    op = OPERATORS[name]
    tensors, attrs = operands_of(op)
    for operand in tensors:
        for junk in ([1.0, 2.0], (1,), "a", None, {}, Net(), object, 2j):
            with pytest.raises(TypeError) as caught:
                op(**{**tensors, operand: junk}, **attrs)
            assert isinstance(caught.value, ParallelLabError), (operand, junk)


@pytest.mark.quick(15)
@pytest.mark.parametrize(
    "name", [n for n, o in OPERATORS.items() if o.class_name not in (*TAKE_NUMBERS, *COUNTED, *BENEATH)]
)
def test_an_operator_of_tensors_takes_no_number(name):
    """MindSpore: TypeError. `ops.relu(-2.0)` was computed."""
    op = OPERATORS[name]
    tensors, attrs = operands_of(op)
    for operand in tensors:
        for number in (0, 1.5, True):
            with pytest.raises(TypeError, match=r"A Tensor or an array of numbers\.") as caught:
                op(**{**tensors, operand: number}, **attrs)
            assert isinstance(caught.value, ParallelLabError)


def parameters_of(call):
    try:
        return inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}


FUNCTIONS = {path: call for path, call in CALLS.items() if inspect.isfunction(call)}
SWITCHES = [
    (path, name)
    for path, call in FUNCTIONS.items()
    for name, p in parameters_of(call).items()
    if type(p.default) is bool and p.annotation in (p.empty, bool, "bool") and name in declared(call)
]


@pytest.mark.parametrize(("path", "name"), SWITCHES)
def test_a_switch_is_true_or_false(path, name):
    """MindSpore: TypeError. `stable=`, `sorted=` and `training=` took anything. They are looked at first of all: the
    call needs no other arguments."""
    for junk in (0, 1, "True", None, 1.5, [True], object):
        with pytest.raises(ParallelLabError, match=f"{name}={re.escape(shorten(junk))}"):
            CALLS[path](**{name: junk})


SEEDED = [path for path, c in FUNCTIONS.items() if "seed" in parameters_of(c) and path.startswith(("ops.", "mint."))]


@pytest.mark.parametrize("path", SEEDED)
def test_a_seed_is_an_int_from_0_on(path):
    for junk in (-1, 1.5, "a", True, [1]):
        with pytest.raises(ParallelLabError, match=f"seed={re.escape(shorten(junk))}"):
            CALLS[path](**{"seed": junk})


@pytest.mark.parametrize("make", [ms.Tensor([1.0]), np.ones(2, np.int32), None, 3, "f"], ids=repr)
@pytest.mark.parametrize("call", [ops.cast, lambda x, d: ops.full(2, 1.0, d) if d is not None else ops.cast(x, d)])
def test_an_object_with_a_dtype_is_not_a_dtype(make, call):
    """A Tensor for a dtype was read as its own dtype."""
    with pytest.raises(ParallelLabError):
        call(ms.Tensor([1.0]), make)


def parameters():
    return Net().trainable_params()


FLOATS = {
    "Adam eps": lambda x: nn.Adam(parameters(), eps=x),
    "Adam beta1": lambda x: nn.Adam(parameters(), beta1=x),
    "AdamWeightDecay eps": lambda x: nn.AdamWeightDecay(parameters(), eps=x),
    "Lamb eps": lambda x: nn.Lamb(parameters(), 0.1, eps=x),
    "LazyAdam eps": lambda x: nn.LazyAdam(parameters(), eps=x),
    "Momentum momentum": lambda x: nn.Momentum(parameters(), 0.1, x),
    "RMSProp decay": lambda x: nn.RMSProp(parameters(), decay=x),
    "RMSProp momentum": lambda x: nn.RMSProp(parameters(), momentum=x),
    "RMSProp epsilon": lambda x: nn.RMSProp(parameters(), epsilon=x),
    "Adagrad accum": lambda x: nn.Adagrad(parameters(), accum=x),
    "FTRL l1": lambda x: nn.FTRL(parameters(), l1=x),
    "FTRL initial_accum": lambda x: nn.FTRL(parameters(), initial_accum=x),
    "ProximalAdagrad l2": lambda x: nn.ProximalAdagrad(parameters(), l2=x),
    "ASGD lambd": lambda x: nn.ASGD(parameters(), lambd=x),
    "ExponentialDecayLR": lambda x: nn.ExponentialDecayLR(x, 0.9, 4),
    "ExponentialDecayLR rate": lambda x: nn.ExponentialDecayLR(0.1, x, 4),
    "CosineDecayLR": lambda x: nn.CosineDecayLR(0.0, x, 4),
    "PolynomialDecayLR power": lambda x: nn.PolynomialDecayLR(0.1, 0.01, 4, x),
    "WarmUpLR": lambda x: nn.WarmUpLR(x, 4),
    "warmup_lr": lambda x: nn.warmup_lr(x, 4, 2, 2),
    "piecewise_constant_lr": lambda x: nn.piecewise_constant_lr([2], [x]),
    "BatchNorm2d eps": lambda x: nn.BatchNorm2d(4, eps=x),
    "GroupNorm eps": lambda x: nn.GroupNorm(2, 4, eps=x),
    "LayerNorm epsilon": lambda x: nn.LayerNorm((4,), epsilon=x),
    "HShrink": lambda x: nn.HShrink(x),
    "SoftShrink": lambda x: nn.SoftShrink(x),
    "CELU": lambda x: nn.CELU(x),
    "ELU": lambda x: nn.ELU(x),
    "label_smoothing": lambda x: nn.CrossEntropyLoss(label_smoothing=x),
}


@pytest.mark.parametrize("how", FLOATS)
def test_a_documented_float_is_not_an_int(how):
    """MindSpore: "TypeError - If `eps` is not a float"."""
    for junk in (1, True, "1.0", None, [1.0]):
        with pytest.raises(TypeError) as caught:
            FLOATS[how](junk)
        assert isinstance(caught.value, ParallelLabError), junk


test_a_value_that_documents_exclude_is_refused = refused(
    (lambda: nn.LayerNorm(4), TypeError),
    (lambda: nn.RMSNorm(4), TypeError),
    (lambda: nn.ELU(0.5), ValueError),
    (lambda: nn.CELU(0.0), ValueError),
    (lambda: nn.PReLU(1, 1), TypeError),
    (lambda: nn.PReLU(1, True), TypeError),
    (lambda: nn.Hardtanh(1.0, 1.0), ValueError),
    (lambda: nn.BCELoss(2.0), TypeError),
    (lambda: nn.CrossEntropyLoss([1.0, 2.0]), TypeError),
    (lambda: nn.Dropout1d(None), TypeError),
    (lambda: nn.SGD(parameters(), Net()), TypeError),
    (lambda: nn.SGD(parameters(), print), TypeError),
    (lambda: ms.Parameter(True), TypeError),
    (lambda: ms.Parameter((1.0, 2.0)), TypeError),
    (lambda: ms.ParameterTuple({}), TypeError),
    (lambda: ms.value_and_grad(Net(), weights={}), TypeError),
    (lambda: ms.jit_class(3), TypeError),
    (lambda: ops.avg_pool2d(ms.Tensor(np.ones((1, 1, 4, 4))), ms.Tensor([2, 2])), TypeError),
    (lambda: ops.laplace((2,), 0.0, 1.0), TypeError),
    (lambda: ops.uniform((2,), 0.0, 1.0), TypeError),
    (lambda: mint.std(ms.Tensor([1.0, 2.0]), 0, correction=0.5), TypeError),
    (lambda: mint.bernoulli(ms.Tensor([0.5]), generator=3), TypeError),
    (lambda: mint.item(3), TypeError),
    (lambda: ops.cosine_similarity(ms.Tensor([[1.0]]), ms.Tensor([[1.0]]), dim=(1,)), TypeError),
)


def test_what_only_a_name_gives_is_at_no_place():
    """The third argument of randint was taken for its generator."""
    assert mint.randint(0, 4, (3,)).shape == (3,) and mint.randint(4, (2,)).shape == (2,)


def test_what_documents_allow_besides_tensors_is_taken():
    x = ms.Tensor([1.0, 2.0])
    assert ops.bucketize(x, [1.5]).asnumpy().tolist() == [0, 1]
    assert ops.clip_by_value([x, x], 0.0, 1.5)[1].asnumpy().tolist() == [1.0, 1.5]
    assert (x * [1, 2]).asnumpy().tolist() == [1.0, 4.0] and (x == [1, 0]).asnumpy().tolist() == [True, False]
    assert ops.float_power(2, x).asnumpy().tolist() == [2.0, 4.0] and ops.div(1, x).asnumpy().tolist() == [1.0, 0.5]
    assert ops.std(x, 0, ddof=True).shape == () and mint.nn.ELU(0.5)(x).shape == (2,)
