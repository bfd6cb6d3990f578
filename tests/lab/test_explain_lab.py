"""The Explain Lab: lines of a program with what they send; a paste is data, whatever it holds."""

import time
from pathlib import Path

import pytest

import parallel_lab as pl
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.explain.explanation import Explanation
from parallel_lab.lab.explain.model import EXAMPLES, ExplainLab
from parallel_lab.lab.explain.section import LONGEST, MOST_LINES, program_sections
from parallel_lab.lab.shared.replay import Limits
from parallel_lab.lab.shared.sections import snapshot_text

PROGRAMS = Path(__file__).parents[1] / "recorded" / "programs"


def section(lab, name, **chosen):
    shot = lab.snapshot() | chosen
    now = shot["sections"][name]
    values = [shot[by]["value"] for by in now.get("by", ())]
    return now | now["of"]["|".join(map(str, values))] if values else now


@pytest.mark.parametrize("name", ["torch_llama_fsdp_tp", "jax_ring_attention", "hyper_tensor_parallel"])
def test_the_lines_of_a_program_send_what_the_whole_sends(name):
    lab = ExplainLab(PROGRAMS / f"{name}.txt")
    found, lines = lab.found, lab.found.program.splitlines()
    rows = section(lab, "program")["rows"]
    rows = [row for row in rows if len(row) > 2]
    assert sum(size for *_, size, _ in rows if size) == sum(m.size_bytes for m in found.messages)
    assert all(text == lines[int(line) - 1] for line, (text, number), *_ in rows if number)
    busy = {m.line for m in found.messages}
    for line in busy:
        lab.set_line(line)
        told = section(lab, "line")["rows"]
        here = [m for m in found.messages if m.line == line]
        assert len(told) > 12 or {m.reason for m in here} <= {row[-1] for row in told}
    assert len(section(lab, "messages")["rows"]) == len(found.messages)
    lab.set_lines("all")
    assert [row[0] for row in section(lab, "program")["rows"]] == [str(n) for n in range(1, len(lines) + 1)]


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_read_in_full_on_any_offered_number_of_ranks(name):
    for devices in (0, 4, 16):
        lab = ExplainLab(name, devices)
        assert lab.found.messages and not lab.found.unread
        assert lab.found.ranks == (devices or lab.found.ranks)
        assert [mesh.size for mesh in lab.found.meshes[:1]] in ([], [lab.found.ranks])  # a Cell, a pipeline: no mesh


def test_lines_that_were_not_understood_are_marked_with_the_reason():
    lab = ExplainLab("import torch\nx = torch.ones(4)\n\ny = torch.fancy(x)\n")
    said = next(row[2] for row in section(lab, "program")["rows"] if row[0] == "4")
    assert said[0].startswith("not read: ") and said[1] is False and "fancy" in said[0]
    assert "1 line not understood" in lab.snapshot()["status"] and "Not read\n" in lab.to_text()
    lab.set_line(4)
    assert "fancy" in section(lab, "line")["notes"][0][0]


def test_a_pasted_text_is_data_it_is_not_run_and_names_no_file(tmp_path, monkeypatch):
    secret = tmp_path / "answers.py"
    secret.write_text("import torch\nsolution = torch.ones(7)\n")
    made = tmp_path / "made"
    lab = ExplainLab(f"import os\nos.mkdir({str(made)!r})\nopen({str(made)!r}, 'w')\n")
    assert not made.exists()
    monkeypatch.chdir(tmp_path)
    lab.set_program("answers.py")  # an attribute of a name that is not known
    assert lab.found.program == "answers.py" and lab.found.unread
    with pytest.raises(ArgumentError, match="not Python"):
        lab.set_program(str(secret))
    assert "solution" not in lab.to_text()
    state = lab.state()
    assert ExplainLab.of_state(state).found.program == lab.found.program
    page = ExplainLab("import torch\nx = '</script><script>alert(1)</script>'\ny = torch.fancy(x)\n").to_html()
    assert "<script>alert(1)" not in page


HOSTILE = {
    "brackets": "(" * 100_000,
    "closed brackets": "[" * 100_000 + "]" * 99_000,
    "NUL": "a\0b",
    "a million lines": "x = 1\n" * 10**6,
    "statements": "\n1" * 4000,
    "letters": "é" * 150_000,
    "surrogate": "\ud800",
    "a name": "x" * 9000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_shown_or_refused_in_bounded_time_and_size(text):
    lab, begun = ExplainLab("torch_tp"), time.monotonic()
    before = lab.to_text()
    try:
        lab.set_program(text)
    except ArgumentError as error:
        assert len(str(error)) < 400 and lab.to_text() == before
    assert len(lab.to_html(limits=Limits(1))) < 3_000_000
    assert time.monotonic() - begun < 60  # seconds: a bound, not a measurement


def test_tables_are_bounded_whatever_the_program_is():
    lines = [f"x{n} = torch.fancy({n}, '{'y' * 300}')" for n in range(2 * MOST_LINES)]  # never read
    unread = [(n, "z" * 900) for n in range(1, len(lines) + 1)]
    sections = program_sections(Explanation("PyTorch", "\n".join(lines), 8, unread=unread))
    for of in sections["program"]["of"].values():
        assert len(of["rows"]) == MOST_LINES + 1 and len(of["rows"][0][1][0]) <= LONGEST + 4
    assert len(sections["line"]["of"]) == MOST_LINES + 1 and len(sections["unread"]["rows"]) == MOST_LINES


def test_any_lab_can_have_the_section():
    found = pl.explain(PROGRAMS / "torch_tp_mlp.txt")
    run = {"error": None}
    shot = {"title": "Mine", "status": "", "run": run, "lines": {"value": "busy"}, "line": {"value": 20}}
    text = snapshot_text(shot | {"sections": program_sections(found)})
    assert "2 all_reduce" in text and "redistribute: P -> R" in text and "...\n" in text
