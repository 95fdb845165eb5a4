"""An order at a partner that does not recognise a repeated order: placed once, or a person decides."""

from __future__ import annotations

import json
import os
from typing import Any

from http_post import post

from cronjobs import Context, RetryPolicy, job

RETRY = RetryPolicy(delays=["15s", "1m", "5m", "30m", "2h"], max_attempts=20)
# List only statuses of which the partner's documentation says that they place no order. A proxy in front of the partner
# may also send 502 or 504 after the order was placed.
DID_NOTHING = {429, 503}


@job("partner.order", timeout="20s", retry=RETRY)
def place_order(ctx: Context, order_id: int, items: list[dict[str, Any]]) -> dict[str, Any]:
    # Use "stop": a second order and a missing order are both unacceptable, and only a person can ask the partner.
    with ctx.effect(("partner-order", order_id), on_unknown="stop", single_call=True) as effect:
        if not effect.done:
            body = {"reference": effect.key, "items": items}  # a person finds the order by this reference
            url, left = f"{os.environ['PARTNER_URL']}/orders", ctx.remaining_s
            _, answer = post(url, body, {}, effect=effect, timeout_s=left, did_nothing=DID_NOTHING)
            effect.result = {"partner_id": json.loads(answer)["id"]}
    return effect.result or {"partner_id": "settled by hand"}
