"""``soong doctor``: whether programs of tools and hooks run in a sandbox here (CMD-07)."""

import asyncio

from soong.orchestrator.cli.finding import Finding, Level
from soong.shared.core.config import load_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.settings import Settings
from soong.shared.sandbox.bubblewrap.probe import probe


async def check_sandbox(settings: Settings) -> Finding:
    """What ``commands.sandbox`` asks for is there."""
    try:
        wanted = load_config(settings.home).commands.sandbox
    except InvalidConfigError as error:
        return Finding("sandbox", Level.FAIL, str(error), "fix config.toml")
    found = await asyncio.to_thread(probe)
    if wanted == "off":
        offer = f'{found.program} works: commands.sandbox = "auto" uses it' if found.works else found.problem
        return Finding("sandbox", Level.OK, f"off: programs of tools have the rights of their worker's user; {offer}")
    if found.works:
        return Finding("sandbox", Level.OK, f"{wanted}: programs of tools and hooks run in {found.program}")
    if wanted == "required":
        return Finding("sandbox", Level.FAIL, f"required, so no program of a tool runs: {found.problem}", found.hint)
    return Finding("sandbox", Level.WARN, f"auto, and programs run without one: {found.problem}", found.hint)
