"""Format rows for people, on terminals and pages: instants, spans, tries.

Anyone may have written the texts in rows, so ``safe`` neutralizes control characters and masks secrets.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronjobs import masking
from cronjobs.desk.rules.pausing import what
from cronjobs.desk.rules.tick_rows import was_importing
from cronjobs.engine.tick.result import NOTHING_DUE, did_in_words
from cronjobs.model import Status, in_zone, rough
from cronjobs.text import one_line

_UTC: Final = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?\+00:00")
CELL_LIMIT: Final = 300  # show at most this many characters of a text in one cell


def safe(value: object, limit: int = CELL_LIMIT) -> str:
    """Format *value* as one line without control characters. None gives ""."""
    if value is None:
        return ""
    # Mask secrets inside lists and objects first: repr may escape a secret, and then the secret would not be
    # recognised.
    text = str(masking.hide_in(value)) if isinstance(value, dict | list | tuple) else str(value)
    return one_line(masking.hide(text), limit)


def key_text(job: Mapping[str, Any], limit: int = CELL_LIMIT) -> str:
    """Format a job's idempotency key, or the key that the job lost when it was cancelled."""
    if job["released_key"] is None:
        return safe(job["idempotency_key"], limit)
    return f"{safe(job['released_key'], limit)} (released: the job was cancelled before it started)"


def status_word(status: str) -> str:
    """Return a status or outcome in words for people. For example, "failed" means that the job will be retried."""
    return {"failed": "retrying", "early": "ran early"}.get(status, status)


def pause_text(pause: Mapping[str, Any], times: LocalTimes) -> str:
    """Describe what a pause stops, when it ends, who made it and why."""
    until = f"until {times.clock(pause['until'])}" if pause["until"] else "until someone resumes it"
    by = f", by {pause['by']}" if pause["by"] else ""
    skips = ", skipping what comes due" if pause["skip"] else ""
    why = f": {pause['why']}" if pause["why"] else ""
    return safe(f"{what(pause['scope'], pause['name'])} {until}{skips}{by}{why}")


def at_work_within(budget: timedelta) -> timedelta:
    """Return the age up to which an unfinished tick counts as at work. An older unfinished tick was probably killed."""
    return max(timedelta(minutes=2), budget + timedelta(minutes=1))


def is_over(tick: Mapping[Any, Any], now: datetime, budget: timedelta, *, gone: bool | None) -> bool:
    """Return whether an unfinished tick is over.

    *gone* is the result of ``Holders.tick_is_gone``. If it is None, the age of the tick decides.
    """
    return now - tick["started_at"] >= at_work_within(budget) if gone is None else gone


def did_and_ended(tick: Mapping[str, Any], now: datetime, budget: timedelta, *, gone: bool | None) -> str:
    """Describe what a tick did and how it ended. An unfinished tick long past *budget* was probably killed.

    *gone*: whether the tick's process has ended, or None if this cannot be known here.
    """
    done = did_in_words(tick["did"]) if isinstance(tick["did"], dict) else ""
    # A tick completes its row last of all, so this tick has not ended.
    if tick["finished_at"] is None:
        over = is_over(tick, now, budget, gone=gone)
        if gone is None:
            ended = "did not end; was it killed?" if over else "no end recorded yet"
        else:
            ended = "its process is gone" if gone else "at work"
        if was_importing(tick["did"]):
            ended += f"; it {'was' if over else 'is'} importing the handlers"
    else:
        ended = safe(tick["ended"])
    # Write only "no job", since schedules that the tick could not fire may be due.
    if ended == NOTHING_DUE:
        ended = "" if done else "no job was due"
    return "; ".join(part for part in (done, ended) if part)


@dataclass(frozen=True)
class LocalTimes:
    """Format instants in *timezone*. The date is included only if it differs from the date of *about*."""

    about: datetime
    timezone: str

    def clock(self, instant: datetime) -> str:
        """Return text such as "14:03:07".

        The date is included if it differs from the date of *about*, and the offset if the hour is repeated.
        """
        local = self.local(instant)
        return self._of_day(local) if local.date() == self.local(self.about).date() else self.dated(instant)

    def dated(self, instant: datetime) -> str:
        local = self.local(instant)
        return f"{local:%Y-%m-%d} {self._of_day(local)}"

    def between(self, first: datetime, last: datetime) -> str:
        """Return text such as "2026-11-20 02:15:00 … 02:45:00". The second date is included only if it differs."""
        return f"{self.dated(first)} … {replace(self, about=first).clock(last)}"

    def span(self, first: datetime, last: datetime) -> str:
        """Return text such as "02:15:00 to 02:45:00". A date is included only if it is new."""
        on_its_day = LocalTimes(first, self.timezone)
        end = on_its_day.clock(last)
        return self.clock(first) + (f" to {end}" if end != on_its_day.clock(first) else "")

    def full(self, instant: datetime) -> str:
        """Return text such as "2026-11-20 02:15:00 America/New_York"."""
        return f"{self.dated(instant)} {self.timezone}"

    def with_utc(self, instant: datetime) -> str:
        """Return text such as "2026-11-20 02:15:00 America/New_York (07:15:00 UTC)"."""
        if self.timezone == "UTC":
            return self.full(instant)
        utc = instant.astimezone(UTC)
        date = f"{utc:%Y-%m-%d} " if utc.date() != self.local(instant).date() else ""
        return f"{self.full(instant)} ({date}{utc:%H:%M:%S} UTC)"

    def local(self, instant: datetime) -> datetime:
        return in_zone(instant, ZoneInfo(self.timezone))

    def _of_day(self, local: datetime) -> str:
        first, second = (local.replace(fold=fold).utcoffset() for fold in (0, 1))
        twice = first is not None and second is not None and first > second
        return f"{local:%H:%M:%S} {local:%z}" if twice else f"{local:%H:%M:%S}"


class Times(LocalTimes):
    """Format instants relative to the database's *now*."""

    @property
    def now(self) -> datetime:
        return self.about

    def ago(self, instant: datetime) -> str:
        """Return text such as "3m ago", "in 4h" or "now"."""
        span = self.now - instant
        if abs(span) < timedelta(seconds=1):
            return "now"
        return f"{rough(span)} ago" if span > timedelta(0) else f"in {rough(span)}"

    def since(self, instant: datetime) -> str:
        """Return text such as "3m", or "in 4h" if a wrong clock put *instant* in the future."""
        span = self.now - instant
        return rough(span) if span > timedelta(seconds=-1) else f"in {rough(span)}"

    def lasting(self, began: datetime) -> str:
        """Return text such as "for 3m", or "begun in 4h" if a wrong clock put *began* in the future."""
        return f"{'for' if began <= self.now else 'begun'} {self.since(began)}"

    def both(self, instant: datetime) -> str:
        return f"{self.ago(instant)} ({self.clock(instant)})"

    def was_due(self, instant: datetime) -> str:
        """Return "was due 3m ago (13:59:07)" or, within the last second, "is due now (14:02:07)"."""
        return f"{'is' if self.ago(instant) == 'now' else 'was'} due {self.both(instant)}"

    @property
    def now_text(self) -> str:
        return self.full(self.now)


def in_full(instant: datetime, timezone: str) -> str:
    """Format an instant without context, such as "2026-11-20 02:15:00 America/New_York"."""
    return LocalTimes(instant, timezone).full(instant)


def took(started_at: datetime | None, finished_at: datetime | None) -> str:
    """Format how long something ran, or return "" if that is unknown."""
    return "" if started_at is None or finished_at is None else rough(finished_at - started_at)


def pace_lately(a_minute: float) -> str:
    """Return text such as "1,468 a minute succeeded lately".

    The text does not predict when the work ends: ticks may have been paused for a part of that time, or may be gone.
    """
    pace = f"{a_minute:,.0f} a minute" if a_minute >= 1 else f"{60 * a_minute:,.0f} an hour"
    return f"{pace} succeeded lately"


def long_jobs_off(hosts: Collection[str], *, no_other: bool) -> str:
    """Return text such as "long jobs are off on web2 (run.long_jobs: 0), the only host that ticks".

    *no_other*: whether no other host ticks.
    """
    alone = "" if not no_other else ", the only host that ticks" if len(hosts) == 1 else ", the only hosts that tick"
    return f"long jobs are off on {one_line(', '.join(sorted(hosts)), 300)} (run.long_jobs: 0){alone}"


def ran_for(outcome: str, started_at: datetime, finished_at: datetime) -> str:
    """Return text such as "took 8.4s". A lost attempt's end is unknown, so its text is "found 1m after it began"."""
    span = rough(finished_at - started_at)
    return f"found {span} after it began" if outcome == "lost" else f"took {span}"


def without_attempts(attempts: int, finished_at: datetime | None) -> str:
    """Return why a job has no recorded attempt. *attempts*: how many it had. *finished_at*: when the job ended."""
    if finished_at is None:
        return "no attempt has ended yet"
    return "the attempts of this job are pruned" if attempts else "this job had no attempt"


def died_lost(status: str, error_type: str | None) -> bool:
    """Return whether the job died because its last attempt was lost.

    The ``finished_at`` of such a job is the time at which a tick noticed the loss.
    """
    return status == Status.DEAD and error_type == "Lost"


def on_the_clock(text: str, times: LocalTimes) -> str:
    """Convert the UTC instants that cronjobs wrote into *text* to the time zone of *times*."""

    def clock(found: re.Match[str]) -> str:
        try:
            return times.clock(datetime.fromisoformat(found[0]))
        except (ValueError, OverflowError):  # plain SQL can have written any text
            return found[0]

    return _UTC.sub(clock, text)


def counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def tries(failures: int, most: int | None) -> str:
    """Return text such as "failed 3 of 10". For people we count tries, not attempts."""
    if not failures:
        return ""
    return f"failed {failures} of {most}" if most is not None else f"failed {counted(failures, 'time')}"


def host_of(holder: str | None) -> str:
    """Return the name of the host in the text of ``locked_by`` or ``runner``."""
    return safe((holder or "").partition(":")[0], 40)
