"""What is planned is what MindSpore 2.10 emits (tests/recorded/redistribution.json); and what planning costs."""

from __future__ import annotations

import json
from functools import cache

import pytest

from parallel_lab.layout import redistribution
from parallel_lab.layout.redistribution import plan_redistribution
from parallel_lab.layout.redistribution_steps import operators
from parallel_lab.layout.refinement import common_refinement
from parallel_lab.layout.tensor_layout import TensorLayout
from tests.crossed import each_of
from tests.layout.folding import BOTH, RECORDED, check, strategy

# ---- MindSpore: recorded operator lists ----

EACH_RECORDED = pytest.mark.parametrize(
    "case", RECORDED, ids=lambda c: f"{c['shape']}:{c['from']}->{c['to']}on{c['devices']}".replace(" ", "")
)


def recorded_rows(case: dict, manner: str) -> list[tuple]:
    return [
        (op["op"], json.loads(op["inp"]), json.loads(op["out"]), op["group"] or "", recorded_args(op))
        for op in case[manner]
    ]


def recorded_args(op: dict) -> tuple:
    """Deciding attributes: Split (axis, output_num), Concat (axis), StridedSlice (begin, end); others are names."""
    if op["op"] not in ("Split", "Concat", "StridedSlice"):
        return ()
    values = json.loads("[" + op["args"].split(", ", 1)[1].replace("(", "[").replace(")", "]") + "]")
    return tuple(tuple(v) if isinstance(v, list) else v for v in values[: 2 if op["op"] != "Concat" else 1])


def planned_rows(src: TensorLayout, dst: TensorLayout, shape: tuple[int, ...], alltoall: bool) -> list[tuple]:
    rows = []
    for op in operators(plan_redistribution(src, dst, shape, alltoall=alltoall)):
        args = dict(op.args)
        inputs = [] if op.name == "Concat" else [list(op.in_shape)]  # not recorded for Concat
        kept = {"Split": ("axis", "output_num"), "Concat": ("axis",), "StridedSlice": ("begin", "end")}.get(op.name, ())
        made = (op.name, inputs, [list(op.out_shape)] * args.get("output_num", 1), op.group_name)
        rows.append((*made, tuple(args[k] for k in kept)))
    return rows


@pytest.mark.quick(36)
@pytest.mark.parametrize("manner", ["allgather", "alltoall"])
@EACH_RECORDED
def test_operators_are_those_mindspore_emits(case, manner):
    src, dst = (TensorLayout.from_strategy(case[k], case["devices"]) for k in ("from", "to"))
    assert planned_rows(src, dst, tuple(case["shape"]), manner == "alltoall") == recorded_rows(case, manner)


@pytest.mark.quick(36)
@BOTH
@EACH_RECORDED
def test_recorded_pairs_move_real_arrays_to_their_place(case, alltoall):
    src, dst = (TensorLayout.from_strategy(case[k], case["devices"]) for k in ("from", "to"))
    check(src, dst, tuple(case["shape"]), alltoall=alltoall)


def names(src, dst, shape, alltoall, dst_shape=None) -> str:
    steps = plan_redistribution(src, dst, shape, dst_shape=dst_shape, alltoall=alltoall)
    return " ".join(op.name + (f"{{{'-'.join(map(str, op.group))}}}" if op.group else "") for op in operators(steps))


@each_of(
    ("src", "dst", "gather", "alltoall"),
    ((8, 1), (2, 1), "AllGather{0-1-2-3}", None),
    ((2, 1), (8, 1), "StridedSlice", None),
    ((2, 4), (1, 1), "AllGather{0-1-2-3} Split Concat AllGather{0-4}", None),
    (
        *((2, 4), (8, 1), "Reshape AllGather{0-1-2-3} Split Concat Reshape StridedSlice"),
        "Reshape AlltoAll{0-1-2-3} Reshape",
    ),
    ((1, 8), (8, 1), "AllGather{0-1-2-3-4-5-6-7} Split Concat StridedSlice", "AlltoAll{0-1-2-3-4-5-6-7}"),
    ((1, 1), (2, 4), "StridedSlice StridedSlice", None),
    (
        (1, 8),
        (2, 4),
        "Reshape AllGather{0-1} Split Concat AllGather{0-2} Split Concat AllGather{0-4} Split Concat "
        "StridedSlice StridedSlice StridedSlice Reshape",
        "Reshape AlltoAll{0-4} AlltoAll{0-2} AlltoAll{0-1} Reshape",
    ),
)
def test_eight_devices_table_of_mindspore_2_10(src, dst, gather, alltoall):
    assert names(strategy(*src), strategy(*dst), (16, 16), False) == gather
    assert names(strategy(*src), strategy(*dst), (16, 16), True) == (alltoall or gather)


@each_of(
    ("src", "dst", "shape", "expected"),
    # 5 common dims, looked at in the order 0 1 4 3 2: the last dim first
    ((8, 1, 1), (2, 2, 2), (8, 8, 8), "AlltoAll{0-1} AlltoAll{0-2}"),
    ((2, 4, 1), (1, 2, 4), (8, 8, 8), "AlltoAll{0-1-2-3} AlltoAll{0-4}"),
    # with an AllToAll gathers come as they are found; without one highest dim first
    ((4, 2), (1, 2), (16, 16), "AllGather{0-2} AllGather{0-1} AlltoAll{0-4}"),
    ((4, 2), (2, 1), (16, 16), "AllGather{0-1} AllGather{0-2}"),
)
def test_order_of_independent_messages_is_that_of_mindspore_2_10(src, dst, shape, expected):
    """Recorded groups and kinds, alltoall on. Shapes of the reshapes between were not recorded."""
    found = names(strategy(*src), strategy(*dst), shape, True)
    assert [name for name in found.split() if "{" in name] == expected.split()


@pytest.mark.quick(3)
@each_of(
    ("src", "dst", "shape", "dst_shape", "alltoall", "expected"),
    (((16, 1, 1), (2, 0)), ((1, 16, 1), (2, 1)), (512, 1024), None, False, "AllGather StridedSlice"),
    (((8,), (0, -1, -1, -1)), ((8,), (0, -1)), (128, 64, 1, 1), (128, 64), False, "Reshape"),
    # MatMul ((4,1),(1,1)) -> MatMul ((1,1),(1,4)); seed 003: MatMul ((2,4),(4,1)) -> ReLU ((2,4))
    (((4, 1, 1), (2, 1)), ((1, 1, 4), (2, 1)), (16, 16), None, False, "AllGather"),
    (((2, 4, 1), (2, 0)), ((2, 4), (1, 0)), (16, 16), None, False, "StridedSlice"),
    (((8,), (-1, 0)), ((8,), (0, -1)), (16, 16), None, False, "AllGather Split Concat StridedSlice"),
    (((8,), (-1, 0)), ((8,), (0, -1)), (16, 16), None, True, "AlltoAll"),
    (((8, 2), (1, 0)), ((4, 4), (1, 0)), (512, 1024), None, True, "Reshape AlltoAll AlltoAll Reshape"),
    (((2, 1, 4), (2, 0)), ((8, 1), (1, 0)), (64, 64), None, True, "Reshape AlltoAll Reshape"),
    # rows by axis 1 and columns by axis 0, exchanged: a cycle, broken by a gather
    (((2, 4), (1, 0)), ((2, 4), (0, 1)), (16, 16), None, True, "AllGather AlltoAll StridedSlice"),
)
def test_operators_of_documents_and_unit_tests(src, dst, shape, dst_shape, alltoall, expected):
    src, dst = TensorLayout(*src), TensorLayout(*dst)
    check(src, dst, shape, dst_shape, alltoall=alltoall)
    found = names(src, dst, shape, alltoall, dst_shape)
    assert " ".join(name.split("{")[0] for name in found.split()) == expected


@BOTH
def test_unit_test_pair_sends_one_message(alltoall):
    """MindSpore, tensor_redistribution_test: one AllGather among slices and reshapes; the order is 2.10's."""
    src, dst = TensorLayout((2, 4, 2), (2, 0)), TensorLayout((4, 2, 2), (2, 1))
    steps = check(src, dst, (512, 1024), alltoall=alltoall)
    assert [step.kind for step in steps if step.communicates] == ["all_gather"]


# ---- common ground (MindSpore, redistribution_layout_transfer_test and reshape_layout_transfer_test) ----


@each_of(
    ("src", "dst", "dst_shape", "device_matrix", "src_map", "dst_map", "shape"),
    (((8, 4), (1, 0)), ((2, 16), (1, 0)), (512, 1024), (2, 4, 4), (2, 1, 0, -1), (2, -1, 1, 0), (2, 256, 4, 256)),
    (((8, 4), (1, 0)), ((2, 16), (0, 1)), (512, 1024), (2, 2, 2, 4), (3, 2, 1, 0), (2, 1, 0, 3), (2, 2, 128, 1024)),
    (
        *(((8,), (0, -1)), ((2, 2, 2), (2, 1)), (512, 1024), (2, 2, 2)),
        *((2, 1, 0, -1), (2, -1, -1, 1), (2, 2, 128, 1024)),
    ),
    (((16, 1, 1), (2, 0)), ((1, 16, 1), (2, 1)), (512, 1024), (16,), (0, -1), (-1, 0), (512, 1024)),
    (((8, 4), (1, 0)), ((8, 4), (1, 0)), (128, 4096), (8, 4), (1, -1, 0), (1, 0, -1), (128, 4, 1024)),
    (((8, 4), (1, 0)), ((8, 4), (0, 1)), (128, 4096), (4, 2, 4), (2, 1, -1, 0), (0, -1, 2, 1), (4, 32, 4, 1024)),
)
def test_common_refinement(src, dst, dst_shape, device_matrix, src_map, dst_map, shape):
    found = common_refinement(TensorLayout(*src), TensorLayout(*dst), (512, 1024), dst_shape)
    assert (found.device_matrix, found.src_map, found.dst_map, found.shape) == (device_matrix, src_map, dst_map, shape)


# ---- lowering of what the recordings do not hold ----


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_slices_its_own_part(rank):
    (op,) = operators(plan_redistribution(TensorLayout((4,), (-1, -1)), TensorLayout((4,), (-1, 0)), (6, 12)), rank)
    assert dict(op.args) == {"begin": (0, 3 * rank), "end": (6, 3 * rank + 3), "strides": (1, 1)}


def test_reduce_scatter_of_columns_is_cut_and_stacked_first():
    src, dst = TensorLayout((4,), (-1, -1), partial=(0,)), TensorLayout((4,), (-1, 0))
    found = operators(plan_redistribution(src, dst, (6, 12), alltoall=True))
    expected = [("Split", (6, 12), (6, 3)), ("Concat", (6, 3), (24, 3)), ("ReduceScatter", (24, 3), (6, 3))]
    assert [(op.name, op.in_shape, op.out_shape) for op in found] == expected


# ---- cost of planning ----


@cache
def typical_pairs() -> tuple:
    cuts = [(8, 1), (1, 8), (2, 4), (4, 2), (2, 2), (1, 2), (2, 1), (1, 1)]
    return tuple((strategy(*a), strategy(*b)) for a in cuts for b in cuts)


def test_a_plan_is_made_once():
    redistribution._plan.cache_clear()
    plans = [plan_redistribution(a, b, (64, 64), alltoall=m) for a, b in typical_pairs() for m in (False, True)]
    again = [plan_redistribution(a, b, (64, 64), alltoall=m) for a, b in typical_pairs() for m in (False, True)]
    assert all(one is two for one, two in zip(plans, again, strict=True))
