"""Which places the rules of a session open to its runs for writing."""

from pathlib import Path

import pytest

from soong.shared.permissions.configured import writable_by_rule
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.permissions.scope import Scope, ScopeKind
from soong.shared.tools.definition import Permission
from tests.unit.tools.parts import make_tool

TOOLS = (
    make_tool("code.read_file", permission=Permission.READONLY, tags=frozenset({"code"})),
    make_tool("code.write_file", permission=Permission.WRITE, tags=frozenset({"code", "filesystem"})),
)


@pytest.mark.spec("PER-10")
@pytest.mark.parametrize(
    ("rule", "opened"),
    [
        (Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x")), True),
        (Rule(Effect.ALLOW, "code.*", scope=Scope(ScopeKind.PATH, "/opt/x")), True),
        (Rule(Effect.ALLOW, "*", frozenset({"filesystem"}), Scope(ScopeKind.PATH, "/opt/x")), True),
        (Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x"), step="task/s"), True),
        (Rule(Effect.ALLOW, "*", frozenset({"network"}), Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.ALLOW, "code.read_file", scope=Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.ASK, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.DENY, "code.write_file", scope=Scope(ScopeKind.PATH, "/opt/x")), False),
        (Rule(Effect.ALLOW, "code.write_file", scope=Scope(ScopeKind.EXACT, "/opt/x")), False),
    ],
    ids=str,
)
def test_an_allow_rule_for_a_tool_that_writes_opens_its_folder(rule: Rule, opened: bool) -> None:
    assert writable_by_rule(Policy((rule,)), TOOLS) == ((Path("/opt/x"),) if opened else ())
