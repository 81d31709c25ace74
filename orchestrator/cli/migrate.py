"""``soong migrate``: brings the database to this version's schema.

Orchestrators do it themselves when they start; this is for deployments that do it as a job of its own before.
"""

import asyncio

from orchestrator.cli.console import say
from shared.settings import load_settings


def command() -> None:
    """Make or upgrade the tables of SOONG_DATABASE_URL, or of the home's own database."""
    from orchestrator.client_bootstrap import migrate  # SQLAlchemy, not needed for --help
    from orchestrator.embedded.folders import prepare_home

    settings = load_settings()
    if settings.is_embedded:
        prepare_home(settings)
    asyncio.run(migrate(settings))
    say("the database has this version's schema")
