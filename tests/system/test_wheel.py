"""The wheel as a user installs it: typed, and not confused by packages of the folder that one works in (OPS-09)."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import soong
from tests.spec_document import ROOT
from tests.system.cli_scene import Scene, scene

pytestmark = pytest.mark.timeout(300)

BIN = Path(sys.executable).parent
PLAN = "title: Echo\nsteps:\n- {id: echo, kind: python, call: builtin.echo, inputs: {x: 42}}\n"


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """An environment in which the wheel is installed, with the dependencies of this one."""
    with tempfile.TemporaryDirectory(prefix="soong-wheel-") as name:
        folder = Path(name)
        source = shutil.copytree(ROOT, folder / "source", ignore=_not_ours)
        build = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
        made = _called([sys.executable, "-P", "-c", build, str(folder)], source).stdout.split()[-1]
        environment = folder / "env"
        venv.create(environment, with_pip=False, symlinks=True)
        words = ["uv", "pip", "install", "--offline", "--no-deps", "--python", str(environment), str(folder / made)]
        _called([str(BIN / words[0]), *words[1:]], folder)
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        yield environment


def _not_ours(_folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in ("tests", "benchmarks", "build") or name.startswith(".")}


def _called(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


@pytest.mark.spec("OPS-09.b")
def test_a_type_checker_sees_the_type_of_every_public_name(installed: Path, tmp_path: Path) -> None:
    names = sorted(soong.__all__)
    lines = ["import soong", *(f"reveal_type(soong.{name})" for name in names)]
    (tmp_path / "program.py").write_text("\n".join(lines) + "\n")
    checker = ["-P", "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "program.py"]

    shown = _called([sys.executable, *checker, "--python-executable", str(installed / "bin" / "python")], tmp_path)

    types = re.findall(r'Revealed type is "(.*)"', shown.stdout)
    assert len(types) == len(names)
    assert {name: type_ for name, type_ in zip(names, types, strict=True) if type_ == "Any"} == {}


@pytest.mark.spec("OPS-09.c")
def test_packages_of_ones_own_with_our_names_confuse_nobody(installed: Path) -> None:
    with scene() as cli:
        for name in ("shared", "worker", "orchestrator"):
            (cli.folder / name).mkdir()
            (cli.folder / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the project')\n")

        done = _soong(cli, installed, "run", cli.plan(PLAN))

        assert done.returncode == 0, f"{done.stderr}{cli.logs()}"
        assert "42" in done.stdout
        cli.assert_nothing_left()


def _soong(cli: Scene, installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = str(installed / "bin" / "soong")
    return subprocess.run(
        [program, *words], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=False, timeout=120
    )
