"""What a plan costs: seconds, bytes and a timeline, from shapes alone; no arrays, any number of devices.

    cluster = get_cluster("laptop")
    step_time_s(plan, cluster).total_s
    predict_memory(plan).peak_bytes
    predict_timeline(plan, cluster, ranks=(0, 1)).log

What measures a machine for these formulas is in `processes/measure/`.
"""

# ruff: noqa: F401 - imported for others: this is a public face

from ..base.cluster import CLUSTERS, Cluster, Device, Host, Link, get_cluster
from .memory import MEMORY_KINDS, MemoryPoint, MemoryReport, predict_memory
from .recompute import Checkpoints, Choice, Layer, best_segments, choose_checkpoints, choose_recompute, predict_choice
from .recompute_plan import plan_moments, recompute_cells
from .stage_division import StageDivision, balance, divide_stages, even
from .time import PhaseTime, StepTime, instr_time_s, message_bytes, message_time_s, sent_bytes, step_time_s
from .timeline import Timeline, predict_timeline
from .zero import ZeroMemory, zero_max_parameters, zero_memory, zero_traffic
