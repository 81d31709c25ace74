"""What of a result is kept: without secrets, and of a size that a model can take (RES-03, EVT-05).

Works on results whose values are plain JSON (:mod:`soong.shared.tools.results.normalize`). Secrets go before
anything is cut: half a secret is no longer recognised as one.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import SoongError
from soong.shared.core.jsontext import Json, dump
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import Redactor
from soong.shared.sandbox.terminal_text import inert_text
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.ports import ArtifactStore
from soong.shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ContextNode,
    JsonBlock,
    TextBlock,
    ToolFailure,
    ToolResult,
)

MAX_MESSAGE_CHARS: Final = 2_000
MAX_SUMMARY_CHARS: Final = 200
_SUFFIXES: Final = {"application/json": "json", "text/plain": "txt", "application/octet-stream": "bin"}


class Fitter(Value):
    """Brings content to a size a model can take. ``data`` has its own limit: it is for programs, not for a prompt."""

    max_chars: int
    max_data_chars: int
    redactor: Redactor
    artifacts: ArtifactStore | None = None

    def redact(self, result: ToolResult) -> ToolResult:
        """Return the result without secrets (EVT-05), its one-liners cut; the same object when nothing changed."""
        clean = self.redactor
        content = tuple(self._redact_block(block) for block in result.content)
        data, metadata = clean.value(result.data), clean.mapping(result.metadata)
        summary, failure = _cut(clean.text(result.summary), MAX_SUMMARY_CHARS), self._redact_failure(result.error)
        nodes = tuple(self._redact_node(node) for node in result.context_nodes)
        artifacts = tuple(self._redact_ref(ref) for ref in result.artifacts)
        pairs = (
            (data, result.data),
            (metadata, result.metadata),
            (failure, result.error),
            *zip(nodes, result.context_nodes, strict=True),
            *zip(artifacts, result.artifacts, strict=True),
        )
        is_same = all(new is old for new, old in (*pairs, *zip(content, result.content, strict=True)))
        if is_same and summary == result.summary:
            return result
        return replace(
            result,
            content=content,
            summary=summary,
            data=data,
            artifacts=artifacts,
            error=failure,
            metadata=metadata,
            context_nodes=nodes,
        )

    async def store(self, data: bytes, media_type: str, name: str) -> ArtifactRef | None:
        """Store the bytes of a result, without secrets; None where nothing is stored.

        Raises:
            OSError, SoongError: they could not be stored.
        """
        if self.artifacts is None:
            return None
        return await self.artifacts.put(self._redact_bytes(data), media_type, name)

    async def fit(self, definition: ToolDefinition, result: ToolResult) -> ToolResult:
        """Replace content over the limit by a preview and a reference to the full content (RES-03)."""
        texts = [_text_of(block) for block in result.content]
        size = sum(map(_size_of, result.content))
        limit = self.max_chars if definition.max_result_chars is None else definition.max_result_chars
        result = self._fit_data(result, size)
        if size <= limit or definition.keeps_full_output:
            return _without_originals(result)
        shown = "\n".join(text for text in texts if text)
        whole = b"\n".join(part for part in map(_bytes_of, result.content) if part)
        media_type = _media_type(result.content, whole)
        kept = tuple(block for block in result.content if isinstance(block, ArtifactRef))
        metadata: dict[str, Json] = {**result.metadata, "truncated": True, "actual_chars": size, "max_chars": limit}
        if self.artifacts is not None:
            name = f"{definition.name}-{result.tool_call_id}.{_SUFFIXES[media_type]}"
            try:
                kept += (await self.artifacts.put(whole, media_type, name),)
            except (OSError, SoongError) as error:
                # The call has happened, and its result must say so although the whole of it could not be kept.
                metadata["artifact_error"] = _cut(str(error), MAX_SUMMARY_CHARS)
        note = f"\n[truncated: {size} characters, at most {limit} are shown]"
        preview = TextBlock(shown[: max(0, limit - len(note))] + note)
        return replace(result, content=(preview, *kept), artifacts=_joined(result.artifacts, kept), metadata=metadata)

    def _fit_data(self, result: ToolResult, content_chars: int) -> ToolResult:
        data = result.data
        if data is None or any(isinstance(block, JsonBlock) and block.value is data for block in result.content):
            is_large = content_chars > self.max_data_chars
        else:
            is_large = len(data if isinstance(data, str) else dump(data)) > self.max_data_chars
        if not is_large or data is None:
            return result
        return replace(result, data=None, metadata={**result.metadata, "data_left_out": True})

    def _redact_block(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, TextBlock):
            text, original = self.redactor.text(block.text), self._redact_bytes(block.original)
            is_same = text is block.text and original is block.original
            return block if is_same else replace(block, text=text, original=original)
        if isinstance(block, JsonBlock):
            value = self.redactor.value(block.value)
            return block if value is block.value else JsonBlock(value)
        return self._redact_ref(block)

    def _redact_bytes(self, original: bytes) -> bytes:
        if not original:
            return original
        text = original.decode("utf-8", "surrogateescape")
        clean = self.redactor.text(text)
        read = inert_text(clean)
        if self.redactor.text(read) is not read:
            # An escape sequence stood inside a secret, where a terminal shows none: then only the text is kept.
            return self.redactor.text(read).encode("utf-8", "replace")
        return original if clean is text else clean.encode("utf-8", "surrogateescape")

    def _redact_ref(self, ref: ArtifactRef) -> ArtifactRef:
        name = self.redactor.text(ref.name)
        return ref if name is ref.name else replace(ref, name=name)

    def _redact_node(self, node: ContextNode) -> ContextNode:
        name, text = self.redactor.text(node.name), self.redactor.text(node.text)
        return node if name is node.name and text is node.text else ContextNode(node.kind, name, text)

    def _redact_failure(self, failure: ToolFailure | None) -> ToolFailure | None:
        if failure is None:
            return None
        message, hint = _cut(self.redactor.text(failure.message)), _cut(self.redactor.text(failure.hint))
        details = self.redactor.mapping(failure.details)
        is_same = message is failure.message and hint is failure.hint and details is failure.details
        return failure if is_same else ToolFailure(failure.type, message, hint, details)


def _text_of(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return dump(block.value) if isinstance(block, JsonBlock) else ""


def _size_of(block: ContentBlock) -> int:
    return max(len(_text_of(block)), len(block.original) if isinstance(block, TextBlock) else 0)


def _bytes_of(block: ContentBlock) -> bytes:
    return (isinstance(block, TextBlock) and block.original) or _text_of(block).encode("utf-8", "replace")


def _without_originals(result: ToolResult) -> ToolResult:
    if not any(isinstance(block, TextBlock) and block.original for block in result.content):
        return result
    blocks = (replace(block, original=b"") if isinstance(block, TextBlock) else block for block in result.content)
    return replace(result, content=tuple(blocks))


def _media_type(content: Sequence[ContentBlock], whole: bytes) -> str:
    if all(isinstance(block, JsonBlock) for block in content):
        return "application/json"
    return "application/octet-stream" if b"\0" in whole else "text/plain"


def _joined(first: Sequence[ArtifactRef], second: Sequence[ArtifactRef]) -> tuple[ArtifactRef, ...]:
    by_digest: Mapping[str, ArtifactRef] = {ref.digest: ref for ref in (*first, *second)}
    return tuple(by_digest.values())


def _cut(text: str, limit: int = MAX_MESSAGE_CHARS) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"
