"""What a yes for the session covers, and that it covers nothing beside that."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soong.shared.permissions.gate import scope_of
from soong.shared.permissions.policy import Policy
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.command_call import ANY_ARGUMENTS
from soong.shared.toolsets.code.named_files import HARMLESS, quoted
from tests.security.granting import granting
from tests.unit.toolsets.commands import Commands, make_commands
from tests.unit.toolsets.parts import Project


@pytest.mark.spec("PER-04", "PER-08")
@pytest.mark.parametrize("behind", [" ", "\t", "\n", "\xa0", "\x85", "\u2003"], ids=ascii)
async def test_a_grant_for_a_folder_is_none_for_one_that_looks_like_it(project: Project, behind: str) -> None:
    (project.root / "out").mkdir()
    (project.root / f"out{behind}").mkdir()
    session = granting(project.bench)

    first = await project.call("write_file", path="out/a", content="x")
    again = await project.call("write_file", path="out/b", content="x")
    other = await project.call("write_file", path=f"out{behind}/c", content="x")

    assert (first.error, again.error, len(session.book)) == (None, None, 1)
    assert other.error is not None
    assert other.error.type is ErrorType.PERMISSION_NO_CALLBACK
    assert not (project.root / f"out{behind}/c").exists()


@pytest.mark.spec("PER-04", "PER-08")
async def test_no_grant_is_offered_for_a_folder_that_looks_like_another(project: Project) -> None:
    (project.root / "out ").mkdir()
    session = granting(project.bench)

    assert (await project.call("write_file", path="out /a", content="x")).error is None

    assert len(session.book) == 0


DENIED = Verdict(is_allowed=False, author="system", reason="only asked", error=ErrorType.PERMISSION_NO_CALLBACK)
WORDS = st.sampled_from(["…", ANY_ARGUMENTS, "(any", "-l", "a b", "'", "in", "/x", ", files sha256:0", "$'", "\n"])


def programs_of_this_machine() -> list[Path]:
    folders = {Path(folder).resolve() for folder in ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")}
    programs = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
    return sorted(path for path in programs if path.is_file() and os.access(path, os.X_OK))


async def offered(commands: Commands, *argv: str) -> str:
    """Return what a session grant for a command would cover, without running it; empty when it is refused."""
    commands.bench.gate.verdict = DENIED
    commands.bench.gate.asked.clear()
    await commands.run(*argv)
    asked = commands.bench.gate.asked
    return scope_of(asked[0], Policy(is_dangerous_enabled=True), "/home/nobody") if asked else ""


def wide(commands: Commands, program: str) -> str:
    """Return what says that a grant covers other arguments, too."""
    return f"{program} {ANY_ARGUMENTS} in {commands.root}"


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return make_commands(tmp_path)


@pytest.mark.spec("PER-08.d")
async def test_of_all_programs_of_this_machine_only_the_listed_ones_are_offered_with_other_arguments(
    commands: Commands,
) -> None:
    scopes = {path: await offered(commands, str(path), "-v") for path in programs_of_this_machine()}

    exact = {path for path, scope in scopes.items() if scope in ("", f"{quoted([str(path)])} -v in {commands.root}")}
    others = scopes.keys() - exact
    assert len(scopes) > 200
    assert {path.name for path in others} <= HARMLESS
    assert {"cat", "ls", "echo"} <= {path.name for path in others}
    assert all(scopes[path] == wide(commands, str(path)) for path in others)


@pytest.mark.spec("PER-08.d")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.sampled_from(["ls", "cat", "true", "env", "sort", "tail"]),
    st.lists(WORDS, max_size=4),
    st.lists(WORDS, max_size=4),
)
async def test_two_commands_share_a_grant_only_where_it_says_so(
    commands: Commands, name: str, first: list[str], second: list[str]
) -> None:
    scopes = [await offered(commands, name, *words) for words in (first, second)]

    if scopes[0] == scopes[1] != wide(commands, f"/usr/bin/{name}"):
        assert first == second or scopes[0] == ""
    if wide(commands, f"/usr/bin/{name}") in scopes:
        assert name in HARMLESS


@pytest.mark.spec("PER-04", "PER-08.d")
@pytest.mark.parametrize("name", ["perl", "find", "sort", "tail", "env", "tar", "gcc", "ld", "ar", "sed", "date"])
async def test_a_grant_for_the_version_of_a_program_is_one_for_nothing_that_it_can_do(
    commands: Commands, name: str
) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    session = granting(commands.bench)
    await commands.run(name, "--version")
    await commands.run(name, "--version")

    failure = await commands.failure(name, "--help")

    assert (len(session.asked), failure.type) == (2, ErrorType.PERMISSION_NO_CALLBACK)


@pytest.fixture
def readable(commands: Commands) -> Commands:
    """A project with files of every kind of reach, and ``cat a.txt`` granted for the session."""
    for name in ("a.txt", "b.txt", ".env", "below/c.txt"):
        commands.program(name, "text")
    secret = commands.outside / "id"
    secret.write_text("secret")
    (commands.root / "link").symlink_to(secret)
    (commands.root / "-l").symlink_to(secret)
    (commands.root / "hard").hardlink_to(secret)
    return commands


@pytest.mark.spec("PER-04", "FS-06")
@pytest.mark.parametrize(
    "words", [["b.txt"], ["-n", "b.txt"], ["below/c.txt"], ["below/../a.txt"], ["absent"], []], ids=str
)
async def test_a_grant_for_a_harmless_program_covers_what_may_be_read_in_the_project(
    readable: Commands, words: list[str]
) -> None:
    session = granting(readable.bench)
    await readable.run("cat", "a.txt")

    await readable.run("cat", *words)

    assert len(session.asked) == 1


@pytest.mark.spec("PER-04", "FS-06")
@pytest.mark.parametrize(
    "words",
    [
        [".env"],
        ["../outside/id"],
        ["/etc/passwd"],
        ["link"],
        ["hard"],
        ["--", "-l"],
        ["-l", "--", "-l"],
        ["--show-all", "b.txt"],
        ["b.txt", "/proc/self/environ"],
        ["x" * 5000],
    ],
    ids=lambda words: str(words)[:30],
)
async def test_a_grant_for_a_harmless_program_covers_nothing_that_a_read_would_ask_for(
    readable: Commands, words: list[str]
) -> None:
    session = granting(readable.bench)
    await readable.run("cat", "a.txt")

    failure = await readable.failure("cat", *words)

    assert (len(session.asked), failure.type) == (2, ErrorType.PERMISSION_NO_CALLBACK)
