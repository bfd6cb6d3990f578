"""All labs' widgets without a browser: commands reach the model, refusals are shown and harmless, nothing remains."""

from __future__ import annotations

import json
import re
import threading

import pytest
from IPython.core.formatters import DisplayFormatter

from parallel_lab.lab import widgets
from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.costs.model import CostLab
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.recompute.model import RecomputeLab
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.shared.lab_view import widget_of
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.strategy.model import StrategyLab
from tests import conftest as everywhere

from .fake_lab import FakeLab


def shares(shot) -> set[int]:
    """How many ranks share each parameter of the Memory Lab."""
    return {row[4][0] for row in shot["sections"]["parameters"]["rows"]}


LABS = {
    "strategy": FakeLab,
    "fusion": lambda: FusionLab("golf"),
    "memory": lambda: MemoryLab("stack", 4),
    "stepper": lambda: CollectiveStepper("all_reduce", "ring", 4),
    "pipeline": lambda: PipelineLab(stages=4, micro_batches=4),
    "redistribution": RedistributionLab,
    "recompute": RecomputeLab,
    "costs": CostLab,
    "search": lambda: SearchLab(devices=2),
}
# (commands in turn, what the whole snapshot then says)
CONTROLS = {
    "strategy": [
        ([("set_net", "dense")], lambda s: s["net"]["value"] == "dense"),
        ([("set_devices", 4)], lambda s: s["devices"]["value"] == 4 and len(s["cards"]) == 4),
        ([("set_data", "digits")], lambda s: s["data"]["value"] == "digits"),
        ([("set_preset", "data parallel")], lambda s: s["preset"]["value"] == "data parallel"),
        (
            [("set_strategy", "matmul", "((4, 2), (2, 1))")],
            lambda s: s["operators"][0]["strategy"] == "((4, 2), (2, 1))",
        ),
        ([("set_strategy", "matmul", None)], lambda s: s["operators"][0]["source"] == "default"),
        ([("set_fusion", "fused")], lambda s: s["fusion"]["value"] == "fused"),
        ([("set_optimizer", "sliced")], lambda s: s["optimizer"]["value"] == "sliced"),
        ([("set_speed", "slow")], lambda s: s["speed"]["value"] == "slow"),
        ([("set_steps", 7)], lambda s: s["steps"] == s["run"]["steps"] == 7),
        (
            [("set_code", "self.matmul.shard(((8, 1), (1, 1)))")],
            lambda s: s["operators"][0]["strategy"] == "((8, 1), (1, 1))",
        ),
        ([("select_tensor", "w2")], lambda s: s["tensor"] == "w2"),
        ([("select_phase", "backward")], lambda s: s["phase"] == "backward"),
        ([("select_rank", 2)], lambda s: s["rank"] == 2),
        ([("select_message", 3)], lambda s: s["message"] == 3 and s["tensor"] == "matmul.partial"),
        ([("select_message", 1), ("to", 2)], lambda s: s["at"] == 2),
        ([("show_numbers", True)], lambda s: s["numbers"]["rule"] == "each cell is one value"),
        ([("run",)], lambda s: s["run"]["state"] == "running"),
        ([("run",), ("pause",)], lambda s: s["run"]["state"] == "paused"),
        ([("run",), ("pause",), ("resume",)], lambda s: s["run"]["state"] == "running"),
        ([("run",), ("stop",)], lambda s: s["run"]["state"] == "done"),
        ([("run",), ("reset",)], lambda s: s["run"]["state"] == "idle"),
    ],
    "fusion": [
        ([("set_subject", "dense")], lambda s: s["subject"]["value"] == "dense"),
        ([("set_devices", 8)], lambda s: s["devices"]["value"] == 8),
        ([("set_parallel_mode", "semi_auto_parallel")], lambda s: s["parallel_mode"]["value"] == "semi_auto_parallel"),
        ([("set_mode", "each")], lambda s: len(s["cuts"]) == 9),
        ([("set_cluster", "gpu_node")], lambda s: s["cluster"]["value"] == "gpu_node"),
        ([("set_line", 0, 1e-9)], lambda s: s["line"]["own"] and s["line"]["alpha_s"] == 0),
        ([("set_line", 0, 1e-9), ("reset_line",)], lambda s: not s["line"]["own"]),
        ([("add_cut", 4)], lambda s: s["cuts"] == [4]),
        ([("add_cut", 4), ("move_cut", 4, 6)], lambda s: s["cuts"] == [6]),
        ([("add_cut", 4), ("remove_cut", 4)], lambda s: s["cuts"] == []),
        (
            [("set_mode", "index"), ("set_config", "[4]"), ("show_best",)],
            lambda s: s["cuts"] == [1, 4, 6] and s["sections"]["golf"]["small"] == "par",
        ),
        ([("show_source", "predicted")], lambda s: s["source"]["value"] == "predicted"),
        ([("set_mode", "index"), ("set_config", "[0, 3, 5]")], lambda s: s["config"]["text"] == "[0, 3, 5]"),
        (
            [("set_code", 'net.comm_fusion({"allreduce": {"mode": "index", "config": [0, 3]}})')],
            lambda s: s["config"]["text"] == "[0, 3]",
        ),
        ([("set_mode", "index"), ("set_wording", "first_n")], lambda s: s["wording"]["value"] == "first_n"),
        ([("stop",)], lambda s: s["run"]["state"] == "idle"),
    ],
    "memory": [
        ([("set_subject", "dense")], lambda s: s["subject"]["value"] == "dense" and s["width"] is None),
        ([("set_width", 64)], lambda s: s["width"]["value"] == 64 and "width 64, 32768 parameters" in s["notes"][0]),
        ([("set_devices", 2)], lambda s: len(s["steps_of"]["predicted"]["of"]) == 2),
        (
            [("set_parallel_mode", "data_parallel")],
            lambda s: [c["value"] for c in s["level"]["choices"]] == ["off", "grouping"],
        ),
        ([("set_optimizer", "SGD")], lambda s: s["optimizer"]["value"] == "SGD"),
        ([("set_level", "level3")], lambda s: s["level"]["value"] == "level3"),
        ([("set_threshold", 1024)], lambda s: s["threshold_kb"] == 1024 and shares(s) == {1}),
        ([("set_code", 'net.hsdp(optimizer_level="level3")')], lambda s: s["level"]["value"] == "level3"),
        ([("set_shard_size", 2)], lambda s: shares(s) == {2}),
        ([("set_accumulation", 4)], lambda s: s["accumulation"]["value"] == 4),
        ([("set_accumulation_shard", False)], lambda s: s["accumulation_shard"] is False),
        ([("set_capacity", "1 MiB")], lambda s: s["capacity"]["bytes"] == 1 << 20),
        ([("select_rank", 3)], lambda s: s["rank"] == 3),
        ([("show_moment", "resident")], lambda s: s["moment"]["value"] == "resident"),
        ([("show_source", "predicted")], lambda s: s["source"]["value"] == "predicted"),
        ([("set_zero", "1T", 16, 8.5)], lambda s: s["zero"]["degree"] == 16 and s["zero"]["optimizer_bytes"] == 8.5),
        ([("stop",)], lambda s: s["run"]["state"] == "idle"),
    ],
    "stepper": [
        ([("to", 3)], lambda s: s["at"] == 3),
        ([("next",)], lambda s: s["at"] == 1),
        ([("back",)], lambda s: s["at"] == 0),
        ([("reset",)], lambda s: s["at"] == 0),
        ([("follow", 2)], lambda s: s["follow"] == 2),
        ([("follow", None)], lambda s: s["follow"] is None),
        ([("choose_kind", "broadcast")], lambda s: s["kind"]["value"] == "broadcast"),
        ([("choose_algorithm", "tree")], lambda s: s["algorithm"]["value"] == "tree"),
        ([("choose_ranks", 8)], lambda s: s["ranks"]["value"] == 8),
        ([("choose_elements", 64)], lambda s: s["elements"]["value"] == 64),
        ([("choose_cluster", "gpu_node")], lambda s: s["cluster"]["value"] == "gpu_node"),
        ([("choose_contention", "hops")], lambda s: s["contention"]["value"] == "hops"),
    ],
    "pipeline": [
        ([("set_net", "gpt")], lambda s: s["net"]["value"] == "gpt"),
        ([("set_stages", 2)], lambda s: len(s["lanes"]) == 2),
        ([("set_micro_batches", 8)], lambda s: len(s["lanes"][3]["cells"]) == 16),
        ([("set_schedule", "gpipe")], lambda s: s["schedule"]["value"] == "gpipe" and s["lanes"][0]["peak"] == 4),
        ([("set_schedule", "interleaved")], lambda s: s["chunks"]["value"] == 2 and s["lanes"][0]["parts"] == [0, 4]),
        ([("set_schedule", "gpipe"), ("set_chunks", 2)], lambda s: s["parts"] == 8),
        ([("set_strategy", "batch")], lambda s: s["strategy"]["value"] == "batch"),
        ([("set_cores", 0)], lambda s: s["cores"]["value"] == 0),
        ([("set_typed", "times", "1:2:0")], lambda s: s["typed"]["times"] == "1:2:0" and s["span"] == 21),
        ([("set_code", "net.pipeline(stages=2)")], lambda s: s["stages"]["value"] == 2),
        ([("set_typed", "latency", "0.5")], lambda s: s["typed"]["latency"] == "0.5" and s["span"] > 21),
        ([("set_typed", "cap", "3")], lambda s: s["lanes"][0]["faults"] and "no memory" in s["status"]),
        ([("set_typed", "cap", "3"), ("set_typed", "cap", "none")], lambda s: s["lanes"][0]["cap"] is None),
        ([("toggle_recompute", 2)], lambda s: s["recompute"] == [2] and s["again"] == [2]),
        ([("set_rank", 3)], lambda s: s["rank"]["value"] == 3),
        ([("clear",)], lambda s: not any(lane["cells"] for lane in s["lanes"]) and not s["complete"]),
        ([("clear",), ("put", 0, "0F1", -1)], lambda s: s["lanes"][0]["cells"] == [["0F1", 0, 1]]),
        ([("clear",), ("put_next", 0, "F", -1)], lambda s: s["lanes"][0]["cells"] == [["0F0", 0, 1]]),
        ([("move", 0, 1, 2)], lambda s: s["lanes"][0]["cells"][2][0] == "0F1" and s["schedule"]["value"] == "drawn"),
        (
            [
                *(("set_micro_batches", 8), ("set_schedule", "chimera"), ("clear",), ("put", 0, "0F0", -1)),
                ("move_onto", 0, 0, 3, 0),
            ],
            lambda s: s["lanes"][3]["cells"] == [["0F0", 0, 1]] and not s["lanes"][0]["cells"],
        ),
        ([("remove", 0, 7)], lambda s: s["lanes"][0]["left"] == ["0B3", "0W0"]),
        ([("clear_rank", 1)], lambda s: s["lanes"][0]["pending"] and not s["lanes"][1]["cells"]),
        ([("load", "0F0\n1F0\n2F0\n3F0")], lambda s: s["sections"]["text"]["text"] == "0F0\n1F0\n2F0\n3F0"),
        ([("clear",), ("undo",)], lambda s: s["complete"] and s["can_redo"]),
        ([("clear",), ("undo",), ("redo",)], lambda s: not s["complete"]),
        ([("search",)], lambda s: s["complete"] and s["span"] < 21),
        ([("stop",)], lambda s: s["run"]["state"] == "idle"),
    ],
    "redistribution": [
        ([("set_devices", 4)], lambda s: s["devices"]["value"] == 4 and s["have"]["value"] == "4 x 1"),
        ([("set_have", "1 x 8")], lambda s: s["have"]["value"] == "1 x 8"),
        ([("set_want", "8 x 1")], lambda s: s["status"].startswith("The tensor is where it is needed")),
        ([("set_copies", "addends")], lambda s: s["copies"]["value"] == "addends"),
        ([("set_steps", "all_to_all")], lambda s: "all_to_all" in s["sections"]["steps"]["of"]["0"]["rows"][0][0]),
        ([("set_rank", 5)], lambda s: s["rank"]["value"] == 5),
        ([("to", 2), ("back",)], lambda s: s["at"] == 1),
        ([("next",)], lambda s: s["at"] == 1),
        ([("next",), ("reset",)], lambda s: s["at"] == 0),
    ],
    "costs": [
        ([("set_kind", "all_gather")], lambda s: s["kind"]["value"] == "all_gather"),
        ([("set_ranks", 16)], lambda s: s["ranks"]["value"] == 16),
        ([("set_alpha_us", 25)], lambda s: s["alpha_us"]["value"] == 25),
        ([("set_gigabytes_per_s", 1)], lambda s: s["gigabytes_per_s"]["value"] == 1),
        ([("set_size", 1024)], lambda s: s["size"]["value"] == 1024),
    ],
    "recompute": [
        ([("set_cap", 30)], lambda s: s["cap"]["value"] == 30),
        ([("toggle", 4)], lambda s: [one["again"] for one in s["layers"]].index(True) == 4 and s["peak"] == 65),
        ([("toggle", 4), ("toggle", 4)], lambda s: s["peak"] == 72),
        ([("recompute_all",)], lambda s: s["peak"] == 15 and s["own"]),
        ([("recompute_all",), ("keep_all",)], lambda s: s["peak"] == 72),
        ([("recompute_all",), ("show_par",)], lambda s: "13 of 24 products" in s["status"]),
        ([("stop",)], lambda s: s["run"]["state"] == "idle"),
    ],
    "search": [
        ([("set_net", "dense")], lambda s: s["operator"] == "dense1.matmul" and s["own"]["value"] == "data parallel"),
        ([("set_devices", 4)], lambda s: len(s["net_of"][0]["cards"]) == 4),
        ([("set_mode", "recursive_programming")], lambda s: s["steps"][0]["text"].startswith("level 1: ")),
        ([("set_costs", "mindspore")], lambda s: s["terms"][0]["name"] == "computation"),
        ([("set_cluster", "gpu_node")], lambda s: s["cluster"]["value"] == "gpu_node"),
        ([("set_bandwidth", "0.1")], lambda s: s["bandwidth"]["value"] == "0.1" and s["arguments"] == 1),
        ([("set_latency", 10)], lambda s: s["latency"]["value"] == "10"),
        ([("set_capacity", "1 MiB")], lambda s: s["capacity_bytes"] == 1 << 20),
        ([("set_weight", "gradients", "2")], lambda s: s["terms"][2]["value"] == "2"),
        ([("set_pin", "matmul", "((1, 2), (2, 1))")], lambda s: s["net_of"][0]["strategy"] == "((1, 2), (2, 1))"),
        ([("set_latency", 0), ("clear_arguments",)], lambda s: s["arguments"] == 0),
        ([("set_own", "data parallel")], lambda s: s["own"]["value"] == "data parallel"),
        ([("set_own_strategy", "matmul", "((1, 1), (1, 1))")], lambda s: s["own"]["value"] == ""),
        ([("take", "front 1")], lambda s: s["points"][1]["cost"] == s["points"][2]["cost"]),
        ([("set_code", "self.matmul.shard(((1, 1), (1, 2)))")], lambda s: s["own"]["value"] == ""),
        ([("select_operator", "relu")], lambda s: s["operator"] == "relu" and len(s["candidates"][0]["strategy"]) == 9),
        ([("select_point", "yours")], lambda s: s["shown"]["id"] == "yours"),
        ([("to", 0)], lambda s: s["at"] == 0),
        ([("stop",)], lambda s: s["run"]["state"] == "idle"),
    ],
}
ELSEWHERE = {
    "run_simulated",
    "run_measured",
    "find_par",
    "show_best",
    "count",
    "fit_machine",
    "run",
    "answer",
    "skip",
}  # in the tests of the models
for name in ("strategy", "fusion", "memory", "stepper"):
    CONTROLS[name] += [
        ([("set_predict", True)], lambda s: s["predict"]["open"]["right"] and not s["predict"]["last"]),
        ([("set_predict", True), ("ask",), ("set_predict", False)], lambda s: not s["predict"]["on"]),
    ]
UNKNOWN = [(name, (), "unknown command") for name in ("close", "snapshot", "__class__", None, ["stop"])]
REFUSED = {
    "strategy": [
        ("select_rank", ("5",), "Expected a whole number"),
        ("select_rank", (True,), "Expected a whole number"),
        ("select_rank", (8,), "One of 0, 1, 2"),
        ("set_devices", (), "Expected a whole number"),
        ("set_strategy", ("matmul", 3), "Expected a text, a text or tuple or None"),
        ("set_steps", ("7",), "Expected a whole number"),
        ("run", (1,), "Expected no arguments"),
    ],
    "fusion": [
        ("set_config", ("one, two",), "no setting"),
        ("set_devices", (3,), "One of 2, 4, 8"),
        ("set_devices", ("4",), "Expected a whole number"),
        ("set_devices", (True,), "Expected a whole number"),
        ("move_cut", (4,), "Expected a whole number, a whole number"),
        ("move_cut", (4, 5), "there is no cut 4"),
        ("run_simulated", (), "on paper"),
    ],
    "memory": [
        ("set_devices", (3,), "One of 2, 4, 8"),
        ("set_devices", ("4",), "Expected a whole number"),
        ("set_devices", (True,), "Expected a whole number"),
        ("set_width", (None,), "Expected a whole number"),
        ("set_width", (33,), "A multiple of 16"),
        ("set_accumulation_shard", (1,), "Expected True or False"),
        ("set_capacity", ("a lot",), "A size such as"),
        ("set_level", ("grouping",), "One of off"),
        ("set_level", (), "Expected a text"),
        ("set_zero", ("7.5B", 64), "Expected"),
        ("set_zero", ("7.5B", 6.5, 12), "degree=6.5"),
        ("show_source", ("measured",), "One of predicted"),
        ("show_best", (), "par is not known"),
    ],
    "stepper": [
        ("show", ("ring",), "unknown command"),
        ("to", ("3",), "Expected a whole number"),
        ("to", (True,), "Expected a whole number"),
        ("to", (9,), "An int from 0 to 6"),
        ("follow", ("2",), "Expected a whole number or None"),
        ("next", (1,), "Expected no arguments"),
    ],
    "pipeline": [
        ("set_stages", ("4",), "Expected a whole number"),
        ("toggle_recompute", (True,), "Expected a whole number"),
        ("put", (0, "0F0"), "Expected a whole number, a text, a whole number"),
        ("put", (0, "0F0", -1), "0F0 is done a second time"),
        ("move", (0, 4, 0), "0F0 must come first"),
        ("set_typed", ("times", "fast"), "Three numbers"),
        ("load", ("0F0",), "a line for each stage"),
    ],
    "redistribution": [
        ("set_devices", (3,), "One of 2, 4, 8"),
        ("set_have", ("3 x 1",), "One of 1 x 1"),
        ("set_rank", ("5",), "Expected a whole number"),
        ("set_rank", (8,), "One of 0, 1, 2"),
        ("to", (9,), "from 0 to"),
    ],
    "costs": [("set_ranks", (5,), "One of 2, 3"), ("set_kind", (3,), "Expected a text"), ("set_size", (1,), "One of")],
    "recompute": [
        ("set_cap", (41,), "One of 20, 24, 28, 30"),
        ("toggle", (12,), "One of 0, 1, 2"),
        ("toggle", ("3",), "Expected a whole number"),
        ("show_par", (), "no choice of your own under the cap 40"),
    ],
    "search": [
        ("set_pin", ("matmul", "((3, 1), (1, 1))"), "One of"),
        ("set_pin", ("matmul", 3), "Expected a text, a text or tuple or None"),
        ("set_capacity", ("1 B",), "no choice of strategies needs at most 1 bytes"),
        ("set_weight", ("luck", "2"), "One of compute, partial sums"),
        ("set_bandwidth", ("fast",), "bandwidth"),
        ("select_point", ("front 99",), "One of winner, yours"),
        ("to", (99,), "One of 0, 1"),
        ("take", (), "Expected a text"),
    ],
}
GOOD = {"strategy": ("select_rank", 7), "fusion": ("set_mode", "each"), "memory": ("set_level", "level2")}
GOOD |= {"stepper": ("to", 6), "redistribution": ("set_want", "2 x 4"), "pipeline": ("set_schedule", "gpipe")}
# a method that takes one number
NUMBERED = {"strategy": "select_rank", "fusion": "add_cut", "memory": "select_rank", "stepper": "to"}
NUMBERED |= {"redistribution": "set_rank", "pipeline": "clear_rank"}
TITLES = {"strategy": "Strategy Lab", "fusion": "Fusion Lab", "memory": "Memory Lab"}
TITLES |= {"stepper": "all_reduce by ring, 4 ranks", "redistribution": "Redistribution Lab", "pipeline": "Pipeline Lab"}
GOOD["recompute"], NUMBERED["recompute"], TITLES["recompute"] = ("toggle", 3), "toggle", "Recompute Lab"
GOOD["costs"], NUMBERED["costs"], TITLES["costs"] = ("set_ranks", 16), "set_ranks", "Cost Lab"
GOOD["search"], NUMBERED["search"], TITLES["search"] = ("set_mode", "dynamic_programming"), "to", "Search Lab"
each_lab = pytest.mark.parametrize("name", LABS)


@pytest.fixture
def opened():
    """opened(name or model) -> a widget that keeps what it sends in `sent`; closed at the end."""
    views = []

    def make(lab):
        model = LABS[lab]() if isinstance(lab, str) else lab
        view = widget_of(StrategyLab if isinstance(model, StrategyLab) else type(model))(model)
        view.sent = []
        view.send = lambda content, buffers=None: view.sent.append(content)
        views.append(view)
        return view

    yield make
    for view in views:
        view.close()


def tell(widget, command, *arguments, number=1):
    """What the page sends when a control is used."""
    widget._handle_custom_msg({"command": command, "arguments": list(arguments), "number": number}, [])


def shown(widget) -> dict:
    """All that the page has, as it gets it, once a program was looked at."""
    widget._handle_custom_msg({"want_code": True}, [])
    return json.loads(json.dumps(widget.shown))


@pytest.mark.quick(30)
@pytest.mark.parametrize(
    ("name", "commands", "seen"), [(name, *case) for name, cases in CONTROLS.items() for case in cases]
)
def test_a_control_is_one_command_of_the_model(opened, name, commands, seen):
    widget = opened(name)
    for command in commands:
        tell(widget, *command)
        assert widget.last_error is None
        assert {"kind": "answered", "number": 1, "refused": False} in widget.sent
        widget.sent.clear()
    assert seen(shown(widget))
    now = json.loads(json.dumps({**widget.lab.snapshot(), "scale": 1.0}))
    for curve in ("parallel", "single"):  # sent as bytes
        now.get("loss", {}).pop(curve, None)
    assert shown(widget) == now
    if name == "strategy":
        assert widget.lab.sent == commands


@each_lab
def test_every_command_is_a_method_of_the_model_and_is_tried(name):
    model = LABS[name]()
    tried = {command for commands, _ in CONTROLS[name] for command, *_ in commands}
    assert tried <= set(model.commands) <= tried | ELSEWHERE
    assert all(callable(getattr(model, command)) for command in model.commands)


@pytest.mark.quick(15)
@pytest.mark.parametrize(
    ("name", "command", "arguments", "told"),
    [(name, *case) for name, cases in REFUSED.items() for case in [*UNKNOWN, *cases]],
)
def test_a_refused_command_is_reported_and_changes_nothing(opened, name, command, arguments, told):
    widget = opened(name)
    before = shown(widget)
    tell(widget, command, *arguments)
    assert told in widget.last_error and shown(widget) == before
    assert widget.sent[-1] == {"kind": "answered", "number": 1, "refused": True}
    if name == "strategy" and command != "select_rank":
        assert widget.lab.sent == []
    tell(widget, *GOOD[name])
    assert widget.last_error is None


@each_lab
def test_a_defect_is_shown_and_raised(opened, name):
    widget = opened(name)
    setattr(widget.lab, GOOD[name][0], lambda argument: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        widget.command(*GOOD[name])
    assert "ZeroDivisionError: division by zero" in widget.last_error


@each_lab
def test_several_views_show_one_lab_until_they_are_closed(opened, name):
    one = opened(name)
    listeners, open_before = list(one.lab._listeners), everywhere.open_widgets()
    other = opened(one.lab)
    assert everywhere.open_widgets() != open_before
    before, (command, argument) = shown(one), GOOD[name]
    one.command(command, argument)
    after = shown(one)
    assert shown(other) == after != before
    other.close()
    other.close()
    assert one.lab._listeners == listeners and everywhere.open_widgets() == open_before
    one.lab.stop() if name == "strategy" else None
    getattr(one.lab, NUMBERED[name])(3)
    assert shown(other) == after != shown(one)  # a method call shows without any control


@each_lab
def test_other_forms(opened, name):
    widget = opened(name)
    assert widget.to_text() == widget.lab.to_text()
    assert widget.to_html(title="a title", limits=Limits(states=1)).count("<title>a title</title>") == 1
    frame = widget._repr_html_()
    assert frame.startswith(f'<iframe title="{TITLES[name]}" srcdoc="&lt;!doctype html') and frame.count("<") == 2


def test_a_cell_keeps_the_page_alongside_the_widget(opened):
    """JupyterLab shows the widget; a viewer without a kernel shows the page."""
    shown, _ = DisplayFormatter().format(opened("memory"))
    assert {"application/vnd.jupyter.widget-view+json", "text/html"} <= set(shown)
    assert "No kernel here" in shown["text/html"]


@each_lab
def test_a_script_declares_a_name_once(name):
    """The files of a lab are one script: a second `const` of a name and nothing at all is shown."""
    script = LABS[name]().front_end()[0]
    names = re.findall(r"^(?:const|let|function|class) (\w+)", script, re.MULTILINE)
    assert len(names) > 50 and sorted(names) == sorted(set(names))


@pytest.mark.parametrize("name", widgets.LABS)
def test_a_widget_brings_its_own_model(name):
    view = getattr(widgets, f"{name}Widget")()
    assert type(view.lab).__name__ == name
    view.close()


@pytest.mark.parametrize(("name", "smaller"), [("fusion", ("set_subject", "dense")), ("memory", ("set_width", 32))])
def test_a_run_in_the_background_is_shown_when_it_ends(opened, name, smaller):
    widget = opened(name)
    tell(widget, *smaller)
    tell(widget, "run_simulated")
    assert widget.last_error is None and widget.lab.wait(60)
    assert list(widget.lab.results) == ["simulated"] and "equal" in str(widget.snapshot).lower()


# ---- what is sent ----


def test_looking_at_another_rank_sends_neither_timeline_nor_operators(opened):
    widget, changed = opened("strategy"), []
    parts = [f"part_{name}" for name in StrategyLab.apart]
    widget.observe(lambda change: changed.append(change["name"]), names=["snapshot", *parts])
    tell(widget, "select_rank", 2)
    assert changed == ["snapshot"]
    tell(widget, "set_devices", 4)
    assert {"snapshot", "part_timeline", "part_operators"} <= set(changed[1:])


@each_lab
def test_programs_are_sent_once_one_is_looked_at(opened, name):
    widget = opened(name)
    programs = {n: s for n, s in widget.snapshot.get("sections", {}).items() if s["kind"] == "code" and "by" not in s}
    assert all(section["text"] is None for section in programs.values())
    widget._handle_custom_msg({"want_code": True}, [])
    sections = widget.lab.snapshot().get("sections", {})
    assert {n: widget.snapshot["sections"][n] for n in programs} == {n: sections[n] for n in programs}


# ---- the stepper: the place is sent, and not the story ----


def test_a_step_sends_the_place_and_not_the_story(opened):
    widget, changed = opened("stepper"), []
    widget.observe(lambda change: changed.append(change["name"]), names=["snapshot", "progress"])
    tell(widget, "next")
    assert changed == ["progress"]
    assert len(json.dumps(widget.progress)) < 3000 < len(json.dumps(widget.snapshot))
    tell(widget, "choose_algorithm", "tree")
    assert set(changed[1:]) == {"snapshot", "progress"}


def test_changes_from_other_threads_end_in_the_newest(opened):
    widget = opened("stepper")
    threads = [threading.Thread(target=widget.lab.to, args=(i % 7,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert widget.progress["at"] == widget.lab.at
