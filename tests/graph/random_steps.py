"""Random training steps: a random net (`random_nets.py`), whose gradients go through random operators before an
optimizer has them.

    drawn = draw_step(seed, devices=8)
    compare_step(drawn)              # losses, what the step returns, parameters, states and accumulators after two
                                     steps, against one device

The same seed always draws the same step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel_lab import Tensor, nn, ops, value_and_grad
from parallel_lab.graph.compiler import compile_program
from parallel_lab.graph.forms import fill_form
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.session import initial_values
from tests.graph.random_choices import Seeded, pick
from tests.graph.random_nets import Draw, Drawer, unless_refused

STEPS = 2


@dataclass
class DrawnStep:
    """A net, what is done to its gradients, and the optimizer (None: gradients are returned)."""

    draw: Draw
    parameters: list[Parameter]
    changes: list[Callable[[list[Any]], list[Any]]] = field(default_factory=list)
    kept: list[Parameter] = field(default_factory=list)
    optimizer: Any = None
    text: str = ""

    def step(self, *inputs: Any) -> Any:
        """Called with Tensors at once, or traced."""
        grad_fn = value_and_grad(self.draw.net, None, self.parameters)
        loss, grads = grad_fn(*inputs)
        grads = list(grads)
        for change in self.changes:
            grads = change(grads)
        if self.optimizer is not None:
            self.optimizer(grads)
        return {"loss": loss, "gradients": grads, "number": len(grads)}


OPTIMIZERS = (
    None,
    lambda p: nn.SGD(p, 0.05, momentum=0.5, weight_decay=0.1),
    lambda p: nn.Momentum(p, nn.ExponentialDecayLR(0.1, 0.5, 1), 0.9),
    lambda p: nn.Adam(p, 0.02),
    lambda p: nn.Lamb(p, 0.02, weight_decay=0.1),
    lambda p: nn.SGD(p, 0.1, clip=nn.GradientClip("global_norm", 0.5)),
)


class StepDrawer:
    def __init__(self, draw: Draw, choices: Seeded) -> None:
        self.draw, self.choices = draw, choices
        self.lines = [draw.text]
        parameters = [p for p in draw.net.get_parameters() if p.requires_grad]
        self.drawn = DrawnStep(draw, parameters)

    def number(self, low: float, high: float) -> float:
        return float(self.choices.floats(low, high, ()))

    def one(self, text: str, change: Callable[[Any, Parameter], Any]) -> None:
        """`change` of one gradient."""
        at = self.choices.below(len(self.drawn.parameters))
        p = self.drawn.parameters[at]
        self.lines.append(f"{p.name} {p.shape}: {text}")
        self.drawn.changes.append(lambda grads: [change(g, p) if i == at else g for i, g in enumerate(grads)])

    # ---- what is done to gradients ----

    def scale(self):
        c = self.number(-2, 2)
        self.one(f"times {c}", lambda g, p: g * c)

    def decay(self):
        c = self.number(0, 0.5)
        self.one(f"plus {c} of the parameter", lambda g, p: g + p * c)

    def clip_norm(self):
        c = self.number(0.1, 2)
        self.one(f"norm at most {c}", lambda g, p: g / ops.maximum(ops.sqrt(ops.reduce_sum(ops.square(g))) / c, 1.0))

    def bend(self):
        self.one("tanh", lambda g, p: ops.tanh(g))

    def centre(self):
        def change(g, p):
            return g - ops.reduce_mean(g, len(p.shape) - 1, keep_dims=True) if p.shape else g

        self.one("minus the mean over the last dim", change)

    def largest(self):
        self.one("over the largest", lambda g, p: g / (ops.reduce_max(ops.abs(g)) + 1.0))

    def reshape(self):
        c = self.number(0.5, 1.5)
        self.one(f"reshaped, times {c}, and back", lambda g, p: ops.reshape(ops.reshape(g, (-1,)) * c, p.shape))

    def transpose(self):
        c = self.number(0.5, 1.5)

        def change(g, p):
            perm = tuple(reversed(range(len(p.shape))))
            return ops.transpose(ops.transpose(g, perm) * c, perm) if perm else g

        self.one(f"transposed, times {c}, and back", change)

    def softmax(self):
        def change(g, p):
            return g * ops.softmax(p, len(p.shape) - 1) if p.shape else g

        self.one("times softmax of the parameter", change)

    def product(self):
        def change(g, p):
            return ops.matmul(ops.matmul(g, g, transpose_b=True), g) if len(p.shape) == 2 else g

        self.one("g g^T g", change)

    def accumulate(self):
        at = self.choices.below(len(self.drawn.parameters))
        p = self.drawn.parameters[at]
        if any(k.name == f"kept.{p.name}" for k in self.drawn.kept):
            return
        kept = Parameter(np.zeros(p.shape), name=f"kept.{p.name}", requires_grad=False)
        self.drawn.kept.append(kept)
        again = self.choices.chance(0.5)
        self.lines.append(f"{p.name} {p.shape}: accumulated in {kept.name}, {'read again' if again else 'kept'}")

        def change(grads):
            ops.assign(kept, kept * 0.5 + grads[at])
            return [kept * 1.0 if again and i == at else g for i, g in enumerate(grads)]

        self.drawn.changes.append(change)

    def together(self):
        c = self.number(0.2, 2)
        self.lines.append(f"norm of all at most {c}")

        def change(grads):
            total = ops.reduce_sum(ops.square(grads[0]))
            for g in grads[1:]:
                total = total + ops.reduce_sum(ops.square(g))
            norm = ops.sqrt(total)
            return [g * c / ops.maximum(norm, c) for g in grads]

        self.drawn.changes.append(change)

    def mixed(self):
        shapes = [p.shape for p in self.drawn.parameters]
        pairs = [(i, j) for i, j in itertools.permutations(range(len(shapes)), 2) if shapes[i] == shapes[j]]
        if not pairs:
            return
        i, j = pick(self.choices, pairs)
        self.lines.append(f"{self.drawn.parameters[i].name} plus a part of {self.drawn.parameters[j].name}")
        self.drawn.changes.append(lambda grads: [g + grads[j] * 0.3 if k == i else g for k, g in enumerate(grads)])

    def drawn_step(self) -> DrawnStep:
        kinds = (self.scale, self.decay, self.clip_norm, self.bend, self.centre, self.largest, self.reshape)
        kinds += (self.transpose,)
        kinds += (self.softmax, self.product, self.accumulate, self.accumulate, self.together, self.mixed)
        for _ in range(1 + self.choices.below(5)):
            pick(self.choices, kinds)()
        make = pick(self.choices, OPTIMIZERS)
        self.drawn.optimizer = None if make is None else make(self.drawn.parameters)
        self.lines.append(f"optimizer {self.drawn.optimizer}")
        self.drawn.text = "\n".join(self.lines)
        return self.drawn


def draw_step(seed: int, device_num: int) -> DrawnStep:
    """The step number `seed` for `device_num` ranks."""
    choices = Seeded(seed)
    draw = Drawer(choices, device_num).draw()
    return StepDrawer(draw, choices).drawn_step()


def compare_step(drawn: DrawnStep, bound: float = 1e-9) -> bool:
    """Compare a drawn step on its simulated ranks with one device; False if its strategies were refused.

    bound  largest difference, relative to the largest element (at least 1); larger than that of one forward and
           backward (1e-10), because an adaptive optimizer divides by the size of gradients that may be small
    """
    draw, optimizer = drawn.draw, drawn.optimizer
    made = unless_refused(compile_program, draw, drawn.step, parallel_mode="semi_auto_parallel")
    if made is None:
        return False
    plan = made.plan
    simulator = Simulator(plan, initial_values(plan, made.parameters, optimizer if plan.states else None))
    for number in range(STEPS):
        for state in plan.states if optimizer is not None else ():
            if not state.parameter and state.kind == "learning_rate":  # a Session gives the rates of a schedule
                rate = np.asarray(optimizer.rates(number)[state.kind], plan.value(state.name).dtype)
                for env in simulator.envs:
                    env[state.name] = rate
        simulator.run_step(*draw.inputs, step=number)
        outputs = [simulator.full(name) for name in plan.outputs]
        found = fill_form(made.form, outputs)
        one = drawn.step(*(Tensor(x) for x in draw.inputs))
        assert found["number"] == one["number"]
        check(f"loss of step {number}", found["loss"], one["loss"], bound)
        for p, a, b in zip(drawn.parameters, found["gradients"], one["gradients"], strict=True):
            check(f"gradient of {p.name} in step {number}", a, b, bound)
    changed = {target for target, _ in (*plan.assignments, *plan.forward_assignments)}
    for p in (*drawn.parameters, *drawn.kept):
        if p.name in changed:
            check(f"{p.name} afterwards", simulator.full(p.name), p, bound)
    assert not drawn.kept or all(k.name in changed for k in drawn.kept)
    assert optimizer is None or {p.name for p in drawn.parameters} <= changed
    for state in plan.states:
        if state.parameter:
            want = optimizer.states[state.parameter][state.kind]
            check(f"{state.name} afterwards", simulator.full(state.name), want, bound)
    return True


def check(what: str, got: Any, want: Any, bound: float) -> None:
    got, want = np.asarray(got), np.asarray(want.asnumpy() if isinstance(want, Tensor) else want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, one device {want.shape}"
    if want.size:
        far = np.abs(got - want).max() / max(1.0, np.abs(want).max())
        assert far <= bound, f"{what} is {far:.3g} off\n{got}\none device\n{want}"
