"""Names that are missing say so and name the nearest thing; those that MindSpore has can be imported all the same."""

from __future__ import annotations

import importlib
import types

import pytest

import parallel_lab.mindspore as ms
from parallel_lab.base.errors import MissingImport, MissingModule, MissingName, NotBuiltYet
from parallel_lab.mindspore._lookup import HINTS, homes, names_of
from parallel_lab.mindspore._missing import hint_for
from parallel_lab.mindspore._names import NAMES
from parallel_lab.mindspore._notes import explain
from parallel_lab.mindspore._tables import PAGES
from tests.crossed import each_of
from tests.mindspore.imports import FACADE, PARAMETER, TENSOR, page, target

NEVER = {
    ("nn", "Sofmax"): "Softmax",
    ("nn", "AdamW"): "AdamWeightDecay",
    ("nn", "AutoParallel"): "from mindspore.parallel.auto_parallel import AutoParallel",
    ("", "AutoParalel"): "from mindspore.parallel.auto_parallel import AutoParallel",
    ("", "Cell"): "from mindspore.nn import Cell",
    ("ops", "Matmul"): "MatMul",
    ("ops", "Momentum"): "from mindspore.nn import Momentum",
    ("train", "LossMonitr"): "LossMonitor",
    ("communication", "get_rank_id"): "get_rank",
    ("ops.operations.nn_ops", "Conv2Dee"): "Conv2D",
}


@pytest.mark.quick(3)
@pytest.mark.parametrize(("path", "name"), NEVER, ids=lambda part: part or "mindspore")
def test_a_name_that_never_was_says_so_and_names_the_nearest(path, name):
    module = page(path)
    shown = f"mindspore.{path}" if path else "mindspore"
    with pytest.raises(MissingName, match=f"{shown} has no '{name}' here.*{NEVER[path, name]}") as caught:
        getattr(module, name)
    assert isinstance(caught.value, AttributeError) and caught.value.name == name
    assert not hasattr(module, name)
    assert getattr(module, name, None) is None


@pytest.mark.quick(7)
@pytest.mark.parametrize(("path", "name"), NEVER, ids=lambda part: part or "mindspore")
def test_an_import_of_a_name_that_never_was_says_the_same(path, name):
    """Wrong before: Python's own "cannot import name", because it swallows an AttributeError."""
    source = f"from {FACADE}.{path} import {name}" if path else f"from {FACADE} import {name}"
    with pytest.raises(MissingImport, match=f"has no '{name}' here.*{NEVER[path, name]}") as caught:
        exec(source, {})
    assert isinstance(caught.value, ImportError)


MISSING = {
    ("nn", "CTCLoss"): r"ops\.CTCLoss\(\)\(logits, ",
    ("", "export"): "save_checkpoint",
    ("", "RowTensor"): "Gradients are dense tensors",
    ("runtime", "max_memory_allocated"): r"dir\(mindspore.runtime\)",
    ("nn.probability.distribution", "Gumbel"): r"dir\(mindspore",
    ("parallel._tensor", "_reshape_param_data"): "",
    ("profiler", "Profiler"): "--events",
    ("mindrecord", "FileWriter"): "GeneratorDataset",
    ("dataset.vision.py_transforms", "ToPIL"): "mindspore.dataset.vision has the same operations",
    ("dataset.transforms.py_transforms", "Compose"): "Compose",
}


@pytest.mark.quick(3)
@pytest.mark.parametrize(("path", "name"), MISSING, ids=lambda part: part or "mindspore")
def test_a_name_that_is_missing_can_be_imported_and_says_so_when_it_is_used(path, name):
    """One unknown name cost the whole file before."""
    found: dict = {}
    exec(f"from {FACADE}{path and '.'}{path} import {name} as it", found)
    it, dotted = found["it"], f"mindspore.{path}.{name}".replace("..", ".")
    text = rf"[a-z_]+\.py:[0-9]+: {dotted} is missing here.*{MISSING[path, name]}"
    for use in (lambda: it(1), lambda: it[0], lambda: types.new_class("Own", (it,))()):
        with pytest.raises(NotBuiltYet, match=text):
            use()
    with pytest.raises(MissingName, match=f"{name} is missing here, and so is its 'part'"):
        _ = it.part
    assert not isinstance(3, it) and not issubclass(int, it) and not hasattr(it, "part")
    assert repr(it).startswith("<mindspore") and "missing" in repr(it)


def test_a_subclass_of_a_missing_layer_is_refused_when_one_is_made():
    """Its definition alone is not: whole public packages could not be imported for a class that nobody made."""

    class Own(ms.nn.CTCLoss):
        def __init__(self, size):
            super().__init__()

    with pytest.raises(NotBuiltYet, match=r"test_missing_names\.py:[0-9]+: mindspore\.nn\.CTCLoss is missing here"):
        Own(size=3)


BORROWED = {
    ("nn.wrap.cell_wrapper", "Cell"): "parallel_lab.nn:Cell",
    ("nn.optim.lazyadam", "Tensor"): f"{TENSOR}:Tensor",
    ("common.dtype", "Parameter"): f"{PARAMETER}:Parameter",
    ("ops.function.math_func", "MatMul"): "parallel_lab.ops:MatMul",
    ("communication._comm_helper", "GlobalComm"): "parallel_lab.train.communication:GlobalComm",
}


@pytest.mark.parametrize(("path", "name"), BORROWED)
def test_an_inner_module_gives_what_it_imports_itself(path, name):
    assert getattr(page(path), name) is target(BORROWED[path, name])


@each_of(("module", "text"), ("nn.optim.adamm", "mindspore.nn.optim.adam"), ("nosuchthing", r"dir\(mindspore\)"))
def test_a_module_that_never_was_says_so(module, text):
    with pytest.raises(MissingModule, match=f"there is no module mindspore.{module} here.*{text}") as caught:
        importlib.import_module(f"{FACADE}.{module}")
    assert isinstance(caught.value, ModuleNotFoundError)


def test_every_hint_is_for_something_that_is_not_there():
    for path in HINTS:
        assert path not in PAGES
        parent, _, name = path.rpartition(".")
        if parent in PAGES:
            assert name not in PAGES[parent].names, path


def test_what_is_listed_as_missing_is_missing():
    """A page that gains a name loses it in the list; modules are no names of things."""
    here = [f"{path}.{name}" for path, names in NAMES.items() for name in {*names.split()} & {*names_of(path)}]
    assert NAMES and not {path.removeprefix(".") for path in here} - PAGES.keys()


def test_python_asks_modules_for_names_of_its_own():
    assert not hasattr(ms, "__wrapped__") and not hasattr(ms.nn, "__file_name__")
    with pytest.raises(AttributeError) as caught:
        _ = ms.nn.__no_such__
    assert not isinstance(caught.value, MissingName)


def test_a_name_that_was_never_imported_is_explained():
    """Seed 004 uses AutoParallel without importing it."""
    try:
        exec("AutoParallel(net)", {})
    except NameError as error:
        explain(error)
        assert error.__notes__ == [
            "'AutoParallel' was never imported: add `from mindspore.parallel.auto_parallel import AutoParallel`."
        ]
    else:
        pytest.fail("no NameError")
    other = NameError("name 'qqqq' is not defined", name="qqqq")
    explain(other)
    assert not hasattr(other, "__notes__")


def test_a_name_has_homes():
    assert homes("AutoParallel")[-1] == "mindspore.parallel.auto_parallel"
    layers = [h for h in homes("Cell") if h.startswith("mindspore.nn.layer")]
    assert homes("Cell") == ["mindspore.nn", "mindspore.nn.cell", *layers]
    assert homes("qqqq") == []


@each_of(
    ("path", "name", "said"),
    ("boost", "GradientAccumulation", "grad_accumulation_step"),  # the hint was about float16
    ("boost.grad_accumulation", "GradientAccumulation", "grad_accumulation_step"),
    ("boost", "FreezeOpt", "requires_grad"),
    ("boost.boost_cell_wrapper", "BoostTrainOneStepCell", "nn.TrainOneStepCell"),
)
def test_a_hint_of_a_module_fits_its_parts(path, name, said):
    assert said in hint_for(path, name)


def test_what_public_packages_name_when_they_are_imported_is_there():
    """`import mindcv` stopped at each of these."""
    from parallel_lab.mindspore.dataset import vision
    from parallel_lab.mindspore.nn.optim.optimizer import opt_init_args_register
    from parallel_lab.mindspore.version import __version__

    assert __version__ == ms.__version__ and opt_init_args_register(len) is len
    assert (vision.Inter.BICUBIC, vision.Inter.CUBIC, vision.Inter.AREA.value) == (vision.Inter(3), vision.Inter(3), 4)
    with pytest.raises(ValueError, match=r"Resize: Inter\.BICUBIC.*Inter\.LINEAR"):
        vision.Resize(4, vision.Inter.BICUBIC)


def test_what_packages_of_distributed_models_name_is_there():
    """`import mindformers` stopped at each of these."""
    import logging

    from parallel_lab.mindspore._checkparam import args_type_check
    from parallel_lab.mindspore.common.dtype import Type

    from parallel_lab.mindspore import amp, dataset, log

    assert isinstance(ms.float16, Type) and log.logging is logging
    assert amp.get_white_list() == amp.AMP_WHITE_LIST and amp.get_black_list() == amp.AMP_BLACK_LIST
    assert not isinstance(dataset.MnistDataset, dataset.BatchDataset)
    reads = {"pipeline_scheduler": "1f1b", "pipeline_interleave": False, "optimizer_level": "level1"}
    assert {key: ms.get_auto_parallel_context(key) for key in reads} == reads

    @args_type_check(width=int, kind=(str, dict))
    def layer(width, kind=None, **more):
        return width, kind, more

    assert layer(3, kind="a", rest=1) == (3, "a", {"rest": 1}) and layer(None) == (None, None, {})
    with pytest.raises(TypeError, match=r"layer: kind=3\. str or dict"):
        layer(3, 3)
