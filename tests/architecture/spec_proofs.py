"""Records of longer runs in docs/proofs, and which of them still count.

A record says what was run, on which commit and what was seen. It counts while the commit is in the history of HEAD and
the product's code has changed by at most `MAX_CHANGED_LINES` since; after that it is stale and proves nothing.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.spec_document import ROOT, known_ids

PROOFS = ROOT / "docs" / "proofs"
PRODUCT = ("orchestrator", "worker", "shared", "soong")
MAX_CHANGED_LINES = 1_000
"""Lines of product code added and removed since the run, about one in fifty. A file that only moved has none."""

_FIELDS = ("commit", "command", "figures")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class ProofRecordError(ValueError):
    """A record is not one; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class ProofRecord:
    """One record. ``stale`` says why it proves nothing; it is empty for one that counts."""

    name: str
    ids: tuple[str, ...]
    commit: str
    stale: str


def read_proofs(folder: Path = PROOFS, *, checkout: Path = ROOT) -> tuple[ProofRecord, ...]:
    """Return the records of a folder.

    Raises:
        ProofRecordError: a record lacks a field, has one empty, or names an id that docs/spec.md does not have.
    """
    return tuple(_read(path, checkout) for path in sorted(folder.glob("*.json")))


def _read(path: Path, checkout: Path) -> ProofRecord:
    record: object = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ProofRecordError(f"{path.name}: the record is a {type(record).__name__}, not an object")
    absent = [field for field in _FIELDS if not record.get(field)]
    if absent:
        raise ProofRecordError(f"{path.name}: the record has no {', '.join(absent)}")
    commit, ids = record["commit"], record.get("clauses")
    if not isinstance(ids, list):
        raise ProofRecordError(
            f"{path.name}: clauses is {ids!r}, not a list; one that shows no clause has an empty one"
        )
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise ProofRecordError(f"{path.name}: commit is {commit!r}, not 7 to 40 hexadecimal digits")
    if not isinstance(record["command"], str) or not isinstance(record["figures"], Mapping):
        raise ProofRecordError(f"{path.name}: command is not a text, or figures is not an object")
    unknown = [each for each in ids if each not in known_ids()]
    if unknown:
        raise ProofRecordError(f"{path.name}: docs/spec.md has no {unknown[0]!r}")
    return ProofRecord(path.name, tuple(ids), commit, _staleness(commit, checkout))


def _staleness(commit: str, checkout: Path) -> str:
    """Return why a commit's record no longer counts; nothing when it does."""
    if _git(checkout, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return f"{commit} is not in the history of HEAD"
    changes = _git(checkout, "diff", "--numstat", "-M", commit, "--", *PRODUCT)
    if changes is None:
        return f"git cannot compare {commit} with this tree"
    changed = sum(int(count) for line in changes.splitlines() for count in line.split("\t")[:2] if count != "-")
    if changed > MAX_CHANGED_LINES:
        return f"{changed} lines of product code changed since {commit}, at most {MAX_CHANGED_LINES} may"
    return ""


def _git(checkout: Path, *arguments: str) -> str | None:
    """Return what git prints; None when it fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
