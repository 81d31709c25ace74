"""``python -P -m tests.system.faults.owner``: ``soong orchestrator`` with the faults that the environment names."""

import tests.system.faults.plugin  # noqa: F401  # installs them
from orchestrator.cli.orchestrator import command

if __name__ == "__main__":
    command()
