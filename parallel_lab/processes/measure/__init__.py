"""What this machine does, measured on its own ranks, and the alpha-beta model fitted to it.

measured_cluster(fit_link(8, "all_reduce"), device=measure_device(8))     # this machine's own profile
"""

from .fit import Fit, fit_line, fit_link, fit_machine, measured_cluster
from .measure import measure_device, median_s

__all__ = ["Fit", "fit_line", "fit_link", "fit_machine", "measure_device", "measured_cluster", "median_s"]
