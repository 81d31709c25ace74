"""The program of a process that makes one call of a step function (:mod:`soong.worker.function_step`)."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from soong.shared.agents.runtime.stop_signal import StopSignal
from soong.shared.core.errors import SoongError
from soong.shared.core.identity import Origin, Role, RunIdentity
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.functions import StepContext, resolve
from soong.shared.engine.tasks.step import StepError
from soong.shared.toolsets.modules import import_own
from soong.worker.function_step import decoded, encoded, outcome_of


def main() -> None:
    """Read the request from stdin, write the answer to stdout; what the function prints goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    output, error = _outcome(decoded(sys.stdin.buffer.read()))
    with os.fdopen(answer, "wb") as file:
        file.write(encoded({"output": output, "error": error and error.as_json()}))


def _outcome(request: dict[str, Any]) -> tuple[Json, StepError | None]:
    try:
        for module in dict.fromkeys(request["modules"]):
            import_own(module, "SOONG_FUNCTIONS", request["folders"])
        function = resolve(request["function"])
    except SoongError as error:
        return None, StepError("invalid_input", str(error))
    who = request["identity"]
    origin = Origin(who.pop("dispatched_by"), who.pop("is_foreign"))
    identity = RunIdentity(**{**who, "role": Role(who["role"])}, origin=origin)
    context = StepContext(identity, request["attempt"], request["effect_key"], Path(request["run_dir"]))
    return asyncio.run(outcome_of(function, request["inputs"], context, StopSignal()))
