from pathlib import Path

import pytest

from shared.tools.result import ErrorType
from tests.unit.toolsets.parts import Project, text_of


def found(data: dict[str, object]) -> list[tuple[str, int]]:
    return [(match["path"], match["line"]) for match in data["matches"]]  # type: ignore[attr-defined]


@pytest.mark.spec("FS-03")
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
    }


@pytest.mark.spec("FS-03")
async def test_a_glob_narrows_and_a_path_starts_elsewhere(project: Project) -> None:
    for name in ("a/x.py", "a/x.md", "b/x.py"):
        project.file(name, "hit\n")

    assert found(await project.data("search", query="hit", glob="*.py")) == [("a/x.py", 1), ("b/x.py", 1)]
    assert found(await project.data("search", query="hit", path="a")) == [("a/x.md", 1), ("a/x.py", 1)]
    assert found(await project.data("search", query="hit", path="a/x.py")) == [("a/x.py", 1)]


@pytest.mark.spec("FS-03")
async def test_more_matches_than_the_limit_are_said_to_follow(project: Project) -> None:
    project.file("x", "hit\n" * 300)

    default = await project.data("search", query="hit")
    exact = await project.data("search", query="hit", limit=300)

    assert (default["count"], default["truncated"]) == (200, True)
    assert (exact["count"], exact["truncated"]) == (300, False)
    assert await project.error("search", query="hit", limit=1001) is ErrorType.INVALID_INPUT


@pytest.mark.spec("FS-03")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query": "("}, "unclosed group"),
        ({"query": "a\nb"}, "not allowed"),
        ({"query": "(?<=x)"}, "look-around"),
        ({"query": "x", "glob": "{a,"}, "glob"),
    ],
    ids=["group", "newline", "look-around", "glob"],
)
async def test_a_bad_pattern_is_invalid_input_in_ripgreps_own_words(
    project: Project, arguments: dict[str, str], words: str
) -> None:
    result = await project.call("search", **arguments)

    assert result.error is not None
    assert result.error.type is ErrorType.INVALID_INPUT
    assert words in result.error.message


@pytest.mark.spec("FS-03")
async def test_a_place_outside_the_project_asks(project: Project) -> None:
    (project.outside / "x").write_text("hit\n")

    data = await project.data("search", query="hit", path=str(project.outside))

    assert found(data) == [(str(project.outside / "x"), 1)]
    assert (project.target.is_inside_roots, project.target.scope) == (False, str(project.outside))


@pytest.mark.spec("FS-06")
async def test_sensitive_files_are_left_out_and_counted_whatever_they_hold(project: Project) -> None:
    for name in (".env", "a/.env.local", "a/SERVER.PEM", ".ssh/id_rsa", "ok.txt"):
        project.file(name, "password=1\n")

    hit = await project.data("search", query="password")
    miss = await project.data("search", query="nowhere to be found")

    assert (found(hit), hit["left_out"]) == ([("ok.txt", 1)], 4)
    assert (found(miss), miss["left_out"]) == ([], 4)


@pytest.mark.spec("FS-06")
async def test_a_sensitive_place_that_was_asked_for_is_searched_after_consent(project: Project) -> None:
    project.file(".env", "password=1\n")

    data = await project.data("search", query="password", path=".env")

    assert project.target.is_sensitive
    assert found(data) == [(".env", 1)]


async def test_a_long_line_is_cut_and_a_binary_file_left_alone(project: Project) -> None:
    project.file("long.txt", "hit" + "x" * 5_000_000 + "\n")
    project.file("bin", b"hit\n" + b"\0" * 100)

    data = await project.data("search", query="hit")

    assert [path for path, _ in found(data)] == ["long.txt"]
    assert len(data["matches"][0]["text"]) < 1000


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


async def test_no_match_is_no_error(project: Project) -> None:
    assert text_of(await project.call("search", query="x")) == "no matches"


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
