"""A Django site around some addresses. The request names its user, as a login would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from django.core.handlers.wsgi import WSGIHandler  # type: ignore[import-untyped]
from django.test import override_settings  # type: ignore[import-untyped]

from support import djangos as djangos  # this import sets up Django

RANKS = {"": 0, "bob": 1, "ada": 2, "root": 3}  # nobody, a user, staff, superuser


def with_user(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def answer(request: Any) -> Any:
        name = request.META.get("REMOTE_USER", "")
        rank = RANKS[name]
        request.user = SimpleNamespace(
            is_authenticated=rank > 0, is_active=rank > 0, is_staff=rank > 1, is_superuser=rank > 2
        )
        request.user.get_username = lambda: name
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
