import dataclasses

import pytest

from parallel_lab.base.cluster import CLUSTERS, Cluster, Device, Link, get_cluster
from parallel_lab.base.errors import ArgumentError, ArgumentTypeError
from parallel_lab.cost.time import message_time_s
from tests.crossed import each_of

DEVICE = Device(flops_per_s=1e12, memory_bytes=10**9, memory_bandwidth_bytes_per_s=1e11, overhead_s=1e-6)
NEAR, FAR = Link(1e-6, 1e-10), Link(1e-5, 1e-9)

# Microseconds of eight ranks through shared memory, tensors of this many bytes (gathered ones for all_gather): the
# slowest rank's median of three loops of the shared-memory Communicator, November 2026, 2 cores with nothing else to do
# (load 0.5).
KIB = 2**10
MEASURED_US = {
    "all_reduce": {4 * KIB: 115, 64 * KIB: 236, 1024 * KIB: 1368, 16_384 * KIB: 18416},
    "all_gather": {4 * KIB: 142, 64 * KIB: 157, 1024 * KIB: 379, 16_384 * KIB: 7686},
    "reduce_scatter": {64 * KIB: 193, 1024 * KIB: 682, 16_384 * KIB: 11959},
}


@pytest.mark.parametrize(
    ("kind", "size_bytes", "measured_us"), [(kind, *row) for kind, rows in MEASURED_US.items() for row in rows.items()]
)
def test_laptop_is_within_a_factor_two_of_what_was_measured(kind, size_bytes, measured_us):
    laptop = get_cluster("laptop")
    operand = size_bytes // 8 if kind == "all_gather" else size_bytes
    predicted_us = 1e6 * message_time_s(kind, operand, 8, laptop.link, laptop.device.gamma_s_per_byte)
    assert 0.5 < predicted_us / measured_us < 2


def test_profiles_have_the_promised_sizes():
    expected = {"laptop": (1, 8), "gpu_node": (1, 8), "two_nodes": (2, 8)}
    assert {c.name: (c.node_count, c.devices_per_node) for c in CLUSTERS} == expected
    assert get_cluster("two_nodes").device == get_cluster("gpu_node").device


def test_the_link_between_nodes_is_the_slower_one():
    two = get_cluster("two_nodes")
    assert two.node_link.alpha_s > two.link.alpha_s
    assert two.node_link.beta_s_per_byte > two.link.beta_s_per_byte


@pytest.mark.parametrize(
    ("group", "expected"),
    [((0, 1, 2, 3), NEAR), ((4, 5, 6, 7), NEAR), ((3, 4), FAR), ((0, 4), FAR), ((5,), NEAR), (tuple(range(8)), FAR)],
)
def test_a_group_that_spans_nodes_uses_the_link_between_them(group, expected):
    assert Cluster("c", DEVICE, NEAR, devices_per_node=4, node_count=2, node_link=FAR).link_for(group) is expected


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_beyond_the_cluster_is_refused(rank):
    with pytest.raises(ArgumentError, match="from 0 to 7"):
        get_cluster("laptop").link_for((0, rank))


def test_more_ranks_than_devices_are_refused_with_a_cluster_that_has_them():
    with pytest.raises(ArgumentError, match=r"16 ranks on 8 devices.*with_nodes\(2\)"):
        get_cluster("gpu_node").check_device_num(16)
    get_cluster("two_nodes").with_nodes(2).check_device_num(16)


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ArgumentError, match="two_nodes"):
        get_cluster("two_node")


@pytest.mark.parametrize("alpha, beta", [(-1e-6, 1e-9), (1e-6, -1e-9), (float("nan"), 1e-9), (1e-6, float("inf"))])
def test_links_with_impossible_numbers_are_refused(alpha, beta):
    with pytest.raises(ArgumentError, match="Link"):
        Link(alpha, beta)


@each_of(
    ("field", "value", "error"),
    ("flops_per_s", 0, ArgumentError),
    ("flops_per_s", "fast", ArgumentTypeError),
    ("memory_bytes", 0, ArgumentError),
    ("memory_bytes", 1.5, ArgumentTypeError),
    ("memory_bandwidth_bytes_per_s", -1.0, ArgumentError),
    ("overhead_s", -1e-9, ArgumentError),
    ("overhead_s", True, ArgumentTypeError),
)
def test_devices_with_impossible_numbers_are_refused(field, value, error):
    with pytest.raises(error, match=field):
        dataclasses.replace(DEVICE, **{field: value})


@each_of(
    ("fields", "text"),
    ({"devices_per_node": 0}, "devices_per_node"),
    ({"node_count": 2}, "no link between them"),
    ({"link": 1e-6}, "link"),
    ({"device": NEAR}, "device"),
    ({"name": ""}, "name"),
)
def test_clusters_that_make_no_sense_are_refused(fields, text):
    with pytest.raises(ArgumentError, match=text):
        Cluster(**{"name": "c", "device": DEVICE, "link": NEAR, "devices_per_node": 4, **fields})
