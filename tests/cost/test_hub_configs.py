"""config.json of model hubs: sizes as released, against known totals; files that say what cannot be."""

from __future__ import annotations

import json

import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.cost.planner import decoder_of_config, get_decoder, read_decoder
from parallel_lab.cost.planner.hub_configs import ARCHITECTURES
from tests.refusals import refused

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}
LLAMA |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False}
LLAMA |= {"torch_dtype": "bfloat16", "rope_scaling": {"factor": 8.0}, "eos_token_id": [128001, 128009]}
QWEN3 = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
QWEN3 |= {"architectures": ["Qwen3MoeForCausalLM"], "head_dim": 128, "moe_intermediate_size": 768, "vocab_size": 151936}
QWEN3 |= {"num_experts": 128, "num_experts_per_tok": 8, "intermediate_size": 6144, "mlp_only_layers": []}
V3 = {"architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61, "vocab_size": 129280}
V3 |= {"num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432, "q_lora_rank": 1536}
V3 |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256}
V3 |= {"n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 32000,
}
MIXTRAL |= {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 8}
QWEN32 = {"architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 25600, "vocab_size": 151936}
QWEN32 |= {"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 1600, "n_layer": 48, "n_head": 25, "vocab_size": 50257}
QWEN25 = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064}
QWEN25 |= {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False}
# parameters as the released checkpoints have them
RELEASED = [(LLAMA, 8_030_261_248), (QWEN3, 30_532_122_624), (V3, 671_026_419_200), (MIXTRAL, 46_702_792_704)]
RELEASED += [(QWEN32, 32_762_123_264), (GPT2, 1_557_611_200), (QWEN25, 7_615_616_512)]


@pytest.mark.parametrize(("config", "total"), RELEASED, ids=[c["architectures"][0] for c, _ in RELEASED])
def test_parameters_are_those_of_the_released_checkpoint(config, total):
    assert decoder_of_config(config).parameters == total


@pytest.mark.parametrize(("name", "total"), [("llama2_7b", 6_738_415_616), ("llama2_70b", 68_976_648_192)])
def test_known_decoders_have_their_released_totals(name, total):
    assert get_decoder(name).parameters == total


def test_a_file_is_named_after_its_folder(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert read_decoder(folder / "config.json").name == "tiny"


test_files_that_say_what_cannot_be_are_refused_with_what_is_allowed = refused(
    ({"architectures": ["LlamaForCausalLm"]}, "nearest is 'LlamaForCausalLM'"),
    ({"architectures": ["BertModel"]}, "GPT2LMHeadModel"),
    ({"architectures": "LlamaForCausalLM"}, "A list of one"),
    ({"architectures": None}, "A list of one"),
    ({"hidden_size": None}, "hidden_size missing"),
    ({"hidden_size": -4096}, "hidden_size=-4096"),
    ({"hidden_size": 10**30}, "hidden_size"),
    ({"hidden_size": "4096"}, "hidden_size"),
    ({"num_key_value_heads": 5}, "kv_heads=5"),
    ({"attention_bias": True}, "attention_bias"),
    ({"tie_word_embeddings": 2}, "tie_word_embeddings"),
    ({"num_hidden_layers": 10**6}, "num_hidden_layers=1000000. An int from 1 to 10000"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000. An int from 1 to 10000"),
    ({"vocab_size": 10**9}, "vocab_size=1000000000. An int from 1 to 10000000"),
    ({"num_attention_heads": 24}, "heads=24 of hidden=4096. Heads that divide hidden"),
    ({"num_attention_heads": 8192}, "heads=8192 of hidden=4096. Heads that divide hidden"),
    by=lambda changed: decoder_of_config({**LLAMA, **changed}),
)


def test_heads_need_not_divide_the_width_where_their_size_is_given():
    """Attention then has 2 h n_q d + 2 h n_kv d weights."""
    assert decoder_of_config({**LLAMA, "num_attention_heads": 24, "head_dim": 7}).part("attention") == (
        32 * 2 * 4096 * (24 + 8) * 7
    )
    with pytest.raises(ParallelLabError, match="heads=7 of hidden=768"):
        decoder_of_config({**GPT2, "n_embd": 768, "n_head": 7})


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"a": NaN}', b"[" * 100_000, bytes(2 << 20), b"\xff"])
def test_hostile_files_end_in_an_error(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ParallelLabError):
        read_decoder(path)


def test_unusual_experts_are_refused():
    with pytest.raises(ParallelLabError, match="decoder_sparse_step=2"):
        decoder_of_config({**QWEN3, "decoder_sparse_step": 2})
    assert len(ARCHITECTURES) >= 9
