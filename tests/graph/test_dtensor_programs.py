"""Programs of DTensors under compile: the plan sends what the eager program sends, and gives the same bits."""

import itertools

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import LayoutError, LayoutTypeError, NotBuiltYet, TraceError
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout, Partial, Replicate, Shard
from parallel_lab.nn.fully_shard import MixedPrecisionPolicy, fully_shard
from parallel_lab.nn.parallel_styles import ColwiseParallel, RowwiseParallel, parallel_cross_entropy, parallelize_module
from parallel_lab.nn.tensor.autograd import value_and_grad
from parallel_lab.nn.tensor.dtensor import DTensor, distribute_tensor, dtensor_messages
from parallel_lab.nn.tensor.dtensor_parameter import update
from parallel_lab.nn.tensor.tensor import Tensor
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.dtensor_runs import DTensorFunction
from tests.recorded.ask_rosetta import drawn
from tests.refusals import refused

MESH = DeviceMesh((2, 4), ("dp", "tp"))
LINE = DeviceMesh((4,), ("tp",))


def sent_by(plan, rank=0):
    """(kind, group, bytes that the rank hands over, reduction, reason) of the messages of a plan."""
    return [
        (i.kind, i.group(rank), plan.value(i.ins[0]).slice_bytes, i.attr("reduce") or "", i.reason)
        for _, i in plan.instructions()
        if i.is_communication
    ]


def sent_at_once(messages, mesh, rank=0):
    """The same of messages that were noted."""
    names = {"avg": "mean", "product": "prod"}
    return [
        (m.kind, tuple(sorted(mesh.group(m.axis, rank))), m.size_bytes, names.get(m.reduce, m.reduce), m.reason)
        for m in messages
    ]


def equal_compiled(run, mesh, *operands):
    """(results, plan) of `run` on these DTensors: it sends what the program sends at once, and gives the same bits."""
    with dtensor_messages() as messages:
        at_once = run(*operands)
    compiled = DTensorFunction(run)
    results = compiled(*operands)
    assert sent_by(compiled.plan) == sent_at_once(messages, mesh)
    for here, there in zip(leaves(at_once), leaves(results), strict=True):
        assert here.layout == there.layout and here.shape == there.shape
        for rank in mesh.ranks:
            np.testing.assert_array_equal(here.local(rank), there.local(rank))
    return at_once, compiled.plan


def leaves(x):
    return [leaf for part in x for leaf in leaves(part)] if isinstance(x, tuple) else [x]


def test_a_product_and_its_gradients_become_one_plan():
    random = np.random.default_rng(0)
    x = drawn((8, 16), MeshLayout.coded(MESH, "S0 S1"), random)
    w = drawn((16, 4), MeshLayout.coded(MESH, "R S0"), random)
    _, plan = equal_compiled(value_and_grad(lambda x, w: ops.relu(x @ w).sum(), (0, 1)), MESH, x, w)
    assert sent_by(plan)[0] == ("reduce_scatter", (0, 1, 2, 3), 64, "sum", "operand 0 of ReLU: P -> S0")
    assert [phase for phase, i in plan.instructions() if i.is_communication] == ["forward", "backward", "backward"]
    # w's gradient is pending over dp, where x was split: it stays so
    assert plan.value(plan.outputs[2]).layout.partial == (1,)
    assert pl.compile(lambda x, w: x @ w, x, w).device_num == 8


CODES = ("R R", "S0 R", "S0 S0", "S1 S0", "P S1", "P P", "Pavg S0", "SS0:4 S0", "R Pmax")


@pytest.mark.quick(20)
@pytest.mark.parametrize(("src", "dst"), list(itertools.product(CODES, CODES)))
def test_redistributions_are_those_of_the_eager_tensor(src, dst):
    x = drawn((16, 8), MeshLayout.coded(MESH, src), np.random.default_rng(0))
    to = MeshLayout.coded(MESH, dst)
    try:
        x.redistribute(to)
    except LayoutError:
        with pytest.raises(LayoutError):
            pl.compile(lambda x: x.redistribute(to), x)
        return
    equal_compiled(lambda x: x.redistribute(to) * 1.0 if src == dst else x.redistribute(to), MESH, x)


def test_a_copy_becomes_addends_of_integers_and_of_floats():
    for dtype in (np.int32, np.float32):
        x = distribute_tensor(np.arange(32, dtype=dtype).reshape(8, 4), MESH, [Replicate(), Shard(0)])
        y = DTensor.from_local(lambda rank, dtype=dtype: np.full((2, 4), rank, dtype), MESH, [Partial(), Shard(0)])
        equal_compiled(lambda x, y: x + y, MESH, x, y)
        equal_compiled(lambda x: x.redistribute([Replicate(), Partial()]), MESH, x)


def network():
    pl.set_seed(1)
    net = nn.SequentialCell(nn.Dense(16, 32), nn.ReLU(), nn.Dense(32, 8))
    return parallelize_module(net, LINE, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def test_a_cell_of_distributed_parameters_trains_as_it_does_at_once():
    random = np.random.default_rng(0)
    xs = [Tensor(random.standard_normal((6, 16)).astype(np.float32)) for _ in range(3)]
    nets = network(), network()

    def step_of(net):
        def step(x):
            loss = ops.square(net(x)).mean()
            loss.backward()
            update(net.trainable_params(), lambda p, g: p - 0.1 * g)
            return loss

        return step

    at_once, compiled = step_of(nets[0]), DTensorFunction(step_of(nets[1]))
    for x in xs:
        with dtensor_messages() as messages:
            at_once(x)
        compiled(x)
        assert sent_by(compiled.plan) == sent_at_once(messages, LINE)
        for one, other in zip(nets[0].trainable_params(), nets[1].trainable_params(), strict=True):
            assert one.grad is None and other.grad is None
            for rank in LINE.ranks:
                np.testing.assert_array_equal(one.local(rank), other.local(rank))
    assert len(compiled.programs) == 1


def test_backward_leaves_gradients_where_it_leaves_them_at_once():
    x = distribute_tensor(np.arange(32.0).reshape(8, 4), LINE, [Shard(0)], requires_grad=True)
    w = distribute_tensor(np.ones((4, 4)), LINE, [Replicate()], requires_grad=True)
    compiled = DTensorFunction(lambda x: (x @ w).sum().backward())
    for times in (1, 2):
        compiled(x)
        assert (x.grad.layout.code, w.grad.layout.code) == ("R", "P")
        np.testing.assert_array_equal(x.grad.asnumpy(), np.full((8, 4), 4.0 * times))
        np.testing.assert_array_equal(w.grad.asnumpy()[:, 0], times * np.arange(32.0).reshape(8, 4).sum(0))


def test_tensors_are_distributed_within_and_parts_come_out():
    a = np.arange(64, dtype=np.float32).reshape(8, 8)

    def run(a):
        x = distribute_tensor(a, MESH, [Shard(0), Shard(1)])
        parts = x.to_local() * 2.0
        return DTensor.from_local(parts, MESH, [Shard(0), Shard(1)]), parts

    whole, parts = DTensorFunction(run)(Tensor(a))
    np.testing.assert_array_equal(whole.asnumpy(), 2 * a)
    np.testing.assert_array_equal(parts.local(5), 2 * a[4:8, 2:4])
    plan = pl.compile(lambda a: distribute_tensor(a, MESH, [Shard(0), Shard(1)]).sum(0), Tensor(a))
    assert [i.kind for _, i in plan.instructions()] == ["slice", "slice", "compute"]


def test_a_loss_of_split_classes_and_a_mesh_of_one_axis():
    random = np.random.default_rng(0)
    logits = drawn((8, 16), MeshLayout.coded(LINE, "S1"), random)
    labels = Tensor(random.integers(0, 16, 8))
    equal_compiled(value_and_grad(lambda x: parallel_cross_entropy(x, labels).mean(), 0), LINE, logits)
    part = drawn((8, 16), MeshLayout.coded(MESH["tp"], "S1"), random)
    equal_compiled(lambda x: ops.softmax(x, axis=1), MESH["tp"], part)


def test_a_pending_mean_is_not_read_as_a_sum_nor_as_a_part():
    x = distribute_tensor(np.arange(64.0).reshape(8, 8), MESH, [Shard(0), Shard(1)])
    plan = pl.compile(lambda x: ops.reduce_mean(x, 0), x)
    assert plan.value(plan.outputs[0]).layout.reduce == "avg"
    simulator = Simulator(plan, {})
    np.testing.assert_array_equal(simulator.run_step(np.arange(64.0).reshape(8, 8)), np.arange(28.0, 36.0))


def test_jit_compiles_calls_with_dtensors():
    @pl.jit
    def run(x, scale):
        return (x * scale).redistribute([Replicate()])

    x = distribute_tensor(np.ones((8, 4), np.float32), LINE, [Shard(0)])
    with dtensor_messages() as messages:
        y = run(x, 3.0)
    assert not messages and y.layout.code == "R" and y.asnumpy().max() == 3.0  # it ran as a plan


test_what_a_plan_does_not_hold_is_refused = refused(
    (lambda: pl.compile(lambda x: x + 1, distribute_tensor(np.ones(5), LINE, [Shard(0)])), LayoutError, "Equal parts"),
    (lambda: pl.compile(lambda x: x + 1, x_on(LINE), loss=nn.MSELoss()), TraceError, "loss= with DTensors"),
    (lambda: pl.compile(lambda x: x + 1, x_on(LINE), device_num=8), TraceError, "4, the ranks of the mesh"),
    (lambda: pl.compile(lambda x: x + 1, x_on(DeviceMesh((2,), ranks=(1, 0)))), LayoutError, "in their order"),
    (
        lambda: pl.compile(lambda x: x + DTensor.from_local(lambda rank: np.ones(8), LINE), x_on(LINE)),
        LayoutTypeError,
        "argument",
    ),
    (lambda: pl.compile(lambda x: float(x.sum()), x_on(LINE)), TraceError, "numbers"),
    (lambda: pl.compile(lambda x: 3, x_on(LINE)), TraceError, "returned 3"),
)


def x_on(mesh):
    return distribute_tensor(np.ones(8), mesh, [Shard(0)])


class Even(nn.Cell):
    """Layers whose parts are equal on eight ranks."""

    def __init__(self):
        super().__init__()
        pl.set_seed(3)
        self.layers, self.head = nn.CellList([nn.Dense(16, 16) for _ in range(3)]), nn.Dense(16, 8)

    def construct(self, x):
        for layer in self.layers:
            x = ops.relu(layer(x))
        return self.head(x)


def over_tensor_parallelism():
    styles = {"layers.0": ColwiseParallel(), "layers.1": RowwiseParallel()}
    return grouped(MESH["dp"], parallelize_module(Even(), MESH["tp"], styles))


def grouped(mesh, network=None, **options):
    network = network or Even()
    for layer in network.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(network, mesh=mesh)


EIGHT, COPIES = DeviceMesh((8,), ("dp",)), DeviceMesh((2, 4), ("replicate", "shard"))
SHARDED = {  # network, mesh, how its rows lie, number of messages of a step
    "layers": (lambda: grouped(EIGHT), EIGHT, [Shard(0)], 11),
    "kept after forward": (lambda: grouped(EIGHT, reshard_after_forward=False), EIGHT, [Shard(0)], 8),
    "columns": (
        lambda: grouped(EIGHT, shard_placement_fn=lambda p: Shard(1) if len(p.full_shape) == 2 else None),
        EIGHT,
        [Shard(0)],
        11,
    ),
    "in float16": (
        lambda: grouped(EIGHT, mp_policy=MixedPrecisionPolicy(param_dtype="float16", reduce_dtype="float32")),
        EIGHT,
        [Shard(0)],
        11,
    ),
    "copies of parts": (lambda: grouped(COPIES), COPIES, [Shard(0), Shard(0)], 15),
    "over tensor parallelism": (over_tensor_parallelism, MESH, [Shard(0), Replicate()], 12),
}


def step_of(network):
    def step(x):
        loss = network(x.to_local()).sum()
        loss.backward()
        return loss

    return step


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SHARDED)
def test_fully_shard_sends_and_gives_the_bits_of_the_eager_step(name):
    make, mesh, placements, count = SHARDED[name]
    nets = make(), make()
    steps = step_of(nets[0]), DTensorFunction(step_of(nets[1]))
    for seed in range(2):
        whole = np.random.default_rng(seed).standard_normal((16, 16)).astype(np.float32)
        x = distribute_tensor(whole, mesh, placements)
        with dtensor_messages() as messages:
            losses = steps[0](x), steps[1](x)
        sent = sent_by(steps[1].plan)
        assert sent == sent_at_once(messages, mesh) and len(sent) == count
        for one, other in zip(*(net.trainable_params() for net in nets), strict=True):
            assert one.grad.layout == other.grad.layout == one.layout
            for rank in mesh.ranks:
                np.testing.assert_array_equal(one.grad.local(rank), other.grad.local(rank))
                np.testing.assert_array_equal(losses[0].local(rank), losses[1].local(rank))
        for net in nets:
            update(net.trainable_params(), lambda p, g: p - 0.1 * g)
    assert len(steps[1].programs) == 1


def test_what_fully_shard_gathered_for_a_plan_is_not_used_at_once_nor_after_an_error():
    network = grouped(EIGHT, reshard_after_forward=False)
    x = distribute_tensor(np.ones((16, 16), np.float32), EIGHT, [Shard(0)])
    wanted = grouped(EIGHT)(x.to_local())
    forward = DTensorFunction(lambda x: network(x.to_local()))
    for given in (network(x.to_local()), forward(x), network(x.to_local())):
        np.testing.assert_array_equal(given.local(3), wanted.local(3))
    few = distribute_tensor(np.ones((16, 4), np.float32), EIGHT, [Shard(0)])
    for call in (lambda: network(few.to_local()), lambda: forward(few)):
        with pytest.raises(pl.ParallelLabError):
            call()
        np.testing.assert_array_equal(network(x.to_local()).local(3), wanted.local(3))


def test_groups_that_stay_among_some_ranks_are_not_compiled():
    x = distribute_tensor(np.ones((16, 16), np.float32), EIGHT, [Shard(0)])
    with pytest.raises(NotBuiltYet, match="reshard_after_forward=int"):
        DTensorFunction(step_of(grouped(EIGHT, reshard_after_forward=4)))(x)
