"""``db copy``: whatever interrupts the copy at any moment, at most one side is open, and no job is lost."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, select
from sqlalchemy.engine import Engine
from support import interleaved
from support.cases import judge
from support.cluster import Cluster
from support.copied import everything, fill
from support.databases import opened, until
from support.interleaved import stepped
from support.postgres import OWNER
from support.project import Project

from cronjobs.contrib.copy import copying
from cronjobs.contrib.copy import statements as store
from cronjobs.contrib.copy.cli import STAYS_CLOSED
from cronjobs.contrib.copy.copying import copy
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database import connection as connecting
from cronjobs.engine.database import retrying, sqlite_turns
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import audit, meta, metadata
from cronjobs.engine.jobs.enqueue import enqueue
from cronjobs.engine.rules.lease import Finish, Lease
from cronjobs.engine.schema import migrations
from cronjobs.engine.store import claims, leases
from cronjobs.engine.store.meta import FENCE, MOVED, adopt, read_meta, reopen
from cronjobs.errors import CronjobsError, DatabaseBusy
from cronjobs.model import Status

pytestmark = pytest.mark.connects_as(OWNER)

SHOP = Settings(file=Path("cronjobs.yaml"), folder=Path(), project="shop", environment="production")
POINTS = 130  # statements and commits of a copy, roughly: a later point interrupts nothing


class Sides:
    """A filled old side and an empty new side, which can be made again and again."""

    def __init__(self, folder: Path, new: str) -> None:
        self.file, self.template, self.new = folder / "jobs.db", folder / "template.db", new
        self.old = f"sqlite:///{self.file}"

    def begin(self) -> None:
        for left in self.file.parent.glob("jobs.db*"):
            left.unlink()
        shutil.copy(self.template, self.file)
        with opened(self.new) as database, database.write() as connection:
            for table in reversed(metadata.sorted_tables):
                if table is not meta:
                    connection.execute(table.delete())
            connection.execute(meta.update().values(project="", environment="", pruned_at=None))

    def copy(self, **options: Any) -> Any:
        with opened(self.old) as old, opened(self.new) as new:
            return copy(old, new, SHOP, actor="ada", **options)

    def go_back(self) -> None:
        with opened(self.old) as database, database.write() as connection:
            reopen(connection, "shop", "production", "ada")

    def enqueue(self) -> None:
        with opened(self.old) as database, database.write() as connection:
            enqueue(connection, "t.work")

    def run_one(self) -> None:
        """Run a job of the old side, if that side is open."""
        admission = claims.ClaimFilter(known=["t.work"], fitting=["t.work"], remaining_s=50)
        with opened(self.old) as database, suppress(CronjobsError), database.write() as connection:
            for job in claims.claim(
                connection, limit=1, locked_by="h:1:1:1:1:t", lease=timedelta(minutes=1), admission=admission
            ).jobs:
                end = Finish(Lease(job.id, job.attempt, "h:1:1:1:1:t"), Status.SUCCEEDED, 0, 0, 0, "succeeded")
                leases.finish(connection, [end])

    def old_is_open(self) -> bool:
        with opened(self.old) as database, database.read() as connection:
            is_open = not read_meta(connection).environment.startswith(MOVED)
            fences = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name GLOB ?"
            fenced = connection.exec_driver_sql(fences, (f"{FENCE}*",)).scalar_one()
        assert is_open == (not fenced), "half closed"
        return is_open

    def marks(self) -> int:
        """How many marks of copies the new side has."""
        with opened(self.new) as database, database.read() as connection:
            return len(connection.execute(select(audit.c.id).where(audit.c.action == copying.ACTION)).all())

    def both(self) -> tuple[dict[str, Any], dict[str, Any]]:
        with opened(self.old) as old, opened(self.new) as new:
            return everything(old), everything(new)


@pytest.fixture
def sides(tmp_path: Path, sqlite_migrated: str, postgres_migrated: str, monkeypatch: pytest.MonkeyPatch) -> Sides:
    made = Sides(tmp_path, postgres_migrated)
    with opened(f"sqlite:///{sqlite_migrated}") as old:
        with old.write() as connection:
            adopt(connection, "shop", "production", None)
        fill(old)
    shutil.copy(sqlite_migrated, made.template)
    monkeypatch.setattr(connecting, "SETTLE_S", 0.0)
    return made


class Interruption:
    """A failure at one point of a copy; if ``again`` is set, it happens once more so many points later."""

    KINDS = ("ctrl-c", "fault", "refused", "cut", "cut and away")

    def __init__(self, chance: random.Random, server: str) -> None:
        self.kind = chance.choice(self.KINDS)
        # An interruption at COMMIT is the hardest case, so half of all are there.
        self.at_commit = chance.choice(("before", "after", "after", None, None, None))
        self.left = POINTS * 10 if self.at_commit else chance.randrange(POINTS)
        self.again = chance.randrange(12) if chance.random() < 0.3 else None
        self.server, self.away = server, False
        self.thread: int | None = None  # the thread to interrupt; None: any thread

    def __repr__(self) -> str:
        return f"{self.kind}, {self.left} left, again {self.again}, {self.at_commit} COMMIT"

    def strike(self, driver: Any) -> None:
        match self.kind:
            case "ctrl-c":
                raise KeyboardInterrupt
            case "fault":
                raise RuntimeError("a fault")
            case "refused":
                raise copying.CopyRefused("a refusal")
        self.away = self.kind == "cut and away"
        if isinstance(driver, psycopg.Connection):
            with psycopg.connect(self.server, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", (driver.info.backend_pid,))

    def at_point(self, connection: Any, *_given: object) -> None:
        if self.thread not in (None, threading.get_ident()):
            return
        self.left -= 1
        if self.left == -1:
            if self.again is not None:
                self.left, self.again = self.again, None
            self.strike(None if connection.invalidated else connection.connection.driver_connection)

    def connect(self, _dialect: object, _record: object, arguments: Any, options: Any) -> None:
        if self.away and "host" in options:
            raise psycopg.OperationalError("away")

    @contextmanager
    def happening(self) -> Iterator[None]:
        points = ("before_cursor_execute", "commit", "rollback")
        for name in points:
            event.listen(Engine, name, self.at_point)
        event.listen(Engine, "do_connect", self.connect)
        commit = psycopg.Connection.commit

        def commits(driver: Any) -> None:
            """Whether this is the copy's one COMMIT on the new side."""
            when = None
            if self.thread in (None, threading.get_ident()):
                when, self.at_commit = self.at_commit, None
            if when == "before":
                self.strike(driver)
            commit(driver)
            if when == "after":
                self.left = -1 if self.again is None else self.again
                self.strike(driver)
                if self.kind.startswith("cut"):
                    raise psycopg.OperationalError("the connection was lost")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(psycopg.Connection, "commit", commits)
            try:
                yield
            finally:
                for name in points:
                    event.remove(Engine, name, self.at_point)
                event.remove(Engine, "do_connect", self.connect)


def judge_sides(sides: Sides, marks: int, went: object) -> None:
    """After a copy, however it ended; *marks*: of copies that the new side had when this one began."""
    is_open, taken = sides.old_is_open(), sides.marks() > marks
    assert not (is_open and taken), f"both sides are open: {went!r}"
    sides.copy(wait=timedelta(0))  # the sentence that is printed says so
    assert not sides.old_is_open()
    old, new = sides.both()
    assert old == new, f"the next copy did not bring it to its end: {went!r}"


def begin(sides: Sides, chance: random.Random) -> None:
    """Make a random state from which a copy must bring everything."""
    sides.begin()
    match chance.choice(("first", "first", "again", "back", "killed")):
        case "again":
            sides.copy()
            sides.enqueue()
        case "back":
            sides.copy()
            sides.go_back()
            sides.run_one()
        case "killed":  # after it had closed the old side
            with opened(sides.old) as old, opened(sides.new) as new:
                close(old, new)


def close(old: Database, new: Database) -> None:
    """Close the old side and stop there, like a copy that is killed early."""
    with old.read() as connection:
        before = read_meta(connection)
    copying._close(old, before, copying.moved_to(new), "ada", waits=False)


def refuse(*_given: object) -> None:
    raise copying.CopyRefused("a refusal")


def interrupt(sides: Sides, interruption: Interruption) -> None:
    marks = sides.marks()
    told = repr(interruption)
    try:
        with interruption.happening():
            sides.copy()
    except (KeyboardInterrupt, RuntimeError, CronjobsError) as error:
        told += f": {error!r}"
    judge_sides(sides, marks, told)


@pytest.mark.slow
def test_only_one_side_is_open_wherever_a_copy_is_interrupted(sides: Sides) -> None:
    def case(chance: random.Random) -> None:
        begin(sides, chance)
        interrupt(sides, Interruption(chance, sides.new))

    judge(case, 6)


@pytest.mark.parametrize("kind", Interruption.KINDS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_only_one_side_is_open_when_a_copy_is_interrupted_at_its_commit(sides: Sides, kind: str, when: str) -> None:
    sides.begin()
    interruption = Interruption(random.Random(0), sides.new)
    interruption.kind, interruption.left, interruption.at_commit = kind, 10 * POINTS, when
    interrupt(sides, interruption)


@pytest.fixture
def polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_turns, "sleep", interleaved.poll)
    monkeypatch.setattr(retrying, "sleep", interleaved.poll)


@pytest.mark.slow
@pytest.mark.usefixtures("polling")
def test_only_one_side_is_open_when_two_copies_go_on_side_by_side(sides: Sides) -> None:
    """One may be interrupted, and a tick of the old side may run a job wherever that is open."""

    def case(chance: random.Random) -> None:
        begin(sides, chance)
        marks = sides.marks()
        interruption = Interruption(chance, sides.new)
        interruption.kind = "ctrl-c"

        def interrupted() -> Any:
            interruption.thread = threading.get_ident()
            return sides.copy()

        with stepped(sides.new) as run, interruption.happening():
            went = run(chance, interrupted, sides.copy, sides.run_one)
        expected = KeyboardInterrupt | CronjobsError | copying.CopyReport | None
        assert all(isinstance(each, expected) for each in went), went
        judge_sides(sides, marks, went)

    judge(case, 4)


def test_a_copy_that_found_the_old_side_closed_never_opens_it(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another copy closed it, and relies on that."""
    sides.begin()
    with opened(sides.old) as old, opened(sides.new) as new:
        close(old, new)
    monkeypatch.setattr(copying, "_wait_until_quiet", refuse)
    with pytest.raises(copying.CopyRefused):
        sides.copy()
    assert not sides.old_is_open()


def test_a_copy_that_another_one_overtook_leaves_the_old_side_closed(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.begin()
    with monkeypatch.context() as patch:

        def overtake(*_given: Any) -> None:
            patch.undo()
            sides.copy()
            refuse()

        patch.setattr(copying, "_wait_until_quiet", overtake)
        with pytest.raises(copying.CopyRefused):
            sides.copy()
    assert not sides.old_is_open()
    assert sides.marks() == 1


def test_two_copies_that_find_the_old_side_open_do_not_both_close_it(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.begin()
    real = copying._close

    def close_later(*given: Any) -> int:
        monkeypatch.undo()
        sides.copy()
        return real(*given)

    monkeypatch.setattr(copying, "_close", close_later)
    with pytest.raises(copying.CopyRefused, match="just started or ended"):
        sides.copy()
    assert not sides.old_is_open()
    assert sides.marks() == 1


def test_a_copy_does_not_commit_once_somebody_opened_the_old_side(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides.begin()
    insert = store.insert

    def insert_meanwhile(*given: Any) -> None:
        insert(*given)
        if given[1] is audit:
            sides.go_back()

    monkeypatch.setattr(store, "insert", insert_meanwhile)
    with pytest.raises(copying.CopyRefused, match="reopened the old database"):
        sides.copy()
    assert sides.old_is_open()
    assert not sides.marks()


def test_a_side_that_was_used_during_the_copy_is_not_taken(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were in use since the last copy: what ran on the old side would run again."""
    sides.begin()
    sides.copy()
    sides.go_back()
    sides.run_one()

    def tick_there(*_given: Any) -> None:
        with opened(sides.new) as database, database.write() as connection:
            enqueue(connection, "t.here")

    monkeypatch.setattr(copying, "_wait_until_quiet", tick_there)
    with pytest.raises(copying.CopyRefused, match="both databases have been used"):
        sides.copy()
    assert sides.old_is_open()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "code"), [("ctrl-c", 130), ("refused", 1), ("cut and away", 4)])
def test_a_command_that_leaves_the_old_side_closed_says_what_to_type(sides: Sides, kind: str, code: int) -> None:
    sides.begin()
    project = Project(sides.file.parent, sides.old)
    project.write()
    assert project.call("db", "adopt", "--force").code == 0  # it has ticked a moment ago
    interruption = Interruption(random.Random(0), sides.new)
    interruption.kind, interruption.left, interruption.at_commit = kind, 10 * POINTS, "after"
    with interruption.happening():
        answer = project.call("db", "copy", "--to", sides.new)
    assert answer.code == code, answer.err
    assert STAYS_CLOSED in answer.err
    assert not sides.old_is_open()
    assert project.call("db", "copy", "--to", sides.new).code == 0
    old, new = sides.both()
    assert old == new


@pytest.mark.slow
def test_the_old_side_stays_closed_while_commit_waits_for_a_standby(sides: Sides) -> None:
    """The server calls a COMMIT done whose wait is broken off by Ctrl-C."""
    cluster = Cluster()
    try:
        cluster.start()
        sides.new = cluster.url()
        with opened(sides.new) as new:
            migrations.upgrade(new)
        sides.begin()
        cluster.pause()
        program = [sys.executable, "-c", COPY, sides.old, cluster.primary.url()]
        copies = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
        until(lambda: bool(cluster.waiting_for_standby()) or copies.poll() is not None)
        assert copies.poll() is None, copies.communicate()
        with opened(sides.old) as old, pytest.raises(DatabaseBusy), old.write(patience=0.1) as connection:
            reopen(connection, "shop", "production", "ada")  # an operator thinks that the copy hangs
        copies.send_signal(signal.SIGINT)
        _, said = copies.communicate(timeout=40)
        assert said.splitlines()[-1].startswith("KeyboardInterrupt")
        assert not sides.old_is_open()
        sides.new = cluster.primary.url()
        assert sides.marks() == 1
    finally:
        cluster.remove()


COPY = """
import sys
from pathlib import Path
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.contrib.copy.copying import copy

settings = Settings(file=Path("cronjobs.yaml"), folder=Path(), project="shop", environment="production")
copy(Database(parse_url(sys.argv[1])), Database(parse_url(sys.argv[2])), settings, actor="ada")
"""
