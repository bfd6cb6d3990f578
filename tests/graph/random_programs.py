"""Random programs of all operators: 3 to about 12 of them, with random legal strategies.

    draw = draw_program(Seeded(1000), devices=8)      # or Drawn(data), in a Hypothesis test
    compare(draw)                                     # of random_nets.py

The kinds are methods: `random_elements.py`, `random_shapes.py`, `random_layers.py`, and the matrix products of
`random_nets.py`.
"""

from __future__ import annotations

from parallel_lab import Tensor, ops
from parallel_lab.ops import OPS
from tests.graph.random_choices import Choices
from tests.graph.random_elements import ElementKinds
from tests.graph.random_layers import LayerKinds
from tests.graph.random_nets import Draw, Program, Ref
from tests.graph.random_shapes import ShapeKinds

DIMS = (1, 2, 3, 4, 6, 8, 8, 16)
SMALL = (2, 4, 4, 8, 3)  # of pictures
TRIES = 24  # a kind that the values at hand do not allow is drawn again, but not for ever


class ProgramDrawer(ElementKinds, ShapeKinds, LayerKinds):
    """Draws programs of all operators."""

    KINDS = (
        *("matmul", "matmul", "product_of_values", "bias_add", "reshape", "transpose", "flatten"),
        *("expanded_cross_entropy", "activation", "activation", "function_of_positive", "function_of_positive"),
        *("step_function", "channel_activation", "pair", "pair", "quotient", "sum_of_several", "clipped"),
        *("masked", "chosen", "any_or_all", "reduction", "reduction", "normalised_exponential", "largest_as_one_hot"),
        *("more_dims", "fewer_dims", "broadcast", "repeated", "joined", "parted", "padded", "turned", "slice"),
        *("indexed", "triangle", "running_sum", "ordered", "embedded", "gathered", "summed_by_number", "hot"),
        *("convolution", "convolution", "pooling", "batch_norm", "batch_norm", "layer_norm", "rms_norm"),
        *("group_norm", "dropout", "attention", "causal_weights", "example", "example"),
    )

    def refs(self):
        """All float values, the first input among them."""
        return [Ref(-1), *(Ref(i) for i in range(len(self.values)) if i not in self.bits)]

    def example(self):
        """An operator as its declaration shows it, its mean going into a value: so new operators are drawn too."""
        op = OPS[self.pick([name for name, op in OPS.items() if op.cases and not (op.internal or op.writes)])]
        shown = self.pick(op.cases)
        ints, attrs, tensors = dict(shown.ints), dict(shown.attrs), []
        for position, shape in enumerate(shown.shapes):
            if position in ints or position in shown.bools:
                numbers = self.choices.ints(ints.get(position, 2), shape)
                tensors.append(Tensor(numbers.astype(bool) if position in shown.bools else numbers))
            else:  # some operators refuse to have a gradient
                tensors.append(self.fresh(shape, shown.low, shown.high, not hasattr(op.vjp_fn, "refuses")))
        operands = tensors
        if not op.variadic:
            named = {**op.defaults, **attrs, **dict(zip(op.tensors, tensors, strict=True))}
            operands = [named[name] for name in op.positional]
        made = self.add(op.class_name, *operands, attrs={k: v for k, v in attrs.items() if k in op.options})
        for ref in made if isinstance(made, tuple) else (made,):
            array = self.array(ref)
            self.bits.add(ref.number)  # its size is its example's: only the mean goes on
            # the least of an empty segment is the largest number there is, which nothing can be added to
            if array.dtype.kind == "f" and array.size and abs(array).max() < 1e30:
                x, _ = self.some()
                self.add("Add", x, self.add("ReduceMean", ref))

    def expanded_cross_entropy(self):
        if len(self.inputs) == 1 and len(self.steps) < 2:
            self.cross_entropy()

    def first_input(self):
        ndim = self.pick((1, 2, 2, 3, 4, 4))
        dims = SMALL if ndim == 4 else DIMS
        return self.choices.floats(-1, 1, tuple(self.pick(dims) for _ in range(ndim)))

    def draw(self) -> Draw:
        self.inputs.append(self.first_input())
        self.training_step = self.choices.below(4)
        wanted = 1 + self.choices.below(8)
        for _ in range(TRIES):
            if len(self.steps) >= wanted:
                break
            getattr(self, self.pick(self.KINDS))()
            self.flatten_large()
        refs = self.refs()
        loss = self.loss(refs[-1])
        if len(refs) > 2 and len(self.steps) < 8 and self.chance(0.3):
            loss = self.add("Add", loss, self.loss(self.pick(refs[:-1])))
        cuts = "full_batch"
        if self.chance(0.5):
            cuts = tuple(self.cuts(x.shape) for x in self.inputs)
        alltoall = self.chance(0.5)
        used = {id(o) for s in self.steps for o in s.operands}
        net = Program(self.steps, [p for p in self.parameters if id(p) in used], self.training_step)
        step, fed = self.training_step, f"dataset_strategy {cuts} devices {self.device_num} alltoall {alltoall}"
        self.lines.append(f"step {step} {fed}")
        return Draw(-1, net, tuple(self.inputs), cuts, self.device_num, alltoall, "\n".join(self.lines), step)


def draw_program(choices: Choices, device_num: int) -> Draw:
    """A program for `device_num` ranks."""
    return ProgramDrawer(choices, device_num).draw()


def operators_of(draw: Draw) -> set[str]:
    """Names of the declared operators that a program calls by their class."""
    primitives = (getattr(step.call, "func", step.call) for step in draw.net.steps)
    found = {getattr(p, "__self__", p) for p in primitives}
    return {p.op.name for p in found if isinstance(p, ops.Primitive)}
