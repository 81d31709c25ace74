"""code.search and code.list_dir."""

import os
import threading
from pathlib import Path

import pytest

from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code import list_dir
from soong.shared.toolsets.code.rg import Match
from soong.shared.toolsets.code.search import confirmed
from tests.unit.toolsets.parts import Project, text_of


def found(data: dict[str, object]) -> list[tuple[str, int]]:
    return [(match["path"], match["line"]) for match in data["matches"]]  # type: ignore[attr-defined]


@pytest.mark.spec("FS-03.a", "FS-03.b")
async def test_matches_carry_path_line_and_text_sorted_by_path_and_line(project: Project) -> None:
    project.file("b.py", "x = 1\n# TODO: b\n# TODO: again\n")
    project.file("a/c.py", "# TODO: c\n")
    project.file("a.txt", "nothing\n")

    data = await project.data("search", query=r"TODO:\s")

    assert data == {
        "matches": [
            {"path": "a/c.py", "line": 1, "text": "# TODO: c"},
            {"path": "b.py", "line": 2, "text": "# TODO: b"},
            {"path": "b.py", "line": 3, "text": "# TODO: again"},
        ],
        "count": 3,
        "truncated": False,
        "left_out": 0,
        "ignored": 0,
        "binary": 0,
    }


@pytest.mark.spec("FS-03.c")
async def test_more_matches_than_the_limit_are_said_to_follow(project: Project) -> None:
    project.file("x", "hit\n" * 300)

    default = await project.data("search", query="hit")
    exact = await project.data("search", query="hit", limit=300)

    assert (default["count"], default["truncated"]) == (200, True)
    assert (exact["count"], exact["truncated"]) == (300, False)
    assert await project.error("search", query="hit", limit=1001) is ErrorType.INVALID_INPUT


@pytest.mark.spec("FS-06.b", "FS-06.d")
async def test_a_sensitive_place_that_was_asked_for_is_searched_after_consent(project: Project) -> None:
    project.file(".env", "password=1\n")

    data = await project.data("search", query="password", path=".env")

    assert project.target.is_sensitive
    assert found(data) == [(".env", 1)]


async def test_names_cannot_be_taken_for_anything_else(project: Project) -> None:
    project.file("a:12:b", "hit\n")
    project.file("new\nline", "hit\n")

    assert found(await project.data("search", query="hit")) == [("a:12:b", 1), ("new\nline", 1)]


async def test_a_repositorys_own_ignore_file_cannot_hide_code(project: Project) -> None:
    project.file(".ignore", "evil.py\n")
    project.file(".rgignore", "evil.py\n")
    project.file("evil.py", "hit\n")
    project.file(".git/config", "hit\n")

    assert found(await project.data("search", query="hit", glob="**")) == [("evil.py", 1)]


async def test_a_project_below_an_ignored_folder_is_searched_all_the_same(project: Project) -> None:
    (project.root.parent / ".git").mkdir()
    (project.root.parent / ".gitignore").write_text("project/\n")
    project.file("x", "hit\n")

    assert found(await project.data("search", query="hit")) == [("x", 1)]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_no_descriptor_is_left_open(project: Project) -> None:
    project.file("x", "hit\n")
    await project.call("search", query="hit")
    before = open_descriptors()

    for _ in range(3):
        await project.call("search", query="hit")
        await project.call("search", query="hit", path="x")
        await project.call("list_dir", recursive=True)

    assert open_descriptors() == before


@pytest.mark.spec("FS-03.c")
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
async def test_a_limit_gives_the_first_matches_of_the_whole_order(project: Project, limit: int) -> None:
    for name in ("a/z", "a-b/z", "a.txt", "b"):
        project.file(name, "hit\n")
    everything = found(await project.data("search", query="hit"))

    data = await project.data("search", query="hit", limit=limit)

    assert everything == sorted(everything)
    assert found(data) == everything[:limit]
    assert data["truncated"] is (limit < 4)


@pytest.mark.spec("FS-03")
async def test_a_file_that_turns_out_to_be_binary_hides_no_other(project: Project) -> None:
    project.file("a", b"hit early\n" + b"y\n" * 200_000 + b"\0")
    project.file("b", "hit\n")

    assert found(await project.data("search", query="hit")) == [("a", 1), ("b", 1)]


@pytest.mark.spec("FS-03")
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
async def test_text_with_a_byte_order_mark_is_searched(project: Project, encoding: str) -> None:
    project.file("x", "hit \u00e4\nno\nhit two\n".encode(encoding))

    data = await project.data("search", query="hit")

    assert [(match["line"], match["text"]) for match in data["matches"]] == [(1, "hit \u00e4"), (3, "hit two")]


@pytest.mark.spec("FS-03")
async def test_a_long_line_is_cut_at_a_character_with_a_mark(project: Project) -> None:
    project.file("x", "hit" + "\u00e4" * 400 + "\n")

    (match,) = (await project.data("search", query="hit"))["matches"]

    assert match["text"].startswith("hit" + "\u00e4" * 198)
    assert match["text"].endswith(" [the line continues]")
    assert len(match["text"].encode()) < 450


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize("query", ["password=1", "password=2", "nothing"])
async def test_the_count_of_what_is_left_out_tells_nothing_of_its_content(project: Project, query: str) -> None:
    (project.outside / "secret").write_text("password=1\n")
    os.link(project.outside / "secret", project.root / "notes.txt")
    for name in (".env ", ".\uff45nv", "sub/id.PEM. ", "ok.txt"):
        project.file(name, "password=1\n")

    data = await project.data("search", query=query, limit=1)

    assert data["left_out"] == 4
    assert found(data) == ([("ok.txt", 1)] if query == "password=1" else [])
    assert data["truncated"] is False
    assert "partial" not in data


@pytest.mark.spec("FS-06")
async def test_a_pattern_holds_across_the_place_where_a_search_begins(project: Project) -> None:
    project.file(".config/gcloud/token", "hit\n")
    project.file(".config/other", "hit\n")

    data = await project.data("search", query="hit", path=".config")

    assert (found(data), data["left_out"]) == ([(".config/other", 1)], 1)


@pytest.mark.spec("FS-07")
def test_a_line_is_shown_only_if_it_is_in_the_file_that_has_that_name(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside/x").write_text("harmless\nhit\n")
    (tmp_path / "outside/x").write_text("canary\n")
    (tmp_path / "inside/link").symlink_to("../outside")
    os.mkfifo(tmp_path / "inside/fifo")
    said = [
        Match("fifo", 1, 0, b"canary"),
        Match("gone", 1, 0, b"canary"),
        Match("link/x", 1, 0, b"canary"),
        Match("x", 1, 0, b"canary"),
        Match("x", 2, 9, b"hit"),
        Match("x", 2, 9, b"hit and more"),
    ]
    folder = os.open(tmp_path / "inside", os.O_RDONLY)

    held = confirmed(folder, said, threading.Event())

    os.close(folder)
    assert [(line.path, line.line, line.text) for line in held] == [("x", 2, "hit")]


@pytest.mark.spec("FS-03")
async def test_files_that_git_ignores_are_counted_and_searched_when_asked(project: Project) -> None:
    project.file(".git/HEAD", "ref\n")
    project.file(".gitignore", "scripts/*\n.env\n")
    for name in ("scripts/a.py", "scripts/b.py", ".env", "ok.py"):
        project.file(name, "word\n")

    default = await project.call("search", query="word")
    all_files = await project.data("search", query="word", ignored=True)

    assert text_of(default) == (
        "ok.py:1:word\n[2 files ignored by .gitignore not searched; ignored=true does]\n"
        "[1 files left out: sensitive, hard-linked, or withheld by a rule]"
    )
    assert found(all_files) == [("ok.py", 1), ("scripts/a.py", 1), ("scripts/b.py", 1)]
    assert (all_files["ignored"], all_files["left_out"]) == (0, 1)


@pytest.mark.spec("FS-03")
async def test_no_match_is_told_apart_from_what_was_not_searched(project: Project) -> None:
    project.file("bin", b"\0word\n")
    project.file("wide", "text".encode("utf-16"))

    in_folder = text_of(await project.call("search", query="word"))
    in_file = text_of(await project.call("search", query="word", path="bin"))
    in_wide = text_of(await project.call("search", query="word", path="wide"))
    by_glob = text_of(await project.call("search", query="word", glob="*.rs"))

    assert in_folder == in_file == "no matches\n[1 binary files searched only up to their first NUL]"
    assert in_wide == "no matches"
    assert by_glob == "no matches\n[path and glob name no file that is searched]"


@pytest.mark.spec("FS-03")
async def test_the_end_of_a_line_is_found_before_a_carriage_return(project: Project) -> None:
    project.file("x", b"say hello\r\nhello there\r\n")

    assert found(await project.data("search", query="hello$")) == [("x", 1)]


@pytest.mark.spec("FS-03")
@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("./*.ts", ["a.ts"]),
        ("./src/**/*.ts", ["src/b.ts", "src/lib/c.ts"]),
        ("{root}/src/*.ts", ["src/b.ts"]),
        ("!./src/**", ["a.ts"]),
        ("src/", ["src/b.ts", "src/lib/c.ts"]),
        ("/src/*.ts", ["src/b.ts"]),
    ],
)
async def test_a_glob_is_read_as_people_write_it(project: Project, glob: str, paths: list[str]) -> None:
    for name in ("a.ts", "src/b.ts", "src/lib/c.ts"):
        project.file(name, "hit\n")

    data = await project.data("search", query="hit", glob=glob.replace("{root}", str(project.root)))

    assert [path for path, _ in found(data)] == paths


@pytest.mark.spec("FS-03")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
async def test_a_match_far_into_a_long_line_is_shown_with_its_column(project: Project, encoding: str) -> None:
    project.file("x", ("first\n" + "\u00e4" * 240_000 + " needle " + "y" * 1000 + "\n").encode(encoding))

    (match,) = (await project.data("search", query="needle"))["matches"]
    (alone,) = (await project.data("search", query="needle", path="x"))["matches"]

    assert (match["line"], match["column"]) == (2, 480_002)
    assert match["text"].startswith("[from byte 479902] \u00e4")
    assert " needle yyy" in match["text"]
    assert match["text"].endswith("y [the line continues]")
    assert len(match["text"].encode()) < 450
    assert alone == match


@pytest.mark.spec("FS-06")
async def test_a_key_in_the_middle_of_a_long_line_is_not_shown(project: Project) -> None:
    key = "-----BEGIN PRIVATE KEY-----" + "A1b2" * 400 + "-----END PRIVATE KEY-----"
    project.file(
        "x", "y\n" * 8192 + "z" * 5000 + key + "z" * 5000 + " needle" + "z" * 400 + "\nneedle\n" + key + "\nneedle\n"
    )

    inside = await project.data("search", query="A1b2A1b2$|KEY-----A1|b2A1b2-----END")
    around = await project.data("search", query="^needle|z needle")

    assert found(inside) == []
    assert [match["line"] for match in around["matches"]] == [8193, 8194, 8196]


def paths(data: dict[str, object]) -> list[str]:
    return [entry["path"] for entry in data["entries"]]  # type: ignore[attr-defined]


@pytest.mark.spec("FS-02.a", "FS-02.b")
async def test_entries_are_sorted_by_path_with_kind_and_size(project: Project) -> None:
    project.file("b.txt", "12345")
    project.file("a/x", "1")
    (project.root / "link").symlink_to("b.txt")
    os.mkfifo(project.root / "fifo")

    data = await project.data("list_dir")

    assert data["entries"] == [
        {"path": "a", "type": "dir", "size": 0},
        {"path": "b.txt", "type": "file", "size": 5},
        {"path": "fifo", "type": "other", "size": 0},
        {"path": "link", "type": "link", "size": 0},
    ]
    assert (data["truncated"], data["left_out"]) == (False, 0)


@pytest.mark.spec("FS-02")
async def test_a_recursive_list_is_sorted_as_a_whole(project: Project) -> None:
    for name in ("a/x", "a.txt", "a-b/y", "b", "a/c/d"):
        project.file(name)

    listed = paths(await project.data("list_dir", recursive=True))

    assert listed == sorted(listed) == ["a", "a-b", "a-b/y", "a.txt", "a/c", "a/c/d", "a/x", "b"]


@pytest.mark.spec("FS-06.d")
async def test_sensitive_entries_are_left_out_and_counted(project: Project) -> None:
    for name in (".env", "a/key.pem", "a/x.py", ".ssh/id_rsa"):
        project.file(name)

    result = await project.call("list_dir", recursive=True)

    assert paths(result.data) == ["a", "a/x.py"]  # type: ignore[arg-type]
    assert result.data["left_out"] == 3  # type: ignore[index,call-overload]
    assert "[3 entries left out: sensitive, or withheld by a rule]" in text_of(result)


@pytest.mark.spec("FS-06.b", "FS-06.d", "FS-02.c")
async def test_a_sensitive_directory_that_was_asked_for_is_listed_after_consent(project: Project) -> None:
    project.file(".ssh/id_rsa")

    data = await project.data("list_dir", path=".ssh")

    assert project.target.is_sensitive
    assert paths(data) == [".ssh/id_rsa"]


async def test_a_file_or_nothing_cannot_be_listed(project: Project) -> None:
    project.file("x")

    assert await project.error("list_dir", path="x") is ErrorType.INVALID_INPUT
    assert await project.error("list_dir", path="gone") is ErrorType.FILE_NOT_FOUND


@pytest.mark.spec("FS-02")
async def test_a_tree_too_deep_to_walk_is_flagged(project: Project) -> None:
    folder = project.root.joinpath(*["d"] * 70)
    folder.mkdir(parents=True)
    (folder / "x").touch()

    result = await project.call("list_dir", recursive=True)

    assert isinstance(result.data, dict)
    assert (result.data["partial"], result.data["unreadable"]) == (True, 1)
    assert "1 directories were not entered" in text_of(result)


def test_a_file_system_of_the_kernel_is_not_entered_wherever_it_is_met() -> None:
    root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)

    entered = list_dir._entered(root, Path("/proc"))

    os.close(root)
    assert entered is None


@pytest.mark.spec("FS-02.a", "FS-02.b")
async def test_by_default_two_hundred_entries_of_the_folder_itself_are_listed(project: Project) -> None:
    for number in range(205):
        project.file(f"f{number:03}")
    project.file("a/inner")

    data = await project.data("list_dir")

    assert paths(data) == ["a", *(f"f{number:03}" for number in range(199))]
    assert data["truncated"] is True
