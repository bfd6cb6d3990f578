"""Lesson 02: messages cost alpha + beta."""

from ...processes.measure import fit_link, median_s
from ...train.rank_steps import drive
from ..collectives.algorithms.algorithm import algorithm, check_algorithm, run_algorithm
from ..collectives.all_reduce_menu import AllReduceMenu
from ..exercises import check, hint
from ..pictures.charts import fit_chart
from ..pictures.plotted import plotted
from ..shared.prediction import Comparison
