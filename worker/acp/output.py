"""What a foreign agent is asked for, and what its last message means."""

import re
from collections.abc import Iterator
from typing import Final

from soong.shared.agents.ports import AgentTask
from soong.shared.core.errors import InvalidJsonError
from soong.shared.core.jsontext import Json, JsonObject, dump, parse_strict
from soong.shared.tools.schema import repaired, validate

_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)
GO_ON: Final = (
    "The connection to you was interrupted and is back. Continue the step where you stopped. What you were about to do "
    "and did not do is asked again when you do it. If you had finished, give your last answer again."
)

PROMPT_AFTER_NO: Final = (
    "Your turn ended because something that you asked for was refused. Do not try it again in another way. Finish the "
    "step with what you have, and say what was refused."
)
"""For agents that end their turn at a no, as Codex does."""


def prompt_of(task: AgentTask) -> str:
    """Return the first prompt: the rules, the instructions, the facts, and the form of the result."""
    facts = dump({"inputs": task.inputs, "run_dirs": task.run_dirs})
    parts = [task.system, task.instructions, f"Inputs and folders, as JSON:\n{facts}"]
    if task.output_schema is not None:
        schema = dump(task.output_schema)
        parts.append(f"End with one JSON value in a ```json block, and nothing after it. Its schema:\n{schema}")
    return "\n\n".join(filter(None, parts))


def prompt_to_go_on(unknown: list[JsonObject]) -> str:
    """Return the prompt for an agent that another process takes up; ``unknown`` are effects that nobody knows of."""
    if not unknown:
        return GO_ON
    lines = "\n".join(f"- {one.get('tool')} {one.get('shown') or one.get('message')}" for one in unknown)
    return f"{GO_ON}\nThese may or may not have happened; look before you do one again:\n{lines}"


def read_output(text: str, schema: JsonObject | None) -> tuple[Json, str]:
    """Return the output that a message gives, or what is wrong with it."""
    text = text.strip()
    if schema is None:
        return (_value(text, text), "") if text else (None, "your last message was empty")
    problem = "there is no JSON value in your last message"
    for candidate in _candidates(text):
        try:
            value = parse_strict(candidate)
        except InvalidJsonError as error:
            problem = f"the result is not JSON: {error}"
            continue
        value = repaired(schema, value)
        violations = validate(schema, value)
        if not violations:
            return value, ""
        problem = "the result breaks its schema: " + "; ".join(map(str, violations))
    return None, problem


def _candidates(text: str) -> Iterator[str]:
    """Yield what may be the value, the least likely first: the problem of the last is reported."""
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        yield text[start : end + 1]
    yield from _FENCED.findall(text)
    if text.startswith(("{", "[")):
        yield text


def _value(text: str, default: Json) -> Json:
    if text[0] not in "{[":
        return default
    try:
        return parse_strict(text)
    except InvalidJsonError:
        return default
