"""``soong plans``; the plan that a command reads, from a file or standard input, and that of a fork that it writes."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import typer
import yaml

from soong.orchestrator.cli.options import CommandTable
from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.plan_modules import PlanModules
from soong.orchestrator.embedded.module_import import import_apart
from soong.orchestrator.terminal.api import Api
from soong.orchestrator.terminal.console import emit_text, say, visible
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.plan.reader import load_plan, parse_plan, plan_from_json
from soong.shared.engine.tasks.plan.yaml_document import read_document

COLUMNS: Final = 110
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_ ./()-]*")


app = CommandTable()


@app.command()
def show(
    plan: Path = typer.Argument(..., help="The plan: a Python file, FILE.py:NAME for one of several, or a YAML file."),
) -> None:
    """Print a plan as YAML: a plan in Python is imported for it, in a process of its own that has 20 seconds."""
    emit_text(plan_text(read_plan(plan).document))


def read_plan(path: Path, project: Path = Path(), *, imports: bool = False) -> Plan:
    """Read and check a plan file; with ``imports`` the modules that it names are imported, in a process of their own.

    Raises: InvalidPlanError, with every problem; UsageError, standard input is a terminal, or is not UTF-8 text.
    """
    settings = load_settings()
    catalogue = Catalogue.of(settings).at(project.absolute())
    modules = PlanModules(settings, catalogue, path, importer=import_apart if imports else None)
    if modules.is_python:
        return plan_from_json(modules.document(), str(path), modules.names())
    known = modules.names()
    return load_plan(path, known) if str(path) != "-" else parse_plan(standard_input(), "<stdin>", known)


def standard_input() -> str:
    """Return the plan that is piped in. Raises: UsageError."""
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("the plan '-' is standard input, and standard input is a terminal; pipe the plan into it")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text (byte {error.start}); send a plan as UTF-8") from error


async def write_fork(text: str, from_step: str, file: Path) -> None:
    """Write the plan of a fork to ``file``, which must be new; ``-`` is standard output."""
    async with Api() as api:
        plan = (await api.get(f"/v1/tasks/{await api.find('task', text)}/fork", **{"from": from_step}))["plan"]
    written = plan_text(plan)
    if file == Path("-"):
        emit_text(written)
        return
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(written)
    except FileExistsError:
        raise UsageError(f"{str(file)!r} exists; name a new file") from None
    except OSError as error:
        raise UsageError(f"{str(file)!r} cannot be written: {error.strerror}") from None
    say(f"{visible(str(file))}: change what you like, then `soong run {visible(str(file))}`")
    if isinstance(modules := plan.get("modules"), list | tuple) and modules:
        say(f"  its modules ({visible(', '.join(map(str, modules)))}) must be next to it")


def plan_text(plan: JsonObject) -> str:
    """Return a plan as YAML that people can change, or as JSON where YAML would say something else.
    Raises: InvalidPlanError when it is too large for a plan.
    """
    plain = _plain(plan)
    written = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=COLUMNS)
    return written if read_document(written, "the fork").value == plain else json.dumps(plain, indent=2)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are, and quotes what a reader might take for something else."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None if _PLAIN.fullmatch(value) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
