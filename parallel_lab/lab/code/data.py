"""The labs' data as lines of numpy: each makes `batches`, the same arrays that the lab trains on, bit for bit.

    exec(DATA["seed"], {"np": numpy})

Handwritten digits are files: a program reads them from an .npz that `lab.save_code` writes next to it.
"""

from __future__ import annotations

from itertools import chain

SEED = """\
draw = np.random.RandomState(1)
batches = [(draw.rand(16, 32).astype(np.float32), draw.rand(16, 16).astype(np.float32))]"""

CHAIN = """\
draw = rng(7)
batches = [tuple(draw.normal(size=(64, width)).astype(np.float32) for width in (512, 2048))]"""

TEXT = """\
ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " \\
    "seventeen eighteen nineteen".split()
tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
words = ones + [ten if not one else f"{ten} {ones[one]}" for ten in tens for one in range(10)]
tokens = np.array([0 if letter == " " else ord(letter) - 96 for letter in " ".join(words)], np.int32)
starts = range(0, len(tokens) - 256, 256)
batches = [tuple(tokens[i + k : i + k + 256].reshape(16, 16) for k in (0, 1)) for i in starts]"""

CLICKS = """\
draw, batches = rng(3), []
worth, pair = draw.normal(size=64), draw.normal(size=(16, 16))
for _ in range(8):
    chosen = draw.integers(0, 16, (64, 4))
    ids = chosen + np.arange(4) * 16
    clicked = worth[ids].sum(axis=1) + 2 * pair[chosen[:, 0], chosen[:, 1]] > 0
    batches.append((ids.astype(np.int32), np.ones(ids.shape, np.float32), clicked.astype(np.float32)[:, None]))"""

_FILE = 'held = np.load("{name}.npz")\nbatches = list(zip({arrays}))'
FILES = {"digits": 2, "pictures": 2}  # how many arrays a batch has

DATA = {"seed": SEED, "chain": CHAIN, "text": TEXT, "clicks": CLICKS}
DATA |= {
    name: _FILE.format(name=name, arrays=", ".join(f'held["arr_{n}"]' for n in range(count)))
    for name, count in FILES.items()
}


def stack_of_memory(width: int) -> str:
    """The Memory Lab's stack of a width."""
    return f"draw = rng(11)\nbatches = [tuple(draw.normal(size=(512, {width})).astype(np.float32) for _ in range(2))]"


def chain_of_search(rows: int, width_in: int, width_out: int) -> str:
    """The Search Lab's chains of products."""
    draw = f"tuple(draw.normal(size=({rows}, width)).astype(np.float32) for width in ({width_in}, {width_out}))"
    return f"draw = rng(11)\nbatches = [{draw}]"


def stack_of_pipeline(rows: int, width: int) -> str:
    """The Pipeline Lab's stack for so many rows."""
    return "\n".join(
        [
            "draw = rng(7)",
            f"x = draw.normal(size=({rows}, {width})).astype(np.float32)",
            f"y = np.tanh(x @ draw.normal(size=({width}, {width})).astype(np.float32) / 8)",
            "batches = [(x, y)]",
        ]
    )


def text_of_pipeline(rows: int) -> str:
    """The Pipeline Lab's GPT: sequences in order, around and around."""
    return "\n".join(
        chain(
            [TEXT],
            [
                "ids, following = (np.concatenate(columns) for columns in zip(*batches))",
                f"rows = np.arange({rows}) % len(ids)",
                "batches = [(ids[rows], following[rows])]",
            ],
        )
    )
