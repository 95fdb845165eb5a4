"""Decides which values are secrets, and masks them.

The texts of attempts are masked in ``execution.handler``. What commands print and log is masked in
``command.printing``, ``cli.output`` and ``tick.log``. Everything *stored as text* (errors, tracebacks, output) and
everything *shown* (terminal, mail, log, JSON) is masked. The live output of ``cronjobs run`` is not masked, because a
person may be using a debugger there. Payloads, results and effects are stored unmasked, because handlers need them.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from cronjobs.text import one_line, visible

# Mask values of at least this many characters. Masking shorter values would make other text unreadable.
SHORTEST: Final = 8
# Mask passwords of at least this many characters in URLs, where the text between ":" and "@" is certainly a password.
SHORTEST_PASSWORD: Final = 4
# If a secret was cut, mask its remainder of at least this many characters. Three characters reveal nothing, and many
# words begin with them.
SHORTEST_PART: Final = 4
MASK: Final = "***"
_OF_A_WORD: Final = re.compile(r"[A-Za-z?&]")

_SECRET_NAME: Final = re.compile(
    r"PASSW|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|PRIVATE|APIKEY|JWT|WEBHOOK|COOKIE|HMAC"
    r"|(?:^|_)(?:PASS|PWD|PW|KEYS?|AUTH|DSN|SESSION|SESSIONID|PAT|SALT|PIN|SK)(?:_|$)",
    re.IGNORECASE,
)
# Matches names of variables that are not secret. These are settings about a secret, such as SESSION_COOKIE_NAME and
# JWT_ALGORITHM, and variables that a desktop environment sets.
_ABOUT_A_SECRET: Final = re.compile(
    r"(?:COOKIE|SESSION|JWT|SALT|HMAC|PIN)\w*_(?:NAME|AGE|DOMAIN|PATH|ENGINE|ALGORITHM|TTL|TYPE|SECURE|HTTPONLY"
    r"|SAMESITE|LENGTH|ID)$|^(?:XDG|DBUS|DESKTOP|GNOME|KDE)_",
    re.IGNORECASE,
)
_NO_SECRETS: Final = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})  # these variables contain paths
# A scheme may have at most 31 characters here. Without that limit, searching a megabyte of letters would take minutes.
_BEFORE_PASSWORD: Final = re.compile(r"""[A-Za-z][\w+.-]{0,30}://([^:/@?#\s"']*):""")
_PATH_OF_URL: Final = re.compile(r"""@[^/?#]*/([^/?#]*)""")
_WITHOUT_SPACES: Final = re.compile(r"""[^\s"']+""")
# A password contains no "/" in this pattern, so that an "@" in the URL's path does not count as its end. The example
# "user:password@host" in our own messages is not masked.
_SHOWN_USERINFO: Final = re.compile(r"""[A-Za-z][\w+.-]{0,30}://[^:/@?#\s"']*:(?!password@)([^/?#\s"']*)@""")
# In a web server's URL, a user without a password is a token. In "ssh://git@host", and in a database's URL, the user is
# not a token.
_TOKEN_OF_HOST: Final = re.compile(r"""https?://([^:/@?#\s"']+)@""")
# Matches the marks that text.one_line, text.CappedText and exec's output leave where they cut a text. If a cut went
# through a secret, the remaining part of the secret must be masked. We do that here, because some caller would forget
# to mask before cutting.
_CUT: Final = re.compile(r"\n?…")
_LEFT_OUT_BEFORE: Final = re.compile(r" (?:left out|not kept) …\n")
_CUT_PASSWORD: Final = re.compile(r"""[A-Za-z][\w+.-]{0,30}://[^:/@?#\s"'…]*:(?!\d{0,5}\n?…)([^/?#\s"'@…]+)\n?…""")
_PASSWORD_LEFT: Final = re.compile(r""" (?:left out|not kept) …\n([^\s"'/@…]+)@""")
_OPTION: Final = re.compile(r"""[?&]([\w.-]{1,60})=([^&#\s"']+)""")
# Options of a database URL that may be shown. Any other option may be a misspelt "password".
_PUBLIC_OPTIONS: Final = re.compile(
    r"host|hostaddr|port|dbname|user|schema|ssl|sslmode|ssl(?:root)?cert|sslkey|sslcrl|passfile|service|connect_timeout"
    r"|application_name|fallback_application_name|target_session_attrs|load_balance_hosts|keepalives\w*|client_encoding"
    r"|channel_binding|require_auth|gss\w*|krbsrvname|tcp_user_timeout|sslnegotiation|sslsni|ssl_m\w+_protocol_version"
    r"|pgbouncer|connection_limit|pool_\w+|statement_cache_size|prepared_statement_cache_size|socket_timeout"
    r"|mode|cache|uri|timeout|check_same_thread|charset"
)
_ESCAPE_IN_URL: Final = re.compile(r"%[0-9A-F]{2}")
_LEFT_BY_REQUESTS: Final = "!#$%&'()*+,/:;=?@[]~"
_QUOTES: Final = "'\""
_URLSAFE: Final = str.maketrans("+/", "-_")
_SECRET_KEYS: Final = "cronjobs.secret_keys"  # the key in a job's meta that lists the secret keys of the payload
_SETTING: Final = re.compile(r"([\w.]{1,60})\s*=\s*(\S+)")  # finds each setting in "options=-c app.token=…"


def is_secret_name(name: str) -> bool:
    """Return whether a variable with this *name* probably contains a secret."""
    return bool(_SECRET_NAME.search(name)) and name not in _NO_SECRETS and not _ABOUT_A_SECRET.search(name)


def is_secret_option(name: str) -> bool:
    """Return whether an option with this *name* in a URL probably contains a secret.

    An option that is just ``?key=`` does not count, because it is usually the key of something to look up.
    """
    return name.lower() not in ("key", "keys") and is_secret_name(name.replace("-", "_"))


def is_public_option(name: str, value: str) -> bool:
    """Return whether an option of a database URL may be shown together with its *value*."""
    if name == "options":
        return not any("." in each or is_secret_name(each) for each, _ in _SETTING.findall(value))
    return _PUBLIC_OPTIONS.fullmatch(name) is not None


def named_secrets(variables: Mapping[str, str]) -> set[str]:
    """Return the values of those *variables* whose names suggest a secret, and the passwords in all URLs.

    The variable "" is the database URL. The result leaves out a password that is the same as the user or the database
    in its URL (shop:shop@). Masking such a name everywhere would hide job types and paths, and would protect nothing.
    """
    named = {value for name, value in variables.items() if is_secret_name(name)}
    urls = [value for value in variables.values() if "://" in value]
    passwords = {password for url in urls for password in url_passwords(url) - _that_are_names(url)}
    return long_enough(named) | passwords | option_secrets(variables.get("", ""))


def is_public_url(url: str) -> bool:
    """Return whether a database URL has no password, not even a short one, and no option that may contain a secret."""
    options = _OPTION.findall(url)
    return not any(_userinfos(url)) and all(is_public_option(name, unquote_plus(value)) for name, value in options)


def url_passwords(text: str) -> set[str]:
    """Return the passwords in URLs (``scheme://user:password@host``, ``?password=``), as written and decoded."""
    options = (value for name, value in _OPTION.findall(text) if is_secret_option(name))
    found = [*(password for _, password, _ in _userinfos(text)), *options, *_TOKEN_OF_HOST.findall(text)]
    forms = {form for password in found for form in (password, unquote(password))}
    return {form for form in forms if len(form) >= SHORTEST_PASSWORD}


def option_secrets(url: str) -> set[str]:
    """Return the values of a database URL's options that are not known to be harmless, as written and decoded."""
    found: set[str] = set()
    for name, written in _OPTION.findall(url):
        value = unquote_plus(written)
        if not is_public_option(name, value):
            settings = {part for _, part in _SETTING.findall(value)} if name == "options" else set()
            found |= {written, value, unquote(written), *settings}
    return long_enough(found)


def _that_are_names(text: str) -> set[str]:
    """Return the passwords that are the same as the user or the database in their URL."""
    return {password for user, password, database in _userinfos(text) if password in (user, database)}


def _userinfos(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the user, the password and the database of each URL.

    A password may contain an @, because people forget to escape it. So the password ends at the last @ before a space
    or a quote. With this method, each part of the text is read only once. A single regular expression would search the
    rest of the text for an @ again for each scheme, which takes quadratic time.
    """
    for part in _WITHOUT_SPACES.finditer(text):
        end = text.rfind("@", *part.span())
        before = _BEFORE_PASSWORD.search(text, part.start(), end) if end >= 0 else None
        if before is not None:
            database = _PATH_OF_URL.match(text, end, part.end())
            yield before[1], text[before.end() : end], database[1] if database else ""


def long_enough(values: Iterable[str]) -> set[str]:
    """Return the values that are long enough to be masked without making other text unreadable."""
    return {value for value in values if len(value.strip()) >= SHORTEST}


def mask(text: str, secrets: Collection[str]) -> str:
    """Replace each of *secrets* in *text* with ``***``, even in escaped form. Also replace the passwords in URLs."""
    if secrets and text:
        text = _without_parts(_pattern(_forms_in(text, secrets)).sub(MASK, text), frozenset(secrets))
    return mask_urls(text) if "://" in text or "?" in text or "&" in text else text


def safe_until(text: str, secrets: Collection[str]) -> int:
    """Return the length of the part of *text* that can be masked now, although more text will follow.

    No secret and no word continues after this part. So we never show the beginning of a secret whose end is not written
    yet.
    """
    until = min((_begins_in(text, form) for form in _all_forms(frozenset(secrets))), default=len(text))
    whole = [each.span() for each in _pattern(_forms_in(text, secrets)).finditer(text)] if secrets else []
    while True:
        before = _before_a_word(text, until)
        before = next((start for start, end in whole if start < before < end), before)
        if before == until:
            return until
        until = before


def _begins_in(text: str, form: str) -> int:
    """If *text* ends with a beginning of *form*, return where that beginning starts. Otherwise return the length of
    *text*.
    """
    at = text.find(form[0], max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(form[0], at + 1)
    return len(text) if at < 0 else at


def _before_a_word(text: str, until: int) -> int:
    """Return where the word that contains *until* begins, because the word may be a URL."""
    begins = max(text.rfind(character, 0, until) for character in " \t\r\n\"'") + 1
    # Progress dots are not a word, since URLs and their options do not begin with dots.
    return begins if _OF_A_WORD.search(text, begins, until) else until


def longest_form(secrets: Collection[str]) -> int:
    """Return the length of the longest spelling of any of *secrets*, or 0 if *secrets* is empty."""
    return max(map(len, _all_forms(frozenset(secrets))), default=0)


def mask_urls(text: str) -> str:
    """Return *text* with the passwords and tokens in its URLs masked, whether we know them or not."""
    for pattern in (_SHOWN_USERINFO, _TOKEN_OF_HOST):
        text = pattern.sub(_without_group, text)
    if "…" in text:
        text = _PASSWORD_LEFT.sub(_without_group, _CUT_PASSWORD.sub(_without_group, text))
    return _OPTION.sub(_without_value, text)


def _without_group(match: re.Match[str]) -> str:
    return match.string[match.start() : match.start(1)] + MASK + match.string[match.end(1) : match.end()]


def _without_value(match: re.Match[str]) -> str:
    return f"{match[0][0]}{match[1]}={MASK}" if is_secret_option(match[1]) else match[0]


def _without_parts(text: str, secrets: frozenset[str]) -> str:
    """Return *text* with the remains of cut secrets masked: a beginning before the mark of a cut, or an end after it.

    The remains of a secret never span two marks, so each character is examined once.
    """
    if "…" not in text:
        return text
    longest, (begins, ends) = longest_form(secrets), _by_parts(secrets)
    spans: list[tuple[int, int]] = []
    at = 0
    for mark in _CUT.finditer(text):
        place = mark.start()
        for start in range(max(at, place - longest), place - SHORTEST_PART + 1):
            known = begins.get(text[start : start + SHORTEST_PART], ())
            if known and any(form.startswith(text[start:place]) for form in known):
                spans.append((start, place))
                break
        at = mark.end()
    for mark in _LEFT_OUT_BEFORE.finditer(text):
        place = mark.end()
        until = text.find("…", place, place + longest)
        for end in range(until if until >= 0 else min(len(text), place + longest), place + SHORTEST_PART - 1, -1):
            known = ends.get(text[end - SHORTEST_PART : end], ())
            if known and any(form.endswith(text[place:end]) for form in known):
                spans.append((place, end))
                break
    kept, at = [], 0
    for start, end in sorted(spans):
        kept += [text[at:start], MASK] if start >= at else []
        at = max(at, end)
    return "".join([*kept, text[at:]])


@lru_cache(maxsize=8)
def _by_parts(secrets: frozenset[str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return all spellings of *secrets*, grouped by their first characters, and by their last characters."""
    begins: dict[str, list[str]] = {}
    ends: dict[str, list[str]] = {}
    for form in _all_forms(secrets):
        begins.setdefault(form[:SHORTEST_PART], []).append(form)
        ends.setdefault(form[-SHORTEST_PART:], []).append(form)
    return begins, ends


def _forms_in(text: str, secrets: Collection[str]) -> frozenset[str]:
    """Return the spellings of *secrets* that occur in *text* (usually none).

    This search comes first, because it would take 20 ms to compile one regular expression for all spellings.
    """
    return frozenset(form for form in _all_forms(frozenset(secrets)) if form in text)


@lru_cache(maxsize=8)
def _pattern(forms: frozenset[str]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)) or r"(?!)")


@lru_cache(maxsize=8)
def _all_forms(secrets: frozenset[str]) -> frozenset[str]:
    return frozenset({form for secret in secrets for form in _forms(secret)})


@lru_cache(maxsize=1024)
def _forms(secret: str) -> frozenset[str]:
    """Return the spellings in which *secret* may appear in a text.

    These are the secret itself, and its forms in JSON, in Python's ``repr``, in URLs, and in base64 at any position in
    the encoded bytes. A secret of several lines, such as a private key, may appear on one line, or line by line.
    """
    if not secret:
        return frozenset()
    data = _bytes_of(secret)
    spelt = {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    for written in (
        "".join(repr(each)[1:-1] if each not in _QUOTES else each for each in secret),
        "".join(ascii(each)[1:-1] if each not in _QUOTES else each for each in secret),
        "".join(repr(bytes([each]))[2:-1] if chr(each) not in _QUOTES else chr(each) for each in data),
    ):
        # Python's repr() chooses its quotes by the text around the secret, so include both spellings.
        spelt |= {written, written.replace("'", "\\'")}
    for safe in ("", "/", _LEFT_BY_REQUESTS):
        spelt |= {quote(data, safe), quote_plus(data, safe)}
    spelt |= {_ESCAPE_IN_URL.sub(lambda match: match[0].lower(), each) for each in spelt if "%" in each}
    if len(data) >= SHORTEST:
        spelt.update(_in_base64(data))
    spelt |= {form for each in spelt for form in (visible(each), one_line(each, len(each) * 6))}
    return frozenset(spelt | long_enough(secret.splitlines()))


def _bytes_of(secret: str) -> bytes:
    try:
        return secret.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return secret.encode(errors="surrogatepass")


def _in_base64(data: bytes) -> Iterator[str]:
    """Yield the forms that *data* has inside a longer base64 text, without characters that also encode its neighbours.

    The form depends on the number of bytes before *data*, modulo 3, so three forms exist. Also yield each form together
    with its final characters, in case nothing follows *data*.
    """
    for before in range(3):
        encoded = b64encode(b"\0" * before + data).decode()
        first, bits = (0, 2, 3)[before], 8 * (before + len(data))
        for end in (len(encoded), bits // 6):
            form = encoded[first:end].rstrip("=")
            yield from (form, form.translate(_URLSAFE))


def without(value: Any, keys: Collection[str]) -> Any:
    """Return *value*, which is JSON, with ``***`` in place of each value under one of *keys*, at any depth."""
    if not keys:
        return value
    match value:
        case dict():
            return {key: MASK if key in keys else without(item, keys) for key, item in value.items()}
        case list() | tuple():
            return [without(item, keys) for item in value]
    return value


def values_under(value: Any, keys: Collection[str]) -> set[str]:
    """Return, as texts, the values that ``without`` hides, so that messages about *value* can hide them, too."""
    found: set[str] = set()
    todo = [(value, False)]  # no recursion, because a payload may be nested too deeply
    while todo:
        each, hidden = todo.pop()
        match each:
            case dict():
                todo += [(item, hidden or key in keys) for key, item in each.items()]
            case list() | tuple():
                todo += [(item, hidden) for item in each]
            case str() | int() | float() if hidden:
                found.add(str(each))
    return long_enough(found)


def keys_holding(value: Any, secrets: Collection[str]) -> set[str]:
    """Return the keys in *value*, which is JSON, whose values contain any of *secrets* at any depth."""
    found: set[str] = set()
    todo: list[tuple[Any, str]] = [(value, "")]
    while todo:
        each, key = todo.pop()
        match each:
            case dict():
                todo += [(item, name) for name, item in each.items()]
            case list() | tuple():
                todo += [(item, key) for item in each]
            case str() if any(secret in each for secret in secrets):
                found.add(key)
    return found


def as_meta(keys: Collection[str]) -> dict[str, str]:
    """Return the ``meta`` that lists a payload's secret *keys*. Their values stay hidden after the secrets change."""
    return {_SECRET_KEYS: json.dumps(sorted(keys))} if keys else {}


def keys_of_meta(meta: object) -> frozenset[str]:
    """Return the keys that ``as_meta`` wrote into *meta*, or none if plain SQL wrote something else there."""
    try:
        keys = json.loads(meta[_SECRET_KEYS]) if isinstance(meta, Mapping) else []
    except (KeyError, TypeError, ValueError, RecursionError):
        return frozenset()
    return frozenset(key for key in keys if isinstance(key, str)) if isinstance(keys, list) else frozenset()


# --- masking what this process shows ----------------------------------------------------------------------------------

_remembered: frozenset[str] = frozenset()


def remember(secrets: Collection[str]) -> None:
    """Make ``hide`` mask *secrets* from now on, in place of earlier ones."""
    global _remembered
    _remembered = frozenset(secrets)


def hide(text: str) -> str:
    """Return *text* in a form that this process may show."""
    return mask(text, _remembered)


def hide_in(value: Any) -> Any:
    """Return *value*, which is JSON, with all strings masked, including keys."""
    match value:
        case str():
            return hide(value)
        case dict():
            return {hide(key) if isinstance(key, str) else key: hide_in(item) for key, item in value.items()}
        case list() | tuple():
            return [hide_in(item) for item in value]
    return value


def hidden_json(value: Any, indent: int | None = None) -> str:
    """Return *value* as JSON for people, without secrets. Mask before converting, because JSON escapes the strings."""
    return json.dumps(hide_in(value), ensure_ascii=False, indent=indent, default=str)
