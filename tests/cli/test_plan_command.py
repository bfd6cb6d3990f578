"""`parallel-lab plan`: what it prints is what the Python functions find."""

import json

import pytest

from parallel_lab.cli import main as cli
from parallel_lab.cost.scale import PlanPoint, Transformer, get_machine, predict_point, search_plans

SIZES = ("--layers", "4", "--hidden", "64", "--heads", "4", "--seq-length", "32", "--vocab-size", "256")
SMALL = ["plan", *SIZES, "--devices", "8"]
MODEL = Transformer("gpt", 4, 64, 4, 32, 256)


def test_the_search_prints_line_and_winner(capsys):
    assert cli.main(["plan", *SIZES, "--devices", "4", "--batch", "2", "--rows", "2"]) == 0
    found = search_plans(MODEL, get_machine("dgx_a100", 4), 2)
    assert capsys.readouterr().out == f"{found.text(2)}\n\n{found.winner.explain()}\n"


def test_a_point_is_explained(capsys):
    assert cli.main([*SMALL, "--precision", "float32", "--point", "d=2,t=2,p=2,m=4,zero=1,sequence=yes"]) == 0
    point = PlanPoint(2, 2, 2, 1, 4, level=1, sequence_parallel=True)
    found = predict_point(MODEL, point, get_machine("dgx_a100", 8), precision="float32")
    assert capsys.readouterr().out == found.explain() + "\n"


def test_json_of_a_point_on_a_cluster_from_a_file(tmp_path, capsys):
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({"preset": "dgx_h100", "name": "ours"}))
    assert cli.main([*SMALL, "--cluster", str(path), "--point", "d=8,b=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cluster"] == "ours" and found["point"]["micro_batch"] == 2 and found["label"] == "predicted"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--net", "gpt3"], "gpt3_175b"),
        (["--cluster", "dgx"], "dgx_a100"),
        (["--cluster", "missing.json"], "missing.json"),
        (["--point", "q=3"], "One of 'd', 't'"),
        (["--point", "t=two"], "t=two. A whole number"),
        (["--point", "sequence=1"], "Yes or no"),
        (["--point", "d=16"], "16 devices of 8"),
        (["--heads", "3"], "heads divides hidden"),
    ],
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
