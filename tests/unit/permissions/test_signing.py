"""Signatures over decisions, proofs over requests, the key file, and the process that answered (PER-12)."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from msgspec.structs import replace

from soong.shared.core.errors import ForgedError, InvalidConfigError
from soong.shared.core.jsontext import dump, parse_strict
from soong.shared.permissions.gate import request_of
from soong.shared.permissions.policy import Policy, evaluate
from soong.shared.permissions.request import Choice, Decision, PermissionRequest, Provenance, provenance_from
from soong.shared.permissions.signing import KeyFile, Signer, SigningKey, check_proof, prove, verify
from soong.shared.sandbox.redact import Redactor
from soong.shared.tools.result import ErrorType
from tests.model.builders import make_decision, make_provenance
from tests.unit.permissions.calls import make_call

OTHER: dict[type, object] = {int: 7, str: "other", type(None): ErrorType.PERMISSION_DENIED, Choice: Choice.DENY}


def make_request(token: str = "token", **call: object) -> PermissionRequest:
    made = make_call(**call)  # type: ignore[arg-type]  # a test names real fields
    verdict = evaluate(Policy(), made)
    return request_of(made, Policy(), verdict, token=token, redactor=Redactor(), home="/home/someone", now_us=1)


@pytest.mark.spec("PER-12")
def test_a_signature_holds_for_the_decision_it_was_made_for() -> None:
    signer = Signer.generate()

    signed = signer.sign(make_decision(make_request()))

    verify(signed, signer.public_key)
    assert signed.key_id == signer.key_id


@pytest.mark.spec("PER-12.b")
@pytest.mark.parametrize("field", sorted(set(Decision.__struct_fields__) - {"signature"}))
def test_a_change_of_any_field_breaks_the_signature(field: str) -> None:
    signer = Signer.generate()
    signed = signer.sign(make_decision(make_request()))
    altered = replace(signed, **{field: OTHER[type(getattr(signed, field))]})  # by its type

    with pytest.raises(ForgedError, match="does not hold"):
        verify(altered, signer.public_key)


@pytest.mark.spec("PER-12")
@pytest.mark.parametrize("signature", ["", "zz", "00" * 64, "00" * 63])
def test_what_is_no_signature_is_a_forgery(signature: str) -> None:
    signer = Signer.generate()
    signed = replace(signer.sign(make_decision(make_request())), signature=signature)

    with pytest.raises(ForgedError):
        verify(signed, signer.public_key)


@pytest.mark.spec("PER-12.b")
@pytest.mark.parametrize("key", [b"", b"short", b"\0" * 32], ids=["none", "short", "zero"])
def test_another_key_does_not_verify(key: bytes) -> None:
    signed = Signer.generate().sign(make_decision(make_request()))

    with pytest.raises(ForgedError):
        verify(signed, key)


@pytest.mark.spec("PER-12")
def test_a_proof_holds_for_the_runs_token_alone() -> None:
    request = make_request("token of run_1")

    assert check_proof("token of run_1", request)
    assert not check_proof("token of run_2", request)
    assert not check_proof("", replace(request, proof=prove("", request)))
    assert not check_proof("token of run_1", replace(request, proof="☃"))


@pytest.mark.spec("PER-12")
def test_a_proof_survives_the_row_and_covers_what_is_shown() -> None:
    request = make_request(call_input={"path": "a", "n": 1, "deep": [{"x": 1.0}, None, True]})
    stored = parse_strict(dump(request.arguments))
    assert isinstance(stored, dict)

    assert check_proof("token", replace(request, arguments=stored))
    assert not check_proof("token", replace(request, arguments={**stored, "n": 2}))
    others: dict[str, object] = {"preview": "x", "shown": "x", "scope": "/x", "is_dangerous": True, "tags": ("x",)}
    for name, value in (others | {"unknown_effects": ({},)}).items():
        assert not check_proof("token", replace(request, **{name: value})), name  # real fields


def test_the_key_is_made_once_for_our_eyes_only_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "signing.key"

    first, second = Signer.load(path), Signer.load(path)

    assert first.key_id == second.key_id
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_of_many_makers_at_once_all_get_one_key(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"

    with ThreadPoolExecutor(8) as pool:
        keys = {signer.key_id for signer in pool.map(lambda _: Signer.load(path), range(32))}

    assert len(keys) == 1


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o606, 0o666])
def test_a_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "signing.key"
    Signer.load(path)
    path.chmod(mode)

    with pytest.raises(InvalidConfigError, match="chmod 600"):
        Signer.load(path)


@pytest.mark.spec("PER-12", "OPS-12")
@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    Signer.load(path)
    os.chown(path, 4242, -1)

    with pytest.raises(InvalidConfigError, match="belongs to user 4242, who could exchange it"):
        Signer.load(path)


def test_a_fifo_in_the_place_of_the_key_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "signing.key", 0o600)

    with pytest.raises(InvalidConfigError, match="not an unencrypted PEM key"):
        Signer.load(tmp_path / "signing.key")


def test_what_is_no_ed25519_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    path.touch(0o600)

    with pytest.raises(InvalidConfigError, match="not an unencrypted PEM key"):
        Signer.load(path)

    path.write_bytes(generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(InvalidConfigError, match="not an Ed25519 key"):
        Signer.load(path)


def test_a_key_that_can_be_neither_made_nor_read_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfigError, match="SOONG_SIGNING_KEY_FILE"):
        Signer.load(tmp_path / "file" / "signing.key")

    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidConfigError, match="cannot be read"):
        Signer.load(tmp_path / "folder")


# -- the key file of an owner that goes on
def test_an_exchanged_key_file_is_read_again(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "signing.key")
    first = file.current()
    new = Signer.generate()

    new.save(tmp_path / "signing.key")

    assert file.current().key_id == new.key_id != first.key_id
    assert stat.S_IMODE((tmp_path / "signing.key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["signing.key"]


def test_a_key_that_cannot_be_exchanged_here_says_where(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="exchange it there"):
        Signer.generate().save(tmp_path / "nowhere" / "signing.key")


# -- how keys end
@pytest.mark.parametrize(
    ("key", "what"),
    [
        (SigningKey("key_a", b"", 0), None),
        (SigningKey("key_a", b"", 0, retired_us=100), None),
        (SigningKey("key_a", b"", 0, retired_us=99), "retired_key"),
        (SigningKey("key_a", b"", 0, revoked_us=10_000), "revoked_key"),
        (SigningKey("key_a", b"", 0, retired_us=1_000, revoked_us=10_000), "revoked_key"),
    ],
    ids=["active", "retired after it", "retired before it", "revoked", "retired and revoked"],
)
def test_a_key_is_good_for_what_it_signed_until_it_was_retired(key: SigningKey, what: str | None) -> None:
    decision = replace(make_decision(make_request()), decided_us=100)

    if what is None:
        key.check(decision)
        return
    with pytest.raises(ForgedError) as refusal:
        key.check(decision)

    assert refusal.value.what == what


SHELL = {"pid": 1, "started_us": 2, "program": "/bin/sh", "is_run": False}


@pytest.mark.spec("PER-13.h")
@pytest.mark.parametrize(
    "provenance", [make_provenance(), make_provenance(is_run=True), Provenance(address="192.0.2.7")]
)
def test_a_provenance_is_read_back_as_it_was_written(provenance: Provenance) -> None:
    assert provenance_from(provenance.as_json()) == provenance


@pytest.mark.spec("PER-13.h")
def test_what_a_run_started_or_what_names_nobody_is_no_persons() -> None:
    assert make_provenance().problem == ""
    assert Provenance(address="192.0.2.7").problem == ""
    assert make_provenance(is_run=True).problem == (
        "process 4242 (/usr/bin/soong) belongs to a run, and runs do not answer for people"
    )
    assert Provenance("here").problem == "the answer names no process that gave it"


@pytest.mark.spec("PER-13.h")
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"host": 1, "processes": [SHELL]},
        {"address": ["192.0.2.7"]},
        {"processes": {"pid": 1}},
        {"processes": [1]},
        {"processes": [{**SHELL, "pid": "1"}]},
        {"processes": [{**SHELL, "more": 1}]},
        {"processes": [{"pid": 1}]},
        {"processes": [{**SHELL, "is_run": None}]},
    ],
    ids=str,
)
def test_a_provenance_that_is_malformed_answers_nothing(value: dict[str, Any]) -> None:
    assert provenance_from(value).problem
