import subprocess
import tomllib
from collections.abc import Iterator

import pytest

from soong.shared.core.config import parse_config
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene


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
