"""A run that is put together and can begin (:mod:`soong.shared.agents.runtime.assembly`)."""

from typing import Any, Protocol

from soong.shared.agents.fallbacks import Fallbacks
from soong.shared.agents.ports import AgentTask
from soong.shared.agents.runtime.call_log import RunCallLog, StoredTranscript
from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.identity import RunIdentity
from soong.shared.core.value import Value
from soong.shared.tools.definition import RunDirs
from soong.shared.tools.pipeline import ToolPipeline


class PreparedCalls(Value):
    """What a run does and calls with, if its agent is a model or a program. ``executor`` makes its calls."""

    task: AgentTask
    executor: ToolPipeline
    log: RunCallLog
    transcript: StoredTranscript
    run_dirs: RunDirs

    @property
    def interruption(self) -> StopSignal:
        return self.log.interruption


class PreparedAgent(PreparedCalls):
    """The run of an agent on a model that can begin."""

    model: Any
    fallbacks: Fallbacks


class AgentObserver(Protocol):
    """Gets the moments of an agent that a person may want to see counted."""

    def approval_waiting(self, identity: RunIdentity, tool: str) -> None:
        """A call of ``tool`` waits for consent."""
        ...

    def approval_settled(self, identity: RunIdentity) -> None:
        """Such a call waits no more: it was answered, or nobody will."""
        ...

    def tool_failed(self, identity: RunIdentity, tool: str, error: str) -> None:
        """A call of ``tool`` ended in an error of that type."""
        ...


class NullObserver:
    """Tells nobody."""

    def approval_waiting(self, identity: RunIdentity, tool: str) -> None: ...

    def approval_settled(self, identity: RunIdentity) -> None: ...

    def tool_failed(self, identity: RunIdentity, tool: str, error: str) -> None: ...
