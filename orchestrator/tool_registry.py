"""Every tool as clients know it: described, whether or not it can be called where the client stands."""

from typing import cast

from shared.clock import SystemClock
from shared.tasks.store import TaskStore
from shared.tools.definition import ToolAdapter
from shared.tools.registry import ToolRegistry
from shared.toolsets.sources import Surroundings, make_registry
from shared.toolsets.tasks import TaskTools


def registry_of(surroundings: Surroundings) -> ToolRegistry:
    """Return a registry of every tool, for describing: those of :func:`run_sources` cannot be called from it.

    Raises:
        InvalidToolError, InvalidConfigError: as :func:`make_registry`.
    """
    return make_registry(surroundings, run_sources())


def run_sources() -> tuple[ToolAdapter, ...]:
    """Return the sources whose tools work on a run's rows, only described here: workers have them over their store."""
    return (TaskTools(cast(TaskStore, None), lambda: "", SystemClock()),)
