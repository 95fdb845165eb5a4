"""``status`` and ``jobs`` show the current state, on both databases, with a clock that stands still."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from support.lookingrows import HOLDER, NOW, Answer, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs.contrib.exec import spool
from cronjobs.engine.command import printing
from cronjobs.engine.database import tables
from cronjobs.engine.database.connection import Database
from cronjobs.engine.probe.state_files import spool_address
from cronjobs.engine.store.pruning import STRIPPED
from cronjobs.model import Status
from cronjobs.testing import FakeClock

DAY = timedelta(days=1)

pytestmark = pytest.mark.either  # tests of what is shown and typed; other tests run the statements on both databases


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


# --- status -----------------------------------------------------------------------------------------------------------

STATUS = """\
           project shop, environment production, tables 0012
now        2026-07-01 14:03:07 Europe/Berlin

TROUBLE    - critical unresolved:os:system: 1 due job waits: no handler or
             command "os:system" is registered here, since 14:02:57: "cronjobs
             explain --type os:system"
           - critical dead: 2 dead jobs that nobody has retried or dismissed,
             since 2026-06-28 14:03:07: "cronjobs jobs list --status dead"
           - warning late: 1 job has been due for more than 2m and has not
             started: the last ticks recorded no reason, since 14:01:07:
             "cronjobs jobs list --status queued"

causes     2 × (no message) - mail.send, 2026-06-28 14:03:07 to 2026-07-01
             13:54:07: "cronjobs jobs list --cause 701927dc53c7"

schedule        last      ago  took  usual  last 20               next in
nightly-report  retrying   6h    4m  1m30s  ▁▁▁▁▁▁▁▁▁▁▁▁▁░▁▁▁▁▁▄  18h
refresh-cache   none yet                                          6m53s
▁ succeeded  ▄ retrying  ░ skipped

running    id  type             host  for
            2  reports.nightly  web2   3m  OVERDUE: lease ended 2m ago
            1  mail.send        web1  12s  lease 48s left, failed 2 of 5
waiting    3 due, 3 in the future, 2 of them retries
           1 late; the oldest was due 4m ago (13:59:07)
queues     queue    due  oldest  trend
           default    3      4m
dead       2 in all, 1 in the last 24 h
paused     queue mail until 15:00:00, by hugo: provider down
ticks      host  began     took  version  file      did
           web1  6s ago   310ms  0.1.0    3f2a9c1b  3 succeeded, 1 dead
           web2  31s ago         0.1.0    3f2a9c1b  no end recorded yet
"""


def test_status_says_how_things_stand_on_one_screen_of_80_columns(
    cronjobs: Cronjobs, rows: Rows, database: Database
) -> None:
    rows.tick("web1", ago(minutes=1, seconds=6))
    rows.tick("web2", ago(seconds=31), finished_at=None, ended=None)
    rows.tick(did={"claimed": 4, "succeeded": 3, "dead": 1})
    rows.job(status="running", attempts=7, failures=2)
    overdue = {"locked_until": ago(minutes=2), "started_at": ago(minutes=3)}
    rows.job("reports.nightly", "running", locked_by=HOLDER.replace("web1", "web2"), **overdue)
    rows.job(run_at=ago(minutes=4))
    rows.job()
    rows.job("os:system")
    rows.job(run_at=NOW + timedelta(hours=1))
    rows.job(status="failed", failures=1, run_at=NOW + timedelta(minutes=3))
    rows.job(status="dead")
    rows.job(status="dead", finished_at=ago(days=3))
    rows.pause("queue", "mail", until=NOW.replace(hour=13, minute=0, second=0), by="hugo", why="provider down")
    nightly = rows.schedule("nightly-report", next_at=datetime(2026, 7, 2, 6, 15, tzinfo=UTC))
    rows.schedule("refresh-cache", next_at=NOW.replace(minute=10, second=0))
    rows.schedule("gone", status="retired", next_at=None)
    for days in range(22):
        came = ago(days=days, hours=6)
        status = "failed" if days == 0 else "succeeded"
        ended: dict[str, Any] = (
            {"last_failed_at": came} if days == 0 else {"finished_at": came + timedelta(minutes=1, seconds=30)}
        )
        job_id = rows.job(
            status=status, schedule="nightly-report", started_at=came, attempts=1, **ended, run_at=NOW + DAY
        )
        began, over = (came - timedelta(minutes=4), came) if days == 0 else (came, came + timedelta(seconds=90))
        rows.attempt(job_id, status, started_at=began, finished_at=over)
        rows.occurrence(nightly, came, **({"outcome": "skipped"} if days == 6 else {"job_id": job_id}))

    answer = cronjobs("status")

    assert "".join(answer.out.partition("           project")[1:]) == STATUS
    told = answer.out.partition("           project")[0]
    assert "".join(line[11:] for line in told.splitlines()) == str(database.address)
    assert answer.code == 0
    assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert len(answer.out.splitlines()) <= 34


def test_status_as_json_is_one_object_with_the_columns_names(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick(did={"succeeded": 1})
    rows.job(status="running")
    rows.job(queue="mail", run_at=ago(seconds=30))
    rows.schedule("nightly-report", next_at=NOW + timedelta(hours=1))
    seen = cronjobs("status", "--json").json
    assert list(seen) == [
        *("database", "project", "environment", "schema_revision", "config", "now", "timezone", "findings", "causes"),
        *(
            "causes_are_of_newest",
            "ticks",
            "running",
            "waiting",
            "unresolved",
            "more_unresolved",
            "dead",
            "pauses",
            "schedules",
            "run_by_cron",
        ),
    ]
    assert set(seen["ticks"][0]) == set(tables.ticks.c.keys())
    assert seen["ticks"][0]["started_at"] == ago(seconds=6).isoformat() == "2026-07-01T12:03:01.200000+00:00"
    assert seen["findings"] == []
    assert seen["running"]["total"] == 1
    assert seen["running"]["jobs"][0]["overdue"] is False
    assert seen["waiting"]["queues"] == [
        {"queue": "mail", "due": 1, "future": 0, "failed": 0, "late": 0, "paused": False}
        | {"max_waiting": None, "on_full": None, "dropped": 0, "oldest_due_at": ago(seconds=30).isoformat()}
        | {"change": 1, "change_over_s": 600}
    ]
    assert seen["schedules"] == [
        {"name": "nightly-report", "next_at": (NOW + timedelta(hours=1)).isoformat(), "paused": None, "last": None}
        | {"median_s": None, "p95_s": None, "strip": [], "runs": []}
    ]
    assert seen["dead"] == {"total": 0, "last_24h": 0, "last_1h": 0}


def trouble(answer: Answer) -> list[str]:
    return [found["kind"] for found in answer.json["findings"]]


def test_all_is_well_when_ticks_come_and_nothing_is_late(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick()
    rows.job(status="succeeded")
    assert "all well" in cronjobs("status").out


def test_it_is_trouble_when_no_tick_came_for_three_minutes_or_ever(
    cronjobs: Cronjobs, rows: Rows, clock: FakeClock
) -> None:
    assert trouble(cronjobs("status", "--json")) == ["no_tick"]
    rows.tick()
    assert trouble(cronjobs("status", "--json")) == []
    clock.advance(timedelta(minutes=2, seconds=50))
    assert trouble(cronjobs("status", "--json")) == []
    clock.advance(timedelta(seconds=10))
    assert trouble(cronjobs("status", "--json")) == ["no_tick"]


@pytest.mark.parametrize("pause", [("all", ""), ("queue", "mail")])
def test_jobs_that_are_paused_are_not_late(cronjobs: Cronjobs, rows: Rows, pause: tuple[str, str]) -> None:
    rows.tick()
    rows.job(queue="mail", run_at=ago(minutes=3))
    assert trouble(cronjobs("status", "--json")) == ["late"]
    rows.pause(*pause)
    assert trouble(cronjobs("status", "--json")) == []
    assert "1 due in paused queues: mail" in cronjobs("status").out


def test_the_database_of_another_project_is_trouble(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick()
    rows.belongs_to("shop", "staging")
    assert trouble(cronjobs("status", "--json")) == ["foreign"]


def test_status_works_with_a_broken_file_and_a_module_that_cannot_be_imported(
    cronjobs: Cronjobs, rows: Rows, tmp_path: Path
) -> None:
    rows.tick()
    (tmp_path / "looking_broken.py").write_text("print('loading')\nraise RuntimeError('no \\x1b[2J settings')\n")
    file = tmp_path / "cronjobs.yaml"
    file.write_text(file.read_text() + '  bad: {cron: "61 * * * *", job: mail.send}\nimports: [looking_broken]\n')
    answer = cronjobs("status", "--json")
    told = [found["text"] for found in answer.json["findings"]]
    assert told[0].startswith(r"module looking_broken: cannot be imported: RuntimeError: no \x1b[2J settings")
    assert "schedules.bad.cron: minute 61" in told[1]
    assert len(told) == 2
    assert "loading" in answer.err  # what a module prints is no data
    assert cronjobs("status").code == 0


def test_trouble_is_red_on_a_terminal_only(cronjobs: Cronjobs, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.tick()
    rows.job(status="dead")
    assert "\x1b" not in cronjobs("status").out
    monkeypatch.setattr(printing, "is_terminal", lambda *_: True)
    assert "\x1b[31m- critical dead: 1 dead job that nobody has retried or dismissed" in cronjobs("status").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in cronjobs("status").out


# --- jobs list --------------------------------------------------------------------------------------------------------


def test_jobs_list_prints_the_newest_first_in_every_status(cronjobs: Cronjobs, rows: Rows) -> None:
    for status in Status:
        rows.job(status=status)
    assert [job["status"] for job in cronjobs("jobs", "list", "--json").json] == [*reversed(Status)]


def test_jobs_list_json_has_the_columns_as_keys_and_instants_in_utc(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job(payload={"invoice_id": 42}, run_at=ago(minutes=1))
    [job] = cronjobs("jobs", "list", "--json").json
    assert list(job) == tables.jobs.c.keys()
    assert job["payload"] == {"invoice_id": 42}
    assert job["run_at"] == "2026-07-01T12:02:07.200000+00:00"
    assert job["finished_at"] is None


def test_a_job_that_will_be_tried_again_is_shown_as_retrying(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job("code.only", "failed", failures=3, last_error="boom")
    for word in ("failed", "retrying"):
        assert "code.only" in cronjobs("jobs", "list", "--status", word).out
    assert " retrying " in cronjobs("jobs", "list").out
    assert cronjobs("jobs", "show", "1").out.splitlines()[0].endswith("  retrying")
    assert cronjobs("jobs", "list", "--json").json[0]["status"] == "failed"
    wrong = cronjobs("jobs", "list", "--status", "broken")
    assert wrong.code == 2
    assert "'broken' is not one of" in wrong.err


def test_without_jobs_json_is_an_empty_array_and_text_says_so_on_stderr(cronjobs: Cronjobs, rows: Rows) -> None:
    assert cronjobs("jobs", "list", "--json").json == []
    answer = cronjobs("jobs", "list")
    assert (answer.code, answer.out, answer.err) == (0, "", "no job\n")


JOBS = """\
id  status     type             when         note
 7  queued     mail.send        in 4m10s     claimed before, queue mail
 6  cancelled  mail.send        9m ago
 5  dead       mail.send        9m ago       failed 5 of 5: 503 from the mail p…
 4  retrying   reports.nightly  in 4m10s     failed 3 of 10, lost 1 time: no di…
 3  succeeded  reports.nightly  9m ago       1m
 2  running    mail.send        for 12s      on web1, lease 48s left
 1  queued     code.only        due 10s ago
"""


def test_jobs_list_fits_into_80_columns_and_tells_tries_never_the_fence(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job("code.only")
    rows.job(status="running", attempts=77)
    rows.job("reports.nightly", "succeeded", attempts=77)
    later: dict[str, Any] = {"run_at": NOW + timedelta(minutes=4, seconds=10)}
    rows.job("reports.nightly", "failed", attempts=77, failures=3, losses=1, last_error="no disk", **later)
    rows.job(status="dead", attempts=77, failures=5, last_error="503 from the mail provider, try again later")
    rows.job(status="cancelled", attempts=77)
    rows.job(attempts=1, queue="mail", **later)  # snoozed
    assert cronjobs("jobs", "list").out == JOBS


def test_failures_of_a_type_that_only_code_knows_are_not_told_as_a_share(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.job("code.only", "failed", failures=3, last_error="boom")
    rows.job("code.only", "failed", failures=3, last_error="boom", max_attempts=4)
    told = [line.partition("failed ")[2] for line in cronjobs("jobs", "list").out.split("\n")]
    assert told[1:3] == ["3 of 4: boom", "3 times: boom"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", [8, 7, 6, 5, 4, 3, 2, 1]),
        ("--limit 2", [8, 7]),
        ("--type b", [8, 2]),
        ("--status queued", [2, 1]),
        ("--status failed", [3]),
        ("--status running", [5, 4]),
        ("--status dead", [6, 7]),  # those that ended last first
        ("--status succeeded --limit 1", [8]),
        ("--queue mail", [3]),
        ("--schedule nightly", [7]),
        ("--error-type ConnectionError", [7, 3]),
        ("--error-type ConnectionError --status dead", [7]),
        ("--since 1h", [8, 6, 5, 3, 1]),
        ("--since 2026-07-01T13:03:07", [8, 6, 5, 3, 1]),  # in the zone of the file
        ("--since 1h --status dead", [6]),
        ("--since 1h --status running", [5]),
        ("--since 1h --status queued", [1]),
        ("--since 1h --status succeeded", [8]),
        ("--status cancelled", []),
        ("--status queued --status dead", [7, 6, 2, 1]),  # newest first
        ("--status dead --status succeeded --since 1h", [8, 6]),
    ],
)
def test_jobs_list_filters(cronjobs: Cronjobs, rows: Rows, options: str, expected: list[int]) -> None:
    long_ago: dict[str, Any] = {"created_at": ago(days=2), "run_at": ago(days=2)}
    rows.job()  # 1
    rows.job("b", **long_ago)
    rows.job(status="failed", queue="mail", error_type="ConnectionError", last_failed_at=ago(minutes=5), **long_ago)
    rows.job(status="running", **long_ago | {"started_at": ago(hours=2)})
    rows.job(status="running", **long_ago)  # 5
    rows.job(status="dead", **long_ago)
    rows.job(
        status="dead",
        schedule="nightly",
        error_type="ConnectionError",
        **long_ago | {"started_at": ago(days=2), "finished_at": ago(days=1)},
    )
    rows.job("b", "succeeded")
    found = cronjobs("jobs", "list", "--json", *options.split())
    assert [job["id"] for job in found.json] == expected


def test_jobs_list_says_that_there_are_more_than_it_shows(cronjobs: Cronjobs, rows: Rows) -> None:
    for _ in range(3):
        rows.job()
    assert "raise --limit for more" in cronjobs("jobs", "list", "--limit", "2").err
    assert cronjobs("jobs", "list", "--limit", "3").err == ""


def test_a_since_that_cannot_be_meant_is_refused(cronjobs: Cronjobs, rows: Rows) -> None:
    answer = cronjobs("jobs", "list", "--since", "yesterday\x1b[2J")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(r"--since: 'yesterday\\x1b[2J' is neither a duration (90m, 24h, 7d) nor an instant")


# --- jobs show --------------------------------------------------------------------------------------------------------


def test_jobs_show_tells_the_whole_life_of_a_job(cronjobs: Cronjobs, rows: Rows) -> None:
    schedule = rows.schedule("nightly-report")
    due = ago(minutes=30)
    job_id = rows.job(
        status="failed",
        schedule="nightly-report",
        scheduled_for=due,
        attempts=4,
        failures=1,
        run_at=NOW + timedelta(minutes=2, seconds=10),
        payload={"region": "us"},
        enqueued_by="schedule nightly-report",
    )
    rows.occurrence(schedule, due, job_id=job_id)
    rows.occurrence(schedule, ago(hours=1), "coalesced", first_for=ago(hours=3), count=3, job_id=job_id)
    rows.occurrence(schedule, ago(minutes=3), "skipped", job_id=job_id, reason="job 1 was still running")
    rows.attempt(job_id, "failed", attempt=2, error="boom", error_type="OSError", traceback="Trace\n  back", worker="3")
    rows.attempt(job_id, "lost", attempt=4, output="line 1\nline 2\n", finished_at=ago(minutes=8))
    out = cronjobs("jobs", "show", str(job_id)).out
    assert out.startswith(f"job {job_id}  mail.send  retrying\nnext       Job {job_id} waits for another try")
    assert " ".join(out.split()[5:32]) == (
        f"Job {job_id} waits for another try (failed 1 of 5), due at 14:05:17, in 2m10s. "
        "When it is due, it will still wait: no tick has ever"
    )
    assert "\ntries      failed 1 of 5\n" in out
    assert "nightly-report, for 30m ago (13:33:07)" in out
    assert "the job also stands for 3 more occurrences, from 11:03:07 to 13:03:07" in out
    assert "1 occurrence skipped because of the job" in out
    assert 'payload    {"region": "us"}' in out
    assert out.endswith(
        """
attempt 2  failed  10m ago (13:53:07), took 1m, on web1, worker 3
  OSError: boom
  traceback
    Trace
      back

attempt 4  lost  10m ago (13:53:07), found 2m after it began, on web1
  output
    line 1
    line 2
"""
    )


def test_jobs_show_as_json_is_one_object(cronjobs: Cronjobs, rows: Rows) -> None:
    job_id = rows.job(status="dead", failures=5, last_error="boom")
    rows.attempt(job_id, "failed", error="boom")
    seen = cronjobs("jobs", "show", str(job_id), "--json").json
    assert list(seen) == [*tables.jobs.c.keys(), "tries", "next", "occurrences", "runs"]
    assert seen["tries"] == {"failed": 5, "of": 5}
    assert seen["next"] == (
        f"Job {job_id} died at 13:54:07 after it failed 5 of 5 tries. "
        f'It runs again only if someone types "cronjobs jobs retry {job_id}".'
    )
    assert list(seen["runs"][0]) == tables.job_runs.c.keys()


def test_jobs_show_says_what_was_pruned(cronjobs: Cronjobs, rows: Rows) -> None:
    kept = {"idempotency_key": "invoice:42", "meta": json.loads(STRIPPED)}
    job_id = rows.job(status="succeeded", attempts=2, finished_at=ago(days=9), payload={}, **kept)
    out = cronjobs("jobs", "show", str(job_id)).out
    assert "payload    pruned\n" in out
    assert "stripped" not in out
    assert out.endswith("\nthe attempts of this job are pruned\n")
    cancelled = rows.job(status="cancelled", attempts=0, finished_at=ago(days=9))
    assert cronjobs("jobs", "show", str(cancelled)).out.endswith("\nthis job had no attempt\n")


def test_an_unknown_job_is_one_sentence_and_exit_1(cronjobs: Cronjobs, rows: Rows) -> None:
    answer = cronjobs("jobs", "show", "404")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "there is no job 404: none was ever enqueued here\n"
    assert cronjobs("jobs", "show", "9" * 30).code == 2


# --- texts that anybody wrote -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_row_holds_cannot_act_on_a_terminal(cronjobs: Cronjobs, rows: Rows) -> None:
    evil = "a\x1b[2J\x9b31m\u202eb\nFORGED line\r\x07"
    rows.tick(host=evil, ended=evil, did={"succeeded": 1})
    rows.pause("queue", evil, by=evil, why=evil)
    schedule = rows.schedule(evil, definition={"cron": evil, "job": evil, "timezone": evil, evil: evil})
    rows.occurrence(schedule, ago(minutes=1), "skipped", reason=evil)
    running = {"locked_by": evil, "payload": {evil: evil}, "meta": {"k": evil}, "enqueued_by": evil}
    job_id = rows.job(evil, "running", queue=evil, schedule=evil, scheduled_for=NOW, last_error=evil, **running)
    rows.job(evil, "dead", last_error=evil, failures=1)
    rows.job(evil)
    texts = dict.fromkeys(("error", "error_type", "traceback", "output", "worker", "runner"), evil)
    rows.attempt(job_id, "failed", **texts)
    for command in (
        "status",
        "jobs list",
        "jobs list --group-by error",
        f"jobs show {job_id}",
        "schedules list",
        f"schedules show|{evil}",
        "schedules show|none" + evil,
        "history",
    ):
        for option in ((), ("--json",)):
            words, _, name = command.partition("|")
            answer = cronjobs(*words.split(), *([name] if name else []), *option)
            said = answer.out + answer.err
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", said), (command, option)
            if not command.startswith("jobs show"):  # there, indented, a traceback keeps its lines
                assert not re.search("^FORGED", said, re.MULTILINE), (command, option)
            assert not option or answer.code or answer.json is not None


def test_a_payload_that_nobody_can_read_is_shown_as_such(cronjobs: Cronjobs, rows: Rows, database: Database) -> None:
    # PostgreSQL refuses NaN itself, and more digits than Python reads until the job was claimed.
    payload = '{"a": NaN}' if database.is_sqlite else '{"a": ' + "1" * 5000 + "}"
    job_id = rows.job(attempts=1)
    with database.write() as connection:
        connection.execute(text(f"UPDATE cronjobs_jobs SET payload = '{payload}'"))
    why = "not JSON" if database.is_sqlite else "has a number beyond ±1e400"
    assert re.search(f"payload    cannot be read: .*{re.escape(why)}", cronjobs("jobs", "show", str(job_id)).out)
    assert "unreadable" in cronjobs("jobs", "show", str(job_id), "--json").json["payload"]


@pytest.mark.slow
def test_trouble_says_since_when_and_what_to_type_in_status_and_in_check_live(cronjobs: Cronjobs, rows: Rows) -> None:
    rows.tick()
    rows.job(status="dead", finished_at=ago(hours=9))
    rows.schedule("nightly-report", next_at=ago(minutes=40))
    dead = '1 dead job that nobody has retried or dismissed, since 05:03:07: "cronjobs jobs list --status dead"'
    behind = (
        'no tick has fired the due occurrences of nightly-report, since 13:23:07: "cronjobs explain nightly-report"'
    )
    answer = cronjobs("check", "--live", "--json")
    assert answer.code == 1
    assert {dead, behind} <= set(answer.json["live"])
    told = " ".join(cronjobs("status").out.split())
    assert dead in told
    assert behind in told
    found = {trouble["kind"]: trouble for trouble in cronjobs("status", "--json").json["findings"]}
    assert found["behind"]["since"] == ago(minutes=40).isoformat()
    assert found["dead"]["command"] == "cronjobs jobs list --status dead"


def test_status_says_that_runs_of_exec_wait_on_this_host(
    cronjobs: Cronjobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for file in (tmp_path / "cronjobs.yaml", tmp_path / "other.yaml"):
        assert spool.put(spool_address(str(file), None), {"began": 1.0, "token": "t"}) is None
    said = "runs of cronjobs exec on this host that are not in the database yet: 1\n"
    assert cronjobs("status").err == said
    assert cronjobs("status", "--json").err == ""
    (tmp_path / "cronjobs.yaml").write_text("database: sqlite:////nowhere/jobs.db\n")
    away = cronjobs("status")
    assert (away.code, said in away.err) == (4, True), away.err


@pytest.mark.parametrize(
    ("locked_by", "how"),
    [("web1:b:4026530000:4711:12:token", ": kill 4711 on web1"), ("web1:b:1:1:1:t", ""), ("by hand", "")],
)
def test_a_running_run_of_exec_says_who_can_stop_it_and_where_its_output_is(
    cronjobs: Cronjobs, rows: Rows, locked_by: str, how: str
) -> None:
    job_id = rows.job("exec:line", "running", locked_by=locked_by)
    is_exec = f"job {job_id} is a run of cronjobs exec"
    assert cronjobs("jobs", "cancel", str(job_id)).err == f"{is_exec}: only a signal to exec can stop it{how}\n"
    assert cronjobs("jobs", "tail", str(job_id)).err == f"{is_exec}, which records output when the command ends\n"
