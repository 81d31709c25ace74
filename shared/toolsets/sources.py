"""Every source of tools, in one place: what a process registers when it starts (REG-07).

A new built-in tool goes into the toolset of its namespace (``shared/toolsets/code/toolset.py`` reads as an example); a
new source goes into :func:`builtin_sources`. Workers, clients and ``soong tools`` all build their registry here, so
that a plan is checked against the same tools that a worker runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from shared.config import Config
from shared.sandbox.command import CommandRunner
from shared.sandbox.paths import SENSITIVE, PathPolicy
from shared.sandbox.process import ProcessRunner
from shared.tools.definition import ToolAdapter
from shared.tools.registry import ToolRegistry
from shared.toolsets.code.toolset import CodeTools


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What tools need of the process they are registered in. ``home`` is Soong's own folder; None: there is none."""

    home: Path | None = None
    config: Config = field(default_factory=Config)
    runner: CommandRunner = field(default_factory=ProcessRunner)

    @property
    def paths(self) -> PathPolicy:
        return PathPolicy(agent_home=self.home, sensitive=(*SENSITIVE, *self.config.paths.sensitive))


def builtin_sources(surroundings: Surroundings) -> tuple[ToolAdapter, ...]:
    """Return the sources that come with Soong and need no store."""
    return (CodeTools(surroundings.paths),)


def make_registry(surroundings: Surroundings, more: Iterable[ToolAdapter] = ()) -> ToolRegistry:
    """Return a registry of all tools; ``more`` are built-in sources that need what only the caller has (a store).

    Raises:
        InvalidToolError: a tool is refused; names the tool and why.
    """
    registry = ToolRegistry()
    for source in (*builtin_sources(surroundings), *more):
        registry.add(source, is_builtin=True)
    return registry
