"""What listens to a run's answers closes what it opened before it ends."""

from collections.abc import Sequence

import pytest

from soong.orchestrator.client.tail import listen_to_answers
from soong.shared.engine.wire.events import AnswerDelta
from soong.shared.engine.wire.notifier import Subscription
from tests.model.memory.notifier import MemoryBus

PAYLOAD = AnswerDelta(1, 0, "hello").payload()


class OneAnswer:
    """Hears one piece of an answer, and says whether it was closed."""

    is_closed = False

    async def wait(self, timeout_s: float) -> Sequence[str]:
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

    await listen_to_answers(bus, "run_1", take)

    assert bus.subscription.is_closed
