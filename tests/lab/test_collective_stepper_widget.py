"""The Collective Stepper's widget without a browser: commands reach the model, refusals are shown, little is sent per
step.
"""

from __future__ import annotations

import json
import threading

import pytest

from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.widgets import CollectiveStepperWidget


@pytest.fixture
def stepper():
    return CollectiveStepper("all_reduce", "ring", 4)


@pytest.fixture
def widget(stepper):
    view = CollectiveStepperWidget(stepper)
    view.sent = []
    view.send = lambda content, buffers=None: view.sent.append(content)
    yield view
    view.close()


def tell(widget, command, *arguments, number=1):
    """What the page sends when a control is used."""
    widget._handle_custom_msg({"command": command, "arguments": list(arguments), "number": number}, [])


@pytest.mark.parametrize(
    ("command", "arguments", "reached"),
    [
        ("to", (3,), lambda s: s.at == 3),
        ("next", (), lambda s: s.at == 1),
        ("back", (), lambda s: s.at == 0),
        ("reset", (), lambda s: s.at == 0),
        ("follow", (2,), lambda s: s.snapshot()["follow"] == 2),
        ("follow", (None,), lambda s: s.snapshot()["follow"] is None),
        ("choose_kind", ("broadcast",), lambda s: s.algorithm.kind == "broadcast"),
        ("choose_algorithm", ("tree",), lambda s: s.algorithm.name == "tree"),
        ("choose_ranks", (8,), lambda s: s.algorithm.ranks == 8),
        ("choose_elements", (64,), lambda s: s.elements == 64),
        ("choose_cluster", ("gpu_node",), lambda s: s.snapshot()["cluster"]["value"] == "gpu_node"),
        ("choose_contention", ("hops",), lambda s: s.snapshot()["contention"]["value"] == "hops"),
    ],
)
def test_a_control_is_one_command_of_the_model(widget, stepper, command, arguments, reached):
    tell(widget, command, *arguments)
    assert reached(stepper) and widget.last_error is None
    assert widget.sent == [{"kind": "answered", "number": 1, "refused": False}]
    shot = json.loads(json.dumps(stepper.snapshot()))
    assert json.loads(json.dumps({**widget.snapshot, **widget.progress})) == shot


def test_every_command_of_the_page_is_tried_above():
    mark = test_a_control_is_one_command_of_the_model.pytestmark[0]
    assert {case[0] for case in mark.args[1]} == set(CollectiveStepper.commands)


def test_a_step_sends_the_place_and_not_the_story(widget):
    changed = []
    widget.observe(lambda change: changed.append(change["name"]), names=["snapshot", "progress"])
    tell(widget, "next")
    assert changed == ["progress"]
    assert len(json.dumps(widget.progress)) < 3000 < len(json.dumps(widget.snapshot))
    tell(widget, "choose_algorithm", "tree")
    assert set(changed[1:]) == {"snapshot", "progress"}


def test_a_method_call_on_the_model_shows_without_any_control(widget, stepper):
    stepper.to(4)
    assert widget.progress["at"] == 4 and widget.progress["counters"][0]["now"] == 4


def test_a_refusal_is_shown_and_cleared_by_the_next_success(widget, stepper):
    tell(widget, "to", 9)
    assert "From 0, the start, to 6" in widget.last_error and stepper.at == 0
    assert widget.sent[-1]["refused"] is True
    tell(widget, "to", 6)
    assert widget.last_error is None and stepper.at == 6


@pytest.mark.parametrize(
    ("command", "arguments", "told"),
    [
        ("snapshot", (), "unknown command"),
        ("show", ("ring",), "unknown command"),
        ("__class__", (), "unknown command"),
        (None, (), "unknown command"),
        ("to", ("3",), "Expected int"),
        ("to", (True,), "Expected int"),
        ("follow", ("2",), "Expected int or None"),
        ("next", (1,), "Expected no arguments"),
    ],
)
def test_what_the_page_may_not_ask_never_reaches_the_model(widget, stepper, command, arguments, told):
    before = stepper.snapshot()
    tell(widget, command, *arguments)
    assert told in widget.last_error and stepper.snapshot() == before


def test_a_defect_of_the_model_is_shown_and_raised(widget, stepper):
    stepper.next = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        widget.command("next")
    assert "ZeroDivisionError" in widget.last_error


def test_changes_from_other_threads_end_in_the_newest(widget, stepper):
    threads = [threading.Thread(target=stepper.to, args=(i % 7,)) for i in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert widget.progress["at"] == stepper.at


def test_two_views_show_one_model_and_closing_one_leaves_the_other(stepper):
    one, two = CollectiveStepperWidget(stepper), CollectiveStepperWidget(stepper)
    one.command("next")
    assert two.progress["at"] == 1
    one.close()
    one.close()
    two.command("next")
    assert (one.progress["at"], two.progress["at"]) == (1, 2)
    two.close()


def test_it_brings_its_own_model_and_other_forms():
    view = CollectiveStepperWidget()
    assert view.lab.algorithm.name == "ring"
    assert "all_reduce by ring" in view.to_text()
    assert view.to_html("a title").count("<title>a title</title>") == 1
    assert view._repr_html_().startswith('<iframe title="all_reduce by ring, 4 ranks" srcdoc="')
    view.close()
