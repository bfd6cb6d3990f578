"""Who answers the rows of `five_d.json`: a function for each family, which calls public names only.

    ask("cp_index", placement="zigzag", n=8, P=2, rank=0)       [0, 1, 6, 7]

A function takes the inputs of a row by name and returns what the row's `expected` holds: a number, a list, or a dict
of them. Two families say only in their question what is asked (all parameters or the active ones, which part): these
take it, too, and `ask_row` gives it. Families stand in alphabetical order under their names; a name without a function
is not answered yet.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.cost import planner
from parallel_lab.cost.expert_placement import place_experts
from parallel_lab.layout.placements import Placement, VisibleKeys, attention_work
from parallel_lab.ops import expert_balance, expert_capacity, routing
from parallel_lab.ops.expert_rows import Dispatch, bytes_leaving, drops_of, permutation
from parallel_lab.run.rank_programs import ring_results

Answer = dict[str, Any]
Rows = list[list[float]]
ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("five_d.json").read_text(encoding="utf-8"))["cases"]
FAMILIES: dict[str, Callable[..., Any]] = {}


# what libraries call the same thing (section 8 and 9 of the sources: Megatron, MindFormers, DeepSpeed, GShard, ...)
SPELLINGS = {
    "order": {
        "choice_major": "kdrop gshard deepspeed",
        "token_major": "sdrop position",
        "weight": "weights probs probability megatron",
        "mindspore_v1": "mindspore",
    },
    "convention": {
        "switch": "switch_paper",
        "mesh_tf": "gshard mesh_tensorflow mesh_tf_v1",
        "megatron": "megatron_core",
        "mindspore": "mindspore_v1 mindformers mindformers_v1 mindspore_nn_transformer",
    },
    "router": {
        "softmax_topk": "softmax pre_softmax softmax_then_topk topk_of_softmax switch",
        "softmax_topk_norm": "softmax_norm softmax_topk_normalised softmax_topk_normalized softmax_topk_renorm "
        "normalised norm_topk_prob mixtral qwen3 gshard",
        "topk_softmax": "post_softmax softmax_post topk_then_softmax softmax_after_topk softmax_of_topk softmax_after",
        "sigmoid": "sigmoid_topk sigmoid_bias",
        "sigmoid_norm": "sigmoid_topk_norm sigmoid_bias_norm sigmoid_norm_bias deepseek_v3",
    },
    "recompute": {"attention": "selective", "full": "layer whole all"},
    "kind": {
        "norms": "norm",
        "mlp": "dense dense_mlp feed_forward",
        "router": "routers",
        "experts": "routed_experts expert",
        "shared_experts": "shared shared_expert",
        "embedding": "embeddings table table_of_tokens tokens",
    },
}


def spelled(what: str, name: str) -> str:
    """Our name of an option that a row may spell as another library does; a name that nobody has stays."""
    word = name.lower().replace(" ", "_").replace("-", "_")
    return next((ours for ours, others in SPELLINGS[what].items() if word in others.split()), word)


def family(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter a function under its own name."""
    FAMILIES[function.__name__] = function
    return function


def ask(name: str, **inputs: Any) -> Any:
    """The answer of a family to inputs. Raises KeyError for a family without a function."""
    return FAMILIES[name](**inputs)


def ask_row(row: dict[str, Any]) -> Any:
    """The answer to a row as it is recorded."""
    takes = inspect.signature(FAMILIES[row["family"]]).parameters
    question = {"question": row["question"]} if "question" in takes else {}
    return ask(row["family"], **row["inputs"], **question)


def agrees(answer: Any, expected: Any, tolerance: dict[str, Any]) -> bool:
    """Whether an answer is what a row expects: equal, or each number within `abs` or within `rel` (either will do)."""
    if isinstance(expected, dict):
        return set(answer) == set(expected) and all(agrees(answer[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, list):
        pairs = zip(answer, expected, strict=False)
        return len(answer) == len(expected) and all(agrees(mine, theirs, tolerance) for mine, theirs in pairs)
    if tolerance.get("exact") or not isinstance(expected, (int, float)):
        return answer == expected
    return math.isclose(answer, expected, rel_tol=tolerance.get("rel", 0.0), abs_tol=tolerance.get("abs", 0.0))


@family
def all_gather_cp_bytes(
    b: int, s: int, n_kv: int, d: int, P: int, bytes: int, gathered_kept: bool, gradient_bytes: int | None = None
) -> Answer:
    sent = planner.AttentionMessages(b, s, n_kv, d, P, number_bytes=bytes).gathered(
        kept=gathered_kept, gradient_bytes=gradient_bytes
    )
    return {
        "sent_forward": sent.forward_bytes,
        "sent_backward": sent.backward_bytes,
        "held_bytes_of_gathered": sent.held_bytes,
    }


@family
def balance_loss(logits: Rows, k: int, how: str, ranks: int) -> float:
    if "choice" in how or "mindspore" in how:
        return expert_balance.loss_per_choice(np.array(logits), k)
    scores = "sigmoid" if "sigmoid" in how else "softmax"
    of_ranks = any(word in how for word in ("mean", "local", "per_rank", "mindformers"))
    return expert_balance.balance_loss(np.array(logits), k, scores, parts=ranks if of_ranks else 1)


@family
def bias_update(load: list[int], rate: float, centred: bool = False) -> list[float]:
    return expert_balance.bias_change(np.array(load), rate, centred=centred).tolist()


@family
def capacity(tokens: int, experts: int, k: int, factor: float, convention: str, **further: int) -> int | None:
    further = {"minimum" if name == "min_capacity" else name: value for name, value in further.items()}
    if convention == "mesh_tf_v2":
        convention, further = "mesh_tf", {"minimum": 4, **further}
    return expert_capacity.capacity(tokens, experts, k, factor, spelled("convention", convention), **further)


@family
def cp_index(placement: str, n: int, P: int, rank: int) -> list[int]:
    return Placement(placement, n, P).positions(rank).tolist()


@family
def cp_loss_scale(cp: int, dp: int, valid_tokens: list[list[int]]) -> Answer:
    means = planner.loss_means(valid_tokens)
    return {
        "right": means.right,
        "mean_of_means": means.mean_of_means,
        "factor_of_sum_over_sample_averaged": means.sample_sums_averaged_factor,
    }


@family
def cp_masked_share(P: int, c: int) -> float:
    return float(attention_work(Placement.of_rank_tokens("contiguous", c, P)).computed_share)


@family
def cp_rank_work(placement: str, n: int, P: int) -> Answer:
    work = attention_work(Placement(placement, n, P))
    return {"per_rank": [*work.per_rank], "longest_per_step": [*work.longest_per_step], "time": work.time}


@family
def cp_useful_share(placement: str, P: int, c: int) -> Answer:
    share = attention_work(Placement.of_rank_tokens(placement, c, P)).useful_share
    return {"numerator": share.numerator, "denominator": share.denominator, "share": float(share)}


@family
def dispatch_bytes(tokens: int, h: int, k: int, experts: int, ep: int, how: str) -> float:
    row, copies = how.split("_", 1)
    each_choice = any(word in copies for word in ("rows", "choice"))
    return planner.dispatch_bytes(tokens, h, experts, k, ep, row=row, copies="choice" if each_choice else "rank")


@family
def dispatch_splits(
    ep: int, k: int, order: str, capacity: int, h: int, bytes: int, logits_sets: dict[str, Rows]
) -> Answer:
    logits = np.stack([np.array(logits_sets["abc"[r % 3]]) + 0.01 * r for r in range(ep)])
    dropless = order == "dropless"
    made = Dispatch.of_logits(logits, k, *(() if dropless else (capacity, spelled("order", order))))
    return {
        "input_splits": made.sent.tolist(),
        "output_splits": made.sent.T.tolist(),
        "busiest_over_mean": made.busiest_over_mean,
        "bytes_leaving_rank": bytes_leaving(made.sent, h * bytes),
    }


@family
def distinct_places(experts: int, k: int, places: int) -> float:
    return planner.different_places(experts, k, places)


@family
def document_balance(documents: list[int], P: int, placement: str) -> Answer:
    kind = "per_document" if "document" in placement else "zigzag" if "zigzag" in placement else placement
    work = attention_work(Placement.packed(kind, documents, P), VisibleKeys(documents=documents))
    over_mean = float(work.longest_over_mean)
    return {"pairs": [*work.per_rank], "max_over_mean": over_mean, "share": float(work.useful_share)}


@family
def drops(logits: Rows, k: int, capacity: int, order: str) -> Answer:
    rows = np.array(logits)
    made = Dispatch.of_logits(rows[None], k, capacity, spelled("order", order))
    return drops_of(made.experts[0], made.kept[0], rows.shape[1])


@family
def eplb(load: list[float], replicas: int, devices: int, **further: int) -> Answer:
    placed = place_experts(load, replicas, devices, **further)
    return {"copies": list(placed.copies), "max_over_mean": placed.max_over_mean, "before": placed.before}


@family
def flash_sp_messages(P: int, rank: int, b: int, c: int, n_q: int, n_kv: int, d: int) -> Answer:
    shape = planner.AttentionMessages.of_rank_tokens(b, c, P, heads=n_q, kv_heads=n_kv, head_size=d)
    sent = shape.balanced_ring(rank)
    return {
        "kv_halves": sent.kv_halves,
        "queries": sent.queries,
        "results": sent.results,
        "sent_bytes": sent.sent_bytes,
        "blocks_of_c_x_c/2": sent.half_blocks,
    }


@family
def flops_per_token(model: str, s: int, causal: bool) -> int:
    return planner.get_decoder(model).flops_per_token(s, causal=causal)


@family
def gates(logits: Rows, k: int, router: str, bias: list[float] | None = None, **further: Any) -> Answer:
    own = None if bias is None else np.array(bias)
    scales = ("scaling", "route_scale", "routed_scaling_factor")
    further = {"scale" if name in scales else name: value for name, value in further.items()}
    if router == "deepseek_v3":
        further = {"scale": 2.5, **further}
    experts, weights = routing.choose(np.array(logits), k, spelled("router", router), bias=own, **further)
    return {"experts": experts.tolist(), "weights": weights.tolist()}


@family
def gradient_groups(world: int, tp: int, cp: int, pp: int, ep: int, etp: int) -> Answer:
    degrees = planner.Degrees(world, tp, cp, pp, ep, etp)
    rule = degrees.gradients
    return {
        "dp": degrees.data,
        "dense_reduce_group": rule.dense_group,
        "expert_reduce_group": rule.expert_group,
        "divisor": rule.divisor,
        "expert_factor_if_divided_by_own_group": rule.expert_factor_if_divided_by_own_group,
        "dense_factor_if_cp_forgotten": rule.dense_factor_if_context_forgotten,
        "expert_prescale_if_reduce_averages": rule.expert_prescale,
    }


@family
def group_limited(
    a: float, tokens: int, experts: int, k: int, groups: int, group_top: int, router: str, **further: Any
) -> Answer:
    logits = 1.5 * np.sin(a * (np.arange(tokens * experts) + 1)).reshape(tokens, experts)
    return gates(logits.tolist(), k, router, groups=groups, best_groups=group_top, **further)


@family
def head_tail(b: int, s: int, n_q: int, d: int, P: int, rank: int, bytes: int) -> Answer:
    exchanged, contiguous = (attention_work(Placement(kind, s, P)) for kind in ("head_tail", "contiguous"))
    return {
        "sent_bytes": planner.AttentionMessages(b, s, n_q, d, P, number_bytes=bytes).head_tail_bytes(rank),
        "pairs": exchanged.per_rank[rank],
        "pairs_without": contiguous.per_rank[rank],
    }


@family
def layer_activations(model: str, b: int, s: int, t: int, cp: int, **kept: Any) -> float:
    return planner.get_decoder(model).layer_activation_bytes(b, s, t, cp, **kept)


@family
def measured_flops_per_token(model: str, s: int, tokens_per_s: float, tflops: float) -> Answer:
    rate = planner.get_decoder(model).rate(s, tokens_per_s=tokens_per_s, tflops_per_s=tflops)
    return {"published": rate.measured_flops_per_token, "formula_over_published": rate.formula_over_measured}


@family
def mesh_groups(axes_fastest_first: list[tuple[str, int]], axis: str) -> list[list[int]]:
    return [list(group) for group in planner.axis_groups(axes_fastest_first, axis)]


@family
def mfu(model: str, s: int, tokens_per_s: float | None, tflops: float | None, peak_tflops: float) -> Answer:
    rate = planner.get_decoder(model).rate(
        s, tokens_per_s=tokens_per_s, tflops_per_s=tflops, peak_tflops_per_s=peak_tflops
    )
    return {"mfu": rate.utilization, "tokens_per_s": rate.tokens_per_s}


@family
def overlap(flops_per_s: float, bytes_per_s: float, n_q: int, n_kv: int, bytes: int, **pass_: str) -> float:
    return planner.least_hidden_tokens(flops_per_s, bytes_per_s, n_q, n_kv, bytes, direction=pass_["pass"])


@family
def padded_exchange(tokens: int, h: int, experts: int, k: int, factor: float, ep: int, mp: int, bytes: int) -> Answer:
    sent = planner.padded_exchange(tokens, h, experts, k, ep, factor, tensor=mp, number_bytes=bytes)
    return {
        "capacity": sent.capacity,
        "sent_bytes": sent.sent_bytes,
        "sent_bytes_cut": sent.cut_bytes,
        "padding_share": sent.padding_share,
    }


@family
def parameter_parts(question: str, **shape: Any) -> int:
    kind = question.rsplit(": ", 1)[-1]
    return _decoder(**shape).part(spelled("kind", kind))


@family
def parameters(question: str = "", **shape: Any) -> int:
    decoder = _decoder(**shape)
    return decoder.active_parameters if "(active;" in question else decoder.parameters


def _decoder(
    model: str, h: int, layers: int, n_q: int, vocab: int, mla: dict[str, int] | None = None, **more: Any
) -> planner.Decoder:
    latent = planner.LatentAttention(**mla) if mla else None
    return planner.Decoder(
        model, h, layers, n_q, vocab, latent=latent, **{_FIELDS.get(key, key): more[key] for key in more}
    )


_FIELDS = {"n_kv": "kv_heads", "d": "head_size", "f": "mlp_width", "k": "chosen"}
_FIELDS |= {"f_expert": "expert_width", "shared": "shared_experts"}


@family
def permute(experts: list[list[int]], order: str) -> Answer:
    token, choice, row_of_flat = permutation(np.array(experts), order)
    return {"token": token.tolist(), "choice": choice.tolist(), "row_of_flat": row_of_flat.tolist()}


@family
def rank_states(model: str, world: int, tp: int, cp: int, pp: int, ep: int, etp: int, level: int) -> Answer:
    states = planner.Degrees(world, tp, cp, pp, ep, etp).states(planner.get_decoder(model), level)
    return {
        "dense_parameters": states.dense_parameters,
        "expert_parameters": states.expert_parameters,
        "bytes": states.size_bytes,
    }


# ---- ring_backward ----


def wave(n: int, d: int, frequency: float) -> np.ndarray:
    """(n, d): sin(frequency (i + 1)) of element i in row-major order."""
    return np.sin(frequency * (np.arange(n * d) + 1)).reshape(n, d)


def _ring(placement: str, n: int, d: int, P: int, **how: Any) -> dict[str, np.ndarray]:
    q, k, v, g = (wave(n, d, frequency) for frequency in (0.7, 1.1, 1.3, 0.5))
    return ring_results(q, k, v, Placement(placement, n, P), **{"g": g, **how})


@family
def ring_backward(placement: str, n: int, d: int, P: int) -> Answer:
    found = _ring(placement, n, d, P)
    return {name: found[name].sum(1).tolist() for name in ("dq", "dk", "dv")}


@family
def ring_bytes(
    b: int, s: int, n_kv: int, d: int, P: int, bytes: int, gradient_bytes: int, gradients_start_at_home: bool
) -> Answer:
    shape = planner.AttentionMessages(b, s, n_kv, d, P, number_bytes=bytes)
    sent = shape.ring(gradient_bytes=gradient_bytes, start_at_home=gradients_start_at_home)
    return {
        "passes_forward": sent.forward,
        "sent_forward": sent.forward_bytes,
        "passes_of_gradients": sent.backward,
        "sent_backward": sent.backward_bytes,
    }


@family
def ring_forward(placement: str, n: int, d: int, P: int, rank: int, step: int) -> Answer:
    found, mine = _ring(placement, n, d, P, g=None, stop_after=step), Placement(placement, n, P).positions(rank)
    return {"lse": found["lse"][mine].tolist(), "out0": found["out"][mine, 0].tolist()}


@family
def ring_mistakes(mistake: str, n: int, d: int, P: int) -> Answer:
    right, wrong = (_ring("contiguous", n, d, P, mistake=which) for which in ("", mistake))
    if mistake == "mean_of_blocks":
        return {"largest_error": np.abs(wrong["out"] - right["out"]).max(), "last_row_out0": wrong["out"][-1, 0]}
    last_row = np.zeros((n, d))
    last_row[-1] = 1.0  # its gradient reaches a value by the weight that the last row gives it
    weights = _ring("contiguous", n, d, P, mistake=mistake, g=last_row)["dv"]
    return {
        "largest_error_dq": np.abs(wrong["dq"] - right["dq"]).max(),
        "norm_ratio_dv": np.linalg.norm(wrong["dv"]) / np.linalg.norm(right["dv"]),
        "sum_of_weights_of_last_row": weights[:, 0].sum(),
    }


@family
def seq_loss(sequences: list[Rows], k: int, scores: str) -> Answer:
    logits = np.array(sequences)
    each = expert_balance.sequence_losses(logits, k, scores)
    together = expert_balance.balance_loss(np.concatenate(logits), k, scores)
    return {"each": each.tolist(), "mean": each.mean(), "over_all_tokens": together}


@family
def sp_memory(model: str, b: int, s: int, h: int, heads: int, t: int, sequence_parallel: bool, recompute: str) -> float:
    layer = planner.Transformer(model, 1, h, heads, s)
    recomputed = spelled("recompute", recompute)
    return layer.layer_activation_bytes(b, t, sequence_parallel=sequence_parallel, recompute=recomputed)


@family
def sp_messages(b: int, s: int, h: int, t: int, bytes: int, column_inputs_gathered_again: bool) -> Answer:
    sent = planner.sequence_parallel_messages(b, s, h, t, bytes, gathered_again=column_inputs_gathered_again)
    return {
        "all_gather": sent.all_gather,
        "reduce_scatter": sent.reduce_scatter,
        "all_reduce": sent.all_reduce,
        "sent_bytes_per_rank": sent.sent_bytes,
        "tensor_parallel_alone_sent_bytes": sent.tensor_parallel_bytes,
    }


@family
def ulysses_bytes(
    b: int, s: int, n_q: int, n_kv: int, d: int, P: int, bytes: int, kv_heads_repeated_to_P_if_fewer: bool
) -> Answer:
    shape = planner.AttentionMessages(b, s, n_q, d, P, n_kv, bytes)
    sent = shape.exchanged(repeated=kv_heads_repeated_to_P_if_fewer)
    return {"exchanges_forward": sent.forward, "sent_bytes_forward": sent.forward_bytes, "kv_heads_sent": sent.kv_heads}


@family
def usp_bytes(b: int, s: int, n_q: int, n_kv: int, d: int, ulysses: int, ring: int, bytes: int) -> Answer:
    heads = {"heads": n_q, "kv_heads": n_kv, "head_size": d, "number_bytes": bytes}
    sent = planner.AttentionMessages.of_degrees(b, s, ulysses, ring, **heads).hybrid(ulysses)
    return {"exchange": sent.exchange_bytes, "ring": sent.ring_bytes, "sum": sent.sum_bytes}


@family
def window_ring(placement: str, P: int, c: int, window: int) -> Answer:
    work = attention_work(Placement.of_rank_tokens(placement, c, P), VisibleKeys(window=window))
    return {"steps_with_work": work.steps_with_work, "time": work.time, "share": float(work.useful_share)}


@family
def z_loss(logits: Rows) -> float:
    return expert_balance.z_loss(np.array(logits))
