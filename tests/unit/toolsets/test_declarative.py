"""Declared tools: their definitions, and the documents made of them."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.registry import ToolRegistry
from soong.shared.toolsets.declarative.definition import ToolFile
from soong.shared.toolsets.declarative.protocol import CLAIMABLE, RESULT_SCHEMA
from soong.shared.toolsets.declarative.running import DeclarativeTools
from soong.shared.toolsets.skills.toolset import SkillTools
from tests.unit.tools.parts import make_bench, make_tool

FIELD: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


def make_document(**overrides: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": "team.echo",
        "description": "Say it again.",
        "input_schema": FIELD,
        "command": "echo",
        "args": ["{{text}}"],
    }
    return {name: value for name, value in {**document, **overrides}.items() if value is not None}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "tools").mkdir(parents=True)
    (tmp_path / "home" / "tools").chmod(0o755)
    return tmp_path / "home"


def write(home: Path, name: str = "echo", /, **overrides: Any) -> Path:
    path = home / "tools" / f"{name}.json"
    path.write_text(json.dumps(make_document(**overrides)))
    path.chmod(0o644)
    return path


def tools_of(home: Path, config: Config | None = None) -> tuple[ToolDefinition, ...]:
    return DeclarativeTools(home, ProcessRunner(), config or Config()).tools()


def complaint(home: Path, config: Config | None = None) -> str:
    with pytest.raises(InvalidConfigError) as caught:
        tools_of(home, config)
    return str(caught.value)


@pytest.mark.spec("CMD-02.b", "REG-07.e")
def test_a_file_with_every_field_becomes_a_tool(home: Path, tmp_path: Path) -> None:
    config = parse_config(f"[paths]\nallowed_write_roots = [{str(tmp_path)!r}]\n")
    write(
        home,
        permission="readonly",
        tags=["network", "tickets"],
        command_type="exec",
        working_dir=str(tmp_path),
        env_allowlist=["LANG"],
        timeout_ms=5000,
        stdout_limit_bytes=1000,
        stderr_limit_bytes=100,
    )

    (tool,) = tools_of(home, config)

    assert (tool.name, tool.description, tool.input_schema) == ("team.echo", "Say it again.", FIELD)
    assert tool.permission is Permission.READONLY
    assert tool.tags == {"network", "tickets", "declarative", "readonly"}
    assert tool.timeout is not None
    assert tool.timeout.total_seconds() == 5
    assert tool.metadata["origin"] == str(home / "tools" / "echo.json")


@pytest.mark.spec("CMD-02", "REG-05.g")
def test_a_file_that_says_no_permission_writes_and_is_marked_declarative(home: Path) -> None:
    write(home)

    (tool,) = tools_of(home)

    assert tool.permission is Permission.WRITE
    assert tool.tags == {"declarative", "write"}


@pytest.mark.spec("REG-09")
def test_declared_tools_come_after_the_built_in_ones(home: Path) -> None:
    write(home, name="a.first")
    registry = ToolRegistry()
    registry.register(make_tool("code.x"), is_builtin=True)

    DeclarativeTools(home, ProcessRunner()).register(registry)

    assert [tool.name for tool in registry.definitions()] == ["code.x", "a.first"]
    assert registry.source_of("a.first") == f"file {home}/tools/echo.json"


@pytest.mark.spec("REG-02.b")
def test_a_name_that_another_source_has_is_an_error_that_names_the_file(home: Path) -> None:
    path = write(home)
    registry = ToolRegistry()
    registry.register(make_tool("team.echo"))

    with pytest.raises(InvalidConfigError, match="taken") as caught:
        DeclarativeTools(home, ProcessRunner()).register(registry)

    assert str(path) in str(caught.value)


def test_everything_wrong_with_every_file_is_reported_at_once(home: Path) -> None:
    first = write(home, "a", timeout_ms=0, colour="red")
    second = write(home, "b", name="noname", description=" ", args=["{{other}}"])

    said = complaint(home)

    assert len(said.splitlines()) == 5
    for expected in (f"{first}: timeout_ms", f"{first}: colour", f"{second}: name", f"{second}: description"):
        assert expected in said
    assert f"{second}: args[0]: names 'other'" in said


@pytest.mark.spec("CMD-02")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"name": "Team.Echo"}, "name: 'Team.Echo' is not a canonical name"),
        ({"name": "code.echo"}, "name: the namespace 'code' is Soong's own"),
        ({"name": "internal.echo"}, "name: the namespace 'internal'"),
        ({"name": "mcp.server.echo"}, "name: the namespace 'mcp'"),
        ({"description": "x" * 8001}, "description: is wrong"),
        ({"input_schema": {"type": "string"}}, "input_schema: $: its type is not 'object'"),
        ({"input_schema": []}, "input_schema: is wrong"),
        ({"permission": "none"}, "permission: is wrong"),
        ({"tags": "network"}, "tags: is wrong"),
        ({"tags": ["Network"]}, "tags[0]: 'Network' is not a tag"),
        ({"tags": ["ok", "code"]}, "tags[1]: 'code' is a tag of Soong's own"),
        ({"tags": ["readonly"]}, "tags[0]: 'readonly' contradicts permission 'write'"),
        ({"command_type": "bash"}, "command_type: is wrong"),
        ({"command": None}, "command: is missing"),
        ({"command": ""}, "command: is wrong"),
        ({"command": "a\0b", "command_type": "shell"}, "command: holds a NUL"),
        ({"command": "a\0b"}, "command: 'a\\x00b' is neither"),
        ({"command": "./echo"}, "command: './echo' is neither"),
        ({"args": "{{text}}"}, "args: is wrong"),
        ({"args": [1]}, "args[0]: is wrong"),
        ({"args": ["{{ text }}"]}, "args[0]: holds '{{' that begins no field"),
        ({"args": ["{{text.x}}"]}, "args[0]: holds '{{' that begins no field"),
        ({"args": ["a\0b"]}, "args[0]: holds a NUL"),
        ({"command": "sh", "args": ["-c", "echo {{text}}"]}, "args: hand a command string to a shell"),
        ({"command": "/bin/bash", "args": ["-ec", "true"]}, "args: hand a command string to a shell"),
        ({"working_dir": "~/x"}, "working_dir: '~/x' is not absolute"),
        ({"env_allowlist": ["A=1"]}, "env_allowlist[0]: 'A=1' is not the name of a variable"),
        ({"env_allowlist": ["SOONG_DATABASE_URL"]}, "env_allowlist[0]: 'SOONG_DATABASE_URL' belongs to Soong"),
        ({"timeout_ms": "5"}, "timeout_ms: is wrong"),
        ({"timeout_ms": True}, "timeout_ms: is wrong"),
        ({"stdout_limit_bytes": 10**9}, "stdout_limit_bytes: is 1000000000, above the maximum"),
        ({"stderr_limit_bytes": 0}, "stderr_limit_bytes: is wrong"),
    ],
    ids=str,
)
def test_a_wrong_field_is_named_with_its_file(home: Path, overrides: dict[str, Any], expected: str) -> None:
    path = write(home, **overrides)

    assert f"{path}: {expected}" in complaint(home)


@pytest.mark.spec("CMD-04.b")
@pytest.mark.parametrize("kind", ["array", "object", None])
def test_a_field_that_is_no_scalar_cannot_stand_in_an_argument(home: Path, kind: str | None) -> None:
    part = {"type": kind} if kind else {}
    write(home, input_schema={"type": "object", "properties": {"text": part}})

    assert "args[0]: names 'text', which is" in complaint(home)


@pytest.mark.spec("CMD-04.e", "CMD-06")
def test_a_shell_line_needs_to_write_or_to_be_dangerous(home: Path) -> None:
    write(home, "a", name="team.a", command_type="shell", permission="readonly")
    write(home, "b", name="team.b", command_type="shell", permission="readonly", tags=["dangerous"])
    write(home, "c", name="team.c", command_type="shell", permission="write")

    (line,) = complaint(home).splitlines()

    assert line.startswith(
        f"{home}/tools/a.json: command_type: 'shell' needs permission 'write' or the tag 'dangerous'"
    )


@pytest.mark.spec("CMD-05.c")
def test_a_working_dir_lies_inside_the_allowed_roots(home: Path, tmp_path: Path) -> None:
    inside, link = tmp_path / "roots" / "inside", tmp_path / "roots" / "link"
    inside.mkdir(parents=True)
    link.symlink_to("/etc")
    config = parse_config(f"[paths]\nallowed_write_roots = [{str(tmp_path / 'roots')!r}]\n")

    write(home, working_dir=str(inside))
    assert len(tools_of(home, config)) == 1
    for outside in ("/", "/etc", str(tmp_path), f"{inside}/../../home", str(link)):
        write(home, working_dir=outside)
        assert "working_dir" in complaint(home, config)


def _open_to_others(path: Path) -> None:
    path.chmod(0o664)


def _foreign(path: Path) -> None:
    os.chown(path, 65534, 65534)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _link_to_foreign_place(path: Path) -> None:
    place = path.parent.parent / "shared"
    place.mkdir()
    place.chmod(0o777)
    path.rename(place / "real.json")
    path.symlink_to(place / "real.json")


def _not_json(path: Path) -> None:
    path.write_text('{"name": "team.x", "name": "team.y"}')


def _not_utf8(path: Path) -> None:
    path.write_bytes('{"name": "team.é"}'.encode("latin-1"))


def _huge(path: Path) -> None:
    path.write_text(" " * 300_000)


def _list(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.spec("CMD-02")
@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (_open_to_others, "chmod go-w"),
        pytest.param(
            _foreign, "chown it", marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
        ),
        (_fifo, "is a FIFO, not a regular file"),
        (_folder, "is a directory, not a regular file"),
        (_link_to_foreign_place, "can be written by others"),
        (_not_json, "duplicate key 'name'"),
        (_not_utf8, "is not UTF-8"),
        (_huge, "has more than 262144 bytes"),
        (_list, "$: is not an object"),
    ],
)
def test_a_file_that_is_no_sound_definition_is_refused_by_name(
    home: Path, spoil: Callable[[Path], None], expected: str
) -> None:
    path = write(home)

    spoil(path)

    said = complaint(home)
    assert str(path) in said
    assert expected in said


def test_too_many_files_and_a_folder_that_others_can_write_are_refused_whole(home: Path) -> None:
    for number in range(501):
        write(home, f"{number:03}", name=f"team.n{number}")

    assert complaint(home) == f"{home}/tools: holds 501 files; keep at most 500"

    write(home)
    (home / "tools").chmod(0o777)

    assert "chmod go-w" in complaint(home)


def test_a_link_to_a_file_of_the_user_is_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles").chmod(0o755)
    write(home).rename(tmp_path / "dotfiles" / "echo.json")
    (home / "tools" / "echo.json").symlink_to(tmp_path / "dotfiles" / "echo.json")

    assert [tool.name for tool in tools_of(home)] == ["team.echo"]


DOCS = Path(__file__).parents[3] / "docs"


def document(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def example(name: str, language: str) -> str:
    _, _, text = document(name).rpartition("\n## Skills\n")
    found = re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def rows(text: str, heading: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text.partition(heading)[2].partition("\n## ")[0], re.MULTILINE)


def test_every_field_of_a_file_and_of_a_result_is_documented() -> None:
    text = document("reference/declarative.md")

    assert rows(text, "## Fields") == list(ToolFile.model_fields)
    fields = RESULT_SCHEMA["properties"]
    assert set(rows(text, "## Input and output of the program")) == set(fields)
    assert all(f'"{name}"' in text for name in set(fields["error"]["properties"]) - {"retryable"})


def test_every_type_of_error_that_a_tool_may_have_is_documented() -> None:
    listed = document("reference/declarative.md").partition("Allowed error types:")[2].partition(".")[0]

    assert set(re.findall(r"`(\w+)`", listed)) == {str(each) for each in CLAIMABLE}


@pytest.mark.spec("SKL-01")
async def test_the_example_of_a_skill_can_be_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "skills" / "release"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(example("agents.md", "markdown"))
    bench = make_bench(SkillTools(tmp_path / "home", Config()).tools(), project=tmp_path)

    result = await bench.call("internal.load_skill", name="release")

    assert result.error is None
    assert isinstance(result.data, dict)
    assert result.data["allowed_tools"] == ["code.read_file", "code.run_command"]
