"""``soong tools``: what is shown, called and reported, and how arguments are read."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soong.orchestrator.cli.tool_call import read_arguments
from soong.orchestrator.client.catalog import Catalogue
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.tools.schema import close
from tests.unit.cli.calling import soong, started_soong

TOOLS = """
from soong import Permission, Toolset

tools = Toolset()


@tools.tool("team.paint", permission=Permission.READONLY)
def paint() -> str:
    '''Paint the terminal.'''
    return "\\x1b[2Jover\\rwritten \\u202e"


@tools.tool("team.big", permission=Permission.READONLY)
def big() -> str:
    '''Say much.'''
    return "x" * 50_000


@tools.tool("team.torn", permission=Permission.READONLY)
def torn() -> dict[str, str]:
    '''Return what is no Unicode.'''
    return {"half": "a\\udcffb"}


@tools.tool("team.block", permission=Permission.READONLY)
def block() -> None:
    '''Hold a thread that nothing stops.'''
    import time

    time.sleep(300)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "team_tools.py").write_text(TOOLS)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "notes.txt").write_text("hello\n")
    return folder


def tools(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    modules = project.parent / "modules"
    where = ("--project", str(project)) if words[0] == "call" else ()
    return soong("tools", *words, *where, home=project.parent, SOONG_TOOLS="team_tools", PYTHONPATH=str(modules))


def told(project: Path, *words: str) -> Any:
    done = tools(project, *words, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


@pytest.mark.spec("REG-09", "OPS-04")
def test_tools_are_listed_in_registry_order_with_their_source(project: Path) -> None:
    listed = told(project, "list")
    shown = tools(project, "list").stdout.splitlines()

    names = [tool["name"] for tool in listed]
    sources = {tool["name"]: tool["source"] for tool in listed}
    assert names[-4:] == ["team.big", "team.block", "team.paint", "team.torn"]
    assert names[:-4] == sorted(names[:-4])
    assert (sources["code.read_file"], sources["team.big"]) == ("built-in", "module team_tools")
    assert [line.split()[0] for line in shown[1:]] == names


def test_a_roles_list_is_its_tool_set(project: Path) -> None:
    names = [tool["name"] for tool in told(project, "list", "--role", "worker")]

    assert "code.read_file" in names
    assert not {"code.write_file", "team.big"} & set(names)


def test_a_tool_is_shown_with_all_that_a_caller_needs(project: Path) -> None:
    text = tools(project, "show", "code.read_file").stdout
    facts = told(project, "show", "code.read_file")

    assert all(word in text for word in ("start_line", "required", "[1]", "readonly", "filesystem", "built-in"))
    assert facts["input_schema"]["required"] == ["path"]
    assert facts["permission"] == "readonly"


@pytest.mark.parametrize("command", ["show", "call"])
def test_an_unknown_tool_is_a_usage_error_with_the_close_ones(project: Path, command: str) -> None:
    done = tools(project, command, "code.raed_file")

    assert done.returncode == 2
    assert "there is no tool 'code.raed_file'; did you mean code.read_file" in done.stderr


@pytest.mark.spec("ETS-08.b", "ETS-01.b", "ETS-01.e")
def test_the_explanation_is_what_a_run_stores(project: Path) -> None:
    catalogue = Catalogue.of(load_settings(agent_home=project.parent / "soong"))
    step = StepSpec("a", allowed_tools=("code.write_file", "code.search"))
    stored = catalogue.surface_of(step)["decisions"]

    explained = told(project, "explain", "--role", "worker", "--allowed-tools", "code.write_file,code.search")

    built_in = [each for each in explained["decisions"] if not each["tool"].startswith("team.")]
    rows = [[each["tool"], each["is_in"], each["rule"]] for each in built_in]
    assert tuple(rows) == stored
    assert explained["tools"] == ["code.search", "code.write_file"]


@pytest.mark.spec("ETS-08.b")
@pytest.mark.parametrize(
    ("words", "tool", "is_in", "rule"),
    [
        (["--role", "worker"], "code.write_file", False, "not in agent definition"),
        (["--role", "main"], "code.write_file", True, "default of role main: *"),
        (["--role", "main", "--mode", "plan"], "code.write_file", False, "mode plan: not readonly"),
        (["--role", "sub", "--allowed-tools", "code.*"], "code.search", True, "allowed_tools: code.*"),
        (["--role", "main"], "team.big", True, "default of role main: *"),
        (["--role", "main", "--agent", "default_worker_agent"], "code.write_file", False, "not in agent definition"),
        (["--role", "worker"], "code.read_file", True, "agent definition: code.read_file"),
    ],
    ids=["worker", "main", "plan", "sub", "own", "agent", "worker's own"],
)
def test_every_tool_is_in_or_out_by_a_named_rule(
    project: Path, words: list[str], tool: str, is_in: bool, rule: str
) -> None:
    decisions = {each["tool"]: each for each in told(project, "explain", *words)["decisions"]}

    assert (decisions[tool]["is_in"], decisions[tool]["rule"]) == (is_in, rule)


def test_an_asked_name_that_is_no_tool_is_reported(project: Path) -> None:
    done = tools(project, "explain", "--allowed-tools", "code.raed_file, code.search")

    assert "no tool is called 'code.raed_file'; did you mean code.read_file" in done.stderr
    assert done.returncode == 0


@pytest.mark.spec("EXE-12.c", "RES-06")
def test_a_call_tells_a_person_the_content_and_a_program_the_whole_result(project: Path) -> None:
    person = tools(project, "call", "code.read_file", "path=notes.txt")
    program = told(project, "call", "code.read_file", "path=notes.txt")

    assert (person.returncode, person.stdout) == (0, "     1\thello\n\n")
    assert program["data"]["text"] == "hello\n"
    assert program.keys() == {
        "v",
        "tool_call_id",
        "tool",
        "is_error",
        "content",
        "summary",
        "data",
        "artifacts",
        "error",
        "metadata",
        "evidence",
        "context_nodes",
        "run_id",
        "run_dir",
    }
    assert (Path(program["run_dir"]) / "events.jsonl").exists()


@pytest.mark.spec("RES-06", "RES-03")
def test_large_output_names_the_file_that_keeps_it(project: Path) -> None:
    program = told(project, "call", "team.big")
    person = tools(project, "call", "team.big")

    (artifact,) = program["artifacts"]
    assert Path(artifact["path"]).read_text() == "x" * 50_000
    assert artifact["path"] in person.stdout


@pytest.mark.spec("RES-06")
def test_nothing_that_a_tool_says_reaches_the_terminal_alive(project: Path) -> None:
    done = tools(project, "call", "team.paint")

    assert "over" in done.stdout
    assert not {"\x1b", "\r", "\u202e"} & set(done.stdout + done.stderr)


@pytest.mark.spec("RES-06")
def test_what_is_no_unicode_is_said_all_the_same(project: Path) -> None:
    person = tools(project, "call", "team.torn")

    assert told(project, "call", "team.torn")["is_error"] is False
    assert (person.returncode, person.stderr) == (0, "")


CALLS: dict[str, tuple[list[str], int, str]] = {
    "the tool fails": (["code.read_file", "path=nothing"], 1, "file_not_found"),
    "the input is wrong": (["code.read_file", "path=x", "max_lines=5000"], 2, "breaks maximum 1000"),
    "nobody to ask": (["code.write_file", "path=x", "content=y"], 3, "add one, for example --allow"),
    "needs a step": (["agent.task_get", "--role", "worker"], 3, "needs a step, and a call by hand has none"),
    "outside the role": (["code.write_file", "path=x", "content=y", "--role", "worker"], 3, "role worker"),
    "too long": (["code.read_file", "path=x", "--timeout-ms", "600001"], 2, "at most 600000 ms"),
    "no time": (["code.read_file", "path=x", "--timeout-ms", "0"], 2, "--timeout-ms"),
    "a bad rule": (["code.write_file", "path=x", "content=", "--allow", "/"], 2, "too wide"),
    "a rule without scope": (["code.write_file", "path=x", "content=", "--allow", "code.*"], 2, "say for what"),
    "a rule for another tool": (
        ["code.read_file", "path=x", "--allow", "nope:/work"],
        2,
        "says nothing of code.read_file",
    ),
    "a rule for a relative folder": (["code.read_file", "path=x", "--allow", "out/deep"], 2, "host:NAME or exact:TEXT"),
    "no such role": (["code.read_file", "path=x", "--role", "boss"], 2, "boss"),
    "no such option": (["code.read_file", "path=x", "--alow", "/"], 2, "--alow"),
    "no name": ([], 2, "NAME"),
}


@pytest.mark.spec("EXE-12", "PER-05")
@pytest.mark.parametrize(("words", "code", "says"), CALLS.values(), ids=CALLS.keys())
def test_every_way_of_not_getting_a_result_is_a_sentence_and_a_code(
    project: Path, words: list[str], code: int, says: str
) -> None:
    done = tools(project, "call", *words)

    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("scope", ["{project}", "code.write_file:{project}"], ids=["scope", "tool and scope"])
def test_a_rule_on_the_command_line_allows_the_call(project: Path, scope: str) -> None:
    done = tools(project, "call", "code.write_file", "path=x", "content=y", "--allow", scope.format(project=project))

    assert done.returncode == 0, done.stderr
    assert (project / "x").read_text() == "y"


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize("is_json", [True, False])
def test_a_result_reaches_a_terminal_that_has_no_letters_for_it(project: Path, is_json: bool) -> None:
    (project / "uni.txt").write_text("na\u00efve \u2713\n", encoding="utf-8")
    words = ["call", "code.read_file", "path=uni.txt", "--project", str(project), *(["--json"] if is_json else [])]

    done = started_soong("tools", *words, home=project.parent, LC_ALL="C", PYTHONIOENCODING="ascii")

    assert (done.returncode, done.stderr) == (0, "")
    assert "na\\xefve \\u2713" in done.stdout


@pytest.mark.spec("OPS-04")
@pytest.mark.parametrize(
    ("output", "said"),
    [
        pytest.param("/dev/full", "soong: the output cannot be written: No space left on device\n", id="full"),
        pytest.param("closed pipe", "", id="nobody reads"),
    ],
)
def test_output_that_cannot_be_written_is_said_in_a_sentence_or_not_at_all(
    tmp_path: Path, output: str, said: str
) -> None:
    if output == "closed pipe":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(output, os.O_WRONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "soong.orchestrator.cli", "tools", "list"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.spec("EXE-08")
def test_a_function_that_blocks_does_not_hold_the_command(project: Path) -> None:
    done = tools(project, "call", "team.block", "--timeout-ms", "200")

    assert done.returncode == 1
    assert "timeout: no result within 0.2 s" in done.stderr


@pytest.mark.parametrize("words", [["list"], ["call", "team.big"]], ids=" ".join)
def test_a_reader_that_has_seen_enough_is_no_error(project: Path, words: list[str]) -> None:
    command = f"{sys.executable} -P -m soong.orchestrator.cli tools {' '.join(words)}"
    environment = {
        "PATH": "/usr/bin:/bin",
        "SOONG_AGENT_HOME": str(project.parent / "soong"),
        "SOONG_TOOLS": "team_tools",
        "PYTHONPATH": f"{project.parent / 'modules'}",
    }

    for shell in (f"{command} | head -c 1 >/dev/null", f"{command} >&-"):
        done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, env=environment, check=False)
        assert done.stderr == ""


def test_a_folder_that_is_gone_is_said_in_a_sentence(tmp_path: Path) -> None:
    code = "import os, sys; sys.argv = ['soong', 'tools', 'list']\n"
    code += "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
    code += "from soong.orchestrator.cli.main import main; main()"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}

    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )

    assert done.returncode == 2
    assert done.stderr == "soong: the folder that you are in is not there any more; change to one that is\n"


SCHEMA: JsonObject = close(
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer"},
            "ratio": {"type": "number"},
            "deep": {"type": "boolean"},
            "argv": {"type": "array", "items": {"type": "string"}},
            "where": {"type": "object"},
            "mode": {"enum": ["fast", "slow", 3]},
            "any": {},
        },
    }
)

READ: dict[str, tuple[str, Json]] = {
    "a string stays a string": ("path=123", "123"),
    "an empty string": ("path=", ""),
    "an integer": ("limit=3", 3),
    "a negative integer": ("limit=-3", -3),
    "a whole number": ("ratio=2", 2),
    "a boolean": ("deep=true", True),
    "a list": ('argv=["a", "b"]', ["a", "b"]),
    "an object": ('where={"a": [1]}', {"a": [1]}),
    "a word of an enum": ("mode=fast", "fast"),
    "a number of an enum": ("mode=3", 3),
    "JSON where any value is taken": ("any=[1]", [1]),
    "text where any value is taken": ("any=hello", "hello"),
}


@pytest.mark.spec("EXE-12")
@pytest.mark.parametrize(("word", "value"), READ.values(), ids=READ.keys())
def test_a_word_is_read_by_the_type_of_its_argument(word: str, value: Json) -> None:
    read = read_arguments("a.tool", SCHEMA, [word], None)

    (found,) = read.values()
    assert found == value
    assert type(found) is type(value)


REFUSED = {
    "no value": (["path"], "'path' is not NAME=VALUE"),
    "no name": (["=x"], "is not NAME=VALUE"),
    "unknown": (["pth=x"], "has unknown fields 'pth'; it takes 'path', 'limit'"),
    "twice": (["path=a", "path=b"], "'path' is given twice"),
    "not whole": (["limit=1.5"], "limit: must be integer"),
    "a boolean for an integer": (["limit=true"], "limit: must be integer"),
    "a number too large": (["limit=99999999999999999999"], "limit: must be integer"),
    "an integer for a boolean": (["deep=1"], "deep: must be boolean"),
    "a string for a list": (['argv="ls"'], "argv: must be array"),
    "not in the enum": (["mode=medium"], "mode: must be one of 'fast', 'slow', 3"),
    "a long value": ([f"limit={'x' * 5000}"], "limit: must be integer"),
}


@pytest.mark.parametrize(("words", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_a_word_that_cannot_be_read_says_what_it_may_be(words: list[str], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_arguments("a.tool", SCHEMA, words, None)

    assert told in str(refused.value)
    assert len(str(refused.value)) < 300


def test_an_open_schema_takes_any_name_and_json_joins_words() -> None:
    schema: JsonObject = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}

    assert read_arguments("a.tool", schema, ["a=1", "b=1"], None) == {"a": "1", "b": 1}

    assert read_arguments("a.tool", SCHEMA, ["limit=2"], '{"path": "x"}') == {"path": "x", "limit": 2}
    with pytest.raises(UsageError, match="'path' is given twice"):
        read_arguments("a.tool", SCHEMA, ["path=y"], '{"path": "x"}')


def test_json_comes_from_a_file_or_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "args.json"
    file.write_text('{"path": "from the file"}')
    piped = SimpleNamespace(buffer=io.BytesIO(b'{"path": "from the pipe"}'), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", piped)

    assert read_arguments("a.tool", SCHEMA, [], f"@{file}") == {"path": "from the file"}
    assert read_arguments("a.tool", SCHEMA, [], "-") == {"path": "from the pipe"}


BAD_JSON = {
    "not JSON": ("{", "not the JSON of an object"),
    "a list": ("[1]", "takes a JSON object"),
    "a key twice": ('{"a": 1, "a": 2}', "not the JSON of an object"),
    "more than is read": ('{"a": "' + "x" * 9_000_000 + '"}', "bytes; at most"),
    "no file": ("@/nonexistent/args.json", "cannot be read: No such file"),
    "a directory": ("@/tmp", "not a file"),
    "a name with NUL": ("@a\0b", "cannot be read"),
}


@pytest.mark.parametrize(("text", "told"), BAD_JSON.values(), ids=BAD_JSON.keys())
def test_arguments_that_are_no_object_say_why(text: str, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_arguments("a.tool", SCHEMA, [], text)

    assert told in str(refused.value)


def test_a_pipe_in_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    with pytest.raises(UsageError, match="not a file"):
        read_arguments("a.tool", SCHEMA, [], f"@{fifo}")


def test_standard_input_that_is_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))

    with pytest.raises(UsageError, match="which is a terminal"):
        read_arguments("a.tool", SCHEMA, [], "-")
