"""What a home begins with: the tutorial's lines that install Soong, and ``soong init``."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from soong.shared.core.config import parse_config
from tests.extra import pipx_program
from tests.spec_document import ROOT
from tests.system import test_wheel
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene, until
from tests.system.test_wheel import Distributions

pytestmark = pytest.mark.timeout(900)

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
def newcomer(request: pytest.FixtureRequest) -> Iterator[Newcomer]:
    pipx = Path(pipx_program())  # nothing is built for one that is not there
    built: Distributions = request.getfixturevalue("built")
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


@pytest.mark.spec("OPS-09.c")
def test_what_pipx_installs_runs_the_demo_and_the_console(newcomer: Newcomer) -> None:
    newcomer.run(shown("pipx install"))

    assert "Hello world" in newcomer.run("soong demo hello")
    newcomer.opens_the_console("soong console --no-open")
    until(lambda: not newcomer.processes(), "nothing of it is left", lambda: str(newcomer.processes()))


@pytest.mark.spec("OPS-09.c")
def test_uvx_runs_the_demo_and_the_console_without_an_installation(newcomer: Newcomer) -> None:
    line = shown("uvx --from")
    assert line.endswith(" soong demo hello")

    assert "Hello world" in newcomer.run(line)
    newcomer.opens_the_console(line.replace("demo hello", "console --no-open"))
    until(lambda: not newcomer.processes(), "nothing of it is left", lambda: str(newcomer.processes()))
    assert not (newcomer.home / ".local" / "bin" / "soong").exists()


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    with scene() as one:
        (one.folder / "notes.md").write_text("one two three\n")
        yield one


@pytest.mark.spec("OPS-14.a")
def test_the_first_plan_is_checked_and_runs_and_asks_once_it_writes(cli: CliHarness) -> None:
    written = cli.json("init")["files"]

    assert [name.removeprefix(f"{cli.folder}/") for name in written] == [
        "plan.yaml",
        "steps.py",
        ".soong/agents/reader.md",
        "home/config.toml",
    ]
    assert cli.run("tasks", "validate", "plan.yaml").returncode == 0
    assert cli.json("agents", "show", "project.reader")["mode"] == "readonly"
    plan = cli.folder / "plan.yaml"
    head, _, tail = plan.read_text().partition("  # - id: write")
    plan.write_text(head + "  - id: write" + tail.replace("\n  #   ", "\n    "))
    cli.serve_with("steps")
    done = cli.json("run", "plan.yaml", "--project", ".", "--allow", f"code.write_file:{cli.folder}")
    assert done["status"] == "completed"
    assert (cli.folder / "words.json").read_text().startswith('{"files": 2, "words": ')


@pytest.mark.spec("OPS-14.a")
def test_the_command_that_is_printed_runs_the_plan_from_where_it_is_printed(cli: CliHarness) -> None:
    (cli.folder / "bin").mkdir()
    (cli.folder / "bin/soong").symlink_to(CONSOLE_SCRIPT[0])
    called = subprocess.run(
        ["bin/soong", "init", "my plan"], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=True
    )
    (cli.folder / "my plan/notes.md").write_text("one two three\n")

    printed = called.stderr.partition("edit them, then: ")[2].strip()
    done = subprocess.run(
        ["sh", "-c", printed], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, (printed, done.stderr)
    assert "completed" in done.stdout


@pytest.mark.spec("OPS-14.b")
def test_nothing_that_is_there_is_replaced(cli: CliHarness) -> None:
    cli.home.mkdir(mode=0o700)
    (cli.home / "config.toml").write_text('[permission]\nmode = "strict"\n')
    (cli.folder / "steps.py").symlink_to("/nonexistent")

    refused = cli.run("init")
    elsewhere = cli.run("init", "project")

    assert (refused.returncode, "has steps.py already" in refused.stderr) == (2, True)
    assert not (cli.folder / "plan.yaml").exists()
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert (cli.folder / "project" / "plan.yaml").exists()
    assert "strict" in (cli.home / "config.toml").read_text()
    not_a_folder = cli.run("init", "notes.md")
    assert (not_a_folder.returncode, "notes.md is not a folder" in not_a_folder.stderr) == (2, True)


@pytest.mark.spec("OPS-14.a")
def test_what_the_configuration_suggests_can_be_read_too(cli: CliHarness) -> None:
    assert cli.run("init").returncode == 0
    text = (cli.home / "config.toml").read_text()
    suggested = "\n".join(line.removeprefix("# ") for line in text.splitlines()[1:])

    parse_config(text)
    assert tomllib.loads(suggested)["tools"] == {"dangerous": True}
    parse_config(suggested)
