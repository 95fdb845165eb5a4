"""Decide who may see the pages and who may act.

With ``cronjobs web``, the first browser that opens the printed link may see the pages, and with --actions it may act.
In an app, the app's code decides.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock
from typing import Any, Final, Protocol

from werkzeug.datastructures import Authorization, WWWAuthenticate
from werkzeug.exceptions import Forbidden, MisdirectedRequest, Unauthorized

from cronjobs.contrib.web.request import PageRequest
from cronjobs.errors import UsageError
from cronjobs.text import clean, one_line

Viewer = Callable[[Mapping[str, Any]], "str | None"]
MayAct = Callable[[Mapping[str, Any]], bool]

# Pages load only our own style sheet, icon and scripts, fetch only from our server, and have no inline code or frame.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
TOKEN: Final = "once"
# A key of a WSGI environment. The value is True if the app's own tests made the request. Nobody can set it by HTTP.
EXEMPT: Final = "cronjobs.csrf_exempt"
# The space makes Werkzeug quote the realm, as the standard requires.
REALM: Final[dict[str, str | None]] = {"realm": "cronjobs pages"}


@dataclass(frozen=True)
class Visitor:
    """Somebody who may see the pages, with the ``name`` for the audit trail.

    Each of the visitor's forms needs the token ``csrf``, unless ``is_exempt``. ``session`` is the value of a new
    cookie, or None if the visitor has a cookie already.
    """

    name: str
    csrf: str
    may_act: bool
    session: str | None = None
    is_exempt: bool = False


@dataclass(frozen=True)
class Login:
    """A visitor follows the one-time link. The answer sets the cookie and redirects to an address without the token."""

    session: str


class Access(Protocol):
    @property
    def cookie(self) -> str: ...

    def admit(self, request: PageRequest) -> Visitor | Login:
        """Return the visitor, or a Login if the request follows the one-time link. Raises HTTPException for others."""
        ...


@dataclass
class LinkAccess:
    """Gives access to the first browser that follows the link, once. ``hosts`` are the Host headers to accept."""

    name: str
    hosts: Collection[str]
    cookie: str
    may_act: bool = False
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    _session: str | None = field(default=None, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def admit(self, request: PageRequest) -> Visitor | Login:
        # DNS rebinding: if another site's name resolves to this machine, browsers send that name in the Host header.
        if request.asked_host not in self.hosts:
            raise MisdirectedRequest(
                "this server does not accept the host name of this address; to allow that name, start the server with "
                "cronjobs web --allow-host"
            )
        if request.method == "GET" and request.path == "/" and TOKEN in request.query:
            session = self._log_in(request)
            if session is not None:
                return Login(session)
        session = self._session
        if session is None or not _same(request.cookies.get(self.cookie, ""), session):
            raise Unauthorized(
                "open the link that cronjobs web printed. The link works once, in one browser. To get a new link, stop "
                "cronjobs web and start it again",
                www_authenticate=WWWAuthenticate("link", REALM),
            )
        return Visitor(self.name, csrf_of(session, self.name), self.may_act)

    def _log_in(self, request: PageRequest) -> str | None:
        # A browser that only prefetches the link must not use it up.
        if "prefetch" in request.header("Sec-Purpose") + request.header("Purpose"):
            return None
        with self._lock:
            if self._session is not None or not _same(request.query[TOKEN], self.token):
                return None
            self._session = secrets.token_urlsafe(32)
            return self._session


@dataclass(frozen=True)
class AppAccess:
    """Gives access to the app's users. ``viewer`` returns the user's name, or None for one who may see nothing."""

    viewer: Viewer | None
    may_act: MayAct | None = None
    cookie: str = "cronjobs_session"

    def admit(self, request: PageRequest) -> Visitor:
        if self.viewer is None:
            raise Forbidden(
                "nobody may see these pages yet: pass viewer= to cronjobs.contrib.web.app(). The viewer is "
                "basic_auth(password), or your own function that returns the name of the logged-in user, or None if "
                "nobody is logged in"
            )
        name = self.viewer(request.environ)
        if not name:
            raise Forbidden("you are not logged in, or may not see these pages")
        may_act = self.may_act is not None and bool(self.may_act(request.environ))
        is_exempt = request.environ.get(EXEMPT) is True
        session, new = request.cookies.get(self.cookie, ""), None
        if len(session) < 32 or not session.isascii():
            session = new = secrets.token_urlsafe(32)
        return Visitor(str(name), csrf_of(session, str(name)), may_act, new, is_exempt)


def basic_auth(password: str | None) -> Viewer:
    """Return a viewer for ``app()`` that asks for a name and *password* (HTTP Basic). The audit trail records the name.

    Browsers send the password in clear text, so use TLS. Raises UsageError if *password* is None or "".
    """
    if not password:
        raise UsageError("basic_auth() got no password: is the environment variable with the password set?")

    def viewer(environ: Mapping[str, Any]) -> str:
        sent = str(environ.get("HTTP_AUTHORIZATION", ""))
        given = Authorization.from_header(sent) if sent.isascii() else None
        if given is None or not _same(given.get("password") or "", password):
            raise Unauthorized("these pages need a password", www_authenticate=WWWAuthenticate("basic", REALM))
        return one_line(clean(given.get("username") or ""), 80) or "unnamed"

    return viewer


def csrf_of(session: str, name: str) -> str:
    """Derive the token for the session's forms from the session cookie, which scripts cannot read."""
    return hmac.new(session.encode(), f"csrf {name}".encode(), sha256).hexdigest()


def require_same_site(request: PageRequest, visitor: Visitor, given: str) -> None:
    """Raise Forbidden if the visitor may not act, or if the POST does not come from a form on this visitor's pages."""
    site, origin = request.header("Sec-Fetch-Site"), request.header("Origin")
    ours = site in ("", "same-origin")
    if origin == "null":
        # Browsers send "null" from pages with the policy no-referrer, such as ours, but also from sandboxed frames.
        ours = site == "same-origin"
    elif origin:
        ours = ours and request.is_of(origin)
    if not ours:
        raise Forbidden("this request came from another site; nothing was changed")
    if not visitor.may_act:
        raise Forbidden(
            "you may view these pages but not act. To allow actions, use the option --actions of "
            '"cronjobs web", may_act in an app, or the permission cronjobs.change_jobmodel in Django'
        )
    if not visitor.is_exempt and not _same(given, visitor.csrf):
        raise Forbidden("nothing was changed: this form belongs to another session. Open the page again")


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="surrogateescape"), expected.encode())
