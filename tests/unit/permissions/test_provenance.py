"""Where an answer comes from, as rows keep it."""

from typing import Any

import pytest

from soong.shared.permissions.request import Provenance, provenance_from
from tests.model.builders import make_provenance

pytestmark = pytest.mark.spec("PER-13.h")

SHELL = {"pid": 1, "started_us": 2, "program": "/bin/sh", "is_run": False}


@pytest.mark.parametrize(
    "provenance", [make_provenance(), make_provenance(is_run=True), Provenance(address="192.0.2.7")]
)
def test_a_provenance_is_read_back_as_it_was_written(provenance: Provenance) -> None:
    assert provenance_from(provenance.as_json()) == provenance


def test_what_a_run_started_or_what_names_nobody_is_no_persons() -> None:
    assert make_provenance().problem == ""
    assert Provenance(address="192.0.2.7").problem == ""
    assert make_provenance(is_run=True).problem == (
        "process 4242 (/usr/bin/soong) belongs to a run, and runs do not answer for people"
    )
    assert Provenance("here").problem == "the answer names no process that gave it"


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"host": 1, "processes": [SHELL]},
        {"address": ["192.0.2.7"]},
        {"processes": {"pid": 1}},
        {"processes": [1]},
        {"processes": [{**SHELL, "pid": "1"}]},
        {"processes": [{**SHELL, "more": 1}]},
        {"processes": [{"pid": 1}]},
    ],
    ids=str,
)
def test_a_provenance_that_is_malformed_answers_nothing(value: dict[str, Any]) -> None:
    assert provenance_from(value).problem


def test_a_mark_that_is_anything_but_false_counts() -> None:
    assert provenance_from({"processes": [{**SHELL, "is_run": None}]}).problem
