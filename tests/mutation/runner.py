"""Runs mutants in copies of the tree: writes one, lets its judges run until the first failure, and takes it back."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutation.operators import Mutant
from tests.mutation.selection import Subject

LEARNING_S = 600.0
"""Within what time the judges of a module have to end when nothing is wrong."""

_FAILING = re.compile(r"(FAILED|ERROR) ")

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
        self._usual_s: dict[tuple[str, ...], float] = {}
        self._passing: dict[tuple[str, ...], tuple[str, ...]] = {}
        names = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout.split(b"\0")
        for name in sorted({name.decode() for name in names if name}):
            if (root / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, folder / name, follow_symlinks=False)  # parts of the package are links
        self._python = _interpreter(folder)
        self._check_imports()

    def judge(self, subject: Subject, mutant: Mutant) -> Outcome:
        """Return what became of a mutant; the copy is as before afterwards."""
        original = (self._folder / mutant.path).read_text(encoding="utf-8")
        return Outcome(mutant, mutant.diff(original), self._verdict(subject, mutant, original))

    def _verdict(self, subject: Subject, mutant: Mutant, original: str) -> Verdict:
        if not self._sound(subject.marked):
            return Verdict.UNJUDGED
        if self._is_noticed(subject.marked, mutant, original) or self._is_noticed(subject.slow, mutant, original):
            return Verdict.KILLED
        return Verdict.ELSEWHERE if self._is_noticed(subject.others, mutant, original) else Verdict.SURVIVED

    def _is_noticed(self, judges: tuple[str, ...], mutant: Mutant, original: str) -> bool:
        """Say whether judges that pass otherwise fail with a mutant, or take far longer than usual."""
        sound = self._sound(judges)
        path = self._folder / mutant.path
        path.write_text(mutant.text, encoding="utf-8")
        try:
            return bool(sound) and self._run(("-x", *sound), 3 * self._usual_s[judges] + SLOWEST_S) != ""
        finally:
            path.write_text(original, encoding="utf-8")

    def _sound(self, judges: tuple[str, ...]) -> tuple[str, ...]:
        """Return the judges that pass when nothing is wrong, and remember how long all of them take."""
        if judges and judges not in self._passing:
            began_s = time.monotonic()
            said = self._run(("-rfE", *judges), LEARNING_S)
            failing = {line.split()[1].partition("[")[0] for line in said.splitlines() if _FAILING.match(line)}
            is_judged = not said or bool(failing)
            self._usual_s[judges] = time.monotonic() - began_s
            self._passing[judges] = tuple(judge for judge in judges if judge not in failing) if is_judged else ()
        return self._passing.get(judges, ())

    def _run(self, arguments: Sequence[str], limit_s: float) -> str:
        """Run tests; return nothing when all pass, and otherwise what was said."""
        command = [self._python, "-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=self._environment(),
                stdout=said,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                if process.wait(limit_s) == 0:
                    return ""
            except subprocess.TimeoutExpired:
                return "took too long"
            finally:
                _end(process)
            said.seek(0)
            return said.read().decode(errors="replace") or "failed"

    def _check_imports(self) -> None:
        """Hold that the copy's code is what runs there, not the checkout's."""
        told = subprocess.run(
            [self._python, "-P", "-c", "import soong; print(soong.__file__)"],
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
