"""Collective algorithms: right results, fixed bits on every backend, counts and times of the closed forms."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from parallel_lab import CollectiveMismatch, ShapeError, simulate
from parallel_lab.base.cluster import Link
from parallel_lab.base.errors import ArgumentError, WorldError
from parallel_lab.lab.collectives.algorithms.algorithm import (
    Algorithm,
    algorithm,
    check_algorithm,
    custom_algorithm,
    run_algorithm,
)
from parallel_lab.lab.collectives.algorithms.rounds import KINDS, REDUCING, ROOTED, Phase, Send
from parallel_lab.lab.collectives.algorithms.table import algorithm_names
from parallel_lab.lab.collectives.algorithms.walk import Arrival
from parallel_lab.lab.collectives.words import cell_text
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.run.communicator import REDUCTIONS, Request, answer
from tests.crossed import each_of
from tests.refusals import refused

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
ALL = [(kind, name) for kind in KINDS for name in algorithm_names(kind)]
each_algorithm = pytest.mark.parametrize(("kind", "name"), ALL, ids=lambda x: x)
LINK = Link(alpha_s=3e-6, beta_s_per_byte=1e-9)
GAMMA = 2e-10


def takes(kind, name, n):
    return name in algorithm_names(kind, n)


def values_for(kind, n, rng, dtype="float32", root=0):
    """One value per rank, uneven in size where the kind allows it; sums of floats depend on their order."""
    shape = (2 * n, 3 * n, 5) if kind not in ("all_reduce", "reduce", "broadcast") else (3, 7)
    drawn = [(rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4, shape)).astype(dtype) for _ in range(n)]
    if kind == "scatter":
        return [v if r == root else None for r, v in enumerate(drawn)]
    return drawn


def fields_for(kind, n, root):
    return {"root": root} if kind in ROOTED else {}


def expected(kind, values, n, root=0, **fields):
    """The reference answer, in rank order."""
    group = tuple(range(n))
    requests = []
    for rank, value in enumerate(values):
        hidden = kind in ("broadcast", "scatter") and rank != root
        requests.append(Request(kind, group, None if hidden else value, **fields_for(kind, n, root), **fields))
    return answer(requests)


# ---- results ----


@pytest.mark.quick(15)
@pytest.mark.parametrize("n", SIZES)
@each_algorithm
def test_every_algorithm_gives_what_its_collective_promises(kind, name, n, rng):
    if not takes(kind, name, n):
        with pytest.raises(ArgumentError, match=r"ranks. 2, 4, 8"):
            algorithm(kind, name, n)
        return
    for root in (0,) if kind not in ROOTED else sorted({0, n // 2, n - 1}):
        chosen = algorithm(kind, name, n, root=root)
        assert chosen.check(), chosen.check().text
        values = values_for(kind, n, rng, root=root)
        # rounding: of each element at most (n - 1) ulp of the sum of magnitudes
        bound = n * np.finfo("float32").eps * max(np.abs(v).max() for v in values if v is not None) * n
        for got, want in zip(chosen.run(values), expected(kind, values, n, root), strict=True):
            assert (got is None) == (want is None)
            if want is not None:
                assert got.dtype == want.dtype and got.shape == want.shape and got.flags.c_contiguous
                np.testing.assert_allclose(got, want, rtol=0, atol=bound if kind in REDUCING else 0)


@pytest.mark.quick(10)
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", algorithm_names("all_reduce"))
def test_reductions_of_small_numbers_are_exact_in_any_order(name, reduce, rng):
    values = [rng.integers(1, 4, (5, 3)).astype("float64") for _ in range(6)]
    want = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod, "mean": np.mean}[reduce](values, axis=0)
    for got in algorithm("all_reduce", name, 6).run(values, reduce):
        np.testing.assert_array_equal(got, want)


@pytest.mark.quick(12)
@pytest.mark.parametrize("dtype", ["float16", "int8", "uint64", "bool", "complex64", ">f4"])
@each_algorithm
def test_dtypes_are_kept(kind, name, dtype, rng):
    values = [None if v is None else np.floor(np.abs(v) % 3).astype(dtype) for v in values_for(kind, 4, rng)]
    want = expected(kind, values, 4)
    for got, reply in zip(algorithm(kind, name, 4).run(values), want, strict=True):
        if reply is not None:
            assert got.dtype == np.dtype(dtype).newbyteorder("=")
            np.testing.assert_array_equal(got, reply)  # small whole numbers: no rounding in any order


@pytest.mark.parametrize("n", (2, 3, 5, 8))
@pytest.mark.parametrize("kind", REDUCING)
def test_direct_adds_in_rank_order_bit_for_bit(kind, n, rng):
    values = values_for(kind, n, rng)
    for got, want in zip(algorithm(kind, "direct", n).run(values), expected(kind, values, n), strict=True):
        if want is not None:
            assert got.tobytes() == want.tobytes()


def evaluated(term, chunk_of):
    """A sum in the order in which it is written down."""
    if isinstance(term, int):
        return chunk_of[term]
    return evaluated(term[0], chunk_of) + evaluated(term[1], chunk_of)


@pytest.mark.parametrize("n", (3, 6, 8))
@pytest.mark.parametrize("name", algorithm_names("all_reduce"))
def test_the_order_of_addition_is_the_one_that_is_written_down(name, n, rng):
    values, chosen = values_for("all_reduce", n, rng), algorithm("all_reduce", name, n)
    got = chosen.run(values)
    bounds = [c * 21 // chosen.chunks for c in range(chosen.chunks + 1)]
    for rank in range(n):
        for chunk, (a, b) in enumerate(itertools.pairwise(bounds)):
            held = chosen.walked.states[-1][rank][chunk]
            assert held.ranks == tuple(range(n))
            want = evaluated(held.term, [v.reshape(-1)[a:b] for v in values])
            assert got[rank].reshape(-1)[a:b].tobytes() == want.tobytes()
    assert all(other.tobytes() == got[0].tobytes() for other in got)


def test_orders_differ_between_algorithms():
    """1 + 1e8 - 1e8 in float32: the order decides, so a view that calls all sums alike would be wrong."""
    values = [np.full(4, x, "float32") for x in (1.0, 1e8, -1e8, 1.0)]
    totals = {name: algorithm("all_reduce", name, 4).run(values)[0].tolist() for name in algorithm_names("all_reduce")}
    assert totals["direct"] == [1.0] * 4  # ((1 + 1e8) - 1e8) + 1
    assert totals["recursive_doubling"] == [0.0] * 4  # (1 + 1e8) + (-1e8 + 1)
    assert len(set(map(tuple, totals.values()))) > 2


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("all_gather", {"dim": 1}), ("reduce_scatter", {"dim": 1}), ("all_to_all", {"split_dim": 1, "concat_dim": 0})],
)
def test_dims_are_those_of_the_collective(kind, fields, rng):
    values = [rng.integers(0, 9, (8, 4)).astype("int64") for _ in range(4)]
    want = expected(kind, values, 4, **fields)
    for name in algorithm_names(kind, 4):
        for got, reply in zip(algorithm(kind, name, 4).run(values, **fields), want, strict=True):
            np.testing.assert_array_equal(got, reply)


def test_empty_and_single_values_go_through():
    for name in algorithm_names("all_reduce"):
        chosen = algorithm("all_reduce", name, 5)
        assert [r.shape for r in chosen.run([np.zeros((0, 3))] * 5)] == [(0, 3)] * 5
        assert [float(r) for r in chosen.run([np.float64(r) for r in range(5)])] == [10.0] * 5


# ---- on ranks ----


@pytest.fixture(scope="module", params=(4, 3))
def pool(request):
    with WorkerPool(request.param) as pool:
        yield pool


def on_ranks(comm, jobs):
    return [run_algorithm(comm, kind, name, values[comm.rank], root=root) for kind, name, values, root in jobs]


@pytest.mark.quick(0)
@pytest.mark.timeout(60)
def test_simulator_and_processes_give_the_same_bits(pool, rng):
    n = pool.world_size
    jobs = []
    for kind, name in ALL:
        if takes(kind, name, n):
            root = n - 1 if kind in ROOTED else 0
            jobs.append((kind, name, values_for(kind, n, rng, root=root), root))
    measured = pool.run(on_ranks, jobs)
    assert len(jobs) > 25
    for number, (kind, name, values, root) in enumerate(jobs):
        chosen = algorithm(kind, name, n, root=root)
        simulated = simulate([chosen.program(r, values[r]) for r in range(n)])
        for rank in range(n):
            assert (simulated[rank] is None) == (measured[rank][number] is None)
            if simulated[rank] is not None:
                assert simulated[rank].tobytes() == measured[rank][number].tobytes(), (kind, name, rank)


def in_a_group(comm, x):
    group = (1, 3) if comm.rank % 2 else (0, 2)
    comm.recording = True
    total = run_algorithm(comm, "all_reduce", "ring", x, group=group)
    piece = run_algorithm(comm, "broadcast", "tree", x, group=group, root=group[1])
    return total, piece, [(m.kind, m.size_bytes) for m in comm.records]


@pytest.mark.timeout(60)
def test_groups_and_the_bytes_that_really_go_out():
    x = np.arange(1000.0)
    with WorkerPool(4) as four:
        for rank, (total, piece, records) in enumerate(four.run(in_a_group, x)):
            np.testing.assert_array_equal(total, 2 * x)
            np.testing.assert_array_equal(piece, x)
            sends = [sent for kind, sent in records if kind == "send"]
            # ring of 2: 2 messages of half of 8000 bytes; the broadcast's root (the second) sends all of it once
            assert sends == [4000, 4000] + ([8000] if rank >= 2 else [])


def lonely_shape(comm):
    return run_algorithm(comm, "all_reduce", "ring", np.ones(4 + comm.rank))


@pytest.mark.timeout(60)
def test_values_of_different_shapes_are_refused_on_real_ranks(pool):
    with pytest.raises(CollectiveMismatch, match="differ in shape"):
        pool.run(lonely_shape)


# ---- what is counted meets the closed forms ----

LOG = {2: 1, 4: 2, 8: 3, 16: 4}
# (rounds, of S sent by the busiest rank, time in alphas, in betas of S, in gammas of S) for powers of two: Thakur,
# Rabenseifner, Gropp 2005; # Chan et al. 2007; Bruck et al. 1997
# l is log2 of n, s the share (n - 1) / n
CLOSED = {
    ("all_reduce", "ring"): lambda n, l, s: (2 * (n - 1), 2 * s, 2 * (n - 1), 2 * s, s),
    ("all_reduce", "recursive_doubling"): lambda n, l, s: (l, l, l, l, l),
    ("all_reduce", "halving_doubling"): lambda n, l, s: (2 * l, 2 * s, 2 * l, 2 * s, s),
    ("all_reduce", "halving_doubling_near_first"): lambda n, l, s: (2 * l, 2 * s, 2 * l, 2 * s, s),
    ("all_reduce", "tree"): lambda n, l, s: (2 * l, l, 2 * l, 2 * l, l),
    ("all_gather", "ring"): lambda n, l, s: (n - 1, s, n - 1, s, 0),
    ("all_gather", "recursive_doubling"): lambda n, l, s: (l, s, l, s, 0),
    ("all_gather", "bruck"): lambda n, l, s: (l, s, l, s, 0),
    ("reduce_scatter", "ring"): lambda n, l, s: (n - 1, s, n - 1, s, s),
    ("reduce_scatter", "recursive_halving"): lambda n, l, s: (l, s, l, s, s),
    ("broadcast", "tree"): lambda n, l, s: (l, l, l, l, 0),
    ("broadcast", "scatter_all_gather"): lambda n, l, s: (l + n - 1, 2 * s, l + n - 1, 2 * s, 0),
    # n - 2 + k with k = n segments
    ("broadcast", "ring"): lambda n, l, s: (2 * n - 2, 1, 2 * n - 2, 2 * s, 0),
    ("reduce", "tree"): lambda n, l, s: (l, 1, l, l, l),
    ("scatter", "tree"): lambda n, l, s: (l, s, l, s, 0),
    ("gather", "tree"): lambda n, l, s: (l, Fraction(1, 2), l, s, 0),
    ("all_to_all", "pairwise"): lambda n, l, s: (n - 1, s / n, n - 1, s / n, 0),
    ("all_to_all", "bruck"): lambda n, l, s: (l, Fraction(l, 2 * n), l, Fraction(l, 2 * n), 0),
}


def expected_s(size_bytes, alphas, betas, gammas):
    return alphas * LINK.alpha_s + float(betas) * size_bytes * LINK.beta_s_per_byte + float(gammas) * size_bytes * GAMMA


@pytest.mark.quick(20)
@pytest.mark.parametrize("n", LOG)
@pytest.mark.parametrize("which", CLOSED, ids=lambda w: f"{w[0]}-{w[1]}")
def test_counts_and_times_are_those_of_the_papers(which, n):
    rounds, sent, alphas, betas, gammas = CLOSED[which](n, LOG[n], Fraction(n - 1, n))
    chosen, size = algorithm(*which, n), 1 << 20
    assert len(chosen.rounds) == rounds
    assert max(c.sent for c in chosen.counts()) == sent
    assert max(c.sent_bytes(size) for c in chosen.counts()) == sent * size
    want = expected_s(size, alphas, betas, gammas)
    assert chosen.time_s(size, LINK, gamma_s_per_byte=GAMMA) == pytest.approx(want, rel=1e-12)


@pytest.mark.quick(14)
@pytest.mark.parametrize("n", SIZES)
@each_algorithm
def test_the_formulas_that_are_shown_are_what_is_counted(kind, name, n):
    if not takes(kind, name, n):
        return  # refused, as a test above asserts
    segments = (None, 1, 5) if (kind, name) in (("broadcast", "ring"), ("reduce", "ring")) else (None,)
    for k in segments:
        chosen = algorithm(kind, name, n, segments=k)
        f, k = chosen.formula, k or n
        counts = chosen.counts()
        found = len(chosen.rounds), max(c.messages for c in counts), max(c.sent for c in counts)
        assert found == (f.rounds(n, k), f.messages(n, k), f.sent(n, k))
        alphas, betas, gammas = f.alphas(n, k), f.betas(n, k), f.gammas(n, k)
        want = pytest.approx(expected_s(1e6, alphas, betas, gammas), rel=1e-12, abs=1e-18)
        given = f"the formula gives {alphas} alphas, {betas} betas and {gammas} gammas"
        assert chosen.time_s(1e6, LINK, gamma_s_per_byte=GAMMA) == want, given


@pytest.mark.quick(12)
@each_algorithm
def test_what_is_sent_is_received_and_partial_counts_add_up(kind, name):
    chosen = algorithm(kind, name, 8)
    for upto in range(len(chosen.rounds) + 1):
        counts = chosen.counts(upto)
        assert sum(c.sent for c in counts) == sum(c.received for c in counts)
        messages = sum(len(sends) for sends in chosen.rounds[:upto])
        assert sum(c.messages for c in counts) == sum(c.received_messages for c in counts) == messages
    assert chosen.counts(len(chosen.rounds)) == chosen.counts()


@pytest.mark.parametrize("n", (3, 5, 6, 7, 12))
def test_folding_costs_two_more_rounds_of_everything(n):
    """MPICH folds the extra ranks: 2 more messages of S on the way, one sent by the busiest rank."""
    power = int(math.log2(n))
    chosen = algorithm("all_reduce", "recursive_doubling", n)
    assert len(chosen.rounds) == power + 2
    assert max(c.sent for c in chosen.counts()) == power + 1
    assert chosen.time_s(1e6, LINK) == pytest.approx((power + 2) * LINK.time_s(1e6))


def test_recursive_doubling_and_ring_cross_at_the_known_size():
    """8 ranks: 3 (alpha + S beta) = 14 alpha + 1.75 S beta at S = 11 alpha / (1.25 beta)."""
    size = 11 * LINK.alpha_s / (1.25 * LINK.beta_s_per_byte)
    ring, doubling = (algorithm("all_reduce", name, 8) for name in ("ring", "recursive_doubling"))
    assert doubling.time_s(0.99 * size, LINK) < ring.time_s(0.99 * size, LINK)
    assert doubling.time_s(1.01 * size, LINK) > ring.time_s(1.01 * size, LINK)


def test_contention_multiplies_bytes_by_hops():
    """An 8-ring: distances 1, 2, 4 of recursive doubling; 1 everywhere of the ring."""
    for name, factor in (("recursive_doubling", 1 + 2 + 4), ("ring", 14 / 8)):
        chosen = algorithm("all_reduce", name, 8)
        want = len(chosen.rounds) * LINK.alpha_s + factor * 1e6 * LINK.beta_s_per_byte
        assert chosen.time_s(1e6, LINK, contention="hops") == pytest.approx(want)
    far, near = (
        algorithm("all_reduce", f"halving_doubling{x}", 8).round_times_s(8e6, Link(0.0, 1e-6), contention="hops")
        for x in ("", "_near_first")
    )
    assert far == pytest.approx((16.0, 4.0, 1.0, 1.0, 4.0, 16.0))
    assert near == pytest.approx((4.0, 4.0, 4.0, 4.0, 4.0, 4.0))


# ---- lists of sends of one's own ----

TWO = [[(0, 1, 0, "add")], [(1, 0, 0, "store")]]


def test_a_list_of_ones_own_is_checked_and_runs():
    assert check_algorithm("all_reduce", TWO, ranks=2, chunks=1)
    mine = custom_algorithm("all_reduce", TWO, ranks=2, chunks=1)
    assert [r.tolist() for r in mine.run([np.array([1.0]), np.array([2.0])])] == [[3.0], [3.0]]


@each_of(
    ("rounds", "text", "where"),
    ([[(0, 1, 0, "add")]], "After 1 round rank 0 has chunk 0 = v0; missing: v1.", (None, 0, 0)),
    ([[(0, 1, 0, "add")], [(1, 0, 0, "add")]], "Round 2: rank 0 adds v0 to chunk 0 a second time.", (2, 0, 0)),
    (
        [[(0, 1, 0, "store")], [(1, 0, 0, "store")]],
        "After 2 rounds rank 0 has chunk 0 = v0; missing: v1.",
        (None, 0, 0),
    ),
    ([[(0, 2, 0, "add")]], "there is no rank 2; ranks run from 0 to 1", (1, 2, None)),
    ([[(0, 0, 0, "add")]], "rank 0 sends to itself", (1, 0, None)),
    ([[(0, 1, 3, "add")]], "there is no chunk 3; chunks run from 0 to 0", (1, 0, 3)),
    ([[(0, 1, 0, "add"), (0, 1, 0, "store")]], "chunk 0 comes to rank 1 from ranks 0, 0 at once", (1, 1, 0)),
    ([[(0, 1, 0, "plus")]], "round 1, send 1", (None, None, None)),
    ([(0, 1, 0, "add")], "round 1, send 1", (None, None, None)),
    ([Send(0, 1, 0, True)], "Put the sends of a round in a list of their own", (None, None, None)),
    (7, "A list of rounds", (None, None, None)),
)
def test_the_first_mistake_is_named(rounds, text, where):
    verdict = check_algorithm("all_reduce", rounds, ranks=2, chunks=1)
    assert not verdict and text in verdict.text
    assert (verdict.round, verdict.rank, verdict.chunk) == where


def test_what_is_not_there_cannot_be_sent():
    verdict = check_algorithm("all_gather", [[(0, 1, 1, "store")]], ranks=3)
    assert not verdict and "rank 0 does not have chunk 1 yet" in verdict.text
    assert "nothing is added in all_gather" in check_algorithm("all_gather", [[(0, 1, 0, "add")]], ranks=2).text
    assert check_algorithm("all_reduce", [[]] * 5, ranks=2, max_rounds=2).text == "5 rounds; it can be done in 2."


@pytest.mark.parametrize(
    ("kind", "name"), [w for w in ALL if w != ("broadcast", "scatter_all_gather")], ids=lambda x: x
)  # its ring also brings the root what the root has
def test_no_send_can_be_left_out_and_none_can_be_doubled(kind, name):
    """Every message of every algorithm is needed: without it, the check finds a rank and a chunk that are wrong."""
    chosen = algorithm(kind, name, 4)
    for number, sends in enumerate(chosen.rounds):
        for i, send in enumerate(sends):
            for kept in (sends[:i] + sends[i + 1 :], (*sends, send) if send.add else None):
                if kept is None:
                    continue
                rounds = [*chosen.rounds[:number], kept, *chosen.rounds[number + 1 :]]
                verdict = check_algorithm(kind, rounds, 4, chunks=chosen.chunks)
                assert not verdict and verdict.rank is not None and verdict.chunk is not None, (number, send)


def test_a_wrong_list_does_not_run():
    wrong = custom_algorithm("all_reduce", [[(0, 1, 0, "add")]], ranks=2, chunks=1)
    assert not wrong.check()
    with pytest.raises(ArgumentError, match=r"After 1 round rank 0 has chunk 0 = v0; missing: v1"):
        wrong.run([np.ones(2), np.ones(2)])


def test_only_the_root_of_a_broadcast_needs_a_value():
    x = np.arange(6.0)
    for name in algorithm_names("broadcast", 4):
        for reply in algorithm("broadcast", name, 4, root=2).run([None, None, x, None]):
            np.testing.assert_array_equal(reply, x)


def test_a_place_of_a_card_says_whose_addends_it_has():
    def text(kind, who, **more):
        return cell_text(kind, {"who": who, "from": [], "add": False, "state": "", **more}, 4)

    assert text("all_reduce", [2]) == "partial sum of rank 2"
    assert text("reduce", [0, 3]) == "sum of ranks 0, 3 (2 of 4 partial sums)"
    assert text("all_reduce", [0, 1, 2, 3], state="spent") == "complete sum, passed on"
    assert text("all_gather", [1], **{"from": [0]}) == "there, came from rank 0"
    assert text("reduce", [0, 1], **{"from": [0, 1], "add": True}).endswith(", added from ranks 0, 1")


# ---- refusals and text ----


@each_of(
    ("call", "text"),
    (lambda: algorithm("all_reduce", "rign", 4), "Did you mean 'ring'"),
    (lambda: algorithm("all_reduce", "rabenseifner", 4), "Did you mean 'halving_doubling'"),
    (lambda: algorithm("reduce_scatter", "recursive_doubling", 4), "Did you mean 'recursive_halving'"),
    (lambda: algorithm("allreduce", "ring", 4), "Did you mean 'all_reduce'"),
    (lambda: algorithm("all_gather", "recursive_doubling", 6), "'bruck' needs as few rounds"),
    (lambda: algorithm("all_reduce", "ring", 0), "at least 1"),
    (lambda: algorithm("all_reduce", "ring", 2.5), "An int"),
    (lambda: algorithm("all_reduce", "ring", 1000), "At most 128"),
    (lambda: algorithm("broadcast", "tree", 4, root=4), "Positions run from 0 to 3"),
    (lambda: algorithm("all_reduce", "tree", 4, root=1), "A root is for"),
    (lambda: algorithm("all_reduce", "ring", 4, segments=2), "Segments are for"),
    (lambda: algorithm("reduce", "ring", 4, segments=0), "reduce by ring: segments=0. An int, at least 1"),
    (lambda: check_algorithm("all_reduce", [], 4, chunks=0), "all_reduce: chunks=0. An int, at least 1"),
    (lambda: algorithm("all_reduce", "ring", 4).time_s(8, LINK, contention="some"), "One of"),
    (lambda: check_algorithm("all_gather", [], 4, chunks=3), "chunks are the pieces of the ranks"),
)
def test_what_cannot_be_is_refused_with_a_way_out(call, text):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert text in str(caught.value)


test_values_that_cannot_be_are_refused = refused(
    ([np.ones(3)] * 3, {}, ShapeError, "one per rank"),
    ([np.ones(3, int)] * 4, {"reduce": "mean"}, ShapeError, "mean of int64"),
    ([np.ones(3)] * 4, {"reduce": "median"}, CollectiveMismatch, "reduce='median'"),
    ([None] + [np.ones(3)] * 3, {}, ShapeError, "without a value"),
    ([np.ones(3)] * 3 + [np.ones(5)], {}, CollectiveMismatch, "arrived"),
    by=lambda values, fields: algorithm("all_reduce", "ring", 4).run(values, **fields),
)


def test_without_a_world_there_is_no_communicator():
    with pytest.raises(WorldError, match="this process is not a rank"):
        run_algorithm(None, "all_reduce", "ring", np.ones(3))


def test_a_piece_that_does_not_come_out_even_is_refused():
    with pytest.raises(ShapeError, match="cannot be split into 4 equal pieces"):
        algorithm("reduce_scatter", "ring", 4).run([np.ones(6)] * 4)


def test_a_broadcast_needs_to_know_the_shape():
    with pytest.raises(ShapeError, match="like the root's"):
        simulate([algorithm("broadcast", "tree", 2).program(r, np.ones(3) if r == 0 else None) for r in range(2)])


def test_the_text_lists_every_send_and_the_counts():
    text = algorithm("all_reduce", "ring", 3).to_text(size_bytes=300)
    lines = text.splitlines()
    assert lines[0] == "all_reduce by ring, 3 ranks, 3 chunks: 4 rounds"
    assert [line.split()[1] for line in lines[2:6]] == ["reduce_scatter"] * 2 + ["all_gather"] * 2
    assert "0 -> 1: chunk 2, add" in lines[2] and "0 -> 1: chunk 0, store" in lines[4]
    assert "rank 2 sends 4 messages, 4/3 S = 400 bytes" in text and "2(n-1)/n·S" in text


def test_phases_and_rounds_are_the_same_list():
    chosen = algorithm("all_reduce", "ring", 4)
    assert isinstance(chosen, Algorithm) and all(isinstance(part, Phase) for part in chosen.phases)
    assert [chosen.phase_of(t) for t in range(1, 7)] == ["reduce_scatter"] * 3 + ["all_gather"] * 3
    with pytest.raises(ArgumentError, match="Rounds run from 1 to 6"):
        chosen.phase_of(7)
    assert chosen.arrivals(1) == tuple(Arrival(r, (r + 1) % 4, (r - 1) % 4, True) for r in range(4))
