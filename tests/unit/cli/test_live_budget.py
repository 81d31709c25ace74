import io
import time

import pytest
from rich.console import Console

from soong.orchestrator.cli.live import Live
from soong.shared.core.timing import utc_date
from soong.shared.engine.runs.budgets import DAY, Budget, Charge, session_scope
from tests.contract.scene import open_scene
from tests.model.memory import MemoryStore
from tests.unit.cli.views import view_of


async def drawn(budgets: dict[str, Budget], *charges: Charge) -> str:
    store = MemoryStore()
    scene = await open_scene(store)
    claim = await scene.start("look")
    for scope, budget in budgets.items():
        await store.budgets.set_budget(scope or session_scope(claim.identity.session_id), budget)
    today = utc_date(time.time_ns() // 1000)
    for number, charge in enumerate(charges, 1):
        await store.budgets.reserve(claim.identity.run_id, claim.fence, number, charge, day=today)
    output = io.StringIO()
    live = Live(Console(file=output, width=100, height=40, force_terminal=True, color_system="standard"))
    live.show(await view_of(store, claim.identity.task_id))
    live.console.print(live.drawn())
    live.close()
    return output.getvalue()


@pytest.mark.spec("DIS-11")
async def test_what_is_charged_is_shown_with_its_limits_where_there_are_any() -> None:
    assert "budget" not in await drawn({})

    picture = await drawn({"": Budget(200_000, 2_000_000)}, Charge(10_000, 31_200), Charge(2_345, 0))

    assert "budget  $0.0312 of $2, 12,345 of 200,000 tokens (6%)" in picture


@pytest.mark.spec("DIS-11")
@pytest.mark.parametrize(("tokens", "colour"), [(799, "\x1b[2m"), (800, "\x1b[33m"), (1_000, "\x1b[31m")])
async def test_a_budget_that_is_nearly_or_all_used_warns(tokens: int, colour: str) -> None:
    picture = await drawn({DAY: Budget(1_000, None)}, Charge(tokens, None))

    *_, line = (line for line in picture.splitlines() if "budget of the day" in line)
    assert f"{tokens:,} of 1,000 tokens" in line
    assert line.startswith(colour)
