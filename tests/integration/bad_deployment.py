"""A deployment in which a worker's process has turned bad; another worker waits, and a session's owner lives."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from soong.shared.engine.tasks.step import Claim
from soong.shared.permissions.request import PermissionRequest
from soong.shared.permissions.signing import prove
from soong.shared.storage.sql.engine.rows import request_body
from soong.shared.storage.sql.store import SqlStore, open_store
from soong.shared.storage.store import Store
from tests.contract.scene import completed
from tests.integration.bad_worker import BadWorker
from tests.integration.consent import Callback, ConsentHarness, open_bench
from tests.integration.roles import CREDENTIAL, RoleUrls, SplitStore, plain
from tests.model.builders import make_request, make_step, make_task, open_worker, take_turn

BAD = "known-to-the-bad-process-alone"
DENIED = {"refused": "InsufficientPrivilege"}
NOTHING = {"rows": 0}

REQUEST = "INSERT INTO permission_requests (id, run_id, session_id, tool_call_id, created_us, body)"
DECIDED_REQUEST = "INSERT INTO permission_requests (id, run_id, session_id, tool_call_id, state, body)"
CALL = (
    "INSERT INTO calls (run_id, tool_call_id, position, tool, effect_id, is_write, input_digest, inputs, facts,"
    " decision_id, status)"
)
NODE = "INSERT INTO nodes (run_id, number, parent, kind, payload, created_us)"
USE = "INSERT INTO consumptions (decision_id, run_id, tool_call_id, consumed_us)"
INSERT_REQUEST = f"{REQUEST} VALUES (%(id)s, %(run)s, %(session)s, %(call)s, 1, %(body)s)"


def columns_of(request: PermissionRequest) -> dict[str, str]:
    return {"call": request.tool_call_id, "body": request_body(request)}


@dataclass(slots=True)
class Deployment:
    """A session whose owner lives, a worker that asks, and a bad one that holds a step of its own."""

    bench: ConsentHarness
    urls: RoleUrls
    own_store: SqlStore
    bad: BadWorker
    victim: Claim
    victim_worker: str
    own: Claim
    own_worker: str
    finished: str
    """A run that has ended."""

    @property
    def names(self) -> dict[str, Any]:
        """What the bad process may read of everybody, as values for its statements."""
        return {
            "session": self.bench.session_id,
            "victim": self.victim.identity.run_id,
            "victim_step": self.victim.step_key,
            "victim_worker": self.victim_worker,
            "own": self.own.identity.run_id,
            "own_step": self.own.step_key,
            "own_worker": self.own_worker,
            "finished": self.finished,
        }

    async def try_(self, statement: str, **values: object) -> dict[str, Any]:
        return await self.bad.sql(statement, **{**self.names, **values})

    def own_request(self, call_id: str = "call_1", **changes: Any) -> PermissionRequest:
        """Return a question of the bad one's own run, proven."""
        request = replace(make_request(self.own, call_id), **changes)
        return replace(request, proof=prove(self.own.token, request))

    async def raise_own(self, request: PermissionRequest) -> dict[str, Any]:
        return await self.try_(INSERT_REQUEST, id=request.id, run=self.own.identity.run_id, **columns_of(request))


@asynccontextmanager
async def deployed(urls: RoleUrls, callback: Callback) -> AsyncIterator[Deployment]:
    callback.gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        good, bad = await open_store(urls.worker, credential=CREDENTIAL), await open_store(urls.worker, credential=BAD)
        store = SplitStore(good, await open_store(urls.orchestrator))
        stack.push_async_callback(store.close)
        stack.push_async_callback(bad.close)
        bench = await stack.enter_async_context(open_bench(callback, store=store.as_store()))
        ((ended, ended_worker), (victim, victim_worker)) = await bench.claim(2)
        await take_turn(good, ended_worker, [completed(ended)], claim=0, now_us=1)
        own_worker = await open_worker(bad)
        await bench.store.tasks.create_task(make_task(bench.session_id, make_step("mine")))
        own = await claim_one(bad, own_worker, bench)
        process = await BadWorker.start(plain(urls.worker), BAD)
        stack.push_async_callback(process.end)
        names = (victim, victim_worker, own, own_worker, ended.identity.run_id)
        yield Deployment(bench, urls, bad, process, *names)


async def claim_one(store: Store, worker_id: str, bench: ConsentHarness) -> Claim:
    advance = await take_turn(store, worker_id, now_us=bench.clock.now_us())
    return advance.claims[0]
