"""The actions of the pages' forms. Each does the same as its command, and the audit trail names the visitor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection
from werkzeug.exceptions import BadRequest, NotFound

from cronjobs.contrib.web.bulk import CHANGES, why_of
from cronjobs.desk.insight.acking import CHOICES, USUAL, acknowledge, take_ack_back
from cronjobs.desk.insight.finding import together
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.releasing import Holders
from cronjobs.desk.insight.stopped_jobs import stopped_jobs
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schedules.backfill import find, trigger
from cronjobs.engine.store import operating, schedules
from cronjobs.engine.store.meta import require_ours
from cronjobs.engine.store.operating import OperatorAction
from cronjobs.engine.store.sql import database_now
from cronjobs.engine.store.ticks import record
from cronjobs.errors import UsageError
from cronjobs.model import duration


@dataclass(frozen=True)
class Done:
    """The page to show after an action. ``said`` is a key of ``view.SAID``."""

    path: str
    said: str
    query: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Act:
    """One POST of a form: the visitor who sent it, the host that serves the pages, and the fields."""

    connection: Connection
    settings: Settings
    types: JobTypes
    actor: str
    host: str
    form: Mapping[str, str]

    @property
    def why(self) -> str | None:
        return why_of(self.form) or None

    def run(self, action: str, arguments: Mapping[str, Any]) -> Done:
        """Run *action*, a key of ACTIONS. Raises ForeignDatabase if the database is not ours."""
        require_ours(self.connection, self.settings)
        return ACTIONS[action](self, **arguments)

    def _change(self, job_id: int, verb: str) -> Done:
        if verb == "retry" and stopped_jobs(self.connection, [job_id]):
            return Done(f"/jobs/{job_id}", "unsettled")
        change, done = CHANGES[verb]
        changed = change(self.connection, [job_id], OperatorAction(verb, self.actor, self.host, self.why))
        said = "asked" if changed.asked else "unchanged"
        return Done(f"/jobs/{job_id}", done if changed.done else said)

    def _release(self, job_id: int) -> Done:
        """Release the job if the host that serves the pages can prove that the job's runner is gone."""
        where = f"/jobs/{job_id}"
        held = operating.held(self.connection, [job_id]).get(job_id)
        if held is None:
            return Done(where, "unchanged")
        if not Holders().may_release(held, database_now(self.connection)):
            return Done(where, "held")
        act = OperatorAction("release", self.actor, self.host, self.why)
        written = operating.release(self.connection, [held], act)
        if job_id in written.cancelled:
            return Done(where, "cancelled")
        return Done(where, "released" if job_id in written.written else "unchanged")

    # --- pauses -------------------------------------------------------------------------------------------------------

    def _target(self) -> tuple[str, str]:
        scope, name = self.form.get("scope", ""), self.form.get("name", "")
        if scope not in ("all", "queue", "schedule") or bool(name) is (scope == "all"):
            raise BadRequest("the form does not say what to pause or resume")
        if scope == "schedule":
            known = {each.name for each in schedules.all_schedules(self.connection)}
            if name not in known:
                raise NotFound("there is no such schedule")
        return scope, name

    def _pause(self) -> Done:
        scope, name = self._target()
        now = database_now(self.connection)
        before = schedules.pause_row(self.connection, scope=scope, name=name)
        if before is not None and before.skip and (before.until is None or before.until > now):
            raise UsageError(
                'this pause was made with --skip. Only "cronjobs pause" can change such a pause, because only that '
                "command records which occurrences were skipped"
            )
        schedules.pause(self.connection, scope=scope, name=name, until=None, why=self.why, by=self.actor, now=now)
        self._record("pause", f"{scope} {name}".strip())
        return self._seen_at(scope, name, "paused")

    def _resume(self) -> Done:
        scope, name = self._target()
        was_on = schedules.resume(self.connection, scope=scope, name=name, now=database_now(self.connection))
        if was_on:
            self._record("resume", f"{scope} {name}".strip())
        return self._seen_at(scope, name, "resumed" if was_on else "not_paused")

    def _seen_at(self, scope: str, name: str, said: str) -> Done:
        return Done("/schedule", said, {"name": name}) if scope == "schedule" else Done("/queues", said)

    # --- triggers and acknowledgements --------------------------------------------------------------------------------

    def _trigger(self) -> Done:
        name = self.form.get("name", "")
        find(self.connection, name)
        trigger(self.connection, name, force=False, actor=self.actor, host=self.host)
        return Done("/schedule", "triggered", {"name": name})

    def _acknowledge(self) -> Done:
        """Acknowledge the finding with the rows and the severity that the finding has now."""
        key, span = self.form.get("finding", ""), self.form.get("for", USUAL)
        if span not in CHOICES:
            raise BadRequest(f'the field "for" must be one of {", ".join(CHOICES)}')
        health = look(self.connection, self.settings, self.types)
        named = [each for each in judge(health, self.settings) if each.key == key]
        if not named:
            return Done("/", "gone")
        now = health.now  # not later, because the ack must not cover what begins after this look
        who = {"by": self.actor, "host": self.host, "why": self.why}
        acknowledge(self.connection, together(named), until=now + duration(span), now=now, **who)
        return Done("/", "acked")

    def _take_ack_back(self) -> Done:
        key = self.form.get("finding", "")
        there = take_ack_back(self.connection, key, by=self.actor, host=self.host, why=self.why)
        return Done("/", "unacked" if there else "not_acked")

    def _record(self, action: str, subject: str) -> None:
        who: dict[str, Any] = {"why": self.why, "actor": self.actor, "host": self.host}
        record(self.connection, action=action, subject=subject, at=database_now(self.connection), **who)


# Maps the address of a form to the method that runs its action.
ACTIONS: Final[Mapping[str, Callable[..., Done]]] = {
    f"/jobs/<id:job_id>/<any({', '.join(CHANGES)}):verb>": Act._change,
    "/jobs/<id:job_id>/release": Act._release,
    "/findings/ack": Act._acknowledge,
    "/findings/unack": Act._take_ack_back,
    "/pause": Act._pause,
    "/resume": Act._resume,
    "/trigger": Act._trigger,
}
