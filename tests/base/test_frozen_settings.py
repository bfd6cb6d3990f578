"""Settings as passes and runs receive them: versions, the frozen config, seeds, fusion by the cost model."""

import pytest

from parallel_lab.base import hooks, seeds
from parallel_lab.base.errors import ContextError, ContextTypeError
from parallel_lab.base.settings import context
from parallel_lab.base.settings.config import ParallelConfig
from tests.base.contexts import DEFAULTS, fuse
from tests.crossed import each_of

pytestmark = pytest.mark.usefixtures("default_settings")


# ---- versions ----


def test_versions_differ_in_defaults_only():
    context.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 24})
    context.set_compat("2.10")
    assert context.get_compat() == "2.10"
    assert context.get_auto_parallel_context("search_mode") == "recursive_programming" == context.frozen().search_mode
    assert context.get_algo_parameters("fully_use_devices") is False is context.frozen().fully_use_devices
    changed = {"parallel_optimizer_threshold": 24, "gradient_accumulation_shard": False}
    found = context.get_auto_parallel_context("parallel_optimizer_config")
    assert found == DEFAULTS["parallel_optimizer_config"] | changed
    context.set_auto_parallel_context(search_mode="dynamic_programming")
    context.set_algo_parameters(fully_use_devices=True)
    assert (context.frozen().search_mode, context.frozen().fully_use_devices) == ("dynamic_programming", True)
    context.reset_auto_parallel_context()
    assert context.get_auto_parallel_context("search_mode") == "recursive_programming"
    context.set_compat("seeds")
    assert context.get_auto_parallel_context("search_mode") == "dynamic_programming"


def test_cuts_of_the_inputs_read_as_lists_in_2_10():
    context.set_auto_parallel_context(dataset_strategy=((8, 1), (8,)))
    context.set_compat("2.10")
    assert context.get_auto_parallel_context("dataset_strategy") == [[8, 1], [8]]
    assert context.frozen().dataset_strategy == ((8, 1), (8,))


@pytest.mark.parametrize(("version", "raised"), [("1.9", ValueError), (2.1, TypeError), (None, TypeError)])
def test_other_versions_are_refused(version, raised):
    with pytest.raises(raised, match="compat"):
        context.set_compat(version)


# ---- what passes and runs receive ----


def test_frozen_takes_overrides_and_changes_nothing():
    context.set_auto_parallel_context(device_num=8)
    assert context.frozen(device_num=2, comm_fusion=fuse(allreduce=("size", 3))).device_num == 2
    assert (context.frozen().device_num, context.frozen().comm_fusion) == (8, ())
    with pytest.raises(ContextTypeError, match="device_num"):
        context.frozen(device_num="8")
    with pytest.raises(TypeError, match="unexpected keyword"):
        context.frozen(devices=8)


def test_a_rank_that_is_not_there_is_refused_when_it_compiles():
    context.set_auto_parallel_context(global_rank=8)
    context.set_auto_parallel_context(device_num=8)
    with pytest.raises(RuntimeError, match="global_rank=8"):
        context.frozen()
    assert context.frozen(device_num=16).device_num == 16


def test_stages_divide_the_devices():
    context.set_auto_parallel_context(pipeline_stages=3)
    with pytest.raises(RuntimeError, match="pipeline_stages=3"):
        context.frozen(device_num=8)
    assert context.frozen(device_num=24).pipeline_stages == 3


def test_ranks_of_one_run_share_what_plans_depend_on():
    one = context.frozen(global_rank=0, strategy_ckpt_save_file="rank0.ckpt")
    other = context.frozen(global_rank=1, strategy_ckpt_save_file="rank1.ckpt", strategy_ckpt_load_file="x")
    assert one != other and one.shared() == other.shared()
    assert context.frozen(gradients_mean=True).shared() != one.shared()


class World:
    rank, world_size = 5, 8


def test_a_run_asks_its_world_for_missing_settings():
    hooks.set_world(World())
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    config = context.frozen_for_run()
    assert (config.device_num, config.global_rank) == (8, 5)
    context.set_auto_parallel_context(device_num=8, global_rank=2)
    assert (context.frozen_for_run().device_num, context.frozen_for_run().global_rank) == (8, 2)
    context.set_auto_parallel_context(device_num=4)
    with pytest.raises(RuntimeError, match="device_num=4"):
        context.frozen_for_run()


def test_a_run_on_one_device_has_one_device():
    hooks.set_world(World())
    assert (context.frozen_for_run().device_num, context.frozen_for_run().global_rank) == (1, 0)
    context.set_auto_parallel_context(device_num=8)
    with pytest.raises(ValueError, match="stand_alone"):
        context.frozen_for_run()


def test_a_run_without_a_world_takes_what_was_set():
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
    assert context.frozen_for_run().device_num == 8


# ---- seeds ----


def test_a_temporary_seed_is_gone_after_its_block():
    before, draws = seeds.get_seed(), seeds.next_draw()
    with pytest.raises(KeyError), seeds.temporary_seed(before + 1):
        assert (seeds.get_seed(), seeds.next_draw(), seeds.next_draw()) == (before + 1, 0, 1)
        raise KeyError
    assert (seeds.get_seed(), seeds.next_draw()) == (before, draws + 1)


@pytest.mark.parametrize("name", ["set_seed", "set_dataset_seed"])
@pytest.mark.parametrize(
    ("seed", "raised"),
    [*((seed, ContextError) for seed in (-1, 2**64)), *((seed, ContextTypeError) for seed in (True, 1.0, "3"))],
)
def test_a_seed_is_an_int_that_a_message_can_carry(name, seed, raised):
    before = (seeds.get_seed(), seeds.get_dataset_seed())
    with pytest.raises(raised, match=f"{name}: seed=.*from 0 to 18446744073709551615"):
        getattr(seeds, name)(seed)
    assert (seeds.get_seed(), seeds.get_dataset_seed()) == before


def test_asking_whether_an_unknown_key_is_set_names_no_function_that_is_not_there():
    with pytest.raises(ContextError) as caught:
        context.is_set("max_call_depth")
    assert "is_context" not in str(caught.value)


# ---- fusion by the cost model, and how positions are counted ----


def test_positions_are_inclusive_until_the_seeds_wording_is_asked_for():
    assert context.frozen().fusion_index == "inclusive"
    context.set_auto_parallel_context(fusion_index="first_n")
    assert context.frozen().fusion_index == "first_n"
    with pytest.raises(ContextError, match="first_n"):
        context.set_auto_parallel_context(fusion_index="exclusive")


def _fuse_by_cost(**settings):
    context.set_cost_model_context(**{f"costmodel_allreduce_fusion_{key}": value for key, value in settings.items()})
    return context.frozen().cost_model_fusion


def test_the_cost_model_fuses_once_an_algorithm_is_chosen_and_its_numbers_make_sense():
    assert context.frozen().cost_model_fusion is None
    assert _fuse_by_cost(times=2, tail_percent=0.5) is None  # algorithm 0
    assert _fuse_by_cost(algorithm=1) == ("times", 2, 0.5)
    assert _fuse_by_cost(times=1) is None
    assert _fuse_by_cost(algorithm=2) is None  # tail and inherent time are both 0.1 at first
    hiding = _fuse_by_cost(
        tail_time=0.1, allreduce_inherent_time=0.05, allreduce_bandwidth=1e-6, computation_time_parameter=1.5e-6
    )
    assert hiding == ("hiding", 0.1, 0.05, 1e-6, 1.5e-6)
    assert hash(context.frozen()) == hash(context.frozen())
    assert ParallelConfig(cost_model_fusion=hiding) == context.frozen()
    assert _fuse_by_cost(computation_time_parameter=0.0) is None
    context.reset_cost_model_context()
    assert context.frozen().cost_model_fusion is None


@each_of(
    "value",
    *(["times", 2, 0.5], ("times", 2), ("times", 1, 0.5), ("times", 2.0, 0.5), ("times", 2, 1.0)),
    *(("sizes", 2, 0.5), ("hiding", 0.1, 0.1, 1e-6, 1e-6), ("hiding", 0.1, 0.05, 0.0, 1e-6), (), 1),
    ids=str,
)
def test_an_invalid_cost_model_fusion_is_refused(value):
    with pytest.raises(ContextError, match="cost_model_fusion"):
        ParallelConfig(cost_model_fusion=value)
