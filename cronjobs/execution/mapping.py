"""``ctx.map`` but for where its calls run: payloads checked as at enqueue, results in order, failures as a list."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from cronjobs.errors import MapFailed, PayloadError, UsageError
from cronjobs.jobs.context import Context
from cronjobs.jobs.registry import Registration, registered
from cronjobs.rules.calls import Call, CallEnd
from cronjobs.rules.payload import check_payload

POLL_S: Final = 0.05  # how late a thread that waits for another one's map notices a stop


class CallMaker(Protocol):
    """Where calls run. It makes those of one map at a time."""

    def make(
        self, these: Sequence[Call], at_once: int | None, ended: Callable[[CallEnd], None], check: Callable[[], None]
    ) -> None:
        """Make them, in any order, and return when each has *ended*; *check* raises when the job has to stop."""

    def close(self) -> None:
        """The attempt has ended: nothing of its calls stays."""


def mapping(maker: CallMaker) -> Callable[[Context, str, Iterable[Mapping[str, Any]], int | None], list[Any]]:
    """What ``ctx.map`` calls."""
    one_map = threading.Lock()

    def map_calls(ctx: Context, job_type: str, payloads: Iterable[Mapping[str, Any]], at_once: int | None) -> list[Any]:
        if at_once is not None and (type(at_once) is not int or at_once < 1):
            raise UsageError(f"ctx.map(at_once={at_once!r}): it has to be a whole number of at least 1")
        these = _calls(job_type, payloads)
        ends: dict[int, CallEnd] = {}

        def ended(end: CallEnd) -> None:
            if end.number not in ends:  # one that was made twice has one result
                ends[end.number] = end
                if end.printed:
                    sys.stdout.write(end.printed)
                ctx.progress(len(ends), len(these), job_type)

        ctx.check()
        if these:
            ctx.progress(0, len(these), job_type)
            with _alone(one_map, ctx.check):
                maker.make(these, at_once, ended, ctx.check)
        return _results(job_type, [ends[call.number] for call in these])

    return map_calls


@contextmanager
def _alone(lock: threading.Lock, check: Callable[[], None]) -> Iterator[None]:
    """Of several threads of one handler that map, each waits for the others."""
    while not lock.acquire(timeout=POLL_S):
        check()
    try:
        yield
    finally:
        lock.release()


def _calls(job_type: str, payloads: Iterable[Mapping[str, Any]]) -> list[Call]:
    registration = registered().get(job_type)
    if registration is None:
        raise UsageError(f"ctx.map({job_type!r}): no @job of that name is registered where this handler runs")
    if registration.fault is not None:
        raise UsageError(f"ctx.map({job_type!r}): {registration.fault}")
    return [
        Call(index, job_type, _checked(registration, index, payload), registration.source)
        for index, payload in enumerate(payloads)
    ]


def _checked(registration: Registration, index: int, payload: Mapping[str, Any]) -> dict[str, Any]:
    """*payload* as ``enqueue`` would write it."""
    try:
        if not isinstance(payload, Mapping):
            raise PayloadError(f"it is a {type(payload).__name__}, not a mapping of names to values")
        return check_payload(dict(registration.encoded(payload)))
    except PayloadError as error:
        raise PayloadError(f"ctx.map({registration.name!r}): payload {index}: {error}") from None


def _results(job_type: str, ends: Sequence[CallEnd]) -> list[Any]:
    failures = [failure for end in ends if (failure := end.failure) is not None]
    results = [None if end.failure is not None else json.loads(end.result) for end in ends]
    if failures:
        raise MapFailed(job_type, results, failures)
    return results
