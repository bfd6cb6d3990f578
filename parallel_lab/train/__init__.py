"""Training: `Model`, its callbacks and metrics; networks and functions that run compiled on the ranks of a world."""

# ruff: noqa: F401 - imported for others: this is a public face

from ..nn.sharded_cell import ShardedCell, shard
from .auto_parallel import AutoParallel
from .callbacks import (
    Callback,
    CallbackList,
    CallbackParams,
    History,
    LambdaCallback,
    LossMonitor,
    RunContext,
    SummaryCollector,
    TimeMonitor,
)
from .checkpoint_callback import CheckpointConfig, ModelCheckpoint
from .compiled import CompiledFunction
from .engine import layouts, make_eval_step, make_predict_step, make_train_step
from .metrics import (
    F1,
    MAE,
    MSE,
    Accuracy,
    Fbeta,
    Loss,
    Metric,
    Precision,
    Recall,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    get_metric_fn,
    get_metrics,
    names,
    rearrange_inputs,
)
from .model import Model
from .plateau import EarlyStopping, LearningRateScheduler, ReduceLROnPlateau
from .progress import ProgressBar
from .request_exit import OnRequestExit
from .run_cell import jit
