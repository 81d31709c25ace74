import gzip
import hashlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from soong.orchestrator.backup.home import create_backup, restore_backup
from soong.shared.core.errors import ForgedError, SchemaVersionError, SoongError, UsageError
from soong.shared.core.settings import Settings
from soong.shared.sandbox.family import HAS_MARK
from soong.shared.storage.sql.engine.engine import parse_url
from soong.shared.storage.sql.engine.schema import prepare
from soong.shared.storage.sql.snapshot import copy_database
from tests.model.clock import FakeClock


def settings_of(home: Path, **more: object) -> Settings:
    return Settings(agent_home=home).model_copy(update=dict(more))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home after some work, with what a service and a hostile worker leave in it."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    prepare(parse_url(f"sqlite:///{home / 'soong.db'}"), migrate=True)
    for name in ("config.toml", "tools/hello.json", "skills/x/SKILL.md", "runs/run_1/events.jsonl", "logs/worker.log"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "hooks").mkdir()
    (home / "hooks" / "check").write_text("#!/bin/sh\n")
    (home / "hooks" / "check").chmod(0o700)
    (home / "signing.key").write_text("the key")
    (home / "service.lock").touch()
    (home / "artifacts" / "ab").mkdir(parents=True)
    (home / "artifacts" / "ab" / "cd").write_bytes(bytes(range(256)) * 5000)
    (home / "artifacts" / "ab" / "ef").symlink_to("/etc/passwd")
    os.mkfifo(home / "runs" / "run_1" / "pipe")
    return home


@pytest.fixture
def archive(home: Path, tmp_path: Path) -> Path:
    return create_backup(settings_of(home), tmp_path / "backup.tar.gz", FakeClock()).path


def contents(home: Path) -> dict[str, bytes]:
    files = {path.relative_to(home).as_posix(): path for path in home.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith("soong.db")}


@pytest.mark.spec("OPS-13.a", "OPS-13.b")
def test_a_home_is_restored_file_by_file_without_what_belongs_to_a_process(home: Path, tmp_path: Path) -> None:
    report = create_backup(settings_of(home), tmp_path / "backup.tar.gz", FakeClock())
    done = restore_backup(settings_of(tmp_path / "new"), report.path)

    expected = contents(home)
    del expected["logs/worker.log"], expected["artifacts/ab/ef"]
    assert contents(tmp_path / "new") == expected
    assert sorted(report.skipped) == ["data/artifacts/ab/ef", "data/runs/run_1/pipe"]
    assert done.files == report.files
    assert (tmp_path / "new" / "hooks" / "check").stat().st_mode & 0o777 == 0o700
    folders = [path for path in (tmp_path / "new").rglob("*") if path.is_dir()]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


@pytest.mark.spec("OPS-13.b")
def test_a_data_folder_and_a_key_elsewhere_are_restored_elsewhere(home: Path, tmp_path: Path) -> None:
    data, key = tmp_path / "data", tmp_path / "keys" / "deployment.key"
    data.mkdir()
    for name in ("artifacts", "runs"):
        (home / name).rename(data / name)
    key.parent.mkdir()
    (home / "signing.key").rename(key)
    before = settings_of(home, data_dir=data)
    path = create_backup(
        before.model_copy(update={"signing_key_file": key}), tmp_path / "backup.tar.gz", FakeClock()
    ).path

    new = settings_of(tmp_path / "new", data_dir=tmp_path / "data2", signing_key_file=tmp_path / "keys2" / "own.key")
    restore_backup(new, path)

    assert (tmp_path / "data2" / "runs" / "run_1" / "events.jsonl").exists()
    assert (tmp_path / "keys2" / "own.key").read_text() == "the key"
    assert not {"artifacts", "runs", "signing.key", "keys"} & {path.name for path in (tmp_path / "new").iterdir()}
    assert {path.name for path in (tmp_path / "data2").iterdir()} == {"artifacts", "runs"}


@pytest.mark.spec("OPS-13.a")
def test_a_copy_is_of_one_moment_though_others_write(home: Path, tmp_path: Path) -> None:
    with sqlite3.connect(home / "soong.db", isolation_level=None) as writer:
        writer.execute("INSERT INTO owners (id) VALUES ('before')")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO owners (id) VALUES ('not yet')")

        copy_database(home / "soong.db", tmp_path / "copy.db")

        writer.execute("COMMIT")
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        assert copy.execute("SELECT id FROM owners").fetchall() == [("before",)]


def changed(path: Path, change: Callable[[dict[str, bytes]], object], *more: tarfile.TarInfo) -> None:
    """Write an archive again with changed content, and entries that no backup has before its manifest."""
    with tarfile.open(path) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]  # all regular
    change(files)
    manifest = files.pop("manifest.json", None)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            _put(tar, tarfile.TarInfo(name), data)
        for entry in more:
            _put(tar, entry, b"")
        if manifest is not None:
            _put(tar, tarfile.TarInfo("manifest.json"), manifest)


def _put(tar: tarfile.TarFile, entry: tarfile.TarInfo, data: bytes) -> None:
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))


def link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def of_format(files: dict[str, bytes], /, **more: object) -> None:
    files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | more).encode()


def with_schema(files: dict[str, bytes], revision: str, tmp: Path) -> None:
    path = tmp / "later.db"
    path.write_bytes(files["database/soong.db"])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    files["database/soong.db"] = path.read_bytes()
    rewrite_manifest(files)


def with_damaged_rows(files: dict[str, bytes]) -> None:
    files["database/soong.db"] = b"SQLite format 3\0" * 999
    rewrite_manifest(files)


def rewrite_manifest(files: dict[str, bytes]) -> None:
    named = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != "manifest.json"
    }
    of_format(files, files=named)


DAMAGE: dict[str, tuple[Callable[[Path], object], type[SoongError], str]] = {
    "no archive": (lambda path: path.write_text("hello"), ForgedError, "not a complete backup"),
    "empty": (lambda path: path.write_bytes(b""), ForgedError, "not a complete backup"),
    "cut": (lambda path: os.truncate(path, path.stat().st_size // 2), ForgedError, "not a complete backup"),
    "no manifest": (lambda path: changed(path, lambda files: files.pop("manifest.json")), ForgedError, "no manifest"),
    "a file changed": (
        lambda path: changed(path, lambda files: files.update({"home/config.toml": b"mode = 'allow'"})),
        ForgedError,
        "'home/config.toml' is not what was backed up",
    ),
    "a file missing": (
        lambda path: changed(path, lambda files: files.pop("keys/signing.key")),
        ForgedError,
        "'keys/signing.key' is missing",
    ),
    "a file more": (
        lambda path: changed(path, lambda files: files.update({"home/hooks/more": b""})),
        ForgedError,
        "'home/hooks/more' is not what",
    ),
    "a damaged database": (lambda path: changed(path, with_damaged_rows), ForgedError, "its database cannot be used"),
    "a newer schema": (
        lambda path: changed(path, lambda files: with_schema(files, "9999", path.parent)),
        SchemaVersionError,
        "schema 9999, newer",
    ),
    "a newer format": (
        lambda path: changed(path, lambda files: of_format(files, format=2)),
        UsageError,
        "format 2, this program reads 1",
    ),
    "a way out": (
        lambda path: changed(path, lambda files: files.update({"home/../../out": b""})),
        ForgedError,
        "not a name of a backup",
    ),
    "an absolute name": (
        lambda path: changed(path, lambda files: files.update({"/tmp/out": b""})),
        ForgedError,
        "not a name of a backup",
    ),
    "a link": (
        lambda path: changed(path, lambda files: None, link("home/tools", "/etc")),
        ForgedError,
        "not a regular file",
    ),
    "a name twice": (
        lambda path: changed(path, lambda files: None, tarfile.TarInfo("home/config.toml")),
        ForgedError,
        "is in it twice",
    ),
    "bytes that do not unpack": (
        lambda path: path.write_bytes(gzip.compress(b"x" * 4096)),
        ForgedError,
        "not a complete backup",
    ),
}


@pytest.mark.spec("OPS-13.c")
@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_or_hostile_backup_leaves_nothing(case: str, archive: Path, tmp_path: Path) -> None:
    damage, error, said = DAMAGE[case]
    damage(archive)

    with pytest.raises(error, match=said):
        restore_backup(settings_of(tmp_path / "new"), archive)

    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.spec("OPS-13.c")
def test_an_empty_folder_that_was_there_stays_and_can_be_restored_into(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    whole = archive.read_bytes()
    os.truncate(archive, 100)
    with pytest.raises(ForgedError):
        restore_backup(settings_of(tmp_path / "new"), archive)
    assert list((tmp_path / "new").iterdir()) == []
    archive.write_bytes(whole)

    restore_backup(settings_of(tmp_path / "new"), archive)

    assert (tmp_path / "new" / "soong.db").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"database_url": "postgresql://x@db/soong"}, "names a database of its own"),
        ({"agent_home": Path("/nonexistent/home")}, "nothing has run"),
    ],
)
def test_what_cannot_be_backed_up_is_said(home: Path, tmp_path: Path, change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        create_backup(settings_of(home, **change), tmp_path / "backup.tar.gz", FakeClock())

    assert not (tmp_path / "backup.tar.gz").exists()


@pytest.mark.parametrize("name", ["home/backup.tar.gz", "none/backup.tar.gz", "home-is-a-file"])
def test_a_place_where_no_backup_can_be_is_refused(home: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "home-is-a-file").touch()

    with pytest.raises(UsageError):
        create_backup(settings_of(home), tmp_path / name, FakeClock())

    assert not list(home.glob(".backup-*"))


@pytest.mark.skipif(not HAS_MARK, reason="the mark of runs needs Linux")
@pytest.mark.parametrize("words", [["backup", "../b.tar.gz"], ["restore", "../b.tar.gz"]], ids=["backup", "restore"])
def test_a_program_of_a_run_makes_and_restores_no_backup(home: Path, words: list[str]) -> None:
    code = f"import sys; sys.argv = ['soong', *{words!r}]; from soong.shared.sandbox.family import mark_family"

    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}; mark_family(); from soong.orchestrator.cli.main import main; main()"],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        env={"PATH": os.environ["PATH"], "SOONG_AGENT_HOME": str(home)},
        timeout=60,
    )

    assert (done.returncode, "a home from inside a run" in done.stderr) == (1, True)
    assert not (home.parent / "b.tar.gz").exists()
