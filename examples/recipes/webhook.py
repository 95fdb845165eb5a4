"""A webhook. However often an event arrives, the receiver acts on it once."""

from __future__ import annotations

import os
from typing import Any

from http_post import post

from cronjobs import Context, RetryPolicy, job

RETRY = RetryPolicy(delays=["5s", "15s", "45s", "2m", "10m", "1h"], max_attempts=20)


@job("webhooks.deliver", timeout="15s", retry=RETRY)
def deliver(ctx: Context, event_id: str, event: dict[str, Any]) -> None:
    """Send *event*. The receiver recognises an event by *event_id*, so this is the id of the event, not of the job."""
    # Use "again": the receiver skips an id that it has seen, and a lost event is worse than one more call.
    with ctx.effect(("webhook", event_id), on_unknown="again", single_call=True) as effect:
        if not effect.done:
            headers = {"Webhook-Id": event_id}  # add a signature if the receiver checks one
            post(os.environ["WEBHOOK_URL"], event, headers, effect=effect, timeout_s=ctx.remaining_s)
