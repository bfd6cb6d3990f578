"""Tables whose ranks hold uneven rows (`manual_split`): equal to one device, in training and in checkpoints."""

import numpy as np
import pytest

from parallel_lab import ShapeError, StrategyError, Tensor, compile, nn, ops
from parallel_lab.graph.passes import PASSES
from parallel_lab.graph.plan import Plan
from parallel_lab.layout.slices import assemble, cut
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.checkpoint.records import TensorRecord, layout_from_plain, layout_to_plain
from parallel_lab.train.checkpoint.reslice import reslice, whole_array
from parallel_lab.train.checkpoint.strategy_file import load_strategy, save_strategy
from parallel_lab.train.session import Session
from tests.crossed import each_of
from tests.nets import cell

ROWS = (3, 1, 2, 5)
TABLE = np.random.default_rng(0).normal(size=(11, 6))
STARTS = np.cumsum((0, *ROWS[:-1]))
# of every sample one number in each field's rows
FIELDS = np.stack(
    [np.random.default_rng(i).integers(a, a + n, 8) for i, (a, n) in enumerate(zip(STARTS, ROWS, strict=True))], axis=1
)


def looking_up(strategy=None, rows=ROWS, prim=None, name="manual_split"):
    """Squares of the rows that the fields name."""
    table, prim = Parameter(Tensor(TABLE), name="table"), prim or ops.Gather()
    if strategy is not None:
        prim.add_prim_attr(name, rows).shard(strategy)
    return cell(lambda net, i: ops.reduce_sum(ops.square(net.prim(net.table, i, 0)), (1, 2)), table=table, prim=prim)


def compiled(net, device_num, **options):
    return compile(net, FIELDS, device_num=device_num, dataset_strategy="full_batch", **options)


PAIRS = tuple(zip(ROWS, STARTS.tolist(), strict=True))
WAYS = {
    "rows": (4, ((4, 1), (1, 4)), {}),
    "rows and columns": (8, ((4, 2), (1, 4)), {}),
    "with offsets": (4, ((4, 1), (1, 4)), {"rows": PAIRS, "name": "manual_split_with_offset"}),
    "EmbeddingLookup": (8, ((4, 2), (1, 4)), {"prim": ops.EmbeddingLookup().set_device("CPU")}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_lookup_in_uneven_rows_is_that_of_one_device_without_a_message(way):
    device_num, strategy, options = WAYS[way]
    plan = compiled(looking_up(strategy, **options), device_num, passes=PASSES)
    sim = Simulator(plan, {"table": TABLE})
    sim.run_step(FIELDS)
    np.testing.assert_allclose(sim.full(plan.outputs[0]), (TABLE[FIELDS] ** 2).sum((1, 2)), rtol=1e-13)
    expected = np.zeros_like(TABLE)
    np.add.at(expected, FIELDS, 2 * TABLE[FIELDS])
    np.testing.assert_allclose(sim.full(dict(plan.gradients)["table"]), expected, rtol=1e-12)
    sent = [i for p in ("forward", "backward") for i in plan.stages[0].program(p) if i.is_communication]
    assert not [i for i in sent if i.name == "prim" or "table" in i.out]
    held = [sim.value("table", rank=rank) for rank in range(device_num)]
    for rank, part in enumerate(held):
        number = plan.value("table").layout.slice_numbers(rank)[0]
        assert part.shape == (max(ROWS), 6 // strategy[0][1])
        assert not part[ROWS[number] :].any()
    assert Plan.from_dict(plan.to_dict()) == plan


@pytest.mark.quick(1)
@each_of("optimizer", nn.Adam, nn.Lamb, nn.AdaFactor)
def test_training_with_uneven_rows_gives_the_table_of_one_device(optimizer):
    found = []
    for device_num, strategy in ((1, None), (8, ((4, 2), (1, 4)))):
        net = looking_up(strategy)
        made = optimizer(net.trainable_params(), *([] if optimizer is nn.AdaFactor else [0.1]))
        plan = compile(
            net,
            FIELDS,
            np.zeros(8),
            loss=nn.MSELoss(),
            optimizer=made,
            device_num=device_num,
            dataset_strategy="full_batch",
        )
        with Session(plan, net, made) as session:
            losses = session.train([(FIELDS, np.zeros(8))], steps=3)
            found.append((losses[-1], session.parameters()["table"]))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-6)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5, atol=1e-7)


REFUSED = {
    "even rows": (((2, 1), (1, 2)), ROWS, StrategyError, "dim 0 of input 0 2 ways, but manual_split has 4 parts"),
    "whole fields": (((4, 1), (1, 1)), ROWS, StrategyError, "dim 1 of input 1 1 ways, but manual_split has 4 parts"),
    "samples": (((4, 1), (2, 4)), ROWS, StrategyError, "another dim than the last"),
    "no split": (((1, 1), (1, 1)), ROWS, StrategyError, "leaves the rows whole"),
    "repeated": (((4, 1), (1, 4)), ROWS, StrategyError, "uses 4 of 8 devices"),
    "another sum": (((4, 1), (1, 4)), (3, 1, 2, 6), RuntimeError, "whose sum is the table's 11 rows"),
    "no rows": (((4, 1), (1, 4)), (3, 0, 3, 5), RuntimeError, "Ints of at least 1"),
    "other offsets": (((4, 1), (1, 4)), ((3, 0), (1, 0), (2, 0), (5, 0)), RuntimeError, "the sum before it"),
    "a number": (((4, 1), (1, 4)), 4, RuntimeError, "manual_split=4"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_parts_that_do_not_fit_are_refused_with_the_reason(how):
    strategy, rows, error, words = REFUSED[how]
    with pytest.raises(error, match=words):
        compiled(looking_up(strategy, rows), 8)


def test_one_device_looks_up_without_parts():
    plan = compiled(looking_up(((4, 1), (1, 4))), 1, parallel_mode="stand_alone")
    sim = Simulator(plan, {"table": TABLE})
    sim.run_step(FIELDS)
    np.testing.assert_allclose(sim.full(plan.outputs[0]), (TABLE[FIELDS] ** 2).sum((1, 2)), rtol=1e-13)


def test_a_field_that_names_another_ranks_row_is_refused_where_it_happens():
    plan = compiled(looking_up(((4, 1), (1, 4))), 4)
    sim = Simulator(plan, {"table": TABLE})
    wrong = FIELDS.copy()
    wrong[5, 1] = 10
    with pytest.raises(ShapeError, match=r"rank 1.*an index is 10. Indices from 3 to 3: by manual_split"):
        sim.run_step(wrong)


UNEVEN = TensorLayout((4, 2), (1, 0), rows=ROWS)


def test_parts_fold_back_into_the_table_and_into_other_parts():
    parts = {rank: cut(TABLE, UNEVEN, rank) for rank in range(8)}
    np.testing.assert_array_equal(assemble(list(parts.values()), TABLE.shape, UNEVEN), TABLE)
    columns = TensorLayout((2, 4), (-1, 1))
    for rank in range(8):
        np.testing.assert_array_equal(reslice(parts, UNEVEN, columns, TABLE.shape, rank), cut(TABLE, columns, rank))
        held = {r: cut(TABLE, columns, r) for r in range(8)}
        np.testing.assert_array_equal(reslice(held, columns, UNEVEN, TABLE.shape, rank), parts[rank])
    records = [TensorRecord(part, TABLE.shape, UNEVEN, rank) for rank, part in parts.items()]
    np.testing.assert_array_equal(whole_array(records), TABLE)
    assert layout_from_plain(layout_to_plain(UNEVEN), "here") == UNEVEN
    assert TensorLayout((2, 4), (1, 0), rows=(6, 6)) == TensorLayout((2, 4), (1, 0))
    assert not UNEVEN.same_placement(TensorLayout((4, 2), (1, 0), rows=(1, 3, 2, 5)))


def test_a_strategy_file_keeps_the_parts(tmp_path):
    plan = compiled(looking_up(((4, 2), (1, 4))), 8)
    save_strategy(plan, tmp_path / "strategy.json")
    (kept,) = load_strategy(tmp_path / "strategy.json").parameters
    assert kept.layout == plan.value("table").layout
    assert kept.layout.rows == ROWS
