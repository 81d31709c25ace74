"""``make mutants``: a bounded, repeatable walk over small violations of the modules that bear clauses.

Modules take turns, each mutant of a module in an order that the seed decides, until the time is over. The survivors are
printed as they are found; a run on a clean tree leaves its record in docs/proofs.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from queue import Queue
from random import Random

from tests.mutation.named import named_mutants
from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.report import Run, write
from tests.mutation.runner import Outcome, Verdict, Workplace
from tests.mutation.selection import Subject, subjects
from tests.spec_document import ROOT

Work = tuple[Subject, Mutant]
PER_TURN = 4
LONGEST_MINUTES = 24 * 60


def in_turns(chosen: Sequence[Subject], texts: dict[str, str], seed: int) -> list[Work]:
    """Return all mutants, a few per module in turn; the seed orders the modules and the mutants of each.

    A few, because a copy first has to learn how long a module's judges take when nothing is wrong.
    """
    shuffled = list(chosen)
    Random(seed).shuffle(shuffled)
    lanes: list[list[Work]] = []
    for subject in shuffled:
        lane = [(subject, mutant) for mutant in mutants_of(subject.path, texts[subject.path])]
        Random(f"{seed}/{subject.path}").shuffle(lane)
        lanes.append(lane)
    turns = [[lane[at : at + PER_TURN] for lane in lanes] for at in range(0, max(map(len, lanes), default=0), PER_TURN)]
    return [work for turn in turns for few in turn for work in few]


def judged(works: Sequence[Work], *, minutes: float, jobs: int) -> Iterator[Outcome]:
    """Judge mutants side by side until the time is over; what has begun by then is finished."""
    ends_s = time.monotonic() + minutes * 60
    places: Queue[Workplace] = Queue()

    def judge(works_of_one: Sequence[Work]) -> list[Outcome]:
        place = places.get()
        try:
            return [place.judge(*work) for work in works_of_one if time.monotonic() < ends_s]
        finally:
            places.put(place)

    with tempfile.TemporaryDirectory(prefix="soong-mutants-") as folder, ThreadPoolExecutor(jobs) as threads:
        for number in range(jobs):
            places.put(Workplace(ROOT, Path(folder) / str(number)))
        # One copy judges what follows of one module, as it has learnt how long that module's judges take.
        together = [list(group) for _, group in groupby(works, key=lambda work: work[0].path)]
        for future in as_completed([threads.submit(judge, few) for few in together]):
            yield from future.result()


def judge_named(jobs: int) -> int:
    """Judge the mutants with names; 1 when one of them is not noticed by its tests."""
    survived = 0
    for one in judged(list(named_mutants(ROOT)), minutes=LONGEST_MINUTES, jobs=jobs):
        print(f"{one.verdict}: {one.mutant.path}:{one.mutant.line} ({one.mutant.what})", flush=True)
        survived += one.verdict is not Verdict.KILLED
    return int(survived > 0)


def main() -> int:
    options = _options()
    if options.named:
        return judge_named(options.jobs)
    chosen = [each for each in subjects(ROOT) if each.path.startswith(tuple(options.modules or ("",)))]
    commit = _git("rev-parse", "--short", "HEAD")
    texts = {each.path: (ROOT / each.path).read_text(encoding="utf-8") for each in chosen}
    works = in_turns(chosen, texts, options.seed)
    print(
        f"{len(works)} mutants of {len(chosen)} modules; seed {options.seed}, {options.minutes:g} minutes", flush=True
    )
    outcomes = []
    for outcome in judged(works, minutes=options.minutes, jobs=options.jobs):
        outcomes.append(outcome)
        if outcome.verdict is not Verdict.KILLED:
            mutant = outcome.mutant
            print(f"{outcome.verdict}: {mutant.path}:{mutant.line} ({mutant.what})\n{outcome.diff}", flush=True)
    run = Run(
        commit,
        f"make mutants MINUTES={options.minutes:g} SEED={options.seed}",
        datetime.now(UTC).date().isoformat(),
        options.seed,
        options.minutes,
        len(chosen),
        len(works),
        outcomes,
    )
    print(", ".join(f"{run.counts[verdict]} {verdict}" for verdict in Verdict))
    if options.modules or _git("status", "--porcelain"):
        print("docs/proofs/mutants.json is not written: it is of all modules of a clean tree")
    else:
        write(run, ROOT / "docs" / "proofs")
    return 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0, help="no mutant begins after this time")
    parser.add_argument("--seed", type=int, default=1, help="chooses the mutants")
    parser.add_argument("--jobs", type=int, default=2, help="mutants judged side by side")
    parser.add_argument(
        "--named", action="store_true", help="judge the mutants of named.toml alone; fail for a survivor"
    )
    parser.add_argument("modules", nargs="*", help="beginnings of paths; all modules when left out")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
