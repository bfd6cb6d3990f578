"""Which module of MindSpore's holds what: one page per module path.

    PAGES["nn.optim.momentum"].names["Momentum"]     "parallel_lab.nn:Momentum"
    PAGES["nn"].sources                              ("parallel_lab.nn", ...): everything public in them

A name's target is "module:attribute" of this package, or "@path" for another page. Paths: MindSpore 1.0 to 2.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..ops.spellings import MINT


@dataclass(frozen=True)
class Page:
    """One module: what it is, modules whose public names it has, and single names."""

    doc: str
    sources: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


class MintNames(Mapping[str, str]):
    """A page of `mint`: operators whose declaration has a name there (`mint=`), and others. Operators are listed when
    the page is first read, because that opens the catalogue.

    prefix  "functional." for mint.nn.functional
    others  names that no declaration gives, or gives otherwise
    """

    def __init__(self, prefix: str, others: Mapping[str, str]) -> None:
        self._prefix, self._others = prefix, others

    @cached_property
    def _targets(self) -> dict[str, str]:
        own = {name.removeprefix(self._prefix): f"parallel_lab.ops:{operator}" for name, operator in self._declared()}
        return {**own, **self._others}

    def _declared(self) -> list[tuple[str, str]]:
        return [(k, v) for k, v in MINT.items() if k.startswith(self._prefix) and "." not in k[len(self._prefix) :]]

    def __getitem__(self, name: str) -> str:
        return self._targets[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._targets)

    def __len__(self) -> int:
        return len(self._targets)


def _of(module: str, names: str) -> dict[str, str]:
    """Names, written with blanks between them, that are called the same in a module of this package."""
    return {name: f"{module}:{name}" for name in names.split()}


FORMS, EXECUTOR = "parallel_lab.mindspore._forms", "parallel_lab.mindspore._executor"
CHECKPOINT, CONTEXTS = "parallel_lab.mindspore._checkpoint", "parallel_lab.base.settings.context"
TENSOR, PARAMETER = "parallel_lab.nn.tensor.tensor", "parallel_lab.nn.tensor.parameter"
TRAIN, FUNCTIONAL = "parallel_lab.train", "parallel_lab.nn.tensor.functional"

DTYPES = _of(
    FORMS,
    "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 int_ uint float_ short "
    "half single double dtype_to_nptype dtype_to_pytype pytype_to_dtype int_type uint_type float_type number_type Type",
)
CONTEXT = _of(
    CONTEXTS,
    "GRAPH_MODE PYNATIVE_MODE ParallelMode set_context get_context set_auto_parallel_context get_auto_parallel_context "
    "set_offload_context get_offload_context reset_auto_parallel_context",
)
COST_MODEL = _of(CONTEXTS, "set_cost_model_context get_cost_model_context reset_cost_model_context")
ALGORITHM = _of(CONTEXTS, "set_algo_parameters get_algo_parameters reset_algo_parameters") | COST_MODEL
PARAMETERS = _of(PARAMETER, "Parameter ParameterTuple")
TENSORS = _of(TENSOR, "Tensor") | _of(FORMS, "tensor") | _of("parallel_lab.nn.tensor.dynamic_shapes", "Symbol")
INITIALIZERS = _of(
    "parallel_lab.catalog.nn.initial_values",
    "initializer Initializer Constant Dirac HeNormal HeUniform Identity Normal One Orthogonal Sparse TruncatedNormal "
    "Uniform VarianceScaling XavierNormal XavierUniform Zero _Initializer _INITIALIZER_ALIAS _assignment "
    "_calculate_correct_fan _calculate_fan_in_and_fan_out _calculate_gain _init_random_normal "
    "_init_random_uniform _init_truncated_normal _register",
)
INTERNALS, CONTEXT_READERS = "parallel_lab.mindspore._internals", "parallel_lab.mindspore._context"
DERIVATIVES = "parallel_lab.mindspore._derivatives"
JIT = {
    **dict.fromkeys(("jit", "ms_function"), f"{TRAIN}:jit"),
    **_of(FORMS, "lazy_inline sync_pipeline_shared_parameters"),
    **dict.fromkeys(("no_inline", "_function_forbid_reuse"), f"{FORMS}:unchanged"),
    **dict.fromkeys(("ms_class", "jit_class"), f"{FORMS}:jit_class"),
    "JitConfig": f"{CONTEXT_READERS}:JitConfig",
    **_of("parallel_lab.mindspore._flops", "flops_collection"),
    **_of(DERIVATIVES, "_no_grad"),
}
SEED = {"set_seed": f"{FORMS}:set_seed", "get_seed": "parallel_lab.base.seeds:get_seed"}
GRADIENTS = _of("parallel_lab.nn.tensor.autograd", "value_and_grad grad")
GRADIENTS |= _of(DERIVATIVES, "get_grad jacfwd jacrev jvp vjp vmap")
RECOMPUTE = _of("parallel_lab.nn.tensor.recompute", "recompute")
SHARD = {"shard": "parallel_lab.nn.sharded_cell:shard", "Layout": "parallel_lab.layout.named_layout:Layout"}
RESHARD = _of(f"{TRAIN}.reshard", "reshard")

HELPER = "parallel_lab.mindspore._dataset_helper"
HELPERS = _of(HELPER, "DatasetHelper connect_network_with_dataset data_sink")
MODEL = _of(TRAIN, "Model") | HELPERS
CALLBACKS = _of(
    TRAIN,
    "Callback RunContext LossMonitor TimeMonitor ModelCheckpoint CheckpointConfig LearningRateScheduler LambdaCallback "
    "EarlyStopping ReduceLROnPlateau History SummaryCollector OnRequestExit",
) | _of("parallel_lab.mindspore._flops", "FlopsUtilizationCollector")
METRICS = _of(
    TRAIN,
    "Metric Accuracy Loss MAE MSE Precision Recall F1 Fbeta TopKCategoricalAccuracy Top1CategoricalAccuracy "
    "Top5CategoricalAccuracy get_metric_fn rearrange_inputs",
)
GET_METRICS = _of(TRAIN, "get_metrics")
METRIC_NAMES = {**METRICS, "names": f"{TRAIN}.metrics:names"}
AUTO_PARALLEL = _of(f"{TRAIN}.auto_parallel", "AutoParallel")
OPERATOR_STRATEGIES = _of(f"{TRAIN}.auto_parallel", "set_op_strategy_config")
SAVED = _of(
    CHECKPOINT,
    "save_checkpoint load_checkpoint load_param_into_net merge_sliced_parameter build_searched_strategy "
    "restore_group_info_list",
)
RESLICED = _of(
    CHECKPOINT,
    "load_distributed_checkpoint rank_list_for_transform transform_checkpoint_by_rank transform_checkpoints "
    "merge_pipeline_strategys",
)
CONVERTED = {  # since 2.7
    "rank_list_for_convert": f"{CHECKPOINT}:rank_list_for_transform",
    "convert_checkpoint_by_rank": f"{CHECKPOINT}:transform_checkpoint_by_rank",
    "convert_checkpoints": f"{CHECKPOINT}:transform_checkpoints",
}
LOSS_SCALE_MANAGERS = _of("parallel_lab.nn", "FixedLossScaleManager DynamicLossScaleManager")
LOSS_SCALES = {
    **_of("parallel_lab.nn", "LossScaler"),
    **LOSS_SCALE_MANAGERS,
    **_of(f"{TRAIN}.mixed", "auto_mixed_precision get_white_list get_black_list"),
    **_of("parallel_lab.mindspore._amp", "custom_mixed_precision build_train_network init_status all_finite"),
    **_of("parallel_lab.mindspore._amp", "AMP_BLACK_LIST AMP_WHITE_LIST StaticLossScaler DynamicLossScaler"),
}

IN_FILES_OF_THEIR_NAME = "ASGD AdaFactor AdaMax Adadelta FTRL LARS Lamb LazyAdam Momentum RMSProp Rprop SGD"
OTHER_FILES = {"proximal_ada_grad": "ProximalAdagrad", "ada_grad": "Adagrad"}
OPTIMIZERS = f"{IN_FILES_OF_THEIR_NAME} Adagrad Adam AdamOffload AdamWeightDecay Optimizer ProximalAdagrad"
SCHEDULES = (
    "CosineDecayLR ExponentialDecayLR InverseDecayLR LearningRateSchedule NaturalExpDecayLR PolynomialDecayLR WarmUpLR"
)
RATE_LISTS = (
    "cosine_decay_lr exponential_decay_lr inverse_decay_lr natural_exp_decay_lr piecewise_constant_lr "
    "polynomial_decay_lr warmup_lr"
)
WRAPPERS = (
    "ForwardValueAndGrad GradAccumulationCell MicroBatchInterleaved ParameterUpdate PipelineCell TrainOneStepCell "
    "WithEvalCell WithGradCell WithLossCell"
)
VIRTUAL, STEPS_OF_SLICES = "_VirtualDatasetCell", "_TrainPipelineAccuStepCell _TrainGradAccuStepCell"
SCALED_STEPS_OF_SLICES = "_TrainPipelineWithLossScaleCell _TrainGradAccuWithLossScaleCell"
GRAD_REDUCERS = "DistributedGradReducer PipelineGradReducer"
LOSS_SCALE_CELLS = "DynamicLossScaleUpdateCell FixedLossScaleUpdateCell TrainOneStepWithLossScaleCell"

SLICES = "_get_slice_index _get_tensor_slice_index _get_tensor_strategy _load_tensor _load_tensor_by_layout"
CONSTANTS = "cost_model_context " + " ".join(
    f"_{how}_{key}" for key in ("multi_subgraphs", "algo_single_loop", "rp_matmul_mem_coef") for how in ("get", "set")
)

# made of what numpy makes here: Tensors there
MADE = "arange eye full full_like linspace ones ones_like zeros zeros_like"
OPERATOR_FORMS = _of(
    FORMS,
    f"{MADE} "
    "argmax argmin fill flatten one_hot typeof dtype rank size tuple_to_array DType Depend Eye Fill "
    "FillV2 LinSpace LinSpaceExt Ones OnesLike Range Rank ScalarToArray ScalarToTensor Shape Size TupleToArray "
    "Zeros ZerosLike OnesLikeExt ZerosLikeExt Receive NeighborExchange NeighborExchangeV2 Dropout dropout "
    "AlltoAllV BatchISendIRecv FloatStatus NPUAllocFloatStatus NPUClearFloatStatus NPUGetFloatStatus",
) | {
    "range": f"{FORMS}:range_",
    "scalar_to_tensor": f"{FORMS}:scalar_to_tensor",
    "deepcopy": "parallel_lab.ops:identity",
    "identity": f"{FORMS}:identity",
    "GetNext": f"{HELPER}:GetNext",
    **{f"tensor_{name}": f"parallel_lab.ops:{name}" for name in _of("", "add div mod mul pow sub ge gt le lt")},
    "tensor_floordiv": "parallel_lab.ops:floor_div",
}
FUNCTIONS = _of(
    "parallel_lab.mindspore._functions",
    "all_gather_matmul gelu igamma igammac leaky_relu matmul_reduce_scatter norm pad prod relu roll scalar_to_array "
    "scatter_nd softmax subtract",
) | _of("parallel_lab.mindspore._mint_nn", "group_norm softplus")
CLASSES = _of(
    "parallel_lab.mindspore._classes",
    "Cross Dropout2D Dropout3D DropoutDoMask DropoutGenMask GroupNorm HistogramSummary ImageSummary InvertPermutation "
    "Morph print_ ResizeBilinear ResizeBilinearV2 Round ScalarSummary ScatterNd TensorDump TensorSummary Unique",
)
RANDOM = "parallel_lab.mindspore._random"
RANDOM_CLASSES = (
    "Gamma LogUniformCandidateSampler Multinomial Poisson RandomChoiceWithMask Randperm StandardLaplace StandardNormal "
    "TruncatedNormal UniformCandidateSampler UniformInt UniformReal"
)
RANDOM_FUNCTIONS = (
    "bernoulli choice_with_mask gamma laplace log_uniform_candidate_sampler multinomial normal rand rand_like randint "
    "randint_like randn randn_like random_gamma random_poisson randperm shuffle standard_laplace standard_normal "
    "uniform uniform_candidate_sampler"
)
MINT_RANDOM = "bernoulli multinomial normal randint randint_like randperm"
COMPOSITE = {
    **dict.fromkeys(("add_flags", "core"), f"{FORMS}:unchanged"),
    **_of(FUNCTIONAL, "GradOperation"),
    **_of("parallel_lab.catalog.nn.forms", "HyperMap"),
    **_of(
        DERIVATIVES,
        "Map MultitypeFuncGraph Partial control_depend depend make_range make_tuple mixed_precision_cast partial "
        "tuple_setitem",
    ),
    **_of(
        DERIVATIVES,
        "scalar_add scalar_eq scalar_ge scalar_gt scalar_le scalar_lt scalar_mod scalar_mul scalar_ne scalar_sub "
        "scalar_div scalar_floordiv scalar_usub bool_not bool_and bool_or bool_eq is_ is_not tuple_getitem tuple_len "
        "list_len dict_len shape_mul string_eq",
    ),
}
PRIMITIVES = {
    **_of("parallel_lab.ops", "Primitive"),
    **_of(
        "parallel_lab.catalog.nn.custom", "Custom PrimitiveWithInfer prim_attr_register InsertGradientOf HookBackward"
    ),
    "PrimitiveWithCheck": "parallel_lab.catalog.nn.custom:PrimitiveWithInfer",
    **dict.fromkeys(("constexpr", "_primexpr"), f"{FORMS}:unchanged"),
}
CLIPS = _of("parallel_lab.nn", "clip_by_global_norm clip_by_norm")
UNEVEN = _of("parallel_lab.mindspore._classes", "AllGatherV ReduceScatterV")
OPERATORS = {
    **OPERATOR_FORMS,
    **UNEVEN,
    **FUNCTIONS,
    **CLASSES,
    **_of(RANDOM, f"{RANDOM_CLASSES} {RANDOM_FUNCTIONS}"),
    **CLIPS,
    **COMPOSITE,
    **GRADIENTS,
    **PRIMITIVES,
    "shard": SHARD["shard"],
    **RESHARD,
}
COMMUNICATION_OPERATORS = {
    **_of(
        "parallel_lab.ops",
        "AllGather AllReduce AlltoAll Barrier Broadcast CollectiveGather CollectiveScatter Reduce ReduceOp "
        "ReduceScatter Send",
    ),
    **_of(FORMS, "Receive NeighborExchange NeighborExchangeV2 AlltoAllV BatchISendIRecv"),
    **UNEVEN,
    **_of(INTERNALS, "_VirtualDataset"),
}

# PyTorch's spellings of layers that are this package's too; those of operators are in their declarations
MINT_LAYERS = (
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool1d BCELoss CELU ConstantPad1d ConstantPad2d ConstantPad3d "
    "CosineEmbeddingLoss CrossEntropyLoss Dropout2d Flatten Identity L1Loss LogSigmoid MSELoss Mish NLLLoss PReLU "
    "PixelShuffle ReLU ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d "
    "ReplicationPad3d Sigmoid Softsign Tanh Tanhshrink Upsample ZeroPad2d"
)
MINT_FORMS = "parallel_lab.mindspore._mint"
MINT_WORDS = (
    "add argmax argmin argsort bincount broadcast_to cat cdist chunk concat count_nonzero cummax cummin cumsum diff "
    "empty empty_like expand_as flatten flip index_add item lerp log_softmax logsumexp max median meshgrid min mv norm "
    "permute repeat_interleave roll round scatter select softmax sort split squeeze stack std std_mean sub swapaxes "
    "take tensor_split tile transpose unique var var_mean"
)
MINT_NN = {
    **_of("parallel_lab.nn", MINT_LAYERS),
    **_of(
        MINT_FORMS,
        "AvgPool2d AvgPool3d BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Conv2d Conv3d ConvTranspose2d "
        "Dropout ELU Embedding GELU GLU GroupNorm Hardtanh LeakyReLU Linear LogSoftmax MaxPool2d ReLU6 SiLU "
        "SmoothL1Loss Softmax SyncBatchNorm Threshold",
    ),
    **_of(f"{MINT_FORMS}_nn", "AdaptiveAvgPool3d Fold KLDivLoss LayerNorm Softplus Unfold ZeroPad1d ZeroPad3d"),
    "Hardshrink": "parallel_lab.nn:HShrink",
    "Hardsigmoid": "parallel_lab.nn:HSigmoid",
    "Hardswish": "parallel_lab.nn:HSwish",
    "SELU": "parallel_lab.nn:SeLU",
    "Softshrink": "parallel_lab.nn:SoftShrink",
}

ROOT = {
    **DTYPES,
    **CONTEXT,
    **ALGORITHM,
    **PARAMETERS,
    **TENSORS,
    **JIT,
    **SEED,
    **GRADIENTS,
    **RECOMPUTE,
    **SHARD,
    **RESHARD,
    **CALLBACKS,
    **SAVED,
    **RESLICED,
    **LOSS_SCALE_MANAGERS,
    **MODEL,
    **_of(FORMS, "set_device set_deterministic set_recursion_limit mutable run_check"),
    "__version__": f"{FORMS}:VERSION",
    "dtype": "@common.dtype",
}

TRANSFORMER = {
    **_of(
        "parallel_lab.mindspore._transformer",
        "CrossEntropyLoss Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder "
        "TransformerEncoderLayer _get_lambda_func",
    ),
    **_of(
        "parallel_lab.mindspore._transformer_layers",
        "AttentionMask FeedForward MultiHeadAttention VocabEmbedding _Dropout _LayerNorm _Linear",
    ),
    **_of("parallel_lab.mindspore._transformer_sparse", "FixedSparseAttention"),
    **_of(
        "parallel_lab.mindspore._transformer_configs",
        "EmbeddingOpParallelConfig MoEConfig MoEParallelConfig OpParallelConfig TransformerOpParallelConfig "
        "TransformerRecomputeConfig _Config _PipeLineConfig default_dpmp_config default_embedding_parallel_config "
        "default_moe_config default_moeparallel_config default_transformer_config default_transformer_recompute_config",
    ),
    # parallel.nn has them since 2.5
    **_of("parallel_lab.nn", "GradAccumulation MicroBatchInterleaved Pipeline PipelineGradReducer"),
}


def _nn(doc: str, names: str) -> Page:
    """A page of names of parallel_lab.nn."""
    return Page(doc, names=_of("parallel_lab.nn", names))


def _several(doc: str, paths: str, names: Mapping[str, str], *sources: str) -> dict[str, Page]:
    """Pages that hold the same; their paths, with blanks between them."""
    return {path: Page(doc, sources, names) for path in paths.split()}


PAGES: dict[str, Page] = {
    "": Page("MindSpore's names for this package.", names=ROOT),
    "context": Page("Settings of the run and of parallel training.", names={**CONTEXT, **ALGORITHM}),
    # ---- nn ----
    "nn": Page(
        "Networks: Cell, layers, losses, optimizers.",
        ("parallel_lab.nn", "parallel_lab.mindspore._adasum"),
        METRIC_NAMES,
    ),
    "nn.cell": _nn("The base of networks.", "Cell"),
    "nn.utils": Page("Delayed initialisation.", ("parallel_lab.nn.utils",)),
    **_several(
        "Layers.",
        "nn.layer nn.layer.activation nn.layer.basic nn.layer.container nn.layer.conv nn.layer.dense "
        "nn.layer.embedding nn.layer.normalization nn.layer.pooling nn.layer.transformer",
        {},
        "parallel_lab.nn",
    ),
    "nn.layer.rnn_cells": Page("Recurrent cells.", ("parallel_lab.nn",), _of(INTERNALS, "RNNCellBase")),
    **_several(
        "Losses.",
        "nn.loss nn.loss.loss",
        {},
        "parallel_lab.nn.layers.losses",
        "parallel_lab.nn.layers.class_losses",
        "parallel_lab.catalog.nn.losses",
    ),
    "nn.optim": _nn("Optimizers.", OPTIMIZERS),
    "nn.optim.adam": _nn("Adam.", "Adam AdamOffload AdamWeightDecay"),
    **{f"nn.optim.{name.lower()}": _nn(f"{name}.", name) for name in IN_FILES_OF_THEIR_NAME.split()},
    "nn.optim.adasum": Page("AdaSum.", ("parallel_lab.mindspore._adasum",)),
    **{f"nn.optim.{path}": _nn(f"{n}.", n) for path, n in OTHER_FILES.items()},
    "nn.optim.optimizer": Page(
        "The base of optimizers.",
        names={**_of("parallel_lab.nn", "Optimizer"), "opt_init_args_register": f"{FORMS}:unchanged"},
    ),
    "nn.learning_rate_schedule": _nn("Learning rates by step.", SCHEDULES),
    "nn.dynamic_lr": _nn("Lists of learning rates.", RATE_LISTS),
    "nn.metrics": Page("Metrics (in train since 2.0).", names={**METRIC_NAMES, **GET_METRICS}),
    "nn.wrap": _nn("Cells around a network.", f"{WRAPPERS} {LOSS_SCALE_CELLS} {GRAD_REDUCERS}"),
    "nn.wrap.cell_wrapper": Page(
        "Cells around a network.",
        names=_of("parallel_lab.nn", WRAPPERS) | _of(INTERNALS, f"{VIRTUAL} {VIRTUAL}Triple {STEPS_OF_SLICES}"),
    ),
    "nn.wrap.grad_reducer": _nn("Gradients of all ranks.", GRAD_REDUCERS),
    "nn.wrap.loss_scale": Page(
        "Steps with a scaled loss.",
        names=_of("parallel_lab.nn", LOSS_SCALE_CELLS) | _of(INTERNALS, SCALED_STEPS_OF_SLICES),
    ),
    # ---- ops ----
    **_several(
        "Operators.",
        "ops ops.operations ops.function ops.auto_generate ops.functional ops.operations.array_ops "
        "ops.operations.math_ops ops.operations.nn_ops ops.operations._inner_ops ops.operations.inner_ops "
        "ops.operations._infer_ops ops.operations._quant_ops ops.operations.other_ops ops.auto_generate.gen_ops_prim",
        OPERATORS,
        "parallel_lab.ops",
        "parallel_lab.mindspore._optimizer_primitives",
    ),
    "ops.operations.comm_ops": Page("Communication that is called by hand.", names=COMMUNICATION_OPERATORS),
    **_several(
        "Functions of functions.",
        "ops.composite ops.composite.base",
        {**COMPOSITE, **GRADIENTS},
        "parallel_lab.nn.optim.clip",
        "parallel_lab.catalog.nn.clipping",
    ),
    **_several(
        "Gradients of operators of one's own.",
        "ops._grad ops._grad.grad_base ops._grad_experimental ops._grad_experimental.grad_base",
        _of("parallel_lab.catalog.nn.custom", "bprop_getters"),
    ),
    "ops.vm_impl_registry": Page(
        "What operators of one's own compute.", names=_of("parallel_lab.catalog.nn.custom", "vm_impl_registry")
    ),
    "ops.primitive": Page("The base of operators.", names=PRIMITIVES),
    "ops._primitive_cache": Page("Operators that are made once.", names=_of(INTERNALS, "_get_cache_prim")),
    "_checkparam": Page("Checks of arguments.", ("parallel_lab.mindspore._param_checks",)),
    "_extends": Page("What Cells are registered with.", names={"cell_attr_register": f"{FORMS}:unchanged"}),
    # ---- mint ----
    "mint": Page(
        "Operators in PyTorch's spelling.",
        names=MintNames(
            "",
            {
                **_of(FORMS, MADE),
                **_of(MINT_FORMS, MINT_WORDS),
                "absolute": "parallel_lab.ops:abs",
                "subtract": f"{MINT_FORMS}:sub",
                "true_divide": "parallel_lab.ops:div",
                **_of("parallel_lab.ops", "gcd hypot lcm nonzero view_as"),
                **_of(RANDOM, "rand rand_like randn randn_like"),
                **{name: f"{RANDOM}:mint_{name}" for name in MINT_RANDOM.split()},
                "clone": "parallel_lab.ops:identity",
                "manual_seed": f"{FORMS}:set_seed",
            },
        ),
    ),
    "mint.nn": Page("Layers in PyTorch's spelling.", names=MINT_NN),
    "mint.linalg": Page(
        "Matrices in PyTorch's spelling.",
        names=_of(MINT_FORMS, "matrix_norm vector_norm")
        | {"det": "parallel_lab.ops:det", "inv": "parallel_lab.ops:inverse"}
        | _of("parallel_lab.mindspore._functions", "norm"),
    ),
    "mint.special": Page(
        "Special functions in PyTorch's spelling.",
        names=_of("parallel_lab.ops", "erfc exp2 expm1 log1p sinc") | _of(MINT_FORMS, "log_softmax round"),
    ),
    "mint.optim": Page(
        "Optimizers in PyTorch's words.", names=_of("parallel_lab.catalog.nn.pytorch_optimizers", "Adam AdamW SGD")
    ),
    **_several(
        "Communication in PyTorch's words.",
        "mint.distributed mint.distributed.distributed",
        _of("parallel_lab.mindspore._communication", "get_process_group_ranks")
        | _of("parallel_lab.mindspore._tcp_store", "TCPStore"),
        "parallel_lab.mindspore._mint_distributed",
        "parallel_lab.mindspore._mint_objects",
    ),
    "mint.nn.functional": Page(
        "Functions of layers.",
        names=MintNames(
            "functional.",
            _of(
                MINT_FORMS,
                "binary_cross_entropy binary_cross_entropy_with_logits dropout elu gelu glu hardtanh kl_div "
                "log_softmax one_hot pad relu relu6 silu smooth_l1_loss softmax softmin threshold",
            )
            | _of(
                f"{MINT_FORMS}_nn",
                "avg_pool1d avg_pool2d avg_pool3d batch_norm conv1d conv2d conv3d group_norm layer_norm max_pool2d "
                "rms_norm softplus",
            )
            | _of("parallel_lab.ops", "adaptive_avg_pool2d adaptive_max_pool2d cosine_embedding_loss"),
        ),
    ),
    **_several(
        "numpy's functions on Tensors.",
        "numpy numpy.array_creations numpy.array_ops numpy.math_ops",
        DTYPES,
        "parallel_lab.mindspore._numpy",
        "parallel_lab.mindspore._numpy_at_once",
    ),
    # ---- common ----
    "common": Page("Tensors, parameters, dtypes.", names={**DTYPES, **PARAMETERS, **TENSORS, **JIT, **SEED}),
    "common.api": Page(
        "Compiling functions.",
        names={**JIT, **dict.fromkeys(("_cell_graph_executor", "_executor"), f"{EXECUTOR}:cell_graph_executor")},
    ),
    "common._grad_function": Page("Functions with a gradient of their own.", names=_of(DERIVATIVES, "_Function")),
    "common.dtype": Page("dtypes, which are numpy's.", names=DTYPES),
    "common.initializer": Page("Initial values.", names={**INITIALIZERS, **TENSORS}),
    "common.parameter": Page("Parameters.", names=PARAMETERS),
    "common.seed": Page("The global seed.", names=SEED),
    "common.jit_config": Page("Settings of the graph compiler.", names=_of(CONTEXT_READERS, "JitConfig")),
    "common.tensor": Page("Tensors.", names=TENSORS),
    # ---- communication ----
    **_several(
        "Ranks and groups.", "communication communication.management", {}, "parallel_lab.mindspore._communication"
    ),
    "communication.comm_func": Page("Communication as functions.", ("parallel_lab.mindspore._comm_func",)),
    # ---- data ----
    **_several(
        "Data pipelines.",
        "dataset dataset.engine dataset.engine.datasets dataset.engine.samplers dataset.samplers",
        {},
        "parallel_lab.train.dataset",
        "parallel_lab.mindspore._samplers",
    ),
    **_several(
        "Settings of data pipelines.", "dataset.config dataset.core.config", {}, "parallel_lab.train.dataset.config"
    ),
    "dataset.core": Page("Settings of data pipelines."),
    **_several(
        "Operations on pictures.",
        "dataset.vision dataset.vision.c_transforms dataset.vision.transforms dataset.vision.utils",
        {},
        "parallel_lab.mindspore._vision",
    ),
    **_several(
        "Operations on columns.",
        "dataset.transforms dataset.transforms.c_transforms dataset.transforms.transforms",
        {},
        "parallel_lab.train.dataset.transforms",
    ),
    # ---- training ----
    "train": Page(
        "Model, callbacks, metrics.",
        names={**CALLBACKS, **METRICS, **GET_METRICS, **SAVED, **LOSS_SCALE_MANAGERS, **MODEL},
    ),
    "train.model": Page("The training loop.", names=MODEL),
    "train.callback": Page("What happens around steps and epochs.", names=CALLBACKS),
    "train.metrics": Page("Metrics.", names={**METRIC_NAMES, **GET_METRICS}),
    "train.serialization": Page("Checkpoints.", names={**SAVED, **RESLICED}),
    "train.loss_scale_manager": Page("Loss scales.", names=LOSS_SCALE_MANAGERS),
    **_several("Loss scales.", "train.amp amp", LOSS_SCALES),
    # ---- parallel ----
    "parallel": Page(
        "Parallel training.",
        names={
            **ALGORITHM,
            **SHARD,
            **RESHARD,
            **RESLICED,
            **CONVERTED,
            **AUTO_PARALLEL,
            **OPERATOR_STRATEGIES,
            **_of(CHECKPOINT, "build_searched_strategy merge_sliced_parameter restore_group_info_list"),
        },
    ),
    **_several(
        "Redistribution as a function.",
        "parallel.function parallel.function.reshard_func ops.function.reshard_func",
        RESHARD,
    ),
    "parallel.auto_parallel": Page("A network that is split over ranks.", names=AUTO_PARALLEL),
    "parallel.shard": Page("Strategies for functions, with named axes.", names=SHARD),
    "parallel.algo_parameter_config": Page("Settings of strategy searches.", names=ALGORITHM),
    "_c_expression": Page("Of MindSpore's compiled part.", names={"reset_op_id": f"{CONTEXT_READERS}:_reset_op_id"}),
    # the only path under which MindSpore has them
    "parallel._utils": Page(
        "Settings of the parallel context, as MindSpore's own modules read them.",
        names=_of(
            CONTEXT_READERS,
            "_get_device_num _get_full_batch _get_global_rank _get_gradients_mean _get_loss_repeated_mean "
            "_get_parallel_mode _get_pipeline_stages _get_enable_parallel_optimizer _is_in_auto_parallel_mode "
            "_is_in_data_parallel_mode _is_in_hybrid_parallel_mode _reset_op_id _get_parameter_broadcast "
            "_get_dataset_strategy _get_stage_device_num _need_to_full _check_full_batch _device_number_check "
            "_parameter_broadcast_check _to_full_shapes _to_full_tensor",
        ),
    ),
    "parallel._auto_parallel_context": Page(
        "The parallel context as an object.",
        names={
            **_of(CONTEXT_READERS, "auto_parallel_context"),
            **{f"_{function}": target for function, target in CONTEXT.items() if "auto_parallel_context" in function},
        },
    ),
    "parallel._tensor": Page("Slices of tensors by their layouts.", names=_of(INTERNALS, SLICES)),
    "parallel._cost_model_context": Page("The cost model.", names=COST_MODEL | _of(CONTEXT_READERS, CONSTANTS)),
    "parallel.checkpoint_transform": Page(
        "Checkpoints for other strategies.", names={**RESLICED, **CONVERTED, **OPERATOR_STRATEGIES}
    ),
    **_several(
        "Transformers that a configuration divides.",
        " ".join(
            f"{path}{file}"
            for path in ("nn.transformer", "parallel.nn", "parallel._transformer")
            for file in ("", ".transformer", ".layers", ".loss", ".moe", ".op_parallel_config")
        ),
        TRANSFORMER,
    ),
    # ---- the rest ----
    "version": Page("Which MindSpore's paths these are.", names={"__version__": f"{FORMS}:VERSION"}),
    "runtime": Page("A device.", ("parallel_lab.mindspore._runtime",)),
    "log": Page("Python's logging.", names=_of(FORMS, "critical debug error info logging warning")),
}
