"""What a responder tells owners of its answers: while one is being written, and again if that was too early."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import Any, Final

from soong.shared.core.lazy_dataclass import dataclass
from soong.shared.engine.wire.notifier import Notifier
from soong.shared.permissions.request import PermissionRequest

AGAIN_AFTER_S = 0.01
"""Longer than an owner takes to decide by an answer that it has heard of early, unless it has many to decide."""
LATEST_AGAIN_S = 0.25
USUAL_TIMES: Final = 3
"""So many times the usual time of a decision is waited: owners who have many to decide are not asked to look again."""


@dataclass(slots=True)
class AnswerNotices:
    """Notifies owners of the answers of one responder. ``is_open``: a question is not known to be closed."""

    notifier: Notifier
    is_open: Callable[[str], bool]
    _early: set[str] = field(default_factory=set)
    """Questions whose owner has heard of an answer while it was written."""
    _later: dict[str, PermissionRequest] = field(default_factory=dict)
    """Questions whose owner is notified again, if they are still open then."""
    _sending: set[asyncio.Task[None]] = field(default_factory=set)
    _usual_s: float = 0.0
    """How long answers that are there have taken to be decided, of late."""
    _since_s: dict[str, float] = field(default_factory=dict)
    """Since when the answers of ``_later`` have been there."""

    def begun(self, request: PermissionRequest) -> None:
        """Notify of an answer that is being written: the message takes as long as the transaction."""
        self._early.add(request.id)
        self._send(self._notify(request))

    async def written(self, request: PermissionRequest) -> None:
        """Notify of an answer that is there, at once or, where its owner has heard of it, if it is not decided soon.

        The owner may have looked before the answer was there, or had not seen the question yet. A second message at
        once would hold it up while it decides.
        """
        if request.id in self._early:
            self._early.discard(request.id)
            self._later[request.id] = request
            self._since_s[request.id] = asyncio.get_running_loop().time()
            self._send(self._again(request))
        else:
            await self._notify(request)

    def decided(self, request_id: str) -> None:
        """Note that a question has been decided by the answer that was given here."""
        since_s = self._since_s.pop(request_id, None)
        if since_s is not None:
            self._usual_s += (asyncio.get_running_loop().time() - since_s - self._usual_s) / 4

    async def close(self) -> None:
        """Send what was to be sent later."""
        sending = list(self._sending)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        for request in list(self._later.values()):
            await self._notify_open(request)

    def _send(self, sending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(sending)
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _again(self, request: PermissionRequest) -> None:
        await asyncio.sleep(max(AGAIN_AFTER_S, min(LATEST_AGAIN_S, USUAL_TIMES * self._usual_s)))
        await self._notify_open(request)

    async def _notify_open(self, request: PermissionRequest) -> None:
        self._later.pop(request.id, None)
        if self.is_open(request.id):
            await self._notify(request)
        else:
            self._since_s.pop(request.id, None)

    async def _notify(self, request: PermissionRequest) -> None:
        await self.notifier.permission_raised(request.id, request.identity.session_id)
