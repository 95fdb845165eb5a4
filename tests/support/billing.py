"""Handlers like those of an app, for tests of ``cronjobs.testing``.

The module is the same on every kind of database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from cronjobs import Context, GiveUp, RetryPolicy, enqueue, job

sent: list[int] = []  # what has arrived at the provider


class Declined(Exception):
    pass


@job("billing.charge", retry=RetryPolicy(delays=["5m"], jitter=0, max_attempts=2))
def charge(ctx: Context, invoice_id: int) -> dict[str, Any]:
    ctx.check()
    with ctx.effect(("charge", invoice_id)) as effect:
        if not effect.done:
            if invoice_id < 0:
                raise Declined(f"card of invoice {invoice_id}")
            sent.append(invoice_id)
            effect.result = f"receipt {invoice_id}"
    if invoice_id == 0:
        raise GiveUp("there is no invoice 0")
    return {"receipt": effect.result, "try": ctx.tries, "late": ctx.late_by.total_seconds() > 60}


@job("billing.book")
def book(ctx: Context, invoice_id: int) -> None:
    with ctx.transaction() as connection:
        connection.execute(text("INSERT INTO bookings VALUES (:invoice_id)"), {"invoice_id": invoice_id})
        enqueue(connection, "billing.charge", {"invoice_id": invoice_id}, idempotency_key=("charge", invoice_id))
        ctx.result = {"booked": invoice_id}


@job("billing.nightly")
async def nightly(ctx: Context) -> str:
    assert ctx.scheduled_for is not None
    return ctx.scheduled_for.isoformat()
