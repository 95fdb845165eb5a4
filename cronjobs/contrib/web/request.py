"""A request as WSGI brings it, read strictly; an answer; and the refusals that end a request early."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote

from cronjobs.errors import CronjobsError

LONGEST_FORM: Final = 16 * 1024  # bytes
MOST_FIELDS: Final = 20
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")


class Refused(CronjobsError):
    """The request is not done; ``status`` is "403 Forbidden" and the like."""

    def __init__(self, status: str, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers


@dataclass(frozen=True)
class Response:
    body: bytes = b""
    status: str = "200 OK"
    content_type: str = "text/html; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class PageRequest:
    """``base``: where the pages are mounted, "" or "/a/b"; ``path`` begins behind it. Headers by their WSGI names."""

    method: str
    base: str
    path: str
    query: dict[str, str]
    environ: Mapping[str, Any] = field(repr=False)

    def header(self, name: str) -> str:
        """ "" if it was not sent."""
        return str(self.environ.get(f"HTTP_{name.upper().replace('-', '_')}", ""))

    @property
    def host(self) -> str:
        return self.header("Host").lower()

    def cookie(self, name: str) -> str:
        for part in self.header("Cookie").split(";"):
            found, _, value = part.strip().partition("=")
            if found == name:
                return value
        return ""

    def form(self) -> dict[str, str]:
        """The fields of a POST, each once. Raises Refused."""
        kind = str(self.environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Refused("415 Unsupported Media Type", "this takes a form")
        try:
            length = int(self.environ.get("CONTENT_LENGTH") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= LONGEST_FORM:
            raise Refused("413 Content Too Large", f"a form has at most {LONGEST_FORM:,} bytes")
        body = self.environ["wsgi.input"].read(length) if length else b""
        try:
            return _fields(body.decode("ascii"))
        except UnicodeDecodeError:
            raise Refused("400 Bad Request", "the form is not encoded as forms are") from None


def base_of(environ: Mapping[str, Any], *, trust_proxy: bool = False) -> str:
    """Where the pages are mounted. *trust_proxy*: a proxy in front, which strips a prefix, names it in
    X-Forwarded-Prefix. Raises Refused.
    """
    base = _decoded(str(environ.get("SCRIPT_NAME", ""))).rstrip("/")
    if trust_proxy:
        prefix = str(environ.get("HTTP_X_FORWARDED_PREFIX", "")).rstrip("/")
        if not _PREFIX.fullmatch(prefix):
            raise Refused("400 Bad Request", "the proxy's X-Forwarded-Prefix is no path")
        base = prefix + base
    return quote(base)


def read_request(environ: Mapping[str, Any], base: str) -> PageRequest:
    """Raises Refused."""
    path = _decoded(str(environ.get("PATH_INFO", ""))) or "/"
    query = _fields(str(environ.get("QUERY_STRING", "")))
    return PageRequest(str(environ.get("REQUEST_METHOD", "GET")), base, path, query, environ)


def _decoded(path: str) -> str:
    """WSGI hands bytes over as if they were Latin-1."""
    try:
        found = path.encode("latin-1").decode()
    except UnicodeError:
        raise Refused("404 Not Found", "there is no such page") from None
    if "\0" in found:
        raise Refused("404 Not Found", "there is no such page")
    return found


def _fields(encoded: str) -> dict[str, str]:
    try:
        found = parse_qsl(encoded, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:  # and UnicodeDecodeError
        raise Refused("400 Bad Request", "the address or the form cannot be read") from None
    if any("\0" in part for pair in found for part in pair):
        raise Refused("400 Bad Request", "the address or the form cannot be read")
    if len(dict(found)) != len(found):
        raise Refused("400 Bad Request", "a field comes twice")
    return dict(found)
