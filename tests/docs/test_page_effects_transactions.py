"""docs/how-to/effects.md: its handlers, run by real ticks."""

from __future__ import annotations

import json

import pytest
from support.pages import Page
from support.targets import plain_url, users_table
from support.ticking import Project

PAGE = Page("docs/how-to/effects.md")

DJANGO = """
from django.conf import settings
import django
settings.configure(DATABASES={"default": %r}, USE_TZ=True)
django.setup()
"""


@pytest.fixture
def accounts(project: Project) -> Project:
    users_table(project.url, "id integer, cents integer, closed integer", "accounts")
    project.sql("INSERT INTO accounts VALUES (7, 100, 0)")
    django = {"ENGINE": "django.db.backends.sqlite3", "NAME": project.file}
    if not project.is_sqlite:
        from psycopg.conninfo import conninfo_to_dict

        given = conninfo_to_dict(project.url)
        names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
        django = {"ENGINE": "django.db.backends.postgresql"} | {key: str(given[name]) for key, name in names.items()}
    blocks = "\n".join(
        block.text.replace("from __future__", "#") for block in PAGE.blocks("python") if "accounts." in block.text
    )
    return project.configure(handlers=DJANGO % django + blocks)


@pytest.mark.slow
def test_its_handlers_do_their_work_once_and_end_their_jobs(accounts: Project) -> None:
    book = accounts.add("accounts.book", '{"account": 7, "cents": 5}')
    accounts.tick()
    assert accounts.sql("SELECT cents FROM accounts") == [(105,)]
    assert accounts.sql("SELECT job_type, status FROM cronjobs_jobs WHERE job_type = 'accounts.notify'") == [
        ("accounts.notify", "queued")
    ]
    pay_out = accounts.add("accounts.pay_out", '{"account": 7}')
    accounts.tick()
    assert accounts.sql("SELECT cents FROM accounts") == [(0,)]
    close = accounts.add("accounts.close", json.dumps({"account": 7, "url": plain_url(accounts.url)}))
    accounts.tick()
    assert accounts.sql("SELECT closed FROM accounts") == [(1,)]
    reopen = accounts.add("accounts.open", '{"account": 7}')
    accounts.tick()
    assert accounts.sql("SELECT closed FROM accounts") == [(0,)]
    assert [accounts.job(job_id)["status"] for job_id in (book, pay_out, close, reopen)] == ["succeeded"] * 4
    result = accounts.job(book)["result"]
    assert (json.loads(result) if isinstance(result, str) else result) == {"booked": 5}
