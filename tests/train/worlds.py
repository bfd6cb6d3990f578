"""Cases that run on the ranks of a world and on one device, and are compared.

    @case(2, 4)                                  # worlds of 2 and, in the exhaustive suite, of 4 ranks
    def loss_falls(here):
        here.settings(parallel_mode="data_parallel", gradients_mean=True)
        ...
        return {"losses": ..., "w": ...}, {"messages": ...}       # what must equal one device; what a test looks at
        itself

Cases run on the workers of a pool that all tests of the folder share, each when a test first asks for it. Or a file of
cases is one program (`Worlds(launch=...)`): `mpirun -n 4 python worlds.py <module> <folder> quick` runs its quick cases
for 4 ranks one after the other, and each rank writes down what it found (`exhaustive`: the other cases). The same
functions run in the test's process with a `Here` that is alone: no settings, all rows.
"""

from __future__ import annotations

import importlib
import pickle
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from parallel_lab.base import hooks, seeds
from parallel_lab.base.settings import context
from parallel_lab.layout.tensor_layout import TensorLayout
from parallel_lab.nn.tensor.tensor import RankTensor, Tensor
from parallel_lab.train.communication import get_group_size, get_rank, init
from parallel_lab.train.replicas import after_update, before_sum
from parallel_lab.train.run_cell import run_cell
from tests.ops.ranks import on_ranks
from tests.pools import shared_pool

LIMIT_S = 240.0


def case(*sizes: int, quick: tuple[int, ...] | None = None, own: bool = False, compared: bool = True) -> Callable:
    """Mark a function as a case for worlds of these sizes.

    quick     the sizes that the quick suite runs too: the first, unless other ones are named
    own       a rank's results are its own, and so is what one device is given for comparison
    compared  False: there is nothing to compare with one device, where it is not run
    """

    def marked(function: Callable) -> Callable:
        function.sizes, function.own, function.compared = sizes, own, compared
        function.quick = sizes[:1] if quick is None else quick
        return function

    return marked


def cases(module: Any) -> dict[str, Callable]:
    """The cases of a module by name: functions, and those in its table `CASES`."""
    return {name: f for name, f in vars(module).items() if hasattr(f, "sizes")} | getattr(module, "CASES", {})


class Here:
    """Where a case runs: rank `rank` of `size`, or alone in its place."""

    def __init__(self, rank: int, size: int, *, alone: bool, folder: Path | None = None) -> None:
        self.rank, self.size, self.alone, self.folder = rank, size, alone, folder

    def settings(self, **settings: Any) -> None:
        if not self.alone:
            context.set_auto_parallel_context(**settings)

    def rows(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """This rank's rows of each; alone all of them."""
        if self.alone:
            return arrays
        return tuple(self.own_rows(x) for x in arrays)

    def own_rows(self, x: np.ndarray) -> np.ndarray:
        """This rank's rows, also alone."""
        n = len(x) // self.size
        return x[self.rank * n : (self.rank + 1) * n]

    def part(self, x: np.ndarray, cuts: tuple[int, ...]) -> np.ndarray:
        """This rank's slice of x split so; alone all of it."""
        return x if self.alone else x[TensorLayout.from_strategy(cuts, self.size).slice_index(x.shape, self.rank)]

    def mean(self, value: Any) -> np.ndarray:
        """The mean over the ranks."""
        array = np.asarray(value.asnumpy() if isinstance(value, Tensor) else value)
        return array if self.alone else hooks.current_world().comm.all_reduce(array, tag="mean of a case") / self.size

    def full(self, value: Any) -> Any:
        """Whole arrays instead of tensors, lists and dicts included."""
        if isinstance(value, dict):
            return {k: self.full(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.full(v) for v in value]
        if isinstance(value, RankTensor) or hasattr(value, "full_shape"):
            return value.full().asnumpy()
        return value.asnumpy() if isinstance(value, Tensor) else value


def parameters(here: Here, *cells: Any) -> dict[str, np.ndarray]:
    """{name: whole array} of the Parameters of Cells."""
    return {f"parameter {p.name}": np.array(here.full(p)) for cell in cells for p in cell.get_parameters()}


def refused(call: Callable, *args: Any) -> tuple[tuple[str, ...], str]:
    """(names of the classes of the error that `call` raises, its text)."""
    try:
        call(*args)
    except Exception as error:
        return tuple(kind.__name__ for kind in type(error).__mro__), str(error)
    return ("nothing",), "nothing was refused"


def run_case(function: Callable, here: Here) -> Any:
    """What a case returns, from the same settings every time."""
    if here.alone and not function.compared:
        return {}, {}
    context.reset_auto_parallel_context()
    context.reset_algo_parameters()
    context.set_context(mode=context.GRAPH_MODE)
    seeds.set_seed(1)
    try:
        return function(here)
    finally:
        context.reset_auto_parallel_context()
        context.set_context(mode=context.GRAPH_MODE)


def run_on_rank(world: Any, module: str, name: str, folder: Path) -> Any:
    """On a worker: what one case returns. Warnings are errors, as in tests."""
    hooks.set_cell_runner(run_cell)
    world.before_sum, world.after_update = before_sum, after_update
    world.agree()
    here = Here(world.rank, world.world_size, alone=False, folder=folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return run_case(cases(importlib.import_module(module))[name], here)
    finally:
        hooks.set_cell_runner(None)


def run_all(module: str, folder: Path, suite: str) -> None:
    """On a rank that was launched: run a module's cases of this size in `suite`; write results or errors."""
    init()
    rank, size = get_rank(), get_group_size()
    found: dict[str, Any] = {}
    for name, function in cases(importlib.import_module(module)).items():
        if size in function.sizes and (size in function.quick) == (suite == "quick"):
            try:
                found[name] = run_case(function, Here(rank, size, alone=False, folder=folder))
            except Exception:
                found[name] = traceback.format_exc()
                print(f"{name} on rank {rank}: {found[name]}")
            (folder / f"rank_{rank}.pickle").write_bytes(pickle.dumps(found))


class Worlds:
    """What the ranks of worlds found in a module's cases.

    launch  (size, a script and its arguments) -> the command that starts ranks, which run all cases of a size and
            suite; None: each case runs on the folder's pool when it is first asked for
    """

    def __init__(self, module: Any, folder: Path, launch: Callable[[int, Iterable[str]], list[str]] | None = None):
        self.module, self.folder, self.launch = module, folder, launch
        self.found: dict[tuple[int, str], list[Any]] = {}

    def of(self, size: int, name: str) -> list[Any]:
        """What each rank of a world of `size` returned from a case."""
        if (size, name) not in self.found:
            if self.launch is None:
                folder = Path(tempfile.mkdtemp(dir=self.folder))
                found = on_ranks(shared_pool(size), run_on_rank, self.module.__name__, name, folder)
                self.found[size, name] = found
            else:
                quick = size in cases(self.module)[name].quick
                self._launch(size, "quick" if quick else "exhaustive")
        for rank, result in enumerate(self.found[size, name]):
            assert not isinstance(result, str), f"rank {rank}: {result}"
        return self.found[size, name]

    def notes(self, size: int, name: str) -> list[Any]:
        """What each rank noted in a case, besides what must equal one device."""
        return [noted for _, noted in self.of(size, name)]

    def alone(self, size: int, name: str, rank: int = 0) -> Any:
        """What the case gives on one device."""
        return run_case(cases(self.module)[name], Here(rank, size, alone=True))

    def _launch(self, size: int, suite: str) -> None:
        from tests.processes.launched import started

        folder = self.folder / f"{suite}_{size}"
        folder.mkdir()  # ranks that did not come to a case are not started once more
        command = self.launch(size, (__file__, self.module.__name__, str(folder), suite))
        with started(*command, cwd=folder) as run:
            code, console = run.wait(LIMIT_S)
            assert run.gone_after() is not None, f"left: {run.family()}"
        files = [folder / f"rank_{rank}.pickle" for rank in range(size)]
        assert code == 0 and all(f.exists() for f in files), console
        found = [pickle.loads(f.read_bytes()) for f in files]
        for name in set.union(*map(set, found)):
            self.found[size, name] = [results.get(name, f"did not come to {name}\n{console}") for results in found]


def by_mpirun(size: int, words: Iterable[str], **more: Any) -> list[str]:
    """The command of a script on ranks of mpirun."""
    from parallel_lab.processes.mpi import mpirun_command

    return mpirun_command(size, [sys.executable, *words], **more)


# ---- for the files of tests; ranks do without pytest ----


def compared(module: Any, quick: int) -> tuple[Callable, Callable]:
    """The fixture `worlds` of a file, and the test that ranks equal one device: `quick` of its cases are quick."""
    import pytest

    @pytest.fixture(scope="module")
    def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
        return Worlds(module, tmp_path_factory.mktemp("worlds"))

    @pytest.mark.quick(quick)
    @pytest.mark.parametrize(("size", "name"), pairs(module))
    def test_ranks_equal_one_device(worlds: Worlds, size: int, name: str) -> None:
        assert_equals_one_device(worlds, size, name)

    return worlds, test_ranks_equal_one_device


def sizes(*sizes: int) -> list[Any]:
    """Sizes of worlds to parametrize by: the first is quick, the others are exhaustive."""
    import pytest

    return [sizes[0], *(pytest.param(size, marks=pytest.mark.exhaustive) for size in sizes[1:])]


def pairs(module: Any) -> list[Any]:
    """(size, name) of everything that is to be compared, marked exhaustive where it is not quick."""
    import pytest

    return [
        pytest.param(size, name, marks=() if size in function.quick else pytest.mark.exhaustive)
        for name, function in cases(module).items()
        for size in function.sizes
    ]


def assert_equals_one_device(worlds: Worlds, size: int, name: str) -> None:
    """Every rank's results equal one device's: to 1e-10 in float64, to `function.bound` (2e-5) in float32."""
    function = cases(worlds.module)[name]
    one = None
    for rank, (same, _) in enumerate(worlds.of(size, name)):
        if one is None or function.own:
            one, _ = worlds.alone(size, name, rank)
        assert same.keys() == one.keys()
        for key, value in one.items():
            assert_close(same[key], value, f"{name}: {key} on rank {rank} of {size}", getattr(function, "bound", 2e-5))


def assert_refused(note: tuple[tuple[str, ...], str], kind: str, words: Iterable[str]) -> None:
    """That `refused` noted an error of this class, with these words in its text."""
    kinds, text = note
    assert kind in kinds, text
    for word in words:
        assert word in text


def assert_close(found: Any, wanted: Any, what: str, bound32: float) -> None:
    """Equal but for rounding: the largest difference, relative to the largest element."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), what
        for key in wanted:
            assert_close(found[key], wanted[key], f"{what}[{key!r}]", bound32)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), what
        for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
            assert_close(a, b, f"{what}[{number}]", bound32)
    elif isinstance(wanted, (np.ndarray, np.generic, float)):
        a, b = np.asarray(found), np.asarray(wanted)
        assert a.shape == b.shape and a.dtype == b.dtype, f"{what}: {a.dtype} {a.shape}, one device {b.dtype} {b.shape}"
        bound = {"float64": 1e-10, "float32": bound32, "float16": 4e-3}.get(str(b.dtype), 0.0)
        assert np.array_equal(np.isfinite(a), np.isfinite(b)), f"{what}\n{a}\none device\n{b}"
        a, b = a[np.isfinite(b)], b[np.isfinite(b)]
        if b.size:
            largest = max(1.0, float(np.abs(b).max()))
            far = float(np.abs(np.subtract(a, b, dtype=np.float64)).max()) / largest
            assert far <= bound, f"{what} is {far:.3g} off\n{a}\none device\n{b}"
    else:
        assert found == wanted, what


if __name__ == "__main__":
    # under its own name, so that the cases and this process speak of the same classes
    from tests.train.worlds import run_all as _run_all

    _run_all(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
