"""The shop's jobs. cronjobs.yaml says when they run."""

from __future__ import annotations

import json
import os
import time
from datetime import date, datetime, timedelta
from urllib.request import urlopen
from zoneinfo import ZoneInfo

from app import HERE, cache, db, invoices, reminders, sessions, users
from mail import send
from sqlalchemy import delete, func, insert, select

from cronjobs import Context, GiveUp, RetryPolicy, enqueue, job

REMIND_AFTER = (30, 14, 7)  # days overdue
PAGE = 200  # jobs enqueued per transaction
BATCH = 1000  # rows deleted per transaction
MAIL_RETRY = RetryPolicy(delays=["1m", "5m", "30m", "2h"], max_attempts=10)


def day_of(ctx: Context) -> date:
    """Return the day that a job is for.

    For a scheduled job it is the day of the occurrence, even if the job runs late.
    """
    return (ctx.scheduled_for or datetime.now(ZoneInfo("Europe/Berlin"))).date()


# --- invoice reminders: one job finds the overdue invoices, and one job sends each mail -------------------------------


@job("invoices.remind", timeout="30s")
def remind(ctx: Context) -> dict[str, int]:
    """Enqueue a reminder for each invoice that has been overdue for 7, 14 or 30 days."""
    today, last, asked = day_of(ctx), 0, 0
    while True:
        ctx.check()
        with db.begin() as connection:
            page = connection.execute(
                select(invoices.c.id, invoices.c.due_on)
                .where(
                    invoices.c.id > last,
                    invoices.c.paid_on.is_(None),
                    invoices.c.due_on <= today - timedelta(days=min(REMIND_AFTER)),
                )
                .order_by(invoices.c.id)
                .limit(PAGE)
            ).all()
            for invoice in page:
                # Test for "at least 14 days", not for "14 days", so that a day without a tick skips no invoice.
                days = next(days for days in REMIND_AFTER if invoice.due_on <= today - timedelta(days=days))
                # The key ensures that there is one mail per invoice and step, however often this job runs. The same
                # transaction writes the shop's own row, so either both rows exist or neither does.
                mail = enqueue(
                    connection,
                    "invoices.send_reminder",
                    {"invoice_id": invoice.id, "days_overdue": days},
                    idempotency_key=("invoice-reminder", invoice.id, days),
                )
                if mail.new:
                    connection.execute(
                        insert(reminders).values(invoice_id=invoice.id, days_overdue=days, asked_on=today)
                    )
                    asked += 1
        if len(page) < PAGE:
            return {"asked": asked}
        last = page[-1].id


@job("invoices.send_reminder", timeout="20s", retry=MAIL_RETRY)
def send_reminder(ctx: Context, invoice_id: int, days_overdue: int) -> dict[str, str]:
    with db.connect() as connection:
        invoice = connection.execute(
            select(invoices, users.c.email)
            .join(users, users.c.id == invoices.c.user_id)
            .where(invoices.c.id == invoice_id)
        ).first()
    # The connection is closed here, so no transaction stays open while we wait for a mail server.
    if invoice is None:
        raise GiveUp(f"there is no invoice {invoice_id}")
    if invoice.paid_on is not None:  # it was paid after the job was enqueued
        return {"not sent": "it was paid"}
    send(
        ctx,
        invoice.email,
        f"Invoice {invoice_id} is {days_overdue} days overdue",
        f"Invoice {invoice_id} over {invoice.cents / 100:.2f} EUR was due on {invoice.due_on}. Did you miss it?\n",
    )
    return {"sent to": invoice.email}


# --- a cache ----------------------------------------------------------------------------------------------------------


@job("rates.refresh", timeout="15s", retry=RetryPolicy(delays=["10s", "30s", "1m"], max_attempts=5))
def refresh_rates(ctx: Context) -> dict[str, int]:
    """Fetch the exchange rates. If that fails, the shop uses the previous rates."""
    url = os.environ.get("RATES_URL") or (HERE / "rates.json").as_uri()
    with urlopen(url, timeout=ctx.remaining_s) as answer:
        rates = json.load(answer)  # parse first, so that a broken answer never reaches the cache
    with db.begin() as connection:
        connection.execute(delete(cache).where(cache.c.name == "rates"))
        connection.execute(insert(cache).values(name="rates", value=json.dumps(rates)))
    return {"rates": len(rates)}


# --- the nightly clean-up ---------------------------------------------------------------------------------------------


@job("sessions.clean_up", timeout="30s")
def clean_up_sessions(ctx: Context) -> dict[str, int]:
    """Delete expired sessions in batches.

    Each transaction is short, so the shop never waits for this job. If its timeout or a deploy stops the job, the
    deleted rows stay deleted, and the next attempt continues from there.
    """
    now, removed = int(time.time()), 0
    batch = select(sessions.c.id).where(sessions.c.expires_at < now).order_by(sessions.c.expires_at).limit(BATCH)
    while True:
        ctx.check()
        with db.begin() as connection:
            gone = connection.execute(delete(sessions).where(sessions.c.id.in_(batch))).rowcount
        removed += gone
        if gone < BATCH:
            return {"removed": removed}


# --- the weekly report: once per user and week ------------------------------------------------------------------------


@job("reports.weekly", timeout="30s")
def weekly_reports(ctx: Context) -> dict[str, int | str]:
    """Enqueue a report for each user who wants one."""
    year, number, _ = day_of(ctx).isocalendar()
    week, last, asked = f"{year}-W{number:02}", 0, 0
    while True:
        ctx.check()
        with db.begin() as connection:
            page = connection.scalars(
                select(users.c.id).where(users.c.id > last, users.c.wants_report).order_by(users.c.id).limit(PAGE)
            ).all()
            for user_id in page:
                report = enqueue(
                    connection,
                    "reports.send_weekly",
                    {"user_id": user_id, "week": week},
                    idempotency_key=("weekly-report", user_id, week),
                )
                asked += report.new
        if len(page) < PAGE:
            return {"week": week, "asked": asked}
        last = page[-1]


@job("reports.send_weekly", timeout="20s", retry=MAIL_RETRY)
def send_weekly_report(ctx: Context, user_id: int, week: str) -> dict[str, str]:
    with db.connect() as connection:
        email = connection.scalar(select(users.c.email).where(users.c.id == user_id))
        count, cents = connection.execute(
            select(func.count(), func.coalesce(func.sum(invoices.c.cents), 0)).where(
                invoices.c.user_id == user_id, invoices.c.paid_on.is_(None)
            )
        ).one()
    if email is None:
        raise GiveUp(f"there is no user {user_id}")
    send(ctx, email, f"Your week {week}", f"You have {count} open invoices, {cents / 100:.2f} EUR in all.\n")
    return {"sent to": email}
