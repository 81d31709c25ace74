"""Arguments that no command takes are refused with words that name them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soong.orchestrator.cli.commands import COMMANDS
from tests.unit.cli.calling import soong

SAYS = r"holds a lone surrogate, which is not Unicode; expected Unicode text without NUL"


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_an_argument_of_any_command_that_is_not_utf_8_is_refused(tmp_path: Path, name: str) -> None:
    as_word = soong(name, "a\udcffb", home=tmp_path)
    as_option = soong(name, "--json", "--option=a\udcffb", home=tmp_path)

    assert (as_word.returncode, as_word.stderr) == (2, rf"soong: the argument 'a\udcffb' {SAYS}" + "\n")
    assert as_option.returncode == 2
    assert json.loads(as_option.stdout)["error"]["message"] == rf"the argument '--option=a\udcffb' {SAYS}"


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize(
    ("option", "named"),
    [("--name", "--name"), ("--labels", "settings: SOONG_LABELS:"), ("--pools", "settings: SOONG_")],
)
def test_an_option_of_a_worker_process_that_is_not_utf_8_is_refused(tmp_path: Path, option: str, named: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "soong.worker", option, b"a\xff"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SOONG_AGENT_HOME": str(tmp_path)},
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"soong worker: {named}")
    assert r"'a\udcff'" in done.stderr.decode()


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize("name", ["SOONG_MODEL", "SOONG_LABELS", "SOONG_IMPORT_PATH"])
def test_a_setting_that_is_not_utf_8_is_refused(tmp_path: Path, name: str) -> None:
    done = soong("config", "show", home=tmp_path, **{name: "a\udcff"})

    assert (done.returncode, done.stderr) == (2, rf"soong: settings: {name}: 'a\udcff' {SAYS}" + "\n")


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize("content", [b"postgresql://u:pass\xffword@db/x", b"postgresql://u:pass\0word@db/x"])
def test_a_url_in_a_file_that_is_not_text_is_refused_without_its_password(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "url"
    file.write_bytes(content)

    done = soong("doctor", home=tmp_path, SOONG_DATABASE_URL_FILE=os.fspath(file))

    assert done.returncode == 2
    assert "SOONG_DATABASE_URL" in done.stderr
    assert "UTF-8" in done.stderr
    assert "pass" not in done.stderr.replace("passed", "")


@pytest.mark.spec("OPS-04", "DAG-08")
def test_a_plan_with_nul_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text('title: "a\\0b"\nsteps:\n  - id: a\n    kind: python\n    call: builtin.echo\n')

    done = soong("run", str(plan), home=tmp_path)

    assert done.returncode == 2
    assert r"plan.yaml:1 title: 'a\x00b' holds a NUL character; write Unicode text without NUL" in done.stderr
    assert "\0" not in done.stderr
