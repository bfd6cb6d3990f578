"""Transformers in closed form: parameters, operations per step, bytes of activations, days of a training run.

    >>> gpt3 = get_transformer("gpt3_175b")
    >>> round(gpt3.parameters / 1e9, 1), round(gpt3.step_flops(1536) / 1e18, 2)
    (174.6, 3.39)

h hidden size, l layers, a heads, s tokens of a sequence, V vocabulary, B sequences in a step, b in a micro-batch, t
ranks that split a layer:

    parameters                12 l h^2 (1 + 13 / 12h + (V + s) / 12 l h)                     Narayanan et al. 2021, (2)
    operations of a step      72 B l s h^2 (1 + s / 6h + V / 12 l h)                         the model's own: MFU
      every layer again       96 B l s h^2 (1 + s / 6h + V / 16 l h)                         the hardware's: HFU
      its attention again     72 B l s h^2 (1 + 2s / 9h + V / 12 l h)
    activations of a layer    s b h (10 + 24 / t + 5 a s / (h t)) bytes, 2 per number        Korthikanti et al. 2022
      sequence parallel       s b h (34 / t + 5 a s / (h t))         attention again: without its last term
      the layer again         2 s b h

Korthikanti et al. print s / 3h where attention runs again, (8); what they describe, 4 B s^2 h more per layer, is
s / 18h more than s / 6h. `as_printed=True` gives their number, with which their table 5 was made.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.checks import checked, choice, flag, integer, number
from ...base.errors import ArgumentError
from ..zero import zero_memory
from .decoders import Decoder

RECOMPUTE = ("none", "attention", "full")
ADAM_MIXED = {"param_bytes": 2, "grad_bytes": 2, "optimizer_bytes": 12}  # bytes of a parameter, see `cost/zero.py`
_COUNT = integer(1)
# beyond every model; the longest sequences of today have ten million tokens
_MOST = {"layers": 10**12, "hidden": 10**12, "heads": 10**12, "seq_length": 10**8, "vocab_size": 10**12}
_KIND = choice(*RECOMPUTE)


@dataclass(frozen=True)
class Transformer:
    """A decoder as GPT has it, with MLPs of 4 h and one table for tokens and scores.

    source  where the sizes come from
    """

    name: str
    layers: int
    hidden: int
    heads: int
    seq_length: int = 2048
    vocab_size: int = 51200
    source: str = ""

    def __post_init__(self) -> None:
        for field, most in _MOST.items():
            integer(1, most)(f"Transformer {self.name!r}", field, getattr(self, field))
        if self.hidden % self.heads:
            what = f"hidden={self.hidden} with heads={self.heads}"
            raise ArgumentError(what, where=f"Transformer {self.name!r}", allowed="heads divides hidden")

    @property
    def layer_parameters(self) -> int:
        """Weights, biases and norms of a layer: 12 h^2 + 13 h."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of all layers, the tokens and the positions."""
        return self.layers * self.layer_parameters + (self.vocab_size + self.seq_length) * self.hidden

    @property
    def shape(self) -> Decoder:
        """The same as a Decoder, for plans of any letters in closed forms. It counts the last norm, too."""
        sizes = {"mlp_width": 4 * self.hidden, "positions": self.seq_length, "source": self.source}
        how = {"gated": False, "biases": True, "norm_biases": True, "dropout": True, "tied": True}
        return Decoder(self.name, self.hidden, self.layers, self.heads, self.vocab_size, **sizes, **how)

    @checked("Transformer.step_flops", batch=number(0), recompute=_KIND, as_printed=flag)
    def step_flops(self, batch: float, recompute: str = "none", *, as_printed: bool = False) -> float:
        """Floating-point operations of a step on `batch` sequences; without recompute the model's own.

        as_printed   Korthikanti et al.'s (8) for recompute="attention", which counts that three times
        """
        h, s, v, layers = self.hidden, self.seq_length, self.vocab_size, self.layers
        layer = 24 * s * h * h + 4 * s * s * h  # forward; backward takes twice as much
        again = {"none": 0, "attention": 4 * s * s * h * (3 if as_printed else 1), "full": layer}[recompute]
        return batch * (layers * (3 * layer + again) + 6 * s * h * v)

    @checked("Transformer.layer_activation_bytes", micro_batch=_COUNT, tensor=_COUNT, recompute=_KIND)
    @checked("Transformer.layer_activation_bytes", sequence_parallel=flag)
    def layer_activation_bytes(
        self, micro_batch: int, tensor: int = 1, *, sequence_parallel: bool = False, recompute: str = "none"
    ) -> float:
        """Bytes that a rank keeps of a layer for backward, half precision with dropout (Korthikanti et al., table 2).

        recompute "attention": the scores, their softmax and dropout are computed again; "full": the layer's input stays
        """
        h, s, t = self.hidden, self.seq_length, tensor
        if recompute == "full":
            return 2.0 * s * micro_batch * h
        scores = 5 * self.heads * s / h / t if recompute == "none" else 0.0
        return s * micro_batch * h * ((34 / t if sequence_parallel else 10 + 24 / t) + scores)

    @checked("Transformer.activation_bytes", micro_batch=_COUNT, tensor=_COUNT, stages=_COUNT, chunks=_COUNT)
    @checked("Transformer.activation_bytes", sequence_parallel=flag, recompute=_KIND)
    def activation_bytes(
        self,
        micro_batch: int,
        tensor: int = 1,
        *,
        stages: int = 1,
        chunks: int = 1,
        sequence_parallel: bool = False,
        recompute: str = "none",
    ) -> float:
        """Bytes of the first pipeline stage, which holds most: as many micro-batches as there are stages (1F1B), so all
        l layers' worth; with interleaved chunks 1 + (p - 1) / (p v) of it (Korthikanti et al., section 4.2.3).
        """
        options = {"sequence_parallel": sequence_parallel, "recompute": recompute}
        layer = self.layer_activation_bytes(micro_batch, tensor, **options)
        return self.layers * layer * (1 + (stages - 1) / (stages * chunks) if chunks > 1 else 1)

    @checked("Transformer.state_bytes", tensor=_COUNT, stages=_COUNT, data=_COUNT)
    def state_bytes(self, tensor: int = 1, stages: int = 1, data: int = 1, level: int = 0) -> float:
        """Bytes of parameters, gradients and Adam's states on a rank, mixed precision; level: ZeRO's stage."""
        return zero_memory(self.parameters / tensor / stages, data, level, **ADAM_MIXED).total_bytes

    @checked("Transformer.utilization", batch=number(0), step_s=number(0, above=True), devices=_COUNT)
    @checked("Transformer.utilization", peak_flops_per_s=number(0, above=True), recompute=_KIND, as_printed=flag)
    def utilization(
        self,
        batch: float,
        step_s: float,
        devices: int,
        peak_flops_per_s: float,
        recompute: str = "none",
        *,
        as_printed: bool = False,
    ) -> float:
        """Operations of a step over what all devices could do meanwhile: MFU; with recompute, HFU."""
        return self.step_flops(batch, recompute, as_printed=as_printed) / (step_s * devices * peak_flops_per_s)

    @checked("Transformer.training_days", tokens=number(0), devices=_COUNT, flops_per_s=number(0, above=True))
    @checked("Transformer.training_days", recompute=_KIND)
    def training_days(self, tokens: float, devices: int, flops_per_s: float, recompute: str = "none") -> float:
        """Days for so many tokens where each device does flops_per_s, work that is done again included.

        The short forms 8 T P / (n X), and 6 without recompute, leave attention and scores out.
        """
        return self.step_flops(tokens / self.seq_length, recompute) / (devices * flops_per_s) / 86_400


_SC21 = "Narayanan et al. 2021 (SC21), table 1"
_KORTHIKANTI = "Korthikanti et al. 2022, table 3"
TRANSFORMERS: tuple[Transformer, ...] = (
    Transformer("gpt2_xl", 48, 1600, 25, 1024, 50257, "Radford et al. 2019"),
    Transformer("gpt_1.7b", 24, 2304, 24, source=_SC21),
    Transformer("gpt_3.6b", 30, 3072, 32, source=_SC21),
    Transformer("gpt_7.5b", 36, 4096, 32, source=_SC21),
    Transformer("gpt_18b", 40, 6144, 48, source=_SC21),
    Transformer("gpt_22b", 48, 6144, 64, source=_KORTHIKANTI),
    Transformer("gpt_39b", 48, 8192, 64, source=_SC21),
    Transformer("gpt_76b", 60, 10240, 80, source=_SC21),
    Transformer("gpt_145b", 80, 12288, 96, source=_SC21),
    Transformer("gpt3_175b", 96, 12288, 96, source="Brown et al. 2020; vocabulary as in " + _SC21),
    Transformer("gpt_310b", 96, 16384, 128, source=_SC21),
    Transformer("mt_nlg_530b", 105, 20480, 128, source="Smith et al. 2022; " + _SC21),
    Transformer("gpt_1t", 128, 25600, 160, source=_SC21),
)


def get_transformer(name: str | Transformer) -> Transformer:
    """The model of a name out of TRANSFORMERS. Raises ArgumentError, with the nearest name, otherwise."""
    if isinstance(name, Transformer):
        return name
    by_name = {model.name: model for model in TRANSFORMERS}
    return by_name[choice(*by_name)("get_transformer", "name", name)]
