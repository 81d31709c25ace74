"""The program: its help, exit codes and errors; and the examples that it brings."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soong.orchestrator.cli.commands import COMMANDS
from soong.orchestrator.operations.examples import examples
from soong.shared.core.installation import install_line
from tests.unit.cli.calling import soong, started_soong

NO_JSON = ("worker", "flower", "orchestrator")
PLAN = "title: One\nsteps:\n  - id: a\n    kind: python\n    call: builtin.echo\n"


AGENT = "title: T\nsteps:\n- {id: a, instructions: i%s}\n"
BAD_PLANS = {
    "cycle": (f"{PLAN}    depends_on: [a]\n", "a -> a"),
    "unknown tool": (AGENT % ", model: 'x:y', allowed_tools: [code.raed_file]", "did you mean 'code.read_file'?"),
    "unknown tool of a script": (
        AGENT % ", script: builtin.echo, allowed_tools: [code.raed_file]",
        "there is no tool 'code.raed_file'; did you mean 'code.read_file'?",
    ),
    "invalid yaml": ("title: T\nsteps: [\n", "invalid YAML"),
    "no model and no script": (AGENT % "", "--model"),
    "unknown model": (AGENT % ", model: gpt-4o", "the model 'gpt-4o' is not known"),
    "misspelled model": (AGENT % ", model: scirpt", "did you mean 'script'?"),
    "model without its package": (AGENT % ", model: 'mistral:large'", install_line("mistral")),
}


@pytest.mark.spec("DAG-08.b", "DIS-08")
@pytest.mark.parametrize(("text", "named"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_bad_plan_is_named_and_nothing_is_written(tmp_path: Path, text: str, named: str) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(text)

    done = soong("run", str(plan), home=tmp_path)

    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "soong").exists()


BAD_WORDS = {
    "missing file": (["run", "{folder}/nothing.yaml"], "there is no such file"),
    "unknown input": (["run", "{plan}", "--input", "x=1"], "no such input"),
    "input without value": (["run", "{plan}", "--input", "x"], "is not NAME=VALUE"),
    "input twice": (["run", "{plan}", "--input", "x=1", "--input", "x=2"], "given twice"),
    "missing project": (["run", "{plan}", "--project", "{folder}/none"], "does not exist"),
    "project is a file": (["run", "{plan}", "--project", "{plan}"], "is not a folder"),
    "allow without scope": (["run", "{plan}", "--allow", "code.write_file"], "code.write_file:/absolute/folder"),
    "rule for an unknown tool": (["run", "{plan}", "--allow", "code.write_flie:/srv/x"], "code.write_file"),
    "asking without a terminal": (["run", "{plan}", "--approvals", "prompt"], "not a terminal"),
    "asking nobody": (["run", "{plan}", "--approvals", "prompt", "--detach"], "leaves nobody to ask"),
    "resume without rows": (["resume", "task_x"], "nothing has run"),
    "resume of nothing": (["resume"], "--last"),
    "resume of two": (["resume", "task_x", "--last"], "--last"),
    "show without rows": (["tasks", "show", "task_x"], "nothing has run"),
    "no such command": (["rnu"], "Did you mean"),
    "no such option": (["run", "{plan}", "--tiemout", "3"], "--tiemout"),
    "wrong setting": (["run", "{plan}", "--workers", "none"], "--workers"),
    "worker without service": (["worker"], "soong up"),
    "flower without service": (["flower"], "soong up"),
    "orchestrator without urls": (["orchestrator"], "SOONG_DATABASE_URL and SOONG_REDIS_URL"),
}


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize(("words", "told"), BAD_WORDS.values(), ids=BAD_WORDS.keys())
def test_a_wrong_use_is_one_sentence_and_exit_code_2(tmp_path: Path, words: list[str], told: str) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)
    has_json = words[0] not in NO_JSON

    filled = [word.format(plan=plan, folder=tmp_path) for word in words]
    done = soong(*filled, *["--json"] * has_json, home=tmp_path)

    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "soong" / "soong.db").exists()
    if has_json:
        document = json.loads(done.stdout)
        assert (document["exit_code"], told in document["error"]["message"]) == (2, True)


@pytest.mark.spec("DAG-08.b", "DAG-08.c")
def test_a_good_plan_is_validated_and_drawn(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)

    assert json.loads(soong("tasks", "validate", str(plan), "--json", home=tmp_path).stdout)["steps"] == ["a"]
    assert soong("tasks", "graph", str(plan), home=tmp_path).stdout.startswith("flowchart TD")


@pytest.mark.spec("OPS-07.b")
def test_doctor_finds_a_fresh_machine_in_order(tmp_path: Path) -> None:
    done = soong("doctor", "--json", home=tmp_path)

    report = json.loads(done.stdout)
    assert {check["check"] for check in report["checks"]} >= {
        "python",
        "home",
        "sockets",
        "service",
        "database",
        "redis",
    }
    assert done.returncode == 0, report


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("version",), ("doctor",), ("tasks", "validate", "plan.yaml"), ("run", "plan.yaml"), ("up",)],
    ids=" ".join,
)
def test_every_command_refuses_a_setting_that_does_not_exist(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = soong(*arguments, home=tmp_path, SOONG_MODLE="x")

    assert done.returncode == 2
    assert done.stderr == "soong: settings: there is no 'SOONG_MODLE' (perhaps 'SOONG_MODEL')\n"


def test_help_is_shown_whatever_the_settings_are(tmp_path: Path) -> None:
    assert soong("run", "--help", home=tmp_path, SOONG_MODLE="x").returncode == 0


@pytest.mark.parametrize("words", [(), ("help",), ("--help",), ("tasks",), ("help", "tasks")], ids=" ".join)
def test_help_is_printed_and_is_no_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = soong(*words, home=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: soong")


def test_help_names_every_command_once_with_its_whole_sentence(tmp_path: Path) -> None:
    text = " ".join(soong("--help", home=tmp_path).stdout.split())

    for name, entry in COMMANDS.items():
        assert text.count(f" {name} {entry.summary}") == 1


def test_the_help_of_a_command_has_examples_that_name_it_and_no_sentence_that_is_cut(tmp_path: Path) -> None:
    for name, entry in COMMANDS.items():
        text = soong("help", name, home=tmp_path).stdout
        assert "...\n" not in text.replace("[ARGS]...\n", ""), name
        if entry.examples and name != "help":
            assert f"soong {name}" in text.split("Examples:")[1], name


@pytest.mark.parametrize("words", [("version",), ("--version",), ("-V",)], ids=" ".join)
def test_the_version_has_three_spellings(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert soong(*words, home=tmp_path).stdout.startswith("soong 0.")


def test_the_version_as_json_names_the_interpreter(tmp_path: Path) -> None:
    assert json.loads(soong("version", "--json", home=tmp_path).stdout)["executable"] == sys.executable


@pytest.mark.parametrize(
    ("typed", "offered"), [(["ta"], "tasks"), (["tasks", "val"], "validate"), (["run", "--det"], "--detach")]
)
def test_bash_completes_commands_and_options(tmp_path: Path, typed: list[str], offered: str) -> None:
    bin_folder = Path(sys.executable).parent
    words = " ".join(f'"{word}"' for word in ["soong", *typed])
    script = (
        f'PATH={bin_folder}:$PATH; eval "$(soong completion bash)"; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; '
        '_soong_completion soong; echo "${COMPREPLY[*]}"'
    )

    done = subprocess.run(
        ["/bin/bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )

    assert offered in done.stdout.split()


def test_completion_without_a_known_shell_names_the_choices(tmp_path: Path) -> None:
    done = soong("completion", home=tmp_path, SHELL="/bin/tcsh")

    assert done.returncode == 2
    assert "'tcsh'" in done.stderr
    assert "bash, zsh, fish" in done.stderr


def test_config_show_names_the_source_of_each_setting_and_no_password(tmp_path: Path) -> None:
    url = "postgresql://ada:very-secret-word@db.example:5432/soong"

    done = soong("config", "show", "--json", home=tmp_path, SOONG_DATABASE_URL=url, SOONG_WORKERS="3")

    settings = {one["name"]: one for one in json.loads(done.stdout)["settings"]}
    assert (settings["SOONG_WORKERS"]["value"], settings["SOONG_WORKERS"]["source"]) == ("3", "environment")
    assert settings["SOONG_SLOTS"]["source"] == "default"
    assert settings["SOONG_DATABASE_URL"]["value"] == "postgresql://ada:***@db.example:5432/soong"
    assert "very-secret-word" not in done.stdout + soong("config", "show", home=tmp_path, SOONG_DATABASE_URL=url).stdout


def test_status_of_a_home_without_a_service_says_so_with_exit_code_1(tmp_path: Path) -> None:
    done = soong("status", "--json", home=tmp_path)

    assert done.returncode == 1
    assert json.loads(done.stdout)["service"]["state"] == "none"


def test_every_problem_of_a_plan_has_its_place_in_the_document_and_a_prefix_on_its_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text("title: T\nsteps:\n- {id: a, kind: python, call: builtin.ehco}\n- {id: a, kind: none}\n")

    done = soong("tasks", "validate", str(plan), "--json", home=tmp_path)

    problems = json.loads(done.stdout)["error"]["problems"]
    assert len(problems) >= 2
    assert all(one["place"].startswith(f"{plan}:") and one["hint"] for one in problems)
    assert [line for line in done.stderr.splitlines() if not line.startswith("soong: ")] == []


@pytest.mark.parametrize("words", [("--quiet", "tasks"), ("tasks", "--quiet"), ("tasks", "-q")], ids=" ".join)
def test_quiet_is_taken_at_any_place_and_leaves_the_result(tmp_path: Path, words: tuple[str, ...]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN)

    done = soong(*words, "validate", str(plan), home=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verbose_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    done = started_soong("tasks", "show", "task_x", "--verbose", home=tmp_path)

    assert "Traceback" in done.stderr
    assert done.stderr.endswith("start with `soong run PLAN`\n")


def test_the_list_names_every_example_with_a_sentence_that_is_not_cut(tmp_path: Path) -> None:
    shown = soong("demo", "--list", home=tmp_path).stdout
    listed = json.loads(soong("demo", "--list", "--json", home=tmp_path).stdout)

    assert {"approve", "audit", "hello", "mixed", "pull", "refactor", "research"} <= {one["name"] for one in listed}
    assert all(one["summary"] in shown for one in listed)


@pytest.mark.parametrize("name", [one.name for one in examples()])
def test_a_copy_is_a_plan_without_problem(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine"

    made = soong("demo", name, "--copy", str(folder), home=tmp_path)
    checked = soong("tasks", "validate", made.stdout.strip(), home=tmp_path)

    assert (made.returncode, Path(made.stdout.strip())) == (0, folder / f"{name}.yaml")
    assert f"run {folder}/{name}.yaml" in made.stderr
    assert checked.returncode == 0
    assert "is a plan" in checked.stderr


@pytest.mark.parametrize(
    ("place", "says"),
    [(".", "has hello.py already; choose another folder with --copy DIR"), ("hello.py", "is not a folder")],
    ids=["a file of the example", "a file for a folder"],
)
def test_a_copy_replaces_nothing(tmp_path: Path, place: str, says: str) -> None:
    mine = tmp_path / "hello.py"
    mine.write_text("mine")

    refused = soong("demo", "hello", "--copy", str(tmp_path / place), home=tmp_path)

    assert (refused.returncode, mine.read_text()) == (2, "mine")
    assert f"{tmp_path / place} {says}" in refused.stderr
    assert not (tmp_path / "hello.yaml").exists()


@pytest.mark.parametrize("name", ["nope", "../hello", ""])
def test_an_unknown_example_is_refused_with_those_that_there_are(tmp_path: Path, name: str) -> None:
    refused = soong("demo", name, home=tmp_path)

    assert refused.returncode == 2
    assert f"there is no example {name!r}; choose one of approve, audit, hello" in refused.stderr
    assert not (tmp_path / "soong" / "soong.db").exists()
