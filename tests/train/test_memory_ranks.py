"""Tables and optimizers on the host, and recomputing, on real processes: as one device. Cases: `cases/memory.py`."""

from tests.train.cases import memory
from tests.train.worlds import compared

worlds, test_ranks_equal_one_device = compared(memory, quick=0)  # all of them are exhaustive
