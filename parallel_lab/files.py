"""Writing a file whole: whoever looks, now or after a crash, sees the old file or the new one, never a part.

    check_writable("report.html")            # before the work whose result goes there; raises DataFileError
    write_whole("report.html", text)

A rename replaces whatever has the name, so what is there is looked at first: the file behind a symbolic link is written and the link stays, and a
folder, a pipe or a device is refused.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from .errors import DataFileError, message

__all__ = ["check_writable", "write_whole"]

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link that leads in a circle",
}
_ANOTHER = "Name a file in a folder that is there"


def check_writable(path: str | os.PathLike[str], *, hint: str = _ANOTHER) -> Path:
    """The file that `write_whole` would write, symbolic links followed.

    Raises DataFileError if that is no regular file, is read-only, or lies in a folder in which no file can be made: whether one can is tried, because
    permissions do not tell it (a read-only disk, /proc, the superuser).
    """
    try:
        real, _ = _target(path)
        part, descriptor = _new_part(real)
        os.close(descriptor)
        part.unlink()
    except (OSError, ValueError) as error:
        raise _refusal(path, error, hint) from error
    return real


def write_whole(path: str | os.PathLike[str], content: str | bytes, *, hint: str = _ANOTHER) -> Path:
    """Write `content` (text as UTF-8) and return `path`. A file that is there keeps its permissions; links to it stay links.

    Raises DataFileError as `check_writable` does, and when the disk is full; the old file is untouched then, and no other is left behind.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        real, mode = _target(path)
        part, descriptor = _new_part(real)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
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


def _refusal(path: str | os.PathLike[str], error: OSError | ValueError, hint: str) -> DataFileError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return DataFileError(message(f"cannot be written: {reason}", where=str(path), hint=hint))


def _target(path: str | os.PathLike[str]) -> tuple[Path, int | None]:
    """The real path, and the permissions of the regular file that is there, None if nothing is. Raises OSError for anything else."""
    real = Path(os.path.realpath(path))
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return real, None  # nothing there, or a link to where nothing is yet
    except OSError:
        if real.is_symlink():
            raise OSError(f"it is {_KINDS[stat.S_IFLNK]}") from None
        raise
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no regular file')}")
    if not (real.exists() and os.path.samestat(os.stat(real), found)):
        raise OSError("it is open under a name that it no longer has")  # /dev/stdout, into a file that was deleted
    if not os.access(real, os.W_OK):
        raise OSError("the file is read-only")  # a rename would replace it all the same
    return real, stat.S_IMODE(found.st_mode)


def _new_part(real: Path) -> tuple[Path, int]:
    """A new file beside `real`, open for writing: a rename is atomic within one file system only.

    Not from tempfile, whose files only their owner may read: the user's umask decides. Its name is short, as that of `real` may be as long as can be.
    """
    os.stat(real.parent)  # so that the folder is what is missing, not a name nobody knows
    with contextlib.suppress(FileNotFoundError):
        os.lstat(real)  # a name that is too long
    part = real.parent / f".parallel_lab-{secrets.token_hex(8)}.part"
    return part, os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0), 0o666)


def _sync_folder(folder: Path) -> None:
    """Bring the rename to the disk. The file itself is there already, so a file system that cannot do this is no error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
