"""What `test_full_disk.py` runs where a small file system was mounted: `python full_disk.py <folder> <case>`.

Prints as JSON what a write on the full disk came to, what was there afterwards, and whether the next write had room.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from parallel_lab import CostLab, FusionLab, compile, nn, open_lab
from parallel_lab.base.events import Event, save_chrome_trace
from parallel_lab.mindspore import load_checkpoint as ms_load, save_checkpoint
from parallel_lab.processes.shm import WorkerPool
from parallel_lab.train.checkpoint import TensorRecord, load_distributed, save_distributed
from parallel_lab.train.checkpoint.strategy_file import load_strategy, save_strategy
from parallel_lab.train.dataset import read_cifar10, read_idx, write_cifar10, write_idx

RANKS = 4


def vector(n, fill):
    return np.full(n, fill, np.float32)


def plan_with(layers):
    net = nn.SequentialCell(*(nn.Dense(8, 8) for _ in range(layers)))
    return compile(net, np.ones((8, 8), np.float32), device_num=1, dataset_strategy="full_batch")


def distributed(folder, n, fill):
    def on_rank(comm, folder, n, fill):
        part = {f"w{comm.rank}": TensorRecord(np.full(n, fill, np.float32))}
        save_distributed(folder, part, rank=comm.rank, world_size=comm.world_size, barrier=comm.barrier)

    POOL[0].run(on_rank, str(folder), n, fill)


def events(n):
    return [Event(0, i, "forward", "compute", f"value {i}", "MatMul", 0.0, 1.0, ()) for i in range(n)]


POOL = []
# (file or folder, write(path, size, fill), what is read of it)
CASES = {
    "save_checkpoint": (
        "x.ckpt",
        lambda path, n, fill: save_checkpoint([{"name": "w", "data": vector(n, fill)}], str(path)),
        lambda path: ms_load(str(path))["w"].asnumpy().sum(),
    ),
    "save_distributed": (
        "folder",
        distributed,
        lambda path: sum(float(load_distributed(path)[f"w{r}"].array.sum()) for r in range(RANKS)),
    ),
    "strategy file": (
        "strategy.json",
        lambda path, n, fill: save_strategy(plan_with(n // 500), path),
        lambda path: len(load_strategy(path).operators),
    ),
    "events": (
        "events.json",
        lambda path, n, fill: save_chrome_trace(events(n // 10), path),
        lambda path: len(json.loads(path.read_text())["traceEvents"]),
    ),
    "write_idx": ("x.idx", lambda path, n, fill: write_idx(path, vector(n, fill)), lambda path: read_idx(path).sum()),
    "write_cifar10": (
        "x.bin",
        lambda path, n, fill: write_cifar10(
            path, np.zeros((1 + n // 768, 32, 32, 3), np.uint8), np.full(1 + n // 768, 7)
        ),
        lambda path: len(read_cifar10(path)[0]),
    ),
    "a lab": (
        "lab.json",
        lambda path, n, fill: CostLab(ranks=4 if fill == 1.0 else 8).save(path),
        lambda path: open_lab(path)._ranks,
    ),
    "a lab's page": (
        "page.html",
        lambda path, n, fill: CostLab(ranks=4).to_html(path),
        lambda path: len(path.read_text()),
    ),
    "a lab's program": (
        "program",
        lambda path, n, fill: FusionLab().save_code(path),
        lambda path: sum(one.stat().st_size for one in path.iterdir()),
    ),
}
SMALL = ("a lab", "a lab's page", "a lab's program")  # no room at all is left for these


def used(folder):
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_bsize


def fill_up(folder, left):
    """Leave so many bytes."""
    found = os.statvfs(folder)
    size = found.f_bfree * found.f_bsize - left
    Path(folder, "filler").write_bytes(bytes(size))


def main(folder, case):
    name, write, read = CASES[case]
    path = Path(folder, name)
    if case == "save_distributed":
        POOL.append(WorkerPool(RANKS))
    write(path, 1000, 1.0)
    before, size = float(read(path)), used(folder)
    fill_up(folder, 0 if case in SMALL else 16 * 1024 if case == "strategy file" else 64 * 1024)
    told = {"before": before}
    try:
        write(path, 30_000, 2.0)
    except Exception as error:
        chain = [error, error.__cause__]
        told |= {"kinds": [k.__name__ for e in chain if e for k in type(e).__mro__], "text": str(error)}
    told["after"] = float(read(path))
    told["listed"] = sorted(os.listdir(folder))
    if case in SMALL:
        os.unlink(Path(folder, "filler"))
    write(path, 1200, 3.0)  # of others nothing was removed by hand
    told["next"] = float(read(path))
    Path(folder, "filler").unlink(missing_ok=True)
    told["grown"] = used(folder) - size
    for pool in POOL:
        pool.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
