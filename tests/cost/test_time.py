import dataclasses
import math
from itertools import pairwise

import pytest

from parallel_lab.base.cluster import Cluster, Device, Link, get_cluster
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import instr_time_s, message_bytes, message_time_s, sent_bytes, step_time_s
from tests.cost.nets import F32, only, product_plan, seed_plan
from tests.crossed import each_of

A, B, G = 3e-6, 2e-9, 7e-10  # alpha, beta, gamma
LINK = Link(A, B)
M = 12_288  # bytes of a rank's operand; divisible by 2, 4 and 8
DEVICE = Device(flops_per_s=1e9, memory_bytes=10**9, memory_bandwidth_bytes_per_s=1e9, overhead_s=5e-6)
NODE = Cluster("node", DEVICE, LINK, devices_per_node=8)

# kind, group size, seconds: the sums written out round by round, not the closed forms again
BY_HAND = [
    ("all_reduce", 2, 2 * (A + M / 2 * B) + M / 2 * G),
    ("all_reduce", 4, 6 * (A + M / 4 * B) + 3 * M / 4 * G),
    ("all_reduce", 8, 14 * (A + M / 8 * B) + 7 * M / 8 * G),
    ("reduce_scatter", 2, 1 * (A + M / 2 * B + M / 2 * G)),
    ("reduce_scatter", 4, 3 * (A + M / 4 * B + M / 4 * G)),
    ("reduce_scatter", 8, 7 * (A + M / 8 * B + M / 8 * G)),
    ("all_gather", 2, 1 * (A + M * B)),
    ("all_gather", 4, 3 * (A + M * B)),
    ("all_gather", 8, 7 * (A + M * B)),
    ("all_to_all", 2, 1 * (A + M / 2 * B)),
    ("all_to_all", 4, 3 * (A + M / 4 * B)),
    ("all_to_all", 8, 7 * (A + M / 8 * B)),
    ("broadcast", 2, 1 * (A + M * B)),
    ("broadcast", 4, 2 * (A + M * B)),
    ("broadcast", 8, 3 * (A + M * B)),
    ("reduce", 2, A + M * B + M * G),
    ("reduce", 8, 3 * (A + M * B + M * G)),
    ("gather", 2, A + M * B),
    ("gather", 4, (A + M * B) + (A + 2 * M * B)),
    ("gather", 8, (A + M * B) + (A + 2 * M * B) + (A + 4 * M * B)),
    ("scatter", 2, A + M / 2 * B),
    ("scatter", 8, (A + M / 2 * B) + (A + M / 4 * B) + (A + M / 8 * B)),
    ("barrier", 2, A),
    ("barrier", 5, 3 * A),
    ("barrier", 8, 3 * A),
    ("send", 2, A + M * B),
]


@pytest.mark.quick(9)
@pytest.mark.parametrize(("kind", "group_size", "expected_s"), BY_HAND)
def test_a_message_costs_the_sum_of_its_rounds(kind, group_size, expected_s):
    assert message_time_s(kind, M, group_size, LINK, G) == pytest.approx(expected_s, rel=1e-12)


@pytest.mark.parametrize(
    "kind",
    ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "barrier"],
)
def test_a_collective_of_one_rank_costs_nothing(kind):
    assert message_time_s(kind, M, 1, LINK, G) == 0


WINDOW = (12, -2, 15, 12)  # of 12 elements: 2 of the slice before, 1 of the slice after


@each_of(
    ("kind", "group_size", "expected_s"),
    ("halo_exchange", 1, 0),
    ("halo_exchange", 2, A + 2 / 12 * M * B),  # rank 0 sends 2 elements while rank 1 sends 1
    ("halo_exchange", 3, (A + 2 / 12 * M * B) + (A + 1 / 12 * M * B)),
    ("halo_exchange", 8, (A + 2 / 12 * M * B) + (A + 1 / 12 * M * B)),
    ("halo_reduce", 2, A + 2 / 15 * M * (B + G)),
    ("halo_reduce", 8, (A + 2 / 15 * M * (B + G)) + (A + 1 / 15 * M * (B + G))),
)
def test_a_halo_costs_one_message_to_each_neighbour(kind, group_size, expected_s):
    assert message_time_s(kind, M, group_size, LINK, G, WINDOW) == pytest.approx(expected_s, rel=1e-12)


def test_a_halo_without_its_window_is_refused():
    with pytest.raises(ArgumentError, match="window"):
        message_time_s("halo_exchange", M, 2, LINK)


@pytest.mark.parametrize("group_size", [2, 4, 8])
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(group_size):
    scattered, part = message_time_s("reduce_scatter", M, group_size, LINK, G), M // group_size
    parts = scattered + message_time_s("all_gather", part, group_size, LINK)
    assert message_time_s("all_reduce", M, group_size, LINK, G) == pytest.approx(parts, rel=1e-12)


@pytest.mark.parametrize(("factor", "ring_wins"), [(0.9, False), (1.1, True)])
def test_the_ring_overtakes_recursive_doubling_at_the_known_size(factor, ring_wins):
    # n = 8: 3 (alpha + S beta) = 14 alpha + 1.75 S beta at S = 11 alpha / (1.25 beta)
    size = factor * 11 * A / (1.25 * B)
    doubling_s = 3 * (A + size * B)
    assert (message_time_s("all_reduce", size, 8, LINK) < doubling_s) == ring_wins


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_time_grows_with_the_message_and_with_the_group(kind, rng):
    sizes = sorted(rng.integers(1, 10**8, 5).tolist())
    times = [[message_time_s(kind, size, n, LINK, G) for n in (2, 4, 8, 16)] for size in sizes]
    assert all(a < b for row in times for a, b in pairwise(row))
    assert all(a < b for one, two in pairwise(times) for a, b in zip(one, two, strict=True))


def test_the_bandwidth_term_of_a_ring_all_reduce_stays_below_two_messages():
    free_start = Link(0, B)
    assert message_time_s("all_reduce", M, 4096, free_start) == pytest.approx(2 * 4095 / 4096 * M * B)
    assert message_time_s("all_reduce", M, 4096, free_start) < 2 * M * B


@pytest.mark.parametrize(("kind", "size", "group"), [("all_reduce", -1, 2), ("all_reduce", 8, 0), ("gossip", 8, 2)])
def test_messages_that_make_no_sense_are_refused(kind, size, group):
    with pytest.raises(ArgumentError):
        message_time_s(kind, size, group, LINK)


# ---- instructions ----


def test_a_product_bound_by_arithmetic_costs_its_flops():
    plan = product_plan(((2, 4), (4, 1)))
    slow = dataclasses.replace(NODE, device=dataclasses.replace(DEVICE, flops_per_s=1e6))
    # slices (8, 8) x (8, 24)
    assert instr_time_s(plan, only(plan, "compute"), slow) == pytest.approx(2 * 8 * 8 * 24 / 1e6 + 5e-6)


def test_a_product_bound_by_memory_costs_its_bytes():
    plan = product_plan(((2, 4), (4, 1)))
    narrow = dataclasses.replace(NODE, device=dataclasses.replace(DEVICE, memory_bandwidth_bytes_per_s=1e6))
    found = instr_time_s(plan, only(plan, "compute"), narrow)
    assert found == pytest.approx((8 * 8 + 8 * 24 + 8 * 24) * F32 / 1e6 + 5e-6)


def test_a_cut_contraction_is_summed_by_an_all_reduce_of_the_slice():
    plan = product_plan(((2, 4), (4, 1)))
    message = only(plan, "all_reduce")
    size = 8 * 24 * F32
    assert message_bytes(plan, message) == size
    assert sent_bytes(plan, message) == 2 * 3 * size // 4
    gamma = 3 / 1e9  # two reads and a write at 1e9 bytes per second
    assert instr_time_s(plan, message, NODE) == pytest.approx(6 * A + 6 / 4 * size * B + 3 / 4 * size * gamma)


def test_a_slice_costs_the_reading_and_writing_of_the_part_that_is_kept():
    plan = product_plan(((1, 8), (8, 1)))
    # x (16, 32), whole on every rank, is split along its second dim only
    assert instr_time_s(plan, only(plan, "slice"), NODE) == pytest.approx(2 * 16 * 4 * F32 / 1e9 + 5e-6)


def test_local_instructions_hand_over_nothing():
    plan = product_plan(((2, 4), (4, 1)))
    assert message_bytes(plan, only(plan, "compute")) == sent_bytes(plan, only(plan, "compute")) == 0


@pytest.mark.parametrize(("rank", "link"), [(0, LINK), (3, LINK), (4, Link(1e-4, 1e-8)), (7, Link(1e-4, 1e-8))])
def test_only_the_groups_that_span_nodes_pay_for_the_slow_link(rank, link):
    plan = product_plan(((2, 4), (4, 1)))
    # six devices to a node: group 0-3 lies on node 0, group 4-7 on both
    cluster = Cluster("c", DEVICE, LINK, devices_per_node=6, node_count=2, node_link=Link(1e-4, 1e-8))
    expected = message_time_s("all_reduce", 8 * 24 * F32, 4, link, DEVICE.gamma_s_per_byte)
    assert instr_time_s(plan, only(plan, "all_reduce"), cluster, rank=rank) == expected


# ---- a step ----


def test_the_messages_of_the_seed_network_cost_what_their_formulas_say():
    time = step_time_s(seed_plan(), NODE)

    def ring(size, n):
        return message_time_s("all_reduce", size, n, LINK, DEVICE.gamma_s_per_byte)

    y, w, w2 = 8 * 16 * F32, 8 * 16 * F32, 4 * 16 * F32
    # forward: both products over k (4 ranks), the mean over 8 row slices; backward: the gradients of both products, w2
    # and w over the 2 rows
    assert time.phase("forward").communication_s == pytest.approx(2 * ring(y, 4) + ring(F32, 8))
    assert time.phase("backward").communication_s == pytest.approx(2 * ring(y, 4) + ring(w, 2) + ring(w2, 2))
    assert time.phase("update").communication_s == 0
    assert time.sent_bytes == 4 * (2 * 3 * y // 4) + 2 * 7 * F32 // 8 + 2 * w // 2 + 2 * w2 // 2
    assert time.messages == 7


def test_the_products_of_a_step_cost_six_flops_per_weight_and_row_but_the_first_input_gradient():
    plan = seed_plan()
    products = sum(
        i.opdef.work_flops(tuple(plan.value(n).slice_shape for n in i.ins), dict(i.attrs))
        for _, i in plan.instructions()
        if i.op == "matmul"
    )
    rows, k, n, k2, n2 = 16, 32, 16, 16, 16
    assert 8 * products == rows * (4 * k * n + 6 * k2 * n2)


def test_a_step_is_the_sum_of_its_instructions():
    plan = seed_plan()
    time = step_time_s(plan, NODE)
    assert time.total_s == pytest.approx(math.fsum(instr_time_s(plan, i, NODE) for _, i in plan.instructions()))
    assert time.total_s == pytest.approx(sum(p.total_s for p in time.phases))


def test_without_an_optimizer_the_update_takes_no_time():
    assert step_time_s(seed_plan("none"), NODE).phase("update").total_s == 0


def test_a_plan_that_is_too_large_for_the_cluster_is_refused():
    with pytest.raises(ArgumentError, match="16 ranks on 8 devices"):
        step_time_s(product_plan(((2, 4), (4, 1)), device_num=16), get_cluster("laptop"))
