"""Sleeping until another process changes a word in shared memory (futex).

`find(arena)` gives a `Futex`, or None on a machine whose call is not known; a wait then sleeps for short times instead.
"""

from __future__ import annotations

import ctypes
import platform

import numpy as np

from ...base.system import SYSTEM, c_function
from .arena import Arena
from .arrays import address_of

# number of the system call futex (linux/arch/*/syscall*.tbl, include/uapi/asm-generic/unistd.h); all little-endian
_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
FUTEX_WAIT, FUTEX_WAKE = 0, 1  # not the private forms: the word lies in memory that processes share
EVERYBODY = 2**31 - 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """Waits on words of one arena. A word counts as changed when its low 32 bits have."""

    def __init__(self, arena: Arena, number: int) -> None:
        self._call = c_function("syscall")
        number_type, pointer = ctypes.c_long, ctypes.c_void_p
        self._call.restype = number_type
        self._call.argtypes = (number_type, pointer, number_type, number_type, pointer, pointer, number_type)
        self._number = number
        self._arena = arena  # keeps the mapping
        self._base = address_of(np.frombuffer(arena.bytes, np.uint8, 1))
        self._limit = _Time()
        self._limit_at = ctypes.addressof(self._limit)

    def wait(self, index: int, seen: int, limit_s: float) -> None:
        """Sleep while word `index` is `seen`, at most `limit_s` seconds (below 1); may return early for no reason."""
        self._limit.nanoseconds = int(limit_s * 1e9)
        self._call(self._number, self._base + 8 * index, FUTEX_WAIT, seen & 0xFFFFFFFF, self._limit_at, None, 0)

    def wake(self, index: int) -> None:
        """Wake all who sleep on word `index`."""
        self._call(self._number, self._base + 8 * index, FUTEX_WAKE, EVERYBODY, None, None, 0)


def find(arena: Arena) -> Futex | None:
    """The futex of this system, None where none is known to work."""
    number = _NUMBERS.get(platform.machine()) if SYSTEM.futex else None
    return None if number is None or ctypes.sizeof(ctypes.c_void_p) != 8 else Futex(arena, number)
