"""Lesson 04: fusion and overlap."""

from ...base.files import shipped_folder
from ...cost.overlap import Gradient, best_bucket_count, equal_buckets_step_s, predict_overlap
from ...processes.measure import fit_link, measure_device, measured_cluster, median_s
from ..exercises import check, hint
from ..fusion.case import Settings
from ..fusion.model import FusionLab
from ..fusion.subjects import ChainNet, get_subject
from ..pictures.charts import fit_chart
from ..pictures.plotted import plotted
from ..shared.equality import compare_sessions
from ..shared.prediction import Comparison
from ..shared.step_times import step_times


def lanes_text(lab: FusionLab) -> str:
    """The two lanes of one step as text: a part of `lab.to_text()`."""
    return next(part for part in lab.to_text().split("\n\n") if part.startswith("Lanes"))
