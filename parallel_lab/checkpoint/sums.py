"""A text that carries its own sha256: the 64 digits stand in the text, and count as zeros in the sum.

>>> data = with_sum(b'{"sha256":"' + NO_SUM + b'","x":1}')
>>> sum_fits(data, data[11:75].decode()), sum_fits(data.replace(b"1}", b"2}"), data[11:75].decode())
(True, False)
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["NO_SUM", "sum_fits", "with_sum"]

NO_SUM = b"0" * 64  # what a writer puts where the sum will be; the first such run in the text


def with_sum(data: bytes) -> bytes:
    """`data` with its sum in the place of `NO_SUM`."""
    return data.replace(NO_SUM, hashlib.sha256(data).hexdigest().encode(), 1)


def sum_fits(data: bytes, given: Any) -> bool:
    """Whether `given`, which was read out of `data`, is the sum of the rest."""
    if not isinstance(given, str) or len(given) != len(NO_SUM) or not given.isascii() or data.count(given.encode()) != 1:
        return False
    return hashlib.sha256(data.replace(given.encode(), NO_SUM)).hexdigest() == given
