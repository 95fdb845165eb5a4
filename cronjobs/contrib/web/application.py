"""The pages as one WSGI application: check access, show pages, run the forms' actions, and report errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from werkzeug.exceptions import Conflict, HTTPException, InternalServerError, NotFound, ServiceUnavailable
from werkzeug.routing import BaseConverter, Map, Rule, ValidationError
from werkzeug.utils import redirect
from werkzeug.wrappers import Response

from cronjobs import masking
from cronjobs.contrib.web.actions import ACTIONS, Act
from cronjobs.contrib.web.bulk import CHANGES, do_step
from cronjobs.contrib.web.pages.bulk import bulk
from cronjobs.contrib.web.pages.cause import cause
from cronjobs.contrib.web.pages.hosts import hosts
from cronjobs.contrib.web.pages.job import job
from cronjobs.contrib.web.pages.job_types import job_types
from cronjobs.contrib.web.pages.jobs import jobs
from cronjobs.contrib.web.pages.overview import overview
from cronjobs.contrib.web.pages.queues import queues
from cronjobs.contrib.web.pages.schedule import schedule
from cronjobs.contrib.web.project import Current, Doors
from cronjobs.contrib.web.request import PageRequest
from cronjobs.contrib.web.security import HEADERS, Access, Login, Visitor, require_same_site
from cronjobs.contrib.web.templating import PACKAGE, rendered
from cronjobs.contrib.web.view import View, address
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.engine.rules.causes import KEY_DIGITS
from cronjobs.engine.store.meta import require_schema
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import CronjobsError, DatabaseError

HTML: Final = "text/html"
STATIC: Final = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    "reload.js": "text/javascript",
    "going-on.js": "text/javascript",
}
PAGES: Final[dict[str, Callable[..., str]]] = {
    "/": overview,
    "/jobs": jobs,
    "/jobs/<id:job_id>": job,
    "/bulk": bulk,
    "/cause/<cause:key>": cause,
    "/schedule": schedule,
    "/types": job_types,
    "/queues": queues,
    "/hosts": hosts,
}
BULK: Final = f"/bulk/<any({', '.join(CHANGES)}):verb>"  # the address of one step in a change to many jobs
# The link from the error page of an HTTP status to the first page. Other error pages have none.
_GO_ON: Final = {401: "If you have just opened the link, continue to the pages."} | dict.fromkeys(
    (400, 404, 405, 409), "Back to the overview"
)


class JobId(BaseConverter):
    regex = "[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        if not 1 <= int(value) < 2**63:
            raise ValidationError
        return int(value)


class CauseKey(BaseConverter):
    regex = f"[0-9a-f]{{{KEY_DIGITS}}}"


ROUTES: Final = Map(
    [
        *(Rule(where, endpoint=where, methods=["GET"]) for where in PAGES),
        *(Rule(where, endpoint=where, methods=["POST"]) for where in (*ACTIONS, BULK)),
        *(Rule(f"/static/{name}", endpoint=name, methods=["GET"]) for name in STATIC),
    ],
    converters={"id": JobId, "cause": CauseKey},
    merge_slashes=False,
)


@dataclass
class Application:
    """The WSGI callable. ``host`` is this host's name, which the audit trail records with each action."""

    current: Current
    doors: Doors
    access: Access
    host: str

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        try:
            request = PageRequest(environ)
        except UnicodeError:  # the address is not encoded as WSGI requires
            return refusal(NotFound("there is no such page"))(environ, start_response)
        return self._answer(request)(environ, start_response)

    def _answer(self, request: PageRequest) -> Response:
        base: str | None = None  # the path at which the pages are mounted; None until it is known
        try:
            base = request.base
            visitor = self.access.admit(request)
            if isinstance(visitor, Login):
                return self._with_session(led_to(f"{base}/"), request, visitor.session)
            endpoint, arguments = ROUTES.bind("").match(request.path, request.method)
            if endpoint in STATIC:
                return answer(packaged(endpoint), STATIC[endpoint])
            if endpoint in ACTIONS or endpoint == BULK:
                return self._act(visitor, request, endpoint, arguments)
            shown = answer(self._page(visitor, request, endpoint, arguments))
            return self._with_session(shown, request, visitor.session)
        except HTTPException as refused:
            return refusal(refused, base)
        except DatabaseError as error:
            return refusal(ServiceUnavailable(str(error)), base)
        except CronjobsError as error:
            return refusal(Conflict(str(error)), base)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            (request.environ.get("wsgi.errors") or sys.stderr).write(masking.hide(trace))
            return refusal(InternalServerError("this page failed; the server's log says why"), base)

    def _page(self, visitor: Visitor, request: PageRequest, endpoint: str, arguments: Any) -> str:
        settings, types = self.current.now()
        with self.doors.read() as connection:
            project = require_schema(connection).project or settings.project
            settings = at_their_pace(connection, settings)
            times = Times(database_now(connection), settings.timezone)
            view = View(settings, times, request.base, visitor, request.path, request.query, project)
            return PAGES[endpoint](connection, view, types, **arguments)

    def _act(self, visitor: Visitor, request: PageRequest, endpoint: str, arguments: Any) -> Response:
        settings, types = self.current.now()
        form = request.fields()
        require_same_site(request, visitor, form.get("csrf", ""))
        if endpoint == BULK:
            step = do_step(self.doors, settings, visitor.name, self.host, form, **arguments)
            return led_to(address(request.base, "/bulk", **step.query))
        with self.doors.write() as connection:
            done = Act(connection, settings, types, visitor.name, self.host, form).run(endpoint, arguments)
        return led_to(address(request.base, done.path, **{**(done.query or {}), "said": done.said}))

    def _with_session(self, response: Response, request: PageRequest, session: str | None) -> Response:
        if session is not None:
            name, path = self.access.cookie, request.base or "/"
            response.set_cookie(name, session, path=path, secure=request.is_secure, httponly=True, samesite="Strict")
        return response


def answer(body: str | bytes, kind: str = HTML) -> Response:
    written = body.encode(errors="replace") if isinstance(body, str) else body
    return Response(written, mimetype=kind, headers=HEADERS)


def led_to(where: str) -> Response:
    """Return a redirect to *where*.

    It answers a POST, or leads from the one-time link to an address without the token.
    """
    response = redirect(where, 303)
    response.data = b""
    response.headers.update(HEADERS)
    return response


def refusal(refused: HTTPException, base: str | None = None) -> Response:
    """Return an error page. Anybody may see it, so it shows nothing from the database, and has no style sheet."""
    go_on = _GO_ON.get(refused.code or 0) if base is not None else None
    response = refused.get_response()
    page = rendered("refusal.html", title=refused.name, sentence=refused.description, home=f"{base}/", go_on=go_on)
    response.data = page.encode(errors="replace")
    response.headers.update(HEADERS)
    return response


def packaged(name: str) -> bytes:
    return files(PACKAGE).joinpath("static", name).read_bytes()
