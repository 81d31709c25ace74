import asyncio
import json
import os
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.permissions.rules import Effect, Rule, Scope, ScopeKind
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.toolsets.code.toolset import CodeTools
from tests.security.scene import CANARY, SecurityHarness, make_scene
from tests.security.test_bad_inputs import LIMIT_S, NAMES, check_alive
from tests.unit.tools.parts import make_bench
from tests.unit.toolsets.parts import text_of

Mount = Callable[[str], None]

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts file systems and makes devices")


@pytest.mark.spec("FS-07", "PER-10")
@pytest.mark.parametrize("path", ["../outside/plain", "{outside}/plain", "x/../../outside/./plain"])
@pytest.mark.parametrize(("effect", "expected"), [(Effect.DENY, "permission_denied"), (Effect.ASK, "asked")])
async def test_row_01_02_a_rule_catches_a_read_outside_however_it_is_spelt(
    scene: SecurityHarness, path: str, effect: Effect, expected: str
) -> None:
    scene.secret("plain")
    rule = Rule(effect, "code.read_file", scope=Scope(ScopeKind.PATH, str(scene.outside)))
    scene.gate.policy = scene.gate.policy.with_rules([rule])
    scene.remember()

    assert await scene.outcome("read_file", path=path.format(outside=scene.outside)) == expected

    assert scene.bench.ended.error is not None
    scene.check_unharmed(scene.bench.ended)


@pytest.mark.spec("FS-06.c", "PER-06")
async def test_row_04_the_question_shows_the_target_and_both_names(scene: SecurityHarness) -> None:
    (scene.root / "notes.txt").symlink_to(scene.secret(".ssh/id_rsa"))

    await scene.call("read_file", path="notes.txt")

    (call,) = scene.gate.asked
    assert call.target.shown == str(scene.outside / ".ssh/id_rsa")
    assert "'notes.txt' leads to" in call.target.preview
    assert call.target.shown in call.target.preview


@only_root
@pytest.mark.spec("FS-01", "RES-05")
@pytest.mark.parametrize("kind", ["zero", "block"])
@pytest.mark.parametrize("tool", ["read_file", "write_file"])
async def test_row_09_28_a_device_in_the_project_is_neither_read_nor_replaced(
    scene: SecurityHarness, kind: str, tool: str
) -> None:
    device = os.makedev(1, 5) if kind == "zero" else os.makedev(7, 0)
    os.mknod(scene.root / "x", (0o020000 if kind == "zero" else 0o060000) | 0o666, device)
    more: dict[str, Json] = {} if tool == "read_file" else {"content": "x", "overwrite": True}

    async with asyncio.timeout(LIMIT_S):
        assert await scene.outcome(tool, path="x", **more) == "not_regular_file"

    assert not (scene.root / "x").is_file()


@pytest.mark.spec("EVT-05", "FS-02")
async def test_row_13_a_name_that_is_no_text_leaves_every_record_json(scene: SecurityHarness) -> None:
    scene.file(os.fsdecode(b"bad\xff"), "hit\n")
    scene.remember()

    for tool, arguments in (("list_dir", {}), ("search", {"query": "hit"})):
        result = await scene.call(tool, **arguments)
        assert "bad\ufffd" in text_of(result)
        scene.check_unharmed(result)


@pytest.mark.spec("FS-01", "FS-02", "FS-03", "FS-04")
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
async def test_row_16_18_an_odd_name_is_that_name_and_nothing_else(scene: SecurityHarness, name: str) -> None:
    scene.remember()

    assert await scene.outcome("write_file", path=name, content="hit\n") == "ok"

    written = [path for path in scene.root.rglob("*") if path.is_file()]
    assert [str(path.relative_to(scene.root)) for path in written] == [name.replace("file:///", "file:/")]
    assert await scene.outcome("read_file", path=name) == "ok"
    for tool, arguments in (("list_dir", {"recursive": True}), ("search", {"query": "hit"})):
        result = await scene.call(tool, **arguments)
        lines = text_of(result).splitlines()
        assert len(lines) == (1 if "/" not in name or tool == "search" else len(lines))
        assert all(line.replace("\t", "").isprintable() for line in lines)
        scene.check_unharmed(result)


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize("name", [".ENV", ".Env.Local", "ID_RSA.PEM", ".env ", ".env.", "Server.Key"])
@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "full width", "zero width"])
async def test_row_17_a_sensitive_name_is_seen_through_its_spelling(
    scene: SecurityHarness, name: str, form: str
) -> None:
    spelt = disguised(name, form)
    scene.file(spelt, f"{CANARY}\n")
    scene.remember()

    assert await scene.outcome("read_file", path=spelt) == "asked"
    assert await scene.outcome("search", query="canary", path=spelt) == "asked"
    data = (await scene.call("search", query="canary")).data
    assert isinstance(data, dict)
    assert (data["count"], data["left_out"]) == (0, 1)
    scene.check_unharmed(scene.bench.ended)


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("pattern", ["NFC", "NFD"])
async def test_row_17_a_configured_pattern_holds_in_both_forms(tmp_path: Path, form: str, pattern: str) -> None:
    policy = PathPolicy(sensitive=(disguised("gehe\u00efm-\u00e4*", pattern),))
    bench = make_bench(CodeTools(policy).tools(), project=tmp_path)
    name = disguised("Gehe\u00efm-\u00c4.txt", form)
    (tmp_path / name).write_text(CANARY)

    result = await bench.call("code.search", query="canary")

    assert isinstance(result.data, dict)
    assert (result.data["count"], result.data["left_out"]) == (0, 1)
    assert bench.gate.asked[-1].target.is_sensitive is False
    await bench.call("code.read_file", path=name)
    assert bench.gate.asked[-1].target.is_sensitive


def disguised(name: str, form: str) -> str:
    match form:
        case "NFC" | "NFD" | "NFKC":
            return unicodedata.normalize(form, name)
        case "zero width":
            return f"{name[:2]}\u200b{name[2:]}"
    return "".join(chr(ord(char) + 0xFEE0) if char.isalpha() else char for char in name)


@pytest.mark.spec("FS-02")
async def test_row_20_a_hundred_thousand_entries_give_the_first_in_bounded_memory(scene: SecurityHarness) -> None:
    folder = os.open(scene.root, os.O_RDONLY)
    for number in range(100_000):
        os.close(os.open(f"f{number:06}", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    os.close(folder)

    data, extra_kb = in_a_process_of_its_own(scene.root, "code.list_dir", {"recursive": True, "limit": 1000})

    assert [entry["path"] for entry in data["entries"]] == [f"f{number:06}" for number in range(1000)]
    assert data["truncated"] is True
    assert extra_kb < 64 * 1024


@pytest.mark.spec("FS-01.f")
@pytest.mark.parametrize("kind", ["one line", "short lines", "hole"])
def test_row_10_11_any_file_costs_less_than_64_mib(scene: SecurityHarness, kind: str) -> None:
    with (scene.root / "x").open("wb") as file:
        for _ in range(300):
            file.write(b"x" * 2**20 if kind == "one line" else b"line\n" * 200_000)
        if kind == "hole":
            file.truncate(2**40)
    start = {"one line": 1, "short lines": 59_999_000, "hole": 59_999_000}[kind]

    data, extra_kb = in_a_process_of_its_own(scene.root, "code.read_file", {"path": "x", "start_line": start})

    assert data["start_line"] == start
    assert data["text"]
    assert extra_kb < 64 * 1024


MEASURED = """
import asyncio, json, resource, sys
from pathlib import Path
from tests.unit.tools.parts import make_bench
from soong.shared.toolsets.code.toolset import CodeTools

async def main(root, tool, arguments):
    bench = make_bench(CodeTools().tools(), project=Path(root))
    (Path(root).parent / "warm").mkdir()
    await bench.call("code.list_dir", path=str(Path(root).parent / "warm"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await bench.call(tool, arguments)
    assert result.error is None, result.error
    print(json.dumps([result.data, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))

asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
"""


def in_a_process_of_its_own(root: Path, tool: str, arguments: dict[str, object]) -> tuple[Any, int]:
    """Call a tool in a fresh process; return its data and by how many KiB the process grew at most."""
    argv = [sys.executable, "-c", MEASURED, str(root), tool, json.dumps(arguments)]
    here = str(Path(__file__).parents[2])
    ended = subprocess.run(argv, cwd=here, capture_output=True, check=True, timeout=100)
    data, extra_kb = json.loads(ended.stdout)
    return data, extra_kb


@only_root
@pytest.mark.spec("FS-02")
async def test_row_20_a_directory_that_may_not_be_read_is_flagged() -> None:
    with tempfile.TemporaryDirectory(prefix="soong-unreadable-") as name:
        os.chmod(name, 0o755)  # noqa: PTH101  # the linter takes a path's own method for blocking
        scene = make_scene(Path(name))
        os.chmod(scene.file("closed/x").parent, 0)  # noqa: PTH101
        scene.file("open/x")
        await scene.call("list_dir")  # whatever is imported lazily is so now
        os.seteuid(65534)
        try:
            result = await scene.call("list_dir", recursive=True)
        finally:
            os.seteuid(0)

        assert isinstance(result.data, dict)
        assert (result.data["partial"], result.data["unreadable"]) == (True, 1)
        assert "open/x" in text_of(result)


@pytest.mark.spec("FS-03")
async def test_row_22_no_query_or_glob_runs_a_program(scene: SecurityHarness) -> None:
    marker = scene.root / "ran"
    program = scene.file("pre.sh", f"#!/bin/sh\ntouch {marker}\ncat\n")
    program.chmod(0o755)
    scene.file("x", "hit\n")
    words = [f"--pre={program}", f"--hostname-bin={program}", "-f/etc/shadow", "--search-zip"]

    for word in words:
        await scene.call("search", query=word)
        await scene.call("search", query="hit", glob=word)
        await scene.call("search", query="hit", path=word)

    assert not marker.exists()


@pytest.mark.spec("FS-04")
@pytest.mark.parametrize("overwrite", [True, False])
async def test_row_27_a_file_made_while_the_call_is_judged_survives(scene: SecurityHarness, overwrite: bool) -> None:
    judge = scene.bench.gate.decide

    async def late(call: object) -> object:
        scene.file("x", "theirs")
        return await judge(call)  # type: ignore[arg-type]

    scene.bench.gate.decide = late  # type: ignore[method-assign,assignment]

    assert await scene.outcome("write_file", path="x", content="mine", overwrite=overwrite) == "path_conflict"
    assert (scene.root / "x").read_text() == "theirs"


@pytest.fixture
def tiny_disk(scene: SecurityHarness) -> Iterator[Mount]:
    """A file system of 64 KiB on ``project/disk``, mounted anew with other options when asked for."""
    disk = scene.root / "disk"
    disk.mkdir()

    def mount(options: str) -> None:
        argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
        if subprocess.run(argv, capture_output=True, check=False).returncode != 0:
            pytest.skip("this machine lets nobody mount a file system")

    mount("size=64k")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@only_root
@pytest.mark.spec("FS-04", "RES-05")
async def test_row_28_a_full_disk_is_said_and_the_old_file_stays(
    scene: SecurityHarness, tiny_disk: Callable[[str], None]
) -> None:
    scene.file("disk/x", "old")

    for path, overwrite in (("disk/x", True), ("disk/new", False)):
        outcome = await scene.outcome("write_file", path=path, content="x" * 200_000, overwrite=overwrite)
        assert outcome == "execution_failed"
        assert "No space left on device" in text_of(scene.bench.ended)

    assert [(path.name, path.read_text()) for path in (scene.root / "disk").iterdir()] == [("x", "old")]
    await check_alive(scene)


@only_root
@pytest.mark.spec("FS-04", "RES-05")
async def test_row_28_a_disk_that_may_only_be_read_is_said(scene: SecurityHarness, tiny_disk: Mount) -> None:
    scene.file("disk/x", "old")
    tiny_disk("remount,ro")

    assert await scene.outcome("write_file", path="disk/x", content="new", overwrite=True) == "sandbox_denied"
    assert await scene.outcome("write_file", path="disk/new", content="new") == "sandbox_denied"
    assert [path.name for path in (scene.root / "disk").iterdir()] == ["x"]


@pytest.mark.spec("FS-09.b")
@pytest.mark.parametrize("name", ["tools/x.json", "config.toml", "hooks/pre.py", "mcp.json", "skills/s/SKILL.md"])
async def test_row_30_a_home_inside_the_project_is_protected_before_it_exists(tmp_path: Path, name: str) -> None:
    scene = make_scene(tmp_path)
    bench = make_bench(CodeTools(PathPolicy(scene.root / "agent-home")).tools(), project=scene.root)
    scene = replace(scene, bench=bench)

    for path in (f"agent-home/{name}", f"AGENT-HOME/{name}", f"x/../agent-home/./{name}"):
        assert await scene.outcome("write_file", path=path, content="x") == "path_protected"

    assert bench.gate.asked == []
    assert list(scene.root.iterdir()) == []
