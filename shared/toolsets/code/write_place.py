"""Where a write may go, and that it goes where it was permitted (FS-07, FS-09); for every tool that writes a file."""

from soong.shared.sandbox.descriptors import PathRefusal, PathRefusedError
from soong.shared.sandbox.paths import Located, PathPolicy
from soong.shared.tools.definition import ToolContext


def locate_for_writing(policy: PathPolicy, context: ToolContext, path: str) -> Located:
    """Find the place of a file to be written.

    Raises:
        PathRefusedError: it is protected, or can only be a directory.
    """
    located = policy.locate(context.run_dirs, path)
    if located.is_protected:
        problem = "is a control of this service, a part of its program or a control of a repository; no tool writes it"
        hint = "ask a person to change it by hand; an environment that agents may change is one that Soong is not in"
        raise PathRefusedError(PathRefusal.PROTECTED, path, problem, hint)
    if path.endswith("/") or located.resolved.name in ("", ".", ".."):
        raise PathRefusedError(PathRefusal.INVALID, path, "names a directory, not a file")
    return located


def check_write_permitted(located: Located, context: ToolContext) -> None:
    """Hold a place to what was shown; without a pipeline only the write roots are open.

    Raises:
        PathRefusedError: it leads elsewhere now, or lies outside without consent.
    """
    if context.target.shown and context.target.shown != str(located.resolved):
        problem = "leads elsewhere than when it was permitted"
        raise PathRefusedError(PathRefusal.CHANGED, located.given, problem, "call again")
    if not located.is_inside_write_roots and not context.allowed_outside:
        problem = "lies outside the write roots and was not permitted"
        raise PathRefusedError(PathRefusal.OUTSIDE, str(located.resolved), problem, "write below the working directory")
