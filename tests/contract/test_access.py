"""API tokens as rows."""

import pytest

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.permissions.access.token import Right, make_token
from soong.shared.storage.store import Store

NOW_US = 1_000_000


async def test_a_token_comes_back_as_it_was_made(store: Store, other_store: Store) -> None:
    token, _ = make_token("ada", [Right.RUN, Right.APPROVE], now_us=NOW_US, expires_us=NOW_US + 5)

    await store.access.add_token(token)

    assert await other_store.access.token(token.id) == token
    assert await other_store.access.token("tok_unknown") is None


async def test_tokens_are_listed_in_the_order_they_were_made(store: Store) -> None:
    made = [make_token(name, [Right.READ], now_us=NOW_US)[0] for name in ("ada", "bob", "eve")]
    for token in made:
        await store.access.add_token(token)

    assert list(await store.access.tokens()) == made


async def test_an_id_is_given_once(store: Store) -> None:
    token, _ = make_token("ada", [Right.READ], now_us=NOW_US)
    await store.access.add_token(token)
    thief, _ = make_token("eve", [Right.APPROVE], now_us=NOW_US)
    object.__setattr__(thief, "id", token.id)

    with pytest.raises(ConflictError):
        await store.access.add_token(thief)

    assert await store.access.token(token.id) == token


async def test_a_token_is_revoked_once_and_for_good(store: Store, other_store: Store) -> None:
    token, _ = make_token("ada", [Right.READ], now_us=NOW_US)
    await store.access.add_token(token)

    assert await store.access.revoke_token(token.id, now_us=NOW_US + 1)
    assert not await other_store.access.revoke_token(token.id, now_us=NOW_US + 2)

    stands = await other_store.access.token(token.id)
    assert stands is not None
    assert stands.revoked_us == NOW_US + 1
    assert stands.problem(NOW_US + 9) == "revoked"


async def test_an_unknown_token_cannot_be_revoked(store: Store) -> None:
    with pytest.raises(NotFoundError, match="token"):
        await store.access.revoke_token("tok_unknown", now_us=NOW_US)
