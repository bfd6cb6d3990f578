"""Lesson 01: eight ranks, one network."""

from ..shared.equality import prove_equal
from ..shared.networks import NETWORKS, QuickNet, apply_strategies, get_problem
from ..shared.prediction import Prediction
