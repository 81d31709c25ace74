"""The facts of a question in words, for a person at a terminal, an editor or an MCP client alike.

Values are texts of others: an interface makes them inert in its own way. A command that shows them imports no more.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

VALUE_CHARS: Final = 300


def step_text(who: Mapping[str, Any]) -> str:
    """Return the step that an asker works at: its id in the plan and its title."""
    step, title = who["step_key"].partition("/")[2], who["step_title"]
    return f"{step}  {title}".strip() if title != step else step


def facts_of(question: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a question without its preview, by name; callers leave out empty values."""
    who, target = question["identity"], question["target"]
    model = who["model"] or "default"
    yield "step", step_text(who)
    yield "who", f"{who['role']} agent {who['agent_id']}, run {who['run_id']} ({who['definition']}, model {model})"
    foreign = f"{who['dispatched_by']}, another side than the session's: none of its rules and grants answers"
    yield "dispatched", foreign if who["is_foreign"] else ""
    yield "parent", f"agent {who['parent_agent_id']}, run {who['parent_run_id']}" if who["parent_run_id"] else "none"
    words = dict.fromkeys((question["permission"], *question["tags"]))
    yield "tool", f"{question['tool']} ({', '.join(words)})"
    yield target["kind"] or "target", target["shown"]
    yield "host", target["host"]
    summary = f": {question['risk_summary']}" if question["risk_summary"] else ""
    yield "risk", f"{question['risk']}{' - DANGEROUS' if question['is_dangerous'] else ''}{summary}"
    yield "hook", question["hook_result"] if question["hook_result"] != "none" else ""
    yield "in", question["cwd"]
    yield "with env", ", ".join(question["env"])
    given = json.dumps(question["arguments"], ensure_ascii=False, default=str)
    yield "arguments", "" if question["preview"] else given if len(given) <= VALUE_CHARS else f"{given[:VALUE_CHARS]}…"
    for effect in question["unknown_effects"]:
        yield "unknown", f"{effect.get('tool')} {effect.get('shown') or ''}: it may or may not have happened already"
    yield "advice", f"{question['suggested'].replace('_', ' ')} (policy)"
