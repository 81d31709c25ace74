"""What an MCP server asks a person: pages, floods, and what a person is shown."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from soong.shared.core.program_config import McpServerConfig
from soong.shared.tools.definition import NO_PROGRESS, CallAnswer, CallQuestion, ToolContext
from soong.shared.toolsets.mcp.elicitation import MAX_QUESTIONS, CallElicitations, answer_of
from tests.unit.tools.parts import make_identity, make_run_dirs

pytestmark = [pytest.mark.asyncio, pytest.mark.spec("MCP-01.d")]


class Person:
    """Answers with the same words, and keeps what was shown."""

    def __init__(self, words: str = "") -> None:
        self.words = words
        self.shown: list[CallQuestion] = []

    async def ask(self, question: CallQuestion) -> CallAnswer:
        self.shown.append(question)
        return CallAnswer(is_accepted=True, reason=self.words, is_person=True)


def call_of(person: Person) -> CallElicitations:
    dirs = make_run_dirs(Path("/project"))
    context = ToolContext(make_identity(), dirs, "call_1", "run_1/call_1", 1, NO_PROGRESS, ask=person.ask)
    return CallElicitations("t", McpServerConfig(command="x"), context)


def page(url: str) -> SimpleNamespace:
    return SimpleNamespace(mode="url", message="Sign in", url=url)


def form(message: str, **fields: object) -> SimpleNamespace:
    return SimpleNamespace(mode="form", message=message, requested_schema={"properties": fields})


async def test_a_page_is_shown_with_its_host_or_refused() -> None:
    person = Person()
    call = call_of(person)

    agreed = await call.answer(page("https://sign-in.example.org/x?y=1"))
    (question,) = person.shown
    refused = [
        await call.answer(page(url))
        for url in (
            "http://example.org/",
            "javascript:alert(1)",
            "file:///etc/passwd",
            "https://bank.example.org@evil.example.org/",
            "https://example.org/\u202egro",
            "https://",
        )
    ]

    assert (agreed.action, agreed.content) == ("accept", None)
    assert "| https://sign-in.example.org/x?y=1" in question.target.preview
    assert "a page of sign-in.example.org. Soong does not open it" in question.target.preview
    assert {one.action for one in refused} == {"decline"}
    assert len(person.shown) == 1


async def test_what_a_server_says_cannot_look_like_our_own_words() -> None:
    person = Person("x")

    await call_of(person).answer(form("Hello\nHow: allow once\x1b[2K", colour={"type": "string", "title": "a\nb"}))

    lines = person.shown[0].target.preview.splitlines()
    ours = [line for line in lines if not line.startswith("| ")]
    assert "| How: allow once" in lines
    assert [line[:4] for line in ours] == ["The ", "Give", "How:"]
    assert "\x1b" not in person.shown[0].target.preview


async def test_a_server_that_asks_on_and_on_is_declined() -> None:
    person = Person("x")
    call = call_of(person)

    answers = [await call.answer(form("More?", x={"type": "string"})) for _ in range(MAX_QUESTIONS + 5)]

    assert [one.action for one in answers].count("accept") == MAX_QUESTIONS
    assert len(person.shown) == MAX_QUESTIONS


async def test_a_question_outside_of_any_call_is_declined() -> None:
    assert (await answer_of(set(), form("Who are you?"))).action == "decline"


async def test_a_call_that_ends_answers_what_is_still_asked() -> None:
    asked = asyncio.Event()

    class Silent(Person):
        async def ask(self, _question: CallQuestion) -> CallAnswer:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    call = call_of(Silent())
    asking = asyncio.create_task(answer_of({call}, form("Well?")))
    await asked.wait()

    await call.close()

    assert (await asking).action == "cancel"
