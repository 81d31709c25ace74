"""Backups of an embedded home: made while its service runs, the database before the files that it names; restored into
an empty home, where nothing is in its place before all of it has been checked.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Final

from soong.orchestrator.backup.archive import (
    DATA,
    DATABASE,
    HOME,
    KEYS,
    ArchiveReader,
    ArchiveWriter,
    Member,
    new_archive,
)
from soong.orchestrator.client.bootstrap import check_embedded_database, copy_embedded_database
from soong.orchestrator.embedded.folders import prepare_home
from soong.orchestrator.embedded.service_file import LOCK_FILE, ServiceHeldError, ServiceLock
from soong.shared.core.errors import ForgedError, UsageError
from soong.shared.core.file_systems import flush_file_system
from soong.shared.core.installation import DISTRIBUTION
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import ARTIFACTS, RUNS, Settings
from soong.shared.core.timing import Clock
from soong.shared.core.value import Value

DATABASE_FILE: Final = "soong.db"
SIGNING_KEY: Final = "signing.key"
_PASSING: Final = (DATABASE_FILE, "service.json", ".backup-", ".clock-")
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
            if not file.startswith((".new-", ".old-")):
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


class RestoreReport(Value):
    """The restored backup."""

    home: Path
    files: int
    program: str
    created_us: int

    def as_json(self) -> JsonObject:
        return {"home": str(self.home), "files": self.files, "program": self.program, "created_us": self.created_us}


def restore_backup(settings: Settings, path: Path) -> RestoreReport:
    """Restore a backup into the home of the settings.
    Raises: UsageError, the home or the data folder is not empty, or the file cannot be read; ServiceHeldError, a
    service runs in the home; ForgedError, the file is not a backup, or a part of it is not what was backed up;
    SchemaVersionError, its database is newer than this program.
    """
    check_embedded(settings)
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    with _empty_home(settings) as home, _staging(home) as staging, _data_staging(settings, staging) as data:
        targets = {HOME: staging, DATA: data, DATABASE: staging, KEYS: staging / KEYS}
        archive = ArchiveReader(path)
        found: dict[str, Json] = {}
        for member in archive.members():
            found[member.whole_name] = _extract(member, targets[member.part])
        archive.check(found)
        check_embedded_database(staging / DATABASE_FILE)
        _place(settings, staging, data)
    created = archive.manifest.get("created_us")
    return RestoreReport(
        settings.home, len(found), str(archive.manifest.get("program", "")), created if isinstance(created, int) else 0
    )


@contextmanager
def _empty_home(settings: Settings) -> Iterator[Path]:
    """Hold the home, so that no service starts in it, and make sure that it is empty."""
    is_new = not settings.home.exists()
    home = prepare_home(settings)
    names = {path.name for path in home.iterdir()}
    lock = ServiceLock(home)
    try:
        lock.acquire()
    except ServiceHeldError:
        raise ServiceHeldError(
            home, "a backup is restored into an empty home, such as a new SOONG_AGENT_HOME"
        ) from None
    try:
        _refuse_content(home, names - {LOCK_FILE}, "SOONG_AGENT_HOME")
        if settings.data != home and settings.data.is_dir():
            inside = {path.name for path in settings.data.iterdir()} & {ARTIFACTS, RUNS}
            _refuse_content(
                settings.data, {name for name in inside if any((settings.data / name).iterdir())}, "SOONG_DATA_DIR"
            )
        yield home
    except BaseException:
        if LOCK_FILE not in names:
            (home / LOCK_FILE).unlink(missing_ok=True)
        if is_new and not any(home.iterdir()):
            home.rmdir()
        raise
    finally:
        lock.release()


def _refuse_content(folder: Path, names: set[str], setting: str) -> None:
    if names:
        shown = ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
        raise UsageError(f"{folder} is not empty: it has {shown}; set {setting} to an empty folder, or move these away")


@contextmanager
def _staging(home: Path) -> Iterator[Path]:
    staging = Path(tempfile.mkdtemp(prefix=".restore-", dir=home))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _data_staging(settings: Settings, staging: Path) -> Iterator[Path]:
    """Return where files of the data folder are put before they are checked: on the file system of that folder."""
    if settings.data == settings.home:
        yield staging
        return
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _staging(settings.data) as data:
        yield data


def _extract(member: Member, target: Path) -> JsonObject:
    """Write a file where it is checked, with what its owner may do with it and no more for others than they could."""
    path = target / member.name
    for folder in reversed(path.relative_to(target).parents):
        (target / folder).mkdir(mode=0o700, exist_ok=True)
    mode = 0o600 | (member.mode & 0o755 if member.part == HOME else 0)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise ForgedError(f"{member.whole_name!r} is in it twice", what="damaged_backup") from None
    with os.fdopen(descriptor, "wb") as file:
        return member.copy_to(file)


def _place(settings: Settings, staging: Path, data: Path) -> None:
    """Move the checked files to their places, the database last: a home without one has not been restored."""
    key = staging / KEYS / SIGNING_KEY
    if key.is_file():
        if settings.key_file.exists():
            raise UsageError(f"{settings.key_file} exists; move this key away, or set SOONG_SIGNING_KEY_FILE")
        settings.key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.move(key, settings.key_file)
    shutil.rmtree(staging / KEYS, ignore_errors=True)
    if data != staging:
        # The folders that are there already are empty.
        for entry in data.iterdir():
            entry.replace(settings.data / entry.name)
    for entry in sorted(staging.iterdir(), key=lambda entry: entry.name == DATABASE_FILE):
        entry.replace(settings.home / entry.name)
    descriptor = os.open(settings.home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flush_file_system(descriptor)
    finally:
        os.close(descriptor)
