"""`parallel-lab plan`: what it prints is what the Python functions find."""

import argparse
import functools
import json
import re

import pytest

from parallel_lab.cli import main as cli, plan_command
from parallel_lab.cli.plan_page import found_chart
from parallel_lab.cost.planner import (
    DecoderPoint,
    PlanPoint,
    Transformer,
    error_bar_text,
    get_machine,
    predict_point,
    report_run,
    search_plans,
)
from tests.cost.test_hub_configs import QWEN3
from tests.crossed import each_of

SIZES = ("--layers", "2", "--hidden", "64", "--heads", "4", "--seq-length", "32", "--vocab-size", "256")
SMALL = ["plan", *SIZES, "--devices", "8"]
MODEL = Transformer("gpt", 2, 64, 4, 32, 256)


@functools.cache
def searched():
    return search_plans(MODEL, get_machine("dgx_a100", 4), 2)


@pytest.mark.exhaustive
def test_the_search_prints_line_and_winner(capsys):
    assert cli.main(["plan", *SIZES, "--devices", "4", "--batch", "2", "--rows", "2"]) == 0
    found = searched()
    first, _, rest = capsys.readouterr().out.partition("\n")
    words = "1 copy of 2 stages of 2 ranks; 2 micro-batches of 1 sequence, schedule 1f1b."
    assert first.startswith("The fastest takes ") and first.endswith(words)
    assert rest == f"{found.text(2)}\n\n{found.winner.explain()}\n{error_bar_text('dgx_a100')}\n"


def test_without_a_number_of_devices_a_known_cluster_has_1024_and_a_file_its_own(tmp_path):
    file = tmp_path / "cluster.json"
    file.write_text('{"preset": "dgx_a100", "node_count": 2}')
    for cluster, devices in (("dgx_a100", 1024), (str(file), 16)):
        args = argparse.Namespace(cluster=cluster, devices=None)
        assert plan_command._machine(args).cluster.device_num == devices


def test_a_point_is_explained(capsys):
    assert cli.main([*SMALL, "--precision", "float32", "--point", "d=2,t=2,p=2,m=4,zero=1,sequence=yes"]) == 0
    point = PlanPoint(2, 2, 2, 1, 4, level=1, sequence_parallel=True)
    found = predict_point(MODEL, point, get_machine("dgx_a100", 8), precision="float32")
    assert capsys.readouterr().out == f"{found.explain()}\n{error_bar_text('dgx_a100')}\n"


@pytest.mark.exhaustive
def test_page_and_data_of_a_search_have_what_it_found(tmp_path, capsys):
    page, data = tmp_path / "plan.html", tmp_path / "plan.json"
    options = ["--batch", "2", "--html", str(page), "--json", str(data)]
    assert cli.main(["plan", *SIZES, "--devices", "4", *options]) == 0
    found = searched()
    assert found.winner.explain() in capsys.readouterr().out
    numbers = {**found.to_dict(), "error_bar": error_bar_text("dgx_a100")}
    assert json.loads(data.read_text()) == json.loads(json.dumps(numbers))
    html = page.read_text(encoding="utf-8")
    assert all(f"<td>{p.point.text()}</td>" in html for p in found.line)
    assert all(f">{value}</td>" in html for _, value, _ in found.winner.rows())
    assert all(f"{words}</td>" in html for kind, words in found.words.items() if found.counts[kind])
    assert html.count("<circle") <= len(found.verdicts) + 1  # every point once, the fastest twice
    assert not re.search(r"<script|src=|href=|url\((?!#)|https?:", html) and "default-src 'none'" in html


@pytest.mark.exhaustive
def test_the_picture_draws_points_where_they_are():
    found = search_plans(MODEL, get_machine("dgx_a100", 4), 4)
    chart = found_chart(found)
    drawn = {(x, y) for trace in chart.traces if trace.kind == "points" for x, y in zip(trace.x, trace.y, strict=True)}
    near = [p for p in found.line if p.step_s <= 3 * found.winner.step_s]
    assert {(p.memory_bytes / 2**30, p.step_s) for p in near} <= drawn
    assert all(y <= 3 * found.winner.step_s for _, y in drawn)
    (line,) = [t for t in chart.traces if t.name == "the line"]
    assert list(line.y) == sorted(line.y, reverse=True) and list(line.x) == sorted(line.x)


@pytest.mark.exhaustive
def test_page_of_a_point(tmp_path, capsys):
    page = tmp_path / "point.html"
    assert cli.main([*SMALL, "--point", "d=8,b=2", "--html", str(page), "--json"]) == 0
    found = predict_point(MODEL, PlanPoint(8, 1, 1, 2, 1), get_machine("dgx_a100", 8))
    assert json.loads(capsys.readouterr().out)["step_s"] == found.step_s
    assert all(f">{value}</td>" in page.read_text(encoding="utf-8") for _, value, _ in found.rows())


@pytest.mark.quick(1)
@pytest.mark.parametrize("option", ["--html", "--json"])
def test_files_are_whole_or_absent(option, tmp_path, capsys):
    """What cannot be written is said before the search; a search that finds nothing leaves no file."""
    missing, kept = tmp_path / "missing" / "x", tmp_path / "kept"
    assert cli.main([*SMALL, option, str(missing)]) == 2
    assert "missing" in capsys.readouterr().err
    kept.write_text("before")
    big = ["plan", "--net", "gpt3_175b", "--devices", "8", "--batch", "8", option]
    assert cli.main([*big, str(kept)]) == 2 and cli.main([*big, str(tmp_path / "new")]) == 2
    assert "fits" in capsys.readouterr().err
    assert kept.read_text() == "before" and [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_one_file_is_not_both(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([*SMALL, "--html", str(tmp_path / "x"), "--json", str(tmp_path / "." / "x")])
    assert ended.value.code == 2
    assert "both would write" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_json_of_a_point_on_a_cluster_from_a_file(tmp_path, capsys):
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"preset": "dgx_h100", "name": "ours"}))
    assert cli.main([*SMALL, "--cluster", str(path), "--point", "d=8,b=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cluster"] == "ours" and found["point"]["micro_batch"] == 2 and found["label"] == "predicted"


@each_of(
    ("arguments", "said"),
    (["--net", "gpt3"], "gpt3_175b"),
    (["--cluster", "dgx"], "dgx_a100"),
    (["--cluster", "missing.json"], "missing.json"),
    (["--point", ""], "One of 'd', 't'"),
    (["--point", "q=3"], "One of 'd', 't'"),
    (["--point", "t=two"], "t=two. A whole number"),
    (["--point", "sequence=1"], "Yes or no"),
    (["--layers", "999999999999"], "none of"),
    (["--point", "d=16"], "16 devices of 8"),
    (["--heads", "3"], "heads divides hidden"),
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments, said, capsys):
    sizes = [] if "--net" in arguments else ["--layers", "4", "--hidden", "64"]
    assert cli.main(["plan", "--devices", "8", *sizes, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_sizes_of_a_known_model_are_its_own(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--devices", "8", "--net", "gpt_22b", "--layers", "3"])
    assert ended.value.code == 2
    assert "gpt_22b has its own" in capsys.readouterr().err


def test_a_decoder_is_planned_over_sequence_and_experts(capsys):
    net = ["plan", "--net", "mixtral_8x7b", "--seq-length", "8192", "--devices", "16", "--cluster", "dgx_h100"]
    assert cli.main([*net, "--point", "d=4,c=2,p=2,e=8,m=4,way=ulysses,zero=1"]) == 0
    point = DecoderPoint(8192, 4, context=2, stages=2, expert=8, micro_batches=4, way="ulysses")
    text = predict_point("mixtral_8x7b", point, get_machine("dgx_h100", 16)).explain()
    assert capsys.readouterr().out == f"{text}\n{error_bar_text('dgx_h100')}\n"
    assert cli.main([*net, "--context", "2", "--expert", "8", "--ways", "gathered", "--batch", "16", "--json"]) == 0
    won = json.loads(capsys.readouterr().out)["winner"]
    assert (won["point"]["context"], won["point"]["expert"], won["label"]) == (2, 8, "predicted")
    with pytest.raises(SystemExit):
        cli.main([*SMALL, "--context", "2"])
    assert "--context: only of a decoder" in capsys.readouterr().err


def test_a_published_run_is_printed_next_to_its_prediction(tmp_path, capsys):
    page = tmp_path / "run.html"
    assert cli.main(["plan", "--run", "llama3-405b-16k", "--html", str(page)]) == 0
    printed, report = capsys.readouterr().out, report_run("llama3-405b-16k")
    assert printed == report.text() + "\n" and repr(report) == report.text() and f"{report.error:+.1%}" in printed
    html = page.read_text()
    assert "<svg" in html and "Where a step goes" in html and "error bar" in html and "<script" not in html
    assert cli.main(["plan", "--run", "titan-405b-cp8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured_s"] == 8 * 262144 / (16 * 512) and told["error_bar"]


@pytest.mark.parametrize(
    "option",
    [("--model", "x.json"), ("--net", "gpt"), ("--devices", "8"), ("--cluster", "dgx_a100"), ("--context", "2")],
)
def test_a_published_run_has_its_own_model_and_machine(option, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["plan", "--run", "llama3-405b-16k", *option])
    assert ended.value.code == 2
    assert f"{option[0]} and --run: a published run has its own" in capsys.readouterr().err


def test_a_hub_file_is_planned(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3))
    net = ["plan", "--model", str(path), "--devices", "16", "--cluster", "dgx_h100", "--batch", "64"]
    assert cli.main([*net, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["winner"]["tokens_per_s"] > 0
    path.write_text('{"architectures": ["BertModel"]}')
    assert cli.main(net) == 2 and "LlamaForCausalLM" in capsys.readouterr().err
    assert cli.main(["plan", "--run", "llama4"]) == 2 and "nearest" in capsys.readouterr().err
