"""``python -P -m tests.system.faults.owner``: ``soong orchestrator`` with the faults that the environment names."""

import sys

import tests.system.faults.plugin  # noqa: F401  # installs them
from orchestrator.cli.main import main

if __name__ == "__main__":
    sys.argv[1:] = ["orchestrator"]
    main()
