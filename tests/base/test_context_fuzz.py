"""Junk for every key of every settings function: accepted exactly when the documents' rule holds, else refused in
words, and without a trace.

3,000 values (`fuzz_junk.py`); a failure prints its seed and value. `fuzz_rules.py` holds the rules.
"""

import os
import random
import traceback

import pytest

from parallel_lab.base.errors import ContextError, ParallelLabError
from parallel_lab.base.settings import context
from tests.base.contexts import reset
from tests.base.fuzz_junk import KeyText, junk, near
from tests.base.fuzz_rules import FUNCTIONS, PARALLEL, PLACES, kind

# ---- what a refusal has to say ----


def shown(value, limit=80):
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parts_of(value, depth=0):
    """The value and what is inside it, to a small depth."""
    yield value
    if depth < 4:
        for base in (list, tuple, dict):
            if kind(value, base):
                for inner in base.__iter__(value):
                    yield from parts_of(inner, depth + 1)
        if kind(value, dict):
            for inner in dict.values(value):
                yield from parts_of(inner, depth + 1)


def everything():
    known = [(get, key) for _, get, rules, extra in FUNCTIONS.values() for key in (*rules, *extra)]
    return [get(key) for get, key in known], context.frozen()


def check(function, key, value):
    """One junk value for one key: accepted by the rule, or refused as it should be."""
    set_, get, rules, other = FUNCTIONS[function]
    rule, phrases = rules[key]
    expected = rule(value)
    before = everything()
    try:
        set_(**other, **{key: value})
    except Exception as error:
        assert expected is not None, f"refused, though the rule allows it: {error}"
        name = type(error).__name__
        assert isinstance(error, ParallelLabError) and isinstance(error, ContextError), f"{name} came through: {error}"
        fits = isinstance(error, expected) and (expected is TypeError or not isinstance(error, TypeError))
        assert fits, f"{name} instead of {expected.__name__}: {error}"
        text = str(error)
        assert set_.__name__ in text and len(text) < 1500, text
        assert key in text or key == "strategy_ckpt_config" and "strategy_ckpt_save_file" in text, text
        assert any(shown(part, limit) in text for part in parts_of(value) for limit in (80, 40)), text
        said = any(phrase.lower() in text.lower() for phrase in phrases)
        assert said or "can be made" in text and expected is OSError, text
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        assert os.path.basename(frame.filename) in ("checks.py", "context.py", "tables.py"), f"raised in {place}"
        assert everything() == before, "a refused call changed a setting"
        return False
    assert expected is None, f"accepted, and should be a {expected.__name__}"
    hash(context.frozen())
    kept = get(key)
    assert type(kept) in (bool, int, float, str, tuple, list, dict), f"kept as {type(kept).__name__}"
    if type(kept) in (int, float, str) and key != "save_graphs":
        assert kept == type(kept).__mro__[0].__new__(type(kept), _plain(value)), f"{kept!r} is read back"
    return True


def _plain(value):
    for base, read in ((int, int.__index__), (float, float.__float__), (str, str.__str__)):
        if kind(value, base):
            return read(value)
    return value


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch, default_settings):
    monkeypatch.chdir(tmp_path)  # folders of strategy files are made


BLOCKS, PER_BLOCK = 20, 150


@pytest.mark.quick(5)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_junk_is_accepted_by_the_rule_or_refused_in_words(block):
    """3,000 values in all."""
    rng = random.Random(20_000 + block)
    accepted = 0
    for count in range(PER_BLOCK):
        function, key = PLACES[(block * PER_BLOCK + count) % len(PLACES)]
        value = near(rng, key) if rng.random() < 0.5 else junk(rng)
        try:
            accepted += check(function, key, value)
        except AssertionError as failure:
            raise AssertionError(f"block {block}, value {count}: {key}={shown(value, 300)}: {failure}") from failure
        finally:
            reset()
    assert 0 < accepted < PER_BLOCK / 2, "the draw reaches neither side well"


@pytest.mark.quick(30)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_every_key_accepts_its_own_default(place):
    """The rules of this file and the defaults of the package agree."""
    function, key = place
    value = FUNCTIONS[function][1](key)
    assert FUNCTIONS[function][2][key][0](value) is None or key == "all_reduce_fusion_config" and value == []


def test_the_rules_cover_every_parallel_key():
    with pytest.raises(ContextError) as caught:
        context.set_auto_parallel_context(qqq=1)
    listed = set(str(caught.value).partition("Keys: ")[2].rstrip(".").split(", "))
    assert listed == {*PARALLEL, "gradients_mean"}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_unknown_keys_are_refused(function):
    set_, get, rules, _ = FUNCTIONS[function]
    rng = random.Random(7)
    names = ["".join(rng.choice("abcdeé_ \n\0'\"{}") for _ in range(rng.choice([1, 5, 300]))) for _ in range(50)]
    names += [rng.choice(list(rules))[:-1] for _ in range(20)] + [KeyText("nonsense"), "__class__", "self"]
    for name in names:
        for call in (lambda name=name: set_(**{name: 1}), lambda name=name: get(name)):
            with pytest.raises(ContextError) as caught:
                call()
            assert "is not known" in str(caught.value) and shown(str.__str__(name)) in str(caught.value)
            assert not isinstance(caught.value, TypeError)
