"""An agent that speaks the Agent Client Protocol and does what its prompt scripts, as a process.

It writes and reads the lines of the wire by itself: the official SDK takes half a second at each start.
"""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ONCE = {"optionId": "yes", "name": "Allow", "kind": "allow_once"}
ALWAYS = {"optionId": "always", "name": "Always allow", "kind": "allow_always"}
NO = {"optionId": "no", "name": "Reject", "kind": "reject_once"}
OPTIONS = {"usual": [ALWAYS, ONCE, NO], "always": [ALWAYS, NO], "forged": [ONCE, {**ALWAYS, "optionId": "yes"}, NO]}
STATE = Path(os.environ["AGENT_STATE"])
DONE = {"stopReason": "end_turn", "usage": {"totalTokens": 30, "inputTokens": 20, "outputTokens": 10}}


class RefusedError(Exception):
    """The client answers a request with an error."""


class ScriptedAgent:
    """One process's agent. ``said`` collects what it was answered, for its last message."""

    def __init__(self) -> None:
        self.session_id = ""
        self.said: list[Any] = []
        self.done = 0
        self.script: list[Any] = []
        self.requests = 0

    # -- the wire
    def serve(self) -> None:
        """Answer one request after another until nobody sends any."""
        for line in sys.stdin:
            asked = json.loads(line)
            if "id" not in asked:
                continue
            try:
                answer = {"result": getattr(self, asked["method"].replace("/", "_"))(asked["params"])}
            except FileNotFoundError as error:
                answer = {"error": {"code": -32002, "message": "Resource not found", "data": str(error)}}
            self.write(id=asked["id"], **answer)

    def write(self, **message: Any) -> None:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()

    def ask(self, method: str, session_id: str = "", **params: Any) -> Any:
        """Return the client's answer. Raises: RefusedError."""
        self.requests += 1
        self.write(id=self.requests, method=method, params={"sessionId": session_id or self.session_id, **params})
        for line in sys.stdin:
            answer = json.loads(line)
            if answer.get("id") == self.requests and "method" not in answer:
                if "error" in answer:
                    raise RefusedError(f"{answer['error']['message']}{answer['error'].get('data') or ''}")
                return answer["result"]
        sys.exit("the client is gone")

    def tell(self, what: str, **update: Any) -> None:
        params = {"sessionId": self.session_id, "update": {"sessionUpdate": what, **update}}
        self.write(method="session/update", params=params)

    def permission(self, call: dict[str, Any], offers: str = "usual") -> str:
        """Ask for a call, and return the option that was selected."""
        outcome = self.ask("session/request_permission", toolCall=call, options=OPTIONS[offers])["outcome"]
        self.said.append(outcome)
        return str(outcome.get("optionId", ""))

    # -- what a client requests
    def initialize(self, _: Any) -> Any:
        session: dict[str, Any] = {"resume": {}} if "resume" in sys.argv else {}
        can = {"loadSession": "load" in sys.argv, "sessionCapabilities": session}
        return {"protocolVersion": 1, "agentCapabilities": can, "agentInfo": {"name": "scripted", "version": "1"}}

    def session_new(self, given: Any) -> Any:
        self.session_id = f"s{os.getpid()}"
        self.said.append({"cwd": given["cwd"], "env": sorted(os.environ)})
        both = [{"id": one, "name": one} for one in ("auto", "ask")]
        modes = {"modes": {"currentModeId": "auto", "availableModes": both}} if "modes" in sys.argv else {}
        return {"sessionId": self.session_id, **modes}

    def session_set_mode(self, given: Any) -> Any:
        self.said.append({"mode": given["modeId"]})
        return {}

    def session_load(self, given: Any) -> Any:
        self.session_resume(given)
        self.do_say("replayed")
        return {}

    def session_resume(self, given: Any) -> Any:
        self.session_id = given["sessionId"]
        kept = json.loads((STATE / f"{self.session_id}.json").read_text())
        self.script, self.done, self.said = kept["script"], kept["done"], kept["said"]
        return {}

    def session_prompt(self, given: Any) -> Any:
        text = given["prompt"][0]["text"]
        (STATE / "prompts.txt").open("a").write(f"{text}\n---\n")
        found = re.search(r'\{"inputs":.*', text)
        if found is not None:
            script = json.loads(found[0])["inputs"].get("script")
            self.script = json.loads(os.environ["AGENT_SCRIPT"]) if script is None else script
        elif text.startswith(("the result", "there is no")):
            self.script, self.done = [["say", os.environ.get("AGENT_CORRECTED", "{}")]], 0
        self.keep()
        while self.done < len(self.script):
            action, *rest = self.script[self.done]
            answer = getattr(self, f"do_{action}")(*rest)
            self.done += 1
            self.keep()
            if answer is not None:
                return answer
        return DONE

    def keep(self) -> None:
        kept = {"script": self.script, "done": self.done, "said": self.said}
        (STATE / f"{self.session_id}.json").write_text(json.dumps(kept))

    # -- actions
    def do_say(self, text: str) -> None:
        self.tell("agent_message_chunk", content={"type": "text", "text": text})

    def do_report(self) -> None:
        self.do_say(json.dumps({"said": self.said}))

    def do_think(self, text: str) -> None:
        self.tell("agent_thought_chunk", content={"type": "text", "text": text})

    def do_plan(self, *entries: str) -> None:
        self.tell("plan", entries=[{"content": one, "priority": "medium", "status": "in_progress"} for one in entries])

    def do_read(self, path: str, *lines: int) -> None:
        of: dict[str, Any] = dict(zip(("line", "limit"), lines, strict=False))
        self.kept("fs/read_text_file", path=path, **of)

    def do_write(self, path: str, content: str) -> None:
        self.kept("fs/write_text_file", path=path, content=content)

    def do_terminal(self, *argv: str) -> None:
        made = self.kept("terminal/create", command=argv[0], args=argv[1:])
        if made is not None:
            self.kept("terminal/wait_for_exit", **made)
            self.kept("terminal/output", **made)
            self.ask("terminal/release", **made)

    def kept(self, method: str, session_id: str = "", **params: Any) -> Any:
        try:
            answer = self.ask(method, session_id, **params)
        except RefusedError as error:
            self.said.append({"error": str(error)})
            return None
        self.said.append(answer)
        return answer

    def do_edit(self, path: str, old: str | None, new: str, offers: str = "usual", ends: str = "completed") -> None:
        """Ask, and write it by itself, as most agents do."""
        content = [{"type": "diff", "path": path, "oldText": old, "newText": new}]
        self.own(
            *("edit", f"Edit {path}", {"file_path": path}, content), lambda: Path(path).write_text(new), offers, ends
        )

    def do_run(self, command: str, offers: str = "usual", kind: str = "execute") -> None:
        shell = ["/bin/sh", "-c", command]
        self.own(kind, command, {"command": command}, [], lambda: subprocess.run(shell, check=False), offers)

    def do_look(self, path: str) -> None:
        """Ask for a read of its own, of a file that it names as a place."""
        self.own("read", "Look", {}, [], lambda: Path(path).read_bytes(), places=[{"path": path}])

    def do_switch(self) -> None:
        """Say in the call that it changes the mode, and not in the question."""
        asked = {"toolCallId": "mode-1", "title": "Go on"}
        self.tell("tool_call", **asked, kind="switch_mode", status="pending")
        self.permission(asked)

    def own(
        self,
        kind: str,
        title: str,
        raw: object,
        content: object,
        act: Callable[[], object],
        offers: str = "usual",
        ends: str = "completed",
        places: Sequence[object] = (),
    ) -> None:
        call_id = f"call-{os.getpid()}-{self.done}"
        facts = {"kind": kind, "content": content, "rawInput": raw, "locations": places}
        call = {"toolCallId": call_id, "title": title, **facts}
        self.tell("tool_call", **call, status="pending")
        is_allowed = self.permission(call, offers) in ("yes", "always")
        if is_allowed:
            act()
        if ends == "hang":
            (STATE / "acted").write_text("1")
            signal.pause()
        okay = [{"type": "content", "content": {"type": "text", "text": "ok"}}]
        self.tell("tool_call_update", toolCallId=call_id, status=ends if is_allowed else "failed", content=okay)

    def do_try(self, reads: list[str], writes: list[str], port: int) -> None:
        """Do things by itself, without a word; tell what came of each."""

        def outcome(attempt: Callable[[], object]) -> str:
            try:
                attempt()
            except OSError as error:
                return errno.errorcode.get(error.errno or 0, str(error))
            return "done"

        tried = {path: outcome(Path(path).read_bytes) for path in reads}
        tried |= {path: outcome(lambda path=path: Path(path).write_text("x")) for path in writes}  # type: ignore[misc]
        tried["connect"] = outcome(lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close())
        self.said.append({"tried": tried})

    def do_unasked(self, title: str) -> None:
        call_id = f"own-{title}"
        self.tell("tool_call", toolCallId=call_id, title=title, kind="read", status="in_progress")
        self.tell("tool_call_update", toolCallId=call_id, status="completed")

    def do_mislead(self) -> None:
        """Ask for a harmless call; give it another title after the yes, and go on under its id after its end."""
        asked = {"toolCallId": "m", "title": "Look", "kind": "read"}
        other = {"toolCallId": "m", "title": "Remove all"}
        self.permission(asked)
        for _ in range(3):
            self.tell("tool_call_update", **other, kind="delete", status="in_progress")
            self.tell("tool_call_update", **other, status="completed")
        self.permission(asked)

    def do_plans(self, count: int) -> None:
        for number in range(count):
            self.do_plan(f"plan {number}")

    def do_cost(self, usd: float) -> None:
        self.tell("usage_update", used=1, size=2, cost={"amount": usd, "currency": "USD"})

    def do_mode(self, mode: str) -> None:
        self.tell("current_mode_update", currentModeId=mode)

    def do_hang(self) -> None:
        """Start what outlives its parent wherever it can, ignore every signal that can be ignored, and never answer."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the child inherits it
        child = subprocess.Popen(["setsid", "sleep", "3600"])
        (STATE / "pids").write_text(f"{os.getpid()} {child.pid}")
        signal.pause()

    def do_die(self) -> None:
        sys.stderr.write("out of cheese\n")
        sys.stderr.flush()
        os._exit(3)

    def do_garbage(self, count: int) -> None:
        for _ in range(count):
            sys.stdout.buffer.write(b"{not json\n" + b"\xff\xfe[1,2]\n")
        sys.stdout.buffer.flush()

    def do_forge(self) -> None:
        """Speak for a session that is another's."""
        self.kept("fs/write_text_file", "another", path="forged.txt", content="x")
        own, self.session_id = self.session_id, "another"
        self.do_say("forged")
        self.session_id = own

    def do_stop(self, reason: str) -> Any:
        return {"stopReason": reason}


if __name__ == "__main__":
    ScriptedAgent().serve()
