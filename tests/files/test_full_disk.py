"""A disk that is really full: a small file system of our own, in a mount namespace that ends with its process.

Whatever is written there: the error names the file and says that no room is left, the old file is whole, nothing is
left that keeps the disk full, and the next write that fits succeeds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.files.full_disk import CASES, RANKS

pytestmark = [pytest.mark.faults("poor machines", cases=3), pytest.mark.timeout(120)]
SIZE = "2m"
ROOT = Path(__file__).resolve().parents[2]
# what a case leaves at most besides the small file that is there at the end
SLACK_BYTES = 64 * 1024
EXPECTED = {  # what is read of the first, and of the last file
    "save_checkpoint": (1000.0, 3600.0),
    "save_distributed": (RANKS * 1000.0, RANKS * 3600.0),
    "strategy file": (4.0, 4.0),
    "events": None,
    "write_idx": (1000.0, 3600.0),
    "write_cifar10": (2.0, 2.0),
    "a lab": (4.0, 8.0),
    "a lab's page": None,
    "a lab's program": None,
}


def in_small_file_system(*words):
    """The command in a mount namespace, as root there; the last word but one is a folder of so many bytes."""
    return [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        f'mount -t tmpfs -o size={SIZE} none "$1" && shift && exec "$@"',
        "sh",
        *words,
    ]


def missing(folder):
    """Why there can be no file system of our own here; "": there can."""
    if shutil.which("unshare") is None:
        return "unshare is not installed (apt-get install util-linux)"
    tried = subprocess.run(in_small_file_system(str(folder), "true"), capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"a mount namespace needs root or user namespaces: {tried.stderr.strip()}"


@pytest.mark.quick(1)
@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_named_and_not_kept_full(tmp_path, case):
    if why := missing(tmp_path):
        pytest.skip(f"a full disk: {why}")
    script = str(ROOT / "tests" / "files" / "full_disk.py")
    command = in_small_file_system(str(tmp_path), sys.executable, script, str(tmp_path), case)
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout.splitlines()[-1])
    print(told)
    assert "ParallelLabError" in told["kinds"] and "OSError" in told["kinds"]
    assert str(tmp_path) in told["text"] and "No space left on device" in told["text"]
    assert "Traceback" not in run.stderr
    first, last = EXPECTED[case] or (told["before"], told["next"])
    assert (told["before"], told["after"], told["next"]) == (first, first, last)
    assert not [name for name in told["listed"] if name.endswith(".part")]
    assert told["grown"] <= SLACK_BYTES
    assert not list(tmp_path.iterdir())  # the file system has ended with its process
