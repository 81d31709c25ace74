"""Whatever a step function raises is the end of its step alone, in a real worker process."""

import json.decoder

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.spec import StepStatus
from tests.system import functions
from tests.system.deployment import Deployment

pytestmark = [pytest.mark.parametrize("service", ["sqlite"], indirect=True)]
MODULE = "tests.system.functions"
KINDS = ("plain", "cheap", "async")


def step(step_id: str, call: str, **inputs: Json) -> dict[str, Json]:
    return {"id": step_id, "kind": "python", "call": call, "inputs": dict(inputs), "on_failure": "keep"}


@pytest.mark.spec("DAG-05")
async def test_each_exception_ends_its_own_step_with_its_name_and_the_line_that_raised_it(service: Deployment) -> None:
    steps = [step(f"{kind}-{what}", f"raise.{kind}", what=what) for kind in KINDS for what in functions.RAISED]
    await service.start_workers(1, slots=8, SOONG_FUNCTIONS=MODULE)
    (worker,) = service.workers

    task = await service.submit({"title": "t", "steps": [*steps, step("after", "builtin.echo", x=1)]})
    await service.finished(task)

    ended = await service.steps(task)
    said = {name: one.error.message for name, one in ended.items() if one.error is not None}
    expected = {f"{kind}-{what}": words for kind in KINDS for what, (_, words) in functions.RAISED.items()}
    expected["async-stop"] = "RuntimeError: coroutine raised StopIteration"  # Python's own word for it
    assert {name: words for name, words in expected.items() if not said.get(name, "").startswith(words)} == {}
    assert [name for name, words in said.items() if f"(at {functions.__file__}:" not in words] == []
    assert ended["after"].status is StepStatus.COMPLETED
    assert {one.lost_leases for one in ended.values()} == {0}
    assert worker.poll() is None, service.logs()


async def test_an_exception_from_a_library_is_shown_with_the_line_of_the_function_that_called_it(
    service: Deployment,
) -> None:
    await service.start_workers(1, SOONG_FUNCTIONS=MODULE)

    task = await service.submit({"title": "t", "steps": [step("a", "raise.library")]})
    await service.finished(task)

    error = (await service.steps(task))["a"].error
    assert error is not None
    assert error.message.startswith("JSONDecodeError: ")
    assert f"(at {functions.__file__}:" in error.message
    assert f"raised at {json.decoder.__file__}:" in error.message
