"""What surrounds the PyTorch and JAX texts of the lessons ("the same in ..."), so that they run as they stand.

`blocks(lesson)` reads the texts from the last markdown cell of a lesson's notebook. PROGRAMS holds for each lesson
and target a preamble, which makes what the text takes as given (a matrix of ranks, small arrays, layers), and an end,
which compares what the text made with the undivided computation. run_lesson_programs.py runs the three as one program.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = (*(f"{number:02}" for number in range(1, 13)), "14", "15", "16", "17")
TARGETS = ("MindSpore", "PyTorch", "JAX")


def blocks(lesson: str) -> dict[str, str]:
    """The Python below the summary of each target; of several blocks below one summary the whole, in their order."""
    (path,) = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    (same,) = (
        text for text in map("".join, (c["source"] for c in cells)) if text.startswith("## The same in MindSpore")
    )
    found = {}
    for text in re.findall(r"<details>(.*?)</details>", same, flags=re.DOTALL):
        title = re.search(r"<summary><b>(\w+)</b>", text)
        code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        if title and code:
            found[title[1]] = "\n".join(code)
    return found


# Before every text. torchrun starts a process per rank with gloo; JAX has 8 host devices in one process.
BEGIN = {
    "PyTorch": """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

def same(got, wanted):
    torch.testing.assert_close(got.full_tensor() if hasattr(got, "full_tensor") else got, wanted, rtol=1e-4, atol=1e-5)
""",
    "JAX": """
import jax
import jax.numpy as jnp
import numpy as np

def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

def same(got, wanted):
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-5)
""",
}

# An undivided layer trained one step, and the rows of this rank: lessons 03, 04 and 08.
TORCH_ROWS = """
from copy import deepcopy

def network():
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))

all_rows, all_labels, loss_fn = torch.randn(16, 6), torch.randn(16, 4), nn.MSELoss()
x, label = all_rows.chunk(world_size)[rank], all_labels.chunk(world_size)[rank]
model = network()
alone = deepcopy(model)
loss_fn(alone(all_rows), all_labels).backward()
"""
TORCH_GRADIENTS = """
for got, wanted in zip(model.parameters(), alone.parameters(), strict=True):
    same(got.grad, wanted.grad)
"""
# Auto: the compiler propagates layouts; the default of make_mesh, Explicit, wants one for each ambiguous result
JAX_LINE = 'mesh = jax.make_mesh((8,), ("{}",), axis_types=(jax.sharding.AxisType.Auto,))\n'
JAX_AXES = 'mesh = jax.make_mesh((2, 4), ("{}", "{}"), axis_types=(jax.sharding.AxisType.Auto,) * 2)\n'
JAX_ROWS = f"""
{JAX_LINE.format("data")}
x, label, params = normal(1, 16, 6), normal(2, 16, 4), {{"w": normal(3, 6, 4), "b": normal(4, 4)}}

def loss_fn(params, x, label):
    return ((x @ params["w"] + params["b"] - label) ** 2).mean()

wanted = jax.grad(loss_fn)(params, x, label)
"""
JAX_GRADIENTS = """
jax.tree.map(same, grads, wanted)
"""

# (lesson, target): ranks, preamble, end
PROGRAMS: dict[tuple[str, str], tuple[int, str, str]] = {
    ("01", "PyTorch"): (
        8,
        "w = torch.randn(32, 16)\nwhole = w.clone()\n",
        "same(w, whole)\nassert w.to_local().shape == (8, 16)\n",
    ),
    ("01", "JAX"): (
        8,
        "w = whole = normal(1, 32, 16)\n",
        "same(w, whole)\nassert {part.data.shape for part in w.addressable_shards} == {(8, 16)}\n",
    ),
    ("02", "PyTorch"): (
        4,
        "arrays = torch.randn(world_size, 12)\nx = arrays[rank].clone()\n",
        "same(part, arrays.sum(0).chunk(world_size)[rank])\nsame(whole, arrays.sum(0))\nsame(x, arrays.sum(0))\n",
    ),
    ("02", "JAX"): (
        8,
        JAX_LINE.format("ranks") + "x = normal(1, 8 * 16)\n",
        "wanted = x.reshape(8, 16).sum(0)\nsame(part, wanted)\nsame(whole, np.tile(wanted, 8))\nsame(total, wanted)\n",
    ),
    ("03", "PyTorch"): (4, TORCH_ROWS + "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n", TORCH_GRADIENTS),
    ("03", "JAX"): (8, JAX_ROWS, JAX_GRADIENTS + "same(loss, loss_fn(params, x, label))\n"),
    ("04", "PyTorch"): (4, TORCH_ROWS, TORCH_GRADIENTS),
    ("04", "JAX"): (8, JAX_ROWS, JAX_GRADIENTS),
    ("05", "PyTorch"): (
        8,
        "x, w = torch.randn(16, 32), torch.randn(32, 16)\nwanted = x @ w\n",
        "same(y, wanted)\nassert y.to_local().shape == (8, 16)\n",
    ),
    ("05", "JAX"): (8, "x, w = normal(1, 16, 32), normal(2, 32, 16)\nwanted = x @ w\n", "same(y, wanted)\n"),
    ("06", "PyTorch"): (
        4,
        """
from torch.distributed.tensor import Shard, distribute_tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))

mesh, net, x = init_device_mesh("cpu", (4,)), Net(), torch.randn(16, 6)
wanted, whole = net(x).detach(), torch.randn(8, 12)
rows = distribute_tensor(whole, mesh, [Shard(0)])
""",
        "same(net(x).detach(), wanted)\nsame(columns, whole)\nassert columns.to_local().shape == (8, 3)\n",
    ),
    ("06", "JAX"): (
        8,
        """
h = whole = normal(1, 8, 16)
mesh = jax.make_mesh((2, 2, 2), ("m", "n", "x"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
rows = jax.device_put(whole, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x", None)))
""",
        "same(h, whole)\nsame(columns, whole)\n",
    ),
    ("07", "PyTorch"): (
        4,
        """
model = nn.Linear(8, 3, bias=False)
whole_x, whole_w = torch.randn(6, 8), torch.randn(8, 5)
x = whole_x.chunk(4, dim=1)[rank].clone().requires_grad_()
w = whole_w.chunk(4, dim=0)[rank].clone().requires_grad_()
""",
        "same(y.detach(), whole_x @ whole_w)\ny.sum().backward()\n"
        "same(x.grad, 4 * torch.ones(6, 5) @ w.detach().T)  # the losses of four ranks, each of which has all of y\n",
    ),
    ("07", "JAX"): (
        8,
        JAX_AXES.format("m", "k") + "x, w = normal(1, 6, 8), normal(2, 8, 5)\n",
        "same(dx, np.ones((6, 5)) @ w.T)\nsame(dw, x.T @ np.ones((6, 5)))\n",
    ),
    ("08", "PyTorch"): (
        4,
        TORCH_ROWS + "torch.optim.Adam(alone.parameters(), lr=0.01).step()\nmodel1, model3 = model, deepcopy(model)\n",
        """
for net, optimizer in ((copies, optimizer1), (model3, optimizer3)):
    loss_fn(net(x), label).backward()
    optimizer.step()
    for got, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        same(got.detach(), wanted.detach())
""",
    ),
    ("08", "JAX"): (
        8,
        JAX_LINE.format("data")
        + """
x, label, w, velocity = normal(1, 16, 8), normal(2, 16, 4), normal(3, 8, 4), normal(4, 8, 4)

def loss_fn(w, x, label):
    return ((x @ w - label) ** 2).mean()

moved = 0.9 * velocity + jax.grad(loss_fn)(w, x, label)
wanted = w - 0.1 * moved
""",
        "same(w, wanted)\nsame(velocity, moved)\n"
        "assert {part.data.shape for part in velocity.addressable_shards} == {(1, 4)}\n",
    ),
    ("09", "PyTorch"): (
        4,
        """
layers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)]
x, y, losses, device, loss_fn = torch.randn(16, 6), torch.randn(16, 6), [], torch.device("cpu"), nn.MSELoss()
my_part_of_the_network = layers[rank]
whole = nn.Sequential(*layers)
""",
        """
if rank == 3:
    same(torch.stack(losses).mean().detach(), loss_fn(whole(x), y).detach())
""",
    ),
    ("09", "JAX"): (
        8,
        JAX_LINE.format("stage") + "w, x = normal(1, 8, 6, 6) / 2, normal(2, 5, 3, 6)\n",
        """
def alone(w, x):
    for layer in w:
        x = jnp.tanh(x @ layer)
    return x

same(y, alone(w, x))
same(jax.grad(lambda w: run(w, x)[-len(x) :].sum())(w), jax.grad(lambda w: alone(w, x).sum())(w))
""",
    ),
    ("10", "PyTorch"): (
        1,
        """
layers = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(8)))
layer, x = layers[0], torch.randn(4, 6, requires_grad=True)
given, wanted = x, layer(layers(layer(x)))
(wanted_gradient,) = torch.autograd.grad(wanted.sum(), x)
""",
        "same(x.detach(), wanted.detach())\nsame(torch.autograd.grad(x.sum(), given)[0], wanted_gradient)\n",
    ),
    ("10", "JAX"): (
        1,
        """
def layer(w, x):
    return jnp.tanh(x @ w)

alone, w, x = layer, normal(1, 6, 6), normal(2, 4, 6)
given = x
""",
        "same(x, alone(w, given))\n"
        "same(jax.grad(lambda w: layer(w, given).sum())(w), jax.grad(lambda w: alone(w, given).sum())(w))\n",
    ),
    ("11", "PyTorch"): (
        8,
        """
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2, 4))
x, w2 = torch.randn(16, 6), torch.randn(6, 8)
wanted = x @ w2
x = distribute_tensor(x, mesh, [Shard(0), Replicate()])
""",
        "same(y, wanted)\nassert y.to_local().shape == (8, 2)\n",
    ),
    ("11", "JAX"): (
        8,
        JAX_AXES.format("m", "n")
        + "x, w1, w2, w3 = normal(1, 8, 6), normal(2, 6, 8), normal(3, 8, 8), normal(4, 8, 4)\n",
        "same(chain(x, w1, w2, w3), x @ w1 @ w2 @ w3)\n",
    ),
    ("12", "PyTorch"): (
        8,
        """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(6, 8), "fc2": nn.Linear(8, 6)})

    def forward(self, x):
        return self.mlp["fc2"](torch.relu(self.mlp["fc1"](x)))

block, x = Block(), torch.randn(4, 6)
wanted = block(x).detach()
""",
        "same(block(x).detach(), wanted)\n",
    ),
    ("12", "JAX"): (
        8,
        """
def block(weights, x):
    return jax.nn.relu(x @ weights["fc1"]) @ weights["fc2"]

weights, x = {"fc1": normal(1, 6, 8), "fc2": normal(2, 8, 6)}, normal(3, 4, 6)
wanted = jax.grad(lambda weights: block(weights, x).sum())(weights)
""",
        """
placed = {name: jax.device_put(w, jax.sharding.NamedSharding(axes, layouts[name])) for name, w in weights.items()}
jax.tree.map(same, jax.jit(jax.grad(lambda weights: block(weights, x).sum()))(placed), wanted)
""",
    ),
    ("14", "PyTorch"): (
        4,
        """
class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(self.norm(x))))

mesh, mlp, x = init_device_mesh("cpu", (4,)), MLP(), torch.randn(2, 8, 16)
wanted = mlp(x).detach().chunk(world_size, dim=1)[rank]
""",
        "result = mlp(x.chunk(world_size, dim=1)[rank]).detach()\nassert result.shape == (2, 2, 16)\n"
        "same(result, wanted)\n",
    ),
    ("14", "JAX"): (
        8,
        JAX_LINE.format("tp")
        + """
weights, x = {"fc1": normal(1, 16, 64), "fc2": normal(2, 64, 16)}, normal(3, 2, 8, 16)

def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

wanted = x + jax.nn.relu(norm(x) @ weights["fc1"]) @ weights["fc2"]
""",
        "same(result, wanted)\nassert {part.data.shape for part in result.addressable_shards} == {(2, 1, 16)}\n",
    ),
    ("15", "PyTorch"): (
        4,
        """
q, k, v = torch.randn(3, 16, 8, 4).unbind()
wanted = nn.functional.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), is_causal=True)
q, k, v = (x.chunk(world_size)[rank].clone() for x in (q, k, v))
""",
        "same(attended, wanted.transpose(0, 1).chunk(world_size)[rank])\n",
    ),
    ("15", "JAX"): (
        8,
        JAX_LINE.format("cp") + "q, k, v = normal(1, 3, 32, 4)\n",
        """
scores = jnp.where(jnp.tril(jnp.ones((32, 32), bool)), q @ k.T, -jnp.inf)
same(attended, jax.nn.softmax(scores) @ v)
""",
    ),
    ("16", "PyTorch"): (
        4,
        """
k, everybody = 2, [nn.Linear(6, 6) for _ in range(8)]
all_x, all_weights = torch.randn(16, 6), torch.rand(16, k)
all_experts = torch.stack([torch.randperm(8)[:k] for _ in range(16)])
wanted = sum(
    torch.stack([everybody[e](t) for e, t in zip(all_experts[:, j].tolist(), all_x)]) * all_weights[:, j, None]
    for j in range(k)
).detach().chunk(world_size)[rank]
mine = everybody[2 * rank : 2 * rank + 2]
x, weights, experts = (each.chunk(world_size)[rank] for each in (all_x, all_weights, all_experts))
torch.set_grad_enabled(False)
""",
        "same(y, wanted)\n",
    ),
    ("16", "JAX"): (
        8,
        JAX_LINE.format("ep")
        + """
room, x, gate, up = 4, normal(1, 32, 6), normal(2, 6, 16), normal(3, 16, 6, 6)
wanted = jnp.einsum("th,thg->tg", x, up[jnp.argmax(x @ gate, axis=1)])
""",
        "same(y, wanted)\n",
    ),
    ("17", "PyTorch"): (
        4,
        """
x, y, w1, w2 = torch.randn(8, 6), torch.randn(8, 4), torch.randn(6, 8), torch.randn(8, 4)
one = [w.clone().requires_grad_() for w in (w1, w2)]
wanted = ((torch.relu(x @ one[0]) @ one[1] - y) ** 2).mean()
wanted.backward()
""",
        """
same(loss.detach(), wanted.detach())
for gradient, w in zip(gradients, one, strict=True):
    same(gradient, w.grad)
assert [len(sent) for sent in (w1.placements, w2.placements)] == [2, 2] and gradients[0].placements == w1.placements
""",
    ),
    ("17", "JAX"): (
        8,
        """
x, y, w1, w2 = normal(1, 8, 6), normal(2, 8, 4), normal(3, 6, 8), normal(4, 8, 4)
one = jax.value_and_grad(lambda w1, w2: ((jax.nn.relu(x @ w1) @ w2 - y) ** 2).mean(), argnums=(0, 1))(w1, w2)
whole = x, y
""",
        """
same(loss, one[0])
for gradient, w in zip(gradients, one[1], strict=True):
    same(gradient, w)
""",
    ),
}
