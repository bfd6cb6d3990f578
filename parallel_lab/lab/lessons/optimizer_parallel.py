"""Lesson 08: optimizer parallel."""

from ...cost.zero import STAGES, zero_memory, zero_traffic
from ...train.rank_steps import drive
from ...train.session import initial_values
from ..exercises import check, hint
from ..memory.count import simulated_ranks
from ..memory.subjects import Settings, get_subject
from ..shared.prediction import Comparison
