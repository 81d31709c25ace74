"""Hook programs that misbehave: each denies the call it was asked about, nothing lives on, the process is well."""

import asyncio
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.sandbox.redact import redactor
from soong.shared.tools.definition import HandlerOutput, Target, ToolContext
from soong.shared.tools.result import ErrorType, TextBlock
from tests.unit.sandbox.families import is_alive
from tests.unit.tools.hook_programs import Programs, denied, hook_runs
from tests.unit.tools.parts import PipelineHarness, make_tool
from tests.waiting import until

SECRET = "hunter2-is-no-password"


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


async def denied_by_check(bench: PipelineHarness) -> str:
    message = await denied(bench)
    assert "the hook 'check'" in message
    return message


def progress_of(bench: PipelineHarness) -> list[str]:
    return [str(data["message"]) for kind, data in bench.log.notes if kind == "tool_progress"]


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("echo hello", "not one JSON document"),
        ("echo '{}{}'", "not one JSON document"),
        ('printf \'{"action": "al\'', "not one JSON document"),
        ("echo '{\"action\": NaN}'", "not one JSON document"),
        ('echo \'{"action": "allow", "action": "deny"}\'', "not one JSON document"),
        ("printf '\\377\\376'", "not one JSON document"),
        ("yes '[' | head -c 100000", "not one JSON document"),
        ("echo '[]'", "no usable answer"),
        ("echo 'true'", "no usable answer"),
        ('echo \'{"action": "maybe"}\'', "action"),
        ('echo \'{"decision": "allow"}\'', "decision"),
        ('echo \'{"content": "for after the call"}\'', "content"),
        ("echo '{\"v\": 2}'", "v:"),
        ("echo '{\"input\": [1]}'", "input"),
        ("echo '{\"reason\": 3}'", "reason"),
        ('echo \'{"context": "text"}\'', "context"),
        ("echo '{\"context\": [1]}'", "context"),
        ("printf '{\"reason\": \"'; yes 'a' | head -c 50000 | tr -d '\\n'; printf '\"}'", "10000 characters"),
        ("exit 3", "exit code 3"),
        ('echo \'{"action": "allow"}\'; exit 1', "exit code 1"),
        ("kill -9 $$", "died of signal 9"),
        ("yes", "more than 1048576 bytes"),
    ],
    ids=lambda value: value[:24],
)
async def test_an_answer_that_is_none_denies(programs: Programs, body: str, words: str) -> None:
    programs.sh(body)
    bench = programs.bench()

    assert words in await denied_by_check(bench)
    assert (hook_runs(bench)[0]["outcome"], len(hook_runs(bench))) == ("deny", 1)


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize(
    "body", ["echo hello", "exit 3", 'echo \'{"action": "deny"}\'', "echo '{\"content\": 3}'", "yes"]
)
async def test_after_the_call_an_answer_that_is_none_changes_nothing_and_is_noted(
    programs: Programs, body: str
) -> None:
    programs.sh(body, stage="post")
    bench = programs.bench()

    result = await bench.call("test.echo", text="x")

    assert (result.ok, result.content) == (True, (TextBlock("x"),))
    assert hook_runs(bench)[0]["failure"] in ("failed", "nonsense")
    assert hook_runs(bench)[0]["reason"]


@pytest.mark.spec("EXE-13")
async def test_a_program_that_floods_its_output_is_ended_and_costs_no_memory(programs: Programs) -> None:
    programs.sh("yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
    bench = programs.bench()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.monotonic()

    await denied_by_check(bench)

    assert time.monotonic() - began_s < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 * 1024


@pytest.mark.spec("EXE-13")
async def test_a_program_that_floods_stderr_is_heard_a_bounded_number_of_times(programs: Programs) -> None:
    programs.sh("yes 'line' | head -n 100000 >&2; echo '{}'")
    bench = programs.bench()

    assert (await bench.call("test.echo", text="x")).ok
    assert len(progress_of(bench)) == 50


@pytest.mark.spec("EXE-13")
async def test_a_program_that_never_reads_its_input_answers_all_the_same(programs: Programs) -> None:
    programs.sh('exec 0<&-; echo \'{"action": "ask"}\'')
    bench = programs.bench()

    assert (await bench.call("test.echo", text="x" * 4_000_000)).ok
    assert bench.gate.asked[0].hook_result == "ask"


@pytest.mark.spec("EXE-13")
async def test_a_program_that_forks_and_hangs_is_ended_with_all_it_started(programs: Programs) -> None:
    programs.sh(
        "setsid sh -c 'echo $$ >> pids; sleep 1000' </dev/null >/dev/null 2>&1 &\n"
        "sleep 1000 & echo $! >> pids; echo $$ >> pids; wait",
        timeout_s=1.0,
    )
    bench = programs.bench()

    message = await denied_by_check(bench)

    pids = [int(line) for line in (programs.home / "pids").read_text(encoding="ascii").split()]
    assert "gave no answer in 1 s" in message
    assert len(pids) == 3
    assert not [pid for pid in pids if is_alive(pid)]
    assert hook_runs(bench)[0]["failure"] == "timeout"


@pytest.mark.spec("EXE-13", "EXE-07")
@pytest.mark.parametrize("stage", ["pre", "post"])
async def test_cancelling_the_call_ends_the_program_and_all_it_started(programs: Programs, stage: str) -> None:
    programs.sh("setsid sleep 1000 & echo $! $$ >&2; wait", stage=stage)
    bench = programs.bench()
    call = asyncio.create_task(bench.call("test.echo", text="x"))
    await until(lambda: progress_of(bench))
    pids = [int(word) for word in progress_of(bench)[0].split()]

    call.cancel("the user stopped it")
    with pytest.raises(asyncio.CancelledError):
        await call

    assert bench.ended.error is not None
    assert bench.ended.error.type is ErrorType.ABORTED
    assert not [pid for pid in pids if is_alive(pid)]
    assert hook_runs(bench)[0]["outcome"] == "cancelled"


@pytest.mark.spec("EXE-13.a")
async def test_a_program_inside_the_project_is_not_run(programs: Programs) -> None:
    script = programs.sh("touch ran")
    planted = programs.project / "check.script"
    planted.write_text(f"touch {programs.home}/ran", encoding="utf-8")
    programs.pre[0] = programs.pre[0].model_copy(update={"command": ("sh", str(planted))})
    script.unlink()
    bench = programs.bench()

    assert "lies in the project" in await denied_by_check(bench)
    assert not (programs.home / "ran").exists()


@pytest.mark.spec("EXE-13.a")
async def test_a_link_to_a_program_inside_the_project_is_not_run(programs: Programs) -> None:
    planted = programs.project / "tool"
    planted.write_text(f"#!/bin/sh\ntouch {programs.home}/ran\n", encoding="utf-8")
    planted.chmod(0o755)
    link = programs.root / "tool"
    link.symlink_to(planted)
    programs.sh("")
    programs.pre[0] = programs.pre[0].model_copy(update={"command": (str(link),)})

    assert "lies in the project" in await denied_by_check(programs.bench())
    assert not (programs.home / "ran").exists()


@pytest.mark.spec("EXE-13")
async def test_what_a_failing_program_says_reaches_nobody_as_escapes_or_secrets(programs: Programs) -> None:
    hidden = f"{SECRET[:4]}\\033[0m{SECRET[4:]}"
    programs.sh(f"printf '\\033[31mred\\033]52;c;aGk=\\007 \\302\\233K {SECRET}\\rover {hidden}\\n' >&2; exit 1")
    bench = programs.bench(redactor=redactor([SECRET]))

    message = await denied_by_check(bench)

    for text in (message, *progress_of(bench), str(hook_runs(bench))):
        assert SECRET not in text
        assert not {"\x1b", "\x07", "\r", "\x9b"} & set(text)
    assert "red" in message


@pytest.mark.spec("EXE-13", "EVT-05")
async def test_a_secret_in_a_rewrite_is_in_no_event(programs: Programs) -> None:
    programs.python(f"answer(input={{'text': {SECRET!r}}}, reason={SECRET!r})")
    seen: list[str] = []

    async def look(_context: ToolContext, call_input: Any) -> HandlerOutput:
        seen.append(str(call_input["text"]))
        return None

    bench = programs.bench(make_tool(handler=look), redactor=redactor([SECRET]))

    await bench.call("test.echo", text="x")

    assert seen == [SECRET]
    assert hook_runs(bench)[0]["input_diff"] == {"text": ["x", "[redacted]"]}
    assert SECRET not in str(bench.log.notes)


@pytest.mark.spec("RES-03.c", "EXE-13")
async def test_after_a_sensitive_read_a_program_does_not_learn_what_was_read(programs: Programs) -> None:
    programs.python("open('told.json', 'w').write(json.dumps(told))", stage="post")
    tool = make_tool(target=lambda _context, _input: Target("path", "/home/.env", "/home/.env", is_sensitive=True))

    result = await programs.bench(tool).call("test.echo", text="KEY=abc")

    assert result.content == (TextBlock("KEY=abc"),)
    told = (programs.home / "told.json").read_text(encoding="utf-8")
    assert '"text": "KEY=abc"' in told  # the model's own input
    assert '"content": ["[the content of the sensitive' in told


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize("text", ["\ud800", "\u202e\x1b[2J\0", "é" * 1000], ids=["surrogate", "controls", "long"])
async def test_a_program_gets_hostile_text_as_plain_ascii_json(programs: Programs, text: Json) -> None:
    programs.python("open('told.txt', 'w').write(ascii(told['input']['text']))")
    bench = programs.bench()

    await bench.call("test.echo", text=text)

    assert (programs.home / "told.txt").read_text(encoding="ascii") == ascii(text)


@pytest.mark.spec("EXE-13")
async def test_a_program_inherits_no_descriptor_of_ours(programs: Programs) -> None:
    programs.sh("ls /proc/self/fd > fds")
    keep = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(keep, True)

    try:
        await programs.bench().call("test.echo", text="x")
    finally:
        os.close(keep)

    shown = (programs.home / "fds").read_text(encoding="ascii").split()
    assert set(shown) <= {"0", "1", "2", "3"}  # the fourth is the listing's own
