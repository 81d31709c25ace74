"""Bad arguments and bad definitions are refused in words."""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from soong.shared.core.errors import InvalidToolError
from soong.shared.tools.naming import NameTable
from soong.shared.tools.result import ErrorType
from tests.security.scene import CANARY, SecurityHarness
from tests.unit.tools.parts import make_bench, make_registry, make_tool
from tests.unit.toolsets.parts import text_of

Arrange = Callable[[SecurityHarness], Any]
LIMIT_S = 20
"""No call may take longer; a call that blocks fails its row instead of the whole run."""


def nothing(_scene: SecurityHarness) -> None:
    """Leave the project empty."""


@dataclass(frozen=True)
class Row:
    """One bad input. Texts of ``arguments`` may name ``{root}``, ``{outside}`` and ``{home}``."""

    id: str
    tool: str
    arguments: dict[str, Any]
    expected: str
    arrange: Arrange = nothing
    says: str = ""
    data: dict[str, Any] = field(default_factory=dict)


def filled(scene: SecurityHarness, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    places = {"{root}": scene.root, "{outside}": scene.outside, "{home}": scene.home}
    for name, path in places.items():
        value = value.replace(name, str(path))
    return value


def link(name: str, target: str) -> Arrange:
    return lambda scene: (scene.root / name).symlink_to(filled(scene, target))


def link_to_secret(name: str, secret: str) -> Arrange:
    return lambda scene: (scene.root / name).symlink_to(scene.secret(secret))


def secret(name: str) -> Arrange:
    return lambda scene: scene.secret(name)


def content(name: str, what: str | bytes) -> Arrange:
    return lambda scene: scene.file(name, what)


def one_long_line(scene: SecurityHarness) -> None:
    scene.file("x", b"x" * (200 * 2**20))


def fifo(scene: SecurityHarness) -> None:
    os.mkfifo(scene.root / "x")


def listener(scene: SecurityHarness) -> None:
    here = os.open(scene.root, os.O_RDONLY)
    before = os.open(".", os.O_RDONLY)
    os.fchdir(here)  # a socket's path ends at 108 bytes
    with socket.socket(socket.AF_UNIX) as each:
        each.bind("x")
    os.fchdir(before)
    os.close(here)
    os.close(before)


def sparse(size: int, head: bytes = b"") -> Arrange:
    def arrange(scene: SecurityHarness) -> None:
        with (scene.root / "x").open("wb") as file:
            file.write(head)
            file.truncate(size)

    return arrange


def hard_link(name: str) -> Arrange:
    return lambda scene: os.link(scene.secret(), scene.root / name)


def loops(scene: SecurityHarness) -> None:
    (scene.root / "up").symlink_to(".")
    (scene.root / "a").symlink_to("b")
    (scene.root / "b").symlink_to("a")


def secrets(scene: SecurityHarness) -> None:
    for name in (".env", "a/server.key", ".ENV.local", "x.pem"):
        scene.file(name, f"{CANARY}\n")
    scene.file("ok.txt", "ok\n")


LONG = {"component": "x" * 256, "bytes": "y" * 5000, "components": "a/" * 3000 + "x"}
TOOLS: dict[str, dict[str, Any]] = {
    "read_file": {},
    "list_dir": {},
    "search": {"query": "x"},
    "write_file": {"content": "x"},
}
NAMES = {
    "newline": "a\nb",
    "escape": "a\x1b[2Jb",
    "right-to-left": "a\u202etxt.exe",
    "zero-width": "a\u200bb",
    "tilde": "~",
    "root's tilde": "~root",
    "variable": "$HOME",
    "percent": "%2e%2e/x",
    "url": "file:///etc/passwd",
    "drive": "C:\\x",
    "unc": "\\\\host\\share",
}

ROWS = [
    Row("row-02-absolute-secret", "read_file", {"path": "{outside}/.ssh/id"}, "asked", secret(".ssh/id")),
    Row("row-01-dotdot-secret", "read_file", {"path": "../outside/.env"}, "asked", secret(".env")),
    Row("row-01-dotdot-search", "search", {"query": "canary", "path": "../outside"}, "asked", secret("x")),
    Row("row-02-absolute-search", "search", {"query": "canary", "path": "{outside}"}, "asked", secret("x")),
    Row("row-03-prefix", "write_file", {"path": "{root}-evil/x", "content": "x"}, "asked"),
    Row("row-03-prefix-relative", "write_file", {"path": "../project-evil/x", "content": "x"}, "asked"),
    Row("row-04-link-to-key", "read_file", {"path": "notes"}, "asked", link_to_secret("notes", ".ssh/id_rsa")),
    Row("row-04-search-link-to-key", "search", {"query": "c", "path": "n"}, "asked", link_to_secret("n", "k.pem")),
    Row(
        "row-05-link-to-outside",
        "write_file",
        {"path": "x", "content": "x", "overwrite": True},
        "asked",
        link_to_secret("x", "theirs"),
    ),
    Row("row-05-dangling-link", "write_file", {"path": "x", "content": "x"}, "asked", link("x", "{outside}/new")),
    Row("row-06-parent-link", "write_file", {"path": "d/e/x", "content": "x"}, "asked", link("d", "{outside}")),
    Row(
        "row-06-parent-link-dirs",
        "write_file",
        {"path": "d/e/x", "content": "x", "create_dirs": True},
        "asked",
        link("d", "{outside}/new"),
    ),
    *(
        Row(f"row-08-{path.replace(str(os.getpid()), 'ours')}", tool, {"path": path, **TOOLS[tool]}, "not_regular_file")
        for tool in ("read_file", "list_dir", "search")
        for path in (
            *("/proc/self/environ", "/proc/1/root/etc/shadow", "/proc/self/fd/3", "/dev/fd/0"),
            *("/proc/self/root/etc/shadow", f"/proc/{os.getpid()}/environ", "/sys/kernel"),
        )
    ),
    Row("row-08-link-to-environ", "read_file", {"path": "x"}, "not_regular_file", link("x", "/proc/self/environ")),
    Row("row-09-fifo", "read_file", {"path": "x"}, "not_regular_file", fifo),
    Row("row-09-socket", "read_file", {"path": "x"}, "not_regular_file", listener),
    Row("row-09-tty", "read_file", {"path": "/dev/tty"}, "not_regular_file"),
    Row("row-09-zero", "read_file", {"path": "/dev/zero"}, "not_regular_file"),
    Row("row-09-link-to-zero", "read_file", {"path": "x"}, "not_regular_file", link("x", "/dev/zero")),
    Row("row-09-block-device", "read_file", {"path": "/dev/vda"}, "not_regular_file"),
    Row("row-09-directory", "read_file", {"path": "."}, "not_regular_file"),
    Row("row-10-sparse-50-gb", "read_file", {"path": "x"}, "ok", sparse(50 * 2**30, b"line\n" * 9000), "line"),
    Row("row-10-sparse-1-tb", "read_file", {"path": "x"}, "ok", sparse(2**40, b"line\n" * 9000), "line"),
    Row("row-10-only-a-hole", "read_file", {"path": "x"}, "binary_file", sparse(50 * 2**30)),
    Row(
        "row-11-one-line",
        "read_file",
        {"path": "x"},
        "ok",
        one_long_line,
        data={"truncated_lines": [1], "text": "x" * 4096, "total_lines": 1},
    ),
    *(
        Row(f"row-12-{name}={value!r}", "read_file", {"path": "x", name: value}, "invalid_input", content("x", "1\n"))
        for name, value in (
            ("start_line", 0),
            ("start_line", -1),
            ("start_line", 2**63),
            ("max_lines", 0),
            ("max_lines", 1001),
            ("max_lines", "10 lines"),
            ("max_lines", "010"),
            ("max_lines", "NaN"),
            ("max_lines", "true"),
            ("max_lines", True),
            ("start_line", 1.5),
            ("start_line", "1.5"),
            ("start_line", ""),
        )
    ),
    *(
        Row(f"row-12-{name}={value!r}-is-repaired", "read_file", {"path": "x", name: value}, "ok", content("x", "1\n"))
        for name, value in (("max_lines", "10"), ("start_line", None))
    ),
    Row("row-12-1.0-is-whole", "read_file", {"path": "x", "start_line": 1.0}, "ok", content("x", "1\n")),
    Row("row-13-nul", "read_file", {"path": "x"}, "binary_file", content("x", b"a\0b")),
    Row("row-13-utf-16", "read_file", {"path": "x"}, "binary_file", content("x", "hello".encode("utf-16"))),
    Row("row-13-not-utf-8", "read_file", {"path": "x"}, "ok", content("x", b"caf\xe9\n"), data={"text": "caf\ufffd\n"}),
    *(
        Row(f"row-13-surrogate-{tool}", tool, {"path": "\ud800", **more}, "invalid_input")
        for tool, more in TOOLS.items()
    ),
    *(Row(f"row-14-{tool}", tool, {"path": "a\0b", **more}, "invalid_input") for tool, more in TOOLS.items()),
    *(Row(f"row-15-empty-{tool}", tool, {"path": "", **more}, "invalid_input") for tool, more in TOOLS.items()),
    *(
        Row(f"row-15-long-{length}-{tool}", tool, {"path": path, **more}, "invalid_input")
        for tool, more in TOOLS.items()
        for length, path in LONG.items()
    ),
    Row("row-15-root-read", "read_file", {"path": "/"}, "asked"),
    Row("row-15-root-search", "search", {"query": "x", "path": "/"}, "asked"),
    Row("row-15-root-write", "write_file", {"path": "/", "content": ""}, "invalid_input"),
    Row("row-15-dot-write", "write_file", {"path": ".", "content": ""}, "not_regular_file"),
    *(Row(f"row-18-read-{name}", "read_file", {"path": path}, "file_not_found") for name, path in NAMES.items()),
    Row("row-19-hard-link-read", "read_file", {"path": "x"}, "asked", hard_link("x")),
    Row("row-19-hard-link-search", "search", {"query": "c", "path": "x"}, "asked", hard_link("x")),
    Row("row-19-in-project-search", "search", {"query": "c"}, "ok", hard_link("x"), data={"count": 0, "left_out": 1}),
    Row("row-20-link-loop", "list_dir", {"recursive": True}, "ok", loops, data={"truncated": False}),
    Row("row-20-through-a-loop", "read_file", {"path": "a"}, "invalid_input", loops),
    *(Row(f"row-21-{limit}", "list_dir", {"limit": limit}, "invalid_input") for limit in (-1, 0, 10**9)),
    *(
        Row(
            f"row-22-{query}", "search", {"query": query}, "ok", content("x", f"say {query} twice\n"), data={"count": 1}
        )
        for query in ("--pre=/tmp/x", "-f/etc/shadow", "-e", "--", "--files", "--hostname-bin=/bin/false", "-r")
    ),
    Row("row-22-empty", "search", {"query": ""}, "invalid_input"),
    Row("row-23-option", "search", {"query": "x", "path": "-r"}, "file_not_found"),
    Row("row-23-link-to-etc", "search", {"query": "root", "path": "x"}, "asked", link("x", "/etc")),
    Row("row-23-fifo", "search", {"query": "x", "path": "x"}, "invalid_input", fifo),
    Row("row-23-fifo-below", "search", {"query": "x"}, "ok", fifo, data={"count": 0}),
    *(
        Row(f"row-24-{glob[:20]}", "search", {"query": "canary", "glob": glob}, "ok", secret("x"), data={"count": 0})
        for glob in ("../**", "/**", "!**", "-g", "{outside}/*", "--pre=/bin/echo", "**/../../outside/**")
    ),
    Row("row-24-open-brace", "search", {"query": "x", "glob": "{a,"}, "invalid_input"),
    Row("row-24-10-kb", "search", {"query": "x", "glob": "*" * 10_240}, "invalid_input"),
    *(
        Row(f"row-25-{query}", "search", {"query": query}, "ok", content("x", "a" * 2_000_000 + "!\n"))
        for query in ("(a+)+$", "(x*)*y", "(a|a)*b")
    ),
    Row("row-25-look-behind", "search", {"query": "(?<=x)"}, "invalid_input", says="look-around"),
    Row("row-25-open-class", "search", {"query": "["}, "invalid_input", says="unclosed"),
    Row("row-25-1-mb", "search", {"query": "a" * 2**20}, "invalid_input"),
    Row("row-25-newline", "search", {"query": "a\nb"}, "invalid_input", says="not allowed"),
    Row("row-25-too-large", "search", {"query": "a{1000}{1000}{1000}"}, "invalid_input"),
    Row("row-26-secrets", "search", {"query": "canary"}, "ok", secrets, data={"count": 0, "left_out": 4}),
    Row("row-26-glob", "search", {"query": "canary", "glob": ".e*"}, "ok", secrets, data={"count": 0, "left_out": 4}),
    Row("row-26-path", "search", {"query": "canary", "path": ".env"}, "asked", secrets),
    Row("row-26-list", "list_dir", {"recursive": True}, "ok", secrets),
    Row("row-27-exists", "write_file", {"path": "x", "content": "new"}, "path_conflict", content("x", "old")),
    *(
        Row(f"row-28-{name}", "write_file", {"path": "x", "content": "new", "overwrite": True}, expected, arrange)
        for name, expected, arrange in (
            ("directory", "not_regular_file", lambda scene: (scene.root / "x").mkdir()),
            ("fifo", "not_regular_file", fifo),
            ("device", "not_regular_file", link("x", "/dev/null")),
            ("read-only", "sandbox_denied", lambda scene: scene.file("x", "old").chmod(0o444)),
        )
    ),
    Row("row-29-too-large", "write_file", {"path": "x", "content": "x" * (5 * 2**20)}, "limit_exceeded"),
    Row("row-29-far-too-large", "write_file", {"path": "x", "content": "x" * (64 * 2**20)}, "invalid_input"),
    *(
        Row(f"row-30-{path}", "write_file", {"path": path, "content": "x", "overwrite": True}, "path_protected")
        for path in (
            *(".git/hooks/pre-commit", ".git/config", ".git", "sub/.git/hooks/x", ".git/modules/sub/hooks/x"),
            *(".git/worktrees/w/config.worktree", ".git/commondir", ".GIT/Hooks/x", ".g\u200dit/config", ".mcp.json"),
            *(".soong/tools/x.json", ".soong/config.toml", "{home}/tools/x.json", "{home}/config.toml"),
            *("{home}/hooks/x", "{home}/mcp.json", "../home/config.toml"),
        )
    ),
    Row("row-30-link", "write_file", {"path": "h/config.toml", "content": "x"}, "path_protected", link("h", "{home}")),
    Row("row-30-link-git", "write_file", {"path": "g/hooks/x", "content": "x"}, "path_protected", link("g", ".git")),
]


@pytest.mark.spec("FS-01", "FS-02", "FS-03", "FS-04", "FS-06", "FS-07", "FS-09", "RES-04", "RES-05")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
async def test_a_bad_input_ends_as_its_row_says(scene: SecurityHarness, row: Row) -> None:
    row.arrange(scene)
    scene.remember()
    arguments = {name: filled(scene, value) for name, value in row.arguments.items()}
    inside = tree(scene)

    async with asyncio.timeout(LIMIT_S):
        outcome = await scene.outcome(row.tool, **arguments)

    ended = scene.bench.ended
    assert outcome == row.expected, ended
    assert not row.id.endswith("is-repaired") or scene.bench.log.records[-1].facts["is_repaired"] is True
    assert row.says in f"{text_of(ended)}"
    assert isinstance(ended.data, dict) or not row.data
    assert {name: ended.data[name] for name in row.data} == row.data  # type: ignore[index,call-overload]
    assert tree(scene) == inside
    scene.check_unharmed(ended)
    await check_alive(scene)


def tree(scene: SecurityHarness) -> list[tuple[str, int]]:
    entries = ((path, path.lstat()) for path in scene.root.rglob("*"))
    return sorted((str(path), status.st_mtime_ns) for path, status in entries)


async def check_alive(scene: SecurityHarness) -> None:
    scene.file("alive", "yes\n")
    assert "yes" in text_of(await scene.call("read_file", path="alive"))


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "is": {"type": "boolean"},
        "name": {"type": "string"},
        "some": {"type": "string", "minLength": 1},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "list": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["name"],
}
VERDICTS: list[tuple[str, Any, bool]] = [
    ("row-48-boolean-for-integer", {"name": "", "n": True}, False),
    ("row-48-boolean-for-number", {"name": "", "x": False}, False),
    ("row-48-integer-for-boolean", {"name": "", "is": 1}, False),
    ("row-48-1.0-for-integer", {"name": "", "n": 1.0}, True),
    ("row-48-1.5-for-integer", {"name": "", "n": 1.5}, False),
    ("row-48-10^400", {"name": "", "n": 10**400}, False),
    ("row-48-10^400-as-text", '{"name": "", "n": 1' + "0" * 400 + "}", False),
    ("row-48-1e400-as-text", '{"name": "", "x": 1e400}', False),
    ("row-48-infinity", {"name": "", "x": float("inf")}, False),
    ("row-48-nan", {"name": "", "x": float("nan")}, False),
    ("row-48-empty-for-required", {"name": ""}, True),
    ("row-48-empty-for-min-length", {"name": "", "some": ""}, False),
    ("row-48-missing", {}, False),
    ("row-48-null-for-required", {"name": None}, False),
    ("row-48-extra", {"name": "", "more": 1}, False),
    ("row-48-proto", {"name": "", "__proto__": {}}, False),
    ("row-48-constructor", {"name": "", "constructor": {"prototype": {}}}, False),
    ("row-48-inner-extra", {"name": "", "inner": {"n": 1, "m": 2}}, False),
    ("row-48-inner-proto", {"name": "", "inner": {"__proto__": 1}}, False),
    ("row-48-list-for-object", [], False),
    ("row-48-text-for-object", '"name"', False),
    ("row-48-number-for-text", {"name": 1}, False),
    ("row-48-item", {"name": "", "list": [1, "two"]}, False),
    ("row-48-two-documents", '{"name": ""} {"name": ""}', False),
    ("row-48-duplicate-key", '{"name": "", "name": "x"}', False),
    ("row-48-python", "{'name': ''}", False),
]


@pytest.mark.spec("SCH-01.a", "SCH-03")
@pytest.mark.parametrize(
    ("arguments", "is_valid"), [row[1:] for row in VERDICTS], ids=[name for name, _, _ in VERDICTS]
)
async def test_a_value_has_the_verdict_that_json_schema_gives(arguments: Any, is_valid: bool) -> None:
    reached: list[object] = []

    async def handler(_context: object, call_input: object) -> None:
        reached.append(call_input)

    bench = make_bench([make_tool(input_schema=SCHEMA, handler=handler)])

    async with asyncio.timeout(20):
        result = await bench.call("test.echo", arguments)

    assert result.ok is is_valid
    assert result.error is None or result.error.type is ErrorType.INVALID_INPUT
    assert len(reached) == len(bench.gate.asked) == int(is_valid)


@pytest.mark.spec("REG-02.a", "REG-02.b")
@pytest.mark.parametrize(
    "name",
    [
        "code.read_file",
        "Code.read_file",
        "code.Read_file",
        "c\u043ede.read_file",
        "code.read\u200b_file",
        "code.re\uff41d_file",
        "code..x",
        ".code.x",
        "code.x.",
        "code",
        "",
        "code.x y",
        "code.x\n",
        "code.x\0",
        "code/x",
        "1.x",
        "code.\u202ex",
        "c" * 130 + ".x",
    ],
    ids=lambda name: f"row-49-{name[:20]!r}",
)
def test_a_name_that_is_taken_or_could_pass_for_another_is_refused(name: str) -> None:
    registry = make_registry(make_tool("code.read_file"))

    with pytest.raises(InvalidToolError):
        registry.register(make_tool(name))

    assert [tool.name for tool in registry.definitions()] == ["code.read_file"]


@pytest.mark.spec("REG-02", "REG-10")
@pytest.mark.parametrize(
    "aliases",
    [("code.read_file",), ("Read",), ("Same", "Same"), ("test.x",), ("r\u0435ad",), ("a b",), ("",)],
    ids=lambda aliases: f"row-49-alias-{aliases!r}",
)
def test_an_alias_hides_no_other_tool(aliases: tuple[str, ...]) -> None:
    registry = make_registry(make_tool("code.read_file", aliases=("Read",)))

    with pytest.raises(InvalidToolError):
        registry.register(make_tool("test.x", aliases=aliases))

    assert registry.get("test.x") is None


@pytest.mark.spec("REG-04.c")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("x.a__b", "x.a.b"),
        ("x.a_.b", "x.a._b"),
        ("x._a", "x__a.a"),
        ("x.a_b", "x.a-b"),
        ("x." + "y" * 90 + ".a", "x." + "y" * 90 + ".b"),
    ],
    ids=lambda name: f"row-49-{name[:10]}",
)
def test_two_names_are_two_names_for_a_provider_and_come_back_as_they_were(first: str, second: str) -> None:
    table = NameTable([first, second])

    told = [table.to_provider(name) for name in (first, second)]

    assert len(set(told)) == 2
    assert [table.to_canonical(name) for name in told] == [first, second]


@pytest.mark.spec("REG-04.c")
def test_row_49_a_collision_that_an_alphabet_leaves_no_way_round_is_refused() -> None:
    names = [f"x.{chr(97 + first)}{chr(97 + second)}" for first in range(26) for second in range(26)]

    with pytest.raises(InvalidToolError):
        NameTable(names, pattern="[0-9]+", max_length=3)
