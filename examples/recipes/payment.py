"""A payment that is charged once. Our key is also the provider's idempotency key."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from http_post import post

from cronjobs import Context, GiveUp, RetryPolicy, job

DECLINED = 402
RETRY = RetryPolicy(delays=["10s", "1m", "5m", "15m", "30m"], max_attempts=15)
# A provider forgets a key after some time, often after 24 hours. From then on, "again" would charge a second time.
PROVIDER_REMEMBERS = timedelta(hours=20)


@job("payments.charge", timeout="25s", retry=RETRY)
def charge(ctx: Context, payment_id: int, cents: int, currency: str, source: str) -> dict[str, Any]:
    """Charge *source*.

    *payment_id* stands for one try by the customer: another card is another payment with another key.

    Take the amount from the payload and do not look it up: with the same key, the provider expects the same request.
    """
    # A second job for this payment would be younger than the effect, and could charge after the provider has forgotten
    # the key. With this key there is only one job.
    if ctx.idempotency_key != f"charge:{payment_id}":
        raise GiveUp(f'enqueue this job with idempotency_key=("charge", {payment_id})')
    age = datetime.now(UTC) - (ctx.enqueued_at or datetime.now(UTC))
    on_unknown = "again" if age < PROVIDER_REMEMBERS else "stop"
    with ctx.effect(("charge", payment_id), on_unknown, single_call=True) as effect:
        if not effect.done:
            asked = {"amount": cents, "currency": currency, "source": source, "reference": str(payment_id)}
            url, headers = f"{os.environ['PAYMENT_URL']}/charges", {"Idempotency-Key": effect.key}
            status, answer = post(url, asked, headers, effect=effect, timeout_s=ctx.remaining_s, also={DECLINED})
            # Record a declined card as a result, because a dead job would mean that a person must act. The app asks the
            # customer for another card.
            if status == DECLINED:
                effect.result = {"declined": answer.decode(errors="replace")}
            else:
                effect.result = {"charge_id": json.loads(answer)["id"]}
    return effect.result or {"charge_id": "settled by hand"}
