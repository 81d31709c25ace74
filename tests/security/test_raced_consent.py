"""What was shown is what is written: a target that is exchanged between question and write is a conflict, untouched."""

import ctypes
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.tools.ports import GateCall, Verdict
from soong.shared.tools.result import ErrorType
from tests.security.scene import CANARY, SecurityHarness, make_scene
from tests.security.test_file_tools import exchanging

SHOWN = "as it was shown\n"
YES = Verdict(is_allowed=True, author="person", reason="looks right", decision_id="dec_1")
NO = Verdict(is_allowed=False, author="person", reason="not there", error=ErrorType.PERMISSION_DENIED)
_LIBC = ctypes.CDLL(None, use_errno=True)
_HERE, _EXCHANGE = -100, 2


def exchange(first: Path, second: Path) -> None:
    """Let two names change places at once (renameat2, RENAME_EXCHANGE)."""
    if _LIBC.renameat2(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), f"{first} and {second} cannot be exchanged")


@dataclass(slots=True)
class Figures:
    """What came of so many tries. An escape is a write that a person had not been shown."""

    tries: int = 0
    escapes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    swaps: int = 0

    def __str__(self) -> str:
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items()))
        return f"{self.tries} tries, {self.swaps} exchanges, {self.escapes} escapes ({told})"


@dataclass(slots=True)
class Stage:
    """The project's file, a folder of keys outside, and what takes the file's place."""

    scene: SecurityHarness
    file: Path
    key: Path
    betray: Callable[["Stage"], object] = lambda _stage: None

    def set(self) -> None:
        """Put everything back as it is shown."""
        folder = self.file.parent
        if folder.is_symlink():
            exchange(folder, self.scene.root / "swap")
        self.file.unlink(missing_ok=True)
        self.file.write_text(SHOWN)

    async def decide(self, call: GateCall) -> Verdict:
        """Be the person who looks, and says yes to what lies in the project; then the target is exchanged."""
        if call.target.is_sensitive or not call.target.is_inside_roots or CANARY in call.target.preview:
            return NO
        self.betray(self)
        return YES


def folder_for_link(stage: Stage) -> None:
    exchange(stage.file.parent, stage.scene.root / "swap")


def file_for_link(stage: Stage) -> None:
    stage.file.unlink()
    stage.file.symlink_to(stage.key)


def file_for_hard_link(stage: Stage) -> None:
    stage.file.unlink()
    os.link(stage.key, stage.file)


def other_words(stage: Stage) -> None:
    stage.file.write_text(SHOWN.upper())


def same_words_in_another_file(stage: Stage) -> None:
    stage.file.rename(stage.scene.root / "moved")
    stage.file.write_text(SHOWN)


def gone(stage: Stage) -> None:
    stage.file.unlink()


BETRAYALS: dict[str, Callable[[Stage], object]] = {
    "the folder is a link": folder_for_link,
    "the file is a link": file_for_link,
    "the file is a hard link": file_for_hard_link,
    "other words": other_words,
    "another file": same_words_in_another_file,
    "gone": gone,
}
CALLS: dict[str, tuple[str, dict[str, Json]]] = {
    "write": ("write_file", {"path": "d/x", "content": "harmless\n", "overwrite": True}),
    "edit": ("edit_file", {"path": "d/x", "edits": [{"old": "shown", "new": "written"}]}),
}


def make_stage(folder: Path) -> Stage:
    scene = make_scene(folder)
    scene.file("d/x", SHOWN)
    key = scene.secret(".ssh/x")
    stage = Stage(scene, scene.root / "d" / "x", key)
    scene.bench.gate.decide = stage.decide  # type: ignore[method-assign]  # the person of this stage
    return stage


async def betrayed(stage: Stage, betrayal: str, call: str, tries: int) -> Figures:
    """Exchange the target in every single question: each try has to be a conflict that writes nothing."""
    swap = stage.scene.root / "swap"
    if not swap.is_symlink():
        swap.symlink_to(stage.key.parent)
    stage.betray = BETRAYALS[betrayal]
    tool, arguments = CALLS[call]
    metrics = Figures()
    for _ in range(tries):
        stage.set()
        result = await stage.scene.call(tool, **arguments)
        metrics.tries += 1
        metrics.swaps += 1
        metrics.outcomes["ok" if result.error is None else str(result.error.type)] += 1
        metrics.escapes += result.ok or _was_written(stage)
    stage.set()
    return metrics


async def raced(stage: Stage, call: str, tries: int) -> Figures:
    """Write while another process exchanges the folder and the link as fast as it can, until one call has met it."""
    tool, arguments = CALLS[call]
    metrics = Figures()
    link = stage.scene.root / "swap"
    link.symlink_to(stage.key.parent)
    with exchanging(link, stage.file.parent) as swaps:
        while metrics.tries < tries or (not metrics.outcomes["path_conflict"] and metrics.tries < 20 * tries):
            result = await stage.scene.call(tool, **arguments)
            metrics.tries += 1
            metrics.outcomes["ok" if result.error is None else str(result.error.type)] += 1
            metrics.escapes += stage.key.read_text() != f"{CANARY}\n"
    metrics.swaps = swaps.count
    return metrics


def _was_written(stage: Stage) -> bool:
    """Say whether any file holds what the call would have written."""
    places = (stage.key, stage.file, stage.scene.root / "moved")
    words = [place.read_text() for place in places if place.is_file()]
    return stage.key.read_text() != f"{CANARY}\n" or any("harmless" in text or "written" in text for text in words)


async def play(folder: Path, tries: int) -> Figures:
    """Share so many tries out among all betrayals and the race, for both ways of writing."""
    total = Figures()
    courses = [(betrayal, call) for betrayal in BETRAYALS for call in CALLS]
    share = max(1, tries // (2 * len(courses)))
    for place, (betrayal, call) in enumerate(courses):
        _add(total, await betrayed(make_stage(_fresh(folder, f"b{place}")), betrayal, call, share))
    rest = tries - total.tries
    for place, call in enumerate(CALLS):
        count = rest // len(CALLS) + (rest % len(CALLS) if place == 0 else 0)
        _add(total, await raced(make_stage(_fresh(folder, f"r{place}")), call, count))
    return total


def _fresh(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def _add(total: Figures, metrics: Figures) -> None:
    total.tries += metrics.tries
    total.escapes += metrics.escapes
    total.swaps += metrics.swaps
    total.outcomes += metrics.outcomes


OTHERWISE = {("the file is a hard link", "edit"): "permission_denied", ("gone", "edit"): "file_not_found"}
"""Where editing has a name of its own for what it found instead."""


@pytest.mark.spec("FS-07", "PER-12", "PER-14")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("betrayal", BETRAYALS)
async def test_a_target_exchanged_after_the_yes_is_a_conflict_and_nothing_is_written(
    betrayal: str, call: str, tmp_path: Path
) -> None:
    metrics = await betrayed(make_stage(tmp_path), betrayal, call, 25)

    assert metrics.escapes == 0
    assert dict(metrics.outcomes) == {OTHERWISE.get((betrayal, call), "path_conflict"): 25}


@pytest.mark.spec("FS-07.e")
@pytest.mark.parametrize("call", CALLS)
async def test_a_folder_that_is_exchanged_all_the_time_lets_nothing_through(call: str, tmp_path: Path) -> None:
    metrics = await raced(make_stage(tmp_path), call, 500)

    assert metrics.escapes == 0
    assert metrics.swaps > 500
    assert metrics.outcomes["path_conflict"] > 0


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.spec("FS-07", "PER-12")
async def test_a_hundred_thousand_tries_let_nothing_through(tmp_path: Path) -> None:
    metrics = await play(tmp_path, 100_000)

    assert (metrics.tries, metrics.escapes) == (100_000, 0)
