"""The console of a run: whole lines, whose they are, equal ones together; the log files byte for byte."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from parallel_lab.processes.launch.console import FOLD_S, TRACE_S, Console, mpirun_logs


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is set."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr("parallel_lab.processes.launch.console.time", clock)
    return clock


def console(count, **options):
    stream = io.StringIO()
    return Console(count, stream=stream, **options), stream


def test_lines_stay_whole_however_their_bytes_come():
    it, stream = console(2)
    it.feed(0, b"hel")
    it.feed(1, b"other\nan")
    it.feed(0, b"lo\nlast")
    it.feed(1, b"d\n")
    it.close()
    assert stream.getvalue() == "[1] other\n[0] hello\n[1] and\n[0] last\n"


def test_logs_hold_every_byte(tmp_path, rng):
    logs = mpirun_logs(tmp_path, 3)
    it, _ = console(3, logs=logs)
    written = [b"", b"", b""]
    for _ in range(200):
        rank, data = int(rng.integers(3)), rng.bytes(int(rng.integers(1, 50)))
        written[rank] += data
        it.feed(rank, data)
    it.close()
    assert [path.read_bytes() for path in logs] == written


def test_log_files_are_named_as_mpirun_names_them():
    assert str(mpirun_logs(Path("log_output"), 8)[7]) == "log_output/1/rank.7/stdout"
    expected = ["log_output/1/rank.00/stdout", "log_output/1/rank.11/stdout"]
    assert [str(p) for p in mpirun_logs(Path("log_output"), 12)[::11]] == expected


def test_a_progress_bar_is_the_line_it_ends_as():
    it, stream = console(1)
    it.feed(0, b" 10%\r 50%\r100%\ndone\r\n")
    it.close()
    assert stream.getvalue() == "[0] 100%\n[0] done\n"


def test_equal_lines_fold_and_each_rank_keeps_its_order(clock):
    it, stream = console(4, fold=True)
    for rank in (2, 0, 1):
        it.feed(rank, b"loss 1\n")
    assert stream.getvalue() == ""  # rank 3 may say the same
    it.feed(3, b"loss 1\nloss 2\n")
    assert stream.getvalue() == "[0-3] loss 1\n"
    it.feed(0, b"loss 2\n")
    clock.now += FOLD_S + 0.01
    it.flush()
    assert stream.getvalue().splitlines()[1:] == ["[0,3] loss 2"]
    it.close()


def test_folding_never_loses_or_reorders_lines(clock, rng):
    said = {rank: [str(rng.integers(3)) for _ in range(50)] for rank in range(4)}
    it, stream = console(4, fold=True)
    left = {rank: list(lines) for rank, lines in said.items()}
    while any(left.values()):
        rank = int(rng.choice([r for r in left if left[r]]))
        it.feed(rank, left[rank].pop(0).encode() + b"\n")
        clock.now += float(rng.uniform(0, FOLD_S / 4))
    it.close()
    seen = {rank: [] for rank in range(4)}
    for line in stream.getvalue().splitlines():
        tag, text = line[1:].split("] ")
        for part in tag.split(","):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                seen[rank].append(text)
    assert seen == said
    assert len(stream.getvalue().splitlines()) < 200


def test_equal_tracebacks_become_one_and_the_lines_around_them_keep_their_order(clock):
    """Of 4 ranks 0, 1 and 3 raise the same, 2 another thing; until the last has ended or a second is over."""
    same, other = (b"Traceback (most recent call last):\n  File 'a'\n%s\n" % end for end in (b"X: 1", b"X: 2"))
    it, stream = console(4)
    for rank in (3, 0, 2, 1):
        it.feed(rank, b"begins\n" + (other if rank == 2 else same)[:40])
    for rank in (0, 1, 2, 3):
        it.feed(rank, (other if rank == 2 else same)[40:])
        it.end_of(rank)
    trace = [line.decode() for line in same.splitlines()]
    expected = [f"[{rank}] begins" for rank in (3, 0, 2)]
    expected += [f"[2] {line.decode()}" for line in other.splitlines()]
    expected += ["[1] begins", *(f"[0,1,3] {line}" for line in trace)]
    assert stream.getvalue().splitlines() == expected
    it, stream = console(2)
    it.feed(0, same + b"goes on\n")
    assert stream.getvalue() == ""
    clock.now += TRACE_S
    it.feed(0, b"at once\n")
    assert stream.getvalue().splitlines() == [f"[0] {line}" for line in (*trace, "goes on", "at once")]


def test_no_tag_colour_and_chosen_ranks():
    it, stream = console(2, tag=False)
    it.feed(1, b"x\n")
    assert stream.getvalue() == "x\n"
    it, stream = console(2, colour=True)
    it.feed(1, b"x\n")
    assert stream.getvalue() == "\x1b[33m[1] \x1b[0mx\n"
    it, stream = console(2, only={0})
    it.feed(0, b"a\n")
    it.feed(1, b"b\n")
    assert stream.getvalue() == "[0] a\n"


def test_a_lost_reader_is_reported_once_and_the_logs_are_whole(tmp_path):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("nobody reads")

    logs = [tmp_path / f"{rank}" for rank in range(2)]
    it = Console(2, stream=Gone(), logs=logs)
    with pytest.raises(BrokenPipeError):
        it.feed(0, b"first\nsecond\nunended")
    it.feed(1, b"other\nlast")
    it.end_of(0)
    it.note("all have ended")
    it.close()
    assert [log.read_bytes() for log in logs] == [b"first\nsecond\nunended", b"other\nlast"]
    assert all(file.closed for file in it._files)
