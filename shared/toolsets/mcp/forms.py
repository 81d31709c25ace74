"""A server's form and a person's words for it (MCP elicitation): flat fields, one line of text as the answer.

The words are the JSON object of the fields, or ``name=value`` for each of several, or the bare value of a form with one
field. A missing field takes its default (SEP-1034). A form that asks for a secret is refused: a server must not ask for
one (https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation).
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from soong.shared.core.errors import InvalidJsonError, SoongError
from soong.shared.core.jsontext import Json, JsonObject, is_ignorable, is_told_apart, parse_strict
from soong.shared.core.value import Value
from soong.shared.sandbox.redact import MARK, inert_text, is_key, redactor

FieldValue: TypeAlias = str | int | float | bool | list[str]

MAX_FIELDS: Final = 32
MAX_OPTIONS: Final = 100
MAX_NAME_CHARS: Final = 100
MAX_WORDS_CHARS: Final = 300
MAX_FORM_CHARS: Final = 20_000
"""The text of a form that a person is shown. A longer question would be cut, and with it Soong's words at its end."""
_TYPES: Final = ("string", "number", "integer", "boolean", "array")
_YES: Final = frozenset({"yes", "y", "true", "on", "1"})
_NO: Final = frozenset({"no", "n", "false", "off", "0"})
_FORMATS: Final = {
    # A server's default is held to it too: every part ends where the next begins, so it takes linear time.
    "email": re.compile(r"[^@\s]+@[^@\s.]+(?:\.[^@\s.]+)+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "date-time": re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:[Zz]|[+-]\d{2}:?\d{2})?"),
}

_LOOK_ALIKES: Final = str.maketrans(
    # Cyrillic, Greek, Armenian, small capitals, letters with a stroke, digits and signs
    "авсԁеғһіјкӏмопрԛгѕтѵԝхуғαβεηικνορςτυχγωοոսհցզաᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢɡıłøđħŧ01345@$!",
    "abcdefhijklmonpqrstvwxyfabenikvopctuxywonuhgqwabcdefghijklmnoprstuvwyzgilodhtoieasasi",
)
_BORDER: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")
_WORDS: Final = re.compile(
    r"pass[\W_]?(?:word|phrase|code)|passwd|\bpwd\b|secret|credential|\b(?:pin|otp|mfa|2fa|cvv|cvc|ssn|bsn|pesel)\b"
    r"|(?:api|private|access|ssh|gpg|pgp|signing|encryption|master|recovery|account|licen[sc]e|anthropic|openai|gemini"
    r"|aws|azure|google|stripe|github|model|provider)[\W_]?(?:\w{1,20}[\W_])?key|\bkey\W{0,3}(?:sk|ghp|akia)\b"
    r"|(?:access|auth|bearer|refresh|session|security)[\s_-]?token|\btoken\b|card[\s_-]?number"
    r"|one[\s_-]?time[\s_-]?code|social[\s_-]?security|seed\W{0,3}(?:phrase|words?)|(?:recovery|backup|mnemonic|wallet)"
    r"\W{0,3}(?:phrase|words?|codes?|seed)|mnemonic|\.ssh\b|\bid[\W_](?:rsa|dsa|ecdsa|ed\W?25519)|\.(?:pem|env)\b"
    # German, French, Spanish, Portuguese, Italian, Dutch
    r"|passwort|kennwort|geheim|zugangsdaten|schlussel|kartennummer|sozialversicherung|mots? de passe|cles? \w{0,3}\W?"
    r"(?:prive|secret|api|acces)|code confidentiel|securite sociale|phrase de recup|contrasena|\bclave|frase (?:semilla"
    r"|de recup|di recup)|secreto|\bsenha|palavra\W?passe|segred|chave|parola|segret|chiave|wachtwoord|sleutel"
    # Swedish, Danish, Norwegian, Finnish, Polish, Czech, Slovak, Hungarian, Romanian, Turkish, Indonesian, Vietnamese
    r"|losenord|hemlig|adgangskode|kodeord|hemmelig|passord|salasana|tunnusluku|\bhasl[oa]|tajn|klucz|\bhesl[oa]|jelszo"
    r"|titkos|\bsifre|gizli|kata (?:sandi|laluan)|mat khau|lozink"
    # Russian, Ukrainian, Bulgarian, Serbian, Greek, Arabic, Persian, Hebrew, Hindi, Bengali, Thai
    r"|парол|секрет|ключ|таємн|лозинк|κωδικ|μυστικ|كلمة (?:المرور|السر)|رمز|گذرواژه|סיסמ|ססמ|पासवर्ड|गुप्त|পাসওয়ার্ড"
    r"|รหัส"
    # Chinese, Japanese, Korean
    r"|密码|密碼|口令|密钥|密鑰|私钥|私鑰|助记词|助記詞|验证码|パスワード|パスフレーズ|暗証番号|秘密|合言葉|비밀|암호"
)


class FormRefusedError(SoongError):
    """A form that no person is shown; the message has the reason."""


class FormAnswerError(SoongError):
    """Words that are not an answer to the form; the message names the missing or wrong part."""


class FormField(Value):
    """One field. ``options`` are the values that it may have and what each is called; empty: any of its type."""

    name: str
    type: str
    title: str
    is_required: bool
    options: tuple[tuple[str, str], ...]
    default: FieldValue | None
    rules: Mapping[str, Any]

    @property
    def line(self) -> str:
        """Say what a person may write."""
        kind = {"string": "text", "boolean": "yes or no", "array": "several, by |"}.get(self.type, self.type)
        if self.options:
            kind = ("several of " if self.type == "array" else "one of ") + " | ".join(
                value if value == label else f"{value} ({label})" for value, label in self.options
            )
        facts = [kind, *(f"{name} {value}" for name, value in sorted(self.rules.items()))]
        if self.default is not None:
            facts.append(f"default {_shown(self.default)}")
        elif self.is_required:
            facts.append("required")
        title = f"  {self.title}" if self.title else ""
        return inert_text(f"{self.name}: {', '.join(facts)}{title}").replace("\n", " ")

    @property
    def schema(self) -> JsonObject:
        """The field as JSON Schema: only the parts that a person is shown, nothing else of the server's."""
        choice: dict[str, Json] = {}
        if self.options and all(value == label for value, label in self.options):
            choice = {"enum": [value for value, _ in self.options]}
        elif self.options:
            choice = {"oneOf": [{"const": value, "title": label} for value, label in self.options]}
        kind: dict[str, Json] = {"type": self.type, **choice}
        made = {"type": "array", "items": {"type": "string", **choice}} if self.type == "array" else kind
        title: dict[str, Json] = {"title": inert_text(self.title)} if self.title else {}
        default: dict[str, Json] = {} if self.default is None else {"default": self.default}
        return {**made, **title, **self.rules, **default}

    def value_of(self, said: object) -> FieldValue:
        """Read what a person wrote, or a JSON value. Raises: FormAnswerError."""
        try:
            value = _READERS[self.type](self, said)
        except (ValueError, TypeError, OverflowError) as error:
            raise FormAnswerError(f"{self.name}: {_shown(said)!r} is not {self.line.partition(': ')[2]}") from error
        self._check(value)
        return value

    def option(self, said: str) -> str:
        """Return the value that is called so. Raises: ValueError."""
        if not self.options:
            return said
        if any(said == value for value, _ in self.options):
            return said
        for value, label in self.options:
            if said == label or said.casefold() in (value.casefold(), label.casefold()):
                return value
        raise ValueError(said)

    def _check(self, value: FieldValue) -> None:
        """Hold a value to the field's rules. Raises: FormAnswerError."""
        size = len(value) if isinstance(value, str | list) else value
        for least, most in (("minLength", "maxLength"), ("minItems", "maxItems"), ("minimum", "maximum")):
            if least in self.rules and size < self.rules[least]:
                raise FormAnswerError(f"{self.name}: {least} is {self.rules[least]}")
            if most in self.rules and size > self.rules[most]:
                raise FormAnswerError(f"{self.name}: {most} is {self.rules[most]}")
        wanted = _FORMATS.get(str(self.rules.get("format")))
        if wanted is not None and isinstance(value, str) and not wanted.fullmatch(value):
            raise FormAnswerError(f"{self.name}: {_shown(value)!r} is not of the format {self.rules['format']}")


class ElicitationForm(Value):
    """The fields of a form, in the server's order; a form without fields asks for a yes."""

    fields: tuple[FormField, ...]

    def answer_of(self, words: str) -> dict[str, FieldValue]:
        """Return a person's words as the content of the answer.
        Raises: FormAnswerError, a required field is missing, a value does not fit, or the words hold a secret.
        """
        if is_secret(words):
            raise FormAnswerError("it holds what looks like a key or a token; a server gets no secrets")
        said = self._said(words.strip())
        content: dict[str, FieldValue] = {}
        for one in self.fields:
            if one.name in said:
                content[one.name] = one.value_of(said[one.name])
            elif one.default is not None:
                content[one.name] = one.default
            elif one.is_required:
                raise FormAnswerError(f"{one.name} is missing")
        return content

    @property
    def schema(self) -> JsonObject:
        required = [one.name for one in self.fields if one.is_required]
        return {"type": "object", "properties": {one.name: one.schema for one in self.fields}, "required": required}

    @property
    def how(self) -> str:
        if not self.fields:
            return "allow once accepts; deny declines"
        if len(self.fields) == 1:
            words = f"the value of {self.fields[0].name}"
        else:
            words = " ".join(f"{one.name}=…" for one in self.fields)
        left_out = "" if any(one.is_required and one.default is None for one in self.fields) else " (or nothing more)"
        return f"allow once with the reason {inert_text(words)!r}{left_out} answers; deny declines"

    def _said(self, words: str) -> Mapping[str, object]:
        """Return what the person wrote for each field, as text or JSON. Raises: FormAnswerError."""
        names = [one.name for one in self.fields]
        if words.startswith("{"):
            try:
                value = parse_strict(words)
            except InvalidJsonError as error:
                raise FormAnswerError(f"it begins like a JSON object but is not valid JSON: {error}") from error
            assert isinstance(value, Mapping)
            if unknown := sorted(set(value) - set(names)):
                raise FormAnswerError(f"the form has no field {unknown[0]!r}")
            return value
        if not words or not names:
            return {}
        pairs = list(re.finditer(rf"(?:^|(?<=[\s,;]))({'|'.join(map(re.escape, names))})\s*=\s*", words))
        if pairs and pairs[0].start() == 0:
            ends = [*(pair.start() for pair in pairs[1:]), len(words)]
            found = {pair[1]: words[pair.end() : end].strip(" \t\n,;") for pair, end in zip(pairs, ends, strict=True)}
            if len(found) < len(pairs):
                raise FormAnswerError("a field is answered twice")
            return found
        if len(names) > 1:
            raise FormAnswerError(f"name the fields: {' '.join(f'{name}=…' for name in names)}")
        return {names[0]: words}


def form_of(schema: Mapping[str, Any], message: str) -> ElicitationForm:
    """Read the schema of a form; ``message`` is the server's text with it.
    Raises: FormRefusedError, it is not flat, is too long, or asks for a secret.
    """
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, Sequence) or len(properties) > MAX_FIELDS:
        raise FormRefusedError(f"its form is not an object of at most {MAX_FIELDS} fields")
    fields = tuple(_field(str(name), one, name in required) for name, one in properties.items())
    if any(one.type == "string" and not one.options for one in fields) and asks_for_secret(message):
        raise FormRefusedError("it asks for a secret, which a server must not")
    if sum(len(one.line) for one in fields) > MAX_FORM_CHARS:
        raise FormRefusedError("its form is too long to be shown")
    return ElicitationForm(fields)


def _field(name: str, schema: Any, is_required: bool) -> FormField:
    if not isinstance(schema, Mapping) or schema.get("type") not in _TYPES:
        raise FormRefusedError(f"its field {name[:MAX_NAME_CHARS]!r} is not a text, number, yes or no, or choice")
    if not name.strip() or len(name) > MAX_NAME_CHARS or not is_told_apart(name):
        raise FormRefusedError(f"a field has a name that cannot be shown: {inert_text(name[:MAX_NAME_CHARS])!r}")
    kind = str(schema["type"])
    options = _options(schema.get("items", {}) if kind == "array" else schema)
    if kind == "array" and not options:
        raise FormRefusedError(f"its field {name!r} is a list without choices")
    about = " ".join(str(schema.get(key) or "") for key in ("title", "description"))[:MAX_WORDS_CHARS].strip()
    is_text = kind in ("string", "integer", "number") and not options
    if is_text and (asks_for_secret(f"{name} {about}") or schema.get("format") == "password"):
        raise FormRefusedError(f"its field {name!r} asks for a secret, which a server must not")
    field = FormField(name, kind, about, is_required, options, None, _rules(schema, kind))
    default = schema.get("default")
    try:
        value = None if default is None else field.value_of(default)
    except FormAnswerError:
        value = None  # a default that the form itself does not take
    return FormField(name, kind, about, is_required, options, value, field.rules)


def _options(schema: Any) -> tuple[tuple[str, str], ...]:
    """Return the choices of a field: value and label. Raises: FormRefusedError."""
    if not isinstance(schema, Mapping):
        return ()
    named = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(named, list):
        found = [(one.get("const"), one.get("title") or one.get("const")) for one in named if isinstance(one, Mapping)]
    else:
        values = schema.get("enum")
        labels = schema.get("enumNames")
        values = values if isinstance(values, list) else []
        found = list(
            zip(values, labels if isinstance(labels, list) and len(labels) == len(values) else values, strict=True)
        )
    if len(found) > MAX_OPTIONS or any(not isinstance(value, str) for value, _ in found):
        raise FormRefusedError(f"a field has choices that are not at most {MAX_OPTIONS} texts")
    return tuple((str(value), inert_text(str(label))[:MAX_WORDS_CHARS]) for value, label in found)


def _rules(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    known = {
        "string": ("minLength", "maxLength"),
        "number": ("minimum", "maximum"),
        "integer": ("minimum", "maximum"),
        "array": ("minItems", "maxItems"),
    }
    rules = {
        name: value
        for name in known.get(kind, ())
        if isinstance(value := schema.get(name), int | float) and not isinstance(value, bool)
    }
    if kind == "string" and schema.get("format") in _FORMATS:
        rules["format"] = schema["format"]
    return rules


def _text(field: FormField, said: object) -> FieldValue:
    if not isinstance(said, str):
        raise TypeError(said)
    return field.option(said)


def _integer(_field: FormField, said: object) -> FieldValue:
    if isinstance(said, bool) or not isinstance(said, str | int | float) or (value := int(said)) != float(said):
        raise ValueError(said)
    return value


def _number(_field: FormField, said: object) -> FieldValue:
    if isinstance(said, bool) or not isinstance(said, str | int | float):
        raise TypeError(said)
    value = float(said)
    if value - value != 0:  # neither infinite nor not a number
        raise ValueError(said)
    return int(value) if value.is_integer() and not isinstance(said, float) else value


def _flag(_field: FormField, said: object) -> FieldValue:
    if isinstance(said, bool):
        return said
    word = str(said).casefold()
    if word not in _YES | _NO:
        raise ValueError(said)
    return word in _YES


def _several(field: FormField, said: object) -> FieldValue:
    parts = said
    if isinstance(said, str):
        parts = said.split("|" if "|" in said else ",")
    if not isinstance(parts, list | tuple):
        raise TypeError(said)
    if len(parts) > MAX_OPTIONS:
        raise ValueError(said)
    chosen = [field.option(str(part).strip()) for part in parts if str(part).strip()]
    return list(dict.fromkeys(chosen))


_READERS: Final = {"string": _text, "integer": _integer, "number": _number, "boolean": _flag, "array": _several}


def _shown(value: object) -> str:
    text = " | ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return inert_text(text)[:MAX_WORDS_CHARS]


def asks_for_secret(text: str) -> bool:
    """Say whether a name or a sentence asks for a secret, in one of some thirty languages or in look-alike letters."""
    for spelling in (text, _BORDER.sub(" ", text)):
        plain = unicodedata.normalize("NFKC", spelling).casefold()
        plain = "".join(char for char in plain if not is_ignorable(char))
        letters = unicodedata.normalize("NFKD", plain.translate(_LOOK_ALIKES))
        bare = "".join(char for char in letters if not unicodedata.combining(char))
        if any(_WORDS.search(form) for form in (plain, unicodedata.normalize("NFKC", bare))):
            return True
    return False


def is_secret(text: str) -> bool:
    """Say whether a text holds what looks like a key or a token, or the mark of one that was taken out."""
    return MARK in text or redactor().text(text) != text or is_key(text.encode("utf-8", "replace"))
