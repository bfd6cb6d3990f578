"""Other libraries' ranks from nothing to their first collective. Run as a file: a rank imports the library alone.

    python -P first_collective.py spawn --ranks 8 FOLDER        torch.multiprocessing.spawn and gloo; fork: its start by
    fork
    mpirun -n 8 python -P first_collective.py mpi FOLDER        mpi4py

Every rank writes when its first collective was done (time.monotonic, one clock for all processes of a machine) to
FOLDER/ready.RANK; who starts the ranks writes when it began to FOLDER/go.
"""

import argparse
import os
import time
from pathlib import Path


def tell(folder, name):
    """Write the time; no reader sees a part of it."""
    part = Path(folder, f".{name}")
    part.write_text(repr(time.monotonic()))
    os.replace(part, Path(folder, name))


def torch_rank(rank, ranks, folder):
    """One rank of torch.distributed."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=ranks)
    x = torch.ones(4)
    distributed.all_reduce(x)
    assert x.tolist() == [ranks] * 4
    tell(folder, f"ready.{rank}")
    distributed.barrier()
    distributed.destroy_process_group()


def start_torch(how, ranks, folder):
    """Start the ranks the way torch does."""
    import torch.multiprocessing

    tell(folder, "go")
    torch.multiprocessing.start_processes(torch_rank, (ranks, folder), nprocs=ranks, start_method=how)


def mpi_rank(folder):
    """One rank under mpirun."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    world.Allreduce(x, out)
    assert out.tolist() == [world.size] * 4
    tell(folder, f"ready.{world.rank}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("who", choices=("spawn", "fork", "mpi"))
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("folder")
    args = parser.parse_args()
    if args.who == "mpi":
        mpi_rank(args.folder)
    else:
        start_torch(args.who, args.ranks, args.folder)
