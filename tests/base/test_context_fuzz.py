"""Junk for every key of every settings function: accepted exactly when the documents' rule holds, else refused in
words, and without a trace. `documented.py` holds the rules, `tests/junk.py` the values.
"""

import copy
import os
import random
import traceback

import pytest

from parallel_lab.base.errors import ContextError, ParallelLabError
from parallel_lab.base.settings import context
from tests.base.contexts import reset
from tests.base.documented import FUNCTIONS, PARALLEL, PLACES
from tests.junk import JUNK, LARGEST, KeyText, kind, plain, promise, whole

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


def rule_of(stated):
    """The promise of a key, and phrases of which a refusal says one."""
    if not isinstance(stated, str):
        return stated
    found = promise(stated)
    if " int" in stated:  # of Python only, and at most a limit that no text names
        low, *high = (int(word) for word in stated.removeprefix("-1, or ").split() if word.lstrip("-").isdigit())
        found = whole(low, *(high or [LARGEST]), also=(-1,) if stated.startswith("-1, or ") else ())
    return found, (stated,)


def check(function, key, value):
    """One junk value for one key: accepted by the rule, or refused as it should be."""
    set_, get, rules, other = FUNCTIONS[function]
    allowed, phrases = rule_of(rules[key])
    expected = allowed.rule(value)
    before = copy.deepcopy(context._set)
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
        assert any(phrase.lower() in text.lower() for phrase in phrases), text
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        assert os.path.basename(frame.filename) in ("checks.py", "context.py", "tables.py"), f"raised in {place}"
        assert context._set == before, "a refused call changed a setting"
        return False
    assert expected is None, f"accepted, and should be a {expected.__name__}"
    hash(context.frozen())
    kept = get(key)
    assert type(kept) in (bool, int, float, str, tuple, list, dict), f"kept as {type(kept).__name__}"
    if type(kept) in (int, float, str) and key != "save_graphs":
        assert kept == type(kept).__mro__[0].__new__(type(kept), plain(value)), f"{kept!r} is read back"
    return True


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch, default_settings):
    monkeypatch.chdir(tmp_path)  # folders of strategy files are made


def nested(rng, key):
    """Junk inside what the key takes: in a list, a tuple, a dict with a name that some setting has."""
    names = [
        "mode",
        "config",
        "openstate",
        "allreduce",
        key,
        *(word for word in PARALLEL),
        3,
        None,
        KeyText("mode"),
        "é",
    ]
    inner = rng.choice(JUNK) if rng.random() < 0.7 else nested(rng, key)
    return rng.choice([[inner], (inner,), ((inner,),), [1, inner], {rng.choice(names): inner}])


@pytest.mark.quick(12)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_junk_is_accepted_by_the_rule_or_refused_in_words(place):
    """The values at the edges of the rule, hostile objects, and these inside lists, tuples and dicts."""
    function, key = place
    rng = random.Random(key)
    accepted = set()
    for value in (*rule_of(FUNCTIONS[function][2][key])[0].edges, *JUNK, *(nested(rng, key) for _ in range(10))):
        try:
            accepted.add(check(function, key, value))
        except AssertionError as failure:
            raise AssertionError(f"{key}={shown(value, 300)}: {failure}") from failure
        finally:
            reset()
    assert accepted == {True, False}, "the values reach one side only"


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place[1])
def test_every_key_accepts_its_own_default(place):
    """The documented rules and the defaults of the package agree."""
    function, key = place
    value = FUNCTIONS[function][1](key)
    assert rule_of(FUNCTIONS[function][2][key])[0].rule(value) is None or (key, value) == (
        "all_reduce_fusion_config",
        [],
    )


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
