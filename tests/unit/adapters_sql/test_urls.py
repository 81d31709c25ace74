"""Which databases are taken, and where an SQLite file may lie."""

from pathlib import Path

import pytest

from soong.orchestrator.doctor import machine as checks
from soong.orchestrator.doctor.machine import Level
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.file_systems import NETWORK_FILE_SYSTEMS, file_system_of
from soong.shared.core.settings import Settings
from soong.shared.storage.sql.engine.engine import parse_url, refuse_network_file_system


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:////var/soong.db", "sqlite"),
        ("postgresql://user@host/db", "postgresql+psycopg"),
        ("postgresql+psycopg://user@host/db", "postgresql+psycopg"),
    ],
)
def test_the_two_databases_are_taken_with_our_drivers(url: str, driver: str) -> None:
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize("url", ["sqlite:///relative.db", "sqlite://", "mysql://host/db", "not a url"])
def test_anything_else_is_refused_with_what_to_say_instead(url: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"sqlite|SOONG_DATABASE_URL"):
        parse_url(url)


def test_a_network_file_system_is_refused_by_name(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/share {tmp_path} nfs4 rw 0 0\n", encoding="utf-8")

    with pytest.raises(InvalidConfigError, match=r"nfs4.*SOONG_DATABASE_URL"):
        refuse_network_file_system(tmp_path / "soong.db", mounts)


@pytest.mark.parametrize("kind", sorted(NETWORK_FILE_SYSTEMS))
async def test_what_doctor_fails_no_database_is_opened_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/share {tmp_path} {kind} rw 0 0\n", encoding="utf-8")
    monkeypatch.setattr(checks, "file_system_of", lambda path: file_system_of(path, mounts))

    assert (await checks.check_home(Settings(agent_home=tmp_path))).level is Level.FAIL
    with pytest.raises(InvalidConfigError, match=kind):
        refuse_network_file_system(tmp_path / "soong.db", mounts)


def test_a_local_mount_below_a_network_one_is_taken(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/share {tmp_path} nfs rw 0 0\n/dev/vdb {local} ext4 rw 0 0\n", encoding="utf-8")

    refuse_network_file_system(local / "soong.db", mounts)


def test_a_system_without_a_list_of_mounts_is_not_asked(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path / "soong.db", tmp_path / "none")
