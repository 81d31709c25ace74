"""docs/reference/hooks.md says what hooks are told and what they may answer, and its examples run."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soong.shared.core.config import Config
from soong.shared.core.jsontext import JsonObject, parse_strict
from soong.shared.core.program_config import McpServerConfig
from soong.shared.tools.definition import CallQuestion, ElicitationAnswer, HandlerOutput, Target, ToolContext
from soong.shared.tools.hooks.chain import registered_hooks
from soong.shared.tools.hooks.command import _ElicitationHookAnswer, _PostAnswer, _PreAnswer
from soong.shared.tools.hooks.hook import ELICITATION_ACTIONS, REGISTERED, STRENGTH
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.mcp.elicitation import ServerQuestion
from tests.unit.tools.hook_programs import Programs
from tests.unit.tools.parts import TEXT_INPUT, make_bench, make_tool

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "hooks.md").read_text(encoding="utf-8")


def example(language: str, number: int = 0) -> str:
    return str(re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)[number])


def rows(head: str) -> list[str]:
    table = TEXT.partition(head)[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def target(_context: ToolContext, call_input: JsonObject) -> Target:
    return Target("path", "/p", str(call_input.get("text", "")))


@pytest.mark.spec("EXE-13")
async def test_every_field_that_a_program_gets_is_documented(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    programs.python("open('told.json', 'w').write(json.dumps(told))", stage="post")

    await programs.bench(make_tool(target=target)).call("test.echo", text="x")

    told: Any = parse_strict((programs.home / "told.json").read_bytes())
    assert set(rows("| field on stdin |")) == told.keys()
    assert all(f"`{name}`" in TEXT for name in (*told["derived"]["target"], *told["result"], *told["run_dirs"]))


def test_every_field_and_action_that_a_program_may_answer_is_documented() -> None:
    assert set(rows("| field on stdout |")) == {*_PreAnswer.model_fields, *_PostAnswer.model_fields}
    assert all(f"`action: {action}`" in TEXT for action in STRENGTH)


@pytest.mark.spec("EXE-13")
async def test_the_program_of_the_example_denies_vendored_code(tmp_path: Path) -> None:
    configured = Config.model_validate(tomllib.loads(example("toml"))).hooks.pre[0]
    programs = Programs(tmp_path)
    programs.python("", name=configured.name, tools=configured.tools)
    (programs.home / f"{configured.name}.script").write_text(example("python"), encoding="utf-8")
    tool = make_tool("code.write_file", target=target)
    bench = programs.bench(tool)

    refused = await bench.call("code.write_file", text="/p/vendor/x.py")
    allowed = await bench.call("code.write_file", text="/p/own/x.py")

    assert refused.error is not None
    assert (refused.error.type, refused.error.message) == (ErrorType.HOOK_DENIED, "vendored code is not edited by hand")
    assert allowed.ok


SECTION = TEXT.partition("## Around what a server asks")[2]


def asked(**fields: dict[str, str]) -> CallQuestion:
    """Return a server's question as hooks get it."""
    params = SimpleNamespace(message="Which?", requested_schema={"properties": fields})
    return ServerQuestion.of("design", McpServerConfig(command="x"), params).question()


@pytest.mark.spec("MCP-01.m")
def test_every_field_of_a_question_and_every_answer_to_it_is_documented() -> None:
    page = SimpleNamespace(mode="url", message="Sign in", url="https://example.org/")
    of_page = ServerQuestion.of("design", McpServerConfig(command="x"), page).question()

    assert all(f"`{name}`" in SECTION for name in {*asked().input, *of_page.input})
    assert all(f"`{name}`" in SECTION for name in _ElicitationHookAnswer.model_fields if name != "v")
    assert all(f"`action: {action}`" in SECTION for action in ELICITATION_ACTIONS)
    assert all(f"`{stage}`" in TEXT for stage in ("elicitation", "elicitation_result"))


@pytest.mark.spec("MCP-01.m")
async def test_the_examples_around_a_question_answer_and_decline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asks(context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        question = asked(**{str(call_input["text"]): {"type": "string"}})
        answer = await context.around_question.before(question)
        if answer is None:
            answer = ElicitationAnswer("accept", {"office": "Basel"})
            named = CallQuestion("mcp.booking.elicitation/create", question.input, question.target)
            answer = await context.around_question.after(named, answer)
        return {"action": answer.action, "content": dict(answer.content or {}), "reason": answer.reason}

    for stage in REGISTERED:
        monkeypatch.setitem(REGISTERED, stage, {})
    exec(compile(example("python", 3), "docs/reference/hooks.md", "exec"), {"__name__": "example"})
    configured = Config.model_validate(tomllib.loads(example("toml", 1))).hooks.elicitation[0]
    programs = Programs(tmp_path)
    programs.python("", name=configured.name, stage="elicitation", tools=configured.tools)
    (programs.home / f"{configured.name}.script").write_text(example("python", 2), encoding="utf-8")
    tool = make_tool("mcp.design.asks", handler=asks, input_schema=TEXT_INPUT)
    bench = make_bench([tool], project=programs.project, hooks=registered_hooks() + programs.hooks())

    colour = await bench.call("mcp.design.asks", text="colour")
    office = await bench.call("mcp.design.asks", text="office")

    assert colour.data == {
        "action": "accept",
        "content": {"colour": "blue"},
        "reason": "the hook 'team-colour' answered accept",
    }
    assert office.data == {"action": "decline", "content": {}, "reason": "we book for Bern"}
