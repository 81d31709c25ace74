"""Restores a backup into an empty home. Nothing is in its place before all of it has been checked."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from soong.orchestrator.backup.archive import DATA, DATABASE, HOME, KEYS, ArchiveReader, Member
from soong.orchestrator.backup.create import DATABASE_FILE, SIGNING_KEY, check_embedded
from soong.orchestrator.client.bootstrap import check_embedded_database
from soong.orchestrator.embedded.folders import prepare_home
from soong.orchestrator.embedded.service_file import LOCK_FILE, ServiceHeldError, ServiceLock
from soong.shared.core.errors import ForgedError, UsageError
from soong.shared.core.file_systems import flush_file_system
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import ARTIFACTS, RUNS, Settings
from soong.shared.core.value import Value


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
