"""Decoders by their shape: against the tensors of their checkpoints, listed, and against published totals and rates."""

from __future__ import annotations

import math

import pytest

from parallel_lab.base.errors import ArgumentError
from parallel_lab.cost.planner import DECODERS, Decoder, LatentAttention, get_decoder
from tests.crossed import each_of

# total of the released checkpoint, active parameters, 1e9 operations of a token: causal, with all scores, at so many
TABLE = {
    "llama3_8b": (8_030_261_248, None, 51.5, 57.9, 8192),
    "llama3_70b": (70_553_706_496, None, 449.2, 481.4, 8192),
    "llama3_405b": (405_853_388_800, None, 2524.0, 2625.4, 8192),
    "mixtral_8x7b": (46_702_792_704, 12_879_925_248, 79.7, 82.9, 4096),
    "mixtral_8x22b": (140_620_634_112, 39_152_031_744, 242.2, 250.6, 4096),
    "qwen3_30b_a3b": (30_532_122_624, 3_353_032_704, 23.1, 27.9, 4096),
    "qwen3_235b_a22b": (235_093_634_560, 22_190_763_520, 148.3, 167.3, 4096),
    "deepseek_v3": (671_026_419_200, 37_552_297_472, 250.4, 281.2, 4096),
}


@pytest.mark.parametrize("name", TABLE)
def test_totals_and_operations_are_the_published_ones(name):
    total, active, causal, full, tokens = TABLE[name]
    decoder = get_decoder(name)
    assert (decoder.parameters, decoder.active_parameters) == (total, active or total)
    assert round(decoder.flops_per_token(tokens) / 1e9, 1) == causal
    assert round(decoder.flops_per_token(tokens, causal=False) / 1e9, 1) == full


def tensors_of_qwen3_30b() -> dict[str, tuple[int, ...]]:
    """Shapes as the checkpoint stores them."""
    shapes = {"embed_tokens": (151936, 2048), "lm_head": (151936, 2048), "norm": (2048,)}
    for i in range(48):
        attention = {"q_proj": (4096, 2048), "k_proj": (512, 2048), "v_proj": (512, 2048), "o_proj": (2048, 4096)}
        attention |= {"q_norm": (128,), "k_norm": (128,)}
        norms = {"input_layernorm": (2048,), "post_attention_layernorm": (2048,), "mlp.gate": (128, 2048)}
        shapes |= {f"{i}.{key}": shape for key, shape in (attention | norms).items()}
        for e in range(128):
            ffn = {"gate_proj": (768, 2048), "up_proj": (768, 2048), "down_proj": (2048, 768)}
            shapes |= {f"{i}.{e}.{key}": shape for key, shape in ffn.items()}
    return shapes


def tensors_of_deepseek_v3() -> dict[str, tuple[int, ...]]:
    h, heads = 7168, 128
    shapes = {"embed_tokens": (129280, h), "lm_head": (129280, h), "norm": (h,)}
    for i in range(61):
        one = {"q_a_proj": (1536, h), "q_a_layernorm": (1536,), "q_b_proj": (heads * 192, 1536)}
        one |= {"kv_a_proj_with_mqa": (512 + 64, h), "kv_a_layernorm": (512,), "kv_b_proj": (heads * 256, 512)}
        one |= {"o_proj": (h, heads * 128), "input_layernorm": (h,), "post_attention_layernorm": (h,)}
        if i < 3:
            one |= {"gate": (18432, h), "up": (18432, h), "down": (h, 18432)}
        else:
            one |= {"router": (256, h), "e_score_correction_bias": (256,)}
            experts = {f"{e}": (3, 2048, h) for e in (*range(256), "shared")}
            one |= experts
        shapes |= {f"{i}.{key}": shape for key, shape in one.items()}
    return shapes


@pytest.mark.parametrize(
    ("name", "tensors"),
    [("qwen3_30b_a3b", tensors_of_qwen3_30b), ("deepseek_v3", tensors_of_deepseek_v3)],
    ids=["qwen3", "deepseek"],
)
def test_parameters_are_those_of_the_listed_tensors(name, tensors):
    shapes, decoder = tensors(), get_decoder(name)
    assert decoder.parameters == sum(map(math.prod, shapes.values())) == sum(decoder.parts.values())
    vectors = sum(shape[0] for key, shape in shapes.items() if len(shape) == 1 and "bias" not in key)
    assert decoder.part("norms") == vectors
    # each expert is (3, f, h) in one list and three matrices in the other
    kept = {key: s for key, s in shapes.items() if not (key.split(".")[1:2] or [""])[0].isdigit()}
    assert decoder.part("experts") == decoder.parameters - sum(map(math.prod, kept.values()))


def test_a_tied_head_is_used_and_not_counted_again():
    sizes = {"hidden": 8, "layers": 2, "heads": 2, "vocab_size": 100, "mlp_width": 16}
    own, tied = Decoder("own", **sizes), Decoder("tied", **sizes, tied=True)
    assert own.parameters - tied.parameters == 100 * 8
    assert own.flops_per_token(4) == tied.flops_per_token(4)


def test_half_the_scores_are_12_percent_of_8b_and_40_percent_of_405b():
    shares = [
        get_decoder(name).flops_per_token(s, causal=False) / get_decoder(name).flops_per_token(s)
        for name, s in (("llama3_8b", 8192), ("llama3_405b", 262144 // 2))
    ]
    assert round(shares[0], 3) == 1.125 and round(shares[1], 2) == 1.4


# tokens and 1e12 operations per second and device, printed together by NVIDIA (Megatron-Bridge, performance summary)
NVIDIA = [("llama3_8b", 8192, 14451, 744, 0.0012), ("llama3_405b", 8192, 311, 784, 0.0012)]
NVIDIA += [("qwen3_235b_a22b", 4096, 4916, 728, 0.0012), ("qwen3_30b_a3b", 4096, 5113, 118, 0.006)]
NVIDIA += [("deepseek_v3", 4096, 3139, 782, 0.006)]


@pytest.mark.parametrize(("name", "tokens", "rate", "tflops", "within"), NVIDIA)
def test_published_pairs_of_tokens_and_operations_agree_with_the_causal_count(name, tokens, rate, tflops, within):
    found = get_decoder(name).rate(tokens, tokens_per_s=rate, tflops_per_s=tflops, peak_tflops_per_s=989)
    assert found.formula_over_measured == pytest.approx(1, abs=within + 0.5 / tflops)
    assert found.utilization == tflops / 989


def test_torchtitan_counts_all_scores():
    found = get_decoder("llama3_8b").rate(8192, tokens_per_s=6667, peak_tflops_per_s=989, causal=False)
    assert round(100 * found.utilization, 1) == 39.0


# ---- what a layer keeps ----


def test_kept_bytes_of_a_llama_layer_are_those_of_its_listed_tensors():
    """70B: per token and layer, two bytes a number; the log-sum-exp in float32."""
    h, q, kv, f, heads = 8192, 64 * 128, 8 * 128, 28672, 64
    kept = {"x": h, "normed": h, "q": q, "k": kv, "v": kv, "result": q, "x2": h, "normed2": h, "gate": f, "up": f}
    token = 2 * (sum(kept.values()) + f) + 4 * heads
    decoder = get_decoder("llama3_70b")
    assert decoder.layer_activation_bytes(2, 4096, 8, 4) == 2 * 4096 / 32 * token
    again = token - 2 * (2 * h + f)
    assert decoder.layer_activation_bytes(1, 8, 2, recompute="norms_and_product") == 4 * again
    assert decoder.layer_activation_bytes(1, 8, 2, recompute="full") == 4 * 2 * h


def test_kept_bytes_of_layers_with_experts():
    h, f, heads = 7168, 2048, 128
    latent = 2 * 1536 + 2 * 512 + 64 + heads * (2 * 192 + 2 * 128)
    rows = 8 * (h + 3 * f) + 3 * f  # k rows with their own input, and the shared expert
    v3 = get_decoder("deepseek_v3")
    assert v3.layer_activation_bytes(1, 16, 4) == 4 * (2 * (4 * h + latent + rows) + 4 * (heads + 256))
    dense = 2 * (4 * h + latent + 3 * 18432) + 4 * heads
    assert v3.layer_activation_bytes(1, 16, 4, dense=True) == 4 * dense
    more = v3.layer_activation_bytes(1, 16, rows_per_token=12, weighted_after=True)
    assert more - v3.layer_activation_bytes(1, 16) == 16 * 2 * (4 * (h + 3 * f) + 12 * h)


# ---- refusals ----


@each_of(
    ("changed", "told"),
    ({"kv_heads": 3}, "kv_heads=3 of heads=4.*divisor"),
    ({"experts": 4, "expert_width": 8, "chosen": 5}, "chosen=5 of 4 experts"),
    ({"experts": 4, "expert_width": 8}, "chosen=0 of 4 experts"),
    ({"experts": 4, "chosen": 1}, "expert_width=0"),
    ({"mlp_width": 0}, "mlp_width=0"),
    ({"experts": 4, "chosen": 1, "expert_width": 8, "dense_layers": 3}, "dense_layers=3 of 2"),
    ({"latent": (1, 2, 3, 4, 5)}, "LatentAttention"),
    ({"layers": 0}, "layers=0"),
    ({"heads": 3}, "heads=3 of hidden=8"),
)
def test_shapes_that_contradict_themselves_are_refused(changed, told):
    sizes = {"hidden": 8, "layers": 2, "heads": 4, "vocab_size": 10, "mlp_width": 16} | changed
    with pytest.raises(ArgumentError, match=told):
        Decoder("own", **sizes)


def test_names_and_kinds_are_checked():
    with pytest.raises(ArgumentError, match="nearest is 'llama3_70b'"):
        get_decoder("llama3_70")
    with pytest.raises(ArgumentError, match="One of 'attention'"):
        DECODERS[0].part("attentions")
    with pytest.raises(ArgumentError, match="no rate"):
        DECODERS[0].rate(8)
    with pytest.raises(ArgumentError, match="kv_rank=0"):
        LatentAttention(1, 0, 1, 1, 1)
