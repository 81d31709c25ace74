"""The modules of a plan: kept by task, imported here or in a child process."""

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from soong.orchestrator.embedded.module_import import import_apart
from soong.orchestrator.embedded.own_modules import FILE, MAX_TASKS, KeptModules, keep_modules, kept_modules
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.settings import Settings
from tests.unit.cli.calling import soong

pytestmark = pytest.mark.spec("DIS-13")


def with_modules(settings: Settings, folder: Path) -> Settings:
    return settings.model_copy(update={"functions": ("research",), "import_path": str(folder)})


def test_only_the_latest_tasks_are_kept(settings: Settings, tmp_path: Path) -> None:
    tasks = [f"task_{number}" for number in range(MAX_TASKS + 1)]
    for one in tasks:
        keep_modules(with_modules(settings, tmp_path), one)

    assert [*kept_modules(settings)] == tasks[1:]
    assert kept_modules(settings)[tasks[1]] == KeptModules(("research",), (str(tmp_path),))


def test_a_client_of_a_deployment_keeps_nothing_in_its_home(settings: Settings, tmp_path: Path) -> None:
    client = with_modules(settings, tmp_path).model_copy(update={"database_url": "postgresql://db/soong"})
    settings.home.chmod(0o500)

    keep_modules(client, "task_1")

    assert not client.is_embedded
    assert not (settings.home / FILE).exists()


def test_programs_that_keep_modules_at_the_same_time_lose_none(settings: Settings, tmp_path: Path) -> None:
    tasks = [f"task_{number}" for number in range(40)]

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: keep_modules(with_modules(settings, tmp_path), one), tasks))

    assert {*kept_modules(settings)} == {*tasks}


def test_a_broken_file_of_kept_modules_is_as_none(settings: Settings) -> None:
    (settings.home / FILE).write_text("{")

    assert kept_modules(settings) == {}


RESEARCH = """
import sys
from soong import scripted_agent, step

print("printed at import")

@step(name="research.count")
def count(**inputs):
    return 1

@scripted_agent("research.note")
async def note(inputs, agent):
    if inputs:
        await agent.call("code.raed_file", path="x")
    await agent.call("code.read_file", path="x")
"""

BROKEN = "def count(:\n"


def validated(tmp_path: Path, step: str, module: str = RESEARCH, **environment: str) -> tuple[int, str]:
    (tmp_path / "research.py").write_text(module)
    named = "" if environment else "modules: [research]\n"
    (tmp_path / "plan.yaml").write_text(f"title: T\n{named}steps:\n  - {step}\n")
    done = soong("tasks", "validate", str(tmp_path / "plan.yaml"), home=tmp_path, **environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ("{id: a, kind: python, call: research.cuont}", "function 'research.cuont'; did you mean 'research.count'"),
        ("{id: a, script: research.noet}", "no scripted agent 'research.noet'; did you mean 'research.note'"),
        ("{id: a, script: research.note}", "'code.raed_file', which does not exist; did you mean 'code.read_file'"),
        (
            "{id: a, script: builtin.calls, inputs: {calls: [{call: code.raed_file}]}}",
            "steps[0].inputs.calls[0].call: there is no tool 'code.raed_file'; did you mean 'code.read_file'",
        ),
    ],
    ids=["function", "script", "tool-of-a-script", "tool-of-calls"],
)
def test_a_name_that_does_not_exist_is_found(tmp_path: Path, step: str, words: str) -> None:
    code, output = validated(tmp_path, step)

    assert code == 2
    assert words in output
    assert "printed at import" not in output


def test_a_module_with_a_syntax_error_is_found(tmp_path: Path) -> None:
    code, output = validated(tmp_path, "{id: a, kind: python, call: research.count}", BROKEN)

    assert code == 2
    assert "modules[0]: the plan names 'research', which cannot be imported: SyntaxError" in output


def test_a_plan_whose_functions_exist_is_valid(tmp_path: Path) -> None:
    assert validated(tmp_path, "{id: a, kind: python, call: research.count}")[0] == 0


def test_the_functions_of_the_setting_count_too(tmp_path: Path) -> None:
    settings: Mapping[str, str] = {"SOONG_FUNCTIONS": "research", "SOONG_IMPORT_PATH": str(tmp_path)}

    code, output = validated(tmp_path, "{id: a, kind: python, call: research.cuont}", **settings)

    assert (code, "did you mean 'research.count'" in output) == (2, True)


def test_a_deployment_is_asked_for_nothing_that_only_a_plan_file_has(tmp_path: Path) -> None:
    code, output = validated(tmp_path, "{id: a, script: research.note}")
    plan = str(tmp_path / "plan.yaml")

    done = soong("tasks", "validate", plan, home=tmp_path, SOONG_DATABASE_URL="postgresql://127.0.0.1:1/x")

    assert code == 2, output
    assert "does not name the module 'research'; add it to SOONG_FUNCTIONS of this command and of every" in done.stderr
    assert "soong run" not in done.stderr
    assert "next to the plan" not in done.stderr


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import time; time.sleep(60)", "research: the import takes longer than 5 s"),
        ("import os; os._exit(0)", "ended its"),
    ],
    ids=["endless", "exit"],
)
def test_an_import_that_does_not_end_or_ends_its_process_is_named(tmp_path: Path, module: str, words: str) -> None:
    (tmp_path / "research.py").write_text(
        f"import os\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n{module}"
    )
    begun = time.monotonic()

    with pytest.raises(InvalidConfigError, match=words):
        import_apart(["research"], (), [str(tmp_path)], limit_s=5)

    assert time.monotonic() - begun < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text() or "-1"), 0)
