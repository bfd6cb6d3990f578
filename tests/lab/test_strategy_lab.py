"""The headless Strategy Lab: what can be chosen, what is refused, and what its snapshots and texts show."""

from __future__ import annotations

import json

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.base.units import bytes_text
from parallel_lab.lab.shared.networks import NETWORKS
from parallel_lab.lab.shared.problems import problems_of
from parallel_lab.lab.strategy.model import DEVICES, StrategyLab
from tests.crossed import each_of

PAIRS = [(net, data) for net, network in NETWORKS.items() for data in problems_of(network.kind)]


def operator(lab, name: str) -> dict:
    return next(o for o in lab.snapshot()["operators"] if o["name"] == name)


# ---- choosing ----


@pytest.mark.quick(1)
@pytest.mark.parametrize(("net", "data"), PAIRS)
@pytest.mark.parametrize("devices", DEVICES)
def test_presets_are_the_networks_own_as_far_as_they_fit(net, devices, data):
    lab = StrategyLab(net, devices, data)
    given = NETWORKS[net].preset(devices)
    found = {o["name"]: (o["strategy"], o["source"]) for o in lab.snapshot()["operators"]}
    assert set(given) <= set(found)
    for name, (strategy, source) in found.items():
        assert source in ("preset", "default")
        if source == "preset":
            assert strategy == str(given[name])
    if data != "digits":
        assert all(source == "preset" for name, (_, source) in found.items() if name in given)


def test_the_quickstart_on_eight_begins_with_the_printed_strategies():
    chosen = [o["strategy"] for o in StrategyLab().snapshot()["operators"]]
    assert chosen == ["((2, 4), (4, 1))", "((2, 4),)", "((2, 4), (4, 1))"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("net", "data"), PAIRS)
def test_every_offered_strategy_is_taken(net, data):
    """In a long network, two strategies of each operator."""
    lab = StrategyLab(net, 4, data)
    shot = lab.snapshot()
    for o in shot["operators"]:
        for choice in o["choices"][:: len(o["choices"]) // 2 + 1 if shot["graph"].get("layers") else 1]:
            lab.set_strategy(o["name"], choice)
            shown = operator(lab, o["name"])
            assert (shown["strategy"], shown["error"]) == (choice, None)


def test_a_network_of_another_kind_brings_its_data_and_one_of_the_same_kind_keeps_it():
    lab = StrategyLab(data="digits")
    lab.set_net("convnet")
    shot = lab.snapshot()
    assert shot["data"]["value"] == "pictures"
    assert shot["data"]["choices"] == [{"value": "pictures", "label": "colour digits"}]
    lab.set_net("megatron")
    assert lab.snapshot()["data"]["value"] == "seed"
    lab.set_data("digits")
    lab.set_net("dense")
    assert lab.snapshot()["data"]["value"] == "digits"


def test_data_of_another_kind_is_refused_with_those_the_network_takes():
    with pytest.raises(ArgumentError, match=r"data for the network 'dense': 'pictures'.*One of seed, digits"):
        StrategyLab("dense").set_data("pictures")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("net", "preset"), [(net, preset) for net, network in NETWORKS.items() for preset in network.presets]
)
def test_a_preset_sets_its_strategies_and_stays_when_devices_change(net, preset):
    lab = StrategyLab(net)
    lab.set_preset(preset)
    for devices in (8, 4):
        lab.set_devices(devices)
        given = NETWORKS[net].presets[preset](devices)
        found = {o["name"]: o["strategy"] for o in lab.snapshot()["operators"]}
        assert {name: found[name] for name in given} == {name: str(strategy) for name, strategy in given.items()}
        shown = lab.snapshot()["preset"]
        assert (shown["value"], [c["value"] for c in shown["choices"]]) == (preset, list(NETWORKS[net].presets))


def test_a_changed_preset_says_so_until_it_is_chosen_again():
    lab = StrategyLab("megatron")
    lab.set_strategy("gelu", "((8, 1),)")
    assert lab.snapshot()["preset"]["value"] == "" and "preset: changed by you" in lab.to_text()
    lab.set_preset("tensor parallel")
    assert lab.snapshot()["preset"]["value"] == "tensor parallel" and operator(lab, "gelu")["strategy"] == "((2, 4),)"


def test_an_operator_made_of_others_takes_one_strategy_for_all_of_them():
    lab = StrategyLab("convnet")
    shown = operator(lab, "bn1.batch_norm")
    strategy = "((2, 1, 4, 1), (1,), (1,), (1,), (1,))"
    assert (shown["op"], shown["strategy"], shown["source"]) == ("BatchNorm", strategy, "preset")
    assert shown["formula"] == "x (32, 8, 32, 32), scale, bias, mean, variance (8,) -> (32, 8, 32, 32)"
    lab.set_strategy("bn1.batch_norm", "((1, 8, 1, 1), (8,), (8,), (8,), (8,))")
    assert operator(lab, "bn1.batch_norm")["source"] == "user"
    assert lab.plan.value("bn1.batch_norm.batch_norm_sums").layout.splits == (1, 8)
    lab.set_strategy("bn1.batch_norm", None)
    shown = operator(lab, "bn1.batch_norm")
    assert (shown["strategy"], shown["source"]) == ("((8, 1, 1, 1), (1,), (1,), (1,), (1,))", "default")
    assert lab.plan.graph.node("bn1.batch_norm.batch_norm_apply").strategy[0] == (8, 1, 1, 1)
    lab.set_strategy("bn1.batch_norm", "((2, 3),)")
    assert "bn1.batch_norm" in operator(lab, "bn1.batch_norm")["error"]


@pytest.mark.quick(2)
@each_of(
    ("net", "preset", "tensor"),
    ("convnet", "batch and height", "x for conv1.conv2d, with halo"),
    ("convnet", "batch and channels", "out of conv2.conv2d, partial sums"),
    ("transformer", "tensor parallel", "out of blocks.0.attention.out.matmul, partial sums"),
    ("embedding", "tables by columns", "deep_table"),
)
def test_a_preset_begins_with_what_it_is_there_to_show(net, preset, tensor):
    lab = StrategyLab(net)
    lab.set_preset(preset)
    assert lab.snapshot()["picture"]["label"] == tensor


def test_the_halo_stays_in_view_when_the_convolution_is_cut_otherwise():
    lab = StrategyLab("convnet")
    lab.set_strategy("conv1.conv2d", "((2, 1, 2, 2), (1, 1, 1, 1))")
    assert lab.snapshot()["picture"]["label"] == "x for conv1.conv2d, with halo"
    assert len(lab.snapshot()["picture"]["halo"]) == 2
    assert "for dim 2 a rank reads 1 before and 1 after its own; for dim 3" in lab.snapshot()["status"]


def test_fewer_devices_keep_the_selected_rank_in_range_and_the_tensor_where_it_still_exists():
    lab = StrategyLab()
    lab.select_rank(7)
    lab.select_tensor("w2")
    lab.set_devices(2)
    assert lab.snapshot()["rank"] == 1 and lab.snapshot()["tensor"] == "w2"


def test_a_strategy_is_given_as_text_or_tuple_and_taken_back():
    lab = StrategyLab()
    lab.set_strategy("relu", "((8, 1),)")
    assert (operator(lab, "relu")["strategy"], operator(lab, "relu")["source"]) == ("((8, 1),)", "user")
    lab.set_strategy("relu", ((4, 2),))
    assert operator(lab, "relu")["strategy"] == "((4, 2),)"
    lab.set_strategy("relu", None)
    assert operator(lab, "relu")["source"] == "default"
    lab.set_strategy("relu", ((2, 4),))
    assert operator(lab, "relu")["source"] == "preset"


def test_the_picture_follows_a_strategy_that_ends_the_pending_sum():
    """The addends exist while k is split; with k whole the same tensor's complete form is shown."""
    lab = StrategyLab()
    assert lab.snapshot()["tensor"] == "matmul.partial"
    lab.set_strategy("matmul", "((8, 1), (1, 1))")
    assert lab.snapshot()["tensor"] == "matmul" and lab.snapshot()["picture"]["slices"] == 8


@pytest.mark.quick(5)
@each_of(
    ("text", "words"),
    ("((2, 4), (2, 1))", "equally"),
    ("((3, 1), (1, 1))", "3"),
    ("((2, 4),)", "input"),
    ("((2, 4), (4, 1)", "cannot be read"),
    ("__import__('os').system('true')", "cannot be read"),
    ("((16, 1), (1, 1))", "8"),
    ("", "cannot be read"),
    ("(" * 150, "cannot be read"),
    ("1" * 201, "201 characters"),
    ("5", ""),
    ("{'a': 1}", ""),
    ("((0, 1), (1, 1))", "0"),
    ("((-2, 1), (1, 1))", "-2"),
    ("((2.0, 4), (4, 1))", "2.0"),
    ("((True, 4), (4, 1))", "True"),
    ("(('2', 4), (4, 1))", "'2'"),
)
def test_a_refused_strategy_is_kept_with_its_reason_and_the_picture_stays(text, words):
    lab = StrategyLab()
    before = lab.snapshot()
    lab.set_strategy("matmul", text)
    after = lab.snapshot()
    shown = operator(lab, "matmul")
    assert shown["typed"] == text and words in shown["error"] and shown["strategy"] == "((2, 4), (4, 1))"
    assert {k: v for k, v in after.items() if k != "operators"} == {k: v for k, v in before.items() if k != "operators"}
    lab.set_strategy("matmul", "((8, 1), (1, 1))")
    assert (operator(lab, "matmul")["typed"], operator(lab, "matmul")["error"]) == (None, None)


def test_the_refusal_names_the_line_of_the_network_and_a_way_out():
    lab = StrategyLab()
    lab.set_strategy("matmul", "((2, 4), (2, 1))")
    assert "networks.py:" in operator(lab, "matmul")["error"] and "((2, 4), (4, 1))" in operator(lab, "matmul")["error"]


@pytest.mark.parametrize("arguments", [("nonet",), ("dense", 7), ("dense", 8, "nodata"), ("convnet", 8, "seed")])
def test_a_lab_that_cannot_be_is_refused_when_it_is_made(arguments):
    with pytest.raises(ArgumentError, match="One of"):
        StrategyLab(*arguments)


# ---- looking ----


@pytest.mark.exhaustive
@pytest.mark.parametrize(("net", "data"), PAIRS)
@pytest.mark.parametrize("devices", DEVICES)
def test_a_snapshot_is_plain_data_and_consistent_with_itself(net, devices, data):
    lab = StrategyLab(net, devices, data)
    for tensor in [t["id"] for t in lab.snapshot()["tensors"]]:
        lab.select_tensor(tensor)
        shot = lab.snapshot()
        assert json.loads(json.dumps(shot, allow_nan=False)) == shot
        assert [c["rank"] for c in shot["cards"]] == list(range(devices))
        assert shot["picture"]["slices"] == len({c["slice"] for c in shot["cards"]})
        sent = [m for m in shot["messages"] if m["group"]]
        if sent:
            assert shot["message_totals"]["bytes_predicted"] == sum(m["bytes_predicted"] for m in sent)
            assert f"{len(sent)} message" in shot["status"]
            assert f"with {bytes_text(shot['message_totals']['bytes_predicted'])} from rank" in shot["status"]
        else:
            assert "no messages" in shot["status"]
    assert {o["tensor"] for o in shot["operators"]} <= {t["id"] for t in shot["tensors"]}


@pytest.mark.quick(3)
@pytest.mark.parametrize("net", NETWORKS)
def test_the_text_names_every_rank_and_every_message(net):
    lab = StrategyLab(net)
    shot, text = lab.snapshot(), lab.to_text()
    lines = text.splitlines()
    for card in shot["cards"]:
        assert any(line.split()[:1] == [str(card["rank"])] and card["text"] in line for line in lines), card
    for m in shot["messages"]:
        assert any(
            line.split()[:4] == [f"#{m['number']}", m["phase"], m["operator"], m["collective"]] for line in lines
        ), m
        assert m["reason"] in text
    assert shot["status"] in text


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["convnet", "transformer", "embedding"])
def test_tensors_and_operators_of_a_long_network_are_in_its_layers(net):
    shot = StrategyLab(net).snapshot()
    layers = {n["id"] for n in shot["graph"]["nodes"] if n["kind"] == "operator"}
    assert {o["layer"] for o in shot["operators"]} == layers
    assert {t["layer"] for t in shot["tensors"]} - {""} == layers
    inputs = {n["id"] for n in shot["graph"]["nodes"] if n["kind"] == "input"}
    assert {t["id"].partition(".for.")[0] for t in shot["tensors"] if not t["layer"]} <= inputs


def test_the_text_names_the_strips_of_a_halo_and_the_cuts_of_every_layer():
    lines = [line.strip() for line in StrategyLab("convnet").to_text().splitlines()]
    assert "Along dim 2 a rank reads up to 1 before and 1 after its own slice." in lines
    assert any(
        "[16:32, :, 7:17, :]" in line and "[16:32, :, 7:8, :] from rank 4; [16:32, :, 16:17, :] from rank 6" in line
        for line in lines
    )
    assert any(line.split()[:1] == ["conv2"] and "pool1" in line and "(2, 1, 4, 1)" in line for line in lines)


def test_a_page_has_what_selecting_would_show():
    lab = StrategyLab("megatron", 4)
    looks = lab.page_snapshot()["looks"]
    for tensor, phase, rank in (("w1", "backward", 3), ("x", "forward", 0), ("mm2.partial", "forward", 2)):
        lab.select_tensor(tensor)
        lab.select_phase(phase)
        lab.select_rank(rank)
        shot = lab.snapshot()
        parts = {**looks["tensor|phase"][f"{tensor}|{phase}"], **looks["rank"][str(rank)]}
        assert parts == {name: shot[name] for name in parts} and {"picture", "cards", "rank_detail"} <= parts.keys()
        assert f"{parts['status_rank']} {parts['status_tensor']}" == shot["status"]


def test_a_snapshot_is_the_callers_own():
    lab = StrategyLab()
    before = json.dumps(lab.snapshot())
    lab.snapshot()["cards"][0]["block"][0][0] = 99
    lab.snapshot()["operators"][0]["choices"].clear()
    assert json.dumps(lab.snapshot()) == before


def test_the_type_of_a_tensor_is_shown_and_that_of_its_gradient():
    """Rows split over m, the contracted dim over k: slices of dim 0, and along k addends, whose gradient is copied."""
    lab = StrategyLab()
    assert lab.snapshot()["picture"]["types"] == [["m", "S0", "S0"], ["k", "P", "R"]]
    assert "Type along m, k: S0 P, gradient S0 R." in lab.to_text()
    assert operator(lab, "relu")["types"] == [["S0", "S0"], ["S1", "S1"]]
    lab.select_tensor("w")  # half of the ranks hold copies of a slice of rows, whose gradient is summed in the end
    assert [pair for _, *pair in lab.snapshot()["picture"]["types"]] == [["R", "R"], ["S0", "S0"]]
    assert StrategyLab(devices=1).snapshot()["picture"]["types"] == []


def test_an_operator_that_is_not_checked_says_so():
    lab = StrategyLab()
    assert not operator(lab, "matmul")["unchecked"]
    lab._pictures.types(lab.plan).unchecked = ("matmul",)  # as of an operator with "cross_batch"
    assert operator(lab, "matmul")["unchecked"] and not operator(lab, "matmul2")["unchecked"]
    assert lab.to_text().count("S0 P, gradient S0 R; not checked") == 1
