"""Whatever is done in whatever order, collecting takes nothing that open work can reach (OPS-10)."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace
from sqlalchemy import text

from soong.orchestrator.client.bootstrap import open_retention
from soong.orchestrator.operations.administration import verify
from soong.orchestrator.retention.collector import GarbageCollector, RetentionLimits
from soong.orchestrator.retention.files import StoredFolders
from soong.shared.core.errors import InvalidTransitionError, UnavailableError
from soong.shared.core.identity import RunIdentity, new_id
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.rerun import rerun
from soong.shared.engine.tasks.spec import STEP_ENDS, FailurePolicy
from soong.shared.engine.tasks.step import Claim
from soong.shared.sandbox.rooted import RootedFolder
from soong.shared.storage.artifacts import FolderArtifacts
from soong.shared.storage.sql.engine.tables import metadata
from soong.shared.storage.sql.store import open_store
from tests.contract.databases import empty_postgres, sqlite_copy
from tests.contract.scene import completed, failed, mark_recorded, open_scene
from tests.integration.sql_stores import connected
from tests.model.builders import make_request, make_retry, make_step, make_task

pytestmark = pytest.mark.timeout(300)

T = TypeVar("T")
ANY = st.integers(0, 1000)
KEYS = tuple(f"task_{number:032}" for number in range(2))
"""Ids that submissions come under again and again, as idempotency keys make them."""


class CollectingTakesNothingOpen(RuleBasedStateMachine):
    """One session, a worker, ended and open tasks; and collections, whole ones and killed ones."""

    new_url: ClassVar[Callable[[Path], str]]
    """Gives the URL of a database without rows; its files may lie in the folder."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.opened = TemporaryDirectory(prefix="soong-gc-")
        self.folder = Path(self.opened.name)
        self.url = type(self).new_url(self.folder)
        self.store = self.do(open_store(self.url))
        self.rows = self.do(open_retention(load_settings(agent_home=self.folder, database_url=self.url)))
        self.scene = self.do(open_scene(self.store))
        self.claims: list[Claim] = []
        self.begun: list[str] = []

    def teardown(self) -> None:
        try:
            self.collect()
            self.open_work_ends()
            assert self.do(verify(self.store.audit, self.store.keys)).holds
        finally:
            self.do(self.rows.close())
            self.do(self.store.close())
            self.runner.close()
            self.opened.cleanup()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    # -- work
    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 3), parent=st.none() | ANY)
    def submit(self, key: str, count: int, parent: int | None) -> None:
        """Submit a task, again under an id that there was, or as an agent that runs does."""
        steps = [make_step(f"s{at}", depends_on=[f"s{at - 1}"] if at else []) for at in range(count)]
        task = make_task(self.scene.own.session_id, *steps, id=key)
        if parent is not None and self.claims:
            agent = self.claims[parent % len(self.claims)].identity
            task = replace(task, root_run=replace(task.root_run, identity=_below(task.root_run.identity, agent)))
        try:
            self.do(self.store.tasks.create_task(task))
        except UnavailableError:
            self.collect()  # what is left of a former one goes first

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 3))
    def submit_and_end(self, key: str, count: int) -> None:
        """Submit a task, and carry it out to its recorded end while others go on."""
        self.submit(key, count, None)
        self.carry_out(key)

    @rule(parent=ANY)
    def plan_and_read_later(self, parent: int) -> None:
        """Let an agent that goes on plan a task, which ends."""
        if self.claims:
            key = new_id("task")
            self.submit(key, 1, parent)
            self.carry_out(key)

    def carry_out(self, key: str) -> None:
        while mine := [claim for claim in self.claims if claim.identity.task_id == key] or self.claimed(key):
            for claim in mine:
                self.claims.remove(claim)
                self.do(self.scene.complete(claim))
        self.settle(is_recorded=True)

    def claimed(self, key: str) -> list[Claim]:
        self.claim()
        return [claim for claim in self.claims if claim.identity.task_id == key]

    @rule()
    def claim(self) -> None:
        self.claims += self.do(self.scene.claim(2))

    @rule(which=ANY, is_good=st.booleans())
    def end(self, which: int, *, is_good: bool) -> None:
        if self.claims:
            claim = self.claims.pop(which % len(self.claims))
            self.do(self.scene.advance([completed(claim, "done") if is_good else failed(claim)]))

    @rule(which=ANY)
    def ask(self, which: int) -> None:
        if self.claims:
            claim = self.claims[which % len(self.claims)]
            self.do(self.scene.raised(make_request(claim, f"call_{which}")))

    @rule(is_recorded=st.booleans())
    def settle(self, *, is_recorded: bool) -> None:
        for task in self.do(self.store.tasks.list_tasks()):
            for step in self.do(self.store.tasks.steps(task.id)):
                if step.status == "failed":
                    policy = FailurePolicy.SKIP_DEPENDENTS
                    self.do(self.store.tasks.settle_failure(self.scene.own, step.key, policy, now_us=self.scene.now_us))
            self.do(self.store.tasks.finish_task(self.scene.own, task.id, now_us=self.scene.now_us))
            if is_recorded and self.do(self.store.tasks.task(task.id)).status.is_terminal:
                self.do(mark_recorded(self.store, task.id))

    @rule(which=ANY)
    def retry(self, which: int) -> None:
        tasks = [task for task in self.do(self.store.tasks.list_tasks()) if task.status.is_terminal]
        if not tasks:
            return
        task = tasks[which % len(tasks)]
        steps = self.do(self.store.tasks.steps(task.id))
        again = rerun(steps, steps[0].step_id)
        runs = [make_retry(self.do(self.store.runs.run(step.run_id))) for step in again.attempts]
        try:
            retried = self.store.tasks.retry_task(
                self.scene.own, task.id, runs, again=again.again, regrown=again.regrown, now_us=self.scene.now_us
            )
            self.do(retried)
        except InvalidTransitionError:
            return

    # -- collecting
    @rule(keep=st.sampled_from([0, 1]))
    def collect(self, keep: int = 0) -> None:
        """Collect all that has ended, by age or by size; what is open stays row for row."""
        before, needed = self.open_rows(), self.needed_by_agents()
        collector = GarbageCollector(
            self.rows,
            FolderArtifacts(RootedFolder(self.folder, "artifacts")),
            StoredFolders(RootedFolder(self.folder, "runs")),
            self.scene.clock,
        )
        self.do(collector.collect(RetentionLimits(self.scene.now_us + 1, keep_bytes=keep, grace_s=0.0)))
        self.same(before)
        assert needed <= self.needed_by_agents()

    @rule(rest=st.integers(0, 3))
    def collect_and_die(self, rest: int) -> None:
        """Begin to remove the oldest ended task, and be killed."""
        before = self.open_rows()
        for task in self.do(self.rows.ended_tasks(before_us=self.scene.now_us + 1, limit=1)):
            self.do(self.rows.remove_task(task.id, before_us=self.scene.now_us + 1))
            for _ in range(rest):
                self.do(self.rows.remove_rest(task.id, limit=1))
            self.begun.append(task.id)
        self.same(before)

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 3))
    def come_back(self, key: str, count: int) -> None:
        """Submit a task again as soon as the steps of the former one are gone, while its runs are not."""
        self.submit_and_end(key, count)
        before_us = self.scene.now_us + 1
        if self.do(self.rows.remove_task(key, before_us=before_us)):
            while self.do(self.rows.remove_rest(key, limit=1)).steps:
                pass
            self.begun.append(key)
        self.submit(key, count, None)

    @rule(which=ANY)
    def collect_on(self, which: int) -> None:
        """Let a collection that began to remove a task go on, whatever has become of that task meanwhile."""
        before = self.open_rows()
        if self.begun:
            self.do(self.rows.remove_rest(self.begun[which % len(self.begun)], limit=1))
        self.same(before)

    # -- what holds
    @invariant()
    def open_steps_have_what_they_need(self) -> None:
        for task in self.do(self.store.tasks.list_tasks()):
            if task.status.is_terminal:
                continue
            self.do(self.store.runs.run(task.root_run_id))
            for step in self.do(self.store.tasks.steps(task.id)):
                self.do(self.store.runs.run(step.run_id))
                for key in step.depends_on:
                    self.do(self.store.tasks.result(key))

    def same(self, before: dict[str, list[Any]]) -> None:
        """Fail with the rows that are gone or others than they were."""
        after = self.open_rows()
        changed = {name: [row for row in rows if row not in after[name]] for name, rows in before.items()}
        assert {name: rows for name, rows in changed.items() if rows} == {}

    def needed_by_agents(self) -> set[str]:
        """Return the tasks that an agent planned which goes on."""
        running = {claim.identity.run_id for claim in self.claims}
        roots = {
            task.id: self.do(self.store.runs.run(task.root_run_id)) for task in self.do(self.store.tasks.list_tasks())
        }
        return {task_id for task_id, root in roots.items() if root.identity.parent_run_id in running}

    def open_rows(self) -> dict[str, list[Any]]:
        """Return every row that names a task which goes on, or a run of one or of an agent in one."""
        tasks = [task for task in self.do(self.store.tasks.list_tasks()) if not task.status.is_terminal]
        with connected(self.url, is_writer=False) as connection:
            tables = {
                name: connection.execute(text(f"SELECT * FROM {name}")).all()  # our own tables
                for name in metadata.tables
                if name not in ("sessions", "workers")
            }
        roots = {task.root_run_id for task in tasks}
        now = roots | {step.run_id for task in tasks for step in self.do(self.store.tasks.steps(task.id))}
        steps = {step.key for task in tasks for step in self.do(self.store.tasks.steps(task.id))}
        names = now | steps | {task.root_run_id for task in tasks}
        return {
            name: sorted((row for row in rows if any(one in repr(row) for one in names)), key=repr)
            for name, rows in tables.items()
        }

    def open_work_ends(self) -> None:
        """Let everything that is open go on to its end."""
        self.settle(is_recorded=True)
        self.claim()
        while self.claims:
            while self.claims:
                self.do(self.scene.complete(self.claims.pop()))
            self.settle(is_recorded=True)
            self.claim()
        for task in self.do(self.store.tasks.list_tasks()):
            statuses = {step.status for step in self.do(self.store.tasks.steps(task.id))}
            assert statuses <= STEP_ENDS, (task.id, statuses)


def _below(root: RunIdentity, agent: RunIdentity) -> RunIdentity:
    return replace(root, parent_run_id=agent.run_id, parent_agent_id=agent.agent_id)


@pytest.mark.spec("OPS-10.c", "OPS-10.d")
def test_no_order_of_work_and_collections_takes_what_open_work_can_reach(sqlite_template: Path) -> None:
    _run(partial(sqlite_copy, sqlite_template), stories=10)


@pytest.mark.spec("OPS-10.c", "OPS-10.d")
def test_no_order_takes_it_on_postgresql_either(migrated_postgres_url: str) -> None:
    def emptied(_: Path) -> str:
        empty_postgres(migrated_postgres_url)
        return migrated_postgres_url

    _run(emptied, stories=5)


def _run(new_url: Callable[[Path], str], stories: int) -> None:
    run_state_machine_as_test(
        type("Story", (CollectingTakesNothingOpen,), {"new_url": staticmethod(new_url)}),
        settings=settings(
            max_examples=stories,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),  # ids are drawn anew each time: there is no shorter story to look for
        ),
    )
