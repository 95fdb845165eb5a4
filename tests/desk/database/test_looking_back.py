"""``schedules`` and ``history``: what comes next and what has happened. With millions of rows, they read only a few."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert
from support.bigtables import fill, whole_table_read
from support.lookingrows import NOW, YAML, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows
from support.postgres import OWNER

from cronjobs.desk.cli.output import fit, table
from cronjobs.desk.insight.formatting import Times
from cronjobs.desk.insight.instants import since_instant
from cronjobs.desk.insight.shortened_history import ACTS
from cronjobs.desk.rules.schedule_names import names_of
from cronjobs.desk.store import history, listing, trail, workload
from cronjobs.desk.store import status_facts as unresolved
from cronjobs.desk.store.listing import Filter
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.store import shown_columns, ticks
from cronjobs.errors import UsageError
from cronjobs.model import Status
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


# --- schedules --------------------------------------------------------------------------------------------------------


def schedules_in_every_state(rows: Rows, tmp_path: Path) -> None:
    file = tmp_path / "cronjobs.yaml"
    file.write_text(file.read_text() + '  broken: {cron: "61 * * * *", job: mail.send}\n')
    nightly = rows.schedule("nightly-report")
    done = rows.job("reports.nightly", "succeeded", schedule="nightly-report")
    rows.occurrence(nightly, ago(hours=8), job_id=done)
    rows.occurrence(nightly, ago(hours=32), job_id=999)
    rows.schedule("gone", status="retired")
    rows.schedule("quiet", definition={"every_s": 600, "job": "mail.send", "timezone": "UTC"})
    rows.pause("schedule", "quiet", by="hugo", why="too loud")
    rows.schedule("broken")


SCHEDULES = """\
name            timing      job            state     next      last
broken          15 2 * * *  reports.nigh…  disabled            none yet
gone            15 2 * * *  reports.nigh…  retired             none yet
nightly-report  15 2 * * *  reports.nigh…  active    in 18h    9m ago: succeede…
quiet           every 10m   mail.send      paused    in 6m53s  none yet
refresh-cache   every 10m   mail.send      new       in 6m53s  none yet
cronjobs.yaml:11:19: schedules.broken.cron: minute 61 is not in 0–59
"""


def test_schedules_list_tells_state_next_and_last_of_each(cronjobs: Cronjobs, rows: Rows, tmp_path: Path) -> None:
    schedules_in_every_state(rows, tmp_path)
    assert cronjobs("schedules", "list").out == SCHEDULES


def test_schedules_list_shows_the_occurrence_at_the_very_end_of_a_pause_that_skips(
    cronjobs: Cronjobs, rows: Rows
) -> None:
    rows.schedule("quiet", definition={"every_s": 600, "job": "mail.send", "timezone": "UTC"})
    end = NOW.replace(minute=20, second=0, microsecond=0)
    rows.pause("schedule", "quiet", by="hugo", skip=1, until=end)
    [quiet] = [each for each in cronjobs("schedules", "list", "--json").json if each["name"] == "quiet"]
    assert quiet["next"] == [end.isoformat()]


def test_schedules_list_json_has_the_columns_as_keys(cronjobs: Cronjobs, rows: Rows, tmp_path: Path) -> None:
    schedules_in_every_state(rows, tmp_path)
    listed = {found["name"]: found for found in cronjobs("schedules", "list", "--json").json}
    columns = [*tables.schedules.c.keys(), "paused", "state", "next", "last"]
    assert all(sorted(found) == sorted(columns) for found in listed.values())
    nightly = listed["nightly-report"]
    assert nightly["next"] == ["2026-07-02T06:15:00+00:00"]  # 02:15 in New York
    assert nightly["last"]["outcome"] == "succeeded"
    assert listed["quiet"]["paused"] == "paused by hugo: too loud"
    assert (listed["refresh-cache"]["id"], listed["refresh-cache"]["status"]) == (None, None)


def test_schedules_show_tells_definition_next_five_and_the_ledger(
    cronjobs: Cronjobs, rows: Rows, tmp_path: Path
) -> None:
    schedules_in_every_state(rows, tmp_path)
    lines = cronjobs("schedules", "show", "nightly-report").out.splitlines()
    assert lines[:3] == [
        "schedule nightly-report  active",
        "timing     15 2 * * *  (America/New_York)",
        "job        reports.nightly",
    ]
    assert lines[3] == "next       2026-07-02 02:15:00 America/New_York, in 18h"
    assert lines[-2].split() == ["00:03:07", "enqueued", "1", "succeeded"]  # in New York, as the line above it
    assert lines[-1].split() == ["2026-06-30", "00:03:07", "enqueued", "999"]  # the job of this row is pruned
    seen = cronjobs("schedules", "show", "nightly-report", "--json").json
    assert len(seen["next"]) == 5
    assert set(seen["ledger"][0]) == {*tables.occurrences.c.keys(), "job_status"}
    assert "minute 61 is not in" in cronjobs("schedules", "show", "broken").out
    assert "the next tick will apply this file" in " ".join(cronjobs("schedules", "show", "refresh-cache").out.split())


def test_an_unknown_schedule_is_one_sentence_that_names_the_nearest(cronjobs: Cronjobs, rows: Rows) -> None:
    answer = cronjobs("schedules", "show", "nightly-repor")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == 'there is no schedule "nightly-repor": did you mean nightly-report?\n'


# --- history ----------------------------------------------------------------------------------------------------------


def a_night(rows: Rows) -> None:
    """Ticks until 01:58 and from 02:31 Berlin time; what was due in between is caught up with."""
    night = datetime(2026, 7, 1, 0, 31, tzinfo=UTC)
    for minute in range(-40, -33 + 1):
        rows.tick("web1", night + timedelta(minutes=minute))
    for minute in range(int((NOW - night).total_seconds() // 60) + 1):
        rows.tick("web1", night + timedelta(minutes=minute, seconds=1))
    schedule = rows.schedule("refresh-cache", definition={"every_s": 600, "job": "mail.send", "timezone": "UTC"})
    began = night + timedelta(seconds=2)
    job_id = rows.job(status="dead", schedule="refresh-cache", started_at=began, finished_at=began)
    first = night - timedelta(minutes=30)
    rows.occurrence(schedule, night - timedelta(minutes=11), "coalesced", first_for=first, count=2, job_id=job_id)
    rows.occurrence(schedule, night - timedelta(minutes=1), job_id=job_id)
    rows.occurrence(schedule, NOW - timedelta(minutes=5), "skipped", reason="job 1 was still running", job_id=job_id)
    rows.attempt(
        job_id,
        "failed",
        started_at=began,
        finished_at=began + timedelta(seconds=3.2),
        error="503 from the mail provider",
    )
    rows.attempt(rows.job("reports.nightly", "succeeded"), started_at=ago(minutes=9), finished_at=ago(minutes=8))
    rows.attempt(rows.job("reports.nightly", "succeeded"), started_at=ago(days=2), finished_at=ago(days=2))


HISTORY = """\
since 2026-06-30 14:03:07 Europe/Berlin: 1 dead, 1 time without ticks, 1 failed,
1 skipped, 2 coalesced, 1 succeeded

Wednesday 2026-07-01
01:58:00     no tick      reached the database between 01:58:00 and 02:31:01
02:31:02     failed       mail.send #1 of refresh-cache, took 3.2s on web1: 503
                          from the mail provider
02:31:02     dead         mail.send #1 of refresh-cache, and nobody has dealt
                          with it

counted by schedule and job type
             coalesced    refresh-cache ×2 (job 1): 02:01:00 to 02:20:00
             succeeded    reports.nightly (job 2), 1m: 13:54:07
             skipped      refresh-cache (job 1), job 1 was still running:
                          13:58:07
"""


def test_history_tells_what_happened_last_night_oldest_first(cronjobs: Cronjobs, rows: Rows) -> None:
    a_night(rows)
    assert cronjobs("history").out == HISTORY


def test_history_json_is_one_array_with_a_kind(cronjobs: Cronjobs, rows: Rows) -> None:
    a_night(rows)
    gap, coalesced, failed, *_ = cronjobs("history", "--json").json
    assert gap == {
        "kind": "gap",
        "host": None,
        "reason": None,
        "started_at": "2026-06-30T23:58:00.310000+00:00",
        "finished_at": "2026-07-01T00:31:01+00:00",
    }
    assert set(coalesced) == {"kind", "schedule", *tables.occurrences.c.keys()}
    brief = set(tables.job_runs.c.keys()) - {"traceback", "output"}
    assert set(failed) == {"kind", "job_type", "schedule", "scheduled_for", *brief}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--schedule refresh-cache", ["gap", "coalesced", "failed", "death", "skipped"]),
        ("--type mail.send", ["coalesced", "failed", "death", "skipped"]),
        ("--type reports.nightly", ["succeeded"]),
        ("--outcome failed", ["failed"]),
        ("--outcome dead", ["death"]),
        ("--outcome skipped", ["skipped"]),
        ("--outcome missed", []),
        ("--limit 2", ["gap", "death"]),
        ("--since 3d --outcome succeeded", ["succeeded", "succeeded"]),
        ("--since 2026-07-01T02:10", ["gap", "coalesced", "failed", "death", "succeeded", "skipped"]),
        ("--since 2026-07-01T02:32", ["succeeded", "skipped"]),
    ],
)
def test_history_filters(cronjobs: Cronjobs, rows: Rows, options: str, expected: list[str]) -> None:
    a_night(rows)
    found = cronjobs("history", "--json", *options.split()).json
    assert [entry.get("outcome", entry["kind"]) for entry in found] == expected


def test_ticks_that_stopped_are_in_the_history(cronjobs: Cronjobs, rows: Rows, clock: FakeClock) -> None:
    rows.tick()
    clock.advance(timedelta(minutes=3))
    assert "no tick      reached the database since 14:03:01" in cronjobs("history").out


def test_a_long_tick_is_no_gap_and_hosts_fill_in_for_each_other(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick("web1", ago(minutes=9), finished_at=ago(minutes=5))
    rows.tick("web2", ago(minutes=8))
    rows.tick("web1", ago(minutes=3))
    rows.tick("web2", ago(minutes=1))
    answer = cronjobs("history")
    assert answer.out == "nothing happened since 2026-06-30 14:03:07 Europe/Berlin\n"


def steadily(rows: Rows, host: str, *silent: range, **values: Any) -> None:
    """Ticks of *host* a minute apart from 60 minutes ago to now, but for the minutes in *silent*."""
    for minute in range(60, -1, -1):
        if not any(minute in each for each in silent):
            rows.tick(host, ago(minutes=minute), **values)


def test_a_host_that_was_silent_while_others_ticked_is_in_the_history(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick("once", ago(minutes=50))
    steadily(rows, "web2", range(20, 50), range(6))
    steadily(rows, "web1", range(40, 46))
    gaps = [entry for entry in cronjobs("history", "--json").json if entry["kind"] == "gap"]
    assert [(each["host"], each["finished_at"] is None) for each in gaps] == [
        ("web2", False),
        (None, False),  # from 46 to 39 minutes ago nobody ticked
        ("web2", True),
    ]
    said = " ".join(cronjobs("history").out.split())
    assert "no tick of host web2 reached the database between 13:13:07 and 13:44:07, while other hosts ticked" in said
    assert "no tick of host web2 reached the database since 13:57:07, while other hosts ticked" in said


def test_hosts_that_stop_together_have_one_gap(cronjobs: Cronjobs, rows: Rows) -> None:
    steadily(rows, "web1", range(10, 30))
    steadily(rows, "web2", range(10, 30))
    gaps = [entry["host"] for entry in cronjobs("history", "--json").json if entry["kind"] == "gap"]
    assert gaps == [None]


@pytest.mark.parametrize("schedules", [0, 1])
def test_a_night_in_which_no_tick_fired_schedules_is_in_the_history(
    cronjobs: Cronjobs, rows: Rows, schedules: int
) -> None:
    if schedules:
        rows.schedule("nightly")
    steadily(rows, "web1", range(30), schedules_on=1)
    steadily(rows, "web1", range(30, 61), range(10), schedules_on=0)
    steadily(rows, "web1", range(10, 61), schedules_on=1)
    said = " ".join(cronjobs("history").out.split())
    off = "not fired no tick fired schedules until 13:53:07: CRONJOBS_SCHEDULES was off on every host that ticked"
    assert (f"13:34:07 {off}" in said) is bool(schedules)


def test_a_name_that_no_schedule_has_is_said_so_and_not_taken_for_a_quiet_night(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.schedule("nightly-report")
    answer = cronjobs("history", "--schedule", "nightly-reprot")
    assert answer.out.startswith("nothing happened since")
    assert answer.err == 'there is no schedule "nightly-reprot": did you mean nightly-report?\n'
    assert cronjobs("history", "--schedule", "nightly-report").err == ""


# --- plans ------------------------------------------------------------------------------------------------------------


def test_faults_of_a_file_and_of_code_are_in_the_history_with_their_ends(cronjobs: Cronjobs, rows: Rows) -> None:
    """A tick that loads no handlers knows nothing about the code, so it does not end a fault of the code."""
    code, file = {"not_loaded": {"jobs": "No module named 'pandas'"}}, {"broken": {"schedules.s": "minute 61"}}
    rows.tick("web1", ago(minutes=50), job_types="aa")
    for minute in (40, 39):
        rows.tick("web1", ago(minutes=minute), did=code | file, job_types="aa")
    rows.tick("web2", ago(minutes=38), job_types="aa")
    rows.tick("web1", ago(minutes=37))  # idle
    rows.tick("web1", ago(minutes=30), job_types="aa")
    rows.tick("web2", ago(minutes=20), did=code, job_types="aa")
    faults = [entry for entry in cronjobs("history", "--json").json if entry["kind"] == "fault"]
    assert [(each["host"], each["name"], each["started_at"], each["finished_at"]) for each in faults] == [
        ("web1", "schedules.s", ago(minutes=40).isoformat(), ago(minutes=37).isoformat()),
        ("web1", "jobs", ago(minutes=40).isoformat(), ago(minutes=30).isoformat()),
        ("web2", "jobs", ago(minutes=20).isoformat(), None),
    ]
    said = " ".join(cronjobs("history").out.split())
    assert "3 faults of a file or of code" in said
    assert "13:23:07 fault web1 could not use jobs until 13:33:07: No module named 'pandas'" in said
    assert "13:43:07 fault web2 could not use jobs and still cannot: No module named 'pandas'" in said


def test_when_a_tick_could_not_use_the_database_is_in_the_history(cronjobs: Cronjobs, rows: Rows) -> None:
    away = {"since": ago(minutes=40).isoformat(), "until": ago(minutes=39).isoformat(), "why": "the server is away"}
    rows.tick("web1", ago(minutes=41), did={"succeeded": 1, "outages": [away]})
    # Plain SQL may have written anything.
    rows.tick("web1", ago(minutes=38), did={"outages": [7, {}, away | {"since": "2026"}, away | {"until": None}]})
    rows.tick("web1", ago(minutes=37), did={"outages": away})
    # Each tick that fails hands on the outages before its own.
    for minute in (36, 35):
        rows.tick("web1", ago(minutes=minute), did={"outages": [away]})
    [outage] = [entry for entry in cronjobs("history", "--json").json if entry["kind"] == "outage"]
    assert outage == {
        "kind": "outage",
        "started_at": away["since"],
        "finished_at": away["until"],
        "host": "web1",
        "reason": "the server is away",
    }
    said = " ".join(cronjobs("history").out.split())
    assert "1 time without the database" in said
    assert "13:23:07 no database web1 could not use the database until 13:24:07: the server is away" in said


def looks(database: Database) -> list[tuple[str, Any]]:
    """Every statement that the looking commands send to a big table, with its parameters."""
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "SELECT" in statement:
            sent.append((statement, parameters))

    hour = NOW - timedelta(hours=1)
    event.listen(database.engine, "before_cursor_execute", note)
    with database.read() as connection:
        workload.waiting_by_queue(connection)
        workload.due_groups(connection, timedelta(minutes=2), ["t"])
        workload.running_jobs(connection, 5)
        workload.running_count(connection)
        workload.dead_counts(connection)
        history.deaths_since(connection, hour, 50)
        unresolved.deaths(connection)
        unresolved.lately(connection, [1, 2, 3], 10)
        unresolved.triggered(connection, names_of("a", []))
        unresolved.defined_at(connection, names_of("a", []), ["cron"])
        unresolved.fired_lately(connection, timedelta(minutes=5))
        unresolved.last_fired_at(connection)
        unresolved.recorded_since(connection, "web1", "refused")
        unresolved.carried_since(connection, "web1", "3f2a9c1b00000000")
        unresolved.files_between(connection, timedelta(minutes=20), timedelta(minutes=15))
        unresolved.configs_between(connection, timedelta(minutes=20), timedelta(minutes=15))
        unresolved.killed_lately(connection, timedelta(minutes=20), timedelta(minutes=2), 2)
        unresolved.scheduled_and_waiting(connection)
        ticks.last_ticks(connection)
        for status in Status:
            listing.list_jobs(connection, Filter(statuses=(status,), since=hour), 50)
        for status in (Status.QUEUED, Status.FAILED, Status.RUNNING, Status.DEAD):
            listing.list_jobs(connection, Filter(statuses=(status,)), 50)
        listing.list_jobs(connection, Filter(since=hour), 50)
        shown_columns.one_job(connection, 1)
        listing.attempts_of(connection, 1, 20)
        listing.occurrences_of(connection, 1)
        listing.ledger(connection, 1, 20)
        history.attempts_since(connection, hour, 200)
        history.attempts_since(connection, hour, 200, outcomes=["failed", "lost"])
        history.not_run_since(connection, hour, 200)
        trail.entries(connection, ["sync"], since=hour, limit=200)
        trail.entries(connection, list(ACTS), since=hour, until=NOW, limit=200)
        history.named_jobs(connection, [1, 2, 3])
        history.code_changes(connection, hour, hour, NOW, 200)
        for kind in ("attempt", "occurrence"):
            history.newest_begin(connection, kind, 200, hour, history.FOREVER)
        begins = dict.fromkeys(("attempt", "death", "occurrence"), hour)
        history.tallies(connection, begins, 200)
        history.tallies(connection, begins, 200, schedule_ids=[1], names=["a"], until=NOW)
        history.tick_gaps(connection, hour, timedelta(minutes=3))
        history.host_gaps(connection, hour, hour, timedelta(minutes=3), 10)
        history.schedules_off(connection, hour, timedelta(minutes=3))
        history.clocks_set_back(connection, hour, timedelta(minutes=5))
        history.ticks_with_faults(connection, hour, NOW, 200)
    event.remove(database.engine, "before_cursor_execute", note)
    return sent


@pytest.mark.connects_as(OWNER)  # who may ANALYZE
def test_looking_reads_no_big_table_from_end_to_end(database: Database, rows: Rows) -> None:
    for name in ("a", "b", "c"):
        rows.schedule(name)
    fill(database)
    for status in ("queued", "failed", "running"):
        rows.job(status=status)
    statements = looks(database)
    assert len(statements) >= 20
    bad = {statement: lines for statement, sent in statements if (lines := whole_table_read(database, statement, sent))}
    assert not bad


def test_only_so_many_hosts_are_told_and_the_newest_tick_in_any_case(database: Database, rows: Rows) -> None:
    with database.write() as connection:
        common = {"pid": 1, "version": "0.1.0", "finished_at": None}
        connection.execute(
            insert(tables.ticks),
            [
                common | {"tick": f"t{n}", "host": f"pod{n:04}", "started_at": NOW - timedelta(minutes=1000 - n)}
                for n in range(ticks.HOSTS_AT_MOST + 50)
            ],
        )
    with database.read() as connection:
        found = ticks.last_ticks(connection)
    assert len(found) == ticks.HOSTS_AT_MOST + 1
    assert found[0].host == "pod0249"


# --- printing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("90m", ago(minutes=90)),
        ("7d", ago(days=7)),
        ("2026-03-29T01:30", datetime(2026, 3, 29, 0, 30, tzinfo=UTC)),
        ("2026-03-29T02:30", datetime(2026, 3, 29, 1, 0, tzinfo=UTC)),  # skipped: the clocks go from 02:00 to 03:00
        ("2025-10-26T02:30", datetime(2025, 10, 26, 0, 30, tzinfo=UTC)),  # comes twice
        ("2026-07-01", datetime(2026, 6, 30, 22, 0, tzinfo=UTC)),
        ("2026-07-01T02:00Z", datetime(2026, 7, 1, 2, 0, tzinfo=UTC)),
        ("2026-07-01T02:00+05:30", datetime(2026, 6, 30, 20, 30, tzinfo=UTC)),
        ("", None),
        ("soon", None),
        ("-1h", None),
        ("0001-01-01T00:00+14:00", None),
    ],
)
def test_since_is_a_duration_or_an_instant(text: str, instant: datetime | None) -> None:
    if instant is None:
        with pytest.raises(UsageError, match="--since"):
            since_instant(text, NOW, "Europe/Berlin")
    else:
        assert since_instant(text, NOW, "Europe/Berlin") == instant


def test_an_instant_in_the_hour_that_happens_twice_says_which_one() -> None:
    times = Times(datetime(2026, 10, 25, 3, 0, tzinfo=UTC), "Europe/Berlin")
    assert times.clock(datetime(2026, 10, 25, 0, 30, tzinfo=UTC)) == "02:30:00 +0200"
    assert times.clock(datetime(2026, 10, 25, 1, 30, tzinfo=UTC)) == "02:30:00 +0100"
    assert times.clock(datetime(2026, 10, 25, 2, 30, tzinfo=UTC)) == "03:30:00"


def test_a_table_keeps_its_columns_under_wide_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")  # a pipe's lines are not cut
    lines = table([["日本語", "x"], ["abc", "y" * 50]], ["name", "note"], room=30)
    assert lines == ["name    note", "日本語  x", "abc     " + "y" * 21 + "…"]


@pytest.mark.parametrize(
    ("text", "columns", "cut"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("e\u0301e\u0301ee", 3, "e\u0301e\u0301…"),
    ],
)
def test_a_text_is_cut_by_columns_not_by_characters(text: str, columns: int, cut: str) -> None:
    assert fit(text, columns) == cut


@pytest.mark.parametrize(("columns", "room"), [(None, 120), ("60", 60), ("20", 60), ("200", 200)])
def test_lines_in_a_pipe_are_long_enough_to_grep(columns: str | None, room: int) -> None:
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | (
        {"COLUMNS": columns} if columns else {}
    )
    program = "from cronjobs.desk.cli.output import width; print(width())"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert int(done.stdout) == room


@pytest.mark.parametrize("command", ["jobs list --json", "status", "history", "db sql"])
def test_a_reader_that_leaves_early_is_no_error(sqlite_migrated: str, tmp_path: Path, command: str) -> None:
    (tmp_path / "cronjobs.yaml").write_text(YAML.replace("@database@", f"sqlite:///{sqlite_migrated}"))
    program = [sys.executable, "-m", "cronjobs", *command.split()]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
