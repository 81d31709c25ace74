"""A limit on what runs at once holds over worker processes, however many slots they have (DIS-03)."""

import pytest

from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.step import ConcurrencyLimit
from tests.scripted import call, calls
from tests.system.auditor import read_effects
from tests.system.deployment import ON_POSTGRES, Deployment
from tests.system.faults.scene import begun, effects_file, prove, start_workers

pytestmark = [ON_POSTGRES, pytest.mark.spec("DIS-03", "CARD-2")]

LIMIT = 3
STEPS = 12
EFFECT_S = 0.15
TOOL = "tests.system.faults.effect_tool"
EXTRA = {"tools": (TOOL,)}


def plan(*, is_agent: bool, pool: str = "default") -> JsonObject:
    """Return steps that could all run at once."""
    work: dict[str, Json] = {"kind": "python", "call": "test.effect", "inputs": {"seconds": EFFECT_S}}
    if is_agent:
        work = {
            "instructions": "Do it.",
            "allowed_tools": ["test.effect"],
            **calls(call("test.effect", seconds=EFFECT_S)),
        }
    return {"title": "wide", "steps": [{"id": f"s{number}", "pool": pool, **work} for number in range(STEPS)]}


def most_at_once(service: Deployment) -> int:
    """Return how many effects were under way at one moment, by one clock for all processes."""
    now = most = 0
    for effect in sorted(read_effects(effects_file(service)), key=lambda one: one["monotonic_us"]):
        now += 1 if effect["at"] == "start" else -1
        most = max(most, now)
    return most


@pytest.mark.spec("CARD-2.a", "CARD-2.c", "DIS-03.e")
@pytest.mark.parametrize(
    ("kind", "scope", "is_agent"),
    [
        ("session", "", False),
        ("definition", "definition:python:test.effect", False),
        ("model", "model:script", True),
        ("pool", "pool:big", False),
    ],
    ids=["session", "definition", "model", "pool"],
)
async def test_two_worker_processes_fill_a_limit_and_never_exceed_it(
    service: Deployment, kind: str, scope: str, is_agent: bool
) -> None:
    if scope:
        await service.store.claims.set_concurrency_limits([ConcurrencyLimit(scope, LIMIT)])
    await start_workers(service, 2, slots=8, SOONG_POOLS="default,big", SOONG_TOOLS=TOOL)
    limited = await service.submit(
        plan(is_agent=is_agent, pool="big" if kind == "pool" else "default"), max_concurrent=0 if scope else LIMIT
    )

    await prove(service, limited)

    processes = {effect["pid"] for effect in read_effects(effects_file(service))}
    assert begun(service) == STEPS
    assert most_at_once(service) == LIMIT
    assert processes <= {worker.pid for worker in service.workers}
