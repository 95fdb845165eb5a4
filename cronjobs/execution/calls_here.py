"""Where the calls of ``ctx.map`` run, by where their handler does: in a pool, on a cluster, or inline in tests.

``cronjobs run`` and tests refuse it to a handler that a tick would run in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cronjobs.clock import SYSTEM, Clock

if TYPE_CHECKING:
    from cronjobs.config.settings import RunSettings, Settings
    from cronjobs.execution.attempt import Attempt
    from cronjobs.execution.child_protocol import Request
    from cronjobs.execution.mapping import CallMaker
    from cronjobs.jobs.context import MapCalls, StopSignal
    from cronjobs.model import Job
    from cronjobs.rules.calls import Call, CallEnd


def has_its_own_process(attempt: Attempt, run: RunSettings) -> bool:
    """Whether a tick that works by *run* would give it one."""
    return attempt.job_type.isolation == "process" or attempt.job_type.is_long(run.longest_in_tick)


def calls_here(settings: Settings) -> Callable[[Attempt], CallMaker | None]:
    """A pool of processes below this one."""

    def calls(attempt: Attempt) -> CallMaker | None:
        if not has_its_own_process(attempt, settings.run):
            return None
        from cronjobs.execution.child_protocol import Request

        ends_at = SYSTEM.monotonic() + attempt.timeout.total_seconds()
        request = Request(attempt.job, settings, ends_at, attempt.timeout.total_seconds(), attempt.worker)
        return calls_of_child(request, None)

    return calls


def calls_of_child(request: Request, guard: int | None) -> CallMaker:
    """Those of a handler whose process this is: a pool, or on a cluster its *guard*, by the socket to it."""
    if guard is None:
        from cronjobs.execution.call_pool import CallPool
        from cronjobs.execution.call_worker import CallerFacts

        return CallPool(lambda: CallerFacts.of(request))
    import socket

    from cronjobs.execution.calls_by_guard import CallsByGuard
    from cronjobs.execution.lines import Lines

    return CallsByGuard(Lines(socket.socket(fileno=guard)))


def map_inline(job: Job, stop: StopSignal, remaining_s: Callable[[], float], clock: Clock) -> MapCalls:
    """What ``ctx.map`` calls in a test of one handler."""
    from cronjobs.execution.mapping import mapping

    return mapping(CallsInline(job, stop, remaining_s, clock=clock))


def calls_inline(settings: Settings, run: RunSettings) -> Callable[[Attempt], CallMaker | None]:
    """One after another in the handler's thread; *run*: as a tick would have it."""

    def calls(attempt: Attempt) -> CallMaker | None:
        if not has_its_own_process(attempt, run):
            return None
        left_s = attempt.timeout.total_seconds()
        return CallsInline(attempt.job, attempt.stop, lambda: left_s, settings.around)

    return calls


class CallsInline:
    """Makes calls one after another in the thread that asks for them: a test has one connection."""

    def __init__(
        self,
        job: Job,
        stop: StopSignal,
        remaining_s: Callable[[], float],
        around: Sequence[str] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        self._job, self._stop, self._remaining_s, self._around, self._clock = job, stop, remaining_s, around, clock

    def make(
        self, these: Sequence[Call], at_once: int | None, ended: Callable[[CallEnd], None], check: Callable[[], None]
    ) -> None:
        from cronjobs.execution.one_call import make_call

        for call in these:
            check()
            left_s = self._remaining_s()
            ended(
                make_call(call, self._job, remaining_s=left_s, stop=self._stop, around=self._around, clock=self._clock)
            )

    def close(self) -> None:
        """Nothing is left of it."""
