"""`Session`: a plan at work. Parameters and optimizer states live on ranks, simulated or real; it takes steps.

    with Session(plan, net, optimizer, executor="processes") as session:
        losses = session.train([(x, label)], steps=20)
        session.parameters()["w"]            # the full tensor, from the ranks' slices

All executors run the same interpreter on the same plan: losses and parameters are equal bit for bit. Two sessions can
be compared step by step (`parallel_mode="stand_alone"` compiles the undivided computation).
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.checks import is_int
from ..base.cluster import cluster_for, get_cluster
from ..base.driver import breathing
from ..base.dtypes import plain_array
from ..base.errors import ArgumentError, Interrupted, PlanError, ShapeError, shorten
from ..base.events import Event
from ..base.hooks import breathe, from_above
from ..base.system import without_processes
from ..graph.plan import Plan
from ..nn.optim.several_optimizers import as_optimizer
from ..nn.tensor.tensor import Tensor
from ..ops.kernels.threads import keep_freed_memory
from ..run.full_values import full_inputs, full_value, gather_value, step_inputs
from ..run.interpreter import half_done
from ..run.simulator import Simulator
from . import finite, plan_switch, rank_steps
from .background_run import Run, rates_of_steps
from .forward_only import forward_only
from .plan_switch import Switched

if TYPE_CHECKING:
    from ..cost.simulated_clock import Ran

EXECUTORS = ("simulator", "processes", "mpi")
LOOK_S = 0.05  # how often train() asks whether it is to stop

Batch = Sequence[Any]
_keys = itertools.count()


def initial_values(plan: Plan, parameters: Any, optimizer: Any = None) -> dict[str, np.ndarray]:
    """Full tensors by value name for step 1: parameters and initial optimizer states. PlanError: one is missing."""
    if not isinstance(plan, Plan):
        raise ArgumentError(f"plan is {shorten(plan)}", where="Session", allowed="What parallel_lab.compile returns")
    table = parameters.parameters_dict() if hasattr(parameters, "parameters_dict") else parameters
    if not isinstance(table, Mapping):
        what = f"parameters is {shorten(parameters)}"
        raise ArgumentError(what, where="Session", allowed="The network, or a mapping from parameter name to array")
    values: dict[str, np.ndarray] = {}
    for parameter in plan.parameters:
        if parameter.name not in table:
            what = f"parameter {parameter.name!r} is missing"
            raise PlanError(what, where="Session", allowed=f"Parameters given: {', '.join(table) or 'none'}")
        values[parameter.name] = _array(table[parameter.name])
    optimizer = as_optimizer(optimizer)
    if plan.states and optimizer is None:
        what = "the plan updates parameters, but no optimizer is given"
        raise PlanError(what, where="Session", hint="Give the optimizer it was compiled with")
    rule = getattr(optimizer, "rule", shorten(optimizer))
    if plan.states and rule != plan.optimizer:
        what = f"the plan was compiled with {plan.optimizer}, the session got {rule}"
        allowed = "The same optimizer with the same settings; only the learning rate may differ"
        hint = "Give the optimizer it was compiled with, or compile again"
        raise PlanError(what, where="Session", allowed=allowed, hint=hint)
    scalars = optimizer.initial_scalars() if plan.states else {}
    for state in plan.states:
        initial = optimizer.starts_of(state.parameter, table[state.parameter]) if state.parameter else scalars
        values[state.name] = np.asarray(initial[state.kind], plan.value(state.name).dtype)
    return values


def _shared_pool(executor: str, world_size: int) -> Any:
    """This process's own workers of that kind and number, started when first asked for."""
    if executor == "mpi":
        from ..processes.mpi.pool import get_mpi_pool

        return get_mpi_pool(world_size)
    from ..processes.shm import get_pool

    return get_pool(world_size)


def _array(value: Any) -> np.ndarray:
    breathe()
    return value.asnumpy() if isinstance(value, Tensor) else plain_array(value, where="Session")


class Session:
    """A plan on an executor.

    plan        what to run
    parameters  a Cell or a mapping: initial values
    optimizer   the one the plan was compiled with, or a list of those (None for plans without update)
    executor    "simulator": all ranks in this process, in lock step; "processes": one worker process per rank, shared
                memory; "mpi": one rank of MPI each, on this machine. Where processes cannot be ranks (base/system.py)
                a warning says so, and it is the first
    pool        workers to use (a WorkerPool or an MpiPool); default: this process's shared pool of that size
    cluster     machine profile of simulated times; default: laptop up to 8 ranks, nodes of 8 beyond
    cores       processor cores that simulated ranks share (`cost/simulated_clock.py`); default: each has its own

    check_finite  whether NaN and infinities are an error (`finite.py`); None: as `set_run_checks` says

    unchecked     names of operators whose sums over ranks are not checked; None: of no operator they are. A plan that
                  is as it was compiled needs no check; in a changed one a missing or doubled sum is a TypesError

    A context manager; `close()` frees what the ranks hold (the pool itself stays for the next session).
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Any,
        optimizer: Any = None,
        *,
        executor: str = "simulator",
        pool: Any = None,
        cluster: str | None = None,
        cores: int | None = None,
        check_finite: bool | None = None,
        unchecked: Collection[str] | None = (),
    ) -> None:
        if executor not in EXECUTORS:
            raise PlanError(f"executor {executor!r}", where="Session", allowed=f"One of {EXECUTORS}")
        if executor != "simulator" and pool is None and (why := without_processes()):
            warnings.warn(f"{why}, with the same numbers", RuntimeWarning, stacklevel=2)
            executor = "simulator"
        if cores is not None and not is_int(cores, 1):
            raise ArgumentError(f"cores={shorten(cores)}", where="Session", allowed="A whole number, 1 or more")
        self.plan, self.executor = plan, executor
        self.step = 0
        self.cluster, self.cores, self.check_finite = cluster, cores, check_finite
        if cluster is not None:
            get_cluster(cluster).check_device_num(plan.device_num)
        self.events: list[Event] = []
        self._key = f"session-{next(_keys)}"
        self._closed = False
        self._broken = ""
        self._run: Run | None = None
        values = initial_values(plan, parameters, optimizer)
        if unchecked is not None and not plan.as_compiled:
            from_above("type_checker")(plan, unchecked=unchecked)
        self._optimizer = as_optimizer(optimizer) if plan.states else None
        if executor == "simulator":
            keep_freed_memory()  # as workers do
            self._simulator = Simulator(plan, values)
        else:
            self._pool = pool if pool is not None else _shared_pool(executor, plan.device_num)
            if self._pool.world_size != plan.device_num:
                what = f"the pool has {self._pool.world_size} workers"
                raise PlanError(what, where="Session", allowed=f"The plan needs {plan.device_num}")
            values = {name: full_value(plan, name, value) for name, value in values.items()}
            self._pool.run(rank_steps.load_values, self._key, plan, values)

    # ---- training ----

    def train(
        self,
        batches: Iterable[Batch],
        steps: int,
        *,
        record: int = 0,
        phases: Sequence[str] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> list[float]:
        """Take `steps` steps, going round `batches` (each the global inputs of one step); returns the losses.

        batches  a list of tuples; or a dataset, which is read again at the end of each epoch

        The learning rate of each step is the schedule's, or `optimizer.learning_rate` when `train` is called.

        record  keep the events of the last `record` steps in `self.events`. Processes: measured. Simulator: simulated,
                on a clock where ranks have cores as `cores` says (work: its processor time here) and messages take
                `cluster`'s time.
        stopped   asked again and again; once true the training ends after the present step with the losses so far

        A step that fails before its update changes nothing, and the session can go on with it. The update runs in
        place: after a failure in it the session refuses to go on, and names what had new values.

        Ctrl-C ends the training on processes after the present step; the session can go on.
        """
        self._check_order(steps, record, phases)
        if self.executor != "simulator":
            run = self.start(batches, steps, record=record, phases=phases)
            try:
                while stopped is not None and not run.done():
                    if stopped():
                        run.stop()
                        break
                    run.wait_for_change(LOOK_S)
                return run.result()
            except KeyboardInterrupt:
                run.interrupt()
                left = f"the session {self._broken}" if self._broken else "the session can go on"
                raise Interrupted(f"after {len(run.losses)} of {steps} steps; {left}") from None
        self._check_open()
        return self._simulate(_checked(self.plan, batches, self.step, steps), steps, record, phases, stopped)

    def _simulate(
        self,
        batches: list[Batch],
        steps: int,
        record: int,
        phases: Sequence[str] | None,
        stopped: Callable[[], bool] | None,
    ) -> list[float]:
        losses = []
        recorded: deque[tuple[int, rank_steps.Record]] = deque(maxlen=record)
        first, rates = self.step, rates_of_steps(self.plan, self._optimizer, self.step, steps)
        checks = self._finite_checks()
        for step in range(first, first + steps):
            if stopped is not None and stopped():
                break
            for env in self._simulator.envs:
                env.update(rank_steps.rates_of_step(rates, step - first))
            seen = rank_steps.Record(self.plan.device_num)
            inputs = batches[step % len(batches)]
            observe = breathing(seen.of if record else None)
            if checks:
                observe = _noted_and_checked(observe, checks)
                for check in checks:
                    check.env = step_inputs(self.plan, check.rank, inputs)
                    check.begin(step)
                    check.env = self._simulator.envs[check.rank]
            loss = self._simulator.run_step(*inputs, phases=phases, step=step, observe=observe)
            for check in checks:
                check.end()
            losses.append(float(loss.reshape(-1)[0]))
            self.step = step + 1
            recorded.append((step, seen))
        if record:
            self.events = [e for step, seen in recorded for e in self._simulated_events(step, seen.on_cores())]
        return losses

    @property
    def checks_finite(self) -> bool:
        """Whether steps look for NaN and infinities (`finite.py`)."""
        if self.check_finite is not None or self._optimizer is None:
            return bool(self.check_finite)
        return finite.wanted(self._optimizer)

    def _finite_checks(self) -> list[finite.PlanCheck]:
        """What looks for them in the ranks of the simulator."""
        if not self.checks_finite:
            return []
        watched = finite.gradients_of(self.plan)
        return [finite.PlanCheck(self.plan, rank, env, watched) for rank, env in enumerate(self._simulator.envs)]

    def _simulated_events(self, step: int, ran: list[list[Ran]]) -> Iterator[Event]:
        # the cost model is only needed here: importing parallel_lab stays light
        from ..cost.simulated_clock import virtual_clock

        cluster = cluster_for(self.plan.device_num) if self.cluster is None else get_cluster(self.cluster)
        for rank, mine in enumerate(virtual_clock(ran, cluster, self.cores)):
            breathe()
            yield from rank_steps.ran_events(rank, step, mine, "simulated")

    def start(
        self,
        batches: Iterable[Batch],
        steps: int,
        *,
        record: int = 0,
        phases: Sequence[str] | None = None,
        on_losses: Callable[[int, list[float]], None] | None = None,
    ) -> Run:
        """As `train`, in the background: a `Run`. `on_losses(first step, losses)`: on processes at most 60 a second."""
        self._check_order(steps, record, phases)
        self._check_open(waits=False)
        if self._run is not None and self._run.state == "done":
            self._run.result()  # so that the steps are counted even if nobody asked for the losses
        batches = _checked(self.plan, batches, self.step, steps)
        if self._run is not None and not self._run.done():
            what = f"a run is {self._run.state}"
            raise PlanError(what, where="Session.start", hint="Wait for it with result(), or stop() it first")
        kind: type[Run] = Run
        if self.executor == "simulator":
            from .simulated_run import SimulatedRun as kind  # it knows the jobs of workers
        self._run = kind(self, batches, steps, record, phases, on_losses)
        return self._run

    def switch(self, plan: Plan, *, pool: Any = None) -> Switched:
        """Go on with another plan of the same network from the next step on: other strategies, number of ranks, fusion
        or optimizer parallel. Parameters and optimizer states go from the old slices to the new ones, by messages
        between the ranks; with another number of ranks through this process. Step number, order of the batches,
        learning rates and random masks go on, so losses are those of an unchanged training, to rounding.

        plan  compiled from the same network, loss, optimizer and batch, each with other settings
        pool  workers for another number of ranks; default: this process's shared pool of that size

        A run that goes on halts after its present step, and takes its other steps with the new plan: its Run stays.
        -> what was moved; print it. Raises PlanError for a plan that trains something else: nothing has halted then.
        """
        self._check_open(may_be_paused=True)
        moves = plan_switch.moves_of(self.plan, plan)
        if self.cluster is not None:
            get_cluster(self.cluster).check_device_num(plan.device_num)
        if self.executor != "simulator" and plan.device_num != self.plan.device_num:
            pool = _shared_pool(self.executor, plan.device_num) if pool is None else pool
            if pool.world_size != plan.device_num:
                what = f"the pool has {pool.world_size} workers"
                raise PlanError(what, where="Session.switch", allowed=f"The plan needs {plan.device_num}")
        run = self._run if self._run is not None and not self._run.done() else None
        with nullcontext() if run is None else run.halted():
            return self._switch(plan, moves, pool)

    def _switch(self, plan: Plan, moves: list[plan_switch.RankMoves], pool: Any) -> Switched:
        """`switch` between two steps, after its checks."""
        devices, same = (self.plan.device_num, plan.device_num), plan.device_num == self.plan.device_num
        if self.executor != "simulator" and same:
            sent = self._pool.run_each(rank_steps.switch_values, [(self._key, plan, mine, self.step) for mine in moves])
            amount = plan_switch.between_ranks(sent)
        else:
            if self.executor != "simulator":
                needed = plan_switch.needed(moves, devices[0])
                envs = self._pool.run_each(rank_steps.collect, [(self._key, names) for names in needed])
            else:
                envs = self._simulator.envs
            envs, amount = (plan_switch.on_simulator if same else plan_switch.through_here)(moves, envs)
            if self.executor == "simulator":
                self._simulator.go_on(plan, envs)
            else:
                pool.run_each(rank_steps.load_slices, [(self._key, plan, env, self.step) for env in envs])
                self._pool.run(rank_steps.drop_values, self._key)
                self._pool = pool
        self.plan, self.events = plan, []
        self.__dict__.pop("_forward", None)
        return Switched(self.step, devices, *amount, same)

    def outputs(self, *inputs: Any) -> list[np.ndarray]:
        """Run the network forward on the global `inputs`: its outputs in full, or the loss. Nothing is trained.

        For a plan that was compiled with a loss, that is the loss; predictions after training have a plan of their own:

            with Session(compile(net.set_train(False), x, ...), session.parameters()) as predicting:
                predicting.outputs(x)

        Raises PlanError for a plan whose outputs are made of gradients, ShapeError for other inputs than compiled for.
        """
        self._check_open()
        if self.plan.gradients and 0 < len(inputs) < len(names := [i.name for i in self.plan.data_inputs]):
            hint = "For predictions: Session(compile(net.set_train(False), x, ...), session.parameters()).outputs(x)"
            what, allowed = (
                f"{len(inputs)} of {len(names)} inputs",
                f"{', '.join(names)}: the plan's output is the loss",
            )
            raise ShapeError(what, where="Session.outputs", allowed=allowed, hint=hint)
        if self.executor == "simulator":
            self._simulator.run_step(*inputs, plan=self._forward, step=self.step)
        else:
            self._pool.run(rank_steps.run_forward, self._key, self._forward, full_inputs(self.plan, inputs), self.step)
        results = self.values(self.plan.outputs)
        return [results[name] for name in self.plan.outputs]

    @cached_property
    def _forward(self) -> Plan:
        return forward_only(self.plan) if self.plan.gradients else self.plan

    # ---- looking ----

    def values(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Full tensors by value name, gathered from the ranks' slices."""
        names = list(names)
        for name in names:
            self.plan.value(name)
        self._check_open()
        if self.executor == "simulator":
            return {n: self._simulator.full(n) for n in names}
        slices = self._pool.run(rank_steps.collect, self._key, names)
        return {n: gather_value(self.plan, n, [s.get(n) for s in slices]) for n in names}

    def parameters(self) -> dict[str, np.ndarray]:
        """Every parameter in full, as it is now."""
        return self.values(p.name for p in self.plan.parameters)

    def gradients(self) -> dict[str, np.ndarray]:
        """Every parameter's gradient of the last step, in full."""
        arrays = self.values(value for _, value in self.plan.gradients)
        return {name: arrays[value] for name, value in self.plan.gradients}

    def scalars(self) -> dict[str, float]:
        """What all parameters share, as the last step left it: learning rate, loss scale, Adam's beta powers."""
        names = {s.kind: s.name for s in reversed(self.plan.states) if not s.parameter}
        values = self.values(names.values())
        return {kind: float(values[name]) for kind, name in reversed(names.items())}

    def slices(self, name: str) -> list[np.ndarray | None]:
        """What each rank holds of `name`, in rank order; None where it never does (weight grouping)."""
        self.plan.value(name)
        self._check_open()
        if self.executor == "simulator":
            ranks = range(self.plan.device_num)
            return [self._simulator.value(name, r) if self.plan.held_by(name, r) else None for r in ranks]
        return [s.get(name) for s in self._pool.run(rank_steps.collect, self._key, [name])]

    def close(self) -> None:
        """Free the ranks' arrays. Called again, does nothing."""
        if not self._closed:
            self._closed = True
            if self._run is not None and not self._run.done():
                self._run.stop()
            if self.executor != "simulator" and self._pool.alive:
                self._pool.run(rank_steps.drop_values, self._key)

    def _after_fault(self) -> None:
        """Ask the ranks what a failed run has left: if its last step changed nothing, the session can go on with it."""
        if self.executor == "simulator" or self._broken or not self._pool.alive:
            return
        left = self._pool.run(rank_steps.left_behind, self._key)
        self.step = min(steps for steps, _ in left)
        self._broken = half_done(self.step, (name for _, replaced in left for name in replaced))
        ahead = [rank for rank, (steps, _) in enumerate(left) if steps > self.step]
        if ahead and not self._broken:
            self._broken = f"failed in step {self.step}, which ranks {ahead} had ended already"

    def _check_order(self, steps: Any, record: Any, phases: Any) -> None:
        """Raise ArgumentError for invalid counts and phases, PlanError for a plan without one number per step."""
        for name, count in (("steps", steps), ("record", record)):
            if not is_int(count, 0):
                what = f"{name}={shorten(count)}"
                raise ArgumentError(what, where="Session.train", allowed="A whole number, 0 or more")
        names = [name for name, _ in self.plan.stages[0].programs]
        unknown = [phases] if isinstance(phases, str) else [p for p in phases or () if p not in names]
        if unknown:
            what = f"phases {shorten(unknown[0])}"
            raise ArgumentError(what, where="Session.train", allowed=f"A tuple of this plan's phases: {tuple(names)}")
        if phases is not None and len(self.plan.stages) > 1:
            what, hint = f"phases={tuple(phases)} in {len(self.plan.stages)} pipeline stages", "outputs() runs forward"
            raise PlanError(
                what, where="Session.train", allowed="Whole steps: stages send on to later phases", hint=hint
            )
        shape = self.plan.value(self.plan.outputs[0]).shape
        if shape:
            what = f"the plan's first output has shape {shape}"
            hint = "Compile with loss=..., or use outputs(*inputs) to run the network forward"
            raise PlanError(what, where="Session.train", allowed="One number per step: the loss", hint=hint)

    def _check_open(self, *, may_be_paused: bool = False, waits: bool = True) -> None:
        if self._closed:
            raise PlanError("the session was closed", where="Session")
        if self._run is not None:
            self._run.look_after_fault()
        broken = self._broken or (self._simulator.half_done if self.executor == "simulator" else "")
        if broken:
            raise PlanError(f"the session {broken}", where="Session", hint="Make a new Session")
        if self._run is not None and self._run.state == "paused" and not may_be_paused:
            raise PlanError("the ranks are paused in a run", where="Session", hint="resume() or stop() it first")
        # workers take one job after the other, and so do simulated ranks
        while self.executor == "simulator" and waits and not may_be_paused and self._run and not self._run.done():
            self._run.wait_for_change(LOOK_S)

    def __repr__(self) -> str:
        closed = ", closed" * self._closed
        return (
            f"Session({self.plan.graph.name}, {self.plan.device_num} ranks, {self.executor}, step {self.step}{closed})"
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _noted_and_checked(observe: Callable | None, checks: list[finite.PlanCheck]) -> Callable:
    """What the simulator calls after an instruction of a rank."""

    def call(rank: int, *what: Any) -> None:
        if observe is not None:
            observe(rank, *what)
        checks[rank](*what)

    return call


def _checked(plan: Plan, batches: Iterable[Batch], first: int, steps: int) -> list[Batch]:
    """Batches of steps `first` to `first + steps`: a list's, gone round; a dataset's, each epoch in its own order."""
    fault = ""
    try:
        batches = batches if isinstance(batches, (list, tuple)) else _read(batches, first, steps)
    except TypeError:
        fault = f"batches is {shorten(batches)}"
    else:
        wrong = [b for b in batches if not isinstance(b, (tuple, list))]
        if wrong:
            fault = f"a batch is a {type(wrong[0]).__name__}"
    if fault:
        names = ", ".join(i.name for i in plan.data_inputs)
        raise ShapeError(fault, where="Session", allowed=f"A list with one tuple of inputs per step: [({names}), ...]")
    if not batches:
        raise ShapeError("no batches were given", where="Session", hint="Give a list with at least one tuple of inputs")
    return list(batches)


def _read(batches: Iterable[Batch], first: int, steps: int) -> list[Batch]:
    """`steps` batches of an iterable, placed so that index `first` modulo their number is the first of them."""
    size = batches.get_dataset_size() if hasattr(batches, "get_dataset_size") else 0
    source = itertools.islice(batches, first % size if size > 0 else 0, None)  # on from where the last steps ended
    read: list[Batch] = []
    again = iter(batches) is not batches  # a generator can be read once: what it gave is gone round
    while len(read) < steps:
        begin = len(read)
        read += itertools.islice(source, steps - begin)
        if len(read) == begin or not again:
            break
        source = iter(batches)
    turn = first % len(read) if read else 0
    return read[-turn:] + read[:-turn] if turn else read
