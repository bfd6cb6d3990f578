"""Networks that people teach with, built from the public layers, and the strategies under which they are split."""

# ruff: noqa: F401 - imported for others: this is a public face

from .context import ContextGPT, ContextMoELoss, context_parallel, placed
from .gpt import GPT, LanguageModelLoss
from .moe_gpt import MoEGPT, MoELanguageModelLoss
from .resnet import ResNet, resnet18, resnet50
from .small import LeNet5, TransformerClassifier, WideDeep
from .strategies import data_parallel, expert_parallel, split_embeddings, tensor_parallel
