"""MindSpore programs that are read: their messages are those that ranks sent, or that the same network compiles to."""

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import parallel_lab as pl
from parallel_lab.base.hooks import current_world
from parallel_lab.lab.explain import mindspore_front
from tests.crossed import each_of

RECORDED = Path(__file__).parents[1] / "recorded"
SCRIPTS = Path(__file__).parents[1] / "mindspore" / "scripts"
SENT = json.loads((RECORDED / "mindspore_messages.json").read_text())
HEAD = """import numpy as np
import parallel_lab.mindspore as ms
from parallel_lab.mindspore import Parameter, Tensor, nn, ops

"""


def in_rings(m):
    """Bytes that a rank sends in a ring of p (Thakur et al. 2005): 2 (p - 1) / p of what it gives, for a sum."""
    p = len(m.group)
    turns = {
        "all_reduce": 2 * (p - 1) / p,
        "all_gather": p - 1,
        "reduce_scatter": (p - 1) / p,
        "recv": 0,
        "all_to_all": (p - 1) / p,
    }
    return m.size_bytes * turns.get(m.kind, 1)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", SENT)
def test_messages_of_a_program_are_those_that_its_ranks_sent(name):
    text = (RECORDED / "programs" / f"{name}.txt").read_text()
    found = pl.explain(text)
    assert found.unread == []
    lines = {line for *_, line in SENT[name]}
    ours = Counter((m.kind, m.group, in_rings(m), m.line if m.line in lines else 0) for m in found.messages)
    assert ours == Counter((kind, tuple(group), size, line) for kind, group, size, line in SENT[name])
    assert all(m.reason for m in found.messages)


# ---- programs that are drawn ----


def drawn(rng):
    """A network of products and what lies between them, with strategies that fit 8 devices, in training."""
    rows, width = rng.choice([16, 32]), rng.choice([16, 32])
    made, used, size = [], [], width

    def cuts(*dims):
        left, found = 8, []
        for n in dims:
            found.append(rng.choice([c for c in (1, 2, 4, 8) if c <= left and n % c == 0]))
            left //= found[-1]
        return found

    for i in range(rng.randint(1, 4)):
        kind = rng.choice(["matmul", "matmul", "relu", "add", "softmax", "mul", "transposed", "norm"])
        if kind in ("matmul", "transposed"):
            out = rng.choice([8, 16, 24])
            m, k, n = cuts(rows, size, out)
            turned = kind == "transposed"
            shape, how = ((out, size), (n, k)) if turned else ((size, out), (k, n))
            made.append(f"self.w{i} = Parameter(Tensor(np.ones({shape}), ms.float32), name='w{i}')")
            op = f"ops.MatMul(transpose_b={turned})"
            made.append(f"self.op{i} = {op}" + (f".shard((({m}, {k}), {how}))" if rng.random() < 0.8 else ""))
            used.append(f"x = self.op{i}(x, self.w{i})")
            size = out
        elif kind in ("add", "mul"):
            m, n = cuts(rows, size)
            made.append(f"self.b{i} = Parameter(Tensor(np.ones({size}), ms.float32), name='b{i}')")
            made.append(f"self.op{i} = ops.{kind.title()}().shard((({m}, {n}), ({n},)))")
            used.append(f"x = self.op{i}(x, self.b{i}) * 2")
        elif kind == "norm":
            made.append(f"self.op{i} = nn.LayerNorm(({size},))")
            used.append(f"x = self.op{i}(x)")
        else:
            m, n = cuts(rows, 1 if kind == "softmax" else size)
            made.append(f"self.op{i} = ops.{'Softmax' if kind == 'softmax' else 'ReLU'}().shard((({m}, {n}),))")
            used.append(f"x = self.op{i}(x)")
    settings = {"parallel_mode": "semi_auto_parallel", "device_num": 8, "dataset_strategy": "full_batch"}
    if rng.random() < 0.3:
        settings |= {"parallel_mode": "auto_parallel", "search_mode": "sharding_propagation"}
    settings |= {"gradients_mean": True} if rng.random() < 0.5 else {"enable_parallel_optimizer": True}
    body = "\n".join(f"        {line}" for line in made)
    steps = "\n".join(f"        {line}" for line in used)
    net = "class Net(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
    net += "        self.w = Parameter(Tensor([1.0]))\n"
    net += f"{body}\n\n    def construct(self, x):\n        x = x * self.w\n{steps}\n        return x\n"
    text = f"{HEAD}ms.set_auto_parallel_context(**{settings})\n\n\n{net}\n\nnet = Net()\n"
    text += f"x, y = Tensor(np.ones(({rows}, {width})), ms.float32), Tensor(np.ones(({rows}, {size})), ms.float32)\n"
    text += "loss, opt = nn.MSELoss(), nn.Momentum(net.trainable_params(), 0.1, 0.9)\n"
    return text, "step = nn.TrainOneStepCell(nn.WithLossCell(net, loss), opt)\nstep(x, y)\n"


@pytest.mark.quick(6)
@pytest.mark.parametrize("seed", range(100))
def test_a_drawn_program_sends_what_the_same_network_compiles_to(seed):
    text, training = drawn(random.Random(seed))
    scope = {}
    try:
        exec(text, scope)  # the network itself, by the facade
        plan = pl.compile(scope["net"], scope["x"], scope["y"], loss=scope["loss"], optimizer=scope["opt"])
        wanted = [m for m in plan.to_dict(rank=0)["comm"] if m["group"]]
    except pl.StrategyError as error:
        wanted, why = None, str(error).partition(":")[0].split()[0]
    finally:
        pl.reset_auto_parallel_context()
    found = pl.explain(text + training)
    if wanted is None:  # a propagation that does not meet
        assert found.messages == [] and any(why in reason for _, reason in found.unread), text
        return
    assert found.unread == [], text
    assert [
        (m.kind, list(m.group), m.size_bytes, list(m.shape), m.dtype, m.phase, m.reduce) for m in found.messages
    ] == [
        (m["kind"], m["group"], m["bytes"], m["in_shape"], m["dtype"], m["phase"], m["reduce"] or "") for m in wanted
    ], text


# ---- forms of programs ----

NET = (
    HEAD
    + """ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch", device_num=8)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((32, 16), np.float32)), name="w")
        self.product = ops.MatMul().shard(((2, 4), (4, 1)))
    def construct(self, x):
        return self.product(x, self.w)
net = Net()
x = Tensor(np.ones((16, 32), np.float32))
"""
)


def test_the_scripts_of_the_tutorials_are_read():
    found = pl.explain(SCRIPTS / "quickstart.py")
    assert found.unread == [] and found.ranks == 8
    # ((2, 4), (4, 1)) of (16, 32) x (32, 16), the batch being a rank's (2, 32): a sum over 4 ranks of (8, 16)
    sums = [m for m in found.messages if m.kind == "all_reduce" and m.phase == "forward" and m.line == 47]
    assert next((m.shape, m.group) for m in sums if len(m.shape) == 2) == ((8, 16), (0, 1, 2, 3))
    found = pl.explain(SCRIPTS / "comm_fusion.py")
    assert found.unread == []
    resnet = (SCRIPTS / "resnet.py").read_text() + (SCRIPTS / "resnet50_distributed_training.py").read_text()
    assert pl.explain(resnet.replace("from resnet import", "# ")).unread == []
    interfaces = pl.explain(SCRIPTS / "interfaces.py")
    assert any("has two layouts" in reason and "mul1" in reason for _, reason in interfaces.unread)


def test_of_a_network_that_is_not_called_the_strategies_are_listed():
    found = pl.explain(HEAD + "matmul = ops.MatMul().shard(((2, 4), (4, 1)))\n")
    assert [(row.line, row.what, row.layouts) for row in found.rows] == [(5, "MatMul.shard", "((2, 4), (4, 1))")]


def test_a_search_says_why_each_operator_is_split_as_it_is():
    search = '"auto_parallel", search_mode="recursive_programming"'
    found = pl.explain(NET.replace('"semi_auto_parallel"', search).replace(".shard(((2, 4), (4, 1)))", "") + "net(x)\n")
    row = next(row for row in found.rows if row.what.startswith("MatMul"))
    assert row.line == 12 and "halved" in row.reason and row.layouts.startswith("((")


def test_the_number_of_ranks_is_the_programs_unless_it_is_given():
    assert pl.explain(NET.replace("device_num=8", "device_num=16") + "net(x)\n").ranks == 16
    found = pl.explain(NET + "net(x)\n", devices=16)
    assert found.ranks == 16 and "device_num=8, and 16 ranks" in found.unread[0][1]


def test_settings_of_the_session_are_neither_read_nor_changed():
    pl.set_auto_parallel_context(device_num=4, parallel_mode="data_parallel", gradients_mean=True)
    try:
        found = pl.explain(
            NET + "ms.set_context(mode=ms.PYNATIVE_MODE)\nms.set_algo_parameters(fully_use_devices=False)"
        )
        assert found.ranks == 8
        assert (pl.get_auto_parallel_context("device_num"), pl.get_auto_parallel_context("gradients_mean")) == (4, True)
        assert pl.get_algo_parameters("fully_use_devices") and pl.get_context("mode") == pl.GRAPH_MODE
        assert pl.get_auto_parallel_context("parallel_mode") == "data_parallel"
    finally:
        pl.reset_auto_parallel_context()


# ---- nothing runs, everything ends, and what was not understood has its line ----


@each_of(
    ("line", "reason"),
    ("net.product.shard(((2, 4), (2, 1)))\nnet(x)", "splits 'k'"),
    ("net.product.shard(((2, 3), (3, 1)))\nnet(x)", "3 ways"),
    ("nn.Nothing()", "Nothing"),
    ("net(x).nothing()", "nothing"),
    ("net(x, x)", "construct"),
    ("net(Tensor(np.ones((16, 31), np.float32)))", "31"),
    ("net(nobody)", "nobody"),
    ("ms.set_auto_parallel_context(parallel_mode='auto_parallel')\nms.set_context(mode=1)\nnet(x)", "PyNative"),
    ("Net.construct = print", "construct = ..."),
    ("ms.load_checkpoint('/etc/passwd')", "load_checkpoint"),
    ("ms.set_auto_parallel_context(strategy_ckpt_load_file='/etc/passwd')", "a file"),
    ("ms.set_auto_parallel_context(parallel_mode='some')", "'some'"),
    ("if net(x).sum() > 3: y = net(x)", "neither branch"),
    ("net.__class__.__subclasses__()", "__class__"),
    ("net._front.reader", "_front"),
    ("getattr(net, '__class__')", "__class__"),
    ("net.construct.__globals__['os']", "__globals__"),
    ("ms.common.os.system('touch mark')", "os"),
    ("ops.Custom('./a.so:f', 1, 2, 'aot')", "Custom"),
    ("nn.Cell.__init__.__globals__.clear()", "__globals__"),
    ("ms.parallel.auto_parallel.AutoParallel(net).load_param_strategy_file('a.json')", "strategies of a file"),
    ("ms.parallel.auto_parallel.AutoParallel(net).load_operator_strategy_file('a.json')", "strategies of a file"),
    ("getattr(ops.MatMul, '__init__').__builtins__.pop('zip')", "__builtins__"),
    ("ms._modules.importlib.import_module('os')", "_modules"),
    ("x.asnumpy().tofile('mark')", "tofile"),
    ("np.load('a', allow_pickle=True)", "numpy.load"),
    ("Tensor(np.arange(10 ** 12))", "turns"),
    ("ops.zeros((10 ** 6, 10 ** 6))", "too large"),
    ("Parameter(Tensor(np.ones((10 ** 9, 10 ** 9))))", "shape"),
    ("nn.LSTM(8, 8, num_layers=10 ** 9)", "An int from 1 to 10000"),
    ("a = nn.ReLU()\nfor _ in range(60): a = nn.SequentialCell(a, a)\na(x)", "s: the rest is not read"),
    ("class A(nn.Cell):\n    def construct(self, x):\n        return self(x)\nA()(x)", "nested deeper"),
    ("class A(nn.Cell):\n    def construct(self, x):\n        while True: x = x + 1\nA()(x)", "the rest is not read"),
)
def test_what_is_wrong_hostile_or_unknown_is_reported_by_line(line, reason, monkeypatch, tmp_path):
    monkeypatch.setattr(mindspore_front, "SECONDS", 3)
    monkeypatch.chdir(tmp_path)
    begun = time.monotonic()
    found = pl.explain(NET + line + "\n")
    assert any(reason in why and at > 8 for at, why in found.unread), found.unread
    assert "".join(found.text()) and time.monotonic() - begun < 60  # seconds: a bound, not a measurement
    assert not list(tmp_path.iterdir())
    assert current_world() is None and pl.get_auto_parallel_context("device_num") == 1


def test_a_stop_that_is_swallowed_comes_again():
    """Two come: Python takes a profile function away once it has raised, and this loop ran for ever then."""
    stops, end, before = 0, time.process_time() + 10, (sys.getprofile(), sys.gettrace())
    with mindspore_front.ended_after(0.1):
        while stops < 2 and time.process_time() < end:
            try:
                while time.process_time() < end:
                    Path("a")
            except Exception:
                stops += 1
    assert stops == 2 and (sys.getprofile(), sys.gettrace()) == before


class Closed:
    def __del__(self):
        """Called at a time nobody chose."""


def half_read():
    numbers = (number for number in range(2))
    next(numbers)
    return numbers


@each_of("made", Closed, half_read)
def test_a_stop_does_not_fall_into_what_is_thrown_away(made, monkeypatch):
    """An error there reaches nobody: Python writes it to the error output, and pytest makes a failure of it."""
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    with pytest.raises(mindspore_front.Stopped), mindspore_front.ended_after(0.05):
        kept = made()
        end = time.process_time() + 0.1
        while time.process_time() < end:
            sum(range(1000))
        del kept
        Path("a")
    assert lost == []


def test_a_program_writes_no_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GROUP_INFO_FILE", "group.pb")
    text = """ms.set_context(save_graphs=True, save_graphs_path="graphs")
ms.set_auto_parallel_context(strategy_ckpt_save_file="strategy.ckpt", group_ckpt_save_file="group.ckpt")
from mindspore.parallel.auto_parallel import AutoParallel
parallel = AutoParallel(net)
parallel.save_param_strategy_file("a.ckpt")
parallel.dataset_strategy("full_batch")
y = net(x) + parallel(x)
ms.save_checkpoint(net, "net.ckpt")
net.compile(x)
"""
    found = pl.explain(NET + text)
    assert found.unread == [] and not list(tmp_path.iterdir())
    assert [m.kind for m in found.messages if m.line == 12] == ["all_reduce", "all_gather"] * 3


@each_of(
    ("call", "kind", "shape", "reduce"),
    ("dist.all_reduce(x)", "all_reduce", (8, 6), "sum"),
    ("dist.all_reduce(x, ops.ReduceOp.MAX, async_op=True).wait()", "all_reduce", (8, 6), "max"),
    ("dist.all_gather_into_tensor(out, x)", "all_gather", (8, 6), ""),
    ("dist.all_gather([out] * dist.get_world_size(), x)", "all_gather", (8, 6), ""),
    ("dist.reduce_scatter_tensor(out, x, op='sum')", "reduce_scatter", (8, 6), "sum"),
    ("dist.all_to_all_single(out, x)", "all_to_all", (8, 6), ""),
    ("dist.broadcast(x, 0)", "broadcast", (8, 6), ""),
    ("dist.send(x, dst=1)", "send", (8, 6), ""),
    ("y, _ = comm.all_gather_into_tensor(x)\ncomm.all_reduce(y)", "all_reduce", (32, 6), "sum"),
    ("y, _ = comm.reduce_scatter_tensor(x)\ncomm.all_reduce(y)", "all_reduce", (2, 6), "sum"),
)
def test_messages_by_hand_outside_of_networks(call, kind, shape, reduce):
    start = """import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, ops
import mindspore.mint.distributed as dist
from mindspore.communication import comm_func as comm
dist.init_process_group()
x, out = Tensor(np.ones((8, 6), np.float32)), mint.zeros((2, 6))
"""
    found = pl.explain(f"{start}{call}\n", devices=4)
    last = found.messages[-1]
    assert (last.kind, last.shape, last.reduce, last.group) == (kind, shape, reduce, (0, 1, 2, 3))
    assert found.unread == [] and last.line == 7 + len(call.splitlines())


@each_of(
    ("call", "reason"),
    ("dist.all_reduce(x, group='some')", "some of the ranks"),
    ("dist.all_to_all_single(out, x, [1], [2])", "arguments"),
    ("dist.gather(x, dst=0)", "refused"),
)
def test_messages_by_hand_that_are_not_known_are_reported(call, reason):
    start = "import mindspore.mint.distributed as dist\nfrom mindspore import Tensor\ndist.init_process_group()\n"
    found = pl.explain(f"{start}x = out = Tensor([1.0])\n{call}\n", devices=4)
    assert found.messages == [] and found.unread[0][0] == 5 and reason in found.unread[0][1]
