"""What listens to a run's answers closes what it opened before it ends."""

import asyncio
from collections.abc import Sequence

import pytest

from soong.orchestrator.operations.feeds import SubscriptionPool
from soong.orchestrator.operations.run_feed import pass_on_answers
from soong.shared.engine.wire.notifier import AnswerDelta, Subscription
from tests.model.memory.notifier import MemoryBus
from tests.waiting import until

PAYLOAD = AnswerDelta(1, 0, "hello").payload()


class OneAnswer:
    """Hears one piece of an answer, and says whether it was closed."""

    is_closed = False

    async def wait(self, timeout_s: float) -> Sequence[str]:
        await asyncio.sleep(0)
        return (PAYLOAD,)

    async def close(self) -> None:
        self.is_closed = True


class AnsweringBus(MemoryBus):
    """Gives everybody who listens to answers the same subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.subscription = OneAnswer()

    async def subscribe_answer(self, run_id: str) -> Subscription:
        return self.subscription


@pytest.mark.spec("EXE-09")
async def test_a_listener_whose_reader_fails_closes_its_subscription() -> None:
    bus = AnsweringBus()

    def take(_delta: AnswerDelta) -> None:
        raise ValueError("not today")

    await pass_on_answers(SubscriptionPool(bus).answer("run_1"), "run_1", take)

    await until(lambda: bus.subscription.is_closed)
