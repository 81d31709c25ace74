import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.diff_header import DiffError, Fault, FileNames
from soong.shared.toolsets.code.exact_edits import Edit, apply_edits
from soong.shared.toolsets.code.unified_diff import apply_diff, parse_diff
from tests.unit.toolsets.examples import PART, fixed
from tests.unit.toolsets.hardened_git import Git
from tests.unit.toolsets.parts import make_project

NAMES: Final = FileNames(frozenset({"x"}))

_WORDS: Final = st.sampled_from(
    ["a", "b", "", "}", "  x", "x  ", "\té", "\N{SNOWMAN}", "-- ", "+++ b/x", "@@ -1 +1 @@", "\\ No"]
)
_LINES: Final = st.lists(_WORDS, max_size=14)
_RARELY: Final = st.sampled_from([False, False, False, True])
_ENDINGS: Final = st.sampled_from(["\n", "\n", "\r\n"])

STRICTER_THAN_GIT = frozenset(
    {Fault.NUMBER, Fault.LEFTOVER, Fault.MISPLACED_END, Fault.NO_CONTEXT, Fault.TOO_FAR, Fault.SEVERAL_FILES}
)
"""Faults that ``git apply`` may accept and we never do, because its result differs from the diff.

``NUMBER``: line numbers beyond 31 bits, which git cuts off. ``LEFTOVER``: text after the last hunk, which git drops
even when it is hunk lines beyond a wrong count. ``MISPLACED_END``: a line marked as without a newline that is not the
last one, which git joins with the next. ``NO_CONTEXT``: a hunk without a context line, which git puts at the end of the
file, whatever its line number. ``TOO_FAR``: hunks so far from their places that finding them costs seconds.
``SEVERAL_FILES``: a second section, even of the same file.
"""


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Any small text: repeated lines, either ending or both, with or without a last newline, or empty."""
    lines = draw(_LINES)
    endings = [draw(_ENDINGS)] * len(lines) if draw(st.booleans()) else [draw(_ENDINGS) for _ in lines]
    text = "".join(map("".join, zip(lines, endings, strict=True)))
    return (text.rstrip("\r\n") if draw(st.booleans()) else text).encode()


@st.composite
def edited(draw: st.DrawFn, before: bytes) -> bytes:
    """Return a file after some insertions, deletions and changes of lines."""
    lines = before.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines)))
        kept = draw(st.integers(0, 2))
        put = [word.encode() for word in draw(st.lists(_WORDS, max_size=2))]
        lines[at : at + kept] = put
    return b"\n".join(lines)


def ours(before: bytes | None, diff: bytes) -> bytes | Fault:
    """Apply a diff of the file ``x`` as the tool does, or say why not."""
    try:
        parsed = parse_diff(diff)
        NAMES.check(parsed.header)
        if before is None and not parsed.may_create:
            return Fault.MISMATCH
        if before is not None and parsed.creates:
            return Fault.EXISTS
        return apply_diff(before or b"", parsed)[0]
    except DiffError as error:
        return error.fault


def compare(git: Git, before: bytes | None, diff: bytes, outcomes: Counter[str]) -> None:
    """Hold our outcome to git's: its bytes where it accepts, a refusal where it refuses."""
    expected, actual = git.apply(before, diff), ours(before, diff)
    if isinstance(actual, bytes):
        assert actual == expected
        outcomes["applied"] += 1
    elif expected is None:
        outcomes["refused"] += 1
    else:
        assert actual in STRICTER_THAN_GIT | {Fault.OTHER_FILE, Fault.NOT_AN_EDIT}
        outcomes["stricter"] += 1


@pytest.mark.spec("FS-05.e")
def test_what_git_diff_makes_is_applied_as_git_apply_does(tmp_path: Path) -> None:
    git, outcomes = Git.at(tmp_path / "git"), Counter[str]()

    @fixed(400)
    @given(st.data(), files(), st.integers(0, 5))
    def check(data: st.DataObject, before: bytes, context: int) -> None:
        after = data.draw(edited(before))
        diff = git.diff(before, after, context)
        if not diff:
            return
        compare(git, before, diff, outcomes)
        if context:
            assert ours(before, diff) == after

    check()

    assert outcomes["applied"] > 150 // PART
    assert outcomes["stricter"] < outcomes["applied"] / 10


@pytest.mark.spec("FS-05")
def test_a_new_file_is_made_as_git_makes_it(tmp_path: Path) -> None:
    git = Git.at(tmp_path / "git")

    @fixed(60)
    @given(files())
    def check(after: bytes) -> None:
        diff = git.diff(None, after)
        assert ours(None, diff) == after == git.apply(None, diff)
        assert ours(b"x\n", diff) is Fault.EXISTS

    check()


Damage = Callable[[list[bytes], int, random.Random], None]


def _drop(lines: list[bytes], at: int, _: random.Random) -> None:
    del lines[at]


def _double(lines: list[bytes], at: int, _: random.Random) -> None:
    lines.insert(at, lines[at])


def _insert(lines: list[bytes], at: int, chance: random.Random) -> None:
    lines.insert(at, chance.choice([b"", b" a", b"+a", b"-a", b"\\ No newline at end of file", b"words"]))


def _swap(lines: list[bytes], at: int, chance: random.Random) -> None:
    other = chance.randrange(len(lines))
    lines[at], lines[other] = lines[other], lines[at]


def _mark(lines: list[bytes], at: int, chance: random.Random) -> None:
    lines[at] = chance.choice([b" ", b"+", b"-", b"\\", b"@"]) + lines[at][1:]


def _content(lines: list[bytes], at: int, chance: random.Random) -> None:
    lines[at] += chance.choice([b"\r", b" ", b"x"])


def _count(lines: list[bytes], at: int, chance: random.Random) -> None:
    hunks = [place for place, line in enumerate(lines) if line.startswith(b"@@")]
    at = chance.choice(hunks or [at])
    numbers = list(re.finditer(rb"\d+", lines[at]))
    if numbers:
        one = chance.choice(numbers)
        changed = str(max(0, int(one[0]) + chance.choice([-3, -1, 1, 2, 40]))).encode()
        lines[at] = lines[at][: one.start()] + changed + lines[at][one.end() :]


def _shuffle(lines: list[bytes], _: int, chance: random.Random) -> None:
    starts = [place for place, line in enumerate(lines) if line.startswith(b"@@")]
    if len(starts) > 1 and lines[-1] == b"":
        hunks = [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines) - 1], strict=True)]
        chance.shuffle(hunks)
        lines[starts[0] : -1] = [line for hunk in hunks for line in hunk]


def _cut(lines: list[bytes], at: int, _: random.Random) -> None:
    del lines[at:]


DAMAGES: Final[Sequence[Damage]] = (_drop, _double, _insert, _swap, _mark, _content, _count, _count, _shuffle, _cut)


def damaged(diff: bytes, chance: random.Random) -> bytes:
    lines = diff.split(b"\n")
    for _ in range(chance.randint(1, 2)):
        if lines:
            chance.choice(DAMAGES)(lines, chance.randrange(len(lines)), chance)
    return b"\n".join(lines)


@pytest.mark.spec("FS-05.e")
@pytest.mark.parametrize("is_new", [False, True], ids=["change", "creation"])
def test_a_damaged_diff_is_refused_where_git_refuses_it_and_gives_gits_bytes_where_not(
    tmp_path: Path, is_new: bool
) -> None:
    git, outcomes = Git.at(tmp_path / "git"), Counter[str]()

    @fixed(120 if is_new else 450)
    @given(st.data(), files(), st.integers(0, 4), st.integers(0, 2**32), _RARELY)
    def check(data: st.DataObject, before: bytes, context: int, seed: int, has_drifted: bool) -> None:
        after = data.draw(edited(before))
        diff = git.diff(None if is_new else before, after, context)
        if diff:
            found = data.draw(edited(before)) if has_drifted else before
            compare(git, None if is_new else found, damaged(diff, random.Random(seed)), outcomes)

    check()

    # Well below what is drawn: hypothesis draws by the constants of whatever modules are loaded, so counts vary.
    assert outcomes["applied"] > (8 if is_new else 25) // PART
    assert outcomes["refused"] > (15 if is_new else 75) // PART
    assert outcomes["stricter"] < sum(outcomes.values()) / 4


@pytest.mark.spec("FS-05")
def test_a_refused_diff_leaves_the_file_and_an_applied_one_gives_what_was_computed(tmp_path: Path) -> None:
    git, project = Git.at(tmp_path / "git"), make_project(tmp_path)
    outcomes = Counter[bool]()

    with asyncio.Runner() as runner:

        @fixed(150)
        @given(st.data(), files(), st.integers(0, 2**32), _RARELY)
        def check(data: st.DataObject, before: bytes, seed: int, is_damaged: bool) -> None:
            diff = git.diff(before, data.draw(edited(before)))
            diff = damaged(diff, random.Random(seed)) if is_damaged else diff
            expected, file = ours(before, diff), project.file("x", before)
            inode = file.stat().st_ino

            result = runner.run(project.call("edit_file", path="x", unified_diff=diff.decode("utf-8", "replace")))

            outcomes[result.ok] += 1
            if result.ok:
                assert file.read_bytes() == expected
            else:
                assert result.error is not None
                assert not isinstance(expected, bytes)
                assert result.error.type in {
                    ErrorType.PATCH_APPLY_FAILED,
                    ErrorType.INVALID_INPUT,
                    ErrorType.PATH_CONFLICT,
                }
                assert (file.read_bytes(), file.stat().st_ino) == (before, inode)

        check()

    assert min(outcomes[True], outcomes[False]) > 10 // PART
    assert [entry.name for entry in project.root.iterdir()] == ["x"]


@pytest.mark.spec("FS-05")
@fixed(500)
@given(files(), st.integers(0, 200), st.integers(1, 40), st.text("ab\n é", max_size=8))
def test_an_exact_edit_changes_the_chosen_text_and_no_other_byte(
    before: bytes, start: int, length: int, new: str
) -> None:
    text = before.decode()
    chosen = text[start % (len(text) + 1) :][:length]
    assume(chosen not in ("", new) and text.find(chosen) == text.rfind(chosen))
    # Otherwise endings are adapted, which is the next property.
    assume("\r\n" not in text or "\r" in chosen + new or "\n" not in chosen + new)

    result = apply_edits(before, [Edit(chosen.encode(), new.encode())], replaces_all=False, max_bytes=10_000)

    head, _, tail = text.partition(chosen)
    assert result.content == (head + new + tail).encode()


@pytest.mark.spec("FS-05")
@fixed(500)
@given(files(), st.integers(0, 12), st.integers(1, 3), st.lists(_WORDS, max_size=3))
def test_an_edit_that_knows_only_newlines_keeps_the_endings_of_all_other_lines(
    before: bytes, first: int, count: int, put: list[str]
) -> None:
    lines = before.split(b"\n")[:-1]
    chosen = lines[first : first + count]
    plain = b"".join(line.removesuffix(b"\r") + b"\n" for line in chosen)
    new = "".join(f"{word}\n" for word in put).encode()
    flat = before.replace(b"\r\n", b"\n")
    assume(plain not in (b"", new) and flat.find(plain) == flat.rfind(plain) and b"\r" not in plain)

    content = apply_edits(before, [Edit(plain, new)], replaces_all=False, max_bytes=10_000).content

    at = flat[: flat.find(plain)].count(b"\n")
    rest = before.split(b"\n")[at + count :]
    assert content.replace(b"\r\n", b"\n") == flat.replace(plain, new)
    assert content.split(b"\n")[:at] == lines[:at]
    assert content.endswith(b"\n".join(rest))


@pytest.mark.spec("FS-05")
@pytest.mark.parametrize(
    ("before", "hunks", "gits", "fault"),
    [
        (
            b"a\nfoo\nb\n",
            b"@@ -1,2 +1,2 @@\n-a\n+A\n foo\n\\ No newline at end of file\n",
            b"A\nfoob\n",
            Fault.MISPLACED_END,
        ),
        (b"1\n2\n3\n", b"@@ -1,0 +2 @@\n+new\n", None, Fault.MISMATCH),
        (b"1\n2\n3\n", b"@@ -2,0 +3 @@\n+new\n", b"1\n2\n3\nnew\n", Fault.NO_CONTEXT),
        (b"x\n}\ny\n}\n", b"@@ -2 +2 @@\n-}\n+{\n", b"x\n}\ny\n{\n", Fault.NO_CONTEXT),
        (b"1\n2\n", b"@@ -1,2 +1,2 @@\n-1\n+a\n 2\n+lost\n", b"a\n2\n", Fault.LEFTOVER),
        (b"1\n2\n", b"@@ -1,2 +1,2 @@\n-1\n+a\n 2\n@ -5 +5 @@\n-lost\n", b"a\n2\n", Fault.LEFTOVER),
    ],
    ids=["joined", "insertion-refused-by-both", "insertion-elsewhere", "change-elsewhere", "dropped", "dropped-hunk"],
)
def test_a_diff_that_git_applies_otherwise_than_it_says_is_refused(
    tmp_path: Path, before: bytes, hunks: bytes, gits: bytes | None, fault: Fault
) -> None:
    diff = b"--- a/x\n+++ b/x\n" + hunks

    assert Git.at(tmp_path / "git").apply(before, diff) == gits
    assert ours(before, diff) is fault
