"""Hostile agents of others: what they try with what we offer, and without asking, in a sandbox and outside (ACP-01)."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
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

READ = "acp.scripted.read"
YES, NO = Choice.ALLOW_ONCE, Choice.DENY


def said(ended: Step) -> list[Any]:
    assert ended.status is StepStatus.COMPLETED, ended.error
    return list(ended.output["said"])  # type: ignore[index, call-overload, arg-type]  # an object by the agent's script


@pytest.mark.spec("ACP-01.b")
async def test_its_environment_has_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SOONG_DATABASE_URL", "SOONG_REDIS_URL", "ANTHROPIC_API_KEY", "OTHER_TOKEN"):
        monkeypatch.setenv(name, "secret-value-of-the-worker")
    async with acp_site(tmp_path, env=["OTHER_TOKEN"]) as acp:
        ended = await acp.ended(("report",))

        names = set(said(ended)[0]["env"])
        assert "OTHER_TOKEN" in names, "what the configuration names is passed"
        assert names <= {"PATH", "HOME", "TMPDIR", "OTHER_TOKEN", "AGENT_STATE", "PYTHONPATH", "LC_CTYPE"}


@pytest.mark.spec("ACP-01.b")
async def test_its_reads_and_writes_go_nowhere_that_ours_do_not(tmp_path: Path) -> None:
    outside, home = tmp_path / "outside.txt", tmp_path / "home" / "signing.key"
    async with acp_site(tmp_path) as acp:
        home.write_text("the key of the deployment")
        (acp.project / "link").symlink_to(outside)
        hooks = acp.project / ".git" / "hooks" / "pre-commit"
        tries = [
            ("read", str(acp.project / "a.pem")),
            ("read", str(home)),
            ("read", "/proc/self/environ"),
            ("write", str(outside), "x"),
            ("write", f"{acp.project}/../outside.txt", "x"),
            ("write", str(acp.project / "link"), "x"),
            ("write", str(hooks), "x"),
            ("write", str(tmp_path / "home" / "config.toml"), "x"),
            ("edit", str(hooks), None, "x"),
            ("edit", str(tmp_path / "home" / "config.toml"), None, "x"),
            ("forge",),
            ("terminal", "sh", "-c", "id"),
        ]

        ended = await acp.ended(*tries, ("report",), answers={"code.read_file": NO, "code.write_file": NO, EDIT: YES})

        *answers, _terminal, code, output = said(ended)[1:]
        assert all("error" in one or one == {"outcome": "selected", "optionId": "no"} for one in answers), answers
        assert (code, "there is no tool" in output["output"]) == ({"exitCode": 126}, True)
        assert "deployment" not in str(answers)
        assert not outside.exists()
        assert not hooks.exists()
        assert not (acp.project / "forged.txt").exists()
        assert "forged" not in str(await acp.nodes())


@pytest.mark.spec("ACP-01.b", "FS-06.b")
@pytest.mark.parametrize("name", ["id.pem", ".ssh/config", "link", "login.json", "notes.txt"])
async def test_its_own_read_of_a_sensitive_file_is_asked_and_a_no_is_final(tmp_path: Path, name: str) -> None:
    async with acp_site(tmp_path) as acp:
        (acp.project / ".ssh").mkdir()
        for each in ("id.pem", ".ssh/config", "notes.txt"):
            (acp.project / each).write_text("x")
        (acp.project / "link").symlink_to("id.pem")
        (acp.project / "login.json").write_text('{"refresh_token": "opaque-0123456789abcdef"}')

        ended = await acp.ended(("look", str(acp.project / name)), ("report",), answers={"acp.scripted.read": NO})

        is_open = name == "notes.txt"
        assert said(ended)[1].get("optionId") == ("yes" if is_open else "no")


@pytest.mark.spec("ACP-01.b")
async def test_a_change_of_mode_that_only_the_call_states_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        ended = await acp.ended(("switch",), ("report",))

        assert said(ended)[1].get("optionId") != "yes"
        asked = [one.request.tool for one in await acp.site.store.consent.questions(include_closed=True)]
        assert asked == ["acp.scripted.run"]


@pytest.mark.spec("ACP-01.b")
async def test_a_no_to_one_place_is_asked_with_the_place_that_a_link_leads_to(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        (acp.project / "link").symlink_to(tmp_path / "outside.txt")
        await acp.site.submit(step(("edit", str(acp.project / "link"), None, "x"), ("report",)))
        await acp.site.start_worker()

        asked = await acp.question(EDIT)

        assert asked.shown == str(tmp_path / "outside.txt")
        await acp.site.answer(asked, choice=NO)
        await acp.until_ended({})
        assert not (tmp_path / "outside.txt").exists()


@pytest.mark.spec("ACP-01.a")
async def test_a_project_names_no_program(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        agents = acp.project / ".soong" / "agents"
        agents.mkdir(parents=True)
        (agents / "evil.md").write_text("---\nname: 'acp:scripted'\ndescription: x\n---\nx")
        (acp.project / ".soong" / "config.toml").write_text('[acp.agents.scripted]\ncommand = ["/bin/false"]\n')
        (acp.project / os.path.basename("claude-agent-acp")).write_text("#!/bin/sh\n")  # noqa: PTH119  # by its name

        ended = await acp.ended(("say", "still the configured one"))

        assert ended.output == "still the configured one"


@pytest.mark.spec("ACP-01.b")
async def test_what_it_does_under_the_id_of_an_allowed_call_does_not_pass_for_that_call(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        ended = await acp.ended(("mislead",), ("report",), answers={READ: YES})

        first, again = said(ended)[1:]
        assert first == {"outcome": "selected", "optionId": "yes"}
        assert again == {"outcome": "selected", "optionId": "no"}, "a call that is over is not allowed once more"
        events = await acp.site.store.runs.events(ended.run_id)
        told = [(one.data["title"], one.data["kind"], one.data["asked"]) for one in events if one.type == "agent_call"]
        assert told == [("Look", "read", True)]


@pytest.mark.spec("ACP-01.b")
async def test_a_flood_of_plans_is_written_as_the_last_of_them(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        ended = await acp.ended(("plans", 3000), ("report",))

        said(ended)
        events = [one.data for one in await acp.site.store.runs.events(ended.run_id) if one.type == "agent_plan"]
        assert len(events) < 100
        assert "plan 2999" in str(events[-1])


__all__ = ["nowhere"]
AGENT_FOLDER = Path(__file__).parents[1] / "acp"


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
    return dict(next(one["tried"] for one in said(ended) if "tried" in one))


@pytest.mark.spec("ACP-01.d")
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


@pytest.mark.spec("ACP-01.d")
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


@pytest.mark.spec("ACP-01.d")
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


@pytest.mark.spec("ACP-01.d")
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


@pytest.mark.spec("ACP-01.d")
@pytest.mark.usefixtures("nowhere")
async def test_without_a_sandbox_that_is_required_nobody_is_asked_and_nothing_starts(tmp_path: Path) -> None:
    async with sandboxed(tmp_path, "required") as acp:
        ended = await acp.ended(("say", "x"), answers={RUN: Choice.ALLOW_ONCE})

        assert ended.error is not None
        assert (ended.error.type, ended.error.retryable) == ("sandbox_denied", False)
        assert "commands.sandbox is 'required'" in ended.error.message
        assert "permission_requested" not in await acp.site.story()
