"""Which steps need the project they work in: those with tools, of a deployment whose workers may be elsewhere."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.operations.preparation import prepared
from soong.orchestrator.operations.submissions import SubmissionBody, new_ids
from soong.shared.core.jsontext import Json
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.step import NewStep
from soong.shared.engine.wire.notifier import projects_among
from soong.shared.sandbox.rooted import mark_project

STEPS: list[Json] = [
    {"id": "agent", "instructions": "x", "script": "builtin.echo"},
    {"id": "bare", "instructions": "x", "script": "builtin.echo", "allowed_tools": []},
    {"id": "function", "kind": "python", "call": "builtin.echo"},
    {"id": "map", "kind": "map", "over": [1], "step": {"instructions": "x", "script": "builtin.echo"}},
]


def submitted(project: Path, *, needs_project: bool) -> dict[str, NewStep]:
    catalogue = replace(Catalogue(), needs_project=needs_project)
    plan: Any = {"title": "t", "steps": STEPS}
    body = SubmissionBody.model_construct(plan=plan, project=str(project), approval_mode="deny", model="script")
    made = prepared(body, "local", new_ids(), catalogue, Settings())
    return {step.step_id: step for step in made.task.steps}


@pytest.mark.spec("CARD-2")
def test_steps_that_use_tools_need_the_marked_project_at_its_path(tmp_path: Path) -> None:
    need = f"project:{mark_project(tmp_path)}@{tmp_path}"

    steps = submitted(tmp_path, needs_project=True)

    assert {name: projects_among(step.needs) for name, step in steps.items()} == {
        "agent": (need,),
        "bare": (),
        "function": (),
        "map": (need,),
    }


def test_nothing_is_needed_without_a_mark_or_where_all_workers_are_here(tmp_path: Path) -> None:
    assert not any(projects_among(step.needs) for step in submitted(tmp_path, needs_project=True).values())

    mark_project(tmp_path)

    assert not any(projects_among(step.needs) for step in submitted(tmp_path, needs_project=False).values())
    assert not Catalogue.of(Settings(agent_home=tmp_path)).needs_project
    assert Catalogue.of(Settings(agent_home=tmp_path, database_url="postgresql://db/soong")).needs_project
