"""JSON from strangers: limits, duplicates, texts that are not JSON."""

import contextlib
import json
import math
import random
import time
import tracemalloc

import pytest

from parallel_lab.base.errors import CheckpointError
from parallel_lab.base.plain_json import MAX_BYTES, dump_json, parse_json
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
    ("[" * 400 + "]" * 400, "nested deeper"),
    ("[" * 9, "invalid JSON"),
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


def test_brackets_inside_strings_do_not_nest():
    assert parse(json.dumps({"a": "[" * 1000, "b": '\\"[[[[[[[[[['})) == {"a": "[" * 1000, "b": '\\"[[[[[[[[[['}


@each_of("text, limit", ('"123456"', {"max_bytes": 7}), ("[[1]]", {"max_depth": 1}))
def test_the_limits_can_be_set(text, limit):
    assert parse(text)
    with pytest.raises(CheckpointError, match="At most"):
        parse(text, **limit)


def test_not_finite_numbers_are_not_written():
    with pytest.raises(ValueError):
        dump_json({"a": float("nan")})


# ---- time and memory: every shape of text, of every size ----

WIDE = "\U0001f600"  # one such sign, and every sign of the text takes four bytes


def numbered(form, count):
    return ",".join(form.replace("#", f"{number:x}") for number in range(count))


SHAPES = {  # {name: text of n bytes}
    "string": lambda n: '"' + "x" * n + '"',
    "wide string": lambda n: '"' + "x" * n + WIDE + '"',
    "wide from the start": lambda n: '"' + WIDE + "x" * n + '"',
    "quotes": lambda n: '{"a":"' + '\\"' * (n // 2) + '"}',
    "quotes without an end": lambda n: '{"a":"' + '\\"' * (n // 2),
    "backslashes without an end": lambda n: '"' + "\\" * n,
    "escapes": lambda n: '"' + "\\n" * (n // 2) + "\\ud83d\\ude00" + '"',
    "escapes in a wide string": lambda n: '"' + WIDE + "\\n" * (n // 2) + '"',
    "strings": lambda n: "[" + numbered('"#"', n // 8) + "]",
    "short wide strings": lambda n: "[" + f'"{WIDE}",' * (n // 7) + "0]",
    "short escapes": lambda n: "[" + '"\\ud83d\\ude00",' * (n // 15) + "0]",
    "small numbers": lambda n: "[" + "0," * (n // 2) + "0]",
    "numbers": lambda n: "[" + ",".join(str(1000 + i) for i in range(n // 6)) + "]",
    "fractions": lambda n: "[" + "0.5," * (n // 4) + "0]",
    "one long number": lambda n: "1" * n,
    "one long fraction": lambda n: "0." + "1" * n,
    "long numbers": lambda n: "[" + ("1" * 4000 + ",") * (n // 4001) + "0]",
    "lists": lambda n: "[" + "[]," * (n // 3) + "0]",
    "lists of one": lambda n: "[" + "[0]," * (n // 4) + "0]",
    "lists of lists": lambda n: "[" + "[[]]," * (n // 5) + "0]",
    "objects": lambda n: "[" + "{}," * (n // 3) + "0]",
    "objects of one": lambda n: "[" + '{"":0},' * (n // 7) + "0]",
    "objects of objects": lambda n: "[" + '{"a":{}},' * (n // 9) + "0]",
    "objects of their own keys": lambda n: "[" + numbered('{"#":0}', n // 11) + "]",
    "keys": lambda n: "{" + numbered('"#":0', n // 9) + "}",
    "keys of lists": lambda n: "{" + numbered('"#":[]', n // 10) + "}",
    "keys of texts": lambda n: "{" + numbered('"#":"#"', n // 14) + "}",
    "one key often": lambda n: "{" + '"a":0,' * (n // 6) + '"a":0}',
    "the last key twice": lambda n: "{" + numbered('"#":0', n // 9) + ',"0":0}',
    "deep lists": lambda n: "[" * n,
    "deep objects": lambda n: '{"a":' * (n // 5),
    "deep and closed": lambda n: "[" * (n // 2) + "]" * (n // 2),
    "blanks": lambda n: " " * n,
    "noughts": lambda n: "\0" * n,
    "constants": lambda n: "[" + "null," * (n // 5) + "0]",
    "not a number": lambda n: "[" + "0," * (n // 2) + "NaN]",
}
SIZES = [3_000, 100_000, 1_000_000, 4_000_000, MAX_BYTES - 100]


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_text_takes_more_than_three_times_its_bytes_and_32_mib(shape, size):
    data = shape(size).encode()
    tracemalloc.start()
    try:
        parse(data)
    except CheckpointError as error:
        assert len(str(error)) < 500
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    print(f"{len(data):,} bytes took {most / len(data):.1f} times that")
    assert most <= 3 * len(data) + (32 << 20)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_time_grows_with_the_text_and_not_with_its_square(shape):
    """A megabyte of escaped quotes once took hours, 20,000 keys with two equal ones 5 s; a machine that is busy
    makes one of these a few times slower, its square would be 16 times."""

    def seconds(data):
        found = []
        for _ in range(5):
            start = time.process_time()  # a busy machine makes a second of a millisecond
            with contextlib.suppress(CheckpointError):
                parse(data)
            found.append(time.process_time() - start)
        return min(found)

    short, long = seconds(shape(15_000).encode()), seconds(shape(240_000).encode())
    print(f"{short:.4f} s, {long:.4f} s")
    assert long < max(100 * short, 0.5)


@pytest.mark.exhaustive
def test_what_is_written_by_the_thousands_is_read():
    """The bound is for harmful texts: a table of 10,000 tensors, or a curve of 300,000 numbers, is harmless."""
    tensor = {"dtype": "float32", "global_shape": [1024, 1024], "layout": None, "holders": "all"}
    table = {f"backbone.layers.{i}.weight": tensor for i in range(10_000)}
    assert parse(dump_json(table)) == table
    random.seed(3)
    curve = [random.random() for _ in range(300_000)]
    assert math.isclose(math.fsum(parse(dump_json({"curve": curve}))["curve"]), math.fsum(curve))
