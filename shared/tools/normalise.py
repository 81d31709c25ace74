"""From whatever a handler gave to the one ToolResult that is kept (RES-01, RES-03, RES-04).

Owns wrapping, size limits with artifacts, the output schema and the mapping of exceptions to error types. The order in
which they are applied is the pipeline's.
"""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shared.errors import SoongError
from shared.jsontext import Json, dump
from shared.sandbox.descriptors import PathRefusedError
from shared.sandbox.redact import Redactor
from shared.tools.definition import HandlerOutput, ToolDefinition
from shared.tools.ports import ArtifactStore
from shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ErrorType,
    JsonBlock,
    TextBlock,
    ToolError,
    ToolFailure,
    ToolResult,
)
from shared.tools.schema import validate

MAX_MESSAGE_CHARS: Final = 2_000
MAX_SUMMARY_CHARS: Final = 200

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.EROFS})


def wrap(tool_call_id: str, output: HandlerOutput) -> ToolResult:
    """Make a result of a plain return value. A ToolResult is kept, but for the id, which only the core sets.

    Raises:
        ToolError: ``invalid_output``, the value is not JSON.
    """
    if isinstance(output, ToolResult):
        return replace(output, tool_call_id=tool_call_id)
    if output is None:
        return ToolResult(tool_call_id, summary="done")
    if isinstance(output, str):
        return ToolResult(tool_call_id, (TextBlock(output),), _first_line(output), output)
    return ToolResult(tool_call_id, (JsonBlock(output),), _in_a_line(output), output)


def refusal(tool_call_id: str, failure: ToolFailure, data: Json = None, **metadata: Json) -> ToolResult:
    """Return the terminal result of a call that failed or was not run. The content repeats the error for the model."""
    text = f"{failure.type.value}: {failure.message}" + (f"\n{failure.hint}" if failure.hint else "")
    return ToolResult(tool_call_id, (TextBlock(text),), _first_line(text), data, error=failure, metadata=metadata)


def failure_of(error: Exception) -> ToolFailure:
    """Return the named error that an exception of a handler becomes."""
    match error:
        case ToolError():
            return error.failure
        case PathRefusedError():
            return ToolFailure(ErrorType(error.refusal.value), _cut(str(error)), error.hint)
        case OSError() if error.errno in _REFUSED:
            return ToolFailure(ErrorType.SANDBOX_DENIED, _os_message(error), "the operating system refuses it")
        case FileNotFoundError():
            return ToolFailure(ErrorType.FILE_NOT_FOUND, _os_message(error))
        case OSError():
            return ToolFailure(ErrorType.EXECUTION_FAILED, _os_message(error))
        case SoongError():
            return ToolFailure(ErrorType.EXECUTION_FAILED, _cut(str(error)))
        case _:
            return ToolFailure(ErrorType.EXECUTION_FAILED, _cut(f"{type(error).__name__}: {error}"))


def check_output(definition: ToolDefinition, result: ToolResult) -> ToolResult:
    """Hold the data of a successful result to the tool's output schema, if it declares one."""
    if definition.output_schema is None or result.is_error:
        return result
    violations = validate(definition.output_schema, result.data)
    if not violations:
        return result
    message = f"the tool's output breaks its own schema: {'; '.join(map(str, violations))}"
    return refusal(result.tool_call_id, ToolFailure(ErrorType.INVALID_OUTPUT, _cut(message)))


@dataclass(frozen=True, slots=True)
class Renderer:
    """Brings content to a size a model can take. ``data`` has its own limit: it is for programs, not for a prompt."""

    max_chars: int
    max_data_chars: int
    redactor: Redactor
    artifacts: ArtifactStore | None = None

    def redact(self, result: ToolResult) -> ToolResult:
        """Return the result without secrets (EVT-05); the same object when it holds none."""
        clean = self.redactor
        content = tuple(self._redact_block(block) for block in result.content)
        data, metadata = clean.value(result.data), clean.mapping(result.metadata)
        summary, failure = clean.text(result.summary), self._redact_failure(result.error)
        pairs = ((data, result.data), (metadata, result.metadata), (failure, result.error))
        is_same = all(new is old for new, old in (*pairs, *zip(content, result.content, strict=True)))
        if is_same and summary == result.summary:
            return result
        return replace(result, content=content, summary=summary, data=data, error=failure, metadata=metadata)

    async def fit(self, definition: ToolDefinition, result: ToolResult) -> ToolResult:
        """Replace content over the limit by a preview and a reference to the whole (RES-03).

        Raises:
            ToolError: ``invalid_output``, the content or data is not JSON.
        """
        texts = [_text_of(block) for block in result.content]
        size = sum(map(len, texts))
        limit = self.max_chars if definition.max_result_chars is None else definition.max_result_chars
        result = self._fit_data(result, size)
        if size <= limit or definition.keeps_whole_output:
            return result
        whole = "\n".join(text for text in texts if text)
        media_type = (
            "application/json" if all(isinstance(block, JsonBlock) for block in result.content) else "text/plain"
        )
        kept = tuple(block for block in result.content if isinstance(block, ArtifactRef))
        if self.artifacts is not None:
            name = f"{definition.name}-{result.tool_call_id}.{'json' if media_type == 'application/json' else 'txt'}"
            kept += (await self.artifacts.put(whole.encode("utf-8", "replace"), media_type, name),)
        note = f"\n[truncated: {size} characters, at most {limit} are shown]"
        preview = TextBlock(whole[: max(0, limit - len(note))] + note)
        metadata = {**result.metadata, "truncated": True, "actual_chars": size, "max_chars": limit}
        return replace(result, content=(preview, *kept), artifacts=_joined(result.artifacts, kept), metadata=metadata)

    def _fit_data(self, result: ToolResult, content_chars: int) -> ToolResult:
        data = result.data
        if data is None or any(isinstance(block, JsonBlock) and block.value is data for block in result.content):
            is_large = content_chars > self.max_data_chars
        else:
            is_large = len(data if isinstance(data, str) else _dumped(data)) > self.max_data_chars
        if not is_large or data is None:
            return result
        return replace(result, data=None, metadata={**result.metadata, "data_left_out": True})

    def _redact_block(self, block: ContentBlock) -> ContentBlock:
        if isinstance(block, TextBlock):
            text = self.redactor.text(block.text)
            return block if text is block.text else TextBlock(text)
        if isinstance(block, JsonBlock):
            value = self.redactor.value(block.value)
            return block if value is block.value else JsonBlock(value)
        return block

    def _redact_failure(self, failure: ToolFailure | None) -> ToolFailure | None:
        if failure is None:
            return None
        message, hint = self.redactor.text(failure.message), self.redactor.text(failure.hint)
        details = self.redactor.mapping(failure.details)
        is_same = message is failure.message and hint is failure.hint and details is failure.details
        return failure if is_same else ToolFailure(failure.type, message, hint, details)


def _text_of(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    return _dumped(block.value) if isinstance(block, JsonBlock) else ""


def _dumped(value: object) -> str:
    try:
        return dump(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(ErrorType.INVALID_OUTPUT, f"the tool returned what is not JSON: {_cut(str(error))}") from error


def _joined(first: Sequence[ArtifactRef], second: Sequence[ArtifactRef]) -> tuple[ArtifactRef, ...]:
    by_digest: Mapping[str, ArtifactRef] = {ref.digest: ref for ref in (*first, *second)}
    return tuple(by_digest.values())


def _os_message(error: OSError) -> str:
    name = f": {error.filename!r}" if error.filename is not None else ""
    return _cut(f"{error.strerror or type(error).__name__}{name}")


def _in_a_line(value: Json) -> str:
    if isinstance(value, Mapping):
        return _first_line(f"object with {', '.join(map(str, value))}" if value else "empty object")
    return f"{len(value)} items" if isinstance(value, Sequence) else _first_line(str(value))


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:MAX_SUMMARY_CHARS]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE_CHARS else f"{text[:MAX_MESSAGE_CHARS]}…"
