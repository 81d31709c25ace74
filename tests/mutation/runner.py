"""Runs mutants in copies of the tree: writes one, lets its judges run until the first failure, and takes it back."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutation.operators import Mutant
from tests.mutation.selection import Subject

SLOWEST_S = 20.0
"""What a mutant's judges may take beyond three times their usual time; one that takes longer is killed by its time."""


class Verdict(StrEnum):
    """What became of a mutant. ELSEWHERE: no test that carries a clause of the module failed, another one did."""

    KILLED = "killed"
    ELSEWHERE = "killed by a test without the clause"
    SURVIVED = "survived"
    UNJUDGED = "its judges fail without it"


@dataclass(frozen=True, slots=True)
class Outcome:
    mutant: Mutant
    diff: str
    verdict: Verdict


class Workplace:
    """A copy of the tree in which one mutant at a time is judged."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder
        self._usual_s: dict[tuple[str, ...], float | None] = {}
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.split(b"\0")
        for name in sorted({name.decode() for name in names if name}):
            if (root / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name)
        self._python = _interpreter(folder)
        self._check_imports()

    def judge(self, subject: Subject, mutant: Mutant) -> Outcome:
        """Return what became of a mutant; the copy is as before afterwards."""
        original = (self._folder / mutant.path).read_text(encoding="utf-8")
        return Outcome(mutant, mutant.diff(original), self._verdict(subject, mutant, original))

    def _verdict(self, subject: Subject, mutant: Mutant, original: str) -> Verdict:
        if self._usual(subject.marked) is None:
            return Verdict.UNJUDGED
        if self._is_noticed(subject.marked, mutant, original) or self._is_noticed(subject.slow, mutant, original):
            return Verdict.KILLED
        return Verdict.ELSEWHERE if self._is_noticed(subject.others, mutant, original) else Verdict.SURVIVED

    def _is_noticed(self, judges: tuple[str, ...], mutant: Mutant, original: str) -> bool:
        """Say whether judges that pass otherwise fail with a mutant, or take far longer than usual."""
        usual_s = self._usual(judges) if judges else None
        if usual_s is None:
            return False
        path = self._folder / mutant.path
        path.write_text(mutant.text, encoding="utf-8")
        try:
            return not self._passes(judges, limit_s=3 * usual_s + SLOWEST_S)
        finally:
            path.write_text(original, encoding="utf-8")

    def _usual(self, tests: tuple[str, ...]) -> float | None:
        """Return how long the judges take when nothing is wrong; None when they fail then."""
        if tests not in self._usual_s:
            began_s = time.monotonic()
            passes = self._passes(tests, limit_s=600)
            self._usual_s[tests] = time.monotonic() - began_s if passes else None
        return self._usual_s[tests]

    def _passes(self, tests: Sequence[str], *, limit_s: float) -> bool:
        command = [self._python, "-P", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)

    def _check_imports(self) -> None:
        """Hold that the copy's code is what runs there, not the checkout's."""
        told = subprocess.run(
            [self._python, "-P", "-c", "import shared; print(shared.__file__)"],
            cwd=self._folder,
            env={},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        if not told.startswith(str(self._folder)):
            raise RuntimeError(f"the copy imports {told}, not its own code")

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def _interpreter(folder: Path) -> str:
    """Make an environment of the copy's own, with the packages and programs of ours, and return its interpreter.

    A test that starts a process with an environment of its own then still runs the copy's code, never the checkout's.
    """
    home = folder / ".venv"
    venv.create(home, symlinks=True)
    (packages,) = (home / "lib").glob("python*/site-packages")
    (packages / "copy.pth").write_text(f"{folder}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    for program in Path(sys.executable).parent.iterdir():
        if not (home / "bin" / program.name).exists():
            (home / "bin" / program.name).symlink_to(program)
    return str(home / "bin" / "python")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a run of judges with all that it started in its own session."""
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()
