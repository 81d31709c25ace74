import pytest
from msgspec import convert

from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.growth import planned, read_update
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.agent_kind import MAX_DECLARED, rendered
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.spec import DeclaredPermissions, StepSpec
from tests.unit.agents.parts import row_of, task_of
from tests.unit.tasks.test_expansion import SESSION

pytestmark = pytest.mark.spec("PER-17")

PLAN = """
title: t
inputs: {folder: docs}
steps:
  - id: a
    instructions: Write.
    permissions:
      write: ["${inputs.folder}/", out.md]
      hosts: [api.example.org]
      run: [[git, status], pytest]
"""


def problems(asks: str) -> list[str]:
    text = f"title: t\nsteps:\n- id: a\n  instructions: x\n  permissions: {asks}\n"
    with pytest.raises(InvalidPlanError) as caught:
        parse_plan(text, "p.yaml")
    return [f"{one.place}: {one.problem}; {one.hint}" for one in caught.value.problems]


def test_asks_are_read_stored_and_read_back() -> None:
    step = parse_plan(PLAN, "p.yaml").steps[0]

    assert step.permissions == DeclaredPermissions(
        ("${inputs.folder}/", "out.md"), ("api.example.org",), (("git", "status"), ("pytest",))
    )
    assert convert(step.as_json(), StepSpec).permissions == step.permissions
    silent = parse_plan("title: t\nsteps: [{id: a, instructions: x}]", "p").steps[0]
    assert "permissions" not in silent.as_json()


@pytest.mark.parametrize(
    ("asks", "message"),
    [
        ("{wrte: [x]}", "p.yaml:5 steps[0].permissions.wrte: unknown field 'wrte'; did you mean 'write'?"),
        ("{write: x}", "p.yaml:5 steps[0].permissions.write: 'x' cannot be used; write a list of texts"),
        ("{write: [/]}", "steps[0].permissions.write[0]: '/' is the entire file system"),
        ("{write: ['~/x']}", "steps[0].permissions.write[0]: '~/x' begins with `~`, which no tool expands"),
        ("{hosts: ['*']}", "steps[0].permissions.hosts[0]: '*' is a pattern; name each host"),
        (
            "{hosts: ['https://api.example.org/v1']}",
            "steps[0].permissions.hosts[0]: 'https://api.example.org/v1' is a URL",
        ),
        ("{hosts: ['https://api.example.org/v1']}", "write api.example.org"),
        ("{hosts: ['a b']}", "steps[0].permissions.hosts[0]: 'a b' is not a host name; write a host such as"),
        ("{run: [git status]}", "'git status' is a command line; write its words one by one: [git, status]"),
        ("{run: [[]]}", "steps[0].permissions.run[0]: it names no program; write the program first"),
        ("{run: [{git: 1}]}", "steps[0].permissions.run[0]: a mapping cannot be used; write a list of texts"),
        ("{run: [[git, 1]]}", "steps[0].permissions.run[0]: a list cannot be used; write a list of texts"),
        (
            "{write: ['${nowhere.x}']}",
            "steps[0].permissions.write[0]: the reference '${nowhere.x}': 'nowhere' is not known",
        ),
    ],
)
def test_every_problem_is_named_with_its_place_and_what_to_write(asks: str, message: str) -> None:
    assert any(message in one for one in problems(asks)), problems(asks)


def test_more_than_a_person_looks_through_is_refused() -> None:
    many = ", ".join(f"f{number}" for number in range(MAX_DECLARED + 1))

    assert f"it has {MAX_DECLARED + 1} entries" in problems(f"{{write: [{many}]}}")[0]


@pytest.mark.parametrize("kind", ["python", "map"])
def test_only_what_runs_an_agent_asks(kind: str) -> None:
    text = f"title: t\nsteps:\n- {{id: a, kind: {kind}, permissions: {{write: [x]}}}}\n"

    with pytest.raises(
        InvalidPlanError, match="'permissions' does not belong here; only a step of `kind: agent` has it"
    ):
        parse_plan(text, "p.yaml")


def test_a_maps_child_names_its_item_and_what_is_not_known_stays_as_written() -> None:
    wish = DeclaredPermissions(("${pkg}/out", "${late.output}"), run=(("make", "${pkg}"),))

    assert rendered(wish, {"pkg": "left"}, ExpansionBudget("the test")) == DeclaredPermissions(
        write=("left/out", "${late.output}"), run=(("make", "left"),)
    )


def test_a_task_grows_by_steps_that_say_what_they_will_ask_for() -> None:
    made = new_task(
        parse_plan(PLAN, "p.yaml"),
        {"folder": "docs"},
        SESSION,
        surface_of=lambda _step: {},
        default_model="test",
        now_us=0,
    )
    row = row_of(made.steps[0])
    document: JsonObject = {
        "add_steps": [{"id": "b", "instructions": "x", "permissions": {"write": ["${inputs.folder}/b"]}}]
    }

    update = read_update(document, task_of(made), [row], PlanNames())

    assert update.steps[0].permissions == DeclaredPermissions(write=("${inputs.folder}/b",))
    assert planned(row).permissions == parse_plan(PLAN, "p.yaml").steps[0].permissions
    with pytest.raises(InvalidPlanError, match=r"update add_steps\[0\].permissions.hosts\[0\]"):
        read_update(
            {"add_steps": [{"id": "b", "instructions": "x", "permissions": {"hosts": ["*"]}}]},
            task_of(made),
            [row],
            PlanNames(),
        )
