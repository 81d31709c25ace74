"""A browser driven by a script of tests/console, which asks the test for what has to happen outside of it."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "console"
NOTHING: Mapping[str, Callable[..., Any]] = MappingProxyType({})


def drive(
    script: str, *words: str, folder: Path, actions: Mapping[str, Callable[..., Any]] = NOTHING
) -> dict[str, Any]:
    """Run a script of tests/console to its end and return what it found; ``actions`` are what it may ask for."""
    for path in SCRIPTS.glob("*.mjs"):
        shutil.copy(path, folder / path.name)
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            ["node", script, *words],
            cwd=folder,
            env={**os.environ, "CHROMIUM": os.environ.get("CHROMIUM", "/usr/bin/chromium")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as driver,
    ):
        assert driver.stdin is not None
        assert driver.stdout is not None
        try:
            for line in driver.stdout:
                told = json.loads(line)
                if "found" in told:
                    found: dict[str, Any] = told["found"]
                    return found
                driver.stdin.write(json.dumps(actions[told["action"]](*told["given"])) + "\n")
                driver.stdin.flush()
        finally:
            driver.kill()
        said.seek(0)
        raise AssertionError(f"{script} ended without a word: {said.read()[-3000:]}")
