"""The stored form of a step's spec: what is read is what was written, and only what differs from a default is kept."""

import pytest

from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.kinds import ClaimMode, FailurePolicy, StepKind
from soong.shared.engine.tasks.spec import BoundStep, DeclaredPermissions, StepSpec

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
    assert StepSpec.from_json(spec.to_json()) == spec


def test_defaults_are_not_stored() -> None:
    assert StepSpec(id="a").to_json() == {"v": 1, "id": "a", "kind": "agent"}


@pytest.mark.parametrize(
    "stored",
    [{"written_later": 1}, {"output": None, "timeout_s": None}, {"inputs": [], "permissions": "x"}],
    ids=["unknown field", "null", "another type"],
)
def test_what_cannot_be_a_value_leaves_the_default(stored: JsonObject) -> None:
    assert StepSpec.from_json(stored) == StepSpec()


def test_word_outside_a_closed_set_is_refused() -> None:
    with pytest.raises(ValueError, match="shell"):
        StepSpec.from_json({"kind": "shell"})
