"""Row 7: another process exchanges a directory and a link to secrets, as fast as it can, while tools are called."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.sandbox import descriptors
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
    "write": ("write_file", {"path": "d/x{n}", "content": "x"}),
    "write-below": ("write_file", {"path": "d/new{n}/x", "content": "x"}),
    "overwrite": ("write_file", {"path": "d/x", "content": "harmless\n", "overwrite": True}),
    "edit": ("edit_file", {"path": "d/x", "edits": [{"old": "harmless", "new": "harmless."}]}),
    "read": ("read_file", {"path": "d/x"}),
    "list": ("list_dir", {"path": "d"}),
    "list-all": ("list_dir", {"recursive": True}),
    "search": ("search", {"query": "canary|harmless"}),
    "search-there": ("search", {"query": "canary|harmless", "path": "d"}),
}


@dataclass
class Swaps:
    count: int = 0


@contextmanager
def swapping(scene: SecurityHarness) -> Iterator[Swaps]:
    """Swap ``project/d`` and a link to a folder of keys."""
    (scene.root / "swap").symlink_to(keys(scene))
    with exchanging(scene.root / "swap", scene.root / "d") as swaps:
        yield swaps


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


def arrange(scene: SecurityHarness) -> dict[str, bytes]:
    scene.file("d/x", "harmless\n")
    scene.secret(".ssh/x")
    scene.secret(f".ssh/{CANARY}-name")
    return contents(scene)


def keys(scene: SecurityHarness) -> Path:
    """Where the link leads: sensitive, so that reading there would have to be asked too."""
    return scene.outside / ".ssh"


def contents(scene: SecurityHarness) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in keys(scene).iterdir()}


async def race(scene: SecurityHarness, call: str, seconds: float) -> list[ToolResult]:
    return await race_of(scene, CALLS[call], seconds)


async def race_of(scene: SecurityHarness, call: tuple[str, dict[str, Json]], seconds: float) -> list[ToolResult]:
    """Call again and again until the time is over."""
    tool, arguments = call
    results: list[ToolResult] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number = str(len(results))
        filled = {k: v.replace("{n}", number) if isinstance(v, str) else v for k, v in arguments.items()}
        results.append(await scene.call(tool, **filled))
    return results


async def hold(scene: SecurityHarness, call: str, seconds: float) -> None:
    theirs = arrange(scene)
    if CALLS[call][0] == "edit_file" and "code.edit_file" not in scene.bench.pipeline.tools:
        pytest.skip("there is no such tool yet")
    with swapping(scene) as swaps:
        results = await race(scene, call, seconds)

    assert contents(scene) == theirs
    assert CANARY not in repr([results, scene.bench.log.ends, scene.bench.log.notes])
    assert swaps.count > 100
    assert any(result.ok for result in results)
    # A tree's own walk steps over what it meets as a link; a path that leads through one is refused or asked.
    assert call in ("list-all", "search") or any(result.is_error for result in results)


@pytest.mark.spec("FS-06", "FS-07.e")
@pytest.mark.parametrize("call", CALLS)
async def test_a_swapped_directory_is_never_read_or_written_through(scene: SecurityHarness, call: str) -> None:
    await hold(scene, call, 2)


@pytest.mark.spec("FS-07.e")
@pytest.mark.parametrize("call", ["write", "write-below", "read"])
async def test_where_the_kernel_has_no_openat2_the_walk_holds_too(
    scene: SecurityHarness, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "has_openat2", lambda: False)

    await hold(scene, call, 2)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.spec("FS-07")
@pytest.mark.parametrize("call", ["write", "write-below", "overwrite", "read", "search"])
async def test_row_07_ten_seconds_of_swapping_let_nothing_escape(scene: SecurityHarness, call: str) -> None:
    await hold(scene, call, 10)
