"""How much code one step enters: distinct functions and files of the product, in all processes, from command to result.

``python -P -m tests.architecture.walk`` runs a service with one worker on SQLite in a home of its own, runs each plan
once to warm up and three times under ``sys.setprofile`` in every process, and prints what each of these three entered.
Class bodies, comprehensions, lambdas and modules do not count. A reader who follows a step has to know no more.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.spec_document import ROOT
from tests.waiting import wait_until
from tests.warm import called

ROOMS: Final = ("orchestrator", "shared", "soong", "worker")
RUNS: Final = 3
ENDED_S: Final = 30.0
LIMIT_S: Final = 120.0
STALE_S: Final = 5.0
"""A probe that has not written for so long ended with an `exec` of its process."""
PLANS: Final[Mapping[str, Mapping[str, Any]]] = {
    "echo": {
        "title": "walk",
        "steps": [{"id": "a", "kind": "python", "call": "builtin.echo", "inputs": {"words": "hello"}}],
    },
    "agent": {
        "title": "walk",
        "steps": [
            {
                "id": "a",
                "kind": "agent",
                "instructions": "Read one file.",
                "allowed_tools": ["code.read_file"],
                "script": "builtin.calls",
                "inputs": {"calls": [{"call": "code.read_file", "with": {"path": "one.txt"}}]},
            }
        ],
    },
}
PROBE: Final = '''
"""Notes each function of the product that is entered while the file "on" exists, and writes them when it is gone."""
import os, sys, threading, time

FOLDER, ROOT = os.environ["WALK_FOLDER"], os.environ["WALK_ROOT"] + "/"
ON, entered = FOLDER + "/on", set()


def note(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & 1:  # not the body of a class or module
        entered.add(frame.f_code)


def watch():
    is_on = False
    while True:
        open(f"{FOLDER}/{os.getpid()}.lives", "w").close()
        if os.path.exists(ON) != is_on:
            is_on = not is_on
            if is_on:
                entered.clear()
            else:
                write()
            open(f"{FOLDER}/{os.getpid()}.{'on' if is_on else 'off'}", "w").close()
        time.sleep(0.005)


def write():
    with open(f"{FOLDER}/{os.getpid()}.txt", "w") as file:
        for code in list(entered):
            path = os.path.realpath(code.co_filename)
            if path.startswith(ROOT) and not code.co_name.startswith("<"):
                file.write(f"{path[len(ROOT):]}\\t{code.co_firstlineno}\\t{code.co_qualname}\\n")


def begin():
    threading.setprofile(note)
    sys.setprofile(note)
    threading.Thread(target=watch, daemon=True, name="walk").start()


import atexit

atexit.register(lambda: os.path.exists(ON) and write())
os.register_at_fork(after_in_child=begin)
begin()
'''


class Walk:
    """A home, its service and the probe in each of its processes."""

    def __init__(self, folder: Path) -> None:
        self.notes, self.project = folder / "notes", folder / "project"
        probe = folder / "probe"
        for made in (self.notes, self.project, probe):
            made.mkdir()
        (self.project / "one.txt").write_text("1\n")
        (probe / "sitecustomize.py").write_text(PROBE)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self.environment = {
            **kept,
            "HOME": str(folder),
            "SOONG_AGENT_HOME": str(folder / "home"),
            "PYTHONPATH": str(probe),
            "WALK_FOLDER": str(self.notes),
            "WALK_ROOT": str(ROOT),
        }

    def entered(self, name: str) -> dict[str, set[str]]:
        """Return what each of several runs of a plan entered, by process of the last one.

        What only one of them entered is not the step's: a sweep, a beat, a look that came by the clock.
        """
        plan = self.project / f"{name}.json"
        plan.write_text(json.dumps(PLANS[name]))
        arguments = ["run", str(plan)]
        warmed = called("soong.orchestrator.cli", arguments, env=self.environment, cwd=self.project, limit_s=LIMIT_S)
        assert warmed.returncode == 0, warmed.stderr + warmed.stdout
        noted = [self._noted(plan) for _ in range(RUNS)]
        always = set.intersection(*(set().union(*one.values()) for one in noted))
        return {process: lines & always for process, lines in noted[-1].items()}

    def _noted(self, plan: Path) -> dict[str, set[str]]:
        """Run a plan once and return what it entered, by process."""
        for note in (*self.notes.glob("*.txt"), *self.notes.glob("*.on"), *self.notes.glob("*.off")):
            note.unlink()
        (self.notes / "on").touch()
        self._until_all("on")
        self._run(plan)
        (self.notes / "on").unlink()
        self._until_all("off")
        return {note.stem: set(note.read_text().splitlines()) for note in self.notes.glob("*.txt")}

    def _until_all(self, state: str) -> None:
        """Wait until the probe of each living process has noticed."""

        def are_all() -> bool:
            recent_s = time.time() - STALE_S
            lives = {note.stem for note in self.notes.glob("*.lives") if note.stat().st_mtime > recent_s}
            return lives - {note.stem for note in self.notes.glob(f"*.{state}")} <= self._ended(lives)

        wait_until(are_all, what=state)

    def _ended(self, processes: set[str]) -> set[str]:
        return {one for one in processes if not Path("/proc", one).exists()}

    def _run(self, plan: Path) -> None:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "soong", "run", str(plan)],
            env=self.environment,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr + done.stdout


def product_only(lines: set[str]) -> set[str]:
    return {line for line in lines if line.split("/", 1)[0] in ROOMS and "/migrations/" not in line}


def walked(folder: Path) -> dict[str, tuple[int, int, dict[str, set[str]]]]:
    """Return functions, files and what each process entered, by plan."""
    walk = Walk(folder)
    service = subprocess.Popen(
        [sys.executable, "-P", "-m", "soong", "up", "--workers", "1", "--quiet"], env=walk.environment, cwd=walk.project
    )
    try:
        found = {}
        for name in PLANS:
            by_process = {process: product_only(lines) for process, lines in walk.entered(name).items()}
            every = set().union(*by_process.values())
            found[name] = (len(every), len({line.split("\t")[0] for line in every}), by_process)
        return found
    finally:
        service.terminate()
        service.wait(ENDED_S)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="soong-walk-") as folder:
        for name, (functions, files, by_process) in walked(Path(folder)).items():
            report = [f"{name}: {functions} functions in {files} files"]
            for process, lines in sorted(by_process.items(), key=lambda item: -len(item[1])):
                if lines:
                    places = {line.split("\t")[0] for line in lines}
                    report.append(f"  process {process}: {len(lines)} functions in {len(places)} files")
            if "--list" in sys.argv:
                report += sorted(set().union(*by_process.values()))
            sys.stdout.write("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
