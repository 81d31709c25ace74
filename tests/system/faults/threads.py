"""The threads of a worker by their names: what belongs to no pool stays the same, however much fails."""

import re
import threading
from typing import Final

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.functions import StepContext, step_function
from soong.shared.engine.tasks.step import Task
from tests.system.deployment import Deployment

MODULE: Final = __name__
"""What SOONG_FUNCTIONS of the worker names."""

_POOLED: Final = re.compile(r"(asyncio|soong-call|soong-sql-read|soong-step|ThreadPoolExecutor-0)[_-]\d+")
"""A thread of the loop's executor, of looks at files, of the database, of step functions, or of Celery's one pool."""


@step_function("test.threads")
def threads(inputs: JsonObject, context: StepContext) -> Json:
    """Return the names of all threads of the process."""
    return [thread.name for thread in threading.enumerate()]


async def listed(service: Deployment) -> Task:
    """Return a task whose one step has listed the threads of the one worker."""
    step: JsonObject = {"id": "threads", "kind": "python", "call": "test.threads"}
    return await service.finished(await service.submit({"title": "threads", "steps": [step]}))


async def outside_pools(service: Deployment, task: Task) -> list[str]:
    """Return the names of the listed threads that belong to no pool; there is one pool of each name."""
    names = (await service.steps(task))["threads"].output
    assert isinstance(names, list)
    pooled = [str(name) for name in names if _POOLED.fullmatch(str(name))]
    assert len(set(pooled)) == len(pooled), sorted(pooled)
    return sorted(str(name) for name in names if name not in pooled)
