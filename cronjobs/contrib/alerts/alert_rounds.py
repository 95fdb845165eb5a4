"""Look for findings, and send messages. A look judges the project's health and stores the findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.contrib.alerts import decide, texts
from cronjobs.contrib.alerts import statements as store
from cronjobs.contrib.alerts.deliver import CHANNEL_S, LEAST_S, deliver
from cronjobs.contrib.alerts.statements import DueAlert, Episode, FailedJob
from cronjobs.desk.insight.causes import find_causes
from cronjobs.desk.insight.findings import Finding, judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.health import Health
from cronjobs.engine.config.settings import AlertChannel, Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.causes import Cause
from cronjobs.engine.rules.repeating import HOURLY
from cronjobs.engine.store.alerts import look_soon
from cronjobs.engine.store.job_types import remembered, runnable_types
from cronjobs.engine.store.sql import database_now
from cronjobs.errors import DatabaseError

JOBS_SHOWN: Final = 3  # a message names at most this many jobs per finding
LOOKS: Final = 3  # if facts change during each look, look at most this many times in a row
PATIENCE_S: Final = 2.0  # how long to wait for SQLite's write lock


@dataclass(frozen=True)
class Alerting:
    """Looks for findings and sends messages about them. ``me`` identifies this tick in the messages' leases."""

    settings: Settings
    database: Database
    host: str
    me: str
    emit: Callable[[events.Event], None]

    @property
    def channels(self) -> dict[str, AlertChannel]:
        return {} if self.settings.alerts is None else self.settings.alerts.channels

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self, types: JobTypes | None, *, anyway: bool, has_time: Callable[[], bool] = lambda: False) -> bool:
        """Look if a look is due or *anyway* is true. Return whether this process looked. Raises DatabaseError.

        If facts change during a look, discard its findings and look again, up to ``LOOKS`` times, while *has_time*
        returns True. Jobs of a crontab often end in the same seconds of every minute, so they could make every tick
        discard its only look. If facts change even during the last of these looks, that look stores the findings that
        have begun.

        *types* holds this host's job types, or is None if the handlers are not loaded. If they are not, and no recent
        tick has recorded its job types, leave the look to a tick that loads the handlers.
        """
        with self.database.read() as connection:
            if types is None and runnable_types(connection, remembered(self.settings.run.every)) is None:
                return False
        for number in range(LOOKS):
            if number and not has_time():
                break
            with self.database.write(patience=PATIENCE_S) as connection:
                token = store.begin_look(connection, anyway=anyway and number == 0)
            if token is None:  # no look is due, or another process has begun a look
                return number > 0
            with self.database.read() as connection:
                health = look(connection, self.settings, types or JobTypes({}))
            found = decide.merged(judge(health, self.settings), self.host)
            with self.database.write(patience=PATIENCE_S) as connection:
                last = number + 1 == LOOKS
                if self._write(connection, health, found, token, sees_all=types is not None, last=last):
                    break
        return True

    def _write(
        self,
        connection: Connection,
        health: Health,
        found: Sequence[Finding],
        token: datetime,
        *,
        sees_all: bool,
        last: bool,
    ) -> bool:
        """Store the findings. If facts have changed since the look began, store nothing and return False.

        If facts have changed but this is the *last* look, store the findings that have begun, and end none. The next
        look stays due.
        """
        next_at = decide.next_look(health, self.settings.run.every, self.host, open_or_waiting=True)
        # Replace the look's token before storing anything. If two processes look at once, the second waits here for the
        # first, and then finds that the token has changed.
        overtaken = not store.end_look(connection, token, next_at)
        if overtaken and not (last and store.may_add(connection)):
            return False
        episodes = store.open_episodes(connection)
        ticking = decide.ticking_hosts(health)
        changes = decide.compare(found, episodes, self.host, sees_all=sees_all, ticking=ticking)
        if overtaken:
            changes = replace(changes, ended=[], replaced=[])
        for episode, values in changes.changed:
            store.change_episode(connection, episode.id, **values)
        for episode in changes.ended + changes.replaced:  # end these before opening a finding that has begun again
            store.change_episode(connection, episode.id, ended_at=health.now)
        often = {
            name
            for name, times in store.episodes_since(connection, health.now - HOURLY).items()
            if times >= decide.OFTEN
        }
        for finding in changes.opened:
            opened = self._open(connection, finding, health)
            if opened is not None:
                changes.lasting[opened.id] = finding
        heard = store.rows_reported(connection, texts.DEAD, health.now - decide.HEARD_WITHIN)
        states = store.states_of(
            connection, [*changes.lasting, *(each.id for each in changes.ended + changes.replaced)]
        )
        for id_, finding in changes.lasting.items():
            for channel in self.channels.values():
                state = states.get((id_, channel.name))
                wanted = decide.wants(channel, finding)
                if state is None and not wanted:
                    continue
                came_often, news = finding.key in often, decide.is_news(finding, heard.get(channel.name, ()))
                due = decide.due_at(finding, state, health.now, came_often=came_often, news=news) if wanted else None
                if state is None or state.due_at != due:
                    store.put_state(connection, id_, channel.name, due, over=False)
        for episode in changes.ended + changes.replaced:
            for (id_, name), state in states.items():
                if id_ == episode.id:
                    due = None if episode in changes.replaced else decide.over_at(state, health.now)
                    store.put_state(connection, id_, name, due, over=due is not None)
        news = any(decide.wants(way, each) for way in self.channels.values() for each in changes.lasting.values())
        if not (news or store.something_waits(connection, self.channels)):
            quiet = decide.next_look(health, self.settings.run.every, self.host, open_or_waiting=False)
            store.end_look(connection, next_at, quiet)
        return True

    def _open(self, connection: Connection, finding: Finding, health: Health) -> Episode | None:
        since = finding.since
        return store.open_episode(
            connection,
            finding=finding.key,
            kind=finding.kind,
            severity=str(finding.severity),
            text=finding.text,
            command=finding.command,
            rows=decide.kept_rows(finding),
            host=decide.host_of(finding),
            began_at=health.now if since is None else min(since, health.now),
            found_at=health.now,
        )

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, left_s: Callable[[], float]) -> None:
        """Send due messages, one per channel, in parallel, if there is time. Raises DatabaseError.

        Messages are leased, sent outside any transaction, then marked as sent or failed. If the process dies between
        sending and marking, the message is sent again after its lease expires. If there is no time, the next tick sends
        the messages. After a delivery, also send the channel's messages that wait for another try.
        """
        with self.database.read() as connection:
            names = store.due_channels(connection) & self.channels.keys()
        if not names:
            return
        if (spare_s := left_s() - LEAST_S) < 0:
            with self.database.write(patience=PATIENCE_S) as connection:
                look_soon(connection)
            return
        leased = self._lease(names, min(PATIENCE_S, spare_s))
        answers: list[tuple[Sequence[DueAlert], str | None]] = []
        delivered = False
        messages, folder = self._messages(leased), self.settings.folder
        for name, error in deliver(messages, self.channels, folder, min(CHANNEL_S, left_s())):
            self.emit(
                events.alert_sent(name, len(leased[name]))
                if error is None
                else events.alert_not_sent(name, len(leased[name]), error)
            )
            answers.append((leased[name], error))
            delivered |= error is None
            # If the database fails here, keep sending. The next call of _mark_all tries to mark this channel again.
            with suppress(DatabaseError):
                self._mark_all(answers)
        self._mark_all(answers)
        if delivered:
            self.send(left_s)

    def _lease(self, names: Collection[str], patience_s: float) -> dict[str, list[DueAlert]]:
        """Lease the due messages, except those that another process is sending. Return them by channel."""
        found: dict[str, list[DueAlert]] = {}
        with self.database.write(patience=patience_s) as connection:
            for name in self.channels:
                for alert in store.lease_due(connection, name, self.me) if name in names else ():
                    # If the finding ended before any message about it was delivered, drop the "over" message too.
                    if decide.is_unheard(alert.state):
                        store.put_state(connection, alert.episode.id, name, None, over=True)
                    else:
                        found.setdefault(name, []).append(alert)
        return found

    def _messages(self, leased: Mapping[str, Sequence[DueAlert]]) -> dict[str, texts.Message]:
        if not leased:
            return {}
        with self.database.read() as connection:
            now = database_now(connection)
            lasting = {each.episode.kind for due in leased.values() for each in due if not each.state.over}
            why = find_causes(connection).found if texts.DEAD in lasting else []
            found = {name: jobs_behind(connection, due[: texts.MOST], why) for name, due in leased.items()}
            return {
                name: texts.message(due, found[name], self.settings, self.host, now, why)
                for name, due in leased.items()
            }

    def _mark_all(self, answers: list[tuple[Sequence[DueAlert], str | None]]) -> None:
        """Mark the channels' messages as sent or failed. Remove marked channels from *answers*."""
        while answers:
            self._mark(*answers[0])
            del answers[0]

    def _mark(self, due: Sequence[DueAlert], error: str | None) -> None:
        with self.database.write(patience=PATIENCE_S) as connection:
            now = database_now(connection)
            for alert in due:
                if error is None:
                    store.mark_sent(connection, alert, self.me, now, decide.after_sending(alert, now))
                else:
                    again = decide.after_failing(alert, now)
                    store.mark_failed(connection, alert, self.me, now, next_at=again, error=error)
            if error is None and due:
                store.try_again_now(connection, due[0].state.channel, now)


def jobs_behind(connection: Connection, alerts: Sequence[DueAlert], why: Sequence[Cause]) -> dict[int, list[FailedJob]]:
    """Return a few jobs of each episode, by the episode's id. For the finding "dead", return one job per cause."""
    ids: dict[int, list[int]] = {}
    for alert in alerts:
        if not alert.state.over:
            ids[alert.episode.id] = _job_ids(connection, alert.episode, why)
    jobs = {job.id: job for job in store.failed_jobs(connection, {id_ for found in ids.values() for id_ in found})}
    return {episode: [jobs[id_] for id_ in found if id_ in jobs] for episode, found in ids.items()}


def _job_ids(connection: Connection, episode: Episode, why: Sequence[Cause]) -> list[int]:
    match episode.kind:
        case texts.DEAD:
            lately = sorted(why, key=lambda cause: cause.last_died_at, reverse=True)
            return [cause.sample_job_id for cause in lately[:JOBS_SHOWN]]
        case "threshold":
            return store.newest_dead(connection, JOBS_SHOWN)
        case "failing" | "missed" | "schedule":
            return store.newest_failed(connection, episode.rows, JOBS_SHOWN)
    return []
