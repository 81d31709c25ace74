import hashlib
from collections.abc import Sequence
from typing import Any

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code import atomic_write
from tests.unit.tools.parts import error_of
from tests.unit.toolsets.parts import Project

HUNK = "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
DIFF = f"--- a/x\n+++ b/x\n{HUNK}"


def edits(*pairs: Sequence[str]) -> list[Json]:
    return [{"old": old, "new": new} for old, new in pairs]


@pytest.mark.spec("FS-05.c")
async def test_edits_apply_in_order_each_to_the_result_of_the_last(project: Project) -> None:
    path = project.file("x", "one\ntwo\nthree\n")

    data = await project.data("edit_file", path="x", edits=edits(("two", "2"), ("2\nthree", "2\n3")))

    content = b"one\n2\n3\n"
    assert path.read_bytes() == content
    assert data == {
        "path": "x",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "created": False,
        "edits": 2,
        "replacements": 2,
        "first_changed_line": 2,
    }


@pytest.mark.spec("FS-05.b")
async def test_replace_all_replaces_every_place_and_belongs_to_edits(project: Project) -> None:
    path = project.file("x", "a b a b a\n")

    data = await project.data("edit_file", path="x", edits=edits(("a", "cc")), replace_all=True)

    assert (path.read_text(), data["replacements"]) == ("cc b cc b cc\n", 3)
    assert await project.error("edit_file", path="x", unified_diff=DIFF, replace_all=True) is ErrorType.INVALID_INPUT


@pytest.mark.spec("FS-05.b")
async def test_a_text_that_is_nowhere_is_answered_with_the_line_that_comes_near(project: Project) -> None:
    project.file("x", "one\n\n  two   words\n")

    near = await project.call("edit_file", path="x", edits=edits(("two words", "y")))

    assert error_of(near).details == {"edit": 1, "near_line": 3}


@pytest.mark.spec("FS-05.b")
@pytest.mark.parametrize(
    ("content", "old", "lines"),
    [("a\nb\na\n", "a", [1, 3]), ("aaa", "aa", [1, 1]), ("x\r\ny\nx\n", "x\n", [1, 3])],
    ids=["twice", "overlapping", "whatever-ends-the-line"],
)
async def test_a_text_at_several_places_is_ambiguous_and_the_lines_are_named(
    project: Project, content: str, old: str, lines: list[int]
) -> None:
    path = project.file("x", content)

    result = await project.call("edit_file", path="x", edits=edits((old, "new")))

    assert error_of(result).type is ErrorType.AMBIGUOUS_EDIT
    assert (error_of(result).details["lines"], error_of(result).details["count"]) == (lines, 2)
    assert path.read_bytes() == content.encode()


@pytest.mark.spec("FS-05.g")
async def test_a_missing_file_is_not_found_unless_it_may_be_created(project: Project) -> None:
    for form in ({"edits": edits(("one", "1"))}, {"unified_diff": DIFF}):
        assert await project.error("edit_file", path="x", **form) is ErrorType.FILE_NOT_FOUND
    wanted = {"create_if_missing": True}

    assert await project.error("edit_file", path="x", edits=edits(("a", "b")), **wanted) is ErrorType.TEXT_NOT_FOUND
    assert await project.error("edit_file", path="x", unified_diff=DIFF, **wanted) is ErrorType.FILE_NOT_FOUND
    assert list(project.root.iterdir()) == []


@pytest.mark.spec("FS-05.g")
@pytest.mark.parametrize(
    "form",
    [
        {"edits": edits(("", "one\n"), ("one", "1"))},
        {"unified_diff": "--- /dev/null\n+++ b/a/x\n@@ -0,0 +1 @@\n+1\n"},
        {"unified_diff": "--- a/a/x\n+++ b/a/x\n@@ -0,0 +1 @@\n+1\n"},
        {"unified_diff": "--- a/a/x\t1970-01-01 01:00:00.0 +0100\n+++ b/a/x\n@@ -0,0 +1 @@\n+1\n"},
        {
            "unified_diff": "diff --git a/a/x b/a/x\nnew file mode 100644\nindex 0000000..d00491f\n"
            "--- /dev/null\n+++ b/a/x\n@@ -0,0 +1 @@\n+1\n"
        },
    ],
    ids=["edits", "diff", "undecided-diff", "epoch-diff", "git-diff"],
)
async def test_a_missing_file_is_created_with_its_directories_when_asked(
    project: Project, form: dict[str, Any]
) -> None:
    data = await project.data("edit_file", path="a/x", create_if_missing=True, **form)

    assert (project.root / "a/x").read_text() == "1\n"
    assert data["created"] is True
    assert project.target.precondition == "absent"


@pytest.mark.spec("FS-05")
@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\r\nb\r\nc", "a\nb", "a\nx\ny", b"a\r\nx\r\ny\r\nc"),
        (b"a\r\nb\r\n", "b", "b\nc", b"a\r\nb\r\nc\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nb", b"a\nb\r\n"),
        (b"a\nb\r\nc\nd\r\n", "b\nc", "b\nX\nc", b"a\nb\r\nX\nc\nd\r\n"),
        (b"a\nb\r\nc\nd", "\nd", "\ne\nf", b"a\nb\r\nc\ne\nf"),
        (b"a\nb\r\nc", "b", "b\nB", b"a\nb\r\nB\r\nc"),
        (b"\xef\xbb\xbfa\nb", "a", "x", b"\xef\xbb\xbfx\nb"),
        (b"caf\xe9 = 1\nb\n", "= 1", "= 2", b"caf\xe9 = 2\nb\n"),
        ("é = 1".encode(), "é", "ö", "ö = 1".encode()),
        (b"a\rb\rc", "b", "x", b"a\rx\rc"),
    ],
    ids=["crlf", "crlf-new-line", "literal-cr", "mixed", "mixed-end", "mixed-one", "bom", "latin-1", "utf-8", "cr"],
)
async def test_bytes_outside_the_edit_and_the_way_lines_end_are_kept(
    project: Project, before: bytes, old: str, new: str, after: bytes
) -> None:
    path = project.file("x", before)

    result = await project.call("edit_file", path="x", edits=edits((old, new)))

    assert result.error is None, result.error
    assert path.read_bytes() == after
    assert ("encoding" in result.metadata) == (before.startswith(b"caf"))


@pytest.mark.spec("FS-05")
async def test_every_place_of_a_file_with_mixed_endings_is_replaced_in_its_own_way(project: Project) -> None:
    path = project.file("x", b"k\r\nv\nk\nv\r\nk\r\nv\r\n")

    await project.data("edit_file", path="x", edits=edits(("k\nv", "k\nw\nv")), replace_all=True)

    assert path.read_bytes() == b"k\r\nw\nv\nk\nw\r\nv\r\nk\r\nw\r\nv\r\n"


@pytest.mark.parametrize("content", [b"a\0b", "ab".encode("utf-16")], ids=["nul", "utf-16"])
@pytest.mark.parametrize("form", [{"edits": edits(("a", "b"))}, {"unified_diff": DIFF}], ids=["edits", "diff"])
async def test_a_binary_file_is_refused(project: Project, content: bytes, form: dict[str, Any]) -> None:
    path = project.file("x", content)

    assert await project.error("edit_file", path="x", **form) is ErrorType.BINARY_FILE
    assert path.read_bytes() == content


async def test_what_is_too_large_before_within_or_after_is_refused(project: Project) -> None:
    limit = 4 * 1024 * 1024
    project.file("large", b"a" * (limit + 1))
    project.file("x", b"a" * 3000)

    for arguments in (
        {"path": "large", "edits": edits(("b", "c"))},
        {"path": "x", "edits": edits(("a" * limit, "b"))},
        {"path": "x", "unified_diff": "x" * (limit + 1)},
        {"path": "x", "edits": edits(("a", "b" * 2000)), "replace_all": True},
    ):
        assert await project.error("edit_file", **arguments) is ErrorType.LIMIT_EXCEEDED
    assert (project.root / "x").read_bytes() == b"a" * 3000


async def test_a_diff_that_makes_the_file_too_large_is_refused(project: Project) -> None:
    content = b"one\ntwo\nthree\n" + b"x" * (4 * 1024 * 1024 - 14)
    path = project.file("x", content)

    assert await project.error("edit_file", path="x", unified_diff=DIFF.replace("+2", "+22222")) is (
        ErrorType.LIMIT_EXCEEDED
    )
    assert path.read_bytes() == content


@pytest.mark.spec("FS-05", "FS-07", "PER-06")
async def test_what_is_asked_shows_the_effect_and_binds_it_to_the_content(project: Project) -> None:
    path = project.file("x", "head\n" * 5000 + "one\ntwo\nthree\n" + "tail\n" * 5000)

    await project.call("edit_file", path="x", edits=edits(("two", "2")))

    assert (project.target.shown, project.target.scope) == (str(path), str(project.root))
    assert "@@ -4999,7 +4999,7 @@" in project.target.preview
    assert " one\n-two\n+2\n three\n" in project.target.preview
    assert project.target.precondition.startswith(f"{path.stat().st_dev}:")


@pytest.mark.spec("FS-05")
@pytest.mark.parametrize("late", ["in place", "replaced"])
async def test_a_change_between_reading_and_renaming_is_not_lost(
    project: Project, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.file("x", "one\n")
    original = atomic_write._is_unchanged

    def unchanged(folder: int, name: str, before: atomic_write.State) -> bool:
        if late == "in place":
            path.write_text("ONE\n")
        else:
            (project.root / "y").write_text("one\n")
            (project.root / "y").rename(path)
        return original(folder, name, before)

    monkeypatch.setattr(atomic_write, "_is_unchanged", unchanged)
    theirs = {"in place": "ONE\n", "replaced": "one\n"}[late]

    assert await project.error("edit_file", path="x", edits=edits(("one", "1"))) is ErrorType.PATH_CONFLICT
    assert [(entry.name, entry.read_text()) for entry in project.root.iterdir()] == [("x", theirs)]


@pytest.mark.spec("FS-05", "FS-06")
async def test_nothing_of_a_sensitive_file_is_reported_before_it_is_permitted(project: Project) -> None:
    project.file(".env", "PASSWORD=hunter2\n")

    await project.call("edit_file", path=".env", edits=edits(("PASSWORD=h", "PASSWORD=H")))
    asked = project.target
    await project.call("edit_file", path=".env", edits=edits(("PASSWORD=guess", "x")))

    assert [call.target.preview for call in project.bench.gate.asked] == [asked.preview] * 2
    assert asked.is_sensitive
    assert "hunter2" not in asked.preview
    assert (project.root / ".env").read_text() == "PASSWORD=Hunter2\n"


@pytest.mark.spec("FS-05")
async def test_hunks_that_went_elsewhere_than_they_said_are_named(project: Project) -> None:
    path = project.file("x", "zero\nnull\none\ntwo\nthree\n")
    diff = DIFF.replace("-1,3 +1,3", "-2,3 +2,3")

    data = await project.data("edit_file", path="x", unified_diff=diff)

    assert data["offsets"] == [{"hunk": 1, "line": 3, "offset": 1}]
    assert path.read_text() == "zero\nnull\none\n2\nthree\n"


@pytest.mark.spec("FS-05")
@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("x", "--- a/x\n+++ b/x\n"),
        ("./x", "--- x\n+++ x\n"),
        ("x", "--- x\t2024-01-01 10:00:00.000 +0000\n+++ x\t2024-01-02 10:00:00 +0000\n"),
        ("x", "some words\n\ndiff --git a/x b/x\nindex 1111111..2222222 100644\n--- a/x\n+++ b/x\n"),
        ("x", "diff --git i/x w/x\nindex 1111111..2222222 100755\n"),
        ("a b/x y", "diff --git a/a b/x y b/a b/x y\n--- a/a b/x y\t\n+++ b/a b/x y\t\n"),
        ("ä\t", '--- "a/\\303\\244\\t"\n+++ "b/\\303\\244\\t"\n'),
        ("ä\t", 'diff --git "a/\\303\\244\\t" "b/\\303\\244\\t"\n--- "a/\\303\\244\\t"\n+++ "b/\\303\\244\\t"\n'),
        ("deep/er/x", "--- a/deep/er/x\n+++ b/deep/er/x\n"),
    ],
)
async def test_a_header_may_name_the_file_in_the_usual_ways(project: Project, path: str, header: str) -> None:
    file = project.file(path, "one\ntwo\nthree\n")

    result = await project.call("edit_file", path=path, unified_diff=header + HUNK)

    assert result.error is None, result.error
    assert file.read_text() == "one\n2\nthree\n"


@pytest.mark.spec("PER-06")
async def test_a_preview_of_very_many_changes_says_how_much_and_of_none_that_there_is_none(project: Project) -> None:
    project.file("x", "a\nb\n" * 5000)

    await project.call("edit_file", path="x", edits=edits(("a", "c")), replace_all=True)
    many = project.target.preview
    project.file("x", "a\n")
    await project.call("edit_file", path="x", edits=edits(("a", "b"), ("b", "a")))

    assert many.endswith("20000 bytes by 20000 bytes, 10000 lines")
    assert project.target.preview.endswith("by the same 2 bytes, 1 line")


@pytest.mark.parametrize(
    "stamp", ["1970-01-01 00:00:00 +0100", "1969-12-31 99:00:00 +0000", "2024-01-01 00:00:00 +0000", "yesterday"]
)
async def test_a_time_stamp_that_is_not_the_epoch_creates_nothing(project: Project, stamp: str) -> None:
    path = project.file("x", "one\ntwo\nthree\n")

    await project.data("edit_file", path="x", unified_diff=f"--- a/x\t{stamp}\n+++ b/x\n{HUNK}")

    assert path.read_text() == "one\n2\nthree\n"


async def test_a_mailed_patch_may_end_in_its_signature(project: Project) -> None:
    path = project.file("x", "one\ntwo\nthree\n")
    head = "From 1234 Mon Sep 17 00:00:00 2001\nSubject: [PATCH] two\n\n---\n x | 2 +-\n\n"

    await project.data("edit_file", path="x", unified_diff=f"{head}{DIFF}-- \n2.39.5\n\n")

    assert path.read_text() == "one\n2\nthree\n"


@pytest.mark.spec("FS-05")
@pytest.mark.parametrize("old", ["caf\u00e9", "caf\ufffd"])
async def test_a_text_of_another_encoding_is_named_as_such(project: Project, old: str) -> None:
    path = project.file("x", b"caf\xe9 one\n")

    refused = await project.call("edit_file", path="x", edits=edits((old, "tea")))
    edited = await project.call("edit_file", path="x", edits=edits((" one", " two")))

    assert (error_of(refused).type, "the file is not UTF-8" in error_of(refused).hint) == (
        ErrorType.TEXT_NOT_FOUND,
        True,
    )
    assert edited.error is None
    assert path.read_bytes() == b"caf\xe9 two\n"


@pytest.mark.spec("FS-05")
async def test_a_diff_without_the_mark_of_an_end_without_newline_is_refused_with_the_missing_line(
    project: Project,
) -> None:
    project.file("x", "one\ntwo\nthree")

    refused = await project.call("edit_file", path="x", unified_diff=DIFF)

    assert "add the line '\\ No newline at end of file'" in error_of(refused).hint


@pytest.mark.spec("FS-05")
async def test_a_diff_through_a_linked_folder_is_refused_as_git_does(project: Project) -> None:
    path = project.file("i386/dir/x", "one\ntwo\nthree\n")
    (project.root / "x86_64").symlink_to("i386")
    diff = DIFF.replace("/x", "/x86_64/dir/x")

    refused = await project.call("edit_file", path="x86_64/dir/x", unified_diff=diff)
    by_edits = await project.call("edit_file", path="x86_64/dir/x", edits=edits(("two", "2")))

    assert error_of(refused).type is ErrorType.INVALID_INPUT
    assert error_of(refused).hint == "name 'i386/dir/x', in 'path' and in the diff"
    assert by_edits.error is None
    assert path.read_text() == "one\n2\nthree\n"
