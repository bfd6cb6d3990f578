"""What the Strategy Lab shows of a plan is what the plan says: blocks, messages, memory, graph, lanes."""

from __future__ import annotations

import itertools
import json
import math
from functools import cache

import numpy as np
import pytest

from parallel_lab.base.events import Event
from parallel_lab.cost.memory import predict_memory
from parallel_lab.lab.pictures.graph_strip import graph_strip
from parallel_lab.lab.pictures.lanes import timeline_lanes
from parallel_lab.lab.pictures.layers import flow_graph, operator_of, plan_layers
from parallel_lab.lab.pictures.picture import (
    drawn_dims,
    message_table,
    rank_detail,
    tensor_entries,
    tensor_picture,
    totals,
)
from parallel_lab.lab.shared.networks import NETWORKS, operator_layers
from parallel_lab.lab.shared.problems import get_problem
from parallel_lab.lab.strategy.model import DEVICES, StrategyLab
from tests.crossed import each_of

NETS, DATA = ("quickstart", "megatron", "dense"), ("seed", "digits")
LAYERED = [("convnet", "pictures"), ("transformer", "text"), ("embedding", "clicks")]
SHORT = [pytest.param(*c, id="-".join(map(str, c))) for c in itertools.product(NETS, DEVICES, DATA)]
LONG = [pytest.param(net, devices, data, id=f"{net}-{devices}") for net, data in LAYERED for devices in (1, 8)]
CASES = SHORT + LONG


def entry_of(plan, value: str):
    return next(e for e in tensor_entries(plan) if e.value == value)


@cache
def plan_of(net: str = "quickstart", devices: int = 8, data: str | None = None):
    """A plan, which is frozen: one for all tests that look at it."""
    return StrategyLab(net, devices, data).plan


# ---- cards ----


@pytest.mark.quick(3)
@pytest.mark.parametrize(("net", "devices", "data"), CASES)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_the_blocks_of_one_copy_tile_the_tensor(net, devices, data, phase):
    """Each element is covered by devices / (number of slices) cards: nothing is left out, nothing overlaps by half."""
    plan = plan_of(net, devices, data)
    for entry in tensor_entries(plan):
        picture, cards = tensor_picture(plan, entry, phase)
        covered = np.zeros(picture["shape"], int)
        for card in cards:
            covered[tuple(slice(a, b) for a, b in card["block"])] += 1
        assert (covered == devices // picture["slices"]).all(), entry.value
        blocks = {card["slice"]: tuple(map(tuple, card["block"])) for card in cards}
        assert len(set(blocks.values())) == len(blocks) == picture["slices"], entry.value
        assert all(blocks[card["slice"]] == tuple(map(tuple, card["block"])) for card in cards), entry.value


@pytest.mark.quick(3)
@pytest.mark.parametrize(("net", "devices", "data"), CASES)
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_ranks_with_one_slice_are_replicas_or_hold_different_addends(net, devices, data, phase):
    plan = plan_of(net, devices, data)
    for entry in tensor_entries(plan):
        picture, cards = tensor_picture(plan, entry, phase)
        addends = picture["partial"]["count"] if picture["partial"] else 1
        for number in range(picture["slices"]):
            same = [c for c in cards if c["slice"] == number]
            if picture["partial"] is None:
                copies = [c["rank"] for c in same]
                assert all(c["addend"] is None and c["replicas"] == copies for c in same), entry.value
            else:
                each_once = list(range(1, addends + 1))
                assert sorted(c["addend"] for c in same) == sorted(each_once * (len(same) // addends)), entry.value
                assert all(c["addends"] == addends for c in same)


def test_coordinates_are_the_ranks_place_in_the_device_matrix():
    plan = plan_of()
    for entry in tensor_entries(plan):
        picture, cards = tensor_picture(plan, entry, "forward")
        assert [tuple(c["coordinates"]) for c in cards] == list(np.ndindex(*picture["device_matrix"]))
        assert len(picture["axis_names"]) == len(picture["device_matrix"])


def test_the_quickstarts_first_product_is_two_slices_of_four_addends():
    """x is split 2 x 4, w 4 x 1: k, which is summed over, is split 4 ways, m 2 ways."""
    plan = plan_of()
    picture, cards = tensor_picture(plan, entry_of(plan, "matmul.partial"), "forward")
    assert picture["partial"] == {"axes": ["k"], "count": 4, "reduce": "sum"} and picture["slices"] == 2
    expected = [([[8 * (r // 4), 8 * (r // 4) + 8], [0, 16]], r % 4 + 1) for r in range(8)]
    assert [(c["block"], c["addend"]) for c in cards] == expected


def test_the_gradient_of_w_is_pending_over_the_ranks_that_share_its_slice():
    plan = plan_of()
    picture, cards = tensor_picture(plan, entry_of(plan, "w"), "backward")
    assert picture["label"] == "gradient of w" and picture["partial"]["count"] == 2 and picture["slices"] == 4
    assert [c["block"][0] for c in cards] == [[8 * (r % 4), 8 * (r % 4) + 8] for r in range(8)]
    assert [c["addend"] for c in cards] == [r // 4 + 1 for r in range(8)]


def test_data_has_no_gradient_and_the_picture_says_so():
    plan = plan_of()
    picture, _ = tensor_picture(plan, entry_of(plan, "x"), "backward")
    assert picture["label"] == "x" and "no gradient" in picture["note"]


# ---- messages ----


@pytest.mark.quick(15)
@pytest.mark.parametrize(("net", "devices", "data"), CASES)
def test_the_message_table_is_the_plans_for_every_rank(net, devices, data):
    plan = plan_of(net, devices, data)
    for rank in range(devices):
        told = [(c["phase"], c["kind"], c["op"], c["group"], c["bytes"]) for c in plan.to_dict(rank)["comm"]]
        shown = message_table(plan, rank)
        assert [(m["phase"], m["kind"], m["collective"], m["group"], m["bytes_predicted"]) for m in shown] == told
        assert [m["number"] for m in shown] == list(range(1, len(told) + 1))
        assert all(m["reason"] and m["time_predicted_s"] > 0 for m in shown)


@pytest.mark.parametrize("net", NETS)
def test_a_messages_tensor_can_be_selected(net):
    plan = plan_of(net)
    known = {e.value for e in tensor_entries(plan)}
    assert {m["tensor"] for m in message_table(plan, 0)} - {None} <= known


def test_places_are_lines_of_the_network_and_the_loss_and_never_of_the_lab():
    places = [m["origin"] for m in message_table(plan_of(), 5)]
    assert {p.partition(":")[0] for p in places} == {"networks.py", "losses.py"}


def test_the_quickstarts_bytes_are_those_of_the_slices():
    """Float32. Forward: two addends (8, 16), the loss; backward: the same two, slices (4, 16) of w2, (8, 16) of w."""
    sizes = [m["bytes_predicted"] for m in message_table(plan_of(), 5) if m["group"]]
    assert sizes == [4 * n for n in (8 * 16, 8 * 16, 1, 8 * 16, 8 * 16, 4 * 16, 8 * 16)]


def test_totals_add_up_and_are_missing_where_nothing_was_counted():
    table = message_table(plan_of(), 3)
    found = totals(table)
    assert found["bytes_predicted"] == sum(m["bytes_predicted"] for m in table) and found["bytes_counted"] is None
    assert found["time_predicted_s"] == pytest.approx(math.fsum(m["time_predicted_s"] for m in table))


# ---- a rank ----


@pytest.mark.quick(3)
@pytest.mark.parametrize(("net", "devices", "data"), CASES)
def test_a_rank_holds_the_slices_of_its_cards(net, devices, data):
    plan = plan_of(net, devices, data)
    labels = {e.label: e for e in tensor_entries(plan)}
    for rank in {0, devices - 1}:
        detail = rank_detail(plan, rank)
        for held in detail["holds"]:
            card = tensor_picture(plan, labels[held["tensor"]], "forward")[1][rank]
            shape = [b - a for a, b in card["block"]]
            value = plan.value(labels[held["tensor"]].value)
            assert held["shape"] == shape and held["text"] == card["text"]
            assert held["bytes"] == math.prod(shape) * np.dtype(value.dtype).itemsize
        report = predict_memory(plan)
        assert {m["kind"]: m["bytes"] for m in detail["memory"]} == report.parts
        assert detail["memory_total"] == sum(report.parts.values())
        messages = [m for m in message_table(plan, rank) if m["group"]]
        assert {tuple(g["ranks"]) for g in detail["groups"]} == {tuple(m["group"]) for m in messages}
        assert all(rank in g["ranks"] and g["use"] for g in detail["groups"])


# ---- graph ----


@pytest.mark.quick(8)
@pytest.mark.parametrize(("net", "devices", "data"), SHORT)
def test_the_graph_has_every_message_on_an_edge_or_in_the_loss(net, devices, data):
    plan = plan_of(net, devices, data)
    messages = message_table(plan, 0)
    strip = graph_strip(plan, messages)
    ids = [n["id"] for n in strip["nodes"]]
    assert len(ids) == len(set(ids)) and all(e["from"] in ids and e["to"] in ids for e in strip["edges"])
    operators = {n.name for n in plan.graph.nodes if not n.name.startswith("loss_fn.")}
    assert operators | {p.name for p in plan.parameters} | {"x", "label", "loss"} == set(ids)
    on_edges = {n for e in strip["edges"] for n in e["messages"]}
    found = {m["number"] for m in messages} - on_edges
    assert found == {m["number"] for m in messages if m["operator"] == "loss_fn.reduce_mean"}


@pytest.mark.parametrize("net", NETS)
def test_no_two_nodes_share_a_place_and_neighbouring_parameters_a_row(net):
    plan = plan_of(net)
    nodes = graph_strip(plan, message_table(plan, 0))["nodes"]
    places = [(n["column"], n["row"]) for n in nodes]
    assert len(set(places)) == len(places)
    below = [n for n in nodes if n["row"] > 0]
    near = [(a, b) for a, b in itertools.combinations(below, 2) if abs(a["column"] - b["column"]) <= 1]
    assert not [(a["id"], b["id"]) for a, b in near if a["row"] == b["row"]]


def test_data_flows_to_the_right():
    plan = plan_of("dense")
    strip = graph_strip(plan, message_table(plan, 0))
    column = {n["id"]: n["column"] for n in strip["nodes"]}
    assert all(column[e["from"]] < column[e["to"]] for e in strip["edges"])


@each_of(
    ("splits", "halo", "drawn"),
    ((8,), (), (None, 0, None, 1)),
    ((2, 4), (), (0, 1, None, 1)),
    ((1, 1, 4), (), (0, 2, None, 1)),
    ((2, 1, 4, 1), (), (2, 0, None, 1)),
    ((2, 4, 1, 1), (), (0, 1, None, 1)),
    ((2, 1, 2, 2), (2, 3), (2, 3, 0, 2)),
    ((2, 2, 2), (), (0, 1, 2, 2)),
)
def test_the_dims_that_are_cut_are_drawn_and_a_third_in_panels(splits, halo, drawn):
    assert tuple(drawn_dims(splits, halo)[k] for k in ("down", "across", "panels", "parts")) == drawn


@pytest.mark.parametrize(("net", "devices", "data"), LONG)
def test_every_cut_dim_is_drawn(net, devices, data):
    plan = plan_of(net, devices, data)
    for entry in tensor_entries(plan):
        shown = tensor_picture(plan, entry, "forward")[0]["drawn"]
        cut = {d for d, n in enumerate(plan.value(entry.base).layout.splits) if n > 1}
        assert cut <= {shown["down"], shown["across"], shown["panels"]}, entry.value


# ---- halos ----


def halo_entry(plan, reader):
    return next(e for e in tensor_entries(plan) if e.base != e.value and e.owner == reader)


def test_a_rank_reads_a_row_of_each_neighbour_in_the_neighbour_s_colour():
    """32 rows on 4 ranks, kernel 3, padding 1: rank 5 has rows 8 to 16 of the second half and reads 7 to 17."""
    plan = plan_of("convnet")
    picture, cards = tensor_picture(plan, halo_entry(plan, "conv1.conv2d"), "forward")
    assert picture["shape"] == [32, 3, 32, 32] and picture["slices"] == 8
    assert picture["halo"] == [{"dim": 2, "before": 1, "after": 1}]
    for card in cards:
        part, first = divmod(card["rank"], 4)[1], 16 * (card["rank"] // 4)
        low, high = 8 * part, 8 * part + 8
        assert card["block"] == [[first, first + 16], [0, 3], [low, high], [0, 32]]
        assert card["window"][2] == [max(0, low - 1), min(32, high + 1)]
        rows = {card["rank"] - 1: [low - 1, low], card["rank"] + 1: [high, high + 1]}
        near = {r: rows[r] for r in rows if r // 4 == card["rank"] // 4 and 0 <= r < 8}
        assert {strip["rank"]: strip["block"][2] for strip in card["strips"]} == near
        assert all(strip["slice"] == cards[strip["rank"]]["slice"] for strip in card["strips"])


def test_where_height_and_width_are_cut_the_corner_is_read_too():
    lab = StrategyLab("convnet", 4)
    lab.set_strategy("conv1.conv2d", "((1, 1, 2, 2), (1, 1, 1, 1))")
    picture, cards = tensor_picture(lab.plan, halo_entry(lab.plan, "conv1.conv2d"), "forward")
    assert [h["dim"] for h in picture["halo"]] == [2, 3]
    assert [strip["rank"] for strip in cards[0]["strips"]] == [1, 2, 3]
    corner = next(strip for strip in cards[0]["strips"] if strip["rank"] == 3)
    assert corner["block"] == [[0, 32], [0, 3], [16, 17], [16, 17]]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_window_is_the_own_slice_and_its_strips_and_nothing_twice(phase):
    plan = plan_of("convnet")
    picture, cards = tensor_picture(plan, halo_entry(plan, "conv2.conv2d"), phase)
    for card in cards:
        read = np.zeros(picture["shape"], int)
        for block in [card["block"], *(strip["block"] for strip in card["strips"])]:
            read[tuple(slice(a, b) for a, b in block)] += 1
        want = np.zeros(picture["shape"], int)
        want[tuple(slice(a, b) for a, b in card["window"])] = 1
        np.testing.assert_array_equal(read, want)


def test_a_halo_s_messages_show_what_the_operator_reads():
    plan = plan_of("convnet")
    entries = {e.value: e for e in tensor_entries(plan)}
    shown = [(m["kind"], entries[m["tensor"]].owner) for m in message_table(plan, 5) if m["kind"].startswith("halo")]
    expected = [("halo_exchange", "conv1.conv2d"), ("halo_exchange", "conv2.conv2d"), ("halo_reduce", "conv2.conv2d")]
    assert shown == expected


# ---- layers ----


def layers_of(lab):
    return plan_layers(lab.plan, operator_layers(NETWORKS[lab._net].factory(get_problem(lab._data))))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("net", "data"), LAYERED)
def test_every_node_of_the_plan_is_in_a_layer_and_every_message_at_one(net, data):
    lab = StrategyLab(net, 8, data)
    messages, layers = message_table(lab.plan, 0), layers_of(lab)
    assert set(layers) == {n.name for n in lab.plan.graph.nodes if not n.name.startswith("loss_fn.")}
    graph = flow_graph(lab.plan, messages, layers)
    nodes = {n["id"]: n for n in graph["nodes"]}
    assert set(layers.values()) | {"loss", "label"} <= set(nodes)
    assert sorted(number for n in nodes.values() for number in n["messages"]) == [m["number"] for m in messages]
    known = {e.value for e in tensor_entries(lab.plan)}
    assert all(n["tensor"] in known for n in nodes.values() if n["kind"] == "operator")
    for n in nodes.values():
        if n["kind"] == "operator":
            assert tuple(n["cuts"]) == lab.plan.value(n["tensor"]).layout.splits


@pytest.mark.quick(1)
@pytest.mark.parametrize(("net", "data"), LAYERED)
def test_layers_run_to_the_right_and_no_two_share_a_place(net, data):
    lab = StrategyLab(net, 8, data)
    graph = flow_graph(lab.plan, message_table(lab.plan, 0), layers_of(lab))
    at = {n["id"]: (n["column"], n["row"]) for n in graph["nodes"]}
    assert len(set(at.values())) == len(at) and min(c for c, _ in at.values()) == 0
    assert all(at[e["from"]][0] < at[e["to"]][0] for e in graph["edges"])


def test_the_transformers_graph_has_its_branches_and_its_shortcuts():
    lab = StrategyLab("transformer")
    graph = flow_graph(lab.plan, message_table(lab.plan, 0), layers_of(lab))
    edges = {(e["from"].rpartition(".")[2], e["to"].rpartition(".")[2]) for e in graph["edges"]}
    for branch in ("query", "key", "value"):
        assert {("norm1", branch), (branch, "attention")} <= edges
    assert {("add", "add1"), ("out", "add1"), ("add1", "add2"), ("fc2", "add2")} <= edges
    column = {n["label"]: n["column"] for n in graph["nodes"]}
    assert column["query"] == column["key"] == column["value"]


@each_of(
    ("name", "operators", "found"),
    ("fc.matmul", {"fc.matmul"}, "fc.matmul"),
    ("norm.layer_norm.0", {"norm.layer_norm"}, "norm.layer_norm"),
    ("rows_2", {"rows"}, "rows"),
)
def test_a_node_s_operator_is_found_by_its_name(name, operators, found):
    assert operator_of(name, dict.fromkeys(operators)) == found
    assert operator_of(f"other.{name}", dict.fromkeys(operators)) == ""


# ---- timeline ----


def event(rank, step, kind, start_s, end_s, *, group=(0, 1), name="n"):
    group = group if kind == "communication" else ()
    times = {"start_s": start_s, "end_s": end_s}
    return Event(rank=rank, step=step, phase="forward", kind=kind, name=name, op="x", group=group, **times)


def test_bars_too_thin_to_see_are_joined_and_no_time_is_lost():
    """1000 computations of 1 us with a message of 1 ms among them: three bars, as long as their parts together."""
    message = event(0, 0, "communication", 500e-6, 1500e-6, group=(0,), name="n500")
    events = [event(0, 0, "compute", i / 1e6, (i + 1) / 1e6, name=f"n{i}") for i in range(500)]
    events += [message, *(event(0, 0, "compute", (i + 999) / 1e6, (i + 1000) / 1e6) for i in range(501, 1001))]
    bars = timeline_lanes(plan_of(devices=1), events)["lanes"][0]["bars"]
    assert [b["kind"] for b in bars] == ["compute", "communication", "compute"]
    assert [b["end"] - b["start"] for b in bars] == pytest.approx([500, 1000, 500])
    assert bars[0]["label"] == "x (n0) and 499 more"


def test_without_a_run_the_lanes_are_predicted():
    lanes = timeline_lanes(plan_of())
    assert lanes["source"] == "predicted" and [lane["rank"] for lane in lanes["lanes"]] == list(range(8))
    for lane in lanes["lanes"]:
        assert all(a["end"] <= b["start"] + 1e-9 for a, b in itertools.pairwise(lane["bars"]))
    assert lanes["end"] == max(bar["end"] for lane in lanes["lanes"] for bar in lane["bars"])


def test_a_measured_message_is_split_into_the_wait_for_the_last_rank_and_the_rest():
    """Rank 1 comes 3 s after rank 0; both end at 5 s. The step before is not shown."""
    events = [event(0, 6, "compute", -9, -8), event(0, 7, "compute", 0, 1), event(0, 7, "communication", 1, 5)]
    events += [event(1, 7, "compute", 0, 4), event(1, 7, "communication", 4, 5)]
    lanes = timeline_lanes(plan_of(devices=2), events)
    assert lanes["source"] == "measured" and lanes["end"] == 5e6
    assert [[(b["kind"], b["start"] / 1e6, b["end"] / 1e6) for b in lane["bars"]] for lane in lanes["lanes"]] == [
        [("compute", 0, 1), ("wait", 1, 4), ("communication", 4, 5)],
        [("compute", 0, 4), ("communication", 4, 5)],
    ]


def test_a_message_that_ended_before_the_last_rank_came_is_all_wait():
    """A broadcast's root need not wait for the others to arrive; a bar must not end before it begins."""
    events = [event(0, 0, "communication", 0, 1), event(1, 0, "communication", 2, 3)]
    bars = timeline_lanes(plan_of(devices=2), events)["lanes"][0]["bars"]
    assert all(b["start"] <= b["end"] for b in bars) and bars[-1]["end"] == 1e6


@pytest.mark.parametrize("net", NETS)
def test_every_part_is_plain_data(net):
    plan = plan_of(net)
    table = message_table(plan, 1)
    for part in (table, totals(table), graph_strip(plan, table), rank_detail(plan, 1), timeline_lanes(plan)):
        assert json.loads(json.dumps(part, allow_nan=False)) == part
