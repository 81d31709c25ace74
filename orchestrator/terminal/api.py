"""The operations of the service, as commands call them: over the socket of the home, else in the command's own process.

A command that changes something starts a service where none lives. One that reads looks at the rows as they are.
"""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from soong.orchestrator.client.home_api import (
    Calls,
    Document,
    HomeApi,
    HomeRefusedError,
    HomeUnreachableError,
    OperationAnswer,
    Query,
)
from soong.orchestrator.terminal.console import say
from soong.orchestrator.terminal.summary import ENDED
from soong.shared.core.errors import EndedTaskError, UnavailableError
from soong.shared.core.jsontext import Json

if TYPE_CHECKING:
    from soong.orchestrator.embedded.starter import Attachment
    from soong.orchestrator.http.own_api import Attached, OwnApi

MOST_OF_A_PAGE: Final = 200


def service_home() -> Path:
    """Return the home that the environment names, as the settings have it."""
    return Path(os.environ.get("SOONG_AGENT_HOME", "~/.soong")).expanduser().absolute()


def variable(*names: str) -> str:
    """Return the first of these variables that is set, without importing the settings; empty where none is."""
    return next((value for name in names if (value := os.environ.get(name))), "")


@dataclass
class Api(Calls):
    """The operations, several at once. Its creator closes it, or ``async with`` does.

    With ``is_held`` the service of the home is held, and started again when it ends: no other way is taken meanwhile.
    """

    channel: str = "cli"
    attached: "Attached | None" = None
    is_held: bool = False
    may_start: bool = True
    _home: HomeApi | None = field(init=False)
    _own: "OwnApi | None" = None

    def __post_init__(self) -> None:
        is_deployed = variable("SOONG_DATABASE_URL", "SOONG_DATABASE_URL_FILE")
        self._home = None if is_deployed else HomeApi(service_home(), channel=self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._own is not None:
            await self._own.close()

    @asynccontextmanager
    async def sent(
        self, method: str, path: str, query: Query, body: Json, headers: Mapping[str, str]
    ) -> AsyncGenerator[OperationAnswer]:
        """Send a request; a change starts a service where none lives and it may.
        Raises: UsageError, nothing has run in this home yet; SoongError, the service cannot be used.
        """
        is_reading = method == "GET"
        async with AsyncExitStack() as held:
            answer: OperationAnswer | None = None
            if self._home is not None:
                try:
                    answer = await held.enter_async_context(self._home.sent(method, path, query, body, headers))
                except HomeUnreachableError as error:
                    self._leave_home(error, is_reading=is_reading)
            if answer is None:
                if self._own is None:
                    from soong.orchestrator.http.own_api import OwnApi

                    self._own = OwnApi(self.channel, self.attached or (lambda may_start: attached(may_start=may_start)))
                calls = await self._own.calls(may_start=(self.may_start and not is_reading) or self.is_held)
                answer = await held.enter_async_context(calls.sent(method, path, query, body, headers))
            yield answer

    async def get(self, path: str, **query: str | int | bool | Sequence[str]) -> Document:
        """Return what a reading operation returns. Raises: SoongError."""
        return (await self.reply("GET", path, query=query)).document

    async def from_service(self, path: str, **query: str) -> Document | None:
        """Return what the living service answers to a reading; None where none serves this command."""
        try:
            return None if self._home is None else (await self._home.reply("GET", path, query=query)).document
        except HomeUnreachableError:
            return None

    async def post(self, path: str, body: Json = None) -> Document:
        """Return what a changing operation returns; a service is started for it if need be. Raises: SoongError."""
        return (await self.reply("POST", path, body=body if body is not None else {})).document

    async def pages(self, path: str, *, limit: int, **query: str | int | bool | Sequence[str]) -> list[Document]:
        """Return at most so many items of a list, page by page. Raises: SoongError."""
        items: list[Document] = []
        cursor = ""
        while len(items) < limit:
            page = await self.get(path, limit=min(MOST_OF_A_PAGE, limit - len(items)), cursor=cursor, **query)
            items += page["items"]
            cursor = page["next"] or ""
            if not cursor:
                break
        return items

    async def find(self, kind: str, text: str) -> str:
        """Return the one id that a person means. Raises: NotFoundError; UsageError when it fits several."""
        return str((await self.get(f"/v1/ids/{kind}", text=text))["id"])

    def _leave_home(self, error: HomeUnreachableError, *, is_reading: bool) -> None:
        if isinstance(error, HomeRefusedError):
            self._home = None
            return
        if self.is_held:
            raise error
        self._home = None
        if error.was_sent and not is_reading:
            raise UnavailableError("the service ended while it was asked; look what it has done, then try again")


async def attached(*, may_start: bool) -> "Attachment":
    """Raises: UsageError where nothing has run in this home yet; UnavailableError."""
    from soong.orchestrator.embedded.folders import require_rows  # late: psutil, settings
    from soong.orchestrator.embedded.starter import Attachment, attach, deployment
    from soong.shared.core.settings import load_settings

    settings = load_settings()
    require_rows(settings)
    return await attach(settings, tell=say) if may_start else Attachment(await deployment(settings))


async def open_task(api: Api, text: str) -> str:
    """Return the id of a task that is not over. Raises: NotFoundError, UsageError, ConflictError."""
    # Looked up before a service is started for it: a wrong id, or a task that is over, starts nothing.
    task = await api.get(f"/v1/tasks/{await api.find('task', text)}", limit=1)
    if task["status"] in ENDED:
        raise EndedTaskError(task["id"], task["status"])
    return str(task["id"])
