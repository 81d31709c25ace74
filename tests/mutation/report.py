"""What a mutation run leaves: docs/proofs/mutants.json for programs and docs/proofs/mutants.md for people."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from soong.shared.core.jsontext import Json
from tests.mutation.runner import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class Run:
    """The facts of a run. ``of`` is the number of mutants that the modules have."""

    commit: str
    command: str
    date: str
    seed: int
    minutes: float
    modules: int
    of: int
    outcomes: Sequence[Outcome]

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(outcome.verdict for outcome in self.outcomes)

    def listed(self, verdict: Verdict) -> list[Outcome]:
        chosen = [outcome for outcome in self.outcomes if outcome.verdict is verdict]
        return sorted(chosen, key=lambda outcome: (outcome.mutant.path, outcome.mutant.line, outcome.diff))


def write(run: Run, folder: Path) -> None:
    (folder / "mutants.json").write_text(
        json.dumps(_record(run), indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (folder / "mutants.md").write_text(_page(run), encoding="utf-8")


def _record(run: Run) -> dict[str, Json]:
    figures: dict[str, Json] = {
        "seed": run.seed,
        "minutes": run.minutes,
        "modules": run.modules,
        "mutants_possible": run.of,
        "mutants_judged": len(run.outcomes),
        **{verdict.name.lower(): run.counts[verdict] for verdict in Verdict},
    }
    return {
        "clauses": [],
        "commit": run.commit,
        "command": run.command,
        "date": run.date,
        "figures": figures,
        "survivors": [
            {"place": f"{one.mutant.path}:{one.mutant.line}", "what": one.mutant.what, "diff": one.diff}
            for one in run.listed(Verdict.SURVIVED)
        ],
    }


def _page(run: Run) -> str:
    rows = "\n".join(f"| {verdict} | {run.counts[verdict]} |" for verdict in Verdict)
    return f"""# Mutants: what the tests do not see

`make mutants` changes the product in one small place at a time, in a copy of the tree, and runs the tests that carry
the clauses which the changed module names. A mutant that no test notices *survives*: either the change makes no
difference, or a test is missing. `MINUTES` bounds the run, `SEED` chooses the mutants; the same seed chooses the same
ones in the same order.

| | |
|---|---|
| command | `{run.command}` |
| commit, date | {run.commit}, {run.date} |
| modules, possible mutants, judged | {run.modules}, {run.of}, {len(run.outcomes)} |
{rows}

{_section("Survivors", run.listed(Verdict.SURVIVED))}
{_section("Noticed only by tests without a clause of the module", run.listed(Verdict.ELSEWHERE))}"""


def _section(title: str, outcomes: Sequence[Outcome]) -> str:
    entries = [
        f"- `{one.mutant.path}:{one.mutant.line}` {one.mutant.what}\n\n  ```diff\n{_indented(one.diff)}\n  ```\n"
        for one in outcomes
    ]
    return f"## {title}\n\n" + ("\n".join(entries) if entries else "None.\n")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
