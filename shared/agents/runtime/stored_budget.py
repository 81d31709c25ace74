"""A run's budgets in rows, under its fence (DIS-11)."""

from dataclasses import dataclass

from soong.shared.agents.charging import Reserved
from soong.shared.core.clock import Clock, utc_date
from soong.shared.engine.runs.budgets import BudgetStore, Charge


@dataclass(slots=True)
class StoredBudget:
    """Implements :class:`soong.shared.agents.charging.Spending`."""

    store: BudgetStore
    clock: Clock
    run_id: str
    fence: int
    _sent: int = 0

    async def reserve(self, charge: Charge) -> Reserved | None:
        self._sent += 1
        number = self._sent
        share = await self.store.reserve(self.run_id, self.fence, number, charge, day=utc_date(self.clock.now_us()))
        return None if share is None else Reserved(number, share)

    async def settle(self, reserved: Reserved, charge: Charge) -> None:
        await self.store.settle(self.run_id, self.fence, reserved.number, charge)
