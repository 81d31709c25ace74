"""API tokens: what they carry, what proves them, what they look like."""

import pytest

from soong.shared.core.errors import UsageError
from soong.shared.permissions.access.token import ApiToken, Right, make_token, read_token
from soong.shared.sandbox.redact import MARK, Redactor

NOW_US = 1_000_000


def made(*, expires_us: int | None = None) -> tuple[ApiToken, str]:
    return make_token("ada", [Right.READ], now_us=NOW_US, expires_us=expires_us)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soong_tok_",
        "tok_0",
        "soong_tok_" + "0" * 32 + "_" + "a" * 42,
        "soong_tok_" + "0" * 32 + "_" + "a" * 44,
        "soong_tok_" + "G" * 32 + "_" + "a" * 43,
        "soong_tok_" + "0" * 32 + "_" + "é" * 43,
        " soong_tok_" + "0" * 32 + "_" + "a" * 43,
        "soong_tok_" + "0" * 32 + "_" + "a" * 43 + "\n",
    ],
    ids=["empty", "prefix", "id", "short", "long", "no id", "not ASCII", "space before", "line after"],
)
def test_what_has_not_the_form_is_no_token(text: str) -> None:
    assert read_token(text) is None


def test_a_token_is_good_until_it_expires_or_is_revoked() -> None:
    token, _ = made(expires_us=NOW_US + 10)

    assert token.problem(NOW_US + 9) == ""
    assert token.problem(NOW_US + 10) == "expired"
    revoked = ApiToken(token.id, "ada", token.rights, token.digest, NOW_US, revoked_us=NOW_US)
    assert revoked.problem(NOW_US) == "revoked"


@pytest.mark.parametrize("principal", ["", " ada", "a\nb", "x" * 65, "<b>", "ada lovelace", "\u202eada"])
def test_a_principal_is_a_plain_name(principal: str) -> None:
    with pytest.raises(UsageError, match="not a name"):
        make_token(principal, [Right.READ], now_us=NOW_US)


def test_a_token_without_a_right_is_not_made() -> None:
    with pytest.raises(UsageError, match="needs a right"):
        make_token("ada", [], now_us=NOW_US)


@pytest.mark.spec("EVT-05")
def test_a_token_is_redacted_wherever_it_turns_up() -> None:
    _, text = made()

    assert Redactor().text(f"curl -H 'X: {text}' and so on") == f"curl -H 'X: {MARK}' and so on"
