"""Set up the shop: tables, a few users and invoices, 50,000 expired sessions, and an old and a new file in tmp/."""

from __future__ import annotations

import argparse
import mailbox
import os
import time
from datetime import date, datetime, timedelta
from itertools import cycle
from zoneinfo import ZoneInfo

from app import HERE, db, invoices, sessions, tables, users
from mail import OUTBOX
from sqlalchemy import insert, select

DAY = 24 * 60 * 60
OVERDUE = (1, 6, 7, 13, 14, 29, 30, 45)  # by how many days each invoice is overdue


def main() -> None:
    today = datetime.now(ZoneInfo("Europe/Berlin")).date()
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--users", type=int, default=3)
    options.add_argument("--sessions", type=int, default=50_000, help="that have expired")
    options.add_argument("--today", type=date.fromisoformat, default=today, help="what invoices are overdue on")
    chosen = options.parse_args()

    tables.create_all(db)
    with db.begin() as connection:
        if connection.scalar(select(users.c.id).limit(1)):
            raise SystemExit("there are users already: delete shop.db (or the database that DATABASE_URL names)")
        connection.execute(
            insert(users),
            [{"email": f"user{n}@example.com", "wants_report": True} for n in range(1, chosen.users + 1)],
        )
        connection.execute(
            insert(invoices),
            [
                {
                    "user_id": 1 + n % chosen.users,
                    "cents": 1990 + n,
                    "due_on": chosen.today - timedelta(days=days),
                    "paid_on": chosen.today if n == 0 else None,
                }
                for n, days in zip(range(3 * chosen.users + 1), cycle((20, *OVERDUE)), strict=False)
            ],
        )
        now = int(time.time())
        expired = [{"user_id": 1, "expires_at": now - 1 - n % DAY} for n in range(chosen.sessions)]
        live = [{"user_id": 1, "expires_at": now + DAY} for _ in range(200)]
        connection.execute(insert(sessions), expired + live)

    mailbox.Maildir(OUTBOX)  # this creates the folder
    (HERE / "tmp").mkdir(exist_ok=True)
    for name, age in (("export-of-last-month.csv", 30), ("export-of-today.csv", 0)):
        file = HERE / "tmp" / name
        file.write_text("a,b\n")
        os.utime(file, (now - age * DAY, now - age * DAY))
    print(f"{chosen.users} users, {3 * chosen.users + 1} invoices, {len(expired):,} expired sessions, 2 files in tmp/")


if __name__ == "__main__":
    main()
