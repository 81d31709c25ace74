"""Limits and times that ``config.toml`` gives, and what wins over it (EXE-08, PER-13)."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from soong.orchestrator.direct.bootstrap import open_tools
from soong.shared.core.config import load_config, parse_config, with_config
from soong.shared.core.errors import InvalidConfigError, InvalidToolError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.permissions.request import PermissionDecision, PermissionRequest
from soong.shared.tools.registry import Toolset
from soong.shared.tools.result import ErrorType
from tests.unit.cli.calling import soong

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
        ("tools", "default_timeout_ms = 1.5", "takes an integer"),
        ("tools", 'max_timeout_ms = "9s"', "takes an integer"),
        ("tools", "max_timeout_ms = 99_999_999_999_999", "less than or equal to 31536000000"),
        ("permission", "timeout_s = 0", "greater than 0"),
        ("permission", "timeout_s = nan", "less than or equal to 31536000"),
        ("permission", "timeout_s = inf", "less than or equal to 31536000"),
        ("permission", 'timeout_s = "45"', "takes a number"),
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


@pytest.mark.spec("EXE-08.b", "EXE-08.g")
async def test_a_tool_of_a_program_above_the_files_maximum_is_refused(tmp_path: Path) -> None:
    home, own = home_with(tmp_path, "[tools]\nmax_timeout_ms = 5_000\n"), Toolset()

    @own.tool("team.slow", timeout=timedelta(seconds=6))
    def slow() -> None:
        """Take long."""

    with pytest.raises(InvalidToolError, match="its timeout must be above 0 and at most 5000 ms"):
        async with open_tools(agent_home=home, project=tmp_path, tools=[own]):
            raise AssertionError


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
