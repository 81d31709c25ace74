"""Bad inputs 31 to 35 and hostile diffs against code.edit_file, through the whole pipeline under the real policy."""

import asyncio
import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from soong.shared.toolsets.code.diff_header import DiffError, Fault
from soong.shared.toolsets.code.unified_diff import apply_diff, parse_diff
from tests.security.scene import SecurityHarness, make_scene

TEXT = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"
NAMES = "--- a/x\n+++ b/x\n"
GIT = "diff --git a/x b/x\n"
HUNK = "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
LINE_LIMIT = "18446744073709551616"


@pytest.fixture
def scene(tmp_path: Path) -> SecurityHarness:
    return make_scene(tmp_path)


@dataclass(frozen=True)
class Row:
    """One bad input for the file ``x``; ``reason`` is the detail that a refused diff names."""

    id: str
    arguments: dict[str, Any]
    expected: str
    reason: str = ""
    content: str = TEXT


def by_edits(id: str, expected: str, *pairs: tuple[str, str], content: str = TEXT, **more: Any) -> Row:
    edits = [{"old": old, "new": new} for old, new in pairs]
    return Row(id, {"edits": edits, **more}, expected, content=content)


def by_diff(id: str, diff: str, reason: str, expected: str = "patch_apply_failed", content: str = TEXT) -> Row:
    return Row(id, {"unified_diff": diff}, expected, reason, content)


def moved(hunk: str, place: str) -> str:
    return hunk.replace("-1,3 +1,3", place)


ONE_EDIT = [{"old": "two", "new": "2"}]
EDITS = [
    by_edits("row-31-nowhere", "text_not_found", ("absent", "x")),
    by_edits("row-31-nowhere-for-all", "text_not_found", ("absent", "x"), replace_all=True),
    by_edits("row-31-twice", "ambiguous_edit", ("two", "2"), content="two\ntwo\n"),
    by_edits("row-31-overlapping-itself", "ambiguous_edit", ("aba", "x"), content="ababa\n"),
    by_edits("row-31-overlapping-edits", "text_not_found", ("one\ntwo", "x"), ("two\nthree", "y")),
    by_edits("row-31-made-ambiguous", "ambiguous_edit", ("one", "three"), ("three", "3")),
    by_edits("row-31-empty-old", "invalid_input", ("", "x")),
    by_edits("row-31-empty-old-of-an-existing-file", "invalid_input", ("", "x"), create_if_missing=True),
    by_edits("row-31-empty-old-in-an-empty-file", "invalid_input", ("", "x"), content=""),
    by_edits("row-31-old-is-new", "invalid_input", ("two", "two")),
    by_edits("row-31-old-is-new-later", "invalid_input", ("two", "2"), ("one", "one")),
    by_edits("row-31-nul", "invalid_input", ("two", "2\0")),
    by_edits("row-31-surrogate", "invalid_input", ("two", "\ud800")),
    by_edits("row-31-look-alike", "text_not_found", ("tw\N{CYRILLIC SMALL LETTER O}", "x")),
    by_edits("row-31-other-normal-form", "text_not_found", ("e\u0301", "x"), content="\u00e9\n"),
    Row("row-31-no-edit", {"edits": []}, "invalid_input"),
    Row("row-31-too-many", {"edits": ONE_EDIT * 201}, "invalid_input"),
    Row("row-31-unknown-field", {"edits": [{"old": "two", "new": "2", "regex": True}]}, "invalid_input"),
    Row("row-31-not-a-text", {"edits": [{"old": 2, "new": "2"}]}, "invalid_input"),
    Row("row-31-not-a-list", {"edits": {"old": "two", "new": "2"}}, "invalid_input"),
    Row("row-31-dry-run", {"edits": ONE_EDIT, "dry_run": True}, "invalid_input"),
    by_edits("row-31-growth", "limit_exceeded", ("a", "b" * 100_000), content="a" * 1000, replace_all=True),
    Row("row-32-both", {"edits": ONE_EDIT, "unified_diff": NAMES + HUNK}, "invalid_input"),
    Row("row-32-neither", {}, "invalid_input"),
    Row("row-32-empty-diff", {"unified_diff": ""}, "invalid_input"),
    Row("row-32-replace-all-of-a-diff", {"unified_diff": NAMES + HUNK, "replace_all": True}, "invalid_input"),
]

OTHER, NO_EDIT, HEADER = "other_file", "not_an_edit", "header"
FILES = [
    by_diff("row-33-climbing", f"--- a/x\n+++ b/../../etc/x\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-climbing-from-old", f"--- a/../x\n+++ b/x\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-absolute", f"--- /etc/passwd\n+++ /etc/passwd\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-other-file", f"--- a/y\n+++ b/y\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-other-case", f"--- a/X\n+++ b/X\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-same-name-elsewhere", f"--- a/d/x\n+++ b/d/x\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-quoted-other", f'--- "a/\\171"\n+++ "b/\\171"\n{HUNK}', OTHER, "invalid_input"),
    by_diff("row-33-quoted-nul", f'--- "a/x\\000"\n+++ "b/x\\000"\n{HUNK}', OTHER, "invalid_input"),
    by_diff("row-33-bad-quotes", f'--- "a/x\\9"\n+++ "b/x\\9"\n{HUNK}', HEADER),
    by_diff("row-33-other-pair", f"diff --git a/y b/y\n{NAMES}{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-half-a-pair", f"diff --git a/x b/y\n{NAMES}{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-escape-in-name", f"--- a/x\x1b[2K\n+++ b/x\x1b[2K\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-long-pair", f"diff --git {'a ' * 50_000}\nindex 1..2 100644\n{HUNK}", OTHER, "invalid_input"),
    by_diff("row-33-two-files", f"{NAMES}{HUNK}--- a/y\n+++ b/y\n{HUNK}", "several_files", "invalid_input"),
    by_diff("row-33-two-git-files", f"{NAMES}{HUNK}diff --git a/y b/y\n", "several_files", "invalid_input"),
    by_diff("row-33-the-same-twice", f"{NAMES}{HUNK}{NAMES}{HUNK}", "several_files", "invalid_input"),
    by_diff("row-33-dev-null", f"--- a/x\n+++ /dev/null\n{HUNK}", NO_EDIT),
    by_diff("row-33-epoch", f"--- a/x\n+++ b/x\t1970-01-01 00:00:00 +0000\n{HUNK}", NO_EDIT),
    by_diff("row-33-deleted", f"{GIT}deleted file mode 100644\n--- a/x\n+++ /dev/null\n{HUNK}", NO_EDIT),
    by_diff("row-33-rename", f"{GIT}similarity index 90%\nrename from x\nrename to y\n{NAMES}{HUNK}", NO_EDIT),
    by_diff("row-33-rename-in", "diff --git a/y b/x\nrename from y\nrename to x\n", NO_EDIT),
    by_diff("row-33-copy", f"{GIT}copy from y\ncopy to x\n{NAMES}{HUNK}", NO_EDIT),
    by_diff("row-33-mode", f"{GIT}old mode 100644\nnew mode 100755\n{NAMES}{HUNK}", NO_EDIT),
    by_diff("row-33-link-mode", f"{GIT}old mode 100644\nnew mode 120000\n", NO_EDIT),
    by_diff("row-33-new-link", f"{GIT}new file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n", NO_EDIT),
    by_diff("row-33-new-program", f"{GIT}new file mode 100755\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n", NO_EDIT),
    by_diff("row-33-link-in-index", f"{GIT}index 1111111..2222222 120000\n{NAMES}{HUNK}", NO_EDIT),
    by_diff("row-33-submodule", f"{GIT}index 1111111..2222222 160000\n{NAMES}{HUNK}", NO_EDIT),
    by_diff(
        "row-33-mode-below-names", f"{GIT}--- /dev/null\nnew file mode 100644\n+++ b/x\n@@ -0,0 +1 @@\n+x\n", HEADER
    ),
    by_diff("row-33-new-and-old-name", f"{GIT}new file mode 100644\n{NAMES}@@ -0,0 +1 @@\n+x\n", HEADER),
    by_diff("row-33-new-with-old-lines", f"--- /dev/null\n+++ b/x\n{HUNK}", "hunk"),
    by_diff("row-33-git-deletes", f"{GIT}--- a/x\n+++ /dev/null\n{HUNK}", NO_EDIT),
    by_diff("row-33-carriage-return-names", f"diff --git a/x b/x\r\nindex 1..2 100644\n{HUNK}", HEADER),
    by_diff("row-33-mode-in-index-with-more", f"{GIT}index 1111111..222222x 100644x\n{NAMES}{HUNK}", HEADER),
    by_diff("row-33-bad-mode", f"{GIT}index 1111111..2222222 999\n{NAMES}{HUNK}", HEADER),
    by_diff("row-33-binary", f"{GIT}index 1..2 100644\nGIT binary patch\nliteral 3\nKcmZ\n", NO_EDIT),
    by_diff("row-33-binary-differ", f"{GIT}index 1..2 100644\nBinary files a/x and b/x differ\n", NO_EDIT),
    by_diff("row-33-nul", f"{NAMES}@@ -1,3 +1,3 @@\n one\n-two\n+\0\n three\n", NO_EDIT),
    by_diff("row-33-surrogate", f"{NAMES}\ud800", "", "invalid_input"),
    by_diff("row-33-new-without-mode", f"{GIT}--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n", HEADER),
    by_diff("row-33-from-nothing-to-nothing", "--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+x\n", HEADER),
    by_diff("row-33-creates-what-exists", "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n", "exists", "path_conflict"),
]

MISMATCH, DAMAGED = "mismatch", "hunk"
HUNKS = [
    by_diff("row-34-count-too-small", NAMES + moved(HUNK, "-1,2 +1,2"), "leftover"),
    by_diff("row-34-count-too-large", NAMES + moved(HUNK, "-1,4 +1,4"), DAMAGED),
    by_diff("row-34-counts-differ", NAMES + moved(HUNK, "-1,3 +1,2"), DAMAGED),
    by_diff("row-34-dropped-addition", f"{NAMES}{HUNK}+lost\n", "leftover"),
    by_diff("row-34-huge-count", NAMES + moved(HUNK, f"-1,{LINE_LIMIT} +1,3"), "number"),
    by_diff("row-34-huge-line", NAMES + moved(HUNK, f"-{LINE_LIMIT},3 +{LINE_LIMIT},3"), "number"),
    by_diff("row-34-line-of-32-bits", NAMES + moved(HUNK, "-4294967297,3 +4294967297,3"), "number"),
    by_diff("row-34-endless-number", NAMES + moved(HUNK, f"-1,{'9' * 100_000} +1,3"), "number"),
    by_diff("row-34-negative", NAMES + moved(HUNK, "--1,3 +1,3"), DAMAGED),
    by_diff("row-34-not-a-number", NAMES + moved(HUNK, "-1,\u0663 +1,\u0663"), DAMAGED),
    by_diff("row-34-context-changed", f"{NAMES}{HUNK.replace(' three', ' THREE')}", MISMATCH),
    by_diff("row-34-fuzz-needed", NAMES + HUNK, MISMATCH, content="ONE\ntwo\nthree\n"),
    by_diff("row-34-not-at-the-beginning", NAMES + HUNK, MISMATCH, content=f"zero\n{TEXT}"),
    by_diff("row-34-not-at-the-end", f"{NAMES}@@ -2,2 +2,2 @@\n two\n-three\n+3\n", MISMATCH),
    by_diff("row-34-whitespace", NAMES + HUNK, MISMATCH, content="one\ntwo \nthree\n"),
    by_diff("row-34-crlf-file", NAMES + HUNK, MISMATCH, content=TEXT.replace("\n", "\r\n")),
    by_diff("row-34-crlf-context", NAMES + HUNK.replace("one\n", "one\r\n"), MISMATCH),
    by_diff("row-34-missing-newline-not-said", NAMES + HUNK, MISMATCH, content="one\ntwo\nthree"),
    by_diff("row-34-newline-said-missing", f"{NAMES}{HUNK}\\ No newline at end of file\n", "misplaced_end"),
    by_diff(
        "row-34-newline-missing-inside",
        f"{NAMES}@@ -1,3 +1,3 @@\n one\n-two\n+2\n\\ No newline at end of file\n three\n",
        "misplaced_end",
    ),
    by_diff("row-34-marker-first", f"{NAMES}@@ -1 +1 @@\n\\ No newline at end of file\n-one\n+1\n", "misplaced_end"),
    by_diff("row-34-short-marker", f"{NAMES}@@ -1,2 +1,2 @@\n-one\n\\ No\n+1\n two\n", DAMAGED),
    by_diff("row-34-overlapping-hunks", f"{NAMES}{HUNK}@@ -2,3 +2,3 @@\n 2\n-three\n+3\n four\n", MISMATCH),
    by_diff("row-34-the-same-hunk-twice", f"{NAMES}{HUNK}{HUNK}", MISMATCH),
    by_diff("row-34-changes-nothing", f"{NAMES}@@ -1,2 +1,2 @@\n one\n two\n", DAMAGED),
    by_diff("row-34-cut-off", NAMES + HUNK[:-1], DAMAGED),
    by_diff("row-34-cut-in-the-hunk", NAMES + HUNK[:24], DAMAGED),
    by_diff("row-34-no-hunk", NAMES, HEADER),
    by_diff("row-34-no-hunk-of-git", f"{GIT}index 1111111..2222222 100644\n{NAMES}", HEADER),
    by_diff("row-34-no-header", HUNK, HEADER),
    by_diff("row-34-only-one-name", f"{GIT}--- a/x\n{HUNK}", HEADER),
    by_diff("row-34-words", "please change two to 2\n", HEADER),
    by_diff("row-34-other-form", "*** Begin Patch\n*** Update File: x\n-two\n+2\n*** End Patch\n", HEADER),
    by_diff("row-34-context-diff", "*** a/x\n--- b/x\n***************\n*** 1,3 ****\n", HEADER),
    by_diff("row-34-fence", f"```diff\n{NAMES}{HUNK}```\n", "leftover"),
    by_diff("row-34-bad-mark", f"{NAMES}@@ -1,3 +1,3 @@\n one\n!two\n+2\n three\n", DAMAGED),
    by_diff("row-34-hunk-after-words", f"{NAMES}{HUNK}words\n{moved(HUNK, '-4,3 +4,3')}", HEADER),
    by_diff("row-34-no-context-elsewhere", f"{NAMES}@@ -2,0 +3 @@\n+put at the end by git\n", "no_context"),
    by_diff("row-34-no-context-last-equal", f"{NAMES}@@ -2 +2 @@\n-a\n+b\n", "no_context", content="x\na\nb\na\n"),
    by_diff("row-34-million-hunks", NAMES + "@@ -1 +1 @@\n-a\n+b\n" * 1_000_000, "", "invalid_input"),
    by_diff("row-34-quarter-of-a-million-hunks", NAMES + "@@ -1 +1 @@\n-a\n+b\n" * 250_000, "", "limit_exceeded"),
]


@pytest.mark.spec("FS-05.a", "FS-05.d", "FS-05.f")
@pytest.mark.parametrize("row", [*EDITS, *FILES, *HUNKS], ids=lambda row: row.id)
async def test_a_bad_edit_is_refused_and_changes_nothing(scene: SecurityHarness, row: Row) -> None:
    path = scene.file("x", row.content)
    scene.file("y", TEXT)
    scene.remember()
    inode = path.stat().st_ino

    async with asyncio.timeout(20):
        result = await scene.call("edit_file", path="x", **row.arguments)

    assert result.error is not None
    assert result.error.type.value == row.expected
    assert result.error.details.get("reason", "") == row.reason
    assert (path.read_bytes(), path.stat().st_ino) == (row.content.encode(), inode)
    assert sorted(entry.name for entry in scene.root.iterdir()) == ["x", "y"]
    assert (scene.root / "y").read_text() == TEXT
    assert scene.gate.asked == []
    scene.check_unharmed(result)


async def test_null_for_the_form_of_an_edit_that_is_not_used_is_left_out_and_recorded(scene: SecurityHarness) -> None:
    path = scene.file("x", TEXT)
    scene.remember()

    result = await scene.call("edit_file", path="x", edits=ONE_EDIT, unified_diff=None)

    assert result.error is None
    assert path.read_text() != TEXT
    assert scene.bench.log.records[-1].facts["is_repaired"] is True


@pytest.mark.spec("FS-05", "FS-07", "FS-09.a")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".git/config", "path_protected"),
        (".git/hooks/pre-commit", "path_protected"),
        (".mcp.json", "path_protected"),
        ("{home}/tools/x.json", "path_protected"),
        ("{outside}/victim", "asked"),
        ("../outside/victim", "asked"),
        ("link", "asked"),
        ("hard-link", "asked"),
        ("dangling", "asked"),
        (".env", "asked"),
        ("fifo", "not_regular_file"),
        ("d", "not_regular_file"),
        ("d/", "invalid_input"),
        ("x/below", "file_not_found"),
        ("/proc/self/environ", "not_regular_file"),
        ("/dev/null", "not_regular_file"),
        ("a\0b", "invalid_input"),
        ("", "invalid_input"),
        ("y" * 300, "invalid_input"),
    ],
)
@pytest.mark.parametrize("form", ["edits", "diff"])
async def test_no_path_leads_an_edit_past_the_rules(
    scene: SecurityHarness, path: str, expected: str, form: str
) -> None:
    (scene.outside / "victim").write_text(TEXT)
    os.link(scene.outside / "victim", scene.root / "hard-link")
    os.mkfifo(scene.root / "fifo")
    (scene.root / "d").mkdir()
    (scene.root / "link").symlink_to(scene.outside / "victim")
    (scene.root / "dangling").symlink_to(scene.outside / "new")
    for name in ("x", ".env", ".git/config"):
        scene.file(name, TEXT)
    scene.remember()
    path = path.format(home=scene.home, outside=scene.outside)
    create = path == "dangling"
    # The diff names the file as the call does, where a name can; the path itself is then what is refused.
    name = {"../outside/victim": f"{scene.outside}/victim", "a\0b": "x", "": "x", "d/": "x"}.get(path, path)
    edits = [{"old": "" if create else "two", "new": "2"}]
    old = "/dev/null" if create else f"a/{name}"
    diff = f"--- {old}\n+++ b/{name}\n" + ("@@ -0,0 +1 @@\n+2\n" if create else HUNK)
    arguments: dict[str, Any] = {"edits": edits} if form == "edits" else {"unified_diff": diff}

    async with asyncio.timeout(20):
        outcome = await scene.outcome("edit_file", path=path, create_if_missing=create, **arguments)

    assert outcome == expected
    assert (scene.outside / "victim").read_text() == TEXT
    assert not (scene.outside / "new").exists()
    assert (scene.root / ".git/config").read_text() == (scene.root / ".env").read_text() == TEXT


@dataclass
class Writer:
    """Another process's view of mischief: changes a file in some way as often as it can."""

    act: Callable[[int], None]
    count: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Writer":
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.count += 1
            self.act(self.count)
            self._stop.wait(0.001)


@pytest.mark.spec("FS-05")
async def test_an_edit_never_rests_on_a_file_that_has_been_replaced(scene: SecurityHarness) -> None:
    path = scene.file("x", "0 one\n")

    def act(number: int) -> None:
        (scene.root / "new").write_text(f"{number} one\n")
        (scene.root / "new").rename(path)

    outcomes: dict[str, int] = {}
    with Writer(act) as writer:
        for _ in range(150):
            outcome = await scene.outcome("edit_file", path="x", edits=[{"old": "one", "new": "1"}])
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            # Whatever won: the file is one whole version, theirs or an edit of one of theirs.
            assert path.read_text().split(" ")[1] in {"one\n", "1\n"}

    assert writer.count > 50
    assert outcomes.keys() <= {"ok", "path_conflict", "text_not_found"}
    assert outcomes["path_conflict"] > 0


@pytest.mark.spec("FS-05")
async def test_concurrent_edits_of_one_file_lose_none_that_was_reported_as_done(scene: SecurityHarness) -> None:
    done = conflicts = 0
    for _ in range(40):
        path = scene.file("x", "".join(f"slot {number}\n" for number in range(8)))
        calls = (
            scene.call("edit_file", path="x", edits=[{"old": f"slot {number}\n", "new": f"done {number}\n"}])
            for number in range(8)
        )

        results = await asyncio.gather(*calls)

        text = path.read_text()
        assert all(f"done {number}\n" in text for number, result in enumerate(results) if result.ok)
        failed = {result.error.type.value for result in results if result.error is not None}
        assert failed <= {"path_conflict"}
        done, conflicts = done + sum(result.ok for result in results), conflicts + len(failed)

    assert done >= 40
    assert conflicts > 0


def blocks(count: int) -> tuple[bytes, bytes]:
    """Return a file of blocks of three different lines, and the hunks that change each of them."""
    before = b"".join(b"top %d\nold\nend\n" % number for number in range(count))
    hunks = (
        b"@@ -%d,3 +%d,3 @@\n top %d\n-old\n+new\n end\n" % (3 * number + 1, 3 * number + 1, number)
        for number in range(count)
    )
    return before, NAMES.encode() + b"".join(hunks)


@pytest.mark.spec("FS-05")
def test_hunks_far_from_their_places_cost_bounded_time() -> None:
    before, diff = blocks(8_000)
    far = re.sub(rb"-\d+,3 \+\d+,3", b"-2000000,3 +2000000,3", diff)

    with pytest.raises(DiffError) as caught:
        apply_diff(before, parse_diff(far))

    assert caught.value.fault is Fault.TOO_FAR


@pytest.mark.spec("FS-05")
async def test_edits_of_repetitive_text_cost_bounded_time(scene: SecurityHarness) -> None:
    scene.file("x", "a" * 4_000_000)
    scene.file("y", "a\r\na\n" * 500_000)
    almost = "a" * 100_000 + "b"

    async with asyncio.timeout(60):
        first = await scene.outcome("edit_file", path="x", edits=[{"old": almost, "new": "x"}] * 10)
        second = await scene.outcome("edit_file", path="y", edits=[{"old": "a\n", "new": "b\n"}], replace_all=True)

    assert (first, second) == ("text_not_found", "limit_exceeded")
