"""Send one event to another program. The receiver recognises a repeated event by its id."""

from __future__ import annotations

import json
import os
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from cronjobs import GiveUp, RetryLater

URL = os.environ.get("WEBHOOK_URL", "http://127.0.0.1:8026/events")
PATIENCE_S = 10.0


def post(event_id: str, body: dict[str, Any], remaining_s: float) -> dict[str, str]:
    """Send the event and return the answer. Raise RetryLater or GiveUp if it was not accepted."""
    headers = {"Content-Type": "application/json", "X-Event-Id": event_id}
    request = Request(URL, json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=min(PATIENCE_S, max(0.1, remaining_s))) as answer:
            return {"answer": f"{answer.status} {answer.read(200).decode(errors='replace')}"}
    except HTTPError as refusal:
        with refusal:
            said = f"the webhook said {refusal.code}: {refusal.read(200).decode(errors='replace')}"
        if refusal.code == 429 or refusal.code >= 500:
            raise RetryLater(said, after=retry_after(refusal)) from refusal
        raise GiveUp(said) from refusal
    except OSError as trouble:  # there is no connection, it was lost, or no answer came in time
        raise RetryLater(f"the webhook: {trouble or type(trouble).__name__}") from trouble


def retry_after(refusal: HTTPError) -> str | None:
    """Return the delay that the receiver asks for, but at most an hour. With None, the job's policy sets the delay."""
    asked = refusal.headers.get("Retry-After", "")
    return f"{min(int(asked), 3600)}s" if asked.isdecimal() else None
