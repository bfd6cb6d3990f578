"""Strategies for the networks of this package, as their papers split them.

    net = GPT(256)
    tensor_parallel(net, dp=2, mp=4)          # 8 devices: batch split 2 ways, heads and MLP columns 4 ways

Each function sets the strategies of a network's operators with `shard` and returns the network; nothing else changes.
An operator without a strategy is split by rows among all devices (data parallel).
"""

from __future__ import annotations

from typing import Any, TypeVar

from ... import nn
from ...base.checks import Check, checked, flag, instance, integer
from ...base.errors import ArgumentError, StrategyError, shorten
from .gpt import GPT, GPTBlock, TokenNetwork
from .moe_gpt import MoEGPT
from .resnet import BasicBlock, Bottleneck, ResNet
from .small import LeNet5, TransformerClassifier, WideDeep

DenseLayers = tuple[nn.Dense, ...]
Network = TypeVar("Network", bound=nn.Cell)
SCATTERED = "forward_reduce_scatter"  # sums of an operator wait for the reader that splits them
GATHERED_AGAIN = "recompute_comm_op"  # what messages brought for an operator is brought again for backward


def _read_power(value: Any) -> int:
    count = integer(1).read(value)
    if count & (count - 1):
        raise ValueError
    return count


POWER_OF_TWO = Check("A power of two: 1, 2, 4, ...", _read_power)


@checked(net=instance(nn.Cell, "A Cell"))
def data_parallel(net: Network) -> Network:
    """Remove all strategies: operators split along their batch dim, parameters whole. ArgumentTypeError for no Cell."""
    for _, cell in net.cells_and_names():
        for primitive in cell._primitives.values():
            primitive.shard(None).del_prim_attr(GATHERED_AGAIN).del_prim_attr(SCATTERED)
        if isinstance(cell, nn.MoE):
            cell.ranks, cell.expert_parallel = None, 1
    return net


@checked(dp=POWER_OF_TWO, mp=POWER_OF_TWO, sequence=flag, gather_again=flag)
def tensor_parallel(net: Network, dp: int, mp: int, *, sequence: bool = False, gather_again: bool = False) -> Network:
    """Split samples `dp` ways and the network `mp` ways, for dp * mp devices.

    sequence      of a GPT or a TransformerClassifier: what lies outside of the products is split along the sequence
                  (Korthikanti et al. 2022, section 4.2). Each all_reduce becomes a reduce_scatter, and an all_gather
                  before the next product: as many bytes, and 1 / mp of the numbers that norms, additions and
                  dropouts keep. mp divides the length of the sequence
    gather_again  a rank keeps its part of what was gathered, and gathers it once more in backward: 5/4 of the bytes

    GPT, TransformerClassifier   by heads and by columns of the MLP, then by rows (Shoeybi et al. 2019, section 3): one
                                 all_reduce forward and one backward in each attention and each MLP. Token table and
                                 score matrix are whole on every rank; rows of the scores are split among all devices
    ResNet                       convolutions by input or output channels, batch norm by channels; classifier by inputs
    LeNet5                       the dense layers by columns, then by rows

    Raises ArgumentError for counts that are no powers of two, another network, gather_again without sequence;
    StrategyError where mp does not divide heads, channels or the sequence.
    """
    tokens = {GPT: _gpt, TransformerClassifier: _classifier}
    rules = tokens if sequence else {**tokens, ResNet: _resnet, LeNet5: _lenet}
    rule = next((r for kind, r in rules.items() if isinstance(net, kind)), None)
    if rule is None:
        allowed = f"One of {', '.join(k.__name__ for k in rules)}{' has a sequence' if sequence else ''}"
        hint = "Set strategies with shard()"
        raise ArgumentError(f"net is {shorten(net)}", where="tensor_parallel", allowed=allowed, hint=hint)
    if gather_again and not sequence:
        allowed = "sequence=True: without it nothing is gathered"
        raise ArgumentError("gather_again=True", where="tensor_parallel", allowed=allowed)
    if sequence and net.seq_length % mp:
        what, allowed = f"mp={mp} with seq_length={net.seq_length}", "mp divides the length of the sequence"
        raise StrategyError(what, where="tensor_parallel", allowed=allowed)
    data_parallel(net)
    if sequence:
        rule(net, dp, mp, mp)
        for _, cell in net.cells_and_names():
            if gather_again and isinstance(cell, nn.Dense) and cell.matmul.in_strategy == ((dp, 1), (mp, 1)):
                cell.matmul.add_prim_attr(GATHERED_AGAIN, True)
    else:
        rule(net, dp, mp)
    return net


@checked(dp=POWER_OF_TWO, ep=POWER_OF_TWO, mp=POWER_OF_TWO, sequence=flag, expert_mp=POWER_OF_TWO | None)
def expert_parallel(
    net: Network, dp: int, ep: int, mp: int = 1, *, sequence: bool = False, expert_mp: int | None = None
) -> Network:
    """Split tokens `dp` ways and the experts of every nn.MoE in `net` `ep` ways, for dp * mp devices.

    The ranks of ep are among those that split the layer's tokens: ep next to each other hold all experts, which are
    the same on the next ep ranks. Other operators stay data parallel.

    mp         splits attention of a MoEGPT by heads
    expert_mp  how many of the mp ranks split the width inside experts (default: mp). The others split sequences: each
               routes tokens of its own, and ep may be up to dp * mp / expert_mp
    sequence   of a MoEGPT: as in `tensor_parallel`

    Raises ArgumentError for a network without experts, or another one with sequence=True; StrategyError where counts do
    not divide heads, width, experts, the sequence or the ranks that split tokens.
    """
    if sequence and not isinstance(net, MoEGPT):
        what = f"sequence=True of {shorten(net)}"
        raise ArgumentError(what, where="expert_parallel", allowed="A MoEGPT; of a ContextGPT: context_parallel")
    data_parallel(net)
    layers = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.MoE)]
    for moe in layers:
        split_experts(moe, dp, 1, ep, mp, expert_mp)
    if not layers:
        raise ArgumentError(f"net is {shorten(net)}", where="expert_parallel", allowed="A network with an nn.MoE")
    if isinstance(net, MoEGPT):
        if sequence and net.seq_length % mp:
            what, allowed = f"mp={mp} with seq_length={net.seq_length}", "mp divides the length of the sequence"
            raise StrategyError(what, where="expert_parallel", allowed=allowed)
        _moe_gpt(net, dp, mp, mp if sequence else 1)
    return net


def split_embeddings(net: Network, how: str, parts: int) -> Network:
    """Split the embedding tables of a WideDeep network `parts` ways; the rest stays data parallel.

    how  "row": each rank holds some of the features and looks up those; the others' rows arrive by an all_reduce. Both
         tables are split. "column": each rank holds some columns of all features; the dense layers get them by an
         all_gather. The wide table has one column and stays whole.
    """
    if not isinstance(net, WideDeep) or how not in ("row", "column"):
        allowed = "A WideDeep network, and 'row' or 'column'"
        raise ArgumentError(f"{shorten(net)} with how={shorten(how)}", where="split_embeddings", allowed=allowed)
    data_parallel(net)
    if how == "row":
        for gather in (net.wide_gather, net.deep_gather):
            gather.shard(((parts, 1), (1, 1)))
    else:
        net.deep_gather.shard(((1, parts), (1, 1)))
        net.deep_mul.shard(((1, 1, parts), (1, 1, 1)))
    return net


# ---- transformers ----


def _columns(dense: nn.Dense, dp: int, mp: int) -> None:
    """Output features split: every rank makes some columns of the result, and no message is needed."""
    dense.matmul.shard(((dp, 1), (mp, 1)))
    dense.bias_add.shard(((dp, mp), (mp,)))
    if dense.activation is not None:
        for primitive in _primitives(dense.activation):
            primitive.shard(((dp, mp),))


def _rows(dense: nn.Dense, dp: int, mp: int, sp: int = 1) -> None:
    """Input features split: every rank has an addend of the whole result, and an all_reduce adds them. Where the
    sequence of the result is split `sp` ways, a reduce_scatter does.
    """
    dense.matmul.shard(((dp, mp), (1, mp))).add_prim_attr(SCATTERED, sp > 1)
    dense.bias_add.shard(((dp, sp, 1), (1,)) if sp > 1 else ((dp, 1), (1,)))


def _primitives(cell: nn.Cell) -> list:
    return [p for _, c in cell.cells_and_names() for p in c._primitives.values()]


def _transformer_layer(
    dp: int, mp: int, sp: int, heads: int, columns: DenseLayers, rows: DenseLayers, attention: Any, around: tuple
) -> None:
    """Heads and the MLP's width split `mp` ways, and the sequence outside of them `sp` ways.

    columns, rows  the dense layers that begin and end that split;  attention: the operator between them
    around         norms, additions, and dropouts of the results (or None)
    """
    norms, adds, dropouts = around
    if heads % mp:
        allowed = "mp divides the number of heads"
        raise StrategyError(f"mp={mp} with {heads} heads", where="tensor_parallel", allowed=allowed)
    for dense in columns:
        _columns(dense, dp, mp)
    attention.shard(((dp, 1, mp, 1),) * 3)
    for dense in rows:
        _rows(dense, dp, mp, sp)
    for norm in norms:
        norm.layer_norm.shard(((dp, sp, 1), (1,), (1,)))
    for add in adds:
        add.shard(((dp, sp, 1), (dp, sp, 1)))
    for dropout in filter(None, dropouts):
        dropout.dropout.shard(((dp, sp, 1),))


def _block(block: GPTBlock, dp: int, mp: int, sp: int, heads: int) -> None:
    parts, mlp = block.attention, block.mlp
    columns, rows = (parts.query, parts.key, parts.value, mlp.fc1), (parts.out, mlp.fc2)
    around = (block.norm1, block.norm2), (block.add1, block.add2), (block.dropout1, block.dropout2)
    _transformer_layer(dp, mp, sp, heads, columns, rows, parts.attention, around)


def _embedded(net: TokenNetwork, dp: int, sp: int) -> None:
    net.embed.shard(((1, 1), (dp, sp)))
    net.add.shard(((dp, sp, 1), (sp, 1)))


def _gpt(net: GPT, dp: int, mp: int, sp: int = 1) -> None:
    _embedded(net, dp, sp)
    for block in net.blocks:
        _block(block, dp, mp, sp, net.heads)
    # the score matrix is whole on every rank (perhaps the token table); rows split among all devices cost no message,
    # once the sequence is whole
    net.norm.layer_norm.shard(((dp, 1, 1), (1,), (1,)))
    net.scores.shard(((dp * mp, 1), (1, 1)))


def _encoder_layer(layer: nn.TransformerEncoderLayer, dp: int, mp: int, sp: int) -> None:
    parts = layer.self_attn
    columns, rows = (parts.q_proj, parts.k_proj, parts.v_proj, layer.linear1), (parts.out_proj, layer.linear2)
    around = (layer.norm1, layer.norm2), (layer.add1, layer.add2), (layer.dropout1, layer.dropout2)
    _transformer_layer(dp, mp, sp, parts.num_heads, columns, rows, parts.attention, around)
    for primitive in (*_primitives(layer.activation), layer.dropout.dropout):
        primitive.shard(((dp, 1, mp),))


def _classifier(net: TransformerClassifier, dp: int, mp: int, sp: int = 1) -> None:
    _embedded(net, dp, sp)
    for layer in net.encoder.layers:
        _encoder_layer(layer, dp, mp, sp)
    net.mean.shard(((dp, sp, 1),))
    _rows(net.head, dp, mp)


def split_experts(moe: nn.MoE, dp: int, cp: int, ep: int, mp: int, expert_mp: int | None = None) -> None:
    """Groups of tokens by rank; packed rows and slots lie with the experts while these work.

    cp   parts of a sequence;  mp: other ranks: expert_mp split the width inside experts, the others a sequence further
    """
    inside = mp if expert_mp is None else expert_mp
    sp = cp * mp // inside
    for fault, what, allowed in (
        (mp % inside, f"expert_mp={inside} with mp={mp}", "expert_mp divides mp"),
        (moe.inner % inside, f"mp={inside} with inner={moe.inner}", "mp divides the width inside experts"),
        (moe.experts % ep, f"ep={ep} with {moe.experts} experts", "ep divides the experts"),
        (dp * sp % ep, f"ep={ep} with tokens split {dp} x {sp} ways", "ep divides the ranks that split tokens"),
    ):
        if fault:
            raise StrategyError(what, where="expert_parallel", allowed=allowed)
    moe.ranks, moe.expert_parallel, copies = (dp, sp), ep, dp * sp // ep
    tokens, counts = (copies, ep, 1, 1), (copies, 1, 1)
    moe.scores.shard(((dp, sp, 1), (1, 1)))
    moe.route.shard((tokens,) if moe.to_room else ((dp, sp, 1), (1,)))
    moe.load.shard(((dp, sp, 1),))
    moe.bias_step.shard(((1,), (1,)))
    moe.by_groups.shard(((dp, 1, 1, sp, 1, 1, 1),))
    moe.by_samples.shard(((dp, sp, 1, 1, 1, 1, 1),))
    moe.dispatch.shard((tokens, tokens))
    moe.combine.shard((tokens,) * 3)
    if moe.capacity_factor is None:
        moe.place.shard((tokens,))
        moe.exchange.shard((tokens, counts))
        moe.exchange_back.shard((tokens, counts))
        inner = (copies, ep, 1, inside)
        moe.first.shard((tokens, counts, (ep, 1, inside)))
        moe.second.shard((inner, counts, (ep, inside, 1)))
    else:
        moe.place.shard((tokens, tokens))
        inner = (copies, 1, ep, 1, inside)
        moe.first.shard(((copies, 1, ep, 1, 1), (ep, 1, inside)))
        moe.second.shard((inner, (ep, inside, 1)))
    for primitive in _primitives(moe.activation):
        primitive.shard((inner,))
    if moe.balance is not None:
        for primitive in (moe.balance.load, moe.balance.scores, moe.balance.mean_scores, moe.balance.squared):
            primitive.shard(((dp, sp, 1),))
        means = (dp, 1) if moe.per_sequence else (1,)
        moe.balance.mul.shard((means, means))
        moe.balance.sum.shard((means,))
        moe.balance.mean_square.shard(((dp, sp),))


def _moe_gpt(net: MoEGPT, dp: int, mp: int, sp: int) -> None:
    _embedded(net, dp, sp)
    for block in net.blocks:
        parts, around = block.attention, ((block.norm1, block.norm2), (block.add1, block.add2), ())
        columns = (parts.query, parts.key, parts.value)
        _transformer_layer(dp, mp, sp, net.heads, columns, (parts.out,), parts.attention, around)
    net.norm.layer_norm.shard(((dp, 1, 1), (1,), (1,)))
    net.scores.shard(((dp * mp, 1), (1, 1)))


# ---- convolutions ----


def _out_channels(conv: nn.Conv2d, dp: int, mp: int) -> None:
    """Output channels split: the input is whole on every rank, the result is split."""
    conv.conv2d.shard(((dp, 1, 1, 1), (mp, 1, 1, 1)))


def _in_channels(conv: nn.Conv2d, dp: int, mp: int) -> None:
    """Input channels split: every rank has an addend of the whole result, and an all_reduce adds them."""
    conv.conv2d.shard(((dp, mp, 1, 1), (1, mp, 1, 1)))


def _normalized(norm: nn.BatchNorm2d, relu: nn.ReLU | None, dp: int, channels: int) -> None:
    """Batch norm, and what follows it, on a result whose channels are split `channels` ways."""
    norm.batch_norm.shard(((dp, channels, 1, 1), *((channels,),) * 4))
    if relu is not None:
        relu.relu.shard(((dp, channels, 1, 1),))


def _residual(block: BasicBlock | Bottleneck, dp: int, mp: int) -> None:
    """Channels are split between blocks; inside, the first convolution by input channels, others by output ones."""
    _in_channels(block.conv1, dp, mp)
    _normalized(block.bn1, block.relu1, dp, 1)
    _out_channels(block.conv2, dp, mp)
    if isinstance(block, Bottleneck):
        _normalized(block.bn2, block.relu2, dp, mp)
        _out_channels(block.conv3, dp, mp)
        _normalized(block.bn3, block.relu, dp, mp)
    else:
        _normalized(block.bn2, block.relu, dp, mp)
    if block.down is not None:
        _out_channels(block.down, dp, mp)
        _normalized(block.down_bn, None, dp, mp)
    block.add.shard(((dp, mp, 1, 1),) * 2)


def _resnet(net: ResNet, dp: int, mp: int) -> None:
    _out_channels(net.conv1, dp, mp)
    _normalized(net.bn1, net.relu, dp, mp)
    if net.pool is not None:
        net.pool.max_pool.shard(((dp, mp, 1, 1),))
    for block in net.blocks:
        _residual(block, dp, mp)
    net.mean.shard(((dp, mp, 1, 1),))
    _rows(net.fc, dp, mp)


def _lenet(net: LeNet5, dp: int, mp: int) -> None:
    """Convolutions, of few channels, stay data parallel; the dense layers are split by columns, then by rows."""
    _columns(net.fc1, dp, mp)
    net.relu3.relu.shard(((dp, mp),))
    _rows(net.fc2, dp, mp)
    net.relu4.relu.shard(((dp, 1),))
