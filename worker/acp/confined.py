"""What the program of an agent may reach in a sandbox: what its run may, its state, and the network."""

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

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
    return replace(access, writable=writable, readable=(*access.readable, *map(_real, agent.readable)))


def state_of(agent: AcpAgent) -> Iterator[Path]:
    """Yield where an agent keeps what is its own. Raises: nothing; a place that is not there is not shown."""
    for place in agent.state:
        yield _real(Path(place).expanduser())


def make_state(agent: AcpAgent) -> None:
    """Make the folders of an agent's state that are not there yet: what it writes elsewhere ends with the sandbox."""
    for folder in state_of(agent):
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)


def _real(place: Path) -> Path:
    return Path(os.path.realpath(place))
