"""`ProgressBar` in a terminal, a file and a notebook."""

import io
import sys
import types

import pytest

from parallel_lab.base import hooks
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.train import LambdaCallback, LossMonitor, ProgressBar, progress
from tests.crossed import each_of
from tests.train.runs import affine_model, batches


class Clock:
    """Seconds that grow by one with every step."""

    def __init__(self):
        self.now = 0.0
        self.tick = LambdaCallback(
            on_train_step_begin=lambda _: self.pass_(1), on_eval_step_begin=lambda _: self.pass_(1)
        )

    def pass_(self, seconds):
        self.now += seconds

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """A terminal that shows what a reader would see."""

    def isatty(self):
        return True

    def seen(self):
        """The lines on the screen: a carriage return goes back to the beginning of the line."""
        screen = []
        for line in self.getvalue().split("\n"):
            shown = ""
            for part in line.split("\r"):
                shown = part + shown[len(part) :]
            screen.append(shown.rstrip())
        return screen


def train(stream, epochs=2, more=()):
    clock = Clock()
    affine_model().train(epochs, batches(), callbacks=[clock.tick, *more, ProgressBar(stream, clock)])


def test_a_file_gets_a_line_per_epoch_and_no_bar():
    stream = io.StringIO()
    train(stream)
    first, second, last = stream.getvalue().splitlines()
    assert first.startswith("epoch 1/2  4 steps in 4.0 s  loss ")
    assert second.startswith("epoch 2/2  4 steps in 4.0 s  loss ")
    assert last == "trained 8 steps in 8.0 s" and "\r" not in stream.getvalue()


def test_a_terminal_has_one_line_that_is_written_anew():
    stream, shown = Terminal(), []
    train(stream, 1, [LambdaCallback(on_train_step_begin=lambda _: shown.append(stream.seen()[-1]))])
    assert shown[0] == "" and len(set(shown)) == 4
    for done, line in enumerate(shown[1:], 1):
        assert line.startswith(f"epoch 1/1  [{'=' * (5 * done)}>") and f"]  {done}/4  loss " in line
        assert line.endswith(f"1.0 steps/s  {4 - done}.0 s left")  # a step takes one second of this clock
    assert [line.split("  ")[0] for line in stream.seen()] == ["epoch 1/1", "trained 4 steps in 4.0 s", ""]


def test_what_is_printed_meanwhile_stands_above_the_bar(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    clock = Clock()
    affine_model().train(1, batches(), callbacks=[clock.tick, LossMonitor(), ProgressBar(clock=clock)])
    assert sys.stdout is terminal
    seen = terminal.seen()
    assert [line.split(",")[0] for line in seen[:4]] == [f"epoch: 1 step: {step}" for step in range(1, 5)]
    assert seen[4].startswith("epoch 1/1  4 steps") and seen[5:] == ["trained 4 steps in 4.0 s", ""]


def test_stdout_is_given_back_when_the_training_fails(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    with pytest.raises(ZeroDivisionError):
        affine_model().train(1, batches(), callbacks=[ProgressBar(), LambdaCallback(on_train_step_end=lambda _: 1 / 0)])
    assert sys.stdout is terminal and terminal.seen()[-1] == ""


def test_quick_steps_are_drawn_ten_times_a_second_at_most():
    stream, clock = Terminal(), Clock()
    clock.tick = LambdaCallback(on_train_step_begin=lambda _: clock.pass_(0.01))
    affine_model().train(1, batches(120, 1), callbacks=[clock.tick, ProgressBar(stream, clock)])
    drawn = stream.getvalue().count("steps/s")
    assert 1.2 / progress.REDRAW_S - 2 <= drawn <= 1.2 / progress.REDRAW_S + 2


def test_an_evaluation_has_a_bar_and_says_its_results():
    stream, clock = Terminal(), Clock()
    result = affine_model(metrics={"mae"}).eval(batches(), callbacks=[clock.tick, ProgressBar(stream, clock)])
    assert "evaluation  [=====>" in stream.getvalue()
    assert stream.seen() == [f"evaluated 4 steps in 4.0 s  mae {result['mae']:.4g}", ""]


def test_fit_has_the_evaluation_in_the_line_of_the_epoch():
    stream = io.StringIO()
    affine_model(metrics={"mae"}).fit(1, batches(), batches(), callbacks=ProgressBar(stream))
    assert "  mae " in stream.getvalue().splitlines()[0] and "  eval_loss " in stream.getvalue().splitlines()[0]


def test_progress_true_shows_it_and_the_default_shows_nothing(capsys):
    affine_model().train(1, batches())
    assert capsys.readouterr().out == ""
    affine_model().train(1, batches(), progress=True)
    assert capsys.readouterr().out.splitlines()[-1].startswith("trained 4 steps in ")


@pytest.mark.parametrize(("rank", "lines"), [(0, 3), (1, 0)])
def test_in_a_world_rank_0_shows_it(rank, lines):
    stream = io.StringIO()
    hears = dict.fromkeys(("note_gradients", "after_update"), lambda *told: None)
    hooks.set_world(types.SimpleNamespace(rank=rank, world_size=2, **hears))  # stand_alone: each rank trains for itself
    train(stream)
    assert len(stream.getvalue().splitlines()) == lines


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's shell, as far as it can be had without a kernel."""
    IPython = pytest.importorskip("IPython")
    monkeypatch.setattr(IPython, "get_ipython", lambda: type("ZMQInteractiveShell", (), {})())
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    return shown


def test_a_notebook_has_a_widget_whose_last_line_stays_as_text(notebook, capsys):
    clock, states = Clock(), []

    def look(_):
        title, bar, text = notebook[0].children
        states.append((title.value, bar.value, bar.max, text.value))

    affine_model().train(
        1, batches(), callbacks=[clock.tick, ProgressBar(clock=clock), LambdaCallback(on_train_step_end=look)]
    )
    assert [state[:3] for state in states] == [("epoch 1/1", done, 4) for done in range(1, 5)]
    assert states[0][3].startswith("1/4  loss ")
    # and no widget is left open: the check after every test
    assert capsys.readouterr().out == "trained 4 steps in 4.0 s\n"


def test_a_notebook_without_ipywidgets_has_text(notebook, monkeypatch, capsys):
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    affine_model().train(1, batches(), progress=True)
    assert notebook == [] and capsys.readouterr().out.splitlines()[-1].startswith("trained 4 steps")


@each_of(("seconds", "text"), (0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "0:10"), (61, "1:01"), (3661, "1:01:01"))
def test_times_are_short(seconds, text):
    assert progress._time(seconds) == text


def test_an_invalid_stream_is_refused():
    with pytest.raises(TypeError, match="stream=3") as caught:
        ProgressBar(3)
    assert isinstance(caught.value, ParallelLabError)
