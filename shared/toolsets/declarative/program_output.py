"""What the program of a declared tool says: kept within its limits, shown short, stored where it is longer (CMD-03.e).

Of each stream the beginning is kept up to the tool's limit, and the end of a longer one
(:mod:`soong.shared.sandbox.transcript`). No secret is in what is returned or stored, also where a stream was cut.
"""

from functools import partial
from threading import Event
from typing import Final

import msgspec

from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json
from soong.shared.core.value import Value
from soong.shared.sandbox.command import Stream
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.sandbox.threads import run_blocking
from soong.shared.sandbox.transcript import STREAMS, OutputTranscript
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.result import ArtifactRef
from soong.shared.toolsets.code.command_result import block_of
from soong.shared.toolsets.declarative.definition import DeclaredTool
from soong.shared.toolsets.declarative.plaintext import last_lines

MAX_SHOWN_CHARS: Final = 4_000
MAX_PROBLEM_CHARS: Final = 200


class KeptOutput(Value):
    """``facts`` are for the metadata of a result: of each stream its last lines, its size, and the digest of its
    artifact, if the lines are not all of it.
    """

    facts: dict[str, Json] = msgspec.field(default_factory=dict)
    artifacts: tuple[ArtifactRef, ...] = ()


class ProgramOutput:
    """Collects both streams of one call; :meth:`hear` takes the pieces as they come."""

    def __init__(self, tool: DeclaredTool, redactor: Redactor) -> None:
        limits: dict[Stream, int] = {"stdout": tool.stdout_limit_bytes, "stderr": tool.stderr_limit_bytes}
        self._tool = tool.name
        self._redactor = redactor
        self._transcripts = {stream: OutputTranscript(limit, redactor) for stream, limit in limits.items()}

    def hear(self, stream: Stream, piece: bytes) -> None:
        self._transcripts[stream].hear(stream, piece)

    def so_far(self) -> str:
        """Return what was said so far as one text, for a result that comes before the end."""
        titled: tuple[tuple[Stream, str], ...] = (("stdout", ""), ("stderr", "stderr:\n"))
        said = [(stream, title) for stream, title in titled if self._said(stream)]
        return "\n".join(block_of(self._transcripts[stream], stream, title).text for stream, title in said)

    def last_lines(self, stream: Stream, max_chars: int) -> str:
        """Return the last lines of a stream as text for a reader."""
        return last_lines(self._text(stream), max_chars)

    async def kept(self, context: ToolContext, *, has_stdout: bool) -> KeptOutput:
        """Return what is kept of stderr, and of stdout where it is not the result; store what is too long to be shown.

        What cannot be stored keeps no call from its result: the facts say why.
        """
        facts: dict[str, Json] = {}
        artifacts: list[ArtifactRef] = []
        for stream in STREAMS if has_stdout else STREAMS[1:]:
            if not self._said(stream):
                continue
            shown, unshown = await run_blocking(partial(self._shown, stream))
            if shown:
                facts |= {stream: shown, f"{stream}_bytes": self._said(stream)}
            if not unshown:
                continue
            try:
                ref = await self._stored(context, stream, unshown)
            except (OSError, SoongError) as error:
                facts[f"{stream}_artifact_error"] = str(error)[:MAX_PROBLEM_CHARS]
                continue
            if ref is not None:
                facts[f"{stream}_artifact"] = ref.digest
                artifacts.append(ref)
        return KeptOutput(facts, tuple(artifacts))

    async def _stored(self, context: ToolContext, stream: Stream, data: bytes) -> ArtifactRef | None:
        media_type, ending = ("application/octet-stream", "bin") if b"\0" in data else ("text/plain", "txt")
        name = f"{self._tool}-{context.tool_call_id}-{stream}.{ending}"
        return await context.store_artifact(data, media_type, name)

    def _shown(self, stream: Stream, _stop: Event) -> tuple[str, bytes]:
        """Return the last lines of a stream and, if they are not all of it, the bytes that were kept."""
        text = self._text(stream)
        shown = last_lines(text, MAX_SHOWN_CHARS)
        if shown == text.strip():
            return shown, b""
        return shown, self._transcripts[stream].raw(stream).encode("utf-8", "surrogateescape")

    def _text(self, stream: Stream) -> str:
        # Again, as text: an escape sequence inside a secret hides it in the bytes.
        return self._redactor.text(inert_text(self._transcripts[stream].raw(stream)))

    def _said(self, stream: Stream) -> int:
        return self._transcripts[stream].said[stream]
