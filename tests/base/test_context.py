"""Settings: their defaults, what is read back, how keys work together, and what a compilation receives.

The defaults are those of the 1.x documents of MindSpore; what 2.10.0 has instead was recorded after a reset.
"""

import dataclasses
import json

import pytest

from parallel_lab.base.errors import ContextConflictError, ContextError, ContextKeyError, ContextPathError
from parallel_lab.base.settings import context
from parallel_lab.base.settings.checks import PARALLEL_MODES
from parallel_lab.base.settings.config import ParallelConfig
from parallel_lab.base.settings.context import (
    frozen,
    get_algo_parameters,
    get_auto_parallel_context,
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
from parallel_lab.layout.named_layout import Layout
from parallel_lab.mindspore._settings import KEPT
from tests.base.contexts import DEFAULTS, fuse
from tests.crossed import each_of

pytestmark = pytest.mark.usefixtures("default_settings")
ALGORITHM_DEFAULTS = {"fully_use_devices": True, "elementwise_op_strategy_follow": False}
ALGORITHM_DEFAULTS |= {"enable_algo_approxi": False, "algo_approxi_epsilon": 0.1}
ALGORITHM_DEFAULTS |= {"tensor_slice_align_enable": False, "tensor_slice_align_size": 16}


@pytest.mark.parametrize("key", DEFAULTS)
def test_defaults_of_the_parallel_context(key):
    value = get_auto_parallel_context(key)
    assert value == DEFAULTS[key] and type(value) is type(DEFAULTS[key])


def test_every_key_that_can_be_set_has_a_default_in_this_file():
    with pytest.raises(ContextError) as caught:
        set_auto_parallel_context(qqq=1)
    listed = str(caught.value).partition("Keys: ")[2].rstrip(".").split(", ")
    assert sorted(listed) == sorted(DEFAULTS)


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


@each_of(
    ("get", "key", "value"),
    *((get_algo_parameters, *item) for item in ALGORITHM_DEFAULTS.items()),
    *((get_cost_model_context, *item) for item in COST_DEFAULTS.items()),
)
def test_defaults_of_the_search_and_of_the_cost_model(get, key, value):
    assert get(key) == value


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
    {"redistribution": "exact"},
    {"recursive_most_devices": 4096},
    {"strategy_ckpt_load_file": "./"},
    {"strategy_ckpt_config": {"load_file": "a.ckpt", "save_file": "b.json", "only_trainable_params": False}},
]
OPTIMIZER = {"gradient_accumulation_shard": False, "parallel_optimizer_threshold": 0, "optimizer_level": "level3"}
ROUND_TRIPS.append({"parallel_optimizer_config": {**OPTIMIZER, "optimizer_weight_shard_size": 1}})


@pytest.mark.parametrize("setting", ROUND_TRIPS, ids=str)
def test_what_is_set_is_read_back_and_reset(setting):
    (key, value), *_ = setting.items()
    set_auto_parallel_context(**setting)
    assert get_auto_parallel_context(key) == value
    config = frozen()
    assert hash(config) == hash(frozen())
    assert (config == ParallelConfig()) == (key in KEPT["auto_parallel_context"])  # what is only kept reaches no pass
    reset_auto_parallel_context()
    assert get_auto_parallel_context(key) == DEFAULTS[key]


def test_configs_are_plain_values_that_json_keeps():
    set_auto_parallel_context(device_num=8, dataset_strategy=((8, 1), (8,)))
    set_auto_parallel_context(comm_fusion=fuse(allreduce=("index", [2, 5])))
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
    assert get_auto_parallel_context("full_batch") is False
    assert get_auto_parallel_context("dataset_strategy") == ((4, 1),)
    set_auto_parallel_context(full_batch=True)
    assert get_auto_parallel_context("dataset_strategy") == "full_batch"


@pytest.mark.parametrize(
    "together",
    [{"full_batch": False, "dataset_strategy": ((4, 1),)}, {"full_batch": True, "dataset_strategy": "full_batch"}],
)
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


@pytest.mark.parametrize(
    "given", [("allreduce",), (("allreduce", "size"),), ((("a",), "size", 1),), (("allreduce", "size", -1),), "size"]
)
def test_a_config_refuses_other_fusion(given):
    with pytest.raises(ContextError, match="comm_fusion"):
        ParallelConfig(comm_fusion=given)


# ---- nothing changes in a refused call ----


def everything():
    search = {key: get_algo_parameters(key) for key in ALGORITHM_DEFAULTS}
    return {key: get_auto_parallel_context(key) for key in DEFAULTS} | search


def test_a_refused_call_changes_nothing():
    set_auto_parallel_context(device_num=8, comm_fusion=fuse(allreduce=("size", 4)))
    before = everything()
    for key in ("nonsense", "pipeline_stages"):
        others = {"gradients_mean": True, "comm_fusion": fuse(allreduce=("size", 8)), "full_batch": True}
        with pytest.raises(ContextError):
            set_auto_parallel_context(**others, **{key: "x"})
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
    assert get_auto_parallel_context("strategy_ckpt_save_file") == ""
    assert get_auto_parallel_context("gradients_mean") is False


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
