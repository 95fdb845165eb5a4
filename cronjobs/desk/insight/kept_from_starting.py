"""Find out why ticks did not start: from the row of the next tick that did start, or from this user's state folder.

The state folder has the causes only until a tick starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.desk.rules.tick_rows import did_of, outages_in
from cronjobs.desk.store.explaining import records_between
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.tick.mail_throttle import alarms_of, all_kept_from_starting
from cronjobs.engine.tick.result import noted_causes
from cronjobs.text import one_line

FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LATEST: Final = datetime.max.replace(tzinfo=UTC)

Causes = tuple[tuple[str, int], ...]  # each item is a cause, and how many ticks it kept from starting


def kept_from_starting(did: Any, began: tuple[datetime, datetime] | None = None) -> Causes:
    """Return the causes in a tick's row that kept earlier ticks from starting.

    *began*: the first and the last instant at which a cause may have begun. A tick that could not record its end leaves
    its causes to a later tick. So a row may also have causes that ended long ago.
    """
    found = did_of(did).get("kept_from_starting")
    return tuple(
        (str(each.get("why")), ticks)
        for each in (found if isinstance(found, list) else ())
        if isinstance(each, Mapping) and isinstance(ticks := each.get("ticks"), int)
        if began is None or ((since := _began_at(each)) is not None and began[0] <= since <= began[1])
    )


def kept_before(
    connection: Connection, host: str, at: datetime, did: Any, within: timedelta, since: datetime = FIRST
) -> Causes:
    """Return why ticks of *host* did not start before the tick at *at*, whose row has *did*.

    *since*: when an earlier tick of the host started. Causes that began before *since* had ended by then, so they are
    left out. A tick that someone started in a terminal records no causes, and a killed tick records none either. Then
    cron's next tick records them. So if the row has no causes, search later rows, up to *within* after *at*.
    """
    if causes := kept_from_starting(did, (since, _LATEST)):
        return causes
    until = min(at, _LATEST - within) + within  # plain SQL may have written a date as late as year 9999
    return recorded_causes(connection, host, at, until, began=(since, at))


def recorded_causes(
    connection: Connection, host: str, begin: datetime, end: datetime, *, began: tuple[datetime, datetime]
) -> Causes:
    """Return the first causes in rows of *host*'s ticks from *begin* to *end*. *began*: see ``kept_from_starting``."""
    found = (row.did for row in reversed(records_between(connection, begin, end)) if row.host == host)
    return next(filter(None, (kept_from_starting(did, began) for did in found)), ())


def recorded_outage(connection: Connection, host: str, begin: datetime, end: datetime, within: timedelta) -> str | None:
    """Return why *host* could not use the database between *begin* and *end*, as its ticks recorded it.

    A tick that could not record its outage left that to a later tick. So search rows of ticks up to *within* after
    *end*.
    """
    found = (row.did for row in reversed(records_between(connection, begin, end + within)) if row.host == host)
    outages = (each for did in found for each in outages_in(did))
    return next((each.why for each in outages if each.began < end and each.ended > begin), None)


def first_cause_at(did: Any) -> datetime | None:
    """Return when the first of the causes in *did* began, or None if there is none.

    *did* may have any shape, because someone may have written the row with SQL.
    """
    with suppress(KeyError, TypeError, IndexError):
        return _began_at(did["kept_from_starting"][0])
    return None


def _began_at(cause: Any) -> datetime | None:
    with suppress(KeyError, TypeError, ValueError):
        since = datetime.fromisoformat(cause["since"])
        return since if since.tzinfo else None
    return None


def kept_from_starting_here(settings: Settings) -> Causes:
    """Return why this user's last ticks with the file here did not start, or () if the last tick started."""
    return kept_from_starting({"kept_from_starting": noted_causes(all_kept_from_starting(*alarms_of(settings)))})


def others_work(every: timedelta, at_work: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether another host is *at_work* and has ticked since this host stopped.

    If no host has, a deploy may have broken the file on all hosts.
    """
    here, at_work = Identity.here().host, list(at_work)
    stopped = max((tick["started_at"] for tick in at_work if tick["host"] == here), default=None)
    others = (tick["started_at"] for tick in at_work if tick["host"] != here)
    return any(stopped is None or began > stopped + every / 2 for began in others)


def did_not_start(whose: str, causes: Causes) -> str:
    """Return text such as "ticks of host web1 did not start: cronjobs.yaml:2:1: … (46 times)"."""
    listed = (f"{one_line(why, 200)} ({'once' if ticks == 1 else f'{ticks:,} times'})" for why, ticks in causes)
    return f"ticks of {whose} did not start: {'; '.join(listed)}"
