"""Who could run what waits: a step, or a lane of them, among the live workers."""

from collections.abc import Iterable, Sequence

from soong.shared.engine.sessions.session import ProcessState, Worker
from soong.shared.engine.wire.capabilities import in_words


def is_able(worker: Worker, pool: str, needs: Iterable[str]) -> bool:
    """Say whether a worker may claim such steps."""
    return worker.state is ProcessState.LIVE and pool in worker.pools and set(needs) <= set(worker.capabilities)


def lacking(pool: str, needs: Sequence[str], workers: Sequence[Worker]) -> str:
    """Return what keeps every live worker from such steps, in words; nothing when one of them is able.

    What nobody has is named; where each has a part, all that one of them would need.
    """
    live = [worker for worker in workers if worker.state is ProcessState.LIVE]
    if any(is_able(worker, pool, needs) for worker in live):
        return ""
    if not live:
        return "no worker lives"
    serving = [worker for worker in live if pool in worker.pools]
    if not serving:
        return f"no capable worker: needs the pool {pool!r}"
    nobodys = [need for need in needs if not any(need in worker.capabilities for worker in serving)]
    return f"no capable worker: needs {', '.join(in_words(need) for need in nobodys or needs)}"
