"""The hooks of a process that runs agents: those that its modules registered, then those that its configuration has."""

from pathlib import Path

from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.command import hooks_of
from soong.shared.tools.hooks.sdk import registered_hooks
from soong.shared.toolsets.sources import ToolEnvironment


def all_hooks(environment: ToolEnvironment, redactor: Redactor, home: Path) -> Hooks:
    """Return them in their order; ``home`` is where configured ones start.

    Raises: InvalidConfigError when a configured one cannot be used.
    """
    config = environment.config
    configured = hooks_of(config.hooks, environment.runner, home=home, commands=config.commands, redactor=redactor)
    return registered_hooks() + configured
