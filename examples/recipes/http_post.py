"""One POST inside an effect, for webhook.py and payment.py: which answers mean done, later, or never."""

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

LATER = {408, 409, 425, 429}  # 409: the server is handling the same request right now
DID_NOTHING = {408, 425, 429}
LONGEST_WAIT_S = 6 * 3600.0  # whatever the other side asks for


class NoRedirects(HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without its body."""

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
) -> tuple[int, bytes]:
    """POST *body* as JSON and return status and body of an answer that is 2xx or in *also*.

    Of a body in *also*, return the first 200 bytes. Raise RetryLater or GiveUp for anything else.

    Calls ``effect.did_nothing()`` if the answer says so. After a 5xx or no answer, the effect stays unknown. This
    connects once and does not retry, so the effect may be a ``single_call``.

    RetryLater uses a try, so a receiver that never recovers ends the job. If its 429s alone may use up the tries, raise
    Snooze for them, with a limit of your own: see "A 429 with Retry-After" in docs/explanation/failure.md.
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
        if not later or refusal.code in DID_NOTHING:
            effect.did_nothing()
        if later:
            raise RetryLater(said, after=wait_s(refusal.headers)) from None
        raise GiveUp(said) from None
    except (HTTPException, OSError) as trouble:  # no connection, a lost connection, no answer in time
        raise RetryLater(f"{url}: {trouble or type(trouble).__name__}") from trouble


def wait_s(headers: Message) -> float | None:
    """Return the seconds that Retry-After asks for, or None if it is missing; then the job's policy decides."""
    asked = headers.get("Retry-After", "")
    try:
        if asked.isdigit():
            seconds = float(asked)
        else:
            seconds = (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):  # not a date, or a date without a time zone
        return None
    return min(max(seconds, 0.0), LONGEST_WAIT_S)
