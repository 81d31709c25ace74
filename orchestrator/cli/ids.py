"""The rows of a home or a deployment, for commands that open them, and requests to the owner of a task."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from soong.orchestrator.embedded.folders import has_no_rows, prepare_home
from soong.orchestrator.embedded.service_file import ServiceRecord
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core.errors import UnavailableError, UsageError
from soong.shared.core.settings import Settings, load_settings
from soong.shared.storage.store import Store


def require_rows(settings: Settings) -> None:
    """Raises: UsageError, when nothing has run in this home yet."""
    if has_no_rows(settings):
        raise UsageError(f"nothing has run in {str(settings.home)!r} yet; start with `soong run PLAN`")


@asynccontextmanager
async def opened_store(
    change: str = "", *, makes: bool = False, settings: Settings | None = None
) -> AsyncIterator[Store]:
    """Open the rows, for reading or for a ``change`` that a person alone may make; ``makes`` them where there are none.
    Raises: UsageError, this home has none yet; StartedByRunError, a run started this process; UnavailableError,
    SchemaVersionError, they cannot be read.
    """
    settings = settings or load_settings()
    if makes and has_no_rows(settings):
        from soong.orchestrator.client.bootstrap import migrate

        prepare_home(settings)
        await migrate(settings)
    require_rows(settings)
    from soong.orchestrator.client.bootstrap import opened_rows

    async with opened_rows(settings) as store:
        if change:
            from soong.orchestrator.approvals.approval import check_person

            await check_person(store.sessions, change)
        yield store


async def deployment(settings: Settings, *, hint: str = "") -> Settings:
    """Return settings that name the Redis of the living service.

    Without one they stay as they are; with a ``hint``, what else to do:

    Raises: UsageError.
    """
    if settings.redis_url:
        return settings
    record: ServiceRecord | None = None
    with suppress(UnavailableError):
        record = await living_service(settings)
    if record is None and hint:
        raise UsageError(f"no service is running: start one with `soong up`, or set {hint}")
    return settings if record is None else settings.model_copy(update={"redis_url": record.redis_url})
