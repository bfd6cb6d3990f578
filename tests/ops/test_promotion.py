"""Dtypes of operands that differ: MindSpore's implicit conversion, eagerly, traced and on ranks."""

import itertools
import random

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, grad, ops
from parallel_lab.base.dtypes import as_dtype, load_bfloat16
from parallel_lab.base.errors import ShapeError
from parallel_lab.ops import OPS
from tests.crossed import each_of
from tests.ops.compiled import results

BF16 = load_bfloat16()
# Categories from low to high, each from narrow to wide. MindSpore's documentation, "Implicit Type Conversion": the
# operand of lower priority is converted; int8 with uint8 gives int16, float16 with bfloat16 float32.
ORDER = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
ALONE = ["uint16", "uint32", "uint64"]


def expected(one, other):
    if {one, other} == {"int8", "uint8"}:
        return "int16"
    return ORDER[max(ORDER.index(one), ORDER.index(other))]


def ones(dtype, shape=(8, 4)):
    return np.ones(shape, dtype)


@pytest.mark.quick(4)
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations_with_replacement(ORDER, 2))[::-1])
def test_the_higher_dtype_counts_eagerly_and_on_ranks(one, other):
    """int32 with float32 gave float64, as in numpy."""
    want = expected(one, other)
    for x, y in ((ones(one), ones(other)), (ones(other), ones(one, (4,)))):
        assert str((Tensor(x) * Tensor(y)).dtype) == want
        (found,) = results(lambda x, y: x * y, x, y)
        assert str(found.dtype) == want
        assert str(ops.maximum(x, y).dtype) == want  # on arrays
        quotient = want if want.startswith("float") else "float32"
        assert str((Tensor(x) / Tensor(y)).dtype) == quotient
        (found,) = results(lambda x, y: x / y, x, y)
        assert str(found.dtype) == quotient


@each_of(
    ("dtype", "number", "want"),
    *(("bool", True, "bool"), ("bool", 2, "int64"), ("bool", 2.5, "float32"), ("uint8", 2, "uint8")),
    *(("int16", 2.5, "float32"), ("int32", 2.5, "float32"), ("int64", 2.5, "float32"), ("int32", True, "int32")),
    *(("float16", 2.5, "float16"), ("float16", 2, "float16"), ("float64", 2.5, "float64"), (BF16, 2.5, "bfloat16")),
)
def test_a_python_number_takes_the_tensors_dtype_unless_its_category_is_higher(dtype, number, want):
    x = ones(dtype)
    found = [Tensor(x) + number, number + Tensor(x), *results(lambda x: x + number, x), ops.add(x, number)]
    assert {str(each.dtype) for each in found} == {want}
    value = 1 + number if want != "bool" else True
    assert all(np.all(np.asarray(each, np.float64) == float(value)) for each in found)


@each_of(("one", "other"), *((one, other) for one in ALONE for other in ("int32", "float32", "uint8", *ALONE)))
def test_wide_unsigned_ints_are_not_converted(one, other):
    if one == other:
        assert str((Tensor(ones(one)) + Tensor(ones(other))).dtype) == one
        return
    for call in (
        lambda: Tensor(ones(one)) + Tensor(ones(other)),
        lambda: results(lambda x, y: x + y, ones(one), ones(other)),
        lambda: Tensor(ones(one)) + 2,
    ):
        with pytest.raises(ShapeError, match=f"(Add|arithmetic).*: .*{one}.*does not convert"):
            call()


def test_comparisons_look_at_the_converted_values():
    """2**24 + 1 does not fit float32: next to float32 it is compared as 2**24."""
    whole, fraction = np.array([2**24 + 1], np.int32), np.array([2.0**24], np.float32)
    assert (Tensor(whole) == Tensor(fraction)).asnumpy().all()
    assert not (Tensor(whole) == Tensor(fraction.astype(np.float64))).asnumpy().any()


@each_of(
    ("call", "want"),
    (lambda x, y: ops.concat((x, y)), "float16"),
    (lambda x, y: ops.stack((x, y)), "float16"),
    (lambda x, y: ops.where(y > 0, x, y), "float16"),
    (lambda x, y: ops.where(y > 0, 1, 2), "int64"),
    (lambda x, y: ops.where(y > 0, x, 0.5), "float32"),
    (lambda x, y: ops.lerp(x, y, 0.5), "float16"),
    (lambda x, y: ops.addcmul(y, x, y, 0.5), "float16"),
    (lambda x, y: ops.addcdiv(x, x, x, 0.5), "float32"),
    (lambda x, y: ops.xlogy(x, y), "float16"),
    (lambda x, y: ops.truncate_div(x, y), "float16"),
    (lambda x, y: ops.floor_div(y, x), "float16"),
    (lambda x, y: ops.hypot(x, x), "float32"),
)
def test_operators_of_several_tensors_follow_the_same_rule(call, want):
    x, y = ones("int64"), ones("float16")
    (found,) = results(call, x, y)
    assert str(call(Tensor(x), Tensor(y)).dtype) == str(found.dtype) == want
    np.testing.assert_array_equal(call(Tensor(x), Tensor(y)).asnumpy(), found)


def test_a_gradient_has_the_dtype_of_its_own_operand():
    x, w = Tensor(ones("float16")), Tensor(ones("float32"))
    by_x, by_w = grad(lambda x, w: (x * w).sum(), (0, 1))(x, w)
    assert (str(by_x.dtype), str(by_w.dtype)) == ("float16", "float32")


SEVERAL = [name for name, op in sorted(OPS.items()) if op.cases and not op.writes]
KINDS = {"f": ["float16", "float32", "float64", "bfloat16", "int32", "int64", "bool"], "i": ["int32", "int64"]}


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", SEVERAL)
def test_results_have_the_inferred_dtype_whatever_the_operands_are(name):
    """14 operators gave float64, or one element's type, where the plan said float32: with ints next to floats."""
    op, draw = OPS[name], random.Random(name)
    for case in op.cases:
        for _ in range(6):
            arrays = case.arrays(np.random.default_rng(1))
            arrays = [a.astype(as_dtype(draw.choice(KINDS.get(a.dtype.kind, [a.dtype.name])))) for a in arrays]
            positional, named = (arrays, {}) if op.variadic else ((), dict(zip(op.tensors, arrays, strict=True)))
            try:
                with np.errstate(all="ignore"):  # zeros and ones where the values do not count
                    made = op(*positional, **named, **dict(case.attrs))
            except ShapeError:  # dtypes that the operator does not take
                continue
            attrs = {**op.default_attrs, **dict(case.attrs)}
            wanted = op.infer(tuple(a.shape for a in arrays), tuple(str(a.dtype) for a in arrays), attrs).dtypes
            made = made if isinstance(made, tuple) else (made,)
            assert tuple(str(np.asarray(each).dtype) for each in made) == wanted, [str(a.dtype) for a in arrays]


# ---- Parameters keep their dtype ----


def parameter(dtype):
    return Parameter(Tensor(ones(dtype)), name="p")


@each_of(("own", "given"), ("float32", "int64"), ("float32", "float16"), ("int32", "bool"), ("float16", "int32"))
def test_a_parameter_takes_in_values_of_lower_dtypes(own, given):
    for write in (lambda p, x: p.set_data(x), ops.assign, ops.assign_add):
        p = parameter(own)
        write(p, Tensor(ones(given)))
        assert str(p.dtype) == own
    p = parameter(own)
    (found,) = results(lambda x: ops.assign(p, x), ones(given), p=ones(own))
    assert str(found.dtype) == own


@each_of(("own", "given"), ("float16", "float32"), ("float32", "float64"), ("int32", "float16"), ("int32", "int64"))
def test_a_parameter_refuses_values_of_higher_dtypes(own, given):
    """They were rounded without a word."""
    for call in (
        lambda p, x: p.set_data(x),
        ops.assign,
        ops.assign_sub,
        lambda p, x: results(lambda x: ops.assign(p, x), x.asnumpy()),
    ):
        with pytest.raises(TypeError, match=rf"values of {given} for a Parameter of {own}"):
            call(parameter(own), Tensor(ones(given)))


def test_numbers_for_a_parameter_are_of_its_category():
    p = parameter("float16")
    p.set_data(Tensor(2 * ones("float16")))
    ops.assign_add(p, 0.5)
    assert np.all(p.asnumpy() == 2.5)
    for write in (lambda p, x: p.set_data(x), ops.assign):
        with pytest.raises(TypeError, match="float32 for a Parameter of int32"):
            write(parameter("int32"), 0.5)


def test_a_fraction_of_ints_is_refused_and_a_bound_of_ints_is_kept():
    """alpha=0.5 was 0 with ints, and so was the bound of a shrink."""
    x = Tensor(ones("int32"))
    with pytest.raises(ShapeError, match=r"AddExt: alpha=0\.5 for int32 and int32\. An int"):
        ops.add_ext(x, x, alpha=0.5)
    assert np.all(ops.add_ext(x, x, alpha=2).asnumpy() == 3)
    assert np.all(ops.add_ext(x, Tensor(ones("float16")), alpha=0.5).asnumpy() == 1.5)
    assert np.all(ops.soft_shrink(x, lambd=0.25).asnumpy() == 0.75)
