"""``--allow tool:scope``: exactly what is written, or a sentence on what to write."""

from pathlib import Path

import pytest

from soong.shared.core.errors import UsageError
from soong.shared.permissions.rules import parse_allow
from soong.shared.permissions.scope import Scope, ScopeKind

HOME = "/home/someone"


def test_a_link_in_a_scope_is_resolved_because_targets_are(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    rule = parse_allow(f"code.write_file:{tmp_path}/link", home=HOME)

    assert rule.scope == Scope(ScopeKind.PATH, str(tmp_path.resolve() / "real"))


def test_the_scope_may_be_left_out_for_a_tool_that_only_reads() -> None:
    assert parse_allow("web.search", readonly_tools=("web.search",)).scope is None


@pytest.mark.spec("PER-08")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name a tool"),
        (":/work", "name a tool"),
        ("*:/work", "name a tool"),
        ("*.*:/work", "name a tool"),
        ("code.write_file", "say for what"),
        ("code.write_file:", "say for what"),
        ("code.write_file: ", "say for what"),
        ("code.write_file:*", "not a pattern"),
        ("mcp.x.t", "write mcp.x.t:now, or exact: and a scope that `soong mcp show NAME` prints"),
        ("mcp.x.t:*", "as it is defined now; write mcp.x.t:now"),
        ("mcp.*:/work", "write mcp.*:now"),
        ("code.write_file:/work/*", "not a pattern"),
        ("code.write_file:host:*", "not a pattern"),
        ("code.write_file:/", "too wide"),
        ("code.write_file://", "too wide"),
        ("code.write_file:/home/someone", "too wide"),
        ("code.write_file:/home/someone/", "too wide"),
        ("code.write_file:/home/someone/x/..", "too wide"),
        ("code.write_file:/home", "too wide"),
        ("code.write_file:~", "too wide"),
        ("code.write_file:out", "not an absolute path"),
        ("code.write_file:~other/out", "not an absolute path"),
        ("code.write_file:/work/\0", "not an absolute path"),
        ("code.write_file:/work/out ", "begins or ends with a blank"),
        ("code.write_file:/work/out\t", "begins or ends with a blank"),
        ("code.write_file: /work/out", "begins or ends with a blank"),
        ("mcp.db.query:exact:orders\xa0", "begins or ends with a blank"),
        ("web.fetch:host:", "nothing after 'host:'"),
        ("web.fetch:host:*.", "nothing after 'host:'"),
    ],
)
def test_what_is_too_wide_or_no_scope_is_refused_with_its_hint(text: str, words: str) -> None:
    with pytest.raises(UsageError, match="--allow") as caught:
        parse_allow(text, home=HOME)

    assert words in str(caught.value)
