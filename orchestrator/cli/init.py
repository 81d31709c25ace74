"""``soong init``: a plan of your own to start from; ``soong demo``: an installed example. Both run at once (OPS-14)."""

import os
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import typer

from soong.orchestrator.cli.console import emit, output, say, table, why_nobody_is_asked
from soong.orchestrator.cli.options import ALLOW, INPUT, JSON, RESULT_AS_JSON, SETTING
from soong.orchestrator.cli.run import run_plan
from soong.orchestrator.cli.service_run import RunArguments
from soong.orchestrator.client.program import program, program_elsewhere
from soong.shared.core.errors import UsageError
from soong.shared.core.installation import PACKAGE
from soong.shared.core.settings import load_settings
from soong.shared.core.value import Value

PLAN: Final = """\
# A plan: steps, and what each waits for. All fields: soong help tasks validate, docs/plans.md
#
#   soong tasks validate plan.yaml
#   soong run plan.yaml
#   soong run plan.yaml --model anthropic:NAME      # a model does the work, not steps.py
title: Count the words of a project
modules: [steps]                       # steps.py, next to this file

inputs:
  glob:
    default: "*.md"
    description: files to read

steps:
  - id: find
    title: Find the files
    agent: project.reader              # .soong/agents/reader.md
    allowed_tools: [code.search]       # exactly these tools, and no others
    instructions: Search with code.search for files that match ${inputs.glob}, and answer with their paths, at most 20.
    inputs: {glob: "${inputs.glob}"}
    output:                            # the form of the answer, as a JSON Schema
      type: object
      required: [files]
      properties:
        files: {type: array, items: {type: string}}
    script: steps.find                 # what runs when no model is given

  - id: read
    kind: map                          # one step for each file, in parallel
    depends_on: [find]
    over: ${find.output.files}
    as: file
    step:
      title: Read ${file}
      agent: project.reader
      allowed_tools: [code.read_file]
      instructions: Read ${file} with code.read_file, and answer with its path and its number of words.
      inputs: {file: "${file}"}
      output:
        type: object
        required: [file, words]
        properties:
          file: {type: string}
          words: {type: integer}
      script: steps.read

  - id: total
    title: Add them up
    kind: python                       # a function, no agent
    call: steps.total
    depends_on: [read]
    inputs: {counted: "${read.output}"}

  # A step that writes asks you first. Remove the marks to see it.
  # - id: write
  #   depends_on: [total]
  #   allowed_tools: [code.write_file]
  #   instructions: Write the result to words.json.
  #   inputs: {result: "${total.output}"}
  #   script: steps.write
"""

STEPS: Final = '''\
"""What the steps of plan.yaml do: scripted agents, for when no model is chosen, and a step function."""

import json

from soong import AgentHandle, JsonObject, StepContext, scripted_agent, step_function


@scripted_agent("steps.find")
async def find(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    found = await agent.call("code.search", query=".", glob=inputs["glob"])
    return {"files": sorted({match["path"] for match in found["matches"]})[:20]}


@scripted_agent("steps.read")
async def read(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    text = await agent.call("code.read_file", path=inputs["file"])
    return {"file": inputs["file"], "words": len(text["text"].split())}


@scripted_agent("steps.write")
async def write(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    await agent.call("code.write_file", path="words.json", content=json.dumps(inputs["result"]) + "\\n")
    return inputs


@step_function("steps.total")
def total(inputs: JsonObject, context: StepContext) -> JsonObject:
    return {"files": len(inputs["counted"]), "words": sum(each["words"] for each in inputs["counted"])}
'''

AGENT: Final = """\
---
description: Reads files and reports facts about them. Plans name it `project.reader`.
mode: readonly                           # no tool that changes anything
# suggested_tools: [code.read_file, code.list_dir, code.search]   # for steps without allowed_tools
# model: anthropic:claude-sonnet-5-5     # your config.toml must allow it: [agents] project_models
# limits: {max_turns: 30}
---
You read files of a project and report facts about them. Say nothing that you have not read. Do not guess.
"""

CONFIG: Final = """\
# Your configuration: what agents may do, wherever they run. A project cannot change it. See docs/permissions.md

[permission]
mode = "auto"                  # or "strict": every call that does more than read asks

# [[permission.rules]]         # deny beats ask beats allow
# effect = "allow"
# tools = "code.write_file"
# scope = "/work/out"          # an allow rule needs a scope

# [tools]
# dangerous = true             # code.run_command; each call still asks

# [agents]
# project_models = ["anthropic:*"]     # models that agents of a project may choose

# [notifications.desktop.screen]       # also webhook, email, ntfy, slack: docs/reference/notifications.md

# [[notifications.rules]]
# channel = "screen"
# events = ["question", "failure", "end"]
"""

_FILES = {"plan.yaml": PLAN, "steps.py": STEPS, ".soong/agents/reader.md": AGENT}


def command(
    folder: Path = typer.Argument(Path(), metavar="[DIR]", help="Folder of the project."),
    *,
    is_json: bool = JSON,
) -> None:
    """Write a plan, its functions and an agent with comments, and a configuration if you have none.

    No file is replaced: if one of the project's files exists, nothing is written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name another")
    # A link counts too, wherever it leads.
    if taken := [name for name in _FILES if os.path.lexists(folder / name)]:
        raise UsageError(f"{folder.absolute()} has {', '.join(taken)} already; name another folder: soong init DIR")
    written = [_written(folder / name, text) for name, text in _FILES.items()]
    config = load_settings().home / "config.toml"
    if not os.path.lexists(config):
        config.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written.append(_written(config, CONFIG, mode=0o600))
    if is_json:
        emit({"files": [str(path) for path in written]})
        return
    output("\n".join(str(path) for path in written))
    # Relative paths start where the command is typed, so it is typed there.
    is_here = folder.resolve() == Path.cwd()
    there = "" if is_here else f"cd {shlex.quote(str(folder))} && "
    say(f"edit them, then: {there}{program() if is_here else program_elsewhere()} run plan.yaml")


def _written(path: Path, text: str, *, mode: int = 0o644) -> Path:
    """Write a new file. Raises: UsageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return path


EXAMPLES: Final = PACKAGE / "examples"
AUDITED: Final = "celery"
"""A package that every installation has, for the audit to read."""

_SHOWN: Final = frozenset({".py", ".yaml", ".md"})


class Example(Value):
    """One plan, and the files that go with it: all of its own folder, or those next to it that have its name."""

    name: str
    plan: Path

    @property
    def summary(self) -> str:
        """Return what its first line says it shows."""
        first = self.plan.read_text(encoding="utf-8").partition("\n")[0]
        return first.removeprefix("#").strip()

    @property
    def files(self) -> tuple[Path, ...]:
        """Return what a copy of it consists of."""
        siblings = sorted(file for file in self.plan.parent.iterdir() if file.suffix in _SHOWN and file.is_file())
        if self.plan.parent == EXAMPLES:
            return tuple(file for file in siblings if file.stem == self.name)
        return tuple(siblings)


def examples() -> tuple[Example, ...]:
    """Return every example, by name."""
    plans = (*EXAMPLES.glob("*.yaml"), *(plan for plan in EXAMPLES.glob("*/*.yaml") if plan.stem == plan.parent.name))
    return tuple(sorted((Example(plan.stem, plan) for plan in plans), key=lambda one: one.name))


def example_named(name: str) -> Example:
    """Return an example. Raises: UsageError, naming those that there are."""
    known = {one.name: one for one in examples()}
    if name not in known:
        raise UsageError(f"there is no example {name!r}; choose one of {', '.join(known)}")
    return known[name]


def audited_package() -> Path:
    """Return the folder of a code base that is installed everywhere."""
    spec = find_spec(AUDITED)
    assert spec is not None, "it is a dependency of this program"
    assert spec.origin is not None, "a package with an __init__.py"
    return Path(spec.origin).parent


DEFAULT = "audit"


def demo(
    name: str = typer.Argument(DEFAULT, metavar="[NAME]", help="The example (--list shows them)."),
    *,
    is_listed: bool = typer.Option(False, "--list", help="List the examples."),
    copy_to: Path | None = typer.Option(
        None, "--copy", metavar="DIR", help="Copy the example into a folder, to be edited, and run nothing."
    ),
    project: Path | None = typer.Option(
        None, "--project", help="Folder that the agents work in [.; for the audit: the installed Celery]."
    ),
    given: list[str] = INPUT,
    model: str | None = typer.Option(None, "--model", help="Let a model do the work, not the scripted agents."),
    setting: list[str] = SETTING,
    allow: list[str] = ALLOW,
    budget: list[str] = typer.Option(
        [], "--budget", metavar="LIMIT", help="What a model may use in all: 2usd, 200ktok."
    ),
    is_json: bool = RESULT_AS_JSON,
) -> None:
    """Run an example that is installed with Soong: no key, no model and no checkout is needed."""
    if is_listed:
        _list_examples(is_json=is_json)
        return
    example = example_named(name)
    if copy_to is not None:
        _copy(example, copy_to, is_json=is_json)
        return
    if name == DEFAULT:
        project, given, allow = _for_the_audit(project, given, allow)
    raise typer.Exit(
        run_plan(RunArguments(example.plan, project or Path(), given, model, setting, allow, budget, is_json))
    )


def _list_examples(*, is_json: bool) -> None:
    found = examples()
    if is_json:
        emit([{"name": one.name, "summary": one.summary, "plan": str(one.plan)} for one in found])
        return
    output(table(("example", "what it shows"), [(one.name, one.summary) for one in found]))


def _copy(example: Example, folder: Path, *, is_json: bool) -> None:
    """Copy the files of an example; none of the folder's own is replaced. Raises: UsageError."""
    files = example.files
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; choose another with --copy DIR")
    if taken := [file.name for file in files if (folder / file.name).exists()]:
        raise UsageError(f"{folder} has {', '.join(taken)} already; choose another folder with --copy DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)
    plan = folder / example.plan.name
    if is_json:
        emit({"plan": str(plan), "files": [str(folder / file.name) for file in files]})
    else:
        output(str(plan))
        say(f"edit it, then: {program()} {shlex.join(['run', str(plan)])}")


def _for_the_audit(
    project: Path | None, given: list[str], allow: list[str]
) -> tuple[Path | None, list[str], list[str]]:
    """Write the report where the command is typed. Where nobody can be asked, one rule allows exactly that folder."""
    here = Path.cwd()
    if not any(word.startswith("report_dir=") for word in given):
        given = [*given, f"report_dir={here}"]
        if why_nobody_is_asked() and not allow:
            allow = [f"code.write_file:{here}"]
    return project or audited_package(), given, allow
