"""The user's own folder, where files and sockets must have names: safe, gone at the end, nothing else is touched."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from parallel_lab.base.errors import WorldError
from parallel_lab.processes import own_folder
from parallel_lab.processes.own_folder import OwnFolder, remove_dead, remove_if_dead, user_folder

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.portable


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files of the test's own: these tests remove folders."""
    monkeypatch.setattr(own_folder.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    assert user_folder().is_relative_to(tmp_path)
    return tmp_path / "temporary"


class Owner:
    """A process with a folder and a file in it."""

    def __init__(self, name, temporary):
        code = f"""
import time
from parallel_lab.processes.own_folder import OwnFolder
folder = OwnFolder({name!r})
(folder.path / "memory").write_bytes(b"1")
print(folder.path, flush=True)
time.sleep(60)"""
        environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.path = Path(self.process.stdout.readline().strip())
        assert self.path.parent.parent == temporary

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_a_folder_is_the_users_alone_and_nothing_stays_of_it(temporary):
    one, other = OwnFolder(), OwnFolder("a rendezvous")
    (one.path / "memory").write_bytes(b"1")
    for folder in (user_folder(), one.path, other.path):
        assert folder.stat().st_mode & 0o777 == 0o700
    one.remove()
    assert list(user_folder().iterdir()) == [other.path]
    other.remove()
    other.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.exhaustive
def test_a_name_is_taken_as_long_as_its_owner_lives(temporary):
    owner = Owner("a rendezvous", temporary)
    try:
        with pytest.raises(BlockingIOError):
            OwnFolder("a rendezvous")
        remove_if_dead(owner.path, 0.1)
        assert owner.path.is_dir()
    finally:
        owner.kill()
    found = OwnFolder("a rendezvous")  # what a dead owner has left does not hinder
    assert found.path == owner.path and [path.name for path in found.path.iterdir()] == ["lock"]
    found.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.exhaustive
def test_what_the_dead_have_left_is_removed_by_many_at_once(temporary):
    owners = [Owner(name, temporary) for name in ("one", "other")]
    for owner in owners:
        owner.kill()
    assert all(owner.path.is_dir() for owner in owners)
    threads = [threading.Thread(target=remove_if_dead, args=(owner.path,)) for owner in owners for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(temporary.iterdir()) == []


@pytest.mark.exhaustive
def test_the_next_folder_removes_what_the_dead_have_left(temporary):
    owner = Owner("one", temporary)
    owner.kill()
    mine = OwnFolder()
    assert list(user_folder().iterdir()) == [mine.path]
    mine.remove()


def precious(folder):
    """Folders with names like ours and others, with files."""
    for name in ("0123456789ab", "worktree", "venv"):
        (folder / name).mkdir(mode=0o700)
        (folder / name / "src").mkdir(mode=0o700)
        (folder / name / "src" / "kept.py").write_text("kept")
        (folder / name / "lock").write_text("kept")
    return sorted(path.relative_to(folder) for path in folder.rglob("*"))


@pytest.mark.parametrize("call", [OwnFolder, lambda: OwnFolder("a rendezvous"), remove_dead])
@pytest.mark.parametrize("how", ["link", "open", "file"])
def test_what_has_the_name_of_the_users_folder_and_is_not_safe_is_refused_and_left_alone(
    tmp_path, temporary, call, how
):
    """Guards against: a link there was followed, and all folders behind it were removed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if how == "link":
        user_folder().symlink_to(elsewhere)
    elif how == "open":
        user_folder().mkdir()
        user_folder().chmod(0o755)
        elsewhere = user_folder()
    else:
        user_folder().write_text("")
    before = precious(elsewhere)
    with pytest.raises(WorldError, match=r"not a folder that only this user may enter.*TMPDIR"):
        call()
    remove_if_dead(user_folder() / "0123456789ab", 0.0)
    remove_if_dead(elsewhere / "0123456789ab", 0.0)
    assert sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*")) == before


def test_in_the_users_folder_too_only_folders_like_ours_lose_files_and_no_folder_below_is_entered(tmp_path, temporary):
    user_folder().mkdir(mode=0o700)
    before = precious(user_folder())
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    kept = precious(outside)
    (user_folder() / "ba9876543210").symlink_to(outside / "0123456789ab")
    remove_dead()
    left = sorted(path.relative_to(user_folder()) for path in user_folder().rglob("*"))
    assert [*filter(lambda path: path not in left, before)] == [Path("0123456789ab/lock")]
    assert sorted(path.relative_to(outside) for path in outside.rglob("*")) == kept


def test_a_path_of_a_socket_fits_where_temporary_folders_are_deep(monkeypatch):
    deep = "/var/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T"  # of a Mac, whose sockets take 103 characters
    monkeypatch.setattr(own_folder.tempfile, "gettempdir", lambda: deep)
    monkeypatch.setattr(own_folder.os, "getuid", lambda: 4_294_967_294)
    assert len(str(own_folder.folder_of("parallel_lab-4294967294-" + 32 * "f") / "socket")) <= 103
