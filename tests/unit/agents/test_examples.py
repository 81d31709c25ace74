"""The small examples do what their first lines say."""

import pytest

from tests.unit.agents.parts import EXAMPLES, load_example


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_a_plan_without_problem(name: str) -> None:
    plan = load_example(name)

    assert plan.steps
