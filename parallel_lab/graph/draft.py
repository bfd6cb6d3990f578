"""`Draft`: what the ranks will run, instructions on slices, growing pass by pass until `freeze.py` makes a plan of it.

One program serves all ranks: an `Instr` names axes of a device matrix, from which a rank's group and slice follow.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..base.errors import ParallelLabError
from ..base.settings.config import ParallelConfig
from ..ops.machine.opdef import Results
from .instr import Instr, Value
from .ir import Graph


@dataclass(frozen=True)
class Training:
    """What is to be done besides computing the outputs, and the learner's objects that passes need for it.

    differentiated   whether gradients are asked for
    optimizer        an `nn.Optimizer`, or None;  parameters: the Parameters by name
    scale_input      the input that holds the loss scale, where the function has multiplied its loss by it; or ""
    """

    differentiated: bool = False
    optimizer: Any = None
    parameters: dict[str, Any] = field(default_factory=dict)
    scale_input: str = ""


@dataclass(frozen=True)
class Draft:
    """A program in the making: what every pass takes and returns.

    graph, config, notes   the traced network, with strategies once chosen; the settings; (pass, text) per pass that ran
    training    what passes need besides the program

    The program:
    values      name -> Value;  programs: "forward", "backward", "update" -> instructions
    outputs     values of the program that the network returns;  host: values in the memory of the host
    bridges     values of the graph that the update program or the caller reads -> the program's values
    schedule    the actions of every pipeline stage: what `compile` was given, or pass `stages` has made

    Gradients and the update:
    gradients   a parameter (or an input) -> the value that holds its synchronised gradient
    value_gradients   a forward value -> its gradient as the ranks hold it (partial sums over replicas)
    updates     (parameter, value that the optimizer updates it with) where that is not the gradient as it stands
    assignments (target, source): after the update `target` takes the value `source`; forward_assignments: after forward
    states      optimizer states: (name, parameter or "", the optimizer's name for it);  optimizer: its rule
    owners      (parameter, the only rank that updates it and holds its states), where there is one
    order       names of the parameters as the optimizer has them, or the network: what fusion by index counts
    """

    graph: Graph
    config: ParallelConfig
    values: tuple[tuple[str, Value], ...] = ()
    programs: tuple[tuple[str, tuple[Instr, ...]], ...] = ()
    bridges: tuple[tuple[str, str], ...] = ()
    gradients: tuple[tuple[str, str], ...] = ()
    value_gradients: tuple[tuple[str, str], ...] = ()
    updates: tuple[tuple[str, str], ...] = ()
    assignments: tuple[tuple[str, str], ...] = ()
    forward_assignments: tuple[tuple[str, str], ...] = ()
    states: tuple[tuple[str, str, str], ...] = ()
    optimizer: str = ""
    owners: tuple[tuple[str, int], ...] = ()
    outputs: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    training: Training = field(default_factory=Training, compare=False)
    schedule: Any = field(default=None, compare=False)

    def value_table(self) -> dict[str, Value]:
        return dict(self.values)

    def program(self, phase: str) -> tuple[Instr, ...]:
        return dict(self.programs).get(phase, ())

    def instructions(self) -> Iterator[tuple[str, Instr]]:
        for phase, program in self.programs:
            for instr in program:
                yield phase, instr

    def with_program(self, phase: str, instrs: tuple[Instr, ...], values: dict[str, Value], **changes: Any) -> Draft:
        """This draft with one program replaced and the value table renewed."""
        programs = (*((p, i) for p, i in self.programs if p != phase), (phase, tuple(instrs)))
        return replace(self, programs=programs, values=tuple(sorted(values.items())), **changes)

    def noted(self, name: str, text: str) -> Draft:
        return replace(self, notes=(*self.notes, (name, text)))


def counted(instrs: Iterable[Instr]) -> str:
    """How long a program is, for notes: "12 instructions, 3 messages"."""
    sent = [instr.is_communication for instr in instrs]
    return f"{len(sent)} instructions, {sum(sent)} messages"


def fresh_name(base: str, taken: Container[str]) -> str:
    """`base`, or `base_1`, `base_2`, ... if it is taken.

    >>> fresh_name("w.grad", {"w.grad", "w.grad_1"})
    'w.grad_2'
    """
    name, n = base, 0
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    return name


def result_names(name: str, results: Results) -> tuple[str, ...]:
    """Names of the results of operator `name`: its own, or "topk.0" and "topk.1" where there are several.

    >>> result_names("topk", Results(((4,), (4,)), ("float32", "int32"), several=True))
    ('topk.0', 'topk.1')
    """
    return tuple(f"{name}.{i}" for i in range(len(results.shapes))) if results.several else (name,)


def at_compile(kind: type[ParallelLabError], what: str, allowed: str = "", hint: str = "") -> ParallelLabError:
    """The error to raise when something cannot be compiled."""
    return kind(what, where="compile", allowed=allowed, hint=hint)


def needed(
    program: Sequence[Any], values: Iterable[str], always: Callable[[Any], object] = lambda one: False
) -> tuple[Any, ...]:
    """The operators, or instructions, that these values depend on, and those that are there `always`, in order."""
    read, kept = set(values), []
    variables: dict[str, set[str]] = {}  # of loops: one goes on only with all others
    for one in program:
        variables.setdefault(one.loop, set()).update(one.outs if one.loop else ())
    for one in reversed(program):
        if read.intersection(variables[one.loop] or one.outs) or always(one):
            read.update((*one.reads, *one.outs))
            kept.append(one)
    return tuple(reversed(kept))
