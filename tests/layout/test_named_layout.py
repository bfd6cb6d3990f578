"""`Layout`: names for device-matrix axes, against MindSpore's (2.10: recorded errors, the tutorial's slices)."""

import itertools

import numpy as np
import pytest

from parallel_lab import Layout, LayoutError, ParallelLabError
from parallel_lab.layout.named_layout import LayoutStrategy, as_strategy, strategy_counts
from tests.crossed import each_of

CUBE = Layout((2, 2, 2), ("dp", "sp", "mp"))
IS_WHOLE = "the name 'None', which stands for a dim that stays whole"


# ---- what a layout says ----


@each_of(
    ("dims", "tensor_map"),
    (("dp", "mp"), (2, 0)),  # MindSpore's own example
    (("mp", ("sp", "dp")), (0, (1, 2))),
    (("None", "sp"), (-1, 1)),
    ((("dp",), "None"), ((2,), -1)),
    ((("dp", "None"),), ((2, -1),)),
    ((), ()),
)
def test_axes_are_counted_from_the_right(dims, tensor_map):
    made = CUBE(*dims)
    assert made.tensor_map == tensor_map
    assert made.to_dict() == {"device_matrix": (2, 2, 2), "tensor_map": tensor_map, "interleaved_parallel": False}


def test_the_first_name_of_a_tuple_is_the_outer_cut():
    """MindSpore's example: rows by mp, columns by (sp, dp) of [[a0..a3], [a4..a7]]; a0..a3 lie on ranks 0, 4, 2, 6."""
    layout = CUBE("mp", ("sp", "dp")).tensor_layout()
    full = np.arange(8).reshape(2, 4)
    held = [int(full[layout.slice_index((2, 4), rank)].item()) for rank in range(8)]
    assert [held.index(i) for i in range(4)] == [0, 4, 2, 6]
    assert [held.index(i) for i in range(4, 8)] == [1, 5, 3, 7]


@pytest.mark.parametrize("rank", range(8))
def test_slices_of_the_tutorials_product(rank):
    """x (32, 784) with layout("mp", ("sp", "dp")), weight (784, 512) with layout(("sp", "dp"), "None"), as in
    MindSpore's tutorial on operators.

    Block 2 sp + dp of the contracted dim. (The tutorial prints a table with 2 dp + sp, against what its feature page
    says of tuples.)
    """
    dp, sp, mp = rank // 4, rank // 2 % 2, rank % 2
    x = CUBE("mp", ("sp", "dp")).tensor_layout().slice_index((32, 784), rank)
    weight = CUBE(("sp", "dp"), "None").tensor_layout().slice_index((784, 512), rank)
    block = slice(196 * (2 * sp + dp), 196 * (2 * sp + dp + 1))
    assert x == (slice(16 * mp, 16 * mp + 16), block)
    assert weight == (block, slice(0, 512))


@pytest.mark.parametrize("count", range(4))
def test_slices_follow_the_coordinates_for_every_order_of_names(count):
    layout = Layout((2, 4, 2), ("a", "b", "c"))
    sizes = {"a": 2, "b": 4, "c": 2}
    for names in itertools.permutations("abc", count):
        made = layout(names if names else "None").tensor_layout()
        for rank in range(16):
            place = {"a": rank // 8, "b": rank // 2 % 4, "c": rank % 2}
            number = 0
            for name in names:
                number = number * sizes[name] + place[name]
            parts = int(np.prod([sizes[n] for n in names], dtype=int))
            assert made.slice_index((16,), rank) == (slice(16 // parts * number, 16 // parts * (number + 1)),)


def test_splits_and_counts():
    x, w = CUBE("mp", ("sp", "dp")), CUBE(("sp", "dp"), "None")
    assert (x.splits, w.splits, x.device_num) == ((2, 4), (4, 1), 8)
    assert strategy_counts((x, w)) == LayoutStrategy((x, w)).counts == ((2, 4), (4, 1))
    assert strategy_counts(((2, 4), (4, 1))) == ((2, 4), (4, 1))


def test_a_call_makes_a_new_layout_and_leaves_the_old_one():
    first = CUBE("dp", "None")
    second = CUBE("None", "mp")
    assert first.tensor_map == (2, -1) and second.tensor_map == (-1, 0)
    assert CUBE.dims is None
    with pytest.raises(ValueError, match=r"places no tensor yet.*Call it"):
        CUBE.to_dict()
    with pytest.raises(AttributeError):
        first.dims = ("mp",)


def test_equal_layouts_are_equal_and_hash_alike():
    one, two = Layout((2, 4), ("dp", "mp"))("dp", ("mp",)), Layout((2, 4), ("dp", "mp"))("dp", ("mp",))
    assert one == two and hash(one) == hash(two) and len({one, two}) == 1
    assert one != Layout((2, 4), ("dp", "mp"))("mp", "dp")
    assert one != Layout((4, 2), ("dp", "mp"))("dp", ("mp",))
    assert one != Layout((2, 4), ("dp", "mp"))


@pytest.mark.parametrize("dims", [("dp", ("sp", "mp")), ("None",), (("dp",),), ()])
def test_repr_can_be_typed_back(dims):
    made = CUBE(*dims)
    assert eval(repr(made)) == made
    assert eval(repr(CUBE)) == CUBE


def test_texts():
    x = CUBE("dp", ("sp", "mp"))
    assert str(x) == "layout(dp, (sp, mp))"
    strategy = LayoutStrategy((x, CUBE(("sp", "mp"), "None")))
    assert str(strategy) == "(layout(dp, (sp, mp)), layout((sp, mp), None)) on device_matrix (dp=2, sp=2, mp=2)"
    entries, _, made = strategy.code.partition(" with layout = ")
    assert eval(entries, {"layout": eval(made)}) == strategy.layouts
    one = LayoutStrategy((x,))
    assert str(one).startswith("(layout(dp, (sp, mp)),) on ")
    assert eval(one.code.partition(" with ")[0], {"layout": CUBE}) == one.layouts


@pytest.mark.parametrize("dims", [("None", "mp"), ("dp", "sp"), (("sp", "dp"), "None"), (("mp",), ("None", "dp")), ()])
def test_named_is_the_inverse_of_axes(dims):
    made = CUBE(*dims)
    assert CUBE.named(made.axes).axes == made.axes


def test_what_a_node_carries():
    pair = (CUBE("dp", "mp"), CUBE("mp", "None"))
    assert as_strategy(pair) == LayoutStrategy(pair)
    assert as_strategy(pair, True).nd_tp
    assert as_strategy(((2, 4), (4, 1))) == ((2, 4), (4, 1)) and as_strategy(None) is None and as_strategy(()) == ()
    strategy = as_strategy(pair)
    assert len(strategy) == 2 and tuple(strategy) == pair and strategy[1] == pair[1]


def test_layouts_of_one_placement_are_equal_whatever_their_axes_are_called():
    pairs, cube = Layout((2, 4), ("a", "b")), CUBE("dp", ("sp", "mp"))
    assert pairs("a", "b") == cube and hash(pairs("a", "b")) == hash(cube) and len({pairs("a", "b"), cube}) == 1
    assert pairs("a", "None") == CUBE("dp", "None") != CUBE("sp", "None") and pairs("a", "None") != pairs("a")
    assert CUBE("dp", ("sp", "mp")) != CUBE("dp", ("mp", "sp"))
    # before the call they place nothing: then what is written counts
    assert Layout((2, 4), ("a", "b")) == pairs != Layout((2, 4), ("a", "c")) and pairs("a") != pairs
    assert LayoutStrategy((pairs("a", "b"),)) != LayoutStrategy((cube,))


def test_interleaved_parallel_stands_last():
    layout = Layout((2, 2, 2), ("dp", "sp", "interleaved_parallel"))
    expected = {"device_matrix": (2, 2, 2), "tensor_map": ((2, 0), 1), "interleaved_parallel": True}
    called = layout(("dp", "interleaved_parallel"), "sp")
    assert called.to_dict() == expected
    assert (called.splits, called.device_num, called.parts) == ((2, 2), 4, 2)
    assert called.plain() == Layout((2, 2), ("dp", "sp"))("dp", "sp") != called
    with pytest.raises(ValueError, match=r"'interleaved_parallel' is the name of axis 1.*stands last"):
        Layout((2, 2, 2), ("dp", "interleaved_parallel", "sp"))


# ---- what is refused: classes as recorded from MindSpore 2.10 ----


@each_of(
    ("make", "kind", "words"),
    (lambda: Layout([2, 4], ("dp", "mp")), TypeError, "device_matrix is a list.*tuple of ints"),
    (lambda: Layout(8, ("dp",)), TypeError, "device_matrix is a int"),
    (lambda: Layout((2, 4), ["dp", "mp"]), TypeError, "alias_name is a list.*tuple of names"),
    (lambda: Layout((8,), "tp"), TypeError, r"alias_name is a str.*comma in \('tp',\)"),
    (lambda: Layout((2.0, 4), ("dp", "mp")), TypeError, "holds 2.0 of type float"),
    (lambda: Layout((True, 4), ("dp", "mp")), TypeError, "holds True of type bool"),
    (lambda: Layout((np.int64(2), 4), ("dp", "mp")), TypeError, "of type int64"),
    (lambda: Layout((2, None), ("dp", "mp")), TypeError, "holds None"),
    (lambda: Layout((2, 4), ("dp", 3)), TypeError, "alias_name holds 3 of type int"),
    (lambda: Layout((2, 4), ("dp",)), ValueError, "2 axes and alias_name 1 names"),
    (lambda: Layout((2, 4), ("dp", "")), ValueError, "an empty name"),
    (lambda: Layout((2, 4), ("dp", "None")), ValueError, IS_WHOLE),
    (lambda: Layout((2, 4), ("dp", "dp")), ValueError, "'dp' 2 times"),
    (lambda: Layout((2, 0), ("dp", "mp")), ValueError, "device_matrix holds 0"),
    (lambda: Layout((2, -4), ("dp", "mp")), ValueError, "device_matrix holds -4"),
    (lambda: Layout((), ()), ValueError, "device_matrix is empty"),
    (lambda: CUBE("dp", "tp"), ValueError, r"no axis 'tp'.*One of \('dp', 'sp', 'mp', 'None'\)"),
    (lambda: CUBE("dp", ("sp", "tp")), ValueError, "no axis 'tp'"),
    (lambda: CUBE("dp", "dp"), ValueError, "'dp' splits dims 0 and 1"),
    (lambda: CUBE(("dp", "dp")), ValueError, "'dp' splits dim 0 twice"),
    (lambda: CUBE("dp", ("sp", "dp")), ValueError, "'dp' splits dims 0 and 1"),
    (lambda: CUBE(None, "dp"), TypeError, "given None.*Write 'None'"),
    (lambda: CUBE(0, 1), TypeError, "dim 0 is given 0, with 0 of type int"),
    (lambda: CUBE(["dp", "sp"]), TypeError, "of type list"),
    (lambda: CUBE((("dp",),)), TypeError, "of type tuple"),
)
def test_a_wrong_layout_is_refused_with_what_is_allowed(make, kind, words):
    with pytest.raises(kind, match=words) as caught:
        make()
    assert isinstance(caught.value, ParallelLabError) and isinstance(caught.value, LayoutError)
    assert str(caught.value).startswith("Layout(")
