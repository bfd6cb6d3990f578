"""Experts with everything else: samples, tokens, heads, stages, levels, recompute; ten meshes, one training."""

import math

import numpy as np
import pytest

from parallel_lab import Session, Tensor, compile, nn, set_seed
from parallel_lab.cost.time import sent_bytes
from parallel_lab.mindspore._checkpoint import (
    TensorRecord,
    load_checkpoint,
    merge_sliced_parameter,
    read_checkpoint,
    save_strategy,
    transform_checkpoints,
    write_checkpoint,
)
from parallel_lab.nn import models
from parallel_lab.ops.expert_capacity import ORDERS, ROUTERS_TO_ROOM
from parallel_lab.ops.routing import ROUTERS
from tests.crossed import each_of
from tests.pools import shared_pool

VOCABULARY, TOKENS, SAMPLES = 12, 16, 16
BOUND = 1e-10  # float64; a missing or doubled addend is off by a tenth at least
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (3, SAMPLES, TOKENS + 1)).astype(np.int32)
BATCHES = [(ids[:, :-1].copy(), ids[:, 1:].copy()) for ids in IDS]
EXPERTS = {"experts": 8, "k": 2, "balance_factor": 0.1, "z_factor": 0.01, "bias_rate": 0.05}


class Case:
    """A network of two blocks with experts; its tokens are in the order of a ring of 8 (context) or not split by one
    (gpt). recompute: nothing, the experts, or whole blocks.
    """

    def __init__(self, kind="context", recompute="", dtype=np.float64, layers=2, dropout=0.0, **moe):
        set_seed(1)
        moe, sizes = {**EXPERTS, **moe}, {"hidden": 16, "inner": 12, "heads": 4, "layers": layers}
        if kind == "context":
            sizes |= {"placement": "zigzag", "ranks": 8, "dropout": dropout}
            self.net = models.ContextGPT(VOCABULARY, **sizes, moe=moe, dtype=dtype)
            self.loss, self.split = models.ContextMoELoss(), models.context_parallel
        else:
            experts, k = moe.pop("experts"), moe.pop("k")
            self.net = models.MoEGPT(VOCABULARY, seq_length=TOKENS, experts=experts, k=k, moe=moe, **sizes)
            self.loss = models.MoELanguageModelLoss()
            for p in self.net.get_parameters():
                p._initial, p._data = None, p.asnumpy().astype(dtype)
        for block in self.net.blocks:
            if recompute:
                (block.moe if recompute == "experts" else block).recompute()
        self.net.set_train()
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.3, 0.9)

    def plan(self, mesh=None, stages=1, level=0, parts=(0, 1), **settings):
        for at, block in enumerate(self.net.blocks):
            block.pipeline_stage = parts[at] if stages > 1 else None
        for net in (self.net, self.loss):
            models.data_parallel(net)
        if mesh is None:
            settings["parallel_mode"] = "stand_alone"
        elif isinstance(self.net, models.ContextGPT):
            models.context_parallel(self.net, self.loss, **mesh)
        else:
            models.expert_parallel(self.net, **{"dp": 1, "ep": 1, **mesh})
        if level:
            settings |= {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
            settings["optimizer_level"] = f"level{level}"
        count = math.prod((mesh or {}).get(name, 1) for name in ("dp", "cp", "mp")) * stages
        how = {"device_num": count, "pipeline_stages": stages, "dataset_strategy": "full_batch", **settings}
        plan = compile(self.net, *BATCHES[0], loss=self.loss, optimizer=self.optimizer, **how)
        plan.verify()
        return plan

    def trained(self, plan, steps=2, **session):
        """{"losses", parameters, "gradient of ..." the last step}."""
        with Session(plan, self.net, self.optimizer, **session) as running:
            losses = np.array(running.train(BATCHES, steps))
            gradients = {f"gradient of {name}": value for name, value in running.gradients().items()}
            return {"losses": losses, **running.parameters(), **gradients}


def assert_equal(found, want):
    for name, value in found.items():
        far = np.abs(value - want[name]).max() / max(np.abs(want[name]).max(), 1e-3)
        assert far <= BOUND, f"{name} is {far:.3g} off"


def check(mesh, case=(), **how):
    """Two steps against one device: losses, the last gradients, parameters and selection biases. Rows travel to the
    experts and back, forward and backward, and there and back once more if that is made again: n k of n tokens, and
    1 / ep of them stay.
    """
    case, micro = dict(case), how.get("grad_accumulation_step", 1)
    one, many = Case(**case), Case(**case)
    plan = many.plan(mesh, **how)
    assert_equal(many.trained(plan), one.trained(one.plan(grad_accumulation_step=micro)))
    sizes, ep = {"mp": 1, "cp": 1, "expert_mp": mesh.get("mp", 1), **mesh}, mesh.get("ep", 1)
    ranks = sizes.get("dp", 1) * sizes["cp"] * sizes["mp"] // sizes["expert_mp"]
    rows = SAMPLES * TOKENS // micro // ranks * case.get("k", 2) // ep
    times = len(many.net.blocks) * micro * (6 if case.get("recompute") else 4)
    sent = [sent_bytes(plan, i) for _, i in plan.instructions() if i.kind == "all_to_all_v"]
    assert sent == [(ep - 1) * rows * 16 * 8] * times * (ep > 1 and "capacity_factor" not in case)


MICRO, STAGES = {"grad_accumulation_step": 2}, {"stages": 2, "grad_accumulation_step": 4}
FUSED = {"comm_fusion": {"allreduce": {"mode": "auto", "config": None}}}
PARTS = {"parts": (0, 1, 1, 0), "schedule": "v_half"}  # a rank of stage 0 has the first and the last block


def drawn(number):
    """(mesh, case, settings) of one network and its ranks."""
    rng = np.random.default_rng([20261130, number])

    def pick(*values):
        return values[int(rng.integers(len(values)))]

    kind, how = pick("context", "gpt"), {"stages": pick(1, 1, 2), "level": pick(0, 1, 2, 3)}
    cp = pick(1, 2, 4, 8 // how["stages"]) if kind == "context" else 1
    dp = pick(*(n for n in (1, 2, 4, 8) if n * cp * how["stages"] <= 8))
    mp = pick(*(n for n in (1, 2, 4) if n * cp * dp * how["stages"] <= 8))
    inside = pick(*(n for n in (1, 2, 4) if mp % n == 0))
    sp = cp * mp // inside
    ep = pick(*(n for n in (1, 2, 4, 8) if dp * sp % n == 0))
    mesh = {"dp": dp, "mp": mp, "ep": ep, "expert_mp": inside}
    mesh |= (
        {"cp": cp, "ulysses": pick(*(n for n in (1, 2, 4) if cp % n == 0 and mp * n <= 4))} if kind == "context" else {}
    )
    mesh |= {"sequence": pick(True, False)} if kind == "gpt" else {}
    how["grad_accumulation_step"] = pick(2, 4) if how["stages"] > 1 else pick(1, 2)
    how |= pick({}, {}, FUSED, {"redistribution": "exact"})
    experts = ep * pick(1, 2, 3)
    case = {"kind": kind, "recompute": pick("", "experts", "blocks"), "experts": experts, "router": pick(*ROUTERS)}
    case |= {"k": int(rng.integers(1, min(experts, 4) + 1)), "per_sequence": pick(True, False), "scale": pick(1.0, 2.5)}
    case |= {"balance_factor": pick(0.0, 0.1), "z_factor": pick(0.0, 0.01), "bias_rate": pick(0.0, 0.05)}
    if pick(True, False):
        case |= {"capacity_factor": pick(0.75, 1.0, 1.5), "convention": pick("megatron", "mindspore", "deepspeed")}
        case |= {"drop_order": pick(*ORDERS)}
        if case["drop_order"] == "mindspore_v1":
            case |= {"router": pick(*ROUTERS_TO_ROOM), "bias_rate": 0.0}
        samples = SAMPLES // how["grad_accumulation_step"]
        case["groups"] = tuple(pick(*(n * m for m in (1, 2) if n * m <= most)) for n, most in ((dp, samples), (sp, 16)))
    mesh["sequence"] = mesh.get("sequence", False) or (kind == "context" and pick(True, False))
    if how["stages"] > 1 and pick(True, False):
        case, how = {**case, "layers": 4}, {**how, **PARTS}
    return mesh, case, how


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", range(24))
def test_experts_train_as_on_one_device_with_everything_that_may_be_around_them(number):
    mesh, case, how = drawn(number)
    print(f"number {number}: {mesh}, {case}, {how}")
    check(mesh, case, **how)


# ---- ten meshes of 8 ranks ----

MESHES = [
    ({"dp": 2, "cp": 2, "mp": 2, "ep": 2}, 1),
    ({"cp": 2, "mp": 2}, 2),
    ({"dp": 2, "cp": 2, "mp": 2, "ep": 8, "expert_mp": 1}, 1),
    ({"dp": 2, "cp": 2, "ep": 4}, 2),
    ({"cp": 8}, 1),
    ({"dp": 2, "cp": 2, "mp": 2, "ep": 4}, 1),
    ({"dp": 2, "mp": 2, "ep": 2}, 2),
    ({"mp": 2, "cp": 4}, 1),
    ({"dp": 8, "ep": 8}, 1),
    ({"dp": 2, "cp": 4, "ep": 8}, 1),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("moe", [{}, {"capacity_factor": 1.0, "groups": (8, 8)}], ids=["dropless", "capacity"])
@pytest.mark.parametrize("first_level", range(4))
def test_one_training_goes_through_ten_meshes(first_level, moe):
    """Each step runs on another mesh, into which parameters and states are moved while it goes on, and at another level
    of the optimizer: all four first levels are each mesh at each level. With dropout.
    """
    one, case = Case(**moe, dropout=0.2), Case(**moe, dropout=0.2)
    want = one.trained(one.plan(**MICRO), len(MESHES))
    levels = [(first_level + at) % 4 for at in range(len(MESHES))]
    plans = [case.plan(*mesh, level, **MICRO) for mesh, level in zip(MESHES, levels, strict=True)]
    losses, first = [], 3 * first_level
    with Session(plans[first], case.net, case.optimizer) as running:
        for step in range(len(MESHES)):
            if step:
                running.switch(plans[(first + step) % len(MESHES)])
            losses += running.train([BATCHES[step % 3]], 1)
        assert_equal({"losses": np.array(losses), **running.parameters()}, want)


@pytest.mark.exhaustive
@pytest.mark.parametrize("at", [0, 2, 3, 8])
def test_processes_give_the_bits_of_the_simulator_before_and_after_an_edit(at):
    case = Case(dtype=np.float32)
    plans = [case.plan(mesh, stages, 2, **MICRO) for mesh, stages in MESHES[at : at + 2]]
    results = []
    for how in ({}, {"executor": "processes", "pool": shared_pool(8)}):
        with Session(plans[0], case.net, case.optimizer, **how) as running:
            losses = running.train(BATCHES, 2)
            running.switch(plans[1])
            results.append({"losses": [*losses, *running.train(BATCHES, 2)], **running.parameters()})
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


# ---- one step of the bias, and checkpoints ----


@pytest.mark.exhaustive
@each_of(
    ("schedule", "executor"),
    ("dualpipe", "simulator"),
    pytest.param("dualpipe", "processes", marks=pytest.mark.exhaustive),
    pytest.param("chimera", "simulator", marks=pytest.mark.exhaustive),
)
def test_two_copies_of_the_network_add_up_their_counts_before_the_bias_moves(schedule, executor):
    """On one device the same four micro-batches move it once a step; both copies have it."""
    one, many, twice = Case("gpt", layers=4), Case("gpt", layers=4), {"parts": (0, 0, 1, 1), "schedule": schedule}
    plan = many.plan({"dp": 2, "ep": 2}, **STAGES, **twice)
    how = {"executor": executor, **({"pool": shared_pool(4)} if executor == "processes" else {})}
    found, want = many.trained(plan, 3, **how), one.trained(one.plan(grad_accumulation_step=4), 3)
    assert_equal(found, want)
    for block in range(4):
        np.testing.assert_array_equal(found[f"blocks.{block}.moe.bias"], want[f"blocks.{block}.moe.bias"])
        assert want[f"blocks.{block}.moe.bias"].any()
    assert all(any(i.op == "bias_step" for i in stage.program("reduce")) for stage in plan.stages)


@pytest.mark.exhaustive
def test_the_bias_moves_once_in_a_step_by_the_counts_of_all_micro_batches_and_ranks():
    """The first step's choices do not depend on how the batch is cut: every expert's bias moves by the rate, up or down
    or not at all. Each micro-batch by itself would move it up to four times.
    """
    case = Case()
    moved = [case.trained(plan, 1) for plan in (case.plan(), case.plan({"cp": 2, "ep": 2}, **STAGES))]
    for block in range(2):
        whole, parts = (each[f"blocks.{block}.moe.bias"] for each in moved)
        np.testing.assert_array_equal(parts, whole)
        assert set(np.abs(whole)) <= {0.0, float(np.float32(0.05))} and whole.any()


def test_a_look_at_the_loss_moves_no_bias():
    case = Case()
    with Session(case.plan({"cp": 2, "ep": 2}), case.net, case.optimizer) as running:
        (loss,) = running.outputs(*BATCHES[0])
        assert not running.parameters()["blocks.0.moe.bias"].any()
        assert running.train(BATCHES, 1) == [loss] and running.parameters()["blocks.0.moe.bias"].any()


@each_of(
    ("mesh", "how"),
    ({"cp": 2, "mp": 2, "ep": 4, "expert_mp": 1}, {}),
    pytest.param({"dp": 2, "cp": 2, "ep": 4}, {**STAGES, "level": 2}, marks=pytest.mark.exhaustive),
    pytest.param({"dp": 4, "ep": 2, "cp": 2}, {"level": 3}, marks=pytest.mark.exhaustive),
)
def test_experts_of_a_checkpoint_are_cut_anew_for_another_mesh(tmp_path, mesh, how):
    """Files of 4 or 8 ranks become those of 4 others: each rank has the experts of the training, so has the whole."""
    case = Case()
    plans = {"src": case.plan(mesh, **how), "dst": case.plan({"dp": 2, "mp": 2, "ep": 2})}
    with Session(plans["src"], case.net, case.optimizer) as running:
        running.train(BATCHES, 1)
        want, slices = running.parameters(), {p.name: running.slices(p.name) for p in plans["src"].parameters}
    for name, plan in plans.items():
        save_strategy(plan, tmp_path / f"{name}.ckpt", only_trainable_params=False)
    for rank in range(plans["src"].device_num):
        (tmp_path / f"src/rank_{rank}").mkdir(parents=True)
        own = {name: TensorRecord(parts[rank]) for name, parts in slices.items() if parts[rank] is not None}
        write_checkpoint(tmp_path / f"src/rank_{rank}/net.ckpt", own)
    transform_checkpoints(tmp_path / "src", tmp_path / "dst", "net", tmp_path / "src.ckpt", tmp_path / "dst.ckpt")
    transform_checkpoints(tmp_path / "dst", tmp_path / "whole", "net", tmp_path / "dst.ckpt")
    for rank in range(4):
        found = read_checkpoint(tmp_path / f"dst/rank_{rank}/net{rank}.ckpt").tensors["blocks.1.moe.up"].array
        experts, inside = divmod(rank, 2)  # ranks (dp, mp): four of eight experts, half of their width
        np.testing.assert_array_equal(found, want["blocks.1.moe.up"][experts * 4 :][:4, :, inside * 6 :][..., :6])
    whole = load_checkpoint(tmp_path / "whole/rank_0/net0.ckpt")
    assert whole.keys() == want.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value.asnumpy(), want[name], err_msg=name)
    if "stages" not in how:
        parts = [nn.Parameter(Tensor(part), name="blocks.0.moe.down") for part in slices["blocks.0.moe.down"]]
        layout = plans["src"].value("blocks.0.moe.down").layout
        merged = merge_sliced_parameter(parts, {"blocks.0.moe.down": layout})
        np.testing.assert_array_equal(merged.asnumpy(), want["blocks.0.moe.down"])
