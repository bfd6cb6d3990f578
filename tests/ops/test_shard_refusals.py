"""What `shard` and `compile` refuse: 2,000 drawn illegal strategies, of counts and of layouts, on several operators,
and what MindSpore recorded.

Every draw is illegal by a rule that stands here (a wrong type, a count that does not divide, an axis used twice), not
by what the package says. Nothing may be computed before the refusal.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from parallel_lab import Layout, StrategyError, compile, ops
from parallel_lab.base.errors import StrategyTypeError, shorten
from parallel_lab.base.settings import context as parallel_context
from parallel_lab.layout.named_layout import as_strategy
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.ops.machine.opdef import OpDef
from parallel_lab.ops.machine.registry import PRIMITIVES
from parallel_lab.ops.machine.split_labels import strategy_operands
from tests.crossed import each_of
from tests.ops.test_battery import OneOperator
from tests.refusals import refused

DEVICES = 8
OPERATOR_NAMES = "MatMul BatchMatMul Add Sub ReLU ReduceSum ReduceMax LayerNorm BiasAdd Transpose Gather Conv2D Softmax"
OPERATORS = OPERATOR_NAMES.split()
LAYOUT = Layout((2, 2, 2), ("dp", "sp", "mp"))

# a sentence of what is allowed: one of these stands in every refusal
ALLOWED = (
    "A tuple with one tuple per input",
    "Counts are ints",
    "Counts are at least 1",
    "Counts are powers of two",
    "Layouts only, or tuples of ints only",
    "Layouts that were called",
    "One tuple per input",
    "One layout per input",
    "One count per dim",
    "One entry per dim",
    "Every slice must have the same size",
    "must split the contracted dim equally",
    "must split it equally",
    "must split it by the same axes in the same order",
    "A dim of size 1 is not split",
    "stays whole",
    "stay whole",
    "The product of all counts must divide the number of devices",
    "The product of a layout's device_matrix is the number of devices",
    "All layouts of one operator have the same device_matrix",
    "An axis splits one dim of an operator",
    "Rows can be split in tables",
    "The rows or the indices are split",
    "With split rows the indices have dims",
    "may be split so far that every rank finds what it needs with its neighbours",
    "must be a multiple of the stride",
    "Both are made of layouts, or both of tuples of ints",
    "Its result may be split",
)


class Subject:
    """One operator with one of its examples: shapes, labels, sizes, and a legal strategy to spoil."""

    def __init__(self, name, rng):
        self.op = PRIMITIVES[name].op
        batched = name == "BatchMatMul"
        cases = [c for c in self.op.cases if "MatMul" not in name or batched == (len(c.shapes[0]) > 2)]
        self.name, self.case = self.op.class_name, cases[rng.integers(len(cases))]
        attrs = {**self.op.default_attrs, **dict(self.case.attrs)}
        signature = self.op.signature_for(self.case.shapes, attrs)
        self.labels = strategy_operands(self.op, signature)
        self.sizes = self.op.label_sizes(signature, self.case.shapes, attrs)
        self.whole = self.op.whole_labels(signature, self.case.shapes, attrs)
        legal = legal_strategies(self.op, self.case.shapes, attrs, DEVICES)
        self.legal = legal[rng.integers(len(legal))]
        # (input, dim, label) of every dim that a strategy can say something about
        self.dims = [(i, d, c) for i, labels in enumerate(self.labels) for d, c in enumerate(labels)]

    def dim(self, rng, wanted=lambda label: True):
        """One (input, dim, label), drawn among those whose label is wanted, or None."""
        found = [x for x in self.dims if x[2] != "1" and wanted(x[2])]
        return found[rng.integers(len(found))] if found else None

    def with_count(self, position, dim, count):
        """The legal strategy with one count replaced."""
        return tuple(
            tuple(count if (i, d) == (position, dim) else c for d, c in enumerate(t)) for i, t in enumerate(self.legal)
        )

    def layouts(self, cuts, layout=LAYOUT):
        """Layouts from {label: names}."""
        return tuple(layout(*(cuts.get(c, "None") for c in labels)) for labels in self.labels)

    def compiled_with(self, strategy, out=None):
        """What a learner does: shard, then compile."""
        arrays = self.case.arrays(np.random.default_rng(0))
        cell = OneOperator(self.op, self.case, arrays, strategy, weighted=False)
        if out is not None:
            cell.prim.shard(strategy, out)
        compile(cell, np.ones(4), device_num=DEVICES, dataset_strategy="full_batch")


def one_of(rng, values):
    return values[rng.integers(len(values))]


# ---- ways to spoil a strategy: functions of (subject, rng) -> the illegal strategy, or None where the operator has no
# place for it ----


def wrong_container(s, rng):
    legal = s.legal
    lists = [list(legal), [list(t) for t in legal], dict(enumerate(legal)), set(legal), frozenset(legal), str(legal)]
    others = [repr(legal).encode(), 8, 2.0, True, object(), np.array([1, 1]), iter(legal), Fraction(1, 2), range(2)]
    return one_of(rng, [*lists, *others, lambda: legal, LAYOUT("dp"), LAYOUT])


def wrong_inner_container(s, rng):
    position = rng.integers(len(s.legal))
    inner = s.legal[position]
    numbers = [2, 2.0, None, True, "2", b"1", np.int64(2)]
    wrong = one_of(rng, [list(inner), *numbers, dict.fromkeys(inner), np.array(inner), range(1), {1}])
    return tuple(wrong if i == position else t for i, t in enumerate(s.legal))


def wrong_type_of_count(s, rng):
    position, dim, _ = one_of(rng, s.dims)
    numbers = [2.0, 1.0, np.int64(2), np.int32(1), np.float64(2), 2 + 0j, Fraction(2), float("nan"), math.inf]
    return s.with_count(position, dim, one_of(rng, [*numbers, True, False, None, "2", b"2", (2,), [2]]))


def not_a_power_of_two(s, rng):
    position, dim, _ = one_of(rng, s.dims)
    values = [0, -1, -2, -8, 3, 5, 6, 7, 12, 24, 10**12, -(10**12), 2**64 - 1, -(2**70)]
    values.append(int(rng.integers(3, 10**6)) * 2 + 1)
    return s.with_count(position, dim, one_of(rng, values))


def too_few_or_many_tuples(s, rng):
    wrong = [(*s.legal, (1,)), s.legal + s.legal, (*s.legal, ()), ()]
    return one_of(rng, [*wrong, s.legal[:-1]] if len(s.legal) > 1 else wrong)


def too_few_or_many_counts(s, rng):
    position = rng.integers(len(s.legal))
    inner = s.legal[position]
    wrong = [(*inner, 1), (1, *inner), (*inner, *inner, 1), (1,) * 9]
    return tuple(
        one_of(rng, [*wrong, inner[:-1]] if len(inner) > 1 else wrong) if i == position else t
        for i, t in enumerate(s.legal)
    )


def indivisible(s, rng):
    position, dim, label = s.dim(rng)
    least = 2 * (s.sizes[label] & -s.sizes[label])
    return s.with_count(position, dim, one_of(rng, [least, 2 * least, 2**40, 2**200]))


def more_slices_than_devices(s, rng):
    """Every dim is divided, and by labels they agree, but there are 16 slices or more."""
    free = [c for c in dict.fromkeys("".join(s.labels)) if c != "1" and c not in s.whole]
    cuts = {c: int(s.sizes[c] & -s.sizes[c]) for c in free}
    if math.prod(cuts.values()) <= DEVICES:
        return None
    return tuple(tuple(cuts.get(c, 1) for c in labels) for labels in s.labels)


def inputs_that_disagree(s, rng):
    found = s.dim(rng, lambda c: sum(c in labels for labels in s.labels) > 1 and s.sizes[c] % 2 == 0)
    if found is None:
        return None
    position, dim, _ = found
    return s.with_count(position, dim, 2 if s.legal[position][dim] == 1 else 1)


def a_dim_that_stays_whole(s, rng):
    found = [x for x in s.dims if x[2] == "1" or (x[2] in s.whole and s.sizes[x[2]] % 2 == 0)]
    return s.with_count(*one_of(rng, found)[:2], 2) if found else None


def mixed(s, rng):
    if len(s.legal) < 2:
        return None
    position = rng.integers(len(s.legal))
    layouts = s.layouts({})
    return tuple(layouts[i] if i == position else t for i, t in enumerate(s.legal))


def layout_not_called(s, rng):
    position = rng.integers(len(s.legal))
    return tuple(LAYOUT if i == position else layout for i, layout in enumerate(s.layouts({})))


def layouts_too_few_or_many(s, rng):
    layouts = s.layouts({})
    return one_of(rng, [layouts + layouts, (*layouts, LAYOUT()), (*layouts, LAYOUT("None"))])


def layout_with_wrong_dims(s, rng):
    position = rng.integers(len(s.labels))
    extra = LAYOUT(*(["None"] * (len(s.labels[position]) + int(rng.integers(1, 4)))))
    return tuple(extra if i == position else layout for i, layout in enumerate(s.layouts({})))


def layouts_for_other_device_counts(s, rng):
    matrix = one_of(rng, [(2, 2), (2,), (4, 4), (2, 2, 2, 2), (1,), (4096,), (24,), (3, 3)])
    return s.layouts({}, Layout(matrix, tuple("abcd"[: len(matrix)])))


def layouts_of_different_matrices(s, rng):
    if len(s.labels) < 2:
        return None
    matrix = one_of(rng, [(2, 4), (8,), (4, 2), (2, 2, 2, 1)])
    other = s.layouts({}, Layout(matrix, tuple("abcd"[: len(matrix)])))
    position = rng.integers(len(s.labels))
    return tuple(other[i] if i == position else layout for i, layout in enumerate(s.layouts({})))


def layouts_that_disagree(s, rng):
    def shared(c):
        return sum(c in labels for labels in s.labels) > 1 and s.sizes[c] % 4 == 0 and c not in s.whole

    found = s.dim(rng, shared)
    if found is None:
        return None
    position, dim, label = found
    pairs = [("dp", "sp"), ("dp", "None"), ("None", "mp"), (("dp", "sp"), ("sp", "dp")), (("dp", "sp"), "dp")]
    one, other = one_of(rng, pairs)
    layouts = list(s.layouts({label: one}))
    layouts[position] = LAYOUT(*(other if d == dim else "None" for d in range(len(s.labels[position]))))
    return tuple(layouts)


def one_axis_for_two_labels(s, rng):
    """Labels that share no input: within one input the Layout itself refuses."""
    pairs = [
        (a, b)
        for i, one in enumerate(s.labels)
        for two in s.labels[i + 1 :]
        for a in one
        for b in two
        if a != b
        and "1" not in (a, b)
        and not any(a in labels and b in labels for labels in s.labels)
        and not any(s.sizes[c] % 2 or c in s.whole for c in (a, b))
    ]
    return s.layouts(dict.fromkeys(one_of(rng, pairs), str(one_of(rng, ("dp", "sp", "mp"))))) if pairs else None


def layout_that_does_not_divide(s, rng):
    found = s.dim(rng, lambda c: s.sizes[c] % 8)
    return s.layouts({found[2]: tuple(rng.permutation(("dp", "sp", "mp")).tolist())}) if found else None


def layout_that_cuts_what_stays_whole(s, rng):
    found = s.dim(rng, lambda c: c in s.whole)
    return s.layouts({found[2]: "mp"}) if found else None


def layout_cut_by_no_power_of_two(s, rng):
    found = s.dim(rng, lambda c: c not in s.whole)
    return s.layouts({found[2]: "a"}, Layout((one_of(rng, (3, 5, 6, 12)), 8), ("a", "b")))


TYPES = (wrong_container, wrong_inner_container, wrong_type_of_count, mixed)
VALUES = (
    *(not_a_power_of_two, too_few_or_many_tuples, too_few_or_many_counts, indivisible, more_slices_than_devices),
    *(inputs_that_disagree, a_dim_that_stays_whole, layout_not_called, layouts_too_few_or_many),
    *(layout_with_wrong_dims, layouts_for_other_device_counts, layouts_of_different_matrices, layouts_that_disagree),
    *(one_axis_for_two_labels, layout_that_does_not_divide, layout_that_cuts_what_stays_whole),
    layout_cut_by_no_power_of_two,
)
PER_SEED, SEEDS = 100, 20


def drawn(seed):
    """`PER_SEED` illegal strategies: (way, subject, strategy)."""
    rng = np.random.default_rng(seed)
    found = []
    while len(found) < PER_SEED:
        subject, spoil = Subject(str(one_of(rng, OPERATORS)), rng), one_of(rng, (*TYPES, *VALUES))
        strategy = spoil(subject, rng)
        if strategy is not None:
            found.append((spoil, subject, strategy))
    return found


@pytest.fixture
def nothing_computed(monkeypatch):
    """Fails if an operator computes anything."""

    def compute(self, *arrays, **attrs):
        raise AssertionError(f"{self.class_name} was computed")

    monkeypatch.setattr(OpDef, "compute", compute)


def shown(strategy):
    """The forms in which a refusal may quote what was given."""
    text = [shorten(strategy), str(strategy)]
    if isinstance(strategy, tuple) and strategy and all(isinstance(entry, Layout) for entry in strategy):
        text += [str(as_strategy(strategy))] if all(entry.dims is not None for entry in strategy) else []
        text += [repr(entry) for entry in strategy]
    return text


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_illegal_strategies_are_refused(seed, nothing_computed):
    for spoil, subject, strategy in drawn(seed):
        what = f"seed {seed}, {spoil.__name__}: {subject.name} {subject.case.shapes} {strategy!r}"
        with pytest.raises(StrategyError) as caught:
            subject.compiled_with(strategy)
            pytest.fail(f"accepted: {what}")
        error, text = caught.value, str(caught.value)
        assert isinstance(error, TypeError) == (spoil in TYPES), f"{what}: {type(error).__name__}: {text}"
        assert isinstance(error, ValueError) and isinstance(error, RuntimeError)
        assert text.startswith(subject.name), f"{what}: {text}"
        assert any(form in text for form in shown(strategy)), f"{what}: {text}"
        assert any(phrase in text for phrase in ALLOWED), f"{what}: {text}"


def test_there_are_two_thousand_and_every_way_occurs():
    draws = [(spoil.__name__, subject.name) for seed in range(SEEDS) for spoil, subject, _ in drawn(seed)]
    assert len(draws) == 2000
    assert {way for way, _ in draws} == {spoil.__name__ for spoil in (*TYPES, *VALUES)}
    # BatchMatMul is a second name of MatMul's operator
    assert {name for _, name in draws} == set(OPERATORS) - {"BatchMatMul"}


# ---- recorded from MindSpore 2.10 ----


test_what_shard_refuses_at_once = refused(
    (lambda: ops.MatMul().shard([[2, 4], [4, 1]]), TypeError),
    (lambda: ops.ReLU().shard((2, 4)), TypeError),
    (lambda: ops.MatMul().shard(((2.0, 4), (4, 1))), TypeError),
    (lambda: ops.MatMul().shard(None, ((8, 1),)), ValueError),
    # MindSpore takes these two in silence, and fails when it compiles
    (lambda: ops.MatMul().shard(((0, 4), (4, 1))), StrategyError),
    (lambda: ops.MatMul().shard(((-1, 4), (4, 1))), StrategyError),
    text=r"(MatMul|ReLU) shard \(test_shard_refusals.py:\d+\)",
)


@each_of(
    ("strategy", "words"),
    (
        ((32, 1), (1, 1)),
        r"strategy \(\(32, 1\), \(1, 1\)\) splits dim 0 of input 0 \('m'\) 32 ways, but it has 16 elements",
    ),
    (((8, 4), (4, 1)), "makes 32 slices, but there are 8 devices"),
    (((2, 4), (2, 1)), r"splits dim 0 of input 1 \('k'\) 2 ways, but input 0 splits 'k' \(its dim 1\) 4 ways"),
    (((8,), (1, 1)), "has 1 counts for input 0, which has 2 dims"),
    (((8, 1),), "has 1 tuples, but MatMul has 2 inputs"),
)
def test_what_compile_refuses_as_runtime_error(strategy, words):
    """MindSpore: "operator MatMul init failed", a RuntimeError, with the reason in its log."""
    subject = Subject("MatMul", np.random.default_rng(0))
    subject.case = subject.op.cases[0]
    with pytest.raises(RuntimeError, match=rf"^MatMul 'prim' \(.*\): .*{words}.*Try "):
        subject.compiled_with(strategy)


def test_in_and_out_are_both_layouts_or_both_counts():
    words = r"MatMul shard .*in_strategy .* with out_strategy .*Both are made of layouts"
    with pytest.raises(StrategyTypeError, match=words):
        ops.MatMul().shard((LAYOUT("dp", "mp"), LAYOUT("mp", "None")), ((2, 1),))
    with pytest.raises(StrategyTypeError, match="Both are made of layouts"):
        ops.MatMul().shard(((2, 2), (2, 1)), (LAYOUT("dp", "None"),))


@pytest.mark.parametrize("wrong", [[[8, 1]], LAYOUT("dp", "None"), (LAYOUT,), ((2.0, 1),), ((0, 1),), 3, "8"])
def test_a_refused_call_of_shard_changes_nothing(wrong):
    prim = ops.MatMul().shard(((2, 4), (4, 1)))
    before = repr(prim)
    with pytest.raises(StrategyError):
        prim.shard(((1, 8), (8, 1)), wrong)
    with pytest.raises(StrategyError):
        prim.shard(wrong)
    assert repr(prim) == before


# ---- how a sharded operator prints ----


def test_a_sharded_operator_prints_as_in_the_seeds():
    assert str(ops.Add().shard(((1, 1), (1, 1)))) == "Prim[Add]<in_strategy=((1, 1), (1, 1)), out_strategy=None>"
    assert str(ops.MatMul().shard(((2, 4), (4, 1)), ((8, 1),))).endswith(
        "in_strategy=((2, 4), (4, 1)), out_strategy=((8, 1),)>"
    )
    assert str(ops.Add()) == "Prim[Add]<>"


def test_a_sharded_operator_prints_without_out_strategy_in_2_10(monkeypatch):
    monkeypatch.setattr("parallel_lab.ops.machine.primitive.get_compat", lambda: "2.10")
    assert str(ops.Add().shard(((1, 1), (1, 1)))) == "Prim[Add]<in_strategy=((1, 1), (1, 1))>"


def test_the_switch_is_that_of_the_context():
    parallel_context.set_compat("2.10")
    try:
        assert str(ops.ReLU().shard(((1, 1),))) == "Prim[ReLU]<in_strategy=((1, 1),)>"
    finally:
        parallel_context.set_compat("seeds")
    assert str(ops.ReLU().shard(((1, 1),))) == "Prim[ReLU]<in_strategy=((1, 1),), out_strategy=None>"


@pytest.mark.parametrize("behind", [None, 3, "x", [2, 1], (2.0,)])
def test_a_count_is_refused_in_words_whatever_comes_behind_it(behind):
    """The shown correction keeps what comes behind; read as counts once, it ended in a TypeError without words."""
    words = r"Concat shard .*splits dim 1 of input 0 0 ways.*Counts are at least 1.*Try \(\(2, 1, 2\), "
    with pytest.raises(StrategyError, match=words):
        PRIMITIVES["Concat"](0).shard(((2, 0, 2), behind))


@each_of(("name", "value"), ("cross_batch", 1), ("cross_batch", "True"), ("enable_nd_tp", None), (3, True))
def test_an_attribute_that_would_not_be_heard_is_refused(name, value):
    """The compiler asks whether it is True: 1 meant nothing once, silently."""
    with pytest.raises(TypeError, match="ReduceMean add_prim_attr: "):
        PRIMITIVES["ReduceMean"]().add_prim_attr(name, value)
