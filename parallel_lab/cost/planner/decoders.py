"""Today's decoders by their shape: parameters by kind, operations of a token, bytes that a layer keeps.

    >>> v3 = get_decoder("deepseek_v3")
    >>> v3.parameters, v3.active_parameters, v3.flops_per_token(4096)
    (671026419200, 37552297472, 250449976320)

`models.py` has the GPTs of the papers on pipeline and tensor parallelism. Since then a layer has become

    attention     2 h h_q + 2 h h_kv            grouped heads: h_q = n_q d, h_kv = n_kv d; fewer heads of keys, values
      latent      h q + q n_q (n + r) + h (kv + r) + kv n_q (n + v) + n_q v h          DeepSeek's, of ranks q and kv
    MLP           3 h f                         SwiGLU: gate, up, down
    experts       3 h f_e each, E of them, k used by a token; shared ones are used by all; a router h E, and its bias E
    norms         2 h, and 2 d where q and k of each head are normed, q + kv where they are latent

and the network a table of V h, a head of V h (none where they are tied) and a last norm. Operations of a token, forward
and backward: 6 for each element of a matrix that it meets (head and router, not the table), and in attention 6 L s for
the widths of the scores and of the values; half of them under a causal mask. Publications differ in that half: 12 % for
8 billion parameters at 8,192 tokens, 40 % for 405 billion at 131,072. Say which you use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...base.checks import Check, checked, choice, flag, instance, integer, number
from ...base.errors import ArgumentError

_SIZE, _NATURAL = integer(1, 10**12), integer(0, 10**12)
_COUNT = integer(1, 10**9)
FLOAT32, BFLOAT16 = 4, 2  # bytes of a number
PARTS = ("attention", "norms", "mlp", "router", "experts", "shared_experts", "embedding", "head", "biases", "extra")
KEPT = {
    "none": "everything is kept",
    "attention": "attention is computed again, from queries, keys and values; nothing else with flash attention",
    "norms_and_product": "results of norms and the product of gate and up are computed again",
    "alternate": "results of every second product, and attention's, are kept (torchtitan's selective)",
    "full": "the layer's input is kept, the rest computed again",
}


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-head latent attention (DeepSeek-V2): q_rank and kv_rank of the products that squeeze the tokens
    (q_rank 0: queries are not squeezed), and per head nope (numbers without a position), rope (with one; keys share
    it), v (of a value).
    """

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    v: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            (_NATURAL if name == "q_rank" else _SIZE)("LatentAttention", name, value)


@dataclass(frozen=True)
class Decoder:
    """A decoder: SwiGLU layers with RMSNorm and no bias, unless it is said; some or all layers may have experts.

    hidden, layers, vocab_size   h, L, V
    heads, kv_heads, head_size   n_q, n_kv, d; 0: as many as heads, hidden / heads, which must be whole
    mlp_width                    f of layers without experts
    experts, chosen              E, k; 0: no experts
    expert_width                 f_e;  shared_experts: experts of that width that every token meets
    dense_layers                 first layers, without experts
    latent                       instead of grouped heads (kv_heads and head_size mean nothing then)
    qk_norm, router_bias, tied   norms of q and k of each head; a selection bias per expert; the head is the table
    gated                        SwiGLU; False: an MLP of two matrices
    biases, qkv_bias             of all products; of those of queries, keys and values
    norm_biases                  LayerNorm with a shift, as GPT has it
    dropout                      behind attention and MLP, and on the scores: masks are kept
    positions                    rows of a learned table of positions
    extra_tokens                 modules that predict one more token each (DeepSeek-V3): a layer, a product, the head
    source                       where the sizes come from

    Raises ArgumentError where sizes contradict each other.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    vocab_size: int
    kv_heads: int = 0
    head_size: int = 0
    mlp_width: int = 0
    experts: int = 0
    chosen: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    latent: LatentAttention | None = None
    qk_norm: bool = False
    router_bias: bool = False
    tied: bool = False
    gated: bool = True
    biases: bool = False
    qkv_bias: bool = False
    norm_biases: bool = False
    dropout: bool = False
    positions: int = 0
    extra_tokens: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        where = f"Decoder {self.name!r}"
        for name, check in _FIELDS.items():
            check(where, name, getattr(self, name))
        if not self.head_size and self.latent is None and self.hidden % self.heads:
            allowed = "Heads that divide hidden, or a head size of their own (head_dim of a file)"
            raise ArgumentError(f"heads={self.heads} of hidden={self.hidden}", where=where, allowed=allowed)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_size", self.head_size or self.hidden // self.heads)
        dense = self.dense_layers if self.experts else self.layers
        some = bool(self.experts)
        rules = (
            (self.heads % self.kv_heads == 0, f"kv_heads={self.kv_heads} of heads={self.heads}", "A divisor of heads"),
            (
                some <= self.chosen <= self.experts,
                f"chosen={self.chosen} of {self.experts} experts",
                "1 to all of them",
            ),
            (some == bool(self.expert_width), f"expert_width={self.expert_width}", "At least 1 with experts, or 0"),
            (self.dense_layers <= self.layers, f"dense_layers={self.dense_layers} of {self.layers}", "At most layers"),
            (self.mlp_width or not dense, "mlp_width=0", "A width: there are layers without experts"),
        )
        for holds, what, allowed in rules:
            if not holds:
                raise ArgumentError(what, where=where, allowed=allowed)

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def score_width(self) -> int:
        """Numbers of the queries of a token: n_q d; latent: n_q (nope + rope)."""
        each = self.latent.nope + self.latent.rope if self.latent else self.head_size
        return self.heads * each

    @property
    def value_width(self) -> int:
        """Numbers of attention's result of a token: n_q d; latent: n_q v."""
        return self.heads * (self.latent.v if self.latent else self.head_size)

    @cached_property
    def parts(self) -> dict[str, int]:
        """{kind: parameters in the whole network}; PARTS lists the kinds."""
        h, dense = self.hidden, self.layers - self.expert_layers
        expert, shift = self.products * h * self.expert_width, 1 + self.norm_biases
        of_qkv = self.score_width + 2 * self.kv_width
        bias = self.layers * (of_qkv * (self.biases or self.qkv_bias) + self.biases * h)
        bias += self.biases * dense * ((self.products - 1) * self.mlp_width + h)
        router = self.experts * (h + self.router_bias)
        extra = self._attention() + self._norms() + 2 * h * h + 3 * h
        extra += router + (self.experts + self.shared_experts) * expert if self.experts else self._mlp()
        return {
            "attention": self.layers * self._attention(),
            "norms": self.layers * self._norms() + h * shift,
            "mlp": dense * self._mlp(),
            "router": self.expert_layers * router,
            "experts": self.expert_layers * self.experts * expert,
            "shared_experts": self.expert_layers * self.shared_experts * expert,
            "embedding": (self.vocab_size + self.positions) * h,
            "head": 0 if self.tied else self.vocab_size * h,
            "biases": bias,
            "extra": self.extra_tokens * extra,
        }

    @property
    def products(self) -> int:
        """Matrices of an MLP: 3 of SwiGLU, 2 otherwise."""
        return 3 if self.gated else 2

    @checked("Decoder.part", kind=choice(*PARTS))
    def part(self, kind: str) -> int:
        """Parameters of one kind, in all layers."""
        return self.parts[kind]

    @property
    def parameters(self) -> int:
        """All of them, selection biases included."""
        return sum(self.parts.values())

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: everything but the experts that it does not choose. The table counts."""
        return self.parameters - self._unused

    @property
    def matrix_parameters(self) -> int:
        """Elements that one token is multiplied with: head and router (its bias counts), not the table, no norms."""
        kinds = ("attention", "mlp", "router", "experts", "shared_experts")
        own, head = sum(self.parts[kind] for kind in kinds), self.vocab_size * self.hidden
        more = self.parts["extra"] - self.extra_tokens * (self._norms() + 3 * self.hidden - head)
        return own + head - self._unused + more

    @checked("Decoder.flops_per_token", seq_length=_COUNT, causal=flag)
    def flops_per_token(self, seq_length: int, *, causal: bool = True) -> int:
        """Operations of forward and backward: the model's own, no recompute.  causal: half of the scores count."""
        attention = 6 * (self.layers + self.extra_tokens) * seq_length * (self.score_width + self.value_width)
        return 6 * self.matrix_parameters + (attention // 2 if causal else attention)

    @checked("Decoder.rate", seq_length=_COUNT, tokens_per_s=number(0) | None, tflops_per_s=number(0) | None)
    @checked("Decoder.rate", peak_tflops_per_s=number(0, above=True), causal=flag)
    def rate(
        self,
        seq_length: int,
        *,
        tokens_per_s: float | None = None,
        tflops_per_s: float | None = None,
        peak_tflops_per_s: float = 1.0,
        causal: bool = True,
    ) -> Rate:
        """What a published rate of one device means: from its tokens, from its 1e12 operations, or from both."""
        own = self.flops_per_token(seq_length, causal=causal)
        done = None if tflops_per_s is None else tflops_per_s * 1e12
        if tokens_per_s is None and done is None:
            raise ArgumentError("no rate", where="Decoder.rate", allowed="tokens_per_s, tflops_per_s, or both")
        tokens = (done or 0) / own if tokens_per_s is None else tokens_per_s
        return Rate(tokens, tokens * own if done is None else done, own, peak_tflops_per_s * 1e12)

    @checked("Decoder.layer_activation_bytes", samples=_COUNT, seq_length=_COUNT, tensor=_COUNT, context=_COUNT)
    @checked("Decoder.layer_activation_bytes", dense=flag, weighted_after=flag, rows_per_token=number(0) | None)
    @checked("Decoder.layer_activation_bytes", recompute=choice(*KEPT), sequence_parallel=flag, flash=flag)
    def layer_activation_bytes(
        self,
        samples: int,
        seq_length: int,
        tensor: int = 1,
        context: int = 1,
        *,
        recompute: str = "none",
        dense: bool = False,
        rows_per_token: float | None = None,
        weighted_after: bool = False,
        sequence_parallel: bool = True,
        flash: bool = True,
    ) -> float:
        """Bytes that a rank keeps of a layer from forward to backward, two a number.

        tensor, context   ranks that split a layer, and the sequence
        recompute         one of KEPT
        dense             a layer without experts, of a network with some
        rows_per_token    rows that the experts of a rank receive per token of the rank; None: k, balance
        weighted_after    results of experts are kept, too, because their weights multiply them
        sequence_parallel without it, inputs and results of norms are whole on each of the ranks that split a layer
        flash             attention keeps the log-sum-exp of each head and token; False: its scores, 2 bytes each, and
                          with dropout a mask and what it lets through, 3 more (5 a s, Korthikanti et al. 2022)

        Numbers of a token: inputs and results of both norms 4 h, q, k, v and attention's result, gate, up and product
        3 f; an expert's row has its own input, too. The log-sum-exp per head and the router's scores are float32, masks
        of dropout one byte.
        """
        moe = bool(self.experts) and not dense
        rows = float(self.chosen) if rows_per_token is None else rows_per_token
        token, whole = self.kept_of_token(moe, rows, weighted_after=weighted_after)[recompute]
        if not flash and recompute in ("none", "norms_and_product"):
            token += (5 if self.dropout else 2) * self.heads * seq_length
        if not sequence_parallel:
            token += (tensor - 1) * whole
        return samples * seq_length * token / (tensor * context)

    def kept_of_token(
        self, experts: bool, rows: float, *, weighted_after: bool = False
    ) -> dict[str, tuple[float, float]]:
        """{one of KEPT: bytes of a token in a layer without scores, those of them that only sequence parallelism
        splits}; rows of experts: how many a token has.
        """
        h = self.hidden
        width = (rows + self.shared_experts) * self.expert_width if experts else self.mlp_width
        numbers = 4 * h + self._kept_of_attention() + self.products * width
        numbers += rows * h * (1 + weighted_after) if experts else 0
        masks = 2 * h * self.dropout
        token = BFLOAT16 * numbers + FLOAT32 * (self.heads + (self.experts if experts else 0)) + masks
        again = BFLOAT16 * (2 * h + (width if self.gated else 0))
        each = BFLOAT16 * h
        results = self.score_width + 2 * self.kv_width + 2 * h + (self.products - 1) * width
        second = each + BFLOAT16 * (self.value_width + results / 2 + (rows * h if experts else 0))
        return {
            "none": (token, 4 * each + masks),
            "attention": (token, 4 * each + masks),
            "norms_and_product": (token - again, 2 * each + masks),
            "alternate": (second + FLOAT32 * self.heads + masks, 2 * each + masks),
            "full": (each, each),
        }

    def _mlp(self) -> int:
        return self.products * self.hidden * self.mlp_width

    def _attention(self) -> int:
        h, n = self.hidden, self.heads
        if self.latent is None:
            return 2 * h * self.score_width + 2 * h * self.kv_width
        m = self.latent
        queries = h * m.q_rank + m.q_rank * self.score_width if m.q_rank else h * self.score_width
        squeezed = queries + h * (m.kv_rank + m.rope)
        return squeezed + m.kv_rank * n * (m.nope + m.v) + self.value_width * h

    def _norms(self) -> int:
        of_heads = 2 * self.head_size if self.qk_norm else 0
        of_latent = self.latent.q_rank + self.latent.kv_rank if self.latent else 0
        return 2 * self.hidden * (1 + self.norm_biases) + of_heads + of_latent

    @property
    def kv_width(self) -> int:
        """Numbers of the keys of a token, as they are stored; as many of the values."""
        return self.kv_heads * self.head_size

    @property
    def attention_parameters(self) -> int:
        """Elements of a layer's matrices for attention."""
        return self._attention()

    @property
    def mlp_parameters(self) -> int:
        """Elements of the matrices of a layer without experts, besides those for attention."""
        return self._mlp()

    def own_parameters(self, dense: int, experts: int, tables: int, tensor: Any, of_one: Any) -> tuple[Any, Any]:
        """Parameters of a rank that holds so many layers and tables: outside of experts, and of experts.

        tensor  ranks that split a layer;  of_one: ranks that hold different experts or parts of one. Numbers or arrays
        """
        each = {
            kind: count / self.layers for kind, count in self.parts.items() if kind in ("attention", "norms", "biases")
        }
        moe = (self.parts["router"] + self.parts["shared_experts"]) / max(1, self.expert_layers)
        plain = (dense + experts) * sum(each.values()) + dense * self._mlp() + experts * moe
        one = self.experts * self.products * self.hidden * self.expert_width
        return (plain + tables * self.parts["embedding"]) / tensor, experts * one / of_one

    def _kept_of_attention(self) -> int:
        """Numbers of a token: q, k, v, the result; latent: the squeezed ones before and after their norms, too."""
        if self.latent is None:
            return 2 * self.score_width + 2 * self.kv_width
        m = self.latent
        return 2 * m.q_rank + 2 * m.kv_rank + m.rope + 2 * self.score_width + 2 * self.value_width

    @property
    def _unused(self) -> int:
        """Parameters of experts that a token does not choose."""
        layers = self.expert_layers + self.extra_tokens
        return layers * (self.experts - self.chosen) * self.products * self.hidden * self.expert_width


_LATENT = instance(LatentAttention, "A LatentAttention", "q_rank, kv_rank, nope, rope, v") | None
_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("hidden", "layers", "heads", "vocab_size"), _SIZE),
    **dict.fromkeys(("kv_heads", "head_size", "mlp_width", "experts", "chosen"), _NATURAL),
    **dict.fromkeys(("expert_width", "shared_experts", "dense_layers"), _NATURAL),
    "latent": _LATENT,
    **dict.fromkeys(("positions", "extra_tokens"), _NATURAL),
    **dict.fromkeys(("qk_norm", "router_bias", "tied", "gated"), flag),
    **dict.fromkeys(("biases", "qkv_bias", "norm_biases", "dropout"), flag),
}


@dataclass(frozen=True)
class Rate:
    """A rate of one device: tokens and operations per second, the formula's operations of a token, the peak."""

    tokens_per_s: float
    flops_per_s: float
    flops_per_token: int
    peak_flops_per_s: float

    @property
    def utilization(self) -> float:
        """MFU."""
        return self.flops_per_s / self.peak_flops_per_s

    @property
    def measured_flops_per_token(self) -> float:
        """Operations of a token that the two rates imply: what their publisher has counted."""
        return self.flops_per_s / self.tokens_per_s

    @property
    def formula_over_measured(self) -> float:
        """The formula's operations of a token over those."""
        return self.flops_per_token / self.measured_flops_per_token


_LLAMA2, _LLAMA3 = "Touvron et al. 2023 (2307.09288)", "Dubey et al. 2024 (2407.21783), table 3"
_QWEN3 = "Qwen3 technical report (2505.09388), tables 1 and 2; released configurations"
_V2, _V3 = LatentAttention(1536, 512, 128, 64, 128), "DeepSeek-AI 2024 (2412.19437), section 4.2"
_CONFIG = "released configuration"
_GPT = {"gated": False, "biases": True, "norm_biases": True, "tied": True}
_QK = {"qk_norm": True, "source": _QWEN3}
DECODERS: tuple[Decoder, ...] = (
    Decoder("gpt2", 768, 12, 12, 50257, mlp_width=3072, positions=1024, **_GPT, source="Radford et al. 2019"),
    Decoder("llama2_7b", 4096, 32, 32, 32000, mlp_width=11008, source=_LLAMA2),
    Decoder("llama2_13b", 5120, 40, 40, 32000, mlp_width=13824, source=_LLAMA2),
    Decoder("llama2_70b", 8192, 80, 64, 32000, 8, 128, 28672, source=_LLAMA2),
    Decoder("llama3_1b", 2048, 16, 32, 128256, 8, 64, 8192, tied=True, source="Llama 3.2, " + _CONFIG),
    Decoder("llama3_3b", 3072, 28, 24, 128256, 8, 128, 8192, tied=True, source="Llama 3.2, " + _CONFIG),
    Decoder("llama3_8b", 4096, 32, 32, 128256, 8, 128, 14336, source=_LLAMA3),
    Decoder("llama3_70b", 8192, 80, 64, 128256, 8, 128, 28672, source=_LLAMA3),
    Decoder("llama3_405b", 16384, 126, 128, 128256, 8, 128, 53248, source=_LLAMA3),
    Decoder("mistral_7b", 4096, 32, 32, 32000, 8, 128, 14336, source="Jiang et al. 2023 (2310.06825)"),
    Decoder("mixtral_8x7b", 4096, 32, 32, 32000, 8, 128, 0, 8, 2, 14336, source="Jiang et al. 2024 (2401.04088)"),
    Decoder("mixtral_8x22b", 6144, 56, 48, 32000, 8, 128, 0, 8, 2, 16384, source="Mistral AI, configuration"),
    Decoder("qwen3_0.6b", 1024, 28, 16, 151936, 8, 128, 3072, tied=True, **_QK),
    Decoder("qwen3_1.7b", 2048, 28, 16, 151936, 8, 128, 6144, tied=True, **_QK),
    Decoder("qwen3_4b", 2560, 36, 32, 151936, 8, 128, 9728, tied=True, **_QK),
    Decoder("qwen3_8b", 4096, 36, 32, 151936, 8, 128, 12288, **_QK),
    Decoder("qwen3_14b", 5120, 40, 40, 151936, 8, 128, 17408, **_QK),
    Decoder("qwen3_32b", 5120, 64, 64, 151936, 8, 128, 25600, **_QK),
    Decoder("qwen3_30b_a3b", 2048, 48, 32, 151936, 4, 128, 0, 128, 8, 768, **_QK),
    Decoder("qwen3_235b_a22b", 4096, 94, 64, 151936, 4, 128, 0, 128, 8, 1536, **_QK),
    Decoder(
        *("deepseek_v2_lite", 2048, 27, 16, 102400, 0, 0, 10944, 64, 6, 1408, 2, 1),
        latent=LatentAttention(0, 512, 128, 64, 128),
        source="DeepSeek-AI 2024 (2405.04434), appendix B",
    ),
    Decoder(
        *("deepseek_v2", 5120, 60, 128, 102400, 0, 0, 12288, 160, 6, 1536, 2, 1, _V2),
        source="DeepSeek-AI 2024 (2405.04434), section 3.1",
    ),
    Decoder(
        *("deepseek_v3", 7168, 61, 128, 129280, 0, 0, 18432, 256, 8, 2048, 1, 3, _V2),
        router_bias=True,
        source=_V3 + "; without its module for several tokens at once",
    ),
    Decoder(
        *("nemotron4_15b", 6144, 32, 48, 256000, 8, 128, 24576),
        gated=False,
        norm_biases=True,
        source="Parmar et al. 2024 (2402.16819), table 1",
    ),
    Decoder(
        *("kimi_k2", 7168, 61, 64, 163840, 0, 0, 18432, 384, 8, 2048, 1, 1, _V2),
        router_bias=True,
        source="Moonshot AI 2025 (2507.20534), table 2",
    ),
    Decoder(
        *("nemotron4_340b", 18432, 96, 96, 256000, 8, 192, 73728),
        gated=False,
        norm_biases=True,
        source="Parmar et al. 2024 (2406.11704), table 1",
    ),
    Decoder(
        *("palm_540b", 18432, 118, 48, 256000, 1, 256, 73728), tied=True, source="Chowdhery et al. 2022 (2204.02311)"
    ),
    Decoder("bloom_176b", 14336, 70, 112, 250880, mlp_width=57344, **_GPT, source="Le Scao et al. 2022 (2211.05100)"),
    Decoder("opt_175b", 12288, 96, 96, 50272, mlp_width=49152, positions=2048, **_GPT, source="Zhang et al. 2022"),
    Decoder("pangu_alpha_200b", 16384, 64, 128, 40000, mlp_width=65536, positions=1024, **_GPT, source="2104.12369"),
)


def get_decoder(name: str | Decoder) -> Decoder:
    """The decoder of a name out of DECODERS. Raises ArgumentError, with the nearest name, otherwise."""
    if isinstance(name, Decoder):
        return name
    by_name = {decoder.name: decoder for decoder in DECODERS}
    return by_name[choice(*by_name)("get_decoder", "name", name)]
