"""Questions of MCP servers: their forms, and the words for them."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soong.shared.core.program_config import McpServerConfig
from soong.shared.tools.definition import NO_PROGRESS, CallAnswer, CallQuestion, ToolContext
from soong.shared.toolsets.mcp.elicitation import MAX_QUESTIONS, CallElicitations, answer_of
from soong.shared.toolsets.mcp.forms import FormAnswerError, FormRefusedError, form_of
from tests.unit.tools.parts import make_identity, make_run_dirs

pytestmark = pytest.mark.spec("MCP-01.d")


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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_what_a_server_says_cannot_look_like_our_own_words() -> None:
    person = Person("x")

    await call_of(person).answer(form("Hello\nHow: allow once\x1b[2K", colour={"type": "string", "title": "a\nb"}))

    lines = person.shown[0].target.preview.splitlines()
    ours = [line for line in lines if not line.startswith("| ")]
    assert "| How: allow once" in lines
    assert [line[:4] for line in ours] == ["The ", "Give", "How:"]
    assert "\x1b" not in person.shown[0].target.preview


@pytest.mark.asyncio
async def test_a_server_that_asks_on_and_on_is_declined() -> None:
    person = Person("x")
    call = call_of(person)

    answers = [await call.answer(form("More?", x={"type": "string"})) for _ in range(MAX_QUESTIONS + 5)]

    assert [one.action for one in answers].count("accept") == MAX_QUESTIONS
    assert len(person.shown) == MAX_QUESTIONS


@pytest.mark.asyncio
async def test_a_question_outside_of_any_call_is_declined() -> None:
    assert (await answer_of(set(), form("Who are you?"))).action == "decline"


@pytest.mark.asyncio
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


def read_form(message: str = "Tell me", required: tuple[str, ...] = (), **fields: dict[str, Any]) -> Any:
    return form_of({"type": "object", "properties": fields, "required": list(required)}, message)


COLOURS = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
TITLED = {"type": "string", "oneOf": [{"const": "s", "title": "Small one"}, {"const": "l", "title": "Large one"}]}
SEVERAL = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}, "maxItems": 2}


@pytest.mark.parametrize(
    ("fields", "words", "content"),
    [
        ({"colour": {"type": "string"}}, "dark red, nearly = black", {"colour": "dark red, nearly = black"}),
        ({"n": {"type": "integer"}}, "7", {"n": 7}),
        ({"n": {"type": "number"}}, "n=2.5", {"n": 2.5}),
        ({"ok": {"type": "boolean"}}, "Yes", {"ok": True}),
        ({"ok": {"type": "boolean"}}, '{"ok": false}', {"ok": False}),
        ({"c": COLOURS}, "green", {"c": "g"}),
        ({"c": TITLED}, "Large one", {"c": "l"}),
        ({"c": {"type": "string", "enum": ["a", "b"], "enumNames": ["b", "a"]}}, "b", {"c": "b"}),
        ({"c": SEVERAL}, "a | c", {"c": ["a", "c"]}),
        ({"a": {"type": "string"}, "b": {"type": "integer"}}, "a=two words, b=3", {"a": "two words", "b": 3}),
        ({"a": {"type": "string"}, "b": {"type": "integer"}}, "b = 3; a = x=y", {"a": "x=y", "b": 3}),
        ({"a": {"type": "string", "default": "d"}, "b": {"type": "integer"}}, "b=3", {"a": "d", "b": 3}),
        ({"a": {"type": "string", "default": "d"}}, "", {"a": "d"}),
        ({}, "why not", {}),
    ],
)
def test_words_are_read_as_the_fields_say(fields: dict[str, Any], words: str, content: dict[str, Any]) -> None:
    assert read_form(**fields).answer_of(words) == content


@pytest.mark.parametrize(
    ("fields", "words", "problem"),
    [
        ({"n": {"type": "integer"}}, "7.5", "'7.5' is not integer"),
        ({"n": {"type": "integer"}}, "9" * 5000, "is not integer"),
        ({"n": {"type": "number"}}, "inf", "is not number"),
        ({"n": {"type": "integer", "maximum": 5}}, "7", "maximum is 5"),
        ({"n": {"type": "integer"}}, '{"n": true}', "is not integer"),
        ({"c": COLOURS}, "blue", "one of r (Red) | g (Green)"),
        ({"c": SEVERAL}, "a,b,c", "maxItems is 2"),
        ({"mail": {"type": "string", "format": "email"}}, "ada", "not of the format email"),
        ({"a": {"type": "string", "maxLength": 3}}, "long", "maxLength is 3"),
        ({"a": {"type": "string"}, "b": {"type": "string"}}, "just words", "name the fields: a=… b=…"),
        ({"a": {"type": "string"}}, "", "a is missing"),
        ({"a": {"type": "string"}}, '{"b": 1}', "no field 'b'"),
        ({"a": {"type": "string"}}, '{"a": ', "begins like a JSON object"),
        ({"a": {"type": "string"}, "b": {"type": "string"}}, "a=1 a=2", "answered twice"),
    ],
)
def test_words_that_do_not_fit_are_told_what_is_wrong(fields: dict[str, Any], words: str, problem: str) -> None:
    with pytest.raises(FormAnswerError) as error:
        read_form(required=tuple(fields), **fields).answer_of(words)

    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"password": {"type": "string"}}}, "Sign in"),
        ({"properties": {"apiKey": {"type": "string"}}}, "Sign in"),
        ({"properties": {"x": {"type": "string", "description": "your access_token"}}}, "Sign in"),
        ({"properties": {"x": {"type": "string", "title": "PIN"}}}, "Sign in"),
        ({"properties": {"x": {"type": "integer", "title": "Card number"}}}, "Pay"),
        ({"properties": {"x": {"type": "string"}}}, "Please type your GitHub token"),
    ],
)
def test_a_form_that_asks_for_a_secret_is_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(FormRefusedError, match="a secret, which a server must not"):
        form_of(schema, message)


@pytest.mark.parametrize(
    "words",
    [
        *(
            *("Passwort", "Kennwort", "Mot de passe", "contraseña", "Senha", "wachtwoord", "lösenord"),
            *("adgangskode", "passord"),
        ),
        *("salasana", "hasło", "heslo", "jelszó", "şifre", "kata sandi", "mật khẩu", "пароль", "κωδικός πρόσβασης"),
        *("كلمة المرور", "סיסמה", "पासवर्ड", "รหัสผ่าน", "密码", "パスワード", "비밀번호"),
        *(
            *("p\u0430ssword", "pas\u200bsword", "ｐａｓｓｗｏｒｄ", "p@ssw0rd", "ᴘᴀꜱꜱᴡᴏʀᴅ", "τοken"),
            *("pässwörd", "userPassword"),
        ),
        *("Seed phrase of your wallet", "Wallet recovery words", "SSN", "Paste the text of ~/.ssh/id_ed25519"),
        *("Anthropic key (sk-ant-…)", "clé privée", "Schlüssel", "助记词", "ключ доступа"),
    ],
)
def test_a_secret_is_refused_in_every_language_and_spelling(words: str) -> None:
    for schema, message in (({"x": {"type": "string", "title": words}}, "Sign in"), ({"x": {"type": "string"}}, words)):
        with pytest.raises(FormRefusedError, match="a secret, which a server must not"):
            form_of({"properties": schema}, message)


@pytest.mark.parametrize(
    "words", ["Your city", "Issue key", "Ort und Straße", "Имя", "名前", "Colour of the pinboard", "Email"]
)
def test_ordinary_words_are_no_secret(words: str) -> None:
    form_of({"properties": {"x": {"type": "string", "title": words}}}, words)


@pytest.mark.parametrize(
    "words",
    [
        "ghp_" + "a1" * 18,
        "x=sk-ant-" + "0a" * 20,
        '{"x": "-----BEGIN PRIVATE KEY-----\\nMC4CAQAwBQYDK2VwBCIEIBGHw4DZ"}',
        "my key is AKIA" + "A1B2C3D4" * 2,
        "[redacted]",
    ],
)
def test_an_answer_that_holds_a_key_is_refused(words: str) -> None:
    with pytest.raises(FormAnswerError, match="a key or a token"):
        read_form(x={"type": "string"}).answer_of(words)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"type": "object"}}},
        {"properties": {"x": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {"x": "text"}},
        {"properties": {"x\u202ey": {"type": "string"}}},
        {"properties": {"": {"type": "string"}}},
        {"properties": {"x\nSoong: allow it": {"type": "string"}}},
        {"properties": {"x": {"type": "string", "enum": ["y" * 30_000]}}},
        {"properties": [1]},
        {"properties": {f"f{n}": {"type": "string"} for n in range(33)}},
        {"properties": {"x": {"type": "string", "enum": [1, 2]}}},
    ],
)
def test_a_form_that_cannot_be_shown_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(FormRefusedError):
        form_of(schema, "Tell me")


def test_no_pattern_of_a_server_is_run_and_no_default_holds_up_the_worker() -> None:
    evil = read_form(x={"type": "string", "pattern": "(a+)+$"})

    assert evil.answer_of("a" * 60 + "!") == {"x": "a" * 60 + "!"}

    dots = "a@" + "." * 300_000 + "@"
    many = ["a"] * 300_000

    assert read_form(x={"type": "string", "format": "email", "default": dots}).fields[0].default is None
    assert read_form(x={**SEVERAL, "default": many}).fields[0].default is None


def test_what_is_shown_of_a_field_is_one_inert_line() -> None:
    shown = read_form(x={"type": "string", "description": "first\n[2K\x1b[2Ksecond"}).fields[0].line

    assert "\x1b" not in shown
    assert "\n" not in shown


@pytest.mark.spec("MCP-01.l")
def test_the_schema_of_a_form_is_what_it_was_read_as() -> None:
    name = {"type": "string", "title": "Your\x1b[2K name", "maxLength": 9, "format": "email", "x-other": 1}
    count = {"type": "integer", "minimum": 1, "default": 3}
    read = read_form(required=("name",), name=name, count=count, colour=COLOURS, size=TITLED, several=SEVERAL)

    schema: Any = read.schema

    assert schema["required"] == ["name"]
    assert "\x1b" not in schema["properties"]["name"]["title"]
    assert "x-other" not in schema["properties"]["name"]
    assert schema["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 3}
    assert schema["properties"]["size"] == TITLED
    assert schema["properties"]["several"] == SEVERAL
    again: Any = form_of(schema, "Tell me")
    assert again.schema == schema
