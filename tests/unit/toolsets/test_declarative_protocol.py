"""Declared tools: fields in their arguments, and what they print."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ArtifactRef, ErrorType, JsonBlock, TextBlock, ToolError, ToolResult
from soong.shared.toolsets.declarative.protocol import in_a_line, last_lines, read_result
from soong.shared.toolsets.declarative.template import TemplateArgument, render_arguments, render_shell, shell_problems
from tests.unit.tools.parts import Artifacts, error_of, text_of
from tests.unit.toolsets.declaring import Declared, make_declared
from tests.waiting import until

ESC = "\x1b"


def read(document: object) -> ToolResult:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_result("call_ours", text, 100_000)


def problem(document: object) -> str:
    with pytest.raises(ToolError) as caught:
        read(document)
    assert caught.value.failure.type is ErrorType.INVALID_OUTPUT
    return str(caught.value)


@pytest.mark.spec("CMD-03.b", "CMD-03.c", "RES-01.a")
def test_a_whole_result_is_taken_over() -> None:
    result = read(
        {
            "tool_call_id": "call_of_another",
            "is_error": False,
            "content": [{"kind": "text", "text": "two\nlines"}, {"kind": "json", "value": {"a": [1]}}],
            "summary": "done well",
            "data": {"n": 1},
            "artifacts": [],
            "error": None,
            "metadata": {"version": "1.2"},
        }
    )

    assert result == ToolResult(
        "call_ours",
        (TextBlock("two\nlines"), JsonBlock({"a": [1]})),
        "done well",
        {"n": 1},
        metadata={"tool": {"version": "1.2"}},
    )


@pytest.mark.spec("CMD-03")
@pytest.mark.parametrize(
    ("document", "content", "summary"),
    [
        ({"summary": "made it"}, (TextBlock("made it"),), "made it"),
        ({"data": {"n": 1}}, (JsonBlock({"n": 1}),), "object"),
        ({"data": 0}, (JsonBlock(0),), "done"),
        ({"data": None}, (JsonBlock(None),), "null"),
        ({"data": None, "summary": "found none"}, (TextBlock("found none"),), "found none"),
        ({"content": [{"kind": "text", "text": "first\nsecond"}]}, (TextBlock("first\nsecond"),), "first"),
    ],
)
def test_what_a_tool_leaves_out_is_made_of_what_it_says(
    document: dict[str, Any], content: tuple[object, ...], summary: str
) -> None:
    result = read(document)

    assert (result.content, result.summary) == (content, summary)


# Written here once more: which errors are a tool's own to report is what these tests hold the product to.
CLAIMABLE = frozenset(
    map(
        ErrorType,
        [
            *(
                "execution_failed",
                "invalid_input",
                "file_not_found",
                "not_regular_file",
                "binary_file",
                "path_conflict",
            ),
            *(
                "text_not_found",
                "ambiguous_edit",
                "patch_apply_failed",
                "limit_exceeded",
                "server_unavailable",
                "timeout",
            ),
        ],
    )
)


@pytest.mark.spec("CMD-03")
@pytest.mark.parametrize("type_", sorted(CLAIMABLE), ids=str)
def test_an_error_of_the_tools_own_work_keeps_its_type(type_: ErrorType) -> None:
    result = read({"error": {"type": type_.value, "message": "no", "hint": "yes", "details": {"a": 1}}, "data": [1]})

    assert result.error is not None
    assert (result.error.type, result.error.message, result.error.hint) == (type_, "no", "yes")
    assert result.error.details == {"a": 1}
    assert result.data == [1]


@pytest.mark.spec("CMD-03", "RES-05")
@pytest.mark.parametrize("type_", [*sorted(set(ErrorType) - CLAIMABLE), "surprise"], ids=str)
def test_a_tool_does_not_speak_for_the_core(type_: str) -> None:
    result = read({"error": {"type": str(type_), "message": "no", "retryable": True}})

    assert error_of(result).type is ErrorType.EXECUTION_FAILED
    assert error_of(result).details == {"said_type": str(type_), "said_retryable": True}
    assert not error_of(result).retryable


@pytest.mark.spec("CMD-03.b")
@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({}, "$: says nothing"),
        ({"summary": None}, "$: says nothing"),
        ([], "$: must be an object"),
        ("done", "$: must be an object"),
        (None, "$: must be an object"),
        ({"output": "x"}, "$: has unknown fields 'output'"),
        ({"summary": "x", "ok": True}, "$: has unknown fields 'ok'"),
        ({"summary": "x", "context_nodes": []}, "$: has unknown fields 'context_nodes'"),
        ({"summary": 1}, "$.summary: must be string"),
        ({"is_error": "no", "summary": "x"}, "$.is_error: must be boolean"),
        ({"is_error": False, "error": {"message": "x"}}, "$.is_error: is false next to an error"),
        ({"error": "failed"}, "$.error: must be object"),
        ({"error": {"type": "timeout"}}, "$.error: lacks 'message'"),
        ({"error": {"message": "x", "code": 1}}, "$.error: has unknown fields 'code'"),
        ({"error": {"message": "x", "retryable": "yes"}}, "$.error.retryable: must be boolean"),
        ({"content": "text"}, "$.content: must be array"),
        ({"content": ["text"]}, "$.content[0]: must be object"),
        ({"content": [{"type": "text", "text": "x"}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "text", "text": 1}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "text", "text": "x", "role": "system"}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "artifact_ref", "digest": "a"}]}, "$.content[0]: must be"),
        ({"content": [{"kind": "text", "text": ""}] * 101}, "$.content: breaks maxItems 100"),
        ({"summary": "x", "artifacts": [{"digest": "a"}]}, "$.artifacts: breaks maxItems 0"),
        ({"summary": "x", "metadata": []}, "$.metadata: must be object"),
        ({"summary": "x", "metadata": {"a": "b" * 20_000}}, "$.metadata: has 20008 bytes"),
    ],
    ids=str,
)
def test_another_shape_is_invalid_output_that_names_the_place(document: object, expected: str) -> None:
    assert expected in problem(document)


@pytest.mark.spec("CMD-03")
@pytest.mark.parametrize(
    "hostile",
    [
        {"summary": f"{ESC}]0;title\x07{ESC}[2J{ESC}[31mred{ESC}[0m"},
        {"content": [{"kind": "text", "text": f"{ESC}]8;;http://x{ESC}\\red\x9b2J"}]},
        {"error": {"message": f"{ESC}]52;c;ZXZpbA==\x07red\x00", "hint": f"{ESC}c"}},
        {"is_error": True, "summary": f"{ESC}[1;1Hred"},
    ],
    ids=["summary", "content", "error", "summary-of-error"],
)
def test_no_text_of_a_tool_reaches_a_terminal_as_a_command(hostile: dict[str, Any]) -> None:
    result = read(hostile)

    texts = [result.summary, *(block.text for block in result.content if isinstance(block, TextBlock))]
    texts += [result.error.message, result.error.hint] if result.error else []
    assert any("red" in text for text in texts)
    assert not any(char in text for text in texts for char in (ESC, "\x07", "\x9b", "\0"))


def test_text_for_people_is_one_line_of_bounded_length() -> None:
    assert in_a_line(f"a\n\tb {ESC}[1mc", 100) == "a b c"
    assert in_a_line("x" * 50, 10) == "x" * 10 + "…"


def test_a_log_is_cut_between_lines_and_keeps_its_end() -> None:
    log = "".join(f"line {number}\n" for number in range(1000))

    words = last_lines(log, 100)

    assert words.startswith("[…]\nline ")
    assert words.endswith("line 999")
    assert len(words) <= 104
    assert last_lines(f"{'x' * 1000}\nend", 300) == "[a line of 1000 characters]\nend"


NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(), st.booleans()
)


def arguments(*texts: str) -> list[TemplateArgument]:
    return [TemplateArgument.parse(text) for text in texts]


def rendered(*texts: str, **values: Json) -> list[str]:
    return render_arguments(arguments(*texts), values)


def problems(*texts: str) -> list[int]:
    return [position for position, _ in shell_problems(arguments(*texts))]


@pytest.mark.spec("CMD-04")
@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("{{x}}", "plain", "plain"),
        ("--name={{x}}", "a b", "--name=a b"),
        ("{{x}}/{{x}}", "v", "v/v"),
        ("{{x}}", True, "true"),
        ("{{x}}", False, "false"),
        ("{{x}}", 7, "7"),
        ("n={{x}}", -1.5, "n=-1.5"),
        ("{{x}}", "", ""),
        ("{not a field} {x.__class__} %s $x", "v", "{not a field} {x.__class__} %s $x"),
        ("{{{x}}}", "v", "{v}"),
        ("}}{{x}}", "v", "}}v"),
    ],
)
def test_a_value_takes_the_place_of_its_field(text: str, value: Json, expected: str) -> None:
    assert rendered(text, x=value) == [expected]


@pytest.mark.spec("CMD-04.c")
def test_an_element_whose_field_is_absent_is_left_out() -> None:
    assert rendered("a", "--x={{x}}", "{{y}}-{{x}}", "{{y}}", y="v") == ["a", "v"]


@pytest.mark.parametrize(
    "text", ["{{", "{{}}", "{{ x }}", "{{x.y}}", "{{x[0]}}", "{{{{x}}}}", "{{x", "{{.Names}}", "{{1}}"]
)
def test_two_braces_that_begin_no_field_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="begins no field"):
        TemplateArgument.parse(text)


@pytest.mark.spec("CMD-04")
@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [
        (("{{x}}",), False),
        (("--", "{{x}}"), True),
        (("a", "--", "b", "{{x}}"), True),
        (("{{x}}", "--"), False),
        (("--{{y}}", "{{x}}"), False),
        (("--name={{x}}",), True),
        (("./{{x}}",), True),
        (("{{y}}{{x}}",), False),
    ],
)
def test_a_value_becomes_no_option_unless_the_definition_allows_it(texts: tuple[str, ...], is_taken: bool) -> None:
    if is_taken:
        assert "-rf" in "".join(rendered(*texts, x="-rf", y=""))
    else:
        with pytest.raises(ToolError, match="would be taken for an option") as caught:
            rendered(*texts, x="-rf", y="")
        assert caught.value.failure.type is ErrorType.INVALID_INPUT


@pytest.mark.spec("CMD-04")
@given(st.dictionaries(NAMES, VALUES))
def test_the_text_of_a_shell_line_holds_no_value(values: dict[str, Json]) -> None:
    texts = ("grep --", "{{a}}", "p={{b}}", "|", "sort -u -- ", "{{c}}")
    harmless = dict.fromkeys(values, "x")

    line = render_shell(arguments(*texts), values)

    assert line.text == render_shell(arguments(*texts), harmless).text
    assert len(line.values) == len(values)


def test_a_shell_line_is_shown_with_each_value_quoted_in_its_place() -> None:
    line = render_shell(arguments("git log", "--grep={{a}}", "|", "wc", "{{b}}"), {"a": "it's; $(id)", "b": "x y"})

    assert line.text == 'git log --grep="${1}" | wc "${2}"'
    assert line.values == ("it's; $(id)", "x y")
    assert line.shown == "git log --grep='it'\"'\"'s; $(id)' | wc 'x y'"


@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [
        (("cat", "--", "{{x}}"), True),
        (("cat", "--", "{{x}}", "|", "grep", "{{x}}"), False),
        (("cat -- a; grep", "{{x}}"), False),
    ],
)
def test_a_new_command_of_a_shell_line_has_options_again(texts: tuple[str, ...], is_taken: bool) -> None:
    if is_taken:
        assert render_shell(arguments(*texts), {"x": "-v"}).values == ("-v",)
    else:
        with pytest.raises(ToolError, match="option"):
            render_shell(arguments(*texts), {"x": "-v"})


@pytest.mark.spec("CMD-04")
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("git", "log", "{{x}}"), []),
        (("find . -name", "{{x}}"), []),
        (("awk '{print $1}'", "{{x}}"), []),
        (("grep '[[:space:]]'", "--", "{{x}}"), []),
        (("git push -c", "{{x}}"), []),
        (("echo 'a", "b'", "{{x}}"), []),
        (("echo \\'", "{{x}}"), []),
        (("echo", '"{{x}}"'), [1]),
        (("echo", '"', "{{x}}", '"'), [2]),
        (("echo 'a", "{{x}}", "b'"), [1]),
        (("echo", "$({{x}})"), [1]),
        (("echo", "{{x}};"), [1]),
        (("echo 'a",), [0]),
        (("eval", "{{x}}"), [1]),
        (("true; . ", "{{x}}"), [1]),
        (("sh -c", "{{x}}"), [1]),
        (("bash -e -c", "{{x}}"), [1]),
        (("echo $((", "{{x}}", "))"), [1]),
        (("[[ ", "{{x}}", "-eq 1 ]]"), [1]),
        (("eval 'echo a'",), []),
    ],
    ids=str,
)
def test_a_field_of_a_shell_line_is_where_it_is_one_word(texts: tuple[str, ...], expected: list[int]) -> None:
    assert problems(*texts) == expected


OK = 'print(\'{"summary": "ok"}\')'
LOG = "import sys\nfor n in range({lines}): print('log', n, file=sys.stderr)\n"
SAY = "import sys, time\nfor n in range({lines}): print('line', n)\nprint('the end', flush=True)\n"


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return make_declared(tmp_path)


@pytest.mark.spec("CMD-03.e")
async def test_a_log_that_is_shown_in_full_becomes_none(declared: Declared) -> None:
    declared.python(LOG.format(lines=20) + OK)

    result = await declared.call()

    assert (result.artifacts, declared.stored) == ((), [])
    assert "stderr_artifact" not in result.metadata


@pytest.mark.spec("CMD-03.e", "CMD-03.b")
async def test_output_that_is_no_result_is_kept(declared: Declared) -> None:
    declared.python(SAY.format(lines=2000))

    result = await declared.call()

    assert error_of(result).type is ErrorType.INVALID_OUTPUT
    assert str(result.metadata["stdout"]).endswith("the end")
    assert declared.stored[0].startswith(b"line 0\n")


@pytest.mark.spec("CMD-03.e", "EXE-08.f", "EXE-07.b")
async def test_at_the_time_limit_the_output_so_far_is_kept(declared: Declared) -> None:
    declared.python(
        SAY.format(lines=5000) + "print('waiting', file=sys.stderr, flush=True); time.sleep(60)", timeout_ms=2500
    )

    result = await declared.call()

    assert (error_of(result).type, result.metadata["partial"]) == (ErrorType.TIMEOUT, True)
    assert "the end" in text_of(result)
    assert len(result.artifacts) == 1
    assert b"line 0\n" in declared.stored[0]
    assert declared.stored[0].endswith(b"stderr:\nwaiting\n")


@pytest.mark.spec("CMD-03.e", "EXE-07.b")
@pytest.mark.parametrize(("lines", "artifacts"), [(3, 0), (5000, 1)], ids=["short", "long"])
async def test_an_aborted_call_keeps_the_output_so_far(declared: Declared, lines: int, artifacts: int) -> None:
    declared.python(SAY.format(lines=lines) + "open('said', 'w'); time.sleep(60)")
    bench = declared.made_bench()
    call = asyncio.ensure_future(bench.pipeline.execute(ToolCall("call_1", "team.tool", {})))
    await until((declared.project / "said").exists, 10)
    await asyncio.sleep(0.2)  # its last word is on the way

    call.cancel("a person pressed stop")
    with pytest.raises(asyncio.CancelledError):
        await call

    ended = bench.ended
    assert (error_of(ended).type, ended.metadata["partial"]) == (ErrorType.ABORTED, True)
    assert "the end" in text_of(ended)
    assert len(ended.artifacts) == artifacts
    assert all(b"line 0\n" in stored for stored in declared.stored)


@pytest.mark.spec("CMD-03.e", "EVT-05.c")
@pytest.mark.parametrize("shift", range(0, 40, 7))
async def test_no_secret_is_in_what_is_stored_wherever_a_stream_is_cut(declared: Declared, shift: int) -> None:
    declared.redactor = redactor(["canary-secret-value"])
    token = "ghp_" + "a1" * 20
    code = (
        "import sys\n"
        f"line = '.' * 40 + ' canary-secret-value {token}\\n'\n"
        "for stream in (sys.stderr, sys.stdout): stream.write(line * 10_000)\n"
        "sys.exit(1)"
    )
    declared.python(code, stderr_limit_bytes=30_000 + shift, stdout_limit_bytes=2_000_000)

    result = await declared.call()

    assert len(declared.stored) == 2
    for text in (*declared.stored, repr(result).encode()):
        assert b"canary" not in text
        assert token[4:12].encode() not in text


@pytest.mark.spec("CMD-03.e")
async def test_output_that_cannot_be_stored_keeps_no_call_from_its_result(
    declared: Declared, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> ArtifactRef:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Artifacts, "put", full)
    declared.python(LOG.format(lines=2000) + OK)

    result = await declared.call()

    assert (result.ok, result.artifacts) == (True, ())
    assert "No space left" in str(result.metadata["stderr_artifact_error"])
