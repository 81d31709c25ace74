"""Row 7: another process exchanges the parts of a path, as fast as it can, while each file tool is called at it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.tools.result import ToolResult
from tests.security.scene import CANARY, SecurityHarness

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


async def _raced(scene: SecurityHarness, call: tuple[str, dict[str, Json]], seconds: float) -> list[ToolResult]:
    """Call again and again until the time is over."""
    tool, arguments = call
    results: list[ToolResult] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = str(len(results))
        filled = {k: v.replace("{n}", number) if isinstance(v, str) else v for k, v in arguments.items()}
        results.append(await scene.call(tool, **filled))
    return results


async def _hold(scene: SecurityHarness, swap: str, call: str, seconds: float) -> list[ToolResult]:
    places = _arranged(scene, swap)

    with exchanging(*places) as swaps:
        results = await _raced(scene, CALLS[call], seconds)

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
    await _hold(scene, swap, call, 0.5)


@pytest.mark.spec("FS-06", "FS-07.e")
@pytest.mark.parametrize("call", CALLS)
async def test_a_swapped_directory_is_never_read_or_written_through(scene: SecurityHarness, call: str) -> None:
    results = await _hold(scene, "folder-of-keys", call, 1)

    assert any(result.ok for result in results)
    # A tree's own walk steps over what it meets as a link; a path that leads through one is refused or asked.
    assert call in ("list-all", "search") or any(result.is_error for result in results)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.spec("FS-06", "FS-07.e", "FS-09.a")
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("call", CALLS)
async def test_twenty_seconds_of_swapping_at_each_tool_let_nothing_escape(
    scene: SecurityHarness, swap: str, call: str
) -> None:
    await _hold(scene, swap, call, 20 / len(SWAPS))
