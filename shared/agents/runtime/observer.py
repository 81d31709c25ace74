"""Observers of run events, for telemetry. Calls do not block and their errors are ignored."""

from typing import Protocol

from soong.shared.core.identity import RunIdentity


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
