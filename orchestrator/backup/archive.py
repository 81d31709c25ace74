"""The form of a backup: a compressed tar of regular files, and last a manifest with the digest of each.

Owns names, bounds and checks of an archive; what belongs into one is for :mod:`soong.orchestrator.backup.home`, where
it goes for :mod:`soong.orchestrator.backup.home`.
"""

import gzip
import hashlib
import json
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from soong.shared.core.errors import ForgedError, UsageError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
HOME, DATA, DATABASE, KEYS = "home", "data", "database", "keys"
PARTS: Final = frozenset({HOME, DATA, DATABASE, KEYS})
MAX_MANIFEST_BYTES: Final = 256 * 1024 * 1024
_DAMAGED: Final = "damaged_backup"
_UNREADABLE: Final = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(slots=True)
class ArchiveWriter:
    """Adds files; ``finish`` adds the manifest, without which no archive is complete."""

    tar: tarfile.TarFile
    files: dict[str, JsonObject] = field(default_factory=dict)

    def add(self, name: str, file: BinaryIO) -> None:
        """Add as many bytes as the open regular file has now. Raises: OSError when it becomes shorter meanwhile."""
        status = os.fstat(file.fileno())
        entry = tarfile.TarInfo(name)
        entry.size, entry.mtime, entry.mode = status.st_size, int(status.st_mtime), status.st_mode & 0o777
        counting = _Digesting(file)
        self.tar.addfile(entry, cast("IO[bytes]", counting))
        self.files[name] = {"size": entry.size, "sha256": counting.digest.hexdigest()}

    def finish(self, facts: JsonObject) -> None:
        text = json.dumps({"format": FORMAT, **facts, "files": self.files}, indent=1).encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size, entry.mode = len(text), 0o600
        self.tar.addfile(entry, BytesIO(text))


class _Digesting:
    """A file that is digested while it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


@contextmanager
def new_archive(path: Path) -> Iterator[ArchiveWriter]:
    """Write a new archive that its owner alone reads; one that does not get complete is removed.
    Raises: UsageError, there is a file of that name, or no folder for it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise UsageError(f"{path} exists; name a file that does not") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be made: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            with (
                # Fast rather than small: rows become a fifth even so.
                gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                yield ArchiveWriter(tar)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise


class Member(Value):
    """A file of an archive. ``part`` is where it belongs, ``name`` its path below that."""

    part: str
    name: str
    mode: int
    file: IO[bytes]

    @property
    def whole_name(self) -> str:
        return f"{self.part}/{self.name}"

    def copy_to(self, target: BinaryIO) -> JsonObject:
        """Copy the bytes, and return their number and digest as a manifest has them. Raises: ForgedError."""
        digest, size = hashlib.sha256(), 0
        while data := self._piece():
            digest.update(data)
            size += len(data)
            target.write(data)
        return {"size": size, "sha256": digest.hexdigest()}

    def _piece(self) -> bytes:
        try:
            return self.file.read(1024 * 1024)
        except _UNREADABLE as error:
            raise ForgedError(f"it is not a complete backup: {error}", what=_DAMAGED) from error


@dataclass(slots=True)
class ArchiveReader:
    """Yields the files of an archive once; then ``manifest`` lists what they must have been."""

    path: Path
    manifest: JsonObject = field(default_factory=dict)

    def members(self) -> Iterator[Member]:
        """Yield each file in its order.
        Raises: ForgedError, it is not a backup, ends early, or has a name or a kind of file that no backup has;
        UsageError, there is no such file, or it cannot be read.
        """
        try:
            with gzip.open(self.path) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
                for entry in tar:
                    content = tar.extractfile(entry) if entry.isreg() else None
                    if content is None:
                        raise ForgedError(f"{entry.name!r} in it is not a regular file", what=_DAMAGED)
                    if entry.name == MANIFEST:
                        self.manifest = _manifest(content)
                    else:
                        yield _member(entry, content)
        except _UNREADABLE as error:
            raise ForgedError(f"{self.path} is not a complete backup: {error}", what=_DAMAGED) from error
        except FileNotFoundError:
            raise UsageError(f"there is no file {str(self.path)!r}") from None
        except (IsADirectoryError, PermissionError) as error:
            raise UsageError(f"{self.path} cannot be read: {error.strerror}") from error
        if not self.manifest:
            raise ForgedError(f"{self.path} is not a complete backup: it has no manifest", what=_DAMAGED)

    def check(self, found: JsonObject) -> None:
        """Hold what was read to the manifest. Raises: ForgedError, which names the first difference."""
        expected = self.manifest.get("files")
        if not isinstance(expected, dict):
            raise ForgedError("its manifest names no files", what=_DAMAGED)
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                what = "is missing" if name not in found else "is not what was backed up"
                raise ForgedError(f"{name!r} {what}", what=_DAMAGED)


def _manifest(content: IO[bytes]) -> JsonObject:
    text = content.read(MAX_MANIFEST_BYTES + 1)
    try:
        value = json.loads(text) if len(text) <= MAX_MANIFEST_BYTES else None
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ForgedError("its manifest cannot be read", what=_DAMAGED)
    if value.get("format") != FORMAT:
        raise UsageError(f"the backup has format {value.get('format')!r}, this program reads {FORMAT}; upgrade soong")
    return value


def _member(entry: tarfile.TarInfo, content: IO[bytes]) -> Member:
    part, *names = entry.name.split("/")
    if part not in PARTS or not names or any(name in {"", ".", ".."} or "\0" in name for name in names):
        raise ForgedError(f"{entry.name!r} in it is not a name of a backup", what=_DAMAGED)
    return Member(part, "/".join(names), entry.mode, content)
