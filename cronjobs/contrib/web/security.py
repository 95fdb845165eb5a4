"""Decide who may see the pages and who may act.

That is whoever has the link of ``cronjobs web``, or whomever an app's code names.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address
from threading import Lock
from typing import Any, Final, Protocol

from werkzeug.datastructures import Authorization, WWWAuthenticate
from werkzeug.exceptions import Forbidden, MisdirectedRequest, Unauthorized

from cronjobs.contrib.web.request import PageRequest
from cronjobs.errors import UsageError
from cronjobs.text import clean, one_line

Viewer = Callable[[Mapping[str, Any]], "str | None"]
MayAct = Callable[[Mapping[str, Any]], bool]

# The pages need their style sheet, icon and script, which fetches the page it is on, and nothing from elsewhere. No
# script or style is in a page, and no frame.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # browsers that do not know frame-ancestors
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN: Final = "once"
REALM: Final[dict[str, str | None]] = {
    "realm": "cronjobs pages"
}  # with a space Werkzeug quotes it, as the standard wants a realm


@dataclass(frozen=True)
class Visitor:
    """``name``: for the audit trail. ``csrf``: what each of their forms contains. ``session``: for a cookie, if new."""

    name: str
    csrf: str
    may_act: bool
    session: str | None = None


@dataclass(frozen=True)
class Login:
    """The one-time link was followed: set the cookie, and go on to the address without the token."""

    session: str


class Access(Protocol):
    @property
    def cookie(self) -> str: ...

    def admit(self, request: PageRequest) -> Visitor | Login:
        """Raises HTTPException."""
        ...


@dataclass
class ByLink:
    """Whoever has followed the link, which works once. ``hosts``: what the Host header may say."""

    name: str
    hosts: Collection[str]
    cookie: str
    may_act: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str | None = field(default=None, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def admit(self, request: PageRequest) -> Visitor | Login:
        # A page of somebody else's whose name leads to this machine (DNS rebinding) comes with that name.
        if request.asked_host not in self.hosts:
            raise MisdirectedRequest(
                "this server does not accept the host name of this address; add it with cronjobs web --allow-host"
            )
        if request.method == "GET" and request.path == "/" and TOKEN in request.query:
            session = self._log_in(request)
            if session is not None:
                return Login(session)
        session = self._session
        if session is None or not _same(request.cookies.get(self.cookie, ""), session):
            raise Unauthorized(
                "open the link that cronjobs web printed. It works once, in one browser; stop cronjobs web and "
                "start it again to get a new one",
                www_authenticate=WWWAuthenticate("link", REALM),
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
    """Mounted in an app, which knows its users.

    ``viewer``: the user's name, or None for somebody who may see nothing.
    """

    viewer: Viewer | None
    may_act: MayAct | None = None
    cookie: str = "cronjobs_session"

    def admit(self, request: PageRequest) -> Visitor:
        if self.viewer is None:
            raise Forbidden(
                "nobody may see these pages yet: pass viewer= to cronjobs.contrib.web.app(): basic_auth(password), or "
                "a function that returns the name of the user who is logged in, or None"
            )
        name = self.viewer(request.environ)
        if not name:
            raise Forbidden("you are not logged in, or may not see these pages")
        may_act = self.may_act is not None and bool(self.may_act(request.environ))
        session = request.cookies.get(self.cookie, "")
        if len(session) >= 32 and session.isascii():
            return Visitor(str(name), csrf_of(session, str(name)), may_act)
        session = secrets.token_urlsafe(32)
        return Visitor(str(name), csrf_of(session, str(name)), may_act, session)


def basic_auth(password: str | None) -> Viewer:
    """A viewer for ``app()``: browsers ask for a name and *password* (HTTP Basic); the audit trail records the name.

    Passwords cross the network in clear text, so use it behind TLS. Raises UsageError if there is no password.
    """
    if not password:
        raise UsageError("basic_auth() has no password: is the variable set that it comes from?")

    def viewer(environ: Mapping[str, Any]) -> str:
        sent = str(environ.get("HTTP_AUTHORIZATION", ""))
        given = Authorization.from_header(sent) if sent.isascii() else None
        if given is None or not _same(given.get("password") or "", password):
            raise Unauthorized("these pages need a password", www_authenticate=WWWAuthenticate("basic", REALM))
        return one_line(clean(given.get("username") or ""), 80) or "unnamed"

    return viewer


def csrf_of(session: str, name: str) -> str:
    """Whoever does not know the session's cookie cannot make it, and scripts do not see the cookie."""
    return hmac.new(session.encode(), f"csrf {name}".encode(), sha256).hexdigest()


def require_same_site(request: PageRequest, visitor: Visitor, given: str) -> None:
    """Raise Forbidden unless a POST comes from one of our own forms, which this visitor was shown."""
    site, origin = request.header("Sec-Fetch-Site"), request.header("Origin")
    ours = site in ("", "same-origin")
    if origin == "null":
        # What browsers send from pages with no-referrer, such as ours, but sandboxed frames, too.
        ours = site == "same-origin"
    elif origin:
        ours = ours and request.is_of(origin)
    if not ours:
        raise Forbidden("this request came from another site; nothing was changed")
    if not visitor.may_act:
        raise Forbidden(
            "you may look at these pages, not act: cronjobs web needs --actions for that, an app its may_act"
        )
    if not _same(given, visitor.csrf):
        raise Forbidden("nothing was changed: this form belongs to another session. Open the page again")


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), expected.encode())
