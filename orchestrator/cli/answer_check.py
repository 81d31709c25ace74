"""``soong doctor``: whether a program of a run is distinguished from a person who answers (PER-13)."""

import os
import resource

from soong.orchestrator.approvals.provenance import is_run_here
from soong.orchestrator.cli.finding import Finding, Level
from soong.shared.core.settings import Settings
from soong.shared.sandbox.family import HAS_MARK
from soong.shared.sandbox.subreaper import RLIMIT_LOCKS

_NOT_KNOWN = "one that another service starts for it (at, systemd-run, tmux, ssh, a container) is not recognised"


async def check_answers(settings: Settings) -> Finding:
    """Programs of runs are recognised, and this process is not one."""
    if is_run_here():
        limit = resource.getrlimit(RLIMIT_LOCKS)[1] if HAS_MARK else resource.RLIM_INFINITY
        why = "a run started this process" if limit == resource.RLIM_INFINITY else f"`ulimit -H -x` is {limit} here"
        hint = "answer from a terminal that no run started; if a login sets that limit, remove it"
        return Finding("answers", Level.FAIL, f"{why}: answers from here are refused", hint)
    if not HAS_MARK:
        says = (
            "a program of a run is recognised only while its worker lives above it: this system has no limit to mark it"
        )
        return Finding("answers", Level.WARN, says, "run workers on Linux, or as a user of their own")
    if os.geteuid() == 0:
        says = "you are root: a program of a run that is root too can remove the mark by which it is recognised"
        return Finding("answers", Level.WARN, says, "run the service as a user without privileges")
    whose = "of your own user" if settings.is_embedded else "of the workers' user"
    return Finding("answers", Level.OK, f"a program of a run {whose} is recognised and answers nothing; {_NOT_KNOWN}")
