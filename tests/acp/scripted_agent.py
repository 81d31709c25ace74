"""An agent that speaks the Agent Client Protocol by the official SDK and does what its prompt scripts, as a process."""

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import acp
from acp import RequestError, schema

ONCE = schema.PermissionOption(option_id="yes", name="Allow", kind="allow_once")
ALWAYS = schema.PermissionOption(option_id="always", name="Always allow", kind="allow_always")
NO = schema.PermissionOption(option_id="no", name="Reject", kind="reject_once")
OPTIONS = {
    "usual": [ALWAYS, ONCE, NO],
    "always": [ALWAYS, NO],
    "forged": [ONCE, ALWAYS.model_copy(update={"option_id": "yes"}), NO],
}
STATE = Path(os.environ["AGENT_STATE"])


class ScriptedAgent:
    """One process's agent. ``said`` collects what it was answered, for its last message."""

    def __init__(self) -> None:
        self.client: Any = None
        self.session_id = ""
        self.said: list[Any] = []
        self.done = 0
        self.script: list[Any] = []

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        resume = schema.SessionResumeCapabilities() if "resume" in sys.argv else None
        can = schema.AgentCapabilities(
            load_session="load" in sys.argv, session_capabilities=schema.SessionCapabilities(resume=resume)
        )
        about = schema.Implementation(name="scripted", version="1")
        return schema.InitializeResponse(protocol_version=1, agent_capabilities=can, agent_info=about)

    def modes(self) -> schema.SessionModeState | None:
        if "modes" not in sys.argv:
            return None
        both = [schema.SessionMode(id=one, name=one) for one in ("auto", "ask")]
        return schema.SessionModeState(current_mode_id="auto", available_modes=both)

    async def new_session(self, cwd: str, **more: Any) -> schema.NewSessionResponse:
        self.session_id = f"s{os.getpid()}"
        self.said.append({"cwd": cwd, "env": sorted(os.environ), "meta": more.get("greeting")})
        return schema.NewSessionResponse(session_id=self.session_id, modes=self.modes())

    async def set_session_mode(self, mode_id: str, session_id: str, **_: Any) -> schema.SetSessionModeResponse:
        self.said.append({"mode": mode_id})
        return schema.SetSessionModeResponse()

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> schema.LoadSessionResponse:
        await self.restore(session_id)
        await self.tell(acp.update_agent_message_text("replayed"))
        return schema.LoadSessionResponse()

    async def resume_session(self, session_id: str, cwd: str, **_: Any) -> schema.ResumeSessionResponse:
        await self.restore(session_id)
        return schema.ResumeSessionResponse()

    async def restore(self, session_id: str) -> None:
        file = STATE / f"{session_id}.json"
        if not file.exists():
            raise RequestError.resource_not_found(session_id)
        kept = json.loads(file.read_text())
        self.session_id, self.script, self.done, self.said = session_id, kept["script"], kept["done"], kept["said"]

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> schema.PromptResponse:
        text = prompt[0].text
        (STATE / "prompts.txt").open("a").write(f"{text}\n---\n")
        found = re.search(r'\{"inputs":.*', text)
        if found is not None:
            given = json.loads(found[0])["inputs"].get("script")
            self.script = json.loads(os.environ["AGENT_SCRIPT"]) if given is None else given
        elif text.startswith(("the result", "there is no")):
            self.script, self.done = [["say", os.environ.get("AGENT_CORRECTED", "{}")]], 0
        self.keep()
        while self.done < len(self.script):
            action, *rest = self.script[self.done]
            answer = await getattr(self, f"do_{action}")(*rest)
            self.done += 1
            self.keep()
            if isinstance(answer, schema.PromptResponse):
                return answer
        return schema.PromptResponse(
            stop_reason="end_turn", usage=schema.Usage(total_tokens=30, input_tokens=20, output_tokens=10)
        )

    def keep(self) -> None:
        kept = {"script": self.script, "done": self.done, "said": self.said}
        (STATE / f"{self.session_id}.json").write_text(json.dumps(kept))

    async def cancel(self, session_id: str, **_: Any) -> None: ...

    async def tell(self, update: Any) -> None:
        await self.client.session_update(self.session_id, update)

    # -- actions
    async def do_say(self, text: str) -> None:
        await self.tell(acp.update_agent_message_text(text))

    async def do_report(self) -> None:
        await self.do_say(json.dumps({"said": self.said}))

    async def do_think(self, text: str) -> None:
        await self.tell(acp.update_agent_thought_text(text))

    async def do_plan(self, *entries: str) -> None:
        await self.tell(acp.update_plan([acp.plan_entry(one, status="in_progress") for one in entries]))

    async def do_read(self, path: str, line: int | None = None, limit: int | None = None) -> None:
        await self.kept(self.client.read_text_file(path=path, session_id=self.session_id, line=line, limit=limit))

    async def do_write(self, path: str, content: str) -> None:
        await self.kept(self.client.write_text_file(path=path, content=content, session_id=self.session_id))

    async def do_terminal(self, *argv: str) -> None:
        made = await self.kept(
            self.client.create_terminal(command=argv[0], args=list(argv[1:]), session_id=self.session_id)
        )
        if made is not None:
            ids = {"session_id": self.session_id, "terminal_id": made.terminal_id}
            await self.kept(self.client.wait_for_terminal_exit(**ids))
            await self.kept(self.client.terminal_output(**ids))
            await self.client.release_terminal(**ids)

    async def kept(self, work: Any) -> Any:
        try:
            answer = await work
        except RequestError as error:
            self.said.append({"error": f"{error}{'' if error.data is None else error.data}"})
            return None
        self.said.append(answer.model_dump(mode="json", exclude_none=True))
        return answer

    async def do_edit(
        self, path: str, old: str | None, new: str, offers: str = "usual", ends: str = "completed"
    ) -> None:
        """Ask, and write it by itself, as most agents do."""
        content = [acp.tool_diff_content(path, new, old)]
        await self.own(
            "edit", f"Edit {path}", {"file_path": path}, content, offers, ends, lambda: Path(path).write_text(new)
        )

    async def do_run(self, command: str, offers: str = "usual", kind: str = "execute") -> None:
        shell = ["/bin/sh", "-c", command]
        await self.own(
            kind, command, {"command": command}, [], offers, "completed", lambda: subprocess.run(shell, check=False)
        )

    async def do_look(self, path: str) -> None:
        """Ask for a read of its own, of a file that it names as a place."""
        places = [schema.ToolCallLocation(path=path)]
        await self.own("read", "Look", {}, [], "usual", "completed", lambda: Path(path).read_bytes(), places)

    async def do_switch(self) -> None:
        """Say in the call that it changes the mode, and not in the question."""
        await self.tell(acp.start_tool_call("mode-1", "Go on", kind="switch_mode", status="pending"))
        asked = schema.ToolCallUpdate(tool_call_id="mode-1", title="Go on")
        answer = await self.client.request_permission(self.session_id, asked, OPTIONS["usual"])
        self.said.append(answer.model_dump(mode="json", exclude_none=True)["outcome"])

    async def own(
        self, kind: Any, title: str, raw: Any, content: Any, offers: str, ends: str, act: Any, places: Any = None
    ) -> None:
        call_id = f"call-{os.getpid()}-{self.done}"
        facts = {"kind": kind, "content": content, "raw_input": raw, "locations": places}
        await self.tell(acp.start_tool_call(call_id, title, status="pending", **facts))
        asked = schema.ToolCallUpdate(tool_call_id=call_id, title=title, **facts)
        answer = await self.client.request_permission(self.session_id, asked, OPTIONS[offers])
        self.said.append(answer.model_dump(mode="json", exclude_none=True)["outcome"])
        is_allowed = getattr(answer.outcome, "option_id", "") in ("yes", "always")
        if is_allowed:
            act()
        if ends == "hang":
            (STATE / "acted").write_text("1")
            await asyncio.Event().wait()
        if ends:
            status: Any = ends if is_allowed else "failed"
            await self.tell(
                acp.update_tool_call(call_id, status=status, content=[acp.tool_content(acp.text_block("ok"))])
            )

    async def do_try(self, reads: list[str], writes: list[str], port: int) -> None:
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

    async def do_unasked(self, title: str) -> None:
        call_id = f"own-{title}"
        await self.tell(acp.start_tool_call(call_id, title, kind="read", status="in_progress"))
        await self.tell(acp.update_tool_call(call_id, status="completed"))

    async def do_mislead(self) -> None:
        """Ask for a harmless call; give it another title after the yes, and go on under its id after its end."""
        asked = schema.ToolCallUpdate(tool_call_id="m", title="Look", kind="read")
        answer = await self.client.request_permission(self.session_id, asked, OPTIONS["usual"])
        self.said.append(answer.model_dump(mode="json", exclude_none=True)["outcome"])
        for _ in range(3):
            await self.tell(acp.update_tool_call("m", title="Remove all", kind="delete", status="in_progress"))
            await self.tell(acp.update_tool_call("m", title="Remove all", status="completed"))
        answer = await self.client.request_permission(self.session_id, asked, OPTIONS["usual"])
        self.said.append(answer.model_dump(mode="json", exclude_none=True)["outcome"])

    async def do_plans(self, count: int) -> None:
        for number in range(count):
            await self.do_plan(f"plan {number}")

    async def do_cost(self, usd: float) -> None:
        await self.tell(
            schema.UsageUpdate(
                session_update="usage_update", used=1, size=2, cost=schema.Cost(amount=usd, currency="USD")
            )
        )

    async def do_mode(self, mode: str) -> None:
        await self.tell(schema.CurrentModeUpdate(session_update="current_mode_update", current_mode_id=mode))

    async def do_hang(self) -> None:
        """Start what outlives its parent wherever it can, ignore every signal that can be ignored, and never answer."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the child inherits it
        child = await asyncio.create_subprocess_exec("setsid", "sleep", "3600")
        (STATE / "pids").write_text(f"{os.getpid()} {child.pid}")
        await asyncio.Event().wait()

    async def do_die(self) -> None:
        sys.stderr.write("out of cheese\n")
        sys.stderr.flush()
        os._exit(3)

    async def do_garbage(self, count: int) -> None:
        for _ in range(count):
            sys.stdout.buffer.write(b"{not json\n" + b"\xff\xfe[1,2]\n")
        sys.stdout.buffer.flush()

    async def do_forge(self) -> None:
        """Speak for a session that is another's."""
        work = self.client.write_text_file(path="forged.txt", content="x", session_id="another")
        await self.kept(work)
        await self.client.session_update("another", acp.update_agent_message_text("forged"))

    async def do_stop(self, reason: Any) -> schema.PromptResponse:
        return schema.PromptResponse(stop_reason=reason)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ScriptedAgent(), use_unstable_protocol=True))  # type: ignore[arg-type]  # no list, fork or auth
