"""The programs that labs export: their data and initial values are the lab's; MindSpore's run here on processes, and
PyTorch's and JAX's ran elsewhere (`tests/recorded/record_lab_programs.py`), all with the losses of one device.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.code.exports import is_program
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.strategy.model import StrategyLab
from tests.crossed import each_of
from tests.mindspore.runs import by_launcher
from tests.recorded.lab_programs import CASES, STEPS, devices_of, network_job, one_device_losses
from tests.recorded.record_lab_programs import CLOSE, digest

RECORDED = json.loads((Path(__file__).parents[1] / "recorded/lab_programs.json").read_text())
PRINTED = re.compile(r"step (\d+): loss (\S+)")

lab_of = cache(lambda case: CASES[case]())
wanted_of = cache(lambda case: np.array(one_device_losses(lab_of(case))))


def begun(text: str, folder: Path | None = None) -> dict:
    """The names that the first lines of a program make, up to the initial values."""
    lines = text.split("initial = {name", 1)[0].splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("rng ="))
    here = Path.cwd()
    names: dict = {"np": np}
    try:
        os.chdir(folder or here)
        exec("\n".join(lines[start:]), names)
    finally:
        os.chdir(here)
    return names


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", CASES)
def test_data_and_initial_values_of_a_program_are_those_of_the_lab_bit_for_bit(case, tmp_path):
    lab = CASES[case]()  # fresh: parameters have their first values
    target = next(t for t in ("torch", "mindspore", "jax") if is_program(lab.code(t)))
    text = lab.save_code(tmp_path, target).read_text()
    assert text == lab.code(target)
    names = begun(text, tmp_path)
    if isinstance(lab, StrategyLab):
        net, _, batches = lab._job()
        parameters = net.trainable_params()
    elif isinstance(lab, PipelineLab):
        job = lab_job(lab)
        _, net, _ = job.compile(None)
        parameters, batches = net.trainable_params(), job.batches
    else:
        job = network_job(lab)
        parameters, batches = job.net.trainable_params(), job.batches
    assert len(names["batches"]) == len(batches)
    for mine, theirs in zip(batches, names["batches"], strict=True):
        assert [a.tobytes() for a in mine] == [
            np.asarray(a, m.dtype).tobytes() for a, m in zip(theirs, mine, strict=True)
        ]
    drawn = {name: values.astype(np.float32) for name, values in names["initial"].items()}
    assert list(drawn) == [p.name for p in parameters]
    assert all(drawn[p.name].tobytes() == p.asnumpy().tobytes() for p in parameters)


def lab_job(lab: PipelineLab):
    from parallel_lab.lab.pipeline.subjects import get_subject

    return get_subject(lab.settings.net).job(lab.settings.schedule.parts, lab.settings.micro_batches)


@pytest.mark.parametrize("target", ["torch", "jax"])
@pytest.mark.quick(1)
@pytest.mark.parametrize("case", CASES)
def test_a_program_is_the_one_that_ran_elsewhere_with_the_losses_of_one_device(case, target):
    recorded, text = RECORDED[case][target], lab_of(case).code(target)
    assert is_program(text) == (recorded is not None)
    if recorded is not None:
        assert digest(text) == recorded["digest"], "record again: tests/recorded/README.md"
        assert len(recorded["losses"]) == STEPS
        np.testing.assert_allclose(recorded["losses"], wanted_of(case), rtol=CLOSE)


@pytest.mark.quick(0)
@pytest.mark.parametrize("case", [c for c in CASES if "zb_h1" not in c and "v_half" not in c])
def test_a_program_for_mindspore_gives_the_losses_of_one_device_on_processes(case, tmp_path):
    lab = lab_of(case)
    name, ranks = lab.save_code(tmp_path, "mindspore").name, devices_of(lab)
    losses = [[float(loss) for _, loss in map(match, lines)] for lines in by_launcher(tmp_path, ranks, name)]
    assert all(len(printed) == STEPS for printed in losses)
    of = lab.settings if isinstance(lab, MemoryLab) else lab
    if getattr(of, "parallel_mode", "") == "data_parallel":
        losses = [np.mean(losses, axis=0)]  # each rank prints that of its own rows
    for printed in losses:
        np.testing.assert_allclose(printed, wanted_of(case), rtol=1e-5)


def match(line: str) -> tuple[str, str]:
    found = PRINTED.fullmatch(line)
    assert found, line
    return found[1], found[2]


# ---- where the program is missing ----


@pytest.mark.quick(1)
@each_of(
    ("case", "target", "words"),
    ("strategy convnet batch and height", "torch", "DTensor exchanges no halo"),
    ("fusion dense index", "torch", "A bucket ends where bucket_cap_mb is full"),
    ("memory stack level2", "jax", "when it is gathered is XLA's choice"),
    ("pipeline stack zb_h1", "mindspore", "MindSpore takes gpipe, 1f1b"),
    ("pipeline stack 1f1b", "jax", "a schedule of stages"),
)
def test_where_a_library_has_no_form_the_text_says_why(case, target, words):
    text = lab_of(case).code(target)
    assert not is_program(text) and words in text and all(line.startswith("#") for line in text.splitlines())


def test_micro_batches_of_experts_have_no_program_for_jax_whose_parts_are_others():
    lab = MemoryLab("experts", 2, level="off")
    lab.set_accumulation(2)
    assert "depends on whose tokens are counted together" in lab.code("jax") and is_program(lab.code("torch"))


def test_gradient_sums_fused_and_slices_of_states_are_in_mindspore_s_program_and_named_in_the_others():
    lab = StrategyLab(devices=2)
    lab.set_fusion("fused")
    lab.set_optimizer("sliced")
    assert "train.comm_fusion(" in lab.code() and 'train.hsdp(threshold=0, optimizer_level="level1")' in lab.code()
    for target in ("torch", "jax"):
        assert "sums of gradients in few messages and a slice of parameter" in lab.code(target)


def test_jax_has_no_bucket_setting_and_the_program_says_so():
    assert "JAX has no setting for fusion" in lab_of("fusion dense each").code("jax")


def test_the_puzzle_on_paper_and_a_drawing_that_is_not_done_have_no_programs():
    assert "on paper" in FusionLab("golf").code("torch")
    lab = PipelineLab("stack", 2, 2)
    lab.clear()
    assert "actions still to draw" in lab.code("torch") and not is_program(lab.code("mindspore"))


def test_an_unknown_target_is_refused_with_those_there_are():
    with pytest.raises(ArgumentError, match="One of mindspore, torch, jax"):
        StrategyLab(devices=2).code("keras")


def test_dtensor_cannot_split_a_dim_by_mesh_dims_in_another_order():
    from parallel_lab.lab.code.program import NoForm
    from parallel_lab.lab.code.torch_code import placements
    from parallel_lab.layout.tensor_layout import TensorLayout

    assert placements(TensorLayout((2, 2), ((1, 0), ()))) == "[Shard(0), Shard(0)]"
    with pytest.raises(NoForm, match="in their order"):
        placements(TensorLayout((2, 2), ((0, 1), ())))


@pytest.mark.parametrize("lab", [StrategyLab(devices=2), MemoryLab(devices=2), PipelineLab("stack", 2, 2)], ids=repr)
def test_the_tabs_and_the_text_show_what_code_gives(lab):
    shot = lab.snapshot()
    shown = {name: shot["sections"][name]["text"] for name in ("code_mindspore", "code_torch", "code_jax")}
    assert shown == {f"code_{target}": lab.code(target) for target in ("mindspore", "torch", "jax")}
    assert lab.code("mindspore").splitlines()[-1].strip() in lab.to_text()


def test_a_very_long_program_is_named_in_its_tab_and_not_printed_there():
    lab = PipelineLab("gpt", 2, 2)
    text = lab.snapshot()["sections"]["code_mindspore"]["text"]
    assert len(lab.code("mindspore")) > 20_000 > len(text) and "lab.save_code" in text


def test_a_page_has_the_programs_of_the_lab_s_own_setting_and_not_of_all_that_it_replays():
    lab = MemoryLab("stack", 2)
    other = lab.branch()
    other.set_level("level3")
    shown = {of: of.snapshot()["sections"]["code_torch"]["text"] for of in (lab, other)}
    assert (
        shown[lab] == lab.code("torch") and shown[other] == '# with these settings, in a notebook: lab.code("torch")\n'
    )


# ---- the way back ----


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", [c for c in CASES if "zb_h1" not in c and "v_half" not in c])
def test_a_program_that_is_pasted_into_a_fresh_lab_sets_it(case):
    """Strategies, fusion, optimizer parallel and schedule; not the network, which a paste leaves as it is."""
    lab = lab_of(case)
    if isinstance(lab, StrategyLab):
        fresh = StrategyLab(lab._net, lab._devices, lab._data)
        fresh.set_preset("data parallel")
        fresh.set_code(lab.code())
        assert fresh._strategies == lab._strategies
    elif isinstance(lab, FusionLab):
        fresh = FusionLab(lab.subject.name, lab._devices)
        fresh.set_code(lab.code())
        assert (fresh.parallel_mode, fresh.groups) == (lab.parallel_mode, lab.groups)
    elif isinstance(lab, MemoryLab):
        fresh = MemoryLab(lab.subject.name, lab.settings.devices, "Lamb")
        fresh.set_code(lab.code())
        assert fresh.settings == lab.settings
    else:
        fresh = PipelineLab(lab.settings.net, 3, 5)
        fresh.set_code(lab.code())
        assert fresh.schedule == lab.schedule
