"""What an agent of others does without asking, outside and inside of the sandbox (ACP-01, CMD-07)."""

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome, Step
from soong.shared.permissions.request import Choice
from tests.extra import bubblewrap
from tests.integration.acp_site import EDIT, RUN, AcpSite, acp_site, step
from tests.unit.sandbox.test_sandbox_runner import nowhere
from tests.waiting import until

__all__ = ["nowhere"]

AGENT_FOLDER = Path(__file__).parents[1] / "acp"
pytestmark = [pytest.mark.asyncio, pytest.mark.spec("ACP-01.d")]


@pytest.fixture
def port() -> Iterator[int]:
    """Listen on the loopback interface, as other services of the machine do."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@asynccontextmanager
async def sandboxed(
    folder: Path, mode: str, *flags: str, more: str = "network = false\n", **settings: Any
) -> AsyncIterator[AcpSite]:
    config = f"[commands]\nsandbox = {mode!r}\nsandbox_read = {[str(AGENT_FOLDER)]!r}\n"
    async with acp_site(folder, *flags, config=config, more=more, **settings) as site:
        yield site


def tried(ended: Step) -> dict[str, str]:
    assert ended.status is StepStatus.COMPLETED, ended.error
    said: Sequence[Any] = ended.output["said"]  # type: ignore[index, call-overload, assignment]  # the agent's script
    return dict(next(one["tried"] for one in said if "tried" in one))


@pytest.mark.parametrize("mode", ["off", "required"])
async def test_what_it_does_without_asking_is_bounded_by_the_sandbox(tmp_path: Path, mode: str, port: int) -> None:
    bubblewrap()
    outside, key = tmp_path / "outside.txt", tmp_path / "key.pem"
    outside.write_text("of another project")
    key.write_text("a key of the user")
    async with sandboxed(tmp_path, mode) as acp:
        project = acp.project / "own.txt"
        database = tmp_path / "home" / "config.toml"
        reads, writes = [str(key), str(database)], [str(outside), str(project)]

        seen = tried(await acp.ended(("try", reads, writes, port), ("report",)))

    assert seen.pop(str(project)) == "done", "a run that may write files has them writable"
    assert project.exists()
    if mode == "off":
        assert set(seen.values()) == {"done"}
    else:
        # What it writes beside its roots is in memory, and gone with it.
        del seen[str(outside)]
        assert outside.read_text() == "of another project"
        assert seen == {str(key): "ENOENT", str(database): "ENOENT", "connect": "ECONNREFUSED"}


async def test_an_agent_does_not_change_what_its_user_starts_with_it_next(tmp_path: Path, port: int) -> None:
    bubblewrap()
    async with sandboxed(tmp_path, "required", more='settings = ["settings.json", "hooks", "rules"]\n') as acp:
        own = {name: acp.state / name for name in ("settings.json", "hooks/evil", "rules/evil", "sessions")}
        (acp.state / "rules").mkdir()
        (acp.state / "rules" / "evil").write_text("its user's")

        seen = tried(await acp.ended(("try", [], [str(path) for path in own.values()], port), ("report",)))

    del seen["connect"]
    assert seen == {str(path): "done" if name == "sessions" else "EROFS" for name, path in own.items()}
    assert own["settings.json"].read_text() == "{}\n"
    assert own["rules/evil"].read_text() == "its user's"


async def test_a_run_that_only_reads_has_a_project_that_its_agent_cannot_change(tmp_path: Path, port: int) -> None:
    bubblewrap()
    async with sandboxed(tmp_path, "required", more="") as acp:
        (acp.project / "a.txt").write_text("x")
        file, state = acp.project / "a.txt", acp.state / "kept"

        seen = tried(
            await acp.ended(
                ("try", [str(file)], [str(acp.project / "b.txt"), str(state)], port),
                ("report",),
                allowed_tools=["code.read_file"],
            )
        )

    assert seen == {str(file): "done", str(acp.project / "b.txt"): "EROFS", str(state): "done", "connect": "done"}


async def test_its_question_shows_the_sandbox_and_it_parks_and_goes_on_in_another(tmp_path: Path) -> None:
    bubblewrap()
    async with sandboxed(tmp_path, "required", "resume") as acp:
        path = acp.project / "out.txt"
        await acp.site.submit(step(("edit", str(path), None, "x"), ("say", "done")))
        await acp.site.start_worker()
        program = await acp.question(RUN)
        assert "bubblewrap: writes" in program.preview
        assert "network no" in program.preview
        await acp.site.answer(program)
        asked = await acp.question(EDIT)
        await acp.site.until_stands(asks=StepStatus.BLOCKED)
        await until(lambda: not acp.processes())

        await acp.site.answer(asked)
        ended = await acp.until_ended({})

        assert (ended.status, ended.outcome, ended.output) == (StepStatus.COMPLETED, Outcome.CLEAN, "done")
        assert path.read_text() == "x"


@pytest.mark.usefixtures("nowhere")
async def test_without_a_sandbox_that_is_required_nobody_is_asked_and_nothing_starts(tmp_path: Path) -> None:
    async with sandboxed(tmp_path, "required") as acp:
        ended = await acp.ended(("say", "x"), answers={RUN: Choice.ALLOW_ONCE})

        assert ended.error is not None
        assert (ended.error.type, ended.error.retryable) == ("sandbox_denied", False)
        assert "commands.sandbox is 'required'" in ended.error.message
        assert "permission_requested" not in await acp.site.story()
