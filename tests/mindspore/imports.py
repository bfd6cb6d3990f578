"""Every import that the five tutorials and MindSpore's distributed sample scripts of 2020-2026 write, and whose object
it must be here.

(module path, name) -> "module:attribute" of parallel_lab; name "" = the module is imported as it is.
"""

from __future__ import annotations

import importlib

NN, OPS, TRAIN, COMMUNICATION, CONTEXT = (
    "parallel_lab.nn",
    "parallel_lab.ops",
    "parallel_lab.train",
    "parallel_lab.mindspore._communication",
    "parallel_lab.base.settings.context",
)
TENSOR, PARAMETER, CHECKPOINT, DATASET = (
    "parallel_lab.nn.tensor.tensor",
    "parallel_lab.nn.tensor.parameter",
    "parallel_lab.mindspore._checkpoint",
    "parallel_lab.train.dataset",
)
AUTOGRAD, FUNCTIONAL = "parallel_lab.nn.tensor.autograd", "parallel_lab.nn.tensor.functional"
CATALOG_FORMS = "parallel_lab.catalog.nn.forms"
LAYOUT, INITIALIZER = "parallel_lab.layout.named_layout", "parallel_lab.nn.initializer"


FACADE = "parallel_lab.mindspore"
DERIVATIVES = f"{FACADE}._derivatives"
FUNCTIONS = f"{FACADE}._functions"


def page(path):
    """A module of the facade."""
    return importlib.import_module(f"{FACADE}.{path}" if path else FACADE)


def target(where):
    """What "module:attribute" names."""
    module, _, attribute = where.partition(":")
    return getattr(importlib.import_module(module), attribute)


def same(path, module, names):
    return {(path, name): f"{module}:{name}" for name in names.split()}


# from 000-004 as printed
SEEDS = {
    **same("", PARAMETER, "Parameter"),
    **same("", TENSOR, "Tensor"),
    **same("common.parameter", PARAMETER, "Parameter"),
    **same("communication", COMMUNICATION, "init get_rank get_group_size"),
    **same("communication.management", COMMUNICATION, "init get_rank get_group_size"),
    **same(
        "context",
        CONTEXT,
        "ParallelMode set_auto_parallel_context get_auto_parallel_context reset_auto_parallel_context set_context "
        "GRAPH_MODE",
    ),
    **same("nn", NN, "Cell Momentum Flatten ReLU MSELoss Dense SGD CrossEntropyLoss SoftmaxCrossEntropyWithLogits"),
    **same("nn.optim.momentum", NN, "Momentum"),
    **same("nn.utils", "parallel_lab.nn.utils", "no_init_parameters"),
    **same("train", TRAIN, "Model"),
    **same("train.callback", TRAIN, "CheckpointConfig ModelCheckpoint LossMonitor"),
    **same("train.model", TRAIN, "Model"),
    **same("ops", OPS, "Mul MatMul AllReduce ReLU Exp ReduceSum OneHot Div Log ReduceMean ReduceMax Sub Equal shape"),
    **same("dataset", DATASET, "Cifar10Dataset MnistDataset GeneratorDataset"),
    **same("dataset.transforms.c_transforms", f"{DATASET}.transforms", "TypeCast"),
    **same("dataset.transforms", f"{DATASET}.transforms", "TypeCast"),
    **same(
        "dataset.vision.c_transforms",
        "parallel_lab.mindspore._vision",
        "RandomCrop RandomHorizontalFlip Resize Rescale Normalize HWC2CHW",
    ),
    **same("dataset.vision", "parallel_lab.mindspore._vision", "Rescale Normalize HWC2CHW"),
    **same("", CONTEXT, "GRAPH_MODE ParallelMode set_context set_auto_parallel_context"),
    **same("", AUTOGRAD, "value_and_grad"),
    **same("", CHECKPOINT, "load_checkpoint load_param_into_net save_checkpoint load_distributed_checkpoint"),
    **same("common.initializer", INITIALIZER, "initializer"),
    ("parallel.auto_parallel", "AutoParallel"): "parallel_lab.train.auto_parallel:AutoParallel",
    ("ops", "shard"): "parallel_lab.nn.sharded_cell:shard",
}

# from the sample scripts, where the tutorials do not have it
SAMPLES = {
    **same(
        "",
        CONTEXT,
        "PYNATIVE_MODE set_algo_parameters get_algo_parameters reset_algo_parameters reset_auto_parallel_context",
    ),
    **same("", TRAIN, "Model LossMonitor ModelCheckpoint CheckpointConfig TimeMonitor Callback RunContext jit"),
    **same("", PARAMETER, "ParameterTuple"),
    **same("", AUTOGRAD, "grad"),
    **same(
        "",
        CHECKPOINT,
        "rank_list_for_transform transform_checkpoints transform_checkpoint_by_rank merge_sliced_parameter "
        "build_searched_strategy",
    ),
    **same("", NN, "FixedLossScaleManager DynamicLossScaleManager"),
    **same("amp", f"{FACADE}._amp", "DynamicLossScaler StaticLossScaler all_finite"),
    **same("common.api", TRAIN, "jit"),
    **same("common.initializer", INITIALIZER, "HeUniform Normal One TruncatedNormal XavierUniform Zero"),
    **same("common.tensor", TENSOR, "Tensor"),
    **same(
        "communication",
        COMMUNICATION,
        "create_group destroy_group get_local_rank GlobalComm release HCCL_WORLD_COMM_GROUP NCCL_WORLD_COMM_GROUP "
        "get_group_rank_from_world_rank get_world_rank_from_group_rank",
    ),
    **same(
        "nn",
        NN,
        "CellList SequentialCell GELU MAELoss L1Loss WithLossCell PipelineCell PipelineGradReducer Dropout "
        "DistributedGradReducer TrainOneStepCell TrainOneStepWithLossScaleCell MicroBatchInterleaved Adam LayerNorm",
    ),
    **same(
        "nn.wrap.cell_wrapper",
        NN,
        "GradAccumulationCell PipelineCell MicroBatchInterleaved WithLossCell TrainOneStepCell",
    ),
    **same("nn.wrap.grad_reducer", NN, "DistributedGradReducer"),
    **same(
        "nn.wrap.loss_scale", NN, "TrainOneStepWithLossScaleCell DynamicLossScaleUpdateCell FixedLossScaleUpdateCell"
    ),
    **same("nn.cell", NN, "Cell"),
    **same(
        "ops",
        OPS,
        "Add BatchMatMul ExpandDims Flatten Print RealDiv Softmax Transpose Cast Reshape AllGather ReduceScatter "
        "Broadcast AlltoAll ReduceOp Barrier Send ReduceSum matmul sum assign_add",
    ),
    **same("ops", FUNCTIONAL, "GradOperation"),
    **same("ops", CATALOG_FORMS, "HyperMap"),
    **same("ops", DERIVATIVES, "MultitypeFuncGraph depend"),
    **same("ops", AUTOGRAD, "value_and_grad grad"),
    ("ops", "partial"): f"{DERIVATIVES}:partial",
    **same("ops.operations", OPS, "MatMul AllReduce"),
    **same("ops.operations.comm_ops", OPS, "AllReduce ReduceOp"),
    **same("ops.functional", OPS, "shape"),
    **same("ops.functional", FUNCTIONS, "relu"),
    **same("ops", FUNCTIONS, "relu"),
    **same("ops.composite", FUNCTIONAL, "GradOperation"),
    **same("ops.composite", CATALOG_FORMS, "HyperMap"),
    **same("ops.primitive", OPS, "Primitive"),
    **same("mint", OPS, "matmul sum mul"),
    **same("mint.nn.functional", "parallel_lab.mindspore._mint", "relu"),
    **same("mint.nn.functional", "parallel_lab.mindspore._mint", "gelu"),
    **same("parallel", LAYOUT, "Layout"),
    **same("", LAYOUT, "Layout"),
    **same("parallel", "parallel_lab.nn.sharded_cell", "shard"),
    **same("parallel.shard", "parallel_lab.nn.sharded_cell", "shard"),
    **same("parallel", CONTEXT, "set_algo_parameters"),
    **same("parallel.nn", NN, "GradAccumulation MicroBatchInterleaved Pipeline PipelineGradReducer"),
    **same("parallel", CHECKPOINT, "load_distributed_checkpoint rank_list_for_transform transform_checkpoints"),
    **same("train", TRAIN, "LossMonitor TimeMonitor ModelCheckpoint CheckpointConfig Callback Accuracy Loss"),
    **same("train.serialization", CHECKPOINT, "load_checkpoint load_param_into_net save_checkpoint"),
    **same("dataset.vision", "parallel_lab.mindspore._vision", "SlicePatches Inter Border"),
    **same("dataset.config", f"{DATASET}.config", "set_seed"),
    **same("dataset", DATASET, "NumpySlicesDataset"),
}

PAGES = """
    context nn ops mint dataset train communication parallel parallel.nn common.dtype runtime amp log
    dataset.vision.c_transforms dataset.transforms.c_transforms dataset.vision.transforms dataset.engine
    nn.optim nn.wrap nn.layer nn.loss ops.operations ops.functional ops.composite
    common.initializer common.seed train.callback train.metrics
"""
MODULES = ("", *PAGES.split())  # imported as modules
DTYPES = ("bool_", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
DTYPES += ("float16", "float32", "float64")
