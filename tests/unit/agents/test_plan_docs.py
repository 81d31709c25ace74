"""docs/plans.md names everything that a plan can say."""

import re
from pathlib import Path

from msgspec.structs import fields

from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.spec import StepSpec

TEXT = (Path(__file__).parents[3] / "docs" / "plans.md").read_text(encoding="utf-8")


def test_every_field_of_a_step_is_documented() -> None:
    rows = re.findall(r"^\| (`[^|]*`) \| (?:all|agent|python|map)", TEXT, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    unwritten = {"role", "bound", "is_limited", "max_steps", "child_surface"}  # set by the owner
    spelled = {"item_name": "as", "item_key": "key"}
    assert told == {spelled.get(field.name, field.name) for field in fields(StepSpec)} - unwritten


def test_the_first_example_is_a_plan() -> None:
    (example, *_) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)

    assert [step.id for step in parse_plan(example, "docs/plans.md").steps] == ["look", "tell"]
