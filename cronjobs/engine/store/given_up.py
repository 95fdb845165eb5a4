"""Work that cronjobs has given up on for good.

Each audit entry about such work is a finding until a person acknowledges it. Later runs do not end the finding, because
they do not make up for the lost work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.engine.probe.sql_text import AUDIT
from cronjobs.engine.store.sql import run
from cronjobs.engine.store.ticks import AuditAct, record_all

# The next two constants are kinds of findings, and also the actions of the audit entries behind these findings.
# Occurrences beyond ``catch_up_limit`` were dropped. The entries count them by schedule.
DROPPED: Final = "dropped"
# Dead jobs were pruned before anyone had dealt with them. The entries count them by job type.
PRUNED: Final = "pruned"
KINDS: Final = (DROPPED, PRUNED)
BY: Final = "cronjobs"
# Read at most this many entries of each kind.
READ: Final = 1000
ACKS_READ: Final = 100


@dataclass(frozen=True)
class GivenUp:
    """The audit entries that nobody has acknowledged: ids (oldest first), counts by name, and the time of the oldest
    entry.

    If ``more`` is True, further entries exist. ``jobs`` has the ids of the jobs that the entries name.
    """

    ids: tuple[int, ...]
    by_name: Mapping[str, int]
    since: datetime
    more: bool = False
    jobs: frozenset[int] = frozenset()


def give_up(connection: Connection, kind: str, found: Mapping[str, Mapping[str, Any]], at: datetime) -> None:
    """Record what was given up. *found* has the details by schedule or job type, each with a "count"."""
    acts = [AuditAct(kind, name, BY, dict(detail)) for name, detail in sorted(found.items())]
    record_all(connection, acts, host=None, at=at)


def given_up(connection: Connection, kind: str) -> GivenUp | None:
    """Return the entries of this *kind* that nobody has acknowledged, or None if no such entry exists."""
    # Read the oldest first, because an ack covers all entries up to the newest one that the person was shown. Without
    # "+ 0", PostgreSQL may walk the whole audit trail.
    rows = run(
        connection,
        f"SELECT a.id, a.subject, a.at, a.detail FROM {AUDIT} a WHERE a.action = :kind AND a.id > :after "
        "ORDER BY a.id + 0 LIMIT :most",
        kind=kind,
        after=_acknowledged_up_to(connection, kind),
        most=READ + 1,
    ).all()
    if not rows:
        return None
    counts: Counter[str] = Counter()
    for row in rows[:READ]:
        counts[row.subject] += count_of(row.detail)
    jobs = frozenset(each for row in rows[:READ] for each in pruned_jobs(row.detail))
    since = min(row.at for row in rows[:READ])
    return GivenUp(tuple(row.id for row in rows[:READ]), counts, since, len(rows) > READ, jobs)


def pruned_dead(connection: Connection, job_ids: Collection[int]) -> dict[int, datetime]:
    """Return when pruning removed these jobs. Jobs that were not dead, or had been dismissed, are left out."""
    found: dict[int, datetime] = {}
    if not job_ids:
        return found
    wanted = set(job_ids)
    # Without "+ 0", PostgreSQL may walk the whole audit trail.
    rows = run(
        connection,
        f"SELECT a.at, a.detail FROM {AUDIT} a WHERE a.action = :kind AND a.actor = :by "
        "ORDER BY a.id + 0 DESC LIMIT :most",
        kind=PRUNED,
        by=BY,
        most=READ,
    )
    for row in rows:
        found |= dict.fromkeys((each for each in pruned_jobs(row.detail) if each in wanted), row.at)
    return found


def pruned_jobs(detail: Any) -> list[int]:
    """Return the ids of the jobs that a PRUNED entry names.

    An entry that covers very many jobs names only the first of them.
    """
    named = detail.get("jobs") if isinstance(detail, Mapping) else None
    return [each for each in named if isinstance(each, int)] if isinstance(named, list) else []


def count_of(detail: Any) -> int:
    """Return how many occurrences or jobs were given up, according to an entry of one of KINDS."""
    count = detail.get("count") if isinstance(detail, Mapping) else None
    return count if isinstance(count, int) else 1


def _acknowledged_up_to(connection: Connection, kind: str) -> int:
    """Return the id of the newest acknowledged entry, or 0. An acknowledgement that was taken back does not count."""
    rows: Sequence[Any] = run(
        connection,
        f"SELECT a.id, a.action, a.detail FROM {AUDIT} a WHERE a.action IN ('ack', 'unack') AND a.subject = :kind "
        "ORDER BY a.id DESC LIMIT :most",
        kind=kind,
        most=ACKS_READ,
    ).all()
    taken_back = 0
    for row in rows:
        if row.action == "unack":
            taken_back += 1
        elif taken_back:
            taken_back -= 1
        else:
            up_to = row.detail.get("up_to") if isinstance(row.detail, Mapping) else None
            return up_to if isinstance(up_to, int) else row.id
    return 0
