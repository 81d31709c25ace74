"""``soong tasks fork``: an ended task as a plan that runs again from one step on."""

import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from soong.orchestrator.cli.console import emit_text, say, visible
from soong.orchestrator.cli.ids import find_task, opened_store
from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import load_settings
from soong.shared.engine.tasks.plan.yaml_document import read_document
from soong.shared.engine.tasks.rerun import forked_plan
from soong.shared.engine.tasks.status import StepStatus

COLUMNS: Final = 110
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_ ./()-]*")


async def write_fork(text: str, from_step: str, file: Path) -> None:
    """Write the plan of a fork to ``file``, which must be new; ``-`` is standard output."""
    async with opened_store(load_settings()) as store:
        task, steps = await store.tasks.task_with_steps((await find_task(store, text)).id)
        if not task.status.is_terminal:
            raise UsageError(f"task {task.id} is {task.status}; fork it when it has ended")
        done = [step for step in steps if step.status is StepStatus.COMPLETED and not step.map_key]
        results = {step.key: await store.tasks.result(step.key) for step in done}
    plan = forked_plan(task, steps, results, from_step)
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
    if modules := plan.get("modules"):
        say(f"  its modules ({visible(', '.join(map(str, _texts(modules))))}) must be next to it")


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


def _texts(value: Any) -> list[str]:
    return list(value) if isinstance(value, list | tuple) else []
