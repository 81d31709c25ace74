"""Private keys by what stands in a file (FS-06, EVT-05)."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.sandbox.redact import HEAD_BYTES, MAX_BLOCK_BYTES, KeyBlocks, blocks_of, is_key

BODY = "MC4CAQAwBQYDK2VwBCIEIBGHw4DZ0123456789abcdefghijklmnopqrstuvwxyz"
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n"

pytestmark = pytest.mark.spec("FS-06")


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
