"""The chains of the audit log: whatever is changed, taken away, moved or put between shows (threat 28)."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.shared.core.jsontext import Json, digest
from soong.shared.permissions.audit_log import AuditEntry, AuditKind, AuditNote, Break, Head, Verifier, linked

KINDS = st.sampled_from(list(AuditKind))
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
DATA = st.dictionaries(TEXT, TEXT | st.integers(-(2**40), 2**40) | st.none() | st.booleans(), max_size=4)


def log_of(steps: Sequence[tuple[int, AuditKind, Mapping[str, Json]]]) -> list[AuditEntry]:
    """Write one entry a step into the chain of that number, as processes that see each other's would."""
    heads: dict[int, Head] = {}
    entries: list[AuditEntry] = []
    for chain, kind, data in steps:
        head = heads.get(chain, Head())
        newest = entries[-1].digest if entries and entries[-1].chain != f"aud_{chain}" else ""
        note = AuditNote(kind, data, session_id="sess_1")
        entry = linked(note, f"aud_{chain}", replace(head, beside=newest), len(entries))
        heads[chain] = Head(entry.number, entry.digest)
        entries.append(replace(entry, ordinal=len(entries) + 1))
    return entries


LOGS = st.lists(st.tuples(st.integers(0, 2), KINDS, DATA), min_size=2, max_size=12).map(log_of)


@given(LOGS)
def test_a_log_as_it_was_written_holds(log: list[AuditEntry]) -> None:
    verifier = Verifier()

    assert verifier.check(log) is None
    assert verifier.count == len(log)
    assert all(verifier.has_seen(entry.digest) for entry in log)


@given(LOGS, st.data())
def test_an_entry_that_was_changed_is_named(log: list[AuditEntry], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(log) - 1))
    entry = log[place]
    changed = data.draw(
        st.sampled_from(
            [
                replace(entry, data={**entry.data, "choice": "deny "}),
                replace(entry, time_us=entry.time_us + 1),
                replace(entry, kind="other"),
                replace(entry, session_id="sess_2"),
                replace(entry, previous="0" * 64),
            ]
        )
    )
    log[place] = changed

    found = Verifier().check(log)

    assert found is not None
    assert (found.chain, found.number) == (entry.chain, entry.number)


@given(LOGS, st.data())
def test_an_entry_with_a_digest_made_again_breaks_what_follows(log: list[AuditEntry], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(log) - 1))
    forged = replace(log[place], data={"choice": "forged"})
    forged = replace(forged, digest=digest(forged.covered()))
    follows = [entry for entry in log[place + 1 :] if log[place].digest in (entry.previous, entry.beside)]
    log[place] = forged

    found = Verifier().check(log)

    # Only the very last entry, on which nothing stands yet, can be exchanged unseen: a noted digest shows that.
    assert (found is not None) == bool(follows)
    if found is None:
        assert place == len(log) - 1


@given(LOGS, st.data())
def test_an_entry_that_is_gone_shows_unless_nothing_was_written_after_it(
    log: list[AuditEntry], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(log) - 2))
    gone = log.pop(place)
    stands_on_it = any(gone.digest in (entry.previous, entry.beside) for entry in log)

    assert (Verifier().check(log) is not None) == stands_on_it
    assert stands_on_it


@given(LOGS, st.data())
def test_entries_that_changed_places_show(log: list[AuditEntry], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(log) - 2))
    log[first], log[first + 1] = log[first + 1], log[first]

    assert Verifier().check(log) is not None


def test_an_entry_twice_is_reported() -> None:
    (entry,) = log_of([(0, AuditKind.ANSWER, {})])

    assert str(Verifier().check([entry, entry])) == "entry 1 of chain aud_0: twice"


def test_a_page_at_a_time_finds_what_all_at_once_finds() -> None:
    log = log_of([(number % 2, AuditKind.ANSWER, {"number": number}) for number in range(10)])
    log[6] = replace(log[6], data={})
    verifier = Verifier()

    found = [verifier.check(log[start : start + 3]) for start in (0, 3, 6)]

    assert found[:2] == [None, None]
    assert isinstance(found[2], Break)
    assert "it was changed" in found[2].problem


@pytest.mark.parametrize("noted", ["0" * 64, "not hexadecimal", ""])
def test_a_digest_that_was_never_written_was_not_seen(noted: str) -> None:
    verifier = Verifier()
    verifier.check(log_of([(0, AuditKind.ANSWER, {})]))

    assert not verifier.has_seen(noted)


def test_a_line_of_the_export_can_be_checked_with_nothing_but_itself() -> None:
    (entry,) = log_of([(0, AuditKind.DECISION, {"choice": "deny"})])
    line = entry.as_json()

    said = line.pop("digest")
    del line["time"]

    assert said == digest(line)
