"""Every drawing that we write can be read by Mermaid itself: those of the documents and those of plans."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.plan_modules import PlanModules
from soong.shared.core.settings import Settings
from soong.shared.engine.tasks.plan.checks import mermaid
from soong.shared.engine.tasks.plan.reader import load_plan, parse_plan
from tests.extra import INSISTS, missing

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)


HOSTILE = (
    "x\n%% ",
    "x\r%%",
    "\u2028%%{init: {'theme': 'dark'}}%%",
    '%%{init: {"flowchart": {}}}%%',
    '"]\n  s9 --> s0',
    "#quot;]",
    "`**b**`",
    "end",
    "-->",
    "a;b",
    "<script>x</script>",
    "\ufb02\xb0\xb034\xb6\xdf]",
    "\\n%% z",
    "click s0 href x",
    "subgraph",
    "s9[x]",
    "---\ntitle: y\n---",
    "\x85 %%",
    "&quot;]",
    "@{ shape: x }",
    "s0@{shape: cyl}",
    "$$x$$",
    "a\x1b[2J\u202e",
    "s0 & s1",
)
"""Titles that are syntax of Mermaid, or that begin a comment, a directive or another line."""


def drawings(home: Path) -> Iterator[tuple[str, str]]:
    for document in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
        blocks = re.findall(r"```mermaid\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
        yield from ((f"{document.relative_to(ROOT)} {place}", block) for place, block in enumerate(blocks))
    settings = Settings(agent_home=home)
    catalogue = Catalogue.of(settings)
    for plan in sorted(ROOT.glob("examples/*.yaml")):
        names = PlanModules(settings, catalogue, plan, importer=None).names()
        yield plan.name, mermaid(load_plan(plan, names))
    for title in HOSTILE:  # spelled as names, which come back a line each
        yield f"title {title!a}", mermaid(parse_plan(json.dumps(hostile_plan(title)), "p.json"))
    yield "broken", "flowchart TD\n a --> --> b"


def hostile_plan(title: str) -> dict[str, object]:
    steps = [
        {"id": "a", "title": title, "instructions": "x"},
        {"id": "b", "title": title, "kind": "python", "call": "builtin.echo", "depends_on": ["a"]},
        {"id": "c", "kind": "map", "over": "${b.output}", "depends_on": ["b"], "step": {"instructions": "x"}},
    ]
    return {"title": title, "steps": steps}


@pytest.mark.spec("DAG-08.c")
def test_mermaid_reads_every_drawing(tmp_path: Path) -> None:
    if not INSISTS:
        missing("Mermaid comes from npm")
    if shutil.which("npm") is None or shutil.which("node") is None:
        missing("there is no npm and node")
    folder = tmp_path / "npm"
    shutil.copytree(ROOT / "tests" / "npm", folder)
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True, timeout=400)
    wanted = dict(drawings(tmp_path / "home"))

    told = "\n".join(json.dumps({"name": name, "text": text}) for name, text in wanted.items())
    done = subprocess.run(
        ["node", "mermaid.mjs"], input=told, cwd=folder, check=True, capture_output=True, text=True, timeout=120
    )
    answers = {answer["name"]: answer for answer in map(json.loads, done.stdout.splitlines())}

    assert answers.keys() == wanted.keys()
    assert {name for name, answer in answers.items() if answer["problem"]} == {"broken"}
    hostile = [answers[f"title {title!a}"] for title in HOSTILE]
    assert all((len(one["vertices"]), one["edges"], one["config"]) == (3, 2, {}) for one in hostile), hostile
