"""Layers, losses, optimizers against PyTorch's float64 results, gradients, updates (`tests/recorded/README.md`)."""

import inspect

import numpy as np
import pytest

from parallel_lab import nn
from tests.recorded import layer_rows, loss_rows
from tests.recorded.replay import check_row, check_table
from tests.recorded.torch_table import Recording

RECORDED = Recording("torch_layers.npz")
ROWS = layer_rows.ROWS + loss_rows.ROWS

NOT_IN_PYTORCH = {
    "AdamWeightDecay": "without bias correction; AdamW corrects",
    "Lamb": "not there",
    "LazyAdam": "Adam here, where gradients are dense",
    "FTRL": "not there",
    "LARS": "not there",
    "AdamOffload": "Adam here",
    "ProximalAdagrad": "not there",
    "MultiFieldEmbeddingLookup": "not there",
    "Unfold": "another form of ksizes, strides and rates; compared with the windows themselves",
    "MaxPool1d": "MaxPool2d of height 1 here; compared with the windows themselves",
    "AvgPool1d": "AvgPool2d of height 1 here; compared with the windows themselves",
    "Upsample": "ops.interpolate here",
    "SyncBatchNorm": "PyTorch's needs processes with accelerators; alone it is BatchNorm2d",
    "Cell": "base class",
    "MoE": "not there; compared with a loop over tokens",
    "ContextParallelAttention": "turned by position; compared with scores written out",
    "TokenDense": "Linear that keeps a dim of tokens apart",
    "Norm": "a formula: mindspore/test_transformer_configs.py",
    **dict.fromkeys(("CellList", "CellDict"), "a container that is not called"),
    **dict.fromkeys(("Adadelta", "AdaptiveAvgPool1d", "AdaptiveMaxPool1d", "ChannelShuffle"), "test_tensor_forms.py"),
    **dict.fromkeys(("FocalLoss", "PixelUnshuffle", "RReLU", "Unflatten"), "test_tensor_forms.py"),
    "ResizeBilinear": "test_documented_signatures.py of mindspore",
    "LossBase": "base class",
    "Optimizer": "base class",
    "ClipByNorm": "a formula: test_clip.py",
    "Dropout": "its mask is a function of the element's place; PyTorch draws another",
    "Dropout1d": "as Dropout",
    "Dropout2d": "as Dropout",
    "Dropout3d": "as Dropout",
    **dict.fromkeys(("RNN", "GRU", "LSTM", "RNNCell", "GRUCell", "LSTMCell"), "not recorded: test_recurrent.py"),
    **dict.fromkeys(("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"), "a group norm: test_normalization.py"),
    **dict.fromkeys(
        ("CosineEmbeddingLoss", "DiceLoss", "GaussianNLLLoss", "HingeEmbeddingLoss", "MarginRankingLoss"),
        "not recorded: test_margin_losses.py",
    ),
    **dict.fromkeys(
        ("MultiLabelSoftMarginLoss", "PoissonNLLLoss", "RMSELoss", "SoftMarginLoss", "TripletMarginLoss"),
        "not recorded: test_margin_losses.py",
    ),
    **dict.fromkeys(
        [f"{kind}Pad{n}d" for kind in ("Constant", "Reflection", "Replication") for n in (1, 2, 3)]
        + ["ZeroPad2d", "Pad", "PixelShuffle", "CosineSimilarity", "Softmax2d"],
        "a function of ops: test_padding_layers.py",
    ),
    "TransformerDecoderLayer": "not recorded: test_transformer.py",
    "TransformerDecoder": "not recorded: test_transformer.py",
    "Transformer": "not recorded: test_transformer.py",
    "GradAccumulation": "micro-batches: test_wrap.py",
    "PipelineCell": "micro-batches: test_wrap.py",
}
# what stands around a network: steps of training, micro-batches, gradients among ranks; tested against formulas in
# test_wrap.py and tests/train
AROUND_A_NETWORK = ("parallel_lab.nn.wrap", "parallel_lab.nn.optim.grad_reducer", "parallel_lab.catalog.nn.wrap")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_results_and_gradients_equal_the_recorded_ones(row):
    check_row(row, RECORDED[row.key], lambda tensors: row.ours(*tensors))


def test_the_file_holds_the_rows_of_the_table_and_nothing_else():
    check_table(ROWS, RECORDED)


def test_every_layer_loss_and_optimizer_is_compared_or_said_not_to_be_in_pytorch():
    # under its own name only: MAELoss is L1Loss
    classes = {
        n: c
        for n in nn.__all__
        if inspect.isclass(c := getattr(nn, n))
        and c.__name__ == n
        and c.__module__ not in AROUND_A_NETWORK
        and c is not nn.ShardedCell
    }
    public = {
        n
        for n, c in classes.items()
        if issubclass(c, (nn.Cell, nn.Optimizer)) and not issubclass(c, nn.LearningRateSchedule)
    }
    rows = {row.name for row in ROWS}
    assert public - rows - set(NOT_IN_PYTORCH) == set()
    assert rows & set(NOT_IN_PYTORCH) == set()
    assert rows | set(NOT_IN_PYTORCH) <= public


def test_recorded_gradients_are_not_all_zero():
    optimizers = {n for n in nn.__all__ if inspect.isclass(c := getattr(nn, n)) and issubclass(c, nn.Optimizer)}
    for row in ROWS:
        recorded = RECORDED[row.key]
        if row.name not in optimizers:
            assert any(np.any(g) for g in recorded["grad"]), row.key
        else:
            assert all(np.any(a != b) for a, b in zip(recorded["out"][1:], recorded["out"], strict=False)), row.key
