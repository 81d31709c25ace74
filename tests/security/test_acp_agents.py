"""Hostile agents of others: what they try with what we offer them, and what they learn of us (ACP-01)."""

import os
from pathlib import Path
from typing import Any

import pytest

from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Step
from soong.shared.permissions.request import Choice
from tests.integration.acp_site import EDIT, acp_site, step

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
        assert all("error" in one or one == {"outcome": "selected", "option_id": "no"} for one in answers), answers
        assert (code, "there is no tool" in output["output"]) == ({"exit_code": 126}, True)
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
        assert said(ended)[1].get("option_id") == ("yes" if is_open else "no")


@pytest.mark.spec("ACP-01.b")
async def test_a_change_of_mode_that_only_the_call_states_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    async with acp_site(tmp_path) as acp:
        ended = await acp.ended(("switch",), ("report",))

        assert said(ended)[1].get("option_id") != "yes"
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
        assert first == {"outcome": "selected", "option_id": "yes"}
        assert again == {"outcome": "selected", "option_id": "no"}, "a call that is over is not allowed once more"
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
