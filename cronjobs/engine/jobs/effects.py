"""The ledger of side effects. It records each effect twice: that the effect begins, and afterwards its result.

The two records are written in separate transactions, so an effect has one of three states: never begun; done; or begun
without a known result. The last state is called *unknown*. It means that the process died between the two records, or
that the body of the block raised an exception. The effect's ``on_unknown`` decides what the next attempt does with an
unknown effect. No transaction is open while the body runs.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger
from types import TracebackType
from typing import Any, Final, Literal, TypeVar, get_args

from sqlalchemy import Connection

from cronjobs.clock import Clock
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.retrying import growing_pauses, passes, patiently
from cronjobs.engine.jobs import unsent
from cronjobs.engine.jobs.checking import KEY_LIMIT, key_text
from cronjobs.engine.rules.lease import Lease
from cronjobs.engine.rules.payload import result_json
from cronjobs.engine.store import effects as store
from cronjobs.engine.store.effects import Record
from cronjobs.engine.store.leases import hold, is_held
from cronjobs.errors import (
    BadValue,
    Cancelled,
    DatabaseError,
    EffectBusy,
    EffectNotRecorded,
    EffectUnknown,
    LeaseLost,
    UsageError,
)
from cronjobs.text import one_line

OnUnknown = Literal["again", "skip", "stop"]
T = TypeVar("T")

# If the database fails, keep trying to record the result for at least this long, even past the timeout. An effect that
# was done but not recorded may be done again.
LEAST_PATIENCE_S: Final = 5.0
MOST_PATIENCE_S: Final = 60.0
# On SQLite, each try waits at least this long for the write lock. Without a wait, a try would never get the lock.
LEAST_WAIT_S: Final = 0.05
MOST_WAIT_S: Final = 10.0

_STEP: Final = re.compile(r"job:[0-9]+:step:")


# --- what an attempt does about the record that it finds in the ledger ------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """Run the body of the effect's block.

    If ``unknown``, the effect may have happened before. If ``new``, the ledger has no row for it yet.
    """

    unknown: bool = False
    new: bool = False


@dataclass(frozen=True)
class DoneEffect:
    """Do not run the body of the effect's block. If ``unknown``, the effect counts as done, but may not be."""

    result: Any = None
    unknown: bool = False
    # True if this attempt decides to skip the effect, so that the decision must be recorded.
    skip: bool = False


@dataclass(frozen=True)
class Stop:
    """Stop the attempt, because a person must first find out whether the effect happened."""


@dataclass(frozen=True)
class Wait:
    """Let the job wait, because another job's attempt is in the middle of the effect."""

    job_id: int


Entry = Begin | DoneEffect | Stop | Wait


def decide_entry(found: Record | None, lease: Lease, on_unknown: OnUnknown) -> Entry:
    """Return what the attempt with *lease* should do on entering an effect."""
    if found is None:
        return Begin(new=True)
    if found.state == "recorded":
        return DoneEffect(found.result)
    # An earlier attempt has decided to skip the effect.
    if found.state == "skipped":
        return DoneEffect(unknown=True)
    if found.running and found.job_id is not None and not found.is_by(lease):
        return Wait(found.job_id)
    match on_unknown:
        case "skip":
            return DoneEffect(unknown=True, skip=True)
        case "stop":
            return Stop()
    return Begin(unknown=True)


# --- one attempt's ledger ---------------------------------------------------------------------------------------------


_ENDS: Final = {
    "succeeded": "succeeded",
    "failed": "failed",
    "timed_out": "timed out",
    "lost": "was lost",
    "interrupted": "was interrupted",
    "cancelled": "was cancelled",
    "snoozed": "asked to run again later",
}


@dataclass
class Ledger:
    """Begins and records the effects of one attempt. ``stopped`` returns why the attempt must stop, or None."""

    database: Database
    lease: Lease
    clock: Clock
    log: Logger
    remaining_s: Callable[[], float]
    stopped: Callable[[], str | None]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def open(self, key: str) -> None:
        """Reserve *key* for one block of this attempt. Two open blocks with one key would share a row of the ledger."""
        with self._lock:
            if key in self._open:
                raise UsageError(f"the effect {key} is already open in this attempt: give each effect its own key")
            self._open.add(key)

    def close(self, key: str) -> None:
        with self._lock:
            self._open.discard(key)

    def begin(self, key: str, on_unknown: OnUnknown) -> Entry:
        """Decide what to do about *key*, and record the decision if this attempt still holds the lease.

        Raises LeaseLost if the lease is gone. Raises Cancelled if the job has to stop while the database is failing.
        """
        decided: list[Entry] = []
        before: Record | None = None
        earlier: str | None = None

        def write(connection: Connection) -> Entry:
            if not hold(connection, self.lease):
                raise LeaseLost(f"{self._whose()} no longer holds its lease: the effect {key} was not begun")
            nonlocal before, earlier
            while True:
                found = store.find(connection, key)
                if found is not None and found.is_by(self.lease) and decided and isinstance(decided[-1], Begin):
                    # The previous try was committed, but the reply to its COMMIT was lost.
                    return decided[-1]
                before = found
                decided.append(decide_entry(found, self.lease, on_unknown))
                if isinstance(decided[-1], Stop) and found is not None:
                    earlier = self._how_it_ended(connection, found)
                if self._write(connection, key, decided[-1]):
                    return decided[-1]

        entry = self._persist(write, 0.0, worth=self._is_worth_waiting)
        match entry:
            case Stop():
                raise EffectUnknown(key, earlier)
            case Wait(job_id=job_id):
                raise EffectBusy(key, job_id)
            case DoneEffect(unknown=True):
                said = "nobody knows whether the effect %s happened: this attempt counts it as done (on_unknown)"
                self.log.warning(said, key)
            case Begin(unknown=True):
                whose = f" by attempt {before.attempt} of job {before.job_id}" if before and before.job_id else ""
                said = "effect %s was begun%s, but its result was not recorded: this attempt repeats the effect"
                self.log.warning(said, key, whose)
        return entry

    def _how_it_ended(self, connection: Connection, effect: Record) -> str | None:
        """Return text such as "attempt 1, which began it, timed out", or None if no history row says it.

        The earlier attempt's error explains why the effect is unknown, but this attempt's error replaces it in the
        job's row.
        """
        ended = store.end_of_attempt(connection, effect)
        if ended is None:
            return None
        whose = "" if effect.job_id == self.lease.job_id else f" of job {effect.job_id}"
        if (ended.error or "").startswith(str(EffectNotRecorded(effect.key, "")).strip()):
            return f"attempt {effect.attempt}{whose} did it, but could not record it"
        became = _ENDS.get(ended.outcome, "ended")
        error = f" with {one_line(ended.error_type, 100)}" if ended.outcome == "failed" and ended.error_type else ""
        return f"attempt {effect.attempt}{whose}, which began it, {became}{error}"

    def _write(self, connection: Connection, key: str, entry: Entry) -> bool:
        """Record *entry*, the decision about the effect *key*.

        Return False if another attempt has inserted the effect's row first. The caller must then read that row and
        decide again.
        """
        match entry:
            case Begin(new=True):
                return store.insert_begun(connection, key, self.lease)
            case Begin():
                store.begin_again(connection, key, self.lease)
            case DoneEffect(skip=True):
                store.mark(connection, key, "skipped")
            case Stop():
                store.mark(connection, key, "stopped")
        return True

    def record(self, key: str, result: Any) -> None:
        """Record that the effect was done. Raises EffectNotRecorded or LeaseLost.

        Records the effect even if the attempt has lost its lease, because the effect did happen. But if a newer attempt
        has begun the effect again, records nothing. In either case, LeaseLost stops a handler whose lease is gone.
        """
        written, note = result_json(result)
        if note:
            self.log.warning("effect %s is done, but %s", key, note)

        def write(connection: Connection) -> tuple[bool, bool]:
            ours = store.record(connection, key, self.lease, written)
            return ours, is_held(connection, self.lease)

        try:
            try:
                ours, held = self._persist(write, LEAST_PATIENCE_S)
            except BadValue as error:
                self.log.warning("effect %s is done, but its result was not kept: %s", key, error)
                written = None
                ours, held = self._persist(write, LEAST_PATIENCE_S)
        except DatabaseError as error:
            raise EffectNotRecorded(key, str(error)) from error
        if not ours:
            raise LeaseLost(f"{self._whose()} lost its lease, and another attempt has begun the effect {key}")
        if not held:
            raise LeaseLost(f"{self._whose()} lost its lease, but the effect {key} is recorded as done")

    def withdraw(self, key: str) -> None:
        """Delete the record that the effect was begun. If the database fails, it stays unknown, which is safe."""
        try:
            self._persist(lambda connection: store.withdraw(connection, key, self.lease), LEAST_PATIENCE_S)
        except DatabaseError as error:
            self.log.warning("effect %s did nothing, but is still recorded as unknown: %s", key, error)

    def _is_worth_waiting(self, error: DatabaseError) -> bool:
        reason = self.stopped()
        if reason is not None:
            raise Cancelled(reason) from error
        return passes(error)

    def _persist(
        self,
        write: Callable[[Connection], T],
        least_s: float,
        worth: Callable[[DatabaseError], bool] = lambda error: not isinstance(error, BadValue),
    ) -> T:
        """Call *write* in a transaction, and commit it.

        Retry while the job has time left, and for at least *least_s* seconds. *write* must be safe to repeat.
        """
        give_up_at = self.clock.monotonic() + min(MOST_PATIENCE_S, max(least_s, self.remaining_s()))

        def commit() -> T:
            wait_s = min(MOST_WAIT_S, max(LEAST_WAIT_S, give_up_at - self.clock.monotonic()))
            with self.database.write(patience=wait_s) as connection:
                return write(connection)

        return patiently(commit, clock=self.clock, until=give_up_at, worth=worth, pauses=growing_pauses())

    def _whose(self) -> str:
        return f"attempt {self.lease.attempt} of job {self.lease.job_id}"


# --- the handler's side -----------------------------------------------------------------------------------------------


class Effect:
    """A side effect with a key: ``with ctx.effect(key) as effect: if not effect.done: effect.result = send(…)``.

    If ``done`` is True on entry, an earlier attempt recorded the effect as done. ``result`` is then the recorded
    result, and leaving the block writes nothing. If ``unknown`` is True, an earlier attempt began the effect, but
    recorded no result, so the effect may have happened. If an exception leaves the block, the effect becomes unknown,
    because it was begun but not done. It counts as never begun, however, if the block has set no result, and either the
    handler has called ``did_nothing()`` or the error shows that the block's ``single_call`` did nothing. An effect that
    was already unknown on entry stays unknown after any exception.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: str,
        on_unknown: OnUnknown,
        check: Callable[[], None] = lambda: None,
        *,
        single_call: bool = False,
    ) -> None:
        if on_unknown not in get_args(OnUnknown):
            raise UsageError(f"on_unknown {on_unknown!r} is not one of {', '.join(get_args(OnUnknown))}")
        self.key = key
        self.done = False
        self.unknown = False
        # A JSON value, or None if there is no result.
        self.result: Any = None
        self._ledger = ledger
        self._on_unknown: OnUnknown = on_unknown
        self._check = check
        self._did_nothing = False
        self._single_call = single_call
        self._handled_before: BaseException | None = None

    def __enter__(self) -> Effect:
        self._check()
        self._ledger.open(self.key)
        try:
            entry = self._ledger.begin(self.key, self._on_unknown)
        except BaseException:
            self._ledger.close(self.key)
            raise
        self.done, self.result, self._did_nothing = isinstance(entry, DoneEffect), None, False
        self.unknown = isinstance(entry, Begin | DoneEffect) and entry.unknown
        if isinstance(entry, DoneEffect):
            self.result = entry.result
        self._handled_before = sys.exception()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.done:
                return
            if self._single_call and error is not None:
                self._did_nothing = self._did_nothing or unsent.did_nothing(error, self._handled_before)
            # A call after did_nothing() may have done the effect. Only a result shows that.
            nothing = self._did_nothing and self.result is None
            if error is not None:
                if nothing and not self.unknown:
                    self._ledger.withdraw(self.key)
            elif nothing:
                raise UsageError(
                    f"the block of the effect {self.key} called did_nothing() and then ended without an exception, so "
                    "nobody knows whether the effect happened: raise an exception, or set effect.result if a later "
                    "call in the block has done the effect"
                )
            else:
                self._ledger.record(self.key, self.result)
        finally:
            # Drop the reference to this exception, because its traceback keeps frames and their variables alive.
            self._handled_before = None
            self._ledger.close(self.key)

    def did_nothing(self) -> None:
        """Declare that this attempt did nothing, for example because a provider refused at once. Call this method, then
        raise an exception.

        If an exception then leaves the block, the effect counts as never begun. So do not make another call in the same
        block: leave the block, and enter it again. An effect that was unknown before stays unknown, because this
        attempt does not show what an earlier attempt did.
        """
        self._did_nothing = True


def effect_key(key: str | tuple[object, ...]) -> str:
    """Return an effect's key in its stored form. Raises UsageError if the key is invalid."""
    text = key_text(key, "effect key")
    if len(text) > KEY_LIMIT:
        raise UsageError(f'effect key "{one_line(text, 40)}" is longer than {KEY_LIMIT} characters')
    if _STEP.match(text):
        raise UsageError(f'effect key "{one_line(text, 40)}" is reserved for ctx.step(): choose another')
    return text


def step_key(job_id: int, name: str) -> str:
    """Return the key of a job's own step. The same name in another job is a different effect."""
    return f"job:{job_id}:step:{key_text(name, 'name of a step')}"
