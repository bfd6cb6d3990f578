"""In place of a file a folder, a pipe, a socket, a device, a hole without end, a link that leads in a circle, nothing:
told at once.
"""

import os
import socket
import threading

import pytest

from parallel_lab.base.errors import ParallelLabError
from parallel_lab.base.files import open_regular, read_regular
from tests.crossed import crossed
from tests.files.readers import FILES, READERS, read_plain


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # in the folder of the test: a long path is not a valid address


SPECIAL = {
    "pipe": make_pipe,
    "folder": lambda path: path.mkdir(),
    "socket": make_socket,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "empty device": lambda path: path.symlink_to("/dev/null"),
    "circle": lambda path: path.symlink_to(path.name),
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "hole of 1 TiB": lambda path: (path.touch(), os.truncate(path, 1 << 40)),
    "link to a pipe": lambda path: (make_pipe(path.with_name("pipe")), path.symlink_to("pipe")),
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_the_good_file_is_read(tmp_path, reader):
    reader.write(tmp_path / reader.name)
    assert read_plain(reader, tmp_path / reader.name) == read_plain(reader, tmp_path / reader.name)


# `crossed` marks most of them exhaustive
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "special"), crossed(FILES, SPECIAL))
def test_anything_but_a_file_is_refused_without_waiting(tmp_path, monkeypatch, kind, special):
    reader, path = FILES[kind], tmp_path / FILES[kind].name
    reader.write(path)
    path.unlink()
    monkeypatch.chdir(tmp_path)
    SPECIAL[special](path)
    if kind == "request to end" and special == "dangling link":
        assert reader.read(path) is False  # nothing there yet: nobody asks
        return
    with pytest.raises(ParallelLabError) as caught:
        reader.read(path)
    assert path.name in str(caught.value)


def test_a_file_is_looked_at_when_it_is_open(tmp_path):
    """What has the name may be replaced between a look and the opening: 300 times by another thread."""
    path, over = tmp_path / "x", threading.Event()

    def replace():
        while not over.is_set():
            (tmp_path / "file").write_bytes(b"whole")
            os.replace(tmp_path / "file", path)
            os.mkfifo(tmp_path / "pipe")
            os.replace(tmp_path / "pipe", path)

    path.write_bytes(b"whole")
    thread = threading.Thread(target=replace, daemon=True)
    thread.start()
    seen = set()
    for _ in range(300):
        try:
            seen.add(read_regular(path, 100))
        except OSError as error:
            seen.add(error.strerror)
    over.set()
    thread.join(10)
    assert not thread.is_alive()
    assert seen <= {b"whole", "it is a pipe, not a regular file"}


def test_no_descriptor_stays_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    make_pipe(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        for _ in range(5):
            with pytest.raises(OSError):
                open_regular(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_larger_than_allowed_is_not_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, at most 4 are read"):
        read_regular(tmp_path / "x", 4)


@pytest.fixture
def silent(tmp_path, monkeypatch):
    """Makes the file at a path one that the kernel calls regular, without content and without an end (/proc/kmsg)."""
    writers = []

    def make(path):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        writers.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        monkeypatch.setattr("parallel_lab.base.files.stat.S_ISREG", lambda mode: True)

    yield make
    for each in writers:
        os.close(each)


def test_a_file_that_gives_nothing_and_has_no_end_is_an_os_error(tmp_path, silent):
    """Its read gives None, as of a pipe: `None has no attribute 'decode'` in the readers."""
    silent(tmp_path / "x")
    with open_regular(tmp_path / "x") as file:
        for read in (lambda: file.read(4), lambda: file.readinto(bytearray(4))):
            with pytest.raises(OSError, match="nothing to read, and no end"):
                read()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind", [k for k in FILES if "script" not in k and "program" not in k]
)  # empty, they do nothing
def test_what_gives_nothing_is_refused_by_every_reader(tmp_path, silent, kind):
    reader, path = FILES[kind], tmp_path / FILES[kind].name
    reader.write(path)
    silent(path)
    with pytest.raises(ParallelLabError):
        reader.read(path)
