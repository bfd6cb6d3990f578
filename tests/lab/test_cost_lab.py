"""The Cost Lab: its lines are what lists of sends take, and the fastest one is what trying all of them finds."""

from __future__ import annotations

import random

import pytest

from parallel_lab.base.cluster import Link
from parallel_lab.lab.collectives.algorithms.algorithm import algorithm
from parallel_lab.lab.collectives.algorithms.table import algorithm_names
from parallel_lab.lab.costs.lines import line_at
from parallel_lab.lab.costs.model import ALPHAS, KINDS, RANKS, SIZES, SPEEDS, CostLab


def test_an_all_reduce_of_eight_changes_where_alphas_and_bytes_weigh_the_same():
    """log2(8) (alpha + S beta) against 2 log2(8) alpha + 2 (7/8) S beta: equal at S = 3 alpha / (5/4 beta)."""
    lab = CostLab("all_reduce", ranks=8, alpha_us=5, gigabytes_per_s=10)
    first, second = lab.fastest
    assert (first.line.name, second.line.name) == ("recursive_doubling", "halving_doubling")
    assert second.from_bytes == pytest.approx(3 * 5e-6 / (1.25 * 1e-10))
    assert "fastest by recursive_doubling up to 117 KiB, from there halving_doubling (predicted)" in lab.to_text()


@pytest.mark.quick(6)
@pytest.mark.parametrize("ranks", [n for n in RANKS if n <= 16])
@pytest.mark.parametrize("kind", KINDS)
def test_times_are_those_of_the_lists_of_sends_and_the_fastest_is_found(kind, ranks):
    draw = random.Random(f"{kind} {ranks}")
    for _ in range(6):
        lab = CostLab(kind, ranks, draw.choice(list(ALPHAS)), draw.choice(list(SPEEDS)))
        link, size = Link(*lab.machine), 2 ** draw.uniform(8, 30)
        parts = lab.fastest
        known = algorithm_names(kind, ranks)
        times = {name: algorithm(kind, name, ranks).time_s(size, link) for name in known}
        mine = {name: line.time_s(size, *lab.machine) for line in lab.lines for name in line.names}
        assert mine == pytest.approx(times)
        assert line_at(parts, size).time_s(size, *lab.machine) == pytest.approx(min(mine.values()))
        assert [p.from_bytes for p in parts] == sorted(p.from_bytes for p in parts)


def test_the_table_is_of_the_chosen_size_and_its_fastest_row_is_in_force():
    lab = CostLab("reduce_scatter", ranks=16, alpha_us=1, gigabytes_per_s=100)
    for size in SIZES:
        lab.set_size(size)
        section = lab.snapshot()["sections"]["table"]["of"][str(size)]
        times = {row[0]: row[1] for row in section["rows"]}
        assert times[section["on"]] == min(times.values())
        ring = next(row for row in section["rows"] if row[0] == "ring")
        sends_s = size * 15 / 16 * 1e-11
        assert ring[1:] == pytest.approx([15e-6 + sends_s, 15e-6, sends_s, size * 15 // 16])


def test_the_lines_to_copy_run(capsys):
    lab = CostLab(ranks=4, size=1 << 20)
    text = lab.snapshot()["sections"]["python"]["of"][str(1 << 20)]["text"]
    *lines, last = text.splitlines()
    found: dict = {}
    exec("\n".join(lines), found)
    assert eval(last, found) == pytest.approx(line_at(lab.fastest, 1 << 20).time_s(1 << 20, *lab.machine))
