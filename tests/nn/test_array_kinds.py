"""Whatever array comes in, and wherever: it counts as the numbers it shows, or is refused. A mask is never lost."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

from parallel_lab import Parameter, Session, Tensor, compile, nn, ops
from parallel_lab.base.errors import ParallelLabError, RankRaised
from parallel_lab.mindspore import load_checkpoint, save_checkpoint
from parallel_lab.nn.initializer import initializer
from parallel_lab.run.communicator import Request
from parallel_lab.run.simulator import simulate
from parallel_lab.train import checkpoint
from parallel_lab.train.dataset import GeneratorDataset, NumpySlicesDataset, write_cifar10, write_idx
from parallel_lab.train.engine import make_train_step
from parallel_lab.train.metrics import MAE
from tests.processes.pools import RARELY_OVER_MPI

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore:the matrix:PendingDeprecationWarning")]
N = 2
NUMBERS = np.arange(1.0, 17.0, dtype=np.float32).reshape(4, 4)
X = np.ones((4, 4), np.float32)


def masked(data=NUMBERS):
    return np.ma.MaskedArray(data, mask=np.arange(data.size).reshape(data.shape) == 5)


REFUSED = {
    "masked": masked,
    "a list of masked": lambda: [masked()[0], masked()[1], masked()[2], masked()[3]],
    "a masked number in a list": lambda: [[1.0, 2.0, 3.0, np.ma.masked]] * 4,
    "object": lambda: NUMBERS.astype(object),
    "datetime64": lambda: NUMBERS.astype("datetime64[s]"),
    "timedelta64": lambda: NUMBERS.astype("timedelta64[s]"),
    "structured": lambda: np.zeros((4, 4), [("a", "f4"), ("b", "i4")]),
    "record": lambda: np.zeros((4, 4), [("a", "f4"), ("b", "i4")]).view(np.recarray),
    "text": lambda: NUMBERS.astype(str),
    "bytes": lambda: NUMBERS.astype("S4"),
    "void": lambda: np.zeros((4, 4), "V4"),
}


class Own(np.ndarray):
    """A learner's own subclass."""


TAKEN = {
    "matrix": lambda: np.asmatrix(NUMBERS),
    "own": lambda: NUMBERS.view(Own),
    "nothing masked": lambda: np.ma.MaskedArray(NUMBERS, mask=False),
    "reversed": lambda: NUMBERS[::-1, ::-1].copy()[::-1, ::-1],
    "columns first": lambda: np.asfortranarray(NUMBERS),
    "read only": lambda: np.frombuffer(NUMBERS.tobytes(), np.float32).reshape(4, 4),
}


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.eye(4, dtype=np.float32)), name="w")

    def construct(self, x):
        return ops.matmul(x, self.w)


def plan_of(net, optimizer):
    options = {"optimizer": optimizer, "device_num": 1, "dataset_strategy": "full_batch"}
    return compile(net, X, X, loss=lambda x, label: ops.reduce_sum(x * label), **options)


def trained(x, label=X):
    """What a step of SGD with rate 1 takes off w: x.T @ label."""
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    with Session(plan_of(net, optimizer), net, optimizer) as session:
        session.train([(x, label)], 1)
        return np.eye(4) - session.parameters()["w"]


def stepped(x):
    net = Net()
    make_train_step(net, lambda x, label: ops.reduce_sum(x * label), nn.SGD(net.trainable_params(), 1.0))(x, X)
    return np.eye(4) - net.w.asnumpy()


def initial(x):
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    with Session(plan_of(net, optimizer), {"w": x}, optimizer) as session:
        return session.parameters()["w"]


def set_data(x):
    w = Parameter(Tensor(X), name="w")
    w.set_data(x)
    return w


def written(x):
    t = Tensor(X)
    t[...] = x
    return t


def optimized(x):
    w = Parameter(Tensor(np.zeros((4, 4), np.float32)), name="w")
    nn.SGD([w], 1.0)((x,))
    return -w.asnumpy()


def read(dataset):
    return np.array([row[0] for row in dataset])


def simulated(x):
    def program(rank):
        return (yield Request("broadcast", (0, 1), x if rank == 0 else None, root=0, shape=(4, 4), dtype="float32"))

    return simulate([program(rank) for rank in range(2)])[1]


def saved(x):
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint([{"name": "w", "data": x}], f"{folder}/x.ckpt")
        return load_checkpoint(f"{folder}/x.ckpt")["w"]


SUM = NUMBERS.T @ X
ARRAYS = {  # what is made of an array, and what that must be for NUMBERS
    "Tensor": (lambda x: Tensor(x), NUMBERS),
    "from_numpy": (lambda x: Tensor.from_numpy(x), NUMBERS),
    "Parameter": (lambda x: Parameter(x, name="w"), NUMBERS),
    "initializer": (lambda x: Parameter(initializer(x, [4, 4]), name="w"), NUMBERS),
    "set_data": (set_data, NUMBERS),
    "x[...] =": (written, NUMBERS),
    "relu": (lambda x: ops.relu(x), NUMBERS),
    "mul of arrays": (lambda x: ops.mul(x, x), NUMBERS * NUMBERS),
    "beside a Tensor": (lambda x: ops.mul(Tensor(NUMBERS), x), NUMBERS * NUMBERS),
    "the right of *": (lambda x: Tensor(NUMBERS) * x, NUMBERS * NUMBERS),
    "concat": (lambda x: ops.concat((Tensor(X), x))[4:], NUMBERS),
    "input of a Session": (trained, SUM),
    "label of a Session": (lambda x: trained(X, x), X.T @ NUMBERS),
    "initial value of a Session": (initial, NUMBERS),
    "input of a step": (stepped, SUM),
    "a gradient": (optimized, NUMBERS),
    "a column of slices": (lambda x: read(NumpySlicesDataset(x, ["x"], shuffle=False)), NUMBERS),
    "a column of a generator": (lambda x: read(GeneratorDataset(lambda: iter([(x,)]), ["x"]))[0], NUMBERS),
    "a map": (lambda x: read(GeneratorDataset(lambda: iter([(X,)]), ["x"]).map(lambda _: x, ["x"]))[0], NUMBERS),
    "a checkpoint": (saved, NUMBERS),
    "a simulated message": (simulated, NUMBERS),
}


HOLD_TEXT = ("a column of slices", "a column of a generator", "a map")


@pytest.mark.quick(60)
@pytest.mark.parametrize(
    ("way", "kind"), [(w, k) for w in ARRAYS for k in REFUSED if w not in HOLD_TEXT or k not in ("text", "bytes")]
)
def test_anything_but_a_plain_array_of_numbers_is_refused(way, kind):
    with pytest.raises(ParallelLabError):
        ARRAYS[way][0](REFUSED[kind]())


COMPLEX = {way: make for way, (make, _) in ARRAYS.items() if way != "a simulated message"}
COMPLEX |= {
    "a number": lambda x: Tensor(1j),
    "a list": lambda x: Tensor([1.0, 2j]),
    "times a number": lambda x: Tensor(NUMBERS) * 1j,
    "a dtype": lambda x: Tensor(NUMBERS, np.complex64),
    "a cast": lambda x: Tensor(NUMBERS).astype("complex128"),
    "zeros": lambda x: ops.zeros((2, 2), np.complex64),
    "full": lambda x: ops.full((2, 2), 1j),
    "a rate": lambda x: nn.SGD(Net().trainable_params(), 1j),
    "compile": lambda x: compile(Net(), x, device_num=1, dataset_strategy="full_batch"),
}


@pytest.mark.parametrize("way", COMPLEX)
def test_complex_numbers_are_refused_with_what_to_try(way):
    with pytest.raises(ParallelLabError, match=r"Compute with x\.real and x\.imag"):
        COMPLEX[way](NUMBERS.astype(np.complex64))


@pytest.mark.quick(40)
@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("way", ARRAYS)
def test_what_shows_all_its_numbers_counts_as_they_do(way, kind):
    make, expected = ARRAYS[way]
    found = make(TAKEN[kind]())
    found = found.asnumpy() if isinstance(found, Tensor) else found
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, expected)


def test_files_and_metrics_take_no_mask(tmp_path):
    images, labels = np.zeros((3, 32, 32, 3), np.uint8), np.array([1, 2, 3], np.uint8)
    hidden = np.ma.MaskedArray(labels, mask=[0, 1, 0])
    metric = MAE()
    ways = [
        lambda: write_idx(tmp_path / "x.idx", hidden),
        lambda: write_cifar10(tmp_path / "x.bin", images, hidden),
        lambda: write_cifar10(tmp_path / "x.bin", np.ma.MaskedArray(images, mask=images == 0), labels),
        lambda: checkpoint.TensorRecord(masked()),
        lambda: metric.update(masked(), X),
        lambda: metric.update(Tensor(X), masked()),
    ]
    for way in ways:
        with pytest.raises(ParallelLabError, match="masked elements"):
            way()
    assert not list(tmp_path.iterdir())


# ---- ranks ----

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send")


@pytest.fixture(scope="module", params=RARELY_OVER_MPI)  # MPI is exhaustive
def pool(request):
    with request.param(N, timeout_s=20) as pool:
        yield pool


def message(comm, kind, x, way):
    fields = {"root": 0} if kind in ("broadcast", "reduce", "gather", "scatter") else {}
    if kind == "send":
        way = "called" if way == "operator" else way
        if way == "started":
            handle = comm.start("send", x, (comm.rank, 1 - comm.rank))
        else:
            comm.send(x, 1 - comm.rank)
        got = comm.recv(1 - comm.rank)
        if way == "started":
            handle.wait()
        return got
    if way == "started":
        return comm.start(kind, x, **fields).wait()
    if way == "request":
        about = {"split_dim": 0, "concat_dim": 0} if kind == "all_to_all" else {}
        gives = kind not in ("broadcast", "scatter") or comm.rank == 0
        more = {"shape": (4, 4), "dtype": "float32"} if kind == "broadcast" else {}
        return comm.answer(Request(kind, (0, 1), x if gives else None, **fields, **about, **more))
    return getattr(comm, kind)(x, **fields)


WAYS = ("called", "started", "request")


def hidden_on_all(comm, kind, way):
    return message(comm, kind, masked(), way)


@pytest.mark.parametrize(("kind", "way"), [(k, w) for k in KINDS for w in WAYS if (k, w) != ("send", "request")])
def test_messages_carry_no_mask(pool, kind, way):
    with pytest.raises(RankRaised, match="masked elements"):
        pool.run(hidden_on_all, kind, way)


def twice(comm, kind, way):
    """The second time the line is known."""
    found = [[message(comm, kind, x, way) for x in (NUMBERS, TAKEN[name]())] for name in ("matrix", "nothing masked")]
    return [np.array_equal(a, b) if a is not None else b is None for a, b in found]


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize("kind", KINDS)
def test_messages_carry_the_numbers_of_subclasses(pool, kind, way):
    assert pool.run(twice, kind, way) == [[True, True]] * N
