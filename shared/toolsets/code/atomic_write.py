"""Putting a complete file in place atomically, by descriptors (FS-04, FS-07).

The parent directory is opened without following a link; the new content goes into a temporary file next to the target
and takes its name in one step, so a reader sees the old or the new file and a failure leaves the old one. Mode and
owner stay, but for the bits that let a program run as its owner; a file that may not be written is not replaced either.
The current file must be what was shown, and our own writers take turns. The race that remains: somebody else who
changes an existing file between our last look and the rename, a few microseconds, is overwritten.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from soong.shared.core import timing
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, kind_of, open_resolved, opened_file, refused
from soong.shared.sandbox.threads import check

ABSENT: Final = "absent"
MAX_COMPARED_BYTES: Final = 1024 * 1024
_MAX_HASHED_BYTES: Final = 64 * 1024 * 1024
"""Beyond it the modification time stands for the content: hashing would take longer than a person waits."""
_CHUNK_BYTES: Final = 1024 * 1024
_FOR_WRITING: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class State(Value):
    """The state of a path. ``precondition`` is ``absent`` or device, inode, size and hash.

    ``content`` is None when there is no file or it is too large to compare. ``status`` was taken
    before it was read, so that a change meanwhile shows.
    """

    precondition: str
    content: bytes | None = None
    status: os.stat_result | None = None


class Replacement(Value):
    """The content for a path. An empty ``precondition`` binds to nothing; ``overwrites`` allows replacing a file."""

    path: Path
    content: bytes
    precondition: str = ""
    creates_folders: bool = True
    overwrites: bool = False


class WriteResult(Value):
    """The content of a file after a write: ``size`` in bytes, the digest in hexadecimal."""

    size: int
    sha256: str
    is_new: bool


def read_state(path: Path, *, max_content: int = MAX_COMPARED_BYTES) -> State:
    """Return the state of a resolved path now, with its content if that is not over ``max_content``.
    Raises: PathRefusedError, something that is not a regular file; PermissionError, a file that may be read only.
    """
    try:
        with opened_file(path) as descriptor:
            state = _state_of(descriptor, max_content)
    except PathRefusedError as error:
        if error.refusal is PathRefusal.NOT_FOUND:
            _refuse_file_as_folder(path)
            return State(ABSENT)
        raise
    _refuse_read_only(state, lambda flags: open_resolved(path, flags), path)
    return state


def write(what: Replacement, stop: Event) -> WriteResult | None:
    """Put the file in place; None when one is there that may not be replaced.
    Raises: PathRefusedError, another state than the shown one, a link, not a regular file, a missing folder; OSError,
    the operating system refuses or the disk is full; the old file is as it was.
    """
    with _parent(what) as folder:
        name = what.path.name
        before = _state_at(folder, what.path)
        if what.precondition and before.precondition != what.precondition:
            raise PathRefusedError(
                PathRefusal.CHANGED, str(what.path), "changed after it was shown", "read it and call again"
            )
        is_new = before.precondition == ABSENT
        if not is_new and not what.overwrites:
            return None
        if not is_new:
            _refuse_read_only(before, lambda flags: os.open(name, flags, dir_fd=folder), what.path)
        with _temporary(folder, what.content, before.status) as temporary, _alone(folder, what.path, stop):
            check(stop)
            if is_new:
                placed = _link_new(folder, temporary, name)
            else:
                placed = _is_unchanged(folder, name, before)
                if placed:
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            if not placed:
                raise PathRefusedError(
                    PathRefusal.CHANGED, str(what.path), "changed while it was written", "call again"
                )
        os.fsync(folder)
    return WriteResult(len(what.content), hashlib.sha256(what.content).hexdigest(), is_new)


@contextmanager
def _alone(folder: int, path: Path, stop: Event) -> Iterator[None]:
    """Let one of our writers at a time look and rename in a folder, whatever process it is in: none undoes another.
    Raises: PathRefusedError, somebody holds the folder for longer than any write takes.
    """
    end_s = time.monotonic() + timing.COMMAND_LIMIT_S
    while not _locked(folder):
        if time.monotonic() > end_s:
            problem = "cannot be written: another process keeps its folder locked"
            raise PathRefusedError(PathRefusal.CHANGED, str(path), problem, "call again later")
        stop.wait(timing.HINT_S)
        check(stop)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)


def _locked(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks: the look before the rename is all there is
    return True


@contextmanager
def _parent(what: Replacement) -> Iterator[int]:
    """Open the parent directory, creating missing ones one by one below the deepest that exists."""
    descriptor, missing = _deepest(what.path.parent)
    try:
        if missing and not what.creates_folders:
            hint = "pass create_dirs=true to create it"
            raise PathRefusedError(PathRefusal.NOT_FOUND, str(what.path.parent), "does not exist", hint)
        for name in missing:
            descriptor = _entered(descriptor, name, what.path)
        yield descriptor
    finally:
        os.close(descriptor)


def _deepest(folder: Path) -> tuple[int, list[str]]:
    """Open the deepest existing directory on the way and return the names that are missing below it."""
    missing: list[str] = []
    for existing in (folder, *folder.parents):
        try:
            return open_resolved(existing, os.O_RDONLY | os.O_DIRECTORY), missing[::-1]
        except PathRefusedError as error:
            if error.refusal is not PathRefusal.NOT_FOUND:
                raise
            missing.append(existing.name)
    raise PathRefusedError(PathRefusal.NOT_FOUND, str(folder), "does not exist")


def _entered(folder: int, name: str, path: Path) -> int:
    """Create a directory and open it; closes ``folder`` when it succeeds."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        raise refused(error, path) from error
    os.close(folder)
    return inner


def _state_at(folder: int, path: Path) -> State:
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return State(ABSENT)
    except OSError as error:
        raise refused(error, path) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise PathRefusedError(PathRefusal.NOT_REGULAR, str(path), f"is {kind_of(mode)}, not a regular file")
        return _state_of(descriptor)
    finally:
        os.close(descriptor)


def _state_of(descriptor: int, max_content: int = 0) -> State:
    status = os.fstat(descriptor)
    identity = f"{status.st_dev}:{status.st_ino}:{status.st_size}"
    if status.st_size > _MAX_HASHED_BYTES:
        return State(f"{identity}:mtime-{status.st_mtime_ns}", None, status)
    digest = hashlib.sha256()
    kept = bytearray()
    while chunk := os.read(descriptor, _CHUNK_BYTES):
        digest.update(chunk)
        kept += chunk[: max(0, max_content + 1 - len(kept))]
    content = bytes(kept) if len(kept) <= max_content else None
    return State(f"{identity}:{digest.hexdigest()}", content, status)


def _refuse_read_only(state: State, open_at: Callable[[int], int], path: Path) -> None:
    """Refuse a file that could not be written in place: replacing it would only need a right on its folder.
    Raises: PermissionError, its mode, its owner or its file system forbids it.
    """
    if state.status is not None and not state.status.st_mode & _FOR_WRITING:
        raise PermissionError(errno.EACCES, "is read-only", str(path))
    try:
        os.close(open_at(os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


@contextmanager
def _temporary(folder: int, content: bytes, before: os.stat_result | None) -> Iterator[str]:
    """Write the content to a file of a fresh name in the folder; it is gone afterwards unless it was renamed. It gets
    the owner and mode of the file that it replaces. Raises: PermissionError, the owner cannot be kept.
    """
    name = f".soong-{secrets.token_hex(8)}.tmp"
    descriptor = os.open(name, _NEW_FILE, 0o666, dir_fd=folder)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            if before is not None:
                mine = os.fstat(descriptor)
                if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
                    os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _link_new(folder: int, temporary: str, name: str) -> bool:
    """Give the temporary file its name only if nothing has it; False when something does."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links: take the name with O_EXCL, then rename over our own empty file.
        try:
            os.close(os.open(name, _NEW_FILE, 0o666, dir_fd=folder))
        except FileExistsError:
            return False
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    return True


def _is_unchanged(folder: int, name: str, before: State) -> bool:
    """Say whether the file is still the one that was read: also one written in place to the same size is another."""
    try:
        now = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return before.status is not None and _stamp(now) == _stamp(before.status)


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _refuse_file_as_folder(path: Path) -> None:
    """Refuse a path below something that is not a directory: nothing could ever be created there."""
    for parent in path.parents:
        try:
            mode = parent.lstat().st_mode
        except OSError:
            continue
        if not stat.S_ISDIR(mode):
            problem = f"cannot be created: {str(parent)!r} is {kind_of(mode)}"
            raise PathRefusedError(PathRefusal.NOT_FOUND, str(path), problem)
        return
