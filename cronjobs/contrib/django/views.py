"""The pages as a Django view that knows the request's user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from django.conf import settings  # type: ignore[import-untyped]
from django.contrib.auth.decorators import login_not_required  # type: ignore[import-untyped]
from django.db import transaction  # type: ignore[import-untyped]
from django.http import HttpResponse  # type: ignore[import-untyped]
from django.shortcuts import redirect, resolve_url  # type: ignore[import-untyped]
from django.urls import (  # type: ignore[import-untyped]
    NoReverseMatch,
    Resolver404,
    get_script_prefix,
    resolve,
    reverse,
)
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped]
from sqlalchemy import Connection

from cronjobs.contrib.django.connections import jobs_alias, ours
from cronjobs.engine.config.django_project import config_file, in_tests
from cronjobs.installed import needed

REQUEST: Final = "cronjobs.contrib.django.request"
# As in contrib.web.security. That module needs packages that not every project has, so it is not imported here.
EXEMPT: Final = "cronjobs.csrf_exempt"

Asked = Callable[[Any], bool]
Connect = Callable[[], AbstractContextManager[Connection]]


def may_view_jobs(request: Any) -> bool:
    """Whether this user may view jobs in the admin, where permission to change them includes permission to view."""
    return may_change_jobs(request) or _is_permitted(request, "cronjobs.view_jobmodel")


def may_change_jobs(request: Any) -> bool:
    return _is_permitted(request, "cronjobs.change_jobmodel")


def _is_permitted(request: Any, permission: str) -> bool:
    user = request.user
    return bool(user.is_active and user.is_staff and user.has_perm(permission))


def pages(
    connect: Connect | None = None,
    *,
    may_see: Asked = may_view_jobs,
    may_act: Asked = may_change_jobs,
    config: str | Path | None = None,
) -> Any:
    """Return the pages as a view for ``re_path(r"^jobs/(?P<path>.*)$", pages())``.

    Users who are not logged in are redirected to LOGIN_URL, or to the admin's login page if that URL does not exist.

    *may_see* and *may_act* take Django's request and return a bool. By default staff need the admin's permissions to
    view and to change jobs. *connect* has the same meaning as in ``cronjobs.contrib.web.app``. *config* is the path of
    cronjobs.yaml; if it is None, the path is CRONJOBS["config"] in Django's settings, else $CRONJOBS_CONFIG, else
    ./cronjobs.yaml.

    The forms use their own CSRF token and cookie, so the view is exempt from Django's CSRF check. In Django's tests the
    pages show the test's database, and the test client needs no token unless it enforces CSRF checks.
    """
    made: list[Any] = []

    def show(request: Any, path: str = "") -> Any:
        if not request.user.is_authenticated:
            return redirect(f"{_login(request)}?next={quote(request.get_full_path())}")
        if not made:  # build the app at the first request, when settings are available
            made.append(_mounted(connect, may_see, may_act, config))
        answer = HttpResponse()
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        body = made[0](_environ(request, path), lambda status, headers, *_: begun.append((status, headers)))
        answer.content = b"".join(body)
        status, headers = begun[-1]
        answer.status_code = int(status.partition(" ")[0])
        for name, value in headers:
            if name.lower() == "set-cookie":
                answer.cookies.load(value)  # Django's test client reads only answer.cookies
            else:
                answer[name] = value
        return answer

    # LoginRequiredMiddleware would redirect to LOGIN_URL, even if it does not exist. The view itself redirects.
    view = login_not_required(csrf_exempt(show))
    view.may_see = may_see  # the admin's index asks this before it links to the pages
    return view


def resolved(address: str, request: Any) -> Any:
    """Return Django's match for *address*, which begins with the script prefix. Raises Resolver404."""
    path = address.partition("?")[0].removeprefix(get_script_prefix())
    return resolve(f"/{path}", getattr(request, "urlconf", None))


def _login(request: Any) -> str:
    """Return LOGIN_URL, or the admin's login if LOGIN_URL does not resolve."""
    try:
        place = str(resolve_url(settings.LOGIN_URL))
        if place.startswith(get_script_prefix()):  # only a URL of this site can be resolved
            resolved(place, request)
    except (NoReverseMatch, Resolver404):
        try:
            return str(reverse("admin:login"))
        except NoReverseMatch:
            return str(settings.LOGIN_URL)
    return place


def _mounted(connect: Connect | None, may_see: Asked, may_act: Asked, config: str | Path | None) -> Any:
    mounted = needed("cronjobs.contrib.web.mounted", "the view")
    security = needed("cronjobs.contrib.web.security", "the view")
    needs = " In Django's admin, give the user the permission cronjobs.view_jobmodel, and staff status."

    def viewer(environ: Any) -> str:
        request = environ[REQUEST]
        name = str(request.user.get_username())
        if not may_see(request):  # the view has redirected everybody who is not logged in
            raise security.Forbidden(f"{name} may not see these pages.{needs if may_see is may_view_jobs else ''}")
        return name

    made = mounted.app(
        connect,
        viewer=viewer,
        may_act=lambda environ: may_act(environ[REQUEST]),
        config=config or config_file(settings),
    )
    if connect is None and in_tests():
        made.doors = DoorsOfTest()
    return made


class DoorsOfTest:
    """In tests, gives the pages Django's own connection. Only it sees the rows of a test's open transaction."""

    def read(self) -> AbstractContextManager[Connection]:
        return ours()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with transaction.atomic(using=jobs_alias()), ours() as connection:
            yield connection


def _environ(request: Any, path: str) -> dict[str, Any]:
    """Return the WSGI environ for an app mounted at the view's path. Django may itself run under WSGI or ASGI."""
    whole = request.path_info
    before = whole[: len(whole) - len(path)].rstrip("/")
    given = {name: value for name, value in request.META.items() if isinstance(value, str)}
    return given | {
        "SCRIPT_NAME": _as_wsgi(request.META.get("SCRIPT_NAME", "") + before),
        "PATH_INFO": _as_wsgi(whole[len(before) :] or "/"),
        "REQUEST_METHOD": request.method,
        "QUERY_STRING": request.META.get("QUERY_STRING", ""),
        "CONTENT_LENGTH": request.META.get("CONTENT_LENGTH", ""),
        "wsgi.url_scheme": request.scheme,
        "wsgi.input": request,  # the pages read the body only after they grant access
        REQUEST: request,
        **(_form_of_test(request) if in_tests() else {}),
    }


def _form_of_test(request: Any) -> dict[str, Any]:
    """Return the multipart form of Django's test client, encoded as a browser would encode it."""
    form = request.POST.urlencode().encode()
    exempt = {EXEMPT: True} if getattr(request, "_dont_enforce_csrf_checks", False) else {}
    return exempt | {
        "CONTENT_TYPE": "application/x-www-form-urlencoded",
        "CONTENT_LENGTH": str(len(form)),
        "wsgi.input": BytesIO(form),
    }


def _as_wsgi(text: str) -> str:
    return str(text).encode().decode("latin-1")
