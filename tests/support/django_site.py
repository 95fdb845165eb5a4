"""A Django site around some addresses. The request names its user, as a login would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from django.core.handlers.wsgi import WSGIHandler  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]

from support import djangos as djangos  # this import sets up Django

# whether the user is staff, and the permissions; "" is nobody
USERS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "": (False, ()),
    "bob": (False, ("view", "change")),
    "eve": (True, ()),
    "ada": (True, ("view",)),
    "root": (True, ("change",)),
}


def user(name: str) -> Any:
    is_staff, may = USERS[name]
    permissions = {f"cronjobs.{each}_jobmodel" for each in may}
    return SimpleNamespace(
        is_authenticated=bool(name),
        is_active=bool(name),
        is_staff=is_staff,
        has_perm=lambda permission: permission in permissions,
        get_username=lambda: name,
    )


def with_user(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        request.user = user(request.META.get("REMOTE_USER", ""))
        request.urlconf = request.META["tests.urlconf"]
        return get_response(request)

    return answer


@contextmanager
def site(patterns: Sequence[Any], **settings: Any) -> Iterator[Callable[..., Any]]:
    """Return the site as a WSGI application, with Django's CSRF check."""
    middleware = [f"{__name__}.with_user", "django.middleware.csrf.CsrfViewMiddleware"]
    with override_settings(MIDDLEWARE=middleware, ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, **settings):
        handler = WSGIHandler()
        yield lambda environ, start: handler(environ | {"tests.urlconf": tuple(patterns)}, start)
