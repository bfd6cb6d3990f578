"""What typing a name of `nn` gives: the class with a complete help text, or an error that says where to look."""

import inspect

import numpy as np
import pytest

from parallel_lab import Tensor, nn, ops
from parallel_lab.graph.trace import trace_network
from parallel_lab.train import dataset
from tests.crossed import each_of

HINTS = {
    "Linear": "nn.Dense",
    "Sequential": "nn.SequentialCell",
    "Module": "nn.Cell",
    "ModuleList": "nn.CellList",
    "AdamW": "nn.AdamWeightDecay is near, but does not correct",
    "Denze": "'Dense'",
    "Batchnorm2d": "'BatchNorm2d'",
    "Conv4d": "'Conv[123]d'",
    "cross_entropy": "Use ops.cross_entropy",
    "dropout": "Use ops.dropout",
    "embedding": "Use ops.embedding",
    "MatMul": "Use ops.MatMul",
    "qqqq": r"dir\(parallel_lab.nn\)",
}


@pytest.mark.parametrize("name", HINTS)
def test_a_name_that_is_not_there_gets_a_hint(name):
    """Wrong for the last ones: a module of that name, which cannot be called."""
    with pytest.raises(AttributeError, match=f"parallel_lab.nn has no '{name}'.*{HINTS[name]}") as caught:
        getattr(nn, name)
    assert caught.value.name == name
    assert not hasattr(nn, name)


def arguments(cls):
    return [p for p in inspect.signature(cls).parameters if p not in ("data_format", "dtype")]


NORMS_AND_FILES = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, dataset.MnistDataset, dataset.Cifar10Dataset)


@each_of("cls", *NORMS_AND_FILES, dataset.GeneratorDataset, dataset.NumpySlicesDataset)
def test_help_of_a_public_class_names_all_its_arguments(cls):
    text = vars(cls)["__doc__"]
    assert [a for a in arguments(cls) if a not in text] == []
    assert "_BatchNorm" not in text and "IndexedDataset" not in text


def test_each_batch_norm_says_which_shape_it_takes():
    forms = ("(n, c, l)", "(n, c, h, w)", "(n, c, d, h, w)")
    for cls, form in zip((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), forms, strict=True):
        assert form in cls.__doc__.splitlines()[0]


def test_identity_gives_what_it_gets():
    x = Tensor(np.arange(6.0))
    assert nn.Identity()(x) is x
    net = nn.SequentialCell(nn.Identity(), nn.ReLU(), nn.Identity())
    graph = trace_network(net, [("x", (4, 3), "float32")]).graph
    assert [n.op_class for n in graph.nodes] == ["ReLU"]


def test_softplus_is_its_operator_with_a_strategy():
    layer, x = nn.Softplus(), np.array([-800.0, -1.0, 0.0, 2.0, 800.0])
    np.testing.assert_allclose(layer(Tensor(x)).asnumpy(), np.logaddexp(0, x))
    assert layer.softplus.shard(((2,),)).name == "Softplus"


def test_losses_keep_their_operators():
    loss = nn.CrossEntropyLoss(weight=Tensor([1.0, 2.0]), ignore_index=0)
    fused = ("class_cross_entropy", "sparse_cross_entropy", "softmax_cross_entropy")
    for name in (*fused, "label_weight", "reduce_sum", "sum_weights", "div"):
        assert isinstance(getattr(loss, name), ops.Primitive), name
    loss.class_cross_entropy.shard(((8, 1), (8,), (1,)))
    graph = trace_network(loss, [("x", (8, 2), "float32"), ("y", (8,), "int32")]).graph
    assert {n.op_class: n.strategy for n in graph.nodes}["ClassCrossEntropy"] == ((8, 1), (8,), (1,))


def test_a_loss_with_its_own_get_loss_uses_it():
    class Largest(nn.L1Loss):
        def get_loss(self, x):
            return ops.reduce_max(x)

    assert Largest()(Tensor([1.0, -4.0]), Tensor([0.0, 0.0])).item() == 4


def test_padding_without_its_mode_says_what_it_may_be():
    with pytest.raises(ValueError, match=r"padding=1 with pad_mode='same'\. padding is 0 unless pad_mode='pad'"):
        nn.Conv2d(3, 4, 3, padding=1)
