"""The stored form of a step's spec: what is read is what was written, and only what differs from a default is kept."""

import pytest
from msgspec import ValidationError, convert

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.spec import BoundStep, ClaimMode, DeclaredPermissions, FailurePolicy, StepKind, StepSpec
from soong.shared.storage.sql.engine.row_mapper import pack, unpack

CHILD = StepSpec(
    kind=StepKind.AGENT,
    title="Item ${item}",
    permissions=DeclaredPermissions(("out",), ("a.example.org",), (("git", "status"),)),
    allowed_tools=(),
    priority=3,
    backoff_s=2.5,
    claim=ClaimMode.PULL,
)
SPECS = {
    "empty": StepSpec(),
    "agent": StepSpec(id="a", instructions="Do.", output={"type": "object"}, timeout_s=1.5, retries=2, script="x.y"),
    "settings": StepSpec(id="s", instructions="Do.", settings={"temperature": 0.5, "cache": False}),
    "python": StepSpec(id="b", kind=StepKind.PYTHON, call="f", inputs={"x": None}, on_failure=FailurePolicy.KEEP),
    "map": StepSpec(
        id="m", kind=StepKind.MAP, over=[1], step=CHILD, item_key="${item}", child_surface={"tools": []}, max_items=2
    ),
    "item": StepSpec(id="m[1]", bound=BoundStep("Do 1.", {"n": 1})),
    "pull worker": StepSpec(id="p", max_steps=0),
}


@pytest.mark.spec("DAG-02")
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_what_is_read_is_what_was_written(spec: StepSpec) -> None:
    assert convert(unpack(pack(spec.as_json())), StepSpec) == spec


def test_defaults_are_not_stored_and_a_later_versions_field_is_passed_over() -> None:
    assert StepSpec(id="a").as_json() == {"id": "a"}

    assert convert({"written_later": 1}, StepSpec) == StepSpec()


@pytest.mark.parametrize(
    "stored",
    [{"output": []}, {"inputs": "x"}, {"permissions": "x"}, {"kind": "shell"}, {"retries": "1"}, {"step": {"call": 1}}],
    ids=str,
)
def test_value_of_another_type_is_refused(stored: JsonObject) -> None:
    with pytest.raises(ValidationError):
        convert(stored, StepSpec)
