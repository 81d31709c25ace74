"""``soong`` called as a command, by a process that has imported already what it needs."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.warm import called

LIMIT_S = 60.0


def soong(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call it in an environment of its own; return how it ended and what it said."""
    env = _environment(home, environment)
    return called("soong.orchestrator.cli", arguments, env=env, cwd=Path.cwd(), limit_s=LIMIT_S)


def started_soong(*arguments: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start it from nothing: for what the interpreter itself makes of its environment."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "soong.orchestrator.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        env=_environment(home, environment),
    )


def _environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "SOONG_AGENT_HOME": str(home / "soong"), **more}
