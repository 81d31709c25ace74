"""Reads the plan that a command names: a file, or ``-`` for standard input."""

import sys
from pathlib import Path

from soong.shared.core.errors import UsageError
from soong.shared.engine.tasks.plan.plan import Plan, PlanNames
from soong.shared.engine.tasks.plan.reader import load_plan, parse_plan


def read_plan(path: Path, known: PlanNames) -> Plan:
    """Read and check a plan.

    Raises:
        InvalidPlanError: with every problem.
        UsageError: standard input is a terminal, or is not UTF-8 text.
    """
    if str(path) != "-":
        return load_plan(path, known)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("the plan '-' is standard input, and standard input is a terminal; pipe the plan into it")
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 text (byte {error.start}); send a plan as UTF-8") from error
    return parse_plan(text, "<stdin>", known)
