"""Makes the six batch files and batches.meta.txt beside this script from the digits in data/digits.

    python data/digits_cifar/make_digits_cifar.py

Only needed to make the files again; `parallel_lab.train.dataset.Cifar10Dataset` reads them. It prints the SHA-256
of each file's unzipped content, which must be those in README.md. All arithmetic is in integers, every choice comes
from a hash, and the gzip header carries no time and no name, so the content does not change from run to run or from
machine to machine.

Recipe: each digit is 28x28 with values 0 (paper) to 255 (ink). The first bytes of SHA-256("digits_cifar <split>
<index>") choose for each picture:

- byte 0: where the digit lies in the 32x32 picture: row = byte // 16 % 5, column = byte % 16 % 5, so 0 to 4 pixels
  of paper above and to the left;
- byte 1: odd, light ink on dark paper; even, dark ink on light paper;
- bytes 2 and 3: two dark values, byte * 96 // 256 (from 0 to 95); bytes 4 and 5: two light values, 160 + byte * 96
  // 256 (from 160 to 255);
- byte 6: which of the two pairs red, green and blue have: the bits 0, 1 and 2 of 1 + byte % 6, so that never all
  three are alike. Two pairs instead of three make the files a third smaller, because gzip finds the repeated plane.

A pixel is (paper * (255 - value) + ink * value) / 255 in each channel, rounded half up.
"""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np

SMALL, LARGE, FULL = 28, 32, 255  # pixels per side: of a digit, of a CIFAR picture; the value of full ink
BATCHES = 5  # CIFAR-10 has its training pictures in five files
DARK, LIGHT, RANGE = 0, 160, 96  # smallest value of a dark and of a light colour; how many values each has


def digits(folder: Path, prefix: str) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) and labels (n,), uint8; the IDX headers are 16 and 8 bytes long."""

    def content(name: str, header_bytes: int) -> np.ndarray:
        file = folder / f"{prefix}-{name}.gz"
        return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=header_bytes)

    return content("images-idx3-ubyte", 16).reshape(-1, SMALL, SMALL), content("labels-idx1-ubyte", 8)


def colour(digit: np.ndarray, split: str, index: int) -> np.ndarray:
    """One digit (28, 28) as a colour picture (3, 32, 32) uint8."""
    key = hashlib.sha256(f"digits_cifar {split} {index}".encode()).digest()
    value = np.zeros((LARGE, LARGE), np.int64)
    row, column = key[0] // 16 % 5, key[0] % 16 % 5
    value[row : row + SMALL, column : column + SMALL] = digit
    pairs = [1 + key[6] % 6 >> channel & 1 for channel in range(3)]  # the pair of red, green, blue
    dark = [DARK + key[2 + pair] * RANGE // 256 for pair in pairs]
    light = [LIGHT + key[4 + pair] * RANGE // 256 for pair in pairs]
    paper, ink = (np.array(c)[:, None, None] for c in ((dark, light) if key[1] % 2 else (light, dark)))
    return ((2 * (paper * (FULL - value) + ink * value) + FULL) // (2 * FULL)).astype(np.uint8)


def contents(folder: Path) -> dict[str, bytes]:
    """File name -> content, from the digits in `folder`: a record is the label, then the red, green and blue plane."""
    found = {}
    training = [f"data_batch_{i + 1}.bin" for i in range(BATCHES)]
    for prefix, split, names in (("train", "train", training), ("t10k", "test", ["test_batch.bin"])):
        images, labels = digits(folder, prefix)
        pairs = enumerate(zip(images, labels, strict=True))
        records = [bytes([label]) + colour(image, split, i).tobytes() for i, (image, label) in pairs]
        share = len(records) // len(names)
        for i, name in enumerate(names):
            found[name] = b"".join(records[i * share : (i + 1) * share])
    return found


def main() -> None:
    folder = Path(__file__).resolve().parent
    for name, content in contents(folder.parent / "digits").items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
        print(f"{hashlib.sha256(content).hexdigest()}  {name}")
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    (folder / "batches.meta.txt").write_text("".join(f"{word}\n" for word in words), encoding="ascii")


if __name__ == "__main__":
    main()
