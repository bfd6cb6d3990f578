"""What goes round a ring has a type: slices that were handed on, sums that are whole where they began."""

from dataclasses import replace

import pytest

from parallel_lab.graph.instr import attr_pairs
from parallel_lab.graph.ring_types import through_ring, turned
from parallel_lab.graph.type_rules import Refused
from parallel_lab.graph.value_types import TypesError, check_types, infer_types
from parallel_lab.lab.context.run import compiled
from parallel_lab.lab.context.ways import MASKS, WAYS
from parallel_lab.lab.hunt.planted import Training, differences
from parallel_lab.lab.shared.mistakes import with_mistake
from tests.crossed import each_of

# ---- rules ----


@pytest.mark.parametrize("code", ["R", "P", "C", "V"])
def test_a_rotation_keeps_copies_and_addends(code):
    """Which rank holds which copy or addend makes no difference."""
    assert turned(code, 1, 4) == code


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_slices_are_where_they_began_after_a_whole_turn(ranks):
    codes = ["S1"]
    for _ in range(ranks):
        codes.append(turned(codes[-1], 1, ranks))
    assert codes[-1] == "S1" and len(set(codes)) == ranks and not any(c.startswith("S") for c in codes[1:-1])


@pytest.mark.parametrize(("ranks", "last"), [(2, 1), (3, 2), (4, 3), (4, 1), (8, 5)])
def test_both_sums_of_a_ring_are_whole_at_its_end(ranks, last):
    """As `ring_back` does it: in turn t a rank has the keys of the rank t before it, and adds its part to their sum."""
    key, of_queries, of_keys = "S1", (), None
    for turn in range(last + 1):
        ins = ("S1", "S1", "S1", "S1", key, key, *of_queries)
        made, part, other = through_ring("attention_block_grad", ins, ranks, last)
        assert part == other
        of_keys = part if of_keys is None else through_ring("added_to", (of_keys, part), ranks, last)[0]
        of_keys = turned(of_keys, 1 if turn < last else ranks - last, ranks)
        assert (made == "S1") == (turn == last) and (of_keys == "S1") == (turn == last)
        key, of_queries = turned(key, 1, ranks), (made,)


@each_of(
    ("op", "ins", "says"),
    ("attention_block", ("S1", "T1.1", "T1.1", "A1.0.0-1.3", "A1.0.0-1.3"), "one slice twice"),
    ("added_to", ("B1.1.1.3", "B1.2.0.3"), "slices of different ranks"),
    ("added_to", ("B1.1.1.3", "B1.1.1.3"), "part of one rank twice"),
    ("added_to", ("B1.1.1.3", "S1"), "to something else"),
)
def test_a_sum_takes_every_turn_once(op, ins, says):
    with pytest.raises(Refused, match=says):
        through_ring(op, ins, 4, 3)


# ---- plans ----

RINGS = [("contiguous", 4, "causal"), ("hybrid", 4, "causal")]
RINGS += [
    (way, ranks, mask) for way in WAYS for ranks in (2, 4, 8) for mask in MASKS if (way, ranks, mask) not in RINGS
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("way", "ranks", "mask"), RINGS)
def test_everything_in_a_ring_has_a_type(way, ranks, mask):
    types = check_types(compiled((way, ranks, mask, max(ranks, 4)), True)[0])
    assert not [name for name, codes in types.items() if "?" in codes]


def part_left_out(plan, instr):
    if not (instr.op == "added_to" and instr.ins[0].endswith("part.1_4.came")):
        return instr
    attrs = attr_pairs({"shape": plan.value(instr.ins[0]).slice_shape})
    return replace(instr, kind="reshape", op="", ins=instr.ins[:1], attrs=attrs)


def part_added_twice(plan, instr):
    return replace(instr, ins=(instr.ins[0],) * 2) if instr.op == "added_to" else instr


def keys_not_handed_on(plan, instr):
    if instr.op != "attention_block" or instr.attr("turn") != 2:
        return instr
    return replace(instr, ins=tuple(name.replace("came_1", "came") for name in instr.ins))


def handed_on(instr, places):
    at = dict(instr.attrs)["route"]
    return replace(instr, attrs=attr_pairs({**dict(instr.attrs), "route": (*at[:5], places, at[6])}))


def sum_not_brought_home(plan, instr):
    home = instr.kind in ("start", "wait") and instr.ins[0].startswith("blocks.0.attention.attention.part_4")
    return handed_on(instr, 2) if home else instr


MISTAKES = {  # kind, and what is said
    part_left_out: ("missing", "makes a sum that is still on its way round the ring"),
    part_added_twice: ("doubled", "adds the part of one rank twice"),
    keys_not_handed_on: ("doubled", "counts the keys of one slice twice"),
    sum_not_brought_home: ("missing", "makes a sum that is still on its way round the ring"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_ring_is_named(mistake):
    """Each changes a gradient, and is named at an instruction of the attention."""
    plan = compiled(("contiguous", 4, "full", 4), True)[0]
    wrong = with_mistake(plan, lambda instr: mistake(plan, instr))
    training = Training.drawn(plan)
    assert differences(training.right[1], training.run(wrong)[1])
    kind, says = MISTAKES[mistake]
    with pytest.raises(TypesError, match=says) as named:
        check_types(wrong)
    found = infer_types(wrong).faults[0]
    assert found.kind == kind and found.instr.name == "blocks.0.attention.attention" and found.axis == 0
    assert "Every rank's part is added once" in str(named.value)


def test_along_the_other_axis_of_a_ring_nothing_happens():
    """Heads are split over pairs of ranks, slices of the sequence go round among two pairs."""
    plan = compiled(("hybrid", 4, "causal", 4), True)[0]
    types = infer_types(plan)
    ring = next(i for _, i in plan.instructions("forward") if i.kind == "start" and i.message == "exchange")
    before, after = (types[name] for name in (ring.ins[0], ring.out))
    assert [code[0] for code in before] == ["S", "S"] and [code[0] for code in after] == ["S", "T"]
    assert before[0] == after[0]
