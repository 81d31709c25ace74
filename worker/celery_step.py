"""Steps that are tasks of the user's own Celery app (CEL-01): sent to its broker, waited for in its result backend.

A step waits without a slot and without a thread: the results of an app's waiting steps are read together. The id of a
Celery task is that of its run, which is one attempt of its step. The send is recorded in the run once the broker has
the task, and a next life of the run waits for the recorded task. If its worker dies between the two, within
milliseconds, the task is sent again under the same id, unless the backend has a state of it.

A pause revokes the task. One that runs all the same has its result counted when the step continues. One that was
revoked is sent again, with a number behind the id.
"""

import asyncio
import re
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial, partialmethod
from typing import Any, Final, TypeVar, cast

from celery import Celery
from celery.backends.asynchronous import Drainer
from celery.backends.base import Backend, DisabledBackend
from celery.backends.redis import RedisBackend
from celery.backends.rpc import RPCBackend
from celery.states import FAILURE, PENDING, READY_STATES, REVOKED
from kombu.exceptions import EncodeError

from soong.shared.agents.runtime.call_log import StopSignal
from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import CallThreads, call_foreign, shown, words_of
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.log import get_logger
from soong.shared.core.log_lines import LineStream, current_lines
from soong.shared.core.settings import Settings
from soong.shared.core.step_work import work_here
from soong.shared.core.timing import Clock
from soong.shared.engine.runs.events import EventType, NewEvent, NewNode, NodeKind
from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.spec import BoundStep
from soong.shared.engine.tasks.step import Claim, StepEnd
from soong.shared.sandbox.threads import unbroken
from soong.shared.storage.store import Store
from soong.shared.tools.limits import TimeLimit
from soong.shared.toolsets.modules import import_own, look_in
from soong.worker.call_outcome import stored
from soong.worker.heartbeat import Incarnation
from soong.worker.parking import LentSlots

log = get_logger(__name__)

T = TypeVar("T")
_THREADS: Final = CallThreads("soong-celery", 4)
"""Celery blocks. The number bounds the connections too: each thread has its own."""


class CeleryTaskError(Exception):
    """The Celery task could not be sent or waited for; ``end`` is that of its step."""

    def __init__(self, end: StepEnd) -> None:
        self.end = end
        super().__init__(end.error)


def celery_app(name: str, settings: Settings) -> Any:
    """Return the app ``module:attribute``. Raises: InvalidConfigError, with what to do."""
    if not name:
        raise InvalidConfigError("the step names no Celery app; write `app: module:attribute`, or set SOONG_CELERY_APP")
    module, _, attribute = name.partition(":")
    if module not in settings.functions:  # whoever writes plans does not choose what a worker imports
        hint = f"add {module!r} to `modules` of the plan's file, or to SOONG_FUNCTIONS"
        raise InvalidConfigError(f"this worker does not import the module of the Celery app {name!r}; {hint}")
    found: Any = import_own(module, "SOONG_FUNCTIONS", settings.import_folders)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Celery):
        raise InvalidConfigError(f"{name!r} is {shown(found, 80)}; expected a Celery app, such as `shop.celery:app`")
    return found


def _ready_app(claim: Claim, settings: Settings) -> Any:
    """Return the app of a step, of which it is known that it takes the task and keeps its result."""
    name = claim.spec.app or settings.celery_app
    app, call = celery_app(name, settings), claim.spec.call
    if app.conf.task_always_eager:
        raise InvalidConfigError(f"the Celery app {name!r} has task_always_eager, so it sends nothing; remove that")
    if isinstance(app.backend, DisabledBackend | RPCBackend):  # a client of rpc:// reads its own tasks' results only
        hint = "expected one that every worker can read; set result_backend of the app, such as redis://HOST/1"
        raise InvalidConfigError(f"the Celery app {name!r} has the result backend {app.conf.result_backend!r}, {hint}")
    if call not in app.tasks:
        look_in(settings.import_folders, (*app.conf.include, *app.conf.imports))
        app.loader.import_default_modules()
    if call in app.tasks and app.tasks[call].ignore_result:
        raise InvalidConfigError(f"the Celery task {call!r} has ignore_result; remove that, the step waits for it")
    return app


def in_celery(call: Callable[[], T]) -> "asyncio.Future[T]":
    return _THREADS.submit(asyncio.get_running_loop(), lambda: call_foreign(call))


def end_waits_with_steps() -> None:
    """Let a function's wait for a Celery result end with its step: nothing else ends a thread."""
    for owner, name in ((Drainer, "wait_for"), (Backend, "get_task_meta")):  # what each wait calls again and again
        setattr(owner, name, partialmethod(_unless_given_up, getattr(owner, name)))


def _unless_given_up(waiting: Any, look: Callable[..., T], *args: Any, **named: Any) -> T:
    if (work := work_here()) is not None and work.is_given_up:
        raise asyncio.CancelledError("the step of this function has ended")
    return look(waiting, *args, **named)


@dataclass(slots=True)
class CeleryResults:
    """Reads what the backend of one app has of tasks; what is asked for during a read is read together after it."""

    app: Any
    _asked: "dict[str, asyncio.Future[Any]]" = field(default_factory=dict)
    _reading: "asyncio.Task[None] | None" = None
    _queues: "asyncio.Future[frozenset[str]] | None" = None

    async def queues(self) -> frozenset[str]:
        """Return the queues from which Celery workers take now, as far as these answer within a second."""

        def taken() -> frozenset[str]:
            found = self.app.control.inspect().active_queues() or {}
            return frozenset(queue["name"] for queues in found.values() for queue in queues)

        if self._queues is None or self._queues.done():
            self._queues = in_celery(taken)
        return await asyncio.shield(self._queues)

    async def read(self, task_id: str) -> JsonObject:
        """Return ``status``, ``result`` and ``traceback`` of a task; PENDING is also the status of an unknown one.

        Raises: what the backend raises.
        """
        loop = asyncio.get_running_loop()
        self._asked[task_id] = future = loop.create_future()
        if self._reading is None:  # in a context of its own: it is work of no single step
            self._reading = loop.create_task(self._read_all(), context=Context())
        return cast("JsonObject", await future)

    async def _read_all(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                try:
                    found = await in_celery(partial(self._metas, list(asked)))
                except Exception as error:  # noqa: BLE001  # raised where each is awaited
                    found = dict.fromkeys(asked, error)
                for task_id, future in asked.items():
                    meta = found[task_id]
                    if not future.done():
                        future.set_exception(meta) if isinstance(meta, Exception) else future.set_result(meta)
        finally:
            self._reading = None

    def _metas(self, task_ids: list[str]) -> dict[str, Any]:
        backend = self.app.backend
        if not isinstance(backend, RedisBackend):
            return {task_id: backend.get_task_meta(task_id, cache=False) for task_id in task_ids}
        values = backend.mget([backend.get_key_for_task(task_id) for task_id in task_ids])
        return dict(zip(task_ids, map(self._meta, values), strict=True))

    def _meta(self, value: Any) -> Any:
        """Return what one value says, or an error: what one task left must not fail the others."""
        try:
            return self.app.backend.decode_result(value) if value else {"status": PENDING}
        except Exception as error:  # noqa: BLE001  # a serializer of the user's
            return error


@dataclass(slots=True)
class CeleryStepRunner:
    """Runs the celery steps of one worker process."""

    store: Store
    worker: Incarnation
    clock: Clock
    settings: Settings
    lent: LentSlots
    _readers: dict[int, CeleryResults] = field(default_factory=dict)

    async def run(self, claim: Claim, bound: BoundStep, limit: TimeLimit, interruption: StopSignal) -> StepEnd:
        """Send the Celery task of a claimed step, or take up the one that was sent, and wait for its end."""
        del limit
        try:
            app = await in_celery(partial(_ready_app, claim, self.settings))
        except InvalidConfigError as error:
            return claim.failed("invalid_input", str(error))
        task = CeleryTask(self, app, self._readers.setdefault(id(app), CeleryResults(app)), claim, bound)
        try:
            return ended(claim, app, await task.result())
        except CeleryTaskError as error:
            return error.end
        except asyncio.CancelledError:
            if task.is_begun and (interruption.stop not in ("drop", "release") or interruption.is_paused):
                await unbroken(task.revoke(is_paused=interruption.is_paused))
            raise


@dataclass(slots=True)
class CeleryTask:
    """The Celery task of one attempt of a step. ``number`` counts how often it was sent again after a pause."""

    runner: CeleryStepRunner
    app: Any
    reader: CeleryResults
    claim: Claim
    bound: BoundStep
    number: int = 0
    is_begun: bool = False
    """The broker may have it."""

    @property
    def id(self) -> str:
        return self.claim.identity.run_id + (f".{self.number}" if self.number else "")

    async def result(self) -> JsonObject:
        """Return what the backend has of the task once it has ended.

        Raises: CeleryTaskError; LeaseLostError and UnavailableError of the run's log.
        """
        is_sent, is_revoked = await self._past()
        while True:
            if not is_sent:
                await unbroken(self._send())
            with self.runner.lent.without_slot(self.claim.identity.run_id):
                meta = await self._ended()
            if meta["status"] != REVOKED or not is_revoked:
                return meta
            self.number += 1
            is_sent = is_revoked = False

    async def revoke(self, *, is_paused: bool) -> None:
        """Ask all workers of the app not to begin the task; a pause is recorded for the next life of the run."""
        revoked = partial(self.app.control.revoke, self.id, terminate=self.claim.spec.terminate)
        try:
            async with asyncio.timeout(timing.COMMAND_LIMIT_S):
                await in_celery(revoked)
            if is_paused:
                await self._record(EventType.CELERY_REVOKED, "revoked")
        except Exception as error:  # noqa: BLE001  # the step stops all the same; the task may run to its end
            log.warning("celery_task_not_revoked", task=self.id, error=words_of(error))

    async def _past(self) -> tuple[bool, bool]:
        """Say whether the task was sent in a former life of the run, and whether a pause has revoked it since."""
        if not self.claim.is_resumed:
            return False, False
        nodes = await self.runner.store.runs.nodes(self.claim.identity.run_id)
        states = [node.payload.get("state") for node in nodes if node.kind is NodeKind.CELERY_TASK]
        if states:
            self.is_begun, self.number = True, max(0, states.count("sent") - 1)
            return True, states[-1] == "revoked"
        try:
            return (await self.reader.read(self.id))["status"] != PENDING, False
        except Exception as error:  # whatever a backend raises
            raise self._unread(error) from error

    async def _send(self) -> None:
        self.is_begun = True
        try:
            async with asyncio.timeout(timing.EXCHANGE_LIMIT_S):
                await in_celery(self._apply)
        except Exception as error:
            words, hint = words_of(error), "start it, or fix broker_url"
            end = self.claim.failed("execution_failed", f"the broker did not take it: {words}; {hint}", retryable=True)
            if isinstance(error, TypeError | EncodeError):
                end = self.claim.failed("invalid_input", f"{self.claim.spec.call} cannot be sent: {words}")
            raise CeleryTaskError(end) from error
        await self._record(EventType.CELERY_SENT, "sent")

    def _apply(self) -> None:
        spec, claim = self.claim.spec, self.claim
        names = {"effect_key": claim.step_key, "attempt": claim.attempt, "run": claim.identity.run_id}
        options: dict[str, Any] = {"task_id": self.id, "headers": {"soong": names}}
        if spec.queue:
            options["queue"] = spec.queue
        if spec.timeout_s is not None:  # what waits in the queue for longer does not begin any more
            options["expires"] = spec.timeout_s
        self.app.backend.on_task_call = lambda *_: None  # of this thread; it would subscribe to the result
        known = self.app.tasks
        send = known[spec.call].apply_async if spec.call in known else partial(self.app.send_task, spec.call)
        send(list(self.bound.args), dict(self.bound.inputs), **options)

    @property
    def queue(self) -> str:
        """The queue that it is sent to: that of the step, of the task, or of the app's routes."""
        call, known = self.claim.spec.call, self.app.tasks
        named = self.claim.spec.queue or getattr(known.get(call), "queue", None)
        options = {"queue": named} if named else {}
        route = self.app.amqp.router.route(options, call, self.bound.args, dict(self.bound.inputs))
        return str(route["queue"].name if "queue" in route else route.get("routing_key", ""))

    async def _record(self, type_: EventType, state: str) -> None:
        data: JsonObject = {"task_id": self.id, "task": self.claim.spec.call, "queue": self.queue}
        await self.runner.store.runs.append(
            self.claim.identity.run_id,
            self.claim.fence,
            nodes=[NewNode(NodeKind.CELERY_TASK, {"v": 1, "state": state, **data})],
            events=[NewEvent(type_, data)],
            now_us=self.runner.clock.now_us(),
        )

    async def _report(self, waited_s: float) -> float:
        """Write into the step's row where the task is; return after how many seconds to look again."""
        runner, now_us = self.runner, self.runner.clock.now_us()
        is_served = self.queue in await self.reader.queues()
        words = f"sent to queue {self.queue!r}"
        if not is_served:  # the first words count: the live view has room for 60 characters
            words = f"not taken from queue {self.queue!r} for {waited_s:.0f} s: is its Celery worker running?"
        await runner.store.claims.report_progress(runner.worker.worker_id, self.claim.lease, words, now_us=now_us)
        return timing.LONGEST_S if is_served else timing.SILENCE_S

    async def _ended(self) -> JsonObject:
        loop = asyncio.get_running_loop()
        begun_s = answered_s = loop.time()
        pause_s, look_s = timing.FIRST_LOOK_S, begun_s + timing.GRACE_S
        while True:
            try:
                async with asyncio.timeout(timing.EXCHANGE_LIMIT_S):
                    meta = await self.reader.read(self.id)
                answered_s = loop.time()
                if meta["status"] in READY_STATES:
                    return meta
                if loop.time() >= look_s:
                    look_s = loop.time() + await self._report(loop.time() - begun_s)
            except Exception as error:  # whatever a backend raises; it may be back soon
                log.warning("celery_backend_away", task=self.id, error=words_of(error))
                if loop.time() - answered_s > timing.PATIENCE_S:
                    raise self._unread(error) from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, timing.POLL_ROWS_S)

    def _unread(self, error: Exception) -> CeleryTaskError:
        words = f"the result of the Celery task cannot be read, and it may still run: {words_of(error)}"
        hint = "start the result backend, or fix result_backend of the app"
        return CeleryTaskError(self.claim.failed("execution_failed", f"{words}; {hint}", retryable=True))


def ended(claim: Claim, app: Any, meta: JsonObject) -> StepEnd:
    """Return the end of a step from what the backend has of its Celery task."""
    result: Any = meta.get("result")
    if meta["status"] == FAILURE:
        return _failed(claim, app, result, str(meta.get("traceback") or ""))
    if meta["status"] == REVOKED:
        if "expired" in str(result):
            return claim.failed("time_limit", "the Celery task waited too long in its queue", retryable=True)
        return claim.failed("execution_failed", "somebody else revoked the Celery task; `soong tasks retry` sends it")
    output, failure = stored(result, f" (from the Celery task {claim.spec.call})")
    return claim.completed(output) if failure is None else claim.failed(failure.type, failure.message)


def _failed(claim: Claim, app: Any, error: Any, traceback: str) -> StepEnd:
    if type(error).__name__ == "NotRegistered":
        hint = Unknown(claim.spec.call, [name for name in app.tasks if not name.startswith("celery.")]).text()
        return claim.failed("invalid_input", f"the Celery worker has no task {claim.spec.call!r}; {hint}")
    words = words_of(error) if isinstance(error, BaseException) else shown(error)
    if places := re.findall(r'File "(.+)", line (\d+)', traceback):
        words += " (at {}:{})".format(*places[-1])
    if (lines := current_lines()) is not None:
        lines.add(LineStream.TRACEBACK, "error", traceback)
    return claim.failed("execution_failed", words, retryable=True)
