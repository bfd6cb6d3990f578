"""Experts in nn.transformer's layers: the router of MindSpore 1.5 to 2.0 token by token, and on 8 ranks as on one."""

import numpy as np
import pytest
from parallel_lab.mindspore.nn import transformer as T

from parallel_lab import Session, Tensor, compile, nn, ops, set_auto_parallel_context, set_seed
from parallel_lab.mindspore._transformer_experts import MoE
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.ops.activation import softmax_of
from parallel_lab.ops.expert_balance import loss_per_choice
from parallel_lab.ops.expert_capacity import mindspore_v1_choices
from parallel_lab.run.simulator import Simulator
from tests.refusals import refused

BATCH, LENGTH, WIDTH, INNER, EXPERTS = 8, 4, 8, 16, 4
rng = np.random.default_rng(0)
X, SEEN = rng.normal(size=(BATCH, LENGTH, WIDTH)).astype("f"), np.tril(np.ones((BATCH, LENGTH, LENGTH), "f"))


def float32(net):
    for _, cell in net.cells_and_names():
        if vars(cell).get("dtype") == "float16":
            cell.dtype = "float32"
    return net


@pytest.mark.parametrize(("chosen", "factor", "room"), [(1, 1.0, 4), (2, 1.0, 8), (2, 1.25, 10), (3, 1.1, 14)])
def test_a_layer_is_its_router_and_experts_token_by_token(chosen, factor, room):
    moe = float32(MoE(WIDTH, INNER, 0.0, moe_config=T.MoEConfig(EXPERTS, factor, 0.05, chosen), parallel_config=DP2))
    for parameter in moe.trainable_params():
        parameter.set_data(Tensor(rng.normal(size=parameter.shape).astype("f")))
    gate, *experts = (p.asnumpy() for p in moe.trainable_params())
    skewed = X + np.float32(0.7)  # some experts are wanted by more
    want, losses, dropped = np.zeros((2, 16, WIDTH), "f"), [], 0
    for group, tokens in enumerate(skewed.reshape(2, 16, WIDTH)):
        logits = tokens @ gate.T
        numbers, kept = mindspore_v1_choices(logits, chosen, room)
        weights = np.take_along_axis(softmax_of(logits), numbers, axis=1) * kept
        weights /= weights.sum(axis=1, keepdims=True) + 1e-9
        for t, j in zip(*np.nonzero(kept), strict=True):
            up, of_up, down, of_down = (each.reshape(EXPERTS, -1, each.shape[-1])[numbers[t, j]] for each in experts)
            inner = ops.gelu(Tensor(tokens[t] @ up + of_up[0])).asnumpy()
            want[group, t] += weights[t, j] * (inner @ down + of_down[0])
        losses.append(loss_per_choice(logits, chosen))
        dropped += (~kept).sum()
    made, loss = moe(Tensor(skewed))
    assert dropped > 0
    np.testing.assert_allclose(made.asnumpy(), want.reshape(X.shape), rtol=0, atol=2e-5)
    if chosen == 1:  # later losses hide kept experts only
        assert loss.item() == pytest.approx(0.05 * np.mean(losses), rel=1e-5)


DP2 = T.TransformerOpParallelConfig(2, 1, 2).moe_parallel_config


@pytest.mark.parametrize("shape", [(2, EXPERTS, 3, WIDTH), (2 * EXPERTS * 3, WIDTH), (8, 3, WIDTH)])
@pytest.mark.parametrize("parts", [(1, 1, 1), (4, 2, 2), (4, 1, 2), (2, 4, 1)])
def test_rows_that_lie_by_experts_meet_the_weights_of_theirs(shape, parts):
    """parts: dp, mp, ep. The rows lie in dp / ep groups, in each by experts."""
    dp, mp, ep = parts
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
    layer = float32(
        T.FeedForward(WIDTH, INNER, 0.0, "relu", EXPERTS, parallel_config=T.MoEParallelConfig(dp, mp, ep))
    ).set_train(False)
    for parameter in layer.trainable_params():
        parameter.set_data(Tensor(rng.normal(size=parameter.shape).astype("f")))
    up, of_up, down, of_down = (p.asnumpy() for p in layer.trainable_params())
    assert up.shape == (EXPERTS, WIDTH, INNER) and of_down.shape == (1, EXPERTS, 1, WIDTH)
    x = rng.normal(size=shape).astype("f")
    want = []
    for rows in x.reshape(dp // ep, EXPERTS, -1, WIDTH):
        for e in range(EXPERTS):
            want.append(np.maximum(rows[e] @ up[e] + of_up[0, e], 0) @ down[e] + of_down[0, e])
    plan = compile(layer, x, dataset_strategy="full_batch")
    sim = Simulator(plan, {p.name: p.asnumpy() for p in layer.get_parameters()})
    sim.run_step(x)
    np.testing.assert_allclose(sim.full(plan.outputs[0]), np.reshape(want, shape), rtol=1e-4, atol=1e-4)
    products = [n.strategy for n in plan.graph.nodes if n.op_class == "BatchMatMul"]
    first, second = ((dp // ep, ep, 1, 1), (ep, 1, mp)), ((dp // ep, ep, 1, mp), (ep, mp, 1))
    assert products == [first, second]


def test_a_search_wants_to_know_how_many_rows_an_expert_has():
    set_auto_parallel_context(parallel_mode="auto_parallel", search_mode="dynamic_programming", device_num=2)
    with pytest.raises(ValueError, match="expert_group_size"):
        T.FeedForward(WIDTH, INNER, 0.0, expert_num=EXPERTS)
    with pytest.raises(ValueError, match="expert_num=3"):
        config = T.MoEParallelConfig(2, 1, 2)
        T.FeedForward(WIDTH, INNER, 0.0, expert_num=3, parallel_config=config)


class Net(nn.Cell):
    def __init__(self, config, moe_config):
        super().__init__()
        how = {"attention_dropout_rate": 0.0, "hidden_dropout_rate": 0.0, "moe_config": moe_config}
        self.body = T.Transformer(WIDTH, BATCH, INNER, LENGTH, LENGTH, 2, 0, 4, parallel_config=config, **how)

    def construct(self, x, seen):
        output, _, _, loss = self.body(x, seen)
        return output, loss


class Loss(nn.Cell):
    def construct(self, out, wanted):
        return ops.reduce_mean(ops.square(out[0] - wanted)) + out[1]


def network(config, moe_config):
    set_seed(1)
    net = float32(Net(config, moe_config))
    for parameter in net.trainable_params():
        if parameter.name.endswith("weight"):
            parameter.set_data(Tensor(20 * parameter.asnumpy()))
    return net


@pytest.mark.quick(1)
@pytest.mark.parametrize(("dp", "mp", "ep"), [(4, 2, 4), (8, 1, 4), (4, 2, 2), (2, 4, 2)])
def test_a_transformer_of_experts_on_eight_ranks_equals_one_device(dp, mp, ep):
    """Groups are those of the configuration, also on one device."""
    moe_config, config = T.MoEConfig(EXPERTS, 1.25, 0.05, 2), T.TransformerOpParallelConfig(dp, mp, ep)
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, enable_alltoall=True)
    net = network(config, moe_config)
    optimizer = nn.SGD(net.trainable_params(), 0.5)
    plan = compile(net, X, SEEN, X, loss=Loss(), optimizer=optimizer, dataset_strategy="full_batch")
    with Session(plan, net, optimizer) as session:
        losses, found = session.train([(X, SEEN, X)], 1), session.parameters()
    set_auto_parallel_context(parallel_mode="stand_alone", device_num=1)
    one = network(config, moe_config)
    loss, parameters = Loss()(one(Tensor(X), Tensor(SEEN)), Tensor(X)), list(one.trainable_params())
    assert losses[0] == pytest.approx(loss.item(), rel=1e-5)
    for parameter, gradient in zip(parameters, gradients(loss, parameters), strict=True):
        want = parameter.asnumpy() - 0.5 * np.asarray(gradient)
        np.testing.assert_allclose(found[parameter.name], want, rtol=0, atol=2e-5, err_msg=parameter.name)
    sent = [i for i in plan.stages[0].program("forward") if i.message == "all_to_all"]
    assert len(sent) >= 4  # there and back, of two layers


test_what_does_not_fit_is_refused = refused(
    lambda: T.MoEConfig(4, 0.5),
    lambda: T.MoEConfig(4, aux_loss_factor=1.0),
    lambda: T.MoEConfig(2, num_experts_chosen=3),
    lambda: MoE(8, 16, 0.0, moe_config=T.MoEConfig(3), parallel_config=DP2),
    lambda: MoE(8, 16, 0.0, moe_config=T.MoEConfig(4, group_wise_a2a=True), parallel_config=DP2),
    lambda: MoE(8, 16, 0.0, moe_config=T.MoEConfig(4), parallel_config=DP2)(Tensor(np.ones((3, 8), "f"))),
)
