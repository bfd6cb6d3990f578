"""Makes the four IDX files beside this script from scikit-learn's copy of the UCI handwritten digits.

    pip install scikit-learn && python data/digits/make_digits.py

Only needed to make the files again; `parallel_lab/train/dataset/digits.py` reads them. It prints the SHA-256 of
each file's unzipped content, which must be those in SOURCE.md. The arithmetic is in integers and the gzip header
carries no time and no name, so nothing changes from run to run.

Recipe: each original is 8x8 with values 0..16. Bilinear interpolation with aligned pixel centres takes it to 28x28:
output pixel i has its centre at (2i + 1) * 8 / 56 - 1/2 = (4i - 5) / 14 in units of input pixels, and beyond the
edge the edge value goes on. The result is rounded half up to the original's 17 grey levels 0..16 (finer levels
would be invented, and double the size of the files), which become 0..255 as level * 255 / 16, again rounded half
up.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np

SMALL, LARGE = 8, 28  # pixels per side: the original, and MNIST's
FULL, BYTE = 16, 255  # largest value: of the original, of a uint8
CELLS = 14  # an output centre lies on a multiple of 1/14 input pixel (see above)
TRAIN_COUNT = 1440  # the first 1,440 are for training (45 batches of 32), the other 357 for testing


def weights() -> np.ndarray:
    """Interpolation weights of one direction in 14ths, (28, 8) int64; every row sums to 14."""
    found = np.zeros((LARGE, SMALL), np.int64)
    for i in range(LARGE):
        left, part = divmod(4 * i - 5, CELLS)
        found[i, min(max(left, 0), SMALL - 1)] += CELLS - part
        found[i, min(max(left + 1, 0), SMALL - 1)] += part
    return found


def enlarge(small: np.ndarray) -> np.ndarray:
    """(n, 8, 8) integers 0..16 -> (n, 28, 28) uint8 0..255."""
    w = weights()
    sums = np.einsum("ir,nrc,jc->nij", w, small.astype(np.int64), w)
    levels = (2 * sums + CELLS * CELLS) // (2 * CELLS * CELLS)
    return ((2 * BYTE * levels + FULL) // (2 * FULL)).astype(np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    """A uint8 array as an IDX file (type code 0x08, big-endian sizes)."""
    return struct.pack(f">HBB{array.ndim}I", 0, 0x08, array.ndim, *array.shape) + array.tobytes()


def main() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    small, labels = digits.images.astype(np.uint8), digits.target.astype(np.uint8)
    large = enlarge(small)
    folder = Path(__file__).parent
    for name, part in (("train", slice(None, TRAIN_COUNT)), ("t10k", slice(TRAIN_COUNT, None))):
        for kind, array in (("images-idx3", large[part]), ("labels-idx1", labels[part])):
            path = folder / f"{name}-{kind}-ubyte.gz"
            content = idx_bytes(array)
            path.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
            print(f"{hashlib.sha256(content).hexdigest()}  {path.name.removesuffix('.gz')}")


if __name__ == "__main__":
    main()
