"""The jobs of a paid order: a PDF invoice, then the mail to the customer and the event. Each is a separate job.

So if the mail server is down, invoices and events still go out.
"""

from __future__ import annotations

import mail
import pdf
import webhook
from shop import Order, db
from sqlalchemy.orm import Session

from cronjobs import Context, GiveUp, RetryPolicy, enqueue, job

# The last delay repeats, so 55 tries take a day. A retry that is due before the next tick waits for that tick.
PATIENT = RetryPolicy(delays=["5s", "15s", "45s", "2m", "10m", "30m"], max_attempts=55)


@job("invoices.issue", timeout="20s", retry=PATIENT)
def issue(ctx: Context, order_id: int) -> dict[str, str]:
    """Write the invoice's file. Then enqueue the mail and the event, in one transaction with the order's row."""
    with ctx.step("pdf") as step:
        if not step.done:
            step.result = pdf.write(order_of(order_id))
    with Session(db) as session, session.begin():
        session.get_one(Order, order_id).invoice = step.result["file"]
        enqueue(session, "invoices.mail", {"order_id": order_id}, idempotency_key=("invoice-mail", order_id))
        enqueue(session, "invoices.notify", {"order_id": order_id}, idempotency_key=("invoice-event", order_id))
    return step.result


@job("invoices.mail", timeout="20s", retry=PATIENT)
def mail_invoice(ctx: Context, order_id: int) -> dict[str, str]:
    """Send the invoice to its customer once.

    If it is unknown whether the mail went out, a person decides (settle.py).
    """
    return mail.send(ctx, order_of(order_id))


@job("invoices.notify", timeout="20s", retry=PATIENT)
def notify(ctx: Context, order_id: int) -> dict[str, str]:
    """Send the event to the bookkeeping.

    If the event may not have arrived, send it again. The receiver skips repeats.
    """
    order = order_of(order_id)
    with ctx.effect(f"invoice-event:{order_id}", on_unknown="again") as effect:
        if not effect.done:
            body = {"event": "invoice.issued", "order": order.id, "number": order.number, "cents": order.cents}
            effect.result = webhook.post(effect.key, body, ctx.remaining_s)
    return effect.result


def order_of(order_id: int) -> Order:
    with Session(db, expire_on_commit=False) as session:
        order = session.get(Order, order_id)
    if order is None:
        raise GiveUp(f"there is no order {order_id}")
    return order
