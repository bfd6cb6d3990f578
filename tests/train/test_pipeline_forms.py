"""What else a Model does in pipeline stages, on real processes, as one device. Cases: `cases/pipeline_forms.py`."""

from tests.train.cases import pipeline_forms
from tests.train.worlds import compared

worlds, test_ranks_equal_one_device = compared(pipeline_forms, quick=0)  # all of them are exhaustive
