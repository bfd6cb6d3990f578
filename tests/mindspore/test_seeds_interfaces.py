"""The interfaces of MindSpore's page on distributed parallel training: what is set is what is read, on every rank."""

from __future__ import annotations

import pytest

from tests.mindspore.runs import WAYS, copied

# the values the page sets, in the words in which MindSpore returns them
SETTINGS = [
    *("device_num 8", "global_rank 0", "device_num 8", "gradients_mean False", "parallel_mode semi_auto_parallel"),
    *("all_reduce_fusion_config [20, 35]", "enable_parallel_optimizer True"),
    "parallel_optimizer_config {'gradient_accumulation_shard': True",
    "parameter_broadcast True",
    "comm_fusion {'allreduce': {'mode': 'auto', 'config': None}}",
    "comm_fusion {'allreduce': {'mode': 'size', 'config': 32}}",
    "comm_fusion {'allreduce': {'mode': 'index', 'config': [20, 35]}}",
    "comm_fusion {'allgather': {'mode': 'size', 'config': 16}, 'reducescatter': {'mode': 'size', 'config': 32}}",
    *("gradient_fp32_sync False", "search_mode dynamic_programming", "strategy_ckpt_load_file ./"),
    *("strategy_ckpt_save_file kept/strategy.ckpt", "full_batch False", "pipeline_stages 4"),
]
INTERFACES = [
    "fusion ids [2, 1] then [2, 2]",
    *("cross_batch True", "fusion 1", "layerwise_parallel True"),
    "add Prim[Add]<in_strategy=((1, 1), (1, 1)), out_strategy=None>",
]


@pytest.mark.timeout(300)
@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
def test_every_setting_and_interface_of_the_page(tmp_path, way):
    for rank, lines in enumerate(way(copied(tmp_path, "interfaces.py"), 8, "interfaces.py")):
        *told, refused = lines
        expected = [*SETTINGS, f"rank {rank} of 8", *INTERFACES]
        assert len(told) == len(expected)
        for line, start in zip(told, expected, strict=True):
            assert line == start or (start.startswith("parallel_optimizer_config") and line.startswith(start))
        # rows of 2 for one operator, columns of 4 for the other
        assert refused.startswith("refused: Parameter 'weight1', shape (16, 32), has two layouts")
        assert "'mul1' (interfaces.py:" in refused and "slices (2, 32)" in refused and "slices (16, 4)" in refused
