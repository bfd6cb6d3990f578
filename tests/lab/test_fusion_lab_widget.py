"""The Fusion Lab's widget without a browser: commands reach the model, refusals are shown and change nothing, nothing
is left behind.
"""

from __future__ import annotations

import pytest

from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.widgets import FusionLabWidget
from tests import conftest as everywhere


@pytest.fixture
def widget():
    view = FusionLabWidget(FusionLab("golf"))
    sent: list = []
    view.send = lambda content, buffers=None: sent.append(content)
    view.sent = sent
    yield view
    view.close()


def tell(widget, command, *arguments, number=1):
    """What the page sends when a control is used."""
    widget._handle_custom_msg({"command": command, "arguments": list(arguments), "number": number}, [])


@pytest.mark.parametrize(
    ("command", "arguments", "seen"),
    [
        ("set_subject", ("dense",), lambda s: s["subject"]["value"] == "dense"),
        ("set_devices", (8,), lambda s: s["devices"]["value"] == 8),
        ("set_parallel_mode", ("semi_auto_parallel",), lambda s: s["parallel_mode"]["value"] == "semi_auto_parallel"),
        ("set_mode", ("each",), lambda s: len(s["cuts"]) == 9),
        ("set_cluster", ("gpu_node",), lambda s: s["cluster"]["value"] == "gpu_node"),
        ("set_line", (0, 1e-9), lambda s: s["line"]["own"] and s["line"]["alpha_s"] == 0),
        ("reset_line", (), lambda s: not s["line"]["own"]),
        ("add_cut", (4,), lambda s: s["cuts"] == [4]),
        ("show_best", (), lambda s: s["cuts"] == [1, 4, 6] and s["golf"]["ratio"] == 1),
        ("show_source", ("predicted",), lambda s: s["source"] == "predicted"),
    ],
)
def test_a_control_is_one_command_of_the_model(widget, command, arguments, seen):
    tell(widget, command, *arguments)
    assert widget.last_error is None
    assert seen(widget.snapshot) and widget.snapshot == widget.lab.snapshot()
    assert widget.sent[-1] == {"kind": "answered", "number": 1, "refused": False}


def test_cuts_are_moved_and_removed(widget):
    tell(widget, "add_cut", 4)
    tell(widget, "move_cut", 4, 6)
    assert widget.snapshot["cuts"] == [6] and widget.last_error is None
    tell(widget, "remove_cut", 6)
    assert widget.snapshot["cuts"] == [] and widget.last_error is None


def test_typed_settings_reach_the_model(widget):
    for command, value in (("set_mode", "index"), ("set_config", "[0, 3, 5]"), ("set_wording", "first_n")):
        tell(widget, command, value)
        assert widget.last_error is None
    assert widget.snapshot["config"]["text"] == "[0, 3, 5]" and widget.snapshot["wording"]["value"] == "first_n"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("set_config", ("one, two",)),
        ("set_devices", (3,)),
        ("set_devices", ("4",)),
        ("set_devices", (True,)),
        ("move_cut", (4,)),
        ("move_cut", (4, 5)),
        ("run_simulated", ()),
        ("close", ()),
        ("__class__", ()),
        (None, ()),
        (["set_mode"], ()),
    ],
)
def test_what_is_refused_is_told_and_changes_nothing(widget, command, arguments):
    before = widget.snapshot
    tell(widget, command, *arguments)
    assert widget.last_error and widget.snapshot == before
    assert widget.sent[-1] == {"kind": "answered", "number": 1, "refused": True}
    tell(widget, "set_mode", "each")
    assert widget.last_error is None


def test_a_defect_is_shown_and_raised(widget, monkeypatch):
    def broken():
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(widget.lab, "show_best", broken)
    with pytest.raises(ZeroDivisionError):
        widget.command("show_best")
    assert "a defect" in widget.last_error


def test_every_command_is_a_method_of_the_model():
    assert all(callable(getattr(FusionLab, name)) for name in FusionLab.commands)


def test_a_run_in_the_background_is_shown_when_it_ends(widget):
    tell(widget, "set_subject", "dense")
    tell(widget, "run_simulated")
    assert widget.last_error is None and widget.lab.wait(60)
    assert widget.snapshot["times"][1]["step_s"] > 0 and widget.snapshot["equality"][0]["equal"]


def test_two_views_show_one_lab():
    lab = FusionLab("golf")
    one, other = FusionLabWidget(lab), FusionLabWidget(lab)
    one.command("add_cut", 3)
    assert other.snapshot == one.snapshot and other.snapshot["cuts"] == [3]
    one.close()
    lab.add_cut(5)
    assert other.snapshot["cuts"] == [3, 5] and one.snapshot["cuts"] == [3]
    other.close()
    other.close()


def test_closing_leaves_nothing(widget):
    listeners, open_before = list(widget.lab._listeners), everywhere.open_widgets()
    view = FusionLabWidget(widget.lab)
    assert everywhere.open_widgets() != open_before
    view.close()
    assert widget.lab._listeners == listeners and everywhere.open_widgets() == open_before


def test_other_forms(widget):
    assert widget.to_text() == widget.lab.to_text()
    assert widget._repr_html_().startswith("<iframe title=") and "&lt;script" in widget._repr_html_()
