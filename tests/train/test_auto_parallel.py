"""`AutoParallel` on real processes, against one device. Cases: `cases/auto_parallel.py`."""

import pytest

from parallel_lab import nn
from parallel_lab.base.settings.context import frozen, reset_algo_parameters, set_algo_parameters, set_compat
from parallel_lab.train import AutoParallel
from tests.crossed import each_of
from tests.train.cases import auto_parallel
from tests.train.worlds import assert_refused, compared

worlds, test_ranks_equal_one_device = compared(auto_parallel, quick=1)  # the larger ones are exhaustive


def test_the_network_keeps_its_names(worlds):
    for note in worlds.notes(2, "network_called"):
        assert note["names"] == ["w", "bias", "v"]
    for note in worlds.notes(2, "network_with_model"):
        assert note["held"] == (6, 8)


@each_of(
    ("what", "kind", "words"),
    ("pipeline", "StrategyError", ("is fed no micro-batches, with pipeline_stages=2",)),
    ("hsdp", "OptimizerParallelError", ("optimizer_weight_shard_size=4 with 2 devices",)),
    ("tuple", "ContextStrategyError", ("1 tuples", "2 inputs")),
    ("cuts", "ContextStrategyError", ("3 counts for input 0",)),
    ("devices", "ContextStrategyError", ("8 slices of input 0", "2 devices")),
    ("layout", "ContextStrategyError", ("is for 8 devices",)),
    ("tape", "TraceError", ("AutoParallel(", "jit")),
    ("beginning", "WorldError", ("begins with other values on rank 1", "weight")),
)
def test_what_cannot_be_run_is_refused_on_every_rank(worlds, what, kind, words):
    for note in worlds.notes(2, "what_is_refused"):
        assert_refused(note[what], kind, words)


@pytest.mark.parametrize("fully", [True, False])
def test_algorithm_parameters_are_those_of_the_context(fully):
    """They were True whatever had been set."""
    set_algo_parameters(fully_use_devices=fully, tensor_slice_align_size=32)
    try:
        config = frozen(**AutoParallel(nn.Dense(4, 4), parallel_mode="sharding_propagation").settings())
    finally:
        reset_algo_parameters()
    assert (config.fully_use_devices, config.tensor_slice_align_size) == (fully, 32)
    assert config.search_mode == "sharding_propagation"


def test_the_defaults_of_2_10_reach_it_too():
    set_compat("2.10")
    try:
        assert not frozen(**AutoParallel(nn.Dense(4, 4)).settings()).fully_use_devices
    finally:
        set_compat("seeds")
    assert frozen(**AutoParallel(nn.Dense(4, 4)).settings()).fully_use_devices


def test_settings_reach_what_is_compiled():
    net = AutoParallel(nn.Dense(4, 4))
    net.comm_fusion({"allreduce": {"mode": "size", "config": 32}})
    net.dataset_strategy("full_batch")
    net.hsdp(shard_size=4, threshold=1, optimizer_level="level2")
    config = frozen(**net.settings())
    assert config.comm_fusion == (("allreduce", "size", 32),)
    assert config.dataset_strategy == "full_batch"
    assert (config.enable_parallel_optimizer, config.optimizer_weight_shard_size) == (True, 4)
    assert (config.parallel_optimizer_threshold, config.optimizer_level) == (1, "level2")


def test_options_of_accelerators_are_taken_and_change_nothing():
    net = AutoParallel(nn.Dense(4, 4))
    before = frozen(**net.settings())
    net.transformer_opt("speed_up.json")
    net.transformer_opt(None)
    assert frozen(**net.settings()) == before
    with pytest.raises(TypeError, match="file_path=3"):
        net.transformer_opt(3)
