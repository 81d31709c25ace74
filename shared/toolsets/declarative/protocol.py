"""The program that a call of a command tool starts, and its stdout as a ToolResult (CMD-03, CMD-04, RES-01).

One JSON object with any of ``content``, ``summary``, ``data``, ``error``, ``is_error``, ``metadata``, ``artifacts`` and
``tool_call_id``, of which the last is ignored: a result belongs to the call that was made. Any other shape is
``invalid_output``. Texts are data: they are stripped of terminal escapes and never become instructions to us.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from soong.shared.core.config import Config
from soong.shared.core.jsontext import Json, JsonObject, digest, dump, parse_strict
from soong.shared.core.value import Value
from soong.shared.sandbox.paths import valid_text
from soong.shared.sandbox.programs import child_environment, find_program, program_identity, untrusted_folders
from soong.shared.sandbox.redact import inert_text
from soong.shared.tools.definition import RunDirs, Target, ToolContext
from soong.shared.tools.result import ContentBlock, ErrorType, JsonBlock, TextBlock, ToolError, ToolFailure, ToolResult
from soong.shared.tools.results.normalize import refusal
from soong.shared.tools.schema import validate
from soong.shared.toolsets.code.named_files import NamedFiles, is_open_ended, runs_what_is_in
from soong.shared.toolsets.code.shell_strings import shell_string
from soong.shared.toolsets.declarative.definition import Bounds, DeclaredTool, is_inside
from soong.shared.toolsets.declarative.template import TemplateArgument, render_arguments, render_shell

SHELL: Final = "/bin/sh"
EFFECT_VARIABLE: Final = "SOONG_EFFECT_ID"
"""The variable that gives its program the call's effect id; no other value of that name is passed on (DAG-09)."""

MAX_DEPTH: Final = 90
"""Below the limits of arguments and stored results, so that no later part is the first to refuse it."""
MAX_BLOCKS: Final = 100
MAX_WORDS_CHARS: Final = 10_000
"""Length of a summary, message or hint. The core removes secrets, then cuts them: half a secret would not be found."""
MAX_NAME_CHARS: Final = 200
MAX_FACTS_BYTES: Final = 16 * 1024
"""Size of metadata and of an error's details, which no artifact ever holds."""

CLAIMABLE: Final = frozenset(
    (
        *(ErrorType.EXECUTION_FAILED, ErrorType.INVALID_INPUT, ErrorType.FILE_NOT_FOUND, ErrorType.NOT_REGULAR_FILE),
        *(ErrorType.BINARY_FILE, ErrorType.PATH_CONFLICT, ErrorType.TEXT_NOT_FOUND, ErrorType.AMBIGUOUS_EDIT),
        *(ErrorType.PATCH_APPLY_FAILED, ErrorType.LIMIT_EXCEEDED, ErrorType.SERVER_UNAVAILABLE, ErrorType.TIMEOUT),
    )
)
"""Error types that speak of the tool's own work. The others are verdicts of the core, and no tool speaks for it."""


class Invocation(Value):
    """One call as the operating system will see it. ``line`` is how a person reads it."""

    argv: tuple[str, ...]
    cwd: Path
    environment: Mapping[str, str]
    line: str
    is_own_to_run: bool
    """The program, or a script that it is given or reads unnamed, lies where the run itself may write."""

    @property
    def program(self) -> Path:
        return Path(self.argv[0])


def invocation(
    tool: DeclaredTool, bounds: Bounds, config: Config, place: RunDirs, call_input: JsonObject
) -> Invocation:
    """Return what a validated call starts.
    Raises: ToolError, ``invalid_input``, a value cannot be an argument; ``path_outside_roots``, the working_dir leads
    away; PathRefusedError, there is no such program.
    """
    commands = config.commands
    own = untrusted_folders(place)
    environment = child_environment(commands.env, commands.secret_env, declared=tool.env_allowlist, untrusted=own)
    cwd = _cwd(tool, bounds, place)
    program = find_program(SHELL if tool.is_shell else tool.command, environment, cwd=cwd, untrusted=own)
    if tool.is_shell:
        shell = render_shell((TemplateArgument((tool.command,), ()), *tool.arguments), call_input)
        # The name stands where the shell expects its own; it is what its error messages begin with.
        argv = (str(program), "-c", shell.text, tool.name, *shell.values)
        line = shell.shown
    else:
        argv = (str(program), *render_arguments(tool.arguments, call_input))
        line = shlex.join(argv)
        if shell_name := shell_string(_known_as(tool, program), argv[1:]):
            problem = f"this input would hand {shell_name} a command string"
            hint = "a user can declare a tool of command_type shell"
            raise ToolError(ErrorType.SHELL_NOT_ALLOWED, problem, hint=hint)
    return Invocation(argv, cwd, environment, line, runs_what_is_in(argv, cwd, own))


def target_of(tool: DeclaredTool, made: Invocation, call_input: JsonObject, files: NamedFiles) -> Target:
    """Return the target for permission and its grants (PER-04, PER-08). ``files`` are those of the invocation.

    A grant for a plain program holds for the program in its folder: the author of the definition has fixed its possible
    effects. For an argument that can be a program, and for dangerous tools, it holds for the very same input and for
    the content of the named files.
    """
    is_exact = tool.is_shell or "dangerous" in tool.tags or _has_free_argument(tool, made.program)
    content = f", files sha256:{files.content}" if files.content else ""
    words = f"{made.line} < {digest(call_input)}{content}" if is_exact else str(made.program)
    state = f" with {files.state}" if files.state else ""
    kind = "shell line" if tool.is_shell else "program"
    names = ", ".join(sorted({*made.environment, EFFECT_VARIABLE}))
    about = f"{kind} declared in {tool.origin}\nruns in {made.cwd}\ngets {names}, and the arguments as JSON on stdin"
    return Target(
        kind="command",
        scope=valid_text(f"{made.cwd}: {words}"),
        shown=valid_text(made.line),
        precondition=f"{program_identity(made.program)}{state}",
        preview="\n".join([*files.lines(), about]),
    )


def hold_to_permission(context: ToolContext, now: Target) -> None:
    """Refuse to start anything else than what was shown.
    Raises: ToolError, ``path_conflict``, the program has been replaced or another is found.
    """
    then, shown = context.target, (now.shown, now.scope, now.precondition)
    if then.kind == "command" and (then.shown, then.scope, context.precondition) != shown:
        raise ToolError(ErrorType.PATH_CONFLICT, "the program is not the one that was permitted any more; call again")


def _has_free_argument(tool: DeclaredTool, program: Path) -> bool:
    """Say whether a value can be a program, a script or a command of the program.

    It can where it begins its argument, and where the program is known for that. In ``--to={{place}}`` it is a value
    whatever it holds, as the user who wrote it down wanted.
    """
    is_free = any(argument.fields and not argument.literals[0] for argument in tool.arguments)
    return is_free or is_open_ended(_known_as(tool, program))


def _known_as(tool: DeclaredTool, program: Path) -> tuple[str, ...]:
    return (tool.command, str(program), os.path.realpath(program))


def _cwd(tool: DeclaredTool, bounds: Bounds, place: RunDirs) -> Path:
    if tool.working_dir is None:
        return place.cwd
    if not is_inside(tool.working_dir, bounds.roots):
        problem = f"the working_dir {str(tool.working_dir)!r} of {tool.name!r} leads outside the allowed roots now"
        raise ToolError(ErrorType.PATH_OUTSIDE_ROOTS, problem, hint="its definition must be fixed by the user")
    return Path(os.path.realpath(tool.working_dir))


def read_result(tool_call_id: str, stdout: bytes, max_bytes: int) -> ToolResult:
    """Return the result of a tool's full output; its id is always ours.
    Raises: ToolError, ``invalid_output``, names the place and what is expected there.
    """
    document = _document(stdout, max_bytes)
    fields = _fields(document)
    content = tuple(_block(f"$.content[{at}]", block) for at, block in enumerate(fields.get("content", ())))
    # Null is a value for `data` alone: the answer of a look-up without a hit.
    summary, data, has_data = inert_text(fields.get("summary", "")), fields.get("data"), "data" in document
    if not (content or summary or has_data or fields.get("error") or fields.get("is_error")):
        raise _wrong("$", "says nothing; give content, summary, data or error")
    metadata: dict[str, Json] = {"tool": fields["metadata"]} if fields.get("metadata") else {}
    failure = _failure(fields, content)
    if failure is not None:
        result = refusal(tool_call_id, failure, data, **metadata)
        return ToolResult(
            tool_call_id, (*result.content, *content), result.summary, data, error=failure, metadata=metadata
        )
    line = in_a_line(summary, MAX_WORDS_CHARS) or _line_of(content, data, has_data=has_data)
    is_bare_null = data is None and has_data and not summary
    shown = (JsonBlock(data),) if data is not None or is_bare_null else (TextBlock(line),)
    return ToolResult(tool_call_id, content or shown, line, data, metadata=metadata)


def _document(stdout: bytes, max_bytes: int) -> JsonObject:
    try:
        value = parse_strict(stdout.decode("utf-8"), max_bytes=max_bytes, max_depth=MAX_DEPTH)
        dump(value).encode("utf-8")  # valid JSON that cannot be stored: 1e999, half a surrogate pair
    except UnicodeDecodeError as error:
        raise ToolError(ErrorType.INVALID_OUTPUT, f"stdout is not UTF-8 (byte {error.start})", hint=_HINT) from error
    except ValueError as error:
        what = "stdout is empty" if not stdout.strip() else f"stdout is not one JSON document: {error}"
        raise ToolError(ErrorType.INVALID_OUTPUT, in_a_line(what, MAX_WORDS_CHARS), hint=_HINT) from error
    if not isinstance(value, Mapping):
        raise _wrong("$", "must be an object")
    return value


_HINT: Final = "the tool is broken: it must print one ToolResult as JSON on stdout and everything else on stderr"


def _wrong(place: str, problem: str) -> ToolError:
    message = in_a_line(f"stdout is not a ToolResult: {place}: {problem}", MAX_WORDS_CHARS)
    return ToolError(ErrorType.INVALID_OUTPUT, message, hint=_HINT)


_TEXT: Final = {"type": "string"}
RESULT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "tool_call_id": {},
        "is_error": {"type": "boolean"},
        "content": {"type": "array", "maxItems": MAX_BLOCKS, "items": {"type": "object"}},
        "summary": _TEXT,
        "data": {},
        "artifacts": {"type": "array", "maxItems": 0},
        "error": {
            "type": "object",
            "additionalProperties": False,
            "required": ["message"],
            "properties": {
                "type": _TEXT,
                "message": {**_TEXT, "minLength": 1},
                "retryable": {"type": "boolean"},
                "hint": _TEXT,
                "details": {"type": "object"},
            },
        },
        "metadata": {"type": "object"},
    },
}


def _fields(document: JsonObject) -> dict[str, Any]:
    fields = _without_null(document)
    if isinstance(error := fields.get("error"), Mapping):
        fields["error"] = _without_null(error)
    if isinstance(content := fields.get("content"), list) and len(content) > MAX_BLOCKS:
        raise _wrong("$.content", f"breaks maxItems {MAX_BLOCKS}")
    for violation in validate(RESULT_SCHEMA, fields):
        raise _wrong(violation.path, violation.message)
    for name in ("error", "metadata"):
        size = len(dump(fields.get(name)))
        if size > MAX_FACTS_BYTES:
            words = f"has {size} bytes; at most {MAX_FACTS_BYTES} are taken, the rest belongs into data"
            raise _wrong(f"$.{name}", words)
    return fields


def _without_null(value: JsonObject) -> dict[str, Json]:
    return {name: part for name, part in value.items() if part is not None}


def _block(place: str, block: JsonObject) -> ContentBlock:
    match block:
        case {"kind": "text", "text": str(text)} if len(block) == 2:
            return TextBlock(inert_text(text))
        case {"kind": "json", "value": value} if len(block) == 2:
            return JsonBlock(value)
        case _:
            raise _wrong(place, 'must be {"kind": "text", "text": …} or {"kind": "json", "value": …}')


def _failure(fields: Mapping[str, Any], content: Sequence[ContentBlock]) -> ToolFailure | None:
    error, is_error = fields.get("error"), fields.get("is_error")
    if error is None:
        if not is_error:
            return None
        words = fields.get("summary") or _first_text(content) or "the tool reports an error"
        return ToolFailure(ErrorType.EXECUTION_FAILED, in_a_line(words, MAX_WORDS_CHARS))
    if is_error is False:
        raise _wrong("$.is_error", "is false next to an error")
    return _claimed(error)


def _claimed(given: Mapping[str, Any]) -> ToolFailure:
    """Return the failure as far as a tool may claim it; other claims are kept among the details."""
    claimed = given.get("type") or ErrorType.EXECUTION_FAILED.value
    type_ = next((each for each in CLAIMABLE if each.value == claimed), ErrorType.EXECUTION_FAILED)
    kept: dict[str, Json] = dict(given.get("details", {}))
    if type_.value != claimed:
        kept["said_type"] = in_a_line(claimed, MAX_NAME_CHARS)
    if given.get("retryable", type_.is_retryable) != type_.is_retryable:
        kept["said_retryable"] = given["retryable"]
    return ToolFailure(type_, _cut(inert_text(given["message"])), _cut(inert_text(given.get("hint", ""))), kept)


def _line_of(content: Sequence[ContentBlock], data: Json, *, has_data: bool) -> str:
    text = _first_text(content)
    if text:
        return in_a_line(text.partition("\n")[0], MAX_WORDS_CHARS)
    if isinstance(data, Mapping):
        return "object"
    return "null" if data is None and has_data else "done"


def _first_text(content: Sequence[ContentBlock]) -> str:
    return next((block.text for block in content if isinstance(block, TextBlock)), "")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WORDS_CHARS else f"{text[:MAX_WORDS_CHARS]}…"


def in_a_line(text: str, max_chars: int) -> str:
    """Return text as one line of bounded length."""
    line = " ".join(inert_text(text[: 4 * max_chars]).split())
    return line if len(line) <= max_chars else f"{line[:max_chars]}…"


def last_lines(text: str, max_chars: int) -> str:
    """Return the last full lines of a log without secrets, which best show why a program ended. A line that does not
    fit is left out rather than cut.
    """
    kept: list[str] = []
    room = max_chars
    for line in reversed(text.rstrip().split("\n")):
        shown = line if len(line) < max_chars else f"[a line of {len(line)} characters]"
        room -= len(shown) + 1
        if room < 0:
            kept.append("[…]")
            break
        kept.append(shown)
    return "\n".join(reversed(kept)).strip()
