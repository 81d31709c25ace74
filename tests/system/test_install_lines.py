"""The lines of the tutorial that install Soong, word by word: real pipx and uvx, an index, a home with nothing in it.

What the wheel holds and does is tested elsewhere without a network (tests/system/test_wheel.py).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.extra import pipx_program
from tests.spec_document import ROOT
from tests.system import test_wheel
from tests.system.cli_scene import until
from tests.system.test_wheel import Distributions

pytestmark = [pytest.mark.timeout(900), pytest.mark.spec("OPS-09.c")]

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
built = test_wheel.built
"""The fixture of the wheel."""
PASSED_ON = re.compile(r"(PIP|UV|SSL)_.*|https?_proxy|no_proxy", re.IGNORECASE)
"""Where the index is, and whom to trust for it."""
INSTALL_S = 600


def shown(word: str) -> str:
    """Return the line of the tutorial that begins with a word, without its comment."""
    (line,) = (each for each in TUTORIAL.splitlines() if each.startswith(f"{word} "))
    return line.partition("  #")[0].strip()


@dataclass(frozen=True)
class Newcomer:
    """Somebody with a wheel in a folder, pipx and uvx on the path, and nothing else."""

    home: Path
    folder: Path
    environment: dict[str, str]

    def run(self, line: str) -> str:
        """Run a line in their shell; return what it said, in which nothing went wrong."""
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_S,
        )
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def opens_the_console(self, line: str) -> None:
        """Run a line that serves the console, look at its page, interrupt it, and see it end as it should."""
        said = self.home / "said"
        with (
            said.open("w") as written,
            subprocess.Popen(
                ["/bin/bash", "-c", f"exec {line}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            ) as console,
        ):
            try:
                until(lambda: "#code=" in said.read_text(), "a link", said.read_text)
                address = re.findall(r"(http://\S+)#code=", said.read_text())[0]
                with urllib.request.urlopen(address, timeout=60) as page:
                    assert (page.status, "/console/console.js" in page.read().decode()) == (200, True)
            finally:
                os.killpg(console.pid, signal.SIGINT)  # as a terminal sends it
                console.wait(120)
        assert "Traceback" not in said.read_text()
        assert console.returncode in (0, 130), said.read_text()

    def processes(self) -> list[str]:
        """Return the words of every process that lives in this home."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except psutil.Error:  # it has ended, or is another user's
                continue
        return found


@pytest.fixture
def newcomer(built: Distributions) -> Iterator[Newcomer]:
    pipx = Path(pipx_program())
    with tempfile.TemporaryDirectory(prefix="soong-new-") as name:
        home, folder, programs = (Path(name) / part for part in ("home", "downloads", "bin"))
        for made in (home, folder, programs):
            made.mkdir()
        shutil.copy(built.wheel, folder)
        for program in (pipx, *(Path(sys.executable).with_name(word) for word in ("uv", "uvx"))):
            (programs / program.name).symlink_to(program)
        passed_on = {key: value for key, value in os.environ.items() if PASSED_ON.fullmatch(key)}
        path = f"{home}/.local/bin:{programs}:{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin"
        yield Newcomer(home, folder, {**passed_on, "HOME": str(home), "PATH": path})


def test_what_pipx_installs_runs_the_demo_and_the_console(newcomer: Newcomer) -> None:
    newcomer.run(shown("pipx install"))

    assert "Hello world" in newcomer.run("soong demo hello")
    newcomer.opens_the_console("soong console --no-open")
    until(lambda: not newcomer.processes(), "nothing of it is left", lambda: str(newcomer.processes()))


def test_uvx_runs_the_demo_and_the_console_without_an_installation(newcomer: Newcomer) -> None:
    line = shown("uvx --from")
    assert line.endswith(" soong demo hello")

    assert "Hello world" in newcomer.run(line)
    newcomer.opens_the_console(line.replace("demo hello", "console --no-open"))
    until(lambda: not newcomer.processes(), "nothing of it is left", lambda: str(newcomer.processes()))
    assert not (newcomer.home / ".local" / "bin" / "soong").exists()
