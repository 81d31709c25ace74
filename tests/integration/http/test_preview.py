from pathlib import Path
from typing import Any

import pytest

from soong.shared.permissions.policy import Policy
from tests.integration.http.conftest import OpenScene
from tests.integration.http.conftest import own_scene as scene
from tests.integration.http.scene import ADA, HttpHarness, code_of

__all__ = ["scene"]

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.spec("PER-17")]

WRITES = {"allowed_tools": ["code.write_file"], "script": "builtin.echo"}
PLAN = {
    "title": "Three steps",
    "inputs": {"folder": {"type": "string", "default": "out"}},
    "steps": [
        {"id": "first", **WRITES, "permissions": {"write": ["${inputs.folder}/"], "run": [["git", "status"]]}},
        {"id": "second", **WRITES, "permissions": {"write": ["${inputs.folder}/"]}},
        {"id": "third", **WRITES},
    ],
}


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project beside the agent's home, whose `out` is a link: what a path means can change."""
    project = tmp_path_factory.mktemp("project").resolve()
    (project / "one").mkdir(parents=True)
    (project / "two").mkdir()
    (project / "out").symlink_to("one")
    return project


def body_of(folder: Path, **more: Any) -> dict[str, Any]:
    return {"plan": PLAN, "project": str(folder), **more}


async def preview(scene: HttpHarness, folder: Path, **more: Any) -> dict[str, Any]:
    response = await scene.caller.post("/v1/tasks/preview", json=body_of(folder, **more))
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


def yes_to(told: dict[str, Any], *steps: str) -> list[dict[str, str]]:
    digests = {step["id"]: step["grant_digest"] for step in told["steps"]}
    return [{"step": step, "grant_digest": digests[step]} for step in steps]


@pytest.mark.spec("PER-17.a")
async def test_a_preview_shows_every_scope_as_it_is_and_writes_nothing(scene: HttpHarness, folder: Path) -> None:
    told = await preview(scene, folder)

    (union,) = told["union"]["write"]
    assert (union["shown"], union["effect"], union["grantable"]) == (f"{folder}/one", "ask", ["code.write_file"])
    assert [step["is_grantable"] for step in told["steps"]] == [True, True, False]
    assert [bool(step["grant_digest"]) for step in told["steps"]] == [True, True, False]
    assert told["steps"][2]["may_ask"] == ["code.write_file"]
    assert await scene.bench.store.tasks.list_tasks() == []


async def test_a_preview_judges_with_the_inputs_and_rules_of_the_submission(scene: HttpHarness, folder: Path) -> None:
    allowed = await preview(scene, folder, inputs={"folder": "two"}, allow=[f"code.write_file:{folder}/two"])

    (union,) = allowed["union"]["write"]
    assert (union["shown"], union["effect"]) == (f"{folder}/two", "allow")
    assert allowed["steps"][1]["grant_digest"] is None


async def test_a_yes_is_a_rule_of_its_step_alone(scene: HttpHarness, folder: Path) -> None:
    told = await preview(scene, folder)

    sent = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=yes_to(told, "first")))

    session = await scene.bench.store.sessions.session(sent.json()["session"]["id"])
    (rule,) = Policy.from_json(session.policy).rules
    assert (rule.pattern, str(rule.scope), rule.step) == (
        "code.write_file",
        f"{folder}/one",
        f"{sent.json()['task']['id']}/first",
    )
    assert rule.source.startswith(f"step consent by {ADA} at ")


async def test_what_means_another_thing_by_then_is_refused_and_not_started(scene: HttpHarness, folder: Path) -> None:
    told = await preview(scene, folder)
    (folder / "out").unlink()
    (folder / "out").symlink_to("two")

    refused = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=yes_to(told, "second")))

    assert code_of(refused) == "input_changed"
    assert refused.json()["step"] == "second"
    assert await scene.bench.store.tasks.list_tasks() == []


@pytest.mark.parametrize(
    ("step", "code"), [("second", "input_changed"), ("third", "invalid_input"), ("frist", "invalid_input")]
)
async def test_no_step_is_granted_by_the_digest_of_another(
    scene: HttpHarness, folder: Path, step: str, code: str
) -> None:
    (grant,) = yes_to(await preview(scene, folder), "first")

    refused = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=[{**grant, "step": step}]))

    assert code_of(refused) == code
    assert await scene.bench.store.tasks.list_tasks() == []


async def test_a_preview_looks_into_no_folder_that_is_no_project(open_http: OpenScene, folder: Path) -> None:
    async with open_http(http_projects=(str(folder / "one"),)) as scene:
        response = await scene.caller.post("/v1/tasks/preview", json=body_of(folder))

    assert code_of(response) == "forbidden"


@pytest.mark.parametrize("grant", ["first", {"step": "first"}, {"step": "first", "grant_digest": "0" * 65}])
async def test_a_yes_that_names_no_digest_is_none(scene: HttpHarness, folder: Path, grant: object) -> None:
    response = await scene.caller.post("/v1/tasks", json=body_of(folder, step_grants=[grant]))

    assert code_of(response) == "invalid_input"
    assert await scene.bench.store.tasks.list_tasks() == []
