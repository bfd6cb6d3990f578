"""Which page has a name, and hints for names that no page has: what the facade and its notes look up."""

from __future__ import annotations

import builtins
import importlib
from pathlib import Path
from types import ModuleType

from ._names import MODULES
from ._tables import PAGES, Page

OURS = "parallel_lab.mindspore"
THEIRS = "mindspore"


def path_of(module: ModuleType) -> str:
    """ "" for the package itself, "nn.optim" for parallel_lab.mindspore.nn.optim."""
    return module.__name__[len(OURS) + 1 :]


def joined(path: str, name: str) -> str:
    """The path of a name on a page: "nn" and "Cell" give "nn.Cell"."""
    return f"{path}.{name}" if path else name


_OPEN = frozenset(MODULES.split()) - PAGES.keys()
_NOTHING = Page("A module of MindSpore's without a counterpart in this package.")


def is_open(path: str) -> bool:
    """Whether nobody knows what MindSpore has at `path`: this package has nothing of it, or it is a private module."""
    return path in _OPEN or (path not in PAGES and is_module(path))


def is_file(path: str) -> bool:
    """Whether `path` is a file of this package, such as "_forms"."""
    return path.startswith("_") and Path(__file__).with_name(f"{path}.py").exists()


def is_module(path: str) -> bool:
    """Whether MindSpore has, or may have, a module at `path`: private ones can be in any other."""
    if path in PAGES or path in _OPEN:
        return True
    parent, _, name = path.rpartition(".")
    private = name.startswith("_") and not name.startswith("__") and name.islower()
    return is_module(parent) and (private or is_private(parent))


def is_private(path: str) -> bool:
    """Whether MindSpore does not document the module at `path`: a part of it begins with an underscore."""
    return any(part.startswith("_") for part in path.split("."))


def page_of(path: str) -> Page:
    """The page of a module; an empty one for those that this package lacks."""
    return PAGES.get(path, _NOTHING)


def public(module: ModuleType) -> list[str]:
    """The names of a module for others: those of `__all__`; or else a package's all, a file's own, but no modules."""
    if (all_names := getattr(module, "__all__", None)) is not None:
        return all_names
    own = [n for n, value in vars(module).items() if not n.startswith("_") and not isinstance(value, ModuleType)]
    if not hasattr(module, "__path__"):
        own = [n for n in own if getattr(vars(module)[n], "__module__", module.__name__) == module.__name__]
    return own


def is_further(module: ModuleType, name: str) -> bool:
    """Whether a star import omits a name of a module because it is also one of Python's own (sum, max, abs)."""
    value = vars(module).get(name)
    ours = str(getattr(value, "__module__", "")).startswith("parallel_lab") and not isinstance(value, ModuleType)
    return ours and not name.startswith("_") and hasattr(builtins, name)


def names_of(path: str) -> list[str]:
    """Every name of a page: its own, its modules', and those of what it re-exports."""
    page = page_of(path)
    start = f"{path}." if path else ""
    below = [p[len(start) :] for p in PAGES if p and p.startswith(start) and "." not in p[len(start) :]]
    taken = [name for source in page.sources for name in public(importlib.import_module(source))]
    return sorted(dict.fromkeys([*page.names, *below, *taken]))


def homes(name: str) -> list[str]:
    """MindSpore's paths that have `name`, the most exact last: ["mindspore.parallel.auto_parallel"]."""
    found = []
    for path, page in PAGES.items():
        if name in page.names or any(name in public(importlib.import_module(source)) for source in page.sources):
            found.append(f"{THEIRS}.{path}" if path else THEIRS)
    return sorted(found, key=len)


def home_of(name: str) -> str:
    """The path under which documents import `name`; "" if it is nowhere."""
    found = homes(name)
    return (found[-1] if name in _EXACT else found[0]) if found else ""


# names that documents import by their full path
_EXACT = ("AutoParallel", "no_init_parameters", "GradAccumulation", "MicroBatchInterleaved")


def _same(names: str, hint: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), hint)


# What MindSpore has and this package has not: module paths, and names where several pages would have them
HINTS: dict[str, str] = {
    "scipy": "Use scipy for data, and mindspore.ops for what a network computes",
    **_same(
        "profiler Profiler",
        "Every launcher records its communication: parallel-lab run -n 8 --events events.json script.py, shown by "
        "chrome://tracing",
    ),
    "mindrecord": "Read the data with dataset.GeneratorDataset or dataset.NumpySlicesDataset",
    "hal": "Every rank computes on this machine's processors; `parallel-lab doctor` shows what they are",
    "rewrite": "parallel_lab.compile(net, x) gives the plan, and plan.text() shows it",
    "boost": "Nothing of it is here, which changes how a training computes: train with Model or nn.TrainOneStepCell",
    **_same(
        "GradientAccumulation gradient_accumulation_op gradient_clear_op",
        "set_auto_parallel_context(grad_accumulation_step=N) accumulates gradients, or parallel.nn.GradAccumulation",
    ),
    "BoostTrainOneStepCell": "Use nn.TrainOneStepCell",
    "BoostTrainOneStepWithLossScaleCell": "Use nn.TrainOneStepWithLossScaleCell",
    "GroupLossScaleManager": "Use amp.DynamicLossScaleManager, with one scale for all groups",
    **_same("GradientFreeze FreezeOpt freeze_cell", "Set requires_grad = False for what is frozen"),
    "LessBN": "Use the layers with nn.BatchNorm2d as they are",
    "export": "save_checkpoint(net, 'net.ckpt') keeps a network's values",
    "load": "load_checkpoint('net.ckpt') reads what save_checkpoint wrote",
    "auto_mixed_precision": "net.to_float(ms.float16), or Model(..., amp_level='O2')",
    "build_train_network": "Use nn.TrainOneStepCell(nn.WithLossCell(net, loss), optimizer)",
    **_same(
        "complex64 complex128 Complex complex ComplexAbs Conj conj Imag imag Real real polar angle view_as_complex "
        "view_as_real fft ifft FFTWithSize FFT FFT2 FFTN HFFT HFFT2 HFFTN IFFT IFFT2 IFFTN IHFFT IHFFT2 IHFFTN IRFFT "
        "IRFFT2 IRFFTN RFFT RFFT2 RFFTN",
        "Tensors hold bools, ints and floats: compute with the real and the imaginary part, a Tensor each",
    ),
    "dataset.vision.py_transforms": "mindspore.dataset.vision has the same operations, and Dataset.map takes "
    "functions of your own",
    "dataset.transforms.py_transforms": "mindspore.dataset.transforms has Compose and TypeCast, and Dataset.map takes "
    "functions of your own",
    **_same("nn.CTCLoss ops.ctc_loss", "Use ops.CTCLoss()(logits, labels_indices, labels_values, sequence_length)"),
    "ops.LSTM": "Use nn.LSTM",
    **_same("ops.DynamicRNN ops.DynamicGRUV2", "Use nn.LSTM or nn.GRU"),
    "ops.IndexPut": "Use tensor.index_put(indices, values, accumulate)",
    "nn.Linear": "Use nn.Dense(in_channels, out_channels)",
    "nn.Conv": "Use nn.Conv2d",
    "nn.AdamW": "Use mint.optim.AdamW: nn.AdamWeightDecay does not correct the bias of the moments",
    "nn.BatchNorm": "Use nn.BatchNorm1d, nn.BatchNorm2d or nn.BatchNorm3d, by the dims of the input",
    **_same(
        "set_ps_context get_ps_context reset_ps_context",
        "There are no parameter servers here: parallel_mode='data_parallel' with AllReduce",
    ),
    "set_dump": "Print tensors with ops.Print()",
    "RowTensor": "Gradients are dense tensors",
    **_same("COOTensor CSRTensor", "Tensors are dense"),
}

# modules that a tutorial misprints, or that lie next to its script
CORRECTIONS: dict[str, str] = {
    "context": "Write `from mindspore.context import ...`",
    "resnet": "The tutorial's resnet.py lies beside its script: put it there (parallel_lab.nn.models has a resnet50 "
    "of its own)",
}
