"""What an owner does about what it hears of questions, and when it looks at their rows."""

import pytest

from soong.orchestrator.approvals.question_notices import LOOK_AFTER_S, POLL_EVERY_S, QuestionNotices


@pytest.fixture
async def notices() -> QuestionNotices:
    """As they are just after a look."""
    notices = QuestionNotices()
    notices.begin_look()
    return notices


async def test_the_first_notification_of_a_question_is_a_look_and_the_next_tells_of_its_answer(
    notices: QuestionNotices,
) -> None:
    notices.hear("req_1", can_wait=False)
    assert notices.is_due
    assert not notices.take_answered()

    notices.hear("req_1", can_wait=False)
    assert notices.take_answered() == ["req_1"]


async def test_a_look_that_can_wait_is_off_when_the_question_is_closed_before(notices: QuestionNotices) -> None:
    notices.hear("req_1", can_wait=True)
    assert not notices.is_due
    assert notices.pause_s <= LOOK_AFTER_S

    notices.close("req_1")

    assert not notices.is_waiting
    assert LOOK_AFTER_S < notices.pause_s <= POLL_EVERY_S


async def test_a_look_that_waits_for_two_questions_stays_when_one_is_closed(notices: QuestionNotices) -> None:
    notices.hear("req_1", can_wait=True)
    notices.hear("req_2", can_wait=True)

    notices.close("req_1")

    assert notices.is_waiting


async def test_what_names_no_question_is_looked_at_at_once(notices: QuestionNotices) -> None:
    notices.hear("req_1", can_wait=True)

    notices.hear("", can_wait=True)

    assert notices.is_due


async def test_nothing_is_done_about_a_question_that_was_closed_here(notices: QuestionNotices) -> None:
    notices.close("req_1")

    assert not notices.hear("req_1", can_wait=True)
    assert not notices.is_waiting


async def test_a_question_that_a_look_does_not_find_is_forgotten(notices: QuestionNotices) -> None:
    notices.hear("req_1", can_wait=False)

    notices.forget(notices.begin_look())

    notices.hear("req_1", can_wait=False)
    assert not notices.take_answered()
