"""Paths: what they lead to, what their names mean, and opening them without a link."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.errors import InvalidConfigError
from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError, opened_directory, opened_file
from soong.shared.sandbox.names import SENSITIVE, is_control, is_sensitive, plain, readable
from soong.shared.sandbox.paths import PathPolicy, is_linked_elsewhere, shown_path, stands_linked
from tests.unit.tools.parts import make_run_dirs

POLICY = PathPolicy(Path("/home/u/.soong-home"))


@pytest.mark.spec("FS-06.a")
@pytest.mark.parametrize(
    "path",
    [
        *("/home/u/.ssh", "/home/u/.ssh/id_rsa", ".gnupg/x", "a/.aws/credentials", "/home/u/.config/gcloud/token"),
        *("x.pem", "deep/SERVER.KEY", ".env", ".env.local", ".ENV.local", ".env ", ".env.", ".ENV/bin/python"),
        *("\uff58.\uff50\uff45\uff4d", ".e\u200bnv", "a//.env"),
    ],
)
def test_sensitive_names_are_seen_through_every_spelling(path: str) -> None:
    assert POLICY.is_sensitive(path)


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    "path",
    [
        *("env", "env.md", "id_map.c", "history", ".environment", "pem", "x.pem.txt", "keys/x", ".config/other"),
        *("gcloud", ".sshx", "a.keys"),
    ],
)
def test_ordinary_names_are_not_sensitive(path: str) -> None:
    assert not POLICY.is_sensitive(path)


@pytest.mark.spec("FS-07.c")
def test_a_runs_own_folders_are_write_roots(tmp_path: Path) -> None:
    roots = make_run_dirs(tmp_path / "p", run_dir=tmp_path / "runs/r", write_roots=())

    inside = [
        POLICY.locate(roots, str(tmp_path / "runs/r" / name)).is_inside_write_roots
        for name in ("workspace/x", "deliverables/x", "x")
    ]

    assert inside == [True, True, False]


def test_paths_are_shown_relative_inside_the_project_and_as_valid_text(tmp_path: Path) -> None:
    roots = make_run_dirs(tmp_path)

    assert shown_path(tmp_path / "a/b.py", roots) == "a/b.py"
    assert shown_path(tmp_path, roots) == "."
    assert shown_path(Path("/etc/x"), roots) == "/etc/x"
    assert shown_path(tmp_path / os.fsdecode(b"bad\xff"), roots) == "bad\ufffd"


@pytest.mark.parametrize("kind", ["loop", "chain"])
def test_links_that_lead_nowhere_or_too_far_are_refused_as_such(tmp_path: Path, kind: str) -> None:
    count = {"loop": 2, "chain": 3000}[kind]
    for number in range(count):
        (tmp_path / f"l{number}").symlink_to(f"l{(number + 1) % count}" if kind == "loop" else f"l{number + 1}")

    with pytest.raises(PathRefusedError) as caught:
        POLICY.locate(make_run_dirs(tmp_path), "l0")

    assert caught.value.refusal is PathRefusal.INVALID


@pytest.mark.spec("FS-09")
def test_what_steers_us_elsewhere_is_protected_with_all_below_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    policy = PathPolicy(controls=(tmp_path / "link/hook.py", tmp_path / "tools"))

    assert policy.is_protected(tmp_path / "real/hook.py")
    assert policy.is_protected(tmp_path / "link/HOOK.py")
    assert policy.is_protected(tmp_path / "tools/inner/x.py")
    assert not policy.is_protected(tmp_path / "real/hook.pyc")


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    "path",
    [
        *("new.txt", "a/b/new.txt", "real/new.txt", "link/new.txt", "link/../new.txt", "dangling", "dangling/x"),
        *("real/../x", "no/../link/x", "file/x", "link/link/x"),
    ],
)
def test_what_does_not_exist_leads_where_the_system_says(path: str, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere/else")
    (tmp_path / "real" / "link").symlink_to("../real")

    located = POLICY.locate(make_run_dirs(tmp_path), path)

    assert located.resolved == Path(os.path.realpath(tmp_path / path))


@pytest.mark.spec("FS-06.a")
def test_a_path_that_passes_through_a_sensitive_name_is_sensitive_wherever_it_leads(tmp_path: Path) -> None:
    """Its folders need not exist, and whether they do is not revealed."""
    located = POLICY.locate(make_run_dirs(tmp_path), ".ssh/../notes.txt")

    assert located.resolved == tmp_path / "notes.txt"
    assert located.is_sensitive


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("~/.logins", "/home/u/.logins"),
        ("secrets/", "/p/secrets/x"),
        ("secrets/**", "/p/secrets/a/b"),
        ("./private", "private"),
        ("/etc/passwords", "/etc/passwords"),
        ("*.sec?et", "a/b.SECRET"),
        ("Geheim\u00e4", "/p/geheima\u0308/x"),
        ("[ab].txt", "/p/[ab].txt"),
        ("{a,b}", "/p/{a,b}"),
    ],
    ids=str,
)
def test_a_pattern_of_the_user_is_understood_as_people_write_them(pattern: str, path: str) -> None:
    assert is_sensitive(path, (*SENSITIVE, pattern))
    assert not is_sensitive(path, SENSITIVE)


@pytest.mark.parametrize("pattern", ["/", "~", "", "../x", "a\0b"], ids=repr)
def test_a_pattern_that_names_nothing_is_refused_when_the_policy_is_made(pattern: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"paths\.sensitive"):
        PathPolicy(sensitive=(pattern,))


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize(
    "path",
    [
        *("p/.git", "p/.git/config", "p/.git/hooks/pre-commit", "p/.git/modules/sub/hooks/x"),
        *("p/.git/worktrees/w/config.worktree", "p/.git/commondir", "p/.git/worktrees/w/gitdir"),
        *("p/.git/rebase-merge/git-rebase-todo", "p/GIT~1/config", "p/.g\u200cit/hooks/x", "p/.git /config"),
        *("p/.mcp.json", "p/.MCP.JSON", "p/.soong/config.toml", "p/.soong/tools/x.json", "p/.soong/skills/s/SKILL.md"),
        *("p/.\uff33oong/hooks/x", "p/.claude", "p/.Claude/agents/x.md"),
        *("h/.claude/worktrees/fix/.claude/agents/x.md", "p/sub/mcp.json"),
    ],
)
def test_a_control_is_known_by_name_through_every_spelling(path: str) -> None:
    assert is_control(tuple(map(plain, Path(path).parts)))


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize(
    "path",
    [
        *("p/.git/info/exclude", "p/config", "p/hooks/x", "p/.soong/runs/r/x", "p/.github/hooks/x", "p/mcp.jsonl"),
        *("h/.claude/worktrees/fix/src/a.py", "h/.codex/worktrees/fix/a.py", "p/.hgignore", "p/claude/agents/x.md"),
    ],
)
def test_an_ordinary_name_is_no_control(path: str) -> None:
    assert not is_control(tuple(map(plain, Path(path).parts)))


@given(st.text(max_size=30))
def test_a_readable_name_stays_on_one_line_and_shows_what_it_is_made_of(name: str) -> None:
    shown = readable(name)

    assert shown.isprintable()
    assert shown == name or shown.startswith('"')


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    ("folder", "mode", "expected"),
    [
        ("", 0o644, True),
        ("src", 0o600, True),
        (".venv/lib/python3.11/site-packages/x", 0o644, False),
        ("node_modules/x", 0o640, False),
        ("node_modules/x", 0o600, True),
    ],
)
def test_a_second_name_counts_unless_a_package_manager_explains_it(
    tmp_path: Path, folder: str, mode: int, expected: bool
) -> None:
    (tmp_path / "original").write_text("x")
    (tmp_path / "original").chmod(mode)
    name = tmp_path / folder / "name"
    name.parent.mkdir(parents=True, exist_ok=True)
    os.link(tmp_path / "original", name)

    assert stands_linked(name) is expected


def test_one_name_what_is_no_file_and_what_only_the_systems_owner_fills_are_not_linked(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")

    assert not stands_linked(tmp_path / "x")
    assert not stands_linked(tmp_path / "gone")
    assert not stands_linked(tmp_path)

    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")

    assert not is_linked_elsewhere(Path("/usr/share/zoneinfo/UTC"), (tmp_path / "a").stat())


def refusal(path: Path, *, folder: bool = False) -> PathRefusal:
    with pytest.raises(PathRefusedError) as caught, (opened_directory if folder else opened_file)(path):
        pass
    return caught.value.refusal


@pytest.mark.spec("FS-07.e")
def test_no_link_is_followed_anywhere_in_a_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real/x").write_text("hi")
    (tmp_path / "dir").symlink_to("real")
    (tmp_path / "file").symlink_to("real/x")

    assert refusal(tmp_path / "file") is PathRefusal.CHANGED
    # A link where a directory is wanted is none, as far as the operating system says.
    assert refusal(tmp_path / "dir/x") in (PathRefusal.CHANGED, PathRefusal.NOT_FOUND)
    assert refusal(tmp_path / "dir", folder=True) is PathRefusal.CHANGED


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hi")

    assert refusal(tmp_path / "y") is PathRefusal.NOT_FOUND
    assert refusal(tmp_path / "x/y") is PathRefusal.NOT_FOUND
    assert refusal(tmp_path / ("n" * 300)) is PathRefusal.INVALID


def test_a_file_of_the_kernel_is_refused_although_it_claims_to_be_regular() -> None:
    assert refusal(Path(f"/proc/{os.getpid()}/environ")) is PathRefusal.NOT_REGULAR
    assert refusal(Path("/sys/kernel"), folder=True) is PathRefusal.NOT_REGULAR
