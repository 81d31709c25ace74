"""A task as a front end of the Agent Client Protocol shows it: its steps as a plan (ACP-02)."""

from collections.abc import Sequence
from typing import Final, Literal

import acp
from acp import schema

from soong.orchestrator.client.client import TaskSnapshot
from soong.shared.core.inert import inert
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step

MAX_ENTRIES: Final = 500
MAX_CHARS: Final = 300
_RUNNING: Final = frozenset({StepStatus.RUNNING, StepStatus.WAITING, StepStatus.BLOCKED, StepStatus.EXPANDING})
_Status = Literal["pending", "in_progress", "completed"]


def plan_of(view: TaskSnapshot) -> list[schema.PlanEntry]:
    """Return the steps of a view in their order. A plan knows no failure: the entry's text says how a step ended."""
    return [_entry(step) for step in view.steps[:MAX_ENTRIES]]


def _entry(step: Step) -> schema.PlanEntry:
    return acp.plan_entry(f"{_title(step)}{_ending(step)}", priority="medium", status=_status(step))


def _title(step: Step) -> str:
    title = step.title if step.title and step.title != step.step_id else ""
    said = f"{step.step_id}: {title}" if title else step.step_id
    return inert(" ".join(said.split()))[:MAX_CHARS]


def _ending(step: Step) -> str:
    match step.status:
        case StepStatus.FAILED:
            why = step.error.message if step.error is not None else ""
            return f" (failed{': ' if why else ''}{inert(why)[:MAX_CHARS]})"
        case StepStatus.CANCELLED | StepStatus.SKIPPED:
            return f" ({step.status})"
        case StepStatus.BLOCKED:
            return " (waits for an answer)"
        case _:
            return ""


def _status(step: Step) -> _Status:
    if step.status.is_terminal:
        return "completed"
    return "in_progress" if step.status in _RUNNING else "pending"


def text_of_prompt(blocks: Sequence[object]) -> str:
    """Return a prompt as the goal of an ask. What a front end attaches is named, and its text is added."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case schema.TextContentBlock(text=text):
                parts.append(text)
            case schema.ResourceContentBlock(uri=uri):
                parts.append(f"[{uri}]")
            case schema.EmbeddedResourceContentBlock(resource=schema.TextResourceContents(uri=uri, text=text)):
                parts.append(f"[{uri}]\n{text}")
            case _:
                parts.append("[content that is not text is left out]")
    return "\n".join(parts)
