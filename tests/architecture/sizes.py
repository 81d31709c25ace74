"""Product lines by capability: what each thing that Soong can do costs a reader. CI prints this table.

Every product module belongs to exactly one capability, the first below whose places it is in.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.spec_document import ROOT

ROOMS: Final = ("orchestrator", "shared", "soong", "worker")
CAPABILITIES: Final[Mapping[str, Sequence[str]]] = {
    "MCP client": ("shared/toolsets/mcp/",),
    "MCP server": ("orchestrator/mcp/", "orchestrator/http/mcp_"),
    "agents over ACP": ("orchestrator/acp/", "worker/acp/", "shared/agents/acp_agents"),
    "memory": ("orchestrator/memory/", "shared/storage/memory/", "shared/toolsets/memory/"),
    "notifications": ("orchestrator/notifications/", "shared/core/notification_config"),
    "telemetry and metrics": ("orchestrator/telemetry/", "orchestrator/event_log/"),
    "replay": ("orchestrator/replay/", "shared/agents/replay/"),
    "retention and backups": ("orchestrator/retention/", "orchestrator/backup/", "shared/storage/sql/tasks/retention"),
    "declarative tools, skills, hooks": (
        "shared/toolsets/declarative/",
        "shared/toolsets/skills/",
        "shared/tools/hooks/",
    ),
    "web tool": ("shared/toolsets/web/",),
    "file and command tools": ("shared/toolsets/code/",),
    "tools of tasks and agents": ("shared/toolsets/",),
    "tool registry and pipeline": ("shared/tools/",),
    "sandbox, programs, files": ("shared/sandbox/",),
    "consent": ("shared/permissions/", "orchestrator/approvals/", "shared/storage/sql/consent/"),
    "tokens and keys": ("shared/storage/sql/people/",),
    "agent loop and models": ("shared/agents/",),
    "plan language": ("shared/engine/tasks/plan/",),
    "engine": ("shared/engine/", "shared/storage/sql/claims/", "shared/storage/sql/tasks/"),
    "SQL engine": ("shared/storage/sql/",),
    "Redis, Celery, artifacts": ("shared/storage/",),
    "owner process": ("orchestrator/owner/",),
    "worker process": ("worker/",),
    "embedded service": ("orchestrator/embedded/",),
    "operations": ("orchestrator/operations/", "orchestrator/schemas/"),
    "HTTP API and console server": ("orchestrator/http/",),
    "command line": ("orchestrator/cli/", "orchestrator/terminal/", "orchestrator/doctor/"),
    "client and SDK": ("orchestrator/client/", "orchestrator/direct/", "orchestrator/", "soong/"),
    "core": ("shared/core/", "shared/"),
}


def sizes(root: Path = ROOT) -> dict[str, int]:
    """Return the product lines of each capability."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=root, capture_output=True, text=True, check=True).stdout
    found = dict.fromkeys(CAPABILITIES, 0)
    for name in listed.splitlines():
        if name.split("/")[0] in ROOMS and "/migrations/" not in name:
            found[capability_of(name)] += (root / name).read_text(encoding="utf-8").count("\n")
    return found


def capability_of(path: str) -> str:
    """Return the capability that a product module is part of. Raises: StopIteration, it is part of none."""
    return next(name for name, places in CAPABILITIES.items() if path.startswith(tuple(places)))


def main() -> None:
    found = sizes()
    rows = sorted(found.items(), key=lambda item: -item[1])
    sys.stdout.write("".join(f"{lines:>7}  {name}\n" for name, lines in (*rows, ("all", sum(found.values())))))


if __name__ == "__main__":
    main()
