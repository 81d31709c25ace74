"""What declared tools print: shown short, stored where it is longer, kept when the call ends early."""

import asyncio
from pathlib import Path

import pytest

from soong.shared.sandbox.redact import redactor
from soong.shared.tools.ports import ToolCall
from soong.shared.tools.result import ArtifactRef, ErrorType
from tests.unit.tools.parts import Artifacts, text_of
from tests.unit.toolsets.declaring import Declared, make_declared
from tests.waiting import until

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

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_OUTPUT
    assert str(result.metadata["stdout"]).endswith("the end")
    assert declared.stored[0].startswith(b"line 0\n")


@pytest.mark.spec("CMD-03.e", "EXE-08.f", "EXE-07.b")
async def test_at_the_time_limit_the_output_so_far_is_kept(declared: Declared) -> None:
    declared.python(
        SAY.format(lines=5000) + "print('waiting', file=sys.stderr, flush=True); time.sleep(60)", timeout_ms=2500
    )

    result = await declared.call()

    assert result.error is not None
    assert (result.error.type, result.metadata["partial"]) == (ErrorType.TIMEOUT, True)
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
    assert ended.error is not None
    assert (ended.error.type, ended.metadata["partial"]) == (ErrorType.ABORTED, True)
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
