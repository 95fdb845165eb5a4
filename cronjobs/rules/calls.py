"""One call of ``ctx.map`` as it travels: a line of JSON to a process that makes it, and a line with its end back. Pure.

A call is ``[number, job type, payload, hash of the handler's source]``.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

from cronjobs.errors import CallFailure
from cronjobs.rules.payload import result_json
from cronjobs.text import ERROR_LIMIT, clean, one_line

MOST_RESULT: Final = 1024 * 1024  # bytes of JSON, for one call


BUNDLE_S: Final = 0.25  # how long the calls of one task take together, where each is short


class Call(NamedTuple):
    """``number``: which payload it is, from 0. ``source``: what the handler's source has to be like where it runs."""

    number: int
    job_type: str
    payload: dict[str, Any]
    source: str | None = None

    def encode(self) -> str:
        return json.dumps(self)

    @classmethod
    def decode(cls, text: str | bytes) -> Call:
        return cls(*json.loads(text))


class CallEnd(NamedTuple):
    """How a call ended: with a ``result``, as JSON text, or with an error.

    ``printed``: what it wrote, if that was kept for whoever called. ``took_s``: how long it ran.
    """

    number: int
    result: str = "null"
    error_type: str | None = None
    error: str = ""
    printed: str = ""
    took_s: float = 0.0

    @property
    def failure(self) -> CallFailure | None:
        return None if self.error_type is None else CallFailure(self.number, self.error_type, self.error)

    def encode(self) -> str:
        return json.dumps(self)

    @classmethod
    def decode(cls, text: str | bytes) -> CallEnd:
        return cls(*json.loads(text))


def returned(number: int, result: Any) -> CallEnd:
    """The end of a call that returned *result*: what cannot be kept as JSON, or is too large, has failed."""
    written, fault = result_json(result, MOST_RESULT)
    if fault is not None:
        return failed(number, "ResultRefused", f"{fault}: store it elsewhere and return a reference")
    return CallEnd(number, written or "null")


def failed(number: int, error_type: str, error: str) -> CallEnd:
    return CallEnd(number, error_type=error_type, error=one_line(clean(error), ERROR_LIMIT // 4))


def bundle(waiting: int, slots: int, call_s: float) -> int:
    """How many of so many *waiting* calls one task of a cluster makes, each taking *call_s*.

    A task costs a cluster about a millisecond. Towards the end they become smaller, so that all slots end together.
    """
    return max(1, min(int(BUNDLE_S / max(call_s, BUNDLE_S / 1000)), math.ceil(waiting / (2 * max(1, slots)))))
