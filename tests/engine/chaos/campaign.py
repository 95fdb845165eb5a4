"""A campaign: four slots run real ticks, get jobs all the time, and meanwhile the plan kills and freezes them.

Jobs and attacks are spread evenly. So no attack is left for the end, when nothing that could break is running.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import text
from support.cluster import Cluster
from support.postgres import PostgresServer

from cronjobs import enqueue
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema import migrations
from cronjobs.errors import DatabaseError
from engine.chaos import judge
from engine.chaos.ledger import VARIABLE, Line, Pen, Reader
from engine.chaos.plan import Action, Deed, Plan, Size, draw
from engine.chaos.runners import EXCEPTION, Ground, News, Order, Runners

WORKERS = (1, 1, 1, 2)  # workers of the tick in each of the four slots
FROZEN_AT_MOST = 2
RIPE = 0.97  # the share of jobs that have ended at the last deed's turn, so that the deed still meets a job
AHEAD = 100  # jobs that may be fed ahead of the deeds
WAITING = 6  # jobs that are there to be claimed: few, so that one that was lost is taken while its runner sleeps
CRASHES = 20  # after so many ticks ended by an exception of ours, the campaign ends, as nothing works
UNWRITTEN_S = 0.1  # how long an end may be missing in the database
TURN_S = 0.004
LONGEST = 8.0  # leases that a freeze lasts when nobody takes over
BRIEF = 0.3  # of a lease: how long a frozen process may hold the only write lock before all others lose theirs
RELIEF = 0.9  # of a lease after a freeze: another tick ends, and the one after it finds what the frozen one held


@dataclass
class Runner:
    """A tick that runs. Instants are of the monotonic clock."""

    pid: int
    order: Order
    began: float
    deed: Deed | None = None  # the deed that froze this tick
    frozen_at: float = 0.0
    thaw_from: float = 0.0
    thaw_at: float = 0.0
    held: set[int] = field(default_factory=set)  # jobs that it was running when it was frozen
    looked_at: bool = False  # whether somebody has looked for what it holds while frozen
    relieved: bool = False  # whether a fresh tick was ordered to take over
    dying: bool = False


class Feeder(threading.Thread):
    """Enqueues the plan's jobs as the campaign asks for them; each has a key, so what got no answer is said again."""

    def __init__(self, ground: Ground, plan: Plan) -> None:
        super().__init__(name="feeder", daemon=True)
        self._database = Database(parse_url(ground.url))
        self._plan = plan
        self.wanted = 0
        self.fed = 0
        self.refused = 0
        self.fault: BaseException | None = None
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            while not self._enough.wait(0.005):
                while self.fed < self.wanted and not self._enough.is_set():
                    self._feed(self._plan.jobs[self.fed : min(self.wanted, self.fed + 8)])
        except BaseException as error:
            self.fault = error

    def _feed(self, batch: list[Any]) -> None:
        try:
            with self._database.write(patience=1.0) as connection:
                for job in batch:
                    enqueue(connection, job.job_type, job.payload, priority=job.priority, idempotency_key=job.key)
        except DatabaseError:
            self.refused += 1
            self._enough.wait(0.02)
        else:
            self.fed += len(batch)

    def close(self) -> None:
        self._enough.set()
        self.join()
        self._database.close()


class Campaign:
    """``run()`` it once. *server* is there to be restarted and to cut connections on PostgreSQL."""

    def __init__(self, plan: Plan, ground: Ground, server: PostgresServer | Cluster | None, limit_s: float) -> None:
        self.plan, self.ground, self.server = plan, ground, server
        self.dice = random.Random(plan.seed + 1)
        self.pen, self.reader = Pen(ground.ledger), Reader(ground.ledger)
        self.lines: list[Line] = []
        self.runners: dict[int, Runner] = {}
        self.wanted: list[Order] = []  # ordered, their pids not yet known
        self.free: list[tuple[float, int]] = [(0.0, workers) for workers in WORKERS]  # slots, and from when on
        self.open: dict[tuple[int, int], int] = {}  # (job, attempt) begun and not ended -> pid
        self.inside: set[tuple[int, int]] = set()  # between an external effect and its record
        self.unkeyed: set[tuple[int, int]] = set()  # attempts that did an effect which nobody guards
        self.ended: deque[tuple[float, int, int]] = deque()  # attempts that ended lately: when, job, pid
        self.finished: set[int] = set()  # jobs
        self.hurt: set[int] = set()  # jobs that were lost before
        self.resting: set[int] = set()  # jobs that failed and wait for their next try
        self.done: dict[Action, int] = dict.fromkeys(plan.deeds, 0)
        self.due: dict[Action, float] = {}  # when the next deed's turn has come
        self.crashed = 0
        self.closing = False
        self.killed_writing = 0
        self.brief_freezes = 0
        self.gentle_ends = 0
        self.statuses: dict[str, int] = {}
        self.began = time.monotonic()
        self.give_up_at = self.began + limit_s
        self.asked: Future[bool] | None = None
        self.asked_for: Deed | None = None

    # --- the story ----------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Do it all, and judge it; "violations" in the report is empty when everything came out as it must."""
        self.forks = Runners(self.ground)
        self.feeder = Feeder(self.ground, self.plan)
        self.database = Database(parse_url(self.ground.url))
        # One thread starts and restarts the server, because a server dies with the thread that started it.
        with ThreadPoolExecutor(1) as self.operator, closing(self.database):
            try:
                self.feeder.start()
                self._rage()
                in_time = self._come_to_rest()
            finally:
                self.feeder.close()
                self.forks.close()
            left = _left_behind(self.ground)
            self.lines.extend(self.reader.news())
            self.reader.close()
            figures, violations = judge.judge(judge.gather(self.database, self.ground.log, self.plan, self.lines))
        violations += [f"process {pid} outlived its tick" for pid in left]
        if self.crashed:
            violations.append(f"{self.crashed} ticks ended by an exception: see stderr in the folder")
        if not in_time:
            violations.insert(0, f"it was not over after {time.monotonic() - self.began:.0f} s")
        for action, count in self.done.items():
            if count < self.plan.size.of(action):
                violations.append(f"only {count} of {self.plan.size.of(action)} were done: {action}")
        return {
            "database": "postgresql" if self.server else "sqlite",
            "seed": self.plan.seed,
            "took_s": round(time.monotonic() - self.began, 1),
            "plan": self.plan.summary(),
            "done": self.done
            | {"killed with SQLite's write lock": self.killed_writing}
            | {"frozen with SQLite's write lock": self.brief_freezes}
            | {"ended by SIGTERM": self.gentle_ends},
            "enqueue refused and repeated": self.feeder.refused,
            **figures,
            "violations": violations,
        }

    def _rage(self) -> None:
        while not (self._all_done() and self.feeder.fed == len(self.plan.jobs)):
            if not self._turn():
                return
            for action in self.plan.deeds:
                self._maybe(action)
            self._feed()

    def _come_to_rest(self) -> bool:
        """Do no more deeds.

        Wait until every job is final and every tick has ended; return whether both happened in time.
        """
        look_at = 0.0
        while not self._is_over() or self.asked is not None:
            if not self._turn():
                return False
            now = time.monotonic()
            if now >= look_at:
                self.statuses = self._read_statuses() or self.statuses
                look_at = time.monotonic() + 0.2
        self.closing = True
        for pid in self.runners:
            self.forks.send(pid, signal.SIGTERM)
        while self.runners or self.wanted:
            if not self._turn():
                return False
        return True

    def _is_over(self) -> bool:
        final = sum(self.statuses.get(status, 0) for status in ("succeeded", "dead", "cancelled"))
        # missing rows do not count, since no wait would bring them back
        return 0 < final == sum(self.statuses.values())

    def _turn(self) -> bool:
        """Take in what happened, keep the slots busy, thaw whose time has come; False when the campaign's is over."""
        for news in self.forks.news(TURN_S):
            self._note(news)
        for line in self.reader.news():
            self._follow(line)
        now = time.monotonic()
        for since, workers in list(self.free):
            if now >= since and not self.closing:
                self.free.remove((since, workers))
                # Half of them die by the kernel's timer as they wake; between the others and the rows is the fence.
                self.wanted.append(Order(workers, guarded=self.dice.random() < 0.5))
                self.forks.start(self.wanted[-1])
        for runner in list(self.runners.values()):
            if runner.deed is not None:
                self._watch_frozen(runner, now)
        self._settle_asked()
        self._tell_progress(now)
        if self.feeder.fault is not None:
            raise self.feeder.fault
        return now < self.give_up_at

    # --- what happened ------------------------------------------------------------------------------------------------

    def _note(self, news: News) -> None:
        if news.status is None:
            order = self.wanted.pop(0)
            self.runners[news.pid] = Runner(news.pid, order, time.monotonic())
            self.pen.write("guarded" if order.guarded else "unguarded", pid=news.pid)
            return
        runner = self.runners.pop(news.pid)
        self.pen.write("gone", pid=news.pid)
        if runner.deed is not None:  # the tick ended by itself before it was frozen
            self.done["freeze"] -= 1
        if runner.dying and news.status != signal.SIGKILL:
            self.done["kill"] -= 1
        for held in [held for held, pid in self.open.items() if pid == news.pid]:
            del self.open[held]
            self.inside.discard(held)
        if news.status == EXCEPTION << 8:
            self.crashed += 1
            if self.crashed >= CRASHES:
                raise RuntimeError(f"{self.crashed} ticks ended by an exception: see {self.ground.folder}/stderr")
        pause = {0: 0.03, 4 << 8: 0.1}.get(news.status, 0.0)  # nothing to do, or no database
        self.free.append((time.monotonic() + pause, runner.order.workers))

    def _follow(self, line: Line) -> None:
        self.lines.append(line)
        held = (line.job, line.attempt)
        match line.what:
            case "start":
                if line.attempt > 1 and line.job not in self.resting:
                    self.hurt.add(line.job)
                self.open[held] = self._runner_of(line.pid)
                self._note_taken_over(line.job)
                self.resting.discard(line.job)
            case "unkeyed" | "body":
                self.inside.add(held)
                if line.what == "unkeyed":
                    self.unkeyed.add(held)
            case "recorded":
                self.inside.discard(held)
            case "end" | "failed":
                self.ended.append((time.monotonic(), line.job, self.open.pop(held, 0)))
                self.inside.discard(held)
                (self.finished if line.what == "end" else self.resting).add(line.job)

    def _note_taken_over(self, job: int) -> None:
        """Who sleeps may wake once another has begun what it held; on a busy machine that takes longer."""
        for runner in self.runners.values():
            if runner.deed is not None and job in runner.held:
                runner.thaw_at = min(runner.thaw_at, runner.thaw_from)

    def _runner_of(self, pid: int) -> int:
        """The tick that *pid* belongs to: itself, or the one whose child it is."""
        for _ in range(4):
            if pid in self.runners:
                break
            with suppress(OSError):
                pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        return pid

    # --- deeds --------------------------------------------------------------------------------------------------------

    def _all_done(self) -> bool:
        # A deed that is under way may turn out not to count.
        pending = any(runner.deed is not None or runner.dying for runner in self.runners.values())
        return not pending and all(count == self.plan.size.of(action) for action, count in self.done.items())

    def _maybe(self, action: Action) -> None:
        """Do the next deed of this kind if enough jobs have ended for it, its moment has come, and it can be done."""
        done, planned = self.done[action], self.plan.size.of(action)
        if done >= planned or done > planned * len(self.finished) / (RIPE * self.plan.size.jobs):
            return
        deed = self.plan.deeds[action][done]
        now = time.monotonic()
        if now < self.due.setdefault(action, now + deed.delay_s):
            return
        acts: dict[Action, Callable[[Deed], bool]] = {"kill": self._kill, "freeze": self._freeze}
        if acts.get(action, self._operate)(deed):
            self._count(action)

    def _count(self, action: Action) -> None:
        self.done[action] += 1
        self.due.pop(action, None)

    def _awake(self) -> list[Runner]:
        return [runner for runner in self.runners.values() if runner.deed is None and not runner.dying]

    def _victims(self, deed: Deed, holders: set[int] | None = None) -> list[Runner]:
        """Whom *deed* may hit: of *holders*, if they are given."""
        awake = [runner for runner in self._awake() if holders is None or runner.pid in holders]
        if deed.spares and awake and not self._is_late():
            while self.ended and time.monotonic() - self.ended[0][0] > UNWRITTEN_S:
                self.ended.popleft()
            hurt = {pid for (job, _), pid in self.open.items() if job in self.hurt}
            hurt |= {pid for _, job, pid in self.ended if job in self.hurt}
            awake = [runner for runner in awake if runner.pid not in hurt and not _has_children(runner.pid)]
        return awake

    def _is_late(self) -> bool:
        """Few jobs are left, so the last deeds take what they find."""
        return len(self.finished) > RIPE * self.plan.size.jobs

    def _kill(self, deed: Deed) -> bool:
        doubled = len({job for job, _ in self.unkeyed}) < len(self.unkeyed)
        wanted = self.inside if doubled else self.inside & self.unkeyed  # few kills are to prove something, too
        inside = {self.open[held] for held in wanted if held in self.open}
        victims = self._victims(deed, inside if deed.inside and not self._is_late() else None)
        if not victims:
            return False
        victim = self.dice.choice(victims)
        victim.dying = True
        self.killed_writing += _holds_write_lock(victim.pid)
        self.pen.write("kill", pid=victim.pid)
        self.forks.send(victim.pid, signal.SIGKILL)
        return True

    def _freeze(self, deed: Deed) -> bool:
        """Stop a tick in mid-job. It counts once it sleeps past its lease, in ``_watch_frozen``."""
        if sum(runner.deed is not None for runner in self.runners.values()) >= FROZEN_AT_MOST:
            return False
        victims = self._victims(deed, holders=set(self.open.values()))
        if not victims:
            return False
        victim = self.dice.choice(victims)
        victim.deed, victim.frozen_at = deed, time.monotonic()
        victim.thaw_from = victim.frozen_at + deed.leases * self.ground.lease_s
        victim.thaw_at = victim.frozen_at + LONGEST * self.ground.lease_s
        victim.held = {job for (job, _), pid in self.open.items() if pid == victim.pid}
        self.pen.write("freeze", pid=victim.pid)
        self.forks.send(victim.pid, signal.SIGSTOP)
        return True

    def _watch_frozen(self, runner: Runner, now: float) -> None:
        if not runner.looked_at:
            runner.looked_at = True
            if _holds_write_lock(runner.pid):
                # Nobody can write, so nobody can take its jobs: they must all go on when it wakes, and not count.
                runner.thaw_at = runner.frozen_at + BRIEF * self.ground.lease_s
                runner.relieved = True
                self.brief_freezes += 1
                self.pen.write("brief", pid=runner.pid)
                self.done["freeze"] -= 1
        if not runner.relieved and now >= runner.frozen_at + RELIEF * self.ground.lease_s:
            runner.relieved = True
            self._end_gently()
        if now >= runner.thaw_at:
            self.pen.write("thaw", pid=runner.pid)
            self.forks.send(runner.pid, signal.SIGCONT)
            runner.deed, runner.looked_at, runner.relieved = None, False, False
            self.due["freeze"] = now + 0.05  # not the same one again in the same moment

    def _end_gently(self) -> None:
        """SIGTERM, as a deploy does."""
        if awake := [runner for runner in self._awake() if not _has_children(runner.pid)]:
            self.gentle_ends += 1
            self.forks.send(self.dice.choice(awake).pid, signal.SIGTERM)

    # --- deeds to the server ------------------------------------------------------------------------------------------

    def _operate(self, deed: Deed) -> bool:
        """Ask for it, in the thread that may wait; it is counted when it is done."""
        if self.asked is None:
            self.asked_for = deed
            acts: dict[Action, Callable[[Deed], bool]] = {"restart": self._restart, "cut": self._cut}
            self.asked = self.operator.submit(acts.get(deed.action, self._promote), deed)
            self.pen.write(deed.action, pid=0)
        return False

    def _settle_asked(self) -> None:
        if self.asked is not None and self.asked.done() and self.asked_for is not None:
            if self.asked.result():
                self._count(self.asked_for.action)
            self.asked = self.asked_for = None

    def _restart(self, deed: Deed) -> bool:
        assert self.server is not None
        self.server.stop(signal.SIGQUIT if deed.harsh else signal.SIGINT)
        self.server.start()
        return True

    def _promote(self, deed: Deed) -> bool:
        """The primary crashes; before every second one the standby is frozen, so that no COMMIT is confirmed."""
        assert isinstance(self.server, Cluster)
        if deed.harsh and self.ground.standby_paused_s:
            self.server.pause()
            time.sleep(self.ground.standby_paused_s)
        self.server.promote()
        return True

    def _cut(self, _deed: Deed) -> bool:
        """Cut one connection of the runners or the feeder, whatever it is doing."""
        assert self.server is not None
        with suppress(psycopg.OperationalError), psycopg.connect(self.ground.url, autocommit=True) as connection:
            ours = "SELECT pid FROM pg_stat_activity WHERE application_name = 'cronjobs'"
            found = connection.execute(ours).fetchall()
            if found:
                [pid] = self.dice.choice(sorted(found))
                cut = connection.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()
                return cut is not None and bool(cut[0])
        return False

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Feed the share of jobs that matches the share of deeds done, and always enough that something runs."""
        planned = [(count, self.plan.size.of(action)) for action, count in self.done.items()]
        share = min((done / most for done, most in planned if most), default=1.0)
        frozen = [runner.pid for runner in self.runners.values() if runner.deed is not None]
        out_of_reach = len(self.resting) + sum(pid in frozen for pid in self.open.values())
        wanted = min(int(share * len(self.plan.jobs)) + AHEAD, len(self.finished) + out_of_reach + WAITING)
        wanted = max(wanted, len(self.finished) + out_of_reach + 4, self.feeder.wanted)
        self.feeder.wanted = min(len(self.plan.jobs), wanted)

    def _read_statuses(self) -> dict[str, int] | None:
        try:
            with self.database.read() as connection:
                found = connection.execute(text("SELECT status, count(*) AS jobs FROM cronjobs_jobs GROUP BY status"))
                return {row.status: row.jobs for row in found}
        except DatabaseError:
            return None

    def _tell_progress(self, now: float) -> None:
        if now >= self._tell_at:
            self._tell_at = now + 5
            deeds = ", ".join(f"{count}/{self.plan.size.of(action)} {action}" for action, count in self.done.items())
            print(
                f"{now - self.began:5.0f} s  seed {self.plan.seed}: {len(self.finished)}/{self.plan.size.jobs} jobs, "
                f"{deeds} {self.statuses or ''}",
                file=sys.stderr,
                flush=True,
            )

    _tell_at = 0.0


def _has_children(pid: int) -> bool:
    with suppress(OSError):
        return any(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    return False


def _left_behind(ground: Ground) -> list[int]:
    """Processes of the campaign that still run a second after their ticks; they are ended."""
    give_up_at = time.monotonic() + 1
    while (left := _ours(ground)) and time.monotonic() < give_up_at:
        time.sleep(0.02)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


def _ours(ground: Ground) -> list[int]:
    """By the ledger's path in their environment, which all of them inherited."""
    mark = f"{VARIABLE}={ground.ledger}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _holds_write_lock(pid: int) -> bool:
    """Whether it holds the lock by which SQLite's writers take turns."""
    return any(" FLOCK " in line and f" {pid} " in line and "->" not in line for line in _locks())


def _locks() -> Iterator[str]:
    with suppress(OSError):
        yield from Path("/proc/locks").read_text().splitlines()


def campaign(
    kind: str, seed: int, size: Size, folder: Path, *, limit_s: float, synchronous: bool = True, paused_s: float = 0
) -> dict[str, Any]:
    """Run the campaign of *seed* in *folder*, on a new database, with a server of its own; return the report.

    Where there are promotions the server has a standby, *synchronous* or not; before every second one it is frozen for
    *paused_s*.
    """
    plan = draw(seed, size)
    if kind == "sqlite":
        return _on(plan, Ground(str(folder), f"sqlite:///{folder / 'cronjobs.db'}"), None, limit_s)
    server = Cluster(synchronous=synchronous) if size.promotions else PostgresServer()
    try:
        server.start()
        return _on(plan, Ground(str(folder), server.url(), standby_paused_s=paused_s), server, limit_s)
    finally:
        server.remove()


def _on(plan: Plan, ground: Ground, server: PostgresServer | Cluster | None, limit_s: float) -> dict[str, Any]:
    database = Database(parse_url(ground.url))
    try:
        migrations.upgrade(database)
        with database.write() as connection:
            connection.exec_driver_sql("CREATE TABLE booked (job_id bigint)")
    finally:
        database.close()
    return Campaign(plan, ground, server, limit_s).run()
