"""Decoders from a model hub's config.json, by the names that Hugging Face's transformers gives their sizes.

    read_decoder("config.json")
    decoder_of_config({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, ...})

Architectures that are read: ARCHITECTURES. What a file leaves out has the default of its architecture; what it says and
is not about sizes (dtype, rope, token numbers) is left aside. A file that says what cannot be ends in an ArgumentError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...base.checks import Check, choice, flag, integer
from ...base.errors import ArgumentError, ArgumentTypeError, shorten
from ...base.plain_json import read_json
from .decoders import Decoder, LatentAttention

LARGEST_FILE = 1 << 20  # bytes; one says a few pages
# far above what anybody trains; all that is computed of them stays within 64 bits
_SIZE, _NATURAL, _ROWS = integer(1, 10**6), integer(0, 10**6), integer(1, 10**7)
_COUNT, _SOME = integer(1, 10_000), integer(0, 10_000)  # of layers, heads, experts


class _Sizes:
    """A file's fields, checked when they are read.  where: in words, for errors"""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data, self.where = data, where

    def __call__(self, *names: str, check: Check = _SIZE, default: Any = None) -> Any:
        """The first of these fields that is not null. Raises ArgumentError where none is, without a default."""
        for name in names:
            if self.data.get(name) is not None:
                return check(self.where, name, self.data[name])
        if default is None:
            what = f"{' or '.join(names)} missing"
            raise ArgumentError(what, where=self.where, allowed="A config.json as model hubs have it")
        return default


def _common(of: _Sizes) -> dict[str, Any]:
    sizes = {"hidden": of("hidden_size"), "layers": of("num_hidden_layers", check=_COUNT)}
    sizes["heads"] = of("num_attention_heads", check=_COUNT)
    kv = of("num_key_value_heads", check=_COUNT, default=sizes["heads"])
    tied = of("tie_word_embeddings", check=flag, default=False)
    return {
        **sizes,
        "vocab_size": of("vocab_size", check=_ROWS),
        "kv_heads": kv,
        "head_size": of("head_dim", default=0),
        "tied": tied,
    }


def _llama(of: _Sizes) -> dict[str, Any]:
    more = {"attention_bias": of("attention_bias", check=flag, default=False)}
    more |= {"mlp_bias": of("mlp_bias", check=flag, default=False)}
    if more["attention_bias"] or more["mlp_bias"]:
        raise ArgumentError(f"{more}", where=of.where, allowed="attention_bias and mlp_bias False")
    return {**_common(of), "mlp_width": of("intermediate_size")}


def _mixtral(of: _Sizes) -> dict[str, Any]:
    experts = {"experts": of("num_local_experts", check=_COUNT, default=8)}
    experts["chosen"] = of("num_experts_per_tok", check=_COUNT, default=2)
    return {**_common(of), **experts, "expert_width": of("intermediate_size")}


def _qwen2(of: _Sizes) -> dict[str, Any]:
    return {**_common(of), "mlp_width": of("intermediate_size"), "qkv_bias": True}


def _qwen3(of: _Sizes) -> dict[str, Any]:
    return {
        **_common(of),
        "head_size": of("head_dim", default=128),
        "qk_norm": True,
        "mlp_width": of("intermediate_size"),
    }


def _qwen3_moe(of: _Sizes) -> dict[str, Any]:
    step, plain = of("decoder_sparse_step", default=1), of.data.get("mlp_only_layers") or []
    if step != 1 or plain:
        raise ArgumentError(
            f"decoder_sparse_step={step}, mlp_only_layers={shorten(plain)}", where=of.where, allowed="1, []"
        )
    experts = {"experts": of("num_experts", check=_COUNT, default=128)}
    experts["chosen"] = of("num_experts_per_tok", check=_COUNT, default=8)
    widths = {"expert_width": of("moe_intermediate_size"), "head_size": of("head_dim", default=128)}
    return {**_common(of), **experts, **widths, "qk_norm": True}


def _deepseek(of: _Sizes, *, bias: bool) -> dict[str, Any]:
    ranks = {"q_rank": of("q_lora_rank", check=_NATURAL, default=0), "kv_rank": of("kv_lora_rank")}
    each = {"nope": of("qk_nope_head_dim"), "rope": of("qk_rope_head_dim"), "v": of("v_head_dim")}
    common = {**_common(of), "kv_heads": 0, "head_size": 0, "mlp_width": of("intermediate_size")}
    if of("moe_layer_freq", default=1) != 1:
        raise ArgumentError(f"moe_layer_freq={of('moe_layer_freq')}", where=of.where, allowed="1")
    experts = of("n_routed_experts", check=_SOME, default=0)
    if experts:
        common |= {"experts": experts, "chosen": of("num_experts_per_tok", check=_COUNT)}
        common |= {"expert_width": of("moe_intermediate_size"), "router_bias": bias}
        common |= {"shared_experts": of("n_shared_experts", check=_SOME, default=0)}
        common |= {"dense_layers": of("first_k_dense_replace", check=_SOME, default=0)}
    return {**common, "latent": LatentAttention(**ranks, **each)}


def _gpt2(of: _Sizes) -> dict[str, Any]:
    hidden = of("n_embd", "hidden_size")
    sizes = {
        "hidden": hidden,
        "layers": of("n_layer", "num_hidden_layers", check=_COUNT),
        "heads": of("n_head", "num_attention_heads", check=_COUNT),
    }
    widths = {
        "mlp_width": of("n_inner", default=4 * hidden),
        "positions": of("n_positions", "n_ctx", check=_ROWS, default=1024),
    }
    kinds = dict.fromkeys(("biases", "norm_biases", "dropout"), True)
    tied = of("tie_word_embeddings", check=flag, default=True)
    return {**sizes, **widths, **kinds, "vocab_size": of("vocab_size", check=_ROWS), "gated": False, "tied": tied}


ARCHITECTURES: dict[str, Callable[[_Sizes], dict[str, Any]]] = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM"), _llama),
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "DeepseekV2ForCausalLM": lambda of: _deepseek(of, bias=False),
    "DeepseekV3ForCausalLM": lambda of: _deepseek(of, bias=True),
    "GPT2LMHeadModel": _gpt2,
}


def decoder_of_config(data: Any, name: str = "model") -> Decoder:
    """The decoder that a config.json describes. Raises ArgumentError, with what is allowed, for anything else."""
    where = f"model file of {shorten(name)}"
    if not isinstance(data, Mapping):
        raise ArgumentTypeError(shorten(data), where=where, allowed="An object")
    listed = data.get("architectures")
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], str):
        allowed = f"A list of one of {', '.join(ARCHITECTURES)}"
        raise ArgumentError(f"architectures={shorten(listed)}", where=where, allowed=allowed)
    read = ARCHITECTURES[choice(*ARCHITECTURES)(where, "architecture", listed[0])]
    return Decoder(name, **read(_Sizes(data, where)), source=f"a file: {listed[0]}")


def read_decoder(path: str | Path) -> Decoder:
    """The decoder of a file, named after its folder. Raises ArgumentError for a file that cannot be read, or says what
    cannot be.
    """
    where = f"model file {str(path)!r}"
    data = read_json(
        path, ArgumentError, where=where, hint="A config.json as model hubs have it", max_bytes=LARGEST_FILE
    )
    whole = Path(path)
    name = whole.parent.name if whole.name == "config.json" and whole.parent.name else whole.stem
    return decoder_of_config(data, name)
