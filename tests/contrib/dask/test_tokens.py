"""Tokens: only one worker begins an attempt, and nobody else ends the attempt while its permit is valid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Connection, make_url, text
from support.postgres import OWNER, READ, SUPERUSER, as_role
from support.ticking import Project

from cronjobs import enqueue
from cronjobs.clock import SYSTEM
from cronjobs.contrib.dask import permit
from cronjobs.contrib.dask.permit import HeldPermit
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.context import StopSignal
from cronjobs.engine.rules.lease import Lease, lease_of
from cronjobs.engine.schema.grants import Role, statements
from cronjobs.engine.store import claims, leases, operating, tokens
from cronjobs.engine.store.claims import ClaimFilter
from cronjobs.engine.store.tokens import Permit, TokenKey
from cronjobs.errors import DatabaseError

LEASE = timedelta(seconds=60)
TYPES = ["t.far"]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Under the real clock: the functions of PostgreSQL know no other."""
    database = Database(parse_url(database_url))
    yield database
    database.close()


def begun(database: Database, token: str = "first") -> TokenKey:
    """Lease a job and put its token into the database."""
    with database.write() as connection:
        enqueue(connection, "t.far")
        key = claimed(connection, token)
        assert tokens.put(connection, [key]) == {key.job_id}
    return key


def claimed(connection: Connection, token: str) -> TokenKey:
    every = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=1000)
    [job] = claims.claim(connection, limit=1, locked_by="host:me", lease=LEASE, admission=every).jobs
    return TokenKey(job.id, job.attempt, token)


def lease(key: TokenKey) -> Lease:
    return Lease(key.job_id, key.attempt, "host:me")


def take(database: Database, key: TokenKey, holder: str = "worker-1") -> Permit:
    with database.write() as connection:
        return tokens.take(connection, key, holder)


def confirm(database: Database, key: TokenKey, ended: str | None = None) -> Permit:
    with database.write() as connection:
        return tokens.confirm(connection, key, ended)


def close(database: Database, key: TokenKey) -> bool:
    with database.write() as connection:
        return key.job_id in tokens.close(connection, [lease(key)]).over


def run_out(database: Database, key: TokenKey, *what: str) -> None:
    """Let the lease, or the permit, of an attempt end a second ago."""
    past = "statement_timestamp() - interval '1s'"
    if database.is_sqlite:
        past = "(CAST(strftime('%s', 'now') AS INTEGER) - 1) * 1000000"
    with database.write() as connection:
        for column in what:
            table, own = ("jobs", "id") if column == "locked_until" else ("tokens", "job_id")
            connection.execute(text(f"UPDATE cronjobs_{table} SET {column} = {past} WHERE {own} = {key.job_id}"))


def test_one_worker_takes_a_token_and_may_ask_again(database: Database) -> None:
    key = begun(database)
    first = take(database, key)
    assert first.answer == "yours"
    assert 50 < first.left_s <= 60
    assert take(database, key).answer == "yours", "its first answer may have been lost"
    assert take(database, key, "worker-2") == Permit("taken")
    assert take(database, key._replace(token="guessed")) == Permit("over")


def test_a_guard_asks_again_when_the_answer_to_its_take_was_lost(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, take_once = begun(database), tokens.take
    assert take(database, key).answer == "yours"
    failing = [DatabaseError("the connection broke off")]

    def take_again(connection: Connection, key: TokenKey, holder: str) -> Permit:
        if failing:
            raise failing.pop()
        return take_once(connection, key, holder)

    monkeypatch.setattr(tokens, "take", take_again)
    monkeypatch.setattr(permit, "AGAIN_S", 0.0)
    assert HeldPermit(database, key, "worker-1", 60.0, SYSTEM, StopSignal()).take().answer == "yours"


def test_an_attempt_without_a_lease_or_with_a_cancel_does_not_begin(database: Database) -> None:
    cancelled, expired = begun(database), begun(database)
    with database.write() as connection:
        operating.cancel(connection, [cancelled.job_id], operating.OperatorAction("cancel", "ann", "h", None))
    run_out(database, expired, "locked_until")
    assert take(database, cancelled) == Permit("cancelled")
    assert take(database, expired) == Permit("over")


def test_a_permit_lasts_as_long_as_the_lease_that_it_saw(database: Database) -> None:
    key = begun(database)
    take(database, key)
    with database.write() as connection:
        leases.renew(connection, [lease(key)], timedelta(seconds=600))
    assert 590 < confirm(database, key).left_s <= 600
    assert not close(database, key)
    run_out(database, key, "locked_until")
    assert confirm(database, key) == Permit("over"), "its lease is gone"
    assert not close(database, key), "but it may still run by what it saw last"
    run_out(database, key, "permitted_until")
    assert close(database, key)
    assert confirm(database, key) == Permit("over")


def test_a_cancel_reaches_the_worker_whose_permit_goes_on_meanwhile(database: Database) -> None:
    key = begun(database)
    take(database, key)
    with database.write() as connection:
        operating.cancel(connection, [key.job_id], operating.OperatorAction("cancel", "ann", "h", None))
    found = confirm(database, key)
    assert found.answer == "cancelled"
    assert found.left_s > 50


def test_a_token_that_was_taken_back_can_not_be_taken(database: Database) -> None:
    key = begun(database)
    assert close(database, key)
    assert take(database, key) == Permit("over")


def test_no_attempt_begins_while_an_earlier_one_may_run(database: Database) -> None:
    """Whoever freed the job, such as a tick of a version that knows no tokens: the next attempt waits."""
    key = begun(database)
    take(database, key)
    with database.write() as connection:
        connection.execute(text("UPDATE cronjobs_jobs SET status = 'queued', locked_by = NULL, locked_until = NULL"))
        second = claimed(connection, "second")
        assert tokens.put(connection, [second]) == frozenset()
    assert take(database, second) == Permit("over")
    run_out(database, key, "permitted_until")
    with database.write() as connection:
        assert tokens.put(connection, [second]) == {second.job_id}
    assert take(database, second).answer == "yours"
    assert confirm(database, key) == Permit("over")


def test_what_a_worker_wrote_about_the_end_is_found_and_lets_go(database: Database) -> None:
    key, other = begun(database), begun(database)
    take(database, key)
    assert confirm(database, other, '{"said": "ended"}') == Permit("over"), "nobody runs it"
    assert confirm(database, key, '{"said": "ended"}').answer == "yours"
    assert confirm(database, key) == Permit("over")
    with database.read() as connection:
        found = tokens.look(connection, [key, other])
    assert found[key.job_id].ended == '{"said": "ended"}'
    assert found[key.job_id].holder == "worker-1"
    assert (found[other.job_id].holder, found[other.job_id].taken_s) == (None, None)
    assert close(database, key)
    with database.write() as connection:
        tokens.drop(connection, [other])
    with database.read() as connection:
        assert tokens.look(connection, [key, other]) == {}


def test_the_role_of_a_worker_has_two_functions_and_no_table(postgres_migrated: str) -> None:
    """What travels to a cluster's hosts opens nothing but these."""
    owner, name = as_role(postgres_migrated, OWNER), "a_worker"
    mine = as_role(postgres_migrated, name)
    with psycopg.connect(as_role(postgres_migrated, SUPERUSER), autocommit=True) as connection:
        connection.execute(statements("public", {Role.TOKEN: name}).encode())
        connection.execute(f"ALTER ROLE {name} LOGIN PASSWORD '{make_url(mine).password}'".encode())
    try:
        with closing(Database(parse_url(owner))) as database, closing(Database(parse_url(mine))) as worker:
            key = begun(database)
            assert take(worker, key).answer == confirm(worker, key).answer == "yours"
        with psycopg.connect(mine) as connection:
            for table in ("cronjobs_jobs", "cronjobs_tokens", "cronjobs_meta"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT * FROM {table}".encode())
                connection.rollback()
            for call in (
                "cronjobs_enqueue('t.far')",
                f"cronjobs_cancel({key.job_id})",
                f"cronjobs_reschedule({key.job_id}, delay => '1h')",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(f"SELECT {call}".encode())
                connection.rollback()
            # Tables of its own stand in for none: the functions would write to them with their owner's rights.
            connection.execute("CREATE TEMP TABLE cronjobs_jobs (id bigint, attempts int, status text, "
                               "locked_until timestamptz, cancel_requested_at timestamptz)")  # fmt: skip
            connection.execute("INSERT INTO cronjobs_jobs VALUES (1, 1, 'running', 'infinity', NULL)")
            connection.execute(
                "CREATE TEMP TABLE cronjobs_tokens (job_id bigint, attempt int, token text, "
                "holder text, taken_at timestamptz, permitted_until timestamptz, ended text)"
            )
            connection.execute("INSERT INTO cronjobs_tokens VALUES (1, 1, 'mine')")
            found = connection.execute("SELECT answer FROM cronjobs_take_token(1, 1, 'mine', 'me')").fetchone()
            assert found == ("over",)
        refused = pytest.raises(psycopg.errors.InsufficientPrivilege)
        with refused, psycopg.connect(as_role(postgres_migrated, READ)) as connection:
            connection.execute("SELECT cronjobs_take_token(1, 1, 'guessed', 'me')")
    finally:
        with psycopg.connect(as_role(postgres_migrated, SUPERUSER), autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {name}".encode())
            connection.execute(f"DROP ROLE {name}".encode())


def test_lease_of_a_claimed_job_names_its_attempt(database: Database) -> None:
    with database.write() as connection:
        enqueue(connection, "t.far")
        every = ClaimFilter(known=TYPES, fitting=TYPES, remaining_s=1000)
        [job] = claims.claim(connection, limit=1, locked_by="host:me", lease=LEASE, admission=every).jobs
        closed = tokens.close(connection, [lease_of(job)])
    assert closed.over == {job.id}, "an attempt without a token is nobody's to run"


# --- who may end it -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_tick_settles_a_lost_attempt_while_its_worker_may_run_it(project: Project) -> None:
    """Its supervisor is dead for certain; the worker of the cluster does not know that yet."""
    project.configure(handlers="@job('t.far')\ndef far(): ...\n")
    with closing(Database(parse_url(project.url))) as database:
        key = begun(database)
        take(database, key)
        run_out(database, key, "locked_until")
        project.tick()
        assert project.statuses() == {"running": 1}
        run_out(database, key, "permitted_until")
        project.tick()
    assert project.outcomes(key.job_id) == ["lost", "succeeded"]
    assert project.sql("SELECT count(*) FROM cronjobs_tokens") == [(0,)]


@pytest.mark.slow
def test_what_no_worker_had_begun_goes_back_uncharged_when_its_supervisor_dies(project: Project) -> None:
    """With on_lost: dead it would be dead otherwise, and has never run."""
    project.configure(handlers="@job('t.far', on_lost='dead')\ndef far(): ...\n")
    with closing(Database(parse_url(project.url))) as database:
        key = begun(database)
        run_out(database, key, "locked_until")
        project.tick()
        assert take(database, key) == Permit("over")
    assert project.outcomes(key.job_id) == ["succeeded"]
    assert project.job(key.job_id)["losses"] == 0
