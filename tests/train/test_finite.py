"""NaN and infinities are named at their source: rank, step, parameter or input, index. Cases: `cases/finite.py`."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from parallel_lab import Model, Session, Tensor, compile, nn
from parallel_lab.base import hooks
from parallel_lab.base.errors import LossNotFinite, NonFinite, RankRaised
from parallel_lab.base.settings.run_checks import reset_run_checks, set_run_checks
from parallel_lab.train import finite
from parallel_lab.train.dataset import GeneratorDataset
from parallel_lab.train.mixed import DynamicLossScaleManager
from tests.train.cases import finite as cases
from tests.train.worlds import Worlds

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def checked():
    set_run_checks(finite=True)
    yield
    reset_run_checks()


# ---- where nothing is chosen ----


def test_a_rank_of_a_script_warns_once_and_goes_on():
    """It was silent outside notebooks. A script may look for infinities itself, with a loss scale of its own."""
    reset_run_checks()
    assert not finite.wanted(None)
    before = hooks.current_world()
    hooks.set_world(SimpleNamespace(rank=1, updates=4))
    try:
        assert finite.wanted(None)
        finite.before_all_reduce(np.ones(3, np.float32))
        with pytest.warns(RuntimeWarning, match=r"rank 1, step 5: what goes into AllReduce is nan .* goes on") as told:
            finite.before_all_reduce(np.array([1, np.nan], np.float32))
            finite.check("parameter 'w'", np.array([np.inf]), 5)
        assert len(told) == 1 and told[0].filename == __file__ and not finite.wanted(None)
        set_run_checks(finite=True)
        with pytest.raises(NonFinite, match="rank 1, step 6: parameter 'w' is inf"):
            finite.check("parameter 'w'", np.array([np.inf]), 5)
    finally:
        hooks.set_world(before)


# ---- arrays ----


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("bad", cases.BAD.values(), ids=cases.BAD)
def test_first_bad_element_is_found(dtype, bad):
    rng = np.random.default_rng(5)
    for _ in range(20):
        array = rng.standard_normal((4, 3, 5)).astype(dtype)
        assert finite.fault_in(array) is None
        index = tuple(int(rng.integers(n)) for n in array.shape)
        array[index] = bad
        text, found = finite.fault_in(array)
        assert found == index and "of 60)" in text


def test_a_sum_that_overflows_and_other_dtypes_are_not_a_fault():
    assert finite.fault_in(np.full(1000, 6e4, np.float16)) is None
    assert finite.fault_in(np.full(4, np.finfo(np.float32).max)) is None
    assert finite.fault_in(np.array([-3, 2**31 - 1], np.int32)) is None
    assert finite.fault_in(np.array(["nan"])) is None
    assert finite.fault_in(np.empty((0, 3))) is None


# ---- ranks ----


@pytest.mark.faults("ranks at work", cases=5)
@pytest.mark.quick(1)
@pytest.mark.parametrize(("number", "name"), list(enumerate(cases.CASES)))
def test_the_rank_that_has_it_is_named(tmp_path, number, name):
    (loop, where, _), odd = name.split(", "), number % 4
    with pytest.raises((NonFinite, RankRaised), match=f"rank {odd}"):
        Worlds(cases, tmp_path).of(4, name)
    texts = {int(path.name[-1]): path.read_text() for path in tmp_path.glob("*/rank_*")}
    assert [rank for rank, text in texts.items() if text.startswith("NonFinite: ")] == [odd], texts
    text = texts[odd]
    what = "gradient of parameter 'first.weight'" + ("|input" if where == "input" else "")
    assert re.search(rf"rank {odd}, step {cases.BAD_STEP}: .*({what})", text), text
    assert re.search(r"at index \(\d+, \d+\)", text)
    if where == "input" and loop in ("Model", "compiled step"):
        assert "at index (2, 5)" in text or f"index ({4 * odd + 2}, 5)" in text


def net_of(rate=0.1, **options):
    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
    return net, nn.SGD(net.trainable_params(), rate, **options)


@pytest.mark.quick(1)
@pytest.mark.parametrize("executor", ["simulator", "processes"])
def test_a_session_tells_the_rank_of_a_bad_row(pools, executor):
    net, optimizer = net_of()
    rng = np.random.default_rng(2)
    batches = [(rng.random((8, 8), np.float32), rng.random((8, 4), np.float32)) for _ in range(4)]
    plan = compile(
        net, *batches[0], loss=nn.MSELoss(), optimizer=optimizer, device_num=4, dataset_strategy="full_batch"
    )
    batches[2][0][5, 3] = np.nan
    pool = {"pool": pools[4]} if executor == "processes" else {}
    told = pytest.raises((NonFinite, RankRaised), match=r"rank \d, step 3: input 'x' is nan .* at index \(5, 3\)")
    with Session(plan, net, optimizer, executor=executor, **pool) as session, told:
        session.train(batches, 4)
    with Session(plan, net, optimizer, executor=executor, check_finite=False, **pool) as session:
        assert [bool(np.isfinite(loss)) for loss in session.train(batches, 4)] == [True, True, False, False]


def test_one_device_is_looked_at_too_and_a_diverging_loss():
    net, optimizer = net_of(rate=1e30)
    x, y = np.ones((4, 8), np.float32), np.ones((4, 4), np.float32)
    data = GeneratorDataset(lambda: ((x, y) for _ in range(5)), ["data", "label"])
    with np.errstate(all="ignore"), pytest.raises(LossNotFinite, match=r"rank 0, step \d: (the loss|parameter) "):
        Model(net, nn.MSELoss(), optimizer).train(1, data)


def test_nothing_is_checked_where_a_loss_scale_looks_for_overflow():
    net, optimizer = net_of()
    x = np.full((4, 8), np.inf, np.float32)
    data = GeneratorDataset(lambda: ((x, np.ones((4, 4), np.float32)) for _ in range(3)), ["data", "label"])
    before = net[0].weight.asnumpy().copy()
    manager = DynamicLossScaleManager()
    with np.errstate(all="ignore"):
        Model(net, nn.MSELoss(), optimizer, loss_scale_manager=manager).train(1, data)
    assert np.array_equal(net[0].weight.asnumpy(), before)


def test_it_is_off_outside_of_notebooks():
    reset_run_checks()
    _, optimizer = net_of()
    assert not finite.wanted(optimizer)
    set_run_checks(finite=True)
    assert finite.wanted(optimizer)
    assert Tensor(np.float32(np.nan)).shape == ()
