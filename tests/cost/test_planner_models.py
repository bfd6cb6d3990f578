"""Closed forms of transformers against published tables, from the tables' own inputs."""

import pytest

from parallel_lab.cost import planner, scale
from parallel_lab.cost.planner import TRANSFORMERS, Transformer, alpa_cost, alpa_pipeline_s, get_transformer
from parallel_lab.cost.schedules import make_schedule
from parallel_lab.cost.stage_division import balance
from tests.refusals import refused

A100 = 312e12  # half precision, data sheet

# Narayanan et al. 2021 (SC21), table 1: model -> (1e9 parameters, GPUs, batch, 1e12 operations per second and GPU,
# percent of the peak, 1e15 per second in all)
SC21_TABLE_1 = {
    "gpt_1.7b": (1.7, 32, 512, 137, 44, 4.4),
    "gpt_3.6b": (3.6, 64, 512, 138, 44, 8.8),
    "gpt_7.5b": (7.5, 128, 512, 142, 46, 18.2),
    "gpt_18b": (18.4, 256, 1024, 135, 43, 34.6),
    "gpt_39b": (39.1, 512, 1536, 138, 44, 70.8),
    "gpt_76b": (76.1, 1024, 1792, 140, 45, 143.8),
    "gpt_145b": (145.6, 1536, 2304, 148, 47, 227.1),
    "gpt_310b": (310.1, 1920, 2160, 155, 50, 297.4),
    "mt_nlg_530b": (529.6, 2520, 2520, 163, 52, 410.2),
    "gpt_1t": (1008.0, 3072, 3072, 163, 52, 502.0),
}


@pytest.mark.parametrize("name", SC21_TABLE_1)
def test_parameters_and_rates_of_sc21_table_1(name):
    billions, gpus, batch, each, percent, total = SC21_TABLE_1[name]
    model = get_transformer(name)
    assert round(model.parameters / 1e9, 1) == billions
    # a step lasts as long as its operations take at the printed total rate; that gives back the other two columns
    step_s = model.step_flops(batch, "full") / (total * 1e15)
    assert model.utilization(batch, step_s, gpus, 1e12, "full") == pytest.approx(each, abs=0.6)
    assert 100 * model.utilization(batch, step_s, gpus, A100, "full") == pytest.approx(percent, abs=0.75)


def test_seconds_of_a_step_that_sc21_table_1_implies():
    """96 B s l h^2 (1 + s/6h + V/16lh) at 163e12 operations per second on each of 3072 GPUs, by hand: 102.6 s."""
    b, s, layers, h, v = 3072, 2048, 128, 25600, 51200
    by_hand = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)) / (3072 * 163e12)
    model = get_transformer("gpt_1t")
    assert model.step_flops(b, "full") / (3072 * 163e12) == pytest.approx(by_hand, rel=1e-12)
    assert by_hand == pytest.approx(102.63, rel=0.003)


# SC21, table 2: (model, GPUs, 1e12 operations per second and GPU, days for 300e9 tokens): ZeRO-3, then PTD-P
SC21_TABLE_2 = [
    ("gpt3_175b", 384, 144, 90),
    ("gpt3_175b", 768, 88, 74),
    ("gpt3_175b", 1536, 44, 74),
    ("mt_nlg_530b", 640, 138, 169),
    ("mt_nlg_530b", 1120, 98, 137),
    ("mt_nlg_530b", 2240, 48, 140),
    ("gpt3_175b", 384, 153, 84),
    ("gpt3_175b", 768, 149, 43),
    ("gpt3_175b", 1536, 141, 23),
    ("mt_nlg_530b", 560, 171, 156),
    ("mt_nlg_530b", 1120, 167, 80),
    ("mt_nlg_530b", 2240, 159, 42),
]


@pytest.mark.parametrize(("name", "gpus", "rate", "days"), SC21_TABLE_2)
def test_days_of_sc21_table_2(name, gpus, rate, days):
    assert get_transformer(name).training_days(300e9, gpus, rate * 1e12, "full") == pytest.approx(days, rel=0.013)


# Korthikanti et al. 2022, table 5: (model, GPUs, batch, seconds of a step, MFU, HFU)
KORTHIKANTI_TABLE_5 = [
    ("gpt_22b", 8, 4, 1.10, 41.5, 43.7),
    ("gpt3_175b", 64, 64, 13.75, 51.4, 52.8),
    ("mt_nlg_530b", 280, 280, 37.83, 56.0, 57.0),
    ("gpt_1t", 512, 512, 71.49, 56.3, 57.0),
]


@pytest.mark.parametrize(("name", "gpus", "batch", "step_s", "mfu", "hfu"), KORTHIKANTI_TABLE_5)
def test_utilization_of_korthikanti_table_5(name, gpus, batch, step_s, mfu, hfu):
    model = get_transformer(name)
    used = batch, step_s, gpus, A100
    assert 100 * model.utilization(*used) == pytest.approx(mfu, abs=0.3)
    assert 100 * model.utilization(*used, "attention", as_printed=True) == pytest.approx(hfu, abs=0.3)


def test_the_formula_for_attention_again_is_printed_with_three_times_what_it_adds():
    """4 B s^2 h more per layer are s / 18h of 72 B s h^2, not s / 6h."""
    model = get_transformer("gpt3_175b")
    h, s = model.hidden, model.seq_length
    own = model.step_flops(64)
    added, printed = (model.step_flops(64, "attention", as_printed=p) - own for p in (False, True))
    assert added == pytest.approx(64 * 96 * 4 * s * s * h) == pytest.approx(72 * 64 * 96 * s * h * h * s / (18 * h))
    assert printed == pytest.approx(72 * 64 * 96 * s * h * h * s / (6 * h))


def test_korthikanti_table_5_on_eight_times_the_gpus():
    """530B on 2240 GPUs, batch 2240: 39.15 s, MFU 54.2 %: 96.6 % of what one eighth of them reaches."""
    model = get_transformer("mt_nlg_530b")
    many = model.utilization(2240, 39.15, 2240, A100)
    assert 100 * many == pytest.approx(54.2, abs=0.3)
    assert many / model.utilization(280, 37.83, 280, A100) == pytest.approx(0.966, abs=0.001)


# Korthikanti et al. 2022, table 2: bytes of a layer over s b h, for GPT-3 (5as/h = 80) split 8 ways
KORTHIKANTI_TABLE_2 = [
    (1, False, "none", 34 + 80),
    (8, False, "none", 10 + 24 / 8 + 80 / 8),
    (8, True, "none", 34 / 8 + 80 / 8),
    (8, False, "attention", 10 + 24 / 8),
    (8, True, "attention", 34 / 8),
    (8, False, "full", 2),
]


@pytest.mark.parametrize(("tensor", "sequence", "recompute", "coefficient"), KORTHIKANTI_TABLE_2)
def test_activations_of_korthikanti_table_2(tensor, sequence, recompute, coefficient):
    model = get_transformer("gpt3_175b")
    found = model.layer_activation_bytes(3, tensor, sequence_parallel=sequence, recompute=recompute)
    assert found == pytest.approx(coefficient * 2048 * 3 * 12288)


@pytest.mark.parametrize(("name", "term", "saved"), [("gpt3_175b", 80, 0.70), ("mt_nlg_530b", 64, 0.65)])
def test_what_attention_keeps_is_as_large_as_korthikanti_say(name, term, saved):
    """5as/h is 80 for GPT-3 and 64 for MT-NLG; to compute it again saves 70 % and 65 %."""
    model = get_transformer(name)
    whole, without = (model.layer_activation_bytes(1, recompute=r) for r in ("none", "attention"))
    assert (whole - without) / (2048 * model.hidden) == pytest.approx(term)
    assert 1 - without / whole == pytest.approx(saved, abs=0.005)


def test_the_first_stage_holds_all_layers_worth_and_more_with_chunks():
    model = get_transformer("gpt3_175b")
    layer = 2048 * 12288 * (10 + 24 / 8 + 80 / 8)
    assert model.activation_bytes(1, 8, stages=8) == pytest.approx(96 * layer)
    assert model.activation_bytes(1, 8, stages=8, chunks=3) == pytest.approx(96 * layer * (1 + 7 / 24))


# Rajbhandari et al. 2020 (ZeRO), table 1: 16 bytes a parameter, GB of a rank for 7.5e9 parameters on 64 ranks
@pytest.mark.parametrize(("level", "expected"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_states_are_those_of_zero_table_1(level, expected):
    model = Transformer("about 7.5e9", 36, 4096, 32)
    scaled = model.state_bytes(data=64, level=level) * 7.5e9 / model.parameters
    assert scaled / 1e9 == pytest.approx(expected, rel=0.005)


def test_alpa_counts_what_its_own_tests_expect():
    """Two dense layers on a mesh of (4, 1): batch 1024 and width 128 reduce two weights, the other way one result."""
    weight, activation = 128 * 128 * 4, 128 * 1024 * 4
    assert 2 * alpa_cost("all_reduce", weight, 4) == pytest.approx(196610.02)
    assert alpa_cost("all_reduce", activation, 4) == pytest.approx(786433.01)


def test_alpa_divides_stages_and_bounds_1f1b():
    """Layers 4 1 1 2 2 1 1 4 on four stages: 44 for eight micro-batches. Stages of 2, 1, 1, 1 (backward twice that):
    Alpa says 57, the clock 51; for GPipe with even stages both agree."""
    layers, at, times = (4, 1, 1, 2, 2, 1, 1, 4), 0, []
    for size in balance(layers, 4):
        times.append(sum(layers[at : at + size]))
        at += size
    assert alpa_pipeline_s(times, 8) == 44
    forward = (2.0, 1.0, 1.0, 1.0)
    assert alpa_pipeline_s([3 * t for t in forward], 8) == 57
    assert make_schedule("1f1b", 4, 8).clock(forward, [2 * t for t in forward], 0.0).makespan == 51
    assert make_schedule("gpipe", 4, 8).clock(1.0, 2.0, 0.0).makespan == alpa_pipeline_s([3.0] * 4, 8)


def test_every_model_has_a_source_and_a_name_of_its_own():
    assert all(model.source for model in TRANSFORMERS)
    assert len({model.name for model in TRANSFORMERS}) == len(TRANSFORMERS)


test_wrong_inputs_are_refused = refused(
    lambda: get_transformer("gpt3"),
    lambda: get_transformer(3),
    lambda: Transformer("odd", 2, 10, 3),
    lambda: Transformer("none", 0, 8, 2),
    lambda: alpa_pipeline_s((), 2),
)


def test_the_planner_is_found_under_its_former_name_too():
    assert all(getattr(scale, name) is value for name, value in vars(planner).items() if not name.startswith("_"))
    assert scale.search_plans is planner.search_plans
