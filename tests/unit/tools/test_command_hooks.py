"""Hooks as programs of the user: what they are told, what they answer, when they are refused at start."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soong.shared.core.config import CommandsConfig, Config, HookConfig, HooksConfig
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import JsonObject, digest, parse_strict
from soong.shared.core.program_config import McpServerConfig
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.tools.definition import CallQuestion, ElicitationAnswer, HandlerOutput, Target, ToolContext
from soong.shared.tools.hooks.chain import registered_hooks
from soong.shared.tools.hooks.command import _ElicitationHookAnswer, _PostAnswer, _PreAnswer, hooks_of
from soong.shared.tools.hooks.hook import ELICITATION_ACTIONS, REGISTERED, STRENGTH
from soong.shared.tools.result import ErrorType, JsonBlock, TextBlock
from soong.shared.toolsets.mcp.elicitation import ServerQuestion
from tests.unit.tools.hook_programs import Programs, denied, hook_runs
from tests.unit.tools.parts import TEXT_INPUT, make_bench, make_tool


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize("body", ["", "exit 0", "printf ' \\n'"], ids=["empty", "exit", "blank"])
async def test_a_program_that_says_nothing_has_no_opinion(programs: Programs, body: str) -> None:
    programs.sh(body)
    bench = programs.bench()

    assert (await bench.call("test.echo", text="x")).ok
    assert (hook_runs(bench)[0]["outcome"], bench.gate.asked[0].hook_result) == ("none", "none")


@pytest.mark.spec("EXE-02.b", "EXE-13")
async def test_a_program_rewrites_the_input_and_permission_sees_that(programs: Programs) -> None:
    programs.python("answer(input={'text': told['input']['text'].upper()}, context=['louder'])")
    bench = programs.bench()

    result = await bench.call("test.echo", text="x")

    assert (result.data, result.metadata["hook_context"]) == ("X", ["louder"])
    assert bench.gate.asked[0].input_digest == digest({"text": "X"})
    assert hook_runs(bench)[0]["input_diff"] == {"text": ["x", "X"]}


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize(
    ("content", "block"),
    [('"short"', TextBlock("short")), ('{"a": 1}', JsonBlock({"a": 1})), ("[1]", JsonBlock([1]))],
    ids=["text", "object", "list"],
)
async def test_a_program_replaces_what_the_model_sees(programs: Programs, content: str, block: TextBlock) -> None:
    programs.sh(f"printf '%s' '{{\"content\": {content}}}'", stage="post")
    bench = programs.bench()

    result = await bench.call("test.echo", text="long")

    assert (result.content, result.data, result.ok) == ((block,), "long", True)
    assert (hook_runs(bench)[0]["stage"], hook_runs(bench)[0]["outcome"]) == ("post", "replaced")


@pytest.mark.spec("EXE-13")
async def test_after_a_call_a_program_learns_the_result(programs: Programs) -> None:
    programs.python("open('told.json', 'w').write(json.dumps(told))", stage="post")

    await programs.bench().call("test.echo", text="said")

    told: Any = parse_strict((programs.home / "told.json").read_bytes())
    assert (told["stage"], told["effect_id"], told["result"]) == (
        "post",
        "run_1/call_1",
        {"is_error": False, "error": None, "summary": "said", "content": ["said"]},
    )


@pytest.mark.spec("EXE-13", "EXE-09")
async def test_what_a_program_says_on_stderr_is_progress(programs: Programs) -> None:
    programs.sh("echo 'looking at it' >&2; echo 'still looking' >&2")
    bench = programs.bench()

    await bench.call("test.echo", text="x")

    said = [(data["hook"], data["message"]) for kind, data in bench.log.notes if kind == "tool_progress"]
    assert said == [("check", "looking at it"), ("check", "still looking")]


@pytest.mark.spec("EXE-13", "CMD-05")
async def test_a_program_gets_an_allowlist_of_variables(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEAM", "OTHER", "TOKEN", "OWN_TOKEN"):
        monkeypatch.setenv(name, f"{name}-value")
    programs.python("open('env.json', 'w').write(json.dumps(dict(os.environ)))", env=("OWN_TOKEN",))
    commands = CommandsConfig(env=("TEAM", "TOKEN"), secret_env=("TOKEN", "OWN_TOKEN"))
    bench = make_bench([make_tool()], project=programs.project, hooks=programs.hooks(commands=commands))

    await bench.call("test.echo", text="x")

    env: Any = parse_strict((programs.home / "env.json").read_bytes())
    assert (env.get("TEAM"), env.get("OWN_TOKEN")) == ("TEAM-value", "OWN_TOKEN-value")
    assert not {"OTHER", "TOKEN"} & env.keys()


@pytest.mark.spec("EXE-13")
async def test_hooks_are_about_the_tools_that_their_glob_and_tags_cover(programs: Programs) -> None:
    programs.sh("exit 1", name="elsewhere", tools="code.*")
    programs.sh("exit 1", name="tagged", tags=("mcp",))

    assert (await programs.bench().call("test.echo", text="x")).ok


def _config(**more: Any) -> HooksConfig:
    return HooksConfig(pre=(HookConfig(name="good", command=("true",)), HookConfig(name="bad", **more)))


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/nowhere/hook",), "/nowhere/hook"),
        (("no-such-program-anywhere",), "not a program on PATH"),
        (("hooks/check.sh",), "relative path"),
        (("./check.sh",), "relative path"),
        (("/etc",), "hooks.pre[1]"),
        (("/etc/passwd",), "not executable"),
        (("true", "a\0b"), "NUL"),
    ],
    ids=str,
)
def test_a_program_that_cannot_be_run_is_an_error_at_start(
    tmp_path: Path, command: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidConfigError, match=r"hooks\.pre\[1\]") as caught:
        hooks_of(_config(command=command), ProcessRunner(), home=tmp_path)

    assert words in str(caught.value)


@pytest.mark.spec("EXE-13")
def test_two_hooks_of_one_name_are_an_error_at_start(tmp_path: Path) -> None:
    pre = (HookConfig(name="one", command=("true",)),)
    post = (HookConfig(name="one", command=("true",)),)

    with pytest.raises(InvalidConfigError, match=r"hooks\.post\[0\]: another hook is called 'one'"):
        hooks_of(HooksConfig(pre=pre, post=post), ProcessRunner(), home=tmp_path)


@pytest.mark.spec("EXE-13")
async def test_a_home_that_went_away_denies(programs: Programs) -> None:
    programs.sh("")
    bench = programs.bench()
    for path in programs.home.iterdir():
        path.unlink()
    programs.home.rmdir()

    assert "the hook 'check' cannot be started" in await denied(bench)


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
    assert refused.error.details == {"hook": configured.name}
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
