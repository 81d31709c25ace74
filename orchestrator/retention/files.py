"""The files that garbage collection removes: run folders and artifacts. Links are never followed."""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from soong.shared.core.errors import ForeignEntryError
from soong.shared.core.log import get_logger
from soong.shared.core.value import Value
from soong.shared.engine.tasks.retention import StoredArtifact
from soong.shared.sandbox.rooted import RootedFolder

MAX_DEPTH: Final = 100
MAX_ROUNDS: Final = 100_000
"""Per removal of a folder, each for one level: a process that keeps making folders in it does not hold it up."""
DIGEST: Final = re.compile(r"\b[0-9a-f]{64}\b")
log = get_logger(__name__)


class StoredFiles(Protocol):
    """The artifact store, as garbage collection sees it. Blocking."""

    def stored(self) -> Iterator[StoredArtifact]: ...

    def remove(self, digest: str, *, unused_since_s: float) -> int | None:
        """Remove an artifact unless it was written since that moment (seconds since the epoch).

        Returns: the bytes freed; None when it stays.
        """
        ...


class StoredFolders(Value):
    """The folders of runs. Blocking. A folder that the system does not let us read or remove is reported and stays."""

    root: RootedFolder

    def changed_s(self, but: Collection[str]) -> dict[str, float]:
        """Return when each folder ``but`` those changed, in seconds since the epoch."""
        found: dict[str, float] = {}
        with suppress(FileNotFoundError), self.root.opened() as root:
            for name in self.root.names():
                if name.startswith("run_") and name not in but:
                    with suppress(FileNotFoundError):
                        found[name] = os.stat(name, dir_fd=root, follow_symlinks=False).st_mtime
        return found

    def sizes(self, names: Iterable[str]) -> list[int]:
        """Return the bytes of the files of each of these folders that there is."""
        found: list[int] = []
        for name in names:
            with suppress(OSError, ForeignEntryError), self.root.opened(name) as folder:
                found.append(_size_of(folder))
        return found

    def remove(self, name: str) -> int | None:
        """Remove a folder and return the bytes of its files; None when there is none or it cannot be removed."""
        try:
            with self.root.opened(name) as folder:
                freed = _emptied(folder)
            with self.root.opened() as parent:
                os.rmdir(name, dir_fd=parent)
        except (FileNotFoundError, ForeignEntryError):
            return None  # another collection was faster, or it is no folder
        except OSError as error:
            log.warning("gc_folder_kept", folder=name, error=str(error))
            return None
        return freed

    def used_bytes(self) -> int:
        with suppress(FileNotFoundError), self.root.opened() as folder:
            return _size_of(folder)
        return 0

    def digests_in(self, name: str) -> set[str]:
        """Return the digests that the log of a run without a row names: it was a call without a service."""
        try:
            with (self.root / name).reading("events.jsonl") as file:
                return {digest for line in file for digest in DIGEST.findall(line.decode("utf-8", "replace"))}
        except (FileNotFoundError, ForeignEntryError):
            return set()


def _size_of(folder: int, depth: int = 0) -> int:
    """Return the bytes of the files in an open folder; what lies deeper than ``MAX_DEPTH`` does not count."""
    total = 0
    for name in os.listdir(folder):  # pathlib lists paths, not descriptors
        with suppress(OSError):  # removed by another process meanwhile, or not readable
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                total += status.st_size
            elif depth < MAX_DEPTH:
                with _inner(folder, name) as inner:
                    total += _size_of(inner, depth + 1)
    return total


def _emptied(top: int) -> int:
    """Remove everything in an open folder; return the bytes of its files.

    A run may have made folders within folders without end, so none is entered below the first level: what a folder
    holds is moved up and comes next. Two descriptors suffice at any depth.
    """
    freed, moved = 0, 0
    for _ in range(MAX_ROUNDS):
        names = os.listdir(top)  # pathlib lists paths, not descriptors
        if not names:
            break
        for name in names:
            if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
                freed += _unlinked(top, name)
                continue
            with _inner(top, name) as inner:
                for each in os.listdir(inner):  # noqa: PTH208
                    if stat.S_ISDIR(os.stat(each, dir_fd=inner, follow_symlinks=False).st_mode):
                        os.rename(each, f".gc-{os.getpid()}-{moved}", src_dir_fd=inner, dst_dir_fd=top)
                        moved += 1
                    else:
                        freed += _unlinked(inner, each)
            os.rmdir(name, dir_fd=top)
    return freed


def _unlinked(folder: int, name: str) -> int:
    size = os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    os.unlink(name, dir_fd=folder)
    return size


@contextmanager
def _inner(folder: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
