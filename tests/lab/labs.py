"""Every lab, small, with commands in turn that it does and some that it refuses: what the contract over all of them
(test_labs.py, test_lab_widgets.py) goes through. Settings are found by their declarations, and are not listed here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from parallel_lab.lab.collectives.model import CollectiveStepper
from parallel_lab.lab.context.model import ContextLab
from parallel_lab.lab.costs.model import CostLab
from parallel_lab.lab.experts.model import ExpertLab
from parallel_lab.lab.explain.model import ExplainLab
from parallel_lab.lab.fusion.model import FusionLab
from parallel_lab.lab.hunt.model import HuntLab
from parallel_lab.lab.memory.model import MemoryLab
from parallel_lab.lab.pipeline.model import PipelineLab
from parallel_lab.lab.recompute.model import RecomputeLab
from parallel_lab.lab.redistribution.model import RedistributionLab
from parallel_lab.lab.rosetta.model import RosettaLab
from parallel_lab.lab.runs.model import RunLab
from parallel_lab.lab.search.model import SearchLab
from parallel_lab.lab.shared.lab import Lab
from parallel_lab.lab.strategy.model import StrategyLab


def stack(devices: int = 4) -> MemoryLab:
    """The Memory Lab's stack with 8 weights of 16 KiB."""
    lab = MemoryLab("stack", devices)
    lab.set_width(64)
    return lab


LABS: dict[str, Callable[[], Lab]] = {
    "strategy": partial(StrategyLab, devices=4),
    "fusion": partial(FusionLab, "golf"),
    "memory": stack,
    "stepper": partial(CollectiveStepper, "all_reduce", "ring", 4),
    "pipeline": partial(PipelineLab, stages=4, micro_batches=4),
    "redistribution": RedistributionLab,
    "recompute": RecomputeLab,
    "costs": CostLab,
    "search": partial(SearchLab, devices=2),
    "context": ContextLab,
    "experts": ExpertLab,
    "rosetta": RosettaLab,
    "explain": ExplainLab,
    "hunt": partial(HuntLab, suspects=4, seed=2),
    "runs": RunLab,
}
KINDS: dict[str, type[Lab]] = {
    name: MemoryLab if make is stack else getattr(make, "func", make) for name, make in LABS.items()
}
ASKING = [["set_predict", True], ["ask"], ["set_predict", False]]
# commands in turn, of which each one is possible where it stands
WALKS: dict[str, list[list[Any]]] = {
    "strategy": [
        *(["set_strategy", "matmul", "((4, 1), (1, 1))"], ["set_strategy", "matmul2", "((1, 4), (4, 1))"]),
        *(["select_message", 2], ["to", 1], ["set_strategy", "matmul2", None], ["set_steps", 7]),
        ["set_strategy", "relu", "((4, 1),)"],
        ["set_code", "self.matmul.shard(((2, 1), (1, 2)))"],
        *(["show_numbers", True], ["pause"], ["resume"], ["stop"], ["reset"]),
        *ASKING,
    ],
    "fusion": [
        *(["set_line", 0, 1e-9], ["reset_line"], ["set_line", 0.001, 2.5e-9], ["add_cut", 4], ["move_cut", 4, 6]),
        *(["remove_cut", 6], ["set_mode", "index"], ["set_config", "[4]"], ["stop"], ["reset_line"], ["show_best"]),
        ["set_code", 'net.comm_fusion({"allreduce": {"mode": "index", "config": [0, 3]}})'],
        *ASKING,
    ],
    "memory": [
        *(["set_width", 32], ["set_threshold", 0], ["set_capacity", "900 KiB"], ["set_zero", "1T", 16, 8.5], ["stop"]),
        ["set_code", 'net.hsdp(optimizer_level="level3")'],
        *ASKING,
    ],
    "stepper": [
        *(["to", 3], ["next"], ["back"], ["reset"], ["follow", 2], ["follow", None], ["choose_elements", 999]),
        *(["choose_kind", "broadcast"], ["choose_algorithm", "tree"], ["choose_ranks", 8], ["to", 2], ["follow", 1]),
        *(["choose_cluster", "gpu_node"], ["choose_contention", "hops"]),
        *ASKING,
    ],
    "pipeline": [
        *(["set_typed", "times", "1:2:0.5"], ["set_typed", "latency", "0.5"], ["set_typed", "cap", "3"]),
        *(["set_typed", "cap", "none"], ["toggle_recompute", 2], ["move", 0, 1, 2], ["remove", 0, 7], ["stop"]),
        *(["clear"], ["undo"], ["redo"], ["put", 0, "0F1", -1], ["put_next", 0, "F", -1], ["clear_rank", 0]),
        *(["set_schedule", "chimera"], ["clear"], ["put", 0, "0F0", -1], ["move_onto", 0, 0, 3, 0]),
        *(["set_code", "net.pipeline(stages=2)"], ["set_schedule", "zb_h1"], ["search"]),
        ["load", "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"],
        *ASKING,
    ],
    "redistribution": [["to", 1], ["back"], ["next"], ["reset"], *ASKING],
    "recompute": [
        *(["toggle", 4], ["toggle", 2], ["recompute_all"], ["show_par"], ["keep_all"], ["stop"], ["set_cap", 30]),
        ["toggle", 7],
        *ASKING,
    ],
    "costs": ASKING,
    "runs": ASKING,
    "context": [["set_step", 3], ["set_way", "gathered"], ["set_way", "zigzag"], ["stop"], *ASKING],
    "experts": [
        *(["pick", 7], ["pick", 0], ["set_hand", "0 1 2 3 4 5 6 7"], ["set_placement", "eplb"], ["set_step", 0]),
        *(["set_token", 31], ["set_factor", "1"], ["set_convention", "tutel"], ["set_way", "back"], ["stop"]),
        *ASKING,
    ],
    "rosetta": [
        *(["set_form", "jax.PartitionSpec", "P(('tp', 'dp'), None)"], ["set_form", "mindspore.strategy", "((2, 2),)"]),
        *(
            ["set_mesh", "2 x 4"],
            ["set_dp", "P"],
            ["set_tp", "S1"],
            ["set_form", "torch", "[Shard(0), Partial('avg')]"],
        ),
        *(["set_form", "torch", "[_StridedShard(1, split_factor=2), Replicate()]"], ["set_rank", 7]),
        *ASKING,
    ],
    "explain": [
        *(["set_line", 24], ["set_lines", "all"], ["set_program", "import torch\nx = torch.ones(4)\ny = open(x)\n"]),
        *(["set_line", 3], ["set_devices", 4], ["set_example", "jax_jit"], ["set_lines", "busy"]),
        *ASKING,
    ],
    "hunt": [
        *(["probe"], ["compare"], ["set_suspect", 1], ["tell"], ["set_rank", 2], ["set_suspects", 8], ["forget"]),
        *ASKING,
    ],
    "search": [
        *(["set_weight", "gradients", "2"], ["set_pin", "matmul", "((1, 2), (2, 1))"], ["clear_arguments"]),
        *(["set_own_strategy", "matmul", "((1, 1), (1, 1))"], ["take", "front 1"], ["select_point", "yours"]),
        *(["set_code", "self.matmul.shard(((1, 1), (1, 2)))"], ["to", 0], ["stop"], ["set_weight", "compute", "0.5"]),
        *ASKING,
    ],
}
# started, or asked for first, in the tests of each lab
ELSEWHERE = {"run", "run_simulated", "run_measured", "find_par", "count", "fit_machine", "answer", "skip"}
ELSEWHERE |= {"show_best"}
# commands whose arguments have the right types, refused where a lab begins, and words of the reason; what a declared
# setting does not offer, and arguments of other types, are drawn in the tests
REFUSED: dict[str, list[tuple[list[Any], str]]] = {
    "strategy": [
        (["set_strategy", "conv", "((1,),)"], "matmul, relu, matmul2"),
        (["select_message", 99], "An int from 1 to 12"),
        (["set_steps", 0], "from 1 to 100000"),
        (["set_steps", 100_001], "from 1 to 100000"),
    ],
    "fusion": [
        (["set_config", "1, two"], "no setting"),
        (["set_line", -1.0, 0.0], "at least 0"),
        (["move_cut", 4, 5], "there is no cut 4"),
        (["remove_cut", 9], "there is no cut 9"),
        (["add_cut", 0], "from 1 to 9"),
        (["add_cut", 10], "from 1 to 9"),
        (["run_simulated"], "on paper"),
        (["run_measured"], "on paper"),
    ],
    "memory": [
        (["set_width", 33], "A multiple of 16"),
        (["set_width", 2048], "A multiple of 16"),
        (["set_threshold", -1], "at least 0"),
        (["set_shard_size", 3], "One of"),
        (["set_shard_size", 8], "optimizer_weight_shard_size"),
        (["set_capacity", "a lot"], "A size such as"),
        (["set_capacity", "1e400 GiB"], "A size such as"),
        (["show_source", "measured"], "One of predicted"),
        (["set_zero", "7.5B", 0, 12], "degree=0"),
        (["set_zero", "7.5B", 6.5, 12], "degree=6.5"),
        (["set_zero", "7.5B", 10**9, 12], "degree="),
        (["set_zero", "7.5B", 64, -1], "optimizer_bytes=-1"),
        (["set_zero", "7.5B", 64, float("nan")], "optimizer_bytes=nan"),
        (["show_best"], "par is not known"),
    ],
    "stepper": [
        (["to", 7], "An int from 0 to 6"),
        (["to", -1], "An int from 0 to 6"),
        (["follow", 4], "An int from 0 to 3"),
        (["choose_elements", 0], "An int from 1 to"),
    ],
    "pipeline": [
        (["set_stages", 5], "One of"),
        (["set_typed", "times", "1:1"], "Three numbers"),
        (["set_typed", "times", "0:0:0"], "One of them above 0"),
        (["set_typed", "cap", "2.5"], "A whole number"),
        (["set_typed", "depth", "2"], "One of"),
        (["toggle_recompute", 4], "0 to 3"),
        (["put", 0, "F0", -1], "'F0' is no action"),
        (["put", 0, "0F0", -1], "0F0 is done a second time"),
        (["put", 0, "1F0", 0], "part 1 lies on rank 1, rank 0 has 0"),
        (["put", 0, "0F9", 0], "0F9 has micro-batch 9; there are 0 to 3"),
        (["put", 0, "0X1", 0], "kind 'X'"),
        (["put_next", 0, "X", -1], "no 'X' left to do"),
        (["move", 0, 99, 0], "99"),
        (["move", 0, 4, 99], "to 99"),
        (["move", 0, 4, 0], "0B0 needs 0F0, which the rank does only at action 1: 0F0 must come first"),
        (["move_onto", 0, 0, 1, 0], "part 0 lies on rank 0"),
        (["remove", 0, -1], "-1"),
        (["remove", 4, 0], "rank 4"),
        (["clear_rank", 4], "rank 4"),
        (["load", ""], "the text has no actions"),
        (["load", "0F0"], "a line for each stage"),
        (["load", "0F0 " * 30_000], "characters"),
    ],
    "redistribution": [(["to", 9], "from 0 to")],
    "recompute": [(["toggle", 12], "One of 0, 1, 2"), (["show_par"], "no choice of your own under the cap 40")],
    "costs": [],
    "runs": [(["set_change", "cp 3"], "One of nothing")],
    "context": [(["set_step", 4], "One of 0, 1, 2, 3"), (["set_ranks", 3], "One of 2, 4, 8")],
    "experts": [
        (["set_k", 3], "One of 1, 2, 4, 8"),
        (["set_factor", "0"], "a capacity of 0 (megatron)"),
        (["set_experts", 6], "expert_parallel divides both"),
        (["set_hand", "0 1 2 3 4 5 6 6"], "Each number from 0 to 7 once"),
        (["pick", 8], "One of 0, 1, 2"),
    ],
    "rosetta": [
        (["set_form", "scaling_book", "A[I_Q, J]"], "A[ <-- here: 'I_Q, J]'"),
        (["set_form", "mindspore.Layout", 'Layout((2, 2), ("a", "b"))("a", "b")'], "A mesh of ranks 0 to 7"),
        (["set_form", "hebrew", "((2, 4),)"], "One of mindspore.strategy"),
        (["set_dp", "S2"], "One of R, S0, S1, P"),
        (["set_cp", "S0"], "cp 'S0'. One of R"),
    ],
    "explain": [(["set_program", ""], "A text"), (["set_program", "x = ("], "line 1"), (["set_line", 1], "One of 17")],
    "hunt": [(["set_suspects", 5], "One of 4, 8, 16"), (["set_seed", 99], "One of 0, 1")],
    "search": [
        (["set_pin", "matmul", "((3, 1), (1, 1))"], "One of"),
        (["set_capacity", "1 B"], "no choice of strategies needs at most 1 bytes"),
        (["set_weight", "luck", "2"], "One of compute, partial sums"),
        (["set_bandwidth", "fast"], "bandwidth"),
        (["select_point", "front 99"], "One of winner, yours"),
        (["to", 99], "One of 0, 1"),
    ],
}


def shown(lab: Lab) -> str:
    """All that a lab shows and keeps, as text: equal before and after what changed nothing."""
    return json.dumps([lab.snapshot(), lab.calls()], default=str)


def another(lab: Lab) -> list[Any]:
    """A command that gives a setting of the lab another value."""
    offered = ([one.command, value] for one in lab.declared.values() if one.label for value in one.choice(lab).known)
    return next(call for call in (*lab.replays(), *offered) if len(call) == 2 and call not in lab.calls())
