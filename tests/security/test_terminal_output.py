"""No text of a plan, a file name, a run or an error is obeyed by the terminal that a command writes to."""

import copy
import json
import os
import pty
import re
import subprocess
import sys
import tty
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.warm import ROOT, WarmProcess, called, warm_parent

LIMIT_S = 60.0
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ATTACK = (
    "\x1b]52;c;cm0gLXJmIH4=\x07"  # fills the clipboard
    "\x1b]0;title\x1b\\\x1b[2J\x1bc\b\r"  # retitles, clears, resets
    "\x9b31m\x9d0;title\x9c\x85"  # the same by C1 controls
    "\u202egpj.exe\u2066\u061c"  # turns the reading direction around
    "\u200b\u3164\u2800\U0001d159\U000e0041\ufe0f"  # shows nothing
)
OBEYED = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe0f\U0001d159\U000e0041]"
)
"""What no terminal may get but as a colour of ours; line feeds and tabs are no attack."""


@dataclass(frozen=True)
class Shown:
    """What a command wrote to its terminal, byte by byte, and its exit code."""

    code: int
    text: str

    @property
    def obeyed(self) -> set[str]:
        """Characters that the terminal obeys or hides."""
        return set(OBEYED.findall(COLOURS.sub("", self.text)))


def run_on_terminal(script: str, *, env: Mapping[str, str], cwd: Path) -> Shown:
    """Run a Python script of ours in the same way."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    command = [sys.executable, script]
    folder = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env={**env, **folder}, cwd=cwd, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        return Shown(*_heard(ours, process))


def on_terminal(arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> Shown:
    """Run ``soong`` with both outputs on a terminal that passes bytes through."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # no carriage returns of the line discipline
    process = warm_parent().start("soong.orchestrator.cli", arguments, env=env, cwd=cwd, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return Shown(*_heard(ours, process))


def _heard(descriptor: int, process: "WarmProcess | subprocess.Popen[bytes]") -> tuple[int, str]:
    said = bytearray()
    try:
        while piece := _read(descriptor):
            said += piece
        return process.wait(LIMIT_S), said.decode()
    finally:
        process.kill()
        os.close(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: nobody has the other end any more
        return b""


PLAN: dict[str, Any] = {
    "title": "t",
    "inputs": {"name": {"type": "string", "default": "x", "description": "d"}},
    "steps": [
        {
            "id": "a",
            "title": "a",
            "instructions": "look at ${inputs.name}",
            "agent": "default_worker_agent",
            "model": "script",
            "allowed_tools": ["code.read_file"],
            "permissions": {"write": ["docs/"], "hosts": ["example.org"], "run": [["git", "status"], "pytest"]},
            "inputs": {"name": "${inputs.name}", "calls": [{"call": "code.read_file", "with": {"path": "x"}}]},
            "output": {"type": "object", "properties": {"n": {"type": "integer"}}},
            "on_failure": "keep",
            "pool": "default",
            "needs": ["label"],
            "script": "builtin.calls",
        },
        {"id": "b", "kind": "python", "call": "builtin.echo", "depends_on": ["a"], "inputs": {"x": "${a.output.n}"}},
        {
            "id": "c",
            "kind": "map",
            "over": "${inputs.name}",
            "as": "item",
            "key": "${item}",
            "depends_on": ["b"],
            "step": {"instructions": "x ${item}", "title": "t ${item}"},
        },
    ],
}
"""Every kind of place that text has in a plan."""


def attacks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield plans that carry the attack in one place each: instead of a text, in a reference, as a key, as a field."""
    for place in _places(PLAN, ()):
        name = "/".join(map(str, place))
        text = _at(PLAN, place)
        if isinstance(text, str):
            yield f"{name} (text)", _with(place, ATTACK)
            yield f"{name} (reference)", _with(place, "${inputs." + ATTACK + ".x | " + ATTACK + "}")
        elif isinstance(text, dict):
            yield f"{name} (key)", _with(place, {**text, ATTACK: "x"})


def _places(value: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from _places(each, (*place, name))


def _at(value: Any, place: tuple[str | int, ...]) -> Any:
    for name in place:
        value = value[name]
    return value


def _with(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    if not place:
        return dict(value)
    plan = copy.deepcopy(PLAN)
    _at(plan, place[:-1])[place[-1]] = value
    return plan


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    home = {"HOME": str(tmp_path), "SOONG_AGENT_HOME": str(tmp_path / "soong")}
    return {"PATH": "/usr/bin:/bin", "TERM": "xterm", "LANG": "C.UTF-8", **home}


@pytest.mark.spec("RES-06.b")
def test_the_attack_is_seen_by_the_measure(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))

    shown = on_terminal(("tasks", "validate", "plan.json"), env=env, cwd=tmp_path)

    assert "plan.json is a plan: 't', 3 steps" in shown.text, shown.text
    assert shown.code == 0
    assert not shown.obeyed
    assert type(shown)(0, ATTACK).obeyed >= set("\x1b\x07\b\r\x9b\x9d\x9c\x85\u202e\u2066\u061c\u200b\U0001d159")


@pytest.mark.spec("RES-06.b")
@pytest.mark.timeout(300)
def test_no_place_of_a_plan_writes_escapes(tmp_path: Path, env: dict[str, str]) -> None:
    reached, refused = {}, 0
    for number, (place, plan) in enumerate(attacks()):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(plan))

        shown = on_terminal(("tasks", "validate", str(file)), env=env, cwd=tmp_path)

        refused += shown.code == 2
        if shown.obeyed:
            reached[place] = ascii(shown.text)

    assert reached == {}
    assert refused > 50, "the places are where errors name them"


@pytest.mark.spec("RES-06.b")
@pytest.mark.parametrize(
    "command", [("tasks", "validate"), ("tasks", "graph"), ("tasks", "graph", "--format", "svg"), ("run", "--preview")]
)
@pytest.mark.parametrize("is_valid", [True, False], ids=["valid", "invalid"])
def test_a_plan_of_a_hostile_name_writes_no_escapes(
    tmp_path: Path, env: dict[str, str], command: tuple[str, ...], is_valid: bool
) -> None:
    plan = copy.deepcopy(PLAN)
    plan["title"] = plan["steps"][0]["title"] = ATTACK
    file = tmp_path / f"plan{ATTACK}.json".replace("/", "")
    file.write_text(json.dumps(plan if is_valid else {"steps": 1, ATTACK: 2}))

    shown = on_terminal((*command, str(file)), env=env, cwd=tmp_path)

    assert (shown.code == 2) is not is_valid, shown.text
    assert not shown.obeyed, ascii(shown.text)


@pytest.mark.spec("RES-06.b")
@pytest.mark.parametrize(
    "arguments",
    [
        (ATTACK,),
        ("run", ATTACK),
        ("run", f"--{ATTACK}"),
        ("tasks", "show", f"task_{ATTACK}"),
        ("tasks", "graph", f"task_{ATTACK}"),
        ("runs", "tail", ATTACK),
        ("approvals", "show", ATTACK),
        ("tools", "show", ATTACK),
        ("tools", "call", ATTACK),
        ("tools", "call", "code.read_file", f"path={ATTACK}"),
        ("permissions", "explain", "code.write_file", f"path={ATTACK}", "content=x"),
        ("tokens", "create", "--principal", ATTACK, "--right", "run"),
        ("limits", "set", ATTACK, "1"),
        ("completion", ATTACK),
    ],
    ids=lambda arguments: "-".join(arguments[:2] if len(arguments) > 1 else ("no", "command")).split("\x1b")[0],
)
def test_no_argument_that_is_named_again_is_obeyed(
    tmp_path: Path, env: dict[str, str], arguments: tuple[str, ...]
) -> None:
    shown = on_terminal(arguments, env=env, cwd=tmp_path)

    assert shown.code != 0, shown.text
    assert not shown.obeyed, ascii(shown.text)


@pytest.mark.spec("RES-06.b")
@pytest.mark.parametrize("name", ["SOONG_WORKERS", "SOONG_DATABASE_URL", "SOONG_LOG_LEVEL", f"SOONG_{ATTACK}"])
def test_no_setting_that_is_wrong_is_obeyed(tmp_path: Path, env: dict[str, str], name: str) -> None:
    for command in ("status", "doctor"):
        shown = on_terminal((command,), env={**env, name: ATTACK}, cwd=tmp_path)

        assert not shown.obeyed, ascii(shown.text)


@pytest.mark.spec("RES-06.b")
def test_no_configuration_that_is_wrong_is_obeyed(tmp_path: Path, env: dict[str, str]) -> None:
    home = tmp_path / "soong"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(f"[{json.dumps(ATTACK)}]\n{json.dumps(ATTACK)} = 1\n")

    for command in (("permissions", "explain"), ("tools", "list"), ("doctor",), ("-v", "permissions", "explain")):
        shown = on_terminal(command, env=env, cwd=tmp_path)

        assert shown.code
        assert not shown.obeyed, ascii(shown.text)


@pytest.mark.spec("RES-06.b")
def test_json_on_a_terminal_has_the_same_value_and_is_not_obeyed(tmp_path: Path, env: dict[str, str]) -> None:
    plan = {**PLAN, "title": ATTACK + "é"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = ("tasks", "validate", "plan.json", "--json")

    shown = on_terminal(command, env=env, cwd=tmp_path)
    piped = called("soong.orchestrator.cli", command, env=env, cwd=tmp_path, limit_s=60)

    assert not shown.obeyed, ascii(shown.text)
    assert json.loads(shown.text) == json.loads(piped.stdout)
    assert json.loads(piped.stdout)["title"] == plan["title"]
    assert "\x9b" in piped.stdout, "programs get text as it is"


@pytest.mark.spec("RES-06.b")
def test_a_traceback_and_a_log_are_not_obeyed(tmp_path: Path, env: dict[str, str]) -> None:
    said = os.fspath(tmp_path / "said.py")
    Path(said).write_text(
        "from soong.shared.core.startup import guard_streams\n"
        "guard_streams()\n"
        "import sys, warnings\n"
        "from soong.shared.core.log import configure, get_logger\n"
        f"attack = {ATTACK!r}\n"
        "configure('info', process='cli')\n"
        "log = get_logger('x')\n"
        "log.info('said', text=attack, nested={attack: [attack]}, other=ValueError(attack))\n"
        "try: raise ValueError(attack)\n"
        "except ValueError: log.exception('failed')\n"
        "warnings.warn(attack)\n"
        "print(attack)\n"
        "from soong.orchestrator.terminal.prompt import TerminalConsole\n"
        "from rich.text import Text\n"
        "from rich.live import Live\n"
        "console = TerminalConsole(sys.stdout)\n"
        "console.print(Text(attack, style='bold'))\n"
        "with Live(Text(attack), console=console, auto_refresh=False):\n"
        "    print(attack, file=sys.stderr)\n"
        "    TerminalConsole(sys.stdout).print(Text('asked', style='bold'))\n"
        "raise SystemExit(attack)\n"
    )
    shown = run_on_terminal(said, env=env, cwd=tmp_path)

    assert "said" in shown.text
    assert not shown.obeyed - {"\x1b", "\r"}, ascii(shown.text)
    assert "\x1b]" not in shown.text
    assert "\x1b[2J" not in shown.text
    assert "\x1b[1masked\x1b[0m" in shown.text, "colours of ours stay colours"
