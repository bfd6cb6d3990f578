"""Files are written whole, through links, and never over anything but a file."""

import os
import socket
import stat
import subprocess
import sys
import threading

import pytest

from parallel_lab.base.errors import DataFileError
from parallel_lab.base.events import save_chrome_trace
from parallel_lab.base.files import check_writable, write_whole
from parallel_lab.cli import main as cli
from parallel_lab.lab.quickstart.model import Quickstart


@pytest.fixture(scope="module")
def result():
    return Quickstart(devices=2, epochs=1, executor="simulator").run()


def names(folder):
    return sorted(p.name for p in folder.iterdir())


# ---- what is written ----


@pytest.mark.parametrize(("content", "expected"), [("Σ = 1\n", "Σ = 1\n".encode()), (b"\x00\xff\n", b"\x00\xff\n")])
def test_text_and_bytes_arrive_as_they_are(tmp_path, content, expected):
    path = tmp_path / "file"
    assert write_whole(path, content) == path
    assert path.read_bytes() == expected
    assert names(tmp_path) == ["file"]


def test_a_new_file_has_the_permissions_that_the_users_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new", "1")
        (tmp_path / "plain").write_text("1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode) == 0o640


def test_an_old_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o606)
    write_whole(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o606)


@pytest.mark.parametrize("there", [True, False], ids=["file", "nothing-yet"])
def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path, there):
    """Wrong before: the link was replaced by a file, and the file it led to kept its old content."""
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    if there:
        target.write_text("old")
    link.symlink_to("far/target")
    assert check_writable(link) == target
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert names(tmp_path / "far") == ["target"]


def test_a_name_as_long_as_can_be_is_written(tmp_path):
    path = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    write_whole(path, "1")
    assert path.read_text() == "1"


# ---- what is refused ----


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_circle(path):
    path.symlink_to(path.name)


def make_link_to_device(path):
    path.symlink_to("/dev/null")


def make_link_to_fifo(path):
    os.mkfifo(f"{path}.fifo")
    path.symlink_to(f"{path}.fifo")


REFUSED = [(os.mkdir, "a folder"), (make_fifo, "a pipe"), (make_socket, "a socket"), (make_circle, "in a circle")]
REFUSED += [(make_link_to_device, "a device"), (make_link_to_fifo, "a pipe")]
refused = pytest.mark.parametrize(("make", "said"), REFUSED, ids=[make.__name__ for make, _ in REFUSED])


@refused
def test_anything_but_a_file_is_refused_and_left_as_it_is(tmp_path, monkeypatch, make, said):
    monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
    make(tmp_path / "x")
    before, kind = names(tmp_path), os.lstat("x").st_mode
    for act in (check_writable, lambda path: write_whole(path, "1"), lambda path: save_chrome_trace([], path)):
        with pytest.raises(DataFileError, match=f"x: cannot be written: .*{said}"):
            act("x")
    assert (names(tmp_path), os.lstat("x").st_mode) == (before, kind)


def test_the_end_of_a_pipe_under_its_proc_name_is_refused():
    """/dev/stdout in a pipeline is such a name; what it leads to has no path."""
    reader, writer = os.pipe()
    try:
        with pytest.raises(DataFileError, match="a pipe"):
            check_writable(f"/proc/self/fd/{writer}")
    finally:
        os.close(reader)
        os.close(writer)


def test_a_file_that_was_deleted_is_not_made_again_under_another_name(tmp_path):
    with (tmp_path / "gone").open("w") as file:
        (tmp_path / "gone").unlink()
        with pytest.raises(DataFileError, match="no longer has"):
            write_whole(f"/proc/self/fd/{file.fileno()}", "1")
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["/proc/x.html", "/sys/x.html", "missing/x.html", "file/x.html", "n" * 300, "nul\0"])
def test_where_no_file_can_be_made_is_refused_before_and_after(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for act in (check_writable, lambda path: write_whole(path, "1")):
        with pytest.raises(DataFileError, match="cannot be written"):
            act(name)
    assert names(tmp_path) == ["file"]


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    """os.open is replaced, because the superuser may write in every folder."""

    def denied(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("parallel_lab.base.files.os.open", denied)
    with pytest.raises(DataFileError, match="x: cannot be written: Permission denied"):
        check_writable(tmp_path / "x")


def test_a_file_that_its_owner_closed_is_not_replaced(tmp_path, monkeypatch):
    """A rename asks only the folder. os.access is replaced, because the superuser may write every file."""
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o444)
    monkeypatch.setattr("parallel_lab.base.files.os.access", lambda path, mode: bool(os.stat(path).st_mode & 0o200))
    with pytest.raises(DataFileError, match="read-only"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_the_check_leaves_nothing_and_changes_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    before = (tmp_path / "old").stat()
    assert check_writable(tmp_path / "old") == tmp_path / "old"
    assert check_writable(tmp_path / "new") == tmp_path / "new"
    after = (tmp_path / "old").stat()
    assert names(tmp_path) == ["old"]
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_no_part(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"parallel_lab.base.files.os.{step}", full)
    with pytest.raises(DataFileError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_file_rename_and_folder_are_brought_to_the_disk_in_that_order(tmp_path, monkeypatch):
    done, real_fsync, real_replace = [], os.fsync, os.replace

    def fsync(descriptor):
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real_fsync(descriptor)

    monkeypatch.setattr("parallel_lab.base.files.os.fsync", fsync)
    monkeypatch.setattr("parallel_lab.base.files.os.replace", lambda a, b: (done.append("rename"), real_replace(a, b)))
    write_whole(tmp_path / "file", "1")
    assert done == ["file", "rename", "folder"]


def test_a_reader_sees_one_version_whole(tmp_path):
    path, versions, seen, stop = tmp_path / "file", ["a" * 200_000, "b" * 300_000], set(), threading.Event()
    write_whole(path, versions[0])

    def read():
        while not stop.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for i in range(20):
            write_whole(path, versions[i % 2])
    finally:
        stop.set()
        reader.join()
    assert seen <= set(versions)


# ---- on the command line ----


@pytest.mark.parametrize("option", ["--report", "--trace"])
@refused
def test_the_command_refuses_before_the_training(tmp_path, monkeypatch, capsys, option, make, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quickstart, "run", lambda *_: pytest.fail("it ran"))
    make(tmp_path / "x")
    assert cli.main(["quickstart", option, "x"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize("trace", ["same.html", "folder/../same.html", "link.html"])
def test_one_file_for_report_and_trace_is_refused(tmp_path, monkeypatch, capsys, trace):
    """Wrong before: the trace was written, and then the report over it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quickstart, "run", lambda *_: pytest.fail("it ran"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.html").symlink_to("same.html")
    assert cli.main(["quickstart", "--report", "same.html", "--trace", trace]) == 2
    assert "--report and --trace both name" in capsys.readouterr().err


def test_the_command_writes_through_links(tmp_path, monkeypatch, capsys, result):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Quickstart, "run", lambda *_: result)
    (tmp_path / "far").mkdir()
    for name in ("r.html", "t.json"):
        (tmp_path / name).symlink_to(f"far/{name}")
    assert cli.main(["quickstart", "--executor", "simulator", "--report", "r.html", "--trace", "t.json"]) == 0
    assert "Report: r.html" in capsys.readouterr().out
    assert (tmp_path / "far" / "r.html").read_text(encoding="utf-8").endswith("</html>\n")
    assert (tmp_path / "far" / "t.json").read_text(encoding="utf-8").startswith('{"traceEvents"')
    assert (tmp_path / "r.html").is_symlink() and (tmp_path / "t.json").is_symlink()


@pytest.mark.exhaustive
def test_processes_that_replace_one_file_all_succeed(tmp_path):
    """Ranks of a world write one file at the same time: between two looks another may have replaced it."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    code = (
        "import sys; from parallel_lab.base.files import write_whole; [write_whole(sys.argv[1], 'x' * 1000) for _ "
        "in range(150)]"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(path)])
        for path in (tmp_path / "file", tmp_path / "file", link)
    ]
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "link"]
