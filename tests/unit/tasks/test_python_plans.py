"""Plans in Python: the document that a function becomes, what is refused, and the types at both ends (FLW-01)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, assert_type, cast

import pytest
import yaml
from pydantic import BaseModel, Field

from soong import StepContext, UsageError, agent_step, celery_step, plan, step
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.engine.tasks.functions import resolve, versions_of
from soong.shared.engine.tasks.plan.reader import plan_from_json

MODULE = __name__


class Finding(BaseModel):
    title: str
    lines: list[int] = []


@dataclass
class Place:
    path: str


PLACE = Place("a")


class Depth(StrEnum):
    SHALLOW = "shallow"


@step
def find(folder: str, depth: int = 1) -> list[Finding]:
    return [Finding(title=folder, lines=[depth])]


@step(retries=2, timeout=30, pool="slow", needs=["gpu"], isolation="process", on_failure="keep")
async def check(finding: Finding, place: Place | None = None, *, strict: bool = False) -> str:
    return f"{finding.title} {place} {strict}"


@step(title="All of it", priority=3)
def total(texts: list[str], extra: Any = None) -> dict[str, int]:
    return {"texts": len(texts)}


@step
def here() -> str:
    return StepContext.current().effect_key


review = agent_step(
    "Review it.", output=Finding, tools=["code.read_file"], model="openai:gpt-5", settings={"cache": True}
)
add = celery_step("shop.tasks.add", app="examples.words:app", output=int)
Build = Callable[..., Any]


def steps_of(function: Build) -> dict[str, Any]:
    """Return the steps of a plan by their ids."""
    steps: Any = plan(function).document["steps"]
    return {one["id"]: one for one in steps}


@plan(title="Audit", limits={"max_turns": 9}, tags=["nightly"])
def audit(folder: str, depth: int = 2, place: Place = PLACE) -> dict[str, Any]:
    found = find(folder, depth)
    each = check.with_options(id="each", max_items=5, key=lambda finding: finding.title)
    texts = each.map(found, place=place, strict=True)
    first = review.after(texts)(finding=found[0], text=f"{folder}: {found[0].title} costs $${{1}}")
    counted = total(texts, extra={"first": first.title, "list": [first.lines[-1], "${literal}"]})
    return {"count": counted["texts"], "odd": counted["odd key"], "seen": [first]}


AUDIT = f"""
title: Audit
limits: {{max_turns: 9}}
tags: [nightly]
inputs:
  folder: {{type: string}}
  depth: {{type: integer, default: 2}}
  place: {{type: object, default: {{path: a}}}}
modules: [{MODULE}]
output:
  count: ${{total.output.texts}}
  odd: ${{total.output["odd key"]}}
  seen: ["${{review.output}}"]
steps:
  - id: find
    kind: python
    call: {MODULE}.find
    inputs: {{folder: "${{inputs.folder}}", depth: "${{inputs.depth}}"}}
  - id: each
    kind: map
    depends_on: [find]
    over: ${{find.output}}
    on_failure: keep
    max_items: 5
    key: ${{item.title}}
    step:
      kind: python
      call: {MODULE}.check
      retries: 2
      timeout_s: 30
      pool: slow
      needs: [gpu]
      isolation: process
      inputs: {{finding: "${{item}}", place: "${{inputs.place}}", strict: true}}
  - id: review
    kind: agent
    depends_on: [find, each]
    instructions: Review it.
    output: {Finding.model_json_schema()}
    allowed_tools: [code.read_file]
    model: openai:gpt-5
    settings: {{cache: true}}
    inputs: {{finding: "${{find.output[0]}}", text: "${{inputs.folder}}: ${{find.output[0].title}} costs $$${{1}}"}}
  - id: total
    kind: python
    depends_on: [each, review]
    title: All of it
    call: {MODULE}.total
    priority: 3
    inputs:
      texts: ${{each.output}}
      extra: {{first: "${{review.output.title}}", list: ["${{review.output.lines[-1]}}", "$${{literal}}"]}}
"""


@pytest.mark.spec("FLW-01.a", "FLW-01.b")
def test_calls_of_steps_become_the_document_of_the_same_plan_in_yaml() -> None:
    assert audit.document == yaml.safe_load(AUDIT)


@pytest.mark.spec("FLW-01.a")
def test_the_document_is_a_plan_as_the_reader_checks_it() -> None:
    @plan
    def small(folder: str = "src") -> list[str]:
        """Look at a folder.

        More about it.
        """
        return check.map(find(folder))

    read = plan_from_json({key: value for key, value in small.document.items() if key != "modules"})
    assert read.title == "Look at a folder"
    assert [(one.id, str(one.kind), one.depends_on) for one in read.steps] == [
        ("find", "python", ()),
        ("check", "map", ("find",)),
    ]


@pytest.mark.spec("FLW-01.a")
def test_a_celery_step_has_the_schema_of_its_type() -> None:
    def build() -> Any:
        untyped: Any = celery_step("shop.any")
        maybe: Any = celery_step("shop.maybe", output=Finding | None)  # type: ignore[arg-type]
        return [add(1), celery_step("shop.find", output=Finding)(), maybe(), untyped()]

    found = {key: one.get("output") for key, one in steps_of(build).items()}

    assert found == {"add": {"type": "integer"}, "find": Finding.model_json_schema(), "maybe": None, "any": None}


@pytest.mark.spec("FLW-01.c", "FLW-01.a")
def test_failed_items_that_a_plan_keeps_are_none_in_the_type_of_the_list() -> None:
    @plan
    def small(folder: str = "src") -> list[str | None]:
        return assert_type(check.with_options(on_item_failure="keep").map(find(folder)), list[str | None])

    each: Any = small.document["steps"]
    assert each[1]["on_item_failure"] == "keep"


@pytest.mark.spec("FLW-01.b")
def test_a_step_that_is_called_twice_is_two_nodes_and_a_plan_in_a_plan_adds_its_steps() -> None:
    @plan
    def inner(text: str) -> list[Finding]:
        return find(text)

    @plan
    def outer(text: str = "x") -> list[Any]:
        return [find(text), find("b"), inner("c"), add(1, y=find("d")[0].lines[0])]

    ids = {step_id: one["inputs"] for step_id, one in steps_of(outer.function).items()}
    assert ids == {
        "find": {"folder": "${inputs.text}"},
        "find-2": {"folder": "b"},
        "find-3": {"folder": "c"},
        "find-4": {"folder": "d"},
        "add": {"y": "${find-4.output[0].lines[0]}"},
    }


@pytest.mark.spec("FLW-01.c")
@pytest.mark.parametrize(
    ("annotation", "default", "kind", "stored"),
    [
        (str, "a", "string", "a"),
        (int, 3, "integer", 3),
        (float, 0.5, "number", 0.5),
        (bool, False, "boolean", False),
        (list[Place], [Place("b")], "array", [{"path": "b"}]),
        (tuple[int, ...], (1, 2), "array", [1, 2]),
        (dict[str, int], {"a": 1}, "object", {"a": 1}),
        (Finding, Finding(title="t"), "object", {"title": "t", "lines": []}),
        (Literal["a", "b"], "b", "string", "b"),
        (Depth, Depth.SHALLOW, "string", "shallow"),
        (Path, Path("x/y"), "string", "x/y"),
        (str | None, None, "string", None),
    ],
)
def test_the_type_of_a_parameter_is_that_of_an_input(annotation: Any, default: Any, kind: str, stored: Any) -> None:
    def build(value: Any = default) -> Any:
        return total([], extra=value)

    build.__annotations__["value"] = annotation

    made = plan(build)

    assert made.document["inputs"] == {"value": {"type": kind, "default": stored}}
    assert made.inputs({"value": default}) == {"value": stored}


@pytest.mark.spec("FLW-01.c")
def test_the_description_of_a_parameter_is_that_of_the_input() -> None:
    @plan
    def one(path: Annotated[str, Field(description="Where to look.")]) -> Any:
        return find(path)

    assert one.document["inputs"] == {"path": {"type": "string", "description": "Where to look."}}


def _loops(folder: str = "x") -> Any:
    for finding in find(folder):
        check(finding)


def _conditions(folder: str = "x") -> Any:
    return here() if find(folder) else None


def _compares(folder: str = "x") -> Any:
    return here() if find(folder)[0].title == "a" else None


def _joins(folder: str = "x") -> Any:
    return here.when(find(folder)[0].title == "a" and find(folder)[1].title == "b")()


def _compares_with_no_json(folder: str = "x") -> Any:
    return here.when(find(folder)[0].title == object())()


def _looks_into(folder: str = "x") -> Any:
    return here.when(find(folder)[0] in find(folder))()


def _computes(folder: str = "x") -> Any:
    return find(folder)[0].lines[0] + 1


def _calls_a_method(folder: str = "x") -> Any:
    return find(folder)[0].title.upper()


def _no_field(folder: str = "x") -> Any:
    return find(folder)[0].tittle  # type: ignore[attr-defined]


def _error_of_items(folder: str = "x") -> Any:
    return total(check.map(find(folder)).error)  # type: ignore[attr-defined]


def _wrong_constant(folder: str = "x") -> Any:
    return find(folder, depth="deep")  # type: ignore[arg-type]


def _unknown_parameter(folder: str = "x") -> Any:
    return find(folder, deep=3)  # type: ignore[call-arg]


def _wrong_item(folder: str = "x") -> Any:
    return check.map([3])  # type: ignore[list-item]


def _no_steps(folder: str = "x") -> Any:
    return folder


def _no_name(folder: str = "x") -> Any:
    return review(folder)


def _two_types(value: int | str = 1) -> Any:
    return total([], extra=value)


def _not_json(folder: str = "x") -> Any:
    return total([], extra=object())


def _nul(folder: str = "x") -> Any:
    return find(f"{folder} a\0b")


def _other_plan() -> Any:
    return find(KEPT[0])


KEPT: list[Any] = []


@pytest.mark.spec("FLW-01.d")
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_loops, r"\$\{find.output\}: the value is not known .* a loop needs it; write `step.map\(result\)`"),
        (_conditions, "a condition needs it; write a step that is given the result"),
        (_compares, r"a condition: whether it holds is not known .*; give it to `.when\(…\)`; write `&`, `\|` and `~`"),
        (_joins, r"a condition: whether it holds is not known"),
        (_looks_into, r"an operator needs it"),
        (_compares_with_no_json, r"a condition: a value is not JSON: .*; compare with a text or a number"),
        (_computes, "an operator needs it"),
        (_calls_a_method, "a method needs it"),
        (_no_field, r"it has no field 'tittle'; did you mean 'title'\?"),
        (_error_of_items, r"\$\{check.output\}: it is a value, which has no 'error'; read it when the task has ended"),
        (_wrong_constant, "step 'find': depth: Input should be a valid integer"),
        (_unknown_parameter, "step 'find': got an unexpected keyword argument 'deep'; call it as find"),
        (_wrong_item, "step 'check': finding: Input should be .*Finding"),
        (_no_steps, "plan '_no_steps': it calls no step"),
        (_no_name, r"step 'agent': an input of an agent has a name; give it by name"),
        (_two_types, "plan '_two_types': value: an input of a plan is of one type of JSON"),
        (_not_json, "step 'total': extra: the value is not JSON: .*object"),
        (_nul, "a text has a NUL character"),
        (_other_plan, "it is a result of another plan"),
    ],
)
def test_what_a_plan_cannot_say_is_refused_where_it_says_it(function: Build, words: str) -> None:
    @plan
    def other(folder: str = "x") -> Any:
        KEPT[:] = [find(folder)[0].title]
        return KEPT[0]

    assert other.document
    with pytest.raises(UsageError, match=words):
        _ = plan(function).document


@pytest.mark.spec("CTL-01.b")
def test_conditions_are_compared_as_the_parentheses_say() -> None:
    @plan
    def compares(folder: str = "x") -> str:
        count = total([folder])["count"]
        return here.when(((count > 1) == (count < 9)) & ((count > 3) != True) & (count == (count > 1)))()  # noqa: E712

    count = "${total.output.count}"
    when = f"((({count} > 1) == ({count} < 9) and ({count} > 3) != true) and {count} == ({count} > 1))"
    steps = cast("list[dict[str, Any]]", compares.document["steps"])
    assert steps[-1]["when"] == when


@pytest.mark.spec("FLW-01.d")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: step(lambda *args: args), "takes values without a name"),
        (lambda: find.with_options(retry=3), "there is no option 'retry'; did you mean 'retries'"),  # type: ignore[call-overload]
        (lambda: agent_step("x", output=list[int]), "the output of an agent is an object or text"),
        (lambda: agent_step("x")(a=1), "it is called outside of a plan"),
        (lambda: find.map(["a"]), "it is called outside of a plan"),
        (lambda: plan(find.function)(1), "run it: find.run"),
        (lambda: plan(check.function), "it is async"),
        (StepContext.current, "no step runs here"),
    ],
)
def test_a_wrong_use_of_the_decorators_is_named(make: Build, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


@pytest.mark.spec("FLW-01.e")
async def test_outside_of_a_plan_a_step_is_its_function() -> None:
    assert find("a", depth=3) == [Finding(title="a", lines=[3])]
    assert await check.function(Finding(title="a"), strict=True) == "a None True"
    assert find.__name__ == "find"
    assert isinstance(await check(Finding(title="b")), str)  # type: ignore[misc]  # the type of a call is that in a plan


@pytest.mark.spec("FLW-01.c")
async def test_a_worker_calls_it_with_values_of_its_types() -> None:
    context = StepContext(RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, ""), 1, "key")
    called: Any = resolve(f"{MODULE}.check").body

    assert resolve(f"{MODULE}.find").body({"folder": "a", "depth": 2}, context) == [{"title": "a", "lines": [2]}]
    assert resolve(f"{MODULE}.here").body({}, context) == "key"
    given = {"finding": {"title": "a"}, "place": {"path": "p"}}
    assert await called(given, context) == "a Place(path='p') False"
    with pytest.raises(UsageError, match=r"step 'check': finding: lines.0: .*valid integer.*; step 'check': strict"):
        await called({"finding": {"title": "a", "lines": ["x"]}, "strict": "maybe"}, context)
    with pytest.raises(
        UsageError, match="step 'check': it has no parameter 'deep'; step 'check': finding: it is required"
    ):
        await called({"deep": 1}, context)


@step
def liar() -> int:
    return "no"  # type: ignore[return-value]


@pytest.mark.spec("FLW-01.c")
def test_a_result_of_another_type_than_declared_is_the_steps_failure() -> None:
    context = StepContext(RunIdentity("sess_1", "run_1", "agent_1", Role.WORKER, ""), 1, "key")
    with pytest.raises(UsageError, match="step 'liar': its result: Input should be a valid integer"):
        resolve(f"{MODULE}.liar").body({}, context)


@pytest.mark.spec("FLW-01.f")
def test_functions_of_one_file_have_its_version() -> None:
    versions = versions_of([f"{MODULE}.find", f"{MODULE}.check", "builtin.echo", "unknown"])

    assert len(set(versions.values())) == 1
    assert set(versions) == {f"{MODULE}.find", f"{MODULE}.check"}
