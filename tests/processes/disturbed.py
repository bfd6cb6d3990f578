"""A notebook that somebody disturbs: `python -m tests.processes.disturbed WORK RANKS LIMIT_S`.

It works in a pool (WORK) until an error comes, says which error came and when, and then has its next run; the test
kills, stops or interrupts meanwhile. It prints lines of its own, which begin with a word of SAID, and nothing else is
to come: "begun PIDS", "told SECONDS CLASS TEXT", "next right".

    start   the first start of a pool, imports included          sums    collectives without end
    train   a network trained by Session                         save    a distributed checkpoint, again and again
"""

from __future__ import annotations

import sys
import time

SAID = ("imports", "begun", "told", "next")
ELEMENTS = 1 << 16


def sums(comm):
    import numpy as np

    x = np.ones(200 + 20_000 * (comm.world_size % 2))
    comm.barrier()
    comm.report("at work")
    while True:
        comm.all_reduce(x)
        comm.barrier()
        comm.all_gather(x[:100])


def save(comm, folder):
    import numpy as np

    from parallel_lab.layout.tensor_layout import TensorLayout
    from parallel_lab.train.checkpoint import TensorRecord, save_distributed

    layout, number = TensorLayout((comm.world_size,), (0,)), 0
    while True:
        number += 1
        part = np.full(ELEMENTS // comm.world_size, float(number))
        record = TensorRecord(part, (ELEMENTS // comm.world_size * comm.world_size,), layout, comm.rank)
        how = {"rank": comm.rank, "world_size": comm.world_size, "barrier": comm.barrier}
        save_distributed(folder, {"w": record}, **how)
        if number == 1:
            comm.report("at work")


def total(comm):
    import numpy as np

    return float(comm.all_reduce(np.ones(3))[0])


def say(word: str, *more: object) -> None:
    print(word, *(str(one).replace("\n", " | ") for one in more), flush=True)


def work(kind: str, ranks: int, limit_s: float) -> None:
    """Until an error comes."""
    from parallel_lab.processes.shm import WorkerPool

    how = {"timeout_s": limit_s, "warn_after_s": limit_s / 2}
    if kind == "start":
        with WorkerPool(ranks, **how) as pool:
            say("begun", *pool.pids)
            while True:
                pool.run(total)
    if kind == "train":
        from parallel_lab.train.session import Session
        from tests.train.sessions import net_and_data, plan_for

        net, data = net_and_data(((1, ranks // 2), (ranks // 2, 1)))
        plan, optimizer = plan_for(net, data, ranks)
        with (
            WorkerPool(ranks, **how) as pool,
            Session(plan, net, optimizer, executor="processes", pool=pool) as session,
        ):
            session.train(data, steps=3)
            say("begun", *pool.pids)
            session.train(data, steps=10**8)
    with WorkerPool(ranks, **how) as pool:
        job = pool.submit(*((sums,) if kind == "sums" else (save, "saved")))
        while len(job.messages) < ranks and not job.done():
            job.wait_for_change(1.0)
        say("begun", *pool.pids)
        job.result()


def main() -> None:
    kind, ranks, limit_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    say("imports")
    try:
        work(kind, ranks, limit_s)
    except (Exception, KeyboardInterrupt) as error:
        now = time.time()
        said = [one.__name__ for one in type(error).__mro__]
        say("told", now, type(error).__name__, "ParallelLabError" in said, error)
    from parallel_lab.processes.shm import WorkerPool

    with WorkerPool(ranks) as pool:
        say("next", "right" if pool.run(total) == [float(ranks)] * ranks else "wrong")


if __name__ == "__main__":
    main()
