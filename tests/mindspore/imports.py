"""Every import that the five tutorials and MindSpore's distributed sample scripts of 2020-2026 write, and whose object it must be here.

(module path, name) -> "module:attribute" of parallel_lab; name "" = the module is imported as it is.
"""

from __future__ import annotations

NN, OPS, TRAIN, COMMUNICATION, CONTEXT = (
    "parallel_lab.nn",
    "parallel_lab.ops",
    "parallel_lab.train",
    "parallel_lab.communication",
    "parallel_lab.context",
)
TENSOR, CHECKPOINT = "parallel_lab.tensor", "parallel_lab.checkpoint"


def same(path, module, *names):
    return {(path, name): f"{module}:{name}" for name in names}


# from 000-004 as printed
SEEDS = {
    **same("", TENSOR, "Parameter", "Tensor"),
    **same("common.parameter", TENSOR, "Parameter"),
    **same("communication", COMMUNICATION, "init", "get_rank", "get_group_size"),
    **same("communication.management", COMMUNICATION, "init", "get_rank", "get_group_size"),
    **same("context", CONTEXT, "ParallelMode", "set_auto_parallel_context", "get_auto_parallel_context", "reset_auto_parallel_context"),
    **same("context", CONTEXT, "set_context", "GRAPH_MODE"),
    **same("nn", NN, "Cell", "Momentum", "Flatten", "ReLU", "MSELoss", "Dense", "SGD", "CrossEntropyLoss", "SoftmaxCrossEntropyWithLogits"),
    **same("nn.optim.momentum", NN, "Momentum"),
    **same("nn.utils", "parallel_lab.nn.utils", "no_init_parameters"),
    **same("train", TRAIN, "Model"),
    **same("train.callback", TRAIN, "CheckpointConfig", "ModelCheckpoint", "LossMonitor"),
    **same("train.model", TRAIN, "Model"),
    **same("ops", OPS, "Mul", "MatMul", "AllReduce", "ReLU", "Exp", "ReduceSum", "OneHot", "Div", "Log", "ReduceMean", "ReduceMax", "Sub", "Equal"),
    **same("ops", OPS, "shape", "scalar_to_array"),
    **same("dataset", "parallel_lab.dataset", "Cifar10Dataset", "MnistDataset", "GeneratorDataset"),
    **same("dataset.transforms.c_transforms", "parallel_lab.dataset.transforms", "TypeCast"),
    **same("dataset.transforms", "parallel_lab.dataset.transforms", "TypeCast"),
    **same(
        "dataset.vision.c_transforms",
        "parallel_lab.dataset.vision",
        "RandomCrop",
        "RandomHorizontalFlip",
        "Resize",
        "Rescale",
        "Normalize",
        "HWC2CHW",
    ),
    **same("dataset.vision", "parallel_lab.dataset.vision", "Rescale", "Normalize", "HWC2CHW"),
    **same("", CONTEXT, "GRAPH_MODE", "ParallelMode", "set_context", "set_auto_parallel_context"),
    **same("", "parallel_lab.autograd", "value_and_grad"),
    **same("", CHECKPOINT, "load_checkpoint", "load_param_into_net", "save_checkpoint", "load_distributed_checkpoint"),
    **same("common.initializer", "parallel_lab.nn.initializer", "initializer"),
    ("parallel.auto_parallel", "AutoParallel"): "parallel_lab.train.auto_parallel:AutoParallel",
    ("ops", "shard"): "parallel_lab.nn.sharded:shard",
}

# from the sample scripts, where the tutorials do not have it
SAMPLES = {
    **same("", CONTEXT, "PYNATIVE_MODE", "set_algo_parameters", "get_algo_parameters", "reset_algo_parameters", "reset_auto_parallel_context"),
    **same("", TRAIN, "Model", "LossMonitor", "ModelCheckpoint", "CheckpointConfig", "TimeMonitor", "Callback", "RunContext", "jit"),
    **same("", TENSOR, "ParameterTuple"),
    **same("", "parallel_lab.autograd", "grad"),
    **same("", CHECKPOINT, "rank_list_for_transform", "transform_checkpoints", "transform_checkpoint_by_rank", "merge_sliced_parameter"),
    **same("", CHECKPOINT, "build_searched_strategy"),
    **same("", "parallel_lab.nn.amp", "FixedLossScaleManager", "DynamicLossScaleManager"),
    **same("amp", "parallel_lab.nn.amp", "DynamicLossScaler", "StaticLossScaler", "all_finite"),
    **same("common.api", TRAIN, "jit"),
    **same("common.initializer", "parallel_lab.nn.initializer", "HeUniform", "Normal", "One", "TruncatedNormal", "XavierUniform", "Zero"),
    **same("common.tensor", TENSOR, "Tensor"),
    **same("communication", COMMUNICATION, "create_group", "destroy_group", "get_local_rank", "GlobalComm", "release", "HCCL_WORLD_COMM_GROUP"),
    **same("communication", COMMUNICATION, "get_group_rank_from_world_rank", "get_world_rank_from_group_rank", "NCCL_WORLD_COMM_GROUP"),
    **same("nn", NN, "CellList", "SequentialCell", "GELU", "MAELoss", "L1Loss", "WithLossCell", "PipelineCell", "PipelineGradReducer", "Dropout"),
    **same("nn", NN, "DistributedGradReducer", "TrainOneStepCell", "TrainOneStepWithLossScaleCell", "MicroBatchInterleaved", "Adam", "LayerNorm"),
    **same("nn.wrap.cell_wrapper", NN, "GradAccumulationCell", "PipelineCell", "MicroBatchInterleaved", "WithLossCell", "TrainOneStepCell"),
    **same("nn.wrap.grad_reducer", NN, "DistributedGradReducer"),
    **same("nn.wrap.loss_scale", NN, "TrainOneStepWithLossScaleCell", "DynamicLossScaleUpdateCell", "FixedLossScaleUpdateCell"),
    **same("nn.cell", NN, "Cell"),
    **same("ops", OPS, "Add", "BatchMatMul", "ExpandDims", "Flatten", "Print", "RealDiv", "Softmax", "Transpose", "Cast", "Reshape"),
    **same("ops", OPS, "AllGather", "ReduceScatter", "Broadcast", "AlltoAll", "ReduceOp", "Barrier", "Send", "ReduceSum", "matmul", "relu", "sum"),
    **same("ops", "parallel_lab.functional", "GradOperation", "HyperMap", "MultitypeFuncGraph", "depend", "assign_add"),
    **same("ops", "parallel_lab.autograd", "value_and_grad", "grad"),
    ("ops", "partial"): "parallel_lab.functional:Partial",
    **same("ops.operations", OPS, "MatMul", "AllReduce"),
    **same("ops.operations.comm_ops", OPS, "AllReduce", "ReduceOp"),
    **same("ops.functional", OPS, "relu", "shape"),
    **same("ops.composite", "parallel_lab.functional", "GradOperation", "HyperMap", "MultitypeFuncGraph"),
    **same("ops.primitive", OPS, "Primitive"),
    **same("mint", OPS, "matmul", "sum", "mul"),
    **same("mint.nn.functional", OPS, "relu", "gelu"),
    **same("parallel", "parallel_lab.named_layout", "Layout"),
    **same("", "parallel_lab.named_layout", "Layout"),
    **same("parallel", "parallel_lab.nn.sharded", "shard"),
    **same("parallel.shard", "parallel_lab.nn.sharded", "shard"),
    **same("parallel", CONTEXT, "set_algo_parameters"),
    **same("parallel.nn", NN, "GradAccumulation", "MicroBatchInterleaved", "Pipeline", "PipelineGradReducer"),
    **same("parallel", CHECKPOINT, "load_distributed_checkpoint", "rank_list_for_transform", "transform_checkpoints"),
    **same("train", TRAIN, "LossMonitor", "TimeMonitor", "ModelCheckpoint", "CheckpointConfig", "Callback", "Accuracy", "Loss"),
    **same("train.serialization", CHECKPOINT, "load_checkpoint", "load_param_into_net", "save_checkpoint"),
    **same("dataset.vision", "parallel_lab.dataset.vision", "SlicePatches", "Inter", "Border"),
    **same("dataset.config", "parallel_lab.dataset.config", "set_seed"),
    **same("dataset", "parallel_lab.dataset", "NumpySlicesDataset"),
}

# imported as modules
MODULES = (
    *("", "context", "nn", "ops", "mint", "dataset", "train", "communication", "parallel", "parallel.nn", "common.dtype", "runtime", "amp", "log"),
    *("dataset.vision.c_transforms", "dataset.transforms.c_transforms", "dataset.vision.transforms", "nn.optim", "nn.wrap", "nn.layer", "nn.loss"),
    *("ops.operations", "ops.functional", "ops.composite", "common.initializer", "common.seed", "train.callback", "train.metrics", "dataset.engine"),
)
DTYPES = ("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
