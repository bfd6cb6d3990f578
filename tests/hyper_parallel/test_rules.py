"""`infer_layout`: where it gives a layout, ranks that compute with slices get the slices of the undivided result."""

import functools
import importlib

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab.hyper_parallel import Layout, families  # noqa: F401  # which fills the table
from parallel_lab.hyper_parallel.rules import FAMILIES

NAMES = ("dp", "cp", "tp")
MESH = Layout((2, 2, 2), NAMES)
X, W = (8, 16), (16, 24)
REDUCE = {"sum": np.sum, "avg": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x, gamma):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gamma


# class: module, name, shapes of what has a layout, places of the others among layouts, extra_args, the computation
CASES = {
    "ElementWise": ("elementwise", "Mul", (X, X), (), [[X, X]], np.multiply),
    "ElementWise broadcast": ("elementwise", "Mul", (X, (8, 1)), (), {"input_shapes": [X, (8, 1)]}, np.multiply),
    "ElementWise rows": ("elementwise", "Mul", (X, (16,)), (), {"input_shapes": [X, (16,)]}, np.multiply),
    "MatMulExt": ("matmul", "matmul", (X, W), (), [], np.matmul),
    "MatMul": ("matmul", "MatMul", (X, W[::-1]), (), (False, True), lambda a, b: a @ b.T),
    "BatchMatMulExt": ("matmul", "bmm", ((8, *X), (8, *W)), (), [], np.matmul),
    "BatchMatMul": ("matmul", "BatchMatMul", ((8, *X[::-1]), (8, *W)), (), (True, False), lambda a, b: a.mT @ b),
    "Linear": ("matmul", "linear", (X, W[::-1]), (2,), [], lambda a, b: a @ b.T),
    "SumExt": ("reduce", "sum", ((8, *X),), (), [(0, 2), False], lambda x: x.sum((0, 2))),
    "SumExt all": ("reduce", "sum", (X,), (), [], np.sum),
    "MeanExt": ("reduce", "mean", (X,), (), [-1, True], lambda x: x.mean(-1, keepdims=True)),
    "ReduceMax": ("reduce", "ReduceMax", (X,), (), [0, False], lambda x: x.max(0)),
    "ProdExt": ("reduce", "prod", (X,), (), [1, False], lambda x: x.prod(1)),
    "Max": ("reduce", "max", (X,), (), [], np.max),
    "ActivationWithAxis": ("activation_with_axis", "softmax", (X,), (), [-1], softmax),
    "Cumsum": ("cumsum", "cumsum", (X,), (), [1], lambda x: np.cumsum(x, 1)),
    "Norm": ("norm", "RmsNorm", (X, (16,)), (2,), None, rms),
    "LayerNorm": ("norm", "layer_norm", (X,), (1, 2), [(16,)], lambda x: rms(x - x.mean(-1, keepdims=True), 1)),
    "TopK": ("topk", "topk", (X,), (), [8, 1], lambda x: -np.sort(-x, 1)[:, :8]),
    "Sort": ("sort", "sort", (X,), (), [0], lambda x: np.sort(x, 0)),
    "Transpose": ("transpose", "permute", ((8, *X),), (), [(2, 0, 1)], lambda x: x.transpose(2, 0, 1)),
    "Transpose two": ("transpose", "transpose", ((8, *X),), (), [0, -1], lambda x: x.swapaxes(0, -1)),
    "ExpandDims": ("expand_dims", "unsqueeze", (X,), (), [1], lambda x: x[:, None]),
    "Squeeze": ("squeeze", "squeeze", ((8, 1, 16),), (), [1, [(8, 1, 16)]], lambda x: x[:, 0]),
    "Unbind": ("unbind", "unbind", (X,), (), [1, [X]], lambda x: x[:, 0]),
    "Split": ("split", "split", (X,), (), [6, 1, [X]], lambda x: x[:, :6]),
    "Concat": ("concat", "cat", (X, X), (), [0], lambda *xs: np.concatenate(xs)),
    "Stack": ("stack", "stack", (X, X), (), [1], lambda *xs: np.stack(xs, 1)),
    "Pad": ("pad", "pad", (X,), (), [(1, 2)], lambda x: np.pad(x, ((0, 0), (1, 2)))),
    "RepeatInterleave": ("repeat_interleave", "repeat_interleave", (X,), (), [3, 0], lambda x: x.repeat(3, 0)),
    "RepeatInterleave flat": ("repeat_interleave", "repeat_interleave", (X,), (), [3], lambda x: x.repeat(3)),
    "Reshape": ("reshape", "Reshape", ((8, 4, 6),), (), ((32, 2, 3), (8, 4, 6)), None),
    "Reshape parts": ("reshape", "view", ((16, 8),), (), (8, -1, 4, (16, 8)), None),
    "Expand": ("expand", "expand", ((1, 16),), (), (8, 4, -1), None),
}


def random_layout(generator, ndim):
    """Each axis splits a dim, or none; in random order inside a dim."""
    entries = [[] for _ in range(ndim + 1)]
    for axis in generator.permutation(len(NAMES)):
        entries[generator.integers(ndim + 1)].append(NAMES[axis])
    return MESH(*(e[0] if len(e) == 1 else tuple(e) or "None" for e in entries[:ndim]))


def one(answer):
    return answer[0] if isinstance(answer, tuple) else answer


def part(layout, array, rank):
    held = layout.mesh_layout().indices(array.shape, rank)
    return array[np.ix_(*held)] if array.ndim else array


def rank_results(case, arrays, layouts, answer):
    """What each rank computes with its slices, and the undivided result."""
    compute = CASES[case][-1]
    if case.startswith(("ElementWise", "Batch")):
        layouts = [
            sliced(x, layout, arrays[0].shape, one(answer), case) for x, layout in zip(arrays, layouts, strict=True)
        ]
    locals_ = [[part(layout, x, rank) for x, layout in zip(arrays, layouts, strict=True)] for rank in range(8)]
    if case.startswith("Reshape"):
        *sizes, _ = CASES[case][4]
        sizes = sizes[0] if len(sizes) == 1 else sizes
        return [x.reshape(answer[1]) for (x,) in locals_], arrays[0].reshape(sizes)
    if case == "Expand":
        whole = np.broadcast_to(arrays[0], (8, 4, 16))
        return [np.broadcast_to(x, (8, 4, x.shape[1])) for (x,) in locals_], whole
    return [compute(*xs) for xs in locals_], compute(*arrays)


def sliced(x, layout, shape, result, case):
    """A dim that an operand holds whole, cut as the result is: a copy is sliced without a message."""
    entries, over = list(layout.alias_tensor_map), len(shape) - x.ndim
    for dim in range(x.ndim if case.startswith("Element") else x.ndim - 2):
        if entries[dim] == "None" and x.shape[dim] == shape[dim + over]:
            entries[dim] = result.alias_tensor_map[dim + over]
    return MESH(*entries)


@pytest.mark.quick(3)
@pytest.mark.parametrize("case", CASES)
def test_slices_give_slices(case):
    """200 random layouts of the operands (seed 34): what is not refused is right on every rank."""
    module, name, shapes, missing, extra, _ = CASES[case]
    page = importlib.import_module(f"parallel_lab.hyper_parallel.core.shard.ops.parallel_{module}")
    op = getattr(page, f"{case.split()[0]}DistributedOp")(name)
    generator = np.random.default_rng(34)
    arrays = [generator.uniform(0.5, 1.5, shape) for shape in shapes]
    accepted = 0
    for _ in range(200):
        layouts = [random_layout(generator, len(shape)) for shape in shapes]
        if generator.integers(2):  # operands that lie alike where they can
            layouts = [layouts[0] if len(s) == len(shapes[0]) else x for s, x in zip(shapes, layouts, strict=True)]
        given = list(layouts)
        for place in missing:
            given.insert(place, None)
        if any(n % c for shape, x in zip(shapes, layouts, strict=True) for n, c in zip(shape, cuts(x), strict=True)):
            continue  # HyperParallel's slices are even
        try:
            answer = op.infer_layout(tuple(given), extra)
        except ValueError as refused:
            assert name in str(refused) or "Layout" in str(refused) or "set_partial" in str(refused)
            continue
        accepted += 1
        results, whole = rank_results(case, arrays, layouts, answer)
        layout = one(answer)
        pending = [n for n, op_ in enumerate(layout.partial) if op_]
        reduce = REDUCE[next(filter(None, layout.partial), "sum")]
        for rank in range(8):
            group = [r for r in range(8) if all(n in pending or (r ^ rank) >> (2 - n) & 1 == 0 for n in range(3))]
            got = reduce([results[r] for r in group], axis=0) if len(group) > 1 else results[rank]
            np.testing.assert_allclose(got, part(layout, np.asarray(whole), rank), rtol=1e-9)
    assert accepted > 2


def cuts(layout):
    return [2 ** len(axes) for axes in layout.dims()]


def pending(layout, **ops):
    for axis, op in ops.items():
        layout.set_partial_by_dev_axis(axis, op)
    return layout


def rule(module, name, op_name):
    page = importlib.import_module(f"parallel_lab.hyper_parallel.core.shard.ops.parallel_{module}")
    return functools.partial(getattr(page, f"{name}DistributedOp")(op_name).infer_layout)


def test_addends_pass_what_is_linear_and_nothing_else():
    x = pending(MESH("dp", "None"), tp="sum")
    added = rule("elementwise", "Add", "add")((x, MESH("dp", "None")), {"input_shapes": [X, X]})
    assert added.partial == [None, None, "sum"] and added.alias_tensor_map == ("dp", "None")
    assert rule("transpose", "Transpose", "transpose")((x,), (0, 1)).partial == [None, None, "sum"]
    assert rule("reduce", "SumExt", "sum")((x,), (0, False)).partial == ["sum", None, "sum"]
    for module, name, extra in (("elementwise", "ElementWise", None), ("reduce", "ProdExt", (0, False))):
        with pytest.raises(ValueError, match="pending"):
            rule(module, name, "op")((x,), extra)
    with pytest.raises(ValueError, match="broadcasts"):
        rule("elementwise", "Add", "add")((pending(MESH("None"), tp="sum"), MESH("dp", "None")), [[(16,), X]])


@pytest.mark.parametrize(("module", "name", "layouts"), [("elementwise", "Add", 2), ("matmul", "Linear", 3)])
def test_a_whole_operand_is_shared_out_among_addends(module, name, layouts):
    """Four ranks that each add a quarter have added it once."""
    page = importlib.import_module(f"parallel_lab.hyper_parallel.core.shard.ops.parallel_{module}")
    op = getattr(page, f"{name}DistributedOp")(name)
    result = pending(MESH("dp", "None"), cp="sum", tp="sum")
    given = [result, *[MESH("dp", "None")] * (layouts - 1)]
    ran = op.get_expand_impl(lambda *xs: xs, result, given, ())
    assert ran(*[8.0] * layouts) == (*[8.0] * (layouts - 1), 2.0)
    assert op.get_expand_impl(None, MESH("dp", "None"), [MESH("dp", "None")] * layouts, ()) is None


def test_index_operators_keep_the_dims_that_they_do_not_look_up():
    x, index = MESH("dp", "None", "tp"), MESH("cp")
    select = rule("gather", "IndexSelect", "index_select")
    assert select((x, None, index), (1,)).alias_tensor_map == ("dp", "cp", "tp")
    with pytest.raises(ValueError, match="split by"):
        select((x, None, index), (0,))
    rows = rule("embedding", "Embedding", "embedding")((MESH("dp", "None"), MESH("tp", "None")), ())
    assert rows.alias_tensor_map == ("dp", "None", "None") and rows.partial == [None, None, "sum"]
    nd = rule("gather", "GatherNd", "GatherNd")(
        (MESH("None", "None", "tp"), MESH("cp", "None")), [[(8, 16, 8), (4, 2)]]
    )
    assert nd.alias_tensor_map == ("cp", "tp")


def test_results_that_come_together():
    values, indices = rule("reduce", "Max", "max")((MESH("dp", "cp"),), (1, True))
    assert values == indices and values.alias_tensor_map == ("dp", "None") and values.partial[1] == "max"
    assert len(rule("unbind", "Unbind", "unbind")((MESH("None", "dp"),), ([X],))) == 8
    one_hot = rule("one_hot_ext", "OneHotExt", "one_hot")((MESH("dp"),), (10, 1, 0, -1))
    assert one_hot.alias_tensor_map == ("dp", "None")
    begin = rule("slice", "Slice", "Slice")((MESH("dp", "None"),), ((0, 2), (8, 9), X))
    assert begin[0].alias_tensor_map == ("dp", "None") and begin[1:] == ((0, 2), (4, 9))
    later = rule("stack", "Stack", "stack")([MESH("dp"), MESH("dp"), 0])
    assert later[0][0].alias_tensor_map == ("None", "dp") and later[1] is None


ODD = [None, (), [], 1, "x", (9,), ("a",), (None,), [[X]], (1.5,), {}, (2, 0), (X, X), ([1, 2], 0, [X])]


@pytest.mark.quick(6)
@pytest.mark.parametrize("module", FAMILIES)
def test_odd_arguments_are_refused_with_a_value_error_or_a_type_error(module):
    """They ended in IndexError, AttributeError, KeyError, each for its own operators."""
    page = importlib.import_module(f"parallel_lab.hyper_parallel.core.shard.ops.parallel_{module}")
    op = getattr(page, f"{module.title().replace('_', '')}DistributedOp")("op")
    one, two = MESH("dp", "None"), MESH("cp")
    refused = 0
    for layouts in ((), (None,), (one,), (one, None, two), (MESH(), one), [two, two], (one,) * 4):
        for extra in ODD:
            try:
                op.infer_layout(layouts, extra)
            except (ValueError, TypeError) as error:
                assert isinstance(error, pl.ParallelLabError), (layouts, extra, error)
                refused += 1
    assert refused or module == "ops"


def test_attention_keeps_the_rows_of_queries():
    """softmax(q k^T) v by rows of q: each rank needs all keys and values of its heads, and the whole of a head."""
    q, k = MESH("dp", "cp", "tp", "None"), MESH("dp", "cp", "None", "None")
    attention = rule("scaled_dot_product_attention", "ScaledDotProductAttention", "sdpa")
    assert attention((q, k, k), ()).alias_tensor_map == ("dp", "cp", "tp", "None")
    flash = rule("flash_attention_score", "FlashAttentionScore", "FlashAttentionScore")
    *statistics, _, result = flash((q, k, k), (8, "BNSD"))
    assert result.alias_tensor_map == ("dp", "cp", "tp", "None") == statistics[0].alias_tensor_map
    hidden = flash((MESH("dp", "tp", "cp"), *[MESH("dp", "None", "cp")] * 2), (8, "BSH"))
    assert hidden[-1].alias_tensor_map == ("dp", "tp", "cp") and hidden[0].alias_tensor_map == (
        "dp",
        "cp",
        "tp",
        "None",
    )
    for layouts in ((q, q, q), (MESH("dp", "cp", "None", "tp"), k, k)):
        with pytest.raises(ValueError, match="split by"):
            flash(layouts, (8, "BNSD"))
