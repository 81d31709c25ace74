"""Clients that are not ours use ``soong mcp serve`` and ``/mcp``: Claude Code and the MCP Inspector."""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.aimock.server import aimock
from tests.extra import acp_node, aimock_program, mcp_modules
from tests.servers import free_port
from tests.spec_document import ROOT
from tests.system.cli_scene import CONSOLE_SCRIPT, CliHarness, scene, until, writes

WRITES: Final = os.environ.get("WRITE_TRANSCRIPTS") == "1"
_ID: Final = re.compile(r"\b(task|sess|run|req|agent|wrk|dec)_[0-9a-v]{26}")
_DIGEST: Final = re.compile(r"\b([0-9a-f]{4})[0-9a-f]{28,60}\b")
_TIME: Final = re.compile(r"\b20\d\d-\d\d-\d\dT[0-9:.]+Z")

pytestmark = [pytest.mark.timeout(400), pytest.mark.spec("MCP-02.a", "MCP-02.b", "MCP-02.c", "MCP-02.d", "PER-13.g")]

PAGE: Final = ROOT / "docs" / "reference" / "mcp-clients.md"
KEYS: Final = """
import json, sys
asked = json.load(sys.stdin)
with open(sys.argv[1], "a") as log:
    log.write(json.dumps(asked) + "\\n")
content = {"choice": sys.argv[2], "reason": "go on"}
print(json.dumps({"hookSpecificOutput": {"hookEventName": "Elicitation", "action": "accept", "content": content}}))
"""
"""Stands where a person's keys are: Claude Code without a terminal has its dialogs answered by this hook."""


def shortened(text: str, folder: Path) -> str:
    """Return a text with short ids and the folder of the reader's example."""
    text = text.replace(str(folder), "/home/ada/project")
    text = _TIME.sub("2026-11-25T12:00:00Z", text)
    return _DIGEST.sub("b1a5…", _ID.sub(r"\1_01a2…", text))


def check_transcript(page: Path, name: str, lines: Sequence[str], folder: Path) -> None:
    """Compare a transcript with its block of the page, or write the block."""
    seen = "\n".join(shortened(line, folder).rstrip() for line in lines)
    text = page.read_text(encoding="utf-8")
    block = re.compile(rf"(?<=<!-- transcript: {re.escape(name)} -->\n)```text\n(.*?)\n```", re.DOTALL)
    found = block.search(text)
    assert found is not None, f"{page.name} has no block for the transcript {name!r}"
    if WRITES:
        page.write_text(f"{text[: found.start()]}```text\n{seen}\n```{text[found.end() :]}", encoding="utf-8")
        return
    assert found[1] == seen, f"{page.name}, {name}: written is\n{found[1]}\nand seen was\n{seen}"


@pytest.fixture(scope="module")
def service() -> Iterator[CliHarness]:
    mcp_modules()
    with scene() as cli:
        port = free_port()
        cli.start("up", "--http", str(port))
        until((cli.home / "service.json").exists, "the service is up", cli.logs)
        cli.environment["HTTP_PORT_OF_TEST"] = str(port)
        yield cli
        assert cli.run("down").returncode == 0
        cli.assert_nothing_left()


def _server(cli: CliHarness, *options: str) -> dict[str, Any]:
    arguments = [*CONSOLE_SCRIPT[1:], "mcp", "serve", "--no-start", *options]
    return {"command": CONSOLE_SCRIPT[0], "args": arguments, "env": cli.env, "cwd": str(cli.folder)}


@dataclass
class ClaudeCode:
    """The real program, with a home of its own and a model whose words are scripted."""

    cli: CliHarness
    folder: Path
    has_keys: bool = True
    lines: list[str] = field(default_factory=list)
    """The transcript."""

    def asked(self, prompt: str, *turns: Mapping[str, Any], allowed: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Give a prompt as `claude -p` does, and return what the tools gave. ``turns`` are the model's."""
        fixtures = [
            {"match": {"userMessage": prompt, "turnIndex": number}, "response": turn}
            for number, turn in enumerate(turns)
        ]
        with aimock(
            aimock_program(), self.folder, [*fixtures, {"match": {}, "response": {"content": "ok"}}]
        ) as address:
            said = self._called(prompt, address, [f"mcp__soong__{name}" for name in allowed])
        self.lines += ["", f"> {prompt}"] if self.lines else [f"> {prompt}"]
        return list(self._told(said))

    def dialogs(self) -> list[dict[str, Any]]:
        log = self.folder / "dialogs"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def _called(self, prompt: str, address: str, allowed: Sequence[str]) -> str:
        program = mcp_modules() / "@anthropic-ai/claude-code-linux-x64/claude"
        servers, hooks = self.folder / "mcp.json", self.folder / "settings.json"
        servers.write_text(json.dumps({"mcpServers": {"soong": _server(self.cli, "--approve")}}))
        keys = shlex.join([sys.executable, "-c", KEYS, str(self.folder / "dialogs"), "allow_once"])
        answering = [{"hooks": [{"type": "command", "command": keys}]}] if self.has_keys else []
        hooks.write_text(json.dumps({"hooks": {"Elicitation": answering}}))
        options = ["--mcp-config", str(servers), "--strict-mcp-config", "--settings", str(hooks)]
        options += ["--allowedTools", *allowed] if allowed else []
        done = subprocess.run(
            [str(program), "-p", prompt, *options, "--output-format", "stream-json", "--verbose"],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.folder),
                "CLAUDE_CONFIG_DIR": str(self.folder / "claude"),
                "ANTHROPIC_BASE_URL": address,
                "ANTHROPIC_API_KEY": "sk-mock",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            },
            cwd=self.cli.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr}"
        return done.stdout

    def _told(self, said: str) -> Iterator[dict[str, Any]]:
        shown = len(self.dialogs()) - said.count('"name":"mcp__soong__answer_approval"')
        for message in map(json.loads, said.splitlines()):
            for part in (
                message.get("message", {}).get("content", ()) if message["type"] in {"assistant", "user"} else ()
            ):
                match part["type"]:
                    case "text":
                        self.lines += [f"● {part['text']}"]
                    case "tool_use":
                        self.lines += [f"● {part['name']} {json.dumps(part['input'])}"]
                    case "tool_result":
                        if '"state":"decided"' in str(part["content"]):
                            self._draw(self.dialogs()[shown])
                            shown += 1
                        self.lines += self._wrapped(str(part["content"]))
                        yield part

    def _wrapped(self, text: str) -> list[str]:
        """Return a result in lines that are the same each time: what differs is shortened first."""
        shown = shortened(text, self.cli.folder).replace(',"', ', "')
        shown = shown.replace('"is_owned":true', '"is_owned":false').replace('{"ready":1}', '{"running":1}')
        return textwrap.wrap(shown, 110, initial_indent="  ⎿ ", subsequent_indent="    ", break_on_hyphens=False)

    def _draw(self, dialog: Mapping[str, Any]) -> None:
        self.lines += ["  ┌ soong asks:", *(f"  │ {line}" for line in dialog["message"].splitlines())]
        self.lines += ["  └ answered in the dialog: allow_once, go on"]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"toolCalls": [{"name": f"mcp__soong__{name}", "arguments": arguments}]}


def result(part: Mapping[str, Any]) -> dict[str, Any]:
    assert not part.get("is_error"), part
    document: dict[str, Any] = json.loads(part["content"])
    return document


def test_claude_code_submits_waits_has_its_user_answer_and_reads(service: CliHarness, tmp_path: Path) -> None:
    service.plan(writes("claude.txt"), "note.yaml")
    claude = ClaudeCode(service, tmp_path)
    reads = ("wait_for_task", "list_approvals", "task_result")

    (submitted,) = claude.asked(
        "Run note.yaml with soong.",
        call("submit_plan", plan_path="note.yaml"),
        {"content": "It runs."},
        allowed=["submit_plan"],
    )
    task = result(submitted)["task"]["id"]
    waited, listed = claude.asked(
        "What is it waiting for?",
        call("wait_for_task", task=task),
        call("list_approvals"),
        {"content": "It wants to write claude.txt. Shall I open the question?"},
        allowed=reads,
    )
    (question,) = result(listed)["items"]
    given = {"approval": question["id"], "choice": "allow_once", "input_digest": question["input_digest"]}
    (refused,) = ClaudeCode(service, tmp_path).asked(
        "Decide.", call("answer_approval", **given), {"content": "No."}, allowed=reads
    )
    (closed,) = ClaudeCode(service, tmp_path, has_keys=False).asked(
        "Ask.", call("answer_approval", approval=question["id"]), {"content": "No."}, allowed=["answer_approval"]
    )
    # Parked, as the page shows it.
    until(lambda: service.step_statuses().get("write") == "blocked", "the question is parked", service.logs)
    still = service.json("approvals", "list")
    answered, over, ended = claude.asked(
        "Yes, and show me what comes out.",
        call("answer_approval", approval=question["id"]),
        call("wait_for_task", task=task),
        call("task_result", task=task),
        {"content": "The note is written."},
        allowed=[*reads, "answer_approval"],
    )

    assert result(waited)["approvals"] == [question["id"]]
    assert refused["is_error"]
    assert "permission" in refused["content"]
    assert "it still waits" in closed["content"]
    assert [one["id"] for one in still] == [question["id"]]
    (dialog,) = claude.dialogs()
    assert f"path: {service.folder}/claude.txt" in dialog["message"]
    assert result(answered)["sentence"].startswith("allowed once by")
    assert (result(over)["status"], result(ended)["exit_code"]) == ("completed", 0)
    assert (service.folder / "claude.txt").read_text() == "hello"
    check_transcript(PAGE, "claude-code", claude.lines, service.folder)


@dataclass
class Inspector:
    """The command line of the MCP Inspector, one process a call."""

    cli: CliHarness
    folder: Path
    target: Sequence[str]
    lines: list[str] = field(default_factory=list)

    def tool(self, name: str, **arguments: str) -> dict[str, Any]:
        pairs = [f"{key}={value}" for key, value in arguments.items()]
        return self.called("tools/call", "--tool-name", name, *(["--tool-arg", *pairs] if pairs else []))

    def called(self, method: str, *options: str) -> dict[str, Any]:
        program = mcp_modules() / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
        done = subprocess.run(
            [acp_node(), str(program), "--cli", *self.target, "--method", method, *options],
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "MCP_INSPECTOR_SECRET_STORE": "memory"},
            cwd=self.cli.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        found: dict[str, Any] = json.loads(done.stdout)
        self.lines += [f"$ inspector --method {shlex.join([method, *options])}"]
        if "content" in found:
            self.lines += [f"  {line}" for one in found["content"] for line in one["text"].splitlines()]
        if "--strict" in options:
            problems = re.findall(r"tool \"[^\n]*|\d+ errors?, [^\n]*", done.stderr)
            self.lines += [f"  {len(found['tools'])} tools; {'; '.join(problems) or 'no schema problem'}"]
        return found


@pytest.mark.parametrize("way", ["stdio", "http"])
def test_the_inspector_submits_waits_answers_and_reads(service: CliHarness, tmp_path: Path, way: str) -> None:
    name = f"inspector-{way}.txt"
    service.plan(writes(name), "note.yaml")
    if way == "stdio":
        catalogue = tmp_path / "mcp.json"
        catalogue.write_text(json.dumps({"mcpServers": {"soong": _server(service, "--approve")}}))
        target, given = ["--config", str(catalogue), "--server", "soong"], {"plan_path": "note.yaml"}
    else:
        token = service.run(
            "tokens", "create", "--principal", "ada", "--right", "run", "--right", "approve"
        ).stdout.strip()
        url = f"http://127.0.0.1:{service.environment['HTTP_PORT_OF_TEST']}/mcp"
        target = ["--server-url", url, "--transport", "http", "--header", f"Authorization: Bearer {token}"]
        given = {"plan": (service.folder / "note.yaml").read_text(), "project": str(service.folder)}
    inspector = Inspector(service, tmp_path, target)

    tools = inspector.called("tools/list", "--strict")["tools"]
    task = inspector.tool("submit_plan", **given)["structuredContent"]["task"]["id"]
    # Parked, as the page shows it: a look comes earlier or later.
    until(lambda: service.step_statuses().get("write") == "blocked", "the question is parked", service.logs)
    waited = inspector.tool("wait_for_task", task=task)["structuredContent"]
    (question,) = inspector.tool("list_approvals")["structuredContent"]["items"]
    answer = {"choice": "allow_once", "input_digest": question["input_digest"]}
    answered = inspector.tool("answer_approval", approval=question["id"], **answer)
    over = inspector.tool("wait_for_task", task=task)["structuredContent"]
    ended = inspector.tool("task_result", task=task)["structuredContent"]
    resource = inspector.called("resources/read", "--uri", f"soong://tasks/{task}/result")

    assert "answer_approval" in {tool["name"] for tool in tools}
    assert waited["approvals"] == [question["id"]]
    assert "allowed once by" in answered["structuredContent"]["sentence"]
    assert (over["status"], ended["exit_code"]) == ("completed", 0)
    assert task in resource["contents"][0]["text"]
    assert (service.folder / name).read_text() == "hello"
    if way == "stdio":
        check_transcript(PAGE, "inspector", inspector.lines, service.folder)
