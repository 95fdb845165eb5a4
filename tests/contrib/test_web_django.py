"""The pages as a Django view: Django's users see the pages and act, at the view's own address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core import mail  # type: ignore[import-untyped]
from django.db import connections, transaction  # type: ignore[import-untyped]
from django.test import RequestFactory  # type: ignore[import-untyped]
from django.urls import include, path, re_path  # type: ignore[import-untyped]
from sqlalchemy import Engine, select
from support.browsing import Browser
from support.django_project import django_project
from support.django_site import site, user
from support.lookingrows import rows as rows
from support.postgres import OWNER

from contrib.web.test_web_mounted import PAGES, statuses
from contrib.web.test_web_mounted import clock as clock
from contrib.web.test_web_mounted import config as config
from contrib.web.test_web_mounted import engine as engine
from cronjobs import masking
from cronjobs.contrib.django.views import pages
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:django")


@pytest.fixture
def view(config: Path, engine: Engine) -> Iterator[Any]:
    inner = [re_path(r"^(?P<path>.*)$", pages(engine.connect, config=config))]
    with site([re_path(r"^admin/jobs/", include(inner))]) as made:
        yield made


def test_staff_see_and_act_with_the_admins_permissions(view: Any, database: Database) -> None:
    nobody = Browser(view).get("/admin/jobs/queues")
    assert (nobody.status, nobody.header("Location")) == (302, "/accounts/login/?next=/admin/jobs/queues")
    for name in ("bob", "eve"):  # who is not staff, or has no permission
        assert Browser(view, environ={"REMOTE_USER": name}).get("/admin/jobs/").status == 403
    for name, done in (("ada", 403), ("root", 303)):
        browser = Browser(view, environ={"REMOTE_USER": name})
        for address in PAGES:
            reply = browser.get(f"/admin/jobs{address}")
            assert reply.status == 200, address
            assert all(found.startswith(("/admin/jobs/", "#")) for found in reply.addresses())
        csrf = "x" * 64 if name == "ada" else browser.get("/admin/jobs/jobs/1").csrf
        assert browser.post("/admin/jobs/jobs/1/retry", {"csrf": "y" * 64}).status == 403
        assert statuses(database) == ["dead"]
        assert browser.post("/admin/jobs/jobs/1/retry", {"csrf": csrf}).status == done
    assert statuses(database) == ["queued"]
    with database.read() as connection:
        assert connection.execute(select(tables.audit.c.actor)).scalars().all() == ["root"]


def test_what_django_knows_of_its_place_is_kept(view: Any) -> None:
    browser = Browser(view, environ={"REMOTE_USER": "ada", "SCRIPT_NAME": "/caf\xc3\xa9"})
    reply = browser.get("/admin/jobs/jobs/1?x=1")
    assert reply.status == 200
    assert all(found.startswith(("/caf%C3%A9/admin/jobs/", "#")) for found in reply.addresses())
    assert reply.header("Content-Security-Policy").startswith("default-src 'none'")


def nowhere(_: Any) -> Any:
    raise AssertionError("only its address is asked for")


@pytest.mark.parametrize(
    ("login_url", "others", "leads_to"),
    [
        ("/accounts/login/", [], "/accounts/login/"),  # nothing better is known
        ("/accounts/login/", ["admin"], "/admin/login/"),
        ("/accounts/login/", ["admin", "accounts"], "/accounts/login/"),
        ("login", ["admin", "accounts"], "/accounts/login/"),
        ("login", ["admin"], "/admin/login/"),
        ("/accounts/login/?by=mail", ["accounts"], "/accounts/login/?by=mail"),
        ("https://sso.example/in", ["admin"], "https://sso.example/in"),
    ],
)
def test_who_is_not_logged_in_is_sent_to_a_login_that_there_is(
    config: Path, engine: Engine, login_url: str, others: list[str], leads_to: str
) -> None:
    there = {
        "admin": path("admin/", include(([path("login/", nowhere, name="login")], "admin"))),
        "accounts": path("accounts/login/", nowhere, name="login"),
    }
    inner = [re_path(r"^(?P<path>.*)$", pages(engine.connect, config=config))]
    with site([re_path(r"^jobs/", include(inner)), *(there[name] for name in others)], LOGIN_URL=login_url) as made:
        reply = Browser(made).get("/jobs/queues")
        assert (reply.status, reply.header("Location")) == (302, f"{leads_to}?next=/jobs/queues")
        below = Browser(made, environ={"SCRIPT_NAME": "/shop"}).get("/jobs/queues").header("Location")
        by_name = login_url == "login"
        assert below == f"{f'/shop{leads_to}' if by_name else login_url}?next=/shop/jobs/queues"


def test_djangos_middleware_that_requires_a_login_leaves_the_redirect_to_the_view() -> None:
    """It would redirect to LOGIN_URL, even if that URL does not exist."""
    assert pages().login_required is False


def test_an_unexpected_error_is_logged_masked(config: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    """Django's view has no log of the server's to hand on."""

    def may_act(request: Any) -> bool:
        if request.GET:
            raise LookupError("s3cret-canary")
        return False

    inner = [re_path(r"^(?P<path>.*)$", pages(engine.connect, config=config, may_act=may_act))]
    with site([re_path(r"^jobs/", include(inner))]) as made:
        browser = Browser(made, environ={"REMOTE_USER": "ada"})
        assert browser.get("/jobs/").status == 200
        masking.remember({"s3cret-canary"})
        assert browser.get("/jobs/?x=1").status == 500
    written = capsys.readouterr().err
    assert "LookupError: ***" in written
    assert "canary" not in written.replace('LookupError("s3cret-canary")', "")  # the line of code above


@pytest.mark.connects_as(OWNER)
@pytest.mark.parametrize("enforces", [False, True])
def test_djangos_test_client_acts_in_the_tests_own_transaction(
    config: Path, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch, enforces: bool
) -> None:
    """As by default: as multipart, without a token, and with any CSRF check only if the client enforces it."""
    monkeypatch.setattr(mail, "outbox", [], raising=False)
    with django_project(database_url) as alias:
        view = pages(config=config)

        def post(name: str, **form: str) -> Any:
            asked = RequestFactory().post("/jobs/jobs/1/retry", form)
            asked.user, asked._dont_enforce_csrf_checks = user(name), not enforces
            return view(asked, "jobs/1/retry").status_code

        with transaction.atomic(using=alias):
            asked = RequestFactory().get("/jobs/jobs/1")
            asked.user = user("ada")
            assert b"dead" in view(asked, "jobs/1").content
            assert post("bob") == 403
            assert post("ada") == 403
            assert post("root") == (403 if enforces else 303)
            with connections[alias].cursor() as cursor:
                cursor.execute("SELECT status FROM cronjobs_jobs")
                assert cursor.fetchall() == [("dead" if enforces else "queued",)]
            transaction.set_rollback(True, using=alias)
    assert statuses(database) == ["dead"]


@pytest.mark.connects_as(OWNER)
def test_djangos_test_client_that_enforces_csrf_checks_sends_the_pages_token_back(
    config: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RequestFactory stores cookies as Client does: from ``response.cookies``."""
    monkeypatch.setattr(mail, "outbox", [], raising=False)
    with django_project(database_url) as alias, transaction.atomic(using=alias):
        view, client = pages(config=config), RequestFactory()

        def ask(method: str, address: str, *form: dict[str, str]) -> Any:
            asked = getattr(client, method)(f"/jobs/{address}", *form)
            asked.user, asked._dont_enforce_csrf_checks = user("root"), False
            response = view(asked, address)
            client.cookies.update(response.cookies)
            return response

        page = ask("get", "jobs/1")
        (cookie,) = page.cookies.values()
        assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == ("/jobs", True, "Strict")
        (token,) = set(re.findall(r'name="?csrf"? value="?([^" >]+)', page.content.decode()))
        assert ask("post", "jobs/1/retry", {"csrf": "y" * 64}).status_code == 403
        assert ask("post", "jobs/1/retry", {"csrf": token}).status_code == 303
        transaction.set_rollback(True, using=alias)


def test_outside_of_djangos_tests_nobody_is_exempt(view: Any, config: Path, engine: Engine) -> None:
    browser = Browser(view, environ={"REMOTE_USER": "root", "cronjobs.csrf_exempt": "1"})
    assert browser.post("/admin/jobs/jobs/1/retry", {}).status == 403
    form = "application/x-www-form-urlencoded"
    asked = RequestFactory().post("/jobs/jobs/1/retry", "csrf=x", content_type=form)
    asked.user, asked._dont_enforce_csrf_checks = user("root"), True
    assert pages(engine.connect, config=config)(asked, "jobs/1/retry").status_code == 403
