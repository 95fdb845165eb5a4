"""The pages as one WSGI application: who is let in, which page, what a form does, and what goes wrong."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cronjobs import masking
from cronjobs.contrib.web.actions import Act
from cronjobs.contrib.web.html import document, h
from cronjobs.contrib.web.project import Current, Doors
from cronjobs.contrib.web.request import PageRequest, Refused, Response, base_of, read_request
from cronjobs.contrib.web.routes import page, static
from cronjobs.contrib.web.security import HEADERS, Access, Login, Visitor, require_same_site
from cronjobs.contrib.web.view import View, address
from cronjobs.desk.insight.saying import Times
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.meta import require_schema
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, DatabaseError

StartResponse = Callable[..., Any]
# By status, what the link to the first page says, where that may help.
_GO_ON: Final = {
    "400": "To the first page",
    "401": "If you have just followed the link, go on to the pages.",
    "404": "To the first page",
    "409": "To the first page",
}


@dataclass
class Application:
    """``host``: where actions are done, for the audit trail."""

    current: Current
    doors: Doors
    access: Access
    host: str

    def __call__(self, environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        return answer(self._answer(environ), environ, start_response)

    def _answer(self, environ: Mapping[str, Any]) -> Response:
        base: str | None = None  # where the pages are mounted is not known yet
        try:
            base = base_of(environ, trust_proxy=self.access.trust_proxy)
            request = read_request(environ, base)
            visitor = self.access.admit(request)
            if isinstance(visitor, Login):
                return _led_to(f"{request.base}/", visitor.cookie)
            return self._for(visitor, request)
        except Refused as refused:
            headers = tuple((name.replace("_", "-"), value) for name, value in refused.headers.items())
            return told(refused.status, str(refused), base, headers)
        except DatabaseError as error:
            return told("503 Service Unavailable", str(error), base)
        except CronjobsError as error:
            return told("409 Conflict", str(error), base)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            environ["wsgi.errors"].write(masking.hide(trace))
            return told("500 Internal Server Error", "an unexpected error; the server's log says more", base)

    def _for(self, visitor: Visitor, request: PageRequest) -> Response:
        settings, types = self.current.now()
        if request.method == "POST":
            return self._act(visitor, request, settings, types)
        if request.method not in ("GET", "HEAD"):
            raise Refused("405 Method Not Allowed", "pages are read by GET, and act by POST", Allow="GET, HEAD, POST")
        cookies = tuple(("Set-Cookie", cookie) for cookie in visitor.cookies)
        if found := static(request.path):
            return found
        with self.doors.read() as connection:
            found_meta = require_schema(connection)
            view = View(
                settings,
                Times(database_now(connection), settings.timezone),
                request.base,
                visitor,
                request.path,
                request.query.get("said"),
                found_meta.project or settings.project,
            )
            body = page(request, connection, view, types)
        return Response(body.encode(errors="replace"), headers=cookies)

    def _act(self, visitor: Visitor, request: PageRequest, settings: Settings, types: JobTypes) -> Response:
        form = request.form()
        require_same_site(request, visitor, form.get("csrf", ""))
        with self.doors.write() as connection:
            result = Act(connection, settings, types, visitor.name, self.host, form).run(request.path)
        return _led_to(address(request.base, result.path, **{**(result.query or {}), "said": result.said}))


def answer(response: Response, environ: Mapping[str, Any], start_response: StartResponse) -> Iterable[bytes]:
    headers = [("Content-Type", response.content_type), ("Content-Length", str(len(response.body)))]
    start_response(response.status, [*headers, *HEADERS, *response.headers])
    return [b"" if environ.get("REQUEST_METHOD") == "HEAD" else response.body]


def _led_to(where: str, cookie: str | None = None) -> Response:
    """After a POST, and from the one-time link to the address without it."""
    cookies = () if cookie is None else (("Set-Cookie", cookie),)
    return Response(status="303 See Other", headers=(("Location", where), *cookies))


def told(status: str, sentence: str, base: str | None = None, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """A page for whoever may see none: without style, without anything from the database."""
    words = _GO_ON.get(status[:3])
    go_on = h("p", h("a", words, href=f"{base}/")) if words and base is not None else None
    title = status.partition(" ")[2]
    head = h("head", h("meta", charset="utf-8"), h("title", title))
    body = document(head, h("body", h("main", h("h1", title), h("p", sentence), go_on)))
    return Response(body.encode(errors="replace"), status, headers=headers)
