"""What a run of the monkey is told by: faults by kind, recoveries, refused writes."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles

from tests.chaos.monkey import Kill, Monkey
from tests.chaos.work import Work
from tests.system.auditor import Tables, read_tables
from tests.system.deployment import Deployment

ENDS = frozenset({"step_completed", "step_failed", "step_handed_back", "step_lease_expired"})


def figures(service: Deployment, monkey: Monkey, work: Work) -> dict[str, object]:
    """Gather what is worth keeping."""
    tables = read_tables(service.database_url)
    found = recoveries_s(tables, monkey.kills)
    logs = service.logs(all_of_it=True)
    return {
        "seed": monkey.seed,
        "tasks": len(tables.tasks),
        "steps": len(tables.steps),
        "submissions refused and repeated": work.refused,
        **{f"fault: {name}": number for name, number in sorted(monkey.faults.items())},
        "fault: commit applied, told as an error": logs.count("fault: lost_answer"),
        "audits meanwhile": monkey.looks,
        "steps held by killed workers": len(found),
        "recovery p50 s": round(median(found), 1) if found else None,
        "recovery p95 s": round(quantiles(found, n=20)[-1], 1) if len(found) > 1 else None,
        "recovery max s": round(max(found), 1) if found else None,
        "stale writers told so": logs.count('"event": "lease_lost"') + logs.count('"event": "incarnation_lost"'),
        "settled after the last fault s": round(work.settled_s, 1),
    }


def recoveries_s(tables: Tables, kills: Sequence[Kill]) -> list[float]:
    """Return for each step that a killed worker held how long it took until another one had claimed it."""
    killed_us = {worker["id"]: kill.time_us for kill in kills for worker in tables.workers if worker["pid"] == kill.pid}
    found = []
    for events in tables.events.values():
        lost_us: int | None = None
        holder = ""
        for event in events:
            if event["type"] == "step_claimed":
                if lost_us is not None:
                    found.append((event["time_us"] - lost_us) / 1e6)
                holder, lost_us = str(event["data"]["worker"]), None
            elif event["type"] == "step_lease_expired" and holder in killed_us:
                lost_us = killed_us[holder]
            elif event["type"] in ENDS:
                lost_us = None
    return found


def lines(found: Mapping[str, object]) -> Iterator[str]:
    yield from (f"{name:<42}{value!s:>12}" for name, value in found.items())
