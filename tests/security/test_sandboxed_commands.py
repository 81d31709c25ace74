"""Attacks of a command outside and inside of the sandbox: what it stops, and what it does not (CMD-07, must-hold)."""

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.core.config import CommandsConfig
from soong.shared.sandbox.bubblewrap.mounts import HostLayout
from soong.shared.sandbox.bubblewrap.runner import BubblewrapRunner
from soong.shared.sandbox.command import CommandRunner
from soong.shared.sandbox.process import ProcessRunner
from soong.shared.tools.definition import Withheld
from soong.shared.tools.result import ErrorType
from tests.extra import bubblewrap
from tests.security import attacks_of_commands
from tests.unit.sandbox.families import is_alive
from tests.unit.tools.parts import text_of
from tests.unit.toolsets.commands import Commands, data_of, make_commands

ATTACKS = Path(attacks_of_commands.__file__).read_text(encoding="utf-8")
TEMPORARY = Path("/tmp/soong-attack")
STOPPED = {
    "write beside the roots": "ENOENT",
    "overwrite beside the roots": "ENOENT",
    "write through a link of the project": "ENOENT",
    "read a private key": "ENOENT",
    "read the signing key": "ENOENT",
    "read the database": "ENOENT",
    "read what a rule denies": "ENOENT",
    "read a file beside the roots": "ENOENT",
    "connect to the loopback": "ECONNREFUSED",
    "connect to a socket beside the roots": "ENOENT",
    "connect to an abstract socket": "ECONNREFUSED",
    "read the worker's environment": "ENOENT",
    "signal the worker": "ESRCH",
    "trace the worker": "EPERM",
    "see other processes": "ESRCH",
    "reach out by the first process": "ENOENT",
    "use inherited descriptors": "EBADF",
    "gain rights by a set-user-ID program": "EPERM",
    "make a user namespace": "EPERM",
    "type into a terminal": "EPERM",
    "plant a git hook": "EROFS",
    "change the git configuration": "EROFS",
    "exchange the git folder": "EBUSY",
    "change the MCP servers": "EROFS",
    "change a skill of the project": "EROFS",
    "change a module of the worker": "EROFS",
    "read another user's passwords": "EACCES",
}
NOT_STOPPED = ("write in the project", "read a key in the project")
WITHOUT_EFFECT = ("write a temporary file", "write in the home")
"""They succeed inside, in memory that is gone with the command."""
HARMLESS_OUTSIDE = {
    "use inherited descriptors",  # closed there, too
    "reach out by the first process",  # needs root
    "read another user's passwords",  # needs root
    "trace the worker",  # the kernel may restrict it
    "type into a terminal",  # a new kernel refuses it
    "exchange the git folder",  # done, but after the attempts in it
}


@dataclass
class Scene:
    """A project with what an attacker wants around it."""

    folder: Path
    commands: Commands
    given: dict[str, Any]
    servers: list[socket.socket] = field(default_factory=list)

    async def attempts(self) -> dict[str, str]:
        result = await self.commands.python(ATTACKS, json.dumps(self.given))
        assert result.error is None, result
        said: dict[str, str] = json.loads(text_of(result))
        return said


def make_scene(folder: Path, runner: CommandRunner | None, config: CommandsConfig | None = None) -> Scene:
    denied = Withheld(folder / "project" / "denied", frozenset({"code.read_file"}), is_asked=False)
    commands = make_commands(folder, runner=runner, config=config, place={"withheld": (denied,)})
    home, soong, outside = folder / "home", folder / "soong", folder / "outside"
    files = {
        home / ".ssh" / "id_ed25519": "key",
        home / ".profile": "kept",
        soong / "signing.key": "key",
        soong / "soong.db": "rows",
        outside / "kept": "kept",
        **{commands.root / name: "kept" for name in (".env", ".mcp.json", "steps.py", "denied/secret")},
        **{commands.root / name: "kept" for name in (".git/config", ".git/hooks/x", ".soong/skills/SKILL.md")},
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (commands.root / "link").symlink_to(outside)
    abstract = f"soong-test-{os.getpid()}"
    servers = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    servers[1].bind(str(outside / "s"))
    servers[2].bind(f"\0{abstract}")
    for server in servers[1:]:
        server.listen()
    given = {"outside": str(outside), "home": str(home), "soong": str(soong), "worker": os.getpid()}
    return Scene(folder, commands, {**given, "port": servers[0].getsockname()[1], "abstract": abstract}, servers)


def runner_of(folder: Path, **changes: Any) -> BubblewrapRunner:
    host = HostLayout(folder / "home", own=(folder / "soong",), controls=(folder / "project" / "steps.py",))
    return BubblewrapRunner(replace(host, **changes), is_required=True)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    bubblewrap()
    yield from _opened(tmp_path, monkeypatch, runner_of(tmp_path))


@pytest.fixture
def with_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    bubblewrap()
    yield from _opened(tmp_path, monkeypatch, runner_of(tmp_path), CommandsConfig(sandbox_network=(sys.executable,)))


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    yield from _opened(tmp_path, monkeypatch, ProcessRunner())


def _opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, runner: CommandRunner, config: CommandsConfig | None = None
) -> Iterator[Scene]:
    monkeypatch.setenv("HOME", str(folder / "home"))
    scene = make_scene(folder, runner, config)
    yield scene
    for server in scene.servers:
        server.close()
    TEMPORARY.unlink(missing_ok=True)


def test_the_table_has_every_attempt() -> None:
    assert {*STOPPED, *NOT_STOPPED, *WITHOUT_EFFECT} == set(attacks_of_commands.ATTEMPTS)


@pytest.mark.spec("CMD-07.b", "CMD-07.c", "CMD-07.f")
async def test_outside_every_attack_has_its_effect(outside: Scene) -> None:
    said = await outside.attempts()

    assert {name for name in STOPPED if said[name] != "done"} <= HARMLESS_OUTSIDE
    assert all(said[name] == "done" for name in (*NOT_STOPPED, *WITHOUT_EFFECT))
    assert (outside.folder / "outside" / "planted").exists()


@pytest.mark.spec("CMD-07.b", "CMD-07.c", "CMD-06.f")
async def test_inside_the_attacks_of_the_table_are_stopped(inside: Scene) -> None:
    said = await inside.attempts()

    assert {name: said[name] for name in STOPPED} == STOPPED
    assert not (inside.folder / "outside" / "planted").exists()
    assert (inside.folder / "outside" / "kept").read_text() == "kept"
    assert (inside.commands.root / "steps.py").read_text() == "kept"


@pytest.mark.spec("CMD-07.b", "CMD-07.f")
async def test_inside_the_project_is_the_programs_and_what_it_writes_elsewhere_is_gone(inside: Scene) -> None:
    said = await inside.attempts()

    assert {said[name] for name in (*NOT_STOPPED, *WITHOUT_EFFECT)} == {"done"}
    assert (inside.commands.root / "result.txt").read_text() == "written"
    assert (inside.folder / "home" / ".profile").read_text() == "kept"
    assert not is_there(TEMPORARY)


@pytest.mark.spec("CMD-07.b")
async def test_the_keeper_cannot_be_killed(inside: Scene) -> None:
    """Inside, the first process is the sandbox's own, which the kernel protects; the subreaper cannot even be named."""
    code = "import os, signal\nfor pid in (1, os.getppid()): os.kill(pid, signal.SIGKILL)\nprint('alive', os.getppid())"

    result = await inside.commands.python(code)

    assert text_of(result) == "alive 1\n"


@pytest.mark.spec("CMD-07", "CMD-01.g")
async def test_all_that_a_command_starts_ends_with_it(inside: Scene) -> None:
    """Other process ids count inside, so the family is found by what it keeps open."""
    mark = inside.commands.root / "mark"
    code = (
        "import os, sys, time\nfile = open('mark', 'w')\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        os.setsid(); time.sleep(1000)\n"
        "sys.exit(0)"
    )

    result = await inside.commands.python(code)

    assert (result.error, data_of(result)["sandbox"]) == (None, "bubblewrap")
    assert not [pid for pid in _holders(mark) if is_alive(pid)]


OUTCOME = """
import errno, os, sys
try:
    {attempt}
    print("done")
except OSError as error:
    print(errno.errorcode[error.errno])
"""


async def outcome_of(commands: Commands, attempt: str) -> str:
    return text_of(await commands.python(OUTCOME.format(attempt=attempt))).strip()


@pytest.mark.spec("CMD-07.c", "CMD-07.f")
async def test_no_setting_of_the_kernel_is_opened_for_writing(inside: Scene) -> None:
    """``core_pattern`` names a program that the kernel starts as root outside; root inside is the same root."""
    said = await outcome_of(inside.commands, "os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY)")

    assert said in {"EROFS", "EACCES"}


@pytest.mark.spec("CMD-07.b", "FS-09")
@pytest.mark.parametrize("folder", ["pkg", "pkg/deep"])
async def test_a_control_is_not_exchanged_with_a_folder_above_it(tmp_path: Path, folder: str) -> None:
    bubblewrap()
    commands = make_commands(tmp_path, runner=runner_of(tmp_path, controls=(tmp_path / "project/pkg/deep/steps.py",)))
    commands.program("pkg/deep/steps.py", "kept")

    said = await outcome_of(commands, f"os.rename({folder!r}, {folder + '-old'!r})")

    assert said == "EBUSY"
    assert (commands.root / "pkg/deep/steps.py").read_text() == "kept"
    assert await outcome_of(commands, "open('pkg/deep/new', 'w')") == "done"


@pytest.mark.spec("CMD-07.b", "FS-09")
@pytest.mark.parametrize(
    ("attempt", "expected"), [("open('.git', 'w')", "EROFS"), ("os.rename('.git', 'git')", "EBUSY")]
)
async def test_the_git_file_of_a_linked_worktree_is_read_only(inside: Scene, attempt: str, expected: str) -> None:
    shutil.rmtree(inside.commands.root / ".git")
    (inside.commands.root / ".git").write_text("gitdir: ../elsewhere\n")

    assert await outcome_of(inside.commands, attempt) == expected
    assert (inside.commands.root / ".git").read_text() == "gitdir: ../elsewhere\n"


@pytest.mark.spec("CMD-07.b", "FS-09")
@pytest.mark.parametrize(
    "control", ["modules/lib/config", "modules/libs/lib/hooks/post-checkout", "worktrees/w/commondir"]
)
async def test_controls_of_submodules_and_linked_worktrees_are_read_only(inside: Scene, control: str) -> None:
    path = inside.commands.program(f".git/{control}", "kept")

    assert await outcome_of(inside.commands, f"open({str(path)!r}, 'w')") == "EROFS"
    assert path.read_text() == "kept"


@pytest.mark.spec("CMD-07.b", "FS-09")
async def test_hooks_of_a_repository_without_a_folder_for_them_end_with_the_command(inside: Scene) -> None:
    shutil.rmtree(inside.commands.root / ".git/hooks")

    assert await outcome_of(inside.commands, "os.rename('.git/hooks', '.git/old')") == "EBUSY"
    await outcome_of(inside.commands, "open('.git/hooks/pre-commit', 'w')")

    assert not list((inside.commands.root / ".git/hooks").glob("*"))


@pytest.mark.spec("CMD-07.b", "FS-09")
async def test_what_other_programs_obey_is_read_only_once_it_exists(inside: Scene) -> None:
    folders = (".claude", ".codex", ".cursor", ".gemini", ".vscode", ".hg", ".jj", ".husky", ".devcontainer")
    new = (*(f"{folder}/agents" for folder in folders), ".devcontainer.json", "mcp.json", "sub/.claude")

    first = await outcome_of(inside.commands, "; ".join(f"os.makedirs({name!r})" for name in new))
    again = [await outcome_of(inside.commands, f"open({name + '/x.md'!r}, 'w')") for name in new]

    assert first == "done"  # documented, as is the folder below the root
    assert again == ["EROFS"] * (len(new) - 1) + ["done"]


@pytest.mark.spec("CMD-07.b", "FS-09")
@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        ("open('{way}/.mcp.json', 'w')", "EROFS"),
        ("open('{way}/soong/signing.key')", "ENOENT"),
        ("open('{way}/free', 'w')", "done"),
    ],
)
async def test_a_place_that_is_configured_through_a_link_shows_no_more_than_the_place(
    tmp_path: Path, attempt: str, expected: str
) -> None:
    bubblewrap()
    real, way = tmp_path / "real", tmp_path / "way"
    (real / "soong").mkdir(parents=True)
    for name in (".mcp.json", "soong/signing.key"):
        (real / name).write_text("kept")
    way.symlink_to(real)
    runner = runner_of(tmp_path, writable=(way,), own=(real / "soong",))

    assert await outcome_of(make_commands(tmp_path, runner=runner), attempt.format(way=way)) == expected


def is_there(path: Path) -> bool:
    return path.exists()


def _holders(path: Path) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(entry.samefile(path) for entry in folder.iterdir() if entry.exists()):
                found.append(int(folder.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.spec("CMD-07.e", "RES-05.c")
@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("touch", "/srv/x"), "is not visible in the sandbox"),
        (("touch", "/usr/x"), "'/usr/x' is read-only in the sandbox"),
        (("cat", "/etc/shadow"), "'/etc/shadow' is not visible in the sandbox"),
        ((sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 9))"), "has no network"),
    ],
    ids=["beside", "system", "passwords", "network"],
)
async def test_what_the_sandbox_refused_is_told_apart(inside: Scene, argv: tuple[str, ...], says: str) -> None:
    failure = await inside.commands.failure(*(word.format(**inside.given) for word in argv))

    assert failure.type is ErrorType.SANDBOX_DENIED
    assert says in failure.message
    assert "config.toml" in failure.hint


@pytest.mark.spec("CMD-07.e")
@pytest.mark.parametrize("argv", [("cat", "missing"), ("false",), ("ls", "{root}/none")], ids=str)
async def test_a_failure_of_the_program_itself_is_none_of_the_sandbox(inside: Scene, argv: tuple[str, ...]) -> None:
    words = [word.format(root=inside.commands.root) for word in argv]

    assert (await inside.commands.failure(*words)).type is ErrorType.EXECUTION_FAILED


@pytest.mark.spec("CMD-07")
async def test_a_program_learns_nothing_about_what_is_hidden(inside: Scene) -> None:
    """It prints a path and fails; what is told must not depend on whether the path exists outside."""
    told = []
    for name in ("kept", "none"):
        code = f"import sys; sys.exit('{inside.folder}/outside/{name}: No such file or directory')"
        told.append((await inside.commands.failure(sys.executable, "-c", code)).message.replace(name, ""))

    assert told[0] == told[1]


@pytest.mark.spec("CMD-07.b")
async def test_a_folder_that_a_link_has_replaced_is_not_mounted(inside: Scene) -> None:
    """Between the look at a control and its mount a link may be put there: it would show what it leads to."""
    shutil.rmtree(inside.commands.root / ".git")
    (inside.commands.root / ".git").symlink_to(inside.folder / "outside")

    failure = await inside.commands.failure("cat", ".git/kept")

    assert failure.type is ErrorType.EXECUTION_FAILED


@pytest.mark.spec("CMD-07.a")
async def test_many_commands_at_once_have_a_sandbox_each(inside: Scene) -> None:
    code = "open('/tmp/x', 'x').write('x'); print('alone')"

    results = await asyncio.gather(*(inside.commands.python(code) for _ in range(6)))

    assert [text_of(result).strip() for result in results] == ["alone"] * 6


@pytest.mark.spec("CMD-07.c")
async def test_a_program_that_the_user_names_has_the_network(with_network: Scene) -> None:
    said = await with_network.attempts()

    assert said["connect to the loopback"] == "done"
    assert said["connect to an abstract socket"] == "done"  # documented: they belong to the network
    assert said["connect to a socket beside the roots"] == "ENOENT"
    assert "network yes" in with_network.commands.target.preview
