"""Consent while owner, worker or Redis is killed at each border of a question's way (issue: consent, must hold 3)."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from soong import Soong
from soong.shared.core.errors import AlreadyDecidedError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.sessions.session import ApprovalMode
from soong.shared.engine.tasks.spec import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Task
from soong.shared.permissions.request import Choice, PermissionDecision, PermissionRequest
from tests.model.builders import make_answer
from tests.scripted import call, error_of
from tests.scripted import calls as made
from tests.servers import RedisServer
from tests.system.auditor import audit, read_tables
from tests.system.deployment import Deployment
from tests.system.faults.append_tool import TOOL, noted
from tests.system.faults.borders import STRUCK
from tests.system.faults.servers import MortalRedis
from tests.warm import WarmProcess

pytestmark = pytest.mark.spec("PER-13", "DAG-07", "DAG-09")

TOOLS = "tests.system.faults.append_tool"
SETTINGS = {"tools": (TOOLS,), "permission_timeout_s": 60.0, "responder_wait_s": 60.0}
UNKNOWN = "unknown_after_crash"


@dataclass(frozen=True, slots=True)
class Story:
    """What became of one step that makes one call: how often somebody was asked and the tool ran, and what is told."""

    asked: int = 1
    ran: int = 1
    error: str = ""

    @property
    def unknown(self) -> int:
        return int(self.error == UNKNOWN)


ONCE = Story()
AGAIN = Story(asked=2)
NEVER_RAN = Story(ran=0, error=UNKNOWN)
MAY_HAVE_RUN = Story(error=UNKNOWN)

OWNER_BORDERS: Mapping[str, Story] = {
    "open_questions:return": ONCE,  # it has heard of the question and seen it
    "callback:asked": AGAIN,
    "answer:before": AGAIN,
    "answer:after": ONCE,
    "answers:return": ONCE,
    "decide:before": ONCE,  # the decision is signed
    "decide:after": ONCE,
    "hint:before": ONCE,
    "hint:after": ONCE,
}
"""Where an owner with a callback of its own dies, and what that costs."""

WORKER_BORDERS: Mapping[str, Story] = {
    "raise_request:before": ONCE,
    "raise_request:after": ONCE,
    "hint:before": ONCE,
    "hint:after": ONCE,
    "asked": ONCE,  # a person thinks about it
    "settled:return": ONCE,
    "start_call:before": ONCE,
    "start_call:after": NEVER_RAN,  # the decision is used
    "tool:before": NEVER_RAN,
    "tool:after": MAY_HAVE_RUN,
    "end_call:before": MAY_HAVE_RUN,
    "end_call:after": ONCE,
    "end:before": ONCE,
    "end:after": ONCE,
}
"""Where the worker that asks dies."""


def plan(*lines: str) -> JsonObject:
    """Return a plan whose step makes one call a line, and tells how the last one ended."""
    calls = [call(TOOL, line=line) for line in lines]
    step: Json = {"id": "write", "instructions": "x", "allowed_tools": [TOOL], **made(*calls)}
    return {"title": "write", "steps": [step]}


def appended(service: Deployment) -> Path:
    return service.home / "appended.jsonl"


def asked_file(service: Deployment) -> Path:
    return service.home / "asked.jsonl"


def environment(service: Deployment, *borders: str, **more: str) -> dict[str, str]:
    """Return what a worker or an owner is started with; it dies at the first of these borders."""
    known = {"SOONG_TOOLS": TOOLS, "APPENDED": str(appended(service)), "SOONG_PERMISSION_TIMEOUT_S": "60"}
    return {**known, **({"FAULT_BORDERS": ",".join(borders)} if borders else {}), **more}


async def start_worker(service: Deployment, *borders: str, slots: int = 1, **more: str) -> None:
    await service.start_workers(1, slots=slots, **environment(service, *borders, **more))


async def start_parking(service: Deployment, *borders: str, **more: str) -> None:
    """Start a worker whose waiting runs park soon."""
    await start_worker(service, *borders, slots=1, SOONG_PARK_AFTER_S="0.2", **more)


async def start_owner(service: Deployment, *borders: str, choice: str = "allow_once", **more: str) -> None:
    """Start an owner with a callback in its own process."""
    answers = {"FAULT_CALLBACK": str(asked_file(service)), "FAULT_CHOICE": choice}
    await service.start_owners(1, **environment(service, *borders, **answers, **more))


async def start_silent_owner(service: Deployment, *borders: str) -> None:
    """Start an owner that asks nobody itself: the answers come from elsewhere."""
    await service.start_owners(1, **environment(service, *borders))


async def died(process: WarmProcess) -> None:
    assert await asyncio.to_thread(process.wait, 30) == -signal.SIGKILL


async def story_of(service: Deployment, task: Task, asked: Callable[[str], int]) -> Story:
    """Return what became of a task's call, having checked that it is told the same everywhere."""
    ended = await service.finished(task, within_s=60)
    assert ended.status is TaskStatus.COMPLETED, service.logs()
    step = (await service.steps(task))["write"]
    result = await service.store.tasks.result(step.key)
    assert isinstance(result.output, dict)
    error = error_of(result.output)
    events = await service.store.runs.events(step.run_id)
    types = Counter(event.type for event in events)
    failed = [event.data for event in events if event.type == EventType.TOOL_FAILED]
    ran = [line for line in noted(appended(service)) if line["run"] == step.run_id]
    story = Story(asked(step.run_id), len(ran), error)
    assert [entry["tool"] for entry in result.unknown_effects] == [TOOL] * story.unknown
    assert len(failed) == story.unknown
    assert UNKNOWN in str(failed) or not failed
    assert types[EventType.PERMISSION_REQUESTED] == types[EventType.PERMISSION_DECIDED] == 1
    assert types[EventType.TOOL_STARTED] == 1
    return story


def check_rows(service: Deployment, calls: int) -> None:
    """The auditor finds nothing: logs have no gap, no question is open; and each decision was used, once."""
    report = audit(service.database_url, at_rest=True)
    tables = read_tables(service.database_url)
    assert report.broken == []
    assert len(tables.consumptions) == calls
    assert Counter(row["state"] for row in tables.requests) == {"decided": calls}


def askers(service: Deployment, run_id: str = "") -> list[int]:
    """Return which processes asked their callback about a run, or about any, in order."""
    return [int(str(line["pid"])) for line in noted(asked_file(service)) if run_id in str(line["run"])]


def in_owners(service: Deployment) -> Callable[[str], int]:
    return lambda run_id: len(askers(service, run_id))


def nobody(_run_id: str) -> int:
    return 0


@pytest.fixture
def bare(request: pytest.FixtureRequest, redis_live: RedisServer, tmp_path: Path) -> Deployment:
    """A deployment that the test puts together from processes; the parameter is its store."""
    kind = getattr(request, "param", "sqlite")
    url = f"sqlite:///{tmp_path / 'soong.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    return Deployment(url, redis_live.socket_url, tmp_path, extra=SETTINGS, has_own_owner=False)


# -- the owner
OWNER_CHAIN = ("callback:asked", "answer:before", "answer:after", "decide:before", "decide:after")
"""Where one owner after another dies over the same question."""


async def test_owners_that_die_one_after_another_ask_again_only_while_nobody_has_answered(bare: Deployment) -> None:
    """One question outlives five owners: each that finds no answer asks once, and none that finds one does."""
    async with bare as service:
        await asyncio.gather(start_owner(service, OWNER_CHAIN[0]), start_worker(service))
        task = await service.submit(plan("a line"), project=service.home)
        for border in (*OWNER_CHAIN[1:], ""):
            await died(service.owners[-1])
            await start_owner(service, *filter(None, [border]))

        story = await story_of(service, task, in_owners(service))

        assert (story.ran, story.error) == (1, "")
        assert askers(service) == [owner.pid for owner in service.owners[:3]]
        check_rows(service, 1)


@pytest.mark.chaos
@pytest.mark.parametrize("bare", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("border", OWNER_BORDERS)
async def test_an_owner_that_dies_costs_at_most_one_additional_question(bare: Deployment, border: str) -> None:
    async with bare as service:
        await asyncio.gather(start_owner(service, border), start_worker(service))
        task = await service.submit(plan("a line"), project=service.home)
        await died(service.owners[0])
        await start_owner(service)

        assert await story_of(service, task, in_owners(service)) == OWNER_BORDERS[border]
        check_rows(service, 1)


@pytest.mark.parametrize(
    ("choice", "asked", "ran", "error"),
    [
        pytest.param(Choice.ALLOW_ONCE, 2, 2, "", marks=pytest.mark.chaos),  # as the owners above
        (Choice.ALLOW_FOR_SESSION, 1, 2, ""),  # its grant is the successor's: it turned the answer into a decision
        (Choice.DENY, 2, 0, "permission_denied"),
    ],
)
async def test_every_answer_outlives_the_owner_that_got_it(
    bare: Deployment, choice: Choice, asked: int, ran: int, error: str
) -> None:
    """All three decisions resume in the run that asked (google/adk-python#3649, langchain-ai/deepagents#554)."""
    async with bare as service:
        await asyncio.gather(start_owner(service, "answer:after", choice=str(choice)), start_worker(service))
        task = await service.submit(plan("one", "two"), project=service.home)
        await died(service.owners[0])
        await start_owner(service, choice=str(choice))
        ended = await service.finished(task, within_s=60)

        step = (await service.steps(task))["write"]
        lines = noted(appended(service))
        assert ended.status is TaskStatus.COMPLETED
        assert error_of((await service.store.tasks.result(step.key)).output) == error
        assert askers(service, step.run_id) == [owner.pid for owner in service.owners][:asked]
        assert {(line["run"], line["pid"]) for line in lines} <= {(step.run_id, service.workers[0].pid)}
        assert [line["line"] for line in lines] == ["one", "two"][:ran]
        assert audit(service.database_url, at_rest=True).broken == []


@pytest.mark.spec("CARD-3")
async def test_a_callback_in_a_client_is_asked_once_however_many_owners_die(bare: Deployment) -> None:
    """It outlives them: what it is being asked it goes on being asked, and what it said stands."""
    asked: list[str] = []

    async def callback(request: PermissionRequest) -> PermissionDecision:
        asked.append(request.id)
        if len(service.owners) == 1:
            await died(service.owners[0])
        return PermissionDecision(Choice.ALLOW_ONCE)

    async with bare as service:
        await asyncio.gather(start_silent_owner(service, "open_questions:return"), start_worker(service))
        home = service.settings.home
        async with Soong.connect(service.database_url, service.redis_url, agent_home=home, tools=(TOOLS,)) as soong:
            running = asyncio.create_task(soong.run(plan("a line"), permission_callback=callback, project=service.home))
            await died(service.owners[0])
            await start_silent_owner(service, "decide:before")
            await died(service.owners[1])
            await start_silent_owner(service)
            async with asyncio.timeout(60):
                outcome = await running

        (task,) = await service.store.tasks.list_tasks()
        assert outcome.status is TaskStatus.COMPLETED
        assert await story_of(service, task, lambda _run_id: len(asked)) == ONCE
        check_rows(service, 1)


# -- the worker
@dataclass(slots=True)
class Person:
    """The owner's callback in the test's own process; kills the worker whose border is to be asked."""

    service: Deployment
    borders: Mapping[str, str]
    """The border of each worker, by its id."""
    asked: Counter[str] = field(default_factory=Counter)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        run_id = request.identity.run_id
        self.asked[run_id] += 1
        if await self.border_of(run_id) == "asked":
            self.service.workers[list(self.borders.values()).index("asked")].kill()
        return PermissionDecision(Choice.ALLOW_ONCE)

    async def border_of(self, run_id: str) -> str:
        """Return the border at which the first worker of a run dies."""
        events = await self.service.store.runs.events(run_id)
        return self.borders[next(str(event.data["worker"]) for event in events if event.type == EventType.STEP_CLAIMED)]


ASKING = [name for name in WORKER_BORDERS if name.partition(":")[0] in {"raise_request", "hint", "asked", "settled"}]
ACTING = [name for name in WORKER_BORDERS if name not in ASKING]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.chaos)])
@pytest.mark.parametrize("borders", [pytest.param(ASKING, marks=pytest.mark.chaos), ACTING], ids=["asking", "acting"])
async def test_workers_that_die_at_every_border_ask_once_and_repeat_no_write(
    request: pytest.FixtureRequest, redis_live: RedisServer, tmp_path: Path, borders: Sequence[str], kind: str
) -> None:
    """As many workers as borders take a task each and die there; one more goes on with all of it."""
    url = f"sqlite:///{tmp_path / 'soong.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    # Nobody may take up what the first to die leaves before the last has claimed.
    settings = {**SETTINGS, "lease_s": 15.0}
    async with Deployment(url, redis_live.socket_url, tmp_path, extra=settings) as service:
        await asyncio.gather(*(start_worker(service, border) for border in borders))
        ids = {worker.pid: worker.id for worker in await service.store.sessions.workers()}
        named = zip(service.workers, borders, strict=True)
        person = Person(service, {ids[process.pid]: border for process, border in named})
        tasks = [await service.submit(plan("a line"), project=tmp_path, callback=person) for _ in borders]
        for process in list(service.workers):
            await died(process)
        await start_worker(service, slots=len(borders))

        stories = {}
        for task in tasks:
            story = await story_of(service, task, lambda run_id: person.asked[run_id])
            stories[await person.border_of((await service.steps(task))["write"].run_id)] = story
        assert stories == {border: WORKER_BORDERS[border] for border in borders}
        check_rows(service, len(borders))


# -- Redis
AOF = ("--appendonly", "yes", "--appendfsync", "always")
IN_OWNER = ("callback:asked", "answer:after", "decide:before", "decide:after", "hint:before", "hint:after")
IN_WORKER = (
    *("raise_request:after", "hint:before", "hint:after", "settled:return", "start_call:before", "start_call:after"),
    *("tool:after", "end_call:after", "end:before"),
)


def struck(service: Deployment, name: str) -> set[str]:
    """Return the borders at which a process stood still."""
    lines = (service.home / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    return {line.removeprefix(STRUCK) for line in lines if line.startswith(STRUCK)}


@pytest.mark.parametrize(
    "redis",
    [pytest.param(AOF, id="with its log", marks=pytest.mark.chaos), pytest.param((), id="empty")],
    indirect=True,
)
async def test_redis_that_dies_at_every_border_costs_neither_a_question_nor_a_call(
    redis: MortalRedis, tmp_path: Path
) -> None:
    """Owner and worker stand still at one border after another, while Redis is killed and comes back."""
    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with Deployment(url, redis.url, tmp_path, extra=SETTINGS, has_own_owner=False) as service:
        await asyncio.gather(
            start_owner(service, *IN_OWNER, FAULT_STRIKE="stop"), start_worker(service, *IN_WORKER, FAULT_STRIKE="stop")
        )
        task = await service.submit(plan("a line"), project=service.home)

        async def has_ended() -> bool:
            for process in (*service.owners, *service.workers):
                if psutil.Process(process.pid).status() == psutil.STATUS_STOPPED:
                    await asyncio.to_thread(redis.kill)
                    await asyncio.to_thread(redis.start)
                    process.send_signal(signal.SIGCONT)
            # A hint that Redis missed is sent again, perhaps when the rows have been looked at already.
            is_through = struck(service, "w1") == set(IN_WORKER)
            return is_through and (await service.store.tasks.task(task.id)).status.is_terminal

        await service.until(has_ended, within_s=60)

        # A worker that looked at the rows before the owner came to speak needs no hint of it.
        assert struck(service, "o0") | {"hint:before", "hint:after"} == set(IN_OWNER)
        assert await story_of(service, task, in_owners(service)) == ONCE
        check_rows(service, 1)


# -- parked, in an inbox
async def question_of(service: Deployment, task: Task, *, is_parked: bool = True) -> PermissionRequest:
    """Return the task's question once there is one, and once its run is parked."""

    async def is_there() -> bool:
        step = (await service.steps(task))["write"]
        return (
            bool(await service.store.consent.pending(task.session_id))
            and (step.status is StepStatus.BLOCKED) >= is_parked
        )

    await service.until(is_there, within_s=40)
    (request,) = await service.store.consent.pending(task.session_id)
    return request


async def ask_in_inbox(service: Deployment) -> Task:
    return await service.submit(plan("a line"), project=service.home, approval_mode=ApprovalMode.INBOX)


async def check_parked(service: Deployment, task: Task, *, times: int) -> None:
    """It has ended well, its run was parked so often, and nobody asked a callback."""
    assert await story_of(service, task, nobody) == Story(asked=0)
    run_id = (await service.steps(task))["write"].run_id
    types = Counter(event.type for event in await service.store.runs.events(run_id))
    assert types[EventType.RUN_PARKED] == times
    check_rows(service, 1)


@pytest.mark.parametrize(
    ("bare", "border"),
    [("sqlite", "decide:before"), pytest.param("postgres", "decide:after", marks=pytest.mark.chaos)],
    indirect=["bare"],
)
async def test_a_parked_run_goes_on_though_its_owner_died_between_answer_and_decision(
    bare: Deployment, border: str
) -> None:
    async with bare as service:
        await asyncio.gather(start_silent_owner(service, border), start_parking(service))
        task = await ask_in_inbox(service)
        await service.store.consent.answer(make_answer(await question_of(service, task)))
        await died(service.owners[0])
        await start_silent_owner(service)

        await check_parked(service, task, times=1)


async def test_an_answer_that_is_written_while_no_process_lives_is_what_happens(bare: Deployment) -> None:
    async with bare as service:
        await asyncio.gather(start_silent_owner(service), start_parking(service))
        task = await ask_in_inbox(service)
        question = await question_of(service, task)
        for process in (*service.owners, *service.workers):
            process.kill()
            await died(process)
        await service.store.consent.answer(make_answer(question))
        await asyncio.gather(start_silent_owner(service), start_parking(service))

        await check_parked(service, task, times=1)


@pytest.mark.chaos
@pytest.mark.parametrize("border", ["park:before", "park:after"])
async def test_a_worker_that_dies_while_it_parks_leaves_the_question_to_the_next(bare: Deployment, border: str) -> None:
    async with bare as service:
        await asyncio.gather(start_silent_owner(service), start_parking(service, border))
        task = await ask_in_inbox(service)
        await died(service.workers[0])
        asked = await question_of(service, task, is_parked=False)
        await start_parking(service)
        question = await question_of(service, task)
        await service.store.consent.answer(make_answer(question))

        assert question.id == asked.id
        await check_parked(service, task, times=1)


@pytest.mark.parametrize("bare", ["postgres"], indirect=True)  # a process that stands still may hold SQLite's one lock
@pytest.mark.parametrize("end", ["goes on", pytest.param("dies", marks=pytest.mark.chaos)])
async def test_an_answer_that_comes_while_the_run_parks_is_used_where_it_is(bare: Deployment, end: str) -> None:
    """The worker is about to park it when the decision is written: what it parks would wait for nothing."""
    async with bare as service:
        await asyncio.gather(start_silent_owner(service), start_parking(service, "park:call", FAULT_STRIKE="stop"))
        task = await ask_in_inbox(service)
        question = await question_of(service, task, is_parked=False)
        worker = service.workers[0]

        await service.until(lambda: psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)
        await service.store.consent.answer(make_answer(question))

        async def is_decided() -> bool:
            return await service.store.consent.decision_of(question.id) is not None

        await service.until(is_decided)
        worker.send_signal(signal.SIGCONT if end == "goes on" else signal.SIGKILL)
        if end == "dies":
            await start_parking(service)

        await check_parked(service, task, times=0)


# -- nobody ever answers
@pytest.mark.spec("PER-15", "PER-05")
async def test_a_question_whose_worker_died_and_whose_task_is_cancelled_is_nobodys_any_more(
    redis_live: RedisServer, tmp_path: Path
) -> None:
    """Fault 24, and letta-ai/letta-code#2578: whoever comes back finds no stale question and learns so at once."""
    stopped = asyncio.Event()
    shown: list[PermissionRequest] = []

    async def silent(request: PermissionRequest) -> PermissionDecision:
        shown.append(request)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError("nobody sets it")

    url = f"sqlite:///{tmp_path / 'soong.db'}"
    async with Deployment(url, redis_live.socket_url, tmp_path, extra=SETTINGS) as service:
        await start_worker(service)
        task = await service.submit(plan("a line"), project=tmp_path, callback=silent)
        question = await question_of(service, task, is_parked=False)
        await service.until(lambda: bool(shown))
        service.workers[0].kill()
        await service.command(task, "cancel")
        ended = await service.finished(task)
        async with asyncio.timeout(20):
            await stopped.wait()

        with pytest.raises(AlreadyDecidedError) as late:
            await service.store.consent.answer(make_answer(question))
        assert ended.status is TaskStatus.CANCELLED
        assert late.value.state == "withdrawn"
        assert [request.id for request in shown] == [question.id]
        assert noted(appended(service)) == []
        assert audit(service.database_url, at_rest=True).broken == []
