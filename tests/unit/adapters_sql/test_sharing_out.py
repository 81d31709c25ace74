"""Who gets the next steps: turns between sessions, priority and age within one, concurrency limits above all."""

import pytest

from soong.shared.storage.sql.claims.claiming import QueuePosition, ReadyGroup, share_out


def make_lane(
    key: str, session: str = "s", *, ready: int = 10, turn: int = 0, head: QueuePosition = (0, 0, 1), scope: str = ""
) -> ReadyGroup:
    return ReadyGroup(key, session, (scope,) if scope else (), ready, turn, [head])


@pytest.mark.spec("DIS-03")
def test_a_limit_ends_the_claims_of_its_lanes_only() -> None:
    lanes = [make_lane("limited", scope="model:m", head=(0, 0, 1)), make_lane("free", head=(0, 0, 2))]

    turns = share_out(lanes, 5, {"model:m": 2}, last_turn=0)

    assert sorted(turns.order) == ["free", "free", "free", "limited", "limited"]


def test_what_a_limit_holds_back_is_not_claimable_work_left_over() -> None:
    lane = make_lane("limited", scope="model:m")

    assert not share_out([lane], 5, {"model:m": 2}, last_turn=0).is_left
    assert share_out([make_lane("free", ready=3)], 2, {}, last_turn=0).is_left
    assert not share_out([make_lane("free", ready=2)], 2, {}, last_turn=0).is_left


@pytest.mark.spec("DIS-10")
def test_a_session_that_alone_has_work_and_had_the_last_turn_needs_no_other() -> None:
    lanes = [make_lane("a", "one", turn=9), make_lane("b", "one", turn=9)]

    turns = share_out(lanes, 3, {}, last_turn=9)

    assert len(turns.order) == 3
    assert turns.turn == {}


@pytest.mark.spec("DIS-10")
@pytest.mark.parametrize(
    ("lanes", "last_turn"),
    [
        pytest.param([make_lane("a", "one", turn=9), make_lane("b", "two", turn=9)], 9, id="another is as late"),
        pytest.param([make_lane("a", "one", turn=8)], 9, id="another had the last turn"),
        pytest.param([make_lane("a", "one", turn=0)], 0, id="nobody had a turn"),
    ],
)
def test_a_turn_is_remembered_while_it_changes_an_order(lanes: list[ReadyGroup], last_turn: int) -> None:
    assert share_out(lanes, 1, {}, last_turn).turn == {"one": last_turn + 1}
