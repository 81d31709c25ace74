"""What lies within what, and where a session grant may be offered."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soong.orchestrator.cli.console import visible
from soong.shared.permissions.scope import Grant, GrantBook, Scope, ScopeKind, is_within, offered_scope
from soong.shared.tools.definition import Target
from tests.unit.permissions.calls import make_path


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


@pytest.mark.spec("PER-08.c")
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
        (make_path("/work/out /x"), ""),
        (make_path("/work/out\t/x"), ""),
        (make_path("/work/out\xa0/x"), ""),
        (make_path("/work/out\x85/x"), ""),
        (make_path("/work/out /deeper/x"), "/work/out /deeper"),
        (make_path("/work/o\u200but/x"), ""),
        (make_path("/work/o\u202eut/x"), ""),
        (make_path("/work/o\u3164ut/x"), ""),
        (make_path("/work/o\ufffdut/x"), ""),
        (make_path(f"/work/{'o' * 4000}/x"), ""),
        (make_path("/work/my out/x"), "/work/my out"),
        (make_path("/work/\xe4\u6587/x"), "/work/\xe4\u6587"),
        (Target(kind="command", scope="git status @ /work"), "git status @ /work"),
        (Target(kind="command", scope="/usr/bin/git -C /x status in /work"), "/usr/bin/git -C /x status in /work"),
        (Target(kind="command", scope="git status "), ""),
        (Target(kind="host", scope="example.org"), "example.org"),
        (Target(), ""),
    ],
)
def test_a_session_grant_is_offered_only_for_a_narrow_scope(target: Target, offered: str) -> None:
    assert offered_scope(target, "/home/someone") == offered


BLANKS = " \t\n\r\x0b\x0c\x1c\x85\xa0\u2003\u2028\u3000\u200b\ufeff\u3164\u2800\ufe0f\0\x1b\ufffd"
NAMES = st.text(st.one_of(st.sampled_from(f"ab.*/\\u{BLANKS}"), st.characters()), min_size=1, max_size=6)


@pytest.mark.spec("PER-04", "PER-08")
@settings(max_examples=400)
@given(
    st.sampled_from(["path", "command", "host", "resource"]),
    st.lists(st.tuples(NAMES, st.sampled_from(["", *BLANKS]), st.sampled_from(["", *BLANKS])), min_size=2, max_size=2),
)
def test_different_targets_never_share_a_grant_nor_its_text_on_a_screen(kind: Any, named: list[Any]) -> None:
    prefix = "/p/" if kind == "path" else ""
    scopes = [f"{prefix}{before}{name}{after}" for name, before, after in named]
    first, second = (offered_scope(Target(kind=kind, scope=scope), "/home/someone") for scope in scopes)

    assert first in ("", scopes[0])
    if first and second and scopes[0] != scopes[1]:
        assert first != second
        assert visible(first) != visible(second)
        assert visible(first).strip() != visible(second).strip()


def test_an_exact_scope_covers_that_text_and_no_path() -> None:
    scope = Scope(ScopeKind.EXACT, "git status")

    assert scope.covers(Target(kind="command", scope="git status @ /work", shown="git status"))
    assert not scope.covers(Target(kind="command", scope="git status -v"))
    assert not scope.covers(make_path("git status", scope="git status"))
    assert not Scope(ScopeKind.EXACT, "").covers(Target(kind="command"))


@pytest.mark.spec("PER-04.a", "PER-16.c")
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


@pytest.mark.spec("PER-04.a")
@pytest.mark.parametrize(("tool", "scope"), [("", "/work"), ("code.write_file", "")])
def test_a_grant_by_name_or_scope_alone_is_refused(tool: str, scope: str) -> None:
    with pytest.raises(ValueError, match="needs a tool and a scope"):
        GrantBook().add(Grant(tool, scope, "local", "dec_1"))
