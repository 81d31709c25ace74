"""From a command that has ended to its result: what the model reads, what programs get (CMD-01, RES-03)."""

import signal
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from soong.shared.core.jsontext import Json
from soong.shared.sandbox.command import Finished, Stream
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.sandbox.transcript import OutputTranscript
from soong.shared.tools.result import ContentBlock, ErrorType, TextBlock, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.toolsets.code.command_call import CommandCall

LONG_CHARS: Final = 4_000
"""Output over this is led by its last part: a preview is the beginning of a text, and errors are at the end."""
SUMMARY_CHARS: Final = 2_000
SANDBOX_HINT: Final = "do without it; only the user can open the sandbox ([commands] in config.toml, docs/sandbox.md)"


def result_of(
    tool_call_id: str, call: CommandCall, finished: Finished, transcript: OutputTranscript, duration_ms: int
) -> ToolResult:
    """Return the result: an error for any exit code but zero, with the last words of the program."""
    data: dict[str, Json] = {
        "exit_code": finished.code,
        "ended": finished.ended,
        "duration_ms": duration_ms,
        "stdout_bytes": transcript.said["stdout"],
        "stderr_bytes": transcript.said["stderr"],
        "truncated": transcript.is_cut(),
        "sandbox": finished.sandbox or "none",
    }
    blocks = _blocks(transcript)
    if finished.left_running:
        data["left_running"] = finished.left_running
        blocks.append(TextBlock(f"[{finished.left_running} of its processes could not be ended]"))
    if finished.ended == "timeout":
        failure = ToolFailure(ErrorType.TIMEOUT, f"no end within {call.timeout_ms / 1000:g} s", "ask for less at once")
        return _failed(tool_call_id, failure, {**data, "partial": True}, blocks)
    if finished.code != 0:
        return _failed(tool_call_id, _failure(call, finished, transcript), data, blocks)
    summary = f"exit code 0, {transcript.said['stdout']} bytes"
    return ToolResult(tool_call_id, tuple(blocks) or (TextBlock("[exit code 0, no output]"),), summary, data)


def partial_of(transcript: OutputTranscript) -> str:
    """Return what was said so far as one text, for a result that comes before the end."""
    return "\n".join(block.text for block in _blocks(transcript) if isinstance(block, TextBlock))


def _failed(tool_call_id: str, failure: ToolFailure, data: dict[str, Json], blocks: list[ContentBlock]) -> ToolResult:
    metadata: dict[str, Json] = {"partial": True} if data.pop("partial", False) else {}
    head = refusal(tool_call_id, failure, data, **metadata)
    return replace(head, content=(*head.content, *blocks))


def _failure(call: CommandCall, finished: Finished, transcript: OutputTranscript) -> ToolFailure:
    name = Path(call.given_name).name
    how = f"{name} ended with exit code {finished.code}"
    if finished.code < 0:
        how = f"{name} was ended by signal {-finished.code}{_signal_name(-finished.code)}"
    stderr = transcript.shown("stderr").strip()[-SUMMARY_CHARS:]
    last = (stderr or transcript.shown("stdout").strip()[-SUMMARY_CHARS:]).rpartition("\n")[2].strip()
    details: dict[str, Json] = {"exit_code": finished.code, "stderr": stderr}
    if finished.denial:
        problem = f"{how}: {last}; {finished.denial}" if last else f"{how}; {finished.denial}"
        return ToolFailure(ErrorType.SANDBOX_DENIED, problem, SANDBOX_HINT, details=details)
    return ToolFailure(ErrorType.EXECUTION_FAILED, f"{how}: {last}" if last else how, details=details)


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _blocks(transcript: OutputTranscript) -> list[ContentBlock]:
    """Return output and then stderr, which is a log: each led by its last part where it is long."""
    streams: tuple[tuple[Stream, str], ...] = (("stdout", ""), ("stderr", "stderr:\n"))
    return [block_of(transcript, stream, title) for stream, title in streams if transcript.said[stream]]


def block_of(transcript: OutputTranscript, stream: Stream, title: str) -> TextBlock:
    """Return what was said on a stream, led by its last part where it is long."""
    raw = transcript.raw(stream)
    original = (title + raw).encode("utf-8", "surrogateescape")
    if "\0" in raw and len(raw) > LONG_CHARS:
        return TextBlock(f"{title}[{transcript.said[stream]} bytes of other data than text]", original=original)
    text = inert_text(raw)
    if len(text) > LONG_CHARS:
        tail = text[-LONG_CHARS // 2 :].partition("\n")[2]
        text = f"[the end, everything follows]\n{tail}\n[everything]\n{text}"
    return TextBlock(title + text, original=original)
