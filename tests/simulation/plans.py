"""Random plans: chains, fans, diamonds and maps of scripted steps, with priorities, policies, retries, pools,
concurrency limits.
"""

from collections.abc import Sequence
from random import Random

from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.step import ConcurrencyLimit

POOLS = ("default", "gpu")
LABEL = "big"
DEFINITIONS = ("surveyor", "reviewer")
MODELS = ("sim:small", "sim:large")

_DOES = (
    *("ok",) * 12,
    *("flaky", "flaky", "raise", "poison", "stubborn", "self_cancel", "slow", "broken"),
    *("asks",) * 3,
)


def random_plan(random: Random, title: str) -> Plan:
    """Return a plan of 1 to 9 steps; half of them are of one plain shape, the others of any."""
    number = random.randint(1, 9)
    is_pulled = random.random() < 0.25
    shape = random.choice(("chain", "fan", "diamond", "any", "any", "any"))
    steps: list[dict[str, Json]] = []
    for index in range(number):
        parents = _parents(random, shape, index, number)
        kept = [parent for parent in parents if steps[parent].get("on_failure") != "keep"]
        is_map = index > 0 and random.random() < 0.2
        steps.append((_map if is_map else _step)(random, index, parents, kept, steps))
        if is_pulled and random.random() < 0.6:
            _pull(random, steps[-1])
    return plan_from_json({"title": title, "steps": steps}, title, PlanNames())


def quick_plan(random: Random, title: str) -> Plan:
    """Return a chain of 1 to 3 steps that write nothing and take no time; some of them fail."""
    steps: list[dict[str, Json]] = []
    for index in range(random.randint(1, 3)):
        step = _step(random, index, _parents(random, "chain", index, 3), (), steps)
        does = random.choice(("ok", "ok", "ok", "flaky", "poison"))
        script: dict[str, Json] = {"does": does, "first": 1, "writes": 0, "pause_s": 0.0, "items": 0, "asks": 1}
        steps.append({**step, "pool": POOLS[0], "inputs": {**script, "from_ids": [], "from": []}})
    return plan_from_json({"title": title, "steps": list(steps)}, title, PlanNames())


def _pull(random: Random, step: dict[str, Json]) -> None:
    """Leave a step, or the children of a map step, to whoever asks for it."""
    work = step["step"] if isinstance(step.get("step"), dict) else step
    assert isinstance(work, dict)
    for name in ("agent", "model", "timeout_s", "pool", "needs"):
        work.pop(name, None)
    inputs = work["inputs"]
    assert isinstance(inputs, dict)
    # Its own run writes nothing and asks nobody: whoever works on it has another log.
    does = "ok" if inputs["does"] == "asks" else inputs["does"]
    pulling: dict[str, Json] = {"is_unreported": random.random() < 0.2, "is_greedy": random.random() < 0.2}
    work["inputs"] = {**inputs, **pulling, "does": does, "writes": 0}
    work["claim"] = "pull"


def _parents(random: Random, shape: str, index: int, number: int) -> list[int]:
    if index == 0:
        return []
    match shape:
        case "chain":
            return [index - 1]
        case "fan":
            return [0]
        case "diamond":
            return list(range(1, index)) if index == number - 1 and index > 1 else [0]
        case _:
            return sorted(random.sample(range(index), random.randint(0, min(3, index))))


def _step(
    random: Random, index: int, parents: Sequence[int], kept: Sequence[int], before: Sequence[dict[str, Json]]
) -> dict[str, Json]:
    del before
    return {
        "id": f"s{index}",
        "depends_on": [f"s{parent}" for parent in parents],
        "on_failure": random.choice(("skip_dependents", "skip_dependents", "fail_task", "keep")),
        **_gate(random, parents),
        **_work(random),
        "inputs": {
            **_script(random),
            "from_ids": [f"s{parent}" for parent in kept],
            "from": [f"${{s{parent}.output}}" for parent in kept],
        },
    }


def _map(
    random: Random, index: int, parents: Sequence[int], kept: Sequence[int], before: Sequence[dict[str, Json]]
) -> dict[str, Json]:
    makers = [parent for parent in kept if before[parent].get("kind") != "map"]
    over: Json = list(range(random.randint(0, 4)))
    if makers and random.random() < 0.7:
        over = f"${{s{random.choice(makers)}.output.items}}"
    return {
        "id": f"s{index}",
        "kind": "map",
        "depends_on": [f"s{parent}" for parent in parents],
        "on_failure": random.choice(("skip_dependents", "fail_task", "keep")),
        **_gate(random, parents),
        "over": over,
        "on_item_failure": random.choice(("skip_dependents", "keep", "fail_task")),
        "step": {**_work(random), "inputs": {**_script(random), "item": "${item}", "from_ids": [], "from": []}},
    }


def _gate(random: Random, parents: Sequence[int]) -> dict[str, Json]:
    """Return a condition, a join, both or, most often, nothing."""
    gate: dict[str, Json] = {"join": random.choice(("all", "any", "done"))} if random.random() < 0.2 else {}
    if parents and random.random() < 0.2:
        status = random.choice(("completed", "completed", "failed", "skipped"))
        gate["when"] = f"${{s{random.choice(parents)}.status}} {random.choice(('==', '!='))} '{status}'"
    return gate


def _work(random: Random) -> dict[str, Json]:
    work: dict[str, Json] = {
        "instructions": "Do what the script says.",
        "agent": random.choice(DEFINITIONS),
        "model": random.choice(MODELS),
        "priority": random.choice((0, 0, 0, 5, -5)),
        "retries": random.randint(0, 2),
        "backoff_s": random.choice((0.5, 1.0, 5.0)),
        "pool": random.choice((POOLS[0], POOLS[0], POOLS[1])),
    }
    if random.random() < 0.1:
        work["needs"] = [LABEL]
    if random.random() < 0.1:
        work["timeout_s"] = 20.0
    return work


def _script(random: Random) -> dict[str, Json]:
    return {
        "does": random.choice(_DOES),
        "first": random.randint(1, 2),
        "writes": random.randint(0, 3),
        "pause_s": random.choice((0.0, 0.1, 0.1, 1.0, 1.0, 5.0, 12.0)),
        "items": random.randint(0, 4),
        "asks": random.randint(1, 2),
    }


def random_limits(random: Random, session_ids: Sequence[str]) -> list[ConcurrencyLimit]:
    """Return a few limits of every kind, or none."""
    scopes = [
        *(f"session:{session_id}" for session_id in session_ids),
        *(f"definition:{name}" for name in DEFINITIONS),
        *(f"model:{name}" for name in MODELS),
        *(f"pool:{name}" for name in POOLS),
    ]
    if random.random() < 0.4:
        return []
    return [ConcurrencyLimit(scope, random.randint(1, 3)) for scope in scopes if random.random() < 0.3]
