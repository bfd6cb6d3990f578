"""Optimizers against closed formulas in float64, and what the rules promise: purity, slices, dtypes, refusals."""

import inspect
import math

import numpy as np
import pytest

from parallel_lab import nn
from parallel_lab.base.errors import ParallelLabError, ShapeError, TraceError
from parallel_lab.base.hooks import current_tracer
from parallel_lab.graph.trace import Tracer
from parallel_lab.graph.traced_value import TracedValue
from parallel_lab.nn.initializer import initializer
from parallel_lab.nn.optim.totals import Place, Totals
from parallel_lab.nn.tensor.parameter import Parameter
from parallel_lab.nn.tensor.tensor import Tensor
from tests.crossed import each_of
from tests.junk import outside
from tests.refusals import refused

RATE, STEPS, SHAPE = 0.05, 6, (4, 3)
RNG = np.random.default_rng(5)
START = RNG.normal(size=SHAPE)
GRADS = RNG.normal(size=(STEPS, *SHAPE))


def steps(make, start=START, grads=GRADS):
    """Values after each eager step, and the optimizer."""
    parameter = Parameter(Tensor(start), "w")
    optimizer = make([parameter])
    values = []
    for g in grads:
        optimizer([g])
        values.append(parameter.asnumpy().copy())
    return np.array(values), optimizer


def powers(base, t):
    """base^(t-1), ..., base, 1: what the gradients of steps 1 ... t weigh in a running sum, shaped for them."""
    return (base ** np.arange(t - 1, -1, -1.0)).reshape(-1, 1, 1)


def path(directions):
    """START minus the running sum of RATE times the directions."""
    return START - RATE * np.cumsum(directions, axis=0)


# ---- closed formulas ----


def adam_means(b1=0.9, b2=0.999):
    """m_t and v_t as weighted sums."""
    m = np.array([(1 - b1) * (powers(b1, t) * GRADS[:t]).sum(0) for t in range(1, STEPS + 1)])
    v = np.array([(1 - b2) * (powers(b2, t) * GRADS[:t] ** 2).sum(0) for t in range(1, STEPS + 1)])
    return m, v


def adam_directions(b1=0.9, b2=0.999, eps=1e-8, nesterov=False):
    m, v = adam_means(b1, b2)
    t = np.arange(1, STEPS + 1.0).reshape(-1, 1, 1)
    top = b1 * m + (1 - b1) * GRADS if nesterov else m
    return np.sqrt(1 - b2**t) / (1 - b1**t) * top / (np.sqrt(v) + eps)


def decoupled_path(decay, eps=1e-6):
    """AdamWeightDecay: each step shrinks the parameter by the factor 1 - RATE * decay, earlier directions with it."""
    m, v = adam_means()
    shrink, directions = 1 - RATE * decay, m / (np.sqrt(v) + eps)
    return np.array(
        [shrink**t * START - RATE * (powers(shrink, t) * directions[:t]).sum(0) for t in range(1, STEPS + 1)]
    )


def rmsprop_path(decay=0.9, momentum=0.0, eps=1e-10, centered=False):
    """Root mean squares start at 1; the moment is a weighted sum of the quotients."""
    quotients = []
    for t in range(1, STEPS + 1):
        square = decay**t + (1 - decay) * (powers(decay, t) * GRADS[:t] ** 2).sum(0)
        mean = (1 - decay) * (powers(decay, t) * GRADS[:t]).sum(0)
        quotients.append(GRADS[t - 1] / np.sqrt(square - (mean**2 if centered else 0) + eps))
    return path([(powers(momentum, t) * np.array(quotients[:t])).sum(0) for t in range(1, STEPS + 1)])


def adagrad_path(accum=0.1, update=True):
    sums = accum + (np.cumsum(GRADS**2, axis=0) if update else np.zeros_like(GRADS))
    return path(GRADS / (np.sqrt(sums) + 1e-10))


def length(a):
    return np.sqrt((a**2).sum())


def lamb_path(decay=0.0, eps=1e-6, b1=0.9, b2=0.999):
    """Each step is as long as the parameter; means without bias from the weighted sums."""
    m, v = adam_means(b1, b2)
    p, values = START, []
    for t in range(1, STEPS + 1):
        step = m[t - 1] / (1 - b1**t) / (np.sqrt(v[t - 1] / (1 - b2**t)) + eps) + decay * p
        p = p - RATE * length(p) / length(step) * step
        values.append(p)
    return np.array(values)


def lars_path(decay, momentum, coefficient, eps=1e-5, use_clip=False):
    p, velocity, values = START, 0.0, []
    for g in GRADS:
        rate = coefficient * length(p) / (length(g) + decay * length(p) + eps)
        rate = min(rate / RATE, 1.0) if use_clip else rate
        velocity = momentum * velocity + rate * (g + decay * p)
        p = p - RATE * velocity
        values.append(p)
    return np.array(values)


def ftrl_path(rate=RATE, accum=0.1, power=0.5, l1=0.0, l2=0.0):
    """The weight that minimises the linear terms so far, the pull to the old weights, l1 and l2, in closed form."""
    w, u, m, values = START, 0.0, accum, []
    for g in GRADS:
        u = u + g - ((m + g**2) ** power - m**power) / rate * w
        m = m + g**2
        w = np.where(np.abs(u) > l1, (np.sign(u) * l1 - u) / (m**power / rate + 2 * l2), 0.0)
        values.append(w)
    return np.array(values)


def adafactor_path(rates, b1=0.9, decay=0.0, clip=1.0, power=0.8, eps=(1e-30, 1e-3), scaled=True, start=START):
    """rates: of every step. Means of rows and columns of a matrix; a vector's squares one by one."""
    rms = lambda a: np.sqrt(np.mean(a**2))  # noqa: E731
    w, mean, values = start, 0.0, []
    row = column = square = 0.0
    for t, g in enumerate(GRADS[:, : len(start)] if start.ndim > 1 else GRADS[:, :, 0], 1):
        b2 = 1 - t**-power
        q = g**2 + eps[0]
        if start.ndim > 1:
            row, column = b2 * row + (1 - b2) * q.mean(1), b2 * column + (1 - b2) * q.mean(0)
            square = np.outer(row / row.mean(), column)
        else:
            square = b2 * square + (1 - b2) * q
        u = g / np.sqrt(square)
        rate = rates[t - 1] * (max(eps[1], rms(w)) if scaled else 1.0)
        u = rate * u / max(1.0, rms(u) / clip)
        mean = u = b1 * mean + (1 - b1) * u
        w = w - rate * decay * w - u
        values.append(w)
    return np.array(values)


STEP_RATES = [min(0.01, 1 / math.sqrt(t)) for t in range(1, STEPS + 1)]
WARM_RATES = [1e-6 * t for t in range(1, STEPS + 1)]


def making(optimizer, *args, **options):
    """A function that makes the optimizer of given parameters."""
    return lambda params: optimizer(params, *args, **options)


# besides what PyTorch has, too (tests/recorded/loss_rows.py)
FORMULAS = {
    "rmsprop centered": (
        making(nn.RMSProp, RATE, 0.8, 0.5, 1e-3, centered=True),
        rmsprop_path(0.8, 0.5, 1e-3, centered=True),
    ),
    "adagrad fixed": (making(nn.Adagrad, 0.4, RATE, update_slots=False), adagrad_path(0.4, update=False)),
    "lamb": (making(nn.Lamb, RATE), lamb_path()),
    "lamb decay": (making(nn.Lamb, RATE, 0.8, 0.9, 1e-3, 0.3), lamb_path(0.3, 1e-3, 0.8, 0.9)),
    "lars decay": (lambda p: nn.LARS(nn.SGD(p, RATE, weight_decay=0.3), coefficient=0.5), lars_path(0.3, 0.0, 0.5)),
    "lars momentum": (lambda p: nn.LARS(nn.Momentum(p, RATE, 0.8), 0.01, 0.02), lars_path(0.0, 0.8, 0.02, 0.01)),
    "lars clip": (
        lambda p: nn.LARS(nn.SGD(p, RATE), coefficient=0.05, use_clip=True),
        lars_path(0.0, 0.0, 0.05, use_clip=True),
    ),
    "adam": (making(nn.Adam, RATE), path(adam_directions())),
    "lazy adam": (making(nn.LazyAdam, RATE, 0.7, 0.8, 1e-3), path(adam_directions(0.7, 0.8, 1e-3))),
    "ftrl": (making(nn.FTRL, learning_rate=RATE), ftrl_path()),
    "ftrl l1 l2": (making(nn.FTRL, 0.3, 0.2, -0.7, 0.4, 0.1), ftrl_path(0.2, 0.3, 0.7, 0.4, 0.1)),
    "adafactor warm": (
        making(nn.AdaFactor, None, (1e-3, 0.1), 0.3, 0.6, 0.0, 0.2, warmup_init=True),
        adafactor_path(WARM_RATES, 0.0, 0.2, 0.3, 0.6, (1e-3, 0.1)),
    ),
    "adafactor rate": (
        making(nn.AdaFactor, RATE, beta1=0.5, scale_parameter=False, relative_step=False),
        adafactor_path([RATE] * STEPS, 0.5, scaled=False),
    ),
    "adam nesterov": (making(nn.Adam, RATE, use_nesterov=True), path(adam_directions(nesterov=True))),
    "adam weight decay 0": (making(nn.AdamWeightDecay, RATE), decoupled_path(0.0)),
    "adam weight decay": (making(nn.AdamWeightDecay, RATE, weight_decay=0.3), decoupled_path(0.3)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_steps_follow_the_closed_formula(name):
    make, expected = FORMULAS[name]
    values, _ = steps(make)
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-13)


@each_of(
    "make",
    lambda p, **k: nn.SGD(p, RATE, 0.9, **k),
    lambda p, **k: nn.Momentum(p, RATE, 0.9, **k),
    lambda p, **k: nn.Adam(p, RATE, **k),
    ids=["sgd", "momentum", "adam"],
)
def test_weight_decay_adds_the_parameter_to_the_unscaled_gradient(make):
    with_decay, plain = Parameter(Tensor(START), "w"), Parameter(Tensor(START), "w")
    decaying, other = make([with_decay], weight_decay=0.3, loss_scale=2.0), make([plain])
    for g in GRADS:
        other([g / 2 + 0.3 * plain.asnumpy()])
        decaying([g])
    np.testing.assert_allclose(with_decay.asnumpy(), plain.asnumpy(), rtol=1e-12)


def test_defaults_are_mindspores():
    w = [Parameter(Tensor(START), "w")]
    settings = "learning_rate=0.1, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, loss_scale=1.0"
    assert repr(nn.SGD(w)) == f"SGD(1 parameters, {settings})"
    rms, ada, lamb, lars = nn.RMSProp(w), nn.Adagrad(w), nn.Lamb(w, 0.1), nn.LARS(nn.SGD(w))
    assert (rms.learning_rate, rms.decay, rms.momentum, rms.epsilon, rms.centered) == (0.1, 0.9, 0.0, 1e-10, False)
    assert (ada.accum, ada.learning_rate, ada.update_slots) == (0.1, 0.001, True)
    assert (lamb.beta1, lamb.beta2, lamb.eps, lamb.weight_decay) == (0.9, 0.999, 1e-6, 0.0)
    assert (lars.epsilon, lars.coefficient, lars.use_clip, lars.learning_rate) == (1e-5, 1e-3, False, 0.1)
    for one, eps in ((nn.Adam(w), 1e-8), (nn.AdamWeightDecay(w), 1e-6)):
        assert (one.learning_rate, one.beta1, one.beta2, one.eps, one.weight_decay) == (1e-3, 0.9, 0.999, eps, 0.0)


# ---- what every rule promises ----

RULES = {
    "sgd": making(nn.SGD, RATE),
    "sgd-dampened": making(nn.SGD, RATE, 0.9, 0.4, 0.1),
    "sgd-nesterov": making(nn.SGD, RATE, 0.9, nesterov=True),
    "momentum": making(nn.Momentum, RATE, 0.9, 0.1, 2.0),
    "momentum-nesterov": making(nn.Momentum, RATE, 0.9, use_nesterov=True),
    "adam": making(nn.Adam, RATE, weight_decay=0.1),
    "adam-nesterov": making(nn.Adam, RATE, use_nesterov=True),
    "adam-weight-decay": making(nn.AdamWeightDecay, RATE, weight_decay=0.1),
    "rmsprop": making(nn.RMSProp, RATE, weight_decay=0.1),
    "rmsprop-centered": making(nn.RMSProp, RATE / 5, momentum=0.5, epsilon=0.1, centered=True),
    "adagrad": making(nn.Adagrad, learning_rate=10 * RATE),
    "lamb": making(nn.Lamb, RATE, weight_decay=0.1),
    "lars": lambda p: nn.LARS(nn.Momentum(p, RATE, 0.5, weight_decay=0.1), coefficient=0.3),
    "ftrl": making(nn.FTRL, learning_rate=10 * RATE, l1=0.01, l2=0.01),
    "adafactor": making(nn.AdaFactor, RATE, beta1=0.5, relative_step=False),
}
WITH_NORMS = ("lamb", "lars")
each_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES)
each_elementwise_rule = pytest.mark.parametrize(
    "make", [pytest.param(r, id=n) for n, r in RULES.items() if n not in (*WITH_NORMS, "adafactor")]
)
each_rule_with_norms = pytest.mark.parametrize("make", [RULES[n] for n in WITH_NORMS], ids=WITH_NORMS)


def inputs(optimizer, dtype, wrap=lambda a: a):
    """Arguments of `update` in the middle of a training, as arrays of `dtype` put through `wrap`."""
    parameter = Parameter(Tensor(START.astype(dtype)), "w")
    state = {
        s: wrap(np.abs(a + GRADS[i].reshape(-1)[: a.size].reshape(a.shape).astype(dtype)))
        for i, (s, a) in enumerate(optimizer.initial_state(parameter).items())
    }
    scalars = {s: wrap(np.asarray(v, dtype)) for s, v in optimizer.scalar_state().items()}
    return wrap(START.astype(dtype)), wrap(GRADS[0].astype(dtype)), state, scalars, wrap(np.asarray(RATE, dtype))


def updated(optimizer, parameter, gradient, state, scalars, rate):
    return optimizer.update(parameter, gradient, state, optimizer.update_scalars(scalars), rate)


@pytest.fixture
def optimizer(make):
    return make([Parameter(Tensor(START), "w")])


def held(optimizer, shape=SHAPE):
    """{state of a parameter: its shape}: AdaFactor's means are without the dim along which they are taken."""
    if isinstance(optimizer, nn.AdaFactor):
        return {"exp_avg_sq_row": shape[:1], "exp_avg_sq_col": shape[1:], "exp_avg": shape}
    return dict.fromkeys(optimizer.state_names, shape)


class Halves(Totals):
    """Adds what the two halves of a parameter found; each half hears of the other's."""

    def __init__(self, others):
        self.mine, self.others = [], iter(others)

    def total(self, name, local, why):
        self.mine.append(local)
        return local + next(self.others)


@each_rule_with_norms
def test_with_totals_over_the_slices_the_update_of_a_slice_is_the_slice_of_the_update(optimizer):
    parameter, gradient, state, scalars, rate = inputs(optimizer, np.float64)
    whole, whole_state = updated(optimizer, parameter, gradient, state, scalars, rate)
    scalars = optimizer.update_scalars(scalars)
    halves = [slice(0, 1), slice(1, 4)]

    def half(rows, others):
        totals = Halves(others)
        given = (parameter[rows], gradient[rows], {s: a[rows] for s, a in state.items()}, scalars, rate)
        new = optimizer.update(
            *given, Place("w", optimizer.weight_decay, lambda local, why: totals.total("w", local, why))
        )
        return new, totals.mine

    # sums of squares do not depend on the other half, except Lamb's second, of a step that needs no norm either
    found = [half(rows, [0.0, 0.0])[1] for rows in halves]
    for rows, others in zip(halves, reversed(found), strict=True):
        (part, part_state), _ = half(rows, others)
        np.testing.assert_allclose(part, whole[rows], rtol=1e-13)
        for name, array in part_state.items():
            np.testing.assert_allclose(array, whole_state[name][rows], rtol=1e-13)
    assert all(len(mine) == 2 for mine in found)


@each_elementwise_rule
def test_a_slice_of_the_update_is_the_update_of_the_slice(optimizer):
    parameter, gradient, state, scalars, rate = inputs(optimizer, np.float32)
    whole, whole_state = updated(optimizer, parameter, gradient, state, scalars, rate)
    rows, cut = slice(1, 3), {s: a[1:3] for s, a in state.items()}
    part, part_state = updated(optimizer, parameter[rows], gradient[rows], cut, scalars, rate)
    np.testing.assert_array_equal(part, whole[rows])
    assert set(whole_state) == set(optimizer.state_names)
    for name, array in part_state.items():
        np.testing.assert_array_equal(array, whole_state[name][rows])


@pytest.mark.quick(10)
@each_rule
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_and_tensors_give_the_same_bits_and_dtype(optimizer, dtype):
    on_arrays, states = updated(optimizer, *inputs(optimizer, dtype))
    on_tensors, tensor_states = updated(optimizer, *inputs(optimizer, dtype, Tensor))
    assert isinstance(on_tensors, Tensor)
    assert on_arrays.dtype == on_tensors.dtype == dtype
    np.testing.assert_array_equal(on_arrays, on_tensors.asnumpy())
    for name in held(optimizer):
        assert states[name].dtype == dtype
        np.testing.assert_array_equal(states[name], tensor_states[name].asnumpy())


@each_rule
def test_the_rule_can_be_traced(optimizer):
    tracer = Tracer()
    token = current_tracer.set(tracer)
    try:
        new, state = updated(optimizer, *inputs(optimizer, np.float32, lambda a: tracer.data("x", a.shape, "float32")))
    finally:
        current_tracer.reset(token)
    found = {s: (type(v), v.shape, str(v.dtype)) for s, v in {"": new, **state}.items()}
    assert found == {s: (TracedValue, shape, "float32") for s, shape in {"": SHAPE, **held(optimizer)}.items()}
    assert tracer.nodes


def test_adafactor_keeps_the_squares_of_a_vector_one_by_one():
    values, optimizer = steps(nn.AdaFactor, START[:, 0], GRADS[:, :, 0])
    np.testing.assert_allclose(values, adafactor_path(STEP_RATES, start=START[:, 0]), rtol=1e-12)
    assert {kind: a.shape for kind, a in optimizer.states["w"].items()} == {"exp_avg_sq": (4,), "exp_avg": (4,)}


def test_centered_rmsprop_stays_finite_on_gradients_that_are_all_alike():
    """Guards against the root of a variance that rounding had made negative."""
    alike = np.full((400, *SHAPE), 0.1, np.float32)
    values, _ = steps(making(nn.RMSProp, RATE, epsilon=1e-10, centered=True), START.astype(np.float32), alike)
    assert np.isfinite(values).all()


@each_rule
def test_update_changes_nothing_it_was_given(optimizer):
    given = inputs(optimizer, np.float64)
    updated(optimizer, *given)
    again = inputs(optimizer, np.float64)
    for before, after in ((given[0], again[0]), (given[1], again[1]), *((given[2][s], again[2][s]) for s in given[2])):
        np.testing.assert_array_equal(before, after)


@each_rule
def test_states_start_with_the_shape_and_dtype_of_the_parameter(optimizer):
    state = optimizer.initial_state(Parameter(initializer("ones", [2, 5]), "w"))
    start = {"mean_square": 1.0, "accum": vars(optimizer).get("accum", 0.0)}
    start["moments"] = getattr(optimizer, "initial_accum", 0.0)
    assert list(state) == list(held(optimizer))
    for name, shape in held(optimizer, (2, 5)).items():
        array = state[name]
        np.testing.assert_array_equal(array, np.full(shape, start.get(name, 0.0), np.float32))
        assert array.dtype == np.float32


@pytest.mark.quick(1)
@each_rule
def test_the_mean_of_a_square_is_brought_down(make):
    values, _ = steps(make, grads=())
    assert values.size == 0
    parameter = Parameter(Tensor(START), "w")
    optimizer = make([parameter])
    for _ in range(300):
        optimizer([2 * parameter.asnumpy()])
    assert np.abs(parameter.asnumpy()).max() < 0.05 * np.abs(START).max()


# ---- eager steps ----


def test_parameters_of_different_dtypes_are_updated_in_their_own():
    a, b = Parameter(Tensor(START.astype(np.float32)), "a"), Parameter(Tensor(START), "b")
    optimizer = nn.Adam([a, b], RATE)
    for g in GRADS:
        optimizer([g.astype(np.float32), Tensor(g)])
    assert (a.dtype, b.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(b.asnumpy(), path(adam_directions())[-1], rtol=1e-12)
    np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-4)


@each_rule
def test_an_eager_step_is_the_rule_in_the_dtype_of_the_parameter(make):
    parameter = Parameter(Tensor(START.astype(np.float32)), "w")
    eager = make([parameter])
    value, state = START.astype(np.float32), eager.initial_state(parameter)
    scalars = {s: np.asarray(v, np.float32) for s, v in eager.scalar_state().items()}
    for g in GRADS.astype(np.float32):
        eager([g])
        scalars = eager.update_scalars(scalars)
        ready = eager.prepared({"w": g}, Totals())["w"]
        value, state = eager.update(value, ready, state, scalars, np.float32(eager.learning_rate))
        np.testing.assert_array_equal(parameter.asnumpy(), value)


def test_states_and_scalars_can_be_read():
    _, optimizer = steps(lambda p: nn.Adam(p, RATE))
    m, v = adam_means()
    np.testing.assert_allclose(optimizer.states["w"]["moment1"], m[-1], rtol=1e-12)
    np.testing.assert_allclose(optimizer.states["w"]["moment2"], v[-1], rtol=1e-12)
    assert optimizer.scalars == pytest.approx({"beta1_power": 0.9**STEPS, "beta2_power": 0.999**STEPS})


def test_the_learning_rate_can_change_between_steps():
    parameter = Parameter(Tensor(START), "w")
    optimizer = nn.SGD([parameter], 0.5)
    optimizer([GRADS[0]])
    optimizer.learning_rate = 0.25
    optimizer([GRADS[1]])
    np.testing.assert_allclose(parameter.asnumpy(), START - 0.5 * GRADS[0] - 0.25 * GRADS[1])
    with pytest.raises(ValueError, match="learning_rate=-1"):
        optimizer.learning_rate = -1


@each_of(
    ("grads", "error", "text"),
    ([np.ones(SHAPE)] * 2, ValueError, "got 2 gradients. 1, one per parameter"),
    ([np.ones((3, 4))], ShapeError, r"the gradient of 'w' has shape \(3, 4\). Shape \(4, 3\)"),
    (np.ones((1, *SHAPE)), TypeError, "A list or tuple with one gradient per parameter"),
    (None, TypeError, "A list or tuple"),
    ids=["count", "shape", "one array", "none"],
)
def test_gradients_that_do_not_fit_are_refused_and_change_nothing(grads, error, text):
    parameter = Parameter(Tensor(START), "w")
    optimizer = nn.Adam([parameter], RATE)
    with pytest.raises(error, match=text) as caught:
        optimizer(grads)
    assert isinstance(caught.value, ParallelLabError)
    np.testing.assert_array_equal(parameter.asnumpy(), START)
    assert optimizer.scalars == {"beta1_power": 1.0, "beta2_power": 1.0}


def test_inside_a_trace_an_optimizer_takes_gradients_that_were_made_there():
    optimizer = nn.SGD([Parameter(Tensor(START), "w")], RATE)
    token = current_tracer.set(Tracer())
    try:
        with pytest.raises(TraceError, match="value_and_grad in the same function"):
            optimizer([GRADS[0]])
    finally:
        current_tracer.reset(token)


# ---- refusals ----


def w(name="w", dtype=np.float32):
    return Parameter(Tensor(np.zeros(3, dtype)), name)


SAME = w()


test_unfit_parameters_are_refused = refused(
    ([], ValueError, "params is empty"),
    ([Parameter(Tensor(START), "w", requires_grad=False)], ValueError, "there is nothing to train"),
    ([w(), w()], ValueError, "'w' is the name of two parameters"),
    ([SAME, SAME], ValueError, "'w' is given twice"),
    ([Tensor(START)], TypeError, r"params\[0\] is Tensor"),
    (SAME, TypeError, "A list of Parameters"),
    (3, TypeError, "A list of Parameters"),
    ([w(dtype=np.int32)], TypeError, "dtype int32"),
    by=nn.SGD,
)


def arguments(optimizer):
    """The declared arguments that have a check of their own."""
    return inspect.getclosurevars(inspect.unwrap(optimizer.__init__)).nonlocals.get("own", [])


DECLARED = [c for name in nn.__all__ if inspect.isclass(c := getattr(nn, name)) and issubclass(c, nn.Optimizer)]
DECLARED = [c for c in dict.fromkeys(DECLARED) if arguments(c)]
test_unfit_hyper_parameters_are_refused = refused(
    (making(nn.SGD, -0.1), ValueError, "learning_rate=-0.1.*at least 0"),
    (making(nn.SGD, math.nan), ValueError, "A finite number"),
    (making(nn.SGD, "0.1"), TypeError, "learning_rate='0.1'"),
    (making(nn.SGD, True), TypeError, "learning_rate=True"),
    (making(nn.SGD, clip=1.0), TypeError, "clip=1.0.*A GradientClip, or None"),
    (making(nn.SGD, loss_scaler=128.0), TypeError, "loss_scaler=128.0.*A LossScaler, or None"),
    (lambda p: nn.LARS(p), TypeError, "LARS: optimizer="),
    (lambda p: nn.LARS(nn.LARS(nn.SGD(p))), TypeError, "Another optimizer"),
    (lambda p: nn.LARS(nn.SGD(p), coefficient=0.0), ValueError, "coefficient=0.0"),
    (lambda p: nn.LARS(nn.SGD(p), lars_filter="bias"), TypeError, "lars_filter='bias'"),
    (making(nn.SGD, nesterov=True), ValueError, "Momentum above 0 and dampening 0"),
    (making(nn.SGD, momentum=0.9, dampening=0.1, nesterov=True), ValueError, "Momentum above 0 and dampening 0"),
    (making(nn.Momentum, 0.1, 0.9, weight_decay=-1.0), ValueError, "weight_decay=-1.0"),
    (making(nn.Momentum, 0.1, 0.9, loss_scale=0), ValueError, "loss_scale=0.*above 0"),
    (making(nn.FTRL, learning_rate=[0.1, 0.2]), ValueError, "FTRL: .*depends on the step.*One number above 0"),
    (lambda p: nn.FTRL([{"params": p, "lr": 0.1}]), ValueError, "differs between groups"),
    (making(nn.AdaFactor, 0.1), ValueError, "learning_rate=0.1 with relative_step=True"),
    (lambda p: nn.AdaFactor([{"params": p, "lr": 0.1}]), ValueError, "group's lr with relative_step=True"),
    (making(nn.AdaFactor, relative_step=False), ValueError, "no learning_rate"),
    (making(nn.AdaFactor, 0.1, relative_step=False, warmup_init=True), ValueError, "warmup_init=True"),
    (making(nn.AdaFactor, compression=True), ValueError, "compression=True"),
    (making(nn.SGD, None), TypeError, "learning_rate=None"),
    (making(nn.AdamWeightDecay, weight_decay=math.inf), ValueError, "weight_decay=inf"),
    by=lambda make: make([w()]),
)


@each_of("optimizer", *DECLARED, ids=[each.__name__ for each in DECLARED])
def test_a_setting_outside_its_declared_check_is_refused(optimizer):
    """`Argument(name, ..., check)`: what `tests/base/test_checks.py` does with `@checked`."""
    signature = inspect.signature(optimizer).parameters.values()
    required = {p.name: 0.5 for p in signature if p.default is p.empty and p.name != "params"}
    for argument in arguments(optimizer):
        for value in outside(argument.check):
            with pytest.raises(ParallelLabError, match=rf"^{optimizer.__name__}: {argument.name}="):
                optimizer([w()], **{**required, argument.name: value})


def test_a_learning_rate_may_be_a_tensor_of_one_number():
    assert nn.SGD([w()], Tensor(0.5)).learning_rate == 0.5
    assert nn.SGD([w()], np.float32(0.5)).learning_rate == 0.5
