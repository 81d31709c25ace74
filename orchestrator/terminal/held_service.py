"""The service at which a command follows a task: joined or started, held, followed to its successor, let go of."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from soong.orchestrator.embedded.control import ControlClient, ShutdownState, control_of, join_home
from soong.orchestrator.terminal.api import service_home, variable
from soong.orchestrator.terminal.console import say
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError

if TYPE_CHECKING:
    from soong.orchestrator.embedded.starter import Attachment
    from soong.shared.core.settings import Settings

RESTARTS: Final = 3
OF_THE_COMMAND: Final = ("SOONG_DATABASE_URL", "SOONG_DATABASE_URL_FILE", "SOONG_FUNCTIONS", "SOONG_IMPORT_PATH")
"""With one of them a service is not joined as it is: there is a deployment, or its modules are looked at first."""


@dataclass(slots=True)
class Interrupts:
    """Counts Ctrl-C, and the signals that mean the same; each waits to be noticed."""

    _events: Sequence[asyncio.Event] = field(default_factory=lambda: (asyncio.Event(), asyncio.Event()))

    def listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._count)

    async def wait(self, number: int) -> None:
        """Return when there have been at least ``number`` of them (1 or 2)."""
        await self._events[number - 1].wait()

    def _count(self) -> None:
        self._events[self._events[0].is_set()].set()


@dataclass(slots=True)
class HeldService:
    """A hold on a service, so that an ephemeral one stays. ``settings`` says how one is started, and checks first."""

    settings: "Callable[[], Settings]"
    is_new: bool = False
    """It has to have what ``settings`` says: it is not joined as it is."""
    control: ControlClient | None = None
    attachment: "Attachment | None" = None
    _given: "Settings | None" = None
    """The settings with which it was started, or is to be started again."""
    _restarts: int = 0

    async def hold(self, *, start_after_s: float = 0.0) -> None:
        """Join the service of the home, else start one; after a while, where one is about to be there.
        Raises: SoongError.
        """
        if not self.is_new and not variable(*OF_THE_COMMAND):
            self.control = await join_home(service_home())
            if self.control is not None:
                return
        from soong.orchestrator.embedded.starter import attach

        tell = say if self._restarts == 0 and not start_after_s else lambda _sentence: None
        self._given = self._given or self.settings()
        settings = self._given
        self.attachment = await attach(settings, start_after_s=start_after_s, tell=tell)
        self.control = self.attachment.control

    async def own(self, _may_start: bool) -> "Attachment":
        """Return what the operations in this process work with; the hold stays here."""
        from soong.orchestrator.embedded.starter import Attachment, deployment

        held = self.attachment
        return Attachment(held.settings if held is not None else await deployment(self.settings()))

    async def keep(self, note: Callable[[str], None]) -> None:
        """Hold the service as long as it lives; follow it to its successor, or start another when it was killed.
        Raises: UnavailableError when it was stopped, or dies again and again.
        """
        while self.control is not None:
            ending = await self.control.ended()
            if ending is ShutdownState.STOPPING:
                raise UnavailableError("the service was stopped; the task continues when a service runs again")
            if ending is ShutdownState.HANDED_OVER:
                note("`soong up` takes over; continuing with it …")
                await self._hold_again(start_after_s=timing.PATIENCE_S)
                continue
            self._restarts += 1
            if self._restarts > RESTARTS:
                from soong.orchestrator.embedded.starter import last_words

                log = None if self.attachment is None else self.attachment.log
                raise UnavailableError(f"the service died {self._restarts} times{last_words(log)}")
            note("the service died; starting another …")
            await self._hold_again()
        await asyncio.Event().wait()

    async def _hold_again(self, *, start_after_s: float = 0.0) -> None:
        from soong.shared.core.settings import load_settings

        await self.release()
        self.is_new, self._given = True, self._given or load_settings()
        await self.hold(start_after_s=start_after_s)

    def control_socket(self) -> str | None:
        """Return the control socket of the embedded service that is held; None where there is none."""
        return control_of(service_home()) if self.control is not None else None

    @property
    def is_ours(self) -> bool:
        return self.attachment is not None and self.attachment.process is not None

    def kill(self) -> None:
        """End the service that this command has started at once; its children end with it."""
        if self.attachment is not None:
            self.attachment.kill()

    async def release(self) -> None:
        """Let go; an ephemeral service that nobody else needs ends by itself."""
        control, self.control = self.control, None
        if control is not None:
            await control.close()

    async def leave(self) -> None:
        """Let go, and wait until the one that this command has started has ended."""
        await self.release()
        if self.attachment is not None and not await self.attachment.wait_until_gone(timing.PATIENCE_S):
            self.kill()
