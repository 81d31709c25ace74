"""The report of a step that did not end cleanly: denials, unknown effects, and how far it got (DAG-10).

Read from the nodes of its last run on demand; a clean step has no report and costs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import NewNode, NodeKind
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import Outcome, Step, StepEnd, StepError, StepResult
from soong.shared.tools.result import ErrorType, ToolFailure, ToolResult

MAX_PARTIAL_CHARS: Final = 4000
MAX_SHOWN_CHARS: Final = 1000
"""Characters that are shown of an unknown effect's target."""


@dataclass(slots=True)
class StepIncidents:
    """The denials and the unknown effects of a run, as they occur.

    Filled by the agent loop, read by the gate that asks people about its calls, and by the code that ends the run.
    """

    denials: list[JsonObject] = field(default_factory=list)
    unknown_effects: list[JsonObject] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.denials or self.unknown_effects)

    def take(self, tool: str, result: ToolResult) -> None:
        """Note a call's denial, or its unknown effect (DAG-10)."""
        error = result.error
        if error is None:
            return
        if error.type.is_denial:
            self.denials.append(_entry(result.tool_call_id, tool, error))
        elif error.type is ErrorType.UNKNOWN_AFTER_CRASH:
            self.unknown_effects.append({**_entry(result.tool_call_id, tool, error), **error.details})

    def lists(self) -> dict[str, Json]:
        """Return the two lists as a result node has them."""
        return {"denials": list(self.denials), "unknown_effects": list(self.unknown_effects)}


def _entry(tool_call_id: str, tool: str, error: ToolFailure) -> dict[str, Json]:
    return {"tool_call_id": tool_call_id, "tool": tool, "type": str(error.type), "message": error.message}


def unknown_after_crash(row: CallRow) -> ToolFailure:
    """Return the end of a write that was under way when its run was cut off: with what it was permitted to touch."""
    facts = row.facts.get("facts")
    shown = str(facts.get("shown") or "") if isinstance(facts, Mapping) else ""
    return ToolFailure(
        ErrorType.UNKNOWN_AFTER_CRASH,
        f"the run was cut off while {row.tool} ran: it may or may not have happened",
        "look before you do it again",
        details={"effect_id": row.effect_id, "shown": shown[:MAX_SHOWN_CHARS]},
    )


def _unknown(row: CallRow) -> JsonObject:
    failure = unknown_after_crash(row)
    return {**_entry(row.tool_call_id, row.tool, failure), **failure.details}


def with_report(end: StepEnd, incidents: StepIncidents) -> StepEnd:
    """Return an end that says what the run incidents where the run itself could not: it was cut off, or had a fault."""
    if not incidents or any(node.kind is NodeKind.RESULT for node in end.nodes):
        return end
    payload: dict[str, Json] = {"v": 1, "end_reason": str(end.end_reason), "output": None, **incidents.lists()}
    return replace(end, nodes=(*end.nodes, NewNode(NodeKind.RESULT, payload)))


class FailureReport(Value):
    """The record of a step's last run: its error, its progress, its result node and its last answer.

    ``open_calls`` are the writes that it started and whose end nobody has recorded.
    """

    error: StepError | None = None
    progress: str = ""
    result: JsonObject | None = None
    answer: JsonObject | None = None
    open_calls: Sequence[CallRow] = ()

    def added_to(self, result: StepResult) -> StepResult:
        """Return the result with what remains."""
        report = self.result or {}
        reported = _entries(report.get("unknown_effects"))
        named = [entry.get("tool_call_id") for entry in reported]
        unreported = [_unknown(call) for call in self.open_calls if call.tool_call_id not in named]
        return replace(
            result,
            error=self.error or result.error,
            denials=_entries(report.get("denials")),
            unknown_effects=(*reported, *unreported),
            partial=self._partial() if result.status is not StepStatus.COMPLETED else None,
        )

    def _partial(self) -> Json:
        said = _text(self.answer)
        found = {"text": said[:MAX_PARTIAL_CHARS], "progress": self.progress}
        return {name: text for name, text in found.items() if text} or None


def is_unclean(status: StepStatus, outcome: Outcome | None) -> bool:
    """Say whether a step ended in a way with something left to report."""
    return outcome is Outcome.PARTIAL or status in (StepStatus.FAILED, StepStatus.CANCELLED)


def of_map(result: StepResult, children: Sequence[StepResult]) -> StepResult:
    """Return a map step's result with what its unclean children left, each named."""
    left: list[Json] = [
        {
            "step": child.step_id,
            "status": child.status.value,
            "error": None if child.error is None else child.error.as_json(),
            "partial": child.partial,
        }
        for child in children
        if child.status is not StepStatus.COMPLETED
    ]
    return replace(
        result,
        denials=tuple({**entry, "step": child.step_id} for child in children for entry in child.denials),
        unknown_effects=tuple(
            {**entry, "step": child.step_id} for child in children for entry in child.unknown_effects
        ),
        partial=left or None,
    )


def _entries(value: Json) -> tuple[JsonObject, ...]:
    return tuple(entry for entry in value if isinstance(entry, Mapping)) if isinstance(value, list | tuple) else ()


def _text(answer: JsonObject | None) -> str:
    """Return the text of the model's last answer, from a stored assistant node."""
    message = (answer or {}).get("message")
    parts = message.get("parts") if isinstance(message, Mapping) else None
    texts = [
        str(part.get("content", ""))
        for part in (parts if isinstance(parts, list | tuple) else ())
        if isinstance(part, Mapping) and part.get("part_kind") == "text"
    ]
    return "".join(texts)


def tools_of(step: Step, granted: Sequence[str]) -> dict[str, Json]:
    """Return the tools that an agent step asked for (None: its definition's) and those that its run was given."""
    requested = step.spec.allowed_tools
    return {"requested": None if requested is None else list(requested), "granted": list(granted)}
