"""Whether words ask a person for a secret, and whether an answer is one. A list of words, so not every wording."""

import re
import unicodedata
from typing import Final

from soong.shared.core.inert import is_ignorable
from soong.shared.sandbox.key_material import is_key
from soong.shared.sandbox.redact import MARK, redactor

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
