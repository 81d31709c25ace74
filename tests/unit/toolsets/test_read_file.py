"""code.read_file: pages, roots, names in other Unicode forms, and instruction files."""

import asyncio
import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ContextNode, ErrorType
from soong.shared.toolsets.code.read_file import MAX_INSTRUCTION_BYTES
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


READS: list[tuple[str, dict[str, Json]]] = [
    ("read_file", {"path": "{}/text.txt"}),
    ("list_dir", {"path": "{}"}),
    ("list_dir", {"path": "{}", "recursive": True}),
    ("search", {"path": "{}", "query": "canary"}),
]
IDS = ["read", "list", "list all", "search"]


def at(arguments: dict[str, Json], folder: Path) -> dict[str, Json]:
    return {name: value.format(folder) if isinstance(value, str) else value for name, value in arguments.items()}


def make(folder: Path, *roots: Path) -> Project:
    """Return a project whose session reads in these folders besides its own."""
    project = make_project(folder, place={"read_roots": roots})
    for place in (project.root, project.outside):
        (place / "text.txt").write_text("canary\n")
    return project


@pytest.mark.spec("FS-06", "PER-02", "FS-02.c", "FS-03.d")
@pytest.mark.parametrize(("tool", "arguments"), READS, ids=IDS)
async def test_a_read_outside_asks_and_happens_only_with_consent(
    tmp_path: Path, tool: str, arguments: dict[str, Json]
) -> None:
    project = make(tmp_path)
    call = at(arguments, project.outside)

    read = await project.call(tool, **call)
    project.bench.gate.verdict = Verdict(is_allowed=False, author="rule", error=ErrorType.PERMISSION_DENIED)
    denied = await project.error(tool, **call)

    assert read.error is None
    assert not project.target.is_inside_roots
    assert project.target.scope == str(project.outside)
    assert denied is ErrorType.PERMISSION_DENIED


@pytest.mark.spec("FS-06", "PER-02")
@pytest.mark.parametrize(("tool", "arguments"), READS, ids=IDS)
async def test_a_read_in_the_project_or_in_a_root_is_inside(
    tmp_path: Path, tool: str, arguments: dict[str, Json]
) -> None:
    project = make(tmp_path, tmp_path / "outside")

    for folder in (project.root, project.outside):
        assert (await project.call(tool, **at(arguments, folder))).error is None
        assert project.target.is_inside_roots


@pytest.mark.spec("FS-06", "PER-02")
async def test_a_link_leads_out_of_the_roots(tmp_path: Path) -> None:
    project = make(tmp_path)
    (project.root / "link.txt").symlink_to(project.outside / "text.txt")
    (project.root / "folder").symlink_to(project.outside)

    for path in ("link.txt", "folder/text.txt", "../outside/text.txt"):
        await project.call("read_file", path=path)
        assert not project.target.is_inside_roots


@pytest.mark.spec("FS-06", "PER-02")
async def test_a_sensitive_file_inside_a_root_still_asks(tmp_path: Path) -> None:
    project = make(tmp_path, tmp_path / "outside")
    (project.outside / ".env").write_text("KEY=1\n")

    await project.call("read_file", path=str(project.outside / ".env"))

    assert project.target.is_sensitive


@pytest.mark.spec("FS-06", "PER-02")
async def test_the_runs_own_folder_and_the_users_skills_are_read_and_other_runs_are_not(tmp_path: Path) -> None:
    project = make(tmp_path)
    own, other, skills = tmp_path / "run", tmp_path / "run_other", project.home / "skills"
    for folder in (own, other, skills):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text.txt").write_text("x\n")

    inside = []
    for folder in (own, skills, other):
        await project.call("read_file", path=str(folder / "text.txt"))
        inside.append(project.target.is_inside_roots)

    assert inside == [True, True, False]


@pytest.mark.spec("FS-06", "PER-02")
async def test_the_root_of_the_file_system_as_a_read_root_is_every_folder(tmp_path: Path) -> None:
    project = make(tmp_path, Path("/"))

    await project.call("read_file", path=str(project.outside / "text.txt"))

    assert project.target.is_inside_roots


STORED = unicodedata.normalize("NFD", "Résumé/café.txt")
TYPED = unicodedata.normalize("NFC", STORED)


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(("stored", "typed"), [(STORED, TYPED), (TYPED, STORED)], ids=["NFC", "NFD"])
async def test_a_listed_name_is_found_in_the_other_form(project: Project, stored: str, typed: str) -> None:
    file = project.file(stored, "one\n")

    read = await project.data("read_file", path=typed)
    edited = await project.call("edit_file", path=typed, edits=[{"old": "one", "new": "two"}])
    written = await project.call("write_file", path=typed, content="three\n", overwrite=True)
    folder = await project.data("list_dir", path=typed.partition("/")[0])
    found = await project.data("search", query="three", path=typed.partition("/")[0])

    assert read["text"] == "one\n"
    assert (edited.error, written.error) == (None, None)
    assert file.read_text() == "three\n"
    assert len(list(file.parent.iterdir())) == len(folder["entries"]) == 1
    assert found["matches"]


async def test_an_exact_name_is_taken_before_its_twin(project: Project) -> None:
    for name in (STORED, TYPED):
        project.file(name, f"{len(name)}\n")

    exact = [(await project.data("read_file", path=name))["text"] for name in (STORED, TYPED)]

    assert exact == [f"{len(STORED)}\n", f"{len(TYPED)}\n"]


async def nodes(project: Project, path: str, **arguments: int) -> tuple[ContextNode, ...]:
    return (await project.call("read_file", path=path, **arguments)).context_nodes


@pytest.mark.spec("FS-08")
async def test_an_instruction_file_speaks_through_a_link_of_such_a_name_inside_the_project(project: Project) -> None:
    project.file("AGENTS.md", "one\n")
    (project.root / "CLAUDE.md").symlink_to("AGENTS.md")
    (project.root / "notes.md").symlink_to("AGENTS.md")

    assert len(await nodes(project, "CLAUDE.md")) == 1
    assert await nodes(project, "notes.md") == ()  # a call that nothing tells to run alone adds nothing


@pytest.mark.spec("FS-08.b")
async def test_an_instruction_file_outside_the_project_adds_nothing(project: Project) -> None:
    (project.outside / "AGENTS.md").write_text("theirs\n")
    (project.root / "CLAUDE.md").symlink_to(project.outside / "AGENTS.md")

    assert await nodes(project, "CLAUDE.md") == ()
    assert await nodes(project, str(project.outside / "AGENTS.md")) == ()


@pytest.mark.spec("FS-08")
@pytest.mark.parametrize("name", ["README.md", "agents.txt", "AGENTS.md.bak", "AGENTS.md/x"])
async def test_another_file_adds_nothing(project: Project, name: str) -> None:
    project.file(name, "one\n")

    assert await nodes(project, name) == ()


@pytest.mark.spec("FS-08", "RES-03")
async def test_an_instruction_file_in_a_sensitive_place_or_with_another_name_adds_nothing(project: Project) -> None:
    project.file(".env/AGENTS.md", "secret\n")
    (project.outside / "x").write_text("secret\n")
    os.link(project.outside / "x", project.root / "AGENTS.md")

    assert await nodes(project, ".env/AGENTS.md") == ()
    assert await nodes(project, "AGENTS.md") == ()


@pytest.mark.spec("FS-08")
async def test_a_block_is_bounded_and_an_empty_file_gives_none(project: Project) -> None:
    project.file("AGENTS.md", "\u00e4\n" * MAX_INSTRUCTION_BYTES)
    project.file("CLAUDE.md", " \n")

    (node,) = await nodes(project, "AGENTS.md")

    assert len(node.text.encode()) < MAX_INSTRUCTION_BYTES + 300
    assert node.text.endswith(f"[cut at {MAX_INSTRUCTION_BYTES} bytes]")
    assert await nodes(project, "CLAUDE.md") == ()
