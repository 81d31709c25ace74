"""Makes a backup of an embedded home while its service runs: the database first, then the files that it names."""

import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Final

from soong.orchestrator.backup.archive import DATA, DATABASE, HOME, KEYS, ArchiveWriter, new_archive
from soong.orchestrator.client.bootstrap import copy_embedded_database
from soong.shared.core.errors import UsageError
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import ARTIFACTS, RUNS, Settings
from soong.shared.core.timing import Clock

DATABASE_FILE: Final = "soong.db"
SIGNING_KEY: Final = "signing.key"
_PASSING: Final = (DATABASE_FILE, "service.json", ".backup-", ".clock-")
_INCOMPLETE: Final = (".new-", ".old-")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@dataclass(slots=True)
class BackupReport:
    """The contents of a backup. ``skipped`` are links and other things that are not regular files."""

    path: Path
    files: int = 0
    size_bytes: int = 0
    skipped: list[str] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        return {"path": str(self.path), "files": self.files, "size_bytes": self.size_bytes, "skipped": [*self.skipped]}


def create_backup(settings: Settings, path: Path, clock: Clock) -> BackupReport:
    """Write a backup of the home to a new file. The service may run.
    Raises: UsageError, the home is not an embedded one, nothing has run in it, or the file cannot be made;
    UnavailableError, the database cannot be read.
    """
    check_embedded(settings)
    if not (settings.home / DATABASE_FILE).exists():
        raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")
    path = path.absolute()
    for folder in (settings.home, settings.data):
        if path.resolve().is_relative_to(folder.resolve()):
            raise UsageError(f"{path} is inside of {folder}, which is backed up; name a file elsewhere")
    report = BackupReport(path)
    with new_archive(path) as archive:
        _add_database(settings, archive)
        for part, root, names in _places(settings):
            for name in names:
                _add_tree(archive, part, root, name, report)
        if settings.key_file.is_file():
            with settings.key_file.open("rb") as file:
                archive.add(f"{KEYS}/{SIGNING_KEY}", file)
        archive.finish({"program": version(DISTRIBUTION), "created_us": clock.now_us()})
        report.files = len(archive.files)
    report.size_bytes = path.stat().st_size
    return report


def check_embedded(settings: Settings) -> None:
    """Raise UsageError unless the rows are in the home."""
    if not settings.is_embedded:
        raise UsageError(
            "SOONG_DATABASE_URL names a database of its own, which is backed up by its own tools; "
            "docs/operations.md shows how"
        )


def _add_database(settings: Settings, archive: ArchiveWriter) -> None:
    # Next to the original: there is room for it, and nobody else may look into the home.
    with tempfile.TemporaryDirectory(prefix=".backup-", dir=settings.home) as folder:
        copy = Path(folder) / DATABASE_FILE
        copy_embedded_database(settings, copy)
        with copy.open("rb") as file:
            archive.add(f"{DATABASE}/{DATABASE_FILE}", file)


def _places(settings: Settings) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the part, the folder and the names in it that are backed up; what is written last comes first."""
    data = {ARTIFACTS, RUNS}
    key = settings.key_file.name if settings.key_file.parent == settings.home else ""
    left_out = data | {key} if settings.data == settings.home else {key}
    yield DATA, settings.data, [name for name in sorted(data) if (settings.data / name).is_dir()]
    yield (
        HOME,
        settings.home,
        sorted(each.name for each in settings.home.iterdir() if not _is_left_out(each.name, left_out)),
    )


def _is_left_out(name: str, left_out: set[str]) -> bool:
    """Say whether an entry of the home belongs to the running service, or is in the backup as another part."""
    is_passing = name == "logs" or name.endswith((".lock", ".sock")) or name.startswith(_PASSING)
    return is_passing or name in left_out


def _add_tree(archive: ArchiveWriter, part: str, root: Path, name: str, report: BackupReport) -> None:
    """Add a file, or all regular files below a folder; workers write some of these, so no link is followed."""
    top = root / name
    if top.is_symlink() or not top.is_dir():
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _add_file(archive, f"{part}/{name}", descriptor, report)
        finally:
            os.close(descriptor)
        return
    for where, folders, files, descriptor in os.fwalk(top, follow_symlinks=False):
        below = Path(where).relative_to(root).as_posix()
        folders.sort()
        for file in sorted(files):
            if not file.startswith(_INCOMPLETE):
                _add_file(archive, f"{part}/{below}/{file}", descriptor, report)
        report.skipped += [f"{part}/{below}/{folder}" for folder in folders if (Path(where) / folder).is_symlink()]


def _add_file(archive: ArchiveWriter, whole: str, folder: int, report: BackupReport) -> None:
    try:
        file = _opened(whole.rpartition("/")[2], folder)
    except FileNotFoundError:
        return  # it has been removed since the folder was read
    except OSError:
        file = None
    if file is None:
        report.skipped.append(whole)
        return
    with file:
        archive.add(whole, file)


def _opened(name: str, folder: int) -> BinaryIO | None:
    descriptor = os.open(name, _READ, dir_fd=folder)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None
