"""From the model's words to a validated input: bounded, parsed, held to the schema and the tool's own check (SCH-03).

Nothing behind this sees anything else: neither hooks nor permission nor handler.
"""

from collections.abc import Callable
from typing import Final

from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.foreign import call_foreign, name_of
from soong.shared.core.jsontext import MAX_BYTES, Json, JsonObject, parse_strict
from soong.shared.tools.definition import ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.tools.schema import Violation, repaired, validate
from soong.shared.tools.value_limits import UnfitError, check_incoming, integral

MAX_ARGUMENT_CHARS: Final = MAX_BYTES


def parsed(arguments: Json) -> Json:
    """Return arguments as a JSON value. A string that holds JSON is parsed first, also when it was encoded twice (S4).

    Raises:
        ToolError: ``invalid_input``, they are not JSON, or too large or deep to be looked at.
    """
    value = arguments
    try:
        for _ in range(2):
            if isinstance(value, str):
                value = parse_strict(value.strip() or "{}")
    except InvalidJsonError as error:
        raise ToolError(ErrorType.INVALID_INPUT, f"the arguments are not JSON: {error}") from error
    value = {} if value is None else value
    try:
        check_incoming(value, max_chars=MAX_ARGUMENT_CHARS)
    except UnfitError as error:
        raise _refused([Violation("$", error.rule, error.problem)]) from error
    return integral(value)


def validated(definition: ToolDefinition, value: Json, hint: str = "") -> JsonObject:
    """Hold a parsed value to the tool's schema and to its own check; ``hint`` is what its caller should do.

    What it clearly means is put right first: the input is the same object exactly when nothing was.

    Raises:
        ToolError: ``invalid_input``, names every path and rule.
    """
    value = repaired(definition.input_schema, value)
    violations = validate(definition.input_schema, value)
    if violations or not isinstance(value, dict):
        raise _refused(violations or [Violation("$", "type", "must be object")], hint)
    problem = _guarded(definition.validate_input, value) if definition.validate_input else None
    if problem:
        raise ToolError(ErrorType.INVALID_INPUT, problem, hint=hint)
    return value


def shown_arguments(arguments: Json) -> Json:
    """Return arguments as they may be kept: what is too large or deep is named, not kept."""
    try:
        if isinstance(arguments, str) and len(arguments) > MAX_ARGUMENT_CHARS:
            return {"left_out": f"{len(arguments)} characters"}
        check_incoming(arguments, max_chars=MAX_ARGUMENT_CHARS)
    except UnfitError as error:
        return {"left_out": error.problem}
    return arguments


def _refused(violations: list[Violation], hint: str = "") -> ToolError:
    details: Json = [{"path": each.path, "rule": each.rule} for each in violations]
    return ToolError(
        ErrorType.INVALID_INPUT, "; ".join(map(str, violations)), hint=hint, details={"violations": details}
    )


def _guarded(check: Callable[[JsonObject], str | None], call_input: JsonObject) -> str | None:
    try:
        verdict: object = call_foreign(check, call_input)
    except Exception as error:  # noqa: BLE001  # foreign code; an input it cannot judge is not accepted
        return f"the input could not be checked: {name_of(error)}"
    if verdict is None or isinstance(verdict, str):
        return verdict
    return f"the input could not be checked: the tool's check gave a {type(verdict).__name__}, not a message or None"
