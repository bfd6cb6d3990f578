"""bfloat16: computed in float32 and rounded once, two bytes per element wherever it is held or sent."""

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops, value_and_grad
from parallel_lab.base.dtypes import as_dtype, load_bfloat16
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.ops import OPS
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.simulator import Simulator
from parallel_lab.train.checkpoint import load_checkpoint, save_checkpoint
from tests.crossed import each_of
from tests.nets import cell
from tests.recorded.nets import Quick

BF16 = load_bfloat16()
RNG = np.random.default_rng(7)


def rounded(x):
    """The nearest bfloat16, ties to even, by the bits of the float32."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xFFFF0000)
    return kept.astype(np.uint32).view(np.float32)


def half(*shape):
    return rounded(RNG.normal(size=shape)).astype(BF16)


# ---- dtypes ----


@each_of(
    ("other", "result"),
    *(("bool", "bfloat16"), ("int8", "bfloat16"), ("int32", "bfloat16"), ("int64", "bfloat16"), ("uint8", "bfloat16")),
    *(("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32"), ("float64", "float64")),
)
def test_a_sum_with_another_dtype_is_what_mindspore_makes_it(other, result):
    x, y = Tensor(np.ones(3), "bfloat16"), Tensor(np.ones(3), other)
    assert [str((a + b).dtype) for a, b in ((x, y), (y, x))] == [result, result]


@each_of("number", 1, 2.5, -1e-3)
def test_python_numbers_leave_it_as_it_is(number):
    x = Tensor(half(4))
    for out in (x + number, number * x, x - number, number / x, x**2, -x):
        assert out.dtype == BF16


CASES = [(name, i) for name, op in sorted(OPS.items()) for i, c in enumerate(op.cases) if not op.writes]


@pytest.mark.quick(14)
@pytest.mark.parametrize(("name", "number"), CASES, ids=[f"{name}-{i}" for name, i in CASES])
def test_an_operator_gives_the_dtype_that_float16_would_have_and_the_rounded_float32_result(name, number):
    op = OPS[name]
    given = op.cases[number]
    arrays = [a.astype(BF16) if a.dtype.kind == "f" else a for a in given.arrays(np.random.default_rng(0))]
    attrs, shapes = dict(given.attrs), tuple(given.shapes)
    single = lambda values: op(*values, **attrs)  # noqa: E731
    call = single if op.variadic else lambda values: op(**dict(zip(op.tensors, values, strict=True)), **attrs)
    results = call(arrays)
    full = call([a.astype(np.float32) if a.dtype == BF16 else a for a in arrays])
    attrs = {**op.default_attrs, **attrs}
    dtypes = [tuple(d if a.dtype == BF16 else str(a.dtype) for a in arrays) for d in ("bfloat16", "float16")]
    inferred, of_float16 = (op.infer(shapes, d, attrs).dtypes for d in dtypes)
    both = zip(*(r if isinstance(r, tuple) else (r,) for r in (results, full)), strict=True)
    for i, (mine, wide) in enumerate(both):
        assert inferred[i] == of_float16[i].replace("float16", "bfloat16") == str(np.asarray(mine).dtype)
        if op.expand is None and inferred[i] == "bfloat16":
            np.testing.assert_array_equal(np.asarray(mine).astype(np.float32), rounded(wide))
        elif op.expand is not None:  # each part rounds
            np.testing.assert_allclose(np.asarray(mine, np.float64), wide, rtol=0.1, atol=0.1)


# ---- precision ----


def test_sums_and_products_add_up_in_float32():
    """In bfloat16, adding ones stops at 256."""
    ones = Tensor(np.ones((2, 3000)), "bfloat16")
    np.testing.assert_array_equal(ops.reduce_sum(ones, 1).asnumpy().astype(np.float64), rounded([3000.0, 3000.0]))
    np.testing.assert_array_equal(
        ops.matmul(ones, ones.T).asnumpy().astype(np.float64), rounded(np.full((2, 2), 3000.0))
    )


def test_gradients_have_its_dtype_and_are_near_those_of_float32():
    w, x = half(6, 4), half(8, 6)
    found = []
    for dtype in (BF16, np.float32):
        p = Parameter(Tensor(w.astype(dtype)), name="w")
        out = ops.reduce_sum(ops.square(ops.tanh(ops.matmul(Tensor(x.astype(dtype)), p))))
        found.append(gradients(out, [p])[0])
    assert found[0].dtype == BF16
    np.testing.assert_allclose(found[0].astype(np.float32), found[1], rtol=0.03, atol=0.05)


# ---- plans ----

STRATEGY = (((2, 4), (4, 1)), ((2, 4),), ((2, 4), (4, 1)))


def test_a_compiled_function_differentiates_it():
    """It was taken for no float: its kind is numpy's "V"."""
    w, x = Parameter(Tensor(half(4, 3)), name="w"), half(8, 4)
    step = value_and_grad(lambda x: ops.reduce_sum(ops.matmul(x, w)), 0, [w])
    plan = compile(lambda x: step(x)[1], x, device_num=8, dataset_strategy="full_batch")
    sim = Simulator(plan, {"w": w.asnumpy()})
    sim.run_step(x)
    by_input, (by_weight,) = step(Tensor(x))[1]
    for name, wanted in zip(plan.outputs, (by_input, by_weight), strict=True):
        found = sim.full(name)
        assert found.dtype == load_bfloat16()
        np.testing.assert_allclose(found.astype(float), wanted.asnumpy().astype(float), rtol=2**-7)


@each_of("dtype", "bfloat16", "float16")
def test_a_cell_s_dtype_is_that_of_its_inputs_and_parameters_of_every_float(dtype):
    """Tensors and Parameters in bfloat16 stayed as they were in a Cell in float16."""
    seen = []
    net = cell(lambda self, x: seen.append((str(x.dtype), str(self.w.dtype))) or x, w=Parameter(Tensor(half(2)), "w"))
    net.to_float(dtype)(Tensor(half(3)))
    assert seen == [(dtype, dtype)]


def net_and_data(dtype=np.float32):
    net = Quick(32, 16, 16, *STRATEGY)
    rng = np.random.default_rng(41)
    for p in net.trainable_params():
        p._initial, p._data = None, (rng.normal(size=p.shape) / 5).astype(dtype)
    return net, (rng.normal(size=(16, 32)).astype(dtype), rng.normal(size=(16, 16)).astype(dtype))


def trained(net, data, pool=None, **settings):
    opt = nn.Adam(net.trainable_params(), 0.01)
    plan = compile(
        net, *data, loss=nn.MSELoss(), optimizer=opt, device_num=8, dataset_strategy="full_batch", **settings
    )
    with Session(
        plan, net, opt, executor="processes" if pool else "simulator", **({"pool": pool} if pool else {})
    ) as s:
        return plan, s.train([data], 6), s.parameters()


def test_messages_and_values_count_two_bytes():
    sizes = []
    for dtype in ("float32", "bfloat16"):
        net, data = net_and_data()
        plan, _, _ = trained(net.to_float(dtype), data)
        product = next(i for _, i in plan.instructions("forward") if i.kind == "all_reduce" and i.name == "matmul")
        shown = next(c for c in plan.to_dict(rank=0)["comm"] if c["op"] == "AllReduce" and c["name"] == "matmul")
        sizes.append((plan.value(product.out).slice_bytes, shown["bytes"]))
    elements = 16 // 2 * 16  # the rows are split in 2, and the sum is among 4
    assert sizes == [(4 * elements, 4 * elements), (2 * elements, 2 * elements)]
    assert "BFloat16" in plan.text()


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(8) as workers:
        yield workers


@pytest.mark.exhaustive
@pytest.mark.parametrize("kept", [np.float32, BF16], ids=["computed in it", "kept in it"])
def test_processes_give_the_bits_of_the_simulator_and_training_follows_float32(kept, pool):
    """Parameters in float32 that are cast at use; and in bfloat16, whose updates are worked out in float32."""
    results = []
    for executor in (None, pool):
        net, data = net_and_data(kept)
        plan, losses, found = trained(net if kept is BF16 else net.to_float("bfloat16"), data, executor)
        results.append((losses, {n: a.tobytes() for n, a in found.items()}))
    assert results[0] == results[1]
    assert plan.value("matmul").dtype == "bfloat16" and {str(a.dtype) for a in found.values()} == {str(np.dtype(kept))}
    net, data = net_and_data()
    _, wide, _ = trained(net, data)
    assert losses != wide
    np.testing.assert_allclose(losses, wide, rtol=0.02)


@each_of(
    ("sync", "total"),
    # 256 + 1 is 256 in bfloat16, seven times; 263 is rounded to 264
    *((True, 264.0), (False, 256.0)),
)
def test_gradient_fp32_sync_decides_in_what_ranks_add_up(sync, total):
    """Addends 256, 1, 1, ... of eight ranks; one device, which adds up in float32 and rounds once, has 264."""
    x = np.ones((8, 8), BF16)
    x[0] = 256
    found = []
    for devices in (8, None):
        total_of = cell(lambda net, out, label: net.sum(out), sum=ops.ReduceSum())
        w, product = Parameter(np.ones((8, 2), BF16), name="w"), ops.MatMul()
        net = cell(lambda net, x: net.product(x, net.w), w=w, product=product)
        settings = {"parallel_mode": "stand_alone"}
        if devices:
            total_of.sum.shard(((8, 1),))
            product.shard(((8, 1), (1, 1)))
            settings = {"device_num": 8, "dataset_strategy": "full_batch", "gradient_fp32_sync": sync}
        plan = compile(net, x, x[:, :2], loss=total_of, **settings)
        with Session(plan, net) as session:
            session.train([(x, x[:, :2])], 1)
            found.append(session.gradients()["w"])
    assert {f.dtype for f in found} == {BF16}
    scale = float(found[0][0, 0]) / total
    assert scale in (1.0, 8.0)  # with loss_repeated_mean
    np.testing.assert_array_equal(found[0].astype(np.float32), np.full((8, 2), total * scale, np.float32))
    np.testing.assert_array_equal(found[1].astype(np.float32), np.full((8, 2), 264, np.float32))


# ---- ranks ----


def test_ranks_send_and_add_it(pool):
    def program(comm):
        x = (np.arange(8) + comm.rank).astype(as_dtype("bfloat16"))
        found = [comm.all_reduce(x), comm.all_reduce(x, reduce="max"), comm.all_gather(x, dim=0)]
        found += [comm.reduce_scatter(x), comm.broadcast(x, root=1), comm.start("all_reduce", x).wait()]
        if comm.rank == 0:
            comm.send(x, 1)
        return [*found, comm.recv(0)] if comm.rank == 1 else found

    mine = [np.arange(8.0) + rank for rank in range(8)]
    total = np.zeros(8)
    for x in mine:  # in the order of the ranks, each sum rounded
        total = rounded(total + x)
    want = [total, mine[7], np.concatenate(mine), total[1:2], mine[1], total, mine[0]]
    for found, wanted in zip(pool.run(program)[1], want, strict=True):
        assert found.dtype == BF16
        np.testing.assert_array_equal(found.astype(np.float64), wanted)


# ---- files ----


def test_a_checkpoint_keeps_it(tmp_path):
    net, _ = net_and_data(BF16)
    before = {p.name: p.asnumpy().copy() for p in net.get_parameters()}
    save_checkpoint(net, tmp_path / "net.ckpt")
    assert b'"BF16"' in (tmp_path / "net.ckpt").read_bytes()
    for name, found in load_checkpoint(str(tmp_path / "net.ckpt")).items():
        assert found.dtype == BF16 and found.asnumpy().tobytes() == before[name].tobytes()
