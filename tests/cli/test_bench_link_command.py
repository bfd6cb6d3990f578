"""`parallel-lab bench link`: the fit as text, numbers and page; and where the other benchmarks are."""

import json

import pytest

from parallel_lab.cli import bench_command, main as cli
from tests.bench.command import BENCHMARKS
from tests.crossed import each_of


def test_the_link_is_fitted_and_written(tmp_path, capsys):
    numbers, page = tmp_path / "link.json", tmp_path / "link.html"
    files = ["--json", str(numbers), "--html", str(page)]
    assert cli.main(["bench", "link", "--quick", "--message", "all_reduce", *files]) == 0
    fit = json.loads(numbers.read_text())["fit"]
    assert (fit["kind"], fit["world_size"]) == ("all_reduce", 2)
    assert len(fit["residuals"]) == len(fit["sizes_bytes"]) == 7
    assert fit["alpha_s"] >= 0 and fit["beta_s_per_byte"] >= 0
    assert "alpha [us per message]" in capsys.readouterr().out and "<svg" in page.read_text()


def test_a_checkout_offers_its_benchmarks_before_link(capsys):
    assert tuple(one.name for one in BENCHMARKS) == bench_command.DEVELOPERS
    assert bench_command.developers_benchmarks() is BENCHMARKS
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    shown = capsys.readouterr().out
    assert all(one.short[:40] in shown for one in (*BENCHMARKS, bench_command.LINK))


@pytest.mark.quick(8)
@each_of("options", (), ("--quick",), ("--help",), ("--ranks", "4", "--alone"), ("--no-such",))
@pytest.mark.parametrize("name", bench_command.DEVELOPERS)
def test_a_wheel_says_in_one_line_where_a_benchmark_lies(name, options, monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "checkout_folder", lambda: None)
    assert cli.main(["bench", name, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"bench {name} lies in tests/bench of a checkout" in line


def test_a_wheel_keeps_link(monkeypatch, capsys):
    monkeypatch.setattr(bench_command, "checkout_folder", lambda: None)
    with pytest.raises(SystemExit):
        cli.main(["bench", "link", "--help"])
    assert "--message" in capsys.readouterr().out
