"""Whether a person can be asked at this terminal."""

from typing import Final

from soong.orchestrator.approvals.provenance import is_run_here
from soong.orchestrator.cli.console import is_terminal

NO_TERMINAL: Final = "standard input and output are not a terminal"
OF_A_RUN: Final = "a run started this command, and runs do not answer for people"


def why_nobody_is_asked() -> str:
    """Say why nobody can be asked here; empty when a person can be (PER-13)."""
    if not is_terminal():
        return NO_TERMINAL
    return OF_A_RUN if is_run_here() else ""
