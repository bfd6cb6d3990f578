"""Pipeline stages that run at once: losses, outputs and gradients of the undivided network; the messages between."""

import textwrap

import numpy as np
import pytest

import parallel_lab as pl
import parallel_lab.hyper_parallel as hp
from parallel_lab import nn, ops
from parallel_lab.nn.tensor.dtensor_parameter import update
from tests.processes.launched import output_of

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 6)).astype(np.float32), RNG.standard_normal((8, 3)).astype(np.float32)
UTILS = hp.platform.mindspore.pipeline_parallel._utils
SCHEDULES = (pl.ScheduleGPipe, pl.Schedule1F1B, pl.ScheduleInterleaved1F1B)


def cells():
    pl.set_seed(1)
    layers = [nn.Dense(6, 5), nn.ReLU()], [nn.Dense(5, 4)], [nn.Dense(4, 4), nn.Tanh()], [nn.Dense(4, 3)]
    return [nn.SequentialCell(*each) for each in layers]


def parameters(parts):
    return [p for cell in parts for p in cell.trainable_params()]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_train_as_the_undivided_network(schedule):
    """Twice: the gradients of the second step are those after an update of the first. Four micro-batches, four stages:
    each sends three activations and three gradients, of 2 rows.
    """
    parts, whole = cells(), nn.SequentialCell(*cells())
    for p, q in zip(whole.trainable_params(), parameters(parts), strict=True):
        p.set_data(pl.Tensor(q.asnumpy()))
    pipeline = schedule([pl.PipelineStage(cell, at, 4) for at, cell in enumerate(parts)], 4, nn.MSELoss())
    loss_of, losses = nn.MSELoss(), []
    for _ in range(2):
        with pl.dtensor_messages() as sent:
            out = pipeline.step(X, target=Y, losses=losses)
        value, grads = pl.value_and_grad(lambda x: loss_of(whole(x), pl.Tensor(Y)), None, whole.trainable_params())(
            pl.Tensor(X)
        )
        np.testing.assert_allclose(out, whole(pl.Tensor(X)).asnumpy(), atol=1e-6)
        np.testing.assert_allclose(np.mean([float(loss) for loss in losses[-4:]]), float(value), rtol=1e-5)
        for p, g in zip(parameters(parts), grads, strict=True):
            np.testing.assert_allclose(p.grad.asnumpy(), g.asnumpy(), atol=1e-6)
        assert sorted((m.axis, m.shape) for m in sent) == sorted(
            (f"stage {a} -> {b}", (2, n)) for a, n in enumerate((5, 4, 4)) for a, b in ((a, a + 1), (a + 1, a)) * 4
        )
        update(parameters(parts), lambda p, g: p - 0.1 * g)
        for p, g in zip(whole.trainable_params(), grads, strict=True):
            p.set_data(pl.Tensor(p.asnumpy() - 0.1 * g.asnumpy()))
    assert len(losses) == 8


class Pair(nn.Cell):
    """Gives two tensors; a gradient goes back through both."""

    def __init__(self):
        super().__init__()
        self.weight = pl.Parameter(np.full((6, 6), 0.5, np.float32), name="weight")

    def construct(self, x):
        return ops.matmul(x, self.weight), x * 2.0


class Sum(nn.Cell):
    def construct(self, a, b, scale=1.0):
        return (a * b).sum() * scale


def test_stages_hand_over_tuples_and_split_along_other_dims():
    """loss = sum(x w * 2 x): its gradient by w is x^T (2 x), over all micro-batches."""
    pair = Pair()
    stages = [hp.PipelineStage(pair, 0, 2), hp.PipelineStage(Sum(), 1, 2)]
    schedule = hp.ScheduleGPipe(stages, 2, args_batch_dim=hp.BatchDimSpec.from_tuple((0,)), output_concat_dim=None)
    found = schedule.run(X)
    np.testing.assert_allclose(found.sum(), (X @ np.full((6, 6), 0.5) * 2 * X).sum(), rtol=1e-4)
    np.testing.assert_allclose(pair.weight.grad.asnumpy(), X.T @ (2 * X), rtol=1e-4)


def test_arguments_are_split_along_the_dims_that_are_named():
    split = UTILS._MicroBatch(2, [hp.BatchDimSpec(1), None], {"mask": hp.BatchDimSpec(0)})
    args, named = split((pl.Tensor(X), X), {"mask": X, "other": "text"})
    assert [[x.shape for x in each] for each in args] == [[(8, 3), (4, 6)]] * 2
    assert [(each["mask"].shape, each["other"]) for each in named] == [((4, 6), "text")] * 2
    np.testing.assert_array_equal(args[1][0].asnumpy(), X[:, 3:])
    with pytest.raises(ValueError, match="args_batch_dim"):
        split((X,), {})
    assert hp.BatchDimSpec.from_dict({"mask": 1}) == {"mask": hp.BatchDimSpec(1)}


def test_micro_batches_of_a_distributed_tensor_lie_as_it_does():
    """What HyperParallel's own tests of `_MicroBatch` ask for, on a mesh that splits something."""
    mesh = hp.init_device_mesh("npu", (2, 3), mesh_dim_names=("dp", "tp"))
    x, y = hp.distribute_tensor(X, mesh, ("dp", "tp")), hp.distribute_tensor(X.T.copy(), mesh, ("None", "dp"))
    names = hp.BatchDimSpec.from_dict({"input1": 0, "input2": 1})
    args, named = UTILS._MicroBatch(2, hp.BatchDimSpec.from_tuple((0,)), names)([x], {"input1": x, "input2": y})
    assert len(args) == len(named) == 2
    for n, ((part,), each) in enumerate(zip(args, named, strict=True)):
        assert part.layout == x.layout and part.shape == (4, 6) and each["input2"].layout == y.layout
        rows = [0 + 2 * n, 1 + 2 * n, 4 + 2 * n, 5 + 2 * n]  # each rank along dp gives half of its four
        np.testing.assert_array_equal(part.full_tensor().asnumpy(), X[rows])
        np.testing.assert_array_equal(each["input2"].full_tensor().asnumpy(), X[rows].T)
    assert UTILS._MicroBatch(2)([], {})[0] == [[], []]


def test_the_order_is_made_of_meta_steps():
    stages = [hp.PipelineStage(cell, at, 2) for at, cell in enumerate(cells()[:2])]
    order = hp.Schedule1F1B(stages, 2).exec_order
    assert [(s.type.name, s.micro_index) for s in order[1]] == [
        *(("FWD_RECV", 0), ("FWD", 0), ("BWD", 0), ("BWD_SEND", 0)),
        *(("FWD_RECV", 1), ("FWD", 1), ("BWD", 1), ("BWD_SEND", 1)),
    ]
    # as HyperParallel prints one
    assert str(order[1][3]) == repr(order[1][3]) == "MetaStep(type=MetaStepType.BWD_SEND, micro_index=0, stage_index=1)"


MISTAKES = {
    "stages": lambda: pl.Schedule1F1B([pl.PipelineStage(cells()[0], 0, 2)], 2),
    "0 to 1": lambda: pl.PipelineStage(cells()[0], 2, 2),
    "A Cell": lambda: pl.PipelineStage(print, 0, 2),
    "micro-batches": lambda: pl.ScheduleGPipe([pl.PipelineStage(cells()[0], 0, 1)], 9).step(X),
    "As many": lambda: pl.ScheduleInterleaved1F1B([pl.PipelineStage(cells()[0], 0, 1)], 2, ranks=2),
    "An int": lambda: hp.BatchDimSpec("0"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_says_what_is_allowed(words):
    with pytest.raises(ValueError, match=words):
        MISTAKES[words]()


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import numpy as np
import parallel_lab as pl
from parallel_lab import nn
from tests.nn.test_pipeline_stage import X, Y, cells

pl.init()
rank, parts = pl.get_rank(), cells()
mine = [pl.PipelineStage(cell, at, 4) for at, cell in enumerate(parts) if at % 2 == rank]
out = pl.ScheduleInterleaved1F1B(mine, 4, nn.MSELoss()).step(X, target=Y)
grads = {{str(s.stage_index): s.submodule.trainable_params()[0].grad.local(rank) for s in mine}}
np.savez(f"rank{{rank}}.npz", **grads, out=np.zeros(1) if out is None else out)
"""


@pytest.mark.exhaustive
def test_ranks_that_have_their_stages_have_the_same_bits(tmp_path):
    from tests.house.source import ROOT

    output_of(tmp_path, 2, textwrap.dedent(PROGRAM).format(root=str(ROOT)))
    parts = cells()
    out = pl.ScheduleInterleaved1F1B([pl.PipelineStage(c, at, 4) for at, c in enumerate(parts)], 4, nn.MSELoss()).step(
        X, target=Y
    )
    for rank in range(2):
        with np.load(tmp_path / f"rank{rank}.npz") as saved:
            for at in (rank, rank + 2):
                np.testing.assert_array_equal(saved[str(at)], parts[at].trainable_params()[0].grad.asnumpy())
            assert rank == 0 or np.array_equal(saved["out"], out)
