"""Each optional part can be missing: the demo runs without it, and nothing else misses it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest

from soong.shared.core.installation import install_line

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "the MCP client": ("soong.shared.toolsets.mcp",),
    "the MCP server": ("soong.orchestrator.mcp",),
    "agents over ACP": ("soong.worker.acp", "soong.orchestrator.acp"),
    "notifications": ("soong.orchestrator.notifications",),
    "telemetry": ("soong.orchestrator.telemetry",),
    "memory": ("soong.orchestrator.memory", "soong.shared.storage.memory", "soong.shared.toolsets.memory"),
    "declarative tools": ("soong.shared.toolsets.declarative",),
    "skills": ("soong.shared.toolsets.skills",),
    "the web tool": ("soong.shared.toolsets.web",),
    "retention and backups": ("soong.orchestrator.retention", "soong.orchestrator.backup"),
    "replay": ("soong.orchestrator.replay", "soong.shared.agents.replay"),
    "artifacts in S3": ("soong.shared.storage.s3_artifacts",),
}
RUNS: Final = range(6)
MISSING: Final = """
import sys
from importlib.abc import MetaPathFinder

LEFT_OUT = {left_out!r}


class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if any(f"{{name}}.".startswith(f"{{part}}.") for part in LEFT_OUT):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
"""


def soong_without(left_out: tuple[str, ...], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(MISSING.format(left_out=left_out))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "SOONG_AGENT_HOME": str(folder / "home"),
        "PYTHONPATH": str(folder / "site"),
    }
    return subprocess.run(
        [sys.executable, "-P", "-m", "soong", *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("run", RUNS)
def test_the_demo_runs_without_optional_parts(run: int, tmp_path: Path) -> None:
    """Each part is left out in three runs, in one of them beside each part that stays."""
    missing = zip(PARTS.values(), combinations(RUNS, 3), strict=False)
    left_out = tuple(name for names, runs in missing if run in runs for name in names)

    done = soong_without(left_out, tmp_path, "demo", "hello", "--input", "name=Ada")

    assert (done.returncode, "Ada" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_command_of_a_part_that_is_left_out_says_so(tmp_path: Path) -> None:
    done = soong_without(("soong.orchestrator.backup",), tmp_path, "backup", str(tmp_path / "one.tar"))

    assert done.returncode == 1
    assert done.stderr.startswith("soong: soong.orchestrator.backup"), done.stderr
    assert done.stderr.endswith("is left out of this installation; install the complete package\n"), done.stderr


def test_the_line_that_adds_an_extra_works_for_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    line = install_line("otel")
    assert line.startswith("pip install ")
    modes = ("DRY_RUN", "NO_INDEX", "NO_DEPS", "IGNORE_INSTALLED")
    environment = {f"PIP_{mode}": "1" for mode in modes} | {"PIP_NO_BUILD_ISOLATION": "0", "HOME": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"

    done = subprocess.run(
        line, shell=True, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, "Would install soong-agents" in done.stdout) == (0, True), done.stdout + done.stderr
