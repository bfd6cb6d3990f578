"""Choosing Cells to recompute from a compiled plan: the model says what every plan then holds and takes, and no other
choice is better."""

import itertools

import numpy as np
import pytest

import parallel_lab as pl
from parallel_lab import nn, ops
from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost import get_cluster, instr_time_s, plan_moments, predict_memory, recompute_cells
from parallel_lab.train.session import Session
from tests.crossed import first

WIDTH = 8
CLUSTER = get_cluster("gpu_node")


class Layer(nn.Cell):
    """A product in between, `deep` times as wide, with dropout and a norm; `short`: with a residual."""

    def __init__(self, deep, short):
        super().__init__()
        self.up, self.down = nn.Dense(WIDTH, WIDTH * deep, activation="tanh"), nn.Dense(WIDTH * deep, WIDTH)
        self.norm, self.drop, self.short = nn.LayerNorm((WIDTH,)), nn.Dropout(p=0.2), short

    def construct(self, x):
        y = self.drop(self.down(self.up(self.norm(x))))
        return x + y if self.short else ops.tanh(y)


class Chain(nn.Cell):
    """Uneven layers after a first product."""

    def __init__(self, deep, short):
        super().__init__()
        pl.set_seed(4)
        self.first = nn.Dense(WIDTH, WIDTH)
        self.layers = nn.CellList([Layer(d, (n % 2) if short == "some" else short) for n, d in enumerate(deep)])
        self.set_train()

    def construct(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x


STAGES = {"device_num": 2, "pipeline_stages": 2, "grad_accumulation_step": 4}
CASES = {
    "plain": (False, {}),
    "residuals": (True, {"device_num": 2}),
    "some residuals": ("some", {}),
    "micro-batches": (False, {"grad_accumulation_step": 2}),
    "sharded": ("some", {"device_num": 4, "enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}),
    "1f1b": (False, STAGES),
    "gpipe": ("some", {**STAGES, "pipeline_scheduler": "gpipe"}),
    "zero bubble": (False, {**STAGES, "schedule": "zb_h1"}),
    "chunks": ("some", {**STAGES, "schedule": "interleaved"}),
    "zero bubble, V": (True, {**STAGES, "schedule": "zero_bubble_v"}),
    "two copies": (False, {**STAGES, "schedule": "chimera"}),
}
# the first product belongs to the stage of the first layer
STAGES_OF = {"chunks": (0, 1, 0, 1, 1), "zero bubble, V": (0, 0, 1, 1, 0)}
DEEP = (1, 4, 2, 6, 3)


def chain(case, deep=DEEP):
    short, settings = CASES[case]
    net = Chain(deep, short)
    rng = np.random.default_rng(3)
    data = tuple(rng.standard_normal((128, WIDTH)).astype(np.float32) for _ in range(2))
    made = nn.Adam(net.trainable_params(), 0.01)
    settings = {"device_num": 1, "dataset_strategy": "full_batch", **settings}
    if "pipeline_stages" in settings:
        for layer, stage in zip(net.layers, STAGES_OF.get(case, (0, 0, 0, 1, 1)), strict=True):
            layer.pipeline_stage = stage
    return net, made, lambda: pl.compile(net, *data, loss=nn.MSELoss(), optimizer=made, **settings), data


def every_plan(net, compiled):
    """{choice: plan} of all 2^n choices."""
    found = {}
    for chosen in itertools.product((False, True), repeat=len(net.layers)):
        for layer, again in zip(net.layers, chosen, strict=True):
            layer.recompute_options = None
            if again:
                layer.recompute()
        found[chosen] = compiled()
    return found


def peak_of(plan):
    return max(predict_memory(plan, rank=stage.first).peak_bytes for stage in plan.stages)


def work_of(plan):
    """Seconds of all that one rank of each stage does."""
    parts = ((stage.first, stage.part(action)) for stage in plan.stages for action in stage.actions)
    return sum(instr_time_s(plan, instr, CLUSTER, rank=first) for first, part in parts for _, instr in part)


# the others are exhaustive
@pytest.mark.exhaustive
@pytest.mark.parametrize(("case", "deep"), first(1, [("some residuals", DEEP[:3]), *((c, DEEP) for c in CASES)]))
def test_the_choice_is_the_best_of_all_plans(case, deep):
    """Of 5 layers all 32 plans are compiled: their peaks and times are what the moments say, and none that fits takes
    less.
    """
    net, _, compiled, _ = chain(case, deep)
    plans = every_plan(net, compiled)
    nothing, everything = (plans[(every,) * len(deep)] for every in (False, True))
    moments = plan_moments(nothing, everything, CLUSTER)
    peaks = {chosen: peak_of(plan) for chosen, plan in plans.items()}
    extra = {chosen: work_of(plan) - work_of(nothing) for chosen, plan in plans.items()}
    for chosen in plans:
        said = moments.predict(chosen)
        assert said.peak_bytes == peaks[chosen], chosen
        assert said.extra_s == pytest.approx(extra[chosen], rel=1e-6, abs=1e-12)
    for cap in sorted(set(peaks.values())):
        best, plan = recompute_cells(net.layers, compiled, cap, CLUSTER)
        assert peak_of(plan) == best.peak_bytes <= cap
        assert best.extra_s == pytest.approx(min(extra[c] for c in plans if peaks[c] <= cap), rel=1e-6, abs=1e-12)
        assert plan == plans[best.recompute]
    with pytest.raises(ArgumentError, match=f"At least {min(peaks.values())}"):
        recompute_cells(net.layers, compiled, min(peaks.values()) - 1, CLUSTER)
    assert [layer.recompute_options is not None for layer in net.layers] == list(best.recompute)


@pytest.mark.exhaustive
def test_the_chosen_plan_trains_with_the_same_bits():
    losses = []
    for cap in (None, 1):
        net, optimizer, compiled, data = chain("residuals")
        plan = compiled()
        if cap:
            cells = list(net.layers)
            whole = predict_memory(plan).peak_bytes
            best, plan = recompute_cells(cells, compiled, whole - 20_000)
            assert any(best.recompute) and predict_memory(plan).peak_bytes <= whole - 20_000
        with Session(plan, net, optimizer) as session:
            losses.append(session.train([data], 3))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("cells", "compiled", "cap"), [(3, len, 5), ("ab", len, 5), ([], len, 5), ([1], len, 5), (None, len, 5)]
)
def test_other_things_than_cells_are_refused(cells, compiled, cap):
    with pytest.raises(TypeError, match="Cells in a list or CellList"):
        recompute_cells(cells, compiled, cap)


@pytest.mark.parametrize(("compiled", "cap", "words"), [(3, 5, "compile_plan=3"), (len, "5", "cap_bytes='5'")])
def test_what_compiles_and_the_cap_are_checked(compiled, cap, words):
    with pytest.raises((TypeError, ValueError), match=words):
        recompute_cells([Layer(1, False)], compiled, cap)


def test_anything_but_a_chain_is_refused():
    net, _, compiled, _ = chain("plain")
    shared = [net.layers[0], net.layers[1]]
    before = [cell.recompute_options for cell in net.layers]
    with pytest.raises(ArgumentError, match="3 Cells are called 2 times"):
        recompute_cells([*shared, Layer(2, False)], compiled, 10**9)
    assert [cell.recompute_options for cell in net.layers] == before
