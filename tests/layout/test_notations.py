"""One layout in twelve notations: recorded rows, examples by hand, random ones there and back, bad texts."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from parallel_lab.base.errors import LayoutError, LayoutTypeError
from parallel_lab.layout.device_mesh import DeviceMesh
from parallel_lab.layout.mesh_layout import MeshLayout, Partial, Replicate, Shard, StridedShard
from parallel_lab.layout.notations import notations, written
from parallel_lab.layout.notations.reader import LONGEST, MOST_RANKS
from tests.crossed import each_of
from tests.recorded.ask_rosetta import ROWS, layouts

FOUR, CUBE = DeviceMesh((2, 4), ("dp", "tp")), DeviceMesh((2, 2, 2), ("dp", "cp", "tp"))
MATRIX = (16, 32)


# ---- recorded from PyTorch and JAX ----


@pytest.mark.quick(30)
@pytest.mark.parametrize("number", range(len(ROWS["layouts"])))
def test_recorded_layouts_read_and_written_as_recorded(number):
    row = ROWS["layouts"][number]
    found = layouts(row)
    assert found["slices"] == row["slices"]
    assert found["forms"] == row["forms"] and found["b"] == row["b"][1]
    assert found["no_form"].keys() == row["no_form"].keys()
    assert bool(found["reason"]) == (row["b"][1] is None)


# ---- by hand ----

# mesh; placements; Layout's entries, strategy, PartitionSpec, book, GSPMD, Alpa ("": no form); what rank 5 holds
TABLE = """
4 | S0 S1 | "dp", "tp" | (2, 4) | 'dp', 'tp' | I_X, J_Y | [2,4]<=[8] | S0S1 | 8:16 8:16
4 | S0 R | "dp", "None" | (2, 1) | 'dp', None | I_X, J | [2,1,4]<=[8] ..repl | S0R | 8:16 0:32
4 | R S1 | "None", "tp" | | None, 'tp' | I, J_Y | [1,4,2]<=[2,4]T(1,0) ..repl | RS1 | 0:16 8:16
4 | R R | "None", "None" | (1, 1) | None, None | I, J | replicated | RR | 0:16 0:32
4 | S0 S0 | ("dp", "tp"), "None" | (8, 1) | ('dp', 'tp'), None | I_{XY}, J | [8,1]<=[8] | S01R | 10:12 0:32
4 | SS0:4 S0 | ("tp", "dp"), "None" | | ('tp', 'dp'), None | I_{YX}, J | [8,1]<=[2,4]T(1,0) | | 6:8 0:32
4 | S1 S1 | "None", ("dp", "tp") | (1, 8) | None, ('dp', 'tp') | I, J_{XY} | [1,8]<=[8] | RS01 | 0:16 20:24
4 | SS1:4 S1 | "None", ("tp", "dp") | | None, ('tp', 'dp') | I, J_{YX} | [1,8]<=[2,4]T(1,0) | | 0:16 12:16
4 | S1 S0 | "tp", "dp" | | 'tp', 'dp' | I_Y, J_X | [4,2]<=[2,4]T(1,0) | S1S0 | 4:8 16:32
4 | R S0 | "tp", "None" | | 'tp', None | I_Y, J | [4,1,2]<=[2,4]T(1,0) ..repl | S1R | 4:8 0:32
4 | S1 R | "None", "dp" | (1, 2) | None, 'dp' | I, J_X | [1,2,4]<=[8] ..repl | RS0 | 0:16 16:32
4 | S0 P | | | 'dp', None, unreduced={'tp'} | I_X, J] {U_Y | [2,1,4]<=[8] ..dims={unreduced} | | 8:16 0:32
4 | P S1 | | | None, 'tp', unreduced={'dp'} | I, J_Y] {U_X | [1,4,2]<=[2,4]T(1,0) ..dims={unreduced} | | 0:16 8:16
4 | P P | | | None, None, unreduced={'dp', 'tp'} | I, J] {U_{XY} | unreduced | | 0:16 0:32
8 | S0 S1 S2 | "dp", "cp", "tp" | (2, 2, 2) | 'dp', 'cp', 'tp' | I_X, J_Y, K_Z | [2,2,2]<=[8] | | 4:8 0:8 12:24
8 | S0 S0 S1 | ("dp", "cp"), "tp" | (4, 2) | ('dp', 'cp'), 'tp' | I_{XY}, J_Z | [4,2]<=[8] | | 8:12 16:32
8 | SS0:2 S0 S1 | ("cp", "dp"), "tp" | | ('cp', 'dp'), 'tp' | I_{YX}, J_Z | [4,2]<=[2,2,2]T(1,0,2) | | 4:8 16:32
8 | S0 R S1 | "dp", "tp" | | 'dp', 'tp' | I_X, J_Z | [2,2,2]<=[2,2,2]T(0,2,1) ..repl | | 8:16 16:32
8 | S0 S0 S0 | ("dp", "cp", "tp"), "None" | (8, 1) | ('dp', 'cp', 'tp'), None | I_{XYZ}, J | [8,1]<=[8] | | 10:12 0:32
8 | SS0:4 SS0:2 S0 | ("tp", "cp", "dp"), "None"||('tp', 'cp', 'dp'), None|I_{ZYX}, J|[8,1]<=[2,2,2]T(2,1,0)||10:12 0:32
8 | S0 S1 S0 | ("dp", "tp"), "cp" | | ('dp', 'tp'), 'cp' | I_{XZ}, J_Y | [4,2]<=[2,2,2]T(0,2,1) | | 12:16 0:16
8 | SS0:2 R S0 | ("tp", "dp"), "None" | | ('tp', 'dp'), None | I_{ZX}, J | [4,1,2]<=[4,2]T(1,0) ..repl | | 12:16 0:32
8 | S0 P R ||| 'dp', None, unreduced={'cp'} | I_X, J] {U_Y | [2,1,2,2]<=[8] ..dims={unreduced, replicated} | | 8:16 0:32
"""


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
def test_the_table_of_examples_in_every_notation(line):
    ranks, code, alias, strategy, spec, book, gspmd, alpa, held = (part.strip() for part in line.split("|"))
    mesh = FOUR if ranks == "4" else CUBE
    shape = (8, 16, 24) if book.count(",") == 2 else MATRIX
    layout = MeshLayout.coded(mesh, code)
    head = 'Layout((2, 4), ("dp", "tp"))' if mesh is FOUR else 'Layout((2, 2, 2), ("dp", "cp", "tp"))'
    axes = ", ".join(f'"{name}"={size}' for name, size in zip(mesh.names, mesh.shape, strict=True))
    gspmd = gspmd.replace("..repl", "last_tile_dim_replicate").replace("..dims", "last_tile_dims")
    dims, _, pending = spec.partition(", unreduced=")  # sdy has other brackets and quotes
    entries = [part.strip("()").replace("None", "") for part in re.findall(r"\(.*?\)|[^, ]+", dims)]
    sdy = f"[{', '.join(f'{{{part}}}' for part in entries)}]{', unreduced=' * bool(pending)}{pending}".replace("'", '"')
    expected = {
        "mindspore.Layout": f"{head}({alias})" if alias else None,
        "mindspore.strategy": f"({strategy},)" if strategy else None,
        "jax.PartitionSpec": f"PartitionSpec({spec})",
        "scaling_book": f"A[{book}{'}' if '{U' in book else ']'}",
        "sdy": f"mesh <[{axes}]>; #sdy.sharding<@mesh, {sdy}>",
        "gspmd": f"{{{gspmd}}}" if gspmd in ("replicated", "unreduced") else f"{{devices={gspmd}}}",
        "alpa": alpa or None,
    }
    forms = {name: form.text for name, form in written(layout, shape).items()}
    assert {name: forms[name] for name in expected} == expected
    assert " ".join(f"{start}:{stop}" for start, stop in layout.slices(shape, 5)) == held
    for name, text in expected.items():
        if text is not None:
            assert notations[name].parse(text, mesh, shape) == layout, name


def test_a_mesh_of_permuted_ranks_has_no_strategy_book_or_alpa_and_uneven_slices_only_pytorch():
    mesh = DeviceMesh((2, 4), ("dp", "tp"), (0, 2, 4, 6, 1, 3, 5, 7))
    forms = written(MeshLayout.coded(mesh, "S0 S1"), MATRIX)
    assert forms["torch"].text == "mesh (2, 4) ('dp', 'tp') of ranks [0, 2, 4, 6, 1, 3, 5, 7]; [Shard(0), Shard(1)]"
    assert forms["gspmd"].text == "{devices=[2,4]<=[8]}"
    missing = {name for name, form in forms.items() if form.text is None}
    assert missing == {"mindspore.strategy", "mindspore.tensor_map", "scaling_book", "alpa"}
    uneven = written(MeshLayout.coded(FOUR, "R S0"), (10, 32))
    assert {name for name, form in uneven.items() if form.text} == {"torch", "spmd_types"}
    assert "dim 0 of (10, 32) split 4 ways" in uneven["jax.PartitionSpec"].reason


def test_a_strategy_that_no_axes_of_the_mesh_count_has_a_device_matrix_of_its_own():
    layout = notations["mindspore.strategy"].parse("((1, 4),)", FOUR, MATRIX)
    assert layout.mesh.shape == (4, 2) and layout.mesh.names == ("dim1", "copies")
    assert [layout.slices(MATRIX, rank)[1] for rank in range(3)] == [(0, 8), (0, 8), (8, 16)]
    assert notations["mindspore.strategy"].print(layout, MATRIX) == "((1, 4),)"


def test_a_strided_shard_that_no_axes_make_is_written_by_pytorch_alone():
    layout = MeshLayout(DeviceMesh((4,), ("tp",)), (StridedShard(0, 2),))
    forms = written(layout, (16,))
    assert {name for name, form in forms.items() if form.text} == {"torch"}
    assert notations["torch"].parse(forms["torch"].text) == layout


@each_of(
    ("notation", "text", "code"),
    ("torch", "[Shard(dim=0), Partial(sum)]", "S0 P"),
    ("torch", "(Shard(-1), _StridedShard(dim=-2, sf=4))", "S1 SS0:4"),
    ("jax.PartitionSpec", "P('dp')", "S0 R"),
    ("jax.PartitionSpec", "jax.sharding.PartitionSpec(('dp',), None, reduced={'tp'})", "S0 R"),
    ("jax.PartitionSpec", "P(None, unreduced=frozenset({'tp'}))", "R P"),
    ("scaling_book", "W[D_Y,F]{U_X}", "P S0"),
    ("mindspore.Layout", "Layout(device_matrix=(2, 4), alias_name=('dp', 'tp'))('dp', None)", "S0 R"),
    ("mindspore.Layout", "Layout((2, 4), ('dp', 'tp'), (0, 1, 2, 3, 4, 5, 6, 7))('dp', 'None')", "S0 R"),
    ("mindspore.strategy", "((2, 1))", "S0 R"),
    ("sdy", '#sdy.sharding<@mesh, [{"dp"}, {}], replicated={"tp"}>', "S0 R"),
    ("sdy", 'sdy.mesh @mesh = <["dp"=2, "tp"=4]>; #sdy.sharding<@mesh, [{}, {"dp"}]>', "S1 R"),
    ("gspmd", "{devices=[1,2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}", "S1 R"),
    ("gspmd", "{devices=[2,1,4]0,1,2,3,7,6,5,4 last_tile_dim_replicate}", None),
    ("spmd_types", "{'dp': I, tp: S(-1)}", "R S1"),
    ("hyper_parallel.placements", 'Layout((2, 4), ("dp", "tp"))(Partial("prod"), Replicate())', "Pproduct R"),
)
def test_other_spellings_of_the_same(notation, text, code):
    if code is None:
        with pytest.raises(LayoutError, match="Axes of mesh"):
            notations[notation].parse(text, FOUR, MATRIX)
    else:
        assert notations[notation].parse(text, FOUR, MATRIX) == MeshLayout.coded(FOUR, code).on(2)


def test_a_text_without_a_shape_has_as_many_dims_as_it_names():
    assert notations["jax.PartitionSpec"].parse("P('dp', None, 'tp')", FOUR) == MeshLayout.coded(FOUR, "S0 S2").on(3)


# ---- there and back ----

SHAPES = [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (2, 1, 4), (3, 2), (2, 3, 2), (2, 2, 2, 2)]


def drawn(rng: np.random.Generator) -> tuple[MeshLayout, tuple[int, ...]]:
    """A mesh, permuted one time in four; dims split by any axes in any order; sizes that divide three times in four."""
    shape = SHAPES[rng.integers(len(SHAPES))]
    size, ndim = math.prod(shape), int(rng.integers(1, 4))
    ranks = tuple(rng.permutation(size).tolist()) if rng.random() < 0.25 else ()
    mesh = DeviceMesh(shape, ("dp", "cp", "tp", "ep")[: len(shape)], ranks)
    op, kinds = str(rng.choice(["sum", "sum", "sum", "avg", "max", "product"])), rng.integers(-2, ndim, len(shape))
    if rng.random() < 0.1:
        choices = [Replicate(), Partial(op), Shard(int(rng.integers(ndim))), StridedShard(int(rng.integers(ndim)), 2)]
        layout = MeshLayout(mesh, tuple(choices[rng.integers(4)] for _ in shape))
    else:
        order = rng.permutation(len(shape))
        dims = [[mesh.names[axis] for axis in order if kinds[axis] == dim] for dim in range(ndim)]
        pending = {name: op for name, kind in zip(mesh.names, kinds, strict=True) if kind == -2 and rng.random() < 0.5}
        layout = MeshLayout.from_dims(mesh, dims, pending)
    parts = size if rng.random() < 0.75 else 1
    return layout, tuple(parts * int(rng.integers(1, 4)) for _ in range(ndim))


def allowed_without_form(layout: MeshLayout, shape: tuple[int, ...]) -> set[str]:
    """The notations that may have no form, by the rules of each, found without the writers."""
    mesh, every = layout.mesh, set(notations)
    try:
        dims = layout.dims(len(shape))
    except LayoutError:
        return every - {"torch"}
    wide = {name for name, size in zip(mesh.names, mesh.shape, strict=True) if size > 1}
    ops = {op for name, op in layout.pending.items() if name in wide}
    none = {"mindspore.strategy"} if ops or not any_strategy(layout, shape) else set()
    if any(n % math.prod(map(mesh.axis_size, names)) for n, names in zip(shape, dims, strict=True)):
        none |= every - {"torch", "spmd_types"}
    if ops:
        none |= {"mindspore.strategy", "mindspore.Layout", "mindspore.tensor_map", "alpa"}
    if ops - {"sum"}:
        none |= {"jax.PartitionSpec", "sdy", "scaling_book", "spmd_types"}
    if not mesh.in_order:
        none |= {"mindspore.tensor_map", "scaling_book", "alpa"}
    if mesh.ndim > 2 or any(list(names) != sorted(names, key=mesh.axis) for names in dims):
        none.add("alpa")
    if any(len(names) > 1 for names in dims):
        none.add("hyper_parallel.placements")
    return none


def any_strategy(layout: MeshLayout, shape: tuple[int, ...]) -> bool:
    """Whether some strategy gives every rank the same slices: all of them are tried."""
    size = layout.mesh.size
    wanted = [layout.slices(shape, rank) for rank in range(size)]
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    for counts in itertools.product(divisors, repeat=len(shape)):
        if size % math.prod(counts) or any(n % count for n, count in zip(shape, counts, strict=True)):
            continue
        steps = [math.prod((*counts[d + 1 :], size // math.prod(counts))) for d in range(len(counts))]
        sizes = [n // count for n, count in zip(shape, counts, strict=True)]
        held = [
            tuple(
                (rank // step % count * part, (rank // step % count + 1) * part)
                for step, count, part in zip(steps, counts, sizes, strict=True)
            )
            for rank in range(size)
        ]
        if held == wanted:
            return True
    return False


@pytest.mark.quick(25)
@pytest.mark.parametrize("seed", range(500))
def test_random_layouts_come_back_from_all_notations_that_can_say_them(seed):
    layout, shape = drawn(np.random.default_rng(3400 + seed))
    none = {name for name, form in written(layout, shape).items() if form.text is None}
    assert none == allowed_without_form(layout, shape), (layout, shape)
    for name, form in written(layout, shape).items():
        if form.text is not None:
            back = notations[name].parse(form.text, layout.mesh, shape, next(iter(layout.pending.values()), "sum"))
            assert back.same_placement(layout, shape), (name, form.text, back)
            assert notations[name].print(back, shape) == form.text


# ---- texts that fit nothing ----


@each_of(
    ("notation", "text", "words"),
    ("torch", "[Shard(0), Shard(0]", r"\[Shard\(0\), Shard\(0 <-- here: '\]'"),
    ("torch", "[Shard(0), Replicated()]", "Shard.dim., Replicate"),
    ("torch", "[Shard(0)]", "1 placements on a mesh of 2 axes"),
    ("torch", "[Shard(2), Replicate()]", r"Shard\(2\) of a tensor of 2 dims"),
    ("torch", "[Shard(0), __import__('os').system('true')]", "<-- here"),
    ("torch", "mesh (900000000, 900) ('dp', 'tp'); [Shard(0), Shard(0)]", f"1 to {MOST_RANKS} ranks"),
    ("mindspore.strategy", "((3, 1),)", "product divides the 8 ranks"),
    ("mindspore.strategy", "((2, 4), (4, 1))", "Slices per dim of one tensor"),
    ("mindspore.Layout", 'Layout((2, 4), ("dp", "tp"))("dp", "dp")', "'dp' is used twice"),
    ("mindspore.Layout", 'Layout((2, 4), ("dp", "tp"))("dp", "mp")', "no axis 'mp'"),
    ("mindspore.Layout", 'Layout((2, 4), ("dp", "interleaved_parallel"))("dp", "None")', "no data|one rank comp"),
    ("mindspore.Layout", 'Layout((2, 4), ("dp", "tp"))("dp")', "2 entries, one per dim"),
    ("jax.PartitionSpec", "P('dp', 'dp')", "used twice"),
    ("jax.PartitionSpec", "P('dp', None, None)", "At most 2 entries"),
    ("jax.PartitionSpec", "P(P.UNCONSTRAINED, None)", "the compiler chooses"),
    ("jax.PartitionSpec", "P('dp', unreduced={'dp'})", "used twice"),
    ("jax.PartitionSpec", "P('dp'); import os", "<-- here: ';"),
    ("sdy", '#sdy.sharding<@mesh, [{"dp", ?}, {}]>', "may be split further"),
    ("sdy", '#sdy.sharding<@mesh, [{"dp":(1)2}, {}]>', "in two first"),
    ("sdy", '#sdy.sharding<@mesh, [{"dp"}p1, {}]>', "No priority"),
    ("gspmd", "{devices=[4,2]<=[8]}", "in two first"),
    ("gspmd", "{devices=[2,2]<=[4]}", "whose product is 8"),
    ("gspmd", "{devices=[2,4]<=[2,4]T(0,0)}", "an order of its axes"),
    ("gspmd", "{manual}", "by hand"),
    ("scaling_book", "A[I_Z, J]", "letters of XY"),
    ("alpa", "S10R", "S0, S1, S01"),
    ("alpa", "S0R1", "R, S0"),
    ("spmd_types", "{dp: S(0), tp: S(0)}", "S of a dim once"),
    ("spmd_types", "{dp: V, tp: R}", "V alone"),
    ("spmd_types", "{dp: V, tp: R}; PartitionSpec('tp')", "axes that are V"),
    ("mindspore.Layout", 'Layout((2, 4), ("dp", "tp"))("dp", "tp", dim="tp")', "An axis, a tuple of axes"),
    ("mindspore.Layout", 'Layout(device_matrix=(2, 4), ("dp", "tp"))("dp", "tp")', "without a name first"),
    ("jax.PartitionSpec", "Spec('dp')", r"PartitionSpec\(\.\.\.\) or P"),
    ("jax.PartitionSpec", "P", r"PartitionSpec\(\.\.\.\) or P"),
    ("spmd_types", "{dp: R}", "Every axis"),
    ("hyper_parallel.placements", 'Layout((2, 4), ("dp", "tp"))(Shard(0), Shard(0))', "refuse a dim split by two"),
    ("hyper_parallel.alias", 'Layout((2, 4), ("dp", "tp"))("dp", "None"); set_partial_by_dev_axis("tp", "x")', "sum"),
    ("mindspore.tensor_map", "device_matrix (2, 4), tensor_map (2, -1)", "from 0 to 1"),
)
def test_a_text_that_does_not_fit_says_where_and_what_would(notation, text, words):
    with pytest.raises(LayoutError, match=words):
        notations[notation].parse(text, FOUR, MATRIX)


@pytest.mark.parametrize("name", notations)
def test_bytes_and_texts_too_long_or_too_deep_are_refused(name):
    with pytest.raises(LayoutTypeError):
        notations[name].parse(b"{replicated}", FOUR)
    with pytest.raises(LayoutError, match="characters"):
        notations[name].parse("(" * (LONGEST + 1), FOUR)
    with pytest.raises(LayoutError):
        notations[name].parse("(" * LONGEST, FOUR)
    with pytest.raises(LayoutTypeError):
        notations[name].print("S0 R", MATRIX)


@pytest.mark.quick(2)
@pytest.mark.parametrize("seed", range(40))
def test_texts_with_mistakes_give_a_layout_or_a_layout_error(seed):
    rng = np.random.default_rng(seed)
    signs = "()[]{}<>=,:;_?@#'\"0123456789dptSRPX \\\n\u0663\u00e9"
    for _ in range(200):
        layout, shape = drawn(rng)
        name, form = list(written(layout, shape).items())[rng.integers(len(notations))]
        text = list(form.text or "P('dp')")
        for _ in range(rng.integers(1, 4)):
            at = int(rng.integers(len(text) + 1))
            text[at : at + int(rng.integers(2))] = signs[rng.integers(len(signs))] * int(rng.integers(2))
        try:
            read = notations[name].parse("".join(text), layout.mesh, shape)
        except LayoutError:
            continue
        assert isinstance(read, MeshLayout)
