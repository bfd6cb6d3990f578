"""Networks of the recorded programs: an MLP, an embedding, a transformer block, a model, three layers and a head."""

from __future__ import annotations

from typing import Any

from parallel_lab import nn, ops


class MLP(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Dense(16, 32), nn.Dense(32, 16)

    def construct(self, x: Any) -> Any:
        return self.w2(ops.relu(self.w1(x)))


class Attention(nn.Cell):
    """Heads of 4 columns; a rank has as many heads as its part of wq, wk, wv gives."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Dense(16, 16, has_bias=False) for _ in range(4))

    def construct(self, x: Any) -> Any:
        b, t = x.shape[:2]
        q, k, v = (ops.transpose(ops.reshape(w(x), (b, t, -1, 4)), (0, 2, 1, 3)) for w in (self.wq, self.wk, self.wv))
        scores = ops.softmax(q @ ops.transpose(k, (0, 1, 3, 2)) / 2.0)
        return self.wo(ops.reshape(ops.transpose(scores @ v, (0, 2, 1, 3)), (b, t, -1)))


class FeedForward(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Dense(16, 32, has_bias=False) for _ in range(2))
        self.w2 = nn.Dense(32, 16, has_bias=False)

    def construct(self, x: Any) -> Any:
        return self.w2(ops.silu(self.w1(x)) * self.w3(x))


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm((16,)), Attention()
        self.ffn_norm, self.feed_forward = nn.RMSNorm((16,)), FeedForward()

    def construct(self, x: Any) -> Any:
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Cell):
    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.tok_embeddings, self.layers = nn.Embedding(24, 16), nn.CellList([Block() for _ in range(layers)])
        self.norm, self.output = nn.RMSNorm((16,)), nn.Dense(16, 24, has_bias=False)

    def construct(self, ids: Any) -> Any:
        h = self.tok_embeddings(ids)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


class Layered(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.CellList([nn.Dense(16, 16) for _ in range(3)]), nn.Dense(16, 10)

    def construct(self, x: Any) -> Any:
        for layer in self.layers:
            x = ops.relu(layer(x))
        return self.head(x)


def network_of(names: list[str]) -> nn.Cell:
    """The network that has Parameters of these names."""
    if any(name.startswith("tok") for name in names):
        return Decoder(len({name.split(".")[1] for name in names if name.startswith("layers.")}))
    if any("attention" in name for name in names):
        return Block()
    if any(name.startswith("head") for name in names):
        return Layered()
    return MLP() if "w1.weight" in names else nn.SequentialCell(nn.Embedding(24, 16), nn.Dense(16, 16))


def recorded_name(name: str) -> str:
    """PyTorch's name of a Parameter."""
    for ours, theirs in {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}.items():
        name = name.replace(ours, theirs)
    return name
