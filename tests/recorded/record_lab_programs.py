"""Run the programs that labs export for PyTorch and JAX, and record their losses: in an environment with both.

    pip install -e ".[oracle]" && python tests/recorded/record_lab_programs.py          # writes lab_programs.json
    python tests/recorded/record_lab_programs.py --check                                # compares with it instead
    python tests/recorded/record_lab_programs.py --new                                  # only what is not in it

PyTorch: torchrun with gloo, a process per rank. JAX: 8 host devices in one process. Recorded are, per case of
lab_programs.py and target, a digest of the program's text and the losses it printed; null if the program is missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
FILE = Path(__file__).with_name("lab_programs.json")
PRINTED = re.compile(r"step \d+: loss (\S+)")
LIMIT_S = 400
CLOSE = 1e-4  # relative: float32, summed in other orders, and steps of Adam on it


def digest(text: str) -> str:
    """The digest of a program's text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run(lab: object, target: str, devices: int) -> list[float]:
    """The losses that a program prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = lab.save_code(folder, target)  # type: ignore[attr-defined]
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(devices), path.name]
        if target == "jax":
            command = [sys.executable, path.name]
        more = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=LIMIT_S
        )
        losses = [float(found) for found in PRINTED.findall(done.stdout)]
    if not losses:  # PyTorch 2.13 at times aborts at its very end, after the last line
        raise SystemExit(f"{target} failed:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return losses


def main(options: list[str]) -> None:
    from parallel_lab.lab.code.exports import is_program
    from tests.recorded.lab_programs import CASES, STEPS, devices_of, one_device_losses

    known = json.loads(FILE.read_text()) if FILE.exists() and options else {}
    found: dict[str, dict[str, dict | None]] = {}
    wrong = []
    for case, make in CASES.items():
        lab, rows = make(), {}
        wanted = one_device_losses(lab)
        for target in ("torch", "jax"):
            text = lab.code(target)
            held = known.get(case, {}).get(target)
            if not is_program(text):
                rows[target] = None
            elif "--new" in options and held and held["digest"] == digest(text):
                rows[target] = held
            else:
                losses = run(lab, target, devices_of(lab))
                rows[target] = {"digest": digest(text), "losses": losses}
                same = len(losses) == STEPS and np.allclose(losses, wanted, rtol=CLOSE)
                if "--check" in options:
                    same &= (
                        bool(held)
                        and held["digest"] == digest(text)
                        and np.allclose(losses, held["losses"], rtol=CLOSE)
                    )
                print(f"{case}, {target}: {'as on one device' if same else f'{losses}, wanted {wanted}'}", flush=True)
                if not same:
                    wrong.append(f"{case}, {target}")
        found[case] = rows
        if "--check" not in options:
            lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items()]
            FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if wrong:
        raise SystemExit(f"wrong: {'; '.join(wrong)}")


if __name__ == "__main__":
    main(sys.argv[1:])
