"""Lesson 06: a tensor changes its layout."""

from ..redistribution.model import RedistributionLab, run_steps
from ..shared.prediction import Comparison

__all__ = ["Comparison", "RedistributionLab", "run_steps"]
