"""Caps in the file: sync applies them, schedules obey them, operators are exempt, and status shows them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import insert, select, text, update
from support.capped import cap, dropped, in_queue
from support.configfile import DATABASE, cases, problems, read
from support.lookingrows import Cronjobs
from support.lookingrows import cronjobs as cronjobs
from support.project import Project
from support.yard import MINUTE, START, Yard, at, minutely

from cronjobs import enqueue, enqueue_many
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, jobs, occurrences, queues
from cronjobs.engine.rules.capacity import Cap, admit
from cronjobs.engine.schedules import backfill
from cronjobs.engine.schedules.definition import fingerprint
from cronjobs.engine.store import operating
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.queues import caps_in_force
from cronjobs.errors import QueueFull
from cronjobs.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def yard(database: Database, clock: FakeClock, tmp_path: Path) -> Yard:
    return Yard(database, clock, tmp_path)


# --- the decision -----------------------------------------------------------------------------------------------------

CAPS = {"a": Cap("a", 3, "error"), "b": Cap("b", 3, "drop")}


@pytest.mark.parametrize(
    ("asking", "let_in", "left_out", "refused"),
    [
        ("aa", "01", "", None),
        ("aaa", "", "", ("a", 3, 2)),
        ("bbb", "01", "2", None),
        ("bcbbc", "0124", "3", None),
        ("cbbbaaa", "", "", ("a", 3, 2)),
        ("ccc", "012", "", None),
    ],
)
def test_who_is_let_in(asking: str, let_in: str, left_out: str, refused: Any) -> None:
    told: Any = None
    found: tuple[list[str], list[str]] = ([], [])
    try:
        found = admit([(str(n), queue) for n, queue in enumerate(asking)], CAPS, {"a": 1, "b": 1})
    except QueueFull as full:
        told = (full.queue, full.wanted, full.room)
    assert tuple(map("".join, found)) == (let_in, left_out)
    assert told == refused


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    cases("""
queues: {mail: {on_full: drop}}
    2:10: queues.mail: this entry needs the key "max_waiting"; for example, write "max_waiting: 10000"
queues: {mail: {max_waiting: 0}}
    2:30: queues.mail.max_waiting: "0" is not in 1–100000000
queues: {mail: {max_waiting: 5, on_full: block}}
    2:42: queues.mail.on_full: "block" is not one of error, drop, wait
queues: {mail: 5}
    2:16: queues.mail: write it as a mapping: max_waiting: …
"""),
)
def test_a_bad_entry_disables_only_itself(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(DATABASE + line) == [f"cronjobs.yaml:{said}"]
    found = read(DATABASE + line.replace("{mail:", "{sms: {max_waiting: 7}, mail:"))
    assert found.queues == {"sms": Cap("sms", 7, "error")}
    assert found.disabled_queues == {"mail"}


# --- sync -------------------------------------------------------------------------------------------------------------


def carrying(yard: Yard, *caps: Cap, **more: Any) -> Settings:
    return Settings(
        file=yard.folder / "cronjobs.yaml", folder=yard.folder, queues={cap.queue: cap for cap in caps}, **more
    )


def in_force(yard: Yard) -> dict[str, Cap]:
    with yard.database.read() as connection:
        return caps_in_force(connection)


def test_sync_puts_caps_in_force_and_takes_them_away_and_keeps_what_was_counted(yard: Yard) -> None:
    mail, sms = Cap("mail", 1, "drop"), Cap("sms", 5, "wait")
    assert yard.sync(carrying(yard, mail, sms)).plan.cap == (mail, sms)
    with yard.database.write() as connection:
        enqueue_many(connection, "t.say", [{}, {}], queue="mail")
    changed = yard.sync(carrying(yard, Cap("mail", 1, "error")))
    assert (changed.plan.cap, changed.plan.uncap) == ((Cap("mail", 1, "error"),), ("sms",))
    assert (in_force(yard), dropped(yard.database)) == ({"mail": Cap("mail", 1, "error")}, 1)
    yard.sync(carrying(yard))
    with yard.database.write() as connection:
        assert enqueue(connection, "t.say", queue="mail").new
        acts = connection.execute(select(audit.c.action, audit.c.subject, audit.c.actor).order_by(audit.c.id)).all()
    assert (in_force(yard), dropped(yard.database)) == ({}, 1)
    assert [tuple(act) for act in acts if act.action != "sync"] == [
        *[("cap", "mail", "test"), ("cap", "sms", "test"), ("cap", "mail", "test")],
        *[("uncap", "sms", "test"), ("uncap", "mail", "test")],
    ]
    assert [event.facts.get("queues") for event in yard.events] == [
        ["mail: max_waiting 1, on_full drop", "sms: max_waiting 5, on_full wait"],
        ["mail: max_waiting 1, on_full error", "sms: no cap"],
        ["mail: no cap"],
    ]


def test_a_bad_entry_or_section_leaves_the_cap_that_is_in_force(yard: Yard) -> None:
    yard.sync(carrying(yard, Cap("mail", 1, "drop")))
    yard.sync(carrying(yard, disabled_queues=frozenset({"mail"})))
    yard.sync(Settings(file=yard.folder / "cronjobs.yaml", folder=yard.folder, queues=None))
    assert in_force(yard) == {"mail": Cap("mail", 1, "drop")}


def test_a_fingerprint_changes_with_a_cap_and_without_caps_is_what_it_was(yard: Yard) -> None:
    plain = Settings(file=yard.folder / "cronjobs.yaml", folder=yard.folder)
    files = [
        plain,
        carrying(yard, Cap("mail", 1, "drop")),
        carrying(yard, Cap("mail", 2, "drop")),
        carrying(yard, Cap("mail", 2, "error")),
        carrying(yard, disabled_queues=frozenset({"mail"})),
        Settings(file=plain.file, folder=plain.folder, queues=None),
    ]
    assert len({fingerprint(file) for file in files}) == len(files)
    assert fingerprint(plain) == "ebbf3e9b552c8320"


def test_sync_waits_for_no_enqueuer_and_applies_all_but_that_queue(
    postgres_migrated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.databases import opened

    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated) as user:
        yard = Yard(database, FakeClock(START), tmp_path)
        yard.sync(carrying(yard, Cap("mail", 9, "error")))
        enqueue(user, "t.say", queue="mail")
        later = carrying(yard, Cap("mail", 8, "error"), schedules={"s": minutely()})
        done = yard.sync(later)
        assert (done.applied, done.left) == (False, ("queue mail",))
        assert in_force(yard) == {"mail": Cap("mail", 9, "error")}
        assert yard.definition().status == "active"
        user.rollback()
        assert yard.sync(later).applied
        assert in_force(yard) == {"mail": Cap("mail", 8, "error")}


# --- schedules --------------------------------------------------------------------------------------------------------


def test_an_occurrence_that_finds_its_queue_full_is_recorded_skipped(yard: Yard) -> None:
    yard.sync(yard.file(minutely(queue="mail", overlap="allow", catch_up="all")))
    cap(yard.database, 2)
    yard.clock.advance(3 * MINUTE)
    yard.tick()
    yard.clock.advance(MINUTE)
    yard.tick()
    assert [(outcome, when) for outcome, _, _, when in yard.ledger()] == [
        *[("enqueued", at(1)), ("enqueued", at(2)), ("skipped", at(3)), ("skipped", at(4))]
    ]
    with yard.database.read() as connection:
        reasons = set(connection.execute(select(occurrences.c.reason)).scalars())
    assert reasons == {None, "full: queue mail was at its limit of waiting jobs, 2 (max_waiting)"}
    assert [event.level for event in yard.events if event.name == "schedule.skipped"] == ["warning"] * 2
    assert (in_queue(yard.database), dropped(yard.database)) == (2, 0)


def test_what_a_skipped_run_would_have_stood_for_is_skipped_too(yard: Yard) -> None:
    yard.sync(yard.file(minutely(queue="mail")))
    cap(yard.database, 1)
    with yard.database.write() as connection:
        enqueue(connection, "t.say", queue="mail")
    yard.clock.advance(10 * MINUTE)
    yard.tick()
    assert [(outcome, count) for outcome, count, _, _ in yard.ledger()] == [("skipped", 9), ("skipped", 1)]


def test_a_tick_leaves_an_occurrence_for_later_while_an_enqueuer_holds_its_queue(
    postgres_migrated: str, tmp_path: Path
) -> None:
    from support.databases import opened

    with opened(postgres_migrated) as database, psycopg.connect(postgres_migrated) as user:
        database.clock = clock = FakeClock(START)
        database.engine = database.engine.execution_options(cronjobs_clock=clock)
        yard = Yard(database, clock, tmp_path)
        yard.sync(yard.file(minutely(queue="mail"), minutely(name="other")))
        cap(database, 1)
        enqueue(user, "t.say", queue="mail")
        clock.advance(MINUTE)
        assert yard.tick().busy == ["s"]
        assert (yard.ledger(), len(yard.ledger("other"))) == ([], 1)
        user.rollback()
        yard.tick()
        assert [row[0] for row in yard.ledger()] == ["enqueued"]


# --- who is never refused ---------------------------------------------------------------------------------------------


def test_operators_and_retries_are_never_refused(yard: Yard) -> None:
    yard.sync(yard.file(minutely(queue="mail", overlap="allow", catch_up="all")))
    cap(yard.database, 1)
    yard.clock.advance(2 * MINUTE)
    yard.tick()
    with yard.database.write() as connection:
        dead = {"status": "dead", "finished_at": yard.clock.now(), "queue": "mail"}
        [dead_id] = connection.execute(insert(jobs).values(job_type="t", **dead).returning(jobs.c.id)).scalars()
        act = OperatorAction("retry", "ada", "h", None)
        assert operating.retry(connection, [dead_id], act).done == {dead_id}
        backfill.trigger(connection, "s", force=False, actor="ada", host="h")
        filled = backfill.backfill(
            connection, "s", at(1), at(2), retention=timedelta(days=90), actor="ada", host="h", dry_run=False
        )
        assert len(filled.run) == 1
    assert in_queue(yard.database) == 4


# --- seen -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_status_shows_how_full_capped_queues_are_and_what_they_dropped(cronjobs: Cronjobs, database: Database) -> None:
    cap(database, 2, "drop")
    cap(database, 1000, "wait", "sms")
    with database.write() as connection:
        enqueue_many(connection, "t.say", [{}, {}, {}], queue="mail")
        connection.execute(update(queues).where(queues.c.name == "mail").values(dropped=1234))
    seen = cronjobs("status", "--json").json
    found = {queue["queue"]: queue for queue in seen["waiting"]["queues"]}
    assert {name: (queue["max_waiting"], queue["on_full"], queue["dropped"]) for name, queue in found.items()} == {
        "mail": (2, "drop", 1234),
        "sms": (1000, "wait", 0),
    }
    [full] = [trouble for trouble in seen["findings"] if trouble["kind"] == "full"]
    assert (full["text"], full["alarm"]) == ('queue "mail" is full (2 of 2): it drops new jobs', False)
    said = cronjobs("status").out
    assert "queue mail: 2 of at most 2 waiting (when full: drop); 1,234 dropped so far" in " ".join(said.split())
    assert "queue sms: 0 of at most 1,000 waiting (when full: wait)\n" in said


# --- the command ------------------------------------------------------------------------------------------------------

YAML = 'job_types: {t.ok: {command: ["true"]}}\nqueues: {mail: {max_waiting: 1, on_full: ON_FULL}}\n'


@pytest.mark.parametrize(
    ("on_full", "code", "out", "err"),
    [
        ("error", 1, "", 'queue "mail" is full (max_waiting 1): nothing was written; enqueue again later'),
        ("drop", 0, 'dropped: queue "mail" is full, and its "on_full" is "drop"\n', ""),
        (
            "wait",
            1,
            "",
            'queue "mail" is full (max_waiting 1) after 200ms: nothing was written; enqueue again',
        ),
    ],
)
def test_the_command_obeys_the_cap(
    database_url: str, tmp_path: Path, on_full: str, code: int, out: str, err: str
) -> None:
    project = Project(tmp_path, database_url)
    project.write(YAML.replace("ON_FULL", on_full))
    assert project.call("sync", "--plan").out == f"~ queue mail: max_waiting 1, on_full {on_full}\n"
    assert project.call("sync").code == 0
    assert project.call("enqueue", "t.ok", "--queue", "mail").code == 0
    done = project.call("enqueue", "t.ok", "--queue", "mail", "--wait", "0.2s")
    assert (done.code, done.out) == (code, out)
    assert done.err.startswith(err)
    assert len(project.jobs()) == 1
    project.execute(text("UPDATE cronjobs_jobs SET queue = 'other'"))
    assert project.call("enqueue", "t.ok", "--queue", "mail", "--json").json["new"] is True
