import asyncio
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soong.shared.tools.result import ErrorType
from tests.unit.toolsets.parts import Project, make_project, text_of


@pytest.mark.spec("FS-01")
async def test_a_whole_small_file_is_read_with_its_number_of_lines(project: Project) -> None:
    project.file("a/x.py", "one\ntwo\nthree")

    result = await project.call("read_file", path="a/x.py")

    assert result.data == {
        "path": "a/x.py",
        "start_line": 1,
        "end_line": 3,
        "total_lines": 3,
        "text": "one\ntwo\nthree",
        "truncated": False,
        "next_start_line": None,
        "truncated_lines": [],
    }
    assert text_of(result) == "     1\tone\n     2\ttwo\n     3\tthree\n[no newline at the end of the file]\n"


@pytest.mark.spec("FS-01.b")
async def test_a_long_line_is_cut_at_a_character_and_listed(project: Project) -> None:
    project.file("x", "short\n" + "ä" * 5000 + "\n" + "x" + "ä" * 5000 + "\nend\n")

    result = await project.call("read_file", path="x")

    lines = str(result.data["text"]).split("\n")  # type: ignore[index,call-overload]
    assert [len(line.encode()) for line in lines] == [5, 4096, 4095, 3, 0]
    assert "\ufffd" not in str(result.data)
    assert result.data["truncated_lines"] == [2, 3]  # type: ignore[index,call-overload]
    assert "cut at 4096 bytes: lines 2, 3" in text_of(result)


@pytest.mark.spec("FS-01.d")
@pytest.mark.parametrize(
    ("content", "start"),
    [
        (b"a\0b", 1),
        (b"\xff\xfea\0", 1),
        (b"ok\n" * 5000 + b"\0", 5001),
        (b"ok\n" * 5000 + b"\0\n" + b"ok\n" * 5, 5003),
        (b"x" * 300_000 + b"\0", 1),
    ],
    ids=["nul", "utf-16", "late", "passed over", "in a long line"],
)
async def test_a_binary_file_is_an_error_with_facts(project: Project, content: bytes, start: int) -> None:
    project.file("x", content)

    result = await project.call("read_file", path="x", start_line=start)

    assert result.error is not None
    assert result.error.type is ErrorType.BINARY_FILE
    assert result.error.details["size"] == len(content)


@pytest.mark.spec("FS-01")
async def test_a_nul_behind_the_page_does_not_matter(project: Project) -> None:
    project.file("x", b"ok\n" * 5000 + b"\0")

    assert (await project.data("read_file", path="x", max_lines=10))["end_line"] == 10


@pytest.mark.spec("FS-01")
async def test_bad_bytes_do_not_make_a_line_longer_than_the_limit(project: Project) -> None:
    project.file("x", b"\xe4" * 2000 + b"\n")

    data = await project.data("read_file", path="x")

    assert len(data["text"].encode()) <= 4096 + 1
    assert data["truncated_lines"] == [1]


async def test_an_empty_file_and_a_start_beyond_the_end_are_no_errors(project: Project) -> None:
    project.file("empty", "")
    project.file("x", "1\n2\n")

    project.file("open", "1\n2")
    assert (await project.data("read_file", path="open", start_line=9))["total_lines"] == 2
    assert "the file is empty" in text_of(await project.call("read_file", path="empty"))
    beyond = await project.call("read_file", path="x", start_line=9)
    assert "the file has 2 lines" in text_of(beyond)


@pytest.mark.spec("FS-01.e")
async def test_a_missing_file_is_a_tool_error(project: Project) -> None:
    assert await project.error("read_file", path="gone") is ErrorType.FILE_NOT_FOUND
    assert await project.error("read_file", path="gone/x") is ErrorType.FILE_NOT_FOUND


@pytest.mark.spec("FS-01")
@pytest.mark.parametrize("size", [50 * 1024**3, 1024**4], ids=["50 GB", "1 TB"])
@pytest.mark.parametrize(
    ("head_lines", "start"), [(0, 1), (10, 1), (3000, 2950), (3000, 9_000_000)], ids=["hole", "few", "end", "beyond"]
)
async def test_a_hole_ends_the_reading_at_once(project: Project, size: int, head_lines: int, start: int) -> None:
    with (project.root / "sparse").open("wb") as file:
        file.write(b"line\n" * head_lines)
        file.truncate(size)

    async with asyncio.timeout(10):
        assert await project.error("read_file", path="sparse", start_line=start) is ErrorType.BINARY_FILE


@pytest.mark.spec("FS-01.a")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=400), st.integers(1, 12), st.integers(1, 12)
)
async def test_a_page_is_exactly_the_lines_asked_for(
    tmp_path_factory: pytest.TempPathFactory, text: str, start: int, count: int
) -> None:
    project = make_project(tmp_path_factory.mktemp("page"))
    project.file("x", text)
    lines = text.split("\n")
    lines = [f"{line}\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]

    data = await project.data("read_file", path="x", start_line=start, max_lines=count)

    assert data["text"] == "".join(lines[start - 1 : start - 1 + count])
    assert data["truncated"] is (len(lines) > start - 1 + count)
    assert data["next_start_line"] == (start + count if data["truncated"] else None)
    assert data.get("total_lines", len(lines)) == len(lines)


@pytest.mark.spec("FS-06")
async def test_a_sensitive_file_that_was_replaced_while_asking_is_not_read(project: Project) -> None:
    secret = project.file(".env", "A=1\n")

    async def replace() -> None:
        project.file("other", "B=2\n").rename(secret)

    project.bench.gate.before = replace

    assert await project.error("read_file", path=".env") is ErrorType.PATH_CONFLICT


@pytest.mark.spec("FS-06")
async def test_a_file_that_gets_another_name_while_it_is_judged_is_not_read(project: Project) -> None:
    (project.outside / "secret").write_text("canary\n")
    project.file("notes.txt", "harmless\n")

    async def link() -> None:
        (project.root / "notes.txt").unlink()
        os.link(project.outside / "secret", project.root / "notes.txt")

    project.bench.gate.before = link

    assert await project.error("read_file", path="notes.txt") is ErrorType.PERMISSION_DENIED


@pytest.mark.spec("FS-06")
async def test_what_a_package_manager_links_is_read_freely(project: Project) -> None:
    (project.outside / "module.py").write_text("x = 1\n")
    folder = project.root / ".venv/lib/python3.11/site-packages"
    folder.mkdir(parents=True)
    os.link(project.outside / "module.py", folder / "module.py")

    await project.data("read_file", path=".venv/lib/python3.11/site-packages/module.py")

    assert not project.target.is_sensitive


async def test_a_name_that_could_pass_for_anything_else_is_quoted(project: Project) -> None:
    project.file("a\nb\u202e.txt", "x\n")

    result = await project.call("read_file", path="a\nb\u202e.txt")

    assert result.summary == '"a\\nb\\u202e.txt": lines 1-1'
