"""Another process exchanges what a path's parts are, as fast as it can, while each file tool is called at that path."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json
from tests.security.scene import CANARY, SecurityHarness
from tests.security.test_hostile_races import exchanging, race_of

CALLS: dict[str, tuple[str, dict[str, Json]]] = {
    "read": ("read_file", {"path": "a/b/x"}),
    "list": ("list_dir", {"path": "a/b"}),
    "list-all": ("list_dir", {"recursive": True}),
    "search": ("search", {"query": "canary|harmless"}),
    "search-folder": ("search", {"query": "canary|harmless", "path": "a/b"}),
    "search-file": ("search", {"query": "canary|harmless", "path": "a/b/x"}),
    "create": ("write_file", {"path": "a/b/new{n}", "content": "x"}),
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
    for name in ("keys/x", f"keys/{CANARY}-name", "b/x"):
        scene.secret(name)
    place, make = SWAPS[swap]
    make(scene)
    scene.remember()
    return scene.root / place, scene.root / "swap"


async def _hold(scene: SecurityHarness, swap: str, call: str, seconds: float) -> None:
    places = _arranged(scene, swap)

    with exchanging(*places) as swaps:
        results = await race_of(scene, CALLS[call], seconds)

    assert swaps.count > 100
    assert results
    scene.check_unharmed(results[-1])  # what lies outside is compared once, the words of all calls here
    assert CANARY not in repr(results)
    assert [path.name for path in (scene.root / ".git/hooks").iterdir()] == ["x"]
    assert (scene.root / ".git/hooks/x").read_text() == CONTROL
    assert (scene.root / ".env").read_text() == f"{CANARY}\n"


@pytest.mark.spec("FS-06", "FS-07.e", "FS-09.a")
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("call", ["read", "search-file", "overwrite", "edit"])
async def test_a_swapped_path_is_never_read_or_written_through(scene: SecurityHarness, swap: str, call: str) -> None:
    await _hold(scene, swap, call, 0.5)


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.spec("FS-06", "FS-07.e", "FS-09.a")
@pytest.mark.parametrize("swap", SWAPS)
@pytest.mark.parametrize("call", CALLS)
async def test_twenty_seconds_of_swapping_at_each_tool_let_nothing_escape(
    scene: SecurityHarness, swap: str, call: str
) -> None:
    await _hold(scene, swap, call, 20 / len(SWAPS))
