"""Record the orders of PyTorch's pipeline schedules on a grid: run by hand, in an environment with torch 2.13.

    python tests/recorded/record_torch_schedules.py      # writes torch_schedules.json next to this file

No process group: schedules read of their stages only what `Stage` has. `orders`: per rank the actions, without the
waiting cells and REDUCE_GRAD; null where PyTorch refuses the numbers. `lowered`: `pipeline_order_with_comms`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Stage:
    """What a schedule asks a pipeline stage, when nothing is run."""

    def __init__(self, index: int, size: int, number: int) -> None:
        self.stage_index, self.group_rank, self.group_size, self.num_stages = index, 0, size, number
        self.is_first, self.is_last = index == 0, index == number - 1
        self.submod, self.has_backward, self.device, self.group = None, False, "cpu", None
        self.stage_index_to_group_rank = {k: k % size for k in range(number)}


def record() -> dict[str, Any]:
    """The orders by case, "interleaved 4 8 2": our name, ranks, micro-batches, parts on a rank."""
    import torch.distributed.pipelining.schedules as theirs
    from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

    kinds = {
        "gpipe": (theirs.ScheduleGPipe, (1,), "loop"),
        "1f1b": (theirs.Schedule1F1B, (1,), "loop"),
        "interleaved": (theirs.ScheduleInterleaved1F1B, (1, 2, 3), "loop"),
        "breadth_first": (theirs.ScheduleLoopedBFS, (1, 2, 3), "loop"),
        "zb_h1": (theirs.ScheduleInterleavedZeroBubble, (1, 2, 3), "loop"),
        "zero_bubble_v": (theirs.ScheduleZBVZeroBubble, (2,), "v"),
        "dualpipe_v": (theirs.ScheduleDualPipeV, (2,), "v"),
    }
    orders, lowered = {}, {}
    for name, (schedule, chunk_counts, style) in kinds.items():
        grid = [(p, m, v) for p in (1, 2, 3, 4, 8) for m in (2, 4, 6, 9, 10, 16) for v in chunk_counts]
        for p, m, v in grid:
            if name == "1f1b" and m < p:
                continue  # its table has actions that there are not
            place = generate_stage_to_rank_mapping(p, p * v, style)
            stages: Any = [Stage(k, p, p * v) for k in range(p * v) if place[k] == 0]
            case, single = f"{name} {p} {m} {v}", name in ("gpipe", "1f1b")
            try:
                made = schedule(stages[0] if single else stages, m, loss_fn=lambda *a: None)
            except ValueError:
                orders[case] = None
                continue
            table = made._get_pipeline_order() if single else made.pipeline_order
            kept = [
                [a for a in table[r] if a is not None and a.computation_type.value != "REDUCE_GRAD"] for r in range(p)
            ]
            orders[case] = [" ".join(map(str, row)) for row in kept]
            if not single and m in (4, 9) and 1 < p <= 4:
                lowered[case] = [",".join(map(str, made.pipeline_order_with_comms[r])) for r in range(p)]
    return {"orders": orders, "lowered": lowered}


if __name__ == "__main__":
    rows = record()
    lines = [
        f"{json.dumps(key)}: {{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in part.items()) + "\n}"
        for key, part in rows.items()
    ]
    Path(__file__).with_name("torch_schedules.json").write_text("{" + ",\n".join(lines) + "}\n")
