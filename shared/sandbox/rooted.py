"""Files beneath a folder that several users write (OPS-12).

Owns the calls by which an orchestrator, a client and a worker reach artifacts and run folders. Each folder on the way
is opened by descriptor and no link is followed, so that nothing that a worker leaves there leads a write or a read of
another process elsewhere.

The mark of a project is a file by which a worker proves that it has the folder that a session means. A path alone
proves nothing between hosts: another machine may have another folder of that name. The mark lies in ``.soong/``, which
no file tool writes (FS-09), so that no run can pass a folder off as a project.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from soong.shared.core.errors import ForeignEntryError, InvalidConfigError
from soong.shared.core.file_systems import flush_file_system
from soong.shared.core.value import Value
from soong.shared.sandbox.descriptors import kind_of

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""``O_NONBLOCK`` keeps a FIFO from blocking the open; it is refused afterwards as no regular file."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_NOT_AS_EXPECTED: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})

_MODES: Final = {True: (0o700, 0o600), False: (0o755, 0o644)}
"""Those of folders and of files, by whether they are private."""

MARK: Final = Path(".soong", "project")
MAX_BYTES: Final = 200

_ID: Final = re.compile(r"prj_[0-9a-f]{16,64}")


class RootedFolder(Value):
    """The folder ``root/below``. ``root`` is trusted and may be reached through links; nothing beneath it may be one.

    Names are relative, ``/``-separated, without ``.`` and ``..``. Folders are made with mode 0700, files with 0600; for
    everybody to read, with 0755 and 0644, when it is not ``is_private``. Every method raises ``ForeignEntryError`` when
    something else is where a folder or a regular file is expected, and ``OSError`` when the operating system refuses.
    """

    root: Path
    below: str = ""
    is_private: bool = True

    def __truediv__(self, name: str) -> "RootedFolder":
        return RootedFolder(self.root, "/".join((*_names(self.below), *_names(name))), self.is_private)

    @property
    def path(self) -> Path:
        """The folder's path, for showing and for passing on."""
        return self.root / self.below

    def make(self, name: str = "") -> None:
        with self.opened(name, makes=True):
            pass

    def write(self, name: str, data: bytes, *, is_flushed: bool = True) -> None:
        """Put a complete file in place; an entry of that name is replaced, also a link, which is not followed.

        A file without ``is_flushed`` may be lost with the machine's power until :meth:`flush` has returned: flushing
        each of many small files takes most of the time.
        """
        self.fill((), {name: data}, is_flushed=is_flushed)

    def fill(self, folders: Iterable[str], files: Mapping[str, bytes], *, is_flushed: bool = True) -> None:
        """Make folders, then write files as :meth:`write` does, folder by folder; each folder is opened once."""
        by_folder: dict[str, list[str]] = {name: [] for name in folders}
        for name in files:
            *folder, _ = _names(name)
            by_folder.setdefault("/".join(folder), []).append(name)
        with self.opened(makes=True) as here:
            for place, names in by_folder.items():
                with self.opened(place, makes=True, here=here) as descriptor:
                    for name in names:
                        self._put(descriptor, name, files[name], is_flushed=is_flushed)

    def _put(self, folder: int, name: str, data: bytes, *, is_flushed: bool) -> None:
        """Write a file under another name into its open folder, and rename it."""
        temporary = f".new-{secrets.token_hex(8)}"
        try:
            file = os.open(temporary, _NEW, _MODES[self.is_private][1], dir_fd=folder)
            try:
                _write_all(file, data)
                if data and is_flushed:
                    os.fsync(file)
            finally:
                os.close(file)
            with _explained(self.root, f"{self.below}/{name}", folder):
                os.rename(temporary, name.rpartition("/")[2], src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise

    def flush(self) -> None:
        """Bring all that was written beneath the root to the disk, by one call for its file system."""
        descriptor = os.open(self.root, _FOLDER)
        try:
            flush_file_system(descriptor)
        finally:
            os.close(descriptor)

    def create(self, name: str, data: bytes) -> None:
        """Write a file that does not exist yet. Raises: FileExistsError."""
        *folder, last = _names(name)
        with (
            self.opened("/".join(folder), makes=True) as descriptor,
            os.fdopen(os.open(last, _NEW, _MODES[self.is_private][1], dir_fd=descriptor), "wb") as file,
        ):
            file.write(data)

    def append(self, name: str, data: bytes) -> None:
        """Add to a file, made when there is none; a file with a second name (a hard link) is refused."""
        *folder, last = _names(name)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK
        with self.opened("/".join(folder), makes=True) as descriptor:
            with _explained(self.root, f"{self.below}/{name}", descriptor):
                file = os.open(last, flags, _MODES[self.is_private][1], dir_fd=descriptor)
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
        with self.opened("/".join(folder)) as descriptor, _explained(self.root, f"{self.below}/{name}", descriptor):
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
    def opened(self, name: str = "", *, makes: bool = False, here: int | None = None) -> Iterator[int]:
        """Open the folder, or one beneath it, and yield its descriptor; ``makes`` those that are missing.

        ``here`` is the folder's own descriptor, where it is open already.
        """
        mode = _MODES[self.is_private][0] if makes else None
        if mode is not None and here is None:
            self.root.mkdir(mode=mode, parents=True, exist_ok=True)
        current = os.open(self.root, _FOLDER) if here is None else os.dup(here)
        walked = "" if here is None else self.below
        try:
            for part in (*_names(self.below if here is None else ""), *_names(name)):
                walked = f"{walked}/{part}"
                with _explained(self.root, walked, current, stat.S_ISDIR):
                    inner = _open_folder(part, current, mode)
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)


def _open_folder(name: str, parent: int, mode: int | None) -> int:
    """Open a folder in an open one. With a mode it is made when it is missing."""
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        if mode is None:
            raise
    with suppress(FileExistsError):  # what has its name meanwhile is looked at when it is opened
        os.mkdir(name, mode, dir_fd=parent)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


@contextmanager
def _explained(root: Path, walked: str, folder: int, expected: Callable[[int], bool] = stat.S_ISREG) -> Iterator[None]:
    """Say what is at ``root/walked``, an entry of the open folder, when the system refuses it for its kind."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_AS_EXPECTED:
            path = root / walked.lstrip("/")
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


def project_id(folder: Path) -> str:
    """Return the id in a folder's mark; nothing when it has none, or one that is not ours."""
    try:
        with RootedFolder(folder).reading(str(MARK)) as file:
            text = file.read(MAX_BYTES).decode("ascii", "replace").strip()
    except (OSError, ForeignEntryError):
        return ""
    return text if _ID.fullmatch(text) else ""


def mark_project(folder: Path) -> str:
    """Mark a folder as a project and return its id; one that is marked keeps its own.
    Raises: InvalidConfigError, the mark cannot be written, or what lies in its place is none.
    """
    if found := project_id(folder):
        return found
    made = f"prj_{secrets.token_hex(16)}"
    place = folder / MARK
    try:
        RootedFolder(folder, is_private=False).create(str(MARK), f"{made}\n".encode("ascii"))
    except ForeignEntryError as error:
        raise InvalidConfigError(f"the mark of a project cannot be written: {error}") from error
    except FileExistsError as error:
        if found := project_id(folder):
            return found  # somebody else was faster
        raise InvalidConfigError(f"{place} is not a mark of a project; look what it is, and remove it") from error
    except OSError as error:
        raise InvalidConfigError(f"{place} cannot be written: {error.strerror}") from error
    return made
