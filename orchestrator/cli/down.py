"""``soong down``: asks the service of this home to stop, and waits until it has."""

import asyncio
from contextlib import suppress

import typer

from soong.orchestrator.cli.console import say
from soong.orchestrator.embedded.control import ControlClient
from soong.orchestrator.embedded.service_file import ServiceRecord, read_record
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core import timing
from soong.shared.core.errors import UnavailableError
from soong.shared.core.settings import load_settings


def command(
    *,
    wait_s: float = typer.Option(60.0, "--wait", metavar="SECONDS", help="How long to wait for running steps to end."),
) -> None:
    """Stop the service: running steps may finish or are handed back, nothing is lost."""
    asyncio.run(_stop(wait_s))


async def _stop(wait_s: float) -> None:
    settings = load_settings()
    record = await living_service(settings)
    if record is None:
        ending = read_record(settings.home)
        if ending is None or not ending.is_stopping:
            say("no service is running in this home")
        elif await _is_gone(ending, wait_s):
            say("stopped")
        else:
            raise UnavailableError(f"the service (pid {ending.pid}) is still stopping after {wait_s:g} s")
        return
    control = await ControlClient.open(record.control)
    try:
        await control.ask("stop")
        async with asyncio.timeout(wait_s):
            await control.ended()
    except TimeoutError:
        raise UnavailableError(f"the service (pid {record.pid}) is still stopping after {wait_s:g} s") from None
    finally:
        await control.close()
    say("stopped")


async def _is_gone(record: ServiceRecord, limit_s: float) -> bool:
    """Wait for the end of a process that has begun to stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while record.is_process_alive:  # noqa: ASYNC110  # another's child: nobody tells of its end
                await asyncio.sleep(timing.POLL_PROCESS_S)
    return not record.is_process_alive
