"""`parallel-lab bench search`: steps of searched plans predicted, simulated and measured, as text and numbers."""

import json
import statistics

import numpy as np
import pytest

from parallel_lab.base.cluster import get_cluster
from parallel_lab.cli import main as cli
from parallel_lab.nn.tensor.tensor import Tensor
from tests.bench.searched import DrawnCell, DrawnNet, SearchedNet, SearchedReport, draw_net, searched_goals


@pytest.mark.exhaustive
def test_the_command_prints_and_writes_every_net(tmp_path, capsys):
    numbers, page = tmp_path / "search.json", tmp_path / "search.html"
    assert cli.main(["bench", "search", "--quick", "--json", str(numbers), "--html", str(page)]) == 0
    told, written = capsys.readouterr().out, json.loads(numbers.read_text())
    assert all(word in told for word in ("predicted", "simulated", "measured", "quartiles", "worst", "seed 19"))
    assert len(written["nets"]) == 2 and all(net["equal"] and net["tensors"] >= 5 for net in written["nets"])
    apart = [max(net["ratio"], 1 / net["ratio"]) for net in written["nets"]]
    assert written["spread"]["median"] == pytest.approx(statistics.median(apart))
    assert "<svg" in page.read_text() and "predicted/measured" in page.read_text()


def test_the_spread_is_that_of_the_larger_over_the_smaller():
    nets = tuple(SearchedNet("net", t, t, 1.0, t != 4.0, 5) for t in (0.5, 1.0, 4.0, 1.25))
    report = SearchedReport(nets, 1, 2, 2, 1, get_cluster("laptop"))
    assert report.spread["median"] == pytest.approx((1.25 + 2) / 2) and report.spread["worst"] == 4
    apart, different = searched_goals(report)
    assert not apart.met and different.reached == 0.25 and not different.met


def test_a_drawn_net_computes_what_its_text_says():
    drawn = DrawnNet(3, 4, (((5, "tanh"),), ((2, "relu"), (5, "sigmoid"))), ("mul",), ((6, "relu"),))
    assert drawn.text == "3x4: 5 tanh | 2 relu 5 sigmoid mul; 6 relu"
    net, x = DrawnCell(drawn), np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    w = [p.asnumpy() for p in net.weights]
    joined = np.tanh(x @ w[0]) / (1 + np.exp(-(np.maximum(x @ w[1], 0) @ w[2])))
    np.testing.assert_allclose(net(Tensor(x)).asnumpy(), np.maximum(joined @ w[3], 0), rtol=1e-5, atol=1e-6)


def test_a_seed_draws_its_nets_again_and_branches_end_in_one_width():
    first, again = ([draw_net(np.random.default_rng(seed)) for seed in range(20)] for _ in range(2))
    assert first == again and len({net.text for net in first}) > 15
    assert all(len({branch[-1][0] for branch in net.branches}) == 1 for net in first)
    assert {len(net.branches) for net in first} == {1, 2, 3}
