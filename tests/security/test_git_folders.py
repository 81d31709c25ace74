"""A folder that becomes a repository by what is written into it, in whatever order (FS-09)."""

import asyncio
import itertools
import subprocess
from pathlib import Path

import pytest

from soong.shared.tools.result import ErrorType
from tests.security.scene import make_scene

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
