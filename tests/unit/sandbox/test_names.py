from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.errors import InvalidConfigError
from soong.shared.sandbox.names import SENSITIVE, is_control, is_sensitive, plain, readable
from soong.shared.sandbox.paths import PathPolicy


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
        "p/.git",
        "p/.git/config",
        "p/.git/hooks/pre-commit",
        "p/.git/modules/sub/hooks/x",
        "p/.git/worktrees/w/config.worktree",
        "p/.git/commondir",
        "p/.git/worktrees/w/gitdir",
        "p/.git/rebase-merge/git-rebase-todo",
        "p/GIT~1/config",
        "p/.g\u200cit/hooks/x",
        "p/.git /config",
        "p/.mcp.json",
        "p/.MCP.JSON",
        "p/.soong/config.toml",
        "p/.soong/tools/x.json",
        "p/.soong/skills/s/SKILL.md",
        "p/.\uff33oong/hooks/x",
        "p/.claude",
        "p/.Claude/agents/x.md",
        "h/.claude/worktrees/fix/.claude/agents/x.md",
        "p/sub/mcp.json",
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
