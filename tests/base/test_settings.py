"""What settings refuse and accept, key by key. RECORDED: the class MindSpore 2.10.0 raised on a CPU, None: accepted."""

import pytest

from parallel_lab import ops
from parallel_lab.base.errors import ContextError, ContextTypeError, ParallelLabError, shorten
from parallel_lab.base.settings.checks import PARALLEL_MODES, SETTINGS, check_comm_fusion
from parallel_lab.base.settings.context import (
    ParallelMode,
    frozen,
    get_algo_parameters,
    get_auto_parallel_context,
    get_context,
    get_cost_model_context,
    set_algo_parameters,
    set_auto_parallel_context,
    set_compat,
    set_context,
    set_cost_model_context,
)
from parallel_lab.layout.named_layout import Layout
from parallel_lab.train.auto_parallel import AutoParallel
from tests.base.contexts import fuse
from tests.crossed import each_of
from tests.junk import declared

pytestmark = pytest.mark.usefixtures("default_settings")

OK = None
TYPE, VALUE, KEY, RUNTIME = TypeError, ValueError, KeyError, RuntimeError


# ---- recorded: what MindSpore said ----

THREE = {"optimizer_weight_shard_size": 3}
RECORDED = [  # settings of one call, what MindSpore 2.10 raised, what is raised here if that is another thing
    ({"parallel_mode": "semi-auto"}, VALUE),
    ({"device_num": 0}, VALUE),
    ({"device_num": 4097}, OK, VALUE),  # the documents say 1 to 4096
    ({"device_num": "8"}, TYPE),
    ({"global_rank": 4096}, VALUE),
    ({"global_rank": -1}, VALUE),
    ({"device_num": 8, "global_rank": 8}, OK, RUNTIME),  # MindSpore's RuntimeError comes when it compiles
    ({"search_mode": "genetic"}, VALUE),
    ({"auto_parallel_search_mode": "dynamic_programming"}, OK),
    ({"gradients_mean": 1}, TYPE),
    ({"devices": 8}, VALUE),
    ({"pipeline_stages": 0}, VALUE),
    ({"comm_fusion": {"broadcast": {"mode": "auto", "config": None}}}, KEY),
    ({"comm_fusion": {"allreduce": {"mode": "count", "config": 4}}}, KEY),
    ({"comm_fusion": {"allreduce": {"mode": "size"}}}, KEY),
    ({"comm_fusion": {"allreduce": {"mode": "index", "config": 4}}}, TYPE),
    ({"comm_fusion": {"allreduce": {"mode": "size", "config": -1}}}, VALUE),
    ({"comm_fusion": {"allreduce": {"mode": "size", "config": [1]}}}, TYPE),
    ({"comm_fusion": {"allreduce": {"mode": "auto", "config": 32}}}, OK, TYPE),  # the documents say None
    ({"comm_fusion": {"allgather": {"mode": "index", "config": [1]}}}, KEY),
    ({"comm_fusion": "auto"}, TYPE),
    ({"all_reduce_fusion_config": [3, 2]}, VALUE),
    ({"all_reduce_fusion_config": [2, 2]}, VALUE),
    ({"dataset_strategy": "half"}, VALUE),
    ({"dataset_strategy": [[8, 1]]}, TYPE),
    ({"full_batch": 1}, TYPE),
    ({"parallel_optimizer_config": {"parallel_optimizer_threshold": -1}}, VALUE),
    ({"device_num": 8, "enable_parallel_optimizer": True, "parallel_optimizer_config": THREE}, OK),
    ({"parameter_broadcast": "yes"}, TYPE),
    ({"loss_repeated_mean": 1}, TYPE),
    ({"strategy_ckpt_load_file": "/nope/strategy.ckpt"}, OK),  # a file is looked for when it is read
    ({"dataset_strategy": ((3, 1), (3, 1))}, RUNTIME, OK),  # it comes when a network is compiled, as MindSpore's does
    # documented, or pinned by its own tests
    ({"device_num": 4096}, OK),
    ({"parallel_mode": "wrong_mode"}, VALUE),
    ({"parallel_mode": 1}, TYPE),
    ({"comm_fusion": [1]}, TYPE),
    ({"comm_fusion": {"all": {"mode": "auto", "config": None}}}, KEY),
    ({"comm_fusion": {"allgather": [1, 2]}}, TYPE),
    ({"comm_fusion": {"allreduce": {"modes": "auto", "config": None}}}, KEY),
    ({"comm_fusion": {"allreduce": {"mode": "sizes", "config": 1}}}, KEY),
    ({"comm_fusion": {"allreduce": {"mode": "size", "config": "30.12"}}}, TYPE),
    ({"comm_fusion": {"allreduce": {"mode": "size", "config": 30.12}}}, TYPE),
    ({"comm_fusion": {"reducescatter": {"mode": "size", "config": 0}}}, OK),
    ({"comm_fusion": {"openstate": 1}}, TYPE),
    ({"comm_fusion": {"allreduce": {"mode": "index", "config": []}}}, VALUE),
    ({"comm_fusion": {"allreduce": {"mode": "index", "config": [2, 2]}}}, VALUE),
    ({"comm_fusion": {"allreduce": {"mode": "auto", "config": None, "size": 3}}}, OK, KEY),  # a key that nothing reads
    ({"all_reduce_fusion_config": (20, 35)}, TYPE),
    ({"all_reduce_fusion_config": []}, VALUE),
    ({"all_reduce_fusion_config": [-1]}, TYPE),
    ({"all_reduce_fusion_config": [True]}, TYPE),
    ({"all_reduce_fusion_config": [1.0]}, TYPE),
    ({"dataset_strategy": ([8, 1],)}, TYPE),
    ({"dataset_strategy": ((8.0, 1),)}, TYPE),
    ({"dataset_strategy": ()}, OK, VALUE),  # no input at all
    ({"pipeline_stages": True}, TYPE),
    ({"pipeline_stages": 1.0}, TYPE),
    ({"grad_accumulation_step": 0}, VALUE),
    ({"communi_parallel_mode": "some"}, VALUE),
    ({"communi_parallel_mode": None}, TYPE),
    ({"optimizer_weight_shard_size": 1}, OK, VALUE),  # MindSpore warns and ignores it
    ({"optimizer_weight_shard_size": 2.0}, TYPE),
    ({"parallel_optimizer_config": {"optimizer_level": "level4"}}, VALUE),
    ({"parallel_optimizer_config": {"gradient_accumulation_shard": 1}}, TYPE),
    ({"parallel_optimizer_config": {"threshold": 1}}, OK, KEY),  # a key that nothing reads
    ({"parallel_optimizer_config": [1]}, TYPE),
    ({"strategy_ckpt_config": {"load": "x"}}, VALUE),
    ({"strategy_ckpt_config": {"load_file": 3}}, TYPE),
    ({"pipeline_config": {"pipeline_scheduler": "2f2b"}}, VALUE),
    ({"pipeline_config": {"pipeline_interleave": True, "pipeline_scheduler": "seqpipe"}}, VALUE),
    ({"pipeline_config": {"pipeline_interleave": False, "pipeline_scheduler": "gpipe"}}, TYPE),
    ({"strategy_ckpt_load_file": 3}, TYPE),
    ({"strategy_ckpt_load_file": b"x"}, TYPE),
    ({"group_ckpt_save_file": None}, TYPE),
    ({"device_num": True}, OK, TYPE),  # a bool is not a count
]


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: str(row[0]))
def test_recorded_calls(row):
    settings, recorded, *here = row
    expected = here[0] if here else recorded
    if expected is None:
        set_auto_parallel_context(**settings)
        return
    with pytest.raises(expected) as caught:
        set_auto_parallel_context(**settings)
    assert isinstance(caught.value, ParallelLabError) and isinstance(caught.value, ValueError)
    assert list(settings)[-1] in str(caught.value)


@pytest.mark.parametrize("mode", PARALLEL_MODES)
def test_strategies_are_kept_in_every_mode(mode):
    """As recorded: accepted in stand_alone and data_parallel too, where nothing uses them."""
    set_auto_parallel_context(parallel_mode=mode)
    assert ops.MatMul().shard(((2, 4), (4, 1))).in_strategy == ((2, 4), (4, 1))


def test_modes_have_names():
    assert tuple(getattr(ParallelMode, mode.upper()) for mode in PARALLEL_MODES) == PARALLEL_MODES
    assert len(PARALLEL_MODES) == 5


# ---- texts ----


def test_a_refusal_says_key_value_and_what_is_allowed():
    with pytest.raises(ContextError) as caught:
        set_auto_parallel_context(parallel_mode="semi_auto")
    one_of = "One of 'stand_alone', 'data_parallel', 'hybrid_parallel', 'semi_auto_parallel', 'auto_parallel'"
    said = f"set_auto_parallel_context: parallel_mode='semi_auto'. {one_of}. The nearest is 'semi_auto_parallel'."
    assert str(caught.value) == said


@each_of(
    ("call", "words"),
    (lambda: set_auto_parallel_context(gradient_mean=True), "The nearest is 'gradients_mean'"),
    (lambda: set_auto_parallel_context(mode=0), "set_context knows it"),
    (lambda: set_auto_parallel_context(fully_use_devices=True), "set_algo_parameters knows it"),
    (lambda: set_auto_parallel_context(optimizer_level="level1"), "inside the dict parallel_optimizer_config"),
    (lambda: get_auto_parallel_context("save_graphs"), "get_context knows it"),
    (lambda: set_context(parallel_mode="auto_parallel"), "set_auto_parallel_context knows it"),
    (lambda: set_context(devicetarget="CPU"), "The nearest is 'device_target'"),
    (lambda: set_algo_parameters(fully_use_device=True), "The nearest is 'fully_use_devices'"),
    (lambda: set_cost_model_context(alpha=1.0), "costmodel_alpha"),
)
def test_an_unknown_key_gets_a_hint(call, words):
    with pytest.raises(ContextError) as caught:
        call()
    assert words in str(caught.value) and "Keys: " in str(caught.value)


@pytest.mark.parametrize("read", [get_auto_parallel_context, get_algo_parameters, get_cost_model_context, get_context])
@pytest.mark.parametrize("key", [None, 3, ["device_num"], b"mode"])
def test_a_key_is_a_text(read, key):
    with pytest.raises(ContextTypeError, match="text"):
        read(key)


def test_a_key_error_shows_its_text_and_not_its_repr():
    with pytest.raises(KeyError) as caught:
        set_auto_parallel_context(comm_fusion={"allreduce": {"mode": "count", "config": 4}})
    assert str(caught.value) == (
        "set_auto_parallel_context: comm_fusion['allreduce']['mode']='count'. mode is one of ('auto', 'size', 'index')."
    )


# ---- set_context ----

EXECUTION = [  # read back as given; what is refused, junk shows (test_context_fuzz.py)
    {"mode": 0},
    {"mode": 1, "device_target": "Ascend", "device_id": 7},
    {"device_target": "GPU", "save_graphs": 2, "save_graphs_path": "../saved_graph"},
    {"max_call_depth": 10000, "deterministic": "ON", "memory_optimize_level": "O1"},
    {"max_device_memory": "3.5GB", "pynative_synchronize": True, "enable_graph_kernel": True},
    {"jit_config": {"jit_level": "O2"}, "jit_level": "O1"},
    {"ascend_config": {"precision_mode": "must_keep_origin_dtype", "ge_options": {"global": {"a": "b"}}}},
    {"gpu_config": {"conv_allow_tf32": False}},
]


@pytest.mark.parametrize("settings", EXECUTION, ids=str)
def test_settings_of_a_run(settings):
    set_context(**settings)
    assert {key: get_context(key) for key in settings} == settings


@pytest.mark.parametrize(
    "config", [{"speed": 1}, {"precision_mode": "fp16"}, {"ge_options": {"global": {"a": 1}}}], ids=str
)
def test_a_refused_part_of_ascend_config_changes_nothing(config):
    with pytest.raises(ContextError, match="ascend_config"):
        set_context(ascend_config=config, precompile_only=True)
    assert get_context("precompile_only") is False


@pytest.mark.parametrize(("given", "level"), [(False, 0), (True, 2), (0, 0), (1, 1), (3, 3)])
def test_graphs_are_saved_by_level(given, level):
    set_context(save_graphs=given)
    assert get_context("save_graphs") == level and type(get_context("save_graphs")) is int


def test_a_dict_that_was_read_can_be_changed_without_effect():
    set_context(jit_config={"jit_level": "O0"})
    get_context("jit_config")["jit_level"] = "O9"
    get_context("ascend_config")["x"] = 1
    assert (get_context("jit_config"), get_context("ascend_config")) == ({"jit_level": "O0"}, {})


# ---- search, cost model ----

ALGORITHM = [
    {"fully_use_devices": False, "elementwise_op_strategy_follow": True, "enable_algo_approxi": True},
    {"algo_approxi_epsilon": 1.0, "tensor_slice_align_enable": True, "tensor_slice_align_size": 1024},
]


@pytest.mark.parametrize("settings", ALGORITHM, ids=str)
def test_settings_of_the_search(settings):
    set_algo_parameters(**settings)
    assert {key: get_algo_parameters(key) for key in settings} == settings
    assert {key: getattr(frozen(), key) for key in settings} == settings


# ---- the checks that AutoParallel shares ----


def auto():
    return AutoParallel(lambda x: x)


def test_methods_of_auto_parallel_take_what_the_settings_take():
    """Other values are refused with these words, as those of every declared argument (test_checks.py)."""
    texts = {name: check.allowed for name, check in declared(AutoParallel.hsdp).items()}
    assert texts == {
        "shard_size": "-1, or an int from 1 to 4096",
        "threshold": "An int, at least 0",
        "optimizer_level": "One of 'level1', 'level2', 'level3'",
    }
    assert declared(AutoParallel.pipeline)["stages"].allowed == "An int from 1 to 4096"


SHARED = [
    (lambda: auto().pipeline(scheduler="2f2b"), VALUE, "scheduler='2f2b'"),
    (lambda: auto().comm_fusion([]), TYPE, "config="),
    (lambda: auto().dataset_strategy(None), VALUE, "config=None"),
    (lambda: auto().dataset_strategy((Layout((8,), ("dp",))("dp"), (8,))), TYPE, "not both"),
    (lambda: auto().save_operator_strategy_file("a.json"), KEY, "absolute"),
    (lambda: auto().save_operator_strategy_file("/a.ckpt"), KEY, ".json"),
]


@pytest.mark.parametrize(("call", "raised", "words"), SHARED)
def test_shared_checks_refuse(call, raised, words):
    with pytest.raises(raised) as caught:
        call()
    assert isinstance(caught.value, ContextError) and words in str(caught.value)


def test_methods_of_auto_parallel_keep_plain_values():
    net = auto()
    net.hsdp()
    assert net.settings()["optimizer_weight_shard_size"] == -1 and net.settings()["optimizer_level"] == "level1"
    net.hsdp(1, 0, "level3")
    kept = net.settings()
    assert kept["optimizer_weight_shard_size"] == 1 and kept["parallel_optimizer_threshold"] == 0
    assert kept["optimizer_level"] == "level3"
    net.pipeline(4, True, True, "zero_bubble_v")
    assert net.settings()["pipeline_stages"] == 4
    net.save_operator_strategy_file("/tmp/strategy.json")
    assert net.settings()["strategy_ckpt_save_file"] == "/tmp/strategy.json"
    net.save_param_strategy_file("strategy.ckpt")
    assert net.settings()["strategy_ckpt_save_file"] == "strategy.ckpt"
    given = {"openstate": True, **fuse(allreduce=("index", [1, 4]))}
    plain = check_comm_fusion("set", "comm_fusion", given, SETTINGS)
    assert plain == given and plain is not given


# ---- values that fight back ----


def test_an_int_of_more_digits_than_python_prints_is_refused_in_words():
    """Was a ValueError of Python's about digits."""
    with pytest.raises(ContextError, match="device_num=<int whose repr raises ValueError>"):
        set_auto_parallel_context(device_num=10**5000)
    assert len(shorten(10**4000)) == 80


def test_a_layout_with_the_interleaved_axis_feeds_nobody():
    layout = Layout((2, 4, 2), ("dp", "mp", "interleaved_parallel"))
    with pytest.raises(ValueError, match="without the axis 'interleaved_parallel'"):
        set_auto_parallel_context(dataset_strategy=(layout("dp", "None"),))


def test_more_than_4096_devices_are_those_of_2_10():
    set_compat("2.10")
    set_auto_parallel_context(device_num=8192)
    assert frozen().device_num == frozen(device_num=8192).device_num == 8192
    set_compat("seeds")
    for call in (set_auto_parallel_context, frozen):
        with pytest.raises(ContextError, match="4096"):
            call(device_num=8192)
