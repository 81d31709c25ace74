"""What a server answers as a result of a call (MCP-01.c): text, structured content, bytes as artifacts, links.

All of it was written by strangers: it is made inert for terminals, named by what it is, and bounded.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json
from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.sandbox.redact import redactor
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.definition import ToolContext
from soong.shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ErrorType,
    JsonBlock,
    TextBlock,
    ToolFailure,
    ToolResult,
)

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_BLOCKS: Final = 1_000
_MEDIA_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,60}", re.ASCII)
_ENDINGS: Final = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "audio/wav": "wav"}
_MAX_LINK_CHARS: Final = 2_000


def without_secrets(result: ToolResult, secrets: tuple[str, ...]) -> ToolResult:
    """Return a result without the tokens of the login by which it came, which a server may repeat."""
    if not secrets:
        return result
    clean = redactor(secrets)
    content = tuple(
        replace(block, text=clean.text(block.text))
        if isinstance(block, TextBlock)
        else replace(block, value=clean.value(block.value))
        if isinstance(block, JsonBlock)
        else block
        for block in result.content
    )
    error = None if result.error is None else replace(result.error, message=clean.text(result.error.message))
    return replace(
        result, content=content, summary=clean.text(result.summary), data=clean.value(result.data), error=error
    )


@dataclass(slots=True)
class ResultReader:
    """Reads the content of one call's answer. ``label`` names its artifacts."""

    context: ToolContext
    label: str
    _artifacts: int = 0

    async def result(self, answer: "CallToolResult") -> ToolResult:
        """Return the result of a tool call."""
        content = await self.blocks(answer.content)
        structured: Json = answer.structured_content
        if answer.is_error:
            words = "\n".join(block.text for block in content if isinstance(block, TextBlock)).strip()
            message = words or "the server reports an error without words"
            failure = ToolFailure(ErrorType.EXECUTION_FAILED, message)
            return ToolResult("", content or (TextBlock(message),), _line(message), structured, error=failure)
        if structured is not None and not any(isinstance(block, TextBlock) for block in content):
            content = (JsonBlock(structured), *content)
        kept = tuple(block for block in content if isinstance(block, ArtifactRef))
        words = next((block.text for block in content if isinstance(block, TextBlock)), "")
        return ToolResult("", content, _line(words) or "done", structured, kept)

    async def blocks(self, content: Iterable[Any]) -> tuple[ContentBlock, ...]:
        """Return content blocks of a server as ours."""
        blocks: list[ContentBlock] = []
        for place, each in enumerate(content):
            if place == MAX_BLOCKS:
                blocks.append(TextBlock(f"[more than {MAX_BLOCKS} parts; the rest is left out]"))
                break
            blocks.append(await self._block(each))
        return tuple(blocks)

    async def _block(self, each: Any) -> ContentBlock:
        match each.type:
            case "text":
                return TextBlock(inert_text(each.text))
            case "image" | "audio":
                return await self._bytes(each.data, each.mime_type, "")
            case "resource":
                return await self.resource(each.resource)
            case "resource_link":
                return TextBlock(_link(each))
            case other:
                return TextBlock(f"[content of the unknown type {str(other)[:40]!r} is left out]")

    async def resource(self, resource: Any) -> ContentBlock:
        """Return the content of a resource: its text, or an artifact of its bytes."""
        text = getattr(resource, "text", None)
        if isinstance(text, str):
            return TextBlock(inert_text(text))
        return await self._bytes(resource.blob, resource.mime_type, str(resource.uri))

    async def _bytes(self, encoded: str, media_type: str | None, origin: str) -> ContentBlock:
        kind = media_type if media_type and _MEDIA_TYPE.fullmatch(media_type) else "application/octet-stream"
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            return TextBlock(f"[{kind}: the server sent what is not base64]")
        self._artifacts += 1
        name = f"{self.label}-{self._artifacts}.{_ENDINGS.get(kind, 'bin')}"
        try:
            ref = await self.context.store_artifact(data, kind, name)
        except (OSError, SoongError) as error:
            return TextBlock(f"[{kind}, {len(data)} bytes: it could not be stored: {error}]")
        about = f" of {inert_text(origin)[:_MAX_LINK_CHARS]}" if origin else ""
        return ref if ref is not None else TextBlock(f"[{kind}, {len(data)} bytes{about}]")


def _link(link: Any) -> str:
    facts = [str(link.uri), link.name, link.description or "", link.mime_type or ""]
    words = ", ".join(inert_text(str(each)) for each in facts if each)
    return f"resource: {words[:_MAX_LINK_CHARS]}"


def _line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
