"""docs/hooks.md says what hooks are told and what they may answer, and its examples run."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.config import Config
from soong.shared.core.jsontext import JsonObject, parse_strict
from soong.shared.tools.definition import Target, ToolContext
from soong.shared.tools.hooks import sdk
from soong.shared.tools.hooks.command import _PostAnswer, _PreAnswer
from soong.shared.tools.hooks.hook import STRENGTH
from soong.shared.tools.result import ErrorType
from tests.unit.tools.hook_programs import Programs
from tests.unit.tools.parts import TEXT_INPUT, make_bench, make_tool

TEXT = (Path(__file__).parents[3] / "docs" / "hooks.md").read_text(encoding="utf-8")


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
    assert (refused.error.type, refused.error.message) == (
        ErrorType.HOOK_DENIED,
        "vendored code is not edited by hand",
    )
    assert allowed.ok


@pytest.mark.spec("EXE-13")
async def test_the_function_of_the_example_has_the_call_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "_PRE", {})
    exec(compile(example("python", 1), "docs/hooks.md", "exec"), {"__name__": "example"})
    tool = make_tool("code.run_command", input_schema=TEXT_INPUT)
    bench = make_bench([tool], hooks=sdk.registered_hooks())

    await bench.call("code.run_command", text="x")

    assert bench.gate.asked[0].hook_result == "ask"
