"""`Program`: one step of a plan on one rank, what a failed step leaves, and what is done once before the first."""

import numpy as np
import pytest

from parallel_lab import Session, compile, nn, set_seed
from parallel_lab.base.errors import NonFinite
from parallel_lab.graph.compiler import compile_program
from parallel_lab.run.computing import computing
from parallel_lab.run.full_values import step_inputs
from parallel_lab.train.first_step import FIRST, begin
from parallel_lab.train.program import Program
from parallel_lab.train.session import initial_values

X, Y = np.arange(12, dtype=np.float32).reshape(4, 3) / 12, np.ones((4, 2), np.float32)


@pytest.fixture
def trained():
    """(plan of one device, network, optimizer)."""
    set_seed(3)
    net = nn.Dense(3, 2)
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    plan = compile(net, X, Y, loss=nn.MSELoss(), optimizer=optimizer, device_num=1, dataset_strategy="full_batch")
    return plan, net, optimizer


def take(program, number, x=X, **options):
    program.env.update(step_inputs(program.plan, 0, (x, Y)))
    with computing(program.plan):
        program.step(number, **options)
    return float(program.env[program.plan.outputs[0]].reshape(-1)[0])


def test_its_steps_are_those_of_a_session(trained):
    plan, net, optimizer = trained
    with Session(plan, net, optimizer) as session:
        expected = session.train([(X, Y)], 3)
    program = Program(plan, None, initial_values(plan, net, optimizer))
    assert [take(program, number) for number in range(3)] == expected
    assert program.left == (3, [])


def test_a_step_that_fails_before_its_update_has_changed_nothing(trained):
    plan, net, optimizer = trained
    program = Program(plan, None, initial_values(plan, net, optimizer), taken=5)
    assert program.left == (5, [])
    with pytest.raises(NonFinite, match="step 6"):
        take(program, 5, X * np.nan, finite=True)
    assert program.left == (5, [])
    assert np.isfinite(take(program, 5, finite=True)) and program.left == (6, [])


def test_alone_and_without_settings_nothing_is_compared_or_written(trained, tmp_path, monkeypatch):
    _, net, _ = trained
    monkeypatch.chdir(tmp_path)
    compiled = compile_program(net, X, device_num=1, dataset_strategy="full_batch")
    assert len(FIRST) == 5
    begin(compiled, None, compiled.plan.config)
    assert not list(tmp_path.iterdir())


def test_files_are_written_that_settings_ask_for(trained, tmp_path):
    _, net, _ = trained
    options = {"strategy_ckpt_save_file": str(tmp_path / "strategy.json")}
    options["group_ckpt_save_file"] = str(tmp_path / "group.json")
    compiled = compile_program(net, X, device_num=1, dataset_strategy="full_batch", **options)
    begin(compiled, None, compiled.plan.config)
    assert {path.name for path in tmp_path.iterdir()} == {"strategy.json", "group.json"}
