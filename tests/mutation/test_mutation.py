"""The mutation runner itself: what it changes, in which order, and what it says of a test that is missing."""

import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutation.named import named_mutants
from tests.mutation.operators import mutants_of
from tests.mutation.runner import Verdict, Workplace
from tests.mutation.selection import Subject, subject_of
from tests.spec_document import ROOT
from tests.spec_plugin import ONE_PLUGIN

MODULE = '''\
"""A module. EXE-03"""
LIMITS = {"a", "b", "c"}


def fits(size: int, limit: int = 10) -> bool:
    """Say whether 3 < 4."""
    log.info("asked", size=size)
    if size < 0 and not limit:
        raise ValueError(f"size is {size}, not {limit + 1}")
    note(size, wide=True)
    return size <= min(limit, 7)
'''


def changes(text: str) -> set[str]:
    return {
        f"{mutant.line} {mutant.what}: {mutant.diff(text).splitlines()[-1][1:].strip()}"
        for mutant in mutants_of("m.py", text)
    }


def test_each_place_that_is_behaviour_is_changed_and_nothing_else() -> None:
    assert changes(MODULE) == {
        '2 element dropped: LIMITS = {"b", "c"}',
        '2 element dropped: LIMITS = {"a", "c"}',
        '2 element dropped: LIMITS = {"a", "b"}',
        "5 constant: def fits(size: int, limit: int = 11) -> bool:",
        "8 comparison: if size <= 0 and not limit:",
        "8 constant: if size < 1 and not limit:",
        "8 connective: if size < 0 or not limit:",
        "8 negation dropped: if size < 0 and (limit):",
        "8 condition turned: if (not (size < 0 and not limit)):",
        "10 call dropped: pass",
        "10 argument dropped: note(size)",
        "10 constant: note(size, wide=False)",
        "11 comparison: return size < min(limit, 7)",
        "11 bound turned: return size <= max(limit, 7)",
        "11 constant: return size <= min(limit, 8)",
        "11 answer turned: return (not (size <= min(limit, 7)))",
    }


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("x = a is not None", "x = a is None"),
        ("x = a is None", "x = a is not None"),
        ("x = 'ä' not in b", "x = 'ä' in b"),
        ("x = a in b", "x = a not in b"),
        ("x = a == b", "x = a != b"),
        ("f(first=1, *rest)", "f(*rest)"),
    ],
)
def test_an_operator_is_found_among_letters_of_any_width(line: str, changed: str) -> None:
    assert changed in {mutant.text.strip() for mutant in mutants_of("m.py", line)}


def test_the_judges_of_a_module_carry_its_clauses_or_their_obligations() -> None:
    marks = {
        "tests/unit/tools/test_hooks.py::a": ["EXE-13.e"],
        "tests/unit/tools/test_schedule.py::b": ["EXE-03.a"],
        "tests/unit/tools/test_other.py::c": [],
        "tests/unit/tasks/test_x.py::d": [],
        "tests/contract/test_logs.py::e": ["EXE-03"],
    }

    subject = subject_of("shared/tools/schedule.py", ["EXE-03", "EXE-13"], marks)

    assert subject.marked == ("tests/unit/tools/test_schedule.py::b", "tests/unit/tools/test_hooks.py::a")
    assert subject.slow == ("tests/contract/test_logs.py::e",)
    assert subject.others == ("tests/unit/tools/test_other.py::c",)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one module with three promises: a marked test holds one, a test without a clause another."""
    for name, value in ONE_PLUGIN.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "project"
    (folder / "shared").mkdir(parents=True)
    (folder / "shared" / "__init__.py").touch()
    (folder / "soong").mkdir()
    (folder / "soong" / "__init__.py").touch()
    (folder / "soong" / "shared").symlink_to("../shared")
    (folder / "shared" / "sizes.py").write_text(
        dedent("""\
            def fits(size):
                return size < 10

            def is_wide(size):
                return size > 5

            def is_odd(size):
                return size == 7
        """)
    )
    (folder / "test_marked.py").write_text("from soong.shared.sizes import fits\ndef test_a(): assert not fits(10)\n")
    (folder / "test_other.py").write_text(
        "from soong.shared.sizes import is_wide\ndef test_b(): assert not is_wide(5)\n"
    )
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    return folder


def test_a_mutant_is_killed_by_marked_tests_by_others_or_by_none(project: Path, tmp_path: Path) -> None:
    subject = Subject("shared/sizes.py", ("EXE-03",), ("test_marked.py",), others=("test_other.py",))
    text = (project / subject.path).read_text()
    comparisons = [mutant for mutant in mutants_of(subject.path, text) if mutant.what == "comparison"]
    place = Workplace(project, tmp_path / "copy")

    outcomes = [place.judge(subject, mutant) for mutant in comparisons]

    assert [outcome.verdict for outcome in outcomes] == [Verdict.KILLED, Verdict.ELSEWHERE, Verdict.SURVIVED]
    assert outcomes[2].diff == "-    return size == 7\n+    return size != 7"
    assert (tmp_path / "copy" / subject.path).read_text() == text == (project / subject.path).read_text()


def test_each_mutant_with_a_name_is_of_a_text_that_is_there_and_has_judges() -> None:
    found = list(named_mutants(ROOT))

    assert len({mutant.what for _, mutant in found}) == len(found)
    assert [subject.path for subject, _ in found if not all((ROOT / test).exists() for test in subject.marked)] == []
    for _, mutant in found:
        compile(mutant.text, mutant.path, "exec")
