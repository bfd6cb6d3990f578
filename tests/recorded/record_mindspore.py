"""Record which messages the MindSpore programs in `programs/` send, when ranks run them.

    python tests/recorded/record_mindspore.py [name ...]     # writes mindspore_messages.json, of these programs anew

mindspore_messages.json: {file: [message, ...]}, a message [kind, ranks that take part, bytes that rank 0 sends in
rings, line of the program or 0], in order. Each program is started as its first line says, with the facade as
`mindspore`, and its processes note what they send (`--events`): neither `pl.explain` nor a plan is asked. What ranks
compare before they begin is left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEFORE = re.compile(r" at (?:compare the programs|Model: agree|broadcast)")


def messages(text: str) -> list[Any]:
    """What rank 0 sends while a program runs."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "program.py").write_text(text, encoding="utf-8")
        ranks = re.search(r"run -n (\d+)", text)
        assert ranks, text[:80]
        command = [sys.executable, "-m", "parallel_lab", "run", "-n", ranks[1], "--as-mindspore"]
        command += ["--events", "events.json", "program.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        events = json.loads((Path(folder) / "events.json").read_text())["events"]
    mine = [e for e in events if e["rank"] == 0 and e["kind"] == "communication" and not BEFORE.search(e["name"])]
    lines = [re.search(r"\(program\.py:(\d+)\)", e["name"]) for e in mine]
    return [[e["op"], e["group"], e["bytes"], int(at[1]) if at else 0] for e, at in zip(mine, lines, strict=True)]


def main(names: list[str]) -> None:
    file = HERE / "mindspore_messages.json"
    rows = json.loads(file.read_text()) if file.exists() else {}
    for path in sorted((HERE / "programs").glob("mindspore_*.txt")):
        if not names or path.stem in names:
            rows[path.stem] = messages(path.read_text(encoding="utf-8"))
            print(path.stem, len(rows[path.stem]), flush=True)
            lines = [f"{json.dumps(name)}: {json.dumps(part)}" for name, part in sorted(rows.items())]
            file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
