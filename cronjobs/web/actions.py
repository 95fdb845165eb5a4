"""What the forms of the pages do: the same as the commands, and in the audit trail with who it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.config.settings import Settings
from cronjobs.errors import UsageError
from cronjobs.insight.acking import acknowledge
from cronjobs.insight.findings import judge
from cronjobs.insight.gathering import look
from cronjobs.jobs.job_types import JobTypes
from cronjobs.schedules.backfill import find, trigger
from cronjobs.store import operating, schedules
from cronjobs.store.meta import is_ours, require_schema
from cronjobs.store.operating import OperatorAction
from cronjobs.store.sql import database_now
from cronjobs.store.ticks import record
from cronjobs.text import clean, one_line
from cronjobs.web.request import Refused

ACK_FOR: Final = {"8h": timedelta(hours=8), "1d": timedelta(days=1), "7d": timedelta(days=7)}


@dataclass(frozen=True)
class Done:
    """Where to look at it now; ``said`` is a word of ``view.SAID``."""

    path: str
    said: str
    query: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Act:
    """One POST: who does it, at which host, with which fields."""

    connection: Connection
    settings: Settings
    types: JobTypes
    actor: str
    host: str
    form: Mapping[str, str]

    @property
    def why(self) -> str | None:
        why = self.form.get("why", "").strip()
        return one_line(clean(why), 500) if why else None

    def run(self, path: str) -> Done:
        """Raises Refused for an address that does nothing, ForeignDatabase for a database that is not ours."""
        found = require_schema(self.connection)
        is_ours(self.settings, found.project, found.environment)
        match path.split("/")[1:]:
            case ["jobs", job_id, ("retry" | "cancel") as verb] if job_id.isdecimal() and int(job_id[:20]) < 2**63:
                return self._job(int(job_id), verb)
            case ["findings", "ack"]:
                return self._acknowledge()
            case ["pause"]:
                return self._pause()
            case ["resume"]:
                return self._resume()
            case ["trigger"]:
                return self._trigger()
        raise Refused("404 Not Found", "there is no such action")

    def _job(self, job_id: int, verb: str) -> Done:
        act = OperatorAction(verb, self.actor, self.host, self.why)
        change = operating.retry if verb == "retry" else operating.cancel
        changed = change(self.connection, [job_id], act)
        said = "asked" if changed.asked else "unchanged"
        if changed.done:
            said = "retried" if verb == "retry" else "cancelled"
        return Done(f"/jobs/{job_id}", said)

    # --- pauses -------------------------------------------------------------------------------------------------------

    def _target(self) -> tuple[str, str]:
        scope, name = self.form.get("scope", ""), self.form.get("name", "")
        if scope not in ("all", "queue", "schedule") or bool(name) is (scope == "all"):
            raise Refused("400 Bad Request", "what is to be paused, or to go on?")
        if scope == "schedule":
            known = {each.name for each in schedules.all_schedules(self.connection)}
            if name not in known:
                raise Refused("404 Not Found", "there is no such schedule")
        return scope, name

    def _pause(self) -> Done:
        scope, name = self._target()
        now = database_now(self.connection)
        before = schedules.pause_row(self.connection, scope=scope, name=name)
        if before is not None and before.skip and (before.until is None or before.until > now):
            raise UsageError("it is paused with --skip: cronjobs pause changes that, and records what it has skipped")
        asked: dict[str, Any] = {"scope": scope, "name": name, "until": None, "why": self.why}
        schedules.pause(self.connection, **asked, by=self.actor, now=now)
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

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _trigger(self) -> Done:
        name = self.form.get("name", "")
        find(self.connection, name)
        trigger(self.connection, name, force=False, actor=self.actor, host=self.host)
        return Done("/schedule", "triggered", {"name": name})

    def _acknowledge(self) -> Done:
        """Acknowledge the finding as it is now: its rows and its severity."""
        key, span = self.form.get("finding", ""), ACK_FOR.get(self.form.get("for", "7d"))
        if span is None:
            raise Refused("400 Bad Request", f"for is one of {', '.join(ACK_FOR)}")
        found = judge(look(self.connection, self.settings, self.types), self.settings)
        finding = next((each for each in found if each.key == key), None)
        if finding is None:
            return Done("/", "gone")
        now = database_now(self.connection)
        who = {"by": self.actor, "host": self.host, "why": self.why}
        acknowledge(self.connection, finding, until=now + span, now=now, **who)
        return Done("/", "acked")

    def _record(self, action: str, subject: str, **detail: str) -> None:
        at = database_now(self.connection)
        record(
            self.connection,
            action=action,
            subject=subject,
            why=self.why,
            detail=detail or None,
            at=at,
            actor=self.actor,
            host=self.host,
        )
