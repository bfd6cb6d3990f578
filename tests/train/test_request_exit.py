"""`OnRequestExit`: on a signal or a word in a file, a training ends after its step with what it has learnt."""

import os
import signal

import numpy as np
import pytest

from parallel_lab.base.errors import DataFileError
from parallel_lab.train import LambdaCallback, OnRequestExit
from parallel_lab.train.checkpoint import load_checkpoint
from tests.train.runs import affine_model, batches


def steps_of(ask, model, **settings):
    """The numbers of the steps that were taken when `ask(step)` is called after each."""
    taken = []

    def after(context):
        taken.append(context.original_args().cur_step_num)
        ask(taken[-1])

    callbacks = [LambdaCallback(on_train_step_end=after), OnRequestExit(**settings)]
    model.train(2, batches(), callbacks=callbacks)
    return taken


def test_a_signal_ends_the_training_after_its_step_and_saves_it(tmp_path):
    model, before = affine_model(), signal.getsignal(signal.SIGUSR1)
    ask = lambda step: step == 3 and os.kill(os.getpid(), signal.SIGUSR1)  # noqa: E731
    settings = {"file_name": "net", "directory": tmp_path, "sig": int(signal.SIGUSR1)}
    assert steps_of(ask, model, **settings) == [1, 2, 3]
    saved = load_checkpoint(str(tmp_path / "net_train.ckpt"))
    for parameter in model.train_network.trainable_params():
        np.testing.assert_array_equal(saved[parameter.name].asnumpy(), parameter.asnumpy())
    assert saved["step_num"] == 3
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize(("text", "steps"), [('{"GracefulExit": 1}', 2), ('{"GracefulExit": 0}', 8), ("{}", 8)])
def test_a_file_that_says_so_ends_the_training(text, steps, tmp_path):
    told = tmp_path / "exit.json"
    ask = lambda step: step == 2 and told.write_text(text)  # noqa: E731
    taken = steps_of(ask, affine_model(), config_file=str(told), directory=tmp_path, save_ckpt=False)
    assert taken == list(range(1, steps + 1))
    assert not list(tmp_path.glob("*.ckpt"))


def test_a_file_that_is_not_a_json_object_is_refused(tmp_path):
    (tmp_path / "exit.json").write_text("[1")
    with pytest.raises(DataFileError, match=r"exit.*invalid JSON"):
        steps_of(lambda step: None, affine_model(), config_file=str(tmp_path / "exit.json"))
