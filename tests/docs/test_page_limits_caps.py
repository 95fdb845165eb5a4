"""docs/how-to/limits.md: its code does what the page says, on a database with the caps of the page's file."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.capped import cap, dropped, in_queue
from support.pages import Page
from support.project import Project

from cronjobs import QueueFull, enqueue_many
from cronjobs.engine.database.connection import Database
from cronjobs.engine.rules.capacity import Cap
from cronjobs.engine.store.queues import caps_in_force

PAGE = Page("docs/how-to/limits.md")


def test_the_pages_code_on_the_pages_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    project = Project(tmp_path, f"sqlite:///{tmp_path / 'cronjobs.db'}")
    (tmp_path / "cronjobs.yaml").write_text(PAGE.block("yaml", "on_full: wait"))
    assert project.call("sync").code == 0
    monkeypatch.chdir(tmp_path)
    from cronjobs.engine.database.address import parse_url

    database = Database(parse_url(project.url))
    with database.read() as connection:
        assert caps_in_force(connection) == {
            "mail": Cap("mail", 10000, "error"),
            "hits": Cap("hits", 1000, "drop"),
            "import": Cap("import", 500, "wait"),
        }
    for queue, on_full in (("mail", "error"), ("hits", "drop"), ("import", "wait")):
        cap(database, 1, on_full, queue)  # type: ignore[arg-type]
    namespace: dict[str, Any] = {}
    for block in PAGE.blocks("python"):
        if block.heading != "Cap a queue":
            continue
        exec(block.text.replace('wait="2m"', 'wait="0.1s"'), namespace)
    assert namespace["send_later"]("a@example.com")
    assert not namespace["send_later"]("b@example.com")
    assert capsys.readouterr().out == "mail 1\n"
    with pytest.raises(QueueFull):
        namespace["send_all"](["c@example.com", "d@example.com"])
    with caplog.at_level(logging.WARNING, "cronjobs"):
        namespace["count_hit"]("/")
        namespace["count_hit"]("/about")
    assert capsys.readouterr().out == "not counted: /about\n"
    assert caplog.messages == [PAGE.block("text", "queue.dropped").strip()]
    namespace["import_row"]({"n": 1})
    with pytest.raises(SystemExit, match="do ticks run"):
        namespace["import_row"]({"n": 2})
    assert [in_queue(database, queue) for queue in ("mail", "hits", "import")] == [1, 1, 1]
    assert dropped(database, "hits") == 1
    seen = project.call("status")
    assert "queue hits: 1 of at most 1 waiting (when full: drop); 1 dropped so far" in " ".join(seen.out.split())
    assert 'queue "mail" is full (1 of 1)' in seen.out
    [hits] = [queue for queue in project.call("status", "--json").json["waiting"]["queues"] if queue["queue"] == "hits"]
    assert (hits["max_waiting"], hits["on_full"], hits["dropped"]) == (1, "drop", 1)
    database.close()
    namespace["engine"].dispose()


def test_the_pages_sql(postgres_migrated: str) -> None:
    statement = PAGE.block("sql", "cronjobs_enqueue").encode()
    with psycopg.connect(postgres_migrated, autocommit=True) as psql:
        psql.execute("INSERT INTO cronjobs_queues (name, max_waiting, on_full) VALUES ('hits', 1, 'drop')")
        assert psql.execute(statement).fetchall() == [(1, True, "queued")]
        assert psql.execute(statement).fetchall() == [(None, False, None)]
        psql.execute("UPDATE cronjobs_queues SET on_full = 'error'")
        with pytest.raises(psycopg.Error) as refused:
            psql.execute(statement)
        psql.execute("INSERT INTO cronjobs_jobs (job_type, queue) VALUES ('t', 'hits')")  # this INSERT is not capped
    assert refused.value.sqlstate == "CJ001"


def test_into_a_capped_queue_it_takes_three_statements_more(database: Database) -> None:
    from sqlalchemy import event

    cap(database, 9)
    with database.write() as connection:
        enqueue_many(connection, "t.say", [{}])  # PostgreSQL is asked for the table once
        seen: list[str] = []
        event.listen(connection, "before_cursor_execute", lambda *given: seen.append(given[2]))
        enqueue_many(connection, "t.say", [{}, {}], queue="mail")
        assert len(seen) == 4
