"""Who may see the pages, and who may act: by the link that ``cronjobs web`` prints, or as an app's own code says."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from threading import Lock
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from cronjobs.contrib.web.request import PageRequest, Refused

# The pages need their style sheet and icon, and nothing from elsewhere; there is no script and no frame.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),  # browsers that do not know frame-ancestors
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
TOKEN: Final = "once"


@dataclass(frozen=True)
class Visitor:
    """``name``: for the audit trail. ``csrf``: what each of their forms contains. ``cookies``: to be set now."""

    name: str
    csrf: str
    may_act: bool
    cookies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Login:
    """The one-time link was followed: set the cookie, and go on to the address without the token."""

    cookie: str


class Access(Protocol):
    @property
    def trust_proxy(self) -> bool: ...

    def admit(self, request: PageRequest) -> Visitor | Login:
        """Raises Refused."""
        ...


@dataclass
class ByLink:
    """Whoever has followed the link, which works once. ``hosts``: what the Host header may say."""

    name: str
    hosts: Collection[str]
    cookie: str
    may_act: bool = False
    trust_proxy: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str | None = field(default=None, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def admit(self, request: PageRequest) -> Visitor | Login:
        # A page of somebody else's whose name leads to this machine (DNS rebinding) comes with that name.
        if request.host not in self.hosts:
            raise Refused(
                "421 Misdirected Request",
                "this server does not answer to the host name of this address; cronjobs web --allow-host adds one",
            )
        if request.method == "GET" and request.path == "/" and TOKEN in request.query:
            session = self._log_in(request)
            if session is not None:
                return Login(_cookie(self.cookie, session, request, self.trust_proxy))
        session = self._session
        if session is None or not _same(request.cookie(self.cookie), session):
            raise Refused(
                "401 Unauthorized",
                "follow the link that cronjobs web has printed. It works once, in one browser; stop cronjobs web and "
                "start it again for a new one",
                WWW_Authenticate='Link realm="cronjobs"',
            )
        return Visitor(self.name, csrf_of(session, self.name), self.may_act)

    def _log_in(self, request: PageRequest) -> str | None:
        # A browser that fetches a link ahead must not use it up.
        if "prefetch" in request.header("Sec-Purpose") + request.header("Purpose"):
            return None
        with self._lock:
            if self._session is not None or not _same(request.query[TOKEN], self.token):
                return None
            self._session = secrets.token_urlsafe(32)
            return self._session


@dataclass(frozen=True)
class ByApp:
    """Mounted in an app, which knows its users. ``viewer``: the user's name; None: this one may not see anything."""

    viewer: Callable[[Mapping[str, Any]], str | None] | None
    may_act: Callable[[Mapping[str, Any]], bool] | None = None
    trust_proxy: bool = False
    cookie: str = "cronjobs_session"

    def admit(self, request: PageRequest) -> Visitor:
        if self.viewer is None:
            raise Refused(
                "403 Forbidden",
                "nobody may see these pages yet: pass viewer= to cronjobs.contrib.web.app(): "
                "a function that returns the name of the user who is logged in, or None",
            )
        name = self.viewer(request.environ)
        if not name:
            raise Refused("403 Forbidden", "you may not see these pages, or are not logged in")
        may_act = self.may_act is not None and bool(self.may_act(request.environ))
        session = request.cookie(self.cookie)
        if len(session) >= 32 and session.isascii():
            return Visitor(str(name), csrf_of(session, str(name)), may_act)
        session = secrets.token_urlsafe(32)
        cookies = (_cookie(self.cookie, session, request, trust_proxy=False),)
        return Visitor(str(name), csrf_of(session, str(name)), may_act, cookies)


def csrf_of(session: str, name: str) -> str:
    """Whoever does not know the session's cookie cannot make it, and scripts do not see the cookie."""
    return hmac.new(session.encode(), f"csrf {name}".encode(), sha256).hexdigest()


def require_same_site(request: PageRequest, visitor: Visitor, given: str) -> None:
    """Raise Refused unless a POST comes from one of our own forms, which this visitor was shown."""
    site, origin = request.header("Sec-Fetch-Site"), request.header("Origin")
    ours = site in ("", "same-origin")
    if origin == "null":
        # What browsers send from pages with no-referrer, such as ours, but sandboxed frames, too.
        ours = site == "same-origin"
    elif origin:
        ours = ours and _host_of(origin) == request.host
    if not ours:
        raise Refused("403 Forbidden", "this came from another site, and nothing was done")
    if not visitor.may_act:
        raise Refused("403 Forbidden", "these pages only show; cronjobs web --actions lets them act, too")
    if not _same(given, visitor.csrf):
        raise Refused("403 Forbidden", "this form is from another session: open the page again. Nothing was done")


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), expected.encode())


def _cookie(name: str, value: str, request: PageRequest, trust_proxy: bool) -> str:
    scheme = str(request.environ.get("wsgi.url_scheme", "http"))
    if trust_proxy:
        scheme = request.header("X-Forwarded-Proto") or scheme
    secure = "; Secure" if scheme == "https" else ""
    return f"{name}={value}; HttpOnly; SameSite=Strict; Path={request.base or '/'}{secure}"
