"""One contract over the widgets of all labs, without a browser: a control is one command of the model, a refusal is
shown and harmless, what is sent is what the model shows, and nothing remains.
"""

from __future__ import annotations

import importlib.util
import json
import re
import threading
import zlib
from types import SimpleNamespace

import ipywidgets
import pytest
from IPython.core.formatters import DisplayFormatter

from parallel_lab.base import hooks
from parallel_lab.base.errors import MissingPackage, ParallelLabError
from parallel_lab.lab import widgets
from parallel_lab.lab.shared import lab_view
from parallel_lab.lab.shared.lab_view import part_of, widget_of
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.shared.what_if import WeighsChoices
from parallel_lab.lab.strategy.model import StrategyLab
from tests import conftest as everywhere
from tests.lab.labs import ELSEWHERE, LABS, REFUSED, WALKS, another

each_lab = pytest.mark.parametrize("name", LABS)


@pytest.fixture
def opened():
    """opened(name or model) -> a widget that keeps what it sends in `sent`; closed at the end."""
    views = []

    def make(lab):
        model = LABS[lab]() if isinstance(lab, str) else lab
        view = widget_of(type(model))(model)
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


def shown_by(lab) -> dict:
    """What a widget of the lab should show."""
    stands = {"stands": lab.stands()} if isinstance(lab, WeighsChoices) else {}
    shot = json.loads(json.dumps({**lab.snapshot(), "scale": 1.0, **stands}))
    for curve in ("parallel", "single"):  # sent as bytes
        shot.get("loss", {}).pop(curve, None)
    return shot


@pytest.mark.quick(1)
@each_lab
def test_every_command_is_a_control_and_does_what_the_method_does(opened, name):
    widget, twin = opened(name), LABS[name]()
    offered = [[one.command, list(one.choice(twin).known)[:2][-1]] for one in twin.declared.values() if one.label]
    tried = {one.command for one in twin.declared.values()}
    for command, *arguments in (*WALKS[name], *offered):
        try:
            getattr(twin, command)(*arguments)
            words = None
        except ParallelLabError as error:  # no longer offered, after what came before
            words = str(error)
        tell(widget, command, *arguments)
        assert widget.last_error == words
        assert {"kind": "answered", "number": 1, "refused": words is not None} in widget.sent
        assert shown(widget) == shown_by(twin), command
        widget.sent.clear()
        tried.add(command)
    assert set(twin.commands) <= tried | ELSEWHERE


UNKNOWN = [((name,), "unknown command") for name in ("close", "snapshot", "__class__", None, ["stop"])]
OF_TYPES = ("7", [1])  # one of them is wrong for any argument


@pytest.mark.quick(1)
@each_lab
def test_a_refused_command_is_reported_and_changes_nothing(opened, name):
    """Unknown names, too many arguments, others of the wrong type, and what the model refuses, in its own words."""
    widget = opened(name)
    calls = [*UNKNOWN, *REFUSED[name]]
    for command in widget.lab.commands:
        types = widget.lab.argument_types(command)
        wrong = [next(value for value in OF_TYPES if not isinstance(value, of)) for of in types]
        calls.append(([command, *wrong, 1], "Expected "))
        calls += [([command, *wrong], "Expected ")] if types else []
    before = shown(widget)
    for (command, *arguments), words in calls:
        tell(widget, command, *arguments)
        assert words in widget.last_error, (command, arguments)
        assert widget.sent[-1] == {"kind": "answered", "number": 1, "refused": True}
    assert shown(widget) == before
    tell(widget, *another(widget.lab))
    assert widget.last_error is None and shown(widget) != before


@each_lab
def test_a_defect_is_shown_and_raised(opened, name):
    widget = opened(name)
    command, value = another(widget.lab)
    setattr(widget.lab, command, lambda argument: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        widget.command(command, value)
    assert "ZeroDivisionError: division by zero" in widget.last_error


@pytest.mark.quick(1)
@each_lab
def test_several_views_show_one_lab_until_they_are_closed(opened, name):
    one = opened(name)
    listeners, open_before = list(one.lab._listeners), everywhere.open_widgets()
    other = opened(one.lab)
    assert everywhere.open_widgets() != open_before
    before = shown(one)
    one.command(*another(one.lab))
    after = shown(one)
    assert shown(other) == after != before
    other.close()
    other.close()
    assert one.lab._listeners == listeners and everywhere.open_widgets() == open_before
    command, *arguments = another(one.lab)
    getattr(one.lab, command)(*arguments)
    assert shown(other) == after != shown(one)  # a method call shows without any control


@pytest.mark.quick(1)
@each_lab
def test_other_forms(opened, name):
    widget = opened(name)
    assert widget.to_text() == widget.lab.to_text()
    assert widget.to_html(title="a title", limits=Limits(states=1)).count("<title>a title</title>") == 1
    frame, title = widget._repr_html_(), widget.lab.snapshot()["title"]
    assert frame.startswith(f'<iframe title="{title}" srcdoc="&lt;!doctype html') and frame.count("<") == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["memory", "rosetta"])
def test_a_cell_that_ends_with_a_lab_shows_its_widget(name):
    lab = LABS[name]()
    shown, _ = DisplayFormatter().format(lab)
    view = ipywidgets.widget._instances[shown["application/vnd.jupyter.widget-view+json"]["model_id"]]
    assert view.lab is lab and "No kernel here" in shown["text/html"] and shown["text/plain"] == repr(lab)
    view.close()


def test_without_widgets_a_cell_that_ends_with_a_lab_says_how_to_see_it(monkeypatch):
    def missing(_lab):
        raise MissingPackage("anywidget")

    monkeypatch.setitem(hooks._from_above, "lab_widget", missing)
    shown, _ = DisplayFormatter().format(lab := LABS["rosetta"]())
    assert shown == {"text/plain": repr(lab)} and "lab.to_html(path)" in repr(lab)


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


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", widgets.LABS)
def test_a_widget_brings_its_own_model(name):
    view = getattr(widgets, f"{name}Widget")()
    assert type(view.lab).__name__ == name
    view.close()


@pytest.mark.quick(1)
@pytest.mark.parametrize(("name", "smaller"), [("fusion", ("set_subject", "dense")), ("memory", ("set_width", 32))])
def test_a_run_in_the_background_is_shown_when_it_ends(opened, name, smaller):
    widget = opened(name)
    tell(widget, *smaller)
    tell(widget, "run_simulated")
    assert widget.last_error is None and widget.lab.wait(60)
    assert list(widget.lab.results) == ["simulated"] and "equal" in str(widget.snapshot).lower()


# ---- what is sent ----


@each_lab
def test_a_look_sends_no_part_that_is_sent_apart(opened, name):
    widget, changed = opened(name), []
    parts = [part_of(part) for part in widget.apart]
    widget.observe(lambda change: changed.append(change["name"]), names=["snapshot", *parts])
    for one in widget.lab.declared.values():
        if one.look and one.command not in ("show_source", "select_tensor"):
            tell(widget, one.command, list(one.choice(widget.lab).known)[-1])
    assert set(changed) <= {"snapshot"}


def test_another_setting_sends_the_parts_that_it_changes(opened):
    widget, changed = opened("strategy"), []
    parts = [part_of(name) for name in StrategyLab.apart]
    widget.observe(lambda change: changed.append(change["name"]), names=["snapshot", *parts])
    tell(widget, "select_rank", 2)
    assert changed == ["snapshot"]
    tell(widget, "set_devices", 8)
    assert {"snapshot", "part_timeline", "part_operators"} <= set(changed[1:])


@pytest.mark.quick(4)
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


def test_a_kernel_that_ends_is_asked_to_send_nothing_more(opened, monkeypatch):
    """Its sending thread has ended, and the messages of two others would mix (restart while a run was shown)."""
    kernelapp = pytest.importorskip("ipykernel.kernelapp")
    lab = LABS["fusion"]()
    widget, running, ended = opened(lab), threading.current_thread(), threading.Thread()  # the last was never started
    monkeypatch.setattr(kernelapp.IPKernelApp, "initialized", lambda: True)
    for sender, mode, changes in ((running, "each", True), (ended, "off", False), (running, "ids", True)):
        app = SimpleNamespace(iopub_thread=SimpleNamespace(thread=sender))
        monkeypatch.setattr(kernelapp.IPKernelApp, "instance", lambda app=app: app)
        shown = json.dumps(widget.snapshot)
        lab.set_mode(mode)
        assert (json.dumps(widget.snapshot) != shown) is changes


def test_plotly_comes_from_the_kernel_on_request_as_its_file_and_nothing_where_it_is_missing(monkeypatch):
    widget, sent = widget_of(StrategyLab)(), []
    monkeypatch.setattr(widget, "send", lambda content, buffers=None: sent.append((content, buffers)))
    widget._handle_custom_msg({"want_plotly": True}, [])
    content, buffers = sent.pop()
    assert content == {"kind": "plotly"} and len(buffers[0]) < 2 << 20
    assert zlib.decompress(buffers[0]).lstrip()[:200].find(b"plotly.js") > 0
    lab_view._plotly_script.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    widget._handle_custom_msg({"want_plotly": True}, [])
    assert sent == [({"kind": "plotly"}, [])]
    lab_view._plotly_script.cache_clear()
    widget.close()
