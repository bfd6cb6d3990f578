"""Communication that a network itself calls, compiled in data_parallel mode: results, gradients, refusals."""

from __future__ import annotations

import contextlib
import json
import re

import numpy as np
import pytest

from parallel_lab import Parameter, Tensor, compile, nn, ops, value_and_grad
from parallel_lab.base import hooks
from parallel_lab.base.errors import CollectiveMismatch, TracedCommunication, WorldError
from parallel_lab.base.settings import context
from parallel_lab.cost import get_cluster, message_bytes, step_time_s
from parallel_lab.graph.compiler import compile_program
from parallel_lab.graph.plan import Plan
from parallel_lab.processes.mpi.pool import MpiPool
from parallel_lab.run.interpreter import rank_step
from parallel_lab.run.simulator import Simulator, simulate
from parallel_lab.train.compiled import CompiledFunction
from parallel_lab.train.engine import make_predict_step, make_train_step
from tests.crossed import each_of
from tests.ops.ranks import on_ranks
from tests.pools import shared_pool
from tests.processes.pools import NEEDS_MPI

pytestmark = pytest.mark.timeout(60)

N = 4
GROUPS = {"even": (0, 2), "odd": (1, 3)}
X = np.random.default_rng(7).normal(size=(N, 8, 3))
W = np.random.default_rng(8).normal(size=(3, 4))
# every element counts differently, on every rank
WEIGHTS = np.random.default_rng(9).uniform(0.5, 1.5, size=(N, 32 * 8))


def rows(h, n=N):
    return np.split(h, n, axis=0)


def nothing_but_at(root, value):
    return [value if rank == root else np.zeros(1) for rank in range(N)]


def send_around(h, rank):
    """Two messages under two tags to the right, which takes them the other way round."""
    right, left = (rank + 1) % N, (rank - 1) % N
    ops.Send(3, right)(h * 2.0)
    ops.Send(5, right)(h * h)
    second = ops.Receive(5, left, (8, 4), np.float64)()
    first = ops.Receive(3, left, (8, 4), np.float64)()
    return first + second * second


def hand_on(h, rank):
    """A pipeline by hand: every rank adds what the one before it has made."""
    if rank > 0:
        h = h * ops.Receive(0, rank - 1, (8, 4), np.float64)()
    if rank < N - 1:
        ops.Send(0, rank + 1)(h)
    return h


def neighbours(h, rank):
    right, left = (rank + 1) % N, (rank - 1) % N
    exchange = ops.NeighborExchange([left, right], [left, right], [(2, 4), (3, 4)], [(3, 4), (2, 4)], np.float64)
    below, above = exchange((h[:3], h[6:]))
    return ops.concat((below, above * above))


def tiles(h, rank):
    """A 2 by 2 grid of tiles of (1, 1, 8, 4), each with what lies around it; a corner left out."""
    down, right = divmod(rank, 2)
    side, over, across = 2 * down + 1 - right, 2 * (1 - down) + right, 3 - rank
    ids = [-1] * 8
    ids[4 if down == 0 else 0], ids[2 if right == 0 else 6] = over, side
    if rank in (0, 3):  # the other two exchange no corners
        ids[3 if rank == 0 else 7] = across
    lens = [0 if down == 0 else 2, 2 if down == 0 else 0, 0 if right == 0 else 1, 1 if right == 0 else 0]
    return ops.NeighborExchangeV2(ids, lens, ids, lens, "NCHW")(ops.reshape(h, (1, 1, 8, 4)))


def with_borders(hs):
    whole = np.concatenate([np.concatenate(hs[:2], axis=1), np.concatenate(hs[2:], axis=1)])
    found = [whole[:10, :5], whole[:10, 3:].copy(), whole[6:, :5].copy(), whole[6:, 3:]]
    found[1][8:, :1] = 0
    found[2][:2, 4:] = 0
    return [tile[None, None] for tile in found]


def chained(hs):
    made = [hs[0]]
    for h in hs[1:]:
        made.append(h * made[-1])
    return made


# what a rank calls on h, of its own rows and the weights; and the results of all ranks, from those of all ranks
CASES = {
    "AllReduce": (lambda h, rank: ops.AllReduce()(h), lambda hs: [sum(hs)] * N),
    "AllReduce max": (lambda h, rank: ops.AllReduce("max")(h), lambda hs: [np.max(hs, axis=0)] * N),
    "AllReduce in a group": (
        lambda h, rank: ops.AllReduce(group="odd" if rank % 2 else "even")(h),
        lambda hs: [hs[0] + hs[2], hs[1] + hs[3]] * 2,
    ),
    "AllGather": (lambda h, rank: ops.AllGather()(h), lambda hs: [np.concatenate(hs)] * N),
    "ReduceScatter": (lambda h, rank: ops.ReduceScatter()(h), lambda hs: rows(sum(hs))),
    "AlltoAll": (
        lambda h, rank: ops.AlltoAll(N, 0, 1)(h),
        lambda hs: [np.concatenate([rows(h)[i] for h in hs], axis=1) for i in range(N)],
    ),
    "Broadcast": (lambda h, rank: ops.Broadcast(1)((h,))[0], lambda hs: [hs[1]] * N),
    "CollectiveScatter": (lambda h, rank: ops.CollectiveScatter(2)(h), lambda hs: rows(hs[2])),
    "Reduce": (lambda h, rank: ops.Reduce(1)(h), lambda hs: nothing_but_at(1, sum(hs))),
    "CollectiveGather": (lambda h, rank: ops.CollectiveGather(3)(h), lambda hs: nothing_but_at(3, np.concatenate(hs))),
    "Send and Receive": (send_around, lambda hs: [2 * hs[r - 1] + hs[r - 1] ** 4 for r in range(N)]),
    "a chain of ranks": (hand_on, chained),
    "NeighborExchangeV2": (tiles, with_borders),
    "NeighborExchange": (
        neighbours,
        lambda hs: [np.concatenate([hs[r - 1][6:], hs[(r + 1) % N][:3] ** 2]) for r in range(N)],
    ),
}
SAME_ON_ALL_RANKS = ("AllReduce", "AllReduce max", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast")


class Talking(nn.Cell):
    """sum(case(x w) * weights of this rank): a loss of each rank's own."""

    def __init__(self, name, rank):
        super().__init__()
        self.w, self.rank, self.call = Parameter(Tensor(W), name="w"), rank, CASES[name][0]

    def construct(self, x, weights):
        out = self.call(ops.tanh(ops.matmul(x, self.w)), self.rank)
        return ops.reduce_sum(out * ops.reshape(weights[: int(np.prod(out.shape))], out.shape))


def losses_by_hand(name, w):
    outs = CASES[name][1]([np.tanh(x @ w) for x in X])
    return [float((out * given[: out.size].reshape(out.shape)).sum()) for out, given in zip(outs, WEIGHTS, strict=True)]


def gradient_by_hand(name):
    """The gradient of the sum of all ranks' losses, by central differences."""
    found, step = np.empty_like(W), 1e-6
    for at in np.ndindex(W.shape):
        moved = [W.copy(), W.copy()]
        moved[0][at], moved[1][at] = W[at] + step, W[at] - step
        found[at] = (sum(losses_by_hand(name, moved[0])) - sum(losses_by_hand(name, moved[1]))) / (2 * step)
    return found


class OneOf:
    """A rank that only knows its place, to compile for it."""

    def __init__(self, rank, size=N):
        self.rank, self.world_size, self.groups = rank, size, GROUPS

    def group(self, name):
        return tuple(range(self.world_size)) if name is None else self.groups[name]


@contextlib.contextmanager
def being(rank, size=N):
    hooks.set_world(OneOf(rank, size))
    try:
        yield
    finally:
        hooks.set_world(None)


SETTINGS = {"parallel_mode": "data_parallel", "dataset_strategy": "data_parallel", "device_num": N}


def simulated(name):
    """(losses, gradients of w, new w) of the ranks, each with the plan that it traced itself, in one step."""
    plans, programs = [], []
    for rank in range(N):
        with being(rank):
            net = Talking(name, rank)
            options = {"loss": lambda loss, label: loss + 0 * ops.reduce_sum(label), **SETTINGS}
            optimizer = nn.SGD(net.trainable_params(), 0.125)
            plans.append(compile(net, X[rank], WEIGHTS[rank], np.zeros(1), optimizer=optimizer, **options))
        rate = next(s.name for s in plans[-1].states)
        given = dict(zip([i.name for i in plans[-1].data_inputs], (X[rank], WEIGHTS[rank], np.zeros(1)), strict=True))
        given |= plans[-1].constant_arrays
        programs.append(rank_step(plans[-1], rank, {**given, "w": W, rate: np.asarray(0.125)}))
    envs = simulate(programs)
    losses = [env[plan.outputs[0]].item() for plan, env in zip(plans, envs, strict=True)]
    return losses, [env[dict(plan.gradients)["w"]] for plan, env in zip(plans, envs, strict=True)], envs


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_all_ranks_together(name):
    losses, gradients, _ = simulated(name)
    assert losses == pytest.approx(losses_by_hand(name, W), rel=1e-12)
    wanted = gradient_by_hand(name)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SAME_ON_ALL_RANKS)
def test_without_a_world_one_plan_is_all_ranks(name):
    net = Talking(name, 0)
    batch = np.concatenate(X), WEIGHTS.reshape(-1), np.zeros(N)
    one = [X[0], WEIGHTS[0], np.zeros(1)]
    plan = compile(net, *one, loss=lambda loss, label: loss + 0 * ops.reduce_sum(label), **SETTINGS)
    sim = Simulator(plan, {"w": W})
    sim.run_step(*batch)
    losses, gradients, _ = simulated(name)
    assert [sim.value(plan.outputs[0], rank).item() for rank in range(N)] == losses
    np.testing.assert_array_equal(sim.full(dict(plan.gradients)["w"]), gradients[0])


# ---- real ranks ----


def trained(world, name):
    """(loss, new w, kinds of the messages sent) of a step of `Model`'s on this rank."""
    world.groups.update(GROUPS)
    context.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=False)
    net = Talking(name, world.rank)
    optimizer = nn.SGD(net.trainable_params(), 0.125)
    step = make_train_step(net, lambda loss, label: loss + 0 * ops.reduce_sum(label), optimizer)
    loss = step(Tensor(X[world.rank]), Tensor(WEIGHTS[world.rank]), Tensor(np.zeros(1)))
    return loss.item(), net.w.asnumpy(), step.plan is not None


@pytest.fixture(scope="module", params=["processes", pytest.param("mpi", marks=[NEEDS_MPI, pytest.mark.exhaustive])])
def pool(request):
    with contextlib.nullcontext(shared_pool(N)) if request.param == "processes" else MpiPool(N, timeout_s=20) as pool:
        yield pool


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_processes_give_the_simulators_bits(pool, name):
    losses, _, envs = simulated(name)
    for rank, (loss, w, compiled) in enumerate(on_ranks(pool, trained, name)):
        assert compiled
        assert loss == losses[rank]
        np.testing.assert_array_equal(w, envs[rank]["w"])


# ---- a layer that communicates ----


def normalized(world, x, groups):
    """A batch norm of this rank's rows with the statistics of its group: (result, its moving mean)."""
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    settings = {"process_groups": groups, "use_batch_statistics": True, "dtype": np.float64}
    layer = nn.SyncBatchNorm(3, **settings)
    out = make_predict_step(layer)(Tensor(x[world.rank]))
    return out.asnumpy(), layer.moving_mean.asnumpy()


@each_of("groups", None, [[0, 2], [1, 3]], [[0, 2], [3]])
def test_groups_of_a_layer_are_obeyed_whether_one_plan_of_all_ranks_can_say_them_or_not(pool, groups):
    x = np.random.default_rng(71).normal(size=(N, 2, 3))
    together = [range(N)] if groups is None else groups
    for rank, (out, mean) in enumerate(on_ranks(pool, normalized, x, groups)):
        rows_of_all = np.concatenate(x[list(next((g for g in together if rank in g), [rank]))])
        expected = (x[rank] - rows_of_all.mean(0)) / np.sqrt(rows_of_all.var(0) + 1e-5)
        np.testing.assert_allclose(out, expected, rtol=1e-9)
        np.testing.assert_allclose(mean, 0.1 * rows_of_all.mean(0), rtol=1e-9)


def apart(h, rank):
    return ops.AllReduce()(h) if rank else ops.AllGather()(h)[:8]


def unanswered(h, rank):
    return ops.Send(1, 2)(h) if rank == 0 else h


def crossed(h, rank):
    if rank > 1:
        return h
    got = ops.Receive(0, 1 - rank, (8, 4), np.float64)()
    return got + ops.Send(0, 1 - rank)(h)


def other_shape(h, rank):
    return ops.Send(0, 1)(h) if rank == 0 else h + ops.Receive(0, 0, (4, 4), np.float64)()[:1] if rank == 1 else h


def left_out(h, rank):
    return h if rank == 3 else ops.AllReduce()(h)


MISMATCHED = {
    "apart": (apart, r"rank 0 calls AllGather of \w+ at \S*networks.py:\d+.* and rank 1 calls AllReduce of .*py:\d+"),
    "unanswered": (unanswered, r"rank 0 calls Send .*networks.py:\d+.*, and rank 2 never receives it"),
    "crossed": (crossed, r"rank 0 would wait for ever in Receive .*; rank 1 would wait for ever in Receive"),
    "other shape": (other_shape, r"rank 0 calls Send .*\(8, 4\).* and rank 1 calls Receive .*\(4, 4\)"),
    "left out": (left_out, r"rank \d calls AllReduce .*rank 3"),
}


def mismatch_of(world, name):
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    w = Parameter(Tensor(W), name="w")
    step = CompiledFunction(lambda x: MISMATCHED[name][0](ops.matmul(x, w), world.rank))
    try:
        step(Tensor(X[world.rank]))
    except CollectiveMismatch as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", MISMATCHED)
def test_messages_that_do_not_meet_are_named_before_step_1_on_every_rank(pool, name):
    for text in on_ranks(pool, mismatch_of, name):
        assert text is not None and text.startswith("before step 1: ") and re.search(MISMATCHED[name][1], text), text


# ---- behind the gradient, where operators are split ----


def own_norm(h, rank):
    """As a norm is written for slices: squares of what a rank has, divided by how often they are counted."""
    return ops.AllReduce()(ops.expand_dims(ops.reduce_sum(ops.square(h)), 0) / 2)


# the same calls on a rank's slice of a gradient, and what they are made of; also two that only slices explain
OF_SLICES = {name: CASES[name] for name in (*SAME_ON_ALL_RANKS, "AllReduce in a group")} | {
    "a norm": (own_norm, lambda hs: [[sum((h * h).sum() for h in hs) / 2]] * N),
    "a flat maximum": (
        lambda h, rank: ops.AllReduce("max", "odd" if rank % 2 else "even")(ops.reduce_max(ops.reshape(h, (-1,)))),
        lambda hs: [max(hs[0].max(), hs[2].max()), max(hs[1].max(), hs[3].max())] * 2,
    ),
    "a result behind it": (lambda h, rank: ops.reduce_sum(ops.square(h) / own_norm(h, rank)), lambda hs: [1.0] * N),
}


def behind_the_gradient(world, name):
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=N, full_batch=True)
    world.groups.update(GROUPS)
    w, product = Parameter(Tensor(np.tile(W, (1, 2)).repeat(3, 0)[:8]), name="w"), ops.MatMul().shard(((2, 1), (1, 2)))
    gradient = value_and_grad(lambda x: ops.reduce_sum(ops.square(product(x, w))), None, [w])
    step = CompiledFunction(lambda x: OF_SLICES[name][0](gradient(x)[1][0], world.rank))
    return np.array(step(Tensor(X[0, :, :1].repeat(8, 1))).asnumpy())


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", OF_SLICES)
def test_behind_the_gradient_messages_act_on_slices_as_they_lie(pool, name):
    """Slices are (8, 4): columns of ranks 0 and 2 are equal, and of 1 and 3. MindSpore runs them so, unchecked."""
    x, w = X[0, :, :1].repeat(8, 1), np.tile(W, (1, 2)).repeat(3, 0)[:8]
    halves = np.split(2 * x.T @ (x @ w), 2, axis=1)
    expected = OF_SLICES[name][1]([halves[rank % 2] for rank in range(N)])
    for result, value in zip(on_ranks(pool, behind_the_gradient, name), expected, strict=True):
        np.testing.assert_allclose(result, value, rtol=1e-12)


@each_of(
    ("call", "words"),
    (lambda g: ops.AllReduce()(ops.reshape(g, (4, 16))), r"reads \(8, 8\) reshaped to \(4, 16\), slices \(8, 4\)"),
    (lambda g: ops.Reduce(0)(g), "can not contain communication op.*behind gradients AllReduce, "),
    (lambda g: ops.AllReduce()(ops.reshape(g, (-1,))) * ops.reshape(g, (-1,)), "no slice"),
)
def test_what_slices_do_not_say_is_refused(call, words):
    w, product = Parameter(Tensor(np.ones((8, 8))), name="w"), ops.MatMul().shard(((2, 1), (1, 2)))
    gradient = value_and_grad(lambda x: ops.reduce_sum(product(x, w)), None, [w])
    settings = {"device_num": N, "parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    with pytest.raises(RuntimeError, match=words):
        compile_program(lambda x: call(gradient(x)[1][0]), np.ones((8, 8)), **settings)


# ---- what cannot be ----


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_where_operators_are_split_the_graph_contains_no_communication(mode):
    net, search = Talking("AllReduce", 0), {"search_mode": "sharding_propagation"}
    words = (
        rf"networks.py:\d+: the graph can not contain communication op: parallel_mode '{mode}', AllReduce in Default/"
    )
    with pytest.raises(TracedCommunication, match=words) as refused:
        compile(net, X[0], WEIGHTS[0], device_num=N, parallel_mode=mode, **search)
    assert isinstance(refused.value, RuntimeError)


def test_without_a_world_the_plan_is_that_of_the_global_rank():
    """It can be looked at; that of another rank is another one, and ranks that all run it get an error."""
    plan = compile(Talking("a chain of ranks", 2), X[2], WEIGHTS[2], global_rank=2, **SETTINGS)
    assert [(i.kind, i.group(2)) for _, i in plan.instructions() if i.is_communication] == [
        ("recv", (1, 2)),
        ("send", (2, 3)),
    ]
    with pytest.raises(CollectiveMismatch, match="rank 0 called recv"):
        Simulator(plan, {"w": W}).run_step(np.concatenate(X), WEIGHTS.reshape(-1))
    with pytest.raises(WorldError, match="AllReduce: this process is not a rank"):
        compile(Talking("AllReduce in a group", 0), X[0], WEIGHTS[0], **SETTINGS)


@pytest.mark.parametrize("name", ["AllReduce in a group", "Broadcast", "a chain of ranks"])
def test_the_plan_of_a_rank_can_be_kept_printed_and_costed(name):
    with being(2):
        plan = compile(Talking(name, 2), X[2], WEIGHTS[2], **SETTINGS)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    messages = [i for _, i in plan.instructions() if i.is_communication]
    # of h, (8, 4) float64; rank 2 is not the root of the broadcast, and sends and receives in the chain
    sizes = {"AllReduce in a group": [256], "Broadcast": [0], "a chain of ranks": [256, 256]}[name]
    assert [message_bytes(plan, i, 2) for i in messages] == sizes
    shown = [c["group"] for c in plan.to_dict(rank=2)["comm"]]
    assert shown == [list(i.group(2)) for i in messages]
    assert all(f"group_ranks: {'-'.join(map(str, group))}" in plan.text(2) for group in shown)
    seconds = step_time_s(plan, get_cluster("laptop"), rank=2).total_s
    assert seconds > len(messages) * get_cluster("laptop").link.alpha_s


def test_where_no_mode_was_set_a_network_that_communicates_is_compiled_for_data_parallel():
    plan = compile(Talking("AllGather", 0), X[0], WEIGHTS[0], device_num=N)
    assert plan.config.parallel_mode == "data_parallel"
    assert [i.kind for _, i in plan.instructions() if i.is_communication] == ["all_gather"]


@pytest.mark.parametrize("mode", ["stand_alone", "data_parallel"])
def test_alone_a_rank_gets_its_own_value(mode):
    def construct(x):
        return ops.AllReduce()(x) + ops.AllGather()(x) * ops.ReduceScatter()(x) + ops.Broadcast(0)(x)

    plan = compile(construct, X[0], device_num=1, parallel_mode=mode)
    assert not [i for _, i in plan.instructions() if i.is_communication]
    np.testing.assert_array_equal(Simulator(plan, {}).run_step(X[0]), X[0] + X[0] * X[0] + X[0])


def test_what_is_made_from_gradients_is_left_to_the_program():
    w = Parameter(Tensor(W), name="w")
    step = value_and_grad(lambda x: ops.reduce_sum(ops.matmul(x, w)), None, [w])
    with pytest.raises(TracedCommunication, match=r"AllReduce is given 'w\.gradient', which is made from gradients"):
        compile_program(lambda x: ops.AllReduce()(step(x)[1][0]), X[0], **SETTINGS)
