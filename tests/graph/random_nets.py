"""Random networks: programs of 3-10 operators with random legal strategies, and their comparison with one device.

    draw = draw_net(seed, devices=8)
    compare(draw)                        # loss, every forward value, every gradient against the eager tape

The same seed always draws the same net, so a failing one can be had again from its number. The operators here are those
of a multilayer perceptron; `random_programs.py` draws from all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_lab import StrategyError, Tensor, compile, nn, ops
from parallel_lab.base.hooks import current_tracer
from parallel_lab.graph.passes import PASSES
from parallel_lab.layout.named_layout import Layout
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.ops.machine.legal_strategies import legal_strategies
from parallel_lab.run.simulator import Simulator
from tests.graph.random_choices import Choices, Seeded, pick

DIMS = (1, 2, 3, 4, 6, 8, 12, 16)
UNARY = ("ReLU", "GeLU", "Tanh", "Sigmoid", "Square", "Neg", "Exp", "Abs")
BINARY = ("Add", "Mul", "Sub", "Maximum", "Minimum")
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")


@dataclass
class Step:
    """One call; `operands`: Refs, Parameters, Tensors and plain arguments in order. It makes one or several values."""

    call: Any
    operands: tuple[Any, ...]


@dataclass(frozen=True)
class Ref:
    """The value number `number`, counted over all steps; -1, -2, ...: the inputs."""

    number: int


TRAINING_STEP = object()  # as an operand: how many training steps were taken before


class Program(nn.Cell):
    """Runs its steps and returns the last value. `seen` are the values of the last run; `names` what they are called in
    the last trace; `together` those of each operator with several results.

    training_step  the number of the step outside a trace
    """

    def __init__(self, steps, parameters, training_step=0):
        super().__init__()
        self.steps, self.seen, self.names, self.training_step = steps, [], [], training_step
        self.together = []
        for parameter in parameters:
            self.insert_param_to_cell(parameter.name, parameter)

    def construct(self, *inputs):
        traced = current_tracer.get() is not None
        values = []

        def given(operand):
            if operand is TRAINING_STEP:
                return ops.training_step() if traced else Tensor(np.int64(self.training_step))
            if isinstance(operand, Ref):
                return values[operand.number] if operand.number >= 0 else inputs[-1 - operand.number]
            return operand

        for step in self.steps:
            made = step.call(*map(given, step.operands))
            values += made if isinstance(made, tuple) else (made,)
            if traced and isinstance(made, tuple):
                self.together.append(tuple(v.name for v in made))
        if traced:
            self.names = [v.name for v in values]
        else:
            self.seen = values
        return values[-1]


@dataclass
class Draw:
    """A drawn net with everything needed to compile it."""

    seed: int
    net: Program
    inputs: tuple[np.ndarray, ...]
    dataset_strategy: Any
    device_num: int
    alltoall: bool
    text: str
    training_step: int = 0


class Drawer:
    """Draws one program, operator by operator."""

    def __init__(self, choices: Choices, device_num: int) -> None:
        self.choices = choices
        self.device_num = device_num
        self.steps: list[Step] = []
        self.shapes: list[tuple[int, ...]] = []
        self.bits: set[int] = set()
        self.parameters: list[Parameter] = []
        # parameters that a step of the program changes: outside a trace at once, in a plan at its end
        self.running: set[int] = set()
        self.lines: list[str] = []
        self.inputs: list[np.ndarray] = []

    # ---- small draws ----

    def pick(self, options):
        return pick(self.choices, options)

    def chance(self, probability):
        return self.choices.chance(probability)

    def shape(self, ndim):
        return tuple(self.pick(DIMS) for _ in range(ndim))

    def parameter(self, shape):
        old = [p for p in self.parameters if p.shape == shape and id(p) not in self.running]
        if old and self.chance(0.3):
            return self.pick(old)
        made = Parameter(
            self.choices.floats(-1, 1, shape), name=f"p{len(self.parameters)}", requires_grad=not self.chance(0.1)
        )
        self.parameters.append(made)
        return made

    def shape_of(self, ref):
        return self.shapes[ref.number] if ref.number >= 0 else self.inputs[-1 - ref.number].shape

    def value(self, ndim=None):
        """A value to go on from: mostly the last one."""
        refs = [Ref(i) for i in range(len(self.shapes)) if i not in self.bits] + [Ref(-1)]
        if ndim is not None:
            refs = [r for r in refs if len(self.shape_of(r)) == ndim]
        if not refs:
            return None
        last = Ref(len(self.shapes) - 1) if self.shapes else Ref(-1)
        return last if last in refs and self.chance(0.65) else self.pick(refs)

    # ---- operators ----

    def add(self, name, *operands, attrs=None, shapes, extra=None):
        """Append operator `name`; `shapes`: of its tensor operands, `extra`: arguments that are no tensors."""
        primitive = getattr(ops, name)(**(attrs or {}))
        op = primitive.op
        known = {**op.defaults, **op.options, **(attrs or {}), **(extra or {})}
        chosen = None
        if not op.view and self.chance(0.8):
            chosen = self.pick(legal_strategies(op, shapes, known, self.device_num))
            primitive.shard(chosen)
        self.steps.append(Step(primitive, operands))
        shape = op.infer(shapes, ("float64",) * len(shapes), known).shapes[0]
        self.shapes.append(shape)
        shown = ", ".join(map(self.shown, operands))
        made = f"v{len(self.shapes) - 1} = {name}({shown}) {attrs or ''}"
        self.lines.append(f"{made} strategy {chosen} {shapes} -> {shape}")
        return Ref(len(self.shapes) - 1)

    def shown(self, operand):
        if isinstance(operand, Ref):
            return f"v{operand.number}"
        named = operand.name if isinstance(operand, Parameter) else None
        return named or ("const" if isinstance(operand, Tensor) else repr(operand))

    def matmul(self):
        x = self.value()
        shape = self.shape_of(x)
        if len(shape) < 2:
            return
        ta, tb = self.chance(0.2), self.chance(0.3)
        k, n = shape[-2] if ta else shape[-1], self.pick(DIMS)
        w = (n, k) if tb else (k, n)
        if len(shape) > 2 and self.chance(0.5):
            w = (shape[0], *w) if len(shape) == 3 else w
        p = self.parameter(w)
        self.add("MatMul", x, p, attrs={"transpose_a": ta, "transpose_b": tb}, shapes=(shape, w))

    def product_of_values(self):
        x = self.value(2)
        if x is None:
            return
        shape = self.shape_of(x)
        # x x^T: one value read twice, in two layouts
        self.add("MatMul", x, x, attrs={"transpose_b": True}, shapes=(shape, shape))

    def bias_add(self):
        x = self.value(2)
        if x is not None:
            shape = self.shape_of(x)
            self.add("BiasAdd", x, self.parameter(shape[1:]), shapes=(shape, shape[1:]))

    def binary(self):
        x = self.value()
        shape = self.shape_of(x)
        name = self.pick(BINARY)
        same = [Ref(i) for i in range(len(self.shapes)) if self.shapes[i] == shape and i not in self.bits]
        if same and self.chance(0.35):
            other, other_shape = self.pick(same), shape
        else:
            cut = self.choices.below(len(shape) + 1)
            other_shape = tuple(1 if self.chance(0.3) else n for n in shape[cut:])
            if self.chance(0.2) and other_shape:
                other = Tensor(self.choices.floats(-1, 1, other_shape))
            else:
                other = self.parameter(other_shape)
        if self.chance(0.1):
            other, other_shape = 0.5, ()
        pair = [(x, shape), (other, other_shape)]
        if self.chance(0.4):
            pair.reverse()
        self.add(name, pair[0][0], pair[1][0], shapes=(pair[0][1], pair[1][1]))

    def unary(self):
        x = self.value()
        self.add(self.pick(UNARY), x, shapes=(self.shape_of(x),))

    def reshape(self):
        x = self.value()
        shape = self.shape_of(x)
        left, parts = int(np.prod(shape)), []
        for _ in range(self.choices.below(3)):
            divisors = [d for d in range(1, left + 1) if left % d == 0]
            parts.append(self.pick(divisors))
            left //= parts[-1]
        target = (*parts, left)
        self.add("Reshape", x, target, shapes=(shape,), extra={"shape": target})

    def transpose(self):
        x = self.value()
        shape = self.shape_of(x)
        perm = self.choices.order(len(shape))
        if perm:
            self.add("Transpose", x, perm, shapes=(shape,), extra={"perm": perm})

    def flatten(self):
        x = self.value()
        if len(self.shape_of(x)) >= 2:
            self.add("Flatten", x, shapes=(self.shape_of(x),))

    def reduce(self):
        x = self.value()
        shape = self.shape_of(x)
        if not shape:
            return
        axis = self.choices.below(len(shape)) - (len(shape) if self.chance(0.5) else 0)
        keep = self.chance(0.6)
        out = self.add(self.pick(REDUCTIONS), x, axis, attrs={"keep_dims": keep}, shapes=(shape,), extra={"axis": axis})
        if keep and self.chance(0.7):
            self.add(self.pick(("Sub", "Mul", "Add")), x, out, shapes=(shape, self.shape_of(out)))

    def softmax(self):
        x = self.value()
        if self.shape_of(x):
            self.add("Softmax", x, attrs={"axis": self.pick((-1, 0))}, shapes=(self.shape_of(x),))

    def mask(self):
        """A comparison, which has no gradient, turned into numbers."""
        x = self.value()
        shape = self.shape_of(x)
        p = self.parameter(shape)
        bits = self.add("GreaterEqual", x, p, shapes=(shape, shape))
        self.bits.add(bits.number)
        mask = self.add("Cast", bits, "float64", shapes=(shape,), extra={"dtype": "float64"})
        self.add("Mul", x, mask, shapes=(shape, shape))

    def cross_entropy(self):
        """The expanded cross-entropy of a 2-d value, classes split or not; class numbers are the second input."""
        x = self.value(2)
        if x is None or len(self.inputs) > 1:
            return
        rows, classes = shape = self.shape_of(x)
        self.inputs.append(self.choices.ints(classes, rows))
        kept = (rows, 1)
        top = self.add("ReduceMax", x, -1, attrs={"keep_dims": True}, shapes=(shape,), extra={"axis": -1})
        powers = self.add("Exp", self.add("Sub", x, top, shapes=(shape, kept)), shapes=(shape,))
        total = self.add("ReduceSum", powers, -1, attrs={"keep_dims": True}, shapes=(shape,), extra={"axis": -1})
        share = self.add("Div", powers, total, shapes=(shape, kept))
        on, off = Tensor(1.0, np.float64), Tensor(0.0, np.float64)
        hot = self.add("OneHot", Ref(-2), classes, on, off, shapes=((rows,), (), ()), extra={"depth": classes})
        logs = self.add("Log", share, shapes=(shape,))
        product = self.add("Mul", logs, hot, shapes=(shape, shape))
        self.add("ReduceSum", product, -1, shapes=(shape,), extra={"axis": -1})

    def draw(self) -> Draw:
        self.inputs.append(self.choices.floats(-1, 1, self.shape(1 + self.choices.below(3))))
        kinds = (self.matmul, self.matmul, self.bias_add, self.binary, self.binary, self.unary)
        kinds += (self.reshape, self.transpose)
        kinds += (self.reduce, self.softmax, self.flatten, self.product_of_values, self.mask, self.cross_entropy)
        wanted = 3 + self.choices.below(8)
        for _ in range(100):
            if len(self.steps) >= wanted:
                break
            self.pick(kinds)()
        last = Ref(len(self.shapes) - 1)
        shape = self.shape_of(last)
        # one number that depends on every element of the result differently
        weight = Parameter(self.choices.floats(0.5, 1.5, shape), name=f"p{len(self.parameters)}")
        self.parameters.append(weight)
        last = self.add("Mul", last, weight, shapes=(shape, shape))
        self.add(self.pick(("ReduceSum", "ReduceMean")), last, shapes=(shape,), extra={"axis": None})
        used = {id(o) for s in self.steps for o in s.operands}
        cuts = "full_batch"
        if self.chance(0.5):
            cuts = tuple(self.cuts(x.shape) for x in self.inputs)
        alltoall = self.chance(0.5)
        net = Program(self.steps, [p for p in self.parameters if id(p) in used])
        fed = f"inputs {[x.shape for x in self.inputs]} dataset_strategy {cuts}"
        self.lines.append(f"{fed} devices {self.device_num} alltoall {alltoall}")
        return Draw(-1, net, tuple(self.inputs), cuts, self.device_num, alltoall, "\n".join(self.lines))

    def cuts(self, shape):
        cuts, left = [], self.device_num
        for n in shape:
            allowed = [c for c in (1, 2, 4, 8) if n % c == 0 and c <= left]
            cuts.append(self.pick(allowed))
            left //= cuts[-1]
        return tuple(cuts)


def draw_net(seed: int, device_num: int) -> Draw:
    """The net number `seed` for `device_num` ranks."""
    made = Drawer(Seeded(seed), device_num).draw()
    made.seed = seed
    return made


def compiled(draw: Draw, **settings: Any):
    """The plan of a drawn net; None if operators sharing a parameter disagree about its strategy (refused)."""
    return unless_refused(compile, draw, draw.net, passes=PASSES, **settings)


def layout_of(cuts: tuple[int, ...], devices: int) -> Layout:
    """The Layout of an input that is split so, spare devices repeating: counts alone may split one dim only."""
    names = tuple(f"d{i}" for i in range(len(cuts)))
    return Layout((*cuts, devices // math.prod(cuts)), (*names, "again"))(*names)


def unless_refused(make: Any, draw: Draw, network: Any, **settings: Any):
    """`make(network, inputs, settings)` with the settings drawn for the network; None where that is refused: operators
    disagree about a parameter.
    """
    fed, strategy = draw.inputs, draw.dataset_strategy
    if isinstance(draw.dataset_strategy, tuple):
        strategy = tuple(layout_of(cuts, draw.device_num) for cuts in draw.dataset_strategy)
        fed = tuple(
            np.empty(tuple(n // c for n, c in zip(x.shape, cuts, strict=True)), x.dtype)
            for x, cuts in zip(fed, draw.dataset_strategy, strict=True)
        )
    settings |= {"device_num": draw.device_num, "dataset_strategy": strategy}
    try:
        return make(network, *fed, enable_alltoall=draw.alltoall, **settings)
    except StrategyError as error:
        known = ("has two layouts", "with different sharding strategies")
        if not any(text in str(error) for text in known):
            raise
        return None


DEVICES = (2, 4, 8, 8, 16)


def until_compared(draw: Any, seed: int, compare: Any, said: Any = "") -> None:
    """Draw `draw(seed, devices)` and compare; on None or a refusal (a shared parameter's strategies) reseed."""
    devices = DEVICES[seed % len(DEVICES)]
    while True:
        drawn = draw(seed, devices)
        if drawn is not None:
            print(f"seed {seed}, {devices} ranks {said}\n{drawn.text}")
            if compare(drawn):
                return
        seed += 100_000


def compare(draw: Draw, bound: float = 1e-10, **settings: Any) -> bool:
    """Compare a drawn net on its simulated ranks with one device; False if it was refused.

    Compared: the loss, the forward value of every operator, the gradient of every parameter and of every forward value
    that the plan names one for, and the running statistics.
    bound     largest difference, relative to the largest element (at least 1)
    settings  of the compilation, such as parallel_mode
    """
    plan = compiled(draw, **settings)
    if plan is None:
        return False
    net = draw.net
    sim = Simulator(plan, {n: np.array(p.asnumpy()) for n, p in net.parameters_dict().items()})
    loss = net(*(Tensor(x) for x in draw.inputs))  # after the simulator took the parameters: running statistics change
    sim.steps = draw.training_step
    sim.begin(*draw.inputs)
    while sim.next_instruction() is not None:
        pass
    eager = dict(zip(net.names, net.seen, strict=True))

    def check(what, got, want):
        want = np.asarray(want)
        assert got.shape == want.shape, f"{what}: shape {got.shape}, one device {want.shape}"
        if want.size:
            far = np.abs(np.subtract(got, want, dtype=np.float64)).max() / max(1.0, np.abs(want).max())
            assert far <= bound, f"{what} is {far:.3g} off"

    for name, tensor in eager.items():
        dtype = tensor.asnumpy().dtype
        if dtype.kind == "f":  # what is cast to a shorter type is rounded there, and everything after it inherits that
            bound = max(bound, float(np.finfo(dtype).eps))
        if name in plan.value_table:
            check(f"forward {name}", sim.full(name), tensor.asnumpy())
    check("loss", sim.full(plan.outputs[0]), loss.asnumpy())
    for target, source in plan.forward_assignments:
        check(f"running {target}", sim.full(source), net.parameters_dict()[target].asnumpy())
    wanted = [p for n, p in net.parameters_dict().items() if p.requires_grad]
    by_name = dict(plan.gradients)
    for parameter, want in zip(wanted, gradients(loss, wanted), strict=True):
        if parameter.name in by_name:
            check(f"gradient of {parameter.name}", sim.full(by_name[parameter.name]), want)
        else:
            assert not np.any(want), f"{parameter.name} has no gradient in the plan"
    # of an operator made of several nodes, one result may be read on the way to another: its gradient has that use too
    nodes = {name: node.name for node in plan.graph.nodes for name in node.outs}
    inside = {name for names in net.together if len({nodes.get(n) for n in names}) > 1 for name in names}
    held = [(v, g) for v, g in plan.value_gradients if v in eager and v not in inside and eager[v].requires_grad]
    for (value, gradient), want in zip(held, gradients(loss, [eager[v] for v, _ in held]), strict=True):
        check(f"gradient of value {value}", sim.full(gradient), want)
    return True
