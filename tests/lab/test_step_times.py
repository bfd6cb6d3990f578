"""Labelled step times: predicted by the cost model, simulated on the profile, measured on real workers."""

import pytest

from parallel_lab.base.cluster import Cluster, Device, Link, get_cluster
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import predict_timeline
from parallel_lab.lab.shared.step_times import step_times
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.session import Session
from tests.cost.nets import OPTIMIZERS, SeedNet, seed_inputs, seed_plan
from tests.graph.test_pipeline import batch, planned

SLOW = Cluster("slow", get_cluster("laptop").device, Link(alpha_s=0.01, beta_s_per_byte=1e-9), devices_per_node=8)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(8) as pool:
        yield pool


@pytest.fixture(scope="module")
def found(pool):
    net = SeedNet()
    return step_times(
        seed_plan(), net, OPTIMIZERS["momentum"](net.trainable_params()), [seed_inputs()], SLOW, steps=3, pool=pool
    )


def test_each_number_comes_from_its_own_source(found):
    assert found.predicted_s == predict_timeline(seed_plan(), SLOW).end_s
    # seven messages in groups of two and four ranks, a hundredth of a second per hop at least: in the two that know the
    # profile
    assert found.predicted_s > 0.07 and found.simulated_s > 0.07
    assert 0 < found.measured_s < 60
    for time_s, (low, high) in (
        (found.simulated_s, found.simulated_range_s),
        (found.measured_s, found.measured_range_s),
    ):
        assert 0 < low <= time_s <= high


def test_the_table_labels_every_number_and_says_what_it_rests_on(found):
    lines = found.text().splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["predicted", "simulated", "measured"]
    assert lines[3].endswith("1.00x")
    assert "profile 'slow': alpha 1e+04 us per message, beta 1 ns per byte" in found.text()


@pytest.mark.exhaustive
def test_nothing_of_the_network_changes_and_the_pool_stays(pool):
    net = SeedNet()
    before = {name: p.asnumpy().copy() for name, p in net.parameters_dict().items()}
    optimizer = OPTIMIZERS["momentum"](net.trainable_params())
    step_times(seed_plan(), net, optimizer, [seed_inputs()], get_cluster("laptop"), steps=1, pool=pool)
    assert pool.alive and all((p.asnumpy() == before[name]).all() for name, p in net.parameters_dict().items())


def test_an_invalid_count_and_a_cluster_without_room_are_refused(pool):
    net = SeedNet()
    optimizer = OPTIMIZERS["momentum"](net.trainable_params())
    with pytest.raises(ArgumentError, match="step_times"):
        step_times(seed_plan(), net, optimizer, [seed_inputs()], SLOW, steps=0, pool=pool)
    small = Cluster("small", Device(1e9, 10**9, 1e9), Link(0.0, 0.0), devices_per_node=2)
    with pytest.raises(ArgumentError, match="8 ranks on 2 devices"):
        step_times(seed_plan(), net, optimizer, [seed_inputs()], small, pool=pool)


@pytest.mark.exhaustive
@pytest.mark.parametrize("cores", [1, None])
def test_all_three_report_the_bubbles_of_a_pipeline(cores):
    plan, net, optimizer = planned((0, 1, 2, 3), 4, parts=4)
    with WorkerPool(4) as pool:
        found = step_times(plan, net, optimizer, [batch()], get_cluster("laptop"), steps=2, pool=pool, cores=cores)
    work_s = predict_timeline(plan, get_cluster("laptop")).log.seconds(kind="compute")
    if cores is None:
        assert found.predicted_s == predict_timeline(plan, get_cluster("laptop")).end_s
        assert found.predicted_bubble == pytest.approx(1 - work_s / (4 * found.predicted_s))
    else:
        assert found.predicted_s >= work_s * (1 - 1e-9) and "ranks share 1 core" in found.text()
    lines = found.text().splitlines()
    bubbles = found.predicted_bubble, found.simulated_bubble, found.measured_bubble
    for line, bubble in zip(lines[1:4], bubbles, strict=True):
        assert 0 < bubble < 1 and f"  {bubble:.1%}  " in line
    assert "bubble" in lines[0] and found.simulated_s < 60  # on the clock of the step, not of the machine


def test_cores_are_a_count():
    plan, net, optimizer = planned((0, 1), 2)
    for bad in (0, 1.5, "2"):
        with pytest.raises(ArgumentError, match="cores="):
            Session(plan, net, optimizer, cores=bad)
