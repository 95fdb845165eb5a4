"""Judge the facts about the jobs database: schema, clock, file, locks, vacuum, rights, version. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronjobs.contrib.doctor.diagnosis import Diagnosis, listed, not_applicable, ok, problem, warning
from cronjobs.contrib.doctor.host_verdicts import MIB, ON_A_NETWORK
from cronjobs.contrib.doctor.statements import HeldRights, ServerFacts, TableStatistics
from cronjobs.model import rough
from cronjobs.text import one_line

SKEWED: Final = timedelta(seconds=5)
FAR_OFF: Final = timedelta(minutes=2)
LONG_LOCK: Final = timedelta(seconds=5)
MANY_ROWS: Final = 10_000  # a table with fewer rows is fast even if it is bloated
NEWEST_SERVER: Final = 18  # the newest version that cronjobs was tested with


# --- reachable, and ours ----------------------------------------------------------------------------------------------


def database(name: str, belongs_to: str | None) -> Diagnosis:
    """Judge a database that answers.

    *belongs_to* names the project that owns the database, or is None if our project may use it.
    """
    if belongs_to:
        return problem(
            f"{name} belongs to {belongs_to}: ticks with this configuration claim none of its jobs",
            'use the right database, or run "cronjobs db adopt" if this database should belong to your project',
        )
    return ok(f"{name} answers")


# Words of libpq's answers about a role, but not of the answer "too many connections for role".
_REFUSED_ROLE: Final = ("does not exist", "is not permitted to log in")


def unreachable(why: str, *, no_file: bool = False, to_restore: bool = False) -> Diagnosis:
    """Judge a database that does not answer.

    *no_file* is true if the SQLite file does not exist and never did. *to_restore* is true if the database is damaged,
    or existed before and is missing, so that *why* says to restore it.
    """
    if to_restore:
        return problem(
            why,
            "no job runs until the database is back. If you only have to mount its disk or correct the URL, no job is "
            "lost. But a restored backup has only the jobs of its time: all later ones are gone",
        )
    if no_file:
        return problem(
            why,
            'the first tick creates the file, and so does the trial tick of "cronjobs crontab install" or "cronjobs '
            'crontab swap". If the file existed before, find out who removed it',
        )
    until = "no job runs until then, but no job is lost"
    # libpq passes on what the server said, after this word.
    answer = why.partition("FATAL:")[2]
    of_role = answer.lstrip().startswith("role ") and any(words in answer for words in _REFUSED_ROLE)
    if of_role or "authentication failed" in answer or "pg_hba.conf" in answer:
        return problem(
            why,
            "the server answers, but refuses this user. Correct the user or the password in the database's URL, or "
            f'pg_hba.conf on the server; {until}. "cronjobs config show database" shows where the URL comes from',
        )
    if answer.lstrip().startswith("database ") and "does not exist" in answer:
        return problem(
            why,
            "the server answers, but has no such database: correct its name in the URL, create it if it is new, or "
            "restore it; no job runs until then",
        )
    return problem(why, "no job runs until the database answers, but no job is lost; check the address and the server")


@dataclass(frozen=True)
class Blocker:
    """A session whose locks make sessions of cronjobs wait, or make ticks skip jobs.

    ``table`` is our table that the session has locked as a whole, or None. ``since`` is when its transaction began. If
    ``is_wait``, this user may not see that, so ``since`` is when the first session began to wait. If ``jobs_only``, no
    session waits, but the session has locked or changed jobs. ``pid`` is 0 for a prepared transaction.
    """

    pid: int
    user: str | None
    application: str | None
    state: str | None
    since: datetime | None
    table: str | None
    is_wait: bool = False
    jobs_only: bool = False


def locks(blockers: Sequence[Blocker], now: datetime) -> Diagnosis:
    """Judge the locks of other sessions. It is normal that a session holds a lock for a moment."""
    found = [each for each in blockers if each.since is None or now - each.since >= LONG_LOCK]
    if not found:
        return ok("no other session blocks cronjobs")
    text = "other sessions hold locks that make ticks wait, or may make them skip jobs: " + listed(
        [_blocker(each, now) for each in found]
    )
    first = next((each.pid for each in found if each.pid), 0)
    fix = (
        f'end that transaction: COMMIT or ROLLBACK in its session, or "SELECT pg_terminate_backend({first})" as its '
        "user or a superuser"
        if first
        else "COMMIT PREPARED or ROLLBACK PREPARED ends a prepared transaction (pg_prepared_xacts lists them)"
    )
    return problem(text, fix) if any(each.table for each in found) else warning(text, fix)


def _blocker(found: Blocker, now: datetime) -> str:
    who = f"pid {found.pid}" if found.pid else "a prepared transaction"
    facts = [
        *([f"application {one_line(found.application, 60)}"] if found.application else []),
        *([f"user {one_line(found.user, 60)}"] if found.user else []),
        *([found.state] if found.state else []),
        *([_since(found.since, now, is_wait=found.is_wait)] if found.since else []),
    ]
    rows = " has locked or changed jobs" if found.jobs_only else ""
    locked = f" has locked {found.table}" if found.table else rows
    return f"{who}{locked}" + (f" ({', '.join(facts)})" if facts else "")


def _since(since: datetime, now: datetime, *, is_wait: bool) -> str:
    what = "a session has been waiting for it" if is_wait else "in a transaction"
    return f"{what} since {since:%Y-%m-%d %H:%M:%S} UTC, for {rough(now - since)}"


def unknown(why: str) -> Diagnosis:
    return problem(why, "correct the configuration: no job runs until it names a database that can be used")


def revision(there: str | None, code: str, oldest_code: str | None) -> Diagnosis:
    """Compare the tables' revision *there* (None: no tables) with *code*, the revision of this version of cronjobs."""
    if there is None:
        return problem("the database has no cronjobs tables", "cronjobs db upgrade")
    if there < code:
        return problem(f"the tables are at revision {there}, but this version needs {code}", "cronjobs db upgrade")
    if there > code:
        works = oldest_code is not None and oldest_code <= code
        text = f"the tables are at revision {there}, which is newer than this version's revision {code}"
        fix = "install the version that the other hosts run"
        return (
            warning(f"{text}, but this version can use them", fix)
            if works
            else problem(f"{text}: ticks refuse to run", fix)
        )
    return ok(f"the tables are at this version's revision {code}")


def drift(findings: Sequence[str]) -> Diagnosis:
    if not findings:
        return ok("tables, indexes and constraints match this version")
    return problem(listed(findings), '"cronjobs db check" lists all differences; undo what was changed by hand')


def clocks(skew: timedelta, uncertain: timedelta, *, same_host: bool) -> Diagnosis:
    """Judge how far the host's clock is ahead of the database's. *skew* may be wrong by up to *uncertain*."""
    if same_host:
        return not_applicable("SQLite uses this host's clock")
    off = abs(skew) - uncertain
    by = f"{rough(skew)} {'ahead of' if skew > timedelta(0) else 'behind'} the database's"
    if off <= SKEWED:
        return ok("this host's clock and the database's agree")
    text = f"this host's clock is {by}: the database's clock decides what is due, but log lines use the host's clock"
    fix = "run an NTP client on both hosts, and check it with chronyc tracking or timedatectl"
    return problem(text, fix) if off > FAR_OFF else warning(text, fix)


# --- SQLite's file ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileFacts:
    """A SQLite file. ``mode`` and ``folder_mode`` are the permission bits of the file and of its folder."""

    path: str
    mode: int
    folder_mode: int
    ours: bool  # whether this user owns the file


def sqlite_place(path: str, filesystem: str | None) -> Diagnosis:
    """Judge whether an SQLite file may be kept at *path*.

    *filesystem* is the type, such as "ext4", or None if it is unknown.
    """
    if filesystem in ON_A_NETWORK:
        return problem(
            f"{path} is on a network file system ({filesystem}): SQLite's locks do not work there, "
            "so two hosts or one stale lock will corrupt the file",
            "move the file to a local disk, or use PostgreSQL (cronjobs db copy)",
        )
    return ok(f"{path} is on a local disk" + (f" ({filesystem})" if filesystem else ""))


def sqlite_modes(found: FileFacts) -> Diagnosis:
    if not found.ours:
        return warning(
            f"{found.path} belongs to another user: if two users run ticks, each locks the other out of "
            "its -wal and -shm files",
            "run the crontab line, the app and the commands as the same user, or as users who share a group",
        )
    if found.mode & 0o002 or (found.folder_mode & 0o002 and not found.folder_mode & 0o1000):
        return problem(
            f"everyone on this host can write to {found.path} or its folder, so anyone can enqueue and change jobs",
            f"chmod 600 {found.path}; chmod o-w on its folder",
        )
    if found.mode & 0o004:
        return warning(
            f"everyone on this host can read the payloads and results in {found.path}", f"chmod 600 {found.path}"
        )
    return ok(f"{found.path} is open to its user{' and group' if found.mode & 0o070 else ' alone'}")


def sqlite_journal(mode: str) -> Diagnosis:
    if mode == "wal":
        return ok("the journal mode is WAL")
    return warning(
        f"the journal mode is {mode}, not WAL: readers and writers wait for each other",
        "something changed the mode; cronjobs sets WAL again the next time that no other process has the file open",
    )


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def bloat(tables: Sequence[TableStatistics], *, autovacuum: bool) -> Diagnosis:
    if not autovacuum:
        return problem(
            "autovacuum is off on this server, so the tables that jobs change keep growing and get slower",
            "set autovacuum = on in postgresql.conf, and reload the server's configuration",
        )
    off = [table.name for table in tables if not table.autovacuum]
    if off:
        return problem(f"autovacuum is off for {listed(off)}", f"ALTER TABLE {off[0]} RESET (autovacuum_enabled)")
    bloated = [
        f"{table.name}: {table.dead:,} dead rows and {table.live:,} live ones ({table.size // MIB:,} MiB)"
        for table in tables
        if table.dead > MANY_ROWS and table.dead > table.live
    ]
    if bloated:
        return warning(
            f"vacuum does not keep up: {listed(bloated)}. The usual cause is a transaction that has been open for "
            "hours",
            "look for that transaction in pg_stat_activity (xact_start), end it, then VACUUM (ANALYZE) the table",
        )
    return ok(f"vacuum keeps up with {len(tables)} tables")


_RIGHT: Final = re.compile(r"([A-Z]+)(?: \(([^)]*)\))?")


@dataclass(frozen=True)
class RoleRights:
    """A role, its purpose, the rights that it should have, and the rights that it has.

    ``wanted`` maps a relation to rights such as "SELECT, UPDATE (column)". For PUBLIC, which should have no rights,
    ``wanted`` is None.
    """

    role: str
    kind: str
    wanted: Mapping[str, str] | None
    held: Sequence[HeldRights]
    superuser: bool = False


def rights(roles: Sequence[RoleRights]) -> Diagnosis:
    few: list[str] = []
    many: list[str] = []
    for role in roles:
        if role.superuser:
            many.append(f"{role.role} is a superuser")
            continue
        owned = [held.relation for held in role.held if held.owner]
        if owned and role.kind != "migrate":
            many.append(f"{role.role} owns {listed(owned, 2)}, so it may drop them, and change the audit trail")
        for held in role.held:
            wanted = {} if role.wanted is None else dict(_RIGHT.findall(role.wanted.get(held.relation, "")))
            missing = [right for right in wanted if right not in held.rights | held.partly]
            if missing:
                few.append(f"{role.role} lacks {', '.join(missing)} on {held.relation}")
            more = sorted(held.rights - {right for right, columns in wanted.items() if not columns})
            if more and not held.owner:
                many.append(f"{role.role} has {', '.join(more)} on {held.relation}")
            # Accept rights on any columns of cronjobs_jobs: "db grants" with --replace or --find grants more of them.
            partly = sorted(held.partly - held.rights - wanted.keys())
            if partly and not held.owner and held.relation != "cronjobs_jobs":
                many.append(f"{role.role} has {', '.join(partly)} on columns of {held.relation}")
    if few:
        return problem(
            f"too few rights: {listed(few)}",
            '"cronjobs db grants" prints the right GRANT statements; run them as the owner of the tables',
        )
    if many:
        return warning(
            f"more rights than needed: {listed(many)}",
            '"cronjobs db grants" prints the SQL for a role with only the needed rights; log in as that role',
        )
    return ok(f"{', '.join(role.role for role in roles if role.wanted is not None)} has only the rights that it needs")


def version(server: ServerFacts) -> Diagnosis:
    """Judge the server's version. cronjobs refuses to connect to a server that is too old."""
    major = server.version // 10_000
    if major > NEWEST_SERVER:
        return warning(f"PostgreSQL {major} is newer than any that this version was tested with", "see the changelog")
    return ok(f"PostgreSQL {major}.{server.version % 10_000}")
