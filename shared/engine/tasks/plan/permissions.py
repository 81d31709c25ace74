"""The permissions that a step declares beforehand: folders and files to write, hosts, programs (PER-17).

It is a declaration and grants nothing: it lets a person see the questions before the start, and answer once per step
(:mod:`soong.shared.permissions.preview`). Texts are templates like a step's inputs; each is checked by the rules here
in the plan, and again when its references have been looked up.
"""

import posixpath
from collections.abc import Sequence
from typing import Final

from soong.shared.core.errors import BudgetExceededError, TemplateError
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.template import Scope, as_text, render
from soong.shared.engine.tasks.spec import DeclaredPermissions
from soong.shared.sandbox.hosts import HostRefusedError, host_of_url, normal_host

MAX_DECLARED: Final = 100
"""Permissions of each kind: a person could not review a longer list."""
MAX_WORDS: Final = 200
REFERENCE: Final = "${"

PermissionProblem = tuple[str, str]
"""Problem and hint."""


def looked_up(texts: Sequence[str], scope: Scope, budget: ExpansionBudget) -> tuple[str, ...] | None:
    """Return texts with their references looked up; None when one of them is not known yet.
    Raises: BudgetExceededError.
    """
    found = []
    try:
        for text in texts:
            value = render(text, scope, budget)
            budget.spend_text(budget.size_of(value))
            found.append(as_text(value))
    except BudgetExceededError:
        raise
    except TemplateError:
        return None
    return tuple(found)


def rendered(permissions: DeclaredPermissions, scope: Scope, budget: ExpansionBudget) -> DeclaredPermissions:
    """Return what is declared with its references looked up. One that names nothing stays as it was written.

    A declaration must not keep a step from running. Raises: BudgetExceededError.
    """
    return DeclaredPermissions(
        tuple((looked_up([text], scope, budget) or (text,))[0] for text in permissions.write),
        tuple((looked_up([text], scope, budget) or (text,))[0] for text in permissions.hosts),
        tuple(looked_up(words, scope, budget) or words for words in permissions.run),
    )


def write_problem(path: str) -> PermissionProblem | None:
    """Say what is wrong with a folder or file to be written; None when nothing is, or it is not known yet."""
    if REFERENCE in path:
        return None
    if not path.strip() or "\0" in path:
        return f"{path!r} is not a path", "name a folder or a file"
    if "*" in path:
        return f"{path!r} is a pattern", "name the folder, or each file"
    if path.startswith("~"):
        return f"{path!r} begins with `~`, which no tool expands", "write the full path"
    if posixpath.normpath(path).strip("/") == "":
        return f"{path!r} is the entire file system", "name the folder that the step writes in"
    return None


def host_problem(host: str) -> PermissionProblem | None:
    """Say what is wrong with a host; None when nothing is, or it is not known yet."""
    if REFERENCE in host:
        return None
    if "*" in host:
        return f"{host!r} is a pattern", "name each host"
    if "://" in host:
        return f"{host!r} is a URL", _host_hint(host)
    try:
        normal_host(host)
    except HostRefusedError as error:
        return str(error), "write a host such as api.example.org, without scheme, port and path"
    return None


def run_problem(words: Sequence[str]) -> PermissionProblem | None:
    """Say what is wrong with a program and its arguments; None when nothing is."""
    if not words or not words[0].strip():
        return "it names no program", "write the program first, such as [git, status]"
    if len(words) > MAX_WORDS:
        return f"it has {len(words)} words", f"write at most {MAX_WORDS}"
    if any("\0" in word for word in words):
        return "it holds a NUL character", "no program can be given one"
    if len(words) == 1 and REFERENCE not in words[0] and " " in words[0].strip():
        return f"{words[0]!r} is a command line", f"write its words one by one: [{', '.join(words[0].split())}]"
    return None


def _host_hint(url: str) -> str:
    try:
        return f"write {host_of_url(url)}"
    except HostRefusedError:
        return "write its host alone, such as api.example.org"
