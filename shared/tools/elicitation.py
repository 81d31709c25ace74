"""The answer to what a server asks a person during a call (MCP elicitation): of the person, a hook or a callback."""

from typing import Final, Literal, TypeAlias

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value

METHOD: Final = "elicitation/create"
CANCEL: Final = "cancel"
"""A person's no that begins with this word closes the question without a choice."""

ElicitationAction: TypeAlias = Literal["accept", "decline", "cancel"]


class ElicitationAnswer(Value):
    """What the server hears. ``content`` are the values of its form, by field; None for a page and for a refusal.

    ``cancel`` says that the question was closed without a choice; the call continues as after ``decline``.
    """

    action: ElicitationAction
    content: JsonObject | None = None
    reason: str = ""


def question_tool(server: str) -> str:
    """Return the name under which rules and hooks know what a server asks."""
    return f"mcp.{server}.{METHOD}"


def asks_for_words(tool: str) -> bool:
    """Say whether a question has this name because a server asks it."""
    return tool.startswith("mcp.") and tool.endswith(f".{METHOD}")
