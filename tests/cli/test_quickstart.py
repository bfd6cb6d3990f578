"""`parallel-lab quickstart` as a learner types it, the job behind it, and the report."""

import dataclasses
import html.parser
import io
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError, DataFileError, StrategyError, StrategyTypeError
from parallel_lab.cli import main as cli
from parallel_lab.cli.quickstart_command import Progress
from parallel_lab.lab.quickstart import model as quickstart
from parallel_lab.lab.quickstart.model import Quickstart, parse_strategy
from parallel_lab.lab.quickstart.report import report_page
from parallel_lab.lab.shared.equality import equality_rows
from parallel_lab.lab.shared.networks import QuickNet, apply_strategies
from tests.crossed import each_of

LOG = re.compile(r"^epoch: (\d+) step: (\d+), loss is (\d+\.\d+(?:e-?\d+)?)$", re.MULTILINE)


@pytest.fixture(scope="module")
def result():
    """A quickstart on 8 simulated ranks."""
    return Quickstart(executor="simulator").run()


def run_cli(capsys, *words):
    code = cli.main(["quickstart", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---- the command ----


@pytest.mark.exhaustive
def test_on_processes_it_prints_all_and_ends_with_0(capsys, tmp_path):
    report, trace = tmp_path / "report.html", tmp_path / "trace.json"
    code, out, _ = run_cli(capsys, "--report", str(report), "--trace", str(trace))
    assert code == 0
    log = [(int(e), int(s)) for e, s, _ in LOG.findall(out)]
    assert log == [(e, s) for e in range(1, 6) for s in range(1, 5)]
    assert re.search(
        r"matmul +MatMul +\(\(2, 4\), \(4, 1\)\) +given +\(16, 32\) x \(32, 16\) -> \(16, 16\) +\(8, 8\) x \(8, 16\)",
        out,
    )
    assert re.search(r"\[8:16, :\] +\(8, 16\) +1 5$", out, re.MULTILINE)
    # seed 003: the addends of matmul, (8, 16) float32, are added up over 0-1-2-3
    assert re.search(rf"forward +matmul +AllReduce +0-1-2-3 \| 4-5-6-7 +{8 * 16 * 4} B +{8 * 16 * 4} B", out)
    assert "8 ranks computed what one device computes: 5 of 5 tensors" in out
    assert report.read_text(encoding="utf-8").endswith("</html>\n")
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert {e["tid"] for e in events if e["ph"] == "X"} == set(range(8))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "trace.json"]


def test_simulator_and_processes_print_the_same_losses(capsys):
    words = ["--devices", "4", "--net", "megatron", "--epochs", "2"]
    logs = [LOG.findall(run_cli(capsys, *words, "--executor", executor)[1]) for executor in ("simulator", "processes")]
    assert len(logs[0]) == 8
    assert logs[0] == logs[1]


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["quickstart", "megatron", "dense"])
@pytest.mark.parametrize("devices", ["1", "2", "8"])
def test_digits_are_trained_equally_on_any_number_of_ranks(capsys, net, devices):
    words = f"--data digits --net {net} --devices {devices} --epochs 1 --executor simulator"
    code, out, _ = run_cli(capsys, *words.split())
    assert code == 0
    log = [float(loss) for _, _, loss in LOG.findall(out)]
    assert log[-1] < log[0] / 2
    assert "one step in 2 is shown" in out  # 45 steps are more than fit


def test_full_text_prints_every_step_and_the_program(capsys):
    words = "--data digits --devices 2 --epochs 1 --executor simulator --full-text"
    _, out, _ = run_cli(capsys, *words.split())
    assert len(LOG.findall(out)) == 45
    assert "# forward (0F0)" in out


def test_a_strategy_changes_the_plan(capsys):
    words = "--executor simulator --strategy matmul=((8,1),(1,1)) --strategy relu=((8,1),)"
    code, out, _ = run_cli(capsys, *words.split())
    assert code == 0
    assert re.search(r"matmul +MatMul +\(\(8, 1\), \(1, 1\)\) +given", out)
    # rows are split only, so nothing of matmul is summed: its all_reduce is gone
    assert not re.search(r"forward +matmul +AllReduce", out)


@pytest.mark.quick(6)
@each_of(
    ("words", "said"),
    (
        ["--strategy", "matmul=((2,4),(2,1))"],
        r"StrategyError: MatMul 'matmul' .*splits dim 0 of input 1 \('k'\) 2 ways",
    ),
    (["--strategy", "matmul=((3,1),(1,1))"], "splits dim 0 of input 0 3 ways"),
    (["--strategy", "matmul3=((1,1),(1,1))"], r"no operator 'matmul3'.*Operators: matmul, relu, matmul2"),
    (["--strategy", "matmul=__import__('os').getpid()"], "cannot be read"),
    (["--strategy", "matmul"], "not OPERATOR=STRATEGY"),
    (
        ["--strategy", "matmul=[[2,4],[4,1]]"],
        r"MatMul 'matmul': strategy .* is a list\. .*For example \(\(2, 4\), \(4, 1\)\)",
    ),
    (
        ["--strategy", "matmul=(2,4)"],
        r"MatMul 'matmul': .* has an int at input 0.*2 of them.*For example \(\(2, 4\), \(4, 1\)\)",
    ),
    (["--strategy", "matmul=5"], r"MatMul 'matmul': strategy 5 is an int"),
    (["--strategy", "relu=(8,1)"], r"ReLU 'relu': .*Try \(\(8, 1\),\)"),
    (
        ["--net", "megatron", "--devices", "4", "--strategy", "add1=(4,)"],
        r"Add 'add1': .*For example \(\(2, 2\), \(2,\)\)",
    ),
    (["--strategy", "loss_fn.sub=((8,1),(4,1))"], r"Sub 'loss_fn.sub'"),
    (
        ["--strategy", "loss_fn.reduce_sum=((8,1),)"],
        r"no operator 'loss_fn.reduce_sum'.*loss_fn.sub, loss_fn.square, loss_fn.reduce_mean\.$",
    ),
    (
        ["--strategy", "relu=((8,1),)", "--strategy", " relu =((4,1),)"],
        r"two strategies for 'relu': \(\(8, 1\),\) and \(\(4, 1\),\)",
    ),
    (["--devices", "3"], "3 devices.*One of 1, 2, 4, 8"),
    (["--data", "mnist"], "data 'mnist' is not known.*seed, digits"),
    (["--net", "convnet", "--data", "digits"], "data 'digits' for the network 'convnet'. One of pictures"),
    (["--net", "resnet"], "'resnet' is not known.*quickstart, megatron, dense"),
    (["--epochs", "0"], "0 epochs.*at least 1"),
    (["--executor", "threads"], "executor 'threads'.*simulator, processes, mpi"),
    (["--report", "no/such/folder/report.html"], "cannot be written"),
)
def test_what_is_refused_ends_with_2_before_anything_runs(capsys, monkeypatch, words, said):
    monkeypatch.setattr(Quickstart, "run", lambda *_: pytest.fail("it ran"))
    code, out, err = run_cli(capsys, *words)
    assert code == 2
    assert out == ""
    assert re.search(said, err), err
    assert "Traceback" not in err
    assert "networks.py" not in err or "splits" in err  # a line of the package only where it is the operator's own


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["convnet", "transformer", "embedding"])
def test_a_long_network_s_quickstart_equals_one_device_and_its_page_is_well_formed(net):
    result = Quickstart(net=net, devices=4, epochs=1, executor="simulator").run()
    assert result.equal, str(result.equality)
    page = _Page(report_page(result))
    assert page.faults == [] and page.open == []
    assert result.problem.kind in ("pictures", "text", "clicks")
    assert "what a start moved by as much does" in result.bound_text


def test_operators_made_of_others_and_with_several_results_take_strategies_and_are_named_in_refusals():
    chosen = {"bn1.batch_norm": ((4, 1, 1, 1), (1,), (1,), (1,), (1,))}
    plan = Quickstart(net="convnet", devices=4, strategies=chosen).plan
    assert plan.graph.node("bn1.batch_norm.batch_norm_apply").strategy[0] == (4, 1, 1, 1)
    plan = Quickstart(net="transformer", devices=4, strategies={"norm.layer_norm": ((4, 1, 1), (1,), (1,))}).plan
    assert plan.graph.node("norm.layer_norm").strategy == ((4, 1, 1), (1,), (1,))
    with pytest.raises(StrategyError, match=r"BatchNorm 'bn1.batch_norm'.*For example \(\(1, 1, 4, 1\), \(1,\)"):
        Quickstart(net="convnet", devices=4, strategies={"bn1.batch_norm": (4, 1)})


@pytest.mark.quick(1)
@pytest.mark.parametrize("net", ["quickstart", "megatron", "dense"])
@pytest.mark.parametrize("data", ["seed", "digits"])
def test_every_operator_of_the_table_takes_a_strategy_and_the_example_of_its_refusal(net, data):
    """Once the hint for `matmul=(2,4)` was ((2, 4),), which MatMul refuses, and the loss's operators were unknown."""
    options = {"net": net, "data": data, "devices": 4, "executor": "simulator"}
    operators = [n.name for n in Quickstart(**options).plan.graph.nodes if n.strategy is not None]
    assert any(name.startswith("loss_fn.") for name in operators)
    for name in operators:
        with pytest.raises(StrategyError) as caught:
            Quickstart(**options, strategies={name: (4, [1])})
        (example,) = re.findall(r"For example (\(.*\))\.$", str(caught.value))
        chosen = parse_strategy(f"{name}={example}")[1]
        (node,) = [n for n in Quickstart(**options, strategies={name: chosen}).plan.graph.nodes if n.name == name]
        assert (node.strategy, node.strategy_source) == (chosen, "user")


@pytest.mark.exhaustive
def test_a_strategy_of_the_loss_changes_what_its_ranks_hold(capsys):
    code, out, _ = run_cli(capsys, "--executor", "simulator", "--strategy", "loss_fn.sub=((4,2),(4,2))")
    assert code == 0
    assert re.search(
        r"loss_fn\.sub +Sub +\(\(4, 2\), \(4, 2\)\) +given +\(16, 16\) x \(16, 16\) -> \(16, 16\) +\(4, 8\) x \(4, 8\)",
        out,
    )


def test_a_refused_form_changes_no_operator():
    net = QuickNet(32, 16, 16)
    with pytest.raises(StrategyTypeError):
        apply_strategies(net, {"relu": ((8, 1),), "matmul": (2, 4)})
    assert net.relu.in_strategy is None


@pytest.mark.exhaustive
def test_messages_and_slices_are_counted_apart(capsys, result):
    """Wrong before: 12 rows under the title MESSAGES, where 7 messages move."""
    kinds = [i.is_communication for _, i in result.plan.instructions() if i.is_communication or i.kind == "slice"]
    said = f"{sum(kinds)} messages, {len(kinds) - sum(kinds)} slices that send nothing."
    assert "MESSAGES AND SLICES OF ONE STEP" in result.text() == repr(result)
    assert f"\n  {said}\n" in result.text()
    assert f"<p>{said}</p>" in report_page(result)


@each_of(
    ("sent", "local", "said"),
    (1, 0, "1 message"),
    (2, 0, "2 messages"),
    (0, 1, "0 messages, 1 slice that sends nothing"),
    (1, 2, "1 message, 2 slices that send nothing"),
)
def test_the_counts_are_in_good_grammar(result, sent, local, said):
    message = result.messages[0]
    rows = [dataclasses.replace(message, groups=((0, 1),))] * sent + [dataclasses.replace(message, groups=())] * local
    assert dataclasses.replace(result, messages=tuple(rows)).counts_text == said


def test_a_run_that_differs_from_one_device_ends_with_1(capsys, monkeypatch):
    real = Quickstart.__init__

    def sabotaged(self, **options):
        real(self, **options)
        weight = self._parts[0].weight2  # of the parallel run alone
        weight.set_data(weight.asnumpy() * np.float32(1.01))

    monkeypatch.setattr(Quickstart, "__init__", sabotaged)
    code, out, _ = run_cli(capsys, "--executor", "simulator")
    assert code == 1
    assert "8 ranks did NOT compute what one device computes" in out
    assert re.search(r"w2 after step 20 .*DIFFERENT", out)


@pytest.mark.exhaustive
def test_help_and_a_refusal_do_not_load_the_job():
    code = (
        "import sys; from parallel_lab.cli import main as cli\n"
        "try: cli.main(['quickstart', '--help'])\n"
        "except SystemExit as end: print('code', end.code, 'loaded', 'parallel_lab.lab.quickstart.model' in "
        "sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout.splitlines()[-1] == "code 0 loaded False"
    assert "exit codes" in found.stdout


# ---- the job ----


@pytest.mark.parametrize("text", ["matmul=((2,4),(4,1))", " matmul = ((2, 4), (4, 1)) "])
def test_a_strategy_is_read(text):
    assert parse_strategy(text) == ("matmul", ((2, 4), (4, 1)))


@each_of(
    "text", "", "=((1,),)", "matmul=", "matmul=((2,4)", "matmul=open('x')", "matmul=" + "(" * 150, "matmul=" + "1" * 201
)
def test_anything_but_a_strategy_is_refused(text):
    with pytest.raises(ArgumentError, match="--strategy"):
        parse_strategy(text)


def test_a_strategy_of_the_wrong_shape_is_refused_by_the_compiler():
    with pytest.raises(StrategyError, match=r"has 1 tuples, but MatMul has 2 inputs"):
        Quickstart(strategies={"matmul": ((2, 4),)}, executor="simulator")


def test_bytes_counted_are_those_of_the_plan(result):
    moved = [m for m in result.messages if m.groups]
    assert len(moved) == sum(i.is_communication for _, i in result.plan.instructions())
    for m in moved:
        assert m.bytes_counted == m.bytes_predicted > 0
        assert sorted(r for g in m.groups for r in g) == list(range(8))
        assert m.group == m.groups[0] and 0 in m.group
        assert m.reason


def test_every_loss_gradient_and_parameter_is_compared(result):
    compared = ["loss, every step", "gradient of w2, step 1", "gradient of w, step 1"]
    assert [r.tensor for r in result.equality.rows] == [*compared, "w after step 20", "w2 after step 20"]
    assert result.equal
    assert all(0 < r.bound < 1e-3 for r in result.equality.rows)


def test_a_loss_of_nan_is_not_equal_to_another(result):
    loss = {"loss": (np.array([np.nan], np.float32), 1)}
    (row,) = equality_rows(result.single_plan, loss, loss)
    assert not row.equal


def test_the_typical_step_is_the_one_of_middle_length(result):
    steps = {e.step for e in result.events}
    assert steps == set(range(20 - quickstart.RECORDED_STEPS, 20))
    of = {s: [e for e in result.events if e.step == s] for s in steps}
    lengths = {s: max(e.end_s for e in events) - min(e.start_s for e in events) for s, events in of.items()}
    (shown,) = {e.step for e in result.typical_step}
    assert sorted(lengths, key=lengths.get).index(shown) == len(steps) // 2


def test_progress_counts_up_to_the_last_step():
    seen = []
    Quickstart(devices=2, executor="simulator", epochs=6).run(lambda done, steps: seen.append((done, steps)))
    assert seen == [(4, 24), (14, 24), (24, 24)]


def test_progress_is_silent_at_first_and_then_rare_outside_a_terminal():
    now, stream = [0.0], io.StringIO()
    progress = Progress(stream, clock=lambda: now[0])
    for done in range(1, 101):
        now[0] = done * 0.2
        progress(done, 100)
    progress.end()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("step 6 of 100, about 19 s left")  # 94 steps of 0.2 s
    assert len(lines) == 4  # 20 s, one line in 5 s
    assert "\r" not in stream.getvalue()


# ---- the report ----


class _Page(html.parser.HTMLParser):
    """Tags that are open, attributes that would load something, and the page's text."""

    VOID = ("meta", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.faults, self.tags, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.faults += [f"{tag} {k}={v}" for k, v in attrs if k in ("src", "href", "srcset") or k.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> does not close what is open")

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_well_formed_loads_nothing_and_says_everything(result):
    text = report_page(result, "1.2.3")
    page = _Page(text)
    assert page.faults == []
    assert page.open == []
    assert "script" not in page.tags
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#)", text)
    words = " ".join(page.words)
    for wanted in (
        result.verdict,
        "1.2.3",
        *(m.reason for m in result.messages),
        *(r.tensor for r in result.equality.rows),
        "simulated",
    ):
        assert wanted in words
    for rank in range(8):
        assert f"rank {rank}" in words
    assert all(f"loss is {loss}" in words for loss in result.losses)


def test_the_page_draws_each_slice_on_the_rank_that_holds_it(result):
    # w is split into 4 slices of rows; rank = 4 * row of the device matrix + number of the slice
    (said,) = re.findall(r'aria-label="w: ([^"]*)"', report_page(result))
    assert said == "; ".join(f"rank {r} [{8 * (r % 4)}:{8 * (r % 4) + 8}, :]" for r in range(8))


@pytest.mark.exhaustive
def test_the_page_draws_the_height_that_is_cut_and_the_strips_of_the_neighbours():
    """Wrong before: of four dims the first two were drawn, and slices that differ in height lay on one another."""
    result = Quickstart(net="convnet", devices=4, epochs=1, executor="simulator").run()
    text = report_page(result)
    picture = text.split("<b>x for conv1.conv2d, with halo</b>")[1].split("</svg>")[0]
    tops = [
        float(y)
        for y in re.findall(r'<rect class="hue-\d" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="[\d.]+"/>', picture)
    ]
    assert len(tops) == 4 + 6  # four slices; two strips in the middle, one at each edge
    assert {2 + 44 * part / 4 for part in range(4)} <= set(tops)  # a frame is 44 high
    assert "strips: read from the neighbours" in text


def test_the_page_escapes_names(result):
    named = dataclasses.replace(result, net="<script>alert(1)</script>")
    text = report_page(named)
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.quick(1)
@each_of("options", {"devices": 1, "epochs": 1}, {"devices": 2, "net": "dense", "data": "digits", "epochs": 1})
def test_other_runs_have_a_page_too(options):
    page = _Page(report_page(Quickstart(executor="simulator", **options).run()))
    assert page.faults == [] and page.open == []


def test_a_page_of_a_run_that_diverged_says_so(result):
    losses = (*result.losses[:-1], float("nan"))
    rows = (dataclasses.replace(result.equality.rows[0], largest_difference=float("inf")), *result.equality.rows[1:])
    broken = dataclasses.replace(result, losses=losses, equality=dataclasses.replace(result.equality, rows=rows))
    page = _Page(report_page(broken))
    assert page.faults == [] and page.open == []
    assert "did NOT compute" in " ".join(page.words)


def test_a_page_is_written_whole_or_not_at_all(result, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(DataFileError, match="cannot be written"):
        result.to_html(tmp_path / "missing" / "report.html")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DataFileError, match="No space left"):
            result.to_html(path)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert result.to_html(path) == path
    assert path.read_text(encoding="utf-8") == result.to_html()
