"""`parallel-lab bench link`: the fit as text, numbers and page."""

import json

from parallel_lab.cli import main as cli


def test_the_link_is_fitted_and_written(tmp_path, capsys):
    numbers, page = tmp_path / "link.json", tmp_path / "link.html"
    files = ["--json", str(numbers), "--html", str(page)]
    assert cli.main(["bench", "link", "--quick", "--message", "all_reduce", *files]) == 0
    fit = json.loads(numbers.read_text())["fit"]
    assert (fit["kind"], fit["world_size"]) == ("all_reduce", 2)
    assert len(fit["residuals"]) == len(fit["sizes_bytes"]) == 7
    assert fit["alpha_s"] >= 0 and fit["beta_s_per_byte"] >= 0
    assert "alpha [us per message]" in capsys.readouterr().out and "<svg" in page.read_text()
