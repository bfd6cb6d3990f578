"""The transformer's decoder, and encoder and decoder together (Vaswani et al. 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...base.checks import COPIES, checked, integer, kept
from ...nn.cell import Cell
from ...nn.layers.normalization import LayerNorm
from ...nn.layers.transformer import (
    A_CELL,
    TransformerEncoder,
    TransformerEncoderLayer,
    TransformerLayer,
    TransformerLayers,
)
from ...ops.machine.primitive import Primitive


class TransformerDecoderLayer(TransformerLayer):
    """Self-attention, attention to what an encoder gave, and two dense layers, each added to what it was given, with
    layer norm.  tgt: (t, n, d_model), memory: (s, n, d_model) -> (t, n, d_model).

    Called with (tgt, memory, tgt_mask=None, memory_mask=None, tgt_key_padding_mask=None,
    memory_key_padding_mask=None), masks as in MultiheadAttention, and tgt_is_causal=True by name. Arguments as
    TransformerEncoderLayer. Parts: `self_attn`, `multihead_attn`, `linear1`, `linear2`, `dropout`, and `norm`,
    `dropout` and `add` 1 to 3. Names and defaults: MindSpore.
    """

    attentions = ("self_attn", "multihead_attn")

    def construct(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        *,
        tgt_is_causal: bool = False,
    ) -> Any:
        def attend(x: Any) -> Any:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]

        def look(x: Any) -> Any:
            return self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask)[0]

        return self._residual(3, self._residual(2, self._residual(1, tgt, attend), look), self._feed)


class TransformerDecoder(TransformerLayers):
    """`num_layers` copies of a layer, drawn apart, called as it is; then `norm`.  tgt: (t, n, d_model), memory: (s, n,
    d_model) -> (t, n, d_model).
    """

    @checked(decoder_layer=A_CELL, num_layers=integer(1, COPIES), norm=A_CELL | None)
    def __init__(self, decoder_layer: Cell, num_layers: int, norm: Cell | None = None) -> None:
        super().__init__()
        self._set(decoder_layer, num_layers, norm)


class Transformer(Cell):
    """Encoder and decoder, each with a layer norm behind it.  src: (s, n, d_model), tgt: (t, n, d_model) -> (t, n,
    d_model).

    custom_encoder, custom_decoder  Cells in their places;  the other arguments: of their layers

    Called with (src, tgt, src_mask=None, tgt_mask=None, memory_mask=None, src_key_padding_mask=None,
    tgt_key_padding_mask=None, memory_key_padding_mask=None). Names and defaults: MindSpore.
    """

    CUSTOM, LAYERS = A_CELL | None, integer(1, COPIES)

    @checked(custom_encoder=CUSTOM, custom_decoder=CUSTOM, num_encoder_layers=LAYERS, num_decoder_layers=LAYERS)
    @kept()
    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Cell | Primitive = "relu",
        custom_encoder: Cell | None = None,
        custom_decoder: Cell | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        dtype: Any = np.float32,
    ) -> None:
        super().__init__()
        how = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, dtype)

        def norm() -> Cell:
            return LayerNorm((d_model,), epsilon=layer_norm_eps, dtype=dtype)

        self.encoder, self.decoder = custom_encoder, custom_decoder
        if custom_encoder is None:
            self.encoder = TransformerEncoder(TransformerEncoderLayer(*how), num_encoder_layers, norm())
        if custom_decoder is None:
            self.decoder = TransformerDecoder(TransformerDecoderLayer(*how), num_decoder_layers, norm())

    def construct(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
    ) -> Any:
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
