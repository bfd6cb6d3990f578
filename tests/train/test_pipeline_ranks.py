"""Pipeline stages on real processes, against one device. Cases: `cases/pipeline.py`."""

from tests.train.cases import pipeline
from tests.train.worlds import compared

worlds, test_ranks_equal_one_device = compared(pipeline, quick=3)  # the others are exhaustive
