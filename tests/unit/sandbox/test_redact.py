"""Text that is stored and shown: without secrets and keys, and inert for terminals."""

import base64
import binascii
import json
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json
from soong.shared.sandbox.redact import (
    HEAD_BYTES,
    MARK,
    MAX_BLOCK_BYTES,
    KeyBlocks,
    LiveText,
    blocks_of,
    inert_text,
    is_key,
    redactor,
)

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


def test_a_key_that_is_a_secret_goes_though_its_pair_meets_one_of_the_marks_name() -> None:
    assert redactor([SECRET]).mapping({MARK: None, SECRET: None}) == {MARK: None}


def test_an_endless_secret_keeps_memory_bounded() -> None:
    stream = redactor().stream()

    shown = stream.feed("-----BEGIN PRIVATE KEY-----\n") + "".join(stream.feed("k" * 10_000) for _ in range(40))

    assert "kkkk" not in shown.partition(MARK)[0]
    assert (MARK in shown, len(stream.pending) < 200_000) == (True, True)


BODY = "MC4CAQAwBQYDK2VwBCIEIBGHw4DZ0123456789abcdefghijklmnopqrstuvwxyz"
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n"


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    "text",
    [
        PEM,
        PEM.replace("PRIVATE", "RSA PRIVATE"),
        PEM.replace("PRIVATE", "OPENSSH PRIVATE"),
        PEM.replace("\n", "\r\n"),
        f"Bag Attributes\n  localKeyID: 01\n{PEM}",
        f"# staging\n\n  {PEM}",
        PEM.replace("PRIVATE KEY", "PGP PRIVATE KEY BLOCK"),
        f'{{"private_key": "-----BEGIN PRIVATE KEY-----\\n{BODY}\\n-----END PRIVATE KEY-----"}}',
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: x\n",
        "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n",
        "# created: today\nAGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQQQQQQQ\n",
        "x" * (HEAD_BYTES - 200) + "\n" + PEM,
    ],
    ids=range(12),
)
def test_a_key_is_known_by_its_head(text: str) -> None:
    assert is_key(text.encode()[:HEAD_BYTES])
    assert is_key(text.encode("utf-16")[: 2 * HEAD_BYTES])


@pytest.mark.spec("FS-06")
@pytest.mark.parametrize(
    "text",
    [
        "",
        PEM.replace("PRIVATE", "PUBLIC"),
        PEM.replace("PRIVATE KEY", "CERTIFICATE"),
        'PATTERN = r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\\s\\S]*?"\n',
        'if line == "-----BEGIN PRIVATE KEY-----":\n',
        "A file begins with -----BEGIN PRIVATE KEY----- and ends with its END line.\n",
    ],
    ids=range(6),
)
def test_what_only_speaks_of_keys_is_none(text: str) -> None:
    assert not is_key(text.encode())


@pytest.mark.spec("FS-06")
@given(cut=st.lists(st.integers(min_value=1, max_value=60), max_size=12), before=st.integers(0, 200))
def test_blocks_are_found_however_a_file_is_cut(cut: list[int], before: int) -> None:
    text = (b"a\n" * before) + PEM.encode() + b"between\n" + PEM.encode() + b"after\n"
    start, second = 2 * before, 2 * before + len(PEM) + len(b"between\n")
    blocks, found, at = KeyBlocks(), [], 0

    for size in [*cut, len(text)]:
        found += blocks.feed(text[at : at + size])
        at += size

    assert found == [(start, start + len(PEM) - 1), (second, second + len(PEM) - 1)]
    assert not blocks.is_open
    assert blocks.close() == []


@pytest.mark.spec("FS-06")
def test_a_block_without_an_end_has_one(tmp_path: Path) -> None:
    head = b"-----BEGIN PRIVATE KEY-----\n"
    (tmp_path / "x").write_bytes(head + b"y" * 2 * MAX_BLOCK_BYTES)
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    blocks = KeyBlocks()

    blocks.feed(head)
    is_open_at_once = blocks.is_open
    blocks.feed(b"y" * MAX_BLOCK_BYTES)

    assert (is_open_at_once, blocks.is_open) == (True, False)
    assert blocks_of(descriptor) == ((0, MAX_BLOCK_BYTES),)
    os.close(descriptor)


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


@pytest.mark.spec("EVT-05")
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


@pytest.mark.spec("EVT-05")
def test_plain_text_is_shown_up_to_its_last_word() -> None:
    live = LiveText(redactor())

    live.feed("one two thr")
    assert live.shown() == "one two "
    live.feed("ee ")

    assert live.shown() == "one two three "


@pytest.mark.spec("EVT-05")
def test_text_without_spaces_between_its_words_is_shown() -> None:
    live = LiveText(redactor())

    live.feed("世界は広い")

    assert live.shown() == "世界は広い"


@pytest.mark.spec("EVT-05")
def test_a_long_text_is_shown_as_it_would_be_stored() -> None:
    live, text = LiveText(redactor()), "some words, " * 3000 + TOKEN + " end"

    for start in range(0, len(text), 50):
        live.feed(text[start : start + 50])

    assert live.shown(is_complete=True) == redactor().text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;ZXZpbA==\x1b\\after", "after"),
        ("\x1b]8;;http://evil\x1b\\good\x1b]8;;\x1b\\", "good"),
        ("\x1bPdevice\x1b\\after", "after"),
        ("\x1b]0;never ended\nthe next line", "0;never ended\nthe next line"),
        ("\x1b(Bcharset\x1b7\x1bc", "charset"),
        ("evil command\rls", "evil command\nls"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\bb\0\x07\x7f", "a\\x08b\\x00\\x07\\x7f"),
        ("\x1b", "\\x1b"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("tag\U000e0041", "tag\\U000e0041"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\x85", "\\x85"),
        ("naïve 文字 👩‍💻", "naïve 文字 👩‍💻"),
        ("\u3000段落\xa0!", "\u3000段落\xa0!"),
        ("a\u3164b\U0001d159", "a\\u3164b\\U0001d159"),
        ("\ud800", "\ufffd"),
    ],
    ids=ascii,
)
@pytest.mark.spec("CMD-01")
def test_output_is_shown_without_what_a_terminal_obeys(text: str, expected: str) -> None:
    assert inert_text(text) == expected


@given(st.text(alphabet=st.sampled_from("\x1b\x9b\x9d[]PX0;m\\\x07\x9c\r\n\b a\u202e\u2066\ud800\U000e0041é")))
def test_nothing_that_a_terminal_obeys_is_left_and_nothing_changes_a_second_time(text: str) -> None:
    shown = inert_text(text)

    assert not any((ord(char) < 0x20 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0 for char in shown)
    assert not set(shown) & set("\u202e\u2066\ud800\U000e0041")
    assert inert_text(shown) == shown
