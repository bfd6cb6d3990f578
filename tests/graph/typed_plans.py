"""Right programs of all sorts: drawn trainings, random networks and programs, the lessons' GPTs, rings and experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.graph.plan import Plan
from parallel_lab.lab.context.run import compiled as in_context
from parallel_lab.lab.context.ways import WAYS
from parallel_lab.lab.exercises.lesson_14 import FORMS, job
from parallel_lab.lab.experts.net import Shape, compiled as of_experts
from tests.graph.drawn_plans import compiled, draw
from tests.graph.random_choices import Seeded
from tests.graph.random_nets import DEVICES, compiled as of_net, draw_net
from tests.graph.random_programs import draw_program


def lessons() -> dict[str, Callable[[], Plan]]:
    """By name: sequence parallel, every way of a ring and Ulysses, experts on 1, 2 and 4 ranks."""
    made: dict[str, Callable[[], Plan]] = {form: lambda form=form: job(form)[0] for form in FORMS}
    made |= {way: lambda way=way: in_context((way, 4, "causal", 4), True)[0] for way in WAYS}
    return made | {f"experts {ep}": lambda ep=ep: of_experts(Shape(), ep)[0] for ep in (1, 2, 4)}


def drawn(seed: int) -> Plan | None:
    """Number `seed` of: two trainings, a random network, a program of random operators; None: it was refused."""
    number, sort = divmod(seed, 4)
    try:
        if sort < 2:
            return compiled(draw(2 * number + sort))[0]
        net = draw_net(number, DEVICES[number % 5]) if sort == 2 else draw_program(Seeded(number), DEVICES[number % 5])
        return None if net is None else of_net(net)
    except ParallelLabError:
        return None


def many(start: int, count: int) -> Iterator[tuple[int, Plan]]:
    """(seed, plan) of so many plans on several ranks."""
    seed = start
    while count:
        plan = drawn(seed)
        if plan is not None and plan.device_num > 1:
            yield seed, plan
            count -= 1
        seed += 1
