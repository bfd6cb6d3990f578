"""Gradient accumulation: micro-batches one after the other, one message per gradient, one step of the optimizer."""

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import NotBuiltYet, ShapeError, TraceError
from parallel_lab.base.hooks import current_step
from parallel_lab.cost import get_cluster, predict_memory, predict_timeline, step_time_s
from parallel_lab.graph.plan import Plan
from parallel_lab.ops.machine.state import StepNumber
from parallel_lab.train.session import Session
from tests.crossed import crossed, each_of
from tests.nets import chain

S = ((4, 1), (2, 1))  # rows of the batch 4 ways, rows of the weight (columns of the result) 2 ways


def make_net(width=8, layers=3, strategies=(), norm=False):
    return chain(*[f"dense {width}", "tanh"] * layers, *["layernorm"] * norm, inputs=width, shard=strategies)


def data(rows, width=8):
    rng = np.random.default_rng(2)
    return rng.standard_normal((rows, width)), rng.standard_normal((rows, width))


def undivided(parts, steps, rows=32, **shape):
    """Losses and parameters of GradAccumulation run at once on one device."""
    pl.set_seed(4)
    net = make_net(**shape)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    whole = nn.GradAccumulation(nn.WithLossCell(net, nn.MSELoss()), parts)
    x, y = (pl.Tensor(v) for v in data(rows))
    losses = []
    for _ in range(steps):
        loss, grads = pl.value_and_grad(whole, None, optimizer.parameters)(x, y)
        optimizer(grads)
        losses.append(float(loss.asnumpy()))
    return losses, {p.name: p.asnumpy() for p in net.get_parameters()}


def compiled(parts, mode="semi_auto_parallel", dataset="full_batch", devices=8, rows=32, shape=None, **settings):
    pl.set_seed(4)
    net = make_net(**(shape or {}))
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    x, y = data(rows if dataset == "full_batch" else rows // devices)
    settings |= {"parallel_mode": mode, "dataset_strategy": dataset, "device_num": devices}
    plan = pl.compile(net, x, y, loss=nn.MSELoss(), optimizer=optimizer, grad_accumulation_step=parts, **settings)
    return plan, net, optimizer


def trained(plan, net, optimizer, steps, rows=32):
    with Session(plan, net, optimizer) as session:
        return session.train([data(rows)], steps), session.parameters()


CUTS = {"rows": (), "columns": (S, S, S), "megatron": (S, ((4, 2), (1, 2)), None)}


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("parts", "cut", "dataset", "norm"),
    crossed([1, 2, 4], CUTS, ["full_batch", "data_parallel"], [False, True]),  # most are exhaustive
)
def test_accumulated_steps_equal_one_device(cut, parts, dataset, norm):
    shape = {"strategies": CUTS[cut], "norm": norm}
    losses, parameters = undivided(parts, 5, norm=norm)
    got, ours = trained(*compiled(parts, dataset=dataset, shape=shape), 5)
    np.testing.assert_allclose(got, losses, rtol=1e-10)
    for name, want in parameters.items():
        np.testing.assert_allclose(ours[name], want, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.quick(1)
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_data_parallel_adds_the_ranks_gradients(parts):
    """Mean losses per rank: the mean over ranks of what one device gives for the whole batch."""
    _, parameters = undivided(parts, 4)
    plan, net, optimizer = compiled(parts, "data_parallel", "data_parallel", gradients_mean=True)
    _, ours = trained(plan, net, optimizer, 4)
    for name, want in parameters.items():
        np.testing.assert_allclose(ours[name], want, rtol=0, atol=1e-10, err_msg=name)


def test_forward_and_backward_of_a_part_before_the_next():
    plan = compiled(3, rows=24)[0]
    assert [str(a) for a in plan.stages[0].actions] == ["0F0", "0B0", "0F1", "0B1", "0F2", "0B2", "0update0"]
    assert Plan.from_dict(plan.to_dict()) == plan
    assert len(list(plan.instructions("forward"))) == 3 * len(plan.stages[0].program("forward"))


def test_gradients_are_sent_once_however_many_parts():
    def sent(parts, phase, **settings):
        return [i for _, i in compiled(parts, **settings)[0].instructions(phase) if i.is_communication]

    assert len(sent(1, "backward")) == len(sent(4, "backward")) == 6
    assert {i.once for i in sent(4, "backward")} == {"last"}
    # the loss of each part, and nothing else: ranks take parts of their own rows
    assert len(sent(4, "forward")) == 4
    assert [i.kind for i in sent(4, "forward", dataset="data_parallel")] == ["all_reduce"] * 4


def test_activations_are_those_of_one_part():
    """Backward needs every layer's input and output of tanh: bytes are proportional to the rows of a part."""
    whole = predict_memory(compiled(1, rows=64)[0]).parts["activations"]
    inputs = 64 // 8 * 8 * 8  # what the first layer reads is an input when the batch is whole, a slice of it in parts
    halves, quarters = (predict_memory(compiled(parts, rows=64)[0]).parts["activations"] for parts in (2, 4))
    assert halves * 2 == whole + inputs or halves * 2 == whole
    assert quarters * 2 == halves


def test_time_counts_every_part():
    one, four = (step_time_s(compiled(parts, rows=64)[0], get_cluster("laptop")) for parts in (1, 4))
    assert four.phase("backward").messages == one.phase("backward").messages
    assert four.phase("forward").flops == pytest.approx(one.phase("forward").flops, rel=0.05)
    assert predict_timeline(compiled(4)[0], get_cluster("laptop")).symmetric


@pytest.mark.exhaustive
def test_fused_gradients_travel_during_the_last_backward():
    settings = {"comm_fusion": {"allreduce": {"mode": "index", "config": [1, 3]}}}
    plan, net, optimizer = compiled(4, **settings)
    starts = [i for _, i in plan.instructions("backward") if i.kind == "start"]
    assert len(starts) == 3 and {i.once for i in starts} == {"last"}
    plain = trained(*compiled(4), 3)
    fused = trained(plan, net, optimizer, 3)
    assert plain[0] == fused[0]
    assert all(np.array_equal(plain[1][n], fused[1][n]) for n in plain[1])


@pytest.mark.parametrize("devices", [1, 4])
def test_random_masks_of_micro_batches_are_those_of_a_network_that_runs_at_once(devices):
    """Every micro-batch of every step has a mask of its own, the same however the rows are split."""
    x, y = data(8)
    found = []
    for compiled_step in (False, True):
        pl.set_seed(4)
        net = nn.SequentialCell(nn.Dense(8, 8, dtype="float64"), nn.Dropout(p=0.5), nn.Dense(8, 8, dtype="float64"))
        net.set_train()
        optimizer = nn.SGD(net.trainable_params(), 0.1)
        whole = nn.GradAccumulation(nn.WithLossCell(net, nn.MSELoss()), 4)
        if compiled_step:
            plan = pl.compile(
                net,
                x,
                y,
                loss=nn.MSELoss(),
                optimizer=optimizer,
                grad_accumulation_step=4,
                device_num=devices,
                dataset_strategy="full_batch",
            )
            with Session(plan, net, optimizer) as session:
                losses = session.train([(x, y)], 3)
        else:
            losses = []
            for number in range(3):
                token = current_step.set(StepNumber(number))
                loss, grads = pl.value_and_grad(whole, None, optimizer.parameters)(pl.Tensor(x), pl.Tensor(y))
                current_step.reset(token)
                optimizer(grads)
                losses.append(float(loss.asnumpy()))
        found.append(losses)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_what_one_micro_batch_makes_is_not_read_outside():
    class Leaking(nn.Cell):
        def __init__(self):
            super().__init__()
            self.inner = Keeping()
            self.parts = nn.GradAccumulation(self.inner, 2)

        def construct(self, x):
            return self.parts(x) + ops.reduce_sum(self.inner.kept)

    class Keeping(nn.Cell):
        def construct(self, x):
            self.__dict__["kept"] = ops.square(x)
            return ops.reduce_sum(self.kept)

    with pytest.raises(pl.TraceError, match="which every one of 2 micro-batches makes, is read outside of them"):
        pl.compile(Leaking(), data(8)[0], device_num=1)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ShapeError, match="3 equal micro-batches"):
        compiled(3)


def asks_for_gradients(net, optimizer, *, has_aux=False, label_outside=False, again=False):
    """A training step with `value_and_grad` inside: of the loss (and what the network gives), or with y outside."""
    loss_fn = nn.MSELoss()

    def forward(x, y):
        made = net(x)
        return (loss_fn(made, y), made) if has_aux else loss_fn(made, y)

    def step(x, y):
        if label_outside:
            loss, grads = pl.value_and_grad(lambda part: forward(part, y), None, optimizer.parameters)(x)
        else:
            loss, grads = pl.value_and_grad(forward, None, optimizer.parameters, has_aux=has_aux)(x, y)
        if again:
            pl.value_and_grad(forward, None, optimizer.parameters)(x, y)
        optimizer(grads)
        return loss

    return step


@pytest.mark.quick(1)
@pytest.mark.parametrize(("devices", "stages"), [(1, 1), (4, 1), (4, 2)])
def test_a_step_that_asks_for_gradients_itself_runs_in_micro_batches(devices, stages):
    losses, parameters = undivided(4, 3)
    pl.set_seed(4)
    net = make_net()
    for at, (_, cell) in enumerate((n, c) for n, c in net.cells_and_names() if isinstance(c, nn.Dense)):
        cell.pipeline_stage = min(at, stages - 1)
    optimizer = nn.Adam(net.trainable_params(), 0.01)
    how = {"device_num": devices, "pipeline_stages": stages, "dataset_strategy": "full_batch"}
    plan = pl.compile(asks_for_gradients(net, optimizer), *data(32), grad_accumulation_step=4, **how)
    assert plan.micro_batches == 4
    got, ours = trained(plan, net, optimizer, 3)
    np.testing.assert_allclose(got, losses, rtol=1e-10)
    for name, want in parameters.items():
        np.testing.assert_allclose(ours[name], want, rtol=0, atol=1e-10, err_msg=name)


@each_of(
    ("how", "parts", "error", "words"),
    ({"has_aux": True}, 2, TraceError, "every one of 2 micro-batches makes, is read outside"),
    ({"again": True}, 2, NotBuiltYet, "a second time, with grad_accumulation_step=2.*all losses added"),
    ({"label_outside": True}, 2, TraceError, "a micro-batch reads 'y' of the whole batch.*as an argument"),
    ({}, 3, ShapeError, r"dim 0 of argument 0 of shape \(8, 8\) is not divided by grad_accumulation_step=3"),
)
def test_what_micro_batches_cannot_give_to_a_step_is_refused(how, parts, error, words):
    net = make_net()
    step = asks_for_gradients(net, nn.Adam(net.trainable_params(), 0.01), **how)
    with pytest.raises(error, match=words):
        pl.compile(step, *data(8), device_num=4, dataset_strategy="full_batch", grad_accumulation_step=parts)
