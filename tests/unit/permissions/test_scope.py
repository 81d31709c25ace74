"""What lies within what, and where a session grant may be offered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.permissions.grants import Grant, GrantBook
from shared.permissions.scope import Scope, ScopeKind, is_within, offered_scope
from shared.tools.definition import Target
from tests.unit.permissions.calls import make_path

PARTS = st.lists(st.sampled_from(["a", "b", "ab", "..a", ".git"]), max_size=4)


@pytest.mark.parametrize(
    ("path", "folder", "inside"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b/c", "/a/b", True),
        ("/a/bc", "/a/b", False),
        ("/a", "/a/b", False),
        ("/a/b", "/", True),
        ("/a/b/../c", "/a/b", False),
        ("/a/b/./c", "/a/b", False),
        ("/a/b/", "/a/b", False),
        ("//a/b", "/a", False),
        ("a/b", "/a", False),
        ("", "/", False),
    ],
)
def test_a_path_is_within_a_folder_by_components(path: str, folder: str, inside: bool) -> None:
    assert is_within(path, folder) is inside


@given(PARTS, PARTS)
def test_within_means_that_the_folders_components_come_first(path: list[str], folder: list[str]) -> None:
    assert is_within("/" + "/".join(path), "/" + "/".join(folder)) == (path[: len(folder)] == folder)


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize(
    ("target", "offered"),
    [
        (make_path("/work/out/x"), "/work/out"),
        (make_path("/home/someone/project/x"), "/home/someone/project"),
        (make_path("/x"), ""),
        (make_path("/home/someone/x"), ""),
        (make_path("/home/x"), ""),
        (make_path("/work/x", scope=""), ""),
        (make_path("/work/x", scope=" "), ""),
        (make_path("/work/x", scope="*"), ""),
        (make_path("/work/x", scope="/work/*"), ""),
        (make_path("/work/x", scope="/work/../etc"), ""),
        (make_path("/work/x", scope="work"), ""),
        (make_path("/work/x", scope="/work/\udcff"), ""),
        (make_path("/work/x", scope="/work/\0"), ""),
        (Target(kind="command", scope="git status @ /work"), "git status @ /work"),
        (Target(kind="host", scope="example.org"), "example.org"),
        (Target(), ""),
    ],
)
def test_a_session_grant_is_offered_only_for_a_narrow_scope(target: Target, offered: str) -> None:
    assert offered_scope(target, "/home/someone") == offered


def test_an_exact_scope_covers_that_text_and_no_path() -> None:
    scope = Scope(ScopeKind.EXACT, "git status")

    assert scope.covers(Target(kind="command", scope="git status @ /work", shown="git status"))
    assert not scope.covers(Target(kind="command", scope="git status -v"))
    assert not scope.covers(make_path("git status", scope="git status"))
    assert not Scope(ScopeKind.EXACT, "").covers(Target(kind="command"))


def test_a_rule_for_one_file_covers_that_file_alone() -> None:
    scope = Scope(ScopeKind.PATH, "/work/out/report.md")

    assert scope.covers(make_path("/work/out/report.md"))
    assert not scope.covers(make_path("/work/out/other.md"))


@pytest.mark.spec("PER-04")
def test_a_grant_holds_for_its_tool_and_exactly_its_scope() -> None:
    book = GrantBook()
    book.add(Grant("code.write_file", "/work/out", "local", "dec_1"))
    book.add(Grant("code.write_file", "/work/out", "local", "dec_2"))

    found = book.find("code.write_file", "/work/out")
    assert found is not None
    assert found.decision_id == "dec_1"
    assert book.find("code.edit_file", "/work/out") is None
    assert book.find("code.write_file", "/work/out/deeper") is None
    assert len(book) == 1


@pytest.mark.spec("PER-04")
@pytest.mark.parametrize(("tool", "scope"), [("", "/work"), ("code.write_file", "")])
def test_a_grant_by_name_or_scope_alone_is_refused(tool: str, scope: str) -> None:
    with pytest.raises(ValueError, match="needs a tool and a scope"):
        GrantBook().add(Grant(tool, scope, "local", "dec_1"))
