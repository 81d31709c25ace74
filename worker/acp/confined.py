"""What the program of an agent may reach in a sandbox: what its run may, its state, and the network."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec.structs import replace

from soong.shared.agents.acp_agents import RUN_COMMAND, WRITE_FILE, AcpAgent
from soong.shared.sandbox.command import CommandAccess
from soong.shared.tools.command_access import access_of
from soong.shared.tools.definition import RunDirs


def program_access(agent: AcpAgent, tools: Collection[str], run_dirs: RunDirs) -> CommandAccess:
    """Return the access of an agent whose run has these tools.

    Without a tool that writes, the project is read-only for its program, too: what it does without asking changes
    nothing there.
    """
    can_write = not {WRITE_FILE, RUN_COMMAND}.isdisjoint(tools)
    access = access_of(run_dirs, can_write=can_write, has_network=agent.has_network)
    writable = tuple(dict.fromkeys((*access.writable, *state_of(agent))))
    readable = (*access.readable, *map(_real, agent.readable), *settings_of(agent))
    return replace(access, writable=writable, readable=readable)


def state_of(agent: AcpAgent) -> Iterator[Path]:
    """Yield where an agent keeps what is its own. Raises: nothing; a place that is not there is not shown."""
    for place in agent.state:
        yield _real(Path(place).expanduser())


def settings_of(agent: AcpAgent) -> Iterator[Path]:
    """Yield what in its state says what the agent starts and lets itself do."""
    for folder in state_of(agent):
        yield from (folder / name for name in agent.settings)


def make_state(agent: AcpAgent) -> None:
    """Make what is not there yet of an agent's state: what it writes elsewhere ends with the sandbox.

    Its settings are made empty: what is there can be shown read-only, what is not could be made by its program.
    """
    for folder in state_of(agent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for place in settings_of(agent):
        if os.path.lexists(place):
            continue
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.suffix:
            place.write_text("{}\n" if place.suffix == ".json" else "", encoding="utf-8")
        else:
            place.mkdir(mode=0o700)


def _real(place: Path) -> Path:
    return Path(os.path.realpath(place))
