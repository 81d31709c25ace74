"""The deployment's own keys, passwords and folders: asked about before they are read, written by no file tool."""

from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.settings import Settings, load_settings
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.toolset import CodeTools
from soong.shared.toolsets.sources import ToolEnvironment
from tests.security.scene import PolicyGate, SecurityHarness
from tests.unit.tools.parts import make_bench

KEY = "MC4CAQAwBQYDK2VwBCIEIBGHw4DZ-canary-9f2c"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SecurityHarness:
    """A project whose parent holds the home, the data folder and the secrets, with a rule that allows every write."""
    root, outside, home = tmp_path / "project", tmp_path / "secrets", tmp_path / "home"
    for each in (root, outside, home, tmp_path / "data"):
        each.mkdir()
    for name in ("signing_key", "database_url", "other"):
        (outside / name).write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n")
    monkeypatch.setenv("SOONG_SIGNING_KEY_FILE", str(outside / "signing_key"))
    monkeypatch.setenv("SOONG_DATABASE_URL_FILE", str(outside / "database_url"))
    settings: Settings = load_settings(agent_home=home, data_dir=tmp_path / "data")
    place: dict[str, Any] = {"write_roots": (tmp_path,)}
    bench = make_bench(CodeTools(ToolEnvironment.of(settings).paths).tools(), project=root, place=place)
    gate = PolicyGate()
    bench.gate.decide = gate.decide  # type: ignore[method-assign]
    return SecurityHarness(root, outside, home, bench, gate)


@pytest.mark.spec("FS-06", "FS-09")
@pytest.mark.parametrize("name", ["signing_key", "database_url"])
@pytest.mark.parametrize("way", ["direct", "link", "dots", "other case"])
async def test_a_secret_file_is_neither_read_unasked_nor_written_whatever_it_is_called(
    scene: SecurityHarness, name: str, way: str
) -> None:
    secret = scene.outside / name
    (scene.root / "innocent.txt").symlink_to(secret)
    path = {
        "direct": str(secret),
        "link": "innocent.txt",
        "dots": f"{scene.root}/../secrets/./{name}",
        "other case": str(secret) if way != "other case" else str(scene.outside / name.upper()),
    }[way]
    if way == "other case":  # as a file system that does not tell them apart has it
        (scene.outside / name.upper()).write_text(secret.read_text())

    read = await scene.call("read_file", path=path, start_line=2, max_lines=1)
    outcome = await scene.outcome("write_file", path=path, content="theirs", overwrite=True)

    assert read.error is not None
    assert read.error.type is ErrorType.PERMISSION_NO_CALLBACK
    assert KEY not in repr(read)
    assert outcome == ErrorType.PATH_PROTECTED.value
    assert secret.read_text().endswith(f"{KEY}\n")


@pytest.mark.spec("FS-06")
async def test_no_search_or_list_from_above_tells_what_a_secret_file_holds(scene: SecurityHarness) -> None:
    (scene.home / "flower.auth").write_text(f"soong:{KEY}\n")
    (scene.root / "ours").mkdir()
    (scene.root / "ours" / "secrets").symlink_to(scene.outside)
    scene.gate.policy = scene.gate.policy.with_rules(())

    results = [
        await scene.bench.call("code.search", {"query": "canary", "path": str(path)})
        for path in (scene.root, scene.outside, scene.root.parent)
    ]

    assert KEY not in repr(results)
    data = [result.data for result in results[1:]]  # of roots of the run, which are searched without a question
    assert [each["left_out"] for each in data if isinstance(each, dict)] == [3, 4]


@pytest.mark.spec("FS-06")
async def test_a_search_of_a_project_around_them_leaves_our_files_out_and_counts_them(
    tmp_path: Path, scene: SecurityHarness
) -> None:
    (scene.home / "flower.auth").write_text(f"soong:{KEY}\n")
    (scene.home / "skills" / "x").mkdir(parents=True)
    (scene.home / "skills" / "x" / "notes.md").write_text(f"not a secret {KEY}\n")
    (tmp_path / "data" / "runs" / "r").mkdir(parents=True)
    (tmp_path / "data" / "runs" / "r" / "log").write_text(f"a run's log {KEY}\n")
    settings = load_settings(agent_home=scene.home, data_dir=tmp_path / "data")
    bench = make_bench(CodeTools(ToolEnvironment.of(settings).paths).tools(), project=tmp_path)

    found = await bench.call("code.search", {"query": "canary"})
    listed = await bench.call("code.list_dir", {"path": "home"})

    assert isinstance(found.data, dict)
    matches = found.data["matches"]
    assert isinstance(matches, list)
    paths = {str(match["path"]) for match in matches if isinstance(match, dict)}
    assert paths == {"home/skills/x/notes.md", "data/runs/r/log"}
    assert found.data["left_out"] == 4, "and the key that nobody named"
    assert "flower.auth" not in repr(found)
    assert bench.gate.asked[-1].target.is_sensitive, "listing the home itself is asked about"
    assert listed.error is None


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize("folder", ["home", "data"])
async def test_our_folders_are_written_beneath_the_runs_alone(
    scene: SecurityHarness, tmp_path: Path, folder: str
) -> None:
    for name in ("config.toml", "artifacts/ab/cd", "flower.auth", "tools/x.json"):
        assert await scene.outcome("write_file", path=str(tmp_path / folder / name), content="x") == "path_protected"

    policy = ToolEnvironment.of(load_settings(agent_home=scene.home, data_dir=tmp_path / "data")).paths
    assert not policy.is_protected(tmp_path / "data" / "runs" / "run_1" / "deliverables" / "x")
