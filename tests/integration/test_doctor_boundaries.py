"""``soong doctor`` on who may write what: it asks the operating system and the database, and fails where a boundary is
undone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from soong.orchestrator.doctor.checks import check_notifications
from soong.orchestrator.doctor.machine import Level, check_boundary, check_configuration, check_data, may_write
from soong.shared.core.settings import Settings, load_settings
from soong.shared.permissions.signing import Signer
from tests.integration.roles import RoleUrls

STRANGER = 4242


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home as a deployment has it: with a configuration, a tool and a skill."""
    home = tmp_path / "home"
    for name in ("tools", "skills/x"):
        (home / name).mkdir(parents=True)
    (home / "config.toml").write_text("")
    (home / "tools" / "x.json").write_text("{}")
    (home / "skills" / "x" / "SKILL.md").write_text("")
    (tmp_path / "data").mkdir()
    return home


def settings_of(home: Path, url: str = "", **more: object) -> Settings:
    return load_settings(agent_home=home, database_url=url, data_dir=home.parent / "data", **more)


def socket_folder(role_urls: RoleUrls) -> Path:
    return Path(str(make_url(role_urls.worker).query["host"]))


@contextmanager
def acting_as_a_stranger(*opened: Path) -> Iterator[None]:
    """Act as a user who owns nothing here; ``opened`` folders are let through for it. Root alone can."""
    if os.getuid() != 0:
        pytest.skip("only root acts as another user")
    for folder in opened:
        for place in (folder, *folder.parents):
            if place != Path("/") and not place.stat().st_mode & 0o001:
                place.chmod(place.stat().st_mode | 0o011)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)


# -- data
@pytest.mark.spec("OPS-07")
async def test_a_data_folder_that_is_a_file_fails(home: Path) -> None:
    (home.parent / "data").rmdir()
    (home.parent / "data").write_text("")

    finding = await check_data(settings_of(home))

    assert (finding.level, finding.hint) == (Level.FAIL, "set SOONG_DATA_DIR to a folder")


@pytest.mark.spec("OPS-07")
async def test_a_data_folder_that_cannot_be_written_fails(home: Path) -> None:
    with acting_as_a_stranger(home):
        finding = await check_data(settings_of(home))

    assert finding.level is Level.FAIL
    assert "SOONG_DATA_DIR" in finding.hint


@pytest.mark.spec("OPS-07")
async def test_a_full_disk_of_data_warns(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("soong.orchestrator.doctor.machine.MIN_FREE_BYTES", 1 << 62)

    finding = await check_data(settings_of(home))

    assert (finding.level, finding.hint) == (Level.WARN, "make room on its disk (soong gc)")


async def test_the_data_folder_is_said(home: Path) -> None:
    apart, within = await check_data(settings_of(home)), await check_data(load_settings(agent_home=home))

    assert (apart.level, apart.says) == (Level.OK, f"{home.parent / 'data'} (apart from the home)")
    assert (within.level, within.says) == (Level.OK, f"{home} (in the home)")


# -- configuration
@pytest.mark.spec("OPS-07", "OPS-12")
async def test_a_configuration_that_a_workers_role_can_write_fails(home: Path, role_urls: RoleUrls) -> None:
    finding = await check_configuration(settings_of(home, role_urls.worker))

    assert finding.level is Level.FAIL
    assert f"can write {home} (and 6 more), and soong_worker is a worker's or a client's role" in finding.says
    assert "read-only" in finding.hint


@pytest.mark.spec("OPS-07", "OPS-12")
@pytest.mark.parametrize("name", ["config.toml", "tools/x.json", "skills/x/SKILL.md", "tools"])
async def test_one_file_of_the_configuration_is_enough_to_fail(home: Path, role_urls: RoleUrls, name: str) -> None:
    (home / name).chmod(0o777)

    with acting_as_a_stranger(home, socket_folder(role_urls)):
        finding = await check_configuration(settings_of(home, role_urls.worker))

    assert finding.level is Level.FAIL
    assert str(home / name) in finding.says


@pytest.mark.spec("OPS-07", "OPS-12")
async def test_a_hooks_program_that_can_be_written_fails(home: Path, role_urls: RoleUrls) -> None:
    program = home.parent / "check.py"
    program.write_text("")
    program.chmod(0o777)
    (home / "config.toml").write_text(f'[[hooks.pre]]\nname = "x"\ncommand = ["/usr/bin/python3", "{program}"]\n')

    with acting_as_a_stranger(home, socket_folder(role_urls)):
        finding = await check_configuration(settings_of(home, role_urls.worker))

    assert (finding.level, str(program) in finding.says) == (Level.FAIL, True)


@pytest.mark.spec("OPS-12")
async def test_a_configuration_that_nobody_here_can_write_is_in_order(home: Path, role_urls: RoleUrls) -> None:
    with acting_as_a_stranger(home, socket_folder(role_urls)):
        finding = await check_configuration(settings_of(home, role_urls.worker))

    assert (finding.level, finding.says) == (Level.OK, f"{home} is read-only for user {STRANGER} here")


@pytest.mark.spec("OPS-12")
async def test_data_in_the_home_of_a_deployment_warns(home: Path, role_urls: RoleUrls) -> None:
    apart = await check_configuration(settings_of(home, role_urls.orchestrator))
    within = await check_configuration(load_settings(agent_home=home, database_url=role_urls.orchestrator))

    assert (apart.level, "run no worker as that user" in apart.says) == (Level.OK, True)
    assert (within.level, "SOONG_DATA_DIR" in within.hint) == (Level.WARN, True)


async def test_a_configuration_that_can_be_written_under_an_unknown_role_warns(home: Path) -> None:
    finding = await check_configuration(settings_of(home, "postgresql://127.0.0.1:1/none?connect_timeout=2"))

    assert (finding.level, "did not answer" in finding.says) == (Level.WARN, True)


async def test_an_owner_can_give_itself_the_right_to_write(home: Path) -> None:
    os.chown(home / "config.toml", STRANGER, -1) if os.getuid() == 0 else None
    (home / "config.toml").chmod(0o400)

    with acting_as_a_stranger(home):
        assert may_write(home / "config.toml")
        assert not may_write(home / "tools" / "x.json")


# -- boundary
@pytest.mark.spec("OPS-07", "OPS-12")
async def test_a_signing_key_where_a_worker_runs_undoes_the_boundary(home: Path, role_urls: RoleUrls) -> None:
    before = await check_boundary(settings_of(home, role_urls.worker))
    Signer.load(home / "signing.key")

    finding = await check_boundary(settings_of(home, role_urls.worker))

    assert (before.level, "no signing key is here" in before.says) == (Level.OK, True)
    assert finding.level is Level.FAIL
    assert str(home / "signing.key") in finding.says


@pytest.mark.spec("OPS-12")
async def test_each_form_of_deployment_says_which_boundary_holds(home: Path, role_urls: RoleUrls) -> None:
    embedded = await check_boundary(load_settings(agent_home=home))
    file = await check_boundary(settings_of(home, f"sqlite:///{home}/x.db"))
    orchestrator = await check_boundary(settings_of(home, role_urls.orchestrator))
    owner = await check_boundary(settings_of(home, role_urls.owner))
    nowhere = await check_boundary(settings_of(home, "postgresql://127.0.0.1:1/none?connect_timeout=2"))

    assert (embedded.level, embedded.says.partition(":")[0]) == (Level.OK, "none")
    assert (file.level, "SQLite has no roles" in file.says) == (Level.WARN, True)
    assert (orchestrator.level, "soong_orchestrator decides" in orchestrator.says) == (Level.OK, True)
    assert (owner.level, "soong_owner owns the tables" in owner.says) == (Level.WARN, True)
    assert (nowhere.level, nowhere.says.partition(":")[0]) == (Level.WARN, "unknown")


# -- notifications
@pytest.mark.spec("OPS-07")
async def test_notifications_are_not_looked_at_by_a_role_that_may_not_read_them(
    home: Path, role_urls: RoleUrls
) -> None:
    worker = await check_notifications(settings_of(home, role_urls.worker))
    orchestrator = await check_notifications(settings_of(home, role_urls.orchestrator))

    assert (worker.level, "soong_worker reads none" in worker.says) == (Level.OK, True)
    assert (orchestrator.level, orchestrator.says) == (Level.OK, "no rule asks for any")
