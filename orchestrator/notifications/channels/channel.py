"""The port of a channel: one attempt to bring one message to one receiver."""

from typing import Protocol

from soong.orchestrator.notifications.message import Message
from soong.shared.core.value import Value


class Delivery(Value):
    """The result of an attempt. ``error`` is one sentence without secrets, empty when it was accepted.

    ``is_gone``: the receiver wants nothing any more. ``retry_after_s`` is how long it asked to wait.
    ``is_partial``: some of several addresses accepted it, so it is not sent again.
    """

    error: str = ""
    is_gone: bool = False
    retry_after_s: float = 0.0
    is_partial: bool = False

    @property
    def is_sent(self) -> bool:
        return not self.error or self.is_partial


class Channel(Protocol):
    async def send(self, message: Message) -> Delivery:
        """Send it once. Whatever the receiver or the network does is a result and raises nothing.

        Raises: InvalidConfigError, a secret that the channel refers to cannot be read.
        """
        ...
