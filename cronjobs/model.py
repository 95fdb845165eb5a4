"""The nouns of the domain, as frozen classes without I/O: Job, Outcome, Transition, RetryPolicy.

The glossary in the README explains these words. Names of instants end in ``_at``, ``_until`` or ``_for``. Instants are
timezone-aware, in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from cronjobs.loading import Loading
from cronjobs.text import nearest


class Status(StrEnum):
    """The six states of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the latest try failed, and the job will be retried at run_at
    DEAD = "dead"  # no try is left or allowed. The job stays listed until someone retries it or it is pruned
    CANCELLED = "cancelled"


FINAL: Final = (Status.SUCCEEDED, Status.DEAD, Status.CANCELLED)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_RULES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("max_attempts", lambda value: type(value) is int, "a whole number"),
    ("factor", _is_number, "a number"),
    ("jitter", _is_number, "a number"),
    ("delays", lambda value: value is None or isinstance(value, list | tuple), 'a list: write ["5s", "1m"]'),
    ("retry_on", lambda value: value is None or isinstance(value, Iterable | type), "a list of kinds"),
    ("give_up_on", lambda value: isinstance(value, Iterable | type), "a list of kinds"),
)


class _PolicyClass(type):
    if not TYPE_CHECKING:

        def __call__(cls, *args, **given):
            try:
                if wrong := [name for name in given if name not in cls.__dataclass_fields__]:
                    meant = nearest(wrong[0], cls.__dataclass_fields__)
                    guess = f", did you mean {meant!r}?" if meant else ""
                    raise TypeError(f"RetryPolicy() has no argument {wrong[0]!r}{guess}")
                return super().__call__(*args, **given)
            except (TypeError, ValueError) as error:
                if not Loading.depth:
                    raise
                # Return a policy that @job refuses later, so that the module's other handlers are still loaded.
                return type.__call__(WrongPolicy, fault=str(error))


@dataclass(frozen=True, slots=True)
class RetryPolicy(metaclass=_PolicyClass):
    """How often a failed job is retried, and after which delays.

    After the n-th failed try, the delay is ``min(base * factor**(n-1), cap)``, or ``delays[n-1]`` (the last delay
    repeats). The delay varies randomly by ±``jitter`` (0.2 = ±20 %). ``max_attempts`` is the number of failed tries
    after which the job is dead. Durations are timedeltas, or text such as "90s", "5m", "2h".

    Failures of the kinds in ``give_up_on`` are permanent. If ``retry_on`` is set, failures of kinds not listed in
    ``retry_on`` are permanent, too, except timeouts. A kind is an exception class, which includes its subclasses, or a
    name. A name is that of an exception ("ValueError", "billing.CardDeclined", or "CardDeclined" without its module),
    or "TimedOut". For commands, it can also be "exit-3" or "SIGKILL". Classes are stored as names.
    """

    max_attempts: int = 10
    base: timedelta | str = timedelta(minutes=1)
    factor: float = 2.0
    cap: timedelta | str = timedelta(minutes=30)
    jitter: float = 0.2
    delays: tuple[timedelta | str, ...] | list[timedelta | str] | list[str] | None = None
    retry_on: Sequence[type[BaseException] | str] | None = None
    give_up_on: Sequence[type[BaseException] | str] = ()

    def __post_init__(self) -> None:
        for name, is_right, rule in _RULES:
            if not is_right(getattr(self, name)):
                raise ValueError(f"{name} {getattr(self, name)!r} is not {rule}")
        object.__setattr__(self, "give_up_on", _kind_names("give_up_on", self.give_up_on))
        if self.retry_on is not None:
            object.__setattr__(self, "retry_on", _kind_names("retry_on", self.retry_on))
            if not self.retry_on:
                raise ValueError("retry_on names no kind of failure, so nothing would be retried: omit it to retry all")
        base, cap = duration(self.base), duration(self.cap)
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "cap", cap)
        if self.delays is not None:
            if not self.delays:
                raise ValueError('"delays" needs at least one delay')
            object.__setattr__(self, "delays", tuple(duration(delay) for delay in self.delays))
        if self.max_attempts < 1:
            raise ValueError("max_attempts must be at least 1")
        if not 1 <= self.factor <= 100:
            raise ValueError("factor must be between 1 and 100")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and below 1")
        if base <= timedelta(0) or cap < base:
            raise ValueError("base must be above zero and at most cap")


@dataclass(frozen=True, slots=True)
class WrongPolicy(RetryPolicy):
    """The result of ``RetryPolicy(…)`` with a wrong argument inside a ``Loading`` block."""

    fault: str = ""


KIND: Final = re.compile(r"[^\W\d]\w*(\.([^\W\d]\w*|<locals>))*|exit-[0-9]{1,3}")
KIND_RULE: Final = "a kind of failure: write ValueError, billing.CardDeclined, exit-3, SIGKILL or TimedOut"


def kind_name(kind: type) -> str:
    """Return the name by which retry policies know an exception class: "ValueError", "billing.errors.CardDeclined"."""
    builtin = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if builtin else f"{kind.__module__}.{kind.__qualname__}"


def kinds_of(error: BaseException) -> tuple[str, ...]:
    """Return the names of *error*'s class and its base classes, as ``retry_on`` and ``give_up_on`` may use them."""
    return tuple(kind_name(kind) for kind in type(error).__mro__ if kind not in (object, BaseException))


def _kind_names(what: str, kinds: Sequence[type[BaseException] | str]) -> tuple[str, ...]:
    if isinstance(kinds, str | type):
        raise ValueError(f"{what} is a list: write [{kinds if isinstance(kinds, str) else kinds.__name__}]")
    return tuple(_kind_name(what, kind) for kind in kinds)


def _kind_name(what: str, kind: type[BaseException] | str) -> str:
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return kind_name(kind)
    if isinstance(kind, str) and KIND.fullmatch(kind):
        return kind
    raise ValueError(f"{what}: {kind!r} is not {KIND_RULE}")


Isolation = Literal["thread", "process"]
OnShutdown = Literal["release", "drop"]
OnLost = Literal["retry", "dead"]
Durable = Literal["group", "each"]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options that both ``@job`` and an entry of ``job_types:`` can set. None means that the option is not set."""

    timeout: timedelta | None = None
    isolation: Isolation | None = None  # only for handlers, because a command always has its own process
    max_memory: int | None = None  # in bytes. Only for jobs that have a process of their own
    on_shutdown: OnShutdown | None = None
    on_lost: OnLost | None = None
    durable: Durable | None = None
    executor: str | None = None  # only for handlers. A name in the file's executors:, or None for this host


@dataclass(frozen=True, slots=True)
class ExitCodes:
    """The meanings of a command's exit statuses.

    A status that is in neither set, such as 75 (EX_TEMPFAIL), is a failure that the retry policy retries.
    """

    success: frozenset[int] = frozenset({0})
    permanent: frozenset[int] = frozenset({65, 78})  # EX_DATAERR and EX_CONFIG of sysexits(3)


# NamedTuples, because a tick makes one Job, Transition and Finished per job, and a frozen dataclass takes several times
# as long to make.
class Job(NamedTuple):
    """One row of cronjobs_jobs, as a claim returns it.

    A runner may record an outcome only while the row still has this ``attempt`` and ``locked_by``.
    """

    id: int
    job_type: str
    payload: Any  # a dict, unless plain SQL wrote something else
    meta: dict[str, str] = {}  # noqa: RUF012 nobody changes it
    queue: str = "default"
    priority: int = 5
    run_at: datetime | None = None
    attempt: int = 0
    failures: int = 0
    losses: int = 0
    interruptions: int = 0
    max_attempts: int | None = None  # None if the job type's policy decides
    timeout_s: float | None = None  # None if the job type decides
    locked_by: str | None = None
    idempotency_key: str | None = None
    concurrency_key: str | None = None
    schedule: str | None = None
    scheduled_for: datetime | None = None
    stands_for: int = 1
    timezone: str = "UTC"  # the time zone of the job's schedule
    created_at: datetime | None = None
    started_at: datetime | None = None
    # When the job's schedule is due next. A retry never waits beyond that time.
    next_occurrence: datetime | None = None
    # A setting of the job's schedule. "next_occurrence" means that there is no retry after ``next_occurrence``.
    retry_until: str | None = None

    @property
    def gives_up_at(self) -> datetime | None:
        return self.next_occurrence if self.retry_until == "next_occurrence" else None


# --- how an attempt ended -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The attempt succeeded. ``result`` is JSON or None. ``note`` says why a result could not be kept."""

    result: Any = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed.

    ``permanent`` says that the job becomes dead immediately. ``retry_after`` is the delay that the handler asked for.
    ``at_least`` is the shortest delay that is allowed, even if the policy's delay is shorter. ``kinds`` are compared
    with the policy's lists ``retry_on`` and ``give_up_on``. If these lists do not apply, ``kinds`` is ().
    """

    error: str
    error_type: str
    traceback: str | None = None
    permanent: bool = False
    retry_after: timedelta | None = None
    at_least: timedelta | None = None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedOut:
    error: str = "timed out"
    traceback: str | None = None
    error_type: ClassVar[str] = "TimedOut"


@dataclass(frozen=True, slots=True)
class Lost:
    """The runner died, or its lease expired, while it held the job."""

    error: str = "the runner died or lost its lease"
    error_type: ClassVar[str] = "Lost"


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A shutdown stopped the attempt. If ``by_hand`` is True, a person stopped it on purpose.

    Such an attempt does not count as a failed try.
    """

    error: str = "interrupted by shutdown"
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class CancelledByRequest:
    error: str = "cancelled"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to run again later. If it waited for an effect of another job, ``error`` names that job."""

    until: datetime
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The job was claimed but never started. The job is unchanged, and gets no history row.

    If ``error`` is set, it says why the job could not be started. The reason lies outside the job. The job is then due
    again once ``after`` has passed.
    """

    error: str | None = None
    after: timedelta = timedelta(minutes=1)
    error_type: str | None = None


Outcome = Succeeded | Failed | TimedOut | Lost | Interrupted | CancelledByRequest | Snoozed | Released

OUTCOME_WORDS: Final[dict[type, str]] = {
    Succeeded: "succeeded",
    Failed: "failed",
    TimedOut: "timed_out",
    Lost: "lost",
    Interrupted: "interrupted",
    CancelledByRequest: "cancelled",
    Snoozed: "snoozed",
}


class Transition(NamedTuple):
    """A job's next state and counters, as one statement writes them.

    If ``run_at`` is None, the job's run_at is not changed. ``permanent`` is True if the job is dead because of the kind
    of failure, even though tries are left. ``why`` is any other reason why the job is dead.
    """

    status: Status
    failures: int
    losses: int
    interruptions: int
    run_at: datetime | None = None
    delay: timedelta | None = None  # written to the log as next_delay_ms
    permanent: bool = False
    why: str | None = None


class Finished(NamedTuple):
    """An attempt that ended in this process, in the form in which the worker passes it to the loop.

    ``duration`` is how long the handler ran. ``output`` is what the handler printed and logged, already shortened.
    """

    job: Job
    outcome: Outcome
    duration: timedelta = timedelta(0)
    worker: str = ""
    output: str | None = None


def duration(value: timedelta | str | float) -> timedelta:
    """Parse "55s", "10m", "24h", "7d", "1h30m" or a number of seconds.

    Raises ValueError with a message that says how to write a duration.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration: write it as 55s, 10m, 24h or 7d")
    # Do not call float() on a number, because an int may be too large for a float.
    seconds = _seconds(value) if isinstance(value, str) else value
    if not 0 <= seconds <= 10 * 366 * 86400:
        raise ValueError(f"{value!r} is not a duration between 0 and ten years")
    return timedelta(seconds=seconds)


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def _seconds(text: str) -> float:
    rest, total, last = text.strip(), 0.0, float("inf")
    while rest:
        digits = len(rest) - len(rest.lstrip("0123456789."))
        unit_end = digits
        while unit_end < len(rest) and rest[unit_end].isalpha():
            unit_end += 1
        unit = _UNITS.get(rest[digits:unit_end])
        if not digits or digits > 12 or unit is None or unit >= last or rest[:digits].count(".") > 1:
            raise ValueError(f"{text!r} is not a duration: write it as 55s, 10m, 24h or 7d")
        total, last, rest = total + float(rest[:digits].strip(".") or "nan") * unit, unit, rest[unit_end:]
    if not text.strip() or total != total:
        raise ValueError(f"{text!r} is not a duration: write it as 55s, 10m, 24h or 7d")
    return total


LEAST_MEMORY: Final = "16MiB"  # hardly any program can start with less memory
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)([KMGT]i?B)?")
_POWERS: Final = {"K": 1, "M": 2, "G": 3, "T": 4}


def size(value: int | str) -> int:
    """Parse "512MiB", "2GiB", "500MB" or a number of bytes.

    Raises ValueError with a message that says how to write a size.
    """
    found = _SIZE.fullmatch(str(value)) if not isinstance(value, bool) else None
    if found is None or ("." in found[1] and found[2] is None):
        raise ValueError(f"{value!r} is not a size: write it as 512MiB, 2GiB or 500MB")
    number, unit = found.groups()
    factor = (1024 if "i" in unit else 1000) ** _POWERS[unit[0]] if unit else 1
    return int(number) * factor if number.isdecimal() else round(float(number) * factor)


def in_zone(instant: datetime, zone: tzinfo) -> datetime:
    """Return *instant* in *zone*, or in UTC if the time in *zone* would be after the year 9999."""
    try:
        return instant.astimezone(zone)
    except OverflowError:
        return instant.astimezone(UTC)


def duration_text(value: timedelta) -> str:
    """Return a duration as in the configuration file, exact to the millisecond: "250ms", "1.5s", "10m", "1d2h30m"."""
    rest = round(value / timedelta(milliseconds=1))
    if 0 < rest < 1000:
        return f"{rest}ms"
    text = ""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text + f"{rest / 1000:g}s" if rest or not text else text


# More seconds are shown as a number: plain SQL may have written more than a timedelta can hold.
MOST_SECONDS: Final = 1e11


def seconds_text(seconds: float) -> str:
    """Return seconds from a row as the text of a duration. Plain SQL can write any number, such as 1e300 or nan."""
    return duration_text(timedelta(seconds=seconds)) if abs(seconds) <= MOST_SECONDS else f"{seconds:g}s"


# For each pair: a time below the first number (in seconds) is rounded to a multiple of the second number.
_STEPS: Final = ((1, 0.001), (10, 0.1), (600, 1), (36_000, 60), (864_000, 3600))


def rough(span: timedelta) -> str:
    """Return a span for people, rounded by at most a twentieth: "310ms", "8.4s", "9m5s", "2h5m", "12h", "3d4h"."""
    seconds = abs(span.total_seconds())
    step = next((step for below, step in _STEPS if seconds < below), 86_400)
    return duration_text(timedelta(seconds=round(seconds / step) * step))
