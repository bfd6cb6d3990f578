"""JSON from strangers: limits, duplicates, what is no JSON."""

import json

import pytest

from parallel_lab.base.errors import CheckpointError
from parallel_lab.base.plain_json import dump_json, parse_json
from tests.crossed import each_of


def parse(text, **limits):
    return parse_json(text.encode() if isinstance(text, str) else text, "here", CheckpointError, **limits)


@each_of("value", None, [], {}, 1, -2.5, "x", {"a": [1, {"b": None}], "ü [{": ']\\"'}, [[[[[[[[]]]]]]]])
def test_what_json_holds_is_read(value):
    assert parse(json.dumps(value)) == value
    assert parse(dump_json(value)) == value


REFUSED = [
    ('{"a": 1, "a": 2}', "'a' stands twice"),
    ('{"x": {"b": 1, "c": 2, "b": 1}}', "'b' stands twice"),
    ("[NaN]", "NaN"),
    ("[-Infinity]", "Infinity"),
    ("[1e999]", "not finite"),
    ("[" * 9 + "]" * 9, "nested deeper than 8"),
    ("[" * 100_000, "nested deeper"),
    ('{"a":' * 100_000, "nested deeper"),
    ('"' + "[" * 50, "nested deeper"),
    ("[1, 2", "invalid JSON"),
    ("", "invalid JSON"),
    ("{'a': 1}", "invalid JSON"),
    ("[1] [2]", "invalid JSON"),
    (b'"\xff"', "invalid JSON"),
    (b'\xef\xbb\xbf{"a": 1}', "invalid JSON"),
    ("1" * 5000, "invalid JSON"),
]


@pytest.mark.parametrize(("text", "said"), REFUSED, ids=range(len(REFUSED)))
def test_anything_else_is_refused_in_one_class(text, said):
    with pytest.raises(CheckpointError, match=said) as caught:
        parse(text)
    assert str(caught.value).startswith("here: ")


def test_brackets_inside_strings_are_no_nesting():
    assert parse(json.dumps({"a": "[" * 1000, "b": '\\"[[[[[[[[[['})) == {"a": "[" * 1000, "b": '\\"[[[[[[[[[['}


@each_of("text, limit", ("[1, 2, 3, 4]", {"max_items": 3}), ('"123456"', {"max_bytes": 7}), ("[[1]]", {"max_depth": 1}))
def test_the_limits_can_be_set(text, limit):
    assert parse(text)
    with pytest.raises(CheckpointError, match="At most"):
        parse(text, **limit)


def test_not_finite_numbers_are_not_written():
    with pytest.raises(ValueError):
        dump_json({"a": float("nan")})
