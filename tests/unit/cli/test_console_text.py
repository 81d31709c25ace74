"""Text of the console: columns, times, numbers and remedies."""

import re
import unicodedata
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.orchestrator.operations.outcome import read_result
from soong.orchestrator.terminal.console import cut
from soong.orchestrator.terminal.display import LineDisplay
from soong.orchestrator.terminal.summary import text_of
from soong.shared.engine.tasks.step import StepError
from tests.contract.scene import failed, open_scene
from tests.model.memory import MemoryStore
from tests.unit.cli.calling import soong
from tests.unit.cli.test_displays import view_of

CHARACTERS = "ab  漢字é\N{COMBINING ACUTE ACCENT}"


def width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else not unicodedata.combining(one) for one in text)


@given(st.text(CHARACTERS, max_size=40), st.integers(2, 12))
def test_a_cut_line_fits_and_says_that_it_was_longer(line: str, columns: int) -> None:
    shown = cut(line, columns)

    assert (shown == line) == (width(line) <= columns)
    assert width(shown) <= columns or columns == 2  # a wide character and the mark


REMEDY = "npm install -g @example/an-agent"
LONG = f"it cannot be started here: {'x y ' * 100}; {REMEDY}"


async def test_a_failed_step_shows_its_message_to_the_end(tmp_path: Path) -> None:
    scene = await open_scene(MemoryStore())
    claim = await scene.start("long", "first")
    await scene.advance([replace(failed(claim), error=StepError("provider_failed", LONG))])
    result = await read_result(scene.store, claim.identity.task_id, tmp_path)
    lines: list[str] = []

    LineDisplay(lines.append).show(await view_of(scene.store, claim.identity.task_id))

    assert REMEDY in text_of(result.model_dump())
    assert REMEDY in "\n".join(lines)


def test_an_agent_without_its_program_is_refused_before_a_task_is_made(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("title: t\nsteps: [{id: a, instructions: x, agent: 'acp:codex'}]\n")

    done = soong("run", str(plan), home=tmp_path)
    listed = soong("tasks", "list", "--json", home=tmp_path)

    assert done.returncode == 2, done.stderr
    assert "npm install -g @zed-industries/codex-acp" in done.stderr
    assert "nothing has run" in listed.stderr


def test_lists_show_times_with_their_zone(tmp_path: Path) -> None:
    soong("tokens", "create", "--principal", "a", "--right", "run", "--expires", "1d", home=tmp_path)

    listed = soong("tokens", "list", home=tmp_path).stdout

    assert len(re.findall(r"\d\d:\d\d:\d\dZ", listed)) == 2, listed
