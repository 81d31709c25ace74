"""The file tools against hostile paths: links, exchanged folders and git folders."""

import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from soong.shared.core.identity import Role
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.sandbox import descriptors
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.result import ErrorType, ToolError, ToolResult
from soong.shared.toolsets.code.toolset import CodeTools
from tests.security.scene import CANARY, PolicyGate, SecurityHarness, make_scene
from tests.unit.tools.parts import make_identity, make_run_dirs
from tests.unit.toolsets.parts import Project

Enough: TypeAlias = Callable[[Sequence[ToolResult]], bool]


def deny_what_asks(project: Project) -> None:
    """Give the gate the default policy, and nobody to ask."""
    gate = PolicyGate(asked=project.bench.gate.asked)
    project.bench.gate.decide = gate.decide  # type: ignore[method-assign]


@pytest.mark.spec("FS-06.b", "FS-06.c")
@pytest.mark.parametrize(
    "name", [".env", ".ENV", ".env.production", "server.pem", "a/.ssh/id_rsa", ".config/gcloud/creds"]
)
@pytest.mark.parametrize("way", ["direct", "link", "dots"])
async def test_a_secret_is_not_read_without_consent_by_any_name(project: Project, name: str, way: str) -> None:
    deny_what_asks(project)
    secret = project.file(name, CANARY)
    (project.root / "innocent.txt").symlink_to(secret)
    path = {"direct": name, "link": "innocent.txt", "dots": f"x/../{name}"}[way]

    result = await project.call("read_file", path=path)

    assert result.error is not None
    assert CANARY not in repr(result)


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
    project.file(".env/x", CANARY)
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


SWAPPER = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second = os.fsencode(sys.argv[1]), os.fsencode(sys.argv[2])
count = 0
print("ready", flush=True)
while count % 64 or not select.select([sys.stdin], [], [], 0)[0]:
    if libc.renameat2(-100, first, -100, second, 2) != 0:  # RENAME_EXCHANGE
        sys.exit(f"renameat2: {ctypes.get_errno()}")
    count += 1
print(count)
"""

CALLS: dict[str, tuple[str, dict[str, Json]]] = {
    "read": ("read_file", {"path": "a/b/x"}),
    "list": ("list_dir", {"path": "a/b"}),
    "list-all": ("list_dir", {"recursive": True}),
    "search": ("search", {"query": "canary|harmless"}),
    "search-folder": ("search", {"query": "canary|harmless", "path": "a/b"}),
    "search-file": ("search", {"query": "canary|harmless", "path": "a/b/x"}),
    "create": ("write_file", {"path": "a/b/new{n}", "content": "x"}),
    "create-below": ("write_file", {"path": "a/b/new{n}/x", "content": "x"}),
    "overwrite": ("write_file", {"path": "a/b/x", "content": "harmless\n", "overwrite": True}),
    "edit": ("edit_file", {"path": "a/b/x", "edits": [{"old": "harmless", "new": "harmless."}]}),
    "edit-new": ("edit_file", {"path": "a/b/n{n}", "edits": [{"old": "", "new": "x"}], "create_if_missing": True}),
}


def _link(target: str) -> Callable[[SecurityHarness], None]:
    return lambda scene: (scene.root / "swap").symlink_to(scene.root / target)


def _hard_link(scene: SecurityHarness) -> None:
    os.link(scene.outside / "keys/x", scene.root / "swap")


def _folder_of_links(scene: SecurityHarness) -> None:
    (scene.root / "swap").mkdir()
    (scene.root / "swap/x").symlink_to(scene.outside / "keys/x")
    (scene.root / "swap/b").symlink_to(scene.outside / "keys")


SWAPS: dict[str, tuple[str, Callable[[SecurityHarness], None]]] = {
    "file-outside": ("a/b/x", _link("../outside/keys/x")),
    "file-sensitive": ("a/b/x", _link(".env")),
    "file-control": ("a/b/x", _link(".git/hooks/x")),
    "file-hard-link": ("a/b/x", _hard_link),
    "folder-of-keys": ("a/b", _link("../outside/.ssh")),
    "folder-outside": ("a/b", _link("../outside/keys")),
    "folder-control": ("a/b", _link(".git/hooks")),
    "folder-above": ("a", _link("../outside")),
    "folder-of-links": ("a/b", _folder_of_links),
}
"""What is exchanged with ``swap``, and how that is made."""
CONTROL = "a control may be read"


def _arranged(scene: SecurityHarness, swap: str) -> tuple[Path, Path]:
    scene.file("a/b/x", "harmless\n")
    scene.file(".env", f"{CANARY}\n")
    scene.file(".git/hooks/x", CONTROL)
    for name in ("keys/x", f"keys/{CANARY}-name", "b/x", ".ssh/x", f".ssh/{CANARY}-name"):
        scene.secret(name)
    place, make = SWAPS[swap]
    make(scene)
    scene.remember()
    return scene.root / place, scene.root / "swap"


@dataclass
class Swaps:
    count: int = 0


@contextmanager
def exchanging(first: Path, second: Path) -> Iterator[Swaps]:
    """Swap two entries until the block ends; then the number of swaps is known."""
    argv = [sys.executable, "-c", SWAPPER, str(first), str(second)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    swaps = Swaps()
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield swaps
        swaps.count = int(process.communicate(timeout=10)[0])  # the end of its input ends it
    finally:
        process.kill()
        process.communicate()


async def _raced(
    scene: SecurityHarness, call: tuple[str, dict[str, Json]], seconds: float, is_enough: Enough
) -> list[ToolResult]:
    """Call again and again until the time is over, or the results are enough."""
    tool, arguments = call
    results: list[ToolResult] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end and not is_enough(results):
        number = str(len(results))
        filled = {k: v.replace("{n}", number) if isinstance(v, str) else v for k, v in arguments.items()}
        results.append(await scene.call(tool, **filled))
    return results


async def _hold(
    scene: SecurityHarness, swap: str, call: str, seconds: float, is_enough: Enough = lambda results: len(results) >= 50
) -> list[ToolResult]:
    places = _arranged(scene, swap)

    with exchanging(*places) as swaps:
        results = await _raced(scene, CALLS[call], seconds, is_enough)

    assert swaps.count > 100
    assert results
    scene.check_unharmed(results[-1])  # what lies outside is compared once, the words of all calls here
    assert CANARY not in repr(results)
    assert [path.name for path in (scene.root / ".git/hooks").iterdir()] == ["x"]
    assert (scene.root / ".git/hooks/x").read_text() == CONTROL
    assert (scene.root / ".env").read_text() == f"{CANARY}\n"
    return results


@pytest.mark.spec("FS-06", "FS-07.e", "FS-09.a")
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("call", ["read", "search-file", "overwrite", "edit"])
async def test_a_swapped_path_is_never_read_or_written_through(scene: SecurityHarness, swap: str, call: str) -> None:
    await _hold(scene, swap, call, 0.25)


@pytest.mark.spec("FS-06", "FS-07.e")
@pytest.mark.parametrize("call", CALLS)
async def test_a_swapped_directory_is_never_read_or_written_through(scene: SecurityHarness, call: str) -> None:
    # A tree's own walk steps over what it meets as a link; a path that leads through one is refused or asked.
    ends = {False} if call in ("list-all", "search") else {False, True}
    results = await _hold(
        *(scene, "folder-of-keys", call, 1),
        lambda results: len(results) >= 50 and ends <= {result.is_error for result in results},
    )

    assert ends <= {result.is_error for result in results}


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.spec("FS-06", "FS-07.e", "FS-09.a")
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("call", CALLS)
async def test_twenty_seconds_of_swapping_at_each_tool_let_nothing_escape(
    scene: SecurityHarness, swap: str, call: str
) -> None:
    await _hold(scene, swap, call, 20 / len(SWAPS), lambda _: False)


FSMONITOR = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n\tfsmonitor = {program}\n"
HEAD, OBJECT, REF = "HEAD", "objects/info/packs", "refs/heads/main"
CONTROLS = ("config", "hooks/post-checkout", "config.worktree", "gitdir")


def orders() -> list[tuple[str, ...]]:
    """Every order of writing a bare repository with one control, and one whose store is elsewhere."""
    bare = [order for control in CONTROLS for order in itertools.permutations((HEAD, OBJECT, REF, control))]
    linked = [(HEAD, "commondir"), ("commondir", HEAD)]
    return [*bare, *linked]


@pytest.mark.spec("FS-09.a", "FS-09.b")
async def test_no_order_of_writes_makes_a_repository_that_runs_a_program(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)

    for number, order in enumerate(orders()):
        ended = [
            await scene.outcome("write_file", path=f"r{number}/x/{name}", content="ref: refs/x\n") for name in order
        ]

        assert ended[-1] == ErrorType.PATH_PROTECTED.value, order
        assert set(ended[:-1]) == {"ok"}, order


@pytest.mark.spec("FS-09.a", "FS-09.b")
async def test_git_status_in_a_written_folder_runs_nothing(tmp_path: Path) -> None:
    """An editor or a prompt calls git wherever a person goes; core.fsmonitor is a program."""
    scene, marker = make_scene(tmp_path), tmp_path / "ran"
    program = scene.file("monitor.sh", f"#!/bin/sh\ntouch {marker}\n")
    program.chmod(0o755)
    config = FSMONITOR.format(program=program)

    for name, content in (("config", config), (HEAD, "ref: refs/heads/main\n"), (OBJECT, ""), (REF, "")):
        await scene.outcome("write_file", path=f"repo/{name}", content=content)
    status = ["git", "-C", str(scene.root / "repo"), "status"]
    await asyncio.to_thread(subprocess.run, status, capture_output=True, check=False, timeout=60)

    assert not marker.exists()


@pytest.mark.spec("FS-09.a", "FS-09.b")
async def test_an_existing_repository_is_written_as_before_but_for_its_controls(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    for name in (HEAD, "objects/x", "refs/x", "config"):
        scene.file(f"repo.git/{name}")

    ended = {
        name: await scene.outcome("write_file", path=f"repo.git/{name}", content="x", overwrite=True)
        for name in (HEAD, "refs/heads/new", "objects/y", "description", "config", "hooks/x", "commondir")
    }

    refused = {name for name, outcome in ended.items() if outcome == ErrorType.PATH_PROTECTED.value}
    assert refused == {"config", "hooks/x", "commondir"}
    assert {ended[name] for name in ended.keys() - refused} == {"ok"}


@pytest.mark.spec("FS-09.a", "FS-09.b")
async def test_a_folder_that_is_no_repository_may_have_files_of_such_names(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)

    ended = [
        await scene.outcome("write_file", path=f"app/{name}", content="x")
        for name in ("config", "hooks/use.ts", "objects/model.py", "refs/list.md", "heads/HEAD")
    ]

    assert set(ended) == {"ok"}
