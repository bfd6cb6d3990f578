"""A GPT whose tokens are split over ranks trains as on one device; what its attentions send; refusals."""

import itertools

import numpy as np
import pytest

from parallel_lab import Session, compile, nn, set_seed
from parallel_lab.base.errors import ArgumentError, LayoutError, StrategyError
from parallel_lab.cost.time import sent_bytes
from parallel_lab.nn.models import GPT, ContextGPT, context_parallel, placed
from tests.pools import shared_pool
from tests.refusals import refused

TOKENS, VOCABULARY = 16, 12
IDS = np.random.default_rng(0).integers(0, VOCABULARY, (4, TOKENS + 1)).astype(np.int32)


class Case:
    """A GPT of one layer, or of one for each stage; `plan` splits it, as often as one likes."""

    def __init__(self, layers=1, dtype=np.float64, recompute=False, **net):
        set_seed(1)
        attention = {"heads": 4, "kv_heads": 2, "placement": "contiguous", "ranks": 1, **net}
        self.net = ContextGPT(VOCABULARY, hidden=16, layers=layers, dtype=dtype, **attention)
        self.net.set_train()
        if recompute:
            self.net.blocks[0].recompute()
        order = {name: attention[name] for name in ("placement", "ranks")}
        self.inputs = placed(IDS[:, :-1], IDS[:, 1:], **order)  # labels were shifted before
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.3, 0.9)

    def plan(self, split=None, level=0, **settings):
        """A plan for the ranks of `split`; without it for one device."""
        loss, stages = nn.CrossEntropyLoss(), settings.get("pipeline_stages", 1)
        if split is not None:
            context_parallel(self.net, loss, **split)
        for at, block in enumerate(self.net.blocks):
            block.pipeline_stage = at * stages // len(self.net.blocks) if stages > 1 else None
        if level:
            settings |= {"enable_parallel_optimizer": True, "parallel_optimizer_threshold": 0}
            settings["optimizer_level"] = f"level{level}"
        devices = stages * int(np.prod([n for name, n in (split or {}).items() if name not in ("ulysses", "sequence")]))
        how = {"optimizer": self.optimizer, "dataset_strategy": "full_batch", "enable_alltoall": True, **settings}
        plan = compile(self.net, *self.inputs, loss=loss, device_num=devices, **how)
        plan.verify()
        return plan


def trained(split=None, *, steps=2, executor="simulator", net=(), dtype=np.float64, recompute=False, **settings):
    """(losses, {parameter: values}, plan) of some steps; without `split` on one device."""
    case = Case(settings.pop("layers", 1), dtype, recompute, **dict(net))
    plan = case.plan(split, **settings)
    pool = {"pool": shared_pool(plan.device_num)} if executor == "processes" else {}
    with Session(plan, case.net, case.optimizer, executor=executor, **pool) as session:
        return session.train([case.inputs], steps), session.parameters(), plan


def check_equal(one, other, bound=1e-10):
    np.testing.assert_allclose(other[0], one[0], rtol=bound)
    for name, values in one[1].items():
        np.testing.assert_allclose(other[1][name], values, rtol=bound, atol=bound * 0.1, err_msg=name)


@pytest.mark.parametrize("kind", ["zigzag", "striped"])
def test_a_placement_changes_neither_loss_nor_parameters(kind):
    """The same tokens in another order, with rotary positions of the sequence: one device, in order."""
    check_equal(trained(), trained({"cp": 4}, net={"placement": kind, "ranks": 4}))


SPLITS = [
    {"dp": dp, "cp": cp, "mp": mp, "ulysses": ulysses}
    for dp, cp, mp in itertools.product((1, 2, 4), (2, 4, 8), (1, 2, 4))
    if dp * cp * mp <= 8
    for ulysses in (1, 2, 4, 8)
    if cp % ulysses == 0
]
FUSION = {"comm_fusion": {kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather")}}
IN_STAGES = [{"schedule": "1f1b"}, {"schedule": "gpipe"}, {"schedule": "zb_h1"}, {"pipeline_interleave": True}]


def drawn(seed):
    """(split, network, settings of both sides, those of the ranks) of one training."""
    rng = np.random.default_rng(seed)

    def pick(*values):
        return values[int(rng.integers(len(values)))]

    stages = pick(1, 1, 2)
    split = pick(*(split for split in SPLITS if split["dp"] * split["cp"] * split["mp"] * stages <= 8))
    split = {**split, "sequence": pick(True, False)}
    heads = pick(4, 8) if split["mp"] * split["ulysses"] <= 4 else 8
    net = {"heads": heads, "kv_heads": pick(*(n for n in (1, 2, 4, 8) if n <= heads)), "method": pick("ring", "gather")}
    net |= {
        "placement": pick("contiguous", "zigzag", "striped"),
        "ranks": pick(split["cp"], split["cp"] // split["ulysses"]),
    }
    net |= {"causal": pick(True, True, False), "dropout": pick(0.0, 0.25), "compute_all": pick(True, False)}
    net |= {"window": pick(None, 3, 9), "rotary": pick(None, 100.0), "documents": pick((), (), (6, 10))}
    ranks = {"level": pick(0, 1, 2, 3), "recompute": pick(True, False), **pick({}, FUSION)}
    ranks |= {"pipeline_stages": 2, **pick(*IN_STAGES)} if stages == 2 else {}
    both = {"grad_accumulation_step": stages} if stages > 1 else {}
    return split, net, {"layers": 4 if "pipeline_interleave" in ranks else stages, **both}, ranks


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(100))
def test_drawn_networks_train_as_on_one_device(seed):
    """Tokens in the order of the placement on both sides: losses and parameters after two steps, float64. In stages
    each micro-batch has messages of its own, whose order is the schedule's.
    """
    split, net, both, ranks = drawn(seed)
    print(f"seed {seed}: {split}, {net}, {both}, {ranks}")
    check_equal(trained(net=net, **both), trained(split, net=net, **both, **ranks))


@pytest.mark.quick(1)
@pytest.mark.parametrize("split", [{"dp": 2, "cp": 2}, {"cp": 4, "ulysses": 2}, {"cp": 2, "mp": 2}], ids=str)
def test_processes_train_with_the_bits_of_the_simulator(split):
    net = {"placement": "zigzag", "ranks": 2, "dropout": 0.2}
    one, other = (trained(split, net=net, dtype=np.float32, executor=e) for e in ("simulator", "processes"))
    assert one[0] == other[0]
    for name, values in one[1].items():
        np.testing.assert_array_equal(values, other[1][name], err_msg=name)


# ---- what is sent ----


def sent(plan, phase, kinds):
    """Bytes that a rank sends in messages of these kinds, those of parameters left out."""
    program = plan.stages[0].program(phase)
    messages = [i for i in program if i.message in kinds and i.attr("parameter") is None]
    return sum(sent_bytes(plan, i) for i in messages), len(messages)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks"), [(8, 2, 4), (8, 1, 8), (4, 4, 4), (8, 4, 4), (8, 2, 8), (8, 4, 8), (8, 8, 2)]
)
def test_ulysses_sends_what_the_formula_says_however_few_key_heads_there_are(heads, kv_heads, ranks):
    """(2 h_q + 2 h_kv) b (s / P) e (P - 1) / P, with h_kv = P d where key heads are fewer than ranks: four messages, of
    q, k, v and the result. Backward the same. With 1 < kv_heads < P queries and results travelled twice.
    """
    net = {"heads": heads, "kv_heads": kv_heads}
    _, _, plan = trained({"cp": ranks, "ulysses": ranks}, net=net, steps=1)
    size, b, e = 16 // heads, 4, 8
    wanted = 2 * (heads + max(kv_heads, ranks)) * size * b * (TOKENS // ranks) * e * (ranks - 1) // ranks
    for phase in ("forward", "backward"):
        assert sent(plan, phase, ("all_to_all",)) == (wanted, 4)
        assert sent(plan, phase, ("exchange", "exchange_reduce", "all_gather", "reduce_scatter")) == (0, 0)


@pytest.mark.parametrize(("ulysses", "ring"), [(2, 2), (2, 4), (4, 2)])
def test_the_hybrid_sends_both_parts(ulysses, ring):
    """Exchange inside U: (2 h_q + 2 h_kv) b (s / P) e (U - 1) / U; ring among R: 2 (R - 1) b (s / R) (h_kv / U) e."""
    net = {"heads": 4, "kv_heads": 4}
    _, _, plan = trained({"cp": ulysses * ring, "ulysses": ulysses}, net=net, steps=1)
    b, e, h = 4, 8, 16
    exchanged = 4 * h * b * (TOKENS // (ulysses * ring)) * e * (ulysses - 1) // ulysses
    passed = 2 * (ring - 1) * b * (TOKENS // ring) * (h // ulysses) * e
    assert sent(plan, "forward", ("all_to_all",)) == (exchanged, 4)
    assert sent(plan, "forward", ("exchange",)) == (passed, 2 * (ring - 1))


@pytest.mark.parametrize("ranks", [2, 4])
def test_gathered_keys_send_as_many_bytes_as_a_ring(ranks):
    """2 (P - 1) (s / P) h_kv e forward, and as many of gradients backward; the gathered keys are kept until then."""
    _, _, plan = trained({"cp": ranks}, net={"method": "gather"}, steps=1)
    wanted = 2 * (ranks - 1) * 4 * (TOKENS // ranks) * 8 * 8
    assert sent(plan, "forward", ("all_gather",)) == (wanted, 2)
    assert sent(plan, "backward", ("reduce_scatter",)) == (wanted, 2)


@pytest.mark.parametrize("mp", [2, 4])
def test_a_sequence_split_by_mp_sends_in_two_messages_what_sums_send_in_one(mp):
    """Before qkv and the MLP an all_gather, behind them a reduce_scatter: (mp - 1) / mp of b (s / P) h numbers each."""
    _, _, plan = trained({"cp": 2, "mp": mp, "sequence": True}, net={"placement": "zigzag", "ranks": 2}, steps=1)
    each = (mp - 1) * 4 * (TOKENS // 2) * 16 * 8 // mp
    for phase in ("forward", "backward"):
        assert sent(plan, phase, ("all_gather", "reduce_scatter")) == (4 * each, 4)


# ---- refusals ----

test_what_context_parallel_refuses = refused(
    (lambda: context_parallel(ContextGPT(8, heads=4, kv_heads=2), cp=2, ulysses=4), StrategyError, "divides cp"),
    (lambda: context_parallel(ContextGPT(8, 48, heads=6), cp=4, ulysses=4), StrategyError, "6 heads that read 6"),
    (lambda: context_parallel(ContextGPT(8, heads=4, kv_heads=1), cp=8, ulysses=8), StrategyError, "divides the heads"),
    (lambda: context_parallel(GPT(8), cp=2), ArgumentError, "A ContextGPT"),
    (lambda: placed(IDS[:, :12], placement="zigzag", ranks=4), LayoutError, "A multiple of 8 = 2 P"),
    (lambda: placed(IDS[:, :10], placement="striped", ranks=4), LayoutError, "A multiple of 4 = P"),
    (lambda: nn.ContextParallelAttention(16, 4, 3), ArgumentError, "kv_heads divides heads"),
)


def test_tokens_that_the_ranks_cannot_share_are_refused_at_compile():
    ids = IDS[:, :15]
    model, loss = ContextGPT(VOCABULARY, hidden=16), nn.CrossEntropyLoss()
    context_parallel(model, loss, cp=2)
    with pytest.raises(StrategyError, match="15 elements"):
        compile(model, ids, ids, loss=loss, device_num=2, dataset_strategy="full_batch")
