"""``soong migrate``: brings the database to this version's schema.

Orchestrators do it themselves when they start; this is for deployments that do it as a job of its own before.
"""

import asyncio

import typer

from soong.orchestrator.cli.console import say
from soong.shared.core.settings import load_settings

_WORKER = typer.Option("", "--grant-worker", metavar="ROLE", help="Give this PostgreSQL role a worker's rights.")
_ORCHESTRATOR = typer.Option(
    "", "--grant-orchestrator", metavar="ROLE", help="Give this PostgreSQL role an orchestrator's rights."
)
_CLIENT = typer.Option("", "--grant-client", metavar="ROLE", help="Give this PostgreSQL role the HTTP API's rights.")

_SCALER = typer.Option(
    "", "--grant-scaler", metavar="ROLE", help="Let this PostgreSQL role ask how many slots a pool wants, and no more."
)


def command(
    *, worker: str = _WORKER, orchestrator: str = _ORCHESTRATOR, client: str = _CLIENT, scaler: str = _SCALER
) -> None:
    """Make or upgrade the tables of SOONG_DATABASE_URL, or of the home's own database.

    Privileges are granted again each time, so that they match this version; run it as the owner of the tables.
    """
    from soong.orchestrator.client.bootstrap import migrate  # SQLAlchemy, not needed for --help
    from soong.orchestrator.embedded.folders import prepare_home

    settings = load_settings()
    if settings.is_embedded:
        prepare_home(settings)
    asyncio.run(migrate(settings, worker=worker, orchestrator=orchestrator, client=client, scaler=scaler))
    say("the database has this version's schema")
    kinds = {worker: "a worker", orchestrator: "an orchestrator", client: "the HTTP API", scaler: "an autoscaler"}
    for role, kind in kinds.items():
        if role:
            say(f"the role {role} has the rights of {kind}, and no others")
