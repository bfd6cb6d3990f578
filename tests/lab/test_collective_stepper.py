"""The Collective Stepper without a browser: frames are what the sends say, counters meet the formula."""

from __future__ import annotations

import json
import re

import pytest

from parallel_lab.base.cluster import get_cluster
from parallel_lab.base.errors import ArgumentError
from parallel_lab.lab.collectives.algorithms import algorithm as algorithms
from parallel_lab.lab.collectives.algorithms.rounds import KINDS, REDUCING
from parallel_lab.lab.collectives.algorithms.table import algorithm_names
from parallel_lab.lab.collectives.model import RANKS, CollectiveStepper
from tests.crossed import each_of

ALL = [(kind, name, n) for kind in KINDS for n in RANKS for name in algorithm_names(kind, n)]
every_story = pytest.mark.parametrize(("kind", "name", "ranks"), ALL, ids=lambda x: str(x))


def cells(frame, chunk):
    return [card["cells"][chunk] for card in frame["cards"]]


@pytest.mark.quick(20)
@every_story
def test_counters_meet_the_formula_at_the_end_and_no_earlier_than_the_sends_say(kind, name, ranks):
    stepper = CollectiveStepper(kind, name, ranks)
    last = 0
    for at in range(stepper.rounds + 1):
        stepper.to(at)
        shot = stepper.snapshot()
        assert shot["at"] == at and shot["counters"][0]["now"] == at
        frame = shot["frames"][at]
        sent = [
            sum(m["bytes"] for f in shot["frames"][: at + 1] for m in f["messages"] if m["source"] == r)
            for r in range(ranks)
        ]
        assert frame["sent"] == sent and shot["counters"][2]["now"] == max(sent)
        assert shot["counters"][3]["now"] >= last
        last = shot["counters"][3]["now"]
    assert [row["now"] for row in shot["counters"]] == [row["end"] for row in shot["counters"]]
    assert all(row["met"] for row in shot["counters"]), shot["counters"]
    assert max(shot["frames"][-1]["sent"]) == shot["limit_bytes"] == shot["counters"][2]["formula"]
    assert shot["frames"][-1]["met"] == shot["frames"][-1]["wanted"]
    assert "Done: " in shot["status"]


@pytest.mark.quick(12)
@every_story
def test_what_arrives_is_marked_on_the_card_it_came_to_and_nowhere_else(kind, name, ranks):
    shot = CollectiveStepper(kind, name, ranks).snapshot()
    for frame in shot["frames"]:
        said = {(m["destination"], c, m["source"]) for m in frame["messages"] for c in m["chunks"]}
        places = [(card["rank"], c, cell) for card in frame["cards"] for c, cell in enumerate(card["cells"]) if cell]
        assert said == {(rank, c, source) for rank, c, cell in places for source in cell["from"]}


def test_a_partial_sum_says_who_is_in_it_and_is_passed_on():
    """Ring of 4: chunk 2 starts its way at rank 3, 0, 1 and is complete on rank 2 after three rounds."""
    shot = CollectiveStepper("all_reduce", "ring", 4).snapshot()
    ways = [[3], [0, 3], [0, 1, 3], [0, 1, 2, 3]]
    for at, (rank, who) in enumerate(zip((3, 0, 1, 2), ways, strict=True)):
        cell = cells(shot["frames"][at], 2)[rank]
        assert cell["who"] == who and cell["state"] == ("done" if at == 3 else "partial")
    # rank 2 has its own addend still
    assert [c["state"] for c in cells(shot["frames"][2], 2)] == ["spent", "partial", "partial", "spent"]
    assert [c["state"] for c in cells(shot["frames"][0], 2)] == ["partial"] * 4
    assert cells(shot["frames"][2], 2)[1]["sum"] == "(v0 + v3) + v1".replace("(", "").replace(")", "")


def test_stepping_stays_within_the_rounds():
    stepper = CollectiveStepper("all_reduce", "ring", 3)
    stepper.back()
    assert stepper.at == 0
    for _ in range(9):
        stepper.next()
    assert stepper.at == stepper.rounds == 4
    stepper.back()
    assert stepper.at == 3
    stepper.reset()
    assert stepper.at == 0


def test_choices_start_the_story_anew_and_keep_what_can_be_kept():
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    stepper.to(3)
    stepper.follow(2)
    stepper.choose_ranks(8)
    shot = stepper.snapshot()
    assert (shot["ranks"]["value"], shot["algorithm"]["value"], shot["at"], shot["follow"]) == (8, "ring", 0, None)
    stepper.choose_kind("broadcast")
    assert stepper.snapshot()["title"] == "broadcast by ring, 8 ranks"
    stepper.choose_kind("all_to_all")
    stepper.choose_algorithm("bruck")
    assert stepper.rounds == 3
    stepper.to(2)
    stepper.choose_elements(64)
    assert stepper.at == 2 and stepper.size_bytes == 256


def test_an_algorithm_that_cannot_take_the_ranks_gives_way():
    stepper = CollectiveStepper("all_gather", "recursive_doubling", 8)
    assert "recursive_doubling" in stepper.snapshot()["algorithm"]["choices"]
    stepper.choose_ranks(6)
    assert stepper.algorithm.name == "ring"
    assert "recursive_doubling" not in stepper.snapshot()["algorithm"]["choices"]
    with pytest.raises(ArgumentError, match="'bruck' needs as few rounds"):
        stepper.choose_algorithm("recursive_doubling")
    assert stepper.algorithm.name == "ring"


def test_listeners_hear_of_changes_until_they_leave():
    stepper, heard = CollectiveStepper(), []
    leave = stepper.on_change(lambda: heard.append(stepper.at))
    stepper.next()
    stepper.to(1)  # where it is already
    stepper.follow(0)
    leave()
    stepper.next()
    assert heard == [1, 1]


def test_chunks_are_equal_and_padding_is_shown():
    stepper = CollectiveStepper("all_reduce", "ring", 6, elements=64)
    assert stepper.elements == 66 and stepper.size_bytes == 264
    shot = stepper.snapshot()
    assert shot["elements"]["value"] == 64 and shot["elements"]["padded"] == 66 and shot["chunk_bytes"] * 6 == 264
    assert shot["counters"][2]["formula"] == 2 * 5 * 44


def test_times_are_those_of_the_cluster_and_with_contention_there_is_no_closed_form():
    stepper = CollectiveStepper("all_reduce", "ring", 8, elements=2048, cluster="gpu_node")
    link, gamma, size = get_cluster("gpu_node").link, get_cluster("gpu_node").device.gamma_s_per_byte, 8192
    want = 14 * link.alpha_s + 14 / 8 * size * link.beta_s_per_byte + 7 / 8 * size * gamma
    row = stepper.snapshot()["counters"][3]
    assert row["end"] == pytest.approx(want) and row["formula"] == pytest.approx(want)
    stepper.choose_contention("hops")
    stepper.choose_algorithm("recursive_doubling")
    row = stepper.snapshot()["counters"][3]
    assert row["formula"] is None
    assert row["end"] == pytest.approx(3 * link.alpha_s + 7 * size * link.beta_s_per_byte + 3 * size * gamma)


def test_the_comparison_names_the_fastest():
    cluster = get_cluster("laptop")
    machine = {"gamma_s_per_byte": cluster.device.gamma_s_per_byte, "contention": "hops"}
    for elements in (64, 16384, 16777216):
        stepper = CollectiveStepper("all_reduce", "ring", 8, elements, contention="hops")
        times = {
            name: algorithms.algorithm("all_reduce", name, 8).time_s(4 * elements, cluster.link, **machine)
            for name in algorithm_names("all_reduce", 8)
        }
        table = stepper.snapshot()["compare"]
        assert min(times, key=times.get) in [row["name"] for row in table if row["fastest"]]
        assert [row["name"] for row in table if row["shown"]] == ["ring"]


# ---- a list of one's own ----

WRONG = [[(0, 1, 0, "add"), (1, 0, 1, "add")], [(1, 0, 0, "add")]]


def test_a_list_that_goes_wrong_is_shown_until_there():
    stepper = CollectiveStepper(algorithm=algorithms.custom_algorithm("all_reduce", WRONG, ranks=2))
    assert stepper.rounds == 1
    stepper.next()
    shot = stepper.snapshot()
    assert shot["fault"] == "Round 2: rank 0 adds v0 to chunk 0 a second time."
    assert "Here it goes wrong. Round 2: rank 0 adds v0" in shot["status"]
    assert all(row["formula"] is None for row in shot["counters"])
    assert (
        "This list of sends is not an all_reduce. Round 2: rank 0 adds v0 to chunk 0 a second time."
        in stepper.to_text()
    )
    own = next(row for row in shot["compare"] if row["name"] == "my own")
    assert own["wrong"] and own["shown"] and not own["fastest"]


def test_a_right_one_can_be_compared_and_found_again():
    mine = algorithms.custom_algorithm(
        "all_reduce", algorithms.algorithm("all_reduce", "tree", 4).rounds, ranks=4, name="my tree"
    )
    stepper = CollectiveStepper("all_reduce", "ring", 4)
    stepper.show(mine)
    stepper.choose_algorithm("ring")
    assert "my tree" in stepper.snapshot()["algorithm"]["choices"]
    stepper.choose_algorithm("my tree")
    shot = stepper.snapshot()
    rows = {row["name"]: row for row in shot["compare"]}
    assert rows["my tree"]["time_s"] == rows["tree"]["time_s"] and rows["my tree"]["shown"] and shot["fault"] is None
    stepper.choose_ranks(8)
    assert "my tree" not in stepper.snapshot()["algorithm"]["choices"]


# ---- text and page ----


@pytest.mark.quick(20)
@every_story
def test_the_text_names_every_message_and_every_rank(kind, name, ranks):
    stepper = CollectiveStepper(kind, name, ranks)
    stepper.to(min(2, stepper.rounds))
    shot, text = stepper.snapshot(), stepper.to_text()
    frame = shot["frames"][shot["at"]]
    for m in frame["messages"]:
        assert f"message {m['source']} -> {m['destination']}: " in text
    for card in frame["cards"]:
        assert f"rank {card['rank']}: {card['text']}" in text
    assert text.count(" met") == 4 and "NOT MET" not in text
    assert all(f["text"] in text for f in shot["frames"])
    assert "partial sum" not in text or kind in REDUCING or "sums" in text
    json.dumps(shot, allow_nan=False)


@each_of(
    ("kind", "name", "ranks", "number", "sentence"),
    ("all_reduce", "ring", 4, 1, "every rank sends 1 chunk (16 KiB) to its right neighbour, which adds it."),
    ("all_reduce", "ring", 4, 4, "every rank sends 1 chunk (16 KiB) to its right neighbour."),
    ("all_reduce", "recursive_doubling", 8, 3, "partners 4 apart swap 8 chunks (64 KiB) and add."),
    ("all_reduce", "direct", 4, 1, "every rank sends 1 chunk (16 KiB) to every other, which adds it."),
    ("all_reduce", "tree", 4, 1, "1→0, 3→2: 4 chunks (64 KiB) each, added."),
    ("all_gather", "bruck", 8, 3, "partners 4 apart swap 4 chunks (32 KiB)"),
    ("broadcast", "direct", 4, 1, "rank 0 sends 4 chunks (64 KiB) to each other rank."),
    ("gather", "direct", 4, 1, "rank 0 receives 1 chunk (16 KiB) from each other rank."),
    ("all_to_all", "pairwise", 5, 2, "every rank sends 1 chunk (2.56 KiB) to the rank 2 places on."),
)
def test_a_round_is_one_sentence(kind, name, ranks, number, sentence):
    stepper = CollectiveStepper(kind, name, ranks)
    stepper.to(number)
    assert re.search(re.escape(f": {sentence}"), stepper.snapshot()["status"])
