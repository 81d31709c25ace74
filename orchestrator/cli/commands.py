"""The table of commands: the purpose of each, its group in the help, and examples.

Nothing is imported here: `soong --help` prints this table without paying for the commands.
"""

from collections.abc import Mapping
from typing import Final

from soong.shared.core.value import Value


class CommandEntry(Value):
    """A command before its module is imported. ``place`` is ``MODULE:NAME`` of its function or group.

    Without a name it is the group ``app`` of the module, or its function ``command``.
    """

    place: str
    summary: str
    examples: tuple[str, ...] = ()


GROUPS: Final[Mapping[str, Mapping[str, CommandEntry]]] = {
    "Run plans": {
        "ask": CommandEntry(
            "run:ask",
            "Give an agent a goal: it plans, has workers do the work, and answers.",
            (
                "soong ask 'Why is the test suite slow?' --model anthropic:claude-sonnet-5-5",
                "soong ask 'Add type hints to src/' --allow code.write_file:$PWD/src",
                "soong ask - --agent reviewer --json < question.txt",
            ),
        ),
        "run": CommandEntry(
            "run",
            "Run a plan and follow it to its end.",
            (
                "soong run plan.yaml --input glob='*.py'",
                "soong run plan.yaml --allow code.write_file:$PWD --json",
                "soong run words.py --input text='to be or not'",
                "soong run - < plan.yaml",
            ),
        ),
        "init": CommandEntry(
            "init",
            "Write a plan of your own to start from, which runs at once.",
            ("soong init", "soong init my-project"),
        ),
        "demo": CommandEntry(
            "init:demo",
            "Run an example that is installed with Soong, without a key; or copy it.",
            ("soong demo", "soong demo --list", "soong demo hello --copy my-plan"),
        ),
        "resume": CommandEntry(
            "submitting:resume",
            "Continue a paused, interrupted or failed task.",
            ("soong resume --last", "soong resume 53d24b3 --model openai:gpt-5"),
        ),
        "tasks": CommandEntry(
            "tasks",
            "List, show, validate, draw, pause and cancel tasks.",
            (
                "soong tasks list",
                "soong tasks validate plan.yaml",
                "soong tasks graph plan.yaml --format svg > plan.svg",
            ),
        ),
        "plans": CommandEntry(
            "plan_files",
            "Show a plan in Python as YAML.",
            ("soong plans show words.py", "soong plans show team.py:audit"),
        ),
        "runs": CommandEntry(
            "runs",
            "List, show and follow the runs of agents.",
            ("soong runs list --task 53d24b3", "soong runs tail TASK/STEP --follow"),
        ),
        "replay": CommandEntry(
            "runs:replay",
            "Play a task again from its record, offline; say what would differ now.",
            ("soong replay 53d24b3", "soong replay 53d24b3 --step review --json"),
        ),
        "budget": CommandEntry(
            "usage:budget",
            "Show what a session, or the day, may use; set it.",
            ("soong budget", "soong budget 53d24b3 --set 5usd"),
        ),
        "usage": CommandEntry(
            "usage",
            "Show what agents have used, in requests, tokens and money.",
            ("soong usage --by model --since 30d", "soong usage --by task --json"),
        ),
    },
    "Answer and allow": {
        "approvals": CommandEntry(
            "approvals",
            "List, show and answer questions that wait for a person.",
            ("soong approvals watch", "soong approvals allow 7f3a --session"),
        ),
        "notifications": CommandEntry(
            "notifications",
            "List notifications, test a channel, send again what was given up.",
            ("soong notifications test ops", "soong notifications list --all"),
        ),
        "permissions": CommandEntry(
            "permissions",
            "Show which rules decide on tool calls.",
            ("soong permissions explain", "soong permissions explain --tool code.write_file path=report.md"),
        ),
        "audit": CommandEntry(
            "access:audit",
            "Export and verify who answered and decided what.",
            ("soong audit export --since 7d", "soong audit verify"),
        ),
    },
    "Agents and tools": {
        "agents": CommandEntry(
            "agents",
            "List, show, write and check agent definitions.",
            ("soong agents list", "soong agents new release-notes", "soong agents import ~/.claude/agents"),
        ),
        "tools": CommandEntry(
            "tools",
            "List, show, explain and call tools without a model.",
            ("soong tools list", "soong tools call code.search query='def main'"),
        ),
        "memory": CommandEntry(
            "memory",
            "List, search, accept and forget what sessions leave for later ones.",
            ("soong memory list", "soong memory accept mem_4f3a"),
        ),
        "mcp": CommandEntry(
            "mcp",
            "Use the tools of MCP servers; serve MCP, so that other programs run plans here.",
            ("soong mcp add time -- uvx mcp-server-time", "soong mcp list", "claude mcp add soong -- soong mcp serve"),
        ),
    },
    "Service on this machine": {
        "up": CommandEntry("up", "Start the service on this machine and stay.", ("soong up --workers 4 --http 8642",)),
        "down": CommandEntry("status:down", "Stop the service of this home."),
        "status": CommandEntry(
            "status", "Show the service, its workers, tasks and questions.", ("soong status --json",)
        ),
        "doctor": CommandEntry(
            "status:doctor", "Check this machine, the home and the service.", ("soong doctor --json",)
        ),
        "worker": CommandEntry("workers:worker", "Add a worker process to a service.", ("soong worker --slots 32",)),
        "workers": CommandEntry("workers", "List the workers and what each holds.", ("soong workers list",)),
        "limits": CommandEntry(
            "workers:limits",
            "Limit how much runs at once, by pool, model, agent definition or session.",
            ("soong limits set pool:default 8", "soong limits list"),
        ),
        "models": CommandEntry(
            "workers:models",
            "List the models whose provider asked for a pause; end a pause.",
            ("soong models paused", "soong models resume openai:gpt-5"),
        ),
        "projects": CommandEntry(
            "workers:projects", "Mark a folder for workers that have it.", ("soong projects mark .",)
        ),
        "flower": CommandEntry("serve:flower", "Open Flower on the running service."),
        "metrics": CommandEntry("status:metrics", "Print the metrics in Prometheus' text form."),
    },
    "HTTP API": {
        "console": CommandEntry("serve:console", "Open the web console in a browser.", ("soong console",)),
        "serve": CommandEntry("serve", "Serve the HTTP API of a running service.", ("soong serve --port 8642",)),
        "acp": CommandEntry(
            "serve:acp", "Serve an editor that speaks the Agent Client Protocol.", ("soong acp --model anthropic:NAME",)
        ),
        "tokens": CommandEntry(
            "access:tokens",
            "Make, list and revoke tokens of the HTTP API.",
            ("soong tokens create --principal ada --right run",),
        ),
    },
    "Deployments": {
        "orchestrator": CommandEntry("deployment:orchestrator", "Run an orchestrator alone."),
        "migrate": CommandEntry("deployment:migrate", "Create or upgrade the tables of the database."),
        "gc": CommandEntry(
            "deployment:gc",
            "Remove what has ended, by age and by size.",
            ("soong gc --older-than 30d --dry-run", "soong gc --older-than 30d --keep 10GiB"),
        ),
        "backup": CommandEntry(
            "deployment:backup",
            "Back up the home of a service on this machine, which may run.",
            ("soong backup", "soong backup /mnt/backups/monday.tar.gz"),
        ),
        "restore": CommandEntry(
            "deployment:restore",
            "Restore a backup into an empty home.",
            ("SOONG_AGENT_HOME=~/restored soong restore monday.tar.gz",),
        ),
        "keys": CommandEntry(
            "access:keys", "List, rotate and retire the keys that sign decisions.", ("soong keys rotate",)
        ),
    },
    "This program": {
        "config": CommandEntry(
            "program:config", "Show every setting, its value and its source.", ("soong config show",)
        ),
        "completion": CommandEntry(
            "program:completion", "Print the completion script of a shell.", ('eval "$(soong completion bash)"',)
        ),
        "version": CommandEntry("program:show_version", "Show the version of this program.", ("soong version --json",)),
        "help": CommandEntry("help", "Show the help of a command.", ("soong help tasks validate",)),
    },
}

COMMANDS: Final[Mapping[str, CommandEntry]] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}
