"""Record which messages the programs in `programs/` send: run by hand, in an environment with torch 2.14 and jax 0.10.

    pip install -e ".[oracle]" && python tests/recorded/record_programs.py  # writes programs.json
    python tests/recorded/record_programs.py --check                        # compares with it (.ci/run --oracle)

programs.json: {file: [message, ...]}, a message [kind, axis of the mesh, shape that rank 0 gives, reduction unless it
is a sum, phase]. PyTorch: `lab/explain/run_torch.py`, one process, rank 0 of a fake group; a phase is "forward" or
"backward" (all that autograd does); placing a tensor that every rank has (scatter, broadcast) is left out. JAX: 8 host
devices; every function that `jax.jit` made is lowered and compiled for the arguments of its call, and its collectives
are read from the HLO, without a phase, in the compiler's order (compare sorted). HyperParallel cannot be installed: its
lists are in `hyper_messages.json`, written by hand from its rules, each line with the rule that it follows.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUN_TORCH = HERE.parents[1] / "parallel_lab" / "lab" / "explain" / "run_torch.py"
HLO = re.compile(
    r"= (?P<type>.*?) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
SHAPE = re.compile(r"[a-z]+\d+\[([\d,]*)\]")
GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[.*?\] \{.*?\})"
)


def ranks_of(text: str) -> int:
    """From the first line, how the program is started."""
    found = re.search(r"(?:nproc-per-node |device_count=|worker_num=)(\d+)", text)
    return int(found[1]) if found else 8


def torch_messages(path: Path) -> list[Any]:
    """A program's messages, as its child process says."""
    command = [sys.executable, str(RUN_TORCH), str(path), str(ranks_of(path.read_text()))]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    said = json.loads(done.stdout.splitlines()[-1])
    assert not said["error"], said["error"]
    return [[*m[:3], *([m[3]] if m[3] not in ("", "sum") else []), m[5]] for m in said["messages"] if m[5] != "setup"]


def jax_messages(path: Path) -> list[Any]:
    """The same for JAX: this file again, in a process with 8 host devices."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, __file__, "--jax", str(path)]
    done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_jax(path: Path) -> None:
    """Run the program with a `jax.jit` that also notes the compiled text; print the collectives."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    meshes: list[Any] = []
    texts: list[str] = []
    jit, made = jax.jit, Mesh.__new__

    def noting_mesh(cls: Any, *args: Any, **kwargs: Any) -> Any:
        meshes.append(made(cls, *args, **kwargs))
        return meshes[-1]

    def noting_jit(function: Any = None, **options: Any) -> Any:
        if function is None:
            return lambda f: noting_jit(f, **options)
        compiled = jit(function, **options)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
                texts.append(compiled.lower(*args, **kwargs).compile().as_text())
            return compiled(*args, **kwargs)

        return call

    Mesh.__new__, jax.jit = noting_mesh, noting_jit  # type: ignore[method-assign]
    out, sys.stdout = sys.stdout, sys.stderr
    exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    sys.stdout = out

    def axes_of(groups: list[list[int]], pairs: bool) -> str:
        for mesh in meshes:
            ids = np.vectorize(lambda d: d.id)(mesh.devices)
            for names in (*((n,) for n in mesh.axis_names), mesh.axis_names):
                axes = [mesh.axis_names.index(n) for n in names]
                rows = np.moveaxis(ids, axes, range(-len(axes), 0)).reshape(
                    -1, int(np.prod([ids.shape[a] for a in axes]))
                )
                sets = [set(map(int, row)) for row in rows]
                if all(any(set(g) <= s if pairs else set(g) == s for s in sets) for g in groups):
                    return ",".join(names)
        return ""

    messages = []
    for line in "\n".join(texts).splitlines():
        found = HLO.search(line)
        if found is None:
            continue
        kind = {"collective-permute": "permute"}.get(found["kind"], found["kind"].replace("-", "_"))
        written = GROUPS.search(line)
        groups = _groups(written[1]) if written else [list(range(8))]
        axes = axes_of(groups, kind == "permute")
        size = len(groups[0]) if kind != "permute" else 0
        shapes = [[int(n) for n in s.split(",") if n] for s in SHAPE.findall(found["type"])]
        if kind == "all_to_all" and len(shapes) > 1:  # a result for every rank: one message
            shapes = [[len(shapes), *shapes[0]]]
        messages += [_given(kind, axes, shape, line, size) for shape in shapes]
    print(json.dumps(messages))


def _given(kind: str, axes: str, shape: list[int], line: str, size: int) -> list[Any]:
    """The message whose result has this shape: what a rank gives."""
    dims = re.search(r"dimensions=\{(\d+)\}", line)
    if kind in ("all_gather", "reduce_scatter") and dims:
        at = int(dims[1])
        shape[at] = shape[at] // size if kind == "all_gather" else shape[at] * size
    reduce = re.search(r"to_apply=%?[\w.]*?(add|max|min|or|and)", line)
    op = reduce[1] if reduce else "add"
    return [kind, axes, shape, *([op] if op != "add" else [])]


def _groups(text: str) -> list[list[int]]:
    """Replica groups, listed or as an iota: [4,2]<=[2,4]T(1,0)."""
    if text.startswith("{"):
        return [[int(n) for n in part.split(",")] for part in re.findall(r"\{([\d,]+)\}", text)]
    import numpy as np

    if text.startswith("mesh"):  # mesh['axis_0'=4,'axis_1'=2] {'axis_0'}
        axes = re.findall(r"'(\w+)'=(\d+)", text)
        along = [i for i, (name, _) in enumerate(axes) if f"'{name}'" in text.partition("]")[2]]
        numbers = np.arange(int(np.prod([int(n) for _, n in axes]))).reshape([int(n) for _, n in axes])
        size = int(np.prod([int(axes[i][1]) for i in along]))
        return np.moveaxis(numbers, along, range(-len(along), 0)).reshape(-1, size).tolist()
    shape, of, order = re.fullmatch(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()  # type: ignore[union-attr]
    dims = [[int(n) for n in part.split(",")] for part in (shape, of)]
    ranks = np.arange(int(np.prod(dims[1]))).reshape(dims[1])
    return ranks.transpose([int(n) for n in order.split(",")] if order else None).reshape(dims[0]).tolist()


def main(check: bool) -> None:
    file = HERE / "programs.json"
    rows = {}
    for path in sorted((HERE / "programs").glob("*.txt")):
        if path.name.startswith(("torch", "jax")):
            rows[path.stem] = torch_messages(path) if path.name.startswith("torch") else jax_messages(path)
            print(path.stem, len(rows[path.stem]), flush=True)
    if check:
        held = json.loads(file.read_text())
        wrong = [name for name in {**held, **rows} if held.get(name) != rows.get(name)]
        if wrong:
            raise SystemExit(f"other messages than recorded: {', '.join(wrong)}")
        return
    lines = [f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, part)) + "\n]" for name, part in rows.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--jax"]:
        run_jax(Path(sys.argv[2]))
    else:
        main("--check" in sys.argv)
