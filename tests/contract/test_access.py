"""API tokens as rows."""

import pytest
from msgspec.structs import force_setattr

from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.permissions.access.token import Right, digest_of, make_token, read_token
from soong.shared.storage.store import Store

NOW_US = 1_000_000


def secret_of(text: str) -> str:
    read = read_token(text)
    assert read is not None
    return read[1]


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
    force_setattr(thief, "id", token.id)

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


@pytest.mark.spec("OPS-04.d")
async def test_a_code_becomes_a_token_once(store: Store, other_store: Store) -> None:
    token, text = make_token("ada", [Right.READ], now_us=NOW_US, sign_in_by_us=NOW_US + 60)
    code, mine, thiefs = digest_of(secret_of(text)), digest_of("mine"), digest_of("a thief's")
    await store.access.add_token(token)

    taken = await store.access.sign_in(token.id, code_digest=code, digest=mine, now_us=NOW_US + 1)
    again = await other_store.access.sign_in(token.id, code_digest=code, digest=thiefs, now_us=NOW_US + 2)

    assert token.problem(NOW_US) == "the code of a sign-in"
    assert again is None
    assert taken == await other_store.access.token(token.id)
    assert taken is not None
    assert taken.is_proved_by("mine")
    assert not taken.problem(NOW_US + 3)


@pytest.mark.parametrize("why", ["late", "wrong", "revoked", "a token"])
async def test_what_is_no_good_code_becomes_no_token(store: Store, why: str) -> None:
    token, text = make_token(
        "ada", [Right.READ], now_us=NOW_US, sign_in_by_us=None if why == "a token" else NOW_US + 60
    )
    code = digest_of("a guess" if why == "wrong" else secret_of(text))
    await store.access.add_token(token)
    if why == "revoked":
        await store.access.revoke_token(token.id, now_us=NOW_US)
    then_us = NOW_US + (60 if why == "late" else 1)

    taken = await store.access.sign_in(token.id, code_digest=code, digest=digest_of("mine"), now_us=then_us)

    assert taken is None
    stands = await store.access.token(token.id)
    assert stands is not None
    assert stands.digest == token.digest
