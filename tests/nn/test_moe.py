"""nn.MoE at once, in numpy alone: every form against a loop over tokens; routers, capacity and what is refused."""

import itertools

import numpy as np
import pytest

from parallel_lab import ShapeError, Tensor, nn, ops, value_and_grad
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.expert_placement import place_experts
from parallel_lab.nn.tensor.autograd import gradients
from parallel_lab.nn.tensor.recompute import recompute
from parallel_lab.ops.expert_balance import balance_loss, bias_change, loss_per_choice, z_loss
from parallel_lab.ops.expert_capacity import ORDERS, ROUTERS_TO_ROOM, capacity, kept_choices, mindspore_v1_choices
from parallel_lab.ops.expert_rows import Dispatch
from parallel_lab.ops.routing import ROUTERS, choose
from tests.crossed import each_of
from tests.nets import cell

HIDDEN, INNER, EXPERTS = 6, 10, 4


def layer(seed=1, experts=EXPERTS, k=2, **options):
    moe = nn.MoE(HIDDEN, INNER, experts, k, dtype=np.float64, **options)
    rng = np.random.default_rng(seed)
    for parameter in moe.trainable_params():
        parameter.set_data(Tensor(rng.normal(size=parameter.shape)))
    return moe


def by_tokens(moe, x, kept=None, routed=None):
    """The layer, token by token and choice by choice.  routed: experts and weights, where they are not `choose`'s"""
    tokens = x.reshape(-1, HIDDEN)
    logits = tokens @ moe.gate.asnumpy().T
    experts, weights = routed or choose(logits, moe.k, moe.router, scale=moe.scale)
    made = np.zeros_like(tokens)
    for t, j in np.ndindex(experts.shape):
        if kept is None or kept[t, j]:
            inner = ops.gelu(Tensor(tokens[t] @ moe.up.asnumpy()[experts[t, j]])).asnumpy()
            made[t] += weights[t, j] * (inner @ moe.down.asnumpy()[experts[t, j]])
    return made.reshape(x.shape), logits


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("ep", "groups"), [(1, 1), (2, 2), (2, 4), (4, 4)])
def test_a_dropless_layer_is_its_experts_token_by_token(router, ep, groups):
    moe = layer(router=router, expert_parallel=ep, groups=groups, balance_factor=0.1, z_factor=0.01)
    x = np.random.default_rng(0).normal(size=(2, 6, HIDDEN))
    y, loss = moe(Tensor(x))
    wanted, logits = by_tokens(moe, x)
    np.testing.assert_allclose(y.asnumpy(), wanted, rtol=1e-12, atol=1e-12)
    scores = ROUTERS[router].scores
    assert loss.item() == pytest.approx(0.1 * balance_loss(logits, 2, scores) + 0.01 * z_loss(logits), rel=1e-6)


@pytest.mark.parametrize("order", ORDERS[:3])
@pytest.mark.parametrize(("ep", "groups"), [(1, 1), (1, 4), (2, 4), (4, 4)])
def test_with_capacity_each_group_drops_by_itself(order, ep, groups):
    moe = layer(capacity_factor=0.8, drop_order=order, expert_parallel=ep, groups=groups)
    x = np.random.default_rng(0).normal(size=(4, 4, HIDDEN))
    n = 16 // groups
    made = Dispatch.of_logits(
        (x.reshape(-1, HIDDEN) @ moe.gate.asnumpy().T).reshape(groups, n, EXPERTS),
        *(2, capacity(n, EXPERTS, 2, 0.8), order, moe.router),
    )
    assert not made.kept.all()
    np.testing.assert_allclose(moe(Tensor(x))[0].asnumpy(), by_tokens(moe, x, made.kept.reshape(16, 2))[0], atol=1e-12)


@pytest.mark.parametrize(("ep", "groups"), [(1, 1), (1, 4), (2, 4), (4, 4)])
@pytest.mark.parametrize("router", ROUTERS_TO_ROOM)
def test_in_mindspores_older_order_a_dropped_token_chooses_the_full_expert_again(router, ep, groups):
    """In each group, choice by choice: the likeliest expert that has not kept the token, if it has room."""
    moe = layer(
        capacity_factor=0.8, drop_order="mindspore_v1", expert_parallel=ep, groups=groups, router=router, scale=1.5
    )
    x, n = np.random.default_rng(0).normal(size=(4, 4, HIDDEN)), 16 // groups
    scores = np.exp(x.reshape(-1, HIDDEN) @ moe.gate.asnumpy().T)
    scores /= scores.sum(-1, keepdims=True)
    experts, weights = np.zeros((16, 2), int), np.zeros((16, 2))
    for first in range(0, 16, n):
        taken = [0] * EXPERTS
        for j, t in itertools.product(range(2), range(first, first + n)):
            left = [0 if weights[t, 0] and e == experts[t, 0] else s for e, s in enumerate(scores[t])]
            experts[t, j] = e = int(np.argmax(left))
            if taken[e] < capacity(n, EXPERTS, 2, 0.8):
                taken[e] += 1
                weights[t, j] = scores[t, e]
    assert (experts[:, 0] == experts[:, 1]).any() and (weights == 0).any()
    if router == "softmax_topk_norm":
        weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    wanted, _ = by_tokens(moe, x, routed=(experts, 1.5 * weights))
    np.testing.assert_allclose(moe(Tensor(x))[0].asnumpy(), wanted, atol=1e-12)


def test_an_expert_without_a_token_has_a_gradient_of_zeros():
    moe = layer(k=1)
    moe.bias.set_data(Tensor(np.array([0, -9.0, 0, 0])))
    y, _ = moe(Tensor(np.random.default_rng(0).normal(size=(1, 8, HIDDEN))))
    _, up, down = gradients(ops.reduce_sum(y), [moe.gate, moe.up, moe.down])
    for gradient in map(np.asarray, (up, down)):
        assert not gradient[1].any() and all(gradient[e].any() for e in (0, 2, 3))


def test_a_router_with_one_choice_learns_only_with_the_softmax_first():
    x = Tensor(np.random.default_rng(0).normal(size=(1, 8, HIDDEN)))
    moved = {}
    for router in ("softmax_topk", "topk_softmax"):
        moe = layer(k=1, router=router)
        moved[router] = np.abs(gradients(ops.reduce_sum(moe(x)[0]), [moe.gate])[0]).max()
    assert moved["softmax_topk"] > 1e-3 and moved["topk_softmax"] == 0


def test_the_bias_moves_towards_balance_in_training_and_not_in_the_weights():
    moe = layer(k=1, bias_rate=0.5, router="sigmoid")
    x = np.random.default_rng(0).normal(size=(1, 32, HIDDEN))
    moe.set_train(True)
    before, _ = moe(Tensor(x))
    load = np.bincount(choose((x[0] @ moe.gate.asnumpy().T), 1, "sigmoid")[0].reshape(-1), minlength=EXPERTS)
    np.testing.assert_allclose(moe.bias.asnumpy(), 0.5 * np.sign(8 - load))
    moe.set_train(False)
    moe.bias.set_data(Tensor(np.full(EXPERTS, 3.0)))  # alike: no choice differs, and no weight
    np.testing.assert_array_equal(moe(Tensor(x))[0].asnumpy(), before.asnumpy())
    assert np.mean(bias_change(load, 0.1, centred=True)) == pytest.approx(0)


def summed(moe, again):
    """The sum of a layer's results, whose backward pass may compute them again."""
    return cell(
        lambda net, x: ops.reduce_sum((recompute(net.moe, x) if net.again else net.moe(x))[0]), moe=moe, again=again
    )


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("parts", [(4,), (2, 2), (1,)], ids=str)
def test_micro_batches_that_run_at_once_move_the_bias_once_by_all_counts(parts, again):
    """As the whole batch does, whose choices are the same; each by itself would move it up to four times."""
    moe = layer(k=1, bias_rate=0.5, router="sigmoid")
    net, x = summed(moe, again), np.random.default_rng(0).normal(size=(4, 8, HIDDEN))
    net.set_train()
    for count in parts:
        net = nn.GradAccumulation(net, count)
    step, bias = value_and_grad(net, None, moe.trainable_params()), np.zeros(EXPERTS)
    for _ in range(2):
        scores = 1 / (1 + np.exp(-x.reshape(-1, HIDDEN) @ moe.gate.asnumpy().T))
        load = np.bincount((scores + bias).argmax(-1), minlength=EXPERTS)
        step(Tensor(x))
        bias = bias + 0.5 * np.sign(8 - load)
        np.testing.assert_allclose(moe.bias.asnumpy(), bias)


# ---- routers and capacity ----


def test_softmax_after_the_choice_is_the_normalised_softmax():
    logits = np.random.default_rng(0).normal(size=(64, 8))
    one, other = choose(logits, 3, "topk_softmax"), choose(logits, 3, "softmax_topk_norm")
    np.testing.assert_array_equal(one[0], other[0])
    np.testing.assert_allclose(one[1], other[1], rtol=1e-12)


def test_of_equal_scores_the_lower_index_is_chosen():
    assert choose(np.zeros((1, 5)), 3)[0].tolist() == [[0, 1, 2]]


def test_an_expert_outside_of_the_best_groups_is_never_chosen_even_with_a_negative_bias():
    logits = np.array([[0.0, -9, 8, 8, -9, -9]])
    experts, _ = choose(logits, 2, "sigmoid", bias=np.full(6, -2.0), groups=3, best_groups=1, group_sum=1)
    assert experts.tolist() == [[2, 3]]
    assert choose(logits, 2, "sigmoid", groups=2, best_groups=1, group_sum=1)[0].tolist() == [[2, 0]]


@each_of(
    ("convention", "factor", "further", "room"),
    ("switch", 1.25, {}, 3),  # 8 / 4 * 1.25 = 2.5
    ("mesh_tf", 1.25, {}, 2),  # rounded down, choices not counted
    ("mesh_tf", 1.0, {"minimum": 4}, 4),
    ("megatron", 1.25, {}, 5),
    ("mindspore", 1.25, {}, 5),
    ("mindformers_v2", 1.25, {"mp": 4}, 8),
    ("mindformers_v2", 0, {"mp": 2, "load": 5}, 6),
    ("deepspeed", 0.5, {}, 4),
    ("tutel", 1.25, {}, 4),  # 2 * int(1.25 * 2)
    ("tutel", 0, {"load": 7}, 7),
    ("tutel", -1.0, {"load": 7}, 4),
    ("megatron", None, {}, None),
)
def test_capacity_by_each_convention(convention, factor, further, room):
    assert capacity(8, 4, 2, factor, convention, **further) == room


def test_the_older_router_of_mindspore_loses_tokens_that_gshard_keeps():
    logits = np.log([[0.6, 1e-9, 0.4], [0.7, 1e-9, 0.3], [0.8, 0.2, 1e-9]])
    gshard = kept_choices(choose(logits, 2)[0], 3, 2)
    experts, kept = mindspore_v1_choices(logits, 2, 2)
    assert gshard[2].tolist() == [False, True]
    assert experts[2].tolist() == [0, 0] and not kept[2].any()  # the second choice is the full first one again


def test_alike_experts_have_a_balance_loss_of_one_and_one_per_choice_in_the_older_form():
    logits = np.array(list(itertools.permutations(np.linspace(0, 1, EXPERTS))))
    assert balance_loss(logits, 2) == pytest.approx(1) and loss_per_choice(logits, 2) == pytest.approx(2)
    one_expert = np.tile([50.0, 0, 0, 0], (8, 1))
    assert balance_loss(one_expert, 1) == pytest.approx(EXPERTS)


def test_copies_in_nodes_stay_with_their_groups():
    placed = place_experts([8, 1, 1, 1, 4, 4, 1, 1], replicas=12, devices=4, groups=4, nodes=2)
    assert sum(placed.copies) == 12 and sorted(map(len, placed.devices)) == [3] * 4
    for node in (placed.devices[:2], placed.devices[2:]):
        assert len({e // 2 for device in node for e in device}) == 2
    assert placed.max_over_mean < placed.before


# ---- refusals ----


@each_of(
    ("options", "words"),
    ({"k": 5}, "k=5 of 4 experts"),
    ({"capacity_factor": 1.0, "drop_order": "mindspore_v1", "router": "sigmoid"}, "chooses by scores alone"),
    ({"expert_parallel": 3}, "experts=4 and groups=None with expert_parallel=3"),
    ({"expert_parallel": 2, "groups": 3}, r"groups=\(3,\) with expert_parallel=2"),
    ({"groups": (2, 2, 2)}, "groups="),
    ({"route_groups": 3}, "groups=3 of 4 experts"),
    ({"route_groups": 4, "best_groups": 1}, "k=2 with 1 groups of 1 experts"),
    ({"router": "tanh"}, "router='tanh'"),
)
def test_counts_that_do_not_fit_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        layer(**options)


@each_of(
    ("factor", "convention", "words"),
    *((0.0, "megatron", "a capacity of 0"), (0.1, "mesh_tf", "a capacity of 0"), (-1.0, "switch", "of -1")),
    (-1.0, "deepspeed", "a capacity of -2"),  # its least of 4 made up for that
    (0.0, "tutel", "as the busiest expert needs. Above 0 where a plan reserves slots before"),
)
def test_no_room_is_refused_where_a_convention_gives_it_no_meaning(factor, convention, words):
    moe = layer(capacity_factor=factor, convention=convention)
    with pytest.raises(ArgumentError, match=words):
        moe(Tensor(np.ones((1, 4, HIDDEN))))


def test_a_bias_has_a_number_for_each_expert():
    with pytest.raises(ArgumentError, match=r"bias of shape \(2,\) for 3 experts"):
        choose(np.zeros((4, 3)), 1, bias=np.zeros(2))


def test_tokens_that_do_not_divide_by_the_groups_are_refused():
    with pytest.raises(ShapeError, match="1 samples of 6 tokens in 1 x 4 groups"):
        layer(expert_parallel=4)(Tensor(np.ones((1, 6, HIDDEN))))
