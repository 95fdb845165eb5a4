"""Which values are secrets, and how to mask them.

Attempts are masked in ``execution.handler``, what is shown in ``command.printing``, ``cli.output`` and ``tick.log``.
Masked is what is *stored as text* (errors, tracebacks, output) and whatever is *shown* (terminal, mail, log, JSON).
Payloads, results and effects are stored unmasked, because handlers need them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from cronjobs.text import one_line, visible

SHORTEST: Final = 8  # characters; masking shorter values would make other text unreadable
SHORTEST_PASSWORD: Final = 4  # inside a URL it can be nothing else
MASK: Final = "***"
_OF_A_WORD: Final = re.compile(r"[A-Za-z?&]")

_SECRET_NAME: Final = re.compile(
    r"PASSW|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|PRIVATE|APIKEY|(?:^|_)(?:PASS|PWD|KEYS?|AUTH|DSN)(?:_|$)", re.IGNORECASE
)
_NO_SECRETS: Final = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})  # paths that every shell sets
# Of a scheme no more is looked at than 31 characters: without a limit a megabyte of letters takes minutes.
_BEFORE_PASSWORD: Final = re.compile(r"""[A-Za-z][\w+.-]{0,30}://[^:/@?#\s"']*:""")
_WITHOUT_SPACES: Final = re.compile(r"""[^\s"']+""")
# Not across a path, which may contain an @; nor the example in our own messages, user:password@host.
_SHOWN_USERINFO: Final = re.compile(r"""[A-Za-z][\w+.-]{0,30}://[^:/@?#\s"']*:(?!password@)([^/?#\s"']*)@""")
_PASSWORD_OPTION: Final = re.compile(r"""[?&](?:ssl)?password=([^&#\s"']+)""")


def is_secret_name(name: str) -> bool:
    """Whether a variable of this *name* holds a secret."""
    return bool(_SECRET_NAME.search(name)) and name not in _NO_SECRETS


def named_secrets(variables: Mapping[str, str]) -> set[str]:
    """The values of those *variables* whose names mean a secret, and the passwords in all URLs."""
    named = {value for name, value in variables.items() if is_secret_name(name)}
    passwords = {password for value in variables.values() if "://" in value for password in url_passwords(value)}
    return long_enough(named) | passwords


def url_passwords(text: str) -> set[str]:
    """The passwords in URLs, ``scheme://user:password@host`` and ``?password=``, as written and decoded."""
    found = [*_before_an_at(text), *(match[1] for match in _PASSWORD_OPTION.finditer(text))]
    forms = {form for password in found for form in (password, unquote(password))}
    return {form for form in forms if len(form) >= SHORTEST_PASSWORD}


def _before_an_at(text: str) -> Iterator[str]:
    """Up to the last @ before a space or a quote, since people forget to escape an @ in the password.

    Each part is read once: one expression for all of it would read on to the end from every scheme, and find no @.
    """
    for part in _WITHOUT_SPACES.finditer(text):
        end = text.rfind("@", *part.span())
        before = _BEFORE_PASSWORD.search(text, part.start(), end) if end >= 0 else None
        if before is not None:
            yield text[before.end() : end]


def long_enough(values: Iterable[str]) -> set[str]:
    """Those values that can be masked without making other text unreadable."""
    return {value for value in values if len(value.strip()) >= SHORTEST}


def mask(text: str, secrets: Collection[str]) -> str:
    """*text* with each of *secrets* replaced by ``***``, even where it is escaped; passwords in URLs, too."""
    if secrets and text:
        text = _pattern(frozenset(secrets)).sub(MASK, text)
    return mask_urls(text) if "://" in text or "password=" in text else text


def safe_until(text: str, secrets: Collection[str]) -> int:
    """How much of a growing *text* can be masked by itself: none of its secrets, and no word, goes on behind that.

    Of a secret whose end is not there yet the beginning would be shown.
    """
    until = min((_begins_in(text, form) for form in _all_forms(frozenset(secrets))), default=len(text))
    whole = [each.span() for each in _pattern(frozenset(secrets)).finditer(text)] if secrets else []
    while True:
        before = _before_a_word(text, until)
        before = next((start for start, end in whole if start < before < end), before)
        if before == until:
            return until
        until = before


def _begins_in(text: str, form: str) -> int:
    """Where *text* ends with a beginning of *form*; its length: nowhere."""
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(form[0], at + 1)
    return len(text) if at < 0 else at


def _before_a_word(text: str, until: int) -> int:
    """Where the word begins in whose middle *until* is: it may be a URL."""
    begins = max(text.rfind(character, 0, until) for character in " \t\r\n\"'") + 1
    # Dots that count up are no word: no URL, and no option of one, begins so.
    return begins if _OF_A_WORD.search(text, begins, until) else until


def longest_form(secrets: Collection[str]) -> int:
    """How many characters the longest of *secrets* takes; 0: there are none."""
    return max(map(len, _all_forms(frozenset(secrets))), default=0)


def mask_urls(text: str) -> str:
    """*text* without the passwords of the URLs in it, known or not."""
    for pattern in (_SHOWN_USERINFO, _PASSWORD_OPTION):
        text = pattern.sub(_without_group, text)
    return text


def _without_group(match: re.Match[str]) -> str:
    return match.string[match.start() : match.start(1)] + MASK + match.string[match.end(1) : match.end()]


@lru_cache(maxsize=8)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str]:
    forms = _all_forms(secrets)
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) or r"(?!)")


@lru_cache(maxsize=8)
def _all_forms(secrets: frozenset[str]) -> frozenset[str]:
    return frozenset({form for secret in secrets for form in _forms(secret)})


def _forms(secret: str) -> set[str]:
    """How *secret* may appear in a text: unchanged, on one line, in JSON, and line by line (a private key)."""
    lines = long_enough(secret.splitlines())
    return {secret, visible(secret), one_line(secret, len(secret) * 6), json.dumps(secret)[1:-1], *lines} - {""}


def without(value: Any, keys: Collection[str]) -> Any:
    """*value*, JSON, with ``***`` in place of whatever stands under one of *keys*, at any depth."""
    if not keys:
        return value
    match value:
        case dict():
            return {key: MASK if key in keys else without(item, keys) for key, item in value.items()}
        case list() | tuple():
            return [without(item, keys) for item in value]
    return value


# --- what this process shows ------------------------------------------------------------------------------------------

_remembered: frozenset[str] = frozenset()


def remember(secrets: Collection[str]) -> None:
    """Make ``hide`` mask these secrets, which the loaded configuration names, from now on."""
    global _remembered
    _remembered = frozenset(secrets)


def hide(text: str) -> str:
    """*text* as this process may show it."""
    return mask(text, _remembered)


def hide_in(value: Any) -> Any:
    """*value*, JSON to be shown, with every string in it masked, keys too."""
    match value:
        case str():
            return hide(value)
        case dict():
            return {hide(key) if isinstance(key, str) else key: hide_in(item) for key, item in value.items()}
        case list() | tuple():
            return [hide_in(item) for item in value]
    return value
