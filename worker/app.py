"""The Celery side of the worker: one task that lends a pool thread to a slot, and the signals.

Celery keeps what it is best at: the process, the queues, events, Flower, horizontal scale. The task blocks its thread
while the slot works on the process's loop; hundreds of blocked threads cost a few MiB.
"""

import os
import signal
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from celery import Celery, signals
from celery.exceptions import InvalidTaskError
from celery.worker.strategy import default

from soong.shared.core import timing
from soong.shared.core.log import get_logger
from soong.shared.core.settings import Settings
from soong.shared.engine.wire.notifier import DISPATCH_TASK, queue_of
from soong.shared.storage.celery.app import make_celery
from soong.worker.lifetime import InheritedPipe, RecycleLimits
from soong.worker.process import LoopThread, WorkerProcess

log = get_logger(__name__)

PARENT_FD = "SOONG_PARENT_FD"

UNREADABLE = (ValueError, TypeError, LookupError, RecursionError)
"""The errors of the transport for queue content that no Celery has sent."""


def make_worker_celery(redis_url: str, settings: Settings, hold_slot: Callable[[], int]) -> Celery:
    """Build the consuming app with its one task."""
    app = make_celery(redis_url, pools=settings.pools)

    @app.task(name=DISPATCH_TASK, Strategy=staticmethod(receive_dispatches))
    def dispatch(_dispatch_id: str) -> int:
        return hold_slot()

    return app


def receive_dispatches(task: Any, app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Return how the consumer takes a message of our task: as Celery does, if it is one that we send.

    Celery trusts what it reads: a body of another form raises out of the consumer, which connects again, takes the
    same message again, and so on for ever; a time or a callback in it would be obeyed.
    """
    accept = default(task, app, consumer, **options)

    def receive(message: Any, body: Any, *given: Any, **named: Any) -> Any:
        if not is_dispatch(message.headers, message.payload):
            raise InvalidTaskError("not a message of ours")
        return accept(message, body, *given, **named)

    return receive


def is_dispatch(headers: Mapping[str, object], payload: object) -> bool:
    """Say whether a message is a plain dispatch: one id, to be done now, with nothing to follow."""
    match payload:
        case [[str()], {}, Mapping() as more] if not payload[1]:
            return not any(more.values()) and not any(headers.get(name) for name in ("eta", "expires"))
        case _:
            return False


class ParentPipe(InheritedPipe):
    """The pipe whose end means that the process that started us has ended."""

    def __init__(self) -> None:
        super().__init__(PARENT_FD)

    def watch(self, orphaned: Callable[[], None]) -> None:
        """Call ``orphaned`` when our starter has ended."""

        def wait() -> None:
            while os.read(self._descriptor, 64):
                pass
            orphaned()

        if self._descriptor >= 0:
            threading.Thread(target=wait, name="soong-parent", daemon=True).start()


def make_worker(app: Celery, settings: Settings, node_name: str) -> Any:
    """Return Celery's worker. A message on the queue that is none is dropped with its connection; it would end it."""
    worker = app.Worker(
        hostname=node_name,
        pool="threads",
        concurrency=settings.slots,
        queues=[queue_of(pool) for pool in settings.pools],
        without_gossip=True,
        without_mingle=True,
        task_events=False,
        quiet=True,
        loglevel=settings.log_level.upper(),
    )
    worker.consumer.connection_errors += UNREADABLE
    return worker


def run_celery(
    worker: Any,
    grace: timedelta,
    process: WorkerProcess,
    thread: LoopThread,
    *,
    recycle_limits: RecycleLimits,
    parent: ParentPipe,
    is_ready: threading.Event,
    report_ready: Callable[[], None],
) -> int:
    """Consume until stopped, then drain; return the exit code.

    Once messages are taken, ``is_ready`` is set and ``report_ready`` called.
    """

    def begin_drain(**_: object) -> None:
        if recycle_limits.on_stop_signal():
            thread.call(lambda: process.drain(grace))

    def orphaned() -> None:
        log.warning("parent_gone")
        if not is_ready.is_set():
            os._exit(1)  # it holds nothing, and Celery, which would answer a signal in order, is still starting
        thread.call(lambda: process.drain(timedelta(0)))
        threading.Timer(timing.GRACE_S, os._exit, (1,)).start()
        os.kill(os.getpid(), signal.SIGTERM)

    def begin_work(**_: object) -> None:
        is_ready.set()
        report_ready()

    signals.worker_ready.connect(begin_work, weak=False)
    signals.worker_shutting_down.connect(begin_drain, weak=False)
    parent.watch(orphaned)
    try:
        worker.start()
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else 1
    return worker.exitcode or 0
