from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.template import references, render, render_text

SCOPE: dict[str, Json] = {
    "inputs": {"name": "Ada", "count": 3, "list": [1, {"deep": "x"}], "none": None, "yes": True, "odd key": 7},
    "my.step": {"output": {"items": ["a", "b"]}},
    "my": {"step": {"output": "of the shorter root"}},
}


def budget() -> ExpansionBudget:
    return ExpansionBudget("the test")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("${inputs.count}", 3, id="keeps-the-type"),
        pytest.param("${ inputs.list }", [1, {"deep": "x"}], id="spaces"),
        pytest.param("${inputs.list[1].deep}", "x", id="index"),
        pytest.param("${inputs.list[-1].deep}", "x", id="index-from-the-end"),
        pytest.param('${inputs["odd key"]}', 7, id="quoted-key"),
        pytest.param("${my.step.output.items}", ["a", "b"], id="longest-root-wins"),
        pytest.param("Dear ${inputs.name}, ${inputs.count}", "Dear Ada, 3", id="interpolation"),
        pytest.param("${inputs.none}|${inputs.yes}|${inputs.list}", '|true|[1,{"deep":"x"}]', id="text-forms"),
        pytest.param("${inputs.list | length}", 2, id="length"),
        pytest.param('${my.step.output.items | join(", ")}', "a, b", id="join"),
        pytest.param("${inputs.list | json}", '[1,{"deep":"x"}]', id="json"),
        pytest.param("${my.step.output.items | first}${my.step.output.items | last}", "ab", id="first-last"),
        pytest.param("${inputs.missing | default([])}", [], id="default-for-missing"),
        pytest.param('${inputs.none | default("}")}', "}", id="default-for-null-with-a-brace"),
        pytest.param('${inputs.missing | default("a|b")}', "a|b", id="bar-in-quotes"),
        pytest.param("$${inputs.name}", "${inputs.name}", id="escaped"),
        pytest.param("a $${b} ${inputs.name}", "a ${b} Ada", id="escaped-beside-reference"),
        pytest.param("cost: $5 {x}", "cost: $5 {x}", id="plain"),
        pytest.param("", "", id="empty"),
    ],
)
def test_references_become_what_they_name(text: str, value: Json) -> None:
    assert render_text(text, SCOPE, budget()) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("${inputs.nmae}", "there is no 'nmae' (there is: name", id="missing-key"),
        pytest.param("${other.x}", "'other' is not known here (known: inputs", id="missing-root"),
        pytest.param("${inputs.list[9]}", "no item [9] in a list of 2", id="index"),
        pytest.param("${inputs.name.first}", "cannot look up 'first' in a text", id="into-a-text"),
        pytest.param("${inputs.count[0]}", "in a number", id="index-of-a-number"),
        pytest.param("${inputs.name | shout}", "not a filter (there are: length", id="unknown-filter"),
        pytest.param("${inputs.list | join}", "takes an argument", id="argument-missing"),
        pytest.param("${inputs.list | length(1)}", "takes no argument", id="argument-too-many"),
        pytest.param("${inputs.list | default(nope)}", "is not JSON", id="argument-not-json"),
        pytest.param("${inputs.count | length}", "cannot be taken of a number", id="filter-on-wrong-kind"),
        pytest.param("${inputs.name", "not closed", id="not-closed"),
        pytest.param("${}", "not a path", id="empty-reference"),
        pytest.param("${a..b}", "not a path", id="double-dot"),
        pytest.param("${a b}", "not a path", id="space"),
        pytest.param("${a.}", "not a path", id="dot-at-the-end"),
        pytest.param("${__import__('os')}", "not a path", id="code"),
    ],
)
def test_a_reference_that_cannot_be_looked_up_says_why(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as raised:
        render_text(text, SCOPE, budget())

    assert words in str(raised.value)


@given(st.text())
def test_what_a_reference_brings_in_is_never_expanded_again(secret: str) -> None:
    scope: dict[str, Json] = {"evil": "${secret} $${x}" + secret, "secret": "leaked"}

    assert render({"a": "${evil}", "b": ["x ${evil}"]}, scope, budget()) == {
        "a": scope["evil"],
        "b": [f"x {scope['evil']}"],
    }


@given(st.text())
def test_any_text_renders_or_is_refused_by_name(text: str) -> None:
    with suppress(TemplateError):
        render_text(text, SCOPE, budget())


def test_keys_of_mappings_are_not_templates() -> None:
    assert render({"${inputs.name}": "${inputs.name}"}, SCOPE, budget()) == {"${inputs.name}": "Ada"}


def test_references_are_found_with_their_places() -> None:
    found = list(references({"a": ["x", "${inputs.name} ${my.step}"], "b": 3}))

    assert [(place, reference.text) for place, reference in found] == [(("a", 1), "inputs.name"), (("a", 1), "my.step")]
