"""The Memory Lab's widget without a browser: commands reach the model, refusals are shown and change nothing, nothing
is left behind.
"""

from __future__ import annotations

import pytest

from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.widgets import MemoryLabWidget
from tests import conftest as everywhere


@pytest.fixture
def widget():
    view = MemoryLabWidget(MemoryLab("stack", 4))
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
        ("set_subject", ("dense",), lambda s: s["subject"]["value"] == "dense" and s["width"] is None),
        ("set_width", (64,), lambda s: s["width"]["value"] == 64 and s["parameter_count"] == 8 * 64 * 64),
        ("set_devices", (2,), lambda s: len(s["ranks_of"]["predicted"]) == 2),
        (
            "set_parallel_mode",
            ("data_parallel",),
            lambda s: [c["value"] for c in s["level"]["choices"]] == ["off", "grouping"],
        ),
        ("set_optimizer", ("SGD",), lambda s: s["optimizer"]["value"] == "SGD"),
        ("set_level", ("level3",), lambda s: s["level"]["value"] == "level3"),
        (
            "set_threshold",
            (1024,),
            lambda s: s["threshold_kb"] == 1024 and all(p["ways"] == 1 for p in s["parameters"]),
        ),
        ("set_shard_size", (2,), lambda s: {p["ways"] for p in s["parameters"]} == {2}),
        ("set_accumulation", (4,), lambda s: s["accumulation"]["value"] == 4),
        ("set_accumulation_shard", (False,), lambda s: s["accumulation_shard"] is False),
        ("set_capacity", ("1 MiB",), lambda s: s["capacity"]["bytes"] == 1 << 20),
        ("select_rank", (3,), lambda s: s["rank"] == 3),
        ("show_moment", ("resident",), lambda s: s["moment"]["value"] == "resident"),
        ("show_source", ("predicted",), lambda s: s["source"]["value"] == "predicted"),
        ("set_zero", ("1T", 16, 8.5), lambda s: s["zero"]["degree"] == 16 and s["zero"]["optimizer_bytes"] == 8.5),
    ],
)
def test_a_control_is_one_command_of_the_model(widget, command, arguments, seen):
    tell(widget, command, *arguments)
    assert widget.last_error is None
    assert seen(widget.snapshot) and widget.snapshot == widget.lab.snapshot()
    assert widget.sent[-1] == {"kind": "answered", "number": 1, "refused": False}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("set_devices", (3,)),
        ("set_devices", ("4",)),
        ("set_devices", (True,)),
        ("set_width", (None,)),
        ("set_width", (33,)),
        ("set_accumulation_shard", (1,)),
        ("set_capacity", ("a lot",)),
        ("set_level", ("grouping",)),
        ("set_level", ()),
        ("set_zero", ("7.5B", 64)),
        ("set_zero", ("7.5B", 6.5, 12)),
        ("show_source", ("measured",)),
        ("show_best", ()),
        ("close", ()),
        ("__class__", ()),
        (None, ()),
        (["set_level"], ()),
    ],
)
def test_what_is_refused_is_told_and_changes_nothing(widget, command, arguments):
    before = widget.snapshot
    tell(widget, command, *arguments)
    assert widget.last_error and widget.snapshot == before
    assert widget.sent[-1]["kind"] == "answered"
    tell(widget, "set_level", "level2")
    assert widget.last_error is None


def test_a_defect_is_shown_and_raised(widget, monkeypatch):
    def broken():
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(widget.lab, "show_best", broken)
    with pytest.raises(ZeroDivisionError):
        widget.command("show_best")
    assert "a defect" in widget.last_error


def test_every_command_is_a_method_of_the_model():
    assert all(callable(getattr(MemoryLab, name)) for name in MemoryLab.commands)


def test_a_run_in_the_background_is_shown_when_it_ends(widget):
    tell(widget, "set_width", 32)
    tell(widget, "run_simulated")
    assert widget.last_error is None and widget.lab.wait(60)
    assert (
        widget.snapshot["source"]["choices"] == ["predicted", "simulated"] and widget.snapshot["equality"][0]["equal"]
    )


def test_two_views_show_one_lab():
    lab = MemoryLab("stack", 2)
    one, other = MemoryLabWidget(lab), MemoryLabWidget(lab)
    one.command("set_level", "level3")
    assert other.snapshot == one.snapshot and other.snapshot["level"]["value"] == "level3"
    one.close()
    lab.set_level("off")
    assert other.snapshot["level"]["value"] == "off" and one.snapshot["level"]["value"] == "level3"
    other.close()
    other.close()


def test_closing_leaves_nothing(widget):
    listeners, open_before = list(widget.lab._listeners), everywhere.open_widgets()
    view = MemoryLabWidget(widget.lab)
    assert everywhere.open_widgets() != open_before
    view.close()
    assert widget.lab._listeners == listeners and everywhere.open_widgets() == open_before


def test_other_forms(widget):
    assert widget.to_text() == widget.lab.to_text()
    assert widget._repr_html_().startswith("<iframe title=") and "&lt;script" in widget._repr_html_()
    assert not widget.command("nonsense") and "unknown command 'nonsense'" in widget.last_error
