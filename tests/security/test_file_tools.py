"""Hostile paths, links and patterns against the file tools, through the whole pipeline."""

import asyncio
import ctypes
import os
import threading
from pathlib import Path

import pytest

from shared.identity import Role
from shared.sandbox import descriptors
from shared.sandbox.paths import PathPolicy
from shared.tools.definition import ToolContext
from shared.tools.ports import Verdict
from shared.tools.result import ErrorType, ToolError
from shared.toolsets.code import code_tools
from tests.unit.tools.parts import make_identity, make_workplace
from tests.unit.toolsets.parts import Project, text_of

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


@pytest.mark.spec("FS-06")
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


@pytest.mark.parametrize(
    "query", ["--pre=/bin/echo", "-f/etc/passwd", "-e", "--", "--files", "-r", "--hostname-bin=/bin/false"]
)
async def test_a_query_is_never_an_option(project: Project, query: str, tmp_path: Path) -> None:
    project.file("x", f"line with {query} in it\n")

    data = await project.data("search", query=query)

    assert [match["path"] for match in data["matches"]] == ["x"]


@pytest.mark.parametrize("glob", ["../**", "/**", "/etc/*", "-g", "--pre=/bin/echo", "../outside/*"])
async def test_a_glob_leads_nowhere_else(project: Project, glob: str) -> None:
    (project.outside / "x").write_text("hit\n")
    project.file("x", "hit\n")

    result = await project.call("search", query="hit", glob=glob)

    assert str(project.outside) not in text_of(result)
    assert "outside" not in text_of(result)


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


@pytest.mark.parametrize("query", ["(a+)+$", "(x*)*y", "a{1,1000}{1,2}"])
async def test_a_pattern_cannot_eat_time(project: Project, query: str) -> None:
    project.file("x", "a" * 2_000_000 + "!\n")

    async with asyncio.timeout(20):
        await project.call("search", query=query)


async def test_a_search_that_starts_at_a_special_file_does_not_block(project: Project) -> None:
    os.mkfifo(project.root / "fifo")

    async with asyncio.timeout(10):
        assert await project.error("search", query="x", path="fifo") is ErrorType.INVALID_INPUT
        assert (await project.data("search", query="x"))["count"] == 0
        assert await project.error("read_file", path="fifo") is ErrorType.NOT_REGULAR_FILE
        assert await project.error("read_file", path="/dev/zero") is ErrorType.NOT_REGULAR_FILE


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/1/root/etc/shadow", "/proc/self/fd/0", "/dev/fd/0", "/proc/self/mem"]
)
@pytest.mark.parametrize("tool", ["read_file", "search", "list_dir"])
async def test_the_memory_and_environment_of_processes_are_out_of_reach(project: Project, tool: str, path: str) -> None:
    arguments = {"query": "x", "path": path} if tool == "search" else {"path": path}

    assert await project.error(tool, **arguments) is ErrorType.NOT_REGULAR_FILE


@pytest.mark.spec("FS-09")
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
    ],
)
async def test_controls_are_written_by_nobody_and_nobody_is_asked(project: Project, name: str) -> None:
    assert await project.error("write_file", path=name, content="x", overwrite=True) is ErrorType.PATH_PROTECTED
    assert project.bench.gate.asked == []
    assert list(project.root.iterdir()) == []


@pytest.mark.spec("FS-09")
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


@pytest.mark.spec("FS-07")
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
@pytest.mark.parametrize("name", ["write", "read", "search", "list"])
async def test_a_handler_called_round_the_pipeline_has_no_consent(project: Project, name: str) -> None:
    project.file(".env/x", SECRET)
    tools = {tool.name: tool for tool in code_tools()}
    tool, arguments = {
        "write": ("code.write_file", {"path": str(project.outside / "x"), "content": ""}),
        "read": ("code.read_file", {"path": ".env/x"}),
        "search": ("code.search", {"query": "x", "path": str(project.outside)}),
        "list": ("code.list_dir", {"path": ".env"}),
    }[name]
    context = ToolContext(make_identity(role=Role.SUB), make_workplace(project.root), "c", "e", 1, None)  # type: ignore[arg-type]

    with pytest.raises((ToolError, descriptors.PathRefusedError)) as caught:
        await tools[tool].handler(context, arguments)

    assert "not permitted" in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["", "a\0b", "x" * 300, "y" * 5000, "a/" * 3000 + "x", "\ud800"],
    ids=["empty", "nul", "component", "long", "deep", "surrogate"],
)
@pytest.mark.parametrize("tool", ["read_file", "list_dir", "search", "write_file"])
async def test_an_unusable_path_is_invalid_input_for_every_tool(project: Project, tool: str, path: str) -> None:
    more = {"search": {"query": "x"}, "write_file": {"content": "x"}}.get(tool, {})

    assert await project.error(tool, path=path, **more) is ErrorType.INVALID_INPUT


class Swapper:
    """Another process's view of mischief: exchanges a directory and a link to outside as fast as it can."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self.link, self.real = folder / "swap", folder / "d"
        self.real.mkdir(exist_ok=True)
        self.link.symlink_to(outside)
        self._stop = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Swapper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        first, second = os.fsencode(self.link), os.fsencode(self.real)
        while not self._stop.is_set():
            libc.renameat2(-100, first, -100, second, 2)  # RENAME_EXCHANGE
            self.count += 1
            self._stop.wait(0.0002)


@pytest.mark.spec("FS-07")
@pytest.mark.parametrize("way", ["openat2", "walk"])
async def test_a_directory_swapped_for_a_link_during_the_call_is_never_written_through(
    project: Project, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "has_openat2", lambda: way == "openat2")
    deny_outside = project.bench.gate.decide

    async def decide(call: object) -> Verdict:
        verdict = await deny_outside(call)  # type: ignore[arg-type]
        return verdict if call.target.is_inside_roots else DENIED  # type: ignore[attr-defined]

    project.bench.gate.decide = decide  # type: ignore[method-assign]
    inside = refused = 0
    with Swapper(project.root, project.outside) as swapper:
        for number in range(300):
            result = await project.call("write_file", path=f"d/x{number}", content="x")
            inside, refused = inside + result.ok, refused + (not result.ok)

    assert list(project.outside.iterdir()) == []
    assert swapper.count > 50
    assert inside > 0
    assert refused > 0


@pytest.mark.spec("FS-06", "FS-07")
async def test_a_file_swapped_for_a_secret_during_the_call_is_never_read(project: Project) -> None:
    deny_what_asks(project)
    project.file("d/x", "harmless")
    (project.outside / ".ssh").mkdir()
    (project.outside / ".ssh/x").write_text(SECRET)
    with Swapper(project.root, project.outside / ".ssh") as swapper:
        results = [await project.call("read_file", path="d/x") for _ in range(300)]

    assert not any(SECRET in repr(result) for result in results)
    assert any(result.ok for result in results)
    assert swapper.count > 50
