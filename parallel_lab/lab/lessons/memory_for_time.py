"""Lesson 10: memory for time."""

from ...base.cluster import Link, get_cluster
from ...cost.memory import predict_memory
from ...cost.recompute import best_segments, choose_recompute, predict_choice
from ...cost.schedules import make_schedule
from ...cost.timeline import predict_timeline
from ...train.session import initial_values
from ..exercises import check, hint, par
from ..fusion.subjects import ChainNet
from ..memory.count import simulated_ranks
from ..pipeline.subjects import get_subject
from ..recompute.chain import LAYERS, RESULT_BYTES, compiled, count
from ..shared.prediction import Comparison
