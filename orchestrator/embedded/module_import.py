"""Imports the modules of a plan and returns what they register: here, or in a child process that has a time limit.

To import a module is to run it. ``soong run`` runs its functions anyway. ``soong tasks validate`` runs nothing else, so
what a module does at import, or that it does not end, stays in the child.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from soong.shared.core import timing
from soong.shared.core.errors import InvalidConfigError, InvalidPlanError, Problem
from soong.shared.engine.tasks.functions import called_tools, known_agents, known_functions, known_scripts
from soong.shared.engine.tasks.plan.plan import Registered
from soong.shared.engine.tasks.python_plan.definition import document_of
from soong.shared.toolsets.modules import import_own

FIELD: Final = "the plan"
_NO_PLAN: Final = ("", "")


def import_here(
    modules: Sequence[str], functions: Sequence[str], folders: Sequence[str], plan: Sequence[str] = _NO_PLAN
) -> Registered:
    """Import a plan's modules, and those of ``SOONG_FUNCTIONS``, into this process.

    ``plan`` is the module and the name of a plan in Python, whose document is made.

    Raises: InvalidConfigError, one of them cannot be imported; InvalidPlanError, the plan is unknown or wrong.
    """
    for name in modules:
        import_own(name, FIELD, folders)
    for name in functions:
        import_own(name, "SOONG_FUNCTIONS", folders)
    scripts = {
        name: () if name.startswith("builtin.") else called_tools(one.body) for name, one in known_scripts().items()
    }
    versions = {name: one.version for name, one in known_functions().items()}
    return Registered(versions, scripts, tuple(known_agents()), document_of(*plan) if plan[0] else None)


def import_apart(
    modules: Sequence[str],
    functions: Sequence[str],
    folders: Sequence[str],
    plan: Sequence[str] = _NO_PLAN,
    *,
    limit_s: float = timing.CHILD_LIMIT_S,
) -> Registered:
    """Do the same in a child process, which ends with all that it has started.
    Raises: likewise; InvalidConfigError, when the import does not end in time, or ends the process.
    """
    names = ", ".join((*modules, *functions))
    argv = [sys.executable, "-P", "-m", __name__]
    child = subprocess.Popen(  # this program
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        output = child.communicate(json.dumps([modules, functions, folders, plan]).encode(), limit_s)[0]
        answer = json.loads(output)
    except subprocess.TimeoutExpired:
        raise InvalidConfigError(f"{names}: the import takes longer than {limit_s:g} s") from None
    except ValueError:
        raise InvalidConfigError(f"{names}: the import ended its process") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    if "problems" in answer:
        raise InvalidPlanError([Problem(*problem) for problem in answer["problems"]])
    if "error" in answer:
        raise InvalidConfigError(answer["error"])
    return Registered(**answer)


def _answer() -> None:
    """Read the order from standard input and write the answer to standard output; prints of modules go nowhere."""
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        found = import_here(*json.load(sys.stdin))
        answer: dict[str, object] = dict(found.as_json())
    except InvalidPlanError as error:
        answer = {"problems": [(one.place, one.problem, one.hint) for one in error.problems]}
    except InvalidConfigError as error:
        answer = {"error": str(error)}
    with answer_to:
        json.dump(answer, answer_to)


if __name__ == "__main__":
    _answer()
