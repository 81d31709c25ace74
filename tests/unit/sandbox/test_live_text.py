"""Text shown while it grows: never the beginning of a secret, and all that is no secret in the end."""

import pytest

from soong.shared.sandbox.redact import MARK, LiveText, redactor

pytestmark = pytest.mark.spec("EVT-05")

TOKEN = "sk-" + "a1B2" * 8
KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "QUJD" * 16 + "\n-----END RSA PRIVATE KEY-----"
SECRETS = {
    "token": TOKEN,
    "after words": f"Authorization: Bearer {'x9' * 20} and more",
    "address": "https://joe:pässword-of-joe@example.org/x",
    "value with spaces": "correct horse battery staple",
    "value of other letters": "straße-öffne-dich",
    "key": KEY,
}
HIDDEN = ("a1B2a1", "x9x9", "word-of-joe", "horse", "öffne", "QUJDQUJD")


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_no_part_of_a_secret_is_shown_at_any_time(secret: str, size: int) -> None:
    clean = redactor(["correct horse battery staple", "straße-öffne-dich"])
    text = f"before it: {secret} and after it"
    live = LiveText(clean)

    for start in range(0, len(text), size):
        live.feed(text[start : start + size])
        assert not any(part in live.shown() for part in HIDDEN)

    assert live.shown(is_complete=True) == clean.text(text)
    assert MARK in live.shown(is_complete=True)


def test_plain_text_is_shown_up_to_its_last_word() -> None:
    live = LiveText(redactor())

    live.feed("one two thr")
    assert live.shown() == "one two "
    live.feed("ee ")

    assert live.shown() == "one two three "


def test_text_without_spaces_between_its_words_is_shown() -> None:
    live = LiveText(redactor())

    live.feed("世界は広い")

    assert live.shown() == "世界は広い"


def test_a_long_text_is_shown_as_it_would_be_stored() -> None:
    live, text = LiveText(redactor()), "some words, " * 3000 + TOKEN + " end"

    for start in range(0, len(text), 50):
        live.feed(text[start : start + 50])

    assert live.shown(is_complete=True) == redactor().text(text)
