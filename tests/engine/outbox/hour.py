"""The mail server is away for an hour: real ticks, one a minute, under a clock that is moved.

``python -m engine.outbox.hour FOLDER ORDERS`` runs in a process of its own: handlers are modules of the example's.
One of the customers has an address that does not exist. What happened is one JSON object on stdout.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from cronjobs import events
from cronjobs.clock import SYSTEM
from cronjobs.engine.config.load import load
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.host.identity import Identity
from cronjobs.engine.tick.tick import Tick
from cronjobs.engine.tick.watchdog import Unarmed
from cronjobs.testing import FakeClock
from engine.outbox.stage import Stage, python_path

MINUTE = timedelta(minutes=1)
AWAY = 60  # minutes
ALL_DONE = AWAY + 75  # the last delay is at most 36 minutes; twice, as on a busy machine an answer may come too late
WRONG = "nobody@example.com"
BUDGET_S = 300.0  # the budget of a tick, so long that it never limits how many jobs a tick does


def most_in_a_minute(orders: int) -> int:
    """What is no burst: retries come over half an hour, an eleventh of them in the fullest minute, and chance adds
    four standard deviations. Without jitter all of them would come in the same minute."""
    share = orders / 11
    return math.ceil(share + 4 * math.sqrt(share))


# --- in its own process -----------------------------------------------------------------------------------------------


class Cron:
    """Ticks once a minute of its own time."""

    def __init__(self, folder: Path) -> None:
        self.settings = load(folder / "cronjobs.yaml", environ=os.environ)
        self.clock = FakeClock()
        address = parse_url(self.settings.database, self.settings.schema)
        self.database = Database(address, clock=self.clock, connections=self.settings.run.workers + 1)
        self.seen: Counter[str] = Counter()

    def tick(self) -> Counter[str]:
        """The tick of the next minute; how many mails were tried, and how they ended."""
        self.clock.advance(MINUTE)
        self.seen = Counter()
        began = self.clock.monotonic()
        result = Tick(
            settings=self.settings,
            database=self.database,
            identity=Identity.here(),
            clock=self.clock,
            watchdog=Unarmed(),
            began=began,
            deadline=began + BUDGET_S,
            emit=self.note,
        ).run()
        assert result.trouble is None, result.trouble
        assert not result.faults, "the example's modules cannot be imported"
        return self.seen

    def note(self, event: events.Event) -> None:
        if event.facts.get("job_type") == "invoices.mail" and event.name != "job.claimed":
            self.seen[event.name] += 1


def main(folder: Path, count: int) -> dict[str, Any]:
    cron = Cron(folder)
    sys.path.insert(0, str(folder))
    buy_and_pay(count)
    mails, down = folder / "mails.jsonl", folder / "mail-is-down"
    mails.touch()
    down.touch()
    minutes: list[dict[str, int]] = []
    while len(minutes) < ALL_DONE + 1:
        if len(minutes) == AWAY:
            down.unlink()
        before = sent(mails)
        minutes.append(dict(cron.tick()) | {"mails": sent(mails) - before})
        if len(minutes) > AWAY and sent(mails) >= count - 1:
            break
    used = resource.getrusage(resource.RUSAGE_SELF)
    cron.database.close()
    return {"minutes": minutes, "cpu_s": round(used.ru_utime + used.ru_stime, 1)}


def sent(mails: Path) -> int:
    return mails.read_bytes().count(b"\n")


def buy_and_pay(count: int) -> None:
    """*count* orders, each paid as the app does it; the last one's address is wrong."""
    from buy import open_shop  # type: ignore[import-not-found]
    from shop import Order, db, pay  # type: ignore[import-not-found]
    from sqlalchemy.orm import Session

    open_shop()
    with Session(db) as session, session.begin():
        for number in range(1, count + 1):
            email = WRONG if number == count else f"customer{number}@example.com"
            order = Order(email=email, item="book", cents=1990)
            session.add(order)
            session.flush()
            pay(session, order.id)


# --- the side that judges ---------------------------------------------------------------------------------------------


def hour(stage: Stage, count: int) -> dict[str, Any]:
    """Let it happen, with providers that run already; return the figures, and what is wrong with them."""
    began = SYSTEM.monotonic()
    process = subprocess.run(
        [sys.executable, "-P", "-m", "engine.outbox.hour", str(stage.folder), str(count)],
        env=os.environ | stage.env | {"PYTHONPATH": python_path()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    told = json.loads(process.stdout)
    minutes = told["minutes"]
    wrong: list[str] = []

    tried = sum(minute.get("job.retried", 0) for minute in minutes)
    if any(minute["mails"] for minute in minutes[:AWAY]):
        wrong.append("a mail went out while the mail server was away")
    fullest, allowed = max(minute["mails"] for minute in minutes[AWAY:]), most_in_a_minute(count)
    if fullest > allowed:
        wrong.append(f"{fullest} mails in one minute: no more than {allowed} is no burst")
    if len(minutes) > ALL_DONE:
        wrong.append(f"it took {len(minutes)} minutes until all had their mail: {ALL_DONE} are enough")

    invalid = max(stage.orders("PAID"))
    copies = Counter(mail["message_id"] for mail in stage.mails())
    expected = {f"<invoice-mail.{order}@shop.example>" for order in stage.orders("PAID") - {invalid}}
    wrong += [
        f"{each} went out {copies[each]} times" for each in sorted(copies | Counter(expected)) if copies[each] != 1
    ]
    wrong += [f"{each} is for nobody" for each in sorted(copies.keys() - expected)]
    statuses = {f"{kind} {status}": number for kind, status, number in stage.sql(BY_TYPE)}
    if statuses != finished(count, dead=1):
        wrong.append(f"jobs: {statuses}")
    [invalid_job] = stage.sql("SELECT payload, last_error FROM cronjobs_jobs WHERE status = 'dead'") or [("", "")]
    if f"{WRONG}: the mail server said 550" not in str(invalid_job[1]):
        wrong.append(f"what is dead is dead of {invalid_job}")
    return {
        "orders": count,
        "violations": wrong,
        "tries that failed": tried,
        "tries of one mail, at most": stage.value("SELECT max(attempts) FROM cronjobs_jobs"),
        "minutes until the last mail": len(minutes),
        "mails in the fullest minute": fullest,
        "no burst up to": allowed,
        "mails by minute": {i: minute["mails"] for i, minute in enumerate(minutes) if minute["mails"]},
        "timed out": stage.value("SELECT count(*) FROM cronjobs_job_runs WHERE error LIKE '%timed out%'"),
        "cpu_s": told["cpu_s"],
        "took_s": round(SYSTEM.monotonic() - began, 1),
    }


BY_TYPE = "SELECT job_type, status, count(*) FROM cronjobs_jobs GROUP BY job_type, status"


def finished(orders: int, dead: int = 0) -> dict[str, int]:
    """How many jobs there are in which state when all is done."""
    done = {"invoices.issue succeeded": orders, "invoices.notify succeeded": orders}
    done |= {"invoices.mail succeeded": orders - dead} | ({"invoices.mail dead": dead} if dead else {})
    return {name: number for name, number in done.items() if number}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
