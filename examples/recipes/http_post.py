"""One POST inside an effect, for the other recipes. It decides whether an answer means done, later or never."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from cronjobs import Effect, GiveUp, RetryLater

LATER = {408, 409, 425, 429}  # 409 means that the server is handling the same request right now
DID_NOTHING = {408, 425, 429}
LONGEST_WAIT_S = 6 * 3600.0  # wait at most this long, whatever the other side asks for


class NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, because a redirected POST would arrive as a GET without its body."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(
    url: str,
    body: dict[str, Any],
    headers: dict[str, str],
    *,
    effect: Effect,
    timeout_s: float,
    also: Collection[int] = (),
    did_nothing: Collection[int] = DID_NOTHING,
) -> tuple[int, bytes]:
    """POST *body* as JSON. If the answer is 2xx or in *also*, return its status and body.

    For a status in *also*, return only the first 200 bytes of the body. For any other answer, raise RetryLater or
    GiveUp.

    If the answer says that nothing was done, this calls ``effect.did_nothing()``. Of the statuses that are retried,
    those in *did_nothing* say so. After any other of them, after a redirect, or without an answer, the effect stays
    unknown. The function connects once and does not retry, so the effect may be a ``single_call``.

    RetryLater uses up a try, so the job dies at some time if the receiver never recovers. If a receiver's 429s alone
    could use up all tries, raise Snooze for 429s and set your own limit. "A 429 with Retry-After" in
    docs/explanation/failure.md explains how.
    """
    request = Request(url, json.dumps(body, sort_keys=True).encode(), {"Content-Type": "application/json"} | headers)
    try:
        with build_opener(NoRedirects).open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except HTTPError as refusal:
        with refusal:
            start = refusal.read(200)
        if refusal.code in also:
            return refusal.code, start
        said = f"{url} said {refusal.code}: {start.decode(errors='replace')}"
        later = refusal.code >= 500 or refusal.code in LATER
        # After a redirect the effect stays unknown, because servers answer with 303 when they have done the work.
        if refusal.code in did_nothing or (refusal.code >= 400 and not later):
            effect.did_nothing()
        if later:
            raise RetryLater(said, after=wait_s(refusal.headers)) from None
        raise GiveUp(said) from None
    except (HTTPException, OSError) as trouble:  # there is no connection, it was lost, or no answer came in time
        raise RetryLater(f"{url}: {trouble or type(trouble).__name__}") from trouble


def wait_s(headers: Message) -> float | None:
    """Return the seconds that Retry-After asks for.

    If it is missing, return None, and the job's policy sets the delay.
    """
    asked = headers.get("Retry-After", "")
    try:
        if asked.isdigit():
            seconds = float(asked)
        else:
            seconds = (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # it is not a date, or it is a date without a time zone
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT_S)
