"""An owner hears of an answer while it is written; again only of one that is not decided soon, and nothing is lost."""

from dataclasses import replace

import pytest

from soong.orchestrator.approvals import answer_notices
from soong.orchestrator.approvals.answer_notices import AnswerNotices
from soong.shared.engine.wire.notifier import Subscription
from tests.model.memory.notifier import MemoryBus
from tests.unit.permissions.test_signing import make_request

REQUEST = make_request()


async def is_heard(subscription: Subscription) -> bool:
    return bool(await subscription.wait(0.2))


async def test_an_answer_that_nobody_heard_of_early_is_told_of_at_once() -> None:
    bus = MemoryBus()
    owner = await bus.subscribe_permissions()

    await AnswerNotices(bus, lambda _: False).written(REQUEST)

    assert await is_heard(owner)


@pytest.mark.spec("PER-13")
@pytest.mark.parametrize("is_open", [False, True])
async def test_an_answer_that_was_heard_of_early_is_told_of_again_while_its_question_is_open(is_open: bool) -> None:
    bus = MemoryBus()
    owner = await bus.subscribe_permissions()
    notices = AnswerNotices(bus, lambda request_id: is_open and request_id == REQUEST.id)

    notices.begun(REQUEST)
    first = await is_heard(owner)
    await notices.written(REQUEST)
    second = await is_heard(owner)

    assert (first, second) == (True, is_open)


@pytest.mark.spec("PER-13")
async def test_an_owner_that_takes_its_time_is_told_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_notices, "AGAIN_AFTER_S", 3600.0)
    monkeypatch.setattr(answer_notices, "USUAL_TIMES", 1e9)
    monkeypatch.setattr(answer_notices, "LATEST_AGAIN_S", 3600.0)
    bus, other = MemoryBus(), replace(REQUEST, id="req_other")
    owner = await bus.subscribe_permissions()
    notices = AnswerNotices(bus, lambda _: True)
    notices.begun(other)
    await notices.written(other)
    assert await is_heard(owner)
    notices.decided(other.id)
    monkeypatch.setattr(answer_notices, "AGAIN_AFTER_S", 0.0)

    notices.begun(REQUEST)
    await notices.written(REQUEST)
    first, second = await is_heard(owner), await is_heard(owner)

    assert (first, second) == (True, False)


@pytest.mark.spec("PER-13")
async def test_what_was_to_be_told_later_is_told_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_notices, "AGAIN_AFTER_S", 3600.0)
    bus = MemoryBus()
    owner = await bus.subscribe_permissions()
    notices = AnswerNotices(bus, lambda _: True)
    notices.begun(REQUEST)
    assert await is_heard(owner)
    await notices.written(REQUEST)

    await notices.close()

    assert await is_heard(owner)
