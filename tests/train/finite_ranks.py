"""What ranks of `test_finite.py` run: `parallel-lab run -n 4 finite_ranks.py <loop> <where> <bad> <odd>`."""

from __future__ import annotations

import sys

from parallel_lab.train.communication import get_group_size, get_rank, init
from tests.train.cases.finite import trained
from tests.train.worlds import Here

if __name__ == "__main__":
    init()
    loop, where, bad, odd = sys.argv[1:]
    kinds, text = trained(Here(get_rank(), get_group_size(), alone=False), loop, where, bad, int(odd))
    print(f"rank {get_rank()}: {kinds[0]}: {text}", flush=True)
