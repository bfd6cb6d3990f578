"""Which module of MindSpore's holds what: one page per module path.

    PAGES["nn.optim.momentum"].names["Momentum"]     "parallel_lab.nn:Momentum"
    PAGES["nn"].sources                              ("parallel_lab.nn", ...): everything public in them

A name's target is "module:attribute" of this package, or "@path" for another page. The paths are those of MindSpore 1.0
to 2.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..ops.spellings import MINT


@dataclass(frozen=True)
class Page:
    """One module: what it is, modules whose public names it has, and single names."""

    doc: str
    sources: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def _of(module: str, *names: str) -> dict[str, str]:
    """Names that are called the same in a module of this package."""
    return {name: f"{module}:{name}" for name in names}


FORMS, TENSOR, TRAIN, CHECKPOINT = (
    "parallel_lab.mindspore._forms",
    "parallel_lab.nn.tensor.tensor",
    "parallel_lab.train",
    "parallel_lab.train.checkpoint",
)

DTYPES = _of(
    "parallel_lab.mindspore._dtypes",
    *(
        "bool_",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ),
    *(
        "int_",
        "uint",
        "float_",
        "short",
        "half",
        "single",
        "double",
        "dtype_to_nptype",
        "dtype_to_pytype",
        "pytype_to_dtype",
    ),
)
CONTEXT = {
    **_of(
        "parallel_lab.base.settings.context",
        "GRAPH_MODE",
        "PYNATIVE_MODE",
        "ParallelMode",
        "set_context",
        "get_context",
    ),
    **_of(
        "parallel_lab.base.settings.context",
        "set_auto_parallel_context",
        "get_auto_parallel_context",
        "reset_auto_parallel_context",
    ),
}
ALGORITHM = {
    **_of("parallel_lab.base.settings.context", "set_algo_parameters", "get_algo_parameters", "reset_algo_parameters"),
    **_of(
        "parallel_lab.base.settings.context",
        "set_cost_model_context",
        "get_cost_model_context",
        "reset_cost_model_context",
    ),
}
PARAMETERS = _of(TENSOR, "Parameter", "ParameterTuple")
TENSORS = {**_of(TENSOR, "Tensor"), **_of(FORMS, "tensor")}
INITIALIZERS = _of(
    "parallel_lab.nn.initializer",
    *(
        "initializer",
        "Initializer",
        "Constant",
        "HeNormal",
        "HeUniform",
        "Normal",
        "One",
        "TruncatedNormal",
        "Uniform",
        "XavierUniform",
        "Zero",
    ),
)
JIT = {
    "jit": f"{TRAIN}:jit",
    "ms_function": f"{TRAIN}:jit",
    **dict.fromkeys(("ms_class", "jit_class", "lazy_inline", "no_inline"), f"{FORMS}:unchanged"),
}
SEED = {"set_seed": f"{FORMS}:set_seed", "get_seed": "parallel_lab.base.seeds:get_seed"}
GRADIENTS = _of("parallel_lab.nn.tensor.autograd", "value_and_grad", "grad")
SHARD = {"shard": "parallel_lab.nn.cell:shard", "Layout": "parallel_lab.layout.named_layout:Layout"}

CALLBACKS = _of(
    TRAIN,
    *(
        "Callback",
        "RunContext",
        "LossMonitor",
        "TimeMonitor",
        "ModelCheckpoint",
        "CheckpointConfig",
        "LearningRateScheduler",
        "LambdaCallback",
    ),
    *("EarlyStopping", "ReduceLROnPlateau", "History", "SummaryCollector"),
)
METRICS = _of(
    TRAIN,
    *(
        "Metric",
        "Accuracy",
        "Loss",
        "MAE",
        "MSE",
        "Precision",
        "Recall",
        "F1",
        "Fbeta",
        "TopKCategoricalAccuracy",
        "Top1CategoricalAccuracy",
    ),
    *("Top5CategoricalAccuracy", "get_metric_fn", "rearrange_inputs"),
    *("get_metrics",),
)
METRIC_NAMES = {**METRICS, "names": f"{TRAIN}.metrics:names"}
SAVED = _of(
    CHECKPOINT,
    "save_checkpoint",
    "load_checkpoint",
    "load_param_into_net",
    "merge_sliced_parameter",
    "build_searched_strategy",
)
SAVED_CUT = _of(
    CHECKPOINT,
    "load_distributed_checkpoint",
    "rank_list_for_transform",
    "transform_checkpoint_by_rank",
    "transform_checkpoints",
)
LOSS_SCALERS = _of("parallel_lab.nn.optim.amp", "LossScaler", "StaticLossScaler", "DynamicLossScaler") | _of(
    "parallel_lab.nn.optim.global_norm", "all_finite"
)
LOSS_SCALE_MANAGERS = _of("parallel_lab.nn.optim.amp", "FixedLossScaleManager", "DynamicLossScaleManager")

OPTIMIZERS = ("Adagrad", "Adam", "AdamWeightDecay", "LARS", "Lamb", "Momentum", "Optimizer", "RMSProp", "SGD")
SCHEDULES = (
    "CosineDecayLR",
    "ExponentialDecayLR",
    "InverseDecayLR",
    "LearningRateSchedule",
    "NaturalExpDecayLR",
    "PolynomialDecayLR",
    "WarmUpLR",
)
RATE_LISTS = (
    *(
        "cosine_decay_lr",
        "exponential_decay_lr",
        "inverse_decay_lr",
        "natural_exp_decay_lr",
        "piecewise_constant_lr",
        "polynomial_decay_lr",
    ),
    "warmup_lr",
)
WRAPPERS = (
    *(
        "ForwardValueAndGrad",
        "GradAccumulationCell",
        "MicroBatchInterleaved",
        "ParameterUpdate",
        "PipelineCell",
        "TrainOneStepCell",
    ),
    *("WithEvalCell", "WithGradCell", "WithLossCell"),
)
LOSS_SCALE_CELLS = ("DynamicLossScaleUpdateCell", "FixedLossScaleUpdateCell", "TrainOneStepWithLossScaleCell")

# made of what numpy makes here: Tensors there
MADE = ("arange", "eye", "fill", "full", "full_like", "linspace", "ones", "ones_like", "zeros", "zeros_like")
OPERATOR_FORMS = {
    **_of(FORMS, *MADE, "dtype", "rank", "size"),
    **_of(
        FORMS,
        "Assign",
        "AssignAdd",
        "AssignSub",
        "DType",
        "Depend",
        "Eye",
        "Fill",
        "LinSpace",
        "Ones",
        "OnesLike",
        "Rank",
        "ScalarToArray",
    ),
    **_of(
        FORMS,
        "ScalarToTensor",
        "Shape",
        "Size",
        "Zeros",
        "ZerosLike",
        "Receive",
        "NeighborExchange",
        "Dropout",
        "dropout",
    ),
}
COMPOSITE = {
    **_of("parallel_lab.nn.tensor.functional", "GradOperation", "HyperMap", "Map", "MultitypeFuncGraph"),
    **{"Partial": "parallel_lab.nn.tensor.functional:Partial", "partial": "parallel_lab.nn.tensor.functional:Partial"},
    **_of("parallel_lab.nn.tensor.functional", "depend", "assign_add", "assign_sub"),
}
PRIMITIVES = {
    **_of("parallel_lab.ops", "Primitive"),
    **dict.fromkeys(("constexpr", "prim_attr_register"), f"{FORMS}:unchanged"),
}
CLIPS = _of("parallel_lab.nn.optim.clip", "clip_by_global_norm", "clip_by_norm")
OPERATORS = {**OPERATOR_FORMS, **CLIPS, **COMPOSITE, **GRADIENTS, **PRIMITIVES, "shard": "parallel_lab.nn.cell:shard"}
COMMUNICATION_OPERATORS = {
    **_of(
        "parallel_lab.ops",
        "AllGather",
        "AllReduce",
        "AlltoAll",
        "Barrier",
        "Broadcast",
        "CollectiveGather",
        "CollectiveScatter",
        "Reduce",
    ),
    **_of("parallel_lab.ops", "ReduceOp", "ReduceScatter", "Send"),
    **_of(FORMS, "Receive", "NeighborExchange"),
}

# PyTorch's spellings of layers that are this package's too; those of operators are in their declarations
MINT_LAYERS = (
    "ELU",
    "GELU",
    "GroupNorm",
    "Identity",
    "L1Loss",
    "LogSoftmax",
    "MSELoss",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
)

ROOT = {
    **DTYPES,
    **CONTEXT,
    **ALGORITHM,
    **PARAMETERS,
    **TENSORS,
    **JIT,
    **SEED,
    **GRADIENTS,
    **SHARD,
    **CALLBACKS,
    **SAVED,
    **SAVED_CUT,
    **LOSS_SCALE_MANAGERS,
    **_of(FORMS, "set_device", "set_deterministic", "mutable", "run_check"),
    "Model": f"{TRAIN}:Model",
    "__version__": f"{FORMS}:VERSION",
    "dtype": "@common.dtype",
}


def _several(
    doc: str, paths: Iterable[str], names: Mapping[str, str], sources: tuple[str, ...] = ()
) -> dict[str, Page]:
    """Pages that hold the same."""
    return {path: Page(doc, sources, names) for path in paths}


PAGES: dict[str, Page] = {
    "": Page("MindSpore's names for this package.", names=ROOT),
    "context": Page("Settings of the run and of parallel training.", names={**CONTEXT, **ALGORITHM}),
    # ---- nn ----
    "nn": Page(
        "Networks: Cell, layers, losses, optimizers.",
        ("parallel_lab.nn",),
        {k: v for k, v in METRIC_NAMES.items() if k != "get_metrics"},
    ),
    "nn.cell": Page("The base of networks.", names=_of("parallel_lab.nn", "Cell")),
    "nn.utils": Page("Delayed initialisation.", ("parallel_lab.nn.utils",)),
    "nn.layer": Page("Layers.", ("parallel_lab.nn",)),
    **_several(
        "Layers.",
        (
            f"nn.layer.{p}"
            for p in (
                "activation",
                "basic",
                "container",
                "conv",
                "dense",
                "embedding",
                "normalization",
                "pooling",
                "transformer",
            )
        ),
        {},
        ("parallel_lab.nn",),
    ),
    **_several(
        "Losses.",
        ("nn.loss", "nn.loss.loss"),
        {},
        ("parallel_lab.nn.layers.losses", "parallel_lab.nn.layers.class_losses"),
    ),
    "nn.optim": Page("Optimizers.", names=_of("parallel_lab.nn", *OPTIMIZERS)),
    "nn.optim.momentum": Page("Momentum.", names=_of("parallel_lab.nn", "Momentum")),
    "nn.optim.sgd": Page("SGD.", names=_of("parallel_lab.nn", "SGD")),
    "nn.optim.adam": Page("Adam.", names=_of("parallel_lab.nn", "Adam", "AdamWeightDecay")),
    "nn.optim.ada_grad": Page("Adagrad.", names=_of("parallel_lab.nn", "Adagrad")),
    "nn.optim.rmsprop": Page("RMSProp.", names=_of("parallel_lab.nn", "RMSProp")),
    "nn.optim.lamb": Page("Lamb.", names=_of("parallel_lab.nn", "Lamb")),
    "nn.optim.lars": Page("LARS.", names=_of("parallel_lab.nn", "LARS")),
    "nn.optim.optimizer": Page("The base of optimizers.", names=_of("parallel_lab.nn", "Optimizer")),
    "nn.learning_rate_schedule": Page("Learning rates by step.", names=_of("parallel_lab.nn", *SCHEDULES)),
    "nn.dynamic_lr": Page("Lists of learning rates.", names=_of("parallel_lab.nn", *RATE_LISTS)),
    "nn.metrics": Page("Metrics (in train since 2.0).", names=METRIC_NAMES),
    "nn.wrap": Page(
        "Cells around a network.",
        names=_of("parallel_lab.nn", *WRAPPERS, *LOSS_SCALE_CELLS, "DistributedGradReducer", "PipelineGradReducer"),
    ),
    "nn.wrap.cell_wrapper": Page("Cells around a network.", names=_of("parallel_lab.nn", *WRAPPERS)),
    "nn.wrap.grad_reducer": Page(
        "Gradients of all ranks.", names=_of("parallel_lab.nn", "DistributedGradReducer", "PipelineGradReducer")
    ),
    "nn.wrap.loss_scale": Page("Steps with a scaled loss.", names=_of("parallel_lab.nn", *LOSS_SCALE_CELLS)),
    # ---- ops ----
    "ops": Page("Operators.", ("parallel_lab.ops",), OPERATORS),
    **_several("Operators.", ("ops.operations", "ops.function", "ops.auto_generate"), OPERATORS, ("parallel_lab.ops",)),
    **_several(
        "Operators.",
        (f"ops.operations.{p}_ops" for p in ("array", "math", "nn", "inner", "other")),
        OPERATORS,
        ("parallel_lab.ops",),
    ),
    "ops.operations.comm_ops": Page("Communication that is called by hand.", names=COMMUNICATION_OPERATORS),
    "ops.functional": Page("Operators as functions.", ("parallel_lab.ops",), OPERATORS),
    **_several(
        "Functions of functions.",
        ("ops.composite", "ops.composite.base"),
        {**COMPOSITE, **GRADIENTS},
        ("parallel_lab.nn.optim.clip",),
    ),
    "ops.primitive": Page("The base of operators.", names=PRIMITIVES),
    # ---- mint ----
    "mint": Page(
        "Operators in PyTorch's spelling.",
        names={
            **{name: f"parallel_lab.ops:{name}" for name in MINT if "." not in name},
            **_of(
                FORMS,
                "arange",
                "eye",
                "full",
                "full_like",
                "linspace",
                "ones",
                "ones_like",
                "zeros",
                "zeros_like",
                "flatten",
            ),
            **{"add": f"{FORMS}:mint_add", "sub": f"{FORMS}:mint_sub", "transpose": f"{FORMS}:mint_transpose"},
        },
    ),
    "mint.nn": Page(
        "Layers whose arguments are the same in both spellings.", names=_of("parallel_lab.nn", *MINT_LAYERS)
    ),
    "mint.nn.functional": Page(
        "Functions of layers.",
        names=_of("parallel_lab.ops", *(own for name, own in MINT.items() if name.startswith("functional."))),
    ),
    # ---- common ----
    "common": Page("Tensors, parameters, dtypes.", names={**DTYPES, **PARAMETERS, **TENSORS, **JIT, **SEED}),
    "common.api": Page("Compiling functions.", names=JIT),
    "common.dtype": Page("dtypes, which are numpy's.", names=DTYPES),
    "common.initializer": Page("Initial values.", names=INITIALIZERS),
    "common.parameter": Page("Parameters.", names=PARAMETERS),
    "common.seed": Page("The global seed.", names=SEED),
    "common.tensor": Page("Tensors.", names=TENSORS),
    # ---- communication ----
    **_several(
        "Ranks and groups.", ("communication", "communication.management"), {}, ("parallel_lab.train.communication",)
    ),
    # ---- data ----
    **_several(
        "Data pipelines.", ("dataset", "dataset.engine", "dataset.engine.datasets"), {}, ("parallel_lab.train.dataset",)
    ),
    "dataset.config": Page("Settings of data pipelines.", ("parallel_lab.train.dataset.config",)),
    "dataset.core": Page("Settings of data pipelines."),
    "dataset.core.config": Page("Settings of data pipelines.", ("parallel_lab.train.dataset.config",)),
    **_several(
        "Operations on pictures.",
        (f"dataset.vision{p}" for p in ("", ".c_transforms", ".transforms", ".utils")),
        {},
        ("parallel_lab.train.dataset.vision",),
    ),
    **_several(
        "Operations on columns.",
        (f"dataset.transforms{p}" for p in ("", ".c_transforms", ".transforms")),
        {},
        ("parallel_lab.train.dataset.transforms",),
    ),
    # ---- training ----
    "train": Page(
        "Model, callbacks, metrics.",
        names={**CALLBACKS, **METRICS, **SAVED, **LOSS_SCALE_MANAGERS, "Model": f"{TRAIN}:Model"},
    ),
    "train.model": Page("The training loop.", names={"Model": f"{TRAIN}:Model"}),
    "train.callback": Page("What happens around steps and epochs.", names=CALLBACKS),
    "train.metrics": Page("Metrics.", names=METRIC_NAMES),
    "train.serialization": Page("Checkpoints.", names={**SAVED, **SAVED_CUT}),
    "train.loss_scale_manager": Page("Loss scales.", names=LOSS_SCALE_MANAGERS),
    "train.amp": Page("Loss scales.", names={**LOSS_SCALERS, **LOSS_SCALE_MANAGERS}),
    "amp": Page("Loss scales.", names={**LOSS_SCALERS, **LOSS_SCALE_MANAGERS}),
    # ---- parallel ----
    "parallel": Page(
        "Parallel training.",
        names={**ALGORITHM, **SHARD, **SAVED_CUT, "AutoParallel": f"{TRAIN}.auto_parallel:AutoParallel"},
    ),
    "parallel.auto_parallel": Page(
        "A network that is split over ranks.", names={"AutoParallel": f"{TRAIN}.auto_parallel:AutoParallel"}
    ),
    "parallel.shard": Page("Strategies for functions, with named axes.", names=SHARD),
    "parallel.algo_parameter_config": Page("Settings of strategy searches.", names=ALGORITHM),
    # the only path under which MindSpore has them
    "parallel._cost_model_context": Page(
        "Settings of the cost model.", names={n: at for n, at in ALGORITHM.items() if "cost_model" in n}
    ),
    "parallel.checkpoint_transform": Page("Checkpoints for other strategies.", names=SAVED_CUT),
    "parallel.nn": Page(
        "Cells around a network.",
        names=_of("parallel_lab.nn", "GradAccumulation", "MicroBatchInterleaved", "Pipeline", "PipelineGradReducer"),
    ),
    # ---- the rest ----
    "runtime": Page("Settings of a device.", names=_of(FORMS, "set_memory", "launch_blocking", "dispatch_threads_num")),
    "log": Page(
        "Python's logging, under the logger 'mindspore'.",
        names=_of("parallel_lab.mindspore._log", "critical", "debug", "error", "info", "warning"),
    ),
}
