"""Hostile paths, links and patterns against the file tools, beyond the rows of ``test_bad_inputs``."""

import asyncio
import os
from pathlib import Path

import pytest

from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox import descriptors
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.code.toolset import CodeTools
from tests.unit.tools.parts import make_identity, make_run_dirs
from tests.unit.toolsets.parts import Project

SECRET = "canary-9f2c"
DENIED = Verdict(is_allowed=False, author="system", reason="no callback", error=ErrorType.PERMISSION_NO_CALLBACK)


def deny_what_asks(project: Project) -> None:
    """Give the gate the default policy: a read that asks and every write is refused, other reads pass."""
    allowed, gate = project.bench.gate.verdict, project.bench.gate

    async def decide(call: object) -> Verdict:
        gate.asked.append(call)  # type: ignore[arg-type]
        target, permission = call.target, call.permission  # type: ignore[attr-defined]
        is_asked = target.is_sensitive or not target.is_inside_roots or permission == "write"
        return DENIED if is_asked else allowed

    gate.decide = decide  # type: ignore[method-assign]


@pytest.mark.spec("FS-06.b", "FS-06.c")
@pytest.mark.parametrize(
    "name", [".env", ".ENV", ".env.production", "server.pem", "a/.ssh/id_rsa", ".config/gcloud/creds"]
)
@pytest.mark.parametrize("way", ["direct", "link", "dots"])
async def test_a_secret_is_not_read_without_consent_by_any_name(project: Project, name: str, way: str) -> None:
    deny_what_asks(project)
    secret = project.file(name, SECRET)
    (project.root / "innocent.txt").symlink_to(secret)
    path = {"direct": name, "link": "innocent.txt", "dots": f"x/../{name}"}[way]

    result = await project.call("read_file", path=path)

    assert result.error is not None
    assert SECRET not in repr(result)


@pytest.mark.spec("FS-06")
async def test_no_search_or_list_tells_what_a_secret_holds(project: Project) -> None:
    deny_what_asks(project)
    project.file(".env", f"A={SECRET}\n")
    (project.root / "link").symlink_to(".env")

    results = [
        await project.call("search", query="canary"),
        await project.call("search", query="canary", glob=".env"),
        await project.call("search", query="canary", glob="**/.e*"),
        await project.call("search", query="canary", path=".env"),
        await project.call("search", query="canary", path="link"),
        await project.call("list_dir", recursive=True),
    ]

    assert not any(SECRET in repr(result) for result in results)


async def test_a_ripgrep_configuration_of_the_environment_is_not_used(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = project.outside / "ran"
    script = project.outside / "pre.sh"
    script.write_text(f"#!/bin/sh\ntouch {marker}\ncat\n")
    script.chmod(0o755)
    (project.outside / "rc").write_text(f"--pre={script}\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(project.outside / "rc"))
    project.file("x", "hit\n")

    assert (await project.data("search", query="hit"))["count"] == 1
    assert not marker.exists()


async def test_a_search_that_starts_at_a_special_file_does_not_block(project: Project) -> None:
    os.mkfifo(project.root / "fifo")

    async with asyncio.timeout(10):
        assert await project.error("search", query="x", path="fifo") is ErrorType.INVALID_INPUT
        assert (await project.data("search", query="x"))["count"] == 0
        assert await project.error("read_file", path="fifo") is ErrorType.NOT_REGULAR_FILE
        assert await project.error("read_file", path="/dev/zero") is ErrorType.NOT_REGULAR_FILE


@pytest.mark.spec("FS-09.a")
@pytest.mark.parametrize(
    "name",
    [
        ".git/hooks/pre-commit",
        ".git/config",
        ".GIT/config",
        "sub/.git/hooks/x",
        ".mcp.json",
        ".soong/settings.toml",
        ".git",
        *(".claude/agents/reviewer.md", ".claude/settings.json", ".codex/config.toml", ".gemini/settings.json"),
        *(".cursor/mcp.json", ".vscode/tasks.json", ".hg/hgrc", ".jj/repo/config.toml", ".husky/pre-commit"),
        *(".devcontainer/devcontainer.json", ".devcontainer.json", "sub/mcp.json"),
    ],
)
async def test_controls_are_written_by_nobody_and_nobody_is_asked(project: Project, name: str) -> None:
    assert await project.error("write_file", path=name, content="x", overwrite=True) is ErrorType.PATH_PROTECTED
    assert project.bench.gate.asked == []
    assert list(project.root.iterdir()) == []


@pytest.mark.spec("FS-09.a")
@pytest.mark.parametrize("name", ["tools/x.json", "settings.toml", "hooks/pre.sh", "mcp.json", "soong.db"])
async def test_our_own_home_is_protected_directly_and_through_a_link(project: Project, name: str) -> None:
    (project.root / "home").symlink_to(project.home)

    assert await project.error("write_file", path=str(project.home / name), content="x") is ErrorType.PATH_PROTECTED
    assert await project.error("write_file", path=f"home/{name}", content="x") is ErrorType.PATH_PROTECTED
    assert list(project.home.iterdir()) == []


@pytest.mark.spec("FS-09")
async def test_a_home_that_is_named_through_a_link_is_protected_where_it_really_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to("real")
    policy = PathPolicy(tmp_path / "home")

    assert policy.is_protected(tmp_path / "real/settings.toml")
    assert policy.is_protected(tmp_path / "home/tools/x.json")
    assert not policy.is_protected(tmp_path / "real/runs/r/deliverables/x")


@pytest.mark.spec("FS-07.d")
async def test_links_out_of_the_roots_are_asked_as_what_they_lead_to_and_change_nothing_when_denied(
    project: Project,
) -> None:
    deny_what_asks(project)
    victim = project.outside / "victim"
    victim.write_text("theirs")
    (project.root / "file").symlink_to(victim)
    (project.root / "dangling").symlink_to(project.outside / "new")
    (project.root / "dir").symlink_to(project.outside)

    for name in ("file", "dangling", "dir/sub/x", "../project-evil/x", "../outside/x"):
        assert (
            await project.error("write_file", path=name, content="x", overwrite=True)
            is ErrorType.PERMISSION_NO_CALLBACK
        )
        assert project.target.is_inside_roots is False

    assert [entry.name for entry in project.outside.iterdir()] == ["victim"]
    assert victim.read_text() == "theirs"


@pytest.mark.spec("FS-07", "FS-06", "FS-03")
@pytest.mark.parametrize("name", ["write", "edit", "edit-linked", "read", "search", "list"])
async def test_a_handler_called_round_the_pipeline_has_no_consent(project: Project, name: str) -> None:
    project.file(".env/x", SECRET)
    (project.outside / "theirs").write_text("one\n")
    os.link(project.outside / "theirs", project.root / "linked")
    edits: list[Json] = [{"old": "one", "new": "1"}]
    tools = {tool.name: tool for tool in CodeTools().tools()}
    calls: dict[str, tuple[str, JsonObject]] = {
        "write": ("code.write_file", {"path": str(project.outside / "x"), "content": ""}),
        "edit": ("code.edit_file", {"path": str(project.outside / "theirs"), "edits": edits}),
        "edit-linked": ("code.edit_file", {"path": "linked", "edits": edits}),
        "read": ("code.read_file", {"path": ".env/x"}),
        "search": ("code.search", {"query": "x", "path": str(project.outside)}),
        "list": ("code.list_dir", {"path": ".env"}),
    }
    tool, arguments = calls[name]
    context = ToolContext(make_identity(role=Role.SUB), make_run_dirs(project.root), "c", "e", 1, None)  # type: ignore[arg-type]

    with pytest.raises((ToolError, descriptors.PathRefusedError)) as caught:
        await tools[tool].handler(context, arguments)

    assert "not permitted" in str(caught.value)
    assert (project.outside / "theirs").read_text() == "one\n"
