"""Optimizer parallel on processes, against one device (`cases/optimizer_parallel.py`) and the simulator's bits."""

import numpy as np
import pytest

from parallel_lab import Session, nn
from tests.crossed import crossed
from tests.graph.test_update_totals import LAYOUTS, OPTIMIZERS, net_and_data
from tests.train.cases import optimizer_parallel
from tests.train.sessions import plan_for
from tests.train.test_forms import OWNED
from tests.train.worlds import compared

FUSED = {kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather", "reducescatter")}
ON = {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}


worlds, test_ranks_equal_one_device = compared(optimizer_parallel, quick=2)  # the larger ones are exhaustive


def test_gradients_come_as_slices_and_the_optimizer_keeps_slices(worlds):
    for note in worlds.notes(4, "gradients_alone"):
        assert note["slices"] == [[(3, 8), (2,), (4, 8)]] * 3 and note["held"][1]["w"] == [(3, 8), (3, 8)]


def test_a_parameter_is_a_slice_that_full_puts_together(worlds):
    for note in worlds.notes(4, "whole_of_a_parameter"):
        assert note == {"w": (3, 8), "layout": "device_matrix (4,), tensor_map (0, -1)"}


def test_a_folder_holds_slices_of_everything(worlds):
    for note in worlds.notes(4, "saved_under_it_and_loaded_without"):
        assert note["cut"] == sorted(
            [*("w", "bias", "v"), *(f"{kind}.{name}" for kind in ("moment1", "moment2") for name in ("w", "bias", "v"))]
        )


def test_what_was_saved_whole_is_cut_when_it_is_loaded(worlds):
    for shapes, kept in worlds.notes(4, "saved_without_it_and_loaded_under_it"):
        assert shapes["w"] == (3, 8) and kept["w"] == [(3, 8), (3, 8)]


def test_states_go_where_they_are_needed(worlds):
    for rank, note in enumerate(worlds.notes(2, "grouped_then_at_once_then_not")):
        everything = ["bias", "v", "w"]
        assert note["kept"] == [OWNED[rank], OWNED[rank], everything, everything] * 2


def test_states_in_slices_go_to_their_owners(worlds):
    for rank, note in enumerate(worlds.notes(2, "cut_then_grouped")):
        everything = ["bias", "v", "w"]
        assert note["kept"] == [everything, OWNED[rank]] * 2


def test_files_are_whole_and_a_folder_has_each_rank_s_share(worlds):
    everything = sorted(f"{kind}.{name}" for kind in ("lamb_m", "lamb_v") for name in ("w", "bias", "v"))
    for rank, note in enumerate(worlds.notes(2, "grouped_saved_and_loaded")):
        assert note["file"] == everything
        assert note["mine"] == sorted(f"{kind}.{name}" for kind in ("lamb_m", "lamb_v") for name in OWNED[rank])


def test_refusals_have_the_documented_class(worlds):
    words = {"adam": "with Adam in data_parallel mode", "hybrid": "'hybrid_parallel'"}
    words |= {"few": "2 ranks and 1 parameters", "step": "with Adam"}
    for note in worlds.notes(2, "refusals"):
        for name, text in words.items():
            kinds, said = note[name]
            assert {"OptimizerParallelError", "RuntimeError", "ValueError"} <= set(kinds) and text in said, (name, said)


# ---- bits ----


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("settings", "name"),
    crossed(
        [{}, {"optimizer_weight_shard_size": 2}, {"optimizer_level": "level3"}, {"comm_fusion": FUSED}],
        ["adam", "all-together"],
    ),
)
def test_processes_give_the_simulator_s_bits(name, settings, pools):
    found = []
    for executor in ("simulator", "processes"):
        net, data = net_and_data((((4, 1), (1, 1)), ((4, 1),), ((2, 1), (1, 2))), np.float32)
        optimizer = OPTIMIZERS[name](net.trainable_params())
        plan, _ = plan_for(net, data, 4, optimizer, **ON, **settings)
        how = {"pool": pools[4]} if executor == "processes" else {}
        with Session(plan, net, optimizer, executor=executor, **how) as session:
            losses = session.train(data, 20)
            values = {**session.parameters(), **session.values(s.name for s in plan.states)}
            slices = session.slices("w")
            found.append((losses, {**values, **dict(enumerate(slices))}))
    (losses, before), (others, after) = found
    assert losses == others
    assert before.keys() == after.keys() and all(np.array_equal(before[n], after[n]) for n in before)
    assert {a.shape for a in slices} == {(16, 16) if "optimizer_weight_shard_size" in settings else (8, 16)}


@pytest.mark.exhaustive
def test_eight_ranks_too(pools):
    net, data = net_and_data(LAYOUTS["one split, one not"], np.float32)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    plan, _ = plan_for(net, data, 8, optimizer, **ON)
    with Session(plan, net, optimizer) as session:
        losses, want = session.train(data, 6), session.parameters()
    with Session(plan, net, optimizer, executor="processes", pool=pools[8]) as session:
        assert session.train(data, 6) == losses
        for name, value in session.parameters().items():
            assert np.array_equal(value, want[name]), name
