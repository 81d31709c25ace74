"""What a worker has to be able to do: the stores' contract, with every worker's method under the worker's role."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from soong.shared.storage.sql.store import open_store
from soong.shared.storage.store import Store
from tests.contract import (
    test_additional_claims,
    test_asks,
    test_budgets,
    test_claiming,
    test_consent,
    test_failures,
    test_fences,
    test_leases,
    test_limits,
    test_logs,
    test_maps,
    test_parking,
    test_taint,
)
from tests.contract.conftest import OpenStore, other_store, scene, store
from tests.contract.databases import empty_postgres
from tests.integration.roles import CREDENTIAL, RoleUrls, SplitStore

__all__ = ["other_store", "scene", "store"]

SUITE = (
    *(test_limits, test_claiming, test_consent, test_failures, test_fences, test_leases, test_logs, test_maps),
    *(test_additional_claims, test_budgets, test_asks, test_parking, test_taint),
)
"""The parts of the contract in which workers act."""
OF_OWNERS = {
    "test_successor_takes_an_ask_up_and_the_former_owner_writes_no_more",
    "test_the_children_of_a_tainted_agent_are_tainted",
}
"""Here an owner writes in the log of a run, which these stores have the workers' role do."""

globals().update(
    {
        f"{name}_in_{module.__name__.rpartition('.')[2]}": test
        for module in SUITE
        for name, test in vars(module).items()
        if name.startswith("test_") and callable(test) and name not in OF_OWNERS
    }
)


@dataclass(slots=True)
class _Processes:
    """Stores that the tests of this module share, one after another: opening four connections a test takes longer."""

    urls: RoleUrls
    opened: list[SplitStore] = field(default_factory=list)
    given: int = 0

    async def next(self) -> Store:
        if self.given == len(self.opened):
            workers = await open_store(self.urls.worker, credential=CREDENTIAL)
            others = await open_store(self.urls.orchestrator)
            self.opened.append(SplitStore(workers, others))
        self.given += 1
        return self.opened[self.given - 1].as_store()

    async def close(self) -> None:
        for opened in self.opened:
            await opened.close()


@pytest.fixture(scope="module")
def processes(role_urls: RoleUrls) -> Iterator[_Processes]:
    processes = _Processes(role_urls)
    yield processes
    asyncio.run(processes.close())


@pytest.fixture
def open_another(processes: _Processes) -> OpenStore:
    """Open the deployment: the worker's methods as the worker, the others as the orchestrator."""
    empty_postgres(processes.urls.admin)
    processes.given = 0
    return processes.next
