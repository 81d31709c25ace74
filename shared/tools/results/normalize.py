"""From whatever a handler gave to the one ToolResult that is kept (RES-01, RES-03, RES-04).

Owns wrapping, what foreign code may put into a result, the output schema and the mapping of exceptions to error types.
The order in which they are applied is the pipeline's; secrets and sizes are
:mod:`soong.shared.tools.results.rendering`.
"""

import errno
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import SoongError
from soong.shared.core.foreign import words_of
from soong.shared.core.jsontext import Json, is_told_apart
from soong.shared.sandbox.command import SandboxUnavailableError
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.hosts import HostRefusedError
from soong.shared.tools.definition import HandlerOutput, Target, ToolDefinition
from soong.shared.tools.limits import UnfitError, plain, storable
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import (
    ArtifactRef,
    ContentBlock,
    ContextNode,
    ErrorType,
    JsonBlock,
    TextBlock,
    ToolError,
    ToolFailure,
    ToolResult,
)
from soong.shared.tools.results.rendering import MAX_MESSAGE_CHARS, MAX_SUMMARY_CHARS
from soong.shared.tools.schema import validate

MAX_CONTEXT_NODES: Final = 16
MAX_CONTEXT_CHARS: Final = 100_000
"""Maximum of a call's additions to the context, all nodes together: a skill's text is complete or it is refused."""

_CORE_ONLY = frozenset({ErrorType.HOOK_DENIED, ErrorType.TOOL_NOT_AVAILABLE, ErrorType.NOT_RUN, ErrorType.ABORTED})
_CORE_FACTS: Final = frozenset(
    {
        "hook_context",
        "permission_reason",
        "is_withheld",
        "aborted",
        "abort_reason",
        "aborted_by",
        "artifact_error",
        "data_left_out",
    }
)
_NODE_KINDS: Final = frozenset({"skill", "memory_context", "system"})
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_MARGIN: Final = 8_192
"""Characters that are kept beyond a limit until secrets are out: a halved secret is no longer recognised."""


def wrap(tool_call_id: str, output: HandlerOutput) -> ToolResult:
    """Make a result of a plain return value. A ToolResult is kept, but for the id, which only the core sets.
    Raises: ToolError, ``invalid_output``, the value is not JSON.
    """
    if isinstance(output, ToolResult):
        result = sound(replace(output, tool_call_id=tool_call_id, evidence=()))
        if _CORE_FACTS.isdisjoint(result.metadata):
            return result
        # Facts that only the core sets are removed: later readers take them for the core's.
        own = {name: each for name, each in result.metadata.items() if name not in _CORE_FACTS}
        return replace(result, metadata=own)
    if output is None:
        return ToolResult(tool_call_id, summary="done")
    output = _plain(output, "output")
    if isinstance(output, str):
        return ToolResult(tool_call_id, (TextBlock(output),), _first_line(output), output)
    return ToolResult(tool_call_id, (JsonBlock(output),), _in_a_line(output), output)


def sound(result: ToolResult) -> ToolResult:
    """Hold a result that foreign code has put together to its types, and bring its values to storable JSON.
    Raises: ToolError, ``invalid_output``, names the part that is wrong.
    """
    failure = result.error
    # Foreign code wrote it, whatever the types say.
    parts: Sequence[tuple[object, type | UnionType, str]] = (
        (result.content, ContentBlock, "content is not a tuple of blocks"),
        (result.artifacts, ArtifactRef, "artifacts is not a tuple of references"),
        (result.context_nodes, ContextNode, "context_nodes is not a tuple of nodes"),
    )
    for given, kind, problem in parts:
        if not isinstance(given, tuple) or not all(isinstance(each, kind) for each in given):
            raise _unsound(problem)
    if not (failure is None or isinstance(failure, ToolFailure)):
        raise _unsound("error is not a ToolFailure")
    return replace(
        result,
        content=tuple(_sound_block(block) for block in result.content),
        summary=_text(result.summary, "summary"),
        data=_plain(result.data, "data"),
        artifacts=tuple(map(_sound_ref, result.artifacts)),
        error=None if failure is None else _sound_failure(failure),
        metadata=_object(result.metadata, "metadata"),
        context_nodes=tuple(map(_sound_node, result.context_nodes)),
    )


def _unsound(problem: str) -> ToolError:
    return ToolError(ErrorType.INVALID_OUTPUT, f"the tool returned a result whose {problem}")


def _sound_block(block: ContentBlock) -> ContentBlock:
    match block:
        case TextBlock(text):
            if not isinstance(block.original, bytes):
                raise _unsound("content holds an original that is not bytes")
            kept = _text(text, "content")
            return block if kept is text else replace(block, text=kept)
        case JsonBlock(value):
            plain_value = _plain(value, "content")
            return block if plain_value is value else JsonBlock(plain_value)
        case _:
            return _sound_ref(block)


def _sound_ref(ref: ArtifactRef) -> ArtifactRef:
    """Hold a reference to what a store can have given: the digest becomes a path, the rest is in lists."""
    size: object = ref.size_bytes
    is_size = isinstance(size, int) and not isinstance(size, bool) and size >= 0
    media_type = _text(ref.media_type, "an artifact's media type")
    if not (_DIGEST.fullmatch(_text(ref.digest, "an artifact's digest")) and is_size and is_told_apart(media_type)):
        raise _unsound("artifact is none: digest, size_bytes and media_type are those that a store has given")
    name = _text(ref.name, "an artifact's name")
    return ref if name is ref.name else replace(ref, name=name)


def _sound_node(node: ContextNode) -> ContextNode:
    if node.kind not in _NODE_KINDS:
        raise _unsound(f"context node is none of {', '.join(sorted(_NODE_KINDS))}")
    return ContextNode(node.kind, _text(node.name, "context node"), _text(node.text, "context node"))


def _sound_failure(failure: ToolFailure) -> ToolFailure:
    message, hint = _text(failure.message, "error"), _text(failure.hint, "error")
    details = _object(failure.details, "error.details")
    if failure.type not in set(ErrorType):
        named = str(failure.type)[:80]
        raise _unsound(f"error has the type {named!r}, which is none; docs/reference/errors.md lists them")
    return _own_failure(ToolFailure(ErrorType(failure.type), message, hint, details))


def _own_failure(failure: ToolFailure) -> ToolFailure:
    """Return a tool's own failure; a type that only the core may use (a hook's denial can stop the run) is replaced."""
    if failure.type not in _CORE_ONLY:
        return failure
    details = {**failure.details, "said_type": failure.type.value}
    details.pop("stop_run", None)
    return ToolFailure(ErrorType.EXECUTION_FAILED, failure.message, failure.hint, details)


def _plain(value: object, part: str) -> Json:
    try:
        return plain(value)
    except UnfitError as error:
        raise ToolError(ErrorType.INVALID_OUTPUT, f"the tool returned what is not JSON: {part} {error}") from error


def _text(value: object, part: str) -> str:
    if not isinstance(value, str):
        problem = f"the tool returned a {type(value).__name__} where {part} is text"
        raise ToolError(ErrorType.INVALID_OUTPUT, problem)
    return storable(value)


def _object(value: object, part: str) -> Mapping[str, Json]:
    kept = _plain(value, part)
    if not isinstance(kept, Mapping):
        raise ToolError(ErrorType.INVALID_OUTPUT, f"the tool returned a result whose {part} is not an object")
    return kept


def own_deliverable(result: ToolResult, target: Target) -> ToolResult:
    """Return the result without a deliverable that is not what the call was permitted to write.

    The file it names is read and kept; a foreign tool must not choose which.
    """
    named = result.metadata.get("deliverable")
    if named is None or (isinstance(named, Mapping) and target.kind == "path" and named.get("path") == target.shown):
        return result
    return replace(result, metadata={name: value for name, value in result.metadata.items() if name != "deliverable"})


def with_reason(result: ToolResult, verdict: Verdict | None) -> ToolResult:
    """Return the result with the words of the person that allowed the call, for the model (PER-03)."""
    if verdict is None or verdict.author != "person" or not verdict.reason:
        return result
    return replace(result, metadata={**result.metadata, "permission_reason": verdict.reason})


def check_context(result: ToolResult, *, may_add: bool) -> ToolResult:
    """Hold the context nodes of a result to what a call may add (RES-01); a failed call adds nothing.
    Raises: ToolError, ``invalid_output``, this call may add none, or not so much.
    """
    nodes = result.context_nodes
    if not nodes:
        return result
    if result.is_error:
        return replace(result, context_nodes=())
    if not may_add:
        problem = "the tool added context, which only calls that run alone may do"
        raise ToolError(ErrorType.INVALID_OUTPUT, problem, hint="declare is_concurrency_safe=False")
    size = sum(len(node.name) + len(node.text) for node in nodes)
    if len(nodes) > MAX_CONTEXT_NODES or size > MAX_CONTEXT_CHARS:
        limits = f"at most {MAX_CONTEXT_NODES} nodes of {MAX_CONTEXT_CHARS} characters together"
        raise ToolError(ErrorType.INVALID_OUTPUT, f"the tool added {len(nodes)} nodes of {size} characters; {limits}")
    return result


def refusal(tool_call_id: str, failure: ToolFailure, data: Json = None, **metadata: Json) -> ToolResult:
    """Return the terminal result of a call that failed or was not run. The content repeats the error for the model."""
    text = f"{failure.type.value}: {failure.message}" + (f"\n{failure.hint}" if failure.hint else "")
    return ToolResult(tool_call_id, (TextBlock(text),), _first_line(text), data, error=failure, metadata=metadata)


def failed(tool_call_id: str, error: Exception) -> ToolResult:
    """Return the result of a call whose handler raised; data that is not JSON is left out."""
    data = error.data if isinstance(error, ToolError) else None
    try:
        return refusal(tool_call_id, failure_of(error), _plain(data, "data"))
    except ToolError as unsound:
        return refusal(tool_call_id, unsound.failure)


def failure_of(error: Exception) -> ToolFailure:
    match error:
        case ToolError():
            return _sound_failure(error.failure)
        case PathRefusedError() | SandboxUnavailableError():
            kind = ErrorType(error.refusal.value) if isinstance(error, PathRefusedError) else ErrorType.SANDBOX_DENIED
            return ToolFailure(kind, _roughly(str(error)), error.hint)
        case HostRefusedError():
            return ToolFailure(ErrorType.NETWORK_DENIED, _roughly(storable(str(error))))
        case OSError() if error.errno in {errno.EPERM, errno.EACCES, errno.EROFS}:
            return ToolFailure(ErrorType.SANDBOX_DENIED, _os_message(error), "the operating system refuses it")
        case FileNotFoundError():
            return ToolFailure(ErrorType.FILE_NOT_FOUND, _os_message(error))
        case OSError():
            return ToolFailure(ErrorType.EXECUTION_FAILED, _os_message(error))
        case SoongError():
            return ToolFailure(ErrorType.EXECUTION_FAILED, _roughly(storable(str(error))))
        case _:
            return ToolFailure(ErrorType.EXECUTION_FAILED, _roughly(storable(words_of(error))))


def check_output(definition: ToolDefinition, result: ToolResult) -> ToolResult:
    """Hold the data of a successful result to the tool's output schema, if it declares one."""
    if definition.output_schema is None or result.is_error:
        return result
    violations = validate(definition.output_schema, result.data)
    if not violations:
        return result
    message = f"the tool's output breaks its own schema: {'; '.join(map(str, violations))}"
    return refusal(result.tool_call_id, ToolFailure(ErrorType.INVALID_OUTPUT, _roughly(message)))


def _os_message(error: OSError) -> str:
    name = f": {error.filename!r}" if error.filename is not None else ""
    return _roughly(storable(f"{error.strerror or type(error).__name__}{name}"))


def _in_a_line(value: Json) -> str:
    if isinstance(value, Mapping):
        return _first_line(f"object with {', '.join(map(str, value))}" if value else "empty object")
    return f"{len(value)} items" if isinstance(value, Sequence) else _first_line(str(value))


def _first_line(text: str) -> str:
    """Return the first line, not yet cut to its limit: that is done when secrets are out."""
    end = text.find("\n", 0, MAX_SUMMARY_CHARS + _MARGIN)
    return text[: MAX_SUMMARY_CHARS + _MARGIN] if end < 0 else text[:end]


def _roughly(text: str) -> str:
    return text[: MAX_MESSAGE_CHARS + _MARGIN]
