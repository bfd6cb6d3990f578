"""Settings: their defaults, what is read back, how keys work together, and what a compilation receives.

The defaults are those of the 1.x documents of MindSpore; what 2.10.0 has instead was recorded after a reset.
"""

import dataclasses
import json

import pytest

from parallel_lab import context
from parallel_lab.context import (
    PARALLEL_MODES,
    ParallelConfig,
    frozen,
    frozen_for_run,
    get_algo_parameters,
    get_auto_parallel_context,
    get_compat,
    get_context,
    get_cost_model_context,
    is_set,
    reset_algo_parameters,
    reset_auto_parallel_context,
    reset_cost_model_context,
    set_algo_parameters,
    set_auto_parallel_context,
    set_compat,
    set_context,
    set_cost_model_context,
)
from parallel_lab.errors import ContextConflictError, ContextError, ContextKeyError, ContextPathError, ContextTypeError
from parallel_lab.named_layout import Layout

pytestmark = pytest.mark.usefixtures("default_settings")


# ---- defaults ----

DEFAULTS = {
    "device_num": 1,
    "global_rank": 0,
    "gradients_mean": False,
    "gradient_fp32_sync": True,
    "loss_repeated_mean": True,
    "parallel_mode": "stand_alone",
    "search_mode": "dynamic_programming",
    "auto_parallel_search_mode": "dynamic_programming",
    "sharding_propagation": False,
    "parameter_broadcast": False,
    "strategy_ckpt_load_file": "",
    "strategy_ckpt_save_file": "",
    "group_ckpt_save_file": "",
    "full_batch": False,
    "dataset_strategy": "data_parallel",
    "enable_parallel_optimizer": False,
    "parallel_optimizer_config": {
        "gradient_accumulation_shard": True,
        "parallel_optimizer_threshold": 64,
        "optimizer_weight_shard_size": -1,
        "optimizer_level": "level1",
    },
    "optimizer_weight_shard_size": -1,
    "optimizer_weight_shard_aggregated_save": False,
    "pipeline_stages": 1,
    "pipeline_result_broadcast": False,
    "pipeline_config": {"pipeline_interleave": False, "pipeline_scheduler": "1f1b"},
    "auto_pipeline": False,
    "all_reduce_fusion_config": [],
    "comm_fusion": {"openstate": True, **{kind: {"mode": "auto", "config": None} for kind in ("allreduce", "allgather", "reducescatter")}},
    "fusion_index": "inclusive",
    "grad_accumulation_step": 1,
    "communi_parallel_mode": "all_group_parallel",
    "enable_alltoall": False,
    "force_fp32_communication": False,
    "strategy_ckpt_config": {"load_file": "", "save_file": "", "only_trainable_params": True},
    "dump_local_norm": False,
    "dump_local_norm_path": "",
    "dump_device_local_norm": False,
}
ALGORITHM_DEFAULTS = {
    "fully_use_devices": True,
    "elementwise_op_strategy_follow": False,
    "enable_algo_approxi": False,
    "algo_approxi_epsilon": 0.1,
    "tensor_slice_align_enable": False,
    "tensor_slice_align_size": 16,
}


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults_of_the_parallel_context(key):
    value = get_auto_parallel_context(key)
    assert value == DEFAULTS[key] and type(value) is type(DEFAULTS[key])


def test_every_key_that_can_be_set_has_a_default_in_this_file():
    with pytest.raises(ContextError) as caught:
        set_auto_parallel_context(qqq=1)
    listed = str(caught.value).partition("Keys: ")[2].rstrip(".").split(", ")
    assert sorted(listed) == sorted(DEFAULTS)


@pytest.mark.parametrize("key", ALGORITHM_DEFAULTS)
def test_defaults_of_the_search(key):
    assert get_algo_parameters(key) == ALGORITHM_DEFAULTS[key]


def test_a_config_made_by_hand_has_the_defaults_of_the_context():
    assert ParallelConfig() == frozen()
    assert {f.name for f in dataclasses.fields(ParallelConfig)} > set(ALGORITHM_DEFAULTS)


COST_DEFAULTS = {
    "device_memory_capacity": 16 * 1024.0**3,
    "costmodel_alpha": 1.0,
    "costmodel_gamma": 0.001,
    "costmodel_communi_threshold": 2048.0,
    "costmodel_communi_const": 3072.0,
    "costmodel_communi_bias": 1024.0,
    "costmodel_simplify_cal": True,
    "costmodel_allreduce_fusion_algorithm": 0,
    "costmodel_allreduce_fusion_times": 0,
    "costmodel_allreduce_fusion_tail_percent": 0.1,
    "costmodel_allreduce_fusion_tail_time": 0.1,
    "costmodel_allreduce_fusion_allreduce_inherent_time": 0.1,
    "costmodel_allreduce_fusion_allreduce_bandwidth": 0.1,
    "costmodel_allreduce_fusion_computation_time_parameter": 0.1,
    "is_multi_subgraphs": False,
    "run_phase": 0,
    "dp_algo_triangle_star_strategy_overwrite": True,
    "dp_algo_enable_approxi": False,
    "dp_algo_approxi_epsilon": 0.1,
    "dp_algo_single_loop": True,
}


@pytest.mark.parametrize("key", COST_DEFAULTS)
def test_defaults_of_the_cost_model(key):
    assert get_cost_model_context(key) == COST_DEFAULTS[key]


def test_weight_of_communication_depends_on_the_device():
    assert get_cost_model_context("costmodel_beta") == 400.0
    set_context(device_target="GPU")
    assert get_cost_model_context("costmodel_beta") == 50.0
    set_cost_model_context(costmodel_beta=7.0)
    assert get_cost_model_context("costmodel_beta") == 7.0


def test_approximation_has_two_names_and_one_value():
    set_cost_model_context(dp_algo_enable_approxi=True, dp_algo_approxi_epsilon=0.5, costmodel_alpha=2.0)
    assert (get_algo_parameters("enable_algo_approxi"), get_algo_parameters("algo_approxi_epsilon")) == (True, 0.5)
    reset_cost_model_context()
    assert (get_algo_parameters("algo_approxi_epsilon"), get_cost_model_context("costmodel_alpha")) == (0.1, 1.0)


# ---- what is set is read back ----

ROUND_TRIPS = [
    {"device_num": 4096},
    {"device_num": 6},  # compiling wants 1, 2, 4 or a multiple of 8
    {"global_rank": 4095},
    {"parallel_mode": "semi_auto_parallel"},
    {"search_mode": "recursive_programming"},
    {"gradients_mean": True},
    {"gradient_fp32_sync": False},
    {"loss_repeated_mean": False},
    {"parameter_broadcast": True},
    {"full_batch": True},
    {"dataset_strategy": "full_batch"},
    {"dataset_strategy": ((1, 1, 1, 8), (8,))},
    {"dataset_strategy": ((8, 1), ())},
    {"dataset_strategy": (Layout((2, 4), ("dp", "mp"))("dp", "None"), Layout((2, 4), ("dp", "mp"))("dp"))},
    {"enable_parallel_optimizer": True},
    {"optimizer_weight_shard_size": 3},
    {"optimizer_weight_shard_aggregated_save": True},
    {"pipeline_stages": 4},
    {"pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "gpipe"}},
    {"all_reduce_fusion_config": [20, 35]},
    {"all_reduce_fusion_config": [0]},
    {"fusion_index": "first_n"},
    {"grad_accumulation_step": 4},
    {"communi_parallel_mode": "no_group_parallel"},
    {"enable_alltoall": True},
    {"strategy_ckpt_load_file": "./"},
    {"strategy_ckpt_config": {"load_file": "a.ckpt", "save_file": "b.json", "only_trainable_params": False}},
    {
        "parallel_optimizer_config": {
            "gradient_accumulation_shard": False,
            "parallel_optimizer_threshold": 0,
            "optimizer_weight_shard_size": 1,
            "optimizer_level": "level3",
        }
    },
]


@pytest.mark.parametrize("setting", ROUND_TRIPS, ids=str)
def test_what_is_set_is_read_back_and_reset(setting):
    (key, value), *_ = setting.items()
    set_auto_parallel_context(**setting)
    assert get_auto_parallel_context(key) == value
    config = frozen()
    assert hash(config) == hash(frozen()) and config != ParallelConfig()
    reset_auto_parallel_context()
    assert get_auto_parallel_context(key) == DEFAULTS[key]


def test_configs_are_plain_values_that_json_keeps():
    set_auto_parallel_context(device_num=8, dataset_strategy=((8, 1), (8,)), comm_fusion={"allreduce": {"mode": "index", "config": [2, 5]}})
    config = frozen(gradients_mean=True)
    decoded = {k: _tuples(v) for k, v in json.loads(json.dumps(dataclasses.asdict(config))).items()}
    assert ParallelConfig(**decoded) == config


def _tuples(value):
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def test_dict_keys_and_single_keys_are_one_store():
    set_auto_parallel_context(strategy_ckpt_config={"load_file": "a.ckpt"}, optimizer_weight_shard_size=4)
    assert get_auto_parallel_context("strategy_ckpt_load_file") == "a.ckpt"
    assert get_auto_parallel_context("parallel_optimizer_config")["optimizer_weight_shard_size"] == 4
    set_auto_parallel_context(parallel_optimizer_config={"optimizer_weight_shard_size": 2})
    assert get_auto_parallel_context("optimizer_weight_shard_size") == 2 == frozen().optimizer_weight_shard_size


def test_search_mode_has_an_old_name_and_an_old_switch():
    set_auto_parallel_context(auto_parallel_search_mode="recursive_programming")
    assert get_auto_parallel_context("search_mode") == "recursive_programming"
    set_auto_parallel_context(sharding_propagation=False)
    assert get_auto_parallel_context("search_mode") == "recursive_programming"
    set_auto_parallel_context(sharding_propagation=True)
    assert frozen().search_mode == "sharding_propagation"
    set_auto_parallel_context(sharding_propagation=False)
    assert get_auto_parallel_context("auto_parallel_search_mode") == "dynamic_programming"


def test_full_batch_is_dataset_strategy():
    set_auto_parallel_context(full_batch=True)
    assert get_auto_parallel_context("dataset_strategy") == "full_batch"
    set_auto_parallel_context(full_batch=False)
    assert get_auto_parallel_context("dataset_strategy") == "data_parallel"
    set_auto_parallel_context(dataset_strategy=((4, 1),))
    set_auto_parallel_context(full_batch=False)
    assert (get_auto_parallel_context("full_batch"), get_auto_parallel_context("dataset_strategy")) == (False, ((4, 1),))
    set_auto_parallel_context(full_batch=True)
    assert get_auto_parallel_context("dataset_strategy") == "full_batch"


@pytest.mark.parametrize("together", [{"full_batch": False, "dataset_strategy": ((4, 1),)}, {"full_batch": True, "dataset_strategy": "full_batch"}])
def test_keys_of_one_call_may_say_the_same(together):
    set_auto_parallel_context(**together)
    assert get_auto_parallel_context("dataset_strategy") == together["dataset_strategy"]


CONTRADICTIONS = [
    {"full_batch": True, "dataset_strategy": "data_parallel"},
    {"full_batch": False, "dataset_strategy": "full_batch"},
    {"dataset_strategy": ((8, 1),), "full_batch": True},
    {"search_mode": "recursive_programming", "auto_parallel_search_mode": "dynamic_programming"},
    {"sharding_propagation": False, "search_mode": "sharding_propagation"},
    {"search_mode": "dynamic_programming", "sharding_propagation": True},
    {"all_reduce_fusion_config": [1], "comm_fusion": {"allreduce": {"mode": "index", "config": [2]}}},
    {"strategy_ckpt_load_file": "a", "strategy_ckpt_config": {"load_file": "b"}},
    {"optimizer_weight_shard_size": 2, "parallel_optimizer_config": {"optimizer_weight_shard_size": 4}},
    {"device_num": 8, "global_rank": 8},
]


@pytest.mark.parametrize("settings", CONTRADICTIONS, ids=str)
def test_keys_of_one_call_that_contradict_each_other_are_refused(settings):
    """MindSpore takes the last one, in silence; global_rank 8 of 8 it refuses when it compiles, with RuntimeError."""
    with pytest.raises(ContextConflictError) as caught:
        set_auto_parallel_context(**settings, gradients_mean=True)
    assert isinstance(caught.value, (RuntimeError, ValueError))
    assert any(key in str(caught.value) for key in settings)
    assert get_auto_parallel_context("gradients_mean") is False


def test_number_and_rank_know_whether_they_were_set():
    assert (is_set("device_num"), is_set("global_rank")) == (False, False)
    set_auto_parallel_context(device_num=1, global_rank=0)
    assert (is_set("device_num"), is_set("global_rank")) == (True, True)
    reset_auto_parallel_context()
    assert (is_set("device_num"), is_set("global_rank")) == (False, False)


# ---- communication fusion ----


def fuse(**kinds):
    return {kind: {"mode": mode, "config": config} for kind, (mode, config) in kinds.items()}


def test_nothing_is_fused_until_it_is_configured():
    assert frozen().comm_fusion == ()
    set_auto_parallel_context(comm_fusion={"openstate": True})
    assert frozen().comm_fusion == ()


def test_kinds_of_messages_add_up_over_calls():
    set_auto_parallel_context(comm_fusion=fuse(allreduce=("auto", None)))
    set_auto_parallel_context(comm_fusion=fuse(reducescatter=("size", 32), allgather=("size", 16)))
    assert frozen().comm_fusion == (("allreduce", "auto", 64), ("allgather", "size", 16), ("reducescatter", "size", 32))
    expected = {"openstate": True, **fuse(allreduce=("auto", None), allgather=("size", 16), reducescatter=("size", 32))}
    assert get_auto_parallel_context("comm_fusion") == expected


def test_index_fusion_has_two_names():
    set_auto_parallel_context(all_reduce_fusion_config=[20, 35])
    assert frozen().comm_fusion == (("allreduce", "index", (20, 35)),)
    assert get_auto_parallel_context("comm_fusion")["allreduce"] == {"mode": "index", "config": [20, 35]}
    set_auto_parallel_context(comm_fusion=fuse(allreduce=("index", [3])))
    assert get_auto_parallel_context("all_reduce_fusion_config") == [3]
    set_auto_parallel_context(comm_fusion=fuse(allreduce=("size", 3)))
    assert get_auto_parallel_context("all_reduce_fusion_config") == []


def test_what_is_read_is_a_copy():
    given = fuse(allreduce=("index", [3]))
    set_auto_parallel_context(comm_fusion=given)
    given["allreduce"]["config"].append(4)
    get_auto_parallel_context("comm_fusion")["allreduce"]["config"].append(5)
    get_auto_parallel_context("all_reduce_fusion_config").append(6)
    assert get_auto_parallel_context("all_reduce_fusion_config") == [3]


OPENSTATE = [  # calls, what is fused with the rule of 1.x, with that of 2.10
    ([{"openstate": False, **fuse(allreduce=("size", 1))}], (), (("allreduce", "size", 1),)),
    ([{**fuse(allreduce=("size", 1)), "openstate": False}], (), ()),
    ([fuse(allreduce=("size", 1)), {"openstate": False}], (), ()),
    ([fuse(allreduce=("size", 1)), {"openstate": False}, {"openstate": True}], (), ()),
    ([{"openstate": False}, fuse(allgather=("size", 2))], (), (("allgather", "size", 2),)),
]


@pytest.mark.parametrize(("calls", "older", "newer"), OPENSTATE)
@pytest.mark.parametrize("version", ["seeds", "2.10"])
def test_after_openstate_false(calls, older, newer, version):
    """1.x ignores every kind that comes later; 2.10 fuses it again; openstate True switches nothing on in either."""
    set_compat(version)
    for call in calls:
        set_auto_parallel_context(comm_fusion=call)
    assert frozen().comm_fusion == (older if version == "seeds" else newer)
    assert get_auto_parallel_context("comm_fusion")["openstate"] is calls[-1].get("openstate", True)
    if len(calls) == 1:  # a compilation's own setting follows the same rule
        reset_auto_parallel_context()
        assert frozen(comm_fusion=calls[0]).comm_fusion == (older if version == "seeds" else newer)
    reset_auto_parallel_context()
    set_auto_parallel_context(comm_fusion=fuse(allreduce=("size", 1)))
    assert frozen().comm_fusion == (("allreduce", "size", 1),)


def test_a_bad_part_behind_openstate_false_is_refused_too():
    """1.x returned before it looked at them."""
    with pytest.raises(ContextKeyError):
        set_auto_parallel_context(comm_fusion={"openstate": False, "allreduce": {"modes": "size", "config": 1}})


@pytest.mark.parametrize("given", [fuse(allreduce=("size", 32)), (("allreduce", "size", 32),)])
def test_a_config_takes_fusion_as_a_dict_or_resolved(given):
    assert ParallelConfig(comm_fusion=given).comm_fusion == (("allreduce", "size", 32),)


@pytest.mark.parametrize("given", [("allreduce",), (("allreduce", "size"),), ((("a",), "size", 1),), (("allreduce", "size", -1),), "size"])
def test_a_config_refuses_other_fusion(given):
    with pytest.raises(ContextError, match="comm_fusion"):
        ParallelConfig(comm_fusion=given)


# ---- nothing changes in a refused call ----


def everything():
    return {key: get_auto_parallel_context(key) for key in DEFAULTS} | {key: get_algo_parameters(key) for key in ALGORITHM_DEFAULTS}


def test_a_refused_call_changes_nothing():
    set_auto_parallel_context(device_num=8, comm_fusion=fuse(allreduce=("size", 4)))
    before = everything()
    for key in ("nonsense", "pipeline_stages"):
        with pytest.raises(ContextError):
            set_auto_parallel_context(gradients_mean=True, comm_fusion=fuse(allreduce=("size", 8)), full_batch=True, **{key: "x"})
    with pytest.raises(ContextError):
        set_algo_parameters(fully_use_devices=False, tensor_slice_align_size=0)
    with pytest.raises(ContextError):
        set_cost_model_context(dp_algo_enable_approxi=True, run_phase=2)
    assert everything() == before


def test_the_folder_of_a_save_file_is_made(tmp_path):
    set_auto_parallel_context(strategy_ckpt_save_file=str(tmp_path / "a" / "b" / "s.ckpt"))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="strategy_ckpt_save_file") as caught:
        set_auto_parallel_context(strategy_ckpt_save_file=str(tmp_path / "file" / "s.ckpt"), gradients_mean=True)
    assert isinstance(caught.value, ContextPathError)
    assert (get_auto_parallel_context("strategy_ckpt_save_file"), get_auto_parallel_context("gradients_mean")) == ("", False)


def test_seeds_strategy_file_is_a_folder():
    """Seed 000 passes "./", which 2.10 accepts."""
    set_auto_parallel_context(strategy_ckpt_save_file="./")
    assert get_auto_parallel_context("strategy_ckpt_save_file") == "./"


# ---- PyNative ----


@pytest.mark.parametrize("mode", PARALLEL_MODES)
@pytest.mark.parametrize("mode_first", [True, False])
def test_pynative_mode_takes_three_parallel_modes(mode, mode_first):
    calls = [lambda: set_context(mode=context.PYNATIVE_MODE), lambda: set_auto_parallel_context(parallel_mode=mode)]
    first, second = calls if mode_first else calls[::-1]
    first()
    if mode in ("stand_alone", "data_parallel", "auto_parallel"):
        second()
        assert (get_context("mode"), get_auto_parallel_context("parallel_mode")) == (context.PYNATIVE_MODE, mode)
        return
    with pytest.raises(ValueError, match="PyNative"):
        second()
    assert (get_context("mode"), get_auto_parallel_context("parallel_mode")) in ((1, "stand_alone"), (0, mode))


def test_pynative_mode_takes_no_tuple_of_cuts():
    set_context(mode=context.PYNATIVE_MODE)
    with pytest.raises(ValueError, match=r"dataset_strategy=\(\(8, 1\),\)"):
        set_auto_parallel_context(dataset_strategy=((8, 1),))
    set_auto_parallel_context(dataset_strategy="full_batch")


def test_search_settings_are_reset_apart_from_the_others():
    set_algo_parameters(tensor_slice_align_size=8, fully_use_devices=False)
    reset_auto_parallel_context()
    assert get_algo_parameters("tensor_slice_align_size") == 8
    reset_algo_parameters()
    assert {key: get_algo_parameters(key) for key in ALGORITHM_DEFAULTS} == ALGORITHM_DEFAULTS


# ---- versions ----


def test_versions_differ_in_defaults_only():
    set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 24})
    set_compat("2.10")
    assert get_compat() == "2.10"
    assert get_auto_parallel_context("search_mode") == "recursive_programming" == frozen().search_mode
    assert get_algo_parameters("fully_use_devices") is False is frozen().fully_use_devices
    expected = {**DEFAULTS["parallel_optimizer_config"], "parallel_optimizer_threshold": 24, "gradient_accumulation_shard": False}
    assert get_auto_parallel_context("parallel_optimizer_config") == expected
    set_auto_parallel_context(search_mode="dynamic_programming")
    set_algo_parameters(fully_use_devices=True)
    assert (frozen().search_mode, frozen().fully_use_devices) == ("dynamic_programming", True)
    reset_auto_parallel_context()
    assert get_auto_parallel_context("search_mode") == "recursive_programming"
    set_compat("seeds")
    assert get_auto_parallel_context("search_mode") == "dynamic_programming"


def test_cuts_of_the_inputs_read_as_lists_in_2_10():
    set_auto_parallel_context(dataset_strategy=((8, 1), (8,)))
    set_compat("2.10")
    assert get_auto_parallel_context("dataset_strategy") == [[8, 1], [8]]
    assert frozen().dataset_strategy == ((8, 1), (8,))


@pytest.mark.parametrize(("version", "raised"), [("1.9", ValueError), (2.1, TypeError), (None, TypeError)])
def test_other_versions_are_refused(version, raised):
    with pytest.raises(raised, match="compat"):
        set_compat(version)


# ---- what passes and runs receive ----


def test_frozen_takes_overrides_and_changes_nothing():
    set_auto_parallel_context(device_num=8)
    assert frozen(device_num=2, comm_fusion=fuse(allreduce=("size", 3))).device_num == 2
    assert (frozen().device_num, frozen().comm_fusion) == (8, ())
    with pytest.raises(ContextTypeError, match="device_num"):
        frozen(device_num="8")
    with pytest.raises(TypeError, match="unexpected keyword"):
        frozen(devices=8)


def test_a_rank_that_is_not_there_is_refused_when_it_compiles():
    set_auto_parallel_context(global_rank=8)
    set_auto_parallel_context(device_num=8)
    with pytest.raises(RuntimeError, match="global_rank=8"):
        frozen()
    assert frozen(device_num=16).device_num == 16


def test_stages_divide_the_devices():
    set_auto_parallel_context(pipeline_stages=3)
    with pytest.raises(RuntimeError, match="pipeline_stages=3"):
        frozen(device_num=8)
    assert frozen(device_num=24).pipeline_stages == 3


def test_ranks_of_one_run_share_what_plans_depend_on():
    one = frozen(global_rank=0, strategy_ckpt_save_file="rank0.ckpt")
    other = frozen(global_rank=1, strategy_ckpt_save_file="rank1.ckpt", strategy_ckpt_load_file="x")
    assert one != other and one.shared() == other.shared()
    assert frozen(gradients_mean=True).shared() != one.shared()


class World:
    rank, world_size = 5, 8


def test_a_run_asks_its_world_for_what_was_not_set():
    context.set_world(World())
    set_auto_parallel_context(parallel_mode="data_parallel")
    config = frozen_for_run()
    assert (config.device_num, config.global_rank) == (8, 5)
    set_auto_parallel_context(device_num=8, global_rank=2)
    assert (frozen_for_run().device_num, frozen_for_run().global_rank) == (8, 2)
    set_auto_parallel_context(device_num=4)
    with pytest.raises(RuntimeError, match="device_num=4"):
        frozen_for_run()


def test_a_run_on_one_device_has_one_device():
    context.set_world(World())
    assert (frozen_for_run().device_num, frozen_for_run().global_rank) == (1, 0)
    set_auto_parallel_context(device_num=8)
    with pytest.raises(ValueError, match="stand_alone"):
        frozen_for_run()


def test_a_run_without_a_world_takes_what_was_set():
    set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8)
    assert frozen_for_run().device_num == 8


# ---- seeds ----


def test_a_temporary_seed_is_gone_after_its_block():
    before, draws = context.get_seed(), context.next_draw()
    with pytest.raises(KeyError), context.temporary_seed(before + 1):
        assert (context.get_seed(), context.next_draw(), context.next_draw()) == (before + 1, 0, 1)
        raise KeyError
    assert (context.get_seed(), context.next_draw()) == (before, draws + 1)


@pytest.mark.parametrize("name", ["set_seed", "set_dataset_seed"])
@pytest.mark.parametrize(
    ("seed", "raised"), [(-1, ContextError), (2**64, ContextError), (True, ContextTypeError), (1.0, ContextTypeError), ("3", ContextTypeError)]
)
def test_a_seed_is_an_int_that_a_message_can_carry(name, seed, raised):
    before = (context.get_seed(), context.get_dataset_seed())
    with pytest.raises(raised, match=f"{name}: seed=.*from 0 to 18446744073709551615"):
        getattr(context, name)(seed)
    assert (context.get_seed(), context.get_dataset_seed()) == before


def test_asking_whether_an_unknown_key_is_set_names_no_function_that_is_not_there():
    with pytest.raises(ContextError) as caught:
        is_set("max_call_depth")
    assert "is_context" not in str(caught.value)


# ---- fusion by the cost model, and how positions are counted ----


def test_positions_are_inclusive_until_the_seeds_wording_is_asked_for():
    assert frozen().fusion_index == "inclusive"
    set_auto_parallel_context(fusion_index="first_n")
    assert frozen().fusion_index == "first_n"
    with pytest.raises(ContextError, match="first_n"):
        set_auto_parallel_context(fusion_index="exclusive")


def _fuse_by_cost(**settings):
    set_cost_model_context(**{f"costmodel_allreduce_fusion_{key}": value for key, value in settings.items()})
    return frozen().cost_model_fusion


def test_the_cost_model_fuses_once_an_algorithm_is_chosen_and_its_numbers_make_sense():
    assert frozen().cost_model_fusion is None
    assert _fuse_by_cost(times=2, tail_percent=0.5) is None  # algorithm 0
    assert _fuse_by_cost(algorithm=1) == ("times", 2, 0.5)
    assert _fuse_by_cost(times=1) is None
    assert _fuse_by_cost(algorithm=2) is None  # tail and inherent time are both 0.1 at first
    hiding = _fuse_by_cost(tail_time=0.1, allreduce_inherent_time=0.05, allreduce_bandwidth=1e-6, computation_time_parameter=1.5e-6)
    assert hiding == ("hiding", 0.1, 0.05, 1e-6, 1.5e-6)
    assert hash(frozen()) == hash(frozen()) and ParallelConfig(cost_model_fusion=hiding) == frozen()
    assert _fuse_by_cost(computation_time_parameter=0.0) is None
    reset_cost_model_context()
    assert frozen().cost_model_fusion is None


@pytest.mark.parametrize(
    "value",
    [
        ["times", 2, 0.5],
        ("times", 2),
        ("times", 1, 0.5),
        ("times", 2.0, 0.5),
        ("times", 2, 1.0),
        ("sizes", 2, 0.5),
        ("hiding", 0.1, 0.1, 1e-6, 1e-6),
        ("hiding", 0.1, 0.05, 0.0, 1e-6),
        (),
        1,
    ],
    ids=str,
)
def test_a_cost_model_fusion_that_is_none_is_refused(value):
    with pytest.raises(ContextError, match="cost_model_fusion"):
        ParallelConfig(cost_model_fusion=value)
