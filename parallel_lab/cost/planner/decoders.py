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

from ...base.checks import Check, checked, choice, flag, instance, integer, number
from ...base.errors import ArgumentError

_SIZE, _NATURAL = integer(1, 10**12), integer(0, 10**12)
_COUNT = integer(1, 10**9)
FLOAT32, BFLOAT16 = 4, 2  # bytes of a number
PARTS = ("attention", "norms", "mlp", "router", "experts", "shared_experts", "embedding", "head")
KEPT = {
    "none": "everything is kept",
    "norms_and_product": "results of norms and the product of gate and up are computed again",
    "full": "the layer's input is kept, the rest computed again",
}


@dataclass(frozen=True)
class LatentAttention:
    """Sizes of multi-head latent attention (DeepSeek-V2): q_rank and kv_rank of the products that squeeze the tokens,
    and per head nope (numbers without a position), rope (with one; keys share it), v (of a value).
    """

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    v: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _SIZE("LatentAttention", name, value)


@dataclass(frozen=True)
class Decoder:
    """A decoder of SwiGLU layers with RMSNorm, no bias in its products; some or all layers may have experts.

    hidden, layers, vocab_size   h, L, V
    heads, kv_heads, head_size   n_q, n_kv, d; 0: as many as heads, hidden / heads
    mlp_width                    f of layers without experts
    experts, chosen              E, k; 0: no experts
    expert_width                 f_e;  shared_experts: experts of that width that every token meets
    dense_layers                 first layers, without experts
    latent                       instead of grouped heads (kv_heads and head_size mean nothing then)
    qk_norm, router_bias, tied   norms of q and k of each head; a selection bias per expert; the head is the table
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
    source: str = ""

    def __post_init__(self) -> None:
        where = f"Decoder {self.name!r}"
        for name, check in _FIELDS.items():
            check(where, name, getattr(self, name))
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
        expert = 3 * h * self.expert_width
        return {
            "attention": self.layers * self._attention(),
            "norms": self.layers * self._norms() + h,
            "mlp": dense * 3 * h * self.mlp_width,
            "router": self.expert_layers * self.experts * (h + self.router_bias),
            "experts": self.expert_layers * self.experts * expert,
            "shared_experts": self.expert_layers * self.shared_experts * expert,
            "embedding": self.vocab_size * h,
            "head": 0 if self.tied else self.vocab_size * h,
        }

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
        return sum(self.parts[kind] for kind in kinds) + self.vocab_size * self.hidden - self._unused

    @checked("Decoder.flops_per_token", seq_length=_COUNT, causal=flag)
    def flops_per_token(self, seq_length: int, *, causal: bool = True) -> int:
        """Operations of forward and backward: the model's own, no recompute.  causal: half of the scores count."""
        attention = 6 * self.layers * seq_length * (self.score_width + self.value_width)
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
    @checked("Decoder.layer_activation_bytes", recompute=choice(*KEPT), sequence_parallel=flag)
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
    ) -> float:
        """Bytes that a rank keeps of a layer from forward to backward: bfloat16, flash attention.

        tensor, context   ranks that split a layer, and the sequence
        recompute         one of KEPT
        dense             a layer without experts, of a network with some
        rows_per_token    rows that the experts of a rank receive per token of the rank; None: k, balance
        weighted_after    results of experts are kept, too, because their weights multiply them
        sequence_parallel without it, inputs and results of norms are whole on each of the ranks that split a layer

        Numbers of a token: inputs and results of both norms 4 h, q, k, v and attention's result, gate, up and product
        3 f; an expert's row has its own input, too. The log-sum-exp per head and the router's scores are float32.
        """
        h, experts = self.hidden, bool(self.experts) and not dense
        rows = float(self.chosen) if rows_per_token is None else rows_per_token
        products = rows * self.expert_width + self.shared_experts * self.expert_width if experts else self.mlp_width
        numbers = 4 * h + self._kept_of_attention() + 3 * products + (rows * h * (1 + weighted_after) if experts else 0)
        scores = self.heads + (self.experts if experts else 0)
        token = BFLOAT16 * numbers + FLOAT32 * scores
        if recompute == "norms_and_product":
            token -= BFLOAT16 * (2 * h + products)
        elif recompute == "full":
            token = BFLOAT16 * h
        if not sequence_parallel:
            whole = {"none": 4, "norms_and_product": 2, "full": 1}[recompute] * BFLOAT16 * h
            token += (tensor - 1) * whole
        return samples * seq_length * token / (tensor * context)

    def _attention(self) -> int:
        h, n = self.hidden, self.heads
        if self.latent is None:
            return 2 * h * self.score_width + 2 * h * self._kv_width
        m = self.latent
        squeezed = h * m.q_rank + m.q_rank * self.score_width + h * (m.kv_rank + m.rope)
        return squeezed + m.kv_rank * n * (m.nope + m.v) + self.value_width * h

    def _norms(self) -> int:
        of_heads = 2 * self.head_size if self.qk_norm else 0
        return 2 * self.hidden + of_heads + (self.latent.q_rank + self.latent.kv_rank if self.latent else 0)

    @property
    def _kv_width(self) -> int:
        return self.kv_heads * self.head_size

    def _kept_of_attention(self) -> int:
        """Numbers of a token: q, k, v, the result; latent: the squeezed ones before and after their norms, too."""
        if self.latent is None:
            return 2 * self.score_width + 2 * self._kv_width
        m = self.latent
        return 2 * m.q_rank + 2 * m.kv_rank + m.rope + 2 * self.score_width + 2 * self.value_width

    @property
    def _unused(self) -> int:
        """Parameters of experts that a token does not choose."""
        unused = self.experts - self.chosen
        return self.parts["experts"] // self.experts * unused if self.experts else 0


_LATENT = instance(LatentAttention, "A LatentAttention", "q_rank, kv_rank, nope, rope, v") | None
_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("hidden", "layers", "heads", "vocab_size"), _SIZE),
    **dict.fromkeys(("kv_heads", "head_size", "mlp_width", "experts", "chosen"), _NATURAL),
    **dict.fromkeys(("expert_width", "shared_experts", "dense_layers"), _NATURAL),
    "latent": _LATENT,
    **dict.fromkeys(("qk_norm", "router_bias", "tied"), flag),
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


_LLAMA3 = "Dubey et al. 2024 (2407.21783), table 3"
_QWEN3 = "Qwen3 technical report (2505.09388), table 2; released configurations"
_V3 = LatentAttention(1536, 512, 128, 64, 128)
DECODERS: tuple[Decoder, ...] = (
    Decoder("llama2_70b", 8192, 80, 64, 32000, 8, 128, 28672, source="Touvron et al. 2023 (2307.09288)"),
    Decoder("llama3_8b", 4096, 32, 32, 128256, 8, 128, 14336, source=_LLAMA3),
    Decoder("llama3_70b", 8192, 80, 64, 128256, 8, 128, 28672, source=_LLAMA3),
    Decoder("llama3_405b", 16384, 126, 128, 128256, 8, 128, 53248, source=_LLAMA3),
    Decoder("mixtral_8x7b", 4096, 32, 32, 32000, 8, 128, 0, 8, 2, 14336, source="Jiang et al. 2024 (2401.04088)"),
    Decoder("mixtral_8x22b", 6144, 56, 48, 32000, 8, 128, 0, 8, 2, 16384, source="Mistral AI, configuration"),
    Decoder("qwen3_30b_a3b", 2048, 48, 32, 151936, 4, 128, 0, 128, 8, 768, qk_norm=True, source=_QWEN3),
    Decoder("qwen3_235b_a22b", 4096, 94, 64, 151936, 4, 128, 0, 128, 8, 1536, qk_norm=True, source=_QWEN3),
    Decoder(
        *("deepseek_v3", 7168, 61, 128, 129280, 0, 0, 18432, 256, 8, 2048, 1, 3, _V3),
        router_bias=True,
        source="DeepSeek-AI 2024 (2412.19437), section 4.2; without its module for several tokens at once",
    ),
)


def get_decoder(name: str | Decoder) -> Decoder:
    """The decoder of a name out of DECODERS. Raises ArgumentError, with the nearest name, otherwise."""
    if isinstance(name, Decoder):
        return name
    by_name = {decoder.name: decoder for decoder in DECODERS}
    return by_name[choice(*by_name)("get_decoder", "name", name)]
