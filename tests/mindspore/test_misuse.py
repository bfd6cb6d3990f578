"""Junk given to every public class and function, of the facade and of this package: refused in words, with an error of
this package, and at once: nothing runs on, and no loop counts to 10**18.

Drawn with a seed: the arguments of an example call, one of them replaced; or all of them drawn. What a class makes is
called and sharded with junk, too; so are methods of Tensors, DTensors and meshes. Python's own words stay for names of
constants (ParallelMode) and bases.
"""

import importlib
import inspect
import os
import random
import signal

import numpy as np
import pytest

import parallel_lab as pl
import parallel_lab.hyper_parallel as hp
import parallel_lab.mindspore as ms
import parallel_lab.mindspore._vision as vision
from parallel_lab.base.errors import ParallelLabError
from parallel_lab.mindspore import nn, ops
from parallel_lab.mindspore._tables import PAGES
from parallel_lab.nn import initializer
from parallel_lab.ops.machine.opdef import OpDef
from parallel_lab.train.checkpoint import folder, format as checkpoint
from parallel_lab.train.dataset import config, digits
from tests.crossed import each_of
from tests.junk import MEEK
from tests.processes.processes import descendants
from tests.refusals import refused

# what runs on, prints, calls what it is given, or belongs to Python
LEFT_OUT = {
    "run_check",
    "init",
    "release",
    "Print",
    "print_",
    "HyperMap",
    "Map",
    "Callback",
    "Metric",
    "Transform",
    "RandomTransform",
    *("critical", "debug", "error", "info", "warning"),  # Python's logging
}
LEFT_OUT |= {"Inter", "Border", "SliceMode", "Rel", "Type"}  # enums, which Python calls; numpy.dtype
LEFT_OUT |= {"load_ipython_extension", "Any", "MetaStepType"}  # IPython calls it; Python's own
LEFT_OUT |= {"keep_also", "set_catalog", "set_from_above"}  # between rooms
# MindSpore's private helpers for initializers of one's own
LEFT_OUT |= {"_assignment", "_calculate_correct_fan", "_calculate_fan_in_and_fan_out", "_init_random_uniform"}


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x):
        return self.dense(x)


def tensor(*shape, dtype=np.float32):
    return ms.Tensor(np.ones(shape, dtype))


# made anew for every call
OBJECTS = {
    "tensor": lambda: tensor(2, 3),
    "images": lambda: tensor(2, 3, 4, 4),
    "ints": lambda: tensor(4, dtype=np.int32),
    "scalar": lambda: ms.Tensor(2.0),
    "bools": lambda: tensor(2, dtype=np.bool_),
    "empty": lambda: tensor(0, 3),
    "parameter": lambda: ms.Parameter(tensor(2, 2), name="p"),
    "net": Net,
    "parameters": lambda: list(Net().trainable_params()),
    "layout": lambda: ms.Layout((2, 4), ("a", "b")),
    "primitive": lambda: ops.MatMul(),
    "objects": lambda: np.array([object(), None], object),
    "texts": lambda: np.array(["a", "b"]),
    "complex": lambda: np.ones((2, 3), complex),
    "dates": lambda: np.array(["2020-01-01"], "M8[D]"),
    "records": lambda: np.zeros(2, [("a", int), ("b", float)]),
    "rows": lambda: [[1, 2], [3]],
    "many dims": lambda: tensor(1, 2, 1, 2, 1, 2, 1),
    "nan": lambda: ms.Tensor(np.array([[np.nan, np.inf, -np.inf]], np.float32)),
    "beyond": lambda: ms.Tensor(np.array([10**18, -(10**18)])),
    "bytes": lambda: tensor(2, 3, dtype=np.uint8),
    "half": lambda: ops.cast(tensor(2, 3), ms.bfloat16),
    "tensors": lambda: [tensor(2, 3), tensor(3)],
    "mesh": lambda: pl.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")),
    "dtensor": lambda: pl.distribute_tensor(tensor(8, 4), made("mesh"), [pl.Shard(0), pl.Replicate()]),
    "placements": lambda: [pl.Shard(0), pl.Replicate()],
}
JUNK = [*MEEK, 3, 2**40, 2**64, np.float32(2), "sum", "x" * 300, np.float32, ms.int32, print, np, *OBJECTS]
JUNK += [-3, 10**18, -(10**18), (10**18,), (-1,), (0, 0), (2,) * 8, ((1, 1), (1,)), [[[]]], "constant"]
LIKELY = ["tensor", "images", "ints", "net", "parameters", 0.1, 4, "parameter", (2, 2), 1, None, "sum", ms.float32]


def made(value):
    return OBJECTS[value]() if type(value) is str and value in OBJECTS else value


def public():
    """{path: class or function}, each once, by the first path that has it."""
    found, seen = {}, set()
    for path in PAGES:
        module = importlib.import_module(f"parallel_lab.mindspore{'.' if path else ''}{path}")
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and name not in LEFT_OUT and id(value) not in seen:
                found[f"{path}.{name}"] = value
                seen.add(id(value))
    return found


def ours():
    """As `public`, of the package itself and of HyperParallel's names; labs and pools have tests of their own."""
    found = {f"pl.{name}": getattr(pl, name) for name in dir(pl) if not name.startswith("_") and name not in LEFT_OUT}
    rooms = tuple(f"parallel_lab.{room}." for room in ("base", "layout", "nn", "graph", "train", "run"))
    found = {path: value for path, value in found.items() if getattr(value, "__module__", "").startswith(rooms)}
    found |= {f"hp.{name}": getattr(hp, name) for name in hp.__all__ if name not in LEFT_OUT}
    errors = {path for path, value in found.items() if isinstance(value, type) and issubclass(value, Exception)}
    known = [*CALLS.values()]
    return {p: value for p, value in found.items() if callable(value) and p not in errors and value not in known}


def methods():
    """{name: a function that calls this method of an object made anew}."""
    found = {}
    for kind in ("tensor", "ints", "scalar", "empty", "parameter", "dtensor", "mesh"):
        for name in dir(type(made(kind))):
            if name.startswith("_") or not callable(getattr(type(made(kind)), name)) or name in ("as_one", "like"):
                continue  # the last two: protocols between rooms

            def call(*args, kind=kind, name=name, **kwargs):
                return getattr(made(kind), name)(*args, **kwargs)

            call.__signature__ = inspect.signature(getattr(made(kind), name))
            found[f"{kind}.{name}"] = call
    return found


@pytest.fixture
def soon():
    """A test that has computed for 60 seconds is stopped: its last call does not end."""

    def stop(*_):
        raise TimeoutError("a call that does not end")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 60)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


@pytest.fixture(autouse=True)
def datasets_as_before():
    """Junk that happens to be right is kept by settings."""
    before = [(name, getattr(config, f"get_{name}")()) for name in ("num_parallel_workers", "prefetch_size")]
    yield
    for name, value in before:
        getattr(config, f"set_{name}")(value)


def reset():
    ms.reset_auto_parallel_context()
    ms.reset_algo_parameters()
    ms.reset_cost_model_context()
    ms.set_context(mode=ms.GRAPH_MODE)


def is_about_the_call(error):
    """Python's own words for a call with too many, too few or unknown arguments."""
    words = ("positional argument", "unexpected keyword", "required keyword", "multiple values", "takes no arguments")
    return isinstance(error, TypeError) and any(each in str(error) for each in (*words, "abstract class"))


def answered(call, *args, **kwargs):
    """The result, or None; fails for an error that is not of this package."""
    try:
        return call(*args, **kwargs)
    except ParallelLabError as error:
        assert str(error).strip()
        return None
    except Exception as error:
        if not is_about_the_call(error):
            raise
        return None


def example_of(call, rng):
    """Arguments that the call takes, by name; None if none were found."""
    if isinstance(call, OpDef):
        if call.variadic or not call.cases:
            return None
        case = call.cases[0]
        arrays = case.arrays(np.random.default_rng(0), np.float32)
        return {**dict(zip(call.tensors, map(ms.Tensor, arrays), strict=True)), **dict(case.attrs)}
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    for _ in range(40):
        values = {name: rng.choice(LIKELY) for name in names}
        reset()
        try:
            call(**{name: made(value) for name, value in values.items()})
        except Exception:
            continue
        return values
    return None


CALLS = public()


DRAWN = {**CALLS, **ours(), **methods()}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers out of a function's range
@pytest.mark.filterwarnings("ignore:Data type alias 'a' was deprecated")  # numpy's
@pytest.mark.filterwarnings("ignore:NotImplemented should not be used")  # an error from Python 3.14 on
@pytest.mark.quick(100)
@pytest.mark.parametrize("path", DRAWN)
def test_junk_is_refused_in_words(path, tmp_path, monkeypatch, capsys, soon):
    monkeypatch.chdir(tmp_path)
    before, draws, call = descendants(os.getpid()), random.Random(path), DRAWN[path]
    example = example_of(call, draws)
    names = list(inspect.signature(call).parameters) if example is not None and not isinstance(call, OpDef) else []
    names = names or list(example or ())
    for _ in range(24):
        reset()
        if names and draws.random() < 0.7:
            given = {**example, draws.choice(names): draws.choice(JUNK)}
            result = answered(call, **{name: made(value) for name, value in given.items()})
        else:
            count = len(example) if example else draws.choice((1, 1, 2, 3))
            count = draws.choice((count, count, count, 0, 7))
            result = answered(call, *(made(draws.choice(JUNK)) for _ in range(count)))
        if isinstance(call, type) and callable(result):
            answered(result, *(made(draws.choice(JUNK)) for _ in range(draws.choice((1, 1, 2, 3)))))
            if hasattr(result, "shard"):
                answered(result.shard, made(draws.choice(JUNK)))
    reset()
    assert descendants(os.getpid()) == before


test_arguments_that_fit_no_parameter_are_refused_with_the_signature = refused(
    (lambda: nn.Dense(), r"Dense: missing arguments 'in_channels', 'out_channels'\. It takes \(in_channels, out_"),
    (lambda: nn.Dense(3, 4, unit=1), r"Dense: unexpected argument 'unit'"),
    (lambda: nn.Dense(3, 4, in_channels=3), r"Dense: multiple values for argument 'in_channels'"),
    (lambda: nn.Adam([], learing_rate=1), r"Adam: unexpected argument 'learing_rate'.*nearest is 'learning_rate'"),
    (lambda: nn.Dense(4, 4)(), r"construct of Dense: missing argument 'x'\. It takes \(x\)"),
    (lambda: Net()(1, 2, 3), r"construct of Net: too many positional arguments\. It takes \(x\)"),
    (lambda: Net().set_train(True, 2), r"set_train: too many positional arguments\. It takes \(mode=True\)"),
    (lambda: ops.hstack(), r"hstack: missing argument 'tensors'"),
    (lambda: tensor(2).clip(0, 1, 2), r"clip: too many positional arguments"),
    (lambda: nn.ReLU(3), r"ReLU: too many positional arguments\. It takes \(\)"),
    (lambda: nn.F1(beta=2), r"F1: unexpected argument 'beta'"),
    (lambda: ms.set_context(0), r"set_context: too many positional arguments"),
    (lambda: ms.set_seed(sed=1), r"set_seed: unexpected argument 'sed'.*nearest is 'seed'"),
    (lambda: ms.Tensor([1.0], unit=1), r"Tensor: unexpected argument 'unit'\. It takes \(input_data=None"),
    (lambda: ms.Tensor(*range(9)), r"Tensor: too many positional arguments"),
    (lambda: ms.Tensor(), r"Tensor: data None"),
    (lambda: ms.Layout((2,)), r"Layout: missing argument 'alias_name'"),
    (lambda: ms.Layout((2,), ("a",), 3), r"Layout\(\(2,\), \('a',\)\): rank_list=3\. None, or a list of ints"),
    (lambda: ms.CheckpointConfig(steps=1), r"CheckpointConfig: unexpected argument 'steps'"),
    (lambda: ms.ParameterTuple(), r"ParameterTuple: missing argument 'parameters'\. It takes \(parameters\)"),
    (lambda: nn.GradientClip(), r"GradientClip: missing arguments 'kind', 'limit'"),
    (lambda: vision.HWC2CHW(1), r"HWC2CHW: too many positional arguments"),
    (lambda: nn.utils.no_init_parameters(1), r"no_init_parameters: too many positional arguments"),
    (lambda: ops.depend(1), r"depend: missing argument 'expr'\. It takes \(value, expr\)"),
    (lambda: ops.Depend()(1), r"Depend: missing argument 'expr'\. It takes \(value, expr\)"),
    (lambda: ops.StandardNormal()(1, 2), r"StandardNormal: too many positional arguments\. It takes \(shape\)"),
    (lambda: vision.HWC2CHW()(1, 2), r"HWC2CHW: too many positional arguments\. It takes \(data\)"),
    (lambda: nn.ExponentialDecayLR(0.1, 0.9, 4)(1, 2), r"ExponentialDecayLR: too many positional arguments"),
)


@pytest.mark.quick(60)
@pytest.mark.parametrize("name", [m for m in dir(ms.Parameter) if not m.startswith("_")])
def test_methods_of_tensors_refuse_arguments_that_fit_no_parameter(name):
    method = getattr(ms.Parameter(tensor(2, 3), "w"), name)
    if callable(method):
        with pytest.raises(ParallelLabError):
            method(*range(12), unit=3)


def test_a_type_error_of_the_learners_own_code_stays_what_it_is():
    class Broken(nn.Cell):
        def construct(self, x):
            return len(3)

    with pytest.raises(TypeError, match="has no len") as caught:
        Broken()(1)
    assert not isinstance(caught.value, ParallelLabError)


test_what_no_memory_holds_is_refused = refused(
    lambda: ops.ones((2**20, 2**30)),
    lambda: ops.zeros((2**62, 2**62)),
    lambda: ops.tile(tensor(2, 3), (2**30, 2**30)),
    lambda: ops.broadcast_to(tensor(2, 3), (2**50, 2, 3)),
    lambda: nn.Embedding(2**31 - 1, 2**30)(ms.Tensor([1])),
    lambda: nn.warmup_lr(0.1, 2**31 - 1, 1, 10),
)


PICTURE, RNG = vision.Normalize([1.0], [1.0]), np.random.default_rng(0)
RATE = nn.ExponentialDecayLR(0.1, 0.9, 4)


# Each was an error in Python's own words, from the depths of the function.
test_what_only_parallel_lab_has_refuses_junk_in_words = refused(
    (lambda: ops.ReLU().init_prim_io_names(1, ["y"]), r"ReLU init_prim_io_names: inputs=1\. A list or tuple of"),
    (lambda: ops.ReLU().init_prim_io_names(["x"], [1]), r"ReLU init_prim_io_names: outputs=\[1\]"),
    (lambda: ops.ReLU().del_prim_attr([1]), r"ReLU del_prim_attr: name=\[1\]\. A text"),
    (lambda: pl.CollectiveStepper([1]), r"CollectiveStepper: kind=\[1\]\. The name of one"),
    (lambda: pl.CollectiveStepper("all_reduce", [1]), r"CollectiveStepper: algorithm=\[1\]"),
    (lambda: pl.CollectiveStepper().choose_kind({}), r"collective algorithms: kind=\{\}"),
    (lambda: PICTURE.apply(3), r"Normalize: data=3\. A numpy array"),
    (lambda: PICTURE.apply("ab"), r"Normalize: data='ab'"),
    (lambda: digits.seed_batch(10**400), r"seed_batch: batch_size=1000.*An int, at least 1"),
    (lambda: digits.seed_batch(2, 10**400), r"seed_batch: in_dim=1000"),
    (lambda: pl.EventLog(3), r"EventLog: events=3\. A list of Events"),
    (lambda: pl.EventLog([1]), r"EventLog: events=\[1\]"),
    (lambda: pl.EventLog.load(1.5), r"EventLog\.load: path=1\.5\. The path of a file"),
    (lambda: checkpoint.read_checkpoint((1, 2)), r"read_checkpoint: path=\(1, 2\)\. The name of a file"),
    (lambda: checkpoint.describe_checkpoint((1, 2)), r"describe_checkpoint: path=\(1, 2\)"),
    (lambda: folder.load_distributed((1, 2)), r"read_manifest: folder=\(1, 2\)\. The name of a folder"),
    (lambda: folder.read_manifest(1.5), r"read_manifest: folder=1\.5"),
    (lambda: initializer.Normal().draw(3, (2,)), r"Normal\.draw: generator=3\. A numpy\.random\.Generator"),
    (lambda: initializer.HeNormal().draw(RNG, "ab"), r"HeNormal\.draw: shape='ab'\. A list or tuple of ints"),
    (lambda: initializer.Uniform().draw(RNG, (-1,)), r"Uniform\.draw: shape=\(-1,\)"),
    (lambda: RATE.at(10**400), r"ExponentialDecayLR\.at: step=1000"),
    (lambda: pl.WorkerPool(2, warn_after_s=(1,)), r"WorkerPool: warn_after_s=\(1,\)\. Seconds above 0"),
    (lambda: pl.WorkerPool(2, arena_bytes="a"), r"WorkerPool: arena_bytes='a'\. An int, at least 1"),
)


# Each was an error in Python's own words, or did not end.
test_values_that_lines_of_this_package_stumble_over_are_refused_in_words = refused(
    (lambda: ops.dynamic_quantize(ms.Tensor(1.0)), r"DynamicQuantize: operands \[\(\)\]"),
    (lambda: ms.mint.nn.functional.rms_norm(tensor(2, 3), 3, 0.5), r"rms_norm: weight=0\.5"),
    (lambda: ops.bucketize(tensor(3), [[1], [2, 3]]), r"bucketize: .*inhomogeneous"),
    (lambda: ops.one_hot(ms.Tensor([1]), 10**18, 1.0, 0.0), r"OneHot: "),
    (lambda: ops.one_hot(ms.Tensor([1]), 4, -(10**30), 0), r"one_hot: "),
    (lambda: ms.vmap(nn.ReLU())(3), r"vmap: 'int' object has no attribute 'shape'"),
    (lambda: nn.Accuracy()([[1, 2], [3]], [1, 2]), r"update: .*inhomogeneous"),
    (lambda: nn.RReLU()("a"), r"construct of RReLU: 'str' object"),
    (lambda: ops.DropoutGenMask()(3, 0.5), r"DropoutGenMask: 'int' object is not iterable"),
    (lambda: made("dtensor").backward(range(3)), r"backward: 'range' object"),
    (lambda: hp.get_process_group_ranks(0.5), r"get_process_group_ranks: 'float' object is not iterable"),
    (lambda: pl.infer_types(3), r"infer_types: 'int' object has no attribute 'graph'"),
    (lambda: pl.TensorLayout((2, 2), (1,), rows=4), r"TensorLayout: 'int' object is not iterable"),
    (lambda: nn.LSTM(2, 3, num_layers=10**9), r"LSTM: num_layers=1000000000\. An int from 1 to 10000"),
    (lambda: nn.Transformer(num_encoder_layers=2**63), r"Transformer: num_encoder_layers="),
    (lambda: ops.tensor_split(tensor(4), 10**9), r"tensor_split: .*A count from 1 to 10000"),
    (lambda: ops.make_range(10**9), r"make_range: how many=1000000000\. An int from 0 to 1048576"),
)


def test_a_kernel_larger_than_any_picture_is_pooled_at_once():
    """A window that covers everything; its elements outside were counted one by one."""
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    assert ops.max_pool(x, kernel_size=10**18, strides=1, pad_mode="same").tolist() == np.full_like(x, 11).tolist()


@each_of(
    ("file", "module"),
    ("/course/net.py", "net"),
    ("<string>", "__main__"),  # python -c
    ("<stdin>", "__main__"),
    ("/course/lib/site-packages/models/net.py", "models.net"),
)
def test_an_error_in_anothers_line_inside_of_this_packages_stays_what_it_is(file, module):
    names = {"__name__": module}
    exec(compile("def rule(x):\n    raise KeyError('mine')", file, "exec"), names)
    rule = names["rule"]
    for call in (lambda: ms.vmap(rule)(tensor(2, 3)), lambda: ms.jacrev(rule)(tensor(2)), lambda: Applies(rule)(1)):
        with pytest.raises(KeyError, match="mine") as caught:
            call()
        assert not isinstance(caught.value, ParallelLabError)


class Applies(nn.Cell):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def construct(self, x):
        return self.rule(x)


@pytest.mark.parametrize("name", ["AllReduce", "AllGather", "ReduceScatter"])
def test_a_collective_with_a_device_number_and_no_mode(name):
    """`compile` writes the message of all devices; a call, which needs ranks, is refused in words."""

    class Sent(Net):
        def construct(self, x):
            return getattr(ops, name)()(self.dense(x))

    try:
        ms.set_auto_parallel_context(device_num=8)
        plan = pl.compile(Sent(), np.ones((16, 4), np.float32))
        sent = [i for _, i in plan.instructions() if i.is_communication]
        assert [i.group_size for i in sent] == [8] and plan.config.parallel_mode == "data_parallel"
        with pytest.raises(ParallelLabError, match=f"{name}: this process is not a rank of a world"):
            Sent()(tensor(16, 4))
        with pytest.raises(ParallelLabError, match=r"device_num=8\. .*Set parallel_mode too"):
            ms.Model(Sent()).predict(tensor(16, 4))
    finally:
        reset()
