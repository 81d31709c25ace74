"""Settings and the configuration: reading, checking, and which of both wins."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from soong.orchestrator.direct.bootstrap import open_tools
from soong.shared.core.config import MAX_CONFIG_BYTES, load_config, parse_config, with_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.secret_values import secret_values
from soong.shared.core.settings import OTHER_NAMES, Settings, load_settings
from soong.shared.permissions.request import PermissionDecision, PermissionRequest
from soong.shared.tools.result import ErrorType
from tests.unit.cli.calling import soong

GOOD = "[tools]\ndangerous = true\n"


def written(home: Path, text: str = GOOD, mode: int = 0o600) -> Path:
    path = home / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.spec("EXE-13", "PER-10")
@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_can_write_names_no_programs_and_rules(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, mode=mode)

    with pytest.raises(InvalidConfigError, match=f"can be written by other users; say chmod go-w {path}"):
        load_config(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(written(tmp_path), 65534, 65534)

    with pytest.raises(InvalidConfigError, match="belongs to another user"):
        load_config(tmp_path)


def test_a_fifo_a_folder_and_a_flood_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidConfigError, match="not a regular file"):
        load_config(tmp_path)

    path.unlink()
    path.mkdir()
    with pytest.raises(InvalidConfigError, match="not a regular file"):
        load_config(tmp_path)

    path.rmdir()
    written(tmp_path, "#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(InvalidConfigError, match="that is not a configuration"):
        load_config(tmp_path)


def test_a_file_of_mode_0644_behind_a_link_is_read(tmp_path: Path) -> None:
    elsewhere = tmp_path / "mounted"
    elsewhere.mkdir()
    (tmp_path / "config.toml").symlink_to(written(elsewhere, mode=0o644))

    assert load_config(tmp_path).tools.dangerous is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tools]\ndangerus = true", "tools.dangerus: there is no such field; known here: dangerous, shell, hidden"),
        ("tolls = 1", "tolls: there is no such field; known here: permission, tools, paths"),
        ('[[permission.rules]]\neffect = "ask"\ntool = "a.b"', "rules[0].tool: there is no such field; known here:"),
        ('[[hooks.pre]]\nname = "a"\ncommand = "ls -l"', "hooks.pre[0].command: takes a list, such as ['a', 'b']"),
        ("tools = 3", "tools: takes a table of fields"),
        ('[tools]\ndangerous = "yes"', "tools.dangerous: takes true or false"),
        ('[[hooks.pre]]\nname = "a"', "hooks.pre[0].command: is missing"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_it_takes(text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        parse_config(text)

    assert said in str(raised.value)


FILE: Final = """
[permission]
timeout_s = 45
park_after_s = 0.5

[tools]
default_timeout_ms = 7_000
max_timeout_ms = 9_000
"""
GIVEN: Final = {"permission_timeout_s": 45, "park_after_s": 0.5, "tool_timeout_ms": 7000, "tool_max_timeout_ms": 9000}
NAMES: Final = pytest.mark.parametrize("name", GIVEN)

SLOW: Final = {
    "name": "team.wait",
    "description": "Waits.",
    "permission": "readonly",
    "input_schema": {"type": "object", "properties": {}},
    "command": "sleep",
    "args": ["60"],
}


def home_with(folder: Path, text: str, **tool: object) -> Path:
    """Return a home with this configuration, and with a tool that waits for a minute."""
    home = folder / "soong"
    (home / "tools").mkdir(parents=True)
    (home / "config.toml").write_text(text, encoding="utf-8")
    (home / "tools" / "wait.json").write_text(json.dumps({**SLOW, **tool}), encoding="utf-8")
    return home


def in_force(home: Path, **options: object) -> Settings:
    settings = load_settings(agent_home=home, **options)
    return with_config(settings, load_config(settings.home))


@pytest.mark.spec("EXE-08.g", "PER-13.l")
@NAMES
def test_the_file_gives_what_nothing_else_gives(tmp_path: Path, name: str) -> None:
    given, without = in_force(home_with(tmp_path, FILE)), in_force(tmp_path)

    assert getattr(given, name) == GIVEN[name]
    assert getattr(without, name) == Settings.model_fields[name].default


@pytest.mark.spec("EXE-08.g", "PER-13.l")
@NAMES
@pytest.mark.parametrize("how", ["environment", "option"])
def test_the_environment_and_an_option_win_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    home = home_with(tmp_path, FILE)
    default = Settings.model_fields[name].default  # given in so many words it wins as well
    if how == "environment":
        monkeypatch.setenv(f"SOONG_{name.upper()}", str(default))

    settings = in_force(home) if how == "environment" else in_force(home, **{name: default})

    assert getattr(settings, name) == default


@pytest.mark.spec("EXE-08.g", "PER-13.l")
@pytest.mark.parametrize(
    ("section", "text", "said"),
    [
        ("tools", "default_timeout_ms = 0", "greater than or equal to 1"),
        ("tools", 'max_timeout_ms = "9s"', "takes an integer"),
        ("tools", "max_timeout_ms = 99_999_999_999_999", "less than or equal to 31536000000"),
        ("permission", "timeout_s = 0", "greater than 0"),
        ("permission", "timeout_s = nan", "less than or equal to 31536000"),
        ("permission", "park_after_s = -1", "greater than or equal to 0"),
        ("permission", "park_after_s = true", "takes a number"),
    ],
)
def test_a_wrong_value_is_named_with_its_file_its_key_and_what_it_may_be(
    tmp_path: Path, section: str, text: str, said: str
) -> None:
    home, key = home_with(tmp_path, f"[{section}]\n{text}\n"), text.partition(" ")[0]

    with pytest.raises(InvalidConfigError) as raised:
        load_config(home)

    assert f"{home}/config.toml: {section}.{key}: " in str(raised.value)
    assert said in str(raised.value)


def test_zero_seconds_park_at_once() -> None:
    config = parse_config("[permission]\npark_after_s = 0\n")

    assert with_config(load_settings(), config).park_after_s == 0


@pytest.mark.spec("EXE-08.g", "PER-13.l")
def test_config_show_names_the_file_as_the_source(tmp_path: Path) -> None:
    home_with(tmp_path, FILE)

    done = soong("config", "show", "--json", home=tmp_path, SOONG_PARK_AFTER_S="3")

    shown = {one["name"]: (one["value"], one["source"]) for one in json.loads(done.stdout)["settings"]}
    assert shown["SOONG_PERMISSION_TIMEOUT_S"] == ("45.0", "config.toml")
    assert shown["SOONG_TOOL_TIMEOUT_MS"] == ("7000", "config.toml")
    assert shown["SOONG_TOOL_MAX_TIMEOUT_MS"] == ("9000", "config.toml")
    assert shown["SOONG_PARK_AFTER_S"] == ("3.0", "environment")
    assert shown["SOONG_DECISION_TTL_S"] == ("86400.0", "default")


@pytest.mark.spec("EXE-08.a", "EXE-08.g")
@pytest.mark.parametrize("key", ["default_timeout_ms", "max_timeout_ms"])
def test_a_direct_call_has_the_time_that_the_file_gives(tmp_path: Path, key: str) -> None:
    home_with(tmp_path, f"[tools]\n{key} = 200\n")

    done = soong("tools", "call", "team.wait", "--json", home=tmp_path)

    assert json.loads(done.stdout)["error"]["type"] == "timeout"


@pytest.mark.spec("EXE-08.b", "EXE-08.g")
@pytest.mark.parametrize(("most", "asked"), [(5_000, 6_000), (800_000, 900_000)], ids=["lower", "higher"])
def test_a_definition_above_the_files_maximum_is_refused(tmp_path: Path, most: int, asked: int) -> None:
    home_with(tmp_path, f"[tools]\nmax_timeout_ms = {most}\n", timeout_ms=asked)

    refused = soong("tools", "list", home=tmp_path)
    raised = soong("tools", "list", home=tmp_path, SOONG_TOOL_MAX_TIMEOUT_MS=str(asked))

    assert (refused.returncode, raised.returncode) == (2, 0), raised.stderr
    assert f"timeout_ms: is {asked}, above the maximum {most}" in refused.stderr


@pytest.mark.spec("EXE-08.g")
def test_a_tool_is_shown_with_the_files_times(tmp_path: Path) -> None:
    home_with(tmp_path, FILE)

    shown = soong("tools", "show", "team.wait", home=tmp_path).stdout
    asked = soong("tools", "call", "team.wait", "--timeout-ms", "9001", home=tmp_path)

    assert "7000 ms, at most 9000 ms" in shown
    assert "9000 ms (tools.max_timeout_ms" in asked.stderr


@pytest.mark.spec("PER-05.b", "PER-13.l")
async def test_a_direct_question_waits_as_long_as_the_file_says(tmp_path: Path) -> None:
    async def nobody(_request: PermissionRequest) -> PermissionDecision:
        await asyncio.Event().wait()
        raise AssertionError

    home = home_with(tmp_path, "[permission]\ntimeout_s = 0.05\n")

    async with open_tools(agent_home=home, project=tmp_path, permission_callback=nobody) as tools:
        result = await tools.call("code.write_file", {"path": "a.txt", "content": "x"})

    assert result.error is not None
    assert result.error.type is ErrorType.PERMISSION_TIMEOUT


def test_the_default_is_embedded_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")

    settings = load_settings()

    assert settings.is_embedded
    assert settings.home == Path("/home/ada/.soong")
    assert settings.effective_database_url == "sqlite:////home/ada/.soong/soong.db"


@pytest.mark.spec("PER-13.b", "PER-13.j")
def test_a_question_waits_five_minutes_and_holds_a_slot_for_half_a_minute_by_default() -> None:
    settings = load_settings()

    assert (settings.permission_timeout_s, settings.park_after_s) == (300, 30)


def test_what_the_caller_says_is_above_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_SLOTS", "3")

    assert load_settings().slots == 3
    assert load_settings(slots=5).slots == 5
    assert load_settings(slots=None).slots == 3


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_POOLS", "default, gpu ,")

    assert load_settings().pools == ("default", "gpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [("SOONG_SLOTS", "many"), ("SOONG_LEASE_S", "0"), ("SOONG_WORKERS", "0"), ("SOONG_LOG_LEVEL", "loud")],
    ids=str,
)
def test_a_wrong_value_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(InvalidConfigError, match=f"{name}='{value}'"):
        load_settings()


@pytest.mark.spec("OPS-01")
@pytest.mark.parametrize(
    ("said", "least", "most"), [("3", 3, 3), (3, 3, 3), ("1-4", 1, 4), (" 2-2 ", 2, 2), (None, 1, 2)], ids=str
)
def test_workers_are_a_number_or_a_range(said: object, least: int, most: int) -> None:
    workers = load_settings(workers=said).workers

    assert (workers.least, workers.most) == (least, most)
    assert load_settings(workers=str(workers)).workers == workers, "as it is given to a child"


@pytest.mark.parametrize("said", ["0", "0-2", "3-2", "65", "1-65", "1,4", "1-", "-2", "1-2-3", "1.5", "", "٣", True])
def test_a_wrong_range_of_workers_is_told_what_is_expected(said: object) -> None:
    with pytest.raises(InvalidConfigError, match=r"expected a number from 1 to 64, or a range of such numbers: 1-4$"):
        load_settings(workers=said)


def test_a_url_may_come_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("redis://:pass@host/0\n")
    monkeypatch.setenv("SOONG_REDIS_URL_FILE", str(secret))

    assert load_settings().redis_url == "redis://:pass@host/0"


def test_a_secret_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_REDIS_URL_FILE", "/nowhere/url")

    with pytest.raises(InvalidConfigError, match="/nowhere/url"):
        load_settings()


@pytest.mark.spec("EVT-05.a")
def test_passwords_of_urls_and_keys_of_the_environment_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "key-of-the-provider")
    monkeypatch.setenv("SHORT_TOKEN", "abc")

    values = secret_values(load_settings(redis_url="redis://:redis-password@host/0"))

    assert set(values) >= {"redis-password", "key-of-the-provider"}
    assert "abc" not in values


def test_a_misspelt_override_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidConfigError, match=r"no 'slotts' \(perhaps 'slots'\)"):
        load_settings(slotts=3)


def test_a_worker_refuses_a_setting_that_does_not_exist(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "SOONG_SLOST": "3"}

    argv = [sys.executable, "-P", "-m", "soong.worker"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode != 0
    assert "there is no 'SOONG_SLOST' (perhaps 'SOONG_SLOTS')" in done.stderr


def test_what_kubernetes_adds_for_a_service_of_this_name_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOONG_SERVICE_HOST", "SOONG_SERVICE_PORT_HTTP", "SOONG_API_PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(name, "10.0.0.7")
    monkeypatch.setenv("SOONG_PORT", "tcp://10.0.0.7:8080")

    assert load_settings().model == "script"


def test_a_port_that_is_no_address_is_a_misspelled_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONG_HTTPS_PORT", "8080")

    with pytest.raises(InvalidConfigError, match="perhaps 'SOONG_HTTP_PORT'"):
        load_settings()


def test_every_name_in_scripts_and_documents_is_known() -> None:
    root = Path(__file__).parents[2]
    places = (
        root / "docker-compose.yml",
        root / "README.md",
        root / "Makefile",
        *(root / "deploy").rglob("*"),
        *(root / "docs").rglob("*.md"),
    )
    known = {f"SOONG_{name.upper()}" for name in Settings.model_fields}.union(OTHER_NAMES)

    named = {
        name
        for place in places
        if place.is_file()
        for name in re.findall(r"\bSOONG_[A-Z0-9_]*[A-Z0-9]\b", place.read_text(errors="replace"))
    }

    assert not named - known
