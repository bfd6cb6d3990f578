"""Networks that people teach with, built from the public layers, and the strategies under which they are cut."""

from .gpt import GPT, LanguageModelLoss
from .lenet import LeNet5
from .resnet import ResNet, resnet18, resnet50
from .strategies import data_parallel, split_embeddings, tensor_parallel
from .transformer import TransformerClassifier
from .wide_deep import WideDeep

__all__ = [
    "GPT",
    "LanguageModelLoss",
    "LeNet5",
    "ResNet",
    "TransformerClassifier",
    "WideDeep",
    "data_parallel",
    "resnet18",
    "resnet50",
    "split_embeddings",
    "tensor_parallel",
]
