"""The filter of system calls around a submission (walls.py): what it decides, and that the kernel agrees."""

from __future__ import annotations

import errno
import os
import platform
import struct
import subprocess
import sys

import pytest

from parallel_lab.lab.grading import walls
from tests.crossed import each_of

TESTS = {0x15: lambda a, b: a == b, 0x25: lambda a, b: a > b, 0x35: lambda a, b: a >= b, 0x45: lambda a, b: bool(a & b)}
YES, NO = 0x7FFF0000, 0x50000 | errno.EPERM


def decided(steps, number: int, first: int = 0) -> int:
    """What a filter returns for a call with a first argument: its steps one by one (BPF, man 2 seccomp)."""
    data, at, a = struct.pack("<IIQ6Q", number, walls._ARCH["x86_64"], 0, first % 2**64, *[0] * 5), 0, 0
    while True:
        code, yes, no, value = steps[at]
        at += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (a,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            a &= value
        elif code == 0x05:
            at += value
        else:
            at += yes if TESTS[code](a, value) else no


@each_of("call", "kill", "tgkill", "sigqueue", "tgsigqueue")
def test_only_what_has_begun_since_gets_a_signal_also_where_numbers_begin_anew(call):
    """The grader had a larger number than the submission, and was ended by it."""
    steps = walls._filter(False, "x86_64", own=100, others=[7, 90, 101, 102, 150, 4000])
    for number in (0, 100, 103, 149, 151, 3999, 4001):
        assert decided(steps, walls._RULED[call][0], number) == YES, number
    for number in (-1, -100, 7, 99, 101, 102, 150, 4000):
        assert decided(steps, walls._RULED[call][0], number) == NO, number
    assert decided(steps, walls._RULED["tkill"][0], 103) == NO
    assert decided(walls._filter(True, "x86_64", own=100), walls._RULED[call][0], 7) == YES  # alone: none is there


def test_of_very_many_processes_none_gets_a_signal():
    """A filter has 4096 steps at most."""
    others = list(range(101, 40_000, 7))
    steps = walls._filter(False, "x86_64", own=100, others=others)
    assert len(steps) <= 4096
    assert {decided(steps, walls._RULED["kill"][0], number) for number in others} == {NO}
    assert decided(steps, walls._RULED["kill"][0], 40_100) == YES


OWN = """
import os, signal, sys, threading
from parallel_lab.lab.grading import walls
print(os.getpid(), flush=True)
victim = int(input())
walls.close({"landlock": 0, "seccomp": True, "namespaces": False}, "", [])
def kill(number):
    try:
        os.kill(number, signal.SIGKILL)
    except PermissionError:
        return "refused"
    return "sent"
child = os.fork()
if child == 0:
    signal.pause()
print(kill(victim), kill(os.getppid()), kill(child), os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() not in walls._ARCH, reason="the filter is Linux's")
def test_the_kernel_refuses_a_signal_to_an_older_process_with_a_larger_number():
    run = subprocess.Popen([sys.executable, "-c", OWN], stdin=-1, stdout=-1, text=True)
    number = int(run.stdout.readline())
    victim = subprocess.Popen(["sleep", "60"])
    try:
        said, _ = run.communicate(f"{victim.pid}\n", timeout=60)
        assert said.split() == ["refused", "refused", "sent", "9"] and victim.poll() is None
        assert victim.pid > number or number > 30_000  # where they have just begun anew it is the plain case
    finally:
        victim.kill()
        victim.wait()


def test_a_submissions_process_computes_with_the_bits_of_its_grader(monkeypatch):
    """What sets the blocks of a product goes along, and nothing else that a teacher's environment holds."""
    monkeypatch.setattr(os, "environ", {"OPENBLAS_L2_SIZE": "512", "MKL_CBWR": "COMPATIBLE", "TOKEN": "secret"})
    few = walls.environment({"OPENBLAS_NUM_THREADS": "1"})
    del few["PATH"]
    assert few == {"OPENBLAS_L2_SIZE": "512", "MKL_CBWR": "COMPATIBLE", "OPENBLAS_NUM_THREADS": "1"}
