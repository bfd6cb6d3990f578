"""Data: IDX files, the digits that come with the package, the quickstart's fixed batch."""

from .digits import load_digits, read_digit_files
from .idx import read_idx, write_idx
from .seed import seed_batch

__all__ = ["load_digits", "read_digit_files", "read_idx", "seed_batch", "write_idx"]
