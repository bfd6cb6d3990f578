"""The alpha-beta fit: what it recovers from a known law and refuses to claim, and that real messages are measured."""

import math
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from parallel_lab import Session
from parallel_lab.base.cluster import Device, get_cluster
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import message_time_s, predict_timeline
from parallel_lab.processes.measure.fit import Fit, fit_figure, fit_line, fit_link, measured_cluster
from parallel_lab.processes.measure.measure import measure_device
from parallel_lab.processes.shm import WorkerPool
from tests.cost.nets import OPTIMIZERS, SeedNet, seed_inputs, seed_plan
from tests.crossed import each_of

SIZES = tuple(1 << power for power in range(6, 27))
ALPHA, BETA = 12e-6, 0.5e-9


def exact(alpha=ALPHA, beta=BETA, sizes=SIZES):
    return [[alpha + beta * m] for m in sizes]


@pytest.mark.quick(2)
@pytest.mark.parametrize("alpha, beta", [(12e-6, 0.5e-9), (0.0, 1e-9), (3e-5, 0.0), (1e-9, 1e-6)])
def test_a_line_is_recovered_from_times_that_lie_on_it(alpha, beta):
    fit = fit_line(SIZES, exact(alpha, beta))
    assert fit.alpha_s == pytest.approx(alpha, rel=1e-6, abs=1e-15)
    assert fit.beta_s_per_byte == pytest.approx(beta, rel=1e-6, abs=1e-18)
    assert fit.accepted and fit.max_residual < 1e-6 and fit.r_squared == pytest.approx(1.0)


@pytest.mark.exhaustive
def test_small_messages_count_as_much_as_large_ones(rng):
    """Ordinary least squares follows the largest messages: 10 % of noise there is more than the whole start-up."""
    noisy = [[t * rng.normal(1, 0.1) for _ in range(30)] for (t,) in exact()]
    fit = fit_line(SIZES, noisy)
    assert fit.alpha_s == pytest.approx(ALPHA, rel=0.1)
    assert fit.beta_s_per_byte == pytest.approx(BETA, rel=0.1)
    # each from one draw at every size: how far the start-up is off, by both methods, in the middle of 50 draws
    ours, usual = [], []
    for _ in range(50):
        once = np.array([t * rng.normal(1, 0.1) for (t,) in exact()])
        ours.append(abs(fit_line(SIZES, once[:, None]).alpha_s - ALPHA))
        usual.append(abs(np.polynomial.polynomial.polyfit(SIZES, once, 1)[0] - ALPHA))
    assert np.median(ours) < 0.1 * ALPHA < ALPHA < np.median(usual)


def test_intervals_hold_the_truth_and_are_narrower_with_more_repeats(rng):
    widths = []
    for repeats in (10, 200):
        fit = fit_line(SIZES, [[t * rng.normal(1, 0.05) for _ in range(repeats)] for (t,) in exact()])
        low, high = fit.alpha_interval_s
        assert 0.95 * low < ALPHA < 1.05 * high
        widths.append(high - low)
    assert widths[1] < widths[0]


def test_neither_parameter_is_below_zero():
    """Times that fall with the size, and times that rise faster than any line, ask for negative ones."""
    falling = fit_line((64, 4096, 65536), [[3e-6], [2e-6], [1e-6]])
    steep = fit_line((1, 2, 4, 8), [[m**3 * 1e-6] for m in (1, 2, 4, 8)])
    assert falling.beta_s_per_byte == 0 and falling.alpha_s > 0 and math.isinf(falling.half_size_bytes)
    assert steep.alpha_s == 0 and steep.beta_s_per_byte > 0


def test_the_best_line_on_the_border_is_the_best_of_all_that_are_allowed():
    """Compared with a search over the whole quadrant."""
    sizes, times = np.array((1.0, 2.0, 4.0, 8.0)), np.array((1.0, 8.0, 64.0, 512.0)) * 1e-6
    fit = fit_line((1, 2, 4, 8), times[:, None])

    def left(alpha, beta):
        return float(np.sum(((alpha + beta * sizes - times) / times) ** 2))

    others = [left(a, b) for a in np.linspace(0, 2e-6, 41) for b in np.linspace(0, 2e-5, 401)]
    assert left(fit.alpha_s, fit.beta_s_per_byte) <= min(others) + 1e-12


def test_sizes_beyond_a_cache_make_no_line_and_it_says_so():
    """Ten times the slope from 1 MiB on: one line is off by far more than 40 % somewhere, two lines fit."""
    times = [[ALPHA + BETA * m if m < 1 << 20 else 2e-3 + 10 * BETA * m] for m in SIZES]
    fit = fit_line(SIZES, times)
    assert not fit.accepted and "NO SINGLE LINE FITS" in fit.text()
    (first, end, alpha, beta), (start, last, _, slope) = fit.pieces
    assert (first, end, start, last) == (SIZES[0], 1 << 19, 1 << 20, SIZES[-1])
    assert (alpha, beta, slope) == tuple(pytest.approx(value, rel=1e-6) for value in (ALPHA, BETA, 10 * BETA))


def test_half_of_the_bandwidth_is_reached_at_alpha_over_beta():
    fit = fit_line(SIZES, exact())
    m = fit.half_size_bytes
    assert m == pytest.approx(24_000)
    assert m / fit.time_s(m) == pytest.approx(fit.bandwidth_bytes_per_s / 2)


@pytest.mark.quick(3)
@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("gamma", [0.0, 0.3e-9])
def test_the_link_of_an_all_reduce_or_its_halves_gives_the_line_back_through_the_closed_form(world_size, gamma):
    n = world_size
    # ring: 2(n-1) alpha + (n-1)/n S (2 beta + gamma)
    alpha, beta = 2 * (n - 1) * 5e-6, (2 * 0.4e-9 + gamma) * (n - 1) / n
    fit = fit_line(SIZES, exact(alpha, beta), kind="all_reduce", world_size=n)
    link = fit.link(gamma)
    assert (link.alpha_s, link.beta_s_per_byte) == (pytest.approx(5e-6), pytest.approx(0.4e-9))
    for m in SIZES:
        assert message_time_s("all_reduce", m, n, link, gamma) == pytest.approx(fit.time_s(m))
        halves = message_time_s("reduce_scatter", m, n, link, gamma) + message_time_s("all_gather", m / n, n, link)
        assert halves == pytest.approx(fit.time_s(m))


def test_adding_that_takes_longer_than_the_whole_slope_leaves_a_link_without_one():
    fit = fit_line(SIZES, exact(1e-5, 1e-10), kind="all_reduce", world_size=4)
    assert fit.link(gamma_s_per_byte=1.0).beta_s_per_byte == 0


def test_the_text_has_units_the_swapped_letters_and_every_size():
    fit = fit_line(SIZES, exact(), kind="all_reduce", world_size=8, cores=2)
    text = fit.text()
    assert repr(fit) == text  # what a cell shows that ends with it
    words = "alpha [us per message], beta [ns per byte], 1/beta = 2 GB/s, t = alpha m + beta, 64 B, 64 MiB"
    assert all(word in text for word in words.split(", "))
    assert "8 ranks share 2 cores" in text and "As a ring of messages" in text
    assert text.count("+0%") + text.count("-0%") == len(SIZES)


def test_the_figure_is_one_svg_with_a_point_per_size_and_words_for_it():
    fit = fit_line(SIZES, exact())
    root = ElementTree.fromstring(fit_figure(fit))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    label = root.get("aria-label")
    assert root.get("role") == "img" and "largest residual 0%" in label and "n_1/2 23.4 KiB" in label
    assert len(circles) == len(SIZES) + 1  # and the legend's
    xs = [float(c.get("cx")) for c in circles[:-1]]
    assert np.diff(xs) == pytest.approx(np.diff(xs)[0], abs=0.2)  # powers of two are equally far apart
    assert fit_figure(fit) == fit_figure(fit) and "</summary><pre>" in fit._repr_html_()


@each_of(
    "sizes, samples, options",
    ((64, 128), [[1.0], [2.0]], {}),
    ((128, 64, 256), [[1.0], [2.0], [3.0]], {}),
    ((64, 64, 256), [[1.0], [2.0], [3.0]], {}),
    ((64, 128, 256), [[1.0], [2.0]], {}),
    ((64, 128, 256), [[1.0], [], [3.0]], {}),
    ((64, 128, 256), [[1.0], [0.0], [3.0]], {}),
    ((64, 128, 256), [[1.0], [math.nan], [3.0]], {}),
    ((64, 128, 256), [[1.0], [2.0], [3.0]], {"kind": "gather"}),
)
def test_anything_but_a_measurement_is_refused(sizes, samples, options):
    with pytest.raises(ArgumentError, match="fit_line"):
        fit_line(sizes, samples, **options)


NO_RANKS_OR_KIND = ({"ranks": 1}, {"ranks": "two"}, {"ranks": True}, {"kind": "gather"})


@each_of("options", *NO_RANKS_OR_KIND, {"sizes_bytes": (3, 6, 9)}, {"sizes_bytes": ()}, {"repeats": 0})
def test_what_cannot_be_measured_is_refused_before_anything_starts(options):
    with pytest.raises(ArgumentError):
        fit_link(**options)


def test_messages_behind_work_divide_among_the_ranks():
    pool = types.SimpleNamespace(world_size=3)
    with pytest.raises(ArgumentError, match="12"):
        fit_link(pool, "behind_work", sizes_bytes=(12, 24, 64))


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind, world_size", [("send", 3), ("all_reduce", 3), ("behind_work", 4)])
def test_real_messages_are_measured_on_a_pool_that_stays(kind, world_size):
    sizes = (64, 1024, 16384, 65536)
    with WorkerPool(world_size) as pool:
        fit = fit_link(pool, kind, sizes_bytes=sizes, repeats=4, warm_ups=1)
        assert pool.alive and pool.run(lambda comm: comm.rank) == list(range(world_size))
    assert isinstance(fit, Fit) and fit.sizes_bytes == sizes and fit.world_size == (2 if kind == "send" else world_size)
    assert all(0 < low <= mid <= high < 60 for low, mid, high in zip(fit.low_s, fit.median_s, fit.high_s, strict=True))
    assert all(least <= low for least, low in zip(fit.min_s, fit.low_s, strict=True))
    assert len(fit.residuals) == 4 and len(fit.held_out_errors) == 2


def test_a_measured_profile_goes_wherever_a_name_does():
    device = Device(1e9, 10**9, 1e9, 1e-6)
    fit = fit_line(SIZES, exact(), kind="all_reduce", world_size=8)
    cluster = measured_cluster(fit, device=device)
    made = cluster.link, cluster.device, cluster.devices_per_node
    assert made == (fit.link(device.gamma_s_per_byte), device, 8)
    assert get_cluster(cluster) is cluster
    plan, net = seed_plan("momentum"), SeedNet()
    assert 0 < predict_timeline(plan, cluster).end_s < 1
    # a second per message: seen in simulated time
    slow = measured_cluster(fit_line(SIZES, exact(1.0, BETA)), device=device, world_size=8)
    with Session(plan, net, OPTIMIZERS["momentum"](net.trainable_params()), cluster=slow) as session:
        session.train([seed_inputs()], 1, record=1)
        assert max(e.end_s for e in session.events) > 1


@pytest.mark.exhaustive
def test_the_device_is_measured_on_all_ranks_at_once():
    device = measure_device(2)
    assert 1e6 < device.flops_per_s < 1e14 and 1e6 < device.memory_bandwidth_bytes_per_s < 1e13
    assert 1e-8 < device.overhead_s < 1 and device.memory_bytes > 0
