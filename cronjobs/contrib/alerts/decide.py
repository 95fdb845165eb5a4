"""Decide which findings begin and end, what to send about them, and when to look again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from cronjobs.contrib.alerts.statements import AlertState, DueAlert, Episode
from cronjobs.contrib.alerts.texts import DEAD
from cronjobs.desk.insight.finding import Covered, together
from cronjobs.desk.insight.findings import Finding, Severity
from cronjobs.desk.insight.health import Health
from cronjobs.desk.insight.run_watch import grace_of
from cronjobs.desk.insight.watched import FORGOTTEN, last_sign, quiet_after
from cronjobs.engine.config.settings import AlertChannel
from cronjobs.engine.crontime.timing import next_after
from cronjobs.engine.rules.repeating import HOURLY, silence
from cronjobs.engine.schedules.definition import schedule_from_definition
from cronjobs.engine.schedules.planning import read
from cronjobs.engine.store.schedules import StoredSchedule

UNDELIVERED: Final = "alert"  # the kind of finding for a channel that does not deliver
# The kind of finding about one host's files. Only that host can see whether such a finding is over.
OF_ONE_HOST: Final = "config"
WHILE_QUIET: Final = timedelta(minutes=5)  # the longest time between looks: some findings change without any tick
# The time between looks while a finding is open, or may begin although no tick writes a fact.
WHILE_OPEN: Final = timedelta(minutes=2)
ROWS_KEPT: Final = 1000  # at most this many rows are stored for a finding
OFTEN: Final = 3  # if a finding recurs this often within an hour, its next message is delayed
# How far back to look for dead jobs that a message named: the hour of OFTEN, plus the hour of the delay.
HEARD_WITHIN: Final = 2 * HOURLY
FIRST_RETRY: Final = timedelta(minutes=1)
LONGEST_RETRY: Final = timedelta(minutes=15)


# --- findings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changes:
    """The changes to the stored findings after a look. ``lasting`` maps episode ids to the findings that continue.

    ``replaced`` lists the episodes that another finding now covers. They end without a message, because their cause is
    still there.
    """

    opened: list[Finding]
    changed: list[tuple[Episode, dict[str, Any]]]
    ended: list[Episode]
    lasting: dict[int, Finding]
    replaced: list[Episode] = field(default_factory=list)


def merged(found: Iterable[Finding], host: str) -> list[Finding]:
    """Merge findings that have the same key into the worst of them, with the rows of all of them.

    Findings about the files of one host get *host* as their subject.
    """
    by_key: dict[str, list[Finding]] = {}
    for finding in found:
        if finding.kind == OF_ONE_HOST and not finding.subject:
            finding = replace(finding, subject=host)
        by_key.setdefault(finding.key, []).append(finding)
    return [together(group) for group in by_key.values()]


def host_of(finding: Finding) -> str:
    """Return the only host that can end the finding, or "" if any host can."""
    return finding.subject if finding.kind == OF_ONE_HOST else ""


def compare(
    found: Sequence[Finding], episodes: Sequence[Episode], host: str, *, sees_all: bool, ticking: Collection[str]
) -> Changes:
    """Compare the findings of a look with the open episodes. *found* holds one finding per key.

    *sees_all* is whether this process has loaded this host's handlers. *ticking* lists the hosts that tick. If a host
    does not tick, any other host may end the findings about it.
    """
    now_there = {finding.key: finding for finding in found}
    covered = [each for finding in found for each in (*finding.covers, *finding.follows)]
    changes = Changes([], [], [], {})
    for episode in episodes:
        finding = now_there.get(episode.finding)
        began_anew = finding is not None and _began_anew(episode, finding)
        if finding is not None and not began_anew:
            del now_there[episode.finding]
            changes.lasting[episode.id] = finding
            if different := _different(episode, finding):
                changes.changed.append((episode, different))
        elif any(_is_behind(episode, each) for each in covered):
            changes.replaced.append(episode)
        elif began_anew or (episode.host == host and sees_all) or episode.host not in ticking:
            changes.ended.append(episode)
    changes.opened.extend(now_there.values())
    return changes


def _began_anew(episode: Episode, finding: Finding) -> bool:
    """Whether the episode ended after the last look, and the finding began again before this look.

    If it did, none of the episode's rows is left, and the whole finding is newer than the episode's beginning. For a
    finding about one host the rows prove nothing, because another host words them differently.
    """
    later = finding.since is not None and finding.since > episode.began_at
    other_rows = bool(episode.rows and finding.rows) and set(episode.rows).isdisjoint(finding.rows)
    return later and other_rows and finding.kind != OF_ONE_HOST


def _is_behind(episode: Episode, covered: Covered) -> bool:
    by_rows = not covered.rows or not set(covered.rows).isdisjoint(episode.rows)
    in_time = covered.until is None or episode.began_at <= covered.until
    return episode.finding == covered.key and by_rows and in_time


def _different(episode: Episode, finding: Finding) -> dict[str, Any]:
    worst = min(Severity(episode.severity), finding.severity, key=lambda severity: severity.rank)
    wanted: dict[str, Any] = {
        "severity": str(worst),
        "text": finding.text,
        "command": finding.command,
        "rows": kept_rows(finding),
    }
    return {name: value for name, value in wanted.items() if value != getattr(episode, name)}


def kept_rows(finding: Finding) -> tuple[str, ...]:
    """Return the newest ROWS_KEPT rows of the finding. The newest rows are last, because newer ids are higher."""
    return finding.rows[-ROWS_KEPT:]


# --- messages ---------------------------------------------------------------------------------------------------------


def wants(channel: AlertChannel, finding: Finding) -> bool:
    """Whether *channel* gets messages about *finding*. No channel gets messages about an acknowledged finding.

    A channel that wants a finding also gets the finding that covers it, even if the covering finding is of a kind that
    the channel does not want.
    """
    only = channel.only
    keys = [finding.key, *(each.key for each in finding.covers)]
    return (
        finding.ack is None
        and finding.severity.rank <= Severity(only.severity).rank
        and any(only.asks_for(key) for key in keys)
        and not (finding.kind == UNDELIVERED and finding.subject == channel.name)
    )


def is_news(finding: Finding, heard: Collection[str]) -> bool:
    """Whether the finding has a dead job that is not in *heard*, the jobs that recent messages named."""
    return finding.kind == DEAD and not set(kept_rows(finding)).issubset(heard)


def due_at(
    finding: Finding, state: AlertState | None, now: datetime, *, came_often: bool = False, news: bool = False
) -> datetime:
    """Return when the next message about a lasting finding is due. Messages are due at once, then hourly, then daily.

    A worse severity makes the message due at once. A new row makes messages hourly again, however old the finding is.
    If the finding *came_often* lately, its first message is delayed by an hour, unless it is *news*.
    """
    if state is None:
        return now + HOURLY if came_often and not news else now
    if state.failures:  # the failed delivery has already set the time of the retry
        return state.due_at or now
    if state.sent_at is None or state.first_at is None:
        return now if state.due_at is None or (news and state.due_at > now) else state.due_at
    if state.severity is None or finding.severity.rank < Severity(state.severity).rank:
        return now
    if set(kept_rows(finding)) - set(state.rows):
        return max(now, state.sent_at + HOURLY)
    return max(now, state.sent_at + silence(state.sent_at - state.first_at))


def over_at(state: AlertState, now: datetime) -> datetime | None:
    """Return when to send "it is over": now, or None if no message about the finding was sent or is being sent."""
    return now if state.sent or state.locked_until is not None else None


def is_unheard(state: AlertState) -> bool:
    """Whether the finding ended before any message about it was delivered. Then "it is over" would confuse people."""
    return state.over and not state.sent and state.failures > 0


def after_sending(alert: DueAlert, now: datetime) -> datetime | None:
    """Return when to repeat a message that was just sent, or None if the message said that the finding is over."""
    if alert.state.over:
        return None
    return now + silence(now - (alert.state.first_at or now))


def after_failing(alert: DueAlert, now: datetime) -> datetime:
    """Return when to retry after a failed delivery."""
    tries: int = 2 ** min(alert.state.failures, 10)
    return now + min(LONGEST_RETRY, FIRST_RETRY * tries)


# --- when to look again -----------------------------------------------------------------------------------------------


def ticking_hosts(health: Health) -> set[str]:
    """Return the hosts that have ticked within the last day."""
    signs = {tick["host"]: tick["finished_at"] or tick["started_at"] for tick in health.ticks}
    return {host for host, sign in signs.items() if abs(health.now - sign) < FORGOTTEN}


def next_look(health: Health, every: timedelta, host: str, *, open_or_waiting: bool) -> datetime:
    """Return when to look next if no tick works until then. A tick that does work always looks.

    Even while no tick works, a finding may begin, end, or be due for a repeated message.
    """
    now = health.now
    # Some findings begin although no tick works: an app fills a capped queue, or a tick is killed before it records its
    # end.
    capped = any(queue.max_waiting is not None for queue in health.waiting.queues.values())
    unended = any(tick["finished_at"] is None for tick in health.ticks)
    if open_or_waiting or health.pauses or health.running_total or capped or unended:
        return now + WHILE_OPEN
    others = [tick for tick in health.ticks if tick["host"] != host]
    silent = [
        sign + quiet_after(every) + timedelta(seconds=1)
        for tick in others
        if (sign := last_sign([tick])) is not None and sign <= now
    ]
    graces = [at for stored in health.watch.schedules if (at := _grace_ends(stored, now)) is not None]
    extras = [] if health.of_extras.again_at is None else [health.of_extras.again_at + timedelta(seconds=1)]
    return min([now + WHILE_QUIET, *(at for at in (*silent, *graces, *extras) if at > now)])


def _grace_ends(stored: StoredSchedule, now: datetime) -> datetime | None:
    """Return when the grace of the current or next occurrence ends, or None if the schedule has no grace."""
    try:
        schedule = schedule_from_definition(stored.name, stored.definition)
        if schedule.grace is None or stored.status != "active":
            return None
        grace = grace_of(schedule)
        due = next_after(read(stored.name, stored.definition).when, now - grace)
    except ValueError:
        return None
    return None if due is None else due + grace
