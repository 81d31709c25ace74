from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.tools.definition import Permission, Risk, Traits
from soong.shared.tools.risk import by_keywords, effective_traits, risk_of
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
