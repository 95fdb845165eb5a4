"""A few bytes of jsonb can be a number with 100,000 digits. Nobody may write one, and none slows anything down."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from support.browsing import Browser, by_link, pages
from support.databases import in_psql, opened
from support.postgres import ENQUEUE, OWNER, as_role
from support.project import Project

from cronjobs import enqueue, enqueue_many, job
from cronjobs.clock import SYSTEM
from cronjobs.engine.jobs import registry
from cronjobs.errors import PayloadError
from cronjobs.testing import tick

ran: list[object] = []

# SQL of a number, and whether it is one that no other JSON reader takes. Sources: numeric's own limits, and the two
# powers up to which a number is taken.
NUMBERS = [
    ("1e131071", True),
    ("-1e131071", True),
    ("1e400 + 1", True),
    ("-1e400 - 1", True),
    ("1e-401", True),
    ("-1e-401", True),
    ("1e-16383", True),
    ("round(0.0, 16383)", True),  # 0.000…, of ten bytes, too
    ("round(5.0, 401)", True),
    ("1e400", False),
    ("-1e400", False),
    ("1e-400", False),
    ("-1e-400", False),
    ("round(5.0, 400)", False),
    ("round(1e400, 400)", False),
    ("1e308", False),
    ("0", False),
    ("-17.25", False),
]
DEEP = 3000
PLACES = {
    "a value": "jsonb_build_object('a', NUMBER)",
    "in arrays": "jsonb_build_object('a', jsonb_build_array(1, 'x', jsonb_build_array(null, true, NUMBER)))",
    "in objects": "jsonb_build_object('a', 1, 'b', jsonb_build_object('c', jsonb_build_object('d', NUMBER)))",
    "deep": f"""(repeat('{{"a":[', {DEEP}) || to_jsonb(NUMBER)::text || repeat(']}}', {DEEP}))::jsonb""",
}
BOMB = "jsonb_build_object('i', (SELECT jsonb_agg(NUMBER) FROM generate_series(1, 7000)), 'g', g)"


@pytest.fixture(autouse=True)
def _handlers_of_one_test() -> Iterator[None]:
    before = dict(registry._registered)
    ran.clear()

    @job("t.keep")
    def keep(**payload: object) -> None:
        ran.append(payload)

    yield
    registry._registered.clear()
    registry._registered.update(before)


def refusal(connection: psycopg.Connection, statement: str) -> str:
    """The first line of the server's error; empty: it took the statement."""
    try:
        connection.execute(statement.encode())
    except psycopg.Error as error:
        return f"{error.sqlstate}: {error}".partition("\n")[0]
    return ""


@pytest.mark.connects_as(ENQUEUE)
@pytest.mark.parametrize("column", ["payload", "meta"])
def test_an_enqueuer_writes_no_odd_number_at_any_depth_and_any_other(postgres_migrated: str, column: str) -> None:
    wrong = []
    with psycopg.connect(postgres_migrated, autocommit=True) as plain:
        for number, odd in NUMBERS:
            for place, written in PLACES.items():
                value = written.replace("NUMBER", f"({number})")
                inserted = refusal(plain, f"INSERT INTO cronjobs_jobs (job_type, {column}) SELECT 't.keep', {value}")
                called = refusal(plain, f"SELECT cronjobs_enqueue('t.keep', {column} => {value})")
                as_it_should = (
                    ("cronjobs_jobs_numbers_ck" in inserted, f"{column} has a number beyond" in called)
                    if odd
                    else (inserted == "", called == "")
                )
                if as_it_should != (True, True):
                    wrong.append((number, place, inserted, called))
        for bare in ("to_jsonb(1e131071)", "jsonb_build_array(1e131071)"):
            assert "numbers_ck" in refusal(plain, f"INSERT INTO cronjobs_jobs (job_type, {column}) SELECT 't', {bare}")
    assert wrong == []


def test_python_refuses_them_on_both_databases_and_says_where(database_url: str) -> None:
    with opened(database_url) as database, database.write() as connection:
        for number in (10**400 + 1, -(10**400) - 1, 10**131071):
            for payload in ({"a": number}, {"a": [{"b": [1, number]}]}):
                with pytest.raises(PayloadError, match=r"payload\.a.* is a number beyond ±1e400: pass it as text"):
                    enqueue(connection, "t.keep", payload)
                with pytest.raises(PayloadError, match="is a number beyond ±1e400"):
                    enqueue_many(connection, "t.keep", [{"a": 1}, payload])
        enqueue(connection, "t.keep", {"a": [10**400, -(10**400), -2.5, 0.0]})
    tick(database_url)
    assert ran == [{"a": [10**400, -(10**400), -2.5, 0.0]}]


def put_bombs(url: str, column: str, number: str, bombs: int = 40, *, run_at: str = "now()") -> None:
    """As from before the CHECK, or with it dropped: forty rows of two KiB, each of up to a gigabyte as text."""
    bomb = BOMB.replace("NUMBER", number)
    in_psql(
        as_role(url, OWNER),
        "ALTER TABLE cronjobs_jobs DROP CONSTRAINT IF EXISTS cronjobs_jobs_numbers_ck",
        f"INSERT INTO cronjobs_jobs (job_type, priority, run_at, {column}) "
        f"SELECT 't.keep', 0, {run_at}, {bomb} FROM generate_series(1, {bombs}) g",
    )
    with opened(url) as database, database.write() as connection:
        for name in range(3):
            enqueue(connection, "t.keep", {"name": name})


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("column", ["payload", "meta"])
@pytest.mark.parametrize("number", ["1e131071", "1e-16383", "round(0.0, 16383)"])
def test_rows_that_have_them_are_dead_in_one_tick_and_hold_nobody_up(
    postgres_migrated: str, column: str, number: str
) -> None:
    put_bombs(postgres_migrated, column, number)
    before, began = peak(), SYSTEM.monotonic()
    tick(postgres_migrated)
    assert SYSTEM.monotonic() - began < 60  # as text they take two minutes
    assert peak() - before < 60 * 1024  # KiB
    reason = f"{column} is unreadable: it has a number beyond ±1e400, or one with over 400 decimal places"
    with opened(postgres_migrated) as database, database.read() as connection:
        rows = connection.execute(
            text("SELECT status, last_error, count(*) FROM cronjobs_jobs GROUP BY 1, 2 ORDER BY 3")
        ).all()
    assert [tuple(row) for row in rows] == [("succeeded", None, 3), ("dead", reason, 40)]
    assert sorted(str(payload) for payload in ran) == [str({"name": name}) for name in range(3)]


@pytest.mark.slow
def test_who_looks_at_rows_that_have_them_pays_nothing_for_them(postgres_migrated: str, tmp_path: Path) -> None:
    put_bombs(postgres_migrated, "payload", "1e131071", run_at="now() + interval '1 day'")
    put_bombs(postgres_migrated, "meta", "round(0.0, 16383)", run_at="now() + interval '1 day'")
    project = Project(tmp_path, postgres_migrated)
    project.write()
    project.call("jobs", "list")  # the first one imports
    slow, before = [], peak()

    def timed(what: str, began: float) -> None:
        if (took := SYSTEM.monotonic() - began) > 40:
            slow.append((what, took))

    for words in (
        *("jobs list", "jobs list --json", "jobs show 1", "jobs show 1 --json", "jobs show 45", "explain 1"),
        *("status", "status --json", "report --out r.html", "check --live", "history", "books", "metrics", "next"),
        *("jobs list --group-by error", "jobs tail 1"),
    ):
        began = SYSTEM.monotonic()
        answer = project.call(*words.split())
        timed(words, began)
        assert answer.code in (0, 1, 3), (words, answer.err)
    access = by_link()
    with opened(postgres_migrated) as database:
        browser = Browser(pages(database, postgres_migrated, tmp_path, access)).log_in(access)
        for address in ("/", "/jobs", "/jobs/1", "/jobs/45", "/queues", "/types"):
            began = SYSTEM.monotonic()
            assert browser.get(address).status == 200, address
            timed(address, began)
    assert slow == []  # as text the list took 25 seconds
    assert peak() - before < 150 * 1024
