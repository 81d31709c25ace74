"""Rows leave usual values out, and readers return what was written."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from soong.shared.agents.definition import builtin_definitions
from soong.shared.engine.runs.events import EventType, NodeKind
from soong.shared.storage.sql.engine.known_texts import INSTRUCTIONS
from soong.shared.storage.sql.engine.rows import digest_of, pack
from soong.shared.storage.sql.engine.short_forms import (
    CALL_FACTS,
    EVENTS,
    INPUTS,
    MARK,
    NODES,
    KnownTexts,
    entire,
    shortened,
)

FORMS: dict[str, Mapping[str, Any]] = {**EVENTS, **NODES, "inputs": INPUTS, "facts": CALL_FACTS}


def usual(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the usual values, and something where there are none."""
    return {name: f"a {name}" if value is ... else _usual(value) for name, value in form.items()}


def _usual(value: Any) -> Any:
    if isinstance(value, KnownTexts):
        return value[0]
    return usual(value) if isinstance(value, dict) and value else value


def back(value: Mapping[str, Any], form: Mapping[str, Any]) -> tuple[str, str]:
    """Return a value as its row holds it, and as that is read."""
    stored = pack(shortened(value, form))
    return stored, pack(entire(json.loads(stored), form))


@pytest.mark.parametrize("name", FORMS)
def test_what_is_usual_is_left_out_and_read_in_its_order(name: str) -> None:
    whole = {**usual(FORMS[name]), "more": [1]}
    stored, read = back(whole, FORMS[name])
    assert len(stored) < len(pack(whole))
    assert read == pack(whole)


@pytest.mark.parametrize("name", FORMS)
def test_an_object_without_a_usual_field_is_stored_as_it_is(name: str) -> None:
    form = FORMS[name]
    whole = usual(form)
    for field in (field for field, value in form.items() if value is not ...):
        less = {key: value for key, value in whole.items() if key != field}
        assert back(less, form) == (pack(less), pack(less))


@pytest.mark.parametrize("other", [0, 0.0, False, True, 1, None, "", "x", [], {}, [1], {"same": 1}, {"more": 2}])
@pytest.mark.parametrize("name", FORMS)
def test_every_other_value_is_kept(name: str, other: Any) -> None:
    form = FORMS[name]
    for field in form:
        changed = {**usual(form), field: other}
        assert back(changed, form)[1] == pack(changed)


@pytest.mark.parametrize("number", [0, 2, True, 1.5, "1", None, [], {}])
def test_a_form_that_is_not_known_is_read_as_it_stands(number: Any) -> None:
    strange = {MARK: number, "tool": "code.list_dir"}
    for form in FORMS.values():
        assert back(strange, form) == (pack(strange), pack(strange))


def test_what_is_read_is_not_shared() -> None:
    first, second = (entire({MARK: 1}, EVENTS["tool_completed"]) for _ in range(2))
    artifacts = first["artifacts"]
    assert isinstance(artifacts, list)
    artifacts.append("changed")
    assert second["artifacts"] == []


def test_forms_are_of_events_and_nodes_that_exist_and_never_change() -> None:
    assert set(EVENTS) <= {event.value for event in EventType}
    assert set(NODES) <= {kind.value for kind in NodeKind}
    # Rows hold the number 1 and rely on what it says: a change needs a number of its own.
    assert (
        digest_of(repr({name: dict(form) for name, form in FORMS.items() if name != "system"}))[:12] == "3c15450bce6b"
    )
    assert list(NODES["system"]) == ["v", "text"]
    # Others may follow these.
    assert digest_of(pack(list(INSTRUCTIONS[:6])))[:12] == "6d3ed7685d56"


def test_rows_hold_the_numbers_of_the_instructions_that_are_always_there() -> None:
    for definition in builtin_definitions():
        whole = {"v": 1, "text": definition.instructions}
        stored, read = back(whole, NODES["system"])
        assert len(stored) < 30, f"add the instructions of {definition.id} to known_texts.py, as its last text"
        assert read == pack(whole)


@pytest.mark.parametrize("number", [-1, 6, 2**60, True, 1.0, "0", None])
def test_a_number_without_a_text_stays_as_it_is(number: Any) -> None:
    assert entire({MARK: 1, "v": 1, "text": number}, NODES["system"]) == {"v": 1, "text": number}
