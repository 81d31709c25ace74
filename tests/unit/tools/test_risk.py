import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.jsontext import JsonObject
from soong.shared.tools import permission_check as risk
from soong.shared.tools.definition import Permission, Risk, ToolDefinition, Traits
from soong.shared.tools.permission_check import (
    by_keywords,
    classified,
    effective_traits,
    for_call,
    risk_classifier,
    risk_of,
)
from tests.unit.tools.parts import make_tool


@pytest.mark.spec("PER-11.b")
@pytest.mark.parametrize(
    ("keyword", "risk"),
    [
        *((word, Risk.EXECUTE) for word in ("shell", "exec", "command", "run", "spawn")),
        *((word, Risk.WRITE) for word in ("patch", "write", "edit", "create", "delete")),
    ],
)
def test_each_of_the_ten_keywords_raises_a_name_that_holds_it(keyword: str, risk: Risk) -> None:
    assert by_keywords(make_tool(f"mcp.x.{keyword}_it")) is risk
    assert by_keywords(make_tool(f"team.the_{keyword}")) is risk


@pytest.mark.spec("PER-11.b")
@pytest.mark.parametrize(
    ("name", "risk"),
    [
        ("mcp.x.get_page", Risk.READ),
        ("mcp.x.create_issue", Risk.WRITE),
        ("mcp.x.delete_issue", Risk.WRITE),
        ("mcp.x.exec_and_write", Risk.EXECUTE),
        ("mcp.shell.list", Risk.EXECUTE),
        ("agent.task_create", Risk.READ),
        ("code.run_command", Risk.READ),
    ],
)
def test_keywords_guess_for_names_from_elsewhere_only(name: str, risk: Risk) -> None:
    assert by_keywords(make_tool(name)) is risk


@pytest.mark.spec("PER-11.b", "PER-06")
@pytest.mark.parametrize(
    ("overrides", "traits", "risk"),
    [
        ({}, Traits(is_read_only=True), Risk.READ),
        ({"permission": Permission.WRITE}, Traits(), Risk.WRITE),
        ({"permission": Permission.WRITE, "tags": frozenset({"dangerous"})}, Traits(), Risk.EXECUTE),
        ({"permission": Permission.WRITE}, Traits(is_destructive=True), Risk.CRITICAL),
        ({"name": "mcp.x.run"}, Traits(is_read_only=True), Risk.EXECUTE),
    ],
)
def test_the_highest_of_declaration_tags_traits_and_guess_counts(
    overrides: dict[str, Any], traits: Traits, risk: Risk
) -> None:
    assert risk_of(make_tool(**overrides), traits) is risk


@pytest.mark.spec("REG-05.h", "REG-08.b")
@pytest.mark.parametrize(
    ("said", "tags"),
    [
        ({"crm"}, {"own", "crm"}),
        (set(), {"own"}),
        ({"internal", "code", "agent", "mcp", "write", "readonly"}, {"own"}),
        (["crm"], {"own", "dangerous", "network"}),
        ({1}, {"own", "dangerous", "network"}),
        (None, {"own", "dangerous", "network"}),
    ],
    ids=["more", "none", "what others are", "a list", "no texts", "raises"],
)
def test_a_call_has_the_tags_of_its_tool_and_those_that_its_input_adds(said: object, tags: set[str]) -> None:
    def by_input(_call_input: JsonObject) -> Any:
        if said is None:
            raise RuntimeError
        return frozenset(said) if isinstance(said, set) else said

    tool = make_tool(tags=frozenset({"own"}), call_tags=by_input)

    assert for_call(tool, {}).tags == tags
    assert for_call(tool, {}).reaches_out == ("network" in tags)


TRAITS = st.builds(Traits, st.booleans(), st.booleans(), st.booleans(), st.booleans())


@pytest.mark.spec("REG-05.h")
@given(st.sampled_from(Permission), TRAITS)
def test_traits_never_lower_a_call_below_its_definition(permission: Permission, declared: Traits) -> None:
    traits = effective_traits(make_tool(permission=permission, traits=lambda _: declared), {})

    assert not (permission is Permission.WRITE and (traits.is_read_only or traits.is_concurrency_safe))
    assert traits.is_destructive == declared.is_destructive
    assert not (traits.is_concurrency_safe and not traits.is_read_only)


@pytest.mark.spec("PER-11.b")
@given(TRAITS, st.sampled_from(Risk))
def test_a_classifier_can_only_raise(traits: Traits, guess: Risk) -> None:
    tool = make_tool()

    assert risk_of(tool, traits, lambda _: guess) == max(guess, risk_of(tool, traits, lambda _: Risk.READ))


@pytest.fixture
def classifiers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a test registers."""
    monkeypatch.setattr(risk, "_REGISTERED", [])


@pytest.mark.spec("PER-11.c")
@pytest.mark.usefixtures("classifiers")
def test_the_highest_of_keywords_and_registered_classifiers_counts() -> None:
    @risk_classifier
    def team(tool: ToolDefinition) -> Risk:
        return Risk.CRITICAL if "billing" in tool.tags else Risk.READ

    @risk_classifier
    def other(_tool: ToolDefinition) -> Risk:
        return Risk.WRITE

    billing = make_tool("team.look", tags=frozenset({"billing"}))
    assert classified(billing) is Risk.CRITICAL
    assert classified(make_tool("team.look")) is Risk.WRITE
    assert classified(make_tool("mcp.x.run")) is Risk.EXECUTE
    assert risk_of(billing, Traits(is_read_only=True)) is Risk.CRITICAL
    assert team(make_tool()) is Risk.READ, "it is returned unchanged"


@pytest.mark.spec("PER-11.c")
@pytest.mark.usefixtures("classifiers")
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (lambda: sys.exit(3), "SystemExit"),
        (lambda: None, "it returned NoneType, not a Risk"),
        (lambda: 0, "it returned int, not a Risk"),
    ],
    ids=["raises", "leaves", "nothing", "a number"],
)
def test_where_a_classifier_fails_the_call_is_critical_and_the_log_names_it(
    ending: Callable[[], Any], said: str
) -> None:
    @risk_classifier
    def broken(_tool: ToolDefinition) -> Any:
        return ending()

    with capture_logs() as logged:
        judged = classified(make_tool("team.look"))

    assert judged is Risk.CRITICAL
    (entry,) = logged
    assert (entry["event"], entry["log_level"], entry["tool"]) == ("risk_classifier_failed", "error", "team.look")
    assert entry["classifier"].endswith("broken")
    assert said in entry["error"]


@pytest.mark.spec("PER-11.c")
@pytest.mark.usefixtures("classifiers")
def test_a_classifier_that_is_no_plain_function_is_refused() -> None:
    async def later(_tool: ToolDefinition) -> Risk:
        return Risk.READ

    for wrong in (later, Risk.CRITICAL):
        with pytest.raises(InvalidConfigError, match="is not a plain function; write `def classify"):
            risk_classifier(wrong)  # type: ignore[type-var]
