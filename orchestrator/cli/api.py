"""The operations of the service, as commands call them: over the socket of the home, else in the command's own process.

A command that changes something starts a service where none lives. One that reads looks at the rows as they are.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from soong.orchestrator.cli.console import say
from soong.orchestrator.cli.step_words import ENDED
from soong.orchestrator.client.home_api import Document, HomeApi, HomeUnreachableError, Query
from soong.shared.core.errors import ConflictError, UnavailableError, UsageError
from soong.shared.core.jsontext import Json

if TYPE_CHECKING:
    from soong.orchestrator.embedded.starter import Attachment
    from soong.orchestrator.http.own_api import OwnApi

MOST_OF_A_PAGE: Final = 200
WHOLE_ID: Final = re.compile(r"(task|run|req)_(?:[0-9a-z]{26}|[0-9a-f]{32})")


def service_home() -> Path:
    """Return the home that the environment names, as the settings have it."""
    return Path(os.environ.get("SOONG_AGENT_HOME", "~/.soong")).expanduser().absolute()


class Api:
    """The operations for one command. Closed by ``with``."""

    def __init__(self, *, channel: str = "cli") -> None:
        self._channel = channel
        self._home = None if os.environ.get("SOONG_DATABASE_URL") else HomeApi(service_home(), channel=channel)
        self._own: OwnApi | None = None
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._home is not None:
            self._home.close()
        self._closing.close()

    def get(self, path: str, **query: str | int | bool) -> Document:
        """Return what a reading operation returns. Raises: SoongError."""
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Json = None, **query: str | int | bool) -> Document:
        """Return what a changing operation returns; a service is started for it if need be. Raises: SoongError."""
        return self.call("POST", path, query=query, body=body if body is not None else {})

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Json = None,
        headers: Mapping[str, str] | None = None,
        may_start: bool = True,
    ) -> Document:
        """Return the document that an operation returns; a change starts a service where none lives and it may.

        Raises:
            UsageError: nothing has run in this home yet.
            SoongError: the operation was refused, or the service cannot be used.
        """
        if self._home is not None:
            try:
                return self._home.call(method, path, query=query, body=body, headers=headers)
            except HomeUnreachableError as error:
                self._leave_home(error, is_reading=method == "GET")
        return self._here(may_start=may_start and method != "GET").call(
            method, path, query=query, body=body, headers=headers
        )

    def text(self, path: str, **query: str | int | bool) -> str:
        """Return what an operation answers with that sends text. Raises: SoongError."""
        if self._home is not None:
            try:
                return self._home.text(path, query=query)
            except HomeUnreachableError as error:
                self._leave_home(error, is_reading=True)
        return self._here(may_start=False).text(path, query=query)

    def stream(self, path: str, **query: str | int | bool) -> Iterator[tuple[str, Document]]:
        """Yield name and data of each event of a stream, until it ends. Raises: SoongError."""
        if self._home is not None:
            try:
                for name, event in self._home.stream(path, query=query):
                    yield name, event
                    query |= {"after": event["id"]} if "id" in event else {}
            except HomeUnreachableError as error:
                self._leave_home(error, is_reading=True)
            else:
                return
        yield from self._here(may_start=False).stream(path, query=query)

    def pages(self, path: str, *, limit: int, **query: str | int | bool) -> list[Document]:
        """Return at most so many items of a list, page by page. Raises: SoongError."""
        items: list[Document] = []
        cursor = ""
        while len(items) < limit:
            page = self.get(path, limit=min(MOST_OF_A_PAGE, limit - len(items)), cursor=cursor, **query)
            items += page["items"]
            cursor = page["next"] or ""
            if not cursor:
                break
        return items

    def find(self, kind: str, text: str) -> str:
        """Return the one id that a person means. Raises: NotFoundError; UsageError when it fits several."""
        if WHOLE_ID.fullmatch(text):
            return text
        return str(self.get(f"/v1/ids/{kind}", text=text)["id"])

    def _leave_home(self, error: HomeUnreachableError, *, is_reading: bool) -> None:
        self._home = None
        if error.was_sent and not is_reading:
            raise UnavailableError("the service ended while it was asked; look what it has done, then try again")

    def _here(self, *, may_start: bool) -> "OwnApi":
        if self._own is None:
            from soong.orchestrator.cli.ids import has_no_rows  # late: psutil, settings, SQLAlchemy
            from soong.orchestrator.http.own_api import OwnApi
            from soong.shared.core.settings import load_settings

            settings = load_settings()
            if has_no_rows(settings):
                raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")
            self._own = self._closing.enter_context(OwnApi(channel=self._channel))
        self._own.attach(_attached, may_start=may_start)
        return self._own


async def _attached(*, may_start: bool) -> "Attachment":
    from soong.orchestrator.cli.ids import deployment
    from soong.orchestrator.embedded.starter import Attachment, attach
    from soong.shared.core.settings import load_settings

    settings = load_settings()
    return await attach(settings, tell=say) if may_start else Attachment(await deployment(settings))


def open_task(api: Api, text: str) -> str:
    """Return the id of a task that is not over. Raises: NotFoundError, UsageError, ConflictError."""
    # Looked up before a service is started for it: a wrong id, or a task that is over, starts nothing.
    task = api.get(f"/v1/tasks/{api.find('task', text)}", limit=1)
    if task["status"] in ENDED:
        raise ConflictError(f"task {task['id']} is {task['status']}: it is over; `soong tasks retry` runs it again")
    return str(task["id"])
