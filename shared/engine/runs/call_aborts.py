"""Aborts: a person ends a run with its tool calls, or one call alone, whose end the agent reads (EXE-07)."""

from typing import Final

from soong.shared.core.value import Value
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.store import RunStore

_ENDED: Final = frozenset({EventType.TOOL_COMPLETED, EventType.TOOL_FAILED, EventType.TOOL_DENIED})


class CallAbort(Value):
    """A person wants this to end. It stays for as long as its run: a run that is taken up again finds it."""

    run_id: str
    tool_call_id: str = ""
    """The call that ends alone. Empty: the run ends, and with it all its calls."""
    reason: str = ""


async def calls_under_way(runs: RunStore, run_id: str) -> dict[str, str]:
    """Return the tools of a run's calls that have begun and not ended, by tool call id, as its log has it."""
    found: dict[str, str] = {}
    seen = 0
    while page := await runs.events(run_id, after_seq=seen):
        for event in page:
            call_id = str(event.data.get("tool_call_id", ""))
            if event.type == EventType.TOOL_QUEUED:
                queued = event.data.get("tools")
                found |= {each: str(tool) for each, tool in queued.items()} if isinstance(queued, dict) else {}
            elif event.type == EventType.TOOL_STARTED:
                found[call_id] = str(event.data.get("tool", ""))
            elif event.type in _ENDED:
                found.pop(call_id, None)
        seen = page[-1].seq
    return found
