"""Files beneath a folder that several users write (OPS-12).

Owns the calls by which an orchestrator, a client and a worker reach artifacts and run folders. Each folder on the way
is opened by descriptor and no link is followed, so that nothing that a worker leaves there leads a write or a read of
another process elsewhere.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from soong.shared.core.errors import ForeignEntryError
from soong.shared.core.file_systems import flush_file_system
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import kind_of

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""``O_NONBLOCK`` keeps a FIFO from blocking the open; what is not a regular file is refused afterwards."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_NOT_AS_EXPECTED: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})


class RootedFolder(Value):
    """The folder ``root/below``. ``root`` is trusted and may be reached through links; nothing beneath it may be one.

    Names are relative, ``/``-separated, without ``.`` and ``..``. Folders are made with mode 0700, files with 0600; for
    everybody to read, with 0755 and 0644, when it is not ``is_private``.
    Every method raises ``ForeignEntryError`` when something else is where a folder or a regular file is expected,
    and ``OSError`` when the operating system refuses.
    """

    root: Path
    below: str = ""
    is_private: bool = True

    def __truediv__(self, name: str) -> "RootedFolder":
        return RootedFolder(self.root, "/".join((*_names(self.below), *_names(name))), self.is_private)

    @property
    def _modes(self) -> tuple[int, int]:
        return (0o700, 0o600) if self.is_private else (0o755, 0o644)

    @property
    def path(self) -> Path:
        """The folder's path, for showing and for passing on."""
        return self.root / self.below

    def make(self, name: str = "") -> None:
        """Make the folder, and those on the way to it, unless they exist."""
        with self.opened(name, makes=True):
            pass

    def write(self, name: str, data: bytes) -> None:
        """Put a complete file in place; what had its name before is replaced, also a link, which is not followed."""
        *folder, last = _names(name)
        with self.opened("/".join(folder), makes=True) as descriptor:
            self._put(descriptor, name, last, data)

    def fill(self, folders: Iterable[str], files: Mapping[str, bytes], *, is_flushed: bool = True) -> None:
        """Make these folders and put these files in place, each directly in this folder or in one of them.

        The way to this folder is walked once. What is not ``is_flushed`` may be lost with the machine's power until
        :meth:`flush` has returned: to flush each of many small files takes more time than everything else. In a folder
        that did not exist files are written under their own names, so that a reader can meet one that is not complete.
        """
        way, _, own = self.below.rpartition("/")
        with ExitStack() as stack:
            around = stack.enter_context(RootedFolder(self.root, way, self.is_private).opened(makes=True))
            is_new = bool(own) and self._made(around, own)
            within = {"": self._entered(around, own, self.below) if own else os.dup(around)}
            stack.callback(os.close, within[""])
            used = {name.rpartition("/")[0] for name in files}
            for name in folders:
                (part,) = _names(name)
                if self._made(within[""], part) and part not in used:
                    continue
                within[part] = self._entered(within[""], part, part)
                stack.callback(os.close, within[part])
            for name, data in files.items():
                folder, _, last = name.rpartition("/")
                if not (is_new and self._put_new(within[folder], last, data, is_flushed=is_flushed)):
                    self._put(within[folder], name, last, data, is_flushed=is_flushed)

    def flush(self) -> None:
        """Bring all that was written beneath the root to the disk, by one call for its file system."""
        descriptor = os.open(self.root, _FOLDER)
        try:
            flush_file_system(descriptor)
        finally:
            os.close(descriptor)

    def _put(self, descriptor: int, name: str, last: str, data: bytes, *, is_flushed: bool = True) -> None:
        """Put a complete file in place in an open folder; ``name`` is its path below this one."""
        temporary = f".new-{secrets.token_hex(8)}"
        try:
            self._write_new(descriptor, temporary, data, is_flushed=is_flushed)
            with _explained(self.path / name, descriptor):
                os.rename(temporary, last, src_dir_fd=descriptor, dst_dir_fd=descriptor)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=descriptor)
            raise

    def _put_new(self, descriptor: int, last: str, data: bytes, *, is_flushed: bool) -> bool:
        """Write a file that does not exist under its own name; False, and nothing is written, where something does."""
        try:
            self._write_new(descriptor, last, data, is_flushed=is_flushed)
        except FileExistsError:
            return False
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(last, dir_fd=descriptor)
            raise
        return True

    def _write_new(self, descriptor: int, last: str, data: bytes, *, is_flushed: bool) -> None:
        """Raises: FileExistsError, also when a link is there: it is not followed."""
        file = os.open(last, _NEW, self._modes[1], dir_fd=descriptor)
        try:
            _write_all(file, data)
            if data and is_flushed:
                os.fsync(file)
        finally:
            os.close(file)

    def create(self, name: str, data: bytes) -> None:
        """Write a file that does not exist yet. Raises: FileExistsError."""
        *folder, last = _names(name)
        with (
            self.opened("/".join(folder), makes=True) as descriptor,
            os.fdopen(os.open(last, _NEW, self._modes[1], dir_fd=descriptor), "wb") as file,
        ):
            file.write(data)

    def append(self, name: str, data: bytes) -> None:
        """Add to a file, made when there is none; a file with a second name (a hard link) is refused."""
        *folder, last = _names(name)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK
        with self.opened("/".join(folder), makes=True) as descriptor:
            with _explained(self.path / name, descriptor):
                file = os.open(last, flags, self._modes[1], dir_fd=descriptor)
            try:
                status = os.fstat(file)
                _refuse_other(self.path / name, status.st_mode, stat.S_ISREG)
                if status.st_nlink != 1:
                    raise ForeignEntryError(str(self.path / name), "a hard link", "a file of its own")
                _write_all(file, data)
            finally:
                os.close(file)

    @contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        """Open a regular file for reading. Raises: FileNotFoundError."""
        *folder, last = _names(name)
        with self.opened("/".join(folder)) as descriptor, _explained(self.path / name, descriptor):
            inner = os.open(last, os.O_RDONLY | _NO_LINK, dir_fd=descriptor)
        try:
            _refuse_other(self.path / name, os.fstat(inner).st_mode, stat.S_ISREG)
            with os.fdopen(inner, "rb", closefd=False) as file:
                yield file
        finally:
            os.close(inner)

    def names(self, name: str = "") -> list[str]:
        """Return what lies in the folder, or in one beneath it; nothing when it does not exist."""
        try:
            with self.opened(name) as descriptor:
                return os.listdir(descriptor)  # noqa: PTH208  # pathlib lists paths, not descriptors
        except FileNotFoundError:
            return []

    @contextmanager
    def opened(self, name: str = "", *, makes: bool = False) -> Iterator[int]:
        """Open the folder, or one beneath it, and yield its descriptor; ``makes`` those that are missing."""
        current, walked = self._root_opened(makes=makes), ""
        try:
            for part in (*_names(self.below), *_names(name)):
                walked = f"{walked}/{part}".lstrip("/")
                inner = self._entered(current, part, walked, makes=makes)
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)

    def _root_opened(self, *, makes: bool) -> int:
        try:
            return os.open(self.root, _FOLDER)
        except FileNotFoundError:
            if not makes:
                raise
        self.root.mkdir(mode=self._modes[0], parents=True, exist_ok=True)
        return os.open(self.root, _FOLDER)

    def _made(self, current: int, part: str) -> bool:
        """Make a folder in an open one; False when something has its name, which is looked at when it is opened."""
        try:
            os.mkdir(part, self._modes[0], dir_fd=current)
        except FileExistsError:
            return False
        return True

    def _entered(self, current: int, part: str, walked: str, *, makes: bool = False) -> int:
        """Open a folder of an open one; ``walked`` is its way from the root, for errors."""
        if makes:
            self._made(current, part)
        try:
            return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=current)
        except OSError:
            with _explained(self.root / walked, current, stat.S_ISDIR):
                raise


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


@contextmanager
def _explained(path: Path, folder: int, expected: Callable[[int], bool] = stat.S_ISREG) -> Iterator[None]:
    """Say what is at ``path``, an entry of the open folder, when the system refuses it for its kind."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_AS_EXPECTED:
            _refuse_other(path, os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode, expected)
        raise


def _refuse_other(path: Path, mode: int, expected: Callable[[int], bool]) -> None:
    if not expected(mode):
        wanted = "a folder" if expected is stat.S_ISDIR else "a regular file"
        raise ForeignEntryError(str(path), kind_of(mode), wanted)


def _names(path: str) -> tuple[str, ...]:
    names = tuple(name for name in path.split("/") if name)
    if path.startswith("/") or {".", ".."} & set(names) or "\0" in path:
        raise ValueError(f"{path!r} is not a relative path without '.', '..' and NUL")
    return names
