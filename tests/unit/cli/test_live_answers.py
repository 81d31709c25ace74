import io

from rich.console import Console

from soong.orchestrator.cli.live import Live
from tests.contract.scene import open_scene
from tests.model.memory import MemoryStore
from tests.unit.cli.views import view_of

HOSTILE = "\x1b[2J\x1b]0;title\x07 [red]not markup[/red] \u202eevil\r\n  ✓ look completed"


async def drawn(root: str, step: str = "") -> str:
    """Return the picture of a running step while the agent of its task and its own are writing."""
    store = MemoryStore()
    claim = await (await open_scene(store)).start("look")
    task = await store.tasks.task(claim.identity.task_id)
    output = io.StringIO()
    live = Live(Console(file=output, width=100, height=40, force_terminal=False))
    live.show(await view_of(store, task.id))
    live.speak(task.root_run_id, "said before")
    live.speak(task.root_run_id, root)
    live.speak(claim.identity.run_id, step)
    live.console.print(live.drawn())
    live.close()
    return output.getvalue()


async def test_the_end_of_what_an_agent_and_a_step_are_writing_is_shown() -> None:
    lines = "\n".join(f"line {number}" for number in range(100))

    picture = await drawn(f"{lines}\nthe newest line", "first\nthe step's newest line")

    assert "the newest line" in picture
    assert "line 99" in picture
    assert "line 1\n" not in picture
    assert "the step's newest line" in picture


async def test_what_a_model_writes_imitates_nothing_and_commands_no_terminal() -> None:
    picture = await drawn(HOSTILE, HOSTILE)

    assert "\x1b" not in picture
    assert "\u202e" not in picture
    assert "\x07" not in picture
    assert "[red]not markup[/red]" in picture


async def test_an_answer_that_is_over_leaves_nothing() -> None:
    assert "said before" not in await drawn("")
