"""Every check keeps the promise of its text, and every declared argument is refused outside it, in the same words."""

import importlib
import inspect
from types import FunctionType

import numpy as np
import pytest

from parallel_lab.base.checks import (
    INT_LIMIT,
    SEED,
    Check,
    checked,
    choice,
    fitting,
    flag,
    floating,
    integer,
    integers,
    kept,
    number,
    path_text,
    probability,
    refuse_slip,
    sequence_of,
    size_or_none,
    text,
)
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError, ParallelLabError, shorten
from tests.house.source import all_modules
from tests.junk import (
    FLAG,
    JUNK,
    LARGEST,
    NOTHING,
    PATH,
    TEXT,
    Loud,
    Promise,
    Silent,
    declared,
    either,
    one_of,
    outside,
    plain,
    promise,
    real,
    several,
    whole,
)

OPEN_ENDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
PROGRAMS = ("__main__", "nbgrader_config", "jupyter_nbconvert_config")  # not imported: programs and their settings

INTS = whole(1, of_numpy=True)
KIT = [  # a check, what its arguments promise, its text
    (integer(), whole(of_numpy=True), "An int"),
    (integer(-2), whole(-2, of_numpy=True), "An int, at least -2"),
    (integer(1, 8), whole(1, 8, of_numpy=True), "An int from 1 to 8"),
    (integer(0, INT_LIMIT), whole(0, LARGEST, of_numpy=True), "An int, at least 0"),
    (integer(2, 4096, also=(-1,), kinds=int), whole(2, 4096, (-1,)), "-1, or an int from 2 to 4096"),
    (SEED, either(whole(0, 2**64 - 1, of_numpy=True), NOTHING), f"An int from 0 to {2**64 - 1}, or None"),
    (number(), real(ints=True), "A finite number"),
    (number(0, 1), real(0, 1, ints=True), "A finite number, at least 0, at most 1"),
    (number(-1, above=True), real(-1, above=True, ints=True), "A finite number, above -1"),
    (probability, real(0, 1, below=True, ints=True), "A finite number, at least 0, below 1"),
    (floating(0.5, 2, above=True), real(0.5, 2, above=True), "A finite float, above 0.5, at most 2"),
    (floating(high=0), real(high=0), "A finite float, at most 0"),
    (flag, FLAG, "True or False"),
    (text, TEXT, "A text (str)"),
    (path_text(), PATH, "The path of a file or folder as text (str), without a null character"),
    (choice("sum", "mean"), one_of("sum", "mean"), "One of 'sum', 'mean'"),
    (choice(1, True, "a"), one_of(1, True, "a"), "One of 1, True, 'a'"),
    (choice(0.5), one_of(0.5), "One of 0.5"),
    (integers(1), several(INTS, one=True), "An int, at least 1, or a list or tuple of such ints"),
    (sequence_of(integer(1), "Ints"), several(INTS), "Ints"),
    (sequence_of(integer(1), "Ints", empty=True), several(INTS, empty=True), "Ints"),
]


def refusal(call, *args, **kwargs):
    """(result, None), or (None, the error)."""
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error


def fault(check: Check, promised: Promise, value: object) -> str:
    """What is wrong with the answer of a check for a value; "" if it is as promised, in plain types and words."""
    expected = promised.rule(value)
    read, error = refusal(check, "place", "name", value)
    if expected is None:
        parts = read if type(read) is tuple else (read,)
        right = error is None and all(type(part) in (bool, int, float, str, type(None)) for part in parts)
        right = right and (type(read) is tuple or read is value or read == type(read)(plain(value)))
    else:
        kinds = {TypeError: ArgumentTypeError, ValueError: ArgumentError}
        right = type(error) is kinds[expected] and str(error).startswith(f"place: name={shorten(value)}")
        right = right and check.allowed in str(error)
    return "" if right else f"{check.allowed}: {shorten(value)} became {read!r}, {error!r}"


@pytest.mark.parametrize(("check", "promised", "allowed"), KIT, ids=[allowed for _, _, allowed in KIT])
def test_a_check_takes_what_it_promises_in_plain_types_and_nothing_else(check, promised, allowed):
    assert check.allowed == allowed
    inside, refused = promised.sides(JUNK)
    assert len(inside) > 1 and len(refused) > 50
    assert not [found for value in (*promised.edges, *JUNK) if (found := fault(check, promised, value))]


def test_texts_that_hold_what_is_no_path_or_too_long_get_a_hint():
    with pytest.raises(ArgumentError, match=r"at least 0\. More than 2147483647 is taken for a slip\.$"):
        integer(0, INT_LIMIT)("f", "count", 2**31)
    with pytest.raises(ArgumentTypeError, match=r"A finite float\. Write it with a decimal point\.$"):
        floating()("f", "rate", 1)
    with pytest.raises(ArgumentError, match=r"One of 'sum', 'mean'\. The nearest is 'mean'\.$"):
        choice("sum", "mean")("f", "reduction", "means")


@pytest.mark.parametrize(
    ("given", "size_bytes"),
    [("4 MiB", 4 * 2**20), ("900 kb", 900 * 2**10), ("1,5G", 3 * 2**29), ("12 B", 12), (7, 7), ("", 0), (None, 0)],
)
def test_a_typed_size_is_a_number_of_bytes(given, size_bytes):
    assert size_or_none("f", "size", given) == size_bytes


def test_what_a_check_takes_only_with_a_word_of_its_own():
    with pytest.raises(ArgumentError, match="A size such as '4 MiB'"):
        size_or_none("f", "size", "1e30 G")
    with pytest.raises(ArgumentError, match="path=''"):
        path_text(empty=False)("f", "path", "")
    with pytest.raises(ArgumentError, match="'gradients', or a name less like it"):
        refuse_slip("f", "gradiens", ["loss", "gradients"])
    assert refuse_slip("f", "steps", ["loss", "gradients"]) is None


def test_switches_of_a_function_without_checks_are_true_or_false():
    switched = fitting(lambda x, on=True, *, off=False: (x, on, off))
    assert switched(1, False, off=True) == (1, False, True)
    for args, given in (((1, 1), {}), ((1,), {"off": "no"})):
        with pytest.raises(ArgumentTypeError, match="True or False"):
            switched(*args, **given)


def test_arguments_are_kept_unless_the_class_has_that_name_and_no_check():
    class Kept:
        n, size = 0, property(lambda self: 5)

        @kept(n=integer(1))
        def __init__(self, n, size, rate=0.5): ...

    made = Kept(3, 8)
    assert (made.n, made.size, made.rate, made._kept) == (3, 5, 0.5, ("n",))


# ---- what the package declares ----


@pytest.fixture(scope="module")
def functions():
    """{place: function with declared checks}: those of the package's modules and of their classes."""
    found = {}
    for name in all_modules():
        if name.rpartition(".")[2] not in PROGRAMS:
            module = importlib.import_module(name)
            spaces = [module, *(each for each in vars(module).values() if isinstance(each, type))]
            for value in [value for space in spaces for value in list(vars(space).values())]:
                function = getattr(value, "__func__", value)
                if isinstance(function, FunctionType) and declared(function):
                    found[f"{function.__module__}.{function.__qualname__}"] = function
    return found


def test_every_declared_text_is_kept(functions):
    """The texts in the kit's own words, of all arguments in the package."""
    every = {id(check): check for function in functions.values() for check in declared(function).values()}
    kit = {check.allowed: check for check in every.values() if isinstance(check, Check) and promise(check)}
    assert len(kit) > 60
    faults = [
        found
        for check in kit.values()
        for value in promise(check).edges
        # whether numpy's ints are taken, no text says
        if not isinstance(value, np.integer) and (found := fault(check, promise(check), value))
    ]
    assert not faults


def misuse(function, name):
    """A call for each value outside what the check of `name` takes: (arguments, the one that is refused). Arguments are
    looked at in the order of their checks: those before the bad one get what they take, if their text says what.
    """
    checks, parameters = declared(function), list(inspect.signature(function).parameters.values())
    own = [Silent()] if parameters[0].name == "self" else []
    own += [Loud() for p in parameters if p.kind is p.POSITIONAL_ONLY]
    required = [p.name for p in parameters[len(own) :] if p.default is p.empty and p.kind not in OPEN_ENDS]
    others = {other: Loud() for other in required if other != name}
    for other in others:
        if isinstance(checks.get(other), Check) and promise(checks[other]):
            others[other] = promise(checks[other]).sides()[0][0]
    first = next(other for other in checks if other == name or type(others.get(other)) is Loud)
    for value in outside(checks[name]) if isinstance(checks[name], Check) else [Loud()]:
        yield own, {**others, name: value}, first


def test_every_declared_argument_is_refused_outside_what_its_check_allows(functions):
    """By an error of the pair, which names place, argument, value and what is allowed."""
    assert len(functions) > 250
    faults = []
    for place, function in functions.items():
        scope = inspect.getclosurevars(function).nonlocals
        where = scope["where"] or ("Silent" if function.__name__ == "__init__" else scope["own_name"])
        for name in declared(function):
            for own, given, first in misuse(function, name):
                _, error = refusal(function, *own, **given)
                check = declared(function)[first]
                if isinstance(check, Check):
                    said = f"{where}: {first}={shorten(given[first])}"
                    right = (
                        isinstance(error, scope["errors"])
                        and str(error).startswith(said)
                        and check.allowed in str(error)
                    )
                else:  # a check of another room has errors of its own
                    right = isinstance(error, ParallelLabError) and first in str(error)
                if not right:
                    faults.append((place, given, error))
    assert not faults


def plainly(a, b=2, *, c=3):
    return a, b, c


def by_place(a, b=2, /, c=3):
    return a, b, c


def rest(a, *b, c=3, **d):
    return a, b, c, d


@pytest.mark.parametrize("function", [plainly, by_place, rest], ids=lambda f: f.__name__)
@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("names", ["", "a", "b", "c", "ab", "bc", "abc", "d"])
def test_a_checked_function_takes_what_it_takes_unchecked(function, count, names):
    args, kwargs = range(5, 5 + count), dict.fromkeys(names, 9)
    try:
        expected = function(*args, **kwargs)
    except TypeError:
        expected = ArgumentTypeError
    call = checked(a=integer(1), c=integer(1))(function)
    try:
        assert call(*args, **kwargs) == expected
    except ArgumentTypeError:
        assert expected is ArgumentTypeError
