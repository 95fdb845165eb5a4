"""Judge by rows and effects what must hold after a process has died and the next runners have done all work.

``killed`` is the database as the dead process left it. Its facts are final: history, ledger and audit rows stay, and a
job that had ended does not run again. ``rest`` is the database after all work is done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Row = Mapping[str, Any]
FINAL = ("succeeded", "dead", "cancelled")
STILL_RUNNING = ("timed_out", "interrupted")  # outcomes that stand in the history while the thread still runs
EXPECTED = {  # job type: how it ends, and with how many charged failures
    "crash.ok": ("succeeded", 0),
    "crash.flaky": ("succeeded", 1),
    "crash.gives_up": ("dead", 1),
    "crash.snoozes": ("succeeded", 0),
    "crash.poison": ("dead", 1),
    "crash.meanwhile": ("succeeded", 0),
    "crash.later": ("succeeded", 0),
    "crash.command": ("succeeded", 0),
    "crash.long": ("succeeded", 0),
    "crash.steps": ("succeeded", 0),
}
APART = 0  # stands for the pid in lines that commands write
IDENTITIES = ("tick", "pid", "locked_by", "runner", "worker", "traceback")


@dataclass(frozen=True)
class Snapshot:
    """All rows, by table without its prefix. Instants are aware, JSON is parsed."""

    tables: dict[str, list[Row]]

    def __getitem__(self, table: str) -> list[Row]:
        return self.tables.get(table, [])

    @property
    def jobs(self) -> dict[int, Row]:
        return {row["id"]: row for row in self["jobs"]}

    @property
    def runs(self) -> dict[tuple[int, int], Row]:
        return {(row["job_id"], row["attempt"]): row for row in self["job_runs"]}

    def like(self) -> str:
        """The same for two states that differ only in moments and in who was there."""

        def alike(column: str, value: Any) -> Any:
            return None if column in IDENTITIES else f"{value:%d %H:%M}" if isinstance(value, datetime) else value

        return repr(
            [(name, [[alike(*cell) for cell in row.items()] for row in rows]) for name, rows in self.tables.items()]
        )

    def audited(self, action: str) -> list[Row]:
        return [row for row in self["audit"] if row["action"] == action]


@dataclass(frozen=True)
class Did:
    """A line of the effects file."""

    what: str
    job_id: int
    attempt: int
    pid: int


@dataclass(frozen=True)
class Leave:
    """Exceptions: what one flow may do that others may not."""

    waiting: bool = False  # jobs wait at rest
    reopened: bool = False  # somebody puts jobs back that had ended
    released: bool = False  # attempts are given back and leave no history
    pruned: bool = False  # rows go
    refilled: bool = False  # ledger rows are written anew
    overtaken: bool = False  # another runner takes the job over while the first still works


@dataclass(frozen=True)
class Case:
    """One run of a flow: killed at a point, or not (``died``)."""

    start: Snapshot
    killed: Snapshot
    rest: Snapshot
    did: list[Did]
    pid: int
    died: bool
    leave: Leave = field(default_factory=Leave)

    def done(self, what: str) -> Counter[int]:
        return Counter(did.job_id for did in self.did if did.what == what)


def judge_death(case: Case) -> Iterator[str]:
    """Yield what is wrong with what the process left, a sentence each."""
    for complaint in (*_consistent(case.killed, case), *_ledger(case.killed, case), *_counted(case.killed, case)):
        yield f"as it died: {complaint}"
    yield from _kept(case.start, case.killed, case, "by the process")


def judge_rest(case: Case) -> Iterator[str]:
    """Yield what is wrong with what the next runners made of it."""
    for complaint in (*_consistent(case.rest, case), *_ledger(case.rest, case), *_counted(case.rest, case)):
        yield f"at rest: {complaint}"
    yield from _kept(case.killed, case.rest, case, "by the next runners")
    yield from _at_rest(case)
    yield from _executions(case)


# --- one snapshot -----------------------------------------------------------------------------------------------------


def _consistent(snapshot: Snapshot, case: Case) -> Iterator[str]:
    """What one transaction writes together is there together."""
    runs = snapshot.runs
    for job_id, job in snapshot.jobs.items():
        attempts, status = job["attempts"], job["status"]
        last = runs.get((job_id, attempts))
        mine = [run for (id_, _), run in runs.items() if id_ == job_id]
        if any(run["attempt"] > attempts for run in mine):
            yield f"job {job_id} has a history beyond its {attempts} attempts"
        if status in ("succeeded", "dead") and attempts and not case.leave.pruned and last is None:
            yield f"job {job_id} is {status}, and its attempt {attempts} is not in the history"
        if status == "failed" and not mine:
            yield f"job {job_id} is failed, and has no history"
        if last is not None and status == "running" and last["outcome"] not in STILL_RUNNING:
            yield f"job {job_id} is running, and its attempt {attempts} has ended: {last['outcome']}"
        if last is not None and status == "succeeded" and last["outcome"] != "succeeded":
            yield f"job {job_id} succeeded, and its history says {last['outcome']}"
        succeeded = [run["attempt"] for run in mine if run["outcome"] == "succeeded"]
        if len(succeeded) > 1:
            yield f"job {job_id} succeeded in attempts {succeeded}"
        if succeeded and status != "succeeded" and not case.leave.reopened:
            yield f"job {job_id} is {status}, and its attempt {succeeded[0]} succeeded"


def _ledger(snapshot: Snapshot, case: Case) -> Iterator[str]:
    """Up to its watermark each occurrence stands in the ledger exactly once, and has its job if it says so."""
    jobs = snapshot.jobs
    made: Counter[int] = Counter()
    for schedule in snapshot["schedules"]:
        name = schedule["name"]
        rows = sorted(
            (row for row in snapshot["occurrences"] if row["schedule_id"] == schedule["id"]),
            key=lambda row: row["last_for"],
        )
        owed = _owed(snapshot, schedule)
        covered: Counter[datetime] = Counter()
        for row in rows:
            inside = [instant for instant in owed if row["first_for"] <= instant <= row["last_for"]]
            covered.update(inside)
            if len(inside) != row["count"]:
                span = f"{row['first_for']} to {row['last_for']}"
                yield f"{name}: a ledger row of {row['count']} stands for the {len(inside)} occurrences from {span}"
            if row["outcome"] == "enqueued":
                made[row["job_id"]] += 1
                job = jobs.get(row["job_id"])
                if job is None:
                    if not case.leave.pruned:
                        yield f"{name}: the occurrence of {row['last_for']} has no job {row['job_id']}"
                elif (job["schedule"], job["scheduled_for"]) != (name, row["last_for"]) and job["finished_at"] is None:
                    yield f"{name}: the occurrence of {row['last_for']} has the job of {job['scheduled_for']}"
        for instant in owed:
            if covered[instant] != 1 and not case.leave.pruned:
                yield f"{name}: the occurrence of {instant} stands {covered[instant]} times in the ledger"
    for job_id, job in jobs.items():
        by_hand = str(job["enqueued_by"]).startswith("trigger")
        if job["scheduled_for"] is not None and not by_hand and made[job_id] != 1 and not case.leave.pruned:
            yield f"job {job_id} of {job['schedule']} stands {made[job_id]} times in the ledger"


def _counted(snapshot: Snapshot, case: Case) -> Iterator[str]:
    """Each end since the flow began, and each occurrence, is counted once; told by rows, where none of them goes."""
    if case.leave.pruned or case.leave.reopened:
        return
    before, ends = _ends(case.start), _ends(snapshot)
    counted = _counts(snapshot)
    counted.subtract(_counts(case.start))
    for kind, number in ends.items():
        if not (kind == "occurrences" and case.leave.refilled) and counted[kind] != number - before[kind]:
            yield f"{counted[kind]} {kind} are counted, and {number - before[kind]} ended"


def _counts(snapshot: Snapshot) -> Counter[str]:
    """All that ever ended, by kind: the sums of all hours, and what is not folded."""
    found: Counter[str] = Counter()
    for row in (*snapshot["new_counts"], *(row for row in snapshot["counts"] if row["at_hour"] == 0)):
        found[row["kind"]] += row["count"]
    return found


def _ends(snapshot: Snapshot) -> dict[str, int]:
    jobs = snapshot.jobs
    over = [jobs[job_id]["status"] != "running" or jobs[job_id]["attempts"] != n for job_id, n in snapshot.runs]
    return {
        "attempts": sum(over),
        "jobs": sum(job["status"] in FINAL for job in jobs.values()),
        "occurrences": sum(row["count"] for row in snapshot["occurrences"]),
    }


def _owed(snapshot: Snapshot, schedule: Row) -> list[datetime]:
    """Every occurrence from when the schedule was new up to its watermark, by the definitions in the audit trail.

    Plain arithmetic: in the flows a schedule is due every so many seconds since 1970.
    """
    names = {schedule["name"]}
    for rename in reversed(snapshot.audited("rename")):
        if rename["subject"] in names:
            names.add(rename["detail"]["from"])
    defined = sorted(
        ((row["at"], row["detail"]["every_s"]) for row in snapshot.audited("define") if row["subject"] in names),
        key=lambda era: era[0],
    )
    found = []
    for (at, every_s), after in zip(defined, [*(at for at, _ in defined[1:]), schedule["seen_until"]], strict=True):
        step = int(every_s)
        second = int(at.timestamp()) // step * step + step
        while (instant := datetime.fromtimestamp(second, UTC)) <= after:
            found.append(instant)
            second += step
    return found


# --- from one snapshot to the next ------------------------------------------------------------------------------------


def _kept(before: Snapshot, after: Snapshot, case: Case, whom: str) -> Iterator[str]:
    """Nothing that was committed is lost or rewritten."""
    leave = case.leave
    jobs = after.jobs
    for job_id, job in before.jobs.items():
        now = jobs.get(job_id)
        if now is None:
            if not leave.pruned:
                yield f"job {job_id} was {job['status']} and is gone, {whom}"
            continue
        if now["attempts"] < job["attempts"]:
            yield f"job {job_id} went from attempt {job['attempts']} back to {now['attempts']}, {whom}"
        if job["status"] in FINAL and now != job and not (leave.reopened or leave.pruned):
            yield f"job {job_id} had ended and was changed, {whom}: {_difference(job, now)}"
    runs = after.runs
    for key, run in before.runs.items():
        settled = not (before.jobs[key[0]]["status"] == "running" and run["outcome"] in STILL_RUNNING)
        if runs.get(key) != run and settled and not leave.pruned:
            yield f"attempt {key[1]} of job {key[0]} was rewritten, {whom}: {_difference(run, runs.get(key, {}))}"
    if not (leave.refilled or leave.pruned):
        ledger = {(row["schedule_id"], row["last_for"]): row for row in after["occurrences"]}
        for row in before["occurrences"]:
            if ledger.get((row["schedule_id"], row["last_for"])) != row:
                yield f"the ledger row of {row['last_for']} was rewritten, {whom}"
    audit = {row["id"]: row for row in after["audit"]}
    for row in before["audit"]:
        if audit.get(row["id"]) != row:
            yield f"the audit row of {row['action']} was rewritten, {whom}"
    watermarks = {row["id"]: row["seen_until"] for row in after["schedules"]}
    for row in before["schedules"]:
        if watermarks.get(row["id"], row["seen_until"]) < row["seen_until"]:
            yield f"the watermark of {row['name']} went back, {whom}"
        if row["id"] not in watermarks:
            yield f"schedule {row['name']} is gone, {whom}"


def _difference(before: Row, after: Row) -> str:
    changed = [name for name in before if before[name] != after.get(name)]
    return ", ".join(f"{name} from {before[name]!r} to {after.get(name)!r}" for name in changed)


# --- at rest ----------------------------------------------------------------------------------------------------------


def _at_rest(case: Case) -> Iterator[str]:
    history: defaultdict[int, set[int]] = defaultdict(set)
    for job_id, attempt in case.rest.runs:
        history[job_id].add(attempt)
    for job_id, job in case.rest.jobs.items():
        status = job["status"]
        if status not in FINAL and not (case.leave.waiting and status in ("queued", "failed")):
            yield f"job {job_id} {job['job_type']} is {status} at rest"
        if case.leave.pruned:
            continue
        missing = set(range(1, job["attempts"] + 1)) - history[job_id]
        if missing and not case.leave.released:
            yield f"job {job_id} has no history of its attempts {sorted(missing)} of {job['attempts']}"
        expected = EXPECTED.get(job["job_type"])
        new = job_id not in case.start.jobs or not case.start.jobs[job_id]["attempts"]
        if expected is not None and new and status in ("succeeded", "dead") and (status, job["failures"]) != expected:
            yield f"job {job_id} {job['job_type']} ended {status} with {job['failures']} failures, not {expected}"


def _executions(case: Case) -> Iterator[str]:
    """A handler may run again only if its runner died between its start and the commit of its end."""
    runs = case.rest.runs
    begun = Counter((did.job_id, did.attempt) for did in case.did if did.what == "begun")
    done = Counter((did.job_id, did.attempt) for did in case.did if did.what == "done")
    pids = {(did.job_id, did.attempt): did.pid for did in case.did}
    running = {(job_id, job["attempts"]) for job_id, job in case.killed.jobs.items() if job["status"] == "running"}
    was_running = {(job_id, job["attempts"]) for job_id, job in case.start.jobs.items() if job["status"] == "running"}
    for key, count in begun.items():
        job_id, attempt = key
        if count > 1:
            yield f"attempt {attempt} of job {job_id} was run {count} times"
        if key not in runs and not case.leave.pruned:
            yield f"attempt {attempt} of job {job_id} ran, and is not in the history"
    for key, run in runs.items():
        job_id, attempt = key
        if key in case.start.runs:
            continue
        if run["outcome"] == "succeeded" and done[key] != 1:
            yield f"attempt {attempt} of job {job_id} is recorded succeeded, and was done {done[key]} times"
        if run["outcome"] == "lost" and key not in was_running and not case.leave.overtaken:
            if not case.died:
                yield f"attempt {attempt} of job {job_id} is lost, and nobody died"
            elif key not in running or pids.get(key, case.pid) not in (case.pid, APART):
                yield f"attempt {attempt} of job {job_id} is lost, and its runner did not die holding it"
