"""The graph of a plan, and totals over it."""

import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError, LimitExceededError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.timing import SystemClock
from soong.shared.engine.tasks.new_tasks import check_total
from soong.shared.engine.tasks.plan.checks import find_cycle, mermaid
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.planner import Planner
from soong.shared.engine.tasks.service import TaskService
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.tools.result import ErrorType
from tests.model.builders import make_session, make_step, make_task
from tests.model.memory.store import MemoryStore
from tests.one_loop import FAST, OneLoop
from tests.unit.toolsets.test_task_planning import Planning

NODES = st.integers(0, 7).map(str)
LABEL = r'"(?:[^"\[\](){}<>;`%$&|\\\n\r\u2028\u2029ﬂ°¶ß]|#[0-9]+;|</?i>|<br/>)*"'
SIGNS = st.sampled_from("x\n\r\t \u2028\u2029\x85%{}[]()<>\"'#;:`\\&|$-@ﬂ°¶ß\x1b\u202e")
LINE = re.compile(rf"flowchart TD|    s\d+ --> s\d+|    s\d+(?:\[{LABEL}\]|\(\[{LABEL}\]\)|\[\[{LABEL}\]\])")
"""All that a drawing without statuses is made of."""


@given(st.dictionaries(NODES, st.lists(NODES, max_size=4)))
def test_a_cycle_is_found_exactly_when_nothing_can_be_put_in_order(edges: dict[str, list[str]]) -> None:
    cycle = find_cycle(edges)

    left = {node: {parent for parent in parents if parent in edges} for node, parents in edges.items()}
    while free := [node for node, parents in left.items() if not parents]:
        left = {node: parents - set(free) for node, parents in left.items() if node not in free}
    assert bool(cycle) == bool(left)
    assert all(following in edges[node] for node, following in pairwise(cycle))
    assert cycle[:1] == cycle[-1:]


def test_the_picture_has_every_step_and_edge_and_no_foreign_syntax() -> None:
    plan = parse_plan(
        """\
title: t
steps:
  - {id: a, instructions: x, title: 'A "quoted" [step]'}
  - {id: b, kind: python, call: builtin.echo, depends_on: [a]}
  - {id: c, kind: map, over: "${b.output}", depends_on: [b], step: {instructions: x}}
""",
        "p.yaml",
    )

    assert mermaid(plan) == (
        "flowchart TD\n"
        '    s0["a<br/><i>A #34;quoted#34; #91;step#93;</i>"]\n'
        '    s1(["b"])\n'
        '    s2[["c<br/>one for each of #36;#123;b.output#125;"]]\n'
        "    s0 --> s1\n"
        "    s1 --> s2\n"
    )


def test_the_picture_of_a_task_tells_how_its_steps_stand() -> None:
    plan = parse_plan("{title: t, steps: [{id: a, instructions: x}, {id: b, instructions: x}]}", "p.yaml")

    drawn = mermaid(plan, {"a": StepStatus.COMPLETED, "b": StepStatus.PENDING, "m[x]": StepStatus.FAILED})

    assert "    class s0 done\n" in drawn
    assert "class s1" not in drawn
    assert "classDef done" in drawn


@pytest.mark.spec("DAG-08.c")
@given(st.lists(st.text(SIGNS), min_size=1, max_size=4))
@example(["x\n%% ", 'x"]\n  hidden --> s0'])
def test_no_title_hides_or_adds_a_line_of_the_picture(titles: list[str]) -> None:
    ids = [f"a{number}" for number in range(len(titles))]
    steps = [
        {"id": name, "title": title.replace("${", "$${") or "t", "instructions": "x", "depends_on": ids[:place][-1:]}
        for place, (name, title) in enumerate(zip(ids, titles, strict=True))
    ]

    lines = mermaid(parse_plan(json.dumps({"title": "t", "steps": steps}), "p.json")).removesuffix("\n").split("\n")

    assert all(LINE.fullmatch(line) for line in lines)
    assert len(lines) == 2 * len(titles)


MOST = 4
ECHO: JsonObject = {"kind": "python", "call": "builtin.echo"}


@pytest.fixture
async def service() -> AsyncIterator[OneLoop]:
    async with OneLoop(MemoryStore(), settings=FAST.model_copy(update={"max_children_per_run": MOST})) as service:
        yield service


def steps(number: int, prefix: str = "s", **more: Json) -> list[Json]:
    return [{"id": f"{prefix}{place}", "kind": "python", "call": "builtin.echo", **more} for place in range(number)]


@pytest.mark.spec("DIS-03", "DIS-10", "DIS-03.a")
@pytest.mark.parametrize(("standing", "added"), [(0, 5), (4, 1), (9, 1)])
def test_beyond_the_total_the_setting_is_named(standing: int, added: int) -> None:
    with pytest.raises(LimitExceededError, match="SOONG_MAX_CHILDREN_PER_RUN is 4"):
        check_total(standing, added, 4)


def mapped(items: int) -> JsonObject:
    return {"title": "t", "steps": [{"id": "each", "kind": "map", "over": list(range(items)), "step": ECHO}]}


@pytest.mark.spec("DIS-03", "DIS-10", "DIS-10.d")
async def test_a_map_that_would_grow_beyond_it_fails_with_the_reason(service: OneLoop) -> None:
    within = await service.run(mapped(MOST - 1))
    beyond = await service.run(mapped(MOST))

    (step,) = await service.store.tasks.steps(beyond.id)
    assert within.status is TaskStatus.COMPLETED
    assert beyond.status is TaskStatus.FAILED
    assert step.error is not None
    assert step.error.type == "limit_exceeded"
    assert "5 children" in step.error.message


@pytest.mark.spec("DIS-03", "DIS-10", "DIS-10.d")
async def test_an_agent_learns_that_its_plan_or_its_growth_is_too_large(service: OneLoop) -> None:
    session = make_session()
    await service.store.sessions.open_session(session)
    home = make_task(session.id, make_step("held", pool="nobody"))
    await service.store.tasks.create_task(home)
    planning = Planning(service, session, replace(home.root_run.identity, task_id=home.id))

    refused = await planning.try_to("task_create", title="t", steps=steps(MOST + 1))
    made = await planning.do("task_create", title="t", steps=steps(MOST))
    grown = await planning.try_to("task_update", task_id=made["id"], add_steps=steps(1, "more"))

    for result in (refused, grown):
        assert result.error is not None
        assert result.error.type is ErrorType.LIMIT_EXCEEDED
        assert "SOONG_MAX_CHILDREN_PER_RUN" in result.error.message
    assert len(await service.store.tasks.steps(made["id"])) == MOST


@pytest.mark.spec("DIS-03", "DIS-10")
async def test_other_refusals_of_the_owner_stay_what_they_were(service: OneLoop) -> None:
    _, task = await service.submit({"title": "t", "steps": steps(1)})
    tasks = TaskService(service.store, service.board, service.board, SystemClock(), Planner())
    await service.finished(task.id)

    with pytest.raises(ConflictError):
        await tasks.update(task, {"add_steps": steps(1, "more")})
