"""Checkpoints: written whole or not at all, checked when they are read, and re-sliced for any other number of ranks.

    from parallel_lab.train.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint

    save_checkpoint(net, "net.ckpt")
    load_param_into_net(other, load_checkpoint("net.ckpt"))

`format.py` is the file, `folder.py` a folder of them with its manifest, `reslice.py` the arithmetic of slices,
`values.py` the way from networks and optimizers to files and back. `serialization.py` and `distributed.py` are
MindSpore's functions over these; more of them are in `mindspore/_checkpoint.py`.
"""

# ruff: noqa: F401 - imported for others: this is a public face

from .distributed import load_distributed_checkpoint, save_group_info
from .folder import Manifest, load_distributed, read_manifest, save_distributed
from .format import Checkpoint, CheckpointInfo, describe_checkpoint, read_checkpoint, write_checkpoint
from .records import TensorInfo, TensorRecord
from .reslice import needed_ranks, reslice, whole_array
from .serialization import (
    LoadedParameters,
    async_ckpt_thread_status,
    load_checkpoint,
    load_param_into_net,
    save_checkpoint,
    wait_for_saves,
)
from .values import load_optimizer_values, load_records, network_records, optimizer_records, optimizer_values
