"""Which messages share a bucket: MindSpore's recorded groups, those of its own tests, the rules told another way."""

import random
from itertools import groupby

import pytest

from parallel_lab.base.errors import ContextConflictError, ContextError, ContextTypeError
from parallel_lab.base.settings import fusion_rules
from tests.crossed import each_of
from tests.refusals import refused

MB = 1024 * 1024


def lengths(groups):
    """Sizes of the groups, which must come one after the other and be numbered from 0."""
    runs = [(number, len(list(run))) for number, run in groupby(groups)]
    assert [number for number, _ in runs] == list(range(len(runs)))
    return [length for _, length in runs]


# ---- by position ----


@each_of(
    ("count", "indices", "inclusive", "first_n"),
    # inclusive: recorded with MindSpore 2.10, DistributedGradReducer
    (40, [20, 35], [21, 15, 4], [20, 15, 5]),
    (10, [0], [1, 9], [10]),
    (10, [9], [10], [9, 1]),
    (10, [0, 5], [1, 5, 4], [5, 5]),
    (10, [10], [10], [10]),
    (10, [3, 12], [4, 6], [3, 7]),
    (5, [1, 2, 3], [2, 1, 1, 1], [1, 1, 1, 2]),
)
def test_an_index_is_the_last_of_its_group_or_in_the_seeds_wording_counts_what_comes_before(
    count, indices, inclusive, first_n
):
    """Seed 000: the first 20, the 20th to 35th, the remaining; nobody comes before position 0."""
    assert lengths(fusion_rules.index_groups(count, indices)) == inclusive
    assert lengths(fusion_rules.index_groups(count, indices, "first_n")) == first_n


@pytest.mark.parametrize("seed", range(20))
def test_index_groups_follow_the_reducers_walk(seed):
    """As told of DistributedGradReducer: a parameter takes the present number, which then rises at a given position."""
    rng = random.Random(seed)
    count = rng.randrange(1, 60)
    indices = sorted(rng.sample(range(70), rng.randrange(1, 9)))
    expected, number, pointer = [], 0, 0
    for position in range(count):
        expected.append(number)
        if pointer < len(indices) and indices[pointer] <= position:
            number, pointer = number + 1, pointer + 1
    assert fusion_rules.index_groups(count, indices) == tuple(expected)


def test_no_messages_make_no_groups():
    assert (
        fusion_rules.index_groups(0, [3])
        == ()
        == fusion_rules.size_groups_by_elements([], 1)
        == fusion_rules.size_groups_by_bytes([], 1)
    )
    assert fusion_rules.cost_model_groups_by_times([], 2, 0.5) == () == fusion_rules.distances_from_loss([], [])
    assert fusion_rules.cost_model_groups(("hiding", 0.1, 0.05, 1e-6, 1e-6), [], []) == ()


@pytest.mark.parametrize("indices", [[], [3, 3], [5, 2], [-1], [True], [1.0]], ids=str)
def test_indices_that_comm_fusion_refuses_are_refused(indices):
    with pytest.raises(ContextError, match="indices"):
        fusion_rules.index_groups(10, indices)


def test_wording_and_count_are_checked():
    with pytest.raises(ContextError, match="inclusive"):
        fusion_rules.index_groups(10, [1], "exclusive")
    with pytest.raises(ContextError, match="inclusive"):
        fusion_rules.indices_of((0, 1), "exclusive")
    with pytest.raises(ContextError, match="-1 messages"):
        fusion_rules.index_groups(-1, [1])


@pytest.mark.parametrize("wording", ["inclusive", "first_n"])
@pytest.mark.parametrize("seed", range(10))
def test_an_index_list_is_read_off_groups(seed, wording):
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, 30), rng.randrange(1, 9)))
    groups = [sum(cut <= position for cut in cuts) for position in range(30)]
    assert fusion_rules.index_groups(30, fusion_rules.indices_of(groups, wording), wording) == tuple(groups)


def test_groups_that_come_back_have_no_index_list():
    assert fusion_rules.indices_of((0, 1, 0)) is None
    assert fusion_rules.indices_of((4, 4, 4)) == () == fusion_rules.indices_of(())


def test_buckets_are_the_positions_of_groups():
    assert fusion_rules.buckets_of((1, 0, 1, 5)) == ((0, 2), (1,), (3,))


# ---- by size, semi_auto_parallel and auto_parallel ----


@each_of(
    ("sizes", "threshold_mb", "ids"),
    # recorded with MindSpore 2.10, w1 ... wn in the order of the network; its ids begin with 1
    ([262144] * 6, 1, [1, 2, 3, 4, 5, 6]),
    ([262144] * 6, 2, [1, 2, 2, 3, 3, 4]),
    ([262144] * 6, 3, [1, 1, 2, 2, 2, 3]),
    ([131072, 262144, 131072, 32768, 65536, 32768], 1, [1, 2, 2, 2, 2, 3]),
    ([524288, 32768, 2048, 2048], 1, [1, 2, 2, 2]),
    ([64 * 512] * 6, 1, [1] * 6),  # all_gathers of the optimizer parallel: sizes of slices
)
def test_recorded_groups_by_size(sizes, threshold_mb, ids):
    assert [group + 1 for group in fusion_rules.size_groups_by_elements(sizes, threshold_mb)] == ids


@pytest.mark.parametrize("seed", range(20))
def test_size_groups_by_elements_leave_the_one_that_opens_a_group_uncounted(seed):
    """Told of groups: what is counted of one is strictly below the threshold; with the next message it would not be."""
    rng = random.Random(seed)
    sizes = [rng.choice((1000, 60_000, 262_144, 300_000, 900_000)) for _ in range(rng.randrange(2, 40))]
    threshold_mb = rng.randrange(1, 5)
    limit = threshold_mb * fusion_rules.ELEMENTS_PER_MB
    buckets = fusion_rules.buckets_of(fusion_rules.size_groups_by_elements(sizes, threshold_mb))
    assert [position for bucket in buckets for position in bucket] == list(range(len(sizes)))
    for number, bucket in enumerate(buckets):
        counted = [sizes[position] for position in (bucket if number == 0 else bucket[1:])]
        assert sum(counted) < limit or (number == 0 and len(bucket) == 1)
        if number + 1 < len(buckets):
            assert sum(counted) + sizes[bucket[-1] + 1] >= limit


@pytest.mark.parametrize("threshold_mb", [0, -1])
def test_a_threshold_that_is_not_positive_ends_the_compilation(threshold_mb):
    with pytest.raises(RuntimeError, match="above 0"):
        fusion_rules.size_groups_by_elements([1], threshold_mb)
    with pytest.raises(ContextConflictError):
        fusion_rules.size_groups_by_elements([], threshold_mb)


# ---- by size, data_parallel ----


@each_of(
    ("sizes", "threshold_mb", "expected"),
    ([MB] * 5, 1, [2, 2, 1]),  # 1 MB is not above 1 MB
    *(([MB + 1] * 3, 1, [1, 1, 1]), ([MB // 2] * 7, 1, [3, 3, 1]), ([10 * MB, 1, 1], 8, [1, 2])),
    *(([MB] * 5, 64, [5]), ([MB] * 3, 0, [1, 1, 1])),
)
def test_in_data_parallel_a_group_ends_with_the_message_that_gets_above_the_threshold(sizes, threshold_mb, expected):
    assert lengths(fusion_rules.size_groups_by_bytes(sizes, threshold_mb)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_size_groups_by_bytes_pass_the_threshold_with_their_last(seed):
    rng = random.Random(seed)
    sizes = [rng.randrange(0, 2 * MB) for _ in range(rng.randrange(2, 40))]
    threshold_mb = rng.randrange(1, 5)
    buckets = fusion_rules.buckets_of(fusion_rules.size_groups_by_bytes(sizes, threshold_mb))
    assert [position for bucket in buckets for position in bucket] == list(range(len(sizes)))
    for number, bucket in enumerate(buckets):
        assert sum(sizes[p] for p in bucket[:-1]) <= threshold_mb * MB
        assert sum(sizes[p] for p in bucket) > threshold_mb * MB or number == len(buckets) - 1


def test_sizes_are_checked():
    with pytest.raises(ContextError, match="message 1 has -1 bytes"):
        fusion_rules.size_groups_by_bytes([1, -1], 1)
    with pytest.raises(ContextError, match="message 0 has -5 elements"):
        fusion_rules.size_groups_by_elements([-5], 1)
    with pytest.raises(ContextError, match="At least 0"):
        fusion_rules.size_groups_by_bytes([1], -1)


# ---- by the cost model: the nets of MindSpore's test_allreduce_fusion.py, batch 32 on each of 4 devices, layers 128 x
# 128, data parallel ----

ROWS, WIDTH, FLOAT = 32, 128, 4
MATMUL = (ROWS * WIDTH + WIDTH * WIDTH) * FLOAT  # bytes of the two operands' slices
BIAS_ADD = (ROWS * WIDTH + WIDTH) * FLOAT
RELU = ROWS * WIDTH * FLOAT
ADD = 2 * ROWS * WIDTH * FLOAT
LOSS = 2 * ROWS * WIDTH * FLOAT  # logits and one-hot labels
WEIGHT, BIAS = WIDTH * WIDTH, WIDTH  # elements


def two_backbones(first, second):
    """(names, distances, elements) of two added chains' parameters: each (layers, with bias, with relu)."""
    costs, readers, parameters = [], [], []
    heads = []
    for backbone, (layers, bias, relu) in enumerate((first, second), start=1):
        for layer in range(1, layers + 1):
            name = f"b{backbone}.fc{layer}"
            ops = [(MATMUL, f"{name}.w", WEIGHT)] + [(BIAS_ADD, f"{name}.bias", BIAS)] * bias + [(RELU, "", 0)] * relu
            for cost, parameter, elements in ops:
                costs.append(cost)
                readers.append([len(costs)])
                if parameter:
                    parameters.append((parameter, len(costs) - 1, elements))
        heads.append(len(costs) - 1)
    costs += [ADD, LOSS]
    for head in heads:
        readers[head] = [len(costs) - 2]
    readers += [[len(costs) - 1], []]
    distances = fusion_rules.distances_from_loss(costs, readers)
    return (
        [p for p, _, _ in parameters],
        [distances[op] for _, op, _ in parameters],
        [elements for _, _, elements in parameters],
    )


def by_id(names, groups):
    found = {}
    for name, group in zip(names, groups, strict=True):
        found.setdefault(group + 1, set()).add(name)  # MindSpore's ids begin with 1
    return found


def layers(backbone, *numbers):
    return {f"b{backbone}.fc{n}.w" for n in numbers}


FOUR, EIGHT = (4, False, False), (8, False, False)


@each_of(
    ("backbones", "setting", "ids"),
    (
        (FOUR, EIGHT),
        ("times", 2, 0.5),
        {2: layers(2, 8, 7, 6) | layers(1, 4, 3, 2), 1: layers(2, 5, 4, 3, 2, 1) | layers(1, 1)},
    ),
    (  # bias and ReLU on one side
        ((4, True, True), (8, False, True)),
        ("times", 3, 0.3333333),
        {
            3: layers(2, 8, 7) | {"b1.fc4.bias", "b1.fc4.w", "b1.fc3.bias"},
            2: layers(2, 6, 5, 4) | {"b1.fc3.w", "b1.fc2.bias", "b1.fc2.w", "b1.fc1.bias", "b1.fc1.w"},
            1: layers(2, 3, 2, 1),
        },
    ),
    (
        (EIGHT, EIGHT),
        ("times", 2, 0.5),
        {2: layers(1, 8, 7, 6) | layers(2, 8, 7, 6), 1: layers(1, 5, 4, 3, 2, 1) | layers(2, 5, 4, 3, 2, 1)},
    ),
    (
        (EIGHT, EIGHT),
        ("hiding", 0.1, 0.05, 0.000001, 0.0000015),
        {
            3: layers(1, 8, 7, 6, 5) | layers(2, 8, 7, 6, 5),
            2: layers(1, 4, 3) | layers(2, 4, 3),
            1: layers(1, 2, 1) | layers(2, 2, 1),
        },
    ),
)
def test_groups_by_the_cost_model_are_those_that_mindspores_tests_state(backbones, setting, ids):
    names, distances, elements = two_backbones(*backbones)
    assert by_id(names, fusion_rules.cost_model_groups(setting, distances, elements)) == ids


def test_where_nothing_can_be_hidden_the_next_group_takes_the_rest():
    """The first group covers no distance worth a message: two equals are all it has."""
    times = {"tail_time_s": 2.0, "inherent_time_s": 1.0, "time_s_per_element": 0.05, "computation_s_per_unit": 1e-3}
    assert fusion_rules.cost_model_groups_by_hiding([3, 3, 2, 1], [10, 10, 10, 10], **times) == (0, 0, 1, 1)


@pytest.mark.parametrize("times", [2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_the_furthest_interval_is_the_tail_and_the_others_are_equal(times, seed):
    rng = random.Random(seed)
    distances = [rng.uniform(0.1, 100.0) for _ in range(50)]
    tail = rng.choice((0.0, 0.1, 0.5, 0.9))
    far = max(distances)
    for distance, group in zip(distances, fusion_rules.cost_model_groups_by_times(distances, times, tail), strict=True):
        if group == 0:
            assert distance > far * (1 - tail) * (1 - 1e-12)
        else:
            width = far * (1 - tail) / (times - 1)
            interval = times - 1 - group  # counted from the loss
            assert width * interval * (1 - 1e-12) < distance <= width * (interval + 1) * (1 + 1e-12)


def test_a_shortcut_does_not_bring_a_parameter_nearer():
    """x -> a -> b -> sum, and x -> sum: the longest way to the loss counts."""
    assert fusion_rules.distances_from_loss([1.0, 2.0, 4.0, 8.0], [[1, 3], [2], [3], []]) == (15.0, 14.0, 12.0, 8.0)


@pytest.mark.parametrize("readers", [[[0], []], [[1], [0]], [[2], []]], ids=str)
def test_an_operator_is_read_by_later_ones(readers):
    with pytest.raises(ContextError, match="is read by"):
        fusion_rules.distances_from_loss([1.0, 1.0], readers)


test_values_out_of_range_are_refused = refused(
    lambda: fusion_rules.cost_model_groups_by_times([1.0], 1, 0.5),
    lambda: fusion_rules.cost_model_groups_by_times([1.0], 2.0, 0.5),
    lambda: fusion_rules.cost_model_groups_by_times([1.0], 2, 1.0),
    lambda: fusion_rules.cost_model_groups_by_times([0.0], 2, 0.5),
    lambda: fusion_rules.cost_model_groups(("hiding", 0.1, 0.1, 1.0, 1.0), [1.0], [1]),
    lambda: fusion_rules.cost_model_groups(("hiding", 0.1, 0.05, 0.0, 1.0), [1.0], [1]),
    lambda: fusion_rules.cost_model_groups(("hiding", 0.1, 0.05, 1.0, 1.0), [1.0], [1, 2]),
    error=ContextError,
)


def test_a_wrong_type_is_also_a_type_error():
    with pytest.raises(ContextTypeError):
        fusion_rules.index_groups(3, ["1"])
