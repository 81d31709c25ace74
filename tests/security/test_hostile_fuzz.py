"""Row 64 for the file tools: hostile strings as path, query, glob and content."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json
from soong.shared.tools.result import ErrorType
from tests.security.scene import SecurityHarness, make_scene

HOSTILE = [
    "",
    ".",
    "..",
    "/",
    "~",
    "a\0b",
    "\x1b]0;title\x07",
    "\x1b]52;c;aGk=\x07",
    "\u202e\u2066\u2069",
    "Z\u0351\u0321\u0326a\u0363\u0328l\u0489go",
    "'; DROP TABLE runs; --",
    "%s%n%x{0.__class__}${jndi:ldap://x}{{7*7}}",
    "$(id)`id`|id;id&&id\nid",
    "../../../../etc/passwd",
    "..\\..\\x",
    "/proc/self/environ",
    "file:///etc/passwd",
    ".env",
    ".git/config",
    "\ufeffx",
    "\ud800",
    "\U000e0041\ufffe\uffff",
    "CON",
    "-rf",
    "--pre=/bin/sh",
    "*" * 300,
    "[[:alpha:]]{999999}",
    "(?P<x>",
    "\\x{10FFFF}",
    "!**",
    "{a,{b,c}}",
    "x" * 5000,
    "a/" * 100,
    "\r\n\t\v\f\u2028\u2029\u0085",
    "<script>alert(1)</script>",
    "null",
    "NaN",
]
TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=60),
    st.lists(st.sampled_from([*HOSTILE, "a", "d", "/", "link", "..", "x.txt"]), max_size=5).map("/".join),
)
EXPECTED = frozenset(ErrorType) - {ErrorType.EXECUTION_FAILED, ErrorType.TIMEOUT, ErrorType.INVALID_OUTPUT}
FUZZ = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def furnished(scene: SecurityHarness) -> SecurityHarness:
    scene.secret()
    scene.file("d/x.txt", "hello\n")
    (scene.root / "link").symlink_to(scene.outside)
    scene.remember()
    return scene


async def check(scene: SecurityHarness, tool: str, **arguments: Json) -> str:
    """Call and hold what holds for any input: an expected end, nothing outside read or changed, no crash."""
    async with asyncio.timeout(30):
        outcome = await scene.outcome(tool, **arguments)
    ended = scene.bench.ended
    assert ended.error is None or ended.error.type in EXPECTED, ended.error
    scene.check_unharmed(ended)
    return outcome


def leads_to(scene: SecurityHarness, path: str) -> str:
    resolved = Path(os.path.realpath(scene.root / path))
    return "file" if resolved.is_file() else "directory" if resolved.is_dir() else "nothing"


def spelt_out(scene: SecurityHarness, path: str) -> str:
    return os.path.normpath(scene.root / path)


@pytest.mark.spec("FS-01", "FS-02", "FS-07")
@FUZZ
@given(path=TEXTS)
@example(path=f"{'*' * 300}/.env")
async def test_any_text_as_a_path_is_read_as_that_path_or_refused(furnished: SecurityHarness, path: str) -> None:
    for tool in ("read_file", "list_dir"):
        outcome = await check(furnished, tool, path=path)
        if outcome == "ok":
            assert leads_to(furnished, path) == ("file" if tool == "read_file" else "directory")


@pytest.mark.spec("FS-03")
@FUZZ
@given(query=TEXTS, glob=TEXTS)
@example(query="canary", glob="**")
@example(query="canary", glob="../outside/**")
async def test_any_text_as_a_query_or_glob_stays_in_the_project(
    furnished: SecurityHarness, query: str, glob: str
) -> None:
    outcome = await check(furnished, "search", query=query, glob=glob)

    assert outcome in ("ok", "invalid_input")


@pytest.mark.spec("FS-04", "FS-07", "FS-09")
@FUZZ
@given(path=TEXTS, content=TEXTS)
async def test_any_text_is_written_where_it_says_exactly_or_nowhere(
    tmp_path_factory: pytest.TempPathFactory, path: str, content: str
) -> None:
    scene = make_scene(tmp_path_factory.mktemp("fuzz"))
    (scene.root / "link").symlink_to(scene.outside)
    scene.remember()

    outcome = await check(scene, "write_file", path=path, content=content)

    written = [each for each in scene.root.rglob("*") if each.is_file() and not each.is_symlink()]
    if outcome != "ok":
        assert written == []
        return
    (one,) = written
    assert str(one) == spelt_out(scene, path)
    assert one.read_bytes() == content.encode()
    assert await scene.outcome("read_file", path=path) in ("ok", "asked", "binary_file")


@pytest.mark.spec("FS-01", "FS-04")
@FUZZ
@given(content=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=2000))
async def test_what_was_written_is_what_is_read(furnished: SecurityHarness, content: str) -> None:
    await check(furnished, "write_file", path="round", content=content, overwrite=True)
    await check(furnished, "read_file", path="round", max_lines=1000)

    data = furnished.bench.ended.data
    assert isinstance(data, dict)
    assert data["text"] == content
