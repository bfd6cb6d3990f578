"""Schedules and their clock against theory: formulas, exact tables, published rates (theory.md 5.1 to 5.4)."""

import itertools
from fractions import Fraction
from random import Random

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, PlanError
from parallel_lab.cost.schedules import Schedule, make_schedule, schedule_names
from parallel_lab.cost.schedules.order import key_of
from tests.crossed import each_of

GRID = [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (8, 12, 24) if m >= p]
TIMES = [(1, 1, 1), (1, 2, 0), (3, 4, 2), (5, 4, 4)]


def every_schedule():
    """One of each name, for even numbers that all of them take."""
    for name in schedule_names():
        several = name in ("gpipe", "1f1b", "interleaved", "breadth_first", "zb_h1")
        for stages, micro_batches, chunks in ((2, 8, 1), (4, 8, 1), (4, 16, 1), *[(4, 8, 2), (2, 8, 3)] * several):
            yield name, stages, micro_batches, chunks


@pytest.mark.quick(16)
@pytest.mark.parametrize(("name", "stages", "micro_batches", "chunks"), list(every_schedule()))
def test_every_schedule_can_run_and_says_how_much_it_keeps(name, stages, micro_batches, chunks):
    schedule = make_schedule(name, stages, micro_batches, chunks)
    assert schedule.check(cap=schedule.peaks) == []
    assert schedule.check(cap=[peak - 1 for peak in schedule.peaks])[0].kind == "memory"
    kinds = "FBW" if schedule.splits_backward else "FB"
    wanted = {(k, kind, n) for k in range(schedule.parts) for kind in kinds for n in range(micro_batches)}
    done = [(a.stage, a.kind, a.micro_batch) for lane in schedule for a in lane]
    assert len(done) == len(wanted) and set(done) == wanted
    assert sum(schedule.clock(1, 2, 3).work) == schedule.parts * micro_batches * 6


@pytest.mark.quick(20)
@pytest.mark.parametrize(("p", "m"), GRID)
@pytest.mark.parametrize(("f", "b", "w"), TIMES)
def test_formulas_of_schedules_with_one_part_per_rank(p, m, f, b, w):
    """Bubbles, makespans and peaks."""

    def timed(name):
        schedule = make_schedule(name, p, m)
        return schedule, schedule.clock(f, b, w)

    for name, peaks in (
        ("gpipe", [m] * p),
        ("breadth_first", [m] * p),
        ("1f1b", [min(m, p - s) for s in range(p)]),
        ("interleaved", [min(m, p - s) for s in range(p)] if p == 1 else None),
        ("eager_1f1b", [min(m, 2 * (p - 1 - s) + 1) for s in range(p)]),
    ):
        schedule, timing = timed(name)
        assert timing.makespan == (m + p - 1) * (f + b + w), name
        assert timing.bubbles == ((p - 1) * (f + b + w),) * p
        assert peaks is None or list(schedule.peaks) == peaks
    if m >= 2 * p - 1 and f >= w and b >= w:
        schedule, timing = timed("zb_h1")
        assert timing.makespan == (p - 1) * (f + b - w) + m * (f + b + w)
        assert max(schedule.peaks) == p
        schedule, timing = timed("zb_h2")
        assert max(schedule.peaks) == 2 * p - 1
        assert timing.makespan >= (p - 1) * f + m * (f + b + w)
        if f + b >= 2 * w:
            assert timing.span == (p - 1) * (f + b - 2 * w) + m * (f + b + w)


@each_of(
    ("p", "m", "fused", "h1", "h2_span", "h2", "peaks"),
    (2, 4, 15, 13, 12, 13, (2, 3)),
    (4, 4, 21, None, None, None, None),
    (4, 8, 33, 27, 24, 27, (4, 7)),
    (4, 12, 45, 39, 36, 39, (4, 7)),
    (8, 16, 69, None, None, None, None),
    (8, 24, 93, 79, 72, 79, (8, 15)),
)
def test_exact_table_of_1f1b_and_zero_bubble(p, m, fused, h1, h2_span, h2, peaks):
    plain = make_schedule("1f1b", p, m)
    assert plain.clock(1, 2, 0).makespan == fused and plain.peaks == tuple(range(p, 0, -1))
    if h1:
        one, two = make_schedule("zb_h1", p, m), make_schedule("zb_h2", p, m)
        found = (one.clock().makespan, two.clock().span, two.clock().makespan, max(one.peaks), max(two.peaks))
        assert found == (h1, h2_span, h2, *peaks)


@pytest.mark.parametrize("name", ["interleaved", "1f1b", "breadth_first"])
@each_of(
    ("p", "m", "v", "makespan", "peaks"),
    (2, 4, 2, 27, (5, 3)),
    (4, 4, 2, 33, (8, 8, 7, 5)),
    (4, 8, 2, 57, (11, 9, 7, 5)),
    (4, 8, 4, 105, (19, 17, 15, 13)),
    (8, 8, 3, 93, (24, 24, 24, 24, 23, 21, 19, 17)),
    (8, 16, 2, 117, tuple(range(23, 7, -2))),
)
def test_exact_table_of_interleaved_schedules(name, p, m, v, makespan, peaks):
    schedule = make_schedule(name, p, m, v)
    assert schedule.clock(1, 2, 0).makespan == makespan
    assert schedule.peaks == (peaks if name != "breadth_first" else (m * v,) * p)


@pytest.mark.quick(12)
@pytest.mark.parametrize(("p", "m", "v"), [(p, r * p, v) for p in (2, 3, 4, 8) for r in (1, 2, 4) for v in (1, 2, 3)])
def test_interleaved_bubble_and_peaks_are_the_formulas(p, m, v):
    for name in ("interleaved", "breadth_first"):
        assert make_schedule(name, p, m, v).clock(2, 3, 1).bubbles == ((p - 1) * 6,) * p
    if v > 1:
        peaks = tuple(min(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1) for r in range(p))
        assert make_schedule("interleaved", p, m, v).peaks == peaks


def test_mindspores_and_pytorchs_rounds_differ_where_stages_do_not_divide():
    """4 stages, 10 micro-batches, 2 chunks: rounds of 6 and 4, or of 5 and 5; MindSpore's warm-up is (S + f)(C - 1) +
    2(S - s - 1)."""
    mindspore, pytorch = make_schedule("1f1b", 4, 10, 2), make_schedule("interleaved", 4, 10, 2)

    def warm(schedule):
        return [next(i for i, a in enumerate(lane) if a.kind == "B") - 1 for lane in schedule]

    assert warm(mindspore) == [6 + 2 * (3 - s) for s in range(4)]
    assert warm(pytorch) == [5 + 2 * (3 - s) for s in range(4)]
    assert (
        mindspore[3][5:8] == mindspore.ranks[3][5:8] and str(mindspore[3][6]) == "7F0" and str(pytorch[3][5]) == "7F0"
    )
    assert make_schedule("1f1b", 4, 11, 2).check() == []
    assert make_schedule("1f1b", 4, 8, 2).ranks == make_schedule("interleaved", 4, 8, 2).ranks
    assert make_schedule("1f1b", 4, 3, 2).ranks == make_schedule("interleaved", 4, 3, 2).ranks  # one round
    with pytest.raises(ArgumentError, match="2 rounds must divide"):
        make_schedule("interleaved", 4, 11, 2)


@pytest.mark.parametrize(
    ("d", "equal", "double", "peaks"), [(4, 10, 16, (3, 4)), (6, 16, 26, (4, 6)), (8, 22, 36, (5, 8))]
)
def test_chimera(d, equal, double, peaks):
    schedule = make_schedule("chimera", d, d)
    assert (schedule.clock(1, 1, 0).makespan, schedule.clock(1, 2, 0).makespan) == (equal, double)
    assert (min(schedule.peaks), max(schedule.peaks)) == peaks
    assert equal == 3 * d - 2 and schedule.clock(1, 1, 0).rate() == pytest.approx((d - 2) / (2 * d + d - 2))
    assert schedule.clock(1, 2, 0).rate() == pytest.approx((d - 2) / (1.5 * d + d - 2))
    more = make_schedule("chimera", d, 3 * d)
    assert more.clock(1, 1, 0).makespan == 6 * d + d - 2 and max(more.peaks) <= d


@pytest.mark.parametrize(("p", "n", "makespan", "idle"), [(4, 8, 26, 2), (8, 20, 66, 6), (8, 24, 78, 6), (2, 4, 12, 0)])
def test_dualpipe(p, n, makespan, idle):
    schedule = make_schedule("dualpipe", p, n)
    timing = schedule.clock(1, 1, 1)
    assert timing.makespan == makespan and timing.bubbles == (idle,) * p
    assert max(schedule.peaks) == p + 1
    assert idle == (p // 2 - 1) * (3 + 2 - 3 * 1)
    if (p, n) == (8, 24):
        assert schedule.clock(1, 1, 1, together=2.5).makespan == 69


@pytest.mark.quick(3)
@pytest.mark.parametrize("p", [2, 4, 6, 8, 12])
@pytest.mark.parametrize(("f", "w"), [(1, 1), (4, 4), (4, 3), (5, 2), (3, 0)])
def test_dualpipes_bubble_is_its_formula_where_forward_and_input_gradient_take_the_same(p, f, w):
    """(P/2 - 1)(F&B + B - 3W), B full. A pair may take less than one after the other: then of the ranks in the middle,
    which run most pairs."""
    for m in (2 * p, 2 * p + 2, 5 * p):
        for pair in (2 * f + w, 2 * f + w - 0.5):
            idle = make_schedule("dualpipe", p, m).clock(f, f, w, together=pair).bubbles
            assert max(idle) == (p // 2 - 1) * (pair + (f + w) - 3 * w)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (6, 12), (8, 16)])
def test_messages_between_ranks_are_counted_by_the_formula(p, m):
    def sent(name, chunks=1):
        order = make_schedule(name, p, m, chunks)
        readers = [(r, order.where[key]) for r, lane in enumerate(order) for a in lane for key in order.readers(a)]
        return sum(source != target for source, target in readers)

    for name in ("gpipe", "1f1b", "eager_1f1b", "zb_h1", "zb_h2"):
        assert sent(name) == 2 * m * (p - 1)
    for name, chunks in (("interleaved", 2), ("interleaved", 3), ("breadth_first", 3)):
        assert sent(name, chunks) == 2 * m * (p * chunks - 1)
    for name in ("zero_bubble_v", "v_half", "v_min"):
        assert sent(name) == 2 * m * (2 * p - 2)
    for name in ("chimera", "dualpipe"):  # a way of m/2 micro-batches down, one up; two copies of the network
        assert sent(name) == 2 * m * (p - 1) and make_schedule(name, p, m).holds[0] == (0, p - 1)


def test_schedules_of_one_model_side_by_side():
    """p=8, m=24, 72 units of work: parts of half the size where a rank has two."""

    def makespan(name, chunks=1):
        return make_schedule(name, 8, 24, chunks).clock(*[1 / chunks] * 3).makespan

    assert [makespan("1f1b"), makespan("interleaved", 2), makespan("zb_h1")] == [93, 82.5, 79]
    assert makespan("zero_bubble_v", 2) == 75.5


@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (1, 2, 3, 4, 6, 8) for m in (16, 24, 32)])
def test_zero_bubble_v(p, m):
    schedule = make_schedule("zero_bubble_v", p, m, 2)
    timing = schedule.clock()
    assert (timing.makespan, timing.span) == (6 * m + p - 1, 6 * m)
    assert schedule.peaks == (2 * p,) * p
    assert schedule.holds == tuple((r, 2 * p - 1 - r) for r in range(p))


@pytest.mark.quick(3)
@pytest.mark.parametrize(("p", "m"), [(p, m) for p in (4, 5, 6, 7, 8, 9, 12, 16, 17, 32) for m in (2 * p, 4 * p)])
def test_v_half_and_v_min(p, m):
    """Bubble within 10 % of 1/2 and 2/3 of 1F1B's; activations: 1/2 and 1/3 of 1F1B's 2 p parts, and a constant. A
    rank keeps a micro-batch in its two parts for 4p + 4 units or longer, and gets one every 6: never fewer than
    (4p + 4) / 6 at full pace."""
    fused = 6 * (p - 1)
    for name, bubble, kept in (("v_half", 1 / 2, p + 2 - p % 2), ("v_min", 2 / 3, 2 * -(-(p + 2) // 3))):
        schedule = make_schedule(name, p, m)
        for cost in (schedule.clock().makespan, schedule.clock().span):
            assert (cost - 6 * m) / fused == pytest.approx(bubble, rel=0.1)
        assert (4 * p + 4) / 6 <= max(schedule.peaks) == kept


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "kept", "p"),
    [("v_half", Fraction(1, 2), 20), ("v_half", Fraction(1, 2), 32), ("v_min", Fraction(1, 3), 64)],
)
def test_v_schedules_keep_their_fraction_of_activations(name, kept, p):
    fraction = Fraction(max(make_schedule(name, p, 2 * p).peaks), 2 * p)
    assert abs(fraction / kept - 1) <= Fraction(1, 10)  # 22 of 40 parts is just 10 % more than a half


@pytest.mark.parametrize(
    ("p", "f", "b", "c", "rounds"),
    list(itertools.product((2, 3, 4, 6, 8), (2, 3, 4, 5), (3, 4, 5, 8), (0, 1, 2), (2, 3, 4))),
)
@pytest.mark.quick(15)
def test_latency_formulas(p, f, b, c, rounds):
    m = p * rounds
    plain = (m + p - 1) * (f + b)

    def cost(name):
        return make_schedule(name, p, m).clock(f, b, 0, c).makespan

    assert cost("gpipe") == plain + 2 * (p - 1) * c
    if c:
        assert cost("1f1b") == plain + c * (2 * (p - 1) * rounds + 2 * p - 4)
    if m >= 2 * p:
        assert cost("eager_1f1b") == plain + 2 * (p - 1) * c


@pytest.mark.parametrize(("p", "f", "b", "c"), list(itertools.product((2, 3, 4, 8), (2, 3, 4), (2, 3, 5), (0, 1))))
@pytest.mark.quick(20)
def test_latency_formula_of_h2(p, f, b, c):
    for w in range(1, 3):
        if f + b + 2 * c >= 2 * w and b >= w and f >= w:
            span = make_schedule("zb_h2", p, 4 * p).clock(f, b, w, c).span
            assert span == (p - 1) * (f + b + 2 * c - 2 * w) + 4 * p * (f + b + w)


@pytest.mark.quick(0)
@each_of(
    ("p", "m", "f", "b", "w", "c", "rates"),
    (8, 24, 18522, 18086, 9337, 601, (0.2431, 0.1585, 0.1083)),
    (16, 128, 11325, 11308, 8109, 378, (0.1251, 0.0576, 0.0266)),
    (32, 256, 10402, 10248, 7698, 460, (0.1352, 0.0594, 0.0257)),
)
def test_published_rates_of_profiled_models(p, m, f, b, w, c, rates):
    one, h1, h2 = (make_schedule(name, p, m).clock(f, b, w, c) for name in ("1f1b", "zb_h1", "zb_h2"))
    assert (round(one.rate(), 4), round(h1.rate(), 4), round(h2.rate(h2.span), 4)) == rates


def by_pipe_1(p, m, f, b, w, c, warm, joined):
    """(makespan, longest span) by the rules of theory.md 5.4 alone: warm(s) forwards, then rounds of [F] B [W]."""
    lanes, end, first, last = [], {}, {}, {}
    for s in range(p):
        ahead, lane = min(m, warm(s)), []
        lane += [("F", n) for n in range(ahead)]
        for i in range(m):
            lane += [("F", ahead + i)] * (ahead + i < m) + [("B", i)]
            lane += [("W", i + warm(s) - warm(0))] * (not joined and warm(s) + i >= warm(0))
        lane += [("W", n) for n in range(max(0, m - warm(0) + warm(s)), m)] * (not joined)
        lanes.append(lane)
    took = {"F": f, "B": b + w if joined else b, "W": w}
    while any(lanes):
        for s, lane in enumerate(lanes):
            while lane:
                kind, n = lane[0]
                needs = [(s - 1, "F", n)] * (kind == "F" and s > 0) + [(s, "B", n)] * (kind == "W")
                needs += [(s, "F", n), *[(s + 1, "B", n)] * (s + 1 < p)] * (kind == "B")
                if not all(key in end for key in needs):
                    break
                start = max([last.get(s, 0), *(end[key] + c * (key[0] != s) for key in needs)])
                first.setdefault(s, start)
                last[s] = end[s, kind, n] = start + took[kind]
                lane.pop(0)
    return max(last.values()), max(last[s] - first[s] for s in range(p))


@pytest.mark.parametrize(("p", "m"), [(4, 4), (4, 9), (5, 12), (6, 40), (7, 7), (8, 24), (12, 24), (16, 33), (32, 64)])
@pytest.mark.exhaustive
def test_any_setting_costs_what_the_rules_of_the_published_rates_give(p, m):
    draw = np.random.default_rng([54, p, m])
    for _ in range(3):
        f, b = (int(t) for t in draw.integers(3000, 20_000, 2))
        w, c = int(draw.integers(1000, 30_000)), int(draw.integers(0, f + 1))
        for name, k in (("1f1b", 1), ("zb_h1", 1), ("zb_h2", 2)):
            timing = make_schedule(name, p, m).clock(f, b, w, c)
            wanted = by_pipe_1(p, m, f, b, w, c, lambda s, k=k: k * (p - 1 - s), name == "1f1b")
            assert (timing.makespan, timing.span) == wanted, (name, f, b, w, c)


def test_uneven_stages():
    """Four stages, the first twice as slow: 51, below the 57 of the formula (m - 1) max + sum."""
    timing = make_schedule("1f1b", 4, 8).clock((2, 1, 1, 1), (4, 2, 2, 2), 0)
    assert timing.makespan == 51
    with pytest.raises(ArgumentError, match="one for each of 4 parts"):
        make_schedule("1f1b", 4, 8).clock((2, 1))


def test_links_have_latencies_of_their_own():
    """One micro-batch over three ranks: each way over 0-1 (5) and 1-2 (7 there, 1 back)."""
    timing = make_schedule("1f1b", 3, 1).clock(1, 1, 1, {(0, 1): 5, (1, 0): 5, (1, 2): 7, (2, 1): 1})
    assert timing.makespan == 3 * 3 + 5 + 7 + 1 + 5
    assert timing.starts[2] == (1 + 5 + 1 + 7, 15)


def test_ranks_that_share_cores():
    """By hand, on one core: the first stage's second forward comes at the same time as the second stage's first, and
    goes first; of the backwards at 5 s and 6 s too the lower rank's.
    """
    alone = make_schedule("gpipe", 1, 3).clock(1, 1, 1)
    schedule = make_schedule("gpipe", 2, 2)
    assert alone.makespan == 9
    timing = schedule.clock(1, 1, 0, cores=1)
    assert timing.starts == ((0, 1, 5, 7), (2, 3, 4, 6)) and timing.ends == ((1, 2, 6, 8), (3, 4, 5, 7))
    assert timing.bubbles == (4, 4)  # a rank that waits for a core is idle
    assert schedule.clock(1, 1, 0, cores=2).makespan == schedule.clock(1, 1, 0).makespan == 6
    wide = make_schedule("1f1b", 8, 32)
    assert wide.clock(1, 2, 0, cores=2).makespan >= 8 * 32 * 3 / 2
    assert wide.clock(1, 2, 0, 0.5, cores=8) == wide.clock(1, 2, 0, 0.5)
    many = [wide.clock(1, 2, 0, cores=n).makespan for n in (1, 2, 3, 5, 8)]
    assert many == sorted(many, reverse=True) and many[0] == 8 * 32 * 3
    with pytest.raises(ArgumentError, match="cores=0"):
        wide.clock(cores=0)


@pytest.mark.quick(16)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb_h1"])
def test_cores_are_given_in_turn_and_never_idle_while_somebody_wants_one(name, seed):
    """Drawn times: the first to come begins first, at a tie the lower rank; ranks wait only if all cores are taken."""
    random = Random(seed)
    cores, schedule = random.choice((1, 2, 3)), make_schedule(name, 4, 4, 2 if name == "interleaved" else 1)
    forward, backward, weights = ([random.choice((1, 2, 3)) for _ in range(schedule.parts)] for _ in range(3))
    latency = random.choice((0, 1))
    timing = schedule.clock(forward, backward, weights, latency, cores=cores)
    spans = {}  # what -> (rank, start, end)
    for rank, lane in enumerate(schedule):
        for n, action in enumerate(lane):
            spans[key_of(action)] = rank, timing.starts[rank][n], timing.ends[rank][n]
    came = []  # (when it could begin, rank, start)
    for rank, lane in enumerate(schedule):
        before = 0
        for action in lane:
            there = [spans[key] for key in schedule.needs(action)]
            _, start, end = spans[key_of(action)]
            came.append((max([before, *(e + latency * (r != rank) for r, _, e in there)]), rank, start))
            before = end
    for since, rank, start in came:
        assert since <= start
        for other, _, begins in [one for one in came if one[:2] < (since, rank)]:
            assert begins <= start, f"who came at {other} begins at {begins}, after who came at {since}, at {start}"
        for moment in range(int(since), int(start)):
            assert sum(begin <= moment < end for _, begin, end in spans.values()) == cores
    for moment in range(int(timing.makespan)):
        assert sum(begin <= moment < end for _, begin, end in spans.values()) <= cores


def test_p5_and_p6_have_the_pars_of_the_course():
    assert make_schedule("1f1b", 4, 8).clock(1, 1, 0).makespan == 22
    assert make_schedule("zb_h1", 4, 8).clock().makespan == 27
    assert make_schedule("interleaved", 4, 8, 2).clock(1, 1, 0).makespan == 38


def test_names_and_numbers_that_there_are_not():
    with pytest.raises(ArgumentError, match=r"schedule 'ring'.*1f1b"):
        make_schedule("ring", 2, 4)
    with pytest.raises(ArgumentError, match="stages=0"):
        make_schedule("1f1b", 0, 4)
    with pytest.raises(ArgumentError, match="Stages and micro-batches are even"):
        make_schedule("chimera", 3, 4)
    with pytest.raises(ArgumentError, match="It has 2 parts on a rank"):
        make_schedule("v_half", 2, 4, 3)
    with pytest.raises(PlanError, match="no rank can go on: rank 0: 0B0"):
        Schedule.from_text("0B0 0F0\n1F0 1B0").clock()
