"""A context for calling one handler in a plain unit test.

The context has no database, and the test can set all its fields.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import Enum
from logging import Logger
from typing import Any, Final

from sqlalchemy import Connection

from cronjobs.clock import Clock
from cronjobs.engine.jobs.checking import key_text
from cronjobs.engine.jobs.context import Context, StopSignal
from cronjobs.engine.jobs.effects import (
    Begin,
    DoneEffect,
    Entry,
    Ledger,
    OnUnknown,
    Stop,
    decide_entry,
    effect_key,
    step_key,
)
from cronjobs.engine.jobs.enqueue import Target
from cronjobs.engine.jobs.transaction import OwnTransaction
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.payload import result_json
from cronjobs.engine.rules.progress import HowFar
from cronjobs.engine.store.effects import Record
from cronjobs.errors import EffectUnknown, UsageError
from cronjobs.model import Job, duration
from cronjobs.testing.clocks import StillClock
from cronjobs.testing.lent_connection import LentDatabase


class Unknown(Enum):
    UNKNOWN = "begun once, without a recorded result"


UNKNOWN: Final = Unknown.UNKNOWN  # the state of an effect or step that was begun but never recorded

EffectKey = str | tuple[object, ...]


class FakeContext(Context):
    """A Context without a database. It records what the handler did.

    ``effects`` maps each effect's key to the recorded result, or to ``UNKNOWN`` if the effect was only begun. A step's
    key is "job:1:step:render". ``reported`` lists the handler's ``progress()`` calls, in order, each as (done, of,
    note). ``succeeded`` says whether the handler ended the job with ``transaction()`` or ``finish()``. ``result`` is
    what the handler set as ``ctx.result``. It does not contain the handler's return value.
    """

    _ledger: _MemoryLedger
    _ending: _MemoryEnding
    reported: list[HowFar]

    @property
    def effects(self) -> dict[str, Any]:
        return {key: UNKNOWN if found.state == "begun" else found.result for key, found in self._ledger.records.items()}

    @property
    def succeeded(self) -> bool:
        return self._ending.committed or self._ending.given


def context(
    job_type: str = "test.job",
    *,
    job_id: int = 1,
    attempt: int = 1,
    tries: int = 1,
    meta: Mapping[str, str] | None = None,
    enqueued_at: datetime | None = None,
    started_at: datetime | None = None,
    scheduled_for: datetime | None = None,
    late_by: timedelta | str = timedelta(0),
    stands_for: int = 1,
    idempotency_key: str | tuple[object, ...] | None = None,
    remaining: timedelta | str | float = 30.0,
    cancelled: bool | str = False,
    effects: Mapping[EffectKey, Any] | None = None,
    steps: Mapping[str, Any] | None = None,
    connection: Target | None = None,
    clock: Clock | None = None,
) -> FakeContext:
    """Make a ``ctx`` for calling a handler in a unit test: ``send_invoice(context(tries=3), invoice_id=7)``.

    Each argument sets the field with the same name. ``remaining`` is the time left. It does not decrease, and 0 means
    that the time is up. ``cancelled`` is True, or the reason ("shutdown", "lease lost"). ``effects`` and ``steps`` are
    what earlier attempts did. They map an effect's key or a step's name to the result, or to ``UNKNOWN`` if the effect
    or step was begun but never recorded. All other effects count as never begun. ``ctx.transaction()`` yields
    ``connection`` and runs its block in a savepoint. Without a connection, it raises UsageError. Instants are
    timezone-aware. By default, ``started_at`` and ``enqueued_at`` are the current time of *clock*. Raises UsageError
    for an invalid field.
    """
    clock = clock or StillClock()
    for name, instant in (("scheduled_for", scheduled_for), ("started_at", started_at), ("enqueued_at", enqueued_at)):
        if instant is not None and instant.tzinfo is None:
            raise UsageError(f"context({name}={instant!r}) has no time zone: pass an aware datetime")
    if attempt < 1 or tries < 1:
        raise UsageError("context(attempt=…, tries=…): both count from 1")
    began = started_at or (scheduled_for + duration(late_by) if scheduled_for else clock.now())
    job = Job(
        job_id,
        job_type,
        payload={},
        meta=dict(meta or {}),
        run_at=began - duration(late_by),
        attempt=attempt,
        failures=tries - 1,
        locked_by="test",
        idempotency_key=None if idempotency_key is None else key_text(idempotency_key),
        stands_for=stands_for,
        created_at=enqueued_at or began,
        started_at=began,
    )
    stop = StopSignal()
    if cancelled:
        stop.set("cancelled" if cancelled is True else cancelled)
    reported: list[HowFar] = []
    made = FakeContext(
        job,
        timeout=duration(remaining),
        stop=stop,
        clock=clock,
        report=lambda how_far, _at: reported.append(how_far),
    )
    made.reported = reported
    made.scheduled_for = scheduled_for  # set it here again to keep the test's time zone
    made._ledger = _MemoryLedger(Lease(job_id, attempt, "test"), made.log)
    for key, value in (effects or {}).items():
        made._ledger.remember(effect_key(key), value)
    for name, value in (steps or {}).items():
        made._ledger.remember(step_key(job_id, name), value)
    made._ending = _MemoryEnding(
        LentDatabase(connection, "context(connection=…)"),
        job,
        clock=clock,
        check=made.check,
        remaining_s=lambda: made.remaining_s,
    )
    return made


class _MemoryLedger(Ledger):
    """A ledger in memory, with the effects of this attempt and earlier attempts. It decides as the real ledger does."""

    def __init__(self, lease: Lease, log: Logger) -> None:
        self.log = log
        self.records: dict[str, Record] = {}
        self.lease = lease
        self._lock = threading.Lock()
        self._open = set()

    def remember(self, key: str, value: Any) -> None:
        """Record an effect that an earlier attempt left under *key*."""
        begun = value is UNKNOWN
        state = "begun" if begun else "recorded"
        earlier = self.lease.attempt - 1
        self.records[key] = Record(key, state, self.lease.job_id, earlier, False, None if begun else value)

    def begin(self, key: str, on_unknown: OnUnknown) -> Entry:
        entry = decide_entry(self.records.get(key), self.lease, on_unknown)
        match entry:
            case Begin():
                self._put(key, "begun")
            case DoneEffect(skip=True):
                self._put(key, "skipped")
            case Stop():
                raise EffectUnknown(key)
        return entry

    def record(self, key: str, result: Any) -> None:
        _, note = result_json(result)
        if note:
            self.log.warning("effect %s is done, but %s", key, note)
        self._put(key, "recorded", None if note else result)

    def withdraw(self, key: str) -> None:
        self.records.pop(key, None)

    def _put(self, key: str, state: str, result: Any = None) -> None:
        self.records[key] = Record(key, state, self.lease.job_id, self.lease.attempt, True, result)


class _MemoryEnding(OwnTransaction):
    """Ends a job without a table. It only remembers that the job has ended."""

    def finish(self, target: Target, result: Any) -> None:
        self.refuse_if_over("ctx.finish()")
        self.check()
        self.given = True

    def _write(self, connection: Connection, result: Any) -> None:
        pass
