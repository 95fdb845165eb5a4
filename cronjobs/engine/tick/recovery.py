"""Settle the attempts of runners that are gone, and shorten leases that were written while a clock was wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection

from cronjobs import events
from cronjobs.engine.host.identity import is_gone
from cronjobs.engine.rules.ending import Decided, as_cancelled, settle_expired
from cronjobs.engine.rules.lease import Expired, lease_of
from cronjobs.engine.rules.recovery_policy import AttemptPolicy
from cronjobs.engine.store import expiry, leases, tokens
from cronjobs.engine.store.crashing_types import note_deaths
from cronjobs.engine.store.expiry import Leased
from cronjobs.engine.store.leases import FinishResult
from cronjobs.engine.store.ticks import Overview
from cronjobs.engine.tick.context import TickContext
from cronjobs.engine.tick.runners import Runners, before_a_reboot, lease_is_wrong, sort_runners
from cronjobs.errors import DatabaseError
from cronjobs.model import Job, Lost, Released, RetryPolicy

RECOVER_BATCH: Final = 200


@dataclass
class Recovery:
    """Settles the attempts of dead runners, for one *tick*."""

    tick: TickContext
    runners: Runners = field(default_factory=Runners)
    far: list[Leased] = field(default_factory=list)
    # Runners that died while they held a job, by the type of that job.
    deaths: dict[str, str] = field(default_factory=dict)
    recovered: int = 0

    def look(self, connection: Connection, seen: Overview) -> bool:
        """Find out which of this host's runners are dead and which still work. Return whether to recover anything."""
        holders = expiry.holders(connection, self.tick.identity.place) if seen.held_here else {}
        self.runners = sort_runners(holders, self.tick.identity)
        if seen.far_lease:
            self._look_far(connection, seen.now)
        return bool(seen.expired or self.runners.dead or self.far)

    def _look_far(self, connection: Connection, now: datetime) -> None:
        """Find leases so long that the clock must have been wrong when they were written.

        Runners of this host from before its last boot count as dead. The others may be alive, so the tick cuts their
        leases to the normal length. A runner that is alive will renew its leases, and those of a dead runner will
        expire.
        """
        found = expiry.far_leases(connection, self.tick.settings.run.lease, RECOVER_BATCH)
        wrong = [each for each in found if lease_is_wrong(each.locked_until, now, each.lease_s)]
        gone = {each.lease.locked_by for each in wrong if before_a_reboot(each.lease.locked_by, self.tick.identity)}
        self.runners = replace(self.runners, dead=(*self.runners.dead, *sorted(gone)))
        self.far = [each for each in wrong if each.lease.locked_by not in self.runners.dead]

    def run(self) -> None:
        """Settle attempts whose lease expired or whose runner is dead.

        If the runner recorded an outcome, that outcome counts. If it recorded nothing, an attempt that may have begun
        is lost.
        """
        self._cut_far_leases()
        while self.tick.go_on():
            with self.tick.writing() as connection:
                now, found = expiry.expired_leases(
                    connection, RECOVER_BATCH, self.runners.dead, working=self.runners.working
                )
                looked_at = len(found)
                # Leave out attempts that a cluster worker has begun or confirmed since we read these rows.
                closed = tokens.close(connection, [lease_of(expired.job) for expired in found])
                found = [
                    replace(expired, unbegun=expired.job.id in closed.unbegun)
                    for expired in found
                    if expired.job.id in closed.over
                ]
                every = self.tick.settings.run.every
                decided = [settle_expired(expired, _policy_of(expired), now, every) for expired in found]
                rows = [end.finish for end in decided]
                written = leases.finish(connection, rows) if rows else FinishResult(frozenset(), frozenset())
            for expired, end in zip(found, decided, strict=True):
                job_id = end.finish.lease.job_id
                policy = _policy_of(expired).retry
                if job_id in written.cancelled:
                    self._count(as_cancelled(end, written.cancelled[job_id]), policy)
                elif job_id in written.written:
                    self._count(end, policy)
                if job_id in written.written:
                    self._note_death(expired, end)
            self.recovered += len(written.written)
            if looked_at < RECOVER_BATCH:
                break
        self._record_deaths()

    def _note_death(self, expired: Expired, end: Decided) -> None:
        """Note the job type of a lost attempt that ran in its runner's process, if that runner may have crashed."""
        runner = expired.job.locked_by or ""
        died = runner in self.runners.dead or is_gone(runner, self.tick.identity) is None
        crashed = died and not self._lost_database(expired.job)
        if crashed and isinstance(end.finished.outcome, Lost) and _policy_of(expired).in_thread:
            # If several attempts of a type are found together, count one death, because switching a machine off ends
            # all of its attempts at once.
            self.deaths[expired.job.job_type] = runner

    def _lost_database(self, job: Job) -> bool:
        """Return whether ticks of this host lost the database after *job* was claimed. Its runner may have, too."""
        if job.started_at is None:
            return False
        ended = (datetime.fromisoformat(each["until"]) for each in self.tick.unrecorded_before)
        return any(at >= job.started_at for at in ended)

    def _record_deaths(self) -> None:
        """Record the deaths in a separate transaction, so that a lock on these rows cannot delay settling attempts."""
        deaths, self.deaths = self.deaths, {}
        if not deaths:
            return
        try:
            with self.tick.writing() as connection:
                found = note_deaths(connection, deaths)
        except DatabaseError as error:
            self.tick.emit(events.database_tried_again(str(error), 1, 0.0))
            return
        for each in found:
            self.tick.emit(events.type_crashing(each.job_type))

    def _cut_far_leases(self) -> None:
        for each in self.far:
            left = self.tick.settings.run.lease if each.lease_s is None else timedelta(seconds=each.lease_s)
            with self.tick.writing() as connection:
                cut = leases.cut_leases(connection, [each.lease], left)
            if cut:
                self.tick.emit(events.lease_cut(each.lease.job_id, each.job_type, each.locked_until, left))
        self.far = []

    def _count(self, end: Decided, policy: RetryPolicy) -> None:
        finished = end.finished
        if isinstance(finished.outcome, Released):
            self.tick.result.counts.released += 1
            self.tick.emit(events.job_released(finished.job))
        elif isinstance(finished.outcome, Lost):
            self.tick.result.counts.lost += 1
            self.tick.emit(events.job_lost(finished.job, end.transition, finished.outcome.error))
        else:
            self.tick.emit(events.job_ended(finished, end.transition, policy, self.tick.settings.folder))
        if end.transition.status == "dead":
            self.tick.result.counts.dead += 1
        elif end.transition.status == "cancelled":
            self.tick.result.counts.cancelled += 1


def _policy_of(expired: Expired) -> AttemptPolicy:
    """Return the policy that the claim wrote. A job that plain SQL claimed has none, and must not run again."""
    if expired.policy is not None:
        return expired.policy
    return AttemptPolicy(RetryPolicy(), on_lost="retry" if expired.cancel_requested else "dead")
