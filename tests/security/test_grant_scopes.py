"""What a yes covers and nothing beside it: the scopes of a session, and the files that a command names."""

import hashlib
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soong.shared.permissions.gate import scope_of
from soong.shared.permissions.policy import Policy
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.command_call import ANY_ARGUMENTS
from soong.shared.toolsets.code.named_files import HARMLESS, MAX_FILE_BYTES, READ_UNNAMED, named_files, quoted
from tests.security.scene import granting
from tests.unit.tools.parts import error_of, text_of
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
    assert error_of(other).type is ErrorType.PERMISSION_NO_CALLBACK
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


SHORT = 12


def build(commands: Commands, name: str, says: str) -> Path:
    """Write a build script that says a word, in the form that its name asks for."""
    text = f"print({says!r})" if name.endswith(".py") else f"all:\n\t@echo {says}\n"
    return commands.program(name, text if "akefile" in name or name.endswith((".py", ".mk")) else f"echo {says}\n")


WAYS = {
    "script": (("python3", "build.py"), "build.py"),
    "absolute": (("python3", "{root}/build.py"), "build.py"),
    "below": (("python3", "./x/../build.py"), "build.py"),
    "module": (("python3", "-m", "tools.build"), "tools/build.py"),
    "behind-starter": (("env", "python3", "-u", "build.py"), "build.py"),
    "shell": (("sh", "build.sh"), "build.sh"),
    "makefile": (("make", "-f", "other.mk"), "other.mk"),
    "attached": (("make", "-fother.mk"), "other.mk"),
    "long-option": (("make", "--file=other.mk"), "other.mk"),
    "unnamed": (("make",), "Makefile"),
    "unnamed-below": (("make", "-C", "sub"), "sub/Makefile"),
    "unnamed-behind-starter": (("nice", "make"), "Makefile"),
    "link": (("python3", "link.py"), "build.py"),
}


@pytest.mark.spec("CMD-01", "PER-12")
@pytest.mark.parametrize("way", WAYS)
async def test_a_script_that_is_rewritten_between_question_and_yes_is_not_run(commands: Commands, way: str) -> None:
    argv, name = WAYS[way]
    for folder in ("x", "sub"):
        (commands.root / folder).mkdir()
    build(commands, name, "good")
    (commands.root / "link.py").symlink_to("build.py")

    async def rewrite() -> None:
        build(commands, name, "EVIL")

    commands.bench.gate.before = rewrite

    result = await commands.run(*(word.format(root=commands.root) for word in argv))

    assert error_of(result).type is ErrorType.PATH_CONFLICT
    assert "EVIL" not in repr(result)


@pytest.mark.spec("PER-04", "PER-08.d")
@pytest.mark.parametrize("way", WAYS)
async def test_a_grant_for_a_script_is_none_for_what_the_run_writes_in_its_place(commands: Commands, way: str) -> None:
    argv, name = WAYS[way]
    words = [word.format(root=commands.root) for word in argv]
    for folder in ("x", "sub"):
        (commands.root / folder).mkdir()
    build(commands, name, "good")
    (commands.root / "link.py").symlink_to("build.py")
    session = granting(commands.bench)

    first, again = await commands.run(*words), await commands.run(*words)
    build(commands, name, "EVIL")
    other = await commands.run(*words)

    assert ("good" in text_of(first), "good" in text_of(again), len(session.book)) == (True, True, 1)
    assert error_of(other).type is ErrorType.PERMISSION_NO_CALLBACK
    assert "EVIL" not in repr(other)


@pytest.mark.spec("PER-04", "PER-08.d")
async def test_a_grant_for_a_program_of_the_project_is_none_for_what_the_run_writes_in_its_place(
    commands: Commands,
) -> None:
    commands.program("run.sh", "#!/bin/sh\necho good\n")
    session = granting(commands.bench)
    assert "good" in text_of(await commands.run("./run.sh"))

    commands.program("run.sh", "#!/bin/sh\necho EVIL\n")
    failure = await commands.failure("./run.sh")

    assert (failure.type, len(session.asked)) == (ErrorType.PERMISSION_NO_CALLBACK, 2)


@pytest.mark.spec("PER-06", "PER-12")
async def test_a_question_shows_each_file_with_its_digest_and_scripts_first(commands: Commands) -> None:
    commands.program("data.csv", "1,2\n")
    script = commands.program("build.py", "print('good')\n")
    commands.program(".env", "KEY=1\n")

    await commands.run("python3", "build.py", "--in=data.csv", ".env")

    lines = commands.target.preview.splitlines()
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert lines[0] == f"file build.py: sha256 {digest[:SHORT]}, 14 bytes"
    assert lines[1].startswith("file data.csv: sha256 ")
    assert lines[2] == "file .env: content not read, 6 bytes"
    assert ", files sha256:" in commands.target.scope


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("act", ["touched", "replaced by its like"])
async def test_a_file_that_is_another_or_newer_is_a_conflict(commands: Commands, act: str) -> None:
    script = build(commands, "build.py", "good")

    def exchange() -> None:
        if act == "touched":
            script.touch()
        else:
            build(commands, "new.py", "good").replace(script)

    async def before() -> None:
        exchange()

    commands.bench.gate.before = before

    assert (await commands.failure("python3", "build.py")).type is ErrorType.PATH_CONFLICT


async def test_a_file_that_the_run_cannot_write_is_not_bound(commands: Commands) -> None:
    script = commands.outside / "tool.py"
    script.write_text("print('theirs')\n")

    async def change() -> None:
        script.write_text("print('newer')\n")

    commands.bench.gate.before = change

    assert "newer" in text_of(await commands.run("python3", str(script)))


@pytest.mark.spec("PER-12")
async def test_a_file_that_a_rule_lets_the_run_write_is_bound(tmp_path: Path) -> None:
    commands = make_commands(tmp_path, place={"writable_by_rule": (tmp_path / "outside",)})
    script = commands.outside / "tool.py"
    script.write_text("print('theirs')\n")

    async def change() -> None:
        script.write_text("print('EVIL')\n")

    commands.bench.gate.before = change

    assert (await commands.failure("python3", str(script))).type is ErrorType.PATH_CONFLICT


def found(commands: Commands, *argv: str) -> dict[str, tuple[bool, bool]]:
    """Return the files of a command: is it a script, was its content read."""
    files = named_files(argv, commands.root, (commands.root,), lambda path: path.endswith(".env"))
    return {file.name: (file.is_script, bool(file.sha256)) for file in files.files}


def test_of_a_file_that_is_too_large_or_secret_only_the_inode_counts(commands: Commands) -> None:
    with commands.program("large", "").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    commands.program(".env", "KEY=1")
    large, secret = commands.root / "large", commands.root / ".env"
    argv = ("/usr/bin/x", "large", ".env")

    before = named_files(argv, commands.root, (commands.root,), lambda path: path.endswith(".env"))
    for path in (large, secret):
        path.chmod(0o600)
    after = named_files(argv, commands.root, (commands.root,), lambda path: path.endswith(".env"))

    assert found(commands, *argv) == {"large": (False, False), ".env": (False, False)}
    assert before.content != after.content


@pytest.mark.parametrize(("program", "names"), READ_UNNAMED.items(), ids=READ_UNNAMED)
def test_what_a_program_reads_unnamed_counts_as_named(commands: Commands, program: str, names: tuple[str, ...]) -> None:
    for name in names:
        commands.program(name, "text")

    assert found(commands, f"/usr/bin/{program}") == dict.fromkeys(names, (True, True))


def test_words_that_name_no_file_are_none(commands: Commands) -> None:
    (commands.root / "folder").mkdir()

    assert found(commands, "/usr/bin/x", "", "-", "--", "=", "@", ":", "x" * 5000, "folder", "\udcff", "/", "..") == {}


def test_thousands_of_words_are_looked_at_in_no_time(commands: Commands) -> None:
    names = [f"f{number}" for number in range(2000)]
    for name in names:
        commands.program(name, name)

    files = named_files(("/bin/rm", *names, *names), commands.root, (commands.root,), lambda _path: False)

    assert len(files.files) == 2000


def test_python_is_found_as_an_interpreter_under_any_of_its_names(commands: Commands) -> None:
    commands.program("a.py", "")
    commands.program("b.py", "")

    for program in ("/usr/bin/python3.12", sys.executable, "/usr/bin/env"):
        words = ("python3", "a.py", "b.py") if program.endswith("env") else ("a.py", "b.py")
        assert found(commands, program, *words) == {"a.py": (True, True), "b.py": (False, True)}
