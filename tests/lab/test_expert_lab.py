"""The Expert Lab: its rows are the choices of its router, its bytes those that a plan sends, its runs one device's."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.settings.current import default_settings
from parallel_lab.cost.time import sent_bytes
from parallel_lab.lab.experts.model import BALANCE_FACTORS, EPS, LOOKED_AT, ROUTER_NAMES, ExpertLab
from parallel_lab.lab.experts.net import RANKS, STEPS, TOKENS, compiled
from parallel_lab.lab.experts.run import Ran
from parallel_lab.ops.routing import ROUTERS


def rows_of(lab: ExpertLab, step: int) -> np.ndarray:
    """Rows of each rank, counted choice by choice."""
    routing, order, counted = lab.routing(step), lab.order(step), np.zeros(RANKS, int)
    for home, t, choice in np.argwhere(routing.kept):
        place = order.index(routing.experts[home, t, choice]) // (lab.shape.experts // lab._ep)
        counted[home // lab._ep * lab._ep + place] += 1
    return counted


@pytest.mark.quick(4)
@pytest.mark.parametrize("factor", ["dropless", "1.25"])
@pytest.mark.parametrize("placement", ["order", "eplb"])
@pytest.mark.parametrize("ep", EPS)
def test_lead_table_matrix_and_picture_say_the_rows_that_the_choices_give(ep, placement, factor):
    lab = ExpertLab(ep=ep, placement=placement, factor=factor)
    for step in LOOKED_AT:
        lab.set_step(step)
        shot, rows = lab.snapshot(), rows_of(lab, step)
        assert f"{rows.max()} rows" in shot["status"] and shot["status"] == shot["leads"][str(step)]
        flow, way = (shot["sections"][name]["of"] for name in ("flow", "exchange"))
        there, back = (np.array([row[1:5] for row in way[f"{step}|{name}"]["rows"][:4]]) for name in ("there", "back"))
        assert np.array_equal(there.sum(axis=0), rows) and np.array_equal(there, back.T)
        drawn = np.zeros(RANKS, int)
        for rank, expert, kept, dropped in flow[str(step)]["columns_of"]:
            drawn[rank] += len(kept)
            assert len(kept) + len(dropped) == sum(
                expert in lab.routing(step).experts.reshape(-1, 2)[t] for t in {*kept, *dropped}
            )
        assert np.array_equal(drawn, rows)
        dropped = int((~lab.routing(step).kept).sum())
        assert (f"{dropped} of 64 choices" in shot["status"]) == (dropped > 0)


def test_a_dropless_layer_takes_as_long_as_its_busiest_rank_and_slots_all_alike():
    lab = ExpertLab()
    rows = rows_of(lab, STEPS)
    longer = rows.max() / rows.mean()
    assert f"the layer takes {longer:.3g} x as long as balanced; no choice is dropped." in lab.snapshot()["status"]
    lab.set_factor("1.25")  # ceil(8 x 2 / 8 x 1.25) = 3 slots, of 8 experts: 24 for 16 rows
    assert "all compute 24 slots, 1.5 x as long as balanced." in lab.snapshot()["status"]
    lab.set_convention("mesh_tf")  # int(8 x 1.25 / 8) = 1
    assert lab.shape.room == 1


@pytest.mark.parametrize("factor", ["dropless", "1.25"])
@pytest.mark.parametrize("ep", [2, 4])
def test_the_predicted_bytes_are_those_of_the_compiled_plan(ep, factor):
    """Balanced: 2 x 16 rows x 64 B x (1 - 1/EP), 1,536 B with EP 4; of slots 24 rows, empty ones too."""
    lab = ExpertLab(ep=ep, factor=factor)
    with default_settings():
        plan, _, _ = compiled(lab.shape, ep)
    sent = [sent_bytes(plan, i, 0) for _, i in plan.instructions() if i.kind.startswith("all_to_all")]
    dispatch, combine, *_ = lab.snapshot()["sections"]["messages"]["of"][str(STEPS)]["rows"]
    rows = 16 if factor == "dropless" else 24
    expected = rows * 64 * (ep - 1) // ep
    assert sent[:2] == [expected, expected]
    assert dispatch[5 if factor == "dropless" else 1] == combine[5 if factor == "dropless" else 1] == expected
    if factor == "dropless":
        off = rows_of(lab, STEPS).sum() - np.trace(lab.sent(STEPS))
        assert sum(dispatch[1:5]) == sum(combine[1:5]) == off * 64


@pytest.mark.quick(2)
@pytest.mark.parametrize("router", ROUTER_NAMES)
def test_the_token_shows_scores_and_weights_of_its_router(router):
    lab = ExpertLab(router=router, bias_rate="0.05")
    lab.set_token(9)
    rows = lab.snapshot()["sections"]["router"]["of"][str(STEPS)]["rows"]
    z, p, bias = (np.array([float(row[i]) for row in rows]) for i in (1, 2, 3))
    scores = {"softmax": np.exp(z) / np.exp(z).sum(), "sigmoid": 1 / (1 + np.exp(-z))}[ROUTERS[router].scores]
    assert np.allclose(p, z if router == "topk_softmax" else scores, atol=2e-3)
    chosen = [i for i, row in enumerate(rows) if row[4]]
    assert set(chosen) == set(np.argsort(-(p + bias))[:2])
    if router.endswith("norm") or router == "topk_softmax":
        assert math.isclose(sum(float(rows[i][5]) for i in chosen), 1, abs_tol=2e-3)


def test_a_loss_or_a_bias_brings_balance_and_eplb_packs_what_there_is():
    """What training without them leaves is at least a quarter less equal."""
    over = {
        factor: ExpertLab(balance_factor=factor).snapshot()["sections"]["over"]["lines"] for factor in BALANCE_FACTORS
    }
    assert over["1"]["ranks"][STEPS] * 1.25 < over["0"]["ranks"][STEPS]
    assert ExpertLab(router="sigmoid_norm", bias_rate="0.05").routing(STEPS).bias.any()
    placed = ExpertLab(placement="eplb")
    assert rows_of(placed, STEPS).max() < rows_of(ExpertLab(), STEPS).max()
    assert sorted(placed.order(STEPS)) == list(range(8))


def test_two_experts_that_are_picked_change_places():
    lab = ExpertLab()
    lab.pick(7)
    lab.pick(7)
    assert lab.order(0) == tuple(range(8)) and lab.snapshot()["held"] is None
    lab.pick(7)
    lab.pick(0)
    assert lab.order(0) == (7, 1, 2, 3, 4, 5, 6, 0) and lab.snapshot()["placement"]["value"] == "hand"
    again = ExpertLab.of_state(lab.state())
    assert again.order(0) == lab.order(0)
    lab.set_ep(1)
    with pytest.raises(ArgumentError, match="every rank has all experts"):
        lab.pick(1)
    lab.set_experts(4)
    assert lab.order(0) == (0, 1, 2, 3)


def test_what_does_not_fit_is_refused_with_its_reason():
    for arguments, words in (
        ({"experts": 4, "k": 8}, "each expert once at most"),
        ({"experts": 6, "ep": 4}, "equal shares"),
        ({"factor": "0", "convention": "tutel"}, "reserves slots before the router has chosen"),
        ({"factor": "1", "convention": "mindspore", "bias_rate": "0.01"}, "a token chooses by scores alone"),
        ({"factor": "0", "convention": "deepspeed", "k": 1}, None),  # 4 slots at least
    ):
        if words is None:
            assert ExpertLab(**arguments).shape.room == 4
            continue
        with pytest.raises(ArgumentError, match=words):
            ExpertLab(**arguments)


@pytest.mark.quick(1)
@pytest.mark.parametrize("factor", ["dropless", "1.25"])
@pytest.mark.parametrize("placement", ["order", "eplb"])
@pytest.mark.parametrize("ep", EPS)
def test_a_run_on_ranks_equals_one_device_wherever_the_experts_lie(ep, placement, factor):
    lab = ExpertLab(ep=ep, placement=placement, factor=factor)
    lab.set_step(0)  # EPLB packs by the rows of the step that is looked at
    lab.run_simulated()
    assert lab.wait(60) and lab.snapshot()["run"]["error"] is None
    assert (lab._run.progress.done, lab._run.progress.total) == (1, 2)  # drawn while one device trains
    assert lab.ran.apart <= lab.ran.bound and lab.ran.same == RANKS * TOKENS * 2
    verdicts = [row[3] for row in lab.snapshot()["sections"]["ran"]["rows"] if row[3]]
    assert verdicts == [["EQUAL to rounding", True], ["EQUAL", True], *[["as predicted", True]] * RANKS]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("convention", "words"),
    [("mindspore", "tried once more"), ("megatron", "smallest weights first"), ("switch", "all first choices")],
)
def test_which_choices_are_dropped_is_said_by_the_convention(convention, words):
    """On ranks as on one device. MindSpore's older router has tokens that choose one expert twice, and lose both."""
    lab = ExpertLab(ep=4, factor="1", convention=convention)
    now = lab.routing(0)
    for home, t, choice in np.argwhere(~now.kept):
        rivals = now.kept[home] & (now.experts[home] == now.experts[home, t, choice])
        assert rivals.sum() == lab.shape.room
        if convention == "megatron":
            assert now.weights[home][rivals].min() >= now.weights[home, t, choice]
    twice = now.experts[..., 0] == now.experts[..., 1]
    assert twice.any() == (convention == "mindspore") and not now.kept[twice].any()
    assert words in str(lab.snapshot()["sections"]["flow"]["notes"])
    lab.run_simulated()
    assert lab.wait(60) and lab.ran.apart <= lab.ran.bound and lab.ran.same == RANKS * TOKENS * 2


@pytest.mark.exhaustive
def test_worker_processes_lose_nothing_against_the_simulator():
    lab = ExpertLab()
    lab.run_measured()
    assert lab.wait(60) and re.search("measured: .* EQUAL to rounding, 64 of 64", lab.snapshot()["run"]["text"])
    measured = lab.ran
    lab.run_simulated()
    assert lab.wait(60) and measured.losses == lab.ran.losses and np.array_equal(measured.experts, lab.ran.experts)
    lab._ran[lab.key] = Ran("simulated", (1.0,) * STEPS, (2.0,) * STEPS, measured.experts, 63, (1, 2, 3, 4))
    assert "DIFFERENT" in lab.to_text() and "63 as on one device" in lab.to_text()
    lab.set_skew(2)
    assert lab.ran is None and "ran" not in lab.snapshot()["sections"]
    lab.close()


def test_it_asks_for_the_busiest_rank_the_bytes_and_the_slots():
    lab = ExpertLab(factor="1.25")
    busiest, leaving, slots = lab.questions()
    assert busiest.right == (rows_of(lab, STEPS).max(),) and busiest.is_right(1.2 * busiest.right[0])
    assert leaving.right == (2 * 8 * 2 * 64 * 3 // 4,) and not leaving.is_right(2048)  # 1,536; 2,048 with its own rows
    assert slots.right == (3,) and len(list(ExpertLab().questions())) == 2
