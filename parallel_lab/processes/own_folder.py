"""Where files and sockets must have names: one folder of the user's, which nobody else may enter, gone at the end.

    /tmp/parallel_lab-1000/           the user's, mode 0700: it goes with the last world that has something in it
        3f9c20d1e8a7/                 one world's: a random name, or that of a rendezvous
            lock                      locked by the process that made the folder, as long as it lives
            ...                       files and sockets, no folders

A lock ends with the process that holds it, however it ends, and nobody is fooled by a number that was given out again.
So what a killed process has left is removed by those who see its end (`remove_if_dead`), or by the next one that makes
a folder. The process that removes looks first: anybody may make something in a temporary folder, a link for instance.
Only folders like these, in a user's folder that is safe, lose their files, one by one; nothing is removed with all that
is below it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import tempfile
import time
from pathlib import Path

from ..base.errors import WorldError
from ..base.files import locked

LOCK = "lock"
NAME = re.compile("[0-9a-f]{12}")  # short: paths of sockets have 103 characters on a Mac
TRIES = 20  # another process may remove the user's folder, or look whether we live, between two of our steps
END_S, LOOK_S = 1.0, 0.01  # for a process that ends to let its lock go, which comes after what tells of its end


class OwnFolder:
    """A folder of this process, in the user's. `name`: what others know it by; None: a random one. Raises
    BlockingIOError where a living process has that name, WorldError for a user's folder that is not safe.
    """

    def __init__(self, name: str | None = None) -> None:
        if name is None:
            remove_dead()
        self.path = user_folder() / (secrets.token_hex(6) if name is None else _digest(name))
        self._pid = os.getpid()
        for _ in range(TRIES):
            if self._make():
                return
        if name is not None:
            raise BlockingIOError(f"a living process has the folder {self.path}")
        hint = "Set TMPDIR to a folder on a disk of this machine"
        raise WorldError(f"the folder {self.path} cannot be locked: its file system knows no locks", hint=hint)

    def _make(self) -> bool:
        """Whether it is made and locked; False where another process has locked or removed it meanwhile."""
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(user_folder(), 0o700)
            _check_user_folder()
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, 0o700)
            self._lock = _open_lock(self.path)
        except FileNotFoundError:  # removed between two steps
            return False
        if not locked(self._lock, wait=False) or not _is(self.path / LOCK, self._lock):
            os.close(self._lock)
            return False
        _remove_files(self.path, but=LOCK)  # a dead owner's
        return True

    def remove(self) -> None:
        """Remove it with its files, and the user's if nothing else is there. Not in a forked child."""
        if self._lock >= 0 and os.getpid() == self._pid:
            _remove_files(self.path)
            os.close(self._lock)
            self._lock = -1
            _remove_user_folder()


def folder_of(name: str) -> Path:
    """Where the folder of that name is. Raises WorldError where the user's is not safe."""
    _check_user_folder()
    return user_folder() / _digest(name)


def remove_if_dead(folder: str | os.PathLike[str], wait_s: float = END_S) -> None:
    """Remove a folder, made by an OwnFolder, whose owner has ended. Leaves it to others where they are quicker.

    wait_s   for an owner that still has it locked
    """
    end = time.monotonic() + wait_s
    while not _removed(Path(folder)) and time.monotonic() < end:
        time.sleep(LOOK_S)
    _remove_user_folder()


def remove_dead() -> None:
    """Remove all that ended processes of this user have left. Raises WorldError where the user's folder is not safe."""
    _check_user_folder()
    with contextlib.suppress(OSError):
        for folder in user_folder().iterdir():
            _removed(folder)


def user_folder() -> Path:
    """The folder of this user, which may not be there."""
    return Path(tempfile.gettempdir(), f"parallel_lab-{os.getuid()}")


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


# ---- what is safe ----


def _is_own(path: Path) -> bool:
    """Whether it is a folder, and no link to one, that only this user may enter. Raises FileNotFoundError."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _check_user_folder() -> None:
    """Raise WorldError if what has the name of the user's folder is not safe to use; nothing, where nothing is there.

    A temporary folder is open to all, so somebody else may have made what is there.
    """
    with contextlib.suppress(FileNotFoundError):
        if not _is_own(user_folder()):
            what = f"{user_folder()} is not a folder that only this user may enter"
            raise WorldError(what, hint="Remove it, or set TMPDIR to a folder of your own")


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder that an OwnFolder may have made, in the user's. Raises FileNotFoundError."""
    there = folder.parent == user_folder() and NAME.fullmatch(folder.name)
    return bool(there) and _is_own(folder.parent) and _is_own(folder)


# ---- removing ----


def _removed(folder: Path) -> bool:
    """Whether it is gone, by us or others, or none of ours; False while somebody has it locked."""
    try:
        if not _is_ours(folder):
            return True
        lock = _open_lock(folder)  # made where its owner has not come so far
    except OSError:
        return True
    try:
        if not locked(lock, wait=False) or not _is(folder / LOCK, lock):
            return False
        _remove_files(folder)
        return True
    finally:
        os.close(lock)


def _remove_files(folder: Path, but: str = "") -> None:
    """Remove the files of one of our folders, the lock last, and the folder unless one is kept."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder), key=lambda name: name == LOCK):
            if name != but:
                with contextlib.suppress(OSError):  # a folder, which is not ours
                    os.unlink(folder / name)
        if not but:
            os.rmdir(folder)


def _remove_user_folder() -> None:
    with contextlib.suppress(OSError):  # others are in it, or it is gone
        os.rmdir(user_folder())


def _open_lock(folder: Path) -> int:
    return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is(path: Path, descriptor: int) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
