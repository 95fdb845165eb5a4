"""The pages as a Django view: Django's users see and act, under the view's own address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.urls import include, re_path  # type: ignore[import-untyped]
from sqlalchemy import Engine, select
from support.browsing import Browser
from support.django_site import site
from support.lookingrows import rows as rows

from contrib.web.test_web_mounted import PAGES, statuses
from contrib.web.test_web_mounted import clock as clock
from contrib.web.test_web_mounted import config as config
from contrib.web.test_web_mounted import engine as engine
from cronjobs.contrib.django.views import pages
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:django")


@pytest.fixture
def view(config: Path, engine: Engine) -> Iterator[Any]:
    inner = [re_path(r"^(?P<path>.*)$", pages(engine.connect, config=config))]
    with site([re_path(r"^admin/jobs/", include(inner))]) as made:
        yield made


def test_staff_sees_superusers_act_and_others_do_neither(view: Any, database: Database) -> None:
    nobody = Browser(view).get("/admin/jobs/queues")
    assert (nobody.status, nobody.header("Location")) == (302, "/accounts/login/?next=/admin/jobs/queues")
    assert Browser(view, environ={"REMOTE_USER": "bob"}).get("/admin/jobs/").status == 403
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
