"""Writing a file whole (a reader sees the old file or the new one, never a part, also after a crash), reading one that
may be anything, and where the files that came with the package are.

    check_writable("report.html")            # before the work whose result goes there; raises DataFileError
    write_whole("report.html", text)
    data = read_regular("manifest.json", 8 << 20)     # raises OSError, also for a pipe, and at once

A rename replaces whatever has the name, so what is there is looked at first: the file behind a symbolic link is written
and the link stays, and a folder, a pipe or a device is refused.

What a writer that was killed left next to the file is removed by the next one. A part is locked by its writer, and the
system unlocks what the dead held: a process number would not do, for numbers are given out again, and mean nothing to
another container.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows: no locks, so what the dead left stays; and what is open is neither renamed nor removed
    flock = None  # a page's kernel has an empty module

from .errors import DataFileError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link that leads in a circle",
}
_ANOTHER = "Name a file in an existing folder"
LOOKS = 10  # at two names of a file that several processes may be replacing just now
_PART = re.compile(r"\.parallel_lab-[0-9a-f]{16}\.part")


def check_writable(path: str | os.PathLike[str], *, hint: str = _ANOTHER) -> Path:
    """The file that `write_whole` would write, symbolic links followed. Raises DataFileError if it is not a regular
    file, read-only, or in a folder where no file can be made: tried, as permissions do not tell (/proc, the superuser).
    """
    try:
        real, _ = _target(path)
        with _new_part(real) as (part, descriptor):
            if flock is None:
                os.close(descriptor)
            part.unlink()
    except (OSError, ValueError) as error:
        raise _refusal(path, error, hint) from error
    return real


def write_whole(
    path: str | os.PathLike[str], content: str | bytes | Iterable[bytes | memoryview], *, hint: str = _ANOTHER
) -> Path:
    """Write `content` (text as UTF-8, or pieces of bytes one after the other) and return `path`.

    A file that is there keeps its permissions; links to it stay links. Parts of dead writers are removed.

    Raises DataFileError as `check_writable` does, and when the disk is full; the old file is untouched then.
    """
    pieces = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    try:
        real, mode = _target(path)
        _remove_dead_parts(real.parent)
        with _new_part(real) as (part, descriptor):
            try:
                with os.fdopen(descriptor, "wb", closefd=flock is None) as file:
                    for piece in pieces:
                        file.write(piece)
                    file.flush()
                    os.fsync(descriptor)
                if mode is not None:
                    os.chmod(part, mode)
                os.replace(part, real)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except (OSError, ValueError) as error:
        raise _refusal(path, error, hint) from error
    _sync_folder(real.parent)
    return Path(path)


# ---- reading ----


def open_regular(path: str | os.PathLike[str]) -> io.FileIO:
    """A regular file, open for reading, unbuffered. Raises OSError as `open` does, and for a folder, a pipe or a
    device: at once, where `open` would wait for a pipe's other end. It is looked at when it is open: what has the name
    may change.
    """
    names = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
    flags = os.O_RDONLY
    for name in names:
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(mode):
            what = f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file"
            raise OSError(errno.EINVAL, what, str(path))
        return _Regular(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


class _Regular(io.FileIO):
    """A file whose reads raise OSError where nothing has come yet: the kernel calls some regular that are as a pipe."""

    def read(self, size: int | None = -1) -> bytes:
        return self._come(super().read(size))

    def readinto(self, buffer: Any) -> int:
        return self._come(super().readinto(buffer))

    @staticmethod
    def _come(found: Any) -> Any:
        if found is None:
            raise BlockingIOError(errno.EAGAIN, "nothing to read, and no end: it is not a stored file")
        return found


def read_regular(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """The content of a regular file. Raises OSError as `open_regular`, and for more than `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, at most {max_bytes} are read", str(path))
        return file.read(size)  # one that grows meanwhile as it was


# ---- the steps of writing ----


def _refusal(path: str | os.PathLike[str], error: OSError | ValueError, hint: str) -> DataFileError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataFileError(f"cannot be written: {reason}", where=str(path), hint=hint)


def _same_file(path: str | os.PathLike[str], real: Path) -> bool:
    """Whether the two names lead to one file; looked at again where another writer may have replaced it in between."""
    for _ in range(LOOKS):
        try:
            if os.path.samestat(os.stat(path), os.stat(real)):
                return True
        except FileNotFoundError:
            return False
    return False


def _target(path: str | os.PathLike[str]) -> tuple[Path, int | None]:
    """The real path, and the permissions of the regular file at it, None if nothing exists; otherwise OSError."""
    real = Path(os.path.realpath(path))
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return real, None  # nothing there, or a link to where nothing is yet
    except OSError:
        if real.is_symlink():
            raise OSError(f"it is {_KINDS[stat.S_IFLNK]}") from None
        raise
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no regular file')}")
    if real != Path(os.path.abspath(path)) and not _same_file(path, real):
        raise OSError("it is open under a name that it no longer has")  # /dev/stdout, into a file that was deleted
    if os.path.exists(real) and not os.access(real, os.W_OK):
        raise OSError("the file is read-only")  # a rename would replace it all the same
    return real, stat.S_IMODE(status.st_mode)


@contextlib.contextmanager
def _new_part(real: Path) -> Iterator[tuple[Path, int]]:
    """A new file next to `real` (a rename is atomic within one file system), open for writing and locked. Where there
    are no locks the caller closes it, before it gets another name.

    Not from tempfile, whose files only their owner may read. Its name is short: that of `real` may fill the limit.
    """
    os.stat(real.parent)  # so that the folder is what is missing, not a name nobody knows
    with contextlib.suppress(FileNotFoundError):
        os.lstat(real)  # a name that is too long
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    while True:
        part = real.parent / f".parallel_lab-{secrets.token_hex(8)}.part"
        descriptor = os.open(part, flags, 0o666)
        try:
            if locked(descriptor, wait=True) and not os.path.exists(part):
                continue  # another writer took it for a dead one's before it was locked
            yield part, descriptor
            return
        finally:
            if flock is not None:
                os.close(descriptor)


def locked(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file until it is closed; False if it is locked (not with `wait`) or the file system has no locks."""
    if flock is None:
        return False
    try:
        flock(descriptor, LOCK_EX | (0 if wait else LOCK_NB))
    except OSError:
        return False
    return True


def _remove_dead_parts(folder: Path) -> None:
    """Remove the parts in `folder` that nobody is writing any more. What cannot be looked at stays."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if _PART.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
                descriptor = os.open(folder / name, flags)
                try:
                    if locked(descriptor, wait=False):
                        os.unlink(folder / name)
                finally:
                    os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Bring the rename to the disk. The file itself is safe, so a file system that cannot do this is not an error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# ---- what came with the package ----

# A wheel carries the folders notebooks/ and data/ of the repository under parallel_lab/_shipped/. An editable install,
# or plain use from a checkout, has no _shipped and uses the checkout's own folders, so that an edited notebook is the
# one that opens.
_PACKAGE = Path(__file__).resolve().parents[1]


def checkout_folder() -> Path | None:
    """The repository this package is run from, or None if it was installed from a wheel."""
    if (_PACKAGE / "_shipped").is_dir():
        return None
    folder = _PACKAGE.parent
    # site-packages may hold anything; only the project file says that the folder above is ours
    project = folder / "pyproject.toml"
    return folder if project.is_file() and 'name = "parallel-lab"' in project.read_text(encoding="utf-8") else None


def shipped_folder(name: str) -> Path:
    """The folder `name` ("notebooks" or "data") that comes with the package. Raises DataFileError if it is missing."""
    checkout = checkout_folder()
    folder = (checkout or _PACKAGE / "_shipped") / name
    if not folder.is_dir():
        hint = "Install the package again (pip install --force-reinstall parallel-lab), or use a complete checkout"
        raise DataFileError(f"the folder {name}/ that comes with parallel_lab is missing: {folder}", hint=hint)
    return folder


def version() -> str:
    """The version of parallel_lab: of the installed package, or of the checkout it runs from."""
    import importlib.metadata
    import tomllib

    checkout = checkout_folder()
    if checkout is not None:  # an editable install keeps the number it had when it was installed
        return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return importlib.metadata.version("parallel-lab")
