"""The pages read a body only after the sender has access, and at most 64 KiB of a form."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import flask
import pytest
from a2wsgi import WSGIMiddleware
from django.urls import include, re_path  # type: ignore[import-untyped]
from sqlalchemy import Engine
from support.browsing import Browser
from support.browsing import by_link as by_link
from support.browsing import pages as by_itself
from support.django_site import site
from support.lookingrows import rows as rows

from contrib.web.test_web_mounted import clock as clock
from contrib.web.test_web_mounted import config as config
from contrib.web.test_web_mounted import engine as engine
from contrib.web.test_web_mounted import may_act, statuses, viewer
from cronjobs.contrib.django.views import pages as django_view
from cronjobs.contrib.web import app, flask_blueprint
from cronjobs.engine.database.connection import Database

pytestmark = [pytest.mark.either, pytest.mark.filterwarnings("ignore::DeprecationWarning:django")]

MOST = 64 * 1024
HUGE = 600_000_000
FORM = "application/x-www-form-urlencoded"


class Endless(io.RawIOBase):
    """A body of any length, which counts what is read of it."""

    def __init__(self) -> None:
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.taken += len(buffer)
        assert self.taken <= MOST, "somebody reads on"
        buffer[:] = b"a" * len(buffer)
        return len(buffer)


@contextmanager
def in_flask(config: Path, engine: Engine) -> Iterator[Any]:
    made = flask.Flask("shop")
    made.register_blueprint(
        flask_blueprint(engine.connect, viewer=viewer, may_act=may_act, config=config), url_prefix="/pages"
    )
    yield made


@contextmanager
def in_django(config: Path, engine: Engine) -> Iterator[Any]:
    inner = [re_path(r"^(?P<path>.*)$", django_view(engine.connect, config=config))]
    # Django's own limit is off, as a site that takes uploads may have it.
    with site([re_path(r"^pages/", include(inner))], DATA_UPLOAD_MAX_MEMORY_SIZE=None) as made:
        yield made


WAYS: dict[str, tuple[str, Callable[[Path, Engine], Any]]] = {
    "wsgi": ("", lambda config, engine: nullcontext(mounted(config, engine))),
    "flask": ("/pages", in_flask),
    "django": ("/pages", in_django),
}


def mounted(config: Path, engine: Engine) -> Any:
    return app(engine.connect, viewer=viewer, may_act=may_act, config=config)


@pytest.mark.parametrize("length", [str(HUGE), "9" * 5000, "-1", "x", ""])
@pytest.mark.parametrize("way", WAYS)
def test_who_is_not_let_in_may_send_anything_and_nobody_reads_it(
    config: Path, engine: Engine, way: str, length: str
) -> None:
    prefix, made = WAYS[way]
    with made(config, engine) as pages:
        for user in ("", "bob") if way == "django" else ("",):
            body = Endless()
            sent = {"wsgi.input": body, "CONTENT_LENGTH": length, **({"REMOTE_USER": user} if user else {})}
            reply = Browser(pages, environ=sent).post(f"{prefix}/jobs/1/retry")
            assert reply.status in (302, 403, 413)
            assert body.taken == 0


@pytest.mark.parametrize("way", WAYS)
def test_of_a_form_no_more_is_read_than_64_kib(config: Path, engine: Engine, database: Database, way: str) -> None:
    prefix, made = WAYS[way]
    with made(config, engine) as pages:
        for length in (HUGE, MOST + 1, 16 * 1024):
            body = Endless()
            sent = {"wsgi.input": body, "CONTENT_LENGTH": str(length), "REMOTE_USER": "root"}
            assert Browser(pages, environ=sent).post(f"{prefix}/jobs/1/retry").status in (400, 403, 413)
            assert body.taken <= MOST
        assert (
            Browser(pages, environ={"REMOTE_USER": "root"}).act(f"{prefix}/jobs/1", f"{prefix}/jobs/1/retry").status
            == 303
        )
    assert statuses(database) == ["queued"]


def test_cronjobs_web_reads_no_body_of_who_has_no_session(
    config: Path, database: Database, database_url: str, tmp_path: Path
) -> None:
    access = by_link(may_act=True)
    pages = by_itself(database, database_url, tmp_path, access)
    body = Endless()
    stranger = Browser(pages, environ={"wsgi.input": body, "CONTENT_LENGTH": str(HUGE)})
    assert (stranger.post("/jobs/1/retry").status, body.taken) == (401, 0)
    known = Browser(pages).log_in(access)
    known.environ = stranger.environ
    assert (known.post("/jobs/1/retry").status, body.taken) == (413, 0)


def test_below_asgi_a_body_stays_with_the_server(config: Path, engine: Engine) -> None:
    """By a2wsgi, as docs/how-to/web.md mounts the pages: it hands over what is asked for, a part ahead."""
    parts: list[int] = []

    async def receive() -> dict[str, Any]:
        parts.append(len(parts))
        assert len(parts) < 10, "somebody reads on"
        return {"type": "http.request", "body": b"a" * 10_000, "more_body": True}

    answers: list[Any] = []

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(b"content-type", FORM.encode()), (b"content-length", str(HUGE).encode())]
    scope = {"type": "http", "method": "POST", "path": "/jobs/1/retry", "query_string": b"", "headers": headers}
    scope |= {"http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("y", 1), "root_path": ""}
    asyncio.run(WSGIMiddleware(mounted(config, engine))(scope, receive, send))  # type: ignore[arg-type]
    assert answers[0]["status"] == 403
