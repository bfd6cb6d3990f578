"""A mistake of the printed programs ends a script with an error that names the line and what it should be."""

from __future__ import annotations

import pytest

from parallel_lab.mindspore._notes import explain
from tests.crossed import each_of
from tests.processes.launched import LAB, started

LIMIT_S = 120.0
IMPORTS = """
import numpy as np
import mindspore as ms
import mindspore.nn as nn
import mindspore.ops as ops
import mindspore.dataset as ds
from mindspore import Parameter, Tensor, context
from mindspore.communication import get_rank, init
from mindspore.train import CheckpointConfig, LossMonitor, Model, ModelCheckpoint
init()
context.set_auto_parallel_context(parallel_mode="data_parallel")
pair = np.ones((4, 6), np.float32), np.ones((4, 6), np.float32)
data = ds.GeneratorDataset(lambda: (pair for _ in range(2)), ["data", "label"])
net = nn.Dense(6, 6)
loss = nn.MSELoss()
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
"""
EQUAL = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((6,)), ms.float32), name="w")
        self.mul, self.equal = ops.Mul(), ops.Equal()
    def construct(self, x):
        return self.equal(self.mul(x, self.weight), self.weight)  # here
net = Net()
opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)
Model(net, loss_fn=loss, optimizer=opt).train(1, data)
"""
ORDER = """
def get_rows(batch_size, in_dim, out_dim, step_per_epoch):
    def generate():
        for _ in range(step_per_epoch):
            yield np.ones((batch_size, in_dim), np.float32), np.ones((batch_size, out_dim), np.float32)
    return generate
var_batch_size, var_step_per_epoch, var_in_dim, var_out_dim = 4, 2, 6, 6
rows = get_rows(var_batch_size, var_step_per_epoch, var_in_dim, var_out_dim)  # here
data = ds.GeneratorDataset(rows, ["data", "label"])
Model(net, loss_fn=loss, optimizer=opt).train(1, data)
"""
AUX = """
def forward_fn(x, y):
    return loss(net(x), y)
grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params(), has_aux=True)
grad_fn(*next(iter(data)))  # here
"""
LATER = """
grad_fn = ms.value_and_grad(forward_fn, None, net.trainable_params())  # here
def forward_fn(x, y):
    return loss(net(x), y)
"""
AUTO_PARALLEL = "add `from mindspore.parallel.auto_parallel import AutoParallel`"
FOLDER = "ModelCheckpoint(prefix='dp', directory='./rank_{}_ckpt'.format(get_rank))  # here"
FILE = "context.set_auto_parallel_context(strategy_ckpt_save_file='./rank_{}/strategy.txt'.format(get_rank))  # here"
TRAIN = "Model(net, loss_fn=loss, optimizer=opt).train"
# what is wrong: the script, then words of the error; the line that ends in "# here" is named
ALONE = {
    "from context import": (
        "from context import set_auto_parallel_context  # here",
        "Write `from mindspore.context import ...`",
    ),
    "no import of AutoParallel": (
        "from mindspore import nn\nnet = AutoParallel(nn.Dense(4, 4))  # here",
        f"'AutoParallel' was never imported: {AUTO_PARALLEL}",
    ),
    "no import at all": ("net = AutoParallel(1)  # here", AUTO_PARALLEL),
    "no import of os": (
        "import mindspore\nprint(os.getenv('DEVICE_ID'))  # here",
        "'os' was never imported: add `import os`",
    ),
}
BEHIND_IMPORTS = {
    "get_rank uncalled in a folder": (FOLDER, "the text of the function get_rank", "get_rank()"),
    "get_rank uncalled in a file": (FILE, "the text of the function get_rank", "format(get_rank())"),
    "Momentum of nothing": ("nn.Momentum()  # here", "Momentum(net.trainable_params(), learning_rate, momentum)"),
    "loss_fb": ("Model(net, loss_fb=loss, optimizer=opt)  # here", "'loss_fb'", "loss_fn="),
    "a loss among the callbacks": (
        f"{TRAIN}(1, data, callbacks=[LossMonitor(), loss])  # here",
        *("callbacks[1] is the MSELoss cell", "LossMonitor()", "loss_fn="),
    ),
    "no epochs": (f"{TRAIN}(train_dataset=data)  # here", "epoch is missing"),
    "Equal fed to a loss": (EQUAL, "truth values, made by Equal 'equal'", "Return the numbers themselves"),
    "arguments in another order": (
        ORDER,
        *("an input of shape (4, 2)", "the arguments stand in another order"),
        "Write get_rows(var_batch_size, var_in_dim, var_out_dim, var_step_per_epoch)",
    ),
    "has_aux with one value": (
        AUX,
        *("With has_aux=True a tuple", "Return loss, logits from the function, or omit has_aux"),
    ),
    "forward_fn before it is defined": (LATER, *("'forward_fn' is defined in line", "move the definition above line")),
    "a name that nothing defines": ("rows = CreateData()  # here", "defines or imports 'CreateData': define it there"),
}
MISTAKES = ALONE | {name: (IMPORTS + text, *words) for name, (text, *words) in BEHIND_IMPORTS.items()}


QUICK = ("from context import", "get_rank uncalled in a file", "Equal fed to a loss", "arguments in another order")


@pytest.mark.quick(0)
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "what", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in MISTAKES]
)
def test_a_printed_mistake_names_its_line_and_the_correction(tmp_path, what):
    text, *words = MISTAKES[what]
    (tmp_path / "script.py").write_text(text)
    line = next(number for number, one in enumerate(text.splitlines(), 1) if one.endswith("# here"))
    with started(*LAB, "run", "-n", "1", "--as-mindspore", "script.py", cwd=tmp_path) as run:
        code, output = run.wait(LIMIT_S)
        assert run.gone_after() is not None
    assert code == 1, output
    assert (
        f'script.py", line {line}, in' in output or f"script.py:{line})" in output or f"Line {line} calls" in output
    ), output
    for word in words:
        assert word in output, output
    assert not [path for path in tmp_path.iterdir() if "<" in path.name], (
        "a folder was made whose name is the text of a function"
    )


def error_of(code):
    try:
        exec(compile(code, "<typed>", "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_note_is_added_once():
    error = error_of("nn.Dense(1, 2)")
    explain(error)
    explain(error)
    assert error.__notes__ == ["'nn' was never imported: add `from mindspore import nn`."]


def test_a_note_is_added_to_what_led_to_the_error():
    error = error_of(
        "try:\n    AutoParallel(1)\nexcept NameError as one:\n    raise RuntimeError('in the script') from one\n"
    )
    explain(error)
    assert not hasattr(error, "__notes__") and "AutoParallel" in error.__cause__.__notes__[0]


@each_of("code", "def f(a, b): pass\nf(1)", "class Momentum:\n    def __init__(self, a): pass\n[].append()", "1 / 0")
def test_errors_that_say_it_themselves_get_no_note(code):
    error = error_of(code)
    explain(error)
    assert not hasattr(error, "__notes__")
