import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from soong.shared.permissions.gate import scope_of
from soong.shared.permissions.policy import Policy, evaluate
from soong.shared.permissions.rules import Effect, parse_allow
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code import atomic_write
from tests.unit.toolsets.parts import Project, text_of


@pytest.mark.spec("FS-04", "FS-07.f", "PER-06")
async def test_what_is_asked_is_the_resolved_path_its_folder_and_the_size(project: Project) -> None:
    await project.call("write_file", path="a/../x.md", content="one\ntwo")

    assert (project.target.shown, project.target.scope) == (str(project.root / "x.md"), str(project.root))
    assert (project.target.precondition, project.target.is_inside_roots) == ("absent", True)
    assert project.target.preview.endswith("7 bytes, 2 lines")


@pytest.mark.spec("FS-04.a", "CMD-06.d")
async def test_overwriting_is_explicit_keeps_the_mode_and_shows_a_diff(project: Project) -> None:
    path = project.file("x", "old\nsame\n")
    path.chmod(0o751)
    inode = path.stat().st_ino

    data = await project.data("write_file", path="x", content="new\nsame\n", overwrite=True)

    assert (path.read_text(), path.stat().st_mode & 0o777, data["created"]) == ("new\nsame\n", 0o751, False)
    assert path.stat().st_ino != inode
    assert "-old\n+new\n same\n" in project.target.preview
    assert project.target.precondition.endswith(hashlib.sha256(b"old\nsame\n").hexdigest())


@pytest.mark.spec("FS-04.c/late-file")
@pytest.mark.parametrize("overwrite", [True, False])
async def test_a_file_that_appears_between_check_and_rename_survives(
    project: Project, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.root / "x"
    original = atomic_write._link_new

    def late(folder: int, temporary: str, name: str) -> bool:
        path.write_text("theirs")
        return original(folder, temporary, name)

    monkeypatch.setattr(atomic_write, "_link_new", late)

    assert await project.error("write_file", path="x", content="mine", overwrite=overwrite) is ErrorType.PATH_CONFLICT
    assert path.read_text() == "theirs"


OLD, NEW = b"old" * 400_000, b"new" * 400_000


@pytest.mark.spec("FS-04.c/reader")
async def test_a_reader_beside_the_writes_sees_one_file_or_the_other(project: Project) -> None:
    path = project.file("x", OLD)
    seen: list[bytes] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            seen.append(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for content in (NEW, OLD) * 5:
            await project.data("write_file", path="x", content=content.decode(), overwrite=True)
    finally:
        is_over.set()
        reader.join(10)

    assert set(seen) == {OLD, NEW}


@pytest.mark.spec("FS-04.c/kill")
@pytest.mark.parametrize("moment", ["write", "fsync", "rename"])
def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path: Path, moment: str) -> None:
    """``moment`` is the call of the operating system before which, with half of the content written, it dies."""
    path = tmp_path / "x"
    path.write_bytes(OLD)

    killed = subprocess.run([sys.executable, "-P", "-c", KILLED_WRITER, str(path), moment], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == OLD


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
from threading import Event
from soong.shared.toolsets.code.atomic_write import Replacement, write
path, moment = Path(sys.argv[1]), sys.argv[2]
original = os.write
def half(descriptor, data):
    count = original(descriptor, data[: len(data) // 2 + 1])
    if moment == "write":
        os.kill(os.getpid(), signal.SIGKILL)
    return count
os.write = half
if moment != "write":
    setattr(os, moment, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
write(Replacement(path, b"new" * 400_000, overwrites=True), Event())
"""


@pytest.mark.spec("FS-04.c/full-disk")
async def test_a_full_disk_leaves_the_old_file_and_no_rest(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.file("x", "old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    result = await project.call("write_file", path="x", content="new", overwrite=True)

    assert result.error is not None
    assert (result.error.type, "No space" in result.error.message) == (ErrorType.EXECUTION_FAILED, True)
    assert [(entry.name, entry.read_text()) for entry in project.root.iterdir()] == [("x", "old")]


async def test_a_sensitive_old_content_is_not_in_the_preview(project: Project) -> None:
    project.file(".env", "PASSWORD=hunter2\n")

    await project.call("write_file", path=".env", content="A=1\n", overwrite=True)

    assert "hunter2" not in project.target.preview


def test_a_file_system_without_hard_links_is_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    (tmp_path / "temporary").write_text("new")

    assert atomic_write._link_new(folder, "temporary", "x")
    (tmp_path / "again").write_text("other")
    assert not atomic_write._link_new(folder, "again", "x")

    os.close(folder)
    assert (tmp_path / "x").read_text() == "new"


@pytest.mark.spec("FS-04")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another")
async def test_the_owner_stays_and_the_right_to_run_as_the_owner_goes(project: Project) -> None:
    path = project.file("x", "old")
    os.chown(path, 1234, 5678)
    path.chmod(0o6755)

    await project.data("write_file", path="x", content="new", overwrite=True)

    status = path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 5678, 0o755)


@pytest.mark.spec("FS-06")
async def test_what_a_hard_link_holds_is_not_in_the_preview_and_not_changed_elsewhere(project: Project) -> None:
    (project.outside / "secret").write_text("canary\n")
    os.link(project.outside / "secret", project.root / "x")

    await project.data("write_file", path="x", content="new\n", overwrite=True)

    assert "canary" not in project.target.preview
    assert (project.outside / "secret").read_text() == "canary\n"


@pytest.mark.spec("FS-06", "PER-08")
async def test_a_rule_or_grant_for_a_folder_is_none_for_the_secrets_in_it(project: Project) -> None:
    rule = parse_allow(f"code.write_file:{project.root}")
    policy = Policy((rule,))

    await project.call("write_file", path=".env", content="x")
    await project.call("write_file", path="a.txt", content="x")

    secret, plain = project.bench.gate.asked
    assert (evaluate(policy, secret).effect, evaluate(policy, plain).effect) == (Effect.ASK, Effect.ALLOW)
    assert scope_of(secret, Policy(), "/home/a") == str(project.root / ".env")
    assert scope_of(plain, Policy(), "/home/a") == str(project.root)


@pytest.mark.spec("FS-04.b")
async def test_missing_folders_are_made_only_where_that_was_not_refused(project: Project) -> None:
    refused = await project.error("write_file", path="a/b/x", content="x", create_dirs=False)

    assert refused is ErrorType.FILE_NOT_FOUND
    assert not (project.root / "a").exists()


@pytest.mark.spec("FS-04")
@pytest.mark.parametrize(
    ("before", "lost"),
    [
        (b"\xef\xbb\xbfa\r\nb\r\n", ["a byte order mark", "line ends \\r\\n"]),
        ("a\n".encode("utf-16"), ["the encoding UTF-16"]),
        (b"caf\xe9\n", ["an encoding other than UTF-8"]),
        (b"a\n", []),
    ],
    ids=["mark-and-crlf", "utf-16", "latin-1", "plain"],
)
async def test_a_replaced_file_says_what_of_the_old_form_is_gone(
    project: Project, before: bytes, lost: list[str]
) -> None:
    project.file("x", before)

    result = await project.call("write_file", path="x", content="new\n", overwrite=True)

    assert isinstance(result.data, dict)
    assert result.data.get("lost", []) == lost
    assert (f"the old file had {' and '.join(lost)}, the content has not" in text_of(result)) is bool(lost)
