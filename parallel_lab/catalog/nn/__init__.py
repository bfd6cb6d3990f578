"""Layers, losses, schedules and optimizer rules. `catalog` makes the names that are imported here public in `nn`."""

# ruff: noqa: F401 - imported for others: `nn` shows them

from types import ModuleType as _ModuleType

from .activations import (
    CELU,
    ELU,
    GLU,
    FastGelu,
    Hardtanh,
    HShrink,
    HSigmoid,
    HSwish,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU6,
    SeLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmin,
    Softplus,
    SoftShrink,
    Softsign,
    Tanhshrink,
    Threshold,
)
from .clipping import ClipByNorm, clip_by_global_norm, clip_by_norm, clip_by_value
from .dropout import Dropout1d, Dropout2d, Dropout3d
from .embedding import Embedding, EmbeddingLookup, MultiFieldEmbeddingLookup
from .lars import LARS
from .losses import (
    BCELoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MAELoss,
    NLLLoss,
    SmoothL1Loss,
    SoftmaxCrossEntropyExpand,
    SoftmaxCrossEntropyWithLogits,
)
from .lr_schedules import (
    CosineDecayLR,
    ExponentialDecayLR,
    InverseDecayLR,
    NaturalExpDecayLR,
    PolynomialDecayLR,
    WarmUpLR,
    cosine_decay_lr,
    exponential_decay_lr,
    inverse_decay_lr,
    natural_exp_decay_lr,
    piecewise_constant_lr,
    polynomial_decay_lr,
    warmup_lr,
)
from .margin_losses import (
    CosineEmbeddingLoss,
    DiceLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    MarginRankingLoss,
    MultiLabelSoftMarginLoss,
    PoissonNLLLoss,
    RMSELoss,
    SoftMarginLoss,
    TripletMarginLoss,
)
from .normalization import GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, RMSNorm
from .optimizer_rules import (
    ASGD,
    FTRL,
    AdaFactor,
    Adagrad,
    AdaMax,
    AdamOffload,
    LazyAdam,
    ProximalAdagrad,
    RMSProp,
    Rprop,
)
from .padding import (
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    CosineSimilarity,
    Pad,
    PixelShuffle,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    Softmax2d,
    ZeroPad2d,
)
from .pooling import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool3d,
    Upsample,
)
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .transformer import Transformer, TransformerDecoder, TransformerDecoderLayer
from .wrap import (
    FixedLossScaleManager,
    ForwardValueAndGrad,
    GradAccumulationCell,
    MicroBatchInterleaved,
    ParameterUpdate,
    Pipeline,
    PipelineGradReducer,
    WithEvalCell,
    WithGradCell,
)

LAYERS = {n: value for n, value in globals().items() if not n.startswith("_") and not isinstance(value, _ModuleType)}
