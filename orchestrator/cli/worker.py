"""``soong worker``: one worker process more, for a deployment or for the living service of this home."""

import asyncio
import os

import typer

from soong.orchestrator.embedded.environment import child_environment, kept_command, module_command
from soong.orchestrator.embedded.starter import living_service
from soong.shared.core.errors import UsageError
from soong.shared.core.open_files import raise_open_files
from soong.shared.core.settings import Settings, load_settings


def command(
    *,
    name: str = typer.Option("", "--name", help="Node name before the @, as Flower shows it."),
    slots: int | None = typer.Option(None, "--slots", min=1, help="Runs held at once [SOONG_SLOTS]."),
    pools: str | None = typer.Option(None, "--pools", help="Pools it serves, comma separated [SOONG_POOLS]."),
    labels: str | None = typer.Option(None, "--labels", help="What it announces, comma separated [SOONG_LABELS]."),
    functions: str | None = typer.Option(
        None, "--functions", help="Modules that register step functions [SOONG_FUNCTIONS]."
    ),
) -> None:
    """Claim and run steps until stopped; then finish or release the running ones."""
    raise_open_files()
    settings = asyncio.run(_deployment(load_settings()))
    given = {"--name": name, "--slots": slots, "--pools": pools, "--labels": labels, "--functions": functions}
    options = [part for option, value in given.items() if value for part in (option, str(value))]
    argv = kept_command(module_command("soong.worker", *options))
    # This process becomes the worker's subreaper, which forwards signals and ends as the worker does.
    os.execve(argv[0], argv, child_environment(settings))  # noqa: S606  # an argv, no shell


async def _deployment(settings: Settings) -> Settings:
    if settings.redis_url and settings.database_url:
        return settings
    record = await living_service(settings)
    if record is None:
        raise UsageError(
            "there is no service to join: start one with `soong up`, or set SOONG_DATABASE_URL and SOONG_REDIS_URL"
        )
    return settings.model_copy(update={"redis_url": record.redis_url})
