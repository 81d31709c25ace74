import base64
import binascii
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json
from soong.shared.sandbox.redact import MARK, redactor

SECRET = 'pa"ss/word-üöä-long'
KEY_BLOCK = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEow\n" * 40 + "-----END RSA PRIVATE KEY-----"
TOKENS = [
    "AKIAIOSFODNN7EXAMPLE",
    "sk-" + "a1B2" * 10,
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2" * 10,
    "xoxb-1234567890-abcdef",
    "AIza" + "a" * 35,
    "ASIAIOSFODNN7EXAMPLE",
    "soong_tok_" + "0a" * 16 + "_" + "aB3" * 14 + "x",
    *(f"gh{letter}_" + "a1B2" * 9 for letter in "ousr"),
    "glpat-" + "a1B2" * 5,
    *(f"xox{letter}-1234567890-abcdef" for letter in "aeoprs"),
    "hf_" + "a1B2" * 8,
    "npm_" + "a1B2" * 9,
    "pypi-" + "a1B2" * 13,
    "sk_live_" + "a1B2" * 4,
    "rk_live_" + "a1B2" * 4,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijkl",
    KEY_BLOCK,
]


@pytest.mark.spec("EVT-05.b")
@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:15])
def test_well_known_tokens_are_taken_out(token: str) -> None:
    assert redactor().text(f"before {token} after") == f"before {MARK} after"


@pytest.mark.spec("EVT-05.b")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("authorization: bearer abcdefghij0123456789", f"authorization: bearer {MARK}"),
        ("Authorization: Bearer abcdefghij0123456789", f"Authorization: Bearer {MARK}"),
        ("postgres://user:hunter2@db/x", f"postgres://{MARK}@db/x"),
        ("redis://:hunter2@db/0", f"redis://{MARK}@db/0"),
    ],
)
def test_only_the_secret_part_goes(text: str, clean: str) -> None:
    assert redactor().text(text) == clean


@pytest.mark.parametrize("text", ["sk-short", "http://example.org:80/a@b", "a key to nothing", "ghp_short", "AKIA"])
def test_ordinary_text_stays_the_same_object(text: str) -> None:
    assert redactor([SECRET]).text(text) is text


@pytest.mark.spec("EVT-05.a")
@pytest.mark.parametrize(
    "form",
    [SECRET, json.dumps(SECRET)[1:-1], quote(SECRET, safe=""), base64.b64encode(SECRET.encode()).decode()],
    ids=["plain", "json", "url", "base64"],
)
def test_a_marked_value_is_found_in_its_usual_encodings(form: str) -> None:
    assert SECRET not in redactor([SECRET]).text(f"x{form}x")
    assert form.rstrip("=") not in redactor([SECRET]).text(f"x{form}x")


@pytest.mark.spec("EVT-05")
@pytest.mark.parametrize("before", ["", "u", "us", "user:", "Bearer "])
@pytest.mark.parametrize("after", ["", "\n", "}\n"])
@pytest.mark.parametrize("secret", ["hunter22secret", "p\u00e4ss w+rd/~\u00ff\u00fe?"])
def test_a_secret_is_found_inside_what_was_encoded_as_a_whole(before: str, after: str, secret: str) -> None:
    whole = f"{before}{secret}{after}".encode()
    encoded = (base64.b64encode(whole), base64.urlsafe_b64encode(whole), binascii.hexlify(whole))

    for text in (each.decode() for each in encoded):
        clean = redactor([secret]).text(text)
        assert MARK in clean
        # Of a secret's letters those that others share are left, two at each end.
        assert len(clean.replace(MARK, "")) <= len(text) * (len(whole) - len(secret.encode())) / len(whole) + 6


@pytest.mark.spec("EVT-05")
@pytest.mark.parametrize("quoted", [quote, quote_plus, lambda text: quote(text, safe="").lower()])
def test_a_secret_is_found_in_each_spelling_of_a_url(quoted: Callable[[str], str]) -> None:
    assert redactor(["p&ss/w rd"]).text(f"https://a.test/?p={quoted('p&ss/w rd')}") == f"https://a.test/?p={MARK}"


def test_a_secret_inside_another_does_not_cut_it_open_and_very_short_values_are_left() -> None:
    assert redactor(["secret1", "secret1-and-more"]).text("secret1-and-more") == MARK

    assert redactor(["on", ""]).text("on and on") == "on and on"


@pytest.mark.spec("EVT-05")
def test_json_is_redacted_in_values_and_keys_and_a_clean_value_stays_the_same_object() -> None:
    value: Json = {"a": [SECRET, 1, None, {"b": f"x {SECRET}"}], SECRET: True}

    assert redactor([SECRET]).value(value) == {"a": [MARK, 1, None, {"b": f"x {MARK}"}], MARK: True}

    clean: Json = {"a": ["b", 1, {"c": None}]}

    assert redactor([SECRET]).value(clean) is clean


@pytest.mark.spec("EVT-05")
@given(st.lists(st.integers(1, 3000), max_size=12), st.sampled_from([SECRET, *TOKENS]), st.integers(0, 9000))
@example([8192], SECRET, 4090)
def test_a_secret_in_pieces_never_gets_through_a_stream(cuts: list[int], secret: str, before: int) -> None:
    text = "y" * before + " " + secret + " " + "z" * 9000
    stream = redactor([SECRET]).stream()
    shown, at = "", 0
    for size in [*cuts, len(text)]:
        shown += stream.feed(text[at : at + size])
        at += size
    shown += stream.close()

    assert shown == "y" * before + f" {MARK} " + "z" * 9000


@given(st.lists(st.text(max_size=3000), max_size=20))
def test_a_stream_without_secrets_comes_out_as_it_went_in(pieces: list[str]) -> None:
    stream = redactor([SECRET]).stream()

    assert "".join(map(stream.feed, pieces)) + stream.close() == redactor([SECRET]).text("".join(pieces))


def test_an_endless_secret_keeps_memory_bounded() -> None:
    stream = redactor().stream()

    shown = stream.feed("-----BEGIN PRIVATE KEY-----\n") + "".join(stream.feed("k" * 10_000) for _ in range(40))

    assert "kkkk" not in shown.partition(MARK)[0]
    assert MARK in shown
