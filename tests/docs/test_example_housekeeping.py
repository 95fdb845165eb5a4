"""``examples/housekeeping`` as cron would run it: real ticks, a real mail server, effects counted where they arrive.

The tests make a schedule due by setting its watermark back in the database, so that they need not wait for 08:00.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import socketserver
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from sqlalchemy import create_engine, delete, insert, select, text, update
from support.postgres import OWNER

from cronjobs import fire_times
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.column_types import to_microseconds
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import jobs, occurrences, schedules

# The app makes its tables itself, as the example's user does.
pytestmark = [pytest.mark.slow, pytest.mark.either, pytest.mark.connects_as(OWNER)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "housekeeping"
BERLIN = ZoneInfo("Europe/Berlin")
WORKERS = 4  # the configuration's default
PAGE = 7  # instead of 200: a few users are several pages

# Imported by the tick beside the example's own module: notes what each transaction of the app wrote, and can end the
# process between two of them (ACT=SIGKILL:1, after the first).
WATCH = f"""
import json, os, signal, threading
import jobs
from app import HERE, db
from cronjobs.engine.jobs.context import StopSignal
from sqlalchemy import event

jobs.PAGE = {PAGE}
name, _, after = os.environ.get("ACT", ":0").partition(":")
stopped, here, committed, set_stop = threading.Event(), threading.local(), [], StopSignal.set

def note_stop(self, reason):
    set_stop(self, reason)
    stopped.set()

StopSignal.set = note_stop

@event.listens_for(db, "begin")
def begin(connection):
    here.wrote = {{}}
    if name and len(committed) == int(after):
        os.kill(os.getpid(), getattr(signal, name))
        stopped.wait(20)

@event.listens_for(db, "after_cursor_execute")
def executed(connection, cursor, statement, parameters, context, executemany):
    if statement.split()[:2] in (["INSERT", "INTO"], ["DELETE", "FROM"]):
        verb, _, table = statement.split()[:3]
        rows = cursor.rowcount if verb == "DELETE" else 1
        here.wrote[f"{{verb}} {{table}}"] = here.wrote.get(f"{{verb}} {{table}}", 0) + rows

@event.listens_for(db, "commit")
def commit(connection):
    if here.wrote:
        committed.append(here.wrote)
        with (HERE / "transactions").open("a") as file:
            file.write(json.dumps(here.wrote) + "\\n")
"""


class Post(socketserver.ThreadingTCPServer):
    """A mail server: ``mails`` are the Message-IDs of what it accepted, ``answers`` what it says to a recipient first.

    ``on_mail`` is called with their number when a mail is in, before the sender is told so.
    """

    daemon_threads = True
    request_queue_size = 50

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.mails: list[str] = []
        self.answers: dict[str, list[bytes]] = {}
        self.on_mail: Callable[[int], object] = lambda count: None

    def ids(self, kind: str) -> Counter[str]:
        return Counter(mail for mail in self.mails if mail.startswith(kind))


class Conversation(socketserver.StreamRequestHandler):
    server: Post

    def handle(self) -> None:
        with suppress(ConnectionError):  # a tick that was killed
            self.converse()

    def converse(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            match line.split(b":")[0].strip().upper().split()[0]:
                case b"RCPT":
                    answers = self.server.answers.get(line.decode().split("<")[1].split(">")[0], [])
                    self.wfile.write(answers.pop(0) if answers else b"250 ok\r\n")
                case b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    message = b"".join(iter(self.rfile.readline, b".\r\n")).decode()
                    [message_id] = re.findall(r"^Message-ID:\s+<(.+)@shop\.example>", message, re.MULTILINE)
                    self.server.mails.append(message_id)
                    self.server.on_mail(len(self.server.mails))
                    self.wfile.write(b"250 accepted\r\n")
                case b"QUIT":
                    self.wfile.write(b"221 bye\r\n")
                    return
                case _:
                    self.wfile.write(b"250 ok\r\n")


@contextmanager
def serving(server: socketserver.TCPServer) -> Iterator[None]:
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield
        finally:
            server.shutdown()


@pytest.fixture
def post() -> Iterator[Post]:
    server = Post()
    with serving(server):
        yield server


class Shop:
    """A copy of the example with its database, and the commands that a person or cron types in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        shutil.copytree(EXAMPLE, folder)
        (folder / "watch.py").write_text(WATCH)
        file = folder / "cronjobs.yaml"
        configured = file.read_text().replace("imports: [jobs]", "imports: [watch, jobs]")
        assert "watch" in configured
        file.write_text(configured)
        self.schedules = yaml.safe_load(configured)["schedules"]
        self.database = Database(parse_url(url))
        bare = {name: value for name, value in os.environ.items() if not name.startswith("CRONJOBS_")}
        self.env = bare | {"DATABASE_URL": url.replace("postgresql://", "postgresql+psycopg://")}

    def python(self, *arguments: str, code: int = 0, **env: str) -> None:
        done = subprocess.run(
            # A pool's connections end with the process, which is as it should be.
            [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", *arguments],
            cwd=self.folder,
            env=self.env | env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr

    def seed(self, *, users: int = 3, sessions: int = 0, today: str | None = None) -> None:
        more = ["--today", today] if today else []
        self.python("seed.py", f"--users={users}", f"--sessions={sessions}", *more)
        self.tick()  # the schedules become known; a new one never fires for the past
        with self.database.write() as connection:  # and none comes due by itself while the test runs
            connection.execute(update(schedules).values(next_at=datetime.now(UTC) + timedelta(days=1)))

    def tick(self, code: int = 0, **env: str) -> None:
        self.python("-m", "cronjobs", "run-due", "--fail-on=never", code=code, **env)

    def begin_tick(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "cronjobs", "run-due"], cwd=self.folder, env=self.env)

    def ticks(self) -> None:
        """Tick until nothing is due."""
        for _ in range(10):
            self.tick()
            if not self.value("SELECT count(*) FROM cronjobs_jobs WHERE status IN {waiting} AND run_at <= {now}"):
                return
        raise AssertionError("there is always something due")

    # --- time ---------------------------------------------------------------------------------------------------------

    def newest(self, schedule: str) -> datetime:
        """The last occurrence of a cron schedule until now, in its zone."""
        now = datetime.now(UTC)
        times = fire_times(self.schedules[schedule]["cron"], "Europe/Berlin", now - timedelta(days=8))
        return max(takewhile(lambda instant: instant <= now, times)).astimezone(BERLIN)

    def come_due(self, schedule: str, since: datetime | None = None) -> None:
        """Make the newest occurrence due, as if no tick had run since shortly before it, or since *since*."""
        if since is None:
            every = "every" in self.schedules[schedule]
            since = datetime.now(UTC) - timedelta(minutes=10) if every else self.newest(schedule) - timedelta(seconds=1)
        with self.database.write() as connection:
            connection.execute(
                update(schedules).where(schedules.c.name == schedule).values(seen_until=since, next_at=since)
            )

    def forget_occurrences(self, schedule: str) -> None:
        with self.database.write() as connection:
            known = select(schedules.c.id).where(schedules.c.name == schedule).scalar_subquery()
            connection.execute(delete(occurrences).where(occurrences.c.schedule_id == known))

    def retries_come_due(self) -> None:
        with self.database.write() as connection:
            connection.execute(update(jobs).where(jobs.c.status == "failed").values(run_at=datetime.now(UTC)))

    def leases_run_out(self) -> None:
        with self.database.write() as connection:
            past = datetime.now(UTC) - timedelta(seconds=1)
            connection.execute(update(jobs).where(jobs.c.status == "running").values(locked_until=past))

    # --- what is there ------------------------------------------------------------------------------------------------

    def rows(self, statement: str) -> list[Any]:
        now = str(to_microseconds(datetime.now(UTC))) if self.database.is_sqlite else "statement_timestamp()"
        with self.database.read() as connection:
            return list(connection.execute(text(statement.format(now=now, waiting="('queued', 'failed')"))).all())

    def execute(self, statement: str, **values: Any) -> None:
        with self.database.write() as connection:
            connection.execute(text(statement), values)

    def value(self, statement: str) -> Any:
        [[value]] = self.rows(statement)
        return value

    def statuses(self, job_type: str) -> Counter[str]:
        return Counter(
            row.status for row in self.rows(f"SELECT status FROM cronjobs_jobs WHERE job_type = '{job_type}'")
        )

    def wrote(self, what: str) -> list[int]:
        """How many rows each committed transaction of the app that did *what* wrote."""
        transactions = [json.loads(line) for line in (self.folder / "transactions").read_text().splitlines()]
        return [wrote[what] for wrote in transactions if what in wrote]


@pytest.fixture
def shop(tmp_path: Path, database_url: str, post: Post) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop", database_url)
    shop.env |= {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(post.server_address[1])}
    yield shop
    shop.database.close()


# --- invoice reminders ------------------------------------------------------------------------------------------------


def reminders_owed(shop: Shop) -> Counter[str]:
    """By the example's seed, as Message-IDs: the fifth, sixth … invoice is 7, 13, 14, 29, 30 or 45 days overdue."""
    today, owed = shop.newest("invoice-reminders").date(), Counter[str]()
    for invoice in shop.rows("SELECT id, due_on FROM invoices WHERE paid_on IS NULL"):
        overdue = (today - datetime.fromisoformat(str(invoice.due_on)).date()).days
        if overdue >= 7:
            step = 30 if overdue >= 30 else 14 if overdue >= 14 else 7
            owed[f"invoice-reminder.{invoice.id}.{step}"] += 1
    assert {"7", "14", "30"} == {key.rpartition(".")[2] for key in owed}
    return owed


def test_an_overdue_invoice_is_reminded_once_though_four_ticks_run_at_once(shop: Shop, post: Post) -> None:
    shop.seed(users=10, today=str(shop.newest("invoice-reminders").date()))
    owed = reminders_owed(shop)
    assert len(owed) > 3 * PAGE

    shop.come_due("invoice-reminders")
    with ThreadPoolExecutor(4) as pool:
        for tick in [pool.submit(shop.tick) for _ in range(4)]:
            tick.result()
    shop.ticks()
    assert post.ids("invoice-reminder") == owed
    assert max(shop.wrote("INSERT cronjobs_jobs")) == PAGE
    assert shop.value("SELECT count(*) FROM reminders") == len(owed)

    # The same morning once more, by plain SQL, by somebody who is not sure that it ran.
    shop.execute(
        "INSERT INTO cronjobs_jobs (job_type, scheduled_for) "
        "SELECT job_type, scheduled_for FROM cronjobs_jobs WHERE job_type = 'invoices.remind'"
    )
    shop.ticks()
    assert shop.statuses("invoices.remind") == {"succeeded": 2}
    assert post.ids("invoice-reminder") == owed


def test_reminders_survive_kill_9_and_only_a_mail_in_flight_goes_out_twice(shop: Shop, post: Post) -> None:
    shop.seed(users=10, today=str(shop.newest("invoice-reminders").date()))
    owed = reminders_owed(shop)
    shop.come_due("invoice-reminders")

    shop.tick(-signal.SIGKILL, ACT="SIGKILL:1")  # while reminders are asked for: the first page is committed
    assert shop.value("SELECT count(*) FROM reminders") == PAGE
    assert shop.statuses("invoices.send_reminder") == {"queued": PAGE}

    # While they are mailed: the server has the fifth mail, and before it can say so the tick is gone.
    post.on_mail = lambda count: os.kill(tick.pid, signal.SIGKILL) if count == 5 else None
    shop.leases_run_out()
    tick = shop.begin_tick()
    assert tick.wait(60) == -signal.SIGKILL

    shop.leases_run_out()
    shop.ticks()
    mailed = post.ids("invoice-reminder")
    assert mailed.keys() == owed.keys()
    lost = shop.rows(
        "SELECT j.payload, count(*) AS times FROM cronjobs_jobs j JOIN cronjobs_job_runs r ON r.job_id = j.id "
        "WHERE j.job_type = 'invoices.send_reminder' AND r.outcome = 'lost' GROUP BY j.id"
    )
    in_flight = Counter({_message_id(row.payload): row.times for row in lost})
    # A worker goes on to the next mail while the end of the one before is written: five, and what others were sending.
    assert 1 <= (mailed - owed).total() <= 5 + WORKERS - 1
    assert mailed - owed <= in_flight
    assert shop.statuses("invoices.send_reminder") == {"succeeded": len(owed)}


def _message_id(payload: Any) -> str:
    invoice = payload if isinstance(payload, dict) else json.loads(payload)
    return f"invoice-reminder.{invoice['invoice_id']}.{invoice['days_overdue']}"


# --- the weekly report ------------------------------------------------------------------------------------------------


@pytest.mark.either
def test_the_weekly_report_goes_out_once_per_user_and_week(shop: Shop, post: Post) -> None:
    shop.seed(users=3 * PAGE)
    post.answers["user2@example.com"] = [b"451 4.2.0 try again later\r\n"]
    post.answers["user5@example.com"] = [b"550 5.1.1 no such user\r\n"] * 9
    monday = shop.newest("weekly-report")
    assert (monday.weekday(), monday.hour) == (0, 7)
    week, week_before = (f"{day:%G-W%V}" for day in (monday, monday - timedelta(days=7)))
    users = [user for user in range(1, 3 * PAGE + 1) if user != 5]
    wanted = Counter(f"weekly-report.{user}.{week}" for user in users)
    late = Counter([f"weekly-report.2.{week}"])

    shop.come_due("weekly-report")
    shop.ticks()
    assert post.ids("weekly-report") == wanted - late
    assert shop.statuses("reports.send_weekly") == {"succeeded": 3 * PAGE - 2, "failed": 1, "dead": 1}
    errors = {row.status: row.last_error for row in shop.rows("SELECT * FROM cronjobs_jobs WHERE failures > 0")}
    assert errors["dead"] == "user5@example.com was refused: 550 5.1.1 no such user"
    assert "451" in errors["failed"]

    shop.retries_come_due()
    shop.ticks()
    assert post.ids("weekly-report") == wanted
    assert max(shop.wrote("INSERT cronjobs_jobs")) == PAGE

    # Monday's occurrence again, as if the ledger had never heard of it.
    shop.forget_occurrences("weekly-report")
    shop.come_due("weekly-report")
    shop.ticks()
    assert shop.statuses("reports.weekly") == {"succeeded": 2}
    assert post.ids("weekly-report") == wanted

    # The Monday before it, very late: the week is the occurrence's.
    with shop.database.write() as connection:
        earlier = {"schedule": "weekly-report", "scheduled_for": monday - timedelta(days=7)}
        connection.execute(insert(jobs).values(job_type="reports.weekly", **earlier))
    shop.ticks()
    assert post.ids("weekly-report") == wanted + Counter(f"weekly-report.{user}.{week_before}" for user in users)


# --- the night --------------------------------------------------------------------------------------------------------


def test_expired_sessions_go_in_bounded_batches_and_a_stop_loses_nothing(shop: Shop) -> None:
    shop.seed(sessions=50_000)
    sessions = "SELECT count(*) FROM sessions"
    assert shop.value(sessions) == 50_200
    shop.come_due("expired-sessions")

    # A deploy: SIGTERM after the third batch. The fourth has begun and is finished, then ctx.check() ends it.
    shop.tick(128 + signal.SIGTERM, ACT="SIGTERM:3")
    assert shop.value(sessions) == 46_200
    assert shop.statuses("sessions.clean_up") == {"queued": 1}

    shop.ticks()
    assert shop.value(sessions) == 200
    assert shop.value(f"{sessions} WHERE expires_at > {datetime.now(UTC).timestamp():.0f}") == 200
    batches = shop.wrote("DELETE sessions")
    assert (max(batches), sum(batches)) == (1000, 50_000)
    assert shop.statuses("sessions.clean_up") == {"succeeded": 1}


def test_old_files_go_and_the_back_up_can_be_restored(
    shop: Shop, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.seed(users=4)
    if not shop.database.is_sqlite:  # pg_dump of the server's own version
        server = request.getfixturevalue("postgres_server")
        shop.env["PATH"] = f"{server.bin}:{shop.env['PATH']}"
    for schedule in ("old-files", "backup"):
        shop.come_due(schedule)
    shop.ticks()

    assert [file.name for file in (shop.folder / "tmp").iterdir()] == ["export-of-today.csv"]
    night = shop.newest("backup").date()
    [file] = (shop.folder / "backups").iterdir()
    assert file.stem == f"shop-{night}"
    assert file.stat().st_mode & 0o077 == 0
    if shop.database.is_sqlite:
        restored = f"sqlite:///{file}"
    else:
        restored = request.getfixturevalue("new_postgres_url")()
        subprocess.run([server.bin / "pg_restore", f"--dbname={restored}", "--exit-on-error", file], check=True)
    engine = create_engine(parse_url(restored).url)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM users")).scalar() == 4
        assert connection.execute(text("SELECT count(*) FROM invoices")).scalar() == 13
    engine.dispose()


# --- the cache, and the time of day -----------------------------------------------------------------------------------


class Rates(http.server.BaseHTTPRequestHandler):
    """Answers 503 to the first who asks, then the rates."""

    asked = 0

    def do_GET(self) -> None:
        Rates.asked += 1
        self.send_response(503 if Rates.asked == 1 else 200)
        self.end_headers()
        self.wfile.write(b'{"USD": 1.1}')

    def log_message(self, *_: object) -> None:
        pass


def test_rates_that_cannot_be_fetched_are_fetched_later(shop: Shop) -> None:
    Rates.asked = 0
    shop.seed()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rates)
    with serving(server):
        shop.env["RATES_URL"] = f"http://127.0.0.1:{server.server_address[1]}/"
        shop.come_due("exchange-rates")
        shop.tick()
        [job] = shop.rows("SELECT * FROM cronjobs_jobs WHERE job_type = 'rates.refresh'")
        assert (job.status, job.failures) == ("failed", 1)
        assert "503" in job.last_error
        assert shop.rows("SELECT * FROM cache") == []

        shop.retries_come_due()
        shop.ticks()
    assert shop.statuses("rates.refresh") == {"succeeded": 1}
    assert Rates.asked == 2
    assert shop.value("SELECT value FROM cache WHERE name = 'rates'") == '{"USD": 1.1}'


def test_it_is_eight_o_clock_in_summer_and_in_winter(shop: Shop) -> None:
    """A long outage: the ledger says what was missed, each day once across the clock changes, and runs the newest."""
    shop.seed()
    for began, first in (("2026-01-10T12:00Z", "2026-01-11T07:00Z"), ("2026-07-10T12:00Z", "2026-07-11T06:00Z")):
        shop.forget_occurrences("invoice-reminders")
        shop.come_due("invoice-reminders", since=datetime.fromisoformat(began))
        shop.ticks()
        with shop.database.read() as connection:
            missed, enqueued = connection.execute(select(occurrences).order_by(occurrences.c.last_for)).all()
        assert (missed.outcome, enqueued.outcome) == ("missed", "enqueued")
        assert missed.first_for == datetime.fromisoformat(first)
        assert enqueued.last_for == shop.newest("invoice-reminders")
        for instant in (missed.first_for, missed.last_for, enqueued.last_for):
            assert instant.astimezone(BERLIN).strftime("%H:%M") == "08:00"
        assert missed.count == (missed.last_for.date() - missed.first_for.date()).days + 1


# --- the README -------------------------------------------------------------------------------------------------------


def test_the_commands_of_the_readme_print_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "housekeeping"
    shutil.copytree(EXAMPLE, folder)
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("CRONJOBS_", "SMTP_"))}
    bare |= {"PATH": f"{Path(sys.executable).parent}:{bare['PATH']}"}
    bare.pop("DATABASE_URL", None)
    readme = (EXAMPLE / "README.md").read_text()
    assert (EXAMPLE / "crontab.before").read_text().partition("\n0 8")[2] in readme
    blocks = re.findall(r"^```console\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    steps = [step.partition("\n") for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE) if step]
    assert len(steps) >= 5
    for command, _, expected in steps:
        done = subprocess.run(command, shell=True, cwd=folder, env=bare, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        wanted, printed = _lines(expected), _lines(done.stdout + done.stderr)
        some = wanted.pop("…", 0)  # stands for more lines
        assert wanted <= printed if some else wanted == printed, (command, done.stdout)


def _lines(output: str) -> Counter[str]:
    """Workers finish in any order; numbers, spans and their units are different each day and on each machine."""
    return Counter(
        re.sub(r"\d[\d,.]*(m?s\b)?", "0", re.sub(r"fingerprint=\w+", "", line)) for line in output.splitlines()
    )
