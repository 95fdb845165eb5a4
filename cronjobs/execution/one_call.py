"""One call of ``ctx.map`` in this process: the handler of a job type, called with one payload."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn

from cronjobs.clock import SYSTEM, Clock
from cronjobs.errors import PayloadError, UsageError
from cronjobs.execution.raised import said
from cronjobs.host.forks import EndingCopies
from cronjobs.jobs.around import surrounded
from cronjobs.jobs.context import Context, StopSignal
from cronjobs.jobs.registry import Registration, registered
from cronjobs.model import Job, kind_name
from cronjobs.rules import calls
from cronjobs.rules.calls import Call, CallEnd

_ALONE: Final = (
    "{what} does not work in a call of ctx.map(), which is no job: use it in the handler that calls ctx.map()"
)


class CallContext(Context):
    """What the handler of a call gets: the facts of the job that makes the call, and how it is asked to stop."""

    def map(self, job_type: str, payloads: Iterable[Mapping[str, Any]], *, at_once: int | None = None) -> list[Any]:
        raise UsageError(_ALONE.format(what="ctx.map()"))

    def _end(self, what: str) -> NoReturn:
        raise UsageError(_ALONE.format(what=what))

    def _effects(self, what: str) -> NoReturn:
        raise UsageError(_ALONE.format(what=what))


def make_call(
    call: Call,
    job: Job,
    *,
    remaining_s: float,
    stop: StopSignal,
    around: Sequence[str] = (),
    clock: Clock = SYSTEM,
    unknown: str = "",
) -> CallEnd:
    """Make *call* for *job*; what it raises becomes its end. *unknown*: why handlers may be missing here."""
    registration = registered().get(call.job_type)
    if registration is None:
        return calls.failed(call.number, "UsageError", f"no handler is registered for {call.job_type} here{unknown}")
    if call.source not in (None, registration.source):
        why = f"the source of {call.job_type} is another one here than where ctx.map() was called: a deploy?"
        return calls.failed(call.number, "SourceDiffers", why)
    ctx = CallContext(
        job._replace(job_type=call.job_type, payload=call.payload),
        timeout=timedelta(seconds=max(0.0, remaining_s)),
        stop=stop,
        clock=clock,
    )
    try:
        with EndingCopies():
            return calls.returned(call.number, _result(registration, call, ctx, around))
    except (Exception, SystemExit, GeneratorExit, asyncio.CancelledError) as error:
        return calls.failed(call.number, _kind(error), said(error))


def _result(registration: Registration, call: Call, ctx: Context, around: Sequence[str]) -> Any:
    arguments, misfits = registration.decoded(call.payload)
    if fault := registration.type_fault(misfits):
        raise PayloadError(fault)

    def finish() -> Any:
        result = registration.handler(*((ctx,) if registration.takes_ctx else ()), **arguments)
        return asyncio.run(_await(result)) if inspect.isawaitable(result) else result

    if around:
        return surrounded(around, ctx, finish, lambda words: print(words, file=sys.stderr))  # noqa: T201
    return finish()


async def _await(result: Any) -> Any:
    return await result


def _kind(error: BaseException) -> str:
    try:
        return "".join([kind_name(type(error))])
    except BaseException:  # anyone can set __module__ and __qualname__
        return "Exception"
